//! Settings files of training runs: loaded into the wizard, changed there, and saved for the command line.

use crate::accessibility;
use crate::fixture::{read_json, sees};
use crate::gestures::enter_path;
use crate::training::{fixture, go_to_start_step};
use cytoscope_train::TrainConfig;
use eframe::egui::Key;
use egui_kittest::kittest::{NodeT, Queryable};
use std::process::Stdio;

/// All that the settings of the tests change, with other values.
const SETTINGS: &str = "patch_zyx = [4, 16, 24]\nbatch = 1\n[budget]\nsteps = 2\n[schedule]\nrate = 0.004\n[validation]\n\
                        times = 2\n[network]\nfilters = [4, 6]\nstrides = [[1, 2, 2]]\nconvs_per_block = 1\n";

#[test]
fn a_settings_file_is_loaded_changed_and_saved_for_the_command_line() {
    let (mut fixture, data) = fixture(4);
    fixture.window.state_mut().use_own_file_dialog();
    let [file, saved, out] = ["given.toml", "saved.toml", "m"].map(|name| fixture.path(name));
    std::fs::write(&file, SETTINGS).unwrap();
    go_to_start_step(&mut fixture, &data);
    fixture.click("More settings");
    // The buttons move while the section opens.
    fixture.window.run_steps(30);
    fixture.click("Load settings…");
    enter_path(&mut fixture, &file);
    fixture.until("the settings", |w| sees(w, "network.filters=[4, 6]"));
    assert!(fixture.sees("Loaded given.toml"), "{}", fixture.on_screen());
    accessibility::check(&fixture, "settings");
    let plan = fixture.window.state().wizard().plan.clone();
    assert_eq!((plan.batch, plan.options.steps), (Some(1), Some(2)), "they have controls");
    // Single settings are set and removed.
    fixture.window.get_by_label("Set").scroll_to_me();
    fixture.until_hover_shows("Set", "Type a setting first, such as schedule.rate=0.001.");
    fixture.type_into("Single setting", "ema=0.5");
    fixture.window.key_press(Key::Enter);
    let has = |used: &[String], text: &str| used.iter().any(|setting| setting == text);
    fixture.until("the setting", |w| {
        assert!(w.query_by_label("Tune settings").is_some(), "it stays in its place while the data are checked again");
        has(&w.state().wizard().plan.further.used, "ema=0.5")
    });
    fixture.type_into("Single setting", "color=red");
    fixture.click("Set");
    fixture.until("the reason", |w| sees(w, "The setting was not changed"));
    assert!(fixture.sees("color"), "{}", fixture.on_screen());
    fixture.click("Remove the setting schedule.rate");
    fixture.until("its end", |w| !sees(w, "schedule.rate=0.004"));
    fixture.click("Save settings…");
    enter_path(&mut fixture, &saved);
    fixture.until("the file", |w| sees(w, "Saved saved.toml"));
    let mut expected = TrainConfig::read(&file).unwrap();
    (expected.ema, expected.schedule.rate, expected.budget.minutes) = (0.5, None, Some(plan.minutes));
    assert_eq!(TrainConfig::read(&saved).unwrap(), expected);
    // The command line trains with these settings.
    let ran = std::process::Command::new(env!("CARGO_BIN_EXE_cytoscope"))
        .args(["train", "--task", "segmentation", "--device", "cpu", "--threads", "1", "--without-int8"])
        .arg("--data")
        .arg(&data)
        .arg("--config")
        .arg(&saved)
        .arg("--out")
        .arg(&out)
        .env_remove("CYTOSCOPE_SOFTWARE_GPU")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let config = read_json(&fixture.path("m.package_provenance.json"))["job"]["config"].clone();
    let values = [&config["ema"], &config["budget"]["steps"], &config["network"]["filters"]];
    assert_eq!(values, [&serde_json::json!(0.5), &serde_json::json!(2), &serde_json::json!([4, 6])], "{config:#}");
}

#[test]
fn a_settings_file_that_cannot_be_used_changes_nothing_and_says_why() {
    let (mut fixture, data) = fixture(4);
    fixture.window.state_mut().use_own_file_dialog();
    let file = fixture.path("bad.toml");
    std::fs::write(&file, "batch = 5\n[network]\nfilter = [4]\n").unwrap();
    go_to_start_step(&mut fixture, &data);
    fixture.click("More settings");
    fixture.window.run_steps(30);
    let seed = fixture.window.get_by_label("Seed number").accesskit_node().value();
    assert_eq!(seed.as_deref(), Some("0"), "a seed has no decimals");
    fixture.click("Load settings…");
    enter_path(&mut fixture, &file);
    fixture.until("the reason", |w| sees(w, "The settings were not loaded"));
    let problem = "unknown setting network.filter: expected one of filters, strides";
    assert!(fixture.sees("bad.toml") && fixture.sees(problem), "{}", fixture.on_screen());
    assert_eq!(fixture.window.state().wizard().plan.batch, None);
}
