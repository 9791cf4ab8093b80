//! Number of data workers and of prefetched patches of a training run.

use crate::config::TrainConfig;
use cytoscope_engine::DeviceId;
use cytoscope_training_data::limits::MAX_PREFETCH;

/// Cores for each data worker if the CPU also computes the steps.
const CORES_PER_WORKER: usize = 4;
/// Maximum number of data workers that are started without a request.
const MAX_DEFAULT_WORKERS: usize = 8;
/// Batches that are prepared in advance by one data worker.
const PREFETCHED_BATCHES: usize = 4;
/// Minimum number of patches that are prepared in advance.
const MIN_PREFETCH: usize = 8;
/// Patches that are prepared in advance for each data worker after the first: the one that it prepares, and one more.
const PREFETCH_PER_WORKER: usize = 2;

/// Threads that prepare patches, and how far they may be ahead of the training steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DataWorkers {
    /// Number of threads that prepare patches.
    pub workers: usize,
    /// Maximum number of patches that are prepared in advance.
    pub prefetch: usize,
}

impl DataWorkers {
    /// Returns the data workers of a run on this machine, whose steps are computed on `device` by `threads` threads (0
    /// for all cores) from `batch` patches at once.
    pub(crate) fn of(config: &TrainConfig, device: DeviceId, threads: usize, batch: usize) -> Self {
        let available = std::thread::available_parallelism().map_or(1, usize::from);
        let cores = if threads == 0 { available } else { threads.min(available) };
        Self::on(config, device, cores, batch)
    }

    fn on(config: &TrainConfig, device: DeviceId, cores: usize, batch: usize) -> Self {
        let workers = config.workers.unwrap_or_else(|| default_workers(device, cores));
        let prefetch = config.prefetch.unwrap_or_else(|| {
            let one_worker = batch.saturating_mul(PREFETCHED_BATCHES).max(MIN_PREFETCH);
            one_worker.saturating_add(workers.saturating_sub(1).saturating_mul(PREFETCH_PER_WORKER))
        });
        Self { workers, prefetch: prefetch.clamp(1, MAX_PREFETCH) }
    }
}

impl TrainConfig {
    /// Returns the number of data workers of a run whose steps are computed by all cores of the CPU.
    pub fn data_workers(&self) -> usize {
        DataWorkers::of(self, DeviceId::Cpu, 0, self.batch_size()).workers
    }
}

/// Returns the default number of data workers, which leaves enough cores to compute the steps or to feed the GPU.
fn default_workers(device: DeviceId, cores: usize) -> usize {
    let workers = match device {
        DeviceId::Cpu => cores / CORES_PER_WORKER,
        DeviceId::Cuda(_) | DeviceId::Wgpu(_) => cores.saturating_sub(1),
    };
    workers.clamp(1, MAX_DEFAULT_WORKERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_workers_follow_the_cores_unless_a_number_is_requested() {
        let workers = |device, cores| DataWorkers::on(&TrainConfig::default(), device, cores, 2).workers;
        assert_eq!([1, 2, 7, 8, 16, 128].map(|cores| workers(DeviceId::Cpu, cores)), [1, 1, 1, 2, 4, 8]);
        assert_eq!([1, 2, 7, 16].map(|cores| workers(DeviceId::Cuda(0), cores)), [1, 1, 6, 8]);
        let config = TrainConfig { workers: Some(3), prefetch: Some(5), ..TrainConfig::default() };
        assert_eq!(DataWorkers::on(&config, DeviceId::Cpu, 64, 2), DataWorkers { workers: 3, prefetch: 5 });
    }

    #[test]
    fn more_workers_and_larger_batches_prefetch_more_patches() {
        let prefetch = |workers, batch| {
            let config = TrainConfig { workers: Some(workers), ..TrainConfig::default() };
            DataWorkers::on(&config, DeviceId::Cpu, 4, batch).prefetch
        };
        assert_eq!([prefetch(1, 1), prefetch(1, 2), prefetch(1, 4), prefetch(4, 2)], [8, 8, 16, 14]);
        assert_eq!(prefetch(1, usize::MAX), MAX_PREFETCH);
    }
}
