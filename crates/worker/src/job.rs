//! The jobs that a worker runs, and their results.

mod continued;

use super::JobId;
pub(crate) use continued::Continuation;
use cytoscope_engine::{DeviceId, DeviceRequest};
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::packages::{ImportJob, ImportReport};
use cytoscope_pipeline::predict::LiveSink;
use cytoscope_pipeline::{
    AppliedProfile, Context, ConvertJob, ConvertOutcome, DiameterJob, EvaluateJob, EvaluateReport, ExportJob,
    ExportReport, InputFailure, JobError, MachineProfiles, MeasureJob, MeasureReport, MeshJob, MeshReport,
    ModelSpeedJob, ModelSpeedReport, ModelTestJob, ModelTestReport, ObjectDiameter, PerformanceRequest, PredictJob,
    PredictOutcome, SegmentJob, SegmentReport, machine_key,
};
use cytoscope_quantize::{QuantizeJob, QuantizeReport};
use cytoscope_storage::ResultsFolder;
use cytoscope_storage::write::parent_folder;
use cytoscope_train::{
    CheckJob, CheckReport, Estimate, EstimateJob, EvaluateModelJob, LimitedQuantization, TrainJob, TrainReport,
    TrainSink,
};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The device that continues a job after GPUs have ended its processes.
const CPU: DeviceRequest = DeviceRequest::Device(DeviceId::Cpu);

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
        /// An earlier segmentation that this one replaces: it is canceled (or removed from the queue, where this one
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
    pub(crate) fn output_folders(&self) -> Vec<PathBuf> {
        match self {
            Self::Predict { prediction, .. } => vec![prediction.folder().to_owned()],
            Self::Segment { segmentation: SegmentJob { labels, table, .. }, .. } => {
                labels.iter().chain(table).map(|path| containing_folder(path)).collect()
            }
            Self::Measure(job) => vec![containing_folder(&job.table)],
            Self::Convert(job) => vec![containing_folder(&job.output)],
            Self::Train(job) => vec![containing_folder(&job.out), job.folder()],
            Self::Quantize { quantization, .. } => vec![containing_folder(&quantization.out)],
            Self::Import(job) => vec![containing_folder(&job.out)],
            Self::Export(job) => vec![containing_folder(&job.out)],
            Self::Mesh(job) => vec![containing_folder(&job.out)],
            Self::Evaluate(EvaluateJob { out, .. }) | Self::EvaluateModel(EvaluateModelJob { out, .. }) => {
                out.iter().map(|path| containing_folder(path)).collect()
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
    pub(crate) fn with_machine_profile(&self, profiles: &MachineProfiles) -> Option<(Self, AppliedProfile)> {
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
    /// Same as [`Job::run`].
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
                let path = containing_folder(&job.table);
                let _folder = ResultsFolder::create(&path).map_err(JobError::results_folder(&path))?;
                JobResult::Measure(job.run(context)?)
            }
            Self::Convert(job) => {
                let ConvertOutcome { written, failed } = job.run_chosen(context)?;
                let output = written.first().unwrap_or(&job.output).clone();
                let outputs = if written.len() > 1 { written } else { Vec::new() };
                JobResult::Convert { output, outputs, failed }
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

/// Returns the request of a job that names none.
fn no_profile() -> PerformanceRequest {
    PerformanceRequest::Off
}

/// Returns the folder of a file.
fn containing_folder(path: &Path) -> PathBuf {
    parent_folder(path).to_owned()
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
        /// The series that could not be converted, beside those that were.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        failed: Vec<InputFailure>,
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

    pub(super) fn read(job: Value) -> Job {
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
