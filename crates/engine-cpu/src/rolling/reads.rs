//! Which planes of an input each output plane of an operator depends on, along Z.

use cytoscope_kernels::conv::ConvShape;
use cytoscope_kernels::resize::Tap;
use std::ops::Range;

/// The planes of an input that each output plane of an operator reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reads {
    /// Planes of the input.
    extent: usize,
    /// First and last plane read by each output plane. Planes outside the input are read as zeros.
    spans: Vec<(isize, isize)>,
    /// For each number of output planes: how many input planes, and zeros after them, must be known to compute them.
    known: Vec<usize>,
    /// For each number of computed output planes: the first input plane that the others read; `isize::MAX` if none.
    kept: Vec<isize>,
    /// Output planes are computed in multiples of this.
    step: usize,
}

impl Reads {
    fn new(extent: usize, spans: Vec<(isize, isize)>) -> Self {
        let mut known = vec![0];
        let mut kept = vec![isize::MAX; spans.len() + 1];
        for (_, last) in &spans {
            let before = known.last().copied().unwrap_or(0);
            known.push(before.max(usize::try_from(last + 1).unwrap_or(0)));
        }
        let mut least = isize::MAX;
        for (place, (first, _)) in spans.iter().enumerate().rev() {
            least = least.min(*first);
            kept[place] = least;
        }
        Self { extent, spans, known, kept, step: 1 }
    }

    /// Each of `planes` output planes reads the input plane at its own position.
    pub(crate) fn same(planes: usize) -> Self {
        Self::new(planes, (0..planes as isize).map(|z| (z, z)).collect())
    }

    /// Each of `outputs` output planes reads the input plane `before` planes before its own position. Planes outside the
    /// input are read as zeros.
    pub(crate) fn shifted(extent: usize, outputs: usize, before: isize) -> Self {
        Self::new(extent, (0..outputs as isize).map(|z| (z - before, z - before)).collect())
    }

    /// A window moves over `extent` planes to `outputs` positions. With `padded`, planes outside the input are read as
    /// zeros, else they are left out.
    pub(crate) fn window(shape: &ConvShape, extent: usize, outputs: usize, padded: bool) -> Self {
        let (stride, pad) = (shape.stride[0] as isize, shape.pad_before[0] as isize);
        let reach = (shape.kernel[0].max(1) - 1) as isize * shape.dilation[0] as isize;
        let last = extent as isize - 1;
        let span = |z: isize| {
            let first = z * stride - pad;
            if padded { (first, first + reach) } else { (first.clamp(0, last), (first + reach).clamp(0, last)) }
        };
        Self::new(extent, (0..outputs as isize).map(span).collect())
    }

    /// A transposed convolution from `extent` to `outputs` planes with padding `pad`: input plane `i` is read by the output
    /// planes `i · stride − pad` to `i · stride − pad + kernel − 1`. Planes outside the input are read as zeros. Output planes
    /// are computed in multiples of the stride, so that their remainders are the same in every slab.
    pub(crate) fn transposed(extent: usize, outputs: usize, kernel: usize, stride: usize, pad: usize) -> Self {
        let step = stride.max(1);
        let (kernel, pad) = (kernel.max(1) as isize, pad as isize);
        let span = |z: usize| {
            let first = (z / step * step) as isize;
            let last = (first + step as isize).min(outputs as isize) - 1;
            // Divisions that round up and down.
            (-(kernel - 1 - first - pad).div_euclid(step as isize), (last + pad).div_euclid(step as isize))
        };
        Self { step, ..Self::new(extent, (0..outputs).map(span).collect()) }
    }

    /// Each output plane interpolates between two planes.
    pub(crate) fn taps(extent: usize, taps: &[Tap]) -> Self {
        let span = |t: &Tap| (t.low.min(t.high) as isize, t.low.max(t.high) as isize);
        Self::new(extent, taps.iter().map(span).collect())
    }

    /// Returns the number of output planes.
    pub(crate) fn outputs(&self) -> usize {
        self.spans.len()
    }

    /// Returns whether an input of `extent` planes can be read.
    pub(crate) fn fits(&self, extent: usize) -> bool {
        self.extent == extent
    }

    /// Returns how many output planes can be computed from the first `known` input planes and the zeros after them.
    pub(crate) fn computable(&self, known: usize) -> usize {
        self.known.partition_point(|needed| *needed <= known).saturating_sub(1)
    }

    /// Returns the step of the output: it is computed in multiples of this number of planes.
    pub(crate) fn step(&self) -> usize {
        self.step
    }

    /// Returns the first input plane that is read once `computed` output planes exist; `isize::MAX` if none is.
    pub(crate) fn first_kept(&self, computed: usize) -> isize {
        self.kept.get(computed).copied().unwrap_or(isize::MAX)
    }

    /// Returns the input planes that a range of output planes reads.
    pub(crate) fn of(&self, outputs: &Range<usize>) -> Range<isize> {
        let spans = self.spans.get(outputs.clone()).unwrap_or_default();
        let first = spans.iter().map(|s| s.0).min().unwrap_or(0);
        first..spans.iter().map(|s| s.1 + 1).max().unwrap_or(first)
    }

    /// Returns whether the output planes of each [`Self::step`] read at most one input plane.
    pub(crate) fn is_plane_by_plane(&self) -> bool {
        let steps = (0..self.spans.len()).step_by(self.step.max(1));
        steps.map(|first| first..(first + self.step.max(1)).min(self.spans.len())).all(|own| self.of(&own).len() <= 1)
    }

    /// Returns the number of planes of zeros that are read before the first and after the last plane of the input.
    pub(crate) fn padding(&self) -> (usize, usize) {
        let all = self.of(&(0..self.spans.len()));
        let after = all.end - self.extent as isize;
        (usize::try_from(-all.start).unwrap_or(0), usize::try_from(after).unwrap_or(0))
    }
}
