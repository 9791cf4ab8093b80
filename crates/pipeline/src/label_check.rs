//! Checks that images used as labels have the values of labels, and that images used as stacks or maps do not.

use crate::evaluate::looks_like_labels;
use crate::job_record::absolute;
use crate::middle_slice::middle_values;
use crate::stack::Stack;
use crate::{Context, JobError, Note};
use cytoscope_formats::Image;
use cytoscope_objects::neighbors::NeighborPairs;
use cytoscope_volume::Element;
use std::path::{Path, PathBuf};

/// Minimum share of equal pairs at which an image of intensities is suspected to be labels: that of objects 5 voxels wide.
const MIN_EQUAL_OF_LABELS: f64 = 0.8;
/// Maximum share of plateaus of a single voxel in rows of labels. Between a plateau of a map and the background, each slope has
/// several.
const MAX_SINGLE: f64 = 0.25;
/// Maximum share of plateaus in rows of labels that have the value of an earlier one of their row, as in concave objects. In maps
/// and in intensities of few gray levels, values recur from object to object.
const MAX_RECURRING: f64 = 0.25;

/// Returns a note if a slice of a stack to predict, with rows of `width` voxels, has the values of labels: whole numbers, 0 and
/// several others, which mostly repeat from voxel to voxel, but not from object to object.
pub(crate) fn label_image_note(values: &[f32], width: usize) -> Option<String> {
    let share = equal_neighbor_share(values, width)?;
    Some(format!(
        "the stack may be a label image: {:.0} % of its neighboring voxels that are not 0 have the same value, as in objects; \
         give the stack of intensities that the labels belong to",
        share * 100.0
    ))
}

/// Returns a note if the middle slice of a map to segment has the values of labels, as for [`label_image_note`].
pub(crate) fn label_map_note(context: &Context, map: &Stack, channel: usize) -> Option<String> {
    let (values, width) = middle_values(context, map, channel)?;
    let share = equal_neighbor_share(&values, width)?;
    Some(format!(
        "the map may be a label image: {:.0} % of its neighboring voxels that are not 0 have the same value, as in objects, but \
         its values are taken for probabilities, so that objects that touch may be joined; give the probability map of a \
         prediction",
        share * 100.0
    ))
}

/// Returns a note if true labels, by their name or their values, are compared by intensity because the prediction is not a label
/// image, for example because a map was given in place of the labels.
pub(crate) fn not_labels_note(
    context: &Context,
    (prediction, a): (&Path, &Image),
    (truth, b): (&Path, &Image),
) -> Option<String> {
    let has_labels = || {
        let read = middle_values(context, &Stack::new(b, 0), 0);
        read.is_some_and(|(values, width)| equal_neighbor_share(&values, width).is_some())
    };
    let is_map = a.meta().dtype.is_float() && !b.meta().dtype.is_float();
    (is_map && (looks_like_labels(truth) || has_labels())).then(|| {
        format!(
            "{}: its samples are floats, so it is compared with {} by intensity: give predicted labels (integers) to score \
             objects",
            absolute(prediction).display(),
            absolute(truth).display()
        )
    })
}

/// Returns the share of equal neighbors in rows of `width` voxels, if the values are those of labels.
fn equal_neighbor_share(values: &[f32], width: usize) -> Option<f64> {
    let first = values.iter().find(|value| **value != 0.0)?;
    let has_several = values.iter().any(|value| *value != 0.0 && value != first);
    let is_numbered = values.iter().all(|value| value.fract() == 0.0 && *value >= 0.0);
    if !has_several || !is_numbered || !values.contains(&0.0) {
        return None;
    }
    let mut neighbors = NeighborPairs::default();
    neighbors.add(values, width);
    neighbors.share().filter(|share| *share >= MIN_EQUAL_OF_LABELS && has_plateaus_of_labels(values, width))
}

/// Returns whether the values other than 0 in rows of `width` voxels form plateaus as labels do: hardly any is a single voxel, and
/// hardly any has the value of an earlier one of its row.
fn has_plateaus_of_labels(values: &[f32], width: usize) -> bool {
    let (mut plateaus, mut single, mut recurring) = (0u64, 0u64, 0u64);
    let mut before: Vec<f32> = Vec::new();
    for row in values.chunks(width.max(1)) {
        before.clear();
        for plateau in row.chunk_by(|a, b| a == b) {
            let Some(value) = plateau.first().filter(|value| **value != 0.0) else { continue };
            plateaus += 1;
            single += u64::from(plateau.len() == 1);
            if before.contains(value) {
                recurring += 1;
            } else {
                before.push(*value);
            }
        }
    }
    single as f64 <= MAX_SINGLE * plateaus as f64 && recurring as f64 <= MAX_RECURRING * plateaus as f64
}

/// What the values of an image say about whether they are labels.
#[derive(Debug)]
pub(crate) struct LabelCheck {
    /// The image, for messages.
    path: PathBuf,
    neighbors: NeighborPairs,
    /// The lowest value below 0.
    negative: Option<f64>,
}

impl LabelCheck {
    /// Starts the check of an image.
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), neighbors: NeighborPairs::default(), negative: None }
    }

    /// The image.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds rows of `width` voxels.
    pub(crate) fn add<T: Element>(&mut self, values: &[T], width: usize) {
        self.neighbors.add(values, width);
        let background = T::zeroed();
        for value in values.iter().filter(|value| **value < background) {
            let value = value.to_f64();
            self.negative = Some(self.negative.map_or(value, |lowest| lowest.min(value)));
        }
    }

    /// Returns a warning if the values are more likely intensities than labels.
    pub(crate) fn note(&self) -> Option<Note> {
        self.neighbors.doubted_share().map(|share| {
            Note::warning(format!(
                "{} may be an image of intensities instead of labels: only {:.0} % of the neighboring voxels that are not 0 \
                 have the same value",
                self.path.display(),
                share * 100.0
            ))
        })
    }

    /// Refuses values below 0.
    ///
    /// # Errors
    /// [`JobError::Mismatch`] with the lowest value.
    pub(crate) fn refuse_negative(&self) -> Result<(), JobError> {
        let Some(value) = self.negative else { return Ok(()) };
        Err(JobError::Mismatch {
            path: self.path.clone(),
            problem: format!("the value {value} is not a label").into(),
            next_step: "give a label image: 0 for the background and numbers from 1 for the objects".into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(values: &[u16]) -> Option<Note> {
        let mut check = LabelCheck::new(Path::new("a.tif"));
        check.add(values, 60);
        check.note()
    }

    #[test]
    fn intensities_are_distinguished_from_labels() {
        let noise: Vec<u16> = (0..6000u32).map(|i| 100 + (i.wrapping_mul(2_654_435_761) >> 27) as u16).collect();
        let warned = note(&noise).map(|note| note.to_string()).unwrap_or_default();
        assert!(warned.starts_with("warning: a.tif") && warned.contains("intensities"), "{warned}");
        // Objects of 4 × 4 voxels that touch, with numbers in no order; a mask; and an image without objects.
        let labels: Vec<u16> =
            (0..6000usize).map(|i| 1 + ((i / 240 * 15 + i % 60 / 4) * 7919 % 65_000) as u16).collect();
        let mask: Vec<u16> = noise.iter().map(|value| if *value > 110 { 255 } else { 0 }).collect();
        for image in [labels, mask, vec![0; 6000]] {
            assert_eq!(note(&image), None);
        }
    }

    #[test]
    fn images_of_labels_are_distinguished_from_others() {
        // Objects of 10 × 10 voxels and gaps of 10 rows; they are one mask; and noise with and without a background of zeros.
        let is_object = |i: usize| (i / 600).is_multiple_of(2);
        let labels: Vec<f32> =
            (0..6000).map(|i| if is_object(i) { (1 + i / 600 * 6 + i % 60 / 10) as f32 } else { 0.0 }).collect();
        assert!(
            equal_neighbor_share(&labels, 60).is_some_and(|share| share > 0.8),
            "{:?}",
            equal_neighbor_share(&labels, 60)
        );
        let mask: Vec<f32> = labels.iter().map(|label| if *label > 0.0 { 255.0 } else { 0.0 }).collect();
        let noise: Vec<f32> = (0..6000u32).map(|i| 100.0 + (i.wrapping_mul(2_654_435_761) >> 27) as f32).collect();
        let cut: Vec<f32> = noise.iter().map(|value| if *value > 110.0 { *value } else { 0.0 }).collect();
        let halves: Vec<f32> = labels.iter().map(|label| label * 0.5).collect();
        for values in [mask, noise, cut, halves, vec![0.0; 6000]] {
            assert_eq!(equal_neighbor_share(&values, 60), None);
        }
    }

    #[test]
    fn labels_are_distinguished_from_maps_and_intensities_of_whole_numbers() {
        // Two objects that touch, of 20 voxels each in a row.
        let labels: Vec<f32> = [vec![0.0f32; 10], vec![3.0; 20], vec![8.0; 20], vec![0.0; 10]].concat().repeat(60);
        // A saturated map of an object with slopes of three voxels.
        let slope = [60.0f32, 130.0, 210.0];
        let sharp: Vec<f32> =
            [&[0.0f32; 12][..], &slope, &[255.0; 30], &[210.0, 130.0, 60.0], &[0.0; 12]].concat().repeat(60);
        // A map of few values, enlarged four times without interpolation.
        let few = [0.0f32, 0.0, 60.0, 60.0, 255.0, 255.0, 255.0, 255.0, 255.0, 255.0, 60.0, 60.0, 0.0, 0.0];
        let enlarged: Vec<f32> = few.iter().flat_map(|value| [*value; 4]).collect();
        // A map whose background is not quite 0, and whose objects are not quite 255.
        let rounded = [(0.0f32, 10), (1.0, 9), (2.0, 6), (1.0, 12), (128.0, 1), (254.0, 9), (255.0, 12), (254.0, 6)];
        let rounded: Vec<f32> = rounded.iter().flat_map(|(value, count)| vec![*value; *count]).collect();
        // Few photons: of the voxels that are not 0, most are 1.
        let photons: Vec<f32> = (0..60_000u32)
            .map(|i| match i.wrapping_mul(2_654_435_761) >> 24 {
                0..100 => 0.0,
                100..250 => 1.0,
                _ => 2.0,
            })
            .collect();
        let share = |values: &[f32], width: usize| {
            let mut neighbors = NeighborPairs::default();
            neighbors.add(values, width);
            neighbors.share()
        };
        assert!(equal_neighbor_share(&labels, 60).is_some());
        for (values, width) in [(sharp, 60), (enlarged.repeat(60), 56), (rounded.repeat(60), 65), (photons, 60)] {
            let equal = share(&values, width);
            assert!(equal.is_some_and(|equal| equal >= MIN_EQUAL_OF_LABELS), "neighbors say nothing: {equal:?}");
            assert_eq!(equal_neighbor_share(&values, width), None, "{:?}", values.get(..width));
        }
        // Concave objects and the tips of others are no reason for doubt.
        let concave: Vec<f32> = [(0.0f32, 6), (4.0, 14), (0.0, 2), (4.0, 12), (7.0, 15), (9.0, 1), (5.0, 10)]
            .iter()
            .flat_map(|(value, count)| vec![*value; *count])
            .collect();
        assert!(equal_neighbor_share(&concave.repeat(60), 60).is_some());
    }

    #[test]
    fn negative_values_are_not_labels() {
        let refused = |values: &[i16]| {
            let mut check = LabelCheck::new(Path::new("a.tif"));
            check.add(values, 4);
            check.refuse_negative().err().map(|error| error.to_string())
        };
        assert_eq!(refused(&[0, 3, 3]), None);
        let message = refused(&[0, 3, -2, 3]).unwrap_or_default();
        assert!(message.contains("a.tif") && message.contains("the value -2 is not a label"), "{message}");
    }
}
