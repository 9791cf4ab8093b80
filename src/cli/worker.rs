//! `cytoscope worker`: the engine process behind the window.

use super::failure::{Failure, Outcome};
use super::{devices, signals};
use clap::Args;
use cytoscope_storage::io_problem;
use cytoscope_worker::{WorkerOptions, serve};
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
        let handled = signals::handle(|request| {
            if request == signals::TerminationRequest::Terminate {
                cytoscope_storage::write::remove_unfinished();
                cytoscope_storage::partial_folder::remove_unfinished_folders();
                std::process::exit(5);
            }
        });
        if let Err(error) = handled {
            tracing::warn!("signals are not handled, unfinished files may be left: {error}");
        }
        let output =
            own_stdout().map_err(|e| Failure::other(format!("standard output cannot be reserved for replies: {e}")))?;
        let options = WorkerOptions { discover: Box::new(devices::discover), temporary: std::env::temp_dir() };
        let input = BufReader::with_capacity(1 << 16, io::stdin());
        serve(input, output, options).map_err(|e| {
            let folder = std::env::temp_dir();
            Failure::other(format!("no private folder can be created in {}: {}", folder.display(), io_problem(&e)))
                .and_next("check the free space and permissions there")
        })
    }
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
