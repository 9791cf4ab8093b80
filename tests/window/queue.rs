//! Predictions that a window did not finish continue in the next one.

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
