//! Tables as [Apache Parquet](https://parquet.apache.org/docs/file-format/) files.

use cytoscope_objects::ObjectColumn;
use cytoscope_objects::measure::distinct_names;
use parquet::basic::{Repetition, Type as PhysicalType};
use parquet::data_type::{DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{Type, TypePtr};
use std::sync::Arc;

/// Largest magnitude up to which 64-bit floats represent every whole number.
const MAX_WHOLE: f64 = 9_007_199_254_740_992.0;

/// Returns a table as a Parquet file without compression: one row group, columns of type INT64 or DOUBLE. Cells that a row
/// lacks are NaN. Columns of the same name are numbered, because readers look columns up by name.
///
/// # Errors
/// A sentence that says why the table cannot be represented.
pub fn parquet_table(columns: &[String], rows: &[Vec<f64>]) -> Result<Vec<u8>, String> {
    encode(columns, rows).map_err(|error| format!("the table cannot be written as Parquet: {error}"))
}

fn encode(columns: &[String], rows: &[Vec<f64>]) -> Result<Vec<u8>, ParquetError> {
    let are_whole: Vec<bool> = columns.iter().enumerate().map(|(c, name)| is_whole(name, c, rows)).collect();
    let names = distinct_names(columns);
    let fields = names.iter().zip(&are_whole).map(|(name, whole)| field(name, *whole));
    let fields = fields.collect::<Result<Vec<_>, _>>()?;
    let schema = Arc::new(Type::group_type_builder("schema").with_fields(fields).build()?);
    let properties = Arc::new(WriterProperties::builder().build());
    let mut bytes: Vec<u8> = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, properties)?;
    let mut group = writer.next_row_group()?;
    for (c, whole) in are_whole.iter().enumerate() {
        let Some(mut column) = group.next_column()? else { break };
        let values = rows.iter().map(|row| cell(row, c));
        if *whole {
            let values: Vec<i64> = values.map(|value| value as i64).collect();
            column.typed::<Int64Type>().write_batch(&values, None, None)?;
        } else {
            let values: Vec<f64> = values.collect();
            column.typed::<DoubleType>().write_batch(&values, None, None)?;
        }
        column.close()?;
    }
    group.close()?;
    writer.close()?;
    Ok(bytes)
}

fn field(name: &str, whole: bool) -> Result<TypePtr, ParquetError> {
    let physical = if whole { PhysicalType::INT64 } else { PhysicalType::DOUBLE };
    let builder = Type::primitive_type_builder(name, physical).with_repetition(Repetition::REQUIRED);
    Ok(Arc::new(builder.build()?))
}

fn cell(row: &[f64], column: usize) -> f64 {
    row.get(column).copied().unwrap_or(f64::NAN)
}

/// Whether a column has whole numbers by its name, and all of its values are. Other columns are floating-point numbers even if
/// a table has only whole ones in them, so that the tables of several stacks have the same types.
fn is_whole(name: &str, column: usize, rows: &[Vec<f64>]) -> bool {
    let fits = |value: f64| value.fract() == 0.0 && value.abs() <= MAX_WHOLE;
    ObjectColumn::of_name(name).is_some_and(ObjectColumn::is_whole) && rows.iter().all(|row| fits(cell(row, column)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use std::process::Command;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn files_begin_and_end_with_the_magic_number() {
        for rows in [vec![], vec![vec![1.0, 0.5], vec![2.0]]] {
            let bytes = parquet_table(&names(&["label", "mean"]), &rows).unwrap();
            assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"), "{} rows", rows.len());
        }
    }

    /// Prints the names, types and values of a Parquet file.
    const READ: &str = "
import json, sys
import pyarrow.parquet
table = pyarrow.parquet.read_table(sys.argv[1])
print(json.dumps([[c, str(table.schema.field(c).type), [repr(v) for v in table[c].to_pylist()]] for c in table.column_names]))
";

    #[test]
    fn pyarrow_reads_the_same_numbers() {
        let python = std::env::var("CYTOSCOPE_PYTHON").unwrap_or_else(|_| "python3".into());
        let found = Command::new(&python).args(["-c", "import pyarrow.parquet"]).output();
        if !found.is_ok_and(|output| output.status.success()) {
            return cytoscope_testkit::skip(format!("{python} does not have pyarrow (set CYTOSCOPE_PYTHON)"));
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table.parquet");
        let columns = names(&["label", "mean_a", "mean_a", "voxels", "sphericity"]);
        let rows = vec![vec![7.0, 1e-9, 3.0, 5.0, 0.25], vec![4_294_967_295.0, 0.1, 4.0, 5.5]];
        std::fs::write(&path, parquet_table(&columns, &rows).unwrap()).unwrap();
        let output = Command::new(&python).args(["-c", READ]).arg(&path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let read: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let expected = serde_json::json!([
            ["label", "int64", ["7", "4294967295"]],
            ["mean_a", "double", ["1e-09", "0.1"]],
            ["mean_a_2", "double", ["3.0", "4.0"]],
            // Not whole in this table.
            ["voxels", "double", ["5.0", "5.5"]],
            ["sphericity", "double", ["0.25", "nan"]],
        ]);
        assert_eq!(read, expected);
    }
}
