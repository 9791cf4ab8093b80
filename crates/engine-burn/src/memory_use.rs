//! The device memory that this process holds, by the streams of its sessions.
//!
//! CubeCL has memory pools for the streams of a device, and `ComputeClient::memory_usage` reports their sizes. The thread
//! that submits work to the device answers between two launches, without waiting for the device itself.

use crate::Backend;
use crate::guard::guard;
use burn_tensor::StreamId;
use cubecl::Runtime;
use cubecl::cuda::CudaRuntime;
use cubecl::wgpu::WgpuRuntime;
use cytoscope_engine::DeviceId;
use cytoscope_profile::DeviceMemory;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

/// Number of memory pools of a device: CubeCL's default of `StreamingConfig::max_streams`, which is not changed here.
/// Streams whose numbers are equal modulo this number share a pool.
const POOLS: u64 = 128;

/// Owner of device memory: a session, and the tensors that it left on the device.
#[derive(Clone)]
struct Holder {
    backend: Backend,
    id: DeviceId,
    stream: StreamId,
    /// Whether the device has failed; shared by the session and its tensors, and dropped with the last of them.
    is_lost: Weak<AtomicBool>,
}

static HOLDERS: Mutex<Vec<Holder>> = Mutex::new(Vec::new());

/// Returns the holders that still exist.
fn holders() -> MutexGuard<'static, Vec<Holder>> {
    let mut all = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|holder| holder.is_lost.strong_count() > 0);
    all
}

/// Counts the memory of a session from now on.
pub(crate) fn watch(backend: &Backend, id: DeviceId, stream: StreamId, is_lost: Weak<AtomicBool>) {
    let backend = backend.clone();
    holders().push(Holder { backend, id, stream, is_lost });
}

/// Returns the memory that the sessions of this process and their tensors hold on all GPUs; `None` without sessions. May
/// be called from any thread; it waits until the device's thread has submitted the work that is queued.
pub fn device_memory() -> Option<DeviceMemory> {
    // Cloned, so that the lock is not held while the devices are asked: other threads create and drop sessions then.
    let all = holders().clone();
    let mut pools = BTreeSet::new();
    let used = all.iter().filter(|holder| pools.insert((holder.id, holder.stream.value % POOLS)));
    used.filter_map(Holder::memory).reduce(DeviceMemory::plus)
}

impl Holder {
    /// Returns the memory of the stream; `None` if the device has failed or everything was dropped.
    fn memory(&self) -> Option<DeviceMemory> {
        // Nothing is asked of a failed device.
        let is_lost = self.is_lost.upgrade()?;
        if is_lost.load(Ordering::Relaxed) {
            return None;
        }
        let asked = guard(self.id, || {
            let usage = self.stream.executes(|| match &self.backend {
                Backend::Cuda(device) => CudaRuntime::client(device).memory_usage(),
                Backend::Wgpu(device) => WgpuRuntime::client(device).memory_usage(),
            });
            Ok(usage.ok())
        });
        // A device that cannot answer reports its failure to the session that uses it.
        let usage = asked.ok().flatten()?;
        Some(DeviceMemory { allocated_bytes: usage.bytes_in_use, reserved_bytes: usage.bytes_reserved })
    }
}
