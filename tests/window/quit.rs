//! Quitting with corrections that are not saved: told, saved or not, and never lost.

use crate::desk::{Desk, sees, window};
use crate::hand::{at, begin, begun, corrected, read, save, slice, stroke};
use cytoscope_ui::command::Command;
use eframe::egui::{Key, ViewportCommand, ViewportEvent, ViewportId};

const TITLE: &str = "Corrections are not saved as labels";

/// What the window told the system in the last frame.
fn told(desk: &Desk, command: &ViewportCommand) -> bool {
    desk.window.output().viewport_output.get(&ViewportId::ROOT).is_some_and(|v| v.commands.contains(command))
}

/// As the button of the window's frame does; whether the window would be gone then.
fn close(desk: &mut Desk) -> bool {
    desk.window.input_mut().viewports.entry(ViewportId::ROOT).or_default().events.push(ViewportEvent::Close);
    desk.window.step();
    !told(desk, &ViewportCommand::CancelClose)
}

/// Corrections of the sample, one stroke of which is not saved.
fn drawn() -> Desk {
    let mut desk = begun();
    stroke(&mut desk, (40.0, 40.0), (40.0, 90.0));
    desk
}

#[test]
fn a_window_without_corrections_or_with_saved_ones_closes_at_once() {
    let mut desk = begun();
    assert!(close(&mut desk), "nothing was drawn");
    let mut desk = drawn();
    save(&mut desk);
    assert!(close(&mut desk), "all is saved");
    assert!(!desk.sees(TITLE));
}

#[test]
fn enter_saves_and_quits() {
    let mut desk = drawn();
    let z = slice(&desk);
    assert!(!close(&mut desk), "it asks first");
    desk.until("the sheet", |w| sees(w, TITLE));
    assert!(desk.sees("nuclei_raw.tif") && desk.sees("come back in Correct"), "{}", desk.on_screen());
    desk.window.key_press(Key::Enter);
    desk.window.step();
    desk.until("the end", |w| {
        w.output().viewport_output.get(&ViewportId::ROOT).is_some_and(|v| v.commands.contains(&ViewportCommand::Close))
    });
    assert!(close(&mut desk));
    assert_eq!(at(&read(&corrected(&desk)), [z, 40, 60]), 1);
}

#[test]
fn what_is_not_saved_comes_back() {
    let mut desk = drawn();
    assert!(!close(&mut desk));
    desk.click("Quit without saving");
    // The click closes the window: the system is told, and asks.
    assert!(close(&mut desk), "it asks once");
    assert!(!corrected(&desk).exists());
    let home = desk.folder.path().to_owned();
    desk.window = window(&home, Vec::new());
    desk.window = window(&home, vec![home.join("sample/nuclei_raw.tif")]);
    desk.settle();
    begin(&mut desk);
    let z = slice(&desk);
    assert_eq!(at(&save(&mut desk), [z, 40, 60]), 1);
}

#[test]
fn keys_choose_and_escape_stays() {
    let mut desk = drawn();
    // With Ctrl and Q the window closes as with its button.
    desk.window.state_mut().send(Command::Quit);
    desk.window.step();
    assert!(told(&desk, &ViewportCommand::Close));
    assert!(!close(&mut desk));
    desk.until("the sheet", |w| sees(w, TITLE));
    // Letters do not reach the tools behind the sheet.
    desk.window.key_press(Key::E);
    desk.window.run_steps(3);
    assert_eq!(desk.window.state().corrections().tools.tool, cytoscope_ui::correct::tools::Tool::Paint);
    desk.window.key_press(Key::Escape);
    desk.window.run_steps(3);
    assert!(!desk.sees(TITLE), "{}", desk.on_screen());
    // Asked again, Tab goes from saving to quitting.
    assert!(!close(&mut desk));
    desk.until("the sheet", |w| sees(w, TITLE));
    desk.window.key_press(Key::Tab);
    desk.window.run_steps(2);
    desk.window.key_press(Key::Enter);
    desk.until("the end", |w| {
        w.output().viewport_output.get(&ViewportId::ROOT).is_some_and(|v| v.commands.contains(&ViewportCommand::Close))
    });
    assert!(close(&mut desk));
    assert!(!corrected(&desk).exists());
}

#[cfg(unix)]
#[test]
fn labels_that_cannot_be_saved_keep_the_window_open() {
    let mut desk = drawn();
    // A folder where the file is to be.
    std::fs::create_dir(corrected(&desk)).unwrap();
    std::fs::write(corrected(&desk).join("in the way"), "").unwrap();
    assert!(!close(&mut desk));
    desk.click("Save and quit");
    desk.until("the reason", |w| sees(w, "Saving failed"));
    assert!(!desk.sees(TITLE), "{}", desk.on_screen());
    assert!(!close(&mut desk), "they are not saved still");
}
