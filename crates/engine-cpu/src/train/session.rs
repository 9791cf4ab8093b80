//! A session that runs training steps: its arena, the dense tensors and the thread pool.

use super::emit::{Program, Step, emit};
use super::plan::plan;
use super::run::{Memory, run_step};
use crate::session::{check_inputs, internal, pool};
use cytoscope_engine::{CompileOptions, CompileReport, DeviceId, EngineError, Session, shapes_by_input};
use cytoscope_graph::{Graph, Tensor, ValueId, op_name};
use cytoscope_kernels::{Arena, Isa};
use cytoscope_passes::infer_shapes;
use cytoscope_profile::{Recorder, Stage};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) struct TrainSession {
    program: Program,
    isa: Isa,
    arena: Arena,
    pool: Arc<rayon::ThreadPool>,
    recorder: Recorder,
    report: CompileReport,
}

impl TrainSession {
    pub(crate) fn new(
        graph: &Graph,
        input_shapes: &[Vec<usize>],
        isa: Isa,
        options: &CompileOptions,
    ) -> Result<Self, EngineError> {
        let mut graph = graph.clone();
        let shapes = shapes_by_input(&graph, input_shapes)?;
        infer_shapes(&mut graph, &shapes)?;
        cytoscope_passes::eliminate_identity(&mut graph);
        cytoscope_passes::eliminate_dead(&mut graph);
        infer_shapes(&mut graph, &shapes)?;
        let plans = plan(&graph);
        let program = emit(graph, plans, isa)?;
        let arena_bytes = (program.arena_len as u64).saturating_mul(size_of::<f32>() as u64);
        let available_bytes = options
            .memory_budget_bytes
            .unwrap_or(u64::MAX)
            .min(cytoscope_profile::available_bytes().unwrap_or(u64::MAX));
        let out_of_memory =
            || EngineError::OutOfMemory { device: DeviceId::Cpu, needed_bytes: arena_bytes, available_bytes };
        if arena_bytes > available_bytes {
            return Err(out_of_memory());
        }
        let arena = Arena::new(program.arena_len).map_err(|_| out_of_memory())?;
        let report = CompileReport {
            fallbacks: program.fallbacks.clone(),
            arena_bytes,
            weight_bytes: program.graph.initializer_bytes() as u64,
            macs: program.macs,
            backend: isa.to_string(),
        };
        Ok(Self { program, isa, arena, pool: pool(options)?, recorder: options.recorder.clone(), report })
    }
}

impl Session for TrainSession {
    fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EngineError> {
        let graph = &self.program.graph;
        check_inputs(graph, inputs)?;
        let mut dense: BTreeMap<ValueId, Tensor> = graph.inputs.iter().copied().zip(inputs.iter().cloned()).collect();
        let mut memory =
            Memory { arena: self.arena.words(), dense: &mut dense, moments: vec![Vec::new(); self.program.moments] };
        let pool = Arc::clone(&self.pool);
        pool.install(|| -> Result<(), EngineError> {
            for (step, dead) in self.program.steps.iter().zip(&self.program.dead_after) {
                let span =
                    self.recorder.times_operators().then(|| self.recorder.span(Stage::Op, name(&self.program, step)));
                run_step(&self.program, self.isa, step, &mut memory)?;
                drop(span);
                for value in dead {
                    memory.dense.remove(value);
                }
            }
            Ok(())
        })?;
        let output = |id: &ValueId| {
            let made = dense.get(id).cloned().or_else(|| graph.constant(*id).map(|t| t.as_ref().clone()));
            made.ok_or_else(|| internal("outputs", format!("\"{}\" was not computed", graph.value(*id).name)))
        };
        graph.outputs.iter().map(output).collect()
    }

    fn report(&self) -> &CompileReport {
        &self.report
    }
}

/// Returns the name of a step in profiles.
fn name(program: &Program, step: &Step) -> String {
    let node =
        |i: usize| program.graph.nodes.get(i).map_or_else(String::new, |n| format!("{} {}", op_name(&n.op), n.name));
    match step {
        Step::Pack(_) => "pack".to_owned(),
        Step::Unpack(_) => "unpack".to_owned(),
        Step::ClearBorder(_) => "border".to_owned(),
        Step::Plan(i) => node(*i),
        Step::Reference(i) => format!("{} (reference)", node(*i)),
    }
}
