//! Recorded jobs that are run again, and how their outputs compare with the recorded ones.

use super::Job;
use cytoscope_engine::DeviceRequest;
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::job_record::{AnyRecord, JobKind, JobRecord, Recordable, read_any};
use cytoscope_pipeline::provenance::Provenance;
use cytoscope_pipeline::results::FileRecord;
use cytoscope_pipeline::{JobError, PerformanceRequest, SegmentJob};
use cytoscope_storage::setting::OUT;
use cytoscope_storage::target::extension;
use cytoscope_storage::{Overwrite, message};
use cytoscope_train::{LimitedQuantization, TrainPrecision};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// Where a job that is run again writes its first output. Further outputs are written beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RerunOutput {
    /// To the recorded path.
    Recorded,
    /// To another path: a file or folder, as the recorded command takes it.
    Path(PathBuf),
    /// To a folder, under the recorded name.
    Folder(PathBuf),
}

impl RerunOutput {
    /// Returns the new path of an output; `None` if it is the recorded one.
    fn path_for(&self, recorded: &Path) -> Option<PathBuf> {
        match self {
            Self::Recorded => None,
            Self::Path(path) => Some(path.clone()),
            Self::Folder(folder) => Some(recorded.file_name().map_or_else(|| folder.clone(), |name| folder.join(name))),
        }
    }
}

/// A recorded job that is ready to be run again.
#[derive(Debug)]
pub struct RecordedRun {
    /// The recorded job, with the device and precision of the recorded run where this machine can use them.
    pub job: Job,
    /// The devices to run it with.
    pub devices: Devices,
    /// The first output of the job, which names its record. For a prediction, this is the folder of its results or their
    /// OME-Zarr; the result of the job lists the records.
    pub output: PathBuf,
    /// Differences from the recorded run, one sentence each.
    pub differences: Vec<String>,
}

impl RecordedRun {
    /// Prepares a prediction to be run again, see [`Provenance::rerun`]. `devices_for` returns the devices to choose from for
    /// a request.
    ///
    /// # Errors
    /// As [`Provenance::rerun`].
    pub fn of_prediction(
        record: Provenance,
        output: &RerunOutput,
        overwrite: Overwrite,
        devices_for: impl FnOnce(DeviceRequest) -> Devices,
    ) -> Result<Self, JobError> {
        let cytoscope_pipeline::Rerun { job: mut prediction, devices, notes } = record.rerun(devices_for)?;
        match output {
            RerunOutput::Recorded => {}
            // The results of a prediction are in a folder, unless they are in an OME-Zarr with its own name.
            RerunOutput::Folder(folder) if prediction.folder() == prediction.out => prediction.out.clone_from(folder),
            RerunOutput::Path(_) | RerunOutput::Folder(_) => {
                if let Some(out) = output.path_for(&prediction.out) {
                    prediction.out = out;
                }
            }
        }
        prediction.overwrite = overwrite;
        let output = prediction.out.clone();
        let job = Job::Predict {
            prediction,
            live: false,
            operators: false,
            // The recorded job has the settings of the machine profile that it used.
            performance: PerformanceRequest::Off,
            remeasure: false,
        };
        Ok(Self { job, devices, output, differences: notes })
    }

    /// Prepares a job other than a prediction to be run again. `path` is that of its record; `devices_for` returns the devices
    /// to choose from for a request.
    ///
    /// # Errors
    /// As [`JobRecord::job_again`]; [`JobError::WrongUse`] if the job states no output, or is a simulation, which is not a job
    /// of the worker.
    pub fn of_job(
        path: &Path,
        record: &JobRecord,
        output: &RerunOutput,
        overwrite: Overwrite,
        devices_for: impl FnOnce(DeviceRequest) -> Devices,
    ) -> Result<Self, JobError> {
        let again = Again { path, record, output, overwrite };
        let (mut job, output) = match record.kind {
            JobKind::Segment => again.job(|segmentation: SegmentJob| Job::Segment { segmentation, replaces: None }),
            JobKind::Measure => again.job(Job::Measure),
            JobKind::Mesh => again.job(Job::Mesh),
            JobKind::Convert => again.job(Job::Convert),
            JobKind::Evaluate => again.job(Job::Evaluate),
            JobKind::EvaluateModel => again.job(Job::EvaluateModel),
            JobKind::Import => again.job(Job::Import),
            JobKind::Export => again.job(Job::Export),
            JobKind::Quantize => again.job(|LimitedQuantization { quantization, minutes, steps }| Job::Quantize {
                quantization,
                minutes,
                steps,
            }),
            JobKind::Train => again.job(Job::Train),
            JobKind::Simulate => Err(JobError::wrong_use("the worker cannot simulate stacks")),
        }?;
        let mut differences = record.differences();
        let devices = match &mut job {
            Job::EvaluateModel(job) => {
                replay_device(&mut job.device, record, devices_for, &mut differences, || job.precision = None)
            }
            Job::Train(job) => {
                job.keep_recorded_channel();
                job.config.performance = PerformanceRequest::Off;
                let config = &mut job.config;
                replay_device(&mut job.device, record, devices_for, &mut differences, || {
                    config.precision = TrainPrecision::Auto;
                })
            }
            job => devices_for(job.device()),
        };
        Ok(Self { job, devices, output, differences })
    }
}

/// A recorded job, and where it is to write.
struct Again<'a> {
    /// The record's path.
    path: &'a Path,
    record: &'a JobRecord,
    output: &'a RerunOutput,
    overwrite: Overwrite,
}

impl Again<'_> {
    /// Returns the job as a job of the worker, and its first output.
    fn job<J: Recordable + DeserializeOwned>(
        &self,
        into_job: impl FnOnce(J) -> Job,
    ) -> Result<(Job, PathBuf), JobError> {
        let first = |job: &J| job.outputs().first().map(|path| path.to_path_buf()).ok_or_else(no_output);
        let mut job: J = self.record.job_again(self.path, None, self.overwrite)?;
        let mut output = match self.output {
            // The recorded job need not state one.
            RerunOutput::Path(path) => path.clone(),
            RerunOutput::Recorded | RerunOutput::Folder(_) => first(&job)?,
        };
        if let Some(path) = self.output.path_for(&output) {
            job.set_output(path);
            output = first(&job)?;
        }
        Ok((into_job(job), output))
    }
}

/// Returns the error for a recorded job that states no output.
fn no_output() -> JobError {
    JobError::wrong_use_with("the recorded job states no output", message!("give a path for its result with {OUT}"))
}

/// Requests the recorded device, or another one if it is not available. Returns the devices to choose from, and adds what
/// differs, one sentence each. `choose_precision` leaves the precision to the program, if the recorded one is not available.
fn replay_device(
    request: &mut DeviceRequest,
    record: &JobRecord,
    devices_for: impl FnOnce(DeviceRequest) -> Devices,
    differences: &mut Vec<String>,
    choose_precision: impl FnOnce(),
) -> Devices {
    let Some(recorded) = &record.device else { return devices_for(*request) };
    let available = devices_for(DeviceRequest::Device(recorded.id));
    let found = available.list().iter().find(|device| device.id == recorded.id);
    if let Some(device) = found.filter(|device| device.usable) {
        *request = DeviceRequest::Device(recorded.id);
        if device.name != recorded.name {
            differences.push(format!(
                "the recorded result was made on {} ({}), which is {} now: for the same result, use that device",
                recorded.id, recorded.name, device.name
            ));
        }
        return available;
    }
    let reason = found.map_or("there is no such device", |device| device.reason.as_str());
    differences.push(format!(
        "the recorded device {} ({}) is not available ({reason}): another one is used; for the same result, use a machine \
         that has it",
        recorded.id, recorded.name
    ));
    *request = DeviceRequest::Auto;
    let mut precisions = available.list().iter().filter(|device| device.usable).flat_map(|device| &device.precisions);
    if let Some(precision) = record.precision
        && !precisions.any(|known| *known == precision)
    {
        choose_precision();
        differences.push(format!("the recorded precision {precision} is not available: another one is used"));
    }
    available
}

/// An output of a job that was run again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ComparedOutput {
    /// The new file or folder.
    pub path: PathBuf,
    /// Whether it has the same bytes as the recorded one. Packages state when and how fast they were made, so they
    /// usually differ.
    pub identical: bool,
    /// Whether its name has another extension than the recorded one: files of other formats have other bytes even if their
    /// values are the same.
    pub other_format: bool,
}

/// Outputs of a job that was run again, beside the recorded ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ComparedOutputs {
    /// The new outputs, in the order of the record.
    pub outputs: Vec<ComparedOutput>,
    /// The recorded outputs that were not written again.
    pub missing: Vec<PathBuf>,
}

impl ComparedOutputs {
    /// Compares the recorded outputs with those that the record of the new run lists, which are in the same order.
    ///
    /// # Errors
    /// [`JobError`] if that record cannot be read.
    pub fn read(recorded: &[FileRecord], record: &Path) -> Result<Self, JobError> {
        let new = match read_any(record)? {
            AnyRecord::Prediction(record) => record.outputs,
            AnyRecord::Job(record) => record.outputs,
        };
        let missing = recorded.iter().skip(new.len()).map(|output| output.path.clone()).collect();
        let is_same = |a: &FileRecord, b: &FileRecord| (a.bytes, &a.sha256) == (b.bytes, &b.sha256);
        let compared = |(i, new): (usize, FileRecord)| ComparedOutput {
            identical: recorded.get(i).is_some_and(|old| is_same(old, &new)),
            other_format: recorded.get(i).is_some_and(|old| extension(&old.path) != extension(&new.path)),
            path: new.path,
        };
        Ok(Self { outputs: new.into_iter().enumerate().map(compared).collect(), missing })
    }

    /// Like [`Self::read`], with several records of the new run.
    ///
    /// # Errors
    /// Same as [`Self::read`].
    pub fn read_all<'a>(
        recorded: &[FileRecord],
        records: impl IntoIterator<Item = &'a Path>,
    ) -> Result<Self, JobError> {
        let mut all = Self::default();
        for record in records {
            let Self { outputs, missing } = Self::read(recorded, record)?;
            all.outputs.extend(outputs);
            all.missing.extend(missing);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
    use super::*;
    use cytoscope_engine::{Device, DeviceId, EngineError, Precision};
    use serde_json::json;

    fn devices(list: Vec<Device>) -> Devices {
        Devices::with_engines(list, |device| {
            Err(EngineError::Unavailable { device: device.id, reason: device.reason_message() })
        })
    }

    fn cpu() -> Device {
        Device::named(DeviceId::Cpu, "A CPU", &[Precision::F32])
    }

    /// The record of a job with one output.
    fn record(kind: &str, job: serde_json::Value, device: serde_json::Value) -> JobRecord {
        let record = json!({
            "program": "cytoscope 0.0.1", "kind": kind, "job": job, "inputs": [], "device": device, "precision": "f16",
            "outputs": [{"path": "/r/c.npy", "bytes": 1, "sha256": "a"}], "finished_unix_secs": 7,
        });
        serde_json::from_value(record).unwrap()
    }

    fn conversion() -> JobRecord {
        record("convert", json!({"input": "/i/a.tif", "output": "/r/c.npy"}), json!(null))
    }

    #[test]
    fn a_job_is_run_again_at_the_recorded_path_at_another_one_or_in_a_folder() {
        for (output, expected) in [
            (RerunOutput::Recorded, "/r/c.npy"),
            (RerunOutput::Path("/s/d.npy".into()), "/s/d.npy"),
            (RerunOutput::Folder("/s".into()), "/s/c.npy"),
        ] {
            let path = Path::new("/r/c.npy_provenance.json");
            let devices_for = |_: DeviceRequest| devices(vec![cpu()]);
            let run = RecordedRun::of_job(path, &conversion(), &output, Overwrite::Refuse, devices_for).unwrap();
            let Job::Convert(job) = run.job else { panic!("{:?}", run.job) };
            assert_eq!((job.output, run.output), (PathBuf::from(expected), PathBuf::from(expected)));
            assert_eq!(job.overwrite, Overwrite::Refuse);
            assert!(run.differences.join("; ").contains("was made by cytoscope 0.0.1"), "{:?}", run.differences);
        }
    }

    #[test]
    fn a_job_without_the_recorded_device_says_so_and_uses_another_one() {
        let job = json!({"model": "m", "data": "/d", "out": "/r/s.json", "device": "cuda:7", "precision": "f16"});
        let record = record("evaluate_model", job, json!({"id": "cuda:7", "name": "A GPU"}));
        let (path, output) = (Path::new("/r/s.json_provenance.json"), RerunOutput::Folder("/s".into()));
        let devices_for = |request: DeviceRequest| {
            assert_eq!(request, DeviceRequest::Device(DeviceId::Cuda(7)));
            devices(vec![cpu()])
        };
        let run = RecordedRun::of_job(path, &record, &output, Overwrite::Refuse, devices_for).unwrap();
        let Job::EvaluateModel(job) = run.job else { panic!("{:?}", run.job) };
        assert_eq!((job.device, job.precision, job.out), (DeviceRequest::Auto, None, Some("/s/s.json".into())));
        let differences = run.differences.join("; ");
        assert!(differences.contains("cuda:7") && differences.contains("f16"), "{differences}");
    }

    #[test]
    fn outputs_are_compared_with_the_recorded_ones_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.npy_provenance.json");
        let output = |name: &str, sha256: &str| FileRecord { path: name.into(), bytes: 1, sha256: sha256.to_owned() };
        let new = JobRecord { outputs: vec![output("/s/c.npy", "a"), output("/s/d.npy", "c")], ..conversion() };
        std::fs::write(&path, serde_json::to_string(&new).unwrap()).unwrap();
        let recorded = [output("/r/c.npy", "a"), output("/r/d.tif", "b"), output("/r/e.npy", "c")];
        let compared = ComparedOutputs::read(&recorded, &path).unwrap();
        let other_format: Vec<bool> = compared.outputs.iter().map(|output| output.other_format).collect();
        assert_eq!(other_format, [false, true]);
        let identical: Vec<bool> = compared.outputs.iter().map(|output| output.identical).collect();
        assert_eq!((identical, compared.missing), (vec![true, false], vec![PathBuf::from("/r/e.npy")]));
        assert!(ComparedOutputs::read(&recorded, &folder.path().join("none.json")).is_err());
    }
}
