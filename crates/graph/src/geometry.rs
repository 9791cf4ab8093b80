//! Sliding windows over spatial axes (convolutions, transposed convolutions, pools) and their output lengths; the greatest
//! common divisor, by which ratios of lengths are reduced.

use crate::error::{GraphError, Result};

/// Padding at the borders of a sliding window.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Padding {
    /// Explicit padding, one entry per spatial axis.
    Explicit {
        /// Elements before the first one.
        before: Vec<usize>,
        /// Elements after the last one.
        after: Vec<usize>,
    },
    /// Padding for output = ceil(input / stride), an odd element at the end.
    SameUpper,
    /// Padding for output = ceil(input / stride), an odd element at the start.
    SameLower,
}

impl Padding {
    /// Returns equal padding before and after.
    pub fn symmetric(pads: Vec<usize>) -> Self {
        Self::Explicit { before: pads.clone(), after: pads }
    }

    /// Returns no padding on `axes` spatial axes.
    pub fn none(axes: usize) -> Self {
        Self::symmetric(vec![0; axes])
    }

    /// Returns the elements before and after on each spatial axis for an input with spatial lengths `input`. All slices
    /// have one entry per spatial axis.
    pub fn resolve(
        &self,
        input: &[usize],
        kernel: &[usize],
        strides: &[usize],
        dilations: &[usize],
    ) -> (Vec<usize>, Vec<usize>) {
        if let Self::Explicit { before, after } = self {
            return (before.clone(), after.clone());
        }
        let mut before = Vec::with_capacity(input.len());
        let mut after = Vec::with_capacity(input.len());
        for (((&n, &k), &s), &d) in input.iter().zip(kernel).zip(strides).zip(dilations) {
            let reach = k.saturating_sub(1).saturating_mul(d).saturating_add(1);
            let out = n.div_ceil(s.max(1));
            let total = (out.saturating_sub(1).saturating_mul(s)).saturating_add(reach).saturating_sub(n);
            let (small, large) = (total / 2, total - total / 2);
            if *self == Self::SameUpper {
                before.push(small);
                after.push(large);
            } else {
                before.push(large);
                after.push(small);
            }
        }
        (before, after)
    }
}

/// Geometry of a convolution. Every vector has one entry per spatial axis, in the order of the tensor (z, y, x).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConvAttrs {
    /// Length of the kernel along each spatial axis.
    pub kernel: Vec<usize>,
    /// Step between outputs, in input elements.
    pub strides: Vec<usize>,
    /// Step between taps, in input elements.
    pub dilations: Vec<usize>,
    /// Padding at the borders (with zeros; with the zero point for quantized inputs).
    pub padding: Padding,
    /// Number of separate channel groups.
    pub group: usize,
}

impl ConvAttrs {
    /// Returns stride 1, dilation 1, one group, and "same" zero padding for an odd kernel.
    pub fn same(kernel: &[usize]) -> Self {
        Self {
            kernel: kernel.to_vec(),
            strides: vec![1; kernel.len()],
            dilations: vec![1; kernel.len()],
            padding: Padding::symmetric(kernel.iter().map(|k| k / 2).collect()),
            group: 1,
        }
    }

    /// Returns the geometry with other strides.
    pub fn with_strides(mut self, strides: &[usize]) -> Self {
        self.strides = strides.to_vec();
        self
    }

    /// Returns the geometry with other padding.
    pub fn with_padding(mut self, padding: Padding) -> Self {
        self.padding = padding;
        self
    }

    /// Returns the output's spatial lengths for an input with spatial lengths `input`.
    ///
    /// # Errors
    /// If the number of axes differs or the window is larger than the padded input.
    pub fn output_lengths(&self, input: &[usize]) -> Result<Vec<usize>> {
        window_output(input, &self.kernel, &self.strides, &self.dilations, &self.padding, false)
    }
}

/// Geometry of a transposed convolution; see [`ConvAttrs`]. The weight is `[in, out / group, kernel…]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConvTransposeAttrs {
    /// Length of the kernel along each spatial axis.
    pub kernel: Vec<usize>,
    /// Step between inputs, in output elements.
    pub strides: Vec<usize>,
    /// Step between taps, in output elements.
    pub dilations: Vec<usize>,
    /// Elements cropped from both ends of the full result. For the `Same…` variants see [`Self::geometry`].
    pub padding: Padding,
    /// Elements added to the output at the far end.
    pub output_padding: Vec<usize>,
    /// Explicit output lengths, if the file has them (they override the padding).
    pub output_shape: Option<Vec<usize>>,
    /// Number of separate channel groups.
    pub group: usize,
}

/// Position of a transposed convolution's output in its full, uncropped result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransposedGeometry {
    /// Lengths of the output's spatial axes.
    pub output: Vec<usize>,
    /// Elements cropped at the start (negative: zeros inserted in front).
    pub before: Vec<isize>,
}

impl ConvTransposeAttrs {
    /// Returns stride = kernel without padding: every input element becomes a separate block.
    pub fn upsample(factors: &[usize]) -> Self {
        Self {
            kernel: factors.to_vec(),
            strides: factors.to_vec(),
            dilations: vec![1; factors.len()],
            padding: Padding::none(factors.len()),
            output_padding: vec![0; factors.len()],
            output_shape: None,
            group: 1,
        }
    }

    /// Returns output lengths and cropping for an input with spatial lengths `input` (ONNX `ConvTranspose`): output
    /// element `o` collects input element `i` through tap `k` where `o = i·stride + k·dilation − before`.
    ///
    /// # Errors
    /// If the number of axes differs or a length would be negative.
    pub fn geometry(&self, input: &[usize]) -> Result<TransposedGeometry> {
        let axes = self.kernel.len();
        let same = |v: usize| v == axes;
        if !(same(input.len()) && same(self.strides.len()) && same(self.dilations.len())) {
            return Err(GraphError::misused("spatial axes", input.len().to_string(), axes.to_string()));
        }
        let at = |v: &[usize], a: usize| v.get(a).copied().unwrap_or(0) as i128;
        let mut geometry = TransposedGeometry { output: Vec::new(), before: Vec::new() };
        for axis in 0..axes {
            let stride = at(&self.strides, axis);
            let full = stride * (at(input, axis) - 1)
                + at(&self.output_padding, axis)
                + (at(&self.kernel, axis) - 1) * at(&self.dilations, axis)
                + 1;
            let wanted = match (&self.output_shape, &self.padding) {
                (Some(shape), _) => Some(at(shape, axis)),
                (None, Padding::Explicit { .. }) => None,
                (None, _) => Some(at(input, axis) * stride),
            };
            let (out, before) = match (wanted, &self.padding) {
                (Some(out), padding) => {
                    let total = (full - out).max(0);
                    (out, if *padding == Padding::SameUpper { total / 2 } else { total - total / 2 })
                }
                (None, Padding::Explicit { before, after }) => {
                    (full - at(before, axis) - at(after, axis), at(before, axis))
                }
                (None, _) => (full, 0),
            };
            let length = usize::try_from(out).ok().filter(|_| out > 0 || at(input, axis) == 0).ok_or_else(|| {
                GraphError::misused("transposed convolution", format!("output length {out}"), "a positive length")
            })?;
            geometry.output.push(length);
            geometry.before.push(before as isize);
        }
        Ok(geometry)
    }
}

/// Geometry of a pooling window; see [`ConvAttrs`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PoolAttrs {
    /// Length of the window along each spatial axis.
    pub kernel: Vec<usize>,
    /// Step between windows along each spatial axis, in input elements.
    pub strides: Vec<usize>,
    /// Step between elements of a window.
    pub dilations: Vec<usize>,
    /// Padding at the borders (never the maximum; counted in an average only with `count_include_pad`).
    pub padding: Padding,
    /// Whether the output length is rounded up instead of down.
    pub ceil_mode: bool,
    /// Average pools: whether to divide by the full window including padding.
    pub count_include_pad: bool,
    /// Max pools with indices: whether the last axis varies slowest (`storage_order` = 1).
    pub column_major_indices: bool,
}

impl PoolAttrs {
    /// Returns the output's spatial lengths for an input with spatial lengths `input`.
    ///
    /// # Errors
    /// If the number of axes differs or the window is larger than the padded input; with `ceil_mode`, if it is larger by
    /// the stride or more.
    pub fn output_lengths(&self, input: &[usize]) -> Result<Vec<usize>> {
        window_output(input, &self.kernel, &self.strides, &self.dilations, &self.padding, self.ceil_mode)
    }
}

/// Returns the output lengths of a sliding window (ONNX `Conv` and pools). With `ceil`, a last window that would start
/// in the trailing padding is dropped, as in ONNX and PyTorch.
fn window_output(
    input: &[usize],
    kernel: &[usize],
    strides: &[usize],
    dilations: &[usize],
    padding: &Padding,
    ceil: bool,
) -> Result<Vec<usize>> {
    let axes = input.len();
    if kernel.len() != axes || strides.len() != axes || dilations.len() != axes {
        return Err(GraphError::misused("spatial axes", axes.to_string(), kernel.len().to_string()));
    }
    if !matches!(padding, Padding::Explicit { .. }) {
        return Ok(input.iter().zip(strides).map(|(n, s)| n.div_ceil((*s).max(1))).collect());
    }
    let (before, after) = padding.resolve(input, kernel, strides, dilations);
    if before.len() != axes || after.len() != axes {
        return Err(GraphError::misused("padding", before.len().to_string(), format!("{axes} axes")));
    }
    let mut out = Vec::with_capacity(axes);
    for axis in 0..axes {
        let get = |v: &[usize]| v.get(axis).copied().unwrap_or(0) as u128;
        let padded = get(input) + get(&before) + get(&after);
        let reach = get(kernel).saturating_sub(1) * get(dilations) + 1;
        let stride = get(strides).max(1);
        // Rounded up, a window that exceeds the padded input by less than a step still has one output.
        let missing = reach.saturating_sub(padded);
        if missing > 0 && (!ceil || missing >= stride || get(input) == 0) {
            return Err(GraphError::misused(
                // Shapes are inferred axis by axis, so the axis of the tensor is unknown here.
                "length of a spatial axis",
                format!("{padded} with padding"),
                format!("at least the window length {reach}"),
            ));
        }
        let steps = padded.saturating_sub(reach);
        let mut n = if ceil { steps.div_ceil(stride) } else { steps / stride } + 1;
        if ceil && (n - 1) * stride >= get(input) + get(&before) {
            n -= 1;
        }
        out.push(usize::try_from(n).unwrap_or(usize::MAX));
    }
    Ok(out)
}

/// Returns the greatest common divisor; of a number and 0, the number.
pub fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Returns the least common multiple of two numbers, of which 0 counts as 1; the largest number if it is above that.
pub fn lcm(a: usize, b: usize) -> usize {
    let (a, b) = (a.max(1), b.max(1));
    (a / gcd(a, b)).saturating_mul(b)
}

/// Extends one to three numbers, one per spatial axis, to three, filling the missing outer axes with `fill`.
pub fn to_3d(values: &[usize], fill: usize) -> [usize; 3] {
    let missing = 3usize.saturating_sub(values.len());
    std::array::from_fn(|i| if i < missing { fill } else { values.get(i - missing).copied().unwrap_or(fill) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_common_multiple_of_any_numbers_is_at_least_one_and_does_not_overflow() {
        assert_eq!([lcm(4, 6), lcm(16, 8), lcm(3, 1), lcm(0, 5), lcm(0, 0)], [12, 16, 3, 5, 1]);
        assert_eq!(lcm(usize::MAX, usize::MAX - 1), usize::MAX);
    }

    #[test]
    fn missing_outer_axes_are_filled() {
        assert_eq!([to_3d(&[4, 5], 1), to_3d(&[4], 0), to_3d(&[3, 4, 5], 1)], [[1, 4, 5], [0, 0, 4], [3, 4, 5]]);
    }
}
