//! The record of a job that is running: which inputs it lists, and which file it may replace.

use super::{
    AnyRecord, DeviceRecord, JobKind, JobRecord, MAX_RECORD_BYTES, RECORD_SUFFIX, Recordable, absolute, model_record,
    read_any, record_path,
};
use crate::folder_digest::{change_since, changed_error, file_record, input_record, record_like, unsampled_record};
use crate::installed_models::recorded_model;
use crate::provenance::{InputRecord, MAX_SAMPLED_FILES, RENAME, program};
use crate::results::FileRecord;
use crate::{Context, JobError};
use cytoscope_engine::{Device, Precision};
use cytoscope_formats::Image;
use cytoscope_profile::Stage;
use cytoscope_storage::Overwrite;
use cytoscope_storage::StorageError;
use cytoscope_storage::lock::ResultsLock;
use cytoscope_storage::message;
use cytoscope_storage::target::{refuse_input, resolved};
use cytoscope_storage::write::atomic_write;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Maximum length of a file name in bytes on common file systems.
const MAX_NAME_BYTES: usize = 255;
/// Maximum number of files that a record lists one by one.
const MAX_LISTED_FILES: usize = 2_000;

/// The record of a job that is running.
#[derive(Debug)]
pub struct PendingRecord<J> {
    path: PathBuf,
    record: JobRecord<J>,
    /// Outputs and working folders, as resolved paths: they do not count as part of an input folder that contains them.
    left_out: Vec<PathBuf>,
    /// Each input that could not be listed, with the error: `PATH: ERROR`.
    unlisted: Vec<String>,
    /// Keeps other processes from writing the same output; released after the record is written.
    _lock: Option<ResultsLock>,
}

impl<J: Recordable> PendingRecord<J> {
    /// Checks that the record of a job may be written, without starting it.
    ///
    /// # Errors
    /// Those of [`PendingRecord::begin`] about the path of the record.
    pub fn check(job: &J) -> Result<(), JobError> {
        let mut job = job.clone();
        job.paths_mut().into_iter().for_each(|path| *path = absolute(path));
        let outputs = job.outputs();
        let Some(first) = outputs.first() else { return Ok(()) };
        check_record(&record_path(first), first, &job.inputs(), job.overwrite())
    }

    /// Starts the record of a job: call it before the job reads its inputs. Inputs that cannot be read are left to the
    /// job to report.
    ///
    /// # Errors
    /// [`JobError::Storage`] if the path of the record is an input or a folder, or holds the record of another result; also
    /// if any other file exists there, unless the job overwrites files, or another job is writing the output.
    /// [`JobError::WrongUse`] if the job has no output, the record's name is too long, or a path is not Unicode.
    pub fn begin(job: &J) -> Result<Self, JobError> {
        let mut job = job.clone();
        let overwrite = job.overwrite();
        job.set_overwrite(Overwrite::Refuse);
        job.paths_mut().into_iter().for_each(|path| *path = absolute(path));
        let mut model = None;
        if let Some(text) = job.model_mut() {
            model = model_record(text);
            *text = recorded_model(text);
        }
        let outputs: Vec<PathBuf> = job.outputs().into_iter().map(Path::to_owned).collect();
        let first = outputs
            .first()
            .ok_or_else(|| JobError::wrong_use_with("the job has no output", "give a path for its result"))?;
        let path = record_path(first);
        check_record(&path, first, &job.inputs(), overwrite)?;
        // Paths that JSON cannot hold are reported before the work is done.
        if let Some(path) = job.paths_mut().into_iter().find(|path| path.to_str().is_none()) {
            let problem = "the path is not valid Unicode (UTF-8), so the provenance record cannot name it";
            return Err(JobError::wrong_use_with(format!("{}: {problem}", path.display()), RENAME));
        }
        serde_json::to_value(&job)
            .map_err(|e| JobError::wrong_use_with(format!("the job cannot be recorded ({e})"), RENAME))?;
        let left_out: Vec<PathBuf> =
            outputs.iter().chain(&job.working_folders()).map(|output| resolved(output)).collect();
        let mut seen = BTreeSet::new();
        let given = job.inputs().into_iter().filter(|input| seen.insert(*input));
        let (inputs, unlisted) = listed(given, &left_out);
        // A training run locks the folder of its checkpoint. The lock file may be in a folder that was just listed.
        let lock = if J::KIND == JobKind::Train { None } else { lock_output(first, &path)? };
        let record = JobRecord {
            program: program(),
            kind: J::KIND,
            job,
            inputs,
            model,
            device: None,
            precision: None,
            tile_shape: Vec::new(),
            outputs: Vec::new(),
            finished_unix_secs: 0,
        };
        Ok(Self { path, record, left_out, unlisted, _lock: lock })
    }

    /// Returns the recorded job, whose settings may be replaced by those that were determined while it ran.
    pub fn job_mut(&mut self) -> &mut J {
        &mut self.record.job
    }

    /// Adds files that the inputs name, such as those in a table. A long list is left out; the table itself is an input.
    pub fn add_inputs<'a>(&mut self, files: impl IntoIterator<Item = &'a Path>) {
        let mut files: BTreeSet<PathBuf> = files.into_iter().map(absolute).collect();
        if files.len() <= MAX_LISTED_FILES {
            files.retain(|file| self.record.inputs.iter().all(|known| known.path != *file));
            let (inputs, unlisted) = listed(files.iter().map(PathBuf::as_path), &[]);
            self.record.inputs.extend(inputs);
            self.unlisted.extend(unlisted);
        }
    }

    /// Adds the files of an image that consists of several, such as numbered files or those of an OME-TIFF set. A long list is
    /// left out. The files of a folder are recorded with it.
    pub(crate) fn add_image_files(&mut self, image: &Image) {
        let meta = image.meta();
        if meta.path.is_dir() && !meta.is_numbered_series() {
            return;
        }
        let files = image.files();
        if files.len() > 1 {
            self.add_inputs(files.iter().map(PathBuf::as_path));
        }
    }

    /// Records an input as it is now, because the job itself has added its result to the folder that it read.
    pub(crate) fn read_again(&mut self, input: &Path) {
        let path = absolute(input);
        let Some(known) = self.record.inputs.iter_mut().find(|known| known.path == path) else { return };
        // If it cannot be read, its earlier record stays, from which `provenance` later reports a change.
        if let Ok(now) = input_record(&path, &self.left_out) {
            *known = now;
        }
    }

    /// Refuses a result whose inputs changed while they were read. Call it before the outputs get their names.
    ///
    /// # Errors
    /// [`JobError::Mismatch`] with the input that changed; [`JobError::Io`] if too many files are open to read one.
    pub(crate) fn refuse_changed(&self) -> Result<(), JobError> {
        for then in &self.record.inputs {
            if let Some(change) = change_since(then, record_like(then, &self.left_out))? {
                return Err(changed_error(&then.path, &change));
            }
        }
        Ok(())
    }

    /// Records the device and the precision that computed the result.
    pub fn ran_on(&mut self, device: &Device, precision: Precision) {
        self.record.device = Some(DeviceRecord { id: device.id, name: device.name.clone() });
        self.record.precision = Some(precision);
    }

    /// Records the shape of the tiles or patches in voxels, in the axis order of the network.
    pub fn set_tile_shape(&mut self, shape: &[usize]) {
        self.record.tile_shape = shape.to_vec();
    }

    /// Writes the record, after the outputs have their final names.
    ///
    /// # Errors
    /// [`JobError::Io`] if an output cannot be read; [`JobError::Storage`] if the record cannot be written.
    pub fn finish(mut self) -> Result<(), JobError> {
        let outputs: Result<Vec<FileRecord>, JobError> =
            self.record.job.outputs().into_iter().map(file_record).collect();
        self.record.outputs = outputs?;
        self.record.finished_unix_secs = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let text = serde_json::to_string_pretty(&self.record)
            .map_err(|error| JobError::Io { path: self.path.clone(), error: error.into() })?;
        if text.len() as u64 > MAX_RECORD_BYTES {
            let error = format!("the record has {} bytes; at most {MAX_RECORD_BYTES} can be read", text.len());
            return Err(JobError::Io { path: self.path.clone(), error: std::io::Error::other(error) });
        }
        Ok(atomic_write(&self.path, text.as_bytes())?)
    }
}

/// Runs a job and writes its record. If the record of a finished job cannot be written, a note says so.
///
/// # Errors
/// The error of the job, or of [`PendingRecord::begin`].
pub fn recorded<J: Recordable, R>(
    job: &J,
    context: &Context,
    run: impl FnOnce(&mut PendingRecord<J>) -> Result<R, JobError>,
) -> Result<R, JobError> {
    let listing = context.recorder.span(Stage::Read, "inputs of the record");
    let mut record = PendingRecord::begin(job)?;
    listing.finish();
    let result = run(&mut record)?;
    if let Some(note) = unlisted_note(&record.unlisted) {
        context.note(note);
    }
    // The record holds the hash of each output, so that the outputs are read again.
    let writing = context.recorder.span(Stage::Write, "provenance record");
    if let Err(error) = record.finish() {
        context.note(message!("the result is complete, but its provenance record could not be written: {error}"));
    }
    writing.finish();
    Ok(result)
}

/// Returns the records of the inputs that can be read, and each other one as `PATH: ERROR`. `outputs` are left out of folders.
fn listed<'a>(paths: impl Iterator<Item = &'a Path>, outputs: &[PathBuf]) -> (Vec<InputRecord>, Vec<String>) {
    let (mut inputs, mut unlisted) = (Vec::new(), Vec::new());
    for (n, path) in paths.enumerate() {
        let record = if n < MAX_SAMPLED_FILES { input_record } else { unsampled_record };
        match record(path, outputs) {
            Ok(input) => inputs.push(input),
            Err(error) => unlisted.push(format!("{}: {error}", path.display())),
        }
    }
    (inputs, unlisted)
}

/// Returns the note about inputs that the record does not list; `None` if it lists all.
fn unlisted_note(unlisted: &[String]) -> Option<String> {
    let first = unlisted.first()?;
    let what = match unlisted.len() {
        1 => "an input is not listed in the provenance record".to_owned(),
        count => format!("{count} inputs are not listed in the provenance record, the first one"),
    };
    Some(format!("{what}: {first}"))
}

/// Locks the name of an output with this record. Returns `None` where no lock file can be created: the job reports why
/// nothing can be written there.
fn lock_output(output: &Path, record: &Path) -> Result<Option<ResultsLock>, JobError> {
    let name = record.file_name().and_then(|name| name.to_str()?.strip_suffix(RECORD_SUFFIX));
    let (Some(folder), Some(name)) = (record.parent(), name) else { return Ok(None) };
    match ResultsLock::acquire(folder, name) {
        Err(StorageError::Busy { locked, holder, .. }) => {
            Err(StorageError::Busy { path: output.to_owned(), locked, holder }.into())
        }
        // Writing the output reports why nothing can be written.
        acquired => Ok(acquired.ok()),
    }
}

/// Refuses to replace a file at the path of a record that is not the record of an earlier output with the same name. Records
/// of other results are never replaced, other files only if the job overwrites files.
fn check_record(path: &Path, output: &Path, inputs: &[&Path], overwrite: Overwrite) -> Result<(), JobError> {
    refuse_input(path, inputs)?;
    let length = path.file_name().map_or(0, |name| name.as_encoded_bytes().len());
    if length > MAX_NAME_BYTES {
        let problem = format!(
            "{}: the name of its provenance record would have {length} bytes, but file systems allow {MAX_NAME_BYTES}",
            output.display()
        );
        return Err(JobError::wrong_use_with(problem, "give the output a shorter name"));
    }
    if std::fs::symlink_metadata(path).is_err() {
        return Ok(());
    }
    let refused = |problem: &str| {
        let (path, problem) = (path.to_owned(), problem.to_owned());
        Err(StorageError::NotReplaceable { path, problem, can_force: false }.into())
    };
    if std::fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        return refused("is not a file, but has the name of the output's provenance record");
    }
    match read_any(path) {
        Ok(AnyRecord::Job(record)) if record.belongs_to(output) => Ok(()),
        Ok(AnyRecord::Job(_)) => refused("is the provenance record of another result"),
        Ok(AnyRecord::Prediction(_)) => refused("is the provenance record of a prediction"),
        Err(_) if overwrite == Overwrite::Replace => Ok(()),
        Err(_) => Err(StorageError::Exists { path: path.to_owned() }.into()),
    }
}
