//! The table of a search: a CSV file beside the package, with one row for each run of a trial.

use crate::cli::failure::{Failure, Outcome};
use cytoscope_pipeline::{SEARCH_COLUMNS, SEARCH_FINGERPRINT, SearchTrial, read_search_table};
use cytoscope_storage::message;
use cytoscope_storage::setting::{RESTART, RESUME};
use cytoscope_storage::write::atomic_write;
use serde::Serialize;
use std::fmt::Display;
use std::path::{Path, PathBuf};

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
    /// Fingerprint of what the scores of the search depend on besides the settings with ranges; after a period, that of the
    /// content of the data; after another one, that of the content of the start model, if there is one.
    fingerprint: String,
    pub(super) rows: Vec<Row>,
}

impl ResultsTable {
    /// Returns what the file holds, or an empty table.
    pub(super) fn open(path: PathBuf, keys: Vec<String>, fingerprint: String, resume: bool) -> Result<Self, Failure> {
        if !resume || !path.is_file() {
            return Ok(Self { path, keys, fingerprint, rows: Vec::new() });
        }
        let (rows, found) = read_rows(&path, &keys, &fingerprint)?;
        // What the table states about a start model that cannot be opened now still holds for its scores.
        let found = found.filter(|found| found.strip_prefix(&fingerprint).is_some_and(|rest| rest.starts_with('.')));
        Ok(Self { path, keys, fingerprint: found.unwrap_or(fingerprint), rows })
    }

    /// Returns the row of an earlier run with the same settings.
    ///
    /// # Errors
    /// Bad input if the row has other settings or steps: it belongs to another search.
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
            "{}: trial {trial} on rung {rung} has other settings or steps",
            self.path.display()
        ))
        .and_next(message!(
            "use the ranges, trials, steps and seed of the earlier search, or {RESTART} instead of {RESUME}"
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
        let header = SEARCH_COLUMNS.into_iter().chain(self.keys.iter().map(String::as_str)).chain([SEARCH_FINGERPRINT]);
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

/// Reads the table of an earlier search with this fingerprint: its rows, and the fingerprint that it states.
fn read_rows(path: &Path, keys: &[String], fingerprint: &str) -> Result<(Vec<Row>, Option<String>), Failure> {
    let bad = |problem: &dyn Display| {
        Failure::bad_input(format!("{}: {problem}", path.display()))
            .and_next(message!("use {RESTART} instead of {RESUME}"))
    };
    let table = read_search_table(path).map_err(|error| bad(&error))?;
    if table.keys != keys {
        return Err(bad(&"the columns are not those of this search"));
    }
    if let Some(found) = &table.fingerprint {
        let [search, data, start] = fingerprint_parts(found);
        let [own_search, own_data, own_start] = fingerprint_parts(fingerprint);
        if search != own_search {
            return Err(Failure::bad_input(format!(
                "{}: it is the table of a search with other data, another seed, or other settings of the trials",
                path.display()
            ))
            .and_next(message!("give the options of that search, or use {RESTART} instead of {RESUME}")));
        }
        // Tables of earlier versions do not state it.
        if data.is_some() && data != own_data {
            return Err(Failure::bad_input(format!(
                "{}: the training data have changed since this search began, so its scores and new ones are not comparable",
                path.display()
            ))
            .and_next(message!("restore the data, or use {RESTART} instead of {RESUME}")));
        }
        // That of a model that cannot be opened any more is unknown.
        if start.zip(own_start).is_some_and(|(start, own_start)| start != own_start) {
            return Err(Failure::bad_input(format!(
                "{}: the start model has changed since this search began, so its scores and new ones are not comparable",
                path.display()
            ))
            .and_next(message!("restore the start model, or use {RESTART} instead of {RESUME}")));
        }
    }
    Ok((table.trials.into_iter().map(Row::from).collect(), table.fingerprint))
}

/// Returns the parts of a fingerprint: that of the options of a search, which is always stated, that of the content of its
/// data, and that of the content of its start model.
fn fingerprint_parts(fingerprint: &str) -> [Option<&str>; 3] {
    let mut parts = fingerprint.split('.');
    std::array::from_fn(|_| parts.next())
}

impl From<SearchTrial> for Row {
    fn from(trial: SearchTrial) -> Self {
        let values = trial.values().map(str::to_owned).collect();
        let SearchTrial { number, rung, steps, score, seconds, error, .. } = trial;
        Self { trial: number, rung, steps, score, seconds, error, values }
    }
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
        // The content of the data, which tables of earlier versions do not state.
        assert_eq!(open(&keys, "f.1", true).unwrap().rows, table.rows);
        open(&keys, "f.1", true).unwrap().write().unwrap();
        assert_eq!(open(&keys, "f.1", true).unwrap().rows, table.rows);
        let changed = open(&keys, "f.2", true).err().unwrap().to_string();
        assert!(changed.contains("data have changed") && changed.contains("--restart"), "{changed}");
        assert!(open(&keys, "g.1", true).err().unwrap().to_string().contains("another seed"));
        // The content of the start model, likewise.
        assert_eq!(open(&keys, "f.1.5", true).unwrap().rows, table.rows);
        open(&keys, "f.1.5", true).unwrap().write().unwrap();
        assert_eq!(open(&keys, "f.1.5", true).unwrap().rows, table.rows);
        let changed = open(&keys, "f.1.6", true).err().unwrap().to_string();
        assert!(changed.contains("start model has changed") && changed.contains("--restart"), "{changed}");
        assert!(open(&keys, "f.2.5", true).err().unwrap().to_string().contains("data have changed"));
        // A start model that cannot be opened now; the table goes on to state the fingerprint of its content.
        open(&keys, "f.1", true).unwrap().write().unwrap();
        assert!(open(&keys, "f.1.6", true).is_err());
        // A table of an earlier version.
        let text = std::fs::read_to_string(&path).unwrap();
        let without: Vec<&str> = text.lines().map(|line| line.rsplit_once(',').unwrap().0).collect();
        std::fs::write(&path, without.join("\n")).unwrap();
        assert_eq!(open(&keys, "g", true).unwrap().rows, table.rows);
    }
}
