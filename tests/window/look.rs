//! Looking: slices, keys, layers, commands, themes.

use crate::desk::{Desk, sees, window};
use cytoscope_ui::document::{Document, Role};
use eframe::egui::{Key, Modifiers};
use egui_kittest::kittest::Queryable;

#[test]
fn keys_move_through_the_stack_and_views_share_one_cursor() {
    let mut desk = Desk::new();
    desk.click("Open the sample");
    desk.settle();
    let cursor = |desk: &Desk| desk.window.state().document().unwrap().cursor;
    let [z, y, x] = cursor(&desk);
    desk.window.key_press(Key::PageUp);
    desk.window.run_steps(2);
    assert_eq!(cursor(&desk), [z + 1, y, x]);
    assert!(desk.sees(&format!("XY view, slice {} of 32", z + 2)), "{}", desk.on_screen());
    // A click in the XY view moves the others.
    let view = desk.window.get_by_label_contains("XY view").rect();
    desk.window.get_by_label_contains("XY view").click();
    desk.settle();
    let [_, y, x] = cursor(&desk);
    assert!(view.width() > 100.0 && y.abs_diff(80) <= 1 && x.abs_diff(80) <= 1, "the middle: {y} {x}");
    assert!(desk.sees(&format!("XZ view, slice {} of 160", y + 1)), "{}", desk.on_screen());
    assert!(desk.sees(&format!("YZ view, slice {} of 160", x + 1)), "{}", desk.on_screen());
    // It has the focus now: arrows move inside the slice.
    desk.window.key_press(Key::ArrowRight);
    desk.window.key_press_modifiers(Modifiers::SHIFT, Key::ArrowDown);
    desk.window.run_steps(3);
    assert_eq!(cursor(&desk), [z + 1, y + 10, x + 1]);
}

#[test]
fn everything_can_be_done_from_the_palette() {
    let mut desk = Desk::new();
    desk.window.run_steps(3);
    desk.window.key_press_modifiers(Modifiers::COMMAND, Key::P);
    desk.window.run_steps(3);
    desk.window.get_by_label("Command").type_text("sample");
    desk.window.run_steps(3);
    desk.window.key_press(Key::Enter);
    desk.settle();
    assert!(desk.window.query_by_label("Command").is_none(), "it has closed");
    for (letters, title) in [("shortcuts", "Keyboard shortcuts"), ("about", "Cytoscope")] {
        desk.window.key_press_modifiers(Modifiers::COMMAND, Key::P);
        desk.window.run_steps(3);
        desk.window.get_by_label("Command").type_text(letters);
        desk.window.run_steps(3);
        desk.window.key_press(Key::Enter);
        desk.until(title, |w| sees(w, title));
        desk.click("Close");
    }
}

#[test]
fn choices_are_there_at_the_next_start() {
    let mut desk = Desk::new();
    desk.click("Open the sample");
    desk.settle();
    let dark = |desk: &Desk| desk.window.ctx.theme() == eframe::egui::Theme::Dark;
    // System, light, dark.
    for _ in 0..2 {
        desk.window.state_mut().send(cytoscope_ui::command::Command::NextTheme);
        desk.window.run_steps(2);
    }
    assert!(dark(&desk));
    desk.window.state_mut().send(cytoscope_ui::command::Command::NextTheme);
    desk.window.state_mut().send(cytoscope_ui::command::Command::NextTheme);
    desk.window.run_steps(3);
    assert!(!dark(&desk));
    desk.click("Show profiler");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    desk.window.run_steps(3);
    let home = desk.folder.path().to_owned();
    desk.window = window(&home, Vec::new());
    desk.window.run_steps(3);
    assert_eq!(desk.window.state().settings().theme, cytoscope_ui::theme::ThemeChoice::Light);
    assert!(desk.sees("Where every second and megabyte goes"), "{}", desk.on_screen());
    // The file opened before is offered.
    desk.click("nuclei_raw.tif");
    desk.settle();
}

#[test]
fn colours_of_a_comparison_come_without_the_list_of_stacks() {
    let mut desk = Desk::new();
    desk.click("Open the sample");
    desk.settle();
    desk.window.key_press_modifiers(Modifiers::COMMAND, Key::Num1);
    desk.window.run_steps(3);
    assert!(!desk.sees("Layers"), "{}", desk.on_screen());
    let truth = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("sample_data/nuclei_labels.tif");
    for role in [Role::Truth, Role::Labels] {
        let overlay = Document::overlay(&truth, role, [32, 160, 160], None).unwrap();
        desk.window.state_mut().document_mut().unwrap().put(overlay);
    }
    desk.until("colours", |w| {
        let document = w.state().document();
        [Role::Truth, Role::Labels]
            .into_iter()
            .all(|r| document.and_then(|d| d.of_role(r)).is_some_and(|o| o.labels.colors.is_some()))
    });
}

#[test]
fn swiping_shows_the_newest_picture_without_labels() {
    let mut desk = Desk::new();
    desk.click("Open the sample");
    desk.settle();
    let truth = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("sample_data/nuclei_labels.tif");
    desk.window.state_mut().compare_with(&truth);
    desk.until("the truth", |w| w.state().document().is_some_and(|d| d.of_role(Role::Truth).is_some()));
    desk.window.key_press(Key::S);
    desk.window.step();
    desk.settle();
    // Pictures go to the graphics card when a slice is new, with and without labels, and not while nothing changes.
    let fonts = eframe::egui::TextureId::default();
    let sent = |desk: &Desk| desk.window.output().textures_delta.set.iter().filter(|(id, _)| *id != fonts).count();
    desk.window.run_steps(5);
    assert_eq!(sent(&desk), 0);
    desk.window.key_press(Key::PageUp);
    let mut most = 0;
    for _ in 0..200 {
        desk.window.step();
        most += sent(&desk);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(most, 2, "the slice, and the slice without labels");
}

#[test]
fn time_points_are_gone_through_and_slices_play() {
    let mut desk = Desk::with(|folder| {
        // Value = 100 t + z.
        let values: Vec<u8> = (0..3 * 5 * 20 * 30).map(|i| (100 * (i / 3000) + i / 600 % 5) as u8).collect();
        let array = cytoscope_volume::Array::new("TZYX".parse().unwrap(), vec![3, 5, 20, 30], values).unwrap();
        let path = folder.join("series.tif");
        let spec = cytoscope_formats::WriteSpec::of(&array, cytoscope_formats::Container::ImageJ);
        cytoscope_formats::write_array(&path, &array, &spec).unwrap();
        vec![path]
    });
    desk.settle();
    let at = |desk: &Desk| {
        let document = desk.window.state().document().unwrap();
        (document.time, document.cursor[0])
    };
    assert_eq!(at(&desk), (0, 2));
    desk.window.key_press(Key::CloseBracket);
    desk.window.run_steps(2);
    desk.settle();
    assert_eq!(at(&desk), (1, 2));
    let middle = desk.window.get_by_label_contains("XY view").rect().center();
    desk.window.hover_at(middle);
    desk.until("the value of the second time point", |w| sees(w, "value 102"));
    for _ in 0..4 {
        desk.window.key_press(Key::CloseBracket);
        desk.window.run_steps(2);
    }
    assert_eq!(at(&desk), (2, 2), "there are three");
    desk.window.key_press(Key::OpenBracket);
    desk.window.run_steps(2);
    assert_eq!(at(&desk), (1, 2));
    // Playing goes through all slices and begins again.
    desk.window.key_press(Key::Space);
    let mut seen = std::collections::BTreeSet::new();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while seen.len() < 5 {
        assert!(std::time::Instant::now() < end, "only {seen:?} were played");
        desk.window.step();
        seen.insert(at(&desk).1);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    desk.window.key_press(Key::Space);
    desk.window.run_steps(2);
    let stopped = at(&desk);
    std::thread::sleep(std::time::Duration::from_millis(250));
    desk.window.run_steps(5);
    assert_eq!(at(&desk), stopped);
}
