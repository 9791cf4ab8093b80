//! `cytoscope tune`: finds the fastest settings for a model on this machine, and saves them as the machine's profile.

mod halving;
mod inference;
mod progress;
mod simulated;
mod training;

use super::child::Scratch;
use super::diameter::comparison_diameter;
use super::failure::{Failure, Outcome};
use super::measured::Measurement;
use super::options::{StageTraceOption, one_of};
use super::progress::context;
use super::trace_path::check_trace;
use super::{devices, parse_um, print, print_json, signals};
use clap::{Args, ValueEnum};
use cytoscope_engine::{Device, DeviceRequest};
use cytoscope_formats::{OpenOptions, SeriesChoice};
use cytoscope_pipeline::predict::ChannelRef;
use cytoscope_pipeline::{
    CancelToken, Context, DiameterRequest, DiameterUnit, InferenceSettings, JobError, JobErrorKind, MachineProfile,
    MachineProfiles, Model, ModelTask, PROGRAM, PredictJob, Preset, SCRATCH, TrainingSettings, find_model, machine_key,
    preprocessed,
};
use cytoscope_preprocess::PreprocessStep;
use cytoscope_profile::{Recorder, bytes_text};
use cytoscope_storage::Overwrite;
use cytoscope_storage::message;
use cytoscope_storage::setting::{CONFIG, DEVICE};
use cytoscope_train::{CheckJob, TrainConfig, TrainStart};
use cytoscope_training_data::TrainingTask;
use cytoscope_volume::{Axes, Axis};
use halving::{Candidate, Search, Trial, TrialEnd};
use inference::{InferenceCandidate, InferenceWorkload};
use progress::TuneProgress;
use serde::Serialize;
use simulated::{SIMULATED, simulated_stack};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use training::{TrainingCandidate, TrainingWorkload};

/// Kind of the working folder, as stored in its marker file.
const FOLDER_KIND: &str = cytoscope_storage::folder_kind::TUNE;
/// Number of steps over which the time of a training candidate is averaged.
const STEPS: usize = 12;

/// Options of `tune`.
#[derive(Args)]
pub(crate) struct Tune {
    /// Model package (folder, .zip or .onnx), name of an installed model, or, with --training, scratch.
    #[arg(long, default_value = "nuclei")]
    model: TrainStart,
    /// Stack to predict, of typical size; by default a simulated one of 48 × 192 × 192 voxels.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Series (position, scene, well) of the stack, by number from 0 or by name.
    #[arg(long, default_value = "0", value_name = "N|NAME", requires = "data")]
    series: SeriesChoice,
    /// Axis order of the stack, such as ZYX or TCYX, to use instead of its own.
    #[arg(long, requires = "data")]
    axes: Option<Axes>,
    /// Channels to use as the model's inputs, in their order, by name or number, such as membrane,nuclei.
    #[arg(long, value_delimiter = ',', value_name = "NAME|N", requires = "data")]
    channels: Vec<ChannelRef>,
    /// Voxel size Z,Y,X in µm, to use instead of the stack's own.
    #[arg(long, value_name = "Z,Y,X", value_parser = parse_um, requires = "data")]
    voxel_size: Option<[f64; 3]>,
    /// Median diameter of the objects in the stack in µm (in voxels if the voxel size is unknown), or auto to estimate it;
    /// by default auto.
    #[arg(long, value_name = "UM|auto", requires = "data")]
    diameter: Option<DiameterRequest>,
    /// Steps that are applied to the stack first, as for cytoscope predict; can be repeated.
    #[arg(long, value_name = "STEP", value_delimiter = ',', requires = "data")]
    preprocess: Vec<PreprocessStep>,
    /// Also tune training runs that start from the model, on this training data: a folder of images and labels (or stains),
    /// or a CSV table of them.
    #[arg(long, value_name = "DIR|CSV")]
    training: Option<PathBuf>,
    /// Tune only the training runs, not the predictions with the model.
    #[arg(long, requires = "training",
          conflicts_with_all = ["data", "series", "axes", "channels", "voxel_size", "diameter", "preprocess"])]
    only_training: bool,
    /// Task to train the network for; by default the model's task, or segmentation for scratch.
    #[arg(long, value_enum, requires = "training")]
    task: Option<TuneTask>,
    /// Training settings as a TOML file; settings that it states are not varied.
    #[arg(long, value_name = "TOML", requires = "training")]
    config: Option<PathBuf>,
    /// Number of steps of each training candidate.
    #[arg(long, default_value_t = STEPS, requires = "training")]
    steps: usize,
    /// Devices to try: auto (all of this machine), cpu, cuda[:i] or wgpu[:i].
    #[arg(long, default_value = "auto")]
    device: DeviceRequest,
    /// Save the settings in the profile of this machine, which predict and train use for options that are not given.
    #[arg(long)]
    save: bool,
    /// Preset that predict and train use unless another is requested: fastest, least-memory or most-accurate; by default
    /// the one that was saved before for the model, or else fastest.
    #[arg(long, requires = "save", value_parser = one_of::<Preset>(Preset::ALL.map(Preset::name)), hide_possible_values = true)]
    preset: Option<Preset>,
    /// File of the machine profiles, instead of that in the user's folder.
    #[arg(long, value_name = "JSON", requires = "save", hide = true)]
    profiles: Option<PathBuf>,
    #[command(flatten)]
    tracing: StageTraceOption,
    /// Overwrite an existing trace; an input is never overwritten.
    #[arg(long, requires = "trace")]
    force: bool,
    /// Print the candidates and presets as one JSON object.
    #[arg(long)]
    json: bool,
    /// Report progress as JSON lines on standard error.
    #[arg(long)]
    json_progress: bool,
}

/// Task of a training run.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TuneTask {
    /// Segmentation of objects.
    Segmentation,
    /// Prediction of a stain from images without it.
    Labelfree,
}

/// Candidates of one kind of run, and the settings that were chosen from them.
#[derive(Serialize)]
struct Tuned<C, S> {
    candidates: Vec<Trial<C>>,
    presets: BTreeMap<Preset, S>,
    /// Whether all candidates were compared; false if this was interrupted.
    complete: bool,
}

impl<C, S: Clone> Tuned<C, S> {
    fn new(search: Search<C>, presets: impl FnOnce(&[Trial<C>]) -> BTreeMap<Preset, S>) -> Self {
        let Search { trials, is_complete } = search;
        Self { presets: presets(&trials), candidates: trials, complete: is_complete }
    }

    /// Returns the settings to save. Those of an interrupted search do not replace `earlier` ones, and are saved only if it
    /// was interrupted from the terminal, as opposed to a shutdown or the window.
    fn to_save(&self, earlier: Option<&BTreeMap<Preset, S>>) -> BTreeMap<Preset, S> {
        let is_known = earlier.is_some_and(|settings| !settings.is_empty());
        if self.complete || !(is_known || signals::is_requested_by_system()) {
            self.presets.clone()
        } else {
            BTreeMap::new()
        }
    }
}

/// The candidates of training runs on data that were checked.
struct PlannedTraining {
    task: TrainingTask,
    candidates: Vec<TrainingCandidate>,
}

/// The object diameter of all predictions.
#[derive(Clone, Copy)]
struct ComparedDiameter {
    value: f64,
    /// The unit, if it is known.
    unit: Option<DiameterUnit>,
}

/// Report of a tuning run.
#[derive(Serialize)]
struct TuneReport {
    model: String,
    fingerprint: String,
    machine: String,
    /// Object diameter of all predictions in µm, or in voxels if the voxel size is unknown; `None` if the model declares
    /// none.
    diameter: Option<f64>,
    /// Unit of the object diameter, if it is known.
    diameter_unit: Option<DiameterUnit>,
    inference: Option<Tuned<InferenceCandidate, InferenceSettings>>,
    training: Option<Tuned<TrainingCandidate, TrainingSettings>>,
    /// Whether everything that was requested was tuned; false if this was interrupted, or training runs failed.
    complete: bool,
    /// The file of profiles, if settings were saved.
    saved: Option<PathBuf>,
    /// The preset that predict and train use without a request, if settings were saved.
    preset: Option<Preset>,
}

impl Tune {
    pub(crate) fn run(self) -> Outcome {
        if self.steps == 0 {
            return Err(Failure::wrong_use("--steps is 0: expected at least 1"));
        }
        // What would stop saving is reported before the runs.
        let profiles = self.save.then(|| profiles_path(self.profiles.as_deref())).transpose()?;
        if let Some(path) = &profiles {
            // Its lock is a file in the same folder.
            MachineProfiles::update(path, |_| ())?;
        }
        let (trace, overwrite) = (self.tracing.trace.as_deref(), Overwrite::from_force(self.force));
        if let Some(trace) = trace {
            // A model that does not exist is reported when it is opened.
            let model = self.model.model().and_then(|model| find_model(model).ok());
            let given = [&self.data, &self.training, &self.config].into_iter().flatten().chain(&model);
            let inputs: Vec<&Path> = given.map(PathBuf::as_path).collect();
            let outputs: Vec<&Path> = profiles.iter().map(PathBuf::as_path).collect();
            check_trace(trace, &inputs, &outputs, overwrite)?;
        }
        let measurement = Measurement::start("tune", trace, overwrite, true);
        let tuned = self.tune(profiles, measurement.recorder());
        measurement.finish(tuned, 0).map(drop)
    }

    /// Tunes what is requested, saves the settings in the file of `profiles` if there is one, and reports them.
    fn tune(&self, profiles: Option<PathBuf>, recorder: Recorder) -> Outcome {
        let model = self.model.model().map(Model::load).transpose()?;
        if model.is_none() && self.training.is_none() {
            return Err(Failure::wrong_use("--model scratch names no network to predict with")
                .and_next("give --training with the training data"));
        }
        if self.training.is_some() {
            TrainConfig::read_with(self.config.as_deref(), &[])?;
        }
        // Ctrl-C ends the current run; what was measured before is reported, and the folder is removed.
        let context = context(false, true, recorder);
        let scratch = Scratch::create_temporary(&std::env::temp_dir(), FOLDER_KIND)?;
        let tried = self.tried_devices()?;
        // Before the predictions, which may take long: data that cannot be used would fail once for each candidate.
        let planned = match &self.training {
            Some(data) => Some((data, self.plan_training(data, model.as_ref(), &tried, &context)?)),
            None => None,
        };
        let inference = match &model {
            Some(model) if !self.only_training => Some(self.tune_inference(model, &tried, &scratch, &context)?),
            _ => None,
        };
        let (training, training_failure) = match planned {
            Some((data, plan)) => match self.tune_training(data, plan, &tried, &scratch, &context) {
                Ok(tuned) => (Some(tuned), None),
                // The predictions that were measured are reported.
                Err(failure) if inference.is_some() => (None, Some(failure)),
                Err(failure) => return Err(failure),
            },
            None => (None, None),
        };
        let (inference, diameter) = inference.map_or((None, None), |(tuned, diameter)| (Some(tuned), diameter));
        let complete = inference.as_ref().is_none_or(|tuned| tuned.complete)
            && training.as_ref().map_or(self.training.is_none(), |tuned| tuned.complete);
        let mut report = TuneReport {
            model: model.as_ref().map_or_else(|| SCRATCH.to_owned(), |m| m.name.clone()),
            fingerprint: model.map_or_else(|| SCRATCH.to_owned(), |m| m.fingerprint),
            machine: machine_key(),
            diameter: diameter.map(|diameter| diameter.value),
            diameter_unit: diameter.and_then(|diameter| diameter.unit),
            inference,
            training,
            complete,
            saved: None,
            preset: None,
        };
        let saving = match profiles {
            Some(path) => save(&report, self.preset, &path).map(|preset| {
                report.saved = preset.map(|_| path);
                report.preset = preset;
            }),
            None => Ok(()),
        };
        if self.json {
            print_json(&report)?;
        } else {
            print_report(&report, self.save.then(|| saving.is_ok()));
        }
        saving?;
        if let Some(failure) = training_failure.filter(|failure| failure.kind() != JobErrorKind::Canceled) {
            return Err(Failure::new(failure.kind(), message!("training was not tuned: {failure}")));
        }
        if complete {
            return Ok(());
        }
        let problem = "tuning was interrupted before all candidates were compared";
        Err(Failure::new(JobErrorKind::Canceled, problem).and_next("run it again for reliable settings"))
    }

    /// Returns how progress is shown.
    fn progress(&self) -> TuneProgress {
        if self.json_progress { TuneProgress::JsonLines } else { TuneProgress::Lines }
    }

    /// Returns the devices to try, also those that cannot be used.
    fn tried_devices(&self) -> Result<Vec<Device>, Failure> {
        let available: Vec<Device> = devices::for_request(self.device).list().to_vec();
        let tried: Vec<Device> = match self.device {
            DeviceRequest::Auto => available,
            DeviceRequest::Device(id) => available.into_iter().filter(|device| device.id == id).collect(),
        };
        if tried.iter().any(|device| device.usable) {
            return Ok(tried);
        }
        let reason = tried.first().map_or_else(|| "there is no such device".to_owned(), |d| d.reason.clone());
        let next_step = "cytoscope devices lists the devices of this machine";
        Err(Failure::wrong_use(format!("{} cannot be used: {reason}", self.device)).and_next(next_step))
    }

    fn tune_inference(
        &self,
        model: &Model,
        devices: &[Device],
        scratch: &Scratch,
        context: &Context,
    ) -> Result<(Tuned<InferenceCandidate, InferenceSettings>, Option<ComparedDiameter>), Failure> {
        let mut options = Vec::new();
        let (data, diameter) = match &self.data {
            Some(path) => {
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                let diameter = self.diameter_for(&path, model, context)?;
                (path, diameter)
            }
            // On the model's own grid: nothing is resampled or estimated.
            None => {
                let data = simulated_stack(model, scratch.path(), &context.cancel, |note| self.progress().note(note))?;
                (data, model.object_diameter_um)
            }
        };
        if !self.series.is_first() {
            options.push(format!("--series={}", self.series));
        }
        options.extend(self.axes.as_ref().map(|axes| format!("--axes={axes}")));
        if !self.channels.is_empty() {
            let channels: Vec<String> = self.channels.iter().map(ChannelRef::to_string).collect();
            options.push(format!("--channels={}", channels.join(",")));
        }
        options.extend(self.voxel_size.map(|[z, y, x]| format!("--voxel-size={z},{y},{x}")));
        options.extend(diameter.map(|diameter| format!("--diameter={diameter}")));
        options.extend(self.preprocess.iter().map(|step| format!("--preprocess={step}")));
        let file_zyx = self.shape_zyx(&data)?;
        let progress = self.progress();
        let recorder = &context.recorder;
        let workload = InferenceWorkload { model: self.model.as_str(), data, options, progress, recorder };
        let (tiling, unit) = inference::tiling(devices, file_zyx, &workload, scratch, &[SIMULATED], &context.cancel)?;
        let candidates = inference::candidates(model, devices, &tiling);
        let default = inference::default_place(model, &candidates);
        let search = inference::run(candidates, default, &workload, scratch, &[SIMULATED], &context.cancel)?;
        let diameter = diameter.map(|value| ComparedDiameter { value, unit });
        Ok((Tuned::new(search, |trials| inference::presets(trials, devices)), diameter))
    }

    /// Returns the object diameter with which all candidates predict a stack: the given one, or one estimate. Each network
    /// would estimate another one, and predict on another grid.
    fn diameter_for(&self, stack: &Path, model: &Model, context: &Context) -> Result<Option<f64>, Failure> {
        if let Some(DiameterRequest::Given(diameter)) = self.diameter {
            return Ok(Some(diameter));
        }
        if model.object_diameter_um.is_some() {
            self.progress().preparing("estimating the object diameter");
        }
        let prediction = PredictJob {
            channels: self.channels.clone(),
            series: self.series.clone(),
            axes: self.axes.clone(),
            voxel_um: self.voxel_size,
            preprocess: self.preprocess.clone(),
            ..PredictJob::new(vec![stack.to_owned()], self.model.as_str().to_owned(), PathBuf::new())
        };
        comparison_diameter(model, prediction, context, |note| self.progress().note(note))
    }

    /// Returns what is tried for training runs on these data, after checking them.
    fn plan_training(
        &self,
        data: &Path,
        model: Option<&Model>,
        devices: &[Device],
        context: &Context,
    ) -> Result<PlannedTraining, Failure> {
        let config = TrainConfig::read_with(self.config.as_deref(), &[])?;
        let task = match (self.task, model.map(|m| m.task)) {
            (Some(TuneTask::Labelfree), _) | (None, Some(ModelTask::LabelFree)) => TrainingTask::LabelFree,
            (Some(TuneTask::Segmentation), _) | (None, _) => TrainingTask::Segmentation,
        };
        let candidates = training::candidates(&config, devices);
        if candidates.is_empty() {
            return Err(Failure::wrong_use(message!(
                "none of the devices trains in the precision that {CONFIG} states"
            ))
            .and_next(message!("choose another precision or {DEVICE}")));
        }
        self.progress().preparing("checking the training data");
        let from = Some(self.model.clone());
        CheckJob { task, data: data.to_owned(), config, seed: 0, from, details: None }.require_usable(context)?;
        Ok(PlannedTraining { task, candidates })
    }

    fn tune_training(
        &self,
        data: &Path,
        plan: PlannedTraining,
        devices: &[Device],
        scratch: &Scratch,
        context: &Context,
    ) -> Result<Tuned<TrainingCandidate, TrainingSettings>, Failure> {
        check_canceled(&context.cancel)?;
        let PlannedTraining { task, candidates } = plan;
        let (config, steps, progress) = (self.config.as_deref(), self.steps, self.progress());
        let recorder = &context.recorder;
        let workload = TrainingWorkload { from: &self.model, task, data, config, steps, progress, recorder };
        let search = training::run(candidates, &workload, scratch, &[SIMULATED], &context.cancel)?;
        Ok(Tuned::new(search, |trials| training::presets(trials, devices)))
    }

    /// Returns the lengths of the chosen series of a stack along Z, Y, X in voxels, 1 for a missing axis, after the
    /// preprocessing steps; before them if one cannot be applied with the voxel size of the file. They only decide which tiles
    /// are tried.
    fn shape_zyx(&self, path: &Path) -> Result<[usize; 3], Failure> {
        let image = self.series.open(path, &OpenOptions { axes: self.axes.clone(), ..OpenOptions::default() })?;
        let image = preprocessed(&Context::default(), &image, &self.preprocess).unwrap_or(image);
        let meta = image.meta();
        let length = |axis: Axis| meta.axes.iter().zip(&meta.shape).find(|(a, _)| *a == axis).map_or(1, |(_, n)| *n);
        Ok([length(Axis::Z), length(Axis::Y), length(Axis::X)])
    }
}

/// Returns an error once the program was asked to end.
fn check_canceled(cancel: &CancelToken) -> Result<(), Failure> {
    if cancel.is_canceled() { Err(JobError::Canceled.into()) } else { Ok(()) }
}

/// Returns the file of the profiles: the given one, or that of the user.
fn profiles_path(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let path = given.map(Path::to_owned).or_else(MachineProfiles::user_path);
    path.ok_or_else(|| Failure::other("there is no folder for the user's settings").and_next("set HOME"))
}

/// Adds the settings to the profiles in a file, and returns the preset that is used without a request; `None` if there are no
/// settings to add. Without a preset, that of the earlier profile stays.
fn save(report: &TuneReport, preset: Option<Preset>, path: &Path) -> Result<Option<Preset>, Failure> {
    Ok(MachineProfiles::update(path, |profiles| add(report, preset, profiles))?)
}

/// Adds the settings to these profiles, as [`save`] does to those in a file.
fn add(report: &TuneReport, preset: Option<Preset>, profiles: &mut MachineProfiles) -> Option<Preset> {
    let earlier = profiles.find(&report.fingerprint, &report.machine);
    let inference = report.inference.as_ref().map(|tuned| tuned.to_save(earlier.map(|profile| &profile.inference)));
    let training = report.training.as_ref().map(|tuned| tuned.to_save(earlier.map(|profile| &profile.training)));
    let (inference, training) = (inference.unwrap_or_default(), training.unwrap_or_default());
    if !report.complete && inference.is_empty() && training.is_empty() {
        return None;
    }
    let preset = preset.or(earlier.map(|profile| profile.preset)).unwrap_or(Preset::Fastest);
    profiles.put(MachineProfile {
        model: report.model.clone(),
        fingerprint: report.fingerprint.clone(),
        machine: report.machine.clone(),
        program: PROGRAM.to_owned(),
        tuned_unix_secs: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        preset,
        inference,
        training,
    });
    Some(preset)
}

/// Prints the report; `saving` says whether saving worked, if that was requested.
fn print_report(report: &TuneReport, saving: Option<bool>) {
    print(&format!("{} on {}", report.model, report.machine));
    let mark = |complete: bool| if complete { "" } else { " (incomplete: interrupted)" };
    if let Some(tuned) = &report.inference {
        let unit = report.diameter_unit.map_or_else(String::new, |unit| format!(" {}", unit.symbol()));
        let size = report.diameter.map_or_else(String::new, |value| format!(", object diameter {value:.1}{unit}"));
        let mark = mark(tuned.complete);
        print(&format!(
            "prediction{size}{mark}: shortest time, runs, peak memory, relative L2 difference from 32-bit floats"
        ));
        let width = label_width(&tuned.candidates);
        for trial in &tuned.candidates {
            print(&trial_line(trial, width, &format!("{:>9}  ", difference_text(trial.relative_l2))));
        }
        for (preset, s) in &tuned.presets {
            let InferenceSettings { device, precision, tile_zyx, threads, secs, peak_bytes, relative_l2, .. } = *s;
            let label = InferenceCandidate { device, precision, tile_zyx, threads }.label();
            let (memory, difference) = (memory_text(peak_bytes), difference_text(relative_l2));
            print(&format!("  {:14} {label}: {secs:.4} s, {memory}, difference {difference}", preset.name()));
        }
    }
    if let Some(tuned) = &report.training {
        print(&format!("training{}: shortest time of a patch, runs, peak memory", mark(tuned.complete)));
        let width = label_width(&tuned.candidates);
        tuned.candidates.iter().for_each(|trial| print(&trial_line(trial, width, "")));
        let has_settings = |trial: &Trial<TrainingCandidate>, s: &TrainingSettings| {
            let c = &trial.candidate;
            (c.device, c.batch, Some(c.workers), c.prefetch, c.threads, Some(c.precision))
                == (s.device, s.batch, s.workers, s.prefetch, s.threads, s.precision)
        };
        for (preset, settings) in &tuned.presets {
            let chosen = tuned.candidates.iter().find(|trial| has_settings(trial, settings));
            let label = chosen.map_or_else(String::new, |trial| trial.candidate.label());
            let (secs, memory) = (settings.secs_per_patch, memory_text(settings.peak_bytes));
            print(&format!("  {:14} {label}: {secs:.4} s, {memory}", preset.name()));
        }
    }
    let used = report.preset.map_or_else(String::new, |preset| format!("; the preset {preset} is the default"));
    match (&report.saved, saving) {
        (Some(path), _) if report.complete => print(&format!("saved to {}{used}", path.display())),
        (Some(path), _) => {
            let kept = "because tuning is incomplete, it has replaced no settings that were saved before";
            print(&format!("saved to {}; {kept}", path.display()));
        }
        (None, Some(true)) => print("not saved, because tuning was interrupted; earlier settings are kept"),
        (None, Some(false)) => {}
        (None, None) => print("not saved: --save makes these settings the defaults of this machine"),
    }
}

fn memory_text(peak_bytes: Option<u64>) -> String {
    peak_bytes.map_or_else(|| "-".to_owned(), bytes_text)
}

fn difference_text(relative_l2: Option<f64>) -> String {
    let text = |error: f64| if error == 0.0 { "0".to_owned() } else { format!("{error:.1e}") };
    relative_l2.map_or_else(|| "-".to_owned(), text)
}

/// Returns the number of characters of the longest text of a candidate.
fn label_width<C: Candidate>(trials: &[Trial<C>]) -> usize {
    trials.iter().map(|trial| trial.candidate.label().chars().count()).max().unwrap_or(0)
}

/// Returns the row of a candidate: its text in a column of this width, and `difference`, a further column, before the end.
fn trial_line<C: Candidate>(trial: &Trial<C>, width: usize, difference: &str) -> String {
    let time = trial.best_secs().map_or_else(|| "-".to_owned(), |secs| format!("{secs:.4} s"));
    let memory = memory_text(trial.peak_bytes);
    let end = match &trial.end {
        TrialEnd::Fastest => "fastest".to_owned(),
        TrialEnd::WithinSpread => "as fast as the fastest, within the spread of the runs".to_owned(),
        TrialEnd::Slower { round } => format!("dropped after round {round}"),
        TrialEnd::TooSlow { round } => format!("ended in round {round}"),
        TrialEnd::Failed { error } => format!("failed: {error}"),
        TrialEnd::Interrupted if trial.secs.is_empty() => "not run".to_owned(),
        TrialEnd::Interrupted => "interrupted".to_owned(),
    };
    let runs = trial.secs.len();
    format!("    {:width$} {time:>12} {runs:>4} {memory:>10}  {difference}{end}", trial.candidate.label())
}
