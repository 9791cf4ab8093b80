//! The status of a training run: speed, waiting for data, use of the device, memory, and whether another batch size suits the
//! device.

use crate::config::MAX_BATCH;
use crate::event::TrainEvent;
use crate::history::StepPoint;
use crate::step::Stepper;
use crate::train::Training;
use crate::workers::DataWorkers;
use cytoscope_engine::DeviceId;
use cytoscope_pipeline::engine_memory;
use cytoscope_profile::{
    DeviceMemory, TrainingFacts, bytes_text, computing_share, resident_bytes, since, smaller_batch,
};
use cytoscope_storage::setting::{BATCH, SET};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Minimum time between two statuses.
const INTERVAL: Duration = Duration::from_secs(10);
/// Share of a step spent waiting for data above which a larger batch would only wait longer.
const MAX_DATA_WAIT: f64 = 0.2;
/// Part of a device's free memory that the activations of a batch of twice the size may take.
const MEMORY_SHARE: f64 = 0.5;

/// A change of the batch size that suits the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum BatchAdvice {
    /// The GPU has memory for a batch of this size, which uses it better.
    Larger {
        /// Patches per batch.
        batch: usize,
    },
    /// Activations are computed twice to save memory; smaller batches need less memory, and more of them for each optimizer
    /// step keep its number of patches.
    Smaller {
        /// Patches per batch.
        batch: usize,
        /// Batches per optimizer step.
        accumulate: usize,
    },
}

impl BatchAdvice {
    /// Returns the advice as text for the user of the command line.
    fn text(self) -> String {
        match self {
            Self::Larger { batch } => format!("{BATCH} {batch} fits into the memory of the device"),
            Self::Smaller { batch, accumulate } => {
                format!("{BATCH} {batch} {SET} accumulate={accumulate} would compute fewer activations twice")
            }
        }
    }
}

/// Status of a training run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainStatus {
    /// Device that computes the steps.
    pub device: DeviceId,
    /// Number of completed steps.
    pub step: u64,
    /// Patches per second.
    pub samples_per_sec: f64,
    /// Share of a step that was spent waiting for data, 0 to 1.
    pub data_wait_share: f64,
    /// Share of the run so far in which its device computed, 0 to 1; `None` if it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_share: Option<f64>,
    /// Resident memory of the process in bytes, if known.
    pub resident_bytes: Option<u64>,
    /// Memory of GPUs that the process holds; `None` on the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_memory: Option<DeviceMemory>,
    /// Memory of a batch's activations in bytes.
    pub activation_bytes: u64,
    /// Patches per batch.
    pub batch: usize,
    /// Another batch size that suits the device better, if any.
    pub batch_advice: Option<BatchAdvice>,
    /// Multiply-accumulates that a step computes a second time to save memory, relative to a step that does not; `None`
    /// if nothing is computed twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recomputed_share: Option<f64>,
    /// Number of data workers.
    pub workers: usize,
    /// Maximum number of patches that the data workers prepare in advance.
    pub prefetch: usize,
}

impl TrainStatus {
    /// Returns the status as one line for the user of the command line.
    pub fn line(&self) -> String {
        let advice = self.batch_advice.map_or_else(String::new, |advice| format!("; {}", advice.text()));
        self.figures() + &advice
    }

    /// Returns the status as text, without the advice on the batch.
    pub fn figures(&self) -> String {
        let wait = format!("{:.0} % of the time waiting for data", 100.0 * self.data_wait_share);
        let device = self.device_share.map_or_else(String::new, |share| {
            format!(", {:.0} % of the run computing on {}", 100.0 * share, self.device)
        });
        let memory = self.resident_bytes.map_or_else(String::new, |bytes| format!(", memory {}", bytes_text(bytes)));
        let device_memory = self.device_memory.map_or_else(String::new, |memory| {
            let (allocated, reserved) = (bytes_text(memory.allocated_bytes), bytes_text(memory.reserved_bytes));
            format!(", device memory {allocated} allocated and {reserved} reserved")
        });
        format!(
            "{:.1} samples/s, {wait}{device}{memory}, activations {}{device_memory}",
            self.samples_per_sec,
            bytes_text(self.activation_bytes)
        )
    }

    /// Returns the facts of a run completed by its status: the device, the batch, the data workers, and what the advice on
    /// them needs.
    #[must_use]
    pub fn complete(&self, facts: TrainingFacts) -> TrainingFacts {
        TrainingFacts {
            device: self.device.into(),
            batch: self.batch,
            workers: self.workers,
            prefetch: self.prefetch,
            larger_batch: match self.batch_advice {
                Some(BatchAdvice::Larger { batch }) => Some(batch),
                Some(BatchAdvice::Smaller { .. }) | None => None,
            },
            recomputed_share: self.recomputed_share,
            ..facts
        }
    }
}

/// Measurements that the advice on the batch size depends on.
#[derive(Clone, Copy)]
struct BatchFacts {
    device: DeviceId,
    /// Memory for activations in bytes, if known: the limit of the settings, or what the device has available.
    limit_bytes: Option<u64>,
    batch: usize,
    /// Batches per optimizer step.
    accumulate: usize,
    activation_bytes: u64,
    recomputes: bool,
    data_wait_share: f64,
}

impl BatchFacts {
    fn advice(self) -> Option<BatchAdvice> {
        let Self { device, limit_bytes, batch, accumulate, activation_bytes, recomputes, data_wait_share } = self;
        if recomputes {
            let smaller = smaller_batch(batch, accumulate);
            return smaller.map(|(batch, accumulate)| BatchAdvice::Smaller { batch, accumulate });
        }
        // On the CPU, a larger batch makes no patch faster.
        if device == DeviceId::Cpu || data_wait_share > MAX_DATA_WAIT {
            return None;
        }
        let doubled = 2.0 * activation_bytes as f64;
        let larger = batch.saturating_mul(2);
        let fits = limit_bytes.is_some_and(|limit| doubled <= MEMORY_SHARE * limit as f64);
        (fits && larger <= MAX_BATCH).then_some(BatchAdvice::Larger { batch: larger })
    }
}

impl Training<'_> {
    /// Reports the status at a point of the loss curve, unless the last one was reported shortly before. If the point ends
    /// with the last step, it is always reported: the status of a short run would otherwise be that of its first step, which
    /// waits for the first patches.
    pub(crate) fn report_status(
        &self,
        last: &mut Option<Instant>,
        point: &StepPoint,
        is_last_step: bool,
        stepper: &Stepper,
    ) {
        let StepPoint { step, step_secs, stalled_secs, .. } = *point;
        let is_due = is_last_step || last.is_none_or(|at| at.elapsed() >= INTERVAL);
        if !is_due || !step_secs.is_finite() || step_secs <= 0.0 {
            return;
        }
        *last = Some(Instant::now());
        let data_wait_share = (stalled_secs / step_secs).clamp(0.0, 1.0);
        let device = self.engine.device();
        let (begun, before) = &self.on_device_since;
        let totals = since(&self.context.recorder.totals(), before);
        let DataWorkers { workers, prefetch } = self.data_workers();
        let facts = BatchFacts {
            device: device.id,
            limit_bytes: self.options.memory_budget_bytes.or_else(|| device.available_bytes()),
            batch: self.batch,
            accumulate: self.config.accumulate,
            activation_bytes: stepper.arena_bytes(),
            recomputes: stepper.recompute().is_some(),
            data_wait_share,
        };
        self.emit(&TrainEvent::Status(Box::new(TrainStatus {
            device: device.id,
            step,
            samples_per_sec: (self.batch * self.config.accumulate) as f64 / step_secs,
            data_wait_share,
            device_share: computing_share(&totals, begun.elapsed().as_secs_f64()),
            resident_bytes: resident_bytes(),
            device_memory: engine_memory().device,
            activation_bytes: facts.activation_bytes,
            batch: self.batch,
            batch_advice: facts.advice(),
            recomputed_share: stepper.recompute().map(|r| r.recomputed_macs as f64 / r.macs.max(1) as f64),
            workers,
            prefetch,
        })));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn the_batch_size_follows_the_device_and_its_memory() {
        let gpu = BatchFacts {
            device: DeviceId::Cuda(0),
            limit_bytes: Some(1000),
            batch: 4,
            accumulate: 3,
            activation_bytes: 250,
            recomputes: false,
            data_wait_share: 0.1,
        };
        assert_eq!(gpu.advice(), Some(BatchAdvice::Larger { batch: 8 }));
        let others = [
            BatchFacts { activation_bytes: 251, ..gpu },
            BatchFacts { limit_bytes: None, ..gpu },
            BatchFacts { data_wait_share: 0.5, ..gpu },
            BatchFacts { device: DeviceId::Cpu, ..gpu },
            BatchFacts { batch: MAX_BATCH, ..gpu },
            BatchFacts { recomputes: true, batch: 1, ..gpu },
        ];
        assert!(others.iter().all(|facts| facts.advice().is_none()));
        let recomputing = BatchFacts { recomputes: true, device: DeviceId::Cpu, ..gpu };
        let smaller = BatchAdvice::Smaller { batch: 2, accumulate: 6 };
        assert_eq!(recomputing.advice(), Some(smaller));
        assert!(smaller.text().starts_with("--batch 2 --set accumulate=6 "), "{}", smaller.text());
    }

    #[test]
    fn a_status_is_one_line_and_one_event() {
        let status = TrainStatus {
            device: DeviceId::Cpu,
            step: 7,
            samples_per_sec: 12.34,
            data_wait_share: 0.051,
            device_share: None,
            resident_bytes: Some(300 << 20),
            device_memory: None,
            activation_bytes: 64 << 20,
            batch: 4,
            batch_advice: Some(BatchAdvice::Larger { batch: 8 }),
            recomputed_share: None,
            workers: 3,
            prefetch: 16,
        };
        let facts = status.complete(TrainingFacts { workers: 1, ..TrainingFacts::default() });
        assert_eq!((facts.workers, facts.prefetch), (3, 16), "those of the run, not of its settings");
        assert_eq!(
            status.line(),
            "12.3 samples/s, 5 % of the time waiting for data, memory 300 MiB, activations 64 MiB; --batch 8 fits into \
             the memory of the device"
        );
        let device_memory = Some(DeviceMemory { allocated_bytes: 100 << 20, reserved_bytes: 256 << 20 });
        let on_gpu =
            TrainStatus { device: DeviceId::Cuda(0), device_share: Some(0.8), device_memory, ..status.clone() };
        assert_eq!(
            on_gpu.line(),
            "12.3 samples/s, 5 % of the time waiting for data, 80 % of the run computing on cuda:0, memory 300 MiB, \
             activations 64 MiB, device memory 100 MiB allocated and 256 MiB reserved; --batch 8 fits into the memory of \
             the device"
        );
        let event = TrainEvent::Status(Box::new(on_gpu));
        let json = serde_json::to_value(&event).unwrap();
        assert_eq!((&json["event"], &json["batch_advice"]["batch"]), (&"status".into(), &8.into()));
        assert_eq!(serde_json::from_value::<TrainEvent>(json).unwrap(), event);
    }
}
