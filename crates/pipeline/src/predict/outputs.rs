//! The results of one input: maps, labels, table and preview, written while the time points are predicted and published
//! together.

use super::files::{FinishedResult, LabelWriter, MapWriter, ResultFiles};
use super::label::{self, Labels, MeasuredStack};
use super::prediction::Prediction;
use super::resolve::{Resolved, channel_name};
use super::{Output, preprocessed, preview, zarr};
use crate::results::Publication;
use crate::spool::Scratch;
use crate::stack::Stack;
use crate::{Artifact, ArtifactKind, Context, JobError};
use cytoscope_formats::is_zarr_zip_name;
use cytoscope_objects::ObjectTable;
use cytoscope_objects::measure::ObjectRow;
use cytoscope_storage::write::{FinishedFile, write_unpublished};

/// The slice of the first time point that the preview shows.
struct PreviewSlice {
    z: usize,
    labels: Option<Vec<u32>>,
    /// The prediction, if there are no labels.
    predicted: Option<Vec<f32>>,
}

/// The results of one input.
pub(super) struct Outputs<'a> {
    resolved: &'a Resolved<'a>,
    files: &'a ResultFiles,
    /// Where labels are stored until the number of objects of all time points is known.
    scratch: Scratch<'a>,
    maps: Option<MapWriter>,
    labels: Option<LabelWriter>,
    labeled: Vec<(Stack, Labels)>,
    /// Number of objects at each time point.
    counts: Vec<u32>,
    /// A note on the labels of any time point.
    label_note: Option<String>,
    /// Rows of the table of each time point.
    rows: Vec<(usize, Vec<ObjectRow>)>,
    preview: PreviewSlice,
}

/// Written results that are not yet renamed to their final names.
pub(super) struct Written {
    /// The files and folders, under their temporary names.
    pub publication: Publication,
    /// Contents and final paths of the files, as the report lists them.
    pub artifacts: Vec<Artifact>,
    /// Number of objects at each time point; empty without segmentation.
    pub counts: Vec<u32>,
}

impl Written {
    fn add(&mut self, kind: ArtifactKind, file: FinishedFile) {
        self.artifacts.push(Artifact::new(kind, file.target()));
        self.publication.add(file);
    }

    /// Adds a file of this kind, or the folder or zip file of all wanted maps and labels.
    fn add_result(&mut self, resolved: &Resolved<'_>, kind: ArtifactKind, result: FinishedResult) {
        let maps = resolved.wants(Output::Maps).then(|| ArtifactKind::for_maps(resolved.model.task));
        match result {
            FinishedResult::File(file) if is_zarr_zip_name(file.target()) => {
                self.artifacts.push(zarr::zipped_artifact(file.target(), maps));
                self.publication.add(file);
            }
            FinishedResult::File(file) => self.add(kind, file),
            FinishedResult::Folder(folder) => {
                let has_labels = resolved.has_objects() && resolved.wants(Output::Labels);
                self.artifacts.extend(zarr::artifacts(folder.target(), maps, has_labels));
                self.publication.add_folder(folder);
            }
        }
    }
}

impl<'a> Outputs<'a> {
    /// Creates the files that are written during prediction.
    pub(super) fn new(
        resolved: &'a Resolved<'a>,
        files: &'a ResultFiles,
        scratch: Scratch<'a>,
    ) -> Result<Self, JobError> {
        let Resolved { model, meta, extents, times, .. } = resolved;
        let mut maps = None;
        if resolved.wants(Output::Maps) {
            maps = Some(MapWriter::new(&files.paths, model, meta, &extents.zyx, times.len())?);
        }
        let preview = PreviewSlice { z: preview::middle(extents.zyx[0]), labels: None, predicted: None };
        Ok(Self {
            resolved,
            files,
            scratch,
            maps,
            labels: None,
            labeled: Vec::new(),
            counts: Vec::new(),
            label_note: None,
            rows: Vec::new(),
            preview,
        })
    }

    /// Returns the note on the labels that were made so far.
    pub(super) fn label_note(&self) -> Option<String> {
        self.label_note.clone()
    }

    /// Returns what writes the maps, if they are wanted.
    pub(super) fn map_writer(&mut self) -> Option<&mut MapWriter> {
        self.maps.as_mut()
    }

    /// Writes what is missing of the maps of a time point, and segments them if objects are wanted.
    pub(super) fn add(&mut self, context: &Context, stack: Stack, mut prediction: Prediction) -> Result<(), JobError> {
        let resolved = self.resolved;
        if let Some(writer) = &mut self.maps {
            writer.write_rest(context, &mut prediction)?;
        }
        if resolved.has_objects() {
            let mut labels = label::label_prediction(context, resolved, &mut prediction, self.scratch)?;
            self.counts.push(labels.count);
            self.label_note = labels.note.take().or(self.label_note.take());
            self.labeled.push((stack, labels));
        } else if resolved.wants(Output::Preview) && self.preview.predicted.is_none() {
            self.preview.predicted = Some(prediction.read(context, 0, self.preview.z..self.preview.z + 1)?);
        }
        Ok(())
    }

    /// Writes the labels of all time points, and measures their objects if the table is wanted. This needs the number
    /// of objects of all of them, which determines the sample type.
    pub(super) fn write_labels(&mut self, context: &Context) -> Result<(), JobError> {
        let resolved = self.resolved;
        let Resolved { meta, extents, times, .. } = resolved;
        if !resolved.has_objects() {
            return Ok(());
        }
        let max_label = self.counts.iter().copied().max().unwrap_or(0);
        if resolved.wants(Output::Labels) {
            let paths = &self.files.paths;
            let maps = if paths.zarr.is_some() { self.maps.take().and_then(MapWriter::into_zarr) } else { None };
            self.labels = Some(LabelWriter::new(paths, maps, meta, &extents.zyx, times.len(), max_label)?);
        }
        for ((stack, labels), time) in std::mem::take(&mut self.labeled).into_iter().zip(times) {
            let rows = self.write_time_point(context, &stack, labels)?;
            self.rows.push((*time, rows));
        }
        Ok(())
    }

    /// Writes the labels of a time point; returns the rows of the table.
    fn write_time_point(
        &mut self,
        context: &Context,
        stack: &Stack,
        labels: Labels,
    ) -> Result<Vec<ObjectRow>, JobError> {
        let resolved = self.resolved;
        let Resolved { extents, voxel_um, .. } = resolved;
        let channels: Vec<usize> = (0..extents.channels).collect();
        let measured = MeasuredStack {
            stack,
            channels: &channels,
            channel_names: channel_names(resolved),
            voxel_um: *voxel_um,
            measure: resolved.wants(Output::Table),
        };
        let shows = resolved.wants(Output::Preview);
        let (writer, preview) = (&mut self.labels, &mut self.preview);
        let mut z = 0;
        labels.finish(context, measured, |slice| {
            if shows && z == preview.z && preview.labels.is_none() {
                preview.labels = Some(slice.to_vec());
            }
            z += 1;
            let Some(writer) = writer else { return Ok(()) };
            writer.add(slice)
        })
    }

    /// Completes all files under hidden names.
    pub(super) fn finish(mut self, context: &Context) -> Result<Written, JobError> {
        let resolved = self.resolved;
        let paths = &self.files.paths;
        let counts = std::mem::take(&mut self.counts);
        let mut written = Written { publication: Publication::default(), artifacts: Vec::new(), counts };
        if let Some(writer) = self.maps.take() {
            written.add_result(resolved, ArtifactKind::for_maps(resolved.model.task), writer.finish(context)?);
        }
        if let Some(writer) = self.labels.take() {
            written.add_result(resolved, ArtifactKind::Labels, writer.finish(context)?);
        }
        if resolved.wants(Output::Table) {
            let table = ObjectTable::from_objects(&self.rows, &channel_names(resolved), resolved.extents.times > 1);
            let bytes = self.files.table_format.file(&paths.table, &table)?;
            written.add(ArtifactKind::Table, write_unpublished(&paths.table, &bytes)?);
        }
        if resolved.wants(Output::Preview)
            && let Some(png) = self.preview_png(context)?
        {
            written.add(ArtifactKind::Preview, write_unpublished(&paths.preview, &png)?);
        }
        if resolved.wants(Output::Preprocessed) {
            written.add(ArtifactKind::Preprocessed, preprocessed::write(context, resolved, &paths.preprocessed)?);
        }
        Ok(written)
    }

    /// Returns the preview as PNG; `None` without labels and prediction.
    fn preview_png(&self, context: &Context) -> Result<Option<Vec<u8>>, JobError> {
        let Resolved { image, extents, times, channels, .. } = self.resolved;
        let path = &self.files.paths.preview;
        let plane = [extents.zyx[1], extents.zyx[2]];
        let time = times.first().copied().unwrap_or(0);
        let channel = channels.first().copied().unwrap_or(0);
        let PreviewSlice { z, labels, predicted } = &self.preview;
        let raw = Stack::new(image, time).read(context, channel, *z..*z + 1)?.to_f32();
        Ok(match (labels, predicted) {
            (Some(labels), _) => Some(preview::outlined(path, plane, &raw, labels)?),
            (None, Some(predicted)) => Some(preview::beside(path, plane, &raw, predicted)?),
            (None, None) => None,
        })
    }
}

/// Returns the names of all channels of the image.
fn channel_names(resolved: &Resolved<'_>) -> Vec<String> {
    (0..resolved.extents.channels).map(|c| channel_name(&resolved.meta, c)).collect()
}
