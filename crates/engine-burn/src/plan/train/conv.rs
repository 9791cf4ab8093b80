//! Plans gradients of convolutions.

use super::super::conv::check_groups;
use super::super::{Kind, PlanResult, Planner, unsupported};
use super::{Taps, TrainKind};
use crate::form::count;
use crate::kernels::sum_count;
use cytoscope_graph::{ConvAttrs, Node, ValueId, to_3d};

impl Planner<'_> {
    pub(super) fn conv_gradient(
        &mut self,
        node: &Node,
        forward_node: &Node,
        dy: ValueId,
        attrs: &ConvAttrs,
    ) -> PlanResult {
        let (x, w) = (self.input(forward_node, 0)?, self.input(forward_node, 1)?);
        let lengths = self.shape(x)?.get(2..).map(<[usize]>::to_vec).unwrap_or_default();
        if lengths.len() != attrs.kernel.len() || lengths.is_empty() || lengths.len() > 3 {
            return unsupported(format!("with {} spatial axes", attrs.kernel.len()));
        }
        let (before, _) = attrs.padding.resolve(&lengths, &attrs.kernel, &attrs.strides, &attrs.dilations);
        let before = to_3d(&before, 0);
        let (kernel, stride, dilation) =
            (to_3d(&attrs.kernel, 1), to_3d(&attrs.strides, 1), to_3d(&attrs.dilations, 1));
        let before = before.map(|zeros| zeros as isize);
        let taps = Taps { kernel, stride, dilation, groups: attrs.group, before };
        if let Some(dx) = node.output(0) {
            self.input_gradient(dy, w, dx, &taps)?;
        }
        if let Some(dw) = node.output(1) {
            self.weight_gradient(x, dy, dw, &taps)?;
        }
        if let Some(db) = node.output(2) {
            let from = self.source(dy)?;
            self.channel_sums(from, db)?;
        }
        Ok(())
    }

    fn input_gradient(&mut self, dy: ValueId, w: ValueId, dx: ValueId, taps: &Taps) -> PlanResult {
        let (inputs, form, weights) = (vec![self.source(dy)?, self.source(w)?], self.form(dx)?, self.form(w)?);
        check_groups(weights, taps.groups, form[1])?;
        let scratch_elements = taps.adjoint_scratch(form, weights);
        self.push_many(Kind::Train(TrainKind::InputGradient(*taps)), inputs, vec![(dx, form)], scratch_elements);
        Ok(())
    }

    fn weight_gradient(&mut self, x: ValueId, dy: ValueId, dw: ValueId, taps: &Taps) -> PlanResult {
        let (input, out, form) = (self.form(x)?, self.form(dy)?, self.form(dw)?);
        check_groups(form, taps.groups, input[1])?;
        let inputs = vec![self.source(x)?, self.source(dy)?];
        // Copies of both inputs, unless their channels are last in memory, and sums.
        let taps_count: usize = taps.kernel.iter().product();
        let sums = sum_count(count(&out) / out[1].max(1), count(&form), taps_count);
        let scratch_elements = count(&input) + count(&out) + sums;
        self.push_many(Kind::Train(TrainKind::WeightGradient(*taps)), inputs, vec![(dw, form)], scratch_elements);
        Ok(())
    }
}
