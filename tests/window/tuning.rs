//! Tuning in the window: settings of predictions and training runs are measured, offered and chosen.

use crate::fixture::{Fixture, on_screen, read_json, sees, window_with};
use crate::quit::close;
use crate::training::{pairs, tiny_config};
use cytoscope_formats::{Container, WriteSpec, write_array};
use cytoscope_pipeline::{MachineProfile, MachineProfiles, PerformanceRequest, Preset, machine_key};
use cytoscope_train::TrainConfig;
use cytoscope_volume::Array;
use eframe::egui::Key;
use egui_kittest::kittest::{NodeT, Queryable};
use std::path::Path;

#[test]
fn settings_are_tuned_from_the_window_and_offered_afterwards() {
    let mut fixture = Fixture::with(|folder| {
        let values: Vec<u16> = (0..8 * 48 * 48).map(|i: u32| (i % 97) as u16 + 100 * u16::from(i % 480 < 60)).collect();
        let array = Array::new("ZYX".parse().unwrap(), vec![8, 48, 48], values).unwrap();
        let path = folder.join("small.tif");
        write_array(&path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        vec![path]
    });
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    assert!(!fixture.sees("Performance"), "{}", fixture.on_screen());
    fixture.click_enabled("Tune settings");
    fixture.until("the start", |w| sees(w, "Tuning "));
    let cancel = fixture.window.get_by_label("Cancel").rect();
    let texts = fixture.window.query_all_by_label_contains("Tuning ");
    let first_row = texts.map(|text| text.rect().bottom()).fold(f32::INFINITY, f32::min);
    assert!(cancel.top() >= first_row, "a double click would cancel: {cancel:?}, {first_row}");
    assert!(fixture.window.get_by_label("Predict this stack").accesskit_node().is_disabled());
    assert!(!close(&mut fixture), "the window asks first");
    fixture.until("the dialog", |w| sees(w, "goes on without the window"));
    fixture.window.key_press(Key::Escape);
    fixture.until("no dialog", |w| !sees(w, "goes on without the window"));
    fixture.click("Cancel");
    fixture.until("the end of canceled tuning", |w| sees(w, "Tune settings"));
    assert!(!fixture.sees("Tuning failed") && !fixture.sees("Settings tuned"), "{}", fixture.on_screen());
    fixture.click_enabled("Tune settings");
    fixture.until("the second start", |w| sees(w, "Tuning "));
    fixture.until("the end", |w| sees(w, "Settings tuned"));
    fixture.until("the presets", |w| sees(w, "Performance"));
    let profiles = MachineProfiles::read(&fixture.path("settings/machine-profiles.json")).unwrap();
    assert!(!profiles.is_empty(), "they are stored beside the settings of this window");
}

#[test]
fn training_runs_are_tuned_on_the_data_of_the_wizard() {
    let folder = tempfile::tempdir().unwrap();
    let data = pairs(folder.path(), 2);
    // What is set is not varied, so that there are few candidates.
    let config = TrainConfig { workers: Some(1), prefetch: Some(9), ..tiny_config(2) };
    let window = window_with(folder.path(), Vec::new(), config);
    let mut fixture = Fixture { folder, window };
    fixture.click("Train a model…");
    fixture.click("Next");
    fixture.type_into("Training data", &data.display().to_string());
    fixture.window.key_press(Key::Enter);
    fixture.until("the pairs", |w| sees(w, "2 usable pairs"));
    fixture.click("Next");
    fixture.click("New network");
    fixture.until("the time per step", |w| sees(w, "On this machine a step takes"));
    assert!(!fixture.sees("Performance"), "{}", fixture.on_screen());
    fixture.click_enabled("Tune settings");
    fixture.until("the start", |w| sees(w, "Tuning New network"));
    assert!(fixture.window.get_by_label("Start training").accesskit_node().is_disabled());
    fixture.until("the end", |w| sees(w, "Settings tuned"));
    fixture.until("the presets", |w| sees(w, "Performance"));
    let stored = read_json(&fixture.path("settings/machine-profiles.json"));
    let profile = &stored["profiles"][0];
    assert_eq!(profile["model"], "scratch");
    assert_eq!(profile["training"]["fastest"]["prefetch"], 9);
}

#[test]
fn settings_are_searched_for_and_used_by_the_next_training_run() {
    let folder = tempfile::tempdir().unwrap();
    let data = pairs(folder.path(), 2);
    std::fs::create_dir_all(folder.path().join("settings")).unwrap();
    let plan = serde_json::json!({"plan": {"search": {"trials": 2, "steps": 4}}, "report": null});
    std::fs::write(folder.path().join("settings/training.json"), plan.to_string()).unwrap();
    let window = window_with(folder.path(), Vec::new(), TrainConfig { workers: Some(1), ..tiny_config(2) });
    let mut fixture = Fixture { folder, window };
    fixture.click("Train a model…");
    fixture.click("Next");
    fixture.type_into("Training data", &data.display().to_string());
    fixture.window.key_press(Key::Enter);
    fixture.until("the pairs", |w| sees(w, "2 usable pairs"));
    fixture.click("Next");
    fixture.click("New network");
    fixture.until("the time per step", |w| sees(w, "On this machine a step takes"));
    fixture.click("Hyperparameter search");
    fixture.until("the section", |w| sees(w, "steps in total"));
    assert!(!fixture.sees("Use best settings"), "{}", fixture.on_screen());
    // The button moves while the section opens.
    fixture.window.run_steps(30);
    fixture.click_enabled("Search for settings");
    fixture.until("the end", |w| {
        assert!(!sees(w, "failed"), "{}", on_screen(w));
        sees(w, "Search finished")
    });
    fixture.until("the scores", |w| sees(w, "Validation scores of 2 trials"));
    fixture.click("Use best settings");
    fixture.until("the settings", |w| sees(w, "in place of the settings above: ema="));
    assert!(!fixture.sees("Continue search"), "all trials have ended");
    let table = std::fs::read_dir(fixture.path("settings/searches")).unwrap();
    let mut names = table.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(names.any(|name| name.ends_with(".search.csv")));
    fixture.click("Discard found settings");
    fixture.until("no settings", |w| !sees(w, "in place of the settings above"));
    fixture.click("Remove search…");
    fixture.click("Remove search");
    fixture.until("no trials", |w| !sees(w, "Validation scores of"));
    // Files are removed on another thread.
    let searches = fixture.path("settings/searches");
    fixture.until("no files", |_| std::fs::read_dir(&searches).unwrap().next().is_none());
}

#[test]
fn presets_that_were_tuned_on_this_machine_can_be_chosen() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/nuclei");
    let title = cytoscope_pipeline::cards::card("nuclei", &package).title;
    let settings = |secs: f64| {
        serde_json::json!({"device": "cpu", "precision": "int8", "tile_zyx": [16, 64, 64], "threads": 0, "secs": secs,
                           "peak_bytes": null, "relative_l2": null})
    };
    let profile: MachineProfile = serde_json::from_value(serde_json::json!({
        "model": title, "fingerprint": "another model of this name", "machine": machine_key(), "program": "p",
        "tuned_unix_secs": 1, "preset": "fastest",
        "inference": {"fastest": settings(1.5), "most-accurate": settings(2.5)},
    }))
    .unwrap();
    let mut fixture = Fixture::with(|folder| {
        let mut profiles = MachineProfiles::default();
        profiles.put(profile);
        profiles.write(&folder.join("settings/machine-profiles.json")).unwrap();
        Vec::new()
    });
    fixture.click("Open the sample");
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    fixture.click("Performance");
    assert!(fixture.sees("Most accurate") && !fixture.sees("Least memory"), "{}", fixture.on_screen());
    fixture.click("Most accurate");
    let chosen = fixture.window.state().settings().performance;
    assert_eq!(chosen, PerformanceRequest::Preset(Preset::MostAccurate));
    fixture.click("Performance");
    fixture.click("Not tuned");
    assert_eq!(fixture.window.state().settings().performance, PerformanceRequest::Off);
    // Without a profile of this machine, there is nothing to choose.
    let mut without = Fixture::new();
    without.click("Open the sample");
    without.settle();
    without.until("the models", |w| sees(w, "made for"));
    assert!(!without.sees("Performance"), "{}", without.on_screen());
}
