//! Provenance records of jobs other than predictions: how a result was made, written beside it so that the job can be
//! run again.
//!
//! The record of the output `NAME` is the file `NAME_provenance.json` in the same folder; `NAME` includes the extension,
//! so that `cells.tif` and `cells.csv` have their own records. An output without an extension, such as the folder of a
//! package, has the record `NAME.package_provenance.json`, because `NAME_provenance.json` may belong to a prediction of
//! `NAME.tif`. The record is beside the folder, not in it: the folder's marker lists exactly the files in the folder.

mod moved;
mod pending;
mod removal;

use crate::folder_digest::{file_record, record_like};
use crate::provenance::{
    CheckedInput, InputRecord, ModelRecord, Provenance, changes_of, has_prediction_record, not_a_record, program,
    read_bytes, record_listing,
};
use crate::results::FileRecord;
use crate::{JobError, Model, find_model};
use cytoscope_engine::{DeviceId, Precision};
pub use cytoscope_storage::Overwrite;
use cytoscope_storage::io_problem;
use cytoscope_storage::target::{extension, resolved};
use cytoscope_storage::write::parent_folder;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

pub use pending::{PendingRecord, recorded};
pub use removal::remove_record;

/// Suffix of the file name of a record.
pub(crate) const RECORD_SUFFIX: &str = "_provenance.json";
/// Text between the name of an output without a file extension and [`RECORD_SUFFIX`].
const WITHOUT_EXTENSION: &str = ".package";
/// Maximum size of a record in bytes: it may list very many files.
const MAX_RECORD_BYTES: u64 = 64 << 20;

/// The kind of a recorded job, which is the name of its command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// [`crate::SegmentJob`].
    Segment,
    /// [`crate::MeasureJob`].
    Measure,
    /// [`crate::MeshJob`].
    Mesh,
    /// [`crate::ConvertJob`].
    Convert,
    /// [`crate::EvaluateJob`] with a file for its report.
    Evaluate,
    /// The evaluation of a model with a file for its report.
    EvaluateModel,
    /// [`crate::packages::ImportJob`].
    Import,
    /// [`crate::ExportJob`].
    Export,
    /// A quantization with the limits of its training.
    Quantize,
    /// The simulation of a stack.
    Simulate,
    /// A training run.
    Train,
}

impl JobKind {
    /// Returns the name of the command that runs the job.
    pub fn name(self) -> &'static str {
        match self {
            Self::Segment => "segment",
            Self::Measure => "measure",
            Self::Mesh => "mesh",
            Self::Convert => "convert",
            Self::Evaluate | Self::EvaluateModel => "evaluate",
            Self::Import => "import",
            Self::Export => "export",
            Self::Quantize => "quantize",
            Self::Simulate => "simulate",
            Self::Train => "train",
        }
    }
}

/// A job whose result has a record. Its JSON is what is recorded, with absolute paths.
pub trait Recordable: Clone + Serialize {
    /// The kind of the job.
    const KIND: JobKind;

    /// Returns the files and folders that the job reads, without its model.
    fn inputs(&self) -> Vec<&Path>;

    /// Returns the files and folders that the job writes. The first one names the record.
    fn outputs(&self) -> Vec<&Path>;

    /// Returns all paths of the job, without that of its model.
    fn paths_mut(&mut self) -> Vec<&mut PathBuf>;

    /// Returns the path or name of the job's model, if it has one.
    fn model_mut(&mut self) -> Option<&mut String> {
        None
    }

    /// Returns what the job does with an existing file at an output's path.
    fn overwrite(&self) -> Overwrite;

    /// Returns folders in which the job keeps its state while it runs; they do not count as part of an input that contains them.
    fn working_folders(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Sets what the job does with an existing file at an output's path.
    fn set_overwrite(&mut self, overwrite: Overwrite);

    /// Writes the first output to another path, and the others beside it under their names.
    fn set_output(&mut self, out: PathBuf);
}

/// Writes the setters of [`Recordable`], and `overwrite`, for a job that keeps these values in fields: `overwrite` is what it
/// does with existing files, `output` is its only output, as a path or an optional path.
#[macro_export]
macro_rules! recordable_setters {
    (overwrite: $($overwrite:ident).+) => {
        fn overwrite(&self) -> $crate::job_record::Overwrite {
            self.$($overwrite).+
        }

        fn set_overwrite(&mut self, overwrite: $crate::job_record::Overwrite) {
            self.$($overwrite).+ = overwrite;
        }
    };
    (overwrite: $($overwrite:ident).+, output: $($output:ident).+) => {
        $crate::recordable_setters!(overwrite: $($overwrite).+);

        fn set_output(&mut self, out: std::path::PathBuf) {
            self.$($output).+ = out.into();
        }
    };
}

/// Returns the path of a further output beside the first one.
pub(crate) fn beside(first: &Path, other: &Path) -> PathBuf {
    other.file_name().map_or_else(|| other.to_owned(), |name| first.with_file_name(name))
}

/// A device that a job ran on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRecord {
    /// Identifier, such as `cuda:0`.
    pub id: DeviceId,
    /// Product name, as the driver reports it.
    pub name: String,
}

/// The record of a job other than a prediction; `J` is the type of the job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobRecord<J = Value> {
    /// Program name and version, `cytoscope X.Y.Z`.
    pub program: String,
    /// The kind of the job.
    pub kind: JobKind,
    /// The job with all its options; `cytoscope provenance FILE --rerun` runs it again.
    pub job: J,
    /// The files and folders that were read, as they were before. A folder has the size of all its files and the time
    /// of the newest.
    pub inputs: Vec<InputRecord>,
    /// The model that was read; absent for jobs without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelRecord>,
    /// The device that computed the result; absent for jobs that always run on the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceRecord>,
    /// Precision of the network; absent for jobs without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
    /// Shape of the tiles or training patches in voxels, in the axis order of the network; empty for jobs without them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tile_shape: Vec<usize>,
    /// Files and folders that the job wrote. A folder has the size of all its files, and the hash of its marker.
    pub outputs: Vec<FileRecord>,
    /// Time of completion in seconds since 1970.
    pub finished_unix_secs: u64,
}

impl<J> JobRecord<J> {
    /// Returns what differs from when the job was recorded, one sentence each with what to do about it: the program, the
    /// inputs and the model.
    pub fn differences(&self) -> Vec<String> {
        self.differences_from(&self.checked_inputs(), self.model.as_ref().and_then(ModelRecord::change))
    }

    /// Like [`JobRecord::differences`], of inputs that were compared, and with the change of the model.
    pub(crate) fn differences_from(&self, inputs: &[CheckedInput], model_change: Option<String>) -> Vec<String> {
        let program = program();
        let mut found = Vec::new();
        if self.program != program {
            found.push(format!(
                "the recorded result was made by {}, but this is {program}: for the same result, use that version",
                self.program
            ));
        }
        found.extend(changes_of(inputs));
        found.extend(model_change);
        found
    }

    /// Returns the recorded inputs, compared with the files and folders as they are now.
    pub(crate) fn checked_inputs(&self) -> Vec<CheckedInput> {
        let outputs: Vec<PathBuf> = self.outputs.iter().map(|output| resolved(&output.path)).collect();
        let checked = self.inputs.iter().map(|input| {
            let change = match record_like(input, &outputs) {
                Ok(now) => input.change(&now),
                Err(error) => Some(format!("can no longer be read ({})", io_problem(&error))),
            };
            let path = input.path.display();
            let sentence = |change: String| format!("the input {path} {change}: for the same result, restore it");
            CheckedInput { text: input.text(), changes: change.map(sentence).into_iter().collect() }
        });
        checked.collect()
    }

    /// Returns whether the record belongs to this output. Folders of results may be moved, so only names are compared.
    fn belongs_to(&self, output: &Path) -> bool {
        self.outputs.first().is_some_and(|first| first.is_named(output))
    }
}

impl JobRecord {
    /// Returns the recorded job, ready to be run again. It writes to the recorded paths, or to `out` and beside it.
    ///
    /// # Errors
    /// [`JobError::Mismatch`] if `path`, which the record was read from, holds options of another version.
    pub fn job_again<J: Recordable + DeserializeOwned>(
        &self,
        path: &Path,
        out: Option<&Path>,
        overwrite: Overwrite,
    ) -> Result<J, JobError> {
        let mut job: J = serde_json::from_value(self.job.clone())
            .map_err(|error| not_a_record(path, format!("the recorded job cannot be read ({error})")))?;
        if let Some(out) = out {
            job.set_output(out.to_owned());
        }
        job.set_overwrite(overwrite);
        Ok(job)
    }
}

/// A record of any kind.
#[derive(Debug)]
pub enum AnyRecord {
    /// Record of a prediction.
    Prediction(Box<Provenance>),
    /// Record of another job.
    Job(Box<JobRecord>),
}

/// Reads a record of any kind.
///
/// # Errors
/// [`JobError`] if the file is missing or not a provenance record.
pub fn read_any(path: &Path) -> Result<AnyRecord, JobError> {
    let bytes = read_bytes(path, MAX_RECORD_BYTES)?;
    let bad = |error: serde_json::Error| not_a_record(path, format!("not a provenance record ({error})"));
    let value: Value = serde_json::from_slice(&bytes).map_err(bad)?;
    // All records have it; other JSON files may have a `kind`, too.
    if value.get("outputs").is_none() {
        return Err(not_a_record(path, "not a provenance record, because it lists no outputs".to_owned()));
    }
    if value.get("kind").is_some() {
        return Ok(AnyRecord::Job(serde_json::from_value(value).map_err(bad)?));
    }
    Ok(AnyRecord::Prediction(serde_json::from_value(value).map_err(bad)?))
}

/// Reads the record of a result, or the record at a path itself. Returns it with its path.
///
/// # Errors
/// [`JobError::Mismatch`] if no record lies beside the result; otherwise as [`read_any`].
pub fn read_record_of(path: &Path) -> Result<(PathBuf, AnyRecord), JobError> {
    let record = record_for(path);
    let is_json = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    if record == path && path.exists() && !is_json {
        return record_of_further_result(path).ok_or_else(|| JobError::Mismatch {
            path: record,
            problem: "there is no provenance record beside this result".into(),
            next_step: "give the record (NAME_provenance.json), or a result that Cytoscope wrote with one".into(),
        });
    }
    let read = read_any(&record)?;
    Ok((record, read))
}

/// Returns the newest record in the folder of a file that lists it unchanged, with its path: the record of a job with several
/// results, such as labels and their table, has the name of the first one. `None` if there is none.
fn record_of_further_result(path: &Path) -> Option<(PathBuf, AnyRecord)> {
    // A folder or a record that cannot be read lists nothing.
    let entries = std::fs::read_dir(parent_folder(path)).ok()?.flatten();
    let records = entries.filter_map(|entry| {
        let file = path.with_file_name(entry.file_name());
        let Ok(AnyRecord::Job(record)) = is_record_name(&file).then(|| read_any(&file))? else { return None };
        let is_listed = record.outputs.iter().any(|known| known.is_named(path) && known.matches(path));
        is_listed.then_some((file, record))
    });
    let (file, record) = records.max_by_key(|(_, record)| record.finished_unix_secs)?;
    Some((file, AnyRecord::Job(record)))
}

/// Returns whether a file has the name of a record.
pub fn is_record_name(path: &Path) -> bool {
    path.to_string_lossy().ends_with(RECORD_SUFFIX)
}

/// Returns whether a record lies beside a result, whether or not the record can be read and the result is unchanged.
pub fn has_record(result: &Path) -> bool {
    record_path(result).is_file() || has_prediction_record(result)
}

/// Returns the path of the record of a result, which may also be the path of a record itself.
pub fn record_for(path: &Path) -> PathBuf {
    if is_record_name(path) {
        return path.to_owned();
    }
    let own_record = record_path(path);
    let is_of_other_result = || match read_any(&own_record) {
        Ok(AnyRecord::Job(record)) => !record.belongs_to(path),
        Ok(AnyRecord::Prediction(_)) => true,
        // Why a record cannot be read is reported.
        Err(_) => false,
    };
    let wrote = |record: &JobRecord| record.outputs.first().is_some_and(|file| file.matches(path));
    let is_current = || matches!(read_any(&own_record), Ok(AnyRecord::Job(record)) if wrote(&record));
    match record_listing(path).filter(|record| record.is_file()) {
        // A prediction may have replaced the result of the job.
        Some(prediction_record) if !is_current() => prediction_record,
        _ if own_record.is_file() && !is_of_other_result() => own_record,
        _ => path.to_owned(),
    }
}

/// Returns whether the record of `result` lists `file` with its current size and content, as made by a job that read
/// `input`. A folder may have been moved together with its files, so an unchanged file of the same name is the same input.
pub fn record_lists_result(result: &Path, file: &Path, input: &Path) -> bool {
    let Ok(AnyRecord::Job(record)) = read_any(&record_path(result)) else { return false };
    let is_input = |known: &InputRecord| {
        let is_moved = || known.path.file_name() == input.file_name() && known.change_on_disk(input).is_none();
        resolved(&known.path) == resolved(input) || is_moved()
    };
    record.inputs.iter().any(is_input) && record.outputs.iter().any(|known| known.is_named(file) && known.matches(file))
}

/// Mode of quantization-aware training in the record of a quantization, whose type belongs to a crate above this one.
pub const QAT_MODE: &str = "qat";

/// Returns whether the record beside an output is that of a training run or of quantization-aware training; `None` if there
/// is no record of the output. The record of another job counts only if the output is unchanged: it may be left from an
/// output that was there before.
pub(crate) fn recorded_training(output: &Path) -> Option<bool> {
    let record = match read_any(&record_path(output)) {
        Ok(AnyRecord::Job(record)) if record.belongs_to(output) => record,
        _ => return None,
    };
    let quantize_mode = record.job.pointer("/quantization/mode").and_then(Value::as_str);
    if record.kind == JobKind::Train || quantize_mode == Some(QAT_MODE) {
        return Some(true);
    }
    // Of an output that cannot be read, it is unknown what wrote it.
    let (then, now) = (record.outputs.first()?, file_record(output).ok()?);
    ((then.bytes, &then.sha256) == (now.bytes, &now.sha256)).then_some(false)
}

/// Returns the path of the record of an output.
pub fn record_path(output: &Path) -> PathBuf {
    let mut name = output.file_name().map_or_else(OsString::new, OsString::from);
    if extension(output).is_none() {
        name.push(WITHOUT_EXTENSION);
    }
    name.push(RECORD_SUFFIX);
    output.with_file_name(name)
}

/// Returns an absolute path, so that a record can be run again from any folder.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

impl ModelRecord {
    /// Returns how the model differs from the record, as a sentence with what to do about it; `None` if it does not.
    pub(crate) fn change(&self) -> Option<String> {
        let (name, path) = (&self.name, self.path.display());
        let Some(now) = model_record(&self.path.to_string_lossy()) else {
            return Some(format!("the model {name} ({path}) can no longer be read: for the same result, restore it"));
        };
        (now.fingerprint != self.fingerprint).then(|| {
            format!(
                "the model {name} ({path}) is not the one that made the recorded result (fingerprint {}, recorded {}): for \
                 the same result, restore it",
                now.fingerprint, self.fingerprint
            )
        })
    }
}

/// Returns the record of a model; `None` if it cannot be found or read.
fn model_record(text: &str) -> Option<ModelRecord> {
    let path = absolute(&find_model(text).ok()?);
    if let Ok(model) = Model::load(text) {
        return Some(ModelRecord { name: model.name, path, fingerprint: model.fingerprint });
    }
    // A model that cannot be run on stacks, such as one with several inputs, can still be exported.
    let name = path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let fingerprint = file_record(&path).ok()?.sha256;
    Some(ModelRecord { name, path, fingerprint })
}

#[cfg(test)]
mod tests;
