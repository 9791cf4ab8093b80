//! Sampling of patches: each is a pure function of the pairs, the options and its index.

mod options;
mod places;
mod prepared;

pub use options::{ObjectScale, SamplerOptions};

use crate::augment::geometry::{GeometricParams, Transform};
use crate::augment::intensity::IntensityParams;
use crate::error::{TrainingDataError, check_limit};
use crate::interpolate;
use crate::limits::{MAX_BOX_VOXELS, MAX_PATCH_VOXELS};
use crate::normalize::Scaling;
use crate::objects::{IGNORED, mix};
use crate::reader::{Convert, Outside, UnclippedBox};
use crate::sources::{Source, Sources};
use crate::targets::channels;
use cytoscope_volume::BoxZyx;
use cytoscope_volume::resample::resampled_extent;
use cytoscope_volume::statistics::Moments;
use cytoscope_volume::tile::window_starts;
use prepared::{PreparedPair, median_radius_um};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use serde::Serialize;
use std::sync::Arc;
use std::time::Instant;

/// Where a patch was sampled.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Origin {
    /// Index of the pair in its [`Sources`].
    pub pair: usize,
    /// Name of the pair.
    pub name: String,
    /// Voxel coordinates Z, Y, X in the file of the center of the patch.
    pub center_zyx: [f64; 3],
}

/// A training patch: image, target and weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Patch {
    /// Index of the patch, from which its position and augmentation follow.
    pub index: u64,
    /// Shape along Z, Y, X.
    pub shape_zyx: [usize; 3],
    /// Number of channels of the image.
    pub image_channels: usize,
    /// Number of channels of the target.
    pub channels: usize,
    /// Intensities, each channel normalized separately, `[channel][Z][Y][X]`.
    pub image: Vec<f32>,
    /// Target, `[channel][Z][Y][X]`.
    pub target: Vec<f32>,
    /// Weight of each voxel in the loss, `[Z][Y][X]`: 0 outside the stack, for the ignore label and where a stain is not
    /// finite, otherwise 1 or more. A single plane that is mirrored along Z is not outside.
    pub weight: Vec<f32>,
    /// Weight of each voxel in the loss of the channels after the first, `[Z][Y][X]`: as `weight`, and 0 where they are
    /// unknown. Empty if all channels have the weights of the first ([`Sampler::has_further_weights`]).
    pub further_weight: Vec<f32>,
    /// Where the patch was sampled.
    pub from: Origin,
}

/// Duration of each stage of a patch in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct StageTimes {
    /// Drawing the transform, and reading image and target.
    pub read_secs: f64,
    /// Time of the interpolation of image and labels in seconds.
    pub geometry_secs: f64,
    /// Time of the intensity augmentation in seconds.
    pub intensity_secs: f64,
    /// Time of computing target and weights in seconds.
    pub target_secs: f64,
}

/// Makes training patches of pairs; each is a pure function of seed and index.
#[derive(Debug)]
pub struct Sampler {
    sources: Arc<Sources>,
    options: SamplerOptions,
    ready: Vec<PreparedPair>,
    /// Cumulative weights of the pairs.
    shares: Vec<f64>,
    tiles: usize,
}

/// Parameters of a patch: its position and augmentation.
struct PatchPlan {
    pair: usize,
    transform: Transform,
    center: [f64; 3],
    /// Intensity augmentation of each image channel.
    changes: Vec<IntensityParams>,
    /// Number of voxels at the start of each axis that belong to the previous tile.
    seen: [usize; 3],
}

impl Sampler {
    /// Reads all pairs once (images twice for percentiles) for statistics and objects, several files in parallel.
    ///
    /// # Errors
    /// [`TrainingDataError`] for options out of range, files that cannot be read, or more labels than
    /// [`crate::limits::MAX_OBJECTS`].
    pub fn new(sources: Arc<Sources>, options: SamplerOptions) -> Result<Self, TrainingDataError> {
        options.check()?;
        let options = options.with_flip();
        let mut ready = sources
            .entries
            .par_iter()
            .map(|entry| PreparedPair::of(&sources, entry, &options))
            .collect::<Result<Vec<_>, _>>()?;
        let default_radius_um = median_radius_um(&ready);
        let mut tiles = 0;
        for (ready, entry) in ready.iter_mut().zip(&sources.entries) {
            for a in 0..3 {
                if options.target.needs_margin() {
                    // At most half a patch: a larger margin costs more than it improves the targets.
                    let own_um = ready.index.median_diameter_um(ready.file_um).filter(|_| options.objects.is_some());
                    let radius_um = options.margin_um.unwrap_or(own_um.map_or(default_radius_um, |d| d / 2.0));
                    let wanted = (radius_um / ready.patch_um[a]).ceil().max(1.0);
                    ready.margin[a] = wanted.min(options.patch_zyx[a] as f64 / 2.0) as usize;
                }
                ready.extent[a] = resampled_extent(entry.extent()[a], ready.file_um[a], ready.patch_um[a]);
                ready.tiles[a] = window_starts(ready.extent[a], options.patch_zyx[a], 0.0)?;
            }
            let grids = ready.grids(options.patch_zyx);
            let voxels = grids.with_margin().size.iter().fold(1u64, |n, s| n.saturating_mul(*s as u64));
            let next_step = "take smaller patches or a smaller margin";
            let limit = ("MAX_PATCH_VOXELS", MAX_PATCH_VOXELS);
            check_limit(
                &entry.pair.image.path,
                "the number of voxels of a patch with its margin",
                voxels,
                limit,
                next_step,
            )?;
            ready.tiles_before = tiles;
            tiles += ready.tiles.iter().map(Vec::len).product::<usize>();
        }
        let mut sum = 0.0;
        let shares = sources
            .entries
            .iter()
            .map(|e| {
                sum += e.pair.weight;
                sum
            })
            .collect();
        if sum <= 0.0 {
            return Err(TrainingDataError::Parameter {
                what: "the sum of the weights of the training pairs",
                got: sum.to_string(),
                expected: "above 0, so at least one of them needs a weight",
            });
        }
        Ok(Self { sources, options, ready, shares, tiles })
    }

    /// Returns the options that the sampler was created with.
    pub fn options(&self) -> &SamplerOptions {
        &self.options
    }

    /// Returns whether the channels of a target after the first have their own weights: the labels have an ignore
    /// label, and where a voxel is known to be in an object, the height, boundary or flow may still be unknown.
    pub fn has_further_weights(&self) -> bool {
        self.options.has_further_weights()
    }

    /// Returns the opened pairs.
    pub fn sources(&self) -> &Arc<Sources> {
        &self.sources
    }

    /// Returns the intensity normalization of an image channel of a pair; if each slice is normalized separately, the
    /// normalization of the first slice.
    pub fn scaling(&self, pair: usize, channel: usize) -> Option<Scaling> {
        self.ready.get(pair)?.scalings.get(channel)?.first().copied()
    }

    /// Returns the voxel size of a pair's patches along Z, Y, X in µm (1 if neither the file nor the options state it).
    pub fn patch_voxel_um(&self, pair: usize) -> Option<[f64; 3]> {
        self.ready.get(pair).map(|r| r.patch_um)
    }

    /// Returns the margin of a pair's patches along Z, Y, X in voxels.
    pub fn margin_zyx(&self, pair: usize) -> Option<[usize; 3]> {
        self.ready.get(pair).map(|r| r.margin)
    }

    /// Returns mean, variance and range of all intensities of each stain for [`crate::TargetKind::Regression`]; empty for
    /// labels.
    pub fn target_moments(&self) -> Vec<Moments> {
        let stains = self.ready.first().map_or(0, |r| r.target_moments.len());
        let mut all = vec![Moments::default(); stains];
        for ready in &self.ready {
            all.iter_mut().zip(&ready.target_moments).for_each(|(all, moments)| all.merge(*moments));
        }
        all
    }

    /// Returns the fraction of foreground voxels in all label images; 0 for regression.
    pub fn foreground_share(&self) -> f64 {
        let (mut objects, mut voxels) = (0u64, 0u64);
        for r in &self.ready {
            objects += r.index.foreground;
            voxels += r.index.voxels - r.index.ignored;
        }
        if self.options.target.is_from_labels() { objects as f64 / voxels.max(1) as f64 } else { 0.0 }
    }

    /// Returns the number of objects in all label images; 0 for regression.
    pub fn object_count(&self) -> usize {
        if self.options.target.is_from_labels() { self.ready.iter().map(|r| r.index.objects.len()).sum() } else { 0 }
    }

    /// Returns the patch of an index. It is the same for the same pairs, options and index, in any order and on any
    /// thread.
    ///
    /// # Errors
    /// [`TrainingDataError`] if a file cannot be read, or a patch needs more than [`MAX_BOX_VOXELS`] voxels of it.
    pub fn sample(&self, index: u64) -> Result<Patch, TrainingDataError> {
        self.sample_timed(index).map(|(patch, _)| patch)
    }

    /// Like [`Sampler::sample`], with the duration of each stage.
    ///
    /// # Errors
    /// Same as [`Sampler::sample`].
    pub fn sample_timed(&self, index: u64) -> Result<(Patch, StageTimes), TrainingDataError> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.options.seed);
        rng.set_stream(index);
        let plan = self.plan(&mut rng);
        self.make_patch(index, &plan, &mut rng)
    }

    /// Returns the number of tiles: patches that cover every pair once, without augmentation.
    pub fn tile_count(&self) -> usize {
        self.tiles
    }

    /// Returns one of the patches that cover every pair once, without augmentation and on the grid that prediction
    /// uses. The last tiles along an axis are moved inward; their overlap with the previous tile has weight 0, so that
    /// each voxel counts once.
    ///
    /// # Errors
    /// Same as [`Sampler::sample`]; [`TrainingDataError::Parameter`] if the index is not below [`Sampler::tile_count`].
    pub fn tile(&self, index: usize) -> Result<Patch, TrainingDataError> {
        let out_of_range = || TrainingDataError::Parameter {
            what: "the index of a tile",
            got: index.to_string(),
            expected: "below Sampler::tile_count",
        };
        if index >= self.tiles {
            return Err(out_of_range());
        }
        let pair = self.ready.partition_point(|r| r.tiles_before <= index).saturating_sub(1);
        let (ready, entry) = self.ready.get(pair).zip(self.sources.entries.get(pair)).ok_or_else(out_of_range)?;
        let mut rest = index - ready.tiles_before;
        let (mut start, mut seen) = ([0; 3], [0; 3]);
        for a in (0..3).rev() {
            let places = &ready.tiles[a];
            let i = rest % places.len().max(1);
            rest /= places.len().max(1);
            start[a] = places.get(i).copied().unwrap_or(0);
            let before = i.checked_sub(1).and_then(|j| places.get(j));
            seen[a] = before.map_or(0, |b| (b + self.options.patch_zyx[a]).saturating_sub(start[a]));
        }
        let grids = ready.grids(self.options.patch_zyx);
        let step = std::array::from_fn(|a| entry.extent()[a] as f64 / ready.extent[a] as f64);
        let first = std::array::from_fn(|a| entry.window[a].start);
        let transform = Transform::cut(&grids, start, step, first);
        let center = std::array::from_fn(|a| {
            (start[a] as f64 + grids.patch_zyx[a] as f64 / 2.0) * step[a] - 0.5 + first[a] as f64
        });
        let changes = vec![IntensityParams::default(); entry.images.len()];
        let plan = PatchPlan { pair, transform, center, changes, seen };
        let mut rng = ChaCha8Rng::seed_from_u64(self.options.seed);
        self.make_patch(index as u64, &plan, &mut rng).map(|(patch, _)| patch)
    }

    /// Draws the parameters of a patch.
    fn plan(&self, rng: &mut ChaCha8Rng) -> PatchPlan {
        let total = self.shares.last().copied().unwrap_or(1.0);
        let at = rng.random::<f64>() * total;
        let pair = self.shares.partition_point(|s| *s <= at).min(self.shares.len() - 1);
        let (ready, entry) = (&self.ready[pair], &self.sources.entries[pair]);
        let grids = ready.grids(self.options.patch_zyx);
        let on_object = rng.random::<f64>() < self.options.object_bias;
        let (which, seed) = (rng.random::<f64>(), rng.random::<f64>());
        let mut off = [0.0; 3];
        off.iter_mut().for_each(|o| *o = rng.random::<f64>());
        let object = if on_object { ready.pick(which, seed) } else { None };
        // A patch without known voxels would be a wasted step.
        let voxel = object.or_else(|| ready.pick_known(which));
        let center = std::array::from_fn(|a| {
            let step = grids.patch_um[a] / grids.stack_um[a];
            let (n, window) = (grids.patch_zyx[a] as f64, &entry.window[a]);
            let (before, after) = ((n / 2.0).floor() * step, (n - 1.0 - (n / 2.0).floor()) * step);
            let (low, high) = (window.start as f64 + before, (window.end - 1) as f64 - after);
            if low > high {
                // The patch is larger than the stack: both are centered.
                return ((window.start + window.end - 1) as f64 / 2.0).round();
            }
            let wanted = match voxel {
                // The voxel is at a random position in the central half of the patch.
                Some(voxel) => f64::from(voxel[a]) + (off[a] - 0.5) * 0.5 * n * step,
                None => low + off[a] * (high - low),
            };
            wanted.round().clamp(low.ceil(), high.floor().max(low.ceil()))
        });
        let longest = (0..3).map(|a| grids.patch_zyx[a] as f64 * grids.patch_um[a]).fold(0.0, f64::max);
        let moves = GeometricParams::draw(&self.options.augment, longest, rng);
        let mut changes = vec![IntensityParams::draw(&self.options.augment, rng)];
        let transform = Transform::new(&grids, center, &moves, rng);
        // Drawn last, so that the random numbers of pairs with one channel do not depend on further channels.
        changes.extend(entry.images.iter().skip(1).map(|_| IntensityParams::draw(&self.options.augment, rng)));
        PatchPlan { pair, transform, center, changes, seen: [0; 3] }
    }

    /// Reads a box of one of a pair's stacks, after checking its size.
    fn read_checked_box<O: Copy>(
        &self,
        entry: &Source,
        stack: usize,
        wanted: UnclippedBox,
        fill: Option<O>,
        convert: &impl Convert<O>,
    ) -> Result<Vec<O>, TrainingDataError> {
        let voxels = wanted.size.iter().fold(1u64, |n, s| n.saturating_mul(*s as u64));
        let file = self.sources.reader.stack(stack).map(|s| s.image.path.as_path()).unwrap_or(&entry.pair.image.path);
        let next_step = "choose an object diameter and a voxel size closer to those of the file, smaller patches, or downsample \
                         the file";
        check_limit(
            file,
            "the number of voxels read for one patch",
            voxels,
            ("MAX_BOX_VOXELS", MAX_BOX_VOXELS),
            next_step,
        )?;
        let mut out = Vec::new();
        self.sources.reader.read_box(stack, entry.window.clone(), wanted, fill, convert, &mut out)?;
        Ok(out)
    }

    fn make_patch(
        &self,
        index: u64,
        plan: &PatchPlan,
        rng: &mut ChaCha8Rng,
    ) -> Result<(Patch, StageTimes), TrainingDataError> {
        let mut times = StageTimes::default();
        let mut clock = Instant::now();
        let mut lap = |into: &mut f64| {
            let now = Instant::now();
            *into += (now - clock).as_secs_f64();
            clock = now;
        };
        let (ready, entry) = (&self.ready[plan.pair], &self.sources.entries[plan.pair]);
        let shape = self.options.patch_zyx;
        let grids = ready.grids(shape);
        let (inner, outer) = (UnclippedBox { start: [0; 3], size: shape }, grids.with_margin());
        let mirror = self.options.outside == Outside::Mirror;
        let half_widths = half_widths(&plan.transform, &entry.window);
        let image_box = plan.transform.reads(&inner, half_widths);
        let read = |(stack, scaling): (&usize, &Scaling)| {
            let fill = (!mirror).then_some(scaling.dark);
            self.read_checked_box(entry, *stack, image_box, fill, scaling)
        };
        let scalings = ready.scalings_at(plan.center[0]);
        let image_voxels = entry.images.iter().zip(&scalings).map(read).collect::<Result<Vec<_>, _>>()?;
        let len: usize = shape.iter().product();
        let (mut image, mut weight) = (vec![0.0f32; len * image_voxels.len()], vec![1.0f32; len]);
        let [low, high] = counted(&entry.window, &image_box, mirror);
        // Empty for labels.
        let stains = entry.targets.iter().zip(&ready.target_moments);
        let stain_voxels =
            stains.map(|(stack, moments)| read((stack, &stain_scaling(moments)))).collect::<Result<Vec<_>, _>>()?;
        let mut stain = vec![0.0f32; len * stain_voxels.len()];
        lap(&mut times.read_secs);
        let mut rows = plan.transform.rows(&inner, image_box.start);
        for (row, weight) in weight.chunks_exact_mut(shape[2]).enumerate() {
            if row % shape[1] == 0 {
                rows.slice((row / shape[1]) as i64);
            }
            let at = rows.row((row % shape[1]) as i64);
            interpolate::zero_outside(at, low, high, weight);
            let images = image_voxels.iter().zip(image.chunks_exact_mut(len));
            for (voxels, out) in images.chain(stain_voxels.iter().zip(stain.chunks_exact_mut(len))) {
                if let Some(out) = out.get_mut(row * shape[2]..(row + 1) * shape[2]) {
                    interpolate::filtered(voxels, image_box.size, half_widths, at, out);
                }
            }
        }
        drop((image_voxels, stain_voxels));
        lap(&mut times.geometry_secs);
        let (target, known) = if self.options.target.is_from_labels() {
            let labels = self.labels(ready, entry, &plan.transform, &outer, &mut |t| lap(t), &mut times)?;
            let part = channels::Inner { start: ready.margin, size: shape };
            let target = channels::target_channels(&self.options.target, &labels, outer.size, part, ready.network_um)?;
            self.apply_label_weights(&labels, outer.size, part, ready.network_um, &mut weight);
            (target.values, target.known)
        } else {
            leave_out_missing(&mut stain, &mut weight, &ready.target_moments);
            (stain, Vec::new())
        };
        zero_seen_weights(&mut weight, shape, plan.seen);
        let has_further = self.options.has_further_weights();
        let further_weight = if has_further { weights_where(&weight, &known) } else { Vec::new() };
        lap(&mut times.target_secs);
        for ((image, changes), scaling) in image.chunks_exact_mut(len).zip(&plan.changes).zip(&scalings) {
            changes.apply(image, shape, scaling, rng)?;
        }
        lap(&mut times.intensity_secs);
        let from = Origin { pair: plan.pair, name: entry.pair.name.clone(), center_zyx: plan.center };
        let (image_channels, channels) = (image.len() / len, target.len() / len);
        let patch =
            Patch { index, shape_zyx: shape, image_channels, channels, image, target, weight, further_weight, from };
        Ok((patch, times))
    }

    /// Returns the labels of a patch, including its margin.
    fn labels(
        &self,
        ready: &PreparedPair,
        entry: &Source,
        transform: &Transform,
        outer: &UnclippedBox,
        lap: &mut dyn FnMut(&mut f64),
        times: &mut StageTimes,
    ) -> Result<Vec<u32>, TrainingDataError> {
        let wanted = transform.reads(outer, [1.0; 3]);
        let fill = (self.options.outside == Outside::Background).then_some(0u32);
        let voxels = self.read_checked_box(entry, entry.target(), wanted, fill, &ready.code)?;
        let mut labels = vec![0u32; outer.size.iter().product()];
        lap(&mut times.read_secs);
        let mut rows = transform.rows(outer, wanted.start);
        for (row, out) in labels.chunks_exact_mut(outer.size[2]).enumerate() {
            if row % outer.size[1] == 0 {
                rows.slice((row / outer.size[1]) as i64 + outer.start[0]);
            }
            let at = rows.row((row % outer.size[1]) as i64 + outer.start[1]);
            interpolate::nearest(&voxels, wanted.size, at, 0, out);
        }
        lap(&mut times.geometry_secs);
        Ok(labels)
    }

    /// Sets the weights of the ignore label and of gaps.
    fn apply_label_weights(
        &self,
        labels: &[u32],
        shape: [usize; 3],
        inner: channels::Inner,
        voxel_um: [f64; 3],
        weight: &mut [f32],
    ) {
        let gaps = self.options.gap_weight.map(|g| g.factors(labels, shape, voxel_um));
        channels::each_row(shape, inner, |from, to| {
            let width = inner.size[2];
            let (Some(weight), Some(labels)) = (weight.get_mut(to..to + width), labels.get(from..from + width)) else {
                return;
            };
            weight.iter_mut().zip(labels).filter(|(_, l)| **l == IGNORED).for_each(|(w, _)| *w = 0.0);
            if let Some(gaps) = gaps.as_ref().and_then(|g| g.get(from..from + width)) {
                weight.iter_mut().zip(gaps).for_each(|(w, g)| *w *= g);
            }
        });
    }
}

/// Returns the weights of the voxels where something is known, and 0 elsewhere; an empty `known` stands for everywhere.
fn weights_where(weight: &[f32], known: &[bool]) -> Vec<f32> {
    let is_known = |at: usize| known.get(at).is_none_or(|known| *known);
    weight.iter().enumerate().map(|(at, w)| if is_known(at) { *w } else { 0.0 }).collect()
}

/// Returns the half widths of the filter for intensities, as [`Transform::half_widths`] does. The slice of a plane is not averaged
/// with others, which would repeat it.
fn half_widths(transform: &Transform, window: &BoxZyx) -> [f64; 3] {
    let [z, y, x] = transform.half_widths();
    [if window[0].len() == 1 { 1.0 } else { z }, y, x]
}

/// Returns the lowest and the highest position along Z, Y, X that counts in the loss, in voxels of the box that is read:
/// those of the window. If a single plane is mirrored along Z, all of its slices count: predictions also repeat it, and take
/// the first one.
fn counted(window: &BoxZyx, read: &UnclippedBox, mirror: bool) -> [[f32; 3]; 2] {
    let at = |position: i64, a: usize, half: f32| (position - read.start[a]) as f32 + half;
    let mut low: [f32; 3] = std::array::from_fn(|a| at(window[a].start as i64, a, -0.5));
    let mut high: [f32; 3] = std::array::from_fn(|a| at(window[a].end as i64 - 1, a, 0.5));
    if mirror && window[0].len() == 1 {
        (low[0], high[0]) = (f32::NEG_INFINITY, f32::INFINITY);
    }
    [low, high]
}

/// Returns the scaling of a stain, which keeps its values; those that are not finite become NaN.
fn stain_scaling(moments: &Moments) -> Scaling {
    Scaling { gain: 1.0, offset: 0.0, std: 1.0, dark: moments.min as f32, missing: f32::NAN }
}

/// Replaces the values of stains that are not finite, or are interpolated from such values, by the minimum of their stain, and
/// sets the weights of these voxels to 0.
fn leave_out_missing(stains: &mut [f32], weight: &mut [f32], moments: &[Moments]) {
    for (values, moments) in stains.chunks_exact_mut(weight.len().max(1)).zip(moments) {
        let missing = values.iter_mut().zip(weight.iter_mut()).filter(|(value, _)| !value.is_finite());
        missing.for_each(|(value, weight)| (*value, *weight) = (moments.min as f32, 0.0));
    }
}

/// Sets the weights of the first `seen` voxels along each axis to 0.
fn zero_seen_weights(weight: &mut [f32], [_, ny, nx]: [usize; 3], seen: [usize; 3]) {
    if seen == [0; 3] {
        return;
    }
    for (row, values) in weight.chunks_exact_mut(nx).enumerate() {
        if row / ny < seen[0] || row % ny < seen[1] {
            values.fill(0.0);
        } else {
            values.iter_mut().take(seen[2]).for_each(|w| *w = 0.0);
        }
    }
}

impl Sampler {
    /// Returns a hash of the pairs and the options, by which a resumed run detects whether its patches are still the
    /// same.
    pub fn fingerprint(&self) -> u64 {
        let mut sum = 0u64;
        // Options are numbers, texts and lists of them, which JSON can represent.
        let text = serde_json::to_string(&self.options).unwrap_or_default();
        let pairs = self.sources.pairs().map(|p| format!("{}|{:?}|{}", p.name, p.window, p.weight));
        for part in std::iter::once(text).chain(pairs) {
            for byte in part.bytes() {
                sum = mix(sum ^ u64::from(byte));
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::augment::geometry::Grids;

    #[test]
    fn a_plane_is_averaged_within_its_slice_only() {
        let grids = Grids { patch_zyx: [1, 9, 9], margin: [0; 3], patch_um: [3.0; 3], stack_um: [1.0; 3] };
        let transform = Transform::cut(&grids, [0; 3], [3.0; 3], [0; 3]);
        assert_eq!(half_widths(&transform, &[0..1, 0..27, 0..27]), [1.0, 2.0, 2.0]);
        assert_eq!(half_widths(&transform, &[4..6, 0..27, 0..27]), [2.0; 3]);
    }
}
