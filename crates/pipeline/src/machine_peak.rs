//! The peak rates of this machine: measured once for each number of threads, and stored in the user's folder.

use crate::{JobError, machine_key, user_folder};
use cytoscope_profile::MachinePeak;
use cytoscope_storage::json::{read_json_with_format, write_json};
use cytoscope_storage::lock::ResultsLock;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Version of the file of peaks; it changes when a file would be misread, or when more is measured.
const FORMAT: u32 = 3;
/// Maximum size of the file in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Maximum number of stored peaks; the oldest ones are dropped.
const MAX_PEAKS: usize = 500;

/// The peak of one machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct StoredPeak {
    /// The machine, as [`machine_key`] describes it.
    machine: String,
    peak: MachinePeak,
}

/// The stored peaks, oldest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct StoredPeaks {
    format: u32,
    peaks: Vec<StoredPeak>,
}

/// Returns the peak rates of this machine's CPU with this many threads (0 for all cores): the stored ones
/// (`machine-peaks.json` in the user's folder), or, the first time, measured ones. Nothing else should compute
/// while they are measured. A file that cannot be read or written is logged, and the peak is measured.
pub fn machine_peak(threads: usize) -> MachinePeak {
    let path = user_folder().map(|folder| folder.join("machine-peaks.json"));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if threads == 0 { cores } else { threads };
    let kernels = cytoscope_engine_cpu::kernels_name();
    let measure = || cytoscope_engine_cpu::measure_peak(threads);
    let Some(path) = path else { return measure() };
    stored_or_measured(&path, &machine_key(), &kernels, threads, measure)
}

fn stored_or_measured(
    path: &Path,
    machine: &str,
    kernels: &str,
    threads: usize,
    measure: impl FnOnce() -> MachinePeak,
) -> MachinePeak {
    let all = read(path).unwrap_or_else(|error| {
        tracing::warn!("the stored peaks of machines are not used: {error}");
        StoredPeaks { format: FORMAT, peaks: Vec::new() }
    });
    let is_wanted = |stored: &&StoredPeak| {
        let StoredPeak { machine: of, peak } = stored;
        of == machine && peak.kernels == kernels && peak.threads == threads && peak.is_valid()
    };
    if let Some(stored) = all.peaks.iter().find(is_wanted) {
        return stored.peak.clone();
    }
    let peak = measure();
    tracing::info!(?peak, "measured the peak of this machine");
    let written = ResultsLock::for_update(path).and_then(|_lock| {
        // Other processes may have stored peaks meanwhile; what cannot be read was reported above.
        let mut all = read(path).unwrap_or_else(|_| StoredPeaks { format: FORMAT, peaks: Vec::new() });
        all.peaks.push(StoredPeak { machine: machine.to_owned(), peak: peak.clone() });
        let surplus = all.peaks.len().saturating_sub(MAX_PEAKS);
        all.peaks.drain(..surplus);
        write_json(path, &all)
    });
    if let Err(error) = written {
        tracing::warn!("the measured peak of this machine is not stored: {error}");
    }
    peak
}

/// Reads the stored peaks; a missing file has none.
fn read(path: &Path) -> Result<StoredPeaks, JobError> {
    let read = read_json_with_format(path, MAX_FILE_BYTES, FORMAT);
    let read = read.map_err(JobError::stored(path, "peaks of machines", "the file will be written again"))?;
    Ok(read.unwrap_or_else(|| StoredPeaks { format: FORMAT, peaks: Vec::new() }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
    use super::*;

    fn peak(kernels: &str, threads: usize, rate: f64) -> MachinePeak {
        MachinePeak {
            kernels: kernels.to_owned(),
            threads,
            float_macs_per_sec: rate,
            bf16_macs_per_sec: None,
            int8_macs_per_sec: None,
            memory_bytes_per_sec: 1.0,
        }
    }

    #[test]
    fn a_peak_is_measured_once_for_each_machine_instruction_set_and_number_of_threads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/peaks.json");
        let get = |machine: &str, kernels: &str, threads: usize, rate: f64| {
            stored_or_measured(&path, machine, kernels, threads, || peak(kernels, threads, rate)).float_macs_per_sec
        };
        assert_eq!(get("here", "avx2", 2, 5.0), 5.0);
        assert_eq!(get("here", "avx2", 2, 6.0), 5.0, "it is stored");
        assert_eq!(get("here", "avx2", 1, 7.0), 7.0);
        assert_eq!(get("here", "portable", 2, 8.0), 8.0);
        assert_eq!(get("there", "avx2", 2, 9.0), 9.0);
        assert_eq!(get("here", "avx2", 2, 10.0), 5.0);
        // A file that cannot be used does not keep the peak from being measured, and is replaced.
        std::fs::write(&path, "{\"format\": 9, \"peaks\": []}").unwrap();
        assert_eq!(get("here", "avx2", 2, 11.0), 11.0);
        std::fs::write(&path, "no JSON").unwrap();
        assert_eq!((get("here", "avx2", 2, 12.0), get("here", "avx2", 2, 13.0)), (12.0, 12.0));
    }
}
