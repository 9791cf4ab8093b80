//! The CPU engine.
//!
//! Compiling infers all shapes, folds and fuses nodes, and lowers the graph ([`mod@lower`]) to steps on blocked buffers
//! that share one planned arena ([`mod@arena`]). The parts of a concatenation are written directly into its buffer, and
//! normalizations and activations work in place. An operator without a kernel is run by the reference executor
//! (`crates/reference`) and listed in [`cytoscope_engine::CompileReport::fallbacks`].
//!
//! In `int8`, quantized graphs run on integers: tensors between a QuantizeLinear and a DequantizeLinear node stay
//! bytes, convolutions between them accumulate exactly in 32-bit integers, and their outputs are stored as 16-bit
//! floats where a normalization follows. In `f32`, the same graph is computed in floats.
//!
//! Graphs of a training step are planned separately ([`mod@train`]), because their weights change at every run; their
//! steps, arena and session are the same, and gradients are steps like any other ([`mod@steps`]).
//!
//! A stack can also pass through a network once, slab by slab along Z, instead of in overlapping tiles
//! ([`cytoscope_engine::Engine::plan_rolling`], [`mod@rolling`]).
//!
//! Failures are reported as [`cytoscope_engine::EngineError`], at compile time wherever possible.
//!
//! ```
//! use cytoscope_engine::{CompileOptions, Engine};
//! use cytoscope_engine_cpu::CpuEngine;
//! use cytoscope_graph::{Activation, Dim, ElementType, Graph, Op, Tensor};
//! let mut graph = Graph::new("rectify");
//! let x = graph.add_input("x", ElementType::F32, vec![Dim::Free("n".into())]);
//! let y = graph.push("y", Op::Activation(Activation::Relu), &[Some(x)]);
//! graph.outputs.push(y);
//! let mut session = CpuEngine::new().compile(&graph, &[vec![3]], &CompileOptions::default())?;
//! let y = session.run(&[Tensor::vector(vec![-1.0f32, 0.0, 2.0])])?;
//! assert_eq!(y[0].as_f32(), Some(&[0.0, 0.0, 2.0][..]));
//! # Ok::<(), cytoscope_engine::EngineError>(())
//! ```
#![forbid(unsafe_code)]

mod arena;
mod concat;
mod context;
mod emit;
mod lower;
mod optimizer;
mod placement;
mod prepare;
mod reference;
mod resize;
mod rolling;
mod session;
mod split;
mod step;
mod steps;
mod train;
mod window;

pub use reference::ReferenceEngine;

use cytoscope_engine::{
    CompileOptions, Device, DeviceId, Engine, EngineError, NotRolling, Precision, RollingPlan, Session,
};
use cytoscope_graph::Graph;
use cytoscope_kernels::{Isa, IsaName};

/// Returns the bytes of the arenas of all sessions in this process: their activations.
pub fn arena_bytes() -> u64 {
    cytoscope_kernels::live_arena_bytes()
}

/// The engine that runs graphs on the CPU.
pub struct CpuEngine {
    device: Device,
    isa: Isa,
}

impl Default for CpuEngine {
    fn default() -> Self {
        Self::new()
    }
}

impl CpuEngine {
    /// Creates the engine for the best available instruction set, or the one named by `CYTOSCOPE_ISA`.
    pub fn new() -> Self {
        Self::with_isa(Isa::detect())
    }

    /// Creates the engine for a given instruction set.
    pub fn with_isa(isa: Isa) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let sets: Vec<&str> =
            IsaName::ALL.into_iter().filter(|n| Isa::available(*n).is_some()).map(IsaName::as_str).collect();
        let sets = sets.join(", ");
        let device = Device {
            id: DeviceId::Cpu,
            name: cytoscope_profile::cpu_name().unwrap_or(std::env::consts::ARCH).to_owned(),
            memory_bytes: cytoscope_profile::available_bytes(),
            free_bytes: None,
            usable: true,
            reason: format!("always available: {cores} cores, {isa} kernels (this CPU supports {sets})"),
            precisions: vec![Precision::F32, Precision::Int8],
            driver: isa.to_string(),
        };
        Self { device, isa }
    }
}

impl Engine for CpuEngine {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn compile(
        &self,
        graph: &Graph,
        input_shapes: &[Vec<usize>],
        options: &CompileOptions,
    ) -> Result<Box<dyn Session>, EngineError> {
        let integers = match options.precision {
            Precision::F32 => false,
            Precision::Int8 => true,
            other => {
                return Err(EngineError::UnsupportedPrecision {
                    engine: "cpu",
                    precision: other.to_string(),
                    has: "f32 and int8".to_owned(),
                });
            }
        };
        if train::is_step(graph) {
            if integers {
                return Err(EngineError::NotQuantized { engine: "cpu" });
            }
            let program = train::compile(graph, input_shapes, self.isa)?;
            return Ok(Box::new(session::CpuSession::new(program, self.isa, options)?));
        }
        let prepared = prepare::prepare(graph, input_shapes, &options.interrupt)?;
        let program = lower::lower(prepared, self.isa, integers, &options.interrupt)?;
        Ok(Box::new(session::CpuSession::new(program, self.isa, options)?))
    }
    fn plan_rolling(
        &self,
        graph: &Graph,
        shape: &[usize],
        options: &CompileOptions,
    ) -> Result<Box<dyn RollingPlan>, NotRolling> {
        Ok(Box::new(rolling::plan(self.isa, graph, shape, options)?))
    }
}
