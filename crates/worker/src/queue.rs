//! The queue of jobs: those that wait and the one that runs.

use super::{Job, JobId, MAX_QUEUED_JOBS};
use cytoscope_pipeline::CancelToken;
use std::collections::VecDeque;

/// Jobs in the order in which they will run.
#[derive(Default)]
pub(super) struct Queue {
    waiting: VecDeque<(JobId, Job)>,
    running: Option<(JobId, CancelToken)>,
    shutting_down: bool,
}

/// Result of adding a job to the queue.
#[derive(Debug, PartialEq)]
pub(super) enum Added {
    /// The job was queued.
    Queued {
        /// Number of jobs before it, including the running one.
        ahead: usize,
        /// A waiting job that it replaced.
        replaced: Option<JobId>,
    },
    /// The job was refused because its number is in use.
    DuplicateId,
    /// The job was refused because too many jobs are waiting.
    Full,
}

impl Queue {
    /// Adds a job at the end, or in place of the one that it replaces.
    pub(super) fn add(&mut self, id: JobId, job: Job) -> Added {
        if self.contains(id) {
            return Added::DuplicateId;
        }
        let is_running = |id: JobId| self.running.as_ref().is_some_and(|(r, _)| *r == id);
        let old = if let Job::Segment { replaces, .. } = &job { *replaces } else { None };
        let place = old.and_then(|old| self.waiting.iter().position(|(w, _)| *w == old));
        if place.is_none() && self.waiting.len() >= MAX_QUEUED_JOBS {
            return Added::Full;
        }
        let mut replaced = None;
        let at = match (place, old) {
            (Some(at), _) => {
                replaced = self.waiting.remove(at).map(|(id, _)| id);
                at
            }
            (None, Some(old)) if is_running(old) => {
                self.cancel(old);
                0
            }
            _ => self.waiting.len(),
        };
        self.waiting.insert(at, (id, job));
        Added::Queued { ahead: at + usize::from(self.running.is_some()), replaced }
    }

    /// Returns whether a job waits or runs.
    pub(super) fn contains(&self, id: JobId) -> bool {
        let is_running = self.running.as_ref().is_some_and(|(running, _)| *running == id);
        is_running || self.waiting.iter().any(|(waiting, _)| *waiting == id)
    }

    /// Cancels a job; a prediction then keeps nothing for a later run (see [`CancelToken::discard`]). Returns `true` if it was
    /// waiting and was removed; a running job only receives the request.
    pub(super) fn cancel(&mut self, id: JobId) -> bool {
        if let Some((running, token)) = &self.running
            && *running == id
        {
            token.discard();
            return false;
        }
        let place = self.waiting.iter().position(|(waiting, _)| *waiting == id);
        place.and_then(|at| self.waiting.remove(at)).is_some()
    }

    /// Requests the job to finish early if it is the running one.
    pub(super) fn finish_early(&self, id: JobId) {
        if let Some((_, token)) = self.running.as_ref().filter(|(running, _)| *running == id) {
            token.finish();
        }
    }

    /// Removes the next job from the queue and marks it as running.
    pub(super) fn start_next(&mut self) -> Option<(JobId, Job, CancelToken)> {
        let (id, job) = self.waiting.pop_front()?;
        let token = CancelToken::default();
        self.running = Some((id, token.clone()));
        Some((id, job, token))
    }

    /// Marks the running job as ended.
    pub(super) fn mark_done(&mut self) {
        self.running = None;
    }

    /// Cancels the running job, which the next worker may continue, and removes the others.
    pub(super) fn shut_down(&mut self) {
        self.shutting_down = true;
        self.waiting.clear();
        if let Some((_, token)) = &self.running {
            token.cancel();
        }
    }

    /// Whether the client has asked the process to end, or has closed the pipe; no further job starts.
    pub(super) fn is_shutting_down(&self) -> bool {
        self.shutting_down
    }

    /// Whether a job was taken from the queue and has not ended.
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]
mod tests {
    use super::*;
    use cytoscope_pipeline::SegmentJob;

    fn segment(id: u64, replaces: Option<u64>) -> (JobId, Job) {
        let segmentation: SegmentJob = serde_json::from_str("{\"map\": \"m.tif\"}").unwrap();
        (JobId(id), Job::Segment { segmentation, replaces: replaces.map(JobId) })
    }

    #[test]
    fn a_newer_segmentation_replaces_the_older_one() {
        let mut queue = Queue::default();
        let add = |queue: &mut Queue, id, replaces| {
            let (id, job) = segment(id, replaces);
            queue.add(id, job)
        };
        assert_eq!(add(&mut queue, 1, None), Added::Queued { ahead: 0, replaced: None });
        let (id, _, token) = queue.start_next().unwrap();
        assert_eq!((id, queue.is_running()), (JobId(1), true));
        assert_eq!(add(&mut queue, 2, None), Added::Queued { ahead: 1, replaced: None });
        // The running job is canceled, and its replacement precedes the waiting jobs.
        assert_eq!(add(&mut queue, 3, Some(1)), Added::Queued { ahead: 1, replaced: None });
        assert!(token.is_canceled());
        // A waiting job is removed at once, and its replacement takes its place.
        assert_eq!(add(&mut queue, 4, Some(3)), Added::Queued { ahead: 1, replaced: Some(JobId(3)) });
        assert_eq!(add(&mut queue, 5, Some(99)), Added::Queued { ahead: 3, replaced: None });
        assert_eq!(add(&mut queue, 4, None), Added::DuplicateId);
        assert_eq!(add(&mut queue, 1, None), Added::DuplicateId);
        queue.mark_done();
        assert!(queue.cancel(JobId(2)) && !queue.cancel(JobId(2)));
        let order: Vec<JobId> = std::iter::from_fn(|| queue.start_next()).map(|(id, ..)| id).collect();
        assert_eq!(order, [JobId(4), JobId(5)]);
    }

    #[test]
    fn only_the_running_job_can_be_finished() {
        let mut queue = Queue::default();
        for i in [1, 2] {
            let (id, job) = segment(i, None);
            queue.add(id, job);
        }
        let (_, _, first) = queue.start_next().unwrap();
        queue.finish_early(JobId(2));
        assert!(!first.is_finishing());
        queue.finish_early(JobId(1));
        assert!(first.is_finishing() && !first.is_canceled());
        queue.mark_done();
        let (_, _, second) = queue.start_next().unwrap();
        assert!(!second.is_finishing());
    }

    #[test]
    fn only_a_job_that_is_canceled_for_good_keeps_nothing() {
        for is_shutdown in [false, true] {
            let mut queue = Queue::default();
            let (id, job) = segment(1, None);
            queue.add(id, job);
            let (_, _, token) = queue.start_next().unwrap();
            if is_shutdown {
                queue.shut_down();
            } else {
                queue.cancel(id);
            }
            assert!(token.is_canceled());
            assert_eq!(token.is_discarding(), !is_shutdown);
        }
    }

    #[test]
    fn the_queue_is_limited() {
        let mut queue = Queue::default();
        for i in 0..MAX_QUEUED_JOBS as u64 {
            let (id, job) = segment(i, None);
            assert!(matches!(queue.add(id, job), Added::Queued { .. }));
        }
        let (id, job) = segment(1 << 40, None);
        assert_eq!(queue.add(id, job), Added::Full);
        // A segmentation that is refused does not cancel the running one that it replaces.
        let (running, _, token) = queue.start_next().unwrap();
        let (id, job) = segment(2 << 40, None);
        assert!(matches!(queue.add(id, job), Added::Queued { .. }));
        let (id, job) = segment(3 << 40, Some(running.0));
        assert_eq!(queue.add(id, job), Added::Full);
        assert!(!token.is_canceled());
        queue.shut_down();
        assert!(queue.start_next().is_none() && queue.is_shutting_down());
    }
}
