//! Models in the window: opening a file, testing, adding, removing; converting files; the window's own file dialog.

use crate::accessibility;
use crate::fixture::{Fixture, sees};
use cytoscope_builders::{UNet3d, Weights, unet3d};
use cytoscope_ui::command::Command;
use eframe::egui::{DroppedFile, Key};
use egui_kittest::kittest::Queryable;
use std::path::{Path, PathBuf};

/// Writes a small network.
fn network(path: &Path) {
    let config = UNet3d { filters: vec![4, 8], strides: vec![[2; 3]], convs_per_block: 1, ..UNet3d::default() };
    cytoscope_onnx::save(&unet3d(&config, &Weights::Random { seed: 3 }).unwrap(), path).unwrap();
}

fn drop_file(fixture: &mut Fixture, path: PathBuf) {
    let file = DroppedFile { path: Some(path), ..DroppedFile::default() };
    fixture.window.input_mut().dropped_files.push(file);
}

#[test]
fn a_dropped_model_is_tested_added_and_removed() {
    let mut fixture = Fixture::new();
    let file = fixture.path("net.onnx");
    network(&file);
    drop_file(&mut fixture, file.clone());
    fixture.until("the page", |w| sees(w, "Add to my models"));
    fixture.until("the test", |w| sees(w, "The package has no test tensors; the network runs"));
    assert!(fixture.sees("matches the reference"), "{}", fixture.on_screen());
    accessibility::check(&fixture, "a model file");
    fixture.click("Add to my models");
    fixture.until("the model", |w| sees(w, "net was added to your models"));
    let added = fixture.path("settings/models/net");
    assert!(added.join("rdf.yaml").is_file() && file.is_file());
    fixture.until("the list", |w| sees(w, "Measure here"));
    accessibility::check(&fixture, "an installed model");
    fixture.click("Measure here");
    fixture.until("the speed", |w| sees(w, "Speed on this machine") && sees(w, "million"));
    fixture.click("Remove from my models…");
    fixture.click("Keep model");
    assert!(added.is_dir());
    fixture.click("Remove from my models…");
    fixture.click("Remove model");
    fixture.until("the removal", |w| sees(w, "net was removed"));
    assert!(!added.exists() && file.is_file());
}

#[test]
fn a_model_that_cannot_be_read_says_why() {
    let mut fixture = Fixture::new();
    let file = fixture.path("broken.onnx");
    std::fs::write(&file, "no network").unwrap();
    drop_file(&mut fixture, file);
    fixture.until("the reason", |w| sees(w, "broken · test failed"));
    assert!(fixture.sees("Add to my models"), "{}", fixture.on_screen());
    fixture.click("Remove from the list");
    assert!(!fixture.sees("Add to my models"), "{}", fixture.on_screen());
    fixture.click("Back to the stacks");
    assert!(fixture.sees("Drop a stack here"), "{}", fixture.on_screen());
}

#[test]
fn open_stacks_are_converted_beside_their_files() {
    let mut fixture = Fixture::new();
    fixture.window.run_steps(3);
    fixture.click("Open the sample");
    fixture.settle();
    fixture.window.state_mut().send(Command::Convert);
    fixture.until("the page", |w| sees(w, "Convert and evaluate"));
    accessibility::check(&fixture, "converting");
    fixture.click("NumPy");
    fixture.click("Convert");
    fixture.until("the file", |w| sees(w, "1 file converted"));
    let written = cytoscope_formats::open(&fixture.path("sample/nuclei_raw.npy"), &Default::default()).unwrap();
    assert_eq!(written.meta().shape, [32, 160, 160]);
    // An existing file is kept.
    fixture.click("Close notification");
    fixture.click("Convert");
    fixture.until("the refusal", |w| sees(w, "convert failed"));
}

#[test]
fn without_a_dialog_of_the_desktop_files_are_chosen_in_the_window() {
    let mut fixture = Fixture::new();
    fixture.window.state_mut().use_own_file_dialog();
    fixture.window.run_steps(3);
    fixture.window.state_mut().send(Command::Open);
    fixture.until("the dialog", |w| sees(w, "Choose files"));
    accessibility::check(&fixture, "the file dialog");
    fixture.window.key_press(Key::Escape);
    fixture.until("no dialog", |w| !sees(w, "Choose files"));
    fixture.click("Drop a stack here");
    fixture.until("the dialog", |w| sees(w, "Choose files"));
    let path = fixture.path("sample/nuclei_raw.tif").display().to_string();
    fixture.window.get_by_label("File name").click();
    fixture.window.run_steps(3);
    fixture.window.get_by_label("File name").type_text(&path);
    fixture.window.run_steps(3);
    fixture.window.key_press(Key::Enter);
    fixture.settle();
    assert_eq!(fixture.window.state().title(), "nuclei_raw.tif – Cytoscope");
    assert!(!fixture.sees("Choose files"), "{}", fixture.on_screen());
}
