//! Forms of the table of objects.

use serde::{Deserialize, Serialize};

/// Form of a table of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TableFormat {
    /// CSV whose first column, `label`, is the number of the object.
    #[default]
    Csv,
    /// CSV as `anndata.io.read_csv` reads it: the first column, `object`, is the name of the object, such as `object_7`, and
    /// all others are numbers.
    AnnData,
}

impl TableFormat {
    /// Returns a table of one time point, whose first column is `label` and is not quoted, in this form.
    pub(crate) fn text(self, csv: String) -> String {
        if self == TableFormat::Csv {
            return csv;
        }
        let mut text = String::with_capacity(csv.len() + csv.len() / 4);
        for (i, line) in csv.lines().enumerate() {
            match line.split_once(',') {
                Some((_, columns)) if i == 0 => text.push_str(&format!("object,{columns}\n")),
                _ => text.push_str(&format!("object_{line}\n")),
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_for_anndata_are_named() {
        let csv = "label,voxels,mean_a\n7,10,2.5\n12,3,0\n";
        assert_eq!(TableFormat::AnnData.text(csv.to_owned()), "object,voxels,mean_a\nobject_7,10,2.5\nobject_12,3,0\n");
        assert_eq!(TableFormat::Csv.text(csv.to_owned()), csv);
        assert_eq!(TableFormat::AnnData.text("label,voxels\n".to_owned()), "object,voxels\n");
    }
}
