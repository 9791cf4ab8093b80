//! A prediction seen while it grows, tile by tile.

use crate::ops::{Elementwise, Statistics, Volume, apply, fix};
use cytoscope_graph::package::Processing;
use cytoscope_volume::Samples;
use std::convert::Infallible;
use std::path::Path;

/// The volume that is about to be predicted.
#[derive(Debug, Clone, Copy)]
pub struct LiveVolume<'a> {
    /// The input.
    pub input: &'a Path,
    /// Its time point, from 0.
    pub time: usize,
    /// Channels of the prediction.
    pub channels: usize,
    /// Extents Z, Y, X of the model's grid.
    pub shape_zyx: [usize; 3],
}

/// Sees a prediction grow. It is called from the job's thread, which waits for it; it cannot change the result.
pub trait LiveSink: Send + Sync {
    /// A volume is begun; also when it is begun anew, on another device.
    fn begin(&self, volume: &LiveVolume<'_>);

    /// Whether it is time to tell what is done. Tiles of a row that were finished since the last telling are told together, at
    /// the end of the row at the latest.
    fn is_due(&self) -> bool {
        true
    }

    /// A part of it is done: values `[C][Z][Y][X]` of a region of the model's grid. Cropped tiles are final; of blended ones these
    /// are the weighted means so far, and a later tile may tell parts of them again.
    fn tile(&self, start_zyx: [usize; 3], size_zyx: [usize; 3], values: &[f32]);
}

/// A sink and what is done to values before it sees them: the postprocessing that needs no statistics of the whole output.
pub(super) struct Live<'a> {
    sink: &'a dyn LiveSink,
    softmax: bool,
    /// One chain a channel.
    chains: Vec<Vec<Elementwise>>,
}

/// A volume of so many channels that is never read.
struct Nothing(usize);

impl Volume for Nothing {
    type Error = Infallible;

    fn channels(&self) -> usize {
        self.0
    }

    fn each(&mut self, _channel: usize, _f: &mut dyn FnMut(Samples)) -> Result<(), Infallible> {
        Ok(())
    }
}

impl<'a> Live<'a> {
    /// Begins a volume.
    pub(super) fn begin(
        sink: &'a dyn LiveSink,
        volume: &LiveVolume<'_>,
        softmax: bool,
        postprocessing: &[Processing],
    ) -> Self {
        let rests_on_whole = |step: &Processing| step.needs_statistics() || matches!(step, Processing::Softmax);
        let fixed = postprocessing.iter().position(rests_on_whole).unwrap_or(postprocessing.len());
        let steps = postprocessing.get(..fixed).unwrap_or_default();
        let chains = match fix(steps, &mut Nothing(volume.channels), Statistics::Current, &mut []) {
            Ok(Ok(chains)) => chains,
            Ok(Err(_)) => vec![Vec::new(); volume.channels],
        };
        sink.begin(volume);
        Self { sink, softmax, chains }
    }

    pub(super) fn is_due(&self) -> bool {
        self.sink.is_due()
    }

    /// Hands on a region's values `[C][Z][Y][X]` as the network gave them.
    pub(super) fn tile(&self, start: [usize; 3], size: [usize; 3], mut values: Vec<f32>) {
        let voxels: usize = size.iter().product();
        if voxels == 0 {
            return;
        }
        if self.softmax {
            super::one::softmax_channels(&mut values, self.chains.len());
        }
        for (chain, channel) in self.chains.iter().zip(values.chunks_exact_mut(voxels)) {
            apply(chain, channel);
        }
        self.sink.tile(start, size, &values);
    }
}
