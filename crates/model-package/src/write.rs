//! Writing a bioimage.io 0.5 package.

use super::files::Files;
use super::write_tensor::{Entry, TensorRole, Tensors};
use super::{
    Citation, LAYOUT, LAYOUT_KEY, MAX_RDF_BYTES, OLD_FLOAT_KEY, Package, PackageError, QUANTIZED_KEY,
    QUANTIZED_WEIGHTS, TensorSpec, Tolerance, is_package,
};
use cytoscope_graph::{Graph, Tensor, npy};
use cytoscope_storage::folder::{self, Replaced};
use cytoscope_storage::read::open_regular;
use cytoscope_storage::write::write_checked;
use cytoscope_storage::{MARKER, Manifest, ManifestFile, Overwrite, StorageError, sha256_of_bytes, target};
use serde_json::{Map, Value, json};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;

/// The kind of a package folder in its marker file.
pub const PACKAGE_KIND: &str = cytoscope_storage::folder_kind::PACKAGE;

/// Maximum length of a package's description in characters, by the specification.
const MAX_DESCRIPTION: usize = 1024;
/// File name of the network that other programs run.
const WEIGHTS: &str = "model.onnx";
/// File name of the description.
const DESCRIPTION: &str = "rdf.yaml";
/// File name of the documentation.
const DOCUMENTATION: &str = "README.md";

/// Whether a file name is reserved for a file that every package has or may have.
pub fn is_reserved(name: &str) -> bool {
    // Some file systems are case-insensitive.
    [WEIGHTS, QUANTIZED_WEIGHTS, DESCRIPTION, DOCUMENTATION, MARKER].iter().any(|own| own.eq_ignore_ascii_case(name))
        || name.starts_with("test_input_")
        || name.starts_with("test_output_")
}

/// Name and content of a file.
pub type NamedBytes = (String, Vec<u8>);

/// Content that a package takes over from its source package, in addition to what [`PackageBuilder`] holds.
#[derive(Debug, Clone, Default)]
pub struct InheritedContent {
    /// Fields of the description, which replace those of the same name.
    pub fields: Map<String, Value>,
    /// Sections of `config` other than `cytoscope`.
    pub config: Map<String, Value>,
    /// Names and contents of attached files.
    pub attachments: Vec<NamedBytes>,
    /// Names and contents of the sample tensors of inputs and outputs, in order.
    pub samples: [Vec<Option<NamedBytes>>; 2],
}

/// The content of a package to be written.
#[derive(Debug, Clone)]
pub struct PackageBuilder {
    /// 5 to 128 letters, digits or `_+- ()`.
    pub name: String,
    /// One-sentence description.
    pub description: String,
    /// The model card: the package's documentation page, in Markdown.
    pub documentation: String,
    /// Names of the authors, in the order of citation.
    pub authors: Vec<String>,
    /// Works to cite. Those without DOI and address are left out of the description, as the specification requires.
    pub cite: Vec<Citation>,
    /// Identifier of the license in the SPDX list, such as `CC-BY-4.0`; `None` if nobody has given one.
    pub license: Option<String>,
    /// Keywords for searching collections of models.
    pub tags: Vec<String>,
    /// Inputs in the graph's order.
    pub inputs: Vec<TensorSpec>,
    /// Outputs in the graph's order.
    pub outputs: Vec<TensorSpec>,
    /// The network, which is written as ONNX.
    pub graph: Graph,
    /// Test tensors of the inputs.
    pub test_inputs: Vec<Tensor>,
    /// Test tensors of the outputs.
    pub test_outputs: Vec<Tensor>,
    /// Content of the section `config.cytoscope`, a map; null if there is none.
    pub config: Value,
    /// Cover images, names and contents; the first one represents the model. The card may refer to them by name.
    pub covers: Vec<(String, Vec<u8>)>,
    /// The float network, if [`PackageBuilder::graph`] is its int8 version and both are stored. It becomes the declared
    /// weights that other programs run, and the int8 network an attachment.
    pub float_graph: Option<Graph>,
    /// Tolerances for reproducing the outputs, one for each output in order; `None` for bioimage.io's default.
    pub tolerance: Option<Vec<Tolerance>>,
}

impl PackageBuilder {
    /// Writes a folder, or a zip if the path ends in `.zip`. The package is written completely or not at all. A marker
    /// file in it lists its files, so that a later write knows whether it may be replaced. An existing package is
    /// replaced if this program wrote it and it is unchanged; otherwise `overwrite` decides.
    ///
    /// # Errors
    /// [`PackageError`] if the graph has no ONNX form, a name violates the specification, a file cannot be written, or
    /// the path holds something else ([`PackageError::Storage`]).
    pub fn save(&self, path: &Path, overwrite: Overwrite) -> Result<Replaced, PackageError> {
        self.save_with(&InheritedContent::default(), path, overwrite)
    }

    /// Like [`PackageBuilder::save`], with content taken over from the source package.
    ///
    /// # Errors
    /// Same as [`PackageBuilder::save`].
    pub fn save_with(
        &self,
        carried: &InheritedContent,
        path: &Path,
        overwrite: Overwrite,
    ) -> Result<Replaced, PackageError> {
        check_destination(path, &[], overwrite)?;
        let existed = std::fs::symlink_metadata(path).is_ok();
        let files = self.files(carried, path)?;
        if !is_zip(path) {
            return Ok(folder::write_finished(path, PACKAGE_KIND, &files, overwrite)?);
        }
        let bytes = zip_bytes(&files).map_err(|e| PackageError::io(path, e))?;
        write_zip(path, &bytes, existed, overwrite)
    }

    /// Returns the package that [`PackageBuilder::save`] followed by [`Package::open`] gives, without writing it to
    /// disk. `name` stands for its path in messages.
    ///
    /// # Errors
    /// [`PackageError`] if the graph has no ONNX form, or the description violates the specification.
    pub fn in_memory(&self, name: &Path) -> Result<Package, PackageError> {
        let contents = self.files(&InheritedContent::default(), name)?.into_iter().collect();
        Package::from_files(name, Files::Memory { path: name.to_owned(), contents: Arc::new(contents) }, None)
    }

    /// Returns names and contents of all files, in a fixed order.
    fn files(&self, carried: &InheritedContent, path: &Path) -> Result<Vec<(String, Vec<u8>)>, PackageError> {
        let fits = (5..=128).contains(&self.name.chars().count())
            && self.name.chars().all(|c| c.is_ascii_alphanumeric() || "_+- ()".contains(c));
        if !fits {
            return Err(PackageError::bad(
                path,
                &self.name,
                "is not a valid package name: expected 5 to 128 letters, digits or _+- ()",
            ));
        }
        let Networks { mut files, mut attachments, weights, config } = self.networks(path)?;
        let tensors = Tensors::new(&self.graph, (&self.inputs, &self.test_inputs), (&self.outputs, &self.test_outputs));
        let mut section = |entries: &[Entry<'_>], role: TensorRole| -> Vec<Value> {
            let mut section = Vec::new();
            for (i, entry) in entries.iter().enumerate() {
                let test = entry.test.map(|tensor| {
                    let name = format!("test_{}_{i}.npy", role.name());
                    let bytes = npy::write(tensor);
                    let test = json!({"source": name, "sha256": sha256_of_bytes(&bytes)});
                    files.push((name, bytes));
                    test
                });
                section.push(tensors.describe(entry, role, test));
            }
            section
        };
        let mut sections = [section(&tensors.inputs, TensorRole::Input), section(&tensors.outputs, TensorRole::Output)];
        files.push((DOCUMENTATION.to_owned(), self.documentation.clone().into_bytes()));
        let description: String = self.description.chars().take(MAX_DESCRIPTION).collect();
        let mut rdf = json!({
            "format_version": "0.5.3",
            "type": "model",
            "name": self.name,
            "description": description,
            "authors": self.authors.iter().map(|n| json!({"name": n})).collect::<Vec<_>>(),
            "cite": self.cite.iter().filter_map(Citation::entry).collect::<Vec<_>>(),
            "license": self.license,
            "tags": self.tags,
            "documentation": DOCUMENTATION,
            "version": "0.1.0",
        });
        if let Some(map) = rdf.as_object_mut() {
            map.extend(carried.fields.clone());
            for ((entries, samples), key) in sections.iter_mut().zip(&carried.samples).zip(["inputs", "outputs"]) {
                add_samples(&mut files, path, entries, samples)?;
                map.insert(key.to_owned(), json!(entries));
            }
            map.insert("weights".to_owned(), json!({"onnx": weights}));
            map.insert("config".to_owned(), self.sections(config, carried, &tensors.outputs));
        }
        for (name, bytes) in &carried.attachments {
            add_file(&mut files, path, name, bytes)?;
            attachments.push(json!({"source": name, "sha256": sha256_of_bytes(bytes)}));
        }
        if let (false, Some(map)) = (attachments.is_empty(), rdf.as_object_mut()) {
            map.insert("attachments".to_owned(), json!(attachments));
        }
        if let (false, Some(map)) = (self.covers.is_empty(), rdf.as_object_mut()) {
            let mut names = Vec::with_capacity(self.covers.len());
            for (name, bytes) in &self.covers {
                let name = cover_name(&files, name, bytes);
                add_file(&mut files, path, &name, bytes)?;
                names.push(name);
            }
            map.insert("covers".to_owned(), json!(names));
        }
        let text = serde_yaml_ng::to_string(&rdf).map_err(|e| PackageError::bad(path, DESCRIPTION, e.to_string()))?;
        files.push((DESCRIPTION.to_owned(), text.into_bytes()));
        Ok(files)
    }

    /// Returns the network files and their entries in the description.
    fn networks(&self, path: &Path) -> Result<Networks, PackageError> {
        let file = |graph: &Graph| {
            cytoscope_onnx::encode(graph).map_err(|error| PackageError::Graph { path: path.to_owned(), error })
        };
        // Other programs run the float network, which reproduces outputs closely.
        let declared = file(self.float_graph.as_ref().unwrap_or(&self.graph))?;
        let weights =
            json!({"source": WEIGHTS, "sha256": sha256_of_bytes(&declared.bytes), "opset_version": declared.opset});
        let mut files = vec![(WEIGHTS.to_owned(), declared.bytes)];
        let mut attachments = Vec::new();
        let mut config = match &self.config {
            Value::Null => Map::new(),
            Value::Object(config) => config.clone(),
            other => return Err(PackageError::bad(path, "config.cytoscope", format!("is {other}: expected a map"))),
        };
        // Entries of an earlier package would refer to files that are not written.
        for key in [QUANTIZED_KEY, OLD_FLOAT_KEY] {
            config.remove(key);
        }
        config.insert(LAYOUT_KEY.to_owned(), json!(LAYOUT));
        if self.float_graph.is_some() {
            let quantized = file(&self.graph)?.bytes;
            let entry = json!({"source": QUANTIZED_WEIGHTS, "sha256": sha256_of_bytes(&quantized)});
            config.insert(QUANTIZED_KEY.to_owned(), entry.clone());
            attachments.push(entry);
            files.push((QUANTIZED_WEIGHTS.to_owned(), quantized));
        }
        Ok(Networks { files, attachments, weights, config })
    }

    /// Returns the sections of `config`; `outputs` are the described outputs.
    fn sections(&self, cytoscope: Map<String, Value>, carried: &InheritedContent, outputs: &[Entry<'_>]) -> Value {
        let mut config = carried.config.clone();
        config.insert("cytoscope".to_owned(), Value::Object(cytoscope));
        if let Some(tolerances) = &self.tolerance {
            let entries = tolerances.iter().zip(outputs).map(|(tolerance, output)| tolerance.declaration(&output.id));
            let entries: Vec<Value> = entries.collect();
            let section = config.entry("bioimageio").or_insert_with(|| json!({}));
            if let Some(section) = section.as_object_mut() {
                section.insert("reproducibility_tolerance".to_owned(), json!(entries));
            }
        }
        Value::Object(config)
    }
}

/// The networks of a package being written.
struct Networks {
    files: Vec<(String, Vec<u8>)>,
    /// Entries of `attachments`.
    attachments: Vec<Value>,
    /// `weights.onnx`.
    weights: Value,
    /// `config.cytoscope`.
    config: Map<String, Value>,
}

/// Adds the files of sample tensors, and references to them to the tensor entries.
fn add_samples(
    files: &mut Vec<(String, Vec<u8>)>,
    path: &Path,
    tensors: &mut [Value],
    samples: &[Option<NamedBytes>],
) -> Result<(), PackageError> {
    for (tensor, sample) in tensors.iter_mut().zip(samples) {
        let (Some((name, bytes)), Some(tensor)) = (sample, tensor.as_object_mut()) else { continue };
        add_file(files, path, name, bytes)?;
        tensor.insert("sample_tensor".to_owned(), json!({"source": name, "sha256": sha256_of_bytes(bytes)}));
    }
    Ok(())
}

/// Returns the name of a cover in a package with these files: another one if a file with other content has its name, also if
/// the names differ in case only, which some file systems ignore.
fn cover_name(files: &[(String, Vec<u8>)], name: &str, bytes: &[u8]) -> String {
    let is_other = |(taken, there): &(String, Vec<u8>), name: &str| {
        taken.eq_ignore_ascii_case(name) && (taken != name || there != bytes)
    };
    let mut name = name.to_owned();
    while files.iter().any(|file| is_other(file, &name)) {
        name.insert_str(0, "cover_");
    }
    name
}

/// Adds a file. An existing file of the same name must have the same content.
fn add_file(files: &mut Vec<(String, Vec<u8>)>, path: &Path, name: &str, bytes: &[u8]) -> Result<(), PackageError> {
    let taken = files.iter().find(|(taken, _)| taken == name);
    if taken.is_some_and(|(_, there)| there == bytes) {
        return Ok(());
    }
    if taken.is_some() || name.contains(['/', '\\']) || name == DESCRIPTION || name == MARKER {
        return Err(PackageError::bad(path, name, "is not a valid file name: expected a unique name without a folder"));
    }
    files.push((name.to_owned(), bytes.to_vec()));
    Ok(())
}

fn is_zip(path: &Path) -> bool {
    target::extension(path).as_deref() == Some("zip")
}

/// Checks, before any work is done, that a package may be written to a path.
///
/// # Errors
/// [`StorageError`] if the path has an extension other than `.zip`, is one of the inputs or inside a package that is one, or
/// holds something that this program did not write and that `overwrite` does not allow to be replaced.
pub fn check_destination(path: &Path, inputs: &[&Path], overwrite: Overwrite) -> Result<(), StorageError> {
    target::refuse_input(path, inputs)?;
    refuse_inside_package(path, inputs)?;
    target::check_extension(path, &["", "zip"])?;
    if !is_zip(path) {
        return folder::check_finished(path, PACKAGE_KIND, inputs, overwrite);
    }
    match target::check_file(path, inputs, overwrite) {
        Err(StorageError::Exists { .. }) if is_own_zip(path) => Ok(()),
        other => other,
    }
}

/// Checks that an output is not inside a package that is an input: an additional file would count as a change of it.
///
/// # Errors
/// [`StorageError::NotReplaceable`] with the package.
pub fn refuse_inside_package(path: &Path, inputs: &[&Path]) -> Result<(), StorageError> {
    let output = target::resolved(path);
    let surrounds = |input: &&&Path| input.is_dir() && is_package(input) && output.starts_with(target::resolved(input));
    match inputs.iter().find(surrounds) {
        None => Ok(()),
        Some(package) => {
            let problem = format!("is inside the package {}, which it would change", package.display());
            Err(StorageError::NotReplaceable { path: path.to_owned(), problem, can_force: false })
        }
    }
}

/// Whether a zip is a package that this program wrote, without additional files.
fn is_own_zip(path: &Path) -> bool {
    let Some(mut archive) = open_regular(path).ok().and_then(|file| zip::ZipArchive::new(file).ok()) else {
        return false;
    };
    let mut names: Vec<String> = archive.file_names().flatten().map(|name| name.into_owned()).collect();
    let mut marker = Vec::new();
    let read = archive.by_name(MARKER).map(|entry| entry.take(MAX_RDF_BYTES).read_to_end(&mut marker));
    let manifest = Manifest::from_bytes(&marker).filter(|m| read.is_ok() && m.kind == PACKAGE_KIND);
    let Some(files) = manifest.and_then(|m| m.files) else { return false };
    let mut listed: Vec<String> = files.iter().map(|f| f.name.clone()).chain([MARKER.to_owned()]).collect();
    names.sort();
    listed.sort();
    names == listed && files.iter().all(|file| is_unchanged(&mut archive, file))
}

/// Whether an entry has the recorded length and content. At most one byte more than the recorded length is read.
fn is_unchanged(archive: &mut zip::ZipArchive<std::fs::File>, file: &ManifestFile) -> bool {
    let mut bytes = Vec::new();
    let Ok(entry) = archive.by_name(&file.name) else { return false };
    let read = entry.take(file.bytes.saturating_add(1)).read_to_end(&mut bytes);
    read.is_ok() && bytes.len() as u64 == file.bytes && sha256_of_bytes(&bytes) == file.sha256
}

/// Writes a zip at a path that [`check_destination`] has allowed; `existed` states whether a file existed there then. One that
/// another program has created since is moved aside, unless `overwrite` allows replacing it.
fn write_zip(path: &Path, bytes: &[u8], existed: bool, overwrite: Overwrite) -> Result<Replaced, PackageError> {
    let may_replace = if existed { Overwrite::Replace } else { overwrite };
    Ok(match write_checked(path, bytes, may_replace)? {
        Some(aside) => Replaced::MovedTo(aside),
        None if existed => Replaced::Ours,
        None => Replaced::Nothing,
    })
}

/// Returns the bytes of a zip, which depend only on the files. The marker is the last entry.
fn zip_bytes(files: &[(String, Vec<u8>)]) -> std::io::Result<Vec<u8>> {
    // Built in memory, where the files already are, so that a full disk fails in one place only.
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Deflated)
        .last_modified_time(zip::DateTime::default());
    let marker = (MARKER.to_owned(), Manifest::finished(PACKAGE_KIND, files).to_bytes());
    for (name, bytes) in files.iter().chain([&marker]) {
        zip.start_file(name.as_str(), options)?;
        zip.write_all(bytes)?;
    }
    Ok(zip.finish()?.into_inner())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn a_file_that_appears_at_the_path_of_a_zip_is_moved_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("net.zip");
        assert_eq!(write_zip(&path, b"one", false, Overwrite::Refuse).unwrap(), Replaced::Nothing);
        assert_eq!(write_zip(&path, b"two", true, Overwrite::Refuse).unwrap(), Replaced::Ours);
        std::fs::write(&path, "created by another program").unwrap();
        let replaced = write_zip(&path, b"three", false, Overwrite::Refuse).unwrap();
        let aside = folder.path().join("net.zip.before-1");
        assert_eq!(replaced, Replaced::MovedTo(aside.clone()));
        assert_eq!(std::fs::read(aside).unwrap(), b"created by another program");
        assert_eq!(std::fs::read(path).unwrap(), b"three");
    }
}
