//! How a volume is tiled, and what the caller requires of it.

use super::super::pass_plan::PassPlan;
use super::NoPass;
use crate::JobError;
use cytoscope_profile::bytes_text;
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::OVERLAP;
use cytoscope_volume::number_text;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// How tiles are joined into one volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Blend {
    /// Tiles overlap by the network's receptive field, and output voxels whose receptive field leaves the tile are
    /// cropped. For networks with static normalization, the result is identical to the untiled one.
    Crop,
    /// Tiles overlap by a fraction and are averaged with Gaussian weights, for networks that normalize over the tile.
    Gaussian,
}

impl Blend {
    /// All ways of joining tiles.
    pub const ALL: [Self; 2] = [Self::Crop, Self::Gaussian];

    /// Returns the name on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Crop => "crop",
            Self::Gaussian => "gaussian",
        }
    }
}

cytoscope_storage::parsed_by_name!(Blend, "invalid blending");

/// How the user wants tiles to be joined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BlendRequest {
    /// One pass without tiles, if that is possible; otherwise as the network allows it.
    #[default]
    Auto,
    /// Always tiles, which are joined in this way.
    Tiles(Blend),
}

impl BlendRequest {
    /// Name of the default on the command line.
    const AUTO: &'static str = "auto";

    /// Returns the names of all requests on the command line.
    pub fn names() -> impl Iterator<Item = &'static str> {
        std::iter::once(Self::AUTO).chain(Blend::ALL.map(Blend::name))
    }

    /// Returns the requested way of joining tiles; `None` for the default.
    pub fn blend(self) -> Option<Blend> {
        match self {
            Self::Auto => None,
            Self::Tiles(blend) => Some(blend),
        }
    }
}

impl FromStr for BlendRequest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == Self::AUTO {
            return Ok(Self::Auto);
        }
        text.parse()
            .map(Self::Tiles)
            .map_err(|_| format!("invalid blending \"{text}\": expected auto, crop or gaussian"))
    }
}

/// How a volume is tiled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TilePlan {
    /// Tile size Z, Y, X in voxels.
    pub tile: [usize; 3],
    /// Voxels cropped from each side of a tile.
    pub halo: [usize; 3],
    /// Tiles start and end on multiples of this.
    pub step: [usize; 3],
    /// How tiles are joined.
    pub blend: Blend,
    /// Fraction of a tile that overlaps its neighbor, for Gaussian blending.
    pub overlap: f64,
    /// Tiles that the network computes together; more than 1 on GPUs only.
    #[serde(default = "one_tile", skip_serializing_if = "is_one_tile")]
    pub batch: usize,
    /// Planned peak memory of the job in bytes.
    pub stated_peak_bytes: u64,
    /// The slabs and bands of a pass; `None` if the volume is predicted in tiles. The tile is then the whole volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass: Option<PassPlan>,
    /// Why the volume is predicted in tiles; `None` for a pass, and in plans of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_pass: Option<NoPass>,
}

impl TilePlan {
    /// Returns the planned peak memory, such as `about 350 MiB`.
    pub fn memory_text(&self) -> String {
        format!("about {}", bytes_text(self.stated_peak_bytes))
    }

    /// Returns how the volume is predicted, with the planned peak memory, as a clause.
    pub fn text(&self) -> String {
        let [z, y, x] = self.tile;
        let why = self.no_pass.as_ref().map(|reason| format!(" because {}", reason.clause())).unwrap_or_default();
        let tiles = || format!("tiles of {z}×{y}×{x} voxels{why}");
        let how = self.pass.as_ref().map_or_else(tiles, PassPlan::text);
        format!("{how}, {} of memory", self.memory_text())
    }

    /// Returns a note that a volume of shape Z, Y, X is cut into several tiles, with the reason; `None` if it is not, or
    /// if the user asked for tiles.
    pub(crate) fn tiles_note(&self, shape: [usize; 3]) -> Option<Message> {
        let is_cut = self.tile.iter().zip(shape).any(|(tile, extent)| *tile < extent);
        self.no_pass.as_ref().filter(|_| is_cut)?.note()
    }
}

/// The batch of plans that state none.
fn one_tile() -> usize {
    1
}

fn is_one_tile(batch: &usize) -> bool {
    *batch == 1
}

/// The caller's requirements for a [`TilePlan`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TileRequest {
    /// Tile size Z, Y, X; by default the one with the least work that fits the memory budget.
    pub tile: Option<[usize; 3]>,
    /// Tile size Z, Y, X of a run that is repeated: used if `tile` is none and this one suits the stack and the budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<[usize; 3]>,
    /// Overlap for Gaussian blending, as a fraction of the tile (0.25 by default), at most [`TileRequest::MAX_OVERLAP`].
    pub overlap: Option<f64>,
    /// Blending; by default crop if the network allows it.
    pub blend: Option<Blend>,
}

impl TileRequest {
    /// Largest overlap for Gaussian blending. The work grows with the third power of `1 / (1 - overlap)`: at this overlap, the
    /// network computes each voxel 1000 times.
    pub const MAX_OVERLAP: f64 = 0.9;

    /// Returns the overlap to use.
    ///
    /// # Errors
    /// [`JobError::WrongUse`] if it is not between 0 and [`TileRequest::MAX_OVERLAP`].
    pub(crate) fn checked_overlap(&self) -> Result<f64, JobError> {
        let overlap = self.overlap.unwrap_or(0.25);
        if (0.0..=Self::MAX_OVERLAP).contains(&overlap) {
            return Ok(overlap);
        }
        let (given, largest) = (number_text(overlap), Self::MAX_OVERLAP);
        Err(JobError::wrong_use(message!(
            "invalid {OVERLAP} {given}: expected a number from 0 to {largest}, at which the network computes each voxel 1000 \
             times"
        )))
    }
}
