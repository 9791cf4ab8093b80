//! The jobs that a worker runs, and their results.

use super::JobId;
use cytoscope_engine::{DeviceId, DeviceRequest};
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::packages::{ImportJob, ImportReport};
use cytoscope_pipeline::predict::LiveSink;
use cytoscope_pipeline::{
    Context, ConvertJob, DiameterJob, EvaluateJob, EvaluateReport, JobError, MeasureJob, MeasureReport, ObjectDiameter,
    PredictJob, PredictOutcome, SegmentJob, SegmentReport,
};
use cytoscope_quantize::{QuantizeJob, QuantizeReport};
use cytoscope_train::{CheckJob, CheckReport, Estimate, EstimateJob, QatTrainer, TrainJob, TrainReport, TrainSink};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A job of the worker. Paths should be absolute; relative ones refer to the working folder of the worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
}

impl Job {
    /// Returns the folders that the job writes results to.
    pub fn output_folders(&self) -> Vec<PathBuf> {
        match self {
            Self::Predict { prediction, .. } => vec![prediction.out.clone()],
            Self::Segment { segmentation: SegmentJob { labels, table, .. }, .. } => {
                labels.iter().chain(table).map(|path| folder_of(path)).collect()
            }
            Self::Measure(job) => vec![folder_of(&job.table)],
            Self::Convert(job) => vec![folder_of(&job.output)],
            Self::Train(job) => vec![folder_of(&job.out), job.folder()],
            Self::Quantize { quantization, .. } => vec![folder_of(&quantization.out)],
            Self::Import(job) => vec![folder_of(&job.out)],
            Self::Evaluate(_) | Self::ObjectDiameter(_) | Self::TrainCheck(_) | Self::TrainEstimate(_) => Vec::new(),
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
        Ok(match self {
            Self::Predict { prediction, .. } => JobResult::Predict(prediction.run_live(context, devices, live)?),
            Self::Segment { segmentation, .. } => JobResult::Segment(segmentation.run(context)?),
            Self::Measure(job) => JobResult::Measure(job.run(context)?),
            Self::Convert(job) => {
                job.run(context)?;
                JobResult::Convert { output: job.output.clone() }
            }
            Self::Evaluate(job) => JobResult::Evaluate(job.run(context)?),
            Self::ObjectDiameter(job) => JobResult::ObjectDiameter(job.run(context, devices)?),
            Self::Train(job) => JobResult::Train(Box::new(job.run(context, devices, on_event)?)),
            Self::TrainCheck(job) => JobResult::TrainCheck(Box::new(job.run(context)?)),
            Self::TrainEstimate(job) => JobResult::TrainEstimate(job.run(context, devices)?),
            Self::Quantize { quantization, minutes, steps } => {
                let trainer = QatTrainer::limited(quantization.mode, *minutes, *steps)?;
                JobResult::Quantize(Box::new(quantization.run_with(context, Some(&trainer))?))
            }
            Self::Import(job) => JobResult::Import(job.run(context, devices)?),
        })
    }

    /// Returns the device that the job asks for; the CPU for jobs that never use another one, so that GPUs are not
    /// probed for them.
    pub fn device(&self) -> DeviceRequest {
        const CPU: DeviceRequest = DeviceRequest::Device(DeviceId::Cpu);
        match self {
            Self::Predict { prediction, .. } | Self::ObjectDiameter(DiameterJob { prediction }) => prediction.device,
            // `auto` means the CPU in training.
            Self::Train(TrainJob { device, .. }) | Self::TrainEstimate(EstimateJob { device, .. }) => match device {
                DeviceRequest::Auto => CPU,
                DeviceRequest::Device(_) => *device,
            },
            // The network is checked on every device.
            Self::Import(_) => DeviceRequest::Auto,
            Self::Segment { .. }
            | Self::Measure(_)
            | Self::Convert(_)
            | Self::Evaluate(_)
            | Self::TrainCheck(_)
            | Self::Quantize { .. } => CPU,
        }
    }
}

/// Returns the folder of a file.
fn folder_of(path: &Path) -> PathBuf {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

/// Result of a job.
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
        /// The image written.
        output: PathBuf,
    },
    /// Result of [`Job::Evaluate`].
    Evaluate(EvaluateReport),
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
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(job: Value) -> Job {
        serde_json::from_value(job).unwrap()
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
    fn only_jobs_that_may_use_a_gpu_need_the_list_of_devices() {
        let cpu = DeviceRequest::Device(DeviceId::Cpu);
        let prediction = json!({"inputs": ["a.tif"], "model": "nuclei", "out": "o"});
        assert_eq!(read(json!({"predict": {"prediction": prediction}})).device(), DeviceRequest::Auto);
        assert_eq!(read(json!({"object_diameter": {"prediction": prediction}})).device(), DeviceRequest::Auto);
        let mut train = json!({"task": "segmentation", "data": "d", "from": "scratch", "out": "m"});
        assert_eq!(read(json!({"train": train})).device(), cpu);
        train["device"] = "cuda:0".into();
        assert!(![cpu, DeviceRequest::Auto].contains(&read(json!({"train": train})).device()));
        assert_eq!(read(json!({"convert": {"input": "a.tif", "output": "a.npy"}})).device(), cpu);
        assert_eq!(read(json!({"import": {"file": "m.onnx", "out": "m"}})).device(), DeviceRequest::Auto);
    }
}
