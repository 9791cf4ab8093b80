//! `cytoscope train`: trains a network and writes a model package.

mod precision;
mod search;
mod search_plot;
mod search_time;

use super::failure::{Failure, Outcome};
use super::measured::{MeasuredRun, RunClock, memory_sampler, recorder, training_facts};
use super::options::{ReportOptions, ThreadsOption, TraceOptions, one_of};
use super::reports::TrainCommandReport;
use super::trace_path::check_trace;
use super::{machine_profile, note_line, parse_zyx, print, print_json, progress};
use clap::{Args, ValueEnum};
use cytoscope_engine::DeviceRequest;
use cytoscope_formats::SeriesChoice;
use cytoscope_pipeline::{DiameterRequest, PerformanceRequest, find_model};
use cytoscope_profile::{RunFacts, bytes_text, count_text, time_text};
use cytoscope_storage::{Overwrite, by_count, counted};
use cytoscope_train::{
    ChosenNetwork, SettingAssignment, TrainConfig, TrainEvent, TrainJob, TrainPrecision, TrainReport, TrainStart,
    TrainStatus, minutes_problem,
};
use cytoscope_training_data::TrainingTask;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

#[derive(Args)]
#[command(
    after_help = "Ctrl-C saves a checkpoint; --resume continues from it. To end a training run early with the best network so \
                  far, create an empty file named \"finish\" in the folder OUT.training."
)]
pub(crate) struct Train {
    /// Task to train the network for.
    #[arg(long, value_enum)]
    task: TaskName,
    /// Training data: a folder of images and labels (or stains), or a CSV table of them.
    #[arg(long, value_name = "DIR|CSV")]
    data: PathBuf,
    /// Series (position, scene, well) of images and targets in multi-series files: a number from 0, a name, or all,
    /// which makes each series a separate pair. Short for --set data.series=N.
    #[arg(long, value_name = "N|NAME|all")]
    series: Option<SeriesChoice>,
    /// Model to start from: a package, the name of an installed model, an ONNX file, or scratch.
    #[arg(long, default_value_t = TrainStart::Scratch, value_name = "PKG|NAME|scratch")]
    from: TrainStart,
    /// Package to write: a folder or a .zip.
    #[arg(long)]
    out: PathBuf,
    /// Training settings as a TOML file; options on the command line take precedence.
    #[arg(long, value_name = "TOML")]
    config: Option<PathBuf>,
    /// Set one training setting, such as schedule.rate=0.001; takes precedence over --config. Can be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<SettingAssignment>,
    /// Budget: number of epochs (passes over the training data). The budget that is reached first ends training;
    /// without any, 30 epochs.
    #[arg(long)]
    epochs: Option<usize>,
    /// Budget: minutes of wall time, including validation and writing the package; at most 43200 (30 days).
    #[arg(long)]
    minutes: Option<f64>,
    /// Budget: number of steps (optimizer updates).
    #[arg(long)]
    steps: Option<usize>,
    /// Patch size Z,Y,X in voxels; by default as in --config, or else 24,64,64, or one slice thick
    /// if all images are single planes.
    #[arg(long, value_name = "Z,Y,X", value_parser = parse_zyx)]
    patch: Option<[usize; 3]>,
    /// Median diameter of the objects in µm (in voxels if the files give no voxel size), or auto to measure it on the
    /// labels of each pair. Images are rescaled so that objects have the model's nominal diameter. By default as in
    /// --config, or else auto.
    #[arg(long, value_name = "UM|auto")]
    diameter: Option<DiameterRequest>,
    /// Batch size: patches per step; by default as in --config, or else 2.
    #[arg(long)]
    batch: Option<usize>,
    /// Device to train on: auto (from the machine profile, or else the one with the fastest measured step), cpu,
    /// cuda[:i] or wgpu[:i].
    #[arg(long, default_value = "auto")]
    device: DeviceRequest,
    /// Measure the step on each device again, instead of using earlier measurements of this network.
    #[arg(long, conflicts_with = "search")]
    remeasure: bool,
    /// Precision of convolutions and their gradients: auto (as in --config, or else tf32 on CUDA and f32 elsewhere),
    /// f32, tf32, f16 or bf16; tf32 and bf16 need CUDA, f16 needs a GPU.
    #[arg(long, value_enum, default_value = "auto", hide_possible_values = true)]
    precision: TrainPrecisionName,
    /// After training in mixed precision (f16 or bf16), train again in f32 with the same seed and steps, and report the
    /// difference of the scores on the validation set. This takes as long as training in f32 from the start.
    #[arg(long, conflicts_with_all = ["search", "resume"])]
    compare_precision: bool,
    /// Continue an unfinished training run from its checkpoint.
    #[arg(long)]
    resume: bool,
    /// Discard the unfinished training run with the same --out, and start over.
    #[arg(long, alias = "anew", conflicts_with = "resume")]
    restart: bool,
    /// Search for settings within the ranges of this file, with --trials and --steps: the better half of the trials
    /// continues with twice the steps, until one is left, which trains for --steps and writes the package. All trials are
    /// listed in OUT.search.csv and plotted in OUT.search.svg; --resume continues the search.
    #[arg(long, value_name = "SPACE.toml", requires_all = ["trials", "steps"],
          conflicts_with_all = ["trace", "stages_only", "epochs", "minutes"])]
    search: Option<PathBuf>,
    /// Number of trials of --search.
    #[arg(long, value_name = "N", requires = "search",
          conflicts_with_all = ["trace", "epochs", "minutes"])]
    trials: Option<usize>,
    /// Random seed; the same seed gives the same split of the data and the same patches.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    threading: ThreadsOption,
    /// Settings from the machine profile (cytoscope tune --save) for options that are not given: auto (the saved preset),
    /// off, fastest, least-memory or most-accurate. By default as in --config, or else auto.
    #[arg(long, value_name = "PRESET", value_parser = one_of::<PerformanceRequest>(PerformanceRequest::names()),
          hide_possible_values = true)]
    performance: Option<PerformanceRequest>,
    /// Leave the int8 network out of the package.
    #[arg(long)]
    without_int8: bool,
    /// License of the model, an identifier of https://spdx.org/licenses such as CC-BY-4.0. By default as in --config, or
    /// else that of the start model; if it has none, the package states none.
    #[arg(long, value_name = "SPDX")]
    license: Option<String>,
    #[command(flatten)]
    tracing: TraceOptions,
    /// Replace an existing package that Cytoscope did not write, or that was changed: a file is overwritten, a folder is
    /// moved aside; an input is never replaced. The package of an earlier training run is always moved aside.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    report: ReportOptions,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TaskName {
    /// Segmentation of objects.
    Segmentation,
    /// Prediction of a stain from images without it.
    Labelfree,
}

impl TaskName {
    fn task(self) -> TrainingTask {
        match self {
            Self::Segmentation => TrainingTask::Segmentation,
            Self::Labelfree => TrainingTask::LabelFree,
        }
    }
}

/// Values of `--precision`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum TrainPrecisionName {
    Auto,
    F32,
    Tf32,
    F16,
    Bf16,
}

impl TrainPrecisionName {
    /// Returns the requested precision; `None` leaves it to the settings.
    fn requested(self) -> Option<TrainPrecision> {
        match self {
            Self::Auto => None,
            Self::F32 => Some(TrainPrecision::F32),
            Self::Tf32 => Some(TrainPrecision::Tf32),
            Self::F16 => Some(TrainPrecision::F16),
            Self::Bf16 => Some(TrainPrecision::Bf16),
        }
    }
}

impl Train {
    pub(crate) fn run(self) -> Outcome {
        if let Some(((space, trials), steps)) = self.search.as_ref().zip(self.trials).zip(self.steps) {
            return search::run(&self, space, trials, steps);
        }
        let config = self.settings()?;
        if let Some(path) = &self.tracing.trace {
            self.check_trace(path)?;
        }
        let clock = RunClock::start();
        let recorder = recorder(self.tracing.trace.as_deref(), self.tracing.stages_only);
        let _sampler = memory_sampler(&recorder, self.tracing.trace.as_deref());
        let (context, display) = progress::training_context(self.report.json_progress, false, recorder.clone());
        let mut job = self.job(config);
        let (profile, devices) = machine_profile::for_training(&mut job, &context);
        let devices = if self.remeasure { devices.measured_again() } else { devices };
        if self.compare_precision {
            precision::check(&job.config)?;
        }
        let last_status: Mutex<Option<TrainStatus>> = Mutex::default();
        let on_event = |event: &TrainEvent| {
            if let TrainEvent::Status(status) = event {
                *last_status.lock().unwrap_or_else(PoisonError::into_inner) = Some((**status).clone());
            }
            display.training_event(event);
        };
        let result = job.run(&context, &devices, &on_event);
        let status = last_status.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let training = result.as_ref().ok().map(|report| training_facts(&job, report, status.as_ref()));
        let run = MeasuredRun::new("train", &recorder, RunFacts { training, ..clock.facts(job.threads) });
        let overwrite = Overwrite::from_force(self.force);
        run.write_trace(&recorder, self.tracing.trace.as_deref(), overwrite, result.is_ok());
        let report = result?;
        let run = run.with_results([report.out.as_path()]);
        if !self.report.json {
            // Before what may still fail: the package is complete.
            print_report(&report);
            run.print_records();
        }
        let compared = self
            .compare_precision
            .then(|| precision::compare(&job, &report, &context, &devices, &on_event))
            .transpose();
        // A failed comparison does not hide the report.
        let (full_precision, ended) = match compared {
            Ok(compared) => (compared, Ok(())),
            Err(failure) => (None, Err(failure)),
        };
        if self.report.json {
            let MeasuredRun { record, advice, provenance, .. } = run;
            print_json(&TrainCommandReport { report, full_precision, provenance, run: record, advice, profile })?;
        } else if let Some(compared) = &full_precision {
            precision::print_comparison(compared, &report);
        }
        ended
    }

    /// Returns the settings of the training run: those of the file and of --set, replaced by the other options.
    ///
    /// # Errors
    /// [`Failure`] if the file or a setting cannot be used.
    fn settings(&self) -> Result<TrainConfig, Failure> {
        let mut config = TrainConfig::read_with(self.config.as_deref(), &self.set)?;
        config.patch_zyx = self.patch.or(config.patch_zyx);
        config.batch = self.batch.or(config.batch);
        config.data.series = self.series.clone().unwrap_or(config.data.series);
        config.diameter = self.diameter.unwrap_or(config.diameter);
        config.precision = self.precision.requested().unwrap_or(config.precision);
        config.performance = self.performance.unwrap_or(config.performance);
        config.license = self.license.clone().or(config.license);
        if self.epochs.is_some() || self.minutes.is_some() || self.steps.is_some() {
            config.budget.epochs = self.epochs;
            config.budget.minutes = self.minutes;
            config.budget.steps = self.steps;
        }
        if let Some(problem) = self.minutes.and_then(minutes_problem) {
            return Err(Failure::wrong_use(format!("--minutes {problem}")));
        }
        Ok(config)
    }

    /// Returns why the settings cannot be used; `None` if they can, or if they come from a pipe, which can be read only once.
    pub(super) fn settings_failure(&self) -> Option<Failure> {
        if self.config.as_ref().is_some_and(|path| path.exists() && !path.is_file()) {
            return None;
        }
        self.settings().and_then(|config| Ok(config.check()?)).err()
    }

    /// Returns the training job with these settings.
    fn job(&self, config: TrainConfig) -> TrainJob {
        TrainJob {
            task: self.task.task(),
            data: self.data.clone(),
            from: self.from.clone(),
            out: self.out.clone(),
            config,
            resume: self.resume,
            restart: self.restart,
            seed: self.seed,
            threads: self.threading.threads,
            without_int8: self.without_int8,
            device: self.device,
            may_change_device: false,
            overwrite: Overwrite::from_force(self.force),
        }
    }

    /// Checks that the trace replaces neither an input nor the package or its checkpoints.
    fn check_trace(&self, trace: &Path) -> Outcome {
        // A missing start model is reported later, when it is opened.
        let from = self.from.model().and_then(|model| find_model(model).ok());
        let inputs: Vec<&Path> = from.iter().chain([&self.data]).chain(&self.config).map(PathBuf::as_path).collect();
        let checkpoints = search::beside(&self.out, "training");
        check_trace(trace, &inputs, &[&self.out, &checkpoints], Overwrite::from_force(self.force))
    }
}

/// Returns the command that continues the unfinished training run of a job.
pub(super) fn resume_command(job: &TrainJob) -> String {
    let task = job.task.name();
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let (data, from, out, seed) = (path(&job.data), job.from.to_string(), path(&job.out), job.seed.to_string());
    let mut words =
        ["cytoscope", "train", "--task", task, "--data", &data, "--from", &from, "--out", &out, "--seed", &seed]
            .map(str::to_owned)
            .to_vec();
    if let DeviceRequest::Device(device) = job.device {
        words.extend(["--device".to_owned(), device.to_string()]);
    }
    if job.threads > 0 {
        words.extend(["--threads".to_owned(), job.threads.to_string()]);
    }
    if job.config.performance == PerformanceRequest::Off {
        words.extend(["--performance".to_owned(), PerformanceRequest::Off.to_string()]);
    }
    let flags =
        [("--without-int8", job.without_int8), ("--force", job.overwrite == Overwrite::Replace), ("--resume", true)];
    words.extend(flags.iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| (*flag).to_owned()));
    words.iter().map(|word| search::shell_word(word)).collect::<Vec<String>>().join(" ")
}

fn print_report(report: &TrainReport) {
    print(&format!("wrote {}", report.out.display()));
    if report.verdict == ChosenNetwork::Start {
        print(
            "    no checkpoint scored clearly better than the start model: the package contains the start model's weights",
        );
        print(&format!("    {}", report.kept_reason()));
        if report.only_segmentation_improved() {
            print("    its segmentation settings were adapted to the data and score better");
        }
    }
    let patches = format!("{} {}", report.batch, by_count(report.batch, "patch", "patches"));
    print(&format!(
        "  {} trainable parameters, {} of {patches} ({:?} voxels), {:.0} s in total, {}/step ({} of it \
         waiting for data)",
        count_text(report.parameters as u64),
        counted(report.steps, "step"),
        report.patch_zyx,
        report.seconds,
        time_text(report.step_secs),
        time_text(report.stalled_secs)
    ));
    print(&format!("  on {}", report.device));
    if let Some(traffic) = &report.traffic {
        print(&format!("  transfers of the steps: {}", traffic.text()));
    }
    if let Some(bytes) = report.peak_rss_bytes {
        print(&format!("  peak memory {}", bytes_text(bytes)));
    }
    let in_int8 = if report.before_is_int8 { " (int8)" } else { "" };
    for (name, after) in &report.after {
        let before = report.before.get(name).map_or_else(String::new, |b| format!("{b:.4} before{in_int8}, "));
        let int8 = report.after_int8.get(name).map_or_else(String::new, |v| format!(", {v:.4} in int8"));
        print(&format!("  {name}: {before}{after:.4} after{int8}"));
    }
    if let Some(q) = &report.quantized {
        let (floats, int8) = (bytes_text(q.float_bytes), bytes_text(q.int8_bytes));
        print(&format!("  network: {floats} as float, {int8} as int8"));
        for t in &q.tile_times {
            let threads = if t.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", t.threads) };
            print(&format!(
                "  tile {:?}, {threads}: {:.1} ms as float, {:.1} ms as int8",
                q.tile_shape, t.f32_wall_ms, t.int8_wall_ms
            ));
        }
    }
    for pair in &report.pairs_after {
        let before = report.pairs_before.iter().find(|p| p.name == pair.name);
        let before = before.map_or_else(String::new, |b| format!("{:.4} -> ", b.score));
        print(&format!("    {}: {before}{:.4}", pair.name, pair.score));
    }
    report.history.notes.iter().for_each(|note| print(&format!("  {}", note_line(note))));
}
