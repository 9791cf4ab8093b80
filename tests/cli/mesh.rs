//! `mesh`: surfaces of objects as STL and glTF.

use crate::common::{Fixture, python};
use serde_json::Value;
use std::collections::BTreeMap;
use std::f64::consts::PI;
use std::path::PathBuf;

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

/// Prints, for each file: whether trimesh finds its surface closed and consistently oriented, its volume, its bounds along
/// X, Y, Z, and the volumes of its named meshes.
const TRIMESH: &str = "
import json, sys, trimesh
found = []
for path in sys.argv[1:]:
    mesh = trimesh.load_mesh(path)
    parts = {name: float(part.volume) for name, part in trimesh.load_scene(path).geometry.items()}
    found.append({
        'closed': bool(mesh.is_watertight), 'oriented': bool(mesh.is_winding_consistent), 'volume': float(mesh.volume),
        'bounds': mesh.bounds.tolist(), 'parts': parts,
    })
print(json.dumps(found))
";

#[test]
fn trimesh_opens_meshes_as_closed_surfaces_in_um() {
    let fixture = Fixture::new();
    labels(&fixture);
    for (out, more) in [("ball.stl", &["--objects", "3"][..]), ("all.stl", &[]), ("all.glb", &[])] {
        let mesh = ["mesh", "labels.tif", "--out", out, "--voxel-size", "1,0.5,0.5"];
        fixture.run(&[&mesh[..], more].concat()).ok();
    }
    let values = fixture.image("labels.tif").samples().to_f32();
    let voxels_um3 = |label: f32| values.iter().filter(|v| **v == label).count() as f64 * 0.25;
    let paths = ["ball.stl", "all.stl", "all.glb"].map(|name| fixture.path(name));
    let Some(printed) = python("trimesh", TRIMESH, &paths.each_ref().map(PathBuf::as_path)) else { return };
    let found: Value = serde_json::from_str(&printed).unwrap();
    let number = |value: &Value| value.as_f64().unwrap();
    let both = voxels_um3(3.0) + voxels_um3(9.0);
    // The ball has its center at 8.1, 8.6, 9.1 µm along X, Y, Z and a radius of 6 µm. The box begins at 24.75, 1.75, 1.5 µm.
    let (ball, all) = ([2.1, 2.6, 3.1], [2.1, 1.75, 1.5]);
    let expected = [(voxels_um3(3.0), ball), (both, all), (both, all)];
    for (mesh, (volume_um3, low_um)) in found.as_array().unwrap().iter().zip(expected) {
        assert!(mesh["closed"] == true && mesh["oriented"] == true, "{printed}");
        let volume = number(&mesh["volume"]);
        assert!((volume / volume_um3 - 1.0).abs() < 0.05, "{volume} instead of {volume_um3} µm³");
        for (axis, low) in low_um.into_iter().enumerate() {
            assert!((number(&mesh["bounds"][0][axis]) - low).abs() < 0.6, "{printed}");
        }
    }
    let high = |mesh: usize| number(&found[mesh]["bounds"][1][0]);
    assert!((high(0) - 14.1).abs() < 0.6 && (high(1) - 27.75).abs() < 0.6, "{printed}");
    // A glTF file has a mesh for each object.
    let parts = found[2]["parts"].as_object().unwrap();
    assert!(parts.len() == 2 && (number(&parts["object 3"]) / voxels_um3(3.0) - 1.0).abs() < 0.05, "{printed}");
}

#[test]
fn wrong_outputs_and_objects_are_refused() {
    let fixture = Fixture::new();
    labels(&fixture);
    fixture.fails(2, &["mesh", "labels.tif", "--out", "m.obj"], &["m.obj", ".stl", ".glb"]);
    fixture.fails(3, &["mesh", "labels.tif", "--objects", "3,4", "--out", "m.stl"], &["no object 4", "2 objects"]);
    fixture.fails(2, &["mesh", "labels.tif", "--objects", "1-5", "--out", "m.stl"], &["1-5", "such as 1,5"]);
    fixture.write("empty.tif", "ZYX", &[2, 8, 8], vec![0u16; 128]);
    fixture.fails(3, &["mesh", "empty.tif", "--out", "m.stl"], &["empty.tif", "no objects"]);
    assert!(!fixture.path("m.stl").exists());
    // The label image has one time point.
    fixture.fails(3, &["mesh", "labels.tif", "--time", "1", "--out", "m.stl"], &["time point 1", "leave out --time"]);
    let little = ["mesh", "labels.tif", "--memory-budget", "2K", "--out", "m.stl"];
    fixture.fails(4, &little, &["budget", "object 3", "voxels", "--objects", "labels.tif"]);
    assert!(!fixture.path("m.stl").exists());
    fixture.run(&["mesh", "labels.tif", "--objects", "9", "--memory-budget", "2K", "--out", "m.stl"]).ok();
    std::fs::remove_file(fixture.path("m.stl")).unwrap();
    fixture.write("times.tif", "TZYX", &[2, 2, 8, 8], [vec![0u16; 128], vec![5; 128]].concat());
    fixture.run(&["mesh", "times.tif", "--time", "1", "--out", "t.stl"]).ok();
    fixture.fails(3, &["mesh", "times.tif", "--time", "0", "--out", "u.stl"], &["no objects"]);
    fixture.fails(3, &["mesh", "times.tif", "--time", "2", "--out", "u.stl"], &["time point 2", "--time from 0 to 1"]);
    fixture.run(&["mesh", "labels.tif", "--objects", "9", "--out", "m.stl"]).ok();
    fixture.fails(2, &["mesh", "labels.tif", "--objects", "9", "--out", "m.stl"], &["m.stl", "--force"]);
}

#[test]
fn a_stack_given_as_labels_is_noted_once_and_before_its_surfaces_are_computed() {
    let fixture = Fixture::new();
    let values: Vec<u16> = (0..2 * 32 * 32).map(|i| 1 + (i * 31 % 127) as u16).collect();
    fixture.write("raw.tif", "ZYX", &[2, 32, 32], values);
    let ran = fixture.run(&["mesh", "raw.tif", "--out", "m.stl", "--unsmoothed"]).ok();
    let noted = |text: &str| text.matches("may be an image of intensities instead of labels").count();
    assert_eq!((noted(&ran.stderr), noted(&ran.stdout)), (1, 0), "{}{}", ran.stderr, ran.stdout);
    // With few objects, after them; in JSON always, because standard error has no notes.
    let few = ["mesh", "raw.tif", "--out", "few.stl", "--objects", "5,6", "--unsmoothed"];
    let ran = fixture.run(&few).ok();
    assert_eq!((noted(&ran.stderr), noted(&ran.stdout)), (0, 1), "{}{}", ran.stderr, ran.stdout);
    let report = fixture.run(&["mesh", "raw.tif", "--out", "json.stl", "--unsmoothed", "--json"]).json();
    assert_eq!(noted(&report["notes"].to_string()), 1, "{report}");
}
