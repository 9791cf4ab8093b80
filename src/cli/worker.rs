//! `cytoscope worker`: the engine process behind the window.

use super::failure::{Failure, Outcome};
use super::{devices, signals};
use clap::Args;
use cytoscope_pipeline::worker::{Setup, refuse_external_job, serve};
use cytoscope_pipeline::{Context, DiameterJob, JobError};
use cytoscope_train::{CheckJob, EstimateJob, TrainJob};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fs::File;
use std::io::{self, BufReader};

/// Reads jobs as JSON lines from standard input and writes events to standard output, as docs/worker-protocol.md
/// describes. Ends when standard input closes.
#[derive(Args)]
pub(crate) struct Worker {}

impl Worker {
    pub(crate) fn run(self) -> Outcome {
        // Ctrl-C in a terminal reaches both the window and its worker; the worker ends when the window closes its
        // input.
        let _ = signals::handle(|request| {
            if request == signals::Request::Terminate {
                cytoscope_storage::write::remove_unfinished();
                std::process::exit(5);
            }
        });
        let output =
            own_stdout().map_err(|e| Failure::other(format!("standard output cannot be reserved for replies: {e}")))?;
        let setup = Setup {
            discover: Box::new(devices::discover),
            temporary: std::env::temp_dir(),
            external_jobs: Box::new(run_external_job),
        };
        let input = BufReader::with_capacity(1 << 16, io::stdin());
        serve(input, output, setup).map_err(|e| {
            let folder = std::env::temp_dir();
            Failure::other(format!(
                "no private folder can be created in {}: {e}; check the free space and permissions there",
                folder.display()
            ))
        })
    }
}

/// Runs the jobs of crates above `cytoscope-pipeline`: training, its estimates and checks, and object diameters.
fn run_external_job(kind: &str, job: Value, context: &Context) -> Result<Value, JobError> {
    match kind {
        TrainJob::KIND => {
            let job = read::<TrainJob>(kind, job)?;
            written(&job.run(context, &devices::for_training(job.device))?)
        }
        EstimateJob::KIND => {
            let job = read::<EstimateJob>(kind, job)?;
            written(&job.run(context, &devices::for_training(job.device))?)
        }
        DiameterJob::KIND => {
            let job = read::<DiameterJob>(kind, job)?;
            written(&job.run(context, &devices::for_request(job.prediction.device))?)
        }
        CheckJob::KIND => written(&read::<CheckJob>(kind, job)?.run(context)?),
        _ => refuse_external_job(kind, job, context),
    }
}

fn read<T: DeserializeOwned>(kind: &str, job: Value) -> Result<T, JobError> {
    serde_json::from_value(job).map_err(|e| JobError::WrongUse(format!("invalid job \"{kind}\": {e}")))
}

fn written(report: &impl Serialize) -> Result<Value, JobError> {
    serde_json::to_value(report).map_err(|e| JobError::WrongUse(format!("the report cannot be written as JSON: {e}")))
}

/// Returns standard output, reserved for replies: what drivers print to it goes to standard error instead.
#[cfg(unix)]
pub(super) fn own_stdout() -> io::Result<File> {
    use std::os::fd::AsFd;
    let own = io::stdout().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdout(io::stderr())?;
    Ok(File::from(own))
}

/// Returns standard output.
#[cfg(not(unix))]
pub(super) fn own_stdout() -> io::Result<io::Stdout> {
    Ok(io::stdout())
}
