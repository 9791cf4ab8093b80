//! Fills the maps of an image's time points, one after the other, with one compiled network.

use super::grid::ModelView;
use super::infer::{InferenceRun, Seams};
use super::live::{Live, LiveSink, LiveVolume};
use super::pass::Pass;
use super::plan::{PlannedTiles, Runner};
use super::postprocess::{self, softmax_channels, split_softmax};
use super::prediction::Prediction;
use super::resolve::Resolved;
use crate::ops::Elementwise;
use crate::spool::{Scratch, Spool};
use crate::stack::Stack;
use crate::{Context, JobError};
use std::ops::Range;

/// Note for stacks with NaN or infinite values.
const NOT_FINITE: &str = "the stack contains values that are NaN or infinite: they are replaced like voxels outside the \
                          stack, and the prediction at these voxels is meaningless";

/// The inference of an image.
pub(super) struct Inference<'a> {
    context: &'a Context,
    resolved: &'a Resolved<'a>,
    tiles: PlannedTiles,
    /// Where the maps are stored.
    scratch: Scratch<'a>,
    live: Option<&'a dyn LiveSink>,
    /// Preprocessing chain of each channel at the next time point, if already known.
    next_chains: Option<Vec<Vec<Elementwise>>>,
    seams: Seams,
    not_finite: bool,
}

impl<'a> Inference<'a> {
    pub(super) fn new(
        context: &'a Context,
        resolved: &'a Resolved<'a>,
        tiles: PlannedTiles,
        scratch: Scratch<'a>,
        live: Option<&'a dyn LiveSink>,
    ) -> Self {
        let next_chains = resolved.first_chains.clone();
        Self { context, resolved, tiles, scratch, live, next_chains, seams: Seams::default(), not_finite: false }
    }

    /// Predicts a time point; the time points must be those of the prediction, in order.
    ///
    /// # Errors
    /// [`JobError`] if the stack cannot be read, the network fails, or the job is cancelled.
    pub(super) fn predict(&mut self, time: usize) -> Result<(Stack, Prediction), JobError> {
        let (context, resolved) = (self.context, self.resolved);
        let (model, grid, channels) = (resolved.model, resolved.grid, resolved.channels.as_slice());
        let stack = Stack::new(resolved.image, time);
        let chains = match self.next_chains.take() {
            Some(chains) => chains,
            None => stack.preprocessing(context, model, channels)?,
        };
        let mut view = ModelView::new(&stack, channels, chains, grid);
        let spool = Spool::new(self.scratch, grid[1] * grid[2])?;
        let mut prediction = Prediction::new(spool, model.output_channels, grid, resolved.extents.zyx);
        let (softmax, later) = split_softmax(model);
        let live = self.live.map(|sink| {
            let volume = LiveVolume { input: resolved.input, time, channels: model.output_channels, shape_zyx: grid };
            Live::begin(sink, &volume, softmax, later)
        });
        let meter = context.meter("predict", grid.iter().product::<usize>() as u64, "voxels");
        let PlannedTiles { plan, runner, .. } = &mut self.tiles;
        let mut put = |z: Range<usize>, values: &[f32]| {
            if softmax {
                let mut values = values.to_vec();
                softmax_channels(&mut values, model.output_channels);
                return prediction.put(context, z, &values);
            }
            prediction.put(context, z, values)
        };
        match runner {
            Runner::Tiles(session) => {
                let (session, seams) = (&mut **session, self.seams);
                let mut run = InferenceRun { context, model, plan, session, meter, seams, live };
                run.run(&mut view, &mut put)?;
                self.seams = run.seams;
            }
            Runner::Pass { session, slab_slices, macs } => {
                let (session, slab_slices, macs) = (&mut **session, *slab_slices, *macs);
                Pass { context, model, plan, session, slab_slices, macs, meter, live }.run(&mut view, &mut put)?;
            }
        }
        self.not_finite |= view.not_finite;
        drop(view);
        context.recorder.mark_memory("predicted");
        postprocess::resolve(context, model, channels, &stack, &mut prediction)?;
        Ok((stack, prediction))
    }

    /// Returns a note about values that are not finite; `None` if all are.
    pub(super) fn note(&self) -> Option<String> {
        self.not_finite.then(|| NOT_FINITE.to_owned())
    }

    /// Ends the inference: releases the network, and returns the sums for the visibility of seams.
    pub(super) fn finish(self) -> Seams {
        self.seams
    }
}
