//! Models in the window: opening a file, testing, adding, quantizing, exporting, removing; the devices that run them.

use crate::accessibility;
#[cfg(unix)]
use crate::fixture::write_script;
use crate::fixture::{Fixture, read_json, sees};
use crate::gestures::{drop_file, enter_path};
use cytoscope_builders::{DynUNet, UNet3d, Weights, dynunet, unet3d};
use cytoscope_formats::{Container, WriteSpec, write_array};
use cytoscope_model_package::Package;
use cytoscope_pipeline::job_record::record_path;
use cytoscope_ui::Workbench;
use cytoscope_ui::command::Command;
use cytoscope_volume::Array;
use eframe::egui::Key;
use egui_kittest::Harness;
use egui_kittest::kittest::{NodeT, Queryable};
use std::path::Path;

/// Writes a small network.
fn network(path: &Path) {
    let config = UNet3d { filters: vec![4, 8], strides: vec![[2; 3]], convs_per_block: 1, ..UNet3d::default() };
    cytoscope_onnx::save(&unet3d(&config, &Weights::Random { seed: 3 }).unwrap(), path).unwrap();
}

/// Whether a text with these words is inside the window.
fn is_in_view(window: &Harness<'static, Workbench>, words: &str) -> bool {
    let place = window.ctx.content_rect();
    window.query_all_by_label_contains(words).any(|node| place.contains_rect(node.rect()))
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
    fixture.click_enabled("Add to my models");
    fixture.until("the model", |w| sees(w, "net was added to your models"));
    let added = fixture.path("settings/models/net");
    assert!(added.join("rdf.yaml").is_file() && file.is_file() && record_path(&added).is_file());
    fixture.until("the list", |w| sees(w, "Measure here"));
    accessibility::check(&fixture, "an installed model");
    fixture.click_enabled("Measure here");
    fixture.until("the speed", |w| sees(w, "Speed on this machine") && sees(w, "million"));
    fixture.until("the speed in view", |w| is_in_view(w, "Speed on this machine") && is_in_view(w, "million"));
    // The package has the outputs of its network as test tensors, which suffice.
    fixture.click("Dynamic");
    fixture.click_enabled("Quantize");
    fixture.until("the quantized model", |w| sees(w, "net-int8 was added to your models"));
    assert!(fixture.sees("accuracy budget"), "{}", fixture.on_screen());
    fixture.until("the quantization in view", |w| is_in_view(w, "Agreement of"));
    assert!(fixture.sees("Calibrated on the package's test tensor alone"), "{}", fixture.on_screen());
    let quantized = fixture.path("settings/models/net-int8");
    assert!(quantized.join("rdf.yaml").is_file());
    fixture.click("Remove from my models…");
    fixture.click("Keep model");
    assert!(added.is_dir());
    fixture.click("Remove from my models…");
    fixture.click("Remove model");
    fixture.until("the removal", |w| sees(w, "net was removed"));
    assert!(!added.exists() && quantized.is_dir() && file.is_file());
    assert!(!record_path(&added).exists() && record_path(&quantized).is_file());
}

#[test]
fn a_model_file_is_added_with_the_task_and_voxel_size_that_the_user_states() {
    let mut fixture = Fixture::new();
    let file = fixture.path("net.onnx");
    network(&file);
    drop_file(&mut fixture, file);
    fixture.until("the test", |w| sees(w, "Segments objects"));
    fixture.click("Task");
    fixture.click("Label-free prediction");
    fixture.until("the stain", |w| sees(w, "Predicts a stain"));
    fixture.until("the end of the test", |w| w.state().active_jobs() == 0);
    // The card shows the stated voxel size although the file is not tested again.
    assert!(!fixture.sees("made for"), "{}", fixture.on_screen());
    fixture.click("Voxel size");
    assert!(fixture.sees("made for 1\u{a0}×\u{a0}1\u{a0}×\u{a0}1\u{a0}µm voxels"), "{}", fixture.on_screen());
    fixture.click("Voxel size");
    assert!(!fixture.sees("made for"), "{}", fixture.on_screen());
    fixture.click("Voxel size");
    accessibility::check(&fixture, "what the user states");
    fixture.click_enabled("Add to my models");
    fixture.until("the model", |w| sees(w, "net was added to your models"));
    let package = cytoscope_model_package::Package::open(&fixture.path("settings/models/net")).unwrap();
    assert_eq!(package.config()["task"], "labelfree");
    assert_eq!(package.inputs[0].voxel_um(), Some([1.0; 3]));
}

#[test]
fn a_model_file_is_added_with_the_object_diameter_that_the_user_states() {
    let mut fixture = Fixture::new();
    let file = fixture.path("net.onnx");
    network(&file);
    drop_file(&mut fixture, file);
    fixture.until("the test", |w| sees(w, "Segments objects"));
    fixture.until("the end of the test", |w| w.state().active_jobs() == 0);
    fixture.click("Voxel size");
    fixture.click_enabled("Manual");
    assert!(fixture.sees("rescales objects to 10\u{a0}µm"), "{}", fixture.on_screen());
    accessibility::check(&fixture, "the object diameter of a model file");
    fixture.click_enabled("Add to my models");
    fixture.until("the model", |w| sees(w, "net was added to your models"));
    let package = Package::open(&fixture.path("settings/models/net")).unwrap();
    assert_eq!(package.config()["object_diameter_um"], 10.0);
}

#[test]
#[cfg_attr(not(unix), ignore = "only Unix can stop a process")]
fn the_settings_of_a_model_file_say_why_they_are_disabled() {
    let mut fixture = Fixture::new();
    let file = fixture.path("net.onnx");
    network(&file);
    drop_file(&mut fixture, file);
    fixture.until("the test", |w| sees(w, "Segments objects"));
    fixture.until("the end of the test", |w| w.state().active_jobs() == 0);
    let reason = "Wait until the job of this model has finished";
    // The job does not end before the reason is shown.
    fixture.until_enabled("Test");
    fixture.stop_engine();
    fixture.click("Test");
    fixture.until("the job", |w| w.query_by_label("Cancel").is_some());
    assert!(!fixture.sees(reason), "{}", fixture.on_screen());
    for name in ["Voxel size", "Manual"] {
        fixture.until_hover_shows(name, reason);
        assert!(!fixture.sees("State the voxel size first."), "{}", fixture.on_screen());
    }
    fixture.resume_engine();
    fixture.until("the end of the second test", |w| w.state().active_jobs() == 0);
}

/// The record of the job that wrote a file or folder.
fn read_record(output: &Path) -> serde_json::Value {
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
    // A layer that the network does not have is refused with the names of those that it has.
    fixture.type_into("Names of layers in float", "nosuch");
    fixture.click_enabled("Quantize");
    fixture
        .until("the layers", |w| sees(w, "the model has no layer \"nosuch\" to keep in float") && sees(w, "head.out"));
    fixture.type_into("Names of layers in float", "head.out");
    fixture.click_enabled("Quantize");
    fixture.until("the quantized model", |w| sees(w, "net-int8 was added to your models"));
    let (net, quantized) = (fixture.path("settings/models/net.onnx"), fixture.path("settings/models/net-int8"));
    assert!(Package::open(&quantized).unwrap().is_int8() && weights(&quantized) == weights(&net));
    let record = read_record(&quantized);
    let job = &record["job"]["quantization"];
    assert!(job["mode"] == "static" && job["accuracy_budget"] == 0.2, "{record}");
    assert!(job["keep_float"] == serde_json::json!(["head.out"]), "{record}");
    assert!(fixture.sees("head.out in float: "), "{}", fixture.on_screen());
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
        assert_eq!(read_record(&path)["job"]["format"], format);
        let values = if format == "safetensors" { safetensors_values(&path) } else { weights(&path) };
        assert!(!values.is_empty() && values == weights(&net), "{name}");
    }
    assert!(!fixture.sees("lacks these parts"), "{}", fixture.on_screen());
    // A package whose documentation is missing is exported without it.
    std::fs::remove_file(quantized.join("README.md")).unwrap();
    fixture.click("Model net-int8");
    fixture.click("bioimage.io package…");
    let path = fixture.path("int8.zip");
    enter_path(&mut fixture, &path);
    fixture.until("the missing part", |w| sees(w, "int8.zip lacks these parts of the original:"));
    assert!(fixture.sees("README.md: "), "{}", fixture.on_screen());
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
    fixture.click_enabled("Add to my models");
    fixture.until("the model", |w| sees(w, "net was added to your models"));
    let added = fixture.path("settings/models/net");
    assert!(Package::open(&added).unwrap().description.contains("the architecture dynunet"));
    assert_eq!(read_record(&added)["job"]["architecture"], "dynunet");
}

#[test]
fn a_model_that_cannot_be_read_says_why() {
    let mut fixture = Fixture::new();
    let file = fixture.path("broken.onnx");
    std::fs::write(&file, "no network").unwrap();
    drop_file(&mut fixture, file);
    fixture.until("the reason", |w| sees(w, "Testing broken failed"));
    assert!(fixture.sees("Add to my models"), "{}", fixture.on_screen());
    fixture.click("Remove from the list");
    assert!(!fixture.sees("Add to my models"), "{}", fixture.on_screen());
    fixture.click("Back to the stacks");
    assert!(fixture.sees("Drop a stack here"), "{}", fixture.on_screen());
}

/// Writes an engine process that lists a GPU only when it is asked to look for devices again.
#[cfg(unix)]
fn engine_with_a_new_gpu(folder: &Path) -> std::path::PathBuf {
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
    write_script(&program, &script);
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

#[cfg(unix)]
#[test]
fn the_predict_panel_says_below_its_heading_why_it_shows_no_model() {
    // This engine lists none.
    let mut fixture = Fixture::with_program(engine_with_a_new_gpu);
    fixture.click("Open the sample");
    fixture.until("the stack", |w| w.state().document().is_some());
    fixture.until("the reason", |w| w.query_by_label("Loading models…").is_some());
    let top = |name: &str| fixture.window.get_by_label(name).rect().top();
    let (reason, steps) = (top("Loading models…"), top("Add step"));
    assert!(reason < steps && steps < top("Predict this stack"), "{reason} {steps}");
}
