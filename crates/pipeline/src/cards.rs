//! Descriptions of the installed models for choosing among them: purpose, expected input, and whether they can be used.

use crate::installed_models::{entries, read_alias};
use crate::model_inputs::ModelInput;
use crate::model_outputs::list_outputs;
use crate::{Model, ModelTask, model_folders};
use cytoscope_model_package::{AxisKind, Package, PackageError};
use cytoscope_objects::SegmentOptions;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use cytoscope_model_package::Citation;

/// Maximum size in bytes of a documentation file; larger files are not read.
const MAX_DOCUMENTATION_FILE_BYTES: u64 = 16 << 20;

/// Maximum length in bytes of a card's documentation; longer texts are truncated.
const MAX_DOCUMENTATION_BYTES: usize = 256 << 10;

/// Description of an installed model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelCard {
    /// Name to use for [`crate::PredictJob::model`]: the package's file name without its extension.
    pub name: String,
    /// Other names of the model.
    pub aliases: Vec<String>,
    /// The model to start training from instead of this one, if this model's filters are hand-made.
    #[serde(default, alias = "taught_instead")]
    pub start_model: Option<String>,
    /// Name given in the package.
    pub title: String,
    /// Path of the package, a folder or a zip.
    pub path: PathBuf,
    /// Why the model cannot be used; most other fields are empty then.
    pub problem: Option<String>,
    /// Task of the model; `None` if the package does not say.
    pub task: Option<ModelTask>,
    /// One-sentence description.
    pub description: String,
    /// Documentation in Markdown; empty if there is none.
    pub documentation: String,
    /// Voxel size Z, Y, X in µm that the model was made for.
    pub voxel_um: Option<[f64; 3]>,
    /// Nominal object diameter in µm at that voxel size; `None` if objects are not rescaled.
    #[serde(default)]
    pub object_diameter_um: Option<f64>,
    /// Whether it has an int8 network, without which nothing is predicted in int8.
    #[serde(default)]
    pub has_int8: bool,
    /// Number of channels that the network reads.
    pub input_channels: usize,
    /// Number of maps that are predicted: the channels of the first output.
    pub output_channels: usize,
    /// Names of the input channels, if declared.
    pub input_channel_names: Vec<String>,
    /// The input tensors of a model that has several, in the order of the package; each may be read from its own file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<InputCard>,
    /// Names of the channels of the first output, if declared.
    pub output_channel_names: Vec<String>,
    /// All output tensors, in the order of the package; the first is predicted unless another is chosen.
    #[serde(default)]
    pub outputs: Vec<OutputCard>,
    /// Whether all of several outputs can be predicted together.
    #[serde(default)]
    pub can_join_outputs: bool,
    /// Segmentation settings that the package recommends; `None` if its output is not segmented.
    pub segment: Option<SegmentOptions>,
    /// Output channel with the foreground probability.
    pub segment_channel: usize,
    /// Output channel that separates touching objects.
    pub seed_channel: usize,
    /// Cover images; only for packages that are folders.
    pub covers: Vec<PathBuf>,
    /// Sample images; only for packages that are folders.
    pub samples: Vec<PathBuf>,
    /// Test tensors (`.npy`); only for packages that are folders.
    pub tests: Vec<PathBuf>,
    /// Whether the package's self-test can run: it has readable test tensors for every input and output.
    pub testable: bool,
    /// Names of the authors.
    pub authors: Vec<String>,
    /// SPDX identifier of the license.
    #[serde(rename = "licence")]
    pub license: Option<String>,
    /// Works to cite when results of the model are published.
    pub citations: Vec<Citation>,
    /// Keywords of the package.
    pub tags: Vec<String>,
}

/// An input tensor of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputCard {
    /// Id of the tensor, which `--input` takes.
    pub id: String,
    /// Number of channels.
    pub channels: usize,
}

/// An output tensor of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputCard {
    /// Id of the tensor, which `--output-tensor` takes.
    pub id: String,
    /// Number of channels.
    pub channels: usize,
    /// Names of the channels, if declared.
    pub channel_names: Vec<String>,
}

/// A file in a model folder that contains the name of a model.
#[derive(Clone, Copy)]
enum NameFile {
    /// `NAME.alias` names the model that NAME stands for.
    Alias,
    /// `NAME.trainable` names the model that training starts from in place of NAME.
    StartModel,
}

impl NameFile {
    /// Returns the kind of a file with this extension; `None` for other files.
    fn of(extension: &str) -> Option<Self> {
        match extension {
            "alias" => Some(Self::Alias),
            // Earlier versions wrote NAME.teach.
            "trainable" | "teach" => Some(Self::StartModel),
            _ => None,
        }
    }
}

/// Returns the cards of the models in [`model_folders`], by name. If several have the same name, the first folder's is
/// returned, which is the one that a job uses.
pub fn installed() -> Vec<ModelCard> {
    let (mut aliases, mut instead): (BTreeMap<String, String>, BTreeMap<String, String>) = Default::default();
    let mut packages: BTreeMap<String, PathBuf> = BTreeMap::new();
    for folder in model_folders() {
        for path in entries(&folder) {
            let Some(name) = path.file_stem().map(|s| s.to_string_lossy().into_owned()) else { continue };
            let extension = path.extension().and_then(|e| e.to_str());
            if let Some(kind) = extension.and_then(NameFile::of) {
                let names = match kind {
                    NameFile::Alias => &mut aliases,
                    NameFile::StartModel => &mut instead,
                };
                match read_alias(&path) {
                    Ok(of) => _ = names.entry(name).or_insert_with(|| of.trim().to_owned()),
                    Err(error) => tracing::warn!("{} cannot be read: {error}", path.display()),
                }
                continue;
            }
            match extension {
                // Packages that were moved aside or are being written.
                Some(kind) if kind.starts_with("before-") || name.starts_with('.') => {}
                Some("zip" | "onnx") => _ = packages.entry(name).or_insert(path),
                _ if path.join("rdf.yaml").is_file() => {
                    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or(name);
                    packages.entry(name).or_insert(path);
                }
                _ => {}
            }
        }
    }
    packages
        .into_iter()
        .map(|(name, path)| {
            let aliases = aliases.iter().filter(|(_, of)| **of == name).map(|(alias, _)| alias.clone()).collect();
            let start_model = instead.get(&name).cloned();
            ModelCard { aliases, start_model, ..card(name, &path) }
        })
        .collect()
}

/// Returns the card of the package at `path`. If the package cannot be used, [`ModelCard::problem`] says why.
pub fn card(name: impl Into<String>, path: &Path) -> ModelCard {
    match Package::open(path) {
        Ok(package) => package_card(name, path, package),
        Err(error) => ModelCard { problem: Some(error.to_string()), ..empty_card(name.into(), path) },
    }
}

/// Returns the card of a package that was opened from `path`.
pub(crate) fn package_card(name: impl Into<String>, path: &Path, package: Package) -> ModelCard {
    let mut card = empty_card(name.into(), path);
    describe(&mut card, package);
    card
}

/// Returns the card of a model about which nothing is known.
fn empty_card(name: String, path: &Path) -> ModelCard {
    ModelCard {
        name,
        aliases: Vec::new(),
        start_model: None,
        title: String::new(),
        path: path.to_owned(),
        problem: None,
        task: None,
        description: String::new(),
        documentation: String::new(),
        voxel_um: None,
        object_diameter_um: None,
        has_int8: false,
        input_channels: 0,
        output_channels: 0,
        input_channel_names: Vec::new(),
        inputs: Vec::new(),
        output_channel_names: Vec::new(),
        outputs: Vec::new(),
        can_join_outputs: false,
        segment: None,
        segment_channel: 0,
        seed_channel: 0,
        covers: Vec::new(),
        samples: Vec::new(),
        tests: Vec::new(),
        testable: false,
        authors: Vec::new(),
        license: None,
        citations: Vec::new(),
        tags: Vec::new(),
    }
}

fn describe(card: &mut ModelCard, package: Package) {
    let rdf = &package.rdf;
    let text = |key: &str| rdf.get(key).and_then(Value::as_str).map(str::to_owned);
    let list = |key: &str| rdf.get(key).and_then(Value::as_array).into_iter().flatten();
    let of = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    card.title.clone_from(&package.name);
    card.description.clone_from(&package.description);
    card.license = text("license");
    card.tags = list("tags").filter_map(Value::as_str).map(str::to_owned).collect();
    card.authors = list("authors").filter_map(|a| of(a, "name")).collect();
    card.citations = list("cite").filter_map(Citation::of).collect();
    // A card describes the package in lists: a page that cannot be read is left empty.
    let unread = |error: &PackageError| tracing::warn!("the documentation of a package is left out: {error}");
    card.documentation = text("documentation")
        .and_then(|file| package.files().read_up_to(&file, MAX_DOCUMENTATION_FILE_BYTES).inspect_err(unread).ok())
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default();
    if card.documentation.len() > MAX_DOCUMENTATION_BYTES {
        let end = (0..=MAX_DOCUMENTATION_BYTES).rev().find(|at| card.documentation.is_char_boundary(*at)).unwrap_or(0);
        card.documentation.truncate(end);
    }
    let channels = |specs: &[cytoscope_model_package::TensorSpec]| {
        specs.first().and_then(|s| s.axis(AxisKind::Channel)).map(|a| a.channel_names.clone()).unwrap_or_default()
    };
    card.input_channel_names = channels(&package.inputs);
    card.output_channel_names = channels(&package.outputs);
    let outputs = list_outputs(&package).into_iter();
    card.outputs = outputs
        .map(|output| OutputCard { id: output.id, channels: output.channels, channel_names: output.channel_names })
        .collect();
    card.covers = paths(&package, list("covers"));
    // Format 0.4 lists samples of the whole model, 0.5 one for each tensor.
    let input_samples = list("inputs").filter_map(|i| i.get("sample_tensor")?.get("source"));
    card.samples = paths(&package, list("sample_inputs").chain(input_samples));
    let tests = || package.inputs.iter().chain(&package.outputs).map(|s| s.test_tensor.as_ref().map(|t| &t.source));
    card.tests = tests().flatten().filter_map(|file| package.files().file_path(file)).collect();
    card.testable = matches!(package.test_tensors(), Ok(Some(_)));
    match Model::from_package(package) {
        Ok(model) => {
            card.can_join_outputs = model.can_join_outputs();
            card.task = Some(model.task);
            card.voxel_um = model.voxel_um;
            card.object_diameter_um = model.object_diameter_um;
            card.has_int8 = model.has_int8;
            card.input_channels = model.input_channels;
            if model.inputs.len() > 1 {
                let input = |input: &ModelInput| InputCard { id: input.id.clone(), channels: input.channels };
                card.inputs = model.inputs.iter().map(input).collect();
            }
            card.input_channel_names = model.input_channel_names;
            card.output_channels = model.output_channels;
            card.segment = (model.task == ModelTask::Segmentation).then_some(model.segment);
            card.segment_channel = model.segment_channel;
            card.seed_channel = model.seed_channel;
        }
        Err(error) => card.problem = Some(error.to_string()),
    }
}

fn paths<'a>(package: &Package, names: impl Iterator<Item = &'a Value>) -> Vec<PathBuf> {
    names.filter_map(Value::as_str).filter_map(|name| package.files().file_path(name)).collect()
}
