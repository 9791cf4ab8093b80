//! Totals by operator.

use super::{is_found, nothing_matches, short_time};
use crate::panels::weak;
use cytoscope_profile::{SpanTotal, bytes_text};
use eframe::egui::{self, RichText, Ui};
use egui_extras::{Column, TableBuilder};

/// Draws the rows that match `search`.
pub(super) fn operators(ui: &mut Ui, rows: &[SpanTotal], search: &str) {
    let query = search.to_lowercase();
    let whole: f64 = rows.iter().filter(|r| !r.stage.is_nested()).map(|r| r.seconds).sum();
    let found: Vec<&SpanTotal> = rows.iter().filter(|r| is_found(r.stage, &r.name, &query)).collect();
    if found.is_empty() {
        weak(ui, nothing_matches(search));
        ui.allocate_space(ui.available_size());
        return;
    }
    let columns = ["Stage", "Name", "Count", "Time", "Share", "GMAC/s", "Bytes"];
    TableBuilder::new(ui)
        .striped(true)
        .column(Column::initial(84.0))
        .column(Column::remainder().at_least(120.0).clip(true))
        .columns(Column::initial(78.0), 5)
        .header(20.0, |mut header| {
            for name in columns {
                header.col(|ui| _ = ui.label(RichText::new(name).strong().size(12.0)));
            }
        })
        .body(|body| {
            body.rows(19.0, found.len(), |mut line| {
                let Some(row) = found.get(line.index()) else { return };
                let rate = row.macs as f64 / row.seconds.max(1e-12) / 1e9;
                let cells = [
                    row.stage.name().to_owned(),
                    row.name.clone(),
                    row.count.to_string(),
                    short_time(row.seconds),
                    format!("{:.1} %", row.seconds / whole.max(1e-12) * 100.0),
                    if row.macs > 0 { format!("{rate:.1}") } else { String::new() },
                    if row.bytes > 0 { bytes_text(row.bytes) } else { String::new() },
                ];
                for cell in cells {
                    line.col(|ui| _ = ui.add(egui::Label::new(RichText::new(cell).size(12.0)).truncate()));
                }
            });
        });
}
