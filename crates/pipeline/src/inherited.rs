//! Parts that a package takes over from the one it is derived from: authors, citations, license, attachments, covers.

use cytoscope_model_package::{FormatVersion, InheritedContent, Package, PackageError, is_reserved};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::fmt;

/// Maximum number of cover images that are read.
const MAX_COVERS: usize = 16;
/// Maximum size of a cover image in bytes.
const MAX_COVER_BYTES: u64 = 16 << 20;
/// File extensions of cover images.
const COVER_EXTENSIONS: [&str; 8] = ["png", "jpg", "jpeg", "gif", "svg", "webp", "tif", "tiff"];
/// Maximum number of attachments taken over.
const MAX_ATTACHMENTS: usize = 64;
/// Maximum size of an attachment in bytes.
const MAX_ATTACHMENT_BYTES: u64 = 256 << 20;
/// Maximum total size of the attachments in bytes.
const MAX_ATTACHED_BYTES: u64 = 1 << 30;
/// Maximum length of an icon that is text (an emoji) rather than a file name.
const MAX_ICON_CHARS: usize = 2;

/// Fields with the same form in format versions 0.4 and 0.5.
const FIELDS: [&str; 11] = [
    "maintainers",
    "packaged_by",
    "git_repo",
    "links",
    "id",
    "id_emoji",
    "uploader",
    "version",
    "version_comment",
    "timestamp",
    "run_mode",
];
/// Fields taken over from version 0.5 only; they have another form in 0.4.
const FIELDS_05: [&str; 2] = ["training_data", "parent"];

/// A part of a package that was not taken over into a new one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Name of the file, or field of the description, such as `README.md` or `cite[1]`.
    pub part: String,
    /// Why it was left out, such as "it is not a list".
    pub reason: String,
}

impl LeftOut {
    /// A part that is left out for this reason.
    pub(crate) fn new(part: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { part: part.into(), reason: reason.into() }
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.part, self.reason)
    }
}

/// Parts that are taken over from a package, and those that are left out.
pub(crate) struct Inherited {
    /// Fields, settings, attachments and sample files, in the form of the new package.
    pub content: InheritedContent,
    /// Each file or section that is left out.
    pub left_out: Vec<LeftOut>,
}

/// Returns the file that an entry names, either as text or as `source` of a mapping.
pub(crate) fn file_name(entry: Option<&Value>) -> Option<&str> {
    let entry = entry?;
    entry.as_str().or_else(|| entry.get("source").and_then(Value::as_str))
}

/// Returns the last component of a path or URL.
fn plain_name(file: &str) -> &str {
    file.rsplit(['/', '\\']).next().unwrap_or(file)
}

/// Returns the name of an attachment in the new package, unless another file has it.
fn free_name(file: &str) -> String {
    let name = plain_name(file);
    if is_reserved(name) { format!("attached_{name}") } else { name.to_owned() }
}

/// Returns a file name with a number before its extension.
fn numbered_name(name: &str, number: usize) -> String {
    match name.rsplit_once('.') {
        Some((stem, extension)) if !stem.is_empty() => format!("{stem}_{number}.{extension}"),
        _ => format!("{name}_{number}"),
    }
}

/// Returns a reason for each of these keys of a description whose value is something other than a list, so that it is left
/// out.
pub(crate) fn not_lists(rdf: &Value, keys: &[&str]) -> Vec<LeftOut> {
    let is_other = |key: &str| rdf.get(key).is_some_and(|value| !value.is_null() && !value.is_array());
    keys.iter().filter(|key| is_other(key)).map(|key| LeftOut::new(*key, "it is not a list")).collect()
}

/// Returns the entries of a list in a description that are valid; the others are left out for this reason.
fn valid_entries(
    rdf: &Value,
    key: &str,
    is_valid: impl Fn(&Value) -> bool,
    reason: &str,
    left_out: &mut Vec<LeftOut>,
) -> Value {
    let mut valid = Vec::new();
    for (index, entry) in rdf.get(key).and_then(Value::as_array).into_iter().flatten().enumerate() {
        if is_valid(entry) {
            valid.push(entry.clone());
        } else {
            left_out.push(LeftOut::new(format!("{key}[{index}]"), reason));
        }
    }
    Value::Array(valid)
}

/// Returns the settings that a package passes on: those of other programs.
fn inherited_config(package: &Package, left_out: &mut Vec<LeftOut>) -> Map<String, Value> {
    let mut config = match package.rdf.get("config").filter(|config| !config.is_null()) {
        Some(Value::Object(config)) => config.clone(),
        Some(_) => {
            left_out.push(LeftOut::new("config", "it is not a map"));
            Map::new()
        }
        None => Map::new(),
    };
    config.remove("cytoscope");
    if package.declares_quantized() {
        // The tolerance was declared for the quantized network, which the float network replaces as the declared one.
        if let Some(section) = config.get_mut("bioimageio").and_then(Value::as_object_mut) {
            section.remove("reproducibility_tolerance");
            if section.is_empty() {
                config.remove("bioimageio");
            }
        }
    }
    config
}

/// Returns what a package passes on besides its network, tensors, documentation, tags and covers.
pub(crate) fn inherit(package: &Package) -> Inherited {
    let rdf = &package.rdf;
    let is_05 = FormatVersion::of(&package.format_version) == Some(FormatVersion::V05);
    let some = |key: &str| rdf.get(key).filter(|v| !v.is_null()).cloned();
    let mut fields = Map::new();
    let also = if is_05 { &FIELDS_05[..] } else { &[] };
    for key in FIELDS.iter().chain(also) {
        if let Some(value) = some(key) {
            fields.insert((*key).to_owned(), value);
        }
    }
    let list = |key: &str| rdf.get(key).and_then(Value::as_array).into_iter().flatten();
    let mut files = Attachments::new(package);
    files.left_out.extend(not_lists(rdf, &["authors", "cite"]));
    let has_text = |entry: &Value, key: &str| entry.get(key).is_some_and(Value::is_string);
    let is_named = |author: &Value| has_text(author, "name");
    let authors = valid_entries(rdf, "authors", is_named, "there is no name", &mut files.left_out);
    fields.insert("authors".to_owned(), authors);
    // The specification requires a DOI or a URL for each citation.
    let is_linked = |work: &Value| has_text(work, "doi") || has_text(work, "url");
    let cited = valid_entries(rdf, "cite", is_linked, "there is neither a DOI nor a URL", &mut files.left_out);
    fields.insert("cite".to_owned(), cited);
    let license = match some("license") {
        Some(Value::Object(file)) => file.get("source").and_then(Value::as_str).and_then(|name| files.take(name)),
        other => other,
    };
    fields.insert("license".to_owned(), license.unwrap_or(Value::Null));
    if let Some(icon) = some("icon") {
        let is_text = icon.as_str().is_some_and(|text| text.chars().count() <= MAX_ICON_CHARS);
        let entry = if is_text { Some(icon) } else { file_name(Some(&icon)).and_then(|name| files.take(name)) };
        entry.into_iter().for_each(|icon| _ = fields.insert("icon".to_owned(), icon));
    }
    let own = |key: &str| file_name(package.config().get(key)).map(plain_name);
    let networks = [own("quantized_weights"), own("float_weights")];
    // Attachments are a list in 0.5 and a mapping with `files` in 0.4.
    let attached = rdf.get("attachments").and_then(|a| a.as_array().or_else(|| a.get("files")?.as_array()));
    for name in attached.into_iter().flatten().filter_map(|entry| file_name(Some(entry))) {
        if !networks.contains(&Some(plain_name(name))) {
            files.take(name);
        }
    }
    for key in ["sample_inputs", "sample_outputs"] {
        list(key).filter_map(|v| file_name(Some(v))).for_each(|name| _ = files.take(name));
    }
    let samples = ["inputs", "outputs"].map(|key| list(key).map(|t| files.sample(t.get("sample_tensor"))).collect());
    let config = inherited_config(package, &mut files.left_out);
    let content = InheritedContent { fields, config, attachments: files.files, samples };
    Inherited { content, left_out: files.left_out }
}

/// Collects the files of a package that become attachments of another one.
struct Attachments<'a> {
    package: &'a Package,
    /// Number of files requested so far.
    read: usize,
    /// Files of the package, each with its name in the new one, at most [`MAX_ATTACHMENTS`].
    names: Vec<(String, String)>,
    files: Vec<(String, Vec<u8>)>,
    bytes: u64,
    left_out: Vec<LeftOut>,
}

impl<'a> Attachments<'a> {
    fn new(package: &'a Package) -> Self {
        Self { package, read: 0, names: Vec::new(), files: Vec::new(), bytes: 0, left_out: Vec::new() }
    }

    /// Returns the name of a file in the new package. Files of the same name in different folders get different ones, also if
    /// the names differ in case only, which some file systems ignore. `None` if there are too many files.
    fn name_for(&mut self, file: &str) -> Option<String> {
        let path = file.replace('\\', "/");
        let path = path.trim_start_matches("./");
        if let Some((_, name)) = self.names.iter().find(|(known, _)| known == path) {
            return Some(name.clone());
        }
        let mut name = free_name(path);
        if self.names.len() >= MAX_ATTACHMENTS {
            self.left_out.push(LeftOut::new(name, format!("more than {MAX_ATTACHMENTS} files are attached")));
            return None;
        }
        let mut number = 2;
        while self.names.iter().any(|(_, taken)| taken.eq_ignore_ascii_case(&name)) {
            name = numbered_name(&free_name(path), number);
            number += 1;
        }
        self.names.push((path.to_owned(), name.clone()));
        Some(name)
    }

    /// Reads a file, which has the given name in the new package.
    fn read(&mut self, file: &str, name: &str) -> Option<Vec<u8>> {
        let mut leave_out = |reason: String| self.left_out.push(LeftOut::new(name, reason));
        self.read += 1;
        if self.read > MAX_ATTACHMENTS {
            leave_out(format!("more than {MAX_ATTACHMENTS} files are attached"));
            return None;
        }
        match self.package.files().read_up_to(file, MAX_ATTACHMENT_BYTES) {
            Ok(bytes) if self.bytes.saturating_add(bytes.len() as u64) > MAX_ATTACHED_BYTES => {
                leave_out(format!("the attached files have more than {MAX_ATTACHED_BYTES} bytes"));
                None
            }
            Ok(bytes) => {
                self.bytes += bytes.len() as u64;
                Some(bytes)
            }
            Err(error) => {
                leave_out(error.to_string());
                None
            }
        }
    }

    /// Attaches a file and returns its entry for the description.
    fn take(&mut self, file: &str) -> Option<Value> {
        let name = self.name_for(file)?;
        if !self.files.iter().any(|(taken, _)| *taken == name) {
            let bytes = self.read(file, &name)?;
            self.files.push((name.clone(), bytes));
        }
        Some(json!({"source": name}))
    }

    /// Reads the file of a sample tensor.
    fn sample(&mut self, entry: Option<&Value>) -> Option<(String, Vec<u8>)> {
        let file = file_name(entry.filter(|v| !v.is_null()))?;
        let name = self.name_for(file)?;
        let bytes = self.read(file, &name)?;
        Some((name, bytes))
    }
}

/// Returns the cover images of a package with plain names. Files that are missing, are not images or have duplicate
/// names are added to `left_out`.
pub(crate) fn covers(package: &Package, listed: &[Value], left_out: &mut Vec<LeftOut>) -> Vec<(String, Vec<u8>)> {
    let mut covers: Vec<(String, Vec<u8>)> = Vec::new();
    // Files that cannot be used count, too: each is read.
    let mut read = 0;
    for file in listed.iter().filter_map(|entry| file_name(Some(entry))) {
        let name = plain_name(file);
        let extension = name.rsplit('.').next().map(str::to_ascii_lowercase).unwrap_or_default();
        let reason = if read >= MAX_COVERS {
            format!("there are more than {MAX_COVERS} covers")
        } else if !COVER_EXTENSIONS.contains(&extension.as_str()) {
            format!("covers have one of the extensions {}", COVER_EXTENSIONS.join(", "))
        } else if covers.iter().any(|(taken, _)| taken == name) {
            "another cover has the same name".to_owned()
        } else {
            read += 1;
            match package.files().read_up_to(file, MAX_COVER_BYTES) {
                Ok(bytes) => {
                    covers.push((name.to_owned(), bytes));
                    continue;
                }
                Err(PackageError::TooLarge { .. }) => format!("the cover has more than {MAX_COVER_BYTES} bytes"),
                Err(error) => error.to_string(),
            }
        };
        left_out.push(LeftOut::new(name, reason));
    }
    covers
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use crate::predict::test_common;
    use cytoscope_builders::{DifferenceOfGaussians, difference_of_gaussians};
    use cytoscope_storage::Overwrite;
    use cytoscope_storage::folder::Replaced;

    #[test]
    fn attached_files_of_the_same_name_in_different_folders_are_all_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("net");
        let builder = test_common::package(&difference_of_gaussians(&DifferenceOfGaussians::default()).unwrap());
        assert_eq!(builder.save(&path, Overwrite::Refuse).unwrap(), Replaced::Nothing);
        for (name, text) in [("a/notes.txt", "first"), ("b/notes.txt", "second"), ("c/Notes.TXT", "third")] {
            std::fs::create_dir(path.join(name).parent().unwrap()).unwrap();
            std::fs::write(path.join(name), text).unwrap();
        }
        let mut package = Package::open(&path).unwrap();
        let attached =
            ["a/notes.txt", "./a/notes.txt", "b/notes.txt", "c/Notes.TXT"].map(|file| json!({"source": file}));
        package.rdf["attachments"] = json!(attached);
        package.rdf["license"] = json!({"source": "b/notes.txt"});
        let Inherited { content, left_out } = inherit(&package);
        assert!(left_out.is_empty(), "{left_out:?}");
        let mut files: Vec<(String, String)> = content
            .attachments
            .iter()
            .map(|(name, bytes)| (name.clone(), String::from_utf8_lossy(bytes).into()))
            .collect();
        files.sort();
        let expected = [("Notes_3.TXT", "third"), ("notes.txt", "second"), ("notes_2.txt", "first")];
        assert_eq!(files, expected.map(|(name, text)| (name.to_owned(), text.to_owned())));
        assert_eq!(content.fields["license"], json!({"source": "notes.txt"}), "it is the second file");
    }

    #[test]
    fn covers_and_attached_files_of_the_same_name_are_all_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("net");
        let file = |name: &str, text: &str| (name.to_owned(), text.as_bytes().to_vec());
        let mut builder = test_common::package(&difference_of_gaussians(&DifferenceOfGaussians::default()).unwrap());
        builder.covers = vec![file("a.png", "cover"), file("B.PNG", "other cover"), file("c.png", "both")];
        let attachments = vec![file("a.png", "attached"), file("b.png", "attached, too"), file("c.png", "both")];
        let content = InheritedContent { attachments: attachments.clone(), ..InheritedContent::default() };
        assert_eq!(builder.save_with(&content, &path, Overwrite::Refuse).unwrap(), Replaced::Nothing);
        let package = Package::open(&path).unwrap();
        assert_eq!(package.rdf["covers"], json!(["cover_a.png", "cover_B.PNG", "c.png"]));
        let covers = [file("cover_a.png", "cover"), file("cover_B.PNG", "other cover")];
        for (name, bytes) in covers.iter().chain(&attachments) {
            assert_eq!(std::fs::read(path.join(name)).unwrap(), *bytes, "{name}");
        }
    }

    #[test]
    fn covers_that_are_too_large_are_not_read_again_and_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("net");
        let builder = test_common::package(&difference_of_gaussians(&DifferenceOfGaussians::default()).unwrap());
        assert_eq!(builder.save(&path, Overwrite::Refuse).unwrap(), Replaced::Nothing);
        std::fs::write(path.join("large.png"), vec![0; (16 << 20) + 1]).unwrap();
        std::fs::write(path.join("small.png"), b"").unwrap();
        let package = Package::open(&path).unwrap();
        let listed = |file: &str| vec![json!(file); 2000];
        let mut left_out = Vec::new();
        assert!(covers(&package, &listed("large.png"), &mut left_out).is_empty());
        let count = |reason: &str| left_out.iter().filter(|part| part.reason.contains(reason)).count();
        assert_eq!((count("more than 16777216 bytes"), count("more than 16 covers")), (16, 1984));
        let one = covers(&package, &listed("small.png"), &mut Vec::new());
        assert_eq!(one, [("small.png".to_owned(), Vec::<u8>::new())]);
    }
}
