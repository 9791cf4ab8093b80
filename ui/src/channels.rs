//! Which channels of a stack a model's inputs are read from, and which of its outputs is predicted: chosen by name, and
//! remembered for each model.

use crate::document::Document;
use crate::settings::Settings;
use cytoscope_pipeline::OutputTensor;
use cytoscope_pipeline::cards::ModelCard;

/// Numbers of the channels for each input of a model, in the model's order: those remembered for it by name, or else those
/// whose names are the model's, or else the first free ones. Shorter than the model's inputs if the stack has too few
/// channels.
pub(crate) fn input_channels(card: &ModelCard, document: &Document, settings: &Settings) -> Vec<usize> {
    let names: Vec<&str> = document.channels.iter().map(|c| c.name.as_str()).collect();
    let remembered = settings.channels_of_model.get(&card.name).map(Vec::as_slice).unwrap_or_default();
    choose(card.input_channels, &card.input_channel_names, remembered, &names)
}

fn choose(inputs: usize, model_names: &[String], remembered: &[String], names: &[&str]) -> Vec<usize> {
    let find = |wanted: Option<&String>| {
        let wanted = wanted?.trim().to_lowercase();
        names.iter().position(|name| name.trim().to_lowercase() == wanted)
    };
    let known: Vec<Option<usize>> =
        (0..inputs).map(|i| find(remembered.get(i)).or_else(|| find(model_names.get(i)))).collect();
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

/// The output of a model that is remembered for it, if the model still has it; `None` for the first one.
pub(crate) fn chosen_output<'a>(card: &ModelCard, settings: &'a Settings) -> Option<&'a OutputTensor> {
    let has = |chosen: &&OutputTensor| {
        let is_other = card.outputs.iter().skip(1).any(|output| output.id == chosen.id());
        is_other || (**chosen == OutputTensor::All && card.can_join_outputs)
    };
    settings.output_of_model.get(&card.name).filter(has)
}

/// Channels of a map in which objects and their seeds are found: those that the model states for its first output, or else
/// the first channel. The map may be of another output than the chosen one, so that it lacks them.
pub(crate) fn segment_channels(card: &ModelCard, settings: &Settings, map_channels: usize) -> [usize; 2] {
    let is_other = matches!(chosen_output(card, settings), Some(OutputTensor::Id(_)));
    let [channel, seeds] = [card.segment_channel, card.seed_channel];
    if is_other || channel.max(seeds) >= map_channels { [0, 0] } else { [channel, seeds] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_pipeline::cards::{OutputCard, card};
    use std::path::Path;

    #[test]
    fn a_remembered_output_is_used_while_the_model_has_it() {
        let output = |id: &str| OutputCard { id: id.to_owned(), channels: 2, channel_names: Vec::new() };
        let outputs = vec![output("mask"), output("boundary")];
        let two = ModelCard { outputs, seed_channel: 1, ..card("two", Path::new("/no/such/model")) };
        let mut settings = Settings::default();
        let mut choose = |text: &str| {
            settings.output_of_model.insert("two".to_owned(), OutputTensor::from(text.to_owned()));
            (chosen_output(&two, &settings).cloned(), segment_channels(&two, &settings, 2))
        };
        assert_eq!(choose("boundary"), (Some(OutputTensor::Id("boundary".to_owned())), [0, 0]));
        assert_eq!(choose("gone"), (None, [0, 1]));
        assert_eq!(choose("all"), (None, [0, 1]), "they cannot be joined");
        assert_eq!(segment_channels(&two, &Settings::default(), 1), [0, 0], "a map of another output");
    }

    fn chosen(model_names: &[&str], remembered: &[&str], names: &[&str]) -> Vec<usize> {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
        choose(2, &owned(model_names), &owned(remembered), names)
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
