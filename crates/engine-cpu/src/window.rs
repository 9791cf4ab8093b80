//! Geometry of windows in the three spatial axes the kernels know.

use cytoscope_graph::{ConvAttrs, NearestMode, PadMode, PoolAttrs, ResizeAttrs, ResizeMode, Tensor, reference};
use cytoscope_kernels::conv::ConvShape;
use cytoscope_kernels::resize::Tap;

/// Spatial lengths `[.., D, H, W]` from a tensor's shape of rank 3 to 5 (missing axes are 1).
pub(crate) fn spatial(shape: &[usize]) -> Option<[usize; 3]> {
    (3..=5).contains(&shape.len()).then(|| three(&shape[2..], 1))
}

/// One to three per-axis numbers as three, the missing outer ones `fill`.
pub(crate) fn three(values: &[usize], fill: usize) -> [usize; 3] {
    let missing = 3usize.saturating_sub(values.len());
    std::array::from_fn(|i| if i < missing { fill } else { values.get(i - missing).copied().unwrap_or(fill) })
}

/// A convolution's geometry for an input of spatial lengths `input` (as many as the attributes have).
pub(crate) fn conv_shape(attrs: &ConvAttrs, input: &[usize]) -> ConvShape {
    let (before, _) = attrs.padding.resolve(input, &attrs.kernel, &attrs.strides, &attrs.dilations);
    ConvShape {
        kernel: three(&attrs.kernel, 1),
        stride: three(&attrs.strides, 1),
        dilation: three(&attrs.dilations, 1),
        pad_before: three(&before, 0),
    }
}

/// A pool's geometry.
pub(crate) fn pool_shape(attrs: &PoolAttrs, input: &[usize]) -> ConvShape {
    let (before, _) = attrs.padding.resolve(input, &attrs.kernel, &attrs.strides, &attrs.dilations);
    ConvShape {
        kernel: three(&attrs.kernel, 1),
        stride: three(&attrs.strides, 1),
        dilation: three(&attrs.dilations, 1),
        pad_before: three(&before, 0),
    }
}

/// The border a convolution needs around an input of `dims` to make `out`.
pub(crate) fn border(shape: &ConvShape, dims: [usize; 3], out: [usize; 3]) -> [usize; 3] {
    std::array::from_fn(|a| {
        let reach = (out[a].max(1) - 1) * shape.stride[a] + (shape.kernel[a] - 1) * shape.dilation[a] + 1;
        shape.pad_before[a].max(reach.saturating_sub(shape.pad_before[a] + dims[a]))
    })
}

/// The tables of a resize of batch × channels × space from shape `from` to shape `to`, or `None` where the kernel does not
/// serve. Positions are those of the reference executor: in other arithmetic a position half-way between two voxels falls to
/// the other side.
pub(crate) fn resize_tables(
    attrs: &ResizeAttrs,
    from: &[usize],
    to: &[usize],
    scales: Option<&Tensor>,
    sizes: Option<&Tensor>,
) -> Option<Box<[Vec<Tap>; 3]>> {
    if from.len() != to.len() || from.get(..2) != to.get(..2) || attrs.axes.is_some() {
        return None;
    }
    let factors = reference::resize_factors(attrs, from, scales, sizes).ok()?;
    if factors.iter().take(2).any(|f| *f != 1.0) {
        return None;
    }
    let mut tables: [Vec<Tap>; 3] = std::array::from_fn(|_| vec![Tap { low: 0, high: 0, weight: 0.0 }]);
    for axis in 2..from.len() {
        tables[3 + axis - from.len()] = resize_table(attrs, from[axis], to[axis], *factors.get(axis)?)?;
    }
    Some(Box::new(tables))
}

/// The table of one axis of a resize from `input` to `output` voxels.
fn resize_table(attrs: &ResizeAttrs, input: usize, output: usize, factor: f64) -> Option<Vec<Tap>> {
    if input == 0
        || attrs.antialias
        || attrs.mode == ResizeMode::Cubic
        || (attrs.mode == ResizeMode::Linear && attrs.exclude_outside)
    {
        return None;
    }
    if input == output && factor == 1.0 {
        return Some((0..output).map(|i| Tap { low: i, high: i, weight: 0.0 }).collect());
    }
    let last = (input - 1) as f64;
    (0..output)
        .map(|o| {
            let at = reference::resize_coordinate(attrs, o, input, output, factor)?;
            Some(match attrs.mode {
                ResizeMode::Nearest => {
                    let rounded = match attrs.nearest {
                        NearestMode::RoundPreferFloor => (at - 0.5).ceil(),
                        NearestMode::RoundPreferCeil => (at + 0.5).floor(),
                        NearestMode::Floor => at.floor(),
                        NearestMode::Ceil => at.ceil(),
                    };
                    let i = rounded.clamp(0.0, last) as usize;
                    Tap { low: i, high: i, weight: 0.0 }
                }
                _ => {
                    let at = at.clamp(0.0, last);
                    let low = at.floor();
                    let high = (low + 1.0).min(last);
                    Tap { low: low as usize, high: high as usize, weight: (at - low) as f32 }
                }
            })
        })
        .collect()
}

/// The table of one axis of padding with voxels of the image, or `None` for modes that need others.
pub(crate) fn pad_table(mode: PadMode, input: usize, before: i64, after: i64) -> Option<Vec<Tap>> {
    let n = i64::try_from(input).ok().filter(|n| *n > 0)?;
    let length = n.checked_add(before)?.checked_add(after)?;
    (0..length.max(0))
        .map(|o| {
            let i = o - before;
            let i = match mode {
                _ if (0..n).contains(&i) => i,
                PadMode::Edge => i.clamp(0, n - 1),
                PadMode::Wrap => i.rem_euclid(n),
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
