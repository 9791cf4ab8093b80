//! Totals by operator.

use super::roofline::Roofline;
use super::{is_found, nothing_matches};
use crate::number_text::TimeUnit;
use crate::panels::weak;
use cytoscope_profile::{SpanTotal, Stage, bytes_text};
use eframe::egui::{self, RichText, Ui};
use egui_extras::{Column, TableBuilder};
use std::collections::BTreeMap;

/// Width of a column of numbers in points.
const NUMBER_WIDTH: f32 = 68.0;

/// What the times of operators on a GPU include.
const GPU_TIMES: &str =
    "On a GPU, the time of an operator includes the launch of its kernels and the wait for their end.";

/// Draws the rows that match `search`, with their share of the machine's peak if it is known. `used_gpu` is whether some
/// may have run on a GPU.
pub(super) fn operators(ui: &mut Ui, rows: &[SpanTotal], roofline: Option<&Roofline>, search: &str, used_gpu: bool) {
    let query = search.to_lowercase();
    let whole: f64 = rows.iter().filter(|r| !r.stage.is_nested()).map(|r| r.seconds).sum();
    let found: Vec<&SpanTotal> = rows.iter().filter(|r| is_found(r.stage, &r.shown_name(), &query)).collect();
    if found.is_empty() {
        weak(ui, nothing_matches(search));
        ui.allocate_space(ui.available_size());
        return;
    }
    if used_gpu && rows.iter().any(|row| row.stage == Stage::Op) {
        weak(ui, GPU_TIMES);
    }
    // Of all rows, so that a search does not change it.
    let unit = TimeUnit::for_longest(rows.iter().map(|row| row.seconds).fold(0.0, f64::max));
    let time_title = format!("Time ({})", unit.symbol);
    let mut columns = vec!["Stage", "Name", "Count", time_title.as_str(), "Share", "GMAC/s", "Bytes"];
    let peak_shares: Option<BTreeMap<String, f64>> =
        roofline.map(|roofline| roofline.points.iter().map(|point| (point.shown_name(), point.share)).collect());
    if peak_shares.is_some() {
        columns.push("Of peak");
    }
    TableBuilder::new(ui)
        .striped(true)
        // Otherwise the table would make a low panel higher.
        .min_scrolled_height(0.0)
        .column(Column::initial(84.0))
        .column(Column::remainder().at_least(120.0).clip(true))
        .columns(Column::initial(NUMBER_WIDTH), columns.len() - 2)
        .header(20.0, |mut header| {
            for name in &columns {
                header.col(|ui| _ = ui.label(RichText::new(*name).strong().size(12.0)));
            }
        })
        .body(|body| {
            body.rows(19.0, found.len(), |mut line| {
                let Some(row) = found.get(line.index()) else { return };
                let rate = row.macs as f64 / row.seconds.max(1e-12) / 1e9;
                let mut cells = vec![
                    row.stage.name().to_owned(),
                    row.shown_name(),
                    row.count.to_string(),
                    unit.number(row.seconds),
                    format!("{:.1} %", row.seconds / whole.max(1e-12) * 100.0),
                    if row.macs > 0 { format!("{rate:.1}") } else { String::new() },
                    if row.bytes > 0 { bytes_text(row.bytes) } else { String::new() },
                ];
                if let Some(shares) = &peak_shares {
                    let share = shares.get(&row.shown_name()).filter(|_| row.stage == Stage::Op);
                    cells.push(share.map_or_else(String::new, |share| format!("{:.0} %", 100.0 * share)));
                }
                for cell in cells {
                    line.col(|ui| _ = ui.add(egui::Label::new(RichText::new(cell).size(12.0)).truncate()));
                }
            });
        });
}
