//! Emits steps: their order, and the place and lifetime of each value.

use crate::lower::LowerError;
use crate::lower::arena::{self, Request};
use crate::lower::placement::Placement;
use crate::plan::{Dequantized, DynamicDequantized, KernelPlan, PlanKind};
use crate::step::{Elem, ProgramStep, Slot, StepOp};
use crate::steps::{ByteScale, ClearBorder, Copy, Dequantize, Pack, Reference, Unpack, copy_part};
use cytoscope_engine::OpFallback;
use cytoscope_graph::{Activation, BinaryOp, ElementType, Graph, Op, ValueId, op_name};
use cytoscope_graph_passes::analysis;
use cytoscope_profile::OperatorPrecision;
use std::collections::{BTreeMap, BTreeSet};

/// All steps and the arena that they run on.
pub(crate) struct Emitted {
    /// Steps in execution order.
    pub steps: Vec<ProgramStep>,
    /// Slot table; steps name a slot by its index.
    pub slots: Vec<Slot>,
    /// Length of the arena in 32-bit words.
    pub arena_len: usize,
    /// For each step, the dense values that are not read afterwards.
    pub dead_after: Vec<Vec<ValueId>>,
    /// Operators that the reference executor runs, except losses and optimizers, which it runs by design.
    pub fallbacks: Vec<OpFallback>,
}

/// Returns the bytes that clearing the border of a slot writes.
fn border_bytes(slot: &Slot) -> u64 {
    // No kernel reads the border of 16-bit floats, so it is not cleared.
    if slot.elem == Elem::F16 {
        return 0;
    }
    let Slot { layout, elem, images, .. } = slot;
    let voxels = |lengths: [usize; 3]| lengths.iter().fold(1u64, |n, len| n.saturating_mul(*len as u64));
    let border_voxels = voxels(layout.padded()).saturating_sub(voxels(layout.dims));
    let factors = [layout.blocks(), layout.block, elem.size_bytes(), *images];
    factors.iter().fold(border_voxels, |n, factor| n.saturating_mul(*factor as u64))
}

/// A part of a concatenation.
struct Part {
    value: ValueId,
    /// First channel block in the output.
    block: usize,
    /// Conversion of bytes with other quantization parameters.
    table: Option<Box<[u8; 256]>>,
}

/// Emits steps and tracks which values exist in blocked and in dense form.
pub(crate) struct Emitter<'a> {
    graph: &'a Graph,
    placement: &'a Placement<'a>,
    dequantized: &'a BTreeMap<ValueId, Dequantized>,
    dyn_dequantized: &'a BTreeMap<ValueId, DynamicDequantized>,
    steps: Vec<ProgramStep>,
    slots: Vec<Slot>,
    slot_roots: Vec<ValueId>,
    slot_of: BTreeMap<ValueId, usize>,
    blocked: BTreeSet<ValueId>,
    dense: BTreeSet<ValueId>,
    lifetimes: BTreeMap<ValueId, (usize, Request)>,
    fallbacks: BTreeMap<&'static str, OpFallback>,
}

impl<'a> Emitter<'a> {
    pub(crate) fn new(
        graph: &'a Graph,
        placement: &'a Placement<'a>,
        dequantized: &'a BTreeMap<ValueId, Dequantized>,
        dyn_dequantized: &'a BTreeMap<ValueId, DynamicDequantized>,
    ) -> Self {
        let dense = graph.inputs.iter().chain(graph.initializers.keys()).copied().collect();
        Self {
            graph,
            placement,
            dequantized,
            dyn_dequantized,
            steps: Vec::new(),
            slots: Vec::new(),
            slot_roots: Vec::new(),
            slot_of: BTreeMap::new(),
            blocked: BTreeSet::new(),
            dense,
            lifetimes: BTreeMap::new(),
            fallbacks: BTreeMap::new(),
        }
    }

    /// Returns the name of a value, for errors.
    fn value_name(&self, value: ValueId) -> String {
        self.graph.value(value).name.clone()
    }

    /// Returns the slot of a value, creating it if needed. Its start is relative to its buffer until the buffers are
    /// placed.
    pub(crate) fn slot(&mut self, value: ValueId) -> Result<usize, LowerError> {
        if let Some(slot) = self.slot_of.get(&value) {
            return Ok(*slot);
        }
        let (root, block) = self.placement.root(value);
        let (layout, images) =
            self.placement.layout(value).ok_or_else(|| LowerError::NoLayout(self.value_name(value)))?;
        let (root_layout, _) =
            self.placement.layout(root).ok_or_else(|| LowerError::NoLayout(self.value_name(root)))?;
        let elem = self.placement.elem(value);
        let start = elem.words(block * layout.block_stride());
        self.slots.push(Slot {
            layout,
            elem,
            images,
            start,
            image_stride: elem.words(root_layout.len()),
            ring_first: None,
        });
        self.slot_roots.push(root);
        self.slot_of.insert(value, self.slots.len() - 1);
        Ok(self.slots.len() - 1)
    }

    fn push(&mut self, op: Box<dyn StepOp>, name: &str, macs: u64, bytes: u64) {
        let precision = OperatorPrecision::Float;
        self.steps.push(ProgramStep { op, name: name.to_owned(), precision, macs, bytes });
    }

    /// Returns the bytes of values in blocked form.
    fn blocked_bytes<'v>(&self, values: impl IntoIterator<Item = &'v ValueId>) -> u64 {
        values.into_iter().fold(0, |sum: u64, id| sum.saturating_add(self.placement.value_bytes(*id)))
    }

    /// Returns the bytes of values as dense tensors.
    fn dense_bytes<'v>(&self, values: impl IntoIterator<Item = &'v ValueId>) -> u64 {
        let of = |id: &ValueId| {
            let value = self.graph.value(*id);
            let shape = value.fixed_shape();
            let elements = shape.map_or(0, |s| s.iter().fold(1u64, |n, len| n.saturating_mul(*len as u64)));
            elements.saturating_mul(value.dtype.map_or(size_of::<f32>(), ElementType::size_bytes) as u64)
        };
        values.into_iter().fold(0, |sum: u64, id| sum.saturating_add(of(id)))
    }

    /// Returns the number of steps emitted so far.
    pub(crate) fn step_count(&self) -> usize {
        self.steps.len()
    }

    /// Extends the lifetime of a value's buffer to the next step; at the first use, its border is cleared.
    fn touch(&mut self, value: ValueId) -> Result<(), LowerError> {
        let root = self.placement.root(value).0;
        if !self.lifetimes.contains_key(&root) {
            let slot = self.slot(root)?;
            let Slot { layout, elem, images, .. } = self.slots[slot];
            let len = elem.words(layout.len()).saturating_mul(images);
            let at = self.steps.len();
            self.lifetimes.insert(root, (slot, Request { len, first: at, last: at }));
            if layout.halo != [0; 3] {
                self.push(Box::new(ClearBorder { slot }), "border", 0, border_bytes(&self.slots[slot]));
            }
        }
        let at = self.steps.len();
        if let Some((_, request)) = self.lifetimes.get_mut(&root) {
            request.last = at;
        }
        Ok(())
    }

    /// Ensures that a value exists in blocked form and returns its slot.
    fn require_blocked(&mut self, value: ValueId) -> Result<usize, LowerError> {
        let slot = self.slot(value)?;
        if !self.blocked.contains(&value) {
            if !self.dense.contains(&value) {
                if let Some(Dequantized { bytes, scale, zero_point }) = self.dequantized.get(&value).copied() {
                    return self.dequantize(value, bytes, ByteScale::Known { scale, zero_point });
                }
                if let Some(DynamicDequantized { bytes, ranges }) = self.dyn_dequantized.get(&value).copied() {
                    return self.dequantize(value, bytes, ByteScale::AtRunTime(ranges));
                }
            }
            if !self.dense.contains(&value) {
                return Err(LowerError::NotComputed(self.value_name(value)));
            }
            self.touch(value)?;
            let bytes = self.dense_bytes([&value]).saturating_add(self.blocked_bytes([&value]));
            self.push(Box::new(Pack { from: value, to: slot }), "pack", 0, bytes);
            self.blocked.insert(value);
        }
        Ok(slot)
    }

    /// Emits the dequantization of `bytes` to `value`.
    fn dequantize(&mut self, value: ValueId, bytes: ValueId, scale: ByteScale) -> Result<usize, LowerError> {
        let input = self.require_blocked(bytes)?;
        let output = self.slot(value)?;
        self.touch(value)?;
        self.touch(bytes)?;
        let op = Box::new(Dequantize { input, scale, output });
        let moved_bytes = self.blocked_bytes([&value, &bytes]);
        self.push(op, "DequantizeLinear", 0, moved_bytes);
        self.blocked.insert(value);
        Ok(output)
    }

    /// Ensures that a value exists as a dense tensor.
    pub(crate) fn require_dense(&mut self, value: ValueId) -> Result<(), LowerError> {
        if self.dense.contains(&value) {
            return Ok(());
        }
        if self.dequantized.contains_key(&value) || self.dyn_dequantized.contains_key(&value) {
            self.require_blocked(value)?;
        }
        if !self.blocked.contains(&value) {
            return Err(LowerError::NotComputed(self.value_name(value)));
        }
        let shape =
            self.graph.value(value).fixed_shape().ok_or_else(|| LowerError::UnknownShape(self.value_name(value)))?;
        let from = self.slot(value)?;
        self.touch(value)?;
        let signed = self.graph.value(value).dtype == Some(ElementType::I8);
        let bytes = self.dense_bytes([&value]).saturating_add(self.blocked_bytes([&value]));
        self.push(Box::new(Unpack { from, to: value, shape, signed }), "unpack", 0, bytes);
        self.dense.insert(value);
        Ok(())
    }

    pub(crate) fn reference(&mut self, index: usize) -> Result<(), LowerError> {
        let graph = self.graph;
        let node = &graph.nodes[index];
        for input in node.inputs.iter().flatten() {
            self.require_dense(*input)?;
        }
        let op = op_name(&node.op);
        // Losses and optimizers run on dense tensors by design, so they are not reported as fallbacks.
        let by_design = match &node.op {
            Op::Loss(_) | Op::GlobalNorm | Op::LossScale(_) | Op::Update(_) => true,
            Op::Vjp(of) => matches!(**of, Op::Loss(_)),
            _ => false,
        };
        if !by_design {
            let is_cheap = matches!(node.op, Op::Binary(BinaryOp::Mul) | Op::Activation(Activation::Softsign));
            let none = || OpFallback { op: op.to_owned(), count: 0, is_cheap };
            self.fallbacks.entry(op).or_insert_with(none).count += 1;
        }
        let macs = analysis::node_macs(graph, node).unwrap_or(0);
        let bytes = self.dense_bytes(node.inputs.iter().chain(&node.outputs).flatten());
        self.push(Box::new(Reference { node: index }), &format!("{op} {} (reference)", node.name), macs, bytes);
        self.dense.extend(node.outputs.iter().flatten());
        Ok(())
    }

    /// Emits the steps of a plan.
    pub(crate) fn kernel(&mut self, planned: KernelPlan) -> Result<(), LowerError> {
        let (name, precision, first) = (planned.name(), planned.precision(), self.steps.len());
        let weight_bytes = planned.weight_bytes();
        let KernelPlan { kind, inputs, output, macs, .. } = planned;
        match kind {
            PlanKind::Joined { blocks, tables } => {
                let parts = inputs.into_iter().zip(blocks).zip(tables);
                let parts = parts.map(|((value, block), table)| Part { value, block, table }).collect();
                self.concat(parts, output.ok_or(LowerError::MissingOutput)?, &name)
            }
            PlanKind::Slice { block } => {
                let whole = inputs.first().copied().ok_or(LowerError::MissingInput(0))?;
                self.slice(whole, block, output.ok_or(LowerError::MissingOutput)?, &name)
            }
            kind => {
                let slots = inputs.iter().map(|id| self.require_blocked(*id)).collect::<Result<Vec<_>, _>>()?;
                let output_slot = output.map(|id| self.slot(id)).transpose()?;
                let values: Vec<ValueId> = output.into_iter().chain(inputs).collect();
                self.group(kind.into_steps(&slots, output_slot)?, &values, &name, macs, weight_bytes)?;
                // Other steps before the kernel clear borders.
                let kernel_steps = self.steps.iter_mut().skip(first).filter(|step| step.name == name);
                kernel_steps.for_each(|step| step.precision = precision);
                self.blocked.extend(output);
                Ok(())
            }
        }
    }

    /// Emits steps that together read and compute `values` in blocked form. Their work is that of the first step, so that it
    /// is counted once.
    fn group(
        &mut self,
        ops: Vec<Box<dyn StepOp>>,
        values: &[ValueId],
        name: &str,
        macs: u64,
        weight_bytes: u64,
    ) -> Result<(), LowerError> {
        let graph = self.graph;
        for id in ops.iter().flat_map(|op| op.dense_inputs(graph)) {
            self.require_dense(id)?;
        }
        let dense = ops.iter().flat_map(|op| op.dense_inputs(graph).into_iter().chain(op.dense_outputs(graph)));
        let dense: BTreeSet<ValueId> = dense.collect();
        let moved_bytes = self.blocked_bytes(values).saturating_add(self.dense_bytes(&dense));
        let mut first_cost = (macs, weight_bytes.saturating_add(moved_bytes));
        for op in ops {
            for id in values {
                self.touch(*id)?;
            }
            self.dense.extend(op.dense_outputs(graph));
            let (macs, bytes) = std::mem::take(&mut first_cost);
            self.push(op, name, macs, bytes);
        }
        Ok(())
    }

    /// Emits the copies of those parts of a concatenation that are not written in place.
    fn concat(&mut self, parts: Vec<Part>, output: ValueId, name: &str) -> Result<(), LowerError> {
        let inputs = parts.iter().map(|p| self.require_blocked(p.value)).collect::<Result<Vec<_>, _>>()?;
        let (root, first) = self.placement.root(output);
        for (Part { value, block, table }, input) in parts.into_iter().zip(inputs) {
            // A value that occurs several times was placed in at most one of its positions.
            if self.placement.root(value) == (root, first + block) {
                continue;
            }
            let part = self.part(output, value, block)?;
            self.touch(output)?;
            self.touch(value)?;
            let bytes = self.blocked_bytes([&value]).saturating_mul(2);
            self.push(copy_part(input, table, part), name, 0, bytes);
        }
        self.touch(output)?;
        self.blocked.insert(output);
        Ok(())
    }

    /// Emits the copy of consecutive channel blocks of `x`, starting at `block`, unless `output` shares its buffer.
    fn slice(&mut self, x: ValueId, block: usize, output: ValueId, name: &str) -> Result<(), LowerError> {
        self.require_blocked(x)?;
        let output_slot = self.slot(output)?;
        self.touch(output)?;
        self.touch(x)?;
        let (root, first) = self.placement.root(x);
        if self.placement.root(output) != (root, first + block) {
            let input = self.part(x, output, block)?;
            // The copy reads as many channels as it writes.
            let bytes = self.blocked_bytes([&output]).saturating_mul(2);
            self.push(Box::new(Copy { input, output: output_slot }), name, 0, bytes);
        }
        self.blocked.insert(output);
        Ok(())
    }

    /// Creates a slot for the channel blocks of `whole` that start at `block` and have the shape of `part`.
    fn part(&mut self, whole: ValueId, part: ValueId, block: usize) -> Result<usize, LowerError> {
        let root = self.placement.root(whole).0;
        let whole = self.slot(whole)?;
        let whole = self.slots[whole];
        let (part, _) =
            Placement::plain_layout(self.graph, part).ok_or_else(|| LowerError::NoLayout(self.value_name(part)))?;
        let layout = cytoscope_kernels::Blocked { halo: whole.layout.halo, ..part };
        let start = whole.start + whole.elem.words(block * whole.layout.block_stride());
        self.slots.push(Slot { layout, start, ..whole });
        self.slot_roots.push(root);
        Ok(self.slots.len() - 1)
    }

    /// Places all buffers in the arena.
    pub(crate) fn finish(self) -> Emitted {
        let Emitter { graph, steps, slots, lifetimes, fallbacks, slot_roots, .. } = self;
        let roots: Vec<ValueId> = lifetimes.keys().copied().collect();
        let requests: Vec<Request> = lifetimes.values().map(|(_, r)| r.clone()).collect();
        let (starts, arena_len) = arena::place(&requests);
        let start_of: BTreeMap<ValueId, usize> = roots.into_iter().zip(starts).collect();
        let slots = slots
            .into_iter()
            .zip(slot_roots)
            .map(|(slot, root)| Slot { start: slot.start + start_of.get(&root).copied().unwrap_or(0), ..slot })
            .collect();
        let dead_after = last_uses(graph, &steps);
        let fallbacks = fallbacks.into_values().collect();
        Emitted { steps, slots, arena_len, dead_after, fallbacks }
    }
}

/// Returns for each step the dense values that it reads or computes last, graph outputs and constants excluded.
fn last_uses(graph: &Graph, steps: &[ProgramStep]) -> Vec<Vec<ValueId>> {
    let mut last: BTreeMap<ValueId, usize> = BTreeMap::new();
    for (i, step) in steps.iter().enumerate() {
        last.extend(step.op.dense_inputs(graph).into_iter().chain(step.op.dense_outputs(graph)).map(|id| (id, i)));
    }
    let outputs: BTreeSet<ValueId> = graph.outputs.iter().copied().collect();
    let mut dead = vec![Vec::new(); steps.len()];
    for (value, step) in last {
        if !outputs.contains(&value) && graph.constant(value).is_none() {
            dead[step].push(value);
        }
    }
    dead
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_kernels::{Blocked, reorder};

    #[test]
    fn the_bytes_of_a_border_are_those_that_clearing_it_writes() {
        for (halo, block) in [([1, 1, 1], 16), ([0, 2, 1], 16), ([2, 0, 0], 4), ([1, 1, 0], 1)] {
            let layout = Blocked::new(18, [2, 3, 4], halo, block);
            let mut image = vec![1.0f32; layout.len()];
            reorder::clear_border(&layout, 0.0, &mut image).unwrap();
            let written = image.iter().filter(|value| **value == 0.0).count() as u64;
            let slot = |elem| Slot { layout, elem, images: 3, start: 0, image_stride: layout.len(), ring_first: None };
            assert_eq!(border_bytes(&slot(Elem::F32)), 3 * 4 * written, "{halo:?}");
            assert_eq!(border_bytes(&slot(Elem::U8 { zero_point: 7 })), 3 * written, "{halo:?}");
            assert_eq!(border_bytes(&slot(Elem::F16)), 0);
        }
    }
}
