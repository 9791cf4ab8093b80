//! Opening a model for import: packages, ONNX files, and PyTorch weights, whose network is built from the names and
//! shapes of their tensors.

use crate::model::ModelTask;
use crate::model_outputs::output_channels;
use crate::packages::{ASSUMED_NORMALIZATION, is_assumed_normalization};
use crate::{FinalActivation, ImportSettings, JobError};
use cytoscope_checkpoint_import::{
    Architecture, Checkpoint, CytoDlHead, EXTENSIONS, ImportError, Imported, MAX_CHECKPOINT_BYTES, Normalization,
    Plans, START_BYTES, is_torch_save,
};
use cytoscope_graph::Graph;
use cytoscope_model_package::{AxisKind, AxisSize, Package, Processing, StateDict, StatisticsAxes, TensorSpec};
use cytoscope_storage::read::open_regular;
use cytoscope_storage::target::extension;
use cytoscope_volume::VoxelSize;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::io::Read;
use std::path::Path;

/// Maximum size of nnU-Net's `plans.json` in bytes.
const MAX_PLANS_BYTES: u64 = 16 << 20;
/// The label of voxels that nnU-Net's training ignores.
const IGNORED_LABEL: &str = "ignore";

/// A model opened for import.
pub(crate) struct Opened {
    /// The model as a package with the user's settings; a checkpoint, which is not a package, becomes one in memory.
    pub package: Package,
    /// Architecture of a network that was built from tensors.
    pub architecture: Option<Architecture>,
    /// Settings that the tensors do not determine, with the values that were assumed, one sentence each.
    pub assumptions: Vec<String>,
}

/// Opens a model with what the user states about it. Without a stated architecture, that of PyTorch weights is recognized
/// from the tensors.
///
/// # Errors
/// [`JobError::Model`] if the model is malformed or its weights cannot be converted; [`JobError::WrongUse`] for
/// settings that do not apply to the model.
pub(crate) fn open(file: &Path, settings: &ImportSettings) -> Result<Opened, JobError> {
    settings.check()?;
    let requested = settings.architecture;
    let is_named = extension(file).is_some_and(|extension| EXTENSIONS.contains(&extension.as_str()));
    if (is_named && !file.is_dir()) || has_checkpoint(file) {
        return open_checkpoint(file, settings);
    }
    let built = RefCell::new(None);
    let build = |state: &StateDict| -> Result<Graph, String> {
        let imported = convert(state, requested).map_err(|error| {
            format!(
                "of \"{}\" cannot be converted ({error}): export the model with torch.onnx.export and add the ONNX file to \
                 the package",
                state.architecture
            )
        })?;
        *built.borrow_mut() = Some((imported.architecture, imported.assumptions));
        Ok(imported.graph)
    };
    let mut package = Package::open_with(file, &build).map_err(|e| JobError::model(file.display().to_string(), e))?;
    settings.apply(&mut package, file)?;
    match built.take() {
        Some((architecture, assumptions)) => Ok(Opened { package, architecture: Some(architecture), assumptions }),
        None if requested.is_some() => Err(JobError::wrong_use_with(
            format!("{}: the architecture is known from the ONNX weights of the model", file.display()),
            "do not give an architecture",
        )),
        None => {
            let is_bare = !package.is_described();
            let mut steps = package.inputs.iter().flat_map(|input| &input.processing);
            let normalization = (is_bare && steps.any(is_assumed_normalization)).then_some(ASSUMED_NORMALIZATION);
            let task = (is_bare && settings.task.is_none()).then_some(ASSUMED_TASK);
            let assumptions = normalization.into_iter().chain(task).map(str::to_owned).collect();
            Ok(Opened { package, architecture: None, assumptions })
        }
    }
}

/// Whether a file has the content of a checkpoint of `torch.save`, whatever its name. Opening it reports why it cannot be read.
fn has_checkpoint(file: &Path) -> bool {
    let mut start = Vec::new();
    let read = open_regular(file).and_then(|file| file.take(START_BYTES as u64).read_to_end(&mut start));
    read.is_ok() && is_torch_save(&start)
}

/// Builds the network of a package's state dict.
fn convert(state: &StateDict, requested: Option<Architecture>) -> Result<Imported, ImportError> {
    let kwargs = if state.kwargs.is_null() { json!({}) } else { state.kwargs.clone() };
    Checkpoint::from_bytes(&state.bytes)?.network(requested, &kwargs)
}

/// The assumption about a model whose task neither its file nor the user states.
const ASSUMED_TASK: &str = "the network is for segmentation";

/// What a checkpoint states about how its network is used.
struct CheckpointUse {
    preprocessing: Vec<Processing>,
    task: Option<ModelTask>,
    /// Activation after the network, if the network is used for [`CheckpointUse::task`].
    final_activation: Option<FinalActivation>,
    /// Voxel size Z, Y, X in µm of the training data.
    voxel_um: Option<[f64; 3]>,
    /// Assumptions, one sentence each.
    assumptions: Vec<String>,
}

impl CheckpointUse {
    /// Returns the settings of the package: those of the user, or else those of the checkpoint. Settings that neither
    /// states are assumed.
    fn completed(&mut self, stated: &ImportSettings) -> ImportSettings {
        let task = stated.task.or(self.task);
        let found = self.final_activation.filter(|_| task == self.task);
        let final_activation = stated.final_activation.or(found);
        if task.is_none() {
            self.assumptions.push(ASSUMED_TASK.to_owned());
        }
        if final_activation.is_none() && task != Some(ModelTask::LabelFree) {
            self.assumptions.push("outputs are used as they are".to_owned());
        }
        let voxel_um = stated.voxel_um.or(self.voxel_um);
        let object_diameter_um = stated.object_diameter_um;
        ImportSettings { architecture: None, task, final_activation, voxel_um, object_diameter_um }
    }
}

fn open_checkpoint(file: &Path, settings: &ImportSettings) -> Result<Opened, JobError> {
    let name = file.display().to_string();
    let bad = |error: ImportError| JobError::model(&*name, error);
    let bytes = read_up_to(file, MAX_CHECKPOINT_BYTES)?;
    let checkpoint = Checkpoint::from_bytes(&bytes).map_err(bad)?;
    drop(bytes);
    let imported = checkpoint.network(settings.architecture, &Value::Null).map_err(bad)?;
    let Imported { graph, architecture, mut assumptions } = imported;
    let mut found = match architecture {
        Architecture::NnUNet => use_with_plans(file, &checkpoint, &graph, settings).map_err(|error| match error {
            PlansError::Job(error) => *error,
            PlansError::Import(error) => bad(error),
        })?,
        _ => use_without_plans(architecture, checkpoint.cytodl_head()),
    };
    let completed = found.completed(settings);
    assumptions.append(&mut found.assumptions);
    let mut description = format!(
        "A network of the architecture {} from the PyTorch checkpoint {}.",
        architecture.name(),
        file.file_name().unwrap_or_default().to_string_lossy(),
    );
    if !assumptions.is_empty() {
        description.push_str(&format!(" Assumed: {}.", assumptions.join("; ")));
    }
    let mut package = Package::from_network(file, graph, description, (&found.preprocessing, &[]))
        .map_err(|e| JobError::model(&*name, e))?;
    completed.apply(&mut package, file)?;
    if let Some(dataset) = checkpoint.nnunet_arguments().and_then(|arguments| arguments.get("dataset_json")) {
        name_channels(&mut package.inputs, dataset_channels(dataset));
        name_channels(&mut package.outputs, dataset_labels(dataset));
    }
    Ok(Opened { package, architecture: Some(architecture), assumptions })
}

/// Gives the channels of the first tensor these names, if there is one for each.
fn name_channels(tensors: &mut [TensorSpec], names: Option<Vec<String>>) {
    let channels =
        tensors.first_mut().and_then(|tensor| tensor.axes.iter_mut().find(|axis| axis.kind == AxisKind::Channel));
    if let (Some(axis), Some(names)) = (channels, names)
        && axis.size == AxisSize::Fixed(names.len())
    {
        axis.channel_names = names;
    }
}

/// Returns the names of the input channels in the description of nnU-Net's data set (`{"0": "nuclei"}`), if they are complete.
fn dataset_channels(dataset: &Value) -> Option<Vec<String>> {
    let channels = dataset.get("channel_names")?.as_object()?;
    names_in_order(channels.iter().map(|(number, name)| Some((number.parse::<u64>().ok()?, name.as_str()?.to_owned()))))
}

/// Returns the names of the labels in the description of nnU-Net's data set (`{"background": 0}`), if they are complete. Labels
/// that consist of several classes have no name. The ignored label, which must be the highest one, is not a class of the network.
fn dataset_labels(dataset: &Value) -> Option<Vec<String>> {
    let labels = dataset.get("labels")?.as_object()?;
    let classes = labels.iter().filter(|(name, _)| *name != IGNORED_LABEL);
    let names = names_in_order(classes.map(|(name, number)| Some((number.as_u64()?, name.clone()))))?;
    let is_valid = labels.get(IGNORED_LABEL).is_none_or(|ignored| ignored.as_u64() == Some(names.len() as u64));
    is_valid.then_some(names)
}

/// Returns names in the order of their numbers; `None` if a number from 0 is missing, or a name is empty.
fn names_in_order(named: impl Iterator<Item = Option<(u64, String)>>) -> Option<Vec<String>> {
    let mut named: Vec<(u64, String)> = named.collect::<Option<_>>()?;
    named.sort();
    let is_complete = (0u64..).zip(&named).all(|(expected, (number, name))| expected == *number && !name.is_empty());
    is_complete.then(|| named.into_iter().map(|(_, name)| name).collect())
}

/// Returns what is known about a network of an architecture other than nnU-Net, whose checkpoint states no
/// normalization.
fn use_without_plans(architecture: Architecture, head: Option<CytoDlHead>) -> CheckpointUse {
    let is_stain = architecture == Architecture::Fnet || head.is_some_and(|head| head.predicts_intensities);
    let task = if is_stain { Some(ModelTask::LabelFree) } else { head.map(|_| ModelTask::Segmentation) };
    CheckpointUse {
        preprocessing: vec![Processing::ZeroMeanUnitVariance { eps: 1e-6, axes: StatisticsAxes::default() }],
        task,
        final_activation: head.filter(|head| head.has_sigmoid).map(|_| FinalActivation::Sigmoid),
        voxel_um: None,
        assumptions: vec![ASSUMED_NORMALIZATION.to_owned()],
    }
}

/// Returns what nnU-Net's checkpoint and plans state about its network. The spacing is ignored if the user states a voxel
/// size.
fn use_with_plans(
    file: &Path,
    checkpoint: &Checkpoint,
    graph: &Graph,
    settings: &ImportSettings,
) -> Result<CheckpointUse, PlansError> {
    let plans = plans(file, checkpoint.nnunet_arguments())?;
    let per_channel = StatisticsAxes { batch: false, channel: false, by_slice: false };
    let z_score = || vec![Processing::ZeroMeanUnitVariance { eps: 1e-8, axes: per_channel }];
    let mut assumptions = Vec::new();
    let preprocessing = match plans.as_ref().map(|plans| plans.normalization) {
        Some(Normalization::None) => Vec::new(),
        Some(Normalization::ZeroToOne) => vec![Processing::ScaleRange {
            min_percentile: 0.0,
            max_percentile: 100.0,
            eps: 1e-8,
            axes: per_channel,
            reference_tensor: None,
        }],
        Some(Normalization::ZScore) => z_score(),
        None => {
            assumptions.push("images are normalized to mean 0 and variance 1: there is no plans.json".to_owned());
            z_score()
        }
    };
    let mut voxel_um = None;
    if let Some(plans) = plans.filter(|plans| !plans.spacing.is_empty() && settings.voxel_um.is_none()) {
        let shape = graph.inputs.first().and_then(|id| graph.value(*id).shape.as_ref());
        let axes = shape.map_or(0, |shape| shape.len().saturating_sub(2));
        let (um, assumption) = spacing_to_um(&plans.spacing, axes);
        voxel_um = um;
        assumptions.push(assumption);
    }
    let regions = checkpoint.nnunet_arguments().and_then(|a| a.pointer("/dataset_json/regions_class_order"));
    let has_regions = regions.is_some_and(|regions| !regions.is_null());
    let is_softmax = !has_regions && output_channels(graph, 0) != Some(1);
    let final_activation = if is_softmax { FinalActivation::Softmax } else { FinalActivation::Sigmoid };
    Ok(CheckpointUse {
        preprocessing,
        task: Some(ModelTask::Segmentation),
        final_activation: Some(final_activation),
        voxel_um,
        assumptions,
    })
}

/// Returns the voxel size Z, Y, X in µm that the spacing of nnU-Net's plans states for a network with this number of
/// spatial axes, and what was assumed. Images without a voxel size have a spacing of 1 in nnU-Net.
fn spacing_to_um(spacing: &[f64], spatial_axes: usize) -> (Option<[f64; 3]>, String) {
    let zyx = match (spacing, spatial_axes) {
        (&[y, x], 2) => Some([1.0, y, x]),
        (&[z, y, x], 3) => Some([z, y, x]),
        _ => None,
    };
    let unused = |reason: &str| {
        (
            None,
            format!(
                "stacks have the voxel size of the training data, because the spacing of the plans, {spacing:?}, {reason}"
            ),
        )
    };
    let Some([z, y, x]) = zyx else { return unused("is not one of the network's axes") };
    if spacing.iter().all(|um| *um == 1.0) {
        return unused("is that of images without a voxel size");
    }
    match VoxelSize::new_um(z, y, x).check() {
        Ok(()) => (zyx, format!("the spacing of the plans, {spacing:?}, is the voxel size of the training data in µm")),
        Err(error) => unused(&format!("is not a voxel size in µm ({error})")),
    }
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
    Job(Box<JobError>),
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
        let bytes = read_up_to(&path, MAX_PLANS_BYTES).map_err(|error| PlansError::Job(Box::new(error)))?;
        let read = serde_json::from_slice(&bytes);
        let problem = |error| PlansError::Job(Box::new(JobError::model(path.display().to_string(), error)));
        stored = Some(read.map_err(problem)?);
    }
    let Some(stored) = stored else { return Ok(None) };
    let folder_configuration = || {
        let names = folders.iter().filter_map(|folder| folder.file_name()?.to_str());
        names.filter_map(|name| name.rsplit_once("__")).map(|(_, last)| last.to_owned()).next()
    };
    let configuration = arguments.and_then(|a| a.get("configuration")).and_then(Value::as_str).map(str::to_owned);
    let configuration = configuration.or_else(folder_configuration).unwrap_or_else(|| "3d_fullres".to_owned());
    Plans::read(&stored, &configuration).map(Some).map_err(PlansError::Import)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stain_networks_are_recognized_and_the_user_decides() {
        let nothing = ImportSettings::default();
        let completed = |architecture, head, stated: &ImportSettings| {
            let mut found = use_without_plans(architecture, head);
            let settings = found.completed(stated);
            (settings.task, settings.final_activation, found.assumptions.len())
        };
        let stain = (Some(ModelTask::LabelFree), None, 1);
        assert_eq!(completed(Architecture::Fnet, None, &nothing), stain);
        let head = CytoDlHead { predicts_intensities: true, has_sigmoid: false };
        assert_eq!(completed(Architecture::DynUNet, Some(head), &nothing), stain);
        // The task and the use of the outputs are assumed.
        assert_eq!(completed(Architecture::DynUNet, None, &nothing), (None, None, 3));
        let head = CytoDlHead { predicts_intensities: false, has_sigmoid: true };
        let objects = (Some(ModelTask::Segmentation), Some(FinalActivation::Sigmoid), 1);
        assert_eq!(completed(Architecture::DynUNet, Some(head), &nothing), objects);
        let stated = ImportSettings { task: Some(ModelTask::LabelFree), ..nothing };
        assert_eq!(completed(Architecture::DynUNet, Some(head), &stated), stain);
    }

    #[test]
    fn channels_have_the_names_of_the_data_set_if_it_lists_all() {
        let dataset =
            json!({"channel_names": {"1": "membrane", "0": "nuclei"}, "labels": {"cell": 1, "background": 0}});
        let names = |names: [&str; 2]| Some(names.map(str::to_owned).to_vec());
        assert_eq!(dataset_channels(&dataset), names(["nuclei", "membrane"]));
        assert_eq!(dataset_labels(&dataset), names(["background", "cell"]));
        let with_ignored =
            |number: u64| dataset_labels(&json!({"labels": {"background": 0, "cell": 1, "ignore": number}}));
        assert_eq!(with_ignored(2), names(["background", "cell"]), "a network has no class for ignored voxels");
        // The ignored label must follow the others.
        assert_eq!([with_ignored(1), with_ignored(3)], [None, None]);
        for labels in [json!({"background": 0, "cell": 2}), json!({"background": 0, "whole": [1, 2]}), json!(["cell"])]
        {
            assert_eq!(dataset_labels(&json!({"labels": labels})), None);
        }
        assert_eq!(dataset_channels(&json!({"channel_names": {"first": "nuclei"}})), None);
    }

    #[test]
    fn the_spacing_of_plans_is_a_voxel_size_if_it_can_be_one() {
        assert_eq!(spacing_to_um(&[2.0, 0.5, 0.4], 3).0, Some([2.0, 0.5, 0.4]));
        assert_eq!(spacing_to_um(&[0.5, 0.4], 2).0, Some([1.0, 0.5, 0.4]));
        for (spacing, axes, words) in [
            (&[1.0, 1.0, 1.0][..], 3, "images without a voxel size"),
            (&[0.5, 0.5][..], 3, "not one of the network's axes"),
            (&[2e-4, 5e-5, 5e-5][..], 3, "millimeters"),
            (&[1.0, 0.0, 1.0][..], 3, "not a voxel size in µm"),
        ] {
            let (um, assumption) = spacing_to_um(spacing, axes);
            assert_eq!(um, None, "{spacing:?}");
            assert!(assumption.contains(words), "{assumption}");
        }
    }
}
