//! Checks whether zeros frame the imaged part of a stack, as after rotating, registering or stitching.

use crate::Context;
use crate::middle_slice::MiddleSlice;
use crate::stack::Stack;
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::CROP;
use std::ops::Range;

/// Share of a slice that the imaged part takes at most if a frame is noted.
const MAX_IMAGED: f64 = 0.8;
/// Fewest rows and columns of an imaged part.
const MIN_IMAGED: usize = 32;
/// Maximum share of zeros in the imaged part: if there are more, zero is the background of the image, not a frame.
const MAX_ZEROS: f64 = 0.01;

/// Returns a note if zeros frame the other values in the middle row and the middle column of the middle slice, which was read
/// before.
pub(crate) fn frame_note(context: &Context, stack: &Stack, channel: usize, slice: &MiddleSlice) -> Option<Message> {
    let [depth, ny, nx] = stack.extents.zyx;
    let (x, y) = (imaged(&slice.row)?, imaged(&slice.column)?);
    let share = (x.len() as f64 / nx as f64) * (y.len() as f64 / ny as f64);
    if share > MAX_IMAGED {
        return None;
    }
    // This reads a part of every slice, so only a stack with a frame is read in this way.
    let middle = |range: &Range<usize>| {
        let at = (range.start + range.end) / 2;
        at..at + 1
    };
    let part = stack.windowed(&[0..depth, middle(&y), middle(&x)]);
    // A part that cannot be read is reported when the stack is.
    let along_z = part.read(context, channel, 0..depth).ok()?.to_f32();
    let z = framed(&along_z).unwrap_or(0..depth);
    let slices = if z.len() < depth { format!("z={}-{}:", z.start, z.end) } else { String::new() };
    Some(message!(
        "zeros frame the middle slice, of which {:.0} % is imaged: they change the normalization of all values \
         and the estimated object diameter, so that objects may be merged or missed; crop the stack to the imaged part \
         ({CROP}:{slices}y={}-{}:x={}-{})",
        share * 100.0,
        y.start,
        y.end,
        x.start,
        x.end
    ))
}

/// Returns the range of a line of voxels from the first to the last value other than 0, if hardly any between them is 0.
fn framed(values: &[f32]) -> Option<Range<usize>> {
    let start = values.iter().position(|value| *value != 0.0)?;
    let end = values.iter().rposition(|value| *value != 0.0)? + 1;
    let zeros = values.get(start..end)?.iter().filter(|value| **value == 0.0).count();
    (zeros as f64 <= MAX_ZEROS * (end - start) as f64).then_some(start..end)
}

/// Returns the range of a row or column that [`framed`] finds, if it is long enough and its values differ.
fn imaged(values: &[f32]) -> Option<Range<usize>> {
    let range = framed(values)?;
    let between = values.get(range.clone())?;
    let first = between.first()?;
    let differ = between.iter().any(|value| value != first);
    (between.len() >= MIN_IMAGED && differ).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_imaged_part_is_what_zeros_frame() {
        let row = |length: usize, value: fn(usize) -> f32| -> Vec<f32> {
            let inside = (0..length).map(value);
            [0.0; 20].into_iter().chain(inside).chain([0.0; 30]).collect()
        };
        assert_eq!(imaged(&row(50, |i| 100.0 + i as f32)), Some(20..70));
        // Too short, objects on a background of zeros, a mask, and no values.
        assert_eq!(imaged(&row(20, |i| 100.0 + i as f32)), None);
        assert_eq!(imaged(&row(50, |i| if i % 10 < 5 { 100.0 + i as f32 } else { 0.0 })), None);
        assert_eq!(imaged(&row(50, |_| 255.0)), None);
        assert_eq!(imaged(&row(0, |_| 0.0)), None);
        // Along Z, a few slices of one value suffice.
        assert_eq!(framed(&row(3, |_| 255.0)), Some(20..23));
    }
}
