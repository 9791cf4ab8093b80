//! Plans gradients of operators that move elements or compute weighted sums along axes: each input position gathers the
//! gradients of the output positions that it contributed to.

use super::super::moves::pad_positions;
use super::super::window::Parts;
use super::super::{Kind, PlanResult, Planner, Unsupported, unsupported};
use super::TrainKind;
use crate::form::count;
use cytoscope_graph::{Node, PadMode, PoolAttrs, ValueId};

/// Largest number of output elements that an input element may contribute to along an axis.
const MAX_TAPS: usize = 64;

impl Planner<'_> {
    /// Plans the step from `dy` to `dx`, given for each axis the input positions that each output position was computed
    /// from.
    fn gather(&mut self, node: &Node, dy: ValueId, axes: Vec<(usize, Parts)>) -> PlanResult {
        let dx = self.only_input_gradient(node)?;
        let form = self.form(dx)?;
        let mut found = Vec::with_capacity(axes.len());
        for (axis, parts) in axes {
            let mut back: Parts = vec![Vec::new(); form[axis]];
            for (o, of) in parts.iter().enumerate() {
                for (i, weight) in of {
                    if let Some(list) = back.get_mut(*i) {
                        list.push((o, *weight));
                    }
                }
            }
            found.push((axis, self.taps(&back, axis, MAX_TAPS)?));
        }
        let from = self.source(dy)?;
        self.push(Kind::Resample(found), vec![from], dx)
    }

    /// Plans the gradient of an operator that computes weighted sums along axes; other operators are unsupported.
    pub(super) fn weighted_sum_gradient(&mut self, node: &Node, forward_node: &Node, dy: ValueId) -> PlanResult {
        let axes = self.weighted_sums(forward_node, dy).ok_or(Unsupported::Operator)??;
        self.gather(node, dy, axes)
    }

    pub(super) fn slice_gradient(&mut self, node: &Node, forward_node: &Node, dy: ValueId) -> PlanResult {
        let (x, out) = (self.input(forward_node, 0)?, self.form(dy)?);
        let mut axes = Vec::new();
        for (axis, from, step) in self.slice_cuts(forward_node, x, out)? {
            let at = |o: usize| (from + o as i64 * step) as usize;
            axes.push((axis, (0..out[axis]).map(|o| vec![(at(o), 1.0)]).collect()));
        }
        self.gather(node, dy, axes)
    }

    pub(super) fn pad_gradient(&mut self, node: &Node, forward_node: &Node, dy: ValueId, mode: PadMode) -> PlanResult {
        let x = self.input(forward_node, 0)?;
        let (rank, form) = (self.shape(x)?.len(), self.form(x)?);
        let mut axes = Vec::new();
        for (axis, (before, after)) in
            self.pad_ends(forward_node, rank)?.into_iter().enumerate().filter(|(_, e)| *e != (0, 0))
        {
            let n = form[axis] as i64;
            let inside = |i: i64| usize::try_from(i).ok().filter(|i| *i < form[axis]);
            let parts: Parts = if mode == PadMode::Constant {
                (0..n + before + after).map(|o| inside(o - before).map(|i| (i, 1.0)).into_iter().collect()).collect()
            } else {
                let positions = pad_positions(mode, n, before, after);
                let Some(positions) = positions else { return unsupported("with padding that is too large") };
                positions.into_iter().map(|i| inside(i.into()).map(|i| (i, 1.0)).into_iter().collect()).collect()
            };
            axes.push((axis, parts));
        }
        self.gather(node, dy, axes)
    }

    /// Plans the inverse of a permutation of six axes.
    pub(super) fn shuffle_gradient(
        &mut self,
        node: &Node,
        dy: ValueId,
        shuffle: ([usize; 6], [usize; 6]),
    ) -> PlanResult {
        let (six, order) = shuffle;
        let mut back = [0; 6];
        for (to, &from) in order.iter().enumerate() {
            if let Some(slot) = back.get_mut(from) {
                *slot = to;
            }
        }
        let dx = self.only_input_gradient(node)?;
        let from = self.source(dy)?;
        let six = order.map(|from| six.get(from).copied().unwrap_or(1));
        self.push(Kind::Shuffle { six, order: back }, vec![from], dx)
    }

    pub(super) fn pool_gradient(
        &mut self,
        node: &Node,
        forward_node: &Node,
        dy: ValueId,
        attrs: &PoolAttrs,
        max: bool,
    ) -> PlanResult {
        let (x, dx) = (self.input(forward_node, 0)?, self.only_input_gradient(node)?);
        let (before, after, axes) = self.pool_axes(x, dy, attrs, max)?;
        let form = self.form(dx)?;
        let inputs = vec![self.source(x)?, self.source(dy)?];
        let kind = Kind::Train(TrainKind::PoolGradient { max, before, after, axes });
        self.push_many(kind, inputs, vec![(dx, form)], 4 * count(&form));
        Ok(())
    }
}
