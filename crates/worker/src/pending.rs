//! The jobs and queries of the client that have no final reply yet.

use super::watch::Activity;
use super::{JobId, Request};

/// A job or query without a final reply.
pub(super) struct PendingRequest {
    pub(super) id: JobId,
    pub(super) request: Request,
    pub(super) is_running: bool,
    pub(super) is_cancelled: bool,
    /// Whether an earlier process ran the job.
    is_continued: bool,
    pub(super) activity: Activity,
}

impl PendingRequest {
    pub(super) fn new(id: JobId, request: Request) -> Self {
        let activity = Activity::new();
        Self { id, request, is_running: false, is_cancelled: false, is_continued: false, activity }
    }

    /// Returns the request that continues the job in the next process, with a note, after its process has ended for this
    /// reason; `None` if it is lost.
    pub(super) fn continued(&self, has_gpu: Option<bool>, reason: &str) -> Option<(Self, String)> {
        let Request::Run { id, job } = &self.request else { return None };
        let gpu = self.activity.gpu(job, has_gpu);
        let continued = job.continued(gpu.as_deref(), self.activity.has_trained(), reason);
        let (job, note) = continued.filter(|_| !self.is_continued)?;
        Some((Self { is_continued: true, ..Self::new(*id, Request::run(*id, job)) }, note))
    }
}

/// Returns the numbers of jobs.
pub(super) fn ids(jobs: impl IntoIterator<Item = PendingRequest>) -> Vec<JobId> {
    jobs.into_iter().map(|open| open.id).collect()
}
