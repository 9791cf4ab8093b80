//! The channel that training from a model of nuclei reads if none is chosen: the one that shows nuclei by its name, as predictions
//! with that model do.

use crate::config::TrainConfig;
use crate::data::find;
use crate::job::TrainJob;
use crate::network::start_model_path;
use crate::start::TrainStart;
use cytoscope_formats::open;
use cytoscope_pipeline::cards::{ModelCard, card};
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_training_data::setting::IMAGE_CHANNEL;
use cytoscope_training_data::{ImageRef, TrainingTask};
use std::path::Path;

/// Returns the settings with the channel of nuclei as that of the images, and a note, if segmentation is trained from a model of
/// nuclei, no channel is chosen, and the same one of several channels shows nuclei by its name in all images. Otherwise, and if
/// the data cannot be read, which is reported later, the settings stay as they are.
pub(crate) fn with_stained_channel(
    from: Option<&TrainStart>,
    data: &Path,
    task: TrainingTask,
    config: &TrainConfig,
) -> (TrainConfig, Option<Message>) {
    let mut config = config.clone();
    let is_chosen = config.data.image_channel.is_some() || !config.data.channels.is_empty();
    // A stain is predicted from transmitted light.
    let is_open = task == TrainingTask::Segmentation && !is_chosen;
    let found = from.filter(|_| is_open).and_then(|from| common_channel(from, data, task, &config));
    let Some((channel, name)) = found else { return (config, None) };
    config.data.image_channel = Some(channel);
    let note = message!(
        "the images have several channels; {name} is used because of its name (choose another with {IMAGE_CHANNEL})"
    );
    (config, Some(note))
}

impl TrainJob {
    /// Chooses the first channel for a recorded job that would read another one because of its name: newer records name that
    /// one, and earlier versions always read the first one.
    pub fn keep_recorded_channel(&mut self) {
        let (_, note) = with_stained_channel(Some(&self.from), &self.data, self.task, &self.config);
        if note.is_some() {
            self.config.data.image_channel = Some(0);
        }
    }
}

/// Returns the channel, from 1, that shows nuclei in all images whose channel the data do not state, with its name in the first
/// one.
fn common_channel(from: &TrainStart, data: &Path, task: TrainingTask, config: &TrainConfig) -> Option<(usize, String)> {
    let path = start_model_path(from.model()?).ok()?;
    let card = card("start", &path);
    // Other models are not looked for in the data.
    card.nuclear_channel(&["nuclei"])?;
    let dataset = find(data, task, config).ok()?.ok()?;
    let open_pairs = dataset.pairs.iter().filter(|pair| pair.image.channel.is_none() && pair.more_images.is_empty());
    let mut common: Option<(usize, String)> = None;
    for pair in open_pairs {
        let (channel, name) = nuclear_channel(&card, &pair.image)?;
        match &common {
            Some((other, _)) if *other != channel => return None,
            Some(_) => {}
            None => common = Some((channel, name)),
        }
    }
    common.filter(|(channel, _)| *channel > 0)
}

/// Returns the channel of an image that a model of nuclei reads because of its name, and the name.
fn nuclear_channel(card: &ModelCard, image: &ImageRef) -> Option<(usize, String)> {
    let opened = open(&image.path, &image.open_options()).ok()?;
    let names: Vec<&str> = opened.meta().channels.iter().map(|channel| channel.name.as_str()).collect();
    let channel = card.nuclear_channel(&names)?;
    Some((channel, (*names.get(channel)?).to_owned()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use crate::data_config::DataConfig;
    use cytoscope_formats::{Channel, Container, WriteSpec, write_array};
    use cytoscope_volume::Array;

    /// Writes a pair of an image with channels of these names and labels.
    fn write_pair(folder: &Path, name: &str, channels: &[&str]) {
        let image = Array::new("CZYX".parse().unwrap(), vec![channels.len(), 2, 4, 4], vec![1u16; channels.len() * 32]);
        let (image, labels) = (image.unwrap(), Array::new("ZYX".parse().unwrap(), vec![2, 4, 4], vec![1u16; 32]));
        let mut spec = WriteSpec::of(&image, Container::OmeTiff);
        let named = |name: &&str| Channel { name: (*name).to_owned(), color_rgb: None };
        spec.channels = channels.iter().map(named).collect();
        write_array(&folder.join(format!("{name}_raw.ome.tif")), &image, &spec).unwrap();
        let labels = labels.unwrap();
        let spec = WriteSpec::of(&labels, Container::ImageJ);
        write_array(&folder.join(format!("{name}_labels.tif")), &labels, &spec).unwrap();
    }

    #[test]
    fn training_from_a_model_of_nuclei_reads_the_channel_of_nuclei_in_all_images() {
        let folder = tempfile::tempdir().unwrap();
        let start = |name: &str| {
            let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(name);
            TrainStart::Model(package.to_str().unwrap().to_owned())
        };
        let found = |from: &TrainStart, data: DataConfig| {
            let config = TrainConfig { data, ..TrainConfig::default() };
            let task = TrainingTask::Segmentation;
            let (config, note) = with_stained_channel(Some(from), folder.path(), task, &config);
            (config.data.image_channel, note)
        };
        write_pair(folder.path(), "a", &["membrane", "DAPI"]);
        write_pair(folder.path(), "b", &["actin", "Hoechst"]);
        let (channel, note) = found(&start("nuclei"), DataConfig::default());
        assert_eq!(channel, Some(1));
        assert!(note.unwrap().contains("DAPI is used because of its name (choose another with data.image_channel)"));
        let chosen = DataConfig { image_channel: Some(0), ..DataConfig::default() };
        assert_eq!(found(&start("nuclei"), chosen), (Some(0), None));
        assert_eq!(found(&start("cells"), DataConfig::default()), (None, None));
        assert_eq!(found(&TrainStart::Scratch, DataConfig::default()), (None, None));
        // In one image, it is another channel.
        write_pair(folder.path(), "c", &["DAPI", "membrane"]);
        assert_eq!(found(&start("nuclei"), DataConfig::default()), (None, None));
    }

    #[test]
    fn a_training_run_of_an_earlier_version_is_repeated_with_the_first_channel() {
        let folder = tempfile::tempdir().unwrap();
        write_pair(folder.path(), "a", &["membrane", "DAPI"]);
        let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nuclei");
        let json = serde_json::json!({"task": "segmentation", "data": folder.path(), "from": package, "out": "m"});
        let recorded: TrainJob = serde_json::from_value(json).unwrap();
        let kept = |image_channel: Option<usize>| {
            let mut job = recorded.clone();
            job.config.data.image_channel = image_channel;
            job.keep_recorded_channel();
            job.config.data.image_channel
        };
        assert_eq!((kept(None), kept(Some(1))), (Some(0), Some(1)));
        // It has no other channel.
        write_pair(folder.path(), "a", &["DAPI"]);
        assert_eq!(kept(None), None);
    }

    #[test]
    fn a_stain_is_not_predicted_from_the_channel_of_nuclei() {
        let folder = tempfile::tempdir().unwrap();
        write_pair(folder.path(), "a", &["transmitted light", "DAPI"]);
        let labels = folder.path().join("a_labels.tif");
        std::fs::rename(labels, folder.path().join("a_target.tif")).unwrap();
        let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nuclei");
        let from = TrainStart::Model(package.to_str().unwrap().to_owned());
        let config = TrainConfig::default();
        let dataset = find(folder.path(), TrainingTask::LabelFree, &config).unwrap().unwrap();
        assert_eq!(dataset.pairs.len(), 1);
        let (found, note) = with_stained_channel(Some(&from), folder.path(), TrainingTask::LabelFree, &config);
        assert_eq!((found.data.image_channel, note), (None, None));
    }
}
