//! Written files read back the same, with this crate and with Python's tifffile.

use crate::common;
use cytoscope_formats::{
    Channel, Compression, Container, FormatErrorKind, OpenOptions, StackWriter, WriteSpec, container_for_path, open,
    preview_png, write_array,
};
use cytoscope_volume::{Array, DType, Region, Samples, VoxelSize};
use std::path::{Path, PathBuf};

/// An array of different values that cover the whole range of the type.
fn pattern(axes: &str, shape: &[usize], dtype: DType) -> Array {
    let len: usize = shape.iter().product();
    let mut samples = Samples::zeros(dtype, len);
    match &mut samples {
        Samples::F16(_) | Samples::F32(_) | Samples::F64(_) => {}
        other => other.as_bytes_mut().iter_mut().enumerate().for_each(|(i, b)| *b = (i * 37 + i / 251) as u8),
    }
    if let Samples::F32(v) = &mut samples {
        v.iter_mut().enumerate().for_each(|(i, x)| *x = i as f32 * 0.37 - 5.0);
    }
    if let Samples::F64(v) = &mut samples {
        v.iter_mut().enumerate().for_each(|(i, x)| *x = i as f64 * 0.37 - 5.0);
    }
    Array::new(axes.parse().unwrap(), shape.to_vec(), samples).unwrap()
}

fn full_spec(array: &Array, container: Container, compression: Compression) -> WriteSpec {
    let mut spec = WriteSpec::of(array, container);
    spec.compression = compression;
    spec.voxel_size_um = VoxelSize::new_um(0.29, 0.065, 0.065);
    spec.time_interval_secs = Some(12.5);
    spec.name = "Position <1> & \"more\"".into();
    let count = array.size_of('C').unwrap_or(1);
    let names = ["DAPI", "Lamin <B1> & \"more\"", "µ-tubulin"];
    spec.channels = (0..count)
        .map(|c| Channel { name: names[c % 3].into(), color_rgb: (count > 1).then_some([255, 40 * c as u8, 7]) })
        .collect();
    spec
}

fn cases() -> Vec<(Array, Container, Compression)> {
    let mut cases = Vec::new();
    for dtype in DType::ALL {
        for (axes, shape) in
            [("YX", &[31, 17][..]), ("ZYX", &[5, 20, 33]), ("TZCYX", &[2, 3, 2, 9, 11]), ("YXS", &[12, 13, 3])]
        {
            let array = pattern(axes, shape, dtype);
            cases.push((array.clone(), Container::Npy, Compression::None));
            if !matches!(dtype, DType::U64 | DType::I64 | DType::F16) {
                for compression in [Compression::None, Compression::Deflate, Compression::Zstd] {
                    cases.push((array.clone(), Container::OmeTiff, compression));
                }
                if dtype != DType::I8 {
                    cases.push((array, Container::ImageJ, Compression::None));
                }
            }
        }
    }
    for (axes, shape) in
        [("CZYX", &[3, 4, 300, 700][..]), ("TCZYX", &[2, 2, 3, 8, 9]), ("ZTYX", &[3, 2, 8, 9]), ("CYXS", &[2, 8, 9, 4])]
    {
        cases.push((pattern(axes, shape, DType::U16), Container::OmeTiff, Compression::Deflate));
    }
    cases
}

fn name_for(folder: &Path, i: usize, container: Container) -> PathBuf {
    folder.join(match container {
        Container::ImageJ => format!("{i}.tif"),
        Container::OmeTiff => format!("{i}.ome.tif"),
        Container::Npy => format!("{i}.npy"),
        Container::Cellpose => format!("{i}_seg.npy"),
        Container::RoiSet => format!("{i}.zip"),
    })
}

#[test]
fn every_container_and_type_round_trips() {
    let folder = tempfile::tempdir().unwrap();
    for (i, (array, container, compression)) in cases().into_iter().enumerate() {
        let path = name_for(folder.path(), i, container);
        assert_eq!(container_for_path(&path).unwrap(), container);
        let spec = full_spec(&array, container, compression);
        write_array(&path, &array, &spec).unwrap();
        let axes = (container == Container::Npy).then(|| array.axes().clone());
        let image = open(&path, &OpenOptions { axes, ..OpenOptions::default() }).unwrap();
        let what = format!("{container:?} {compression:?} {} {:?} {}", array.axes(), array.shape(), array.dtype());
        let mut order: Vec<_> = array.axes().iter().collect();
        order.sort();
        let canonical = array.transpose(&cytoscope_volume::Axes::new(order).unwrap()).unwrap().squeeze();
        assert_eq!(image.read_all().unwrap(), canonical, "{what}");
        if container == Container::Npy {
            continue;
        }
        let meta = image.meta();
        for (got, expected) in [
            (meta.voxel_size_um.x, spec.voxel_size_um.x),
            (meta.voxel_size_um.y, spec.voxel_size_um.y),
            (meta.voxel_size_um.z, spec.voxel_size_um.z),
            (meta.time_interval_secs, spec.time_interval_secs),
        ] {
            assert!((got.unwrap_or(0.0) / expected.unwrap() - 1.0).abs() < 1e-9, "{what}: {got:?} {expected:?}");
        }
        assert_eq!(meta.channels, spec.channels, "{what}");
        if container == Container::OmeTiff {
            assert_eq!(meta.series_names, [spec.name.as_str()], "{what}");
        }
        if array.size_of('S').is_none() && array.size_of('C').is_none() {
            let values = array.samples().to_f32();
            let low = values.iter().copied().fold(f32::INFINITY, f32::min);
            let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let range = meta.display_range.unwrap_or_else(|| panic!("{what} has no display range"));
            assert!((range.0 as f32, range.1 as f32) == (low, high), "{what}: {range:?} {low} {high}");
        }
    }
}

const READ_BACK: &str = r#"
import json, sys, numpy, tifffile
answers = []
for case in json.load(open(sys.argv[1])):
    path = case["path"]
    if path.endswith(".npy"):
        a, truth = numpy.load(path), numpy.load(case["truth"])
        answers.append({"axes": case["axes"], "equal": bool(a.dtype == truth.dtype and numpy.array_equal(a, truth))})
        continue
    with tifffile.TiffFile(path) as t:
        s = t.series[0]
        a = s.asarray()
        truth = numpy.load(case["truth"])
        x = {"axes": s.axes, "equal": bool(a.dtype == truth.dtype and numpy.array_equal(a.reshape(truth.shape) if a.size == truth.size else a, truth)),
             "dtype": str(a.dtype), "imagej": t.is_imagej, "ome": t.is_ome, "pages": len(t.pages), "series": len(t.series)}
        if t.is_imagej:
            m = t.imagej_metadata
            tag = t.pages[0].tags["XResolution"].value
            x["x"] = tag[1] / tag[0]
            x["z"] = m.get("spacing")
            x["unit"] = m.get("unit")
            x["finterval"] = m.get("finterval")
            x["labels"] = m.get("Labels")
            x["min"], x["max"] = m.get("min"), m.get("max")
        if t.is_ome:
            d = tifffile.xml2dict(t.ome_metadata)["OME"]["Image"]["Pixels"]
            x["x"], x["z"], x["unit"] = d["PhysicalSizeX"], d["PhysicalSizeZ"], d["PhysicalSizeXUnit"]
            x["finterval"] = d["TimeIncrement"]
            c = d["Channel"]
            x["labels"] = [k.get("Name") for k in (c if isinstance(c, list) else [c])]
        answers.append(x)
print(json.dumps(answers))
"#;

#[test]
fn tifffile_reads_the_same() {
    let Some(python) = common::python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut list = Vec::new();
    let cases: Vec<_> = cases();
    for (i, (array, container, compression)) in cases.iter().enumerate() {
        let path = name_for(folder.path(), i, *container);
        let truth = folder.path().join(format!("truth-{i}.npy"));
        write_array(&path, array, &full_spec(array, *container, *compression)).unwrap();
        write_array(&truth, array, &WriteSpec::of(array, Container::Npy)).unwrap();
        list.push(serde_json::json!({"path": path, "truth": truth, "axes": array.axes().to_string()}));
    }
    let names = folder.path().join("cases.json");
    std::fs::write(&names, serde_json::to_string(&list).unwrap()).unwrap();
    let answers: Vec<serde_json::Value> =
        serde_json::from_str(&common::run_python(&python, READ_BACK, &[names.to_str().unwrap()])).unwrap();
    assert_eq!(answers.len(), cases.len());
    for ((array, container, compression), answer) in cases.iter().zip(&answers) {
        let what =
            format!("{container:?} {compression:?} {} {:?} {}: {answer}", array.axes(), array.shape(), array.dtype());
        assert_eq!(answer["equal"], true, "{what}");
        assert_eq!(answer["axes"], array.axes().to_string(), "{what}");
        if *container == Container::Npy {
            continue;
        }
        assert_eq!(answer["series"], 1, "{what}");
        assert_eq!(answer["imagej"], *container == Container::ImageJ, "{what}");
        assert_eq!(answer["ome"], *container == Container::OmeTiff, "{what}");
        assert!((answer["x"].as_f64().unwrap() / 0.065 - 1.0).abs() < 1e-9, "{what}");
        assert_eq!(answer["z"], 0.29, "{what}");
        assert_eq!(answer["finterval"], 12.5, "{what}");
        let labels: Vec<String> = match &answer["labels"] {
            serde_json::Value::String(one) => vec![one.clone()],
            many => many.as_array().unwrap().iter().map(|l| l.as_str().unwrap().to_owned()).collect(),
        };
        assert!(
            labels[0] == "DAPI" && labels.get(1).is_none_or(|l| l == "DAPI" || l.starts_with("Lamin <B1> &")),
            "{what}"
        );
    }
}

#[test]
fn imagej_labels_have_a_display_range() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("labels.tif");
    let mut spec = WriteSpec::new(Container::ImageJ, "ZYX".parse().unwrap(), vec![3, 4, 5], DType::U32);
    spec.voxel_size_um.z = Some(2.0);
    let mut writer = StackWriter::create(&path, &spec).unwrap();
    for z in 0..3 {
        writer.write(&Array::new("YX".parse().unwrap(), vec![4, 5], vec![z * 70_000u32; 20]).unwrap()).unwrap();
    }
    writer.finish().unwrap();
    let image = open(&path, &OpenOptions::default()).unwrap();
    assert_eq!(image.meta().display_range, Some((0.0, 140_000.0)));
    assert_eq!(image.meta().dtype, DType::U32);
    assert_eq!(image.meta().voxel_size_um.z, Some(2.0));
    if let Some(python) = common::python() {
        let script = "import sys,tifffile;t=tifffile.TiffFile(sys.argv[1]);print(t.imagej_metadata['max'],t.asarray().max(),t.series[0].axes)";
        assert_eq!(common::run_python(&python, script, &[path.to_str().unwrap()]).trim(), "140000.0 140000 ZYX");
    }
}

#[test]
fn characters_that_xml_cannot_have_do_not_damage_the_metadata() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("named.ome.tif");
    let array = pattern("YX", &[4, 5], DType::U8);
    let name = "a\u{FFFF}b\u{1}c <&> \u{FFFE}d".to_owned();
    let channels = vec![Channel { name, color_rgb: None }];
    write_array(&path, &array, &WriteSpec { channels, ..WriteSpec::of(&array, Container::OmeTiff) }).unwrap();
    let image = open(&path, &OpenOptions::default()).unwrap();
    assert_eq!(image.meta().channels[0].name, "a b c <&>  d");
    if let Some(python) = common::python() {
        let script = "import sys,tifffile,xml.etree.ElementTree as e;e.fromstring(tifffile.TiffFile(sys.argv[1]).ome_metadata);print(1)";
        assert_eq!(common::run_python(&python, script, &[path.to_str().unwrap()]).trim(), "1");
    }
}

#[test]
fn unfinished_and_refused_writes_leave_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stack.tif");
    let spec = WriteSpec::new(Container::ImageJ, "ZYX".parse().unwrap(), vec![3, 4, 5], DType::U16);
    let mut writer = StackWriter::create(&path, &spec).unwrap();
    let plane = Array::new("YX".parse().unwrap(), vec![4, 5], vec![1u16; 20]).unwrap();
    writer.write(&plane).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "the partial file is beside");
    assert_eq!(writer.finish().unwrap_err().kind(), FormatErrorKind::Misused);
    let mut writer = StackWriter::create(&path, &spec).unwrap();
    let wrong = Array::new("YX".parse().unwrap(), vec![5, 4], vec![1u16; 20]).unwrap();
    assert_eq!(writer.write(&wrong).unwrap_err().kind(), FormatErrorKind::Misused);
    drop(writer);
    // The planes of an array file may have any axes, but must be whole and as many as stated.
    let npy = WriteSpec { container: Container::Npy, ..spec.clone() };
    let mut writer = StackWriter::create(&folder.path().join("stack.npy"), &npy).unwrap();
    for (planes, samples, said) in [(1, 15, "15 samples were given, but a plane has 20"), (4, 80, "left to write: 3")] {
        let slab = Array::new("ZX".parse().unwrap(), vec![planes, samples / planes], vec![1u16; samples]).unwrap();
        let refused = writer.write(&slab).unwrap_err();
        assert!(refused.kind() == FormatErrorKind::Misused && refused.to_string().contains(said), "{refused}");
    }
    drop(writer);
    for (container, compression, dtype) in [
        (Container::ImageJ, Compression::Zstd, DType::U16),
        (Container::ImageJ, Compression::None, DType::U64),
        (Container::OmeTiff, Compression::None, DType::F16),
    ] {
        let spec = WriteSpec { container, compression, dtype, ..spec.clone() };
        assert_eq!(StackWriter::create(&path, &spec).unwrap_err().kind(), FormatErrorKind::Unsupported);
    }
    for name in ["a.zarr", "a.ozx", "a.zarr.zip"] {
        assert_eq!(container_for_path(Path::new(name)).unwrap_err().kind(), FormatErrorKind::Unsupported, "{name}");
    }
    for name in ["a.jpg", ".tif", ".ome.tif", "_seg.npy"] {
        assert_eq!(container_for_path(Path::new(name)).unwrap_err().kind(), FormatErrorKind::Misused, "{name}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn slabs_of_any_size_give_the_same_file() {
    let folder = tempfile::tempdir().unwrap();
    let array = pattern("TZCYX", &[2, 3, 2, 9, 11], DType::U16);
    for container in [Container::ImageJ, Container::OmeTiff, Container::Npy] {
        let whole = name_for(folder.path(), 0, container);
        let parts = name_for(folder.path(), 1, container);
        let spec = WriteSpec::of(&array, container);
        write_array(&whole, &array, &spec).unwrap();
        let mut writer = StackWriter::create(&parts, &spec).unwrap();
        for t in 0..2 {
            for z in 0..3 {
                let region = Region::whole(array.shape()).with_range(0, t, 1).with_range(1, z, 1);
                writer.write(&array.crop(&region).unwrap()).unwrap();
            }
        }
        writer.finish().unwrap();
        assert_eq!(std::fs::read(whole).unwrap(), std::fs::read(parts).unwrap(), "{container:?}");
    }
}

#[test]
fn images_and_writers_can_be_sent_between_threads() {
    fn send_sync<T: Send + Sync + Clone>() {}
    fn send<T: Send>() {}
    send_sync::<cytoscope_formats::Image>();
    send::<StackWriter>();
}

#[test]
fn previews_color_labels_and_scale_intensities() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.png");
    let labels = Array::new("YX".parse().unwrap(), vec![2, 2], vec![0u32, 1, 2, 70_000]).unwrap();
    std::fs::write(&path, preview_png(&labels, true, &path).unwrap()).unwrap();
    let shown = image::open(&path).unwrap().to_rgb8();
    let colors: Vec<[u8; 3]> = shown.pixels().map(|p| p.0).collect();
    assert_eq!((shown.width(), shown.height(), colors[0]), (2, 2, [0, 0, 0]));
    assert!(colors[1..].iter().all(|c| c.iter().any(|v| *v > 150)) && colors[1] != colors[2] && colors[2] != colors[3]);
    let gray = Array::new("YX".parse().unwrap(), vec![1, 3], vec![10.0f32, 11.0, 12.0]).unwrap();
    std::fs::write(&path, preview_png(&gray, false, &path).unwrap()).unwrap();
    assert_eq!(image::open(&path).unwrap().to_luma8().into_raw(), [0, 128, 255]);
    let stack = Array::new("ZYX".parse().unwrap(), vec![2, 1, 1], vec![0u8, 1]).unwrap();
    assert_eq!(preview_png(&stack, false, &path).unwrap_err().kind(), FormatErrorKind::Misused);
}

#[test]
fn the_used_bits_of_samples_are_kept_by_ome_tiff() {
    let folder = tempfile::tempdir().unwrap();
    let array = pattern("ZYX", &[2, 3, 4], DType::U16);
    for (given, read) in [(Some(12), 12), (None, 16), (Some(16), 16)] {
        let path = folder.path().join(format!("{given:?}.ome.tif"));
        let spec = WriteSpec { significant_bits: given, ..WriteSpec::of(&array, Container::OmeTiff) };
        write_array(&path, &array, &spec).unwrap();
        assert_eq!(open(&path, &OpenOptions::default()).unwrap().meta().bits_per_sample, read, "{given:?}");
    }
}
