//! Estimating the median object diameter: blobs in scale space for a first guess, then short predictions of the model itself.
//!
//! The first guess is right within a factor of two for most stacks. A model for varied sizes still finds objects that are half
//! or twice its nominal diameter, so the objects of one short prediction give a better value; where the two differ much, the
//! prediction is repeated at the better value.

use super::{Certainty, DiameterEstimate};
use crate::ops::{self, Elementwise};
use crate::predict::grid::{ModelView, model_shape};
use crate::predict::one::softmax_channels;
use crate::stack::Stack;
use crate::{Context, JobError, Model};
use cytoscope_engine::{CompileOptions, Engine, Session};
use cytoscope_graph::Tensor;
use cytoscope_graph::package::Processing;
use cytoscope_objects::blobs::{BlobSize, blob_size};
use cytoscope_objects::segment_in_place;
use cytoscope_profile::Stage;
use cytoscope_volume::Samples;
use cytoscope_volume::resample::{AxisMap, linear};
use std::convert::Infallible;
use std::ops::Range;
use std::time::Instant;

/// Extents Z, Y, X beyond which only the middle of a stack is looked at.
const MOST_LOOKED_AT: [usize; 3] = [96, 1024, 1024];
/// Voxels that blobs are looked for in; finer stacks are averaged.
const MOST_BLOB_VOXELS: usize = 500_000;
/// How much coarser than in a prediction objects are in a short one: half the voxels along each axis cost an eighth.
const COARSER: f64 = 1.6;
/// Voxels Z, Y, X of a short prediction.
const TILE: [usize; 3] = [40, 96, 96];
/// Short predictions at most.
const MAX_PASSES: usize = 3;
/// Measurements closer than this (ratio) count as the same.
const SAME: f64 = 1.15;
/// A guess is off by at most this factor for a correction by one pass.
const MAX_CORRECTION: f64 = 2.5;
/// Diameter in voxels that is guessed where there are no blobs.
const GUESSED_VOXELS: f64 = 20.0;

/// What an estimate works with.
pub(crate) struct Estimator<'a> {
    pub context: &'a Context,
    pub model: &'a Model,
    pub engine: &'a dyn Engine,
    pub options: &'a CompileOptions,
    pub stack: &'a Stack,
    /// Channels of the stack that the model sees.
    pub channels: &'a [usize],
    /// Preprocessing of each channel.
    pub chains: &'a [Vec<Elementwise>],
    /// Voxel size Z, Y, X: µm, or 1 where it is unknown.
    pub voxel: [f64; 3],
}

/// Objects of a short prediction.
struct Measured {
    /// Diameters, sorted.
    diameters: Vec<f64>,
}

impl Measured {
    fn at(&self, share: f64) -> Option<f64> {
        let last = self.diameters.len().checked_sub(1)?;
        self.diameters.get((share * last as f64).round() as usize).copied()
    }
}

impl Estimator<'_> {
    /// The estimate for a model of a nominal diameter; with [`Certainty::None`] where no objects are found.
    pub(crate) fn estimate(&self, nominal_um: f64) -> Result<DiameterEstimate, JobError> {
        let start = Instant::now();
        let whole = self.stack.extents.zyx;
        let window: [Range<usize>; 3] = std::array::from_fn(|a| {
            let size = whole[a].min(MOST_LOOKED_AT[a]);
            let first = (whole[a] - size) / 2;
            first..first + size
        });
        let stack = self.stack.windowed(&window);
        let guess = self.guess(&stack)?;
        let mut diameter = guess.map_or(GUESSED_VOXELS * self.voxel[2], |g| g.diameter_um);
        let centre = guess.map(|g| g.centre_um);
        let mut session: Option<([usize; 3], Box<dyn Session>)> = None;
        let mut last: Option<(Measured, f64)> = None;
        for pass in 0..MAX_PASSES {
            self.context.check()?;
            let measured = self.pass(&stack, diameter, nominal_um, centre, &mut session)?;
            let Some(found) = measured.at(0.5) else {
                if last.is_some() {
                    break;
                }
                // Nothing at this size: look for smaller and larger objects.
                diameter *= if pass == 0 { 0.5 } else { 4.0 };
                continue;
            };
            let found = found.clamp(diameter / MAX_CORRECTION, diameter * MAX_CORRECTION);
            let change = (found / diameter).ln().abs();
            last = Some((measured, change));
            diameter = found;
            if change < SAME.ln() {
                break;
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        let Some((measured, change)) = last else {
            // As if the objects had the nominal size.
            let assumed = guess.map_or(nominal_um, |g| g.diameter_um);
            let certainty = Certainty::None;
            return Ok(DiameterEstimate { diameter: assumed, range: [assumed; 2], objects: 0, certainty, seconds });
        };
        let objects = measured.diameters.len();
        let certainty = match objects {
            8.. if change < 1.125f64.ln() => Certainty::High,
            3.. if change < 1.25f64.ln() => Certainty::Medium,
            _ => Certainty::Low,
        };
        let range = [0.1, 0.9].map(|share| measured.at(share).unwrap_or(diameter));
        Ok(DiameterEstimate { diameter, range, objects, certainty, seconds })
    }

    /// The first guess, from blobs in the first channel.
    fn guess(&self, stack: &Stack) -> Result<Option<BlobSize>, JobError> {
        let zyx = stack.extents.zyx;
        let Some(channel) = self.channels.first() else { return Ok(None) };
        let _span = self.context.recorder.span(Stage::Normalise, "estimate blobs");
        // Average to the voxels that can be afforded, the finest axes first.
        let mut shape = zyx;
        let mut voxel = self.voxel;
        while shape.iter().product::<usize>() > MOST_BLOB_VOXELS {
            let longest = (0..3).filter(|a| shape[*a] > 8).min_by(|a, b| voxel[*a].total_cmp(&voxel[*b]));
            let Some(axis) = longest else { break };
            shape[axis] = shape[axis].div_ceil(2);
            voxel[axis] = self.voxel[axis] * zyx[axis] as f64 / shape[axis] as f64;
        }
        let maps: [AxisMap; 3] = std::array::from_fn(|a| AxisMap::new(zyx[a], shape[a]));
        let mut volume = Vec::with_capacity(shape.iter().product());
        let step = (stack.slab_slices() * shape[0] / zyx[0].max(1)).max(1);
        for z in (0..shape[0]).step_by(step) {
            self.context.check()?;
            let range = z..(z + step).min(shape[0]);
            let sources = maps[0].sources(range.clone());
            let slab = stack.read(self.context, *channel, sources.clone())?.to_f32();
            volume.extend(linear(&slab, sources.start, [zyx[1], zyx[2]], &maps, range));
        }
        Ok(blob_size(&volume, shape, voxel)?)
    }

    /// Objects of a short prediction in which those of a diameter have nearly the nominal size.
    fn pass(
        &self,
        stack: &Stack,
        diameter: f64,
        nominal_um: f64,
        centre: Option<[f64; 3]>,
        session: &mut Option<([usize; 3], Box<dyn Session>)>,
    ) -> Result<Measured, JobError> {
        let model = self.model;
        let Some(model_um) = model.voxel_um else { return Ok(Measured { diameters: Vec::new() }) };
        let scale = diameter / nominal_um;
        let work = model_um.map(|v| v * scale * COARSER);
        let grid = model_shape(stack.extents.zyx, Some(self.voxel), Some(work));
        let tile: [usize; 3] = std::array::from_fn(|a| {
            if a == 0 && model.spatial_axes == 2 {
                return 1;
            }
            let step = model.step[a].max(1);
            TILE[a].min(grid[a]).max(model.min_size[a]).next_multiple_of(step)
        });
        // The slices and rows of the input around the place where most blobs are.
        let window: [Range<usize>; 3] = std::array::from_fn(|a| {
            let extent = stack.extents.zyx[a];
            let size =
                ((tile[a].min(grid[a]) as f64 * extent as f64 / grid[a] as f64).ceil() as usize).clamp(1, extent);
            let middle = centre.map_or(extent as f64 / 2.0, |c| c[a] / self.voxel[a]);
            let first = (middle - size as f64 / 2.0).round().clamp(0.0, (extent - size) as f64) as usize;
            first..first + size
        });
        let part = stack.windowed(&window);
        let shape = std::array::from_fn(|a| tile[a].min(grid[a]));
        let mut view = ModelView::new(&part, self.channels, self.chains.to_vec(), shape);
        let slab = view.read(self.context, 0..tile[0])?;
        let input = padded(&slab, self.channels.len(), [tile[0], shape[1], shape[2]], tile);
        if session.as_ref().is_none_or(|(of, _)| *of != tile) {
            let _span = self.context.recorder.span(Stage::Compile, "estimate");
            let shape = model.tensor_shape(self.channels.len(), tile);
            *session = Some((tile, model.compile(self.engine, &shape, self.options)?));
        }
        let Some((_, session)) = session else { return Ok(Measured { diameters: Vec::new() }) };
        let _span = self.context.recorder.span(Stage::Compute, "estimate").voxels(tile.iter().product());
        let outputs = session.run(&[Tensor::new(model.tensor_shape(self.channels.len(), tile), input)?])?;
        let values = outputs.into_iter().nth(model.output_index).and_then(Tensor::into_f32).unwrap_or_default();
        if values.len() != model.output_channels * tile.iter().product::<usize>() {
            // Models that cannot be tiled are refused where the whole stack is planned.
            return Ok(Measured { diameters: Vec::new() });
        }
        self.measure(values, shape, tile, work, diameter, scale)
    }

    /// The diameters of the objects of a network's output on a tile.
    fn measure(
        &self,
        mut values: Vec<f32>,
        shape: [usize; 3],
        tile: [usize; 3],
        work: [f64; 3],
        diameter: f64,
        scale: f64,
    ) -> Result<Measured, JobError> {
        let model = self.model;
        let later = match model.postprocessing.as_slice() {
            [Processing::Softmax, rest @ ..] => {
                softmax_channels(&mut values, model.output_channels);
                rest
            }
            all => all,
        };
        let voxels = tile.iter().product::<usize>();
        let channel = |c: usize| -> Vec<f32> {
            let mut map = cut(values.get(c * voxels..(c + 1) * voxels).unwrap_or_default(), tile, shape);
            let fixed = ops::fix(later, c, None, &mut Whole(&map));
            if let Ok(Ok(chain)) = fixed {
                ops::apply(&chain, &mut map);
            }
            map
        };
        let mut foreground = channel(model.segment_channel);
        let seeds = (model.seed_channel != model.segment_channel).then(|| channel(model.seed_channel));
        let options = model.segment.scaled(scale);
        let (labels, count) = segment_in_place(&mut foreground, seeds.as_deref(), shape, work, &options)?;
        Ok(Measured { diameters: diameters(&labels, count, shape, work, diameter) })
    }
}

/// A map in memory as a stream for statistics.
struct Whole<'a>(&'a [f32]);

impl ops::Stream for Whole<'_> {
    type Error = Infallible;

    fn each(&mut self, f: &mut dyn FnMut(Samples)) -> Result<(), Infallible> {
        f(Samples::F32(self.0.to_vec()));
        Ok(())
    }
}

/// Diameters, sorted, of labelled objects that no side of the volume cuts in the plane; of all where those are fewer than three.
fn diameters(labels: &[u32], count: u32, [nz, ny, nx]: [usize; 3], voxel: [f64; 3], expected: f64) -> Vec<f64> {
    let mut voxels = vec![0u64; count as usize + 1];
    let mut is_cut = vec![false; count as usize + 1];
    for (row, line) in labels.chunks_exact(nx.max(1)).enumerate() {
        let (z, y) = (row / ny, row % ny);
        let edge_row = y == 0 || y + 1 == ny || (nz > 4 && (z == 0 || z + 1 == nz));
        for (x, label) in line.iter().enumerate().filter(|(_, l)| **l > 0) {
            let label = *label as usize;
            voxels[label] += 1;
            is_cut[label] |= edge_row || x == 0 || x + 1 == nx;
        }
    }
    let unit: f64 = voxel.iter().product();
    let diameter = |n: u64| (6.0 / std::f64::consts::PI * n as f64 * unit).cbrt();
    let of = |cut: bool| -> Vec<f64> {
        let kept = (1..voxels.len()).filter(|l| voxels[*l] > 0 && (cut || !is_cut[*l]));
        // Crumbs of a fifth of the diameter are no objects.
        let mut all: Vec<f64> = kept.map(|l| diameter(voxels[l])).filter(|d| *d > 0.2 * expected).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let whole = of(false);
    if whole.len() >= 3 { whole } else { of(true) }
}

/// A box `[C][from]` with its last rows and columns repeated up to a tile.
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

/// The first `shape` voxels of a tile.
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
