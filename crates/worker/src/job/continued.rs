//! How a job continues after its process has ended.

use super::{CPU, Job};
use crate::watch::UsedGpu;
use cytoscope_engine::{DeviceRequest, Precision};
use cytoscope_pipeline::packages::ImportJob;
use cytoscope_pipeline::{DiameterJob, ModelSpeedJob, ModelTestJob, PredictJob};
use cytoscope_train::{EstimateJob, EvaluateModelJob, TrainPrecision};

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

impl Job {
    /// Returns the job that continues this one after its process has ended for this reason, and a note about it. A
    /// prediction continues after its finished slices, a training run from its checkpoint. `has_trained` is whether the
    /// process has reported training events: otherwise, a checkpoint is that of an earlier run, which only a job with
    /// `resume` continues. If there is no checkpoint because a GPU ended the process at the first step, the run starts
    /// again. So do jobs that write nothing before their end: scores of a model, estimates of training, object
    /// diameters, and imports, tests and measurements of models. `None` for all other jobs, and if the user chose that
    /// GPU to train or measure on.
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
}

/// Returns the precision to request of the CPU in place of a GPU: f32 instead of 16 bits, which not every CPU has.
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

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
mod tests {
    use super::*;
    use crate::job::tests::read;
    use cytoscope_engine::DeviceId;
    use cytoscope_train::TrainJob;
    use serde_json::json;

    /// A job continues on the CPU, because a GPU was in use.
    const ON_CPU: Continuation = Continuation::Cpu(UsedGpu::Known(DeviceId::Cuda(0)));

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
}
