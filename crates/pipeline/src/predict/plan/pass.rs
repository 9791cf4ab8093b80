//! Plans one pass over a volume.
//!
//! Whole slices pass if the memory allows it, otherwise bands of rows, which the engine chooses. If slices are wide,
//! only bands of a few rows fit, and most of a band is the receptive field of its neighbors. In bands along Y alone, a
//! stack of 40 x 8000 x 8000 voxels takes 1.44 times the untiled work within 6 GiB, and does not fit the session of 1
//! GiB that is used without a memory budget. Therefore, bands of columns are tried as well, each of which is planned
//! like a narrower volume.

use super::{BASE_BYTES, Blend, Budget, NoPass, PlannedTiles, Planner, Runner, TilePlan};
use crate::JobError;
use crate::predict::label;
use crate::predict::pass_plan::{PassPlan, PassSizes, PlannedPass, pass_bands};
use crate::predict::postprocess::split_softmax;
use cytoscope_engine::CompileOptions;
use cytoscope_profile::Stage;
use cytoscope_volume::tile::{Span, crop_spans};

/// Maximum number of attempts to plan a pass with less memory.
const ATTEMPTS: usize = 7;
/// Numbers of bands of columns that are tried until more of them cost more.
const COLUMN_BANDS: [usize; 6] = [2, 4, 8, 16, 32, 64];

impl Planner<'_> {
    /// Plans one pass over the whole volume, which computes no voxel twice unless it passes in bands, or returns why a pass is
    /// not possible.
    pub(super) fn pass(&self) -> Result<PlannedPass, NoPass> {
        let Budget { bytes: budget_bytes, is_given } = self.budget;
        if let Some(reason) = self.never_passes() {
            return Err(reason);
        }
        if self.blend != Blend::Crop {
            return Err(self.why_requested());
        }
        let tile = self.whole();
        if let Some(found) = self.other_output_shape(tile) {
            let problem = format!("its output has shape {found:?} for a stack of {tile:?} voxels");
            return Err(NoPass::Network { problem });
        }
        let room_bytes = budget_bytes.saturating_sub(self.bytes_around_session(tile, 1, self.smallest_band(tile)));
        let cap_bytes = if is_given { room_bytes } else { self.session_cap_bytes().min(room_bytes) };
        let whole = Span { start: 0, len: tile[2], keep_start: 0, keep_len: self.volume.shape[2] };
        let mut best = self.pass_in_columns(tile, vec![whole], cap_bytes);
        for count in COLUMN_BANDS {
            let is_done = match &best {
                Ok(pass) => pass.is_whole(),
                Err(reason) => !matches!(reason, NoPass::Memory { .. }),
            };
            let Some(columns) = self.columns(tile, count).filter(|_| !is_done) else { break };
            let next = self.pass_in_columns(tile, columns, cap_bytes);
            let (is_better, goes_on) = match (&next, &best) {
                (Ok(next), Ok(best)) => {
                    let is_cheaper = self.pass_cost(next) < self.pass_cost(best);
                    (is_cheaper, is_cheaper)
                }
                (Ok(_), Err(_)) => (true, true),
                // Where no bands fit, the least memory is stated.
                (Err(NoPass::Memory { needed_bytes, .. }), Err(NoPass::Memory { needed_bytes: least_bytes, .. })) => {
                    (needed_bytes < least_bytes, true)
                }
                (Err(_), _) => (false, false),
            };
            if is_better {
                best = next;
            }
            if !goes_on {
                break;
            }
        }
        best
    }

    /// Returns about `count` bands of the columns of `tile`, all of the same length; `None` if they would be too narrow.
    fn columns(&self, tile: [usize; 3], count: usize) -> Option<Vec<Span>> {
        let (halo, step) = (self.halo[2], self.model.step[2].max(1));
        let width = (tile[2].div_ceil(count) + 2 * halo).next_multiple_of(step);
        if width >= tile[2] || width < self.model.min_size[2] {
            return None;
        }
        if self.other_output_shape([tile[0], tile[1], width]).is_some() {
            return None;
        }
        crop_spans(self.volume.shape[2], width, halo, step).ok().filter(|columns| columns.len() > 1)
    }

    /// Returns the rows and columns of the smallest bands.
    pub(super) fn smallest_band(&self, tile: [usize; 3]) -> [usize; 2] {
        [1, 2].map(|a| (2 * self.halo[a] + self.model.step[a]).min(tile[a]))
    }

    /// Plans a pass in these bands of columns, with a session of at most `cap_bytes`.
    fn pass_in_columns(&self, tile: [usize; 3], columns: Vec<Span>, mut cap_bytes: u64) -> Result<PlannedPass, NoPass> {
        let (model, budget_bytes) = (self.model, self.budget.bytes);
        let first_z = self.first_slice(tile);
        let width = columns.first().map_or(tile[2], |columns| columns.len);
        let shape = [1, model.input_channels, tile[0] - first_z, tile[1], width];
        let mut too_large: Option<NoPass> = None;
        for _ in 0..ATTEMPTS {
            let options = CompileOptions { memory_budget_bytes: Some(cap_bytes), ..self.resolved.compile.clone() };
            let span = self.context.recorder.span(Stage::Compile, "one pass");
            let plan = model.plan_rolling(self.resolved.engine.engine(), &shape, &options);
            drop(span);
            let plan = match plan {
                Ok(plan) => plan,
                Err(refusal) => {
                    tracing::debug!("no pass along Z: {refusal}");
                    return Err(too_large.unwrap_or_else(|| self.refused(refusal, tile)));
                }
            };
            let part = [plan.bands().first().map_or(tile[1], |band| band.fed.len()), width];
            let during = self.bytes_around_session(tile, plan.slab_planes(), part).saturating_add(plan.memory_bytes());
            let peak_bytes = during.max(self.bytes_after_pass(plan.memory_bytes()));
            if peak_bytes <= budget_bytes {
                let read_voxels = self.pass_sizes(tile).read_voxels(&pass_bands(plan.bands(), &columns), first_z);
                let objects_bytes = self.objects_bytes().min(budget_bytes - during);
                let peak_bytes = peak_bytes.max(during + objects_bytes);
                return Ok(PlannedPass { tile, first_z, plan, columns, peak_bytes, objects_bytes, read_voxels });
            }
            let reason = NoPass::Memory { needed_bytes: peak_bytes, budget_bytes };
            if self.bytes_after_pass(0) > budget_bytes {
                return Err(reason);
            }
            too_large = Some(reason);
            // Shorter slabs need less memory around the session, too.
            let room_bytes = budget_bytes.saturating_sub(self.bytes_around_session(tile, 1, part));
            cap_bytes = cap_bytes.min(plan.memory_bytes()).saturating_sub(1).min(room_bytes);
        }
        Err(too_large.unwrap_or(NoPass::NotCheaper))
    }

    /// Returns the bytes that the stages after a pass hold, if its network takes `session_bytes`.
    pub(super) fn bytes_after_pass(&self, session_bytes: u64) -> u64 {
        BASE_BYTES + self.volume.held_bytes + self.volume.writing_bytes + self.later_bytes(session_bytes)
    }

    /// Returns the first slice of a pass. If slices are finished, it is the first one in the receptive field of the next.
    fn first_slice(&self, tile: [usize; 3]) -> usize {
        let wanted = self.volume.finished.saturating_sub(self.halo[0]);
        let last = tile[0].saturating_sub(self.model.min_size[0].max(1));
        wanted.min(last) / self.model.step[0] * self.model.step[0]
    }

    /// Allocates the memory of a pass.
    pub(super) fn accept_pass(&self, pass: PlannedPass) -> Result<PlannedTiles, JobError> {
        let work = pass.work();
        let macs = pass.macs();
        let PlannedPass { tile, first_z, plan, columns, peak_bytes, objects_bytes, .. } = pass;
        let slab_slices = plan.slab_planes();
        let bands = pass_bands(plan.bands(), &columns);
        let described = PassPlan { slab_slices, bands: plan.bands().len(), bands_x: columns.len(), work };
        let span = self.context.recorder.span(Stage::Compile, "memory of the pass");
        let session = plan.start()?;
        span.finish();
        let runner = Runner::Pass { session, slab_slices, bands, first_z, macs, objects_bytes };
        let plan = TilePlan {
            tile,
            halo: self.halo,
            step: self.model.step,
            blend: Blend::Crop,
            overlap: self.overlap,
            batch: 1,
            stated_peak_bytes: peak_bytes,
            pass: Some(described),
            no_pass: None,
        };
        Ok(PlannedTiles { plan, runner, replanned: None })
    }

    /// Returns whether a pass costs less than all tiles that may fit the budget. They are judged by a lower bound of
    /// their memory, so that no session is compiled for the comparison.
    pub(super) fn is_cheapest(&self, pass: &PlannedPass) -> bool {
        let voxels = |tile: &[usize; 3]| tile.iter().product::<usize>().max(1) as f64;
        let per_voxel = pass.bytes_per_voxel();
        let least_bytes = |tile: &[usize; 3]| (per_voxel * voxels(tile)) as u64;
        let cost = self.pass_cost(pass);
        let tiles = self.candidates();
        tiles.iter().filter(|t| self.fits(t, least_bytes(t))).all(|t| cost < self.cost(t, least_bytes(t)))
    }

    /// Returns the sizes of a pass over the volume, extended to `tile`, or of reading it for tiles of this size.
    pub(super) fn pass_sizes(&self, tile: [usize; 3]) -> PassSizes {
        PassSizes {
            tile,
            shape: self.volume.shape,
            zyx: self.resolved.extents.zyx,
            channels: [self.model.input_channels, self.model.output_channels],
            read_slice_bytes: self.volume.read_slice_bytes,
            has_softmax: split_softmax(self.model).0,
        }
    }

    /// Returns the bytes that one pass in slabs of `slab_slices` slices, in bands of `part` rows and columns, holds besides the
    /// session.
    pub(super) fn bytes_around_session(&self, tile: [usize; 3], slab_slices: usize, part: [usize; 2]) -> u64 {
        let job_bytes = BASE_BYTES + self.volume.held_bytes + self.volume.writing_bytes;
        job_bytes + self.pass_sizes(tile).bytes(slab_slices, part)
    }

    /// Returns the memory in bytes that finding objects during a pass may take, if the budget allows it.
    fn objects_bytes(&self) -> u64 {
        let streamed_bytes = self.budget.for_labels_bytes();
        if self.resolved.has_objects() {
            label::bytes_during_pass(self.resolved.extents.zyx, streamed_bytes)
        } else {
            0
        }
    }
}
