//! Prediction of one input file.

use super::disk_space::{self, StoredOutput};
use super::file_notes::{
    OtherSeries, SliceAlone, absent_chunks_note, first_series_note, orientation_note, reading_notes,
    slices_as_times_note,
};
use super::files::ResultFiles;
use super::input_tensors;
use super::kept::{KeptRecord, KeptRequest, KeptSlices, parts_note};
use super::live::LiveSink;
use super::maps::Inference;
use super::outputs::{Outputs, Written};
use super::plan::{JobMemory, PlannedTiles, plan};
use super::resolve::{Resolved, Selection, outputs_or_default};
use super::{InputReport, Output, PredictJob, zarr};
use crate::devices::{DeviceChoice, SelectedEngine};
use crate::packages::{ASSUMED_NORMALIZATION, is_assumed_normalization, is_undescribed};
use crate::preprocess::{self, PreprocessRecord};
use crate::provenance::{InputTensorRecord, NewRecord};
use crate::results::{FileRecord, moved_aside_note};
use crate::spool::Scratch;
use crate::stack::limit_readers;
use crate::{
    Artifact, ArtifactKind, Certainty, Context, Event, JobError, Model, ModelInput, Note, ObjectDiameter,
    ProgressStage, provenance,
};
use cytoscope_engine::Precision;
use cytoscope_formats::{Image, SeriesChoice};
use cytoscope_profile::{Stage, StageTotal};
use cytoscope_storage::lock::ResultsLock;
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::{DIAMETER, GAUSSIAN_BLEND, OVERLAP};
use cytoscope_storage::{ResultsFolder, counted};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The prediction of one input.
#[derive(Clone, Copy)]
pub(super) struct InputRun<'a> {
    /// The job with the settings that all its inputs share, and the number of this series.
    pub job: &'a PredictJob,
    /// The choice of series of the whole job.
    pub series: &'a SeriesChoice,
    /// Cancellation, progress and spans of the job.
    pub context: &'a Context,
    /// The job's model, loaded.
    pub model: &'a Model,
    /// Path of the input, one of the job's.
    pub input: &'a Path,
    /// Name of the results without their extensions.
    pub stem: &'a str,
    /// Receives finished tiles, if present.
    pub live: Option<&'a dyn LiveSink>,
    /// Whether an earlier attempt of the same run has failed, whose finished slices are continued.
    pub is_later: bool,
}

/// Opens the input.
fn open(run: &InputRun<'_>) -> Result<Image, JobError> {
    let _span = run.context.recorder.span(Stage::Read, "open");
    Ok(run.job.open(run.input)?)
}

/// Returns notes on how an input was read, and on which part of it is predicted.
fn input_notes(run: &InputRun<'_>, image: &Image) -> Vec<Message> {
    let series_note = first_series_note(run.series, image.meta(), "is predicted", OtherSeries::OneOrAll);
    let times_note = slices_as_times_note(run.job, image.meta());
    let reading = reading_notes(image, SliceAlone::ByAxes).into_iter().chain(absent_chunks_note(image));
    let reading = reading.chain(orientation_note(run.input, "the results"));
    reading.chain(series_note).chain(times_note).chain(normalization_note(run.model)).collect()
}

/// Returns the note that the normalization of images is assumed; `None` for a model that states it.
fn normalization_note(model: &Model) -> Option<Message> {
    let is_normalized = |input: &ModelInput| input.preprocessing.iter().any(is_assumed_normalization);
    let is_assumed = is_undescribed(&model.path) && model.path.is_file() && model.inputs.iter().any(is_normalized);
    is_assumed.then(|| {
        message!(
            "{} states no normalization, so {ASSUMED_NORMALIZATION}; if the network was trained otherwise, \
             predict with the package that it is from",
            model.path.display()
        )
    })
}

/// Maximum length of a stem in bytes: file systems allow 255 bytes for a name, and the longest one, of the preprocessed stack, has
/// 21 more than the stem.
const MAX_STEM_BYTES: usize = 234;

/// Refuses a stem with which the names of the results and of the hidden files beside them would be too long.
fn check_stem(stem: &str) -> Result<(), JobError> {
    if stem.len() <= MAX_STEM_BYTES {
        return Ok(());
    }
    let problem = format!(
        "the results \"{stem}_…\" would have names that are too long: that of the stack may have {MAX_STEM_BYTES} bytes \
         without its extension, and has {}",
        stem.len()
    );
    Err(JobError::wrong_use_with(problem, "give the stack a shorter name"))
}

/// Locks the results `folder/stem_*`. Another process may have created the folder, and removed it because its own prediction
/// was refused; with the lock file in it, it stays.
fn lock_results(folder: &Path, stem: &str) -> Result<(ResultsLock, ResultsFolder), JobError> {
    check_stem(stem)?;
    let created = ResultsFolder::create(folder).map_err(JobError::results_folder(folder))?;
    Ok((ResultsLock::acquire(folder, stem)?, created))
}

/// Refuses to replace files that may not be replaced: those of [`ResultFiles::refuse_foreign`], and of several series, the
/// results of another file that have the name of a series after the first.
fn refuse_foreign(run: &InputRun<'_>, files: &ResultFiles, wanted: &BTreeSet<Output>) -> Result<(), JobError> {
    let InputRun { job, context, .. } = *run;
    let _span = context.recorder.span(Stage::Read, "earlier results");
    context.report_alive(ProgressStage::Check, || files.refuse_foreign(context, wanted, job.overwrite))?;
    match job.series {
        SeriesChoice::Index(number) if number > 0 && *run.series == SeriesChoice::All => {
            provenance::refuse_record_of_another_file(&files.paths.provenance, run.input)
        }
        _ => Ok(()),
    }
}

/// Predicts an input file on a device and writes its results.
///
/// # Errors
/// [`JobError`] if the input does not match the model or the options, something fails, or the job is canceled.
pub(super) fn predict(run: &InputRun<'_>, engine: &SelectedEngine) -> Result<InputReport, JobError> {
    let InputRun { job, context, model, input, stem, live, .. } = *run;
    let start = Instant::now();
    // Earlier inputs may have taken more.
    cytoscope_profile::restart_peak();
    context.recorder.mark_memory("start");
    let image = open(run)?;
    // Some notes are about values, which are read before the prediction is planned.
    limit_readers(&[&image], job.memory_budget_bytes);
    let mut stack_notes = input_notes(run, &image);
    let sources = input_tensors::sources(job, model, input, image)?;
    let (image, preprocessed, steps_bytes) = preprocess::for_prediction(context, job, model, sources.image.clone())?;
    let before = context.recorder.totals();
    let options = sources.options(preprocess::options_after(job));
    let selection = Selection::new(context, &image, input, model, &options)?;
    // The record names the channel, and results of another channel are not continued.
    let by_name = selection.channel_by_name(model, &options);
    let with_channel = by_name.map(|channel| PredictJob { channel: Some(channel), ..job.clone() });
    let job = with_channel.as_ref().unwrap_or(job);
    let wanted = outputs_or_default(&job.outputs, model.task);
    let named = || ResultFiles::new(job, model, input, stem, (&image, &sources), &wanted);
    let listing = context.recorder.span(Stage::Read, "inputs of the record");
    let files = context.report_alive(ProgressStage::Check, named)?;
    listing.finish();
    if job.resume
        && let Some(finished) = finished_outputs(run, &files, &wanted)?
    {
        context.note(format!("{}: skipped, because its results already exist", input.display()));
        let precision = engine.precision(model, job.precision);
        return Ok(skipped_report(finished, &selection, &engine.choice, precision));
    }
    let _locked = lock_results(job.folder(), stem)?;
    refuse_foreign(run, &files, &wanted)?;
    stack_notes.extend(selection.value_notes(context, model.task));
    let earlier = KeptRecord::to_continue(run, &files.fingerprint_of_slices);
    stack_notes.extend(KeptRecord::unused_note(earlier.as_ref(), run, &files.fingerprint_of_slices));
    let in_floats = earlier.as_ref().map(|earlier| earlier.in_floats(run, engine)).transpose()?.flatten();
    let engine = in_floats.as_ref().unwrap_or(engine);
    let diameter = earlier.as_ref().and_then(|earlier| earlier.diameter_for(options.diameter));
    let mut resolved = Resolved::new(context, model, engine, selection, &options, wanted, diameter)?;
    earlier.iter().for_each(|earlier| earlier.prefer_tiles(&mut resolved));
    let tensors = sources.records(model, &resolved.channels, input)?;
    let request = KeptRequest { run, resolved: &resolved, fingerprint: &files.fingerprint_of_slices };
    let kept = request.before_plan()?;
    let writing_bytes = files.paths.zarr.as_ref().map_or(0, |_| zarr::peak_bytes(resolved.extents.zyx));
    let memory = JobMemory { held_bytes: steps_bytes, writing_bytes };
    let tiles = plan(context, &resolved, memory, kept.as_ref().map_or(0, KeptSlices::finished_slices_of_next))?;
    let kept = request.after_plan(kept, &tiles)?;
    check_space(context, run, &resolved, &files, earlier.as_ref(), kept.as_ref())?;
    let mut report = report_before(&resolved, &tiles, kept.as_ref());
    emit_plan(context, &report);
    report.series = image.meta().series;
    report.notes.extend(stack_notes.into_iter().map(Note::from));
    report.notes.extend(tensors.iter().map(|tensor| Note::from(tensor.note())));
    report.notes.extend(preprocessed.as_ref().map(|record| Note::from(record.note())));
    let scratch = Scratch::Folder(job.folder());
    let mut outputs = Outputs::new(&resolved, &files, scratch)?;
    let mut inference = Inference::new(context, &resolved, tiles, scratch, live, kept);
    let finish = || {
        predict_times(context, &resolved, memory, &mut inference, &mut outputs, &mut report)?;
        report.notes.extend(inference.notes());
        report.notes.extend(outputs.label_note().map(Note::from));
        report.seam_energy = inference.seams().energy();
        outputs.write_labels(context)?;
        let span = context.recorder.span(Stage::Write, "finish");
        let mut written = outputs.finish(context)?;
        context.report_alive(ProgressStage::Check, || files.refuse_changed())?;
        let records = context.report_alive(ProgressStage::Write, || written.publication.records(context))?;
        context.report_alive(ProgressStage::Check, || written.publication.prepare(context))?;
        drop(span);
        measure(context, model, start, &before, &mut report);
        let _span = context.recorder.span(Stage::Write, "publish");
        let record_parts = (records, preprocessed, tensors);
        let published = || publish(job, &resolved, &files, written, record_parts, report);
        context.report_alive(ProgressStage::Write, published)
    };
    let published: Result<InputReport, JobError> = finish();
    inference.end(published.is_ok(), job.folder(), stem);
    published
}

/// The results of an earlier run.
struct Finished {
    outputs: Vec<Artifact>,
    /// Number of objects at each time point.
    objects: Vec<u32>,
}

/// Returns the results of an earlier run of the job, if it has finished and they are unchanged.
fn finished_outputs(
    run: &InputRun<'_>,
    files: &ResultFiles,
    wanted: &BTreeSet<Output>,
) -> Result<Option<Finished>, JobError> {
    let maps = wanted.contains(&Output::Maps).then(|| ArtifactKind::for_maps(run.model.task));
    let has_labels = wanted.contains(&Output::Labels);
    let is_of_job = |record: &provenance::Provenance| files.is_recorded_in(record);
    let finished = || provenance::finished(run.context, &files.paths.provenance, is_of_job, maps, has_labels);
    let Some(outputs) = run.context.report_alive(ProgressStage::Check, finished)? else { return Ok(None) };
    let objects = provenance::read(&files.paths.provenance)?.objects;
    Ok(Some(Finished { outputs, objects }))
}

/// Checks that the results and the slices that are kept fit the disk. If they do not, the slices are removed, unless an
/// earlier run has kept them.
fn check_space(
    context: &Context,
    run: &InputRun<'_>,
    resolved: &Resolved<'_>,
    files: &ResultFiles,
    earlier: Option<&KeptRecord>,
    kept: Option<&KeptSlices>,
) -> Result<(), JobError> {
    let folder = run.job.folder();
    let stored = match kept {
        // The slices that an earlier run has finished take no more space.
        Some(kept) => StoredOutput { times: resolved.times.len(), present_bytes: kept.file_bytes() },
        None => StoredOutput { times: 1, present_bytes: 0 },
    };
    disk_space::check(context, folder, resolved, files.paths.zarr.is_some(), stored).inspect_err(|_| {
        if earlier.is_none() {
            KeptSlices::remove(folder, run.stem);
        }
    })
}

/// Predicts all time points in order and adds them to the outputs. Releases the network after the last one.
fn predict_times(
    context: &Context,
    resolved: &Resolved<'_>,
    memory: JobMemory,
    inference: &mut Inference<'_>,
    outputs: &mut Outputs<'_>,
    report: &mut InputReport,
) -> Result<(), JobError> {
    for (index, &time) in resolved.times.iter().enumerate() {
        inference.plan_next(memory, |next| {
            add_plan(report, resolved, next);
            emit_plan(context, report);
        })?;
        let (stack, prediction) = inference.predict(time, outputs.map_writer())?;
        if index + 1 == resolved.times.len() {
            report.traffic = inference.release();
        }
        outputs.add(context, stack, prediction)?;
    }
    Ok(())
}

/// Adds what is known at the end of a prediction that began at `start`, with these totals of the stages.
fn measure(context: &Context, model: &Model, start: Instant, before: &[StageTotal], report: &mut InputReport) {
    if let Some(change) = model.change_on_disk() {
        let note = format!("the model {change}: this result was made with the model as it was at the start of the job");
        report.notes.push(note.into());
    }
    context.recorder.mark_memory("end");
    report.stages = cytoscope_profile::since(&context.recorder.totals(), before);
    report.seconds = start.elapsed().as_secs_f64();
    report.actual_peak_bytes = cytoscope_profile::recent_peak_bytes();
}

/// Reports how an input is predicted, with the planned peak memory.
fn emit_plan(context: &Context, report: &InputReport) {
    if let Some(plan) = &report.plan {
        context.emit(&Event::Planned { input: report.input.clone(), plan: Box::new(plan.clone()) });
    }
}

/// Returns the notes about a plan.
fn plan_notes(resolved: &Resolved<'_>, tiles: &PlannedTiles) -> Vec<Message> {
    let tile_count_note = tiles.plan.tiles_note(resolved.grid);
    let network_notes = tiles.replanned.iter().cloned().chain(tiles.fallback_note());
    let mut notes: Vec<Message> = network_notes.map(Message::from).chain(tile_count_note).collect();
    let is_cropped = tiles.plan.blend == super::Blend::Crop;
    if is_cropped && resolved.tiles.overlap.is_some() && resolved.tiles.recorded.is_none() {
        notes.push(message!(
            "{OVERLAP} had no effect: the tiles were cropped, not averaged (add {GAUSSIAN_BLEND} to average them)"
        ));
    }
    notes
}

/// Replaces the plan in a report: the earlier one was for the last slices of a time point, `next` is for whole time
/// points. The report states the larger peak, and the notes of both plans.
fn add_plan(report: &mut InputReport, resolved: &Resolved<'_>, next: &PlannedTiles) {
    let earlier_bytes = report.plan.as_ref().map_or(0, |plan| plan.stated_peak_bytes);
    let peak_bytes = earlier_bytes.max(next.plan.stated_peak_bytes);
    report.plan = Some(super::TilePlan { stated_peak_bytes: peak_bytes, ..next.plan.clone() });
    for note in plan_notes(resolved, next).into_iter().map(Note::from) {
        if !report.notes.contains(&note) {
            report.notes.push(note);
        }
    }
    for fallback in next.fallbacks() {
        if !report.fallbacks.contains(&fallback) {
            report.fallbacks.push(fallback);
        }
    }
}

/// Returns the part of an input's report that is known before inference. `kept` are the slices that may be finished.
fn report_before(resolved: &Resolved<'_>, tiles: &PlannedTiles, kept: Option<&KeptSlices>) -> InputReport {
    let parts = kept.map(KeptSlices::parts).unwrap_or_default();
    let kept_notes =
        kept.map(KeptSlices::notes).unwrap_or_default().into_iter().chain(parts_note(&parts).map(Message::from));
    let notes = resolved.notes.iter().cloned().chain(plan_notes(resolved, tiles)).chain(kept_notes);
    InputReport {
        input: resolved.input.to_owned(),
        series: resolved.meta.series,
        outputs: Vec::new(),
        resumed: false,
        shape_zyx: resolved.extents.zyx,
        times: resolved.times.len(),
        objects: Vec::new(),
        device: resolved.engine.choice.clone(),
        precision: resolved.precision(),
        parts,
        diameter: resolved.diameter,
        segment: resolved.has_objects().then(|| resolved.segment.clone()),
        segment_channels: resolved
            .has_objects()
            .then_some([resolved.model.segment_channel, resolved.model.seed_channel]),
        plan: Some(tiles.plan.clone()),
        grid_zyx: Some(resolved.grid),
        fallbacks: tiles.fallbacks(),
        seam_energy: None,
        stages: Vec::new(),
        traffic: None,
        seconds: 0.0,
        actual_peak_bytes: None,
        notes: notes.map(Note::from).collect(),
        profile: resolved.engine.profile.clone(),
    }
}

/// Writes the record of a result, and gives its files their final names. The record is written before the files are
/// renamed, so that it lists them even if the process stops in between.
fn publish(
    job: &PredictJob,
    resolved: &Resolved<'_>,
    files: &ResultFiles,
    written: Written,
    (records, preprocessed, input_tensors): (Vec<FileRecord>, Option<PreprocessRecord>, Vec<InputTensorRecord>),
    mut report: InputReport,
) -> Result<InputReport, JobError> {
    let Written { publication, artifacts, counts } = written;
    report.outputs = artifacts;
    report.objects = counts;
    report.notes.extend(objects_note(report.diameter.as_ref(), &report.objects));
    let record = NewRecord {
        job,
        model: resolved.model,
        input: files.input.clone(),
        input_files: files.input_files.clone(),
        chunks: files.chunks.clone(),
        fingerprint: &files.fingerprint,
        precision: resolved.precision(),
        report: &report,
        preprocessed,
        input_tensors,
        outputs: records,
    };
    let kept = provenance::write(&files.paths.provenance, record)?;
    report.notes.extend(kept_results_note(&kept).map(Note::from));
    for aside in publication.publish(job.overwrite)? {
        report.notes.push(moved_aside_note(&aside).into());
    }
    report.outputs.push(Artifact::new(ArtifactKind::Provenance, &files.paths.provenance));
    Ok(report)
}

/// Returns the note that the number of objects, one for each time point, does not fit how their diameter was determined: none were
/// found with the one that was given, or some although none were clear enough to estimate it.
fn objects_note(diameter: Option<&ObjectDiameter>, objects: &[u32]) -> Option<Note> {
    let ObjectDiameter { diameter, unit, estimate, .. } = diameter?;
    let (unit, found) = (unit.symbol(), objects.iter().map(|count| u64::from(*count)).sum::<u64>());
    match estimate {
        None if found == 0 && !objects.is_empty() => Some(Note::from(message!(
            "no objects were found with the given object diameter of {diameter:.1} {unit}: leave out {DIAMETER} to have it \
             estimated"
        ))),
        Some(estimate) if found > 0 && estimate.certainty == Certainty::None => Some(Note::warning(message!(
            "the stack may contain no cells: none were clear enough to estimate the object diameter, and the {} found with the \
             assumed one of {diameter:.1} {unit} may be debris or background; check them, or give {DIAMETER}",
            counted(found, "object")
        ))),
        _ => None,
    }
}

/// Returns the note that results of an earlier prediction stay beside the new ones, which replace none of them.
fn kept_results_note(files: &[PathBuf]) -> Option<String> {
    let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    (!names.is_empty()).then(|| format!("results of an earlier prediction were kept: {}", names.join(", ")))
}

/// Returns the report of an input whose results exist.
fn skipped_report(
    Finished { outputs, objects }: Finished,
    selection: &Selection<'_>,
    engine: &DeviceChoice,
    precision: Precision,
) -> InputReport {
    InputReport {
        input: selection.input.to_owned(),
        series: selection.meta.series,
        outputs,
        resumed: true,
        shape_zyx: selection.extents.zyx,
        times: selection.times.len(),
        objects,
        device: engine.clone(),
        precision,
        parts: Vec::new(),
        diameter: None,
        segment: None,
        segment_channels: None,
        plan: None,
        grid_zyx: None,
        fallbacks: Vec::new(),
        seam_energy: None,
        stages: Vec::new(),
        traffic: None,
        seconds: 0.0,
        actual_peak_bytes: None,
        notes: Vec::new(),
        profile: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DiameterEstimate, DiameterUnit};

    #[test]
    fn the_results_of_the_longest_stem_have_names_that_file_systems_allow() {
        let stem = "a".repeat(MAX_STEM_BYTES);
        let results = ArtifactKind::Preprocessed.file_name(&stem);
        let lock = format!(".{stem}.cytoscope-lock");
        assert!(results.len() == 255 && lock.len() <= 255, "{} and {} bytes", results.len(), lock.len());
        assert!(check_stem(&stem).is_ok() && check_stem(&format!("{stem}a")).is_err());
    }

    #[test]
    fn objects_of_a_stack_in_which_none_were_clear_are_doubted() {
        let note = |certainty: Option<Certainty>, objects: &[u32]| {
            let estimate = certainty.map(|certainty| DiameterEstimate {
                diameter: 9.0,
                range: [9.0; 2],
                objects: 0,
                certainty,
                intensity_factor: 1.0,
                intensity_background: 0.0,
            });
            let (diameter, unit) = (9.0, DiameterUnit::Um);
            let assumed = ObjectDiameter { diameter, unit, voxel: [1.0; 3], nominal_um: 9.0, estimate };
            objects_note(Some(&assumed), objects).map(|note| note.to_string())
        };
        let doubt = note(Some(Certainty::None), &[0, 3, 1]).unwrap_or_default();
        let words = ["warning: ", "may contain no cells", "the 4 objects found", "9.0 µm", "give --diameter"];
        assert!(words.iter().all(|word| doubt.contains(word)), "{doubt}");
        for (certainty, objects) in
            [(Certainty::None, &[0, 0][..]), (Certainty::None, &[][..]), (Certainty::Low, &[5][..])]
        {
            assert_eq!(note(Some(certainty), objects), None, "{certainty:?} {objects:?}");
        }
        // A given diameter.
        assert!(note(None, &[0]).is_some_and(|note| note.contains("leave out --diameter")));
        assert_eq!([note(None, &[2]), note(None, &[])], [None, None]);
    }
}
