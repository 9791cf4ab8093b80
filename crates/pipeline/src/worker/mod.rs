//! The engine process behind the workbench, and the window's end of the line to it.
//!
//! Drivers and code generators of GPUs do crash natively: then a job fails with a reason and no window closes, because jobs run
//! in a process of their own, `cytoscope worker`, which is kept warm. [`serve`] is that process: it takes [`Request`]s, one JSON
//! object a line, from its standard input, and tells [`Reply`]s on its standard output; its log goes to standard error.
//! [`Worker`] is the client: it starts the process, restarts it when it dies, and says which job was lost. Arrays go through
//! files in a private folder of the process, which [`LiveArray`] and [`LabelArray`] read.
//!
//! The process ends when its standard input closes, in mid-job too, and leaves neither its folder nor half-written results. What
//! a killed one leaves is removed by the client, and where that was killed as well, by the next worker.
//!
//! Trouble is told, not returned: a line that is not understood is a [`Reply::Fault`], a failed job a [`Reply::Failed`], a dead
//! process a [`WorkerEvent::Died`]. Only reading arrays gives [`crate::JobError`], and [`serve`] the system's error where no private
//! folder can be made.

mod arrays;
mod child;
mod client;
mod folder;
mod inbox;
mod live;
mod protocol;
mod queue;
mod serve;
mod teller;

pub use arrays::{LabelArray, LiveArray};
pub use client::{Worker, WorkerEvent, WorkerState};
pub use protocol::{
    DeviceInUse, JobId, JobResult, LiveRegion, MAX_LIVE_REGIONS, MAX_QUEUED_JOBS, MAX_REPLY_BYTES, MAX_REQUEST_BYTES,
    MAX_SPANS_A_JOB, MAX_SPANS_A_SECOND, PROTOCOL_VERSION, Reply, Request,
};
pub use serve::{Further, Setup, no_further, serve};
