//! Which channels of a stack a model's inputs are read from: chosen by name, and remembered for each model.

use crate::document::Document;
use crate::settings::Settings;
use cytoscope_pipeline::cards::ModelCard;

/// Numbers of the channels for each input of a model, in the model's order: those remembered for it by name, or else those
/// whose names are the model's, or else the first free ones. Shorter than the model's inputs if the stack has too few
/// channels.
pub(crate) fn input_channels(card: &ModelCard, document: &Document, settings: &Settings) -> Vec<usize> {
    let names: Vec<&str> = document.channels.iter().map(|c| c.name.as_str()).collect();
    let remembered = settings.channels_of_model.get(&card.name).map(Vec::as_slice).unwrap_or_default();
    choose(card.input_channels, &card.input_channel_names, remembered, &names)
}

fn choose(inputs: usize, of_model: &[String], remembered: &[String], names: &[&str]) -> Vec<usize> {
    let find = |wanted: Option<&String>| {
        let wanted = wanted?.trim().to_lowercase();
        names.iter().position(|name| name.trim().to_lowercase() == wanted)
    };
    let known: Vec<Option<usize>> =
        (0..inputs).map(|i| find(remembered.get(i)).or_else(|| find(of_model.get(i)))).collect();
    let mut free = (0..names.len()).filter(|c| !known.contains(&Some(*c)));
    known.iter().map_while(|channel| channel.or_else(|| free.next())).collect()
}

/// Name of an input of a model, for display.
pub(crate) fn input_name(card: &ModelCard, input: usize) -> String {
    match card.input_channel_names.get(input).map(|name| name.trim()) {
        _ if card.input_channels == 1 => "Channel".to_owned(),
        Some(name) if !name.is_empty() => name.to_owned(),
        _ => format!("Input {}", input + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(of_model: &[&str], remembered: &[&str], names: &[&str]) -> Vec<usize> {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
        choose(2, &owned(of_model), &owned(remembered), names)
    }

    #[test]
    fn channels_are_found_by_name_and_other_inputs_take_free_ones() {
        let names = ["DAPI", "actin", "Membrane"];
        assert_eq!(chosen(&["membrane", "nuclei"], &[], &names), [2, 0]);
        assert_eq!(chosen(&["membrane", "nuclei"], &["actin", "DAPI"], &names), [1, 0]);
        assert_eq!(chosen(&["membrane", "nuclei"], &["gone", "actin"], &names), [2, 1]);
        assert_eq!(chosen(&[], &[], &names), [0, 1]);
        assert_eq!(chosen(&["membrane", "nuclei"], &[], &["Membrane"]), [0], "the second channel is missing");
    }
}
