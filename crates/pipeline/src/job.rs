//! What every long job shares: progress, cancelling, and where its time goes.

use crate::JobError;
use cytoscope_engine::DeviceId;
use cytoscope_graph::Interrupt;
use cytoscope_profile::Recorder;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

/// Most threads that a job may ask for: more only cost time to start.
pub const MAX_THREADS: usize = 1024;

/// Refuses a number of threads that no machine has.
///
/// # Errors
/// [`JobError::WrongUse`].
pub fn check_threads(threads: usize) -> Result<(), JobError> {
    if threads <= MAX_THREADS {
        return Ok(());
    }
    Err(JobError::WrongUse(format!("{threads} threads: expected 0 (all cores) to {MAX_THREADS}")))
}

/// Asks a job to stop; it answers within a tile. Clones share one request.
#[derive(Debug, Clone, Default)]
pub struct CancelToken {
    asked: Arc<AtomicU8>,
    deadline: Option<Instant>,
}

/// Bit of a token: stop.
const CANCELLED: u8 = 1;
/// Bit of a token: end well, and soon.
const FINISHING: u8 = 2;

impl CancelToken {
    /// Asks to stop.
    pub fn cancel(&self) {
        self.asked.fetch_or(CANCELLED, Ordering::Relaxed);
    }

    /// A token that shares this one's request and counts as asked to stop from a deadline on; the earlier one, if this has one.
    pub fn until(&self, deadline: Instant) -> Self {
        let deadline = self.deadline.map_or(deadline, |own| own.min(deadline));
        Self { asked: Arc::clone(&self.asked), deadline: Some(deadline) }
    }

    /// Whether it was asked to stop, or its deadline has passed.
    pub fn is_cancelled(&self) -> bool {
        self.asked.load(Ordering::Relaxed) & CANCELLED != 0 || self.deadline.is_some_and(|at| Instant::now() >= at)
    }

    /// Asks a job that could go on for long, such as a training, to end now with the best it has. Others are not touched by it.
    pub fn finish(&self) {
        self.asked.fetch_or(FINISHING, Ordering::Relaxed);
    }

    /// Whether it was asked to end with the best it has.
    pub fn is_finishing(&self) -> bool {
        self.asked.load(Ordering::Relaxed) & FINISHING != 0
    }
}

/// What a job tells while it runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// An input is begun.
    Started {
        /// The input.
        input: PathBuf,
        /// Its place among all inputs, from 0.
        index: usize,
        /// Inputs in all.
        count: usize,
    },
    /// How far a stage is.
    Progress {
        /// The stage.
        stage: Cow<'static, str>,
        /// Units done.
        done: u64,
        /// Units in all.
        total: u64,
        /// What is counted.
        unit: Cow<'static, str>,
        /// Units a second so far.
        rate: f64,
        /// Seconds left at that rate.
        eta_secs: f64,
    },
    /// The device the job computes on; told again when another one takes over.
    Device {
        /// The device.
        id: DeviceId,
        /// What its maker calls it.
        name: String,
        /// Why it was taken, for people.
        why: String,
    },
    /// Something worth knowing.
    Note {
        /// A sentence.
        message: String,
    },
    /// Some steps of a training were taken.
    Learned {
        /// Steps done.
        step: u64,
        /// Steps planned.
        steps: u64,
        /// Mean loss of these steps.
        loss: f64,
        /// Learning rate.
        rate: f64,
        /// Seconds a step took.
        step_secs: f64,
        /// Seconds of that spent waiting for data.
        stalled_secs: f64,
    },
    /// A network being taught was tried on data it does not learn from.
    Validated {
        /// Steps done.
        step: u64,
        /// The score that decides, larger is better.
        score: f64,
        /// Scores by name.
        scores: BTreeMap<String, f64>,
        /// Whether it was the best so far.
        best: bool,
    },
    /// A picture of what a network being taught makes of data it does not learn from: an image with what is true and what was found.
    Pictured {
        /// Steps done.
        step: u64,
        /// The PNG; a newer one takes its place, and it goes when the training ends.
        path: PathBuf,
        /// What it shows, in words.
        caption: String,
    },
    /// An input is done.
    Finished {
        /// The input.
        input: PathBuf,
        /// Files written.
        outputs: Vec<PathBuf>,
    },
    /// An input failed; a batch goes on.
    Failed {
        /// The input.
        input: PathBuf,
        /// Why.
        reason: String,
    },
}

/// What a job runs with.
#[derive(Clone)]
pub struct Context {
    /// Stops it.
    pub cancel: CancelToken,
    /// Hears its events; called from the job's thread.
    pub sink: Arc<dyn Fn(&Event) + Send + Sync>,
    /// Keeps its spans.
    pub recorder: Recorder,
}

impl Default for Context {
    fn default() -> Self {
        Self { cancel: CancelToken::default(), sink: Arc::new(|_| {}), recorder: Recorder::totals_only() }
    }
}

impl Context {
    /// Tells an event.
    pub fn tell(&self, event: &Event) {
        (self.sink)(event);
    }

    /// Tells a sentence.
    pub fn note(&self, message: impl Into<String>) {
        self.tell(&Event::Note { message: message.into() });
    }

    /// # Errors
    /// [`JobError::Cancelled`] once the job was asked to stop.
    pub fn check(&self) -> Result<(), JobError> {
        if self.cancel.is_cancelled() { Err(JobError::Cancelled) } else { Ok(()) }
    }

    /// Stops compiling a model once the job was asked to stop.
    pub fn interrupt(&self) -> Interrupt {
        let cancel = self.cancel.clone();
        Interrupt::new(move || cancel.is_cancelled())
    }

    /// A meter for a stage of `total` units.
    pub fn meter(&self, stage: &'static str, total: u64, unit: &'static str) -> Meter<'_> {
        let meter = Meter { context: self, stage, total, unit, done: 0, earlier: 0, start: Instant::now() };
        meter.tell();
        meter
    }
}

/// Counts a stage's units and tells its rate and ETA.
pub struct Meter<'a> {
    context: &'a Context,
    stage: &'static str,
    total: u64,
    unit: &'static str,
    done: u64,
    /// Units that no time of this run went into.
    earlier: u64,
    start: Instant,
}

impl Meter<'_> {
    /// Counts units and tells; also the place where cancelling is answered.
    ///
    /// # Errors
    /// [`JobError::Cancelled`] once the job was asked to stop.
    pub fn add(&mut self, units: u64) -> Result<(), JobError> {
        self.done = (self.done + units).min(self.total);
        self.tell();
        self.context.check()
    }

    /// Units that an earlier run did.
    pub fn done_before(&mut self, units: u64) {
        self.done = units.min(self.total);
        self.earlier = self.done;
        self.tell();
    }

    /// As [`Meter::add`], where the total changes on the way and units are done anew.
    ///
    /// # Errors
    /// [`JobError::Cancelled`] once the job was asked to stop.
    pub fn reach(&mut self, done: u64, total: u64) -> Result<(), JobError> {
        self.total = total;
        self.done = done.min(total);
        self.tell();
        self.context.check()
    }

    fn tell(&self) {
        let rate = self.done.saturating_sub(self.earlier) as f64 / self.start.elapsed().as_secs_f64().max(1e-9);
        let left = (self.total - self.done) as f64;
        self.context.tell(&Event::Progress {
            stage: Cow::Borrowed(self.stage),
            done: self.done,
            total: self.total,
            unit: Cow::Borrowed(self.unit),
            rate,
            eta_secs: if rate > 0.0 { left / rate } else { 0.0 },
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_deadline_cancels_its_token_alone_and_cancelling_both() {
        let token = CancelToken::default();
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(1000));
        let (over, waiting) = (token.until(now), token.until(later));
        assert!(over.is_cancelled() && !waiting.is_cancelled() && !token.is_cancelled());
        assert!(waiting.until(now).is_cancelled() && over.until(later).is_cancelled(), "the earlier one counts");
        token.finish();
        assert!(waiting.is_finishing() && !waiting.is_cancelled());
        waiting.cancel();
        assert!(token.is_cancelled());
    }
}
