//! Results that are no longer as they were recorded.

use super::beside;
use crate::job_record::AnyRecord;
use crate::results::FileRecord;
use cytoscope_storage::MARKER;
use std::path::Path;

/// Maximum size in bytes of a result whose content is compared with its record. Of a larger file, only the size is compared.
const MAX_COMPARED_BYTES: u64 = 1 << 30;

impl AnyRecord {
    /// Returns which results have changed since they were recorded, one sentence each; `path` is that of the record. The results
    /// are read, which may take seconds. Those that are missing are not listed.
    pub fn changed_outputs(&self, path: &Path) -> Vec<String> {
        let (outputs, others) = match self {
            Self::Prediction(record) => (&record.outputs, [&record.replaced[..], &record.derived[..]].concat()),
            Self::Job(record) => (&record.outputs, Vec::new()),
        };
        // Folders of results may be moved with their record. It is in the folder of the first result.
        let folder = outputs.first().and_then(|first| first.path.parent());
        let is_beside = |output: &FileRecord| output.path.parent() == folder;
        let current = |output: &FileRecord| {
            let file = if is_beside(output) { beside(path, &output.path) } else { output.path.clone() };
            // The content of a link is that of its target.
            file.canonicalize().ok()
        };
        let is_known = |output: &FileRecord, file: &Path| {
            let same_name = others.iter().filter(|other| other.is_named(&output.path));
            std::iter::once(output).chain(same_name).any(|known| may_be(known, file))
        };
        let changed = outputs.iter().filter_map(|output| {
            let file = current(output).filter(|file| !is_known(output, file))?;
            Some(format!(
                "the result {} has changed since it was recorded: the record does not describe its present content",
                file.display()
            ))
        });
        changed.collect()
    }
}

/// Returns whether a file or folder may have the recorded content. Large ones and folders without a marker are not read.
fn may_be(known: &FileRecord, file: &Path) -> bool {
    if file.is_dir() {
        return known.bytes > MAX_COMPARED_BYTES || !file.join(MARKER).is_file() || known.matches(file);
    }
    let has_recorded_size = std::fs::metadata(file).is_ok_and(|metadata| metadata.len() == known.bytes);
    has_recorded_size && (known.bytes > MAX_COMPARED_BYTES || known.matches(file))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use crate::job_record::read_any;
    use cytoscope_storage::sha256_of_file;
    use std::path::Path;

    /// Writes the record of a job with results in one folder, and a table in another.
    fn write_record(path: &Path, results: &[&Path]) {
        let outputs = results.iter().map(|result| {
            let bytes = std::fs::metadata(result).unwrap().len();
            serde_json::json!({"path": result, "bytes": bytes, "sha256": sha256_of_file(result).unwrap()})
        });
        let record = serde_json::json!({
            "program": "cytoscope 0.0.1", "kind": "segment", "job": {}, "inputs": [],
            "outputs": outputs.collect::<Vec<_>>(), "finished_unix_secs": 5,
        });
        std::fs::write(path, record.to_string()).unwrap();
    }

    #[test]
    fn results_that_were_edited_are_found_also_after_their_folder_was_moved() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["a", "tables"] {
            std::fs::create_dir(path(name)).unwrap();
        }
        let files = ["a/l.tif", "a/m.tif", "tables/t.csv"].map(path);
        for file in &files {
            std::fs::write(file, "abc").unwrap();
        }
        write_record(&path("a/l.tif_provenance.json"), &files.each_ref().map(|file| file.as_path()));
        std::fs::rename(path("a"), path("b")).unwrap();
        let record = path("b/l.tif_provenance.json");
        let changed = || read_any(&record).unwrap().changed_outputs(&record);
        // A file of another job, of the name of the table.
        std::fs::write(path("b/t.csv"), "another").unwrap();
        assert_eq!(changed(), Vec::<String>::new());
        // The same size with another content, and another size.
        std::fs::write(path("b/l.tif"), "abd").unwrap();
        std::fs::write(path("tables/t.csv"), "abcd").unwrap();
        let texts = changed();
        assert_eq!(texts.len(), 2, "{texts:#?}");
        assert!(
            texts[0].contains("l.tif has changed since") && texts[1].contains("t.csv has changed since"),
            "{texts:#?}"
        );
        // A result that was deleted is not one that has changed.
        std::fs::remove_file(path("b/l.tif")).unwrap();
        assert_eq!(changed().len(), 1);
    }
}
