//! Which channels of a stack a model's inputs are read from, and which of its outputs is predicted: chosen by name, and
//! remembered for each model.

use crate::document::{Document, channel_title};
use crate::settings::Settings;
use cytoscope_formats::ChannelRef;
use cytoscope_pipeline::cards::ModelCard;
use cytoscope_pipeline::{Extents, ModelTask, OutputTensor};
use cytoscope_training_data::{TrainingTask, find_pairs};
use std::path::Path;

/// Numbers of the channels for each input of a model, in the model's order: those remembered for it by name, or else those
/// whose names are the model's, or else that of nuclei for a model of nuclei, or else the first free ones. Shorter than the
/// model's inputs if the stack has too few channels.
pub(crate) fn input_channels(card: &ModelCard, document: &Document, settings: &Settings) -> Vec<usize> {
    let names: Vec<&str> = document.channels.iter().map(|c| c.name.as_str()).collect();
    input_channels_among(card, &names, settings)
}

/// Like [`input_channels`], among channels with these names.
pub(crate) fn input_channels_among(card: &ModelCard, names: &[&str], settings: &Settings) -> Vec<usize> {
    channels_of_inputs(card, 0..card.input_channels, names, settings)
}

/// Like [`input_channels_among`], for some inputs of a model, by their numbers: the others are read from other files.
pub(crate) fn channels_of_inputs(
    card: &ModelCard,
    inputs: impl Iterator<Item = usize>,
    names: &[&str],
    settings: &Settings,
) -> Vec<usize> {
    choose(inputs, card.stated_channel_names(), remembered(card, settings), (names, card.nuclear_channel(names)))
}

/// The names to remember for all inputs of a model, after channels were chosen for some of them: pairs of the number of an
/// input and the name of its channel.
pub(crate) fn names_to_remember(card: &ModelCard, chosen: &[(usize, &str)], settings: &Settings) -> Vec<String> {
    let before = |input: usize| remembered(card, settings).get(input).or_else(|| card.input_channel_names.get(input));
    let name = |input: usize| match chosen.iter().find(|(of, _)| *of == input) {
        Some((_, name)) => (*name).to_owned(),
        None => before(input).cloned().unwrap_or_default(),
    };
    (0..card.input_channels).map(name).collect()
}

/// Returns the channels in a text, which are separated by commas.
pub(crate) fn parse_channels(text: &str) -> Vec<ChannelRef> {
    // Every text is a number or a name.
    text.split(',').filter(|part| !part.trim().is_empty()).filter_map(|part| part.parse().ok()).collect()
}

/// The names of the channels that are remembered for the inputs of a model, in the model's order.
fn remembered<'a>(card: &ModelCard, settings: &'a Settings) -> &'a [String] {
    settings.channels_of_model.get(&card.name).map(Vec::as_slice).unwrap_or_default()
}

/// Whether two names of channels are the same: case and surrounding spaces do not count, as in jobs.
fn is_same_name(a: &str, b: &str) -> bool {
    a.trim().to_lowercase() == b.trim().to_lowercase()
}

/// A channel for jobs on several files, which may order their channels differently: by name, unless several channels have this
/// name.
pub(crate) fn by_name(names: &[&str], channel: usize) -> Option<ChannelRef> {
    let name = names.get(channel)?;
    let is_unique = names.iter().filter(|other| is_same_name(other, name)).count() == 1;
    Some(if is_unique { ChannelRef::Name((*name).to_owned()) } else { ChannelRef::Index(channel) })
}

/// A channel of the images of pairs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PairChannel {
    /// Name of the channel, for display.
    name: String,
    /// Whether the file states this name.
    is_stated: bool,
}

/// The channels of the images of pairs, from which a model's inputs can be chosen; none if the data state the channels. Which
/// files are images depends on the task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PairChannels {
    segmentation: Vec<PairChannel>,
    label_free: Vec<PairChannel>,
}

impl PairChannels {
    /// Reads the channels of the first image whose channels the data do not state, for each task; none if it cannot be read.
    pub(crate) fn read(data: &Path) -> Self {
        let read = |task: TrainingTask| channels_in_pairs(data, task).unwrap_or_default();
        Self { segmentation: read(TrainingTask::Segmentation), label_free: read(TrainingTask::LabelFree) }
    }

    fn of(&self, card: &ModelCard) -> &[PairChannel] {
        match card.task {
            Some(ModelTask::LabelFree) => &self.label_free,
            Some(ModelTask::Segmentation) | None => &self.segmentation,
        }
    }

    /// The names of the channels among which the inputs of a model are chosen, for display; empty if there is no choice.
    pub(crate) fn names(&self, card: &ModelCard) -> Vec<&str> {
        let channels = self.of(card);
        if channels.len() > 1 { channels.iter().map(|c| c.name.as_str()).collect() } else { Vec::new() }
    }

    /// The channels of a model's inputs for a job, in the model's order; empty if there is no choice. A channel that has the
    /// name of an input, or is remembered for it, has this name in all images; any other one has its number. Also empty for a
    /// model with one input for which none of them is remembered: the job then chooses in each image, as for nuclei by their
    /// name, and images may have their channels in another order than the first one.
    pub(crate) fn inputs(&self, card: &ModelCard, settings: &Settings) -> Vec<ChannelRef> {
        let (channels, names) = (self.of(card), self.names(card));
        let is_remembered = |name: &&str| remembered(card, settings).first().is_some_and(|old| is_same_name(name, old));
        if card.input_channels == 1 && !names.iter().any(is_remembered) {
            return Vec::new();
        }
        let chosen = input_channels_among(card, &names, settings);
        let refer_to = |(input, channel): (usize, usize)| {
            let wanted = [remembered(card, settings).get(input), card.input_channel_names.get(input)];
            let is_wanted = |name: &str| wanted.iter().flatten().any(|wanted| is_same_name(wanted, name));
            let has_name = channels.get(channel).is_some_and(|c| c.is_stated && is_wanted(&c.name));
            by_name(&names, channel).filter(|_| has_name).unwrap_or(ChannelRef::Index(channel))
        };
        chosen.into_iter().enumerate().map(refer_to).collect()
    }
}

/// The channels of the first image of pairs whose channels the data do not state; `None` if there is none, or if it cannot be
/// read.
fn channels_in_pairs(data: &Path, task: TrainingTask) -> Option<Vec<PairChannel>> {
    let dataset = find_pairs(data, task).ok()?;
    let free = dataset.pairs.iter().find(|pair| pair.image.channel.is_none() && pair.more_images.is_empty())?;
    let image = cytoscope_formats::open(&free.image.path, &free.image.open_options()).ok()?;
    let meta = image.meta();
    let extents = Extents::of(meta);
    let channel = |number: usize| {
        let name = channel_title(meta, extents, number);
        let is_stated = meta.channels.get(number).is_some_and(|stated| stated.name.trim() == name);
        PairChannel { name, is_stated }
    };
    Some((0..extents.channels).map(channel).collect())
}

/// Chooses among channels with these names. `stained` is the one with the stain that the model was made for, judging by its name.
fn choose(
    inputs: impl Iterator<Item = usize>,
    model_names: &[String],
    remembered: &[String],
    (names, stained): (&[&str], Option<usize>),
) -> Vec<usize> {
    let find = |wanted: Option<&String>| {
        let wanted = wanted?;
        names.iter().position(|name| is_same_name(name, wanted))
    };
    // As in jobs, none of several channels with the name of an input is the one.
    let find_only = |wanted: Option<&String>| {
        let has_name = |name: &&&str| wanted.is_some_and(|wanted| is_same_name(name, wanted));
        find(wanted).filter(|_| names.iter().filter(has_name).count() == 1)
    };
    let known: Vec<Option<usize>> =
        inputs.map(|i| find(remembered.get(i)).or_else(|| find_only(model_names.get(i))).or(stained)).collect();
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
/// the first channel. The map may come from an output other than the chosen one, and may then lack them.
pub(crate) fn segment_channels(card: &ModelCard, settings: &Settings, map_channels: usize) -> [usize; 2] {
    let is_other = matches!(chosen_output(card, settings), Some(OutputTensor::Id(_)));
    let [channel, seeds] = [card.segment_channel, card.seed_channel];
    if is_other || channel.max(seeds) >= map_channels { [0, 0] } else { [channel, seeds] }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_formats::{Channel, Container, WriteSpec, write_array};
    use cytoscope_pipeline::cards::{OutputCard, card};
    use cytoscope_volume::Array;

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
        choose(0..2, &owned(model_names), &owned(remembered), (names, None))
    }

    #[test]
    fn channels_are_found_by_name_and_other_inputs_take_free_ones() {
        let names = ["DAPI", "actin", "Membrane"];
        assert_eq!(chosen(&["membrane", "nuclei"], &[], &names), [2, 0]);
        assert_eq!(chosen(&["membrane", "nuclei"], &["actin", "DAPI"], &names), [1, 0]);
        assert_eq!(chosen(&["membrane", "nuclei"], &["gone", "actin"], &names), [2, 1]);
        assert_eq!(chosen(&[], &[], &names), [0, 1]);
        assert_eq!(chosen(&["membrane", "nuclei"], &[], &["Membrane"]), [0], "the second channel is missing");
        assert_eq!(chosen(&["nuclei"], &[], &["actin", "nuclei", "Nuclei"]), [0, 1], "two have its name");
    }

    #[test]
    fn a_model_of_nuclei_reads_the_channel_of_nuclei_unless_another_is_remembered() {
        let title = "nuclei".to_owned();
        let model = ModelCard {
            input_channels: 1,
            task: Some(ModelTask::Segmentation),
            title,
            ..card("nuclei", Path::new("/no/such/model"))
        };
        let mut settings = Settings::default();
        assert_eq!(input_channels_among(&model, &["membrane", "DAPI"], &settings), [1]);
        assert_eq!(input_channels_among(&model, &["membrane", "DAPI", "Hoechst"], &settings), [0]);
        let unnamed = ModelCard { input_channel_names: vec!["raw".to_owned()], ..model.clone() };
        assert_eq!(input_channels_among(&unnamed, &["raw", "DAPI"], &settings), [1], "any channel may be raw");
        settings.channels_of_model.insert("nuclei".to_owned(), vec!["Membrane".to_owned()]);
        assert_eq!(input_channels_among(&model, &["membrane", "DAPI"], &settings), [0]);
    }

    #[test]
    fn channels_are_chosen_and_remembered_for_the_inputs_that_are_read_from_the_stack() {
        let input_channel_names = ["membrane", "nuclei"].map(str::to_owned).to_vec();
        let model = ModelCard { input_channels: 2, input_channel_names, ..card("two", Path::new("/no/such/model")) };
        let mut settings = Settings::default();
        let names = ["DAPI", "actin"];
        // The membrane is in another file.
        let second = |settings: &Settings| channels_of_inputs(&model, [1].into_iter(), &names, settings);
        assert_eq!(second(&settings), [0]);
        let remembered = names_to_remember(&model, &[(1, "actin")], &settings);
        assert_eq!(remembered, ["membrane", "actin"]);
        settings.channels_of_model.insert("two".to_owned(), remembered);
        assert_eq!(second(&settings), [1]);
        assert_eq!(input_channels_among(&model, &names, &settings), [0, 1]);
    }

    #[test]
    fn lists_of_channels_are_typed_with_commas() {
        let names = |text: &str| parse_channels(text).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names(" membrane, 2 ,"), ["membrane", "2"]);
        assert_eq!(parse_channels("2"), [ChannelRef::Index(2)]);
        assert!(parse_channels(" , ").is_empty());
    }

    /// Writes an image with these channels, and its label image, into a folder.
    fn write_pair(folder: &Path, name: &str, channels: &[&str]) {
        let count = channels.len();
        let image = Array::new("CZYX".parse().unwrap(), vec![count, 2, 4, 4], vec![1u16; count * 32]).unwrap();
        let mut spec = WriteSpec::of(&image, Container::OmeTiff);
        spec.channels = channels.iter().map(|c| Channel { name: (*c).to_owned(), color_rgb: None }).collect();
        write_array(&folder.join(format!("{name}_raw.ome.tif")), &image, &spec).unwrap();
        let labels = Array::new("ZYX".parse().unwrap(), vec![2, 4, 4], vec![1u16; 32]).unwrap();
        let spec = WriteSpec::of(&labels, Container::ImageJ);
        write_array(&folder.join(format!("{name}_labels.tif")), &labels, &spec).unwrap();
    }

    #[test]
    fn the_images_of_pairs_are_read_as_stacks_are_and_by_name_if_a_name_was_chosen() {
        let [two, one] = [&["noise", "DAPI"][..], &["DAPI"]].map(|channels| {
            let folder = tempfile::tempdir().unwrap();
            write_pair(folder.path(), "nuclei", channels);
            PairChannels::read(folder.path())
        });
        let task = Some(ModelTask::Segmentation);
        let model = ModelCard { task, input_channels: 1, ..card("nuclei", Path::new("/no/such/model")) };
        let mut settings = Settings::default();
        assert_eq!(two.names(&model), ["noise", "DAPI"]);
        assert!(two.inputs(&model, &settings).is_empty(), "nothing was chosen");
        let nuclear = ModelCard { title: "nuclei".to_owned(), ..model.clone() };
        assert_eq!(input_channels_among(&nuclear, &two.names(&nuclear), &settings), [1], "as shown");
        assert!(two.inputs(&nuclear, &settings).is_empty(), "chosen in each image");
        settings.channels_of_model.insert("nuclei".to_owned(), vec!["noise".to_owned()]);
        assert_eq!(two.inputs(&nuclear, &settings), [ChannelRef::Name("noise".to_owned())]);
        settings.channels_of_model.insert("nuclei".to_owned(), vec!["dapi".to_owned()]);
        assert_eq!(two.inputs(&model, &settings), [ChannelRef::Name("DAPI".to_owned())]);
        assert!(one.names(&model).is_empty() && one.inputs(&model, &settings).is_empty(), "there is no choice");
        let missing = PairChannels::read(Path::new("/no/such/pairs"));
        assert_eq!(missing, PairChannels::default());
    }
}
