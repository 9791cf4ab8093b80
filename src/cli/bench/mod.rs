//! `cytoscope bench`: runs a table of trainings and predictions, each in its own process, and compares the results.

mod metrics;
mod results;
mod tasks;

use super::failure::{Failure, Outcome};
use super::profile::read_run;
use super::{eprint_line, print, progress};
use clap::Args;
use cytoscope_pipeline::{Context, JobError, JobErrorKind};
use cytoscope_profile::Recorder;
use cytoscope_storage::Overwrite;
use cytoscope_storage::folder::{clear_working, create_working, remove_working};
use cytoscope_storage::target::check_file;
use metrics::{Figures, dataset_info, figures, nested, spreads};
use results::{GitInfo, Machine, TaskResult, amount};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;
use tasks::Task;

/// Kind of the working folder, as its marker states it.
const FOLDER_KIND: &str = "bench";
/// Upper limit of `--repeat`.
const MAX_REPEAT: usize = 1000;

/// Options of `bench`.
#[derive(Args)]
#[command(
    after_help = "Columns of TASKS.csv: name, kind (training or inference), model, data, device, precision, batch_size, \
                  epochs, overrides. Overrides are options of train or predict: \"task=segmentation;steps=20\". Only \
                  name, kind, model and data must be given; lines that start with # are comments."
)]
pub(crate) struct Bench {
    /// Table of the tasks.
    #[arg(long, value_name = "TASKS.csv")]
    config: PathBuf,
    /// File for the results.
    #[arg(long, value_name = "RESULTS.json")]
    output: PathBuf,
    /// Print speed-ups against stored results, or, without a file, against the first task of the same kind.
    #[arg(long, value_name = "STORED.json")]
    compare: Option<Option<PathBuf>>,
    /// Continue after a task that fails; its result states the error.
    #[arg(long)]
    skip_failed: bool,
    /// Number of runs of each task; the tasks take turns.
    #[arg(long, default_value_t = 1)]
    repeat: usize,
    /// Overwrite existing results; an input is never overwritten.
    #[arg(long)]
    force: bool,
}

/// Measurements of one run of a task.
struct TaskRun {
    figures: Figures,
    dataset_info: Option<Value>,
}

/// A task and its runs so far.
struct Progress {
    task: Task,
    runs: Vec<TaskRun>,
    error: Option<String>,
}

/// The folder that the tasks write to; removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn create(output: &Path) -> Result<Self, Failure> {
        let path = PathBuf::from(format!("{}.runs", output.display()));
        create_working(&path, FOLDER_KIND)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = remove_working(&self.0, FOLDER_KIND) {
            eprint_line(&format!("note: {error}"));
        }
    }
}

impl Bench {
    pub(crate) fn run(self) -> Outcome {
        if self.repeat == 0 || self.repeat > MAX_REPEAT {
            return Err(Failure::wrong_use(format!("--repeat must be between 1 and {MAX_REPEAT}")));
        }
        let tasks = tasks::read(&self.config)?;
        let stored_path = self.compare.as_ref().and_then(Option::as_deref);
        let inputs: Vec<&Path> = std::iter::once(self.config.as_path()).chain(stored_path).collect();
        check_file(&self.output, &inputs, Overwrite::from_force(self.force))?;
        let stored = stored_path.map(results::read).transpose()?;
        let context = progress::context(false, true, Recorder::totals_only());
        let timestamp = results::now();
        let mut all: Vec<Progress> =
            tasks.into_iter().map(|task| Progress { task, runs: Vec::new(), error: None }).collect();
        let outcome = self.run_all(&context, &mut all);
        let done = finished(all, &timestamp);
        if !done.is_empty() {
            let text = serde_json::to_vec_pretty(&done).map_err(|e| Failure::other(e.to_string()))?;
            cytoscope_storage::write::atomic_write(&self.output, &text)?;
        }
        outcome?;
        done.iter().for_each(print_result);
        match (&self.compare, &stored) {
            (_, Some(stored)) => results::compare_with_stored(&done, stored),
            (Some(_), None) => results::compare_with_first(&done),
            (None, None) => {}
        }
        print(&format!("wrote {}", self.output.display()));
        Ok(())
    }

    /// Runs all tasks in turn, as often as requested. A task that failed is not run again.
    fn run_all(&self, context: &Context, all: &mut [Progress]) -> Outcome {
        let scratch = Scratch::create(&self.output)?;
        for round in 1..=self.repeat {
            for progress in all.iter_mut().filter(|progress| progress.error.is_none()) {
                context.check()?;
                let name = &progress.task.name;
                eprint_line(&format!("[round {round} of {}] {name}", self.repeat));
                clear_working(&scratch.0, FOLDER_KIND, &[], &[])?;
                match run_once(&progress.task, &scratch.0) {
                    Ok(run) => progress.runs.push(run),
                    Err(failure) if failure.kind() == JobErrorKind::Cancelled => return Err(failure),
                    Err(failure) => {
                        progress.error = Some(failure.to_string());
                        let sentence = format!("task {name} failed: {failure}");
                        if !self.skip_failed {
                            return Err(Failure::new(failure.kind(), sentence));
                        }
                        eprint_line(&sentence);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Runs a task once, in a process of its own, so that its peak memory is its own.
fn run_once(task: &Task, scratch: &Path) -> Result<TaskRun, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::other(format!("the path of this program is unknown: {error}")))?;
    let trace = scratch.join("trace.json");
    let start = Instant::now();
    let mut command = Command::new(program);
    command.args(task.words(&scratch.join("out"), &trace)).stdin(Stdio::null());
    let out = command.output().map_err(|error| Failure::other(format!("the task cannot be started: {error}")))?;
    let total_secs = start.elapsed().as_secs_f64();
    if !out.status.success() {
        return Err(failure_of(out.status.code(), &String::from_utf8_lossy(&out.stderr)));
    }
    let report: Value = serde_json::from_slice(&out.stdout)
        .map_err(|error| Failure::other(format!("the report of the task cannot be read: {error}")))?;
    let run = read_run(&trace)?;
    Ok(TaskRun {
        figures: figures(task.kind, &run, &report, total_secs),
        dataset_info: dataset_info(task.kind, &report),
    })
}

/// Returns the failure of a process by its exit code and the error that it printed last.
fn failure_of(code: Option<i32>, stderr: &str) -> Failure {
    let kinds = [JobErrorKind::WrongUse, JobErrorKind::BadInput, JobErrorKind::OutOfResources, JobErrorKind::Cancelled];
    let kind = kinds.into_iter().find(|kind| code == Some(kind.exit_code()));
    let printed = stderr.lines().rev().find_map(|line| line.strip_prefix("error: "));
    let sentence = match (printed, code) {
        (Some(printed), _) => printed.to_owned(),
        (None, Some(code)) => format!("the process ended with exit code {code} and no message"),
        (None, None) => "the process was ended by a signal, possibly for lack of memory".to_owned(),
    };
    if kind == Some(JobErrorKind::Cancelled) {
        return JobError::Cancelled.into();
    }
    Failure::new(kind.unwrap_or(JobErrorKind::Other), sentence)
}

/// Returns the results of the tasks that were run or failed.
fn finished(all: Vec<Progress>, timestamp: &str) -> Vec<TaskResult> {
    let (git_info, machine) = (GitInfo::here(), Machine::this());
    let started = all.into_iter().filter(|progress| progress.error.is_some() || !progress.runs.is_empty());
    started
        .map(|Progress { task, runs, error }| {
            let count = runs.len();
            let dataset_info = runs.last().and_then(|run| run.dataset_info.clone());
            let figures: Vec<Figures> = runs.into_iter().map(|run| run.figures).collect();
            TaskResult {
                name: task.name,
                kind: task.kind,
                timestamp: timestamp.to_owned(),
                success: error.is_none(),
                error,
                git_info: git_info.clone(),
                machine: Some(machine.clone()),
                runs: count,
                metrics: nested(&spreads(&figures)),
                dataset_info,
            }
        })
        .collect()
}

fn print_result(result: &TaskResult) {
    if let Some(error) = &result.error {
        print(&format!("{}: failed: {error}", result.name));
        return;
    }
    let runs = if result.runs == 1 { "1 run".to_owned() } else { format!("median of {} runs", result.runs) };
    print(&format!("{} ({runs}):", result.name));
    for (name, spread) in metrics::flat(&result.metrics) {
        let range = if result.runs > 1 {
            format!(" ({} to {})", amount(&name, spread.min), amount(&name, spread.max))
        } else {
            String::new()
        };
        print(&format!("  {name:30} {}{range}", amount(&name, spread.median)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_keep_the_exit_code_and_the_last_error() {
        let failure = failure_of(Some(3), "note: a\nerror: first\nerror: a.tif: not a TIFF\n");
        assert_eq!((failure.exit_code(), failure.to_string().as_str()), (3, "a.tif: not a TIFF"));
        assert_eq!(failure_of(Some(9), "").exit_code(), 1);
        assert!(failure_of(None, "").to_string().contains("signal"));
    }
}
