//! OME-Zarr folders: those of other writers, and our own.

use crate::common;
use crate::common::zarr::{fixture, made, write_zarr};
use cytoscope_formats::{
    Channel, Container, DerivedPixels, DerivedSpec, FormatError, FormatErrorKind, Image, Limits, OpenOptions,
    WriteSpec, ZarrImageSpec, ZarrWriter, is_zarr_folder, open, write_array,
};
use cytoscope_volume::{Array, DType, Region, Samples, VoxelSize};
use serde_json::{Value, json};
use std::path::PathBuf;

/// The value at T, Z, C, Y, X of the fixtures.
fn value([t, z, c, y, x]: [usize; 5]) -> f64 {
    (10_000 * t + 2000 * c + 200 * z + 10 * y + x) as f64
}

/// The samples of a region, computed; `step` is the step of rows and columns.
fn expected(region: &Region, step: usize, dtype: DType) -> Samples {
    let mut values = Vec::new();
    let axis = |i: usize| region.start[i]..region.start[i] + region.size[i];
    for t in axis(0) {
        for z in axis(1) {
            for c in axis(2) {
                for y in axis(3) {
                    for x in axis(4) {
                        values.push(value([t, z, c, y * step, x * step]));
                    }
                }
            }
        }
    }
    match dtype {
        DType::U16 => Samples::U16(values.into_iter().map(|v| v as u16).collect()),
        DType::I16 => Samples::I16(values.into_iter().map(|v| v as i16).collect()),
        DType::U32 => Samples::U32(values.into_iter().map(|v| v as u32).collect()),
        DType::F32 => Samples::F32(values.into_iter().map(|v| v as f32).collect()),
        other => panic!("no fixture has {other}"),
    }
}

#[test]
fn folders_of_zarr_python_read_as_they_were_written() {
    for (name, shape_full, dtype, compression) in [
        ("v04_fortran", [1, 3, 1, 9, 7, 1], DType::I16, "zlib"),
        ("v05_sharded", [2, 3, 1, 20, 14, 1], DType::F32, "zstd"),
        ("v05_transposed", [1, 1, 3, 11, 6, 1], DType::U32, "gzip"),
    ] {
        assert!(is_zarr_folder(&fixture(name)));
        let image = open(&fixture(name), &OpenOptions::default()).unwrap();
        let meta = image.meta();
        assert_eq!((meta.format.as_str(), meta.dtype, meta.compression.as_str()), ("ome-zarr", dtype, compression));
        assert_eq!(meta.shape_full, shape_full, "{name}");
        let whole = Region::whole(&meta.shape_full);
        assert_eq!(image.read(0, &whole).unwrap().samples(), &expected(&whole, 1, dtype), "{name}");
        // A region that begins and ends inside chunks.
        let part = whole.clone().with_range(3, 3, 5).with_range(4, 2, 4);
        assert_eq!(image.read(0, &part).unwrap().samples(), &expected(&part, 1, dtype), "{name}");
        // File dialogs choose files.
        let file = ["zarr.json", ".zattrs"].map(|n| fixture(name).join(n)).into_iter().find(|f| f.is_file()).unwrap();
        let same = open(&file, &OpenOptions::default()).unwrap();
        assert_eq!(same.meta().path, fixture(name));
        assert_eq!(same.read(0, &part).unwrap(), image.read(0, &part).unwrap());
    }
    let timed = open(&fixture("v05_sharded"), &OpenOptions::default()).unwrap();
    assert_eq!(timed.meta().voxel_size_um, VoxelSize::new_um(2.0, 0.5, 0.25));
    assert_eq!(timed.meta().time_interval_secs, Some(0.5));
    assert_eq!(timed.meta().axes.to_string(), "TZYX");
    let unitless = open(&fixture("v05_transposed"), &OpenOptions::default()).unwrap();
    assert_eq!(unitless.meta().voxel_size_um, VoxelSize::default(), "a scale without unit is not a size");
}

#[test]
fn levels_channels_labels_and_missing_chunks_are_read() {
    let image = open(&fixture("v04_blosc"), &OpenOptions::default()).unwrap();
    let meta = image.meta();
    assert_eq!(meta.shape_full, [1, 3, 2, 10, 12, 1]);
    assert_eq!((meta.levels.len(), meta.levels[1].shape_full.as_slice()), (2, &[1, 3, 2, 5, 6, 1][..]));
    assert_eq!(meta.voxel_size_um, VoxelSize::new_um(1.5, 0.3, 0.3));
    assert_eq!(meta.channels[0], Channel { name: "DNA".into(), color_rgb: Some([0, 0, 255]) });
    assert_eq!(meta.channels[1].name, "Actin");
    assert_eq!(meta.display_range, None, "two channels have two ranges");
    assert_eq!((meta.compression.as_str(), meta.series_count), ("blosc", 2));
    let whole = Region::whole(&meta.shape_full);
    let Samples::U16(mut wanted) = expected(&whole, 1, DType::U16) else { panic!() };
    // The last chunk of the second channel is missing and reads as the fill value.
    for (y, x) in (8..10).flat_map(|y| (8..12).map(move |x| (y, x))) {
        wanted[((2 * 2 + 1) * 10 + y) * 12 + x] = 7;
    }
    assert_eq!(image.read(0, &whole).unwrap().samples(), &Samples::U16(wanted));
    let half = Region::whole(&meta.levels[1].shape_full);
    assert_eq!(image.read(1, &half).unwrap().samples(), &expected(&half, 2, DType::U16));
    // Reading touches only the chunks of the region, and no chunk twice.
    let before = image.bytes_read();
    image.read(0, &whole).unwrap();
    assert_eq!(image.bytes_read(), before);
    let strict =
        OpenOptions { limits: Limits { max_unstored_bytes: 8, ..Limits::default() }, ..OpenOptions::default() };
    let refused = open(&fixture("v04_blosc"), &strict).unwrap().read(0, &whole).unwrap_err();
    assert_eq!(refused.kind(), FormatErrorKind::OverLimit);

    let labels = open(&fixture("v04_blosc"), &OpenOptions { series: 1, ..OpenOptions::default() }).unwrap();
    assert_eq!((labels.meta().shape.as_slice(), labels.meta().dtype), (&[3, 10, 12][..], DType::U8));
    let Samples::U8(values) = labels.read_all().unwrap().into_samples() else { panic!() };
    let bright = (0..360).map(|i| u8::from(value([0, i / 120, 0, i / 12 % 10, i % 12]) > 200.0));
    assert_eq!(values, bright.collect::<Vec<_>>());
    let direct = open(&fixture("v04_blosc/labels/nuclei"), &OpenOptions::default()).unwrap();
    assert_eq!(direct.read_all().unwrap(), labels.read_all().unwrap());
    let listed = open(&fixture("v04_blosc/labels"), &OpenOptions::default()).unwrap();
    assert_eq!(listed.meta().series_names, ["nuclei"]);
    assert_eq!(listed.read_all().unwrap(), labels.read_all().unwrap());
    let no_third = open(&fixture("v04_blosc"), &OpenOptions { series: 2, ..OpenOptions::default() }).unwrap_err();
    assert_eq!(no_third.kind(), FormatErrorKind::Misused);
}

/// Pixels that are those of the source.
#[derive(Debug)]
struct Same;

impl DerivedPixels for Same {
    fn read(&self, source: &Image, region: &Region) -> Result<Samples, FormatError> {
        Ok(source.read(0, region)?.into_samples())
    }
}

#[test]
fn what_a_reader_keeps_is_stated_and_can_be_limited() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stack.zarr");
    let array = pattern("TZCYX", &[1, 16, 1, 60, 60], DType::F32);
    write_zarr(&path, &array, |_| {});
    let image = open(&path, &OpenOptions::default()).unwrap();
    let whole_bytes = 16 * 60 * 60 * 4;
    let stated = image.cache_bytes();
    // Chunks that exceed the image count with their whole length.
    assert!((whole_bytes..8 * whole_bytes).contains(&stated), "{stated}");
    let meta = image.meta();
    let spec = DerivedSpec {
        shape_full: meta.shape_full.clone().try_into().unwrap(),
        dtype: meta.dtype,
        voxel_size_um: meta.voxel_size_um,
        origin_um: meta.origin_um,
        channels: Vec::new(),
        keeps_values: true,
    };
    let derived = image.derived(&spec, Box::new(Same)).unwrap();
    assert_eq!(derived.cache_bytes(), stated);
    let whole = derived.read_all().unwrap();
    let read = image.bytes_read();
    assert_eq!(derived.read_all().unwrap(), whole);
    assert_eq!(image.bytes_read(), read, "no chunk is read twice");
    // Without a cache, the values are the same, and chunks are read again.
    derived.limit_cache(0);
    assert!(image.cache_bytes() < stated && image.cache_bytes() > 0, "{}", image.cache_bytes());
    assert_eq!(derived.read_all().unwrap(), whole);
    assert!(image.bytes_read() > read);
    // Other formats keep nothing.
    let plain = folder.path().join("stack.npy");
    write_array(&plain, &whole, &WriteSpec::of(&whole, Container::Npy)).unwrap();
    assert_eq!(open(&plain, &OpenOptions::default()).unwrap().cache_bytes(), 0);
}

/// Different samples in the whole range of the type.
fn pattern(axes: &str, shape: &[usize], dtype: DType) -> Array {
    let mut samples = Samples::zeros(dtype, shape.iter().product());
    if let Samples::F32(v) = &mut samples {
        v.iter_mut().enumerate().for_each(|(i, x)| *x = i as f32 * 0.37 - 5.0);
    } else {
        samples.as_bytes_mut().iter_mut().enumerate().for_each(|(i, b)| *b = (i * 37 + i / 251) as u8);
    }
    Array::new(axes.parse().unwrap(), shape.to_vec(), samples).unwrap()
}

#[test]
fn written_folders_hold_what_the_tiff_reader_reads() {
    let folder = tempfile::tempdir().unwrap();
    for (i, (shape, dtype)) in [
        (&[2, 11, 2, 70, 300][..], DType::U16),
        (&[1, 33, 1, 40, 50], DType::F32),
        (&[1, 1, 1, 600, 530], DType::U8),
        (&[1, 3, 1, 1, 1], DType::I32),
    ]
    .into_iter()
    .enumerate()
    {
        let array = pattern("TZCYX", shape, dtype);
        let (zarr, tiff) = (folder.path().join(format!("{i}.zarr")), folder.path().join(format!("{i}.ome.tif")));
        let size = VoxelSize::new_um(0.29, 0.065, 0.065);
        let channels = vec![
            Channel { name: "DAPI".into(), color_rgb: Some([0, 0, 255]) },
            Channel { name: "µ".into(), color_rgb: Some([255, 128, 7]) },
        ];
        write_zarr(&zarr, &array, |spec| {
            spec.voxel_size_um = size;
            spec.time_interval_secs = Some(12.5);
            spec.channels = channels.clone();
        });
        write_array(&tiff, &array, &WriteSpec::of(&array, Container::OmeTiff)).unwrap();
        let (a, b) = (open(&zarr, &OpenOptions::default()).unwrap(), open(&tiff, &OpenOptions::default()).unwrap());
        assert_eq!(a.meta().shape_full, b.meta().shape_full);
        assert_eq!(a.read_all().unwrap(), b.read_all().unwrap(), "{shape:?} {dtype}");
        let part = Region::whole(&a.meta().shape_full).with_range(1, shape[1] / 2, 1);
        assert_eq!(a.read(0, &part).unwrap(), b.read(0, &part).unwrap());
        let full = a.meta();
        assert_eq!(full.voxel_size_um.x, Some(0.065));
        assert_eq!(full.voxel_size_um.z, (shape[1] > 1).then_some(0.29), "an axis that is not written has no size");
        assert_eq!(full.time_interval_secs, (shape[0] > 1).then_some(12.5));
        let count = shape[2];
        assert_eq!(full.channels, channels[..count]);
    }
}

#[test]
fn channels_without_a_name_are_numbered_in_folders() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stack.zarr");
    let named = |name: &str| Channel { name: name.into(), color_rgb: Some([255; 3]) };
    write_zarr(&path, &pattern("TZCYX", &[1, 1, 3, 4, 5], DType::U8), |spec| {
        spec.channels = vec![named(""), named("DNA")]
    });
    let root: Value = serde_json::from_slice(&std::fs::read(path.join("zarr.json")).unwrap()).unwrap();
    let written = root["attributes"]["ome"]["omero"]["channels"].as_array().unwrap();
    let labels: Vec<&str> = written.iter().map(|channel| channel["label"].as_str().unwrap()).collect();
    assert_eq!(labels, ["channel0", "DNA", "channel2"]);
    let image = open(&path, &OpenOptions::default()).unwrap();
    assert_eq!(image.meta().channels, [named(""), named("DNA"), named("")]);
    assert_eq!(image.meta().channel_name(2), "channel2");
}

#[test]
fn many_layers_of_chunks_are_read_as_they_were_written() {
    let folder = tempfile::tempdir().unwrap();
    // With one thread, chunks are decoded layer by layer: along Z, along T, and along Y.
    let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    for (i, shape) in [[1, 100, 2, 20, 30], [9, 2, 2, 20, 30], [1, 1, 1, 5000, 8]].into_iter().enumerate() {
        let array = pattern("TZCYX", &shape, DType::U16);
        let path = folder.path().join(format!("{i}.zarr"));
        write_zarr(&path, &array, |_| {});
        let image = open(&path, &OpenOptions::default()).unwrap();
        assert_eq!(one_thread.install(|| image.read_all()).unwrap().samples(), array.samples(), "{shape:?}");
        let part = Region::whole(&image.meta().shape_full).with_range(3, 1, shape[3] - 2).with_range(4, 2, 5);
        let expected = array.crop(&Region::whole(&shape).with_range(3, 1, shape[3] - 2).with_range(4, 2, 5)).unwrap();
        let read = one_thread.install(|| image.read(0, &part)).unwrap();
        assert_eq!(read.samples(), expected.samples(), "{shape:?}");
    }
}

#[test]
fn levels_are_means_of_images_and_samples_of_labels() {
    let folder = tempfile::tempdir().unwrap();
    let (height, width) = (301, 600);
    let samples: Vec<u16> = (0..2 * height * width).map(|i| (i * 7 % 1000) as u16).collect();
    let array = Array::new("TZCYX".parse().unwrap(), vec![1, 2, 1, height, width], samples.clone()).unwrap();
    let at = |z: usize, y: usize, x: usize| u32::from(samples[(z * height + y) * width + x]);
    for labels in [false, true] {
        let path = folder.path().join(format!("{labels}.zarr"));
        write_zarr(&path, &array, |spec| spec.labels = labels);
        let image = open(&path, &OpenOptions::default()).unwrap();
        let shapes: Vec<Vec<usize>> = image.meta().levels.iter().map(|l| l.shape_full[3..5].to_vec()).collect();
        assert_eq!(shapes, [[301, 600], [151, 300], [76, 150]]);
        let level = image.read(1, &Region::whole(&[1, 2, 1, 151, 300, 1])).unwrap();
        let Samples::U16(values) = level.samples() else { panic!() };
        for (z, y, x) in [(0, 0, 0), (1, 75, 299), (0, 150, 17), (1, 150, 299)] {
            let rows: Vec<usize> = [2 * y, 2 * y + 1].into_iter().filter(|y| *y < height).collect();
            let sum: u32 = rows.iter().map(|y| at(z, *y, 2 * x) + at(z, *y, 2 * x + 1)).sum();
            let count = 2 * rows.len() as u32;
            let wanted = if labels { at(z, 2 * y, 2 * x) } else { (2 * sum + count) / (2 * count) };
            assert_eq!(u32::from(values[(z * 151 + y) * 300 + x]), wanted, "{labels} {z} {y} {x}");
        }
        let root: Value = serde_json::from_slice(&std::fs::read(path.join("zarr.json")).unwrap()).unwrap();
        let ome = &root["attributes"]["ome"];
        assert_eq!(ome["version"], "0.5");
        let colors = ome["image-label"]["colors"].as_array().map_or(0, Vec::len);
        assert_eq!(colors, if labels { 999 } else { 0 }, "one color for each label");
        assert_eq!(ome.get("omero").is_some(), !labels);
    }
}

#[test]
fn the_origin_of_an_image_is_read_and_written_for_all_levels() {
    let folder = tempfile::tempdir().unwrap();
    let array = pattern("TZCYX", &[1, 2, 1, 4, 300], DType::U16);
    let origin_um = [-3.5, 100.0, 0.25];
    for labels in [false, true] {
        let path = folder.path().join(format!("{labels}.zarr"));
        write_zarr(&path, &array, |spec| {
            (spec.labels, spec.origin_um) = (labels, origin_um);
            spec.voxel_size_um = VoxelSize::new_um(2.0, 0.5, 0.25);
        });
        let image = open(&path, &OpenOptions::default()).unwrap();
        assert_eq!((image.meta().origin_um, image.meta().levels.len()), (origin_um, 2));
        let root: Value = serde_json::from_slice(&std::fs::read(path.join("zarr.json")).unwrap()).unwrap();
        let translation = |level: usize| {
            let datasets = &root["attributes"]["ome"]["multiscales"][0]["datasets"];
            datasets[level]["coordinateTransformations"][1]["translation"].clone()
        };
        assert_eq!(translation(0), json!([-3.5, 100.0, 0.25]));
        // The center of the mean of two samples is half a sample after the first one; labels are the first samples.
        let lower = if labels { json!([-3.5, 100.0, 0.25]) } else { json!([-3.5, 100.25, 0.375]) };
        assert_eq!(translation(1), lower);
    }
    let path = folder.path().join("stack.ome.tif");
    write_array(&path, &array, &WriteSpec { origin_um, ..WriteSpec::of(&array, Container::OmeTiff) }).unwrap();
    assert_eq!(open(&path, &OpenOptions::default()).unwrap().meta().origin_um, origin_um);
    // Scales and translations of the level, and then those of the image, in nanometers along X.
    let read = |transformations: Value| {
        let path = made(folder.path(), |root, _| {
            let image = &mut root["attributes"]["ome"]["multiscales"][0];
            image["datasets"][0]["coordinateTransformations"] = transformations;
            image["coordinateTransformations"] = json!([{"type": "scale", "scale": [1.0, 2.0, 1.0]},
                {"type": "translation", "translation": [0.0, 0.0, 500.0]}]);
            image["axes"] = json!([{"name": "z", "type": "space"}, {"name": "y", "type": "space", "unit": "micrometer"},
                {"name": "x", "type": "space", "unit": "nanometer"}]);
        });
        open(&path, &OpenOptions::default()).unwrap().meta().origin_um
    };
    let scale = json!({"type": "scale", "scale": [1.0, 0.5, 100.0]});
    assert_eq!(read(json!([scale, {"type": "translation", "translation": [7.0, 10.0, 1000.0]}])), [0.0, 20.0, 1.5]);
    assert_eq!(read(json!([scale])), [0.0, 0.0, 0.5]);
    assert_eq!(read(json!([scale, {"type": "translation", "translation": [7.0]}])), [0.0, 0.0, 0.5]);
}

#[test]
fn an_axis_with_a_scale_that_is_not_positive_has_neither_voxel_size_nor_origin() {
    let folder = tempfile::tempdir().unwrap();
    let path = made(folder.path(), |root, _| {
        let image = &mut root["attributes"]["ome"]["multiscales"][0];
        let axis = |name: &str| json!({"name": name, "type": "space", "unit": "micrometer"});
        image["axes"] = json!([axis("z"), axis("y"), axis("x")]);
        image["datasets"][0]["coordinateTransformations"] = json!([
            {"type": "scale", "scale": [-2.0, 0.0, 0.5]}, {"type": "translation", "translation": [3.0, 4.0, 5.0]}]);
        image["coordinateTransformations"] = json!([{"type": "scale", "scale": [-1.0, 1.0, 2.0]}]);
    });
    let image = open(&path, &OpenOptions::default()).unwrap();
    assert_eq!(image.meta().voxel_size_um, VoxelSize { z: None, y: None, x: Some(1.0) }, "not 2 µm along Z");
    assert_eq!(image.meta().origin_um, [0.0, 0.0, 10.0]);
    let along = |scale: &str| format!("the scale {scale} is not applied, because it is not positive");
    assert_eq!(image.meta().not_applied, ["-2 along Z", "0 along Y", "-1 along Z"].map(along));
}

#[test]
fn unfinished_folders_do_not_appear() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.zarr");
    let spec = || ZarrImageSpec::new("a", [1, 1, 9, 20, 20], DType::U8);
    let mut writer = ZarrWriter::create(&path, spec()).unwrap();
    assert_eq!(writer.slab_depth(0), 16, "chunks of 8 slices, as many as there are");
    let mut spec_of_labels = spec();
    for wrong in ["", "../x", ".x", "a/b"] {
        spec_of_labels.name = wrong.to_owned();
        let refused = writer.add_labels(spec_of_labels.clone()).unwrap_err();
        assert_eq!(refused.kind(), FormatErrorKind::Misused, "{wrong}");
    }
    let wrong = writer.write(0, [0, 0, 1], &Samples::U8(vec![1; 3600])).unwrap_err();
    assert_eq!(wrong.kind(), FormatErrorKind::Misused);
    assert_eq!(writer.finish().unwrap_err().kind(), FormatErrorKind::Misused, "slices are missing");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn python_reads_written_folders_and_its_codecs_are_read() {
    let Some(python) = common::python_with("zarr, numcodecs, numpy") else { return };
    let folder = tempfile::tempdir().unwrap();
    let array = pattern("TZCYX", &[2, 19, 2, 300, 40], DType::U16);
    let path = folder.path().join("ours.zarr");
    write_zarr(&path, &array, |spec| spec.voxel_size_um = VoxelSize::new_um(2.0, 0.5, 0.25));
    let npy = folder.path().join("ours.npy");
    write_array(&npy, &array, &WriteSpec::of(&array, Container::Npy)).unwrap();
    let script = r#"
import sys, numpy, numcodecs, zarr
ours, npy, out = sys.argv[1:]
group = zarr.open_group(ours, mode="r")
wanted = numpy.load(npy).transpose(0, 2, 1, 3, 4)
assert group["0"].dtype == wanted.dtype and (group["0"][...] == wanted).all()
assert group["1"].shape == (2, 2, 19, 150, 20), group["1"].shape
pairs = wanted.astype(float).reshape(2, 2, 19, 150, 2, 20, 2).mean(axis=(4, 6))
assert abs(group["1"][...] - pairs).max() <= 0.5
scale = group.attrs["ome"]["multiscales"][0]["datasets"][1]["coordinateTransformations"][0]
assert scale == {"type": "scale", "scale": [1.0, 1.0, 2.0, 1.0, 0.5]}, scale
try:
    from ome_zarr.io import parse_url
    from ome_zarr.reader import Reader
    nodes = list(Reader(parse_url(ours))())
    assert nodes and nodes[0].data[0].shape == (2, 2, 19, 300, 40), nodes
except ImportError:
    pass
data = (numpy.indices((5, 33, 47)) * numpy.array([2000, 30, 1])[:, None, None, None]).sum(0).astype("<u2")
axes = [{"name": a, "type": "space", "unit": "micrometer"} for a in "zyx"]
sets = [{"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [3, 2, 1]}]}]
def put(name, version, **options):
    group = zarr.open_group(f"{out}/{name}.zarr", mode="w", zarr_format=version)
    group.create_array("0", data=data, **options)
    meta = {"version": "0.4", "axes": axes, "datasets": sets}
    group.attrs.update({"multiscales": [meta]} if version == 2 else {"ome": {"version": "0.5", "multiscales": [meta]}})
for cname in ["blosclz", "lz4", "lz4hc", "zlib", "zstd", "snappy"]:
    if cname not in numcodecs.blosc.list_compressors():
        continue
    for shuffle, name in [(0, "noshuffle"), (1, "shuffle"), (2, "bitshuffle")]:
        codec = numcodecs.Blosc(cname=cname, clevel=5, shuffle=shuffle)
        put(f"v2_{cname}_{name}", 2, chunks=(2, 16, 32), compressors=codec)
        if cname != "snappy":
            codec = zarr.codecs.BloscCodec(cname=cname, shuffle=name, typesize=2)
            put(f"v3_{cname}_{name}", 3, chunks=(2, 16, 32), compressors=codec)
put("v2_zstd", 2, chunks=(5, 33, 47), compressors=numcodecs.Zstd(level=1))
put("v2_gzip", 2, chunks=(1, 33, 20), compressors=numcodecs.GZip(level=1))
put("v2_lz4", 2, chunks=(2, 16, 32), compressors=numcodecs.LZ4())
put("v2_bz2", 2, chunks=(2, 16, 32), compressors=numcodecs.BZ2(level=9))
for container in [1, 2]:
    put(f"v2_lzma_{container}", 2, chunks=(2, 16, 32), compressors=numcodecs.LZMA(format=container, preset=9))
filters = [numcodecs.Delta(dtype="<u2"), numcodecs.Shuffle(elementsize=2)]
put("v2_filters", 2, chunks=(2, 16, 32), filters=filters, compressors=numcodecs.LZ4())
put("v2_filters_f", 2, chunks=(2, 16, 32), order="F", filters=filters, compressors=numcodecs.Zstd())
put("v2_raw", 2, chunks=(3, 10, 10), compressors=None)
put("v3_raw", 3, chunks=(3, 10, 10), compressors=None)
put("v3_shards_blosc", 3, chunks=(1, 8, 8), shards=(4, 32, 48), compressors=zarr.codecs.BloscCodec())
crc = [zarr.codecs.ZstdCodec(checksum=True), zarr.codecs.Crc32cCodec()]
put("v3_shards_crc", 3, chunks=(2, 11, 16), shards=(2, 33, 48), compressors=crc)
try:
    from zarr.codecs.numcodecs import BZ2, LZ4, LZMA, GZip, Shuffle, Zlib, Zstd
except ImportError:
    from numcodecs.zarr3 import BZ2, LZ4, LZMA, GZip, Shuffle, Zlib, Zstd
for codec in [BZ2, GZip, LZ4, LZMA, Zlib, Zstd]:
    put(f"v3_numcodecs_{codec.__name__}", 3, chunks=(3, 10, 10), compressors=[codec()])
put("v3_numcodecs_shuffle", 3, chunks=(3, 10, 10), compressors=[Shuffle(elementsize=2), LZ4()])
store = zarr.storage.ZipStore(f"{out}/zipped.zarr.zip", mode="w")
group = zarr.create_group(store, zarr_format=3)
group.create_array("0", data=data, chunks=(1, 8, 8), shards=(4, 32, 48))
group.update_attributes({"ome": {"version": "0.5", "multiscales": [{"axes": axes, "datasets": sets}]}})
store.close()
numpy.save(f"{out}/data.npy", data)
"#;
    let out = folder.path().join("python");
    std::fs::create_dir(&out).unwrap();
    let args = [&path, &npy, &out].map(|p| p.to_str().unwrap());
    common::run_python(&python, script, &args);
    let wanted = open(&out.join("data.npy"), &OpenOptions::default()).unwrap().read_all().unwrap();
    let mut count = 0;
    let is_zarr = |p: &PathBuf| is_zarr_folder(p) || p.extension().is_some_and(|e| e == "zip");
    for entry in std::fs::read_dir(&out).unwrap().map(|e| e.unwrap().path()).filter(is_zarr) {
        let image = open(&entry, &OpenOptions::default()).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(image.meta().voxel_size_um, VoxelSize::new_um(3.0, 2.0, 1.0));
        assert_eq!(image.read_all().unwrap_or_else(|e| panic!("{e}")), wanted, "{}", entry.display());
        count += 1;
    }
    assert!(count >= 20, "{count} folders");
}

#[test]
fn an_image_says_which_transformations_are_not_applied() {
    let folder = tempfile::tempdir().unwrap();
    let with = |transformations: Value| {
        let path = made(folder.path(), |root, _| {
            root["attributes"]["ome"]["multiscales"][0]["datasets"][0]["coordinateTransformations"] = transformations;
        });
        open(&path, &OpenOptions::default()).unwrap().meta().not_applied.clone()
    };
    let scale = json!({"type": "scale", "scale": [2.0, 1.0, 1.0]});
    let shift = json!({"type": "translation", "translation": [2.0, 1.0, 1.0]});
    let no_unit = "the scale 2 along Z, 1 along Y, 1 along X is not used as the voxel size, because the file states no unit \
                   of length for it";
    assert_eq!(with(json!([scale, shift, {"type": "identity"}])), [no_unit]);
    assert_eq!(with(json!([{"type": "scale", "scale": [1.0, 1.0, 1.0]}, shift])), [""; 0]);
    let left_out = with(json!([scale, {"type": "affine", "affine": [[1.0]]}, {"type": "translation", "path": "t"}]));
    let expected = [
        "the transformation \"affine\" is not applied",
        "the transformation \"translation\" is not applied, because its numbers are in an array",
        no_unit,
    ];
    assert_eq!(left_out, expected);
    assert_eq!(with(json!([{"type": "scale", "path": "s"}])).len(), 1);
    // A unit that is no length is as good as none.
    for (unit, expected) in [("pixel", &[no_unit][..]), ("", &[no_unit]), ("nanometer", &[])] {
        let path = made(folder.path(), |root, _| {
            let image = &mut root["attributes"]["ome"]["multiscales"][0];
            image["datasets"][0]["coordinateTransformations"] = json!([scale]);
            for axis in 0..3usize {
                image["axes"][axis]["unit"] = json!(unit);
            }
        });
        assert_eq!(open(&path, &OpenOptions::default()).unwrap().meta().not_applied, expected, "{unit:?}");
    }
}

#[test]
fn metadata_with_a_byte_order_mark_and_british_units_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = made(folder.path(), |root, _| {
        let image = &mut root["attributes"]["ome"]["multiscales"][0];
        for (axis, unit) in ["millimetre", "nanometre", "micrometre"].into_iter().enumerate() {
            image["axes"][axis]["unit"] = json!(unit);
        }
        image["datasets"][0]["coordinateTransformations"][0]["scale"] = json!([0.002, 500.0, 0.25]);
    });
    for name in ["zarr.json", "0/zarr.json"] {
        let text = std::fs::read_to_string(path.join(name)).unwrap();
        std::fs::write(path.join(name), format!("\u{feff}{text}")).unwrap();
    }
    let image = open(&path, &OpenOptions::default()).unwrap();
    assert_eq!(image.meta().voxel_size_um, VoxelSize::new_um(2.0, 0.5, 0.25));
}
