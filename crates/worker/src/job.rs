//! The jobs that a worker runs, and their results.

use super::JobId;
use super::watch::UsedGpu;
use cytoscope_engine::{DeviceId, DeviceRequest, Precision};
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::packages::{ImportJob, ImportReport};
use cytoscope_pipeline::predict::LiveSink;
use cytoscope_pipeline::{
    AppliedProfile, Context, ConvertJob, DiameterJob, EvaluateJob, EvaluateReport, ExportJob, ExportReport, JobError,
    MachineProfiles, MeasureJob, MeasureReport, MeshJob, MeshReport, ModelSpeedJob, ModelSpeedReport, ModelTestJob,
    ModelTestReport, ObjectDiameter, PerformanceRequest, PredictJob, PredictOutcome, SegmentJob, SegmentReport,
    machine_key,
};
use cytoscope_quantize::{QuantizeJob, QuantizeReport};
use cytoscope_storage::ResultsFolder;
use cytoscope_train::{
    CheckJob, CheckReport, Estimate, EstimateJob, EvaluateModelJob, LimitedQuantization, TrainJob, TrainPrecision,
    TrainReport, TrainSink,
};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The device that continues a job after GPUs have ended its processes.
const CPU: DeviceRequest = DeviceRequest::Device(DeviceId::Cpu);

/// Where a job continues after its process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Continuation {
    /// Where it ran: no GPU was in use.
    SameDevice,
    /// On one of the devices that the next process uses, which leaves out the GPU that was in use.
    AnotherDevice,
    /// On the CPU, in place of the GPU that was in use.
    Cpu(UsedGpu),
}

/// A job of the worker. Paths should be absolute; relative ones refer to the working folder of the worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Job {
    /// Predicts stacks ([`JobResult::Predict`]).
    Predict {
        /// Inputs, model and options of the prediction.
        prediction: PredictJob,
        /// Whether finished tiles are reported as [`super::Reply::Live`].
        #[serde(default)]
        live: bool,
        /// Whether single operators are also timed on GPUs. This is slower, because the device waits after each
        /// operator and operators are not fused. On the CPU they are always timed.
        #[serde(default)]
        operators: bool,
        /// Which preset of the machine profile (`cytoscope tune --save`) completes the options of the prediction; none by
        /// default.
        #[serde(default = "no_profile")]
        performance: PerformanceRequest,
        /// Whether devices and precisions are measured again for the model, instead of using stored measurements.
        #[serde(default)]
        remeasure: bool,
    },
    /// Segments an existing map ([`JobResult::Segment`]).
    Segment {
        /// The job. Without a path for the labels, they are written as raw numbers to the private folder (see
        /// [`cytoscope_pipeline::LabelFormat::RawU32`]), which is fast enough for an interactive slider.
        segmentation: SegmentJob,
        /// An earlier segmentation that this one replaces: it is cancelled (or removed from the queue, where this one
        /// takes its place), and its labels in the private folder are removed when this one is done.
        #[serde(default)]
        replaces: Option<JobId>,
    },
    /// Measures existing labels ([`JobResult::Measure`]).
    Measure(MeasureJob),
    /// Converts an image to another format ([`JobResult::Convert`]).
    Convert(ConvertJob),
    /// Scores predictions against ground truth ([`JobResult::Evaluate`]).
    Evaluate(EvaluateJob),
    /// Scores a model on pairs of images and ground truth ([`JobResult::Evaluate`]).
    EvaluateModel(EvaluateModelJob),
    /// Estimates the diameter of a stack's objects ([`JobResult::ObjectDiameter`]).
    ObjectDiameter(DiameterJob),
    /// Trains a network ([`JobResult::Train`]).
    Train(TrainJob),
    /// Checks a training set ([`JobResult::TrainCheck`]).
    TrainCheck(CheckJob),
    /// Measures time and memory of a few training steps ([`JobResult::TrainEstimate`]).
    TrainEstimate(EstimateJob),
    /// Quantizes a model to 8-bit integers ([`JobResult::Quantize`]).
    Quantize {
        /// Model, calibration data and options of the quantization.
        quantization: QuantizeJob,
        /// Maximum minutes of quantization-aware training.
        #[serde(default)]
        minutes: Option<f64>,
        /// Maximum steps of quantization-aware training, one tile per step.
        #[serde(default)]
        steps: Option<u64>,
    },
    /// Imports a model as a package ([`JobResult::Import`]).
    Import(ImportJob),
    /// Writes the surfaces of objects ([`JobResult::Mesh`]).
    Mesh(MeshJob),
    /// Exports a model ([`JobResult::Export`]).
    Export(ExportJob),
    /// Runs the self-test of a model and describes it ([`JobResult::ModelTest`]).
    ModelTest(ModelTestJob),
    /// Measures how fast the network of a model runs on this machine ([`JobResult::ModelSpeed`]).
    ModelSpeed(ModelSpeedJob),
}

impl Job {
    /// Returns the folders that the job writes results to.
    pub fn output_folders(&self) -> Vec<PathBuf> {
        match self {
            Self::Predict { prediction, .. } => vec![prediction.folder().to_owned()],
            Self::Segment { segmentation: SegmentJob { labels, table, .. }, .. } => {
                labels.iter().chain(table).map(|path| folder_of(path)).collect()
            }
            Self::Measure(job) => vec![folder_of(&job.table)],
            Self::Convert(job) => vec![folder_of(&job.output)],
            Self::Train(job) => vec![folder_of(&job.out), job.folder()],
            Self::Quantize { quantization, .. } => vec![folder_of(&quantization.out)],
            Self::Import(job) => vec![folder_of(&job.out)],
            Self::Export(job) => vec![folder_of(&job.out)],
            Self::Mesh(job) => vec![folder_of(&job.out)],
            Self::Evaluate(EvaluateJob { out, .. }) | Self::EvaluateModel(EvaluateModelJob { out, .. }) => {
                out.iter().map(|path| folder_of(path)).collect()
            }
            Self::ObjectDiameter(_)
            | Self::TrainCheck(_)
            | Self::TrainEstimate(_)
            | Self::ModelTest(_)
            | Self::ModelSpeed(_) => Vec::new(),
        }
    }

    /// Returns which settings of a machine profile the job uses, if there are any.
    pub fn performance(&self) -> PerformanceRequest {
        match self {
            Self::Predict { performance, .. } => *performance,
            Self::Train(job) => job.config.performance,
            Self::TrainEstimate(job) => job.config.performance,
            _ => PerformanceRequest::Off,
        }
    }

    /// Returns the job with its open settings filled from the profile of this machine, and the settings that were filled;
    /// `None` if the job asks for no profile, or there is none for its model.
    pub fn with_machine_profile(&self, profiles: &MachineProfiles) -> Option<(Self, AppliedProfile)> {
        match self {
            Self::Predict { prediction, live, operators, performance, remeasure } => {
                let mut prediction = prediction.clone();
                // A model that cannot be loaded is reported when the job runs.
                let applied = profiles.apply_to_prediction(&mut prediction, *performance).ok().flatten()?;
                let (live, operators, performance, remeasure) = (*live, *operators, *performance, *remeasure);
                Some((Self::Predict { prediction, live, operators, performance, remeasure }, applied))
            }
            Self::Train(job) if job.config.performance != PerformanceRequest::Off => {
                let mut job = job.clone();
                // A start model that cannot be loaded is reported when the job runs.
                let applied = job.open_settings().set_from(profiles, &machine_key()).ok().flatten()?;
                Some((Self::Train(job), applied))
            }
            Self::TrainEstimate(job) if job.config.performance != PerformanceRequest::Off => {
                let mut job = job.clone();
                // A start model that cannot be loaded is reported when the job runs.
                let applied = job.open_settings().set_from(profiles, &machine_key()).ok().flatten()?;
                Some((Self::TrainEstimate(job), applied))
            }
            _ => None,
        }
    }

    /// Runs the job. Finished tiles of a prediction are passed to `live`, the events of a training run to `on_event`.
    ///
    /// # Errors
    /// The error of the job; [`JobError::WrongUse`] for a segmentation without a path for the labels.
    pub fn run(
        &self,
        context: &Context,
        devices: &Devices,
        live: Option<&dyn LiveSink>,
        on_event: &TrainSink<'_>,
    ) -> Result<JobResult, JobError> {
        self.run_profiled(context, devices, live, on_event, None)
    }

    /// Like [`Job::run`]; the record of a prediction names what a machine profile has set.
    ///
    /// # Errors
    /// As [`Job::run`].
    pub fn run_profiled(
        &self,
        context: &Context,
        devices: &Devices,
        live: Option<&dyn LiveSink>,
        on_event: &TrainSink<'_>,
        profile: Option<&AppliedProfile>,
    ) -> Result<JobResult, JobError> {
        Ok(match self {
            Self::Predict { prediction, .. } => {
                JobResult::Predict(prediction.run_profiled(context, devices, live, profile)?)
            }
            Self::Segment { segmentation, .. } => JobResult::Segment(segmentation.run(context)?),
            Self::Measure(job) => {
                let path = folder_of(&job.table);
                let _folder = ResultsFolder::create(&path).map_err(|error| JobError::Io { path, error })?;
                JobResult::Measure(job.run(context)?)
            }
            Self::Convert(job) => {
                let written = job.run_chosen(context)?;
                let output = written.first().unwrap_or(&job.output).clone();
                let outputs = if written.len() > 1 { written } else { Vec::new() };
                JobResult::Convert { output, outputs }
            }
            Self::Evaluate(job) => JobResult::Evaluate(Box::new(job.run(context)?)),
            Self::EvaluateModel(job) => JobResult::Evaluate(Box::new(job.run(context, devices)?)),
            Self::ObjectDiameter(job) => JobResult::ObjectDiameter(job.run(context, devices)?),
            Self::Train(job) => JobResult::Train(Box::new(job.run(context, devices, on_event)?)),
            Self::TrainCheck(job) => JobResult::TrainCheck(Box::new(job.run(context)?)),
            Self::TrainEstimate(job) => JobResult::TrainEstimate(job.run(context, devices)?),
            Self::Quantize { quantization, minutes, steps } => {
                let (minutes, steps) = (*minutes, *steps);
                let job = LimitedQuantization { quantization: quantization.clone(), minutes, steps };
                JobResult::Quantize(Box::new(job.run(context)?))
            }
            Self::Import(job) => JobResult::Import(job.run(context, devices)?),
            Self::Export(job) => JobResult::Export(job.run(context)?),
            Self::Mesh(job) => JobResult::Mesh(job.run(context)?),
            Self::ModelTest(job) => JobResult::ModelTest(Box::new(job.run(context, devices)?)),
            Self::ModelSpeed(job) => JobResult::ModelSpeed(job.run(context, devices)?),
        })
    }

    /// Returns the job that continues this one after its process has ended for this reason, and a note about it. A
    /// prediction continues after its finished slices, a training run from its checkpoint. `has_trained` is whether the
    /// process has reported training events: otherwise, a checkpoint is that of an earlier run, which only a job with
    /// `resume` continues. If there is no checkpoint because a GPU ended the process at the first step, the run starts again,
    /// and so do jobs that write nothing before their end: scores of a model, estimates of training, object diameters, and
    /// imports, tests and measurements of models. `None` for all other jobs, and if the user chose that GPU to train or
    /// measure on.
    pub(crate) fn continued(&self, how: Continuation, has_trained: bool, reason: &str) -> Option<(Self, String)> {
        let (place, device) = match how {
            Continuation::SameDevice => ("", None),
            Continuation::AnotherDevice => (", on another device", Some(DeviceRequest::Auto)),
            Continuation::Cpu(_) => (", on the CPU", Some(CPU)),
        };
        let starts_again = |what: &str| format!("{reason}: {what} starts again{place}");
        let cpu_because = match how {
            Continuation::Cpu(gpu) => Some(format!("{gpu} was in use when {reason}")),
            Continuation::SameDevice | Continuation::AnotherDevice => None,
        };
        match self {
            // If the job requests the GPU that the next process leaves out, that process chooses another device.
            Self::Predict { prediction, live, operators, performance, .. } => {
                let prediction = PredictJob { resume: true, cpu_because, ..prediction.clone() };
                let (live, operators, performance, remeasure) = (*live, *operators, *performance, false);
                let note = format!("{reason}: the prediction continues after its finished slices{place}");
                Some((Self::Predict { prediction, live, operators, performance, remeasure }, note))
            }
            Self::Train(job) => {
                let has_checkpoint = (job.resume || has_trained) && job.has_checkpoint();
                let mut job = job.clone();
                if has_checkpoint {
                    (job.resume, job.restart) = (true, false);
                }
                if let Some(device) = device {
                    if job.device != DeviceRequest::Auto {
                        return None;
                    }
                    job.device = device;
                    job.config.precision = training_precision(how, job.config.precision);
                } else if !has_checkpoint {
                    return None;
                }
                let continues = || format!("{reason}: training continues from the last checkpoint{place}");
                let note = if has_checkpoint { continues() } else { starts_again("training") };
                Some((Self::Train(job), note))
            }
            Self::TrainEstimate(job) => {
                let device = device.filter(|_| job.device == DeviceRequest::Auto)?;
                let mut job = EstimateJob { device, ..job.clone() };
                job.config.precision = training_precision(how, job.config.precision);
                Some((Self::TrainEstimate(job), starts_again("the estimate")))
            }
            _ => {
                let what = self.name_to_start_again().filter(|_| device.is_some())?;
                let job = cpu_because.map_or_else(|| self.clone(), |because| self.on_cpu(because));
                Some((job, starts_again(what)))
            }
        }
    }

    /// Returns what a job that writes nothing before its end, and may use a GPU, is called in notes; `None` for other jobs.
    fn name_to_start_again(&self) -> Option<&'static str> {
        match self {
            Self::EvaluateModel(_) => Some("the evaluation"),
            Self::ObjectDiameter(_) => Some("the estimate"),
            Self::Import(_) => Some("the import"),
            Self::ModelTest(_) => Some("the test"),
            Self::ModelSpeed(_) => Some("the measurement"),
            _ => None,
        }
    }

    /// Returns a job that writes nothing before its end, on the CPU in place of a GPU, for the reason `because`.
    fn on_cpu(&self, because: String) -> Self {
        let cpu_because = Some(because);
        match self.clone() {
            Self::EvaluateModel(job) => {
                let precision = precision_on_cpu(job.precision);
                Self::EvaluateModel(EvaluateModelJob { device: CPU, cpu_because, precision, ..job })
            }
            Self::ObjectDiameter(DiameterJob { prediction }) => {
                let precision = precision_on_cpu(prediction.precision);
                let prediction = PredictJob { device: CPU, precision, ..prediction };
                Self::ObjectDiameter(DiameterJob { prediction })
            }
            Self::Import(job) => Self::Import(ImportJob { cpu_because, ..job }),
            Self::ModelTest(job) => Self::ModelTest(ModelTestJob { cpu_because, ..job }),
            Self::ModelSpeed(job) => Self::ModelSpeed(ModelSpeedJob { cpu_because, ..job }),
            other => other,
        }
    }

    /// Returns the number of threads that the job computes with: all cores, unless it asks for another number.
    pub(crate) fn threads(&self) -> usize {
        let requested = match self {
            Self::Predict { prediction, .. } | Self::ObjectDiameter(DiameterJob { prediction }) => prediction.threads,
            Self::Train(TrainJob { threads, .. }) | Self::TrainEstimate(EstimateJob { threads, .. }) => *threads,
            Self::Segment { .. }
            | Self::Measure(_)
            | Self::Convert(_)
            | Self::Evaluate(_)
            | Self::EvaluateModel(_)
            | Self::TrainCheck(_)
            | Self::Quantize { .. }
            | Self::Import(_)
            | Self::Mesh(_)
            | Self::Export(_)
            | Self::ModelTest(_)
            | Self::ModelSpeed(_) => 0,
        };
        if requested == 0 { std::thread::available_parallelism().map_or(1, usize::from) } else { requested }
    }

    /// Returns the device that the job asks for; the CPU for jobs that never use another one, so that GPUs are not
    /// probed for them.
    pub fn device(&self) -> DeviceRequest {
        match self {
            Self::Predict { prediction, .. } if prediction.cpu_because.is_some() => CPU,
            Self::Predict { prediction, .. } | Self::ObjectDiameter(DiameterJob { prediction }) => prediction.device,
            Self::Train(TrainJob { device, .. })
            | Self::TrainEstimate(EstimateJob { device, .. })
            | Self::EvaluateModel(EvaluateModelJob { device, .. }) => *device,
            Self::Import(ImportJob { cpu_because: Some(_), .. })
            | Self::ModelTest(ModelTestJob { cpu_because: Some(_), .. })
            | Self::ModelSpeed(ModelSpeedJob { cpu_because: Some(_), .. }) => CPU,
            // The network is run on every device.
            Self::Import(_) | Self::ModelTest(_) | Self::ModelSpeed(_) => DeviceRequest::Auto,
            Self::Segment { .. }
            | Self::Measure(_)
            | Self::Convert(_)
            | Self::Evaluate(_)
            | Self::TrainCheck(_)
            | Self::Mesh(_)
            | Self::Export(_)
            | Self::Quantize { .. } => CPU,
        }
    }
}

/// Returns the precision to request of the CPU in place of a GPU: f32 instead of 16 bits, which the CPU does not have.
fn precision_on_cpu(requested: Option<Precision>) -> Option<Precision> {
    requested.map(|precision| if precision.is_half() { Precision::F32 } else { precision })
}

/// Returns the precision in which training continues: f32 in place of one that the next device may lack.
fn training_precision(how: Continuation, requested: TrainPrecision) -> TrainPrecision {
    match (how, requested) {
        (Continuation::AnotherDevice, TrainPrecision::Auto) => TrainPrecision::Auto,
        _ => TrainPrecision::F32,
    }
}

/// Returns the request of a job that names none.
fn no_profile() -> PerformanceRequest {
    PerformanceRequest::Off
}

/// Returns the folder of a file.
fn folder_of(path: &Path) -> PathBuf {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

/// Result of a finished job, with the report of the crate that ran it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "job", rename_all = "snake_case")]
pub enum JobResult {
    /// Result of [`Job::Predict`], including the inputs that failed.
    Predict(PredictOutcome),
    /// Result of [`Job::Segment`].
    Segment(SegmentReport),
    /// Result of [`Job::Measure`].
    Measure(MeasureReport),
    /// Result of [`Job::Convert`].
    Convert {
        /// The image written, or the first of several.
        output: PathBuf,
        /// All images written, if there are several: one for each series.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        outputs: Vec<PathBuf>,
    },
    /// Result of [`Job::Evaluate`] and [`Job::EvaluateModel`].
    Evaluate(Box<EvaluateReport>),
    /// Result of [`Job::ObjectDiameter`].
    ObjectDiameter(ObjectDiameter),
    /// Result of [`Job::Train`].
    Train(Box<TrainReport>),
    /// Result of [`Job::TrainCheck`].
    TrainCheck(Box<CheckReport>),
    /// Result of [`Job::TrainEstimate`].
    TrainEstimate(Estimate),
    /// Result of [`Job::Quantize`].
    Quantize(Box<QuantizeReport>),
    /// Result of [`Job::Import`].
    Import(ImportReport),
    /// Result of [`Job::Export`].
    Export(ExportReport),
    /// Result of [`Job::Mesh`].
    Mesh(MeshReport),
    /// Result of [`Job::ModelTest`].
    ModelTest(Box<ModelTestReport>),
    /// Result of [`Job::ModelSpeed`].
    ModelSpeed(ModelSpeedReport),
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A job continues on the CPU, because a GPU was in use.
    const ON_CPU: Continuation = Continuation::Cpu(UsedGpu::Known(DeviceId::Cuda(0)));

    fn read(job: Value) -> Job {
        serde_json::from_value(job).unwrap()
    }

    #[test]
    fn a_refused_measurement_leaves_no_new_folder_behind() {
        let folder = tempfile::tempdir().unwrap();
        let (labels, table) = (folder.path().join("missing.tif"), folder.path().join("cytoscope/a_objects.csv"));
        let job = read(json!({"measure": {"labels": labels, "table": table}}));
        let refused = job.run(&Context::default(), &Devices::cpu_only(), None, &|_| {}).unwrap_err().to_string();
        assert!(refused.contains("missing.tif"), "the folder is created before the labels are read: {refused}");
        assert!(!folder.path().join("cytoscope").exists());
    }

    #[test]
    fn jobs_name_the_folders_that_they_write_to() {
        let train = json!({"train": {"task": "segmentation", "data": "d", "from": "scratch", "out": "/models/mine"}});
        assert_eq!(read(train).output_folders(), ["/models", "/models/mine.training"].map(PathBuf::from));
        let convert = json!({"convert": {"input": "a.tif", "output": "a.npy"}});
        assert_eq!(read(convert).output_folders(), [PathBuf::from(".")]);
        let segment = json!({"segment": {"segmentation": {"map": "m.tif", "labels": "/l/l.tif", "table": "/t/t.csv"}}});
        assert_eq!(read(segment).output_folders(), ["/l", "/t"].map(PathBuf::from));
        let quantization = json!({"model": "m", "out": "/q/m.zip", "mode": "dynamic", "accuracy_budget": 0.02});
        assert_eq!(read(json!({"quantize": {"quantization": quantization}})).output_folders(), [PathBuf::from("/q")]);
        let import = json!({"import": {"file": "m.onnx", "out": "/models/m"}});
        assert_eq!(read(import).output_folders(), [PathBuf::from("/models")]);
        let check = json!({"train_check": {"task": "segmentation", "data": "d"}});
        assert!(read(check).output_folders().is_empty());
    }

    #[test]
    fn keys_beside_the_job_are_refused() {
        let predict = |key: &str| {
            let prediction = json!({"inputs": ["a.tif"], "model": "nuclei", "out": "o"});
            serde_json::from_value::<Job>(json!({"predict": {"prediction": prediction, key: "replace"}}))
        };
        let refused = predict("overwrite").unwrap_err().to_string();
        assert!(refused.contains("overwrite") && refused.contains("remeasure"), "{refused}");
        let segmentation = json!({"map": "m.tif"});
        let segment = json!({"segment": {"segmentation": segmentation, "threads": 1}});
        assert!(serde_json::from_value::<Job>(segment).unwrap_err().to_string().contains("threads"));
    }

    #[test]
    fn predictions_continue_after_their_process_has_ended() {
        let prediction = json!({"inputs": ["a.tif"], "model": "nuclei", "out": "o", "precision": "f16"});
        let predict = read(json!({"predict": {"prediction": prediction, "remeasure": true}}));
        let (next, note) = predict.continued(Continuation::AnotherDevice, false, "it was killed").unwrap();
        assert!(note.ends_with("on another device"), "{note}");
        let Job::Predict { prediction: on_gpu, .. } = &next else { panic!("{next:?}") };
        assert!(on_gpu.resume && on_gpu.cpu_because.is_none() && next.device() == DeviceRequest::Auto, "{on_gpu:?}");
        let (next, note) = predict.continued(ON_CPU, false, "it was killed").unwrap();
        assert!(note.starts_with("it was killed: the prediction continues") && note.ends_with("on the CPU"), "{note}");
        assert_eq!(next.device(), DeviceRequest::Device(DeviceId::Cpu), "no GPU is probed for it");
        let Job::Predict { prediction, remeasure, .. } = next else { panic!("{next:?}") };
        assert_eq!(prediction.cpu_because.as_deref(), Some("cuda:0 was in use when it was killed"));
        // The requested precision decides which slices belong to the job.
        assert!(prediction.resume && !remeasure && prediction.precision.is_some(), "{prediction:?}");
        let (next, _) = predict.continued(Continuation::SameDevice, false, "it was killed").unwrap();
        assert!(
            matches!(next, Job::Predict { prediction, .. } if prediction.resume && prediction.cpu_because.is_none())
        );
        let convert = read(json!({"convert": {"input": "a.tif", "output": "a.npy"}}));
        assert_eq!(convert.continued(Continuation::SameDevice, false, "it was killed"), None);
        assert_eq!(convert.continued(Continuation::AnotherDevice, false, "it was killed"), None);
    }

    #[test]
    fn training_runs_continue_from_a_checkpoint_of_their_own_after_their_process_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let train = |device: &str, restart: bool| {
            let (out, config) = (folder.path().join("m"), json!({"precision": "f16"}));
            let job = json!({"task": "segmentation", "data": "d", "from": "scratch", "out": out, "config": config});
            let Job::Train(job) = read(json!({"train": job})) else { panic!() };
            Job::Train(TrainJob { device: device.parse().unwrap(), restart, ..job })
        };
        let continued =
            |job: &Job, how: Continuation, has_trained: bool| match job.continued(how, has_trained, "died")? {
                (Job::Train(next), note) => Some((next, note)),
                other => panic!("{other:?}"),
            };
        let (gpu, same, auto) = (ON_CPU, Continuation::SameDevice, train("auto", false));
        assert_eq!(continued(&auto, same, true), None, "there is no checkpoint");
        // The GPU ended the process at the first step. Another device may lack the 16-bit floats.
        let (next, note) = continued(&auto, Continuation::AnotherDevice, true).unwrap();
        assert_eq!((next.device, next.config.precision), (DeviceRequest::Auto, TrainPrecision::F32));
        assert_eq!(note, "died: training starts again, on another device");
        assert_eq!(continued(&train("cuda:0", false), Continuation::AnotherDevice, true), None, "the user chose it");
        let (next, note) = continued(&auto, gpu, true).unwrap();
        assert_eq!((next.resume, next.device, next.config.precision), (false, CPU, TrainPrecision::F32));
        assert_eq!(note, "died: training starts again, on the CPU");
        assert_eq!(continued(&train("cuda:0", false), gpu, true), None, "the user chose the GPU");
        std::fs::create_dir(folder.path().join("m.training")).unwrap();
        std::fs::write(folder.path().join("m.training/training.json"), "{}").unwrap();
        let (next, note) = continued(&train("auto", true), gpu, true).unwrap();
        assert_eq!((next.resume, next.restart, next.device), (true, false, CPU));
        assert_eq!(
            (note.as_str(), next.config.precision),
            ("died: training continues from the last checkpoint, on the CPU", TrainPrecision::F32)
        );
        assert_eq!(continued(&train("cuda:0", false), gpu, true), None, "the user chose the GPU");
        assert!(continued(&train("cpu", false), same, true).is_some());
        // Without events, the checkpoint is the one that the run was to discard, or would have been refused for.
        for restart in [true, false] {
            let (next, note) = continued(&train("auto", restart), gpu, false).unwrap();
            assert_eq!((next.resume, next.restart, next.device), (false, restart, CPU));
            assert_eq!(note, "died: training starts again, on the CPU");
            assert_eq!(continued(&train("cpu", restart), same, false), None);
        }
        let Job::Train(job) = auto else { panic!() };
        let (next, _) = continued(&Job::Train(TrainJob { resume: true, ..job }), gpu, false).unwrap();
        assert!(next.resume, "the job was to continue that checkpoint");
    }

    #[test]
    fn jobs_that_write_nothing_before_their_end_start_again_on_the_cpu() {
        let again = |job: &Job| job.continued(ON_CPU, false, "died");
        let estimate = |device: &str| {
            let config = json!({"precision": "bf16"});
            let job = json!({"task": "segmentation", "from": "scratch", "device": device, "config": config});
            read(json!({"train_estimate": job}))
        };
        let (next, note) = again(&estimate("auto")).unwrap();
        assert_eq!((next.device(), note.as_str()), (CPU, "died: the estimate starts again, on the CPU"));
        assert!(matches!(next, Job::TrainEstimate(job) if job.config.precision == TrainPrecision::F32));
        assert_eq!(again(&estimate("cuda:0")), None, "the user chose that device to be measured");
        for (asked, expected) in [("f16", Precision::F32), ("int8", Precision::Int8)] {
            let score = read(json!({"evaluate_model": {"model": "m", "data": "d", "precision": asked}}));
            let (next, note) = again(&score).unwrap();
            assert_eq!((next.device(), note.as_str()), (CPU, "died: the evaluation starts again, on the CPU"));
            let Job::EvaluateModel(job) = next else { panic!("{next:?}") };
            assert_eq!(job.precision, Some(expected));
            assert_eq!(job.cpu_because.as_deref(), Some("cuda:0 was in use when died"));
            assert_eq!(score.continued(Continuation::SameDevice, false, "died"), None, "the CPU would end it again");
            let (next, note) = score.continued(Continuation::AnotherDevice, false, "died").unwrap();
            assert_eq!((&next, note.as_str()), (&score, "died: the evaluation starts again, on another device"));
        }
        let prediction =
            json!({"inputs": ["a.tif"], "model": "nuclei", "out": "o", "device": "cuda:0", "precision": "bf16"});
        let (next, _) = again(&read(json!({"object_diameter": {"prediction": prediction}}))).unwrap();
        assert_eq!(next.device(), CPU);
        let Job::ObjectDiameter(DiameterJob { prediction }) = next else { panic!("{next:?}") };
        assert_eq!(prediction.precision, Some(Precision::F32));
    }

    #[test]
    fn models_are_imported_tested_and_measured_again_on_the_cpu() {
        let jobs = [
            (json!({"import": {"file": "m.onnx", "out": "m"}}), "died: the import starts again, on the CPU"),
            (json!({"model_test": {"file": "m.onnx"}}), "died: the test starts again, on the CPU"),
            (json!({"model_speed": {"model": "nuclei"}}), "died: the measurement starts again, on the CPU"),
        ];
        for (job, expected) in jobs {
            let job = read(job);
            assert_eq!(job.device(), DeviceRequest::Auto);
            let (next, note) = job.continued(ON_CPU, false, "died").unwrap();
            assert_eq!((next.device(), note.as_str()), (CPU, expected), "no GPU is probed for it");
            assert_eq!(next.continued(Continuation::SameDevice, false, "died"), None, "the CPU would end it again");
            let (next, _) = job.continued(Continuation::AnotherDevice, false, "died").unwrap();
            assert_eq!(next, job, "the other devices are checked");
        }
    }

    #[test]
    fn only_jobs_that_may_use_a_gpu_need_the_list_of_devices() {
        let cpu = DeviceRequest::Device(DeviceId::Cpu);
        let prediction = json!({"inputs": ["a.tif"], "model": "nuclei", "out": "o"});
        assert_eq!(read(json!({"predict": {"prediction": prediction}})).device(), DeviceRequest::Auto);
        assert_eq!(read(json!({"object_diameter": {"prediction": prediction}})).device(), DeviceRequest::Auto);
        let mut train = json!({"task": "segmentation", "data": "d", "from": "scratch", "out": "m"});
        assert_eq!(read(json!({"train": train})).device(), DeviceRequest::Auto);
        train["device"] = "cuda:0".into();
        assert!(![cpu, DeviceRequest::Auto].contains(&read(json!({"train": train})).device()));
        assert_eq!(read(json!({"convert": {"input": "a.tif", "output": "a.npy"}})).device(), cpu);
        assert_eq!(read(json!({"import": {"file": "m.onnx", "out": "m"}})).device(), DeviceRequest::Auto);
        assert_eq!(read(json!({"evaluate": {"prediction": "p", "truth": "t"}})).device(), cpu);
        assert_eq!(read(json!({"evaluate_model": {"model": "m", "data": "d"}})).device(), DeviceRequest::Auto);
    }

    #[test]
    fn a_machine_profile_sets_what_a_job_leaves_open() {
        let settings = json!({"device": "cpu", "precision": null, "batch": 8, "workers": 3, "prefetch": null, "threads": 0,
                              "secs_per_patch": 0.1, "peak_bytes": null});
        let profile = json!({"model": "scratch", "fingerprint": "scratch", "machine": machine_key(), "program": "p",
                             "tuned_unix_secs": 1, "preset": "fastest", "training": {"fastest": settings}});
        let mut profiles = MachineProfiles::default();
        let train = |config: serde_json::Value| {
            read(
                json!({"train": {"task": "segmentation", "data": "d", "from": "scratch", "out": "m", "config": config}}),
            )
        };
        assert_eq!(train(json!({})).with_machine_profile(&profiles), None);
        profiles.put(serde_json::from_value(profile).unwrap());
        let (tuned, applied) = train(json!({"workers": 1})).with_machine_profile(&profiles).unwrap();
        let Job::Train(TrainJob { config, .. }) = tuned else { panic!("{tuned:?}") };
        assert_eq!((config.batch, config.workers), (Some(8), Some(1)), "the workers were given");
        assert!(applied.text().contains("batch 8"), "{}", applied.text());
        assert_eq!(train(json!({"performance": "off"})).with_machine_profile(&profiles), None);
        assert_eq!(train(json!({})).performance(), PerformanceRequest::Auto);
        let without =
            [train(json!({"performance": "off"})), read(json!({"convert": {"input": "a.tif", "output": "a.npy"}}))];
        assert!(without.iter().all(|job| job.performance() == PerformanceRequest::Off));
        let estimate = read(json!({"train_estimate": {"task": "segmentation", "from": "scratch"}}));
        let (tuned, _) = estimate.with_machine_profile(&profiles).unwrap();
        let Job::TrainEstimate(EstimateJob { config, device, .. }) = tuned else { panic!("{tuned:?}") };
        assert_eq!((config.batch, device), (Some(8), DeviceRequest::Device(DeviceId::Cpu)));
        let prediction = json!({"inputs": ["a.tif"], "model": "nosuch", "out": "o"});
        let predict = read(json!({"predict": {"prediction": prediction, "performance": "auto"}}));
        assert_eq!(predict.with_machine_profile(&profiles), None, "the job reports the missing model");
    }
}
