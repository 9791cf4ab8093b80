//! Scores of files and folders.
#![allow(clippy::unwrap_used, reason = "a test")]
use super::*;
use crate::NoteLevel;
use cytoscope_formats::{Channel, Container, WriteSpec, write_array};
use cytoscope_objects::segmentation_errors::SizeUnit;
use cytoscope_volume::Array;

fn job(prediction: PathBuf, truth: PathBuf) -> EvaluateJob {
    serde_json::from_value(serde_json::json!({"prediction": prediction, "truth": truth})).unwrap()
}

#[test]
fn voxels_with_the_ignore_label_count_neither_as_hits_nor_as_errors() {
    let folder = tempfile::tempdir().unwrap();
    let [prediction, truth] = ["p.npy", "t.npy"].map(|name| folder.path().join(name));
    let write = |path: &Path, values: Vec<i16>| {
        let array = Array::new("ZYX".parse().unwrap(), vec![1, 2, 3], values).unwrap();
        write_array(path, &array, &WriteSpec::of(&array, Container::Npy)).unwrap();
    };
    write(&prediction, vec![4, 4, 4, 4, 0, 5]);
    write(&truth, vec![-1, 7, 0, -1, 2, 2]);
    let plain = job(prediction, truth.clone());
    let error = plain.run(&Context::default()).unwrap_err().to_string();
    assert!(error.contains("-1 is not a label"), "{error}");
    let with = |label| EvaluateJob { ignore_label: Some(label), ..plain.clone() }.run(&Context::default()).unwrap();
    // Objects 7 and 4 share one of two voxels, and so do 2 and 5.
    let report = with(-1);
    let at_half = &report.instances[0];
    assert_eq!([at_half.n_true, at_half.n_pred, at_half.tp], [2, 2, 2]);
    assert!(report.notes.is_empty(), "{:?}", report.notes);
    write(&truth, vec![0, 7, 0, 0, 2, 2]);
    let report = with(9);
    assert_eq!(report.instances[0].tp, 1, "object 4 has three voxels more");
    assert_eq!(report.notes, [Note::info("no voxel of the ground truth has the label 9, so none is left out")]);
    // The values of stains are not labels.
    let stain = Array::new("ZYX".parse().unwrap(), vec![1, 2, 3], vec![1.0f32, 0.5, 1.0, 0.0, 0.25, 1.0]).unwrap();
    write_array(&truth, &stain, &WriteSpec::of(&stain, Container::Npy)).unwrap();
    let notes = with(1).notes;
    assert!(notes.iter().any(|note| note.message.to_string().contains("no file contains labels")), "{notes:?}");
}

#[test]
fn predicted_objects_with_only_their_rim_annotated_are_not_false_objects() {
    let folder = tempfile::tempdir().unwrap();
    let [prediction, truth] = ["p.npy", "t.npy"].map(|name| folder.path().join(name));
    let write = |path: &Path, values: Vec<i16>| {
        let array = Array::new("ZYX".parse().unwrap(), vec![2, 1, 8], values).unwrap();
        write_array(path, &array, &WriteSpec::of(&array, Container::Npy)).unwrap();
    };
    // An object with two voxels of background beside it; the rest of its slice, and the next slice, are not annotated.
    write(&truth, [vec![7, 7, 7, 0, 0], vec![-1; 11]].concat());
    let job = EvaluateJob { ignore_label: Some(-1), ..job(prediction.clone(), truth) };
    let below = vec![2; 8];
    for (row, n_pred) in [
        // One of four voxels in the annotated slice is known to be background.
        (vec![1, 1, 1, 0, 2, 2, 2, 2], 1),
        // Two of three are; or half of the known ones belong to the true object.
        (vec![1, 1, 1, 2, 2, 2, 0, 0], 2),
        (vec![1, 1, 2, 0, 2, 2, 2, 2], 2),
    ] {
        write(&prediction, [row.clone(), below.clone()].concat());
        let report = job.run(&Context::default()).unwrap();
        let at_half = &report.instances[0];
        assert_eq!([at_half.n_true, at_half.tp, at_half.n_pred], [1, 1, n_pred], "{row:?}");
    }
}

#[test]
fn images_beside_the_ground_truth_are_not_taken_for_it_and_files_that_are_left_out_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let [predictions, truths] = ["p", "t"].map(|name| folder.path().join(name));
    let write = |folder: &Path, name: &str, factor: f32| {
        std::fs::create_dir_all(folder).unwrap();
        let values: Vec<f32> = (0..16).map(|i| factor * i as f32 + (i % 3) as f32).collect();
        let array = Array::new("YX".parse().unwrap(), vec![4, 4], values).unwrap();
        write_array(&folder.join(name), &array, &WriteSpec::of(&array, Container::OmeTiff)).unwrap();
    };
    write(&predictions, "a_raw_prediction.ome.tif", 2.0);
    // The image that was predicted comes first in the alphabet.
    write(&truths, "a_raw.ome.tif", -5.0);
    write(&truths, "a_target.ome.tif", 2.0);
    let report = job(predictions.clone(), truths.clone()).run(&Context::default()).unwrap();
    assert_eq!(report.pairs[0].truth, truths.join("a_target.ome.tif"));
    let left_out = |report: &EvaluateReport| {
        report.notes.iter().map(|note| note.message.clone()).find(|note| note.contains("is not scored"))
    };
    assert!(report.pairs[0].regression.unwrap().mse == 0.0 && left_out(&report).is_none(), "{report:?}");
    // With labels beside it, the channels to choose from are those of the target, too.
    let labels = Array::new("YX".parse().unwrap(), vec![4, 4], vec![1u16; 16]).unwrap();
    let mut spec = WriteSpec::of(&labels, Container::OmeTiff);
    let named = |name: &str| vec![Channel { name: name.to_owned(), color_rgb: None }];
    spec.channels = named("labels");
    write_array(&truths.join("a_labels.ome.tif"), &labels, &spec).unwrap();
    spec.channels = named("stain");
    write_array(&truths.join("a_target.ome.tif"), &labels, &spec).unwrap();
    let channels =
        |predictions: Option<&Path>| channels_to_score(&truths, PairRole::Truth, predictions, &SeriesChoice::default());
    assert_eq!(channels(Some(&predictions)), ["stain"]);
    assert_eq!(channels(None), ["labels"]);
    std::fs::remove_file(truths.join("a_labels.ome.tif")).unwrap();
    write(&truths, "a_target.ome.tif", 2.0);
    write(&truths, "a_truth.ome.tif", 3.0);
    let report = job(predictions, truths).run(&Context::default()).unwrap();
    let note = left_out(&report).unwrap();
    assert!(note.contains("a_truth.ome.tif is not scored") && note.contains("a_target.ome.tif"), "{note}");
}

#[test]
fn files_of_a_folder_that_change_while_they_are_read_give_no_scores() {
    let folder = tempfile::tempdir().unwrap();
    let [predictions, truths, out] = ["p", "t", "s.json"].map(|name| folder.path().join(name));
    let array = Array::new("ZYX".parse().unwrap(), vec![1, 2, 3], vec![0u16, 1, 1, 0, 2, 2]).unwrap();
    for (folder, name) in [(&predictions, "a"), (&predictions, "b"), (&truths, "a"), (&truths, "b")] {
        std::fs::create_dir_all(folder).unwrap();
        let path = folder.join(format!("{name}_labels.tif"));
        write_array(&path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
    }
    let job = EvaluateJob { out: Some(out.clone()), ..job(predictions, truths.clone()) };
    let changed = truths.join("b_labels.tif");
    let grow = move |_: &crate::Event| {
        use std::io::Write;
        std::fs::OpenOptions::new().append(true).open(&changed).unwrap().write_all(b"x").unwrap();
    };
    let refused = job.run(&Context { sink: std::sync::Arc::new(grow), ..Context::default() }).unwrap_err().to_string();
    assert!(refused.contains("b_labels.tif") && refused.contains("changed while it was read"), "{refused}");
    assert!(!out.exists());
    assert_eq!(job.run(&Context::default()).unwrap().pairs.len(), 2);
}

#[test]
fn scores_of_values_that_are_not_finite_and_of_labels_with_float_samples_have_a_note() {
    let folder = tempfile::tempdir().unwrap();
    let [prediction, truth, labels] = ["p.npy", "t.npy", "l.npy"].map(|name| folder.path().join(name));
    let write = |path: &Path, array: Array| {
        write_array(path, &array, &WriteSpec::of(&array, Container::Npy)).unwrap();
    };
    let floats = |values: Vec<f32>| Array::new("YX".parse().unwrap(), vec![2, 2], values).unwrap();
    write(&labels, Array::new("YX".parse().unwrap(), vec![2, 2], vec![0u16, 1, 2, 2]).unwrap());
    write(&prediction, floats(vec![0.5, f32::NAN, 2.0, 3.0]));
    write(&truth, floats(vec![0.25, 1.0, 2.0, 3.0]));
    let notes = |truth: &PathBuf| job(prediction.clone(), truth.clone()).run(&Context::default()).unwrap().notes;
    let with_nan = notes(&truth);
    assert!(with_nan.len() == 1 && with_nan[0].message.contains("p.npy: 1 of 4 values is NaN"), "{with_nan:?}");
    assert_eq!(with_nan[0].level, NoteLevel::Warning);
    write(&prediction, floats(vec![0.0, 1.0, 2.0, 2.0]));
    assert!(notes(&truth).is_empty());
    let with_labels = notes(&labels);
    assert!(with_labels.len() == 1 && with_labels[0].message.contains("intensities are compared"), "{with_labels:?}");
}

#[test]
fn stains_with_small_differences_of_large_values_are_scored_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let [prediction, truth] = ["p.npy", "t.npy"].map(|name| folder.path().join(name));
    let write = |path: &Path, values: Vec<f64>| {
        let array = Array::new("YX".parse().unwrap(), vec![2, 2], values).unwrap();
        write_array(path, &array, &WriteSpec::of(&array, Container::Npy)).unwrap();
    };
    // As 32-bit floats, all values are 1e9.
    write(&truth, [0.0, 1.0, 2.0, 3.5].map(|value| 1e9 + value).to_vec());
    write(&prediction, [0.5, 1.0, 2.0, 3.5].map(|value| 1e9 + value).to_vec());
    let report = job(prediction, truth).run(&Context::default()).unwrap();
    assert_eq!(report.regression.unwrap().mse, 0.0625);
    assert!(report.notes.is_empty(), "{:?}", report.notes);
}

#[test]
fn a_voxel_size_along_z_alone_completes_that_of_the_files() {
    let folder = tempfile::tempdir().unwrap();
    // A box of 2 × 4 × 4 voxels, in files that state no slice spacing.
    let inside = |i: usize| i / 64 < 2 && (i / 8 % 8) < 4 && i % 8 < 4;
    let labels: Vec<u16> = (0..4 * 64).map(|i| u16::from(inside(i))).collect();
    let array = Array::new("ZYX".parse().unwrap(), vec![4, 8, 8], labels).unwrap();
    let voxel_size_um = VoxelSize { z: None, y: Some(0.5), x: Some(0.5) };
    let [prediction, truth] = ["p_labels.ome.tif", "t_labels.ome.tif"].map(|name| folder.path().join(name));
    for file in [&prediction, &truth] {
        let spec = WriteSpec { voxel_size_um, ..WriteSpec::of(&array, Container::OmeTiff) };
        write_array(file, &array, &spec).unwrap();
    }
    let without = job(prediction, truth);
    let errors = |job: &EvaluateJob| job.run(&Context::default()).map(|report| report.errors.unwrap());
    assert_eq!(errors(&without).unwrap().size_unit, SizeUnit::Voxel);
    let along_z = EvaluateJob { voxel_axes_um: VoxelSize { z: Some(2.0), ..VoxelSize::default() }, ..without };
    assert_eq!(errors(&along_z).unwrap().size_unit, SizeUnit::Um);
    let stored = serde_json::to_string(&along_z).unwrap();
    assert_eq!(serde_json::from_str::<EvaluateJob>(&stored).unwrap().voxel_axes_um, along_z.voxel_axes_um);
    let wrong = EvaluateJob { voxel_axes_um: VoxelSize { z: Some(-2.0), ..VoxelSize::default() }, ..along_z };
    assert!(matches!(errors(&wrong), Err(JobError::WrongUse(_))));
}

#[test]
fn a_note_on_the_stack_of_several_pairs_is_reported_once() {
    use crate::{Evaluation, Event};
    use std::sync::{Arc, Mutex};
    let shown = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&shown);
    let context = Context {
        sink: Arc::new(move |event: &Event| {
            if let Event::Note(note) = event {
                sink.lock().unwrap().push(note.clone());
            }
        }),
        ..Context::default()
    };
    let mut evaluation = Evaluation::new(&context, 0);
    let notes = [Note::info("a.tif: the file has 2 channels"), Note::warning("a.tif: the file has 2 channels")];
    for _ in 0..2 {
        notes.iter().for_each(|note| evaluation.add_note(note.clone()));
    }
    assert_eq!(evaluation.finish(Vec::new()).notes, notes);
    assert_eq!(*shown.lock().unwrap(), notes);
}
