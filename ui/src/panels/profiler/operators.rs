//! Totals by operator.

use super::is_found;
use crate::panels::{seconds, weak};
use cytoscope_profile::{SpanRecord, Stage, bytes_text};
use eframe::egui::{self, RichText, Ui};
use egui_extras::{Column, TableBuilder};
use std::collections::BTreeMap;

/// Totals of one operator, or of other spans with the same stage and name.
#[derive(Debug)]
pub(super) struct Row {
    /// Stage of the spans.
    pub(super) stage: Stage,
    /// Operator and node.
    pub(super) name: String,
    /// Number of spans.
    pub(super) count: u64,
    /// Wall time in seconds, summed over threads.
    pub(super) seconds: f64,
    /// Bytes read, written or copied.
    pub(super) bytes: u64,
    /// Multiply-accumulates.
    pub(super) macs: u64,
}

/// Totals by stage and name, longest first.
pub(super) fn rows(spans: &[SpanRecord]) -> Vec<Row> {
    let mut sums: BTreeMap<(Stage, &str), Row> = BTreeMap::new();
    for span in spans {
        let row = sums.entry((span.stage, span.name.as_ref())).or_insert_with(|| Row {
            stage: span.stage,
            name: span.name.to_string(),
            count: 0,
            seconds: 0.0,
            bytes: 0,
            macs: 0,
        });
        row.count += 1;
        row.seconds += span.duration_us / 1e6;
        row.bytes = row.bytes.saturating_add(span.bytes);
        row.macs = row.macs.saturating_add(span.macs);
    }
    let mut rows: Vec<Row> = sums.into_values().collect();
    rows.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    rows
}

/// Draws the rows that match `search`.
pub(super) fn operators(ui: &mut Ui, rows: &[Row], search: &str) {
    let query = search.to_lowercase();
    let whole: f64 = rows.iter().filter(|r| !r.stage.is_nested()).map(|r| r.seconds).sum();
    let found: Vec<&Row> = rows.iter().filter(|r| is_found(r.stage, &r.name, &query)).collect();
    if found.is_empty() {
        weak(ui, format!("Nothing matches \"{search}\"."));
        return;
    }
    let columns = ["Stage", "Name", "Count", "Time", "Share", "GOP/s", "Bytes"];
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
                let rate = 2.0 * row.macs as f64 / row.seconds.max(1e-12) / 1e9;
                let cells = [
                    row.stage.name().to_owned(),
                    row.name.clone(),
                    row.count.to_string(),
                    seconds(row.seconds),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn span(name: &'static str, thread: usize, duration_us: f64) -> SpanRecord {
        SpanRecord { thread, bytes: 1, ..SpanRecord::new(Stage::Op, name, 0.0, duration_us) }
    }

    #[test]
    fn totals_are_by_name_longest_first() {
        let rows = rows(&[span("a", 0, 5e6), span("b", 0, 9e6), span("a", 1, 6e6)]);
        assert_eq!((rows[0].name.as_str(), rows[0].count, rows[0].bytes), ("a", 2, 2));
        assert!((rows[0].seconds - 11.0).abs() < 1e-9);
    }
}
