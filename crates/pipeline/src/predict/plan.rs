//! Choice of tile size, halo and blending for a model, a volume and a memory budget.

use crate::model::Model;
use crate::{Context, JobError};
use cytoscope_engine::{CompileOptions, Engine, Session};
use cytoscope_profile::Stage;
use cytoscope_volume::tile::window_starts;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// How tiles are joined into one volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Blend {
    /// Tiles overlap by the network's receptive field, and output voxels whose receptive field leaves the tile are
    /// cropped. For networks with static normalization, the result is identical to the untiled one.
    Crop,
    /// Tiles overlap by a fraction and are averaged with Gaussian weights, for networks that normalise over the tile.
    Gaussian,
}

impl FromStr for Blend {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "crop" => Ok(Self::Crop),
            "gaussian" => Ok(Self::Gaussian),
            _ => Err(format!("invalid blending \"{text}\": expected crop or gaussian")),
        }
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
    /// Fraction of a tile that overlaps its neighbour, for Gaussian blending.
    pub overlap: f64,
    /// Planned peak memory of the job in bytes.
    pub stated_peak_bytes: u64,
}

/// The caller's requirements for a [`TilePlan`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TileRequest {
    /// Tile size Z, Y, X; by default the one with the least work that fits the memory budget.
    pub tile: Option<[usize; 3]>,
    /// Overlap for Gaussian blending, as a fraction of the tile (0.25 by default).
    pub overlap: Option<f64>,
    /// Blending; by default crop if the network allows it.
    pub blend: Option<Blend>,
}

/// Tile edges tried along Y and X, largest first.
const EDGES: [usize; 10] = [512, 384, 320, 256, 192, 160, 128, 96, 64, 32];
/// Tile edges tried along Z, largest first.
const Z_EDGES: [usize; 7] = [256, 192, 128, 96, 64, 48, 32];
/// Maximum edge of Gaussian tiles: larger ones improve the result little and use the CPU caches less well.
const GAUSSIAN_EDGE: usize = 192;
/// Bytes of a session up to which only the work counts if no memory budget is given: see [`memory_cost`].
const SESSION_BYTES: u64 = 192 << 20;
/// Bytes that the process holds before any volume is read.
const BASE_BYTES: u64 = 48 << 20;

/// Memory budget of a job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    /// Maximum number of bytes.
    pub bytes: u64,
    /// Whether the user gave the budget; then all of it may be used.
    pub is_given: bool,
}

/// The volume to be tiled.
pub(crate) struct Volume {
    /// Shape Z, Y, X on the model's grid.
    pub shape: [usize; 3],
    /// Bytes of a slice as stored in the file.
    pub read_slice_bytes: u64,
    /// Bytes that the stages after prediction hold.
    pub later_bytes: u64,
}

/// Chooses a tile plan, compiles the network for it, and computes the peak memory.
pub(crate) fn plan(
    context: &Context,
    model: &Model,
    engine: &dyn Engine,
    options: &CompileOptions,
    request: &TileRequest,
    volume: &Volume,
    budget: Budget,
) -> Result<(TilePlan, Box<dyn Session>), JobError> {
    let reach = model.reach;
    let blend = request.blend.unwrap_or(if reach.is_some() { Blend::Crop } else { Blend::Gaussian });
    let overlap = request.overlap.unwrap_or(0.25);
    if !(0.0..1.0).contains(&overlap) {
        return Err(JobError::WrongUse(format!("invalid --overlap {overlap}: expected a number from 0 to below 1")));
    }
    let halo = match (blend, reach) {
        (Blend::Gaussian, _) => [0; 3],
        (Blend::Crop, Some(halo)) => halo,
        (Blend::Crop, None) => {
            return Err(JobError::WrongUse(format!(
                "the model {} normalises over the whole tile, so cropped tiles would differ from the untiled result: \
                 use --blend gaussian",
                model.name
            )));
        }
    };
    let step = model.step;
    let fit = |edge: usize, a: usize| {
        edge.min(volume.shape[a].next_multiple_of(step[a])).max(model.min_size[a]).next_multiple_of(step[a])
    };
    let single = model.spatial_axes == 2;
    let compile = |tile: [usize; 3]| -> Result<Box<dyn Session>, JobError> {
        let _span = context.recorder.span(Stage::Compile, format!("tile {tile:?}"));
        let channels = model.input_channels;
        Ok(model.compile(engine, &model.tensor_shape(channels, tile), options)?)
    };
    let Budget { bytes: budget_bytes, is_given } = budget;
    let cap = budget_bytes / 2;
    let peak = |tile: [usize; 3], session_bytes: u64| -> u64 {
        let plane = (volume.shape[1] * volume.shape[2]) as u64;
        let slab = tile[0] as u64 * plane * 4;
        let channels_in = model.input_channels as u64;
        let channels_out = model.output_channels as u64;
        let sums = match blend {
            Blend::Crop => slab * channels_out,
            // Sums, and the few slices being passed on.
            Blend::Gaussian => slab * channels_out + 8 * plane * 4 * channels_out,
        };
        let tile_bytes = tile.iter().product::<usize>() as u64 * 4 * (channels_in + channels_out) * 2;
        let during =
            slab * channels_in * 2 + sums + tile_bytes + session_bytes + tile[0] as u64 * volume.read_slice_bytes;
        BASE_BYTES + during.max(volume.later_bytes)
    };
    let accept = |tile: [usize; 3]| -> Result<(TilePlan, Box<dyn Session>, u64), JobError> {
        let session = compile(tile)?;
        let held = session.report().arena_bytes + session.report().weight_bytes;
        let stated_peak_bytes = peak(tile, held);
        Ok((TilePlan { tile, halo, step, blend, overlap, stated_peak_bytes }, session, held))
    };
    if let Some(requested) = request.tile {
        let tile: [usize; 3] = std::array::from_fn(|a| if single && a == 0 { 1 } else { fit(requested[a], a) });
        let axes = (0..3).filter(|a| tile[*a] < volume.shape[*a] && tile[*a] < 2 * halo[*a] + step[*a]);
        if axes.count() > 0 {
            let min_tile: [usize; 3] = std::array::from_fn(|a| (2 * halo[a] + step[a]).next_multiple_of(step[a]));
            return Err(JobError::WrongUse(format!(
                "--tile {requested:?} is too small: the receptive field of {} extends {halo:?} voxels to each side; use at least \
                 {min_tile:?}, or the size of the stack along an axis",
                model.name
            )));
        }
        let (plan, session, _) = accept(tile)?;
        check(&plan, volume, budget_bytes)?;
        return Ok((plan, session));
    }
    // A session for a small tile shows how many bytes each voxel takes.
    let small: [usize; 3] = std::array::from_fn(|a| {
        if single && a == 0 { 1 } else { fit(model.min_size[a].max(2 * halo[a] + 2 * step[a]).max(32), a) }
    });
    let (mut best, mut session, held) = accept(small)?;
    let weights = session.report().weight_bytes;
    let per_voxel = (held - weights) as f64 / small.iter().product::<usize>() as f64;
    let mut candidates: Vec<[usize; 3]> = Vec::new();
    let widest = if blend == Blend::Gaussian { GAUSSIAN_EDGE } else { EDGES[0] };
    for xy in EDGES.into_iter().filter(|e| *e <= widest) {
        for z in Z_EDGES.into_iter().filter(|e| *e <= widest) {
            let tile = std::array::from_fn(|a| match a {
                0 if single => 1,
                0 => fit(z.max(2 * halo[0] + step[0]), 0),
                _ => fit(xy, a),
            });
            if (0..3).all(|a| tile[a] >= volume.shape[a] || tile[a] >= 2 * halo[a] + step[a]) {
                candidates.push(tile);
            }
        }
    }
    // Ratio of computed voxels to voxels of the volume: candidates with the least work come first.
    let work = |tile: &[usize; 3]| -> f64 {
        (0..3)
            .map(|a| {
                let (n, extent) = (tile[a], volume.shape[a].max(1));
                let count = if n >= extent {
                    1
                } else if blend == Blend::Crop {
                    extent.div_ceil(n.saturating_sub(2 * halo[a]).max(1))
                } else {
                    window_starts(extent, n, overlap).map_or(extent, |starts| starts.len())
                };
                (count * n) as f64 / extent as f64
            })
            .product()
    };
    let voxels = |tile: &[usize; 3]| tile.iter().product::<usize>();
    candidates.sort_by(|a, b| match blend {
        Blend::Crop => work(a).total_cmp(&work(b)).then(voxels(a).cmp(&voxels(b))),
        // Of equals, the larger tile: its statistics are closer to those of the whole volume.
        Blend::Gaussian => work(a).total_cmp(&work(b)).then(voxels(b).cmp(&voxels(a))),
    });
    candidates.dedup();
    let estimate = |tile: &[usize; 3]| (per_voxel * tile.iter().product::<usize>() as f64) as u64 + weights;
    candidates.retain(|tile| estimate(tile) <= cap && peak(*tile, estimate(tile)) <= budget_bytes);
    let cost = |tile: &[usize; 3]| if is_given { work(tile) } else { work(tile) * memory_cost(estimate(tile)) };
    if let Some(tile) = candidates.into_iter().min_by(|a, b| cost(a).total_cmp(&cost(b)))
        && tile != small
    {
        drop(session);
        (best, session, _) = accept(tile)?;
    }
    check(&best, volume, budget_bytes)?;
    Ok((best, session))
}

/// The factor by which the memory of a session makes a plan less attractive, if no memory budget is given: 1 up to
/// [`SESSION_BYTES`], and above it the fourth root of the ratio, so that a session twice as large has to save 16 % of
/// the work. Networks with a wide receptive field compute most voxels of a small tile several times.
fn memory_cost(session_bytes: u64) -> f64 {
    (session_bytes as f64 / SESSION_BYTES as f64).max(1.0).powf(0.25)
}

fn check(plan: &TilePlan, volume: &Volume, budget_bytes: u64) -> Result<(), JobError> {
    if plan.stated_peak_bytes <= budget_bytes {
        return Ok(());
    }
    let next_step = if plan.stated_peak_bytes > volume.later_bytes + BASE_BYTES {
        "give a larger --memory-budget or a smaller --tile, or close other programs"
    } else {
        "give a larger --memory-budget, or close other programs"
    };
    Err(JobError::Budget { needed_bytes: plan.stated_peak_bytes, budget_bytes, next_step: next_step.to_owned() })
}
