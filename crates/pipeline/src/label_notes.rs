//! Notes on label images whose objects cannot be distinguished, or whose voxel size differs from that of their stack.

use crate::float_loss::FloatLoss;
use crate::stack::Stack;
use crate::{Context, JobError, Note};
use cytoscope_formats::{Image, nifti_directions};
use cytoscope_objects::Threshold;
use cytoscope_objects::components::{Components, Connectivity};
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::VOXEL_SIZE;
use cytoscope_volume::{DType, Samples, VoxelSize, number_text};
use std::path::Path;

/// Usual values of the foreground of masks.
const MASK_LABELS: [u64; 3] = [1, 255, 65_535];
/// Maximum number of runs of voxels, of 12 bytes each, by which the parts of a mask are counted.
const MAX_RUNS: usize = 4 << 20;
/// Smallest ratio of two voxel sizes that differ by more than rounding.
const OTHER_SIZE: f64 = 1.01;

/// The labels of the objects that were found in a label image.
#[derive(Debug, Default)]
pub(crate) struct FoundLabels {
    /// The first label, and the earliest time point with it.
    first: Option<(u64, usize)>,
    has_several: bool,
    highest: u64,
}

impl FoundLabels {
    /// Adds the label of an object at a time point.
    pub(crate) fn add(&mut self, label: u64, time: usize) {
        self.highest = self.highest.max(label);
        match &mut self.first {
            Some((first, earliest)) if *first == label => *earliest = time.min(*earliest),
            Some(_) => self.has_several = true,
            None => self.first = Some((label, time)),
        }
    }

    /// Returns warnings if objects of the label image may have become one: it is a mask, or its samples are floats that are not
    /// exact for such high labels. `path` and `channel` are those of the label image.
    ///
    /// # Errors
    /// [`JobError`] if the label image cannot be read again, which is done for what may be a mask.
    pub(crate) fn notes(
        &self,
        context: &Context,
        path: &Path,
        image: &Image,
        channel: usize,
    ) -> Result<Vec<Note>, JobError> {
        let mut notes: Vec<Note> = rounding_note(path, image.meta().dtype, self.highest).into_iter().collect();
        if let (Some((label, time)), false) = (self.first, self.has_several)
            && MASK_LABELS.contains(&label)
        {
            notes.extend(mask_note(context, path, &Stack::new(image, time), channel, label)?);
        }
        Ok(notes)
    }
}

/// Returns a warning if the highest label is above those that are exact in samples of this type.
fn rounding_note(path: &Path, dtype: DType, highest: u64) -> Option<Note> {
    let exact: u64 = match dtype {
        DType::F16 => 1 << 11,
        DType::F32 => 1 << 24,
        _ => return None,
    };
    (highest > exact).then(|| {
        Note::warning(format!(
            "{}: its labels go up to {highest} but are stored as {dtype}, which holds whole numbers up to {exact} exactly: \
             objects whose numbers were rounded to the same one are counted as one; store the labels as integers",
            path.display()
        ))
    })
}

/// Returns a warning if the voxels of the only label of a channel form several separate parts; none if there are too many to
/// count.
fn mask_note(
    context: &Context,
    path: &Path,
    labels: &Stack,
    channel: usize,
    label: u64,
) -> Result<Option<Note>, JobError> {
    let [depth, height, width] = labels.extents.zyx;
    let mut components = Components::new([depth, height, width], Connectivity::Corners);
    for z in 0..depth {
        let slice = labels.read(context, channel, z..z + 1)?.to_f32();
        for row in slice.chunks(width.max(1)) {
            components.add_row(row, |value| f64::from(value) == label as f64)?;
        }
        if components.runs() > MAX_RUNS {
            return Ok(None);
        }
    }
    let parts = components.count();
    Ok((parts > 1).then(|| {
        Note::warning(format!(
            "{}: all of its objects have the label {label}, as in a mask, so that {parts} separate parts count as one object; \
             give each object its own label",
            path.display()
        ))
    }))
}

/// The lowest and the highest value of a map.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ValueRange {
    lowest: f32,
    highest: f32,
    /// Whether a value is NaN or infinite.
    has_not_finite: bool,
    /// What conversion to 32-bit floats has changed.
    pub loss: FloatLoss,
}

impl Default for ValueRange {
    fn default() -> Self {
        let loss = FloatLoss::default();
        Self { lowest: f32::INFINITY, highest: f32::NEG_INFINITY, has_not_finite: false, loss }
    }
}

impl ValueRange {
    /// Adds values, which were `stored` as these samples; NaN does not count for the range.
    pub(crate) fn add(&mut self, values: &[f32], stored: &Samples) {
        for value in values {
            self.lowest = self.lowest.min(*value);
            self.highest = self.highest.max(*value);
        }
        self.has_not_finite |= match stored {
            // Others are too large for 32-bit floats.
            Samples::F64(stored) => stored.iter().any(|value| !value.is_finite()),
            _ => values.iter().any(|value| !value.is_finite()),
        };
        self.loss.merge(FloatLoss::of(stored));
    }

    /// Returns the warning that values of the map are NaN or infinite; `None` if all are finite.
    pub(crate) fn not_finite_note(&self) -> Option<Note> {
        self.has_not_finite.then(|| {
            Note::warning(
                "the map contains values that are NaN or infinite: voxels that are NaN count as background, so objects there \
                 are missing or cut; check the map",
            )
        })
    }

    /// Returns the note that no value is above a fixed threshold; `None` if one is, or there are no values.
    pub(crate) fn nothing_above_note(&self, threshold: Threshold) -> Option<Note> {
        let Threshold::Fixed(level) = threshold else { return None };
        let (lowest, highest) = (self.lowest, self.highest);
        // The shortest text that stands for a 32-bit number.
        let text = |value: f32| number_text(value.to_string().parse().unwrap_or(f64::from(value)));
        // Voxels are compared with the threshold as a 32-bit number.
        (lowest <= highest && level as f32 >= highest).then(|| {
            let (level, lowest_text) = (number_text(level), text(lowest));
            Note::from(if lowest < highest {
                format!(
                    "no value of the map is above the threshold, {level}: the values range from {lowest_text} to {}, and the \
                     threshold is in their unit; choose one in this range",
                    text(highest)
                )
            } else {
                format!(
                    "no value of the map is above the threshold, {level}: all values are {lowest_text}; check that this is the \
                     right map and channel"
                )
            })
        })
    }
}

/// Returns the note that the label image states another voxel size than its stack, whose size is used; `slices` is their number.
pub(crate) fn other_voxel_size_note(stack: VoxelSize, labels: VoxelSize, slices: usize) -> Option<Message> {
    let axes = [("Z", stack.z, labels.z, slices > 1), ("Y", stack.y, labels.y, true), ("X", stack.x, labels.x, true)];
    let differing: Vec<(&str, String, String)> = axes
        .into_iter()
        .filter_map(|(axis, used, other, counts)| {
            let (used, other) = (used.filter(|_| counts)?, other?);
            let differs = used / other > OTHER_SIZE || other / used > OTHER_SIZE;
            differs.then(|| (axis, number_text(used), number_text(other)))
        })
        .collect();
    let list =
        |part: &dyn Fn(&(&str, String, String)) -> String| differing.iter().map(part).collect::<Vec<_>>().join(", ");
    let (names, used, other) = (list(&|d| d.0.to_owned()), list(&|d| d.1.clone()), list(&|d| d.2.clone()));
    (!differing.is_empty()).then(|| {
        message!(
            "along {names}, the voxel size is {other} µm in the label image, but {used} µm in the stack; that of the stack is \
             used (set it with {VOXEL_SIZE})"
        )
    })
}

/// Returns the note that two NIfTI files, which belong together, state different orientations; `None` for other files.
pub(crate) fn other_orientation_note(stack: &Path, other: &Path) -> Option<Message> {
    let (of_stack, of_other) = (nifti_directions(stack)?, nifti_directions(other)?);
    (of_stack != of_other).then(|| {
        message!(
            "the axes of {} point to {of_other}, but those of {} to {of_stack}, and orientations are not applied: unless the \
             voxels of both have the same order, save one of them in the orientation of the other",
            other.display(),
            stack.display()
        )
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_formats::{Container, OpenOptions, WriteSpec, open, write_array};
    use cytoscope_volume::Array;

    /// Returns the notes on a label image of 2 × 3 × 6 voxels.
    fn notes(samples: Samples) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("labels.npy");
        let mut found = FoundLabels::default();
        for label in samples.to_f32() {
            if label > 0.0 {
                found.add(label as u64, 0);
            }
        }
        let array = Array::new("ZYX".parse().unwrap(), vec![2, 3, 6], samples).unwrap();
        write_array(&path, &array, &WriteSpec::of(&array, Container::Npy)).unwrap();
        let image = open(&path, &OpenOptions::default()).unwrap();
        let notes = found.notes(&Context::default(), &path, &image, 0).unwrap();
        notes.iter().map(Note::to_string).collect()
    }

    #[test]
    fn a_mask_of_several_parts_has_a_note_and_one_object_has_none() {
        let with = |second: u8| {
            let mut values = vec![0u8; 36];
            (values[0], values[1], values[6]) = (255, 255, 255);
            // The last voxel of the second slice.
            values[35] = second;
            values
        };
        let mask_notes = notes(Samples::U8(with(255)));
        assert!(mask_notes.len() == 1 && mask_notes[0].starts_with("warning: "), "{mask_notes:?}");
        assert!(
            mask_notes[0].contains("the label 255") && mask_notes[0].contains("2 separate parts"),
            "{mask_notes:?}"
        );
        let ones: Vec<f32> = with(255).iter().map(|value| f32::from(*value) / 255.0).collect();
        assert!(notes(Samples::F32(ones))[0].contains("the label 1,"));
        // One object; two objects; an object of two parts whose label is none of a mask.
        assert!(notes(Samples::U8(with(0))).is_empty());
        assert!(notes(Samples::U8(with(7))).is_empty());
        assert!(notes(Samples::U8(with(255).iter().map(|value| value / 255 * 7).collect())).is_empty());
    }

    #[test]
    fn labels_that_floats_round_have_a_note() {
        let with = |highest: u32| (0..36).map(|i| if i < 18 { 3 } else { highest }).collect::<Vec<u32>>();
        let floats = |highest: u32| Samples::F32(with(highest).iter().map(|label| *label as f32).collect());
        let float_notes = notes(floats((1 << 24) + 2));
        assert!(float_notes.len() == 1 && float_notes[0].contains("16777218"), "{float_notes:?}");
        assert!(float_notes[0].contains("float32") && float_notes[0].contains("16777216 exactly"), "{float_notes:?}");
        assert!(notes(floats(1 << 24)).is_empty());
        assert!(notes(Samples::U32(with((1 << 24) + 2))).is_empty());
    }

    #[test]
    fn a_threshold_above_all_values_has_a_note_on_the_values() {
        let note = |values: &[f32], level: f64| {
            let mut range = ValueRange::default();
            range.add(values, &Samples::F32(values.to_vec()));
            range.nothing_above_note(Threshold::Fixed(level)).map(|note| note.to_string())
        };
        assert!(note(&[0.25, 0.1, f32::NAN], 0.5).unwrap().contains("range from 0.1 to 0.25"));
        assert!(note(&[0.0; 3], 0.5).unwrap().contains("all values are 0;"));
        // As 32-bit numbers, both are the same.
        assert!(note(&[0.1; 3], 0.1).unwrap().contains("all values are 0.1;"));
        assert_eq!(note(&[0.25, 0.75], 0.5), None);
        assert_eq!(note(&[f32::NAN], 0.5), None);
        let is_noted = |values: &[f32]| {
            let mut range = ValueRange::default();
            range.add(values, &Samples::F32(values.to_vec()));
            range.not_finite_note().is_some()
        };
        assert_eq!([&[0.5, 0.1][..], &[0.5, f32::NAN], &[f32::INFINITY]].map(is_noted), [false, true, true]);
        // A finite value that 32-bit floats do not hold.
        let mut large = ValueRange::default();
        large.add(&[f32::INFINITY], &Samples::F64(vec![1e39]));
        assert!(large.not_finite_note().is_none() && large.loss.too_large);
    }

    #[test]
    fn labels_of_another_voxel_size_have_a_note() {
        let stack = VoxelSize::new_um(2.0, 0.5, 0.5);
        let note = other_voxel_size_note(stack, VoxelSize::new_um(2.0, 0.5, 0.25), 3).unwrap();
        assert!(
            note.contains("along X") && note.contains("0.25 µm in the label image, but 0.5 µm in the stack"),
            "{note}"
        );
        let all = other_voxel_size_note(stack, VoxelSize::new_um(1.0, 0.25, 0.25), 3).unwrap();
        let expected =
            "along Z, Y, X, the voxel size is 1, 0.25, 0.25 µm in the label image, but 2, 0.5, 0.5 µm in the stack";
        assert!(all.contains(expected), "{all}");
        assert_eq!(other_voxel_size_note(stack, VoxelSize::new_um(2.0, 0.501, 0.499), 3), None);
        assert_eq!(other_voxel_size_note(stack, VoxelSize { z: None, y: Some(0.5), x: None }, 3), None);
        // A single slice has no distance to others.
        let single = VoxelSize::new_um(1.0, 0.5, 0.5);
        assert_eq!(other_voxel_size_note(stack, single, 1), None);
        assert!(other_voxel_size_note(stack, single, 2).is_some());
    }
}
