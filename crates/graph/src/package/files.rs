//! The files of a package: a folder, a zip, or one file.

use super::{FileRef, MAX_FILE_BYTES, MAX_FILES, MAX_RDF_BYTES, PackageError};
use sha2::{Digest, Sha256};
use std::io::Read;
use std::path::{Component, Path, PathBuf};

/// Where a package's files are.
#[derive(Debug, Clone)]
pub enum Files {
    /// In a folder.
    Folder(PathBuf),
    /// In a zip, below a prefix (many zips hold one folder).
    Zip {
        /// The zip.
        path: PathBuf,
        /// What stands before each name.
        prefix: String,
    },
    /// A bare file that stands for itself.
    Single(PathBuf),
}

/// Names a description may have.
const DESCRIPTIONS: [&str; 4] = ["rdf.yaml", "bioimageio.yaml", "rdf.yml", "model.yaml"];

impl Files {
    pub(crate) fn single(path: &Path) -> Self {
        Self::Single(path.to_owned())
    }

    /// Opens a folder, a zip, or the folder of a description file.
    pub(crate) fn open(path: &Path) -> Result<Self, PackageError> {
        let not = || PackageError::NotAPackage { path: path.to_owned() };
        let meta = std::fs::metadata(path).map_err(|e| PackageError::io(path, e))?;
        if meta.is_dir() {
            return Ok(Self::Folder(path.to_owned()));
        }
        if path.extension().is_some_and(|e| e == "yaml" || e == "yml") {
            return path.parent().map(|p| Self::Folder(p.to_owned())).ok_or_else(not);
        }
        let file = std::fs::File::open(path).map_err(|e| PackageError::io(path, e))?;
        let archive = zip::ZipArchive::new(file).map_err(|_| not())?;
        if archive.len() > MAX_FILES {
            return Err(PackageError::bad(
                path,
                "zip",
                format!("has {} files, more than the limit of {MAX_FILES}", archive.len()),
            ));
        }
        let prefix = archive
            .file_names()
            .filter_map(|name| name.ok().map(|n| n.into_owned()))
            .find_map(|name| {
                let name = name.as_str();
                let (folder, file) = name.rsplit_once('/').map_or(("", name), |(f, n)| (f, n));
                let shallow = !folder.contains('/');
                (shallow && (DESCRIPTIONS.contains(&file) || file.ends_with(".bioimageio.yaml")))
                    .then(|| if folder.is_empty() { String::new() } else { format!("{folder}/") })
            })
            .ok_or_else(not)?;
        Ok(Self::Zip { path: path.to_owned(), prefix })
    }

    /// The path shown in messages.
    pub fn path(&self) -> &Path {
        match self {
            Self::Folder(path) | Self::Single(path) | Self::Zip { path, .. } => path,
        }
    }

    /// The folder, where files lie in one.
    pub(crate) fn folder(&self) -> Option<&Path> {
        if let Self::Folder(path) = self { Some(path) } else { None }
    }

    /// The description's name and bytes.
    pub(crate) fn description(&self) -> Result<(String, Vec<u8>), PackageError> {
        for name in DESCRIPTIONS {
            match self.read_up_to(name, MAX_RDF_BYTES) {
                Err(PackageError::Missing { .. }) => {}
                other => return other.map(|bytes| (name.to_owned(), bytes)),
            }
        }
        for name in self.names()? {
            if name.ends_with(".bioimageio.yaml") && !name.contains('/') {
                return self.read_up_to(&name, MAX_RDF_BYTES).map(|bytes| (name, bytes));
            }
        }
        Err(PackageError::NotAPackage { path: self.path().to_owned() })
    }

    /// Every file's name, in order.
    ///
    /// # Errors
    /// [`PackageError`] if the folder or zip cannot be listed.
    pub fn names(&self) -> Result<Vec<String>, PackageError> {
        let mut names = Vec::new();
        match self {
            Self::Single(path) => names.extend(path.file_name().map(|n| n.to_string_lossy().into_owned())),
            Self::Folder(folder) => {
                for entry in std::fs::read_dir(folder).map_err(|e| PackageError::io(folder, e))? {
                    let entry = entry.map_err(|e| PackageError::io(folder, e))?;
                    if entry.path().is_file() {
                        names.push(entry.file_name().to_string_lossy().into_owned());
                    }
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

    fn archive(&self, path: &Path) -> Result<zip::ZipArchive<std::fs::File>, PackageError> {
        let file = std::fs::File::open(path).map_err(|e| PackageError::io(path, e))?;
        zip::ZipArchive::new(file).map_err(|e| PackageError::bad(path, "zip", e.to_string()))
    }

    /// The bytes of a file. A URL stands for the file of its last part.
    ///
    /// # Errors
    /// [`PackageError`] if it is missing, leaves the package, or is too large.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, PackageError> {
        self.read_up_to(name, MAX_FILE_BYTES)
    }

    fn read_up_to(&self, name: &str, limit: u64) -> Result<Vec<u8>, PackageError> {
        let local = if name.contains("://") { name.rsplit('/').next().unwrap_or(name) } else { name };
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
                std::fs::File::open(path)
                    .and_then(|f| f.take(limit).read_to_end(&mut bytes))
                    .map_err(|e| PackageError::io(path, e))?;
            }
            Self::Folder(folder) => {
                let path = folder.join(local);
                let file = std::fs::File::open(&path).map_err(|_| missing())?;
                let size = file.metadata().map_err(|e| PackageError::io(&path, e))?.len();
                if size > limit {
                    return Err(too_large(size));
                }
                file.take(limit).read_to_end(&mut bytes).map_err(|e| PackageError::io(&path, e))?;
            }
            Self::Zip { path, prefix } => {
                let mut archive = self.archive(path)?;
                let local = local.trim_start_matches("./");
                let entry = archive.by_name(&format!("{prefix}{local}")).map_err(|_| missing())?;
                if entry.size() > limit {
                    return Err(too_large(entry.size()));
                }
                // A zip may lie about sizes: what is read is bounded all the same.
                entry.take(limit + 1).read_to_end(&mut bytes).map_err(|e| PackageError::io(path, e))?;
                if bytes.len() as u64 > limit {
                    return Err(too_large(bytes.len() as u64));
                }
            }
        }
        Ok(bytes)
    }

    /// Checks a file against its described SHA-256, where there is one.
    pub(crate) fn verify(&self, file: &FileRef, bytes: &[u8]) -> Result<(), PackageError> {
        let Some(expected) = &file.sha256 else { return Ok(()) };
        let got = sha256(bytes);
        if got.eq_ignore_ascii_case(expected) {
            return Ok(());
        }
        Err(PackageError::Checksum {
            path: self.path().to_owned(),
            name: file.source.clone(),
            expected: expected.clone(),
            got,
        })
    }
}

/// SHA-256 in hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}
