//! `predict` with OME-Zarr results.

use crate::common::{Fixture, predict, python};
use cytoscope_storage::MARKER;

/// The maps that a prediction of the simulated stack 4 writes to the folder `zarr`.
const MAPS: &str = "zarr/nuclei_4_raw_probability.zarr";

#[test]
fn results_in_ome_zarr_are_those_in_tiff() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("40,60,300", 4);
    fixture.run(&predict(&raw, "tiff", &[])).ok();
    fixture.run(&predict(&raw, "zarr", &["--format", "ome-zarr"])).ok();
    let names = ["nuclei_4_raw_objects.csv", "nuclei_4_raw_probability.zarr", "nuclei_4_raw_provenance.json"];
    assert_eq!(fixture.names("zarr"), names);
    assert_eq!(fixture.names(MAPS), [MARKER, "0", "1", "labels", "zarr.json"]);
    let labels = format!("{MAPS}/labels/objects");
    assert_eq!(fixture.image(MAPS), fixture.image("tiff/nuclei_4_raw_probability.tif"));
    assert_eq!(fixture.image(&labels), fixture.image("tiff/nuclei_4_raw_labels.tif"));
    assert_eq!(fixture.bytes("zarr/nuclei_4_raw_objects.csv"), fixture.bytes("tiff/nuclei_4_raw_objects.csv"));
    let info = |name: &str| fixture.run(&["info", name, "--json"]).json();
    assert_eq!(info(MAPS)["voxel_size_um"], info(&raw)["voxel_size_um"]);
    let levels =
        info(&labels)["levels"].as_array().unwrap().iter().map(|l| l["shape_full"].clone()).collect::<Vec<_>>();
    let expected = [[1, 40, 1, 60, 300, 1], [1, 40, 1, 30, 150, 1]];
    assert_eq!(levels, expected.map(|shape| serde_json::json!(shape)));
    // A folder of results is evaluated by its labels, and can be segmented again.
    let truth = raw.replace("_raw", "_labels");
    let scores = |prediction: &str| {
        fixture.run(&["evaluate", "--pred", prediction, "--truth", &truth, "--json"]).json()["instances"].clone()
    };
    assert_eq!(scores(MAPS), scores("tiff/nuclei_4_raw_labels.tif"));
    // They are stored with a stack, and it is measured and meshed by them, too.
    fixture.run(&["convert", &raw, "with.zarr", "--labels", MAPS]).ok();
    assert_eq!(fixture.image("with.zarr/labels/nuclei_4_raw_probability"), fixture.image(&labels));
    fixture.run(&["measure", MAPS, "--intensities", &raw, "--out", "measured.csv"]).ok();
    assert_eq!(fixture.bytes("measured.csv"), fixture.bytes("tiff/nuclei_4_raw_objects.csv"));
    for (labels, out) in [(MAPS, "maps.stl"), (labels.as_str(), "labels.stl")] {
        fixture.run(&["mesh", labels, "--objects", "1", "--out", out]).ok();
    }
    assert!(fixture.bytes("maps.stl") == fixture.bytes("labels.stl"));
    let script = "
import sys, json, numpy, zarr
group = zarr.open_group(sys.argv[1], mode='r')
maps, labels = group['0'], group['labels/objects/0'][...]
assert maps.dtype == 'float32' and labels.dtype == 'uint16', (maps.dtype, labels.dtype)
assert labels.shape == (40, 60, 300), labels.shape
assert group['labels'].attrs['ome']['labels'] == ['objects']
label = group['labels/objects'].attrs['ome']['image-label']
assert label['source'] == {'image': '../../'}, label
assert [c['label-value'] for c in label['colors']] == list(range(1, labels.max() + 1))
print(labels.max())
";
    let maps = fixture.path(MAPS);
    if let Some(printed) = python("numpy, zarr", script, &[maps.as_path()]) {
        let rows = fixture.table("zarr/nuclei_4_raw_objects.csv").len() - 1;
        assert_eq!(printed.trim(), rows.to_string());
    }
    let script = "
import sys
from ome_zarr.io import parse_url
from ome_zarr.reader import Label, Multiscales, Reader
nodes = list(Reader(parse_url(sys.argv[1]))())
image, label = nodes[0], [node for node in nodes if node.load(Label)]
assert image.load(Multiscales) and image.metadata['contrast_limits'][0] == [0.0, 1.0], image.metadata
assert len(label) == 1 and label[0].metadata['name'] == 'objects' and 1 in label[0].metadata['color'], label
assert [level.shape for level in label[0].data] == [(40, 60, 300), (40, 30, 150)], label[0].data
print('read')
";
    if let Some(printed) = python("ome_zarr", script, &[maps.as_path()]) {
        assert_eq!(printed.trim(), "read");
    }
    assert!(fixture.leftovers().is_empty());
}

#[test]
fn napari_opens_results_in_ome_zarr_as_an_image_and_colored_labels() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("12,40,300", 4);
    fixture.run(&predict(&raw, "zarr", &["--format", "ome-zarr"])).ok();
    let script = "
import sys
from napari_ome_zarr import napari_get_reader
image, labels = napari_get_reader(sys.argv[1])(sys.argv[1])
assert (image[2], labels[2]) == ('image', 'labels'), (image, labels)
for levels, options, _ in (image, labels):
    assert [level.shape[-3:] for level in levels] == [(12, 40, 300), (12, 20, 150)], levels
    assert tuple(options['axis_labels']) == ('z', 'y', 'x'), options
    assert all('micrometer' in str(unit) for unit in options['units']), options
    print(*[round(float(um), 6) for um in options['scale']])
names = image[1]['name']
assert names[0].endswith('probability') and image[1]['contrast_limits'][0] == [0.0, 1.0], image[1]
colors = labels[1]['colormap']
assert 1 in colors and colors[1] != colors[2], colors
";
    let maps = fixture.path(MAPS);
    let Some(printed) = python("napari_ome_zarr", script, &[maps.as_path()]) else { return };
    let info = fixture.run(&["info", &raw, "--json"]).json();
    let um = |axis: &str| (info["voxel_size_um"][axis].as_f64().unwrap() * 1e6).round() / 1e6;
    let size = ["z", "y", "x"].map(|axis| format!("{:?}", um(axis))).join(" ");
    let printed: Vec<&str> = printed.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit())).collect();
    assert_eq!(printed, [size.as_str(); 2]);
}

#[test]
fn segment_writes_labels_in_the_format_that_their_name_states() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("12,40,50", 4);
    fixture.run(&predict(&raw, "zarr", &["--format", "ome-zarr"])).ok();
    let segment = |out: &str| fixture.run(&["segment", MAPS, "--out", out, "--json"]).json()["format"].clone();
    for (out, format) in [
        ("l.tif", "tiff"),
        ("l.ome.tif", "tiff"),
        ("l.zarr", "ome_zarr"),
        ("l.ozx", "ome_zarr"),
        ("l.zarr.zip", "ome_zarr"),
        ("l.npy", "npy"),
        ("l_seg.npy", "cellpose"),
    ] {
        assert_eq!(segment(out), format, "{out}");
        assert_eq!(fixture.image(out), fixture.image("l.tif"), "{out}");
    }
    assert_eq!(segment("l.zip"), "roi_set");
    fixture.run(&["convert", "l.zip", "back.tif", "--like", &raw]).ok();
    assert_eq!(fixture.image("back.tif").samples().to_f32(), fixture.image("l.tif").samples().to_f32());
    fixture.fails(2, &["segment", MAPS, "--out", "l.jpg"], &["l.jpg", ".zarr", "_seg.npy"]);
    // It holds several objects; the labels in one file are read like any others.
    fixture.fails(3, &["segment", MAPS, "--out", "l.roi"], &["l.roi", "one object", ".zip"]);
    assert!(!fixture.path("l.roi").exists());
    fixture.run(&["measure", "l.ozx", "--out", "zip.csv"]).ok();
    fixture.run(&["measure", "l.zarr", "--out", "folder.csv"]).ok();
    assert_eq!(fixture.bytes("zip.csv"), fixture.bytes("folder.csv"));
    // An unchanged folder with labels of the same map is replaced, as a file is; any other folder only on request.
    assert_eq!(segment("l.zarr"), "ome_zarr");
    std::fs::write(fixture.path("l.zarr").join("mine.txt"), "notes").unwrap();
    fixture.fails(2, &["segment", MAPS, "--out", "l.zarr"], &["l.zarr", "--force"]);
    fixture.run(&["segment", MAPS, "--out", "l.zarr", "--force"]).ok();
    assert!(fixture.path("l.zarr.before-1/mine.txt").is_file(), "it is moved aside");
    fixture.fails(2, &["segment", MAPS, "--out", MAPS, "--force"], &["input"]);
    // Labels that have the name of a result are named if they stay beside the folder of a later prediction.
    fixture.run(&["segment", MAPS, "--out", "zarr/nuclei_4_raw_labels.tif"]).ok();
    let report = fixture.run(&predict(&raw, "zarr", &["--format", "ome-zarr", "--json"])).json();
    let notes = report["inputs"][0]["notes"].to_string();
    assert!(notes.contains("were kept") && notes.contains("nuclei_4_raw_labels.tif"), "{notes}");
    // A note says which of them is scored.
    let truth = raw.replace("_raw", "_labels");
    std::fs::create_dir(fixture.path("truth")).unwrap();
    std::fs::copy(fixture.path(&truth), fixture.path("truth/nuclei_4_labels.tif")).unwrap();
    let notes = fixture.run(&["evaluate", "--pred", "zarr", "--truth", "truth", "--json"]).json()["notes"].to_string();
    assert!(notes.contains("nuclei_4_raw_probability.zarr is not scored"), "{notes}");
    // Intensities that are scored as objects are noticed.
    let doubt = fixture.run(&["evaluate", "--pred", &raw, "--truth", &truth, "--json"]).json()["notes"].to_string();
    assert!(doubt.contains("may be an image of intensities") && doubt.contains("_raw.tif"), "{doubt}");
    assert!(fixture.leftovers().is_empty());
}

#[test]
fn images_that_a_later_prediction_leaves_out_of_a_folder_are_kept() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("12,40,50", 4);
    fixture.run(&predict(&raw, "r.zarr", &[])).ok();
    let (maps, labels) = (fixture.image("r.zarr"), fixture.labels("r.zarr/labels/objects"));
    let text = fixture.run(&predict(&raw, "r.zarr", &["--outputs", "maps"])).ok().stdout;
    assert!(text.contains("r.zarr.before-1"), "{text}");
    assert_eq!(fixture.labels("r.zarr.before-1/labels/objects"), labels);
    assert!(fixture.image("r.zarr") == maps && !fixture.path("r.zarr/labels").exists());
    let text = fixture.run(&predict(&raw, "r.zarr", &["--outputs", "labels"])).ok().stdout;
    assert!(text.contains("r.zarr.before-2"), "{text}");
    assert!(fixture.image("r.zarr.before-2") == maps && fixture.labels("r.zarr") == labels);
    // The same results are replaced.
    let text = fixture.run(&predict(&raw, "r.zarr", &["--outputs", "labels"])).ok().stdout;
    assert!(!text.contains("before-3"), "{text}");
}

#[test]
fn images_that_a_later_prediction_leaves_out_of_a_zip_are_kept() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("12,40,50", 4);
    // The same results are replaced.
    for _ in 0..2 {
        fixture.run(&predict(&raw, "r.ozx", &[])).ok();
        assert!(!fixture.path("r.ozx.before-1").exists());
    }
    let whole = fixture.bytes("r.ozx");
    let text = fixture.run(&predict(&raw, "r.ozx", &["--outputs", "maps"])).ok().stdout;
    assert!(text.contains("r.ozx.before-1"), "{text}");
    assert!(fixture.bytes("r.ozx.before-1") == whole, "it has the labels");
    let maps = fixture.bytes("r.ozx");
    let text = fixture.run(&predict(&raw, "r.ozx", &["--outputs", "labels"])).ok().stdout;
    assert!(text.contains("r.ozx.before-2"), "{text}");
    assert!(fixture.bytes("r.ozx.before-2") == maps);
    let text = fixture.run(&predict(&raw, "r.ozx", &["--outputs", "labels"])).ok().stdout;
    assert!(!text.contains("before-3") && fixture.leftovers().is_empty(), "{text}");
}

#[test]
fn a_folder_of_results_is_replaced_only_while_it_is_unchanged() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("12,40,50", 4);
    let zarr = ["--format", "ome-zarr"];
    fixture.run(&predict(&raw, "zarr", &zarr)).ok();
    let ran = fixture.run(&predict(&raw, "zarr", &[&zarr[..], &["--resume"]].concat())).ok();
    assert!(ran.stderr.contains("already exist") || ran.stdout.contains("already exist"), "{}", ran.stderr);
    fixture.run(&predict(&raw, "zarr", &zarr)).ok();
    assert_eq!(fixture.names("zarr").len(), 3, "the results of the first run are replaced");
    // The user adds a label image to the folder, as other programs do.
    std::fs::create_dir(fixture.path(MAPS).join("labels/mine")).unwrap();
    std::fs::write(fixture.path(MAPS).join("labels/mine/zarr.json"), "{}").unwrap();
    fixture.fails(2, &predict(&raw, "zarr", &zarr), &["labels/mine", "--force"]);
    assert!(fixture.path(MAPS).join("labels/mine/zarr.json").is_file());
    fixture.run(&predict(&raw, "zarr", &[&zarr[..], &["--force"]].concat())).ok();
    assert!(fixture.path(&format!("{MAPS}.before-1/labels/mine/zarr.json")).is_file(), "it is moved aside");
    assert!(!fixture.path(MAPS).join("labels/mine").exists());
    assert!(fixture.leftovers().is_empty());
}

#[test]
fn a_stack_whose_chunks_were_written_again_is_predicted_again() {
    let fixture = Fixture::new();
    let [first, second] = [4, 5].map(|seed| fixture.nuclei("12,40,50", seed));
    fixture.run(&["convert", &first, "stack.zarr"]).ok();
    fixture.run(&["convert", &second, "other.zarr"]).ok();
    // A crop that keeps everything: also steps between the file and the prediction lead to its chunks.
    let more = ["--outputs", "labels", "--preprocess", "crop:z=0-12", "--resume", "--json"];
    let arguments = predict("stack.zarr", "out", &more);
    let is_skipped = || fixture.run(&arguments).json()["inputs"][0]["resumed"].clone();
    assert_eq!([is_skipped(), is_skipped()], [false, true]);
    // A program changes voxels in place: neither the folder of the stack nor its metadata change.
    std::fs::write(fixture.path("stack.zarr/0/c/0/0/0"), fixture.bytes("other.zarr/0/c/0/0/0")).unwrap();
    let shown = fixture.run(&["provenance", "out/stack_provenance.json"]).ok().stdout;
    assert!(shown.contains("stack.zarr") && shown.contains("it was recorded"), "{shown}");
    assert_eq!([is_skipped(), is_skipped()], [false, true]);
    fixture.run(&predict("other.zarr", "expected", &["--outputs", "labels"])).ok();
    assert_eq!(fixture.image("out/stack_labels.zarr"), fixture.image("expected/other_labels.zarr"));
}

#[test]
fn an_output_that_ends_in_zarr_is_the_ome_zarr_folder() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("12,40,50", 4);
    fixture.run(&predict(&raw, "seg.ome.zarr", &["--outputs", "labels,table"])).ok();
    assert!(fixture.path("seg_objects.csv").is_file() && fixture.path("seg_provenance.json").is_file());
    fixture.run(&predict(&raw, "tiff", &["--outputs", "labels"])).ok();
    let labels = fixture.image("tiff/nuclei_4_raw_labels.tif");
    assert_eq!(fixture.image("seg.ome.zarr"), labels, "without maps, the image is the label image");
    fixture.run(&["predict", "--rerun", "seg_provenance.json", "--out", "again"]).ok();
    assert_eq!(fixture.image("again/nuclei_4_raw_labels.zarr"), labels, "a rerun keeps the format");
    // The results of an OME-Zarr folder are OME-Zarr, unless another format is requested.
    fixture.run(&["convert", &raw, "stack.zarr", "--labels", &raw.replace("_raw", "_labels")]).ok();
    fixture.run(&predict("stack.zarr", "auto", &["--outputs", "labels"])).ok();
    assert_eq!(fixture.image("auto/stack_labels.zarr"), labels);
    // The preprocessed stack is TIFF in any case; a rerun still writes OME-Zarr.
    let steps = ["--outputs", "labels,preprocessed", "--preprocess", "crop:z=0-8"];
    fixture.run(&predict("stack.zarr", "steps", &steps)).ok();
    fixture.run(&["predict", "--rerun", "steps/stack_provenance.json", "--out", "steps_again"]).ok();
    assert!(fixture.path("steps_again/stack_preprocessed.ome.tif").is_file());
    assert_eq!(fixture.image("steps_again/stack_labels.zarr"), fixture.image("steps/stack_labels.zarr"));
    // Another image of the same file does not replace its results.
    fixture.run(&predict("stack.zarr", "auto", &["--outputs", "labels", "--series", "1"])).ok();
    assert!(fixture.path("auto/stack_s1_labels.zarr").is_dir());
    assert_eq!(fixture.image("auto/stack_labels.zarr"), labels);
    // Its maps are segmented, whichever series of the stack they belong to, and not the labels beside them.
    fixture.run(&predict("stack.zarr", "maps", &["--series", "1"])).ok();
    let map = "maps/stack_s1_probability.zarr";
    fixture.run(&["segment", map, "--out", "first.tif"]).ok();
    fixture.run(&["segment", map, "--series", "1", "--out", "chosen.tif"]).ok();
    assert_eq!(fixture.image("chosen.tif"), fixture.image("first.tif"));
    fixture.run(&predict("stack.zarr", "as_tiff", &["--outputs", "labels", "--format", "tiff"])).ok();
    assert_eq!(fixture.image("as_tiff/stack_labels.tif"), labels);
    fixture.fails(2, &predict("stack.zarr", "stack.zarr", &["--force"]), &["input"]);
    fixture.fails(2, &predict(&raw, "x.zarr", &["--format", "tiff"]), &["x.zarr", "tiff"]);
    fixture.fails(2, &predict(&raw, "x.zarr", &["--outputs", "table"]), &["x.zarr", "maps or labels"]);
    fixture.fails(2, &predict(&raw, "x", &["--format", "hdf5"]), &["hdf5", "auto, tiff, ome-zarr"]);
    let two = ["predict", raw.as_str(), "stack.zarr", "--model", "nuclei-dog", "--out", "x.zarr"];
    fixture.fails(2, &two, &["x.zarr", "one stack"]);
    assert!(!fixture.path("x.zarr").exists() && fixture.leftovers().is_empty());
}

#[test]
fn an_output_that_ends_in_ozx_is_one_file_with_maps_and_labels() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("12,40,50", 4);
    fixture.run(&predict(&raw, "tiff", &[])).ok();
    let report = fixture.run(&predict(&raw, "out/seg.ozx", &["--json"])).json();
    assert_eq!(fixture.names("out"), ["seg.ozx", "seg_objects.csv", "seg_provenance.json"]);
    let written = serde_json::json!(["out/seg.ozx", "out/seg_objects.csv", "out/seg_provenance.json"]);
    assert_eq!(report["inputs"][0]["outputs"], written, "{report:#}");
    assert_eq!(fixture.image("out/seg.ozx"), fixture.image("tiff/nuclei_4_raw_probability.tif"));
    assert_eq!(fixture.bytes("out/seg_objects.csv"), fixture.bytes("tiff/nuclei_4_raw_objects.csv"));
    fixture.run(&["convert", "out/seg.ozx", "labels.tif", "--series", "1"]).ok();
    assert_eq!(fixture.labels("labels.tif"), fixture.labels("tiff/nuclei_4_raw_labels.tif"));
    // It is scored, measured and meshed by its labels, which a note says, unless a series is chosen.
    let truth = raw.replace("_raw", "_labels");
    let evaluate = |prediction: &str, options: &[&str]| {
        let command = [&["evaluate", "--pred", prediction, "--truth", &truth, "--json"][..], options].concat();
        fixture.run(&command).json()
    };
    let label_scores = evaluate("tiff/nuclei_4_raw_labels.tif", &[]);
    let zip_scores = evaluate("out/seg.ozx", &[]);
    assert_eq!(zip_scores["instances"], label_scores["instances"]);
    let note = zip_scores["notes"].to_string();
    assert!(note.contains("the label image labels/objects is scored"), "{zip_scores:#}");
    assert!(note.contains("--series with its name, seg, chooses that image"), "{zip_scores:#}");
    // Numbers are those of the series of the stack, of which it is the result.
    for series in ["1", "3"] {
        assert_eq!(evaluate("out/seg.ozx", &["--series", series])["instances"], label_scores["instances"]);
    }
    let map_scores = evaluate("out/seg.ozx", &["--series", "seg"]);
    assert!(
        map_scores["instances"].as_array().unwrap().is_empty() && map_scores["regression"].is_object(),
        "{map_scores:#}"
    );
    fixture.run(&["measure", "out/seg.ozx", "--intensities", &raw, "--out", "measured.csv"]).ok();
    assert_eq!(fixture.bytes("measured.csv"), fixture.bytes("tiff/nuclei_4_raw_objects.csv"));
    for (labels, out) in [("out/seg.ozx", "zip.stl"), ("labels.tif", "tiff.stl")] {
        fixture.run(&["mesh", labels, "--objects", "1", "--out", out]).ok();
    }
    assert!(fixture.bytes("zip.stl") == fixture.bytes("tiff.stl"));
    fixture.run(&["convert", &raw, "with.zarr", "--labels", "out/seg.ozx"]).ok();
    assert_eq!(fixture.labels("with.zarr/labels/seg"), fixture.labels("labels.tif"));
    // It is a result: the same job skips it with --resume, replaces it without, and does not predict it.
    let ran = fixture.run(&predict(&raw, "out/seg.ozx", &["--resume"])).ok();
    assert!(ran.stderr.contains("already exist") || ran.stdout.contains("already exist"), "{}", ran.stderr);
    fixture.run(&predict(&raw, "out/seg.ozx", &[])).ok();
    std::fs::copy(fixture.path(&raw), fixture.path("out/stack.tif")).unwrap();
    let report = fixture.run(&predict("out", "of_folder", &["--outputs", "labels", "--json"])).json();
    assert_eq!(report["inputs"].as_array().unwrap().len(), 1, "{report:#}");
    // Unless it was changed.
    let changed = [fixture.bytes("out/seg.ozx"), vec![0]].concat();
    std::fs::write(fixture.path("out/seg.ozx"), &changed).unwrap();
    fixture.fails(2, &predict(&raw, "out/seg.ozx", &[]), &["seg.ozx", "--force"]);
    assert_eq!(fixture.bytes("out/seg.ozx"), changed);
    fixture.run(&predict(&raw, "out/seg.ozx", &["--force"])).ok();
    assert_eq!(fixture.image("out/seg.ozx"), fixture.image("tiff/nuclei_4_raw_probability.tif"));
    // A rerun has the same format, and without maps, the image is the label image.
    fixture.run(&["predict", "--rerun", "out/seg_provenance.json", "--out", "again"]).ok();
    assert_eq!(fixture.image("again/nuclei_4_raw_probability.zarr"), fixture.image("out/seg.ozx"));
    fixture.run(&["predict", "--rerun", "out/seg_provenance.json", "--out", "again.zarr.zip"]).ok();
    assert_eq!(fixture.image("again.zarr.zip"), fixture.image("out/seg.ozx"));
    fixture.run(&predict(&raw, "l.zarr.zip", &["--outputs", "labels"])).ok();
    assert_eq!(fixture.labels("l.zarr.zip"), fixture.labels("labels.tif"));
    fixture.fails(2, &predict("l.zarr.zip", "l.zarr.zip", &["--force"]), &["input"]);
    fixture.fails(2, &predict(&raw, "x.ozx", &["--format", "tiff"]), &["x.ozx", "tiff"]);
    fixture.fails(2, &predict(&raw, "x.ozx", &["--outputs", "table"]), &["x.ozx", "maps or labels"]);
    fixture.fails(2, &["predict", &raw, "labels.tif", "--out", "x.ozx"], &["x.ozx", "one stack"]);
    std::fs::create_dir(fixture.path("folder.ozx")).unwrap();
    fixture.fails(2, &predict(&raw, "folder.ozx", &["--force"]), &["folder.ozx", "is a folder"]);
    assert!(!fixture.path("x.ozx").exists() && fixture.leftovers().is_empty());
}

#[test]
fn results_of_a_crop_lie_where_it_lies_in_the_stack() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("12,40,50", 4);
    let size = fixture.run(&["info", &raw, "--json"]).json()["voxel_size_um"].clone();
    let um = |axis: &str, voxels: f64| voxels * size[axis].as_f64().unwrap();
    let is_at = |found: &[f64], expected: [f64; 3]| {
        assert_eq!(found.len(), 3);
        found.iter().zip(expected).for_each(|(a, b)| assert!((a - b).abs() < 1e-9, "{found:?}, expected {expected:?}"));
    };
    // The translation along Z, Y, X after the scale of the only level; that along the channels of maps comes first.
    let translation = |folder: &str| {
        let root: serde_json::Value = serde_json::from_slice(&fixture.bytes(&format!("{folder}/zarr.json"))).unwrap();
        let level = &root["attributes"]["ome"]["multiscales"][0]["datasets"][0]["coordinateTransformations"];
        let all = level[1]["translation"].as_array().unwrap_or_else(|| panic!("{folder}: {level}"));
        all[all.len() - 3..].iter().map(|v| v.as_f64().unwrap()).collect::<Vec<f64>>()
    };
    fixture.run(&["convert", &raw, "part.zarr", "--preprocess", "gaussian:sigma=0.5,crop:z=2-12:y=8-40"]).ok();
    is_at(&translation("part.zarr"), [um("z", 2.0), um("y", 8.0), 0.0]);
    // A crop of the crop, as OME-Zarr and as OME-TIFF.
    let steps = ["--outputs", "maps,labels,preprocessed", "--preprocess", "crop:y=4-32:x=3-50"];
    fixture.run(&predict("part.zarr", "o", &steps)).ok();
    let origin = [um("z", 2.0), um("y", 12.0), um("x", 3.0)];
    for folder in ["o/part_probability.zarr", "o/part_probability.zarr/labels/objects"] {
        is_at(&translation(folder), origin);
    }
    let tiff = String::from_utf8_lossy(&fixture.bytes("o/part_preprocessed.ome.tif")).into_owned();
    let plane = tiff.split("<Plane TheZ=\"0\"").nth(1).unwrap().split("/>").next().unwrap().to_owned();
    let position = |axis: &str| {
        assert!(plane.contains(&format!("Position{axis}Unit=\"µm\"")), "{plane}");
        let text = plane.split(&format!("Position{axis}=\"")).nth(1).unwrap().split('"').next().unwrap().to_owned();
        text.parse::<f64>().unwrap()
    };
    is_at(&["Z", "Y", "X"].map(position), origin);
    // Labels of its map, as OME-TIFF by the name of the file, lie there too; ImageJ TIFF stores no position.
    for (name, format) in [("l.ome.tif", "ome-tiff"), ("l.tif", "imagej")] {
        fixture.run(&["segment", "o/part_probability.zarr", "--out", name]).ok();
        let info = fixture.run(&["info", name, "--json"]).json();
        assert_eq!(info["format"], format, "{name}");
    }
    assert_eq!(fixture.labels("l.ome.tif"), fixture.labels("l.tif"));
    let shown = fixture.run(&["info", "l.ome.tif", "--json"]).json()["origin_um"].clone();
    is_at(&serde_json::from_value::<Vec<f64>>(shown).unwrap(), origin);
    // A stack at no particular place has no translation.
    fixture.run(&["convert", &raw, "whole.zarr"]).ok();
    assert!(!String::from_utf8_lossy(&fixture.bytes("whole.zarr/zarr.json")).contains("translation"));
    assert!(fixture.image("o/part_preprocessed.ome.tif").shape() == [10, 28, 47]);
}

#[test]
fn a_prediction_that_is_made_again_with_another_name_says_why_it_differs() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,40,40", 4);
    fixture.run(&predict(&raw, "out/seg.ozx", &[])).ok();
    for (out, is_identical) in [("again/seg.ozx", true), ("again/other.ozx", false), ("folder", false)] {
        let report = fixture.run(&["provenance", "out/seg.ozx", "--rerun", "--out", out, "--json"]).json();
        assert_eq!(report["outputs"][0]["identical"], is_identical, "{report:#}");
        assert_eq!(report["differences"].to_string().contains("states its name"), !is_identical, "{report:#}");
    }
    let ran = fixture.run(&["provenance", "out/seg.ozx", "--rerun", "--out", "third.ozx"]).ok();
    assert!(ran.stderr.contains("states its name"), "{}", ran.stderr);
}

#[test]
fn a_folder_whose_copy_was_interrupted_is_noted() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("12,40,50", 1);
    let values: Vec<u16> = fixture.image(&raw).samples().to_f32().iter().map(|value| *value as u16).collect();
    fixture.write("times.tif", "TZYX", &[2, 12, 40, 50], values.repeat(2));
    fixture.run(&["convert", "times.tif", "whole.zarr"]).ok();
    fixture.run(&["convert", "times.tif", "part.zarr"]).ok();
    std::fs::remove_dir_all(fixture.path("part.zarr/0/c/1")).unwrap();
    let noted = |input: &str, out: &str| {
        let ran = fixture.run(&["convert", input, out]).ok();
        ran.stderr.contains("files of its chunks are absent") && ran.stderr.contains("copy the image again")
    };
    assert!(!noted("whole.zarr", "whole.tif") && noted("part.zarr", "part.tif"));
    let first = ["--outputs", "labels", "--time", "0", "--json"];
    let report = fixture.run(&predict("part.zarr", "o", &first)).json();
    assert!(report["inputs"][0]["notes"].to_string().contains("files of its chunks are absent"), "{report:#}");
}
