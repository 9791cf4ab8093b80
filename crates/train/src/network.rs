//! The start model: the network of a package, or a new U-Net for training from scratch.

mod head;

use crate::config::TrainConfig;
use crate::error::{io_error, model_error, wrong_use_with};
use crate::lengths::free_lengths;
use crate::origin::Origin;
use crate::start::TrainStart;
use cytoscope_autodiff::prepare;
use cytoscope_builders::{UNet3d, Upsampling, Weights, unet3d};
use cytoscope_graph::{Activation, BinaryOp, Graph, GraphError, Op, Tensor, ValueId};
use cytoscope_graph_passes::{infer_shapes, quantize::is_quantized};
use cytoscope_model_package::config_key::{QUANTIZATION, SEGMENT, TARGET};
use cytoscope_model_package::{Package, Processing, StatisticsAxes};
use cytoscope_objects::SegmentOptions;
use cytoscope_pipeline::packages::is_model;
use cytoscope_pipeline::{JobError, Model, ModelInput, SCRATCH, find_model, model_folders, move_channels};
use cytoscope_storage::counted;
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::{CONFIG, FROM_SCRATCH};
use cytoscope_training_data::setting::IMAGE_CHANNELS;
use cytoscope_training_data::{Normalize, TargetKind, TrainingTask};
use head::{append_sigmoid, ends_in_sigmoid, further_layer, new_head, remove_sigmoid};
use serde_json::{Value, json};
use std::path::{Path, PathBuf, is_separator};

/// The network that training starts from, in its trainable form, with the facts of its package.
pub(crate) struct StartModel {
    /// The network in the form that is trained: its output is probabilities for labels, intensities for a stain.
    pub graph: Graph,
    /// Whether its weights are randomly initialized.
    pub from_scratch: bool,
    /// Name of the model, or `scratch`; for the record.
    pub name: String,
    /// Names of the channels of all its inputs; at least one.
    pub inputs: Vec<String>,
    /// Its inputs, in their order.
    pub tensors: Vec<StartTensor>,
    /// Names of its output channels: the channels of the target, or the stains.
    pub outputs: Vec<String>,
    /// The quantity that the network is trained to predict.
    pub target: TargetKind,
    /// Voxel size along Z, Y, X in µm that it works at, if known.
    pub voxel_um: Option<[f64; 3]>,
    /// Nominal object diameter in µm at that voxel size, to which images are scaled; `None` for no scaling.
    pub object_diameter_um: Option<f64>,
    /// Usual intensity of objects after the normalization, by which predictions scale much brighter or dimmer ones, if it
    /// is known.
    pub object_intensity: Option<f64>,
    /// Intensity normalization of each input channel.
    pub normalize: Normalize,
    /// Patch sizes are multiples of this, along Z, Y, X.
    pub step: [usize; 3],
    /// Patch size along Z, Y, X, if the network takes no other.
    pub lengths: [Option<usize>; 3],
    /// Number of patches in a batch, if the network takes no other.
    pub batch: Option<usize>,
    /// Number of spatial axes: 3, or 2 for networks that process single slices.
    pub spatial_axes: usize,
    /// Segmentation settings that it declares, if any.
    pub segment: Option<SegmentOptions>,
    /// Whether its outputs match the training target, so that it can be scored before training.
    pub comparable: bool,
    /// The package's int8 form of `graph`, if it has one with the same outputs.
    pub int8: Option<Int8Network>,
    /// Ids of the package's outputs after the first, which are not trained.
    pub other_outputs: Vec<String>,
    /// What its package states about its origin; `None` for a new network.
    pub origin: Option<Origin>,
}

/// An input of a start model.
pub(crate) struct StartTensor {
    /// Its id in the package.
    pub id: String,
    /// Number of its channels.
    pub channels: usize,
    /// The intensity normalization, as preprocessing steps of a package.
    pub preprocessing: Vec<Processing>,
}

impl StartModel {
    /// Returns a fingerprint of the weights, by which a resumed run notices that its start model has changed; empty for a new
    /// network.
    pub(crate) fn weights_fingerprint(&self) -> String {
        if self.from_scratch { String::new() } else { weights_fingerprint(&self.graph) }
    }
}

/// Returns a fingerprint of the weights of a network.
fn weights_fingerprint(graph: &Graph) -> String {
    let mut bytes = Vec::new();
    for tensor in graph.initializers.values() {
        match tensor.as_f32() {
            Some(values) => bytes.extend_from_slice(bytemuck::cast_slice(values)),
            None => bytes.extend(tensor.to_f64_vec().into_iter().flat_map(f64::to_le_bytes)),
        }
    }
    cytoscope_engine::select::fingerprint(&bytes)
}

/// Id of the only input of a package.
const ONLY_INPUT: &str = "stack";

/// The int8 network of a package.
pub(crate) struct Int8Network {
    /// The network.
    pub graph: Graph,
    /// How it was made: `config.cytoscope.quantization` of the package.
    pub record: Value,
}

/// Returns the int8 network of a package if it can take the place of its float network unchanged: one output, which ends
/// in a sigmoid if `sigmoid` is set.
fn int8_network(package: &Package, sigmoid: bool) -> Option<Int8Network> {
    let float = package.float_graph.as_ref().filter(|_| package.is_int8())?;
    let fits = |graph: &Graph| graph.outputs.len() == 1 && (!sigmoid || ends_in_sigmoid(graph));
    let record = package.config().get(QUANTIZATION).cloned().unwrap_or_else(|| json!({}));
    (fits(float) && fits(&package.graph)).then(|| Int8Network { graph: package.graph.clone(), record })
}

/// Extensions of the file that names the trainable counterpart of a package with hand-designed filters, and lies beside
/// it: the current extension, and the one of earlier versions.
const TRAINABLE_EXTENSIONS: [&str; 2] = ["trainable", "teach"];

/// Returns the name of the package that training starts from if the user chose the model `name`: for models with
/// hand-made filters, a file `NAME.trainable` in one of `folders`, beside the packages, names a trainable one. As for
/// [`find_model`], a folder or file in the current folder that is called like a model, but is none, does not hide it.
///
/// # Errors
/// [`JobError`] if that file cannot be read or does not contain the name of a model.
fn resolve_trainable(name: &str, folders: &[PathBuf]) -> Result<String, JobError> {
    let is_name = |text: &str| Path::new(text).components().count() == 1;
    if !is_name(name) || name.ends_with(is_separator) || is_model(Path::new(name)) {
        return Ok(name.to_owned());
    }
    let mut files = folders
        .iter()
        .flat_map(|folder| TRAINABLE_EXTENSIONS.map(|extension| folder.join(format!("{name}.{extension}"))));
    let Some(path) = files.find(|path| path.is_file()) else { return Ok(name.to_owned()) };
    let text = std::fs::read_to_string(&path).map_err(io_error(&path))?;
    let other = text.trim();
    if is_name(other) {
        return Ok(other.to_owned());
    }
    let problem =
        format!("it contains \"{}\", which is not the name of a model", other.chars().take(60).collect::<String>());
    let next_step = "write the name of a model that can be trained, or remove the file".into();
    Err(JobError::Mismatch { path, problem: problem.into(), next_step })
}

/// Returns the path of the package that training starts from in place of the chosen model `from`, which has hand-made
/// filters; `None` for other models.
pub(crate) fn trainable_for(from: &str) -> Option<PathBuf> {
    // Problems are reported when the model is loaded.
    let other = resolve_trainable(from, &model_folders()).ok().filter(|other| other != from)?;
    find_model(&other).ok()
}

/// Returns the path of the start model `from`, a package path or name, or of its trainable counterpart, if there is one.
///
/// # Errors
/// [`JobError`] if there is no such model, or the trainable counterpart that it names is missing.
pub(crate) fn start_model_path(from: &str) -> Result<PathBuf, JobError> {
    find_model(&resolve_trainable(from, &model_folders())?)
}

/// Loads the start model, or builds a new network. `voxel_um` is the voxel size of the data in µm, from which the strides of
/// a new network are derived.
pub(crate) fn load_start_model(
    from: &TrainStart,
    task: TrainingTask,
    config: &TrainConfig,
    voxel_um: Option<[f64; 3]>,
    seed: u64,
) -> Result<StartModel, JobError> {
    let Some(from) = from.model() else { return scratch(task, config, voxel_um, seed) };
    let path = start_model_path(from)?;
    let shown = path.display().to_string();
    let mut package = Package::open(&path).map_err(|e| JobError::model(&*shown, e))?;
    move_channels(&mut package).map_err(|problem| JobError::model(&*shown, problem))?;
    let declared = declared_target(&package, &shown)?;
    let has_segment = package.config().get(SEGMENT).is_some();
    let mut source = match (package.is_int8(), &package.float_graph) {
        (true, Some(float)) => float.clone(),
        _ => package.graph.clone(),
    };
    let int8 = [false, true].map(|sigmoid| int8_network(&package, sigmoid));
    let origin = Some(Origin::of(&package));
    let known = Model::from_package(package)?;
    let inputs = config.data.input_names();
    check_input_channels(from, known.input_channels, &inputs)?;
    source.outputs.truncate(1);
    // Before constants are folded, which would include the lengths.
    let lengths = free_lengths(&mut source);
    let mut graph = trainable_form(&source, &shown)?;
    // Batch norms would also update the statistics of layers that are to stay as they are.
    if config.norm_share < 1.0 || !config.only.is_empty() {
        cytoscope_graph_passes::fold_batch_norm(&mut graph).map_err(model_error(&shown))?;
        cytoscope_graph_passes::eliminate_dead(&mut graph);
    }
    let target = target(task, config, declared, known.output_channels)?;
    let outputs = output_names(target, config);
    let comparable = fit_outputs(&mut graph, &known, declared, target, outputs.len(), seed);
    let comparable = comparable.map_err(model_error(&shown))?;
    infer_shapes::<ValueId>(&mut graph, &[]).map_err(model_error(&shown))?;
    let [int8, int8_with_sigmoid] = int8;
    let int8 = if target.is_from_labels() { int8_with_sigmoid } else { int8 };
    let normalize = match (config.normalize, common_normalization(&known.inputs)) {
        (Some(requested), _) => requested,
        (None, Some(own)) => own,
        (None, None) => {
            return Err(wrong_use_with(
                format!("{from} uses preprocessing that training does not support"),
                message!("set normalize in {CONFIG}"),
            ));
        }
    };
    let keeps_normalization = common_normalization(&known.inputs) == Some(normalize);
    Ok(StartModel {
        graph,
        from_scratch: false,
        name: known.name.clone(),
        target,
        voxel_um: config.voxel_um.or(known.voxel_um),
        object_diameter_um: known.object_diameter_um.filter(|_| target.is_from_labels()),
        object_intensity: known.object_intensity.filter(|_| target.is_from_labels() && keeps_normalization),
        tensors: start_tensors(&known.inputs, normalize),
        inputs,
        outputs,
        normalize,
        step: lengths.multiples.map_or(known.step, |multiples| values_zyx(&multiples, known.spatial_axes, 1)),
        lengths: values_zyx(&lengths.space, known.spatial_axes, None),
        batch: lengths.batch,
        spatial_axes: known.spatial_axes,
        segment: has_segment.then(|| known.segment.clone()),
        comparable,
        int8: int8.filter(|_| comparable),
        other_outputs: known.outputs.iter().skip(1).map(|output| output.id.clone()).collect(),
        origin,
    })
}

/// Gives the network of a model `outputs` output channels, with the activation of the target of the training. Returns whether
/// its output still means the same, so that its scores can be compared to those of the model.
fn fit_outputs(
    graph: &mut Graph,
    known: &Model,
    declared: Option<TargetKind>,
    target: TargetKind,
    outputs: usize,
    seed: u64,
) -> Result<bool, GraphError> {
    let mut comparable = outputs == known.output_channels && declared.is_none_or(|d| d == target);
    if outputs != known.output_channels && new_head(graph, outputs, seed).is_none() {
        let kernel = vec![1; known.spatial_axes];
        further_layer(graph, known.output_channels, outputs, &kernel, seed)?;
    }
    if target.is_from_labels() {
        append_sigmoid(graph);
    } else if declared != Some(target) && remove_sigmoid(graph) {
        // Stains are normalized to mean 0, which a sigmoid cannot predict.
        comparable = false;
    }
    Ok(comparable)
}

/// Returns a network in the form that is trained; `shown` is the path of its model.
fn trainable_form(source: &Graph, shown: &str) -> Result<Graph, JobError> {
    let graph = prepare(source).map_err(model_error(shown))?;
    if is_quantized(&graph) {
        let problem =
            "it computes with bytes between its layers, which cannot be trained: start from its float network";
        return Err(JobError::model(shown, problem));
    }
    Ok(graph)
}

/// Returns the values for Z, Y, X, given those for the spatial axes; networks for single slices get `missing` for Z.
fn values_zyx<T: Copy>(values: &[T], spatial_axes: usize, missing: T) -> [T; 3] {
    std::array::from_fn(|a| (a + spatial_axes).checked_sub(3).and_then(|a| values.get(a)).copied().unwrap_or(missing))
}

/// Checks that a start model has as many input channels as the data settings choose.
fn check_input_channels(from: &str, model_channels: usize, chosen: &[String]) -> Result<(), JobError> {
    if model_channels == chosen.len() {
        return Ok(());
    }
    let choice: Message = match chosen.len() {
        1 => "the data have one".into(),
        count => message!("{IMAGE_CHANNELS} lists {count}"),
    };
    let next_step = match model_channels {
        1 => message!("list one channel, or train from scratch ({FROM_SCRATCH})"),
        count => {
            message!("list {count} in {IMAGE_CHANNELS}, in the order of the model's inputs, or choose another model")
        }
    };
    let inputs = counted(model_channels, "input channel");
    Err(wrong_use_with(message!("{from} has {inputs}, but {choice}"), next_step))
}

/// Returns the names of the output channels of a network that is trained to predict `target`.
fn output_names(target: TargetKind, config: &TrainConfig) -> Vec<String> {
    if target.is_from_labels() {
        return target.channel_names().iter().map(|name| (*name).to_owned()).collect();
    }
    config.data.stain_names()
}

/// The target that a package was trained for; `None` if it does not say. `shown` names the package in errors.
fn declared_target(package: &Package, shown: &str) -> Result<Option<TargetKind>, JobError> {
    let Some(target) = package.config().get(TARGET).filter(|t| !t.is_null()) else { return Ok(None) };
    serde_json::from_value(target.clone()).map(Some).map_err(|e| {
        JobError::model(shown, format!("config.cytoscope.{TARGET} is {target}, expected a training target ({e})"))
    })
}

/// Returns the target of a training run.
///
/// # Errors
/// [`JobError::WrongUse`] for a target that no segmentation can read.
fn target(
    task: TrainingTask,
    config: &TrainConfig,
    declared: Option<TargetKind>,
    channels: usize,
) -> Result<TargetKind, JobError> {
    match (task, config.target, declared) {
        (TrainingTask::LabelFree, ..) => Ok(TargetKind::Regression),
        (_, Some(TargetKind::Flow), _) => Err(wrong_use_with(
            "networks trained on the target flow cannot be used for segmentation",
            "use instances, boundary or distance",
        )),
        (_, Some(requested), _) => Ok(requested),
        (_, None, Some(declared)) if declared.is_from_labels() && declared != TargetKind::Flow => Ok(declared),
        _ if channels == 1 => Ok(TargetKind::Semantic),
        _ => Ok(TargetKind::Instances),
    }
}

fn scratch(
    task: TrainingTask,
    config: &TrainConfig,
    voxel_um: Option<[f64; 3]>,
    seed: u64,
) -> Result<StartModel, JobError> {
    let target = target(task, config, None, 2)?;
    let voxel_um = config.voxel_um.or(voxel_um);
    let levels = config.network.filters.len();
    let strides =
        if config.network.strides.is_empty() { strides(levels, voxel_um) } else { config.network.strides.clone() };
    let (inputs, outputs) = (config.data.input_names(), output_names(target, config));
    let description = UNet3d {
        in_channels: inputs.len(),
        out_channels: outputs.len(),
        filters: config.network.filters.clone(),
        strides: strides.clone(),
        convs_per_block: config.network.convs_per_block,
        upsampling: Upsampling::Transposed,
        head: target.is_from_labels().then_some(Activation::Sigmoid),
        deep_heads: if config.network.deep_supervision { levels.saturating_sub(2) } else { 0 },
        ..UNet3d::default()
    };
    let mut graph = unet3d(&description, &Weights::Random { seed }).map_err(model_error(SCRATCH))?;
    // Bright-field intensities lie around a medium gray, so they need no compression of bright values.
    let default_normalize = if target.is_from_labels() {
        compress(&mut graph, config.network.compress);
        Normalize::ScaleRange { min_percentile: 1.0, max_percentile: 99.8, eps: 1e-6 }
    } else {
        Normalize::default()
    };
    let normalize = config.normalize.unwrap_or(default_normalize);
    Ok(StartModel {
        graph: prepare(&graph).map_err(model_error(SCRATCH))?,
        from_scratch: true,
        name: SCRATCH.to_owned(),
        target,
        voxel_um,
        object_diameter_um: None,
        object_intensity: None,
        tensors: vec![start_tensor(ONLY_INPUT, inputs.len(), normalize)],
        inputs,
        outputs,
        normalize,
        step: strides.iter().fold([1; 3], |all, s| [0, 1, 2].map(|a| all[a] * s[a])),
        lengths: [None; 3],
        batch: None,
        spatial_axes: 3,
        segment: None,
        comparable: false,
        int8: None,
        other_outputs: Vec::new(),
        origin: None,
    })
}

/// Inserts the compression x ↦ kx / (1 + |kx|) after the graph input.
fn compress(graph: &mut Graph, k: f32) {
    let Some(x) = graph.inputs.first().copied().filter(|_| k > 0.0) else { return };
    let Ok(factor) = Tensor::new(Vec::new(), vec![k]) else { return };
    let factor = graph.add_initializer("compress.factor", factor);
    let at = graph.nodes.len();
    let scaled = graph.push("compress.scaled", Op::Binary(BinaryOp::Mul), &[Some(x), Some(factor)]);
    let compressed = graph.push("compress.out", Op::Activation(Activation::Softsign), &[Some(scaled)]);
    for node in graph.nodes.iter_mut().take(at) {
        node.inputs.iter_mut().filter(|id| **id == Some(x)).for_each(|id| *id = Some(compressed));
    }
    graph.nodes.rotate_right(2);
}

/// Returns strides that make voxels more isotropic: levels do not downsample along Z as long as the slice spacing is
/// more than 1.5 times the pixel size.
fn strides(levels: usize, voxel_um: Option<[f64; 3]>) -> Vec<[usize; 3]> {
    let mut voxel = voxel_um.unwrap_or([1.0; 3]);
    (1..levels)
        .map(|_| {
            let is_elongated = voxel[0] > 1.5 * voxel[1].max(voxel[2]);
            let stride = if is_elongated { [1, 2, 2] } else { [2, 2, 2] };
            voxel = [0, 1, 2].map(|a| voxel[a] * stride[a] as f64);
            stride
        })
        .collect()
}

/// Returns the intensity normalization of all inputs, or `None` if training does not support it, or inputs differ in it.
fn common_normalization(inputs: &[ModelInput]) -> Option<Normalize> {
    let mut all = inputs.iter().map(|input| parse_normalization(&input.preprocessing, input.channels));
    let first = all.next()??;
    all.all(|other| other == Some(first)).then_some(first)
}

/// Returns the inputs of a model, normalized alike. The only input has the id that training gives it.
fn start_tensors(inputs: &[ModelInput], normalize: Normalize) -> Vec<StartTensor> {
    let id = |input: &ModelInput| if inputs.len() == 1 { ONLY_INPUT.to_owned() } else { input.id.clone() };
    inputs.iter().map(|input| start_tensor(&id(input), input.channels, normalize)).collect()
}

fn start_tensor(id: &str, channels: usize, normalize: Normalize) -> StartTensor {
    StartTensor { id: id.to_owned(), channels, preprocessing: normalization_steps(normalize, channels) }
}

/// Returns the intensity normalization of a package's preprocessing, or `None` if training does not support it.
/// Training normalizes each of several `channels` by its own statistics.
fn parse_normalization(steps: &[Processing], channels: usize) -> Option<Normalize> {
    if channels > 1 && steps.iter().filter_map(Processing::statistics_axes).any(|axes| axes.channel) {
        return None;
    }
    // Slices are normalized separately only for networks on slices.
    if steps.iter().any(Processing::has_statistics_of_slices) {
        return None;
    }
    let steps: Vec<&Processing> = steps.iter().filter(|s| !matches!(s, Processing::EnsureDtype { .. })).collect();
    match steps.as_slice() {
        [] => Some(Normalize::None),
        [Processing::ZeroMeanUnitVariance { eps, .. }] => Some(Normalize::ZeroMeanUnitVariance { eps: *eps }),
        [Processing::ScaleRange { min_percentile, max_percentile, eps, reference_tensor: None, .. }] => {
            Some(Normalize::ScaleRange { min_percentile: *min_percentile, max_percentile: *max_percentile, eps: *eps })
        }
        [Processing::FixedZeroMeanUnitVariance { mean, std }] => {
            let ([mean], [std]) = (&mean[..], &std[..]) else { return None };
            Some(Normalize::FixedZeroMeanUnitVariance { mean: *mean, std: *std })
        }
        _ => None,
    }
}

/// Returns the preprocessing steps of a package for an intensity normalization of each of its `channels`.
fn normalization_steps(normalize: Normalize, channels: usize) -> Vec<Processing> {
    let axes = StatisticsAxes { channel: channels == 1, ..StatisticsAxes::default() };
    match normalize {
        Normalize::None => Vec::new(),
        Normalize::ZeroMeanUnitVariance { eps } => {
            vec![Processing::ZeroMeanUnitVariance { eps, axes }]
        }
        Normalize::ScaleRange { min_percentile, max_percentile, eps } => {
            vec![Processing::ScaleRange { min_percentile, max_percentile, eps, axes, reference_tensor: None }]
        }
        Normalize::FixedZeroMeanUnitVariance { mean, std } => {
            vec![Processing::FixedZeroMeanUnitVariance { mean: vec![mean], std: vec![std] }]
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

    use super::*;

    #[test]
    fn a_segmentation_model_that_learns_stains_loses_its_sigmoid() {
        let package = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nuclei");
        let check_task = |package: &str, task| {
            let from = TrainStart::Model(package.to_owned());
            load_start_model(&from, task, &TrainConfig::default(), None, 1).unwrap()
        };
        let of = |task| check_task(package, task);
        let (segmentation, stain) = (of(TrainingTask::Segmentation), of(TrainingTask::LabelFree));
        assert!(ends_in_sigmoid(&segmentation.graph) && segmentation.comparable);
        assert!(!ends_in_sigmoid(&stain.graph) && !stain.comparable && stain.int8.is_none());
        // A stain model stays as it is.
        let package = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/labelfree-nuclei");
        let start = check_task(package, TrainingTask::LabelFree);
        assert!(start.comparable);
    }

    #[test]
    fn targets_that_cannot_be_segmented_are_refused() {
        let config: TrainConfig = toml::from_str("target = { kind = \"flow\" }").unwrap();
        let package = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nuclei");
        for from in [TrainStart::Scratch, TrainStart::Model(package.to_owned())] {
            let refused = load_start_model(&from, TrainingTask::Segmentation, &config, None, 1).err().unwrap();
            assert!(refused.to_string().contains("flow"), "{from}: {refused}");
        }
    }

    #[test]
    fn channels_of_the_settings_are_those_of_a_new_network() {
        let text = "[network]\nfilters = [4, 8]\n[data]\nchannels = [\"membrane\", \"nuclei\"]\n";
        let config: TrainConfig = toml::from_str(text).unwrap();
        let start = load_start_model(&TrainStart::Scratch, TrainingTask::Segmentation, &config, None, 1).unwrap();
        assert_eq!(
            (start.inputs.len(), start.outputs.as_slice()),
            (2, &["foreground", "height"].map(str::to_owned)[..])
        );
        // Each channel is normalized by its own statistics, and these steps are understood again.
        let [stack] = start.tensors.as_slice() else { panic!("{} inputs", start.tensors.len()) };
        let axes = stack.preprocessing.first().and_then(Processing::statistics_axes).unwrap();
        assert!(!axes.channel);
        assert_eq!(parse_normalization(&stack.preprocessing, 2), Some(start.normalize));
        assert_eq!(parse_normalization(&normalization_steps(start.normalize, 1), 2), None);
        let by_slice = StatisticsAxes { by_slice: true, ..StatisticsAxes::default() };
        let of_slices = [Processing::ZeroMeanUnitVariance { eps: 1e-6, axes: by_slice }];
        assert_eq!(parse_normalization(&of_slices, 1), None);
        let three = TrainConfig { data: toml::from_str("targets = [3, 1, 2]").unwrap(), ..TrainConfig::default() };
        let start = load_start_model(&TrainStart::Scratch, TrainingTask::LabelFree, &three, None, 1).unwrap();
        assert_eq!(start.outputs, ["channel3", "channel1", "channel2"]);
        assert_eq!(start.inputs, ["image"]);
    }

    #[test]
    fn start_models_with_another_number_of_channels_are_refused() {
        let error = |model, chosen: usize| {
            let names: Vec<String> = (0..chosen).map(|i| i.to_string()).collect();
            check_input_channels("nuclei", model, &names).unwrap_err().to_string()
        };
        assert!(error(1, 2).contains("nuclei has 1 input channel, but data.channels lists 2"), "{}", error(1, 2));
        assert!(error(2, 1).contains("list 2 in data.channels"), "{}", error(2, 1));
        assert!(check_input_channels("nuclei", 2, &["a".to_owned(), "b".to_owned()]).is_ok());
    }

    #[test]
    fn trainable_models_are_found_under_the_present_and_the_earlier_extension() {
        let folder = tempfile::tempdir().unwrap();
        let folders = [folder.path().to_owned()];
        let resolve = |name| resolve_trainable(name, &folders);
        std::fs::write(folder.path().join("old.teach"), "nuclei\n").unwrap();
        std::fs::write(folder.path().join("new.trainable"), "cells\n").unwrap();
        std::fs::write(folder.path().join("outside.trainable"), "../cells\n").unwrap();
        assert_eq!([resolve("old").unwrap(), resolve("new").unwrap()], ["nuclei", "cells"]);
        assert_eq!(resolve("other").unwrap(), "other");
        // The tests run in the folder of the crate, which holds a folder `src`. It is not a model.
        std::fs::write(folder.path().join("src.trainable"), "cells\n").unwrap();
        assert!(Path::new("src").is_dir());
        assert_eq!([resolve("src").unwrap(), resolve("src/").unwrap()], ["cells", "src/"]);
        let error = resolve("outside").unwrap_err().to_string();
        assert!(error.contains("outside.trainable") && error.contains("../cells"), "{error}");
    }
}
