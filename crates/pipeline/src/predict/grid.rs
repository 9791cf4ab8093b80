//! The model's voxel grid, and resampling to it and back.

use super::constant_channels::Contrast;
use crate::float_loss::FloatLoss;
use crate::model_inputs::SAME_VOXEL;
use crate::slice_statistics::Chains;
use crate::stack::Stack;
use crate::{Context, JobError};
use cytoscope_profile::Stage;
use cytoscope_volume::Samples;
use cytoscope_volume::resample::{AxisMap, linear, resampled_extent};
use std::ops::Range;

/// Slices read at once; these are held twice, as stored and as floats.
pub(crate) const READ_SLICES: usize = 8;

/// Slices that are cached between slabs that may overlap.
pub(super) const CACHED_SLICES: usize = 16;

/// A preprocessed stack, resampled to the model's grid.
pub(crate) struct ModelView<'a> {
    /// The stack on its own grid, before the model's preprocessing.
    pub stack: &'a Stack,
    /// Channels of the stack that are the model's input, in the model's order.
    pub channels: &'a [usize],
    /// Preprocessing of the channels; slices are counted in the whole stack.
    pub chains: Chains,
    /// Shape Z, Y, X on the model's grid.
    pub shape: [usize; 3],
    /// Whether any value read so far was NaN or infinite.
    pub not_finite: bool,
    /// What conversion to 32-bit floats has changed in the values read so far.
    pub loss: FloatLoss,
    /// What the values read so far are like, for each channel.
    pub contrast: Vec<Contrast>,
    maps: Option<[AxisMap; 3]>,
    /// The slices read last, for each channel: range of input slices and their values.
    cache: Vec<(Range<usize>, Vec<f32>)>,
    /// Number of slices to cache between slabs.
    overlap: usize,
}

/// Returns the shape Z, Y, X on the model's grid; along an axis, it is the input's own if a voxel size is unknown or
/// both are equal.
pub(crate) fn model_shape(zyx: [usize; 3], voxel_um: Option<[f64; 3]>, model_um: Option<[f64; 3]>) -> [usize; 3] {
    let (Some(from), Some(to)) = (voxel_um, model_um) else { return zyx };
    std::array::from_fn(|a| {
        let same = (from[a] / to[a] - 1.0).abs() <= SAME_VOXEL || zyx[a] == 1;
        if same { zyx[a] } else { resampled_extent(zyx[a], from[a], to[a]) }
    })
}

/// Returns the maps from one grid to another; `None` if they are the same.
pub(crate) fn maps(from: [usize; 3], to: [usize; 3]) -> Option<[AxisMap; 3]> {
    (from != to).then(|| std::array::from_fn(|a| AxisMap::new(from[a], to[a])))
}

/// Returns the rows and columns of the input that those of the model's grid are computed from; without maps, both grids are
/// the same.
pub(super) fn sources(maps: Option<&[AxisMap; 3]>, [rows, columns]: [Range<usize>; 2]) -> [Range<usize>; 2] {
    match maps {
        Some([_, map_y, map_x]) => [map_y.sources(rows), map_x.sources(columns)],
        None => [rows, columns],
    }
}

impl<'a> ModelView<'a> {
    pub(crate) fn new(stack: &'a Stack, channels: &'a [usize], chains: Chains, shape: [usize; 3]) -> Self {
        let maps = maps(stack.extents.zyx, shape);
        let cache = vec![(0..0, Vec::new()); channels.len()];
        let contrast = vec![Contrast::default(); channels.len()];
        let (not_finite, loss) = (false, FloatLoss::default());
        Self { stack, channels, chains, shape, not_finite, loss, contrast, maps, cache, overlap: CACHED_SLICES }
    }

    /// Announces that slabs are read one after the other, without overlap: then nothing is cached, unless neighboring
    /// slabs are resampled from the same slices.
    pub(crate) fn read_in_order(&mut self) {
        if self.maps.is_none() {
            self.overlap = 0;
        }
    }

    /// Returns the part of the stack that some rows and columns of the model's grid are computed from.
    pub(crate) fn stack_part(&self, part: [Range<usize>; 2]) -> Stack {
        let depth = self.stack.extents.zyx[0];
        let [rows, columns] = sources(self.maps.as_ref(), part);
        self.stack.windowed(&[0..depth, rows, columns])
    }

    /// Returns a view of these rows and columns alone; `stack` is the part of the stack that [`ModelView::stack_part`]
    /// returns for them. They have the same values as in the whole view.
    pub(crate) fn part_view<'b>(&self, stack: &'b Stack, [rows, columns]: [Range<usize>; 2]) -> ModelView<'b>
    where
        'a: 'b,
    {
        let depth = self.shape[0];
        ModelView {
            stack,
            channels: self.channels,
            chains: self.chains.clone(),
            shape: [depth, rows.len(), columns.len()],
            not_finite: false,
            loss: FloatLoss::default(),
            contrast: vec![Contrast::default(); self.channels.len()],
            maps: self.maps.clone().map(|[z, y, x]| [z, y.part(rows), x.part(columns)]),
            cache: vec![(0..0, Vec::new()); self.channels.len()],
            overlap: self.overlap,
        }
    }

    /// Adds what was found in the values of a part of this view, such as one of [`ModelView::part_view`].
    pub(super) fn add_found(&mut self, part: &ModelView<'_>) {
        self.not_finite |= part.not_finite;
        self.loss.merge(part.loss);
        self.contrast.iter_mut().zip(&part.contrast).for_each(|(whole, part)| whole.merge(*part));
    }

    /// Reads slices `z` of the model's grid as `[C][z][Y][X]`; slices past the end repeat the last one.
    pub(crate) fn read(&mut self, context: &Context, z: Range<usize>) -> Result<Vec<f32>, JobError> {
        let plane = self.shape[1] * self.shape[2];
        let inside = z.start.min(self.shape[0] - 1)..z.end.min(self.shape[0]);
        let mut out = Vec::new();
        for c in 0..self.channels.len() {
            let at = out.len();
            match self.maps.clone() {
                // A single channel is passed on without a copy.
                None if c == 0 => {
                    out = self.fetch(context, c, inside.clone())?;
                    out.reserve_exact((self.channels.len() - 1) * z.len() * plane + (z.end - inside.end) * plane);
                }
                None => out.extend(self.fetch(context, c, inside.clone())?),
                Some(maps) => {
                    let sources = maps[0].sources(inside.clone());
                    let slab = self.fetch(context, c, sources.clone())?;
                    let [_, ny, nx] = self.stack.extents.zyx;
                    let _span = context.recorder.span(Stage::Resample, "to model").voxels(inside.len() * plane);
                    let made = linear(&slab, sources.start, [ny, nx], &maps, inside.clone());
                    if c == 0 {
                        out = made;
                        out.reserve_exact((self.channels.len() - 1) * z.len() * plane + (z.end - inside.end) * plane);
                    } else {
                        out.extend(made);
                    }
                }
            }
            for _ in inside.end..z.end {
                let last = out.len() - plane;
                debug_assert!(last >= at);
                out.extend_from_within(last..);
            }
        }
        Ok(out)
    }

    /// Reads and preprocesses input slices of one channel; slices in the cache are not read again.
    fn fetch(&mut self, context: &Context, c: usize, z: Range<usize>) -> Result<Vec<f32>, JobError> {
        let plane = self.stack.slice_len();
        let (held, values) = &self.cache[c];
        let keep = z.start.max(held.start)..z.end.min(held.end);
        let mut out = Vec::with_capacity(z.len() * plane);
        if z.start >= held.start && keep.start < keep.end {
            out.extend_from_slice(&values[(keep.start - held.start) * plane..(keep.end - held.start) * plane]);
        }
        let mut from = z.start + out.len() / plane;
        while from < z.end {
            context.check()?;
            let to = (from + READ_SLICES).min(z.end);
            let samples = self.stack.read(context, self.channels[c], from..to)?;
            let _span = context.recorder.span(Stage::Normalize, "slices").voxels(samples.len());
            self.loss.merge(FloatLoss::of(&samples));
            let mut fresh = samples.to_f32();
            let holes: Vec<usize> = if samples.dtype().is_float() {
                fresh.iter().enumerate().filter(|(_, v)| !v.is_finite()).map(|(at, _)| at).collect()
            } else {
                Vec::new()
            };
            let is_in_file = |at: &usize| match &samples {
                // Other values are too large for 32-bit floats.
                Samples::F64(values) => values.get(*at).is_some_and(|value| !value.is_finite()),
                _ => true,
            };
            self.not_finite |= holes.iter().any(is_in_file);
            if let Some(contrast) = self.contrast.get_mut(c) {
                contrast.add(&fresh);
            }
            self.chains.apply(c, self.stack.first_slice() + from, plane, &mut fresh);
            // NaN would spread over the whole receptive field, so it is set to 0, as for voxels outside the stack.
            holes.into_iter().for_each(|at| fresh[at] = 0.0);
            out.append(&mut fresh);
            from = to;
        }
        // Only slices that the next slab may need are cached.
        let tail = (out.len() / plane).min(self.overlap);
        self.cache[c] = (z.end - tail..z.end, out[out.len() - tail * plane..].to_vec());
        Ok(out)
    }
}
