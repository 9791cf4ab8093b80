//! Reports the progress of a running job, at a rate that a window can draw.

use super::live::LiveFile;
use super::{JobId, LiveRegion, MAX_LIVE_REGIONS, MAX_SPANS_PER_JOB, MAX_SPANS_PER_SECOND, Reply};
use cpu_time::ProcessTime;
use cytoscope_engine::DeviceId;
use cytoscope_pipeline::predict::{LiveSink, LiveVolume};
use cytoscope_pipeline::{DeviceInUse, Event, JobErrorKind, ProgressStage, StageProgress};
use cytoscope_profile::{Recorder, SpanRecord, Stage, StageTotal};
use cytoscope_train::TrainEvent;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Minimum time between two messages with progress or live regions.
pub(super) const TICK: Duration = Duration::from_millis(50);
/// Time between two stage tables.
const STAGES_EVERY: Duration = Duration::from_millis(250);
/// Time between two memory messages, and between two samples of the memory over time.
pub(super) const MEMORY_EVERY: Duration = Duration::from_millis(500);
/// Maximum number of spans considered for one message.
const SPANS_AT_ONCE: usize = 16_384;
/// Maximum number of memory marks, and of memory samples, in one message.
const MARKS_AT_ONCE: usize = 256;

/// The worker's standard output; writes whole lines from any thread.
pub(super) struct ReplyWriter(Mutex<Box<dyn Write + Send>>);

impl ReplyWriter {
    pub(super) fn new(out: impl Write + Send + 'static) -> Self {
        Self(Mutex::new(Box::new(out)))
    }

    /// Writes a reply. If the pipe is closed, the reply is dropped; standard input ends then, too.
    pub(super) fn send(&self, reply: &Reply) {
        let text = serde_json::to_string(reply).or_else(|error| {
            // Paths may contain bytes that are not valid Unicode.
            let message = format!("the reply cannot be written as JSON: {error}");
            serde_json::to_string(&match reply.ends() {
                Some(id) => Reply::failed(id, JobErrorKind::BadInput, message),
                None => Reply::Fault { message },
            })
        });
        if let Ok(mut text) = text {
            text.push('\n');
            let mut out = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // If the client is gone, the input ends as well, and the worker stops.
            let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        }
    }

    /// Reports an error that belongs to no job or query.
    pub(super) fn fault(&self, message: impl Into<String>) {
        self.send(&Reply::Fault { message: message.into() });
    }
}

/// Reports the progress of one job.
pub(super) struct ProgressReporter {
    replies: Arc<ReplyWriter>,
    id: JobId,
    recorder: Recorder,
    folder: PathBuf,
    /// Number of threads that the job computes with.
    threads: usize,
    started: Instant,
    /// CPU time of the process when the job started; `None` if the system does not report it.
    cpu_started: Option<ProcessTime>,
    state: Mutex<ReporterState>,
}

struct ReporterState {
    /// The stage that was reported last.
    stage: Option<ProgressStage>,
    progress_at: Instant,
    /// Progress that was not sent yet.
    progress: Option<Event>,
    device: Option<DeviceInUse>,
    /// The first GPU that has failed.
    lost: Option<DeviceId>,
    live: Option<LiveFile>,
    /// Number of live arrays created so far.
    live_count: usize,
    regions: Vec<LiveRegion>,
    regions_at: Instant,
    stages: Vec<StageTotal>,
    stages_at: Instant,
    memory_at: Instant,
    spans: Cursor,
}

/// Position in the recorder's spans, marks and memory samples up to which they were sent.
#[derive(Default)]
struct Cursor {
    spans: usize,
    marks: usize,
    samples: usize,
    sent: usize,
    /// Number of spans that may be sent now: the unused part of the limit per second.
    allowed: f64,
    left_out: u64,
}

impl ProgressReporter {
    /// Creates the reporter of a job that starts now and computes with this number of threads.
    pub(super) fn new(
        replies: Arc<ReplyWriter>,
        id: JobId,
        recorder: Recorder,
        folder: PathBuf,
        threads: usize,
    ) -> Self {
        let now = Instant::now();
        let state = ReporterState {
            stage: None,
            progress_at: now,
            progress: None,
            device: None,
            lost: None,
            live: None,
            live_count: 0,
            regions: Vec::new(),
            regions_at: now,
            stages: Vec::new(),
            stages_at: now,
            memory_at: now,
            // A short job sends all its spans at its end.
            spans: Cursor { allowed: MAX_SPANS_PER_SECOND as f64, ..Cursor::default() },
        };
        let cpu_started = ProcessTime::try_now().ok();
        Self { replies, id, recorder, folder, threads, started: now, cpu_started, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, ReporterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles an event of the job.
    pub(super) fn event(&self, event: &Event) {
        let mut state = self.state();
        match event {
            Event::Progress(StageProgress { stage, done, total, .. }) => {
                let same = state.stage == Some(*stage);
                if same && done < total && state.progress_at.elapsed() < TICK {
                    state.progress = Some(event.clone());
                    return;
                }
                if same {
                    state.progress = None;
                }
                self.send_progress(&mut state);
                state.stage = Some(*stage);
                state.progress = Some(event.clone());
                self.send_progress(&mut state);
            }
            other => {
                match other {
                    Event::Device(device) => state.device = Some(device.clone()),
                    Event::DeviceLost { id, .. } => _ = state.lost.get_or_insert(*id),
                    _ => {}
                }
                self.send_progress(&mut state);
                self.replies.send(&Reply::Progress { id: self.id, event: other.clone() });
            }
        }
    }

    /// Returns the GPU that has failed in the job, the first one if there were several.
    pub(super) fn lost_device(&self) -> Option<DeviceId> {
        self.state().lost
    }

    /// Handles an event of a training job; all are sent.
    pub(super) fn training_event(&self, event: &TrainEvent) {
        self.send_progress(&mut self.state());
        self.replies.send(&Reply::Training { id: self.id, event: event.clone() });
    }

    fn send_progress(&self, state: &mut ReporterState) {
        if let Some(event) = state.progress.take() {
            state.progress_at = Instant::now();
            self.replies.send(&Reply::Progress { id: self.id, event });
        }
    }

    fn send_regions(&self, state: &mut ReporterState) {
        let regions = std::mem::take(&mut state.regions);
        let Some(live) = state.live.as_ref().filter(|_| !regions.is_empty()) else { return };
        self.replies.send(&Reply::Live {
            id: self.id,
            input: live.input.clone(),
            time: live.time,
            path: live.path.clone(),
            channels: live.channels,
            shape_zyx: live.shape,
            regions,
        });
        state.regions_at = Instant::now();
    }

    /// Sends the messages that are due; called every [`TICK`].
    pub(super) fn tick(&self) {
        let mut state = self.state();
        if state.progress_at.elapsed() >= TICK {
            self.send_progress(&mut state);
        }
        if state.regions_at.elapsed() >= TICK {
            self.send_regions(&mut state);
        }
        if state.stages_at.elapsed() >= STAGES_EVERY {
            self.send_stages(&mut state);
        }
        if state.memory_at.elapsed() >= MEMORY_EVERY {
            state.memory_at = Instant::now();
            self.send_memory(&state);
        }
    }

    /// Sends all remaining messages, before the job's end is reported. Returns the live array, which outlives the job.
    pub(super) fn finish(&self) -> Option<LiveFile> {
        let mut state = self.state();
        self.send_progress(&mut state);
        self.send_regions(&mut state);
        self.send_stages(&mut state);
        self.send_memory(&state);
        state.live.take()
    }

    /// Sends the memory of the process, and the times of the job.
    fn send_memory(&self, state: &ReporterState) {
        self.replies.send(&Reply::Memory {
            resident_bytes: cytoscope_profile::resident_bytes().unwrap_or(0),
            peak_resident_bytes: cytoscope_profile::peak_resident_bytes().unwrap_or(0),
            device: state.device.clone(),
        });
        self.replies.send(&Reply::Usage {
            id: self.id,
            wall_secs: self.started.elapsed().as_secs_f64(),
            cpu_secs: self.cpu_started.and_then(|start| start.try_elapsed().ok()).map(|time| time.as_secs_f64()),
            threads: self.threads,
        });
    }

    fn send_stages(&self, state: &mut ReporterState) {
        let limit = MAX_SPANS_PER_SECOND as f64;
        state.spans.allowed = (state.spans.allowed + limit * state.stages_at.elapsed().as_secs_f64()).min(limit);
        state.stages_at = Instant::now();
        let totals = self.recorder.totals();
        let samples = self.recorder.memory_samples_since(state.spans.samples, MARKS_AT_ONCE);
        if totals == state.stages && samples.is_empty() {
            return;
        }
        state.spans.samples += samples.len();
        let ended: u64 = totals.iter().map(|t| t.count).sum();
        let recorded = usize::try_from(ended.saturating_sub(self.recorder.dropped_spans())).unwrap_or(usize::MAX);
        // Stages count as progress of the job, so unchanged ones are not sent.
        if totals != state.stages {
            self.replies.send(&Reply::Stages { id: self.id, totals: totals.clone() });
            state.stages = totals;
        }
        let max = state.spans.allowed as usize;
        let (spans, left_out) = state.spans.next(&self.recorder, recorded, max);
        state.spans.allowed -= spans.len() as f64;
        let marks = self.recorder.memory_marks_since(state.spans.marks, MARKS_AT_ONCE);
        state.spans.marks += marks.len();
        if !spans.is_empty() || !marks.is_empty() || !samples.is_empty() {
            let dropped = left_out + self.recorder.dropped_spans();
            self.replies.send(&Reply::Spans { id: self.id, spans, marks, samples, dropped });
        }
    }
}

impl Cursor {
    /// Returns the next spans to send, at most `max`, of the `recorded` ones; and how many were left out so far.
    fn next(&mut self, recorder: &Recorder, recorded: usize, max: usize) -> (Vec<SpanRecord>, u64) {
        // Only the newest spans are considered.
        let from = self.spans.max(recorded.saturating_sub(SPANS_AT_ONCE));
        let mut left_out = from - self.spans;
        let mut spans = recorder.spans_since(from, SPANS_AT_ONCE);
        self.spans = from + spans.len();
        let max = max.min(MAX_SPANS_PER_JOB.saturating_sub(self.sent));
        if spans.len() > max {
            left_out += spans.len() - max;
            // Tiles and stages precede operators, and long spans precede short ones.
            spans.sort_by(|a, b| {
                let minor = |s: &SpanRecord| s.stage == Stage::Op;
                minor(a).cmp(&minor(b)).then(b.duration_us.total_cmp(&a.duration_us))
            });
            spans.truncate(max);
        }
        spans.sort_by(|a, b| a.start_us.total_cmp(&b.start_us));
        self.sent += spans.len();
        self.left_out += left_out as u64;
        (spans, self.left_out)
    }
}

impl LiveSink for ProgressReporter {
    fn begin(&self, volume: &LiveVolume<'_>) {
        let mut state = self.state();
        self.send_regions(&mut state);
        state.live = None;
        let path = self.folder.join(format!("live-{}-{}.f32", self.id, state.live_count));
        state.live_count += 1;
        match LiveFile::create(&path, volume) {
            Ok(live) => state.live = Some(live),
            Err(error) => self.report_live_error(&error),
        }
    }

    fn is_due(&self) -> bool {
        self.state().regions_at.elapsed() >= TICK
    }

    fn tile(&self, start_zyx: [usize; 3], size_zyx: [usize; 3], values: &[f32]) {
        let mut state = self.state();
        let Some(live) = &state.live else { return };
        let region = LiveRegion { start_zyx, size_zyx };
        if let Err(error) = live.write(region, values) {
            state.live = None;
            state.regions.clear();
            return self.report_live_error(&error);
        }
        if !state.regions.contains(&region) {
            state.regions.push(region);
        }
        if state.regions.len() >= MAX_LIVE_REGIONS || state.regions_at.elapsed() >= TICK {
            self.send_regions(&mut state);
        }
    }
}

impl ProgressReporter {
    /// Reports that the prediction cannot be shown while it runs; the prediction itself continues.
    fn report_live_error(&self, why: &std::io::Error) {
        let message = format!("the live view of the prediction is not available: {why}; the results are not affected");
        self.replies.send(&Reply::Progress { id: self.id, event: Event::Note(message.into()) });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]
mod tests {
    use super::*;
    use cytoscope_pipeline::ProgressUnit;
    use cytoscope_testkit::SharedBuffer;

    #[test]
    fn all_training_events_are_sent_in_order_with_progress() {
        let output = SharedBuffer::default();
        let replies = Arc::new(ReplyWriter::new(output.clone()));
        let reporter = ProgressReporter::new(replies, JobId(1), Recorder::totals_only(), PathBuf::from("."), 1);
        let steps = 300;
        for step in 1..=steps {
            let (loss, rate, step_secs, stalled_secs) = (1.0 / step as f64, 1e-3, 0.5, 0.25);
            reporter.training_event(&TrainEvent::TrainingSteps { step, steps, loss, rate, step_secs, stalled_secs });
            reporter.event(&Event::Progress(StageProgress {
                stage: ProgressStage::Train,
                done: step,
                total: steps,
                unit: ProgressUnit::Steps,
                rate: 1.0,
                eta_secs: 1.0,
            }));
        }
        reporter.finish();
        let text = String::from_utf8(output.bytes()).unwrap();
        let mut seen = 0;
        for reply in text.lines().map(|l| serde_json::from_str::<Reply>(l).unwrap()) {
            match reply {
                Reply::Training { event: TrainEvent::TrainingSteps { step, .. }, .. } => {
                    assert_eq!(step, seen + 1, "no event is left out");
                    seen = step;
                }
                Reply::Progress { event: Event::Progress(progress), .. } => assert_eq!(progress.done, seen),
                _ => {}
            }
        }
        assert_eq!(seen, steps);
    }

    #[test]
    fn the_end_of_a_job_reports_its_times_and_threads() {
        let output = SharedBuffer::default();
        let replies = Arc::new(ReplyWriter::new(output.clone()));
        let reporter = ProgressReporter::new(replies, JobId(7), Recorder::totals_only(), PathBuf::from("."), 3);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        reporter.finish();
        let text = String::from_utf8(output.bytes()).unwrap();
        let found = text.lines().find_map(|line| match serde_json::from_str::<Reply>(line).unwrap() {
            Reply::Usage { id, wall_secs, cpu_secs, threads } => Some((id, wall_secs, cpu_secs.unwrap(), threads)),
            _ => None,
        });
        let (id, wall_secs, cpu_secs, threads) = found.unwrap_or_else(|| panic!("no usage in {text}"));
        assert_eq!((id, threads), (JobId(7), 3));
        assert!(wall_secs >= 0.02 && cpu_secs > 0.0, "{text}");
    }
}
