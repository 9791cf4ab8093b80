//! Plans operators that move elements: slices, padding, transposes and similar ones.

use super::{Cut, Kind, PlanResult, Planner, Source, Tap, TrainKind, unsupported};
use crate::form::{Form, count, place};
use cytoscope_graph::infer::rules::wrapped_position;
use cytoscope_graph::{DepthOrder, Node, Op, PadMode, Tensor, ValueId};

impl Planner<'_> {
    /// Plans an operator that moves elements; `None` for other operators.
    pub(super) fn moved(&mut self, node: &Node) -> Option<PlanResult> {
        Some(match &node.op {
            Op::Concat { axis } => self.concat(node, *axis),
            Op::Split { axis } => self.split(node, *axis),
            Op::Slice => self.slice(node),
            Op::Pad { mode } => self.pad(node, *mode),
            Op::Transpose { perm } => self.transpose(node, perm),
            Op::Tile => self.tile(node),
            Op::Gather { axis } => self.pick(node, *axis),
            Op::DepthToSpace { block, order } => self.depth_to_space(node, *block, *order),
            Op::SpaceToDepth { block } => self.space_to_depth(node, *block),
            _ => return None,
        })
    }

    /// Returns the index of a table of input positions; equal tables are shared.
    pub(super) fn table(&mut self, positions: Vec<i32>) -> usize {
        if let Some(known) = self.tables.iter().position(|t| *t == positions) {
            return known;
        }
        self.tables.push(positions);
        self.tables.len() - 1
    }

    fn concat(&mut self, node: &Node, axis: i64) -> PlanResult {
        let output = self.output(node)?;
        let rank = self.shape(output)?.len();
        let (_, axis) = self.axis(axis, rank)?;
        if let Some((parts, starts)) = self.long_parts(node)? {
            return self.push(Kind::Train(TrainKind::Join { starts }), parts, output);
        }
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for value in node.inputs.iter().flatten() {
            inputs.push(self.source(*value)?);
        }
        self.push(Kind::Concat { axis }, inputs, output)
    }

    /// Returns the inputs of a concatenation of tensors with one axis that are not constant zeros, and their positions in the
    /// result; `None` if an input is of another kind, or if the result does not start with a computed tensor.
    fn long_parts(&self, node: &Node) -> PlanResult<Option<(Vec<Source>, Vec<usize>)>> {
        let (mut parts, mut starts, mut end) = (Vec::new(), Vec::new(), 0);
        for &value in node.inputs.iter().flatten() {
            if self.shape(value)?.len() != 1 || self.is_half(value) {
                return Ok(None);
            }
            match self.graph.constant(value) {
                Some(tensor) if tensor.as_f32().is_some_and(|v| v.iter().all(|v| *v == 0.0)) => {}
                Some(_) => return Ok(None),
                None => {
                    parts.push(Source::Value(value));
                    starts.push(end);
                }
            }
            end += count(&self.form(value)?);
        }
        Ok((starts.first() == Some(&0)).then_some((parts, starts)))
    }

    fn split(&mut self, node: &Node, axis: i64) -> PlanResult {
        let x = self.input(node, 0)?;
        let (shape, form) = (self.shape(x)?, self.form(x)?);
        let (own, axis) = self.axis(axis, shape.len())?;
        let mut start = 0;
        let from = self.source(x)?;
        for output in &node.outputs {
            let Some(output) = output else { return unsupported("with an unused output") };
            let len = self.shape(*output)?.get(own).copied().unwrap_or(0);
            let mut cuts = form.map(|len| Cut { start: 0, len, step: 1 });
            cuts[axis] = Cut { start, len, step: 1 };
            start += len;
            if start > form[axis] {
                return unsupported("into parts that exceed the input");
            }
            self.push(Kind::Slice(cuts), vec![from], *output)?;
        }
        Ok(())
    }

    /// Returns the axes that a slice cuts: position in the form, start and step.
    pub(super) fn slice_cuts(&self, node: &Node, x: ValueId, out: Form) -> PlanResult<Vec<(usize, i64, i64)>> {
        let (shape, form) = (self.shape(x)?, self.form(x)?);
        let (Some(starts), Some(ends)) = (self.integers(node, 1, "starts")?, self.integers(node, 2, "ends")?) else {
            return unsupported("without starts and ends");
        };
        let axes = self.integers(node, 3, "axes")?.unwrap_or_else(|| (0..starts.len() as i64).collect());
        let steps = self.integers(node, 4, "steps")?.unwrap_or_else(|| vec![1; starts.len()]);
        if ends.len() != starts.len() || axes.len() != starts.len() || steps.len() != starts.len() {
            return unsupported("with arguments of different lengths");
        }
        let mut cuts = Vec::with_capacity(starts.len());
        for ((&start, &axis), &step) in starts.iter().zip(&axes).zip(&steps) {
            let (_, at) = self.axis(axis, shape.len())?;
            let n = form[at] as i64;
            let from = if start < 0 { start.saturating_add(n) } else { start };
            // The end follows from the inferred output length.
            let from = if step > 0 { from.clamp(0, n) } else { from.clamp(0, n - 1) };
            let last = from + (out[at] as i64 - 1) * step;
            if step == 0 || !(0..n).contains(&from) || !(0..n).contains(&last) {
                return unsupported(format!("from {start} with step {step} on an axis of length {n}"));
            }
            cuts.push((at, from, step));
        }
        Ok(cuts)
    }

    fn slice(&mut self, node: &Node) -> PlanResult {
        let (x, output) = (self.input(node, 0)?, self.output(node)?);
        let (form, out) = (self.form(x)?, self.form(output)?);
        let mut cuts = form.map(|len| Cut { start: 0, len, step: 1 });
        let mut backwards = Vec::new();
        for (at, from, step) in self.slice_cuts(node, x, out)? {
            if step > 0 {
                cuts[at] = Cut { start: from as usize, len: out[at], step: step as usize };
            } else {
                let positions = (0..out[at] as i64).map(|o| (from + o * step) as i32).collect();
                backwards.push((at, vec![Tap { table: self.table(positions), weights: None }]));
            }
        }
        if backwards.is_empty() {
            return self.simple(node, Kind::Slice(cuts));
        }
        let from = self.source(x)?;
        let between = self.between(Kind::Slice(cuts), vec![from], cuts.map(|c| c.len));
        self.push(Kind::Resample(backwards), vec![between], output)
    }

    /// Returns the padding before and after each axis of the form; negative padding crops.
    pub(super) fn pad_ends(&self, node: &Node, rank: usize) -> PlanResult<[(i64, i64); 5]> {
        let Some(pads) = self.integers(node, 1, "pads")? else { return unsupported("without pads") };
        let axes = self.integers(node, 3, "axes")?.unwrap_or_else(|| (0..rank as i64).collect());
        if pads.len() != 2 * axes.len() {
            return unsupported("with pads that do not match its axes");
        }
        let mut ends = [(0i64, 0i64); 5];
        for (index, &axis) in axes.iter().enumerate() {
            ends[self.axis(axis, rank)?.1] = (pads[index], pads[index + axes.len()]);
        }
        Ok(ends)
    }

    fn pad(&mut self, node: &Node, mode: PadMode) -> PlanResult {
        let x = self.input(node, 0)?;
        let (shape, form) = (self.shape(x)?, self.form(x)?);
        let ends = self.pad_ends(node, shape.len())?;
        if mode == PadMode::Constant {
            let value = self.known(node, 2, "a value")?.and_then(Tensor::as_f32).and_then(|v| v.first().copied());
            let mut cut = form.map(|len| Cut { start: 0, len, step: 1 });
            let (mut before, mut after) = ([0; 5], [0; 5]);
            for (axis, (first, last)) in ends.into_iter().enumerate() {
                let start = (-first).max(0) as usize;
                let end = form[axis].saturating_sub((-last).max(0) as usize);
                if start >= end {
                    return unsupported("that removes all elements");
                }
                cut[axis] = Cut { start, len: end - start, step: 1 };
                (before[axis], after[axis]) = (first.max(0) as usize, last.max(0) as usize);
            }
            return self.simple(node, Kind::Pad { cut, before, after, value: value.unwrap_or(0.0) });
        }
        let mut axes = Vec::new();
        for (axis, (before, after)) in ends.into_iter().enumerate().filter(|(_, e)| *e != (0, 0)) {
            let positions = pad_positions(mode, form[axis] as i64, before, after);
            let Some(positions) = positions else { return unsupported("with padding that is too large") };
            axes.push((axis, vec![Tap { table: self.table(positions), weights: None }]));
        }
        self.simple(node, Kind::Resample(axes))
    }

    fn transpose(&mut self, node: &Node, perm: &[usize]) -> PlanResult {
        let x = self.input(node, 0)?;
        let shape = self.shape(x)?;
        let rank = shape.len();
        let perm: Vec<usize> = if perm.is_empty() { (0..rank).rev().collect() } else { perm.to_vec() };
        if rank > 5 {
            let (from, output) = (self.source(x)?, self.output(node)?);
            let from = self.permuted(from, &shape, &perm);
            return self.push(Kind::Reshape, vec![from], output);
        }
        let mut order = [0, 1, 2, 3, 4];
        for (to, &from) in perm.iter().enumerate() {
            order[place(rank, to)] = place(rank, from);
        }
        self.simple(node, Kind::Permute(order))
    }

    /// Adds steps that permute the axes of a tensor with any number of axes, and returns a tensor whose elements have the new
    /// order. Each step moves neighboring axes ahead of others.
    pub(super) fn permuted(&mut self, mut from: Source, shape: &[usize], perm: &[usize]) -> Source {
        let length = |axes: &[usize]| axes.iter().filter_map(|axis| shape.get(*axis)).product::<usize>();
        let wanted: Vec<usize> = perm.iter().copied().filter(|axis| shape.get(*axis) != Some(&1)).collect();
        let mut order = wanted.clone();
        order.sort_unstable();
        for at in 0..wanted.len() {
            let (_, later) = order.split_at(at);
            let Some(skipped) = later.iter().position(|axis| *axis == wanted[at]).filter(|n| *n > 0) else { continue };
            let moved = later[skipped..].iter().zip(&wanted[at..]).take_while(|(a, b)| a == b).count();
            let end = at + skipped + moved;
            let [outer, inner] = [length(&order[..at]), length(&order[end..])];
            let [first, second] = [length(&order[at..at + skipped]), length(&order[at + skipped..end])];
            let apart = self.between(Kind::Reshape, vec![from], [outer, first, second, inner, 1]);
            from = self.between(Kind::Permute([0, 2, 1, 3, 4]), vec![apart], [outer, second, first, inner, 1]);
            order[at..end].rotate_left(skipped);
        }
        from
    }

    fn tile(&mut self, node: &Node) -> PlanResult {
        let (x, output) = (self.input(node, 0)?, self.output(node)?);
        let (form, out) = (self.form(x)?, self.form(output)?);
        let mut axes = Vec::new();
        for axis in (0..5).filter(|axis| form[*axis] != out[*axis]) {
            let positions = (0..out[axis]).map(|position| (position % form[axis]) as i32).collect();
            axes.push((axis, vec![Tap { table: self.table(positions), weights: None }]));
        }
        self.simple(node, Kind::Resample(axes))
    }

    /// Plans the selection of indices that are known (ONNX `Gather`).
    fn pick(&mut self, node: &Node, axis: i64) -> PlanResult {
        let (x, output) = (self.input(node, 0)?, self.output(node)?);
        let (rank, form) = (self.shape(x)?.len(), self.form(x)?);
        let (_, at) = self.axis(axis, rank)?;
        let Some(indices) = self.integers(node, 1, "indices")? else { return unsupported("without indices") };
        let mut positions = Vec::with_capacity(indices.len());
        for index in indices {
            let from_front = if index < 0 { index.saturating_add(form[at] as i64) } else { index };
            match i32::try_from(from_front) {
                Ok(position) if (0..form[at] as i64).contains(&from_front) => positions.push(position),
                _ => return unsupported(format!("of index {index} on an axis of length {}", form[at])),
            }
        }
        let mut picked = form;
        picked[at] = positions.len();
        let kind = if let &[position] = positions.as_slice() {
            let mut cuts = form.map(|len| Cut { start: 0, len, step: 1 });
            cuts[at] = Cut { start: position as usize, len: 1, step: 1 };
            Kind::Slice(cuts)
        } else {
            Kind::Resample(vec![(at, vec![Tap { table: self.table(positions), weights: None }])])
        };
        let from = self.source(x)?;
        let picked = self.between(kind, vec![from], picked);
        self.push(Kind::Reshape, vec![picked], output)
    }

    fn depth_to_space(&mut self, node: &Node, block: usize, order: DepthOrder) -> PlanResult {
        let (six, order) = self.depth_shuffle(self.input(node, 0)?, block, order)?;
        self.simple(node, Kind::Shuffle { six, order })
    }

    /// Returns six axes and their permutation that move depth (channels) to space.
    pub(super) fn depth_shuffle(
        &self,
        x: ValueId,
        block: usize,
        order: DepthOrder,
    ) -> PlanResult<([usize; 6], [usize; 6])> {
        let [n, c, d, h, w] = self.form(x)?;
        if self.shape(x)?.len() != 4 || block == 0 || d != 1 {
            return unsupported("of a tensor that is not a 2-D image");
        }
        let channels = c / (block * block);
        Ok(match order {
            DepthOrder::Dcr => ([n, block, block, channels, h, w], [0, 3, 4, 1, 5, 2]),
            DepthOrder::Crd => ([n, channels, block, block, h, w], [0, 1, 4, 2, 5, 3]),
        })
    }

    fn space_to_depth(&mut self, node: &Node, block: usize) -> PlanResult {
        let (six, order) = self.space_shuffle(self.input(node, 0)?, block)?;
        self.simple(node, Kind::Shuffle { six, order })
    }

    /// Returns six axes and their permutation that move space to depth (channels).
    pub(super) fn space_shuffle(&self, x: ValueId, block: usize) -> PlanResult<([usize; 6], [usize; 6])> {
        let [n, c, d, h, w] = self.form(x)?;
        if self.shape(x)?.len() != 4 || block == 0 || d != 1 {
            return unsupported("of a tensor that is not a 2-D image");
        }
        Ok(([n, c, h / block, block, w / block, block], [0, 3, 5, 1, 2, 4]))
    }
}

/// Returns the input position of each position of a padded axis, or `None` for constant padding or too long axes.
pub(super) fn pad_positions(mode: PadMode, n: i64, before: i64, after: i64) -> Option<Vec<i32>> {
    let length = n.checked_add(before)?.checked_add(after)?;
    let mirrored = |i: i64| {
        let r = i.rem_euclid(2 * (n - 1));
        if r < n { r } else { 2 * (n - 1) - r }
    };
    (0..length)
        .map(|o| {
            let i = o - before;
            let at = match mode {
                _ if (0..n).contains(&i) => i,
                PadMode::Edge => i.clamp(0, n - 1),
                PadMode::Wrap => wrapped_position(i, n, (before, after))?,
                PadMode::Reflect if n == 1 => 0,
                PadMode::Reflect => mirrored(i),
                PadMode::Constant => return None,
            };
            i32::try_from(at).ok()
        })
        .collect()
}
