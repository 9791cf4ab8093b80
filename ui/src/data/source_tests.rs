//! Planes of files with levels, compared with the full resolution.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use super::*;
use cytoscope_formats::{OpenOptions, open};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Voxels along Z, Y, X.
type Shape = [usize; 3];

/// How the test reduces the full resolution.
#[derive(Clone, Copy)]
enum Reduced {
    Mean,
    First,
}

/// An image in memory, of which the test computes levels and expected values.
struct Truth {
    shape: Shape,
    voxels: Vec<f32>,
}

impl Truth {
    /// Numbers that differ between all neighbors, and have means without rounding.
    fn new(shape: Shape) -> Self {
        let [_, ny, nx] = shape;
        let voxel = |i: usize| {
            let [z, y, x] = [i / (ny * nx), i / nx % ny, i % nx];
            (1000 * z + 64 * (y * y % 13) + (x * x + 3 * x) % 61) as f32
        };
        Self { shape, voxels: (0..shape.iter().product::<usize>()).map(voxel).collect() }
    }

    fn at(&self, [z, y, x]: Shape) -> f32 {
        self.voxels[(z * self.shape[1] + y) * self.shape[2] + x]
    }

    /// The value of the block that begins at a voxel; blocks end with the image.
    fn block(&self, start: Shape, size: Shape, how: Reduced) -> f32 {
        if let Reduced::First = how {
            return self.at(start);
        }
        let range = |axis: usize| start[axis]..(start[axis] + size[axis]).min(self.shape[axis]);
        let (mut sum, mut count) = (0.0, 0.0);
        for z in range(0) {
            for y in range(1) {
                for x in range(2) {
                    sum += f64::from(self.at([z, y, x]));
                    count += 1.0;
                }
            }
        }
        (sum / count) as f32
    }

    /// The level of these blocks and extents.
    fn level(&self, factors: Shape, extents: Shape, how: Reduced) -> Vec<f32> {
        let [nz, ny, nx] = extents;
        let start = |i: usize| [i / (ny * nx) * factors[0], i / nx % ny * factors[1], i % nx * factors[2]];
        (0..nz * ny * nx).map(|i| self.block(start(i), factors, how)).collect()
    }
}

/// Writes an OME-Zarr image of 32-bit floats, or of unsigned integers for labels; each level is one chunk.
fn write(folder: &Path, levels: &[(Shape, Vec<f32>)], labels: bool) -> PathBuf {
    let path = folder.join("image.zarr");
    let axes: Vec<_> = ["z", "y", "x"].iter().map(|name| json!({"name": name, "type": "space"})).collect();
    let datasets: Vec<_> = (0..levels.len())
        .map(|i| {
            let scale = json!([{"type": "scale", "scale": [1.0, 1.0, 1.0]}]);
            json!({"path": i.to_string(), "coordinateTransformations": scale})
        })
        .collect();
    let mut ome = json!({"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets}]});
    if labels {
        ome["image-label"] = json!({});
    }
    std::fs::create_dir(&path).unwrap();
    let root = json!({"zarr_format": 3, "node_type": "group", "attributes": {"ome": ome}});
    std::fs::write(path.join("zarr.json"), root.to_string()).unwrap();
    for (i, (shape, voxels)) in levels.iter().enumerate() {
        let array = json!({"zarr_format": 3, "node_type": "array", "shape": shape,
            "data_type": if labels { "uint32" } else { "float32" },
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shape}},
            "chunk_key_encoding": {"name": "default"}, "fill_value": 0,
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]});
        let level = path.join(i.to_string());
        std::fs::create_dir_all(level.join("c/0/0")).unwrap();
        std::fs::write(level.join("zarr.json"), array.to_string()).unwrap();
        let bytes = |v: &f32| if labels { (*v as u32).to_le_bytes() } else { v.to_le_bytes() };
        std::fs::write(level.join("c/0/0/0"), voxels.iter().flat_map(bytes).collect::<Vec<u8>>()).unwrap();
    }
    path
}

fn source(path: &Path, labels: bool) -> FileSource {
    FileSource::new(open(path, &OpenOptions::default()).unwrap(), labels)
}

/// A whole plane.
fn whole(orientation: Orientation, index: usize, steps: [usize; 3], shape: Shape) -> PlaneAt {
    PlaneAt { steps, ..PlaneAt::whole(orientation, index, shape) }
}

/// Compares the values at each voxel of a plane with those of blocks of the full resolution, which are `factors` thick
/// perpendicular to the plane.
fn compare(source: &FileSource, at: &PlaneAt, truth: &Truth, thickness: usize, how: Reduced) {
    let plane = source.plane(at, &Cancel::default()).unwrap();
    assert_eq!(plane.values.len(), plane.size[0] * plane.size[1]);
    let [normal, row_axis, column_axis] = at.orientation.axes();
    let [_, row_step, column_step] = at.steps;
    let (mut size, mut start) = ([0; 3], [0; 3]);
    (size[normal], size[row_axis], size[column_axis]) = (thickness, row_step, column_step);
    start[normal] = at.index / thickness * thickness;
    for row in at.rows.clone() {
        for column in at.columns.clone() {
            (start[row_axis], start[column_axis]) = (row / row_step * row_step, column / column_step * column_step);
            let (got, wanted) = (plane.value(row, column).unwrap(), f64::from(truth.block(start, size, how)));
            assert!((got - wanted).abs() < 1e-2, "{at:?}: {got} instead of {wanted} at {row}, {column}");
        }
    }
}

/// Factors of the levels of the tests: the second is also reduced along Z.
const FACTORS: [Shape; 3] = [[1, 1, 1], [1, 2, 2], [2, 4, 4]];

#[test]
fn planes_of_levels_are_those_of_the_full_resolution_at_the_same_place() {
    let folder = tempfile::tempdir().unwrap();
    let truth = Truth::new([8, 32, 48]);
    for (labels, how) in [(false, Reduced::Mean), (true, Reduced::First)] {
        let place = folder.path().join(labels.to_string());
        std::fs::create_dir(&place).unwrap();
        let levels = FACTORS.map(|factors| {
            let extents = [0, 1, 2].map(|a| truth.shape[a] / factors[a]);
            (extents, truth.level(factors, extents, how))
        });
        let source = source(&write(&place, &levels, labels), labels);
        // Steps of slices, rows and columns, the level that is read, and how thick its blocks are across the plane.
        let cases = [
            (Orientation::Xy, 5, [1, 1, 1], 0, 1),
            (Orientation::Xy, 5, [1, 4, 4], 1, 1),
            (Orientation::Xy, 5, [2, 4, 4], 2, 2),
            (Orientation::Xy, 4, [4, 8, 8], 2, 2),
            (Orientation::Xz, 13, [1, 1, 1], 0, 1),
            (Orientation::Xz, 13, [1, 1, 4], 1, 2),
            (Orientation::Xz, 13, [1, 2, 4], 2, 4),
            (Orientation::Xz, 31, [1, 4, 8], 2, 4),
            (Orientation::Zy, 27, [1, 1, 1], 0, 1),
            (Orientation::Zy, 27, [1, 2, 1], 1, 2),
            (Orientation::Zy, 27, [1, 8, 2], 2, 4),
        ];
        for (orientation, index, steps, level, thickness) in cases {
            let at = whole(orientation, index, steps, truth.shape);
            assert_eq!(level_for(&source.levels, &at).index, level, "{at:?}");
            compare(&source, &at, &truth, thickness, how);
        }
        // A region that begins inside of the plane.
        let part = PlaneAt { rows: 2..8, columns: 16..48, ..whole(Orientation::Xz, 6, [1, 2, 8], truth.shape) };
        compare(&source, &part, &truth, 4, how);
    }
}

#[test]
fn fewer_bytes_are_read_across_the_slices_of_a_file_with_levels() {
    let folder = tempfile::tempdir().unwrap();
    let truth = Truth::new([8, 32, 48]);
    let levels = FACTORS.map(|factors| {
        let extents = [0, 1, 2].map(|a| truth.shape[a] / factors[a]);
        (extents, truth.level(factors, extents, Reduced::Mean))
    });
    let path = write(folder.path(), &levels, false);
    let bytes = |steps: [usize; 3]| {
        let source = source(&path, false);
        let before = source.image.bytes_read();
        source.plane(&whole(Orientation::Xz, 9, steps, truth.shape), &Cancel::default()).unwrap();
        source.image.bytes_read() - before
    };
    // Chunks, of which each is a level, are read whole.
    let full = 8 * 32 * 48 * 4;
    assert_eq!([[1, 1, 1], [1, 1, 4], [1, 2, 4]].map(bytes), [full, full / 4, full / 32]);
}

#[test]
fn levels_without_the_last_incomplete_blocks_are_not_skewed() {
    let folder = tempfile::tempdir().unwrap();
    let truth = Truth::new([5, 15, 21]);
    // Extents are rounded down, as many programs do.
    let levels = FACTORS.map(|factors| {
        let extents = [0, 1, 2].map(|a| truth.shape[a] / factors[a]);
        (extents, truth.level(factors, extents, Reduced::Mean))
    });
    let source = source(&write(folder.path(), &levels, false), false);
    let at = whole(Orientation::Xy, 3, [1, 2, 2], truth.shape);
    assert_eq!(level_for(&source.levels, &at).index, 1);
    let plane = source.plane(&at, &Cancel::default()).unwrap();
    assert_eq!(plane.size, [8, 11]);
    for row in 0..15usize {
        for column in 0..21usize {
            // The last row and column, which the level lacks, repeat those before.
            let start = [3, (row / 2).min(6) * 2, (column / 2).min(9) * 2];
            let wanted = f64::from(truth.block(start, [1, 2, 2], Reduced::Mean));
            assert_eq!(plane.value(row, column), Some(wanted), "{row}, {column}");
        }
    }
    // Whether the third level has two or four slices per slice is not known, because it has only two.
    assert_eq!(source.levels.iter().map(|level| level.index).collect::<Vec<_>>(), [0, 1]);
}
