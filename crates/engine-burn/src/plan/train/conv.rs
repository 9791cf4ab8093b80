//! Plans gradients of convolutions.

use super::super::conv::spatial;
use super::super::{Cut, Kind, PlanResult, Planner, Window, unsupported};
use super::{Taps, TrainKind};
use crate::form::{Form, count, to_3d};
use cytoscope_graph::{ConvAttrs, Node, ValueId};

/// Largest number of elements of input taps that are concatenated at once, unless a single tap has more.
pub(crate) const TAPS_AT_ONCE: usize = 1 << 24;

impl Planner<'_> {
    pub(super) fn conv_gradient(&mut self, node: &Node, own: &Node, dy: ValueId, attrs: &ConvAttrs) -> PlanResult {
        let (x, w) = (self.input(own, 0)?, self.input(own, 1)?);
        let lengths = self.shape(x)?.get(2..).map(<[usize]>::to_vec).unwrap_or_default();
        if lengths.len() != attrs.kernel.len() || lengths.is_empty() || lengths.len() > 3 {
            return unsupported(format!("with {} spatial axes", attrs.kernel.len()));
        }
        let (before, _) = attrs.padding.resolve(&lengths, &attrs.kernel, &attrs.strides, &attrs.dilations);
        let before = to_3d(&before, 0);
        let (kernel, stride, dilation) =
            (to_3d(&attrs.kernel, 1), to_3d(&attrs.strides, 1), to_3d(&attrs.dilations, 1));
        let (input, out) = (self.form(x)?, self.form(dy)?);
        let after: [usize; 3] = std::array::from_fn(|a| {
            let reach = (out[a + 2] - 1) * stride[a] + (kernel[a] - 1) * dilation[a] + 1;
            reach.saturating_sub(input[a + 2] + before[a])
        });
        let taps = Taps { kernel, stride, dilation, groups: attrs.group, before, after };
        if let Some(dx) = node.output(0) {
            self.input_gradient(dy, w, dx, &taps)?;
        }
        if let Some(dw) = node.output(1) {
            self.weight_gradient(x, dy, dw, &taps)?;
        }
        if let Some(db) = node.output(2) {
            let (from, form) = (self.source(dy)?, self.form(dy)?);
            self.channel_sums(from, form, db)?;
        }
        Ok(())
    }

    /// Plans the input gradient: by the kernel for it, or else as a convolution with reversed taps if the stride is 1, or a
    /// transposed convolution.
    fn input_gradient(&mut self, dy: ValueId, w: ValueId, dx: ValueId, taps: &Taps) -> PlanResult {
        let Taps { kernel, stride, dilation, groups, before, .. } = *taps;
        if let Some(adjoint) = taps.adjoint(self.form(dx)?) {
            let (inputs, form, weights) = (vec![self.source(dy)?, self.source(w)?], self.form(dx)?, self.form(w)?);
            // The weights in the order of the kernel.
            let blocks: usize = stride.iter().product();
            let scratch_elements = adjoint.kernel.iter().product::<usize>() * blocks * weights[0] * weights[1];
            self.push_many(Kind::Train(TrainKind::InputGradient(*taps)), inputs, vec![(dx, form)], scratch_elements);
            return Ok(());
        }
        let window = Window { stride, padding: [0; 3], dilation, groups };
        if stride != [1; 3] {
            return self.transposed(dy, w, None, dx, &window, ([0; 3], before));
        }
        let (out, input) = (self.form(dy)?, self.form(dx)?);
        // Padding of the gradient (negative: cropping), such that each element of x gets the gradients of its windows.
        let mut cut = out.map(|len| Cut { start: 0, len, step: 1 });
        let (mut first, mut last) = ([0usize; 3], [0usize; 3]);
        for a in 0..3 {
            let reach = (kernel[a] - 1) * dilation[a];
            let lead = reach as i64 - before[a] as i64;
            let trail = (input[a + 2] + reach) as i64 - out[a + 2] as i64 - lead;
            let (gone, left) = ((-lead).max(0) as usize, out[a + 2].saturating_sub((-trail).max(0) as usize));
            if gone >= left {
                return unsupported("with an output that lies outside its input");
            }
            cut[a + 2] = Cut { start: gone, len: left - gone, step: 1 };
            (first[a], last[a]) = (lead.max(0) as usize, trail.max(0) as usize);
        }
        let mut from = self.source(dy)?;
        let mut padding = first;
        let same = cut.iter().zip(out).all(|(c, n)| c.len == n);
        if !same || first != last {
            padding = [0; 3];
            let (start, end) = (spatial(first), spatial(last));
            let form = std::array::from_fn(|a| cut[a].len + start[a] + end[a]);
            from = self.between(Kind::Pad { cut, before: start, after: end, value: 0.0 }, vec![from], form);
        }
        let [outputs, each, d, h, width] = self.form(w)?;
        if groups == 0 || !outputs.is_multiple_of(groups) {
            return unsupported(format!("with {groups} groups of {outputs} channels"));
        }
        let weights = self.source(w)?;
        let form = [each * groups, outputs / groups, d, h, width];
        let turned = self.between(Kind::Train(TrainKind::FlipWeights { groups }), vec![weights], form);
        let window = Window { padding, ..window };
        let kind = Kind::Conv { window, bias: false, residual: false, activation: None };
        self.push(kind, vec![from, turned], dx)
    }

    fn weight_gradient(&mut self, x: ValueId, dy: ValueId, dw: ValueId, taps: &Taps) -> PlanResult {
        let (input, out, form) = (self.form(x)?, self.form(dy)?, self.form(dw)?);
        if taps.groups == 0 || !form[0].is_multiple_of(taps.groups) || form[1] * taps.groups != input[1] {
            return unsupported(format!("with {} groups of {} channels", taps.groups, form[0]));
        }
        let inputs = vec![self.source(x)?, self.source(dy)?];
        // Temporaries without a kernel for it: the padded input, the permuted gradient, the concatenated taps, and one copy
        // of these. A kernel needs less: copies of both inputs, and sums.
        let padded: Form = std::array::from_fn(|axis| {
            let around = axis.checked_sub(2).map_or(0, |a| taps.before[a] + taps.after[a]);
            input[axis] + around
        });
        let one = count(&out) / out[1].max(1) * input[1];
        let all = one * taps.kernel.iter().product::<usize>();
        let scratch_elements = count(&padded) + count(&out) + 2 * all.min(one.max(TAPS_AT_ONCE));
        self.push_many(Kind::Train(TrainKind::WeightGradient(*taps)), inputs, vec![(dw, form)], scratch_elements);
        Ok(())
    }
}
