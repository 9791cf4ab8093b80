//! The table of objects: typed columns, from which the files of all formats are written.

use crate::ObjectColumn;
use crate::measure::ObjectRow;
use std::borrow::Cow;
use std::collections::BTreeSet;

/// Largest magnitude up to which 64-bit floats represent every whole number.
const MAX_WHOLE: f64 = 9_007_199_254_740_992.0;

/// A table with one row per object.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ObjectTable {
    columns: Vec<TableColumn>,
}

/// A named column of an [`ObjectTable`], with cells of one type.
#[derive(Debug, Clone, PartialEq)]
pub struct TableColumn {
    /// Name, with the unit.
    pub name: String,
    /// One cell per row.
    pub cells: Cells,
}

/// The cells of a column.
#[derive(Debug, Clone, PartialEq)]
pub enum Cells {
    /// Whole numbers.
    Whole(Vec<i64>),
    /// Measurements, which all formats state with six significant digits: see [`stated`].
    Measured(Vec<f64>),
    /// Numbers that are stated as they are; NaN if one is missing.
    Float(Vec<f64>),
    /// Texts.
    Text(Vec<String>),
}

impl Cells {
    /// Number of cells.
    fn len(&self) -> usize {
        match self {
            Self::Whole(values) => values.len(),
            Self::Measured(values) | Self::Float(values) => values.len(),
            Self::Text(texts) => texts.len(),
        }
    }

    /// Returns a cell for CSV; empty if the column has no such row.
    fn csv(&self, row: usize) -> Cow<'_, str> {
        let cell: Option<Cow<'_, str>> = match self {
            Self::Whole(values) => values.get(row).map(|value| Cow::Owned(value.to_string())),
            Self::Measured(values) => values.get(row).map(|value| Cow::Owned(six_digits(*value))),
            Self::Float(values) => values.get(row).map(|value| match value.is_nan() {
                true => Cow::Borrowed("nan"),
                false => Cow::Owned(value.to_string()),
            }),
            Self::Text(texts) => texts.get(row).map(|text| quoted(text)),
        };
        cell.unwrap_or(Cow::Borrowed(""))
    }
}

impl ObjectTable {
    /// Creates a table from columns with the same number of cells.
    pub fn new(columns: Vec<TableColumn>) -> Self {
        Self { columns }
    }

    /// Creates the table of measured objects, listed by time point, with intensity channels of these names. `has_times` adds
    /// the column of the time points. Commas, quotes and control characters in the names of channels become underscores.
    /// Channels of the same name are numbered, because readers look columns up by name.
    pub fn from_objects(objects: &[(usize, Vec<ObjectRow>)], channels: &[String], has_times: bool) -> Self {
        let rows: Vec<(usize, &ObjectRow)> =
            objects.iter().flat_map(|(time, rows)| rows.iter().map(move |row| (*time, row))).collect();
        let known =
            |column: ObjectColumn| TableColumn { name: column.name().to_owned(), cells: column_cells(column, &rows) };
        let time = has_times.then_some(ObjectColumn::Time);
        let mut columns: Vec<TableColumn> =
            time.into_iter().chain(ObjectColumn::BEFORE_INTENSITIES).map(known).collect();
        let plain = |c: char| if c == ',' || c == '"' || c.is_control() { '_' } else { c };
        let names: Vec<String> = channels.iter().map(|name| name.chars().map(plain).collect()).collect();
        for (channel, name) in distinct_names(&names).iter().enumerate() {
            let at = |values: &[f64]| values.get(channel).copied().unwrap_or(0.0);
            let mut add = |measure: &str, values: Vec<f64>| {
                columns.push(TableColumn { name: format!("{measure}_{name}"), cells: Cells::Measured(values) });
            };
            add("mean", rows.iter().map(|(_, row)| at(&row.mean)).collect());
            add("max", rows.iter().map(|(_, row)| at(&row.max)).collect());
            add("sum", rows.iter().map(|(_, row)| at(&row.sum)).collect());
        }
        columns.extend(ObjectColumn::AFTER_INTENSITIES.map(known));
        Self { columns }
    }

    /// Creates a table from the names of its columns and rows of numbers, which are NaN where a row has none. Columns that
    /// [are whole by their names](ObjectColumn::is_whole) hold whole numbers, provided that all of theirs are. Others hold
    /// floats even if all are whole, so that the tables of several stacks have the same types.
    pub fn from_numbers(names: &[String], rows: &[Vec<f64>]) -> Self {
        let is_exact = |value: f64| value.fract() == 0.0 && value.abs() <= MAX_WHOLE;
        let column = |(column, name): (usize, &String)| {
            let values: Vec<f64> = rows.iter().map(|row| row.get(column).copied().unwrap_or(f64::NAN)).collect();
            let is_whole = ObjectColumn::from_name(name).is_some_and(ObjectColumn::is_whole);
            let cells = match is_whole && values.iter().all(|value| is_exact(*value)) {
                true => Cells::Whole(values.into_iter().map(|value| value as i64).collect()),
                false => Cells::Float(values),
            };
            TableColumn { name: name.clone(), cells }
        };
        Self { columns: names.iter().enumerate().map(column).collect() }
    }

    /// Returns the columns, from left to right.
    pub fn columns(&self) -> &[TableColumn] {
        &self.columns
    }

    /// Number of rows.
    fn rows(&self) -> usize {
        self.columns.iter().map(|column| column.cells.len()).max().unwrap_or(0)
    }

    /// Returns the table as CSV.
    pub fn csv(&self) -> String {
        let mut text = String::new();
        push_line(&mut text, self.columns.iter().map(|column| quoted(&column.name)));
        for row in 0..self.rows() {
            push_line(&mut text, self.columns.iter().map(|column| column.cells.csv(row)));
        }
        text
    }

    /// Returns the table as CSV that `anndata.io.read_csv` reads: the first column has the names of the objects, `object_7`
    /// for the one with label 7 (`t2_object_7` at time point 2); the columns of labels and time points are left out.
    pub fn anndata_csv(&self) -> String {
        let (time_name, label_name) = (ObjectColumn::Time.name(), ObjectColumn::Label.name());
        let column_named = |name: &str| self.columns.iter().find(|column| column.name == name);
        let (time, label) = (column_named(time_name), column_named(label_name));
        let is_value = |column: &&TableColumn| column.name != time_name && column.name != label_name;
        let values: Vec<&TableColumn> = self.columns.iter().filter(is_value).collect();
        let mut text = String::new();
        let header = values.iter().map(|column| quoted(&column.name));
        push_line(&mut text, std::iter::once(Cow::Borrowed("object")).chain(header));
        for row in 0..self.rows() {
            let time = time.map(|time| format!("t{}_", time.cells.csv(row))).unwrap_or_default();
            let label = label.map(|label| label.cells.csv(row)).unwrap_or_default();
            let name: Cow<'_, str> = Cow::Owned(format!("{time}object_{label}"));
            push_line(&mut text, std::iter::once(name).chain(values.iter().map(|column| column.cells.csv(row))));
        }
        text
    }
}

/// The cells of a column of measured objects, each with its time point.
fn column_cells(column: ObjectColumn, rows: &[(usize, &ObjectRow)]) -> Cells {
    match column {
        ObjectColumn::Time => Cells::Whole(rows.iter().map(|(time, _)| *time as i64).collect()),
        ObjectColumn::Label => whole(rows, |row| i64::from(row.label)),
        ObjectColumn::Voxels => whole(rows, |row| row.voxels as i64),
        ObjectColumn::BoxStart(axis) => whole(rows, |row| row.bbox_start[axis as usize] as i64),
        ObjectColumn::BoxEnd(axis) => whole(rows, |row| row.bbox_end[axis as usize] as i64),
        ObjectColumn::VolumeUm3 => measured(rows, |row| row.volume_um3),
        ObjectColumn::CentroidUm(axis) => measured(rows, |row| row.centroid_um[axis as usize]),
        ObjectColumn::EquivalentDiameterUm => measured(rows, |row| row.equivalent_diameter_um),
        ObjectColumn::FirstAxisUm => measured(rows, |row| row.principal_axes_um[0]),
        ObjectColumn::SecondAxisUm => measured(rows, |row| row.principal_axes_um[1]),
        ObjectColumn::ThirdAxisUm => measured(rows, |row| row.principal_axes_um[2]),
        ObjectColumn::Sphericity => measured(rows, |row| row.sphericity),
    }
}

fn whole(rows: &[(usize, &ObjectRow)], value: impl Fn(&ObjectRow) -> i64) -> Cells {
    Cells::Whole(rows.iter().map(|(_, row)| value(row)).collect())
}

fn measured(rows: &[(usize, &ObjectRow)], value: impl Fn(&ObjectRow) -> f64) -> Cells {
    Cells::Measured(rows.iter().map(|(_, row)| value(row)).collect())
}

/// Returns the names with a number appended to those that occurred before: `mean`, `mean_2`.
pub fn distinct_names(names: &[String]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut all = Vec::with_capacity(names.len());
    for name in names {
        let mut unique = name.clone();
        let mut number = 2;
        while !seen.insert(unique.clone()) {
            unique = format!("{name}_{number}");
            number += 1;
        }
        all.push(unique);
    }
    all
}

/// Returns the number that tables state for a measurement: the one closest to it with six significant digits, of which at
/// most twelve are decimals.
pub fn stated(measured: f64) -> f64 {
    six_digits(measured).parse().unwrap_or(measured)
}

/// Formats six significant digits, without an exponent.
fn six_digits(v: f64) -> String {
    if v == 0.0 || !v.is_finite() {
        return v.to_string();
    }
    let digits = (5 - v.abs().log10().floor() as i32).clamp(0, 12) as usize;
    let text = format!("{v:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Returns a text as a cell of CSV, in quotes if it needs them.
fn quoted(text: &str) -> Cow<'_, str> {
    if text.contains([',', '"', '\n', '\r']) {
        Cow::Owned(format!("\"{}\"", text.replace('"', "\"\"")))
    } else {
        Cow::Borrowed(text)
    }
}

/// Adds a line of CSV. One with a single, empty cell has quotes, because readers skip empty lines.
fn push_line<'a>(text: &mut String, cells: impl Iterator<Item = Cow<'a, str>>) {
    let start = text.len();
    for (i, cell) in cells.enumerate() {
        if i > 0 {
            text.push(',');
        }
        text.push_str(&cell);
    }
    if text.len() == start {
        text.push_str("\"\"");
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(label: u32) -> ObjectRow {
        ObjectRow {
            label,
            voxels: 12,
            volume_um3: 1.0 / 3.0,
            centroid_um: [0.5, 1234567.8, 0.000123456],
            bbox_start: [0, 1, 2],
            bbox_end: [3, 4, 5],
            mean: vec![2.5],
            max: vec![f64::NAN],
            sum: vec![30.0],
            equivalent_diameter_um: 1e-9,
            principal_axes_um: [3.0, 2.0, 0.0],
            sphericity: 0.987_654_321,
        }
    }

    fn column(name: &str, cells: Cells) -> TableColumn {
        TableColumn { name: name.to_owned(), cells }
    }

    #[test]
    fn measured_objects_have_the_types_and_names_of_their_columns() {
        let table = ObjectTable::from_objects(&[(0, vec![object(7)]), (2, vec![object(9)])], &["a".to_owned()], true);
        assert_eq!(table.columns().len(), 1 + 12 + 3 + 5);
        for column in table.columns() {
            let is_whole = ObjectColumn::from_name(&column.name).is_some_and(ObjectColumn::is_whole);
            assert_eq!(matches!(column.cells, Cells::Whole(_)), is_whole, "{}", column.name);
        }
        let text = table.csv();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("time,label,voxels,volume_um3,centroid_z_um,"), "{}", lines[0]);
        let measures = "12,0.333333,0.5,1234568,0.000123456,0,1,2,3,4,5,2.5,NaN,30,0.000000001,3,2,0,0.987654";
        assert_eq!(lines[1..], [format!("0,7,{measures}"), format!("2,9,{measures}")]);
        let named = table.anndata_csv();
        let lines: Vec<&str> = named.lines().collect();
        assert!(lines[0].starts_with("object,voxels,volume_um3,"), "{}", lines[0]);
        assert_eq!(lines[1..], [format!("t0_object_7,{measures}"), format!("t2_object_9,{measures}")]);
        let single_time = ObjectTable::from_objects(&[(0, vec![object(7)])], &[], false);
        assert!(single_time.csv().starts_with("label,voxels,") && single_time.anndata_csv().contains("\nobject_7,12,"));
    }

    #[test]
    fn names_of_channels_are_plain_and_distinct() {
        let header = |channels: &[&str]| {
            let channels: Vec<String> = channels.iter().map(|name| (*name).to_owned()).collect();
            ObjectTable::from_objects(&[], &channels, false).csv()
        };
        let two = header(&["raw, 1", "raw\" 1"]);
        assert!(two.contains(",mean_raw_ 1,") && two.contains(",sum_raw_ 1_2,"), "{two}");
        let three = header(&["a,b", "a_b", "a_b"]);
        assert!(three.contains(",mean_a_b,max_a_b,sum_a_b,mean_a_b_2,max_a_b_2,sum_a_b_2,mean_a_b_3,"), "{three}");
        let names = ["a", "b", "a", "a_2", "a"].map(str::to_owned);
        assert_eq!(distinct_names(&names), ["a", "b", "a_2", "a_2_2", "a_3"]);
    }

    #[test]
    fn numbers_are_stated_with_six_digits_in_all_formats() {
        let values = [1234567.0, 0.000123456, 0.1234564, 999_999.96, 9.999_999_6, 1e-14, -2.5e-9, 1e21, 7.0 / 3.0];
        for value in values {
            assert_eq!(six_digits(stated(value)), six_digits(value), "{value}");
        }
        assert_eq!(values.map(stated)[..4], [1234567.0, 0.000123456, 0.123456, 1_000_000.0]);
        assert!(stated(f64::NAN).is_nan() && stated(f64::INFINITY) == f64::INFINITY);
    }

    #[test]
    fn texts_with_separators_and_empty_texts_are_cells_of_their_own() {
        let texts = ["a,b", "say \"no\"", "", "two\nlines"].map(str::to_owned).to_vec();
        let table = ObjectTable::new(vec![
            column("label", Cells::Whole(vec![1, 2, 3, 4])),
            column("note, free", Cells::Text(texts)),
            column("area", Cells::Float(vec![0.1, f64::NAN, 2.0, 1e-7])),
        ]);
        let rows = ["\"a,b\",0.1", "\"say \"\"no\"\"\",nan", ",2", "\"two\nlines\",0.0000001"];
        let plain: String = rows.iter().enumerate().map(|(i, row)| format!("{},{row}\n", i + 1)).collect();
        assert_eq!(table.csv(), format!("label,\"note, free\",area\n{plain}"));
        let named: String = rows.iter().enumerate().map(|(i, row)| format!("object_{},{row}\n", i + 1)).collect();
        assert_eq!(table.anndata_csv(), format!("object,\"note, free\",area\n{named}"));
        let single = ObjectTable::new(vec![column("note", Cells::Text(vec![String::new()]))]);
        assert_eq!(single.csv(), "note\n\"\"\n");
    }

    #[test]
    fn columns_of_numbers_are_whole_by_their_names() {
        let names = ["label", "mean_a", "voxels", "bbox_z0"].map(str::to_owned);
        let table = ObjectTable::from_numbers(&names, &[vec![7.0, 1.0, 5.0, 0.0], vec![8.0, 2.0, 5.5]]);
        let cells: Vec<&Cells> = table.columns().iter().map(|column| &column.cells).collect();
        let floats = [Cells::Float(vec![1.0, 2.0]), Cells::Float(vec![5.0, 5.5])];
        assert_eq!(cells[..3], [&Cells::Whole(vec![7, 8]), &floats[0], &floats[1]]);
        assert!(matches!(cells[3], Cells::Float(values) if values[0] == 0.0 && values[1].is_nan()));
    }
}
