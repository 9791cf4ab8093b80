//! Records whose inputs have been moved to another folder.

use super::{AnyRecord, absolute};
use crate::JobError;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Parts of a record that list what the job has read.
const READ: [&str; 5] = ["inputs", "input", "input_files", "chunks", "input_tensors"];
/// Parts of a record in which paths are replaced. The lists of results are not among them.
const REPLACED: [&str; 7] = ["inputs", "input", "input_files", "chunks", "input_tensors", "model", "job"];

impl AnyRecord {
    /// Returns the record as if its inputs had been read from `folder`. An input keeps its place relative to the folder that
    /// contained all inputs, or else is found by its name. Those that are not in the folder keep their recorded paths. A model
    /// that is no longer at its recorded place is looked for, too. `None` if the folder contains none of them.
    ///
    /// # Errors
    /// [`JobError::Internal`] if the record has no JSON form.
    pub fn with_inputs_in(&self, folder: &Path) -> Result<Option<Self>, JobError> {
        let mut value = self.json()?;
        let new_paths = new_paths(&value, &absolute(folder));
        if new_paths.is_empty() {
            return Ok(None);
        }
        for part in REPLACED {
            if let Some(part) = value.get_mut(part) {
                replace(part, &new_paths);
            }
        }
        let moved = match self {
            Self::Prediction(_) => serde_json::from_value(value).map(Self::Prediction),
            Self::Job(_) => serde_json::from_value(value).map(Self::Job),
        };
        moved.map(Some).map_err(|error| internal(&error))
    }

    /// Returns the recorded inputs that the job names and that no longer exist.
    ///
    /// # Errors
    /// [`JobError::Internal`] if the record has no JSON form.
    pub fn missing_inputs(&self) -> Result<Vec<PathBuf>, JobError> {
        let value = self.json()?;
        let is_named = |path: &&PathBuf| {
            let (job, text) = (value.get("job"), path.to_str());
            job.zip(text).is_some_and(|(job, text)| names(job, text))
        };
        let recorded = recorded_inputs(&value);
        Ok(recorded.iter().filter(is_named).filter(|path| !path.exists()).cloned().collect())
    }

    fn json(&self) -> Result<Value, JobError> {
        let value = match self {
            Self::Prediction(record) => serde_json::to_value(record),
            Self::Job(record) => serde_json::to_value(record),
        };
        value.map_err(|error| internal(&error))
    }
}

fn internal(error: &serde_json::Error) -> JobError {
    JobError::Internal(format!("provenance: {error}"))
}

/// Returns the paths of the inputs that a record lists.
fn recorded_inputs(record: &Value) -> BTreeSet<PathBuf> {
    let mut paths = BTreeSet::new();
    READ.iter().filter_map(|part| record.get(part)).for_each(|part| add_paths(part, &mut paths));
    paths
}

/// Adds the values of all fields `path`.
fn add_paths(value: &Value, paths: &mut BTreeSet<PathBuf>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| add_paths(item, paths)),
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::String(path) if name == "path" => {
                        paths.insert(PathBuf::from(path));
                    }
                    field => add_paths(field, paths),
                }
            }
        }
        _ => {}
    }
}

/// Returns the recorded paths that are in `folder` now, with the new ones.
fn new_paths(record: &Value, folder: &Path) -> BTreeMap<String, PathBuf> {
    let recorded = recorded_inputs(record);
    let common = common_folder(&recorded);
    let mut found: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    // A folder comes before the files in it.
    for path in &recorded {
        let inside = found.iter().find_map(|(old, new)| path.strip_prefix(old).ok().map(|rest| new.join(rest)));
        let relative =
            || common.as_ref().and_then(|common| path.strip_prefix(common).ok()).map(|rest| folder.join(rest));
        let by_name = || {
            let is_unique = recorded.iter().filter(|other| other.file_name() == path.file_name()).count() == 1;
            path.file_name().filter(|_| is_unique).map(|name| folder.join(name))
        };
        let exists = |path: &PathBuf| path.exists();
        if let Some(new) = inside.or_else(|| relative().filter(exists)).or_else(|| by_name().filter(exists)) {
            found.insert(path.clone(), new);
        }
    }
    let model = record.pointer("/model/path").and_then(Value::as_str).map(PathBuf::from);
    if let Some(model) = model.filter(|model| !model.exists() && !found.contains_key(model)) {
        let new = model.file_name().map(|name| folder.join(name)).filter(|new| new.exists());
        found.extend(new.map(|new| (model, new)));
    }
    found.into_iter().filter_map(|(old, new)| Some((old.to_str()?.to_owned(), new))).collect()
}

/// Returns the folder that contains all paths.
fn common_folder(paths: &BTreeSet<PathBuf>) -> Option<PathBuf> {
    let mut folders = paths.iter().filter_map(|path| path.parent());
    let mut common = folders.next()?;
    for folder in folders {
        while !folder.starts_with(common) {
            common = common.parent()?;
        }
    }
    Some(common.to_owned())
}

/// Replaces all texts that are recorded paths.
fn replace(value: &mut Value, new_paths: &BTreeMap<String, PathBuf>) {
    match value {
        Value::String(text) => {
            if let Some(new) = new_paths.get(text.as_str()).and_then(|new| new.to_str()) {
                new.clone_into(text);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| replace(item, new_paths)),
        Value::Object(fields) => fields.values_mut().for_each(|field| replace(field, new_paths)),
        _ => {}
    }
}

/// Returns whether a text is among the values.
fn names(value: &Value, text: &str) -> bool {
    match value {
        Value::String(own) => own == text,
        Value::Array(items) => items.iter().any(|item| names(item, text)),
        Value::Object(fields) => fields.values().any(|field| names(field, text)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
    use super::*;
    use serde_json::json;

    fn record(inputs: &[&Path], job: &Value) -> AnyRecord {
        let input = |path: &&Path| json!({"path": path, "bytes": 1, "modified_unix_secs": 1});
        let record = json!({
            "program": "cytoscope 0.0.1", "kind": "evaluate", "job": job,
            "inputs": inputs.iter().map(input).collect::<Vec<Value>>(),
            "outputs": [{"path": inputs[0], "bytes": 1, "sha256": "a"}], "finished_unix_secs": 7,
        });
        AnyRecord::Job(serde_json::from_value(record).unwrap())
    }

    #[test]
    fn inputs_are_found_by_their_relative_place_or_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let new = |name: &str| folder.path().join(name);
        for name in ["a", "b"] {
            std::fs::create_dir(new(name)).unwrap();
            std::fs::write(new(name).join("x.tif"), name).unwrap();
        }
        std::fs::write(new("y.tif"), "").unwrap();
        let [first, second] = ["/gone/a/x.tif", "/gone/b/x.tif"].map(Path::new);
        let job = json!({"prediction": first, "truth": second, "out": "/gone/s.json"});
        let made = record(&[first, second], &job);
        assert_eq!(made.missing_inputs().unwrap(), [first, second]);
        let moved = made.with_inputs_in(folder.path()).unwrap().unwrap();
        assert_eq!(moved.missing_inputs().unwrap(), Vec::<PathBuf>::new());
        let AnyRecord::Job(moved) = moved else { panic!("another kind of record") };
        assert_eq!(moved.job["prediction"], json!(new("a").join("x.tif")));
        assert_eq!(moved.job["truth"], json!(new("b").join("x.tif")));
        assert_eq!((&moved.job["out"], moved.outputs[0].path.as_path()), (&json!("/gone/s.json"), first));
        assert_eq!(moved.inputs[1].path, new("b").join("x.tif"));
        // Of two files of the same name, none is taken for the other.
        assert!(made.with_inputs_in(&new("a")).unwrap().is_none());
        let far = record(&[Path::new("/gone/c/y.tif"), first], &job);
        let AnyRecord::Job(far) = far.with_inputs_in(folder.path()).unwrap().unwrap() else {
            panic!("another kind of record")
        };
        assert_eq!(far.inputs[0].path, new("y.tif"));
    }

    #[test]
    fn files_in_a_folder_that_was_moved_are_in_the_new_one() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("s.zarr")).unwrap();
        let paths = ["/gone/s.zarr", "/gone/s.zarr/0"].map(Path::new);
        let moved = record(&paths, &json!({"prediction": paths[0]})).with_inputs_in(folder.path()).unwrap().unwrap();
        let AnyRecord::Job(moved) = moved else { panic!("another kind of record") };
        assert_eq!(moved.inputs[1].path, folder.path().join("s.zarr/0"));
    }
}
