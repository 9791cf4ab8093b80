//! The result files of one input: their names, whether they may be overwritten, and how each is written.

use super::prediction::Prediction;
use super::{Output, PredictJob};
use crate::artifact::wide_labels_name;
use crate::model::ModelTask;
use crate::provenance::InputRecord;
use crate::{ArtifactKind, Context, JobError, Model, provenance, results};
use cytoscope_formats::{Channel, Compression, Container, Image, ImageMeta, StackWriter, WriteSpec};
use cytoscope_objects::measure::{ObjectRow, to_csv};
use cytoscope_profile::Stage;
use cytoscope_storage::Overwrite;
use cytoscope_storage::write::FinishedFile;
use cytoscope_volume::{Array, Axes, DType};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Paths of one input's results.
pub(super) struct Paths {
    pub maps: PathBuf,
    pub labels: PathBuf,
    pub labels_wide: PathBuf,
    pub table: PathBuf,
    pub preview: PathBuf,
    pub provenance: PathBuf,
}

impl Paths {
    pub(super) fn all(self) -> [PathBuf; 6] {
        [self.maps, self.labels, self.labels_wide, self.table, self.preview, self.provenance]
    }

    pub(super) fn new(out: &Path, stem: &str, task: ModelTask) -> Self {
        let path = |kind: ArtifactKind| out.join(kind.file_name(stem));
        Self {
            maps: path(ArtifactKind::of_maps(task)),
            labels: path(ArtifactKind::Labels),
            labels_wide: out.join(wide_labels_name(stem)),
            table: path(ArtifactKind::Table),
            preview: path(ArtifactKind::Preview),
            provenance: path(ArtifactKind::Provenance),
        }
    }

    /// Refuses to overwrite files that differ from what an earlier prediction of this input wrote, unless `overwrite`
    /// allows it.
    fn refuse_foreign(
        &self,
        wanted: &BTreeSet<Output>,
        inputs: &[&Path],
        overwrite: Overwrite,
    ) -> Result<(), JobError> {
        let input = inputs.first().copied().unwrap_or(Path::new(""));
        provenance::refuse_foreign_record(&self.provenance, input, overwrite)?;
        for (output, paths) in [
            (Output::Maps, vec![&self.maps]),
            (Output::Labels, vec![&self.labels, &self.labels_wide]),
            (Output::Table, vec![&self.table]),
            (Output::Preview, vec![&self.preview]),
        ] {
            for path in paths.into_iter().filter(|_| wanted.contains(&output)) {
                results::check(path, inputs, overwrite)?;
            }
        }
        Ok(())
    }
}

/// Maximum number of files of an image that are checked for changes.
const MAX_WATCHED_FILES: usize = 4096;

/// The files that a prediction of one input reads and writes.
pub(super) struct ResultFiles {
    pub paths: Paths,
    /// The input as it was before it was read.
    pub input: InputRecord,
    /// The input and the other files of its image, as they were before they were read.
    read_from: Vec<InputRecord>,
    /// Fingerprint of everything that determines the result.
    pub fingerprint: String,
}

fn record(file: &Path) -> Result<InputRecord, JobError> {
    InputRecord::of(file).map_err(|error| JobError::unreadable(file, error))
}

impl ResultFiles {
    /// Names the results of an input, and records its files as they are now.
    ///
    /// # Errors
    /// [`JobError::WrongUse`] if a path is not Unicode; [`JobError`] if one of the image's files cannot be read.
    pub(super) fn new(
        job: &PredictJob,
        model: &Model,
        input: &Path,
        stem: &str,
        image: &Image,
    ) -> Result<Self, JobError> {
        let paths = Paths::new(&job.out, stem, model.task);
        let sources = std::iter::once(input.to_owned()).chain(image.files()).take(MAX_WATCHED_FILES);
        let read_from = sources.map(|file| record(&file)).collect::<Result<Vec<_>, _>>()?;
        let fingerprint = job.fingerprint(model, input, &read_from)?;
        Ok(Self { paths, input: record(input)?, read_from, fingerprint })
    }

    /// As [`Paths::refuse_foreign`].
    pub(super) fn refuse_foreign(&self, wanted: &BTreeSet<Output>, overwrite: Overwrite) -> Result<(), JobError> {
        let inputs: Vec<&Path> = self.read_from.iter().map(|file| file.path.as_path()).collect();
        self.paths.refuse_foreign(wanted, &inputs, overwrite)
    }

    /// Refuses a result whose input changed while it was read.
    pub(super) fn refuse_changed(&self) -> Result<(), JobError> {
        let changed = self.read_from.iter().find_map(|then| Some((&then.path, then.change_on_disk(&then.path)?)));
        let Some((file, change)) = changed else { return Ok(()) };
        Err(JobError::Mismatch {
            path: file.clone(),
            problem: format!(
                "the file {change}: it changed while it was read, so the prediction would match neither version"
            ),
            next_step: "wait until the file is complete, then predict again".to_owned(),
        })
    }
}

/// The texts of these two functions are axes, so that parsing them does not fail.
fn map_axes(times: usize) -> Axes {
    let text = if times > 1 { "TZCYX" } else { "ZCYX" };
    text.parse().unwrap_or_default()
}

pub(super) fn label_axes(times: usize) -> Axes {
    let text = if times > 1 { "TZYX" } else { "ZYX" };
    text.parse().unwrap_or_default()
}

fn map_writer(
    path: &Path,
    model: &Model,
    meta: &ImageMeta,
    zyx: &[usize; 3],
    times: usize,
) -> Result<StackWriter, JobError> {
    let mut shape = vec![zyx[0], model.output_channels, zyx[1], zyx[2]];
    if times > 1 {
        shape.insert(0, times);
    }
    let mut spec = WriteSpec::new(Container::ImageJ, map_axes(times), shape, DType::F32);
    spec.voxel_size_um = meta.voxel_size_um;
    spec.time_interval_secs = meta.time_interval_secs;
    spec.channels =
        (0..model.output_channels).map(|c| Channel { name: format!("{} {c}", model.name), color_rgb: None }).collect();
    if model.task == ModelTask::Segmentation {
        spec.display_range = Some((0.0, 1.0));
    }
    Ok(StackWriter::create(path, &spec)?)
}

/// Writes the maps of the time points, one after the other, slice by slice.
pub(super) struct MapWriter {
    writer: StackWriter,
    is_timed: bool,
    /// The next slice of the current time point.
    next_z: usize,
}

impl MapWriter {
    /// Creates the file of the maps.
    ///
    /// # Errors
    /// [`JobError`] if the file cannot be created.
    pub(super) fn new(
        path: &Path,
        model: &Model,
        meta: &ImageMeta,
        zyx: &[usize; 3],
        times: usize,
    ) -> Result<Self, JobError> {
        Ok(Self { writer: map_writer(path, model, meta, zyx, times)?, is_timed: times > 1, next_z: 0 })
    }

    /// Writes the slices of an unfinished prediction that can be read and are not written yet.
    pub(super) fn write_ready(&mut self, context: &Context, prediction: &mut Prediction) -> Result<(), JobError> {
        while prediction.is_ready(self.next_z) {
            self.write_slice(context, prediction)?;
            context.check()?;
        }
        Ok(())
    }

    /// Writes the remaining slices of a complete prediction; the next ones are those of the next time point.
    pub(super) fn write_rest(&mut self, context: &Context, prediction: &mut Prediction) -> Result<(), JobError> {
        let depth = prediction.shape[0];
        let mut meter = context.meter("write", depth as u64, "slices");
        meter.skip_completed(self.next_z as u64);
        while self.next_z < depth {
            self.write_slice(context, prediction)?;
            meter.add(1)?;
        }
        self.next_z = 0;
        Ok(())
    }

    fn write_slice(&mut self, context: &Context, prediction: &mut Prediction) -> Result<(), JobError> {
        let [_, ny, nx] = prediction.shape;
        let mut values = Vec::with_capacity(prediction.channels * ny * nx);
        for c in 0..prediction.channels {
            values.extend(prediction.read(context, c, self.next_z..self.next_z + 1)?);
        }
        let mut shape = vec![1, prediction.channels, ny, nx];
        if self.is_timed {
            shape.insert(0, 1);
        }
        let _span = context.recorder.span(Stage::Write, "maps").bytes(values.len() * 4);
        self.writer.write(&Array::new(map_axes(if self.is_timed { 2 } else { 1 }), shape, values)?)?;
        self.next_z += 1;
        Ok(())
    }

    /// Completes the file under a hidden name.
    pub(super) fn finish(self) -> Result<FinishedFile, JobError> {
        Ok(self.writer.finish_unpublished()?)
    }
}

pub(crate) fn label_writer(
    path: &Path,
    meta: &ImageMeta,
    zyx: &[usize; 3],
    times: usize,
    dtype: DType,
    max_label: u32,
) -> Result<StackWriter, JobError> {
    let mut shape = zyx.to_vec();
    if times > 1 {
        shape.insert(0, times);
    }
    let container = if dtype == DType::U16 { Container::ImageJ } else { Container::OmeTiff };
    let mut spec = WriteSpec::new(container, label_axes(times), shape, dtype);
    spec.voxel_size_um = meta.voxel_size_um;
    spec.time_interval_secs = meta.time_interval_secs;
    spec.channels = vec![Channel { name: "labels".to_owned(), color_rgb: None }];
    spec.display_range = Some((0.0, f64::from(max_label.max(1))));
    spec.compression = if container == Container::OmeTiff { Compression::Deflate } else { Compression::None };
    Ok(StackWriter::create(path, &spec)?)
}

pub(crate) fn table_text(rows: &[(usize, Vec<ObjectRow>)], names: &[String], timed: bool) -> String {
    if !timed {
        return rows.first().map_or_else(|| to_csv(&[], names), |(_, r)| to_csv(r, names));
    }
    let mut text = String::new();
    for (i, (time, rows)) in rows.iter().enumerate() {
        for (n, line) in to_csv(rows, names).lines().enumerate() {
            match n {
                0 if i == 0 => text.push_str(&format!("time,{line}\n")),
                0 => {}
                _ => text.push_str(&format!("{time},{line}\n")),
            }
        }
    }
    text
}
