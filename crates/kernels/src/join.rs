//! Concatenation along the channels, for parts that do not start at block boundaries.

use crate::parallel::for_each_row;
use crate::{Blocked, KernelError, check_len, check_that};

/// One input of a concatenation: its values and their layout.
pub type Part<'a, T> = (&'a [T], &'a Blocked);

/// Writes the channels of all parts one after the other, whatever their blocks; `map(part, value)` converts each value of
/// part number `part`. Unused channels of the last block get `zero`. The border is not changed.
///
/// # Errors
/// [`KernelError`] if buffers and layouts do not fit, or the parts do not have the channels and dimensions of the output.
pub fn join<T: Copy + Send + Sync>(
    parts: &[Part<'_, T>],
    zero: T,
    map: impl Fn(usize, T) -> T + Send + Sync,
    output: &mut [T],
    out_layout: &Blocked,
) -> Result<(), KernelError> {
    check_len("output", output.len(), out_layout.len())?;
    // Part and channel in it, for each channel of the output.
    let mut sources = Vec::with_capacity(out_layout.channels);
    for (index, (values, layout)) in parts.iter().enumerate() {
        check_len("part", values.len(), layout.len())?;
        check_that(
            layout.dims == out_layout.dims,
            "dimensions of a part",
            format!("{:?}", out_layout.dims),
            format!("{:?}", layout.dims),
        )?;
        sources.extend((0..layout.channels).map(|channel| (index, channel)));
    }
    check_that(sources.len() == out_layout.channels, "channels of all parts", out_layout.channels, sources.len())?;
    if out_layout.voxels() == 0 {
        return Ok(());
    }
    let block = out_layout.block;
    for_each_row(output, out_layout, |b, d, h, row| {
        for lane in 0..block {
            let targets = row[lane..].iter_mut().step_by(block);
            let Some((index, channel)) = sources.get(b * block + lane).copied() else {
                targets.for_each(|target| *target = zero);
                continue;
            };
            let (values, layout) = parts[index];
            let first = layout.row_start(channel / layout.block, d, h) + channel % layout.block;
            let own = values[first..].iter().step_by(layout.block);
            targets.zip(own).for_each(|(target, value)| *target = map(index, *value));
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reorder;

    #[test]
    fn channels_of_parts_in_blocks_of_any_size_lie_one_after_the_other() -> Result<(), KernelError> {
        let dims = [2usize, 3, 5];
        let voxels: usize = dims.iter().product();
        for counts in [vec![24, 8], vec![3, 18], vec![16, 1, 7], vec![20, 20, 2], vec![2, 2]] {
            let mut dense = Vec::new();
            let mut images = Vec::new();
            for (index, channels) in counts.iter().copied().enumerate() {
                let values: Vec<f32> = (0..channels * voxels).map(|v| (v + 1000 * index) as f32 + 1.0).collect();
                let block = if channels <= 4 { 1 } else { 16 };
                let layout = Blocked::new(channels, dims, [0, index, 1], block);
                let mut blocked = vec![0.0; layout.len()];
                reorder::pack(&values, &layout, 0.0, &mut blocked)?;
                // Each part is converted on its own.
                dense.extend(values.iter().map(|v| v * (index + 1) as f32));
                images.push((blocked, layout));
            }
            let parts: Vec<Part<'_, f32>> = images.iter().map(|(values, layout)| (values.as_slice(), layout)).collect();
            let channels = counts.iter().sum::<usize>();
            let layout = Blocked::new(channels, dims, [1, 0, 2], if channels <= 4 { 1 } else { 16 });
            let mut expected = vec![0.0; layout.len()];
            reorder::pack(&dense, &layout, 0.0, &mut expected)?;
            // The unused channels of the last block are overwritten, the border is kept.
            let mut output = vec![-1.0; layout.len()];
            reorder::clear_border(&layout, 0.0, &mut output)?;
            join(&parts, 0.0, |part, value| value * (part + 1) as f32, &mut output, &layout)?;
            assert!(output == expected, "{counts:?}");
            let short = Blocked::new(channels + 1, dims, [0; 3], 16);
            assert!(join(&parts, 0.0, |_, value| value, &mut vec![0.0; short.len()], &short).is_err());
        }
        let empty = Blocked::new(24, [2, 3, 0], [0; 3], 16);
        join(&[(&[], &empty)], 0.0, |_, value: f32| value, &mut [], &empty)
    }
}
