//! The choice of the channels that a model's inputs are read from.

use super::{item_text, weak};
use crate::channels::{channels_of_inputs, input_name, names_to_remember};
use crate::settings::Settings;
use cytoscope_pipeline::cards::ModelCard;
use eframe::egui::{self, Ui};

/// Heading of the choice.
pub(super) fn channels_title(card: &ModelCard) -> &'static str {
    if card.input_channels > 1 { "Channels" } else { "Channel" }
}

/// Draws a list of channels for each of these inputs of a model; `names` are those of the channels of `what`, such as "the
/// stack". Returns the names to remember, in the order of the model's inputs, once the choice has changed.
pub(super) fn channel_lists(
    ui: &mut Ui,
    card: &ModelCard,
    inputs: &[usize],
    names: &[&str],
    what: &str,
    settings: &Settings,
) -> Option<Vec<String>> {
    let before = channels_of_inputs(card, inputs.iter().copied(), names, settings);
    let mut chosen = before.clone();
    for (input, channel) in inputs.iter().copied().zip(&mut chosen) {
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
    if before.len() < inputs.len() {
        weak(ui, format!("The model needs {} channels; {what} has {}.", inputs.len(), names.len()));
    }
    (chosen != before).then(|| {
        let named = inputs.iter().zip(&chosen).filter_map(|(input, channel)| Some((*input, *names.get(*channel)?)));
        names_to_remember(card, &named.collect::<Vec<_>>(), settings)
    })
}
