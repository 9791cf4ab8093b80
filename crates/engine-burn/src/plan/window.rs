//! Plans pooling and resampling.

use super::conv::spatial;
use super::{Kind, PlanResult, Planner, PoolAxis, Tap, unsupported};
use cytoscope_graph::{AspectPolicy, CoordinateMode, Node, Op, PoolAttrs, ResizeAttrs, ResizeMode, ValueId, to_3d};

/// For each position along an axis, the positions it is computed from, with their weights.
pub(super) type Parts = Vec<Vec<(usize, f64)>>;

/// Largest number of input elements that an output element may depend on along an axis.
const MAX_TAPS: usize = 16;

impl Planner<'_> {
    /// Plans pooling, or weighted sums along axes; `None` for other operators.
    pub(super) fn windowed(&mut self, node: &Node) -> Option<PlanResult> {
        Some(match &node.op {
            Op::MaxPool(attrs) => self.pool(node, attrs, true),
            Op::AveragePool(attrs) => self.pool(node, attrs, false),
            Op::Resize(attrs) => self.resize(node, attrs),
            _ => return None,
        })
    }

    /// Returns for each axis that an operator changes by weighted sums its position in the form, and what each position of
    /// `output` is computed from; `None` for operators that compute something else.
    pub(super) fn weighted_sums(&self, node: &Node, output: ValueId) -> Option<PlanResult<Vec<(usize, Parts)>>> {
        match &node.op {
            Op::Resize(attrs) => Some(self.input(node, 0).and_then(|x| self.resize_taps(node, attrs, x, output))),
            _ => None,
        }
    }

    fn pool(&mut self, node: &Node, attrs: &PoolAttrs, max: bool) -> PlanResult {
        let (x, output) = (self.input(node, 0)?, self.output(node)?);
        let (before, after, axes) = self.pool_axes(x, output, attrs, max)?;
        self.simple(node, Kind::Pool { max, before, after, axes })
    }

    /// Returns the padding before and after, and the axes, of pooling `x` to the form of `output`.
    pub(super) fn pool_axes(
        &mut self,
        x: ValueId,
        output: ValueId,
        attrs: &PoolAttrs,
        max: bool,
    ) -> PlanResult<([usize; 5], [usize; 5], Vec<PoolAxis>)> {
        let lengths = self.shape(x)?.get(2..).map(<[usize]>::to_vec).unwrap_or_default();
        if lengths.len() != attrs.kernel.len() || lengths.is_empty() || lengths.len() > 3 {
            return unsupported(format!("with {} spatial axes", attrs.kernel.len()));
        }
        let (first, last) = attrs.padding.resolve(&lengths, &attrs.kernel, &attrs.strides, &attrs.dilations);
        let (first, last) = (to_3d(&first, 0), to_3d(&last, 0));
        let (kernel, stride, dilation) =
            (to_3d(&attrs.kernel, 1), to_3d(&attrs.strides, 1), to_3d(&attrs.dilations, 1));
        let (input, out) = (self.form(x)?, self.form(output)?);
        let (mut before, mut after) = ([0; 3], [0; 3]);
        let mut axes = Vec::new();
        for a in 0..3 {
            let (n, m) = (input[a + 2], out[a + 2]);
            let reach = (m - 1) * stride[a] + (kernel[a] - 1) * dilation[a] + 1;
            before[a] = first[a];
            after[a] = reach.saturating_sub(first[a] + n);
            if kernel[a] == 1 && stride[a] == 1 && first[a] == 0 && m == n {
                continue;
            }
            // Positions that count for the average: elements, and padding if the attributes say so.
            let counted = if attrs.count_include_pad { 0..first[a] + n + last[a] } else { first[a]..first[a] + n };
            let weight = |o: usize| {
                let taps = (0..kernel[a]).filter(|t| counted.contains(&(o * stride[a] + t * dilation[a]))).count();
                1.0 / taps as f32
            };
            let weights = (!max).then(|| {
                let mut form = [1; 5];
                form[a + 2] = m;
                self.constant(form, (0..m).map(weight).collect())
            });
            axes.push(PoolAxis {
                axis: a + 2,
                kernel: kernel[a],
                stride: stride[a],
                dilation: dilation[a],
                len: m,
                weights,
            });
        }
        Ok((spatial(before), spatial(after), axes))
    }

    fn resize(&mut self, node: &Node, attrs: &ResizeAttrs) -> PlanResult {
        let (x, output) = (self.input(node, 0)?, self.output(node)?);
        let mut axes = Vec::new();
        for (at, taps) in self.resize_taps(node, attrs, x, output)? {
            axes.push((at, self.taps(&taps, at, MAX_TAPS)?));
        }
        self.simple(node, Kind::Resample(axes))
    }

    /// Returns for each axis that changes its position in the form, and what each position of `output` is computed
    /// from.
    fn resize_taps(
        &self,
        node: &Node,
        attrs: &ResizeAttrs,
        x: ValueId,
        output: ValueId,
    ) -> PlanResult<Vec<(usize, Parts)>> {
        if attrs.coordinates == CoordinateMode::TfCropAndResize {
            return unsupported("with coordinates tf_crop_and_resize");
        }
        let shape = self.shape(x)?;
        let (input, out, rank) = (self.form(x)?, self.form(output)?, shape.len());
        let named = attrs.axes.clone().unwrap_or_else(|| (0..rank as i64).collect());
        let scales =
            self.known(node, 2, "scales")?.filter(|t| !t.is_empty()).and_then(|t| t.as_f32()).map(<[f32]>::to_vec);
        if scales.is_none() && attrs.policy != AspectPolicy::Stretch {
            return unsupported("with an aspect ratio policy");
        }
        let mut axes = Vec::new();
        for (index, &axis) in named.iter().enumerate() {
            let (_, at) = self.axis(axis, rank)?;
            let (n, m) = (input[at], out[at]);
            let stretched = m as f64 / n as f64;
            let factor = scales.as_ref().and_then(|s| s.get(index)).map_or(stretched, |s| f64::from(*s));
            if n == m && factor == 1.0 {
                continue;
            }
            axes.push((at, (0..m).map(|o| taps(attrs, o, n, m, factor)).collect()));
        }
        Ok(axes)
    }

    /// Turns the parts of each position of an axis into taps, of which there may be at most `limit`.
    pub(super) fn taps(&mut self, parts: &Parts, axis: usize, limit: usize) -> PlanResult<Vec<Tap>> {
        let tap_count = parts.iter().map(Vec::len).max().unwrap_or(0);
        if tap_count == 0 || tap_count > limit {
            return unsupported(format!("that computes an element from {tap_count} others (limit: {limit})"));
        }
        Ok((0..tap_count).map(|t| self.tap(parts, t, axis)).collect())
    }

    /// Returns tap `t` of each output position along an axis; positions with fewer taps get a weight of 0.
    fn tap(&mut self, taps: &Parts, t: usize, axis: usize) -> Tap {
        let pick = |of: &Vec<(usize, f64)>| of.get(t).copied().unwrap_or((of.first().map_or(0, |f| f.0), 0.0));
        let table = self.table(taps.iter().map(|of| pick(of).0 as i32).collect());
        let weights: Vec<f32> = taps.iter().map(|of| pick(of).1 as f32).collect();
        let plain = weights.iter().all(|w| *w == 1.0);
        let mut form = [1; 5];
        form[axis] = weights.len();
        Tap { table, weights: (!plain).then(|| self.constant(form, weights)) }
    }
}

/// Returns the input positions and weights that an output position is computed from (ONNX `Resize`).
fn taps(attrs: &ResizeAttrs, o: usize, n: usize, m: usize, factor: f64) -> Vec<(usize, f64)> {
    // Coordinates relative to a region were refused.
    let x = attrs.coordinate_in_region(o, n, m, factor, (0.0, 1.0));
    let last = n.saturating_sub(1) as f64;
    let inside = |i: f64| i.clamp(0.0, last) as usize;
    if attrs.mode == ResizeMode::Nearest {
        return vec![(attrs.nearest_element(x, n), 1.0)];
    }
    let width = if attrs.antialias { factor.min(1.0) } else { 1.0 };
    let reach = if attrs.mode == ResizeMode::Linear { 1.0 } else { 2.0 };
    let first = (-reach / width).floor() as i64 + 1;
    let mut found: Vec<(f64, f64)> = (first..=1 - first)
        .map(|j| {
            let i = x.floor() + j as f64;
            let distance = ((i - x) * width).abs();
            let weight = match attrs.mode {
                ResizeMode::Linear => (1.0 - distance).max(0.0),
                _ => cubic(distance, attrs.cubic_coeff_a.into()),
            };
            (i, weight)
        })
        .collect();
    if attrs.exclude_outside {
        found.retain(|(i, _)| (0.0..=last).contains(i));
    }
    let sum: f64 = found.iter().map(|(_, w)| w).sum();
    let norm = if (attrs.antialias || attrs.exclude_outside) && sum != 0.0 { sum } else { 1.0 };
    found.into_iter().filter(|(_, w)| *w != 0.0).map(|(i, w)| (inside(i), w / norm)).collect()
}

/// Keys' cubic kernel.
fn cubic(d: f64, a: f64) -> f64 {
    if d <= 1.0 {
        ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0
    } else if d < 2.0 {
        ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a
    } else {
        0.0
    }
}
