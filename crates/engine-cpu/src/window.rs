//! Geometry of convolutions, pooling and padding along the three spatial axes of the kernels.

use cytoscope_graph::infer::rules::wrapped_position;
use cytoscope_graph::{ConvAttrs, PadMode, Padding, PoolAttrs};
use cytoscope_kernels::conv::ConvShape;
use cytoscope_kernels::resize::Tap;

pub(crate) use cytoscope_graph::to_3d;

/// Returns the spatial lengths `[D, H, W]` of a tensor of rank 3 to 5 (missing axes are 1).
pub(crate) fn spatial(shape: &[usize]) -> Option<[usize; 3]> {
    (3..=5).contains(&shape.len()).then(|| to_3d(&shape[2..], 1))
}

/// Returns a convolution's geometry for an input of spatial lengths `input` (one per axis of the attributes).
pub(crate) fn conv_shape(attrs: &ConvAttrs, input: &[usize]) -> ConvShape {
    window_shape([&attrs.kernel, &attrs.strides, &attrs.dilations], &attrs.padding, input)
}

/// Returns a pooling window's geometry for an input of spatial lengths `input`.
pub(crate) fn pool_shape(attrs: &PoolAttrs, input: &[usize]) -> ConvShape {
    window_shape([&attrs.kernel, &attrs.strides, &attrs.dilations], &attrs.padding, input)
}

fn window_shape([kernel, strides, dilations]: [&[usize]; 3], padding: &Padding, input: &[usize]) -> ConvShape {
    let (before, _) = padding.resolve(input, kernel, strides, dilations);
    ConvShape {
        kernel: to_3d(kernel, 1),
        stride: to_3d(strides, 1),
        dilation: to_3d(dilations, 1),
        pad_before: to_3d(&before, 0),
    }
}

/// Returns the border that a convolution needs around an input of size `dims` to compute an output of size `out`.
pub(crate) fn border(shape: &ConvShape, dims: [usize; 3], out: [usize; 3]) -> [usize; 3] {
    std::array::from_fn(|a| {
        let reach = (out[a].max(1) - 1) * shape.stride[a] + (shape.kernel[a] - 1) * shape.dilation[a] + 1;
        shape.pad_before[a].max(reach.saturating_sub(shape.pad_before[a] + dims[a]))
    })
}

/// Returns the border of zeros around the gradient of a convolution's output (size `out`) from which the gradient of its input
/// (size `dims`) can be gathered.
pub(crate) fn input_gradient_border(shape: &ConvShape, dims: [usize; 3], out: [usize; 3]) -> [usize; 3] {
    std::array::from_fn(|a| {
        let (stride, pad) = (shape.stride[a].max(1), shape.pad_before[a] as isize);
        // Input voxels with the same remainder read the same positions of the output, relative to their own.
        let remainder_border = |remainder: usize| {
            let count = dims[a].saturating_sub(remainder).div_ceil(stride) as isize;
            let at = |k: usize| remainder as isize + pad - (k * shape.dilation[a]) as isize;
            let reads = (0..shape.kernel[a]).map(at).filter(|at| at.rem_euclid(stride as isize) == 0);
            let reads: Vec<isize> = reads.map(|at| at.div_euclid(stride as isize)).collect();
            let (Some(first), Some(last)) = (reads.iter().min(), reads.iter().max()) else { return 0 };
            if count == 0 { 0 } else { (-first).max(count - 1 + last - (out[a] as isize - 1)).max(0) }
        };
        (0..stride).map(remainder_border).max().unwrap_or(0) as usize
    })
}

/// Longest axis for which there is a table of source positions. A model of a few bytes can ask for axes of any length, whose
/// table alone would exceed the memory.
pub(crate) const MAX_TABLE: usize = 1 << 24;

/// Returns the table of one axis of cropping or padding with existing voxels, or `None` for padding with a constant and for axes
/// that are longer than [`MAX_TABLE`].
pub(crate) fn pad_table(mode: PadMode, input: usize, before: i64, after: i64) -> Option<Vec<Tap>> {
    let n = i64::try_from(input).ok().filter(|n| *n > 0)?;
    let length = n.checked_add(before)?.checked_add(after)?;
    if usize::try_from(length).is_ok_and(|length| length > MAX_TABLE) {
        return None;
    }
    (0..length.max(0))
        .map(|o| {
            let i = o - before;
            let i = match mode {
                _ if (0..n).contains(&i) => i,
                PadMode::Edge => i.clamp(0, n - 1),
                PadMode::Wrap => wrapped_position(i, n, (before, after))?,
                PadMode::Reflect if n == 1 => 0,
                PadMode::Reflect => {
                    let period = 2 * (n - 1);
                    let r = i.rem_euclid(period);
                    if r < n { r } else { period - r }
                }
                PadMode::Constant => return None,
            };
            let i = usize::try_from(i).ok()?;
            Some(Tap { low: i, high: i, weight: 0.0 })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_kernels::Isa;
    use cytoscope_kernels::train::InputGradient;

    #[test]
    fn very_long_axes_have_no_table() {
        for mode in [PadMode::Edge, PadMode::Reflect, PadMode::Wrap] {
            let length = |after: i64| pad_table(mode, 5, 0, after).map(|table| table.len());
            assert_eq!(length(3), Some(8));
            assert_eq!(length(MAX_TABLE as i64), None);
            assert_eq!(length(i64::MAX - 5), None);
        }
    }

    #[test]
    fn padding_wraps_around_what_cropping_leaves() {
        let read = |before: i64, after: i64| {
            let table = pad_table(PadMode::Wrap, 4, before, after);
            table.map(|taps| taps.iter().map(|tap| tap.low).collect::<Vec<usize>>())
        };
        assert_eq!(read(2, -1), Some(vec![1, 2, 0, 1, 2]));
        assert_eq!(read(-2, 3), Some(vec![2, 3, 2, 3, 2]));
        assert_eq!(read(-4, 2), None, "nothing remains");
    }

    #[test]
    fn input_gradient_border_equals_that_of_packed_weights() -> Result<(), cytoscope_kernels::KernelError> {
        for (kernel, stride, dilation, pad) in
            (1..5).flat_map(|k| (1..4).flat_map(move |s| (1..3).flat_map(move |d| (0..4).map(move |p| (k, s, d, p)))))
        {
            let shape = ConvShape {
                kernel: [kernel, 1, 3],
                stride: [stride, 1, 2],
                dilation: [dilation, 1, 1],
                pad_before: [pad, 0, 1],
            };
            let weights = vec![0.0; kernel * 3];
            let packed = InputGradient::new(Isa::detect(), &weights, [1, 1], &shape, 1)?;
            let (dims, out) = ([9, 4, 7], [(9 + 2 * pad) / stride, 4, 4]);
            assert_eq!(input_gradient_border(&shape, dims, out), packed.border(dims, out), "{shape:?}");
        }
        Ok(())
    }
}
