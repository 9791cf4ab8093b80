//! The network's output, stored in a spool on the model's grid and read on the input's grid.

use super::label::MapSource;
use crate::ops::{Elementwise, Volume, apply};
use crate::spool::Spool;
use crate::{Context, JobError};
use cytoscope_profile::Stage;
use cytoscope_volume::Samples;
use cytoscope_volume::resample::{AxisMap, linear};
use std::ops::Range;

/// A predicted volume.
pub(crate) struct Prediction {
    spool: Spool<f32>,
    pub channels: usize,
    /// Shape Z, Y, X on the model's grid.
    pub model_shape: [usize; 3],
    /// Shape Z, Y, X on the input's grid.
    pub shape: [usize; 3],
    /// Maps back to the input's grid; `None` if both grids are equal.
    back: Option<[AxisMap; 3]>,
    /// Postprocessing chain of each channel.
    pub chains: Vec<Vec<Elementwise>>,
    buffer: Vec<f32>,
}

impl Prediction {
    pub(crate) fn new(spool: Spool<f32>, channels: usize, model_shape: [usize; 3], shape: [usize; 3]) -> Self {
        let back = super::grid::maps(model_shape, shape);
        Self { spool, channels, model_shape, shape, back, chains: vec![Vec::new(); channels], buffer: Vec::new() }
    }

    /// Stores finished slices `[C][z][Y][X]` of the model's grid.
    pub(crate) fn put(&mut self, context: &Context, z: Range<usize>, values: &[f32]) -> Result<(), JobError> {
        let plane = self.model_shape[1] * self.model_shape[2];
        let _span = context.recorder.span(Stage::Write, "spool").bytes(values.len() * 4);
        for (i, slice) in z.clone().enumerate() {
            for c in 0..self.channels {
                let from = (c * z.len() + i) * plane;
                self.spool.write(slice * self.channels + c, &values[from..from + plane])?;
            }
        }
        Ok(())
    }

    /// Reads slices `z` of one channel on the input's grid, postprocessed.
    pub(crate) fn read(&mut self, context: &Context, channel: usize, z: Range<usize>) -> Result<Vec<f32>, JobError> {
        let sources = self.back.as_ref().map_or(z.clone(), |maps| maps[0].sources(z.clone()));
        let plane = self.model_shape[1] * self.model_shape[2];
        let mut slab = Vec::with_capacity(sources.len() * plane);
        let span = context.recorder.span(Stage::Read, "spool").bytes(sources.len() * plane * 4);
        for s in sources.clone() {
            let at = s * self.channels + channel;
            self.spool.read(at..at + 1, &mut self.buffer)?;
            slab.extend_from_slice(&self.buffer);
        }
        drop(span);
        apply(&self.chains[channel], &mut slab);
        match &self.back {
            None => Ok(slab),
            Some(maps) => {
                let _span =
                    context.recorder.span(Stage::Resample, "to input").voxels(z.len() * self.shape[1] * self.shape[2]);
                Ok(linear(&slab, sources.start, [self.model_shape[1], self.model_shape[2]], maps, z))
            }
        }
    }
}

impl MapSource for Prediction {
    fn shape(&self) -> [usize; 3] {
        self.shape
    }

    fn read(&mut self, context: &Context, channel: usize, z: Range<usize>) -> Result<Vec<f32>, JobError> {
        Prediction::read(self, context, channel, z)
    }
}

/// A prediction before postprocessing, for statistics.
pub(crate) struct Unprocessed<'a>(pub &'a mut Prediction);

impl Volume for Unprocessed<'_> {
    type Error = JobError;

    fn channels(&self) -> usize {
        self.0.channels
    }

    fn each(&mut self, channel: usize, f: &mut dyn FnMut(Samples)) -> Result<(), JobError> {
        let p = &mut *self.0;
        for slice in 0..p.model_shape[0] {
            let at = slice * p.channels + channel;
            p.spool.read(at..at + 1, &mut p.buffer)?;
            f(Samples::F32(p.buffer.clone()));
        }
        Ok(())
    }
}
