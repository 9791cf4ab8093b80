//! Calibration tiles that are cut from parts of images.

use crate::common::{package, relative_distance};
use cytoscope_formats::{Container, WriteSpec, image_in_memory, write_array};
use cytoscope_graph::{ConvAttrs, Dim, ElementType, Graph, Op, Tensor};
use cytoscope_model_package::{AxisKind, PackageBuilder, Processing, StatisticsAxes};
use cytoscope_pipeline::{
    CalibrationImage, Context, DiameterRequest, Event, Model, PredictJob, calibration_tiles,
    calibration_tiles_from_images,
};
use cytoscope_volume::{Array, Axes, VoxelSize};
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A model whose only preprocessing is the scaling of all intensities to 0 to 1.
fn model() -> Model {
    Model::from_package(model_package().in_memory(Path::new("a test")).unwrap()).unwrap()
}

/// The package of [`model`].
fn model_package() -> PackageBuilder {
    let mut graph = Graph::new("identity");
    let free = |name: &str| Dim::Free(name.to_owned());
    let x = graph.add_input("x", ElementType::F32, vec![free("n"), Dim::Fixed(1), free("d"), free("h"), free("w")]);
    let one = graph.add_initializer("weight", Tensor::new(vec![1usize; 5], vec![1.0f32]).unwrap());
    let y = graph.push("y", Op::Conv(ConvAttrs::same(&[1; 3])), &[Some(x), Some(one)]);
    graph.outputs.push(y);
    let mut builder = package(&graph);
    let axes = StatisticsAxes { batch: false, channel: true, by_slice: false };
    let (min_percentile, max_percentile, eps) = (0.0, 100.0, 1e-6);
    let range = Processing::ScaleRange { min_percentile, max_percentile, eps, axes, reference_tensor: None };
    builder.inputs[0].processing = vec![range];
    builder
}

/// The same for objects of 12 µm in voxels of 1 µm.
fn rescaling_model() -> Model {
    let mut builder = model_package();
    for axis in builder.inputs.iter_mut().chain(&mut builder.outputs).flat_map(|tensor| &mut tensor.axes) {
        if matches!(axis.kind, AxisKind::Z | AxisKind::Y | AxisKind::X) {
            axis.voxel_um = Some(1.0);
        }
    }
    builder.config = json!({"task": "segmentation", "object_diameter_um": 12.0});
    Model::from_package(builder.in_memory(Path::new("a test")).unwrap()).unwrap()
}

#[test]
fn windows_of_different_brightness_are_normalized_as_the_whole_image() {
    let shape = [4usize, 8, 12];
    // The right half is much brighter.
    let value = |i: usize| (i * 7 % 96) as f32 + if i % 12 < 6 { 0.0 } else { 1000.0 };
    let values: Vec<f32> = (0..384).map(value).collect();
    let array = Array::new(Axes::zyx(), shape.to_vec(), values.clone()).unwrap();
    let image = image_in_memory(Path::new("a volume"), array, VoxelSize::default()).unwrap();
    let (low, high) = values.iter().fold((f32::MAX, f32::MIN), |(low, high), v| (low.min(*v), high.max(*v)));
    let (context, model) = (Context::default(), model());
    for (rows, columns) in [(0..8, 0..6), (2..7, 6..12), (0..8, 0..12)] {
        let window = Some([1..4, rows.clone(), columns.clone()]);
        let (image, diameter) = (image.clone(), DiameterRequest::Auto);
        let stack = CalibrationImage { image, window, voxel_um: None, diameter };
        let tiles = calibration_tiles_from_images(&context, &model, &[stack], 4).unwrap();
        let inside = |i: &usize| i / 96 > 0 && rows.contains(&(i / 12 % 8)) && columns.contains(&(i % 12));
        let expected: Vec<f32> = (0..384).filter(inside).map(|i| (values[i] - low) / (high - low)).collect();
        let [tile] = tiles.as_slice() else { panic!("{} tiles", tiles.len()) };
        let shape = [1, 1, 3, rows.len(), columns.len()];
        assert_eq!(tile.values.shape(), shape, "the window is smaller than a tile");
        let found = tile.values.as_f32().unwrap();
        assert!(relative_distance(found, &expected) < 1e-5, "{found:?} instead of {expected:?}");
    }
}

#[test]
fn voxels_of_an_image_that_are_not_finite_are_zero_as_in_predictions() {
    let mut values: Vec<f32> = (0..384).map(|i| (i * 7 % 96) as f32 + 5.0).collect();
    (values[0], values[200]) = (f32::NAN, f32::INFINITY);
    let array = Array::new(Axes::zyx(), vec![4, 8, 12], values.clone()).unwrap();
    let image = image_in_memory(Path::new("a volume"), array.clone(), VoxelSize::default()).unwrap();
    let image = CalibrationImage { image, window: None, voxel_um: None, diameter: DiameterRequest::Auto };
    let tiles = calibration_tiles_from_images(&Context::default(), &model(), &[image], 1).unwrap();
    let found = tiles[0].values.as_f32().unwrap();
    assert_eq!((found[0], found[200]), (0.0, 0.0));
    let expected: Vec<f32> = values.iter().map(|v| if v.is_finite() { (v - 5.0) / 95.0 } else { 0.0 }).collect();
    assert!(relative_distance(found, &expected) < 1e-5, "{found:?} instead of {expected:?}");
    // A stack that the user chooses for calibration is refused.
    let folder = tempfile::tempdir().unwrap();
    let stack = folder.path().join("a.tif");
    write_array(&stack, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
    let job = PredictJob::new(vec![stack], "a test".to_owned(), PathBuf::new());
    let refused = calibration_tiles(&Context::default(), &model(), &[job], 1).unwrap_err().to_string();
    assert!(refused.contains("a.tif") && refused.contains("leave it out"), "{refused}");
}

#[test]
fn stacks_that_change_while_they_are_read_are_not_calibrated_with() {
    let folder = tempfile::tempdir().unwrap();
    let stacks = ["a.tif", "b.tif"].map(|name| folder.path().join(name));
    for stack in &stacks {
        let values: Vec<f32> = (0..384).map(|i| (i * 7 % 96) as f32).collect();
        let array = Array::new(Axes::zyx(), vec![4, 8, 12], values).unwrap();
        write_array(stack, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
    }
    let job = PredictJob::new(stacks.to_vec(), "a test".to_owned(), PathBuf::new());
    let tiles = |context: &Context| calibration_tiles(context, &model(), std::slice::from_ref(&job), 4);
    assert_eq!(tiles(&Context::default()).unwrap().len(), 2);
    // The first stack changes once its tiles were cut.
    let first = stacks[0].clone();
    let sink = move |event: &Event| {
        if matches!(event, Event::Progress(progress) if (progress.done, progress.total) == (1, 2)) {
            let mut file = std::fs::OpenOptions::new().append(true).open(&first).unwrap();
            file.write_all(b"x").unwrap();
        }
    };
    let refused = tiles(&Context { sink: Arc::new(sink), ..Context::default() }).unwrap_err().to_string();
    assert!(refused.contains("a.tif") && refused.contains("changed while it was read"), "{refused}");
}

#[test]
fn tiles_have_the_grid_of_predictions_with_the_given_diameter() {
    let folder = tempfile::tempdir().unwrap();
    let stack = folder.path().join("a.tif");
    let values: Vec<f32> = (0..384).map(|i| (i * 7 % 96) as f32).collect();
    let array = Array::new(Axes::zyx(), vec![4, 8, 12], values.clone()).unwrap();
    let voxel_size_um = VoxelSize::new_um(1.0, 1.0, 1.0);
    let spec = WriteSpec { voxel_size_um, ..WriteSpec::of(&array, Container::ImageJ) };
    write_array(&stack, &array, &spec).unwrap();
    let context = Context::default();
    let tiles = |model: &Model, diameter: f64| {
        let job = PredictJob::new(vec![stack.clone()], "a test".to_owned(), PathBuf::new());
        let job = PredictJob { diameter: DiameterRequest::Given(diameter), ..job };
        calibration_tiles(&context, model, &[job], 1)
    };
    // Objects of half the size are enlarged twice; those of two voxels three times only, as in predictions.
    for (diameter, shape) in [(12.0, [1, 1, 4, 8, 12]), (6.0, [1, 1, 8, 16, 24]), (2.0, [1, 1, 12, 24, 36])] {
        let found = tiles(&rescaling_model(), diameter).unwrap();
        assert_eq!(found[0].values.shape(), shape, "{diameter}");
        let image = image_in_memory(Path::new("a volume"), array.clone(), voxel_size_um).unwrap();
        let diameter = DiameterRequest::Given(diameter);
        let image = CalibrationImage { image, window: None, voxel_um: None, diameter };
        let found = calibration_tiles_from_images(&context, &rescaling_model(), &[image], 1).unwrap();
        assert_eq!(found[0].values.shape(), shape, "{diameter:?}");
    }
    let refused = tiles(&model(), 6.0).unwrap_err().to_string();
    assert!(refused.contains("declares no object diameter"), "{refused}");
}
