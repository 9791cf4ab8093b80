//! What the window and its engine process say to each other: one JSON object a line, each with the tag `request` or `reply`.
//!
//! `docs/worker-protocol.md` shows every line there is.

use crate::cards::ModelCard;
use crate::{
    ConvertJob, EvaluateJob, EvaluateReport, Event, JobErrorKind, MeasureJob, MeasureReport, PredictJob,
    PredictOutcome, SegmentJob, SegmentReport,
};
use cytoscope_engine::{Device, DeviceId};
use cytoscope_profile::{MemoryMark, SpanRecord, StageTotal};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use std::path::PathBuf;

/// Version of the protocol. It changes when a line of one version would be misread by the other.
pub const PROTOCOL_VERSION: u32 = 1;
/// Most bytes of one request line; longer ones are skipped and told as [`Reply::Fault`].
pub const MAX_REQUEST_BYTES: usize = 16 << 20;
/// Most bytes of one reply line; longer ones are skipped by the client and told as [`Reply::Fault`].
pub const MAX_REPLY_BYTES: usize = 64 << 20;
/// Most jobs that wait in the worker; further ones fail at once.
pub const MAX_QUEUED_JOBS: usize = 4096;
/// Most spans sent a second.
pub const MAX_SPANS_A_SECOND: usize = 2000;
/// Most spans sent of one job.
pub const MAX_SPANS_A_JOB: usize = 100_000;
/// Most regions in one [`Reply::Live`].
pub const MAX_LIVE_REGIONS: usize = 256;

/// A job (or question) by the number its asker gave it; answers carry it. Numbers are not used twice while a worker lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub u64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What the window asks of the worker.
///
/// Jobs (`Predict`, `Segment`, `Measure`, `Convert`, `Evaluate`, `Run`) run one at a time in the order they came; each ends in exactly one of
/// [`Reply::Done`], [`Reply::Failed`] and [`Reply::Cancelled`]. `Devices` and `Models` are answered beside a running job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// The first line: the version that is spoken. Answered by [`Reply::Ready`], or by [`Reply::Fault`] where it is not
    /// [`PROTOCOL_VERSION`]; nothing else is answered before. [`super::Worker`] says it by itself.
    Hello {
        /// Version spoken.
        version: u32,
    },
    /// Lists the devices of this machine ([`Reply::Devices`]); GPUs are looked for once, in child processes.
    Devices {
        /// Number of the question.
        id: JobId,
    },
    /// Lists the installed models ([`Reply::Models`]).
    Models {
        /// Number of the question.
        id: JobId,
    },
    /// Predicts stacks ([`JobResult::Predict`]).
    Predict {
        /// Number of the job.
        id: JobId,
        /// The job. Paths are best absolute: relative ones count from the folder that the worker was started in.
        job: PredictJob,
        /// Whether finished tiles are told as [`Reply::Live`].
        #[serde(default)]
        live: bool,
        /// Whether single operators are timed on GPUs too, which then wait after each: slower, and without fusing operators. On
        /// the processor they always are.
        #[serde(default)]
        operators: bool,
    },
    /// Makes objects of a map that is already there ([`JobResult::Segment`]).
    Segment {
        /// Number of the job.
        id: JobId,
        /// The job. Without a path for its labels they go to the private folder as plain numbers, see
        /// [`crate::LabelFormat::RawU32`]: the fast way for a slider that is being dragged.
        job: SegmentJob,
        /// An earlier segmentation that this one makes needless: it is cancelled (or removed from the queue, where this one
        /// takes its place), and its labels in the private folder are removed when this one is done.
        #[serde(default)]
        replaces: Option<JobId>,
    },
    /// Measures labels that are already there ([`JobResult::Measure`]).
    Measure {
        /// Number of the job.
        id: JobId,
        /// The job.
        job: MeasureJob,
    },
    /// Writes an image in another format ([`JobResult::Convert`]).
    Convert {
        /// Number of the job.
        id: JobId,
        /// The job.
        job: ConvertJob,
    },
    /// Scores predictions against truth ([`JobResult::Evaluate`]).
    Evaluate {
        /// Number of the job.
        id: JobId,
        /// The job.
        job: EvaluateJob,
    },
    /// Runs a job of a kind that this room does not know ([`JobResult::Run`]); [`super::Setup::further`] knows it.
    Run {
        /// Number of the job.
        id: JobId,
        /// Its kind.
        kind: String,
        /// The job.
        job: Value,
        /// Folders it writes to: what a crash leaves half-written there is removed.
        #[serde(default)]
        writes: Vec<PathBuf>,
    },
    /// Cancels a running job (it answers within a tile) or removes a queued one. One that has ended already is no fault.
    Cancel {
        /// Number of the job.
        id: JobId,
    },
    /// Asks the running job to end now with the best it has: a training takes no further step, and makes its package ready. Jobs that
    /// cannot end early, that wait or that have ended are not touched.
    Finish {
        /// Number of the job.
        id: JobId,
    },
    /// Removes the files of an ended job from the private folder: its live array, its labels. Files of jobs that are never
    /// released go with the worker; a live array also when the next live prediction begins.
    Release {
        /// Number of the job.
        id: JobId,
    },
    /// Ends the worker, as closing its standard input does: a running job is cancelled, queued ones are forgotten.
    Shutdown,
}

impl Request {
    /// Number of the question or job; of the one meant by `Cancel`, `Finish` and `Release`.
    pub fn id(&self) -> Option<JobId> {
        match self {
            Self::Hello { .. } | Self::Shutdown => None,
            Self::Devices { id }
            | Self::Models { id }
            | Self::Predict { id, .. }
            | Self::Segment { id, .. }
            | Self::Measure { id, .. }
            | Self::Convert { id, .. }
            | Self::Evaluate { id, .. }
            | Self::Run { id, .. }
            | Self::Cancel { id }
            | Self::Finish { id }
            | Self::Release { id } => Some(*id),
        }
    }

    /// Whether it is a job, which is queued and ends in `Done`, `Failed` or `Cancelled`.
    pub fn is_job(&self) -> bool {
        matches!(
            self,
            Self::Predict { .. }
                | Self::Segment { .. }
                | Self::Measure { .. }
                | Self::Convert { .. }
                | Self::Evaluate { .. }
                | Self::Run { .. }
        )
    }

    /// Whether it is a question, which is answered beside the jobs.
    pub fn is_question(&self) -> bool {
        matches!(self, Self::Devices { .. } | Self::Models { .. })
    }
}

/// What the worker tells the window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// The worker takes requests.
    Ready {
        /// Protocol version spoken.
        version: u32,
        /// Version of the program.
        program: String,
        /// Process id of the worker.
        pid: u32,
        /// Its private folder, where arrays are.
        folder: PathBuf,
    },
    /// The devices of this machine, usable or not, each with the reason.
    Devices {
        /// Number of the question.
        id: JobId,
        /// The devices.
        devices: Vec<Device>,
    },
    /// The installed models; ones that cannot be used are there with their problem.
    Models {
        /// Number of the question.
        id: JobId,
        /// The models.
        models: Vec<ModelCard>,
    },
    /// A job waits.
    Queued {
        /// Number of the job.
        id: JobId,
        /// Jobs before it, the running one included.
        ahead: usize,
    },
    /// A job begins.
    Started {
        /// Number of the job.
        id: JobId,
    },
    /// Something a running job tells; how far a stage is comes at most 20 times a second (a stage's end always), all else at once.
    Progress {
        /// Number of the job.
        id: JobId,
        /// What it tells.
        event: Event,
    },
    /// Finished parts of a prediction, about 20 times a second at most. They lie in a file of 32-bit floats, little-endian, axes
    /// C, Z, Y, X on the model's grid, which [`super::LiveArray`] reads; what is not finished yet is 0. Cropped tiles hold final
    /// values; blended ones the weighted mean so far, and are told again where a later tile changes them. Postprocessing that
    /// rests on statistics of the whole output is not applied.
    Live {
        /// Number of the job.
        id: JobId,
        /// The input that is being predicted.
        input: PathBuf,
        /// Its time point, from 0.
        time: usize,
        /// The file; another one for each input and time point.
        path: PathBuf,
        /// Channels of the array.
        channels: usize,
        /// Extents Z, Y, X of the array: the model's grid, which spans the same field of view as the input's.
        shape_zyx: [usize; 3],
        /// What was finished since the last such line.
        regions: Vec<LiveRegion>,
    },
    /// Seconds, bytes and voxels by stage so far; 4 times a second while a job runs, and once at its end.
    Stages {
        /// Number of the job.
        id: JobId,
        /// The stage table.
        totals: Vec<StageTotal>,
    },
    /// Spans that ended and memory marks since the last such line; 4 times a second while a job runs. Where there are more than
    /// [`MAX_SPANS_A_SECOND`], single operators are left out first, the shortest of them before others.
    Spans {
        /// Number of the job.
        id: JobId,
        /// Spans; their times count from the start of the job.
        spans: Vec<SpanRecord>,
        /// Memory marks.
        marks: Vec<MemoryMark>,
        /// Spans of this job that were left out so far.
        dropped: u64,
    },
    /// Memory of the worker, twice a second while a job runs, and once at its end.
    Memory {
        /// Bytes it holds now; 0 where the system does not tell.
        resident_bytes: u64,
        /// The most it ever held; 0 where the system does not tell.
        peak_resident_bytes: u64,
        /// The device the running job computes on, once it is chosen.
        device: Option<DeviceInUse>,
    },
    /// A job is done.
    Done {
        /// Number of the job.
        id: JobId,
        /// What it came to.
        result: JobResult,
    },
    /// A job failed; nothing half-written was left.
    Failed {
        /// Number of the job.
        id: JobId,
        /// What kind of end it was.
        kind: JobErrorKind,
        /// Why, for people.
        sentence: String,
    },
    /// A job was cancelled or replaced; nothing half-written was left.
    Cancelled {
        /// Number of the job.
        id: JobId,
    },
    /// A line that was not understood, or an answer that cannot be given.
    Fault {
        /// What was met and what was expected.
        sentence: String,
    },
}

impl Reply {
    /// The job this line ends, if it ends one.
    pub fn ends(&self) -> Option<JobId> {
        match self {
            Self::Done { id, .. } | Self::Failed { id, .. } | Self::Cancelled { id } => Some(*id),
            _ => None,
        }
    }
}

/// A finished part of a growing prediction, in voxels of the model's grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LiveRegion {
    /// First voxel Z, Y, X.
    pub start_zyx: [usize; 3],
    /// Extents Z, Y, X.
    pub size_zyx: [usize; 3],
}

/// The device a job computes on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceInUse {
    /// The device.
    pub id: DeviceId,
    /// What its maker calls it.
    pub name: String,
    /// Why it was taken, for people.
    pub why: String,
}

/// What a job came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "job", rename_all = "snake_case")]
pub enum JobResult {
    /// Of [`Request::Predict`]; inputs that failed are listed in it.
    Predict(PredictOutcome),
    /// Of [`Request::Segment`].
    Segment(SegmentReport),
    /// Of [`Request::Measure`].
    Measure(MeasureReport),
    /// Of [`Request::Convert`].
    Convert {
        /// The image written.
        output: PathBuf,
    },
    /// Of [`Request::Evaluate`].
    Evaluate(EvaluateReport),
    /// Of [`Request::Run`].
    Run {
        /// Its kind.
        kind: String,
        /// What it came to.
        report: Value,
    },
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]
mod tests {
    use super::*;
    use serde::de::DeserializeOwned;
    use std::collections::BTreeSet;

    const DOCS: &str = include_str!("../../../../docs/worker-protocol.md");

    /// The example lines of a section of the documentation.
    fn examples(heading: &str) -> Vec<Value> {
        let section = DOCS.split(heading).nth(1).unwrap().split("\n## ").next().unwrap();
        section.lines().filter(|l| l.starts_with('{')).map(|l| serde_json::from_str(l).unwrap()).collect()
    }

    /// The names an enum takes, by what it says to one that it does not.
    fn names<T: DeserializeOwned>(json: &str) -> BTreeSet<String> {
        let Err(error) = serde_json::from_str::<T>(json) else { panic!("{json} was taken") };
        let text = error.to_string();
        let (_, expected) = text.split_once("expected one of ").unwrap_or_else(|| panic!("{text}"));
        expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    fn check<T: DeserializeOwned + Serialize>(heading: &str, tag: &str) -> Vec<Value> {
        let lines = examples(heading);
        let told: BTreeSet<String> = lines.iter().map(|l| l[tag].as_str().unwrap().to_owned()).collect();
        assert_eq!(told, names::<T>(&format!("{{\"{tag}\":\"?\"}}")), "documented and known messages differ");
        for line in &lines {
            let parsed: T = serde_json::from_value(line.clone()).unwrap_or_else(|e| panic!("{e}: {line}"));
            assert_eq!(&serde_json::to_value(&parsed).unwrap(), line, "an example does not hold every field");
        }
        lines
    }

    #[test]
    fn the_documentation_shows_every_message_as_it_is() {
        check::<Request>("## Requests", "request");
        let replies = check::<Reply>("## Replies", "reply");
        let inner = |of: &str, key: &str| -> BTreeSet<String> {
            replies.iter().filter_map(|r| r[of][key].as_str()).map(str::to_owned).collect()
        };
        assert_eq!(inner("result", "job"), names::<JobResult>("{\"job\":\"?\"}"));
        assert_eq!(inner("event", "event"), names::<Event>("{\"event\":\"?\"}"));
        for (limit, shown) in [
            (MAX_REQUEST_BYTES, "16 MiB".to_owned()),
            (MAX_REPLY_BYTES, "64 MiB".to_owned()),
            (MAX_QUEUED_JOBS, "4096 jobs".to_owned()),
            (MAX_SPANS_A_SECOND, "2000 spans".to_owned()),
            (MAX_SPANS_A_JOB, "100 000 a job".to_owned()),
        ] {
            let digits: String = shown.chars().filter(char::is_ascii_digit).collect();
            let unit = if shown.contains("MiB") { 1 << 20 } else { 1 };
            assert_eq!(digits.parse::<usize>().unwrap() * unit, limit, "{shown}");
            assert!(DOCS.contains(&shown), "{shown}");
        }
        assert!(DOCS.contains(&format!("version {PROTOCOL_VERSION}")));
    }

    #[test]
    fn a_job_needs_no_more_than_it_must() {
        let predict = r#"{"request":"predict","id":1,"job":{"inputs":["a.tif"],"model":"nuclei","out":"o"}}"#;
        let Request::Predict { job, live, .. } = serde_json::from_str(predict).unwrap() else { panic!() };
        assert_eq!((job.device.as_str(), live, job.outputs.len()), ("auto", false, 0));
        let segment = r#"{"request":"segment","id":1,"job":{"map":"a.tif"}}"#;
        assert!(matches!(serde_json::from_str(segment), Ok(Request::Segment { replaces: None, .. })));
    }

    #[test]
    fn numbers_that_are_none_come_back() {
        let regression =
            cytoscope_objects::regression::Regression { pearson: None, psnr_db: None, ssim: None, mse: f64::NAN };
        let report = EvaluateReport {
            pairs: Vec::new(),
            instances: Vec::new(),
            regression: Some(regression),
            unpaired: Vec::new(),
            errors: None,
            ignored: None,
        };
        let text = serde_json::to_string(&JobResult::Evaluate(report)).unwrap();
        let JobResult::Evaluate(back) = serde_json::from_str(&text).unwrap() else { panic!("{text}") };
        assert!(back.regression.unwrap().mse.is_nan());
    }
}
