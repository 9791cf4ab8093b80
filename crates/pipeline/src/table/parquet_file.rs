//! Tables as [Apache Parquet](https://parquet.apache.org/docs/file-format/) files.

use cytoscope_objects::ObjectTable;
use cytoscope_objects::table::{Cells, TableColumn, distinct_names, stated};
use parquet::basic::{LogicalType, Repetition, Type as PhysicalType};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{Type, TypePtr};
use std::sync::Arc;

/// Returns a table as a Parquet file without compression: one row group, columns of type INT64, DOUBLE or STRING. Columns of
/// the same name are numbered, because readers look columns up by name.
///
/// # Errors
/// A sentence that says why the table cannot be represented.
pub fn parquet_table(table: &ObjectTable) -> Result<Vec<u8>, String> {
    encode(table.columns()).map_err(|error| format!("the table cannot be written as Parquet: {error}"))
}

fn encode(columns: &[TableColumn]) -> Result<Vec<u8>, ParquetError> {
    let names: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
    let names = distinct_names(&names);
    let fields = names.iter().zip(columns).map(|(name, column)| field(name, &column.cells));
    let fields = fields.collect::<Result<Vec<_>, _>>()?;
    let schema = Arc::new(Type::group_type_builder("schema").with_fields(fields).build()?);
    let properties = Arc::new(WriterProperties::builder().build());
    let mut bytes: Vec<u8> = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, properties)?;
    let mut group = writer.next_row_group()?;
    for TableColumn { cells, .. } in columns {
        let Some(mut column) = group.next_column()? else { break };
        match cells {
            Cells::Whole(values) => column.typed::<Int64Type>().write_batch(values, None, None)?,
            Cells::Measured(values) => {
                let values: Vec<f64> = values.iter().map(|value| stated(*value)).collect();
                column.typed::<DoubleType>().write_batch(&values, None, None)?
            }
            Cells::Float(values) => column.typed::<DoubleType>().write_batch(values, None, None)?,
            Cells::Text(texts) => {
                let texts: Vec<ByteArray> =
                    texts.iter().map(|text| ByteArray::from(text.as_bytes().to_vec())).collect();
                column.typed::<ByteArrayType>().write_batch(&texts, None, None)?
            }
        };
        column.close()?;
    }
    group.close()?;
    writer.close()?;
    Ok(bytes)
}

fn field(name: &str, cells: &Cells) -> Result<TypePtr, ParquetError> {
    let (physical, logical) = match cells {
        Cells::Whole(_) => (PhysicalType::INT64, None),
        Cells::Measured(_) | Cells::Float(_) => (PhysicalType::DOUBLE, None),
        Cells::Text(_) => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
    };
    let builder = Type::primitive_type_builder(name, physical).with_repetition(Repetition::REQUIRED);
    Ok(Arc::new(builder.with_logical_type(logical).build()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::{Row, RowAccessor};

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn texts_and_measurements_are_read_back_as_csv_states_them() {
        let texts = ["a,b", "say \"no\"", "", "two\nlines"].map(str::to_owned);
        let measured = [1.0 / 3.0, f64::NAN, 1234567.8, 1e-14];
        let column = |name: &str, cells| TableColumn { name: name.to_owned(), cells };
        let table = ObjectTable::new(vec![
            column("label", Cells::Whole(vec![1, 2, 3, 4_294_967_295])),
            column("note", Cells::Text(texts.to_vec())),
            column("volume_um3", Cells::Measured(measured.to_vec())),
            column("other", Cells::Float(measured.to_vec())),
        ]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table.parquet");
        std::fs::write(&path, parquet_table(&table).unwrap()).unwrap();
        let reader = SerializedFileReader::new(std::fs::File::open(&path).unwrap()).unwrap();
        let rows: Vec<Row> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        let labels: Vec<i64> = rows.iter().map(|row| row.get_long(0).unwrap()).collect();
        assert_eq!(labels, [1, 2, 3, 4_294_967_295]);
        let notes: Vec<&String> = rows.iter().map(|row| row.get_string(1).unwrap()).collect();
        assert_eq!(notes, texts.iter().collect::<Vec<_>>());
        let numbers = |column: usize| rows.iter().map(move |row| row.get_double(column).unwrap().to_string());
        assert_eq!(numbers(2).collect::<Vec<_>>(), ["0.333333", "NaN", "1234568", "0"]);
        assert_eq!(numbers(3).collect::<Vec<_>>(), measured.map(|value| value.to_string()));
    }

    #[test]
    fn files_begin_and_end_with_the_magic_number() {
        for rows in [vec![], vec![vec![1.0, 0.5], vec![2.0]]] {
            let bytes = parquet_table(&ObjectTable::from_numbers(&names(&["label", "mean"]), &rows)).unwrap();
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
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table.parquet");
        let columns = names(&["label", "mean_a", "mean_a", "voxels", "sphericity"]);
        let rows = vec![vec![7.0, 1e-9, 3.0, 5.0, 0.25], vec![4_294_967_295.0, 0.1, 4.0, 5.5]];
        std::fs::write(&path, parquet_table(&ObjectTable::from_numbers(&columns, &rows)).unwrap()).unwrap();
        let Some(printed) = cytoscope_testkit::python("pyarrow.parquet", READ, &[&path]) else { return };
        let read: serde_json::Value = serde_json::from_str(&printed).unwrap();
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
