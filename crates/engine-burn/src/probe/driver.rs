//! Asks the NVIDIA driver about its GPUs, in the order in which CUDA numbers them.

use crate::guard::guard;
use cudarc::driver::{CudaContext, DriverError};
use cytoscope_engine::DeviceId;
use std::sync::Arc;

/// A GPU as the driver describes it.
pub(super) struct DriverGpu {
    /// Compute capability, such as 75 for 7.5; `None` if the GPU was not opened.
    pub capability: Option<u32>,
    /// Kept until Burn uses the GPU: opening it takes a fraction of a second.
    _context: Option<Arc<CudaContext>>,
}

/// Returns the GPUs by their index in CUDA, which is initialized; `None` if that fails, and a test of the devices will say
/// why. Only the GPU of index `only` is opened, or all of them.
pub(super) fn gpus(only: Option<usize>) -> Option<Vec<DriverGpu>> {
    let listed = guard(DeviceId::Cuda(only.unwrap_or(0)), || Ok(list(only).ok()));
    listed.ok().flatten()
}

fn list(only: Option<usize>) -> Result<Vec<DriverGpu>, DriverError> {
    let count = usize::try_from(CudaContext::device_count()?).unwrap_or(0);
    let describe = |index: usize| {
        // A GPU that cannot be opened is described as far as possible.
        let context = only.is_none_or(|only| only == index).then(|| CudaContext::new(index).ok()).flatten();
        let capability = context.as_ref().and_then(|context| context.compute_capability().ok());
        DriverGpu { capability: capability.and_then(number), _context: context }
    };
    Ok((0..count).map(describe).collect())
}

/// Returns a compute capability as one number, such as 75 for 7.5.
fn number((major, minor): (i32, i32)) -> Option<u32> {
    u32::try_from(major * 10 + minor).ok()
}
