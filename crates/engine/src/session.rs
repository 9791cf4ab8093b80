//! The [`Engine`] and [`Session`] traits, and what compiling takes and returns.

use crate::{Device, DeviceId, EngineError, NotRolling, Precision, ResidentSession, RollingPlan, SlabSession};
use cytoscope_graph::{Graph, Interrupt, Tensor, ValueId};
use cytoscope_profile::{DeviceTraffic, Recorder};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// Work that makes the first run of a session slower than the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preparation {
    /// Several kernels are timed for each step, which takes up to a minute.
    Tuning,
    /// Kernels are compiled, which takes some seconds.
    Compiling,
}

/// The callback of a [`TuningListener`].
type OnPreparation = dyn Fn(DeviceId, Preparation, Duration) + Send + Sync;

/// Receives the progress of preparing a device for the first run of a session. Clones share the same callback.
#[derive(Clone, Default)]
pub struct TuningListener(Option<Arc<OnPreparation>>);

impl TuningListener {
    /// Calls `callback` about once a second with the device and the time since the start: when tuning starts and until it ends,
    /// and while kernels are compiled if that takes longer than a second. The time is zero in the first call of tuning only.
    /// The calls come from threads other than the session's.
    pub fn new(callback: impl Fn(DeviceId, Preparation, Duration) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(callback)))
    }

    /// Reports that `device` has been prepared for this time so far.
    pub fn notify(&self, device: DeviceId, preparation: Preparation, elapsed: Duration) {
        if let Some(callback) = &self.0 {
            callback(device, preparation, elapsed);
        }
    }
}

/// Options for compiling a model.
#[derive(Clone)]
pub struct CompileOptions {
    /// Number format to compute in.
    pub precision: Precision,
    /// Number of threads (CPU only); 0 uses all cores.
    pub threads: usize,
    /// Upper limit on the session's memory in bytes; `None` if only the device's memory limits it.
    pub memory_budget_bytes: Option<u64>,
    /// Receives the spans of each run.
    pub recorder: Recorder,
    /// Cancels compiling, and runs on the CPU between two steps; they fail with
    /// [`cytoscope_graph::GraphError::Interrupted`].
    pub interrupt: Interrupt,
    /// Receives the progress of preparing the device for the first run of the session.
    pub tuning: TuningListener,
}

impl Default for CompileOptions {
    fn default() -> Self {
        Self {
            precision: Precision::F32,
            threads: 0,
            memory_budget_bytes: None,
            recorder: Recorder::totals_only(),
            interrupt: Interrupt::default(),
            tuning: TuningListener::default(),
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
    /// Whether the operator counts as fast enough without a kernel. This depends on the operator alone: networks usually apply
    /// it only to their input, which has few channels, but that is not checked.
    #[serde(skip)]
    pub is_cheap: bool,
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

    /// Returns the precisions of training steps: by default those that [`Device::training_precisions`] states.
    fn training_precisions(&self) -> Vec<Precision> {
        self.device().training_precisions()
    }

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

    /// Plans one pass of a stack of shape N, C, Z, Y, X through a network, with the fastest slabs and bands within the
    /// memory budget of `options`. The results are identical to those of a session for the whole stack.
    ///
    /// # Errors
    /// [`NotRolling`], with the reason, if the network cannot be run in one pass or the budget is too small. Engines
    /// without passes refuse every network.
    fn plan_rolling(
        &self,
        _graph: &Graph,
        _shape: &[usize],
        _options: &CompileOptions,
    ) -> Result<Box<dyn RollingPlan>, NotRolling> {
        Err(NotRolling::Device { engine: self.name() })
    }
}

/// A compiled graph and the memory it runs in.
pub trait Session: Send {
    /// Runs the graph once. Inputs and outputs are in graph order.
    ///
    /// # Errors
    /// [`EngineError::Input`] if an input's type or shape is not the compiled one; [`EngineError::Device`] if the
    /// device fails; [`cytoscope_graph::GraphError::Interrupted`] if the interrupt of the options is set, after which the
    /// session can still be used.
    fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EngineError>;

    /// Returns the memory and work of the compiled graph, and its operators without a kernel.
    fn report(&self) -> &CompileReport;

    /// Returns the memory limit in bytes of a session that was compiled again with a lower limit, because the device had run
    /// out of memory; `None` (the default) for all others.
    fn lowered_limit_bytes(&self) -> Option<u64> {
        None
    }

    /// Returns what has passed between the host and the device since the session was compiled; `None` (the default) for
    /// engines that compute in the host's memory.
    fn traffic(&self) -> Option<DeviceTraffic> {
        None
    }

    /// Returns the session as one whose inputs and outputs may stay in device memory; `None` (the default) for engines
    /// that compute in the host's memory.
    fn resident(&mut self) -> Option<&mut dyn ResidentSession> {
        None
    }

    /// Returns the session as one that cuts tiles out of a slab in device memory; `None` (the default) if it cannot.
    fn slabs(&mut self) -> Option<&mut dyn SlabSession> {
        None
    }
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
