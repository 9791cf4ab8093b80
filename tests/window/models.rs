//! Models in the window: opening a file, testing, adding, removing; converting files; the window's own file dialog.

use crate::accessibility;
use crate::fixture::{Fixture, read_json, sees};
use crate::gestures::{enter_path, save_as_suggested};
use cytoscope_builders::{DynUNet, UNet3d, Weights, dynunet, unet3d};
use cytoscope_formats::{Channel, Container, OpenOptions, WriteSpec, write_array};
use cytoscope_model_package::Package;
use cytoscope_pipeline::job_record::record_path;
use cytoscope_ui::Workbench;
use cytoscope_ui::command::Command;
use cytoscope_ui::document::Role;
use cytoscope_volume::{Array, Samples};
use eframe::egui::accesskit::Toggled;
use eframe::egui::{DroppedFile, Event, Key, Modifiers};
use egui_kittest::Harness;
use egui_kittest::kittest::{NodeT, Queryable};
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
    assert!(fixture.sees("Upload to bioimage.io"), "{}", fixture.on_screen());
    assert!(fixture.sees("import the model as a package"), "{}", fixture.on_screen());
    accessibility::check(&fixture, "a model file");
    fixture.click("Add to my models");
    fixture.until("the model", |w| sees(w, "net was added to your models"));
    let added = fixture.path("settings/models/net");
    assert!(added.join("rdf.yaml").is_file() && file.is_file());
    fixture.until("the list", |w| sees(w, "Measure here"));
    accessibility::check(&fixture, "an installed model");
    fixture.click("Measure here");
    fixture.until("the speed", |w| sees(w, "Speed on this machine") && sees(w, "million"));
    // The package has the outputs of its network as test tensors, which suffice.
    fixture.click("Dynamic");
    fixture.click("Quantize");
    fixture.until("the quantized model", |w| sees(w, "net-int8 was added to your models"));
    assert!(fixture.sees("accuracy budget"), "{}", fixture.on_screen());
    let quantized = fixture.path("settings/models/net-int8");
    assert!(quantized.join("rdf.yaml").is_file());
    fixture.click("Remove from my models…");
    fixture.click("Keep model");
    assert!(added.is_dir());
    fixture.click("Remove from my models…");
    fixture.click("Remove model");
    fixture.until("the removal", |w| sees(w, "net was removed"));
    assert!(!added.exists() && quantized.is_dir() && file.is_file());
}

#[test]
fn a_model_file_is_added_with_the_task_and_voxel_size_that_the_user_states() {
    let mut fixture = Fixture::new();
    let file = fixture.path("net.onnx");
    network(&file);
    drop_file(&mut fixture, file);
    fixture.until("the test", |w| sees(w, "segments objects"));
    fixture.click("Task");
    fixture.click("Label-free prediction");
    fixture.until("the stain", |w| sees(w, "predicts a stain"));
    fixture.until("the end of the test", |w| w.state().active_jobs() == 0);
    // The card shows the stated voxel size although the file is not tested again.
    assert!(!fixture.sees("made for"), "{}", fixture.on_screen());
    fixture.click("Voxel size");
    assert!(fixture.sees("made for 1 × 1 × 1 µm voxels"), "{}", fixture.on_screen());
    fixture.click("Voxel size");
    assert!(!fixture.sees("made for"), "{}", fixture.on_screen());
    fixture.click("Voxel size");
    accessibility::check(&fixture, "what the user states");
    fixture.click("Add to my models");
    fixture.until("the model", |w| sees(w, "net was added to your models"));
    let package = cytoscope_model_package::Package::open(&fixture.path("settings/models/net")).unwrap();
    assert_eq!(package.config()["task"], "labelfree");
    assert_eq!(package.inputs[0].voxel_um(), Some([1.0; 3]));
}

/// The record of the job that wrote a file or folder.
fn record_of(output: &Path) -> serde_json::Value {
    read_json(&record_path(output))
}

/// The weights of a model's float network in ascending order.
fn weights(model: &Path) -> Vec<f32> {
    let package = Package::open(model).unwrap();
    let all = package.float_graph.as_ref().unwrap_or(&package.graph).named_initializers();
    let mut values: Vec<f32> = all.values().filter_map(|tensor| tensor.as_f32()).flatten().copied().collect();
    values.sort_by(f32::total_cmp);
    values
}

/// The values in a safetensors file of 32-bit floats, in ascending order.
fn safetensors_values(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap();
    // Eight bytes with the length of the header, the header, the values.
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let floats = bytes[8 + header..].chunks_exact(4);
    let mut values: Vec<f32> = floats.map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
    values.sort_by(f32::total_cmp);
    values
}

#[test]
fn a_model_is_calibrated_with_the_open_stack_and_exported_in_each_format() {
    let mut fixture = Fixture::with(|folder| {
        std::fs::create_dir_all(folder.join("settings/models")).unwrap();
        network(&folder.join("settings/models/net.onnx"));
        // Only the second channel at the second time point can be used for calibration.
        let voxels = 8 * 48 * 48;
        let values: Vec<f32> =
            (0..4 * voxels).map(|i| if i / voxels == 3 { (i * 37 % 101) as f32 } else { f32::NAN }).collect();
        let array = Array::new("TCZYX".parse().unwrap(), vec![2, 2, 8, 48, 48], values).unwrap();
        let path = folder.join("stack.npy");
        write_array(&path, &array, &WriteSpec::of(&array, Container::Npy)).unwrap();
        let chosen = serde_json::json!({
            "axes_of_folder": {folder.display().to_string(): "TCZYX"}, "channels_of_model": {"net": ["Channel 1"]}
        });
        std::fs::write(folder.join("settings/settings.json"), chosen.to_string()).unwrap();
        vec![path]
    });
    fixture.settle();
    fixture.window.state_mut().send(Command::NextTime);
    fixture.settle();
    fixture.window.state_mut().use_own_file_dialog();
    fixture.window.state_mut().send(Command::Models);
    fixture.click("Model net");
    // The network has no test tensors, so without the stack there is nothing to calibrate with.
    fixture.click("Dynamic");
    fixture.click("Static");
    assert!(fixture.sees("The open stack is used for calibration."), "{}", fixture.on_screen());
    fixture.type_into("Maximum relative error", "0.2");
    fixture.window.key_press(Key::Enter);
    fixture.window.run_steps(3);
    fixture.click("Quantize");
    fixture.until("the quantized model", |w| sees(w, "net-int8 was added to your models"));
    let (net, quantized) = (fixture.path("settings/models/net.onnx"), fixture.path("settings/models/net-int8"));
    assert!(Package::open(&quantized).unwrap().is_int8() && weights(&quantized) == weights(&net));
    let record = record_of(&quantized);
    let job = &record["job"]["quantization"];
    assert!(job["mode"] == "static" && job["accuracy_budget"] == 0.2, "{record}");
    let read = &job["predictions"][0];
    assert_eq!(read["inputs"], serde_json::json!([fixture.path("stack.npy").display().to_string()]), "{record}");
    assert_eq!(
        (&read["axes"], &read["time"], &read["channels"]),
        (&"TCZYX".into(), &1.into(), &[1].into()),
        "{record}"
    );
    for (button, name, format) in [
        ("bioimage.io package…", "away.zip", "bioimageio"),
        ("ONNX…", "away.onnx", "onnx"),
        ("Weights (safetensors)…", "away.safetensors", "safetensors"),
    ] {
        let path = fixture.path(name);
        fixture.click(button);
        enter_path(&mut fixture, &path);
        fixture.until("the file", |w| sees(w, &format!("Saved {name}")));
        assert_eq!(record_of(&path)["job"]["format"], format);
        let values = if format == "safetensors" { safetensors_values(&path) } else { weights(&path) };
        assert!(!values.is_empty() && values == weights(&net), "{name}");
    }
}

/// Writes the weights of a small DynUNet as safetensors.
fn dynunet_checkpoint(path: &Path) {
    let config = DynUNet { filters: vec![4, 6], strides: vec![1, 2], ..DynUNet::default() };
    let graph = dynunet(&config, &Weights::Random { seed: 2 }).unwrap();
    let (mut header, mut data) = (serde_json::Map::new(), Vec::<u8>::new());
    for (name, tensor) in graph.named_initializers() {
        let start = data.len();
        data.extend(tensor.as_f32().unwrap().iter().flat_map(|value| value.to_le_bytes()));
        let entry = serde_json::json!({"dtype": "F32", "shape": tensor.shape(), "data_offsets": [start, data.len()]});
        header.insert(name, entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    std::fs::write(path, [(header.len() as u64).to_le_bytes().to_vec(), header, data].concat()).unwrap();
}

#[test]
fn the_chosen_architecture_of_a_checkpoint_is_tested_and_added() {
    let mut fixture = Fixture::new();
    let file = fixture.path("net.safetensors");
    dynunet_checkpoint(&file);
    drop_file(&mut fixture, file);
    let is_idle = |w: &Harness<'static, Workbench>| w.state().active_jobs() == 0;
    fixture.until("the recognized architecture", |w| sees(w, "of weights · dynunet") && is_idle(w));
    accessibility::check(&fixture, "a checkpoint");
    // The weights do not fit another one, and the earlier result is not that of this choice.
    fixture.click("Architecture");
    fixture.click("segresnet");
    fixture.until("the missing tensor", |w| sees(w, "convInit.conv.weight") && is_idle(w));
    assert!(!fixture.sees("of weights · dynunet"), "{}", fixture.on_screen());
    assert!(fixture.window.get_by_label("Add to my models").accesskit_node().is_disabled());
    fixture.click("Architecture");
    fixture.click("dynunet");
    fixture.until("the chosen architecture", |w| sees(w, "of weights · dynunet") && is_idle(w));
    fixture.click("Add to my models");
    fixture.until("the model", |w| sees(w, "net was added to your models"));
    let added = fixture.path("settings/models/net");
    assert!(Package::open(&added).unwrap().description.contains("the architecture dynunet"));
    assert_eq!(record_of(&added)["job"]["architecture"], "dynunet");
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
    // A dropped file is added to those to convert; an opened stack is shown.
    let dropped = fixture.path("dropped.npy");
    std::fs::copy(fixture.path("sample/nuclei_raw.npy"), &dropped).unwrap();
    drop_file(&mut fixture, dropped);
    fixture.until("the dropped file", |w| w.query_by_label("Remove dropped.npy from the list").is_some());
    fixture.click("Remove dropped.npy from the list");
    fixture.window.state_mut().send(Command::OpenSample);
    fixture.until("the stack", |w| !sees(w, "Convert and evaluate"));
    fixture.window.state_mut().send(Command::Convert);
    fixture.until("the page", |w| sees(w, "Convert and evaluate"));
    // An existing file is kept.
    fixture.click("Convert");
    fixture.until("the refusal", |w| sees(w, "convert failed"));
    // It is outdated once the same file was converted.
    fixture.click("Replace existing files");
    fixture.click("Convert");
    fixture.until("the success", |w| sees(w, "1 file converted") && !sees(w, "convert failed"));
}

#[test]
fn one_channel_and_the_shown_labels_of_an_open_stack_are_converted() {
    let labels: Vec<u16> = (0..3 * 8 * 9).map(|i| i / 50).collect();
    let channels: Vec<u16> = (0..2 * 3 * 8 * 9).collect();
    let mut fixture = Fixture::with(|folder| {
        let write = |name: &str, axes: &str, shape: &[usize], values: &[u16]| {
            let array = Array::new(axes.parse().unwrap(), shape.to_vec(), values.to_vec()).unwrap();
            write_array(&folder.join(name), &array, &WriteSpec::of(&array, Container::OmeTiff)).unwrap();
            folder.join(name)
        };
        write("drawn.ome.tif", "ZYX", &[3, 8, 9], &labels);
        vec![write("two.ome.tif", "CZYX", &[2, 3, 8, 9], &channels)]
    });
    fixture.settle();
    fixture.window.state_mut().use_own_file_dialog();
    fixture.window.state_mut().send(Command::OpenLabels);
    let drawn = fixture.path("drawn.ome.tif");
    enter_path(&mut fixture, &drawn);
    fixture.until("the labels", |w| w.state().document().is_some_and(|d| d.of_role(Role::Labels).is_some()));
    fixture.window.state_mut().send(Command::Convert);
    fixture.until("the page", |w| sees(w, "Convert and evaluate"));
    fixture.click("OME-Zarr");
    fixture.click("With labels of open stacks");
    fixture.click("One channel");
    fixture.type_into("One channel number", "1");
    fixture.window.key_press(Key::Enter);
    fixture.window.run_steps(3);
    accessibility::check(&fixture, "parts to convert");
    fixture.click("Convert");
    fixture.until("the file", |w| sees(w, "1 file converted"));
    let read = |series| {
        let options = OpenOptions { series, ..OpenOptions::default() };
        let image = cytoscope_formats::open(&fixture.path("two_c1.zarr"), &options).unwrap();
        image.read_all().unwrap().into_samples()
    };
    assert_eq!(read(0), Samples::U16(channels[3 * 8 * 9..].to_vec()));
    assert_eq!(read(1), Samples::U16(labels));
}

#[test]
fn conversions_are_cancelled_together() {
    let mut fixture = Fixture::new();
    let stacks = [0, 1].map(|i| {
        let path = fixture.path(&format!("stack {i}.tif"));
        std::fs::copy(fixture.path("sample/nuclei_raw.tif"), &path).unwrap();
        path
    });
    fixture.window.state_mut().open_paths(&stacks);
    fixture.until("two stacks", |w| w.state().documents().len() == 2);
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    // The conversions wait for the predictions.
    fixture.click("Predict all 2 stacks");
    fixture.until("the predictions", |w| w.state().waiting_predictions() == 2);
    fixture.window.state_mut().send(Command::Convert);
    fixture.until("the page", |w| sees(w, "Convert and evaluate"));
    fixture.click("NumPy");
    fixture.click("Convert");
    fixture.until("the start", |w| sees(w, "2 left to convert"));
    fixture.click("Cancel conversions");
    fixture.until("the end", |w| !sees(w, "to convert"));
    fixture.until("the predictions", |w| w.state().active_jobs() == 0);
    assert!(stacks.iter().all(|stack| !stack.with_extension("npy").exists()));
}

#[test]
fn queued_predictions_are_cancelled_together() {
    let mut fixture = Fixture::new();
    let stacks = [0, 1].map(|i| {
        let path = fixture.path(&format!("stack {i}.tif"));
        std::fs::copy(fixture.path("sample/nuclei_raw.tif"), &path).unwrap();
        path
    });
    fixture.window.state_mut().open_paths(&stacks);
    fixture.until("two stacks", |w| w.state().documents().len() == 2);
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    fixture.click("Predict all 2 stacks");
    fixture.until("the predictions", |w| w.state().waiting_predictions() == 2);
    fixture.window.state_mut().send(Command::CancelPredictions);
    fixture.until("the end", |w| w.state().waiting_predictions() == 0);
    assert!(!fixture.path("cytoscope/stack 1_labels.tif").exists(), "the second prediction had not begun");
}

/// Chooses a folder in the window's own file dialog, which the button opens.
fn choose_folder(fixture: &mut Fixture, button: &str, folder: &Path) {
    let path = folder.display().to_string();
    fixture.click(button);
    fixture.until("the dialog", |w| sees(w, "Choose this folder"));
    fixture.window.get_by_label("File name").click();
    fixture.window.run_steps(3);
    // A path that is pasted and accepted within one frame.
    let (key, modifiers) = (Key::Enter, Modifiers::NONE);
    let enter = Event::Key { key, physical_key: None, pressed: true, repeat: false, modifiers };
    fixture.window.input_mut().events.extend([Event::Text(path.clone()), enter]);
    fixture.until("the folder", |w| sees(w, &path));
    fixture.click("Choose this folder");
    fixture.until("no dialog", |w| !sees(w, "Choose this folder"));
}

/// Opens the page for scoring predictions, with the window's own file dialog.
fn open_evaluation(fixture: &mut Fixture) {
    fixture.window.state_mut().use_own_file_dialog();
    fixture.window.run_steps(3);
    fixture.window.state_mut().send(Command::Evaluate);
    fixture.until("the page", |w| sees(w, "Convert and evaluate"));
}

#[test]
fn predictions_are_scored_and_the_scores_are_saved() {
    let mut fixture = Fixture::new();
    let labels = Path::new(env!("CARGO_MANIFEST_DIR")).join("sample_data/nuclei_labels.tif");
    let [predicted, truth] = ["predicted", "truth"].map(|name| {
        let folder = fixture.path(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::copy(&labels, folder.join("nuclei_labels.tif")).unwrap();
        folder
    });
    open_evaluation(&mut fixture);
    choose_folder(&mut fixture, "Predictions…", &predicted);
    choose_folder(&mut fixture, "Ground truth…", &truth);
    // In a low window, the page scrolls to the scores.
    fixture.window.set_size([800.0, 480.0].into());
    fixture.click("Evaluate");
    let top_of_scores =
        |w: &Harness<'static, Workbench>| w.query_by_label("Scores").map(|heading| heading.rect().top());
    fixture.until("the scores", |w| sees(w, "1 pair") && top_of_scores(w).is_some_and(|top| top < 180.0));
    fixture.window.set_size([1360.0, 860.0].into());
    fixture.window.run_steps(5);
    // The labels are compared with themselves.
    assert!(fixture.sees("F1 at IoU 0.50") && fixture.sees("1.0000"), "{}", fixture.on_screen());
    accessibility::check(&fixture, "scores");
    fixture.click("Save scores…");
    save_as_suggested(&mut fixture);
    let table = predicted.join("scores.csv");
    fixture.until("the table", |_| table.is_file());
    let table = std::fs::read_to_string(table).unwrap();
    assert!(table.lines().count() > 1 && table.contains(",0.5,1,1,1,"), "{table}");
}

#[test]
fn a_model_has_the_scores_of_the_command_line_on_the_same_pairs() {
    let mut fixture = Fixture::with(|folder| {
        std::fs::create_dir(folder.join("settings")).unwrap();
        // The model without training is the fastest one.
        let settings = r#"{"model": "nuclei-dog", "device": "cpu"}"#;
        std::fs::write(folder.join("settings/settings.json"), settings).unwrap();
        Vec::new()
    });
    let pairs = fixture.path("pairs");
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_cytoscope"));
        let output = command.args(arguments).arg(&pairs).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    run(&["simulate", "--kind", "nuclei", "--shape", "12,64,64", "--seed", "3", "--count", "2", "--out"]);
    let printed = run(&["evaluate", "--model", "nuclei-dog", "--device", "cpu", "--json", "--data"]);
    let report: serde_json::Value = serde_json::from_slice(&printed).unwrap();
    let score = &report["instances"][0];
    assert!(score["n_true"].as_u64() > Some(0), "{report}");
    open_evaluation(&mut fixture);
    fixture.click("A model");
    fixture.until("the models", |w| sees(w, "segments objects"));
    assert!(fixture.sees("Evaluate a model") && !fixture.sees("Evaluate predictions"), "{}", fixture.on_screen());
    choose_folder(&mut fixture, "Pairs…", &pairs);
    fixture.click("Evaluate");
    fixture.until("the scores", |w| sees(w, "2 pairs · predicted by nuclei-dog"));
    let found = format!("{} of {}", score["tp"], score["n_true"]);
    let f1 = format!("{:.4}", score["f1"].as_f64().unwrap());
    assert!(fixture.sees(&found) && fixture.sees(&f1), "{found}, {f1}: {}", fixture.on_screen());
    accessibility::check(&fixture, "scores of a model");
    fixture.click("Save scores…");
    save_as_suggested(&mut fixture);
    let table = fixture.path("scores.csv");
    fixture.until("the table", |_| table.is_file());
    let table = std::fs::read_to_string(table).unwrap();
    assert!(table.lines().count() > 1 && table.contains("_raw.tif"), "{table}");
    // Scores of other settings are not those of what is shown.
    fixture.click("Predictions");
    assert!(!fixture.sees("predicted by"), "{}", fixture.on_screen());
}

/// Chooses a file in the window's own file dialog, which the button opens.
fn choose_file(fixture: &mut Fixture, button: &str, file: &Path) {
    fixture.click(button);
    enter_path(fixture, file);
}

#[test]
fn two_files_of_different_names_are_scored() {
    let mut fixture = Fixture::new();
    let labels = Path::new(env!("CARGO_MANIFEST_DIR")).join("sample_data/nuclei_labels.tif");
    let [predicted, truth] = ["predicted.tif", "truth.tif"].map(|name| fixture.path(name));
    for file in [&predicted, &truth] {
        std::fs::copy(&labels, file).unwrap();
    }
    open_evaluation(&mut fixture);
    choose_file(&mut fixture, "Prediction file…", &predicted);
    choose_file(&mut fixture, "Ground truth file…", &truth);
    fixture.click("Evaluate");
    fixture.until("the scores", |w| sees(w, "1 pair"));
    // The table of the command line for the same files.
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_cytoscope"));
    command.args(["evaluate", "--json", "--pred"]).arg(&predicted).arg("--truth").arg(&truth);
    let printed = command.output().unwrap().stdout;
    let report: serde_json::Value = serde_json::from_slice(&printed).unwrap();
    let score = &report["instances"][0];
    let found = format!("{} of {}", score["tp"], score["n_true"]);
    assert!(fixture.sees("Matched IoU") && fixture.sees(&found), "{found}: {}", fixture.on_screen());
    fixture.click("Save scores…");
    save_as_suggested(&mut fixture);
    let table = predicted.with_file_name("scores.csv");
    fixture.until("the table", |_| table.is_file());
    let table = std::fs::read_to_string(table).unwrap();
    assert!(table.lines().count() > 1 && table.contains("truth.tif"), "{table}");
}

#[test]
fn voxels_that_are_not_annotated_are_left_out_as_on_the_command_line() {
    let mut fixture = Fixture::new();
    let shape = [32, 160, 160];
    let labels = Path::new(env!("CARGO_MANIFEST_DIR")).join("sample_data/nuclei_labels.tif");
    let labels = cytoscope_formats::open(&labels, &OpenOptions::default()).unwrap().read_all().unwrap();
    let labels: Vec<u16> = labels.samples().to_f32().into_iter().map(|label| label as u16).collect();
    let write = |name: &str, values: Vec<u16>| {
        let array = Array::new("ZYX".parse().unwrap(), shape.to_vec(), values).unwrap();
        write_array(&fixture.path(name), &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        fixture.path(name)
    };
    // Every third object is missed, and only the first half of each slice is annotated.
    let predicted =
        write("predicted.tif", labels.iter().map(|label| if label.is_multiple_of(3) { 0 } else { *label }).collect());
    let is_annotated = |voxel: usize| voxel / shape[2] % shape[1] < shape[1] / 2;
    let annotated = labels.iter().enumerate().map(|(voxel, label)| if is_annotated(voxel) { *label } else { 255 });
    let truth = write("truth.tif", annotated.collect());
    let found_by_command = |options: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_cytoscope"));
        command.args(["evaluate", "--json", "--pred"]).arg(&predicted).arg("--truth").arg(&truth).args(options);
        let printed = command.output().unwrap().stdout;
        let report: serde_json::Value = serde_json::from_slice(&printed).unwrap();
        let score = &report["instances"][0];
        format!("{} of {}", score["tp"], score["n_true"])
    };
    let (all, of_annotated) = (found_by_command(&[]), found_by_command(&["--ignore-label", "255"]));
    assert_ne!(all, of_annotated);
    open_evaluation(&mut fixture);
    choose_file(&mut fixture, "Prediction file…", &predicted);
    choose_file(&mut fixture, "Ground truth file…", &truth);
    fixture.click("Evaluate");
    fixture.until("the scores", |w| sees(w, &all));
    // The label 255 is suggested.
    fixture.click("Ignore voxels with the label");
    assert!(!fixture.sees("1 pair"), "scores of other settings: {}", fixture.on_screen());
    fixture.click("Evaluate");
    fixture.until("the scores of annotated voxels", |w| sees(w, &of_annotated));
    accessibility::check(&fixture, "the label of voxels that are not annotated");
}

#[test]
fn a_channel_to_score_is_chosen_and_a_note_says_which_one_was_scored() {
    let mut fixture = Fixture::new();
    let values = |step: usize| -> Vec<f32> { (0..4 * 16 * 16).map(|i| (i * step % 101) as f32).collect() };
    let both = Array::new("CZYX".parse().unwrap(), vec![2, 4, 16, 16], [values(53), values(37)].concat()).unwrap();
    let mut spec = WriteSpec::of(&both, Container::OmeTiff);
    spec.channels = ["first", "second"].map(|name| Channel { name: name.to_owned(), color_rgb: None }).to_vec();
    let [predicted, truth] = ["predicted.ome.tif", "truth.tif"].map(|name| fixture.path(name));
    write_array(&predicted, &both, &spec).unwrap();
    let one = Array::new("ZYX".parse().unwrap(), vec![4, 16, 16], values(37)).unwrap();
    write_array(&truth, &one, &WriteSpec::of(&one, Container::ImageJ)).unwrap();
    open_evaluation(&mut fixture);
    choose_file(&mut fixture, "Prediction file…", &predicted);
    // The list of its channels moves what is below.
    fixture.until("its channels", |w| sees(w, "Prediction channel"));
    choose_file(&mut fixture, "Ground truth file…", &truth);
    fixture.click("Evaluate");
    fixture.until("the scores", |w| sees(w, "1 pair"));
    let note = "only channel 0 (first) of its 2 channels is compared";
    assert!(fixture.sees(note) && !fixture.sees("Pearson 1.0000"), "{}", fixture.on_screen());
    accessibility::check(&fixture, "scores of a channel");
    fixture.click("Prediction channel");
    fixture.click("second");
    fixture.click("Evaluate");
    fixture.until("the scores of equal channels", |w| sees(w, "Pearson 1.0000"));
    assert!(!fixture.sees(note) && !fixture.sees("Ground truth channel"), "{}", fixture.on_screen());
}

#[test]
fn a_cropped_copy_is_written_opened_and_predicted_with_new_measurements() {
    let mut fixture = Fixture::new();
    fixture.window.run_steps(3);
    fixture.click("Open the sample");
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    fixture.window.state_mut().use_own_file_dialog();
    fixture.click("Preprocessed copy");
    fixture.click("First steps of the copy");
    fixture.window.get_by_label("First steps of the copy").type_text("crop:z=0-16");
    fixture.window.run_steps(3);
    fixture.click("Open preprocessed copy…");
    save_as_suggested(&mut fixture);
    let title = "nuclei_raw_preprocessed.ome.tif – Cytoscope";
    fixture.until("the copy", |w| w.state().title() == title);
    fixture.settle();
    assert_eq!(fixture.window.state().document().unwrap().extents.zyx, [16, 160, 160]);
    assert!(fixture.path("sample/nuclei_raw_preprocessed.ome.tif").is_file());
    let again = |fixture: &Fixture| fixture.window.get_by_label("Measure again").accesskit_node().toggled();
    fixture.click("Measure again");
    assert_eq!(again(&fixture), Some(Toggled::True));
    fixture.click("Predict this stack");
    fixture.until("objects", |w| sees(w, " objects in "));
    assert_eq!(again(&fixture), Some(Toggled::False), "only one prediction measures");
}

#[test]
fn without_a_dialog_of_the_desktop_files_are_chosen_in_the_window() {
    let mut fixture = Fixture::new();
    fixture.window.state_mut().use_own_file_dialog();
    fixture.window.run_steps(3);
    fixture.window.state_mut().send(Command::Open);
    fixture.until("the dialog", |w| sees(w, "Open stacks or models"));
    accessibility::check(&fixture, "the file dialog");
    fixture.window.key_press(Key::Escape);
    fixture.until("no dialog", |w| !sees(w, "Open stacks or models"));
    fixture.click("Drop a stack here");
    fixture.until("the dialog", |w| sees(w, "Open stacks or models"));
    let path = fixture.path("sample/nuclei_raw.tif").display().to_string();
    fixture.window.get_by_label("File name").click();
    fixture.window.run_steps(3);
    // Enter may arrive in the same frame as the letters before it.
    let enter =
        Event::Key { key: Key::Enter, physical_key: None, pressed: true, repeat: false, modifiers: Modifiers::NONE };
    fixture.window.input_mut().events.extend([Event::Text(path), enter]);
    fixture.settle();
    assert_eq!(fixture.window.state().title(), "nuclei_raw.tif – Cytoscope");
    assert!(!fixture.sees("Open stacks or models"), "{}", fixture.on_screen());
}

/// Writes an engine process that lists a GPU only when it is asked to look for devices again.
#[cfg(unix)]
fn engine_with_a_new_gpu(folder: &Path) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let ready = format!(
        "{{\"reply\":\"ready\",\"version\":{},\"program\":\"0\",\"pid\":'$$',\"folder\":\"/nowhere/at-all\"}}",
        cytoscope_worker::PROTOCOL_VERSION
    );
    let device = |id: &str, name: &str, shortcomings: &str| {
        let about = "\"memory_bytes\":null,\"usable\":true,\"reason\":\"works\",\"precisions\":[\"f32\"]";
        format!("{{\"id\":\"{id}\",\"name\":\"{name}\",{about},\"shortcomings\":[{shortcomings}]}}")
    };
    let cpu = device("cpu", "A processor", "");
    let lacks = "{\"kind\":\"missing_headers\",\"headers\":[\"mma.h\"],\"advice\":\"tf32, f16 and bf16 need mma.h\"}";
    let gpu = device("cuda:0", "A new GPU", lacks);
    let script = format!(
        "#!/bin/sh\nread -r hello\necho '{ready}'\nwhile read -r line; do\nid=${{line##*\\\"id\\\":}}\nid=${{id%%[!0-9]*}}\n\
         case \"$line\" in\n\
         *again*) echo '{{\"reply\":\"devices\",\"id\":'$id',\"devices\":[{gpu},{cpu}]}}';;\n\
         *devices*) echo '{{\"reply\":\"devices\",\"id\":'$id',\"devices\":[{cpu}]}}';;\n\
         *models*) echo '{{\"reply\":\"models\",\"id\":'$id',\"models\":[]}}';;\n\
         esac\ndone\n"
    );
    let program = folder.join("engine");
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    program
}

#[cfg(unix)]
#[test]
fn devices_are_looked_for_again() {
    let mut fixture = Fixture::with_program(engine_with_a_new_gpu);
    fixture.window.state_mut().send(Command::Models);
    fixture.until("the devices", |w| sees(w, "A processor"));
    assert!(!fixture.sees("A new GPU"), "{}", fixture.on_screen());
    fixture.click("Look for devices again");
    fixture.until("the new GPU", |w| sees(w, "A new GPU"));
    assert!(!fixture.window.get_by_label("Look for devices again").accesskit_node().is_disabled());
    let lacks = "Slower than it could be: tf32, f16 and bf16 need mma.h";
    assert!(fixture.sees(lacks), "{}", fixture.on_screen());
    accessibility::check(&fixture, "the devices");
}
