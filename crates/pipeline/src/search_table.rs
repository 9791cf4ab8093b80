//! The table of a search for training settings (`train --search`), a CSV file with one row for each run of a trial.

use crate::SearchTrial;
use cytoscope_storage::io_problem;
use cytoscope_storage::read::open_regular;
use std::io::Read;
use std::path::Path;

/// Maximum size in bytes of the table of a search.
pub const MAX_SEARCH_TABLE_BYTES: u64 = 64 << 20;
/// Columns of the table of a search before those of the settings.
pub const SEARCH_COLUMNS: [&str; 6] = ["trial", "rung", "steps", "score", "seconds", "error"];
/// Last column of the table of a search, the same in every row: the fingerprint of the search.
pub const SEARCH_FINGERPRINT: &str = "search";

/// Kind of the folder in which a search trains, as stored in its marker file. It is beside the package, with the extension
/// `search`.
pub const SEARCH_FOLDER_KIND: &str = cytoscope_storage::folder_kind::SEARCH;

/// The table of a search for training settings, with one row for each run of a trial.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchTable {
    /// The settings that have ranges, in the order of their columns.
    pub keys: Vec<String>,
    /// The fingerprint of the search; `None` in tables without rows and in those of earlier versions.
    pub fingerprint: Option<String>,
    /// The trials, in the order of their rows.
    pub trials: Vec<SearchTrial>,
}

/// Why the table of a search cannot be read. The messages do not name the file.
#[derive(Debug, thiserror::Error)]
pub enum SearchTableError {
    /// The file cannot be read.
    #[error("{}", io_problem(.0))]
    Io(#[from] std::io::Error),
    /// The file is larger than [`MAX_SEARCH_TABLE_BYTES`], or would be if each row repeated the names of the columns.
    #[error("the table is larger than {} bytes", MAX_SEARCH_TABLE_BYTES)]
    TooLarge,
    /// The file is not a CSV table.
    #[error(transparent)]
    Csv(#[from] csv::Error),
    /// The first columns are not [`SEARCH_COLUMNS`].
    #[error("the columns are not those of a search")]
    Columns,
    /// A cell of this row, counted from 1 with the header, has an invalid value.
    #[error("row {0} cannot be read")]
    Row(usize),
    /// The fingerprint of this row, counted from 1 with the header, differs from that of the first row.
    #[error("row {0} belongs to another search")]
    OtherSearch(usize),
}

/// Reads the table of a search.
///
/// # Errors
/// [`SearchTableError`]; a missing file is [`SearchTableError::Io`].
pub fn read_search_table(path: &Path) -> Result<SearchTable, SearchTableError> {
    let mut text = Vec::new();
    open_regular(path)?.take(MAX_SEARCH_TABLE_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_SEARCH_TABLE_BYTES {
        return Err(SearchTableError::TooLarge);
    }
    let mut reader = csv::Reader::from_reader(text.as_slice());
    let header = reader.headers()?.clone();
    if !header.iter().take(SEARCH_COLUMNS.len()).eq(SEARCH_COLUMNS) {
        return Err(SearchTableError::Columns);
    }
    let mut keys: Vec<String> = header.iter().skip(SEARCH_COLUMNS.len()).map(str::to_owned).collect();
    let has_fingerprint = keys.pop_if(|last| last == SEARCH_FINGERPRINT).is_some();
    // Each trial states the names of its settings.
    let row_key_bytes = keys.iter().map(|key| key.len() as u64).sum::<u64>();
    let mut key_bytes = 0u64;
    let mut fingerprint: Option<String> = None;
    let mut trials: Vec<SearchTrial> = Vec::new();
    for record in reader.records() {
        let (record, row) = (record?, trials.len() + 2);
        key_bytes = key_bytes.saturating_add(row_key_bytes);
        if key_bytes > MAX_SEARCH_TABLE_BYTES {
            return Err(SearchTableError::TooLarge);
        }
        trials.push(parse_trial(&record, &keys).ok_or(SearchTableError::Row(row))?);
        let found = record.iter().next_back().filter(|_| has_fingerprint);
        if row > 2 && found != fingerprint.as_deref() {
            return Err(SearchTableError::OtherSearch(row));
        }
        fingerprint = found.map(str::to_owned);
    }
    Ok(SearchTable { keys, fingerprint, trials })
}

/// Returns whether a file is the table of a search.
pub fn is_search_table(path: &Path) -> bool {
    let Ok(file) = open_regular(path) else { return false };
    let mut reader = csv::Reader::from_reader(file.take(MAX_SEARCH_TABLE_BYTES));
    reader.headers().is_ok_and(|header| header.iter().take(SEARCH_COLUMNS.len()).eq(SEARCH_COLUMNS))
}

/// Returns the trial in a row; `None` if a cell is invalid.
fn parse_trial(record: &csv::StringRecord, keys: &[String]) -> Option<SearchTrial> {
    let number = |at: usize| record.get(at)?.parse::<usize>().ok();
    let score = match record.get(3)? {
        "" => None,
        text => Some(text.parse::<f64>().ok()?),
    };
    let values = record.iter().skip(SEARCH_COLUMNS.len());
    Some(SearchTrial {
        number: number(0)?,
        rung: number(1)?,
        steps: number(2)?,
        score,
        seconds: record.get(4)?.parse().ok()?,
        error: record.get(5)?.to_owned(),
        settings: keys.iter().zip(values).map(|(key, value)| format!("{key}={value}")).collect(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use std::fs::File;

    const HEADER: &str = "trial,rung,steps,score,seconds,error,ema,network.filters,search\n";

    #[test]
    fn the_trials_of_a_table_are_read_with_their_settings() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.search.csv");
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        write(&format!("{HEADER}1,1,10,0.5,1.5,,0.1,\"[4, 8]\",f\n2,1,10,,0.0,no memory,0.2,[4],f\n"));
        let table = read_search_table(&path).unwrap();
        assert!(is_search_table(&path));
        assert_eq!(table.keys, ["ema", "network.filters"]);
        assert_eq!(table.fingerprint.as_deref(), Some("f"));
        let trial = |number, score, seconds, error: &str, settings: [&str; 2]| {
            let settings = settings.map(str::to_owned).to_vec();
            SearchTrial { number, rung: 1, steps: 10, score, seconds, error: error.to_owned(), settings }
        };
        let first = trial(1, Some(0.5), 1.5, "", ["ema=0.1", "network.filters=[4, 8]"]);
        assert_eq!(first.values().collect::<Vec<_>>(), ["0.1", "[4, 8]"]);
        assert_eq!(table.trials, [first, trial(2, None, 0.0, "no memory", ["ema=0.2", "network.filters=[4]"])]);

        // A table of an earlier version.
        write("trial,rung,steps,score,seconds,error,ema\n1,1,10,0.5,1.0,,0.1\n");
        let earlier = read_search_table(&path).unwrap();
        assert_eq!((earlier.fingerprint, earlier.trials.len()), (None, 1));

        for (text, problem) in [
            ("a,b\n1,2\n".to_owned(), "the columns are not those of a search"),
            (format!("{HEADER}one,1,10,0.5,1.0,,0.1,[4],f\n"), "row 2 cannot be read"),
            (
                format!("{HEADER}1,1,10,0.5,1.0,,0.1,[4],f\n2,1,10,0.5,1.0,,0.1,[4],g\n"),
                "row 3 belongs to another search",
            ),
        ] {
            write(&text);
            assert_eq!(read_search_table(&path).unwrap_err().to_string(), problem, "{text}");
        }
        write(&format!("{HEADER}1,1\n"));
        assert!(matches!(read_search_table(&path), Err(SearchTableError::Csv(_))), "a row is cut off");
    }

    #[test]
    fn a_table_above_the_limit_is_refused_instead_of_being_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.search.csv");
        File::create(&path).unwrap().set_len(MAX_SEARCH_TABLE_BYTES + 1).unwrap();
        let error = read_search_table(&path).unwrap_err();
        assert_eq!(error.to_string(), "the table is larger than 67108864 bytes");
        // Each trial would repeat the long name of a column.
        let header = format!("trial,rung,steps,score,seconds,error,{}\n", "k".repeat(1 << 20));
        std::fs::write(&path, header.clone() + &"1,1,10,0.5,1.0,,2\n".repeat(64)).unwrap();
        assert_eq!(read_search_table(&path).unwrap().trials.len(), 64);
        std::fs::write(&path, header + &"1,1,10,0.5,1.0,,2\n".repeat(65)).unwrap();
        assert!(matches!(read_search_table(&path), Err(SearchTableError::TooLarge)));
    }
}
