//! Evaluation of a model: the images of pairs are predicted in memory and scored against their ground truth, without writing
//! results.

use crate::stacks::{channels_array, is_whole_file, joined_image, read_channels, read_samples, voxel_um};
use crate::{predicted_targets, problems};
use cytoscope_engine::{DeviceRequest, Precision};
use cytoscope_formats::{ChannelRef, Image, OpenOptions, image_in_memory, open};
use cytoscope_model_package::refuse_inside_package;
use cytoscope_pipeline::devices::{Devices, SelectedEngine};
use cytoscope_pipeline::job_record::{DeviceRecord, JobKind, PendingRecord, Recordable, recorded};
use cytoscope_pipeline::predict::{InputTensor, TensorImage, channel_by_name};
use cytoscope_pipeline::results::check_json_file;
use cytoscope_pipeline::{
    Context, DiameterRequest, EvaluateReport, Evaluation, Event, Extents, JobError, Model, ModelTask, Note, PredictJob,
    PredictOptions, ProgressStage, ScoredImage, VolumeOutputs, find_model, predict_volume_on_devices, records_before,
    refuse_changed,
};
use cytoscope_storage::Overwrite;
use cytoscope_storage::json::write_checked_json;
use cytoscope_storage::message;
use cytoscope_storage::setting::{CHANNEL, CHANNELS, INPUT, PRED, TRUTH, TRUTH_CHANNEL};
use cytoscope_storage::target::{check_extension, check_writable};
use cytoscope_training_data::{ImageRef, Pair, TrainingTask, find_pairs};
use cytoscope_volume::{Array, Axes, VoxelSize};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Scores a model on pairs of images and ground truth, as [`cytoscope_pipeline::EvaluateJob`] scores the results of a
/// [`cytoscope_pipeline::PredictJob`] with the same options.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvaluateModelJob {
    /// Path of a package, or name of an installed model.
    pub model: String,
    /// Folder or table (`.csv`) of the pairs, in one of the layouts of training data.
    pub data: PathBuf,
    /// The device to run on.
    #[serde(default)]
    pub device: DeviceRequest,
    /// Why the CPU computes: the requested device has failed in an earlier run of the same job. The report says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_because: Option<String>,
    /// Precision; `None` selects the best one of the device for this model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
    /// Median diameter of the objects, for models with a nominal diameter.
    #[serde(default)]
    pub diameter: DiameterRequest,
    /// Channel of the images to predict, as [`PredictOptions::channel`], unless the data specify a single channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<usize>,
    /// Channels of the images to predict, as [`PredictOptions::channels`], unless the data specify a single channel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<ChannelRef>,
    /// Channel that a recorded run has read because of its name, although none was chosen. A rerun reads it, even if another one
    /// would be chosen by name. Only records state it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel_by_name: Option<usize>,
    /// Images of the model's input tensors, as [`PredictJob::input_tensors`], unless the data specify a single channel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub input_tensors: Vec<InputTensor>,
    /// True objects with fewer voxels than this, and predicted objects that mostly overlap them, are ignored.
    #[serde(default)]
    pub ignore_below_voxels: u64,
    /// Label of voxels of the ground truth that are not annotated and do not count; by default that of the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignore_label: Option<i64>,
    /// Voxel size Z, Y, X in µm, to use instead of that of the pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub voxel_um: Option<[f64; 3]>,
    /// File (`.json`) that the report is also written to, with its provenance record beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out: Option<PathBuf>,
    /// Whether to overwrite an existing file at `out`.
    #[serde(default)]
    pub overwrite: Overwrite,
}

impl EvaluateModelJob {
    /// Runs the job.
    ///
    /// # Errors
    /// [`JobError`] if the model, the device or the data cannot be used, an image cannot be predicted, the shapes of a pair
    /// differ, a file changes while the model is evaluated, the report cannot be written, or the job is canceled.
    pub fn run(&self, context: &Context, devices: &Devices) -> Result<EvaluateReport, JobError> {
        let Some(out) = &self.out else { return self.evaluate(context, devices, None) };
        check_extension(out, &["json"])?;
        // The list of a folder in the layout of nnU-Net.
        let listing = self.data.join("dataset.json");
        let read: Vec<&Path> = self.inputs().into_iter().chain([listing.as_path()]).collect();
        check_json_file(out, &read, self.overwrite)?;
        refuse_inside_package(out, &[&find_model(&self.model)?])?;
        check_writable(out)?;
        recorded(self, context, |record| {
            let report = self.evaluate(context, devices, Some(record))?;
            if let Some(aside) = write_checked_json(out, &report.with_absolute_paths(), self.overwrite)? {
                context.note(format!(
                    "a file was created at {} during the job; it was moved to {}",
                    out.display(),
                    aside.display()
                ));
            }
            Ok(report)
        })
    }

    /// Refuses a single image as the data: its ground truth is missing.
    fn refuse_single_image(&self) -> Result<(), JobError> {
        let is_list = self.data.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv"))
            || self.data.file_name().is_some_and(|name| name == "dataset.json");
        if is_list || !self.data.is_file() {
            return Ok(());
        }
        Err(JobError::Mismatch {
            path: self.data.clone(),
            problem: "this is a single file, but scores need pairs of an image and its ground truth".into(),
            next_step: message!(
                "give the folder with both, or a table (.csv) of the files; to score a prediction that was made before, \
                 give {PRED} and {TRUTH}"
            ),
        })
    }

    fn evaluate(
        &self,
        context: &Context,
        devices: &Devices,
        record: Option<&mut PendingRecord<Self>>,
    ) -> Result<EvaluateReport, JobError> {
        let model = Model::load(&self.model)?;
        self.refuse_single_image()?;
        let dataset = find_pairs(&self.data, training_task(&model))
            .map_err(|error| problems::search_failed(context, &self.data, error))?;
        problems::report(context, &self.data, &dataset.problems, None);
        self.prediction(self.voxel_um).check_inputs(&model, dataset.pairs.len())?;
        let options =
            PredictOptions { precision: self.precision, diameter: self.diameter, ..PredictOptions::default() };
        let mut engine = devices.for_model(context, &model, self.device, &options)?;
        engine.report(context);
        let mut precision = self.precision;
        let files = dataset.pairs.iter().flat_map(|pair| pair.images().chain(pair.targets()));
        let files: BTreeSet<&PathBuf> = files.map(|image| &image.path).collect();
        let mut read = records_before(files.iter().copied());
        let mut tensor_files: BTreeSet<PathBuf> = BTreeSet::new();
        let mut by_name: BTreeSet<usize> = BTreeSet::new();
        let mut evaluation = Evaluation::new(context, self.ignore_below_voxels)
            .ignoring_label(self.ignore_label.or(dataset.ignore_label));
        if let Some(because) = &self.cpu_because {
            evaluation.add_note(format!("the CPU computed the predictions, because {because}"));
        }
        if self.chooses_channels() && dataset.pairs.iter().all(has_only_channel) {
            evaluation.add_note(message!(
                "the data specify the only channel of each image, so {CHANNEL}, {CHANNELS} and {INPUT} have no effect"
            ));
        }
        let truths = dataset.pairs.iter().flat_map(Pair::targets).map(|image| image.path.as_path());
        let truth_note = predicted_targets::truth_note(context, truths)?;
        truth_note.into_iter().for_each(|note| evaluation.add_note(note));
        let count = dataset.pairs.len();
        for (index, pair) in dataset.pairs.iter().enumerate() {
            context.check()?;
            let input = pair.image.path.clone();
            context.emit(&Event::Started { input: input.clone(), index, count });
            let opened = self.with_recorded_channel(&model, self.open_image(&model, pair)?);
            by_name.extend(chosen_by_name(&model, &opened));
            read.extend(records_before(&opened.files));
            tensor_files.extend(opened.files.iter().cloned());
            precision = Some(self.score(context, devices, (&model, &mut engine), (pair, opened), &mut evaluation)?);
            context.emit(&Event::Finished { input, outputs: Vec::new() });
        }
        refuse_changed(&read)?;
        if let Some(record) = record {
            record.add_inputs(files.into_iter().chain(&tensor_files).map(PathBuf::as_path));
            if let Some(precision) = precision {
                record.ran_on(engine.engine().device(), precision);
            }
            // A rerun must not choose others.
            let job = record.job_mut();
            (job.device, job.precision) = (DeviceRequest::Device(engine.engine().device().id), precision);
            job.cpu_because = None;
            job.channel_by_name = common_channel(&by_name).or(job.channel_by_name);
        }
        let device = engine.engine().device();
        let device = precision.map(|_| DeviceRecord { id: device.id, name: device.name.clone() });
        Ok(EvaluateReport { device, precision, ..evaluation.finish(Vec::new()) })
    }

    /// Predicts the image of a pair and scores it; returns the precision in which the network ran.
    fn score(
        &self,
        context: &Context,
        devices: &Devices,
        (model, engine): (&Model, &mut SelectedEngine),
        (pair, opened): (&Pair, TensorImage),
        evaluation: &mut Evaluation<'_>,
    ) -> Result<Precision, JobError> {
        let are_labels = model.task == ModelTask::Segmentation;
        let TensorImage { image, options, .. } = opened;
        let outputs = if are_labels { VolumeOutputs::Labels } else { VolumeOutputs::Maps };
        let mut predicted = predict_volume_on_devices(context, devices, engine, model, &image, &options, outputs)?;
        let (precision, notes) = (predicted.precision, std::mem::take(&mut predicted.notes));
        evaluation.add_traffic(predicted.traffic);
        let mut truth = self.open_truth(pair, predicted.shape_zyx)?;
        let given = self.voxel_um.or(pair.voxel_um).map(size_of);
        let voxel_size = given.unwrap_or(image.meta().voxel_size_um);
        let predicted = predicted.into_image(model, &pair.image.path, voxel_size)?;
        if let Some(given) = given {
            truth = truth.with_voxel_size(given);
        }
        let side =
            |path, image, are_labels| ScoredImage { path, image, channel: None, option: TRUTH_CHANNEL, are_labels };
        let prediction = side(pair.image.path.as_path(), &predicted, false);
        let scored_truth = side(pair.target.path.as_path(), &truth, are_labels);
        // Comparing large images reports no progress of its own.
        context.report_alive(ProgressStage::Evaluate, || evaluation.score(prediction, scored_truth))?;
        let path = std::path::absolute(&pair.image.path).unwrap_or_else(|_| pair.image.path.clone());
        for Note { level, message } in notes {
            evaluation.add_note(Note { level, message: message!("{}: {message}", path.display()) });
        }
        Ok(precision)
    }

    fn chooses_channels(&self) -> bool {
        self.channel.is_some() || !self.channels.is_empty() || !self.input_tensors.is_empty()
    }

    /// Returns the options of the predictions, with this voxel size.
    fn prediction(&self, voxel_um: Option<[f64; 3]>) -> PredictJob {
        PredictJob {
            precision: self.precision,
            diameter: self.diameter,
            channel: self.channel,
            channels: self.channels.clone(),
            input_tensors: self.input_tensors.clone(),
            voxel_um,
            ..PredictJob::default()
        }
    }

    /// Returns an image that contains only the image of a pair, with the options that its prediction needs. The job chooses
    /// among the channels of the file, or among those that the data state; by default, the model reads all of these.
    fn open_image(&self, model: &Model, pair: &Pair) -> Result<TensorImage, JobError> {
        let given = self.voxel_um.or(pair.voxel_um);
        if pair.image.channel.is_none() && pair.more_images.is_empty() {
            return self.prediction(given).with_input_tensors(model, image_with_channels(pair, given)?);
        }
        let count = pair.images().count();
        let image = read_image(pair, pair.images(), count, given)?;
        if self.chooses_channels() && !has_only_channel(pair) {
            return self.prediction(given).with_input_tensors(model, image);
        }
        // The image in memory has these channels only, without their names.
        let channels = if count > 1 { (0..count).map(ChannelRef::Index).collect() } else { Vec::new() };
        let options = PredictOptions { channel: None, channels, ..self.prediction(given).options() };
        Ok(TensorImage { image, options, files: Vec::new() })
    }

    /// Chooses the channel that the recorded run has read because of its name, if another one would be read now.
    fn with_recorded_channel(&self, model: &Model, mut opened: TensorImage) -> TensorImage {
        let Some(recorded) = self.channel_by_name else { return opened };
        let (meta, options) = (opened.image.meta(), &opened.options);
        let is_open = options.channel.is_none() && options.channels.is_empty();
        let has_it = Extents::of(meta).channels > recorded;
        // The note that it was chosen by name is a part of the report.
        if is_open && has_it && channel_by_name(model, meta, options) != Some(recorded) {
            opened.options.channel = Some(recorded);
        }
        opened
    }

    /// Returns the ground truth of a pair whose image has this shape.
    fn open_truth(&self, pair: &Pair, shape_zyx: [usize; 3]) -> Result<Image, JobError> {
        let path = &pair.target.path;
        let stated_size = |pair: &Pair| Ok::<_, JobError>(voxel_um(pair)?.map_or_else(VoxelSize::default, size_of));
        if !pair.more_targets.is_empty() {
            let count = pair.targets().count();
            let array = channels_array(read_channels(pair.targets(), pair.window)?, count)?;
            return Ok(image_in_memory(path, array, stated_size(pair)?)?);
        }
        if pair.window.is_none() && is_whole_file(&pair.target) {
            return open_alone(&pair.target, Some(shape_zyx));
        }
        let (samples, shape) = read_samples(&pair.target, pair.window)?;
        let array = Array::new(Axes::zyx(), shape.to_vec(), samples)?;
        Ok(image_in_memory(path, array, stated_size(pair)?)?)
    }
}

/// Returns the task of training data that a model is scored on.
fn training_task(model: &Model) -> TrainingTask {
    match model.task {
        ModelTask::Segmentation => TrainingTask::Segmentation,
        ModelTask::LabelFree => TrainingTask::LabelFree,
    }
}

fn size_of([z, y, x]: [f64; 3]) -> VoxelSize {
    VoxelSize::new_um(z, y, x)
}

/// Returns whether the data state a single channel of a pair's image.
fn has_only_channel(pair: &Pair) -> bool {
    pair.image.channel.is_some() && pair.more_images.is_empty()
}

/// Returns the channel that the model reads because of its name, 0 for any other; `None` if the image has a single one.
fn chosen_by_name(model: &Model, opened: &TensorImage) -> Option<usize> {
    let meta = opened.image.meta();
    (Extents::of(meta).channels > 1).then(|| channel_by_name(model, meta, &opened.options).unwrap_or(0))
}

/// Returns the channel that was read of all images because of its name, if it is the same one.
fn common_channel(by_name: &BTreeSet<usize>) -> Option<usize> {
    by_name.first().copied().filter(|channel| by_name.len() == 1 && *channel > 0)
}

/// Returns the image of a pair, whose channel the data do not state, with all channels of its file.
fn image_with_channels(pair: &Pair, given_um: Option<[f64; 3]>) -> Result<Image, JobError> {
    if pair.window.is_none() && is_whole_file(&pair.image) {
        return open_alone(&pair.image, None);
    }
    let file = open(&pair.image.path, &pair.image.open_options())?;
    let count = Extents::of(file.meta()).channels;
    let images: Vec<ImageRef> =
        (0..count).map(|channel| ImageRef { channel: Some(channel), ..pair.image.clone() }).collect();
    let image = match pair.window {
        None => joined_image(&images)?,
        Some(_) => read_image(pair, images.iter(), count, given_um)?,
    };
    Ok(image.with_channels(file.meta().channels.clone()))
}

/// Reads images of the shape of a pair's, limited to its window, as the channels of one image.
fn read_image<'a>(
    pair: &Pair,
    images: impl Iterator<Item = &'a ImageRef>,
    count: usize,
    given_um: Option<[f64; 3]>,
) -> Result<Image, JobError> {
    let array = channels_array(read_channels(images, pair.window)?, count)?;
    let voxel_um = given_um.or(voxel_um(pair)?);
    Ok(image_in_memory(&pair.image.path, array, voxel_um.map_or_else(VoxelSize::default, size_of))?)
}

/// Opens the file of an image that is the only one in it. Regions of interest are drawn in the given shape.
fn open_alone(image: &ImageRef, shape_zyx: Option<[usize; 3]>) -> Result<Image, JobError> {
    Ok(open(&image.path, &OpenOptions { single_file: true, shape_zyx, ..OpenOptions::default() })?)
}

impl Recordable for EvaluateModelJob {
    const KIND: JobKind = JobKind::EvaluateModel;

    fn inputs(&self) -> Vec<&Path> {
        let tensors = self.input_tensors.iter().filter_map(|tensor| tensor.file.as_ref());
        std::iter::once(&self.data).chain(tensors).map(PathBuf::as_path).collect()
    }

    fn outputs(&self) -> Vec<&Path> {
        self.out.iter().map(PathBuf::as_path).collect()
    }

    fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        let tensors = self.input_tensors.iter_mut().filter_map(|tensor| tensor.file.as_mut());
        std::iter::once(&mut self.data).chain(&mut self.out).chain(tensors).collect()
    }

    fn model_mut(&mut self) -> Option<&mut String> {
        Some(&mut self.model)
    }

    cytoscope_pipeline::recordable_setters!(overwrite: overwrite, output: out);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_formats::{Channel, Container, WriteSpec, write_array};
    use cytoscope_training_data::StackWindow;
    use cytoscope_volume::{Region, Samples};
    use serde_json::json;
    use std::io::Write;
    use std::sync::Arc;

    /// Appends a byte to a file, which its reader does not notice.
    fn grow(path: &Path) {
        std::fs::OpenOptions::new().append(true).open(path).unwrap().write_all(b"x").unwrap();
    }

    #[test]
    fn a_file_that_changes_while_a_model_is_evaluated_gives_no_scores() {
        let folder = tempfile::tempdir().unwrap();
        let [image, labels] = ["a.tif", "a_masks.tif"].map(|name| folder.path().join(name));
        let is_inside = |i: usize| (8..16).contains(&(i % 24)) && (8..16).contains(&(i / 24 % 24));
        for (path, inside) in [(&image, 900), (&labels, 1)] {
            let values = (0..6 * 24 * 24).map(|i| if is_inside(i) { inside } else { 0 }).collect();
            let array = Array::new(Axes::zyx(), vec![6, 24, 24], Samples::U16(values)).unwrap();
            write_array(path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        }
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nuclei-dog");
        let job = json!({"model": model, "data": folder.path(), "voxel_um": [1.0, 0.5, 0.5], "diameter": 4.0});
        let job: EvaluateModelJob = serde_json::from_value(job).unwrap();
        for changed in [image, labels] {
            let path = changed.clone();
            let sink = move |event: &Event| {
                if matches!(event, Event::Started { .. }) {
                    grow(&path);
                }
            };
            let context = Context { sink: Arc::new(sink), ..Context::default() };
            let refused = job.run(&context, &Devices::cpu_only()).unwrap_err().to_string();
            let name = changed.display().to_string();
            assert!(refused.contains(&name) && refused.contains("changed while it was read"), "{refused}");
        }
        assert_eq!(job.run(&Context::default(), &Devices::cpu_only()).unwrap().pairs.len(), 1);
    }

    #[test]
    fn the_channel_that_was_read_because_of_its_name_is_recorded_and_read_again() {
        let (data, results) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let is_inside = |i: usize| (8..16).contains(&(i % 24)) && (8..16).contains(&(i / 24 % 24));
        let voxels = |inside: u16| (0..6 * 24 * 24).map(move |i| if is_inside(i) { inside } else { 0 });
        let labels = Array::new(Axes::zyx(), vec![6, 24, 24], Samples::U16(voxels(1).collect())).unwrap();
        write_array(&data.path().join("a_masks.tif"), &labels, &WriteSpec::of(&labels, Container::ImageJ)).unwrap();
        let both = Samples::U16(voxels(5).chain(voxels(900)).collect());
        let image = Array::new("CZYX".parse().unwrap(), vec![2, 6, 24, 24], both).unwrap();
        let path = data.path().join("a.ome.tif");
        let write = |names: [&str; 2]| {
            let channels = names.map(|name| Channel { name: name.to_owned(), color_rgb: None }).to_vec();
            write_array(&path, &image, &WriteSpec { channels, ..WriteSpec::of(&image, Container::OmeTiff) }).unwrap();
        };
        write(["light", "DAPI"]);
        let out = results.path().join("s.json");
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nuclei-dog");
        let voxel_um = [1.0, 0.5, 0.5];
        let job = json!({"model": model, "data": data.path(), "voxel_um": voxel_um, "diameter": 4.0, "out": out});
        let job: EvaluateModelJob = serde_json::from_value(job).unwrap();
        job.run(&Context::default(), &Devices::cpu_only()).unwrap();
        let record = std::fs::read(results.path().join("s.json_provenance.json")).unwrap();
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        let again: EvaluateModelJob = serde_json::from_value(record["job"].clone()).unwrap();
        assert_eq!((again.channel_by_name, again.channel), (Some(1), None));
        // The same choice is made by name; otherwise the recorded channel is read.
        let model = Model::load(&job.model).unwrap();
        let pair = Pair::new("a", &path, data.path().join("a_masks.tif"));
        for (names, chosen) in [(["light", "DAPI"], None), (["DAPI", "light"], Some(1)), (["x", "y"], Some(1))] {
            write(names);
            let opened = again.with_recorded_channel(&model, again.open_image(&model, &pair).unwrap());
            assert_eq!(opened.options.channel, chosen, "{names:?}");
        }
    }

    #[test]
    fn the_channel_of_an_image_that_is_a_part_of_its_file_is_chosen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.ome.tif");
        // The value of a voxel is its number.
        let values = Samples::U16((0..2 * 2 * 3 * 4 * 4).collect());
        let array = Array::new("TCZYX".parse().unwrap(), vec![2, 2, 3, 4, 4], values).unwrap();
        write_array(&path, &array, &WriteSpec::of(&array, Container::OmeTiff)).unwrap();
        let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nuclei-dog");
        let job = json!({"model": package, "data": folder.path(), "channel": 1});
        let job: EvaluateModelJob = serde_json::from_value(job).unwrap();
        let model = Model::load(&job.model).unwrap();
        let mut pair = Pair::new("a", &path, folder.path().join("a_masks.tif"));
        pair.image.time = Some(1);
        let window = StackWindow { start_zyx: [1, 0, 0], size_zyx: [2, 4, 4] };
        for (window, first) in [(None, 144.0), (Some(window), 160.0)] {
            pair.window = window;
            let TensorImage { image, options, .. } = job.open_image(&model, &pair).unwrap();
            assert_eq!((options.channel, Extents::of(image.meta()).channels), (Some(1), 2));
            let second = Region::whole(&image.meta().shape_full).with_range(2, 1, 1);
            assert_eq!(image.read(0, &second).unwrap().into_samples().to_f32().first(), Some(&first));
        }
        // The only channel that the data state is kept.
        pair.image.channel = Some(0);
        let TensorImage { image, options, .. } = job.open_image(&model, &pair).unwrap();
        assert_eq!((options.channel, Extents::of(image.meta()).channels), (None, 1));
        // It is chosen among several that they state.
        pair.more_images.push(ImageRef { channel: Some(1), ..pair.image.clone() });
        let TensorImage { image, options, .. } = job.open_image(&model, &pair).unwrap();
        assert_eq!((options.channel, Extents::of(image.meta()).channels), (Some(1), 2));
    }
}
