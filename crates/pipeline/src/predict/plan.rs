//! Tiles, halo and blending for a model, a volume and a memory budget.

use crate::model::Model;
use crate::{Context, JobError};
use cytoscope_engine::{CompileOptions, Engine, Session};
use cytoscope_profile::Stage;
use cytoscope_volume::tile::window_starts;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// How tiles become one volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Blend {
    /// Tiles overlap by the network's receptive field and only what it cannot see past is kept: exactly the untiled result,
    /// for networks of static normalization.
    Crop,
    /// Tiles overlap by a share and are averaged under a Gaussian, for networks that normalise over the tile.
    Gaussian,
}

impl FromStr for Blend {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "crop" => Ok(Self::Crop),
            "gaussian" => Ok(Self::Gaussian),
            _ => Err(format!("\"{text}\" is no blending: expected crop or gaussian")),
        }
    }
}

/// How a volume is tiled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TilePlan {
    /// Voxels of a tile along Z, Y, X.
    pub tile: [usize; 3],
    /// Voxels of real neighbours a kept voxel needs on each side.
    pub halo: [usize; 3],
    /// Tiles start and end on multiples of this.
    pub step: [usize; 3],
    /// How tiles are joined.
    pub blend: Blend,
    /// Share of a tile that overlaps the next, for Gaussian blending.
    pub overlap: f64,
    /// Bytes the job is expected to hold at most.
    pub stated_peak_bytes: u64,
}

/// What a caller asks of the plan.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TileRequest {
    /// Tile along Z, Y, X; the largest that fits by default.
    pub tile: Option<[usize; 3]>,
    /// Share of overlap for Gaussian blending (0.25 by default).
    pub overlap: Option<f64>,
    /// Blending; by what the network allows by default.
    pub blend: Option<Blend>,
}

/// Tile edges tried, largest first.
const EDGES: [usize; 10] = [512, 384, 320, 256, 192, 160, 128, 96, 64, 32];
/// Edge of Gaussian tiles where memory allows: larger ones gain little and keep less near the processor.
const GAUSSIAN_EDGE: usize = 192;
/// Bytes a session may take where no budget is given by name.
const SESSION_BYTES: u64 = 192 << 20;
/// What a process holds before any volume.
const BASE_BYTES: u64 = 48 << 20;

/// Bytes a job may hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    /// So many.
    pub bytes: u64,
    /// Asked for by name: then all of it may be used.
    pub is_given: bool,
}

/// The volume to be tiled.
pub(crate) struct Volume {
    /// On the model's grid.
    pub shape: [usize; 3],
    /// Bytes of a slice as read.
    pub read_slice_bytes: u64,
    /// Bytes the later stages hold.
    pub later_bytes: u64,
}

/// Plans, compiles, and states the peak.
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
        return Err(JobError::WrongUse(format!("--overlap {overlap} is outside 0 to below 1")));
    }
    let halo = match (blend, reach) {
        (Blend::Gaussian, _) => [0; 3],
        (Blend::Crop, Some(halo)) => halo,
        (Blend::Crop, None) => {
            return Err(JobError::WrongUse(format!(
                "{} normalises over the whole tile, so cropped tiles would not equal the untiled result: use --blend gaussian",
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
    let cap = if is_given { budget_bytes / 2 } else { (budget_bytes / 2).min(SESSION_BYTES) };
    let peak = |tile: [usize; 3], session_bytes: u64| -> u64 {
        let plane = (volume.shape[1] * volume.shape[2]) as u64;
        let slab = tile[0] as u64 * plane * 4;
        let channels_in = model.input_channels as u64;
        let channels_out = model.output_channels as u64;
        let sums = match blend {
            Blend::Crop => slab * channels_out,
            // Sums, and the few slices being handed on.
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
    if let Some(asked) = request.tile {
        let tile: [usize; 3] = std::array::from_fn(|a| if single && a == 0 { 1 } else { fit(asked[a], a) });
        let axes = (0..3).filter(|a| tile[*a] < volume.shape[*a] && tile[*a] < 2 * halo[*a] + step[*a]);
        if axes.count() > 0 {
            let least: [usize; 3] = std::array::from_fn(|a| (2 * halo[a] + step[a]).next_multiple_of(step[a]));
            return Err(JobError::WrongUse(format!(
                "--tile {asked:?} is too small: {} looks {halo:?} voxels around each voxel, so tiles take at least {least:?} \
                 (or the whole stack along an axis)",
                model.name
            )));
        }
        let (plan, session, _) = accept(tile)?;
        check(&plan, volume, budget_bytes)?;
        return Ok((plan, session));
    }
    // A probe on a small tile tells the bytes a voxel takes.
    let small: [usize; 3] = std::array::from_fn(|a| {
        if single && a == 0 { 1 } else { fit(model.min_size[a].max(2 * halo[a] + 2 * step[a]).max(32), a) }
    });
    let (mut best, mut session, held) = accept(small)?;
    let weights = session.report().weight_bytes;
    let per_voxel = (held - weights) as f64 / small.iter().product::<usize>() as f64;
    let mut candidates: Vec<[usize; 3]> = Vec::new();
    let widest = if blend == Blend::Gaussian { GAUSSIAN_EDGE } else { EDGES[0] };
    for xy in EDGES.into_iter().filter(|e| *e <= widest) {
        for z in [64, 48, 32].into_iter().filter(|e| *e <= widest) {
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
    // Voxels computed over those of the volume: the least work first, of equals the smaller.
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
        // Statistics over larger tiles are nearer to those of the whole.
        Blend::Gaussian => work(a).total_cmp(&work(b)).then(voxels(b).cmp(&voxels(a))),
    });
    candidates.dedup();
    for tile in candidates {
        let estimate = (per_voxel * tile.iter().product::<usize>() as f64) as u64 + weights;
        if estimate > cap || peak(tile, estimate) > budget_bytes {
            continue;
        }
        if tile != small {
            drop(session);
            (best, session, _) = accept(tile)?;
        }
        break;
    }
    check(&best, volume, budget_bytes)?;
    Ok((best, session))
}

fn check(plan: &TilePlan, volume: &Volume, budget_bytes: u64) -> Result<(), JobError> {
    if plan.stated_peak_bytes <= budget_bytes {
        return Ok(());
    }
    let next_step = if plan.stated_peak_bytes > volume.later_bytes + BASE_BYTES {
        "give a greater --memory-budget or a smaller --tile, or close other programs"
    } else {
        "give a greater --memory-budget or close other programs"
    };
    Err(JobError::Budget { needed_bytes: plan.stated_peak_bytes, budget_bytes, next_step: next_step.to_owned() })
}
