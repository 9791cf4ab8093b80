//! `cytoscope worker`.

use super::failure::{Failure, Outcome};
use super::{devices, signals};
use clap::Args;
use cytoscope_pipeline::worker::{Setup, no_further, serve};
use cytoscope_pipeline::{Context, DiameterJob, JobError};
use cytoscope_train::{CheckJob, EstimateJob, TrainJob};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fs::File;
use std::io::{self, BufReader};

/// Takes jobs as JSON lines on standard input and tells events on standard output, as docs/worker-protocol.md describes; ends when
/// standard input closes.
#[derive(Args)]
pub(crate) struct Worker {}

impl Worker {
    pub(crate) fn run(self) -> Outcome {
        // Ctrl-C in a terminal reaches the window and its worker alike; the worker ends when the window closes its input.
        let _ = signals::handle(|request| {
            if request == signals::Request::Terminate {
                cytoscope_storage::write::remove_unfinished();
                std::process::exit(5);
            }
        });
        let output = own_stdout().map_err(|e| Failure::other(format!("standard output cannot be set apart: {e}")))?;
        let setup = Setup {
            discover: Box::new(devices::discover),
            temporary: std::env::temp_dir(),
            further: Box::new(further),
        };
        let input = BufReader::with_capacity(1 << 16, io::stdin());
        serve(input, output, setup).map_err(|e| {
            let folder = std::env::temp_dir();
            Failure::other(format!("no private folder can be made in {}: {e}", folder.display()))
        })
    }
}

/// The jobs of rooms above the worker's own.
fn further(kind: &str, job: Value, context: &Context) -> Result<Value, JobError> {
    match kind {
        TrainJob::KIND => {
            let job = read::<TrainJob>(kind, job)?;
            written(&job.run(context, &devices::for_training(&job.device))?)
        }
        EstimateJob::KIND => {
            let job = read::<EstimateJob>(kind, job)?;
            written(&job.run(context, &devices::for_training(&job.device))?)
        }
        DiameterJob::KIND => {
            let job = read::<DiameterJob>(kind, job)?;
            written(&job.run(context, &devices::for_request(&job.prediction.device))?)
        }
        CheckJob::KIND => written(&read::<CheckJob>(kind, job)?.run(context)?),
        _ => no_further(kind, job, context),
    }
}

fn read<T: DeserializeOwned>(kind: &str, job: Value) -> Result<T, JobError> {
    serde_json::from_value(job).map_err(|e| JobError::WrongUse(format!("this is no job \"{kind}\": {e}")))
}

fn written(report: &impl Serialize) -> Result<Value, JobError> {
    serde_json::to_value(report).map_err(|e| JobError::WrongUse(format!("the report cannot be written down: {e}")))
}

/// Standard output for replies alone: what drivers print to it goes to standard error.
#[cfg(unix)]
pub(super) fn own_stdout() -> io::Result<File> {
    use std::os::fd::AsFd;
    let own = io::stdout().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdout(io::stderr())?;
    Ok(File::from(own))
}

/// Standard output.
#[cfg(not(unix))]
pub(super) fn own_stdout() -> io::Result<io::Stdout> {
    Ok(io::stdout())
}
