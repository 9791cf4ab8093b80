//! Records: which files they replace, which inputs they list and what they find changed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
use super::*;
use crate::{Context, ConvertJob, Event};
use cytoscope_storage::StorageError;
use std::sync::{Arc, Mutex};

fn convert(folder: &Path) -> ConvertJob {
    let [input, output] = ["a.tif", "b.npy"].map(|name| folder.join(name));
    serde_json::from_value(serde_json::json!({"input": input, "output": output})).unwrap()
}

#[test]
fn a_foreign_file_at_the_path_of_a_record_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let job = convert(folder.path());
    let record = record_path(&job.output);
    assert_eq!(record.file_name().unwrap(), "b.npy_provenance.json");
    std::fs::write(&record, "{\"made by\": \"another program\"}").unwrap();
    let refused = recorded(&job, &Context::default(), |_| Ok(())).unwrap_err();
    assert!(matches!(refused, JobError::Storage(StorageError::Exists { .. })), "{refused}");
    assert_eq!(std::fs::read_to_string(&record).unwrap(), "{\"made by\": \"another program\"}");
}

#[test]
fn a_record_names_a_changed_input_and_a_missing_one() {
    let folder = tempfile::tempdir().unwrap();
    let job = convert(folder.path());
    std::fs::write(&job.input, "abc").unwrap();
    let write = |_: &mut PendingRecord<ConvertJob>| {
        std::fs::write(&job.output, "result").unwrap();
        Ok(())
    };
    recorded(&job, &Context::default(), write).unwrap();
    let read = || match read_any(&record_for(&job.output)).unwrap() {
        AnyRecord::Job(record) => record,
        AnyRecord::Prediction(_) => panic!("it is the record of a conversion"),
    };
    assert_eq!((read().kind, read().differences()), (JobKind::Convert, Vec::new()));
    std::fs::write(&job.input, "abcd").unwrap();
    let changed = read().differences().join("; ");
    assert!(changed.contains("had 3 bytes") && changed.contains("restore it"), "{changed}");
    std::fs::remove_file(&job.input).unwrap();
    let missing = read().differences().join("; ");
    assert!(missing.contains("can no longer be read"), "{missing}");
}

#[test]
fn inputs_that_the_record_does_not_list_are_noted() {
    let folder = tempfile::tempdir().unwrap();
    let job = convert(folder.path());
    std::fs::write(&job.input, "abc").unwrap();
    let notes = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&notes);
    let push = move |event: &Event| {
        if let Event::Note(note) = event {
            sink.lock().unwrap().push(note.message.to_string());
        }
    };
    let context = Context { sink: Arc::new(push), ..Context::default() };
    let write = |record: &mut PendingRecord<ConvertJob>| {
        record.add_inputs(["x.tif", "y.tif"].map(|name| folder.path().join(name)).iter().map(PathBuf::as_path));
        std::fs::write(&job.output, "result").unwrap();
        Ok(())
    };
    recorded(&job, &context, write).unwrap();
    let notes = notes.lock().unwrap().join("; ");
    assert!(notes.contains("2 inputs are not listed") && notes.contains("x.tif"), "{notes}");
    let AnyRecord::Job(record) = read_any(&record_path(&job.output)).unwrap() else { panic!("not a job") };
    assert_eq!(record.inputs.len(), 1);
}

#[test]
fn outputs_without_an_extension_and_predictions_have_records_of_their_own() {
    let name = |output: &str| record_path(Path::new(output)).display().to_string();
    assert_eq!(name("a/cells"), "a/cells.package_provenance.json");
    assert_eq!(name("a/cells-1.2"), "a/cells-1.2.package_provenance.json");
    assert_eq!(name("a/cells.zip"), "a/cells.zip_provenance.json");
}

#[test]
fn problems_with_the_path_of_a_record_are_found_before_the_work() {
    let folder = tempfile::tempdir().unwrap();
    let job = |name: &str| ConvertJob {
        output: folder.path().join(name),
        overwrite: Overwrite::Replace,
        ..convert(folder.path())
    };
    let refused = |job: &ConvertJob| PendingRecord::begin(job).unwrap_err().to_string();
    let long = refused(&job(&format!("{}.npy", "a".repeat(240))));
    assert!(long.contains("260 bytes") && long.contains("shorter name"), "{long}");
    std::fs::create_dir(record_path(&job("c.npy").output)).unwrap();
    let folder_message = refused(&job("c.npy"));
    assert!(folder_message.contains("c.npy_provenance.json is not a file"), "{folder_message}");
    // The record of another result is kept, even if files are overwritten.
    let write = |_: &mut PendingRecord<ConvertJob>| {
        std::fs::write(&job("d.npy").output, "result").unwrap();
        Ok(())
    };
    recorded(&job("d.npy"), &Context::default(), write).unwrap();
    let record = record_path(&job("d.npy").output);
    std::fs::rename(&record, record_path(&job("e.npy").output)).unwrap();
    let foreign_message = refused(&job("e.npy"));
    assert!(foreign_message.contains("the provenance record of another result"), "{foreign_message}");
    assert_eq!(record_for(&job("e.npy").output), job("e.npy").output);
}

#[test]
fn only_the_record_of_a_result_that_was_removed_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let job = convert(folder.path());
    std::fs::write(&job.input, "abc").unwrap();
    let write = |_: &mut PendingRecord<ConvertJob>| {
        std::fs::write(&job.output, "result").unwrap();
        Ok(())
    };
    recorded(&job, &Context::default(), write).unwrap();
    let (record, other) = (record_path(&job.output), folder.path().join("c.npy"));
    remove_record(&job.output).unwrap();
    assert!(record.is_file(), "the result exists");
    // The record of another result, and none at all.
    std::fs::copy(&record, record_path(&other)).unwrap();
    std::fs::remove_file(&job.output).unwrap();
    for removed in [&other, &folder.path().join("d.npy"), &job.output] {
        remove_record(removed).unwrap();
    }
    assert!(record_path(&other).is_file() && !record.exists());
}
