//! Passes a volume through the network once, slab by slab along Z: slices go in, and finished slices come out.

use super::grid::ModelView;
use super::infer::Sink;
use super::live::Live;
use super::plan::TilePlan;
use crate::model::Model;
use crate::{Context, JobError, Meter};
use cytoscope_engine::{OutputPlanes, RollingSession};
use cytoscope_graph::Tensor;
use cytoscope_profile::Stage;

/// A pass over one volume.
pub(super) struct Pass<'a> {
    pub context: &'a Context,
    pub model: &'a Model,
    pub plan: &'a TilePlan,
    pub session: &'a mut dyn RollingSession,
    /// Slices of a slab.
    pub slab_slices: usize,
    /// Multiply-accumulate operations of the whole pass.
    pub macs: u64,
    pub meter: Meter<'a>,
    /// Receives finished slices, if present.
    pub live: Option<Live<'a>>,
}

impl Pass<'_> {
    /// Runs the whole volume. Voxels outside it, up to the size that the network accepts, repeat its last ones.
    pub(super) fn run(&mut self, view: &mut ModelView<'_>, sink: &mut Sink<'_>) -> Result<(), JobError> {
        let (shape, size) = (view.shape, self.plan.tile);
        self.session.begin(0)?;
        for z in (0..size[0]).step_by(self.slab_slices.max(1)) {
            let count = self.slab_slices.min(size[0] - z);
            // Past the end, the reader repeats the last slice of a range that starts inside the volume.
            let first = z.min(shape[0].saturating_sub(1));
            let slices = view.read(self.context, first..first + count)?;
            let input = self.input(slices, shape, count)?;
            let macs = (self.macs as f64 * count as f64 / size[0].max(1) as f64) as u64;
            let span = self.context.recorder.span(Stage::Compute, "slab").voxels(input.len()).macs(macs);
            let made = self.session.push(&input)?;
            drop(span);
            self.pass_on(made, shape, sink)?;
        }
        let span = self.context.recorder.span(Stage::Compute, "last slabs");
        let made = self.session.finish()?;
        drop(span);
        self.pass_on(made, shape, sink)
    }

    /// Returns `count` slices `[C][z][Y][X]` as the network takes them.
    fn input(&self, slices: Vec<f32>, shape: [usize; 3], count: usize) -> Result<Tensor, JobError> {
        let (channels, [_, rows, columns]) = (self.model.input_channels, self.plan.tile);
        let tensor_shape = self.model.tensor_shape(channels, [count, rows, columns]);
        if [rows, columns] == shape[1..] {
            return Ok(Tensor::new(tensor_shape, slices)?);
        }
        let _span = self.context.recorder.span(Stage::Upload, "slab");
        let mut values = Vec::with_capacity(channels * count * rows * columns);
        for slice in slices.chunks_exact((shape[1] * shape[2]).max(1)) {
            for y in 0..rows {
                let at = y.min(shape[1].saturating_sub(1)) * shape[2];
                let row = slice.get(at..at + shape[2]).unwrap_or_default();
                values.extend_from_slice(row);
                values.extend(std::iter::repeat_n(row.last().copied().unwrap_or(0.0), columns - shape[2]));
            }
        }
        Ok(Tensor::new(tensor_shape, values)?)
    }

    /// Passes on the finished slices that are in the volume.
    fn pass_on(&mut self, made: Vec<OutputPlanes>, shape: [usize; 3], sink: &mut Sink<'_>) -> Result<(), JobError> {
        let [_, rows, columns] = self.plan.tile;
        let channels = self.model.output_channels;
        for made in made.into_iter().filter(|made| made.output == self.model.output_index) {
            let (found, first) = (made.planes.shape().to_vec(), made.first_z);
            let planes = found.get(2).copied().unwrap_or(0);
            let values = made.planes.into_f32().filter(|_| found == [1, channels, planes, rows, columns]);
            let Some(values) = values else {
                return Err(JobError::model(
                    self.model.name.clone(),
                    format!(
                        "its output has shape {found:?} for {planes} slices, expected {:?}: only models whose output has \
                         the same shape as their input can be run in one pass",
                        [1, channels, planes, rows, columns]
                    ),
                ));
            };
            let count = shape[0].saturating_sub(first).min(planes);
            if count == 0 {
                continue;
            }
            let values = if [count, rows, columns] == [planes, shape[1], shape[2]] {
                values
            } else {
                let mut inside = Vec::with_capacity(channels * count * shape[1] * shape[2]);
                for channel in values.chunks_exact((planes * rows * columns).max(1)) {
                    for slice in channel.chunks_exact((rows * columns).max(1)).take(count) {
                        for row in slice.chunks_exact(columns.max(1)).take(shape[1]) {
                            inside.extend_from_slice(row.get(..shape[2]).unwrap_or_default());
                        }
                    }
                }
                inside
            };
            sink(first..first + count, &values)?;
            if let Some(live) = &self.live {
                live.tile([first, 0, 0], [count, shape[1], shape[2]], values);
            }
            self.meter.add((count * shape[1] * shape[2]) as u64)?;
        }
        Ok(())
    }
}
