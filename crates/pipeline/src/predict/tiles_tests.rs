//! Tiles of a slab give the same values whether they are copied one by one or stay on the device.
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
