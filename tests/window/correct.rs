//! Correcting from the window: what the pointer draws is in the file that is saved, and nothing drawn is lost.

use crate::desk::{Desk, sees, window};
use crate::hand::{SHAPE, at, begin, begun, corrected, read, save, slice, stroke};
use eframe::egui::{Key, Modifiers};
use std::path::Path;

#[test]
fn a_stroke_is_where_the_pointer_went_and_is_undone_and_redone() {
    let mut desk = begun();
    let z = slice(&desk);
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
    let z = slice(&desk);
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
    let z = slice(&desk);
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
    // Again, with more labels: another pair, the first one as it was.
    let kept: Vec<_> = written.iter().filter(|p| p.extension().is_some_and(|e| e == "tif")).collect();
    let bytes: Vec<_> = kept.iter().map(|p| std::fs::read(p).unwrap()).collect();
    stroke(&mut desk, (100.0, 40.0), (100.0, 90.0));
    desk.click("Use as training data");
    desk.until("the second pair", |w| sees(w, "Training pair nuclei_raw-2 added"));
    assert!(kept.iter().map(|p| std::fs::read(p).unwrap()).eq(bytes));
    let table = std::fs::read_to_string(home.join("dataset/dataset.csv")).unwrap();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(
        lines,
        ["raw,seg", "nuclei_raw_raw.tif,nuclei_raw_labels.tif", "nuclei_raw-2_raw.tif,nuclei_raw-2_labels.tif"]
    );
    assert_eq!(at(&read(&home.join("dataset/nuclei_raw-2_labels.tif")), [slice(&desk), 100, 60]), 1);
}

fn walk(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { all.extend(walk(&path)) } else { all.push(path) }
    }
    all
}
