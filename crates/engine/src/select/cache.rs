//! The cache of measured times, errors and out-of-memory failures of models on devices.

use super::{Measurement, Probe, error_problem};
use crate::{Device, DeviceId, EngineError, Precision};
use cytoscope_storage::json::{read_json, write_json};
use cytoscope_storage::lock::ResultsLock;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Maximum size of a cache file in bytes.
const MAX_CACHE_BYTES: u64 = 8 << 20;

/// What a measurement depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Key {
    /// The [`super::fingerprint`] of the model.
    model: String,
    device: DeviceId,
    device_name: String,
    /// Memory of a GPU, if it is known: a part of a GPU (MIG) may have the name of the whole GPU. `None` for the CPU, for which
    /// only the free memory is known, which varies.
    memory_bytes: Option<u64>,
    driver: String,
    precision: Precision,
    /// Shapes of the inputs.
    shapes: Vec<Vec<usize>>,
    /// Number of threads; 0 for all cores.
    threads: usize,
    /// Version of the kernels.
    kernels: String,
}

/// A measurement in a cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct StoredEntry {
    key: Key,
    entry: Entry,
}

/// The contents of a cache file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Contents {
    Entries(Vec<StoredEntry>),
    /// Entries of earlier versions, whose keys were texts. They are measured again.
    Earlier(BTreeMap<String, Entry>),
}

/// A cached time and error.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Timing {
    pub(super) best_ms: f64,
    #[serde(default)]
    pub(super) error: Option<f64>,
    /// The memory limit that was lowered for the measurement. Files of earlier versions do not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) lowered: Option<LoweredLimit>,
}

/// A memory limit that was lowered because the device ran out of memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct LoweredLimit {
    /// The limit in bytes with which there was enough memory.
    pub(super) limit_bytes: u64,
    /// Memory of the device that was free when the job started; `None` if unknown.
    #[serde(default)]
    free_bytes: Option<u64>,
}

impl LoweredLimit {
    pub(super) fn new(limit_bytes: u64, device: &Device) -> Self {
        Self { limit_bytes, free_bytes: device.available_bytes() }
    }

    /// Returns whether clearly more memory is free on the device now, so that a higher limit may do.
    fn is_outdated(self, device: &Device) -> bool {
        match (device.available_bytes(), self.free_bytes) {
            (Some(now_bytes), Some(free_bytes)) => is_clearly_more(now_bytes, free_bytes),
            _ => false,
        }
    }
}

/// Returns whether `now_bytes` of free memory are clearly more than `free_bytes`: free memory varies a little.
fn is_clearly_more(now_bytes: u64, free_bytes: u64) -> bool {
    now_bytes > free_bytes.saturating_add(free_bytes / 10)
}

/// A cached failure of a GPU with too little memory, as in [`EngineError::OutOfMemory`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct TooSmall {
    needed_bytes: u64,
    available_bytes: u64,
    /// Memory of the GPU that was free when the job started.
    free_bytes: u64,
}

impl TooSmall {
    /// Returns the entry of a failure on a device; `None` unless a GPU ran out of memory and its free memory is known.
    pub(super) fn of(error: &EngineError, device: &Device) -> Option<Self> {
        let EngineError::OutOfMemory { needed_bytes, available_bytes, .. } = error else { return None };
        let free_bytes = device.available_bytes().filter(|_| device.id != DeviceId::Cpu)?;
        Some(Self { needed_bytes: *needed_bytes, available_bytes: *available_bytes, free_bytes })
    }

    /// Returns the error again, unless clearly more memory is free on the device now.
    fn again(self, device: &Device) -> Option<EngineError> {
        let Self { needed_bytes, available_bytes, free_bytes } = self;
        let is_more = device.available_bytes().is_none_or(|bytes| is_clearly_more(bytes, free_bytes));
        (!is_more).then_some(EngineError::OutOfMemory { device: device.id, needed_bytes, available_bytes })
    }
}

/// A cached measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Entry {
    Time(Timing),
    TooSmall(TooSmall),
}

/// The versions of the kernels of this build, on which measured times and errors depend besides the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelVersions {
    /// Version of the CPU's kernels. Their instruction set is part of [`Device::driver`].
    pub cpu: &'static str,
    /// Version of the kernels for GPUs.
    pub gpu: &'static str,
}

impl KernelVersions {
    /// Returns the version of the kernels that run on a device.
    fn of(self, device: DeviceId) -> &'static str {
        match device {
            DeviceId::Cpu => self.cpu,
            DeviceId::Cuda(_) | DeviceId::Wgpu(_) => self.gpu,
        }
    }
}

/// Measured times and errors, and missing memory, by model, device, driver, precision and input shape. An unreadable cache
/// file counts as empty, and a cache that cannot be written is lost, both of which is logged: everything can be measured
/// again.
#[derive(Debug, Default)]
pub struct Cache {
    path: Option<PathBuf>,
    /// The kernels that measurements are made with.
    kernels: KernelVersions,
    entries: Vec<StoredEntry>,
}

impl Cache {
    /// Opens the cache in a file, which is created on the first write. `kernels` identifies the kernels of this build:
    /// what was measured on a device with others is forgotten, because they may have had other times and errors.
    pub fn open(path: &Path, kernels: KernelVersions) -> Self {
        Self { path: Some(path.to_owned()), kernels, entries: read_entries(path, kernels) }
    }

    /// Returns a cache that is not saved to a file.
    pub fn in_memory() -> Self {
        Self::default()
    }

    /// Forgets everything that was measured for the model with this [`super::fingerprint`], so that it is measured again.
    pub fn forget(&mut self, fingerprint: &str) {
        let is_kept = |stored: &StoredEntry| stored.key.model != fingerprint;
        self.entries.retain(is_kept);
        self.update_file(|stored| stored.retain(is_kept));
    }

    /// Returns the times that were measured for the model with this [`super::fingerprint`] on inputs of these shapes with
    /// `threads` threads, on any device. These devices may no longer exist.
    pub fn stored(&self, fingerprint: &str, shapes: &[&[usize]], threads: usize) -> Vec<Measurement> {
        let is_asked_for = |key: &Key| {
            let has_shapes = key.shapes.iter().map(Vec::as_slice).eq(shapes.iter().copied());
            key.model == fingerprint && has_shapes && key.threads == threads
        };
        let to_measurement = |StoredEntry { key, entry }: &StoredEntry| {
            let Entry::Time(timing) = entry else { return None };
            if !is_asked_for(key) {
                return None;
            }
            let (Timing { best_ms, error, lowered }, reason) = (*timing, error_problem(timing.error));
            let (device, best_ms, precision) = (key.device, Some(best_ms), Some(key.precision));
            let lowered_limit_bytes = lowered.map(|lowered| lowered.limit_bytes);
            Some(Measurement { device, precision, best_ms, error, lowered_limit_bytes, reason, cached: true })
        };
        self.entries.iter().filter_map(to_measurement).collect()
    }

    pub(super) fn key(&self, probe: &Probe<'_>, device: &Device, precision: Precision) -> Key {
        Key {
            model: probe.fingerprint.to_owned(),
            device: device.id,
            device_name: device.name.clone(),
            memory_bytes: device.memory_bytes.filter(|_| device.id != DeviceId::Cpu),
            driver: device.driver.clone(),
            precision,
            shapes: probe.inputs.iter().map(|input| input.shape().to_vec()).collect(),
            threads: probe.threads,
            kernels: self.kernels.of(device.id).to_owned(),
        }
    }

    pub(super) fn put(&mut self, key: Key, entry: Entry) {
        let measured = StoredEntry { key, entry };
        insert(&mut self.entries, measured.clone());
        self.update_file(|stored| insert(stored, measured));
    }

    /// Returns the cached time of a key, or the cached out-of-memory error; `None` if it must be measured now. If `compares`,
    /// a time counts only with its error; with a lowered memory limit, only while about as much memory is free.
    pub(super) fn get(&self, key: &Key, device: &Device, compares: bool) -> Option<Result<Timing, EngineError>> {
        match self.entries.iter().find(|stored| stored.key == *key)?.entry {
            Entry::Time(timing) => {
                let is_outdated = timing.lowered.is_some_and(|lowered| lowered.is_outdated(device));
                (!is_outdated && (!compares || timing.error.is_some())).then_some(Ok(timing))
            }
            Entry::TooSmall(small) => small.again(device).map(Err),
        }
    }

    /// Changes what the file holds now: other processes may have written to it since it was read.
    fn update_file(&self, change: impl FnOnce(&mut Vec<StoredEntry>)) {
        let Some(path) = &self.path else { return };
        let written = ResultsLock::for_update(path).and_then(|_lock| {
            let mut stored = read_entries(path, self.kernels);
            change(&mut stored);
            write_json(path, &stored)
        });
        if let Err(error) = written {
            tracing::warn!("measured times are not stored, and will be measured again: {error}");
        }
    }
}

/// Adds an entry in place of one with the same key.
fn insert(entries: &mut Vec<StoredEntry>, measured: StoredEntry) {
    match entries.iter_mut().find(|stored| stored.key == measured.key) {
        Some(stored) => *stored = measured,
        None => entries.push(measured),
    }
}

/// Returns the entries in a file that were measured with these kernels; an unreadable file counts as empty.
fn read_entries(path: &Path, kernels: KernelVersions) -> Vec<StoredEntry> {
    let mut entries = match read_json(path, MAX_CACHE_BYTES) {
        Ok(Some(Contents::Entries(entries))) => entries,
        Ok(Some(Contents::Earlier(entries))) => {
            tracing::info!("{} times in {} are measured again", entries.len(), path.display());
            Vec::new()
        }
        Ok(None) => Vec::new(),
        Err(error) => {
            tracing::warn!("the measured times in {} are not used: {error}", path.display());
            Vec::new()
        }
    };
    entries.retain(|stored| stored.key.kernels == kernels.of(stored.key.device));
    entries
}
