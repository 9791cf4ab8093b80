//! The queue of predictions: it can be canceled, and what a window did not finish continues in the next one.

use crate::files::{plate, write_plate};
use crate::fixture::{Fixture, sees, window};
use cytoscope_ui::Workbench;
use cytoscope_ui::command::Command;
use cytoscope_ui::document::Role;
use cytoscope_ui::work::{JobState, JobView, Purpose};
use eframe::egui::accesskit;
use egui_kittest::kittest::{NodeT, Queryable};
use egui_kittest::{Harness, Node};
use std::cell::Cell;
use std::path::{Path, PathBuf};

fn copies(fixture: &Fixture, n: usize) -> Vec<PathBuf> {
    let copy = |i| {
        let path = fixture.path(&format!("stack {i}.tif"));
        std::fs::copy(fixture.path("sample/nuclei_raw.tif"), &path).unwrap();
        path
    };
    (0..n).map(copy).collect()
}

/// Opens `n` copies of the sample and waits until they can be predicted.
pub(crate) fn open_copies(fixture: &mut Fixture, n: usize) -> Vec<PathBuf> {
    let stacks = copies(fixture, n);
    fixture.window.state_mut().open_paths(&stacks);
    fixture.until("the stacks", |w| w.state().documents().len() == n);
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    stacks
}

/// Replaces the window and its engine by new ones.
fn next_window(fixture: &mut Fixture) {
    fixture.next_window(|folder| window(folder, Vec::new()));
}

fn labels(stack: &Path) -> PathBuf {
    let stem = stack.file_stem().unwrap().to_string_lossy().into_owned();
    stack.parent().unwrap().join("cytoscope").join(format!("{stem}_labels.tif"))
}

#[test]
fn queue_continues_in_the_next_window() {
    let mut fixture = Fixture::with_small_sample();
    let stacks = open_copies(&mut fixture, 3);
    fixture.click_enabled("Predict all 3 stacks");
    let is_prediction = |job: &JobView| matches!(job.purpose, Purpose::Predict { .. });
    fixture.until("the predictions", |w| w.state().jobs().iter().filter(|job| is_prediction(job)).count() == 3);
    fixture.until_between_frames("the first result", || stacks.iter().any(|s| labels(s).is_file()));
    let done: Vec<bool> = stacks.iter().map(|s| labels(s).is_file()).collect();
    assert!(done.iter().any(|d| !d), "every prediction ended before the window was closed");
    next_window(&mut fixture);
    assert!(fixture.sees("not finished"), "{}", fixture.on_screen());
    fixture.click("Continue");
    fixture
        .until("all results", |w| stacks.iter().all(|s| labels(s).is_file()) && w.state().waiting_predictions() == 0);
    assert!(!fixture.sees("not finished"));
    fixture.until("one notification for all", |w| sees(w, "stacks predicted"));
    let states: Vec<JobState> = fixture.window.state().jobs().iter().map(|j| j.state.clone()).collect();
    assert!(states.iter().all(|s| *s == JobState::Done), "{states:?}");
    // Results from before and after the restart are the same.
    let first = std::fs::read(labels(&stacks[0])).unwrap();
    assert!(stacks.iter().all(|s| std::fs::read(labels(s)).unwrap() == first));
    // The next window offers nothing.
    fixture.window.run_steps(3);
    next_window(&mut fixture);
    assert!(!fixture.sees("not finished"), "{}", fixture.on_screen());
}

#[cfg(unix)]
#[test]
fn closing_a_stack_that_is_being_predicted_asks_first() {
    let mut fixture = Fixture::with_small_sample();
    open_copies(&mut fixture, 1);
    fixture.until_enabled("Predict this stack");
    // The prediction does not end before the question is answered.
    fixture.stop_engine();
    fixture.click("Predict this stack");
    fixture.until("the prediction", |w| w.state().waiting_predictions() == 1);
    let question = "Close stack 0.tif?";
    fixture.window.state_mut().send(Command::Close);
    fixture.until("the question", |w| sees(w, question));
    fixture.click("Keep it open");
    fixture.until("the answer", |w| !sees(w, question));
    let open = fixture.window.state().documents().len();
    assert_eq!((open, fixture.window.state().waiting_predictions()), (1, 1));
    fixture.window.state_mut().send(Command::Close);
    fixture.click("Cancel prediction and close");
    fixture.until("the empty window", |w| w.state().document().is_none());
    fixture.resume_engine();
    fixture.until("the end of the prediction", |w| w.state().waiting_predictions() == 0);
}

#[test]
#[cfg_attr(not(unix), ignore = "only Unix can stop a process")]
fn unfinished_predictions_can_be_discarded() {
    let mut fixture = Fixture::new();
    open_copies(&mut fixture, 2);
    // No prediction ends before the window is closed.
    fixture.stop_engine();
    fixture.window.state_mut().send(Command::PredictAll);
    fixture.until("predictions", |w| w.state().waiting_predictions() == 2);
    next_window(&mut fixture);
    fixture.until("the offer", |w| sees(w, "2 predictions were not finished."));
    fixture.click("Discard");
    assert!(!fixture.sees("not finished"));
    next_window(&mut fixture);
    assert!(!fixture.sees("not finished"));
}

#[test]
#[cfg_attr(not(unix), ignore = "only Unix can stop a process")]
fn queued_predictions_are_canceled_together() {
    let mut fixture = Fixture::new();
    open_copies(&mut fixture, 2);
    fixture.until_enabled("Predict all 2 stacks");
    // The engine is asked to stop just after the predictions have begun.
    fixture.stop_engine();
    fixture.click("Predict all 2 stacks");
    fixture.until("the predictions", |w| w.state().waiting_predictions() == 2);
    fixture.window.state_mut().send(Command::CancelPredictions);
    fixture.window.run_steps(3);
    fixture.resume_engine();
    fixture.until("the end", |w| w.state().waiting_predictions() == 0);
    assert!(!fixture.path("cytoscope/stack 1_labels.tif").exists(), "the second prediction had not begun");
}

#[test]
fn two_series_of_one_file_are_opened_as_documents_of_their_own() {
    let mut fixture = Fixture::with(|folder| {
        let stack = plate(&folder.join("plate.zarr"));
        let queues = folder.join("settings/queues");
        std::fs::create_dir_all(&queues).unwrap();
        let entry = |series: usize| {
            let job = serde_json::json!({
                "inputs": [stack], "model": "nuclei", "out": folder.join("out"), "device": "cpu", "series": series
            });
            serde_json::json!({"asked": {"number": series + 1, "job": job}}).to_string() + "\n"
        };
        std::fs::write(queues.join("earlier.jsonl"), [0, 1].map(entry).concat()).unwrap();
        Vec::new()
    });
    fixture.until("the offer", |w| sees(w, "2 predictions were not finished."));
    fixture.click("Continue");
    fixture.until("both series", |w| w.state().documents().len() == 2);
    let mut series: Vec<usize> = fixture.window.state().documents().iter().map(|d| d.series).collect();
    series.sort_unstable();
    assert_eq!(series, [0, 1]);
    // Each has its prediction.
    fixture.until("the predictions", |w| w.state().jobs().len() == 2);
    // The other series is chosen in the first document: its own document becomes the active one.
    let shown = fixture.window.state().document().unwrap().series;
    fixture.settle();
    fixture.click("Series");
    fixture.click(if shown == 0 { "A/1/1.zarr" } else { "A/1/0.zarr" });
    fixture.until("the other series", |w| w.state().document().is_some_and(|d| d.series != shown));
    assert_eq!(fixture.window.state().documents().len(), 2);
}

/// Writes parts of the sample as a plate whose two images have 8 and 10 slices.
fn sample_plate(path: &Path) -> PathBuf {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("sample_data/nuclei_raw.tif");
    let image = cytoscope_formats::open(&sample, &cytoscope_formats::OpenOptions::default()).unwrap();
    let values = image.read_all().unwrap().samples().to_f32();
    write_plate(path, [8, 10], [80, 160], |z, at| values[(z + 8) * 160 * 160 + at] as u16)
}

/// The label images of both series of a plate in a folder, as TIFF.
fn plate_labels(folder: &Path) -> [PathBuf; 2] {
    ["plate_labels.tif", "plate_s1_labels.tif"].map(|name| folder.join(name))
}

/// Sets the format of results for the window that will be opened in a folder.
fn choose_tiff(folder: &Path) {
    std::fs::create_dir_all(folder.join("settings")).unwrap();
    std::fs::write(folder.join("settings/settings.json"), r#"{"result_format": "tiff"}"#).unwrap();
}

/// Number of slices of a label image; `None` if the file is not an image.
fn depth(labels: &Path) -> Option<usize> {
    let image = cytoscope_formats::open(labels, &cytoscope_formats::OpenOptions::default()).ok()?;
    image.meta().shape_full.get(1).copied()
}

/// Replaces a file by one that Cytoscope did not write. The old one may still be mapped, so it is not changed in place.
fn draw_by_hand(file: &Path) {
    let drawn = file.with_extension("drawn");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&drawn, "drawn by hand").unwrap();
    std::fs::rename(&drawn, file).unwrap();
}

/// The file of the labels that the active document shows.
fn shown_labels(window: &Harness<'static, Workbench>) -> Option<PathBuf> {
    window.state().document()?.overlay_with_role(Role::Labels).map(|labels| labels.path.clone())
}

#[test]
fn all_series_of_a_file_are_predicted_with_one_click() {
    let mut fixture = Fixture::with(|folder| vec![sample_plate(&folder.join("plate.zarr"))]);
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    fixture.click_enabled("Predict all 2 series");
    // Results of an OME-Zarr stack are OME-Zarr, unless another format is chosen.
    let results = ["plate_probability.zarr", "plate_s1_probability.zarr"];
    let results = results.map(|name| fixture.path("cytoscope").join(name).join("labels/objects"));
    fixture.until("the results", |w| results.iter().all(|r| r.is_dir()) && w.state().waiting_predictions() == 0);
    fixture.until("one notification for all", |w| sees(w, "2 stacks predicted"));
    // The open series shows its own labels.
    fixture.until("the labels", |w| shown_labels(w).is_some());
    assert_eq!(shown_labels(&fixture.window).as_ref(), results.first());
    assert_eq!(results.each_ref().map(|path| depth(path)), [Some(8), Some(10)]);
}

#[test]
fn a_refused_series_can_replace_files_be_written_elsewhere_or_be_left_out() {
    let mut fixture = Fixture::with(|folder| {
        choose_tiff(folder);
        vec![sample_plate(&folder.join("plate.zarr"))]
    });
    let [first, second] = plate_labels(&fixture.path("cytoscope"));
    draw_by_hand(&second);
    fixture.settle();
    fixture.window.state_mut().use_own_file_dialog();
    fixture.until("the models", |w| sees(w, "made for"));
    let question = "Replace existing files?";
    // One series is predicted, the other one is refused.
    fixture.click_enabled("Predict all 2 series");
    fixture.until("the question", |w| sees(w, question));
    assert!(fixture.sees("plate_s1_labels.tif") && !fixture.sees("Prediction failed"), "{}", fixture.on_screen());
    assert!(!fixture.sees("Same answer for"), "{}", fixture.on_screen());
    fixture.click("Replace");
    fixture.until("the second series", |w| depth(&second) == Some(10) && w.state().active_jobs() == 0);
    fixture.settle();
    assert_eq!(shown_labels(&fixture.window), Some(first.clone()), "the open series shows its own labels");
    // Both are refused: one is left out, the other one is written to another folder.
    let other = fixture.path("cytoscope/other");
    std::fs::create_dir(&other).unwrap();
    [&first, &second].into_iter().for_each(|file| draw_by_hand(file));
    fixture.click_enabled("Predict all 2 series");
    fixture.until("the first question", |w| sees(w, question));
    assert!(fixture.sees("Same answer for 1 other series"), "{}", fixture.on_screen());
    fixture.click("Keep files");
    fixture.until("the second question", |w| sees(w, "plate_s1_labels.tif"));
    // The question is asked again if no folder is chosen.
    fixture.click("Other folder…");
    fixture.click("Cancel dialog");
    fixture.until("the question again", |w| sees(w, question));
    fixture.click("Other folder…");
    fixture.click("other");
    fixture.until("the other folder", |w| sees(w, "This folder contains no other folders"));
    fixture.click("Choose this folder");
    let [first_there, second_there] = plate_labels(&other);
    fixture.until("the second series there", |w| second_there.is_file() && w.state().active_jobs() == 0);
    assert!(!fixture.sees(question) && !first_there.exists(), "{}", fixture.on_screen());
    // One answer for all.
    fixture.click_enabled("Predict all 2 series");
    fixture.until("the question", |w| sees(w, question));
    fixture.click("Same answer for 1 other series");
    fixture.click("Keep files");
    assert!(!fixture.sees(question), "{}", fixture.on_screen());
    assert!([first, second].iter().all(|file| std::fs::read(file).unwrap() == b"drawn by hand"));
}

#[test]
fn a_prediction_of_one_series_and_one_of_all_are_both_continued() {
    let mut fixture = Fixture::with(|folder| {
        let plate = sample_plate(&folder.join("plate.zarr"));
        let queues = folder.join("settings/queues");
        std::fs::create_dir_all(&queues).unwrap();
        let entry = |number: u64, series: serde_json::Value| {
            let job = serde_json::json!({
                "inputs": [plate], "model": "nuclei", "out": folder.join("out"), "format": "tiff", "device": "cpu",
                "series": series
            });
            serde_json::json!({"asked": {"number": number, "job": job}}).to_string() + "\n"
        };
        let entries = [entry(1, serde_json::json!(0)), entry(2, serde_json::json!("all"))];
        std::fs::write(queues.join("earlier.jsonl"), entries.concat()).unwrap();
        vec![plate]
    });
    fixture.settle();
    fixture.until("the offer", |w| sees(w, "2 predictions were not finished."));
    fixture.click("Continue");
    let results = plate_labels(&fixture.path("out"));
    fixture.until("both predictions", |w| w.state().jobs().len() == 2 && w.state().active_jobs() == 0);
    assert!(results.iter().all(|labels| labels.is_file()), "{}", fixture.on_screen());
}

#[test]
#[cfg_attr(not(unix), ignore = "only Unix can stop a process")]
fn buttons_of_the_models_page_stay_in_place_while_a_job_runs() {
    let mut fixture = Fixture::new();
    fixture.window.run_steps(3);
    fixture.window.state_mut().send(Command::Models);
    fixture.click("Model nuclei-dog");
    let place = |w: &Harness<'static, Workbench>| ["Measure here", "ONNX…"].map(|name| w.get_by_label(name).rect());
    let before = place(&fixture.window);
    let has_moved = Cell::new(false);
    // A test may end between two frames, unless the engine is stopped.
    fixture.stop_engine();
    let is_button = |node: &Node<'_>| node.accesskit_node().role() == accesskit::Role::Button;
    fixture.window.query_all_by_label("Test").find(is_button).unwrap().click();
    let runs = |w: &Harness<'static, Workbench>| {
        let runs = w.query_by_label("Cancel").is_some();
        has_moved.set(has_moved.get() || runs && place(w) != before);
        runs
    };
    fixture.until("the test, which can be canceled", runs);
    fixture.window.run_steps(3);
    assert!(runs(&fixture.window), "{}", fixture.on_screen());
    fixture.resume_engine();
    fixture.until("the result of the test", |w| {
        runs(w);
        sees(w, "The test outputs are reproduced") && w.state().active_jobs() == 0
    });
    fixture.window.run_steps(3);
    let has_moved = has_moved.get() || place(&fixture.window) != before;
    assert!(!has_moved, "a click beside the pointer would hit another button");
}
