//! The files of a package: in a folder, in a zip, a single file, or in memory.

use super::{FileRef, MAX_FILE_BYTES, MAX_FILES, MAX_RDF_BYTES, PackageError};
use cytoscope_storage::limited::{DIRECTORY_TOO_LARGE, LimitedReader};
use cytoscope_storage::read::{open_inside, open_regular, refusal};
use cytoscope_storage::write::parent_folder;
use cytoscope_storage::{sha256_of_bytes, sha256_of_file};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use zip::result::ZipError;

/// Maximum number of bytes read to list a zip; 4096 entries with long names take about 2 MB.
const MAX_DIRECTORY_BYTES: u64 = 16 << 20;
/// Maximum compression ratio of a file that is larger than [`FREE_EXPANSION_BYTES`] when decompressed. Weights compress
/// by a factor of two at best; Deflate can reach a factor of a thousand.
const MAX_EXPANSION: u64 = 100;
/// Decompressed size up to which any ratio is allowed: test tensors of zeros and masks compress well.
const FREE_EXPANSION_BYTES: u64 = 256 << 20;

/// Location of a package's files.
#[derive(Debug, Clone)]
pub enum Files {
    /// A folder that contains the description.
    Folder(PathBuf),
    /// A zip whose entries may share a path prefix (many zips contain one folder).
    Zip {
        /// Path of the zip.
        path: PathBuf,
        /// Common prefix of the entries, empty or ending in `/`.
        prefix: String,
    },
    /// A bare `.onnx` file without a description.
    Single(PathBuf),
    /// Files held in memory, of a package that was built and not written.
    Memory {
        /// Name of the package in messages; there is no file at this path.
        path: PathBuf,
        /// Contents by file name.
        contents: Arc<BTreeMap<String, Vec<u8>>>,
    },
}

/// File names that a description may have.
const DESCRIPTIONS: [&str; 4] = ["rdf.yaml", "bioimageio.yaml", "rdf.yml", "model.yaml"];

/// End of the names that bioimage.io gives descriptions, after the name of the model.
const DESCRIPTION_SUFFIX: &str = ".bioimageio.yaml";

/// Whether a file with this name may be a description.
pub(crate) fn is_description_name(name: &str) -> bool {
    DESCRIPTIONS.contains(&name) || name.ends_with(DESCRIPTION_SUFFIX)
}

impl Files {
    pub(crate) fn single(path: &Path) -> Self {
        Self::Single(path.to_owned())
    }

    /// Opens a folder, a zip, or the folder of a description file.
    pub(crate) fn open(path: &Path) -> Result<Self, PackageError> {
        let not_a_package = || PackageError::NotAPackage { path: path.to_owned() };
        let meta = std::fs::metadata(path).map_err(|e| PackageError::io(path, e))?;
        if meta.is_dir() {
            return Ok(Self::Folder(path.to_owned()));
        }
        if path.extension().is_some_and(|e| e == "yaml" || e == "yml") {
            return Ok(Self::Folder(parent_folder(path).to_owned()));
        }
        let archive = open_archive(path)?.ok_or_else(not_a_package)?;
        // Names that are not text are skipped: the description has another name and cannot refer to them.
        let names = archive.file_names().filter_map(|name| name.ok().map(|n| n.into_owned()));
        let prefix = described_folder(path, names)?.ok_or_else(not_a_package)?;
        Ok(Self::Zip { path: path.to_owned(), prefix })
    }

    /// Returns the path that messages show.
    pub fn path(&self) -> &Path {
        match self {
            Self::Folder(path) | Self::Single(path) | Self::Zip { path, .. } | Self::Memory { path, .. } => path,
        }
    }

    /// Returns the folder, if the files are in one.
    pub(crate) fn folder(&self) -> Option<&Path> {
        if let Self::Folder(path) = self { Some(path) } else { None }
    }

    /// Returns the file name and bytes of the description.
    pub(crate) fn description(&self) -> Result<(String, Vec<u8>), PackageError> {
        for name in DESCRIPTIONS {
            match self.read_up_to(name, MAX_RDF_BYTES) {
                Err(PackageError::Missing { .. }) => {}
                other => return other.map(|bytes| (name.to_owned(), bytes)),
            }
        }
        let names = self.names()?;
        if let Some(name) = names.iter().find(|n| n.ends_with(DESCRIPTION_SUFFIX) && !n.contains('/')) {
            return self.read_up_to(name, MAX_RDF_BYTES).map(|bytes| (name.clone(), bytes));
        }
        let is_onnx = |name: &&String| Path::new(name).extension().is_some_and(|extension| extension == "onnx");
        let path = self.path().to_owned();
        Err(match (self.folder(), names.iter().find(is_onnx)) {
            (Some(_), Some(name)) => PackageError::NoDescription { path, name: name.clone() },
            _ => PackageError::NotAPackage { path },
        })
    }

    /// Returns the names of all files, sorted. In a folder, entries that [`Files::read`] refuses are left out: pipes,
    /// devices, folders and links that lead out of the package.
    ///
    /// # Errors
    /// [`PackageError`] if the folder or zip cannot be listed or has more than [`MAX_FILES`] files.
    pub fn names(&self) -> Result<Vec<String>, PackageError> {
        let mut names = Vec::new();
        match self {
            Self::Single(path) => names.extend(path.file_name().map(|n| n.to_string_lossy().into_owned())),
            Self::Memory { contents, .. } => names.extend(contents.keys().cloned()),
            Self::Folder(folder) => {
                for entry in std::fs::read_dir(folder).map_err(|e| PackageError::io(folder, e))? {
                    let entry = entry.map_err(|e| PackageError::io(folder, e))?;
                    let name = entry.file_name();
                    if open_inside(folder, Path::new(&name)).is_err() {
                        continue;
                    }
                    if names.len() >= MAX_FILES {
                        let problem = format!("has more files than the limit of {MAX_FILES}");
                        return Err(PackageError::bad(folder, "folder", problem));
                    }
                    names.push(name.to_string_lossy().into_owned());
                }
            }
            Self::Zip { path, prefix } => {
                let archive = self.archive(path)?;
                let inside =
                    archive.file_names().flatten().filter_map(|n| n.strip_prefix(prefix.as_str()).map(str::to_owned));
                names.extend(inside.filter(|n| !n.ends_with('/')));
            }
        }
        names.sort();
        Ok(names)
    }

    fn archive(&self, path: &Path) -> Result<Archive, PackageError> {
        open_archive(path)?.ok_or_else(|| PackageError::bad(path, "zip", "is no longer a zip"))
    }

    /// Returns the bytes of a file. For a URL, the file named by its last part is read.
    ///
    /// # Errors
    /// [`PackageError`] if the file is missing, is outside the package, is not a regular file, or is too large.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, PackageError> {
        self.read_up_to(name, MAX_FILE_BYTES)
    }

    /// Like [`Files::read`], with a maximum size of `limit` bytes.
    ///
    /// # Errors
    /// Same as [`Files::read`].
    pub fn read_up_to(&self, name: &str, limit: u64) -> Result<Vec<u8>, PackageError> {
        let local = local_name(name);
        let missing = || PackageError::Missing { path: self.path().to_owned(), name: local.to_owned() };
        let inside = Path::new(local).components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
        if !inside {
            return Err(PackageError::bad(self.path(), local, "points outside the package"));
        }
        let too_large =
            |bytes| PackageError::TooLarge { path: self.path().to_owned(), name: local.to_owned(), bytes, limit };
        let mut bytes = Vec::new();
        match self {
            Self::Single(path) => {
                read_bounded(open_regular(path), limit, &mut bytes)
                    .map_err(|e| PackageError::io(path, e))?
                    .map_or(Ok(()), |size| Err(too_large(size)))?;
            }
            Self::Memory { contents, .. } => {
                let content = contents.get(local).ok_or_else(missing)?;
                if content.len() as u64 > limit {
                    return Err(too_large(content.len() as u64));
                }
                bytes.extend_from_slice(content);
            }
            Self::Folder(folder) => {
                let not_read = |error: std::io::Error| match (refusal(&error), error.kind()) {
                    (Some(refusal), _) => PackageError::bad(self.path(), local, format!("cannot be read: {refusal}")),
                    (None, ErrorKind::NotFound | ErrorKind::NotADirectory) => missing(),
                    (None, _) => PackageError::io(&folder.join(local), error),
                };
                read_bounded(open_inside(folder, Path::new(local)), limit, &mut bytes)
                    .map_err(not_read)?
                    .map_or(Ok(()), |size| Err(too_large(size)))?;
            }
            Self::Zip { path, prefix } => {
                let mut archive = self.archive(path)?;
                let local = local.trim_start_matches("./");
                let damaged = |problem: &dyn Display| {
                    PackageError::bad(path, local, format!("cannot be read from the zip: {problem}"))
                };
                let not_read = |error: std::io::Error| match error.kind() {
                    ErrorKind::InvalidData | ErrorKind::UnexpectedEof | ErrorKind::Unsupported => damaged(&error),
                    _ => PackageError::io(path, error),
                };
                let entry = archive.by_name(&format!("{prefix}{local}")).map_err(|error| match error {
                    ZipError::FileNotFound => missing(),
                    ZipError::Io(error) => not_read(error),
                    other => damaged(&other),
                })?;
                let zip_bytes = std::fs::metadata(path).map_err(|e| PackageError::io(path, e))?.len();
                let stored = entry.compressed_size().min(zip_bytes);
                let limit = limit.min(stored.saturating_mul(MAX_EXPANSION).max(FREE_EXPANSION_BYTES));
                let too_large = |bytes| PackageError::TooLarge {
                    path: self.path().to_owned(),
                    name: local.to_owned(),
                    bytes,
                    limit,
                };
                if entry.size() > limit {
                    return Err(too_large(entry.size()));
                }
                // The sizes in a zip may be wrong, so reading is bounded as well.
                entry.take(limit + 1).read_to_end(&mut bytes).map_err(not_read)?;
                if bytes.len() as u64 > limit {
                    return Err(too_large(bytes.len() as u64));
                }
            }
        }
        Ok(bytes)
    }

    /// Returns the path of a file if the package is a folder and [`Files::read`] would accept the file.
    pub fn file_path(&self, name: &str) -> Option<PathBuf> {
        let Self::Folder(folder) = self else { return None };
        let local = local_name(name);
        open_inside(folder, Path::new(local)).is_ok().then(|| folder.join(local))
    }

    /// Checks a file against the SHA-256 in its description, if there is one.
    pub(crate) fn verify(&self, file: &FileRef, bytes: &[u8]) -> Result<(), PackageError> {
        let Some(expected) = &file.sha256 else { return Ok(()) };
        self.compare(file, expected, sha256_of_bytes(bytes))
    }

    /// Like [`Files::verify`], for a file of any size that may have been read before: `known` are the checksums of such files.
    pub(crate) fn verify_stored(&self, file: &FileRef, known: &[String]) -> Result<(), PackageError> {
        let Some(expected) = &file.sha256 else { return Ok(()) };
        if known.iter().any(|sha256| sha256.eq_ignore_ascii_case(expected)) {
            return Ok(());
        }
        let got = match self.file_path(&file.source) {
            Some(path) => sha256_of_file(&path).map_err(|error| PackageError::io(&path, error))?,
            None => sha256_of_bytes(&self.read(&file.source)?),
        };
        self.compare(file, expected, got)
    }

    fn compare(&self, file: &FileRef, expected: &str, got: String) -> Result<(), PackageError> {
        if got.eq_ignore_ascii_case(expected) {
            return Ok(());
        }
        Err(PackageError::Checksum {
            path: self.path().to_owned(),
            name: file.source.clone(),
            expected: expected.to_owned(),
            got,
        })
    }
}

/// Returns the folder in a zip that contains a description, empty or ending in `/`; `None` if none does. A description outside of
/// all folders is that of the package, whatever the folders contain.
///
/// # Errors
/// [`PackageError::Bad`] if several folders contain one.
fn described_folder(path: &Path, names: impl Iterator<Item = String>) -> Result<Option<String>, PackageError> {
    let mut folders = BTreeSet::new();
    for name in names {
        let (folder, file) = name.rsplit_once('/').unwrap_or(("", name.as_str()));
        let is_description = is_description_name(file);
        // On macOS, zips have a folder __MACOSX with files of the same names.
        if is_description && !folder.contains('/') && folder != "__MACOSX" {
            folders.insert(folder.to_owned());
        }
    }
    if folders.contains("") {
        return Ok(Some(String::new()));
    }
    let mut found = folders.into_iter();
    match (found.next(), found.next()) {
        (Some(first), Some(second)) => {
            let problem = format!(
                "contains several packages, such as {first} and {second}: unpack it, and give the folder of one of them"
            );
            Err(PackageError::bad(path, "zip", problem))
        }
        (first, _) => Ok(first.map(|folder| format!("{folder}/"))),
    }
}

/// Returns the file name inside the package: the last part of a URL, or the name itself.
pub(crate) fn local_name(name: &str) -> &str {
    if name.contains("://") { name.rsplit('/').next().unwrap_or(name) } else { name }
}

/// A zip on disk.
type Archive = zip::ZipArchive<LimitedReader<File>>;

/// Opens a zip; `None` if the file is not a zip.
fn open_archive(path: &Path) -> Result<Option<Archive>, PackageError> {
    let file = open_regular(path).map_err(|e| PackageError::io(path, e))?;
    let (reader, limit) = LimitedReader::new(file, MAX_DIRECTORY_BYTES, DIRECTORY_TOO_LARGE);
    let archive = match zip::ZipArchive::new(reader) {
        Ok(archive) => archive,
        Err(_) if limit.is_reached() => {
            let problem = format!("has a directory of more than the limit of {MAX_DIRECTORY_BYTES} bytes");
            return Err(PackageError::bad(path, "zip", problem));
        }
        // A zip's directory is located from the end of the file. In a file that is not a zip, this leads to positions
        // beyond its end.
        Err(ZipError::Io(error)) if !matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::InvalidInput) => {
            return Err(PackageError::io(path, error));
        }
        Err(_) => return Ok(None),
    };
    limit.lift();
    if archive.len() > MAX_FILES {
        let problem = format!("has {} files, more than the limit of {MAX_FILES}", archive.len());
        return Err(PackageError::bad(path, "zip", problem));
    }
    Ok(Some(archive))
}

/// Reads a file of at most `limit` bytes; returns the size if it is larger.
fn read_bounded(file: std::io::Result<File>, limit: u64, into: &mut Vec<u8>) -> std::io::Result<Option<u64>> {
    let file = file?;
    let size = file.metadata()?.len();
    if size > limit {
        return Ok(Some(size));
    }
    // The file may grow during reading.
    file.take(limit + 1).read_to_end(into)?;
    let read = into.len() as u64;
    Ok((read > limit).then_some(read))
}
