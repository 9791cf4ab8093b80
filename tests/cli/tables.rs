//! Object tables of `segment` and `measure` in all their forms, read by Python.

use crate::common::{Fixture, python};

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
    fixture.fails(2, &["segment", &raw, "--out", "c.tif", "--table-format", "anndata"], &["--table"]);
    // A misspelled ending, and options that the method does not use.
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
