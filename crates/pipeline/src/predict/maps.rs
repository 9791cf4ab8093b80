//! Fills the maps of an image's time points, one after the other, with one compiled network.

use super::constant_channels::{FlatChannels, lost_contrast, lost_contrast_note};
use super::files::MapWriter;
use super::grid::ModelView;
use super::infer::{InferenceRun, Seams};
use super::kept::KeptSlices;
use super::label;
use super::live::{Live, LiveSink, LiveVolume};
use super::output_check::OutputCheck;
use super::pass::{Emitter, Pass};
use super::plan::{JobMemory, PlannedTiles, Runner, TilePlan, plan};
use super::postprocess::{self, softmax_channels, split_softmax};
use super::prediction::{FOREGROUND_BYTES, Prediction};
use super::resolve::Resolved;
use super::tiles::{TileNetwork, TileRunner};
use crate::diameter::IntensityChange;
use crate::float_loss::FloatLoss;
use crate::slice_statistics::Chains;
use crate::spool::{Scratch, Spool};
use crate::stack::Stack;
use crate::{Context, JobError, Note, ProgressStage, ProgressUnit};
use cytoscope_model_package::Processing;
use cytoscope_profile::{DeviceTraffic, Stage};
use std::ops::Range;
use std::path::Path;

/// Warning for stacks with NaN or infinite values.
const NOT_FINITE: &str = "the stack contains values that are NaN or infinite: they are replaced like voxels outside the \
                          stack, and the prediction at these voxels is meaningless";

/// Stores what the network returns, and writes the maps that are ready.
pub(super) struct Store<'a> {
    /// Cancellation, progress and spans of the job.
    pub context: &'a Context,
    /// Receives the values on the model's grid.
    pub prediction: &'a mut Prediction,
    /// Whether softmax is applied to what is stored.
    pub softmax: bool,
    /// Writes maps while the network runs, if their postprocessing is already known.
    pub maps: Option<&'a mut MapWriter>,
    /// Records what is finished, if the job can be continued.
    pub kept: Option<&'a mut KeptSlices>,
    /// Whether the results are written right after the last time point, without a segmentation.
    pub ends_soon: bool,
    /// Counts values that are NaN or infinite, before softmax.
    pub check: OutputCheck,
}

impl Store<'_> {
    /// Stores finished rows and columns `[C][z][rows][columns]` as the network returned them.
    ///
    /// # Errors
    /// [`JobError`] if they cannot be stored, or are not finite because of the precision (see [`OutputCheck`]).
    pub(super) fn put(&mut self, z: Range<usize>, part: [Range<usize>; 2], values: &[f32]) -> Result<(), JobError> {
        self.check.add(values)?;
        if !self.softmax {
            return self.prediction.put(self.context, z, part, values);
        }
        let mut values = values.to_vec();
        softmax_channels(&mut values, self.prediction.channels);
        self.prediction.put(self.context, z, part, &values)
    }

    /// Writes the maps that are complete, finds objects in them, and records from time to time what is finished.
    pub(super) fn write_ready(&mut self) -> Result<(), JobError> {
        if let Some(maps) = &mut self.maps {
            maps.write_ready(self.context, self.prediction)?;
        }
        self.keep_if_due()?;
        self.prediction.advance_objects(self.context)
    }

    /// States that a band of a pass is finished, from the first slice to the last.
    pub(super) fn finish_band(&mut self) {
        if let Some(kept) = &mut self.kept {
            kept.finish_band();
        }
    }

    /// Stores finished slices of tiles, which begin after those that an earlier run has finished.
    fn put_slices(&mut self, z: Range<usize>, values: &[f32]) -> Result<(), JobError> {
        let complete = self.prediction.complete();
        if z.start != complete {
            return Err(JobError::Internal(format!("prediction: slices {z:?} follow the first {complete}")));
        }
        let [_, rows, columns] = self.prediction.model_shape;
        self.put(z, [0..rows, 0..columns], values)?;
        self.keep_if_due()
    }

    /// Records from time to time what is finished.
    fn keep_if_due(&mut self) -> Result<(), JobError> {
        match &mut self.kept {
            Some(kept) => kept.keep_if_due(self.prediction.complete()),
            None => Ok(()),
        }
    }

    /// Records the finished slices at the end of a time point, even if it failed or was canceled; returns how it ended.
    fn end(&mut self, ended: Result<(), JobError>) -> Result<(), JobError> {
        let Some(kept) = &mut self.kept else { return ended };
        // They are on the disk when this ends.
        let _span = self.context.recorder.span(Stage::Write, "kept slices");
        if ended.is_ok() {
            return kept.keep_time_point(self.prediction.complete(), self.ends_soon);
        }
        if !kept.outlives(&ended, self.context.cancel.is_discarding()) {
            return ended;
        }
        ended.and(kept.keep(self.prediction.complete()))
    }
}

/// The inference of an image.
pub(super) struct Inference<'a> {
    context: &'a Context,
    resolved: &'a Resolved<'a>,
    plan: TilePlan,
    /// The compiled network, until it is released.
    runner: Option<Runner>,
    /// Where the maps are stored.
    scratch: Scratch<'a>,
    live: Option<&'a dyn LiveSink>,
    /// Preprocessing of the channels at the next time point, if already known.
    next_chains: Option<Chains>,
    /// The finished slices, if the job can be continued.
    kept: Option<KeptSlices>,
    /// Index of the next time point among those that are predicted.
    index: usize,
    seams: Seams,
    not_finite: bool,
    /// What conversion to 32-bit floats has changed in the stack.
    loss: FloatLoss,
    flat: FlatChannels,
    /// The greatest share of a time point's contrast that preprocessing removes.
    lost_contrast: f64,
    /// The check of all outputs so far.
    check: OutputCheck,
}

impl<'a> Inference<'a> {
    pub(super) fn new(
        context: &'a Context,
        resolved: &'a Resolved<'a>,
        tiles: PlannedTiles,
        scratch: Scratch<'a>,
        live: Option<&'a dyn LiveSink>,
        kept: Option<KeptSlices>,
    ) -> Self {
        let next_chains = resolved.first_chains.clone();
        let PlannedTiles { plan, runner, .. } = tiles;
        let (runner, seams) = (Some(runner), Seams::default());
        let check = OutputCheck::new(resolved.engine.choice.id, resolved.precision());
        let (index, not_finite) = (0, false);
        let flat = FlatChannels::default();
        Self {
            context,
            resolved,
            plan,
            runner,
            scratch,
            live,
            next_chains,
            kept,
            index,
            seams,
            not_finite,
            loss: FloatLoss::default(),
            flat,
            lost_contrast: 0.0,
            check,
        }
    }

    /// Plans the network again if it was planned for the last slices of a time point and the next one has none that are
    /// finished, and passes the new plan to `on_plan`. `memory` is the memory of the job around the stages of a prediction.
    ///
    /// # Errors
    /// Same as [`plan`].
    pub(super) fn plan_next(&mut self, memory: JobMemory, on_plan: impl FnOnce(&PlannedTiles)) -> Result<(), JobError> {
        let is_rest = matches!(&self.runner, Some(Runner::Pass { first_z, .. }) if *first_z > 0);
        if !is_rest || self.finished() > 0 {
            return Ok(());
        }
        // Two networks are not held at once.
        self.runner = None;
        let next = plan(self.context, self.resolved, memory, 0)?;
        on_plan(&next);
        let PlannedTiles { plan, runner, .. } = next;
        (self.plan, self.runner) = (plan, Some(runner));
        Ok(())
    }

    /// Returns the number of slices of the next time point that an interrupted run has finished.
    fn finished(&self) -> usize {
        self.kept.as_ref().map_or(0, |kept| kept.finished_slices(self.index))
    }

    /// Begins the prediction of a time point, given by its index among those that are predicted, after the slices that an
    /// interrupted run has finished.
    fn begin(&mut self, index: usize, finished: usize) -> Result<Prediction, JobError> {
        let Resolved { model, grid, extents, .. } = self.resolved;
        let spool = match &mut self.kept {
            Some(kept) => kept.begin(index)?,
            None => Spool::new(self.scratch, grid[1] * grid[2])?,
        };
        let mut prediction = Prediction::new(spool, model.output_channels, *grid, extents.zyx);
        prediction.continue_after(finished);
        Ok(prediction)
    }

    /// Returns the preprocessing of a time point's channels, unless it is `known`, scaled to the brightness of the objects.
    /// Remembers how much contrast it removes.
    fn scaled_chains(&mut self, stack: &Stack, known: Option<Chains>) -> Result<Chains, JobError> {
        let Resolved { model, channels, diameter, .. } = self.resolved;
        let chains = match known {
            Some(chains) => chains,
            None => stack.preprocessing(self.context, model, channels)?,
        };
        let chains = chains.changed(diameter.map_or(IntensityChange::NONE, |d| d.intensity_change()));
        let steps = model.inputs.iter().flat_map(|input| &input.preprocessing);
        self.lost_contrast = self.lost_contrast.max(lost_contrast(steps, &chains));
        Ok(chains)
    }

    /// Announces a time point to the sink of finished tiles, if there is one, with how its values are postprocessed.
    fn begin_live(&self, time: usize, softmax: bool, postprocessing: &[Processing]) -> Option<Live<'a>> {
        let Resolved { model, grid, input, .. } = *self.resolved;
        let volume = LiveVolume { input, time, channels: model.output_channels, shape_zyx: grid };
        self.live.map(|sink| Live::begin(sink, &volume, softmax, postprocessing))
    }

    /// Returns the memory in bytes for finding objects in maps of this shape during a pass; 0 if they are found after it, or
    /// there is no pass.
    fn objects_bytes(&self, shape: [usize; 3]) -> u64 {
        let Some(Runner::Pass { objects_bytes, .. }) = &self.runner else { return 0 };
        // With a single thread, overlapping the stages gains nothing. Larger maps are still in the system's cache.
        let overlaps = self.resolved.compile.threads != 1;
        let is_enough = *objects_bytes >= FOREGROUND_BYTES;
        if is_enough && (overlaps || !label::is_segmented_at_once(shape)) { *objects_bytes } else { 0 }
    }

    /// Predicts a time point; the time points must be those of the prediction, in order. One that an interrupted run has
    /// finished is returned as it was stored. During a pass, `maps` are written as they become ready, unless their
    /// postprocessing needs statistics of the whole prediction.
    ///
    /// # Errors
    /// [`JobError`] if the stack cannot be read, the network fails, or the job is canceled.
    pub(super) fn predict(
        &mut self,
        time: usize,
        maps: Option<&mut MapWriter>,
    ) -> Result<(Stack, Prediction), JobError> {
        let (context, resolved) = (self.context, self.resolved);
        let (model, grid, channels) = (resolved.model, resolved.grid, resolved.channels.as_slice());
        let stack = Stack::new(resolved.image, time);
        let (index, finished, chains) = (self.index, self.finished(), self.next_chains.take());
        self.index += 1;
        let mut prediction = self.begin(index, finished)?;
        if finished >= grid[0] {
            postprocess::resolve(context, model, channels, &stack, &mut prediction)?;
            return Ok((stack, prediction));
        }
        let chains = self.scaled_chains(&stack, chains)?;
        let mut view = ModelView::new(&stack, channels, chains, grid);
        let (softmax, later) = split_softmax(model);
        let is_known = !later.iter().any(Processing::needs_statistics);
        if is_known {
            postprocess::resolve(context, model, channels, &stack, &mut prediction)?;
        }
        // With a single thread, overlapping the stages gains nothing.
        let overlaps = resolved.compile.threads != 1;
        let objects_bytes = self.objects_bytes(prediction.shape);
        if is_known && objects_bytes > 0 {
            prediction.find_objects(&label::label_settings(resolved, objects_bytes), self.scratch)?;
        }
        let live = self.begin_live(time, softmax, later);
        let mut meter =
            context.meter(ProgressStage::Predict, grid.iter().product::<usize>() as u64, ProgressUnit::Voxels);
        let (plan, Some(runner)) = (&self.plan, &mut self.runner) else {
            return Err(JobError::Internal("prediction: the network was released".to_owned()));
        };
        let (maps, kept, check) = (maps.filter(|_| is_known), self.kept.as_mut(), self.check);
        let ends_soon = !resolved.has_objects();
        let mut store = Store { context, prediction: &mut prediction, softmax, maps, kept, ends_soon, check };
        let mut is_read_whole = finished == 0;
        match runner {
            Runner::Tiles(session) => {
                let (network, session, seams) = (TileNetwork::of(model), &mut **session, self.seams);
                let tiles = TileRunner::new(&context.recorder, network, session, plan.batch);
                let mut run = InferenceRun { context, plan, tiles, finished, meter, seams, live };
                let ended = run.run(&mut view, &mut |z, values| store.put_slices(z, values));
                self.seams = run.seams;
                store.end(ended)?;
                self.check = store.check;
            }
            Runner::Pass { session, slab_slices, bands, first_z, macs, .. } => {
                let (session, size) = (&mut **session, plan.tile);
                let (slab_slices, first_z) = (*slab_slices, *first_z);
                let [skipped, area] = store.kept.as_mut().map_or([0; 2], |kept| kept.begin_bands(bands));
                is_read_whole &= skipped == 0;
                let left = bands.get(skipped..).unwrap_or_default();
                let macs = (*macs as f64 * left.len() as f64 / bands.len().max(1) as f64) as u64;
                let completed = finished * grid[1] * grid[2] + (grid[0] - finished) * area;
                if completed > 0 {
                    meter.skip_completed(completed as u64);
                }
                let bands = left;
                let mut pass = Pass { context, model, size, first_z, session, bands, slab_slices, macs, overlaps };
                let mut emitter = Emitter { model, first_z, finished, bands, shape: grid, store, meter, live };
                let ended = pass.run(&mut view, &mut emitter);
                emitter.store.end(ended)?;
                self.check = emitter.store.check;
            }
        }
        self.not_finite |= view.not_finite;
        self.loss.merge(view.loss);
        if is_read_whole {
            self.flat.add(time, channels, &view.contrast);
        }
        drop(view);
        context.recorder.mark_memory("predicted");
        if !is_known {
            postprocess::resolve(context, model, channels, &stack, &mut prediction)?;
        }
        Ok((stack, prediction))
    }

    /// Returns warnings about values of the stack and of the network's output that are not finite, and about channels whose
    /// values are all equal, or nearly.
    pub(super) fn notes(&self) -> impl Iterator<Item = Note> {
        let stack_note = self.not_finite.then(|| Note::warning(NOT_FINITE));
        let factor = self.resolved.diameter.map_or(1.0, |d| d.intensity_change().factor);
        let contrast_note =
            self.flat.note(self.resolved.extents).or_else(|| lost_contrast_note(self.lost_contrast, factor));
        stack_note.into_iter().chain(self.loss.notes()).chain(contrast_note).chain(self.check.note())
    }

    /// Releases the network after the last time point, so that its memory is free for what follows. Returns what has passed
    /// between the host and the device; `None` on the CPU.
    pub(super) fn release(&mut self) -> Option<DeviceTraffic> {
        let runner = self.runner.take()?;
        // A GPU frees memory only after the work before it, which may take a second.
        let _span = self.context.recorder.span(Stage::Release, "network");
        let traffic = match &runner {
            Runner::Tiles(session) => session.traffic(),
            Runner::Pass { .. } => None,
        };
        drop(runner);
        // What the threads of the pass have freed would add to the memory of what follows, which the plan does not count.
        cytoscope_engine_cpu::return_free_memory();
        traffic
    }

    /// Returns the sums for the visibility of seams.
    pub(super) fn seams(&self) -> &Seams {
        &self.seams
    }

    /// Ends the job. If its results `folder/stem_*` are published, no slices are kept; otherwise those that are finished but
    /// not recorded yet are recorded, and a note says what is kept of a canceled job.
    pub(super) fn end(&mut self, is_published: bool, folder: &Path, stem: &str) {
        let _span = self.context.recorder.span(Stage::Write, "end of kept slices");
        let cancel = &self.context.cancel;
        match self.kept.take() {
            Some(mut kept) if !is_published => {
                kept.keep_rest(cancel.is_discarding());
                let outlives = kept.outlives(&Err(JobError::Canceled), cancel.is_discarding());
                if let Some(name) = kept.kept_name().filter(|_| outlives && cancel.is_canceled()) {
                    self.context.note(format!(
                        "the finished {name} are kept beside the results, so that the prediction can be resumed"
                    ));
                }
            }
            Some(kept) => kept.abandon(folder, stem),
            None if is_published => KeptSlices::remove(folder, stem),
            None => {}
        }
    }
}
