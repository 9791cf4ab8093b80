//! Running a program: the arena, the dense tensors beside it, and the thread pool.

use crate::lower::Program;
use crate::step::{Kind, Slot, Step};
use cytoscope_engine::{CompileOptions, CompileReport, DeviceId, EngineError, Session};
use cytoscope_graph::{ElementType, Tensor, ValueId, reference};
use cytoscope_kernels::{Isa, KernelError, conv, norm, pointwise, pool, reorder, resize};
use cytoscope_profile::{Recorder, Stage};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

pub(crate) struct CpuSession {
    program: Program,
    isa: Isa,
    arena: Vec<f32>,
    arena_shift: usize,
    pool: Arc<rayon::ThreadPool>,
    recorder: Recorder,
}

/// Bytes of a cache line, to which the arena is aligned.
const CACHE_LINE: usize = 64;

impl CpuSession {
    pub(crate) fn new(program: Program, isa: Isa, options: &CompileOptions) -> Result<Self, EngineError> {
        let needed_bytes = program.report.arena_bytes + program.report.weight_bytes;
        let available_bytes = options
            .memory_budget_bytes
            .unwrap_or(u64::MAX)
            .min(cytoscope_profile::available_bytes().unwrap_or(u64::MAX));
        let out_of_memory = || EngineError::OutOfMemory { device: DeviceId::Cpu, needed_bytes, available_bytes };
        if needed_bytes > available_bytes {
            return Err(out_of_memory());
        }
        let spare = CACHE_LINE / size_of::<f32>();
        let mut arena = Vec::new();
        arena.try_reserve_exact(program.arena_len + spare).map_err(|_| out_of_memory())?;
        arena.resize(program.arena_len + spare, 0.0);
        let arena_shift = arena.as_ptr().align_offset(CACHE_LINE).min(spare);
        let threads = if options.threads == 0 {
            std::thread::available_parallelism().map_or(1, usize::from)
        } else {
            options.threads
        };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(|e| EngineError::Device {
            device: DeviceId::Cpu,
            reason: format!("{threads} threads could not be started: {e}"),
        })?;
        Ok(Self { program, isa, arena, arena_shift, pool: Arc::new(pool), recorder: options.recorder.clone() })
    }

    fn check(&self, inputs: &[Tensor]) -> Result<(), EngineError> {
        let graph = &self.program.graph;
        if inputs.len() != graph.inputs.len() {
            return Err(EngineError::Input {
                name: "inputs".to_owned(),
                expected: format!("{} of them", graph.inputs.len()),
                got: inputs.len().to_string(),
            });
        }
        for (id, tensor) in graph.inputs.iter().zip(inputs) {
            let value = graph.value(*id);
            let shape_fits = value.fixed_shape().is_none_or(|s| s == tensor.shape());
            let type_fits = value.dtype.is_none_or(|d| d == tensor.dtype());
            if !shape_fits || !type_fits {
                let say = |d: Option<ElementType>, s: String| format!("{} {s}", d.map_or("any", ElementType::name));
                return Err(EngineError::Input {
                    name: value.name.clone(),
                    expected: say(value.dtype, format!("{:?}", value.fixed_shape().unwrap_or_default())),
                    got: say(Some(tensor.dtype()), format!("{:?}", tensor.shape())),
                });
            }
        }
        Ok(())
    }
}

impl Session for CpuSession {
    fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EngineError> {
        self.check(inputs)?;
        let graph = &self.program.graph;
        let mut dense: BTreeMap<ValueId, Tensor> = graph.inputs.iter().copied().zip(inputs.iter().cloned()).collect();
        let arena = self.arena.get_mut(self.arena_shift..).unwrap_or_default();
        let pool = Arc::clone(&self.pool);
        pool.install(|| -> Result<(), EngineError> {
            for (step, dead) in self.program.steps.iter().zip(&self.program.dead_after) {
                let span = self
                    .recorder
                    .keeps_spans()
                    .then(|| self.recorder.span(Stage::Op, step.name.clone()).macs(step.macs));
                run_step(&self.program, self.isa, step, arena, &mut dense)?;
                drop(span);
                for value in dead {
                    dense.remove(value);
                }
            }
            Ok(())
        })?;
        graph
            .outputs
            .iter()
            .map(|id| {
                // A value can be asked for twice, and can be a constant.
                dense
                    .get(id)
                    .cloned()
                    .or_else(|| graph.constant(*id).map(|t| t.as_ref().clone()))
                    .ok_or_else(|| internal("outputs", format!("\"{}\" was not made", graph.value(*id).name)))
            })
            .collect()
    }

    fn report(&self) -> &CompileReport {
        &self.program.report
    }
}

fn internal(place: &str, reason: String) -> EngineError {
    EngineError::Internal { place: place.to_owned(), reason }
}

/// Splits the arena into the range written and what lies before and after it.
struct Split<'a> {
    before: &'a [f32],
    after: &'a [f32],
    written: Range<usize>,
}

impl<'a> Split<'a> {
    fn new(arena: &'a mut [f32], written: Range<usize>) -> Option<(Self, &'a mut [f32])> {
        if written.end > arena.len() {
            return None;
        }
        let (before, rest) = arena.split_at_mut(written.start);
        let (target, after) = rest.split_at_mut(written.len());
        Some((Self { before, after, written }, target))
    }

    fn read(&self, range: Range<usize>) -> Option<&'a [f32]> {
        if range.end <= self.written.start {
            self.before.get(range)
        } else {
            let shift = self.written.end;
            self.after.get(range.start.checked_sub(shift)?..range.end - shift)
        }
    }
}

/// Computes one image: its number, what is written, and what can be read.
type PerImage<'a> = dyn FnMut(usize, &mut [f32], &Split<'_>) -> Result<(), EngineError> + 'a;

fn run_step(
    program: &Program,
    isa: Isa,
    step: &Step,
    arena: &mut [f32],
    dense: &mut BTreeMap<ValueId, Tensor>,
) -> Result<(), EngineError> {
    let slot = |i: usize| program.slots.get(i).copied().ok_or_else(|| internal(&step.name, "no such slot".to_owned()));
    let overlap = || internal(&step.name, "buffers overlap".to_owned());
    let kernel = |e: KernelError| internal(&step.name, e.to_string());
    // Runs `f(image, target, split)` for each image of the slot written.
    let mut each = |to: Slot, f: &mut PerImage<'_>| {
        for image in 0..to.images {
            let (split, target) = Split::new(arena, to.range(image)).ok_or_else(overlap)?;
            f(image, target, &split)?;
        }
        Ok(())
    };
    match &step.kind {
        Kind::Pack { from, to } => {
            let to = slot(*to)?;
            let tensor = dense.get(from).or_else(|| program.graph.constant(*from).map(|t| t.as_ref()));
            let values =
                tensor.and_then(Tensor::as_f32).ok_or_else(|| internal(&step.name, "no f32 tensor".to_owned()))?;
            let per_image = to.layout.channels * to.layout.voxels();
            each(to, &mut |image, target, _| {
                let source = values.get(image * per_image..(image + 1) * per_image).ok_or_else(overlap)?;
                reorder::pack(source, &to.layout, target).map_err(kernel)
            })
        }
        Kind::Unpack { from, to, shape } => {
            let from = slot(*from)?;
            let per_image = from.layout.channels * from.layout.voxels();
            let mut values = vec![0.0; per_image * from.images];
            for (image, target) in values.chunks_exact_mut(per_image.max(1)).enumerate() {
                let source = arena.get(from.range(image)).ok_or_else(overlap)?;
                reorder::unpack(source, &from.layout, target).map_err(kernel)?;
            }
            dense.insert(*to, Tensor::new(shape.clone(), values)?);
            Ok(())
        }
        Kind::ClearBorder { slot: of } => {
            let to = slot(*of)?;
            each(to, &mut |_, target, _| reorder::clear_border(&to.layout, target).map_err(kernel))
        }
        Kind::Conv { input, weights, shape, activation, residual, output } => {
            let (from, to) = (slot(*input)?, slot(*output)?);
            let extra = residual.map(slot).transpose()?;
            each(to, &mut |image, target, split| {
                let x = split.read(from.range(image)).ok_or_else(overlap)?;
                let r = extra.map(|r| split.read(r.range(image)).ok_or_else(overlap)).transpose()?;
                let residual = r.zip(extra.as_ref().map(|r| &r.layout));
                conv::conv(isa, x, &from.layout, weights, shape, *activation, residual, target, &to.layout)
                    .map_err(kernel)
            })
        }
        Kind::ConvTranspose { input, taps, kernel: size, activation, output } => {
            let (from, to) = (slot(*input)?, slot(*output)?);
            each(to, &mut |image, target, split| {
                let x = split.read(from.range(image)).ok_or_else(overlap)?;
                conv::conv_transpose_exact(isa, x, &from.layout, taps, *size, *activation, target, &to.layout)
                    .map_err(kernel)
            })
        }
        Kind::InstanceNorm { input, scale, bias, epsilon, residual, activation, output } => {
            let (from, to) = (slot(*input)?, slot(*output)?);
            let extra = residual.map(slot).transpose()?;
            each(to, &mut |image, target, split| {
                let in_place = from.range(image) == to.range(image);
                let source = if in_place { None } else { Some(split.read(from.range(image)).ok_or_else(overlap)?) };
                let moments = norm::channel_moments(isa, source.unwrap_or(target), &from.layout).map_err(kernel)?;
                let gain: Vec<f32> = moments
                    .iter()
                    .zip(scale)
                    .map(|((_, variance), s)| (f64::from(*s) / (variance + f64::from(*epsilon)).sqrt()) as f32)
                    .collect();
                let shift: Vec<f32> = moments
                    .iter()
                    .zip(gain.iter().zip(bias))
                    .map(|((mean, _), (g, b))| (f64::from(*b) - mean * f64::from(*g)) as f32)
                    .collect();
                let r = extra.map(|r| split.read(r.range(image)).ok_or_else(overlap)).transpose()?;
                let residual = r.zip(extra.as_ref().map(|r| &r.layout));
                match source {
                    None => norm::affine_in_place(isa, target, &to.layout, &gain, &shift, residual, *activation),
                    Some(x) => {
                        norm::affine(isa, x, &from.layout, &gain, &shift, residual, *activation, target, &to.layout)
                    }
                }
                .map_err(kernel)
            })
        }
        Kind::Affine { input, scale, shift, residual, activation, output } => {
            let (from, to) = (slot(*input)?, slot(*output)?);
            let extra = residual.map(slot).transpose()?;
            each(to, &mut |image, target, split| {
                let r = extra.map(|r| split.read(r.range(image)).ok_or_else(overlap)).transpose()?;
                let residual = r.zip(extra.as_ref().map(|r| &r.layout));
                if from.range(image) == to.range(image) {
                    norm::affine_in_place(isa, target, &to.layout, scale, shift, residual, *activation)
                } else {
                    let x = split.read(from.range(image)).ok_or_else(overlap)?;
                    norm::affine(isa, x, &from.layout, scale, shift, residual, *activation, target, &to.layout)
                }
                .map_err(kernel)
            })
        }
        Kind::Unary { f, input, output } => {
            let (from, to) = (slot(*input)?, slot(*output)?);
            each(to, &mut |image, target, split| {
                if from.range(image) == to.range(image) {
                    return pointwise::unary_in_place(isa, *f, target, &to.layout).map_err(kernel);
                }
                let x = split.read(from.range(image)).ok_or_else(overlap)?;
                pointwise::unary(isa, *f, x, &from.layout, target, &to.layout).map_err(kernel)
            })
        }
        Kind::Binary { f, a, b, output } => {
            let (a, b, to) = (slot(*a)?, slot(*b)?, slot(*output)?);
            each(to, &mut |image, target, split| {
                let x = split.read(a.range(image)).ok_or_else(overlap)?;
                let y = split.read(b.range(image)).ok_or_else(overlap)?;
                pointwise::binary(isa, *f, (x, &a.layout), (y, &b.layout), target, &to.layout).map_err(kernel)
            })
        }
        Kind::Pool { kind, shape, input, output } => {
            let (from, to) = (slot(*input)?, slot(*output)?);
            each(to, &mut |image, target, split| {
                let x = split.read(from.range(image)).ok_or_else(overlap)?;
                pool::pool(isa, *kind, shape, x, &from.layout, target, &to.layout).map_err(kernel)
            })
        }
        Kind::Resize { tables, input, output } => {
            let (from, to) = (slot(*input)?, slot(*output)?);
            each(to, &mut |image, target, split| {
                let x = split.read(from.range(image)).ok_or_else(overlap)?;
                resize::resize(isa, tables, x, &from.layout, target, &to.layout).map_err(kernel)
            })
        }
        Kind::Copy { input, output } => {
            let (from, to) = (slot(*input)?, slot(*output)?);
            each(to, &mut |image, target, split| {
                let x = split.read(from.range(image)).ok_or_else(overlap)?;
                pointwise::copy(x, &from.layout, target, &to.layout).map_err(kernel)
            })
        }
        Kind::Reference { node } => {
            let node = program.graph.nodes.get(*node).ok_or_else(|| internal(&step.name, "no such node".to_owned()))?;
            let results = {
                let inputs: Vec<Option<&Tensor>> = node
                    .inputs
                    .iter()
                    .map(|id| {
                        id.and_then(|id| dense.get(&id).or_else(|| program.graph.constant(id).map(|t| t.as_ref())))
                    })
                    .collect();
                reference::eval(&node.op, &inputs, node.outputs.len())?
            };
            for (id, tensor) in node.outputs.iter().zip(results) {
                if let Some(id) = id {
                    dense.insert(*id, tensor);
                }
            }
            Ok(())
        }
    }
}
