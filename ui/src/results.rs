//! Object tables as written by `predict`.

use crate::number_text::column_decimals;
use cytoscope_objects::{ObjectColumn, ObjectTable};
use cytoscope_profile::{bytes_text, median};
use cytoscope_storage::io_message;
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// Maximum size of a table that is read.
const MAX_BYTES: u64 = 512 << 20;

/// The start of a table in the form of AnnData: the name of its first column.
pub(crate) const ANNDATA_START: &str = "object,";

/// Why a table could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The file cannot be read.
    #[error("{}", io_message(.path, .error))]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        error: std::io::Error,
    },
    /// The file is too large.
    #[error("{path}: the table has {}, more than the limit of {}", bytes_text(*.bytes), bytes_text(MAX_BYTES))]
    TooLarge {
        /// Path of the file.
        path: PathBuf,
        /// Size of the file in bytes.
        bytes: u64,
    },
    /// The file is not an object table.
    #[error("{path}: line {line} is not a row of an object table: expected {expected} numbers")]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// Line number, counted from 1.
        line: u64,
        /// Number of columns in the header.
        expected: usize,
    },
}

/// Mean, median and range of the finite values of a column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ColumnSummary {
    /// Mean of the values.
    pub mean: f64,
    /// The middle value, or the mean of both middle ones.
    pub median: f64,
    /// The lowest value.
    pub low: f64,
    /// The highest value.
    pub high: f64,
}

impl ColumnSummary {
    /// The summary of these values; `None` if none is finite.
    fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.filter(|v| v.is_finite()).collect();
        values.sort_unstable_by(f64::total_cmp);
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        Some(Self { mean, median: median(&values)?, low: *values.first()?, high: *values.last()? })
    }
}

/// An object table with one row per object and one column per measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Results {
    /// Names of the columns, with their units.
    pub columns: Vec<String>,
    /// Values, one row per object.
    pub rows: Vec<Vec<f64>>,
    /// Number of decimals with which the window shows the values of each column.
    pub decimals: Vec<usize>,
    /// Mean, median and range of each column; `None` if it has no finite value.
    pub summaries: Vec<Option<ColumnSummary>>,
    /// Index of the label column.
    pub label_column: usize,
    /// Row indices in display order.
    pub order: Vec<usize>,
    /// Sort column, and whether the order is descending.
    pub sorted: Option<(usize, bool)>,
    /// Path of the CSV file.
    pub path: PathBuf,
}

impl Results {
    /// Reads a table.
    ///
    /// # Errors
    /// [`TableError`] if the file cannot be read or is not an object table.
    pub fn read(path: &Path) -> Result<Self, TableError> {
        let io = |error| TableError::Io { path: path.to_owned(), error };
        let bytes = std::fs::metadata(path).map_err(io)?.len();
        if bytes > MAX_BYTES {
            return Err(TableError::TooLarge { path: path.to_owned(), bytes });
        }
        Self::parse(path, &std::fs::read_to_string(path).map_err(io)?)
    }

    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, TableError> {
        let text = plain_csv(text);
        let mut reader = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(text.as_bytes());
        let malformed = |line, expected| TableError::Malformed { path: path.to_owned(), line, expected };
        let header = reader.headers().map_err(|_| malformed(1, 0))?;
        let columns: Vec<String> = header.iter().map(str::to_owned).collect();
        let is_label = |name: &String| *name == ObjectColumn::Label.name();
        let label_column = columns.iter().position(is_label).ok_or_else(|| malformed(1, columns.len()))?;
        let mut rows = Vec::new();
        for record in reader.records() {
            let place = |position: Option<&csv::Position>| position.map_or(0, |p| p.line());
            let record = record.map_err(|e| malformed(place(e.position()), columns.len()))?;
            let row: Result<Vec<f64>, _> =
                record.iter().map(|c| if c.is_empty() { Ok(f64::NAN) } else { c.parse() }).collect();
            let row = row.ok().filter(|r| r.len() == columns.len());
            rows.push(row.ok_or_else(|| malformed(place(record.position()), columns.len()))?);
        }
        let values = |column: usize| rows.iter().filter_map(move |row: &Vec<f64>| row.get(column).copied());
        let decimals = (0..columns.len()).map(|column| column_decimals(values(column))).collect();
        let summaries = (0..columns.len()).map(|column| ColumnSummary::of(values(column))).collect();
        let (order, path) = ((0..rows.len()).collect(), path.to_owned());
        Ok(Self { columns, rows, decimals, summaries, label_column, order, sorted: None, path })
    }

    /// The value at a row and column; NaN if missing.
    pub fn value(&self, row: usize, column: usize) -> f64 {
        self.rows.get(row).and_then(|r| r.get(column)).copied().unwrap_or(f64::NAN)
    }

    /// The label of a row; 0 if there is no such row.
    pub fn label(&self, row: usize) -> u32 {
        self.value(row, self.label_column) as u32
    }

    /// The time point of a row, from 0; `None` if the table states none, because all its objects are of one.
    pub fn time(&self, row: usize) -> Option<usize> {
        let time = self.value(row, self.column_index(ObjectColumn::Time)?);
        (time >= 0.0).then_some(time as usize)
    }

    /// Number of objects at a time point; all objects if the table states no time points.
    pub fn objects_at(&self, time: usize) -> usize {
        let Some(column) = self.column_index(ObjectColumn::Time) else { return self.rows.len() };
        (0..self.rows.len()).filter(|row| self.value(*row, column) == time as f64).count()
    }

    /// Index of the row that measures a label at a time point; `None` if the table has none. The labels of each time point
    /// start at 1.
    pub fn row_index(&self, label: u32, time: usize) -> Option<usize> {
        let is_of = |row: &usize| self.label(*row) == label && self.time(*row).is_none_or(|at| at == time);
        (0..self.rows.len()).find(is_of)
    }

    /// The table for the writers of files.
    pub fn table(&self) -> ObjectTable {
        ObjectTable::from_numbers(&self.columns, &self.rows)
    }

    /// Volume in µm³ of the voxels that the objects were measured with; `None` if the table does not state it.
    pub fn voxel_um3(&self) -> Option<f64> {
        let (volume, voxels) = (self.column_index(ObjectColumn::VolumeUm3)?, self.column_index(ObjectColumn::Voxels)?);
        Some(self.value(0, volume) / self.value(0, voxels)).filter(|um3| um3.is_finite() && *um3 > 0.0)
    }

    /// Index of the column with a measurement; `None` if the table lacks it.
    pub fn column_index(&self, column: ObjectColumn) -> Option<usize> {
        self.column(column.name())
    }

    /// Index of the column with a name; `None` if the table lacks it.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|c| c == name)
    }

    /// Sorts by a column in descending order; a second call for the same column reverses the order. Missing values come last in
    /// both.
    pub fn sort_by(&mut self, column: usize) {
        let descending = !matches!(self.sorted, Some((c, true)) if c == column);
        self.sorted = Some((column, descending));
        let mut order: Vec<usize> = (0..self.rows.len()).collect();
        order.sort_by(|a, b| {
            let (a, b) = (self.value(*a, column), self.value(*b, column));
            let by_value = if descending { b.total_cmp(&a) } else { a.total_cmp(&b) };
            a.is_nan().cmp(&b.is_nan()).then(by_value)
        });
        self.order = order;
    }
}

/// Returns a table in the form of AnnData ([`ObjectTable::anndata_csv`]) with the column `label`, and `time` if its rows are
/// named after time points; other tables are returned as they are.
fn plain_csv(text: &str) -> Cow<'_, str> {
    let Some(columns) = text.strip_prefix(ANNDATA_START) else { return Cow::Borrowed(text) };
    let mut lines = columns.lines();
    let header = lines.next().unwrap_or_default();
    let is_timed = lines.clone().next().is_some_and(|row| row.starts_with('t'));
    let mut plain = format!("{}label,{header}\n", if is_timed { "time," } else { "" });
    for row in lines {
        // A row with another name is refused by its line when its cells are read.
        let (time, cells) = row.split_once("object_").unwrap_or(("", row));
        if is_timed {
            plain.push_str(time.trim_start_matches('t').trim_end_matches('_'));
            plain.push(',');
        }
        plain.push_str(cells);
        plain.push('\n');
    }
    Cow::Owned(plain)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn tables_for_anndata_are_read_like_plain_ones() {
        for text in ["label,voxels,mean_a\n7,10,2.5\n12,3,0\n", "time,label,voxels\n0,7,5\n2,7,6\n"] {
            let plain = Results::parse(Path::new("x.csv"), text).unwrap();
            assert_eq!(Results::parse(Path::new("x.csv"), &plain.table().anndata_csv()).unwrap(), plain);
        }
        assert!(Results::parse(Path::new("x.csv"), "object,voxels\ncell,3\n").is_err());
    }

    #[test]
    fn tables_for_anndata_have_named_rows_and_numbers_only() {
        let table = Results::parse(Path::new("x.csv"), "label,volume_um3,\"mean_a,b\"\n7,10.5,3\n12,99,\n").unwrap();
        assert_eq!(table.table().anndata_csv(), "object,volume_um3,\"mean_a,b\"\nobject_7,10.5,3\nobject_12,99,nan\n");
        let times = Results::parse(Path::new("x.csv"), "time,label,voxels\n0,7,5\n2,7,6\n").unwrap();
        assert_eq!(times.table().anndata_csv(), "object,voxels\nt0_object_7,5\nt2_object_7,6\n");
    }

    #[test]
    fn a_label_of_a_time_series_has_one_row_for_each_time_point() {
        let text = "time,label,volume_um3\n0,1,10\n0,2,20\n3,1,30\n";
        let table = Results::parse(Path::new("x.csv"), text).unwrap();
        assert_eq!([0, 3, 1].map(|time| table.row_index(1, time)), [Some(0), Some(2), None]);
        assert_eq!([0, 2, 9].map(|row| table.time(row)), [Some(0), Some(3), None]);
        assert_eq!([0, 3, 1].map(|time| table.objects_at(time)), [2, 1, 0]);
    }

    #[test]
    fn missing_values_come_last_in_both_orders() {
        let text = "label,mean_a\n1,\n2,5\n3,NaN\n4,-7\n5,-nan\n";
        let mut table = Results::parse(Path::new("x.csv"), text).unwrap();
        for expected in [[2, 4, 1, 3, 5], [4, 2, 1, 3, 5]] {
            table.sort_by(1);
            let mut labels: Vec<u32> = table.order.iter().map(|row| table.label(*row)).collect();
            // The order of missing values among each other is open.
            labels[2..].sort_unstable();
            assert_eq!(labels, expected);
        }
    }

    #[test]
    fn tables_are_read_sorted_and_searched() {
        let text = "label,volume_um3,mean_a\n1,10.5,3\n2,99,\n3,7,1\n";
        let mut table = Results::parse(Path::new("x.csv"), text).unwrap();
        assert_eq!((table.rows.len(), table.column("volume_um3")), (3, Some(1)));
        assert!(table.value(1, 2).is_nan() && table.time(2).is_none() && table.objects_at(7) == 3);
        table.sort_by(1);
        assert_eq!(table.order.iter().map(|r| table.label(*r)).collect::<Vec<_>>(), [2, 1, 3]);
        table.sort_by(1);
        assert_eq!(table.order.iter().map(|r| table.label(*r)).collect::<Vec<_>>(), [3, 1, 2]);
        assert_eq!((table.row_index(3, 0), table.row_index(3, 5), table.row_index(4, 0)), (Some(2), Some(2), None));
        // Column names that need quoting.
        let quoted = Results::parse(Path::new("x.csv"), "label,\"mean_a,b\"\r\n7,1.5\r\n").unwrap();
        assert_eq!((quoted.column("mean_a,b"), quoted.value(0, 1)), (Some(1), 1.5));
        for (bad, at) in [("volume\n1\n", 1), ("label,v\n1\n", 2), ("label\n1\nword\n", 3)] {
            let error = Results::parse(Path::new("x.csv"), bad).unwrap_err();
            assert!(matches!(error, TableError::Malformed { line, .. } if line == at), "{bad}: {error}");
        }
    }
}
