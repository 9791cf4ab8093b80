//! `cytoscope bench`: runs a table of training runs and predictions, each in its own process, and compares the results.

mod branches;
mod metrics;
mod optimizations;
mod paired;
mod quantization;
mod restore;
mod results;
mod spans;
mod tasks;

use super::child::{self, ChildRun, Scratch};
use super::failure::{Failure, Outcome};
use super::measured::Measurement;
use super::trace_path::{check_trace, whole_around};
use super::{eprint_line, print, progress};
use clap::Args;
use cytoscope_pipeline::provenance::InputRecord;
use cytoscope_pipeline::results::check_json_file;
use cytoscope_pipeline::{Context, JobErrorKind, find_model};
use cytoscope_profile::{Recorder, Stage};
use cytoscope_quantize::ACCURACY_BUDGET;
use cytoscope_storage::Overwrite;
use cytoscope_storage::message;
use cytoscope_storage::setting::{FORCE, RESUME};
use cytoscope_storage::target::{check_extension, check_writable, resolved};
use cytoscope_train::{MAX_BATCH, minutes_problem};
use indicatif::HumanDuration;
use metrics::{Figures, TaskReport, dataset_info, figures, nested, spreads};
use quantization::{QatLimits, Quantization};
use results::{GitInfo, Origin, ResultsFile, Store, TaskResult, amount};
use serde::de::DeserializeOwned;
use serde_json::Value;
use spans::Extent;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tasks::{Task, TaskKind};

/// Kind of the working folder, as stored in its marker file.
const FOLDER_KIND: &str = cytoscope_storage::folder_kind::BENCH;
/// Upper limit of `--repeat`.
const MAX_REPEAT: usize = 1000;
/// Options that measure something else than the tasks of a table. Options of the table conflict with them, too: clap does not
/// demand a required option that conflicts with a given one.
const WITHOUT_TABLE: [&str; 3] = ["quantization", "compare_opts", "span_cost"];
/// Options that measure something else than a quantization.
const NO_QUANTIZATION: [&str; 3] = ["config", "compare_opts", "span_cost"];

/// Options of `bench`.
#[derive(Args)]
#[command(
    after_help = "Columns of TASKS.csv: name, kind (training or inference), model, data, device, precision, batch_size, \
                  epochs, overrides, branch. Overrides are options of train or predict: \"task=segmentation;steps=20\". \
                  With a branch, the program of that git branch is built and runs the task. Only name, kind, model and \
                  data must be given; lines that start with # are comments."
)]
pub(crate) struct Bench {
    /// Table of the tasks; its columns are listed below.
    #[arg(long, value_name = "TASKS.csv", required_unless_present_any = ["quantization", "compare_opts", "span_cost"])]
    config: Option<PathBuf>,
    /// Run each training task of the table once with each of these batch sizes.
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', requires = "config", conflicts_with_all = WITHOUT_TABLE)]
    batch_sizes: Vec<usize>,
    /// Instead of a table: predict --data with this model in float and quantized in the modes dynamic, static and qat, and
    /// compare the sizes of the networks, the times, and the maps.
    #[arg(long, value_name = "MODEL", requires = "data", conflicts_with = "config")]
    quantization: Option<String>,
    /// Instead of a table: run the network of this model on the CPU without optimizations, with each one alone (precision,
    /// layout, fusion, optimizer) and with all of them, and compare time, memory and output.
    #[arg(long, value_name = "MODEL", requires = "data", conflicts_with_all = ["config", "quantization"])]
    compare_opts: Option<String>,
    /// Instead of a table: measure the cost of recording. --data is predicted with this model on the CPU without recording,
    /// with totals by stage, and with the spans of a trace, and the times are compared in pairs. Use a stack whose
    /// prediction takes less than a second: many pairs give a narrow interval.
    #[arg(long, value_name = "MODEL", requires = "data", conflicts_with_all = ["config", "quantization", "compare_opts"])]
    span_cost: Option<String>,
    /// Stack to predict with --quantization (which also calibrates on it), --compare-opts or --span-cost.
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    data: Option<PathBuf>,
    /// Maximum relative L2 error of an output for --quantization; layers are kept in float until it is met.
    #[arg(long, default_value_t = ACCURACY_BUDGET, requires = "quantization", conflicts_with_all = NO_QUANTIZATION)]
    accuracy_budget: f64,
    /// Maximum steps of quantization-aware training for --quantization, one tile per step; by default 240.
    #[arg(long, requires = "quantization", conflicts_with_all = NO_QUANTIZATION)]
    qat_steps: Option<u64>,
    /// Maximum minutes of quantization-aware training for --quantization; by default unlimited.
    #[arg(long, requires = "quantization", conflicts_with_all = NO_QUANTIZATION)]
    qat_minutes: Option<f64>,
    /// File to write the results to.
    #[arg(long, value_name = "RESULTS.json")]
    output: PathBuf,
    /// Compare the times and the memory of each task with stored results or, without a file, with the first task of the
    /// same kind.
    #[arg(long, value_name = "STORED.json")]
    compare: Option<Option<PathBuf>>,
    /// Continue after a task that fails; its entry in the results states the error. If no task succeeds, the exit code is 1.
    #[arg(long)]
    skip_failed: bool,
    /// Number of runs of each task, by default 1; runs of the tasks alternate. At least 5 for --compare-opts; for --span-cost
    /// the number of pairs.
    #[arg(long)]
    repeat: Option<usize>,
    /// Duration of --span-cost in seconds, by default 120; --repeat sets the number of pairs instead.
    #[arg(long, requires = "span_cost", conflicts_with_all = ["repeat", "config", "quantization", "compare_opts"])]
    seconds: Option<u64>,
    /// Continue an interrupted run of the same table: the finished tasks in the results are kept, and tasks that failed run
    /// again.
    #[arg(long, requires = "config", conflicts_with_all = ["force", "quantization", "compare_opts", "span_cost"])]
    resume: bool,
    /// Write a Chrome trace of the runs, for cytoscope profile or ui.perfetto.dev; the results hold their measurements.
    #[arg(long, value_name = "FILE.json", conflicts_with = "span_cost")]
    trace: Option<PathBuf>,
    /// Overwrite existing results, and an existing trace; an input is never overwritten.
    #[arg(long)]
    force: bool,
}

/// Whether a JSON text holds results that this command wrote.
pub(crate) fn are_results(text: &[u8]) -> bool {
    serde_json::from_slice::<Vec<TaskResult>>(text).is_ok_and(|results| !results.is_empty())
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
    /// The program of the task's branch and its commit; `None` for this program.
    program: Option<(PathBuf, GitInfo)>,
    /// Fingerprint of the task, as [`restore::task_fingerprint`] returns it.
    fingerprint: String,
    /// Files and folders that the task reads, as they were before its runs; empty without a table.
    inputs: Vec<InputRecord>,
}

impl Bench {
    pub(crate) fn run(self) -> Outcome {
        let repeat = self.repeat.unwrap_or(1);
        if repeat == 0 || repeat > MAX_REPEAT {
            return Err(Failure::wrong_use(format!("--repeat is {repeat}: expected 1 to {MAX_REPEAT}")));
        }
        if self.compare_opts.is_some() && self.repeat.is_some_and(|repeat| repeat < optimizations::MIN_RUNS) {
            let problem = format!(
                "--repeat is {repeat}: --compare-opts runs each row at least {} times",
                optimizations::MIN_RUNS
            );
            return Err(Failure::wrong_use(problem).and_next("give a larger number, or leave --repeat out"));
        }
        if self.seconds == Some(0) {
            return Err(Failure::wrong_use("--seconds is 0: expected at least 1"));
        }
        self.check_quantization()?;
        let stored_path = self.compare.as_ref().and_then(Option::as_deref);
        // A model that does not exist is reported when it is opened.
        let models = [&self.quantization, &self.compare_opts, &self.span_cost];
        let models: Vec<PathBuf> = models.into_iter().flatten().filter_map(|name| find_model(name).ok()).collect();
        let given = [self.config.as_deref(), self.data.as_deref(), stored_path];
        let inputs: Vec<&Path> = given.into_iter().flatten().chain(models.iter().map(PathBuf::as_path)).collect();
        let table = self.table()?;
        let is_continued = self.resume && self.output.exists();
        let overwrite = Overwrite::from_force(self.force || is_continued);
        check_json_file(&self.output, &inputs, overwrite)?;
        check_extension(&self.output, &["json"])?;
        if let Some(folder) = whole_around(&self.output) {
            return Err(Failure::wrong_use(format!(
                "--output {}: the path is inside {}, which the results would change",
                self.output.display(),
                folder.display()
            ))
            .and_next("write them to another path"));
        }
        if let Some(trace) = &self.trace {
            check_trace(trace, &inputs, &[&self.output], Overwrite::from_force(self.force))?;
        }
        check_writable(&self.output)?;
        let stored = stored_path.map(results::read).transpose()?;
        let measurement = Measurement::start("bench", self.trace.as_deref(), Overwrite::from_force(self.force), true);
        let measured = self.measure(repeat, table, overwrite, measurement.recorder());
        let (done, _) = measurement.finish(measured, 0)?;
        match (&self.compare, &stored) {
            (_, Some(stored)) => results::compare_with_stored(&done, stored),
            (Some(_), None) => results::compare_with_first(&done),
            (None, None) => {}
        }
        print(&format!("wrote {}", self.output.display()));
        any_success(&done, self.config.is_some())
    }

    /// Refuses options of --quantization that its last quantization would refuse, after the others have run.
    fn check_quantization(&self) -> Outcome {
        if let Some(problem) = self.qat_minutes.and_then(minutes_problem) {
            return Err(Failure::wrong_use(format!("--qat-minutes {problem}")));
        }
        let budget = self.accuracy_budget;
        if !(budget.is_finite() && budget > 0.0) {
            let problem =
                format!("--accuracy-budget is {budget}: expected a relative error above 0, such as {ACCURACY_BUDGET}");
            return Err(Failure::wrong_use(problem));
        }
        Ok(())
    }

    /// Runs what is requested, and writes the results to a file, which is replaced only if `overwrite` allows it.
    fn measure(
        &self,
        repeat: usize,
        table: Vec<Task>,
        overwrite: Overwrite,
        recorder: Recorder,
    ) -> Result<Vec<TaskResult>, Failure> {
        let is_continued = self.resume && self.output.exists();
        let context = progress::context(false, true, recorder);
        let timestamp = results::now();
        let file = ResultsFile::new(&self.output, overwrite);
        match (&self.compare_opts, &self.span_cost, &self.data) {
            (Some(model), _, Some(data)) => {
                self.stored(&file, |store| optimizations::run(&context, model, data, repeat, &timestamp, store))
            }
            (_, Some(model), Some(data)) => {
                let default = Duration::from_secs(self.seconds.unwrap_or(spans::DEFAULT_SECS));
                let extent = self.repeat.map_or(Extent::Time(default), Extent::Pairs);
                self.stored(&file, |store| spans::run(&context, model, data, extent, &timestamp, store))
            }
            _ => {
                let earlier = if is_continued { results::read(&self.output)? } else { Vec::new() };
                self.run_tasks(&context, table, &earlier, &timestamp, &file)
            }
        }
    }

    /// Runs the tasks of the table or of --quantization after their runs in `earlier` results, and prints their results.
    fn run_tasks(
        &self,
        context: &Context,
        table: Vec<Task>,
        earlier: &[TaskResult],
        timestamp: &str,
        file: &ResultsFile<'_>,
    ) -> Result<Vec<TaskResult>, Failure> {
        for task in &table {
            let note = |problem: &String| eprint_line(&format!("note: task {}: {problem}", task.name));
            task.missing().iter().for_each(note);
        }
        let origin = Origin::of_this_bench(earlier.first().map_or(timestamp, |first| first.timestamp.as_str()));
        let mut all = Vec::new();
        let outcome = self.run_all(context, table, (earlier, &origin), &mut all, file);
        let done = finished(&all, &origin);
        file.write(&done)?;
        if outcome.is_err() && !done.is_empty() {
            let next_step = if self.config.is_some() { "; --resume continues after them" } else { "" };
            eprint_line(&format!("note: the results so far are in {}{next_step}", self.output.display()));
        }
        outcome?;
        done.iter().for_each(print_result);
        Ok(done)
    }

    /// Runs a benchmark that needs no table. The results are stored as it runs, so that an interruption loses only the last.
    fn stored(
        &self,
        file: &ResultsFile<'_>,
        measure: impl FnOnce(Store<'_>) -> Result<Vec<TaskResult>, Failure>,
    ) -> Result<Vec<TaskResult>, Failure> {
        let mut is_stored = false;
        let outcome = measure(&mut |done: &[TaskResult]| -> Outcome {
            file.write(done)?;
            is_stored = !done.is_empty();
            Ok(())
        });
        if outcome.is_err() && is_stored {
            eprint_line(&format!("note: the results so far are in {}", self.output.display()));
        }
        outcome
    }

    /// Returns the tasks of the table, at all batch sizes; none without a table.
    fn table(&self) -> Result<Vec<Task>, Failure> {
        let Some(path) = &self.config else { return Ok(Vec::new()) };
        if self.batch_sizes.contains(&0) {
            return Err(Failure::wrong_use("--batch-sizes: expected integers of at least 1, such as 1,2,4"));
        }
        if let Some(large) = self.batch_sizes.iter().find(|size| **size > MAX_BATCH) {
            return Err(Failure::wrong_use(format!(
                "--batch-sizes: {large} is too large; expected at most {MAX_BATCH}"
            )));
        }
        let mut seen = BTreeSet::new();
        if let Some(repeated) = self.batch_sizes.iter().find(|size| !seen.insert(**size)) {
            return Err(Failure::wrong_use(format!("--batch-sizes: {repeated} occurs twice"))
                .and_next("give each size once, and --repeat for several runs"));
        }
        let tasks = tasks::read(path)?;
        if !self.batch_sizes.is_empty() && !tasks.iter().any(|task| task.kind == TaskKind::Training) {
            return Err(Failure::wrong_use(
                "--batch-sizes: the table has no training task; predict chooses the batch itself",
            ));
        }
        Ok(tasks.into_iter().flat_map(|task| task.at_batch_sizes(&self.batch_sizes)).collect())
    }

    /// Runs all tasks in turn, as often as requested, and writes the results after each run: a bench may take hours. A task
    /// that failed is not run again. Runs in `earlier` results are not repeated.
    fn run_all(
        &self,
        context: &Context,
        table: Vec<Task>,
        (earlier, origin): (&[TaskResult], &Origin),
        all: &mut Vec<Progress>,
        file: &ResultsFile<'_>,
    ) -> Outcome {
        let folder = PathBuf::from(format!("{}.runs", self.output.display()));
        // Recorded before the lock file of the folder appears beside it.
        let left_out =
            [&self.output, &folder].into_iter().chain(&self.config).map(|path| resolved(path)).collect::<Vec<_>>();
        let inputs: Vec<Vec<InputRecord>> =
            table.iter().map(|task| restore::current_input_records(task, &left_out)).collect();
        let scratch = Scratch::create(folder, FOLDER_KIND)?;
        let (mut quantization, tasks) = match (&self.quantization, &self.data) {
            (Some(model), Some(data)) => {
                let qat = QatLimits { steps: self.qat_steps, minutes: self.qat_minutes };
                let (quantization, tasks) =
                    Quantization::prepare(context, model, data, self.accuracy_budget, qat, &scratch)?;
                (Some(quantization), tasks)
            }
            _ => (None, table),
        };
        let programs = branches::build(tasks.iter().filter_map(|task| task.branch.as_deref()))?;
        let start = |(task, inputs): (Task, Vec<InputRecord>)| {
            let built = task.branch.as_ref().and_then(|branch| programs.get(branch));
            let program = built.map(|program| (program.path.clone(), program.git_info.clone()));
            let fingerprint = restore::task_fingerprint(&task, program.as_ref().map(|(_, git_info)| git_info));
            Progress { task, runs: Vec::new(), error: None, program, fingerprint, inputs }
        };
        let inputs = inputs.into_iter().chain(std::iter::repeat(Vec::new()));
        let mut started: Vec<Progress> = tasks.into_iter().zip(inputs).map(start).collect();
        // If the results cannot be continued, `all` stays empty, and they are not replaced.
        restore::restore(&mut started, earlier, origin, &self.output)?;
        *all = started;
        let rounds = self.repeat.unwrap_or(1);
        for round in 1..=rounds {
            for at in 0..all.len() {
                let left = time_left(all, rounds);
                let open = all.get_mut(at).filter(|progress| progress.error.is_none() && progress.runs.len() < round);
                let Some(progress) = open else { continue };
                context.check()?;
                let name = &progress.task.name;
                eprint_line(&format!("[round {round} of {rounds}{left}] {name}"));
                scratch.clear(&Quantization::packages())?;
                let program = progress.program.as_ref().map(|(path, _)| path.as_path());
                let span = context.recorder.span(Stage::Run, name.clone());
                let ran = run_once(&progress.task, program, scratch.path(), quantization.as_mut());
                span.finish();
                match ran {
                    Ok(run) => progress.runs.push(run),
                    Err(failure) if failure.kind() == JobErrorKind::Canceled => return Err(failure),
                    Err(failure) => {
                        progress.error = Some(failure.to_string());
                        let message = message!("task {name} failed: {failure}");
                        if !self.skip_failed {
                            return Err(Failure::new(failure.kind(), message));
                        }
                        eprint_line(&message);
                    }
                }
                file.write(&finished(all, origin))?;
            }
        }
        Ok(())
    }
}

/// Returns a failure if no task succeeded, as may happen with `--skip-failed`: a script must not take that for a measurement.
fn any_success(results: &[TaskResult], has_table: bool) -> Outcome {
    if results.is_empty() || results.iter().any(|result| result.success) {
        return Ok(());
    }
    let tasks = if results.len() == 1 { "the task".to_owned() } else { format!("all {} tasks", results.len()) };
    let next_step = match has_table {
        true => message!("correct the table, and continue with {RESUME}"),
        false => message!("try again with {FORCE}"),
    };
    Err(Failure::other(format!("{tasks} failed (the results state why)")).and_next(next_step))
}

/// Runs a task once, in a separate process, so that its peak memory is its own: of this program, or of another one.
fn run_once(
    task: &Task,
    program: Option<&Path>,
    scratch: &Path,
    quantization: Option<&mut Quantization>,
) -> Result<TaskRun, Failure> {
    let trace = scratch.join("trace.json");
    let arguments = task.arguments(&scratch.join("out"), &trace);
    let (report, run, total_secs) = match task.kind {
        TaskKind::Inference => {
            let ChildRun { report, run, total_secs } = run_child(program, &arguments, &trace)?;
            (TaskReport::Inference(report), run, total_secs)
        }
        TaskKind::Training => {
            let ChildRun { report, run, total_secs } = run_child(program, &arguments, &trace)?;
            (TaskReport::Training(report), run, total_secs)
        }
    };
    let mut figures = figures(&run, &report, total_secs);
    if let (Some(quantization), TaskReport::Inference(report)) = (quantization, &report) {
        quantization.add_to(&task.name, report, &mut figures);
    }
    Ok(TaskRun { figures, dataset_info: dataset_info(&report) })
}

/// Runs this program, or the program of a branch, until it ends.
fn run_child<R: DeserializeOwned>(
    program: Option<&Path>,
    arguments: &[String],
    trace: &Path,
) -> Result<ChildRun<R>, Failure> {
    let done = match program {
        Some(program) => child::run_program(program, arguments, trace, None)?,
        None => child::run(arguments, trace, None)?,
    };
    done.ok_or_else(|| Failure::other("the task was ended"))
}

/// Returns how long the other runs will take, as text with a comma before it, from the mean duration of each task's runs;
/// nothing before every task has run once.
fn time_left(all: &[Progress], rounds: usize) -> String {
    let open = all.iter().filter(|progress| progress.error.is_none() && progress.runs.len() < rounds);
    let left_secs: Option<f64> = open
        .map(|Progress { runs, .. }| {
            let secs: f64 = runs.iter().filter_map(|run| run.figures.get(metrics::Metric::TotalSecs.name())).sum();
            let left = rounds.saturating_sub(runs.len());
            (!runs.is_empty()).then(|| secs / runs.len() as f64 * left as f64)
        })
        .sum();
    let left = left_secs.and_then(|secs| Duration::try_from_secs_f64(secs).ok());
    left.map_or_else(String::new, |left| format!(", {:#} left", HumanDuration(left)))
}

/// Returns the results of the tasks that were run or failed.
fn finished(all: &[Progress], origin: &Origin) -> Vec<TaskResult> {
    let started = all.iter().filter(|progress| progress.error.is_some() || !progress.runs.is_empty());
    started
        .map(|progress| {
            let Progress { task, runs, error, program, fingerprint, inputs } = progress;
            let run_metrics: Vec<Figures> = runs.iter().map(|run| run.figures.clone()).collect();
            let metrics = nested(&spreads(&run_metrics));
            let mut result = origin.result(&task.name, task.kind, runs.len(), metrics);
            if let Some((_, built_git_info)) = program {
                result.git_info = Some(built_git_info.clone());
            }
            result.success = error.is_none();
            result.error.clone_from(error);
            result.run_metrics = run_metrics;
            result.dataset_info = runs.last().and_then(|run| run.dataset_info.clone());
            result.fingerprint = Some(fingerprint.clone());
            result.options = Some(task.options().to_vec());
            result.inputs.clone_from(inputs);
            result
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
    fn the_time_left_is_stated_once_every_task_has_run() {
        let progress = |secs: &[f64], error: Option<&str>| {
            let figures = |secs: &f64| Figures::from([("total_secs".to_owned(), *secs)]);
            Progress {
                task: Task::inference("a", "m", "d", Vec::new()),
                runs: secs.iter().map(|secs| TaskRun { figures: figures(secs), dataset_info: None }).collect(),
                error: error.map(str::to_owned),
                program: None,
                fingerprint: String::new(),
                inputs: Vec::new(),
            }
        };
        let mut all = vec![progress(&[50.0, 70.0], None), progress(&[], None), progress(&[], Some("it failed"))];
        assert_eq!(time_left(&all, 3), "");
        all[1] = progress(&[30.0], None);
        assert_eq!(time_left(&all, 3), ", 2m left", "one run of a minute, and two of half a minute");
    }
}
