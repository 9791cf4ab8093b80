//! Memory over time: samples of the process and of the engine's arenas, and what ran at the peak.

use crate::{Recorder, SpanRecord, Stage, resident_bytes};
use serde::{Deserialize, Serialize};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Maximum number of samples of one recorder; at ten a second, a day has fewer.
const MAX_SAMPLES: usize = 1_000_000;

/// Memory of the process and of arenas at one moment of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MemorySample {
    /// Time in µs since the recorder was created.
    pub at_us: f64,
    /// Resident bytes of the process.
    pub resident_bytes: u64,
    /// Bytes of the engine's arenas, if it counts them.
    pub arena_bytes: Option<u64>,
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
        let ran = spans.iter().filter(|span| span.start_us <= at_us && at_us <= span.start_us + span.duration_us);
        let span = ran.min_by(|a, b| a.duration_us.total_cmp(&b.duration_us));
        Some(Self {
            resident_bytes: peak.resident_bytes,
            arena_bytes: peak.arena_bytes,
            at_us,
            span: span.map(|span| (span.stage, span.name.to_string())),
        })
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
            let _ = thread.join();
        }
    }
}

impl Recorder {
    /// Starts to sample the memory of this process every `interval`. `arena_bytes` returns the bytes of the engine's
    /// arenas. Without a thread to spare, nothing is sampled.
    pub fn sample_memory(
        &self,
        interval: Duration,
        arena_bytes: impl Fn() -> Option<u64> + Send + 'static,
    ) -> MemorySampler {
        let (stop, stopped) = channel::<()>();
        let recorder = self.clone();
        let sample = move || {
            recorder.add_memory_sample(arena_bytes());
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                recorder.add_memory_sample(arena_bytes());
            }
            recorder.add_memory_sample(arena_bytes());
        };
        // Without a thread the timeline is empty; the job itself runs.
        let thread = std::thread::Builder::new().name("memory-samples".to_owned()).spawn(sample).ok();
        MemorySampler { stop: Some(stop), thread }
    }

    fn add_memory_sample(&self, arena_bytes: Option<u64>) {
        if !self.records {
            return;
        }
        let Some(resident_bytes) = resident_bytes() else { return };
        let at_us = self.start.elapsed().as_secs_f64() * 1e6;
        let mut state = self.state();
        if state.timeline.len() < MAX_SAMPLES && !state.timeline_ended {
            state.timeline.push(MemorySample { at_us, resident_bytes, arena_bytes });
        }
    }

    /// Ends the memory over time: later samples are ignored, because what runs then does not belong to the run.
    pub fn end_memory_timeline(&self) {
        self.state().timeline_ended = true;
    }

    /// Returns the memory over time: samples and marks, in order of time.
    pub fn memory_timeline(&self) -> Vec<MemorySample> {
        let state = self.state();
        let of_marks = state.marks.iter().map(|mark| MemorySample {
            at_us: mark.at_us,
            resident_bytes: mark.resident_bytes,
            arena_bytes: None,
        });
        let mut all: Vec<MemorySample> = state.timeline.iter().copied().chain(of_marks).collect();
        all.sort_by(|a, b| a.at_us.total_cmp(&b.at_us));
        all
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
        MemorySample { at_us, resident_bytes, arena_bytes: Some(7) }
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
    fn sampled_memory_is_in_the_trace_and_is_read_back() {
        let recorder = Recorder::new();
        let sampler = recorder.sample_memory(Duration::from_millis(1), || Some(123));
        while recorder.memory_timeline().len() < 3 {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(sampler);
        let timeline = recorder.memory_timeline();
        recorder.end_memory_timeline();
        drop(recorder.sample_memory(Duration::from_millis(1), || Some(456)));
        assert_eq!(recorder.memory_timeline(), timeline, "the run has ended");
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
