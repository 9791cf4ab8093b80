//! nnU-Net's layout: `imagesTr/CASE_0000.tif`, `labelsTr/CASE.tif`, `dataset.json`, and `CASE.json` with the spacing.

use super::folder::{insert_target, report_same_name};
use super::names::{file_name, is_image, read_text, stem};
use super::{FindOptions, Listing, SearchResults, SpacingOrder};
use crate::dataset::{Convention, ImageRef, Pair, Part, Problem, TrainingTask};
use crate::error::TrainingDataError;
use crate::setting::{IMAGE_CHANNEL, IMAGE_CHANNELS, IN_SETTINGS, SPACING_ORDER};
use cytoscope_formats::{ChannelRef, file_stem};
use cytoscope_storage::message;
use cytoscope_volume::VoxelSize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Splits `CASE_0001` into the name of the case and the number of the channel.
fn case_and_channel(stem: &str) -> Option<(&str, usize)> {
    let (case, number) = stem.rsplit_once('_')?;
    let digits = number.len() == 4 && number.bytes().all(|b| b.is_ascii_digit());
    Some((case, number.parse().ok().filter(|_| digits)?))
}

fn json(path: &Path) -> Result<Value, TrainingDataError> {
    serde_json::from_slice(&read_text(path)?)
        .map_err(|e| TrainingDataError::data(path, format!("it is not valid JSON: {e}"), "correct or remove the file"))
}

/// Content of `dataset.json`.
struct Declaration {
    /// Extension of the images, with its dot.
    file_ending: Option<String>,
    ignore_label: Option<i64>,
    labels_are_classes: bool,
}

impl Declaration {
    fn read(path: &Path) -> Result<Self, TrainingDataError> {
        let about = json(path)?;
        let wrong = |what: &str, value: &Value, expected: &str| {
            TrainingDataError::data(path, format!("its {what} is {value}"), format!("write {expected}"))
        };
        let stated = |from: &Value, key: &str| from.get(key).filter(|v| !v.is_null()).cloned();
        let file_ending = match stated(&about, "file_ending") {
            None => None,
            Some(Value::String(ending)) => Some(ending),
            Some(other) => return Err(wrong("file_ending", &other, "the extension of the images, such as \".tif\"")),
        };
        let labels = stated(&about, "labels");
        if let Some(other) = labels.as_ref().filter(|labels| !labels.is_object()) {
            return Err(wrong("labels", other, "a mapping of names to numbers"));
        }
        let ignore = labels.as_ref().and_then(|labels| stated(labels, "ignore"));
        let ignore_label = ignore.map(|v| v.as_i64().ok_or_else(|| wrong("label \"ignore\"", &v, "an integer")));
        Ok(Self { file_ending, ignore_label: ignore_label.transpose()?, labels_are_classes: labels.is_some() })
    }
}

/// Reads a dataset folder; the test set only if it has labels.
pub(crate) fn read(
    folder: &Path,
    task: TrainingTask,
    options: &FindOptions,
    found: &mut SearchResults,
) -> Result<(), TrainingDataError> {
    let listing = Listing::of(folder, found)?;
    let extension = declaration(folder, &listing, found)?;
    found.add_convention(Convention::NnUnet);
    let wanted = channel_numbers(folder, options)?;
    let mut spacing_seen = false;
    for (images, labels, part) in [("imagesTr", "labelsTr", None), ("imagesTs", "labelsTs", Some(Part::Test))] {
        let Some(image_folder) = listing.folder(images) else { continue };
        let Some(label_folder) = listing.folder(labels) else {
            if part.is_none() {
                let next_step = "add the folder labelsTr, with files named like the images without _0000";
                return Err(TrainingDataError::data(folder, "it contains imagesTr but no labelsTr", next_step));
            }
            continue;
        };
        let image_files = Listing::of(image_folder, found)?;
        let label_files = Listing::of(label_folder, found)?;
        if let Some(extension) = extension.as_deref().filter(|e| !is_image(Path::new(&format!("x{e}")))) {
            let next_step = "convert images and labels to .tif, and set file_ending in dataset.json";
            let problem = format!("its files have the extension {extension}, which is not supported");
            return Err(TrainingDataError::data(folder, problem, next_step));
        }
        let set = Subset { image_folder, label_folder, images: &image_files, part, wanted: &wanted };
        spacing_seen |= set.add(&label_files, options, found);
    }
    if spacing_seen && options.spacing_order.is_none() {
        let problem = "the spacing beside the images is interpreted as Z, Y, X; some programs write X, Y, Z";
        let next_step = message!(
            "check the voxel sizes, and set {SPACING_ORDER} {IN_SETTINGS} to \"zyx\", or to \"xyz\" if they are reversed"
        );
        found.problems.push(Problem::warning(folder, problem, next_step));
    }
    if task == TrainingTask::LabelFree {
        let problem = "nnU-Net's layout contains label images, which are used as intensities here";
        found.problems.push(Problem::warning(folder, problem, "choose segmentation, or another folder"));
    }
    Ok(())
}

/// Reads `dataset.json`: the labels, and the extension of the files, which is returned.
fn declaration(
    folder: &Path,
    listing: &Listing,
    found: &mut SearchResults,
) -> Result<Option<String>, TrainingDataError> {
    let Some(path) = listing.file("dataset.json") else {
        let problem = "there is no dataset.json, which declares the labels";
        found.problems.push(Problem::warning(folder, problem, "add it if there is an ignore label"));
        return Ok(None);
    };
    let about = Declaration::read(path)?;
    found.ignore_label = about.ignore_label;
    found.labels_are_classes = about.labels_are_classes;
    Ok(about.file_ending)
}

/// Returns the numbers of the channels to use, as in the file names.
fn channel_numbers(folder: &Path, options: &FindOptions) -> Result<Vec<usize>, TrainingDataError> {
    if options.image_channels.is_empty() {
        return Ok(vec![options.image_channel.unwrap_or(0)]);
    }
    let number = |channel: &ChannelRef| match channel {
        ChannelRef::Index(number) => Ok(*number),
        ChannelRef::Name(name) => Err(TrainingDataError::data(
            folder,
            format!("the channels of nnU-Net data are files, so there is no channel \"{name}\""),
            message!("give the numbers in the file names in {IMAGE_CHANNELS}: 0 for _0000, 1 for _0001"),
        )),
    };
    options.image_channels.iter().map(number).collect()
}

/// The images and labels for one part of the data.
struct Subset<'a> {
    image_folder: &'a Path,
    label_folder: &'a Path,
    /// Files of the image folder.
    images: &'a Listing,
    part: Option<Part>,
    /// Numbers of the channels to use; at least one.
    wanted: &'a [usize],
}

impl Subset<'_> {
    /// Adds the pairs, and a problem for each file without a counterpart. Returns whether a pair has a spacing.
    fn add(&self, label_files: &Listing, options: &FindOptions, found: &mut SearchResults) -> bool {
        let mut spacing_seen = false;
        let mut targets: BTreeMap<String, PathBuf> = BTreeMap::new();
        for file in label_files.files.iter().filter(|f| is_image(f)) {
            insert_target(&mut targets, stem(file), file.clone(), found);
        }
        let mut cases: BTreeMap<String, BTreeMap<usize, PathBuf>> = BTreeMap::new();
        for file in self.images.files.iter().filter(|f| is_image(f)) {
            let stem = stem(file);
            let (case, channel) = case_and_channel(&stem).unwrap_or((&stem, 0));
            if let Some(other) = cases.entry(case.to_owned()).or_default().insert(channel, file.clone()) {
                report_same_name(&other, "image", found);
            }
        }
        for (case, channels) in cases {
            if let Some(pair) = self.pair(&case, &channels, &mut targets, options, found) {
                spacing_seen |= pair.voxel_um.is_some();
                found.pairs.push(pair);
            }
        }
        for file in targets.into_values() {
            let next_step = format!("add its image to {}, with _0000 after its name", self.image_folder.display());
            found.problems.push(Problem::warning(&file, "these labels have no image", next_step));
        }
        spacing_seen
    }

    /// Returns the pair of a case; a case without the channel or without labels becomes a problem.
    fn pair(
        &self,
        case: &str,
        channels: &BTreeMap<usize, PathBuf>,
        targets: &mut BTreeMap<String, PathBuf>,
        options: &FindOptions,
        found: &mut SearchResults,
    ) -> Option<Pair> {
        let is_chosen = options.image_channel.is_some() || !options.image_channels.is_empty();
        if let Some(channel) = self.wanted.iter().find(|channel| !channels.contains_key(*channel)) {
            let file = channels.values().next().cloned().unwrap_or_else(|| self.image_folder.join(case));
            let problem = format!("case {case} has no channel {channel} (no file {case}_{channel:04})");
            let next_step =
                message!("set {IMAGE_CHANNEL} (or {IMAGE_CHANNELS}) {IN_SETTINGS} to channels that every case has");
            found.problems.push(Problem::warning(&file, problem, next_step));
            return None;
        }
        let mut images = self.wanted.iter().filter_map(|channel| channels.get(channel));
        let image = images.next()?;
        let Some(target) = targets.remove(case) else {
            let next_step = format!("add the labels of {case} to {}", self.label_folder.display());
            found.problems.push(Problem::warning(image, "this image has no labels", next_step));
            return None;
        };
        if channels.len() > 1 && !is_chosen {
            let problem = format!("case {case} has {} channels; the first one is used", channels.len());
            let next_step =
                message!("set {IMAGE_CHANNEL} (or {IMAGE_CHANNELS}) {IN_SETTINGS} to the channels of the images");
            found.problems.push(Problem::warning(image, problem, next_step));
        }
        let mut pair = Pair { part: self.part, ..Pair::new(case.to_owned(), image, target) };
        // The channel is the number in the file name; the file itself has a single channel.
        pair.image.channel = is_chosen.then_some(0);
        pair.more_images = images.map(|file| ImageRef { channel: Some(0), ..ImageRef::of(file) }).collect();
        let beside = [format!("{case}.json"), file_name(image).replace(&file_extension(image), ".json")];
        if let Some(path) = beside.iter().find_map(|n| self.images.file(n)) {
            pair.voxel_um = spacing(path, options, found);
        }
        Some(pair)
    }
}

fn file_extension(path: &Path) -> String {
    let name = file_name(path);
    name.get(file_stem(path).len()..).unwrap_or_default().to_owned()
}

/// Reads the voxel size along Z, Y, X in µm from the JSON file of an image.
fn spacing(path: &Path, options: &FindOptions, found: &mut SearchResults) -> Option<[f64; 3]> {
    let content = match json(path) {
        Ok(content) => content,
        Err(error) => {
            let next_step = "correct the file, or write the voxel size along Z, Y, X in µm";
            found.problems.push(Problem::warning(path, error.to_string(), next_step));
            return None;
        }
    };
    let numbers = |v: &Value| {
        let list = v.get("spacing")?.as_array()?.iter().map(Value::as_f64).collect::<Option<Vec<_>>>()?;
        <[f64; 3]>::try_from(list).ok()
    };
    let Some(mut numbers) = numbers(&content) else {
        let problem = "it has no \"spacing\" of three positive numbers";
        found.problems.push(Problem::warning(path, problem, "write the voxel size along Z, Y, X in µm"));
        return None;
    };
    if options.spacing_order == Some(SpacingOrder::Xyz) {
        numbers.reverse();
    }
    let [z, y, x] = numbers;
    if let Err(implausible) = VoxelSize::new_um(z, y, x).check() {
        let next_step = "write the voxel size along Z, Y, X in µm";
        found.problems.push(Problem::warning(path, implausible.to_string(), next_step));
        return None;
    }
    Some(numbers)
}
