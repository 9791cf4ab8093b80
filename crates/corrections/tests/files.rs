//! Loading and saving of label images, and export of training pairs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod common;

use common::python;
use cytoscope_corrections::{
    CorrectionError, KnownVoxels, LabelVolume, Limits, LoadOptions, RawSource, SliceAxis, UNKNOWN_LABEL, export_pair,
    export_part,
};
use cytoscope_formats::{Container, OpenOptions, WriteSpec, open, write_array};
use cytoscope_testkit::run_python;
use cytoscope_volume::{Array, Samples, VoxelSize};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

fn write(path: &Path, axes: &str, shape: &[usize], samples: impl Into<Samples>) {
    let array = Array::new(axes.parse().unwrap(), shape.to_vec(), samples).unwrap();
    let container = if path.extension().is_some_and(|e| e == "npy") { Container::Npy } else { Container::OmeTiff };
    let mut spec = WriteSpec::of(&array, container);
    spec.voxel_size_um = VoxelSize::new_um(2.0, 0.25, 0.5);
    write_array(path, &array, &spec).unwrap();
}

fn load(path: &Path) -> Result<LabelVolume, CorrectionError> {
    LabelVolume::load(path, &LoadOptions::default())
}

#[test]
fn every_type_loads_exactly_or_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut n = 0;
    let mut try_load = |samples: Samples, extension: &str| {
        n += 1;
        let path = folder.path().join(format!("{n}.{extension}"));
        write(&path, "ZYX", &[2, 1, 3], samples);
        load(&path).map(|v| v.labels().to_dense())
    };
    let want: Vec<u32> = vec![0, 1, 2, 3, 4, 100];
    for samples in [
        Samples::U8(vec![0, 1, 2, 3, 4, 100]),
        Samples::U16(vec![0, 1, 2, 3, 4, 100]),
        Samples::U32(want.clone()),
        Samples::I8(vec![0, 1, 2, 3, 4, 100]),
        Samples::I16(vec![0, 1, 2, 3, 4, 100]),
        Samples::I32(vec![0, 1, 2, 3, 4, 100]),
        Samples::F32(vec![0.0, 1.0, 2.0, 3.0, 4.0, 100.0]),
        Samples::F64(vec![0.0, 1.0, 2.0, 3.0, 4.0, 100.0]),
    ] {
        assert_eq!(try_load(samples, "ome.tif").unwrap(), want);
    }
    for samples in [Samples::U64(vec![0, 1, 2, 3, 4, 100]), Samples::I64(vec![0, 1, 2, 3, 4, 100])] {
        assert_eq!(try_load(samples, "npy").unwrap(), want);
    }
    let most = u32::MAX;
    assert_eq!(try_load(Samples::U32(vec![0, 1, 2, 3, 4, most]), "ome.tif").unwrap().last(), Some(&most));
    for (samples, extension, value) in [
        (Samples::I16(vec![0, 0, 0, 0, -7, 0]), "ome.tif", "-7"),
        (Samples::F32(vec![0.0, 0.0, 0.0, 0.0, 1.5, 0.0]), "ome.tif", "1.5"),
        (Samples::F32(vec![0.0, 0.0, 0.0, 0.0, f32::NAN, 0.0]), "ome.tif", "NaN"),
        (Samples::F64(vec![0.0, 0.0, 0.0, 0.0, 4_294_967_296.0, 0.0]), "ome.tif", "4294967296"),
        (Samples::U64(vec![0, 0, 0, 0, 1 << 32, 0]), "npy", "4294967296"),
        (Samples::I64(vec![0, 0, 0, 0, -1, 0]), "npy", "-1"),
    ] {
        let error = try_load(samples, extension).unwrap_err();
        assert!(matches!(error, CorrectionError::NotLabels { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("value {value} at Z, Y, X = [1, 0, 1]")), "{text}");
    }
}

#[test]
fn the_volume_is_selectable_and_limits_are_enforced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("many.ome.tif");
    let values: Vec<u16> = (0..2 * 3 * 2 * 4 * 5).collect();
    write(&path, "TZCYX", &[2, 3, 2, 4, 5], values);
    let error = load(&path).unwrap_err().to_string();
    assert!(error.contains("2 channels") && error.contains("choose one"), "{error}");
    let options = |time, channel| LoadOptions { time, channel, ..LoadOptions::default() };
    let chosen = LabelVolume::load(&path, &options(Some(1), Some(1))).unwrap();
    assert_eq!(chosen.shape_zyx(), [3, 4, 5]);
    assert_eq!(chosen.get([2, 0, 3]), Some(((5 * 2 + 1) * 20 + 3) as u32));
    assert!(LabelVolume::load(&path, &options(Some(2), Some(0))).is_err());
    let limits = [
        ("max_voxels", Limits { max_voxels: 59, ..Limits::default() }),
        ("max_stored_bytes", Limits { max_stored_bytes: 119, ..Limits::default() }),
        ("max_label_pieces", Limits { max_label_pieces: 59, ..Limits::default() }),
    ];
    for (name, limits) in limits {
        let error = LabelVolume::load(&path, &LoadOptions { limits, ..options(Some(1), Some(1)) }).unwrap_err();
        assert!(matches!(error, CorrectionError::TooLarge { limit_name, .. } if limit_name == name), "{error}");
    }
    let stopped = LabelVolume::load_with(&path, &options(Some(0), Some(0)), &mut |_, _| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(CorrectionError::Canceled)));
    let colors = folder.path().join("rgb.ome.tif");
    write(&colors, "YXS", &[4, 5, 3], vec![1u8; 60]);
    assert!(matches!(load(&colors), Err(CorrectionError::NotLabels { .. })));
}

/// Labels in several chunks, the largest of which is `top`.
fn labels(top: u32) -> LabelVolume {
    let shape = [40, 70, 130];
    let mut labels = vec![0u32; shape.iter().product()];
    for (i, l) in labels.iter_mut().enumerate() {
        let (z, y, x) = (i / 9100, i / 130 % 70, i % 130);
        *l = if (z / 7 + y / 9 + x / 11) % 3 == 0 { (z / 7 * 100 + y / 9 * 20 + x / 11) as u32 } else { 0 };
    }
    labels[364_000 - 1] = top;
    LabelVolume::from_dense(shape, VoxelSize::new_um(2.0, 0.25, 0.5), &labels).unwrap()
}

const READ: &str = r#"
import sys, numpy, tifffile
with tifffile.TiffFile(sys.argv[1]) as t:
    a = t.series[0].asarray()
    b = numpy.load(sys.argv[2])
    x = t.pages[0].tags["XResolution"].value if t.is_imagej else None
    m = t.imagej_metadata or {}
    print(t.series[0].axes, a.dtype, bool((a == b).all()), t.is_imagej, t.is_ome, m.get("max"), m.get("spacing"), x and x[1] / x[0])
"#;

#[test]
fn saved_labels_read_back_with_this_crate_and_tifffile() {
    let folder = tempfile::tempdir().unwrap();
    for (top, kind, expected) in [
        (65_535, "imagej", "ZYX uint16 True True False 65535.0 2.0 0.5"),
        (65_536, "ome-tiff", "ZYX uint32 True False True None None None"),
    ] {
        let volume = labels(top);
        let path = folder.path().join(format!("{kind}.tif"));
        let mut slices = 0;
        let ticked = &mut |_, _| {
            slices += 1;
            ControlFlow::Continue(())
        };
        volume.labels().save_with(&path, ticked).unwrap();
        assert_eq!(slices, 40);
        let again = load(&path).unwrap();
        assert_eq!(again.fingerprint(), volume.fingerprint());
        assert_eq!(again.labels().to_dense(), volume.labels().to_dense());
        assert_eq!(again.voxel_size_um(), volume.voxel_size_um());
        assert!(again.labels_in_use().eq(volume.labels_in_use()));
        let meta = open(&path, &OpenOptions::default()).unwrap().meta().clone();
        assert_eq!(meta.format.as_str(), kind);
        if kind == "imagej" {
            assert_eq!(meta.display_range, Some((0.0, f64::from(top))), "labels are not displayed black");
        }
        if let Some(python) = python() {
            let truth = folder.path().join("truth.npy");
            write(&truth, "ZYX", &[40, 70, 130], volume.labels().to_dense());
            assert_eq!(run_python(&python, READ, &[&path, &truth]).trim(), expected);
        }
        let stopped = volume.labels().save_with(&path, &mut |z, _| {
            if z == 20 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(matches!(stopped, Err(CorrectionError::Canceled)));
        assert_eq!(load(&path).unwrap().fingerprint(), volume.fingerprint(), "a canceled save leaves the old file");
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|n| !n.to_string_lossy().contains("partial")), "{left:?}");
}

#[test]
fn fingerprints_depend_on_the_labels_and_not_on_their_storage() {
    let shape = [40, 70, 130];
    let empty = LabelVolume::new(shape, VoxelSize::default()).unwrap();
    let dense = LabelVolume::from_dense(shape, VoxelSize::new_um(1.0, 1.0, 1.0), &vec![0; 364_000]).unwrap();
    assert_eq!(empty.fingerprint(), dense.fingerprint());
    let mut one = vec![0; 364_000];
    one[100_000] = 1;
    let one = LabelVolume::from_dense(shape, VoxelSize::default(), &one).unwrap();
    assert_ne!(empty.fingerprint(), one.fingerprint());
    let turned = LabelVolume::new([40, 130, 70], VoxelSize::default()).unwrap();
    assert_ne!(empty.fingerprint(), turned.fingerprint());
    assert!(empty.slice(SliceAxis::X, 129).unwrap().iter().all(|v| *v == 0));
    assert!(empty.labels().stored_bytes() < 1000, "a uniform volume needs almost no memory");
}

/// A raw stack with two time points and two channels, and labels for one of each.
fn raw_and_labels(folder: &Path) -> (PathBuf, LabelVolume, Vec<u16>) {
    let raw = folder.join("raw.ome.tif");
    let values: Vec<u16> = (0..2 * 3 * 2 * 8 * 9).map(|i: u32| (i * 37 % 65_521) as u16).collect();
    write(&raw, "TZCYX", &[2, 3, 2, 8, 9], values.clone());
    let chosen = (0..3).flat_map(|z| values[((3 + z) * 2 + 1) * 72..][..72].to_vec()).collect();
    let labels: Vec<u32> = (0..216).map(|i| i / 50).collect();
    (raw, LabelVolume::from_dense([3, 8, 9], VoxelSize::default(), &labels).unwrap(), chosen)
}

#[test]
fn pairs_that_are_exported_at_the_same_time_are_all_in_the_table() {
    let folder = tempfile::tempdir().unwrap();
    let (raw, labels, _) = raw_and_labels(folder.path());
    let dataset = folder.path().join("dataset");
    let source = RawSource { path: &raw, series: 0, axes: None, voxel_um: None, channel: Some(1), time: Some(1) };
    std::thread::scope(|scope| {
        for window in ["a", "b"] {
            let (source, labels, dataset) = (&source, labels.labels(), &dataset);
            scope.spawn(move || {
                for pair in 0..10 {
                    export_pair(source, labels, dataset, &format!("{window}{pair}")).unwrap();
                }
            });
        }
    });
    let table = std::fs::read_to_string(dataset.join("dataset.csv")).unwrap();
    assert_eq!(table.lines().count(), 21, "{table}");
}

#[test]
fn exported_pairs_never_replace_existing_ones() {
    let folder = tempfile::tempdir().unwrap();
    let (raw, labels, chosen) = raw_and_labels(folder.path());
    let dataset = folder.path().join("a/dataset");
    let source = RawSource { path: &raw, series: 0, axes: None, voxel_um: None, channel: Some(1), time: Some(1) };
    let export = |name: &str| export_pair(&source, labels.labels(), &dataset, name);
    let first = export("day 1, well B").unwrap();
    assert_eq!(first.raw, dataset.join("day 1, well B_raw.tif"));
    let image = open(&first.raw, &OpenOptions::default()).unwrap();
    assert_eq!(image.read_all().unwrap().samples(), &Samples::U16(chosen));
    let calibrated = VoxelSize::new_um(2.0, 0.25, 0.5);
    let close = |a: Option<f64>, b: Option<f64>| (a.unwrap() - b.unwrap()).abs() < 1e-9;
    for path in [&first.raw, &first.labels] {
        let voxel = open(path, &OpenOptions::default()).unwrap().meta().voxel_size_um;
        assert!(close(voxel.z, calibrated.z) && close(voxel.y, calibrated.y) && close(voxel.x, calibrated.x));
    }
    assert_eq!(load(&first.labels).unwrap().fingerprint(), labels.fingerprint());
    let before = std::fs::read(&first.raw).unwrap();
    let second = export("day 1, well B").unwrap();
    assert_eq!(second.name, "day 1, well B-2");
    assert_eq!(std::fs::read(&first.raw).unwrap(), before);
    // Existing files are not replaced, and the names of pairs listed only in the table are not used.
    std::fs::write(dataset.join("x_labels.tif"), "kept").unwrap();
    std::fs::remove_file(&second.raw).unwrap();
    std::fs::remove_file(&second.labels).unwrap();
    assert_eq!(export("x").unwrap().name, "x-2");
    assert_eq!(std::fs::read(dataset.join("x_labels.tif")).unwrap(), b"kept");
    assert!(!dataset.join("x_raw.tif").exists());
    assert_eq!(export("day 1, well B").unwrap().name, "day 1, well B-3");
    let table = std::fs::read_to_string(&first.table).unwrap();
    let want = "raw,seg\n\"day 1, well B_raw.tif\",\"day 1, well B_labels.tif\"\n\
                \"day 1, well B-2_raw.tif\",\"day 1, well B-2_labels.tif\"\nx-2_raw.tif,x-2_labels.tif\n\
                \"day 1, well B-3_raw.tif\",\"day 1, well B-3_labels.tif\"\n";
    assert_eq!(table, want);
}

#[test]
fn existing_columns_and_rows_of_the_table_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (raw, labels, _) = raw_and_labels(folder.path());
    let source = RawSource { path: &raw, series: 0, axes: None, voxel_um: None, channel: Some(0), time: Some(0) };
    let table = folder.path().join("dataset.csv");
    let old = "\u{feff}split,seg,raw,note\r\ntrain,a_masks.tif,a.tif,\"two\r\nlines\"";
    std::fs::write(&table, old).unwrap();
    export_pair(&source, labels.labels(), folder.path(), "b").unwrap();
    assert_eq!(std::fs::read_to_string(&table).unwrap(), format!("{old}\n,b_labels.tif,b_raw.tif,\n"));
    let listing = || {
        let mut names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = listing();
    std::fs::write(&table, "brightfield,signal\na.tif,b.tif\n").unwrap();
    let error = export_pair(&source, labels.labels(), folder.path(), "c").unwrap_err().to_string();
    assert!(error.contains("brightfield") && error.contains("raw and seg"), "{error}");
    let other = LabelVolume::new([3, 8, 8], VoxelSize::default()).unwrap();
    std::fs::remove_file(&table).unwrap();
    let refusals = [
        export_pair(&source, other.labels(), folder.path(), "c"),
        export_pair(&source, labels.labels(), folder.path(), "../c"),
        export_pair(&source, labels.labels(), folder.path(), ""),
        export_pair(&RawSource { channel: None, ..source.clone() }, labels.labels(), folder.path(), "c"),
    ];
    assert!(refusals.iter().all(Result::is_err));
    // If the table's path is a folder, nothing is written.
    std::fs::create_dir(&table).unwrap();
    assert!(export_pair(&source, labels.labels(), folder.path(), "c").is_err());
    std::fs::remove_dir(&table).unwrap();
    let mut after = listing();
    after.push("dataset.csv".into());
    after.sort();
    assert_eq!(after, before);
}

#[test]
fn only_corrected_voxels_are_known() {
    let folder = tempfile::tempdir().unwrap();
    let raw = folder.path().join("raw.tif");
    write(&raw, "ZYX", &[3, 12, 12], vec![7u16; 432]);
    let at = |z: usize, y: usize, x: usize| (z * 12 + y) * 12 + x;
    let volume = |labels: &[u32]| LabelVolume::from_dense([3, 12, 12], VoxelSize::default(), labels).unwrap();
    // Before: object 1 in slice 0, object 2 in slices 1 and 2, object 3 in slice 2.
    let mut before = vec![0u32; 432];
    before[at(0, 1, 1)] = 1;
    before[at(1, 2, 2)] = 2;
    before[at(2, 2, 2)] = 2;
    before[at(2, 10, 10)] = 3;
    // Corrected: object 2 grows in slice 1, object 3 is erased in slice 2.
    let mut after = before.clone();
    after[at(1, 2, 3)] = 2;
    after[at(2, 10, 10)] = 0;
    let (old, new) = (volume(&before), volume(&after));
    let source = RawSource { path: &raw, series: 0, axes: None, voxel_um: None, channel: None, time: None };
    let export = |which, name: &str| {
        let pair = export_part(&source, new.labels(), Some(old.labels()), which, folder.path(), name).unwrap();
        let image = open(&pair.labels, &OpenOptions::default()).unwrap().read_all().unwrap();
        match image.into_samples() {
            Samples::U16(values) => values.into_iter().map(u32::from).collect::<Vec<_>>(),
            other => panic!("{}", other.dtype()),
        }
    };
    let slices = export(KnownVoxels::CorrectedSlices, "s");
    assert!(slices[..144].iter().all(|l| *l == UNKNOWN_LABEL));
    assert_eq!(slices[144..], after[144..]);
    let objects = export(KnownVoxels::CorrectedObjects, "o");
    assert_eq!([objects[at(1, 2, 2)], objects[at(1, 2, 3)], objects[at(2, 2, 2)]], [2; 3]);
    assert_eq!(objects[at(2, 10, 10)], 0, "erased voxels are background");
    assert_eq!([objects[at(1, 5, 3)], objects[at(1, 6, 3)]], [0, UNKNOWN_LABEL], "a rim of three voxels is known");
    assert_eq!(objects[at(0, 1, 1)], UNKNOWN_LABEL);
    // Corrected objects end where the voxel of the next slice is background.
    assert_eq!([objects[at(0, 2, 2)], objects[at(0, 2, 3)], objects[at(1, 10, 10)]], [0; 3]);
    assert_eq!([objects[at(0, 2, 4)], objects[at(0, 10, 10)]], [UNKNOWN_LABEL; 2]);
    let table = std::fs::read_to_string(folder.path().join("dataset.csv")).unwrap();
    assert_eq!(table, "raw,seg,ignore\ns_raw.tif,s_labels.tif,65535\no_raw.tif,o_labels.tif,65535\n");
    let same =
        export_part(&source, old.labels(), Some(old.labels()), KnownVoxels::CorrectedObjects, folder.path(), "n");
    assert!(same.unwrap_err().to_string().contains("no label was corrected"));
}

#[test]
fn remaining_voxels_of_a_corrected_object_are_known() {
    let folder = tempfile::tempdir().unwrap();
    let raw = folder.path().join("raw.tif");
    write(&raw, "ZYX", &[1, 12, 12], vec![7u16; 144]);
    let at = |y: usize, x: usize| y * 12 + x;
    let mut before = vec![0u32; 144];
    before[at(4, 2)..=at(4, 6)].fill(5);
    before[at(10, 10)] = 6;
    // One end of object 5 becomes a separate object, the other end is erased.
    let mut after = before.clone();
    after[at(4, 2)] = 7;
    after[at(4, 6)] = 0;
    let volume = |labels: &[u32]| LabelVolume::from_dense([1, 12, 12], VoxelSize::default(), labels).unwrap();
    let (old, new) = (volume(&before), volume(&after));
    let source = RawSource { path: &raw, series: 0, axes: None, voxel_um: None, channel: None, time: None };
    let which = KnownVoxels::CorrectedObjects;
    let pair = export_part(&source, new.labels(), Some(old.labels()), which, folder.path(), "a").unwrap();
    let known = open(&pair.labels, &OpenOptions::default()).unwrap().read_all().unwrap().into_samples().to_f32();
    assert_eq!(known[at(4, 2)..=at(4, 6)], [7.0, 5.0, 5.0, 5.0, 0.0]);
    assert_eq!(known[at(10, 10)], UNKNOWN_LABEL as f32);
}

#[test]
fn raw_stacks_are_read_with_corrected_axes() {
    let folder = tempfile::tempdir().unwrap();
    let raw = folder.path().join("raw.ome.tif");
    let values: Vec<u16> = (0..216).collect();
    write(&raw, "CYX", &[3, 8, 9], values.clone());
    let labels: Vec<u32> = (0..216).map(|i| i / 50).collect();
    let labels = LabelVolume::from_dense([3, 8, 9], VoxelSize::default(), &labels).unwrap();
    let axes = Some("ZYX".parse().unwrap());
    let source = RawSource { path: &raw, series: 0, axes, voxel_um: None, channel: None, time: None };
    let pair = export_pair(&source, labels.labels(), folder.path(), "a").unwrap();
    let image = open(&pair.raw, &OpenOptions::default()).unwrap();
    assert_eq!(image.read_all().unwrap().samples(), &Samples::U16(values));
    // Also with a corrected voxel size.
    let sized = RawSource { voxel_um: Some([2.0, 0.5, 0.5]), ..source.clone() };
    let pair = export_pair(&sized, labels.labels(), folder.path(), "c").unwrap();
    for path in [&pair.raw, &pair.labels] {
        let stated = open(path, &OpenOptions::default()).unwrap().meta().voxel_size_um.zyx_um().unwrap();
        let is_close = stated.iter().zip([2.0, 0.5, 0.5]).all(|(a, b)| (a - b).abs() < 1e-9);
        assert!(is_close, "{}: {stated:?}", path.display());
    }
    let declared = RawSource { axes: None, ..source };
    assert!(export_pair(&declared, labels.labels(), folder.path(), "b").is_err());
}
