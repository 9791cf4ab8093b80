//! The model package: network, axes, processing, segmentation settings, test tensors, training record and card.

use crate::error::model_error;
use crate::history::History;
use crate::network::StartModel;
use cytoscope_graph::{Graph, Tensor};
use cytoscope_model_package::config_key::{
    OBJECT_DIAMETER_UM, OBJECT_INTENSITY, SEED_CHANNEL, SEGMENT, SEGMENT_CHANNEL, TARGET, TASK, TRAINING,
};
use cytoscope_model_package::{
    AxisKind, AxisSize, AxisSpec, Citation, PackageBuilder, Processing, TensorSpec, TensorType,
};
use cytoscope_objects::SegmentOptions;
use cytoscope_pipeline::{JobError, Model, ModelTask, packages};
use cytoscope_storage::Overwrite;
use cytoscope_training_data::{Normalize, TargetKind};
use serde_json::{Value, json};
use std::path::Path;

/// Metadata of a package.
pub(crate) struct Description<'a> {
    /// The model that training started from, whose tensors and preprocessing the package declares, too.
    pub start: &'a StartModel,
    /// Name of the model, as the package states it.
    pub name: String,
    /// Identifier of the license; `None` if nobody has given one.
    pub license: Option<String>,
    /// Voxel size Z, Y, X in µm that the network was trained at; `None` if the package states none.
    pub voxel_um: Option<[f64; 3]>,
    /// Usual intensity of objects after preprocessing, if the package states one.
    pub object_intensity: Option<f64>,
    /// Segmentation settings with lengths in µm; the package states them if the targets are labels.
    pub segment: SegmentOptions,
    /// Mean and standard deviation of each stain, by which the network's outputs are rescaled; empty for labels.
    pub intensities: Vec<(f64, f64)>,
    /// Record of the training run.
    pub record: Value,
    /// Model card in Markdown.
    pub card: String,
    /// Images of the card: file names and contents.
    pub covers: Vec<(String, Vec<u8>)>,
    /// Test input before preprocessing, axes C, Z, Y, X, with its shape Z, Y, X; a synthetic stack if `None`.
    pub test: Option<(Vec<f32>, [usize; 3])>,
}

/// Returns the output channel that separates touching objects.
pub(crate) fn seed_channel(target: TargetKind) -> usize {
    if target.channels() > 1 && !matches!(target, TargetKind::Boundary { .. }) { 1 } else { 0 }
}

/// Returns the axes of a tensor with these channels: an input or, if `like` is the id of an input, an output of the same
/// size.
fn axes(d: &Description<'_>, names: &[String], like: Option<&str>) -> Vec<AxisSpec> {
    let spatial = d.start.spatial_axes;
    let axis = |kind, size| AxisSpec { kind, size, voxel_um: None, halo: 0, channel_names: Vec::new() };
    let mut all = vec![
        axis(AxisKind::Batch, AxisSize::Step { min: 1, step: 1 }),
        AxisSpec { channel_names: names.to_vec(), ..axis(AxisKind::Channel, AxisSize::Fixed(names.len())) },
    ];
    let kinds = [(AxisKind::Z, "z"), (AxisKind::Y, "y"), (AxisKind::X, "x")];
    for (a, (kind, id)) in kinds.into_iter().enumerate().skip(3 - spatial) {
        let size = match like {
            None => match d.start.lengths[a] {
                Some(length) => AxisSize::Fixed(length),
                None => AxisSize::Step { min: d.start.step[a], step: d.start.step[a] },
            },
            Some(tensor) => {
                AxisSize::Reference { tensor: tensor.to_owned(), axis: id.to_owned(), scale: 1.0, offset: 0.0 }
            }
        };
        all.push(AxisSpec { voxel_um: d.voxel_um.map(|v| v[a]), ..axis(kind, size) });
    }
    all
}

/// Centers of the two blobs in the test stack, as fractions of its shape Z, Y, X.
const BLOBS: [[f64; 3]; 2] = [[0.5, 0.35, 0.3], [0.55, 0.65, 0.7]];
/// Radius of a blob, as a fraction of the shape.
const BLOB_RADIUS: f64 = 0.25;

/// Returns a synthetic stack of shape Z, Y, X: two bright blobs on a dim, noisy background, in intensities that suit
/// the preprocessing.
fn test_stack(zyx: [usize; 3], normalize: Normalize) -> Vec<f32> {
    let count: usize = zyx.iter().product();
    let plane = (zyx[1] * zyx[2]).max(1);
    let scaled = (0..count).map(|i| {
        let at = [i / plane, i / zyx[2].max(1) % zyx[1].max(1), i % zyx[2].max(1)];
        let place: [f64; 3] = std::array::from_fn(|a| (at[a] as f64 + 0.5) / zyx[a].max(1) as f64);
        let inside = BLOBS.iter().any(|blob| {
            let square: f64 = (0..3).map(|a| (place[a] - blob[a]).powi(2)).sum();
            square < BLOB_RADIUS.powi(2)
        });
        let ground = ((i * 7919) % 101) as f64 / 250.0 - 0.5;
        ground + if inside { 2.5 } else { 0.0 }
    });
    let (gain, offset) = match normalize {
        Normalize::None => (1.0, 0.0),
        Normalize::FixedZeroMeanUnitVariance { mean, std } => (std, mean),
        // These normalize by statistics of the stack itself, so any scale will do.
        Normalize::ZeroMeanUnitVariance { .. } | Normalize::ScaleRange { .. } => (100.0, 200.0),
    };
    scaled.map(|v| (v * gain + offset) as f32).collect()
}

/// Returns [`test_stack`] for each channel, axes C, Z, Y, X; the voxels of every other channel are in reverse order, so
/// that channels differ.
fn test_channels(zyx: [usize; 3], normalize: Normalize, channels: usize) -> Vec<f32> {
    let stack = test_stack(zyx, normalize);
    let mut all = Vec::with_capacity(stack.len() * channels);
    for channel in 0..channels {
        if channel % 2 == 0 { all.extend(&stack) } else { all.extend(stack.iter().rev()) }
    }
    all
}

/// Writes the package of a network.
pub(crate) fn write(d: &Description<'_>, graph: &Graph, to: &Path) -> Result<(), JobError> {
    let channels = d.start.inputs.len();
    let (values, zyx) = match &d.test {
        Some(test) => test.clone(),
        None => {
            let flat = 3 - d.start.spatial_axes;
            let length = |a: usize| d.start.lengths[a].unwrap_or(d.start.step[a] * 2);
            let zyx: [usize; 3] = std::array::from_fn(|a| if a < flat { 1 } else { length(a) });
            (test_channels(zyx, d.start.normalize, channels), zyx)
        }
    };
    let test_inputs = test_tensors(d, &values, zyx)?;
    let untested = builder(d, graph)?;
    let test_outputs = packages::test_outputs(&d.name, &untested.inputs, &untested.outputs, graph, &test_inputs)?;
    packages::write(PackageBuilder { test_inputs, test_outputs, ..untested }, to, Overwrite::Refuse).map(|_| ())
}

/// Returns the test tensors of all inputs; `values` are the values of their channels, of shape Z, Y, X.
fn test_tensors(d: &Description<'_>, values: &[f32], zyx: [usize; 3]) -> Result<Vec<Tensor>, JobError> {
    let voxels: usize = zyx.iter().product();
    let mut rest = values;
    let mut tensors = Vec::with_capacity(d.start.tensors.len());
    for tensor in &d.start.tensors {
        let (own, later) = rest.split_at((tensor.channels * voxels).min(rest.len()));
        rest = later;
        let mut shape = vec![1, tensor.channels];
        shape.extend(zyx.iter().skip(3 - d.start.spatial_axes));
        tensors.push(Tensor::new(shape, own.to_vec()).map_err(model_error("the network"))?);
    }
    Ok(tensors)
}

/// Returns the descriptions of all inputs.
fn input_specs(d: &Description<'_>) -> Vec<TensorSpec> {
    let mut names = d.start.inputs.as_slice();
    let mut specs = Vec::with_capacity(d.start.tensors.len());
    for tensor in &d.start.tensors {
        let (own, later) = names.split_at(tensor.channels.min(names.len()));
        names = later;
        specs.push(TensorSpec {
            id: tensor.id.clone(),
            description: match own {
                [_] => "One channel".to_owned(),
                several => format!("Channels: {}", several.join(", ")),
            },
            dtype: TensorType::Float32,
            axes: axes(d, own, None),
            processing: tensor.preprocessing.clone(),
            test_tensor: None,
        });
    }
    specs
}

/// Returns the model that [`write`] followed by [`Model::load`] gives, without writing it. Test tensors are left out:
/// computing them takes longer than all the rest, and predictions do not depend on them.
pub(crate) fn in_memory(d: &Description<'_>, graph: &Graph) -> Result<Model, JobError> {
    let package = builder(d, graph)?.in_memory(Path::new(&d.name)).map_err(|e| JobError::model(&*d.name, e))?;
    Model::from_package(package)
}

/// Returns the contents of the package of a network, without test tensors.
fn builder(d: &Description<'_>, graph: &Graph) -> Result<PackageBuilder, JobError> {
    let labels = d.start.target.is_from_labels();
    let processing = if labels || d.intensities.is_empty() {
        Vec::new()
    } else {
        let (offset, gain) = d.intensities.iter().copied().unzip();
        vec![Processing::ScaleLinear { gain, offset }]
    };
    let task = if labels { ModelTask::Segmentation } else { ModelTask::LabelFree };
    let mut config = json!({TASK: task.name(), TARGET: d.start.target, TRAINING: d.record});
    if labels && let Some(map) = config.as_object_mut() {
        map.insert(SEGMENT_CHANNEL.to_owned(), json!(0));
        map.insert(SEED_CHANNEL.to_owned(), json!(seed_channel(d.start.target)));
        if let Some(diameter) = d.start.object_diameter_um {
            map.insert(OBJECT_DIAMETER_UM.to_owned(), json!(diameter));
        }
        if let Some(intensity) = d.object_intensity {
            map.insert(OBJECT_INTENSITY.to_owned(), json!(intensity));
        }
        let segment = serde_json::to_value(&d.segment).map_err(|e| JobError::Internal(e.to_string()))?;
        map.insert(SEGMENT.to_owned(), segment);
    }
    let inputs = input_specs(d);
    let first = inputs.first().map(|input| input.id.clone()).unwrap_or_default();
    let outputs = vec![TensorSpec {
        id: "maps".to_owned(),
        description: if labels { "Probabilities" } else { "Intensities" }.to_owned(),
        dtype: TensorType::Float32,
        axes: axes(d, &d.start.outputs, Some(&first)),
        processing,
        test_tensor: None,
    }];
    let what = if labels { "Objects" } else { "Label-free prediction of a stain" };
    let (images, axes_tag) = if d.start.spatial_axes == 2 { ("2-D images", "2d") } else { ("3-D stacks", "3d") };
    let origin = d.start.origin.as_ref();
    let mut cite = vec![Citation {
        text: "Ronneberger et al.: U-Net".to_owned(),
        doi: Some("10.1007/978-3-319-24574-4_28".to_owned()),
        url: None,
    }];
    // Those who made the start model, or the data that it was trained on, are cited for the trained one, too.
    for work in origin.into_iter().flat_map(|origin| &origin.cite) {
        if !cite.iter().any(|cited| cited.is_same_work(work)) {
            cite.push(work.clone());
        }
    }
    let task_tag = if labels { "instance-segmentation" } else { "image-reconstruction" };
    let mut tags = [axes_tag, task_tag, "cytoscope"].map(str::to_owned).to_vec();
    origin.into_iter().for_each(|origin| origin.add_tags(&mut tags));
    Ok(PackageBuilder {
        name: d.name.clone(),
        description: format!("{what} in {images}, trained with Cytoscope."),
        documentation: d.card.clone(),
        authors: vec!["A Cytoscope user".to_owned()],
        cite,
        license: d.license.clone(),
        tags,
        inputs,
        outputs,
        graph: graph.clone(),
        test_inputs: Vec::new(),
        test_outputs: Vec::new(),
        config,
        covers: d.covers.clone(),
        float_graph: None,
        tolerance: None,
    })
}

/// Returns a valid package name derived from the output path.
pub(crate) fn package_name(out: &Path) -> String {
    let stem = out.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
    packages::valid_name(&stem)
}

/// File name of the plot of the loss and validation curves.
pub(crate) const CURVES: &str = "curves.svg";

/// Example image of the card: a validation pair with its prediction.
pub(crate) struct Example {
    /// Name of the picture file in the package.
    pub file: String,
    /// Contents of the PNG file.
    pub png: Vec<u8>,
    /// Caption of the picture on the model card.
    pub caption: String,
}

/// Returns the text with Markdown characters escaped and control characters replaced by spaces.
pub(crate) fn escape_markdown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if c.is_ascii_punctuation() && !"-.,:;%/+'()".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// Returns the model card: a summary of training, example images, curves and tables of scores and losses.
pub(crate) fn card(
    name: &str,
    summary: &[(String, String)],
    history: &History,
    metric: &str,
    legend: &str,
    examples: &[Example],
) -> String {
    let mut text = format!("# {name}\n\nTrained with Cytoscope.\n\n| | |\n|---|---|\n");
    for (what, value) in summary {
        text.push_str(&format!("| {what} | {value} |\n"));
    }
    if !examples.is_empty() {
        text.push_str(&format!("\n## Examples from the validation set\n\n{legend}\n"));
    }
    for Example { file, caption, .. } in examples {
        let caption = escape_markdown(caption);
        text.push_str(&format!("\n{caption}:\n\n![{caption}]({file})\n"));
    }
    if !(history.steps.is_empty() && history.validations.is_empty()) {
        text.push_str(&format!("\n## Curves\n\n![Loss, learning rate and score over the steps]({CURVES})\n"));
    }
    text.push_str(&format!("\n## Validation ({metric})\n\n| step | score | |\n|---|---|---|\n"));
    for v in &history.validations {
        let all: Vec<String> = v.scores.iter().map(|(n, s)| format!("{n} {s:.3}")).collect();
        let mark = if v.best { " (kept so far)" } else { "" };
        text.push_str(&format!("| {} | {:.4}{mark} | {} |\n", v.step, v.score, all.join(", ")));
    }
    text.push_str("\n## Loss\n\n| step | loss | rate |\n|---|---|---|\n");
    let every = history.steps.len().div_ceil(20).max(1);
    for p in history.steps.iter().step_by(every) {
        text.push_str(&format!("| {} | {:.4} | {:.2e} |\n", p.step, p.loss, p.rate));
    }
    for note in &history.notes {
        text.push_str(&format!("\n> {note}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use crate::config::TrainConfig;
    use crate::network::load_start_model;
    use crate::start::TrainStart;
    use cytoscope_training_data::TrainingTask;

    #[test]
    fn file_names_are_escaped_in_markdown() {
        assert_eq!(escape_markdown("a_b [1] *x*.tif, slice 3"), "a\\_b \\[1\\] \\*x\\*.tif, slice 3");
        assert_eq!(escape_markdown("<img src=x>\n|"), "\\<img src\\=x\\> \\|");
    }

    /// Returns what training for segmentation starts with.
    fn start(from: TrainStart) -> StartModel {
        load_start_model(&from, TrainingTask::Segmentation, &TrainConfig::default(), None, 1).unwrap()
    }

    /// Returns the package of a start model that was trained.
    fn trained_from(start: &StartModel) -> PackageBuilder {
        let description = Description {
            start,
            name: "trained".to_owned(),
            license: None,
            voxel_um: None,
            object_intensity: start.object_intensity,
            segment: SegmentOptions::default(),
            intensities: Vec::new(),
            record: Value::Null,
            card: String::new(),
            covers: Vec::new(),
            test: None,
        };
        builder(&description, &start.graph).unwrap()
    }

    #[test]
    fn a_package_states_the_usual_intensity_of_objects_of_a_start_model_with_the_same_normalization() {
        let nuclei = TrainStart::Model(format!("{}/../../models/nuclei", env!("CARGO_MANIFEST_DIR")));
        let own = start(nuclei.clone());
        assert!(own.object_intensity.is_some());
        assert_eq!(trained_from(&own).config["object_intensity"], json!(own.object_intensity));
        let normalize = Some(Normalize::default());
        assert_ne!(normalize, Some(own.normalize));
        let config = TrainConfig { normalize, ..TrainConfig::default() };
        let other = load_start_model(&nuclei, TrainingTask::Segmentation, &config, None, 1).unwrap();
        assert_eq!((other.object_intensity, start(TrainStart::Scratch).object_intensity), (None, None));
    }

    #[test]
    fn a_trained_package_passes_on_the_tags_of_its_start_model() {
        let package = |name: &str| format!("{}/../../models/{name}", env!("CARGO_MANIFEST_DIR"));
        let tags = |from: TrainStart| trained_from(&start(from)).tags;
        let own = ["3d", "instance-segmentation", "cytoscope"];
        assert_eq!(tags(TrainStart::Scratch), own);
        assert_eq!(tags(TrainStart::Model(package("nuclei"))), [&own[..], &["nuclei"]].concat());
        assert_eq!(tags(TrainStart::Model(package("cells"))), [&own[..], &["cells", "membrane"]].concat());
        // Tags of another task, of other axes, and those that are there are left out.
        let mut mixed = start(TrainStart::Model(package("nuclei")));
        mixed.origin.as_mut().unwrap().tags =
            ["2D", "image-reconstruction", "Cytoscope", "Membrane", "membrane"].map(str::to_owned).to_vec();
        assert_eq!(trained_from(&mixed).tags, [&own[..], &["Membrane"]].concat());
    }

    #[test]
    fn a_trained_package_passes_on_the_citations_of_its_start_model() {
        let package = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nuclei");
        let cited = |start: &StartModel| trained_from(start).cite;
        let trained = start(TrainStart::Model(package.to_owned()));
        let works = cited(&trained);
        let is_attribution = |text: &str| text.contains("BBBC050") && text.contains("CC BY 3.0");
        assert_eq!(works.iter().filter(|w| is_attribution(&w.text) && w.doi.is_some()).count(), 1, "{works:?}");
        assert_eq!(works.iter().filter(|w| w.text.contains("U-Net")).count(), 1, "{works:?}");
        let section = trained.origin.unwrap().section("nuclei", escape_markdown);
        assert!(is_attribution(&section) && section.contains("Akira Funahashi"), "{section}");
        // Works without a DOI have an address.
        let mut linked = start(TrainStart::Model(package.to_owned()));
        let page =
            Citation { text: "A data set".to_owned(), doi: None, url: Some("https://example.org/data".to_owned()) };
        linked.origin.as_mut().unwrap().cite.push(page.clone());
        assert!(cited(&linked).contains(&page) && cited(&linked).len() == works.len() + 1);
        assert!(
            linked
                .origin
                .unwrap()
                .section("nuclei", str::to_owned)
                .contains("- A data set (https://example.org/data)\n")
        );
        let scratch = start(TrainStart::Scratch);
        assert!(scratch.origin.is_none() && cited(&scratch).len() == 1);
    }

    #[test]
    fn a_card_shows_its_images() {
        let example =
            Example { file: "example_0.png".to_owned(), png: Vec::new(), caption: "Best score: a_1".to_owned() };
        let history = History {
            validations: vec![crate::ValidationPoint {
                step: 1,
                score: 0.5,
                scores: std::collections::BTreeMap::new(),
                best: true,
            }],
            ..History::default()
        };
        let text = card("m", &[], &history, "Dice", "Left: truth.", &[example]);
        assert!(text.contains("![Best score: a\\_1](example_0.png)") && text.contains("](curves.svg)"), "{text}");
        // Without images there are no links.
        assert!(!card("m", &[], &History::default(), "Dice", "", &[]).contains("]("));
    }
}
