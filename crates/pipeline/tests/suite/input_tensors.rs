//! Models with several input tensors: each is read from its own file or channel, and tiles are cut from all at the same place.
//! Models with several output tensors: one of them is predicted, or all together.

use crate::common::{noise, noise_tensor, package, relative_distance};
use cytoscope_engine::{DeviceId, DeviceRequest};
use cytoscope_formats::{Channel, Container, OpenOptions, WriteSpec, open, write_array};
use cytoscope_graph::{BinaryOp, ConvAttrs, Dim, ElementType, Graph, Op, Tensor};
use cytoscope_model_package::{AxisKind, AxisSize, Package, Processing};
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::predict::{ChannelRef, InputTensor, TileRequest};
use cytoscope_pipeline::{Context, JobError, Output, OutputTensor, PredictJob, PredictOutcome, cards, provenance};
use cytoscope_volume::{Array, VoxelSize};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Shape Z, Y, X of the images.
const SHAPE: [usize; 3] = [9, 20, 26];
const VOXELS: usize = 9 * 20 * 26;

/// A network of the inputs `nuclei` and `membrane`, which are convolved separately and added.
fn network() -> Graph {
    let mut graph = Graph::new("two inputs");
    let mut convolved = Vec::new();
    for (seed, name) in [(1, "nuclei"), (2, "membrane")] {
        let free = |axis: &str| Dim::Free(axis.to_owned());
        let shape = vec![Dim::Fixed(1), Dim::Fixed(1), free("z"), free("y"), free("x")];
        let input = graph.add_input(name, ElementType::F32, shape);
        let weight = graph.add_initializer(format!("{name} weight"), noise_tensor(seed, &[1, 1, 3, 3, 3]));
        let attrs = ConvAttrs::same(&[3, 3, 3]);
        convolved.push(Some(graph.push(format!("{name} conv"), Op::Conv(attrs), &[Some(input), Some(weight)])));
    }
    let sum = graph.push("sum", Op::Binary(BinaryOp::Add), &convolved);
    graph.outputs.push(sum);
    graph
}

/// The images of both inputs, which no step of the package has changed.
fn images() -> [Vec<f32>; 2] {
    [noise(3, VOXELS), noise(4, VOXELS)]
}

/// Returns the output of the network for the preprocessed images, computed by the reference executor without tiles.
fn expected() -> Vec<f32> {
    let [nuclei, membrane] = images();
    let membrane: Vec<f32> = membrane.iter().map(|v| v * 3.0 + 0.5).collect();
    run_reference(&network(), nuclei, membrane).into_f32().unwrap()
}

fn run_reference(graph: &Graph, nuclei: Vec<f32>, membrane: Vec<f32>) -> Tensor {
    let tensor = |values: Vec<f32>| Tensor::new([&[1, 1][..], &SHAPE].concat(), values).unwrap();
    let inputs = [("nuclei".to_owned(), tensor(nuclei)), ("membrane".to_owned(), tensor(membrane))];
    cytoscope_reference::run(graph, &inputs).unwrap().remove(0)
}

/// Writes the package of the network, in which the second input has its own preprocessing step.
fn save_model(path: &Path) {
    let mut builder = package(&network());
    let mut second = builder.inputs[0].clone();
    builder.inputs[0].id = "nuclei".to_owned();
    second.id = "membrane".to_owned();
    second.processing = vec![Processing::ScaleLinear { gain: vec![3.0], offset: vec![0.5] }];
    builder.inputs.push(second);
    for axis in &mut builder.outputs[0].axes {
        if let AxisSize::Reference { tensor, .. } = &mut axis.size {
            *tensor = "nuclei".to_owned();
        }
    }
    let tensor = |values: Vec<f32>| Tensor::new([&[1, 1][..], &SHAPE].concat(), values).unwrap();
    builder.test_inputs = images().map(tensor).to_vec();
    builder.test_outputs = vec![tensor(expected())];
    let _ = builder.save(path, cytoscope_storage::Overwrite::Refuse).unwrap();
}

/// A folder with the model, and the images as files of one channel and as channels of one file.
struct Fixture {
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let fixture = Self { folder: tempfile::tempdir().unwrap() };
        save_model(&fixture.path("model"));
        let [nuclei, membrane] = images();
        fixture.write("a.tif", &nuclei, None);
        fixture.write("b.tif", &membrane, None);
        let planes = |values: &[f32]| values.chunks(20 * 26).map(<[f32]>::to_vec).collect::<Vec<_>>();
        let zipped = planes(&membrane).into_iter().zip(planes(&nuclei));
        let both: Vec<f32> = zipped.flat_map(|(membrane, nuclei)| [membrane, nuclei].concat()).collect();
        fixture.write("both.tif", &both, Some(["Membrane", "nuclei"]));
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes an image; with names of channels, axes Z, C, Y, X.
    fn write(&self, name: &str, values: &[f32], channels: Option<[&str; 2]>) {
        let (axes, shape) = match channels {
            None => ("ZYX", SHAPE.to_vec()),
            Some(_) => ("ZCYX", vec![9, 2, 20, 26]),
        };
        let array = Array::new(axes.parse().unwrap(), shape, values.to_vec()).unwrap();
        let mut spec = WriteSpec::of(&array, Container::OmeTiff);
        let named = |name: &str| Channel { name: name.to_owned(), color_rgb: None };
        spec.channels = channels.map_or_else(Vec::new, |names| names.map(named).to_vec());
        spec.voxel_size_um = VoxelSize::new_um(1.0, 0.5, 0.5);
        write_array(&self.path(name), &array, &spec).unwrap();
    }

    fn tensor(&self, name: &str, file: &str) -> InputTensor {
        InputTensor { name: name.to_owned(), file: Some(self.path(file)), channels: Vec::new() }
    }

    fn job(&self, input: &str, input_tensors: Vec<InputTensor>, out: &str) -> PredictJob {
        let text = json!({"inputs": [self.path(input)], "model": self.path("model"), "out": self.path(out)});
        let mut job: PredictJob = serde_json::from_value(text).unwrap();
        job.device = DeviceRequest::Device(DeviceId::Cpu);
        job.outputs = [Output::Maps].into();
        job.input_tensors = input_tensors;
        job
    }

    fn maps(&self, out: &str, stem: &str) -> Vec<f32> {
        let path = self.path(out).join(format!("{stem}_prediction.tif"));
        open(&path, &OpenOptions::default()).unwrap().read_all().unwrap().samples().to_f32()
    }
}

fn run(job: &PredictJob) -> Result<PredictOutcome, JobError> {
    job.run(&Context::default(), &Devices::cpu_only())
}

fn assert_expected(maps: &[f32], what: &str) {
    let distance = relative_distance(maps, &expected());
    assert!(distance < 1e-5, "{what}: {distance}");
}

#[test]
fn each_input_is_read_from_its_own_file_with_its_own_preprocessing() {
    let fixture = Fixture::new();
    let tensors = vec![fixture.tensor("membrane", "b.tif"), fixture.tensor("nuclei", "a.tif")];
    let tiles = TileRequest { tile: Some([6, 12, 16]), ..TileRequest::default() };
    for (tiles, out) in [(TileRequest::default(), "whole"), (tiles, "tiles")] {
        let job = PredictJob { tiles, ..fixture.job("a.tif", tensors.clone(), out) };
        let outcome = run(&job).unwrap();
        assert!(outcome.failed.is_empty(), "{}", outcome.failed[0].message);
        assert_expected(&fixture.maps(out, "a"), out);
        let notes = outcome.done[0].notes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        assert!(notes.contains("input membrane is read from b.tif"), "{notes}");
    }
    let record = provenance::read(&fixture.path("tiles/a_provenance.json")).unwrap();
    let files: Vec<_> = record.input_tensors.iter().map(|tensor| (tensor.name.as_str(), &tensor.file.path)).collect();
    assert_eq!(files, [("nuclei", &fixture.path("a.tif")), ("membrane", &fixture.path("b.tif"))]);
    let again = PredictJob { out: fixture.path("again"), ..record.job };
    assert!(run(&again).unwrap().failed.is_empty());
    assert!(fixture.maps("again", "a") == fixture.maps("tiles", "a"), "the recorded job gives other maps");
}

#[test]
fn inputs_are_read_from_the_channels_of_their_names_or_the_chosen_ones() {
    let fixture = Fixture::new();
    let channel = |name: &str, channel: &str| InputTensor {
        name: name.to_owned(),
        file: None,
        channels: vec![channel.parse().unwrap()],
    };
    let mixed = fixture.tensor("membrane", "b.tif");
    for (tensors, out) in [
        (Vec::new(), "names"),
        (vec![channel("membrane", "0"), channel("nuclei", "1")], "numbers"),
        (vec![channel("membrane", "membrane")], "one of two"),
        (vec![mixed], "channel and file"),
    ] {
        let outcome = run(&fixture.job("both.tif", tensors, out)).unwrap();
        assert!(outcome.failed.is_empty(), "{out}: {}", outcome.failed[0].message);
        assert_expected(&fixture.maps(out, "both"), out);
    }
    let swapped = vec![channel("membrane", "1"), channel("nuclei", "0")];
    run(&fixture.job("both.tif", swapped, "swapped")).unwrap();
    assert!(relative_distance(&fixture.maps("swapped", "both"), &expected()) > 1e-2, "the inputs are not swapped");
}

#[test]
fn a_folder_gives_the_file_of_the_same_name() {
    let fixture = Fixture::new();
    std::fs::create_dir(fixture.path("membranes")).unwrap();
    std::fs::rename(fixture.path("b.tif"), fixture.path("membranes/a.tif")).unwrap();
    let outcome = run(&fixture.job("a.tif", vec![fixture.tensor("membrane", "membranes")], "out")).unwrap();
    assert!(outcome.failed.is_empty(), "{}", outcome.failed[0].message);
    assert_expected(&fixture.maps("out", "a"), "folder");
}

#[test]
fn images_on_another_grid_and_unknown_inputs_are_refused() {
    let fixture = Fixture::new();
    let array = Array::new("ZYX".parse().unwrap(), vec![9, 20, 25], noise(1, 9 * 20 * 25)).unwrap();
    write_array(&fixture.path("small.tif"), &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
    let array = Array::new("ZYX".parse().unwrap(), SHAPE.to_vec(), noise(1, VOXELS)).unwrap();
    let mut spec = WriteSpec::of(&array, Container::OmeTiff);
    spec.voxel_size_um = VoxelSize::new_um(2.0, 0.5, 0.5);
    write_array(&fixture.path("thick.tif"), &array, &spec).unwrap();
    for (tensors, words) in [
        (vec![fixture.tensor("membrane", "small.tif")], "9 × 20 × 25 voxels"),
        (vec![fixture.tensor("membrane", "thick.tif")], "2 × 0.5 × 0.5 µm"),
        (vec![fixture.tensor("membrane", "none.tif")], "none.tif"),
        (Vec::new(), "--input nuclei=FILE --input membrane=FILE"),
    ] {
        let outcome = run(&fixture.job("a.tif", tensors, "out")).unwrap();
        let [failed] = outcome.failed.as_slice() else { panic!("no failure with {words}") };
        assert!(failed.message.contains(words), "{}", failed.message);
    }
    let refused = run(&fixture.job("a.tif", vec![fixture.tensor("actin", "b.tif")], "out")).unwrap_err().to_string();
    assert!(refused.contains("no input \"actin\"") && refused.contains("nuclei, membrane"), "{refused}");
}

#[test]
fn an_input_in_text_is_a_file_if_it_exists_and_a_channel_otherwise() {
    let fixture = Fixture::new();
    let path = fixture.path("a.tif");
    let shown = path.to_str().unwrap();
    let parse = |text: &str| text.parse::<InputTensor>();
    assert_eq!(parse(&format!("nuclei={shown}")), Ok(fixture.tensor("nuclei", "a.tif")));
    let channels = |names: &[&str]| names.iter().map(|name| name.parse().unwrap()).collect::<Vec<ChannelRef>>();
    let with_channel = InputTensor { channels: channels(&["DAPI"]), ..fixture.tensor("nuclei", "a.tif") };
    assert_eq!(parse(&format!("nuclei={shown}:DAPI")), Ok(with_channel));
    let stack_channels = InputTensor { name: "nuclei".to_owned(), file: None, channels: channels(&["2", "DAPI"]) };
    assert_eq!(parse("nuclei=2,DAPI"), Ok(stack_channels));
    assert!(parse("nuclei=none.tif").unwrap_err().contains("does not exist"));
    assert!(parse("nuclei").unwrap_err().contains("NAME=FILE"));
}

#[test]
fn a_package_with_several_inputs_passes_its_own_test() {
    let fixture = Fixture::new();
    let card = cards::card("model", &fixture.path("model"));
    assert_eq!(card.problem, None);
    assert_eq!((card.input_channels, card.testable), (2, true));
    assert_eq!(card.input_channel_names, ["nuclei", "membrane"]);
    let package = Package::open(&fixture.path("model")).unwrap();
    let (inputs, outputs) = package.test_tensors().unwrap().unwrap();
    assert_eq!((inputs.len(), outputs.len()), (2, 1));
    let text = json!({"file": fixture.path("model")});
    let job: cytoscope_pipeline::ModelTestJob = serde_json::from_value(text).unwrap();
    let report = job.run(&Context::default(), &Devices::cpu_only()).unwrap();
    assert_eq!(report.reproduced, Some(true), "{}", report.test);
}

/// A network with the outputs `mask` of one channel and `boundary` of two.
fn two_output_network() -> Graph {
    let mut graph = Graph::new("two outputs");
    let free = |axis: &str| Dim::Free(axis.to_owned());
    let shape = vec![Dim::Fixed(1), Dim::Fixed(1), free("z"), free("y"), free("x")];
    let input = graph.add_input("x", ElementType::F32, shape);
    for (seed, name, channels) in [(1, "mask", 1), (2, "boundary", 2)] {
        let weight = graph.add_initializer(format!("{name} weight"), noise_tensor(seed, &[channels, 1, 3, 3, 3]));
        let output = graph.push(name, Op::Conv(ConvAttrs::same(&[3, 3, 3])), &[Some(input), Some(weight)]);
        graph.outputs.push(output);
    }
    graph
}

/// Writes the package of that network, which names the channels of the second output.
fn save_two_outputs(path: &Path) {
    let mut builder = package(&two_output_network());
    let mut second = builder.outputs[0].clone();
    builder.outputs[0].id = "mask".to_owned();
    second.id = "boundary".to_owned();
    for axis in second.axes.iter_mut().filter(|axis| axis.kind == AxisKind::Channel) {
        axis.size = AxisSize::Fixed(2);
        axis.channel_names = vec!["inner".to_owned(), "outer".to_owned()];
    }
    builder.outputs.push(second);
    let _ = builder.save(path, cytoscope_storage::Overwrite::Refuse).unwrap();
}

/// Returns maps in the axis order Z, C, Y, X of a file.
fn interleaved(maps: &[&[f32]]) -> Vec<f32> {
    let plane = SHAPE[1] * SHAPE[2];
    (0..SHAPE[0]).flat_map(|z| maps.iter().flat_map(move |map| map[z * plane..(z + 1) * plane].to_vec())).collect()
}

#[test]
fn one_output_or_all_are_predicted_and_the_others_are_named() {
    let fixture = Fixture::new();
    let model = fixture.path("two");
    save_two_outputs(&model);
    let [image, _] = images();
    let input = [("x".to_owned(), Tensor::new([&[1, 1][..], &SHAPE].concat(), image).unwrap())];
    let outputs = cytoscope_reference::run(&two_output_network(), &input).unwrap();
    let values: Vec<Vec<f32>> = outputs.into_iter().map(|output| output.into_f32().unwrap()).collect();
    let (mask, [inner, outer]) = (values[0].as_slice(), [&values[1][..VOXELS], &values[1][VOXELS..]]);
    let small = TileRequest { tile: Some([6, 12, 16]), ..TileRequest::default() };
    for (choice, expected, names, note) in [
        (None, vec![mask], vec!["mask"], Some("mask is predicted, boundary is not written")),
        (Some("boundary"), vec![inner, outer], vec!["inner", "outer"], Some("boundary is predicted, mask is not")),
        (Some("all"), vec![mask, inner, outer], vec!["mask", "boundary inner", "boundary outer"], None),
    ] {
        let output_tensor: Option<OutputTensor> = choice.map(|text| text.parse().unwrap());
        for (tiles, how) in [(TileRequest::default(), "whole"), (small.clone(), "tiles")] {
            let out = format!("{}-{how}", choice.unwrap_or("first"));
            let job = PredictJob {
                model: model.to_string_lossy().into_owned(),
                output_tensor: output_tensor.clone(),
                tiles,
                ..fixture.job("a.tif", Vec::new(), &out)
            };
            let outcome = run(&job).unwrap();
            assert!(outcome.failed.is_empty(), "{out}: {}", outcome.failed[0].message);
            let distance = relative_distance(&fixture.maps(&out, "a"), &interleaved(&expected));
            assert!(distance < 1e-5, "{out}: {distance}");
            let notes = outcome.done[0].notes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            assert_eq!(notes.contains("is not written"), note.is_some(), "{notes}");
            assert!(note.is_none_or(|note| notes.contains(note)), "{notes}");
            let path = fixture.path(&out).join("a_prediction.tif");
            let meta = open(&path, &OpenOptions::default()).unwrap().meta().clone();
            assert_eq!(meta.channels.iter().map(|channel| channel.name.as_str()).collect::<Vec<_>>(), names, "{out}");
            let record = provenance::read(&fixture.path(&out).join("a_provenance.json")).unwrap();
            assert_eq!(record.job.output_tensor, output_tensor);
        }
    }
    let again = provenance::read(&fixture.path("boundary-tiles/a_provenance.json")).unwrap().job;
    run(&PredictJob { out: fixture.path("again"), ..again }).unwrap();
    assert!(fixture.maps("again", "a") == fixture.maps("boundary-tiles", "a"), "the recorded job gives other maps");
    let card = cards::card("two", &model);
    let outputs: Vec<(&str, usize)> = card.outputs.iter().map(|output| (output.id.as_str(), output.channels)).collect();
    assert_eq!((outputs, card.can_join_outputs), (vec![("mask", 1), ("boundary", 2)], true));
}

#[test]
fn unknown_outputs_and_outputs_of_other_sizes_are_refused() {
    let fixture = Fixture::new();
    let refused = |model: &str, output: &str| {
        let model = fixture.path(model).to_string_lossy().into_owned();
        let output_tensor = Some(output.parse().unwrap());
        run(&PredictJob { model, output_tensor, ..fixture.job("a.tif", Vec::new(), "out") }).unwrap_err().to_string()
    };
    save_two_outputs(&fixture.path("two"));
    let unknown = refused("two", "edge");
    assert!(unknown.contains("no output \"edge\"") && unknown.contains("mask, boundary"), "{unknown}");
    // The second output has half as many voxels along each axis.
    let mut graph = two_output_network();
    for node in graph.nodes.iter_mut().filter(|node| node.name == "boundary") {
        node.op = Op::Conv(ConvAttrs { strides: vec![2; 3], ..ConvAttrs::same(&[3, 3, 3]) });
    }
    cytoscope_onnx::save(&graph, &fixture.path("halved.onnx")).unwrap();
    let halved = refused("halved.onnx", "all");
    assert!(halved.contains("cannot be predicted together") && halved.contains("lengths that differ"), "{halved}");
    assert!(!cards::card("halved", &fixture.path("halved.onnx")).can_join_outputs);
}
