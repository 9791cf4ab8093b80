//! `info` and `convert`.

use crate::common::{Fixture, missing, parse_npy, python};
use cytoscope_formats::{Channel, Container, OpenOptions, WriteSpec, open, write_array};
use cytoscope_volume::{Array, DType, Region, Samples, VoxelSize};

#[test]
fn info_reports_all_documented_fields() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,20,24", 3);
    let info = fixture.run(&["info", &raw, "--json"]).json();
    let promised = [
        "path",
        "format",
        "axes",
        "shape",
        "dtype",
        "voxel_size_um",
        "channels",
        "compression",
        "byte_order",
        "levels",
        "axes_full",
    ];
    assert_eq!(missing(&info, &promised), Vec::<&str>::new());
    assert_eq!(info["path"], raw.as_str());
    assert_eq!(info["axes"], "ZYX");
    assert_eq!(info["axes_full"], "TZCYXS");
    assert_eq!(info["shape"], serde_json::json!([6, 20, 24]));
    assert_eq!(info["dtype"], "uint16");
    let settings: serde_json::Value = serde_json::from_slice(&fixture.bytes("sim/nuclei_3.json")).unwrap();
    for axis in ["z", "y", "x"] {
        let written = info["voxel_size_um"][axis].as_f64().unwrap();
        assert!(
            written > 0.0 && settings.to_string().contains(&written.to_string()),
            "{axis}: {written} is not in the settings"
        );
    }
    let text = fixture.run(&["info", &raw]).ok().stdout;
    assert!(text.contains("Z 6, Y 20, X 24") && text.contains("µm") && text.contains("uint16"), "{text}");
    assert!(text.contains("ImageJ TIFF, uncompressed, big-endian"), "{text}");
}

#[test]
fn info_describes_several_files_each_below_its_path_and_as_a_json_list() {
    let fixture = Fixture::new();
    fixture.write("a.tif", "ZYX", &[2, 8, 8], vec![1u16; 128]);
    fixture.write("b.npy", "YX", &[4, 6], vec![1u8; 24]);
    let text = fixture.run(&["info", "a.tif", "b.npy"]).ok().stdout;
    let parts: Vec<&str> = text.split("\n\n").collect();
    let [first, second] = parts.as_slice() else { panic!("{text}") };
    assert!(first.starts_with("a.tif\n") && first.contains("uint16"), "{text}");
    assert!(second.starts_with("b.npy\n") && second.contains("uint8"), "{text}");
    let list = fixture.run(&["info", "a.tif", "b.npy", "--json"]).json();
    let paths: Vec<&str> = list.as_array().unwrap().iter().map(|info| info["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["a.tif", "b.npy"]);
    // One that cannot be read is an error, and the others are described.
    let words = ["failed: gone.tif: ", "1 of 3 files could not be read"];
    let failed = fixture.fails(3, &["info", "a.tif", "gone.tif", "b.npy"], &words);
    assert_eq!(failed.stdout, text);
    let failed = fixture.fails(3, &["info", "a.tif", "gone.tif", "b.npy", "--json"], &words);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&failed.stdout).unwrap(), list);
}

#[test]
fn labels_round_trip_through_cellpose_files_and_roi_sets() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,33,29", 5);
    let labels = raw.replace("_raw", "_labels");
    let expected = fixture.image(&labels);
    assert!(fixture.run(&["convert", &labels, "x_seg.npy"]).ok().stdout.contains("wrote x_seg.npy"));
    fixture.run(&["convert", "x_seg.npy", "a.tif"]).ok();
    fixture.run(&["convert", &labels, "rois.zip"]).ok();
    fixture.run(&["convert", "rois.zip", "b.tif", "--like", &raw]).ok();
    for back in ["a.tif", "b.tif"] {
        assert_eq!(fixture.image(back), expected, "{back}");
    }
    // Also in an OME-Zarr folder, and the stack is an input like any other.
    fixture.run(&["convert", "rois.zip", "b.zarr", "--like", &raw]).ok();
    assert_eq!(fixture.image("b.zarr"), expected);
    fixture.run(&["convert", &raw, "with.zarr", "--labels", "rois.zip"]).ok();
    assert_eq!(fixture.image("with.zarr/labels/rois"), expected);
    // Its regions would lie elsewhere in a crop.
    let crop = ["convert", &raw, "crop.zarr", "--labels", "rois.zip", "--preprocess", "crop:y=3-33"];
    fixture.fails(3, &crop, &["rois.zip", "crops", "--like"]);
    let smooth = ["convert", &raw, "smooth.zarr", "--labels", "rois.zip", "--preprocess", "gaussian:sigma=1"];
    assert!(!fixture.run(&smooth).ok().stderr.contains("stored as they are"));
    // So would the labels of a label image.
    let steps = ["--preprocess", "crop:y=3-33"];
    let of_stack = [&["convert", &raw, "crop.zarr", "--labels", &labels][..], &steps].concat();
    fixture.fails(3, &of_stack, &[&labels, "after --preprocess"]);
    fixture.run(&[&["convert", &labels, "part.tif"][..], &steps].concat()).ok();
    let of_crop = [&["convert", &raw, "crop.zarr", "--labels", "part.tif"][..], &steps].concat();
    let stderr = fixture.run(&of_crop).ok().stderr;
    assert!(stderr.contains("part.tif") && stderr.contains("stored as they are"), "{stderr}");
    assert_eq!(fixture.image("crop.zarr/labels/part"), fixture.image("part.tif"));
    assert_eq!(fixture.image("smooth.zarr/labels/rois"), expected);
    let before = fixture.bytes(&raw);
    fixture.fails(2, &["convert", "rois.zip", &raw, "--like", &raw, "--force"], &[&raw, "input"]);
    assert!(fixture.bytes(&raw) == before);
    // Images have their own extents.
    fixture.fails(2, &["convert", &labels, "c.tif", "--like", &raw], &["--like", "leave"]);
    fixture.fails(2, &["convert", &labels, "c.zarr", "--like", &raw], &["--like", "leave"]);
    // Regions are drawn in the shape of the labels that they are compared with.
    let report = fixture.run(&["evaluate", "--pred", "rois.zip", "--truth", &labels, "--json"]).json();
    assert_eq!(report["instances"][0]["f1"], 1.0, "{report}");
    assert_eq!(fixture.run(&["info", "rois.zip", "--json"]).json()["format"], "imagej roi");
    assert!(fixture.leftovers().is_empty());
}

#[test]
fn a_converted_channel_has_its_own_display_range_and_not_that_of_the_first_channel() {
    let fixture = Fixture::new();
    fixture.write("two.tif", "CYX", &[2, 2, 2], vec![1u16, 2, 3, 4, 1000, 2000, 3000, 4000]);
    for output in ["one.tif", "one.ome.tif", "one.zarr"] {
        fixture.run(&["convert", "two.tif", output, "--channel", "1"]).ok();
        let info = fixture.run(&["info", output, "--json"]).json();
        assert_eq!(info["display_range"], serde_json::json!([1000.0, 4000.0]), "{output}");
    }
}

#[test]
fn roi_sets_get_the_time_points_of_their_stack_even_if_it_has_no_objects() {
    let fixture = Fixture::new();
    let mut values = vec![0u16; 4 * 3 * 6 * 7];
    values[10..13].fill(5);
    values[42 * 5 + 20..42 * 5 + 22].fill(9);
    for (stack, values) in [("cells.tif", values.clone()), ("none.tif", vec![0; values.len()])] {
        fixture.write(stack, "TZYX", &[4, 3, 6, 7], values);
        let set = format!("{stack}.zip");
        fixture.run(&["convert", stack, &set]).ok();
        let back = format!("back_{stack}");
        fixture.run(&["convert", &set, &back, "--like", stack]).ok();
        assert_eq!(fixture.image(&back), fixture.image(stack), "{stack}");
    }
    fixture.fails(3, &["convert", "none.tif.zip", "alone.tif"], &["none.tif.zip", "--like"]);
    // A set without regions is a prediction, or ground truth, without objects.
    let scores = |prediction: &str, truth: &str| {
        let report = fixture.run(&["evaluate", "--pred", prediction, "--truth", truth, "--json"]).json();
        let of = &report["instances"][0];
        ["tp", "n_true", "n_pred"].map(|name| of[name].as_u64().unwrap_or_else(|| panic!("{name}: {report:#}")))
    };
    for truth in ["cells.tif", "cells.tif.zip"] {
        assert_eq!(scores("none.tif.zip", truth), scores("none.tif", "cells.tif"), "{truth}");
    }
    assert_eq!(scores("cells.tif.zip", "none.tif.zip"), scores("cells.tif", "none.tif"));
    // Regions of a time series do not belong to a stack of one time point.
    fixture.run(&["convert", "cells.tif", "first.tif", "--time", "0"]).ok();
    let evaluate_series = ["evaluate", "--pred", "first.tif", "--truth", "cells.tif.zip"];
    fixture.fails(3, &evaluate_series, &["first.tif", "2 time points", "cells.tif.zip"]);
}

#[test]
fn regions_outside_of_their_stack_are_left_out_with_a_note() {
    let fixture = Fixture::new();
    let mut values = vec![0u16; 3 * 6 * 7];
    values[10..13].fill(5);
    values[42 * 2 + 20..42 * 2 + 22].fill(9);
    fixture.write("labels.tif", "ZYX", &[3, 6, 7], values.clone());
    fixture.run(&["convert", "labels.tif", "rois.zip"]).ok();
    // The stack lacks the last slice, with the region of the label 9.
    fixture.write("short.tif", "ZYX", &[2, 6, 7], values[..84].to_vec());
    let note = "1 region of interest lies outside of the stack and is left out: label-9";
    let converted = fixture.run(&["convert", "rois.zip", "back.tif", "--like", "short.tif"]).ok();
    assert!(converted.stderr.contains(note), "{}", converted.stderr);
    assert_eq!(fixture.image("back.tif"), fixture.image("short.tif"));
    let measure = ["measure", "rois.zip", "--intensities", "short.tif", "--out", "t.csv", "--json"];
    assert!(fixture.run(&measure).json()["notes"].to_string().contains(note));
    for pair in [["rois.zip", "short.tif"], ["short.tif", "rois.zip"]] {
        let report = fixture.run(&["evaluate", "--pred", pair[0], "--truth", pair[1], "--json"]).json();
        assert!(report["notes"].to_string().contains(&format!("rois.zip: {note}")), "{report:#}");
    }
    // Two sets are compared on a stack that contains the regions of both.
    fixture.run(&["convert", "short.tif", "short.zip"]).ok();
    let report = fixture.run(&["evaluate", "--pred", "rois.zip", "--truth", "short.zip", "--json"]).json();
    assert!(report.get("notes").is_none() && report["instances"][0]["n_pred"] == 2, "{report:#}");
    fixture.write("flat.tif", "YX", &[1, 2], vec![0u16; 2]);
    fixture.fails(3, &["convert", "rois.zip", "none.tif", "--like", "flat.tif"], &["rois.zip", "all 2 of its regions"]);
}

#[test]
fn an_output_whose_name_is_only_an_extension_is_refused() {
    let fixture = Fixture::new();
    fixture.write("labels.tif", "ZYX", &[2, 8, 8], vec![1u16; 128]);
    for output in [".tif", ".ome.tif", ".zarr", ".ome.zarr", ".ozx", ".npy", ".zip", "_seg.npy"] {
        let expected = ["only a file extension", &format!("image{output}")];
        fixture.fails(2, &["convert", "labels.tif", output], &expected);
        fixture.fails(2, &["convert", "labels.tif", output, "--series", "all"], &expected);
        fixture.fails(2, &["segment", "labels.tif", "--out", output], &expected);
        assert!(!fixture.path(output).exists(), "{output}");
    }
    fixture.fails(2, &["predict", "labels.tif", "--out", ".ome.zarr"], &["only a file extension"]);
    assert!(fixture.leftovers().is_empty());
    // A hidden file with a name of its own is written.
    fixture.run(&["convert", "labels.tif", ".hidden.tif"]).ok();
    assert_eq!(fixture.image(".hidden.tif"), fixture.image("labels.tif"));
}

#[test]
fn an_array_of_a_stack_with_one_row_or_column_keeps_its_slices() {
    let fixture = Fixture::new();
    for (name, shape) in [("row", [8, 1, 32]), ("column", [8, 32, 1])] {
        let [stack, array, back] = [".tif", ".npy", "_back.tif"].map(|suffix| format!("{name}{suffix}"));
        fixture.write(&stack, "ZYX", &shape, (0..=255).collect::<Vec<u8>>());
        fixture.run(&["convert", &stack, &array]).ok();
        assert_eq!(parse_npy(&fixture.bytes(&array)).1, shape, "{name}");
        fixture.run(&["convert", &array, &back]).ok();
        assert_eq!(fixture.image(&back), fixture.image(&stack), "{name}");
    }
}

#[test]
fn a_folder_of_numbered_slices_is_one_stack() {
    let fixture = Fixture::new();
    std::fs::create_dir(fixture.path("slices")).unwrap();
    for z in 0..5u8 {
        let slice = image::GrayImage::from_fn(24, 20, |x, y| image::Luma([(x as u8 * 3) ^ (y as u8 * 5) ^ z]));
        slice.save(fixture.path(&format!("slices/z_{z:03}.png"))).unwrap();
    }
    let text = fixture.run(&["info", "slices"]).ok().stdout;
    assert!(text.contains("PNG series") && text.contains("5, z_000.png to z_004.png"), "{text}");
    fixture.run(&["convert", "slices/z_002.png", "a.npy"]).ok();
    let (dtype, shape, data) = parse_npy(&fixture.bytes("a.npy"));
    assert_eq!((dtype.as_str(), shape.as_slice()), ("|u1", &[5, 20, 24][..]));
    assert_eq!(data[3 * 480 + 24 + 2], (2 * 3) ^ 5 ^ 3);
    // A folder is one input, not five.
    let report = fixture.run(&["predict", "slices", "--out", "o", "--json"]).json();
    assert_eq!(report["inputs"].as_array().map(Vec::len), Some(1), "{report}");
    let notes = report["inputs"][0]["notes"].to_string();
    assert!(notes.contains("5 files, z_000.png to z_004.png, were read as one stack (--axes YX"), "{notes}");
    assert!(!notes.contains("png is missing"), "{notes}");
    let info = fixture.run(&["info", "slices", "--json"]).json();
    assert_eq!((info["files"].as_array().map(Vec::len), &info["other_files"]), (Some(5), &serde_json::json!(0)));
    // A lost slice ends the stack, which is not overlooked.
    std::fs::remove_file(fixture.path("slices/z_002.png")).unwrap();
    let text = fixture.run(&["info", "slices/z_004.png"]).ok().stdout;
    assert!(
        text.contains("2, z_003.png to z_004.png") && text.contains("2 other files of this name are left out"),
        "{text}"
    );
    let info = fixture.run(&["info", "slices/z_004.png", "--json"]).json();
    assert_eq!(info["other_files"], 2, "{info}");
    let ran = fixture.run(&["convert", "slices/z_004.png", "b.npy"]).ok();
    let expected = "2 files, z_003.png to z_004.png, were read as one stack";
    assert!(
        ran.stderr.contains(expected) && ran.stderr.contains("2 other files of this name were not"),
        "{}",
        ran.stderr
    );
}

#[test]
fn tiff_files_of_one_slice_each_are_one_stack() {
    let fixture = Fixture::new();
    std::fs::create_dir(fixture.path("slices")).unwrap();
    for (t, z) in (1..3u16).flat_map(|t| (0..3).map(move |z| (t, z))) {
        fixture.write(&format!("slices/img_T{t}_Z{z:03}.tif"), "YX", &[4, 5], vec![t * 10 + z; 20]);
    }
    let text = fixture.run(&["info", "slices"]).ok().stdout;
    assert!(text.contains("TIFF series") && text.contains("6, img_T1_Z000.tif to img_T2_Z002.tif"), "{text}");
    fixture.run(&["convert", "slices/img_T2_Z001.tif", "a.npy"]).ok();
    let (dtype, shape, data) = parse_npy(&fixture.bytes("a.npy"));
    assert_eq!((dtype.as_str(), shape.as_slice()), ("<u2", &[2, 3, 4, 5][..]));
    let planes: Vec<u8> = data.chunks(40).map(|plane| plane[0]).collect();
    assert_eq!(planes, [10, 11, 12, 20, 21, 22]);
    fixture.run(&["convert", "slices/img_T2_Z001.tif", "b.npy", "--axes", "YX"]).ok();
    assert_eq!(parse_npy(&fixture.bytes("b.npy")).1, [4, 5]);
    std::fs::remove_file(fixture.path("slices/img_T1_Z001.tif")).unwrap();
    fixture.fails(2, &["info", "slices"], &["img_T1_Z001.tif is missing", "YX"]);
}

#[test]
fn conversions_round_trip_exactly() {
    let fixture = Fixture::new();
    for kind in ["nuclei", "cells", "labelfree"] {
        fixture.run(&["simulate", "--kind", kind, "--shape", "7,33,29", "--seed", "5", "--out", "sim"]).ok();
        let raw = format!("sim/{kind}_5_raw.tif");
        let info = fixture.run(&["info", &raw, "--json"]).json();
        fixture.run(&["convert", "--force", &raw, "a.npy"]).ok();
        fixture.run(&["convert", "--force", "a.npy", "b.tif", "--axes", "ZYX"]).ok();
        fixture.run(&["convert", "--force", "b.tif", "c.ome.tif", "--compression", "deflate"]).ok();
        fixture.run(&["convert", "--force", "c.ome.tif", "d.ome.tif", "--compression", "zstd"]).ok();
        fixture.run(&["convert", "--force", "d.ome.tif", "e.npy"]).ok();
        assert_eq!(fixture.bytes("a.npy"), fixture.bytes("e.npy"), "{kind}");
        let (dtype, shape, data) = parse_npy(&fixture.bytes("a.npy"));
        assert_eq!((dtype.as_str(), shape.as_slice()), ("<u2", &[7, 33, 29][..]), "{kind}");
        let Samples::U16(values) = fixture.image(&raw).into_samples() else { panic!("{kind} is not uint16") };
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        assert!(bytes == data, "{kind}: the array is not the image");
        assert!(values.iter().max() > values.iter().min(), "{kind} is blank");
        // Voxel sizes survive if the format stores them.
        fixture.run(&["convert", "--force", &raw, "f.ome.tif"]).ok();
        assert_eq!(
            fixture.run(&["info", "f.ome.tif", "--json"]).json()["voxel_size_um"],
            info["voxel_size_um"],
            "{kind}"
        );
    }
    let script = "
import sys, numpy, tifffile
a = numpy.load(sys.argv[1])
for f in sys.argv[2:]:
    b = tifffile.imread(f)
    assert b.shape == a.shape and b.dtype == a.dtype and (b == a).all(), f
    s = tifffile.TiffFile(f).series[0]
    assert s.axes == 'ZYX', (f, s.axes)
print('same')
";
    let files = ["a.npy", "b.tif", "c.ome.tif", "f.ome.tif"].map(|n| fixture.path(n));
    let files: Vec<_> = files.iter().map(std::path::PathBuf::as_path).collect();
    if let Some(printed) = python("numpy, tifffile", script, &files) {
        assert_eq!(printed.trim(), "same");
    }
    assert!(fixture.leftovers().is_empty());
}

#[test]
fn ome_zarr_folders_are_used_like_files() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("20,60,300", 4);
    let labels = raw.replace("_raw", "_labels");
    fixture.run(&["convert", &raw, "stack.ome.zarr", "--labels", &labels]).ok();
    let tiff_info = fixture.run(&["info", &raw, "--json"]).json();
    let zarr_info = fixture.run(&["info", "stack.ome.zarr", "--json"]).json();
    assert_eq!((zarr_info["format"].as_str(), zarr_info["series_count"].as_u64()), (Some("ome-zarr"), Some(2)));
    for key in ["axes", "shape", "dtype", "voxel_size_um"] {
        assert_eq!(zarr_info[key], tiff_info[key], "{key}");
    }
    let levels: Vec<_> = zarr_info["levels"].as_array().unwrap().iter().map(|l| l["shape_full"].clone()).collect();
    let expected = [[1, 20, 1, 60, 300, 1], [1, 20, 1, 30, 150, 1]];
    assert_eq!(levels, expected.map(|shape| serde_json::json!(shape)));
    fixture.run(&["convert", "stack.ome.zarr", "back.tif"]).ok();
    assert_eq!(fixture.image("back.tif"), fixture.image(&raw));
    fixture.run(&["convert", "stack.ome.zarr", "back_labels.tif", "--series", "1"]).ok();
    assert_eq!(fixture.image("back_labels.tif"), fixture.image(&labels));
    // Labels that are converted without their stack have every second label in the next level, whatever the name of the
    // file.
    fixture.run(&["convert", "stack.ome.zarr", "one.zarr", "--series", "1"]).ok();
    fixture.run(&["convert", &labels, "set.zip"]).ok();
    fixture.run(&["convert", "set.zip", "two.zarr", "--like", &raw]).ok();
    let full = fixture.image(&labels).samples().to_f32();
    let at = |i: usize| full[(i / 4500 * 60 + i / 150 % 30 * 2) * 300 + i % 150 * 2];
    let expected: Vec<f32> = (0..20 * 30 * 150).map(at).collect();
    for name in ["one.zarr", "two.zarr"] {
        let image = open(&fixture.path(name), &OpenOptions::default()).unwrap();
        let level = image.read(1, &Region::whole(&image.meta().levels[1].shape_full)).unwrap();
        assert!(level.samples().to_f32() == expected, "{name}");
    }
    // A prediction does not depend on the format of its input.
    for (input, out) in [(raw.as_str(), "a"), ("stack.ome.zarr", "b")] {
        fixture.run(&["predict", input, "--model", "nuclei-dog", "--out", out, "--device", "cpu"]).ok();
    }
    assert_eq!(fixture.image("a/nuclei_4_raw_labels.tif"), fixture.image("b/stack_probability.zarr/labels/objects"));
    fixture.run(&["convert", &labels, "labels.zarr"]).ok();
    let report = fixture.run(&["evaluate", "--pred", "labels.zarr", "--truth", &labels, "--json"]).json();
    assert_eq!(report["instances"][0]["f1"].as_f64(), Some(1.0));
    // A folder is replaced only with --force, which moves it aside.
    fixture.fails(2, &["convert", &raw, "stack.ome.zarr"], &["stack.ome.zarr", "--force"]);
    fixture.fails(2, &["convert", &raw, "other.tif", "--labels", &labels], &["--labels", ".zarr"]);
    fixture.fails(2, &["convert", "stack.ome.zarr", "stack.ome.zarr", "--force"], &["input"]);
    fixture.run(&["convert", "--force", &labels, "stack.ome.zarr"]).ok();
    assert_eq!(fixture.image("stack.ome.zarr"), fixture.image(&labels));
    assert_eq!(fixture.image("stack.ome.zarr.before-1"), fixture.image(&raw));
    assert!(fixture.leftovers().is_empty());
}

#[test]
fn intensities_given_as_labels_are_noticed() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("12,40,50", 4);
    let labels = raw.replace("_raw", "_labels");
    let doubt = "may be an image of intensities instead of labels";
    let with = |labels: &str, out: &str| fixture.run(&["convert", &raw, out, "--labels", labels]).ok().stderr;
    let warned = with(&raw, "a.zarr");
    assert!(warned.contains(doubt) && warned.contains(&raw), "{warned}");
    assert!(!with(&labels, "b.zarr").contains(doubt));
    let warned = fixture.run(&["convert", &raw, "raw_seg.npy"]).ok().stderr;
    assert!(warned.contains(doubt), "{warned}");
    assert!(!fixture.run(&["convert", &labels, "labels_seg.npy"]).ok().stderr.contains(doubt));
    let measured = fixture.run(&["measure", &raw, "--intensities", &raw, "--out", "t.csv"]).ok().stdout;
    assert!(measured.contains(doubt), "{measured}");
    let doubts = |labels: &str| {
        let ran = fixture.run(&["mesh", labels, "--unsmoothed", "--out", "m.stl", "--force"]).ok();
        (ran.stdout + &ran.stderr).matches(doubt).count()
    };
    assert_eq!([doubts(&raw), doubts(&labels)], [1, 0]);
    // Labels in place of a stack.
    let predicted = |input: &str| {
        let predict = ["predict", input, "--model", "nuclei-dog", "--device", "cpu", "--outputs", "maps", "--out", "o"];
        fixture.run(&predict).ok().stdout
    };
    let larger = fixture.nuclei("12,128,128", 5);
    let noted = predicted(&larger.replace("_raw", "_labels"));
    assert!(noted.contains("the stack may be a label image") && noted.contains("intensities"), "{noted}");
    assert!(!predicted(&larger).contains("label image"));
    // Values that cannot be labels are refused, and what was met is named.
    let stack = fixture.write("stack.tif", "ZYX", &[2, 8, 8], vec![1u16; 128]);
    for (values, met) in
        [(Samples::F32(vec![0.5; 128]), "the value 0.5"), (Samples::I16(vec![-3; 128]), "the value -3")]
    {
        fixture.write("wrong.tif", "ZYX", &[2, 8, 8], values);
        fixture.fails(3, &["convert", &stack, "c.zarr", "--labels", "wrong.tif"], &["wrong.tif", met]);
        fixture.fails(3, &["convert", "wrong.tif", "c_seg.npy"], &["wrong.tif", met]);
        fixture.fails(3, &["measure", "wrong.tif", "--intensities", &stack, "--out", "c.csv"], &["wrong.tif", met]);
        assert!(["c.zarr", "c_seg.npy", "c.csv"].iter().all(|name| !fixture.path(name).exists()));
    }
    // Labels that a program has stored as floats, or as wide integers, are labels.
    let expected: Vec<f32> = (0..128u32).map(|i| (i / 32) as f32).collect();
    fixture.write("floats.tif", "ZYX", &[2, 8, 8], expected.clone());
    fixture.write("wide.npy", "ZYX", &[2, 8, 8], expected.iter().map(|v| *v as i64).collect::<Vec<i64>>());
    fixture.run(&["convert", &stack, "d.zarr", "--labels", "floats.tif"]).ok();
    for labels in ["floats.tif", "wide.npy"] {
        fixture.run(&["convert", labels, "d_seg.npy", "--force"]).ok();
        for name in ["d.zarr/labels/floats", "d_seg.npy"] {
            let image = fixture.image(name);
            assert_eq!((image.dtype(), image.samples().to_f32()), (DType::U32, expected.clone()), "{labels}: {name}");
        }
    }
    let ran = fixture.run(&["convert", "wide.npy", "wide.tif"]).ok();
    assert!(ran.stderr.contains("no int64") && ran.stderr.contains("stored as uint32"), "{}", ran.stderr);
    assert_eq!(fixture.image("wide.tif").samples().to_f32(), expected);
    // The last value is in another slice than the first one.
    let values: Vec<i64> = (0..128).map(|i| 100_000 - i * 1000).collect();
    fixture.write("signed.npy", "ZYX", &[2, 8, 8], values.clone());
    for name in ["signed.tif", "signed.ome.tif"] {
        let ran = fixture.run(&["convert", "signed.npy", name]).ok();
        assert!(ran.stderr.contains("stored as int32"), "{}", ran.stderr);
        let expected: Vec<i32> = values.iter().map(|value| *value as i32).collect();
        assert_eq!(*fixture.image(name).samples(), cytoscope_volume::Samples::I32(expected), "{name}");
    }
    fixture.write("negative.npy", "ZYX", &[2, 8, 8], vec![-1i64 << 40; 128]);
    let words = ["negative.npy", "the value -1099511627776", ".npy or .zarr"];
    let ran = fixture.fails(3, &["convert", "negative.npy", "negative.tif"], &words);
    assert!(!ran.stderr.contains("stored as"), "{}", ran.stderr);
    fixture.run(&["measure", "floats.tif", "--intensities", &stack, "--out", "floats.csv"]).ok();
    assert_eq!(fixture.table("floats.csv").len(), 4, "the header and three objects");
}

#[test]
fn a_stack_whose_pages_do_not_fit_its_axes_is_read_as_slices_with_a_note() {
    let fixture = Fixture::new();
    fixture.write("s.tif", "ZCYX", &[3, 2, 4, 5], (0..120u16).collect::<Vec<u16>>());
    let mut bytes = fixture.bytes("s.tif");
    let at = bytes.windows(8).position(|bytes| bytes == b"slices=3").unwrap();
    bytes[at + 7] = b'2';
    std::fs::write(fixture.path("s.tif"), bytes).unwrap();
    let note = "2 slices and 2 channels, but the file has 6 pages: they are read as slices";
    let ran = fixture.run(&["convert", "s.tif", "s.npy"]).ok();
    assert!(ran.stderr.contains(note), "{}", ran.stderr);
    assert_eq!(parse_npy(&fixture.bytes("s.npy")).1, [6, 4, 5]);
    let text = fixture.run(&["info", "s.tif"]).ok().stdout;
    assert!(text.contains(note), "{text}");
}

#[test]
fn values_that_imagej_shows_calibrated_are_read_as_stored_with_a_note() {
    let fixture = Fixture::new();
    fixture.write("s.tif", "ZYX", &[3, 4, 5], (0..60u16).collect::<Vec<u16>>());
    let mut bytes = fixture.bytes("s.tif");
    // Another entry of the same length, as ImageJ writes it for values with an offset.
    let at = bytes.windows(10).position(|bytes| bytes == b"loop=false").unwrap();
    bytes[at..at + 10].copy_from_slice(b"cf=0\nc0=-9");
    let max = bytes.windows(4).position(|bytes| bytes == b"max=").unwrap();
    bytes[max..max + 4].copy_from_slice(b"c1=1");
    std::fs::write(fixture.path("s.tif"), bytes).unwrap();
    let note = "ImageJ shows the stored values times 159, minus 9: here, the stored values are used";
    let ran = fixture.run(&["convert", "s.tif", "s.npy"]).ok();
    assert!(ran.stderr.contains(note), "{}", ran.stderr);
    let text = fixture.run(&["info", "s.tif"]).ok().stdout;
    assert!(text.contains(note), "{text}");
}

#[test]
fn convert_writes_a_given_voxel_size_in_place_of_the_files() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,20,24", 3);
    let labels = raw.replace("_raw", "_labels");
    let voxel_size = |name: &str, series: &str| {
        let info = fixture.run(&["info", name, "--series", series, "--json"]).json();
        ["z", "y", "x"].map(|axis| (info["voxel_size_um"][axis].as_f64().unwrap() * 1e6).round() / 1e6)
    };
    let given = ["--voxel-size", "2,0.5,0.25"];
    assert_ne!(voxel_size(&raw, "0"), [2.0, 0.5, 0.25]);
    for output in ["a.tif", "a.ome.tif"] {
        fixture.run(&[&["convert", raw.as_str(), output][..], &given].concat()).ok();
        assert_eq!(voxel_size(output, "0"), [2.0, 0.5, 0.25], "{output}");
        assert_eq!(fixture.image(output), fixture.image(&raw), "{output}");
    }
    fixture.run(&[&["convert", raw.as_str(), "a.zarr", "--labels", labels.as_str()][..], &given].concat()).ok();
    assert_eq!(["0", "1"].map(|series| voxel_size("a.zarr", series)), [[2.0, 0.5, 0.25]; 2]);
    // Labels in a file without a voxel size lie on the voxels of the stack.
    fixture.run(&["convert", &labels, "labels.npy"]).ok();
    fixture.run(&["convert", &raw, "b.zarr", "--labels", "labels.npy"]).ok();
    assert_eq!(["0", "1"].map(|series| voxel_size("b.zarr", series)), [voxel_size(&raw, "0"); 2]);
    // A stack without a voxel size has that of its labels.
    let plain = fixture.write("plain.tif", "ZYX", &[2, 8, 8], vec![1u16; 128]);
    fixture.run(&[&["convert", plain.as_str(), "sized.tif"][..], &given].concat()).ok();
    let noted = fixture.run(&["convert", &plain, "c.zarr", "--labels", "sized.tif"]).ok().stderr;
    assert!(noted.contains("voxel size: that of its label image"), "{noted}");
    assert_eq!(["0", "1"].map(|series| voxel_size("c.zarr", series)), [[2.0, 0.5, 0.25]; 2]);
    // The record holds it, and lengths of preprocessing steps refer to it.
    fixture.run(&["provenance", "a.tif", "--rerun", "--out", "again.tif"]).ok();
    assert_eq!(voxel_size("again.tif", "0"), [2.0, 0.5, 0.25]);
    let ran = fixture.run(&[&["convert", raw.as_str(), "a.npy"][..], &given].concat()).ok();
    assert!(ran.stderr.contains("a.npy") && ran.stderr.contains("no voxel size"), "{}", ran.stderr);
    let steps = |more: &[&str], output: &str| {
        let command = ["convert", raw.as_str(), output, "--preprocess", "gaussian:sigma=1um"];
        fixture.run(&[&command[..], more].concat()).ok();
        fixture.bytes(output)
    };
    assert_ne!(steps(&given, "small.npy"), steps(&[], "file.npy"));
    fixture.fails(2, &["convert", &raw, "b.tif", "--voxel-size", "2,0.5"], &["2,0.5", "Z,Y,X in µm"]);
    fixture.fails(2, &["convert", &raw, "b.tif", "--voxel-size", "2,5e6,5e6"], &["--voxel-size", "along Y"]);
}

#[test]
fn convert_extracts_one_channel_and_time_point() {
    let fixture = Fixture::new();
    let shape = [2usize, 3, 4, 5, 6];
    let value =
        |t: usize, z: usize, c: usize, y: usize, x: usize| (10_000 * t + 1000 * z + 100 * c + 10 * y + x) as u16;
    let mut values = Vec::new();
    for t in 0..2 {
        for z in 0..3 {
            for c in 0..4 {
                for y in 0..5 {
                    values.extend((0..6).map(|x| value(t, z, c, y, x)));
                }
            }
        }
    }
    let array = Array::new("TZCYX".parse().unwrap(), shape.to_vec(), values).unwrap();
    let mut spec = WriteSpec::of(&array, Container::OmeTiff);
    spec.voxel_size_um = VoxelSize::new_um(1.5, 0.25, 0.25);
    let channel = |name: &str| Channel { name: name.to_owned(), color_rgb: None };
    spec.channels = ["DAPI", "", "Bright field", "488"].map(channel).to_vec();
    write_array(&fixture.path("all.ome.tif"), &array, &spec).unwrap();
    fixture.run(&["convert", "all.ome.tif", "one.npy", "--channel", "2", "--time", "1"]).ok();
    let (_, shape, data) = parse_npy(&fixture.bytes("one.npy"));
    assert_eq!(shape, [3, 5, 6]);
    let mut expected = Vec::new();
    for z in 0..3 {
        for y in 0..5 {
            expected.extend((0..6).flat_map(|x| value(1, z, 2, y, x).to_le_bytes()));
        }
    }
    assert_eq!(data, expected);
    for (name, output) in [("bright FIELD", "named.npy"), ("488", "wavelength.npy")] {
        fixture.run(&["convert", "all.ome.tif", output, "--channel", name, "--time", "1"]).ok();
    }
    assert_eq!(parse_npy(&fixture.bytes("named.npy")).2, expected);
    let last: Vec<u8> = (0..3)
        .flat_map(|z| (0..5).flat_map(move |y| (0..6).map(move |x| (z, y, x))))
        .flat_map(|(z, y, x)| value(1, z, 3, y, x).to_le_bytes())
        .collect();
    assert_eq!(parse_npy(&fixture.bytes("wavelength.npy")).2, last);
    fixture.fails(3, &["convert", "all.ome.tif", "x.npy", "--channel", "GFP"], &["all.ome.tif", "\"GFP\"", "0 (DAPI)"]);
    fixture.run(&["convert", "all.ome.tif", "all.npy"]).ok();
    assert_eq!(parse_npy(&fixture.bytes("all.npy")).1, [2, 3, 4, 5, 6]);
    fixture.run(&["convert", "all.ome.tif", "one.tif", "--channel", "2", "--time", "1"]).ok();
    let info = fixture.run(&["info", "one.tif", "--json"]).json();
    assert_eq!((info["axes"].as_str(), info["voxel_size_um"]["z"].as_f64()), (Some("ZYX"), Some(1.5)));
    fixture.fails(3, &["convert", "all.ome.tif", "x.npy", "--channel", "4"], &["all.ome.tif", "channel 4", "4"]);
    fixture.fails(3, &["convert", "all.ome.tif", "x.npy", "--time", "2"], &["all.ome.tif", "time point 2"]);
}

#[test]
fn the_bits_of_a_camera_are_kept_in_ome_tiff() {
    let fixture = Fixture::new();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/read_lif/series");
    std::fs::copy(source, fixture.path("camera.lif")).unwrap();
    let significant = |name: &str| {
        let text = String::from_utf8_lossy(&fixture.bytes(name)).into_owned();
        let rest = text.split("SignificantBits=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        rest.to_owned()
    };
    fixture.run(&["convert", "camera.lif", "a.ome.tif"]).ok();
    assert_eq!(significant("a.ome.tif"), "12");
    assert_eq!(fixture.image("a.ome.tif").dtype(), DType::U16);
    fixture.run(&["convert", "camera.lif", "b.ome.tif", "--series", "1"]).ok();
    assert_eq!(significant("b.ome.tif"), "8");
    // Steps change values.
    fixture.run(&["convert", "camera.lif", "c.ome.tif", "--preprocess", "invert"]).ok();
    assert_ne!(significant("c.ome.tif"), "12");
}
