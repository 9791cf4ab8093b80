//! The engine of graphics processors: one lowering, two Burn backends (CUDA and wgpu), chosen at run time.
//!
//! This room owns the lowering of a graph to steps on rank-5 device tensors (`plan`), their execution generic over Burn's
//! `Backend` (`exec`), sessions whose weights are uploaded once, and [`probe`]: what graphics devices there are and why one
//! cannot be used, found out in child processes because drivers do crash. What Burn measures about its kernels is kept in
//! the user's cache folder ([`tuning_folder`]). Inference runs on a device of its own, never on that of a window.
//!
//! It fails with [`cytoscope_engine::EngineError`]: an operator it lacks is named with its node, so that the model goes to
//! another engine; whatever Burn or a driver panics about comes back as a failed (or full) device.
//!
//! Steps of training (gradients, losses, optimizers) are lowered as inference is; what only they need lies in the `train` modules.
//!
//! Computing is in f32, and in f16 or bf16 where a graph casts to them (mixed precision). On NVIDIA GPUs with tensor cores Burn's tuning may pick convolution and matrix kernels that round
//! their factors to TF32.
//!
//! ```
//! use cytoscope_engine::{Device, DeviceId, EngineError};
//! use cytoscope_engine_burn::BurnEngine;
//! let device = Device {
//!     id: DeviceId::Wgpu(0),
//!     name: "a GPU".into(),
//!     memory_bytes: None,
//!     usable: false,
//!     reason: "no Vulkan driver".into(),
//!     precisions: vec![],
//!     driver: String::new(),
//! };
//! let refused = BurnEngine::open(&device);
//! assert!(matches!(refused, Err(EngineError::Device { device: DeviceId::Wgpu(0), .. })));
//! ```
#![forbid(unsafe_code)]

mod adapters;
mod exec;
mod form;
mod guard;
mod plan;
mod prepare;
pub mod probe;
mod session;
mod tuning;

pub use tuning::tuning_folder;

use burn_cuda::{Cuda, CudaDevice};
use burn_wgpu::{Wgpu, WgpuDevice};
use cytoscope_engine::{CompileOptions, Device, DeviceId, Engine, EngineError, Precision, Session};
use cytoscope_graph::Graph;

/// The backend of an engine, with its device.
#[derive(Debug)]
enum Backend {
    Cuda(CudaDevice),
    Wgpu(WgpuDevice),
}

/// One graphics device.
#[derive(Debug)]
pub struct BurnEngine {
    device: Device,
    backend: Backend,
}

impl BurnEngine {
    /// The engine of a device that [`probe`] found usable.
    ///
    /// # Errors
    /// [`EngineError::Device`] if the device is not usable, is gone, or is another one by now; [`EngineError::BadDevice`] for
    /// the processor.
    pub fn open(device: &Device) -> Result<Self, EngineError> {
        let failed = |reason: String| EngineError::Device { device: device.id, reason };
        if !device.usable {
            return Err(failed(device.reason.clone()));
        }
        let backend = match device.id {
            DeviceId::Cpu => return Err(EngineError::BadDevice { text: device.id.to_string() }),
            DeviceId::Cuda(index) => {
                // Touching CUDA where a part of it is missing ends the process' CUDA for good.
                probe::cuda_parts().map_err(failed)?;
                tuning::configure();
                Backend::Cuda(CudaDevice::new(index))
            }
            DeviceId::Wgpu(index) => {
                tuning::configure();
                let opened = guard::guard(device.id, || Ok(adapters::open(index, device)))?;
                Backend::Wgpu(opened.map_err(failed)?)
            }
        };
        Ok(Self { device: device.clone(), backend })
    }
}

impl Engine for BurnEngine {
    fn name(&self) -> &'static str {
        match self.backend {
            Backend::Cuda(_) => "cuda",
            Backend::Wgpu(_) => "wgpu",
        }
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
        if options.precision != Precision::F32 {
            return Err(EngineError::UnsupportedPrecision {
                engine: self.name(),
                precision: options.precision.to_string(),
                has: Precision::F32.to_string(),
            });
        }
        let graph = prepare::prepare(graph, input_shapes)?;
        let program = plan::plan(&graph, self.name())?;
        Ok(match &self.backend {
            Backend::Cuda(at) => Box::new(session::DeviceSession::<Cuda>::new(program, at, &self.device, options)?),
            Backend::Wgpu(at) => Box::new(session::DeviceSession::<Wgpu>::new(program, at, &self.device, options)?),
        })
    }
}
