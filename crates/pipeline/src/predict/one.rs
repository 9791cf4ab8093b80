//! Prediction of one input file.

use super::files::{Paths, Writers, label_axes, label_writer, map_writer, table_text, write_maps};
use super::grid::{ModelView, model_shape};
use super::infer::{InferenceRun, Seams};
use super::label::{self, Labels};
use super::live::{Live, LiveSink, LiveVolume};
use super::plan::{Budget, Volume, plan};
use super::prediction::{Prediction, Unprocessed};
use super::{InputReport, Output, PredictJob, preview};
use crate::devices::{DeviceChoice, SelectedEngine};
use crate::diameter::{DiameterRequest, DiameterUnit, Estimator, ObjectDiameter, SizeEstimate};
use crate::model::ModelTask;
use crate::ops::{self, Reference, Statistics};
use crate::provenance::{InputRecord, Parts};
use crate::results::{Publication, moved_aside_note};
use crate::spool::Spool;
use crate::stack::{Extents, Stack, StackChannels};
use crate::{Artifact, ArtifactKind, Context, JobError, Model, provenance};
use cytoscope_engine::{CompileOptions, Precision};
use cytoscope_formats::ImageMeta;
use cytoscope_model_package::Processing;
use cytoscope_objects::measure::ObjectRow;
use cytoscope_profile::Stage;
use cytoscope_storage::lock::ResultsLock;
use cytoscope_storage::write::{FinishedFile, write_unpublished};
use cytoscope_volume::{Array, DType, Samples, VoxelSize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Note for stacks with NaN or infinite values.
const NOT_FINITE: &str = "the stack contains values that are NaN or infinite: they are replaced like voxels outside the \
                          stack, and the prediction at these voxels is meaningless";

/// Maximum number of files of an image that are checked for changes.
const MAX_WATCHED_FILES: usize = 4096;

/// Maximum number of objects in a 16-bit label image.
const MAX_U16_LABELS: u32 = u16::MAX as u32;

pub(super) fn predict(
    job: &PredictJob,
    context: &Context,
    model: &Model,
    engine: &SelectedEngine,
    input: &Path,
    stem: &str,
    live: Option<&dyn LiveSink>,
) -> Result<InputReport, JobError> {
    let start = Instant::now();
    context.recorder.mark_memory("start");
    let image = {
        let _span = context.recorder.span(Stage::Read, "open");
        cytoscope_formats::open(input, &job.open_options())?
    };
    let mut meta = image.meta().clone();
    let before = context.recorder.totals();
    let mut notes = Vec::new();
    let first = Stack::new(&image, 0);
    let extents = first.extents;
    let channels = channels(job, model, &meta, &first, input, &mut notes)?;
    let times: Vec<usize> = match job.time {
        Some(t) if t >= extents.times => {
            return Err(JobError::Mismatch {
                path: input.to_owned(),
                problem: format!("time point {t} does not exist, the file has {}", extents.times),
                next_step: format!("give --time 0 to {}", extents.times - 1),
            });
        }
        Some(t) => vec![t],
        None => (0..extents.times).collect(),
    };
    let wanted: BTreeSet<Output> = match (job.outputs.is_empty(), model.task) {
        (false, _) => job.outputs.clone(),
        (true, ModelTask::Segmentation) => [Output::Maps, Output::Labels, Output::Table].into(),
        (true, ModelTask::LabelFree) => [Output::Maps].into(),
    };
    let paths = Paths::new(&job.out, stem, model.task);
    let files: Vec<PathBuf> = std::iter::once(input.to_owned()).chain(image.files()).take(MAX_WATCHED_FILES).collect();
    let watched = |files: &[PathBuf]| files.iter().map(|file| InputRecord::of(file)).collect::<Vec<_>>();
    let read_from = watched(&files);
    let fingerprint = job.fingerprint(model, input, &read_from)?;
    if job.resume
        && let Some(outputs) = provenance::finished(&paths.provenance, &fingerprint)
    {
        context.note(format!("{}: skipped, because its results already exist", input.display()));
        let precision = model.precision_on(engine.choice.id, job.precision);
        return Ok(report_of_resumed(outputs, input, &engine.choice, model, precision));
    }
    let inputs: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    paths.refuse_foreign(&wanted, &inputs, job.overwrite)?;
    let _lock = ResultsLock::acquire(&job.out, stem)?;
    for &time in &times {
        Stack::new(&image, time).check_ends()?;
    }
    let voxel = voxel_size(job, input, &mut meta, model, &mut notes)?;
    let voxel_um = voxel.assumed;
    let precision = model.precision_on(engine.choice.id, job.precision);
    let options = CompileOptions {
        precision,
        threads: job.threads,
        memory_budget_bytes: None,
        recorder: context.recorder.clone(),
        interrupt: context.interrupt(),
    };
    let chains_of = |stack: &Stack| stack.preprocessing(context, model, &channels);
    let mut first_chains = None;
    let diameter = match model.object_diameter_um {
        None => None,
        Some(nominal_um) => {
            let stack = Stack::new(&image, times.first().copied().unwrap_or(0));
            let chains = first_chains.insert(chains_of(&stack)?);
            let estimator = Estimator {
                context,
                model,
                engine: engine.engine(),
                options: &options,
                stack: &stack,
                channels: &channels,
                chains,
                voxel_um: voxel.known,
            };
            let used = resolve_diameter(job.diameter, nominal_um, &estimator)?;
            if used.estimate.is_some() || used.unit == DiameterUnit::Voxels {
                notes.push(used.sentence());
            }
            Some(used)
        }
    };
    let scale = diameter.map_or(1.0, |d| d.scale());
    let segment = model.segment.scaled(scale);
    let model_um = model.voxel_um.map(|v| v.map(|um| um * diameter.map_or(1.0, |d| d.grid_scale(v))));
    let voxel_um = diameter.map_or(voxel_um, |d| d.voxel);
    let grid = model_shape(extents.zyx, voxel.known.or(diameter.map(|_| voxel_um)), model_um);
    if grid != extents.zyx {
        notes.push(format!("resampled to the model's voxel size: from {:?} to {grid:?} voxels", extents.zyx));
    }
    let available = || cytoscope_profile::available_bytes().map_or(4 << 30, |b| b / 4 * 3);
    let budget = Budget {
        bytes: job.memory_budget_bytes.unwrap_or_else(available),
        is_given: job.memory_budget_bytes.is_some(),
    };
    let preview = wanted.contains(&Output::Preview);
    let objects = wanted.contains(&Output::Labels)
        || wanted.contains(&Output::Table)
        || (preview && model.task == ModelTask::Segmentation);
    let volume = Volume {
        shape: grid,
        read_slice_bytes: (first.slice_len() * meta.dtype.size_bytes()) as u64,
        later_bytes: if objects { label::peak_bytes(extents.zyx) } else { 0 },
    };
    let (tile_plan, mut session) = plan(context, model, engine.engine(), &options, &job.tiles, &volume, budget)?;
    let fallbacks = session.report().fallbacks.clone();
    if !fallbacks.is_empty() {
        let names: Vec<String> = fallbacks.iter().map(|f| format!("{} ({})", f.op, f.count)).collect();
        notes.push(format!("operators run by the reference executor, which is slow: {}", names.join(", ")));
    }

    let mut writers = Writers::default();
    if wanted.contains(&Output::Maps) {
        writers.maps = Some(map_writer(&paths.maps, model, &meta, &extents.zyx, times.len())?);
    }
    let mut counts = Vec::new();
    let mut rows: Vec<(usize, Vec<ObjectRow>)> = Vec::new();
    let mut seams = Seams::default();
    let names: Vec<String> = (0..extents.channels).map(|c| channel_name(&meta, c)).collect();
    let all_channels: Vec<usize> = (0..extents.channels).collect();
    let mut labelled: Vec<(Stack, Labels)> = Vec::new();
    let preview_z = preview::middle(extents.zyx[0]);
    let mut preview_prediction: Option<Vec<f32>> = None;
    let mut preview_labels: Option<Vec<u32>> = None;
    for &time in &times {
        let stack = Stack::new(&image, time);
        let chains = match first_chains.take() {
            Some(chains) => chains,
            None => chains_of(&stack)?,
        };
        let mut view = ModelView::new(&stack, &channels, chains, grid);
        let plane = grid[1] * grid[2];
        let mut prediction = Prediction::new(Spool::new(&job.out, plane)?, model.output_channels, grid, extents.zyx);
        let (softmax, later) = match model.postprocessing.as_slice() {
            [Processing::Softmax, rest @ ..] => (true, rest),
            all => (false, all),
        };
        let live = live.map(|sink| {
            let volume = LiveVolume { input, time, channels: model.output_channels, shape_zyx: grid };
            Live::begin(sink, &volume, softmax, later)
        });
        let meter = context.meter("predict", grid.iter().product::<usize>() as u64, "voxels");
        let mut run = InferenceRun { context, model, plan: &tile_plan, session: session.as_mut(), meter, seams, live };
        run.run(&mut view, &mut |z, values| {
            if softmax {
                let mut values = values.to_vec();
                softmax_channels(&mut values, model.output_channels);
                return prediction.put(context, z, &values);
            }
            prediction.put(context, z, values)
        })?;
        seams = run.seams;
        if view.not_finite && !notes.iter().any(|n| n == NOT_FINITE) {
            notes.push(NOT_FINITE.to_owned());
        }
        drop(view);
        context.recorder.mark_memory("predicted");
        postprocess(context, model, &channels, &stack, later, &mut prediction)?;
        if let Some(writer) = &mut writers.maps {
            write_maps(context, writer, &mut prediction, times.len() > 1)?;
        }
        if preview && !objects && preview_prediction.is_none() {
            preview_prediction = Some(prediction.read(context, 0, preview_z..preview_z + 1)?);
        }
        if objects {
            let mut labels = label::label(
                context,
                &mut prediction,
                [model.segment_channel, model.seed_channel],
                voxel_um,
                &segment,
                label::OVERLAP_UM * scale,
                &job.out,
            )?;
            let min_voxels = (segment.min_volume_um3 / voxel_um.iter().product::<f64>()).ceil().max(0.0) as u64;
            labels.filter_objects(context, min_voxels, segment.drop_border)?;
            counts.push(labels.count);
            labelled.push((stack, labels));
        }
    }
    drop(session);
    if objects {
        let max_label = counts.iter().copied().max().unwrap_or(0);
        let dtype = if max_label > MAX_U16_LABELS { DType::U32 } else { DType::U16 };
        let path = if dtype == DType::U16 { &paths.labels } else { &paths.labels_wide };
        if wanted.contains(&Output::Labels) {
            writers.labels = Some(label_writer(path, &meta, &extents.zyx, times.len(), dtype, max_label)?);
        }
        let measure = wanted.contains(&Output::Table);
        for ((stack, labels), time) in labelled.into_iter().zip(&times) {
            let writer = &mut writers.labels;
            let mut z = 0;
            let table = labels.finish(context, &stack, &all_channels, names.clone(), voxel_um, measure, |slice| {
                if preview && z == preview_z && preview_labels.is_none() {
                    preview_labels = Some(slice.to_vec());
                }
                z += 1;
                let Some(writer) = writer else { return Ok(()) };
                let samples = match dtype {
                    DType::U16 => Samples::U16(slice.iter().map(|v| *v as u16).collect()),
                    _ => Samples::U32(slice.to_vec()),
                };
                let shape = if times.len() > 1 {
                    vec![1, 1, extents.zyx[1], extents.zyx[2]]
                } else {
                    vec![1, extents.zyx[1], extents.zyx[2]]
                };
                Ok(writer.write(&Array::new(label_axes(times.len()), shape, samples)?)?)
            })?;
            rows.push((*time, table));
        }
    }
    let span = context.recorder.span(Stage::Write, "finish");
    let mut publication = Publication::default();
    let mut outputs = Vec::new();
    let mut add = |kind, file: FinishedFile| {
        outputs.push(Artifact::new(kind, file.target()));
        publication.add(file);
    };
    if let Some(writer) = writers.maps.take() {
        add(ArtifactKind::of_maps(model.task), writer.finish_unpublished()?);
    }
    if let Some(writer) = writers.labels.take() {
        add(ArtifactKind::Labels, writer.finish_unpublished()?);
    }
    if wanted.contains(&Output::Table) {
        let text = table_text(&rows, &names, extents.times > 1);
        add(ArtifactKind::Table, write_unpublished(&paths.table, text.as_bytes())?);
    }
    if preview {
        let plane = [extents.zyx[1], extents.zyx[2]];
        let time = times.first().copied().unwrap_or(0);
        let channel = channels.first().copied().unwrap_or(0);
        let raw = Stack::new(&image, time).read(context, channel, preview_z..preview_z + 1)?.to_f32();
        let png = match (&preview_labels, &preview_prediction) {
            (Some(labels), _) => Some(preview::outlined(&paths.preview, plane, &raw, labels)?),
            (None, Some(predicted)) => Some(preview::beside(&paths.preview, plane, &raw, predicted)?),
            (None, None) => None,
        };
        if let Some(png) = png {
            add(ArtifactKind::Preview, write_unpublished(&paths.preview, &png)?);
        }
    }
    if let Some((file, change)) =
        read_from.iter().zip(&watched(&files)).find_map(|(then, now)| Some((&then.path, then.change(now)?)))
    {
        return Err(JobError::Mismatch {
            path: file.clone(),
            problem: format!(
                "the file {change}: it changed while it was read, so the prediction would match neither version"
            ),
            next_step: "wait until the file is complete, then predict again".to_owned(),
        });
    }
    if let Some(change) = model.change_on_disk() {
        notes
            .push(format!("the model {change}: this result was made with the model as it was at the start of the job"));
    }
    let records = publication.records()?;
    drop(span);
    context.recorder.mark_memory("end");
    let mut report = InputReport {
        input: input.to_owned(),
        outputs,
        resumed: false,
        shape_zyx: extents.zyx,
        times: times.len(),
        objects: counts,
        device: engine.choice.clone(),
        precision: precision.to_string(),
        diameter,
        segment: objects.then_some(segment),
        plan: tile_plan,
        fallbacks,
        seam_energy: seams.energy(),
        stages: cytoscope_profile::since(&context.recorder.totals(), &before),
        seconds: start.elapsed().as_secs_f64(),
        actual_peak_bytes: cytoscope_profile::peak_resident_bytes(),
        notes,
    };
    // The record is written before the files, so that it lists them even if the process stops in between.
    let input = read_from.into_iter().next().unwrap_or_else(|| InputRecord::of(input));
    let parts = Parts { job, model, input, fingerprint: &fingerprint, report: &report, outputs: records };
    provenance::write(&paths.provenance, parts)?;
    for aside in publication.publish(job.overwrite)? {
        report.notes.push(moved_aside_note(&aside));
    }
    report.outputs.push(Artifact::new(ArtifactKind::Provenance, paths.provenance));
    Ok(report)
}

/// Returns the given diameter, or an estimate.
fn resolve_diameter(
    request: DiameterRequest,
    nominal_um: f64,
    estimator: &Estimator<'_>,
) -> Result<ObjectDiameter, JobError> {
    let unit = if estimator.voxel_um.is_some() { DiameterUnit::Um } else { DiameterUnit::Voxels };
    match (request, estimator.voxel_um) {
        (DiameterRequest::Given(diameter), Some(voxel)) => {
            Ok(ObjectDiameter { diameter, unit, voxel, nominal_um, estimate: None })
        }
        (DiameterRequest::Given(diameter), None) => {
            let SizeEstimate { voxel, .. } = estimator.estimate(nominal_um, Some(diameter))?;
            Ok(ObjectDiameter { diameter, unit, voxel, nominal_um, estimate: None })
        }
        (DiameterRequest::Auto, _) => {
            let SizeEstimate { estimate, voxel } = estimator.estimate(nominal_um, None)?;
            Ok(ObjectDiameter { diameter: estimate.diameter, unit, voxel, nominal_um, estimate: Some(estimate) })
        }
    }
}

/// Returns the object diameter that a prediction of a stack would use.
///
/// # Errors
/// [`JobError::WrongUse`] if the model declares no object diameter; otherwise as for a prediction.
pub(crate) fn object_diameter(
    job: &PredictJob,
    context: &Context,
    model: &Model,
    engine: &SelectedEngine,
    input: &Path,
) -> Result<ObjectDiameter, JobError> {
    let Some(nominal_um) = model.object_diameter_um else {
        return Err(JobError::WrongUse(format!(
            "the model {} declares no object diameter, so none can be estimated; use another model",
            model.name
        )));
    };
    let image = cytoscope_formats::open(input, &job.open_options())?;
    let mut meta = image.meta().clone();
    let time = job.time.unwrap_or(0).min(Extents::of(&meta).times.saturating_sub(1));
    let stack = Stack::new(&image, time);
    let mut notes = Vec::new();
    let channels = channels(job, model, &meta, &stack, input, &mut notes)?;
    stack.check_ends()?;
    let voxel = voxel_size(job, input, &mut meta, model, &mut notes)?;
    notes.into_iter().for_each(|note| context.note(note));
    let options = CompileOptions {
        precision: model.precision_on(engine.choice.id, job.precision),
        threads: job.threads,
        memory_budget_bytes: None,
        recorder: context.recorder.clone(),
        interrupt: context.interrupt(),
    };
    let estimator = Estimator {
        context,
        model,
        engine: engine.engine(),
        options: &options,
        stack: &stack,
        channels: &channels,
        chains: &stack.preprocessing(context, model, &channels)?,
        voxel_um: voxel.known,
    };
    resolve_diameter(job.diameter, nominal_um, &estimator)
}

/// Voxel size of a stack.
pub(crate) struct Voxel {
    /// Voxel size Z, Y, X in µm; `None` if a relevant one is unknown.
    pub known: Option<[f64; 3]>,
    /// The known sizes, with the model's own (or 1 µm) in place of unknown ones. If any is unknown and the model has a
    /// nominal object diameter, 1 for all axes.
    assumed: [f64; 3],
}

/// Refuses an implausible voxel size, with which grids and volumes would be meaningless.
///
/// # Errors
/// [`JobError::Mismatch`] with the unit that was probably meant.
pub(crate) fn check_voxel_size(path: &Path, size: VoxelSize) -> Result<(), JobError> {
    let valid = |v: Option<f64>| v.filter(|v| v.is_finite() && *v > 0.0);
    let known = VoxelSize { z: valid(size.z), y: valid(size.y), x: valid(size.x) };
    known.check().map_err(|error| JobError::Mismatch {
        path: path.to_owned(),
        problem: error.to_string(),
        next_step: "use --voxel-size Z,Y,X, or correct the file".to_owned(),
    })
}

/// Returns the voxel size to use: the job's, the file's, the model's, or 1 µm, in that order.
///
/// # Errors
/// [`JobError::Mismatch`] for an implausible size.
pub(crate) fn voxel_size(
    job: &PredictJob,
    input: &Path,
    meta: &mut ImageMeta,
    model: &Model,
    notes: &mut Vec<String>,
) -> Result<Voxel, JobError> {
    if let Some([z, y, x]) = job.voxel_um {
        meta.voxel_size_um = VoxelSize::new_um(z, y, x);
    }
    check_voxel_size(input, meta.voxel_size_um)?;
    let valid = |v: Option<f64>| v.filter(|v| v.is_finite() && *v > 0.0);
    let size = meta.voxel_size_um;
    let stated = [valid(size.z), valid(size.y), valid(size.x)];
    let flat = Extents::of(meta).zyx[0] == 1;
    let known = stated[1].is_some() && stated[2].is_some() && (flat || stated[0].is_some());
    if !known && model.object_diameter_um.is_some() {
        notes.push(
            "the voxel size in the file is missing or incomplete: lengths are measured in voxels along X (set it with \
             --voxel-size)"
                .to_owned(),
        );
        return Ok(Voxel { known: None, assumed: [1.0; 3] });
    }
    let assumed: [f64; 3] = std::array::from_fn(|a| stated[a].or_else(|| model.voxel_um.map(|m| m[a])).unwrap_or(1.0));
    if !known {
        let from = if model.voxel_um.is_some() { "the model's" } else { "1 µm" };
        let [z, y, x] = assumed;
        notes.push(format!(
            "the voxel size in the file is missing or incomplete: {from} is used in its place, giving {z} × {y} × {x} µm \
             (set it with --voxel-size)"
        ));
    }
    Ok(Voxel { known: known.then_some(assumed), assumed })
}

pub(crate) fn channel_name(meta: &ImageMeta, channel: usize) -> String {
    match meta.channels.get(channel).map(|c| c.name.trim()) {
        Some(name) if !name.is_empty() => name.to_owned(),
        _ => format!("channel{channel}"),
    }
}

/// If a single-slice image has more channels than this, they are probably slices that a program saved as channels.
const MAX_LIKELY_CHANNELS: usize = 4;

/// Returns the channels to use as the model's input.
pub(crate) fn channels(
    job: &PredictJob,
    model: &Model,
    meta: &ImageMeta,
    stack: &Stack,
    input: &Path,
    notes: &mut Vec<String>,
) -> Result<Vec<usize>, JobError> {
    let available = stack.extents.channels;
    let needed = model.input_channels;
    let mismatch =
        |problem: String, next_step: String| JobError::Mismatch { path: input.to_owned(), problem, next_step };
    let first = match job.channel {
        Some(c) => c,
        None if stack.extents.is_rgb() && needed == 1 => {
            return Err(mismatch(
                "this is an RGB image, but the model requires one channel".to_owned(),
                "choose one with --channel 0 (red), 1 (green) or 2 (blue)".to_owned(),
            ));
        }
        None => {
            if available > needed {
                notes.push(format!(
                    "the file has {available} channels; {} is used (choose another with --channel)",
                    channel_name(meta, 0)
                ));
                if stack.extents.zyx[0] == 1 && available > MAX_LIKELY_CHANNELS {
                    notes.push("if these channels are the slices of a stack, use --axes ZYX".to_owned());
                }
            }
            0
        }
    };
    if first.checked_add(needed).is_none_or(|end| end > available) {
        return Err(mismatch(
            format!("the model requires {needed} channel(s) starting at channel {first}, but the file has {available}"),
            format!("give --channel 0 to {}", available.saturating_sub(needed)),
        ));
    }
    Ok((first..first + needed).collect())
}

pub(crate) fn softmax_channels(values: &mut [f32], channels: usize) {
    let voxels = values.len() / channels.max(1);
    for v in 0..voxels {
        let at = |c: usize| c * voxels + v;
        let max = (0..channels).map(|c| values[at(c)]).fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = (0..channels).map(|c| (values[at(c)] - max).exp()).sum();
        (0..channels).for_each(|c| values[at(c)] = (values[at(c)] - max).exp() / sum);
    }
}

fn postprocess(
    context: &Context,
    model: &Model,
    channels: &[usize],
    stack: &Stack,
    steps: &[Processing],
    prediction: &mut Prediction,
) -> Result<(), JobError> {
    let mut input = StackChannels { stack, context, channels };
    let mut references = [Reference { id: &model.input_id, volume: &mut input }];
    let chains = ops::resolve(steps, &mut Unprocessed(prediction), Statistics::Current, &mut references)?;
    prediction.chains = chains.map_err(|step| {
        JobError::model(
            model.name.clone(),
            format!("postprocessing step {step} is not supported (softmax is supported only as the first step)"),
        )
    })?;
    Ok(())
}

fn report_of_resumed(
    outputs: Vec<Artifact>,
    input: &Path,
    engine: &DeviceChoice,
    model: &Model,
    precision: Precision,
) -> InputReport {
    InputReport {
        input: input.to_owned(),
        outputs,
        resumed: true,
        shape_zyx: [0; 3],
        times: 0,
        objects: Vec::new(),
        device: engine.clone(),
        precision: precision.to_string(),
        diameter: None,
        segment: None,
        plan: super::TilePlan {
            tile: [0; 3],
            halo: model.reach.unwrap_or_default(),
            step: model.step,
            blend: if model.reach.is_some() { super::Blend::Crop } else { super::Blend::Gaussian },
            overlap: 0.0,
            stated_peak_bytes: 0,
        },
        fallbacks: Vec::new(),
        seam_energy: None,
        stages: Vec::new(),
        seconds: 0.0,
        actual_peak_bytes: None,
        notes: Vec::new(),
    }
}
