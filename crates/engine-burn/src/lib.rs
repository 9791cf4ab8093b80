//! The GPU engine: runs graphs through Burn on CUDA or wgpu, chosen at run time.
//!
//! The crate owns the lowering of a graph to steps on rank-5 device tensors (`plan`), their execution generic over
//! Burn's `Backend` (`exec`), and its own kernels, which run whole networks if every operator has one (`kernels`). It
//! also owns sessions, whose weights are uploaded once, and [`probe`], which lists GPUs and the reason why one cannot
//! be used. Probing runs in child processes because drivers may crash. Burn's kernel timings are stored in the user's
//! cache folder ([`tuning_folder`]). Inference never shares a wgpu device with the window.
//!
//! A device thread that panics fails the session that waits for it: Burn swallows such panics and continues with wrong
//! results. Failures are reported as [`cytoscope_engine::EngineError`]: an unsupported operator is named together with
//! its node, so that the caller can use another engine; panics of Burn and drivers become device or out-of-memory
//! errors, with a sentence that says what to do.
//!
//! Training steps (gradients, losses, optimizers) are lowered like inference; code that only training needs is in the
//! `train` modules.
//!
//! Computation is in f32, and in f16 or bf16 where a graph casts to these types (mixed precision). On CUDA, sessions in
//! [`Precision::Tf32`] convolve on tensor cores, which round the factors to TF32 (`kernels::tiled`). Sessions in
//! [`Precision::F16`] or [`Precision::Bf16`] cast the inputs of convolutions, or store all values between steps in 16 bits;
//! norms and softmax are computed in f32. A device offers the precisions that its tensor cores have, that CubeCL has
//! registered, and whose kernels can be compiled with the installed headers.
//!
//! ```
//! use cytoscope_engine::{Device, DeviceId, EngineError};
//! use cytoscope_engine_burn::BurnEngine;
//! let device = Device {
//!     id: DeviceId::Wgpu(0),
//!     name: "a GPU".into(),
//!     memory_bytes: None,
//!     free_bytes: None,
//!     usable: false,
//!     reason: "no Vulkan driver".into(),
//!     shortcomings: vec![],
//!     precisions: vec![],
//!     driver: String::new(),
//! };
//! let refused = BurnEngine::open(&device);
//! assert!(matches!(refused, Err(EngineError::Device { device: DeviceId::Wgpu(0), .. })));
//! ```
#![forbid(unsafe_code)]

mod adapters;
mod exec;
mod explain;
mod form;
mod guard;
mod hardware;
mod kernels;
mod memory_use;
mod plan;
mod prepare;
pub mod probe;
mod session;
mod transfer;
mod tuning;

pub use memory_use::device_memory;
pub use tuning::{KERNELS, cache_folder, set_known_devices, tuning_folder};

use burn_cuda::{Cuda, CudaDevice};
use burn_tensor::DType;
use burn_tensor::backend::DTypeUsage;
use burn_wgpu::{Wgpu, WgpuDevice};
use cubecl::Runtime;
use cubecl::cuda::CudaRuntime;
use cytoscope_engine::{CompileOptions, Device, DeviceId, Engine, EngineError, Precision, Session};
use cytoscope_graph::{ElementType, Graph};
use cytoscope_storage::message::Message;
use kernels::{DeviceBackend, DirectCuda, DirectWgpu, FactorType};
use session::DeviceSession;
use std::path::Path;

/// Burn backend and device of an engine.
#[derive(Debug, Clone)]
enum Backend {
    Cuda(CudaDevice),
    Wgpu(WgpuDevice),
}

/// The engine of one GPU.
#[derive(Debug)]
pub struct BurnEngine {
    device: Device,
    backend: Backend,
    /// Folder of Burn's caches.
    cache: &'static Path,
    /// Whether f32 sessions use the tiled kernel, without matrix units.
    is_tiled: bool,
}

impl BurnEngine {
    /// Opens a device that [`probe`] reported as usable.
    ///
    /// # Errors
    /// [`EngineError::Device`] if the device is not usable, no longer exists, or is now another one;
    /// [`EngineError::BadDevice`] for the CPU.
    pub fn open(device: &Device) -> Result<Self, EngineError> {
        // Advice about missing parts of CUDA names a command in its text, as the reasons of listed devices do.
        let failed = |reason: String| EngineError::Device { device: device.id, reason: Message::parse(reason) };
        if !device.usable {
            return Err(EngineError::Device { device: device.id, reason: device.reason_message() });
        }
        let (cache, backend) = match device.id {
            DeviceId::Cpu => return Err(EngineError::BadDevice { text: device.id.to_string() }),
            DeviceId::Cuda(index) => {
                // If CUDA is initialized while a component is missing, it stays unusable for the rest of the process.
                probe::cuda_parts().map_err(failed)?;
                (tuning::configure(device), Backend::Cuda(CudaDevice::new(index)))
            }
            DeviceId::Wgpu(index) => {
                let cache = tuning::configure(device);
                let opened = guard::guard(device.id, || Ok(adapters::open(index, device)))?;
                (cache, Backend::Wgpu(opened.map_err(failed)?))
            }
        };
        Ok(Self { device: device.clone(), backend, cache, is_tiled: false })
    }

    /// Returns the engine with f32 convolutions in the tiled kernel, which then multiplies without matrix units. This is for
    /// tests of its code on devices without matrix units; it is slower than the usual kernel.
    #[doc(hidden)]
    #[must_use]
    pub fn with_tiled_convolutions(self) -> Self {
        Self { is_tiled: true, ..self }
    }
}

impl BurnEngine {
    /// Returns a new session, whose memory is counted by [`device_memory`].
    fn counted<B: DeviceBackend>(&self, session: DeviceSession<B>) -> Box<dyn Session> {
        let (stream, is_lost) = session.memory_holder();
        memory_use::watch(&self.backend, self.device.id, stream, is_lost);
        Box::new(session)
    }

    /// Returns the type to which convolutions round their factors.
    fn factor_type(&self, precision: Precision) -> Option<FactorType> {
        match (precision, &self.backend) {
            (Precision::F32, _) => self.is_tiled.then_some(FactorType::F32),
            (precision, Backend::Cuda(_)) => factor_type(precision),
            (_, Backend::Wgpu(_)) => None,
        }
    }

    /// Plans a graph for a precision: with the kernels of this crate if they suffice, otherwise on Burn's tensors.
    fn program(
        &self,
        graph: &Graph,
        input_shapes: &[Vec<usize>],
        precision: Precision,
    ) -> Result<plan::Program, EngineError> {
        let half = half_type(precision);
        let factor_type = self.factor_type(precision);
        let kernels = plan::Kernels { factor_type, half };
        // The kernels read weights of 32 bits and store the values between them in 16.
        let wide = prepare::prepare(graph, input_shapes, None)?;
        let direct = plan::plan(&wide, self.name(), Some(kernels));
        match direct {
            Ok(program) if program.is_direct || half.is_none() => Ok(program),
            Err(error) if half.is_none() => Err(error),
            _ => plan::plan(&prepare::prepare(graph, input_shapes, half)?, self.name(), None),
        }
    }
}

/// Returns the number of convolutions and weight gradients that this process has started with kernels for matrix units.
#[doc(hidden)]
pub fn tiled_convolutions() -> u64 {
    kernels::launches()
}

/// Returns the type to which matrix units round the factors of convolutions in a precision; `None` for precisions that do not
/// use them.
fn factor_type(precision: Precision) -> Option<FactorType> {
    match precision {
        Precision::Tf32 => Some(FactorType::Tf32),
        Precision::F16 => Some(FactorType::F16),
        Precision::Bf16 => Some(FactorType::Bf16),
        Precision::F32 | Precision::Int8 => None,
    }
}

/// Returns whether a device that was opened can compute in a precision. Every device computes in f32; other precisions need
/// matrix units that CubeCL has registered for a CUDA device. Without such units, they would not be faster than f32: on wgpu,
/// convolutions of 16-bit floats are computed in 32 bits (see [`exec`]).
pub(crate) fn is_registered(id: DeviceId, precision: Precision) -> bool {
    let (DeviceId::Cuda(index), Some(factor_type)) = (id, factor_type(precision)) else {
        return precision == Precision::F32;
    };
    let registered =
        guard::guard(id, || Ok(factor_type.is_registered(CudaRuntime::client(&CudaDevice::new(index)).properties())));
    // A device whose properties cannot be read computes in 32 bits.
    registered.unwrap_or(false)
}

/// Returns the 16-bit type of a precision, if it has one.
fn half_type(precision: Precision) -> Option<ElementType> {
    match precision {
        Precision::F16 => Some(ElementType::F16),
        Precision::Bf16 => Some(ElementType::BF16),
        Precision::F32 | Precision::Tf32 | Precision::Int8 => None,
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

    fn training_precisions(&self) -> Vec<Precision> {
        let mut all = self.device.precisions.clone();
        if let Backend::Wgpu(device) = &self.backend {
            // Tensors are stored in 16 bits where the device can do that.
            let usage = guard::guard(self.device.id, || {
                Ok(<Wgpu as burn_tensor::backend::Backend>::dtype_usage(device, DType::F16))
            });
            all.extend(usage.is_ok_and(|usage| usage.is_superset(DTypeUsage::general())).then_some(Precision::F16));
        }
        all
    }

    fn compile(
        &self,
        graph: &Graph,
        input_shapes: &[Vec<usize>],
        options: &CompileOptions,
    ) -> Result<Box<dyn Session>, EngineError> {
        if !self.device.precisions.contains(&options.precision) {
            return Err(EngineError::unsupported_precision(self, options.precision, &self.device.precisions));
        }
        let program = self.program(graph, input_shapes, options.precision)?;
        let (device, cache) = (&self.device, self.cache);
        let wide = self.factor_type(options.precision).filter(|factor_type| factor_type.is_wide());
        Ok(match &self.backend {
            Backend::Cuda(at) if program.is_direct => {
                self.counted(DeviceSession::<DirectCuda>::new(program, at, device, cache, options, wide)?)
            }
            Backend::Wgpu(at) if program.is_direct => {
                self.counted(DeviceSession::<DirectWgpu>::new(program, at, device, cache, options, wide)?)
            }
            Backend::Cuda(at) => self.counted(DeviceSession::<Cuda>::new(program, at, device, cache, options, wide)?),
            Backend::Wgpu(at) => self.counted(DeviceSession::<Wgpu>::new(program, at, device, cache, options, wide)?),
        })
    }
}
