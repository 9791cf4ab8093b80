//! Jobs whose ids are known before the jobs are queued.
//!
//! A part of the window that needs a job may only read [`Work`]. It reserves the id and returns an effect that queues the
//! job, so that it can already refer to the job, for example to cancel it.

use super::{JobState, Purpose, TrainingTimes, Work};
use cytoscope_worker::{Job, JobId, Request};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// A job that is not a prediction, segmentation or measurement, and is not queued yet.
#[derive(Debug)]
pub(crate) struct NewJob {
    /// Id that is reserved for it.
    pub(crate) id: JobId,
    title: String,
    purpose: Purpose,
    job: Job,
}

/// The ids of jobs and queries.
#[derive(Debug, Default)]
pub(super) struct JobIds {
    /// Number of the latest one.
    latest: Cell<u64>,
    /// Those of jobs that are not queued yet.
    reserved: RefCell<BTreeSet<JobId>>,
}

impl JobIds {
    /// Returns a new id.
    pub(super) fn next(&self) -> JobId {
        let next = self.latest.get() + 1;
        self.latest.set(next);
        JobId(next)
    }

    fn reserve(&self) -> JobId {
        let id = self.next();
        self.reserved.borrow_mut().insert(id);
        id
    }
}

impl Work {
    /// Reserves the id of a job that is not a prediction, segmentation or measurement; [`Self::queue`] queues the job.
    pub(crate) fn reserve(&self, title: String, purpose: Purpose, job: Job) -> NewJob {
        NewJob { id: self.ids.reserve(), title, purpose, job }
    }

    /// Whether the id belongs to a job that is not queued yet.
    pub(crate) fn is_reserved(&self, id: JobId) -> bool {
        self.ids.reserved.borrow().contains(&id)
    }

    /// Queues a job whose id was reserved.
    pub(crate) fn queue(&mut self, NewJob { id, title, purpose, job }: NewJob) {
        self.ids.reserved.borrow_mut().remove(&id);
        self.add_job(id, title, purpose, &job);
        if let (Job::Train(train), Some(view)) = (&job, self.job(id)) {
            view.training = Some(TrainingTimes::new(&train.config));
        }
        if self.worker.is_none() {
            self.end(id, JobState::Failed("the engine is not running".to_owned()));
            // The part that has requested the job looks at its state in the next frame.
            (self.wake)();
        }
        self.send(Request::run(id, job));
    }

    /// Runs a job that is not a prediction, segmentation or measurement.
    pub fn run(&mut self, title: String, purpose: Purpose, job: Job) -> JobId {
        let new = self.reserve(title, purpose, job);
        let id = new.id;
        self.queue(new);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_job_keeps_the_id_that_was_reserved_for_it_and_its_end_without_an_engine_wakes_the_window() {
        let wakes = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&wakes);
        let wake = move || {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        let mut work = Work::new(None, None, Arc::new(wake));
        let job = |model: &str| Job::ModelSpeed(serde_json::from_value(serde_json::json!({"model": model})).unwrap());
        let first = work.reserve("first".to_owned(), Purpose::Check, job("/a"));
        let second = work.reserve("second".to_owned(), Purpose::Check, job("/b"));
        let ids = [first.id, second.id];
        assert!(ids[0] != ids[1] && ids.iter().all(|id| work.is_reserved(*id)));
        assert_eq!((work.active(), wakes.load(Ordering::Relaxed)), (0, 0));
        work.queue(second);
        work.queue(first);
        let listed: Vec<(JobId, &str)> = work.jobs.iter().map(|job| (job.id, job.title.as_str())).collect();
        assert_eq!(listed, [(ids[1], "second"), (ids[0], "first")]);
        assert!(!ids.iter().any(|id| work.is_reserved(*id)));
        assert_eq!(wakes.load(Ordering::Relaxed), 2);
    }
}
