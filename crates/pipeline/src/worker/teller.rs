//! What a running job tells, slowed to what a window can draw.

use super::live::LiveFile;
use super::{DeviceInUse, JobId, LiveRegion, MAX_LIVE_REGIONS, MAX_SPANS_A_JOB, MAX_SPANS_A_SECOND, Reply};
use crate::predict::{LiveSink, LiveVolume};
use crate::{Event, JobErrorKind};
use cytoscope_profile::{Recorder, SpanRecord, Stage, StageTotal};
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time between two lines of progress, or of live regions.
pub(super) const TICK: Duration = Duration::from_millis(50);
/// Time between two stage tables.
const STAGES_EVERY: Duration = Duration::from_millis(250);
/// Time between two lines on memory.
const MEMORY_EVERY: Duration = Duration::from_millis(500);
/// Spans looked at for one line.
const SPANS_AT_ONCE: usize = 16_384;
/// Memory marks sent in one line.
const MARKS_AT_ONCE: usize = 256;

/// The worker's standard output: whole lines, from any thread.
pub(super) struct Line(Mutex<Box<dyn Write + Send>>);

impl Line {
    pub(super) fn new(out: impl Write + Send + 'static) -> Self {
        Self(Mutex::new(Box::new(out)))
    }

    /// Says a line. One that cannot be said because nobody listens is dropped: standard input then ends, too.
    pub(super) fn tell(&self, reply: &Reply) {
        let text = serde_json::to_string(reply).or_else(|error| {
            // Paths may hold bytes that are no text.
            let sentence = format!("the answer cannot be written down: {error}");
            serde_json::to_string(&match reply.ends() {
                Some(id) => Reply::Failed { id, kind: JobErrorKind::BadInput, sentence },
                None => Reply::Fault { sentence },
            })
        });
        if let Ok(mut text) = text {
            text.push('\n');
            let mut out = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        }
    }

    pub(super) fn fault(&self, sentence: impl Into<String>) {
        self.tell(&Reply::Fault { sentence: sentence.into() });
    }
}

/// Speaks for one job.
pub(super) struct Teller {
    line: Arc<Line>,
    id: JobId,
    recorder: Recorder,
    folder: PathBuf,
    state: Mutex<State>,
}

struct State {
    /// The stage told last, and when.
    stage: String,
    progress_at: Instant,
    /// Progress that waits to be told.
    progress: Option<Event>,
    device: Option<DeviceInUse>,
    live: Option<LiveFile>,
    /// Live arrays made so far.
    live_count: usize,
    regions: Vec<LiveRegion>,
    regions_at: Instant,
    stages: Vec<StageTotal>,
    stages_at: Instant,
    memory_at: Instant,
    spans: Cursor,
}

/// What of the recorder was told.
#[derive(Default)]
struct Cursor {
    spans: usize,
    marks: usize,
    sent: usize,
    /// Spans that may be told now: what was not used of the last second.
    allowed: f64,
    left_out: u64,
}

impl Teller {
    pub(super) fn new(line: Arc<Line>, id: JobId, recorder: Recorder, folder: PathBuf) -> Self {
        let now = Instant::now();
        let state = State {
            stage: String::new(),
            progress_at: now,
            progress: None,
            device: None,
            live: None,
            live_count: 0,
            regions: Vec::new(),
            regions_at: now,
            stages: Vec::new(),
            stages_at: now,
            memory_at: now,
            // A short job tells all it has at its end.
            spans: Cursor { allowed: MAX_SPANS_A_SECOND as f64, ..Cursor::default() },
        };
        Self { line, id, recorder, folder, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hears the job.
    pub(super) fn event(&self, event: &Event) {
        let mut state = self.state();
        match event {
            Event::Progress { stage, done, total, .. } => {
                let same = state.stage == *stage;
                if same && done < total && state.progress_at.elapsed() < TICK {
                    state.progress = Some(event.clone());
                    return;
                }
                if same {
                    state.progress = None;
                }
                self.tell_progress(&mut state);
                state.stage = stage.to_string();
                state.progress = Some(event.clone());
                self.tell_progress(&mut state);
            }
            other => {
                if let Event::Device { id, name, why } = other {
                    state.device = Some(DeviceInUse { id: *id, name: name.clone(), why: why.clone() });
                }
                self.tell_progress(&mut state);
                self.line.tell(&Reply::Progress { id: self.id, event: other.clone() });
            }
        }
    }

    fn tell_progress(&self, state: &mut State) {
        if let Some(event) = state.progress.take() {
            state.progress_at = Instant::now();
            self.line.tell(&Reply::Progress { id: self.id, event });
        }
    }

    fn tell_regions(&self, state: &mut State) {
        let regions = std::mem::take(&mut state.regions);
        let Some(live) = state.live.as_ref().filter(|_| !regions.is_empty()) else { return };
        self.line.tell(&Reply::Live {
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

    /// Tells what is due; called every [`TICK`].
    pub(super) fn tick(&self) {
        let mut state = self.state();
        if state.progress_at.elapsed() >= TICK {
            self.tell_progress(&mut state);
        }
        if state.regions_at.elapsed() >= TICK {
            self.tell_regions(&mut state);
        }
        if state.stages_at.elapsed() >= STAGES_EVERY {
            self.tell_stages(&mut state);
        }
        if state.memory_at.elapsed() >= MEMORY_EVERY {
            state.memory_at = Instant::now();
            self.tell_memory(&state);
        }
    }

    /// Tells all that is left, before the job's end is told. Gives the live array, which outlives the job.
    pub(super) fn finish(&self) -> Option<LiveFile> {
        let mut state = self.state();
        self.tell_progress(&mut state);
        self.tell_regions(&mut state);
        self.tell_stages(&mut state);
        self.tell_memory(&state);
        state.live.take()
    }

    fn tell_memory(&self, state: &State) {
        self.line.tell(&Reply::Memory {
            resident_bytes: cytoscope_profile::resident_bytes().unwrap_or(0),
            peak_resident_bytes: cytoscope_profile::peak_resident_bytes().unwrap_or(0),
            device: state.device.clone(),
        });
    }

    fn tell_stages(&self, state: &mut State) {
        let most = MAX_SPANS_A_SECOND as f64;
        state.spans.allowed = (state.spans.allowed + most * state.stages_at.elapsed().as_secs_f64()).min(most);
        state.stages_at = Instant::now();
        let totals = self.recorder.totals();
        if totals == state.stages {
            return;
        }
        let ended: u64 = totals.iter().map(|t| t.count).sum();
        let kept = usize::try_from(ended.saturating_sub(self.recorder.dropped_spans())).unwrap_or(usize::MAX);
        self.line.tell(&Reply::Stages { id: self.id, totals: totals.clone() });
        state.stages = totals;
        let may = state.spans.allowed as usize;
        let (spans, left_out) = state.spans.next(&self.recorder, kept, may);
        state.spans.allowed -= spans.len() as f64;
        let marks = self.recorder.memory_marks_since(state.spans.marks, MARKS_AT_ONCE);
        state.spans.marks += marks.len();
        if !spans.is_empty() || !marks.is_empty() {
            let dropped = left_out + self.recorder.dropped_spans();
            self.line.tell(&Reply::Spans { id: self.id, spans, marks, dropped });
        }
    }
}

impl Cursor {
    /// The spans to tell next, at most `may`, of `kept` that the recorder has; and how many were left out so far.
    fn next(&mut self, recorder: &Recorder, kept: usize, may: usize) -> (Vec<SpanRecord>, u64) {
        // Older ones than can be looked at once are skipped.
        let from = self.spans.max(kept.saturating_sub(SPANS_AT_ONCE));
        let mut left_out = from - self.spans;
        let mut spans = recorder.spans_since(from, SPANS_AT_ONCE);
        self.spans = from + spans.len();
        let may = may.min(MAX_SPANS_A_JOB.saturating_sub(self.sent));
        if spans.len() > may {
            left_out += spans.len() - may;
            // Tiles and stages before operators, long ones before short ones.
            spans.sort_by(|a, b| {
                let minor = |s: &SpanRecord| s.stage == Stage::Op;
                minor(a).cmp(&minor(b)).then(b.duration_us.total_cmp(&a.duration_us))
            });
            spans.truncate(may);
        }
        spans.sort_by(|a, b| a.start_us.total_cmp(&b.start_us));
        self.sent += spans.len();
        self.left_out += left_out as u64;
        (spans, self.left_out)
    }
}

impl LiveSink for Teller {
    fn begin(&self, volume: &LiveVolume<'_>) {
        let mut state = self.state();
        self.tell_regions(&mut state);
        state.live = None;
        let path = self.folder.join(format!("live-{}-{}.f32", self.id, state.live_count));
        state.live_count += 1;
        match LiveFile::create(&path, volume) {
            Ok(live) => state.live = Some(live),
            Err(error) => self.not_shown(&error),
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
            return self.not_shown(&error);
        }
        if !state.regions.contains(&region) {
            state.regions.push(region);
        }
        if state.regions.len() >= MAX_LIVE_REGIONS || state.regions_at.elapsed() >= TICK {
            self.tell_regions(&mut state);
        }
    }
}

impl Teller {
    /// A prediction that cannot be shown while it grows is made all the same.
    fn not_shown(&self, why: &std::io::Error) {
        let message = format!("the growing prediction is not shown: {why}; its results are not touched by this");
        self.line.tell(&Reply::Progress { id: self.id, event: Event::Note { message } });
    }
}
