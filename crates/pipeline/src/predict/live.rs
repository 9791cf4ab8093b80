//! Live view of a prediction: finished tiles are passed on while the job runs.

use crate::ops::{Elementwise, Statistics, Volume, apply, resolve};
use cytoscope_model_package::Processing;
use cytoscope_volume::Samples;
use std::convert::Infallible;
use std::path::Path;

/// A volume that is about to be predicted.
#[derive(Debug, Clone, Copy)]
pub struct LiveVolume<'a> {
    /// Path of the stack that is predicted.
    pub input: &'a Path,
    /// Time point of the input, from 0.
    pub time: usize,
    /// Number of maps that are predicted.
    pub channels: usize,
    /// Shape Z, Y, X on the model's grid.
    pub shape_zyx: [usize; 3],
}

/// Receives the finished tiles of a prediction. Its methods are called from one thread of the job at a time and block the
/// job; they cannot change the result.
pub trait LiveSink: Send + Sync {
    /// Called when the prediction of a volume starts, and again if it restarts on another device.
    fn begin(&self, volume: &LiveVolume<'_>);

    /// Returns whether finished tiles should be sent now. Tiles of a row that were finished since the last call of
    /// [`LiveSink::tile`] are sent together, at the end of the row at the latest.
    fn is_due(&self) -> bool {
        true
    }

    /// Called with the values `[C][Z][Y][X]` of a finished region of the model's grid. Values of cropped tiles are
    /// final. Values of blended tiles are the weighted means so far, and later calls may update parts of them.
    fn tile(&self, start_zyx: [usize; 3], size_zyx: [usize; 3], values: &[f32]);
}

/// A sink with the postprocessing that is applied for it: the steps that need no statistics of the whole output.
pub(super) struct Live<'a> {
    sink: &'a dyn LiveSink,
    softmax: bool,
    /// Postprocessing chain of each channel.
    chains: Vec<Vec<Elementwise>>,
}

/// Placeholder for a volume with this number of channels, whose samples the remaining postprocessing steps do not read.
struct NeverRead(usize);

impl Volume for NeverRead {
    type Error = Infallible;

    fn channels(&self) -> usize {
        self.0
    }

    fn each(&mut self, _channel: usize, _f: &mut dyn FnMut(Samples)) -> Result<(), Infallible> {
        Ok(())
    }
}

impl<'a> Live<'a> {
    /// Announces a volume to the sink and prepares its postprocessing.
    pub(super) fn begin(
        sink: &'a dyn LiveSink,
        volume: &LiveVolume<'_>,
        softmax: bool,
        postprocessing: &[Processing],
    ) -> Self {
        let needs_other_values = |step: &Processing| step.needs_statistics() || matches!(step, Processing::Softmax);
        let fixed = postprocessing.iter().position(needs_other_values).unwrap_or(postprocessing.len());
        let steps = postprocessing.get(..fixed).unwrap_or_default();
        let chains = match resolve(steps, &mut NeverRead(volume.channels), Statistics::Current, &mut []) {
            Ok(Ok(chains)) => chains,
            // An unsupported step is refused by the prediction itself.
            Ok(Err(_)) => vec![Vec::new(); volume.channels],
        };
        sink.begin(volume);
        Self { sink, softmax, chains }
    }

    /// Same as [`LiveSink::is_due`].
    pub(super) fn is_due(&self) -> bool {
        self.sink.is_due()
    }

    /// Postprocesses and passes on a region's values `[C][Z][Y][X]` as the network returned them.
    pub(super) fn tile(&self, start: [usize; 3], size: [usize; 3], mut values: Vec<f32>) {
        let voxels: usize = size.iter().product();
        if voxels == 0 {
            return;
        }
        if self.softmax {
            super::postprocess::softmax_channels(&mut values, self.chains.len());
        }
        for (chain, channel) in self.chains.iter().zip(values.chunks_exact_mut(voxels)) {
            apply(chain, channel);
        }
        self.sink.tile(start, size, &values);
    }
}
