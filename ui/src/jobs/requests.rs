//! Makes jobs from a document and the settings.

use super::Jobs;
use crate::channels::{chosen_output, segment_channels};
use crate::correct::CorrectionsAction;
use crate::correct::tools::EditAction;
use crate::disk::{DocumentEffect, TableTarget};
use crate::display::Display;
use crate::document::{Document, Role, file_name};
use crate::documents::{Documents, DocumentsAction};
use crate::effect::Effects;
use crate::opener::FileRequest;
use crate::settings::Settings;
use crate::work::{PredictionMode, Purpose};
use cytoscope_formats::{Compression, SeriesChoice};
use cytoscope_objects::SegmentOptions;
use cytoscope_pipeline::cards::ModelCard;
use cytoscope_pipeline::predict::{Blend, TileRequest, completed_voxel_um};
use cytoscope_pipeline::{
    ArtifactKind, ConvertJob, DiameterJob, DiameterRequest, DiameterUnit, MeasureJob, MeshJob, ModelTask, Output,
    PredictJob, SegmentJob,
};
use cytoscope_preprocess::PreprocessStep;
use cytoscope_storage::Overwrite;
use cytoscope_volume::VoxelSize;
use cytoscope_worker::Job;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Why a file that was chosen in a dialog is not written.
const STACK_CLOSED: &str = "Its stack was closed: open it again, then save again.";

impl Jobs {
    /// Asks for the results folder of a document that is to be predicted, or all series of its file.
    pub(super) fn request_prediction(
        &mut self,
        id: u64,
        all_series: bool,
        documents: &Documents,
        display: &Display,
        effects: &mut Effects,
    ) {
        if self.model(display.settings()).is_none() {
            effects.error("No model is installed", "Drop a model file, or open one under Predict > Models.");
            return;
        }
        let Some(document) = documents.get(id) else { return };
        if self.work.newest_for_document(id).is_some() || !self.preparing.insert(id) {
            return;
        }
        if all_series {
            self.all_series.insert(id);
        }
        effects.disk_for(id, DocumentEffect::PreparePrediction(self.place(document)));
    }

    /// Starts a prediction once its results folder was checked.
    pub(crate) fn prediction_ready(
        &mut self,
        id: u64,
        folder: Result<PathBuf, String>,
        documents: &Documents,
        display: &Display,
    ) -> Effects {
        let mut effects = Effects::default();
        self.work.performance = display.settings().performance;
        if !self.preparing.remove(&id) {
            // It was canceled meanwhile.
            return effects;
        }
        let all_series = self.all_series.remove(&id);
        let out = match folder {
            Ok(folder) => folder,
            Err(reason) => {
                effects.error("Results cannot be written", format!("{reason}. Choose another folder."));
                return effects;
            }
        };
        let Some(document) = documents.get(id).filter(|_| self.work.newest_for_document(id).is_none()) else {
            return effects;
        };
        if self.chosen_folder.is_none() {
            // The folder beside the stack may have become read-only since the stack was opened.
            self.folders.insert(id, out.clone());
        }
        let Some(model) = self.model(display.settings()).map(|m| m.title.clone()) else { return effects };
        let Some(mut job) = self.prediction_job(document, out, display.settings()) else { return effects };
        let mut name = documents.title(document);
        if all_series {
            job = for_all_series(job, document);
            name = format!("{} · all series", file_name(&document.path));
        }
        // The document shows one series.
        let how = PredictionMode { remeasure: std::mem::take(&mut self.remeasure), live: !all_series };
        self.predict_queued(id, format!("{name} · {model}"), job, how);
        effects
    }

    /// The tiles of predictions. Tiles that are cropped overlap by what the network needs.
    fn tiles(&self) -> TileRequest {
        let percent = self.overlap_percent.filter(|_| self.blend == Some(Blend::Gaussian));
        let overlap = percent.map(|percent| percent as f64 / 100.0);
        TileRequest { tile: self.tile, overlap, blend: self.blend, ..TileRequest::default() }
    }

    /// The prediction job of a document with the settings of the panel.
    fn prediction_job(&self, document: &Document, out: PathBuf, settings: &Settings) -> Option<PredictJob> {
        let time = self.one_time.contains(&document.id).then_some(document.time);
        Some(PredictJob { time, ..self.prediction_with(self.model(settings)?, document, out, settings) })
    }

    /// The prediction job of a document at its shown time point as which it is read for the calibration of a model; `None` if
    /// the model is not in the list.
    pub(crate) fn calibration_job(&self, model: &Path, document: &Document, settings: &Settings) -> Option<PredictJob> {
        let card = self.models().iter().find(|card| card.path == model)?;
        let time = (document.extents.times > 1).then_some(document.time);
        Some(PredictJob { time, ..self.prediction_with(card, document, PathBuf::new(), settings) })
    }

    /// The prediction job of a document with a model and the settings of the panel.
    fn prediction_with(&self, model: &ModelCard, document: &Document, out: PathBuf, settings: &Settings) -> PredictJob {
        let (channels, input_tensors) = self.prediction_inputs(model, document, settings);
        PredictJob {
            inputs: vec![document.path.clone()],
            model: model.name.clone(),
            out,
            format: settings.result_format,
            table_format: Default::default(),
            device: settings.device,
            cpu_because: None,
            precision: settings.precision,
            tiles: self.tiles(),
            outputs: chosen_outputs(settings, model.task, !document.preprocessing.steps.is_empty()),
            channel: None,
            channels,
            input_tensors,
            output_tensor: chosen_output(model, settings).cloned(),
            time: None,
            series: SeriesChoice::Index(document.series),
            axes: document.axes.clone(),
            voxel_um: document.given_voxel_um(),
            voxel_axes_um: VoxelSize::default(),
            diameter: document.object_size.request_for(model),
            preprocess: document.preprocessing.steps.clone(),
            memory_budget_bytes: settings.memory_budget_bytes(),
            resume: false,
            keep_slices: Default::default(),
            threads: settings.threads.unwrap_or(0),
            overwrite: Default::default(),
        }
    }

    /// Writes the surface of the selected object, or of all objects, of the saved labels of a document.
    pub(super) fn save_mesh(
        &mut self,
        id: u64,
        out: PathBuf,
        documents: &Documents,
        display: &Display,
        effects: &mut Effects,
    ) {
        let Some(document) = documents.get(id) else {
            return effects.error("The meshes were not saved", STACK_CLOSED);
        };
        let Some(labels) = document.labels_path() else {
            return effects.error("There are no labels to make meshes from", "Predict the stack first.");
        };
        let known = document.voxel_known.then_some(document.voxel_um);
        // Corrected labels are saved as one time point.
        let has_times =
            document.saved_labels.is_none() && document.overlay_with_role(Role::Labels).is_some_and(|l| l.times > 1);
        let job = MeshJob {
            labels: labels.to_owned(),
            out,
            objects: document.selected.into_iter().collect(),
            series: Default::default(),
            time: if has_times { document.time } else { 0 },
            voxel_um: known,
            assumed_voxel_um: self.assumed_voxel_um(document, display.settings()),
            unsmoothed: !display.settings().smooth_meshes,
            memory_budget_bytes: display.settings().memory_budget_bytes(),
            overwrite: Overwrite::Replace,
        };
        let title = format!("{} · meshes", documents.title(document));
        self.work.run(title, Purpose::Mesh, Job::Mesh(job));
    }

    /// Asks for the file of a preprocessed copy of a document.
    pub(super) fn ask_copy(
        &mut self,
        id: u64,
        steps: Vec<PreprocessStep>,
        documents: &Documents,
        effects: &mut Effects,
    ) {
        let Some(document) = documents.get(id) else { return };
        let name = ArtifactKind::Preprocessed.file_name(&document.stem());
        let folder = document.path.parent().map(Path::to_owned);
        self.copy_steps = Some((id, steps));
        effects.act(DocumentsAction::Ask { request: FileRequest::PreprocessedCopy(id), folder, name });
    }

    /// Writes the preprocessed copy of a document whose steps were set by [`Jobs::ask_copy`].
    pub(super) fn save_copy(&mut self, id: u64, out: PathBuf, documents: &Documents, effects: &mut Effects) {
        let steps = self.copy_steps.take_if(|(of, _)| *of == id);
        let Some((document, (_, steps))) = documents.get(id).zip(steps) else {
            return effects.error("The preprocessed copy was not saved", STACK_CLOSED);
        };
        if documents.all().iter().any(|open| open.path == out) {
            let details = format!("{} is open here. Choose another name.", out.display());
            return effects.error("The preprocessed copy was not saved", details);
        }
        let job = ConvertJob {
            preprocess: steps,
            input: document.path.clone(),
            output: out,
            labels: None,
            series: SeriesChoice::Index(document.series),
            axes: document.axes.clone(),
            voxel_um: document.given_voxel_um(),
            channel: None,
            time: None,
            like: None,
            compression: Compression::None,
            overwrite: Overwrite::Replace,
        };
        let title = format!("{} · preprocess", documents.title(document));
        let copy = self.work.run(title, Purpose::Preprocess, Job::Convert(job));
        self.copies.insert(copy, (document.path.clone(), document.series));
    }

    /// Starts a job that estimates the object diameter of a document at its shown time point, with the settings of its
    /// prediction.
    pub(super) fn estimate_diameter(&mut self, id: u64, documents: &Documents, display: &Display) {
        let Some(document) = documents.get(id) else { return };
        // Nothing is written, so the folder need not exist.
        let out = self.folder(id).map(Path::to_owned).unwrap_or_default();
        let Some(mut prediction) = self.prediction_job(document, out, display.settings()) else { return };
        prediction.diameter = DiameterRequest::Auto;
        prediction.time = (document.extents.times > 1).then_some(document.time);
        self.estimated_from.insert(id, document.object_size.request);
        let title = format!("{} · object diameter", documents.title(document));
        let job = Job::ObjectDiameter(DiameterJob { prediction });
        self.work.run(title, Purpose::Diameter { document: id }, job);
    }

    /// Segments the shown map again at the shown time point; `keep` saves the result, otherwise it is a preview.
    pub(super) fn segment(
        &mut self,
        id: u64,
        options: SegmentOptions,
        keep: bool,
        documents: &Documents,
        display: &Display,
    ) {
        let Some(card) = self.model(display.settings()) else { return };
        let Some(document) = documents.get(id) else { return };
        let time = document.time;
        let Some(shown) = document.overlay_with_role(Role::Map).filter(|map| map.is_at(time)) else { return };
        let (map, channels) = (shown.path.clone(), shown.channels);
        // By now, a model other than that of the prediction may be selected.
        let predicted_channels =
            document.segment_channels.filter(|both| both.iter().all(|channel| *channel < channels));
        let [channel, seed_channel] =
            predicted_channels.unwrap_or_else(|| segment_channels(card, display.settings(), channels));
        let name = file_name(&map);
        let stem = match ArtifactKind::from_name(&name) {
            Some((kind, stem)) if kind.is_maps() => stem,
            _ => name.as_str(),
        };
        // The labels of one time point do not replace the labels of all.
        let stem = match document.extents.times {
            0 | 1 => stem.to_owned(),
            _ => format!("{stem}_t{time}"),
        };
        let folder = map.parent().map(Path::to_owned).unwrap_or_default();
        let job = SegmentJob {
            map,
            labels: keep.then(|| folder.join(ArtifactKind::Labels.file_name(&stem))),
            replace_labels_of_map: keep,
            table: keep.then(|| folder.join(ArtifactKind::Table.file_name(&stem))),
            table_format: Default::default(),
            series: Some(SeriesChoice::Index(document.series)),
            channel,
            seed_channel: Some(seed_channel),
            time: if shown.only_time.is_some() { 0 } else { time },
            voxel_um: document.given_voxel_um(),
            assumed_voxel_um: self.assumed_voxel_um(document, display.settings()),
            intensities: keep.then(|| document.path.clone()),
            intensities_time: shown.only_time,
            options,
            overwrite: Default::default(),
        };
        let title = format!("{} · objects", documents.title(document));
        self.work.segment(id, title, job, keep);
    }

    /// The voxel size Z, Y, X with which predictions find and measure objects of a document whose own is incomplete: that
    /// of the latest prediction, or else the model's, if objects are not rescaled.
    fn assumed_voxel_um(&self, document: &Document, settings: &Settings) -> Option<[f64; 3]> {
        if document.voxel_known {
            return None;
        }
        if let Some(predicted) = document.predicted_diameter {
            return Some(predicted.voxel);
        }
        let model_um = self.model(settings).filter(|card| card.object_diameter_um.is_none())?.voxel_um?;
        let stated = document.image.meta().voxel_size_um;
        Some(completed_voxel_um(stated, document.extents.zyx[0], Some(model_um)))
    }

    /// Unit of the lengths with which objects of a document are found: voxels along X if neither the stack nor the model
    /// states a size.
    pub(crate) fn length_unit(&self, document: &Document, settings: &Settings) -> DiameterUnit {
        match document.predicted_diameter {
            _ if document.voxel_known => DiameterUnit::Um,
            Some(predicted) => predicted.unit,
            None if self.assumed_voxel_um(document, settings).is_some() => DiameterUnit::Um,
            None => document.length_unit(),
        }
    }

    /// Measures labels of a time point, or of all, once the folder of the table was checked.
    pub(crate) fn measurement_ready(
        &mut self,
        id: u64,
        labels: PathBuf,
        time: Option<usize>,
        target: Result<Option<TableTarget>, String>,
        documents: &Documents,
        display: &Display,
    ) -> Effects {
        let mut effects = Effects::default();
        let Some(document) = documents.get(id) else { return effects };
        let target = match target {
            Ok(Some(target)) => target,
            Ok(None) => {
                // Corrections started from empty labels have no file yet.
                if documents.active_id() == Some(id) {
                    effects.act(CorrectionsAction::Edit(EditAction::Save));
                }
                return effects;
            }
            Err(reason) => {
                effects.error("Objects cannot be measured", reason);
                return effects;
            }
        };
        let assumed_um = self.assumed_voxel_um(document, display.settings());
        let voxel_um = document.given_voxel_um().or(assumed_um);
        let job = MeasureJob {
            table: target.table,
            table_format: Default::default(),
            labels,
            intensities: Some(document.path.clone()),
            series: Some(SeriesChoice::Index(document.series)),
            axes: document.axes.clone(),
            time: time.unwrap_or(0),
            all_times: time.is_none(),
            voxel_um,
            overwrite: Overwrite::from_force(target.is_own),
        };
        self.work.measure(id, format!("{} · measuring", documents.title(document)), job);
        effects
    }
}

/// The job for all series of a document's file, made from the job for the document. Each series keeps its own voxel
/// size along the axes where none is set.
fn for_all_series(job: PredictJob, document: &Document) -> PredictJob {
    PredictJob { series: SeriesChoice::All, voxel_um: None, voxel_axes_um: document.given_axes_um(), ..job }
}

/// The chosen results that a model can make of a stack; none for the default ones. A stain has no objects, and a stack
/// without preprocessing steps is not written again.
fn chosen_outputs(settings: &Settings, task: Option<ModelTask>, has_steps: bool) -> BTreeSet<Output> {
    let can_make = |output: &Output| match output {
        Output::Maps | Output::Preview => true,
        Output::Labels | Output::Table => task != Some(ModelTask::LabelFree),
        Output::Preprocessed => has_steps,
    };
    settings.outputs.iter().copied().filter(can_make).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::correct::Corrections;
    use crate::disk::DiskEffect;
    use crate::display::DisplayAction;
    use crate::documents::{JobOutput, Predicted, ViewAction};
    use crate::effect::{Effect, Wake};
    use crate::jobs::JobsAction;
    use crate::opener::Expanded;
    use crate::work::RepeatableJob;
    use cytoscope_formats::{Container, WriteSpec, write_array};
    use cytoscope_pipeline::{LabelFormat, ObjectDiameter, SegmentReport};
    use cytoscope_volume::Array;
    use cytoscope_worker::LabelArray;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    fn no_wake() -> Wake {
        Arc::new(|| {})
    }

    fn display() -> Display {
        Display::new(&eframe::egui::Context::default(), None, None)
    }

    /// Writes a time series without a voxel size, and opens it with the settings. Returns the stacks and its id.
    fn opened(folder: &Path, settings: &Settings) -> (Documents, u64) {
        let stack = folder.join("stack.tif");
        let array = Array::new("TZYX".parse().unwrap(), vec![3, 2, 3, 4], vec![1u16; 72]).unwrap();
        write_array(&stack, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        let mut documents = Documents::new(&no_wake(), None);
        let files = Expanded { files: vec![stack], ..Expanded::default() };
        let _ = documents.listed(files, settings);
        let end = Instant::now() + Duration::from_secs(60);
        while documents.all().is_empty() {
            assert!(Instant::now() < end, "the stack was not opened in time");
            let _ = documents.poll();
            std::thread::sleep(Duration::from_millis(1));
        }
        let id = documents.active_id().unwrap();
        (documents, id)
    }

    #[test]
    fn results_that_a_model_cannot_make_are_not_requested() {
        let chosen =
            |outputs: &[Output]| Settings { outputs: outputs.iter().copied().collect(), ..Settings::default() };
        let all = chosen(&[Output::Maps, Output::Labels, Output::Table, Output::Preview, Output::Preprocessed]);
        let of = |task, has_steps| chosen_outputs(&all, Some(task), has_steps).into_iter().collect::<Vec<_>>();
        assert_eq!(of(ModelTask::Segmentation, true).len(), 5);
        assert_eq!(of(ModelTask::LabelFree, false), [Output::Maps, Output::Preview]);
        assert!(chosen_outputs(&chosen(&[Output::Table]), Some(ModelTask::LabelFree), true).is_empty());
    }

    #[test]
    fn only_tiles_with_gaussian_blending_have_a_chosen_overlap() {
        let mut jobs = Jobs::new(None, None, None, &no_wake());
        assert_eq!(jobs.tiles(), TileRequest::default());
        jobs.overlap_percent = Some(40);
        for (blend, overlap) in [(None, None), (Some(Blend::Crop), None), (Some(Blend::Gaussian), Some(0.4))] {
            jobs.blend = blend;
            assert_eq!((jobs.tiles().blend, jobs.tiles().overlap), (blend, overlap));
        }
    }

    #[test]
    fn a_prediction_of_all_series_sets_the_voxel_size_only_along_the_axes_where_it_was_given() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stack.ome.tif");
        let array = Array::new("ZYX".parse().unwrap(), vec![2, 3, 4], vec![1u16; 24]).unwrap();
        let voxel_size_um = VoxelSize { z: None, y: Some(0.5), x: Some(0.25) };
        let spec = WriteSpec { voxel_size_um, ..WriteSpec::of(&array, Container::OmeTiff) };
        write_array(&path, &array, &spec).unwrap();
        let given = VoxelSize { z: Some(2.0), ..VoxelSize::default() };
        let document = Document::open(&path, None, 0).unwrap().with_voxel_size(given);
        let one = PredictJob { voxel_um: document.given_voxel_um(), ..PredictJob::default() };
        assert_eq!(one.voxel_um, Some([2.0, 0.5, 0.25]));
        let all = for_all_series(one, &document);
        assert_eq!((all.series, all.voxel_um, all.voxel_axes_um), (SeriesChoice::All, None, given));
        // A size is not used if it is incomplete even together with the size that the file states.
        let incomplete = VoxelSize { x: Some(1.0), ..VoxelSize::default() };
        let document = Document::open(&path, None, 0).unwrap().with_voxel_size(incomplete);
        assert!(for_all_series(PredictJob::default(), &document).voxel_axes_um.is_unknown());
    }

    #[test]
    fn labels_are_measured_with_the_voxel_size_that_the_user_has_set_for_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let mut display = display();
        let (file, voxel_size_um) = (folder.path().join("other.tif"), VoxelSize::new_um(2.0, 0.5, 0.25));
        let _ = display.apply(DisplayAction::RememberVoxelSize { file, voxel_size_um });
        let (documents, id) = opened(folder.path(), display.settings());
        let mut jobs = Jobs::new(None, None, None, &no_wake());
        let target = Ok(Some(TableTarget { table: folder.path().join("o.csv"), is_own: false }));
        let _ = jobs.measurement_ready(id, folder.path().join("l.tif"), Some(0), target, &documents, &display);
        assert_eq!(measured_sizes_um(&jobs), [Some([2.0, 0.5, 0.25])]);
    }

    /// The voxel sizes that the running measurements were given.
    fn measured_sizes_um(jobs: &Jobs) -> Vec<Option<[f64; 3]>> {
        let size_of = |known: &RepeatableJob| match known {
            RepeatableJob::Measure { job, .. } => job.voxel_um,
            RepeatableJob::Predict { .. } | RepeatableJob::Segment { .. } => None,
        };
        jobs.work.active_jobs().map(|(_, known)| size_of(known)).collect()
    }

    #[test]
    fn objects_are_found_and_measured_with_the_voxel_size_that_their_prediction_assumed() {
        let folder = tempfile::tempdir().unwrap();
        let display = display();
        let (mut documents, id) = opened(folder.path(), display.settings());
        let jobs = Jobs::new(None, None, None, &no_wake());
        let assumed = |documents: &Documents| jobs.assumed_voxel_um(documents.get(id).unwrap(), &Settings::default());
        let length_unit = |documents: &Documents| jobs.length_unit(documents.get(id).unwrap(), &Settings::default());
        assert_eq!((assumed(&documents), length_unit(&documents)), (None, DiameterUnit::Voxels));
        let (voxel, unit) = ([2.5, 1.0, 1.0], DiameterUnit::Voxels);
        let diameter = ObjectDiameter { diameter: 8.0, unit, voxel, nominal_um: 12.0, estimate: None };
        let segment = Some(SegmentOptions { min_volume_um3: 7.0, ..SegmentOptions::default() });
        let predicted = Predicted { diameter: Some(diameter), segment: segment.clone(), channels: Some([0, 1]) };
        let found = |predicted| JobOutput::Found {
            outputs: Vec::new(),
            by_time: Default::default(),
            only_time: None,
            predicted,
        };
        let show = |documents: &mut Documents, output| {
            let _ = documents.apply(DocumentsAction::Show { document: id, output: Box::new(output) });
        };
        // A prediction of another voxel size does not count.
        let other = ObjectDiameter { unit: DiameterUnit::Um, ..diameter };
        show(&mut documents, found(Predicted { diameter: Some(other), ..predicted.clone() }));
        assert_eq!((assumed(&documents), &documents.get(id).unwrap().segment), (None, &None));
        show(&mut documents, found(predicted.clone()));
        let document = documents.get(id).unwrap();
        assert_eq!((&document.segment, document.segment_channels), (&segment, Some([0, 1])));
        assert_eq!(document.object_size.found, Some(diameter), "it is shown as after the prediction");
        assert_eq!((assumed(&documents), length_unit(&documents)), (Some(voxel), DiameterUnit::Voxels));
        // Nor does one that was skipped because its results exist.
        show(&mut documents, JobOutput::Predicted(Predicted::default()));
        assert_eq!(assumed(&documents), Some(voxel));
        // One of this window takes precedence.
        let newer = ObjectDiameter { voxel: [3.0, 1.0, 1.0], ..diameter };
        show(&mut documents, JobOutput::Predicted(Predicted { diameter: Some(newer), ..predicted.clone() }));
        show(&mut documents, found(predicted));
        assert_eq!(assumed(&documents), Some([3.0, 1.0, 1.0]));
    }

    #[test]
    fn saved_results_are_shown_again_in_place_of_a_preview_whose_options_are_discarded() {
        let folder = tempfile::tempdir().unwrap();
        let display = display();
        let (mut documents, id) = opened(folder.path(), display.settings());
        let (mut jobs, corrections) = (Jobs::new(None, None, None, &no_wake()), Corrections::new(&no_wake()));
        let labels = folder.path().join("labels-1.u32");
        std::fs::write(&labels, [0; 4 * 24]).unwrap();
        let report = SegmentReport {
            objects: 0,
            labels,
            format: LabelFormat::RawU32,
            shape_zyx: [2, 3, 4],
            voxel_um: [1.0; 3],
            table: None,
            notes: Vec::new(),
            seconds: 0.0,
        };
        let output = JobOutput::Preview(0, Box::new(report.clone()));
        let _ = documents.apply(DocumentsAction::Show { document: id, output: Box::new(output) });
        let array = LabelArray::open(&report.labels, report.shape_zyx).map_err(|e| e.to_string());
        documents.preview_opened(id, &report, array);
        let searches = |jobs: &mut Jobs| {
            let is_search = |effect: &Effect| match effect {
                Effect::Disk(DiskEffect::Document { document, effect: DocumentEffect::FindResults(_) }) => {
                    *document == id
                }
                _ => false,
            };
            let effects = jobs.apply(JobsAction::ForgetRefined, &documents, &corrections, &display);
            effects.into_iter().filter(is_search).count()
        };
        assert_eq!(searches(&mut jobs), 0);
        jobs.objects.change(id, 0, SegmentOptions::default());
        assert_eq!(searches(&mut jobs), 1);
    }

    #[test]
    fn labels_are_measured_at_their_time_point_although_another_one_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let display = display();
        let (mut documents, id) = opened(folder.path(), display.settings());
        let _ = documents.apply(DocumentsAction::View(ViewAction::StepTime(2)));
        assert_eq!(documents.get(id).unwrap().time, 2);
        let mut jobs = Jobs::new(None, None, None, &no_wake());
        for time in [0, 1] {
            let table = folder.path().join(format!("stack_t{time}_corrected_objects.csv"));
            let labels = folder.path().join(format!("stack_t{time}_corrected_labels.tif"));
            let target = Ok(Some(TableTarget { table, is_own: false }));
            let _ = jobs.measurement_ready(id, labels, Some(time), target, &documents, &display);
        }
        let time_of = |known: &RepeatableJob| match known {
            RepeatableJob::Measure { job, .. } => Some(job.time),
            RepeatableJob::Predict { .. } | RepeatableJob::Segment { .. } => None,
        };
        let times: Vec<usize> = jobs.work.active_jobs().filter_map(|(_, known)| time_of(known)).collect();
        assert_eq!(times, [0, 1]);
    }
}
