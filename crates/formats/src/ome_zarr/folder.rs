//! The files of an OME-Zarr folder or of a zip file with one. Every read stays inside the folder.

use super::zipped::ZipFolder;
use crate::{
    error::{Fault, Remedy},
    source::{Counters, Source},
};
use serde_json::{Map, Value};
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Largest metadata file in bytes; those of valid images have a few kilobytes.
pub(crate) const MAX_JSON_BYTES: u64 = 16 << 20;
/// Largest size in bytes of all metadata files that are read to open an image. A list may name the same large file many times.
const MAX_TOTAL_JSON_BYTES: u64 = 16 * MAX_JSON_BYTES;

/// An OME-Zarr folder, or the content of a zip file.
#[derive(Debug)]
pub(crate) struct Folder {
    files: Files,
    /// Bytes of the metadata files read so far; files read twice count twice.
    json_bytes: AtomicU64,
}

#[derive(Debug)]
enum Files {
    OnDisk { root: PathBuf, counters: Arc<Counters> },
    Zipped(ZipFolder),
}

/// A group of the hierarchy.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// The attributes of `zarr.json`, or the content of `.zattrs`.
    pub attributes: Map<String, Value>,
}

impl Group {
    /// An attribute of OME-Zarr: inside the key `ome` since version 0.5, directly in the attributes before.
    pub fn ome(&self, key: &str) -> Option<&Value> {
        let ome = self.attributes.get("ome").and_then(Value::as_object);
        ome.and_then(|ome| ome.get(key)).or_else(|| self.attributes.get(key))
    }
}

/// Name of the group that contains the label images of an image.
pub(crate) const LABELS: &str = "labels";

/// Whether the path of a group is inside [`LABELS`] of an image.
pub(crate) fn is_label_path(path: &str) -> bool {
    path.rsplit_once('/').is_some_and(|(outer, _)| outer.split('/').any(|name| name == LABELS))
}

/// The path of `name` inside the group `path`.
pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
}

impl Folder {
    /// A folder whose reads are added to `counters`.
    pub fn new(root: &Path, counters: Arc<Counters>) -> Self {
        Self { files: Files::OnDisk { root: root.to_owned(), counters }, json_bytes: AtomicU64::new(0) }
    }

    /// The content of a zip file.
    pub fn from_zip(zip: ZipFolder) -> Self {
        Self { files: Files::Zipped(zip), json_bytes: AtomicU64::new(0) }
    }

    /// Path of the folder; `None` for a zip file.
    pub fn on_disk(&self) -> Option<&Path> {
        match &self.files {
            Files::OnDisk { root, .. } => Some(root),
            Files::Zipped(_) => None,
        }
    }

    /// Opens a file by its path inside the folder; `None` if it does not exist.
    pub fn open(&self, key: &str) -> Result<Option<Source>, Fault> {
        match &self.files {
            Files::OnDisk { root, counters } => Source::inside(root, Path::new(key), Arc::clone(counters)),
            Files::Zipped(zip) => zip.file(key),
        }
    }

    /// Opens a shard as [`Self::open`]. It is read again for each of its chunks, so one that a zip compresses is kept expanded
    /// until another one is opened.
    pub fn open_shard(&self, key: &str) -> Result<Option<Source>, Fault> {
        match &self.files {
            Files::OnDisk { .. } => self.open(key),
            Files::Zipped(zip) => zip.shard(key),
        }
    }

    /// Size in bytes of the largest file, except `zarr.json`, that has to be expanded to be read; 0 without such files.
    pub fn largest_expanded_bytes(&self) -> u64 {
        match &self.files {
            Files::OnDisk { .. } => 0,
            Files::Zipped(zip) => zip.largest_expanded_bytes(),
        }
    }

    /// Whether a file exists, by its path inside the folder.
    pub fn holds(&self, key: &str) -> Result<bool, Fault> {
        match &self.files {
            Files::OnDisk { .. } => self.open(key).map(|file| file.is_some()),
            Files::Zipped(zip) => Ok(zip.holds(key)),
        }
    }

    /// Reads a JSON object; `None` if the file does not exist.
    pub fn json(&self, key: &str) -> Result<Option<Map<String, Value>>, Fault> {
        let Some(source) = self.open(key)? else { return Ok(None) };
        if source.len() > MAX_JSON_BYTES {
            let size = source.len();
            return Err(Fault::OverLimit(
                format!("the size of {key} is {size} bytes, more than the limit MAX_JSON_BYTES = {MAX_JSON_BYTES}")
                    .into(),
                "write it without consolidated metadata, which are not needed, or open an image inside the folder"
                    .into(),
            ));
        }
        let total = self.json_bytes.fetch_add(source.len(), Ordering::Relaxed).saturating_add(source.len());
        if total > MAX_TOTAL_JSON_BYTES {
            let what = "the size of its metadata files together in bytes";
            return Err(Fault::over(what, total, "MAX_TOTAL_JSON_BYTES", MAX_TOTAL_JSON_BYTES, Remedy::OpenPart));
        }
        let bytes = source.read_vec(0, source.len() as usize)?;
        // Some editors begin a text file with a byte order mark.
        match serde_json::from_slice(bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes)) {
            Ok(Value::Object(object)) => Ok(Some(object)),
            Ok(_) => Err(Fault::malformed(format!("{key} is not a JSON object"))),
            Err(error) => Err(Fault::malformed(format!("{key} is not valid JSON ({error})"))),
        }
    }

    /// Reads the attributes of a group; `None` if there is no group or array at this path.
    pub fn group(&self, path: &str) -> Result<Option<Group>, Fault> {
        if let Some(mut node) = self.json(&join(path, "zarr.json"))? {
            let attributes = match node.remove("attributes") {
                None => Map::new(),
                Some(Value::Object(attributes)) => attributes,
                Some(_) => return Err(Fault::malformed("the attributes in zarr.json are not a JSON object")),
            };
            return Ok(Some(Group { attributes }));
        }
        if let Some(attributes) = self.json(&join(path, ".zattrs"))? {
            return Ok(Some(Group { attributes }));
        }
        Ok(self.json(&join(path, ".zgroup"))?.map(|_| Group::default()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::PREDICTION_LABELS;
    use super::*;

    #[test]
    fn label_images_are_inside_their_group() {
        assert!(is_label_path(&join(LABELS, "cells")) && is_label_path(PREDICTION_LABELS));
        assert!(is_label_path("0/labels/cells") && is_label_path("labels/a/b"));
        for other in ["", "0", LABELS, "labels.zarr/0", "labels2/0", "0/labels"] {
            assert!(!is_label_path(other), "{other}");
        }
    }
}
