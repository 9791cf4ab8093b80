//! Quitting with unsaved corrections: the window asks, and no correction is lost.

use crate::files::is_primary;
use crate::fixture::{Fixture, sees, window};
use crate::gestures::{
    begin_stroke, corrected, correcting_sample, current_slice, label_at, read_labels, save, start_correcting, stroke,
};
use cytoscope_ui::command::Command;
use eframe::egui::{Key, ViewportCommand, ViewportEvent, ViewportId};

const TITLE: &str = "Unsaved corrections";

/// Whether the window sent a command to the system in the last frame.
fn sent(fixture: &Fixture, command: &ViewportCommand) -> bool {
    fixture.window.output().viewport_output.get(&ViewportId::ROOT).is_some_and(|v| v.commands.contains(command))
}

/// Closes the window as its frame's button does; returns whether it would close.
pub fn close(fixture: &mut Fixture) -> bool {
    fixture.window.input_mut().viewports.entry(ViewportId::ROOT).or_default().events.push(ViewportEvent::Close);
    fixture.window.step();
    !sent(fixture, &ViewportCommand::CancelClose)
}

/// The sample with one unsaved stroke.
fn with_unsaved_stroke() -> Fixture {
    let mut fixture = correcting_sample();
    stroke(&mut fixture, (40.0, 40.0), (40.0, 90.0));
    fixture
}

#[test]
fn window_without_unsaved_corrections_closes_at_once() {
    let mut fixture = correcting_sample();
    assert!(close(&mut fixture), "nothing was drawn");
    let mut fixture = with_unsaved_stroke();
    save(&mut fixture);
    assert!(close(&mut fixture), "everything is saved");
    assert!(!fixture.sees(TITLE));
}

#[test]
fn enter_saves_and_quits() {
    let mut fixture = with_unsaved_stroke();
    let z = current_slice(&fixture);
    assert!(!close(&mut fixture), "the dialog opens first");
    fixture.until("the dialog", |w| sees(w, TITLE));
    assert!(fixture.sees("nuclei_raw.tif") && fixture.sees("restored in Correct"), "{}", fixture.on_screen());
    // The dialog fades in.
    fixture.window.run_steps(30);
    assert!(is_primary(&fixture, "Save and quit") && !is_primary(&fixture, "Quit without saving"));
    fixture.window.key_press(Key::Enter);
    fixture.window.step();
    fixture.until("the end", |w| {
        w.output().viewport_output.get(&ViewportId::ROOT).is_some_and(|v| v.commands.contains(&ViewportCommand::Close))
    });
    assert!(close(&mut fixture));
    assert_eq!(label_at(&read_labels(&corrected(&fixture)), [z, 40, 60]), 1);
}

#[test]
fn a_stroke_in_progress_is_asked_about_and_saved() {
    let mut fixture = correcting_sample();
    let z = current_slice(&fixture);
    begin_stroke(&mut fixture, (40.0, 40.0), (40.0, 90.0));
    fixture.until("the stroke", |w| {
        let state = w.state();
        state.document().and_then(|d| state.corrections().of(d.id)).is_some_and(|c| c.is_modified())
    });
    assert!(!close(&mut fixture), "the dialog opens first");
    fixture.until("the dialog", |w| sees(w, TITLE));
    fixture.window.key_press(Key::Enter);
    fixture.window.step();
    fixture.until("the end", |w| {
        w.output().viewport_output.get(&ViewportId::ROOT).is_some_and(|v| v.commands.contains(&ViewportCommand::Close))
    });
    assert_eq!(label_at(&read_labels(&corrected(&fixture)), [z, 40, 60]), 1);
}

#[test]
fn unsaved_corrections_are_restored_at_the_next_start() {
    let mut fixture = with_unsaved_stroke();
    assert!(!close(&mut fixture));
    fixture.click("Quit without saving");
    // The click requests closing; the system then asks the window.
    assert!(close(&mut fixture), "the window asks only once");
    assert!(!corrected(&fixture).exists());
    let home = fixture.folder.path().to_owned();
    fixture.window = window(&home, Vec::new());
    fixture.window = window(&home, vec![home.join("sample/nuclei_raw.tif")]);
    fixture.settle();
    start_correcting(&mut fixture);
    let z = current_slice(&fixture);
    assert_eq!(label_at(&save(&mut fixture), [z, 40, 60]), 1);
}

#[test]
fn quit_dialog_is_operated_by_keys_and_escape_cancels() {
    let mut fixture = with_unsaved_stroke();
    // Ctrl-Q closes the window like its button.
    fixture.window.state_mut().send(Command::Quit);
    fixture.window.step();
    assert!(sent(&fixture, &ViewportCommand::Close));
    assert!(!close(&mut fixture));
    fixture.until("the dialog", |w| sees(w, TITLE));
    // Letter keys do not reach the tools behind the dialog.
    fixture.window.key_press(Key::E);
    fixture.window.run_steps(3);
    assert_eq!(fixture.window.state().corrections().tools().tool, cytoscope_ui::correct::tools::Tool::Paint);
    fixture.window.key_press(Key::Escape);
    fixture.window.run_steps(3);
    assert!(!fixture.sees(TITLE), "{}", fixture.on_screen());
    // In the next prompt, Tab moves from saving to quitting without saving.
    assert!(!close(&mut fixture));
    fixture.until("the dialog", |w| sees(w, TITLE));
    fixture.window.key_press(Key::Tab);
    fixture.window.run_steps(2);
    fixture.window.key_press(Key::Enter);
    fixture.until("the end", |w| {
        w.output().viewport_output.get(&ViewportId::ROOT).is_some_and(|v| v.commands.contains(&ViewportCommand::Close))
    });
    assert!(close(&mut fixture));
    assert!(!corrected(&fixture).exists());
}

#[test]
fn unsaved_corrections_of_a_stack_with_another_voxel_size_are_asked_about_and_saved() {
    let mut fixture = with_unsaved_stroke();
    let z = current_slice(&fixture);
    fixture.click("Voxel size…");
    fixture.type_into("Voxel size Z", "2");
    fixture.click("Apply");
    fixture.until("the voxel size", |w| w.state().document().is_some_and(|d| d.given_voxel_um().is_some()));
    fixture.settle();
    assert!(!close(&mut fixture), "the dialog opens first");
    fixture.until("the dialog", |w| sees(w, TITLE));
    fixture.click("Save and quit");
    let labels = corrected(&fixture);
    fixture.until("the labels", |_| labels.is_file());
    fixture.until("the end", |w| w.state().corrections().is_settled() && !sees(w, "Saving…"));
    assert!(close(&mut fixture), "everything is saved");
    assert_eq!(label_at(&read_labels(&labels), [z, 40, 60]), 1);
}

#[cfg(unix)]
#[test]
fn failed_save_keeps_the_window_open() {
    let mut fixture = with_unsaved_stroke();
    // A folder blocks the file's path.
    std::fs::create_dir(corrected(&fixture)).unwrap();
    std::fs::write(corrected(&fixture).join("in the way"), "").unwrap();
    assert!(!close(&mut fixture));
    fixture.click("Save and quit");
    fixture.until("the reason", |w| sees(w, "Saving failed"));
    assert!(!fixture.sees(TITLE), "{}", fixture.on_screen());
    assert!(!close(&mut fixture), "still unsaved");
}

#[cfg(unix)]
#[test]
fn failed_save_is_reported_after_its_stack_was_closed() {
    let mut fixture = with_unsaved_stroke();
    std::fs::create_dir(corrected(&fixture)).unwrap();
    std::fs::write(corrected(&fixture).join("in the way"), "").unwrap();
    fixture.window.state_mut().send(Command::Correct(cytoscope_ui::correct::tools::EditAction::Save));
    fixture.window.state_mut().send(Command::Close);
    fixture.until("the empty window", |w| w.state().document().is_none());
    fixture.until("the reason", |w| sees(w, "Saving failed"));
    // The journal keeps the stroke.
    std::fs::remove_dir_all(corrected(&fixture)).unwrap();
    fixture.window.state_mut().send(Command::OpenSample);
    fixture.settle();
    start_correcting(&mut fixture);
    let z = current_slice(&fixture);
    assert_eq!(label_at(&save(&mut fixture), [z, 40, 60]), 1);
}

#[test]
#[cfg_attr(not(unix), ignore = "only Unix can stop a process")]
fn unfinished_jobs_that_no_window_continues_are_named_before_the_window_closes() {
    let mut fixture = Fixture::new();
    let stacks = [0, 1, 2].map(|i| {
        let path = fixture.path(&format!("stack {i}.tif"));
        std::fs::copy(fixture.path("sample/nuclei_raw.tif"), &path).unwrap();
        path
    });
    fixture.window.state_mut().open_paths(&stacks);
    fixture.until("three stacks", |w| w.state().documents().len() == 3);
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    // The conversions wait for the predictions, which the next window would continue.
    fixture.until_enabled("Predict all 3 stacks");
    fixture.stop_engine();
    fixture.click("Predict all 3 stacks");
    fixture.until("the predictions", |w| w.state().waiting_predictions() == 3);
    fixture.window.state_mut().send(Command::Convert);
    fixture.until("the page", |w| sees(w, "Convert and evaluate"));
    fixture.click("NumPy");
    fixture.click_enabled("Convert");
    assert!(!close(&mut fixture), "the dialog opens first");
    fixture.until("the dialog", |w| sees(w, "Unfinished jobs"));
    assert!(fixture.sees("stack 0.tif · convert") && !fixture.sees(TITLE), "{}", fixture.on_screen());
    fixture.window.key_press(Key::Escape);
    fixture.until("no dialog", |w| !sees(w, "Unfinished jobs"));
    fixture.resume_engine();
    fixture.until("the files", |w| sees(w, "3 files converted"));
    assert!(close(&mut fixture), "everything is done");
}
