//! The network that training starts from: a package's, an imported graph, or one of our own from scratch.

use crate::config::TrainConfig;
use crate::error::{model, wrong};
use cytoscope_graph::builders::{UNet3d, Upsampling, Weights, unet3d};
use cytoscope_graph::package::{Package, Processing, StatisticsAxes};
use cytoscope_graph::training::prepare;
use cytoscope_graph::{Activation, BinaryOp, Graph, Node, Op, Tensor, ValueId, infer_shapes, passes};
use cytoscope_objects::SegmentOptions;
use cytoscope_pipeline::{JobError, Model, find_model, model_folders};
use cytoscope_samples::{Normalise, TargetKind, Task};
use std::path::Path;
use std::sync::Arc;

/// What training starts from.
pub(crate) struct Start {
    /// The network in the form that is taught: its output is a probability for labels, plain values for a stain.
    pub graph: Graph,
    /// Whether its weights were drawn.
    pub from_scratch: bool,
    /// What it came from, for the record.
    pub name: String,
    /// What its outputs mean.
    pub target: TargetKind,
    /// Voxel size it works at, if it says one.
    pub voxel_um: Option<[f64; 3]>,
    /// Diameter in µm on that voxel size which objects are brought to; `None`: they keep their size.
    pub object_diameter_um: Option<f64>,
    /// How intensities are scaled before it.
    pub normalise: Normalise,
    /// The same in a package's words.
    pub preprocessing: Vec<Processing>,
    /// Patches are multiples of this.
    pub step: [usize; 3],
    /// 3, or 2 for networks that see single slices.
    pub spatial_axes: usize,
    /// How objects are made of what it gives, where it says so.
    pub segment: Option<SegmentOptions>,
    /// Whether its outputs mean what is to be learnt, so that its own score can be told.
    pub comparable: bool,
}

/// The package that training starts from where `name` is given: a file `NAME.teach` beside the packages says another, for models
/// whose filters were made by hand.
fn taught_instead(name: &str) -> String {
    let plain = Path::new(name).components().count() == 1;
    let said = model_folders().into_iter().filter(|_| plain && !Path::new(name).exists()).find_map(|folder| {
        let text = std::fs::read_to_string(folder.join(format!("{name}.teach"))).ok()?;
        let other = text.trim().to_owned();
        (Path::new(&other).components().count() == 1).then_some(other)
    });
    said.unwrap_or_else(|| name.to_owned())
}

/// Loads or builds it. `scratch` builds a new one; `voxel_um` is the grid of the data, for its strides.
pub(crate) fn start(
    from: &str,
    task: Task,
    config: &TrainConfig,
    voxel_um: Option<[f64; 3]>,
    seed: u64,
) -> Result<Start, JobError> {
    if from == "scratch" {
        return scratch(task, config, voxel_um, seed);
    }
    let path = find_model(&taught_instead(from))?;
    let shown = path.display().to_string();
    let package = Package::open(&path).map_err(|e| JobError::model(&*shown, e))?;
    let said: Option<TargetKind> = package.config().get("target").and_then(|t| serde_json::from_value(t.clone()).ok());
    let has_segment = package.config().get("segment").is_some();
    let source = match (package.is_int8(), &package.float_graph) {
        (true, Some(float)) => float.clone(),
        _ => package.graph.clone(),
    };
    let known = Model::from_package(package)?;
    if known.input_channels != 1 {
        return Err(wrong(format!(
            "{from} takes {} channels: models of one channel can be taught so far",
            known.input_channels
        )));
    }
    let mut graph = prepare(&source).map_err(model(&shown))?;
    graph.outputs.truncate(1);
    passes::fold_batch_norm(&mut graph).map_err(model(&shown))?;
    passes::eliminate_dead(&mut graph);
    let target = target(task, config, said, known.output_channels);
    let comparable = target.channels() == known.output_channels && said.is_none_or(|s| s == target);
    if target.channels() != known.output_channels {
        new_head(&mut graph, target.channels(), seed).ok_or_else(|| {
            wrong(format!(
                "{from} gives {} channels and {} are to be learnt: its last step is no convolution that could be replaced",
                known.output_channels,
                target.channels()
            ))
        })?;
    }
    if target.of_labels() {
        end_in_sigmoid(&mut graph);
    }
    infer_shapes::<ValueId>(&mut graph, &[]).map_err(model(&shown))?;
    let normalise = match (config.normalise, normalise_of(&known.preprocessing)) {
        (Some(asked), _) => asked,
        (None, Some(own)) => own,
        (None, None) => {
            return Err(wrong(format!(
                "{from} scales intensities in a way that training does not know: say how with normalise in --config"
            )));
        }
    };
    Ok(Start {
        graph,
        from_scratch: false,
        name: known.name.clone(),
        target,
        voxel_um: config.voxel_um.or(known.voxel_um),
        object_diameter_um: known.object_diameter_um.filter(|_| target.of_labels()),
        preprocessing: processing_of(normalise),
        normalise,
        step: known.step,
        spatial_axes: known.spatial_axes,
        segment: has_segment.then(|| known.segment.clone()),
        comparable,
    })
}

fn target(task: Task, config: &TrainConfig, said: Option<TargetKind>, channels: usize) -> TargetKind {
    match (task, config.target, said) {
        (Task::LabelFree, ..) => TargetKind::Regression,
        (_, Some(asked), _) => asked,
        (_, None, Some(said)) if said.of_labels() => said,
        _ if channels == 1 => TargetKind::Semantic,
        _ => TargetKind::Instances,
    }
}

fn scratch(task: Task, config: &TrainConfig, voxel_um: Option<[f64; 3]>, seed: u64) -> Result<Start, JobError> {
    let target = target(task, config, None, 2);
    if target == TargetKind::Flow {
        return Err(wrong(
            "flow fields are no target yet that objects can be made of: take instances, boundary or distance",
        ));
    }
    let voxel_um = config.voxel_um.or(voxel_um);
    let levels = config.network.filters.len();
    let strides =
        if config.network.strides.is_empty() { strides(levels, voxel_um) } else { config.network.strides.clone() };
    let description = UNet3d {
        out_channels: target.channels(),
        filters: config.network.filters.clone(),
        strides: strides.clone(),
        convs_per_block: config.network.convs_per_block,
        upsampling: Upsampling::Transposed,
        head: target.of_labels().then_some(Activation::Sigmoid),
        deep_heads: if config.network.deep_supervision { levels.saturating_sub(2) } else { 0 },
        ..UNet3d::default()
    };
    let mut graph = unet3d(&description, &Weights::Random { seed }).map_err(model("scratch"))?;
    // Bright-field images lie about a middle grey: nothing there is bright or dim.
    let usual = if target.of_labels() {
        compress(&mut graph, config.network.compress);
        Normalise::ScaleRange { min_percentile: 1.0, max_percentile: 99.8, eps: 1e-6 }
    } else {
        Normalise::default()
    };
    let normalise = config.normalise.unwrap_or(usual);
    Ok(Start {
        graph: prepare(&graph).map_err(model("scratch"))?,
        from_scratch: true,
        name: "scratch".to_owned(),
        target,
        voxel_um,
        object_diameter_um: None,
        preprocessing: processing_of(normalise),
        normalise,
        step: strides.iter().fold([1; 3], |all, s| [0, 1, 2].map(|a| all[a] * s[a])),
        spatial_axes: 3,
        segment: None,
        comparable: false,
    })
}

/// Puts x ↦ kx / (1 + |kx|) before what reads the input.
fn compress(graph: &mut Graph, k: f32) {
    let Some(x) = graph.inputs.first().copied().filter(|_| k > 0.0) else { return };
    let Ok(factor) = Tensor::new(Vec::new(), vec![k]) else { return };
    let factor = graph.add_initializer("compress.factor", factor);
    let at = graph.nodes.len();
    let scaled = graph.push("compress.scaled", Op::Binary(BinaryOp::Mul), &[Some(x), Some(factor)]);
    let small = graph.push("compress.out", Op::Activation(Activation::Softsign), &[Some(scaled)]);
    for node in graph.nodes.iter_mut().take(at) {
        node.inputs.iter_mut().filter(|id| **id == Some(x)).for_each(|id| *id = Some(small));
    }
    graph.nodes.rotate_right(2);
}

/// Strides that bring voxels nearer to cubes: slices that are far apart are not merged before pixels are as large.
fn strides(levels: usize, voxel_um: Option<[f64; 3]>) -> Vec<[usize; 3]> {
    let mut voxel = voxel_um.unwrap_or([1.0; 3]);
    (1..levels)
        .map(|_| {
            let flat = voxel[0] > 1.5 * voxel[1].max(voxel[2]);
            let stride = if flat { [1, 2, 2] } else { [2, 2, 2] };
            voxel = [0, 1, 2].map(|a| voxel[a] * stride[a] as f64);
            stride
        })
        .collect()
}

/// A package's way of scaling intensities, if training knows it.
fn normalise_of(steps: &[Processing]) -> Option<Normalise> {
    let steps: Vec<&Processing> = steps.iter().filter(|s| !matches!(s, Processing::EnsureDtype { .. })).collect();
    match steps.as_slice() {
        [] => Some(Normalise::None),
        [Processing::ZeroMeanUnitVariance { eps, .. }] => Some(Normalise::ZeroMeanUnitVariance { eps: *eps }),
        [Processing::ScaleRange { min_percentile, max_percentile, eps, reference_tensor: None, .. }] => {
            Some(Normalise::ScaleRange { min_percentile: *min_percentile, max_percentile: *max_percentile, eps: *eps })
        }
        [Processing::FixedZeroMeanUnitVariance { mean, std }] => {
            let ([mean], [std]) = (&mean[..], &std[..]) else { return None };
            Some(Normalise::FixedZeroMeanUnitVariance { mean: *mean, std: *std })
        }
        _ => None,
    }
}

fn processing_of(normalise: Normalise) -> Vec<Processing> {
    match normalise {
        Normalise::None => Vec::new(),
        Normalise::ZeroMeanUnitVariance { eps } => {
            vec![Processing::ZeroMeanUnitVariance { eps, axes: StatisticsAxes::default() }]
        }
        Normalise::ScaleRange { min_percentile, max_percentile, eps } => vec![Processing::ScaleRange {
            min_percentile,
            max_percentile,
            eps,
            axes: StatisticsAxes::default(),
            reference_tensor: None,
        }],
        Normalise::FixedZeroMeanUnitVariance { mean, std } => {
            vec![Processing::FixedZeroMeanUnitVariance { mean: vec![mean], std: vec![std] }]
        }
    }
}

/// The node that makes the first output.
fn last(graph: &Graph) -> Option<usize> {
    let output = *graph.outputs.first()?;
    graph.nodes.iter().position(|n| n.output(0) == Some(output))
}

/// Gives the final convolution (before activations) other output channels, drawn anew.
fn new_head(graph: &mut Graph, channels: usize, seed: u64) -> Option<()> {
    let mut index = last(graph)?;
    while matches!(graph.nodes.get(index)?.op, Op::Activation(_) | Op::Identity) {
        let input = graph.nodes.get(index)?.input(0)?;
        index = graph.nodes.iter().position(|n| n.output(0) == Some(input))?;
    }
    let node = graph.nodes.get(index)?.clone();
    let Op::Conv(attrs) = &node.op else { return None };
    let weight = graph.constant(node.input(1)?)?.clone();
    let shape: Vec<usize> = std::iter::once(channels).chain(weight.shape().iter().skip(1).copied()).collect();
    if attrs.group != 1 {
        return None;
    }
    let fan_in: usize = shape.iter().skip(1).product();
    let mut state = seed ^ 0x9E37_79B9_7F4A_7C15;
    let mut uniform = || {
        // SplitMix64 (Steele, Lea & Flood 2014).
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (((z ^ (z >> 31)) >> 40) as f32 / (1u32 << 24) as f32) * 2.0 - 1.0
    };
    let bound = (3.0 / fan_in.max(1) as f32).sqrt();
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| uniform() * bound).collect();
    let weight = graph.add_initializer("head.new.weight", Arc::new(Tensor::new(shape, values).ok()?));
    let bias = graph.add_initializer("head.new.bias", Tensor::vector(vec![0.0f32; channels]));
    if let Some(node) = graph.nodes.get_mut(index) {
        node.inputs = vec![node.input(0), Some(weight), Some(bias)];
    }
    let made: Vec<ValueId> = graph.nodes.iter().skip(index).flat_map(|n| n.outputs.iter().flatten().copied()).collect();
    for id in made {
        if let Some(value) = graph.values.get_mut(id.index()) {
            value.shape = None;
        }
    }
    passes::eliminate_dead(graph);
    Some(())
}

/// Makes the output a probability, if it is none yet.
fn end_in_sigmoid(graph: &mut Graph) {
    let ends = last(graph)
        .and_then(|i| graph.nodes.get(i))
        .is_some_and(|n| matches!(n, Node { op: Op::Activation(Activation::Sigmoid), .. }));
    if ends {
        return;
    }
    if let Some(output) = graph.outputs.first().copied() {
        let made = graph.push("probability", Op::Activation(Activation::Sigmoid), &[Some(output)]);
        graph.outputs = vec![made];
    }
}
