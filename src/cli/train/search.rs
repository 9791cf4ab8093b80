//! `train --search`: successive halving over training settings, each trial in a separate process.

mod table;

pub(super) use table::Row;

use super::search_time::RemainingTime;
use super::{Train, search_plot};
use crate::cli::child::{self, Scratch};
use crate::cli::failure::{Failure, Outcome};
use crate::cli::reports::TrainCommandReport;
use crate::cli::{eprint_json, eprint_line, note_line, print, print_json, progress, read_file};
use clap::ValueEnum;
use cytoscope_engine::select::fingerprint;
use cytoscope_model_package::check_destination;
use cytoscope_pipeline::job_record::{AnyRecord, JobKind, PendingRecord, read_any, record_path};
use cytoscope_pipeline::{
    Event, JobError, JobErrorKind, Note, ProcessEvent, SEARCH_FOLDER_KIND, SearchTrial, find_model, is_search_table,
};
use cytoscope_profile::Recorder;
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::{BATCH, DIAMETER, OUT, PRECISION, RESTART, RESUME, SERIES, SET};
use cytoscope_storage::target::{check_file, resolved};
use cytoscope_storage::write::atomic_write;
use cytoscope_storage::{Overwrite, counted};
use cytoscope_train::{
    MAX_TRIALS, SearchSpace, SettingAssignment, TrainConfig, TrainJob, ValidationPoint, data_fingerprint, search_rungs,
};
use cytoscope_training_data::TrainingTask;
use serde_json::json;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use table::ResultsTable;

/// Extension of the file of plots, after the name of the package.
const PLOTS: &str = "search.svg";
/// Options on which the score of a trial hardly depends: how it is computed, not what.
const HOW_COMPUTED: [&str; 4] = ["--device=", "--threads=", "--precision=", "--performance="];

/// Returns a path beside the package: its name with another extension.
pub(super) fn beside(out: &Path, extension: &str) -> PathBuf {
    let name = out.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy());
    out.with_file_name(format!("{name}.{extension}"))
}

/// Opens the table of a search. What would stop the last run is reported here, before the first one. `job` is the last run,
/// with any settings, and `settings` are the settings of each trial.
fn open_table(
    options: &Train,
    space: &Path,
    ranges: &SearchSpace,
    job: &TrainJob,
    settings: &[Vec<SettingAssignment>],
) -> Result<ResultsTable, Failure> {
    // As the last run does, which would fail after all others. The trials report why a start model is not found.
    let start = options.from.model().and_then(|model| find_model(model).ok());
    let inputs: Vec<&Path> = start.iter().chain([&options.data]).map(PathBuf::as_path).collect();
    check_destination(&options.out, &inputs, Overwrite::from_force(options.force))?;
    PendingRecord::check(job)?;
    let unfinished = job.folder();
    if unfinished.exists() && !options.resume && !options.restart {
        let problem = format!("{}: an unfinished training run already exists here", unfinished.display());
        return Err(Failure::bad_input(problem)
            .and_next(message!("use {RESUME} to continue the search, or {RESTART} to discard both")));
    }
    if options.resume
        && let Some(config) = job.checkpoint_config()
        && !settings.iter().any(|trial| matches_trial(&config, trial))
    {
        let problem = "the settings of the unfinished training run here match no trial of this search";
        let next_step = message!("use {RESTART} instead of {RESUME} to discard it (another {OUT} keeps it)");
        return Err(Failure::bad_input(format!("{}: {problem}", unfinished.display())).and_next(next_step));
    }
    let path = beside(&options.out, "search.csv");
    let is_table = is_search_table(&path);
    if is_table && !(options.resume || options.restart || options.force) {
        let problem = format!("{}: the table of an earlier search already exists", path.display());
        return Err(Failure::wrong_use(problem).and_next(message!(
            "use {RESUME} to continue that search, or {RESTART} to discard it (another {OUT} keeps it)"
        )));
    }
    // Files of another program do not belong to the search that is continued or discarded.
    let is_own = (options.resume || options.restart) && is_table;
    let overwrite = Overwrite::from_force(options.force || is_own);
    for output in [&path, &beside(&options.out, PLOTS)] {
        check_file(output, &[space, options.data.as_path()], overwrite)?;
    }
    let fingerprint = search_fingerprint(options, job.task)?;
    ResultsTable::open(path, ranges.keys().map(str::to_owned).collect(), fingerprint, options.resume)
}

/// Returns a fingerprint of what the scores of a search depend on besides the settings with ranges: the data, the start
/// model, the seed and the other settings, as they are given; then, after periods, one of the content of the data and one of
/// the content of the start model, if there is one.
fn search_fingerprint(options: &Train, task: TrainingTask) -> Result<String, Failure> {
    let mut arguments = arguments(options, &[], 0, Path::new(""));
    arguments.retain(|word| !HOW_COMPUTED.iter().any(|option| word.starts_with(option)));
    if let Some(path) = &options.config {
        let text = std::fs::read_to_string(path).map_err(|error| JobError::unreadable(path, error))?;
        arguments.push(text);
    }
    let mut config = TrainConfig::read_with(options.config.as_deref(), &options.set)?;
    config.data.series = options.series.clone().unwrap_or(config.data.series);
    let data = data_fingerprint(&options.data, task, &config)?;
    // The trials report why a start model cannot be opened.
    let parts = [fingerprint(arguments.join("\n").as_bytes()), data].into_iter().chain(options.from.fingerprint());
    Ok(parts.collect::<Vec<String>>().join("."))
}

/// Returns whether a training run with these settings is one of a trial.
fn matches_trial(config: &TrainConfig, trial: &[SettingAssignment]) -> bool {
    trial.iter().all(|assignment| assignment.is_in(config))
}

/// Returns whether the package of a search was trained on its data with the settings of a trial and this number of steps, has
/// the networks that are requested now, and is unchanged. A later training run may have written another package there.
fn is_trained(options: &Train, trial: &[SettingAssignment], steps: usize) -> bool {
    let Ok(AnyRecord::Job(record)) = read_any(&record_path(&options.out)) else { return false };
    let job = (record.kind == JobKind::Train).then(|| serde_json::from_value::<TrainJob>(record.job.clone()));
    let Some(Ok(TrainJob { config, data, seed, without_int8, .. })) = job else { return false };
    let is_same = config.budget.steps == Some(steps) && matches_trial(&config, trial);
    let has_same_data = seed == options.seed && resolved(&data) == resolved(&options.data);
    let has_networks = without_int8 == options.without_int8;
    let package = record.outputs.first();
    is_same && has_same_data && has_networks && package.is_some_and(|package| package.matches(&options.out))
}

/// Reads the ranges of a search, and refuses numbers of trials and steps, and options, with which none can run.
fn checked_ranges(options: &Train, space: &Path, trials: usize, steps: usize) -> Result<SearchSpace, Failure> {
    if trials == 0 || trials > MAX_TRIALS {
        return Err(Failure::wrong_use(format!("--trials is {trials}: expected 1 to {MAX_TRIALS}")));
    }
    if steps == 0 {
        return Err(Failure::wrong_use("--steps is 0: expected at least 1"));
    }
    if let Some(path) = &options.config {
        // Each trial reads the settings again, which a pipe does not allow.
        read_file(path)?;
    }
    let ranges = SearchSpace::read(space)?;
    refuse_given(options, &ranges)?;
    Ok(ranges)
}

/// Refuses ranges of settings that are also given by an option: one of both would have no effect.
fn refuse_given(options: &Train, ranges: &SearchSpace) -> Outcome {
    let given = [
        ("batch", Message::of(&BATCH), options.batch.is_some()),
        ("patch_zyx", "--patch".into(), options.patch.is_some()),
        ("diameter", Message::of(&DIAMETER), options.diameter.is_some()),
        ("data.series", Message::of(&SERIES), options.series.is_some()),
        ("precision", Message::of(&PRECISION), options.precision.requested().is_some()),
        ("performance", "--performance".into(), options.performance.is_some()),
        // The steps of a trial are the whole budget.
        ("budget.steps", "--steps".into(), true),
        ("budget.epochs", "--steps".into(), true),
        ("budget.minutes", "--steps".into(), true),
    ];
    for key in ranges.keys() {
        let option = given.iter().find(|(setting, _, is_given)| *is_given && *setting == key);
        let option = option.map(|(_, name, _)| name.clone());
        let is_set = options.set.iter().any(|assignment| assignment.key() == key);
        if let Some(option) = option.or_else(|| is_set.then(|| Message::of(&SET))) {
            return Err(Failure::wrong_use(message!(
                "{key} has a range, but {option} gives it one value for all trials"
            ))
            .and_next("remove one of them"));
        }
    }
    Ok(())
}

/// Returns the settings of each trial, all of which can be used together with the other settings. There are fewer than
/// `trials` if the ranges have fewer combinations.
///
/// # Errors
/// The first trial whose settings cannot be used.
fn trial_settings(
    options: &Train,
    space: &Path,
    ranges: &SearchSpace,
    trials: usize,
) -> Result<Vec<Vec<SettingAssignment>>, Failure> {
    let settings = ranges.trials(options.seed, trials);
    // What is wrong with the other settings is not reported as the problem of a trial.
    TrainConfig::read_with(options.config.as_deref(), &options.set)?;
    for (number, trial) in settings.iter().enumerate() {
        let all: Vec<SettingAssignment> = options.set.iter().chain(trial).cloned().collect();
        let checked = TrainConfig::read_with(options.config.as_deref(), &all).and_then(|config| config.check());
        checked.map_err(|error| {
            Failure::new(error.kind(), message!("{}: trial {number}: {error}", space.display()))
                .with_next_step(error.next_step().map(String::from))
        })?;
    }
    Ok(settings)
}

/// Searches for the settings with the best validation score, and trains the package with them.
pub(super) fn run(options: &Train, space: &Path, trials: usize, steps: usize) -> Outcome {
    let ranges = checked_ranges(options, space, trials, steps)?;
    let settings = trial_settings(options, space, &ranges, trials)?;
    let trials = note_fewer(options, trials, settings.len());
    let job = options.job(TrainConfig::default());
    let mut table = open_table(options, space, &ranges, &job, &settings)?;
    let context = progress::context(false, true, Recorder::totals_only());
    let scratch = Scratch::create(beside(&options.out, "search"), SEARCH_FOLDER_KIND)?;
    if options.restart {
        // Now, not when the first run ends or the last one starts: if this search is interrupted before, the next one with
        // --resume must not continue what is discarded.
        job.discard_unused()?;
    }
    if !options.resume {
        replace_earlier(options, &table)?;
    }
    let rungs = search_rungs(trials, steps);
    let mut active: Vec<usize> = (0..trials).collect();
    let (mut last_report, mut last_failure) = (None, Failure::bad_input("no trial was run"));
    let mut last_error = Message::default();
    let mut remaining = RemainingTime::default();
    for (place, rung) in rungs.iter().enumerate() {
        let (number, is_last) = (place + 1, place + 1 == rungs.len());
        let mut scored: Vec<(usize, f64)> = Vec::new();
        remaining.begin_rung(active.len(), rungs.get(place..).unwrap_or_default());
        for trial in active {
            let Some(assigned) = settings.get(trial) else { continue };
            let values: Vec<String> = assigned.iter().map(SettingAssignment::value).collect();
            let earlier = table.earlier(trial, number, rung.steps, &values)?.cloned();
            let earlier = earlier.filter(|row| row.score.is_some_and(f64::is_finite));
            let is_complete =
                is_last && earlier.is_some() && !job.has_checkpoint() && is_trained(options, assigned, rung.steps);
            let (row, report) = match earlier.filter(|_| !is_last || is_complete) {
                Some(row) => (row, None),
                None => {
                    context.check()?;
                    scratch.clear(&[])?;
                    let out = if is_last { options.out.clone() } else { scratch.path().join("out") };
                    let mut arguments = arguments(options, assigned, rung.steps, &out);
                    arguments.extend(switches(options, is_last.then_some(&job), assigned).map(str::to_owned));
                    let (row, ended) = run_trial(trial, number, rung.steps, values, &arguments)?;
                    let report = match ended {
                        Ok(report) => {
                            last_error = row.error.as_str().into();
                            Some(report)
                        }
                        Err(failure) => {
                            // A run that was ended together with the search has not failed.
                            context.check()?;
                            last_error = failure.message().clone();
                            last_failure = failure;
                            None
                        }
                    };
                    table.add(row.clone())?;
                    (row, report)
                }
            };
            remaining.add(rung.steps, report.as_ref().map(|_| row.seconds));
            show_trial(options, &table.keys, &row, rungs.len(), &remaining);
            if is_last && report.is_none() && !is_complete {
                return Err(last_failure.with_message(message!("the best trial failed with all steps: {last_error}")));
            }
            last_report = report;
            scored.extend(row.score.map(|score| (trial, score)));
        }
        if let Some(plots) = search_plot::svg(&table.rows, &table.keys) {
            atomic_write(&beside(&options.out, PLOTS), plots.as_bytes())?;
        }
        scored.sort_by(|a, b| b.1.total_cmp(&a.1));
        let kept = rungs.get(place + 1).map_or(0, |next| next.trials);
        active = scored.iter().take(kept).map(|(trial, _)| *trial).collect();
        if !is_last && active.is_empty() {
            return Err(last_failure.with_message(message!("all trials failed; the last error was: {last_error}")));
        }
    }
    finish(options, &table, last_report.as_ref())
}

/// Returns the number of trials that are run, and notes if it is less than requested.
fn note_fewer(options: &Train, requested: usize, found: usize) -> usize {
    if found < requested {
        let combinations = counted(found, "different combination");
        let note = Note::info(format!(
            "{requested} trials were requested, but the ranges have only {combinations} of settings, each of which is tried"
        ));
        match options.report.json_progress {
            true => eprint_json(&Event::Note(note)),
            false => eprint_line(&note_line(&note)),
        }
    }
    found
}

/// Empties the table of an earlier search that this one replaces, and removes its plots: if this one is interrupted before its
/// first trial ends, none of the other's results are left beside it. Without an earlier one, there is no table until then.
fn replace_earlier(options: &Train, table: &ResultsTable) -> Outcome {
    if options.restart || table.path.exists() {
        table.write()?;
    }
    let path = beside(&options.out, PLOTS);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(JobError::Io { path, error }.into()),
        _ => Ok(()),
    }
}

/// Prints the result of a search. `report` is that of its last training run; `None` if an earlier search has trained the
/// package already.
fn finish(options: &Train, table: &ResultsTable, report: Option<&TrainCommandReport>) -> Outcome {
    // A trial of an earlier rung that had failed may have been run again afterwards.
    let best = table.rows.iter().max_by_key(|row| row.rung);
    if options.report.json {
        return print_json(&json!({
            "table": table.path, "plots": beside(&options.out, PLOTS), "settings": table.keys, "trials": table.rows, "best": best, "report": report,
        }));
    }
    if report.is_none() {
        print("the search is complete, so its package was not trained again; --restart starts it over");
    }
    if let Some(best) = best {
        print(&format!("best: trial {}, score {:.4}", best.trial, best.score.unwrap_or(f64::NAN)));
        for (key, value) in table.keys.iter().zip(&best.values) {
            print(&format!("  --set {}", shell_word(&format!("{key}={value}"))));
        }
    }
    let plots = beside(&options.out, PLOTS);
    let wrote = if report.is_some() { "wrote" } else { "its results are" };
    print(&format!("{wrote} {}, {} and {}", options.out.display(), table.path.display(), plots.display()));
    let records = report.into_iter().flat_map(|report| &report.provenance);
    records.for_each(|record| print(&format!("  wrote {}", record.display())));
    Ok(())
}

/// Returns a word as a shell reads it: in quotes if it has characters, such as those of a list, that shells interpret.
pub(super) fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-=+/:".contains(c);
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

/// Writes the result of a trial to standard error, as text or as JSON; `keys` are the settings in the order of its values.
fn show_trial(options: &Train, keys: &[String], row: &Row, rungs: usize, remaining: &RemainingTime) {
    let trial = SearchTrial {
        number: row.trial,
        rung: row.rung,
        steps: row.steps,
        score: row.score,
        seconds: row.seconds,
        error: row.error.clone(),
        settings: keys.iter().zip(&row.values).map(|(key, value)| format!("{key}={value}")).collect(),
    };
    if options.report.json_progress {
        return eprint_json(&ProcessEvent::Trial { trial, rungs, eta_secs: remaining.secs() });
    }
    let SearchTrial { number, rung, steps, .. } = &trial;
    let (result, left) = (trial.result_text(), remaining.text());
    let steps = counted(steps, "step");
    eprint_line(&format!("[rung {rung} of {rungs}] trial {number}, {steps}: {result}{left}"));
}

/// Runs a trial, and returns its row and its report, or how it failed.
///
/// # Errors
/// Cancellation; other failures are a part of the row.
fn run_trial(
    trial: usize,
    rung: usize,
    steps: usize,
    values: Vec<String>,
    arguments: &[String],
) -> Result<(Row, Result<TrainCommandReport, Failure>), Failure> {
    let row = |score, seconds, error| Row { trial, rung, steps, score, seconds, error, values };
    match child::report::<TrainCommandReport>(arguments) {
        Ok(report) => {
            let score = best_trained_score(&report.report.history.validations);
            let seconds = report.report.seconds;
            let error = match score {
                Some(_) => "",
                None if report.report.history.validations.iter().any(|point| point.step > 0) => {
                    "none of its validation scores is a finite number"
                }
                None => "there is no validation set to score it on",
            };
            Ok((row(score, seconds, error.to_owned()), Ok(report)))
        }
        Err(failure) if failure.kind() == JobErrorKind::Canceled => Err(JobError::Canceled.into()),
        Err(failure) => Ok((row(None, 0.0, failure.to_string()), Err(failure))),
    }
}

/// Returns the best validation score of a run, without that of its start model, which all trials share: trials that have
/// not yet reached it would be equal.
fn best_trained_score(validations: &[ValidationPoint]) -> Option<f64> {
    let trained = validations.iter().filter(|point| point.step > 0).map(|point| point.score);
    // NaN would rank above all scores.
    trained.filter(|score| score.is_finite()).max_by(f64::total_cmp)
}

/// Returns the arguments of the program, without the switches.
fn arguments(options: &Train, assigned: &[SettingAssignment], steps: usize, out: &Path) -> Vec<String> {
    let precision = options.precision.to_possible_value();
    let mut arguments = vec![
        "train".to_owned(),
        "--json".to_owned(),
        format!("--task={}", options.task.task().name()),
        format!("--data={}", options.data.display()),
        format!("--from={}", options.from),
        format!("--out={}", out.display()),
        format!("--steps={steps}"),
        format!("--device={}", options.device),
        format!("--seed={}", options.seed),
        format!("--threads={}", options.threading.threads),
    ];
    arguments.extend(precision.map(|value| format!("--precision={}", value.get_name())));
    arguments.extend(options.config.as_ref().map(|path| format!("--config={}", path.display())));
    arguments.extend(options.series.as_ref().map(|series| format!("--series={series}")));
    arguments.extend(options.patch.map(|[z, y, x]| format!("--patch={z},{y},{x}")));
    arguments.extend(options.diameter.map(|diameter| format!("--diameter={diameter}")));
    arguments.extend(options.batch.map(|batch| format!("--batch={batch}")));
    arguments.extend(options.performance.map(|request| format!("--performance={request}")));
    arguments.extend(options.license.as_ref().map(|license| format!("--license={license}")));
    arguments.extend(options.set.iter().chain(assigned).map(|assignment| format!("--set={assignment}")));
    arguments
}

/// Returns the switches of a run with these settings; `last` is the job of the last run, if it is that one.
fn switches(
    options: &Train,
    last: Option<&TrainJob>,
    assigned: &[SettingAssignment],
) -> impl Iterator<Item = &'static str> {
    // The checkpoint is that of a trial which was the best before failed ones were run again.
    let checkpoint = last.and_then(TrainJob::checkpoint_config);
    let is_of_other = options.resume && checkpoint.is_some_and(|config| !matches_trial(&config, assigned));
    let is_last = last.is_some();
    let switches = [
        ("--without-int8", options.without_int8 || !is_last),
        ("--force", options.force && is_last),
        ("--resume", options.resume && is_last && !is_of_other),
        ("--restart", (options.restart || is_of_other) && is_last),
    ];
    switches.into_iter().filter(|(_, is_given)| *is_given).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::super::TaskName;
    use super::*;

    #[test]
    fn trials_name_the_task_as_the_command_line_does() {
        for name in TaskName::value_variants() {
            let value = name.to_possible_value().unwrap();
            assert_eq!(value.get_name(), name.task().name());
        }
    }

    #[test]
    fn settings_are_printed_as_a_shell_reads_them() {
        assert_eq!(shell_word("schedule.rate=0.0069088"), "schedule.rate=0.0069088");
        assert_eq!(shell_word("network.filters=[4, 8]"), "'network.filters=[4, 8]'");
        assert_eq!(shell_word("a=it's"), r"'a=it'\''s'");
    }

    #[test]
    fn the_score_of_the_start_model_is_not_that_of_a_trial() {
        let point = |step, score| ValidationPoint { step, score, scores: Default::default(), best: false };
        assert_eq!(best_trained_score(&[point(0, 0.8), point(2, 0.1), point(4, 0.3), point(6, 0.2)]), Some(0.3));
        assert_eq!(best_trained_score(&[point(0, 0.8)]), None);
        assert_eq!(best_trained_score(&[point(2, 0.1), point(4, f64::NAN)]), Some(0.1));
        assert_eq!(best_trained_score(&[point(2, f64::NAN)]), None);
    }
}
