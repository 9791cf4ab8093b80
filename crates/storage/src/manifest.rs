//! The marker file of folders created by this program, and the list of their files.

use crate::read::open_regular;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

/// Name of the marker file in every folder that this program creates and may remove.
pub const MARKER: &str = ".cytoscope.json";
/// Files that operating systems add to folders when users browse them. They hold no user data.
pub(crate) const SYSTEM_FILES: [&str; 3] = [".DS_Store", "desktop.ini", "Thumbs.db"];
/// Largest marker that is read, in bytes: enough for about 400,000 files. A folder with a larger one counts as foreign.
const MAX_MARKER_BYTES: u64 = 64 << 20;
/// Largest number of parts of a path in a marker: no folder of this program is nested so deeply.
const MAX_PARTS: usize = 32;
/// Value of `made_by` in every marker.
const MADE_BY: &str = "cytoscope";

/// A file listed in a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestFile {
    /// Path inside the folder, with `/` after the name of each folder on the way.
    pub name: String,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// SHA-256 in lower-case hexadecimal.
    pub sha256: String,
}

/// Content of a marker file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    made_by: String,
    /// Kind of the folder, one of [`crate::folder_kind`].
    pub kind: String,
    /// All files of a finished folder; `None` for a working folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Vec<ManifestFile>>,
}

impl Manifest {
    /// The marker of a working folder, whose files change.
    pub fn working(kind: &str) -> Self {
        Self { made_by: MADE_BY.to_owned(), kind: kind.to_owned(), files: None }
    }

    /// The marker of a finished folder that holds exactly these files, given by name and content.
    pub fn finished(kind: &str, files: &[(String, Vec<u8>)]) -> Self {
        let entry = |(name, bytes): &(String, Vec<u8>)| ManifestFile {
            name: name.clone(),
            bytes: bytes.len() as u64,
            sha256: sha256_of_bytes(bytes),
        };
        Self { files: Some(files.iter().map(entry).collect()), ..Self::working(kind) }
    }

    /// The marker of a finished folder that holds exactly these files.
    pub(crate) fn listing(kind: &str, files: Vec<ManifestFile>) -> Self {
        Self { files: Some(files), ..Self::working(kind) }
    }

    /// Returns the content of the marker file: the manifest as JSON.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Serializing strings and numbers cannot fail.
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }

    /// Parses a marker; `None` if it was not written by this program.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let is_too_deep = |file: &ManifestFile| file.name.split('/').nth(MAX_PARTS).is_some();
        let is_own = |m: &Self| m.made_by == MADE_BY && !m.files.iter().flatten().any(is_too_deep);
        serde_json::from_slice::<Self>(bytes).ok().filter(is_own)
    }

    /// Reads the marker of a folder; `None` if the folder has none that can be read, and so counts as that of another program.
    pub fn from_folder(folder: &Path) -> Option<Self> {
        let mut bytes = Vec::new();
        let file = open_regular(&folder.join(MARKER)).ok()?;
        file.take(MAX_MARKER_BYTES).read_to_end(&mut bytes).ok()?;
        Self::from_bytes(&bytes)
    }

    /// How a folder differs from the manifest, as the predicate of a sentence; `None` if it does not. Missing files do
    /// not count as a difference: removing the folder cannot lose them. `before_block` is called before each block of a file is
    /// read, with the number of files that were compared before; its error ends the comparison.
    ///
    /// # Errors
    /// The system's error if the folder cannot be read, and that of `before_block`.
    pub(crate) fn difference_while(
        &self,
        folder: &Path,
        before_block: &mut dyn FnMut(usize) -> io::Result<()>,
    ) -> io::Result<Option<String>> {
        let Some(files) = &self.files else { return Ok(None) };
        if let Some(name) = Listed::of(files).unlisted(folder, "")? {
            return Ok(Some(format!("holds a file that is not part of it ({name})")));
        }
        for (compared, file) in files.iter().enumerate() {
            if folders_on_the_way(folder, &file.name).is_none() {
                continue;
            }
            let path = folder.join(&file.name);
            let meta = match std::fs::symlink_metadata(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            };
            let is_same = meta.is_file()
                && meta.len() == file.bytes
                && sha256_while(&path, &mut || before_block(compared))? == file.sha256;
            if !is_same {
                return Ok(Some(format!("was changed after it was written ({})", file.name)));
            }
        }
        Ok(None)
    }

    /// Whether all files in a folder are listed, with their sizes. Their content is not read.
    pub(crate) fn lists_all_with_sizes(&self, folder: &Path) -> bool {
        let Some(files) = &self.files else { return false };
        let has_size = |file: &ManifestFile| match std::fs::symlink_metadata(folder.join(&file.name)) {
            Ok(meta) => meta.is_file() && meta.len() == file.bytes,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        Listed::of(files).unlisted(folder, "").is_ok_and(|name| name.is_none()) && files.iter().all(has_size)
    }
}

/// The files of a manifest, and the folders that hold them.
struct Listed<'a> {
    files: BTreeSet<&'a str>,
    folders: BTreeSet<&'a str>,
}

impl<'a> Listed<'a> {
    fn of(list: &'a [ManifestFile]) -> Self {
        let (mut files, mut folders) = (BTreeSet::new(), BTreeSet::new());
        for file in list {
            let mut name = file.name.as_str();
            files.insert(name);
            while let Some((parent, _)) = name.rsplit_once('/') {
                if !folders.insert(parent) {
                    // The folders that hold it are in the list, too.
                    break;
                }
                name = parent;
            }
        }
        Self { files, folders }
    }

    /// Returns the path of a file or folder in `folder` that is not listed; `inside` is the path of `folder` itself.
    fn unlisted(&self, folder: &Path, inside: &str) -> io::Result<Option<String>> {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(text) = name.to_str() else { return Ok(Some(name.display().to_string())) };
            let path = if inside.is_empty() { text.to_owned() } else { format!("{inside}/{text}") };
            if self.folders.contains(path.as_str()) && entry.file_type()?.is_dir() {
                match self.unlisted(&entry.path(), &path)? {
                    None => continue,
                    found => return Ok(found),
                }
            }
            if path != MARKER && !SYSTEM_FILES.contains(&text) && !self.files.contains(path.as_str()) {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }
}

/// Returns the folders between a folder and a file that its marker lists, outermost first; `None` if one of them does not
/// exist or is a link, or the name leaves the folder.
pub(crate) fn folders_on_the_way(root: &Path, name: &str) -> Option<Vec<PathBuf>> {
    let relative = Path::new(name);
    if !relative.components().all(|part| matches!(part, Component::Normal(_))) {
        return None;
    }
    let mut at = root.to_owned();
    let mut folders = Vec::new();
    for part in relative.parent()?.components() {
        at.push(part);
        if !std::fs::symlink_metadata(&at).is_ok_and(|meta| meta.is_dir()) {
            return None;
        }
        folders.push(at.clone());
    }
    Some(folders)
}

/// Bytes as lower-case hexadecimal digits.
pub fn hexadecimal(digest: &[u8]) -> String {
    digest.iter().map(|b| format!("{b:02x}")).collect()
}

/// SHA-256 of bytes, in lower-case hexadecimal.
pub fn sha256_of_bytes(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

/// SHA-256 of a regular file, in lower-case hexadecimal. The file is read in blocks of 1 MiB.
///
/// # Errors
/// Same as [`open_regular`], and the system's error if reading fails.
pub fn sha256_of_file(path: &Path) -> io::Result<String> {
    sha256_while(path, &mut || Ok(()))
}

/// Like [`sha256_of_file`]. `goes_on` is called before each block is read. If it returns `false`, nothing more is read and the
/// result is `None`.
///
/// # Errors
/// Same as [`sha256_of_file`].
pub fn sha256_of_file_while(path: &Path, goes_on: &mut dyn FnMut() -> bool) -> io::Result<Option<String>> {
    let mut is_stopped = false;
    let sha256 = sha256_while(path, &mut || {
        is_stopped = !goes_on();
        if is_stopped { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
    });
    if is_stopped { Ok(None) } else { sha256.map(Some) }
}

/// Like [`sha256_of_file`]. `before_block` is called before each block is read; its error ends the reading.
fn sha256_while(path: &Path, before_block: &mut dyn FnMut() -> io::Result<()>) -> io::Result<String> {
    let mut file = open_regular(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        before_block()?;
        match file.read(&mut buffer)? {
            0 => return Ok(hexadecimal(&hasher.finalize())),
            n => hasher.update(buffer.get(..n).unwrap_or_default()),
        }
    }
}
