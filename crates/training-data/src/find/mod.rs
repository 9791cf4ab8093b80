//! Finding pairs of image and target in folders and tables.

mod folder;
mod labels;
mod names;
mod nnunet;
mod series;
mod suffixes;
mod table;

use crate::check::problem_from_error;
use crate::dataset::{Convention, Dataset, ImageRef, Pair, Part, Problem, TrainingTask};
use crate::error::{NO_PAIR, TrainingDataError, check_limit, check_range, most_common_problem};
use crate::limits::{MAX_FILES, MAX_PAIRS};
use crate::setting::{IMAGE_CHANNEL, IN_SETTINGS, SAME_FILE, SPACING_ORDER, SPLIT_COLUMN, TARGET_CHANNEL};
use crate::stack::{Role, channel_names, open_image};
use crate::summary;
use cytoscope_formats::{ChannelRef, SeriesChoice, find_channels, is_roi_name};
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_volume::Axes;
use names::Listing;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Axis order of `spacing` in the JSON files beside nnU-Net's TIFF files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpacingOrder {
    /// The values are in the order Z, Y, X.
    #[default]
    Zyx,
    /// The values are in the order X, Y, Z.
    Xyz,
}

/// How pairs are found in a folder, and what is assumed about their files.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FindOptions {
    /// Every file is a pair: some of its channels are the image, others the target.
    pub same_file: bool,
    /// Channel of the images, if they have several (for nnU-Net, the number in `_0000`, `_0001`, …).
    pub image_channel: Option<usize>,
    /// Channel of the targets, if they have several.
    pub target_channel: Option<usize>,
    /// Channels of the images, by number or name, in the order of the network's inputs (for nnU-Net, the numbers in
    /// `_0000`, `_0001`, …); if not empty, `image_channel` is ignored.
    pub image_channels: Vec<ChannelRef>,
    /// Channels of the targets, by number or name: several stains, or one label image; if not empty, `target_channel` is
    /// ignored.
    pub target_channels: Vec<ChannelRef>,
    /// Label image to train on, by name or number, if label files have several channels, or by name, if an image has
    /// several label files. For segmentation only; the channels of the targets are then ignored.
    pub labels_channel: Option<ChannelRef>,
    /// Series of images and targets in files of several: positions, scenes or wells. With [`SeriesChoice::All`], each is a
    /// separate pair.
    pub series: SeriesChoice,
    /// Time point of images and targets, if they have several.
    pub time: Option<usize>,
    /// Axes of the files, such as `ZYX`, if their own are wrong.
    pub axes: Option<Axes>,
    /// Column of a table with the part of the data (`train`, `valid`, `test`); usual names such as `split` are
    /// detected.
    pub split_column: Option<String>,
    /// Voxel size along Z, Y, X in µm, if the files lack it or state it wrongly.
    pub voxel_um: Option<[f64; 3]>,
    /// Axis order of nnU-Net's `spacing`; by default Z, Y, X, with a warning.
    pub spacing_order: Option<SpacingOrder>,
}

/// Finds the pairs under a path with the defaults of [`FindOptions`]: a folder in one of the usual layouts, a table, or
/// an nnU-Net `dataset.json`. Files without a counterpart become problems of the dataset.
///
/// Only file names and small text files are read, and the metadata of the images if channels are chosen by a list;
/// [`crate::check`] reads the images.
///
/// # Errors
/// [`TrainingDataError`] if the path cannot be read, a limit is exceeded, or there is no pair.
pub fn find_pairs(path: &Path, task: TrainingTask) -> Result<Dataset, TrainingDataError> {
    find_pairs_with(path, task, &FindOptions::default())
}

/// Like [`find_pairs`], with options.
///
/// # Errors
/// Same as [`find_pairs`].
pub fn find_pairs_with(path: &Path, task: TrainingTask, options: &FindOptions) -> Result<Dataset, TrainingDataError> {
    let about = std::fs::metadata(path).map_err(TrainingDataError::io(path, "opening the training data"))?;
    let mut found = SearchResults::default();
    if about.is_dir() {
        folder::search(path, task, options, &mut found)?;
    } else if names::extension(path) == "csv" {
        table::read(path, task, options, None, &mut found)?;
    } else if path.file_name().is_some_and(|n| n == "dataset.json") {
        let folder = path.parent().unwrap_or(Path::new("."));
        nnunet::read(folder, task, options, &mut found)?;
    } else if options.same_file && names::is_image(path) {
        found.add_channels(path, None);
    } else {
        return Err(TrainingDataError::data(
            path,
            "this is a single file, but training needs pairs of an image and its target",
            message!(
                "choose the folder with both, or a table (.csv) of the files; for two channels of this file, set \
                 {SAME_FILE}, {IMAGE_CHANNEL} and {TARGET_CHANNEL} {IN_SETTINGS}"
            ),
        ));
    }
    found.finish(path, task, options)
}

/// Results of a search so far.
#[derive(Debug, Default)]
pub(crate) struct SearchResults {
    pairs: Vec<Pair>,
    /// Files without a counterpart, and other problems that do not end the search.
    problems: Vec<Problem>,
    conventions: Vec<Convention>,
    /// Ignore label that nnU-Net's `dataset.json` or a table declares.
    ignore_label: Option<i64>,
    /// Whether nnU-Net's `dataset.json` declares classes, so that labels are not objects.
    labels_are_classes: bool,
    /// Label files that were chosen by the name of the file, its folder or its column.
    named_labels: BTreeSet<PathBuf>,
    /// Number of files and folders searched.
    seen: u64,
}

impl SearchResults {
    /// Adds a layout, unless it is already known.
    pub fn add_convention(&mut self, convention: Convention) {
        if !self.conventions.contains(&convention) {
            self.conventions.push(convention);
        }
    }

    /// Adds a pair of files.
    pub fn add(&mut self, name: &str, image: &Path, target: &Path, part: Option<Part>, weight: f64) {
        self.pairs.push(Pair { part, weight, ..Pair::new(name, image, target) });
    }

    /// Adds a pair whose image and target are channels of one file.
    pub fn add_channels(&mut self, file: &Path, part: Option<Part>) {
        self.pairs.push(Pair { part, ..Pair::new(names::stem(file), file, file) });
        self.add_convention(Convention::Channels);
    }

    /// Adds to the number of files and folders searched, and checks it against the limit.
    pub fn count_entries(&mut self, folder: &Path, count: u64) -> Result<(), TrainingDataError> {
        self.seen = self.seen.saturating_add(count);
        let next_step = "choose the folder that directly contains the training data";
        check_limit(folder, "the number of files searched", self.seen, ("MAX_FILES", MAX_FILES), next_step)
    }

    fn finish(mut self, root: &Path, task: TrainingTask, options: &FindOptions) -> Result<Dataset, TrainingDataError> {
        let check_pairs = |pairs: &[Pair]| {
            check_limit(
                root,
                "the number of pairs",
                pairs.len() as u64,
                ("MAX_PAIRS", MAX_PAIRS),
                "use a part of the data",
            )
        };
        check_pairs(&self.pairs)?;
        self.choose_series(options);
        check_pairs(&self.pairs)?;
        self.choose_channels(options);
        if self.pairs.is_empty() {
            let advice: Message = match task {
                TrainingTask::Segmentation => {
                    "put images and label images side by side as NAME.tif and NAME_masks.tif, NAME_raw.tif and \
                     NAME_labels.tif, or into the folders images and masks"
                        .into()
                }
                TrainingTask::LabelFree => message!(
                    "put both stacks side by side as NAME_bf.tif and NAME_fluo.tif, into the folders brightfield and \
                     signal; for two channels of one file, set {SAME_FILE}, {IMAGE_CHANNEL} and {TARGET_CHANNEL} \
                     {IN_SETTINGS}"
                ),
            };
            if self.problems.is_empty() {
                return Err(TrainingDataError::data(root, NO_PAIR, advice));
            }
            self.problems.sort_by(|a, b| (&a.file, a.message.as_str()).cmp(&(&b.file, b.message.as_str())));
            let next_step =
                summary::kinds(&self.problems).first().map_or(advice, |kind| kind.example.next_step.clone());
            let problem = message!("{NO_PAIR}: {}", most_common_problem(&self.problems));
            return Err(TrainingDataError::NoPairs { dataset: Box::new(self.dataset(root, task)), problem, next_step });
        }
        refuse_unused(root, &self.conventions, options)?;
        for um in options.voxel_um.into_iter().flatten() {
            check_range("the voxel size", um, 1e-6..=1e6, "a length above 0 and up to 1 000 000 µm")?;
        }
        for pair in &mut self.pairs {
            pair.voxel_um = options.voxel_um.or(pair.voxel_um);
        }
        self.pairs.sort_by(|a, b| (&a.name, &a.image.path).cmp(&(&b.name, &b.image.path)));
        make_names_unique(&mut self.pairs, root);
        self.pairs.sort_by(|a, b| a.name.cmp(&b.name));
        self.problems.sort_by(|a, b| (&a.file, a.message.as_str()).cmp(&(&b.file, b.message.as_str())));
        Ok(self.dataset(root, task))
    }

    /// Sets the series of all pairs. A pair whose files do not have the series becomes a problem.
    fn choose_series(&mut self, options: &FindOptions) {
        if options.series.is_first() {
            return;
        }
        let expand = |mut pair: Pair| {
            let further = pair.more_images.iter_mut().chain(&mut pair.more_targets);
            for image in [&mut pair.image, &mut pair.target].into_iter().chain(further) {
                image.axes = options.axes.clone();
            }
            let path = pair.image.path.clone();
            series::expand_pair(pair, &options.series).map_err(|error| Box::new(problem_from_error(&error, &path)))
        };
        let pairs = std::mem::take(&mut self.pairs);
        let chosen: Vec<Result<Vec<Pair>, Box<Problem>>> = pairs.into_par_iter().map(expand).collect();
        for result in chosen {
            match result {
                Ok(pairs) => self.pairs.extend(pairs),
                Err(problem) => self.problems.push(*problem),
            }
        }
    }

    /// Sets channels, time point and axes of all pairs. A pair without one of the channels becomes a problem.
    fn choose_channels(&mut self, options: &FindOptions) {
        let (pairs, named) = (std::mem::take(&mut self.pairs), std::mem::take(&mut self.named_labels));
        let chosen: Vec<Result<Pair, Box<Problem>>> = pairs
            .into_par_iter()
            .map(|pair| {
                let is_named = named.contains(&pair.target.path);
                choose_channels(pair, options, is_named)
            })
            .collect();
        for result in chosen {
            match result {
                Ok(pair) => self.pairs.push(pair),
                Err(problem) => self.problems.push(*problem),
            }
        }
    }

    fn dataset(self, root: &Path, task: TrainingTask) -> Dataset {
        Dataset {
            task,
            root: root.to_owned(),
            conventions: self.conventions,
            pairs: self.pairs,
            problems: self.problems,
            ignore_label: self.ignore_label,
            labels_are_classes: self.labels_are_classes,
        }
    }
}

/// Refuses options that have no effect on data of these layouts.
///
/// # Errors
/// [`TrainingDataError::Data`] for an option of another layout.
fn refuse_unused(root: &Path, layouts: &[Convention], options: &FindOptions) -> Result<(), TrainingDataError> {
    let (problem, setting) = if options.same_file && !layouts.contains(&Convention::Channels) {
        ("its images and targets are in separate files", SAME_FILE)
    } else if options.split_column.is_some() && !layouts.contains(&Convention::Table) {
        ("there is no table, so no column assigns its pairs to training, validation and test", SPLIT_COLUMN)
    } else if options.spacing_order.is_some() && !layouts.contains(&Convention::NnUnet) {
        ("it does not have nnU-Net's layout, so there is no spacing beside its images", SPACING_ORDER)
    } else {
        return Ok(());
    };
    Err(TrainingDataError::data(root, problem, message!("remove {setting} from the settings")))
}

/// Returns a pair with the channels, time point and axes of the options. `is_named` says whether the file of its labels
/// was chosen by name.
fn choose_channels(mut pair: Pair, options: &FindOptions, is_named: bool) -> Result<Pair, Box<Problem>> {
    let set = |image: &mut ImageRef, channel: Option<usize>| {
        image.channel = image.channel.or(channel);
        image.time = image.time.or(options.time);
        image.axes = options.axes.clone();
    };
    let image_channel = options.image_channel.filter(|_| options.image_channels.is_empty());
    let has_number = options.target_channels.is_empty() && options.labels_channel.is_none();
    let target_channel = options.target_channel.filter(|_| has_number);
    set(&mut pair.image, image_channel);
    set(&mut pair.target, target_channel);
    pair.more_images.iter_mut().for_each(|image| set(image, None));
    // In nnU-Net's layout, each channel is a file, which is already chosen.
    if pair.image.channel.is_none() && !options.image_channels.is_empty() {
        (pair.image, pair.more_images) = listed_channels(&pair.image, &options.image_channels, Role::Image)?;
    }
    if let Some(channel) = &options.labels_channel {
        pair.target = labels_channel(&pair.target, channel, is_named)?;
    } else if !options.target_channels.is_empty() {
        (pair.target, pair.more_targets) = listed_channels(&pair.target, &options.target_channels, Role::Target)?;
    }
    // ImageJ's regions state no extents of their own.
    pair.target.drawn_on_tzyx = is_roi_name(&pair.target.path).then(|| image_extents(&pair.image)).flatten();
    Ok(pair)
}

/// Returns the time points and the extents along Z, Y, X of the stack of an image; `None` if it cannot be read, which the check
/// of its pair reports.
fn image_extents(image: &ImageRef) -> Option<[usize; 4]> {
    let image = open_image(image).ok()?;
    let [t, z, _, y, x, _] = *image.meta().shape_full.first_chunk::<6>()?;
    Some([t, z, y, x])
}

/// Returns the chosen channel of a label file. A file that was chosen by its name need not have a channel of that name.
///
/// # Errors
/// Same as [`listed_channels`].
fn labels_channel(file: &ImageRef, channel: &ChannelRef, is_named: bool) -> Result<ImageRef, Box<Problem>> {
    match listed_channels(file, std::slice::from_ref(channel), Role::Labels) {
        Ok((labels, _)) => Ok(labels),
        Err(_) if is_named => Ok(file.clone()),
        Err(problem) => Err(problem),
    }
}

/// Returns the listed channels of a file: the first one, and the others.
///
/// # Errors
/// [`Problem`] if the file cannot be read, or does not have one of the channels.
fn listed_channels(
    file: &ImageRef,
    listed: &[ChannelRef],
    role: Role,
) -> Result<(ImageRef, Vec<ImageRef>), Box<Problem>> {
    let path = &file.path;
    let unreadable = |error: TrainingDataError| Box::new(problem_from_error(&error, path));
    let names = open_image(file).map(|image| channel_names(image.meta())).map_err(unreadable)?;
    let numbers = find_channels(listed, &names).map_err(|(problem, next_step)| {
        let next_step = message!("{next_step}; change {} {IN_SETTINGS}", role.channels_setting());
        Box::new(Problem::error(path, problem, next_step))
    })?;
    let mut all = numbers.into_iter().map(|number| ImageRef { channel: Some(number), ..file.clone() });
    let first = all.next().unwrap_or_else(|| file.clone());
    Ok((first, all.collect()))
}

/// Makes names unique by adding the folder, and if that is not enough, a number.
fn make_names_unique(pairs: &mut [Pair], root: &Path) {
    let count = |pairs: &[Pair]| {
        let mut count = BTreeMap::<String, usize>::new();
        pairs.iter().for_each(|p| *count.entry(p.name.clone()).or_default() += 1);
        count
    };
    let taken = count(pairs);
    for pair in pairs.iter_mut() {
        if taken.get(&pair.name).is_some_and(|n| *n > 1) {
            let below: PathBuf = pair.image.path.strip_prefix(root).unwrap_or(&pair.image.path).into();
            let folder = below.parent().map(|p| p.to_string_lossy().replace('\\', "/")).unwrap_or_default();
            if !folder.is_empty() {
                pair.name = format!("{folder}/{}", pair.name);
            }
        }
    }
    let taken = count(pairs);
    let mut last_numbers = BTreeMap::<String, usize>::new();
    for pair in pairs.iter_mut() {
        if taken.get(&pair.name).is_some_and(|n| *n > 1) {
            let number = last_numbers.entry(pair.name.clone()).or_default();
            *number += 1;
            // Another pair may have this name already.
            while taken.contains_key(&format!("{}#{number}", pair.name)) {
                *number += 1;
            }
            pair.name = format!("{}#{number}", pair.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_make_names_unique_are_those_of_no_other_pair() {
        let mut pairs = ["a", "a", "a#1", "b"].map(|name| Pair::new(name, "/data/a.tif", "/data/a_masks.tif"));
        make_names_unique(&mut pairs, Path::new("/data"));
        assert_eq!(pairs.map(|pair| pair.name), ["a#2", "a#3", "a#1", "b"]);
    }
}
