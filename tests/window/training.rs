//! Teaching a model in the window: from a folder to a model that predicts; pausing, closing, and going on.

use crate::desk::{Desk, sees, window, window_with};
use crate::{hand, names};
use cytoscope_formats::{Container, WriteSpec, write_array};
use cytoscope_simulate::{Kind, Settings, Simulation, simulate};
use cytoscope_train::{NetworkConfig, TrainConfig};
use cytoscope_ui::training::plan::Step;
use cytoscope_ui::training::run::RunState;
use cytoscope_ui::{Workbench, WorkbenchOptions};
use cytoscope_volume::Array;
use eframe::egui::{Key, Modifiers, Theme, ViewportCommand, ViewportEvent, ViewportId};
use egui_kittest::Harness;
use egui_kittest::kittest::{NodeT, Queryable};
use std::path::{Path, PathBuf};

/// A network and steps that take seconds.
fn tiny(steps: usize) -> TrainConfig {
    let mut config = TrainConfig { patch_zyx: Some([4, 16, 16]), batch: Some(1), ..TrainConfig::default() };
    config.network.filters = vec![4, 8];
    config.network.strides = vec![[1, 2, 2]];
    config.network.convs_per_block = 1;
    config.budget.steps = Some(steps);
    config.validation.times = 6;
    config
}

/// Writes `NAME_raw.tif` and, as there are, `NAME_labels.tif` and `NAME_target.tif`.
fn write_pair(folder: &Path, name: &str, made: Simulation) {
    for (ending, array) in [("raw", Some(made.raw)), ("labels", made.labels), ("target", made.target)] {
        let Some(array) = array else { continue };
        let mut spec = WriteSpec::of(&array, Container::ImageJ);
        spec.voxel_size_um = made.voxel_size_um;
        write_array(&folder.join(format!("{name}_{ending}.tif")), &array, &spec).unwrap();
    }
}

/// A folder of simulated pairs.
fn pairs(folder: &Path, n: u64) -> PathBuf {
    let data = folder.join("embryos");
    std::fs::create_dir_all(&data).unwrap();
    for i in 0..n {
        let made = simulate(&Settings::new(Kind::Nuclei, [8, 48, 48], i), |_| true).unwrap();
        write_pair(&data, &format!("embryo{i}"), made);
    }
    data
}

/// A window with tiny trainings, and pairs to learn from.
fn desk(steps: usize) -> (Desk, PathBuf) {
    let desk = Desk::new();
    let data = pairs(desk.folder.path(), 3);
    let Desk { folder, window: other } = desk;
    drop(other);
    let window = window_with(folder.path(), Vec::new(), tiny(steps));
    (Desk { window, folder }, data)
}

/// Another window takes the place of the one that was there.
fn next_window(desk: &mut Desk, steps: usize) {
    let elsewhere = tempfile::tempdir().unwrap();
    desk.window = window(elsewhere.path(), Vec::new());
    desk.window = window_with(desk.folder.path(), Vec::new(), tiny(steps));
    desk.window.run_steps(3);
}

/// A window that is drawn, at the size it is.
fn drawn(home: &Path, steps: usize) -> Harness<'static, Workbench> {
    let options = WorkbenchOptions {
        program: Some(PathBuf::from(env!("CARGO_BIN_EXE_cytoscope"))),
        settings_path: Some(home.join("settings/settings.json")),
        sample: Some(home.join("sample/nuclei_raw.tif")),
        train_config: TrainConfig {
            patch_zyx: Some([8, 32, 32]),
            network: NetworkConfig { filters: vec![8, 16], ..tiny(steps).network },
            ..tiny(steps)
        },
        ..WorkbenchOptions::default()
    };
    let builder = Harness::builder().with_size([1360.0, 860.0]).with_step_dt(1.0 / 60.0).wgpu();
    builder.build_eframe(move |cc| Workbench::new(&cc.egui_ctx, options))
}

/// Takes pictures of a step: light and dark, and small.
fn take(desk: &mut Desk, to: &Path, name: &str) {
    for (look, theme, size) in [
        ("light", Theme::Light, [1360.0, 860.0]),
        ("dark", Theme::Dark, [1360.0, 860.0]),
        ("small", Theme::Dark, [1024.0, 700.0]),
    ] {
        desk.window.set_size(size.into());
        desk.window.ctx.set_theme(theme);
        // Thumbnails come when they are first drawn.
        for _ in 0..20 {
            desk.window.step();
            std::thread::sleep(std::time::Duration::from_millis(15));
        }
        desk.window.render().unwrap().save(to.join(format!("{name}_{look}.png"))).unwrap();
    }
    desk.window.set_size([1360.0, 860.0].into());
    desk.window.run_steps(3);
}

#[test]
#[ignore = "takes the pictures of the guide: CYTOSCOPE_PICTURES names a folder for them"]
fn pictures_of_every_step() {
    let to = PathBuf::from(std::env::var_os("CYTOSCOPE_PICTURES").expect("a folder is named"));
    std::fs::create_dir_all(&to).unwrap();
    let desk = Desk::new();
    let data = pairs(desk.folder.path(), 6);
    let Desk { folder, window: other } = desk;
    drop(other);
    let mut desk = Desk { window: drawn(folder.path(), 1500), folder };
    desk.window.run_steps(4);
    take(&mut desk, &to, "0_empty");
    desk.click("Teach a model…");
    take(&mut desk, &to, "1_task");
    desk.click("Next");
    take(&mut desk, &to, "2_no_data");
    // One pair with a fault.
    let made = simulate(&Settings::new(Kind::Nuclei, [6, 40, 48], 9), |_| true).unwrap();
    let labels = made.labels.unwrap();
    write_array(&data.join("embryo3_labels.tif"), &labels, &WriteSpec::of(&labels, Container::ImageJ)).unwrap();
    std::fs::copy(data.join("embryo0_raw.tif"), data.join("lonely_raw.tif")).unwrap();
    desk.window.state_mut().train_on(data);
    desk.until("the pairs", |w| sees(w, "5 of 6 pairs can be used"));
    take(&mut desk, &to, "2_data");
    desk.click("Next");
    desk.until("the models", |w| w.query_by_label("nuclei").is_some());
    take(&mut desk, &to, "3_start");
    desk.click("Start training");
    take(&mut desk, &to, "4_preparing");
    desk.until("many steps", |w| w.state().wizard().run.step() >= 800);
    take(&mut desk, &to, "4_training");
    desk.click("Pause training");
    desk.until("the pause", |w| w.state().wizard().run.state == RunState::Paused);
    desk.click("Stop…");
    take(&mut desk, &to, "4_paused");
    desk.click("Keep it");
    desk.click("Continue training");
    desk.until("the results", |w| w.state().wizard().plan.step == Step::Results);
    take(&mut desk, &to, "5_results");
    desk.click("Next");
    take(&mut desk, &to, "6_use");
    desk.click("Save to my models");
    desk.until("the model", |w| sees(w, "Saved among your models."));
    take(&mut desk, &to, "6_saved");
}

/// From the first step to the one before training, with data that are dropped.
fn to_start(desk: &mut Desk, data: &Path) {
    desk.click("Teach a model…");
    desk.click("Segment objects");
    desk.click("Next");
    let file = eframe::egui::DroppedFile { path: Some(data.to_owned()), ..Default::default() };
    desk.window.input_mut().dropped_files.push(file);
    desk.window.step();
    desk.window.input_mut().dropped_files.clear();
    desk.until("the pairs", |w| sees(w, "3 pairs to learn from"));
    desk.click("Next");
    desk.until("the start", |w| sees(w, "What should it begin from?"));
    desk.until("what can be taught", |w| w.query_by_label("nuclei").is_some());
    assert!(!desk.sees("nuclei-dog"), "its filters were made by hand");
}

fn begin(desk: &mut Desk, data: &Path) {
    to_start(desk, data);
    desk.click("Start training");
    desk.until("a training", |w| w.state().is_training());
}

fn step_of(desk: &Desk) -> u64 {
    desk.window.state().wizard().run.step()
}

#[test]
fn from_a_folder_to_a_model_that_predicts() {
    let (mut desk, data) = desk(4);
    desk.click("Teach a model…");
    names::check(&desk, "task");
    desk.click("Next");
    names::check(&desk, "data");
    assert!(desk.sees("Drop a folder of pairs here"), "{}", desk.on_screen());
    assert!(desk.window.get_by_label("Next").accesskit_node().is_disabled(), "nothing is chosen yet");
    // Typed this time.
    desk.window.get_by_label("Training data").focus();
    desk.window.run_steps(2);
    desk.window.get_by_label("Training data").type_text(&data.display().to_string());
    desk.window.run_steps(2);
    desk.window.key_press(Key::Enter);
    desk.until("the pairs", |w| sees(w, "3 pairs to learn from"));
    assert!(desk.sees("1 of 3 pairs are for validation") && desk.sees("8 × 48 × 48 voxels"), "{}", desk.on_screen());
    assert!(desk.sees("image of embryo0") && desk.sees("target of embryo2"), "{}", desk.on_screen());
    names::check(&desk, "pairs");
    desk.click("Next");
    names::check(&desk, "start");
    desk.click("Quick");
    desk.click("A new network");
    // What it takes here is measured while one chooses.
    desk.until("what a step takes", |w| sees(w, "On this machine a step takes") && sees(w, "steps in 5 minutes"));
    assert_eq!(desk.window.state().wizard().plan.name, "embryos");
    desk.click("Start training");
    desk.until("what was measured", |w| sees(w, "4 steps are planned"));
    desk.until("the results", |w| w.state().wizard().plan.step == Step::Results);
    names::check(&desk, "results");
    let report = desk.window.state().wizard().report.clone().unwrap();
    assert_eq!((report.steps, report.train_pairs, report.validation_pairs), (4, 2, 1));
    desk.until("the sentence", |w| sees(w, "The model learnt the task from scratch."));
    desk.until("a picture of an image kept back", |w| sees(w, "What the model makes of an image kept back"));
    names::check(&desk, "results with a picture");
    let kept_back = &report.pairs_after[0].name;
    assert!(desk.sees("F1 at overlap 0.5") && desk.sees(kept_back), "{}", desk.on_screen());
    desk.click("Next");
    let holds_int8 = !report.after_int8.is_empty();
    assert_eq!(desk.sees("Size and speed on this machine"), holds_int8, "{}", desk.on_screen());
    desk.click("Save to my models");
    desk.until("the model", |w| sees(w, "Saved among your models."));
    let saved = desk.path("settings/models/embryos");
    let package = cytoscope_graph::package::Package::open(&saved).unwrap();
    assert_eq!(package.name, "embryos");
    // Given away, as the dialog would.
    let (zip, onnx) = (desk.path("away.zip"), desk.path("away.onnx"));
    for (format, path) in [("Zip", &zip), ("Onnx", &onnx)] {
        use cytoscope_ui::training::models::Format;
        let format = if format == "Zip" { Format::Zip } else { Format::Onnx };
        desk.window.state_mut().export_model(format, path.clone());
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        desk.until("the export", |w| sees(w, &format!("Saved {name}")));
    }
    assert!(cytoscope_graph::package::Package::open(&zip).is_ok() && onnx.is_file());
    // It predicts.
    desk.until("its place in the list", |w| !w.get_by_label("Predict with it").accesskit_node().is_disabled());
    names::check(&desk, "saved");
    desk.click("Predict with it");
    desk.click("Open the sample");
    desk.settle();
    assert_eq!(desk.window.state().settings().model, "embryos");
    desk.until("the model", |w| sees(w, "taught with Cytoscope"));
    desk.click("Predict this stack");
    desk.until("a result", |_| desk_labels(&zip).is_file());
    // The next one begins with the first step.
    desk.window.key_press_modifiers(Modifiers::COMMAND | Modifiers::SHIFT, Key::T);
    desk.click("Teach another model");
    assert_eq!(desk.window.state().wizard().plan.step, Step::Task);
}

/// Labels of the sample, beside what was exported.
fn desk_labels(zip: &Path) -> PathBuf {
    zip.with_file_name("sample").join("cytoscope/nuclei_raw_labels.tif")
}

#[test]
fn a_stain_is_taught_from_pairs_of_images() {
    let desk = Desk::new();
    let data = desk.path("dishes");
    std::fs::create_dir(&data).unwrap();
    for i in 0..3 {
        let mut made = simulate(&Settings::new(Kind::LabelFree, [8, 48, 48], i), |_| true).unwrap();
        made.labels = None;
        write_pair(&data, &format!("dish{i}"), made);
    }
    let Desk { folder, window: other } = desk;
    drop(other);
    let mut desk = Desk { window: window_with(folder.path(), Vec::new(), tiny(4)), folder };
    desk.click("Teach a model…");
    desk.click("Predict a stain");
    desk.click("Next");
    assert!(desk.window.get_by_label("Use my corrections").accesskit_node().is_disabled(), "labels are no stain");
    desk.window.state_mut().train_on(data);
    desk.until("the pairs", |w| sees(w, "3 pairs to learn from"));
    names::check(&desk, "pairs of a stain");
    desk.click("Next");
    desk.click("Start training");
    desk.until("the results", |w| w.state().wizard().plan.step == Step::Results);
    let report = desk.window.state().wizard().report.clone().unwrap();
    assert!(report.after.contains_key("pearson") && !report.after.contains_key("f1@0.5"), "{:?}", report.after);
    assert!(desk.sees("Pearson's correlation"), "{}", desk.on_screen());
    desk.until("a picture", |w| sees(w, "What the model makes of an image kept back"));
    names::check(&desk, "results of a stain");
    desk.click("Next");
    desk.click("Save to my models");
    desk.until("the model", |w| sees(w, "Saved among your models."));
    let saved = cytoscope_graph::package::Package::open(&desk.path("settings/models/dishes")).unwrap();
    assert_eq!(saved.config()["task"], "labelfree");
}

#[test]
fn masks_teach_foreground() {
    let desk = Desk::new();
    let data = desk.path("masks");
    std::fs::create_dir(&data).unwrap();
    for i in 0..3 {
        let mut made = simulate(&Settings::new(Kind::Nuclei, [8, 48, 48], i), |_| true).unwrap();
        let labels = made.labels.take().unwrap();
        let mask: Vec<u8> = labels.samples().to_f32().iter().map(|v| u8::from(*v > 0.0) * 255).collect();
        made.labels = Some(Array::new(labels.axes().clone(), labels.shape().to_vec(), mask).unwrap());
        write_pair(&data, &format!("mask{i}"), made);
    }
    let Desk { folder, window: other } = desk;
    drop(other);
    let mut desk = Desk { window: window_with(folder.path(), Vec::new(), tiny(4)), folder };
    let only = "Learn foreground only, not single objects";
    desk.click("Teach a model…");
    desk.click("Next");
    desk.window.state_mut().train_on(data);
    desk.until("what is wrong", |w| sees(w, "0 of 3 pairs can be used"));
    assert!(desk.sees("cannot be told apart"), "{}", desk.on_screen());
    desk.click(only);
    desk.until("the pairs", |w| sees(w, "3 pairs to learn from"));
    names::check(&desk, "masks");
    // It is chosen in the next window, too.
    next_window(&mut desk, 4);
    desk.click("Teach a model…");
    desk.until("the pairs", |w| sees(w, "3 pairs to learn from"));
    // Another task knows no foreground.
    desk.click("Back");
    desk.click("Predict a stain");
    desk.click("Next");
    assert!(!desk.sees(only), "{}", desk.on_screen());
    desk.click("Back");
    desk.click("Segment objects");
    desk.click("Next");
    desk.until("what is wrong", |w| sees(w, "0 of 3 pairs can be used"));
    desk.click(only);
    desk.until("the pairs", |w| sees(w, "3 pairs to learn from"));
    desk.click("Next");
    desk.click("A new network");
    desk.click("Start training");
    desk.until("the results", |w| w.state().wizard().plan.step == Step::Results);
    let report = desk.window.state().wizard().report.clone().unwrap();
    assert_eq!((report.metric.as_str(), report.train_pairs), ("Dice", 2));
}

#[test]
fn what_was_taught_and_not_saved_is_not_lost() {
    let (mut desk, data) = desk(4);
    to_start(&mut desk, &data);
    desk.click("Start training");
    desk.until("the results", |w| w.state().wizard().plan.step == Step::Results);
    let first = desk.window.state().wizard().report.clone().unwrap().out;
    // The next one takes its place.
    desk.click("Step 3: Start and time");
    desk.click("Start training");
    desk.until("the first one", |w| sees(w, "embryos is among your models"));
    assert!(!first.exists(), "it lies among the models");
    desk.until("the next results", |w| w.state().wizard().plan.step == Step::Results);
    assert_eq!(desk.window.state().wizard().plan.saved, None, "that was the first one");
    let second = desk.window.state().wizard().report.clone().unwrap().out;
    desk.click("Next");
    assert!(desk.sees("There is a model of this name already"), "{}", desk.on_screen());
    desk.click("Teach another model");
    desk.until("the second one", |w| sees(w, "embryos 2 is among your models"));
    let wizard = desk.window.state().wizard();
    assert!(wizard.report.is_none() && wizard.plan.saved.is_none() && wizard.plan.step == Step::Task);
    assert!(!second.exists(), "it lies among the models");
    for name in ["embryos", "embryos 2"] {
        let saved = desk.path("settings/models").join(name);
        assert_eq!(cytoscope_graph::package::Package::open(&saved).unwrap().name, name);
    }
}

#[test]
fn a_model_for_something_else_is_not_begun_from() {
    let (mut desk, data) = desk(4);
    to_start(&mut desk, &data);
    let from = |desk: &Desk| desk.window.state().wizard().plan.from.clone();
    let stain = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/labelfree-nuclei");
    desk.window.state_mut().start_from_file(stain.clone());
    desk.until("the reason", |w| sees(w, "It predicts a stain"));
    assert!(desk.sees("labelfree-nuclei cannot be begun from"), "{}", desk.on_screen());
    assert_eq!(from(&desk), "scratch");
    // Its bare network does not say what it is for.
    let package = cytoscope_graph::package::Package::open(&stain).unwrap();
    let own = desk.path("own.onnx");
    package.float_graph.unwrap_or(package.graph).save(&own).unwrap();
    desk.window.state_mut().start_from_file(own.clone());
    let own = own.display().to_string();
    desk.until("the file", |w| w.state().wizard().plan.from == own);
    desk.click("A new network");
    assert_eq!(from(&desk), "scratch");
    desk.click("own");
    assert_eq!(from(&desk), own);
    // The next window begins from it, too, unless it has gone.
    next_window(&mut desk, 4);
    assert_eq!(from(&desk), own);
    std::fs::remove_file(&own).unwrap();
    next_window(&mut desk, 4);
    assert_eq!(from(&desk), "scratch");
}

#[test]
fn corrections_are_what_a_model_is_taught_from() {
    let desk = Desk::new();
    let home = desk.folder.path().to_owned();
    std::fs::create_dir_all(home.join("settings")).unwrap();
    let settings = format!(r#"{{"dataset_folder": {:?}}}"#, home.join("mine").display().to_string());
    std::fs::write(home.join("settings/settings.json"), settings).unwrap();
    let Desk { folder, window: other } = desk;
    drop(other);
    let sample = home.join("sample/nuclei_raw.tif");
    let mut desk = Desk { window: window_with(&home, vec![sample], tiny(3)), folder };
    desk.settle();
    hand::begin(&mut desk);
    for row in [30.0, 60.0, 90.0, 120.0] {
        hand::stroke(&mut desk, (row, 20.0), (row, 110.0));
        desk.click("New label");
    }
    desk.click("Use as training data");
    desk.until("the pair", |w| sees(w, "Training pair nuclei_raw added"));
    desk.window.key_press_modifiers(Modifiers::COMMAND | Modifiers::SHIFT, Key::T);
    desk.window.step();
    desk.click("Next");
    desk.click("Use my corrections");
    desk.until("the pair", |w| sees(w, "1 pair to learn from"));
    assert_eq!(desk.window.state().wizard().plan.data.as_deref(), Some(home.join("mine").as_path()));
    desk.click("Next");
    desk.click("A new network");
    desk.click("Start training");
    desk.until("the results", |w| w.state().wizard().plan.step == Step::Results);
    assert_eq!(desk.window.state().wizard().report.as_ref().unwrap().train_pairs, 1);
}

#[test]
fn a_folder_with_a_problem_shows_it_and_what_to_do() {
    let (mut desk, data) = desk(4);
    // A label image of another size, and an image that pairs with nothing.
    let made = simulate(&Settings::new(Kind::Nuclei, [6, 40, 48], 9), |_| true).unwrap();
    let labels = made.labels.unwrap();
    write_array(&data.join("embryo1_labels.tif"), &labels, &WriteSpec::of(&labels, Container::ImageJ)).unwrap();
    std::fs::copy(data.join("embryo0_raw.tif"), data.join("lonely_raw.tif")).unwrap();
    desk.click("Teach a model…");
    desk.click("Next");
    desk.window.state_mut().train_on(data.clone());
    desk.until("what can be used", |w| sees(w, "2 of 3 pairs can be used"));
    assert!(desk.sees("left out") && desk.sees("lonely_raw.tif"), "{}", desk.on_screen());
    // Mended, it is looked through again.
    std::fs::remove_file(data.join("lonely_raw.tif")).unwrap();
    for ending in ["raw", "labels"] {
        std::fs::remove_file(data.join(format!("embryo1_{ending}.tif"))).unwrap();
    }
    desk.click("Look again");
    desk.until("the rest", |w| sees(w, "2 pairs to learn from"));
    // Many things that pair with nothing are summed up, and listed where one wants to know.
    let odd = desk.path("odd");
    std::fs::create_dir(&odd).unwrap();
    for i in 0..300 {
        std::fs::write(odd.join(format!("odd{i}_raw.tif")), "x").unwrap();
    }
    desk.window.state_mut().train_on(odd);
    desk.until("the summary", |w| sees(w, "300 files, such as odd") && sees(w, "No pairs"));
    assert!(desk.window.get_by_label("Next").accesskit_node().is_disabled());
    assert!(desk.sees("All 300 are listed in") && !desk.sees("odd123_raw.tif"), "{}", desk.on_screen());
    let list = std::fs::read_to_string(desk.path("settings/data-check.txt")).unwrap();
    assert!((0..300).all(|i| list.contains(&format!("odd{i}_raw.tif"))), "{list}");
    desk.click("Which files");
    desk.until("the files", |w| sees(w, "odd123_raw.tif"));
    // A folder that holds nothing, and one that is not there.
    let empty = desk.path("empty");
    std::fs::create_dir(&empty).unwrap();
    desk.window.state_mut().train_on(empty.clone());
    desk.until("no pairs", |w| sees(w, "no pair of an image and its target was found"));
    assert!(desk.window.get_by_label("Next").accesskit_node().is_disabled());
    std::fs::remove_dir(&empty).unwrap();
    desk.click("Look again");
    desk.until("the reason", |w| sees(w, "check that the path exists"));
}

#[test]
fn a_training_is_paused_and_goes_on() {
    let (mut desk, data) = desk(40_000);
    begin(&mut desk, &data);
    desk.until("some steps", |w| w.state().wizard().run.step() >= 3);
    desk.click("Pause training");
    desk.until("the pause", |w| w.state().wizard().run.state == RunState::Paused);
    let at = step_of(&desk);
    assert!(at < 40_000, "it was paused in the middle");
    assert!(desk.sees("Continue training"), "{}", desk.on_screen());
    names::check(&desk, "paused");
    desk.click("Continue training");
    desk.until("further steps", |w| w.state().wizard().run.step() > at);
    let steps: Vec<u64> = desk.window.state().wizard().run.history.steps.iter().map(|p| p.step).collect();
    assert!(steps.windows(2).all(|w| w[0] < w[1]) && steps[0] <= 100, "one curve: {steps:?}");
    // Its engine is killed: the failure is told, and it goes on from what was kept.
    let pid = desk.window.state().engine_pid().unwrap();
    std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
    desk.until("the failure", |w| matches!(w.state().wizard().run.state, RunState::Failed(_)));
    assert!(desk.sees("the engine process ended"), "{}", desk.on_screen());
    desk.click("Continue training");
    desk.until("it goes on", |w| w.state().wizard().run.step() > at);
    // Stopped, nothing of it is left.
    let folder = desk.window.state().wizard().plan.job.as_ref().unwrap().folder();
    assert!(folder.is_dir());
    desk.click("Stop…");
    desk.click("Stop and throw away");
    desk.until("the end", |w| w.state().wizard().run.state == RunState::Idle);
    desk.until("an empty place", |_| !folder.exists());
    assert_eq!(desk.window.state().wizard().plan.step, Step::Start);
}

#[test]
fn what_it_makes_of_an_image_kept_back_is_seen_while_it_learns() {
    const STEPS: usize = 6000;
    let (mut desk, data) = desk(STEPS);
    begin(&mut desk, &data);
    let pictured = "What the network makes of an image kept back";
    desk.until("a picture", |w| sees(w, pictured));
    let (step, size) = {
        let shown = desk.window.state().wizard().run.shown.as_ref().unwrap();
        assert!(shown.caption.contains("of 8"), "{}", shown.caption);
        (shown.step.unwrap(), shown.size())
    };
    // 48 voxels a side, six times as large.
    assert_eq!(size, [288, 288]);
    assert!(desk.sees(&format!("after step {step}")) && desk.sees("found"), "{}", desk.on_screen());
    names::check(&desk, "picture");
    desk.until("the next one", |w| w.state().wizard().run.shown.as_ref().is_some_and(|s| s.step > Some(step)));
    // It is there in the next window, too.
    desk.click("Pause training");
    desk.until("the pause", |w| w.state().wizard().run.state == RunState::Paused);
    next_window(&mut desk, STEPS);
    desk.click("Teach a model…");
    desk.until("the last picture", |w| sees(w, pictured));
    desk.click("Stop…");
    desk.click("Stop and throw away");
    desk.until("the end", |w| w.state().wizard().run.state == RunState::Idle);
    assert!(desk.window.state().wizard().run.shown.is_none());
}

#[test]
fn a_training_is_finished_with_the_best_so_far() {
    for paused in [false, true] {
        let (mut desk, data) = desk(40_000);
        begin(&mut desk, &data);
        desk.until("some steps", |w| w.state().wizard().run.step() >= 3);
        if paused {
            desk.click("Pause training");
            desk.until("the pause", |w| w.state().wizard().run.state == RunState::Paused);
        }
        desk.click("Finish now");
        assert!(matches!(desk.window.state().wizard().run.state, RunState::Finishing(_)));
        assert!(desk.sees("Finishing") && !desk.sees("Pause training"), "{}", desk.on_screen());
        names::check(&desk, "finishing");
        desk.until("the results", |w| w.state().wizard().plan.step == Step::Results);
        let report = desk.window.state().wizard().report.clone().unwrap();
        assert!(report.steps >= 3 && report.steps < 40_000, "{}", report.steps);
        assert!(report.history.notes.iter().any(|n| n.starts_with("Finished early")), "{:?}", report.history.notes);
        assert!(cytoscope_graph::package::Package::open(&report.out).is_ok());
        desk.until("the page", |w| sees(w, "Finished early"));
        assert!(desk.window.state().wizard().plan.job.is_none());
    }
}

#[test]
fn closing_in_the_middle_loses_nothing() {
    // Enough to be closed in their middle.
    const STEPS: usize = 4000;
    let (mut desk, data) = desk(STEPS);
    to_start(&mut desk, &data);
    // Choices come back.
    desk.click("Thorough");
    next_window(&mut desk, STEPS);
    desk.click("Teach a model…");
    desk.until("the step that was open", |w| sees(w, "What should it begin from?"));
    assert!((desk.window.state().wizard().plan.minutes - 60.0).abs() < 1e-9);
    desk.until("the pairs", |w| w.state().wizard().is_usable());
    desk.click("Start training");
    desk.until("some steps", |w| w.state().wizard().run.step() >= 3);
    // The button of the window's frame.
    let told = |desk: &Desk, command: &ViewportCommand| {
        desk.window.output().viewport_output.get(&ViewportId::ROOT).is_some_and(|v| v.commands.contains(command))
    };
    desk.window.input_mut().viewports.entry(ViewportId::ROOT).or_default().events.push(ViewportEvent::Close);
    desk.window.step();
    assert!(told(&desk, &ViewportCommand::CancelClose), "what was learnt is kept first");
    desk.until("the end", |w| {
        w.output().viewport_output.get(&ViewportId::ROOT).is_some_and(|v| v.commands.contains(&ViewportCommand::Close))
    });
    let at = step_of(&desk);
    next_window(&mut desk, STEPS);
    desk.until("the offer", |w| sees(w, "The training of embryos was not finished."));
    desk.click("Continue the training");
    desk.until("the results", |w| w.state().wizard().plan.step == Step::Results);
    let report = desk.window.state().wizard().report.clone().unwrap();
    let steps: Vec<u64> = report.history.steps.iter().map(|p| p.step).collect();
    assert_eq!((steps[0], report.steps), (10, STEPS as u64), "one curve from its beginning");
    assert!(at >= 3 && steps.contains(&at), "{at}: {steps:?}");
    // Results are there in the next window, too.
    next_window(&mut desk, STEPS);
    assert!(!desk.sees("was not finished"), "{}", desk.on_screen());
    desk.click("Teach a model…");
    desk.until("the results", |w| sees(w, "How good is embryos?"));
}
