//! `mesh`: surfaces of objects as STL and glTF.

use crate::common::Fixture;
use std::collections::BTreeMap;
use std::f64::consts::PI;

/// Writes labels with a ball of radius 6 µm (3) and a box of 2 × 4 × 6 voxels (9); voxels of 1 × 0.5 × 0.5 µm.
fn labels(fixture: &Fixture) {
    let [nz, ny, nx] = [20usize, 36, 60];
    let mut values = vec![0u16; nz * ny * nx];
    for (i, value) in values.iter_mut().enumerate() {
        let (z, y, x) = (i / (ny * nx), i / nx % ny, i % nx);
        let um = [z as f64 - 9.1, 0.5 * y as f64 - 8.6, 0.5 * x as f64 - 8.1];
        if um.iter().map(|v| v * v).sum::<f64>() <= 36.0 {
            *value = 3;
        } else if (2..4).contains(&z) && (4..8).contains(&y) && (50..56).contains(&x) {
            *value = 9;
        }
    }
    fixture.write("labels.tif", "ZYX", &[nz, ny, nx], values);
}

/// The triangles of a binary STL file, with corners X, Y, Z.
fn stl(bytes: &[u8]) -> Vec<[[f32; 3]; 3]> {
    let n = u32::from_le_bytes(bytes[80..84].try_into().unwrap()) as usize;
    assert_eq!(bytes.len(), 84 + 50 * n);
    let float = |at: usize| f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let corner = |at: usize| [float(at), float(at + 4), float(at + 8)];
    (0..n).map(|i| [1, 2, 3].map(|c| corner(84 + 50 * i + 12 * c))).collect()
}

/// Whether every edge belongs to two triangles, once in each direction.
fn is_closed(triangles: &[[[f32; 3]; 3]]) -> bool {
    let mut edges: BTreeMap<_, [usize; 2]> = BTreeMap::new();
    for corners in triangles {
        let keys = corners.map(|corner| corner.map(f32::to_bits));
        for (from, to) in [(keys[0], keys[1]), (keys[1], keys[2]), (keys[2], keys[0])] {
            edges.entry((from.min(to), from.max(to))).or_default()[usize::from(from < to)] += 1;
        }
    }
    edges.values().all(|n| *n == [1, 1])
}

/// Enclosed volume in µm³.
fn volume(triangles: &[[[f32; 3]; 3]]) -> f64 {
    let of = |t: &[[f32; 3]; 3]| {
        let [a, b, c] = t.map(|corner| corner.map(f64::from));
        a[0] * (b[1] * c[2] - b[2] * c[1]) + a[1] * (b[2] * c[0] - b[0] * c[2]) + a[2] * (b[0] * c[1] - b[1] * c[0])
    };
    triangles.iter().map(of).sum::<f64>() / 6.0
}

#[test]
fn meshes_of_chosen_objects_are_closed_and_in_um() {
    let fixture = Fixture::new();
    labels(&fixture);
    let size = ["--voxel-size", "1,0.5,0.5"];
    let one = [&["mesh", "labels.tif", "--objects", "3", "--out", "ball.stl", "--json"], &size[..]].concat();
    let report = fixture.run(&one).json();
    let ball = stl(&fixture.bytes("ball.stl"));
    assert!(is_closed(&ball));
    let expected = 4.0 / 3.0 * PI * 216.0;
    assert!((volume(&ball) / expected - 1.0).abs() < 0.03, "{}", volume(&ball));
    let stated = &report["objects"][0];
    assert_eq!((stated["label"].as_u64(), stated["triangles"].as_u64()), (Some(3), Some(ball.len() as u64)));
    assert!((stated["volume_um3"].as_f64().unwrap() / volume(&ball) - 1.0).abs() < 1e-4);
    assert!((stated["area_um2"].as_f64().unwrap() / (4.0 * PI * 36.0) - 1.0).abs() < 0.05);
    // Coordinates are those of the table of measurements.
    let xs = || ball.iter().flatten().map(|corner| f64::from(corner[0]));
    let middle = (xs().fold(f64::INFINITY, f64::min) + xs().fold(0.0, f64::max)) / 2.0;
    assert!((middle - 8.1).abs() < 0.3, "{middle}");
    // All objects, with the steps of the voxels: their volumes are those of the voxels.
    let all = [&["mesh", "labels.tif", "--out", "all.stl", "--unsmoothed", "--json"], &size[..]].concat();
    let report = fixture.run(&all).json();
    assert_eq!(report["objects"].as_array().unwrap().len(), 2);
    assert!((report["objects"][1]["volume_um3"].as_f64().unwrap() - 48.0 * 0.25).abs() < 1e-3, "{report}");
    fixture.run(&[&["mesh", "labels.tif", "--out", "all.glb"], &size[..]].concat()).ok();
    assert!(fixture.bytes("all.glb").starts_with(b"glTF"));
}

#[test]
fn wrong_outputs_and_objects_are_refused() {
    let fixture = Fixture::new();
    labels(&fixture);
    fixture.fails(2, &["mesh", "labels.tif", "--out", "m.obj"], &["m.obj", ".stl", ".glb"]);
    fixture.fails(3, &["mesh", "labels.tif", "--objects", "3,4", "--out", "m.stl"], &["no object 4", "2 objects"]);
    fixture.write("empty.tif", "ZYX", &[2, 8, 8], vec![0u16; 128]);
    fixture.fails(3, &["mesh", "empty.tif", "--out", "m.stl"], &["empty.tif", "no objects"]);
    assert!(!fixture.path("m.stl").exists());
    fixture.run(&["mesh", "labels.tif", "--objects", "9", "--out", "m.stl"]).ok();
    fixture.fails(2, &["mesh", "labels.tif", "--objects", "9", "--out", "m.stl"], &["m.stl", "--force"]);
}
