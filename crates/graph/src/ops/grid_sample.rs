//! `GridSample`: values of a tensor at positions that another tensor gives.

use super::{AxisEffect, AxisLengths, Operator};
use crate::error::{GraphError, Result};
use crate::graph::Dim;
use crate::infer::{Info, OpInputs, shape_text};

/// How [`crate::Op::GridSample`] computes values between elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "ONNX's own names")]
pub enum GridMode {
    Nearest,
    Linear,
}

/// Values that [`crate::Op::GridSample`] reads outside of the tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "ONNX's own names")]
pub enum GridPadding {
    Zeros,
    Border,
    Reflection,
}

/// Attributes of [`crate::Op::GridSample`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GridSampleAttrs {
    /// How values between elements are computed.
    pub mode: GridMode,
    /// Values that are read outside of the tensor.
    pub padding: GridPadding,
    /// Whether −1 and 1 are the centers of the first and the last element, not their outer borders.
    pub align_corners: bool,
}

impl GridSampleAttrs {
    /// Returns the elements of an axis with `n` elements that position `g` (−1 to 1) lies between, with their weights;
    /// `None` for zeros outside of the axis.
    pub fn taps(&self, g: f64, n: usize) -> [(Option<usize>, f64); 2] {
        let length = n as f64;
        let mut at =
            if self.align_corners { (g + 1.0) / 2.0 * (length - 1.0) } else { ((g + 1.0) * length - 1.0) / 2.0 };
        if self.mode == GridMode::Nearest {
            at = at.round_ties_even();
        }
        let (low, high) = self.borders(length);
        if at < low || at > high {
            at = match self.padding {
                GridPadding::Zeros => at,
                GridPadding::Border => at.clamp(0.0, (length - 1.0).max(0.0)),
                GridPadding::Reflection => reflected(at, low, high),
            };
        }
        match self.mode {
            GridMode::Nearest => [(self.element(at.round_ties_even(), n), 1.0), (None, 0.0)],
            GridMode::Linear => {
                let (first, fraction) = (at.floor(), at - at.floor());
                [(self.element(first, n), 1.0 - fraction), (self.element(first + 1.0, n), fraction)]
            }
        }
    }

    /// Returns the positions of the outermost elements, or of their outer borders.
    fn borders(&self, length: f64) -> (f64, f64) {
        if self.align_corners { (0.0, length - 1.0) } else { (-0.5, length - 0.5) }
    }

    fn element(&self, at: f64, n: usize) -> Option<usize> {
        let last = (n as f64 - 1.0).max(0.0);
        if (0.0..=last).contains(&at) {
            return Some(at as usize);
        }
        let (low, high) = self.borders(n as f64);
        match self.padding {
            GridPadding::Zeros => None,
            GridPadding::Border => Some(at.clamp(0.0, last) as usize),
            GridPadding::Reflection => Some(reflected(at, low, high).clamp(0.0, last) as usize),
        }
    }
}

/// Returns a position that is reflected at `low` and `high` until it lies between them.
fn reflected(at: f64, low: f64, high: f64) -> f64 {
    let range = high - low;
    if range <= 0.0 {
        return low;
    }
    let outside = if at < low { low - at } else { at - high };
    if outside <= 0.0 {
        return at;
    }
    let (times, rest) = ((outside / range).floor(), outside % range);
    // After an even number of whole ranges, the position comes back from the border that it passed.
    if (times % 2.0 == 0.0) == (at < low) { low + rest } else { high - rest }
}

impl Operator for GridSampleAttrs {
    fn infer(&self, args: &OpInputs<'_>) -> Result<Vec<Info>> {
        let (x, grid) = (args.need(0)?, args.need(1)?);
        args.types(0, &crate::infer::FLOATS)?;
        args.types(1, &crate::infer::FLOATS)?;
        let (Some(shape), Some(places)) = (&x.shape, &grid.shape) else { return Ok(vec![Info::new(x.dtype, None)]) };
        let ([batch, channels, space @ ..], [samples, lengths @ .., axes]) = (shape.as_slice(), places.as_slice())
        else {
            return Err(GraphError::misused("shape of x", shape_text(shape), "batch, channel and spatial axes"));
        };
        let differ = |a: &Dim, b: &Dim| matches!((a, b), (Dim::Fixed(a), Dim::Fixed(b)) if a != b);
        if space.len() != lengths.len() || differ(batch, samples) || differ(axes, &Dim::Fixed(space.len())) {
            let expected = format!("positions on {} axes for a tensor of shape {}", space.len(), shape_text(shape));
            return Err(GraphError::misused("shape of the grid", shape_text(places), expected));
        }
        let output: Vec<Dim> = [batch, channels].into_iter().chain(lengths).cloned().collect();
        if let Some(fixed) = output.iter().map(Dim::fixed).collect::<Option<Vec<usize>>>() {
            args.check_output_size(&fixed, "GridSample")?;
        }
        Ok(vec![Info::new(x.dtype, Some(output))])
    }

    fn axis_effect(&self, lengths: &AxisLengths) -> Result<AxisEffect> {
        Ok(if lengths.axis == 0 { AxisEffect::SameOfAll } else { AxisEffect::All })
    }

    fn cost(&self, from: Option<&[usize]>, to: Option<&[usize]>) -> Option<(u128, u128)> {
        let elements = |shape: &[usize]| shape.iter().fold(1u128, |t, n| t.saturating_mul(*n as u128));
        let (from, to) = (elements(from?), elements(to?));
        Some((from.saturating_add(to.saturating_mul(2)).saturating_mul(8), to.saturating_mul(64)))
    }
}
