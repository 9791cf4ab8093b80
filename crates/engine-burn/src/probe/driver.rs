//! Asks the NVIDIA driver about its GPUs, in the order in which CUDA numbers them.

use super::listing::NumberedGpu;
use crate::guard::guard;
use cudarc::driver::result::device;
use cudarc::driver::{CudaContext, DriverError};
use cytoscope_engine::DeviceId;
use std::sync::Arc;

/// The GPUs as the driver describes them.
pub(super) struct DriverGpus {
    /// By their index in CUDA.
    pub all: Vec<NumberedGpu>,
    /// Kept until Burn uses the GPUs: opening one takes a fraction of a second.
    _contexts: Vec<Arc<CudaContext>>,
}

/// Initializes CUDA and returns the GPUs; `None` if that fails, which a test of the devices will explain. Opens the GPU with
/// index `only`, or all of them without it; for GPUs that are not opened, the driver states only the name.
pub(super) fn gpus(only: Option<usize>) -> Option<DriverGpus> {
    let listed = guard(DeviceId::Cuda(only.unwrap_or(0)), || Ok(list(only).ok()));
    listed.ok().flatten()
}

/// Initializes CUDA and returns the free memory of a GPU in bytes; `None` if the driver does not say.
pub(super) fn free_bytes(index: usize) -> Option<u64> {
    let asked = guard(DeviceId::Cuda(index), || {
        let memory = CudaContext::new(index).and_then(|context| context.mem_get_info());
        Ok(memory.ok().map(|(free, _)| free as u64))
    });
    asked.ok().flatten()
}

fn list(only: Option<usize>) -> Result<DriverGpus, DriverError> {
    let count = usize::try_from(CudaContext::device_count()?).unwrap_or(0);
    let (mut all, mut contexts) = (Vec::with_capacity(count), Vec::new());
    for index in 0..count {
        // A GPU that cannot be opened is described by what is known.
        let context = only.is_none_or(|only| only == index).then(|| CudaContext::new(index).ok()).flatten();
        all.push(described(index, context.as_deref()));
        contexts.extend(context);
    }
    Ok(DriverGpus { all, _contexts: contexts })
}

/// Describes a GPU, which is open if there is a context.
fn described(index: usize, context: Option<&CudaContext>) -> NumberedGpu {
    let name = i32::try_from(index).ok().and_then(|index| device::get(index).and_then(device::get_name).ok());
    let memory = context.and_then(|context| context.mem_get_info().ok());
    let total = context.and_then(|context| context.total_mem().ok());
    NumberedGpu {
        name,
        memory_bytes: total.map(|bytes| bytes as u64),
        free_bytes: memory.map(|(free, _)| free as u64),
        capability: context.and_then(|context| context.compute_capability().ok()).and_then(number),
    }
}

/// Returns a compute capability as one number, such as 75 for 7.5.
fn number((major, minor): (i32, i32)) -> Option<u32> {
    u32::try_from(major * 10 + minor).ok()
}
