//! The search for training settings on the Settings page: its choices, its trials and their scores.

use super::curves::{fixed_plot, name_plot};
use super::{button_row, icon_text_button, reason_against_training};
use crate::action::Actions;
use crate::document::file_name;
use crate::number_text::{counted, measurement};
use crate::opener::FileRequest;
use crate::panels::{SettingRow, number_field, weak};
use crate::state::State;
use crate::theme;
use crate::training::TrainingAction;
use crate::training::search::{DEFAULT_RANGES, MAX_SEARCH_TRIALS, SearchAction, SettingsSearch};
use cytoscope_pipeline::SearchTrial;
use cytoscope_profile::count_text;
use cytoscope_storage::by_count;
use eframe::egui::{self, RichText, Ui};
use egui_phosphor::regular as icon;
use egui_plot::{Line, PlotPoints, Points};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Height of the table in points, from which it scrolls.
const TABLE: f32 = 220.0;
/// Maximum number of listed trials, the best ones.
const SHOWN_TRIALS: usize = 100;
/// Maximum number of steps of the best trial.
const MAX_STEPS: usize = 10_000_000;

/// Draws the section.
pub(super) fn search_section(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let search = &state.wizard().plan.search;
    let is_in_use = search.job.is_some() || !search.used.is_empty();
    egui::CollapsingHeader::new("Hyperparameter search").default_open(is_in_use).show(ui, |ui| {
        weak(
            ui,
            "Trains networks with settings drawn from ranges. The better half continues with twice the steps, until one is \
             left. The settings above apply to all trials, except for the time budget.",
        );
        egui::Grid::new("search settings").num_columns(2).spacing([20.0, 6.0]).show(ui, |ui| {
            ranges(ui, search, actions);
            let hint = "Number of combinations of settings to try";
            if let Some(trials) = count(ui, "Trials", hint, search.trials, 1..=MAX_SEARCH_TRIALS) {
                send(actions, SearchAction::Trials(trials));
            }
            let hint = "Training steps of the last remaining trial";
            if let Some(steps) = count(ui, "Steps of the best trial", hint, search.steps, 1..=MAX_STEPS) {
                send(actions, SearchAction::Steps(steps));
            }
        });
        weak(ui, format!("{} in total", counted(search.all_steps() as u64, "step")));
        buttons(ui, state, actions);
        used_settings(ui, state, actions);
        results(ui, state, actions);
        if search.job.is_some() {
            removal(ui, search, state.jobs.is_searching(), actions);
        }
    });
}

fn send(actions: &mut Actions, action: SearchAction) {
    actions.send(TrainingAction::Search(action));
}

/// The file of the ranges.
fn ranges(ui: &mut Ui, search: &SettingsSearch, actions: &mut Actions) {
    let label = |ui: &mut Ui| {
        ui.label("Ranges");
    };
    let field = |ui: &mut Ui| {
        match &search.ranges {
            Some(path) => weak(ui, file_name(path)).on_hover_text(path.display().to_string()),
            None => weak(ui, "Default").on_hover_text(DEFAULT_RANGES),
        };
        if icon_text_button(ui, true, icon::FOLDER_OPEN, "Choose ranges…")
            .on_hover_text("A TOML file with uniform, log_uniform, integers or values for each setting")
            .clicked()
        {
            actions.send(TrainingAction::Ask(FileRequest::SearchRanges));
        }
        if search.ranges.is_some() && icon_text_button(ui, true, icon::ARROW_U_UP_LEFT, "Default ranges").clicked() {
            send(actions, SearchAction::Ranges(None));
        }
    };
    SettingRow::Grid.show(ui, label, field);
}

/// A number of a search; returns the new value, once it has changed.
fn count(ui: &mut Ui, name: &str, hint: &str, value: usize, range: RangeInclusive<usize>) -> Option<usize> {
    let mut shown = value as f64;
    let range = *range.start() as f64..=*range.end() as f64;
    let label = |ui: &mut Ui| {
        ui.label(name).on_hover_text(hint);
    };
    let is_changed = SettingRow::Grid.show(ui, label, |ui| number_field(ui, &mut shown, range, 1.0, name));
    is_changed.then_some(shown as usize)
}

fn buttons(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let search = &state.wizard().plan.search;
    let reason = reason_against_searching(state);
    let (may, reason) = (reason.is_none(), reason.unwrap_or_default());
    button_row(ui, "buttons of the search", |ui| {
        let start = icon_text_button(ui, may, icon::MAGNIFYING_GLASS, "Search for settings");
        let hint = "Each trial is a training run. The search continues if the window is closed.";
        if start.on_hover_text(hint).on_disabled_hover_text(reason).clicked() {
            send(actions, SearchAction::Start);
        }
        if search.is_unfinished() && !state.jobs.is_searching() {
            let again = icon_text_button(ui, may, icon::PLAY, "Continue search");
            let hint =
                "With its own data, ranges and settings, on the chosen device; finished trials are not run again";
            if again.on_hover_text(hint).on_disabled_hover_text(reason).clicked() {
                send(actions, SearchAction::Continue);
            }
        }
    });
}

/// Why no search can start or continue now; `None` if one can.
fn reason_against_searching(state: State<'_>) -> Option<&'static str> {
    let waits = "Wait until the running jobs have finished, or cancel them.";
    reason_against_training(state).or_else(|| (!state.jobs.can_tune()).then_some(waits))
}

/// The settings of a trial that the next training run uses.
fn used_settings(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let wizard = state.wizard();
    let search = &wizard.plan.search;
    if search.used.is_empty() {
        return;
    }
    match wizard.found_settings_problem() {
        Some(problem) => ui.label(RichText::new(problem).color(theme::warn(ui.visuals()))),
        None => weak(ui, format!("Training uses these in place of the settings above: {}", search.used.join(", "))),
    };
    if icon_text_button(ui, true, icon::TRASH, "Discard found settings").clicked() {
        send(actions, SearchAction::UseNone);
    }
}

/// Draws the plot and the table of the trials, and the button that uses the best settings.
fn results(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let plan = &state.wizard().plan;
    let search = &plan.search;
    if search.results.is_empty() {
        return;
    }
    if let Some(job) = search.job.as_ref().filter(|job| plan.data.as_ref() != Some(&job.data) || job.task != plan.task)
    {
        ui.add_space(theme::GAP);
        let text = format!("These trials used other data or another task: {}", job.data.display());
        ui.label(RichText::new(text).color(theme::warn(ui.visuals())));
    }
    let best = search.best();
    if let Some(best) = best {
        ui.add_space(theme::GAP);
        ui.label(format!("Best: trial {}, {}", best.number, best.result_text()));
        if icon_text_button(ui, best.settings != search.used, icon::CHECK, "Use best settings")
            .on_hover_text(best.settings.join("\n"))
            .on_disabled_hover_text("The next training run already uses these settings.")
            .clicked()
        {
            send(actions, SearchAction::UseBest);
        }
        score_plot(ui, &search.results, best.number);
    }
    table(ui, &search.results, best.map(|best| best.number));
    if let Some(job) = &search.job {
        weak(ui, format!("Table: {}", job.table().display()));
    }
}

/// Draws the button that removes the search, or the question whether to.
fn removal(ui: &mut Ui, search: &SettingsSearch, is_running: bool, actions: &mut Actions) {
    if !search.confirm_removal || is_running {
        let button = icon_text_button(ui, !is_running, icon::TRASH, "Remove search…");
        let waits = "Wait until the search has finished, or cancel it";
        let hint = "Remove its trials, and the package of the best trial";
        if button.on_hover_text(hint).on_disabled_hover_text(waits).clicked() {
            send(actions, SearchAction::AskRemoval(true));
        }
        if !search.earlier.is_empty() {
            let count = search.earlier.len();
            let searches = by_count(count, "search is", "searches are");
            weak(ui, format!("{count} earlier {searches} stored, and shown once this one is removed"));
        }
        return;
    }
    ui.horizontal_wrapped(|ui| {
        ui.label("Remove the trials of this search, its table and plots, and the package of its best trial?");
        if icon_text_button(ui, true, icon::TRASH, "Remove search").clicked() {
            send(actions, SearchAction::Remove);
        }
        if icon_text_button(ui, true, icon::ARROW_U_UP_LEFT, "Keep search").clicked() {
            send(actions, SearchAction::AskRemoval(false));
        }
    });
}

/// Plots the score of each trial over its steps.
fn score_plot(ui: &mut Ui, results: &[SearchTrial], best: usize) {
    let mut trials: BTreeMap<usize, Vec<[f64; 2]>> = BTreeMap::new();
    let mut sorted: Vec<&SearchTrial> = results.iter().collect();
    sorted.sort_by_key(|trial| trial.rung);
    for trial in sorted {
        if let Some(score) = trial.score {
            trials.entry(trial.number).or_default().push([trial.steps as f64, score]);
        }
    }
    let count = trials.len();
    let response = fixed_plot("trials", "Steps").show(ui, |plot| {
        for (number, points) in trials {
            let is_best = number == best;
            let color = if is_best { theme::BEST } else { theme::ACCENT };
            let (width, radius) = if is_best { (2.0, 4.5) } else { (1.0, 2.5) };
            let name = format!("Trial {number}");
            plot.line(Line::new(name.clone(), PlotPoints::from(points.clone())).color(color).width(width));
            plot.points(Points::new(name, PlotPoints::from(points)).color(color).radius(radius));
        }
    });
    name_plot(&response.response, format!("Validation scores of {count} trials over their steps"));
}

/// Headings of the list of trials, and what they mean.
const HEADINGS: [(&str, &str); 6] = [
    ("Trial", "Number of a combination of settings"),
    ("Rung", "Round of the search: the better half of its trials continues in the next one, with twice the steps"),
    ("Steps", "Training steps of the trial at the end of the round"),
    ("Score", "Validation score"),
    ("Time", "Duration of the trial"),
    ("Settings", "What was drawn from the ranges"),
];

/// Lists the trials: those with the most steps first, the better ones before the others.
fn table(ui: &mut Ui, results: &[SearchTrial], best: Option<usize>) {
    let mut sorted: Vec<&SearchTrial> = results.iter().collect();
    let score = |trial: &&SearchTrial| trial.score.unwrap_or(f64::NEG_INFINITY);
    sorted.sort_by(|a, b| b.rung.cmp(&a.rung).then(score(b).total_cmp(&score(a))));
    egui::ScrollArea::both().id_salt("trials table").max_height(TABLE).show(ui, |ui| {
        egui::Grid::new("trials").num_columns(6).spacing([16.0, 4.0]).striped(true).show(ui, |ui| {
            for (name, meaning) in HEADINGS {
                ui.label(RichText::new(name).strong()).on_hover_text(meaning);
            }
            ui.end_row();
            for trial in sorted.into_iter().take(SHOWN_TRIALS) {
                let number = RichText::new(trial.number.to_string());
                ui.label(if best == Some(trial.number) { number.strong() } else { number });
                ui.label(trial.rung.to_string());
                ui.label(count_text(trial.steps as u64));
                match trial.score {
                    Some(score) => ui.label(format!("{score:.4}")),
                    None => ui.label("failed").on_hover_text(trial.error.as_str()),
                };
                ui.label(format!("{} s", measurement(trial.seconds, 1)));
                ui.label(trial.settings.join(", "));
                ui.end_row();
            }
        });
    });
}
