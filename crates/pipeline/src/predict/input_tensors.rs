//! The images that the input tensors of a model are read from: channels of the stack, or of other files on the same grid.

use super::resolve::channel_name;
use super::{ChannelRef, PredictJob, PredictOptions};
use crate::model_inputs::{ModelInput, SAME_VOXEL};
use crate::provenance::{InputRecord, InputTensorRecord};
use crate::stack::axis_index::{C, S, T, X, Y, Z};
use crate::stack::{Extents, channels_text};
use crate::{JobError, Model};
use cytoscope_formats::{
    Channel, DerivedPixels, DerivedSpec, FormatError, Image, OpenOptions, STACK_EXTENSIONS, find_channels,
    is_zarr_folder,
};
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::INPUT;
use cytoscope_storage::target::resolved;
use cytoscope_volume::{DType, Region, Samples, VoxelSize};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The image of an input tensor. As text `NAME=FILE`, `NAME=FILE:CHANNEL` or, for channels of the stack, `NAME=CHANNEL`;
/// several channels are separated by commas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputTensor {
    /// Id of the tensor in the model.
    pub name: String,
    /// The file with the image, or a folder that contains a file of the same name as each stack; `None` for the stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// The channels of the image, in the order of the tensor's; if empty, those of the tensor's name, or all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<ChannelRef>,
}

impl FromStr for InputTensor {
    type Err = String;

    /// Whether a text is a file or a channel depends on whether such a file exists.
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').map(|(name, source)| (name.trim(), source.trim()));
        let Some((name, source)) = parts.filter(|(name, source)| !name.is_empty() && !source.is_empty()) else {
            return Err(format!(
                "invalid input \"{text}\": expected NAME=FILE, NAME=FILE:CHANNEL or NAME=CHANNEL, with the name of an input of \
                 the model"
            ));
        };
        let tensor = |file: Option<&str>, channels: &str| {
            let listed = channels.split(',').map(str::trim).filter(|channel| !channel.is_empty());
            // Every text is a number or a name, so none is left out.
            let channels = listed.filter_map(|channel| channel.parse::<ChannelRef>().ok()).collect();
            Self { name: name.to_owned(), file: file.map(PathBuf::from), channels }
        };
        if Path::new(source).exists() {
            return Ok(tensor(Some(source), ""));
        }
        let split = source.rsplit_once(':').filter(|(file, _)| Path::new(file).exists());
        if let Some((file, channels)) = split {
            return Ok(tensor(Some(file), channels));
        }
        let lower = source.to_lowercase();
        let is_file_name = STACK_EXTENSIONS.iter().any(|extension| lower.ends_with(&format!(".{extension}")));
        if is_file_name || source.contains(['/', '\\']) {
            return Err(format!("the file \"{source}\" of the input {name} does not exist: check the path"));
        }
        Ok(tensor(None, source))
    }
}

/// A channel of another file.
#[derive(Debug, Clone)]
struct AddedChannel {
    image: Image,
    /// Path of the file as given.
    file: PathBuf,
    /// Number of the channel in the file.
    channel: usize,
    /// Name of the channel, or else of the input tensor.
    name: String,
}

/// The images of the input tensors of a prediction.
pub(crate) struct TensorSources {
    /// The stack; its channels are followed by those of other files.
    pub image: Image,
    /// The channels of `image` that are the model's inputs; `None` if they are chosen by [`PredictOptions`].
    channels: Option<Vec<usize>>,
    /// Number of channels of the stack alone.
    stack_channels: usize,
    added: Vec<AddedChannel>,
}

/// An image with the channels of a model's input tensors, for [`super::predict_volume`].
#[derive(Debug, Clone)]
pub struct TensorImage {
    /// The image; its channels are followed by those of other files.
    pub image: Image,
    /// The options of the prediction, which choose the channels of all tensors.
    pub options: PredictOptions,
    /// The other files.
    pub files: Vec<PathBuf>,
}

/// Checks that several stacks do not share one file of an input tensor.
///
/// # Errors
/// [`JobError::WrongUse`] with the name of the tensor.
pub fn check_input_files(tensors: &[InputTensor], stacks: usize) -> Result<(), JobError> {
    let is_one = |tensor: &InputTensor| tensor.file.as_deref().is_some_and(|f| !f.is_dir() || is_zarr_folder(f));
    match tensors.iter().find(|tensor| stacks > 1 && is_one(tensor)) {
        None => Ok(()),
        Some(InputTensor { name, file, .. }) => Err(JobError::wrong_use_with(
            format!(
                "the input {name} is read from one file, {}, but {stacks} stacks are given",
                file.as_deref().unwrap_or(Path::new("")).display()
            ),
            "give a folder with a file of the same name as each stack",
        )),
    }
}

impl PredictJob {
    /// Checks the options, and the images of input tensors, before any stack is opened; `stacks` are predicted.
    ///
    /// # Errors
    /// [`JobError::WrongUse`] for options that are invalid or conflict, a name that the model does not have, or one file for
    /// several stacks.
    pub fn check_inputs(&self, model: &Model, stacks: usize) -> Result<(), JobError> {
        self.check()?;
        self.check_input_tensors(model, stacks)
    }

    /// Returns an image that was opened with the images of the model's input tensors, and the options of its prediction. Other
    /// files are opened alone, not with the others of a numbered series.
    ///
    /// # Errors
    /// [`JobError::Mismatch`] if a file or channel is missing, or a file is not on the image's grid.
    pub fn with_input_tensors(&self, model: &Model, image: Image) -> Result<TensorImage, JobError> {
        let input = image.meta().path.clone();
        let alone = OpenOptions { single_file: true, ..self.open_options() };
        let sources = sources_opened(self, &alone, model, &input, image)?;
        let (options, files) = (sources.options(self.options()), sources.files());
        Ok(TensorImage { image: sources.image, options, files })
    }

    /// Checks the images of input tensors before any stack is opened; `stacks` are predicted.
    ///
    /// # Errors
    /// [`JobError::WrongUse`] for a name that the model does not have, or one file for several stacks.
    pub(crate) fn check_input_tensors(&self, model: &Model, stacks: usize) -> Result<(), JobError> {
        let ids: Vec<&str> = model.inputs.iter().map(|input| input.id.as_str()).collect();
        let mut seen = BTreeSet::new();
        for InputTensor { name, .. } in &self.input_tensors {
            if !ids.contains(&name.as_str()) {
                let known = ids.join(", ");
                return Err(JobError::wrong_use(format!("the model has no input \"{name}\": its inputs are {known}")));
            }
            if !seen.insert(name) {
                let problem = format!("the input {name} is given several times");
                return Err(JobError::wrong_use_with(problem, "give one image"));
            }
        }
        check_input_files(&self.input_tensors, stacks)
    }

    /// Returns the files that the input tensors of these stacks are read from, besides the stacks.
    pub(super) fn tensor_files(&self, stacks: &[PathBuf]) -> Vec<PathBuf> {
        let given = self.input_tensors.iter().filter_map(|tensor| tensor.file.as_deref());
        given.flat_map(|file| stacks.iter().map(move |stack| file_for(file, stack))).collect()
    }
}

/// Finds the images of a model's input tensors for a stack that was opened; only metadata are read.
///
/// # Errors
/// [`JobError::Mismatch`] if a file or channel is missing, or a file is not on the stack's grid.
pub(crate) fn sources(job: &PredictJob, model: &Model, input: &Path, image: Image) -> Result<TensorSources, JobError> {
    sources_opened(job, &job.open_options(), model, input, image)
}

/// Same as [`sources`]; other files are opened with these options.
fn sources_opened(
    job: &PredictJob,
    open_options: &OpenOptions,
    model: &Model,
    input: &Path,
    image: Image,
) -> Result<TensorSources, JobError> {
    let stack_channels = Extents::of(image.meta()).channels;
    if job.input_tensors.is_empty() {
        return Ok(TensorSources { image, channels: None, stack_channels, added: Vec::new() });
    }
    let names = channel_names(&image);
    let mut added: Vec<AddedChannel> = Vec::new();
    let mut found: Vec<Option<Vec<usize>>> = Vec::with_capacity(model.inputs.len());
    for tensor in &model.inputs {
        let Some(given) = job.input_tensors.iter().find(|given| given.name == tensor.id) else {
            found.push(named_channels(tensor, &names));
            continue;
        };
        let file = given.file.as_deref().map(|file| file_for(file, input));
        match file.filter(|file| resolved(file) != resolved(input)) {
            None => found.push(Some(channels_in(tensor, &names, &given.channels, input)?)),
            Some(file) => {
                let other = open_on_grid(job, open_options, &file, input, &image)?;
                let channels = channels_in(tensor, &channel_names(&other), &given.channels, &file)?;
                let first = stack_channels + added.len();
                found.push(Some((first..first + channels.len()).collect()));
                added.extend(channels.into_iter().map(|channel| added_channel(&other, &file, channel, tensor)));
            }
        }
    }
    let channels = Some(complete(model, found, names.len(), input)?);
    let image = if added.is_empty() { image } else { with_channels(&image, &added)? };
    Ok(TensorSources { image, channels, stack_channels, added })
}

impl TensorSources {
    /// Returns the files that are read besides those of the stack, sorted.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = self.added.iter().flat_map(|added| added.image.files()).collect();
        // Several channels may be read from one file.
        files.sort();
        files.dedup();
        files
    }

    /// Returns options with the channels of the input tensors.
    pub(crate) fn options(&self, options: PredictOptions) -> PredictOptions {
        match &self.channels {
            None => options,
            Some(channels) => {
                let channels = channels.iter().copied().map(ChannelRef::Index).collect();
                PredictOptions { channel: None, channels, ..options }
            }
        }
    }

    /// Returns the file and the channels of each input tensor, given the channels of all; none if the only input tensor is
    /// read from the stack. `input` is the path of the stack.
    ///
    /// # Errors
    /// [`JobError`] if a file cannot be read.
    pub(super) fn records(
        &self,
        model: &Model,
        channels: &[usize],
        input: &Path,
    ) -> Result<Vec<InputTensorRecord>, JobError> {
        if model.inputs.len() < 2 && self.added.is_empty() {
            return Ok(Vec::new());
        }
        let added = |channel: usize| channel.checked_sub(self.stack_channels).and_then(|at| self.added.get(at));
        let record = |(tensor, channels): (&ModelInput, &[usize])| -> Result<InputTensorRecord, JobError> {
            // All channels of a tensor are those of one file.
            let other = channels.first().and_then(|channel| added(*channel));
            let file = other.map_or(input, |other| other.file.as_path());
            let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
            let name = |channel: &usize| channel_name(self.image.meta(), *channel);
            Ok(InputTensorRecord {
                name: tensor.id.clone(),
                file: InputRecord::sampled(&absolute).map_err(|error| JobError::unreadable(file, error))?,
                channels: channels.iter().map(|c| added(*c).map_or(*c, |added| added.channel)).collect(),
                channel_names: channels.iter().map(name).collect(),
            })
        };
        model.inputs_with(channels).map(record).collect()
    }
}

/// Returns the file of a stack for an input tensor: the given file, or the file of the same name in the given folder.
fn file_for(given: &Path, stack: &Path) -> PathBuf {
    match stack.file_name().filter(|_| given.is_dir() && !is_zarr_folder(given)) {
        Some(name) => given.join(name),
        None => given.to_owned(),
    }
}

/// Returns the names of an image's channels.
fn channel_names(image: &Image) -> Vec<String> {
    let channels = Extents::of(image.meta()).channels;
    (0..channels).map(|channel| channel_name(image.meta(), channel)).collect()
}

/// Returns the channels with the name of an input tensor, or with those of its channels; `None` if there are none.
fn named_channels(tensor: &ModelInput, names: &[String]) -> Option<Vec<usize>> {
    let find = |wanted: &[String]| {
        let wanted: Vec<ChannelRef> = wanted.iter().cloned().map(ChannelRef::Name).collect();
        find_channels(&wanted, names).ok().filter(|found| found.len() == tensor.channels)
    };
    // Names such as `channel0` stand for a number, also in images without names.
    let is_number = |name: &String| {
        let number = name.trim().strip_prefix("channel");
        number.is_some_and(|number| number.chars().all(|c| c.is_ascii_digit() || c == '_'))
    };
    let by_id = find(std::slice::from_ref(&tensor.id));
    by_id.or_else(|| if tensor.channel_names.iter().any(is_number) { None } else { find(&tensor.channel_names) })
}

/// Returns the channels of an image for an input tensor: the chosen ones, those of its name, or all if their number fits.
fn channels_in(
    tensor: &ModelInput,
    names: &[String],
    chosen: &[ChannelRef],
    file: &Path,
) -> Result<Vec<usize>, JobError> {
    let ModelInput { id, channels: needed, .. } = tensor;
    let mismatch = |problem: String, next_step: Message| JobError::Mismatch {
        path: file.to_owned(),
        problem: problem.into(),
        next_step,
    };
    let advice = || message!("give {needed} with {INPUT} {id}=FILE:CHANNEL or {id}=CHANNEL, separated by commas");
    if !chosen.is_empty() {
        let found = find_channels(chosen, names).map_err(|(problem, next_step)| mismatch(problem, next_step.into()))?;
        if found.len() == *needed {
            return Ok(found);
        }
        let problem = format!("the input {id} requires {}, not {}", channels_text(*needed), found.len());
        return Err(mismatch(problem, advice()));
    }
    let all = || (names.len() == *needed).then(|| (0..names.len()).collect::<Vec<usize>>());
    named_channels(tensor, names).or_else(all).ok_or_else(|| {
        let problem = format!(
            "the input {id} requires {}, but the image has {} ({}), none of which is named {id}",
            channels_text(*needed),
            names.len(),
            names.join(", ")
        );
        mismatch(problem, advice())
    })
}

/// Returns the channels of all input tensors. If one of them has none, it gets the remaining ones of the stack's `available`
/// channels, provided that their number fits.
fn complete(
    model: &Model,
    found: Vec<Option<Vec<usize>>>,
    available: usize,
    input: &Path,
) -> Result<Vec<usize>, JobError> {
    let used: BTreeSet<usize> = found.iter().flatten().flatten().copied().collect();
    let rest: Vec<usize> = (0..available).filter(|channel| !used.contains(channel)).collect();
    let is_only_one = found.iter().filter(|channels| channels.is_none()).count() == 1;
    let mut all = Vec::with_capacity(model.input_channels);
    for (tensor, channels) in model.inputs.iter().zip(found) {
        match channels {
            Some(channels) => all.extend(channels),
            None if is_only_one && rest.len() == tensor.channels => all.extend(rest.iter().copied()),
            None => {
                let id = &tensor.id;
                return Err(JobError::Mismatch {
                    path: input.to_owned(),
                    problem: format!("it has no channel named {id}, as the model's input is").into(),
                    next_step: message!("give its image with {INPUT} {id}=FILE or {INPUT} {id}=CHANNEL"),
                });
            }
        }
    }
    Ok(all)
}

fn added_channel(image: &Image, file: &Path, channel: usize, tensor: &ModelInput) -> AddedChannel {
    let stated = image.meta().channels.get(channel).map(|c| c.name.trim()).filter(|name| !name.is_empty());
    let default_name = || if tensor.channels == 1 { tensor.id.clone() } else { format!("{} {channel}", tensor.id) };
    let name = stated.map_or_else(default_name, str::to_owned);
    AddedChannel { image: image.clone(), file: file.to_owned(), channel, name }
}

/// Opens the file of an input tensor, which must have the grid of the stack `image` at `input`.
fn open_on_grid(
    job: &PredictJob,
    open_options: &OpenOptions,
    file: &Path,
    input: &Path,
    image: &Image,
) -> Result<Image, JobError> {
    std::fs::metadata(file).map_err(|error| JobError::unreadable(file, error))?;
    let other = job.series.open_or_only(file, open_options)?;
    let differ = |found: String, expected: String| JobError::Mismatch {
        path: file.to_owned(),
        problem: format!("it has {found}, but the stack {} has {expected}", input.display()).into(),
        next_step: "give images of the same field of view with the same shape and voxel size".into(),
    };
    let (required, found) = (Extents::of(image.meta()), Extents::of(other.meta()));
    if required.zyx != found.zyx {
        let text = |[z, y, x]: [usize; 3]| format!("{z} × {y} × {x} voxels (Z, Y, X)");
        return Err(differ(text(found.zyx), text(required.zyx)));
    }
    if required.times != found.times {
        return Err(differ(format!("{} time points", found.times), required.times.to_string()));
    }
    let (required, found) = (image.meta().voxel_size_um, other.meta().voxel_size_um);
    let stated = |size: VoxelSize| [size.z, size.y, size.x].map(|um| um.filter(|um| um.is_finite() && *um > 0.0));
    let (required, found) = (stated(required), stated(found));
    let is_other = |(a, b): (&Option<f64>, &Option<f64>)| {
        a.zip(*b).is_some_and(|(a, b): (f64, f64)| (a / b - 1.0).abs() > SAME_VOXEL)
    };
    // A voxel size that the user gives applies to all images.
    if job.voxel_um.is_none() && job.voxel_axes_um.is_unknown() && required.iter().zip(&found).any(is_other) {
        let text = |size: [Option<f64>; 3]| {
            let [z, y, x] = size.map(|um| um.map_or_else(|| "unknown".to_owned(), |um| um.to_string()));
            format!("a voxel size of {z} × {y} × {x} µm (Z, Y, X)")
        };
        return Err(differ(text(found), text(required)));
    }
    Ok(other)
}

/// Returns the stack with the channels of other files after its own, as 32-bit floats.
fn with_channels(image: &Image, added: &[AddedChannel]) -> Result<Image, JobError> {
    let meta = image.meta();
    let Extents { times, zyx: [z, y, x], channels: stack_channels, .. } = Extents::of(meta);
    let mut channels = meta.channels.clone();
    channels.resize(stack_channels, Channel::default());
    channels.extend(added.iter().map(|added| Channel { name: added.name.clone(), color_rgb: None }));
    let spec = DerivedSpec {
        shape_full: [times, z, channels.len(), y, x, 1],
        dtype: DType::F32,
        voxel_size_um: meta.voxel_size_um,
        origin_um: meta.origin_um,
        channels,
        keeps_values: true,
    };
    let added = added.iter().map(|added| (added.image.clone(), added.channel)).collect();
    Ok(image.derived(&spec, Box::new(JoinedChannels { stack_channels, added }))?)
}

/// The pixels of a stack and of the channels of other files.
#[derive(Debug)]
struct JoinedChannels {
    /// Number of channels of the stack.
    stack_channels: usize,
    /// Other images, and their channels.
    added: Vec<(Image, usize)>,
}

impl JoinedChannels {
    /// Reads one channel in the range of a region along T, Z, Y and X.
    fn channel(&self, source: &Image, channel: usize, region: &Region) -> Result<Vec<f32>, FormatError> {
        let added = channel.checked_sub(self.stack_channels).and_then(|at| self.added.get(at));
        let (image, channel) = added.map_or((source, channel), |(image, channel)| (image, *channel));
        let meta = image.meta();
        let samples = Extents::of(meta).samples.max(1);
        let range = |axis: usize| (axis, start(region, axis), size(region, axis));
        let ranges = [range(T), range(Z), (C, channel / samples, 1), range(Y), range(X), (S, channel % samples, 1)];
        let whole = Region::whole(&meta.shape_full);
        let region = ranges.into_iter().fold(whole, |region, (axis, start, size)| region.with_range(axis, start, size));
        Ok(match image.read(0, &region)?.into_samples() {
            Samples::F32(values) => values,
            other => other.to_f32(),
        })
    }
}

fn start(region: &Region, axis: usize) -> usize {
    region.start.get(axis).copied().unwrap_or(0)
}

fn size(region: &Region, axis: usize) -> usize {
    region.size.get(axis).copied().unwrap_or(1)
}

impl DerivedPixels for JoinedChannels {
    fn read(&self, source: &Image, region: &Region) -> Result<Samples, FormatError> {
        let (first, count) = (start(region, C), size(region, C));
        if count == 1 {
            return Ok(Samples::F32(self.channel(source, first, region)?));
        }
        let (planes, plane) = (size(region, T) * size(region, Z), size(region, Y) * size(region, X));
        let mut out = vec![0.0f32; planes * count * plane];
        for channel in 0..count {
            let values = self.channel(source, first + channel, region)?;
            let targets = out.chunks_exact_mut(plane.max(1)).skip(channel).step_by(count.max(1));
            targets.zip(values.chunks_exact(plane.max(1))).for_each(|(to, from)| to.copy_from_slice(from));
        }
        Ok(Samples::F32(out))
    }

    fn files(&self) -> Vec<PathBuf> {
        self.added.iter().flat_map(|(image, _)| image.files()).collect()
    }

    fn images(&self) -> Vec<&Image> {
        self.added.iter().map(|(image, _)| image).collect()
    }
}
