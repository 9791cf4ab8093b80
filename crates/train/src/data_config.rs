//! Settings of the training data: which channels, time point and axes of the files to use.

use crate::error::{wrong_use, wrong_use_with};
use cytoscope_formats::{ChannelRef, SeriesChoice};
use cytoscope_pipeline::JobError;
use cytoscope_storage::message;
use cytoscope_training_data::setting::{
    AXES, DataSetting, IMAGE_CHANNEL, IMAGE_CHANNELS, LABELS_CHANNEL, SAME_FILE, SPLIT_COLUMN, TARGET_CHANNEL, TARGETS,
    VOXEL_UM,
};
use cytoscope_training_data::{FindOptions, SpacingOrder};
use cytoscope_volume::Axes;
use serde::{Deserialize, Serialize};

/// Maximum number of input channels, and of targets.
const MAX_CHANNELS: usize = 64;

/// Which part of the files to use, and metadata that the files lack or state wrongly.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataConfig {
    /// Channel of the images, counted from 0, if they have several; for nnU-Net data, the number in `_0000`, `_0001`, …
    pub image_channel: Option<usize>,
    /// Channel of the targets, counted from 0, if they have several.
    pub target_channel: Option<usize>,
    /// Input channels of the network by number or name, in order, such as `["membrane", "nuclei"]`; instead of
    /// `image_channel`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<ChannelRef>,
    /// Channels of the targets by number or name: one or several stains, or one label image; instead of
    /// `target_channel`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<ChannelRef>,
    /// The label image that segmentation is trained on, such as `"nuclei"`: the number or name of a channel if label files
    /// have several, or the name of a label file, folder or table column if images have several; instead of
    /// `target_channel` and `targets`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels_channel: Option<ChannelRef>,
    /// Image and target are channels of the same file, so that each file is a pair.
    pub same_file: bool,
    /// Series of images and targets by number or name, or `"all"`, if their files have several.
    #[serde(skip_serializing_if = "SeriesChoice::is_first")]
    pub series: SeriesChoice,
    /// Time point of images and targets, counted from 0, if they have several.
    pub time: Option<usize>,
    /// Axes of the files, such as `ZYX`, if their own are wrong.
    pub axes: Option<Axes>,
    /// Voxel size along Z, Y, X in µm, if the files lack it or state it wrongly.
    pub voxel_um: Option<[f64; 3]>,
    /// Ignore label of all label images: its voxels count neither in the loss nor in scores.
    pub ignore_label: Option<i64>,
    /// Column of a table that assigns rows to train, valid or test.
    pub split_column: Option<String>,
    /// Order of the numbers of nnU-Net's `spacing`.
    pub spacing_order: Option<SpacingOrder>,
}

/// What to do about settings that exclude each other.
const REMOVE_ONE: &str = "remove one of them";

impl DataConfig {
    /// Checks that the settings are valid and consistent.
    pub(crate) fn check(&self) -> Result<(), JobError> {
        check_list(IMAGE_CHANNELS, &self.channels, IMAGE_CHANNEL, self.image_channel)?;
        check_list(TARGETS, &self.targets, TARGET_CHANNEL, self.target_channel)?;
        let images = chosen(&self.channels, self.image_channel);
        if let Some(channel) = &self.labels_channel {
            if self.target_channel.is_some() || !self.targets.is_empty() {
                let problem = message!("{LABELS_CHANNEL} excludes {TARGET_CHANNEL} and {TARGETS}");
                return Err(wrong_use_with(problem, REMOVE_ONE));
            }
            if matches!(channel, ChannelRef::Name(name) if name.trim().is_empty()) {
                return Err(wrong_use(message!("{LABELS_CHANNEL} is empty: expected the name or number of a channel")));
            }
        }
        let targets = match &self.labels_channel {
            Some(channel) => vec![channel.clone()],
            None => chosen(&self.targets, self.target_channel),
        };
        let differ = !images.is_empty() && !targets.is_empty() && images.iter().all(|c| !targets.contains(c));
        if self.same_file && !differ {
            return Err(wrong_use_with(
                message!("{SAME_FILE} requires two different channels of the file"),
                message!(
                    "set {IMAGE_CHANNEL} and {TARGET_CHANNEL} (or the lists {IMAGE_CHANNELS} and {TARGETS}, or \
                     {LABELS_CHANNEL})"
                ),
            ));
        }
        if let Some(voxel) = self.voxel_um.filter(|v| v.iter().any(|s| !(1e-6..=1e6).contains(s))) {
            return Err(wrong_use(message!("{VOXEL_UM} is {voxel:?}: expected three numbers above 0, in µm")));
        }
        if self.axes.as_ref().is_some_and(|axes| axes.iter().next().is_none()) {
            return Err(wrong_use(message!("{AXES}: expected some of the letters T, Z, C, Y, X, S, such as \"ZYX\"")));
        }
        if self.split_column.as_ref().is_some_and(|name| name.trim().is_empty()) {
            return Err(wrong_use(message!("{SPLIT_COLUMN} is empty: expected the name of a column")));
        }
        Ok(())
    }

    /// Returns the options for finding pairs.
    pub(crate) fn find_options(&self) -> FindOptions {
        FindOptions {
            same_file: self.same_file,
            image_channel: self.image_channel,
            target_channel: self.target_channel,
            image_channels: self.channels.clone(),
            target_channels: self.targets.clone(),
            labels_channel: self.labels_channel.clone(),
            series: self.series.clone(),
            time: self.time,
            axes: self.axes.clone(),
            split_column: self.split_column.as_ref().map(|name| name.trim().to_owned()),
            voxel_um: self.voxel_um,
            spacing_order: self.spacing_order,
        }
    }

    /// Returns the names of the network's input channels; `image` for a single one.
    pub(crate) fn input_names(&self) -> Vec<String> {
        channel_names(&self.channels, "image")
    }

    /// Returns the names of the stains that the network predicts; `intensity` for a single one.
    pub(crate) fn stain_names(&self) -> Vec<String> {
        channel_names(&self.targets, "intensity")
    }
}

/// Returns the names of listed channels, as prediction calls channels without a name; `single` for at most one.
fn channel_names(listed: &[ChannelRef], single: &str) -> Vec<String> {
    if listed.len() < 2 {
        return vec![single.to_owned()];
    }
    let name = |channel: &ChannelRef| match channel {
        ChannelRef::Index(number) => format!("channel{number}"),
        ChannelRef::Name(name) => name.trim().to_owned(),
    };
    listed.iter().map(name).collect()
}

/// Returns the listed channels, or else the one with this number.
fn chosen(listed: &[ChannelRef], number: Option<usize>) -> Vec<ChannelRef> {
    if listed.is_empty() { number.map(ChannelRef::Index).into_iter().collect() } else { listed.to_vec() }
}

/// Checks a list of channels; `single` is the setting that it replaces.
fn check_list(
    key: DataSetting,
    listed: &[ChannelRef],
    single: DataSetting,
    number: Option<usize>,
) -> Result<(), JobError> {
    if !listed.is_empty() && number.is_some() {
        return Err(wrong_use_with(message!("{key} and {single} cannot be used together"), REMOVE_ONE));
    }
    if listed.len() > MAX_CHANNELS {
        return Err(wrong_use(message!("{key} lists {} channels, expected at most {MAX_CHANNELS}", listed.len())));
    }
    let mut names = channel_names(listed, "").into_iter().map(|name| name.to_lowercase()).collect::<Vec<_>>();
    names.sort();
    if let Some(twice) = names.windows(2).find(|pair| pair.first() == pair.last()).and_then(|pair| pair.first()) {
        return Err(wrong_use_with(message!("{key} lists {twice} twice"), "list each channel once"));
    }
    if listed.iter().any(|channel| matches!(channel, ChannelRef::Name(name) if name.trim().is_empty())) {
        return Err(wrong_use_with(message!("{key} lists a channel without a name"), "write numbers or names"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TrainConfig;
    use std::str::FromStr;

    fn read(text: &str) -> Result<TrainConfig, String> {
        let config: TrainConfig = toml::from_str(text).map_err(|e| e.to_string())?;
        config.check().map_err(|e| e.to_string())?;
        Ok(config)
    }

    #[test]
    fn settings_that_messages_name_exist() {
        let refusal = |table: &str, key: &str| read(&format!("[{table}]\n{key} = {{}}\n")).err().unwrap();
        for setting in DataSetting::ALL.iter().filter(|setting| **setting != DataSetting::InSettings) {
            let name = setting.text().split(' ').next().unwrap();
            let (table, key) = name.split_once('.').unwrap();
            assert!(!refusal(table, key).contains("unknown field"), "{setting}");
        }
        assert!(refusal("data", "nothing").contains("unknown field"));
    }

    #[test]
    fn data_settings_become_find_options() {
        let all = "[data]\nimage_channel = 2\ntarget_channel = 1\nseries = \"all\"\ntime = 4\naxes = \"ZYX\"\n\
                   voxel_um = [2.0, 0.5, 0.5]\nsplit_column = \"fold\"\nspacing_order = \"xyz\"\n";
        let config = read(all).unwrap();
        let options = FindOptions {
            same_file: false,
            image_channels: Vec::new(),
            target_channels: Vec::new(),
            labels_channel: None,
            image_channel: Some(2),
            target_channel: Some(1),
            series: SeriesChoice::All,
            time: Some(4),
            axes: Some("ZYX".parse().unwrap()),
            split_column: Some("fold".to_owned()),
            voxel_um: Some([2.0, 0.5, 0.5]),
            spacing_order: Some(SpacingOrder::Xyz),
        };
        assert_eq!(config.data.find_options(), options);
        let same_file = read(&format!("{all}same_file = true\n")).unwrap().data.find_options();
        assert_eq!(same_file, FindOptions { same_file: true, ..options });
        assert_eq!(read("").unwrap().data.find_options(), FindOptions::default());
        // The settings in a checkpoint are read back unchanged.
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<TrainConfig>(&text).unwrap(), config);
    }

    #[test]
    fn channels_are_listed_by_number_and_name() {
        let config = read("[data]\nchannels = [\"Membrane\", 2]\ntargets = [\"a\", \"b\"]\n").unwrap();
        assert_eq!(
            config.data.find_options().image_channels,
            ["Membrane", "2"].map(|c| c.parse::<ChannelRef>().unwrap())
        );
        assert_eq!(config.data.input_names(), ["Membrane", "channel2"]);
        assert_eq!(config.data.stain_names(), ["a", "b"]);
        assert_eq!(read("[data]\nchannels = [\"nuclei\"]\n").unwrap().data.input_names(), ["image"]);
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<TrainConfig>(&text).unwrap(), config);
        let given = |text: &str| crate::SettingAssignment::from_str(text).unwrap();
        let set = TrainConfig::read_with(None, &[given("data.channels=[\"Membrane\", 2]")]).unwrap();
        assert_eq!(set.data.channels, config.data.channels);
    }

    #[test]
    fn the_label_image_is_chosen_by_name_or_number() {
        for (text, channel) in [("\"nuclei\"", ChannelRef::Name("nuclei".to_owned())), ("1", ChannelRef::Index(1))] {
            let config = read(&format!("[data]\nlabels_channel = {text}\n")).unwrap();
            assert_eq!(config.data.find_options().labels_channel, Some(channel));
            let text = serde_json::to_string(&config).unwrap();
            assert_eq!(serde_json::from_str::<TrainConfig>(&text).unwrap(), config);
        }
        let one_file = "[data]\nsame_file = true\nimage_channel = 0\nlabels_channel = \"nuclei\"\n";
        assert!(read(one_file).is_ok());
    }

    #[test]
    fn invalid_data_settings_are_refused_by_name() {
        for (text, words) in [
            ("labels_channel = 1\ntarget_channel = 1", "data.labels_channel excludes"),
            ("labels_channel = \"a\"\ntargets = [1]", "data.labels_channel excludes"),
            ("labels_channel = \" \"", "data.labels_channel is empty"),
            ("same_file = true\nimage_channel = 1\nlabels_channel = 1", "two different"),
            ("channels = [0, 1]\nimage_channel = 1", "cannot be used together"),
            ("targets = [0, 1]\ntarget_channel = 1", "data.target_channel"),
            ("channels = [\"a\", \"A \"]", "a twice"),
            ("channels = [\"a\", \" \"]", "without a name"),
            ("same_file = true\nchannels = [0, 1]\ntargets = [1]", "two different"),
            ("chanel = 1", "chanel"),
            ("same_file = true", "data.image_channel"),
            ("same_file = true\nimage_channel = 1\ntarget_channel = 1", "two different"),
            ("voxel_um = [0.0, 1.0, 1.0]", "data.voxel_um"),
            ("axes = \"\"", "data.axes"),
            ("axes = \"ZYQ\"", "ZYQ"),
            ("split_column = \" \"", "data.split_column"),
            ("image_channel = -1", "image_channel"),
        ] {
            let error = read(&format!("[data]\n{text}\n")).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
