//! Predictions that a window did not finish go on in the next.

use crate::desk::{Desk, sees, window};
use cytoscope_ui::command::Command;
use cytoscope_ui::work::JobState;
use std::path::PathBuf;

fn copies(desk: &Desk, n: usize) -> Vec<PathBuf> {
    let copy = |i| {
        let path = desk.path(&format!("stack {i}.tif"));
        std::fs::copy(desk.path("sample/nuclei_raw.tif"), &path).unwrap();
        path
    };
    (0..n).map(copy).collect()
}

/// The window goes, with its engine; another comes.
fn next_window(desk: &mut Desk) {
    let elsewhere = tempfile::tempdir().unwrap();
    desk.window = window(elsewhere.path(), Vec::new());
    desk.window = window(desk.folder.path(), Vec::new());
    desk.window.run_steps(3);
}

fn labels(stack: &std::path::Path) -> PathBuf {
    let stem = stack.file_stem().unwrap().to_string_lossy().into_owned();
    stack.parent().unwrap().join("cytoscope").join(format!("{stem}_labels.tif"))
}

#[test]
fn a_queue_goes_on_after_the_window_has_gone() {
    let mut desk = Desk::new();
    let stacks = copies(&desk, 3);
    desk.window.state_mut().open_paths(&stacks);
    desk.until("three stacks", |w| w.state().documents().len() == 3);
    desk.settle();
    desk.until("the models", |w| sees(w, "made for"));
    desk.click("Predict all 3 stacks");
    desk.until("the first result", |_| stacks.iter().any(|s| labels(s).is_file()));
    let done: Vec<bool> = stacks.iter().map(|s| labels(s).is_file()).collect();
    assert!(done.iter().any(|d| !d), "all were done before the window could go");
    next_window(&mut desk);
    assert!(desk.sees("not finished"), "{}", desk.on_screen());
    desk.click("Continue");
    desk.until("all results", |w| stacks.iter().all(|s| labels(s).is_file()) && w.state().waiting_predictions() == 0);
    assert!(!desk.sees("not finished"));
    desk.until("one notice of all", |w| sees(w, "stacks are predicted"));
    let states: Vec<JobState> = desk.window.state().jobs().iter().map(|j| j.state.clone()).collect();
    assert!(states.iter().all(|s| *s == JobState::Done), "{states:?}");
    // They are the same labels, whether made before or after.
    let first = std::fs::read(labels(&stacks[0])).unwrap();
    assert!(stacks.iter().all(|s| std::fs::read(labels(s)).unwrap() == first));
    // Nothing is offered again.
    desk.window.run_steps(3);
    next_window(&mut desk);
    assert!(!desk.sees("not finished"), "{}", desk.on_screen());
}

#[test]
fn what_was_not_finished_can_be_forgotten() {
    let mut desk = Desk::new();
    let stacks = copies(&desk, 2);
    desk.window.state_mut().open_paths(&stacks);
    desk.until("two stacks", |w| w.state().documents().len() == 2);
    desk.settle();
    desk.until("the models", |w| sees(w, "made for"));
    desk.window.state_mut().send(Command::PredictAll);
    desk.until("predictions", |w| w.state().waiting_predictions() == 2);
    next_window(&mut desk);
    desk.until("the offer", |w| sees(w, "2 predictions were not finished."));
    desk.click("Forget");
    assert!(!desk.sees("not finished"));
    next_window(&mut desk);
    assert!(!desk.sees("not finished"));
}
