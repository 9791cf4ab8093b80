//! The Settings page: start model, time budget, device, memory and threads, and model name.

use super::options::options_section;
use super::search::search_section;
use super::{cards, colored, icon_text_button, name_field, page_header, title};
use crate::action::Actions;
use crate::number_text::short_number;
use crate::opener::FileRequest;
use crate::panels::device_lists::{device_list, offered_training_precisions, precision_list};
use crate::panels::performance::{performance_choice, training_text, tune_button};
use crate::panels::{OptionalNumber, SettingRow, distinct_title, weak};
use crate::state::State;
use crate::theme;
use crate::training::plan::MINUTES;
use crate::training::start::incompatibility;
use crate::training::{Check, NEW_NETWORK, TrainingAction, Wizard};
use cytoscope_engine::Precision;
use cytoscope_pipeline::Preset;
use cytoscope_pipeline::cards::ModelCard;
use cytoscope_train::{MAX_ACCUMULATE, MAX_BATCH, TrainStart};
use eframe::egui::{self, Ui};
use egui_phosphor::regular as icon;

/// Tooltip of the button that tunes training runs.
const TUNE_HINT: &str = "Measure devices, precisions, batch sizes, data workers and threads with short training runs on these \
                         data, and save the fastest settings. A device, precision, batch size or number of data workers that \
                         is set here is kept. This takes a few minutes and continues if the window is closed.";

/// Title of the start model with this path.
pub(super) fn start_name(state: State<'_>, path: &str) -> String {
    let of = |m: &&ModelCard| m.path.display().to_string() == path;
    let start_file = state.wizard().start_file.as_deref();
    let card = state.jobs.models().iter().find(of).or_else(|| start_file.filter(|m| of(m)));
    card.map_or_else(|| crate::document::file_name(std::path::Path::new(path)), |m| m.title.clone())
}

/// Draws the page.
pub(super) fn start_page(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let wizard = state.wizard();
    page_header(ui, "Choose a start model", "");
    let task = wizard.plan.task;
    let channels = wizard.plan.input_channels();
    let fits = |m: &&ModelCard| incompatibility(m, task, channels).is_none();
    let scratch = wizard.plan.from == TrainStart::Scratch;
    let description = "A small untrained 3-D U-Net. Best with twenty pairs or more.";
    if cards::row(ui, scratch, NEW_NETWORK, "from scratch", description).clicked() {
        actions.send(TrainingAction::StartFrom(TrainStart::Scratch));
    }
    let own_folder = wizard.models_folder();
    let start_file = wizard.start_file.as_deref().filter(|m| fits(m));
    for model in state.jobs.models().iter().filter(fits).chain(start_file) {
        let path = model.path.display().to_string();
        let mark = match start_file.is_some_and(|o| o.path == model.path) {
            true => "file",
            false if model.path.starts_with(&own_folder) => "your model",
            false => "included",
        };
        let selected = wizard.plan.from.model() == Some(path.as_str());
        let title = distinct_title(model, state.jobs.models());
        if cards::row(ui, selected, &title, mark, &model.description).clicked() {
            actions.send(TrainingAction::StartFrom(TrainStart::Model(path)));
        }
    }
    if icon_text_button(ui, true, icon::FOLDER_OPEN, "Choose model file…")
        .on_hover_text(
            "A bioimage.io package (.zip, or rdf.yaml in its folder) or an ONNX file. PyTorch checkpoints are added to your \
             models first, under Predict > Models…",
        )
        .clicked()
    {
        actions.send(TrainingAction::Ask(FileRequest::StartModel));
    }
    let start_file = wizard.start_file.as_deref();
    if let Some((start_file, why)) = start_file.and_then(|m| Some((m, incompatibility(m, task, channels)?))) {
        weak(ui, format!("{} cannot be the start model. {why}", start_file.name));
    }
    time_budget(ui, wizard, actions);
    egui::Grid::new("training settings").num_columns(2).spacing([20.0, 6.0]).show(ui, |ui| {
        data_workers(ui, wizard, actions);
        device_and_precision(ui, state, SettingRow::Grid, actions);
        limits(ui, wizard, actions);
        tuned_choice(ui, state, actions);
    });
    let mut without_int8 = wizard.plan.without_int8;
    let hint = "Leave out the int8 network, with which the package predicts faster on CPUs";
    if theme::checkbox(ui, &mut without_int8, "Without int8 network").on_hover_text(hint).changed() {
        actions.send(TrainingAction::WithoutInt8(without_int8));
    }
    compare_precision(ui, state, actions);
    let is_checked = matches!(wizard.check, Check::Done(_) | Check::Failed(_));
    if state.jobs.has_engine() && (wizard.is_usable() || !is_checked) {
        // While data are checked again, the button stays in its place.
        let enabled = wizard.is_usable() || state.jobs.tuning().is_some();
        if ui.add_enabled_ui(enabled, |ui| tune_button(ui, state, TUNE_HINT, actions)).inner {
            actions.send(TrainingAction::Tune);
        }
    }
    options_section(ui, wizard, actions);
    search_section(ui, state, actions);
    title(ui, "Model name");
    name_field(ui, &wizard.plan.name, true, actions);
}

fn time_budget(ui: &mut Ui, wizard: &Wizard, actions: &mut Actions) {
    ui.add_space(theme::GAP);
    title(ui, "Time budget");
    let width = ((ui.available_width() - 24.0) / 3.0).clamp(110.0, 190.0);
    ui.horizontal_wrapped(|ui| {
        for (name, minutes) in MINUTES {
            let selected = (wizard.plan.minutes - minutes).abs() < 1e-9;
            if cards::time(ui, width, selected, name, minutes).clicked() {
                actions.send(TrainingAction::Minutes(minutes));
            }
        }
    });
    ui.horizontal(|ui| {
        let mut minutes = wizard.plan.minutes;
        let number = ui.add(minutes_field(&mut minutes));
        number.widget_info(|| egui::WidgetInfo {
            value: Some(minutes),
            ..egui::WidgetInfo::labeled(egui::WidgetType::DragValue, true, "Minutes")
        });
        if number.changed() {
            actions.send(TrainingAction::Minutes(minutes));
        }
        ui.label("in total");
    });
    match wizard.budget_problem() {
        Some(problem) => {
            let color = theme::warn(ui.visuals());
            colored(ui, color, problem);
        }
        None => _ = weak(ui, wizard.cost_text()),
    }
}

/// A field for a time budget in minutes.
fn minutes_field(minutes: &mut f64) -> egui::DragValue<'_> {
    let unit = if (*minutes - 1.0).abs() < 0.05 { " minute" } else { " minutes" };
    let field = egui::DragValue::new(minutes).range(0.5..=2880.0).speed(0.5).max_decimals(1);
    field.custom_formatter(|minutes, _| short_number(minutes)).suffix(unit)
}

/// Choice among the presets that were tuned for training from the start model on this machine, if there are any.
fn tuned_choice(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let wizard = state.wizard();
    let from = wizard.plan.from.as_str();
    let card = state.jobs.models().iter().find(|m| m.path.display().to_string() == from);
    let profile = state.jobs.machine_profile(card.map_or(from, |card| card.title.as_str()));
    let Some(profile) = profile.filter(|profile| !profile.training.is_empty()) else { return };
    let describe = |preset: Preset| profile.training.get(&preset).map(training_text);
    if let Some(request) = performance_choice(ui, SettingRow::Grid, wizard.performance(), profile, &describe) {
        actions.send(TrainingAction::Performance(request));
    }
}

/// The device and the precision of the training steps.
pub(super) fn device_and_precision(ui: &mut Ui, state: State<'_>, row: SettingRow, actions: &mut Actions) {
    let (plan, devices) = (&state.wizard().plan, state.jobs.devices());
    if let Some(device) = device_list(ui, row, "training device", devices, plan.device) {
        actions.send(TrainingAction::Device(device));
    }
    let all = offered_training_precisions(devices, plan.device);
    if let Some(precision) = precision_list(ui, row, "training precision", &all, "Auto (32 bits)", plan.precision) {
        actions.send(TrainingAction::Precision(precision));
    }
}

/// Whether a run in 16-bit floats is followed by one in 32-bit floats, if a device offers them.
fn compare_precision(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let plan = &state.wizard().plan;
    let is_half = |precision: Precision| matches!(precision, Precision::F16 | Precision::Bf16);
    if !offered_training_precisions(state.jobs.devices(), plan.device).into_iter().any(is_half) {
        return;
    }
    let mut compare = plan.compare_precision;
    let checkbox = |ui: &mut Ui| theme::checkbox(ui, &mut compare, "Compare with 32 bits");
    let response = ui.add_enabled_ui(plan.precision.is_some_and(is_half), checkbox).inner;
    let response = response
        .on_hover_text(
            "After training, train again in 32-bit floats with the same seed and number of steps, and show how the scores \
             differ. This takes as long as training in 32 bits.",
        )
        .on_disabled_hover_text("Choose f16 or bf16 as the precision to compare it with 32-bit floats");
    if response.changed() {
        actions.send(TrainingAction::ComparePrecision(compare));
    }
}

/// Batch size, memory and number of threads of the training steps.
fn limits(ui: &mut Ui, wizard: &Wizard, actions: &mut Actions) {
    let batch = OptionalNumber {
        name: "Batch size",
        unit: "patches",
        hint: "Patches per training step. Larger batches use a GPU better, smaller ones need less memory.",
        unset: "automatic",
        first: 2,
        range: 1..=MAX_BATCH as u64,
    };
    if let Some(size) = batch.show(ui, SettingRow::Grid, wizard.plan.batch.map(|n| n as u64)) {
        actions.send(TrainingAction::Batch(size.map(|n| n as usize)));
    }
    // Set only by advice of the profiler.
    if let Some(accumulate) = wizard.plan.accumulate {
        let batches = OptionalNumber {
            name: "Batches per step",
            unit: "batches",
            hint: "Batches whose gradients are added before each optimizer step. If not set, the number in the training \
                   settings is used.",
            unset: "automatic",
            first: accumulate as u64,
            range: 1..=MAX_ACCUMULATE as u64,
        };
        if let Some(number) = batches.show(ui, SettingRow::Grid, Some(accumulate as u64)) {
            actions.send(TrainingAction::Accumulate(number.map(|n| n as usize)));
        }
    }
    let hint = "Memory for activations; beyond it, some are computed twice. Automatic is half of the free memory.";
    let memory = OptionalNumber::memory("Memory limit", hint);
    if let Some(mib) = memory.show(ui, SettingRow::Grid, wizard.plan.memory_mib) {
        actions.send(TrainingAction::MemoryLimit(mib));
    }
    let hint = "Number of threads that compute the training steps on the CPU; automatic uses all cores.";
    let threads = OptionalNumber::threads(hint);
    if let Some(number) = threads.show(ui, SettingRow::Grid, wizard.plan.threads.map(|n| n as u64)) {
        actions.send(TrainingAction::Threads(number.map(|n| n as usize)));
    }
}

/// Choice of the number of threads that prepare patches.
fn data_workers(ui: &mut Ui, wizard: &Wizard, actions: &mut Actions) {
    let label = |ui: &mut Ui| {
        ui.label("Data workers");
    };
    let field = |ui: &mut Ui| {
        let mut workers = wizard.workers();
        let most = std::thread::available_parallelism().map_or(1, usize::from).max(workers);
        let number = ui
            .add(egui::DragValue::new(&mut workers).range(1..=most).speed(0.05))
            .on_hover_text("Threads that prepare patches. More of them help if training steps wait for data.");
        number.widget_info(|| egui::WidgetInfo {
            value: Some(workers as f64),
            ..egui::WidgetInfo::labeled(egui::WidgetType::DragValue, true, "Data workers")
        });
        if number.changed() {
            actions.send(TrainingAction::Workers(workers));
        }
    };
    SettingRow::Grid.show(ui, label, field);
}

#[cfg(test)]
mod tests {
    use super::*;
    use egui_kittest::Harness;

    #[test]
    fn a_time_budget_has_only_the_decimals_that_it_needs() {
        let shown = |minutes: f64| -> String {
            let mut budget = minutes;
            let mut window = Harness::builder().with_size([300.0, 100.0]).build_ui(move |ui| {
                ui.add(minutes_field(&mut budget));
            });
            window.run_steps(2);
            let texts = window.output().shapes.iter().filter_map(|clipped| match &clipped.shape {
                egui::Shape::Text(text) => Some(text.galley.text().to_owned()),
                _ => None,
            });
            texts.collect()
        };
        assert_eq!([1.0, 20.0, 2.5].map(shown), ["1 minute", "20 minutes", "2.5 minutes"]);
    }
}
