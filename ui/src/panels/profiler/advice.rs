//! The advice for a run, with buttons that apply it.

use crate::action::{Action, Actions};
use crate::diameter::DIAMETERS;
use crate::display::{DisplayAction, PanelTask, Part};
use crate::document::{Document, DocumentChange};
use crate::documents::DocumentsAction;
use crate::engine_notes::message_in_window;
use crate::jobs::JobsAction;
use crate::panels::{capitalized, weak};
use crate::runs::ShownRun;
use crate::state::State;
use crate::theme;
use crate::training::TrainingAction;
use crate::training::further::FurtherAction;
use cytoscope_engine::DeviceRequest;
use cytoscope_pipeline::{DiameterRequest, MAX_THREADS};
use cytoscope_profile::{Advice, AdvisedSetting, bytes_text, train_setting};
use cytoscope_train::{MAX_ACCUMULATE, MAX_BATCH};
use cytoscope_training_data::limits::{MAX_PREFETCH, MAX_WORKERS};
use eframe::egui::{self, RichText, Ui};
use egui_phosphor::regular as icon;
use std::path::Path;

/// A button that makes the change of settings that a piece of advice proposes.
struct AdviceButton {
    /// Name of the button.
    name: String,
    /// Actions of the button.
    actions: Vec<Action>,
    /// Whether the setting already has the proposed value.
    is_applied: bool,
}

/// Draws the advice for a run.
pub(super) fn advice(ui: &mut Ui, state: State<'_>, run: ShownRun<'_>, all: &[Advice], actions: &mut Actions) {
    if all.is_empty() {
        let text = match run.is_running() {
            true => "No advice so far. Most rules need a run that has ended.",
            false => "No advice: nothing that was measured in this run calls for a change.",
        };
        weak(ui, text);
        return;
    }
    egui::ScrollArea::vertical().auto_shrink([false; 2]).show(ui, |ui| {
        for advice in all {
            egui::Frame::group(ui.style()).inner_margin(egui::Margin::same(8)).show(ui, |ui| {
                ui.set_width(ui.available_width());
                one(ui, state, run, advice, actions);
            });
        }
    });
}

fn one(ui: &mut Ui, state: State<'_>, run: ShownRun<'_>, advice: &Advice, actions: &mut Actions) {
    let further = match advice.further_inputs {
        0 => String::new(),
        1 => " (and 1 further input)".to_owned(),
        n => format!(" (and {n} further inputs)"),
    };
    let text = format!("{}{further}", capitalized(&advice.evidence));
    ui.add(egui::Label::new(RichText::new(text).strong()).wrap());
    weak(ui, format!("Expected gain: {}", advice.expected_gain));
    let change = match run {
        ShownRun::Job(_) => message_in_window(&advice.change),
        // A run of the command line.
        ShownRun::File(_) => advice.change.to_string(),
    };
    weak(ui, format!("Change: {change}"));
    let Some(button) = advice.setting.as_ref().and_then(|setting| advice_button(setting, state, run)) else { return };
    let sign = if button.is_applied { icon::CHECK } else { icon::MAGIC_WAND };
    let enabled = !button.is_applied;
    let response = ui.add_enabled(enabled, egui::Button::new(format!("{sign}  {}", button.name)));
    response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, enabled, &button.name));
    let response = response.on_hover_text("For the next runs").on_disabled_hover_text("The next runs use this");
    if response.clicked() {
        button.actions.into_iter().for_each(|action| actions.send(action));
    }
    ui.add_space(theme::GAP);
}

/// The change that applies a setting; `None` if the window lacks the setting, or this machine the device.
fn advice_button(setting: &AdvisedSetting, state: State<'_>, run: ShownRun<'_>) -> Option<AdviceButton> {
    match setting {
        AdvisedSetting::Tile(tile) => {
            let [z, y, x] = tile;
            Some(AdviceButton {
                name: format!("Use tiles of {z} × {y} × {x}"),
                actions: vec![JobsAction::Tile(Some(*tile)).into()],
                is_applied: state.jobs.tile() == Some(*tile),
            })
        }
        AdvisedSetting::Device(device) => device_button(device.as_str().parse().ok()?, state),
        AdvisedSetting::Workers(workers) => {
            let workers = Some(*workers).filter(|n| (1..=MAX_WORKERS).contains(n))?;
            Some(AdviceButton {
                name: format!("Use {workers} data workers"),
                actions: vec![TrainingAction::Workers(workers).into()],
                is_applied: state.wizard().workers() == workers,
            })
        }
        AdvisedSetting::Prefetch { patches, workers } => prefetch_button(*patches, *workers, state),
        AdvisedSetting::Diameter(diameter) => {
            let diameter = Some(*diameter).filter(|d| DIAMETERS.contains(d))?;
            diameter_button(DiameterRequest::Given(diameter), state, run)
        }
        AdvisedSetting::EstimatedDiameter => diameter_button(DiameterRequest::Auto, state, run),
        AdvisedSetting::VoxelSize => {
            let document = document_for_run(state, run)?;
            Some(AdviceButton {
                name: "Set voxel size…".to_owned(),
                actions: vec![DocumentsAction::Activate(document.id).into(), document.ask_voxel_size().into()],
                // The dialog shows the size that is set.
                is_applied: false,
            })
        }
        AdvisedSetting::MemoryBudget(bytes) => {
            let mib = (bytes >> 20).max(1);
            Some(AdviceButton {
                name: format!("Use a memory budget of {}", bytes_text(mib << 20)),
                actions: vec![DisplayAction::MemoryBudget(Some(mib)).into()],
                is_applied: state.settings().memory_budget_mib == Some(mib),
            })
        }
        AdvisedSetting::Threads(threads) => threads_button(*threads, state, run),
        AdvisedSetting::Batch(batch) => {
            let batch = Some(*batch).filter(|n| (1..=MAX_BATCH).contains(n))?;
            Some(AdviceButton {
                name: format!("Use a batch size of {batch}"),
                actions: vec![TrainingAction::Batch(Some(batch)).into()],
                is_applied: state.wizard().plan.batch == Some(batch),
            })
        }
        AdvisedSetting::AccumulatedBatch { batch, accumulate } => accumulated_batch_button(*batch, *accumulate, state),
        AdvisedSetting::ActivationMib(mib) => Some(AdviceButton {
            name: format!("Use a memory limit of {}", bytes_text(mib.saturating_mul(1 << 20))),
            actions: vec![TrainingAction::MemoryLimit(Some(*mib)).into()],
            is_applied: state.wizard().plan.memory_mib == Some(*mib),
        }),
        // Predictions of the window never ask for another way.
        AdvisedSetting::DefaultBlend => {
            Some(AdviceButton { name: "Join tiles by default".to_owned(), actions: Vec::new(), is_applied: true })
        }
    }
}

/// The device of predictions; `None` if this machine lacks it, or it cannot be used.
fn device_button(device: DeviceRequest, state: State<'_>) -> Option<AdviceButton> {
    let is_there = |d: &&cytoscope_engine::Device| d.usable && DeviceRequest::Device(d.id) == device;
    state.jobs.devices().iter().find(is_there)?;
    Some(AdviceButton {
        name: format!("Use {device}"),
        actions: vec![DisplayAction::Device(device).into()],
        is_applied: state.settings().device == device,
    })
}

/// The number of patches that training runs prepare in advance, and that of data workers if it changes too.
fn prefetch_button(patches: usize, workers: Option<usize>, state: State<'_>) -> Option<AdviceButton> {
    let patches = Some(patches).filter(|n| (1..=MAX_PREFETCH).contains(n))?;
    if workers.is_some_and(|n| !(1..=MAX_WORKERS).contains(&n)) {
        return None;
    }
    let wizard = state.wizard();
    let has_prefetch = wizard.prefetch() == Some(patches);
    let name = match workers {
        None => format!("Prepare {patches} patches in advance"),
        Some(workers) => format!("Use {workers} data workers and prepare {patches} patches in advance"),
    };
    let mut actions: Vec<Action> = workers.map(|n| Action::from(TrainingAction::Workers(n))).into_iter().collect();
    if !has_prefetch {
        let setting = format!("{}={patches}", train_setting::PREFETCH.text());
        actions.push(TrainingAction::Further(FurtherAction::Assign(setting)).into());
    }
    let is_applied = has_prefetch && workers.is_none_or(|workers| wizard.workers() == workers);
    Some(AdviceButton { name, actions, is_applied })
}

/// The batch size of training runs, and the number of batches whose gradients are added up.
fn accumulated_batch_button(batch: usize, accumulate: usize, state: State<'_>) -> Option<AdviceButton> {
    let batch = Some(batch).filter(|n| (1..=MAX_BATCH).contains(n))?;
    let accumulate = Some(accumulate).filter(|n| (1..=MAX_ACCUMULATE).contains(n))?;
    let plan = &state.wizard().plan;
    Some(AdviceButton {
        name: format!("Use {accumulate} batches of {batch} per step"),
        actions: vec![TrainingAction::Batch(Some(batch)).into(), TrainingAction::Accumulate(Some(accumulate)).into()],
        is_applied: (plan.batch, plan.accumulate) == (Some(batch), Some(accumulate)),
    })
}

/// The number of threads of predictions, or of training runs if the run is one.
fn threads_button(threads: usize, state: State<'_>, run: ShownRun<'_>) -> Option<AdviceButton> {
    let threads = Some(threads).filter(|n| (1..=MAX_THREADS).contains(n))?;
    let name = if threads == 1 { "Use 1 thread".to_owned() } else { format!("Use {threads} threads") };
    let (action, set): (Action, Option<usize>) = match run.facts().training {
        Some(_) => (TrainingAction::Threads(Some(threads)).into(), state.wizard().plan.threads),
        None => (DisplayAction::Threads(Some(threads)).into(), state.settings().threads),
    };
    Some(AdviceButton { name, actions: vec![action], is_applied: set == Some(threads) })
}

/// The stack of a run: one of its inputs that is open, which may have been opened again since, or the active one if no
/// input is known. `None` without a stack.
fn document_for_run<'a>(state: State<'a>, run: ShownRun<'_>) -> Option<&'a Document> {
    if let Some(document) = run.document().and_then(|id| state.documents.get(id)) {
        return Some(document);
    }
    let facts = run.facts();
    let inputs: Vec<&Path> = facts.inputs.iter().map(|input| Path::new(&input.name)).collect();
    // Runs of the command line state the paths as they were typed: relative ones are recognized by their file name.
    let is_input = |document: &&Document| {
        let is_at = |path: &&Path| match path.is_absolute() {
            true => document.path.as_path() == *path,
            false => document.path.file_name() == path.file_name(),
        };
        inputs.iter().any(is_at)
    };
    match inputs.iter().all(|path| path.file_name().is_none()) {
        true => state.document(),
        false => state.document().into_iter().chain(state.documents.all()).find(is_input),
    }
}

/// The change of the object diameter of the run's stack; `None` if it is not open.
fn diameter_button(request: DiameterRequest, state: State<'_>, run: ShownRun<'_>) -> Option<AdviceButton> {
    let document = document_for_run(state, run)?;
    let mut size = document.object_size;
    let (name, is_applied) = match (request, size.request) {
        (DiameterRequest::Given(_), set) => ("Set object diameter", matches!(set, DiameterRequest::Given(_))),
        (DiameterRequest::Auto, set) => ("Estimate object diameter", set == DiameterRequest::Auto),
    };
    size.request = request;
    let change = DocumentChange::Diameter(size);
    let mut actions: Vec<Action> = vec![
        DocumentsAction::Activate(document.id).into(),
        DocumentsAction::Change { document: document.id, change }.into(),
        // While the Predict panel is open, a ring on the image shows whether the diameter is right.
        DisplayAction::Task(PanelTask::Predict).into(),
    ];
    if !state.settings().show_tasks {
        actions.push(DisplayAction::Toggle(Part::Tasks).into());
    }
    Some(AdviceButton { name: name.to_owned(), actions, is_applied })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_profile::train_setting::{ACCUMULATE, CACHE_BYTES, MEMORY_MIB, WORKERS};
    use cytoscope_storage::message;
    use cytoscope_storage::setting::{
        ACCURACY_BUDGET, BATCH, BLEND, MEMORY_BUDGET, SET, SET_ACCUMULATE, SET_ANY_MEMORY_LIMIT, SET_MEMORY_LIMIT,
        SET_WORKERS, THREADS, WITHOUT_BLEND,
    };

    #[test]
    fn a_change_names_the_controls_of_the_window() {
        let (path, kept) = ("a --tile.tif", "which keeps");
        for (change, expected) in [
            (message!("{path}, {THREADS} 1 for each"), "\"Threads\" 1 for each"),
            (
                message!("{BATCH} 2 {SET_ACCUMULATE}6, {kept}"),
                "\"Batch size\" 2 and \"Batches per step\" 6, which keeps",
            ),
            (message!("or a larger {SET_ANY_MEMORY_LIMIT}, if there"), "or a larger \"Memory limit\", if there"),
            (message!("{SET_MEMORY_LIMIT}8192, {kept}"), "\"Memory limit\" 8192, which keeps"),
            (message!("{SET_WORKERS}4, {kept}"), "\"Data workers\" 4, which keeps"),
            (message!("{MEMORY_BUDGET} 512M, or no budget"), "\"Memory budget\" 512M, or no budget"),
            (message!("larger {ACCURACY_BUDGET}"), "larger \"Max. relative error\""),
            (message!("{WITHOUT_BLEND}"), "set \"Blending\" to Auto"),
            (message!("a larger cache ({SET} {CACHE_BYTES}=BYTES)"), "a larger cache (\"Setting\" cache_bytes=BYTES)"),
        ] {
            let shown = message_in_window(&change);
            let names_options = shown.replace(path, "").contains("--");
            assert!(shown.ends_with(expected) && !names_options, "{shown}");
        }
    }

    #[test]
    fn settings_of_training_runs_have_one_name() {
        for (setting, option) in [
            (SET_ACCUMULATE, format!("{SET} {ACCUMULATE}=")),
            (SET_MEMORY_LIMIT, format!("{SET} {MEMORY_MIB}=")),
            (SET_ANY_MEMORY_LIMIT, format!("{SET} {MEMORY_MIB}=MIB")),
            (SET_WORKERS, format!("{SET} {WORKERS}=")),
            (WITHOUT_BLEND, format!("leave out {BLEND}")),
        ] {
            assert_eq!(setting.text(), option);
        }
    }
}
