//! Options of a prediction, for files and for volumes in memory.

use super::{ChannelRef, PredictJob, TileRequest};
use crate::JobError;
use crate::diameter::DiameterRequest;
use crate::job::check_threads;
use cytoscope_engine::Precision;
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::{CHANNEL, CHANNELS, MEMORY_BUDGET, TILE, VOXEL_SIZE};
use std::path::PathBuf;

/// Maximum edge of a tile in voxels.
const MAX_TILE_EDGE: usize = 1 << 20;

/// Options of a prediction that do not depend on where its input comes from and where its results go.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PredictOptions {
    /// Precision; `None` selects the best one of the device for this model.
    pub precision: Option<Precision>,
    /// Tile size, overlap and blending.
    pub tiles: TileRequest,
    /// First channel to use as the model's input, from 0.
    pub channel: Option<usize>,
    /// The channels to use as the model's inputs, in their order; if empty, consecutive ones from `channel` on.
    pub channels: Vec<ChannelRef>,
    /// Time point, from 0; `None` predicts all.
    pub time: Option<usize>,
    /// Voxel size Z, Y, X in µm, to use instead of the image's own.
    pub voxel_um: Option<[f64; 3]>,
    /// Median diameter of the objects, for models with a nominal diameter: stacks are rescaled so that objects have that one.
    pub diameter: DiameterRequest,
    /// Memory budget in bytes; `None` uses three quarters of the free memory.
    pub memory_budget_bytes: Option<u64>,
    /// Number of threads; 0 uses all cores.
    pub threads: usize,
}

impl PredictOptions {
    /// Checks values that the command line has already checked, because jobs also come from files.
    ///
    /// # Errors
    /// [`JobError::WrongUse`] with the option and the values that were expected.
    pub(crate) fn check(&self) -> Result<(), JobError> {
        let wrong = |what: Message| Err(JobError::wrong_use(what));
        check_threads(self.threads)?;
        if let Some(tile) = self.tiles.tile.filter(|t| t.iter().any(|n| *n == 0 || *n > MAX_TILE_EDGE)) {
            return wrong(message!("invalid {TILE} {tile:?}: expected lengths from 1 to {MAX_TILE_EDGE} voxels"));
        }
        self.tiles.checked_overlap()?;
        if self.memory_budget_bytes == Some(0) {
            return wrong(message!("invalid {MEMORY_BUDGET} 0: expected a size such as 2G"));
        }
        if self.channel.is_some() && !self.channels.is_empty() {
            let problem = message!("{CHANNEL} and {CHANNELS} cannot be used together");
            return Err(JobError::wrong_use_with(problem, "give one of them"));
        }
        match self.voxel_um.filter(|v| v.iter().any(|um| !um.is_finite() || *um <= 0.0)) {
            Some(um) => wrong(message!("invalid {VOXEL_SIZE} {um:?}: expected three sizes above 0 in µm")),
            None => Ok(()),
        }
    }
}

impl PredictJob {
    /// Returns a job that predicts these stacks with a model, given by path or name, into the folder `out`, with all
    /// options at their defaults.
    pub fn new(inputs: Vec<PathBuf>, model: String, out: PathBuf) -> Self {
        Self { inputs, model, out, ..Self::default() }
    }

    /// Returns the job's options without its files.
    pub fn options(&self) -> PredictOptions {
        PredictOptions {
            precision: self.precision,
            tiles: self.tiles.clone(),
            channel: self.channel,
            channels: self.channels.clone(),
            time: self.time,
            voxel_um: self.voxel_um,
            diameter: self.diameter,
            memory_budget_bytes: self.memory_budget_bytes,
            threads: self.threads,
        }
    }
}
