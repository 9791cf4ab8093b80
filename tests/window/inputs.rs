//! Inputs of a prediction: the chosen channel, the previewed preprocessing steps, and the object diameter with its ring.

use crate::accessibility;
use crate::fixture::{Fixture, bundled_sample, read_json, sees};
use crate::gestures::{SHAPE, enter_path, screen_position, voxel_um};
use crate::predict::save_two_outputs;
use cytoscope_formats::{Channel, Container, OpenOptions, WriteSpec, write_array};
use cytoscope_graph::{BinaryOp, ConvAttrs, Dim, ElementType, Graph, Op, Tensor};
use cytoscope_pipeline::DiameterRequest;
use cytoscope_ui::data::plane::Orientation;
use cytoscope_ui::document::Role;
use cytoscope_ui::screenshots::ScreenshotSubject;
use cytoscope_ui::theme;
use cytoscope_volume::{Array, VoxelSize};
use eframe::egui::{Key, Shape};
use std::collections::BTreeMap;
use std::path::Path;

/// Shape Z, Y, X of the stack with two channels.
const SMALL: [usize; 3] = [4, 24, 32];
/// Position of its bright voxel, which is in the shown slice.
const BRIGHT: [usize; 3] = [2, 8, 20];

/// A ramp with a bright voxel.
fn ramp() -> Vec<u16> {
    let [nz, ny, nx] = SMALL;
    let value = |i: usize| (10 + i % nx + i / nx % ny + 3 * (i / (ny * nx))) as u16;
    let mut values: Vec<u16> = (0..nz * ny * nx).map(value).collect();
    values[(BRIGHT[0] * ny + BRIGHT[1]) * nx + BRIGHT[2]] = 1000;
    values
}

/// Medians of boxes of three voxels along each axis; the values at the edges are extended.
fn medians(values: &[u16]) -> Vec<f32> {
    let [nz, ny, nx] = SMALL;
    let near = |at: usize, by: usize, n: usize| (at + by).saturating_sub(1).min(n - 1);
    let median = |i: usize| {
        let (z, y, x) = (i / (ny * nx), i / nx % ny, i % nx);
        let at = |k: usize| (near(z, k / 9, nz) * ny + near(y, k / 3 % 3, ny)) * nx + near(x, k % 3, nx);
        let mut neighbors: Vec<u16> = (0..27).map(|k| values[at(k)]).collect();
        neighbors.sort_unstable();
        f32::from(neighbors[13])
    };
    (0..nz * ny * nx).map(median).collect()
}

/// A picture of the shown slice.
fn picture(fixture: &mut Fixture, name: &str) -> image::RgbImage {
    let path = fixture.path(name);
    fixture.window.state_mut().take_screenshot(ScreenshotSubject::Slice(Orientation::Xy), path.clone());
    fixture.until("the picture", |_| path.is_file());
    image::open(&path).unwrap().to_rgb8()
}

/// How much the colors of the bright voxel differ from those beside it.
fn contrast(picture: &image::RgbImage) -> u8 {
    let [at, beside] = [0, 1].map(|left| picture.get_pixel((BRIGHT[2] - left) as u32, BRIGHT[1] as u32).0);
    at.into_iter().zip(beside).map(|(a, b)| a.abs_diff(b)).max().unwrap()
}

#[test]
fn the_chosen_channel_is_predicted_after_the_previewed_steps() {
    let [nz, ny, nx] = SMALL;
    let second = ramp();
    let mut fixture = Fixture::with(|folder| {
        std::fs::create_dir_all(folder.join("settings/models")).unwrap();
        // Its first output is its input.
        save_two_outputs(&folder.join("settings/models/two.onnx"));
        std::fs::write(folder.join("settings/settings.json"), r#"{"model": "two"}"#).unwrap();
        let values = [vec![50; second.len()], second.clone()].concat();
        let array = Array::new("CZYX".parse().unwrap(), vec![2, nz, ny, nx], values).unwrap();
        let mut spec = WriteSpec::of(&array, Container::OmeTiff);
        spec.channels = ["first", "second"].map(|name| Channel { name: name.to_owned(), color_rgb: None }).to_vec();
        let path = folder.join("stack.ome.tif");
        write_array(&path, &array, &spec).unwrap();
        vec![path]
    });
    fixture.settle();
    fixture.click("Channel");
    fixture.click("second");
    let chosen = fixture.window.state().settings().channels_of_model.get("two").cloned();
    assert_eq!(chosen, Some(vec!["second".to_owned()]), "it is remembered for the model");
    fixture.click("Add step");
    fixture.click("Median filter");
    let without = picture(&mut fixture, "without.png");
    fixture.click("Preview");
    fixture.settle();
    assert!(fixture.sees(", preprocessed"), "the views say what they show: {}", fixture.on_screen());
    let with = picture(&mut fixture, "with.png");
    let contrasts = [&without, &with].map(contrast);
    assert!(contrasts[0] > 100 && contrasts[1] < 30, "{contrasts:?}");
    fixture.click("Preview");
    fixture.settle();
    assert!(!fixture.sees(", preprocessed"), "{}", fixture.on_screen());
    assert!(picture(&mut fixture, "again.png") == without, "the stack is shown as before");
    fixture.click_enabled("Predict this stack");
    fixture.until("the map", |w| w.state().document().is_some_and(|d| d.overlay_with_role(Role::Map).is_some()));
    let record = read_json(&fixture.path("cytoscope/stack_provenance.json"));
    assert_eq!(record["job"]["channels"], serde_json::json!([1]), "{record}");
    let steps = serde_json::json!([{"step": "median", "radius": {"voxels": [1.0, 1.0, 1.0]}}]);
    assert_eq!(record["job"]["preprocess"], steps, "{record}");
    let map = fixture.window.state().document().unwrap().overlay_with_role(Role::Map).unwrap().path.clone();
    let map = cytoscope_formats::open(&map, &OpenOptions::default()).unwrap();
    let (predicted, expected) = (map.read_all().unwrap().samples().to_f32(), medians(&second));
    assert_eq!(predicted.len(), expected.len());
    // A model that describes no preprocessing gets z-scores.
    let (count, sum) = (expected.len() as f64, expected.iter().map(|v| f64::from(*v)).sum::<f64>());
    let mean = sum / count;
    let deviation = (expected.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / count).sqrt();
    for (i, (got, want)) in predicted.iter().zip(&expected).enumerate() {
        let want = (f64::from(*want) - mean) / deviation;
        assert!((f64::from(*got) - want).abs() < 0.01, "voxel {i}: {got}, expected {want}");
    }
}

/// Writes a network that adds its input `nuclei` and ten times its input `membrane`.
fn save_two_inputs(path: &Path) {
    let mut graph = Graph::new("two inputs");
    let free = |name: &str| Dim::Free(name.to_owned());
    let shape = || vec![Dim::Fixed(1), Dim::Fixed(1), free("z"), free("y"), free("x")];
    let scaled = [("nuclei", 1.0f32), ("membrane", 10.0)].map(|(name, factor)| {
        let input = graph.add_input(name, ElementType::F32, shape());
        let weight = Tensor::new([1, 1, 1, 1, 1], vec![factor]).unwrap();
        let weight = graph.add_initializer(format!("{name} weight"), weight);
        Some(graph.push(format!("{name} conv"), Op::Conv(ConvAttrs::same(&[1, 1, 1])), &[Some(input), Some(weight)]))
    });
    let sum = graph.push("sum", Op::Binary(BinaryOp::Add), &scaled);
    graph.outputs.push(sum);
    graph.values[sum.index()].dtype = Some(ElementType::F32);
    graph.values[sum.index()].shape = Some(shape());
    cytoscope_onnx::save(&graph, path).unwrap();
}

#[test]
fn an_input_of_a_model_is_read_from_another_file_as_on_the_command_line() {
    let [nz, ny, nx] = SMALL;
    let mut fixture = Fixture::with(|folder| {
        std::fs::create_dir_all(folder.join("settings/models")).unwrap();
        save_two_inputs(&folder.join("settings/models/inputs.onnx"));
        std::fs::write(folder.join("settings/settings.json"), r#"{"model": "inputs", "device": "cpu"}"#).unwrap();
        let stack = Array::new("ZYX".parse().unwrap(), vec![nz, ny, nx], ramp()).unwrap();
        write_array(&folder.join("stack.tif"), &stack, &WriteSpec::of(&stack, Container::ImageJ)).unwrap();
        let values = [ramp().into_iter().rev().collect::<Vec<u16>>(), vec![7; nz * ny * nx]].concat();
        let other = Array::new("CZYX".parse().unwrap(), vec![2, nz, ny, nx], values).unwrap();
        let mut spec = WriteSpec::of(&other, Container::OmeTiff);
        spec.channels = ["actin", "dna"].map(|name| Channel { name: name.to_owned(), color_rgb: None }).to_vec();
        write_array(&folder.join("other.ome.tif"), &other, &spec).unwrap();
        vec![folder.join("stack.tif")]
    });
    fixture.settle();
    fixture.window.state_mut().use_own_file_dialog();
    let other = fixture.path("other.ome.tif");
    fixture.click("File of membrane…");
    enter_path(&mut fixture, &other);
    fixture.until("the file", |w| sees(w, "other.ome.tif") && sees(w, "Read membrane from the stack"));
    fixture.type_into("Channels of membrane", "actin");
    accessibility::check(&fixture, "inputs in files");
    fixture.click_enabled("Predict this stack");
    fixture.until("the map", |w| w.state().document().is_some_and(|d| d.overlay_with_role(Role::Map).is_some()));
    let map = fixture.window.state().document().unwrap().overlay_with_role(Role::Map).unwrap().path.clone();
    let line = fixture.path("line");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_cytoscope"));
    command.arg("predict").arg(fixture.path("stack.tif")).arg("--out").arg(&line).args(["--device", "cpu", "--model"]);
    command.arg(fixture.path("settings/models/inputs.onnx"));
    let ran = command.arg("--input").arg(format!("membrane={}:actin", other.display())).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let expected = std::fs::read(line.join(map.file_name().unwrap())).unwrap();
    assert!(std::fs::read(&map).unwrap() == expected, "the maps differ");
    // Without the file, the stack lacks a channel, and the failure names the control.
    fixture.click("Read membrane from the stack");
    assert!(!fixture.sees("other.ome.tif"), "{}", fixture.on_screen());
    fixture.click_enabled("Predict this stack");
    fixture.until("the failure", |w| sees(w, "\"Inputs in files\""));
}

/// Median diameter in µm of spheres with the volumes of the sample's true objects that touch no side of it.
fn true_diameter_um(voxel_um: [f64; 3]) -> f64 {
    let truth = bundled_sample().with_file_name("nuclei_labels.tif");
    let truth = cytoscope_formats::open(&truth, &OpenOptions::default()).unwrap();
    let [nz, ny, nx] = SHAPE;
    let mut objects = BTreeMap::<u32, (u32, bool)>::new();
    let labels = truth.read_all().unwrap().samples().to_f32();
    for (i, label) in labels.iter().enumerate().filter(|(_, label)| **label > 0.0) {
        let object = objects.entry(*label as u32).or_default();
        object.0 += 1;
        let place = [(i / (ny * nx), nz), (i / nx % ny, ny), (i % nx, nx)];
        object.1 |= place.into_iter().any(|(at, n)| at == 0 || at + 1 == n);
    }
    let mut voxels: Vec<u32> = objects.into_values().filter(|(_, touches)| !touches).map(|(n, _)| n).collect();
    voxels.sort_unstable();
    let volume_um3 = f64::from(voxels[voxels.len() / 2]) * voxel_um.iter().product::<f64>();
    (6.0 / std::f64::consts::PI * volume_um3).cbrt()
}

/// Diameters in µm of the rings around the crosshair of the XY view.
fn rings_um(fixture: &Fixture) -> Vec<f32> {
    let document = fixture.window.state().document().unwrap();
    let [z, y, x] = document.cursor.map(|i| i as f64);
    let center = screen_position(fixture, Orientation::Xy, [z, y, x]);
    let beside = screen_position(fixture, Orientation::Xy, [z, y, x + 10.0]);
    let points_per_um = (beside.x - center.x) / (10.0 * document.voxel_um[2] as f32);
    let diameter_um = |shape: &Shape| match shape {
        Shape::Circle(ring) if ring.center.distance(center) < 1.0 && ring.stroke.color == theme::ACCENT => {
            Some(2.0 * ring.radius / points_per_um)
        }
        _ => None,
    };
    fixture.window.output().shapes.iter().filter_map(|clipped| diameter_um(&clipped.shape)).collect()
}

fn assert_ring(fixture: &Fixture, um: f64) {
    let rings = rings_um(fixture);
    let is_drawn = matches!(rings.as_slice(), [ring] if (f64::from(*ring) - um).abs() < 0.03 * um);
    assert!(is_drawn, "{rings:?}, expected {um}");
}

/// Types a diameter in µm, which is given by hand.
fn set_diameter(fixture: &mut Fixture, um: &str) {
    fixture.type_into("Object diameter number", um);
    fixture.window.key_press(Key::Enter);
    fixture.window.run_steps(3);
}

#[test]
fn the_object_diameter_is_given_with_a_ring_or_estimated() {
    let mut fixture = Fixture::new();
    fixture.click("Open the sample");
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    assert!(rings_um(&fixture).is_empty(), "no diameter is known yet");
    fixture.click("Manual");
    // What the bundled model rescales objects to.
    assert_ring(&fixture, 12.0);
    set_diameter(&mut fixture, "30");
    assert_ring(&fixture, 30.0);
    fixture.click_enabled("Estimate");
    fixture.until("the estimate", |w| w.state().document().is_some_and(|d| d.object_size.found.is_some()));
    fixture.window.run_steps(2);
    let size = fixture.window.state().document().unwrap().object_size;
    let (found, truth) = (size.found.unwrap(), true_diameter_um(voxel_um(&fixture)));
    assert!((found.diameter / truth).ln().abs() < 1.25f64.ln(), "{found:?}, the true one is {truth}");
    assert_eq!(size.request, DiameterRequest::Given(found.diameter));
    assert_ring(&fixture, found.diameter);
    let text = format!("Estimated {:.1} µm from {} objects", found.diameter, found.estimate.unwrap().objects);
    assert!(fixture.sees(&text), "{text}: {}", fixture.on_screen());
    assert!(fixture.sees("the ring on the image shows it"), "{}", fixture.on_screen());
    fixture.click("Automatic");
    assert_eq!(fixture.window.state().document().unwrap().object_size.request, DiameterRequest::Auto);
    // A stack without objects.
    let empty = fixture.path("empty.tif");
    let array = Array::new("ZYX".parse().unwrap(), vec![8, 48, 48], vec![7u16; 8 * 48 * 48]).unwrap();
    let mut spec = WriteSpec::of(&array, Container::ImageJ);
    spec.voxel_size_um = VoxelSize::new_um(1.5, 0.65, 0.65);
    write_array(&empty, &array, &spec).unwrap();
    fixture.window.state_mut().open_paths(&[empty]);
    fixture.until("the empty stack", |w| w.state().document().is_some_and(|d| d.name == "empty.tif"));
    fixture.settle();
    fixture.click_enabled("Estimate");
    fixture.until("the assumption", |w| sees(w, "No objects found: assuming 12.0 µm"));
    fixture.click("Manual");
    set_diameter(&mut fixture, "20");
    fixture.click_enabled("Predict this stack");
    let provenance = fixture.path("cytoscope/empty_provenance.json");
    fixture.until("the record", |_| provenance.is_file());
    assert_eq!(read_json(&provenance)["job"]["diameter"], 20.0);
}

#[test]
fn a_diameter_that_was_set_does_not_keep_a_model_without_one_from_predicting() {
    let mut fixture = Fixture::with(|folder| {
        let values: Vec<u16> = (0..8 * 32 * 32).map(|i| (i * 37 % 101) as u16).collect();
        let array = Array::new("ZYX".parse().unwrap(), vec![8, 32, 32], values).unwrap();
        let path = folder.join("small.tif");
        write_array(&path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        vec![path]
    });
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    fixture.click("Manual");
    set_diameter(&mut fixture, "20");
    fixture.click("Model");
    fixture.click("labelfree-nuclei");
    fixture.until("the model of a stain", |w| sees(w, "Predicts a stain"));
    fixture.click_enabled("Predict this stack");
    let provenance = fixture.path("cytoscope/small_provenance.json");
    fixture.until("the record", |_| provenance.is_file());
    assert_eq!(read_json(&provenance)["job"]["diameter"], "auto");
}

#[test]
fn a_failed_prediction_names_the_controls_of_the_window() {
    let mut fixture = Fixture::with(|folder| {
        std::fs::create_dir_all(folder.join("settings")).unwrap();
        std::fs::write(folder.join("settings/settings.json"), r#"{"memory_budget_mib": 1}"#).unwrap();
        let path = folder.join("stack.tif");
        std::fs::copy(bundled_sample(), &path).unwrap();
        vec![path]
    });
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    fixture.click_enabled("Predict this stack");
    fixture.until("the failure", |w| sees(w, "Give a larger \"Memory budget\""));
    assert!(!fixture.sees("--"), "{}", fixture.on_screen());
}
