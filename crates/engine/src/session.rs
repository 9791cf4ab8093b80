//! The [`Engine`] and [`Session`] traits, and what compiling takes and returns.

use crate::{Device, EngineError, Precision};
use cytoscope_graph::{Graph, Interrupt, Tensor, ValueId};
use cytoscope_profile::Recorder;
use serde::Serialize;

/// Options for compiling a model.
#[derive(Clone)]
pub struct CompileOptions {
    /// Number format to compute in.
    pub precision: Precision,
    /// Number of threads (CPU only); 0 uses all cores.
    pub threads: usize,
    /// Upper limit on the session's memory in bytes; `None` for no limit besides the device's memory.
    pub memory_budget_bytes: Option<u64>,
    /// Receives the spans of each run.
    pub recorder: Recorder,
    /// Cancels compiling, which then fails with [`cytoscope_graph::GraphError::Interrupted`].
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

/// An operator that the engine has no kernel for and that the reference executor runs instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OpFallback {
    /// ONNX name of the operator.
    pub op: String,
    /// Number of nodes with this operator.
    pub count: usize,
}

/// Properties of a compiled graph: memory, work, and operators without a kernel.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CompileReport {
    /// Operators that the reference executor runs.
    pub fallbacks: Vec<OpFallback>,
    /// Bytes of the arena that holds all activations.
    pub arena_bytes: u64,
    /// Bytes of the packed weights and other constants.
    pub weight_bytes: u64,
    /// Multiply-accumulate operations of one run.
    pub macs: u64,
    /// Instruction set (CPU) or backend (GPU).
    pub backend: String,
}

/// Runs graphs on one device.
pub trait Engine: Send + Sync {
    /// Returns the engine's short name: `reference`, `cpu`, `cuda`, `wgpu`.
    fn name(&self) -> &'static str;

    /// Returns the device that the engine computes on.
    fn device(&self) -> &Device;

    /// Compiles a graph for the given input shapes, one per graph input, in graph order.
    ///
    /// # Errors
    /// [`EngineError::UnsupportedOp`] or [`EngineError::UnsupportedPrecision`] if the engine cannot run the graph;
    /// [`EngineError::OutOfMemory`], checked before anything large is allocated; [`EngineError::Graph`] if the model is
    /// invalid.
    fn compile(
        &self,
        graph: &Graph,
        input_shapes: &[Vec<usize>],
        options: &CompileOptions,
    ) -> Result<Box<dyn Session>, EngineError>;
}

/// A compiled graph and the memory it runs in.
pub trait Session: Send {
    /// Runs the graph once. Inputs and outputs are in graph order.
    ///
    /// # Errors
    /// [`EngineError::Input`] if an input's type or shape is not the compiled one; [`EngineError::Device`] if the
    /// device fails.
    fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EngineError>;

    /// Returns the compile report.
    fn report(&self) -> &CompileReport;
}

/// Pairs each graph input with its shape, as shape inference takes them.
///
/// # Errors
/// [`EngineError::Input`] if there is not exactly one shape per input.
pub fn shapes_by_input(graph: &Graph, shapes: &[Vec<usize>]) -> Result<Vec<(ValueId, Vec<usize>)>, EngineError> {
    if graph.inputs.len() != shapes.len() {
        return Err(EngineError::Input {
            name: "inputs".to_owned(),
            expected: format!("{} shapes", graph.inputs.len()),
            got: shapes.len().to_string(),
        });
    }
    Ok(graph.inputs.iter().copied().zip(shapes.iter().cloned()).collect())
}
