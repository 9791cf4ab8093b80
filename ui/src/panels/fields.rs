//! Labels and fields of settings: drop-down lists and numbers.

use super::weak;
use crate::theme;
use cytoscope_pipeline::MAX_THREADS;
use eframe::egui::{self, Ui};
use std::cell::Cell;

/// Where the label of a setting is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SettingRow {
    /// In one line with its field.
    Line,
    /// In the first column of a grid, whose second column has the fields.
    Grid,
}

impl SettingRow {
    /// Draws a setting from its label and its field; returns what `field` returns.
    pub(crate) fn show<R>(self, ui: &mut Ui, label: impl FnOnce(&mut Ui), field: impl FnOnce(&mut Ui) -> R) -> R {
        match self {
            Self::Line => {
                let row = ui.horizontal(|ui| {
                    label(ui);
                    field(ui)
                });
                row.inner
            }
            Self::Grid => {
                label(ui);
                let shown = ui.horizontal(field).inner;
                ui.end_row();
                shown
            }
        }
    }

    /// Draws a drop-down list and its label, which is also its accessible name; `entries` draws the list. A long `selected`
    /// text is cut off where the panel ends. Returns the response of the closed list.
    pub(crate) fn choice(
        self,
        ui: &mut Ui,
        id: &str,
        name: &str,
        selected: &str,
        entries: impl FnOnce(&mut Ui),
    ) -> egui::Response {
        let label = |ui: &mut Ui| {
            ui.label(name);
        };
        let list = |ui: &mut Ui| {
            let combo = egui::ComboBox::from_id_salt(id).selected_text(selected).truncate();
            let response = combo.show_ui(ui, entries).response;
            response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::ComboBox, true, name));
            response
        };
        let usual = ui.spacing().interact_size.y;
        // Labels are placed in the middle of a row of this height. A list is higher, because it contains an icon.
        ui.spacing_mut().interact_size.y = usual.max(ui.spacing().icon_width + 2.0 * ui.spacing().button_padding.y);
        let response = self.show(ui, label, list);
        ui.spacing_mut().interact_size.y = usual;
        response
    }
}

/// A drop-down list in one line with its label, as [`SettingRow::choice`] draws it.
pub(crate) fn labeled_choice(
    ui: &mut Ui,
    id: &str,
    name: &str,
    selected: &str,
    entries: impl FnOnce(&mut Ui),
) -> egui::Response {
    SettingRow::Line.choice(ui, id, name, selected, entries)
}

/// A number field; returns whether the value changed.
pub(crate) fn number_field(
    ui: &mut Ui,
    value: &mut f64,
    range: std::ops::RangeInclusive<f64>,
    speed: f64,
    name: &str,
) -> bool {
    let response = ui.add(egui::DragValue::new(value).range(range).speed(speed));
    response.widget_info(|| egui::WidgetInfo {
        value: Some(*value),
        ..egui::WidgetInfo::labeled(egui::WidgetType::DragValue, true, name)
    });
    response.changed()
}

/// A number that is left to the program unless the user sets it.
pub(crate) struct OptionalNumber<'a> {
    /// Name of the setting.
    pub(crate) name: &'a str,
    /// Unit that is shown after the number.
    pub(crate) unit: &'a str,
    /// Tooltip: the meaning of the number.
    pub(crate) hint: &'a str,
    /// Text that is shown while no number is set.
    pub(crate) unset: &'a str,
    /// The number at first.
    pub(crate) first: u64,
    /// The numbers that can be set.
    pub(crate) range: std::ops::RangeInclusive<u64>,
}

impl<'a> OptionalNumber<'a> {
    /// A number of threads, at first the number of cores.
    pub(crate) fn threads(hint: &'a str) -> Self {
        let first = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        Self { name: "Threads", unit: "", hint, unset: "automatic", first, range: 1..=MAX_THREADS as u64 }
    }

    /// A limit of memory in MiB, at first 8 GiB.
    pub(crate) fn memory(name: &'a str, hint: &'a str) -> Self {
        Self { name, unit: "MiB", hint, unset: "automatic", first: 8192, range: 1..=1 << 24 }
    }

    /// Draws a checkbox, and a field named after the setting and "number" while it is checked. Returns the new value, once
    /// it has changed.
    pub(crate) fn show(&self, ui: &mut Ui, row: SettingRow, value: Option<u64>) -> Option<Option<u64>> {
        let chosen = Cell::new(value);
        let label = |ui: &mut Ui| {
            let mut is_set = value.is_some();
            if theme::checkbox(ui, &mut is_set, self.name).on_hover_text(self.hint).changed() {
                chosen.set(is_set.then_some(self.first));
            }
        };
        let field = |ui: &mut Ui| match chosen.get() {
            Some(number) => {
                let mut shown = number as f64;
                let name = format!("{} number", self.name);
                let range = *self.range.start() as f64..=*self.range.end() as f64;
                if number_field(ui, &mut shown, range, 1.0, &name) {
                    chosen.set(Some(shown as u64));
                }
                ui.label(self.unit);
            }
            None => _ = weak(ui, self.unset),
        };
        row.show(ui, label, field);
        let chosen = chosen.get();
        (chosen != value).then_some(chosen)
    }
}
