//! The job that simulates one stack and writes its files, with a provenance record.

use cytoscope_formats::{Channel, Container, StackWriter, WriteSpec};
use cytoscope_pipeline::job_record::{JobKind, PendingRecord, Recordable, recorded};
use cytoscope_pipeline::{Context, JobError, Misuse, ProgressStage, ProgressUnit};
use cytoscope_profile::Stage;
use cytoscope_simulate::{Settings, SimulateError, Simulation, simulate};
use cytoscope_storage::folder::move_aside;
use cytoscope_storage::target::check_file;
use cytoscope_storage::write::{PartialFile, write_unpublished};
use cytoscope_storage::{Overwrite, ResultsFolder, StorageError};
use cytoscope_volume::{Array, DType};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Name suffixes of all files that belong to a stack; which of them are written depends on its kind and its number of objects.
const SUFFIXES: [&str; 5] = [".json", "_raw.tif", "_labels.tif", "_labels.ome.tif", "_target.tif"];

/// Simulates a stack and writes its images and its settings.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SimulateJob {
    /// All parameters of the stack, among them its seed.
    settings: Settings,
    /// Folder for the files.
    out: PathBuf,
    /// Whether to overwrite existing files.
    #[serde(default)]
    overwrite: Overwrite,
    /// The files of the stack: only the image, until the others are written.
    #[serde(skip)]
    files: Vec<PathBuf>,
}

/// What a [`SimulateJob`] has written.
pub(crate) struct Simulated {
    /// Number of objects in the true labels.
    pub(crate) objects: usize,
    /// The images, and the settings (`.json`).
    pub(crate) files: Vec<PathBuf>,
}

impl SimulateJob {
    pub(crate) fn new(settings: Settings, out: PathBuf, overwrite: Overwrite) -> Self {
        Self { settings, out, overwrite, files: Vec::new() }
    }

    /// Returns the folder for the files.
    pub(crate) fn folder(&self) -> &Path {
        &self.out
    }

    /// Returns the file of the settings.
    pub(crate) fn settings_path(&self) -> PathBuf {
        self.path(".json")
    }

    /// Returns the file whose name ends with this text.
    fn path(&self, suffix: &str) -> PathBuf {
        self.out.join(format!("{}_{}{suffix}", self.settings.kind, self.settings.seed))
    }

    /// Returns the file of the image, the first one that is written.
    pub(crate) fn image_path(&self) -> PathBuf {
        self.path("_raw.tif")
    }

    /// Returns the job with the file of its image, which names the record.
    fn with_image(&self) -> Self {
        Self { files: vec![self.image_path()], ..self.clone() }
    }

    /// Creates the folder, and checks that the files of the stack and their record may be written. `inputs` must not be
    /// overwritten. If nothing was written until the result is dropped, a new folder is removed again.
    ///
    /// # Errors
    /// [`JobError::Storage`] if the folder cannot be created or a file may not be written; [`JobError::WrongUse`] if a path is
    /// not Unicode.
    pub(crate) fn prepare(&self, inputs: &[&Path]) -> Result<ResultsFolder, JobError> {
        let folder = ResultsFolder::create(&self.out).map_err(JobError::results_folder(&self.out))?;
        self.check_files(inputs)?;
        PendingRecord::begin(&self.with_image()).map(drop)?;
        Ok(folder)
    }

    /// Checks that the files of the stack may be written.
    fn check_files(&self, inputs: &[&Path]) -> Result<(), JobError> {
        for suffix in SUFFIXES {
            check_file(&self.path(suffix), inputs, self.overwrite)?;
        }
        Ok(())
    }

    /// Simulates the stack, and writes its images and its settings, with its provenance record beside the image. `inputs`
    /// must not be overwritten.
    ///
    /// # Errors
    /// [`JobError::WrongUse`] for settings out of range, and the errors of [`SimulateJob::prepare`]; [`JobError::Format`] or
    /// [`JobError::Storage`] if a file cannot be written; [`JobError::Canceled`].
    pub(crate) fn run(&self, context: &Context, inputs: &[&Path]) -> Result<Simulated, JobError> {
        let _folder = self.prepare(inputs)?;
        // A folder that cannot be written to is found before the stack is computed.
        let created = PartialFile::create(&self.image_path());
        created.map(drop).map_err(|error| JobError::Io { path: self.out.clone(), error })?;
        recorded(&self.with_image(), context, |record| {
            let simulation = simulate_stack(&self.settings, context)?;
            // Other programs may have written files meanwhile.
            self.check_files(inputs)?;
            let files = self.write(&simulation, context)?;
            self.move_earlier_aside(&files, context)?;
            let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
            record.job_mut().files = files.iter().map(absolute).collect();
            Ok(Simulated { objects: simulation.object_count, files })
        })
    }

    /// Moves the files of an earlier stack of this name aside that the `written` ones have not replaced, such as labels in the
    /// other format: they do not belong to the new image.
    fn move_earlier_aside(&self, written: &[PathBuf], context: &Context) -> Result<(), JobError> {
        if self.overwrite == Overwrite::Refuse {
            return Ok(());
        }
        for path in SUFFIXES.map(|suffix| self.path(suffix)) {
            if !written.contains(&path) && path.symlink_metadata().is_ok() {
                let aside = move_aside(&path)?;
                context.note(format!(
                    "{}: it belongs to an earlier stack; moved to {}",
                    path.display(),
                    aside.display()
                ));
            }
        }
        Ok(())
    }

    /// Writes the images and the settings of a stack; returns their paths. They get their names together, so that a full disk
    /// does not leave images of different stacks.
    fn write(&self, simulation: &Simulation, context: &Context) -> Result<Vec<PathBuf>, JobError> {
        let mut unpublished = Vec::new();
        let parts: [(&str, Option<&Array>); 3] = [
            ("raw", Some(&simulation.raw)),
            ("labels", simulation.labels.as_ref()),
            ("target", simulation.target.as_ref()),
        ];
        for (part, array) in parts {
            let Some(array) = array else { continue };
            context.check()?;
            let wide = array.dtype() == DType::U32;
            let container = if wide { Container::OmeTiff } else { Container::ImageJ };
            let path = self.path(&format!("_{part}.{}", if wide { "ome.tif" } else { "tif" }));
            let mut spec = WriteSpec::of(array, container);
            spec.voxel_size_um = simulation.voxel_size_um;
            spec.channels = vec![Channel { name: part.to_owned(), color_rgb: None }];
            let writing = context.recorder.span(Stage::Write, part).bytes(array.samples().as_bytes().len());
            let mut writer = StackWriter::create(&path, &spec)?;
            writer.write(array)?;
            unpublished.push(writer.finish_unpublished()?);
            writing.finish();
        }
        let path = self.settings_path();
        let text = serde_json::to_string_pretty(&simulation.settings)
            .map_err(|error| JobError::Io { path: path.clone(), error: error.into() })?;
        unpublished.push(write_unpublished(&path, text.as_bytes())?);
        context.check()?;
        let mut files = Vec::new();
        for file in unpublished {
            let path = file.target().to_owned();
            file.publish().map_err(StorageError::io(&path, "finishing the file"))?;
            files.push(path);
        }
        Ok(files)
    }
}

/// Simulates one stack and reports progress in voxels.
fn simulate_stack(settings: &Settings, context: &Context) -> Result<Simulation, JobError> {
    let voxels = settings.shape_zyx.iter().map(|n| *n as u64).fold(1, u64::saturating_mul);
    let meter = Mutex::new((context.meter(ProgressStage::Simulate, voxels, ProgressUnit::Voxels), 0));
    let span = context.recorder.span(Stage::Simulate, "stack");
    let simulated = simulate(settings, |fraction| {
        let mut guard = meter.lock().unwrap_or_else(PoisonError::into_inner);
        let now = (fraction * voxels as f64) as u64;
        let more = now.saturating_sub(guard.1);
        guard.1 += more;
        guard.0.add(more).is_ok()
    });
    let simulation = simulated.map_err(|error| match error {
        SimulateError::Canceled => JobError::Canceled,
        error => JobError::WrongUse(Misuse::explained(error.to_string(), error.next_step())),
    })?;
    span.voxels(simulation.raw.samples().len()).finish();
    Ok(simulation)
}

impl Recordable for SimulateJob {
    const KIND: JobKind = JobKind::Simulate;

    /// The record has the settings themselves, so a file that they were read from is not an input of a rerun.
    fn inputs(&self) -> Vec<&Path> {
        Vec::new()
    }

    fn outputs(&self) -> Vec<&Path> {
        self.files.iter().map(PathBuf::as_path).collect()
    }

    fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        std::iter::once(&mut self.out).chain(&mut self.files).collect()
    }

    cytoscope_pipeline::recordable_setters!(overwrite: overwrite, output: out);
}
