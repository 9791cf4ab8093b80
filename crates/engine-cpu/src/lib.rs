//! The CPU engine.
//!
//! Compiling infers all shapes, folds and fuses nodes ([`mod@prepare`]), decides which nodes run on kernels ([`mod@plan`]),
//! and lowers them to steps ([`mod@steps`]) on blocked buffers that share one planned arena ([`mod@lower`]). The parts of a
//! concatenation are written directly into its buffer, and normalizations and activations work in place. An operator
//! without a kernel is run by the reference executor (`crates/reference`) and listed in
//! [`cytoscope_engine::CompileReport::fallbacks`].
//!
//! In `int8`, quantized graphs run on integers: tensors between a QuantizeLinear and a DequantizeLinear node stay
//! bytes, convolutions between them accumulate exactly in 32-bit integers, and their outputs are stored as 16-bit
//! floats where a normalization follows. In `f32`, the same graph is computed in floats.
//!
//! On CPUs with instructions for it, `bf16` rounds the factors of convolutions and accumulates in 32 bits; all values stay
//! 32-bit floats. In `int8`, convolutions that are not quantized are computed in this way.
//!
//! Graphs of a training step are compiled in the same way: gradients are steps like any other. [`mod@purpose`] lists what
//! differs, such as that weights are packed at every run and that values are kept for the backward pass.
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

mod context;
mod lower;
mod plan;
mod prepare;
mod program;
mod purpose;
mod reference;
mod rolling;
mod session;
mod split;
mod step;
mod steps;
mod window;

pub use reference::ReferenceEngine;

use cytoscope_engine::{
    CompileOptions, Device, DeviceId, Engine, EngineError, NotRolling, Precision, RollingPlan, Session,
};
use cytoscope_graph::{Graph, GraphLimits};
use cytoscope_kernels::{Isa, IsaName};
use cytoscope_profile::MachinePeak;
use purpose::Purpose;

/// Returns the bytes of the arenas of all sessions in this process: their activations.
pub fn arena_bytes() -> u64 {
    cytoscope_kernels::live_arena_bytes()
}

/// Returns memory that was freed, such as that of a session and of its threads, to the operating system.
pub fn return_free_memory() {
    cytoscope_kernels::return_free_memory();
}

/// Bytes of the arrays that memory bandwidth is measured with: more than the caches of most CPUs hold.
const BANDWIDTH_BYTES: u64 = 384 << 20;

/// Measures the peak rates of this machine with this many threads (0 for all cores): multiply-accumulates of the
/// instruction set that the engine uses, and memory bandwidth. It takes an eighth of the available
/// memory at most.
pub fn measure_peak(threads: usize) -> MachinePeak {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if threads == 0 { cores } else { threads };
    let isa = Isa::detect();
    let available_bytes = cytoscope_profile::available_bytes().unwrap_or(u64::MAX);
    let total_bytes = usize::try_from(BANDWIDTH_BYTES.min(available_bytes / 8)).unwrap_or(usize::MAX);
    let peak = cytoscope_kernels::peak::measure_threads(isa, threads);
    MachinePeak {
        kernels: isa.to_string(),
        threads,
        // A multiply-accumulate is two operations.
        float_macs_per_sec: peak.float / 2.0,
        int8_macs_per_sec: (peak.bytes > 0.0).then_some(peak.bytes / 2.0),
        bf16_macs_per_sec: (peak.bf16 > 0.0).then_some(peak.bf16 / 2.0),
        memory_bytes_per_sec: cytoscope_kernels::peak::memory_bytes_per_sec(threads, total_bytes),
    }
}

/// Returns the instruction set that the engine uses on this machine, as [`MachinePeak::kernels`] names it.
pub fn kernels_name() -> String {
    Isa::detect().to_string()
}

/// Optimizations of inference that can be switched off one by one, to measure what each brings. Results differ by rounding
/// only. One pass over a stack and training steps always use all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Optimizations {
    /// Rewrites of the graph: batch norms are folded into convolutions, activations and group norms that are written as
    /// several operators are recognized, identities are removed.
    pub rewrites: bool,
    /// Activations and residuals are computed inside the convolution before them. Steps on 8-bit integers are always
    /// fused.
    pub fusion: bool,
    /// Layout of the arena: steps work in place, and the parts of a concatenation are written into its buffer.
    pub shared_buffers: bool,
}

impl Optimizations {
    /// Returns no optimizations.
    pub fn none() -> Self {
        Self { rewrites: false, fusion: false, shared_buffers: false }
    }
}

impl Default for Optimizations {
    /// Returns all optimizations.
    fn default() -> Self {
        Self { rewrites: true, fusion: true, shared_buffers: true }
    }
}

/// The kernels of this build. Part of the key of times that are measured with them and kept between runs.
pub const KERNELS: &str = concat!("cytoscope ", env!("CARGO_PKG_VERSION"), ", CPU");

/// The engine that runs graphs on the CPU.
pub struct CpuEngine {
    device: Device,
    isa: Isa,
    optimizations: Optimizations,
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
        let ignored = Isa::ignored().map(|name| format!("; CYTOSCOPE_ISA={name} is ignored")).unwrap_or_default();
        let mut precisions = vec![Precision::F32, Precision::Int8];
        if isa.multiplies_bf16() {
            precisions.insert(1, Precision::Bf16);
        }
        let device = Device {
            id: DeviceId::Cpu,
            name: cytoscope_profile::cpu_name().unwrap_or(std::env::consts::ARCH).to_owned(),
            memory_bytes: cytoscope_profile::available_bytes(),
            free_bytes: None,
            usable: true,
            reason: format!("always available: {cores} cores, {isa} kernels (this CPU supports {sets}){ignored}"),
            shortcomings: Vec::new(),
            precisions,
            driver: isa.to_string(),
        };
        Self { device, isa, optimizations: Optimizations::default() }
    }

    /// Creates the engine for the instruction set of this name, as in `CYTOSCOPE_ISA`; `None` if the name is unknown or
    /// this CPU lacks the instruction set.
    pub fn for_kernels(name: &str) -> Option<Self> {
        Isa::named(name).map(Self::with_isa)
    }

    /// Returns the engine with these optimizations only.
    pub fn with_optimizations(self, optimizations: Optimizations) -> Self {
        Self { optimizations, ..self }
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
        let purpose = Purpose::of(self.isa, graph, options.precision, self.optimizations)?;
        let prepared = prepare::prepare(graph, input_shapes, purpose, &GraphLimits::default(), &options.interrupt)?;
        let program = lower::lower(prepared, self.isa, &options.interrupt)?;
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
