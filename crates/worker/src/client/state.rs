//! The state of the client: the process, the requests without a final reply, and the events that were not read yet.

use super::{ContinuedJob, WorkerEvent, WorkerState};
use crate::child::Process;
use crate::inbox::Inbox;
use crate::pending::PendingRequest;
use crate::watch::{Timeouts, reported_job};
use crate::{JobId, Reply, Request};
use cytoscope_engine::DeviceId;
use cytoscope_pipeline::JobErrorKind;
use cytoscope_pipeline::devices::FailedDevice;
use std::collections::VecDeque;
use std::sync::mpsc::Sender;
use std::time::Instant;

/// State of a [`super::Worker`], which its threads share.
pub(super) struct ClientState {
    pub(super) phase: WorkerState,
    pub(super) inbox: Inbox,
    /// Jobs and queries without a final reply, in order.
    pub(super) open: VecDeque<PendingRequest>,
    /// Whether there is a usable GPU, once the devices were listed.
    pub(super) has_gpu: Option<bool>,
    /// GPUs that were in use when processes ended. The next ones do not use them until the user has the devices listed again.
    pub(super) failed: Vec<FailedDevice>,
    /// Sender of lines to the process; set once it is ready.
    pub(super) line: Option<Sender<String>>,
    pub(super) process: Option<Process>,
    /// When the process was asked to end because it starts no further job.
    pub(super) retiring: Option<Instant>,
    /// Whether the process was asked to end.
    pub(super) is_ending: bool,
    /// Whether the client was dropped.
    pub(super) is_dropped: bool,
    /// Whether the supervisor thread has ended.
    pub(super) has_ended: bool,
}

impl ClientState {
    /// Sends a request; returns whether there are new events to poll.
    pub(super) fn send(&mut self, request: Request) -> bool {
        match &request {
            Request::Hello { .. } => return false,
            Request::Shutdown => {
                self.is_ending = true;
                self.line = None;
                self.process.iter_mut().for_each(Process::close);
                return false;
            }
            Request::Cancel { id } => {
                let id = *id;
                if let Some(open) = self.open.iter_mut().find(|o| o.id == id) {
                    open.is_canceled = true;
                    open.activity.cancel();
                }
                return if self.line.is_some() { self.write_request(&request) } else { self.drop_canceled() };
            }
            Request::Finish { .. } | Request::Release { .. } => {
                return self.line.is_some() && self.write_request(&request);
            }
            Request::Devices { again: true, .. } => self.failed.clear(),
            _ => {}
        }
        let Some(id) = request.id() else { return false };
        if self.phase == WorkerState::Dead || self.is_ending {
            let message = "the engine process has ended: restart it and try again";
            self.push(Reply::failed(id, JobErrorKind::Other, message));
            return true;
        }
        if self.line.is_some() && self.write_request(&request) {
            return true;
        }
        self.open.push_back(PendingRequest::new(id, request));
        false
    }

    /// Writes a request to the process. Returns `true` if it cannot be serialized, which is reported as an event.
    pub(super) fn write_request(&mut self, request: &Request) -> bool {
        match serde_json::to_string(request) {
            Ok(line) => {
                // The thread that reads from the process notices if it has ended.
                let _ = self.line.as_ref().map(|l| l.send(line));
                false
            }
            Err(error) => {
                let message = format!(
                    "the request cannot be written as JSON ({error}): use file names that are valid Unicode (UTF-8)"
                );
                self.push(match request.id() {
                    Some(id) => Reply::failed(id, JobErrorKind::BadInput, message),
                    None => Reply::Fault { message },
                });
                true
            }
        }
    }

    pub(super) fn push(&mut self, reply: Reply) {
        self.inbox.push(WorkerEvent::Reply(reply));
    }

    /// Handles a reply.
    pub(super) fn receive(&mut self, reply: Reply) {
        if let Some(open) = reported_job(&reply).and_then(|id| self.open.iter_mut().find(|open| open.id == id)) {
            open.activity.receive(&reply);
        }
        if let Reply::Devices { devices, .. } = &reply {
            self.has_gpu = Some(devices.iter().any(|device| device.usable && device.id != DeviceId::Cpu));
        }
        match &reply {
            Reply::Started { id } => {
                self.open.iter_mut().filter(|o| o.id == *id).for_each(|o| o.is_running = true);
            }
            Reply::Devices { id, .. } | Reply::Models { id, .. } => self.open.retain(|o| o.id != *id),
            Reply::Retiring { reason } => {
                tracing::info!("the worker is replaced: {reason}");
                self.retiring = Some(Instant::now());
                self.line = None;
                self.process.iter_mut().for_each(Process::close);
            }
            _ => {}
        }
        if let Some(id) = reply.ends() {
            self.open.retain(|o| o.id != id);
        }
        self.push(reply);
    }

    /// Ends the jobs that were canceled while no process was running; returns whether there were any.
    fn drop_canceled(&mut self) -> bool {
        let canceled: Vec<JobId> = self.open.iter().filter(|o| o.is_canceled).map(|o| o.id).collect();
        self.open.retain(|o| !o.is_canceled);
        canceled.iter().for_each(|id| self.push(Reply::Canceled { id: *id }));
        !canceled.is_empty()
    }

    /// Prepares the start of the process that follows one that has retired; returns `false` if none has. The waiting jobs
    /// are passed to it.
    pub(super) fn follow_retired(&mut self) -> bool {
        let has_retired = self.retiring.take().is_some() && !self.open.iter().any(|open| open.is_running);
        if has_retired {
            self.drop_canceled();
        }
        has_retired
    }

    /// Starts no further process; the jobs in `running` and all waiting ones are lost.
    pub(super) fn give_up(&mut self, reason: String, running: Vec<JobId>) {
        let lost = running.into_iter().chain(self.open.drain(..).map(|o| o.id)).collect();
        self.inbox.push(WorkerEvent::GaveUp { reason, lost });
        self.phase = WorkerState::Dead;
    }

    /// Leaves the GPU that the running job uses out of the next processes, because this one has ended for this reason. The
    /// driver of a GPU that hangs would hang in them, too. A job that was canceled may only take long to save its state.
    /// Returns whether there is such a GPU that was not left out before.
    pub(super) fn leave_out_used_gpu(&mut self, reason: &str) -> bool {
        let mut active = self.open.iter().filter(|open| !open.is_canceled);
        let Some(gpu) = active.find_map(|open| open.used_gpu(self.has_gpu)) else { return false };
        if self.failed.iter().any(|failed| failed.id == gpu) {
            return false;
        }
        let reason = format!("it was in use when {reason}; look for devices again to use it");
        self.failed.push(FailedDevice { id: gpu, reason });
        true
    }

    /// Removes and returns the jobs that were running in a process that has ended.
    pub(super) fn take_running(&mut self) -> VecDeque<PendingRequest> {
        self.drop_canceled();
        let (running, waiting) = std::mem::take(&mut self.open).into_iter().partition(|open| open.is_running);
        self.open = waiting;
        running
    }

    /// Queues the jobs that can be continued before the waiting ones. `is_killed` says that the system or the user killed the
    /// process. Returns these jobs, and those that are lost.
    pub(super) fn continue_jobs(
        &mut self,
        running: VecDeque<PendingRequest>,
        reason: &str,
        is_killed: bool,
    ) -> (Vec<ContinuedJob>, Vec<JobId>) {
        let (mut again, mut lost) = (Vec::new(), Vec::new());
        for open in running {
            match open.continued(self.has_gpu, reason, is_killed) {
                Some((next, note)) => {
                    again.push(ContinuedJob { id: next.id, note });
                    self.open.push_front(next);
                }
                None => lost.push(open.id),
            }
        }
        (again, lost)
    }

    /// Returns why the process counts as hung; `None` if it does not.
    pub(super) fn hang(&self, timeouts: &Timeouts) -> Option<String> {
        if self.retiring.is_some_and(|since| since.elapsed() >= timeouts.canceled) {
            return Some("it did not end after it had retired".to_owned());
        }
        self.open.iter().filter(|open| open.is_running).find_map(|open| match &open.request {
            Request::Run { job, .. } => open.activity.hang(job, self.has_gpu, timeouts),
            _ => None,
        })
    }
}
