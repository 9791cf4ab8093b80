//! A field for one series of files, by number or name.

use crate::theme;
use cytoscope_formats::SeriesChoice;
use eframe::egui::{self, Ui};

/// Id of the text as it is typed into the field with this name.
fn typed_id(name: &str) -> egui::Id {
    egui::Id::new(("typed series", name))
}

/// Whether the field with this name has the focus.
pub(super) fn is_typing_series(ui: &Ui, name: &str) -> bool {
    ui.data(|data| data.get_temp::<String>(typed_id(name))).is_some()
}

/// Draws a field for the number, from 0, or the name of a series; an empty field is the first one. Returns the choice, once it
/// has changed.
pub(super) fn series_field(ui: &mut Ui, name: &str, value: &SeriesChoice) -> Option<SeriesChoice> {
    let id = typed_id(name);
    // The text is kept as typed, so that a space can be followed by another word.
    let kept = ui.data(|data| data.get_temp::<String>(id)).filter(|text| parse_series(text) == *value);
    let shown = || if value.is_first() { String::new() } else { value.to_string() };
    let mut text = kept.unwrap_or_else(shown);
    let edit = egui::TextEdit::singleline(&mut text).hint_text("first").desired_width(160.0);
    let edit = theme::text_field(ui, true, edit);
    edit.widget_info(|| {
        let mut info = egui::WidgetInfo::labeled(egui::WidgetType::TextEdit, true, name);
        info.current_text_value = Some(text.clone());
        info
    });
    let choice = parse_series(&text);
    let is_changed = edit.changed() && choice != *value;
    let has_focus = edit.has_focus();
    edit.on_hover_text("Number, from 0, or name of the series in files that have several");
    if has_focus {
        ui.data_mut(|data| data.insert_temp(id, text));
    } else {
        ui.data_mut(|data| data.remove::<String>(id));
    }
    is_changed.then_some(choice)
}

/// Returns the series that a text chooses.
fn parse_series(text: &str) -> SeriesChoice {
    match text.trim() {
        "" => SeriesChoice::default(),
        // Every text is a number, a name or "all".
        text => text.parse().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_typed_as_a_number_or_a_name_and_an_empty_field_is_the_first_one() {
        assert_eq!(parse_series("12"), SeriesChoice::Index(12));
        assert_eq!(parse_series(" Position 2 "), SeriesChoice::Name("Position 2".to_owned()));
        for first in ["", "  ", "0"] {
            assert!(parse_series(first).is_first(), "{first:?}");
        }
    }
}
