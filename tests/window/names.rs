//! Every control has a name for those who do not see it, and keys reach it.

use crate::desk::{Desk, sees};
use crate::hand;
use cytoscope_ui::command::Command;
use eframe::egui::Key;
use eframe::egui::accesskit::Role;
use egui_kittest::kittest::{NodeT, Queryable, by};

/// Controls on screen without a name, by role and place.
fn unnamed(desk: &Desk) -> Vec<String> {
    let controls = [
        Role::Button,
        Role::CheckBox,
        Role::ComboBox,
        Role::Link,
        Role::RadioButton,
        Role::Slider,
        Role::SpinButton,
        Role::TextInput,
    ];
    let all = desk.window.query_all(by());
    let found = all.filter(|n| controls.contains(&n.accesskit_node().role()));
    let bare = found.filter(|n| n.accesskit_node().label().is_none_or(|l| l.trim().is_empty()));
    bare.map(|n| format!("{:?} at {:?}", n.accesskit_node().role(), n.rect())).collect()
}

pub fn check(desk: &Desk, what: &str) {
    let bare = unnamed(desk);
    assert!(bare.is_empty(), "{what}: {bare:?}; on screen: {}", desk.on_screen());
}

#[test]
fn every_control_has_a_name() {
    let mut desk = Desk::new();
    desk.window.run_steps(3);
    check(&desk, "empty");
    desk.click("Open the sample");
    desk.settle();
    check(&desk, "the sample");
    desk.click("More");
    check(&desk, "more of a channel");
    desk.until("the models", |w| sees(w, "made for"));
    desk.click("Predict this stack");
    desk.until("objects", |w| sees(w, " objects in "));
    desk.settle();
    check(&desk, "predicted");
    desk.click("Objects");
    desk.window.run_steps(4);
    check(&desk, "objects");
    for plot in ["Histogram", "Scatter"] {
        desk.click(plot);
        desk.window.run_steps(4);
        check(&desk, plot);
    }
    desk.window.state_mut().send(Command::ToggleProfiler);
    desk.window.run_steps(6);
    check(&desk, "profiler");
    for view in ["Operators", "Memory"] {
        desk.click(view);
        desk.window.run_steps(4);
        check(&desk, view);
    }
    desk.window.state_mut().send(Command::ToggleProfiler);
    desk.window.state_mut().send(Command::ToggleRuler);
    desk.window.run_steps(4);
    check(&desk, "line profile");
    for (command, what) in [
        (Command::Screenshot, "Save picture"),
        (Command::Shortcuts, "Keyboard shortcuts"),
        (Command::About, "About"),
        (Command::Palette, "palette"),
    ] {
        desk.window.state_mut().send(command);
        desk.window.run_steps(4);
        check(&desk, what);
        desk.window.key_press(Key::Escape);
        desk.window.run_steps(4);
    }
    desk.click("Axes…");
    desk.window.run_steps(4);
    check(&desk, "axes");
}

#[test]
fn every_control_of_correcting_has_a_name() {
    let desk = hand::begun();
    check(&desk, "correcting");
}

#[test]
fn tab_reaches_the_main_button_and_enter_presses_it() {
    let mut desk = Desk::new();
    desk.window.run_steps(3);
    for _ in 0..40 {
        desk.window.key_press(Key::Tab);
        desk.window.run_steps(2);
        let focused = desk.window.query_all_by_label("Open the sample").any(|n| n.is_focused());
        if focused {
            desk.window.key_press(Key::Enter);
            desk.window.run_steps(2);
            desk.settle();
            return;
        }
    }
    panic!("the keys do not reach it");
}
