//! Memory over time: samples of the process, of the engine's arenas and of devices, and what ran at the peaks.

use crate::{Recorder, SpanRecord, Stage, resident_bytes};
use serde::{Deserialize, Serialize};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Maximum number of samples of one recorder; at ten a second, a day has fewer.
const MAX_SAMPLES: usize = 1_000_000;

/// Memory of devices that this process holds, such as that of a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMemory {
    /// Bytes of the tensors that are alive.
    pub allocated_bytes: u64,
    /// Bytes that the process has taken from the device: tensors, padding, and what is kept for later tensors.
    pub reserved_bytes: u64,
}

impl DeviceMemory {
    /// Returns the sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            allocated_bytes: self.allocated_bytes.saturating_add(other.allocated_bytes),
            reserved_bytes: self.reserved_bytes.saturating_add(other.reserved_bytes),
        }
    }
}

/// Memory that engines hold at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineMemory {
    /// Bytes of the arenas of the CPU engine, if it counts them.
    pub arena_bytes: Option<u64>,
    /// Memory of devices; `None` while no session computes on one.
    pub device: Option<DeviceMemory>,
}

/// Memory of the process, of arenas and of devices at one moment of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MemorySample {
    /// Time in µs since the recorder was created.
    pub at_us: f64,
    /// Resident bytes of the process.
    pub resident_bytes: u64,
    /// Bytes of the engine's arenas, if it counts them.
    pub arena_bytes: Option<u64>,
    /// Memory of devices; `None` while no session computes on one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceMemory>,
}

/// The sample with the most resident bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryPeak {
    /// Resident bytes of the process.
    pub resident_bytes: u64,
    /// Bytes of the engine's arenas at that time, if known.
    pub arena_bytes: Option<u64>,
    /// Time in µs since the recorder was created.
    pub at_us: f64,
    /// The shortest span that ran at that time: its stage and its name.
    pub span: Option<(Stage, String)>,
}

impl MemoryPeak {
    /// Returns the peak of a timeline; `None` without samples.
    pub fn of(timeline: &[MemorySample], spans: &[SpanRecord]) -> Option<Self> {
        // Of equal samples, the first.
        let peak = timeline.iter().rev().max_by_key(|sample| sample.resident_bytes)?;
        let at_us = peak.at_us;
        Some(Self {
            resident_bytes: peak.resident_bytes,
            arena_bytes: peak.arena_bytes,
            at_us,
            span: shortest_span_at(spans, at_us),
        })
    }
}

/// Returns stage and name of the shortest span that ran at a time in µs.
fn shortest_span_at(spans: &[SpanRecord], at_us: f64) -> Option<(Stage, String)> {
    let ran = spans.iter().filter(|span| span.start_us <= at_us && at_us <= span.start_us + span.duration_us);
    let span = ran.min_by(|a, b| a.duration_us.total_cmp(&b.duration_us))?;
    Some((span.stage, span.name.to_string()))
}

/// The highest sampled memory of devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceMemoryPeak {
    /// Maximum number of bytes of tensors in one sample.
    pub allocated_bytes: u64,
    /// Maximum number of bytes taken from the devices in one sample, not necessarily the same sample.
    pub reserved_bytes: u64,
    /// Time of the sample with the most bytes of tensors, in µs since the recorder was created.
    pub at_us: f64,
    /// The shortest span that ran at that time: its stage and its name.
    pub span: Option<(Stage, String)>,
}

impl DeviceMemoryPeak {
    /// Returns the peak of a timeline; `None` without samples of devices.
    pub fn of(timeline: &[MemorySample], spans: &[SpanRecord]) -> Option<Self> {
        let known = || timeline.iter().filter_map(|sample| Some((sample.at_us, sample.device?)));
        let reserved_bytes = known().map(|(_, device)| device.reserved_bytes).max()?;
        // Of equal samples, the first.
        let first_of_equals = |best: (f64, DeviceMemory), next: (f64, DeviceMemory)| {
            if next.1.allocated_bytes > best.1.allocated_bytes { next } else { best }
        };
        let (at_us, DeviceMemory { allocated_bytes, .. }) = known().reduce(first_of_equals)?;
        Some(Self { allocated_bytes, reserved_bytes, at_us, span: shortest_span_at(spans, at_us) })
    }
}

/// A thread that samples memory until this is dropped.
#[derive(Debug)]
#[must_use = "memory is sampled until this is dropped"]
pub struct MemorySampler {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for MemorySampler {
    fn drop(&mut self) {
        // The thread ends when its channel is closed.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread only costs samples.
            let _ = thread.join();
        }
    }
}

impl Recorder {
    /// Starts to sample the memory of this process every `interval`. `engines` returns the memory of the engines.
    /// Without a thread to spare, nothing is sampled.
    pub fn sample_memory(
        &self,
        interval: Duration,
        engines: impl Fn() -> EngineMemory + Send + 'static,
    ) -> MemorySampler {
        let (stop, stopped) = channel::<()>();
        let recorder = self.clone();
        let sample = move || {
            recorder.add_memory_sample(engines());
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                recorder.add_memory_sample(engines());
            }
            recorder.add_memory_sample(engines());
        };
        // Without a thread the timeline is empty; the job itself runs.
        let thread = std::thread::Builder::new().name("memory-samples".to_owned()).spawn(sample).ok();
        MemorySampler { stop: Some(stop), thread }
    }

    fn add_memory_sample(&self, EngineMemory { arena_bytes, device }: EngineMemory) {
        if !self.records {
            return;
        }
        let Some(resident_bytes) = resident_bytes() else { return };
        let at_us = self.start.elapsed().as_secs_f64() * 1e6;
        let mut state = self.state();
        if state.timeline.len() < MAX_SAMPLES && !state.timeline_ended {
            state.timeline.push(MemorySample { at_us, resident_bytes, arena_bytes, device });
        }
    }

    /// Ends the memory over time: later samples are ignored, because what runs then does not belong to the run.
    pub fn end_memory_timeline(&self) {
        self.state().timeline_ended = true;
    }

    /// Returns the memory over time: samples and marks, in order of time.
    pub(crate) fn memory_timeline(&self) -> Vec<MemorySample> {
        let state = self.state();
        let mark_samples = state.marks.iter().map(|mark| MemorySample {
            at_us: mark.at_us,
            resident_bytes: mark.resident_bytes,
            arena_bytes: None,
            device: None,
        });
        let mut all: Vec<MemorySample> = state.timeline.iter().copied().chain(mark_samples).collect();
        all.sort_by(|a, b| a.at_us.total_cmp(&b.at_us));
        all
    }

    /// Returns at most `max` samples of the memory, starting with number `cursor`; marks are not among them.
    pub fn memory_samples_since(&self, cursor: usize, max: usize) -> Vec<MemorySample> {
        self.state().timeline.iter().skip(cursor).take(max).copied().collect()
    }

    /// Returns the peak of the sampled memory of devices; `None` unless a session computed on one.
    pub fn device_memory_peak(&self) -> Option<DeviceMemoryPeak> {
        let state = self.state();
        DeviceMemoryPeak::of(&state.timeline, &state.spans)
    }

    /// Returns the peak of the sampled memory; `None` unless memory was sampled.
    pub fn memory_peak(&self) -> Option<MemoryPeak> {
        let state = self.state();
        MemoryPeak::of(&state.timeline, &state.spans)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RunFacts, RunRecord, StoredRun};

    fn sample(at_us: f64, resident_bytes: u64) -> MemorySample {
        MemorySample { at_us, resident_bytes, arena_bytes: Some(7), device: None }
    }

    fn span(name: &'static str, start_us: f64, duration_us: f64) -> SpanRecord {
        SpanRecord::new(Stage::Compute, name, start_us, duration_us)
    }

    #[test]
    fn the_peak_names_the_shortest_span_that_ran_then() {
        let timeline = [sample(0.0, 10), sample(5.0, 40), sample(6.0, 40), sample(9.0, 20)];
        let spans = [span("whole", 0.0, 10.0), span("tile", 4.0, 2.0), span("later", 8.0, 1.0)];
        let peak = MemoryPeak::of(&timeline, &spans).unwrap();
        assert_eq!((peak.resident_bytes, peak.at_us, peak.arena_bytes), (40, 5.0, Some(7)));
        assert_eq!(peak.span, Some((Stage::Compute, "tile".to_owned())));
        assert_eq!(MemoryPeak::of(&[], &spans), None);
        assert_eq!(MemoryPeak::of(&timeline, &[]).unwrap().span, None);
    }

    #[test]
    fn the_peak_of_a_device_is_that_of_its_tensors() {
        let on_device = |at_us, allocated_bytes, reserved_bytes| MemorySample {
            device: Some(DeviceMemory { allocated_bytes, reserved_bytes }),
            ..sample(at_us, 10)
        };
        let timeline =
            [sample(0.0, 99), on_device(1.0, 5, 64), on_device(5.0, 50, 64), on_device(6.0, 50, 80), sample(7.0, 99)];
        let spans = [span("whole", 0.0, 10.0), span("tile", 4.0, 2.0)];
        let peak = DeviceMemoryPeak::of(&timeline, &spans).unwrap();
        assert_eq!((peak.allocated_bytes, peak.reserved_bytes, peak.at_us), (50, 80, 5.0));
        assert_eq!(peak.span, Some((Stage::Compute, "tile".to_owned())));
        assert_eq!(DeviceMemoryPeak::of(&timeline[..1], &spans), None, "nothing ran on a device");
    }

    #[test]
    fn sampled_memory_is_in_the_trace_and_is_read_back() {
        let recorder = Recorder::new();
        let device = Some(DeviceMemory { allocated_bytes: 456, reserved_bytes: 789 });
        let engines = EngineMemory { arena_bytes: Some(123), device };
        let sampler = recorder.sample_memory(Duration::from_millis(1), move || engines);
        while recorder.memory_timeline().len() < 3 {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(sampler);
        let timeline = recorder.memory_timeline();
        recorder.end_memory_timeline();
        drop(recorder.sample_memory(Duration::from_millis(1), EngineMemory::default));
        assert_eq!(recorder.memory_timeline(), timeline, "the run has ended");
        assert!(timeline.iter().all(|sample| sample.device == device), "{timeline:?}");
        assert_eq!(recorder.device_memory_peak().map(|p| (p.allocated_bytes, p.reserved_bytes)), Some((456, 789)));
        assert_eq!(recorder.memory_samples_since(1, 1), timeline[1..2]);
        assert!(timeline.is_sorted_by_key(|sample| sample.at_us));
        let peak = recorder.memory_peak().unwrap();
        assert!(timeline.iter().all(|s| s.resident_bytes > 0 && s.resident_bytes <= peak.resident_bytes));
        let facts = RunFacts { memory_peak: Some(peak.clone()), ..RunFacts::default() };
        let mut text = Vec::new();
        recorder.write_trace(&RunRecord::new("p", "c", &recorder, facts), &mut text).unwrap();
        let read = StoredRun::from_json(&text).unwrap();
        assert_eq!((read.timeline, read.record.facts.memory_peak), (timeline, Some(peak)));
    }
}
