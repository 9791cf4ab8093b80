//! The choice of the channels that a model's inputs are read from.

use super::{item_text, weak};
use crate::channels::{input_channels_among, input_name};
use crate::settings::Settings;
use cytoscope_pipeline::cards::ModelCard;
use eframe::egui::{self, Ui};

/// Heading of the choice.
pub(super) fn channels_title(card: &ModelCard) -> &'static str {
    if card.input_channels > 1 { "Channels" } else { "Channel" }
}

/// Draws a list of channels for each input of a model; `names` are those of the channels of `what`, such as "the stack". Returns
/// the names of the chosen channels, in the order of the model's inputs, once they have changed.
pub(super) fn channel_lists(
    ui: &mut Ui,
    card: &ModelCard,
    names: &[&str],
    what: &str,
    settings: &Settings,
) -> Option<Vec<String>> {
    let before = input_channels_among(card, names, settings);
    let mut chosen = before.clone();
    for (input, channel) in chosen.iter_mut().enumerate() {
        let title = input_name(card, input);
        ui.horizontal(|ui| {
            if card.input_channels > 1 {
                ui.label(&title);
            }
            let shown = names.get(*channel).copied().unwrap_or_default();
            let response = egui::ComboBox::from_id_salt(("channel", input))
                .selected_text(shown)
                .truncate()
                .show_ui(ui, |ui| {
                    for (i, name) in names.iter().enumerate() {
                        ui.selectable_value(channel, i, item_text(name));
                    }
                })
                .response;
            response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::ComboBox, true, &title));
        });
    }
    if before.len() < card.input_channels {
        weak(ui, format!("The model needs {} channels; {what} has {}.", card.input_channels, names.len()));
    }
    let names_of_chosen = || chosen.iter().filter_map(|c| names.get(*c)).map(|name| (*name).to_owned()).collect();
    (chosen != before).then(names_of_chosen)
}
