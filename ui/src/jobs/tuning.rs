//! `cytoscope tune` in a separate process: it measures settings for a model on this machine, and saves the fastest ones as
//! the machine profile that later predictions use. A search for training settings (`cytoscope train --search`) runs in the
//! same way: neither can run beside other jobs.

use super::Jobs;
use crate::channels::input_channels;
use crate::disk::DiskEffect;
use crate::display::Display;
use crate::documents::Documents;
use crate::effect::{Effects, Wake};
use crate::engine_notes::{failure_in_window, search_failure_in_window};
use crate::panels::{capitalized, seconds};
use crate::training::search::{SearchJob, SearchSetup};
use cytoscope_engine::DeviceRequest;
use cytoscope_pipeline::{ChildProgram, DiameterRequest, PerformanceRequest, ProcessEvent, SearchTrial};
use cytoscope_preprocess::PreprocessStep;
use cytoscope_storage::io_message;
use cytoscope_storage::message::Message;
use cytoscope_train::{TrainConfig, TrainStart};
use cytoscope_training_data::TrainingTask;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum length in bytes of a line that is read at once; longer ones are read in parts.
const MAX_LINE_BYTES: u64 = 64 << 10;

/// Options with which the process reports its progress and its error as [`ProcessEvent`]s.
const EVENT_OPTIONS: [&str; 2] = ["--json-progress", "--json-error"];

/// Tuning of this window.
pub(super) struct Tuning {
    /// The program; `None` if nothing can be run.
    program: Option<ChildProgram>,
    /// File of the machine profiles.
    profiles: Option<PathBuf>,
    wake: Wake,
    /// What is started once its files are written.
    preparing: Option<Preparation>,
    run: Option<TuningRun>,
    /// Trials of a search that have ended and were not taken yet.
    trials: Arc<Mutex<Vec<SearchTrial>>>,
}

/// What the process looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TunedRuns {
    /// The fastest settings of predictions.
    Predictions,
    /// The fastest settings of training runs.
    Training,
    /// Training settings with the best score.
    Search,
}

/// Tuning or a search whose files are being written.
struct Preparation {
    /// Title of the start model.
    model: String,
    /// Whether it is a search.
    is_search: bool,
    /// Whether the user has canceled it.
    canceled: bool,
}

/// A training run whose settings are tuned.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TunedTraining {
    /// Title of the start model.
    pub(crate) title: String,
    /// Starting point of the training runs: a new network or a model.
    pub(crate) from: TrainStart,
    /// Task of the model: objects or a stain.
    pub(crate) task: TrainingTask,
    /// Folder or table of the training data.
    pub(crate) data: PathBuf,
    /// Settings of the run; those that are open are tuned.
    pub(crate) config: TrainConfig,
    /// Device that computes the steps; with the automatic choice, all are tried.
    pub(crate) device: DeviceRequest,
    /// File that the settings are written to, for the process.
    pub(crate) settings: PathBuf,
}

impl TunedTraining {
    /// Writes the file of the settings.
    ///
    /// # Errors
    /// Why it cannot be written.
    pub(crate) fn write_settings(&self) -> Result<(), String> {
        let text = self.config.to_toml().map_err(|error| error.to_string())?;
        cytoscope_storage::write::atomic_write(&self.settings, text.as_bytes()).map_err(|error| error.to_string())
    }

    /// Returns the words of the command line after the program's name.
    fn arguments(&self, profiles: Option<&Path>) -> Vec<OsString> {
        let mut arguments = ["tune", "--save", "--only-training"].map(OsString::from).to_vec();
        arguments.push(path_option("model", Path::new(self.from.as_str())));
        arguments.push(path_option("training", &self.data));
        arguments.push(OsString::from(format!("--task={}", self.task.name())));
        arguments.push(path_option("config", &self.settings));
        arguments.push(OsString::from(format!("--device={}", self.device)));
        arguments.extend(profiles.map(|path| path_option("profiles", path)));
        arguments
    }
}

/// Returns an option of the command line whose value is a path.
pub(crate) fn path_option(name: &str, value: &Path) -> OsString {
    let mut option = OsString::from(format!("--{name}="));
    option.push(value);
    option
}

/// A process that tunes. It runs to its end even if the window is closed before.
struct TuningRun {
    /// Title of the model.
    model: String,
    /// Kind of runs that the process tunes.
    runs: TunedRuns,
    /// Which tuned settings these runs used when it was started.
    performance: PerformanceRequest,
    /// The process. The thread that waits for it locks it once the process has closed its messages, which it does as it
    /// ends.
    child: Arc<Mutex<Child>>,
    /// Whether the user has canceled it.
    canceled: bool,
    /// The latest of its messages that reports progress; empty before the first one.
    progress: Arc<Mutex<String>>,
    /// Success, or the reason for the failure, once the process has ended.
    ended: Receiver<Result<(), String>>,
}

impl Tuning {
    /// Nothing is tuned yet. The machine profiles are stored beside the settings file.
    pub(super) fn new(program: Option<&Path>, settings_path: Option<&Path>, wake: &Wake) -> Self {
        let profiles = settings_path.and_then(Path::parent).map(|home| home.join("machine-profiles.json"));
        let program = program.map(ChildProgram::new);
        Self { program, profiles, wake: Arc::clone(wake), preparing: None, run: None, trials: Arc::default() }
    }

    /// Starts the process.
    ///
    /// # Errors
    /// Why it cannot be started.
    fn start(
        &mut self,
        model: String,
        runs: TunedRuns,
        performance: PerformanceRequest,
        arguments: &[OsString],
    ) -> Result<(), String> {
        let program = self.program.as_ref().map(ChildProgram::path);
        let program = program.ok_or("the cytoscope program was not found; reinstall Cytoscope")?;
        let mut command = Command::new(&program);
        command.args(arguments).args(EVENT_OPTIONS).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        // The runs that it starts are in its group, and are canceled with it.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().map_err(|error| io_message(&program, &error))?;
        let stderr = child.stderr.take();
        let child = Arc::new(Mutex::new(child));
        let waited_for = Arc::clone(&child);
        let (sender, ended) = channel();
        let wake = Arc::clone(&self.wake);
        let progress = Arc::new(Mutex::new(String::new()));
        let latest = Arc::clone(&progress);
        let trials = Arc::clone(&self.trials);
        let wait = move || {
            let show = |event: ProcessEvent| {
                if let Some(text) = progress_text(&event) {
                    *latest.lock().unwrap_or_else(PoisonError::into_inner) = text;
                }
                if let ProcessEvent::Trial { trial, .. } = event {
                    trials.lock().unwrap_or_else(PoisonError::into_inner).push(trial);
                }
                wake();
            };
            let error = stderr.and_then(|pipe| read_events(pipe, runs, show));
            let ended = waited_for.lock().unwrap_or_else(PoisonError::into_inner).wait();
            let result = match ended {
                Ok(status) if status.success() => Ok(()),
                Ok(status) => Err(error.unwrap_or_else(|| format!("the process ended with {status}"))),
                Err(error) => Err(error.to_string()),
            };
            // Sending fails only if the window is closed.
            let _ = sender.send(result);
            wake();
        };
        let thread = std::thread::Builder::new().name("tune".to_owned()).spawn(wait);
        thread.map_err(|error| error.to_string())?;
        self.run = Some(TuningRun { model, runs, performance, child, canceled: false, progress, ended });
        Ok(())
    }
}

impl TuningRun {
    /// Asks the process to end, together with the run that it is measuring.
    fn cancel(&mut self) -> std::io::Result<()> {
        // If the waiting thread holds the lock, the process is already ending.
        let Ok(mut child) = self.child.try_lock() else { return Ok(()) };
        // The id of a process that has ended may already belong to another one.
        if !matches!(child.try_wait(), Ok(None)) {
            return Ok(());
        }
        end(&mut child)?;
        self.canceled = true;
        Ok(())
    }
}

/// Asks the group of a process to end: it removes its files, then ends.
#[cfg(unix)]
fn end(child: &mut Child) -> std::io::Result<()> {
    use rustix::process::{Pid, Signal, kill_process_group};
    Ok(kill_process_group(Pid::from_child(child), Signal::TERM)?)
}

/// Ends a process. The run that it has started ends by itself.
#[cfg(not(unix))]
fn end(child: &mut Child) -> std::io::Result<()> {
    child.kill()
}

/// Returns the options with the preprocessing steps of a stack.
fn preprocessing_options(steps: &[PreprocessStep]) -> Vec<OsString> {
    steps.iter().map(|step| OsString::from(format!("--preprocess={step}"))).collect()
}

/// Reads the events of the process of such runs until their end, and passes all but its error to `show`. Returns its error as
/// the window shows it, if it reports one.
fn read_events(pipe: impl Read, runs: TunedRuns, show: impl Fn(ProcessEvent)) -> Option<String> {
    let mut reader = BufReader::new(pipe);
    let (mut error, mut line) = (None, Vec::new());
    // If reading fails, the process ends without a known reason.
    while reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        match ProcessEvent::parse(&String::from_utf8_lossy(&line)) {
            Some(ProcessEvent::Error { message, next_step, settings, .. }) => {
                let message = Message::new(message, &settings);
                error = Some(match runs {
                    TunedRuns::Search => search_failure_in_window(&message, next_step.as_deref()),
                    TunedRuns::Predictions | TunedRuns::Training => failure_in_window(&message, next_step.as_deref()),
                });
            }
            Some(event) => show(event),
            // A message of a library.
            None => {}
        }
        line.clear();
    }
    error
}

/// Returns progress for display, with the remaining time if it is known.
fn progress_text(event: &ProcessEvent) -> Option<String> {
    let text = capitalized(&event.progress_text()?);
    match event {
        ProcessEvent::Candidate { eta_secs, .. } if *eta_secs >= 1.0 => {
            Some(format!("{text} · about {} remaining", seconds(*eta_secs)))
        }
        ProcessEvent::Trial { eta_secs: Some(eta_secs), .. } if *eta_secs >= 1.0 => {
            Some(format!("{text} · about {} remaining", seconds(*eta_secs)))
        }
        _ => Some(text),
    }
}

impl Jobs {
    /// Title of the model whose settings are being tuned.
    pub(crate) fn tuning(&self) -> Option<&str> {
        let preparing = self.tuning.preparing.as_ref().map(|preparing| preparing.model.as_str());
        self.tuning.run.as_ref().map(|run| run.model.as_str()).or(preparing)
    }

    /// Title of the tuning or the search whose files are being written, which does not start without the window. Once it
    /// runs, it goes on.
    pub(super) fn prepared_tuning(&self) -> Option<String> {
        let preparing = self.tuning.preparing.as_ref().filter(|preparing| !preparing.canceled)?;
        let work = if preparing.is_search { "search" } else { "tune" };
        Some(format!("{} · {work}", preparing.model))
    }

    /// Title of the model whose tuning or search runs; it goes on without the window unless it is canceled.
    pub(super) fn running_tuning(&self) -> Option<&str> {
        self.tuning.run.as_ref().filter(|run| !run.canceled).map(|run| run.model.as_str())
    }

    /// Whether a search for training settings runs or is about to.
    pub(crate) fn is_searching(&self) -> bool {
        let is_prepared = self.tuning.preparing.as_ref().is_some_and(|preparing| preparing.is_search);
        is_prepared || self.tuning.run.as_ref().is_some_and(|run| run.runs == TunedRuns::Search)
    }

    /// The progress of tuning in one line, once it is known.
    pub(crate) fn tuning_progress(&self) -> Option<String> {
        let progress = &self.tuning.run.as_ref()?.progress;
        let text = progress.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (!text.is_empty()).then_some(text)
    }

    /// Whether tuning was canceled and has not ended yet.
    pub(crate) fn is_canceling_tuning(&self) -> bool {
        let is_unwanted = self.tuning.preparing.as_ref().is_some_and(|preparing| preparing.canceled);
        is_unwanted || self.tuning.run.as_ref().is_some_and(|run| run.canceled)
    }

    /// Cancels tuning, if it runs, or does not start it once its files are written.
    pub(super) fn cancel_tuning(&mut self, effects: &mut Effects) {
        if let Some(preparing) = &mut self.tuning.preparing {
            preparing.canceled = true;
        }
        if let Some(Err(error)) = self.tuning.run.as_mut().map(TuningRun::cancel) {
            effects.error("Tuning cannot be canceled", format!("{error}. It ends by itself."));
        }
    }

    /// Whether tuning can start now: running jobs would disturb its measurements.
    pub(crate) fn can_tune(&self) -> bool {
        let is_idle = self.active() == 0 && self.preparing.is_empty();
        self.tuning.program.is_some() && self.tuning().is_none() && is_idle
    }

    /// Tunes the settings of the selected model with a document's stack.
    pub(super) fn tune(&mut self, document: u64, documents: &Documents, display: &Display, effects: &mut Effects) {
        let Some((document, card)) = documents.get(document).zip(self.model(display.settings())) else { return };
        if !self.can_tune() {
            return;
        }
        let mut arguments = vec![OsString::from("tune"), OsString::from("--save")];
        arguments.push(path_option("model", &card.path));
        arguments.push(path_option("data", &document.path));
        // As the stack is predicted.
        arguments.push(OsString::from(format!("--series={}", document.series)));
        arguments.extend(document.axes.as_ref().map(|axes| OsString::from(format!("--axes={axes}"))));
        let voxel_um = document.given_voxel_um();
        arguments.extend(voxel_um.map(|[z, y, x]| OsString::from(format!("--voxel-size={z},{y},{x}"))));
        if document.extents.channels > 1 {
            let chosen = input_channels(card, document, display.settings());
            let numbers: Vec<String> = chosen.iter().map(usize::to_string).collect();
            if !numbers.is_empty() {
                arguments.push(OsString::from(format!("--channels={}", numbers.join(","))));
            }
        }
        if let diameter @ DiameterRequest::Given(_) = document.object_size.request_for(card) {
            arguments.push(OsString::from(format!("--diameter={diameter}")));
        }
        arguments.extend(preprocessing_options(&document.preprocessing.steps));
        arguments.push(OsString::from(format!("--device={}", display.settings().device)));
        arguments.extend(self.tuning.profiles.as_deref().map(|path| path_option("profiles", path)));
        let title = card.title.clone();
        let performance = display.settings().performance;
        if let Err(reason) = self.tuning.start(title, TunedRuns::Predictions, performance, &arguments) {
            effects.error("Tuning cannot start", reason);
        }
    }

    /// Tunes the settings of a training run, once these are written to their file.
    pub(super) fn tune_training(&mut self, training: Box<TunedTraining>, effects: &mut Effects) {
        if self.can_tune() {
            let model = training.title.clone();
            self.tuning.preparing = Some(Preparation { model, is_search: false, canceled: false });
            effects.disk(DiskEffect::PrepareTuning(training));
        }
    }

    /// Starts to tune a training run whose settings were written, unless that was canceled.
    pub(crate) fn tuning_ready(&mut self, training: Result<Box<TunedTraining>, String>) -> Effects {
        let mut effects = Effects::default();
        if self.tuning.preparing.take().is_some_and(|preparing| preparing.canceled) {
            return effects;
        }
        let started = training.and_then(|training| {
            let arguments = training.arguments(self.tuning.profiles.as_deref());
            let TunedTraining { title, config, .. } = *training;
            self.tuning.start(title, TunedRuns::Training, config.performance, &arguments)
        });
        if let Err(reason) = started {
            effects.error("Tuning cannot start", reason);
        }
        effects
    }

    /// Reserves this machine for a search, and writes its files.
    pub(super) fn prepare_search(&mut self, setup: Box<SearchSetup>, effects: &mut Effects) {
        if self.can_tune() {
            self.tuning.preparing = Some(Preparation { model: setup.job.title(), is_search: true, canceled: false });
            effects.disk(DiskEffect::PrepareSearch(setup));
        }
    }

    /// Releases this machine, because the files of a search could not be written or the search was canceled meanwhile.
    pub(super) fn search_not_prepared(&mut self, reason: Option<String>, effects: &mut Effects) {
        let is_canceled = self.tuning.preparing.take().is_some_and(|preparing| preparing.canceled);
        if let Some(reason) = reason.filter(|_| !is_canceled) {
            effects.error("The search cannot start", reason);
        }
    }

    /// Starts a search for training settings whose files were written, or continues one.
    pub(super) fn start_search(&mut self, job: &SearchJob, resume: bool, effects: &mut Effects) {
        self.tuning.preparing = None;
        let arguments = job.arguments(resume);
        let started = self.tuning.start(job.title(), TunedRuns::Search, PerformanceRequest::Auto, &arguments);
        if let Err(reason) = started {
            effects.error("The search cannot start", reason);
        }
    }

    /// Returns the trials of a search that have ended since the last call.
    pub(crate) fn take_trials(&self) -> Vec<SearchTrial> {
        std::mem::take(&mut *self.tuning.trials.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Handles the end of tuning: the profiles are read again.
    pub(super) fn poll_tuning(&mut self, effects: &mut Effects) {
        let Some(run) = &self.tuning.run else { return };
        let result = match run.ended.try_recv() {
            Ok(result) => result,
            Err(TryRecvError::Empty) => return,
            Err(TryRecvError::Disconnected) => Err("the thread that waited for it has ended".to_owned()),
        };
        let (title, performance, canceled, runs) = (run.model.clone(), run.performance, run.canceled, run.runs);
        self.tuning.run = None;
        let runs = match runs {
            TunedRuns::Predictions => "predictions",
            TunedRuns::Training => "training runs",
            TunedRuns::Search => {
                return match result {
                    Ok(()) => effects.success("Search finished", format!("{title}: the best settings can be used now")),
                    Err(_) if canceled => {}
                    Err(reason) => effects.error("The search failed", reason),
                };
            }
        };
        match (result, &self.tuning.profiles) {
            (Ok(()), Some(path)) => {
                effects.disk(DiskEffect::ReadMachineProfiles { path: path.clone() });
                let use_of_settings = match performance {
                    // Those of the preset that was saved before, if there is one.
                    PerformanceRequest::Auto => format!("further {runs} use the tuned settings"),
                    _ => "the settings can be chosen under Performance".to_owned(),
                };
                effects.success("Settings tuned", format!("{title}: {use_of_settings}"));
            }
            (Ok(()), None) => effects.success("Settings tuned", title),
            (Err(_), _) if canceled => {}
            (Err(reason), _) => effects.error("Tuning failed", reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effect::Effect;
    use crate::training::Training;
    use cytoscope_pipeline::{CandidateOutcome, JobErrorKind};

    #[cfg(unix)]
    #[test]
    fn a_process_and_those_it_started_are_canceled() {
        let wake: Wake = Arc::new(|| {});
        let mut jobs = Jobs::new(None, None, None, &wake);
        jobs.tuning = Tuning::new(Some(Path::new("/bin/sh")), None, &wake);
        // The shell waits for a process of its group.
        let arguments = ["-c", "sleep 60; exit 0"].map(OsString::from);
        let started = std::time::Instant::now();
        jobs.tuning.start("m".to_owned(), TunedRuns::Search, PerformanceRequest::Auto, &arguments).unwrap();
        assert_eq!(jobs.continued_without_window().map(|(title, _)| title).as_deref(), Some("m · search"));
        jobs.cancel_tuning(&mut Effects::default());
        assert!(jobs.continued_without_window().is_none());
        let run = jobs.tuning.run.as_mut().unwrap();
        assert!(run.canceled);
        assert!(run.ended.recv().unwrap().is_err());
        assert!(started.elapsed().as_secs() < 30, "it was waited for");
    }

    #[test]
    fn a_search_that_is_canceled_while_its_files_are_written_does_not_start_and_leaves_none() {
        let wake: Wake = Arc::new(|| {});
        let mut jobs = Jobs::new(None, None, None, &wake);
        jobs.tuning.preparing = Some(Preparation { model: "m".to_owned(), is_search: true, canceled: false });
        assert!(jobs.is_searching() && !jobs.is_canceling_tuning());
        assert_eq!(jobs.lost_with_window(|_| None), ["m · search"]);
        jobs.cancel_tuning(&mut Effects::default());
        assert!(jobs.lost_with_window(|_| None).is_empty());
        assert!(jobs.is_canceling_tuning(), "the files are still being written");
        let job = SearchJob {
            task: TrainingTask::LabelFree,
            data: PathBuf::from("/data/pairs"),
            from: TrainStart::Scratch,
            out: PathBuf::from("/searches/pairs"),
            trials: 2,
            steps: 20,
            device: DeviceRequest::Auto,
            threads: 0,
            without_int8: true,
            seed: 0,
        };
        let mut training = Training::new(None, TrainConfig::default(), &wake);
        let effects: Vec<Effect> = training.search_ready(Ok(Box::new(job)), &jobs).into_iter().collect();
        let removes = |effect: &Effect| matches!(effect, Effect::Disk(DiskEffect::RemoveSearch(_)));
        assert_eq!(effects.iter().filter(|effect| removes(effect)).count(), 1);
        assert!(training.wizard().plan.search.job.is_none(), "it does not replace the latest search");
        // Nor is it reported that its files could not be written.
        let mut reported = Effects::default();
        jobs.search_not_prepared(Some("the disk is full".to_owned()), &mut reported);
        assert_eq!(reported.into_iter().count(), 0);
        assert!(jobs.tuning().is_none());
    }

    #[test]
    fn tuning_gets_the_preprocessing_steps_of_the_stack_in_order() {
        let steps: Vec<PreprocessStep> =
            ["gaussian:sigma=1um", "crop:x=2-9"].iter().map(|step| step.parse().unwrap()).collect();
        let options = preprocessing_options(&steps);
        let again: Vec<PreprocessStep> = options
            .iter()
            .map(|option| option.to_str().unwrap().strip_prefix("--preprocess=").unwrap().parse().unwrap())
            .collect();
        assert_eq!(again, steps);
        // Steps are separated by commas in one option.
        assert!(options.iter().all(|option| !option.to_str().unwrap().contains(',')), "{options:?}");
        assert!(preprocessing_options(&[]).is_empty());
    }

    #[test]
    fn a_training_run_is_tuned_with_the_settings_of_the_wizard() {
        let folder = tempfile::tempdir().unwrap();
        let training = TunedTraining {
            title: "New network".to_owned(),
            from: TrainStart::Scratch,
            task: TrainingTask::LabelFree,
            data: PathBuf::from("/data/pairs"),
            config: TrainConfig { batch: Some(3), ..TrainConfig::default() },
            device: DeviceRequest::Auto,
            settings: folder.path().join("tune.toml"),
        };
        training.write_settings().unwrap();
        assert_eq!(TrainConfig::read(&training.settings).unwrap(), training.config);
        let words: Vec<String> = training
            .arguments(Some(Path::new("/p.json")))
            .into_iter()
            .map(|word| word.into_string().unwrap())
            .collect();
        let config = format!("--config={}", training.settings.display());
        let given = ["--model=scratch", "--training=/data/pairs", "--task=labelfree", &config, "--device=auto"];
        assert_eq!(words[..3], ["tune", "--save", "--only-training"]);
        assert_eq!(words[3..8], given);
        assert_eq!(words[8..], ["--profiles=/p.json"]);
    }

    #[test]
    fn events_of_the_process_are_shown_with_the_remaining_time_and_its_error_is_the_reason() {
        let candidate = |place, eta_secs| ProcessEvent::Candidate {
            place,
            candidates: 2,
            settings: "cpu int8".to_owned(),
            outcome: CandidateOutcome::Measured { secs: 0.5321 },
            eta_secs,
        };
        let error = ProcessEvent::Error {
            kind: JobErrorKind::OutOfResources,
            message: "there is no memory; close other programs".to_owned(),
            next_step: Some("close other programs".to_owned()),
            settings: Vec::new(),
        };
        let round = ProcessEvent::Round { round: 1, candidates: 2 };
        let lines: Vec<String> = [round, candidate(1, 150.0), candidate(2, 0.0), error]
            .iter()
            .map(|event| serde_json::to_string(event).unwrap())
            .collect();
        let text = format!("a library's message\n{}\n[1 of 9] error: another one\n", lines.join("\n"));
        let shown = std::cell::RefCell::new(Vec::new());
        let reason = read_events(text.as_bytes(), TunedRuns::Predictions, |event| {
            shown.borrow_mut().extend(progress_text(&event))
        });
        assert_eq!(reason.as_deref(), Some("there is no memory.\nClose other programs."));
        let first = "1 of 2: cpu int8: 0.532 s · about 2 min 30 s remaining";
        assert_eq!(shown.into_inner(), ["Round 1: 2 candidates", first, "2 of 2: cpu int8: 0.532 s"]);
        assert_eq!(read_events(&b"note: a"[..], TunedRuns::Search, |_| {}), None);
        let settings = vec!["ema=0.9".to_owned()];
        let (score, error) = (Some(0.5), String::new());
        let trial = SearchTrial { number: 1, rung: 1, steps: 4, score, seconds: 2.0, error, settings };
        let ended = ProcessEvent::Trial { trial, rungs: 2, eta_secs: Some(60.0) };
        let text = "Rung 1 of 2: trial 1, 4 steps: score 0.5000 · about 60.0 s remaining";
        assert_eq!(progress_text(&ended).as_deref(), Some(text));
    }
}
