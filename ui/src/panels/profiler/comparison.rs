//! Two runs side by side.

use super::nothing_matches;
use crate::number_text::TimeUnit;
use crate::panels::weak;
use crate::runs::ShownRun;
use cytoscope_profile::{ComparedTime, bytes_text, compare_operators, compare_stages, operator_totals};
use eframe::egui::{self, RichText, Ui};
use egui_extras::{Column, TableBuilder};

/// Times of two runs.
#[derive(Debug)]
pub(super) struct RunComparison {
    stages: Vec<ComparedTime>,
    operators: Vec<ComparedTime>,
}

impl RunComparison {
    /// Compares `first` with `second`.
    pub(super) fn new(first: ShownRun<'_>, second: ShownRun<'_>) -> Self {
        let operators = |run: ShownRun<'_>| operator_totals(run.spans());
        Self {
            stages: compare_stages(first.stages(), second.stages()),
            operators: compare_operators(&operators(first), &operators(second)),
        }
    }
}

/// Draws the times that match `search`: in all, of stages, of operators.
pub(super) fn comparison(ui: &mut Ui, [first, second]: [ShownRun<'_>; 2], compared: &RunComparison, search: &str) {
    let peak = |run: ShownRun<'_>| run.facts().peak_bytes.map_or_else(|| "unknown".to_owned(), bytes_text);
    weak(ui, format!("Peak memory {} and {}", peak(first), peak(second)));
    let query = search.to_lowercase();
    let total = ComparedTime::new("total", first.wall_secs(), second.wall_secs());
    let stages = compared.stages.iter().map(|time| ("stage", time));
    let operators = compared.operators.iter().map(|time| ("operator", time));
    let named = std::iter::once(("total", &total)).chain(stages).chain(operators);
    let is_found = |time: &ComparedTime| query.is_empty() || time.name.to_lowercase().contains(&query);
    let lines: Vec<(&str, &ComparedTime)> = named.filter(|(_, time)| is_found(time)).collect();
    if lines.is_empty() {
        weak(ui, nothing_matches(search));
        ui.allocate_space(ui.available_size());
        return;
    }
    let unit = TimeUnit::for_longest(first.wall_secs().max(second.wall_secs()));
    TableBuilder::new(ui)
        .striped(true)
        // Otherwise the table would make a low panel higher.
        .min_scrolled_height(0.0)
        .column(Column::initial(72.0))
        .column(Column::remainder().at_least(120.0).clip(true))
        .columns(Column::initial(150.0).clip(true), 2)
        .column(Column::initial(78.0))
        .header(20.0, |mut header| {
            for name in ["Kind", "Name", first.title(), second.title(), "Ratio"] {
                let label = egui::Label::new(RichText::new(name).strong().size(12.0)).truncate();
                header.col(|ui| _ = ui.add(label));
            }
        })
        .body(|body| {
            body.rows(19.0, lines.len(), |mut line| {
                let Some((kind, time)) = lines.get(line.index()) else { return };
                let ratio = time.ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}×"));
                let cells = [
                    (*kind).to_owned(),
                    time.name.clone(),
                    unit.text(time.first_secs),
                    unit.text(time.second_secs),
                    ratio,
                ];
                for cell in cells {
                    line.col(|ui| _ = ui.add(egui::Label::new(RichText::new(cell).size(12.0)).truncate()));
                }
            });
        });
}
