//! The engine of this machine's processor.
//!
//! A graph is folded and fused, its shapes made concrete, and lowered ([`mod@lower`]) to steps on blocked buffers that share
//! one planned arena ([`mod@arena`]); concatenations are written side by side without a copy, normalisation and
//! activations work in place. An operator without a kernel of ours is run by the graph room's reference executor, and
//! [`cytoscope_engine::CompileReport::fallbacks`] names it.
//!
//! Quantized graphs run on their integers where the precision asks for it: what lies between a quantize and a dequantize node
//! stays bytes, convolutions between them are summed exactly, and what a norm reads is kept in 16-bit floats. In `f32` the same
//! graph is computed in floats as it is written.
//!
//! Graphs of a training step ([`cytoscope_graph::training`]) are lowered apart ([`mod@train`]): their weights change at every run.
//!
//! It fails with [`cytoscope_engine::EngineError`], at compile time wherever that is possible.
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
mod execute;
mod lower;
mod places;
mod prepare;
mod reference;
mod session;
mod split;
mod step;
mod train;
mod window;

pub use reference::ReferenceEngine;

use cytoscope_engine::{CompileOptions, Device, DeviceId, Engine, EngineError, Precision, Session};
use cytoscope_graph::Graph;
use cytoscope_kernels::{Isa, IsaName};

/// The processor.
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
    /// The engine with the best instruction set of this machine (or the one `CYTOSCOPE_ISA` names).
    pub fn new() -> Self {
        Self::with_isa(Isa::detect())
    }

    /// The engine with one instruction set.
    pub fn with_isa(isa: Isa) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let sets: Vec<&str> =
            IsaName::ALL.into_iter().filter(|n| Isa::available(*n).is_some()).map(IsaName::as_str).collect();
        let sets = sets.join(", ");
        let device = Device {
            id: DeviceId::Cpu,
            name: processor_name(),
            memory_bytes: cytoscope_profile::available_bytes(),
            usable: true,
            reason: format!("always there: {cores} cores, {isa} kernels (the machine has {sets})"),
            precisions: vec![Precision::F32, Precision::Int8],
            driver: isa.to_string(),
        };
        Self { device, isa }
    }
}

fn processor_name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
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
            return Ok(Box::new(train::TrainSession::new(graph, input_shapes, self.isa, options)?));
        }
        let prepared = prepare::prepare(graph, input_shapes, &options.interrupt)?;
        let program = lower::lower(prepared, self.isa, integers, &options.interrupt)?;
        Ok(Box::new(session::CpuSession::new(program, self.isa, options)?))
    }
}
