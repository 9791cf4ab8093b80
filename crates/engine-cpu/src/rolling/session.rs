//! Runs a pass: planes go in, and planes of the outputs come out as they become complete.

use super::CpuRollingPlan;
use super::flow::{FlowNode, Progress, Slab};
use super::plane_storage::PlaneStorage;
use super::program::{Buffer, Port, RollingNode, RollingProgram, View, Work};
use crate::context::{Context, StepError, StepResult, bytes_mut};
use crate::session::{check_finite, pool};
use crate::step::{Elem, Slot, StepOp};
use crate::steps::{Pack, Unpack};
use cytoscope_engine::{Band, DeviceId, EngineError, OutputPlanes, Precision, RollingSession};
use cytoscope_graph::{Interrupt, Tensor};
use cytoscope_kernels::{Arena, Isa};
use cytoscope_profile::{Recorder, Stage};
use rayon::prelude::*;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// A network through which a stack is passed once, slab by slab along Z.
pub(crate) struct CpuRollingSession {
    program: RollingProgram,
    isa: Isa,
    integers: bool,
    bands: Vec<Band>,
    /// Index of the current band.
    band: usize,
    /// Rows of the whole stack.
    rows: usize,
    slab_planes: usize,
    /// The planes of each buffer.
    storages: Vec<PlaneStorage>,
    /// First word of each buffer.
    starts: Vec<usize>,
    arena: Arena,
    pool: Arc<rayon::ThreadPool>,
    recorder: Recorder,
    /// Stops a slab between two nodes.
    interrupt: Interrupt,
    progress: Progress,
    /// Plane at the start of each buffer.
    base: Vec<isize>,
    /// Whether no plane has been passed since all buffers were cleared.
    is_clear: bool,
}

impl CpuRollingSession {
    pub(super) fn new(plan: CpuRollingPlan) -> Result<Self, EngineError> {
        let CpuRollingPlan { program, isa, options, bands, shape, slab_planes, storages, starts, arena_bytes, .. } =
            plan;
        let words = usize::try_from(arena_bytes).unwrap_or(usize::MAX) / size_of::<f32>();
        let arena = Arena::new(words).map_err(|_| EngineError::OutOfMemory {
            device: DeviceId::Cpu,
            needed_bytes: arena_bytes,
            available_bytes: cytoscope_profile::available_bytes().unwrap_or(0),
        })?;
        let progress = Progress::new(&program.flow, slab_planes);
        let mut session = Self {
            isa,
            integers: options.precision == Precision::Int8,
            bands,
            band: 0,
            rows: shape.get(3).copied().unwrap_or(0),
            slab_planes,
            storages,
            starts,
            arena,
            pool: pool(&options)?,
            recorder: options.recorder.clone(),
            interrupt: options.interrupt.clone(),
            base: progress.base().to_vec(),
            progress,
            program,
            is_clear: true,
        };
        // A new arena is zeroed, which clears all buffers but those whose zeros are another byte.
        session.clear(|elem| matches!(elem, Elem::U8 { zero_point } if zero_point != 0))?;
        Ok(session)
    }

    /// Fills the chosen buffers with the elements that represent 0: planes before the stack, borders and unused channels.
    fn clear(&mut self, chosen: impl Fn(Elem) -> bool) -> Result<(), EngineError> {
        let words = self.arena.words();
        let buffers = self.program.buffers.iter().zip(&self.starts).zip(&self.storages);
        for ((buffer, start), storage) in buffers.filter(|((buffer, _), _)| chosen(buffer.elem)) {
            let buffer_words = part(words, *start, buffer.words(storage.capacity)).map_err(|e| e.at("clear"))?;
            self.pool.install(|| buffer_words.par_chunks_mut(FILL_WORDS).for_each(|part| fill(part, buffer.elem)));
        }
        Ok(())
    }

    fn wrong(&self, expected: String, got: String) -> EngineError {
        EngineError::Input { name: self.program.input.name.clone(), expected, got }
    }

    /// Checks the next planes and returns their number.
    fn check(&self, planes: &Tensor) -> Result<usize, EngineError> {
        let (port, flow) = (&self.program.input, &self.program.flow);
        let left = flow.depth() - self.progress.known(port.value);
        let count = self.slab_planes.min(left);
        let mut expected = port.shape.clone();
        if let Some(z) = expected.get_mut(2) {
            *z = count;
        }
        let dtype = self.program.graph.value(port.id).dtype;
        if count == 0 || planes.shape() != expected || dtype.is_some_and(|d| d != planes.dtype()) {
            let describe = |d: &str, s: &[usize]| format!("{d} {s:?}");
            let expected = describe(dtype.map_or("any", |d| d.name()), &expected);
            return Err(self.wrong(expected, describe(planes.dtype().name(), planes.shape())));
        }
        if self.integers {
            check_finite(&port.name, planes)?;
        }
        Ok(count)
    }

    /// Computes one slab from `count` new planes.
    fn slab(&mut self, planes: Option<Tensor>, count: usize) -> Result<Vec<OutputPlanes>, EngineError> {
        self.is_clear = false;
        let slab = self.progress.advance(&self.program.flow, count, Some(&self.storages));
        let (program, pool) = (&self.program, Arc::clone(&self.pool));
        let slots = self.slots(&slab)?;
        let words = self.arena.words();
        pool.install(|| -> StepResult<()> {
            for (at, buffer) in program.buffers.iter().enumerate() {
                let shift = Shift {
                    from: self.base[at],
                    to: slab.base[at],
                    kept: &slab.kept[at],
                    capacity: self.storages[at].capacity,
                };
                shift.run(buffer, self.starts[at], words)?;
            }
            Ok(())
        })
        .map_err(|e| e.at("shift"))?;
        self.base.clone_from(&slab.base);
        let mut context = Context {
            isa: self.isa,
            graph: &program.graph,
            slots: Cow::Owned(slots),
            arena: words,
            dense: BTreeMap::new(),
            moments: Vec::new(),
            ranges: Vec::new(),
            dense_bytes: None,
        };
        let place = Place { program, base: &self.base, starts: &self.starts, storages: &self.storages };
        pool.install(|| -> Result<(), EngineError> {
            if let Some(planes) = planes {
                context.dense.insert(program.input.id, Cow::Owned(planes));
                let pack = Pack { from: program.input.id, to: program.input.view };
                pack.run(&mut context).map_err(|e| e.at("pack"))?;
                // The planes are in their buffer now: their own memory is free for the next ones.
                context.dense.clear();
                let new = slab.new.get(program.input.value).map_or(0..0, range);
                place.repeat(program.input.value, &new, context.arena).map_err(|e| e.at("pack"))?;
            }
            place.end(program.input.value, &slab, context.arena).map_err(|e| e.at("pack"))?;
            run_nodes(&place, &slab, &self.recorder, &self.interrupt, &mut context)
        })?;
        let band = self.bands.get(self.band).cloned().unwrap_or(Band { fed: 0..0, kept: 0..0 });
        pool.install(|| outputs(program, &slab, &band, self.rows, &mut context))
    }

    /// Returns the slots of a slab: those of the network's input and outputs. Those of a node are set when it runs.
    fn slots(&self, slab: &Slab) -> Result<Vec<Slot>, EngineError> {
        let program = &self.program;
        let mut planes: Vec<Range<isize>> = vec![0..0; program.views.len()];
        for port in program.outputs.iter().chain([&program.input]) {
            planes[port.view] = range(&slab.new[port.value]);
        }
        let place = Place { program, base: &slab.base, starts: &self.starts, storages: &self.storages };
        let slots = program.views.iter().zip(&planes).map(|(view, planes)| {
            let planes =
                if planes.is_empty() { slab.base[view.buffer]..slab.base[view.buffer] } else { planes.clone() };
            place.slot(view, &planes)
        });
        slots.collect::<Option<_>>().ok_or_else(|| StepError::Overlap.at("planes of a slab"))
    }
}

impl RollingSession for CpuRollingSession {
    fn begin(&mut self, band: usize) -> Result<(), EngineError> {
        if band >= self.bands.len() {
            return Err(EngineError::Input {
                name: "band".to_owned(),
                expected: format!("a number below {}", self.bands.len()),
                got: band.to_string(),
            });
        }
        self.band = band;
        if !self.is_clear {
            self.progress = Progress::new(&self.program.flow, self.slab_planes);
            self.base = self.progress.base().to_vec();
            self.clear(|_| true)?;
            self.is_clear = true;
        }
        Ok(())
    }

    fn push(&mut self, planes: Tensor) -> Result<Vec<OutputPlanes>, EngineError> {
        let count = self.check(&planes)?;
        self.slab(Some(planes), count)
    }

    fn finish(&mut self) -> Result<Option<Vec<OutputPlanes>>, EngineError> {
        let (known, depth) = (self.progress.known(self.program.input.value), self.program.flow.depth());
        if known < depth {
            return Err(self.wrong(format!("{depth} planes"), format!("{known}")));
        }
        if self.progress.is_done(&self.program.flow) {
            return Ok(None);
        }
        let before = self.progress.clone();
        let made = self.slab(None, 0)?;
        if self.progress == before {
            return Err(StepError::Overlap.at("end of a pass"));
        }
        Ok(Some(made))
    }
}

/// Returns the positions of new planes as those that buffers use, which may also be before the first plane.
fn range(planes: &Range<usize>) -> Range<isize> {
    planes.start as isize..planes.end as isize
}

/// Words that one task fills.
const FILL_WORDS: usize = 1 << 18;
/// Words that one task copies.
const COPY_WORDS: usize = 1 << 16;

/// Fills words with the element that represents 0.
fn fill(words: &mut [f32], elem: Elem) {
    match elem {
        Elem::U8 { zero_point } => bytes_mut(words, usize::MAX).fill(zero_point),
        Elem::F32 | Elem::F16 => words.fill(0.0),
    }
}

/// Returns the words of a buffer, or of a part of one.
fn part(words: &mut [f32], start: usize, count: usize) -> StepResult<&mut [f32]> {
    words.get_mut(start..start + count).ok_or(StepError::Overlap)
}

/// Moves the planes of a buffer that are kept to their new places.
struct Shift<'a> {
    /// Plane at the start of the buffer, before and after.
    from: isize,
    to: isize,
    kept: &'a Range<isize>,
    capacity: usize,
}

impl Shift<'_> {
    fn run(&self, buffer: &Buffer, start: usize, words: &mut [f32]) -> StepResult<()> {
        if self.from == self.to || self.kept.is_empty() {
            return Ok(());
        }
        let plane = buffer.block_words(1);
        let at = |base: isize| usize::try_from(self.kept.start - base).unwrap_or(0) * plane;
        let (from, to, len) = (at(self.from), at(self.to), self.kept.len() * plane);
        let block = buffer.block_words(self.capacity).max(1);
        let own = part(words, start, buffer.words(self.capacity))?;
        own.par_chunks_exact_mut(block).for_each(|block| copy_within(block, from, to, len));
        Ok(())
    }
}

/// Copies `len` words at `from` to `to`, with all threads unless the two ranges overlap.
fn copy_within(words: &mut [f32], from: usize, to: usize, len: usize) {
    if from.abs_diff(to) < len {
        return words.copy_within(from..from + len, to);
    }
    let (low, high) = words.split_at_mut(from.max(to));
    let (source, target) =
        if from > to { (&high[..len], &mut low[to..to + len]) } else { (&low[from..from + len], &mut high[..len]) };
    let parts = target.par_chunks_mut(COPY_WORDS).zip(source.par_chunks(COPY_WORDS));
    parts.for_each(|(target, source)| target.copy_from_slice(source));
}

/// Where the planes of a slab are.
struct Place<'a> {
    program: &'a RollingProgram,
    base: &'a [isize],
    starts: &'a [usize],
    storages: &'a [PlaneStorage],
}

impl Place<'_> {
    fn slot(&self, view: &View, planes: &Range<isize>) -> Option<Slot> {
        let at = view.buffer;
        let (base, start, storage) = (*self.base.get(at)?, *self.starts.get(at)?, self.storages.get(at)?);
        view.slot(self.program.buffers.get(at)?, planes, base, start, storage)
    }

    /// Returns the slot of an input of a node: planes side by side, or across the end of a ring if the node can read them.
    fn input_slot(&self, node: &RollingNode, input: usize, planes: &Range<isize>) -> Option<Slot> {
        let view = self.program.views.get(*node.inputs.get(input)?)?;
        let slot = self.slot(view, planes);
        if slot.is_some() || node.window_input != Some(input) {
            return slot;
        }
        let (start, storage) = (*self.starts.get(view.buffer)?, self.storages.get(view.buffer)?);
        view.ring_slot(self.program.buffers.get(view.buffer)?, planes.start, start, storage)
    }

    /// Sets the slots of a node that computes some planes of its output. Returns whether all of them are in their buffers.
    fn set_slots(&self, node: &RollingNode, flow: &FlowNode, planes: &Range<usize>, slots: &mut [Slot]) -> bool {
        let inputs = flow.inputs.iter().enumerate();
        let inputs = inputs.map(|(at, (_, reads))| (node.inputs.get(at), self.input_slot(node, at, &reads.of(planes))));
        let output = |view: &usize| self.program.views.get(*view).and_then(|view| self.slot(view, &range(planes)));
        let outputs = node.outputs.iter().map(|view| (Some(view), output(view)));
        inputs.chain(outputs).all(|(view, slot)| match (view.and_then(|view| slots.get_mut(*view)), slot) {
            (Some(place), Some(slot)) => {
                *place = slot;
                true
            }
            _ => false,
        })
    }

    /// Sets the slots of a node for the first of `planes` that lie side by side in its buffers, as many as do. Returns the end
    /// of these planes.
    fn set_longest(
        &self,
        node: &RollingNode,
        flow: &FlowNode,
        planes: &Range<usize>,
        slots: &mut [Slot],
    ) -> StepResult<usize> {
        let step = flow.step.max(1);
        let mut count = planes.len();
        while count > 0 {
            let end = planes.start + count;
            if self.set_slots(node, flow, &(planes.start..end), slots) {
                return Ok(end);
            }
            // Parts are whole steps; only the last one of the value may be shorter.
            count = (count - 1) / step * step;
        }
        Err(StepError::Overlap)
    }

    /// Returns the buffer of a value, how its planes lie in it, and its first word.
    fn buffer(&self, value: usize) -> StepResult<(&Buffer, &PlaneStorage, usize)> {
        let found = self.program.value_views.get(value).and_then(|view| {
            let at = view.buffer;
            Some((self.program.buffers.get(at)?, self.storages.get(at)?, *self.starts.get(at)?))
        });
        found.ok_or(StepError::MissingSlot(value))
    }

    /// Repeats planes of a value at the ends of a ring. Planes that were written side by side are repeated together; others
    /// lie elsewhere if they are beyond the end of the ring.
    fn repeat(&self, value: usize, written: &Range<isize>, words: &mut [f32]) -> StepResult<()> {
        let (buffer, storage, start) = self.buffer(value)?;
        for (from, to) in storage.repeats(written).into_iter().filter(|(from, _)| !from.is_empty()) {
            copy_planes(buffer, storage, start, words, &from, to)?;
        }
        Ok(())
    }

    /// Writes the zeros after the last plane of a value that a slab has completed.
    fn end(&self, value: usize, slab: &Slab, words: &mut [f32]) -> StepResult<()> {
        let (Some(of), Some(view)) = (self.program.flow.values.get(value), self.program.value_views.get(value)) else {
            return Err(StepError::MissingSlot(value));
        };
        let (buffer, storage, _) = self.buffer(value)?;
        let [_, zeros] = slab.written(of, value);
        for plane in zeros {
            let own = plane..plane + 1;
            let slot = self.slot(view, &own).ok_or(StepError::MissingSlot(value))?;
            let block = buffer.block_words(storage.capacity);
            for image in 0..slot.images {
                for at in 0..slot.layout.blocks() {
                    let first = slot.start + image * slot.image_stride + at * block;
                    fill(part(words, first, buffer.block_words(1))?, buffer.elem);
                }
            }
            self.repeat(value, &own, words)?;
        }
        Ok(())
    }
}

/// Copies planes of a buffer at `start` to another position in it, in all channel blocks.
fn copy_planes(
    buffer: &Buffer,
    storage: &PlaneStorage,
    start: usize,
    words: &mut [f32],
    from: &Range<usize>,
    to: usize,
) -> StepResult<()> {
    let plane = buffer.block_words(1);
    let block = buffer.block_words(storage.capacity).max(1);
    let own = part(words, start, buffer.words(storage.capacity))?;
    own.par_chunks_exact_mut(block)
        .for_each(|block| copy_within(block, from.start * plane, to * plane, from.len() * plane));
    Ok(())
}

/// Computes the new planes of all nodes.
fn run_nodes(
    place: &Place<'_>,
    slab: &Slab,
    recorder: &Recorder,
    interrupt: &Interrupt,
    context: &mut Context<'_>,
) -> Result<(), EngineError> {
    let program = place.program;
    for (node, flow) in program.nodes.iter().zip(&program.flow.nodes) {
        let new = &slab.new[flow.output];
        if new.is_empty() {
            place.end(flow.output, slab, context.arena).map_err(|e| e.at(&node.name))?;
            continue;
        }
        interrupt.check().map_err(EngineError::from)?;
        let extent = program.flow.values.get(flow.output).map_or(1, |v| v.extent.max(1));
        let slab_share = |whole: u64| whole / extent as u64 * new.len() as u64;
        let (macs, bytes) = (slab_share(node.macs), slab_share(node.moved_bytes).saturating_add(node.weight_bytes));
        let span = recorder.times_operators().then(|| {
            let span = recorder.span(Stage::Op, node.name.clone()).precision(node.precision);
            span.macs(macs).bytes(bytes as usize)
        });
        run_node(place, node, flow, new, context).map_err(|e| e.at(&node.name))?;
        drop(span);
        place.end(flow.output, slab, context.arena).map_err(|e| e.at(&node.name))?;
    }
    Ok(())
}

/// Computes the new planes of a node: all at once, unless some of its buffers are rings that end among them.
fn run_node(
    place: &Place<'_>,
    node: &RollingNode,
    flow: &FlowNode,
    new: &Range<usize>,
    context: &mut Context<'_>,
) -> StepResult<()> {
    let mut first = new.start;
    while first < new.end {
        let end = place.set_longest(node, flow, &(first..new.end), context.slots.to_mut())?;
        let own = first..end;
        match &node.work {
            Work::Steps(steps) => steps.iter().try_for_each(|step| step.run(context))?,
            other => {
                let slots = node.inputs.first().zip(node.outputs.first());
                let reads = flow.inputs.first().map(|(_, reads)| reads.of(&own)).unwrap_or_default();
                let step = slots.and_then(|(input, output)| other.step([*input, *output], &own, &reads));
                step.ok_or(StepError::Overlap)?.run(context)?;
            }
        }
        place.repeat(flow.output, &range(&own), context.arena)?;
        first = end;
    }
    Ok(())
}

/// Returns the new planes of all outputs.
fn outputs(
    program: &RollingProgram,
    slab: &Slab,
    band: &Band,
    rows: usize,
    context: &mut Context<'_>,
) -> Result<Vec<OutputPlanes>, EngineError> {
    let mut all = Vec::new();
    for (output, port) in program.outputs.iter().enumerate() {
        let new = slab.new.get(port.value).ok_or_else(|| StepError::MissingSlot(port.value).at(&port.name))?;
        if new.is_empty() {
            continue;
        }
        let mut shape = port.shape.clone();
        if let Some(z) = shape.get_mut(2) {
            *z = new.len();
        }
        let unpack = Unpack { from: port.view, to: port.id, shape, signed: port.signed };
        unpack.run(context).map_err(|e| e.at("unpack"))?;
        let planes = context.dense.remove(&port.id).map(Cow::into_owned);
        let planes = planes.ok_or_else(|| StepError::MissingTensor(port.id).at("unpack"))?;
        let (first_y, planes) = kept_rows(planes, port, &program.input, band, rows)?;
        all.push(OutputPlanes { output, name: port.name.clone(), first_z: new.start, first_y, planes });
    }
    Ok(all)
}

/// Returns the rows of an output that a band keeps, and the position of the first.
fn kept_rows(
    planes: Tensor,
    port: &Port,
    input: &Port,
    band: &Band,
    rows: usize,
) -> Result<(usize, Tensor), EngineError> {
    if band.kept == (0..rows) {
        return Ok((0, planes));
    }
    let (Some(own), Some(fed)) = (port.shape.get(3).copied(), input.shape.get(3).copied()) else {
        return Ok((0, planes));
    };
    // Bands start on multiples of the strides, so that the rows of all outputs are whole numbers.
    let scaled = |row: usize| row * own / fed.max(1);
    let first_y = scaled(band.kept.start);
    let kept = first_y - scaled(band.fed.start)..scaled(band.kept.end) - scaled(band.fed.start);
    Ok((first_y, crop_rows(&planes, &kept)?))
}

/// Returns some rows of a tensor N, C, Z, Y, X.
fn crop_rows(tensor: &Tensor, rows: &Range<usize>) -> Result<Tensor, EngineError> {
    let mut shape = tensor.shape().to_vec();
    let [_, _, _, height, width] = shape[..] else {
        return Err(StepError::Overlap.at("rows of a band"));
    };
    if let Some(y) = shape.get_mut(3) {
        *y = rows.len();
    }
    fn pick<T: Copy>(values: &[T], plane: usize, own: Range<usize>) -> Vec<T> {
        let planes = values.chunks_exact(plane.max(1));
        planes.flat_map(|plane| plane.get(own.clone()).unwrap_or_default()).copied().collect()
    }
    let (plane, own) = (height * width, rows.start * width..rows.end * width);
    let made = match (tensor.as_f32(), tensor.as_u8(), tensor.as_i8()) {
        (Some(v), _, _) => Tensor::new(shape, pick(v, plane, own)),
        (_, Some(v), _) => Tensor::new(shape, pick(v, plane, own)),
        (_, _, Some(v)) => Tensor::new(shape, pick(v, plane, own)),
        _ => return Err(StepError::Overlap.at("rows of a band")),
    };
    made.map_err(EngineError::from)
}

#[cfg(test)]
mod tests;
