//! What made a result, written beside it so that it can be made again.

use crate::diameter::ObjectDiameter;
use crate::predict::{InputReport, PredictJob, map_stem};
use crate::results::FileRecord;
use crate::{JobError, Model};
use cytoscope_storage::read::open_regular;
use cytoscope_storage::target::resolved;
use cytoscope_storage::{Overwrite, StorageError};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::io::Read;
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
    #[serde(deserialize_with = "file_records")]
    pub outputs: Vec<FileRecord>,
    /// Files of earlier results that these replace: they are there if the run was stopped while files got their names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaced: Vec<FileRecord>,
    /// Files made of these results later, such as the table of corrected labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub derived: Vec<FileRecord>,
    /// Device it ran on and why.
    pub device: serde_json::Value,
    /// The object diameter used, where the model states one.
    #[serde(default)]
    pub diameter: Option<ObjectDiameter>,
    /// Tiles, halo, blending.
    pub plan: serde_json::Value,
    /// Objects found, a time point.
    pub objects: Vec<u32>,
    /// When, in seconds since 1970.
    pub finished_unix_secs: u64,
}

/// Records of outputs. Earlier versions listed paths alone: those are of a file that matches nothing.
fn file_records<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<FileRecord>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Entry {
        Record(FileRecord),
        Path(PathBuf),
    }
    let entries = Vec::<Entry>::deserialize(deserializer)?;
    let record = |entry| match entry {
        Entry::Record(record) => record,
        Entry::Path(path) => FileRecord { path, bytes: 0, sha256: String::new() },
    };
    Ok(entries.into_iter().map(record).collect())
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

/// A file that was read, on record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputRecord {
    /// Path.
    pub path: PathBuf,
    /// Size in bytes.
    pub bytes: u64,
    /// When it was changed last, in seconds since 1970.
    pub modified_unix_secs: u64,
    /// Nanoseconds beyond that second.
    #[serde(default)]
    pub modified_nanos: u32,
}

impl InputRecord {
    /// What the system says of a file now.
    pub(crate) fn of(path: &Path) -> Self {
        let meta = std::fs::metadata(path).ok();
        let modified =
            meta.as_ref().and_then(|m| m.modified().ok()).and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok());
        Self {
            path: path.to_owned(),
            bytes: meta.map_or(0, |m| m.len()),
            modified_unix_secs: modified.map_or(0, |d| d.as_secs()),
            modified_nanos: modified.map_or(0, |d| d.subsec_nanos()),
        }
    }

    /// How the file differs from another look at it, as the predicate of a sentence; `None` if it does not.
    pub(crate) fn change(&self, now: &Self) -> Option<String> {
        if self.bytes != now.bytes {
            return Some(format!("had {} bytes then, it has {} now", self.bytes, now.bytes));
        }
        // Records of earlier versions and some file systems know whole seconds only.
        let nanos = |r: &Self| if self.modified_nanos == 0 || now.modified_nanos == 0 { 0 } else { r.modified_nanos };
        let time = |r: &Self| (r.modified_unix_secs, nanos(r));
        (time(self) != time(now)).then(|| "was written to since (another time of change)".to_owned())
    }
}

/// The fingerprint of what decides an input's result: job, model, and sizes and times of the input's files.
pub(crate) fn fingerprint(job: &PredictJob, model: &str, files: &[InputRecord]) -> String {
    let text = serde_json::to_string(&(job, model, files)).unwrap_or_default();
    Sha256::digest(text).iter().take(16).map(|b| format!("{b:02x}")).collect()
}

impl Provenance {
    /// What is not as it was when the recorded result was made, a sentence each: the program, the model, the input.
    ///
    /// # Errors
    /// [`JobError`] if the model is no longer there or cannot be read.
    pub fn differences(&self) -> Result<Vec<String>, JobError> {
        let mut found = Vec::new();
        let program = program();
        if self.program != program {
            found.push(format!("the recorded result was made by {}, this is {program}", self.program));
        }
        let model = Model::load(&self.job.model)?;
        if model.fingerprint != self.model.fingerprint {
            found.push(format!(
                "the model {} ({}) is not the one that made the recorded result (fingerprint {}, recorded {})",
                model.name,
                model.path.display(),
                model.fingerprint,
                self.model.fingerprint
            ));
        }
        // The job's paths are absolute.
        for input in &self.job.inputs {
            if let Some(change) = self.input.change(&InputRecord::of(input)) {
                found.push(format!("the input {} {change}", input.display()));
            }
        }
        Ok(found)
    }
}

fn program() -> String {
    format!("cytoscope {}", env!("CARGO_PKG_VERSION"))
}

/// What a record is made of.
pub(crate) struct Parts<'a> {
    pub job: &'a PredictJob,
    pub model: &'a Model,
    /// The input as it was when reading began.
    pub input: InputRecord,
    pub fingerprint: &'a str,
    pub report: &'a InputReport,
    pub outputs: Vec<FileRecord>,
}

/// Writes the record of files that are about to get their names.
///
/// # Errors
/// [`JobError::Storage`] if it cannot be written.
pub(crate) fn write(path: &Path, parts: Parts<'_>) -> Result<(), JobError> {
    let Parts { job, model, input, fingerprint, report, outputs } = parts;
    // Absolute, so that the record can be run again from any folder.
    let absolute = |p: &Path| std::path::absolute(p).unwrap_or_else(|_| p.to_owned());
    let by_path = Path::new(&job.model).exists();
    let record = Provenance {
        program: program(),
        fingerprint: fingerprint.to_owned(),
        job: PredictJob {
            inputs: vec![absolute(&input.path)],
            model: if by_path {
                absolute(Path::new(&job.model)).to_string_lossy().into_owned()
            } else {
                job.model.clone()
            },
            out: absolute(&job.out),
            resume: false,
            overwrite: Overwrite::Refuse,
            ..job.clone()
        },
        model: ModelRecord {
            name: model.name.clone(),
            path: model.path.clone(),
            fingerprint: model.fingerprint.clone(),
        },
        input,
        replaced: replaced(path, &outputs),
        derived: read(path).map(|r| r.derived).unwrap_or_default(),
        outputs,
        device: serde_json::to_value(&report.device).unwrap_or_default(),
        diameter: report.diameter,
        plan: serde_json::to_value(&report.plan).unwrap_or_default(),
        objects: report.objects.clone(),
        finished_unix_secs: std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| d.as_secs()),
    };
    store(path, &record)
}

fn store(path: &Path, record: &Provenance) -> Result<(), JobError> {
    let text =
        serde_json::to_string_pretty(record).map_err(|e| JobError::Io { path: path.to_owned(), error: e.into() })?;
    Ok(cytoscope_storage::write::atomic_write(path, text.as_bytes())?)
}

/// Records of files that are there now as an earlier record lists them, and are none of the new outputs.
fn replaced(path: &Path, outputs: &[FileRecord]) -> Vec<FileRecord> {
    let Ok(earlier) = read(path) else { return Vec::new() };
    let known = earlier.outputs.into_iter().chain(earlier.replaced);
    known.filter(|k| !outputs.contains(k) && k.matches(&beside(path, &k.path))).collect()
}

/// A recorded file, by its name beside its record: folders of results may be moved.
fn beside(record: &Path, file: &Path) -> PathBuf {
    file.file_name().map_or_else(|| file.to_owned(), |name| record.with_file_name(name))
}

/// Most bytes of a record.
const MAX_RECORD_BYTES: u64 = 1 << 20;

/// Reads a record.
///
/// # Errors
/// [`JobError`] if the file is none.
pub fn read(path: &Path) -> Result<Provenance, JobError> {
    let file = open_regular(path).map_err(|e| JobError::unreadable(path, e))?;
    let io = |error| JobError::Io { path: path.to_owned(), error };
    let size = file.metadata().map_err(io)?.len();
    let mismatch = |problem: String| JobError::Mismatch {
        path: path.to_owned(),
        problem,
        next_step: "give a _provenance.json that a prediction wrote".to_owned(),
    };
    if size > MAX_RECORD_BYTES {
        return Err(mismatch(format!("{size} bytes are too many for a provenance record")));
    }
    let mut bytes = Vec::new();
    file.take(MAX_RECORD_BYTES).read_to_end(&mut bytes).map_err(io)?;
    serde_json::from_slice(&bytes).map_err(|e| mismatch(format!("this is no provenance record ({e})")))
}

/// Refuses a record's path where something else than a record of the same input lies: two stacks of one name may be predicted into
/// one folder.
///
/// # Errors
/// [`StorageError::Exists`], unless replacing it was asked for.
pub(crate) fn refuse_foreign_record(path: &Path, input: &Path, overwrite: Overwrite) -> Result<(), JobError> {
    if overwrite == Overwrite::Replace || std::fs::symlink_metadata(path).is_err() {
        return Ok(());
    }
    let of_input = |record: &Provenance| match record.job.inputs.as_slice() {
        // A folder that was moved with its results holds the same file under another path.
        [recorded] => {
            let is_same =
                recorded.file_name() == input.file_name() && record.input.change(&InputRecord::of(input)).is_none();
            is_same || resolved(recorded) == resolved(input)
        }
        _ => false,
    };
    match read(path) {
        Ok(record) if of_input(&record) => Ok(()),
        _ => Err(StorageError::Exists { path: path.to_owned() }.into()),
    }
}

/// Endings of a prediction's files beside its maps.
const ENDINGS: [&str; 5] = ["_labels.tif", "_labels.ome.tif", "_corrected_objects.csv", "_objects.csv", "_preview.png"];

/// Where the record of a prediction's file would lie.
pub(crate) fn record_of(file: &Path) -> Option<PathBuf> {
    let name = file.file_name()?.to_str()?;
    let stem = map_stem(name).or_else(|| ENDINGS.iter().find_map(|ending| name.strip_suffix(ending)))?;
    Some(file.with_file_name(format!("{stem}_provenance.json")))
}

/// Whether the record beside a file names it among its files, unchanged or not. Where a record is there that cannot be read, the
/// file counts as named: a result must not be taken for an image.
pub(crate) fn is_of_prediction(file: &Path) -> bool {
    let Some(path) = record_of(file).filter(|path| path.is_file()) else { return false };
    let names = |r: Provenance| [r.outputs, r.replaced, r.derived].concat();
    read(&path).map_or(true, |record| names(record).iter().any(|known| known.is_named(file)))
}

/// Whether the record beside a file lists it just as it is.
pub(crate) fn lists(file: &Path) -> bool {
    let record = record_of(file).and_then(|path| read(&path).ok());
    let known = |r: Provenance| [r.outputs, r.replaced, r.derived].concat();
    record.is_some_and(|r| known(r).iter().any(|o| o.is_named(file) && o.matches(file)))
}

/// Puts new files in the place of those that a prediction's record lists, where there is such a record beside them.
/// Call it before the files get their names.
///
/// # Errors
/// [`JobError::Storage`] if the record cannot be written.
pub(crate) fn update(files: &[FileRecord]) -> Result<(), JobError> {
    for file in files {
        let Some(path) = record_of(&file.path) else { continue };
        let Ok(mut record) = read(&path) else { continue };
        let mut replaced = replaced(&path, std::slice::from_ref(file));
        let is_output = record.outputs.iter().any(|o| o.is_named(&file.path));
        let list = if is_output { &mut record.outputs } else { &mut record.derived };
        // Until the new file has its name, the old one is known, too.
        replaced.extend(list.extract_if(.., |o| o.is_named(&file.path)));
        list.push(file.clone());
        if is_output {
            // The results are no longer what that job makes.
            record.fingerprint.clear();
        }
        replaced.retain(|r| !record.outputs.contains(r));
        record.replaced = replaced;
        store(&path, &record)?;
    }
    Ok(())
}

/// The outputs of an earlier run with this fingerprint, if all are there as they were written.
pub(crate) fn finished(path: &Path, fingerprint: &str) -> Option<Vec<PathBuf>> {
    let record = read(path).ok().filter(|r| r.fingerprint == fingerprint)?;
    let whole = record.outputs.iter().all(|o| o.matches(&beside(path, &o.path)));
    whole.then(|| record.outputs.iter().map(|o| beside(path, &o.path)).chain([path.to_owned()]).collect())
}
