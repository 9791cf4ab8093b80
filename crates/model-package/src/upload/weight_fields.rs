//! Entries of the weights of a package that is uploaded, by the names and values of bioimageio.spec 0.5.

use super::fields::PERSON_FIELDS;
use super::tensor_fields::entries;
use super::versions::is_version;
use super::{Checker, given};
use serde_json::Value;

/// Fields of the weights in any format.
const COMMON_FIELDS: [&str; 5] = ["authors", "comment", "parent", "sha256", "source"];

/// Returns the fields of weights in a format besides those that all formats have, and the required ones; `None` if there is
/// no such format. The required field of ONNX is not listed, because it is checked separately.
fn format_fields(format: &str) -> Option<[&'static [&'static str]; 2]> {
    let fields: [&'static [&'static str]; 2] = match format {
        "keras_hdf5" | "tensorflow_js" => [&["tensorflow_version"], &["tensorflow_version"]],
        "keras_v3" => [&["backend", "keras_version"], &["backend", "keras_version"]],
        "onnx" => [&["external_data", "opset_version"], &[]],
        "pytorch_state_dict" => {
            [&["architecture", "dependencies", "pytorch_version", "strict"], &["architecture", "pytorch_version"]]
        }
        "tensorflow_saved_model_bundle" => [&["dependencies", "tensorflow_version"], &["tensorflow_version"]],
        "torchscript" => [&["pytorch_version"], &["pytorch_version"]],
        _ => return None,
    };
    Some(fields)
}

impl<'a> Checker<'a> {
    /// Checks the fields of the entries of the weights.
    pub(super) fn weight_fields(&mut self) {
        let rdf: &'a Value = self.rdf;
        let Some(weights) = rdf.get("weights").and_then(Value::as_object).filter(|_| self.is_05()) else { return };
        for (format, entry) in weights.iter().filter(|(_, entry)| !entry.is_null()) {
            let part = format!("weights.{format}");
            let Some([own, required]) = format_fields(format) else {
                self.refuse(part, "is not a format of weights in the specification: remove the entry");
                continue;
            };
            let known = [COMMON_FIELDS.as_slice(), own].concat();
            self.known_fields(&format!("{part}."), entry, &known);
            for key in required {
                if given(entry, key).is_none() {
                    self.refuse(format!("{part}.{key}"), "is missing: state it");
                }
            }
            for key in ["keras_version", "pytorch_version", "tensorflow_version"] {
                if let Some(version) = given(entry, key)
                    && !is_version(version)
                {
                    let part = format!("{part}.{key}");
                    self.refuse(part, format!("is {version}, which is not a version: write one such as 2.1"));
                }
            }
            let parent = given(entry, "parent");
            let is_other = |parent: &str| parent != format && weights.get(parent).is_some_and(|entry| !entry.is_null());
            if parent.is_some_and(|parent| !parent.as_str().is_some_and(is_other)) {
                let next = "name the entry that this one was converted from, or remove it";
                self.refuse(format!("{part}.parent"), format!("is not another entry of the weights: {next}"));
            }
            if let Some(comment) = entry.get("comment") {
                self.text(&format!("{part}.comment"), comment);
            }
            self.weight_authors(&format!("{part}.authors"), entry);
            self.weight_files(&part, entry);
        }
    }

    fn weight_authors(&mut self, part: &str, entry: &'a Value) {
        if given(entry, "authors").is_some_and(|authors| !authors.is_array()) {
            self.refuse(part, "is not a list: list the authors");
        }
        for (i, author) in entries(entry, "authors").iter().enumerate() {
            let part = format!("{part}[{i}]");
            if given(author, "name").is_none() {
                self.refuse(format!("{part}.name"), "is missing: every author has a name");
            }
            self.known_fields(&format!("{part}."), author, &PERSON_FIELDS);
            self.person(&part, author);
        }
    }

    /// Checks the further files of an entry, and the class of a PyTorch network.
    fn weight_files(&mut self, part: &str, entry: &'a Value) {
        for (key, extensions) in [("external_data", &[".data"][..]), ("dependencies", &[".yaml", ".yml"][..])] {
            let Some(file) = given(entry, key) else { continue };
            let part = format!("{part}.{key}");
            self.file_entry(&part, file);
            let name = file.get("source").and_then(Value::as_str).unwrap_or_default();
            if !name.is_empty() && !extensions.iter().any(|extension| name.ends_with(extension)) {
                self.refuse(
                    part.clone(),
                    format!("is {name:?}: expected a name that ends in {}", extensions.join(" or ")),
                );
            }
            self.file(&part, file);
        }
        let Some(architecture) = given(entry, "architecture") else { return };
        let part = format!("{part}.architecture");
        if !architecture.is_object() {
            let next = "give a callable, and the source file or the import_from module that has it";
            return self.refuse(part, format!("is {architecture}: {next}"));
        }
        let is_file = architecture.get("source").is_some();
        let known: &[&str] =
            if is_file { &["callable", "kwargs", "sha256", "source"] } else { &["callable", "import_from", "kwargs"] };
        self.known_fields(&format!("{part}."), architecture, known);
        for key in ["callable", if is_file { "source" } else { "import_from" }] {
            if given(architecture, key).is_none() {
                let next = "name the class, and the source file or the import_from module that has it";
                self.refuse(format!("{part}.{key}"), format!("is missing: {next}"));
            }
        }
        if architecture.get("kwargs").is_some_and(|kwargs| !kwargs.is_object()) {
            self.refuse(format!("{part}.kwargs"), "is not a mapping: write the arguments by name, or remove it");
        }
        if is_file {
            if architecture.get("source").and_then(Value::as_str).is_some_and(|name| !name.ends_with(".py")) {
                self.refuse(format!("{part}.source"), "is not Python: give a file that ends in .py");
            }
            self.file(&part, architecture);
        }
    }
}
