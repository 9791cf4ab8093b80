//! Continuing an interrupted bench after the runs that its results hold.

use super::metrics::Figures;
use super::results::{GitInfo, Origin, TaskResult};
use super::tasks::Task;
use super::{Progress, TaskRun};
use crate::cli::eprint_line;
use crate::cli::failure::{Failure, Outcome};
use cytoscope_engine::select::fingerprint;
use std::path::Path;
use std::time::UNIX_EPOCH;

/// Returns a fingerprint of what the figures of a task depend on: its command line, and the program that runs it, which is
/// that of a commit or this one.
pub(super) fn fingerprint_of(task: &Task, of_branch: Option<&GitInfo>) -> String {
    let mut words = task.words(Path::new("out"), Path::new("trace.json"));
    words.push(of_branch.map_or_else(this_build, |git_info| git_info.commit_hash.clone()));
    fingerprint(words.join("\n").as_bytes())
}

/// Identifies this build of the program by its version, and by the size and the time of change of its file.
fn this_build() -> String {
    let of_program = std::env::current_exe().and_then(std::fs::metadata).ok();
    let changed = of_program.as_ref().and_then(|metadata| metadata.modified().ok());
    let secs = changed.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map_or(0, |since| since.as_secs());
    format!("{} {} {secs}", env!("CARGO_PKG_VERSION"), of_program.map_or(0, |metadata| metadata.len()))
}

/// Adds the runs in `earlier` results, those of the file at `path`, to the tasks that they belong to. A task that failed is
/// run again.
///
/// # Errors
/// Bad input if the results are those of other tasks or settings, or of another program or machine.
pub(super) fn restore(all: &mut [Progress], earlier: &[TaskResult], origin: &Origin, path: &Path) -> Outcome {
    for result in earlier {
        let refused = |problem: &str| {
            Failure::bad_input(format!(
                "{}: {problem}; continue with the table, the program and the machine of these results, or use --force \
                 instead of --resume to start again",
                path.display()
            ))
        };
        let name = &result.name;
        let of_task = all.iter_mut().find(|progress| progress.task.name == *name && progress.task.kind == result.kind);
        let progress = of_task.ok_or_else(|| refused(&format!("the table has no task \"{name}\"")))?;
        if result.fingerprint.as_deref() != Some(progress.fingerprint.as_str()) {
            return Err(refused(&format!(
                "task \"{name}\" was measured with other settings or by another build of the program"
            )));
        }
        let differences = origin.differences(result);
        if !differences.is_empty() {
            return Err(refused(&format!("they were measured on another machine ({})", differences.join("; "))));
        }
        let run_of =
            |figures: &Figures| TaskRun { figures: figures.clone(), dataset_info: result.dataset_info.clone() };
        progress.runs = result.run_metrics.iter().map(run_of).collect();
    }
    let runs: usize = all.iter().map(|progress| progress.runs.len()).sum();
    if !earlier.is_empty() {
        eprint_line(&format!("continuing after {runs} finished runs"));
    }
    Ok(())
}
