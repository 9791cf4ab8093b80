//! The training wizard: from a folder to a model that predicts.

use crate::fixture::{Fixture, sees, window_with};
use crate::{accessibility, gestures};
use cytoscope_formats::{Container, WriteSpec, write_array};
use cytoscope_simulate::{Kind, Settings, Simulation, simulate};
use cytoscope_train::{ScoreName, SelectionMetric, TrainConfig};
use cytoscope_ui::command::Command;
use cytoscope_ui::training::models::TrainedModelFormat;
use cytoscope_ui::training::plan::WizardStep;
use cytoscope_volume::Array;
use eframe::egui::{Key, Modifiers};
use egui_kittest::kittest::{NodeT, Queryable};
use std::path::{Path, PathBuf};

/// Settings of a training run that takes seconds.
pub(crate) fn tiny_config(steps: usize) -> TrainConfig {
    let mut config = TrainConfig { patch_zyx: Some([4, 16, 16]), batch: Some(1), ..TrainConfig::default() };
    config.network.filters = vec![4, 8];
    config.network.strides = vec![[1, 2, 2]];
    config.network.convs_per_block = 1;
    config.budget.steps = Some(steps);
    config.validation.times = 6;
    config
}

/// Writes `NAME_raw.tif` and, if present, `NAME_labels.tif` and `NAME_target.tif`.
fn write_pair(folder: &Path, name: &str, made: Simulation) {
    for (suffix, array) in [("raw", Some(made.raw)), ("labels", made.labels), ("target", made.target)] {
        let Some(array) = array else { continue };
        let mut spec = WriteSpec::of(&array, Container::ImageJ);
        spec.voxel_size_um = made.voxel_size_um;
        write_array(&folder.join(format!("{name}_{suffix}.tif")), &array, &spec).unwrap();
    }
}

/// Writes a folder of `n` simulated pairs.
pub(crate) fn pairs(folder: &Path, n: u64) -> PathBuf {
    let data = folder.join("embryos");
    std::fs::create_dir_all(&data).unwrap();
    for i in 0..n {
        let made = simulate(&Settings::new(Kind::Nuclei, [8, 48, 48], i), |_| true).unwrap();
        write_pair(&data, &format!("embryo{i}"), made);
    }
    data
}

/// A window whose training runs are tiny by default, and a folder of training pairs.
pub(crate) fn fixture(steps: usize) -> (Fixture, PathBuf) {
    let fixture = Fixture::new();
    let data = pairs(fixture.folder.path(), 3);
    let Fixture { folder, window: other } = fixture;
    drop(other);
    let window = window_with(folder.path(), Vec::new(), tiny_config(steps));
    (Fixture { window, folder }, data)
}

/// Replaces the window by a new one.
pub(crate) fn next_window(fixture: &mut Fixture, steps: usize) {
    fixture.next_window(|folder| window_with(folder, Vec::new(), tiny_config(steps)));
}

/// Goes from the first step to `Start and time`, with data that are dropped on the window.
pub(crate) fn go_to_start_step(fixture: &mut Fixture, data: &Path) {
    fixture.click("Train a model…");
    fixture.click("Segment objects");
    fixture.click("Next");
    let file = eframe::egui::DroppedFile { path: Some(data.to_owned()), ..Default::default() };
    fixture.window.input_mut().dropped_files.push(file);
    fixture.window.step();
    fixture.window.input_mut().dropped_files.clear();
    fixture.until("the pairs", |w| sees(w, "3 usable pairs"));
    fixture.click("Next");
    fixture.until("the start", |w| sees(w, "Choose a start model"));
    fixture.until("the start models", |w| w.query_by_label("nuclei").is_some());
    assert!(!fixture.sees("nuclei-dog"), "its filters were made by hand");
    // With three pairs, the model is suggested; the new network of the tests is trained faster.
    let suggested = |from: &str| Path::new(from).file_name().is_some_and(|name| name == "nuclei");
    fixture.until("the suggestion", |w| suggested(w.state().wizard().plan.from.as_str()));
    fixture.click("New network");
}

#[test]
fn wizard_trains_a_model_from_a_folder_that_then_predicts() {
    let (mut fixture, data) = fixture(4);
    fixture.click("Train a model…");
    accessibility::check(&fixture, "task");
    fixture.click("Next");
    accessibility::check(&fixture, "data");
    assert!(fixture.sees("Drop a folder of pairs here"), "{}", fixture.on_screen());
    assert!(fixture.window.get_by_label("Next").accesskit_node().is_disabled(), "nothing is chosen yet");
    // The path is typed this time.
    fixture.window.get_by_label("Training data").focus();
    fixture.window.run_steps(2);
    fixture.window.get_by_label("Training data").type_text(&data.display().to_string());
    fixture.window.run_steps(2);
    fixture.window.key_press(Key::Enter);
    fixture.until("the pairs", |w| sees(w, "3 usable pairs"));
    assert!(
        fixture.sees("1 of 3 pairs is in the validation set") && fixture.sees("8 × 48 × 48 voxels"),
        "{}",
        fixture.on_screen()
    );
    assert!(fixture.sees("image of embryo0") && fixture.sees("target of embryo2"), "{}", fixture.on_screen());
    accessibility::check(&fixture, "pairs");
    fixture.click("Next");
    accessibility::check(&fixture, "start");
    fixture.click("Quick");
    fixture.click("New network");
    // Meanwhile, the time per step is measured.
    fixture.until("the time per step", |w| sees(w, "On this machine a step takes") && sees(w, "steps in 5 minutes"));
    assert_eq!(fixture.window.state().wizard().plan.name, "embryos");
    fixture.click_enabled("Start training");
    fixture.until("the plan", |w| sees(w, "4 steps are planned"));
    fixture.until("the results", |w| w.state().wizard().plan.step == WizardStep::Results);
    accessibility::check(&fixture, "results");
    let report = fixture.window.state().wizard().report.clone().unwrap();
    assert_eq!((report.steps, report.train_pairs, report.validation_pairs), (4, 2, 1));
    fixture.until("the sentence", |w| sees(w, "The model was trained from scratch."));
    assert!(fixture.sees("anoptic quality at IoU 0.5 by image"), "{}", fixture.on_screen());
    // There are no scores before training to compare with.
    assert!(!fixture.sees("After"), "{}", fixture.on_screen());
    fixture.until("a picture of a validation image", |w| sees(w, "Model output on a validation image"));
    accessibility::check(&fixture, "results with a picture");
    // The profiler has the figures of the four steps, without those that were timed before the run.
    fixture.window.state_mut().send(Command::ToggleProfiler);
    fixture.click("Training steps");
    accessibility::check(&fixture, "training steps");
    for text in ["Samples/s", "Time per step", "Waiting for data", "Device busy", "4 steps: median"] {
        assert!(fixture.sees(text), "no {text:?}: {}", fixture.on_screen());
    }
    fixture.window.state_mut().send(Command::ToggleProfiler);
    fixture.window.run_steps(4);
    let validation_name = &report.pairs_after[0].name;
    assert!(fixture.sees("F1 at IoU 0.5") && fixture.sees(validation_name), "{}", fixture.on_screen());
    fixture.click("Next");
    let holds_int8 = !report.after_int8.is_empty();
    assert_eq!(fixture.sees("Size and speed on this machine"), holds_int8, "{}", fixture.on_screen());
    fixture.click("Save to my models");
    fixture.until("the model", |w| sees(w, "Saved to your models."));
    let saved = fixture.path("settings/models/embryos");
    let package = cytoscope_model_package::Package::open(&saved).unwrap();
    assert_eq!(package.name, "embryos");
    let (zip, onnx) = (fixture.path("away.zip"), fixture.path("away.onnx"));
    export(&mut fixture, TrainedModelFormat::Zip, &zip);
    export(&mut fixture, TrainedModelFormat::Onnx, &onnx);
    assert!(cytoscope_model_package::Package::open(&zip).is_ok() && onnx.is_file());
    // The saved model predicts.
    fixture
        .until("its place in the list", |w| !w.get_by_label("Predict with this model").accesskit_node().is_disabled());
    accessibility::check(&fixture, "saved");
    fixture.click_enabled("Predict with this model");
    fixture.click("Open the sample");
    fixture.settle();
    assert_eq!(fixture.window.state().settings().model, "embryos");
    fixture.until("the model", |w| sees(w, "trained with Cytoscope"));
    fixture.click_enabled("Predict this stack");
    fixture.until("a result", |_| sample_labels(&zip).is_file());
    // The next training run starts at the first step.
    fixture.window.key_press_modifiers(Modifiers::COMMAND | Modifiers::SHIFT, Key::T);
    fixture.click("Train another model");
    assert_eq!(fixture.window.state().wizard().plan.step, WizardStep::Task);
}

/// Exports the trained model as the dialog would.
fn export(fixture: &mut Fixture, format: TrainedModelFormat, path: &Path) {
    fixture.window.state_mut().export_model(format, path.to_owned());
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    fixture.until("the export", |w| sees(w, &format!("Saved {name}")));
}

/// The predicted labels of the sample; `zip` is an exported package in the same folder.
fn sample_labels(zip: &Path) -> PathBuf {
    zip.with_file_name("sample").join("cytoscope/nuclei_raw_labels.tif")
}

#[test]
fn wizard_trains_stain_prediction_from_image_pairs() {
    let fixture = Fixture::new();
    let data = fixture.path("dishes");
    std::fs::create_dir(&data).unwrap();
    for i in 0..3 {
        let mut made = simulate(&Settings::new(Kind::LabelFree, [8, 48, 48], i), |_| true).unwrap();
        made.labels = None;
        write_pair(&data, &format!("dish{i}"), made);
    }
    let Fixture { folder, window: other } = fixture;
    drop(other);
    let mut fixture = Fixture { window: window_with(folder.path(), Vec::new(), tiny_config(4)), folder };
    fixture.click("Train a model…");
    fixture.click("Predict a stain");
    fixture.click("Next");
    assert!(fixture.window.get_by_label("Use my corrections").accesskit_node().is_disabled(), "labels are not a stain");
    fixture.window.state_mut().train_on(data);
    fixture.until("the pairs", |w| sees(w, "3 usable pairs"));
    accessibility::check(&fixture, "pairs of a stain");
    fixture.click("Next");
    fixture.click("New network");
    fixture.click_enabled("Start training");
    fixture.until("the results", |w| w.state().wizard().plan.step == WizardStep::Results);
    let report = fixture.window.state().wizard().report.clone().unwrap();
    assert!(
        report.after.contains_key(&ScoreName::Pearson(None)) && !report.after.contains_key(&ScoreName::f1(0.5)),
        "{:?}",
        report.after
    );
    assert!(fixture.sees("Pearson correlation"), "{}", fixture.on_screen());
    fixture.until("a picture", |w| sees(w, "Model output on a validation image"));
    accessibility::check(&fixture, "results of a stain");
    fixture.click("Next");
    fixture.click("Save to my models");
    fixture.until("the model", |w| sees(w, "Saved to your models."));
    let saved = cytoscope_model_package::Package::open(&fixture.path("settings/models/dishes")).unwrap();
    assert_eq!(saved.config()["task"], "labelfree");
}

#[test]
fn wizard_trains_foreground_from_masks() {
    let fixture = Fixture::new();
    let data = fixture.path("masks");
    std::fs::create_dir(&data).unwrap();
    for i in 0..3 {
        let mut made = simulate(&Settings::new(Kind::Nuclei, [8, 48, 48], i), |_| true).unwrap();
        let labels = made.labels.take().unwrap();
        let mask: Vec<u8> = labels.samples().to_f32().iter().map(|v| u8::from(*v > 0.0) * 255).collect();
        made.labels = Some(Array::new(labels.axes().clone(), labels.shape().to_vec(), mask).unwrap());
        write_pair(&data, &format!("mask{i}"), made);
    }
    let Fixture { folder, window: other } = fixture;
    drop(other);
    let mut fixture = Fixture { window: window_with(folder.path(), Vec::new(), tiny_config(4)), folder };
    let only = "Foreground only";
    fixture.click("Train a model…");
    fixture.click("Next");
    fixture.window.state_mut().train_on(data);
    fixture.until("what is wrong", |w| sees(w, "0 of 3 pairs can be used"));
    assert!(fixture.sees("cannot be separated"), "{}", fixture.on_screen());
    fixture.click(only);
    fixture.until("the pairs", |w| sees(w, "3 usable pairs"));
    accessibility::check(&fixture, "masks");
    // The choice persists in the next window.
    next_window(&mut fixture, 4);
    fixture.click("Train a model…");
    fixture.until("the pairs", |w| sees(w, "3 usable pairs"));
    // Stain prediction does not offer foreground only.
    fixture.click("Back");
    fixture.click("Predict a stain");
    fixture.click("Next");
    assert!(!fixture.sees(only), "{}", fixture.on_screen());
    fixture.click("Back");
    fixture.click("Segment objects");
    fixture.click("Next");
    fixture.until("what is wrong", |w| sees(w, "0 of 3 pairs can be used"));
    fixture.click(only);
    fixture.until("the pairs", |w| sees(w, "3 usable pairs"));
    fixture.click("Next");
    fixture.click("New network");
    fixture.click_enabled("Start training");
    fixture.until("the results", |w| w.state().wizard().plan.step == WizardStep::Results);
    let report = fixture.window.state().wizard().report.clone().unwrap();
    assert_eq!((report.metric, report.train_pairs), (SelectionMetric::Dice, 2));
}

#[test]
fn unsaved_trained_model_is_saved_automatically() {
    let (mut fixture, data) = fixture(4);
    go_to_start_step(&mut fixture, &data);
    fixture.click_enabled("Start training");
    fixture.until("the results", |w| w.state().wizard().plan.step == WizardStep::Results);
    let first = fixture.window.state().wizard().report.clone().unwrap().out;
    // The next training run replaces it.
    fixture.click("Step 3: Settings");
    fixture.click_enabled("Start training");
    fixture.until("the first one", |w| sees(w, "embryos was added to your models"));
    assert!(!first.exists(), "it was moved to the models");
    fixture.until("the next results", |w| w.state().wizard().plan.step == WizardStep::Results);
    assert_eq!(fixture.window.state().wizard().plan.saved, None, "that was the first one");
    let second = fixture.window.state().wizard().report.clone().unwrap().out;
    let next = fixture.window.get_by_label("Next").rect();
    fixture.click("Next");
    assert!(fixture.sees("A model with this name already exists"), "{}", fixture.on_screen());
    let another = fixture.window.get_by_label("Train another model").rect();
    assert!(!another.intersects(next), "a double click on Next would leave the page");
    fixture.click("Train another model");
    fixture.until("the second one", |w| sees(w, "embryos 2 was added to your models"));
    let wizard = fixture.window.state().wizard();
    assert!(wizard.report.is_none() && wizard.plan.saved.is_none() && wizard.plan.step == WizardStep::Task);
    assert!(!second.exists(), "it was moved to the models");
    for name in ["embryos", "embryos 2"] {
        let saved = fixture.path("settings/models").join(name);
        assert_eq!(cytoscope_model_package::Package::open(&saved).unwrap().name, name);
    }
}

#[test]
fn model_for_another_task_is_refused_as_start_model() {
    let (mut fixture, data) = fixture(4);
    go_to_start_step(&mut fixture, &data);
    let from = |fixture: &Fixture| fixture.window.state().wizard().plan.from.to_string();
    let stain = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/labelfree-nuclei");
    // A package is chosen by its folder, or by its description in a dialog for files.
    fixture.window.state_mut().start_from_file(stain.join("rdf.yaml"));
    fixture.until("the reason", |w| sees(w, "It predicts a stain"));
    assert!(fixture.sees("labelfree-nuclei cannot be the start model"), "{}", fixture.on_screen());
    assert_eq!(from(&fixture), "scratch");
    let weights = fixture.path("net.ckpt");
    std::fs::write(&weights, "weights").unwrap();
    fixture.window.state_mut().start_from_file(weights);
    fixture.until("the advice", |w| sees(w, "add it to your models first"));
    assert_eq!(from(&fixture), "scratch");
    // Its bare network states no task.
    let package = cytoscope_model_package::Package::open(&stain).unwrap();
    let own = fixture.path("own.onnx");
    cytoscope_onnx::save(&package.float_graph.unwrap_or(package.graph), &own).unwrap();
    fixture.window.state_mut().start_from_file(own.clone());
    let own = own.display().to_string();
    fixture.until("the file", |w| w.state().wizard().plan.from.as_str() == own);
    fixture.click("New network");
    assert_eq!(from(&fixture), "scratch");
    fixture.click("own");
    assert_eq!(from(&fixture), own);
    // The next window keeps the choice unless the file is gone.
    next_window(&mut fixture, 4);
    assert_eq!(from(&fixture), own);
    std::fs::remove_file(&own).unwrap();
    next_window(&mut fixture, 4);
    assert_eq!(from(&fixture), "scratch");
}

#[test]
fn wizard_trains_from_own_corrections() {
    let fixture = Fixture::new();
    let home = fixture.folder.path().to_owned();
    std::fs::create_dir_all(home.join("settings")).unwrap();
    let settings = format!(r#"{{"dataset_folder": {:?}}}"#, home.join("mine").display().to_string());
    std::fs::write(home.join("settings/settings.json"), settings).unwrap();
    let Fixture { folder, window: other } = fixture;
    drop(other);
    let sample = home.join("sample/nuclei_raw.tif");
    let mut fixture = Fixture { window: window_with(&home, vec![sample], tiny_config(3)), folder };
    fixture.settle();
    gestures::start_correcting(&mut fixture);
    for row in [30.0, 60.0, 90.0, 120.0] {
        gestures::stroke(&mut fixture, (row, 20.0), (row, 110.0));
        fixture.click("New label");
    }
    fixture.click("Use as training data");
    fixture.until("the pair", |w| sees(w, "Training pair nuclei_raw added"));
    fixture.window.key_press_modifiers(Modifiers::COMMAND | Modifiers::SHIFT, Key::T);
    fixture.window.step();
    fixture.click("Next");
    fixture.click("Use my corrections");
    fixture.until("the pair", |w| sees(w, "1 usable pair"));
    assert_eq!(fixture.window.state().wizard().plan.data.as_deref(), Some(home.join("mine").as_path()));
    fixture.click("Next");
    fixture.click("New network");
    fixture.click_enabled("Start training");
    fixture.until("the results", |w| w.state().wizard().plan.step == WizardStep::Results);
    assert_eq!(fixture.window.state().wizard().report.as_ref().unwrap().train_pairs, 1);
}

#[test]
fn data_problems_are_listed_with_advice() {
    let (mut fixture, data) = fixture(4);
    // A label image of another shape, and an image without a target.
    let made = simulate(&Settings::new(Kind::Nuclei, [6, 40, 48], 9), |_| true).unwrap();
    let labels = made.labels.unwrap();
    write_array(&data.join("embryo1_labels.tif"), &labels, &WriteSpec::of(&labels, Container::ImageJ)).unwrap();
    std::fs::copy(data.join("embryo0_raw.tif"), data.join("lonely_raw.tif")).unwrap();
    fixture.click("Train a model…");
    fixture.click("Next");
    fixture.window.state_mut().train_on(data.clone());
    fixture.until("what can be used", |w| sees(w, "2 of 3 pairs can be used"));
    assert!(fixture.sees("excluded") && fixture.sees("lonely_raw.tif"), "{}", fixture.on_screen());
    // After fixing the folder, it is checked again.
    std::fs::remove_file(data.join("lonely_raw.tif")).unwrap();
    for suffix in ["raw", "labels"] {
        std::fs::remove_file(data.join(format!("embryo1_{suffix}.tif"))).unwrap();
    }
    fixture.click("Check again");
    fixture.until("the rest", |w| sees(w, "2 usable pairs"));
    // Many files without a partner are summarized, and listed on request.
    let odd = fixture.path("odd");
    std::fs::create_dir(&odd).unwrap();
    for i in 0..300 {
        std::fs::write(odd.join(format!("odd{i}_raw.tif")), "x").unwrap();
    }
    fixture.window.state_mut().train_on(odd);
    fixture.until("the summary", |w| sees(w, "300 files, such as odd") && sees(w, "No pairs"));
    assert!(fixture.window.get_by_label("Next").accesskit_node().is_disabled());
    assert!(fixture.sees("All 300 are listed in") && !fixture.sees("odd123_raw.tif"), "{}", fixture.on_screen());
    let list = std::fs::read_to_string(fixture.path("settings/data-check.txt")).unwrap();
    assert!((0..300).all(|i| list.contains(&format!("odd{i}_raw.tif"))), "{list}");
    fixture.click("Files");
    fixture.until("the files", |w| sees(w, "odd123_raw.tif"));
    // An empty folder, and one that does not exist.
    let empty = fixture.path("empty");
    std::fs::create_dir(&empty).unwrap();
    fixture.window.state_mut().train_on(empty.clone());
    fixture.until("no pairs", |w| sees(w, "no pair of an image and its target was found"));
    assert!(fixture.window.get_by_label("Next").accesskit_node().is_disabled());
    std::fs::remove_dir(&empty).unwrap();
    fixture.click("Check again");
    fixture.until("the reason", |w| sees(w, "no such file or folder; check the path"));
}

#[test]
fn the_next_button_is_below_the_page_in_a_wide_window() {
    let mut fixture = Fixture::new();
    fixture.window.set_size([2560.0, 1440.0].into());
    fixture.window.run_steps(3);
    fixture.window.state_mut().send(Command::Train);
    fixture.until("the page", |w| sees(w, "Choose a task"));
    fixture.window.run_steps(4);
    let next = fixture.window.get_by_label("Next").rect();
    assert!(next.right() < 960.0, "{next:?}");
    // The tasks are as wide as the page.
    let tasks = ["Segment objects", "Predict a stain"].map(|name| fixture.window.get_by_label(name).rect());
    assert!(
        (tasks[1].right() - next.right()).abs() < 2.0 && (tasks[0].top() - tasks[1].top()).abs() < 1.0,
        "{tasks:?} {next:?}"
    );
}
