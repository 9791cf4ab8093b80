//! Correcting from the window: what the pointer draws is in the file that is saved, and nothing drawn is lost.

use crate::desk::{Desk, sees, window};
use cytoscope_ui::correct::Phase;
use eframe::egui::{Key, Modifiers, Pos2, Rect};
use egui_kittest::kittest::Queryable;
use std::path::Path;

const SHAPE: [usize; 3] = [32, 160, 160];

fn corrected(desk: &Desk) -> std::path::PathBuf {
    desk.path("sample/cytoscope/nuclei_raw_corrected_labels.tif")
}

/// The sample with corrections begun from nothing.
fn begun() -> Desk {
    let mut desk = Desk::new();
    desk.click("Open the sample");
    desk.settle();
    begin(&mut desk);
    desk
}

fn begin(desk: &mut Desk) {
    desk.click("Correct");
    desk.click("Start from nothing on this stack");
    desk.until("the tools", |w| {
        let state = w.state();
        state.document().and_then(|d| state.corrections().of(d.id)).is_some_and(|c| c.phase == Phase::Open)
    });
    desk.settle();
}

fn xy(desk: &Desk) -> Rect {
    desk.window.get_by_label_contains("XY view").rect()
}

/// Where a voxel (row, column) of the XY view is on screen; it is fitted, and its voxels are square.
fn place(view: Rect, row: f32, column: f32) -> Pos2 {
    let scale = (view.width() - 12.0).min(view.height() - 12.0) / 160.0;
    view.center() + eframe::egui::vec2((column + 0.5 - 80.0) * scale, (row + 0.5 - 80.0) * scale)
}

fn stroke(desk: &mut Desk, from: (f32, f32), to: (f32, f32)) {
    let view = xy(desk);
    let (from, to) = (place(view, from.0, from.1), place(view, to.0, to.1));
    desk.window.hover_at(from);
    desk.window.step();
    desk.window.drag_at(from);
    desk.window.step();
    desk.window.hover_at(to);
    desk.window.step();
    desk.window.drop_at(to);
    desk.window.step();
    desk.settle();
}

fn read(path: &Path) -> Vec<u32> {
    let image = cytoscope_formats::open(path, &cytoscope_formats::OpenOptions::default()).unwrap();
    image.read_all().unwrap().samples().to_f32().into_iter().map(|v| v as u32).collect()
}

fn at(labels: &[u32], [z, y, x]: [usize; 3]) -> u32 {
    labels[(z * SHAPE[1] + y) * SHAPE[2] + x]
}

fn save(desk: &mut Desk) -> Vec<u32> {
    desk.window.key_press_modifiers(Modifiers::COMMAND, Key::S);
    desk.window.step();
    desk.until("the file", |w| sees(w, "All saved"));
    desk.settle();
    read(&corrected(desk))
}

#[test]
fn a_stroke_is_where_the_pointer_went_and_is_undone_and_redone() {
    let mut desk = begun();
    let z = desk.window.state().document().unwrap().cursor[0];
    stroke(&mut desk, (40.0, 40.0), (40.0, 90.0));
    let labels = save(&mut desk);
    assert_eq!(labels.len(), SHAPE.iter().product::<usize>());
    assert!((42..=88).all(|x| at(&labels, [z, 40, x]) == 1), "along the line");
    assert_eq!((at(&labels, [z, 60, 60]), at(&labels, [z, 40, 110]), at(&labels, [z + 1, 40, 60])), (0, 0, 0));
    desk.window.key_press_modifiers(Modifiers::COMMAND, Key::Z);
    desk.window.step();
    desk.settle();
    assert!(save(&mut desk).iter().all(|l| *l == 0), "taken back");
    desk.window.key_press_modifiers(Modifiers::COMMAND, Key::Y);
    desk.window.step();
    desk.settle();
    assert!(save(&mut desk) == labels, "made again");
}

#[test]
fn two_labels_become_one_by_clicks() {
    let mut desk = begun();
    let z = desk.window.state().document().unwrap().cursor[0];
    stroke(&mut desk, (30.0, 40.0), (30.0, 90.0));
    desk.click("New label");
    stroke(&mut desk, (100.0, 40.0), (100.0, 90.0));
    let labels = save(&mut desk);
    assert_eq!((at(&labels, [z, 30, 60]), at(&labels, [z, 100, 60])), (1, 2));
    desk.click("Merge labels");
    stroke(&mut desk, (100.0, 60.0), (100.0, 60.0));
    stroke(&mut desk, (30.0, 60.0), (30.0, 60.0));
    desk.click("Apply merge or split");
    desk.settle();
    let labels = save(&mut desk);
    assert_eq!((at(&labels, [z, 30, 60]), at(&labels, [z, 100, 60])), (2, 2), "the first one's number stays");
}

#[test]
fn strokes_are_back_after_a_window_that_went_without_saving() {
    let mut desk = begun();
    let z = desk.window.state().document().unwrap().cursor[0];
    stroke(&mut desk, (40.0, 40.0), (40.0, 90.0));
    let home = desk.folder.path().to_owned();
    desk.window = window(&home, Vec::new());
    assert!(!corrected(&desk).exists());
    desk.window = window(&home, vec![home.join("sample/nuclei_raw.tif")]);
    desk.settle();
    begin(&mut desk);
    assert!(desk.sees("1 earlier correction is back"), "{}", desk.on_screen());
    assert_eq!(at(&save(&mut desk), [z, 40, 60]), 1);
}

#[test]
fn a_corrected_stack_becomes_a_training_pair() {
    let mut desk = Desk::new();
    let home = desk.folder.path().to_owned();
    std::fs::create_dir_all(home.join("settings")).unwrap();
    let settings = format!(r#"{{"dataset_folder": {:?}}}"#, home.join("dataset").display().to_string());
    std::fs::write(home.join("settings/settings.json"), settings).unwrap();
    desk.window = window(&home, vec![home.join("sample/nuclei_raw.tif")]);
    desk.settle();
    begin(&mut desk);
    stroke(&mut desk, (40.0, 40.0), (40.0, 90.0));
    let labels = save(&mut desk);
    desk.click("Use as training data");
    desk.until("the pair", |w| sees(w, "Training pair nuclei_raw added"));
    let written: Vec<_> = walk(&home.join("dataset"));
    let same = |p: &std::path::PathBuf, v: &[u32]| p.extension().is_some_and(|e| e == "tif") && read(p) == v;
    assert!(written.iter().any(|p| same(p, &labels)), "labels among {written:?}");
    let raw = read(&home.join("sample/nuclei_raw.tif"));
    assert!(written.iter().any(|p| same(p, &raw)), "raw values among {written:?}");
}

fn walk(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { all.extend(walk(&path)) } else { all.push(path) }
    }
    all
}
