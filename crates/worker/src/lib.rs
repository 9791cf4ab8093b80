//! The worker: the process behind the window that runs its jobs, and the client through which the window uses it.
//!
//! GPU drivers and their compilers may crash a process. Jobs therefore run in a separate process,
//! `cytoscope worker`, which stays alive between jobs: if it crashes, the window stays open. A prediction or a training run
//! continues in the next process, some jobs that used a GPU start again there, and any other job fails with a reason.
//! [`serve`] is that process: it reads [`Request`]s, one JSON object per line, from standard input, and writes [`Reply`]s to
//! standard output; its log goes to standard error.
//! [`Worker`] is the client: it starts the process, ends it if a job on a GPU hangs, restarts it if it dies, and reports
//! which job was lost or continues. After a GPU has failed, or other devices were found, the process retires, and the
//! client replaces it. Arrays are passed as files in a private folder of the process, which [`LiveArray`] and [`LabelArray`]
//! read.
//!
//! The process ends when its standard input closes, even during a job, and leaves neither its folder nor partly written
//! results. The client removes what a killed process left; if the client was killed, too, the next worker does.
//!
//! The crate owns the messages and how they are passed on. The jobs ([`Job`]), their results ([`JobResult`]) and their
//! events are those of [`cytoscope_pipeline`], [`cytoscope_quantize`] and [`cytoscope_train`]. [`RecordedRun`] is a job that was
//! read from a provenance record to be run again.
//!
//! Errors are reported as messages, not returned: an invalid line ([`ProtocolError`]) as [`Reply::Fault`], or as
//! [`Reply::Failed`] if it would have started a job; a failed job as [`Reply::Failed`], a dead process as
//! [`WorkerEvent::Died`]. Only reading arrays returns [`cytoscope_pipeline::JobError`], and [`serve`] returns the
//! system's error if the private folder cannot be created.
#![forbid(unsafe_code)]

mod arrays;
mod child;
mod client;
mod error;
mod folder;
mod inbox;
mod job;
mod lines;
mod live;
mod pending;
mod protocol;
mod queue;
mod recorded;
mod reporter;
mod serve;
mod watch;

pub use arrays::{LabelArray, LiveArray};
pub use client::{ContinuedJob, Worker, WorkerEvent, WorkerState};
pub use error::{ProtocolError, parse_request};
pub use job::{Job, JobResult};
pub use protocol::{
    JobId, LiveRegion, MAX_LIVE_REGIONS, MAX_QUEUED_JOBS, MAX_REPLY_BYTES, MAX_REQUEST_BYTES, MAX_SPANS_PER_JOB,
    MAX_SPANS_PER_SECOND, PROTOCOL_VERSION, Reply, Request,
};
pub use recorded::{ComparedOutput, ComparedOutputs, RecordedRun, RerunOutput};
pub use serve::{WorkerOptions, serve};
pub use watch::Timeouts;
