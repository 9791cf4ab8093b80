//! The Models page: the list of models, and details, test, speed, quantization, export and removal of the shown one.

mod results;

use super::{
    OptionalNumber, SettingRow, frame, heading, job_progress, labeled_choice, named_button, named_primary_button,
    number_field, page_top, row_text, scrolled, scrolled_frame, weak,
};
use crate::action::Actions;
use crate::diameter::{DiameterChoice, FIRST_DIAMETER_UM};
use crate::documents::DocumentsAction;
use crate::engine_notes::message_in_window;
use crate::jobs::JobsAction;
use crate::models::{ModelsAction, stem};
use crate::opener::FileRequest;
use crate::panels::predict::{about_model, facts};
use crate::state::State;
use crate::theme;
use crate::work::{JobState, JobView};
use cytoscope_pipeline::cards::{ModelCard, OutputCard};
use cytoscope_pipeline::packages::{Architecture, is_checkpoint, is_undescribed};
use cytoscope_pipeline::{DiameterUnit, ExportFormat, FinalActivation, ModelTask};
use cytoscope_quantize::QuantizeMode;
use cytoscope_volume::{MAX_PLAUSIBLE_UM, MIN_PLAUSIBLE_UM};
use eframe::egui::{self, RichText, Ui, vec2};
use egui_phosphor::regular as icon;
use std::path::Path;

/// State that the page keeps between frames.
#[derive(Default)]
pub(crate) struct ModelsPanel {
    /// Parsed Markdown of the shown card.
    commonmark: egui_commonmark::CommonMarkCache,
}

/// Draws the page.
pub(super) fn models_page(ui: &mut Ui, state: State<'_>, panel: &mut ModelsPanel, actions: &mut Actions) {
    page_top(ui, "Models", actions);
    let list_frame = scrolled_frame(ui);
    egui::Panel::left("model list").frame(list_frame).default_size(280.0).size_range(200.0..=460.0).show(ui, |ui| {
        scrolled(ui, "model list", |ui| {
            model_list(ui, state, actions);
            devices(ui, state, actions);
        });
    });
    let page_frame = frame(ui);
    egui::CentralPanel::default().frame(page_frame).show(ui, |ui| {
        let job = state.models.shown().and_then(|model| state.models.latest_job(model, state.jobs));
        if let Some(job) = job.filter(|job| !job.state.is_over()) {
            job_panel(ui, job, actions);
        }
        let scroll = egui::ScrollArea::vertical().id_salt(("model page", state.models.shown())).auto_shrink([false; 2]);
        scroll.show(ui, |ui| match state.models.shown() {
            Some(model) => model_page(ui, state, model, panel, actions),
            None => {
                _ = weak(ui, "Select a model, or drop a model file: .onnx, .zip, .pt, .pth, .ckpt or .safetensors.")
            }
        });
    });
    removal_dialog(ui.ctx(), state, actions);
}

fn model_list(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    if named_button(ui, true, icon::FILE_ARROW_UP, "Open model file…").clicked() {
        let (request, name) = (FileRequest::ModelFile, String::new());
        actions.send(DocumentsAction::Ask { request, folder: None, name });
    }
    if !state.models.files().is_empty() {
        heading(ui, "Files");
    }
    for file in state.models.files() {
        model_row(ui, state, file, &stem(file), false, actions);
    }
    heading(ui, "Installed");
    if state.jobs.models().is_empty() {
        weak(ui, state.reason_against_jobs().unwrap_or("Loading models…"));
    }
    for card in state.jobs.models() {
        model_row(ui, state, &card.path, &card.name, card.problem.is_some(), actions);
    }
}

fn model_row(ui: &mut Ui, state: State<'_>, path: &Path, name: &str, broken: bool, actions: &mut Actions) {
    let shown = state.models.shown() == Some(path);
    let busy = state.models.latest_job(path, state.jobs).is_some_and(|j| !j.state.is_over());
    let sign = match (busy, broken) {
        (true, _) => icon::HOURGLASS_MEDIUM,
        (false, true) => icon::WARNING,
        (false, false) => icon::PACKAGE,
    };
    let button = egui::Button::selectable(shown, row_text(ui, sign, name)).truncate();
    let response = ui.add(button.min_size(vec2(ui.available_width(), theme::BUTTON_HEIGHT)));
    let label = format!("Model {name}");
    response.widget_info(|| egui::WidgetInfo::selected(egui::WidgetType::SelectableLabel, true, shown, &label));
    if response.clicked() {
        actions.send(ModelsAction::Select(path.to_owned()));
    }
    response.on_hover_text(path.display().to_string());
}

/// Lists the devices of this machine, and why some are unusable or slower than they could be.
fn devices(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    heading(ui, "This machine");
    for device in state.jobs.devices() {
        let color = if device.usable { theme::good(ui.visuals()) } else { theme::bad(ui.visuals()) };
        ui.horizontal(|ui| {
            ui.label(RichText::new(icon::CIRCLE).size(10.0).color(color));
            ui.add(egui::Label::new(format!("{}  {}", device.id, device.name)).truncate());
        });
        let precisions: Vec<&str> = device.precisions.iter().map(|p| p.name()).collect();
        if !precisions.is_empty() {
            weak(ui, precisions.join(", "));
        }
        if !device.usable {
            weak(ui, super::capitalized(&message_in_window(&device.reason_message())));
        } else if let Some(lacks) = device.shortcoming() {
            weak(ui, format!("Slower than it could be: {}", message_in_window(&lacks)));
        }
    }
    ui.add_space(theme::GAP);
    let is_looking = state.jobs.is_looking_for_devices();
    ui.horizontal(|ui| {
        let reason = state.reason_against_jobs().or(is_looking.then_some("The search for devices is running."));
        let is_possible = reason.is_none();
        let button = named_button(ui, is_possible, icon::ARROWS_CLOCKWISE, "Look for devices again");
        let hint = "Finds GPUs that were connected, or whose driver was installed, since the program was started, and tests \
                    those again that are not used because they hung.";
        if button.on_hover_text(hint).on_disabled_hover_text(reason.unwrap_or_default()).clicked() {
            actions.send(JobsAction::LookForDevices);
        }
        if is_looking {
            ui.spinner();
        }
    });
}

fn model_page(ui: &mut Ui, state: State<'_>, model: &Path, panel: &mut ModelsPanel, actions: &mut Actions) {
    let installed = state.jobs.models().iter().find(|m| m.path == model);
    let findings = state.models.findings(model);
    let test = findings.and_then(|f| f.test.as_deref());
    let card = installed.or(test.map(|t| &t.card));
    let title = card.map(|c| c.title.clone()).filter(|t| !t.is_empty()).unwrap_or_else(|| stem(model));
    ui.label(RichText::new(title).strong().size(21.0));
    weak(ui, model.display().to_string());
    if let Some(card) = card {
        card_details(ui, card, panel);
    }
    ui.add_space(theme::GAP);
    let job = state.models.latest_job(model, state.jobs);
    let is_busy = job.is_some_and(|j| !j.state.is_over());
    let is_idle = !is_busy && state.reason_against_jobs().is_none();
    let problem = card.and_then(|c| c.problem.as_deref());
    let usable = card.is_some() && problem.is_none();
    if installed.is_none() {
        let reason = (!is_idle).then(|| why_not(state));
        if is_undescribed(model) {
            import_settings(ui, state, model, card.and_then(|c| c.voxel_um), reason, actions);
        }
        let unread = (!usable).then_some(problem.unwrap_or("The file was not read yet: test it first."));
        add_controls(ui, state, model, reason.or(unread), actions);
    }
    ui.horizontal_wrapped(|ui| {
        let problem = problem.unwrap_or_default();
        if installed.is_some() {
            let predict = named_primary_button(ui, usable, icon::SPARKLE, "Predict with this model");
            if predict.on_disabled_hover_text(problem).clicked() {
                actions.send(ModelsAction::Use);
            }
        }
        let test = named_button(ui, is_idle, icon::TEST_TUBE, "Test").on_disabled_hover_text(why_not(state));
        if test.on_hover_text("Run the model on its test tensors, and compare devices with the reference").clicked() {
            actions.send(ModelsAction::Test);
        }
        if installed.is_some() {
            let measure = named_button(ui, is_idle && usable, icon::GAUGE, "Measure here");
            let measure = measure.on_disabled_hover_text(if usable { why_not(state) } else { problem });
            if measure.on_hover_text("Measure the speed of the model on the devices of this machine").clicked() {
                actions.send(ModelsAction::Measure);
            }
        }
    });
    if installed.is_some() && usable {
        quantize_controls(ui, state, is_idle, actions);
        export_controls(ui, state, is_idle, actions);
    }
    if let Some((package, parts)) = findings.and_then(|f| f.left_out.as_ref()).filter(|(_, parts)| !parts.is_empty()) {
        weak(ui, format!("{package} lacks these parts of the original:"));
        for part in parts {
            weak(ui, format!("{}: {}", part.part, part.reason));
        }
    }
    if state.models.is_own(model) {
        heading(ui, "Remove");
        let remove = named_button(ui, is_idle, icon::TRASH, "Remove from my models…");
        if remove.on_disabled_hover_text(why_not(state)).clicked() {
            actions.send(ModelsAction::AskRemove);
        }
    }
    // Below the buttons, which failures and results that arrive would move.
    if let Some(JobState::Failed(reason)) = job.map(|j| &j.state) {
        let text = RichText::new(reason).color(theme::bad(ui.visuals()));
        ui.add(egui::Label::new(text).wrap().selectable(true));
    }
    if let Some(findings) = findings {
        results::results(ui, findings, job);
    }
}

/// Why no job of a model can start, if none can.
fn why_not(state: State<'_>) -> &'static str {
    state.reason_against_jobs().unwrap_or("Wait until the job of this model has finished, or cancel it.")
}

fn card_details(ui: &mut Ui, card: &ModelCard, panel: &mut ModelsPanel) {
    if let Some(problem) = &card.problem {
        let text = RichText::new(format!("{}  {problem}", icon::WARNING)).color(theme::bad(ui.visuals()));
        ui.add(egui::Label::new(text).wrap().selectable(true));
    }
    if !card.description.is_empty() {
        ui.add(egui::Label::new(&card.description).wrap());
    }
    weak(ui, facts(card));
    let names = |names: &[String]| if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) };
    // Models that cannot be read have no channels.
    let channels =
        |count: usize, all: &[String]| if count == 0 { String::new() } else { format!("{count}{}", names(all)) };
    let output = |output: &OutputCard| match output.channels {
        1 => output.id.clone(),
        count => format!("{}: {count} channels{}", output.id, names(&output.channel_names)),
    };
    let outputs: Vec<String> = card.outputs.iter().filter(|_| card.outputs.len() > 1).map(output).collect();
    egui::Grid::new("model facts").num_columns(2).spacing([28.0, 4.0]).show(ui, |ui| {
        let rows = [
            ("Input channels", channels(card.input_channels, &card.input_channel_names)),
            ("Output channels", channels(card.output_channels, &card.output_channel_names)),
            ("Outputs", outputs.join("; ")),
            ("Authors", card.authors.join(", ")),
            ("Tags", card.tags.join(", ")),
        ];
        for (name, value) in rows.into_iter().filter(|(_, value)| !value.is_empty()) {
            ui.label(RichText::new(name).weak());
            ui.add(egui::Label::new(value).truncate());
            ui.end_row();
        }
    });
    about_model(ui, card, &mut panel.commonmark);
}

/// Draws a waiting or running job below the page, where it moves none of the buttons.
fn job_panel(ui: &mut Ui, job: &JobView, actions: &mut Actions) {
    egui::Panel::bottom("model job").frame(egui::Frame::NONE).resizable(false).show(ui, |ui| {
        ui.add_space(theme::GAP);
        ui.horizontal(|ui| {
            ui.spinner();
            if named_button(ui, true, icon::STOP_CIRCLE, "Cancel").clicked() {
                actions.send(JobsAction::Cancel(job.id));
            }
            // After the button, which a long title would move out of the window.
            ui.add(egui::Label::new(&job.title).truncate());
        });
        job_progress(ui, job);
    });
}

/// Draws the facts that the user can state about a model file without a description; `known_um` is the voxel size that the
/// file states, and `reason` says why nothing can be stated now.
fn import_settings(
    ui: &mut Ui,
    state: State<'_>,
    model: &Path,
    known_um: Option<[f64; 3]>,
    reason: Option<&str>,
    actions: &mut Actions,
) {
    let shown = state.models.settings(model);
    let mut settings = shown.clone();
    let controls = ui.add_enabled_ui(reason.is_none(), |ui| {
        if is_checkpoint(model) {
            let all = Architecture::ALL.map(|architecture| (architecture, architecture.name()));
            let hint = "Architecture of the network that the weights belong to";
            optional_choice(ui, "Architecture", "From the tensors", &all, &mut settings.architecture)
                .on_hover_text(hint);
        }
        let tasks = [(ModelTask::Segmentation, "Segmentation"), (ModelTask::LabelFree, "Label-free prediction")];
        let hint = "Whether the model finds objects or predicts a stain";
        optional_choice(ui, "Task", "From the file", &tasks, &mut settings.task).on_hover_text(hint);
        let activations = FinalActivation::ALL.map(|activation| {
            let text = match activation {
                FinalActivation::None => "None",
                FinalActivation::Sigmoid => "Sigmoid",
                FinalActivation::Softmax => "Softmax",
            };
            (activation, text)
        });
        let hint = "Activation that turns outputs into probabilities, if it is not part of the network";
        optional_choice(ui, "Final activation", "From the file", &activations, &mut settings.final_activation)
            .on_hover_text(hint);
        voxel_size_fields(ui, known_um, &mut settings.voxel_um);
        object_diameter_field(ui, known_um.or(settings.voxel_um), &mut settings.object_diameter_um);
    });
    if let Some(reason) = reason {
        // At the pointer, because all of the controls together are large.
        egui::Tooltip::for_disabled(&controls.response).at_pointer().gap(12.0).show(|ui| {
            ui.set_max_width(ui.spacing().tooltip_width);
            ui.label(reason);
        });
    }
    if settings != shown {
        actions.send(ModelsAction::Describe(settings));
    }
}

/// A drop-down list of values with their texts. Its first entry, `absent`, stands for no choice.
fn optional_choice<T: Clone + PartialEq>(
    ui: &mut Ui,
    name: &str,
    absent: &str,
    values: &[(T, &str)],
    chosen: &mut Option<T>,
) -> egui::Response {
    let selected = values.iter().find(|(value, _)| chosen.as_ref() == Some(value)).map_or(absent, |(_, text)| *text);
    labeled_choice(ui, name, name, selected, |ui| {
        for entry in std::iter::once(None).chain(values.iter().map(Some)) {
            let value = entry.map(|(value, _)| value.clone());
            if ui.selectable_label(*chosen == value, entry.map_or(absent, |(_, text)| *text)).clicked() {
                *chosen = value;
            }
        }
    })
}

/// Fields for the voxel size Z, Y, X in µm that a model was made for.
fn voxel_size_fields(ui: &mut Ui, known_um: Option<[f64; 3]>, chosen: &mut Option<[f64; 3]>) {
    ui.horizontal(|ui| {
        let mut is_stated = chosen.is_some();
        let hint = "Voxel size of the training data in µm along Z, Y, X: stacks are resampled to it";
        if theme::checkbox(ui, &mut is_stated, "Voxel size").on_hover_text(hint).changed() {
            *chosen = is_stated.then_some(known_um.unwrap_or([1.0; 3]));
        }
        if let Some(zyx_um) = chosen {
            for (um, name) in zyx_um.iter_mut().zip(["Voxel size Z", "Voxel size Y", "Voxel size X"]) {
                number_field(ui, um, MIN_PLAUSIBLE_UM..=MAX_PLAUSIBLE_UM, 0.01, name);
            }
            ui.label("µm");
        }
    });
}

/// Field for the median diameter in µm of the objects that a model was trained on. It needs a voxel size: that of the model, if
/// it is known.
fn object_diameter_field(ui: &mut Ui, voxel_um: Option<[f64; 3]>, chosen: &mut Option<f64>) {
    let choice = DiameterChoice {
        unset: ["From the file", "What the file states; without an object diameter, objects are not rescaled"],
        hint: "Median diameter of the objects in the training data: stacks are rescaled to objects of this size",
        first: FIRST_DIAMETER_UM,
        unit: DiameterUnit::Um,
        // The reason why all of the controls are disabled comes first.
        reason: (ui.is_enabled() && voxel_um.is_none()).then_some("State the voxel size first."),
    };
    ui.horizontal(|ui| {
        ui.label("Object diameter");
        choice.show(ui, chosen);
    });
}

/// Draws the name under which a model file is added to the user's models, and the buttons that add it or remove it from the
/// list. `reason` says why it cannot be added now.
fn add_controls(ui: &mut Ui, state: State<'_>, model: &Path, reason: Option<&str>, actions: &mut Actions) {
    ui.horizontal_wrapped(|ui| {
        let mut name = state.models.name().to_owned();
        let edit = theme::text_field(ui, true, egui::TextEdit::singleline(&mut name).desired_width(240.0));
        edit.widget_info(|| {
            let mut info = egui::WidgetInfo::labeled(egui::WidgetType::TextEdit, true, "Model name");
            info.current_text_value = Some(name.clone());
            info
        });
        if name != state.models.name() {
            actions.send(ModelsAction::Name(name.clone()));
        }
        let is_entered = edit.lost_focus() && ui.input(|i| i.key_pressed(egui::Key::Enter));
        let is_unnamed = crate::training::plan::clean_name(&name).is_empty();
        let reason = reason.or(is_unnamed.then_some("Enter a name first."));
        let may = reason.is_none();
        let add = named_primary_button(ui, may, icon::PLUS, "Add to my models");
        let add = add.on_disabled_hover_text(reason.unwrap_or_default());
        if add.clicked() || (is_entered && may) {
            actions.send(ModelsAction::Add);
        }
        if named_button(ui, true, icon::X, "Remove from the list").clicked() {
            actions.send(ModelsAction::Forget(model.to_owned()));
        }
    });
}

fn quantize_controls(ui: &mut Ui, state: State<'_>, is_idle: bool, actions: &mut Actions) {
    heading(ui, "Quantize");
    let modes = [
        (QuantizeMode::Static, "Static", "Ranges are determined once, from the open stacks"),
        (QuantizeMode::Dynamic, "Dynamic", "Ranges are determined whenever the model runs; needs no stacks"),
        (QuantizeMode::Qat, "With training", "Static; the weights are trained if too much accuracy is lost"),
    ];
    ui.horizontal_wrapped(|ui| {
        for (mode, name, hint) in modes {
            if ui.selectable_label(state.models.mode() == mode, name).on_hover_text(hint).clicked() {
                actions.send(ModelsAction::QuantizeMode(mode));
            }
        }
    });
    ui.horizontal_wrapped(|ui| {
        ui.label("Max. relative error");
        let mut budget = state.models.accuracy_budget();
        if number_field(ui, &mut budget, 0.001..=0.5, 0.001, "Maximum relative error") {
            actions.send(ModelsAction::AccuracyBudget(budget));
        }
        if state.models.mode() == QuantizeMode::Qat {
            ui.label("Minutes");
            let mut minutes = state.models.qat_minutes();
            if number_field(ui, &mut minutes, 0.1..=600.0, 0.5, "Minutes of training") {
                actions.send(ModelsAction::QatMinutes(minutes));
            }
        }
    });
    quantize_options(ui, state, actions);
    let stacks = state.documents.all().len();
    match (state.models.mode(), stacks) {
        (QuantizeMode::Dynamic, _) => {}
        (_, 0) => _ = weak(ui, "No stack is open: the model's test tensors are used for calibration."),
        (_, 1) => _ = weak(ui, "The open stack is used for calibration."),
        (_, n) => _ = weak(ui, format!("The {n} open stacks are used for calibration.")),
    }
    let quantize = named_button(ui, is_idle, icon::PACKAGE, "Quantize");
    if quantize.on_disabled_hover_text(why_not(state)).clicked() {
        actions.send(ModelsAction::Quantize);
    }
}

/// Draws what is rarely changed about a quantization.
fn quantize_options(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    if state.models.mode() == QuantizeMode::Qat {
        let steps = OptionalNumber {
            name: "Max. training steps",
            unit: "",
            hint: "One tile per step; training ends after these steps or the minutes, whichever comes first",
            unset: "automatic",
            first: 240,
            range: 1..=1_000_000,
        };
        if let Some(steps) = steps.show(ui, SettingRow::Line, state.models.qat_steps()) {
            actions.send(ModelsAction::QatSteps(steps));
        }
    }
    if let Some(model) = state.models.shown() {
        layers_in_float(ui, state.models.keep_float(model), actions);
    }
    let mut without_float = state.models.without_float();
    let hint = "Leave the float network out: the package is smaller, but cannot run on GPUs";
    if theme::checkbox(ui, &mut without_float, "Without float network").on_hover_text(hint).changed() {
        actions.send(ModelsAction::WithoutFloat(without_float));
    }
}

/// Draws the names of the layers that stay in float.
fn layers_in_float(ui: &mut Ui, typed: &str, actions: &mut Actions) {
    let mut text = typed.to_owned();
    let row = ui.horizontal(|ui| {
        ui.label("Layers in float");
        let edit = egui::TextEdit::singleline(&mut text).hint_text("chosen by the error").desired_width(240.0);
        theme::text_field(ui, true, edit)
    });
    row.inner.widget_info(|| {
        let mut info = egui::WidgetInfo::labeled(egui::WidgetType::TextEdit, true, "Names of layers in float");
        info.current_text_value = Some(text.clone());
        info
    });
    let hint = "Names of layers that stay in float, separated by commas. The result of a quantization names the layers that it \
                left in float; a name that the model lacks is refused with the names of all";
    row.inner.on_hover_text(hint);
    if text != typed {
        actions.send(ModelsAction::KeepFloat(text));
    }
}

fn export_controls(ui: &mut Ui, state: State<'_>, is_idle: bool, actions: &mut Actions) {
    heading(ui, "Export");
    ui.horizontal_wrapped(|ui| {
        for format in ExportFormat::ALL {
            let (sign, name) = match format {
                ExportFormat::Bioimageio => (icon::PACKAGE, "bioimage.io package…"),
                ExportFormat::Onnx => (icon::GRAPH, "ONNX…"),
                ExportFormat::Safetensors => (icon::FILE, "Weights (safetensors)…"),
            };
            let export = named_button(ui, is_idle, sign, name);
            if export.on_disabled_hover_text(why_not(state)).clicked() {
                actions.send(ModelsAction::AskExport(format));
            }
        }
    });
}

fn removal_dialog(ctx: &egui::Context, state: State<'_>, actions: &mut Actions) {
    let Some(model) = state.models.removal() else { return };
    let response = theme::dialog(ctx, "remove model").show(ctx, |ui| {
        ui.set_width(420.0);
        ui.heading(format!("Remove {}?", stem(model)));
        ui.add_space(theme::GAP);
        // Whether it is a folder or a file is only known to the disk thread.
        let text = "A package folder is deleted, unless it was changed since it was written. A single file is renamed, \
                    so that it is no longer listed.";
        ui.add(egui::Label::new(text).wrap());
        weak(ui, model.display().to_string());
        ui.add_space(theme::GROUP_GAP);
        ui.horizontal(|ui| {
            let keep = ui.button("Keep model").clicked().then_some(false);
            keep.or_else(|| ui.button("Remove model").clicked().then_some(true))
        })
        .inner
    });
    if let Some(remove) = response.inner.or_else(|| response.should_close().then_some(false)) {
        actions.send(ModelsAction::AnswerRemove(remove));
    }
}
