//! The training wizard: the list of steps on the right, the current page in the center.

mod cards;
mod curves;
mod data;
mod files;
mod further;
mod options;
mod progress;
mod results;
mod save_and_use;
mod search;
mod start;

pub(super) use progress::{is_ending, job_share};

use super::{filled_button, named_primary_button, weak};
use crate::action::Actions;
use crate::document::file_name;
use crate::effect::Wake;
use crate::number_text::counted;
use crate::state::State;
use crate::theme;
use crate::training::models::Saving;
use crate::training::plan::WizardStep;
use crate::training::run::{RunState, TrainingRun};
use crate::training::thumbs::Thumbs;
use crate::training::{Check, TrainingAction, Wizard};
use crate::work::JobState;
use cytoscope_profile::count_text;
use cytoscope_train::TrainStart;
use cytoscope_training_data::TrainingTask;
use eframe::egui::{self, Margin, RichText, Ui, vec2};
use egui_phosphor::regular as icon;
use std::sync::Arc;

/// Height of the navigation bar in points.
pub(crate) const FOOT: f32 = 56.0;
/// Maximum width of a page in points; longer lines are hard to read.
const PAGE_WIDTH: f32 = 900.0;

/// Width in points that the field of the model's name leaves to the button that saves the model, with the space between them.
const SAVE_BUTTON_WIDTH: f32 = 200.0;

/// State that the pages keep between frames.
pub(crate) struct TrainPanel {
    /// Thumbnails of the training pairs.
    thumbs: Thumbs,
    /// Number of the data check that thumbnails and details belong to.
    checks: u64,
    /// Details of this check; `None` until its report is shown.
    details: Option<data::CheckDetails>,
    /// Whether the loss axis is logarithmic.
    log_loss: bool,
}

impl TrainPanel {
    /// Pages that call `wake` when a thumbnail is ready.
    pub(super) fn new(wake: &Wake) -> Self {
        Self { thumbs: Thumbs::new(Arc::clone(wake)), checks: 0, details: None, log_loss: false }
    }
}

/// The filled button by which a page continues; the icon `sign` follows its text.
fn primary_button(ui: &mut Ui, enabled: bool, sign: &str, name: &str) -> egui::Response {
    let label = RichText::new(format!("{name}  {sign}")).size(15.0).strong();
    let button = filled_button(label, enabled).min_size(vec2(120.0, theme::MAIN_BUTTON_HEIGHT));
    named(ui.add_enabled(enabled, button), enabled, name)
}

/// Draws a row of buttons that keep their ids while rows above them come and go; egui would otherwise lose a click during
/// which the ids change. `name` is unique in the window.
fn button_row<R>(ui: &mut Ui, name: &str, add: impl FnOnce(&mut Ui) -> R) -> R {
    let row = egui::UiBuilder::new().id(egui::Id::new(name));
    ui.scope_builder(row, |ui| ui.horizontal_wrapped(add).inner).inner
}

/// A plain button with the icon `sign` before its text.
fn icon_text_button(ui: &mut Ui, enabled: bool, sign: &str, name: &str) -> egui::Response {
    named(ui.add_enabled(enabled, egui::Button::new(format!("{sign}  {name}"))), enabled, name)
}

fn named(response: egui::Response, enabled: bool, name: &str) -> egui::Response {
    response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, enabled, name));
    response
}

/// A text field for the name of the model.
fn name_field(ui: &mut Ui, name: &str, enabled: bool, actions: &mut Actions) {
    let mut text = name.to_owned();
    let width = (ui.available_width() - SAVE_BUTTON_WIDTH).clamp(120.0, 300.0);
    let edit = egui::TextEdit::singleline(&mut text).desired_width(width);
    let edit = theme::text_field(ui, enabled, edit);
    edit.widget_info(|| {
        let mut info = egui::WidgetInfo::labeled(egui::WidgetType::TextEdit, true, "Name of the model");
        info.current_text_value = Some(text.clone());
        info
    });
    if text != name {
        actions.send(TrainingAction::Name(text));
    }
}

/// Draws a section title.
fn title(ui: &mut Ui, text: &str) {
    ui.add_space(theme::GROUP_GAP);
    ui.label(RichText::new(text).strong().size(15.0));
}

/// Draws the headline of a page with an optional sentence below.
fn page_header(ui: &mut Ui, text: &str, description: &str) {
    ui.label(RichText::new(text).strong().size(21.0));
    if !description.is_empty() {
        ui.add(egui::Label::new(RichText::new(description).weak()).wrap());
    }
    ui.add_space(theme::GROUP_GAP);
}

/// Draws wrapped text in a color.
fn colored(ui: &mut Ui, color: egui::Color32, text: impl Into<String>) -> egui::Response {
    ui.add(egui::Label::new(RichText::new(text).color(color)).wrap())
}

/// Offers to continue a training run that an earlier window did not finish.
pub(super) fn training_bar(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let wizard = state.wizard();
    if !wizard.offer {
        return;
    }
    let frame = egui::Frame::new().fill(ui.visuals().faint_bg_color).inner_margin(Margin::symmetric(10, 6));
    egui::Panel::top("unfinished training").frame(frame).show(ui, |ui| {
        ui.horizontal(|ui| {
            ui.label(RichText::new(icon::GRADUATION_CAP).size(16.0).color(theme::ACCENT));
            ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
                let later = ui.button("Later").on_hover_text("The training run stays under Train");
                if named(later, true, "Continue training later").clicked() {
                    actions.send(TrainingAction::Later);
                }
                let button = named_primary_button(ui, true, icon::PLAY, "Continue");
                if named(button, true, "Continue the training run").clicked() {
                    actions.send(TrainingAction::Continue);
                }
                // The buttons keep their place beside a long name.
                ui.with_layout(egui::Layout::left_to_right(egui::Align::Center), |ui| {
                    let text = format!("The training run of {} was not finished.", wizard.plan.name);
                    ui.add(egui::Label::new(text).truncate());
                });
            });
        });
    });
}

/// Summary of the choices of a step.
fn step_summary(state: State<'_>, step: WizardStep) -> String {
    let wizard = state.wizard();
    let plan = &wizard.plan;
    match step {
        WizardStep::Task => match plan.task {
            TrainingTask::Segmentation if plan.foreground_only => "Segment foreground".to_owned(),
            TrainingTask::Segmentation => "Segment objects".to_owned(),
            TrainingTask::LabelFree => "Predict a stain".to_owned(),
        },
        WizardStep::Data => match (&plan.data, &wizard.check) {
            (None, _) => "Not chosen".to_owned(),
            (Some(path), Check::Done(report)) => {
                let usable = report.report.pairs.iter().filter(|p| p.usable).count();
                format!("{} · {}", file_name(path), counted(usable as u64, "pair"))
            }
            (Some(path), _) => file_name(path),
        },
        WizardStep::Start if plan.step < WizardStep::Start => String::new(),
        WizardStep::Start => {
            let from = match &plan.from {
                TrainStart::Scratch => "From scratch".to_owned(),
                TrainStart::Model(path) => start::start_name(state, path),
            };
            format!("{from} · {} min", plan.minutes)
        }
        WizardStep::Train => {
            let job = wizard.run.job().and_then(|id| state.jobs.get(id));
            run_summary(&wizard.run, wizard.report.is_some(), job.is_some_and(|job| job.state == JobState::Queued))
        }
        WizardStep::Results => wizard.report.as_ref().map_or_else(String::new, |r| results::short(r)),
        WizardStep::Use => plan.saved.as_deref().map_or_else(String::new, |p| format!("Saved as {}", file_name(p))),
    }
}

/// Summary of a training run; `is_done` says whether an earlier one has a report, and `is_queued` whether it waits for another job.
fn run_summary(run: &TrainingRun, is_done: bool, is_queued: bool) -> String {
    match &run.state {
        RunState::Idle if is_done => "Done".to_owned(),
        RunState::Idle => String::new(),
        RunState::Running(_) | RunState::Finishing(_) if is_queued => "Waiting".to_owned(),
        RunState::Running(_) if run.steps > 0 => {
            format!("Step {} of {}", count_text(run.step()), count_text(run.steps))
        }
        RunState::Running(_) => "Preparing".to_owned(),
        RunState::Pausing(_) => "Pausing…".to_owned(),
        RunState::Finishing(_) => "Finishing…".to_owned(),
        RunState::Stopping(_) => "Stopping…".to_owned(),
        RunState::Paused => "Paused".to_owned(),
        RunState::Failed(_) => "Failed".to_owned(),
    }
}

/// Draws the list of steps on the right.
pub(super) fn training_panel(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let wizard = state.wizard();
    let open = wizard.plan.step;
    for (i, step) in WizardStep::ALL.into_iter().enumerate() {
        let (may, is_open) = (wizard.can_open(step), step == open);
        let done = step < open;
        let summary = step_summary(state, step);
        let response = step_row(ui, i + 1, step.title(), &summary, may || is_open, is_open, done);
        if response.clicked() {
            actions.send(TrainingAction::Step(step));
        }
    }
    ui.add_space(theme::GROUP_GAP);
    let hint = match open {
        WizardStep::Task | WizardStep::Data => "Everything runs on this machine. Images are only read.",
        WizardStep::Start => "Fine-tuning a model for similar images needs fewer pairs and less time.",
        WizardStep::Train => {
            "Predictions wait during training: pause the training run to predict, and continue it later. Closing the \
             window also pauses it."
        }
        WizardStep::Results => "Scores are measured on the validation set.",
        WizardStep::Use => "Saved models are listed in Predict.",
    };
    weak(ui, hint);
}

/// Draws the page of the current step.
pub(super) fn training_page(ui: &mut Ui, state: State<'_>, panel: &mut TrainPanel, actions: &mut Actions) {
    let step = state.wizard().plan.step;
    let frame = egui::Frame::new().fill(ui.visuals().panel_fill).inner_margin(Margin::symmetric(24, 10));
    egui::Panel::bottom("training steps").frame(frame).show(ui, |ui| {
        ui.horizontal(|ui| {
            // The buttons are below the page, also in a wide window.
            ui.set_max_width(PAGE_WIDTH.min(ui.available_width()));
            back_and_next(ui, state, step, actions);
        });
    });
    let page = egui::ScrollArea::vertical().id_salt(("training page", step)).auto_shrink([false; 2]);
    page.show(ui, |ui| {
        egui::Frame::new().inner_margin(Margin::symmetric(24, 20)).show(ui, |ui| {
            ui.set_max_width(PAGE_WIDTH.min(ui.available_width()));
            match step {
                WizardStep::Task => task_page(ui, state, actions),
                WizardStep::Data => data::data_page(ui, state, panel, actions),
                WizardStep::Start => start::start_page(ui, state, actions),
                WizardStep::Train => progress::progress_page(ui, state, panel, actions),
                WizardStep::Results => results::results_page(ui, state, panel),
                WizardStep::Use => save_and_use::use_page(ui, state, actions),
            }
        });
    });
}

fn back_and_next(ui: &mut Ui, state: State<'_>, step: WizardStep, actions: &mut Actions) {
    let wizard = state.wizard();
    let back = step.back().filter(|b| wizard.can_open(*b) && step != WizardStep::Results);
    let button =
        egui::Button::new(format!("{}  Back", icon::ARROW_LEFT)).min_size(vec2(80.0, theme::MAIN_BUTTON_HEIGHT));
    let response = ui.add_enabled(back.is_some(), button);
    if named(response, back.is_some(), "Back").clicked()
        && let Some(back) = back
    {
        actions.send(TrainingAction::Step(back));
    }
    if step == WizardStep::Use {
        // Not where Next was on the page before: a double click on that would leave the page.
        let may = wizard.saving == Saving::No;
        let another = icon_text_button(ui, may, icon::PLUS, "Train another model");
        if another.on_disabled_hover_text(save_and_use::WAIT_FOR_SAVING).clicked() {
            actions.send(TrainingAction::Another);
        }
    }
    ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| match step {
        WizardStep::Start => {
            let reason = reason_against_training(state).map(str::to_owned).or_else(|| wizard.budget_problem());
            let start = primary_button(ui, reason.is_none(), icon::GRADUATION_CAP, "Start training");
            if start.on_disabled_hover_text(reason.as_deref().unwrap_or_default()).clicked() {
                actions.send(TrainingAction::Start);
            }
            if let Some(reason) = &reason {
                beside_button(ui, reason);
            }
        }
        WizardStep::Use => {}
        _ => {
            let next = step.next().filter(|n| wizard.can_open(*n));
            let response = primary_button(ui, next.is_some(), icon::ARROW_RIGHT, "Next");
            if let (true, Some(next)) = (response.clicked(), next) {
                actions.send(TrainingAction::Step(next));
            }
            if let Some(reason) = next_disabled_reason(wizard, step).filter(|_| next.is_none()) {
                response.on_disabled_hover_text(reason);
                beside_button(ui, reason);
            }
        }
    });
}

/// Draws the reason why the button at its right is disabled. A narrow window has little space beside the buttons.
fn beside_button(ui: &mut Ui, reason: &str) {
    ui.add(egui::Label::new(RichText::new(reason).weak().size(12.0)).truncate());
}

/// Why no training run can start now; `None` if one can.
fn reason_against_training(state: State<'_>) -> Option<&'static str> {
    let wizard = state.wizard();
    let reason = state.reason_against_jobs();
    if reason.is_some() {
        reason
    } else if matches!(wizard.check, Check::Running(_)) {
        Some("Wait until the data have been checked.")
    } else if !wizard.is_usable() {
        Some("Choose data that can be used for training first.")
    } else if wizard.saving != Saving::No {
        Some("Wait until the model has been saved.")
    } else {
        reason_against_running(state)
    }
}

/// Why no training run can run now, whatever its data; `None` if one can.
fn reason_against_running(state: State<'_>) -> Option<&'static str> {
    if state.jobs.is_searching() {
        Some("Wait until the search for settings has finished, or cancel it.")
    } else if state.jobs.tuning().is_some() {
        Some("Wait until tuning has finished, or cancel it: training would distort the timing.")
    } else {
        state.reason_against_jobs()
    }
}

fn next_disabled_reason(wizard: &Wizard, step: WizardStep) -> Option<&'static str> {
    match (step, &wizard.check) {
        (WizardStep::Data, Check::None) => Some("Choose data first."),
        (WizardStep::Data, Check::Running(_)) => Some("Checking the data…"),
        (WizardStep::Data, Check::Failed(_)) => Some("These data cannot be used."),
        (WizardStep::Data, Check::Done(_)) if !wizard.is_usable() => Some("No pair can be used yet."),
        (WizardStep::Train, _) => match wizard.run.state {
            RunState::Idle => None,
            RunState::Paused => Some("Continue the training run, or finish it now."),
            RunState::Failed(_) => Some("The training run failed."),
            _ => Some("Wait until the training run has ended."),
        },
        _ => None,
    }
}

fn task_page(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    page_header(ui, "Choose a task", "The model is trained on your pairs: images, each with its target.");
    let tasks = [
        (
            TrainingTask::Segmentation,
            "Segment objects",
            "Finds nuclei or cells in an image. Pairs are images with label images, in which every object has its \
             own number.",
        ),
        (
            TrainingTask::LabelFree,
            "Predict a stain",
            "Predicts a fluorescent stain from an image without it. Pairs are two images of the same field of view.",
        ),
    ];
    let available = ui.available_width();
    // Both cards together are as wide as the page, or one is below the other.
    let width = if available < 560.0 { available.min(420.0) } else { ((available - 16.0) / 2.0).floor() };
    ui.horizontal_wrapped(|ui| {
        ui.spacing_mut().item_spacing = vec2(16.0, 16.0);
        for (task, name, description) in tasks {
            let selected = state.wizard().plan.task == task;
            if cards::task_card(ui, width, selected, task, name, description).clicked() {
                actions.send(TrainingAction::Task(task));
            }
        }
    });
}

/// Draws one row of the step list.
fn step_row(
    ui: &mut Ui,
    number: usize,
    name: &str,
    summary: &str,
    may: bool,
    open: bool,
    done: bool,
) -> egui::Response {
    let height = if summary.is_empty() { 34.0 } else { 46.0 };
    let sense = if may { egui::Sense::click() } else { egui::Sense::hover() };
    let (rect, response) = ui.allocate_exact_size(vec2(ui.available_width(), height), sense);
    response.widget_info(|| {
        egui::WidgetInfo::selected(egui::WidgetType::SelectableLabel, may, open, format!("Step {number}: {name}"))
    });
    let visuals = ui.visuals();
    let painter = ui.painter();
    if open || response.hovered() && may || response.has_focus() {
        let fill = if open { visuals.widgets.inactive.weak_bg_fill } else { visuals.faint_bg_color };
        painter.rect_filled(rect, 6.0, fill);
    }
    if response.has_focus() {
        let stroke = egui::Stroke::new(1.5, theme::ACCENT);
        painter.rect_stroke(rect, 6.0, stroke, egui::StrokeKind::Inside);
    }
    let strong = if may || done { visuals.strong_text_color() } else { visuals.weak_text_color() };
    let center = rect.left_center() + vec2(20.0, 0.0);
    let (fill, ink) = match (open, done) {
        (true, _) => (theme::ACCENT, theme::ON_ACCENT),
        (false, true) => (visuals.widgets.inactive.bg_fill, visuals.strong_text_color()),
        (false, false) => (visuals.widgets.inactive.weak_bg_fill, visuals.weak_text_color()),
    };
    painter.circle_filled(center, 11.0, fill);
    let sign = if done && !open { icon::CHECK.to_owned() } else { number.to_string() };
    painter.text(center, egui::Align2::CENTER_CENTER, sign, egui::FontId::proportional(12.0), ink);
    let left = rect.left() + 42.0;
    let width = rect.right() - left - 6.0;
    let title_y = if summary.is_empty() { rect.center().y - 9.0 } else { rect.top() + 5.0 };
    painter.text(egui::pos2(left, title_y), egui::Align2::LEFT_TOP, name, egui::FontId::proportional(14.0), strong);
    if !summary.is_empty() {
        let mut job = egui::text::LayoutJob::simple_singleline(
            summary.to_owned(),
            egui::FontId::proportional(12.0),
            visuals.weak_text_color(),
        );
        job.wrap = egui::text::TextWrapping::truncate_at_width(width);
        let galley = painter.layout_job(job);
        let is_elided = galley.elided;
        painter.galley(egui::pos2(left, rect.top() + 24.0), galley, visuals.weak_text_color());
        if is_elided {
            return response.on_hover_text(summary);
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_worker::JobId;

    #[test]
    fn the_summary_of_a_run_that_waits_for_another_job_says_so() {
        let mut run = TrainingRun::default();
        assert_eq!([true, false].map(|is_done| run_summary(&run, is_done, false)), ["Done", ""]);
        run.state = RunState::Running(JobId(1));
        assert_eq!([true, false].map(|is_queued| run_summary(&run, false, is_queued)), ["Waiting", "Preparing"]);
        // A continued run has made steps.
        run.steps = 10;
        assert_eq!([true, false].map(|is_queued| run_summary(&run, false, is_queued)), ["Waiting", "Step 0 of 10"]);
        run.state = RunState::Paused;
        assert_eq!(run_summary(&run, false, false), "Paused");
    }
}
