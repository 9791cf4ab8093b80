//! Messages between the window and its engine process: one JSON object per line, each with the tag `request` or
//! `reply`.
//!
//! `docs/worker-protocol.md` documents every message.

use super::{Job, JobResult};
use cytoscope_engine::Device;
use cytoscope_pipeline::cards::ModelCard;
use cytoscope_pipeline::devices::FailedDevice;
use cytoscope_pipeline::{DeviceInUse, Event, ExistingOutput, JobError, JobErrorKind};
use cytoscope_profile::{MemoryMark, MemorySample, SpanRecord, StageTotal};
use cytoscope_storage::message::NamedSetting;
use cytoscope_train::TrainEvent;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// Version of the protocol. It changes when a message of one version would be misinterpreted by another.
pub const PROTOCOL_VERSION: u32 = 4;
/// Maximum length of a request line in bytes; longer lines are skipped and reported as [`Reply::Fault`].
pub const MAX_REQUEST_BYTES: usize = 16 << 20;
/// Maximum length of a reply line in bytes; longer lines are skipped by the client and reported as [`Reply::Fault`].
pub const MAX_REPLY_BYTES: usize = 64 << 20;
/// Maximum number of waiting jobs; further ones fail at once.
pub const MAX_QUEUED_JOBS: usize = 4096;
/// Maximum number of spans sent per second.
pub const MAX_SPANS_PER_SECOND: usize = 2000;
/// Maximum number of spans sent per job.
pub const MAX_SPANS_PER_JOB: usize = 100_000;
/// Maximum number of regions in one [`Reply::Live`].
pub const MAX_LIVE_REGIONS: usize = 256;

/// Number of a job or query, assigned by the client and repeated in the replies. Numbers must not be reused while a
/// worker lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub u64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A message from the window to the worker.
///
/// Jobs (`Run`) run one at a time in the order in which they arrive; each ends with exactly one of [`Reply::Done`],
/// [`Reply::Failed`] and [`Reply::Canceled`]. The queries `Devices` and `Models` are answered while a job runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// The first message, with the protocol version of the client. It is answered by [`Reply::Ready`], or by
    /// [`Reply::Fault`] if the version is not [`PROTOCOL_VERSION`]; no other request is answered before.
    /// [`super::Worker`] sends it automatically.
    Hello {
        /// Protocol version of the client.
        version: u32,
        /// GPUs that were in use when earlier processes ended. They are not used until the devices are listed again.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        failed: Vec<FailedDevice>,
    },
    /// Lists the devices of this machine ([`Reply::Devices`]). GPUs are probed in child processes, for the first query and
    /// for those with `again`.
    Devices {
        /// Number of the query.
        id: JobId,
        /// Whether to look for the devices again. If others are found than before, the worker retires.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        again: bool,
    },
    /// Lists the installed models ([`Reply::Models`]).
    Models {
        /// Number of the query.
        id: JobId,
    },
    /// Runs a job ([`Reply::Done`]).
    Run {
        /// Number of the job.
        id: JobId,
        /// Kind of job with its options.
        job: Box<Job>,
    },
    /// Cancels a running job, which stops within one tile, or removes a queued one. Canceling a job that has ended is
    /// not an error.
    Cancel {
        /// Number of the job.
        id: JobId,
    },
    /// Requests the running job to finish early: a training run takes no further step and writes its package. Jobs that
    /// cannot finish early, are waiting or have ended are not affected.
    Finish {
        /// Number of the job.
        id: JobId,
    },
    /// Removes the files of an ended job (live array and labels) from the private folder. Files of jobs that are never
    /// released are removed with the worker; a live array also when the next live prediction starts.
    Release {
        /// Number of the job.
        id: JobId,
    },
    /// Ends the worker, like closing its standard input: a running job is canceled, queued ones are discarded.
    Shutdown,
}

impl Request {
    /// Returns the request to run a job.
    pub fn run(id: JobId, job: Job) -> Self {
        Self::Run { id, job: Box::new(job) }
    }

    /// Returns the number of the query or job; for `Cancel`, `Finish` and `Release`, the number of the job that they
    /// refer to.
    pub fn id(&self) -> Option<JobId> {
        match self {
            Self::Hello { .. } | Self::Shutdown => None,
            Self::Devices { id, .. }
            | Self::Models { id }
            | Self::Run { id, .. }
            | Self::Cancel { id }
            | Self::Finish { id }
            | Self::Release { id } => Some(*id),
        }
    }
}

/// A message from the worker to the window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// The worker accepts requests.
    Ready {
        /// Protocol version of the worker.
        version: u32,
        /// Version of the program.
        program: String,
        /// Process id of the worker.
        pid: u32,
        /// Its private folder, which contains the arrays.
        folder: PathBuf,
    },
    /// The devices of this machine, each with the reason why it is usable or not.
    Devices {
        /// Number of the query.
        id: JobId,
        /// Usable and unusable devices.
        devices: Vec<Device>,
    },
    /// The installed models, including those that cannot be used, with the reason.
    Models {
        /// Number of the query.
        id: JobId,
        /// One card per model.
        models: Vec<ModelCard>,
    },
    /// A job was queued.
    Queued {
        /// Number of the job.
        id: JobId,
        /// Number of jobs before it, including the running one.
        ahead: usize,
    },
    /// A job has started.
    Started {
        /// Number of the job.
        id: JobId,
    },
    /// An event of the running job. Progress of a stage is sent at most 20 times per second (the end of a stage
    /// always), other events at once.
    Progress {
        /// Number of the job.
        id: JobId,
        /// Progress, note, or start and end of an input.
        event: Event,
    },
    /// An event of the running training job.
    Training {
        /// Number of the job.
        id: JobId,
        /// Plan, completed steps, status, scores, or a preview.
        event: TrainEvent,
    },
    /// Finished parts of a prediction, at most about 20 times per second. They are in a file of 32-bit little-endian
    /// floats, axes C, Z, Y, X on the model's grid, which [`super::LiveArray`] reads; unfinished values are 0. Values
    /// of cropped tiles are final. Values of blended tiles are the weighted means so far, and are reported again if a
    /// later tile changes them. Postprocessing that needs statistics of the whole output is not applied.
    Live {
        /// Number of the job.
        id: JobId,
        /// The input that is being predicted.
        input: PathBuf,
        /// Time point of the input, from 0.
        time: usize,
        /// Path of the file; there is one for each input and time point.
        path: PathBuf,
        /// Number of channels.
        channels: usize,
        /// Shape Z, Y, X of the array: the model's grid, which covers the same field of view as the input's.
        shape_zyx: [usize; 3],
        /// Regions that were finished since the last such message.
        regions: Vec<LiveRegion>,
    },
    /// Time, bytes and voxels by stage so far; sent at most 4 times per second while a job runs, and at its end, if they have
    /// changed.
    Stages {
        /// Number of the job.
        id: JobId,
        /// The stage table.
        totals: Vec<StageTotal>,
    },
    /// Finished spans and memory marks since the last such message; sent 4 times per second while a job runs. If there
    /// are more than [`MAX_SPANS_PER_SECOND`], single operators are left out first, starting with the shortest.
    Spans {
        /// Number of the job.
        id: JobId,
        /// Spans, with times relative to the start of the job.
        spans: Vec<SpanRecord>,
        /// Memory of the process at labeled moments.
        marks: Vec<MemoryMark>,
        /// Memory of the process, of the engine's arenas and of devices over time, sampled twice per second.
        #[serde(default)]
        samples: Vec<MemorySample>,
        /// Number of spans of this job that were left out so far.
        dropped: u64,
    },
    /// Memory of the worker; sent twice per second while a job runs, and once at its end.
    Memory {
        /// Resident bytes now; 0 if the system does not report them.
        resident_bytes: u64,
        /// Peak resident bytes; 0 if the system does not report them.
        peak_resident_bytes: u64,
        /// The device that the running job computes on, once it is chosen.
        device: Option<DeviceInUse>,
    },
    /// Times and threads of the running job; sent with [`Reply::Memory`].
    Usage {
        /// Number of the job.
        id: JobId,
        /// Wall time since the start of the job in seconds.
        wall_secs: f64,
        /// CPU time of the worker since the start of the job in seconds, summed over threads; `None` if the system does
        /// not report it.
        cpu_secs: Option<f64>,
        /// Number of threads that the job computes with.
        threads: usize,
    },
    /// A job has finished.
    Done {
        /// Number of the job.
        id: JobId,
        /// Report of the job, by kind.
        result: JobResult,
    },
    /// A job failed. No partly written files are left.
    Failed {
        /// Number of the job.
        id: JobId,
        /// Class of the error, as in the command line's exit codes.
        kind: JobErrorKind,
        /// The error message.
        #[serde(rename = "sentence")]
        message: String,
        /// What to do next, which is the end of the message after `; `, if the error states it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next_step: Option<String>,
        /// The settings that the message names.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        settings: Vec<NamedSetting>,
        /// The file or folder that the job would replace if the user allowed it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        existing: Option<ExistingOutput>,
    },
    /// A job was canceled or replaced. No partly written files are left.
    #[serde(rename = "cancelled")]
    Canceled {
        /// Number of the job.
        id: JobId,
    },
    /// No further job is started, because a device has failed or other devices were found: the driver may refuse this
    /// process those devices. The client closes the standard input, and sends the jobs that have not started to a new
    /// process; [`super::Worker`] does so.
    Retiring {
        /// Why the process is replaced, for the log.
        reason: String,
    },
    /// An invalid message, or a reply that cannot be sent.
    Fault {
        /// What was received and what was expected.
        #[serde(rename = "sentence")]
        message: String,
    },
}

impl Reply {
    /// Returns the reply that a job or query failed with this message.
    pub(crate) fn failed(id: JobId, kind: JobErrorKind, message: impl Into<String>) -> Self {
        Self::Failed { id, kind, message: message.into(), next_step: None, settings: Vec::new(), existing: None }
    }

    /// Returns the reply that a job or query failed with this error.
    pub(crate) fn from_error(id: JobId, error: &JobError) -> Self {
        let message = error.message();
        Self::Failed {
            id,
            kind: error.kind(),
            settings: message.named_settings(),
            message: message.into(),
            next_step: error.next_step().map(String::from),
            existing: error.existing_output(),
        }
    }

    /// Returns the job that this message ends, if any.
    pub fn ends(&self) -> Option<JobId> {
        match self {
            Self::Done { id, .. } | Self::Failed { id, .. } | Self::Canceled { id } => Some(*id),
            _ => None,
        }
    }
}

/// A finished region of a prediction in progress, in voxels of the model's grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LiveRegion {
    /// First voxel Z, Y, X.
    pub start_zyx: [usize; 3],
    /// Size of the region along Z, Y, X in voxels.
    pub size_zyx: [usize; 3],
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]
mod tests {
    use super::*;
    use cytoscope_engine::DeviceRequest;
    use cytoscope_pipeline::EvaluateReport;
    use cytoscope_storage::message;
    use cytoscope_storage::setting::AXES;
    use serde::de::DeserializeOwned;
    use serde_json::Value;
    use std::collections::BTreeSet;

    const DOCS: &str = include_str!("../../../docs/worker-protocol.md");

    /// Returns the example messages of a section of the documentation.
    fn examples(heading: &str) -> Vec<Value> {
        let section = DOCS.split(heading).nth(1).unwrap().split("\n## ").next().unwrap();
        section.lines().filter(|l| l.starts_with('{')).map(|l| serde_json::from_str(l).unwrap()).collect()
    }

    /// Returns the names of an enum's variants, taken from the error for an unknown one.
    fn names<T: DeserializeOwned>(json: &str) -> BTreeSet<String> {
        let Err(error) = serde_json::from_str::<T>(json) else { panic!("{json} was taken") };
        let text = error.to_string();
        let (_, expected) = text.split_once("expected one of ").unwrap_or_else(|| panic!("{text}"));
        expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    /// Returns whether every field of `part` is in `whole`, with the same value.
    fn is_part(part: &Value, whole: &Value) -> bool {
        match (part, whole) {
            (Value::Object(part), Value::Object(whole)) => {
                part.iter().all(|(key, value)| whole.get(key).is_some_and(|of| is_part(value, of)))
            }
            _ => part == whole,
        }
    }

    /// Returns whether a request contains training settings; the examples do not list all of them.
    fn leaves_out_settings(request: &Value) -> bool {
        request["job"].as_object().is_some_and(|job| job.keys().any(|kind| kind.starts_with("train")))
    }

    fn check<T: DeserializeOwned + Serialize>(heading: &str, tag: &str) -> Vec<Value> {
        let lines = examples(heading);
        let documented: BTreeSet<String> = lines.iter().map(|l| l[tag].as_str().unwrap().to_owned()).collect();
        assert_eq!(documented, names::<T>(&format!("{{\"{tag}\":\"?\"}}")), "documented and known messages differ");
        for line in &lines {
            let parsed: T = serde_json::from_value(line.clone()).unwrap_or_else(|e| panic!("{e}: {line}"));
            let written = serde_json::to_value(&parsed).unwrap();
            assert!(is_part(line, &written), "a field of the example is unknown: {line}");
            assert!(leaves_out_settings(line) || written == *line, "an example does not contain every field: {line}");
        }
        lines
    }

    #[test]
    fn the_documentation_matches_every_message() {
        let requests = check::<Request>("## Requests", "request");
        let jobs = requests.iter().filter_map(|r| r["job"].as_object()).flat_map(|job| job.keys().cloned());
        assert_eq!(jobs.collect::<BTreeSet<String>>(), names::<Job>("{\"?\":{}}"));
        let replies = check::<Reply>("## Replies", "reply");
        let inner = |reply: &str, of: &str, key: &str| -> BTreeSet<String> {
            let replies = replies.iter().filter(|r| r["reply"] == reply);
            replies.filter_map(|r| r[of][key].as_str()).map(str::to_owned).collect()
        };
        assert_eq!(inner("done", "result", "job"), names::<JobResult>("{\"job\":\"?\"}"));
        let done: Vec<&Value> = replies.iter().filter(|r| r["reply"] == "done").map(|r| &r["id"]).collect();
        let ids: BTreeSet<Option<u64>> = done.iter().map(|id| id.as_u64()).collect();
        assert_eq!(ids.len(), done.len(), "each job ends once: {done:?}");
        assert_eq!(inner("progress", "event", "event"), names::<Event>("{\"event\":\"?\"}"));
        assert_eq!(inner("training", "event", "event"), names::<TrainEvent>("{\"event\":\"?\"}"));
        for (limit, shown) in [
            (MAX_REQUEST_BYTES, "16 MiB".to_owned()),
            (MAX_REPLY_BYTES, "64 MiB".to_owned()),
            (MAX_QUEUED_JOBS, "4096 jobs".to_owned()),
            (MAX_SPANS_PER_SECOND, "2000 spans".to_owned()),
            (MAX_SPANS_PER_JOB, "100 000 a job".to_owned()),
        ] {
            let digits: String = shown.chars().filter(char::is_ascii_digit).collect();
            let unit = if shown.contains("MiB") { 1 << 20 } else { 1 };
            assert_eq!(digits.parse::<usize>().unwrap() * unit, limit, "{shown}");
            assert!(DOCS.contains(&shown), "{shown}");
        }
        assert!(DOCS.contains(&format!("version {PROTOCOL_VERSION}")));
    }

    #[test]
    fn optional_fields_of_jobs_may_be_missing() {
        let predict = r#"{"predict":{"prediction":{"inputs":["a.tif"],"model":"nuclei","out":"o"}}}"#;
        let Job::Predict { prediction, live, .. } = serde_json::from_str(predict).unwrap() else { panic!() };
        assert_eq!((prediction.device, live, prediction.outputs.len()), (DeviceRequest::Auto, false, 0));
        let segment = r#"{"segment":{"segmentation":{"map":"a.tif"}}}"#;
        assert!(matches!(serde_json::from_str(segment), Ok(Job::Segment { replaces: None, .. })));
    }

    #[test]
    fn a_failure_states_the_next_step_which_other_replies_may_lack() {
        let error = JobError::Mismatch {
            path: "a.tif".into(),
            problem: "it is flat".into(),
            next_step: message!("give a stack, or use {AXES}"),
        };
        let reply = serde_json::to_value(Reply::from_error(JobId(3), &error)).unwrap();
        assert_eq!(reply["sentence"], "a.tif: it is flat; give a stack, or use --axes");
        assert_eq!(reply["next_step"], "give a stack, or use --axes");
        assert_eq!(reply["settings"], serde_json::json!([{"start": 40, "name": "--axes"}]));
        let without = r#"{"reply":"failed","id":3,"kind":"other","sentence":"it failed"}"#;
        let expected = Reply::failed(JobId(3), JobErrorKind::Other, "it failed");
        assert_eq!(serde_json::from_str::<Reply>(without).unwrap(), expected);
        assert_eq!(serde_json::to_string(&expected).unwrap(), without);
    }

    #[test]
    fn nan_survives_serialization() {
        let regression =
            cytoscope_objects::regression::Regression { pearson: None, psnr_db: None, ssim: None, mse: f64::NAN };
        let report = EvaluateReport {
            pairs: Vec::new(),
            instances: Vec::new(),
            regression: Some(regression),
            channels: Vec::new(),
            unpaired: Vec::new(),
            errors: None,
            ignored: None,
            notes: Vec::new(),
            traffic: None,
            device: None,
            precision: None,
        };
        let text = serde_json::to_string(&JobResult::Evaluate(Box::new(report))).unwrap();
        let JobResult::Evaluate(back) = serde_json::from_str(&text).unwrap() else { panic!("{text}") };
        assert!(back.regression.unwrap().mse.is_nan());
    }
}
