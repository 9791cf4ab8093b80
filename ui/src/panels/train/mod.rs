//! The training wizard: the list of steps on the right, the current page in the centre.

mod cards;
mod data;
mod progress;
mod results;
mod start;
mod usage;

use super::weak;
use crate::app::Workbench;
use crate::document::file_name;
use crate::theme;
use crate::training::Check;
use crate::training::models::Saving;
use crate::training::plan::{SCRATCH, WizardStep};
use crate::training::run::RunState;
use cytoscope_samples::TrainingTask;
use cytoscope_train::{ChosenNetwork, TrainReport};
use eframe::egui::{self, Margin, RichText, Ui, vec2};
use egui_phosphor::regular as icon;

/// Pairs and problems listed initially.
pub(crate) const LISTED: usize = 40;
/// Height of the navigation bar in points.
pub(crate) const FOOT: f32 = 56.0;
/// Maximum width of a page in points; longer lines are hard to read.
const PAGE_WIDTH: f32 = 900.0;

/// Summary of a finished training run in one sentence.
pub(crate) fn summary_sentence(report: &TrainReport) -> String {
    match (report.verdict, report.before.is_empty(), report.validation_pairs) {
        (ChosenNetwork::Start, ..) if report.only_segmentation_improved() => {
            "No trained network scored better than the start model, so its network is kept. The postprocessing was \
             adapted to these images."
                .to_owned()
        }
        (ChosenNetwork::Start, ..) => {
            "No trained network scored better than the start model, so the start model is kept.".to_owned()
        }
        (ChosenNetwork::Trained, _, 0) => {
            "The model was trained; there was no validation set to score it on.".to_owned()
        }
        (ChosenNetwork::Trained, true, _) => "The model was trained from scratch.".to_owned(),
        (ChosenNetwork::Trained, false, _) => "The trained model scores better than the start model.".to_owned(),
    }
}

/// A primary button.
fn primary_button(ui: &mut Ui, enabled: bool, sign: &str, name: &str) -> egui::Response {
    let label = RichText::new(format!("{name}  {sign}")).size(15.0).strong();
    let mut button = egui::Button::new(if enabled { label.color(theme::ON_ACCENT) } else { label })
        .min_size(vec2(120.0, theme::MAIN_BUTTON_HEIGHT));
    if enabled {
        button = button.fill(theme::ACCENT);
    }
    named(ui.add_enabled(enabled, button), enabled, name)
}

/// A button with an icon and a text.
fn icon_text_button(ui: &mut Ui, enabled: bool, sign: &str, name: &str) -> egui::Response {
    named(ui.add_enabled(enabled, egui::Button::new(format!("{sign}  {name}"))), enabled, name)
}

fn named(response: egui::Response, enabled: bool, name: &str) -> egui::Response {
    response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, enabled, name));
    response
}

/// Draws a section title.
fn title(ui: &mut Ui, text: &str) {
    ui.add_space(theme::GROUP_GAP);
    ui.label(RichText::new(text).strong().size(15.0));
}

/// Draws the headline of a page with an optional sentence below.
fn page_header(ui: &mut Ui, text: &str, sentence: &str) {
    ui.label(RichText::new(text).strong().size(21.0));
    if !sentence.is_empty() {
        ui.add(egui::Label::new(RichText::new(sentence).weak()).wrap());
    }
    ui.add_space(theme::GROUP_GAP);
}

/// Draws wrapped text in a colour.
fn colored(ui: &mut Ui, color: egui::Color32, text: impl Into<String>) -> egui::Response {
    ui.add(egui::Label::new(RichText::new(text).color(color)).wrap())
}

impl Workbench {
    /// Offers to continue a training run that an earlier window did not finish.
    pub(crate) fn training_bar(&mut self, ui: &mut Ui) {
        if !self.wizard.offer {
            return;
        }
        let name = self.wizard.plan.name.clone();
        let frame = egui::Frame::new().fill(ui.visuals().faint_bg_color).inner_margin(Margin::symmetric(10, 6));
        egui::Panel::top("unfinished training").frame(frame).show(ui, |ui| {
            ui.horizontal(|ui| {
                ui.label(RichText::new(icon::GRADUATION_CAP).size(16.0).color(theme::ACCENT));
                ui.label(format!("The training of {name} was not finished."));
                ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
                    let later = ui.button("Later").on_hover_text("The training run stays under Train");
                    if named(later, true, "Continue training later").clicked() {
                        self.wizard.offer = false;
                    }
                    let text = RichText::new("Continue").color(theme::ON_ACCENT);
                    let button = ui.add(egui::Button::new(text).fill(theme::ACCENT));
                    if named(button, true, "Continue the training").clicked() {
                        self.continue_training();
                    }
                });
            });
        });
    }

    /// Summary of the choices of a step.
    fn step_summary(&self, step: WizardStep) -> String {
        let wizard = &self.wizard;
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
                    format!("{} · {usable} pairs", file_name(path))
                }
                (Some(path), _) => file_name(path),
            },
            WizardStep::Start if plan.step < WizardStep::Start => String::new(),
            WizardStep::Start => {
                let from = if plan.from == SCRATCH { "From scratch".to_owned() } else { self.start_name() };
                format!("{from} · {} min", plan.minutes)
            }
            WizardStep::Train => match &wizard.run.state {
                RunState::Idle if wizard.report.is_some() => "Done".to_owned(),
                RunState::Idle => String::new(),
                RunState::Running(_) if wizard.run.steps > 0 => {
                    format!("Step {} of {}", wizard.run.step(), wizard.run.steps)
                }
                RunState::Running(_) => "Preparing".to_owned(),
                RunState::Pausing(_) => "Pausing…".to_owned(),
                RunState::Finishing(_) => "Finishing…".to_owned(),
                RunState::Stopping(_) => "Stopping…".to_owned(),
                RunState::Paused => "Paused".to_owned(),
                RunState::Failed(_) => "Failed".to_owned(),
            },
            WizardStep::Results => wizard.report.as_ref().map_or_else(String::new, |r| results::short(r)),
            WizardStep::Use => plan.saved.as_deref().map_or_else(String::new, |p| format!("Saved as {}", file_name(p))),
        }
    }

    /// Draws the list of steps on the right.
    pub(crate) fn training_panel(&mut self, ui: &mut Ui) {
        let open = self.wizard.plan.step;
        for (i, step) in WizardStep::ALL.into_iter().enumerate() {
            let (may, is_open) = (self.wizard.can_open(step), step == open);
            let done = step < open;
            let summary = self.step_summary(step);
            let response = step_row(ui, i + 1, step.title(), &summary, may || is_open, is_open, done);
            if response.clicked() {
                self.go_to_step(step);
            }
        }
        ui.add_space(theme::GROUP_GAP);
        let hint = match open {
            WizardStep::Task | WizardStep::Data => "Everything runs on this machine. Images are only read.",
            WizardStep::Start => "Fine-tuning a model for similar images needs fewer pairs and less time.",
            WizardStep::Train => {
                "Predictions wait during training: pause the training to predict, and continue it later. Closing the \
                 window also pauses it."
            }
            WizardStep::Results => "Scores are measured on the validation set.",
            WizardStep::Use => "Saved models are listed in Predict.",
        };
        weak(ui, hint);
    }

    /// Draws the page of the current step.
    pub(crate) fn training_page(&mut self, ui: &mut Ui) {
        let step = self.wizard.plan.step;
        let frame = egui::Frame::new().fill(ui.visuals().panel_fill).inner_margin(Margin::symmetric(24, 10));
        egui::Panel::bottom("training steps").frame(frame).show(ui, |ui| {
            ui.horizontal(|ui| self.back_and_next(ui, step));
        });
        let page = egui::ScrollArea::vertical().id_salt(("training page", step)).auto_shrink([false; 2]);
        page.show(ui, |ui| {
            egui::Frame::new().inner_margin(Margin::symmetric(24, 20)).show(ui, |ui| {
                ui.set_max_width(PAGE_WIDTH.min(ui.available_width()));
                match step {
                    WizardStep::Task => self.task_page(ui),
                    WizardStep::Data => self.data_page(ui),
                    WizardStep::Start => self.start_page(ui),
                    WizardStep::Train => self.training_progress_page(ui),
                    WizardStep::Results => self.results_page(ui),
                    WizardStep::Use => self.use_page(ui),
                }
            });
        });
    }

    fn back_and_next(&mut self, ui: &mut Ui, step: WizardStep) {
        let back = step.back().filter(|b| self.wizard.can_open(*b) && step != WizardStep::Results);
        let button =
            egui::Button::new(format!("{}  Back", icon::ARROW_LEFT)).min_size(vec2(80.0, theme::MAIN_BUTTON_HEIGHT));
        let response = ui.add_enabled(back.is_some(), button);
        if named(response, back.is_some(), "Back").clicked()
            && let Some(back) = back
        {
            self.go_to_step(back);
        }
        ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| match step {
            WizardStep::Start => {
                let idle = self.wizard.saving == Saving::No;
                let may = idle && self.wizard.is_usable() && self.options.program.is_some();
                if primary_button(ui, may, icon::GRADUATION_CAP, "Start training").clicked() {
                    self.start_training();
                }
            }
            WizardStep::Use => {
                let may = self.wizard.saving == Saving::No;
                if icon_text_button(ui, may, icon::PLUS, "Train another model").clicked() {
                    self.train_another();
                }
            }
            _ => {
                let next = step.next().filter(|n| self.wizard.can_open(*n));
                let response = primary_button(ui, next.is_some(), icon::ARROW_RIGHT, "Next");
                if let (true, Some(next)) = (response.clicked(), next) {
                    self.go_to_step(next);
                }
                self.next_disabled_reason(ui, step);
            }
        });
    }

    fn next_disabled_reason(&self, ui: &mut Ui, step: WizardStep) {
        let text = match (step, &self.wizard.check) {
            (WizardStep::Data, Check::None) => "Choose data first",
            (WizardStep::Data, Check::Running(_)) => "Checking the data…",
            (WizardStep::Data, Check::Failed(_)) => "No usable data there",
            (WizardStep::Data, Check::Done(_)) if !self.wizard.is_usable() => "No usable pair yet",
            _ => return,
        };
        ui.label(RichText::new(text).weak().size(12.0));
    }

    fn task_page(&mut self, ui: &mut Ui) {
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
                "Predicts a fluorescent stain from an image without it. Pairs are two images of the same field of \
                 view.",
            ),
        ];
        let narrow = ui.available_width() < 560.0;
        let width = if narrow { ui.available_width() } else { (ui.available_width() - 16.0) / 2.0 };
        ui.horizontal_wrapped(|ui| {
            ui.spacing_mut().item_spacing = vec2(16.0, 16.0);
            for (task, name, sentence) in tasks {
                let selected = self.wizard.plan.task == task;
                if cards::task_card(ui, width.min(420.0), selected, task, name, sentence).clicked() {
                    self.choose_task(task);
                }
            }
        });
    }
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
        painter.galley(egui::pos2(left, rect.top() + 24.0), galley, visuals.weak_text_color());
    }
    response
}
