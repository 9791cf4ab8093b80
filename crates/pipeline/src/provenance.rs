//! What made a result, written beside it so that it can be made again.

use crate::predict::{InputReport, PredictJob};
use crate::{JobError, Model};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// The file `NAME_provenance.json`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Provenance {
    /// `cytoscope` and its version.
    pub program: String,
    /// Fingerprint of what decided the result.
    pub fingerprint: String,
    /// The job, for this input alone: `cytoscope predict --rerun FILE` runs it again.
    pub job: PredictJob,
    /// The model's name, path and fingerprint.
    pub model: ModelRecord,
    /// The input.
    pub input: InputRecord,
    /// Files written.
    pub outputs: Vec<PathBuf>,
    /// Device it ran on and why.
    pub device: serde_json::Value,
    /// Tiles, halo, blending.
    pub plan: serde_json::Value,
    /// Objects found, a time point.
    pub objects: Vec<u32>,
    /// When, in seconds since 1970.
    pub finished_unix_secs: u64,
}

/// A model on record.
#[derive(Debug, Serialize, Deserialize)]
pub struct ModelRecord {
    /// Name.
    pub name: String,
    /// Path.
    pub path: PathBuf,
    /// Fingerprint of the network's file.
    pub fingerprint: String,
}

/// An input on record.
#[derive(Debug, Serialize, Deserialize)]
pub struct InputRecord {
    /// Path.
    pub path: PathBuf,
    /// Size in bytes.
    pub bytes: u64,
    /// When it was changed last, in seconds since 1970.
    pub modified_unix_secs: u64,
}

fn input_record(path: &Path) -> InputRecord {
    let meta = std::fs::metadata(path).ok();
    let modified =
        meta.as_ref().and_then(|m| m.modified().ok()).and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok());
    InputRecord {
        path: path.to_owned(),
        bytes: meta.map_or(0, |m| m.len()),
        modified_unix_secs: modified.map_or(0, |d| d.as_secs()),
    }
}

/// The fingerprint of what decides an input's result: job, model, and the file's size and time.
pub(crate) fn fingerprint(job: &PredictJob, model: &str, input: &Path) -> String {
    let record = input_record(input);
    let text = serde_json::to_string(&(job, model, record)).unwrap_or_default();
    Sha256::digest(text).iter().take(16).map(|b| format!("{b:02x}")).collect()
}

/// Writes the record.
pub(crate) fn write(
    path: &Path,
    job: &PredictJob,
    model: &Model,
    input: &Path,
    fingerprint: &str,
    report: &InputReport,
) -> Result<(), JobError> {
    // Absolute, so that the record can be run again from any folder.
    let absolute = |p: &Path| std::path::absolute(p).unwrap_or_else(|_| p.to_owned());
    let by_path = Path::new(&job.model).exists();
    let record = Provenance {
        program: format!("cytoscope {}", env!("CARGO_PKG_VERSION")),
        fingerprint: fingerprint.to_owned(),
        job: PredictJob {
            inputs: vec![absolute(input)],
            model: if by_path {
                absolute(Path::new(&job.model)).to_string_lossy().into_owned()
            } else {
                job.model.clone()
            },
            out: absolute(&job.out),
            resume: false,
            ..job.clone()
        },
        model: ModelRecord {
            name: model.name.clone(),
            path: model.path.clone(),
            fingerprint: model.fingerprint.clone(),
        },
        input: input_record(input),
        outputs: report.outputs.clone(),
        device: serde_json::to_value(&report.device).unwrap_or_default(),
        plan: serde_json::to_value(&report.plan).unwrap_or_default(),
        objects: report.objects.clone(),
        finished_unix_secs: std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| d.as_secs()),
    };
    let text =
        serde_json::to_string_pretty(&record).map_err(|e| JobError::Io { path: path.to_owned(), error: e.into() })?;
    Ok(cytoscope_formats::atomic_write(path, text.as_bytes())?)
}

/// Most bytes of a record.
const MAX_RECORD_BYTES: u64 = 1 << 20;

/// Reads a record.
///
/// # Errors
/// [`JobError`] if the file is none.
pub fn read(path: &Path) -> Result<Provenance, JobError> {
    let io = |error| JobError::Io { path: path.to_owned(), error };
    let size = std::fs::metadata(path).map_err(|e| JobError::unreadable(path, e))?.len();
    let mismatch = |problem: String| JobError::Mismatch {
        path: path.to_owned(),
        problem,
        next_step: "give a _provenance.json that a prediction wrote".to_owned(),
    };
    if size > MAX_RECORD_BYTES {
        return Err(mismatch(format!("{size} bytes are too many for a provenance record")));
    }
    serde_json::from_slice(&std::fs::read(path).map_err(io)?)
        .map_err(|e| mismatch(format!("this is no provenance record ({e})")))
}

/// The outputs an earlier run recorded, whatever made them; none without a record.
pub(crate) fn outputs_of(path: &Path) -> Vec<PathBuf> {
    read(path).map(|r| r.outputs).unwrap_or_default()
}

/// The outputs of an earlier run with this fingerprint, if all are there.
pub(crate) fn finished(path: &Path, fingerprint: &str) -> Option<Vec<PathBuf>> {
    let record = read(path).ok().filter(|r| r.fingerprint == fingerprint)?;
    record.outputs.iter().all(|o| o.is_file()).then(|| {
        let mut outputs = record.outputs;
        outputs.push(path.to_owned());
        outputs
    })
}
