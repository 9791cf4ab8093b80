//! Candidates of a training run: device, precision, batch, data workers, prefetch and threads.

use super::check_canceled;
use super::halving::{Candidate, Measured, Search, TimedTrial, Trial, fastest, least_memory, quickest, search, timed};
use super::progress::TuneProgress;
use crate::cli::child::{self, ChildRun, Scratch};
use crate::cli::failure::Failure;
use crate::cli::measured::cores;
use crate::cli::reports::TrainCommandReport;
use cytoscope_engine::{Device, DeviceId, Precision};
use cytoscope_pipeline::{CancelToken, Preset, TrainingSettings, measured_gpu_name};
use cytoscope_profile::{Recorder, Stage};
use cytoscope_train::{TrainConfig, TrainPrecision, TrainStart};
use cytoscope_training_data::TrainingTask;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Batch sizes that are tried on a GPU, besides the default. On the CPU, a larger batch makes no patch faster.
const GPU_BATCHES: [usize; 3] = [4, 8, 16];
/// Patches prepared in advance that are tried besides the default.
const LONG_PREFETCH: usize = 32;
/// Maximum number of data workers that is tried.
const MAX_WORKERS: usize = 8;

/// Settings of a training run. What is `None` is chosen by the program.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct TrainingCandidate {
    /// Device that the steps run on.
    pub device: DeviceId,
    /// Number format of convolutions and matrix products in the steps; never int8.
    pub precision: Precision,
    /// Number of patches in a batch.
    pub batch: Option<usize>,
    /// Number of data workers, at least 1.
    pub workers: usize,
    /// Maximum number of patches that are prepared in advance.
    pub prefetch: Option<usize>,
    /// Number of threads; 0 uses all cores.
    pub threads: usize,
}

impl Candidate for TrainingCandidate {
    fn label(&self) -> String {
        let text = |value: Option<usize>| value.map_or_else(|| "auto".to_owned(), |n| n.to_string());
        let threads = if self.threads == 0 { "all".to_owned() } else { self.threads.to_string() };
        format!(
            "{} {}, batch {}, workers {}, prefetch {}, threads {threads}",
            self.device,
            self.precision,
            text(self.batch),
            self.workers,
            text(self.prefetch)
        )
    }
}

/// The training run that is repeated.
pub(super) struct TrainingWorkload<'a> {
    /// The start model, or training from scratch.
    pub from: &'a TrainStart,
    /// Whether the targets of the pairs are labels or stains.
    pub task: TrainingTask,
    /// Folder or table of the training pairs.
    pub data: &'a Path,
    /// File of training settings in TOML; `None` for the defaults.
    pub config: Option<&'a Path>,
    /// Optimizer steps of each run.
    pub steps: usize,
    /// How progress is shown.
    pub progress: TuneProgress,
    /// Records the time of each run.
    pub recorder: &'a Recorder,
}

impl TrainingWorkload<'_> {
    /// Returns the arguments of the program.
    fn arguments(&self, candidate: &TrainingCandidate, out: &Path, trace: &Path) -> Vec<String> {
        let mut arguments = vec![
            "train".to_owned(),
            format!("--task={}", self.task.name()),
            format!("--data={}", self.data.display()),
            format!("--from={}", self.from),
            format!("--out={}", out.display()),
            format!("--trace={}", trace.display()),
            format!("--steps={}", self.steps),
            format!("--device={}", candidate.device),
            format!("--precision={}", candidate.precision),
            format!("--threads={}", candidate.threads),
            format!("--set=workers={}", candidate.workers),
        ];
        let switches = ["--stages-only", "--json", "--without-int8", "--performance=off"];
        // Only the steps are measured.
        let short = ["--set=validation.times=1", "--set=validation.max_files=1"];
        arguments.extend(switches.into_iter().chain(short).map(str::to_owned));
        arguments.extend(self.config.map(|path| format!("--config={}", path.display())));
        arguments.extend(candidate.batch.map(|batch| format!("--batch={batch}")));
        arguments.extend(candidate.prefetch.map(|prefetch| format!("--set=prefetch={prefetch}")));
        arguments
    }
}

/// Returns the candidates on these devices. Settings that `config` states are not varied. The first one counts as the default.
pub(super) fn candidates(config: &TrainConfig, devices: &[Device]) -> Vec<TrainingCandidate> {
    let powers = std::iter::successors(Some(1usize), |n| n.checked_mul(2));
    let worker_counts: Vec<usize> = match config.workers {
        Some(workers) => vec![workers],
        None => powers.take_while(|n| *n <= cores().min(MAX_WORKERS)).collect(),
    };
    let prefetches = match config.prefetch {
        Some(prefetch) => vec![Some(prefetch)],
        None => vec![None, Some(LONG_PREFETCH)],
    };
    let mut all = Vec::new();
    for device in devices.iter().filter(|device| device.usable) {
        let on_cpu = device.id == DeviceId::Cpu;
        let mut precisions = device.training_precisions();
        if config.precision != TrainPrecision::Auto {
            precisions.retain(|p| TrainPrecision::of(*p) == Some(config.precision));
        }
        let mut batches = vec![None];
        if !on_cpu && config.batch.is_none() {
            batches.extend(GPU_BATCHES.map(Some));
        }
        for &precision in &precisions {
            for &batch in &batches {
                for &workers in &worker_counts {
                    let with_prefetch = |prefetch: &Option<usize>| TrainingCandidate {
                        device: device.id,
                        precision,
                        batch,
                        workers,
                        prefetch: *prefetch,
                        threads: 0,
                    };
                    all.extend(prefetches.iter().map(with_prefetch));
                    let free = cores().saturating_sub(workers);
                    if on_cpu && free > 0 && free < cores() {
                        // The data workers have their own cores.
                        let first = prefetches.first().copied().flatten();
                        all.push(TrainingCandidate { threads: free, ..with_prefetch(&first) });
                    }
                }
            }
        }
    }
    all
}

/// Runs the candidates in separate processes. If this is interrupted, the search ends with what was measured.
///
/// # Errors
/// Cancellation before anything was measured, or the failure of all candidates.
pub(super) fn run(
    candidates: Vec<TrainingCandidate>,
    workload: &TrainingWorkload<'_>,
    scratch: &Scratch,
    keep: &[&str],
    cancel: &CancelToken,
) -> Result<Search<TrainingCandidate>, Failure> {
    let (trace, out): (PathBuf, PathBuf) = (scratch.path().join("trace.json"), scratch.path().join("out"));
    search(candidates, workload.progress, |candidate, limit| {
        check_canceled(cancel)?;
        scratch.clear(keep)?;
        let arguments = workload.arguments(candidate, &out, &trace);
        let span = workload.recorder.span(Stage::Run, format!("train on {}", candidate.label()));
        let done: Option<ChildRun<TrainCommandReport>> = child::run(&arguments, &trace, limit)?;
        span.finish();
        let Some(ChildRun { report: TrainCommandReport { report, .. }, run, total_secs }) = done else {
            return Ok(None);
        };
        Ok(Some(Measured {
            secs: report.step_secs / report.batch.max(1) as f64,
            process_secs: total_secs,
            peak_bytes: run.record.facts.peak_bytes,
            relative_l2: None,
        }))
    })
}

/// Returns the settings of the presets, from the candidates that were run on these devices. The most accurate ones are the
/// fastest in 32-bit floats.
pub(super) fn presets(trials: &[Trial<TrainingCandidate>], devices: &[Device]) -> BTreeMap<Preset, TrainingSettings> {
    let all = timed(trials);
    let exact = all.iter().copied().filter(|(trial, _)| trial.candidate.precision == Precision::F32);
    let chosen = [
        (Preset::Fastest, fastest(&all)),
        (Preset::LeastMemory, least_memory(&all)),
        (Preset::MostAccurate, quickest(exact)),
    ];
    let settings = |(trial, secs_per_patch): TimedTrial<'_, TrainingCandidate>| {
        let TrainingCandidate { device, precision, batch, workers, prefetch, threads } = trial.candidate;
        let (device_name, peak_bytes) = (measured_gpu_name(device, devices), trial.peak_bytes);
        let (precision, workers) = (Some(precision), Some(workers));
        TrainingSettings {
            device,
            device_name,
            precision,
            batch,
            workers,
            prefetch,
            threads,
            secs_per_patch,
            peak_bytes,
        }
    };
    chosen.into_iter().filter_map(|(preset, found)| Some((preset, settings(found?)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(id: DeviceId, precisions: &[Precision]) -> Device {
        Device::named(id, "d", precisions)
    }

    #[test]
    fn only_a_gpu_tries_batches_and_stated_settings_are_kept() {
        let cpu = device(DeviceId::Cpu, &[Precision::F32, Precision::Bf16, Precision::Int8]);
        let gpu = device(DeviceId::Cuda(0), &[Precision::F32, Precision::F16]);
        let config = TrainConfig { workers: Some(2), prefetch: Some(9), ..TrainConfig::default() };
        let on_cpu = candidates(&config, std::slice::from_ref(&cpu));
        assert!(on_cpu.iter().all(|c| (c.batch, c.workers, c.prefetch) == (None, 2, Some(9))), "{on_cpu:?}");
        assert!(on_cpu.iter().all(|c| c.precision == Precision::F32));
        let on_gpu = candidates(&config, std::slice::from_ref(&gpu));
        assert_eq!(on_gpu.len(), 2 * (1 + GPU_BATCHES.len()));
        let half = TrainConfig { precision: TrainPrecision::F16, ..config.clone() };
        let with_half = candidates(&half, &[cpu.clone(), gpu.clone()]);
        assert_eq!(with_half.len(), 1 + GPU_BATCHES.len(), "{with_half:?}");
        assert!(with_half.iter().all(|c| c.precision == Precision::F16), "{with_half:?}");
        let given = TrainConfig { batch: Some(3), ..config };
        assert!(candidates(&given, &[gpu]).iter().all(|c| c.batch.is_none()), "the file's batch is used");
        let unusable = Device { usable: false, ..cpu };
        assert!(candidates(&given, &[unusable]).is_empty());
    }
}
