//! The Predict panel: model, channel and device, then interactive refinement of the segmentation.

mod inputs;
mod options;
mod refine;

use super::device_lists::{device_list, offered_precisions, precision_list};
use super::library::with_whole_sizes;
use super::performance::{inference_text, performance_choice, tune_button};
use super::{SettingRow, heading, labeled_choice, main_button, weak};
use crate::action::Actions;
use crate::channels::chosen_output;
use crate::command::Command;
use crate::diameter::diameter_control;
use crate::display::DisplayAction;
use crate::document::Document;
use crate::jobs::JobsAction;
use crate::number_text::short_number;
use crate::preprocess::{StepEditor, copy_control, preprocessing_control};
use crate::state::State;
use crate::theme;
use crate::work::{JobState, JobView};
use cytoscope_engine::DeviceRequest;
use cytoscope_formats::SeriesChoice;
use cytoscope_pipeline::cards::ModelCard;
use cytoscope_pipeline::{ModelTask, OutputTensor, Preset, ProgressUnit};
use eframe::egui::{self, RichText, Ui};
use egui_commonmark::{CommonMarkCache, CommonMarkViewer};
use egui_phosphor::regular as icon;
use std::ops::Range;

/// Tooltip of the button that tunes predictions.
const TUNE_HINT: &str = "Measure devices, precisions, tiles and threads for this model with this stack, and save the fastest \
                         settings. This takes a few minutes and continues if the window is closed.";

/// State that the panel keeps between frames.
#[derive(Default)]
pub(crate) struct PredictPanel {
    commonmark: CommonMarkCache,
    steps: StepEditor,
}

/// Draws the panel; `visible_yx` are the rows and columns of the stack that the XY view shows, if it shows any.
pub(super) fn predict_panel(
    ui: &mut Ui,
    state: State<'_>,
    panel: &mut PredictPanel,
    visible_yx: Option<[Range<usize>; 2]>,
    actions: &mut Actions,
) {
    let Some(document) = state.document() else { return };
    let id = document.id;
    model_card(ui, state, document, panel, actions);
    input(ui, state, document, panel, visible_yx, actions);
    ui.add_space(theme::GROUP_GAP);
    match state.jobs.prediction(id) {
        Some(job) => job_progress(ui, job, actions),
        None => {
            let reason = state.reason_against_command(Command::Predict);
            let button = main_button(ui, reason.is_none(), icon::SPARKLE, "Predict");
            if button.on_disabled_hover_text(reason.unwrap_or_default()).clicked() {
                actions.command(Command::Predict);
            }
            // Label images are not predicted.
            let series = SeriesChoice::All.chosen_indices(document.image.meta()).map_or(1, |found| found.len());
            if series > 1 && queue_button(ui, &format!("Predict all {series} series"), reason) {
                actions.send(JobsAction::PredictAllSeries(id));
            }
            let stacks = state.documents.all().len();
            let reason = state.reason_against_command(Command::PredictAll);
            if stacks > 1 && queue_button(ui, &format!("Predict all {stacks} stacks"), reason) {
                actions.command(Command::PredictAll);
            }
            if state.model().is_some() {
                disabled_reason(ui, state);
            }
        }
    }
    last_failure(ui, state, id);
    refine::refine(ui, state, document, actions);
    // Settings that are rarely changed come last, so that the button is in sight in small windows, too.
    computation(ui, state, document, actions);
}

/// Draws a button that starts several predictions, unless there is a `reason` against it; returns whether it was clicked.
fn queue_button(ui: &mut Ui, text: &str, reason: Option<&str>) -> bool {
    let enabled = reason.is_none();
    let response = ui.add_enabled(enabled, egui::Button::new(format!("{}  {text}", icon::QUEUE)));
    response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, enabled, text));
    response.on_disabled_hover_text(reason.unwrap_or_default()).clicked()
}

fn disabled_reason(ui: &mut Ui, state: State<'_>) {
    if let Some(reason) = state.reason_against_predicting() {
        weak(ui, reason);
    }
}

fn model_card(ui: &mut Ui, state: State<'_>, document: &Document, panel: &mut PredictPanel, actions: &mut Actions) {
    ui.label(RichText::new("Model").strong());
    let Some(card) = state.model() else { return disabled_reason(ui, state) };
    let width = ui.available_width();
    model_list(ui, state, card, width, actions);
    if let Some((name, problem)) = state.jobs.unusable_choice(state.settings()) {
        let reason = problem.map_or_else(|| "it is not installed".to_owned(), str::to_owned);
        let used = super::distinct_title(card, state.jobs.models());
        let text =
            format!("{}  The selected model, {name}, cannot be used: {reason}. {used} is used instead.", icon::WARNING);
        ui.add(egui::Label::new(RichText::new(text).size(12.0)).wrap());
    }
    ui.add(egui::Label::new(&card.description).wrap());
    weak(ui, facts(card));
    about_model(ui, card, &mut panel.commonmark);
    voxel_warning(ui, document, card, actions);
}

/// Draws the documentation of a model, if it has one. Text is wrapped; wide tables are scrolled, as they would widen the
/// panel otherwise.
pub(super) fn about_model(ui: &mut Ui, card: &ModelCard, commonmark: &mut CommonMarkCache) {
    if card.documentation.is_empty() {
        return;
    }
    egui::CollapsingHeader::new("About this model").show(ui, |ui| {
        let (text, width) = (without_pictures(&card.documentation), ui.available_width());
        egui::ScrollArea::horizontal().id_salt("about this model").show(ui, |ui| {
            ui.set_max_width(width);
            CommonMarkViewer::new().show(ui, commonmark, &text);
        });
    });
}

/// Draws the list of models; `card` is the selected one.
pub(super) fn model_list(ui: &mut Ui, state: State<'_>, card: &ModelCard, width: f32, actions: &mut Actions) {
    let all = state.jobs.models();
    let title = super::distinct_title(card, all);
    let available_width = ui.available_width();
    let combo = egui::ComboBox::from_id_salt("model").selected_text(&title).width(width).truncate();
    let response = combo.show_ui(ui, |ui| {
        for model in all {
            let usable = model.problem.is_none();
            let text = if usable { super::distinct_title(model, all) } else { format!("{} (unusable)", model.name) };
            let button = egui::Button::selectable(model.name == card.name, super::item_text(&text));
            let response = ui.add_enabled(usable, button);
            let response = match &model.problem {
                Some(problem) => response.on_disabled_hover_text(problem),
                None => response.on_hover_text(&model.description),
            };
            if response.clicked() {
                actions.send(DisplayAction::Model(model.name.clone()));
                if model.name != card.name {
                    actions.send(JobsAction::ForgetRefined);
                }
            }
        }
    });
    response.response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::ComboBox, true, "Model"));
    if is_cut_in_list(ui, &title, available_width) {
        response.response.on_hover_text(title);
    }
}

/// Returns whether a closed list, which grows with its text up to this width, cuts it off.
fn is_cut_in_list(ui: &Ui, text: &str, available_width: f32) -> bool {
    let (spacing, font) = (ui.spacing(), egui::TextStyle::Button.resolve(ui.style()));
    let limit = available_width - 2.0 * spacing.button_padding.x - spacing.icon_width - spacing.icon_spacing;
    let text = text.to_owned();
    ui.ctx().fonts_mut(|fonts| fonts.layout_no_wrap(text, font, egui::Color32::PLACEHOLDER).size().x) > limit
}

fn voxel_warning(ui: &mut Ui, document: &Document, card: &ModelCard, actions: &mut Actions) {
    if !document.voxel_known {
        let text = if card.object_diameter_um.is_some() {
            "Voxel size unknown: diameters are in voxels."
        } else if card.voxel_um.is_some() {
            "Voxel size unknown: the model's is used."
        } else {
            "Voxel size unknown: volumes are in voxels."
        };
        unknown_voxel_size(ui, document, text, actions);
    }
}

/// Draws what follows from an unknown voxel size, and a link to set it.
pub(super) fn unknown_voxel_size(ui: &mut Ui, document: &Document, text: &str, actions: &mut Actions) {
    ui.label(RichText::new(format!("{}  {text}", icon::WARNING)).size(12.0));
    if ui.link(RichText::new("Set voxel size…").size(12.0)).clicked() {
        actions.send(document.ask_voxel_size());
    }
}

fn input(
    ui: &mut Ui,
    state: State<'_>,
    document: &Document,
    panel: &mut PredictPanel,
    visible_yx: Option<[Range<usize>; 2]>,
    actions: &mut Actions,
) {
    inputs::channel_choice(ui, state, document, actions);
    inputs::input_files(ui, state, document, actions);
    output_choice(ui, state, actions);
    preprocessing_control(ui, document, &mut panel.steps, actions);
    copy_control(ui, document, visible_yx, state.reason_against_jobs(), &mut panel.steps, actions);
    if let Some(card) = state.model() {
        diameter_control(ui, state, card, actions);
    }
    if document.extents.times > 1 {
        let mut only = state.jobs.predicts_one_time(document.id);
        let hint = "Leave out the other time points of this stack; the results replace those of all time points";
        if theme::checkbox(ui, &mut only, "Only this time point").on_hover_text(hint).changed() {
            actions.send(JobsAction::OneTime { document: document.id, only });
        }
    }
}

/// Draws the settings of how predictions are computed, which results they write, and where.
fn computation(ui: &mut Ui, state: State<'_>, document: &Document, actions: &mut Actions) {
    heading(ui, "Computation");
    device_choice(ui, state, actions);
    precision_choice(ui, state, actions);
    tile_choice(ui, state, actions);
    options::blending(ui, state, actions);
    options::limits(ui, state, actions);
    tuned_choice(ui, state, actions);
    if state.jobs.has_engine() && state.model().is_some() && tune_button(ui, state, TUNE_HINT, actions) {
        actions.send(JobsAction::Tune(document.id));
    }
    device_reason(ui, state, document.id, actions);
    options::format_choice(ui, state, actions);
    options::outputs_choice(ui, state, actions);
    options::results_folder(ui, state, document, actions);
}

/// Choice of the output of the model that is predicted, if it has several.
fn output_choice(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let Some(card) = state.model().filter(|card| card.outputs.len() > 1) else { return };
    let before = chosen_output(card, state.settings()).cloned();
    let mut output = before.clone();
    let all = "All outputs";
    let shown = match &before {
        None => card.outputs.first().map_or("", |first| first.id.as_str()),
        Some(OutputTensor::All) => all,
        Some(OutputTensor::Id(id)) => id.as_str(),
    };
    let response = labeled_choice(ui, "output", "Output", shown, |ui| {
        for (at, one) in card.outputs.iter().enumerate() {
            let choice = (at > 0).then(|| OutputTensor::Id(one.id.clone()));
            ui.selectable_value(&mut output, choice, one.id.as_str());
        }
        if card.can_join_outputs {
            ui.selectable_value(&mut output, Some(OutputTensor::All), all);
        }
    });
    response.on_hover_text("Output of the model to predict; the others are not written");
    if output != before {
        actions.send(DisplayAction::OutputOfModel { model: card.name.clone(), output });
        actions.send(JobsAction::ForgetRefined);
    }
}

/// Choice of the device.
pub(super) fn device_choice(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    if let Some(device) = device_list(ui, SettingRow::Line, "device", state.jobs.devices(), state.settings().device) {
        actions.send(DisplayAction::Device(device));
    }
}

/// Choice of the precision among those that the device supports, and for which the model has a network.
pub(super) fn precision_choice(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let settings = state.settings();
    let has_int8 = state.model().is_none_or(|card| card.has_int8);
    let all = offered_precisions(state.jobs.devices(), settings.device, has_int8);
    if let Some(precision) =
        precision_list(ui, SettingRow::Line, "precision", &all, "Auto (fast and accurate)", settings.precision)
    {
        actions.send(DisplayAction::Precision(precision));
    }
}

/// The tile size, if one was chosen, with a button that returns to the automatic one.
fn tile_choice(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let Some([z, y, x]) = state.jobs.tile() else { return };
    ui.horizontal(|ui| {
        ui.label(format!("Tiles of {z} × {y} × {x}"));
        let response =
            ui.button("Automatic tiles").on_hover_text("Choose the tile size by computation time and memory");
        if response.clicked() {
            actions.send(JobsAction::Tile(None));
        }
    });
}

/// Choice among the presets that were tuned for the model on this machine, if there are any.
fn tuned_choice(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let profile = state.model().and_then(|card| state.jobs.machine_profile(&card.title));
    let Some(profile) = profile.filter(|profile| !profile.inference.is_empty()) else { return };
    let describe = |preset: Preset| profile.inference.get(&preset).map(inference_text);
    if let Some(request) = performance_choice(ui, SettingRow::Line, state.settings().performance, profile, &describe) {
        actions.send(DisplayAction::Performance(request));
    }
}

/// Why the latest prediction ran on its device, and the switch that measures the devices again for the next one.
fn device_reason(ui: &mut Ui, state: State<'_>, id: u64, actions: &mut Actions) {
    if let Some(why) = why_device(state, id) {
        let text = RichText::new(why).weak().size(12.0);
        ui.add(egui::Label::new(text).wrap().selectable(true));
    }
    if state.settings().device != DeviceRequest::Auto {
        return;
    }
    let mut again = state.jobs.remeasure();
    let response = theme::checkbox(ui, &mut again, "Measure again");
    let hint = "The next prediction measures the devices and precisions for its model, instead of using stored times";
    if response.on_hover_text(hint).changed() {
        actions.send(JobsAction::MeasureAgain(again));
    }
}

fn why_device(state: State<'_>, id: u64) -> Option<String> {
    let of = |j: &&JobView| j.purpose.document() == Some(id) && j.device.is_some();
    let device = state.jobs.all().iter().rev().find(of)?.device.as_ref()?;
    Some(format!("{}: {}", device.name, device.why))
}

fn job_progress(ui: &mut Ui, job: &JobView, actions: &mut Actions) {
    let title = match (&job.state, &job.progress) {
        (JobState::Queued, _) => "Waiting".to_owned(),
        (_, None) => "Starting".to_owned(),
        (_, Some(progress)) => super::capitalized(progress.stage.name()),
    };
    let share = job.share();
    let done = match job.preparing_secs() {
        // How long it takes is unknown.
        Some((_, secs)) => format!("{secs} s"),
        None => format!("{:.0} %", share * 100.0),
    };
    ui.horizontal(|ui| {
        ui.label(RichText::new(title).strong());
        ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| super::end_text(ui, done));
    });
    ui.add(egui::ProgressBar::new(share).desired_height(10.0));
    let mut facts = Vec::new();
    if let Some(progress) = &job.progress {
        facts.extend(super::remaining_text(progress));
        if progress.rate > 0.0 && progress.unit == ProgressUnit::Voxels {
            facts.push(format!("{:.1} million voxels/s", progress.rate / 1e6));
        }
    }
    weak(ui, facts.join(" · "));
    if let Some(note) = &job.continued {
        weak(ui, super::capitalized(note));
    }
    if ui.button(format!("{}  Cancel", icon::STOP_CIRCLE)).clicked() {
        actions.send(JobsAction::Cancel(job.id));
    }
}

fn last_failure(ui: &mut Ui, state: State<'_>, id: u64) {
    let last = state.jobs.all().iter().rev().find(|j| j.purpose.document() == Some(id));
    if let Some(JobView { state: JobState::Failed(reason), .. }) = last {
        ui.add_space(6.0);
        ui.colored_label(theme::bad(ui.visuals()), format!("{}  Failed", icon::WARNING_CIRCLE));
        ui.add(egui::Label::new(RichText::new(reason).size(12.0)).wrap().selectable(true));
    }
}

/// Task, voxel size, object diameter and license of a model, with separators between them.
pub(super) fn facts(card: &ModelCard) -> String {
    let mut facts = Vec::new();
    match card.task {
        Some(ModelTask::Segmentation) => facts.push("segments objects".to_owned()),
        Some(ModelTask::LabelFree) => facts.push("predicts a stain".to_owned()),
        None => {}
    }
    if let Some([z, y, x]) = card.voxel_um.map(|um| um.map(short_number)) {
        facts.push(format!("made for {z} × {y} × {x} µm voxels"));
    }
    if let Some(diameter) = card.object_diameter_um {
        facts.push(format!("rescales objects to {} µm", short_number(diameter)));
    }
    if card.input_channels > 1 {
        facts.push(format!("{} input channels", card.input_channels));
    }
    if let Some(license) = &card.license {
        facts.push(license.clone());
    }
    // No line begins with a separator or a unit.
    with_whole_sizes(&super::capitalized(&facts.join("\u{a0}· ")))
}

/// The text of a model card without image lines, whose files are not shown.
fn without_pictures(text: &str) -> String {
    text.lines().filter(|line| !line.trim_start().starts_with("![")).fold(String::new(), |all, line| all + line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_pipeline::cards::card;
    use std::path::Path;

    #[test]
    fn a_list_shows_its_text_in_a_tooltip_only_if_it_cuts_it_off() {
        let ctx = egui::Context::default();
        crate::theme::install(&ctx);
        let title = "A model with a long title";
        let mut found = Vec::new();
        let _ = ctx.run_ui(egui::RawInput::default(), |ui| {
            found.clear();
            for (index, width) in [600.0, 90.0].into_iter().enumerate() {
                ui.scope(|ui| {
                    ui.set_max_width(width);
                    let is_cut = is_cut_in_list(ui, title, ui.available_width());
                    let mut drawn_width = |mode: egui::TextWrapMode| {
                        let is_whole = mode == egui::TextWrapMode::Extend;
                        let list = egui::ComboBox::from_id_salt((index, is_whole)).selected_text(title).width(40.0);
                        list.wrap_mode(mode).show_ui(ui, |_| {}).response.rect.width()
                    };
                    let truncated = drawn_width(egui::TextWrapMode::Truncate);
                    found.push((is_cut, truncated < drawn_width(egui::TextWrapMode::Extend)));
                });
            }
        });
        assert_eq!(found, [(false, false), (true, true)]);
    }

    #[test]
    fn no_line_about_a_model_begins_with_a_separator_or_a_unit() {
        let card = ModelCard {
            task: Some(ModelTask::Segmentation),
            object_diameter_um: Some(12.0),
            license: Some("MIT".to_owned()),
            ..card("own", Path::new("/no/such/model"))
        };
        assert_eq!(facts(&card), "Segments objects\u{a0}· rescales objects to 12\u{a0}µm\u{a0}· MIT");
    }

    #[test]
    fn images_in_model_cards_are_removed() {
        assert_eq!(without_pictures("# A\n\n![b](c.png)\nsee ![d] here\n"), "# A\n\nsee ![d] here\n");
    }
}
