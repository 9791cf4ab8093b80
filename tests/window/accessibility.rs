//! Every control has a name for screen readers and can be reached with the keyboard.

use crate::fixture::{Fixture, bundled_sample, sees};
use crate::gestures;
use cytoscope_ui::command::Command;
use eframe::egui::accesskit::{Role, Toggled};
use eframe::egui::{self, Key};
use egui_kittest::kittest::{NodeT, Queryable, by};

/// Roles and positions of the controls on screen without a name.
fn unnamed(fixture: &Fixture) -> Vec<String> {
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
    let all = fixture.window.query_all(by());
    let found = all.filter(|n| controls.contains(&n.accesskit_node().role()));
    let bare = found.filter(|n| n.accesskit_node().label().is_none_or(|l| l.trim().is_empty()));
    bare.map(|n| format!("{:?} at {:?}", n.accesskit_node().role(), n.rect())).collect()
}

/// Asserts that all controls on screen have a name.
pub fn check(fixture: &Fixture, what: &str) {
    let bare = unnamed(fixture);
    assert!(bare.is_empty(), "{what}: {bare:?}; on screen: {}", fixture.on_screen());
}

#[test]
fn every_control_has_a_name() {
    let mut fixture = Fixture::with_small_sample();
    fixture.window.run_steps(3);
    check(&fixture, "empty");
    fixture.click("Open the sample");
    fixture.settle();
    check(&fixture, "the sample");
    fixture.click("More");
    check(&fixture, "more of a channel");
    fixture.until("the models", |w| sees(w, "made for"));
    fixture.click_enabled("Predict this stack");
    fixture.until("objects", |w| sees(w, " objects in "));
    fixture.settle();
    check(&fixture, "predicted");
    fixture.click("Objects");
    fixture.window.run_steps(4);
    check(&fixture, "objects");
    for plot in ["Histogram", "Scatter"] {
        fixture.click(plot);
        fixture.window.run_steps(4);
        check(&fixture, plot);
    }
    fixture.window.state_mut().send(Command::ToggleProfiler);
    fixture.window.run_steps(6);
    check(&fixture, "profiler");
    for view in ["Operators", "Memory"] {
        fixture.click(view);
        fixture.window.run_steps(4);
        check(&fixture, view);
    }
    fixture.window.state_mut().send(Command::ToggleProfiler);
    fixture.window.state_mut().send(Command::ToggleLineProfile);
    fixture.window.run_steps(4);
    check(&fixture, "line profile");
    for (command, what) in [
        (Command::Screenshot, "Save picture"),
        (Command::Shortcuts, "Keyboard shortcuts"),
        (Command::About, "About"),
        (Command::Palette, "palette"),
    ] {
        fixture.window.state_mut().send(command);
        fixture.window.run_steps(4);
        check(&fixture, what);
        fixture.window.key_press(Key::Escape);
        fixture.window.run_steps(4);
    }
    // The center of a link on two lines may lie beside it.
    fixture.window.get_by_label("Axes…").click_accesskit();
    fixture.until("the dialog", |w| sees(w, "Axes of the file"));
    check(&fixture, "axes");
}

#[test]
fn every_correction_control_has_a_name() {
    let fixture = gestures::correcting_sample();
    check(&fixture, "correcting");
}

#[test]
fn tab_reaches_the_main_button_and_enter_presses_it() {
    let mut fixture = Fixture::new();
    fixture.window.run_steps(3);
    for _ in 0..40 {
        fixture.window.key_press(Key::Tab);
        fixture.window.run_steps(2);
        let focused = fixture.window.query_all_by_label("Open the sample").any(|n| n.is_focused());
        if focused {
            fixture.window.key_press(Key::Enter);
            fixture.window.run_steps(2);
            fixture.settle();
            return;
        }
    }
    panic!("Tab does not reach the button");
}

/// The name of the focused control.
fn focused(fixture: &Fixture) -> Option<String> {
    let node = fixture.window.query_all(by()).find(|n| n.is_focused())?;
    node.accesskit_node().label()
}

#[test]
fn arrow_keys_move_through_the_items_of_a_menu_and_to_the_menus_beside_it() {
    let mut fixture = Fixture::new();
    fixture.click("Open the sample");
    fixture.settle();
    let press = |fixture: &mut Fixture, key: Key| {
        fixture.window.key_press(key);
        fixture.window.run_steps(3);
        focused(fixture)
    };
    fixture.click("View");
    for (key, item) in [
        (Key::ArrowDown, "Fit views"),
        (Key::ArrowUp, "Reset layout and settings…"),
        (Key::ArrowDown, "Fit views"),
        (Key::ArrowDown, "Automatic contrast"),
    ] {
        assert_eq!(press(&mut fixture, key).as_deref(), Some(item), "{key:?}");
    }
    // The title of the other menu gets the focus.
    assert_eq!(press(&mut fixture, Key::ArrowRight).as_deref(), Some("Predict"));
    let shows = |fixture: &Fixture| ["Reset layout and settings…", "Train a model…"].map(|item| fixture.sees(item));
    assert_eq!(shows(&fixture), [false, true], "{}", fixture.on_screen());
    assert_eq!(press(&mut fixture, Key::ArrowLeft).as_deref(), Some("View"));
    assert_eq!(shows(&fixture), [true, false], "{}", fixture.on_screen());
    let is_scale_bar = |name: &Option<String>| name.as_deref() == Some("Show scale bar");
    let found = (0..20).any(|_| is_scale_bar(&press(&mut fixture, Key::ArrowDown)));
    assert!(found, "{}", fixture.on_screen());
    press(&mut fixture, Key::Enter);
    assert!(!fixture.sees("Reset layout and settings…"), "the menu is closed: {}", fixture.on_screen());
    fixture.click("View");
    let scale_bar = fixture.window.get_by_label("Show scale bar").accesskit_node().toggled();
    assert_eq!(scale_bar, Some(Toggled::False));
    press(&mut fixture, Key::Escape);
    assert!(!fixture.sees("Reset layout and settings…"), "the menu is closed: {}", fixture.on_screen());
    fixture.click("View");
    press(&mut fixture, Key::F);
    assert!(
        !fixture.sees("Reset layout and settings…"),
        "a command by its key closes the menu: {}",
        fixture.on_screen()
    );
}

#[test]
fn a_disabled_button_says_why_it_is_disabled() {
    let mut fixture = gestures::correcting_sample();
    for (name, reason) in [("Undo", "There is no edit to undo."), ("Redo", "There is no edit to redo.")] {
        fixture.until_hover_shows(name, reason);
    }
}

#[test]
fn the_preview_of_preprocessing_steps_says_why_it_is_disabled() {
    let mut fixture = Fixture::new();
    fixture.click("Open the sample");
    fixture.settle();
    fixture.until_hover_shows("Preview", "Add a step first.");
}

#[test]
fn the_state_of_the_engine_says_what_it_is() {
    let mut fixture = Fixture::new();
    fixture.until("the engine", |w| sees(w, "engine ready"));
    fixture.until_hover_shows("engine ready", "The engine is the process that runs jobs");
}

#[test]
fn disabled_buttons_for_converting_and_scoring_say_why_they_are_disabled() {
    let mut fixture = Fixture::new();
    fixture.window.run_steps(3);
    fixture.window.state_mut().send(Command::Convert);
    fixture.until("the page", |w| sees(w, "Convert and evaluate"));
    for (name, reason) in
        [("Add open stacks", "No stack is open."), ("Convert", "Add files first."), ("Evaluate", "Choose predictions.")]
    {
        assert!(!fixture.sees(reason), "{}", fixture.on_screen());
        fixture.until_hover_shows(name, reason);
    }
}

#[test]
fn a_disabled_command_says_why_it_is_disabled() {
    let mut fixture = Fixture::new();
    fixture.window.run_steps(3);
    let hover = |fixture: &mut Fixture, name: &str, reason: &str| {
        fixture.until_hover_shows(name, reason);
    };
    for (menu, item, reason) in [
        ("File", "Close stack", "No stack is open."),
        ("View", "Fit views", "Open a stack first."),
        ("Edit", "Undo", "Start correcting labels first."),
    ] {
        fixture.click(menu);
        hover(&mut fixture, item, reason);
        fixture.window.key_press(Key::Escape);
        fixture.window.run_steps(4);
    }
    fixture.click("Open the sample");
    fixture.settle();
    // The buttons of the toolbar have no text, so their tooltips also have their names.
    let labels = |fixture: &Fixture| fixture.window.query_all_by_label("Show labels").count();
    let before = labels(&fixture);
    hover(&mut fixture, "Show labels", "Predict the stack or add labels first.");
    assert!(labels(&fixture) > before, "{}", fixture.on_screen());
}

#[test]
fn arrow_keys_move_the_contrast_limits_after_a_click_on_the_histogram() {
    let mut fixture = Fixture::new();
    fixture.click("Open the sample");
    fixture.settle();
    let name = |fixture: &Fixture| {
        let histogram = fixture.window.query_all_by_label_contains("Contrast of ").next().expect("the histogram");
        histogram.accesskit_node().label().expect("a name")
    };
    let low = |fixture: &Fixture| fixture.window.state().document().expect("the stack").channels[0].display.low;
    let histogram = name(&fixture);
    fixture.click(&histogram);
    let clicked = low(&fixture);
    fixture.window.key_press(Key::ArrowLeft);
    fixture.window.run_steps(4);
    assert!(low(&fixture) < clicked, "{clicked} {}", low(&fixture));
    let channel = &fixture.window.state().document().expect("the stack").channels[0].name;
    assert!(fixture.sees(&format!("Colors of {channel}")), "{}", fixture.on_screen());
}

#[test]
fn arrow_keys_move_the_contrast_limits_of_the_focused_histogram() {
    let mut fixture = Fixture::new();
    fixture.click("Open the sample");
    fixture.settle();
    let limits = |fixture: &Fixture| {
        let display = &fixture.window.state().document().expect("the stack").channels[0].display;
        (display.low, display.high)
    };
    let before = limits(&fixture);
    fixture.window.query_all_by_label_contains("Contrast of ").next().expect("the histogram").focus();
    fixture.window.run_steps(2);
    let press = |fixture: &mut Fixture, key: Key| {
        fixture.window.key_press(key);
        fixture.window.run_steps(4);
        limits(fixture)
    };
    let raised = press(&mut fixture, Key::ArrowRight);
    assert!(raised.0 > before.0 && raised.1 == before.1, "{before:?} {raised:?}");
    let lower = press(&mut fixture, Key::ArrowDown);
    assert!(lower.0 == raised.0 && lower.1 < raised.1, "{raised:?} {lower:?}");
    let widened = press(&mut fixture, Key::ArrowLeft);
    assert!(widened.0 < lower.0 && widened.1 == lower.1, "{lower:?} {widened:?}");
    let upper = press(&mut fixture, Key::ArrowUp);
    assert!(upper.0 == widened.0 && upper.1 > widened.1, "{widened:?} {upper:?}");
}

#[test]
fn the_last_item_of_a_menu_is_within_reach_in_a_low_window() {
    let mut fixture = Fixture::new();
    fixture.window.set_size(egui::vec2(640.0, 480.0));
    fixture.window.run_steps(4);
    fixture.click("View");
    fixture.window.key_press(Key::ArrowUp);
    fixture.window.run_steps(40);
    let item = "Reset layout and settings…";
    assert_eq!(focused(&fixture).as_deref(), Some(item));
    let rect = fixture.window.get_by_label(item).rect();
    assert!(rect.top() > 0.0 && rect.bottom() < 480.0, "{rect:?}");
}

#[test]
fn no_item_of_a_menu_takes_two_lines_in_a_low_window() {
    let mut fixture = Fixture::new();
    fixture.window.set_size(egui::vec2(640.0, 480.0));
    fixture.window.run_steps(4);
    fixture.click("File");
    fixture.window.run_steps(10);
    for item in ["Save picture…", "Compare with ground truth…"] {
        let heights: Vec<f32> = fixture.window.query_all_by_label(item).map(|node| node.rect().height()).collect();
        assert!(!heights.is_empty() && heights.iter().all(|height| *height < 30.0), "{item}: {heights:?}");
    }
}

#[test]
fn recent_files_are_within_reach_in_a_low_window() {
    let mut fixture = Fixture::with(|folder| {
        let files: Vec<_> = (0..5).map(|n| folder.join(format!("recent {n}.tif"))).collect();
        files.iter().for_each(|file| _ = std::fs::copy(bundled_sample(), file).expect("a copy"));
        files
    });
    fixture.until("the stacks", |w| w.state().documents().len() == 5);
    while fixture.window.state().document().is_some() {
        fixture.window.state_mut().send(Command::Close);
        fixture.window.run_steps(4);
    }
    fixture.window.set_size(egui::vec2(640.0, 480.0));
    fixture.window.run_steps(4);
    fixture.click("recent 0.tif");
    fixture.until("the stack", |w| w.state().document().is_some());
}
