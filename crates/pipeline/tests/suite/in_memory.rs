//! Prediction in memory gives the same results as a job that reads and writes files.

use crate::common::{noise, package, relative_distance, save_package};
use cytoscope_builders::{DifferenceOfGaussians, DynUNet, UNet3d, Weights, difference_of_gaussians, dynunet, unet3d};
use cytoscope_engine::{DeviceId, DeviceRequest};
use cytoscope_formats::{Container, Image, OpenOptions, WriteSpec, image_in_memory, open, write_array};
use cytoscope_graph::{Activation, BinaryOp, ConvAttrs, Dim, ElementType, Graph, Op, Tensor, ValueId};
use cytoscope_graph_passes::infer_shapes;
use cytoscope_model_package::{AxisKind, Processing, StatisticsAxes};
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::predict::TileRequest;
use cytoscope_pipeline::{
    Context, ImagePreprocessing, JobError, JobErrorKind, Model, Output, PredictJob, PredictOptions, PredictedVolume,
    VolumeOutputs, predict_part, predict_volume,
};
use cytoscope_volume::{Array, Axes, VoxelSize};
use std::path::Path;

const CPU: DeviceRequest = DeviceRequest::Device(DeviceId::Cpu);

fn network() -> Graph {
    let settings = DifferenceOfGaussians {
        sigma_small: [0.5, 0.8, 0.8],
        sigma_large: [1.0, 1.6, 2.0],
        truncate: 2.5,
        ..DifferenceOfGaussians::default()
    };
    difference_of_gaussians(&settings).unwrap()
}

fn options() -> PredictOptions {
    let tiles = TileRequest { tile: Some([12, 40, 40]), overlap: None, blend: None, ..TileRequest::default() };
    PredictOptions { tiles, threads: 2, ..PredictOptions::default() }
}

/// Predicts an image in memory, with a package that was never written.
fn in_memory(image: &Image, options: &PredictOptions, outputs: VolumeOutputs) -> Result<PredictedVolume, JobError> {
    predict_with(&network(), image, options, outputs)
}

fn predict_with(
    graph: &Graph,
    image: &Image,
    options: &PredictOptions,
    outputs: VolumeOutputs,
) -> Result<PredictedVolume, JobError> {
    let context = Context::default();
    let model = Model::from_package(package(graph).in_memory(Path::new("a test")).unwrap()).unwrap();
    let engine = Devices::cpu_only().for_model(&context, &model, CPU, options).unwrap();
    predict_volume(&context, &engine, &model, image, options, outputs)
}

#[test]
fn a_volume_in_memory_gives_the_same_maps_and_labels_as_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let shape = [14, 50, 60];
    let array = Array::new(Axes::zyx(), shape.to_vec(), noise(3, shape.iter().product())).unwrap();
    let (input, model) = (folder.path().join("stack.tif"), folder.path().join("model"));
    write_array(&input, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
    save_package(&network(), &model);
    let job = PredictJob {
        device: CPU,
        tiles: options().tiles,
        outputs: [Output::Maps, Output::Labels].into(),
        threads: options().threads,
        ..PredictJob::new(vec![input], model.to_string_lossy().into_owned(), folder.path().join("out"))
    };
    let outcome = job.run(&Context::default(), &Devices::cpu_only()).unwrap();
    assert!(outcome.failed.is_empty(), "{}", outcome.failed[0].message);
    let written = |name: &str| {
        let image = open(&job.out.join(name), &OpenOptions::default()).unwrap();
        image.read_all().unwrap().samples().to_f32()
    };
    let image = image_in_memory(Path::new("a volume"), array, VoxelSize::default()).unwrap();
    let made = in_memory(&image, &options(), VolumeOutputs::MapsAndLabels).unwrap();
    assert_eq!(made.shape_zyx, shape);
    assert!(made.maps.unwrap() == written("stack_prediction.tif"), "the maps differ");
    let labels: Vec<f32> = made.labels.unwrap().into_iter().map(|label| label as f32).collect();
    assert!(labels == written("stack_labels.tif"), "the labels differ");
    assert!(made.objects > 0);
    assert_eq!(vec![made.objects], outcome.done[0].objects);
    assert_eq!(made.notes, outcome.done[0].notes);
    let only_maps = in_memory(&image, &options(), VolumeOutputs::Maps).unwrap();
    assert!(only_maps.maps.is_some() && only_maps.labels.is_none() && only_maps.objects == 0);
}

/// Validation and previews of a training run predict in this way.
#[test]
fn a_volume_in_memory_that_is_larger_than_a_tile_passes_through_the_network_once() {
    let config = UNet3d { filters: vec![4], strides: vec![], convs_per_block: 1, ..UNet3d::default() };
    let graph = unet3d(&config, &Weights::Random { seed: 2 }).unwrap();
    let shape = vec![8, 9, 600];
    let array = Array::new(Axes::zyx(), shape.clone(), noise(6, shape.iter().product())).unwrap();
    let image = image_in_memory(Path::new("a volume"), array, VoxelSize::default()).unwrap();
    let predict = |options: &PredictOptions| predict_with(&graph, &image, options, VolumeOutputs::Maps).unwrap();
    let once = predict(&PredictOptions { threads: 2, ..PredictOptions::default() });
    assert!(once.plan.pass.as_ref().is_some_and(|pass| pass.work == 1.0), "{:?}", once.plan);
    let tiles = predict(&PredictOptions {
        tiles: TileRequest { tile: Some([8, 16, 64]), ..TileRequest::default() },
        threads: 2,
        ..PredictOptions::default()
    });
    assert!(tiles.plan.pass.is_none());
    let (once, tiles) = (once.maps.unwrap(), tiles.maps.unwrap());
    let worst = cytoscope_testkit::largest_difference(&once, &tiles);
    assert!(worst < 1e-6, "{worst}");
}

#[test]
fn slices_that_are_larger_than_a_tile_pass_through_a_network_on_slices_without_halos() {
    let mut graph = Graph::new("edges");
    let dims = ["n", "h", "w"].map(|name| Dim::Free(name.to_owned()));
    let [n, h, w] = dims;
    let x = graph.add_input("x", ElementType::F32, vec![n, Dim::Fixed(1), h, w]);
    let weights = |graph: &mut Graph, name: &str, shape: [usize; 4]| {
        let tensor = Tensor::new(shape, noise(9, shape.iter().product())).unwrap();
        Some(graph.add_initializer(name, tensor))
    };
    let first = weights(&mut graph, "first.weight", [5, 1, 5, 3]);
    let hidden = graph.push("first", Op::Conv(ConvAttrs::same(&[5, 3])), &[Some(x), first]);
    let hidden = graph.push("relu", Op::Activation(Activation::Relu), &[Some(hidden)]);
    let last = weights(&mut graph, "last.weight", [1, 5, 3, 3]);
    let y = graph.push("y", Op::Conv(ConvAttrs::same(&[3, 3])), &[Some(hidden), last]);
    graph.outputs.push(y);
    let mut builder = package(&graph);
    for tensor in builder.inputs.iter_mut().chain(&mut builder.outputs) {
        tensor.axes.retain(|axis| axis.kind != AxisKind::Z);
    }
    let model = Model::from_package(builder.in_memory(Path::new("a test")).unwrap()).unwrap();
    let shape = vec![7, 9, 600];
    let array = Array::new(Axes::zyx(), shape.clone(), noise(6, shape.iter().product())).unwrap();
    let image = image_in_memory(Path::new("a volume"), array, VoxelSize::default()).unwrap();
    let context = Context::default();
    let predict = |tile: Option<[usize; 3]>| {
        let tiles = TileRequest { tile, ..TileRequest::default() };
        let options = PredictOptions { tiles, threads: 2, ..PredictOptions::default() };
        let engine = Devices::cpu_only().for_model(&context, &model, CPU, &options).unwrap();
        predict_volume(&context, &engine, &model, &image, &options, VolumeOutputs::Maps).unwrap()
    };
    let once = predict(None);
    assert!(once.plan.pass.as_ref().is_some_and(|pass| pass.work == 1.0), "{:?}", once.plan);
    let tiles = predict(Some([1, 16, 64]));
    assert!(tiles.plan.pass.is_none() && tiles.plan.tile[0] == 1 && tiles.plan.tile[2] == 64, "{:?}", tiles.plan);
    let (once, tiles) = (once.maps.unwrap(), tiles.maps.unwrap());
    let worst = cytoscope_testkit::largest_difference(&once, &tiles);
    assert!(once.len() == 7 * 9 * 600 && worst < 1e-5, "{worst}");
}

#[test]
fn a_network_of_one_size_that_declares_free_axes_is_refused_with_what_to_do() {
    let mut graph = Graph::new("embedded");
    let [n, d, h, w] = ["n", "d", "h", "w"].map(|name| Dim::Free(name.to_owned()));
    let x = graph.add_input("x", ElementType::F32, vec![n, Dim::Fixed(1), d, h, w]);
    let positions = graph.add_initializer("positions", Tensor::new([1, 1, 4, 4, 4], noise(5, 64)).unwrap());
    let y = graph.push("y", Op::Binary(BinaryOp::Add), &[Some(x), Some(positions)]);
    graph.outputs.push(y);
    let error = Model::from_package(package(&graph).in_memory(Path::new("a test")).unwrap()).unwrap_err();
    assert!(error.to_string().contains("export it without dynamic axes"), "{error}");
}

#[test]
fn a_network_with_a_fixed_batch_of_several_samples_is_refused_with_what_to_do() {
    let with_batch = |samples: usize| {
        let mut graph = Graph::new("batch");
        let [d, h, w] = ["d", "h", "w"].map(|name| Dim::Free(name.to_owned()));
        let x = graph.add_input("x", ElementType::F32, vec![Dim::Fixed(samples), Dim::Fixed(1), d, h, w]);
        let y = graph.push("y", Op::Activation(Activation::Relu), &[Some(x)]);
        graph.outputs.push(y);
        Model::from_package(package(&graph).in_memory(Path::new("a test")).unwrap())
    };
    assert!(with_batch(1).is_ok());
    let error = with_batch(4).unwrap_err().to_string();
    assert!(error.contains("a fixed batch of 4 samples, expected 1"), "{error}");
    assert!(error.contains("export the network again with a batch of 1"), "{error}");
}

#[test]
fn a_network_with_weights_that_are_not_finite_is_refused_with_their_name_and_number() {
    let with_weight = |value: f32| {
        let mut graph = Graph::new("weights");
        let [n, d, h, w] = ["n", "d", "h", "w"].map(|name| Dim::Free(name.to_owned()));
        let x = graph.add_input("x", ElementType::F32, vec![n, Dim::Fixed(1), d, h, w]);
        // Constants that are not weights may be infinite.
        let limit = graph.add_initializer("limit", Tensor::scalar(f32::INFINITY));
        let clipped = graph.push("clipped", Op::Clip, &[Some(x), None, Some(limit)]);
        let mut values = noise(5, 27);
        values[3..5].fill(value);
        let weight = graph.add_initializer("conv.weight", Tensor::new([1, 1, 3, 3, 3], values).unwrap());
        let y = graph.push("y", Op::Conv(ConvAttrs::same(&[3, 3, 3])), &[Some(clipped), Some(weight)]);
        graph.outputs.push(y);
        Model::from_package(package(&graph).in_memory(Path::new("a test")).unwrap())
    };
    assert!(with_weight(0.5).is_ok());
    for value in [f32::NAN, f32::NEG_INFINITY] {
        let error = with_weight(value).unwrap_err().to_string();
        assert!(error.contains("\"conv.weight\" contain values that are NaN or infinite (2 of 27)"), "{error}");
        assert!(error.contains("export the network again"), "{error}");
    }
}

/// The network takes bytes and returns booleans.
#[test]
fn a_network_of_other_types_than_f32_is_predicted() {
    let mut graph = Graph::new("threshold");
    let [n, d, h, w] = ["n", "d", "h", "w"].map(|name| Dim::Free(name.to_owned()));
    let x = graph.add_input("x", ElementType::U8, vec![n, Dim::Fixed(1), d, h, w]);
    let limit = graph.add_initializer("limit", Tensor::scalar(100u8));
    let y = graph.push("y", Op::Binary(BinaryOp::Greater), &[Some(x), Some(limit)]);
    graph.outputs.push(y);
    let shape = vec![3, 10, 12];
    // Above 255, bytes would start over at 0.
    let values: Vec<f32> = (0..360).map(|i| (i * 37 % 300) as f32).collect();
    let array = Array::new(Axes::zyx(), shape, values.clone()).unwrap();
    let image = image_in_memory(Path::new("a volume"), array, VoxelSize::default()).unwrap();
    let predicted = predict_with(&graph, &image, &PredictOptions::default(), VolumeOutputs::Maps).unwrap();
    let wanted: Vec<f32> = values.iter().map(|v| if *v > 100.0 { 1.0 } else { 0.0 }).collect();
    assert_eq!(predicted.maps.unwrap(), wanted);
}

#[test]
fn a_network_with_its_channels_last_is_predicted_like_one_with_them_second() {
    let array = Array::new(Axes::zyx(), vec![4, 9, 11], noise(7, 396)).unwrap();
    let image = image_in_memory(Path::new("a volume"), array, VoxelSize::default()).unwrap();
    let maps = |is_last: bool| {
        let mut graph = Graph::new("edges");
        let [n, d, h, w] = ["n", "d", "h", "w"].map(|name| Dim::Free(name.to_owned()));
        let dims = if is_last { vec![n, d, h, w, Dim::Fixed(1)] } else { vec![n, Dim::Fixed(1), d, h, w] };
        let x = graph.add_input("x", ElementType::F32, dims);
        let weight = Some(graph.add_initializer("weight", Tensor::new([1, 1, 3, 3, 3], noise(9, 27)).unwrap()));
        let conv = Op::Conv(ConvAttrs::same(&[3, 3, 3]));
        let y = if is_last {
            let first = graph.push("first", Op::Transpose { perm: vec![0, 4, 1, 2, 3] }, &[Some(x)]);
            let edges = graph.push("edges", conv, &[Some(first), weight]);
            graph.push("y", Op::Transpose { perm: vec![0, 2, 3, 4, 1] }, &[Some(edges)])
        } else {
            graph.push("y", conv, &[Some(x), weight])
        };
        graph.outputs.push(y);
        let mut builder = package(&graph);
        for tensor in builder.inputs.iter_mut().chain(&mut builder.outputs).filter(|_| is_last) {
            let channels = tensor.axes.remove(1);
            tensor.axes.push(channels);
        }
        let model = Model::from_package(builder.in_memory(Path::new("a test")).unwrap()).unwrap();
        let (context, options) = (Context::default(), PredictOptions::default());
        let engine = Devices::cpu_only().for_model(&context, &model, CPU, &options).unwrap();
        predict_volume(&context, &engine, &model, &image, &options, VolumeOutputs::Maps).unwrap().maps.unwrap()
    };
    let (last, second) = (maps(true), maps(false));
    assert_eq!(last.len(), 396);
    assert!(relative_distance(&last, &second) < 1e-6);
}

#[test]
fn a_network_on_slices_predicts_each_slice_of_a_stack_as_an_image_of_its_own() {
    let config = DynUNet { spatial_axes: 2, filters: vec![4, 8], strides: vec![1, 2], ..DynUNet::default() };
    let graph = dynunet(&config, &Weights::Random { seed: 5 }).unwrap();
    let axes = StatisticsAxes { batch: false, channel: true, by_slice: false };
    let (min_percentile, max_percentile, eps) = (1.0, 99.0, 1e-6);
    let range = Processing::ScaleRange { min_percentile, max_percentile, eps, axes, reference_tensor: None };
    let mut builder = package(&graph);
    for tensor in builder.inputs.iter_mut().chain(&mut builder.outputs) {
        tensor.axes.retain(|axis| axis.kind != AxisKind::Z);
    }
    builder.inputs[0].processing = vec![range];
    builder.outputs[0].processing = vec![Processing::ScaleMeanVariance { eps, axes, reference_tensor: "x".to_owned() }];
    let model = Model::from_package(builder.in_memory(Path::new("a test")).unwrap()).unwrap();
    let (plane, depth) = (24 * 32, 5);
    let brighter = |(i, v): (usize, f32)| (v + 2.0) * 10f32.powi((i / plane) as i32);
    let values: Vec<f32> = noise(8, depth * plane).into_iter().enumerate().map(brighter).collect();
    let context = Context::default();
    let predict = |values: &[f32]| {
        let array = Array::new(Axes::zyx(), vec![values.len() / plane, 24, 32], values.to_vec()).unwrap();
        let image = image_in_memory(Path::new("a volume"), array, VoxelSize::default()).unwrap();
        let options = PredictOptions { threads: 2, ..PredictOptions::default() };
        let engine = Devices::cpu_only().for_model(&context, &model, CPU, &options).unwrap();
        predict_volume(&context, &engine, &model, &image, &options, VolumeOutputs::Maps).unwrap().maps.unwrap()
    };
    let stack = predict(&values);
    for (z, (found, slice)) in stack.chunks(plane).zip(values.chunks(plane)).enumerate() {
        let alone = predict(slice);
        let distance = relative_distance(found, &alone);
        assert!(distance < 1e-6, "slice {z} differs by {distance}");
        // The output has the mean of its slice, not that of the stack.
        let mean = |values: &[f32]| values.iter().map(|v| f64::from(*v)).sum::<f64>() / values.len() as f64;
        assert!((mean(found) / mean(slice) - 1.0).abs() < 1e-3, "slice {z}: {} {}", mean(found), mean(slice));
    }
}

/// A network that returns its input.
fn identity(spatial_axes: usize) -> Graph {
    let mut graph = Graph::new("identity");
    let free = |name: &str| Dim::Free(name.to_owned());
    let mut dims = vec![free("n"), Dim::Fixed(1), free("d"), free("h"), free("w")];
    dims.truncate(2 + spatial_axes);
    let x = graph.add_input("x", ElementType::F32, dims);
    let one = graph.add_initializer("weight", Tensor::new(vec![1usize; 2 + spatial_axes], vec![1.0f32]).unwrap());
    let y = graph.push("y", Op::Conv(ConvAttrs::same(&vec![1usize; spatial_axes])), &[Some(x), Some(one)]);
    graph.outputs.push(y);
    graph
}

#[test]
fn a_step_with_statistics_of_slices_normalizes_each_slice_of_a_stack_in_tiles_and_in_a_pass() {
    let eps = 1e-6;
    let axes = |by_slice| StatisticsAxes { batch: false, channel: false, by_slice };
    // The first step of the input is one of slices, the second one of the stack: both have the statistics of the input.
    let steps = vec![
        Processing::ZeroMeanUnitVariance { eps, axes: axes(true) },
        Processing::ScaleRange {
            min_percentile: 0.0,
            max_percentile: 100.0,
            eps,
            axes: axes(false),
            reference_tensor: None,
        },
    ];
    let shape = [6usize, 20, 24];
    let plane = shape[1] * shape[2];
    let brighter = |(i, v): (usize, f32)| (v + 2.0) * 10f32.powi((i / plane) as i32 % 3);
    let values: Vec<f32> = noise(4, shape.iter().product()).into_iter().enumerate().map(brighter).collect();
    // As NumPy computes it: (a - a.mean((1, 2), keepdims=True)) / (a.std((1, 2), keepdims=True) + eps), then the range of a.
    let wide = |values: &[f32]| values.iter().map(|v| f64::from(*v)).collect::<Vec<f64>>();
    let all = wide(&values);
    let (low, high) = all.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(*v), b.max(*v)));
    let z_scores = |slice: &[f64]| {
        let mean = slice.iter().sum::<f64>() / slice.len() as f64;
        let std = (slice.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / slice.len() as f64).sqrt();
        slice.iter().map(|v| (v - mean) / (std + eps)).collect::<Vec<f64>>()
    };
    let before: Vec<f64> = all.chunks(plane).flat_map(z_scores).map(|z| (z - low) / (high - low + eps)).collect();
    let array = Array::new(Axes::zyx(), shape.to_vec(), values).unwrap();
    let image = image_in_memory(Path::new("a volume"), array, VoxelSize::default()).unwrap();
    let predict = |after: Vec<Processing>, tile: Option<[usize; 3]>| {
        let mut builder = package(&identity(3));
        builder.inputs[0].processing = steps.clone();
        builder.outputs[0].processing = after;
        let model = Model::from_package(builder.in_memory(Path::new("a test")).unwrap()).unwrap();
        let tiles = TileRequest { tile, ..TileRequest::default() };
        let (context, options) =
            (Context::default(), PredictOptions { tiles, threads: 2, ..PredictOptions::default() });
        let engine = Devices::cpu_only().for_model(&context, &model, CPU, &options).unwrap();
        predict_volume(&context, &engine, &model, &image, &options, VolumeOutputs::Maps).unwrap().maps.unwrap()
    };
    for tile in [None, Some([3, 8, 8])] {
        let expected: Vec<f32> = before.iter().map(|v| *v as f32).collect();
        let distance = relative_distance(&predict(Vec::new(), tile), &expected);
        assert!(distance < 1e-5, "{tile:?}: {distance}");
        // Of the output of the network, each slice has its own statistics, too.
        let after = vec![Processing::ZeroMeanUnitVariance { eps, axes: axes(true) }];
        let expected: Vec<f32> = before.chunks(plane).flat_map(z_scores).map(|v| v as f32).collect();
        let distance = relative_distance(&predict(after, tile), &expected);
        assert!(distance < 1e-3, "{tile:?}: {distance}");
    }
}

/// Validation predicts parts of images, and must not depend on what is in the part.
#[test]
fn a_part_of_a_volume_has_the_statistics_of_the_whole_volume() {
    let model = |spatial_axes: usize, by_slice: bool, min_percentile: f64| {
        let mut builder = package(&identity(spatial_axes));
        for tensor in builder.inputs.iter_mut().chain(&mut builder.outputs) {
            tensor.axes.retain(|axis| spatial_axes == 3 || axis.kind != AxisKind::Z);
        }
        let (eps, axes) = (1e-6, StatisticsAxes { batch: false, channel: true, by_slice });
        let range = Processing::ScaleRange { min_percentile, max_percentile: 100.0, eps, axes, reference_tensor: None };
        builder.inputs[0].processing = vec![range];
        Model::from_package(builder.in_memory(Path::new("a test")).unwrap()).unwrap()
    };
    let image_of = |shape: &[usize; 3], values: Vec<f32>| {
        let array = Array::new(Axes::zyx(), shape.to_vec(), values).unwrap();
        image_in_memory(Path::new("a volume"), array, VoxelSize::default()).unwrap()
    };
    let (shape, start, size) = ([5usize, 8, 12], [2usize, 1, 3], [2usize, 4, 6]);
    // Each slice is brighter than the one before it.
    let values: Vec<f32> = (0..480).map(|i| (i % 96) as f32 * 2.0 + (i / 96) as f32 * 50.0).collect();
    let indices = || {
        let [z, y, x] = [0, 1, 2].map(|a| start[a]..start[a] + size[a]);
        z.flat_map(move |z| {
            let x = x.clone();
            y.clone().flat_map(move |y| x.clone().map(move |x| (z * 8 + y) * 12 + x))
        })
    };
    let (whole, part) = (image_of(&shape, values.clone()), image_of(&size, indices().map(|i| values[i]).collect()));
    let (context, options) = (Context::default(), PredictOptions { threads: 1, ..PredictOptions::default() });
    // Those of slices are used by networks on slices, and by other ones whose steps ask for them.
    for (spatial_axes, by_slice) in [(2, false), (3, false), (3, true)] {
        let model_of_all = model(spatial_axes, by_slice, 0.0);
        let engine = Devices::cpu_only().for_model(&context, &model_of_all, CPU, &options).unwrap();
        let whole_preprocessing = ImagePreprocessing::of(&context, &model_of_all, &whole, &options).unwrap();
        let predict = |model: &Model| {
            let (outputs, part_preprocessing) = (VolumeOutputs::Maps, whole_preprocessing.starting_at(start[0]));
            predict_part(&context, &engine, model, &part, &options, outputs, &part_preprocessing)
        };
        let found = predict(&model_of_all).unwrap().maps.unwrap();
        // Slices have values from 50 z to 50 z + 190, the stack from 0 to 390.
        let is_of_slices = spatial_axes == 2 || by_slice;
        let scaled = |i: usize| if is_of_slices { (i % 96) as f32 * 2.0 / 190.0 } else { values[i] / 390.0 };
        let expected: Vec<f32> = indices().map(scaled).collect();
        assert!(relative_distance(&found, &expected) < 1e-5, "{spatial_axes}: {found:?} instead of {expected:?}");
        let refused = predict(&model(spatial_axes, by_slice, 10.0)).unwrap_err();
        assert!(matches!(refused, JobError::Internal(_)), "{refused}");
    }
}

/// Networks that tell classes apart may return the class of each voxel as an integer, and take bytes or 16-bit floats.
#[test]
fn networks_of_other_types_than_32_bit_floats_are_predicted() {
    let dims = || ["n", "d", "h", "w"].map(|name| Dim::Free(name.to_owned()));
    let classes = |input: ElementType, floats: ElementType, output: Option<ElementType>| {
        let mut graph = Graph::new("classes");
        let [n, d, h, w] = dims();
        let x = graph.add_input("x", input, vec![n, Dim::Fixed(1), d, h, w]);
        // The three channels are those of a ramp: which one is largest depends on the brightness alone.
        let weights = Tensor::new([3, 1, 1, 1, 1], vec![-1.0f32, 0.0, 1.0]).unwrap().cast(floats);
        let shifts = Tensor::vector(vec![0.0f32, 2.5, -20.0]).cast(floats);
        let (weights, shifts) = (graph.add_initializer("w", weights), graph.add_initializer("b", shifts));
        let x = graph.push("floats", Op::Cast { to: floats }, &[Some(x)]);
        let y = graph.push("conv", Op::Conv(ConvAttrs::same(&[1; 3])), &[Some(x), Some(weights), Some(shifts)]);
        let y = graph.push("class", Op::ArgReduce { max: true, axis: 1, keep_dims: true, last: false }, &[Some(y)]);
        let y = match output {
            Some(to) => graph.push("y", Op::Cast { to }, &[Some(y)]),
            None => y,
        };
        graph.outputs.push(y);
        infer_shapes::<ValueId>(&mut graph, &[]).unwrap();
        graph
    };
    let shape = vec![4, 8, 9];
    let values: Vec<f32> = (0..4 * 8 * 9).map(|i| (i % 40) as f32).collect();
    let array = Array::new(Axes::zyx(), shape, values.clone()).unwrap();
    let image = image_in_memory(Path::new("a volume"), array, VoxelSize::default()).unwrap();
    let expected: Vec<f32> = values.iter().map(|v| if *v > 22.5 { 2.0 } else { 1.0 }).collect();
    let f32 = ElementType::F32;
    for (input, floats, output) in [
        (f32, f32, None),
        (f32, f32, Some(ElementType::U8)),
        (ElementType::U8, f32, Some(f32)),
        (ElementType::F16, ElementType::F16, Some(ElementType::F16)),
    ] {
        let graph = classes(input, floats, output);
        let options = PredictOptions { threads: 2, ..PredictOptions::default() };
        let made = predict_with(&graph, &image, &options, VolumeOutputs::Maps).unwrap();
        assert!(made.maps.unwrap() == expected, "{input} to {output:?}");
    }
}

#[test]
fn a_time_point_must_be_given_if_there_are_several() {
    let shape = vec![2, 5, 40, 40];
    let array = Array::new("TZYX".parse().unwrap(), shape.clone(), noise(4, shape.iter().product())).unwrap();
    let image = image_in_memory(Path::new("a film"), array, VoxelSize::default()).unwrap();
    let refused = in_memory(&image, &options(), VolumeOutputs::Maps).unwrap_err();
    assert_eq!(refused.kind(), JobErrorKind::WrongUse);
    let second = PredictOptions { time: Some(1), ..options() };
    assert_eq!(in_memory(&image, &second, VolumeOutputs::Maps).unwrap().shape_zyx, [5, 40, 40]);
    let third = PredictOptions { time: Some(2), ..options() };
    let refused = in_memory(&image, &third, VolumeOutputs::Maps).unwrap_err();
    assert!(refused.to_string().contains("a film"), "{refused}");
}
