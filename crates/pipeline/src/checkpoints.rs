//! Opening a model for import: packages, ONNX files, and PyTorch weights, whose network is built from the names and
//! shapes of their tensors.

use crate::JobError;
use cytoscope_checkpoint_import::{
    Architecture, Checkpoint, ENDINGS, ImportError, Imported, MAX_CHECKPOINT_BYTES, Normalization, Plans,
};
use cytoscope_graph::Graph;
use cytoscope_model_package::{Package, Processing, StateDict, StatisticsAxes};
use cytoscope_storage::read::open_regular;
use cytoscope_storage::target::ending;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::io::Read;
use std::path::Path;

/// Maximum size of nnU-Net's `plans.json` in bytes.
const MAX_PLANS_BYTES: u64 = 16 << 20;

/// A model opened for import.
pub(crate) struct Opened {
    pub package: Package,
    /// Architecture of a network that was built from tensors.
    pub architecture: Option<String>,
    /// Settings that the tensors do not determine, with the values that were assumed, one sentence each.
    pub assumptions: Vec<String>,
}

/// Opens a model. `architecture` names the architecture of PyTorch weights; without it, it is recognized from the
/// tensors.
///
/// # Errors
/// [`JobError::Model`] if the model is malformed or its weights cannot be converted; [`JobError::WrongUse`] for an
/// unknown architecture, or one that is given for a model with ONNX weights.
pub(crate) fn open(file: &Path, architecture: Option<&str>) -> Result<Opened, JobError> {
    let architecture = architecture.map(str::parse::<Architecture>).transpose();
    let architecture = architecture.map_err(|error| JobError::WrongUse(error.to_string()))?;
    let is_checkpoint = ending(file).is_some_and(|ending| ENDINGS.contains(&ending.as_str()));
    if is_checkpoint && !file.is_dir() {
        return open_checkpoint(file, architecture);
    }
    let built = RefCell::new(None);
    let build = |state: &StateDict| -> Result<Graph, String> {
        let imported = convert(state, architecture).map_err(|error| {
            format!(
                "of \"{}\" cannot be converted ({error}): export the model with torch.onnx.export and add the ONNX file to \
                 the package",
                state.architecture
            )
        })?;
        *built.borrow_mut() = Some((imported.architecture, imported.assumptions));
        Ok(imported.graph)
    };
    let package = Package::open_with(file, &build).map_err(|e| JobError::model(file.display().to_string(), e))?;
    match built.take() {
        Some((architecture, assumptions)) => {
            Ok(Opened { package, architecture: Some(architecture.name().to_owned()), assumptions })
        }
        None if architecture.is_some() => Err(JobError::WrongUse(format!(
            "{}: the model has ONNX weights, which contain the network; leave the architecture out",
            file.display()
        ))),
        None => Ok(Opened { package, architecture: None, assumptions: Vec::new() }),
    }
}

/// Builds the network of a package's state dict.
fn convert(state: &StateDict, requested: Option<Architecture>) -> Result<Imported, ImportError> {
    let kwargs = if state.kwargs.is_null() { json!({}) } else { state.kwargs.clone() };
    Checkpoint::from_bytes(&state.bytes)?.network(requested, &kwargs)
}

fn open_checkpoint(file: &Path, requested: Option<Architecture>) -> Result<Opened, JobError> {
    let name = file.display().to_string();
    let bad = |error: ImportError| JobError::model(&*name, error);
    let bytes = read_up_to(file, MAX_CHECKPOINT_BYTES)?;
    let checkpoint = Checkpoint::from_bytes(&bytes).map_err(bad)?;
    drop(bytes);
    let Imported { graph, architecture, mut assumptions } = checkpoint.network(requested, &Value::Null).map_err(bad)?;
    let channels = graph.outputs.first().and_then(|id| graph.value(*id).shape.as_ref()?.get(1)?.fixed()).unwrap_or(1);
    let per_channel = StatisticsAxes { batch: false, channel: false };
    let mut before = vec![Processing::ZeroMeanUnitVariance { eps: 1e-6, axes: StatisticsAxes::default() }];
    let mut after = Vec::new();
    let mut config = Value::Null;
    if architecture == Architecture::NnUNet {
        let plans = plans(file, checkpoint.nnunet_arguments()).map_err(|error| match error {
            PlansError::Job(error) => error,
            PlansError::Import(error) => bad(error),
        })?;
        before = match plans.as_ref().map(|plans| plans.normalization) {
            Some(Normalization::None) => Vec::new(),
            Some(Normalization::ZeroToOne) => vec![Processing::ScaleRange {
                min_percentile: 0.0,
                max_percentile: 100.0,
                eps: 1e-8,
                axes: per_channel,
                reference_tensor: None,
            }],
            Some(Normalization::ZScore) => vec![Processing::ZeroMeanUnitVariance { eps: 1e-8, axes: per_channel }],
            None => {
                assumptions.push("images are normalized to mean 0 and variance 1: there is no plans.json".to_owned());
                vec![Processing::ZeroMeanUnitVariance { eps: 1e-8, axes: per_channel }]
            }
        };
        if let Some(plans) = plans.filter(|plans| !plans.spacing.is_empty()) {
            assumptions
                .push(format!("stacks have the voxel size of the training data, {:?} in its unit", plans.spacing));
        }
        let regions = checkpoint.nnunet_arguments().and_then(|a| a.pointer("/dataset_json/regions_class_order"));
        after.push(if regions.is_some_and(|r| !r.is_null()) { Processing::Sigmoid } else { Processing::Softmax });
        // The first class of a softmax is the background.
        if channels > 1 && after == [Processing::Softmax] {
            config = json!({"config": {"cytoscope": {"segment_channel": 1}}});
        }
    } else {
        assumptions.push("images are normalized to mean 0 and variance 1, and outputs are used as they are".to_owned());
    }
    let description = format!(
        "A network of the architecture {} from the PyTorch checkpoint {}. Assumed: {}.",
        architecture.name(),
        file.file_name().unwrap_or_default().to_string_lossy(),
        assumptions.join("; ")
    );
    let mut package =
        Package::of_network(file, graph, description, (&before, &after)).map_err(|e| JobError::model(&*name, e))?;
    package.rdf = config;
    Ok(Opened { package, architecture: Some(architecture.name().to_owned()), assumptions })
}

/// Reads a file of at most `limit` bytes.
fn read_up_to(file: &Path, limit: u64) -> Result<Vec<u8>, JobError> {
    let unreadable = |error| JobError::unreadable(file, error);
    let mut bytes = Vec::new();
    open_regular(file).map_err(unreadable)?.take(limit + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > limit {
        let problem = format!("the file has more than the limit of {limit} bytes");
        return Err(JobError::model(file.display().to_string(), problem));
    }
    Ok(bytes)
}

/// Why nnU-Net's plans could not be used.
enum PlansError {
    Job(JobError),
    Import(ImportError),
}

/// Returns nnU-Net's plans: those in the checkpoint, or `plans.json` beside it or in the folder above. The name of the
/// configuration is read from the checkpoint, or else from the end of the training folder's name.
fn plans(file: &Path, arguments: Option<&Value>) -> Result<Option<Plans>, PlansError> {
    let mut stored = arguments.and_then(|a| a.get("plans")).filter(|plans| plans.is_object()).cloned();
    let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let folders: Vec<&Path> = absolute.ancestors().skip(1).take(2).collect();
    let beside = folders.iter().map(|folder| folder.join("plans.json")).find(|path| path.is_file());
    if stored.is_none()
        && let Some(path) = beside
    {
        let bytes = read_up_to(&path, MAX_PLANS_BYTES).map_err(PlansError::Job)?;
        let read = serde_json::from_slice(&bytes);
        stored = Some(read.map_err(|error| PlansError::Job(JobError::model(path.display().to_string(), error)))?);
    }
    let Some(stored) = stored else { return Ok(None) };
    let of_folder = || {
        let names = folders.iter().filter_map(|folder| folder.file_name()?.to_str());
        names.filter_map(|name| name.rsplit_once("__")).map(|(_, last)| last.to_owned()).next()
    };
    let configuration = arguments.and_then(|a| a.get("configuration")).and_then(Value::as_str).map(str::to_owned);
    let configuration = configuration.or_else(of_folder).unwrap_or_else(|| "3d_fullres".to_owned());
    Plans::read(&stored, &configuration).map(Some).map_err(PlansError::Import)
}
