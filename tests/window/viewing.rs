//! Viewing: slices, keys, layers, commands, themes.

use crate::accessibility;
use crate::fixture::{Fixture, bundled_sample, sees, window};
use cytoscope_ui::command::Command;
use cytoscope_ui::document::{Document, Role};
use eframe::egui::accesskit::{self, Toggled};
use eframe::egui::{Event, Key, Modifiers};
use egui_kittest::kittest::{NodeT, Queryable, by};

#[test]
fn keys_move_through_the_stack_and_views_share_one_crosshair() {
    let mut fixture = Fixture::new();
    fixture.click("Open the sample");
    fixture.settle();
    let cursor = |fixture: &Fixture| fixture.window.state().document().unwrap().cursor;
    let [z, y, x] = cursor(&fixture);
    fixture.window.key_press(Key::PageUp);
    fixture.window.run_steps(2);
    assert_eq!(cursor(&fixture), [z + 1, y, x]);
    assert!(fixture.sees(&format!("XY view, slice {} of 32", z + 2)), "{}", fixture.on_screen());
    // A click in the XY view moves the crosshair in the others.
    let view = fixture.window.get_by_label_contains("XY view").rect();
    fixture.window.get_by_label_contains("XY view").click();
    fixture.settle();
    let [_, y, x] = cursor(&fixture);
    assert!(view.width() > 100.0 && y.abs_diff(80) <= 1 && x.abs_diff(80) <= 1, "the middle: {y} {x}");
    assert!(fixture.sees(&format!("XZ view, slice {} of 160", y + 1)), "{}", fixture.on_screen());
    assert!(fixture.sees(&format!("YZ view, slice {} of 160", x + 1)), "{}", fixture.on_screen());
    // The view has the focus now: arrow keys move inside the slice.
    fixture.window.key_press(Key::ArrowRight);
    fixture.window.key_press_modifiers(Modifiers::SHIFT, Key::ArrowDown);
    fixture.window.run_steps(3);
    assert_eq!(cursor(&fixture), [z + 1, y + 10, x + 1]);
}

#[test]
fn palette_runs_commands() {
    let mut fixture = Fixture::new();
    fixture.window.run_steps(3);
    fixture.window.key_press_modifiers(Modifiers::COMMAND, Key::P);
    fixture.window.run_steps(3);
    fixture.window.get_by_label("Command").type_text("sample");
    fixture.window.run_steps(3);
    fixture.window.key_press(Key::Enter);
    fixture.settle();
    assert!(fixture.window.query_by_label("Command").is_none(), "it has closed");
    for (letters, title) in [("shortcuts", "Keyboard shortcuts"), ("about", "Cytoscope")] {
        fixture.window.key_press_modifiers(Modifiers::COMMAND, Key::P);
        fixture.window.run_steps(3);
        fixture.window.get_by_label("Command").type_text(letters);
        fixture.window.run_steps(3);
        fixture.window.key_press(Key::Enter);
        fixture.until(title, |w| sees(w, title));
        fixture.window.run_steps(3);
        let is_inside = fixture.window.query_all_by_label("Close").all(|button| button.rect().bottom() < 860.0);
        assert!(is_inside, "the dialog fits into the window");
        fixture.click("Close");
    }
}

#[test]
fn the_palette_says_why_a_command_is_disabled() {
    let mut fixture = Fixture::new();
    fixture.window.run_steps(3);
    fixture.window.key_press_modifiers(Modifiers::COMMAND, Key::P);
    fixture.window.run_steps(3);
    fixture.window.get_by_label("Command").type_text("save table for");
    fixture.until("the reason", |w| sees(w, "Save table for AnnData: Open a stack first."));
    fixture.window.get_by_label("Command").type_text("xyz");
    fixture.until("no command", |w| sees(w, "No matching command"));
}

#[test]
fn the_palette_runs_no_other_command_than_a_disabled_one_that_is_named() {
    let mut fixture = Fixture::new();
    fixture.click("Open the sample");
    fixture.settle();
    fixture.window.key_press_modifiers(Modifiers::COMMAND, Key::P);
    fixture.window.run_steps(3);
    // The letters also occur in "Compare with ground truth…", in this order.
    fixture.window.get_by_label("Command").type_text("paint");
    fixture.until("the reason", |w| sees(w, "Paint: "));
    fixture.window.key_press(Key::Enter);
    fixture.window.run_steps(3);
    assert!(fixture.window.query_by_label("Command").is_some(), "nothing was run");
}

#[test]
fn rows_of_the_task_panel_end_at_its_margin_in_every_tab() {
    let mut fixture = Fixture::new();
    fixture.click("Open the sample");
    fixture.settle();
    let right = |fixture: &Fixture, name: &str| fixture.window.get_by_label(name).rect().right().round() as i32;
    let mut edges = vec![right(&fixture, "Predict this stack")];
    fixture.click("Correct");
    fixture.window.run_steps(4);
    edges.push(right(&fixture, "Label this stack"));
    fixture.click("Train");
    fixture.window.run_steps(4);
    edges.push(right(&fixture, "Step 1: Task"));
    // Ten points from the edge of the window.
    assert_eq!(edges, [1350; 3]);
}

#[test]
fn the_labels_of_the_toolbar_are_as_high_as_its_numbers_and_buttons() {
    let mut fixture = Fixture::new();
    fixture.click("Open the sample");
    fixture.settle();
    let middles = ["Z", "Slice number", "Fit views"].map(|name| fixture.window.get_by_label(name).rect().center().y);
    assert!(middles.iter().all(|middle| (middle - middles[0]).abs() < 0.8), "{middles:?}");
}

#[test]
fn labels_beside_icon_buttons_are_in_the_middle_of_their_row() {
    let mut fixture = Fixture::new();
    fixture.click("Open the sample");
    fixture.settle();
    fixture.window.state_mut().send(Command::ToggleLineProfile);
    fixture.window.run_steps(4);
    for (label, button) in [("Stacks", "Close stack"), ("Line profile", "Close line profile")] {
        // A button of the toolbar has the name of the line profile, too.
        let labels = fixture.window.query_all_by_label(label);
        let middles: Vec<f32> = labels
            .filter(|node| node.accesskit_node().role() == accesskit::Role::Label)
            .map(|node| node.rect().center().y)
            .collect();
        let middle = fixture.window.get_by_label(button).rect().center().y;
        assert!(middles.iter().any(|label| (label - middle).abs() < 0.8), "{label}: {middles:?} {middle}");
    }
}

#[test]
fn the_slider_of_the_divider_says_what_it_does() {
    let mut fixture = Fixture::new();
    fixture.click("Open the sample");
    fixture.settle();
    // Before there is anything to hide.
    assert!(fixture.window.query_by_label("Swipe").is_none());
    fixture.window.state_mut().compare_with(&bundled_sample().with_file_name("nuclei_labels.tif"));
    let has_truth = |d: &Document| d.overlay_with_role(Role::Truth).is_some();
    fixture.until("the ground truth", |w| w.state().document().is_some_and(has_truth));
    fixture.window.state_mut().send(Command::ToggleSwipe);
    fixture.until("the slider", |w| w.query_by_label("Swipe").is_some());
    fixture.until_hover_shows("Swipe", "Moves the divider");
}

#[test]
fn keys_that_are_pressed_on_a_page_do_not_change_the_views_behind_it() {
    let mut fixture = Fixture::new();
    fixture.click("Open the sample");
    fixture.settle();
    let has_crosshair = |fixture: &Fixture| fixture.window.state().settings().show_crosshair;
    assert!(has_crosshair(&fixture));
    fixture.window.state_mut().send(Command::Train);
    fixture.until("the page", |w| sees(w, "Choose a task"));
    fixture.window.run_steps(4);
    // The crosshair, and the brush.
    for key in [Key::X, Key::D] {
        fixture.window.key_press(key);
        fixture.window.run_steps(3);
    }
    assert!(has_crosshair(&fixture));
    assert!(!fixture.sees("is not available"), "{}", fixture.on_screen());
    fixture.window.key_press_modifiers(Modifiers::COMMAND, Key::Num4);
    fixture.until("the reason", |w| sees(w, "Show 3-D view is not available") && sees(w, "Close the page first"));
    fixture.window.state_mut().send(Command::Close);
    fixture.until("the views", |w| sees(w, "XY view"));
    fixture.window.run_steps(4);
    fixture.window.key_press(Key::X);
    fixture.until("no crosshair", |w| !w.state().settings().show_crosshair);
}

#[test]
fn letters_that_are_typed_before_the_field_of_a_dialog_is_drawn_are_not_lost() {
    let mut fixture = Fixture::new();
    fixture.window.state_mut().use_own_file_dialog();
    fixture.window.run_steps(3);
    for (key, field) in [(Key::P, "Command"), (Key::O, "File name")] {
        let modifiers = Modifiers::COMMAND;
        let shortcut = Event::Key { key, physical_key: None, pressed: true, repeat: false, modifiers };
        // The first letters are in the frame of the shortcut, the next ones in the first frame of the dialog.
        fixture.window.input_mut().events.extend([shortcut, Event::Text("one ".to_owned())]);
        for letters in ["two ", "three ", "four"] {
            fixture.window.step();
            fixture.window.input_mut().events.push(Event::Text(letters.to_owned()));
        }
        fixture.window.run_steps(4);
        let typed = fixture.window.get_by_label(field).accesskit_node().value();
        assert_eq!(typed.as_deref(), Some("one two three four"), "{field}");
        fixture.window.key_press(Key::Escape);
        fixture.until("no dialog", |w| w.query_by_label(field).is_none());
    }
}

#[test]
fn dialogs_fit_into_the_smallest_window() {
    let mut fixture = Fixture::new();
    fixture.window.state_mut().use_own_file_dialog();
    fixture.window.set_size([640.0, 480.0].into());
    fixture.window.run_steps(3);
    let is_inside = |fixture: &Fixture, button: &str| {
        let rect = fixture.window.get_by_label(button).rect();
        rect.left() > 0.0 && rect.right() < 640.0 && rect.top() > 0.0 && rect.bottom() < 480.0
    };
    fixture.window.state_mut().send(Command::Open);
    fixture.until("the dialog", |w| sees(w, "Open stacks or models"));
    fixture.window.run_steps(10);
    assert!(is_inside(&fixture, "Cancel dialog"));
    fixture.click("Cancel dialog");
    fixture.window.state_mut().send(Command::Shortcuts);
    fixture.until("the shortcuts", |w| sees(w, "Keyboard shortcuts"));
    fixture.window.run_steps(10);
    assert!(fixture.sees("the wheel changes the slice") && fixture.sees("+wheel changes the brush"));
    assert!(is_inside(&fixture, "Close"));
    let labels = fixture.window.query_all(by()).filter(|node| node.accesskit_node().role() == accesskit::Role::Label);
    let widest = labels.map(|node| node.rect().right()).fold(0.0, f32::max);
    assert!(widest < 640.0, "{widest}");
}

#[test]
fn a_scroll_bar_does_not_narrow_the_stacks_and_channels() {
    let mut fixture = Fixture::with_small_sample();
    fixture.click("Open the sample");
    fixture.settle();
    let right_edges = [860.0, 400.0].map(|height| {
        fixture.window.set_size([1360.0, height].into());
        fixture.window.run_steps(30);
        fixture.window.get_by_label("Close stack").rect().right().round() as i32
    });
    assert_eq!(right_edges[0], right_edges[1]);
}

#[test]
fn settings_persist_across_windows() {
    let mut fixture = Fixture::new();
    fixture.click("Open the sample");
    fixture.settle();
    let dark = |fixture: &Fixture| fixture.window.ctx.theme() == eframe::egui::Theme::Dark;
    // The order is system, light, dark.
    for _ in 0..2 {
        fixture.window.state_mut().send(Command::NextTheme);
        fixture.window.run_steps(2);
    }
    assert!(dark(&fixture));
    fixture.window.state_mut().send(Command::NextTheme);
    fixture.window.state_mut().send(Command::NextTheme);
    fixture.window.run_steps(3);
    assert!(!dark(&fixture));
    fixture.click("Show profiler");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    fixture.window.run_steps(3);
    fixture.until("the saved settings", |w| w.state().is_settled());
    let home = fixture.folder.path().to_owned();
    fixture.window = window(&home, Vec::new());
    fixture.window.run_steps(3);
    assert_eq!(fixture.window.state().settings().theme, cytoscope_ui::theme::ThemeChoice::Light);
    assert!(fixture.sees("Time and memory of each job"), "{}", fixture.on_screen());
    // The recent file is listed.
    fixture.click("nuclei_raw.tif");
    fixture.settle();
}

#[test]
fn comparison_colors_load_with_the_layers_panel_hidden() {
    let mut fixture = Fixture::new();
    fixture.click("Open the sample");
    fixture.settle();
    fixture.window.key_press_modifiers(Modifiers::COMMAND, Key::Num1);
    fixture.window.run_steps(3);
    assert!(!fixture.sees("Layers"), "{}", fixture.on_screen());
    let truth = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("sample_data/nuclei_labels.tif");
    for role in [Role::Truth, Role::Labels] {
        let overlay = Document::overlay(&truth, role, ([32, 160, 160], 1), None).unwrap();
        fixture.window.state_mut().document_mut().unwrap().put(overlay);
    }
    fixture.until("colors", |w| {
        let document = w.state().document();
        [Role::Truth, Role::Labels]
            .into_iter()
            .all(|r| document.and_then(|d| d.overlay_with_role(r)).is_some_and(|o| o.labels.colors.is_some()))
    });
}

#[test]
fn swipe_uploads_each_slice_with_and_without_labels() {
    let mut fixture = Fixture::new();
    fixture.click("Open the sample");
    fixture.settle();
    let truth = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("sample_data/nuclei_labels.tif");
    fixture.window.state_mut().compare_with(&truth);
    fixture.until("the truth", |w| w.state().document().is_some_and(|d| d.overlay_with_role(Role::Truth).is_some()));
    fixture.window.key_press(Key::S);
    fixture.window.step();
    fixture.settle();
    // Textures are uploaded when a slice changes, with and without labels, and not otherwise.
    let fonts = eframe::egui::TextureId::default();
    let sent =
        |fixture: &Fixture| fixture.window.output().textures_delta.set.iter().filter(|(id, _)| *id != fonts).count();
    fixture.window.run_steps(5);
    assert_eq!(sent(&fixture), 0);
    fixture.window.key_press(Key::PageUp);
    let mut total = 0;
    // For as long as the slices take to load, and then for some more frames.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let mut further = 100;
    while further > 0 {
        fixture.window.step();
        total += sent(&fixture);
        further -= usize::from(total >= 2 || std::time::Instant::now() > end);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(total, 2, "the slice, and the slice without labels");
}

#[test]
fn in_a_small_window_the_views_keep_half_of_the_width() {
    let mut fixture = Fixture::new();
    fixture.click("Open the sample");
    fixture.settle();
    let sees_channels = |fixture: &Fixture| fixture.sees("Contrast of ");
    assert!(sees_channels(&fixture), "{}", fixture.on_screen());
    fixture.window.set_size([640.0, 480.0].into());
    fixture.window.run_steps(6);
    let view = |fixture: &Fixture, name: &str| fixture.window.get_by_label_contains(name).rect();
    let views = |fixture: &Fixture| ["XY view", "YZ view", "XZ view"].map(|name| view(fixture, name));
    let [xy, zy, xz] = views(&fixture);
    assert!(zy.right() - xy.left() > 0.45 * 640.0, "{xy:?} {zy:?}");
    assert!(xz.bottom() - xy.top() > 0.5 * 480.0, "{xy:?} {xz:?}");
    fixture.window.state_mut().send(Command::ToggleLineProfile);
    fixture.window.run_steps(6);
    let [xy, _, xz] = views(&fixture);
    assert!(xz.bottom() - xy.top() > 0.4 * 480.0, "{xy:?} {xz:?}");
    fixture.window.state_mut().send(Command::ToggleLineProfile);
    fixture.window.run_steps(6);
    assert!(!sees_channels(&fixture), "{}", fixture.on_screen());
    // The channels are in the panel of the tasks.
    fixture.click("Stacks and channels");
    assert!(sees_channels(&fixture), "{}", fixture.on_screen());
    accessibility::check(&fixture, "a small window");
    fixture.window.set_size([1360.0, 860.0].into());
    fixture.window.run_steps(6);
    assert!(sees_channels(&fixture) && !fixture.sees("Stacks and channels"), "{}", fixture.on_screen());
}

#[test]
fn the_value_under_the_pointer_is_short_in_float_stacks() {
    let mut fixture = Fixture::with(|folder| {
        // 0.1 is 0.10000000149011612 in 32 bits.
        let values = vec![0.1f32; 5 * 20 * 30];
        let array = cytoscope_volume::Array::new("ZYX".parse().unwrap(), vec![5, 20, 30], values).unwrap();
        let path = folder.join("float.tif");
        let spec = cytoscope_formats::WriteSpec::of(&array, cytoscope_formats::Container::ImageJ);
        cytoscope_formats::write_array(&path, &array, &spec).unwrap();
        vec![path]
    });
    fixture.settle();
    let middle = fixture.window.get_by_label_contains("XY view").rect().center();
    fixture.window.hover_at(middle);
    fixture.until("the value", |w| sees(w, "value 0.1"));
    assert!(!fixture.sees("value 0.10"), "{}", fixture.on_screen());
    // A page that replaces the views has no such value.
    fixture.window.state_mut().send(Command::Train);
    fixture.until("the page", |w| sees(w, "Choose a task"));
    assert!(!fixture.sees("value 0.1"), "{}", fixture.on_screen());
}

#[test]
fn keys_step_through_time_points_and_slices_play() {
    let mut fixture = Fixture::with(|folder| {
        // The value of a voxel is 100 t + z.
        let values: Vec<u8> = (0..3 * 5 * 20 * 30).map(|i| (100 * (i / 3000) + i / 600 % 5) as u8).collect();
        let array = cytoscope_volume::Array::new("TZYX".parse().unwrap(), vec![3, 5, 20, 30], values).unwrap();
        let path = folder.join("series.tif");
        let spec = cytoscope_formats::WriteSpec::of(&array, cytoscope_formats::Container::ImageJ);
        cytoscope_formats::write_array(&path, &array, &spec).unwrap();
        vec![path]
    });
    fixture.settle();
    let at = |fixture: &Fixture| {
        let document = fixture.window.state().document().unwrap();
        (document.time, document.cursor[0])
    };
    assert_eq!(at(&fixture), (0, 2));
    // In a small window, the toolbar has two rows, and nothing is behind the tasks, which are 310 points wide.
    fixture.window.set_size([920.0, 560.0].into());
    fixture.window.run_steps(5);
    let rects = ["Slice", "Time point", "Time point number", "Play slices", "More tools"]
        .map(|name| fixture.window.get_by_label(name).rect());
    assert!(rects.iter().all(|rect| rect.right() < 610.0), "{rects:?}");
    let [first, second] = [rects[0].center().y, rects[4].center().y];
    let is_row = |y: f32| (y - first).abs() < 4.0 || (y - second).abs() < 4.0;
    assert!(rects.iter().all(|rect| is_row(rect.center().y)), "{rects:?}");
    assert!(fixture.window.get_by_label_contains("XY view").rect().top() < 120.0, "two rows below the menus");
    assert!(fixture.window.query_by_label("Save picture…").is_none());
    fixture.click("More tools");
    fixture.click("Save picture…");
    fixture.until("the dialog", |w| sees(w, "Save picture"));
    fixture.click("Cancel");
    fixture.window.set_size([1360.0, 860.0].into());
    fixture.window.run_steps(5);
    fixture.window.key_press(Key::CloseBracket);
    fixture.window.run_steps(2);
    fixture.settle();
    assert_eq!(at(&fixture), (1, 2));
    let middle = fixture.window.get_by_label_contains("XY view").rect().center();
    fixture.window.hover_at(middle);
    fixture.until("the value of the second time point", |w| sees(w, "value 102"));
    assert!(fixture.sees("z 3 ") && fixture.sees("slice 3 of 5"), "one number for a slice: {}", fixture.on_screen());
    for _ in 0..4 {
        fixture.window.key_press(Key::CloseBracket);
        fixture.window.run_steps(2);
    }
    assert_eq!(at(&fixture), (2, 2), "there are three");
    fixture.window.key_press(Key::OpenBracket);
    fixture.window.run_steps(2);
    assert_eq!(at(&fixture), (1, 2));
    // Playing loops through all slices.
    fixture.window.key_press(Key::Space);
    let mut seen = std::collections::BTreeSet::new();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while seen.len() < 5 {
        assert!(std::time::Instant::now() < end, "only {seen:?} were played");
        fixture.window.step();
        seen.insert(at(&fixture).1);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    fixture.window.key_press(Key::Space);
    fixture.window.run_steps(2);
    let stopped = at(&fixture);
    std::thread::sleep(std::time::Duration::from_millis(250));
    fixture.window.run_steps(5);
    assert_eq!(at(&fixture), stopped);
}

#[test]
fn the_menu_marks_what_is_shown() {
    let mut fixture = Fixture::new();
    fixture.click("Open the sample");
    fixture.settle();
    let mark = |fixture: &mut Fixture| {
        fixture.click("View");
        let node = fixture.window.get_by_label("Show scale bar");
        node.accesskit_node().toggled()
    };
    assert_eq!(mark(&mut fixture), Some(Toggled::True));
    fixture.click("Show scale bar");
    assert_eq!(mark(&mut fixture), Some(Toggled::False));
}
