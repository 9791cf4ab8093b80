//! The images that a model was trained on, as its package records them.
//!
//! A score on such an image says nothing about new images, so they take no part in the comparison of a start model with
//! the network trained from it. Images are identified by their voxels; names and folders do not matter.

use crate::network::start_model_path;
use crate::start::TrainStart;
use cytoscope_model_package::Package;
use cytoscope_model_package::config_key::TRAINING;
use cytoscope_pipeline::{JobError, Note};
use cytoscope_training_data::{Pair, Report, StackWindow};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// Maximum number of images in a record; the latest ones are kept.
const MAX_IMAGES: usize = 4096;
/// Number of hexadecimal digits that identify an image.
pub(crate) const DIGITS: usize = 12;
/// Key of the list in the training record: a text with one [`TrainedImage`] after the other, separated by spaces.
pub(crate) const KEY: &str = "images";

/// An image, or a box of one. As text: 12 hexadecimal digits of the hash of its voxels, followed by `@z,y,x+Z,Y,X` (first
/// voxel and size) for a box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TrainedImage {
    digest: String,
    window: Option<StackWindow>,
}

impl fmt::Display for TrainedImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.digest)?;
        let Some(StackWindow { start_zyx: [z, y, x], size_zyx: [depth, height, width] }) = self.window else {
            return Ok(());
        };
        write!(f, "@{z},{y},{x}+{depth},{height},{width}")
    }
}

impl FromStr for TrainedImage {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (digest, window) = text.split_once('@').map_or((text, None), |(digest, window)| (digest, Some(window)));
        if digest.len() != DIGITS || !digest.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(());
        }
        let zyx = |text: &str| -> Option<[usize; 3]> {
            let numbers: Vec<usize> = text.split(',').map(str::parse).collect::<Result<_, _>>().ok()?;
            numbers.try_into().ok()
        };
        let window = match window {
            None => None,
            Some(text) => {
                let (start, size) = text.split_once('+').ok_or(())?;
                Some(StackWindow { start_zyx: zyx(start).ok_or(())?, size_zyx: zyx(size).ok_or(())? })
            }
        };
        Ok(Self { digest: digest.to_ascii_lowercase(), window })
    }
}

impl TrainedImage {
    /// Whether both have voxels in common.
    fn overlaps(&self, other: &Self) -> bool {
        let (Some(a), Some(b)) = (self.window, other.window) else { return self.digest == other.digest };
        let apart = |axis: usize| {
            a.start_zyx[axis] >= b.start_zyx[axis].saturating_add(b.size_zyx[axis])
                || b.start_zyx[axis] >= a.start_zyx[axis].saturating_add(a.size_zyx[axis])
        };
        self.digest == other.digest && !(0..3).any(apart)
    }
}

/// The images that a model was trained on, in the order of training.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct TrainedImages {
    images: Vec<TrainedImage>,
    /// Number of entries of the record that could not be read.
    unreadable: usize,
}

/// Returns the list of the images of two lists, each as in records: the latest [`MAX_IMAGES`].
pub(crate) fn join_lists(earlier: &str, later: &str) -> String {
    let new: BTreeSet<&str> = later.split_whitespace().collect();
    let mut all: Vec<&str> = earlier.split_whitespace().filter(|image| !new.contains(image)).collect();
    all.extend(later.split_whitespace());
    all.split_off(all.len().saturating_sub(MAX_IMAGES)).join(" ")
}

impl TrainedImages {
    /// Reads the list of the start model; it is empty if the model records none, and for a new network.
    ///
    /// # Errors
    /// [`JobError`] if there is no such model, or it cannot be read.
    pub(crate) fn from_start(from: &TrainStart) -> Result<Self, JobError> {
        let Some(model) = from.model() else { return Ok(Self::default()) };
        let path = start_model_path(model)?;
        let package = Package::open(&path).map_err(|e| JobError::model(path.display().to_string(), e))?;
        Ok(Self::from_record(package.config().get(TRAINING).unwrap_or(&Value::Null)))
    }

    /// Reads the list of a training record; entries that are not valid are counted.
    pub(crate) fn from_record(record: &Value) -> Self {
        let list = record.get(KEY).unwrap_or(&Value::Null);
        let text = list.as_str().unwrap_or_default();
        // Only the latest images of a list that is too long are read.
        let entries = text.split_whitespace().rev().take(MAX_IMAGES).map(|entry| entry.parse().ok());
        let mut read: Vec<Option<TrainedImage>> = entries.collect();
        read.reverse();
        let unreadable =
            if list.is_string() || list.is_null() { read.iter().filter(|image| image.is_none()).count() } else { 1 };
        Self { images: read.into_iter().flatten().collect(), unreadable }
    }

    /// Reads a list of [`join_lists`]; entries that are not valid are left out.
    pub(crate) fn from_list(list: &str) -> Self {
        Self::from_record(&json!({ KEY: list }))
    }

    /// A warning about entries that could not be read, if there are any.
    pub(crate) fn warning(&self) -> Option<Note> {
        let (entries, images) = match self.unreadable {
            0 => return None,
            1 => ("1 entry that is not valid and is ignored".to_owned(), "that image"),
            count => (format!("{count} entries that are not valid and are ignored"), "those images"),
        };
        Some(Note::warning(format!(
            "the start model's list of training images has {entries}; its score on {images} will be too high"
        )))
    }

    /// Returns the pairs that have voxels in common with these images; `digests` are the digests of the pairs' images by
    /// name.
    pub(crate) fn among<'p>(&self, pairs: &'p [Pair], digests: &BTreeMap<&str, &str>) -> Vec<&'p Pair> {
        let is_known = |pair: &&Pair| {
            trained_image(pair, digests).is_some_and(|image| self.images.iter().any(|known| known.overlaps(&image)))
        };
        pairs.iter().filter(is_known).collect()
    }

    /// Returns the list for the record of a network that was trained on `pairs` after these images: the latest
    /// [`MAX_IMAGES`] of both.
    pub(crate) fn record_with(&self, pairs: &[Pair], digests: &BTreeMap<&str, &str>) -> String {
        let new: Vec<TrainedImage> = pairs.iter().filter_map(|pair| trained_image(pair, digests)).collect();
        let mut all: Vec<&TrainedImage> = self.images.iter().filter(|image| !new.contains(image)).collect();
        for image in &new {
            if !all.contains(&image) {
                all.push(image);
            }
        }
        let latest: Vec<String> =
            all.iter().skip(all.len().saturating_sub(MAX_IMAGES)).map(ToString::to_string).collect();
        latest.join(" ")
    }
}

/// Returns the digests of the images of all checked pairs, by name.
pub(crate) fn digests(report: &Report) -> BTreeMap<&str, &str> {
    report.pairs.iter().filter_map(|pair| Some((pair.name.as_str(), pair.image_digest.as_deref()?))).collect()
}

fn trained_image(pair: &Pair, digests: &BTreeMap<&str, &str>) -> Option<TrainedImage> {
    let digest = digests.get(pair.name.as_str())?.get(..DIGITS)?.to_owned();
    Some(TrainedImage { digest, window: pair.window })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_pipeline::NoteLevel;
    use cytoscope_training_data::ImageRef;

    fn pair(name: &str, window: Option<StackWindow>) -> Pair {
        let mut pair: Pair = serde_json::from_value(json!({
            "name": name, "image": ImageRef::of("a"), "target": ImageRef::of("b"),
        }))
        .unwrap();
        pair.window = window;
        pair
    }

    fn window(start_x: usize, width: usize) -> Option<StackWindow> {
        Some(StackWindow { start_zyx: [0, 0, start_x], size_zyx: [4, 8, width] })
    }

    #[test]
    fn only_images_with_common_voxels_are_known() {
        let digests = BTreeMap::from([("a", "aaaaaaaaaaaa"), ("b", "bbbbbbbbbbbb"), ("c", "012345678901")]);
        let trained = [pair("a", None), pair("b", window(0, 60)), pair("c", None)];
        let list = TrainedImages::default().record_with(&trained, &digests);
        assert_eq!(list, "aaaaaaaaaaaa bbbbbbbbbbbb@0,0,0+4,8,60 012345678901");
        let known = TrainedImages::from_record(&json!({KEY: list}));
        assert_eq!(known, TrainedImages::from_list(&list));
        assert_eq!(known.warning(), None);
        let names = |pairs: &[Pair]| -> Vec<String> {
            known.among(pairs, &digests).into_iter().map(|p| p.name.clone()).collect()
        };
        assert_eq!(names(&trained), ["a", "b", "c"]);
        // The end of an image is new if only its start was trained on, but not the whole image.
        assert!(names(&[pair("b", window(60, 20))]).is_empty());
        assert_eq!(names(&[pair("b", window(59, 20)), pair("b", None)]), ["b", "b"]);
        assert_eq!(names(&[pair("a", window(0, 5)), pair("unknown", None)]), ["a"]);
    }

    #[test]
    fn lists_grow_up_to_a_limit_and_name_every_image_once() {
        let names: Vec<String> = (0..MAX_IMAGES + 2).map(|i| format!("{i:012x}")).collect();
        let digests: BTreeMap<&str, &str> = names.iter().map(|n| (n.as_str(), n.as_str())).collect();
        let pairs: Vec<Pair> = names.iter().map(|n| pair(n, None)).collect();
        let first = TrainedImages::from_record(&json!({KEY: "00000000ffff 000000000005"}));
        let few = first.record_with(&pairs[4..7], &digests);
        assert_eq!(few, "00000000ffff 000000000004 000000000005 000000000006");
        let all = first.record_with(&pairs, &digests);
        let all: Vec<&str> = all.split(' ').collect();
        assert_eq!((all.len(), all.last().copied()), (MAX_IMAGES, names.last().map(String::as_str)));
    }

    #[test]
    fn images_of_earlier_data_stay_in_the_list_of_a_resumed_run() {
        assert_eq!(join_lists("a b@1 c", "d b@1 e"), "a c d b@1 e");
        assert_eq!((join_lists("", "a b"), join_lists("a b", "")), ("a b".to_owned(), "a b".to_owned()));
        let many: Vec<String> = (0..MAX_IMAGES).map(|i| format!("{i:012x}")).collect();
        let joined = join_lists(&many.join(" "), "new");
        assert_eq!((joined.split(' ').count(), joined.rsplit(' ').next()), (MAX_IMAGES, Some("new")));
    }

    #[test]
    fn entries_that_are_no_images_are_reported() {
        let list = json!({KEY: "abc aaaaaaaaaaaa@1,2+3 zzzzzzzzzzzz aaaaaaaaaaaa@1,2,3+4,5,6"});
        let read = TrainedImages::from_record(&list);
        assert_eq!((read.images.len(), read.unreadable), (1, 3));
        assert!(read.warning().unwrap().message.contains("3 entries"));
        let one = TrainedImages::from_record(&json!({KEY: "abc aaaaaaaaaaaa"})).warning().unwrap();
        assert_eq!(one.level, NoteLevel::Warning);
        let one = one.message;
        assert!(one.contains("1 entry that is not valid") && one.contains("that image"), "{one}");
        assert!(TrainedImages::from_record(&json!({KEY: 7})).warning().is_some());
        assert_eq!(TrainedImages::from_record(&json!({"steps": 5})), TrainedImages::default());
    }
}
