//! Compiling and running.

use crate::{Device, EngineError, Precision};
use cytoscope_graph::{Graph, Interrupt, Tensor, ValueId};
use cytoscope_profile::Recorder;
use serde::Serialize;

/// How a model is compiled.
#[derive(Clone)]
pub struct CompileOptions {
    /// Number format to compute in.
    pub precision: Precision,
    /// Threads to compute with (processors only); 0 takes all.
    pub threads: usize,
    /// Most bytes the session may hold, where the caller has a budget.
    pub memory_budget_bytes: Option<u64>,
    /// Where a run's spans go.
    pub recorder: Recorder,
    /// Stops compiling, with [`cytoscope_graph::GraphError::Interrupted`].
    pub interrupt: Interrupt,
}

impl Default for CompileOptions {
    fn default() -> Self {
        Self {
            precision: Precision::F32,
            threads: 0,
            memory_budget_bytes: None,
            recorder: Recorder::totals_only(),
            interrupt: Interrupt::default(),
        }
    }
}

/// An operator that the engine's own kernels do not cover and the reference executor runs instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OpFallback {
    /// The operator.
    pub op: String,
    /// Nodes of that kind.
    pub count: usize,
}

/// What compiling found out.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CompileReport {
    /// Operators the reference executor runs.
    pub fallbacks: Vec<OpFallback>,
    /// Bytes of activations held while running.
    pub arena_bytes: u64,
    /// Bytes of weights held.
    pub weight_bytes: u64,
    /// Multiply-accumulates of one run.
    pub macs: u64,
    /// Instruction set or backend.
    pub backend: String,
}

/// Something that runs graphs on one device.
pub trait Engine: Send + Sync {
    /// A short name: `reference`, `cpu`, `cuda`, `wgpu`.
    fn name(&self) -> &'static str;

    /// The device it computes on.
    fn device(&self) -> &Device;

    /// Prepares a graph for inputs of these shapes, one for each graph input in order.
    ///
    /// # Errors
    /// [`EngineError::UnsupportedOp`] or [`EngineError::UnsupportedPrecision`] if another engine must be taken,
    /// [`EngineError::OutOfMemory`] before anything large is allocated, [`EngineError::Graph`] if the model is at fault.
    fn compile(
        &self,
        graph: &Graph,
        input_shapes: &[Vec<usize>],
        options: &CompileOptions,
    ) -> Result<Box<dyn Session>, EngineError>;
}

/// A compiled graph with its memory.
pub trait Session: Send {
    /// Runs once: inputs and outputs in the graph's order.
    ///
    /// # Errors
    /// [`EngineError::Input`] for inputs of other types or shapes than compiled for; [`EngineError::Device`] if the
    /// device fails.
    fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EngineError>;

    /// What compiling found out.
    fn report(&self) -> &CompileReport;
}

/// The input shapes of a compile call by input, for [`cytoscope_graph::infer_shapes`].
///
/// # Errors
/// [`EngineError::Input`] if the number of shapes is not the number of inputs.
pub fn shapes_by_input(graph: &Graph, shapes: &[Vec<usize>]) -> Result<Vec<(ValueId, Vec<usize>)>, EngineError> {
    if graph.inputs.len() != shapes.len() {
        return Err(EngineError::Input {
            name: "inputs".to_owned(),
            expected: format!("{} of them", graph.inputs.len()),
            got: shapes.len().to_string(),
        });
    }
    Ok(graph.inputs.iter().copied().zip(shapes.iter().cloned()).collect())
}
