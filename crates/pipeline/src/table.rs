//! Formats of the table of objects: CSV, CSV for AnnData, and Parquet.

mod parquet_file;

pub use parquet_file::parquet_table;

use crate::JobError;
use cytoscope_objects::ObjectTable;
use cytoscope_storage::target::extension;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Extension of Parquet files.
pub const PARQUET_EXTENSION: &str = "parquet";

/// Format of a table of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TableFormat {
    /// CSV whose column `label` is the number of the object; Parquet if the table's name ends in `.parquet`.
    #[default]
    Csv,
    /// Parquet with the columns of the CSV.
    Parquet,
    /// CSV as `anndata.io.read_csv` reads it: the first column, `object`, is the name of the object, such as `object_7`
    /// (`t2_object_7` at time point 2), and all others are numbers.
    AnnData,
}

cytoscope_storage::parsed_by_name!(TableFormat, "unknown table format");

impl TableFormat {
    /// All forms.
    pub const ALL: [Self; 3] = [Self::Csv, Self::Parquet, Self::AnnData];

    /// Returns the name of the form on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Csv => "csv",
            Self::Parquet => "parquet",
            Self::AnnData => "anndata",
        }
    }

    /// Returns whether this is the default, which records leave out.
    pub(crate) fn is_csv(&self) -> bool {
        *self == Self::Csv
    }

    /// Checks that a table of this form can be written to a path, before work is done that could not be saved.
    ///
    /// # Errors
    /// [`JobError::WrongUse`] for a Parquet file in the form of AnnData, which reads CSV, or Parquet under another name.
    pub(crate) fn check_path(self, path: &Path) -> Result<(), JobError> {
        let (problem, next_step) = match (self, is_parquet(path)) {
            (Self::AnnData, true) => {
                ("ends in .parquet, but AnnData reads tables as CSV", "give a name that ends in .csv")
            }
            (Self::Parquet, false) => ("cannot hold a Parquet table", "give a name that ends in .parquet"),
            (Self::Csv, _) | (Self::Parquet, true) | (Self::AnnData, false) => return Ok(()),
        };
        Err(JobError::wrong_use_with(format!("{} {problem}", path.display()), next_step))
    }

    /// Returns the content of a table's file: Parquet if its name ends in `.parquet`, else CSV in this form.
    ///
    /// # Errors
    /// [`JobError::WrongUse`] if the table cannot be represented.
    pub(crate) fn file(self, path: &Path, table: &ObjectTable) -> Result<Vec<u8>, JobError> {
        self.check_path(path)?;
        if is_parquet(path) {
            let wrong = |problem: String| JobError::wrong_use(format!("{}: {problem}", path.display()));
            return parquet_table(table).map_err(wrong);
        }
        let text = if self == Self::AnnData { table.anndata_csv() } else { table.csv() };
        Ok(text.into_bytes())
    }
}

/// Whether a path has the extension of a Parquet file.
fn is_parquet(path: &Path) -> bool {
    extension(path).as_deref() == Some(PARQUET_EXTENSION)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn the_name_of_a_table_chooses_csv_or_parquet() {
        let names = ["label", "voxels", "mean_a"].map(str::to_owned);
        let table = ObjectTable::from_numbers(&names, &[vec![7.0, 10.0, 2.5], vec![12.0, 3.0, 0.0]]);
        let csv = "label,voxels,mean_a\n7,10,2.5\n12,3,0\n";
        let file = |format: TableFormat, name: &str| format.file(Path::new(name), &table);
        assert_eq!(file(TableFormat::Csv, "a.csv").unwrap(), csv.as_bytes());
        assert_eq!(file(TableFormat::Csv, "a.txt").unwrap(), csv.as_bytes());
        let named = "object,voxels,mean_a\nobject_7,10,2.5\nobject_12,3,0\n";
        assert_eq!(file(TableFormat::AnnData, "a.csv").unwrap(), named.as_bytes());
        assert_eq!(file(TableFormat::Csv, "a.Parquet").unwrap(), parquet_table(&table).unwrap());
        let refused = file(TableFormat::AnnData, "a.parquet").unwrap_err().to_string();
        assert!(refused.contains("a.parquet") && refused.contains(".csv"), "{refused}");
        assert_eq!(file(TableFormat::Parquet, "a.parquet").unwrap(), parquet_table(&table).unwrap());
        let refused = file(TableFormat::Parquet, "a.csv").unwrap_err().to_string();
        assert!(refused.contains("a.csv") && refused.contains(".parquet"), "{refused}");
    }

    #[test]
    fn forms_have_the_same_names_in_files_and_on_the_command_line() {
        for format in [TableFormat::Csv, TableFormat::Parquet, TableFormat::AnnData] {
            let name = serde_json::to_value(format).unwrap();
            assert_eq!(name.as_str().unwrap().parse::<TableFormat>(), Ok(format));
        }
        assert!("xlsx".parse::<TableFormat>().unwrap_err().contains("xlsx"));
    }
}
