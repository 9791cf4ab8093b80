//! Results that are found when a stack is opened.
#![allow(clippy::unwrap_used, reason = "a test")]

use super::*;
use std::time::Duration;

/// Names of the results that are found for single time points.
fn time_point_names(place: &ResultsPlace) -> BTreeMap<usize, Vec<String>> {
    let name = |a: Artifact| a.path.file_name().unwrap().to_string_lossy().into_owned();
    let found = FoundResults::of(place).by_time.into_iter();
    found.map(|(time, all)| (time, all.into_iter().map(name).collect())).collect()
}

#[test]
fn maps_are_found_only_if_the_latest_prediction_has_written_them() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("cytoscope");
    std::fs::create_dir(&folder).unwrap();
    let stack = home.path().join("cells.tif");
    for name in ["cells_probability.tif", "cells_labels.tif"] {
        std::fs::write(folder.join(name), "").unwrap();
    }
    let place = ResultsPlace {
        stack: stack.clone(),
        stem: "cells".to_owned(),
        times: 1,
        chosen: None,
        earlier: None,
        known: Vec::new(),
    };
    let kinds_after = |written: &[&str]| {
        let record = serde_json::json!({
            "program": "p", "fingerprint": "f", "job": {"inputs": [&stack], "model": "m", "out": &folder},
            "model": {"name": "m", "path": "m", "fingerprint": "f"},
            "input": {"path": &stack, "bytes": 1, "modified_unix_secs": 1}, "outputs": written,
            "device": {}, "plan": {}, "objects": [], "finished_unix_secs": 5
        });
        std::fs::write(folder.join("cells_provenance.json"), record.to_string()).unwrap();
        FoundResults::of(&place).outputs.into_iter().map(|a| a.kind).collect::<Vec<_>>()
    };
    let both = [ArtifactKind::Probability, ArtifactKind::Labels];
    assert_eq!(kinds_after(&["/moved/cells_probability.tif", "/moved/cells_labels.tif"]), both);
    assert_eq!(kinds_after(&["/moved/cells_labels.tif"]), [ArtifactKind::Labels]);
}

#[test]
fn labels_of_an_earlier_prediction_are_not_shown_with_the_maps_of_the_latest_one() {
    let home = tempfile::tempdir().unwrap();
    let (folder, stack) = (home.path().join("shared"), home.path().join("cells.tif"));
    let labels = folder.join("cells_labels.tif");
    // Labels of another stack of the same name, whose record the prediction of this one has replaced.
    write_prediction(&folder, &stack, 100);
    set_age(&labels, 1000);
    for name in ["cells_objects.csv", "cells_probability.tif"] {
        std::fs::write(folder.join(name), "").unwrap();
    }
    let kinds = || {
        let place = ResultsPlace {
            stack: stack.clone(),
            stem: "cells".to_owned(),
            times: 1,
            chosen: Some(folder.clone()),
            earlier: None,
            known: Vec::new(),
        };
        FoundResults::of(&place).outputs.into_iter().map(|a| a.kind).collect::<Vec<_>>()
    };
    assert_eq!(kinds(), [ArtifactKind::Labels, ArtifactKind::Table], "the record lists them");
    let record = std::fs::read_to_string(folder.join("cells_provenance.json")).unwrap();
    let maps_only = record.replace("cells_labels.tif", "cells_probability.tif");
    std::fs::write(folder.join("cells_provenance.json"), maps_only).unwrap();
    assert_eq!(kinds(), [ArtifactKind::Probability]);
    let all = [ArtifactKind::Probability, ArtifactKind::Labels, ArtifactKind::Table];
    // Objects that were saved belong to the stack that they were measured in.
    write_objects_record(&labels, &home.path().join("other/cells.tif"), 50);
    assert_eq!(kinds(), [ArtifactKind::Probability]);
    write_objects_record(&labels, &stack, 50);
    assert_eq!(kinds(), all);
    // Without intensities, only the maps say so.
    write_objects_record(&labels, &folder.join("cells_probability.tif"), 50);
    assert_eq!(kinds(), all);
    write_objects_record(&labels, &folder.join("cells_probability.tif"), 500);
    assert_eq!(kinds(), [ArtifactKind::Probability], "these were the maps of an earlier prediction");
    // Labels without a record that were written after the prediction.
    std::fs::remove_file(record_path(&labels)).unwrap();
    set_age(&labels, 50);
    assert_eq!(kinds(), all);
}

#[test]
fn results_of_a_stack_whose_voxels_were_moved_are_not_shown_over_it() {
    let home = tempfile::tempdir().unwrap();
    let (folder, stack) = (home.path().join("cytoscope"), home.path().join("cells.tif"));
    write_prediction(&folder, &stack, 100);
    let record = folder.join("cells_provenance.json");
    let unprocessed = std::fs::read_to_string(&record).unwrap();
    let kinds_after = |steps: &str| {
        let steps = cytoscope_preprocess::parse_steps(steps).unwrap();
        let mut changed: serde_json::Value = serde_json::from_str(&unprocessed).unwrap();
        changed["job"]["preprocess"] = serde_json::to_value(steps).unwrap();
        std::fs::write(&record, changed.to_string()).unwrap();
        let place = ResultsPlace {
            stack: stack.clone(),
            stem: "cells".to_owned(),
            times: 1,
            chosen: None,
            earlier: None,
            known: Vec::new(),
        };
        FoundResults::of(&place).outputs.into_iter().map(|a| a.kind).collect::<Vec<_>>()
    };
    assert_eq!(kinds_after("gaussian:sigma=1"), [ArtifactKind::Labels]);
    for steps in ["gaussian:sigma=1,crop:y=1-25", "affine:matrix=1/0/0/0/0/1/0/3/0/0/1/5"] {
        assert!(kinds_after(steps).is_empty(), "{steps}");
    }
}

#[test]
fn journals_of_corrections_are_found_by_time_point() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("cytoscope");
    std::fs::create_dir(&folder).unwrap();
    for name in ["cells.corrections", "cells_t2.corrections", "cells_t9.corrections", "other_t1.corrections"] {
        std::fs::write(folder.join(name), "").unwrap();
    }
    let found = |times: usize| {
        let stack = home.path().join("cells.tif");
        let place =
            ResultsPlace { stack, stem: "cells".to_owned(), times, chosen: None, earlier: None, known: Vec::new() };
        FoundResults::of(&place).corrected_times
    };
    assert_eq!((found(1), found(4)), (BTreeSet::from([0]), BTreeSet::from([2])));
}

#[test]
fn labels_of_a_prediction_of_one_time_point_belong_to_it() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("cytoscope");
    std::fs::create_dir(&folder).unwrap();
    let stack = home.path().join("cells.tif");
    for name in ["cells_labels.tif", "cells_objects.csv"] {
        std::fs::write(folder.join(name), "").unwrap();
    }
    let found_after = |time: Option<usize>, times: usize| {
        let record = serde_json::json!({
            "program": "p", "fingerprint": "f",
            "job": {"inputs": [&stack], "model": "m", "out": &folder, "time": time},
            "model": {"name": "m", "path": "m", "fingerprint": "f"},
            "input": {"path": &stack, "bytes": 1, "modified_unix_secs": 1}, "outputs": [],
            "device": {}, "plan": {}, "objects": [], "finished_unix_secs": 5
        });
        std::fs::write(folder.join("cells_provenance.json"), record.to_string()).unwrap();
        let place = ResultsPlace {
            stack: stack.clone(),
            stem: "cells".to_owned(),
            times,
            chosen: None,
            earlier: None,
            known: Vec::new(),
        };
        let found = FoundResults::of(&place);
        (found.outputs.len(), found.by_time.get(&2).map_or(0, Vec::len))
    };
    assert_eq!(found_after(Some(2), 6), (0, 2));
    assert_eq!(found_after(None, 6), (2, 0));
    assert_eq!(found_after(Some(0), 1), (2, 0));
}

#[test]
fn settings_of_objects_that_were_saved_after_the_prediction_are_found() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("cytoscope");
    std::fs::create_dir(&folder).unwrap();
    let stack = home.path().join("cells.tif");
    let prediction = serde_json::json!({
        "program": "p", "fingerprint": "f", "job": {"inputs": [&stack], "model": "m", "out": &folder},
        "model": {"name": "m", "path": "m", "fingerprint": "f"},
        "input": {"path": &stack, "bytes": 1, "modified_unix_secs": 1}, "outputs": [],
        "device": {}, "plan": {}, "objects": [], "finished_unix_secs": 5
    });
    std::fs::write(folder.join("cells_provenance.json"), prediction.to_string()).unwrap();
    let found_after = |name: &str, options: serde_json::Value, finished: u64, times: usize| {
        let labels = folder.join(name);
        let input = serde_json::json!({"path": &stack, "bytes": 1, "modified_unix_secs": 1});
        let job = serde_json::json!({"map": folder.join("cells_probability.tif"), "options": options});
        let record = serde_json::json!({
            "program": "p", "kind": "segment", "job": job, "inputs": [input], "outputs": [],
            "finished_unix_secs": finished
        });
        std::fs::write(&labels, "").unwrap();
        std::fs::write(record_path(&labels), record.to_string()).unwrap();
        let place = ResultsPlace {
            stack: stack.clone(),
            stem: "cells".to_owned(),
            times,
            chosen: None,
            earlier: None,
            known: Vec::new(),
        };
        let found = FoundResults::of(&place).saved_options;
        found.into_iter().map(|(time, saved)| (time, saved.options.drop_border)).collect::<Vec<_>>()
    };
    let excluded = serde_json::json!({"drop_border": true});
    assert_eq!(found_after("cells_labels.tif", excluded.clone(), 6, 1), [(0, true)]);
    // A later prediction has replaced the objects, and invalid settings are not used.
    assert!(found_after("cells_labels.tif", excluded.clone(), 4, 1).is_empty());
    assert!(found_after("cells_labels.tif", serde_json::json!({"smooth_um": -1.0}), 6, 1).is_empty());
    assert_eq!(found_after("cells_t2_labels.tif", excluded, 6, 3), [(2, true)]);
}

#[test]
fn results_of_a_prediction_whose_input_was_given_as_a_relative_path_are_found() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("cytoscope");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("cells_labels.tif"), "").unwrap();
    let place = ResultsPlace {
        stack: home.path().join("cells.tif"),
        stem: "cells".to_owned(),
        times: 1,
        chosen: None,
        earlier: None,
        known: Vec::new(),
    };
    let found_after = |predicted: &Path| {
        let record = serde_json::json!({
            "program": "p", "fingerprint": "f", "job": {"inputs": [predicted], "model": "m", "out": &folder},
            "model": {"name": "m", "path": "m", "fingerprint": "f"},
            "input": {"path": "cells.tif", "bytes": 1, "modified_unix_secs": 1}, "outputs": [],
            "device": {}, "plan": {}, "objects": [], "finished_unix_secs": 5
        });
        std::fs::write(folder.join("cells_provenance.json"), record.to_string()).unwrap();
        FoundResults::of(&place).outputs.len()
    };
    assert_eq!(found_after(&place.stack), 1);
    assert_eq!(found_after(&home.path().join("other/cells.tif")), 0);
}

#[test]
fn labels_of_single_time_points_are_found_unless_they_are_those_of_another_stack() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("cytoscope");
    std::fs::create_dir(&folder).unwrap();
    let place = |times| ResultsPlace {
        stack: home.path().join("cells.tif"),
        stem: "cells".to_owned(),
        times,
        chosen: None,
        earlier: None,
        known: Vec::new(),
    };
    let record = |stack: &Path| {
        let input = serde_json::json!({"path": stack, "bytes": 1, "modified_unix_secs": 1});
        let record = serde_json::json!({
            "program": "p", "kind": "segment", "job": {}, "inputs": [input], "outputs": [], "finished_unix_secs": 5
        });
        record.to_string()
    };
    let (own, other) = (record(&place(1).stack), record(&home.path().join("other/cells.tif")));
    let files = [
        ("cells_t0_corrected_labels.tif", ""),
        ("cells_t1_labels.tif", ""),
        ("cells_t1_labels.tif_provenance.json", own.as_str()),
        ("cells_t1_objects.csv", ""),
        // Corrected labels take precedence.
        ("cells_t2_labels.tif", ""),
        ("cells_t2_labels.tif_provenance.json", own.as_str()),
        ("cells_t2_corrected_labels.tif", ""),
        ("cells_t2_corrected_objects.csv", ""),
        // The objects of another stack, and the prediction of one that is named after a time point.
        ("cells_t3_labels.tif", ""),
        ("cells_t3_labels.tif_provenance.json", other.as_str()),
        ("cells_t4_labels.tif", ""),
        ("cells_t4_provenance.json", "{}"),
        // Neither is a time point of the stack.
        ("cells_t05_labels.tif", ""),
        ("cells_t99_corrected_labels.tif", ""),
    ];
    files.iter().for_each(|(name, text)| std::fs::write(folder.join(name), text).unwrap());
    let expected = [
        (0, vec!["cells_t0_corrected_labels.tif"]),
        (1, vec!["cells_t1_objects.csv", "cells_t1_labels.tif"]),
        (2, vec!["cells_t2_corrected_objects.csv", "cells_t2_corrected_labels.tif"]),
    ];
    let expected = expected.map(|(time, names)| (time, names.into_iter().map(str::to_owned).collect::<Vec<_>>()));
    assert_eq!(time_point_names(&place(6)), BTreeMap::from(expected));
    assert!(time_point_names(&place(1)).is_empty());
}

/// Sets when a file was last written, in seconds before now.
fn set_age(path: &Path, age_secs: u64) {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(age_secs)).unwrap();
}

/// Seconds from 1970 to a number of seconds ago.
fn unix_secs_before(age_secs: u64) -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() - age_secs
}

/// Writes the labels of a prediction of a stack to a results folder, with its record.
fn write_prediction(folder: &Path, stack: &Path, age_secs: u64) {
    std::fs::create_dir_all(folder).unwrap();
    let record = serde_json::json!({
        "program": "p", "fingerprint": "f", "job": {"inputs": [stack], "model": "m", "out": folder},
        "model": {"name": "m", "path": "m", "fingerprint": "f"},
        "input": {"path": stack, "bytes": 1, "modified_unix_secs": 1}, "outputs": ["cells_labels.tif"],
        "device": {}, "plan": {}, "objects": [], "finished_unix_secs": unix_secs_before(age_secs)
    });
    std::fs::write(folder.join("cells_provenance.json"), record.to_string()).unwrap();
    let labels = folder.join("cells_labels.tif");
    std::fs::write(&labels, "").unwrap();
    set_age(&labels, age_secs);
}

/// Writes the record of objects that were saved as labels.
fn write_objects_record(labels: &Path, stack: &Path, age_secs: u64) {
    let input = serde_json::json!({"path": stack, "bytes": 1, "modified_unix_secs": 1});
    let record = serde_json::json!({
        "program": "p", "kind": "segment", "job": {}, "inputs": [input], "outputs": [],
        "finished_unix_secs": unix_secs_before(age_secs)
    });
    std::fs::write(record_path(labels), record.to_string()).unwrap();
}

/// Names of the files of labels.
fn labels_names<'a>(results: impl IntoIterator<Item = &'a Artifact>) -> Vec<String> {
    let labels = results.into_iter().filter(|a| a.kind == ArtifactKind::Labels);
    labels.map(|a| a.path.file_name().unwrap().to_string_lossy().into_owned()).collect()
}

#[test]
fn the_newer_of_corrected_labels_and_saved_objects_is_shown_and_both_can_be_chosen() {
    let home = tempfile::tempdir().unwrap();
    let (folder, stack) = (home.path().join("cytoscope"), home.path().join("cells.tif"));
    write_prediction(&folder, &stack, 1000);
    let place = |times| ResultsPlace {
        stack: stack.clone(),
        stem: "cells".to_owned(),
        times,
        chosen: None,
        earlier: None,
        known: Vec::new(),
    };
    for (times, time, objects, corrected) in [
        (1, 0, "cells_labels.tif", "cells_corrected_labels.tif"),
        (4, 2, "cells_t2_labels.tif", "cells_t2_corrected_labels.tif"),
    ] {
        let found = || {
            let found = FoundResults::of(&place(times));
            let shown = if times > 1 { found.by_time.get(&time).cloned().unwrap() } else { found.outputs };
            let choices = labels_names(found.choices.get(&time).into_iter().flatten().flatten());
            (labels_names(&shown), choices, labels_names_of(&found.older_corrections))
        };
        std::fs::write(folder.join(objects), "").unwrap();
        std::fs::write(folder.join(corrected), "").unwrap();
        set_age(&folder.join(corrected), 100);
        // Predicted labels do not take the place of corrections, however new their file is.
        let own = |name: &str| vec![name.to_owned()];
        let both = |shown: &str, other: &str| vec![other.to_owned(), shown.to_owned()];
        assert_eq!(found(), (own(corrected), both(corrected, objects), Vec::new()));
        write_objects_record(&folder.join(objects), &stack, 200);
        assert_eq!(found(), (own(corrected), both(corrected, objects), Vec::new()));
        // Objects that were saved later do, although the copied file is older.
        set_age(&folder.join(objects), 500);
        write_objects_record(&folder.join(objects), &stack, 50);
        assert_eq!(found(), (own(objects), both(objects, corrected), own(corrected)));
        set_age(&folder.join(corrected), 10);
        assert_eq!(found().0, own(corrected));
        std::fs::remove_file(folder.join(corrected)).unwrap();
        assert_eq!(found(), (own(objects), Vec::new(), Vec::new()));
    }
}

/// Names of files.
fn labels_names_of(files: &[PathBuf]) -> Vec<String> {
    files.iter().map(|file| file.file_name().unwrap().to_string_lossy().into_owned()).collect()
}

#[test]
fn of_several_folders_the_one_with_the_newest_results_is_shown() {
    let home = tempfile::tempdir().unwrap();
    let stack = home.path().join("cells.tif");
    let [beside, chosen, known] = ["cytoscope", "chosen", "known"].map(|name| home.path().join(name));
    let found = |times: usize| {
        FoundResults::of(&ResultsPlace {
            stack: stack.clone(),
            stem: "cells".to_owned(),
            times,
            chosen: Some(chosen.clone()),
            earlier: None,
            known: vec![known.clone()],
        })
    };
    write_prediction(&beside, &stack, 300);
    let first = found(1);
    assert_eq!(labels_of(&first.outputs), Some(beside.join("cells_labels.tif").as_path()));
    assert_eq!(
        (first.folder, first.elsewhere, first.known),
        (chosen.clone(), vec![beside.clone()], vec![beside.clone()])
    );
    // Corrections without a prediction are found where this window has written them.
    std::fs::create_dir(&known).unwrap();
    let corrected = known.join("cells_corrected_labels.tif");
    std::fs::write(&corrected, "").unwrap();
    std::fs::write(known.join("cells.corrections"), "").unwrap();
    let second = found(1);
    assert_eq!((labels_of(&second.outputs), second.elsewhere), (Some(corrected.as_path()), vec![known.clone()]));
    assert_eq!(second.corrected_times, BTreeSet::from([0]));
    assert_eq!(
        labels_names(second.choices.values().flatten().flatten()),
        ["cells_labels.tif", "cells_corrected_labels.tif"]
    );
    write_prediction(&chosen, &stack, 0);
    set_age(&corrected, 100);
    let third = found(1);
    assert_eq!(labels_of(&third.outputs), Some(chosen.join("cells_labels.tif").as_path()));
    assert_eq!((third.elsewhere, third.older_corrections), (Vec::new(), vec![corrected]));
    // The other time points of a series keep the labels of their own folders.
    let [early, late] = [1, 2].map(|time| known.join(format!("cells_t{time}_corrected_labels.tif")));
    std::fs::write(&early, "").unwrap();
    std::fs::write(&late, "").unwrap();
    set_age(&chosen.join("cells_labels.tif"), 50);
    set_age(&early, 100);
    set_age(&late, 10);
    let series = found(4);
    assert_eq!(series.by_time.get(&2).and_then(|set| labels_of(set)), Some(late.as_path()));
    assert!(!series.by_time.contains_key(&1), "the prediction is newer");
    assert_eq!(
        (series.elsewhere, labels_names(series.choices[&1].iter().flatten())),
        (vec![known], vec!["cells_t1_corrected_labels.tif".to_owned()])
    );
}
