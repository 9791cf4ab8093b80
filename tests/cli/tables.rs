//! Object tables of `segment` and `measure` in all their forms, read by Python.

use crate::common::{Fixture, python};
use serde_json::Value;

/// The table in the form of AnnData has the rows and numbers of the plain one, read by Python's csv module.
#[test]
fn tables_for_anndata_have_named_rows_and_numbers_only() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,40,40", 1);
    fixture.run(&["segment", &raw, "--out", "a.tif", "--table", "a.csv"]).ok();
    let anndata = ["--table", "b.csv", "--table-format", "anndata"];
    fixture.run(&[&["segment", raw.as_str(), "--out", "b.tif"][..], &anndata].concat()).ok();
    let script = "
import csv, sys
plain, named = (list(csv.reader(open(path, newline=''))) for path in sys.argv[1:])
assert named[0] == ['object'] + plain[0][1:], named[0]
assert [row[0] for row in named[1:]] == ['object_' + row[0] for row in plain[1:]]
assert [list(map(float, row[1:])) for row in named[1:]] == [list(map(float, row[1:])) for row in plain[1:]]
print(len(named) - 1)";
    if let Some(printed) = python("csv", script, &[&fixture.path("a.csv"), &fixture.path("b.csv")]) {
        assert!(printed.trim().parse::<usize>().unwrap() > 0);
    }
    let script = "
import csv, sys
import numpy
from anndata.io import read_csv
plain = list(csv.reader(open(sys.argv[1], newline='')))
found = read_csv(sys.argv[2], first_column_names=True)
assert list(found.var_names) == plain[0][1:], found.var_names
assert list(found.obs_names) == ['object_' + row[0] for row in plain[1:]], found.obs_names
expected = numpy.array([[float(cell) for cell in row[1:]] for row in plain[1:]], 'float32')
assert numpy.array_equal(found.X, expected), found.X
print(found.n_obs)";
    if let Some(printed) = python("anndata, numpy", script, &[&fixture.path("a.csv"), &fixture.path("b.csv")]) {
        assert!(printed.trim().parse::<usize>().unwrap() > 0);
    }
    // A measurement of the same labels has the same table in this form.
    let measure = ["measure", "a.tif", "--intensities", &raw, "--out", "m.csv", "--table-format", "anndata"];
    fixture.run(&measure).ok();
    assert_eq!(fixture.bytes("m.csv"), fixture.bytes("b.csv"));
    fixture.fails(2, &["segment", &raw, "--out", "c.tif", "--table-format", "anndata"], &["--table"]);
    // A misspelled extension, and options that the method does not use.
    fixture.fails(2, &["segment", &raw, "--out", "c.tif", "--table", "c.parq"], &["c.parq", ".csv or .parquet"]);
    for option in [["--height", "map"], ["--seed-height", "2"]] {
        let components = ["segment", &raw, "--out", "c.tif", "--method", "components"];
        fixture.fails(2, &[&components[..], &option].concat(), &[option[0], "watershed"]);
    }
}

/// Parquet tables have the columns and numbers of the CSV, read by pyarrow; measuring the labels gives the same table.
#[test]
fn tables_are_parquet_if_their_name_says_so() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,40,40", 1);
    let segment = |out: &str, table: &str| {
        fixture.run(&["segment", &raw, "--out", out, "--intensities", &raw, "--table", table]).ok();
    };
    segment("a.tif", "a.csv");
    segment("b.tif", "b.parquet");
    for table in ["c.csv", "c.parquet"] {
        let report = fixture.run(&["measure", "a.tif", "--intensities", &raw, "--out", table, "--json"]).json();
        assert_eq!(report["objects"].as_u64(), Some(fixture.table("a.csv").len() as u64 - 1));
    }
    assert_eq!(fixture.table("c.csv"), fixture.table("a.csv"));
    assert_eq!(fixture.bytes("c.parquet"), fixture.bytes("b.parquet"));
    let script = "
import csv, sys
import pyarrow.parquet
plain = list(csv.reader(open(sys.argv[1], newline='')))
table = pyarrow.parquet.read_table(sys.argv[2])
assert table.column_names == plain[0], table.column_names
whole = {'label', 'voxels', *(f'bbox_{axis}{end}' for axis in 'zyx' for end in '01')}
types = {name: str(table.schema.field(name).type) for name in table.column_names}
assert types == {name: 'int64' if name in whole else 'double' for name in plain[0]}, types
rows = list(zip(*(table[name].to_pylist() for name in table.column_names)))
assert [list(row) for row in rows] == [[float(cell) for cell in row] for row in plain[1:]]
print(len(rows))";
    let paths = [fixture.path("a.csv"), fixture.path("b.parquet")];
    if let Some(printed) = python("pyarrow.parquet", script, &[&paths[0], &paths[1]]) {
        assert!(printed.trim().parse::<usize>().unwrap() > 0);
    }
    // A file that was not written for these labels is not replaced.
    fixture.fails(2, &["measure", "a.tif", "--intensities", &raw, "--out", "c.csv"], &["c.csv", "--force"]);
    fixture.run(&["measure", "a.tif", "--intensities", &raw, "--out", "c.csv", "--force"]).ok();
    let anndata = ["--table", "d.parquet", "--table-format", "anndata"];
    fixture.fails(2, &[&["segment", raw.as_str(), "--out", "d.tif"][..], &anndata].concat(), &["d.parquet", ".csv"]);
    assert!(!fixture.path("d.tif").exists());
}

/// Labels of NumPy, SciPy and scikit-image are signed integers of 32 or 64 bits.
#[test]
fn labels_of_all_integer_types_are_measured_and_meshed() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,40,40", 1);
    let size = ["--voxel-size", "1.75,0.8,0.8"];
    let measure = |labels: &'static str, out: &'static str| {
        [&["measure", labels, "--intensities", raw.as_str(), "--out", out][..], &size].concat()
    };
    let mesh = |labels: &'static str, out: &'static str| [&["mesh", labels, "--out", out][..], &size].concat();
    fixture.run(&measure("sim/nuclei_1_labels.tif", "a.csv")).ok();
    fixture.run(&mesh("sim/nuclei_1_labels.tif", "a.stl")).ok();
    let narrow: Vec<i32> =
        fixture.labels("sim/nuclei_1_labels.tif").iter().map(|label| i32::try_from(*label).unwrap()).collect();
    let wide: Vec<i64> = narrow.iter().map(|label| i64::from(*label)).collect();
    let mut negative = narrow.clone();
    negative[0] = -1;
    let mut large = wide.clone();
    large[0] = 1 << 40;
    fixture.write("narrow.npy", "ZYX", &[6, 40, 40], narrow);
    fixture.write("wide.npy", "ZYX", &[6, 40, 40], wide);
    fixture.write("negative.npy", "ZYX", &[6, 40, 40], negative);
    fixture.write("large.npy", "ZYX", &[6, 40, 40], large);
    for (labels, table, surfaces) in [("narrow.npy", "b.csv", "b.stl"), ("wide.npy", "c.csv", "c.stl")] {
        fixture.run(&measure(labels, table)).ok();
        assert_eq!(fixture.table(table), fixture.table("a.csv"));
        fixture.run(&mesh(labels, surfaces)).ok();
        assert!(fixture.bytes(surfaces) == fixture.bytes("a.stl"), "{surfaces}");
    }
    for (labels, value) in [("negative.npy", "-1"), ("large.npy", "1099511627776")] {
        fixture.fails(3, &measure(labels, "d.csv"), &[labels, value, "not a label"]);
        fixture.fails(3, &mesh(labels, "d.stl"), &[labels, value, "not a label"]);
    }
    assert!(!fixture.path("d.csv").exists() && !fixture.path("d.stl").exists());
}

#[test]
fn measuring_a_time_series_of_labels_in_one_stack_says_what_is_measured() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,40,40", 1);
    let labels = fixture.integers("sim/nuclei_1_labels.tif");
    fixture.write("series.tif", "TZYX", &[2, 6, 40, 40], [&labels[..], &labels].concat());
    let report = fixture.run(&["measure", "series.tif", "--intensities", &raw, "--out", "t.csv", "--json"]).json();
    let notes: Vec<&str> = report["notes"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(
        notes.iter().any(|note| note.contains("2 time points") && note.contains("the first time point")),
        "{notes:?}"
    );
}

#[test]
fn a_series_that_the_measured_label_image_does_not_have_is_refused() {
    let fixture = Fixture::new();
    let labels = fixture.write("labels.tif", "ZYX", &[2, 8, 8], vec![1u16; 128]);
    for series in ["2", "left"] {
        fixture.fails(2, &["measure", &labels, "--series", series, "--out", "t.csv"], &["labels.tif", "no series"]);
    }
    assert!(!fixture.path("t.csv").exists());
    fixture.run(&["measure", &labels, "--series", "0", "--out", "t.csv"]).ok();
    // Of a file with several, the label image is one.
    let stack = fixture.write("stack.tif", "ZYX", &[2, 8, 8], vec![9u16; 128]);
    fixture.run(&["convert", &stack, "both.zarr", "--labels", &labels]).ok();
    fixture.run(&["measure", "both.zarr", "--series", "1", "--out", "of_both.csv"]).ok();
    assert_eq!(fixture.table("of_both.csv").len(), 2);
}

#[test]
fn the_model_of_a_map_finds_the_objects_of_its_prediction() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("14,80,96", 1);
    let predict =
        ["predict", &raw, "--model", "nuclei", "--device", "cpu", "--out", "o", "--voxel-size", "1.75,0.8,0.8"];
    fixture.run(&[&predict[..], &["--diameter", "15"]].concat()).ok();
    let expected = fixture.image("o/nuclei_1_raw_labels.tif");
    let map = "o/nuclei_1_raw_probability.tif";
    std::fs::copy(fixture.path(map), fixture.path("alone.tif")).unwrap();
    let segment_with =
        |model: &str, out: &str| fixture.run(&["segment", map, "--model", model, "--out", out]).ok().stderr;
    assert!(!segment_with("nuclei", "a.tif").contains("another model"));
    let other_stderr = segment_with("cells", "other.tif");
    assert!(other_stderr.contains("another model, nuclei") && other_stderr.contains("--model cells"), "{other_stderr}");
    let other = ["segment", map, "--model", "cells", "--diameter", "15", "--out", "scaled.tif"];
    assert!(fixture.run(&other).ok().stderr.contains("another model, nuclei"), "also with a given diameter");
    let given = ["segment", "alone.tif", "--model", "nuclei", "--diameter", "15", "--out", "b.tif"];
    let unscaled = "those for objects of 12 µm";
    assert!(!fixture.run(&given).ok().stderr.contains(unscaled), "the diameter is given");
    let unknown = fixture.run(&["segment", "alone.tif", "--model", "nuclei", "--out", "u.tif"]).ok().stderr;
    assert!(unknown.contains(unscaled) && unknown.contains("--diameter"), "{unknown}");
    assert!(!segment_with("nuclei", "r.tif").contains(unscaled), "the diameter is recorded");
    assert!(fixture.image("a.tif") == expected && fixture.image("b.tif") == expected, "other objects");
    // Options that are given take precedence.
    fixture.run(&["segment", map, "--model", "nuclei", "--threshold", "0.99", "--out", "c.tif"]).ok();
    assert!(fixture.image("c.tif") != expected, "the threshold has no effect");
    fixture.fails(2, &["segment", map, "--diameter", "15", "--out", "d.tif"], &["--model"]);
    fixture.fails(
        2,
        &["segment", map, "--model", "labelfree-nuclei", "--out", "d.tif"],
        &["labelfree-nuclei", "stain"],
    );
    fixture.fails(2, &["segment", map, "--model", "nuclei", "--diameter", "auto", "--out", "d.tif"], &["--diameter"]);
}

#[test]
fn a_map_without_a_voxel_size_is_segmented_with_that_of_its_model() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    fixture.write("plain.tif", "ZYX", &[8, 48, 48], fixture.integers(&raw));
    fixture.run(&["export", "nuclei-dog", "--out", "net.onnx"]).ok();
    let import = ["import", "net.onnx", "--out", "m", "--task", "segmentation", "--voxel-size", "2,1,1"];
    fixture.run(&import).ok();
    fixture.run(&["predict", "plain.tif", "--model", "m", "--device", "cpu", "--out", "o"]).ok();
    let expected = fixture.table("o/plain_objects.csv");
    assert!(expected.len() > 1, "there are objects");
    let segment =
        ["segment", "o/plain_probability.tif", "--model", "m", "--out", "l.tif", "--table", "t.csv", "--force"];
    let table_with = |more: &[&str]| {
        fixture.run(&[&segment[..], &["--intensities", "plain.tif"], more].concat()).ok();
        fixture.table("t.csv")
    };
    assert_eq!(table_with(&[]), expected);
    assert_ne!(table_with(&["--voxel-size", "1,1,1"]), expected, "a given size takes precedence");
}

#[test]
fn the_record_of_maps_whose_name_was_chosen_is_used_when_they_are_segmented() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    let second = fixture.integers(&raw);
    let first: Vec<u16> = second.iter().map(|value| value / 2).collect();
    fixture.write("t.tif", "TZYX", &[2, 8, 48, 48], [&first[..], &second].concat());
    for name in ["res.zarr", "res.ozx"] {
        std::fs::create_dir_all(fixture.path("o")).unwrap();
        let out = format!("o/{name}");
        let predict = ["predict", "t.tif", "--time", "1", "--model", "nuclei-dog", "--out", &out];
        fixture.run(&[&predict[..], &["--voxel-size", "1,0.5,0.5", "--diameter", "7"]].concat()).ok();
        let segment = ["segment", &out, "--model", "nuclei-dog", "--intensities", "t.tif", "--out", "l.tif"];
        fixture.run(&[&segment[..], &["--table", "t.csv", "--force"]].concat()).ok();
        let mut expected = fixture.table("o/res_objects.csv");
        // Only a series has a column of the time point.
        expected.iter_mut().for_each(|row| assert!(["time", "1"].contains(&row.remove(0).as_str()), "{name}"));
        assert!(expected.len() > 1, "there are objects");
        assert_eq!(fixture.table("t.csv"), expected, "{name}");
        std::fs::remove_dir_all(fixture.path("o")).unwrap();
    }
}

#[test]
fn the_model_of_a_map_without_a_voxel_size_finds_the_objects_of_its_prediction() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("14,80,96", 1);
    fixture.write("plain.tif", "ZYX", &[14, 80, 96], fixture.integers(&raw));
    let predict = ["predict", "plain.tif", "--model", "nuclei", "--device", "cpu", "--out", "o", "--json"];
    let report = fixture.run(&predict).json();
    let recorded = &report["inputs"][0]["diameter"];
    let spacing = recorded["voxel"][0].as_f64().unwrap();
    assert!(spacing > 1.0, "slices are as far apart as pixels: {spacing}");
    let segment = ["segment", "o/plain_probability.tif", "--model", "nuclei", "--out", "a.tif", "--table", "a.csv"];
    let report = fixture.run(&[&segment[..], &["--intensities", "plain.tif", "--json"]].concat()).json();
    assert!(report["notes"].to_string().contains("is assumed, as in the prediction"), "{report}");
    assert!(fixture.image("a.tif") == fixture.image("o/plain_labels.tif"), "other objects");
    assert_eq!(fixture.table("a.csv"), fixture.table("o/plain_objects.csv"));
    // A diameter replaces the recorded one, and nothing else.
    let diameter = recorded["diameter"].as_f64().unwrap().to_string();
    let report = fixture.run(&[&segment[..], &["--diameter", &diameter, "--force", "--json"]].concat()).json();
    assert!((report["voxel_um"][0].as_f64().unwrap() - spacing).abs() < 1e-9, "{report}");
    assert!(fixture.image("a.tif") == fixture.image("o/plain_labels.tif"), "objects of other voxels");
    // Its labels have the lengths, volumes and surfaces of the prediction, too, unless a size is given.
    let labels = "o/plain_labels.tif";
    let measure = ["measure", labels, "--intensities", "plain.tif", "--out", "m.csv", "--force"];
    fixture.run(&measure).ok();
    assert_eq!(fixture.table("m.csv"), fixture.table("o/plain_objects.csv"));
    fixture.run(&[&measure[..], &["--voxel-size", "1,1,1"]].concat()).ok();
    assert_ne!(fixture.table("m.csv"), fixture.table("o/plain_objects.csv"));
    let mesh = |labels: &str, more: &[&str]| {
        fixture.run(&[&["mesh", labels, "--objects", "1", "--out", "m.stl", "--force"][..], more].concat()).ok();
        fixture.bytes("m.stl")
    };
    std::fs::copy(fixture.path(labels), fixture.path("alone.tif")).unwrap();
    let size = format!("{spacing},1,1");
    let expected = mesh("alone.tif", &["--voxel-size", &size]);
    assert!(mesh(labels, &[]) == expected, "other voxels");
    assert!(mesh("alone.tif", &[]) != expected, "without the record, the spacing is unknown");
}

#[test]
fn labels_are_measured_without_a_stack_and_at_all_their_time_points() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,40,40", 1);
    let labels = "sim/nuclei_1_labels.tif";
    fixture.run(&["measure", labels, "--intensities", &raw, "--out", "full.csv"]).ok();
    fixture.run(&["measure", labels, "--out", "shapes.csv"]).ok();
    let (full, shapes) = (fixture.table("full.csv"), fixture.table("shapes.csv"));
    let has_intensities = |name: &String| ["mean_", "max_", "sum_"].iter().any(|start| name.starts_with(start));
    assert!(shapes.len() > 1 && full[0].iter().filter(|name| has_intensities(name)).count() == 3, "{full:?}");
    let kept: Vec<usize> = (0..full[0].len()).filter(|column| !has_intensities(&full[0][*column])).collect();
    let expected: Vec<Vec<String>> =
        full.iter().map(|row| kept.iter().map(|column| row[*column].clone()).collect()).collect();
    assert_eq!(shapes, expected);
    // The second time point has no objects in the first row of slices.
    let labels = fixture.integers(labels);
    let mut later = labels.clone();
    later[..40 * 40].fill(0);
    fixture.write("series.tif", "TZYX", &[2, 6, 40, 40], [&labels[..], &later].concat());
    let size = ["--voxel-size", "1,0.4,0.4"];
    let measure = |out: &str, more: &[&str]| {
        fixture.run(&[&["measure", "series.tif", "--out", out][..], &size, more].concat()).ok().stdout
    };
    let whole = measure("whole.csv", &[]);
    assert!(!whole.contains("only time point"), "{whole}");
    let rows = fixture.table("whole.csv");
    let times: Vec<&str> = rows[1..].iter().map(|row| row[0].as_str()).collect();
    assert!(rows[0][0] == "time" && times.contains(&"0") && times.contains(&"1"), "{rows:?}");
    assert!(measure("second.csv", &["--time", "1"]).contains("only time point 1 is measured"));
    let second: Vec<&Vec<String>> = rows[1..].iter().filter(|row| row[0] == "1").collect();
    assert_eq!(fixture.table("second.csv")[1..].iter().collect::<Vec<_>>(), second);
}

#[test]
fn measuring_a_stack_in_place_of_its_labels_is_noted() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,40,40", 1);
    let measured = |labels: &str| {
        fixture.run(&["measure", labels, "--intensities", &raw, "--out", "t.csv", "--force"]).ok().stdout
    };
    let swapped = measured(&raw);
    assert!(swapped.contains("background") && swapped.contains("give the label image"), "{swapped}");
    let right = measured("sim/nuclei_1_labels.tif");
    assert!(!right.contains("background"), "{right}");
}

/// The tables of a prediction have the rows and columns of its CSV in every form.
#[test]
fn predictions_write_tables_in_the_form_that_is_requested() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("16,64,64", 1);
    let predict = |out: &str, options: &[&str]| {
        let on = ["predict", &raw, "--model", "nuclei-dog", "--device", "cpu", "--out", out, "--outputs", "table"];
        fixture.run(&[&on[..], &["--json"], options].concat()).json()
    };
    predict("csv", &[]);
    let plain = fixture.table("csv/nuclei_1_raw_objects.csv");
    assert!(plain.len() > 1);
    predict("anndata", &["--table-format", "anndata"]);
    let named = fixture.table("anndata/nuclei_1_raw_objects.csv");
    assert_eq!(named.len(), plain.len());
    for (i, (named, plain)) in named.iter().zip(&plain).enumerate() {
        let name = if i == 0 { "object".to_owned() } else { format!("object_{}", plain[0]) };
        assert_eq!((&named[0], &named[1..]), (&name, &plain[1..]));
    }
    let report = predict("parquet", &["--table-format", "parquet"]);
    let outputs = report["inputs"][0]["outputs"].as_array().unwrap();
    let is_table = |path: &Value| path.as_str().unwrap().ends_with("nuclei_1_raw_objects.parquet");
    assert!(outputs.iter().any(is_table), "{report:#}");
    let bytes = fixture.bytes("parquet/nuclei_1_raw_objects.parquet");
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
    let label = |row: &Vec<String>| row[0].parse::<f64>().unwrap();
    let script = "
import sys
import pyarrow.parquet
table = pyarrow.parquet.read_table(sys.argv[1])
print(table.num_columns, *table['label'].to_pylist())";
    let written = fixture.path("parquet/nuclei_1_raw_objects.parquet");
    if let Some(printed) = python("pyarrow.parquet", script, &[&written]) {
        let found: Vec<f64> = printed.split_whitespace().map(|word| word.parse().unwrap()).collect();
        let labels: Vec<f64> = plain[1..].iter().map(label).collect();
        assert_eq!((found[0], &found[1..]), (plain[0].len() as f64, &labels[..]));
    }
    // The same options write over the table; the record replays them.
    predict("parquet", &["--table-format", "parquet"]);
    let record = "parquet/nuclei_1_raw_provenance.json";
    fixture.run(&["predict", "--rerun", record, "--out", "again"]).ok();
    assert!(fixture.bytes("again/nuclei_1_raw_objects.parquet") == bytes);
    let both = ["predict", "--rerun", record, "--out", "again", "--table-format", "csv"];
    fixture.fails(2, &both, &["--table-format"]);
    // Forms that do not fit the name or the outputs.
    let measure = ["measure", "sim/nuclei_1_labels.tif", "--intensities", &raw, "--table-format"];
    fixture.fails(2, &[&measure[..], &["parquet", "--out", "t.csv"]].concat(), &["t.csv", "ends in .parquet"]);
    fixture.fails(2, &[&measure[..], &["csv", "--out", "t.parquet"]].concat(), &["t.parquet", "ends in .csv"]);
    let maps = ["predict", &raw, "--out", "o", "--outputs", "maps", "--table-format", "parquet"];
    fixture.fails(2, &maps, &["--table-format", "--outputs"]);
    assert!(!fixture.path("t.csv").exists() && !fixture.path("o").exists());
}
