//! Lowers a prepared graph to steps on slots of one arena.

mod plan;

pub(crate) use plan::exact_transpose;

use crate::arena::{self, Request};
use crate::placement::Placement;
use crate::prepare::Prepared;
use crate::step::{Affine, Kind, PlaneScale, Slot, Step, Term};
use cytoscope_engine::{CompileReport, EngineError, OpFallback};
use cytoscope_graph::{ElementType, Graph, Interrupt, ValueId, op_name};
use cytoscope_kernels::conv::Activation;
use cytoscope_kernels::{CHANNEL_BLOCK, Isa};
use cytoscope_passes::analysis;
use plan::{Dequantized, DynamicDequantized, Plan, PlanKind, Plans};
use std::collections::{BTreeMap, BTreeSet};

/// A lowered graph, ready to run.
pub(crate) struct Program {
    /// The prepared graph; holds the constants and the nodes that the reference executor runs.
    pub graph: Graph,
    /// Steps in execution order.
    pub steps: Vec<Step>,
    /// Placement of blocked values in the arena.
    pub slots: Vec<Slot>,
    /// Length of the arena in 32-bit words.
    pub arena_len: usize,
    /// Number of moments that a run stores.
    pub moments: usize,
    /// Number of run-time quantizations.
    pub ranges: usize,
    /// For each step, the dense values that are not read afterwards.
    pub dead_after: Vec<Vec<ValueId>>,
    /// The report for the caller.
    pub report: CompileReport,
}

/// Lowers a prepared graph; with `integers`, quantized convolutions run on bytes.
pub(crate) fn lower(
    prepared: Prepared,
    isa: Isa,
    integers: bool,
    interrupt: &Interrupt,
) -> Result<Program, EngineError> {
    let Plans {
        nodes: plans,
        dequantized,
        dyn_dequantized,
        ranges,
        zero_points,
        halves,
        moments,
        integer_convolutions,
    } = plan::plan(&prepared, isa, integers, interrupt)?;
    let Prepared { mut graph, .. } = prepared;
    if integers && integer_convolutions == 0 {
        return Err(EngineError::NotQuantized { engine: "cpu" });
    }
    let mut placement = Placement::new(&graph);
    zero_points.iter().for_each(|(value, zero)| placement.store_as_bytes(*value, *zero));
    halves.iter().for_each(|value| placement.store_as_f16(*value));
    // The bytes of floats that are dequantized only when something reads them.
    let bytes_of = |value: ValueId| {
        dequantized.get(&value).map(|d| d.bytes).or_else(|| dyn_dequantized.get(&value).map(|r| r.bytes))
    };
    share_buffers(&graph, &plans, &bytes_of, &mut placement);
    let mut emitter = Emitter::new(&graph, &placement, &dequantized, &dyn_dequantized);
    let mut weight_bytes = 0;
    for (index, plan) in plans.into_iter().enumerate() {
        interrupt.check()?;
        match plan {
            Plan::Absorbed => {}
            Plan::Reference => emitter.reference(index)?,
            Plan::Kernel(planned) => {
                weight_bytes += planned.weight_bytes();
                emitter.kernel(index, *planned)?;
            }
        }
    }
    for output in &graph.outputs {
        emitter.require_dense(*output)?;
    }
    let Emitter { steps, slots, lifetimes, fallbacks, slot_roots, .. } = emitter;
    let roots: Vec<ValueId> = lifetimes.keys().copied().collect();
    let requests: Vec<Request> = lifetimes.values().map(|(_, r)| r.clone()).collect();
    let (starts, arena_len) = arena::place(&requests);
    let start_of: BTreeMap<ValueId, usize> = roots.into_iter().zip(starts).collect();
    let slots = slots
        .into_iter()
        .zip(slot_roots)
        .map(|(slot, root)| Slot { start: slot.start + start_of.get(&root).copied().unwrap_or(0), ..slot })
        .collect();
    let dead_after = last_uses(&graph, &steps);
    drop_packed_constants(&mut graph, &steps);
    weight_bytes += graph.initializer_bytes() as u64;
    let report = CompileReport {
        fallbacks: fallbacks.into_iter().map(|(op, count)| OpFallback { op, count }).collect(),
        arena_bytes: (arena_len as u64).saturating_mul(size_of::<f32>() as u64),
        weight_bytes,
        macs: steps.iter().map(|s| s.macs).sum(),
        backend: isa.to_string(),
    };
    Ok(Program { steps, slots, arena_len, moments, ranges, dead_after, report, graph })
}

/// Removes constants that were packed into kernels; keeps those that a step or the caller still reads.
fn drop_packed_constants(graph: &mut Graph, steps: &[Step]) {
    let mut read: BTreeSet<ValueId> = graph.outputs.iter().copied().collect();
    for step in steps {
        match &step.kind {
            Kind::Pack { from, .. } => _ = read.insert(*from),
            Kind::Reference { node } => read.extend(graph.nodes[*node].inputs.iter().flatten()),
            _ => {}
        }
    }
    graph.initializers.retain(|id, _| read.contains(id));
}

/// Counts how often each value is read: by steps, by nodes of the reference executor, and as a graph output. `bytes_of`
/// returns the bytes of a dequantized value; reading the value also reads them.
fn reads(graph: &Graph, plans: &[Plan], bytes_of: &impl Fn(ValueId) -> Option<ValueId>) -> BTreeMap<ValueId, usize> {
    let mut reads: BTreeMap<ValueId, usize> = BTreeMap::new();
    let mut count = |id: ValueId| {
        for id in [Some(id), bytes_of(id)].into_iter().flatten() {
            *reads.entry(id).or_default() += 1;
        }
    };
    for (node, plan) in graph.nodes.iter().zip(plans) {
        match plan {
            Plan::Absorbed => {}
            Plan::Reference => node.inputs.iter().flatten().for_each(|id| count(*id)),
            Plan::Kernel(planned) => planned.inputs.iter().for_each(|id| count(*id)),
        }
    }
    graph.outputs.iter().for_each(|id| count(*id));
    reads
}

/// Lets in-place steps and the parts of concatenations share buffers, and sets the borders.
fn share_buffers(
    graph: &Graph,
    plans: &[Plan],
    bytes_of: &impl Fn(ValueId) -> Option<ValueId>,
    placement: &mut Placement<'_>,
) {
    let reads = reads(graph, plans, bytes_of);
    let graph_inputs: BTreeSet<ValueId> = graph.inputs.iter().copied().collect();
    let read_once = |value: &ValueId| reads.get(value) == Some(&1);
    let is_intermediate = |value: &ValueId| graph.constant(*value).is_none() && !graph_inputs.contains(value);
    let kernels = || plans.iter().filter_map(|p| if let Plan::Kernel(k) = p { Some(k.as_ref()) } else { None });
    for planned in kernels() {
        if let Some((input, width)) = planned.border {
            placement.require_border(input, width);
        }
        let Some(first) = planned.inputs.first() else { continue };
        if planned.kind.works_in_place() && read_once(first) && is_intermediate(first) {
            placement.alias_in_place(*first, planned.output);
        }
    }
    // In reverse order, so that it is already known whether a concatenation's buffer is overwritten later.
    let concatenations: Vec<_> = kernels().filter(|p| matches!(p.kind, PlanKind::Concat { .. })).collect();
    for planned in concatenations.into_iter().rev() {
        let PlanKind::Concat { blocks, tables } = &planned.kind else { continue };
        let overwritten = placement.is_overwritten(planned.output);
        for ((input, block), table) in planned.inputs.iter().zip(blocks).zip(tables) {
            // A part that is read again, even as another operand of this node, must not be overwritten.
            if table.is_none() && is_intermediate(input) && (!overwritten || read_once(input)) {
                placement.alias_into(*input, planned.output, *block);
            }
        }
    }
    placement.propagate_borders();
}

/// Returns for each step the dense values that it reads last, graph outputs excluded.
fn last_uses(graph: &Graph, steps: &[Step]) -> Vec<Vec<ValueId>> {
    let mut last: BTreeMap<ValueId, usize> = BTreeMap::new();
    for (i, step) in steps.iter().enumerate() {
        match &step.kind {
            Kind::Pack { from, .. } => _ = last.insert(*from, i),
            Kind::Unpack { to, .. } => _ = last.insert(*to, i),
            Kind::Reference { node } => {
                let Some(node) = graph.nodes.get(*node) else { continue };
                for id in node.inputs.iter().chain(&node.outputs).flatten() {
                    last.insert(*id, i);
                }
            }
            _ => {}
        }
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

/// Emits steps and tracks which values exist in blocked and in dense form.
struct Emitter<'a> {
    graph: &'a Graph,
    placement: &'a Placement<'a>,
    dequantized: &'a BTreeMap<ValueId, Dequantized>,
    dyn_dequantized: &'a BTreeMap<ValueId, DynamicDequantized>,
    steps: Vec<Step>,
    slots: Vec<Slot>,
    slot_roots: Vec<ValueId>,
    slot_of: BTreeMap<ValueId, usize>,
    blocked: BTreeSet<ValueId>,
    dense: BTreeSet<ValueId>,
    lifetimes: BTreeMap<ValueId, (usize, Request)>,
    fallbacks: BTreeMap<String, usize>,
}

impl<'a> Emitter<'a> {
    fn new(
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

    fn internal(&self, place: &str, value: ValueId) -> EngineError {
        EngineError::Internal { place: place.to_owned(), reason: format!("value \"{}\"", self.graph.value(value).name) }
    }

    /// Returns the slot of a value, creating it if needed. Its start is relative to its buffer until the buffers are
    /// placed.
    fn slot(&mut self, value: ValueId) -> Result<usize, EngineError> {
        if let Some(slot) = self.slot_of.get(&value) {
            return Ok(*slot);
        }
        let (root, block) = self.placement.root(value);
        let (layout, images) = self.placement.layout(value).ok_or_else(|| self.internal("layout", value))?;
        let (root_layout, _) = self.placement.layout(root).ok_or_else(|| self.internal("layout", root))?;
        let elem = self.placement.elem(value);
        let start = elem.words(block * layout.block_stride());
        self.slots.push(Slot { layout, elem, images, start, image_stride: elem.words(root_layout.len()) });
        self.slot_roots.push(root);
        self.slot_of.insert(value, self.slots.len() - 1);
        Ok(self.slots.len() - 1)
    }

    fn push(&mut self, kind: Kind, name: String, macs: u64) {
        self.steps.push(Step { kind, name, macs });
    }

    /// Extends the lifetime of a value's buffer to the next step; at the first use, its border is cleared.
    fn touch(&mut self, value: ValueId) -> Result<(), EngineError> {
        let root = self.placement.root(value).0;
        if !self.lifetimes.contains_key(&root) {
            let slot = self.slot(root)?;
            let Slot { layout, elem, images, .. } = self.slots[slot];
            let len = elem.words(layout.len()).saturating_mul(images);
            let at = self.steps.len();
            self.lifetimes.insert(root, (slot, Request { len, first: at, last: at }));
            if layout.halo != [0; 3] {
                self.push(Kind::ClearBorder { slot }, "border".to_owned(), 0);
            }
        }
        let at = self.steps.len();
        if let Some((_, request)) = self.lifetimes.get_mut(&root) {
            request.last = at;
        }
        Ok(())
    }

    /// Ensures that a value exists in blocked form and returns its slot.
    fn require_blocked(&mut self, value: ValueId) -> Result<usize, EngineError> {
        let slot = self.slot(value)?;
        if !self.blocked.contains(&value) {
            if !self.dense.contains(&value) {
                if let Some(from) = self.dequantized.get(&value) {
                    return self.dequantize(value, *from);
                }
                if let Some(from) = self.dyn_dequantized.get(&value) {
                    return self.dequantize_dynamic(value, *from);
                }
            }
            if !self.dense.contains(&value) {
                return Err(self.internal("order of steps", value));
            }
            self.touch(value)?;
            self.push(Kind::Pack { from: value, to: slot }, "pack".to_owned(), 0);
            self.blocked.insert(value);
        }
        Ok(slot)
    }

    /// Emits the dequantization of bytes with a constant scale.
    fn dequantize(&mut self, value: ValueId, from: Dequantized) -> Result<usize, EngineError> {
        let bytes = self.require_blocked(from.bytes)?;
        let output = self.slot(value)?;
        self.touch(value)?;
        self.touch(from.bytes)?;
        let layout = self.slots[output].layout;
        let kind = if layout.block == CHANNEL_BLOCK {
            let shift = vec![-from.scale * f32::from(from.zero_point); layout.channels];
            let affine = Affine::Fixed { scale: vec![from.scale; layout.channels], shift };
            let terms = vec![Term { slot: bytes, plane: false, affine }];
            Kind::Apply { terms, activation: Activation::None, quantizer: None, output }
        } else {
            Kind::DequantizePlanes { input: bytes, scale: PlaneScale::Known(from.scale), output }
        };
        self.push(kind, "DequantizeLinear".to_owned(), 0);
        self.blocked.insert(value);
        Ok(output)
    }

    /// Emits the dequantization of bytes with a run-time scale.
    fn dequantize_dynamic(&mut self, value: ValueId, from: DynamicDequantized) -> Result<usize, EngineError> {
        let bytes = self.require_blocked(from.bytes)?;
        let output = self.slot(value)?;
        self.touch(value)?;
        self.touch(from.bytes)?;
        let layout = self.slots[output].layout;
        let kind = if layout.block == CHANNEL_BLOCK {
            let affine = Affine::Dynamic { ranges: from.ranges, channels: layout.channels };
            let terms = vec![Term { slot: bytes, plane: false, affine }];
            Kind::Apply { terms, activation: Activation::None, quantizer: None, output }
        } else {
            Kind::DequantizePlanes { input: bytes, scale: PlaneScale::AtRunTime(from.ranges), output }
        };
        self.push(kind, "DequantizeLinear".to_owned(), 0);
        self.blocked.insert(value);
        Ok(output)
    }

    /// Ensures that a value exists as a dense tensor.
    fn require_dense(&mut self, value: ValueId) -> Result<(), EngineError> {
        if self.dense.contains(&value) {
            return Ok(());
        }
        if self.dequantized.contains_key(&value) || self.dyn_dequantized.contains_key(&value) {
            self.require_blocked(value)?;
        }
        if !self.blocked.contains(&value) {
            return Err(self.internal("order of steps", value));
        }
        let shape = self.graph.value(value).fixed_shape().ok_or_else(|| self.internal("shape", value))?;
        let from = self.slot(value)?;
        self.touch(value)?;
        let signed = self.graph.value(value).dtype == Some(ElementType::I8);
        self.push(Kind::Unpack { from, to: value, shape, signed }, "unpack".to_owned(), 0);
        self.dense.insert(value);
        Ok(())
    }

    fn reference(&mut self, index: usize) -> Result<(), EngineError> {
        let graph = self.graph;
        let node = &graph.nodes[index];
        for input in node.inputs.iter().flatten() {
            self.require_dense(*input)?;
        }
        let op = op_name(&node.op).to_owned();
        *self.fallbacks.entry(op.clone()).or_default() += 1;
        let macs = analysis::node_macs(graph, node).unwrap_or(0);
        self.push(Kind::Reference { node: index }, format!("{op} {} (reference)", node.name), macs);
        self.dense.extend(node.outputs.iter().flatten());
        Ok(())
    }

    fn kernel(&mut self, index: usize, planned: plan::KernelPlan) -> Result<(), EngineError> {
        let mut inputs = Vec::with_capacity(planned.inputs.len());
        for input in &planned.inputs {
            inputs.push(self.require_blocked(*input)?);
        }
        let output = self.slot(planned.output)?;
        let node = &self.graph.nodes[index];
        let name = format!("{} {}", planned.label, node.name);
        if let PlanKind::Concat { blocks, tables } = &planned.kind {
            let (root, first) = self.placement.root(planned.output);
            for (((value, input), block), table) in planned.inputs.iter().zip(inputs).zip(blocks).zip(tables) {
                // A value that occurs several times was placed in at most one of its positions.
                if self.placement.root(*value) == (root, first + block) {
                    continue;
                }
                let part = self.concat_part(planned.output, *value, *block)?;
                self.touch(planned.output)?;
                self.touch(*value)?;
                let kind = match table {
                    None => Kind::Copy { input, output: part },
                    Some(table) => Kind::Translate { input, table: table.clone(), output: part },
                };
                self.push(kind, name.clone(), 0);
            }
            self.touch(planned.output)?;
        } else {
            self.touch(planned.output)?;
            for input in &planned.inputs {
                self.touch(*input)?;
            }
            let root = self.placement.root(planned.output).0;
            for kind in planned.kind.into_steps(&inputs, output) {
                self.touch(root)?;
                for input in &planned.inputs {
                    self.touch(*input)?;
                }
                self.push(kind, name.clone(), planned.macs);
            }
        }
        self.blocked.insert(planned.output);
        Ok(())
    }

    /// Creates a slot for the part of a concatenation's output that starts at channel block `block` and holds `input`.
    fn concat_part(&mut self, output: ValueId, input: ValueId, block: usize) -> Result<usize, EngineError> {
        let whole = self.slot(output)?;
        let whole = self.slots[whole];
        let (part, _) = Placement::plain_layout(self.graph, input).ok_or_else(|| self.internal("layout", input))?;
        let layout = cytoscope_kernels::Blocked { halo: whole.layout.halo, ..part };
        let start = whole.start + whole.elem.words(block * whole.layout.block_stride());
        self.slots.push(Slot { layout, start, ..whole });
        self.slot_roots.push(self.placement.root(output).0);
        Ok(self.slots.len() - 1)
    }
}
