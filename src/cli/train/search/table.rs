//! The table of a search: a CSV file beside the package, with one row for each run of a trial.

use crate::cli::failure::{Failure, Outcome};
use cytoscope_storage::read::open_regular;
use cytoscope_storage::write::atomic_write;
use serde::Serialize;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Columns of the table before the columns of the settings.
const COLUMNS: [&str; 6] = ["trial", "rung", "steps", "score", "seconds", "error"];
/// Last column of the table, the same in every row: the fingerprint of the search.
const FINGERPRINT: &str = "search";
/// Maximum size of the table in bytes.
const MAX_TABLE_BYTES: u64 = 64 << 20;

/// One run of a trial: a row of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) trial: usize,
    /// Rung of successive halving, from 1.
    pub(crate) rung: usize,
    pub(crate) steps: usize,
    /// Best validation score after the first step; `None` if the run failed.
    pub(crate) score: Option<f64>,
    pub(crate) seconds: f64,
    pub(crate) error: String,
    /// Values of the settings, in the order of the space's keys.
    pub(crate) values: Vec<String>,
}

/// The table of a search, and its file.
pub(super) struct ResultsTable {
    pub(super) path: PathBuf,
    pub(super) keys: Vec<String>,
    /// Fingerprint of what the scores of the search depend on besides the settings with ranges.
    fingerprint: String,
    pub(super) rows: Vec<Row>,
}

impl ResultsTable {
    /// Returns what the file holds, or an empty table.
    pub(super) fn open(path: PathBuf, keys: Vec<String>, fingerprint: String, resume: bool) -> Result<Self, Failure> {
        let rows = if resume && path.is_file() { read_rows(&path, &keys, &fingerprint)? } else { Vec::new() };
        Ok(Self { path, keys, fingerprint, rows })
    }

    /// Returns the row of an earlier run with the same settings.
    ///
    /// # Errors
    /// Bad input if the row has other settings or steps: it is of another search.
    pub(super) fn earlier(
        &self,
        trial: usize,
        rung: usize,
        steps: usize,
        values: &[String],
    ) -> Result<Option<&Row>, Failure> {
        let Some(row) = self.rows.iter().find(|row| (row.trial, row.rung) == (trial, rung)) else { return Ok(None) };
        if row.steps == steps && row.values == values {
            return Ok(Some(row));
        }
        Err(Failure::bad_input(format!(
            "{}: trial {trial} on rung {rung} has other settings or steps; use the ranges, trials, steps and seed of the \
             earlier search, or --restart instead of --resume",
            self.path.display()
        )))
    }

    /// Adds a row, in place of one of an earlier run on the same rung, and writes the table.
    pub(super) fn add(&mut self, row: Row) -> Outcome {
        self.rows.retain(|earlier| (earlier.trial, earlier.rung) != (row.trial, row.rung));
        self.rows.push(row);
        self.write()
    }

    /// Writes the table.
    pub(super) fn write(&self) -> Outcome {
        let failed = |error: String| Failure::other(format!("{}: {error}", self.path.display()));
        let mut writer = csv::Writer::from_writer(Vec::new());
        let header = COLUMNS.into_iter().chain(self.keys.iter().map(String::as_str)).chain([FINGERPRINT]);
        writer.write_record(header).map_err(|e| failed(e.to_string()))?;
        for row in &self.rows {
            let score = row.score.map_or_else(String::new, |score| score.to_string());
            let first = [
                row.trial.to_string(),
                row.rung.to_string(),
                row.steps.to_string(),
                score,
                format!("{:.1}", row.seconds),
                row.error.clone(),
            ];
            let cells = first.iter().chain(&row.values).chain([&self.fingerprint]);
            writer.write_record(cells).map_err(|e| failed(e.to_string()))?;
        }
        let text = writer.into_inner().map_err(|e| failed(e.to_string()))?;
        Ok(atomic_write(&self.path, &text)?)
    }
}

/// Reads the table of an earlier search with this fingerprint.
fn read_rows(path: &Path, keys: &[String], fingerprint: &str) -> Result<Vec<Row>, Failure> {
    let bad = |problem: String| {
        Failure::bad_input(format!("{}: {problem}; use --restart instead of --resume", path.display()))
    };
    let mut text = Vec::new();
    let read = open_regular(path).and_then(|file| file.take(MAX_TABLE_BYTES + 1).read_to_end(&mut text));
    read.map_err(|error| bad(error.to_string()))?;
    if text.len() as u64 > MAX_TABLE_BYTES {
        return Err(bad(format!("the table is larger than {MAX_TABLE_BYTES} bytes")));
    }
    let mut reader = csv::Reader::from_reader(text.as_slice());
    let header = reader.headers().map_err(|e| bad(e.to_string()))?;
    let columns = || COLUMNS.into_iter().chain(keys.iter().map(String::as_str));
    // Tables of earlier versions have no fingerprint.
    let is_earlier = header.iter().eq(columns());
    if !is_earlier && header.iter().ne(columns().chain([FINGERPRINT])) {
        return Err(bad("the columns are not those of this search".to_owned()));
    }
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|e| bad(e.to_string()))?;
        let row = row_of(&record, keys.len()).ok_or_else(|| bad(format!("row {} cannot be read", rows.len() + 2)))?;
        if !is_earlier && record.get(COLUMNS.len() + keys.len()) != Some(fingerprint) {
            return Err(Failure::bad_input(format!(
                "{}: it is the table of a search with other data, another seed, or other settings of the trials; give the \
                 options of that search, or use --restart instead of --resume",
                path.display()
            )));
        }
        rows.push(row);
    }
    Ok(rows)
}

/// Returns whether a file is the table of a search.
pub(super) fn is_search_table(path: &Path) -> bool {
    let Ok(file) = open_regular(path) else { return false };
    let mut reader = csv::Reader::from_reader(file.take(MAX_TABLE_BYTES));
    reader.headers().is_ok_and(|header| header.iter().take(COLUMNS.len()).eq(COLUMNS))
}

fn row_of(record: &csv::StringRecord, keys: usize) -> Option<Row> {
    let number = |at: usize| record.get(at)?.parse::<usize>().ok();
    let score = match record.get(3)? {
        "" => None,
        text => Some(text.parse::<f64>().ok()?),
    };
    Some(Row {
        trial: number(0)?,
        rung: number(1)?,
        steps: number(2)?,
        score,
        seconds: record.get(4)?.parse().ok()?,
        error: record.get(5)?.to_owned(),
        values: record.iter().skip(COLUMNS.len()).take(keys).map(str::to_owned).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_table_is_read_back_and_other_searches_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.search.csv");
        let keys = vec!["ema".to_owned(), "network.filters".to_owned()];
        let values = vec!["0.5".to_owned(), "[4, 8]".to_owned()];
        let row = |trial, score: Option<f64>, error: &str| Row {
            trial,
            rung: 1,
            steps: 10,
            score,
            seconds: 1.5,
            error: error.to_owned(),
            values: values.clone(),
        };
        let open = |keys: &[String], fingerprint: &str, resume| {
            ResultsTable::open(path.clone(), keys.to_vec(), fingerprint.to_owned(), resume)
        };
        let mut table = open(&keys, "f", true).unwrap();
        table.add(row(0, Some(0.123_456_789), "")).unwrap();
        table.add(row(1, None, "a.tif: not \"a\" TIFF, sorry")).unwrap();
        let again = open(&keys, "f", true).unwrap();
        assert_eq!(again.rows, table.rows);
        assert_eq!(again.earlier(0, 1, 10, &values).unwrap(), Some(&table.rows[0]));
        assert_eq!(again.earlier(0, 2, 20, &values).unwrap(), None);
        let other = again.earlier(0, 1, 10, &["0.6".to_owned(), "[4, 8]".to_owned()]).unwrap_err();
        assert!(other.to_string().contains("--restart"), "{other}");
        assert!(open(&["ema".to_owned()], "f", true).is_err());
        assert!(open(&keys, "f", false).unwrap().rows.is_empty());
        // The same settings on other data, for example, are those of another search.
        assert!(open(&keys, "g", true).err().unwrap().to_string().contains("other data"));
        // A table of an earlier version.
        let text = std::fs::read_to_string(&path).unwrap();
        let without: Vec<&str> = text.lines().map(|line| line.rsplit_once(',').unwrap().0).collect();
        std::fs::write(&path, without.join("\n")).unwrap();
        assert_eq!(open(&keys, "g", true).unwrap().rows, table.rows);
    }
}
