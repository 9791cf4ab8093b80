//! Training runs in the window: device and precision, validation images, pausing, finishing, closing, and a killed engine.

use crate::accessibility;
use crate::fixture::{Fixture, sees, window_with};
use crate::training::{fixture, go_to_start_step, next_window, tiny_config};
use cytoscope_engine::{DeviceId, DeviceRequest};
use cytoscope_pipeline::Note;
use cytoscope_train::TrainPrecision;
use cytoscope_ui::Workbench;
use cytoscope_ui::command::Command;
use cytoscope_ui::training::plan::WizardStep;
use cytoscope_ui::training::run::RunState;
use eframe::egui::accesskit::Role;
use eframe::egui::{Key, ViewportCommand, ViewportEvent, ViewportId};
use egui_kittest::Harness;
use egui_kittest::kittest::{NodeT, Queryable};
use std::path::Path;

fn start_training(fixture: &mut Fixture, data: &Path) {
    go_to_start_step(fixture, data);
    fixture.click_enabled("Start training");
    fixture.until("a training run", |w| w.state().is_training());
}

fn current_step(fixture: &Fixture) -> u64 {
    fixture.window.state().wizard().run.step()
}

/// The value of a figure on the training page, which follows its name.
fn figure(fixture: &Fixture, name: &str) -> String {
    let shown = fixture.on_screen();
    shown.split(" | ").skip_while(|text| *text != name).nth(1).unwrap_or_default().to_owned()
}

#[test]
fn a_run_ends_after_the_maximum_number_of_steps_and_its_package_states_the_license() {
    let (mut fixture, data) = fixture(40_000);
    go_to_start_step(&mut fixture, &data);
    fixture.click("More settings");
    fixture.until("the section", |w| sees(w, "Max. epochs"));
    let set = |fixture: &mut Fixture, field: &str, text: &str| {
        fixture.type_into(field, text);
        fixture.window.key_press(Key::Enter);
        fixture.window.run_steps(3);
    };
    fixture.click("Max. steps");
    set(&mut fixture, "Max. steps number", "3");
    fixture.click("Manual");
    set(&mut fixture, "Object diameter number", "12");
    fixture.type_into("License identifier", "cc-by-4.0");
    fixture.until("what is wrong", |w| sees(w, "which is not an SPDX identifier: write CC-BY-4.0."));
    accessibility::check(&fixture, "more settings");
    // The data are split again with another seed.
    set(&mut fixture, "Seed number", "5");
    fixture.click_enabled("Start training");
    fixture.until("the refusal", |w| sees(w, "Training cannot start"));
    fixture.type_into("License identifier", "CC-BY-4.0");
    fixture.click_enabled("Start training");
    let is_started =
        |w: &Harness<'static, Workbench>| w.state().wizard().plan.job.as_ref().map(|job| job.seed) == Some(5);
    fixture.until("a training run", is_started);
    fixture.until("the results", |w| w.state().wizard().plan.step == WizardStep::Results);
    let report = fixture.window.state().wizard().report.clone().unwrap();
    assert_eq!(report.steps, 3);
    let package = cytoscope_model_package::Package::open(&report.out).unwrap();
    assert_eq!(package.rdf["license"], "CC-BY-4.0");
    assert_eq!(package.config()["training"]["settings"]["diameter"], 12.0);
}

#[test]
fn paused_or_killed_training_continues() {
    let (mut fixture, data) = fixture(40_000);
    start_training(&mut fixture, &data);
    fixture.until("some steps", |w| w.state().wizard().run.step() >= 3);
    fixture.until("the monitor in the status bar", |w| sees(w, " % of the time waiting for data, "));
    let figures = ["Samples/s", "Waiting for data"];
    let has = |w: &Harness<'static, Workbench>, name: &str| w.query_all_by_label(name).next().is_some();
    fixture.until("the figures of the page", |w| figures.iter().all(|name| has(w, name)));
    let [rate, data_wait] = figures.map(|name| figure(&fixture, name));
    assert!(rate.parse::<f64>().is_ok_and(|rate| rate > 0.0), "{rate}: {}", fixture.on_screen());
    let percent = data_wait.strip_suffix(" %").and_then(|number| number.parse::<f64>().ok());
    assert!(percent.is_some_and(|percent| (0.0..=100.0).contains(&percent)), "{data_wait}: {}", fixture.on_screen());
    assert!(fixture.sees("Pause the training run"), "the button in the status bar discards nothing");
    fixture.click("Pause training");
    fixture.until("the pause", |w| w.state().wizard().run.state == RunState::Paused);
    assert!(fixture.sees("Continue the training run, or finish it now."), "why there is no next page");
    let at = current_step(&fixture);
    assert!(at < 40_000, "it was paused in the middle");
    // Other data that are dropped now are not ignored silently.
    let file = eframe::egui::DroppedFile { path: Some(data.clone()), ..Default::default() };
    fixture.window.input_mut().dropped_files.push(file);
    fixture.window.step();
    fixture.window.input_mut().dropped_files.clear();
    fixture.until("the notification", |w| sees(w, "embryos was not used"));
    assert_eq!(current_step(&fixture), at);
    assert!(fixture.sees("Continue training"), "{}", fixture.on_screen());
    accessibility::check(&fixture, "paused");
    fixture.click_enabled("Continue training");
    fixture.until("further steps", |w| w.state().wizard().run.step() > at);
    let steps: Vec<u64> = fixture.window.state().wizard().run.history.steps.iter().map(|p| p.step).collect();
    assert!(steps.windows(2).all(|w| w[0] < w[1]) && steps[0] <= 100, "one curve: {steps:?}");
    // The engine is killed: training continues from the checkpoint, once.
    for kill in 1..=2 {
        let pid = fixture.kill_engine();
        if kill == 1 {
            fixture.until("another engine", |w| w.state().engine_pid().is_some_and(|p| p != pid));
            let says = |note: &Note| note.message.contains("training continues from the last checkpoint");
            fixture.until("the note", |w| w.state().wizard().run.notes.iter().any(says));
            let resumed = |note: &Note| note.message.starts_with("resuming after step");
            fixture.until("resuming", |w| w.state().wizard().run.notes.iter().filter(|n| resumed(n)).count() > 1);
        }
    }
    fixture.until("the failure", |w| matches!(w.state().wizard().run.state, RunState::Failed(_)));
    assert!(fixture.sees("The engine process ended"), "{}", fixture.on_screen());
    fixture.click_enabled("Continue training");
    fixture.until("continuing", |w| w.state().wizard().run.step() > at);
    // After stopping, nothing is left.
    let folder = fixture.window.state().wizard().plan.job.as_ref().unwrap().folder();
    assert!(folder.is_dir());
    fixture.click("Stop…");
    fixture.click("Discard training run");
    fixture.until("the end", |w| w.state().wizard().run.state == RunState::Idle);
    fixture.until("the removed checkpoint", |_| !folder.exists());
    assert_eq!(fixture.window.state().wizard().plan.step, WizardStep::Start);
}

#[test]
fn a_paused_run_cannot_be_continued_while_settings_are_tuned() {
    const REASON: &str = "Wait until tuning has finished, or cancel it";
    let (mut fixture, data) = fixture(40_000);
    start_training(&mut fixture, &data);
    fixture.until("some steps", |w| w.state().wizard().run.step() >= 3);
    fixture.click("Pause training");
    fixture.until("the pause", |w| w.state().wizard().run.state == RunState::Paused);
    fixture.until("the button", |w| w.query_by_label("Continue training").is_some());
    let is_disabled = |fixture: &Fixture, name: &str| fixture.window.get_by_label(name).accesskit_node().is_disabled();
    assert!(!fixture.sees(REASON) && !is_disabled(&fixture, "Continue training"), "{}", fixture.on_screen());
    // A model is tuned for predictions of a stack in the meantime. "Predict" is a menu and, after it, a tab.
    let show_predict = |fixture: &mut Fixture| {
        fixture.window.query_all_by_label("Predict").last().expect("the tab").click();
        fixture.settle();
    };
    fixture.window.state_mut().send(Command::OpenSample);
    fixture.settle();
    show_predict(&mut fixture);
    fixture.until("the models", |w| sees(w, "made for"));
    fixture.click_enabled("Tune settings");
    fixture.until("the start", |w| sees(w, "Tuning "));
    fixture.window.state_mut().send(Command::Train);
    fixture.until("the run and the reason", |w| w.query_by_label("Continue training").is_some() && sees(w, REASON));
    assert!(is_disabled(&fixture, "Continue training") && is_disabled(&fixture, "Finish now"));
    show_predict(&mut fixture);
    fixture.click("Cancel");
    fixture.until("the end of tuning", |w| sees(w, "Tune settings"));
    fixture.window.state_mut().send(Command::Train);
    fixture.until("the run", |w| w.query_by_label("Continue training").is_some());
    assert!(!fixture.sees(REASON) && !is_disabled(&fixture, "Continue training"), "{}", fixture.on_screen());
    fixture.click("Stop…");
    fixture.click("Discard training run");
    fixture.until("the end", |w| w.state().wizard().run.state == RunState::Idle);
}

/// Chooses the entry that begins with `what` from the list of this name.
fn choose(fixture: &mut Fixture, list: &str, what: &str) {
    fixture.click(list);
    let names = |w: &egui_kittest::Harness<'static, cytoscope_ui::Workbench>| -> Vec<String> {
        let all = w.query_all_by_label_contains(what).map(|n| n.accesskit_node().label().unwrap_or_default());
        all.filter(|name| name.starts_with(what)).collect()
    };
    // Devices are listed once they are known.
    fixture.until(what, |w| !names(w).is_empty());
    let name = names(&fixture.window).remove(0);
    fixture.click(&name);
}

#[test]
fn chosen_device_and_precision_are_those_of_the_run_and_can_be_changed_when_it_is_paused() {
    let (mut fixture, data) = fixture(40_000);
    go_to_start_step(&mut fixture, &data);
    // The fields of the settings are below each other, to the right of their labels.
    let left_of_field = |name: &str| {
        let lefts = fixture.window.query_all_by_label(name).map(|node| node.rect().left());
        lefts.fold(f32::NEG_INFINITY, f32::max)
    };
    let lefts = ["Data workers", "Device", "Precision"].map(left_of_field);
    assert!(lefts[0] > 0.0 && lefts.iter().all(|left| (left - lefts[0]).abs() < 1.0), "{lefts:?}");
    choose(&mut fixture, "Device", "cpu");
    choose(&mut fixture, "Precision", "f32");
    fixture.click_enabled("Start training");
    fixture.until("a run", |w| matches!(w.state().wizard().run.state, RunState::Running(_)));
    let chosen = |fixture: &Fixture| {
        let job = fixture.window.state().wizard().plan.job.as_ref().unwrap();
        (job.device, job.config.precision)
    };
    let cpu = DeviceRequest::Device(DeviceId::Cpu);
    assert_eq!(chosen(&fixture), (cpu, TrainPrecision::F32));
    fixture.until("the buttons", |w| w.query_by_label("Stop…").is_some());
    let top = |fixture: &Fixture| fixture.window.get_by_label("Stop…").rect().top();
    let top_before = top(&fixture);
    fixture.until("some steps", |w| w.state().wizard().run.step() >= 3);
    assert!((top(&fixture) - top_before).abs() < 1.0, "figures that appear move no button");
    assert!(!fixture.sees("Precision"), "a running run keeps its device");
    fixture.click("Pause training");
    fixture.until("the pause", |w| w.state().wizard().run.state == RunState::Paused);
    choose(&mut fixture, "Device", "Auto");
    fixture.click_enabled("Continue training");
    fixture.until("continuing", |w| matches!(w.state().wizard().run.state, RunState::Running(_)));
    assert_eq!(chosen(&fixture), (DeviceRequest::Auto, TrainPrecision::F32));
    fixture.click("Stop…");
    fixture.click("Discard training run");
    fixture.until("the end", |w| w.state().wizard().run.state == RunState::Idle);
}

#[test]
fn validation_image_is_shown_during_training() {
    // Many more than are taken until the run is paused.
    const STEPS: usize = 60_000;
    let open = |folder: &Path| {
        let mut config = tiny_config(STEPS);
        config.validation.times = 60;
        window_with(folder, Vec::new(), config)
    };
    let (mut fixture, data) = fixture(STEPS);
    fixture.next_window(open);
    start_training(&mut fixture, &data);
    let heading = "Network output on a validation image";
    fixture.until("a picture", |w| sees(w, heading));
    let (step, size) = {
        let shown = fixture.window.state().wizard().run.picture.as_ref().unwrap();
        assert!(shown.caption.contains("of 8"), "{}", shown.caption);
        (shown.step.unwrap(), shown.size())
    };
    // 48 voxels a side, enlarged six times.
    assert_eq!(size, [288, 288]);
    assert!(fixture.sees(&format!("after step {step}")) && fixture.sees("Predicted"), "{}", fixture.on_screen());
    accessibility::check(&fixture, "picture");
    fixture.until("the next one", |w| w.state().wizard().run.picture.as_ref().is_some_and(|s| s.step > Some(step)));
    // The next window shows it, too.
    fixture.click("Pause training");
    fixture.until("the pause", |w| w.state().wizard().run.state == RunState::Paused);
    fixture.next_window(open);
    fixture.click("Train a model…");
    fixture.until("the last picture", |w| sees(w, heading));
    fixture.click("Stop…");
    fixture.click("Discard training run");
    fixture.until("the end", |w| w.state().wizard().run.state == RunState::Idle);
    assert!(fixture.window.state().wizard().run.picture.is_none());
}

#[test]
#[cfg_attr(not(unix), ignore = "only Unix can stop a process")]
fn finish_now_keeps_the_best_network() {
    for paused in [false, true] {
        let (mut fixture, data) = fixture(40_000);
        start_training(&mut fixture, &data);
        fixture.until("some steps", |w| w.state().wizard().run.step() >= 3);
        if paused {
            fixture.click("Pause training");
            fixture.until("the pause", |w| w.state().wizard().run.state == RunState::Paused);
        }
        // What is shown of the end of the run does not depend on how long it takes.
        fixture.until_enabled("Finish now");
        fixture.stop_engine();
        fixture.click("Finish now");
        // A paused run is started again for it, once its folder has been prepared.
        fixture.until("the finishing run", |w| matches!(w.state().wizard().run.state, RunState::Finishing(_)));
        fixture.window.run_steps(2);
        assert!(fixture.sees("Finishing") && !fixture.sees("Pause training"), "{}", fixture.on_screen());
        assert!(!fixture.sees(" % of the time waiting for data, "), "the status bar: {}", fixture.on_screen());
        let bars = fixture.window.query_all_by_role(Role::ProgressIndicator);
        let shares: Vec<f64> = bars.filter_map(|node| node.accesskit_node().numeric_value()).collect();
        assert!(shares.is_empty(), "a bar would stand still at the share of the steps: {shares:?}");
        accessibility::check(&fixture, "finishing");
        fixture.resume_engine();
        fixture.until("the results", |w| w.state().wizard().plan.step == WizardStep::Results);
        let report = fixture.window.state().wizard().report.clone().unwrap();
        assert!(report.steps >= 3 && report.steps < 40_000, "{}", report.steps);
        assert_eq!(fixture.window.state().wizard().run.steps, report.steps, "the plots end at the last step");
        assert!(
            report.history.notes.iter().any(|n| n.message.starts_with("finished early")),
            "{:?}",
            report.history.notes
        );
        assert!(cytoscope_model_package::Package::open(&report.out).is_ok());
        fixture.until("the page", |w| sees(w, "Finished early"));
        assert!(fixture.window.state().wizard().plan.job.is_none());
    }
}

#[test]
fn closing_during_training_loses_nothing() {
    // Enough steps to close the window in the middle.
    const STEPS: usize = 4000;
    let (mut fixture, data) = fixture(STEPS);
    go_to_start_step(&mut fixture, &data);
    // Choices persist.
    fixture.click("Thorough");
    next_window(&mut fixture, STEPS);
    fixture.click("Train a model…");
    fixture.until("the step that was open", |w| sees(w, "Choose a start model"));
    assert!((fixture.window.state().wizard().plan.minutes - 60.0).abs() < 1e-9);
    fixture.until("the pairs", |w| w.state().wizard().is_usable());
    fixture.click_enabled("Start training");
    fixture.until("some steps", |w| w.state().wizard().run.step() >= 3);
    // The close button of the window's frame.
    let sent = |fixture: &Fixture, command: &ViewportCommand| {
        fixture.window.output().viewport_output.get(&ViewportId::ROOT).is_some_and(|v| v.commands.contains(command))
    };
    fixture.window.input_mut().viewports.entry(ViewportId::ROOT).or_default().events.push(ViewportEvent::Close);
    fixture.window.step();
    assert!(sent(&fixture, &ViewportCommand::CancelClose), "the state is saved first");
    fixture.until("the end", |w| {
        w.output().viewport_output.get(&ViewportId::ROOT).is_some_and(|v| v.commands.contains(&ViewportCommand::Close))
    });
    let at = current_step(&fixture);
    next_window(&mut fixture, STEPS);
    fixture.until("the offer", |w| sees(w, "The training run of embryos was not finished."));
    fixture.click("Continue the training run");
    fixture.until("the results", |w| w.state().wizard().plan.step == WizardStep::Results);
    let report = fixture.window.state().wizard().report.clone().unwrap();
    let steps: Vec<u64> = report.history.steps.iter().map(|p| p.step).collect();
    assert_eq!((steps[0], report.steps), (10, STEPS as u64), "one curve from its beginning");
    assert!(at >= 3 && steps.contains(&at), "{at}: {steps:?}");
    // The next window shows the results, too.
    next_window(&mut fixture, STEPS);
    assert!(!fixture.sees("was not finished"), "{}", fixture.on_screen());
    fixture.click("Train a model…");
    fixture.until("the results", |w| sees(w, "Results of embryos"));
}
