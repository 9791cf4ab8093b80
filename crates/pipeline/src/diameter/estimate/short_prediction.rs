//! A short prediction: the network runs on one tile of a stack, on a coarse grid, and the objects found there are measured.

use super::objects::{Measured, appearance, measured};
use super::{Coarsening, Estimator, scales};
use crate::ops::{self, Statistics};
use crate::predict::grid::{ModelView, model_shape};
use crate::predict::output_check::OutputCheck;
use crate::predict::postprocess::{softmax_channels, split_softmax, unsupported_step};
use crate::stack::{Stack, references};
use crate::{Context, JobError};
use cytoscope_engine::{CompileOptions, Session};
use cytoscope_graph::Tensor;
use cytoscope_objects::segment_in_place;
use cytoscope_profile::Stage;
use cytoscope_volume::Samples;
use std::ops::Range;

/// Where and on which grid a short prediction is made.
#[derive(Clone, Copy)]
pub(super) struct ShortPrediction {
    /// Voxel size Z, Y, X of the stack.
    pub(super) voxel: [f64; 3],
    /// Diameter that the grid gives the nominal size divided by the factor of the coarsening.
    pub(super) diameter: f64,
    /// The model's nominal diameter in µm.
    pub(super) nominal_um: f64,
    /// Middle of the predicted part in voxels Z, Y, X; by default that of the stack.
    pub(super) center: Option<[f64; 3]>,
    /// Maximum shape Z, Y, X of the predicted part on the grid.
    pub(super) tile: [usize; 3],
    /// Memory that the network may use, in bytes; `None` for all that is free.
    pub(super) budget_bytes: Option<u64>,
    /// How coarse the grid is.
    pub(super) coarsening: Coarsening,
    /// Whether the stack has so few slices that only sections of objects can be measured
    /// ([`FLAT_SLICES`](cytoscope_objects::diameter::FLAT_SLICES)).
    pub(super) is_flat: bool,
    /// Whether objects that are clearly darker than their outlines are not measured again.
    pub(super) stops_if_dark: bool,
}

impl ShortPrediction {
    /// Returns whether these objects are not measured again because they are darker than their outlines.
    pub(super) fn stops_at(&self, measured: &Measured) -> bool {
        self.stops_if_dark && measured.appearance.brightness.is_some_and(scales::is_clearly_dark)
    }
}

/// The compiled network of short predictions and its tile shape.
pub(super) type TileSession = Option<([usize; 3], Box<dyn Session>)>;

impl Estimator<'_> {
    /// Measures the objects of a short prediction.
    pub(super) fn predict_part(
        &self,
        stack: &Stack,
        at: &ShortPrediction,
        session: &mut TileSession,
    ) -> Result<Measured, JobError> {
        let ShortPrediction { voxel, diameter, nominal_um, center, tile: max_tile, budget_bytes, coarsening, .. } = *at;
        let model = self.model;
        let Some(model_um) = model.voxel_um else { return Ok(Measured::default()) };
        let scale = diameter / nominal_um;
        let work = model_um.map(|v| v * scale * coarsening.factor);
        let grid = model_shape(stack.extents.zyx, Some(voxel), Some(work));
        let tile: [usize; 3] = std::array::from_fn(|a| {
            if a == 0 && model.spatial_axes == 2 {
                return 1;
            }
            model.tile_length(max_tile[a].min(grid[a]), a)
        });
        // The part of the input around the place with most blobs.
        let window: [Range<usize>; 3] = std::array::from_fn(|a| {
            let extent = stack.extents.zyx[a];
            let size =
                ((tile[a].min(grid[a]) as f64 * extent as f64 / grid[a] as f64).ceil() as usize).clamp(1, extent);
            let middle = center.map_or(extent as f64 / 2.0, |c| c[a]);
            let first = (middle - size as f64 / 2.0).round().clamp(0.0, (extent - size) as f64) as usize;
            first..first + size
        });
        let part = stack.windowed(&window);
        let shape = std::array::from_fn(|a| tile[a].min(grid[a]));
        let mut view = ModelView::new(&part, self.channels, self.chains.clone(), shape);
        let read = SlabReading::new(&part, shape);
        let slab = read.all(self.context, &mut view, self.channels.len(), tile[0])?;
        let input = padded(&slab, self.channels.len(), [tile[0], shape[1], shape[2]], tile);
        if session.as_ref().is_none_or(|(of, _)| *of != tile) {
            let _span = self.context.recorder.span(Stage::Compile, "estimate");
            let shape = model.tensor_shape(self.channels.len(), tile);
            // Two networks are not kept in memory at once.
            *session = None;
            let memory_budget_bytes = budget_bytes.map(|bytes| bytes.saturating_sub(self.held_bytes(tile)));
            let options = CompileOptions { memory_budget_bytes, ..self.options.clone() };
            *session = Some((tile, model.compile(self.engine, &shape, &options)?));
        }
        let Some((_, session)) = session else { return Ok(Measured::default()) };
        let report = session.report();
        // The part is read before the network runs, whose memory is kept from one short prediction to the next.
        let around_bytes = self.held_bytes(tile).max(read.bytes());
        self.peak_bytes.set(self.peak_bytes.get().max(report.arena_bytes + report.weight_bytes + around_bytes));
        let _span = self.context.recorder.span(Stage::Estimate, "tile").voxels(tile.iter().product());
        let outputs = session.run(&[Tensor::new(model.tensor_shape(self.channels.len(), tile), input)?])?;
        let values = outputs.into_iter().nth(model.output_index).and_then(Tensor::into_f32).unwrap_or_default();
        if values.len() != model.output_channels * tile.iter().product::<usize>() {
            // Models that cannot be tiled, or whose outputs are not floats, are refused by the full prediction.
            return Ok(Measured::default());
        }
        OutputCheck::new(self.engine.device().id, self.options.precision).add(&values)?;
        // The first channel, without the slices that only pad the tile.
        let intensities = slab.get(..shape.iter().product::<usize>()).unwrap_or_default();
        let measured = self.measure(values, intensities, [shape, tile], work, at)?;
        tracing::debug!(
            at = diameter,
            coarsening = coarsening.factor,
            objects = measured.diameters.len(),
            median = ?measured.at(0.5),
            elongation = ?measured.elongation,
            appearance = ?measured.appearance,
            "short prediction"
        );
        Ok(Measured { is_complete: shape == grid, ..measured })
    }

    /// Returns the bytes around a network that predicts a tile: the input as read and padded, and the maps before and after
    /// cropping, with labels.
    fn held_bytes(&self, tile: [usize; 3]) -> u64 {
        let values = self.channels.len() * 2 + self.model.output_channels * 2 + 2;
        (tile.iter().product::<usize>() * values * size_of::<f32>()) as u64
    }

    /// Segments a network's output on a tile, of which the first voxels (`shape`) are those of the stack, and measures the
    /// objects. `intensities` are those of the stack's first channel.
    fn measure(
        &self,
        mut values: Vec<f32>,
        intensities: &[f32],
        [shape, tile]: [[usize; 3]; 2],
        work: [f64; 3],
        at: &ShortPrediction,
    ) -> Result<Measured, JobError> {
        let model = self.model;
        let (softmax, later) = split_softmax(model);
        if softmax {
            softmax_channels(&mut values, model.output_channels);
        }
        let voxels = tile.iter().product::<usize>();
        let channel = |c: usize| cut(values.get(c * voxels..(c + 1) * voxels).unwrap_or_default(), tile, shape);
        let mut maps: Vec<Vec<f32>> = (0..model.output_channels).map(channel).collect();
        let mut tensors = self.stack.input_tensors(self.context, model, self.channels);
        let mut references = references(&mut tensors);
        let chains = ops::resolve(later, &mut Maps(&maps), Statistics::Current, &mut references)?;
        let chains = chains.map_err(|step| unsupported_step(model, &step))?;
        maps.iter_mut().zip(&chains).for_each(|(map, chain)| ops::apply(chain, map));
        let seeds = (model.seed_channel != model.segment_channel).then(|| maps.get(model.seed_channel).cloned());
        let seeds = seeds.flatten();
        let channel = model.segment_channel;
        let mut foreground = maps.into_iter().nth(channel).ok_or_else(|| no_channel(channel))?;
        let mut options = model.segment.scaled(at.diameter / at.nominal_um);
        // Seeds of components in tissue are low already.
        options.seed_height *= at.coarsening.seed_height_factor;
        if at.is_flat {
            // Fragments are ignored anyway, and objects may be much smaller than the start.
            options.min_volume_um3 = 0.0;
        }
        // Small objects beside larger ones would make the estimate smaller.
        options.isolated = None;
        // What is large depends on the diameter.
        options.oversized = None;
        // The growth is that of outlines at the threshold.
        if let Some(tissue) = &mut options.tissue {
            tissue.outline = None;
        }
        let (labels, count) = segment_in_place(&mut foreground, seeds.as_deref(), shape, work, &options)?;
        let heights = seeds.as_deref().unwrap_or(&foreground);
        let appearance = appearance(&labels, count, heights, intensities);
        Ok(Measured { appearance, ..measured(&labels, count, shape, work, at) })
    }
}

/// How a part of a stack is read: a coarse grid has few slices, each of which is computed from many voxels of the stack.
struct SlabReading {
    /// Shape Z, Y, X of the part in voxels of the stack.
    part: [usize; 3],
    /// Its shape on the model's grid.
    shape: [usize; 3],
    /// Slices of the grid that are read at once.
    step: usize,
}

impl SlabReading {
    fn new(part: &Stack, shape: [usize; 3]) -> Self {
        let zyx = part.extents.zyx;
        let step = (part.slab_slices() * shape[0] / zyx[0].max(1)).clamp(1, shape[0].max(1));
        Self { part: zyx, shape, step }
    }

    /// Returns the bytes of the slices of the stack that are held at once: those that are read, and a copy for the next slab.
    fn bytes(&self) -> u64 {
        let [depth, rows, columns] = self.part;
        let slices = ((self.step * depth).div_ceil(self.shape[0].max(1)) + 2).min(depth);
        (slices * rows * columns * 2 * size_of::<f32>()) as u64
    }

    /// Reads all slices of a view of the part as `[C][z][Y][X]`; the last slice is repeated up to `depth` slices.
    fn all(
        &self,
        context: &Context,
        view: &mut ModelView<'_>,
        channel_count: usize,
        depth: usize,
    ) -> Result<Vec<f32>, JobError> {
        let plane = self.shape[1] * self.shape[2];
        let mut channels: Vec<Vec<f32>> = (0..channel_count).map(|_| Vec::with_capacity(depth * plane)).collect();
        for z in (0..self.shape[0]).step_by(self.step) {
            let slab = view.read(context, z..(z + self.step).min(self.shape[0]))?;
            let voxels = slab.len() / channel_count.max(1);
            for (channel, values) in channels.iter_mut().zip(slab.chunks_exact(voxels.max(1))) {
                channel.extend_from_slice(values);
            }
        }
        for channel in &mut channels {
            let Some(last) = channel.len().checked_sub(plane) else { continue };
            for _ in self.shape[0]..depth {
                channel.extend_from_within(last..last + plane);
            }
        }
        match channels.len() {
            1 => Ok(channels.swap_remove(0)),
            _ => Ok(channels.concat()),
        }
    }
}

/// The error of a channel that the maps do not have.
fn no_channel(channel: usize) -> JobError {
    JobError::Internal(format!("diameter: the maps have no channel {channel}"))
}

/// Maps in memory, for statistics.
struct Maps<'a>(&'a [Vec<f32>]);

impl ops::Volume for Maps<'_> {
    type Error = JobError;

    fn channels(&self) -> usize {
        self.0.len()
    }

    fn each(&mut self, channel: usize, f: &mut dyn FnMut(Samples)) -> Result<(), JobError> {
        f(Samples::F32(self.0.get(channel).cloned().ok_or_else(|| no_channel(channel))?));
        Ok(())
    }
}

/// Pads a box `[C][from]` to the size of a tile by repeating its last slices, rows and columns.
fn padded(values: &[f32], channels: usize, from: [usize; 3], tile: [usize; 3]) -> Vec<f32> {
    if from == tile {
        return values.to_vec();
    }
    let mut out = Vec::with_capacity(channels * tile.iter().product::<usize>());
    for c in 0..channels {
        for z in 0..tile[0] {
            for y in 0..tile[1] {
                let row = ((c * from[0] + z.min(from[0] - 1)) * from[1] + y.min(from[1] - 1)) * from[2];
                let line = values.get(row..row + from[2]).unwrap_or_default();
                out.extend_from_slice(line);
                out.extend(std::iter::repeat_n(line.last().copied().unwrap_or_default(), tile[2] - from[2]));
            }
        }
    }
    out
}

/// Returns the first `shape` voxels of a tile along each axis.
fn cut(values: &[f32], tile: [usize; 3], shape: [usize; 3]) -> Vec<f32> {
    let mut out = Vec::with_capacity(shape.iter().product());
    for z in 0..shape[0] {
        for y in 0..shape[1] {
            let row = (z * tile[1] + y) * tile[2];
            out.extend_from_slice(values.get(row..row + shape[2]).unwrap_or_default());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use crate::Model;
    use cytoscope_formats::image_in_memory;
    use cytoscope_volume::{Array, VoxelSize};
    use std::path::Path;

    #[test]
    fn a_part_that_is_read_a_few_slices_at_a_time_has_the_same_values() {
        let zyx = [12, 10, 9];
        let values: Vec<u16> = (0..zyx.iter().product::<usize>()).map(|i| (i * 7919 % 1009) as u16).collect();
        let array = Array::new("ZYX".parse().unwrap(), zyx.to_vec(), values).unwrap();
        let image = image_in_memory(Path::new("stack"), array, VoxelSize::default()).unwrap();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nuclei-dog");
        let (context, model) = (Context::default(), Model::load(path.to_str().unwrap()).unwrap());
        let stack = Stack::new(&image, 0);
        let chains = stack.preprocessing(&context, &model, &[0]).unwrap();
        for shape in [[7, 5, 5], [12, 10, 9], [30, 20, 9]] {
            let view = || ModelView::new(&stack, &[0], chains.clone(), shape);
            let depth = shape[0] + 2;
            let expected = view().read(&context, 0..depth).unwrap();
            for step in [1, 3, 100] {
                let reading = SlabReading { part: zyx, shape, step };
                assert!(reading.all(&context, &mut view(), 1, depth).unwrap() == expected, "{shape:?}, {step} slices");
            }
        }
    }

    /// The values of the largest part would take 400 MB.
    #[test]
    fn a_large_part_on_a_coarse_grid_is_read_in_slabs() {
        let array = Array::new("ZYX".parse().unwrap(), vec![96, 512, 512], vec![0u8; 96 * 512 * 512]).unwrap();
        let image = image_in_memory(Path::new("stack"), array, VoxelSize::default()).unwrap();
        let reading = SlabReading::new(&Stack::new(&image, 0), [40, 96, 96]);
        assert!(reading.step > 1 && reading.bytes() < 50_000_000, "{} slices, {} bytes", reading.step, reading.bytes());
    }
}
