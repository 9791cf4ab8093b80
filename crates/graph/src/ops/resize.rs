//! `Resize`: resampling by interpolation.

use super::{AxisEffect, AxisLengths, Op, Operator};
use crate::error::{GraphError, Result};
use crate::geometry::gcd;
use crate::graph::{Dim, Graph, Node, ValueId};
use crate::infer::{Info, OpInputs, fixed, free, map_dim, resolve_axis};
use crate::tensor::Tensor;

impl Op {
    /// Returns a resize operator with these attributes.
    pub fn resize(attrs: ResizeAttrs) -> Self {
        Self::Resize(attrs)
    }

    /// Returns the factor of a resize along an axis of a tensor of shape `input`; the length stays the same for factors slightly
    /// above 1. `constant` returns an input's value, if that is known. `None` for other operators and if the factor is unknown.
    pub fn factor_along<'a>(
        &self,
        axis: usize,
        input: &[usize],
        constant: impl Fn(usize) -> Option<&'a Tensor>,
    ) -> Option<f64> {
        let Self::Resize(attrs) = self else { return None };
        attrs.factors(input, constant(2), constant(3)).ok()?.get(axis).copied()
    }
}

/// How [`Op::Resize`] interpolates between elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "ONNX's own names")]
pub enum ResizeMode {
    Nearest,
    Linear,
    Cubic,
}

/// How [`Op::Resize`] maps output positions to input positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "ONNX's own names")]
pub enum CoordinateMode {
    HalfPixel,
    HalfPixelSymmetric,
    PytorchHalfPixel,
    AlignCorners,
    Asymmetric,
    TfHalfPixelForNn,
    TfCropAndResize,
}

/// Rounding of input positions in nearest-neighbor resizing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "ONNX's own names")]
pub enum NearestMode {
    RoundPreferFloor,
    RoundPreferCeil,
    Floor,
    Ceil,
}

/// How [`Op::Resize`] interprets its `sizes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "ONNX's own names")]
pub enum AspectPolicy {
    Stretch,
    NotLarger,
    NotSmaller,
}

/// Interpolation, coordinates and rounding of [`Op::Resize`], as ONNX defines them.
#[derive(Debug, Clone, PartialEq)]
pub struct ResizeAttrs {
    /// Interpolation between elements.
    pub mode: ResizeMode,
    /// How an output position is converted to an input position.
    pub coordinates: CoordinateMode,
    /// How positions are rounded if `mode` is nearest.
    pub nearest: NearestMode,
    /// Coefficient of the cubic kernel.
    pub cubic_coeff_a: f32,
    /// Cubic and linear: weights outside the input count as zero and the others are renormalized.
    pub exclude_outside: bool,
    /// Value outside the input, with [`CoordinateMode::TfCropAndResize`].
    pub extrapolation_value: f32,
    /// Widen the kernel when shrinking.
    pub antialias: bool,
    /// Axes that scales and sizes refer to; `None`: all.
    pub axes: Option<Vec<i64>>,
    /// Whether the given sizes keep the aspect ratio.
    pub policy: AspectPolicy,
}

impl ResizeAttrs {
    /// Nearest neighbor by integer factors: output `o` takes input `o / factor`.
    pub fn nearest() -> Self {
        Self {
            mode: ResizeMode::Nearest,
            coordinates: CoordinateMode::Asymmetric,
            nearest: NearestMode::Floor,
            cubic_coeff_a: -0.75,
            exclude_outside: false,
            extrapolation_value: 0.0,
            antialias: false,
            axes: None,
            policy: AspectPolicy::Stretch,
        }
    }

    /// Returns the axes that scales and sizes refer to, of a tensor with this number of axes.
    fn resolved_axes(&self, rank: usize) -> Result<Vec<usize>> {
        match &self.axes {
            Some(axes) => axes.iter().map(|axis| resolve_axis(*axis, rank)).collect(),
            None => Ok((0..rank).collect()),
        }
    }

    /// Returns the output length of every axis and its factor for a fixed input shape.
    ///
    /// # Errors
    /// [`GraphError::Misused`] if scales or sizes are missing, of the wrong number, or out of range.
    pub fn geometry(
        &self,
        input: &[usize],
        scales: Option<&[f64]>,
        sizes: Option<&[i64]>,
    ) -> Result<(Vec<usize>, Vec<f64>)> {
        let axes = self.resolved_axes(input.len())?;
        let mut output = input.to_vec();
        let mut factors = vec![1.0; input.len()];
        let count = |n: usize, what: &str| {
            if n == axes.len() { Ok(()) } else { Err(GraphError::misused(what, n.to_string(), axes.len().to_string())) }
        };
        let at = |axis: usize| input.get(axis).copied().unwrap_or(0) as f64;
        let mut put = |axis: usize, length: f64, factor: f64| -> Result<()> {
            if !(factor.is_finite() && factor > 0.0 && (0.0..=1e15).contains(&length)) {
                return Err(GraphError::misused("resize factor", factor.to_string(), "a positive number"));
            }
            if let (Some(o), Some(f)) = (output.get_mut(axis), factors.get_mut(axis)) {
                *o = length as usize;
                *f = factor;
            }
            Ok(())
        };
        match (scales, sizes) {
            (_, Some(sizes)) => {
                count(sizes.len(), "sizes")?;
                let ratios: Vec<f64> = axes.iter().zip(sizes).map(|(&axis, &s)| s as f64 / at(axis)).collect();
                let common = match self.policy {
                    AspectPolicy::Stretch => None,
                    AspectPolicy::NotLarger => ratios.iter().copied().reduce(f64::min),
                    AspectPolicy::NotSmaller => ratios.iter().copied().reduce(f64::max),
                };
                for ((&axis, &size), &ratio) in axes.iter().zip(sizes).zip(&ratios) {
                    match common {
                        // ONNX: the common factor times the length, rounded half up.
                        Some(f) => put(axis, (f * at(axis) + 0.5).floor(), f)?,
                        None => put(axis, size as f64, ratio)?,
                    }
                }
            }
            (Some(scales), None) => {
                count(scales.len(), "scales")?;
                for (&axis, &s) in axes.iter().zip(scales) {
                    put(axis, scaled_length(at(axis), s), s)?;
                }
            }
            (None, None) => return Err(GraphError::misused("resize", "neither scales nor sizes", "one of them")),
        }
        Ok((output, factors))
    }

    /// Returns the factor of every axis of a tensor of shape `input`, from the scales or the sizes (an empty tensor counts as
    /// absent).
    ///
    /// # Errors
    /// Same as [`Self::geometry`].
    pub fn factors(&self, input: &[usize], scales: Option<&Tensor>, sizes: Option<&Tensor>) -> Result<Vec<f64>> {
        let scales = scales.filter(|t| !t.is_empty()).map(Tensor::to_f64_vec);
        let sizes = sizes.filter(|t| !t.is_empty()).and_then(Tensor::to_i64_vec);
        Ok(self.geometry(input, scales.as_deref(), sizes.as_deref())?.1)
    }

    /// Returns the input coordinate of output position `o` along an axis whose length changes from `n` to `m` by `factor`;
    /// `None` for [`CoordinateMode::TfCropAndResize`], which depends on a region.
    pub fn coordinate(&self, o: usize, n: usize, m: usize, factor: f64) -> Option<f64> {
        (self.coordinates != CoordinateMode::TfCropAndResize)
            .then(|| self.coordinate_in_region(o, n, m, factor, (0.0, 1.0)))
    }

    /// Returns the input coordinate of output position `o` like [`Self::coordinate`], for any coordinate mode. `start` and `end`
    /// of the region of interest are parts of the axis. It is rounded like in ONNX Runtime, mostly to f32 after each step.
    pub fn coordinate_in_region(&self, o: usize, n: usize, m: usize, factor: f64, (start, end): (f64, f64)) -> f64 {
        let (x, scale, length) = (o as f32, factor as f32, n as f32);
        let half = || (x + 0.5) / scale - 0.5;
        f64::from(match self.coordinates {
            CoordinateMode::HalfPixel => half(),
            CoordinateMode::HalfPixelSymmetric => {
                let adjustment = m as f32 / (scale * length);
                let offset = length / 2.0 * (1.0 - adjustment);
                // ONNX Runtime adds in f64 here.
                (f64::from(offset) + (f64::from(x) + 0.5) / f64::from(scale) - 0.5) as f32
            }
            CoordinateMode::PytorchHalfPixel if m > 1 => half(),
            CoordinateMode::PytorchHalfPixel => 0.0,
            CoordinateMode::AlignCorners if m > 1 => x * (length - 1.0) / (m as f32 - 1.0),
            CoordinateMode::AlignCorners => 0.0,
            CoordinateMode::Asymmetric => x / scale,
            CoordinateMode::TfHalfPixelForNn => (x + 0.5) / scale,
            CoordinateMode::TfCropAndResize => {
                let (start, end) = (start as f32, end as f32);
                if m > 1 {
                    start * (length - 1.0) + x * (end - start) * (length - 1.0) / (m as f32 - 1.0)
                } else {
                    0.5 * (start + end) * (length - 1.0)
                }
            }
        })
    }

    /// Returns the input element that output element `o` of a nearest-neighbor resize takes, along an axis whose length changes
    /// from `n` to `m` by `factor`; `None` in the cases of [`Self::coordinate`].
    pub fn nearest_source(&self, o: usize, n: usize, m: usize, factor: f64) -> Option<usize> {
        self.coordinate(o, n, m, factor).map(|x| self.nearest_element(x, n))
    }

    /// Returns the element nearest to a coordinate of an axis with `n` elements, rounded as the attributes say.
    pub fn nearest_element(&self, x: f64, n: usize) -> usize {
        let rounded = match self.nearest {
            NearestMode::RoundPreferFloor => (x - 0.5).ceil(),
            NearestMode::RoundPreferCeil => (x + 0.5).floor(),
            NearestMode::Floor => x.floor(),
            NearestMode::Ceil => x.ceil(),
        };
        rounded.clamp(0.0, n.saturating_sub(1) as f64) as usize
    }
}

impl Operator for ResizeAttrs {
    fn infer(&self, args: &OpInputs<'_>) -> Result<Vec<Info>> {
        Ok(vec![output(self, args)?])
    }

    fn axis_effect(&self, lengths: &AxisLengths) -> Result<AxisEffect> {
        let (Some(n), Some(m)) = (lengths.input, lengths.output) else { return Ok(AxisEffect::All) };
        if n == m {
            // Other factors move elements although the length stays.
            let is_copy = lengths.factor == Some(1.0) && self.coordinates != CoordinateMode::TfCropAndResize;
            return Ok(if is_copy { AxisEffect::Same } else { AxisEffect::All });
        }
        let size_dependent = matches!(self.coordinates, CoordinateMode::AlignCorners | CoordinateMode::TfCropAndResize);
        if size_dependent || n == 0 || m == 0 {
            return Ok(AxisEffect::All);
        }
        let g = gcd(n, m).max(1);
        let (num, den) = (n / g, m / g);
        let ratio = num as f64 / den as f64;
        let exact = self.mode == ResizeMode::Nearest
            && num == 1
            && self.coordinates == CoordinateMode::Asymmetric
            && self.nearest == NearestMode::Floor;
        if exact {
            return Ok(AxisEffect::Window { step: (1, den), first: -((den - 1) as f64) / den as f64, last: 0.0 });
        }
        // Output o lies at o·ratio + shift; the kernel extends this far around it.
        let shift = match self.coordinates {
            CoordinateMode::Asymmetric => 0.0,
            CoordinateMode::TfHalfPixelForNn => 0.5 * ratio,
            _ => 0.5 * ratio - 0.5,
        };
        let widened = if self.antialias { ratio.max(1.0) } else { 1.0 };
        let reach = match self.mode {
            ResizeMode::Nearest => 1.0,
            ResizeMode::Linear => widened,
            ResizeMode::Cubic => 2.0 * widened,
        };
        Ok(AxisEffect::Window { step: (num, den), first: shift - reach, last: shift + reach })
    }

    fn cost(&self, from: Option<&[usize]>, to: Option<&[usize]>) -> Option<(u128, u128)> {
        // Axes are resized one after the other, so an intermediate may be larger than input and output.
        let (from, to) = (from?, to?);
        let between = from.iter().zip(to).fold(1u128, |t, (a, b)| t.saturating_mul(*a.max(b) as u128));
        let longest = from.iter().chain(to).copied().max().unwrap_or(1) as u128;
        let taps = match (self.antialias, self.mode) {
            (true, _) => longest.saturating_mul(16).saturating_add(32),
            (false, ResizeMode::Cubic) => 8,
            _ => 4,
        };
        Some((between.saturating_mul(24), between.saturating_mul(taps).saturating_mul(from.len() as u128)))
    }

    fn gradient_name(&self) -> &'static str {
        "ResizeGradient"
    }

    fn has_vjp(&self) -> bool {
        true
    }

    fn resamples_linearly(&self) -> bool {
        self.coordinates != CoordinateMode::TfCropAndResize
    }

    fn moved_inputs(&self, node: &Node, _output_rank: Option<usize>) -> Option<Vec<ValueId>> {
        if self.mode != ResizeMode::Nearest || self.axes.is_some() || node.input(1).is_some() {
            return None;
        }
        Some(vec![node.input(0)?])
    }

    fn over_slices(&self, node: &Node, graph: &mut Graph) -> Option<Node> {
        if self.coordinates == CoordinateMode::TfCropAndResize || node.input(3).is_some() || self.axes.is_some() {
            return None;
        }
        let mut scales = graph.constant(node.input(2)?)?.as_f32().filter(|scales| scales.len() == 4)?.to_vec();
        scales.insert(2, 1.0);
        let scales = graph.add_initializer(format!("{}.scales", node.name), Tensor::vector(scales));
        // The second input, the region of interest, is not read.
        Some(Node { inputs: vec![node.input(0), None, Some(scales)], ..node.clone() })
    }
}

fn output(a: &ResizeAttrs, args: &OpInputs<'_>) -> Result<Info> {
    let x = args.need(0)?;
    let present = |i: usize| args.get(i).filter(|t| t.fixed_shape().is_none_or(|s| !s.contains(&0)));
    let (scales, sizes) = (present(2), present(3));
    if scales.is_none() && sizes.is_none() {
        return Err(GraphError::misused("resize", "neither scales nor sizes", "one of them"));
    }
    let Some(x_shape) = &x.shape else { return Ok(Info::new(x.dtype, None)) };
    let values = scales.and_then(|s| s.value.as_ref()).map(|t| t.to_f64_vec());
    let lengths = sizes.and_then(Info::ints);
    if let Some(input) = x.fixed_shape() {
        if values.is_none() && lengths.is_none() {
            let unknown = (0..input.len()).map(|i| free(format!("resized_{i}"))).collect();
            return Ok(Info::new(x.dtype, Some(unknown)));
        }
        let (output, _) = a.geometry(&input, values.as_deref(), lengths.as_deref())?;
        args.check_output_size(&output, "Resize")?;
        return Ok(Info::new(x.dtype, Some(fixed(&output))));
    }
    let mut shape = x_shape.clone();
    let axes = a.resolved_axes(shape.len())?;
    for (index, axis) in axes.into_iter().enumerate() {
        let Some(d) = shape.get_mut(axis) else { continue };
        *d = match (values.as_ref().and_then(|v| v.get(index)), lengths.as_ref().and_then(|v| v.get(index))) {
            // These lengths also depend on those of the other axes.
            (_, Some(_)) if a.policy != AspectPolicy::Stretch => free(format!("resized_{axis}")),
            (_, Some(&n)) => Dim::Fixed(
                usize::try_from(n).map_err(|_| GraphError::misused("resize length", n.to_string(), "0 or more"))?,
            ),
            (Some(&s), None) => map_dim(d, |n| Ok(scaled_length(n as f64, s) as usize))?,
            (None, None) => free(format!("resized_{axis}")),
        };
    }
    Ok(Info::new(x.dtype, Some(shape)))
}

/// Returns the length of an axis of this length after it is resized by a scale, also with `tf_crop_and_resize`: the shape
/// inference of ONNX, its reference evaluator and ONNX Runtime do not multiply by the extent of the region. Scales are f32 in
/// the file, and so is the product: a third times three must give one.
fn scaled_length(length: f64, scale: f64) -> f64 {
    f64::from((length as f32 * scale as f32).floor())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_of_symmetric_half_pixels_are_rounded_as_in_onnx_runtime() {
        // Some outputs lie on an element; if they are rounded in another way, their positions are slightly smaller or larger.
        let attrs = ResizeAttrs { coordinates: CoordinateMode::HalfPixelSymmetric, ..ResizeAttrs::nearest() };
        let sources = |n: usize, m: usize, factor: f64| {
            (0..m).map(|o| attrs.nearest_source(o, n, m, factor)).collect::<Option<Vec<usize>>>()
        };
        assert_eq!(sources(3, 4, 1.5), Some(vec![0, 0, 1, 2]));
        assert_eq!(sources(5, 7, 1.5), Some(vec![0, 0, 1, 2, 2, 3, 4]));
        assert_eq!(sources(7, 10, 1.5), Some(vec![0, 0, 1, 2, 2, 3, 4, 4, 5, 6]));
        // With the lengths of the output instead of scales.
        assert_eq!(sources(5, 3, 3.0 / 5.0), Some(vec![0, 1, 3]));
        assert_eq!(sources(6, 2, 2.0 / 6.0), Some(vec![0, 3]));
        let wanted = vec![0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4];
        assert_eq!(sources(5, 17, 17.0 / 5.0), Some(wanted));
    }
}
