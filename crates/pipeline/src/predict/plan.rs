//! Choice of tile size, halo and blending for a model, a volume and a memory budget.

mod budget;
mod no_pass;
mod pass;
mod tile_plan;

pub(super) use budget::Budget;
pub use no_pass::NoPass;
pub use tile_plan::{Blend, BlendRequest, TilePlan, TileRequest};

use super::batch::batch_size;
use super::label;
use super::pass_plan::{PassBand, PlannedPass};
use super::prediction::extra_source_bytes;
use super::resolve::Resolved;
use super::session_memory::{SESSION_BYTES, device_session_cap_bytes, memory_cost};
use super::tiles::not_tileable;
use crate::{Context, JobError, JobErrorKind, Model, Output, measure};
use cytoscope_engine::{EngineError, OpFallback, RollingSession, SLAB_COPIES, Session, UNKNOWN_DEVICE_SLAB_BYTES};
use cytoscope_profile::Stage;
use cytoscope_storage::message;
use cytoscope_storage::setting::{GAUSSIAN_BLEND, MEMORY_BUDGET, TILE};
use cytoscope_volume::tile::{crop_spans, window_starts};

/// Tile edges tried along Y and X, largest first.
const EDGES: [usize; 10] = [512, 384, 320, 256, 192, 160, 128, 96, 64, 32];
/// Tile edges tried along Z, largest first.
const Z_EDGES: [usize; 7] = [256, 192, 128, 96, 64, 48, 32];
/// Maximum edge of Gaussian tiles: larger ones improve the result little and use the CPU caches less well.
const GAUSSIAN_EDGE: usize = 192;
/// Factor by which larger tiles may cost more if the network depends on statistics of the tile: those of a larger one are
/// closer to those of the whole volume. Depending on the extents, tiles of 32 voxels cost a little less than those of 192.
const TOLERATED_COST: f64 = 1.1;
/// Maximum bytes of a session if no memory budget is given.
const MAX_SESSION_BYTES: u64 = 1 << 30;
/// Bytes that the process holds before any volume is read, besides the weights of the model.
const BASE_BYTES: u64 = 48 << 20;
/// Bytes of weights up to which a pass and a session for a tile are held at once while they are compared. Packed weights take
/// as much memory as those of the model, so with larger ones, the pass is planned again if it is chosen.
const COMPARED_WEIGHT_BYTES: u64 = 16 << 20;

/// The volume that is cut into tiles, or passed, and the memory that it needs besides them.
#[derive(Clone, Copy)]
struct TiledVolume {
    /// Shape Z, Y, X on the model's grid.
    shape: [usize; 3],
    /// Bytes of a slice as stored in the file.
    read_slice_bytes: u64,
    /// Bytes that the stages after prediction hold.
    later_bytes: u64,
    /// Bytes that are held throughout.
    held_bytes: u64,
    /// Bytes that writing the results takes, during a pass or after the tiles.
    writing_bytes: u64,
    /// Slices that an interrupted pass has finished.
    finished: usize,
}

/// A network, compiled for a plan.
pub(super) enum Runner {
    /// Runs one tile after the other.
    Tiles(Box<dyn Session>),
    /// Passes the volume, which is one tile, slab by slab along Z.
    Pass {
        /// Session of the network that keeps its state from slab to slab.
        session: Box<dyn RollingSession>,
        /// Number of slices in a slab.
        slab_slices: usize,
        /// Bands, each of which is passed from the first slice to the last.
        bands: Vec<PassBand>,
        /// Index of the first slice that is passed.
        first_z: usize,
        /// Multiply-accumulate operations of the whole pass.
        macs: u64,
        /// Maximum memory of finding objects during the pass, in bytes.
        objects_bytes: u64,
    },
}

/// The tiles of a volume, and the network compiled for them.
pub(super) struct PlannedTiles {
    /// Size, halo and blending of the tiles, with the expected memory.
    pub plan: TilePlan,
    /// The network, compiled for tiles of this size or for a pass.
    pub runner: Runner,
    /// Why the recorded tiles are not used; `None` if they are, or if there are none.
    pub replanned: Option<String>,
}

impl PlannedTiles {
    fn new(plan: TilePlan, session: Box<dyn Session>) -> Self {
        Self { plan, runner: Runner::Tiles(session), replanned: None }
    }

    /// States why the volume is cut into these tiles.
    fn because(mut self, reason: NoPass) -> Self {
        self.plan.no_pass = Some(reason);
        self
    }

    /// Returns the operators that the reference executor runs.
    pub(super) fn fallbacks(&self) -> Vec<OpFallback> {
        match &self.runner {
            Runner::Tiles(session) => session.report().fallbacks.clone(),
            // A pass has only kernels.
            Runner::Pass { .. } => Vec::new(),
        }
    }

    /// Returns a note about operators that the reference executor runs; `None` without any.
    pub(super) fn fallback_note(&self) -> Option<String> {
        let names: Vec<String> = self.fallbacks().iter().map(|f| format!("{} ({})", f.op, f.count)).collect();
        let note = || format!("operators run by the reference executor, which is slow: {}", names.join(", "));
        (!names.is_empty()).then(note)
    }
}

/// Memory that a job needs in addition to the stages of a prediction.
#[derive(Debug, Clone, Copy)]
pub(super) struct JobMemory {
    /// Bytes that are held throughout.
    pub held_bytes: u64,
    /// Bytes that writing the results takes, during a pass or after the tiles.
    pub writing_bytes: u64,
}

/// Chooses the tiles of a prediction, compiles the network for them, and computes the peak memory, with that of the job
/// around it. A pass continues after the first `finished` slices.
///
/// # Errors
/// [`JobError::WrongUse`] for options that the model does not allow, [`JobError::Budget`] if the memory budget is too
/// small, or the engine's error.
pub(super) fn plan(
    context: &Context,
    resolved: &Resolved<'_>,
    JobMemory { held_bytes, writing_bytes }: JobMemory,
    finished: usize,
) -> Result<PlannedTiles, JobError> {
    let zyx = resolved.extents.zyx;
    let held_bytes = held_bytes.saturating_add(resolved.reader_bytes).saturating_add(resolved.model.weight_bytes());
    let volume = TiledVolume {
        shape: resolved.grid,
        read_slice_bytes: (zyx[1] * zyx[2] * resolved.meta.dtype.size_bytes()) as u64,
        later_bytes: labeling_bytes(resolved, resolved.budget),
        held_bytes,
        // Results are read on the input's grid when they are written, and before objects are found.
        writing_bytes: writing_bytes.saturating_add(extra_source_bytes(resolved.grid, zyx)),
        finished,
    };
    let planner = Planner::new(context, resolved, volume)?;
    let mut planned = match (resolved.tiles.tile, resolved.tiles.recorded) {
        (Some(requested), _) => planner.requested(requested),
        (None, Some(recorded)) => planner.recorded(recorded),
        (None, None) => planner.best(),
    }?;
    // Estimating the object diameter came first.
    if resolved.estimate_bytes > 0 {
        let estimate_bytes = BASE_BYTES + held_bytes + resolved.estimate_bytes;
        planned.plan.stated_peak_bytes = planned.plan.stated_peak_bytes.max(estimate_bytes);
    }
    let compiling_bytes = BASE_BYTES + held_bytes + resolved.model.compiled_weight_bytes(resolved.precision());
    if compiling_bytes > planned.plan.stated_peak_bytes {
        planned.plan.stated_peak_bytes = compiling_bytes;
        planner.check(&planned.plan)?;
    }
    // What planning has freed would add to the memory of the prediction, which the plan does not count.
    cytoscope_engine_cpu::return_free_memory();
    Ok(planned)
}

/// Returns the bytes that finding and measuring objects takes after a prediction with this memory budget.
fn labeling_bytes(resolved: &Resolved<'_>, budget: Budget) -> u64 {
    let zyx = resolved.extents.zyx;
    let measured_bytes = match resolved.wants(Output::Table) {
        true => measure::slab_bytes(zyx, resolved.extents.channels, resolved.meta.dtype),
        false => 0,
    };
    match resolved.has_objects() {
        true => label::peak_bytes(zyx, budget.for_labels_bytes(), measured_bytes),
        false => 0,
    }
}

/// Returns whether the network accepts inputs of one size only, and this covers the volume, or each of its slices if the
/// network takes single slices.
fn is_one_tile(model: &Model, shape: [usize; 3]) -> bool {
    model.fixed.contains(&true) && (3 - model.spatial_axes..3).all(|a| shape[a] <= model.min_size[a])
}

/// Inputs of the choice of tiles.
struct Planner<'a> {
    context: &'a Context,
    resolved: &'a Resolved<'a>,
    model: &'a Model,
    /// Memory that the job may use.
    budget: Budget,
    volume: TiledVolume,
    blend: Blend,
    overlap: f64,
    /// Voxels cropped from each side of a tile, Z, Y, X.
    halo: [usize; 3],
}

impl<'a> Planner<'a> {
    fn new(context: &'a Context, resolved: &'a Resolved<'a>, volume: TiledVolume) -> Result<Self, JobError> {
        let (model, request) = (resolved.model, &resolved.tiles);
        let reach = model.reach;
        let blend = request.blend.unwrap_or(if reach.is_some() { Blend::Crop } else { Blend::Gaussian });
        let overlap = request.checked_overlap()?;
        let halo = match (blend, reach) {
            (Blend::Gaussian, _) => [0; 3],
            (Blend::Crop, Some(halo)) => halo,
            (Blend::Crop, None) if is_one_tile(model, volume.shape) => [0; 3],
            (Blend::Crop, None) if model.fixed.contains(&true) => {
                return Err(JobError::wrong_use_with(
                    format!("the model {} accepts inputs of one size only, so tiles cannot be cropped", model.name),
                    message!("use {GAUSSIAN_BLEND}"),
                ));
            }
            (Blend::Crop, None) => {
                let problem = format!(
                    "the model {} normalizes over the whole tile, so cropped tiles would differ from the untiled result",
                    model.name
                );
                return Err(JobError::wrong_use_with(problem, message!("use {GAUSSIAN_BLEND}")));
            }
        };
        Ok(Self { context, resolved, model, budget: resolved.budget, volume, blend, overlap, halo })
    }

    /// Returns the length of a tile along an axis that is closest to `edge` and fits the network and the volume.
    fn fit(&self, edge: usize, a: usize) -> usize {
        self.model.tile_length(edge.min(self.volume.shape[a].next_multiple_of(self.model.step[a])), a)
    }

    /// Returns the tile with the edges that `edge` gives along Z, Y, X, fitted; networks for single slices have tiles of
    /// one slice.
    fn fit_all(&self, edge: impl Fn(usize) -> usize) -> [usize; 3] {
        let single = self.model.spatial_axes == 2;
        std::array::from_fn(|a| if single && a == 0 { 1 } else { self.fit(edge(a), a) })
    }

    /// Returns the size Z, Y, X of the volume, extended to what the network accepts.
    fn whole(&self) -> [usize; 3] {
        std::array::from_fn(|a| self.fit(self.volume.shape[a], a))
    }

    /// Returns whether a tile keeps voxels after cropping, or covers the volume, along each axis.
    fn is_large_enough(&self, tile: &[usize; 3]) -> bool {
        let (shape, halo, step) = (self.volume.shape, self.halo, self.model.step);
        (0..3).all(|a| tile[a] >= shape[a] || tile[a] >= 2 * halo[a] + step[a])
    }

    /// Returns the peak memory of the host in bytes with a session of `session_bytes`, run on `batch` tiles at once.
    fn peak(&self, tile: [usize; 3], batch: usize, session_bytes: u64) -> u64 {
        let volume = &self.volume;
        let plane = (volume.shape[1] * volume.shape[2]) as u64;
        let slab_bytes = tile[0] as u64 * plane * 4;
        let channels_in = self.model.input_channels as u64;
        let channels_out = self.model.output_channels as u64;
        let sums_bytes = match self.blend {
            Blend::Crop => slab_bytes * channels_out,
            // Sums, and the few slices being passed on.
            Blend::Gaussian => slab_bytes * channels_out + 8 * plane * 4 * channels_out,
        };
        let tile_bytes = (batch * tile.iter().product::<usize>()) as u64 * 4 * (channels_in + channels_out) * 2;
        let stored_bytes = tile[0] as u64 * volume.read_slice_bytes;
        let read_bytes = stored_bytes.max(self.pass_sizes(tile).resampled_bytes(tile[0]));
        let slabs_bytes = slab_bytes * channels_in * 2 + self.device_slab_bytes(slab_bytes * channels_in);
        let during_bytes = slabs_bytes + sums_bytes + tile_bytes + session_bytes + read_bytes;
        let later_bytes = self.later_bytes(session_bytes) + volume.writing_bytes;
        BASE_BYTES + volume.held_bytes + during_bytes.max(later_bytes)
    }

    /// Returns the bytes that the stages after prediction hold, with the network, which is kept for further time points.
    fn later_bytes(&self, session_bytes: u64) -> u64 {
        let kept_bytes = if self.resolved.times.len() > 1 { session_bytes } else { 0 };
        self.volume.later_bytes + kept_bytes
    }

    /// Returns the bytes of host memory for copying a slab to a GPU: the copies under way, and those in the GPU's memory
    /// unless that is known to be separate.
    fn device_slab_bytes(&self, slab_bytes: u64) -> u64 {
        let engine = self.resolved.engine;
        match (engine.has_fallback(), engine.has_own_memory()) {
            (true, true) => slab_bytes * 2,
            (true, false) if slab_bytes <= UNKNOWN_DEVICE_SLAB_BYTES => slab_bytes * (2 + SLAB_COPIES),
            _ => 0,
        }
    }

    /// Compiles the network for a batch of tiles.
    fn compile(&self, tile: [usize; 3], batch: usize) -> Result<(TilePlan, Box<dyn Session>), JobError> {
        let model = self.model;
        let session = {
            let _span = self.context.recorder.span(Stage::Compile, format!("tile {tile:?}"));
            let shape = model.batch_shape(batch, tile);
            model.compile(self.resolved.engine.engine(), &shape, &self.resolved.compile).inspect_err(|error| {
                if let EngineError::OutOfMemory { needed_bytes, .. } = error {
                    self.resolved.engine.record_session((*needed_bytes).max(1), batch);
                }
            })?
        };
        let (arena_bytes, weight_bytes) = (session.report().arena_bytes, session.report().weight_bytes);
        self.resolved.engine.record_session(arena_bytes + weight_bytes, batch);
        let host_bytes = self.host_bytes(arena_bytes / batch.max(1) as u64 + weight_bytes);
        let stated_peak_bytes = self.peak(tile, batch, host_bytes);
        let (halo, blend, overlap) = (self.halo, self.blend, self.overlap);
        let step = model.step;
        let plan = TilePlan { tile, halo, step, blend, overlap, batch, stated_peak_bytes, pass: None, no_pass: None };
        Ok((plan, session))
    }

    /// Plans tiles of this size.
    fn accept(&self, tile: [usize; 3]) -> Result<PlannedTiles, JobError> {
        let (plan, session) = self.compile(tile, 1)?;
        self.batched(PlannedTiles::new(plan, session))
    }

    /// Compiles the network for several tiles at once if it is run on a GPU that is known to have the memory for that,
    /// and computes them independently of each other; otherwise returns the tiles as they are.
    fn batched(&self, single: PlannedTiles) -> Result<PlannedTiles, JobError> {
        let engine = self.resolved.engine;
        let Runner::Tiles(session) = &single.runner else { return Ok(single) };
        if !engine.has_own_memory() {
            return Ok(single);
        }
        let tile = single.plan.tile;
        let (arena_bytes, weight_bytes) = (session.report().arena_bytes, session.report().weight_bytes);
        let fits = |batch: usize| {
            let session_bytes = arena_bytes.saturating_mul(batch as u64).saturating_add(weight_bytes);
            session_bytes <= engine.session_limit()
                && self.peak(tile, batch, self.host_bytes(arena_bytes + weight_bytes)) <= self.budget.bytes
        };
        let batch = batch_size(self.tiles_per_slab(&tile)?, fits);
        if batch == 1 || !self.model.has_independent_samples(self.resolved.precision(), batch, tile) {
            return Ok(single);
        }
        match self.compile(tile, batch) {
            Ok((plan, session)) => Ok(PlannedTiles::new(plan, session)),
            Err(error) if error.kind() == JobErrorKind::Canceled => Err(error),
            Err(error) => {
                tracing::debug!("no batches of {batch} tiles: {error}");
                engine.record_session(arena_bytes + weight_bytes, 1);
                Ok(single)
            }
        }
    }

    /// Returns the shape of the network's output for a tile that it does not keep the size of; `None` for other tiles.
    fn other_output_shape(&self, tile: [usize; 3]) -> Option<Vec<usize>> {
        self.model.other_output_shape(self.resolved.precision(), tile)
    }

    /// Returns the cheapest of the tiles that the network keeps the size of.
    fn cheapest_kept(&self, mut tiles: Vec<[usize; 3]>, cost: impl Fn(&[usize; 3]) -> f64) -> Option<[usize; 3]> {
        loop {
            let cheapest = self.cheapest(tiles.clone(), &cost)?;
            if self.other_output_shape(cheapest).is_none() {
                return Some(cheapest);
            }
            tiles.retain(|tile| *tile != cheapest);
        }
    }

    /// Returns the number of tiles side by side in a slab.
    fn tiles_per_slab(&self, tile: &[usize; 3]) -> Result<usize, JobError> {
        let (shape, halo, step) = (self.volume.shape, self.halo, self.model.step);
        let tiles_along = |a: usize| match self.blend {
            Blend::Crop => crop_spans(shape[a], tile[a], halo[a], step[a]).map(|spans| spans.len()),
            Blend::Gaussian => window_starts(shape[a], tile[a], self.overlap).map(|starts| starts.len()),
        };
        Ok(tiles_along(1)? * tiles_along(2)?)
    }

    /// Plans tiles of a requested size.
    fn requested(&self, requested: [usize; 3]) -> Result<PlannedTiles, JobError> {
        let tile = self.fit_all(|a| requested[a]);
        if self.is_large_enough(&tile) {
            if let Some(found) = self.other_output_shape(tile) {
                let problem = message!(
                    "{TILE} {requested:?} does not suit {}: for tiles of {tile:?} voxels, its output has shape {found:?}",
                    self.model.name
                );
                return Err(JobError::wrong_use_with(problem, message!("choose another size, or leave out {TILE}")));
            }
            let planned = self.accept(tile)?;
            self.check(&planned.plan)?;
            return Ok(planned.because(self.why_requested()));
        }
        let (halo, step) = (self.halo, self.model.step);
        let min_tile: [usize; 3] = std::array::from_fn(|a| (2 * halo[a] + step[a]).next_multiple_of(step[a]));
        let problem = message!(
            "{TILE} {requested:?} is too small: the receptive field of {} extends {halo:?} voxels to each side",
            self.model.name
        );
        let next_step = format!("use at least {min_tile:?}, or the size of the stack along an axis");
        Err(JobError::wrong_use_with(problem, next_step))
    }

    /// Plans the tiles of a recorded run, or others if those do not suit the stack or the memory of this one.
    fn recorded(&self, recorded: [usize; 3]) -> Result<PlannedTiles, JobError> {
        // One tile of the size of the stack was one pass, or can be.
        let is_whole = recorded == self.whole();
        if is_whole && let Ok(pass) = self.pass() {
            return self.accept_pass(pass);
        }
        let requested = (!self.resolved.engine.has_run_out()).then(|| self.requested(recorded));
        match requested {
            None | Some(Err(JobError::WrongUse(_) | JobError::Budget { .. })) => {
                let planned = self.best()?;
                let (tile, grid) = (planned.plan.tile, self.volume.shape);
                let note = format!(
                    "the recorded tiles of {recorded:?} voxels do not suit this run, on a grid of {grid:?} voxels: \
                     tiles of {tile:?} voxels are used"
                );
                Ok(PlannedTiles { replanned: Some(note), ..planned })
            }
            Some(result) => result,
        }
    }

    /// Plans a pass, or the tiles with the least work that fit the memory budget, whichever costs less.
    fn best(&self) -> Result<PlannedTiles, JobError> {
        // Blending was requested, which requires tiles.
        let pass = if self.resolved.tiles.blend.is_none() { self.pass() } else { Err(self.why_requested()) };
        match pass {
            Ok(pass) if self.volume.finished > 0 || self.is_cheapest(&pass) => self.accept_pass(pass),
            pass => self.best_tiles(pass),
        }
    }

    /// Plans the tiles with the least work that fit the memory budget, or else the smallest ones if they fit; or `pass`,
    /// if there is one and it costs less.
    fn best_tiles(&self, pass: Result<PlannedPass, NoPass>) -> Result<PlannedTiles, JobError> {
        let (pass, pass_cost) = match pass {
            Ok(pass) => {
                let cost = self.pass_cost(&pass);
                (Some(pass).filter(|_| self.model.weight_bytes() <= COMPARED_WEIGHT_BYTES), Ok(cost))
            }
            Err(reason) => (None, Err(reason)),
        };
        // A session for a small tile shows how many bytes each voxel takes.
        let (min_size, halo, step) = (self.model.min_size, self.halo, self.model.step);
        let small = self.fit_all(|a| min_size[a].max(2 * halo[a] + 2 * step[a]).max(32));
        let (plan, session) = self.compile(small, 1)?;
        let (arena, weights) = (session.report().arena_bytes, session.report().weight_bytes);
        let smallest = PlannedTiles::new(plan, session);
        let per_voxel = arena as f64 / small.iter().product::<usize>() as f64;
        let estimate = |tile: &[usize; 3]| (per_voxel * tile.iter().product::<usize>() as f64) as u64 + weights;
        let cost = |tile: &[usize; 3]| self.cost(tile, estimate(tile));
        let fitting = self.candidates().into_iter().filter(|tile| self.fits(tile, estimate(tile))).collect();
        let best = self.cheapest_kept(fitting, cost);
        let tiles_cost = best.as_ref().map_or(f64::INFINITY, cost);
        let reason = match pass_cost {
            Ok(cost) if cost < tiles_cost => {
                // Two networks are not held at once.
                drop(smallest);
                return match pass.map_or_else(|| self.pass(), Ok) {
                    Ok(pass) => self.accept_pass(pass),
                    // Less memory is free than when it was planned before.
                    Err(reason) => self.best_tiles(Err(reason)),
                };
            }
            Ok(_) => NoPass::NotCheaper,
            Err(reason) => reason,
        };
        drop(pass);
        let planned = match best {
            Some(tile) if tile != small => {
                drop(smallest);
                self.accept(tile)?
            }
            Some(_) => self.batched(smallest)?,
            None => match self.other_output_shape(small) {
                Some(found) => {
                    let found = format!("shape {found:?} for tiles of {small:?} voxels");
                    return Err(not_tileable(&self.model.name, &found));
                }
                None => self.batched(smallest)?,
            },
        };
        self.check(&planned.plan).map_err(|error| self.with_least_memory(error, &reason))?;
        Ok(planned.because(reason))
    }

    /// Returns the first of the tiles with the least cost. If the network depends on statistics of the tile, a larger one may
    /// cost a little more.
    fn cheapest(&self, tiles: Vec<[usize; 3]>, cost: impl Fn(&[usize; 3]) -> f64) -> Option<[usize; 3]> {
        let least = tiles.iter().map(&cost).min_by(f64::total_cmp)?;
        if self.model.reach.is_some() {
            return tiles.into_iter().find(|tile| cost(tile) <= least);
        }
        let tolerated = tiles.into_iter().filter(|tile| cost(tile) <= least * TOLERATED_COST);
        tolerated.max_by_key(|tile| tile.iter().product::<usize>())
    }

    /// Returns whether tiles whose session needs `session_bytes` fit the memory budget.
    fn fits(&self, tile: &[usize; 3], session_bytes: u64) -> bool {
        let budget_bytes = self.budget.bytes;
        session_bytes <= self.session_cap_bytes() && self.peak(*tile, 1, self.host_bytes(session_bytes)) <= budget_bytes
    }

    /// Returns the cost of a pass, which can be compared with that of tiles.
    fn pass_cost(&self, pass: &PlannedPass) -> f64 {
        self.cost(&pass.tile, pass.plan.memory_bytes()) * pass.work()
    }

    /// Returns the work of a plan, increased for a session of many bytes in the host's memory if no memory budget is
    /// given.
    fn cost(&self, tile: &[usize; 3], session_bytes: u64) -> f64 {
        let is_free = self.budget.is_given || self.resolved.engine.has_own_memory();
        let factor = if is_free { 1.0 } else { memory_cost(session_bytes) };
        self.work(tile) * factor
    }

    /// Returns the maximum bytes of a session.
    fn session_cap_bytes(&self) -> u64 {
        let engine = self.resolved.engine;
        let limit_bytes = engine.session_limit();
        if engine.has_own_memory() {
            return device_session_cap_bytes(limit_bytes, engine.has_run_out());
        }
        let Budget { bytes, is_given } = self.budget;
        let cap_bytes = if is_given { bytes / 2 } else { (bytes / 2).min(MAX_SESSION_BYTES) };
        cap_bytes.min(limit_bytes)
    }

    /// Returns the bytes of host memory that are counted for a session of `session_bytes`: at most [`SESSION_BYTES`] if it
    /// is in a device's own memory.
    fn host_bytes(&self, session_bytes: u64) -> u64 {
        if self.resolved.engine.has_own_memory() { session_bytes.min(SESSION_BYTES) } else { session_bytes }
    }

    /// Returns the tiles to try, those with the least work first.
    fn candidates(&self) -> Vec<[usize; 3]> {
        let (halo, step) = (self.halo, self.model.step);
        let mut candidates: Vec<[usize; 3]> = Vec::new();
        let widest = if self.blend == Blend::Gaussian { GAUSSIAN_EDGE } else { EDGES[0] };
        for xy in EDGES.into_iter().filter(|e| *e <= widest) {
            for z in Z_EDGES.into_iter().filter(|e| *e <= widest) {
                let tile = self.fit_all(|a| if a == 0 { z.max(2 * halo[0] + step[0]) } else { xy });
                if self.is_large_enough(&tile) {
                    candidates.push(tile);
                }
            }
        }
        let voxels = |tile: &[usize; 3]| tile.iter().product::<usize>();
        let by_work = |a: &[usize; 3], b: &[usize; 3]| self.work(a).total_cmp(&self.work(b));
        candidates.sort_by(|a, b| match self.blend {
            Blend::Crop => by_work(a, b).then(voxels(a).cmp(&voxels(b))),
            // Of equals, the larger tile: its statistics are closer to those of the whole volume.
            Blend::Gaussian => by_work(a, b).then(voxels(b).cmp(&voxels(a))),
        });
        candidates.dedup();
        candidates
    }

    /// Returns the ratio of computed voxels to voxels of the volume.
    fn work(&self, tile: &[usize; 3]) -> f64 {
        let work_along = |a: usize| {
            let (n, extent) = (tile[a], self.volume.shape[a].max(1));
            let count = if n >= extent {
                1
            } else if self.blend == Blend::Crop {
                crop_spans(extent, n, self.halo[a], self.model.step[a]).map_or(extent, |spans| spans.len())
            } else {
                window_starts(extent, n, self.overlap).map_or(extent, |starts| starts.len())
            };
            (count * n) as f64 / extent as f64
        };
        (0..3).map(work_along).product()
    }

    /// Refuses a plan that needs more memory than the budget.
    fn check(&self, plan: &TilePlan) -> Result<(), JobError> {
        let budget_bytes = self.budget.bytes;
        if plan.stated_peak_bytes <= budget_bytes {
            return Ok(());
        }
        let other_bytes = self.bytes_after_pass(0);
        let next_step = if plan.stated_peak_bytes > other_bytes {
            message!("give a larger {MEMORY_BUDGET} (or a smaller {TILE}), or close other programs")
        } else {
            message!("give a larger {MEMORY_BUDGET}, or close other programs")
        };
        Err(JobError::Budget { needed_bytes: plan.stated_peak_bytes, budget_bytes, next_step })
    }
}
