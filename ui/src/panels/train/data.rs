//! The Data page: a folder or table, its pairs and their problems.

use super::{TrainPanel, colored, files, icon_text_button, named, page_header, title};
use crate::action::Actions;
use crate::document::file_name;
use crate::engine_notes::{data_message_in_window, message_in_window};
use crate::number_text::{counted, short_number};
use crate::opener::FileRequest;
use crate::panels::{capitalized, weak, with_stop};
use crate::state::State;
use crate::theme;
use crate::training::thumbs::{Thumb, ThumbStyle, Thumbs};
use crate::training::{Check, TrainingAction, Wizard};
use crate::work::{JobState, JobView};
use cytoscope_train::CheckReport;
use cytoscope_training_data::summary::ProblemKind;
use cytoscope_training_data::{Pair, PairSummary, Part, Problem, Severity, TrainingTask};
use eframe::egui::{self, RichText, Sense, Ui, vec2};
use egui_phosphor::regular as icon;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

/// Edge length of a thumbnail in points.
const THUMB: f32 = 64.0;
/// Up to this many problems are listed one by one, more are grouped by kind.
const ONE_BY_ONE: usize = 12;
/// Number of files listed per kind of problem.
const FILES_LISTED: usize = 200;
/// Label of the option to train on masks.
const FOREGROUND_ONLY: &str = "Foreground only";

/// Draws the page.
pub(super) fn data_page(ui: &mut Ui, state: State<'_>, panel: &mut TrainPanel, actions: &mut Actions) {
    if panel.checks != state.training.checks() {
        panel.checks = state.training.checks();
        panel.thumbs.clear();
        panel.details = None;
    }
    panel.thumbs.poll(ui.ctx());
    let wizard = state.wizard();
    let description = match wizard.plan.task {
        TrainingTask::Segmentation => {
            "A folder of images and label images, such as cell1.tif and cell1_masks.tif, or the folders images and \
             masks; or a table (CSV) with the columns raw and seg."
        }
        TrainingTask::LabelFree => {
            "A folder of pairs such as plate1_brightfield.tif and plate1_signal.tif; or a table (CSV) with the \
             columns brightfield and signal."
        }
    };
    page_header(ui, "Choose training data", description);
    choose_data(ui, state, actions);
    files::file_settings(ui, state, actions);
    match &wizard.check {
        Check::None if wizard.plan.data.is_some() => _ = weak(ui, "Waiting to check…"),
        Check::None => no_data(ui),
        Check::Running(id) => check_progress(ui, state.jobs.get(*id)),
        Check::Failed(reason) => {
            ui.add_space(theme::GROUP_GAP);
            let color = theme::bad(ui.visuals());
            colored(ui, color, format!("{}  {reason}", icon::WARNING_CIRCLE));
            ui.add_space(theme::GAP);
            check_again(ui, actions);
        }
        Check::Done(report) => {
            let details = panel.details.get_or_insert_with(|| CheckDetails::of(report));
            check_result(ui, wizard, report, details, &mut panel.thumbs, actions);
        }
    }
}

/// What the page shows of a check besides its report; too slow to compute in every frame.
pub(super) struct CheckDetails {
    /// The problems by kind.
    kinds: Vec<ProblemKind>,
    /// Of each checked pair, its index in the dataset, and the part of the split that contains it.
    pairs: Vec<(Option<usize>, Option<Part>)>,
}

impl CheckDetails {
    fn of(report: &CheckReport) -> Self {
        // Of several pairs with the same name, the first.
        let all = report.dataset.pairs.iter().enumerate().rev();
        let indices: HashMap<&str, usize> = all.map(|(index, pair)| (pair.name.as_str(), index)).collect();
        let parts = report.split.as_ref().map(|split| [&split.train, &split.validation, &split.test].map(|p| names(p)));
        let part = |name: &str| {
            let [train, validation, test] = parts.as_ref()?.each_ref().map(|names| names.contains(name));
            match (train, validation, test) {
                (true, false, _) => Some(Part::Train),
                (false, true, _) => Some(Part::Validation),
                (_, _, true) => Some(Part::Test),
                _ => None,
            }
        };
        let found = |name: &str| (indices.get(name).copied(), part(name));
        Self {
            kinds: cytoscope_training_data::summary::kinds(&report.report.problems),
            pairs: report.report.pairs.iter().map(|pair| found(&pair.name)).collect(),
        }
    }
}

/// The names of pairs.
fn names(pairs: &[Pair]) -> HashSet<&str> {
    pairs.iter().map(|pair| pair.name.as_str()).collect()
}

fn check_again(ui: &mut Ui, actions: &mut Actions) {
    if icon_text_button(ui, true, icon::ARROWS_CLOCKWISE, "Check again").clicked() {
        actions.send(TrainingAction::Check);
    }
}

fn choose_data(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let plan = &state.wizard().plan;
    ui.horizontal(|ui| type_path(ui, &state.wizard().typed, actions));
    ui.horizontal_wrapped(|ui| {
        if icon_text_button(ui, true, icon::FOLDER_OPEN, "Choose folder…").clicked() {
            actions.send(TrainingAction::Ask(FileRequest::TrainingFolder));
        }
        if icon_text_button(ui, true, icon::TABLE, "Choose table…").clicked() {
            actions.send(TrainingAction::Ask(FileRequest::TrainingTable));
        }
        let folder = &state.settings().dataset_folder;
        let may = folder.is_some() && plan.task == TrainingTask::Segmentation;
        let button = icon_text_button(ui, may, icon::PENCIL_LINE, "Use my corrections");
        let why = match plan.task {
            TrainingTask::Segmentation => {
                "First correct the labels of a stack and click \"Use as training data\" there"
            }
            TrainingTask::LabelFree => "Corrected labels can only train segmentation",
        };
        let button = match folder {
            Some(folder) => button.on_hover_text(folder.display().to_string()).on_disabled_hover_text(why),
            None => button.on_disabled_hover_text(why),
        };
        if let (true, Some(folder)) = (button.clicked(), folder) {
            actions.send(TrainingAction::TrainOn(folder.clone()));
        }
    });
    if plan.task == TrainingTask::Segmentation {
        let mut only = plan.foreground_only;
        let about =
            "Train on foreground and background only. Masks are enough for this; touching objects are not separated";
        if theme::checkbox(ui, &mut only, FOREGROUND_ONLY).on_hover_text(about).changed() {
            actions.send(TrainingAction::ForegroundOnly(only));
        }
    }
}

/// A text field for the path of the data; Enter chooses it.
fn type_path(ui: &mut Ui, typed: &str, actions: &mut Actions) {
    let mut text = typed.to_owned();
    let edit = egui::TextEdit::singleline(&mut text)
        .hint_text("Drop a folder or a table on the window, choose one, or type its path")
        .desired_width(f32::INFINITY);
    let edit = theme::text_field(ui, true, edit);
    edit.widget_info(|| {
        let mut info = egui::WidgetInfo::labeled(egui::WidgetType::TextEdit, true, "Training data");
        info.current_text_value = Some(text.clone());
        info
    });
    let entered = edit.lost_focus() && ui.input(|i| i.key_pressed(egui::Key::Enter));
    if entered && !text.trim().is_empty() {
        actions.send(TrainingAction::TrainOn(PathBuf::from(text.trim())));
    } else if text != typed {
        actions.send(TrainingAction::Type(text));
    }
}

fn no_data(ui: &mut Ui) {
    ui.add_space(theme::GROUP_GAP);
    let size = vec2(ui.available_width(), 150.0);
    let (rect, _) = ui.allocate_exact_size(size, Sense::hover());
    let visuals = ui.visuals();
    let stroke = egui::Stroke::new(1.5, visuals.widgets.noninteractive.bg_stroke.color);
    ui.painter().rect(rect, 12.0, visuals.faint_bg_color, stroke, egui::StrokeKind::Inside);
    let mut inside = ui.new_child(egui::UiBuilder::new().max_rect(rect.shrink(16.0)));
    inside.vertical_centered(|ui| {
        ui.add_space(16.0);
        ui.label(RichText::new(icon::IMAGES).size(38.0).color(theme::ACCENT));
        ui.label(RichText::new("Drop a folder of pairs here").size(17.0).strong());
        ui.add_space(2.0);
        weak(ui, "Use at least five pairs; twenty are better. Some of them become the validation set.");
    });
}

/// Draws the result of the data check.
fn check_result(
    ui: &mut Ui,
    wizard: &Wizard,
    report: &CheckReport,
    details: &CheckDetails,
    thumbs: &mut Thumbs,
    actions: &mut Actions,
) {
    let pairs = &report.report.pairs;
    let usable = pairs.iter().filter(|p| p.usable).count();
    let errors = report.report.of(Severity::Error).count();
    let warnings = report.report.of(Severity::Warning).count();
    ui.add_space(theme::GROUP_GAP);
    ui.horizontal_wrapped(|ui| {
        let good = usable > 0;
        let (sign, color) = match (good, errors) {
            (true, 0) => (icon::CHECK_CIRCLE, theme::good(ui.visuals())),
            (true, _) => (icon::WARNING, theme::warn(ui.visuals())),
            (false, _) => (icon::WARNING_CIRCLE, theme::bad(ui.visuals())),
        };
        ui.label(RichText::new(sign).size(18.0).color(color));
        ui.label(RichText::new(pair_count(usable, pairs.len())).strong().size(15.0));
        check_again(ui, actions);
    });
    if let Some(split) = &report.split {
        weak(ui, &split.how);
    }
    if let Some(reason) = &report.no_split {
        let color = theme::bad(ui.visuals());
        colored(ui, color, reason);
    }
    let [listed_problems, listed_pairs] = wizard.listed;
    if errors + warnings > 0 {
        title(ui, &problems_title(errors, warnings));
        show_problems(ui, report, &details.kinds, listed_problems, actions);
    }
    if !pairs.is_empty() {
        title(ui, "Pairs");
        let style = ThumbStyle::for_target(report.report.task);
        for (summary, (index, part)) in pairs.iter().zip(&details.pairs).take(listed_pairs) {
            let pair = index.and_then(|index| report.dataset.pairs.get(index));
            show_pair(ui, thumbs, style, summary, pair, *part);
        }
        more(ui, pairs.len(), listed_pairs, "pairs", TrainingAction::ListMore(1), actions);
    } else {
        ui.add_space(theme::GROUP_GAP);
        let text = "No pairs of images and targets were found. Files are paired by name: cell1.tif with \
                    cell1_masks.tif (or _labels), cell1_raw.tif with cell1_labels.tif.";
        ui.add(egui::Label::new(text).wrap());
    }
}

/// Lists the problems of the data; many are grouped by kind.
fn show_problems(ui: &mut Ui, report: &CheckReport, kinds: &[ProblemKind], listed: usize, actions: &mut Actions) {
    let problems = &report.report.problems;
    if problems.len() <= ONE_BY_ONE {
        problems.iter().for_each(|problem| show_problem(ui, problem));
        return;
    }
    for kind in kinds.iter().take(listed) {
        show_kind(ui, kind, problems);
    }
    more(ui, kinds.len(), listed, "kinds of problems", TrainingAction::ListMore(0), actions);
    if let Some(path) = &report.details {
        weak(ui, format!("All {} are listed in {}.", problems.len(), path.display()));
    }
}

fn pair_count(usable: usize, all: usize) -> String {
    match (usable, all) {
        (_, 0) => "No pairs".to_owned(),
        (1, 1) => "1 usable pair".to_owned(),
        (u, a) if u == a => format!("{a} usable pairs"),
        (u, a) => format!("{u} of {a} pairs can be used"),
    }
}

fn problems_title(errors: usize, warnings: usize) -> String {
    let n = |count: usize, one: &str| if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") };
    match (errors, warnings) {
        (0, w) => n(w, "warning"),
        (e, 0) => n(e, "problem"),
        (e, w) => format!("{}, {}", n(e, "problem"), n(w, "warning")),
    }
}

fn check_progress(ui: &mut Ui, job: Option<&JobView>) {
    let progress = job.and_then(|j| j.progress);
    ui.add_space(theme::GROUP_GAP);
    ui.horizontal(|ui| {
        ui.spinner();
        let text = match progress.filter(|p| p.total > 0) {
            Some(p) => format!("Checking {} of {} {}", p.done, p.total, p.unit),
            None if job.is_some_and(|j| j.state == JobState::Queued) => "Waiting for another job…".to_owned(),
            None => "Searching for pairs…".to_owned(),
        };
        ui.label(text);
    });
    if let Some(progress) = progress.filter(|p| p.total > 0) {
        ui.add(egui::ProgressBar::new(progress.share()).desired_height(8.0));
    }
}

fn show_problem(ui: &mut Ui, problem: &Problem) {
    let left_out = if problem.severity == Severity::Error { " · excluded" } else { "" };
    let name = format!("{}{left_out}", file_name(&problem.file));
    problem_frame(ui, problem, &name, |_| {});
}

/// A group of problems that differ only in file, names and numbers: the first one, and the list of files.
fn show_kind(ui: &mut Ui, kind: &ProblemKind, problems: &[Problem]) {
    if kind.members.len() == 1 {
        return show_problem(ui, &kind.example);
    }
    let left_out = if kind.severity == Severity::Error { " · excluded" } else { "" };
    let name = format!("{}, such as {}{left_out}", kind.count(), file_name(&kind.example.file));
    problem_frame(ui, &kind.example, &name, |ui| {
        let id = ui.id().with(kind.example.message.as_str());
        egui::CollapsingHeader::new("Files").id_salt(id).show(ui, |ui| {
            for problem in kind.members.iter().take(FILES_LISTED).filter_map(|i| problems.get(*i)) {
                weak(ui, format!("{}: {}", file_name(&problem.file), message_in_window(&problem.message)))
                    .on_hover_text(problem.file.display().to_string());
            }
            let left = kind.members.len().saturating_sub(FILES_LISTED);
            if left > 0 {
                weak(ui, format!("and {left} more"));
            }
        });
    });
}

fn problem_frame(ui: &mut Ui, problem: &Problem, name: &str, more: impl FnOnce(&mut Ui)) {
    let (sign, color) = match problem.severity {
        Severity::Error => (icon::WARNING_CIRCLE, theme::bad(ui.visuals())),
        Severity::Warning => (icon::WARNING, theme::warn(ui.visuals())),
    };
    let frame = egui::Frame::new().fill(ui.visuals().faint_bg_color).corner_radius(6).inner_margin(8);
    frame.show(ui, |ui| {
        ui.set_width(ui.available_width());
        ui.horizontal_top(|ui| {
            ui.label(RichText::new(sign).size(16.0).color(color));
            ui.vertical(|ui| {
                ui.add(egui::Label::new(RichText::new(name).strong()).truncate())
                    .on_hover_text(problem.file.display().to_string());
                ui.add(egui::Label::new(to_sentence(&message_in_window(&problem.message))).wrap());
                weak(ui, to_sentence(&data_message_in_window(&problem.next_step)));
                more(ui);
            });
        });
    });
    ui.add_space(2.0);
}

/// Capitalizes a text and ends it with a full stop.
fn to_sentence(text: &str) -> String {
    with_stop(&capitalized(text))
}

/// A button that lists more of `all` entries, if some are left.
fn more(ui: &mut Ui, all: usize, listed: usize, what: &str, list_more: TrainingAction, actions: &mut Actions) {
    let left = all.saturating_sub(listed);
    if left > 0 {
        let name = format!("Show more {what}");
        if named(ui.button(format!("and {left} more")), true, &name).clicked() {
            actions.send(list_more);
        }
    }
}

/// Summary of a pair: size, voxel size, number of objects.
fn facts(summary: &PairSummary) -> String {
    let [z, y, x] = summary.shape_zyx;
    let mut parts = vec![format!("{z} × {y} × {x} voxels")];
    if let [Some(z), Some(y), Some(x)] = summary.voxel_um {
        parts.push(format!("{} × {} × {} µm", short_number(z), short_number(y), short_number(x)));
    } else {
        parts.push("voxel size unknown".to_owned());
    }
    if let Some(objects) = summary.objects {
        parts.push(counted(objects as u64, "object"));
    }
    parts.join(" · ")
}

fn show_pair(
    ui: &mut Ui,
    thumbs: &mut Thumbs,
    style: ThumbStyle,
    summary: &PairSummary,
    pair: Option<&Pair>,
    part: Option<Part>,
) {
    ui.horizontal(|ui| {
        ui.set_min_height(THUMB);
        let images = pair.map(|p| [(&p.image, ThumbStyle::Gray, "image"), (&p.target, style, "target")]);
        for (image, style, what) in images.into_iter().flatten() {
            let (rect, response) = ui.allocate_exact_size(vec2(THUMB, THUMB), Sense::hover());
            response.widget_info(|| {
                egui::WidgetInfo::labeled(egui::WidgetType::Image, true, format!("{what} of {}", summary.name))
            });
            ui.painter().rect_filled(rect, 4.0, theme::IMAGE_BACKGROUND);
            // Only visible thumbnails are loaded.
            if !ui.is_rect_visible(rect) {
                continue;
            }
            match thumbs.get(image, style) {
                Thumb::Ready(texture) => {
                    let size = texture.size_vec2();
                    let fitted = size * (THUMB / size.max_elem().max(1.0));
                    let place = egui::Rect::from_center_size(rect.center(), fitted);
                    egui::Image::new(&texture).corner_radius(4).paint_at(ui, place);
                }
                Thumb::None => {
                    let font = egui::FontId::proportional(20.0);
                    let color = theme::ON_IMAGE.gamma_multiply(0.5);
                    ui.painter().text(rect.center(), egui::Align2::CENTER_CENTER, icon::IMAGE_BROKEN, font, color);
                }
                Thumb::Waiting => {}
            }
        }
        ui.add_space(6.0);
        ui.vertical(|ui| {
            ui.add_space(6.0);
            ui.add(egui::Label::new(RichText::new(&summary.name).strong()).truncate()).on_hover_text(format!(
                "{}\n{}",
                summary.image.display(),
                summary.target.display()
            ));
            weak(ui, facts(summary));
            let (text, color) = match (summary.usable, part) {
                (false, _) => ("excluded", theme::bad(ui.visuals())),
                (true, Some(Part::Validation)) => ("validation", ui.visuals().hyperlink_color),
                (true, Some(Part::Test)) => ("test", ui.visuals().weak_text_color()),
                (true, Some(Part::Train)) => ("training", ui.visuals().weak_text_color()),
                (true, None) => ("training and validation", ui.visuals().weak_text_color()),
            };
            ui.label(RichText::new(text).size(12.0).color(color));
        });
    });
    ui.add_space(4.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_use_singular_and_plural() {
        assert_eq!(pair_count(1, 1), "1 usable pair");
        assert_eq!(pair_count(3, 4), "3 of 4 pairs can be used");
        assert_eq!(problems_title(1, 0), "1 problem");
        assert_eq!(problems_title(2, 1), "2 problems, 1 warning");
        assert_eq!(problems_title(0, 3), "3 warnings");
        assert_eq!(to_sentence("it is empty"), "It is empty.");
    }
}
