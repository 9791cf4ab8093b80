//! Predictions that a window did not finish continue in the next one.

use crate::files::{plate, plate_of};
use crate::fixture::{Fixture, sees, window};
use cytoscope_ui::command::Command;
use cytoscope_ui::work::JobState;
use std::path::PathBuf;

fn copies(fixture: &Fixture, n: usize) -> Vec<PathBuf> {
    let copy = |i| {
        let path = fixture.path(&format!("stack {i}.tif"));
        std::fs::copy(fixture.path("sample/nuclei_raw.tif"), &path).unwrap();
        path
    };
    (0..n).map(copy).collect()
}

/// Replaces the window and its engine by new ones.
fn next_window(fixture: &mut Fixture) {
    let elsewhere = tempfile::tempdir().unwrap();
    fixture.window = window(elsewhere.path(), Vec::new());
    fixture.window = window(fixture.folder.path(), Vec::new());
    fixture.window.run_steps(3);
}

fn labels(stack: &std::path::Path) -> PathBuf {
    let stem = stack.file_stem().unwrap().to_string_lossy().into_owned();
    stack.parent().unwrap().join("cytoscope").join(format!("{stem}_labels.tif"))
}

#[test]
fn queue_continues_in_the_next_window() {
    let mut fixture = Fixture::new();
    let stacks = copies(&fixture, 3);
    fixture.window.state_mut().open_paths(&stacks);
    fixture.until("three stacks", |w| w.state().documents().len() == 3);
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    fixture.click("Predict all 3 stacks");
    fixture.until("the first result", |_| stacks.iter().any(|s| labels(s).is_file()));
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

#[test]
fn unfinished_predictions_can_be_discarded() {
    let mut fixture = Fixture::new();
    let stacks = copies(&fixture, 2);
    fixture.window.state_mut().open_paths(&stacks);
    fixture.until("two stacks", |w| w.state().documents().len() == 2);
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
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

#[test]
fn all_series_of_a_file_are_predicted_with_one_click() {
    let sample = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("sample_data/nuclei_raw.tif");
    let image = cytoscope_formats::open(&sample, &cytoscope_formats::OpenOptions::default()).unwrap();
    let values = image.read_all().unwrap().samples().to_f32();
    let voxel = |z: usize, at: usize| values[(z + 8) * 160 * 160 + at] as u16;
    let mut fixture = Fixture::with(|folder| vec![plate_of(&folder.join("plate.zarr"), [8, 10], [160, 160], voxel)]);
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    fixture.click("Predict all 2 series");
    let results = ["plate_labels.tif", "plate_s1_labels.tif"].map(|name| fixture.path("cytoscope").join(name));
    fixture.until("the results", |w| results.iter().all(|r| r.is_file()) && w.state().waiting_predictions() == 0);
    fixture.until("one notification for all", |w| sees(w, "2 stacks predicted"));
    // The open series shows its own labels.
    let labels = |w: &egui_kittest::Harness<'static, cytoscope_ui::Workbench>| {
        let document = w.state().document()?;
        document.of_role(cytoscope_ui::document::Role::Labels).map(|labels| labels.path.clone())
    };
    fixture.until("the labels", |w| labels(w).is_some());
    assert_eq!(labels(&fixture.window).as_ref(), results.first());
    let depths = results.iter().map(|path| {
        let labels = cytoscope_formats::open(path, &cytoscope_formats::OpenOptions::default()).unwrap();
        labels.meta().shape_full[1]
    });
    assert_eq!(depths.collect::<Vec<_>>(), [8, 10]);
}
