//! Files of a package that is uploaded: documentation, covers, attachments, test tensors and weights.

use super::image_size::image_size;
use super::{Checker, TENSOR_ID_LENGTH, given};
use crate::{MAX_FILES, PackageError};
use cytoscope_storage::sha256_of_bytes;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

/// Smallest version of ONNX's operators that is accepted.
const MIN_OPSET: u64 = 7;
/// Extensions of cover images.
const COVER_EXTENSIONS: [&str; 5] = [".gif", ".jpeg", ".jpg", ".png", ".svg"];
/// Size that a cover image should not exceed, in bytes.
const COVER_BYTES: usize = 500_000;
/// Largest deviation of a cover's width from once or twice its height, as a part of it.
const COVER_TOLERANCE: f64 = 0.02;

/// Returns the source of a file that is given as a text or as an entry with a source.
fn source(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("source").and_then(Value::as_str))
}

/// What the checks need to know about a file of the package.
#[derive(Debug, Clone)]
pub(super) struct FileFacts {
    /// Size in bytes.
    len: usize,
    /// SHA-256 in lower-case hexadecimal.
    sha256: String,
    /// Width and height in pixels of a picture.
    image_size: Option<[u32; 2]>,
}

impl<'a> Checker<'a> {
    /// Returns facts about a file of the package; refuses an entry that names none, or whose checksum differs. `None`, too,
    /// for a file at an address, which is not downloaded.
    pub(super) fn file(&mut self, part: &str, value: &'a Value) -> Option<FileFacts> {
        let Some(name) = source(value) else {
            self.refuse(part, "names no file: give a source");
            return None;
        };
        if name.contains("://") {
            return None;
        }
        let facts = match self.facts(name) {
            Ok(facts) => facts,
            Err(message) => {
                self.refuse(part, message);
                return None;
            }
        };
        if let Some(expected) = given(value, "sha256") {
            let stated = expected.as_str().unwrap_or_default();
            if !stated.eq_ignore_ascii_case(&facts.sha256) {
                let message = format!("is {expected}, but {name} has {}: correct it, or remove it", facts.sha256);
                self.refuse(format!("{part}.sha256"), message);
            }
        }
        Some(facts)
    }

    /// Returns facts about a file, which is read once however often the description names it. The error is a message.
    fn facts(&mut self, name: &str) -> Result<FileFacts, String> {
        let key: PathBuf = Path::new(name).components().filter(|part| *part != Component::CurDir).collect();
        if let Some(known) = self.known_files.get(&key) {
            return known.clone();
        }
        if self.known_files.len() >= MAX_FILES {
            return Err(format!("is one of more than {MAX_FILES} files, which are not checked: remove some"));
        }
        let facts = match self.files.read(name) {
            Ok(bytes) => {
                Ok(FileFacts { len: bytes.len(), sha256: sha256_of_bytes(&bytes), image_size: image_size(&bytes) })
            }
            Err(PackageError::Missing { .. }) => {
                Err(format!("names {name:?}, which the package lacks: add the file, or remove the entry"))
            }
            Err(error) => Err(format!("cannot be read: {error}")),
        };
        self.known_files.insert(key, facts.clone());
        facts
    }

    pub(super) fn documentation(&mut self) {
        const PART: &str = "documentation";
        let Some(value) = given(self.rdf, PART) else {
            return self.warn(PART, "is missing: add README.md and say for which images the model is meant");
        };
        if source(value).is_some_and(|name| !name.ends_with(".md")) {
            self.refuse(PART, "is not Markdown: give a file that ends in .md");
        }
        if self.file(PART, value).is_none() {
            return;
        }
        let Some(bytes) = source(value).and_then(|name| self.files.read(name).ok()) else { return };
        let Ok(text) = String::from_utf8(bytes) else {
            return self.refuse(PART, "is not UTF-8 text: save it as UTF-8");
        };
        let is_validation = |line: &str| {
            let heading = line.find('#').and_then(|at| line.get(at..)).unwrap_or_default();
            heading.contains("alidation")
        };
        if !text.lines().any(is_validation) {
            self.warn(PART, "has no section \"# Validation\": say how to check the model on new images");
        }
    }

    pub(super) fn covers(&mut self) {
        let covers = self.list("covers");
        if covers.is_empty() {
            self.warn("covers", "is missing: bioimage.io shows a picture of the test tensors instead");
        }
        for (i, cover) in covers.iter().enumerate() {
            let part = format!("covers[{i}]");
            let name = source(cover).unwrap_or_default().to_lowercase();
            if !name.is_empty() && !COVER_EXTENSIONS.iter().any(|extension| name.ends_with(extension)) {
                self.refuse(part.clone(), format!("is {name:?}: expected one of {}", COVER_EXTENSIONS.join(", ")));
            }
            let Some(facts) = self.file(&part, cover) else { continue };
            if facts.len > COVER_BYTES {
                let message = format!("has {} KB, at most {} are expected", facts.len / 1000, COVER_BYTES / 1000);
                self.warn(part.clone(), format!("{message}: reduce its size"));
            }
            if let Some([width, height]) = facts.image_size
                && !has_cover_proportions(width, height)
            {
                let message = format!("has {width} × {height} pixels: crop it to a ratio of 2:1 or 1:1");
                self.warn(part, message);
            }
        }
    }

    pub(super) fn attachments(&mut self) {
        let Some(value) = given(self.rdf, "attachments") else { return };
        let is_05 = self.is_05();
        // Format 0.4 has the list under `files`.
        let listed_under_files = || value.get("files").and_then(Value::as_array).filter(|_| !is_05);
        let Some(list) = value.as_array().or_else(listed_under_files) else {
            return self.refuse("attachments", "is not a list: give a list of entries with a source");
        };
        for (i, file) in list.iter().enumerate() {
            let part = format!("attachments[{i}]");
            if is_05 && file.is_string() {
                self.refuse(part, format!("is {file}: write an entry with this name as its source"));
            } else {
                self.file(&part, file);
            }
        }
    }

    /// Checks the names and test tensors of inputs and outputs.
    pub(super) fn tensors(&mut self) {
        let is_05 = self.is_05();
        let mut ids = BTreeSet::new();
        for key in ["inputs", "outputs"] {
            let list = self.list(key);
            // Format 0.4 lists the test tensors beside the inputs and outputs.
            let beside = self.list(if key == "inputs" { "test_inputs" } else { "test_outputs" });
            for (i, tensor) in list.iter().enumerate() {
                let part = format!("{key}[{i}]");
                let id = given(tensor, if is_05 { "id" } else { "name" }).and_then(Value::as_str);
                let id = id.unwrap_or(key.trim_end_matches('s'));
                if is_05 && !is_tensor_id(id) {
                    let rule = format!(
                        "lower-case letters, digits and _, at most {TENSOR_ID_LENGTH}, no digit first, no keyword of Python"
                    );
                    self.refuse(format!("{part}.id"), format!("is {id:?}: use {rule}"));
                }
                if !ids.insert(id) {
                    self.refuse(format!("{part}.id"), format!("is {id:?}, as that of another tensor: rename one"));
                }
                let test = if is_05 { given(tensor, "test_tensor") } else { beside.get(i) };
                let part = format!("{part}.test_tensor");
                match test {
                    Some(test) => _ = self.file(&part, test),
                    None => {
                        self.warn(part, "is missing: without test tensors, bioimage.io cannot run the model's test")
                    }
                }
            }
        }
    }

    pub(super) fn weights(&mut self) {
        const PART: &str = "weights";
        let Some(entries) = self.rdf.get(PART).and_then(Value::as_object) else {
            return self.refuse(PART, "is missing: add the ONNX file of the network");
        };
        let entries: Vec<(&String, &Value)> = entries.iter().filter(|(_, entry)| !entry.is_null()).collect();
        let without_parent = entries.iter().filter(|(_, entry)| given(entry, "parent").is_none()).count();
        match (entries.len(), without_parent) {
            (0, _) => self.refuse(PART, "has no entry: add the ONNX file of the network"),
            (_, 1) => {}
            _ => self.warn(
                PART,
                "does not show which entry was trained: in each of the other entries, name the entry that it was converted from as parent",
            ),
        }
        for (format, entry) in entries {
            let part = format!("{PART}.{format}");
            self.file(&part, entry);
            if format == "onnx" {
                let part = format!("{part}.opset_version");
                match given(entry, "opset_version").and_then(Value::as_u64) {
                    None => self.refuse(part, "is missing: give the version of ONNX's operators, such as 18"),
                    Some(version) if version < MIN_OPSET => {
                        self.refuse(
                            part,
                            format!("is {version}: give the version of ONNX's operators, at least {MIN_OPSET}"),
                        );
                    }
                    Some(_) => {}
                }
            }
            if source(entry).is_some_and(|name| !name.contains("://")) && given(entry, "sha256").is_none() {
                let message = "is missing: it shows whether the file was damaged in transit";
                self.warn(format!("{part}.sha256"), message);
            }
        }
    }
}

/// Whether an image is about twice as wide as high, or square.
fn has_cover_proportions(width: u32, height: u32) -> bool {
    let ratio = f64::from(width) / f64::from(height.max(1));
    [1.0, 2.0].iter().any(|expected| (ratio / expected - 1.0).abs() <= COVER_TOLERANCE)
}

/// Python's keywords in lower case, which are not identifiers.
const PYTHON_KEYWORDS: [&str; 32] = [
    "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del", "elif", "else", "except",
    "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "nonlocal", "not", "or", "pass", "raise",
    "return", "try", "while", "with", "yield",
];

/// Whether a text is an identifier of a tensor (`LowerCaseIdentifier` of bioimageio.spec).
fn is_tensor_id(text: &str) -> bool {
    let begins = |c: char| c == '_' || (c.is_alphabetic() && !c.is_uppercase());
    let is_allowed = |c: char| begins(c) || c.is_ascii_digit();
    text.starts_with(begins)
        && text.chars().all(is_allowed)
        && text.chars().any(char::is_lowercase)
        && text.chars().count() <= TENSOR_ID_LENGTH
        && !PYTHON_KEYWORDS.contains(&text)
}
