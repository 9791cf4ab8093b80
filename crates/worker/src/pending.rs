//! The jobs and queries of the client that have no final reply yet.

use super::job::Continuation;
use super::watch::{Activity, UsedGpu};
use super::{JobId, Request};
use cytoscope_engine::DeviceId;

/// A job or query without a final reply.
pub(super) struct PendingRequest {
    pub(super) id: JobId,
    pub(super) request: Request,
    pub(super) is_running: bool,
    pub(super) is_canceled: bool,
    /// The GPUs that the job used when earlier processes ended.
    failed_on: Vec<DeviceId>,
    /// Whether the job is lost if its process ends: it continues on the CPU, or no GPU computed for it when an earlier process
    /// ended.
    is_last_attempt: bool,
    pub(super) activity: Activity,
}

impl PendingRequest {
    pub(super) fn new(id: JobId, request: Request) -> Self {
        let activity = Activity::new();
        let failed_on = Vec::new();
        Self { id, request, is_running: false, is_canceled: false, failed_on, is_last_attempt: false, activity }
    }

    /// Returns the GPU that computes for the job, if it runs and that GPU is known.
    pub(super) fn used_gpu(&self, has_gpu: Option<bool>) -> Option<DeviceId> {
        let Request::Run { job, .. } = &self.request else { return None };
        match self.activity.gpu_at_work(job, has_gpu).filter(|_| self.is_running) {
            Some(UsedGpu::Known(gpu)) => Some(gpu),
            Some(UsedGpu::Unknown) | None => None,
        }
    }

    /// Returns the request that continues the job in the next process, with a note, after its process has ended for this
    /// reason; `None` if it is lost. After each GPU, another device is tried, and the CPU last. If the system or the user killed
    /// the process (`is_killed`), the next one leaves out no GPU, so the CPU is tried at once.
    pub(super) fn continued(&self, has_gpu: Option<bool>, reason: &str, is_killed: bool) -> Option<(Self, String)> {
        let Request::Run { id, job } = &self.request else { return None };
        if self.is_last_attempt {
            return None;
        }
        let mut failed_on = self.failed_on.clone();
        let how = match self.activity.gpu_at_work(job, has_gpu) {
            Some(UsedGpu::Known(gpu)) if !is_killed && !failed_on.contains(&gpu) => {
                failed_on.push(gpu);
                Continuation::AnotherDevice
            }
            Some(gpu) => Continuation::Cpu(gpu),
            None => Continuation::SameDevice,
        };
        let is_last_attempt = how != Continuation::AnotherDevice;
        let (job, note) = job.continued(how, self.activity.has_trained(), reason)?;
        Some((Self { failed_on, is_last_attempt, ..Self::new(*id, Request::run(*id, job)) }, note))
    }
}

/// Returns the numbers of jobs.
pub(super) fn ids(jobs: impl IntoIterator<Item = PendingRequest>) -> Vec<JobId> {
    jobs.into_iter().map(|open| open.id).collect()
}
