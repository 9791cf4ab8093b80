//! The channel of a stack that a model with one input reads because of its name: the one with the stain that the model was made
//! for.

use crate::cards::ModelCard;
use crate::{Model, ModelTask};
use cytoscope_formats::ImageMeta;

/// Words for nuclei in names and keywords of models, and in names of channels.
const NUCLEI: [&str; 3] = ["nuclei", "nucleus", "nuclear"];
/// Words of models that (also) segment something else.
const OTHER_OBJECTS: [&str; 8] =
    ["cell", "cells", "cytoplasm", "membranes", "boundaries", "nucleoli", "nucleolus", "spots"];
/// Words of models of images without a stain of nuclei.
const OTHER_IMAGES: [&str; 7] = ["bright", "brightfield", "dic", "histology", "histopathology", "phase", "transmitted"];
/// Beginnings of words in names of channels that show nuclei: dyes and labels of DNA and of histones.
const NUCLEAR_STAINS: [&str; 11] =
    ["dapi", "hoechst", "draq", "h2a", "h2b", "histone", "nucblue", "nucred", "propidium", "sytox", "topro"];
/// Words of channels that show a part of nuclei, or only some of them: such as those with damaged DNA, or that divide.
const PARTS: [&str; 14] = [
    "bodies",
    "damage",
    "envelope",
    "fish",
    "foci",
    "h2ax",
    "lamina",
    "membrane",
    "mitochondrial",
    "phospho",
    "pore",
    "pores",
    "receptor",
    "speckles",
];
/// Words of names that packages declare for any channel; a number may follow.
const PLACEHOLDERS: [&str; 7] = ["ch", "channel", "data", "image", "img", "input", "raw"];
/// Words of channels without the stain that they name, or with what was computed from it.
const ABSENT: [&str; 14] = [
    "background",
    "free",
    "labels",
    "mask",
    "masks",
    "neg",
    "negative",
    "no",
    "non",
    "not",
    "prediction",
    "probability",
    "segmentation",
    "without",
];

/// Returns the words of a text in lower case.
fn words(text: &str) -> Vec<String> {
    let parts = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    parts.map(str::to_lowercase).collect()
}

/// Returns whether one of the words is known.
fn has_one_of(words: &[String], known: &[&str]) -> bool {
    words.iter().any(|word| known.contains(&word.as_str()))
}

/// Returns whether the name of a channel says that it shows nuclei.
fn shows_nuclei(name: &str) -> bool {
    // The hyphen of this dye would separate words.
    let words = words(&name.to_lowercase().replace("to-pro", "topro"));
    let is_stain = |word: &String| {
        let word = word.as_str();
        word == "dna" || NUCLEI.contains(&word) || NUCLEAR_STAINS.iter().any(|stain| word.starts_with(stain))
    };
    words.iter().any(is_stain) && !has_one_of(&words, &PARTS) && !has_one_of(&words, &ABSENT)
}

/// Returns whether a name that a model declares for its input says nothing about what the channel shows, as "image" or "channel0".
fn is_placeholder(name: &str) -> bool {
    let words = words(name);
    let stems = words.iter().map(|word| word.trim_end_matches(char::is_numeric)).filter(|stem| !stem.is_empty());
    let stems: Vec<&str> = stems.collect();
    !stems.is_empty() && stems.iter().all(|stem| PLACEHOLDERS.contains(stem))
}

/// Returns the position of the only name with a property.
fn only_position(names: &[&str], has_property: impl Fn(&str) -> bool) -> Option<usize> {
    let mut found = names.iter().enumerate().filter(|(_, name)| has_property(name)).map(|(position, _)| position);
    let only = found.next()?;
    found.next().is_none().then_some(only)
}

/// Returns whether a model segments nuclei and nothing else, judging by its name, its keywords and the names of its input
/// channels.
fn segments_nuclei(task: Option<ModelTask>, name: &str, tags: &[String], channel_names: &[String]) -> bool {
    let texts = std::iter::once(name).chain(tags.iter().chain(channel_names).map(String::as_str));
    let words: Vec<String> = texts.flat_map(words).collect();
    let is_other = || [&OTHER_OBJECTS[..], &OTHER_IMAGES, &PARTS].into_iter().any(|known| has_one_of(&words, known));
    task == Some(ModelTask::Segmentation) && has_one_of(&words, &NUCLEI) && !is_other()
}

/// Returns the channel, from 1, that a model with one input channel reads instead of the first one: the only one with the name
/// that the model declares, or for a model of nuclei the only one that shows nuclei by its name. `None` for other models and
/// stacks.
pub(crate) fn stained_channel(model: &Model, meta: &ImageMeta) -> Option<usize> {
    if model.input_channels != 1 {
        return None;
    }
    let names: Vec<&str> = meta.channels.iter().map(|channel| channel.name.as_str()).collect();
    let is_of_nuclei = || segments_nuclei(Some(model.task), &model.name, &model.tags, &model.input_channel_names);
    let declared = model.input_channel_names.first().map_or("", String::as_str);
    channel_by_name(&names, declared, is_of_nuclei).filter(|channel| *channel > 0)
}

/// Returns the position of the only channel with the declared name, or else, for a model of nuclei, of the only one that shows
/// nuclei by its name.
fn channel_by_name(names: &[&str], declared: &str, is_of_nuclei: impl Fn() -> bool) -> Option<usize> {
    let declared = declared.trim().to_lowercase();
    let is_name = !declared.is_empty() && !is_placeholder(&declared);
    let with_name = is_name.then(|| only_position(names, |name| name.trim().to_lowercase() == declared)).flatten();
    with_name.or_else(|| only_position(names, shows_nuclei).filter(|_| is_of_nuclei()))
}

impl ModelCard {
    /// Returns the names of the input channels by which channels of stacks are chosen: none for a model with one input channel
    /// whose name could be that of any.
    pub fn stated_channel_names(&self) -> &[String] {
        match self.input_channel_names.as_slice() {
            [only] if self.input_channels == 1 && is_placeholder(only) => &[],
            names => names,
        }
    }

    /// Returns the only one of these channels that shows nuclei by its name, if the model has one input channel and segments
    /// nuclei: a prediction reads it by default.
    pub fn nuclear_channel(&self, names: &[&str]) -> Option<usize> {
        let is_of_nuclei = || segments_nuclei(self.task, &self.title, &self.tags, &self.input_channel_names);
        (self.input_channels == 1 && is_of_nuclei()).then(|| only_position(names, shows_nuclei)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_of_nuclei_are_recognized_by_their_names() {
        let nuclear = [
            "DAPI",
            "dapi_1",
            "405 DAPI",
            "Hoechst 33342",
            "DRAQ5",
            "nuclei",
            "Nucleus",
            "Nuclear stain",
            "H2B-GFP",
            "mCherry:H2B",
            "DNA",
            "SYTOX Green",
            "NucBlue",
            "TO-PRO-3",
            "anti-H2B",
        ];
        let others = [
            "",
            "channel0",
            "membrane",
            "actin",
            "GFP",
            "nucleoli",
            "perinuclear",
            "nuclear pore complex",
            "Nuclear envelope",
            "cdna",
            "488",
            "cytonuclear",
            "No DAPI",
            "H2B-free control",
            "non-nuclear",
            "DAPI mask",
            "gamma-H2AX",
            "phospho-histone H3",
            "DNA FISH",
            "nuclear receptor",
            "photoproduct",
        ];
        assert_eq!(nuclear.map(shows_nuclei), [true; 15], "{nuclear:?}");
        assert_eq!(others.map(shows_nuclei), [false; 21], "{others:?}");
    }

    #[test]
    fn one_channel_of_nuclei_is_chosen_and_several_leave_the_choice_to_the_user() {
        let chosen = |names: &[&str]| only_position(names, shows_nuclei);
        assert_eq!(chosen(&["membrane", "DAPI"]), Some(1));
        assert_eq!(chosen(&["DAPI", "membrane"]), Some(0));
        assert_eq!(chosen(&["membrane", "DAPI", "H2B"]), None);
        assert_eq!(chosen(&["DAPI mask", "DAPI"]), Some(1));
        assert_eq!(chosen(&["membrane", "actin"]), None);
    }

    #[test]
    fn a_declared_name_that_could_be_that_of_any_channel_does_not_count() {
        let placeholders = ["image", "input", "raw", "channel0", "Channel 1", "input_0", "raw_image", "ch01"];
        let others = ["", "488", "DAPI", "brightfield", "raw DAPI", "membrane", "channel"];
        assert_eq!(placeholders.map(is_placeholder), [true; 8], "{placeholders:?}");
        assert_eq!(others.map(is_placeholder), [false, false, false, false, false, false, true], "{others:?}");
        let names = ["membrane", "raw", "DAPI"];
        assert_eq!(channel_by_name(&names, "membrane", || true), Some(0));
        assert_eq!(channel_by_name(&names, " DAPI", || false), Some(2));
        assert_eq!(channel_by_name(&names, "raw", || true), Some(2));
        assert_eq!(channel_by_name(&names, "raw", || false), None);
        let card = |input_channels: usize, names: &[&str]| ModelCard {
            input_channels,
            input_channel_names: names.iter().map(|name| (*name).to_owned()).collect(),
            ..crate::cards::card("m", std::path::Path::new("/no/such/model"))
        };
        assert!(card(1, &["image"]).stated_channel_names().is_empty());
        assert_eq!(card(1, &["DAPI"]).stated_channel_names(), ["DAPI"]);
        assert_eq!(card(2, &["channel0", "channel1"]).stated_channel_names().len(), 2);
    }

    #[test]
    fn models_of_nuclei_are_those_that_segment_nothing_else() {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<String>>();
        let segments = |name: &str, tags: &[&str], channels: &[&str]| {
            segments_nuclei(Some(ModelTask::Segmentation), name, &owned(tags), &owned(channels))
        };
        assert!(segments("nuclei", &["3d", "cytoscope"], &["image"]));
        assert!(segments("my model", &["nucleus-segmentation"], &[]));
        assert!(segments("my model", &[], &["nuclei"]));
        assert!(!segments("cells", &["cells", "membrane"], &["image"]));
        assert!(!segments("cells and nuclei", &["nuclei"], &[]));
        assert!(!segments("my model", &["3d"], &["image"]));
        assert!(!segments("nuclear envelope", &["3d"], &["image"]));
        assert!(!segments("nuclei", &["bright-field-microscopy"], &["image"]));
        let stain = segments_nuclei(Some(ModelTask::LabelFree), "labelfree-nuclei", &[], &[]);
        assert!(!stain, "it reads transmitted light");
    }
}
