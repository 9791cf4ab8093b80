//! Runs the network on tiles of a slab: one after the other, or several in one batch. Sessions that can hold the slab in
//! device memory cut the tiles there.

use super::pass::canceled;
use crate::{JobError, Model};
use cytoscope_engine::{EngineError, Session};
use cytoscope_graph::Tensor;
use cytoscope_profile::{Recorder, Span, Stage};
use std::ops::Range;

/// Slices of a volume, `[C][Z][Y][X]`.
pub(super) struct Slab<'a> {
    /// Preprocessed values on the model's grid.
    pub values: &'a [f32],
    /// Shape Z, Y, X in voxels.
    pub shape: [usize; 3],
}

/// The properties of a model that determine the shapes of its network's tensors.
pub(super) struct TileNetwork<'a> {
    /// Name of the model, for messages.
    pub name: &'a str,
    /// Length of the channel axis of the input tensor.
    pub input_channels: usize,
    /// Length of the channel axis of the output tensor that is predicted.
    pub output_channels: usize,
    /// The output that is predicted.
    pub output_index: usize,
    /// Spatial axes of the tensors: 2 or 3.
    pub spatial_axes: usize,
}

impl<'a> TileNetwork<'a> {
    /// Returns these properties of a model.
    pub(super) fn of(model: &'a Model) -> Self {
        Self {
            name: &model.name,
            input_channels: model.input_channels,
            output_channels: model.output_channels,
            output_index: model.output_index,
            spatial_axes: model.spatial_axes,
        }
    }

    /// Returns the shape of the input tensor for tiles of `size` Z, Y, X.
    fn input_shape(&self, batch: usize, size: [usize; 3]) -> Vec<usize> {
        let skipped = 3usize.saturating_sub(self.spatial_axes);
        [batch, self.input_channels].into_iter().chain(size.into_iter().skip(skipped)).collect()
    }
}

/// A compiled network, and the number of tiles that it takes.
pub(super) struct TileRunner<'a> {
    recorder: &'a Recorder,
    /// Shapes of the network's tensors.
    pub network: TileNetwork<'a>,
    session: &'a mut dyn Session,
    /// Tiles of one run, at least 1.
    pub batch: usize,
    /// The slices of the volume that the session holds in device memory; `None` if tiles are copied from the slab.
    held: Option<Range<usize>>,
    /// Size in bytes of the slab in device memory.
    held_bytes: u64,
}

impl<'a> TileRunner<'a> {
    /// Prepares to run a session that takes `batch` tiles, at least 1.
    pub(super) fn new(
        recorder: &'a Recorder,
        network: TileNetwork<'a>,
        session: &'a mut dyn Session,
        batch: usize,
    ) -> Self {
        Self { recorder, network, session, batch: batch.max(1), held: None, held_bytes: 0 }
    }

    /// Copies a slab to the device, if the session can hold it there. The slab starts at slice `first` of the volume;
    /// slices that the previous slab also had are not copied again. Tiles end before row and column `ends`; voxels outside
    /// the volume repeat its last ones. To be called before the tiles of a slab are run.
    ///
    /// # Errors
    /// [`JobError::Engine`] if the device fails.
    pub(super) fn load(&mut self, slab: &Slab<'_>, first: usize, ends: [usize; 2]) -> Result<(), JobError> {
        let earlier = self.held.take();
        let Some(slabs) = self.session.slabs() else { return Ok(()) };
        let (channels, [depth, rows, columns]) = (self.network.input_channels, slab.shape);
        let [rows, columns] = [rows.max(ends[0]), columns.max(ends[1])];
        let bytes = channels * depth * rows * columns * size_of::<f32>();
        if bytes as u64 > slabs.slab_limit_bytes() {
            return Ok(());
        }
        let slices = first..first + depth;
        let kept = earlier.filter(|held| held.start <= first && held.end < slices.end);
        let kept = kept.map_or(0, |held| held.end.saturating_sub(first));
        let span = self.recorder.span(Stage::Upload, "slab");
        let mut values = Vec::with_capacity(bytes / depth.max(1) * (depth - kept) / size_of::<f32>());
        for channel in slab.values.chunks_exact(slab.shape.iter().product::<usize>().max(1)) {
            let planes = channel.chunks_exact((slab.shape[1] * slab.shape[2]).max(1)).skip(kept);
            planes.for_each(|plane| extend_padded(&mut values, plane, slab.shape[2], [rows, columns]));
        }
        let planes = Tensor::new([channels, depth - kept, rows, columns], values)?;
        drop(span);
        slabs.load(kept, planes)?;
        (self.held, self.held_bytes) = (Some(slices), bytes as u64);
        Ok(())
    }

    /// Whether the device holds the slab and has memory for results of `shape` Z, Y, X, too, so that
    /// [`TileRunner::run_kept`] can be used.
    pub(super) fn can_keep(&mut self, shape: [usize; 3]) -> bool {
        let bytes = self.network.output_channels * shape.iter().product::<usize>() * size_of::<f32>();
        let needed_bytes = self.held_bytes.saturating_add(bytes as u64);
        self.held.is_some() && self.session.slabs().is_some_and(|slabs| needed_bytes <= slabs.slab_limit_bytes())
    }

    /// Returns `starts`, filled up with the last one to a whole batch.
    fn filled(&self, starts: &[[usize; 3]]) -> Vec<[usize; 3]> {
        let mut all = starts.to_vec();
        all.resize(self.batch.max(starts.len()), starts.last().copied().unwrap_or_default());
        all
    }

    /// Runs the network on tiles of the slab that the device holds, like [`TileRunner::run`], but leaves the voxels in the
    /// ranges `kept` along Z, Y, X of each tile in device memory.
    ///
    /// # Errors
    /// Same as [`TileRunner::run`].
    pub(super) fn run_kept(
        &mut self,
        starts: &[[usize; 3]],
        kept: &[[Range<usize>; 3]],
        size: [usize; 3],
    ) -> Result<(), JobError> {
        let (starts, macs) = (self.filled(starts), self.session.report().macs);
        let _span = self.span(size, macs);
        let Some(slabs) = self.session.slabs() else { return Err(no_slabs().into()) };
        let name = self.network.name;
        slabs.run_kept(&starts, self.network.output_index, kept).map_err(|error| output_error(name, error))
    }

    /// Starts sums of weighted tiles in device memory, of `shape` Z, Y, X; `weights` are the weights of a tile's voxels,
    /// and `size` is its size Z, Y, X. Returns false if the device does not hold the slab or has no memory for the sums, so
    /// that [`TileRunner::run_summed`] cannot be used.
    ///
    /// # Errors
    /// [`JobError::Engine`] if the device fails.
    pub(super) fn begin_sums(
        &mut self,
        weights: &[f32],
        size: [usize; 3],
        shape: [usize; 3],
    ) -> Result<bool, JobError> {
        if !self.can_keep(shape) {
            return Ok(false);
        }
        let (channels, [depth, rows, columns]) = (self.network.output_channels, shape);
        let weights = Tensor::new(size, weights.to_vec())?;
        let Some(slabs) = self.session.slabs() else { return Ok(false) };
        slabs.begin_sums(weights, [channels, depth, rows, columns])?;
        Ok(true)
    }

    /// Runs the network on tiles of the slab that the device holds, like [`TileRunner::run`], but adds the weighted results to
    /// the sums in device memory.
    ///
    /// # Errors
    /// Same as [`TileRunner::run`].
    pub(super) fn run_summed(&mut self, starts: &[[usize; 3]], size: [usize; 3]) -> Result<(), JobError> {
        let (filled, macs) = (self.filled(starts), self.session.report().macs);
        let _span = self.span(size, macs);
        let Some(slabs) = self.session.slabs() else { return Err(no_slabs().into()) };
        let (name, output) = (self.network.name, self.network.output_index);
        slabs.run_summed(&filled, output, starts.len()).map_err(|error| output_error(name, error))
    }

    /// Returns the first slices of the sums in device memory, `[C][Z][Y][X]` of `shape` Z, Y, X, and removes them there.
    ///
    /// # Errors
    /// Same as [`TileRunner::run`].
    pub(super) fn take_sums(&mut self, shape: [usize; 3]) -> Result<Vec<f32>, JobError> {
        let Some(slabs) = self.session.slabs() else { return Err(no_slabs().into()) };
        let sums = slabs.take_sums(shape[0])?;
        let (found, [depth, rows, columns]) = (sums.shape().to_vec(), shape);
        let expected = [self.network.output_channels, depth, rows, columns];
        match sums.into_f32().filter(|_| found == expected) {
            Some(values) => Ok(values),
            None => Err(not_tileable(self.network.name, &format!("shape {found:?}, expected {expected:?}"))),
        }
    }

    /// Returns the results that [`TileRunner::run_kept`] left in device memory, `[C][Z][Y][X]` of `shape` Z, Y, X, with
    /// `columns` tiles side by side along X.
    ///
    /// # Errors
    /// Same as [`TileRunner::run`].
    pub(super) fn take_kept(&mut self, columns: usize, shape: [usize; 3]) -> Result<Vec<f32>, JobError> {
        let Some(slabs) = self.session.slabs() else { return Err(no_slabs().into()) };
        let kept = slabs.take_kept(columns)?;
        let [depth, rows, width] = shape;
        let (found, expected) = (kept.shape().to_vec(), [self.network.output_channels, depth, rows, width]);
        match kept.into_f32().filter(|_| found == expected) {
            Some(values) => Ok(values),
            None => Err(not_tileable(self.network.name, &format!("shape {found:?}, expected {expected:?}"))),
        }
    }

    /// Starts the span of a run.
    fn span(&self, size: [usize; 3], macs: u64) -> Span<'a> {
        let name = if self.batch == 1 { "tile" } else { "tiles" };
        let voxels = self.batch * size.iter().product::<usize>();
        let recorder: &'a Recorder = self.recorder;
        recorder.span(Stage::Compute, name).voxels(voxels).macs(macs)
    }

    /// Runs the network on tiles of a slab that start at `starts`, of which there are at most as many as in a batch.
    /// Voxels outside the slab repeat its last ones. Returns the values `[C][Z][Y][X]` of the predicted output, tile by
    /// tile; those after the last start are meaningless.
    ///
    /// # Errors
    /// [`JobError::Engine`] if the network fails; [`JobError::Model`] if the shape of its output differs from that of its
    /// input; [`JobError::Canceled`].
    pub(super) fn run(
        &mut self,
        slab: &Slab<'_>,
        starts: &[[usize; 3]],
        size: [usize; 3],
    ) -> Result<Vec<f32>, JobError> {
        let voxels = self.batch * size.iter().product::<usize>();
        let macs = self.session.report().macs;
        if self.held.is_none() {
            let values = self.gather(slab, starts, size);
            let input = Tensor::new(self.network.input_shape(self.batch, size), values)?;
            let span = self.span(size, macs);
            let outputs = self.session.run(&[input]).map_err(canceled)?;
            drop(span);
            return self.predicted(outputs, voxels, size);
        }
        let starts = self.filled(starts);
        let span = self.span(size, macs);
        let Some(slabs) = self.session.slabs() else { return Err(no_slabs().into()) };
        let outputs = slabs.run_tiles(&starts)?;
        drop(span);
        self.predicted(outputs, voxels, size)
    }

    /// Copies tiles out of the slab. A batch that is not complete is filled up with its last tile.
    fn gather(&self, slab: &Slab<'_>, starts: &[[usize; 3]], size: [usize; 3]) -> Vec<f32> {
        let channels = self.network.input_channels;
        let each = channels * size.iter().product::<usize>();
        let mut values = Vec::with_capacity(each * self.batch);
        let _span = self.recorder.span(Stage::Upload, "tile").bytes(values.capacity() * size_of::<f32>());
        let [depth, rows, columns] = slab.shape;
        for start in starts {
            let inside = size[2].min(columns - start[2]);
            for c in 0..channels {
                for z in 0..size[0] {
                    for y in 0..size[1] {
                        let (sz, sy) = ((start[0] + z).min(depth - 1), (start[1] + y).min(rows - 1));
                        let row = ((c * depth + sz) * rows + sy) * columns + start[2];
                        values.extend_from_slice(&slab.values[row..row + inside]);
                        let last = slab.values[row + inside - 1];
                        values.extend(std::iter::repeat_n(last, size[2] - inside));
                    }
                }
            }
        }
        for _ in starts.len()..self.batch {
            values.extend_from_within(values.len().saturating_sub(each)..);
        }
        values
    }

    /// Returns the values of the output that is predicted.
    fn predicted(&self, outputs: Vec<Tensor>, voxels: usize, size: [usize; 3]) -> Result<Vec<f32>, JobError> {
        let output = outputs.into_iter().nth(self.network.output_index).and_then(Tensor::into_f32);
        let expected = self.network.output_channels * voxels;
        match output {
            Some(values) if values.len() == expected => Ok(values),
            other => {
                let found = other.map_or(0, |v| v.len());
                let what = format!("{found} values for {} × {size:?} voxels, expected {expected}", self.batch);
                Err(not_tileable(self.network.name, &what))
            }
        }
    }
}

/// Returns the error of a run whose results stay on the device.
fn output_error(name: &str, error: EngineError) -> JobError {
    match error {
        EngineError::Input { expected, got, .. } => not_tileable(name, &format!("{got}, expected {expected}")),
        error => error.into(),
    }
}

/// Returns the error for a model whose output does not have the size of its input; `found` says what it has.
pub(super) fn not_tileable(name: &str, found: &str) -> JobError {
    JobError::model(
        name.to_owned(),
        format!(
            "its output has {found}: only models whose output has the same shape as their input can be tiled; export the network \
             with padding that keeps the size"
        ),
    )
}

/// Returns the error of a session that has held a slab and no longer can.
fn no_slabs() -> EngineError {
    EngineError::Internal { place: "tiles".to_owned(), reason: "the session holds no slabs".into() }
}

/// Appends a plane, whose rows have `width` values, extended to [rows, columns] by its last rows and columns.
fn extend_padded(values: &mut Vec<f32>, plane: &[f32], width: usize, [rows, columns]: [usize; 2]) {
    let start = values.len();
    for row in plane.chunks_exact(width.max(1)) {
        values.extend_from_slice(row);
        values.extend(std::iter::repeat_n(row.last().copied().unwrap_or(0.0), columns - width));
    }
    for _ in (values.len() - start) / columns.max(1)..rows {
        values.extend_from_within(values.len() - columns..);
    }
}

#[cfg(test)]
#[path = "tiles_tests.rs"]
mod tests;
