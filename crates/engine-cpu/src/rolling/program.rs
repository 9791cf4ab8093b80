//! A network lowered to steps that compute some planes of each value.
//!
//! The steps are the same as in a session for the whole stack: they are independent of the number of planes, which is in
//! the slot table of each slab. Only pooling and resampling have parameters along Z, and are built for each slab.

use super::flow::{Flow, FlowValue};
use super::plane_storage::PlaneStorage;
use super::reads::Reads;
use crate::lower::LowerError;
use crate::lower::placement::Placement;
use crate::lower::sharing::{self, Sharing};
use crate::plan::{self, KernelPlan, Plan, PlanKind, Plans};
use crate::prepare::Prepared;
use crate::step::{Elem, Slot, StepOp};
use crate::steps::{Affine, ByteScale, Dequantize, PoolStep, ResizeStep, copy_part};
use cytoscope_engine::{EngineError, NotRolling};
use cytoscope_graph::infer::shape_text;
use cytoscope_graph::{ElementType, Graph, Interrupt, ValueId, lcm, op_name};
use cytoscope_kernels::conv::{ConvShape, TransposedShape};
use cytoscope_kernels::pool::Pool;
use cytoscope_kernels::resize::Tap;
use cytoscope_kernels::{Blocked, Isa};
use cytoscope_profile::OperatorPrecision;
use std::collections::BTreeMap;
use std::ops::Range;

/// Largest number of planes of a value. The schedule of a pass has entries for each plane, and a model of a few bytes can ask for
/// any number of them.
const MAX_PLANES: usize = 1 << 20;
/// Largest number of elements of a value with its border, so that sizes of its parts do not overflow.
const MAX_ELEMENTS: usize = usize::MAX >> 8;

/// A buffer of planes that one or more values share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Buffer {
    /// Layout of one plane Y, X in channel blocks.
    pub layout: Blocked,
    /// Type of the stored elements.
    pub elem: Elem,
    /// Images in the batch.
    pub images: usize,
}

impl Buffer {
    /// Returns the 32-bit words of a buffer with capacity for `planes` planes.
    pub(crate) fn words(&self, planes: usize) -> usize {
        self.block_words(planes).saturating_mul(self.layout.blocks()).saturating_mul(self.images)
    }

    /// Returns the 32-bit words of one channel block.
    pub(crate) fn block_words(&self, planes: usize) -> usize {
        self.elem.words(self.layout.slice_stride().saturating_mul(planes))
    }

    /// Returns the bytes of one plane of all channels.
    pub(crate) fn plane_bytes(&self) -> u64 {
        (self.words(1) * size_of::<f32>()) as u64
    }
}

/// Some channel blocks of a buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    /// Index of the buffer, in [`RollingProgram::buffers`].
    pub buffer: usize,
    /// First channel block in the buffer.
    pub block: usize,
    /// Layout of one plane Y, X in channel blocks.
    pub layout: Blocked,
}

impl View {
    /// Returns the slot of a range of planes, in a buffer at `start` whose first plane is `base`. `None` if the planes are
    /// not in the buffer.
    pub(crate) fn slot(
        &self,
        of: &Buffer,
        planes: &Range<isize>,
        base: isize,
        start: usize,
        storage: &PlaneStorage,
    ) -> Option<Slot> {
        let (first, capacity) = (storage.position(planes, base)?, storage.capacity);
        let count = usize::try_from(planes.end - planes.start).ok()?;
        let own = self.block * of.block_words(capacity) + of.block_words(first);
        Some(Slot {
            layout: self.layout.slices(count, capacity)?,
            elem: of.elem,
            images: of.images,
            start: start + own,
            image_stride: of.block_words(capacity) * of.layout.blocks(),
            ring_first: None,
        })
    }

    /// Returns the slot of the planes from `first` on, for a step that reads them across the end of a ring. `None` if the
    /// buffer is not a ring, or repeats planes.
    pub(crate) fn ring_slot(
        &self,
        buffer: &Buffer,
        first: isize,
        start: usize,
        storage: &PlaneStorage,
    ) -> Option<Slot> {
        let (len, first) = (storage.plain_ring_len()?, storage.ring_position(first)?);
        Some(Slot {
            layout: self.layout.slices(len, len)?,
            elem: buffer.elem,
            images: buffer.images,
            start: start + self.block * buffer.block_words(len),
            image_stride: buffer.block_words(len) * buffer.layout.blocks(),
            ring_first: Some(first),
        })
    }
}

/// How the new planes of a node are computed.
#[derive(Debug)]
pub(crate) enum Work {
    /// Steps that are the same in every slab.
    Steps(Vec<Box<dyn StepOp>>),
    /// Pooling over a window of planes.
    Pool(Pool, ConvShape),
    /// Resampling with tables for the whole stack.
    Resample(Box<[Vec<Tap>; 3]>),
}

impl Work {
    /// Returns the step for a slab whose parameters differ from slab to slab; `outputs` are computed from `inputs`.
    pub(crate) fn step(
        &self,
        slots: [usize; 2],
        outputs: &Range<usize>,
        inputs: &Range<isize>,
    ) -> Option<Box<dyn StepOp>> {
        let [input, output] = slots;
        match self {
            Self::Steps(_) => None,
            Self::Pool(kind, shape) => {
                let start = (outputs.start * shape.stride[0]) as isize - shape.pad_before[0] as isize;
                let before = usize::try_from(inputs.start - start).ok()?;
                let pad_before = [before, shape.pad_before[1], shape.pad_before[2]];
                Some(Box::new(PoolStep { kind: *kind, shape: ConvShape { pad_before, ..*shape }, input, output }))
            }
            Self::Resample(tables) => {
                let first = usize::try_from(inputs.start).ok()?;
                let moved = |t: &Tap| Tap { low: t.low - first, high: t.high - first, weight: t.weight };
                let own = tables[0].get(outputs.clone())?.iter().map(moved).collect();
                Some(Box::new(ResizeStep {
                    tables: Box::new([own, tables[1].clone(), tables[2].clone()]),
                    input,
                    output,
                }))
            }
        }
    }
}

/// A node of the flow with its steps.
#[derive(Debug)]
pub(crate) struct RollingNode {
    /// Operator and node name, shown in profiles.
    pub name: String,
    /// Number format that the node computes in.
    pub precision: OperatorPrecision,
    /// How new planes of the outputs are computed.
    pub work: Work,
    /// Multiply-accumulate operations for the whole stack.
    pub macs: u64,
    /// Bytes of inputs and outputs for the whole stack.
    pub moved_bytes: u64,
    /// Bytes of packed weights, which every slab reads.
    pub weight_bytes: u64,
    /// Views that are read, in the order of the flow node's inputs. A view is a slot with the same index.
    pub inputs: Vec<usize>,
    /// Indices of the views that the stage writes.
    pub outputs: Vec<usize>,
    /// Position of the input whose planes may be read across the end of a ring.
    pub window_input: Option<usize>,
}

/// A blocked value at the border of the network.
#[derive(Debug)]
pub(crate) struct Port {
    /// Name of the value in the graph.
    pub name: String,
    /// The value in the graph.
    pub id: ValueId,
    /// Index of the value in the flow.
    pub value: usize,
    /// Index of the view that holds the output.
    pub view: usize,
    /// Shape N, C, Z, Y, X.
    pub shape: Vec<usize>,
    /// Whether the elements are signed bytes.
    pub signed: bool,
}

/// A lowered network.
#[derive(Debug)]
pub(crate) struct RollingProgram {
    /// The graph without constants.
    pub graph: Graph,
    /// Which planes of each value every slab computes and keeps.
    pub flow: Flow,
    /// Channel blocks that nodes read and write; a view is a slot with the same index.
    pub views: Vec<View>,
    /// Memory of the values, without the number of planes, which depends on the slab.
    pub buffers: Vec<Buffer>,
    /// The nodes of the flow.
    pub nodes: Vec<RollingNode>,
    /// For each value of the flow, its view.
    pub value_views: Vec<View>,
    /// The network's only input.
    pub input: Port,
    /// The network's outputs, in the order of the graph.
    pub outputs: Vec<Port>,
    /// Bytes of the packed weights.
    pub weight_bytes: u64,
    /// Multiply-accumulate operations for the whole stack.
    pub macs: u64,
}

impl RollingProgram {
    /// Returns the bytes of one plane of a value.
    pub(crate) fn view_bytes(&self, view: &View) -> u64 {
        let of =
            |buffer: &Buffer| (buffer.block_words(1) * view.layout.blocks() * buffer.images * size_of::<f32>()) as u64;
        self.buffers.get(view.buffer).map_or(0, of)
    }

    /// Returns, for each buffer whose planes can lie in a ring that repeats none, the number that the length of the ring must
    /// be a multiple of; `None` if some step reads or writes planes that must lie side by side. Other steps read and write
    /// plane by plane at the end of the ring.
    pub(crate) fn ring_steps(&self) -> Vec<Option<usize>> {
        let mut steps = vec![Some(1usize); self.buffers.len()];
        let buffer_of = |value: usize| self.flow.values.get(value).map_or(usize::MAX, |v| v.buffer);
        let mut refuse = |value: usize| {
            if let Some(step) = steps.get_mut(buffer_of(value)) {
                *step = None;
            }
        };
        self.outputs.iter().chain([&self.input]).for_each(|port| refuse(port.value));
        for (node, flow) in self.nodes.iter().zip(&self.flow.nodes) {
            for (at, (value, reads)) in flow.inputs.iter().enumerate() {
                if node.window_input != Some(at) && !reads.is_plane_by_plane() {
                    refuse(*value);
                }
            }
        }
        for flow in &self.flow.nodes {
            if let Some(Some(step)) = steps.get_mut(buffer_of(flow.output)) {
                *step = lcm(*step, flow.step);
            }
        }
        steps
    }

    /// Returns the bytes of the largest buffer if it holds all planes.
    pub(crate) fn largest_buffer_bytes(&self) -> u64 {
        let value_bytes = |value: &FlowValue| {
            let plane_bytes = self.buffers.get(value.buffer).map_or(0, Buffer::plane_bytes);
            plane_bytes.saturating_mul(value.extent as u64)
        };
        self.flow.values.iter().map(value_bytes).max().unwrap_or(0)
    }
}

/// Lowers a prepared graph.
pub(crate) fn lower(prepared: Prepared, isa: Isa, interrupt: &Interrupt) -> Result<RollingProgram, NotRolling> {
    let plans = plan::plan(&prepared, isa, interrupt)?;
    let mut graph = prepared.graph;
    // A skip connection waits for many planes: it is copied when it is needed, instead of waiting in a wider buffer.
    let placement = sharing::place(&graph, &plans, Sharing::WithoutSkips);
    let Plans { nodes, dequantized, .. } = plans;
    let mut lowering = Lowering {
        graph: &graph,
        placement: &placement,
        dequantized: &dequantized,
        flow: Flow::default(),
        views: Vec::new(),
        buffers: Vec::new(),
        value_views: Vec::new(),
        root_buffers: BTreeMap::new(),
        known: BTreeMap::new(),
        nodes: Vec::new(),
    };
    let input = lowering.input()?;
    let mut weight_bytes = 0;
    for (index, plan) in nodes.into_iter().enumerate() {
        interrupt.check().map_err(EngineError::from)?;
        match plan {
            Plan::Absorbed => {}
            Plan::Reference => {
                let node = lowering.graph.nodes.get(index);
                let op = node.map_or("an operator", |n| op_name(&n.op)).to_owned();
                return Err(NotRolling::Operator { op, node: node.map_or_else(String::new, |n| n.name.clone()) });
            }
            Plan::Kernel(planned) => {
                weight_bytes += planned.weight_bytes();
                lowering.node(*planned)?;
            }
        }
    }
    let outputs = lowering.outputs()?;
    let Lowering { flow, views, buffers, value_views, nodes, .. } = lowering;
    let macs = nodes.iter().map(|n| n.macs).sum();
    graph.initializers.clear();
    Ok(RollingProgram { graph, flow, views, buffers, nodes, value_views, input, outputs, weight_bytes, macs })
}

struct Lowering<'a> {
    graph: &'a Graph,
    placement: &'a Placement<'a>,
    dequantized: &'a BTreeMap<ValueId, plan::Dequantized>,
    flow: Flow,
    views: Vec<View>,
    buffers: Vec<Buffer>,
    value_views: Vec<View>,
    root_buffers: BTreeMap<ValueId, usize>,
    /// Values of the flow by their value in the graph.
    known: BTreeMap<ValueId, usize>,
    nodes: Vec<RollingNode>,
}

/// Returns the layout of one plane of an image.
fn plane(layout: Blocked) -> Blocked {
    let ([_, height, width], [_, h, w]) = (layout.dims, layout.halo);
    Blocked { dims: [1, height, width], halo: [0, h, w], ..layout }
}

/// Returns why the network cannot be run in one pass: because of this node.
fn refused(op: &str, node: &str) -> NotRolling {
    NotRolling::Operator { op: op.to_owned(), node: node.to_owned() }
}

impl Lowering<'_> {
    fn interface(&self, found: String) -> NotRolling {
        NotRolling::Interface { found }
    }

    /// Returns the layout of a value of shape N, C, Z, Y, X, unless it is impossibly large.
    fn layout(&self, id: ValueId) -> Result<(Blocked, usize), NotRolling> {
        let value = self.graph.value(id);
        let is_volume = value.shape.as_ref().is_some_and(|s| s.len() == 5) && self.graph.constant(id).is_none();
        let fits = |(layout, images): &(Blocked, usize)| {
            layout.dims[0] <= MAX_PLANES && layout.len().saturating_mul(*images) <= MAX_ELEMENTS
        };
        let layout = if is_volume { self.placement.layout(id).filter(fits) } else { None };
        layout.ok_or_else(|| {
            let shape = value.shape.as_ref().map(|lengths| format!("shape {}", shape_text(lengths)));
            let shape = shape.unwrap_or_else(|| "unknown shape".to_owned());
            self.interface(format!("\"{}\" of {shape}", value.name))
        })
    }

    /// Adds a value to the flow.
    fn add(&mut self, id: ValueId) -> Result<usize, NotRolling> {
        if let Some(known) = self.known.get(&id) {
            return Ok(*known);
        }
        let (layout, _) = self.layout(id)?;
        let (root, block) = self.placement.root(id);
        let buffer = match self.root_buffers.get(&root) {
            Some(buffer) => *buffer,
            None => {
                let (whole, images) = self.layout(root)?;
                self.buffers.push(Buffer { layout: plane(whole), elem: self.placement.elem(root), images });
                self.root_buffers.insert(root, self.buffers.len() - 1);
                self.buffers.len() - 1
            }
        };
        self.value_views.push(View { buffer, block, layout: plane(layout) });
        let value = self.flow.value(layout.dims[0], buffer);
        self.known.insert(id, value);
        Ok(value)
    }

    /// Adds a view of a value, which is also a slot, and returns its index.
    fn view(&mut self, value: usize) -> Result<usize, NotRolling> {
        let view = self.value_views.get(value).copied().ok_or(LowerError::NoPlace(value)).map_err(EngineError::from)?;
        self.views.push(view);
        Ok(self.views.len() - 1)
    }

    fn port(&mut self, id: ValueId, value: usize) -> Result<Port, NotRolling> {
        let of = self.graph.value(id);
        let shape = of.fixed_shape().ok_or_else(|| self.interface(format!("\"{}\" of unknown shape", of.name)))?;
        Ok(Port {
            name: of.name.clone(),
            id,
            value,
            view: self.view(value)?,
            shape,
            signed: of.dtype == Some(ElementType::I8),
        })
    }

    fn input(&mut self) -> Result<Port, NotRolling> {
        let [id] = self.graph.inputs[..] else {
            return Err(self.interface(format!("{} inputs", self.graph.inputs.len())));
        };
        let value = self.add(id)?;
        self.flow.input = value;
        self.port(id, value)
    }

    fn outputs(&mut self) -> Result<Vec<Port>, NotRolling> {
        let ids = self.graph.outputs.clone();
        let mut ports = Vec::with_capacity(ids.len());
        for id in ids {
            let value = self.require(id)?;
            self.flow.outputs.push(value);
            ports.push(self.port(id, value)?);
        }
        Ok(ports)
    }

    /// Returns a value that a node reads; bytes are dequantized if needed.
    fn require(&mut self, id: ValueId) -> Result<usize, NotRolling> {
        if let Some(known) = self.known.get(&id) {
            return Ok(*known);
        }
        let Some(from) = self.dequantized.get(&id).copied() else {
            return Err(
                self.interface(format!("\"{}\", which is not computed plane by plane", self.graph.value(id).name))
            );
        };
        let bytes = self.require(from.bytes)?;
        let output = self.add(id)?;
        let (read, written) = (self.view(bytes)?, self.view(output)?);
        let scale = ByteScale::Known { scale: from.scale, zero_point: from.zero_point };
        let op: Box<dyn StepOp> = Box::new(Dequantize { input: read, scale, output: written });
        let reads = Reads::same(self.extent(output));
        self.flow.node(vec![(bytes, reads)], output);
        self.nodes.push(RollingNode {
            name: "DequantizeLinear".to_owned(),
            precision: OperatorPrecision::Float,
            work: Work::Steps(vec![op]),
            macs: 0,
            moved_bytes: self.placement.value_bytes(id).saturating_add(self.placement.value_bytes(from.bytes)),
            weight_bytes: 0,
            inputs: vec![read],
            outputs: vec![written],
            window_input: None,
        });
        Ok(output)
    }

    fn extent(&self, value: usize) -> usize {
        self.flow.values.get(value).map_or(0, |v| v.extent)
    }

    /// Adds a node that runs on kernels.
    fn node(&mut self, planned: KernelPlan) -> Result<(), NotRolling> {
        let (name, precision) = (planned.name(), planned.precision());
        let Some(output_id) = planned.output else { return Err(refused(planned.op, &planned.node)) };
        let values = planned.inputs.iter().map(|id| self.require(*id)).collect::<Result<Vec<_>, _>>()?;
        let output = self.add(output_id)?;
        let extents: Vec<usize> = values.iter().map(|v| self.extent(*v)).collect();
        let weight_bytes = planned.weight_bytes();
        let moved = planned.inputs.iter().chain([&output_id]);
        let moved_bytes = moved.fold(0, |sum: u64, id| sum.saturating_add(self.placement.value_bytes(*id)));
        let (mut kind, outputs) = (planned.kind, self.extent(output));
        let Some(reads) = reads(&kind, &extents, outputs) else {
            return Err(refused(planned.op, &planned.node));
        };
        let inputs = values.iter().map(|v| self.view(*v)).collect::<Result<Vec<_>, _>>()?;
        // The kernels for planar outputs read planes side by side.
        let reads_window = matches!(kind, PlanKind::Conv { .. } | PlanKind::ConvInt8 { .. });
        let is_blocked = self.value_views.get(output).is_some_and(|view| view.layout.block != 1);
        let window_input = (reads_window && is_blocked).then_some(0);
        let (work, written) = if let PlanKind::Joined { blocks, tables } = kind {
            self.join(&inputs, &values, output, blocks, tables)?
        } else {
            let written = self.view(output)?;
            let steps = |kind: PlanKind| -> Result<Work, EngineError> {
                Ok(Work::Steps(kind.into_steps(&inputs, Some(written))?))
            };
            let work = match kind {
                PlanKind::Pool(pool, shape) => Work::Pool(pool, shape),
                PlanKind::Resample(tables) => Work::Resample(tables),
                PlanKind::Conv { ref mut shape, .. } | PlanKind::ConvInt8 { ref mut shape, .. } => {
                    // The planes before the stack are in the buffer, as zeros.
                    shape.pad_before[0] = 0;
                    steps(kind)?
                }
                PlanKind::ConvTranspose { ref mut shape, .. } | PlanKind::ConvTransposeInt8 { ref mut shape, .. } => {
                    shape.pad_before[0] = slab_padding(shape);
                    steps(kind)?
                }
                PlanKind::Pad { ref mut before, .. } => {
                    before[0] = 0;
                    steps(kind)?
                }
                other => steps(other)?,
            };
            (work, vec![written])
        };
        self.flow.node(values.into_iter().zip(reads).collect(), output);
        let macs = planned.macs;
        let outputs = written;
        self.nodes.push(RollingNode {
            name,
            precision,
            work,
            macs,
            moved_bytes,
            weight_bytes,
            inputs,
            outputs,
            window_input,
        });
        Ok(())
    }

    /// Returns the copies of those parts of a concatenation that are not written in place, and the views of their
    /// positions.
    fn join(
        &mut self,
        inputs: &[usize],
        values: &[usize],
        output: usize,
        blocks: Vec<usize>,
        tables: Vec<Option<Box<[u8; 256]>>>,
    ) -> Result<(Work, Vec<usize>), NotRolling> {
        let whole =
            self.value_views.get(output).copied().ok_or(LowerError::NoPlace(output)).map_err(EngineError::from)?;
        let (mut steps, mut written): (Vec<Box<dyn StepOp>>, Vec<usize>) = (Vec::new(), Vec::new());
        for (((input, value), block), table) in inputs.iter().zip(values).zip(blocks).zip(tables) {
            let Some(part) = self.value_views.get(*value).copied() else { continue };
            if (part.buffer, part.block) == (whole.buffer, whole.block + block) {
                continue;
            }
            let layout = Blocked { halo: whole.layout.halo, ..part.layout };
            self.views.push(View { buffer: whole.buffer, block: whole.block + block, layout });
            let output = self.views.len() - 1;
            written.push(output);
            steps.push(copy_part(*input, table, output));
        }
        Ok((Work::Steps(steps), written))
    }
}

/// Returns the padding of a transposed convolution in a slab, whose output planes start at a multiple of the stride and whose
/// input planes at the first that they read, see [`Reads::transposed`].
fn slab_padding(shape: &TransposedShape) -> usize {
    let [kernel, stride, pad] = [shape.kernel[0], shape.stride[0].max(1), shape.pad_before[0]].map(|n| n as isize);
    // The first output plane reads input planes from ceil((pad − (kernel − 1)) / stride) on.
    usize::try_from(pad + stride * (kernel - 1 - pad).div_euclid(stride)).unwrap_or(0)
}

/// Returns the planes that each input is read at, or `None` if the node cannot be computed plane by plane.
fn reads(kind: &PlanKind, extents: &[usize], outputs: usize) -> Option<Vec<Reads>> {
    let first = *extents.first()?;
    let mut all: Vec<Reads> = extents.iter().map(|_| Reads::same(outputs)).collect();
    match kind {
        PlanKind::Conv { shape, epilogue, .. } | PlanKind::ConvInt8 { shape, epilogue, .. } => {
            // Moments of a convolution are for a normalization, which is refused.
            if epilogue.dynamic.is_some() {
                return None;
            }
            *all.first_mut()? = Reads::window(shape, first, outputs, true);
        }
        PlanKind::ConvTranspose { shape, .. } | PlanKind::ConvTransposeInt8 { shape, .. } => {
            *all.first_mut()? =
                Reads::transposed(first, outputs, shape.kernel[0], shape.stride[0], shape.pad_before[0]);
        }
        PlanKind::Pool(_, shape) => *all.first_mut()? = Reads::window(shape, first, outputs, false),
        PlanKind::Resample(tables) => *all.first_mut()? = Reads::taps(first, &tables[0]),
        PlanKind::Chain { moments, terms, .. } => {
            if !moments.is_empty() || !terms.iter().all(|t| matches!(t.affine, Affine::Fixed { .. })) {
                return None;
            }
        }
        PlanKind::Affine { .. }
        | PlanKind::Unary(_)
        | PlanKind::Binary(_)
        | PlanKind::QuantizePlanes(_)
        | PlanKind::Translate(_)
        | PlanKind::Joined { .. }
        | PlanKind::Join { .. } => {}
        PlanKind::Pad { before, value } => {
            // The planes before and after the stack are zeros, other values are in no buffer.
            if *value != 0.0 && (before[0] != 0 || first != outputs) {
                return None;
            }
            *all.first_mut()? = Reads::shifted(first, outputs, before[0]);
        }
        PlanKind::PlanarNorm { .. }
        | PlanKind::DynamicQuantize(_)
        | PlanKind::ConvOfTensors { .. }
        | PlanKind::ConvTransposeOfTensors { .. }
        | PlanKind::Slice { .. }
        | PlanKind::Gradient(_) => return None,
    }
    let fits = all.iter().zip(extents).all(|(reads, extent)| reads.outputs() == outputs && reads.fits(*extent));
    fits.then_some(all)
}
