//! Settings that the user gives for a model to import, where its file does not state them.

use crate::model::{ModelTask, OBJECT_DIAMETERS_UM, parse_task};
use crate::model_outputs::output_channels;
use crate::{JobError, Misuse};
use cytoscope_checkpoint_import::Architecture;
use cytoscope_graph::{Activation, Graph, Op};
use cytoscope_model_package::config_key::{OBJECT_DIAMETER_UM, SEGMENT_CHANNEL, TASK};
use cytoscope_model_package::{AxisKind, AxisSize, Package, Processing, TensorSpec};
use cytoscope_volume::VoxelSize;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::path::Path;

/// The activation that is applied to the output of a network and that the network itself does not contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinalActivation {
    /// Outputs are used as they are.
    None,
    /// Outputs are logits of independent channels.
    Sigmoid,
    /// Outputs are logits of classes, of which the first one is the background.
    Softmax,
}

impl FinalActivation {
    /// All activations.
    pub const ALL: [Self; 3] = [Self::None, Self::Sigmoid, Self::Softmax];

    /// Returns the name of the activation on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Sigmoid => "sigmoid",
            Self::Softmax => "softmax",
        }
    }

    fn step(self) -> Option<Processing> {
        match self {
            Self::None => None,
            Self::Sigmoid => Some(Processing::Sigmoid),
            Self::Softmax => Some(Processing::Softmax),
        }
    }
}

cytoscope_storage::parsed_by_name!(FinalActivation, "unknown activation");

/// Settings that the user gives for a model to import. Absent ones are taken from the file, or assumed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ImportSettings {
    /// Architecture of the network that PyTorch weights belong to; recognized from their tensors if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<Architecture>,
    /// Task of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<ModelTask>,
    /// Activation that is applied to the network's first output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub final_activation: Option<FinalActivation>,
    /// Voxel size Z, Y, X in µm of the stacks that the network was trained on. A network on slices ignores Z.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub voxel_um: Option<[f64; 3]>,
    /// Median diameter in µm of the objects of the training data: stacks are rescaled so that their objects have this diameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_diameter_um: Option<f64>,
}

impl ImportSettings {
    /// Refuses an implausible voxel size or object diameter.
    pub(crate) fn check(&self) -> Result<(), JobError> {
        if let Some(diameter) = self.object_diameter_um.filter(|diameter| !OBJECT_DIAMETERS_UM.contains(diameter)) {
            return Err(JobError::wrong_use(format!(
                "invalid object diameter {diameter} of the model: expected a diameter in µm, such as 12"
            )));
        }
        let Some(um @ [z, y, x]) = self.voxel_um else { return Ok(()) };
        let checked = VoxelSize::new_um(z, y, x).check();
        checked.map_err(|error| {
            let message = format!("invalid voxel size {um:?} of the model: {error}");
            JobError::WrongUse(Misuse::explained(message, error.next_step()))
        })
    }

    /// Enters everything except the architecture into the description of a model.
    ///
    /// # Errors
    /// [`JobError::WrongUse`] if the model states a setting itself, or does not have outputs for it.
    pub(crate) fn apply(&self, package: &mut Package, file: &Path) -> Result<(), JobError> {
        let refused = |misuse: Misuse| JobError::WrongUse(misuse.about(file.display()));
        if package.is_described() {
            self.refuse_stated(package).map_err(refused)?;
        }
        if let Some(activation) = self.final_activation {
            let is_softmax = add_activation(package, activation).map_err(refused)?;
            if is_softmax && self.task != Some(ModelTask::LabelFree) {
                set_config(package, SEGMENT_CHANNEL, json!(1));
            }
        }
        if let Some(task) = self.task {
            set_config(package, TASK, json!(task.name()));
        }
        if let Some(voxel_um) = self.voxel_um {
            set_voxel_size(package, voxel_um);
        }
        if let Some(diameter) = self.object_diameter_um {
            check_object_diameter(package).map_err(refused)?;
            set_config(package, OBJECT_DIAMETER_UM, json!(diameter));
        }
        Ok(())
    }

    /// Refuses settings that a package's description states.
    fn refuse_stated(&self, package: &Package) -> Result<(), Misuse> {
        let stated = package.config().get(TASK).filter(|task| !task.is_null());
        if let (Some(_), Some(stated)) = (self.task, stated) {
            let problem = format!("the package states its task ({stated})");
            return Err(Misuse::with_next_step(problem, "leave the task out"));
        }
        if self.final_activation.is_some() {
            let problem = "the package states the steps after its network";
            return Err(Misuse::with_next_step(problem, "leave the final activation out"));
        }
        let stated = package.inputs.iter().find_map(TensorSpec::voxel_um);
        if let (Some(_), Some(stated)) = (self.voxel_um, stated) {
            let problem = format!("the package states its voxel size ({stated:?} µm)");
            return Err(Misuse::with_next_step(problem, "leave the voxel size out"));
        }
        let stated = package.config().get(OBJECT_DIAMETER_UM).filter(|diameter| !diameter.is_null());
        if let (Some(_), Some(stated)) = (self.object_diameter_um, stated) {
            let problem = format!("the package states its object diameter ({stated} µm)");
            return Err(Misuse::with_next_step(problem, "leave the object diameter out"));
        }
        Ok(())
    }
}

/// Refuses an object diameter for a model to which it would not apply.
fn check_object_diameter(package: &Package) -> Result<(), Misuse> {
    if matches!(parse_task(package.config().get(TASK)), Ok(ModelTask::LabelFree)) {
        let problem = "a model that predicts a stain has no object diameter";
        return Err(Misuse::with_next_step(problem, "leave the object diameter out"));
    }
    if package.inputs.iter().all(|input| input.voxel_um().is_none()) {
        let problem = "an object diameter in µm needs the voxel size of the training data";
        return Err(Misuse::with_next_step(problem, "state the voxel size, too"));
    }
    Ok(())
}

/// Applies an activation to the first output. Returns whether it is a softmax.
fn add_activation(package: &mut Package, activation: FinalActivation) -> Result<bool, Misuse> {
    let Some(step) = activation.step() else { return Ok(false) };
    let name = activation.name();
    if let Some(last) = last_activation(&package.graph) {
        let problem = format!("the network ends with a {last} already");
        return Err(Misuse::with_next_step(problem, format!("leave the final activation {name} out")));
    }
    let is_softmax = step == Processing::Softmax;
    if is_softmax && output_channels(&package.graph, 0) == Some(1) {
        let problem = "the network has one output channel, for which softmax is 1 everywhere";
        return Err(Misuse::with_next_step(problem, "choose sigmoid or none"));
    }
    if let Some(output) = package.outputs.first_mut() {
        output.processing.insert(0, step);
    }
    Ok(is_softmax)
}

/// Returns the activation that is the last node of a network, if it produces probabilities.
fn last_activation(graph: &Graph) -> Option<&'static str> {
    let output = graph.outputs.first()?;
    let node = graph.nodes.get(*graph.producers().get(output)?)?;
    match node.op {
        Op::Activation(Activation::Sigmoid) => Some("sigmoid"),
        Op::Softmax { .. } => Some("softmax"),
        _ => None,
    }
}

/// States the voxel size Z, Y, X in µm of inputs and outputs.
fn set_voxel_size(package: &mut Package, [z, y, x]: [f64; 3]) {
    let specs = package.inputs.iter_mut().chain(&mut package.outputs);
    for axis in specs.flat_map(|spec| &mut spec.axes) {
        let um = match axis.kind {
            AxisKind::Z => z,
            AxisKind::Y => y,
            AxisKind::X => x,
            AxisKind::Batch | AxisKind::Channel | AxisKind::Time | AxisKind::Index => continue,
        };
        // An output with several voxels per input voxel has smaller ones.
        let scale = match axis.size {
            AxisSize::Reference { scale, .. } if scale > 0.0 => scale,
            _ => 1.0,
        };
        axis.voxel_um = Some(um / scale);
    }
}

/// Sets an entry of `config.cytoscope` in the description of a model.
fn set_config(package: &mut Package, key: &str, value: Value) {
    package.rdf = with_entry(std::mem::take(&mut package.rdf), &["config", "cytoscope", key], value);
}

/// Returns nested mappings with an entry replaced or added; a value that is not a mapping is replaced by one.
fn with_entry(mappings: Value, path: &[&str], entry: Value) -> Value {
    let [first, rest @ ..] = path else { return entry };
    let mut mapping = if let Value::Object(mapping) = mappings { mapping } else { Map::new() };
    let inner = mapping.get_mut(*first).map(std::mem::take).unwrap_or_default();
    mapping.insert((*first).to_owned(), with_entry(inner, rest, entry));
    Value::Object(mapping)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn entries_are_added_to_the_configuration_and_others_are_kept() {
        let path = ["config", "cytoscope", "task"];
        let expected = json!({"config": {"cytoscope": {"task": "labelfree"}}});
        assert_eq!(with_entry(Value::Null, &path, json!("labelfree")), expected);
        let before = json!({"name": "a", "config": {"other": 1, "cytoscope": {"task": 5, "layout": 2}}});
        let after = json!({"name": "a", "config": {"other": 1, "cytoscope": {"task": "labelfree", "layout": 2}}});
        assert_eq!(with_entry(before, &path, json!("labelfree")), after);
        assert_eq!(with_entry(json!({"config": "a text"}), &path, json!("labelfree")), expected);
    }

    #[test]
    fn settings_have_the_same_names_in_files_and_on_the_command_line() {
        for activation in FinalActivation::ALL {
            assert_eq!(serde_json::to_value(activation).unwrap(), activation.name());
            assert_eq!(activation.name().parse::<FinalActivation>(), Ok(activation));
        }
        assert!("relu".parse::<FinalActivation>().unwrap_err().contains("relu"));
        let stored = json!({"file": "a", "task": "labelfree", "architecture": "dynunet"});
        let expected = ImportSettings {
            task: Some(ModelTask::LabelFree),
            architecture: Some(Architecture::DynUNet),
            ..ImportSettings::default()
        };
        assert_eq!(serde_json::from_value::<ImportSettings>(stored).unwrap(), expected);
        for (diameter, is_valid) in [(0.0, false), (-3.0, false), (f64::NAN, false), (1e7, false), (12.5, true)] {
            let settings = ImportSettings { object_diameter_um: Some(diameter), ..ImportSettings::default() };
            assert_eq!(settings.check().is_ok(), is_valid, "{diameter}");
        }
        let unknown = serde_json::from_value::<ImportSettings>(json!({"architecture": "resnet"})).unwrap_err();
        assert!(unknown.to_string().contains("resnet") && unknown.to_string().contains("segresnet"), "{unknown}");
    }
}
