//! Runs the network on tiles of a slab: one after the other, or several in one batch. Sessions that can hold the slab in
//! device memory cut the tiles there.

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
    /// As [`TileRunner::run`].
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
        slabs.run_kept(&starts, self.network.output_index, kept).map_err(|error| of_output(name, error))
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
    /// As [`TileRunner::run`].
    pub(super) fn run_summed(&mut self, starts: &[[usize; 3]], size: [usize; 3]) -> Result<(), JobError> {
        let (filled, macs) = (self.filled(starts), self.session.report().macs);
        let _span = self.span(size, macs);
        let Some(slabs) = self.session.slabs() else { return Err(no_slabs().into()) };
        let (name, output) = (self.network.name, self.network.output_index);
        slabs.run_summed(&filled, output, starts.len()).map_err(|error| of_output(name, error))
    }

    /// Returns the first slices of the sums in device memory, `[C][Z][Y][X]` of `shape` Z, Y, X, and removes them there.
    ///
    /// # Errors
    /// As [`TileRunner::run`].
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
    /// As [`TileRunner::run`].
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
    /// [`JobError::Engine`] if the network fails; [`JobError::Model`] if its output has another shape than its input.
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
            let outputs = self.session.run(&[input])?;
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
fn of_output(name: &str, error: EngineError) -> JobError {
    match error {
        EngineError::Input { expected, got, .. } => not_tileable(name, &format!("{got}, expected {expected}")),
        error => error.into(),
    }
}

/// Returns the error for a model whose output does not have the size of its input; `found` says what it has.
fn not_tileable(name: &str, found: &str) -> JobError {
    JobError::model(
        name.to_owned(),
        format!("its output has {found}: only models whose output has the same shape as their input can be tiled"),
    )
}

/// Returns the error of a session that has held a slab and no longer can.
fn no_slabs() -> EngineError {
    EngineError::Internal { place: "tiles".to_owned(), reason: "the session holds no slabs".to_owned() }
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
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_engine::{CompileReport, SlabSession};

    /// A network that returns its input negated, and the shapes of its inputs.
    #[derive(Default)]
    struct Negate {
        report: CompileReport,
        shapes: Vec<Vec<usize>>,
    }

    impl Session for Negate {
        fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EngineError> {
            let input = &inputs[0];
            self.shapes.push(input.shape().to_vec());
            let values: Vec<f32> = input.as_f32().unwrap().iter().map(|v| -v).collect();
            Ok(vec![Tensor::new(input.shape(), values)?])
        }

        fn report(&self) -> &CompileReport {
            &self.report
        }
    }

    /// Like [`Negate`], but it cuts tiles of `size` out of a slab, which it holds as planes `[Z][C][Y][X]`.
    struct NegateOnDevice {
        report: CompileReport,
        size: [usize; 3],
        limit_bytes: u64,
        planes: Vec<Vec<Vec<f32>>>,
        columns: usize,
        /// Planes that were copied to the device.
        copied: usize,
        /// Runs whose input was copied to the device.
        copied_inputs: usize,
        /// Kept results `[C][Z][Y][X]` with their shapes Z, Y, X.
        kept: Vec<(Vec<f32>, [usize; 3])>,
        /// Weights, and sums `[C][Z][Y][X]` with their shape.
        sums: (Vec<f32>, Vec<f32>, [usize; 4]),
    }

    impl NegateOnDevice {
        fn new(size: [usize; 3], limit_bytes: u64) -> Self {
            let report = CompileReport::default();
            let (planes, kept) = (Vec::new(), Vec::new());
            let sums = (Vec::new(), Vec::new(), [0; 4]);
            Self { report, size, limit_bytes, planes, columns: 0, copied: 0, copied_inputs: 0, kept, sums }
        }
    }

    impl Session for NegateOnDevice {
        fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EngineError> {
            self.copied_inputs += 1;
            Negate::default().run(inputs)
        }

        fn report(&self) -> &CompileReport {
            &self.report
        }

        fn slabs(&mut self) -> Option<&mut dyn SlabSession> {
            Some(self)
        }
    }

    impl SlabSession for NegateOnDevice {
        fn slab_limit_bytes(&self) -> u64 {
            self.limit_bytes
        }

        fn load(&mut self, kept_planes: usize, planes: Tensor) -> Result<(), EngineError> {
            let (shape, values) = (planes.shape().to_vec(), planes.as_f32().unwrap());
            self.planes.drain(..self.planes.len() - kept_planes);
            for z in 0..shape[1] {
                let plane = shape[2] * shape[3];
                let channels = (0..shape[0]).map(|c| values[(c * shape[1] + z) * plane..][..plane].to_vec());
                self.planes.push(channels.collect());
            }
            (self.columns, self.copied) = (shape[3], self.copied + shape[1]);
            Ok(())
        }

        fn run_tiles(&mut self, starts: &[[usize; 3]]) -> Result<Vec<Tensor>, EngineError> {
            let mut values: Vec<f32> = Vec::new();
            for start in starts {
                for c in 0..2 {
                    for z in start[0]..start[0] + self.size[0] {
                        for y in start[1]..start[1] + self.size[1] {
                            let row = &self.planes[z][c][y * self.columns..][..self.columns];
                            values.extend(row[start[2]..start[2] + self.size[2]].iter().map(|v| -v));
                        }
                    }
                }
            }
            let [z, y, x] = self.size;
            Ok(vec![Tensor::new([starts.len(), 2, z, y, x], values)?])
        }

        fn run_kept(
            &mut self,
            starts: &[[usize; 3]],
            output: usize,
            kept: &[[Range<usize>; 3]],
        ) -> Result<(), EngineError> {
            let tiles = self.run_tiles(starts)?.remove(output).into_f32().unwrap();
            let [nz, ny, nx] = self.size;
            for (tile, [z, y, x]) in tiles.chunks(2 * nz * ny * nx).zip(kept) {
                let mut values: Vec<f32> = Vec::new();
                for plane in (0..2).flat_map(|c| (z.start..z.end).map(move |z| c * nz + z)) {
                    for row in y.start..y.end {
                        values.extend_from_slice(&tile[(plane * ny + row) * nx..][x.start..x.end]);
                    }
                }
                self.kept.push((values, [z.len(), y.len(), x.len()]));
            }
            Ok(())
        }

        fn take_kept(&mut self, columns: usize) -> Result<Tensor, EngineError> {
            let kept = std::mem::take(&mut self.kept);
            let (depth, mut values) = (kept[0].1[0], Vec::new());
            for plane in 0..2 * depth {
                for row in kept.chunks(columns) {
                    for y in 0..row[0].1[1] {
                        for (part, [_, ny, nx]) in row {
                            values.extend_from_slice(&part[(plane * ny + y) * nx..][..*nx]);
                        }
                    }
                }
            }
            let width: usize = kept[..columns].iter().map(|(_, [_, _, nx])| nx).sum();
            let rows: usize = kept.iter().step_by(columns).map(|(_, [_, ny, _])| ny).sum();
            Ok(Tensor::new([2, depth, rows, width], values)?)
        }

        fn begin_sums(&mut self, weights: Tensor, shape: [usize; 4]) -> Result<(), EngineError> {
            self.sums = (weights.into_f32().unwrap(), vec![0.0; shape.iter().product()], shape);
            Ok(())
        }

        fn run_summed(&mut self, starts: &[[usize; 3]], output: usize, used: usize) -> Result<(), EngineError> {
            let tiles = self.run_tiles(starts)?.remove(output).into_f32().unwrap();
            let ([nz, ny, nx], (weights, sums, shape)) = (self.size, &mut self.sums);
            for (tile, [_, y, x]) in tiles.chunks(2 * nz * ny * nx).zip(starts).take(used) {
                for (at, value) in tile.iter().enumerate() {
                    let [c, tz, ty, tx] = [at / (nz * ny * nx), at / (ny * nx) % nz, at / nx % ny, at % nx];
                    if y + ty < shape[2] && x + tx < shape[3] {
                        let to = ((c * shape[1] + tz) * shape[2] + y + ty) * shape[3] + x + tx;
                        sums[to] += value * weights[at % (nz * ny * nx)];
                    }
                }
            }
            Ok(())
        }

        fn take_sums(&mut self, planes: usize) -> Result<Tensor, EngineError> {
            let (_, sums, [channels, depth, rows, columns]) = &mut self.sums;
            let (plane, mut taken) = (*rows * *columns, Vec::new());
            for channel in sums.chunks_mut(*depth * plane) {
                taken.extend_from_slice(&channel[..planes * plane]);
                channel.copy_within(planes * plane.., 0);
                let left = channel.len() - planes * plane;
                channel[left..].fill(0.0);
            }
            Ok(Tensor::new([*channels, planes, *rows, *columns], taken)?)
        }
    }

    #[test]
    fn sums_of_weighted_tiles_stay_on_the_device_until_their_slices_are_finished() {
        let (values, recorder) = (digits(), Recorder::totals_only());
        let slab = Slab { values: &values, shape: [3, 4, 5] };
        let (starts, size) = ([[0, 0, 0], [0, 0, 3], [0, 2, 0], [0, 2, 3]], [3, 2, 3]);
        let weights: Vec<f32> = (1..=18).map(|weight| weight as f32).collect();
        let mut device = NegateOnDevice::new(size, 2000);
        let mut tiles = TileRunner::new(&recorder, network(2), &mut device, 3);
        assert!(!tiles.begin_sums(&weights, size, [3, 4, 5]).unwrap(), "no slab was loaded");
        tiles.load(&slab, 0, [4, 6]).unwrap();
        assert!(!tiles.begin_sums(&weights, size, [3, 40, 50]).unwrap(), "the sums are too large");
        assert!(tiles.begin_sums(&weights, size, [3, 4, 5]).unwrap());
        // The second batch is filled up with its tile, which counts once.
        for starts in starts.chunks(3) {
            tiles.run_summed(starts, size).unwrap();
        }
        // Each voxel is in one tile.
        let weighted = |at: usize| {
            let [z, y, x] = [at / 20 % 3, at / 5 % 4, at % 5];
            -values[at] * weights[(z * 2 + y % 2) * 3 + x % 3]
        };
        let expected = |z: Range<usize>| -> Vec<f32> {
            (0..2).flat_map(|c| (c * 60 + z.start * 20..c * 60 + z.end * 20).map(weighted)).collect()
        };
        assert_eq!(tiles.take_sums([2, 4, 5]).unwrap(), expected(0..2));
        // What is left starts at the first slice; the others are empty.
        let [left, empty] = [tiles.take_sums([1, 4, 5]).unwrap(), tiles.take_sums([1, 4, 5]).unwrap()];
        assert_eq!((left, empty), (expected(2..3), vec![0.0; 40]));
    }

    #[test]
    fn results_that_stay_on_the_device_are_joined_to_the_kept_part_of_the_slab() {
        let (values, recorder) = (digits(), Recorder::totals_only());
        let slab = Slab { values: &values, shape: [3, 4, 5] };
        let (starts, size) = ([[0, 0, 0], [0, 0, 2], [0, 2, 0], [0, 2, 2]], [3, 2, 3]);
        // The last two slices, and along X two columns of the first tile.
        let kept = [0..2, 0..3, 0..2, 0..3].map(|x| [1..3, 0..2, x]);
        let mut device = NegateOnDevice::new(size, 1000);
        let mut tiles = TileRunner::new(&recorder, network(2), &mut device, 3);
        assert!(!tiles.can_keep([2, 4, 5]), "no slab was loaded");
        tiles.load(&slab, 0, [4, 5]).unwrap();
        assert!(tiles.can_keep([2, 4, 5]) && !tiles.can_keep([20, 40, 50]));
        for (starts, kept) in starts.chunks(3).zip(kept.chunks(3)) {
            tiles.run_kept(starts, kept, size).unwrap();
        }
        let expected: Vec<f32> = [20..60, 80..120].into_iter().flatten().map(|at: usize| -values[at]).collect();
        assert_eq!(tiles.take_kept(2, [2, 4, 5]).unwrap(), expected);
    }

    #[test]
    fn tiles_of_a_slab_on_the_device_equal_copied_ones_and_each_slice_is_copied_once() {
        let recorder = Recorder::totals_only();
        let (size, starts) = ([3, 2, 3], [[0, 0, 0], [0, 2, 3], [0, 3, 0], [0, 3, 3], [0, 1, 2]]);
        for (limit_bytes, copied, copied_inputs) in [(u64::MAX, 7, 0), (100, 0, 6)] {
            let mut device = NegateOnDevice::new(size, limit_bytes);
            let mut host = Negate::default();
            let mut tiles = TileRunner::new(&recorder, network(2), &mut device, 3);
            let mut plain = TileRunner::new(&recorder, network(2), &mut host, 3);
            for first in [0, 2, 4] {
                // Two channels of 3 × 4 × 5 voxels; the value says where in the volume a voxel is.
                let at = |i: usize| (i / 60) * 10_000 + (first + i / 20 % 3) * 1000 + (i / 5 % 4) * 10 + i % 5;
                let values: Vec<f32> = (0..120).map(|i| at(i) as f32).collect();
                let slab = Slab { values: &values, shape: [3, 4, 5] };
                tiles.load(&slab, first, [5, 6]).unwrap();
                for some in starts.chunks(3) {
                    let (got, expected) = (tiles.run(&slab, some, size), plain.run(&slab, some, size));
                    assert_eq!(got.unwrap(), expected.unwrap(), "the slab at slice {first}");
                }
            }
            assert_eq!((device.copied, device.copied_inputs), (copied, copied_inputs), "limit {limit_bytes}");
        }
    }

    /// A slab of two channels, 3 × 4 × 5 voxels; the value at c, z, y, x has these as decimal digits.
    fn digits() -> Vec<f32> {
        let at = |i: usize| (i / 60) * 1000 + (i / 20 % 3) * 100 + (i / 5 % 4) * 10 + i % 5;
        (0..120).map(|i| at(i) as f32).collect()
    }

    fn network(channels: usize) -> TileNetwork<'static> {
        TileNetwork {
            name: "negate",
            input_channels: channels,
            output_channels: channels,
            output_index: 0,
            spatial_axes: 3,
        }
    }

    #[test]
    fn a_batch_gives_its_tiles_in_order_and_repeats_the_last_voxels_outside_the_slab() {
        let (values, recorder) = (digits(), Recorder::totals_only());
        let slab = Slab { values: &values, shape: [3, 4, 5] };
        let (starts, size) = ([[0, 0, 0], [0, 2, 3], [1, 3, 4]], [2, 2, 3]);
        let expected = |start: [usize; 3]| {
            (0..24).map(move |i| {
                let at = [i / 6 % 2, i / 3 % 2, i % 3];
                let [z, y, x]: [usize; 3] = std::array::from_fn(|a| (start[a] + at[a]).min([2, 3, 4][a]));
                -((i / 12 * 1000 + z * 100 + y * 10 + x) as f32)
            })
        };
        for batch in [1, 3, 4] {
            let mut session = Negate::default();
            let mut tiles = TileRunner::new(&recorder, network(2), &mut session, batch);
            for some in starts.chunks(batch) {
                let got = tiles.run(&slab, some, size).unwrap();
                assert_eq!(got.len(), batch * 24);
                let wanted: Vec<f32> = some.iter().flat_map(|start| expected(*start)).collect();
                assert_eq!(got[..some.len() * 24], wanted, "batches of {batch}");
            }
            assert_eq!(session.shapes.len(), 3usize.div_ceil(batch));
            assert!(session.shapes.iter().all(|shape| *shape == [batch, 2, 2, 2, 3]), "{:?}", session.shapes);
        }
    }

    #[test]
    fn an_output_of_another_size_is_an_error_of_the_model() {
        let (values, recorder, mut session) = (digits(), Recorder::totals_only(), Negate::default());
        let slab = Slab { values: &values, shape: [3, 4, 5] };
        let network = TileNetwork { output_channels: 3, ..network(2) };
        let mut tiles = TileRunner::new(&recorder, network, &mut session, 2);
        let error = tiles.run(&slab, &[[0; 3]], [2, 2, 2]).unwrap_err().to_string();
        assert!(error.contains("32 values") && error.contains("expected 48"), "{error}");
    }
}
