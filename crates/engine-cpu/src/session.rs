//! A session that runs a lowered program: its arena, the dense tensors and the thread pool.

use crate::context::{Context, StepError};
use crate::program::Program;
use crate::purpose::is_training_step;
use cytoscope_engine::{CompileOptions, CompileReport, DeviceId, EngineError, Precision, Session};
use cytoscope_graph::{ElementType, Graph, Interrupt, Tensor};
use cytoscope_kernels::{Arena, Isa};
use cytoscope_profile::{Recorder, Stage};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// Memory size assumed where the operating system does not report one.
const ASSUMED_MEMORY_BYTES: u64 = 1 << 40;

pub(crate) struct CpuSession {
    program: Program,
    isa: Isa,
    arena: Arena,
    pool: Arc<rayon::ThreadPool>,
    integers: bool,
    recorder: Recorder,
    /// Stops a run between two steps.
    interrupt: Interrupt,
    /// Bytes left for dense values and the reference executor; `None` for that executor's own limit, in training steps.
    dense_bytes: Option<u64>,
}

impl CpuSession {
    pub(crate) fn new(program: Program, isa: Isa, options: &CompileOptions) -> Result<Self, EngineError> {
        let integers = options.precision == Precision::Int8;
        let needed_bytes = program.needed_bytes;
        let available_bytes = options
            .memory_budget_bytes
            .unwrap_or(u64::MAX)
            .min(cytoscope_profile::available_bytes().unwrap_or(u64::MAX));
        let out_of_memory = || EngineError::OutOfMemory { device: DeviceId::Cpu, needed_bytes, available_bytes };
        if needed_bytes > available_bytes {
            return Err(out_of_memory());
        }
        let arena = Arena::new(program.arena_len).map_err(|_| out_of_memory())?;
        let pool = pool(options)?;
        let left = available_bytes.min(ASSUMED_MEMORY_BYTES).saturating_sub(needed_bytes);
        let dense_bytes = (!is_training_step(&program.graph)).then_some(left);
        let (recorder, interrupt) = (options.recorder.clone(), options.interrupt.clone());
        Ok(Self { program, isa, arena, pool, integers, recorder, interrupt, dense_bytes })
    }

    fn check_values(&self, inputs: &[Tensor]) -> Result<(), EngineError> {
        let graph = &self.program.graph;
        // NaN and infinity have no 8-bit representation.
        for (id, tensor) in graph.inputs.iter().zip(inputs).filter(|_| self.integers) {
            check_finite(&graph.value(*id).name, tensor)?;
        }
        check_inputs(graph, inputs)
    }
}

/// Checks that floats can be quantized. Tensors of other types are not checked.
pub(crate) fn check_finite(name: &str, tensor: &Tensor) -> Result<(), EngineError> {
    let values = tensor.as_f32().unwrap_or_default();
    let Some((at, got)) = values.iter().enumerate().find(|(_, v)| !v.is_finite()) else { return Ok(()) };
    Err(EngineError::Input {
        name: name.to_owned(),
        expected: "finite numbers (int8 cannot represent NaN or infinity): replace them, or choose f32".to_owned(),
        got: format!("{got} at element {at}"),
    })
}

/// Checks that the inputs have the types and shapes that the graph was compiled for.
fn check_inputs(graph: &Graph, inputs: &[Tensor]) -> Result<(), EngineError> {
    if inputs.len() != graph.inputs.len() {
        return Err(EngineError::Input {
            name: "inputs".to_owned(),
            expected: format!("{} inputs", graph.inputs.len()),
            got: inputs.len().to_string(),
        });
    }
    for (id, tensor) in graph.inputs.iter().zip(inputs) {
        let value = graph.value(*id);
        let shape_fits = value.fixed_shape().is_none_or(|s| s == tensor.shape());
        let type_fits = value.dtype.is_none_or(|d| d == tensor.dtype());
        if !shape_fits || !type_fits {
            let describe =
                |d: Option<ElementType>, s: String| format!("{} {s}", d.map_or("any type", ElementType::name));
            let any_shape = || "of any shape".to_owned();
            return Err(EngineError::Input {
                name: value.name.clone(),
                expected: describe(value.dtype, value.fixed_shape().map_or_else(any_shape, |s| format!("{s:?}"))),
                got: describe(Some(tensor.dtype()), format!("{:?}", tensor.shape())),
            });
        }
    }
    Ok(())
}

/// Creates the thread pool of a session.
pub(crate) fn pool(options: &CompileOptions) -> Result<Arc<rayon::ThreadPool>, EngineError> {
    let all = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if options.threads == 0 { all() } else { options.threads };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(|e| EngineError::Device {
        device: DeviceId::Cpu,
        reason: format!("cannot start {threads} threads: {e}").into(),
    })?;
    Ok(Arc::new(pool))
}

/// Runs a range of a program's steps unless `interrupt` is set before one of them, and frees the dense values that no later step
/// reads.
fn run_steps(
    program: &Program,
    recorder: &Recorder,
    interrupt: &Interrupt,
    range: Range<usize>,
    context: &mut Context<'_>,
) -> Result<(), EngineError> {
    let steps = program.steps.iter().zip(&program.dead_after);
    for (step, dead) in steps.skip(range.start).take(range.len()) {
        interrupt.check()?;
        let span = recorder.times_operators().then(|| {
            let span = recorder.span(Stage::Op, step.name.clone()).precision(step.precision);
            span.macs(step.macs).bytes(step.bytes as usize)
        });
        step.op.run(context).map_err(|e| e.at(&step.name))?;
        drop(span);
        for value in dead {
            context.dense.remove(value);
        }
    }
    Ok(())
}

impl Session for CpuSession {
    fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EngineError> {
        self.check_values(inputs)?;
        let graph = &self.program.graph;
        let mut context = Context {
            isa: self.isa,
            graph,
            slots: Cow::Borrowed(&self.program.slots),
            arena: self.arena.words(),
            dense: graph.inputs.iter().copied().zip(inputs.iter().map(Cow::Borrowed)).collect(),
            moments: vec![Vec::new(); self.program.moments],
            ranges: vec![None; self.program.ranges],
            dense_bytes: self.dense_bytes,
        };
        let (program, recorder, interrupt) = (&self.program, &self.recorder, &self.interrupt);
        self.pool.install(|| -> Result<(), EngineError> {
            let Some(backward_from) = program.backward_from else {
                return run_steps(program, recorder, interrupt, 0..program.steps.len(), &mut context);
            };
            let forward = recorder.span(Stage::Forward, "forward");
            run_steps(program, recorder, interrupt, 0..backward_from, &mut context)?;
            forward.finish();
            let _backward = recorder.span(Stage::Backward, "backward");
            run_steps(program, recorder, interrupt, backward_from..program.steps.len(), &mut context)
        })?;
        let dense = context.dense;
        graph
            .outputs
            .iter()
            .map(|id| {
                // A graph output can be listed twice, and can be a constant.
                dense
                    .get(id)
                    .map(|t| (**t).clone())
                    .or_else(|| graph.constant(*id).map(|t| t.as_ref().clone()))
                    .ok_or_else(|| StepError::MissingTensor(*id).at("outputs"))
            })
            .collect()
    }

    fn report(&self) -> &CompileReport {
        &self.program.report
    }
}
