//! The files that jobs write: their kinds and their names.
//!
//! Reports state the kind of each file. Kinds are inferred from names only where files are found on disk without a report.

use crate::predict::zarr;
use crate::{ModelTask, TableFormat};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Content of a file that a job wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArtifactKind {
    /// Maps of a segmentation network: `NAME_probability.tif`. `NAME_raw.tif` counts as this kind, too: earlier
    /// versions wrote the maps of any network under this name.
    Probability,
    /// Maps of a label-free network: `NAME_prediction.tif`.
    Prediction,
    /// A label image: `NAME_labels.tif`, or `NAME_labels.ome.tif` with more objects than 16 bits can number.
    Labels,
    /// The measurements of the objects: `NAME_objects.csv` or `NAME_objects.parquet`.
    Table,
    /// A PNG of the middle slice: `NAME_preview.png`.
    Preview,
    /// The record from which the results can be reproduced: `NAME_provenance.json`.
    Provenance,
    /// The stack after the preprocessing steps of the job: `NAME_preprocessed.ome.tif`.
    Preprocessed,
}

/// Name suffix of label images with more objects than 16 bits can number.
const WIDE_LABELS_SUFFIX: &str = "_labels.ome.tif";
/// Name suffix of tables that are Parquet files.
const PARQUET_TABLE_SUFFIX: &str = "_objects.parquet";

/// Name suffixes other than [`ArtifactKind::suffix`]. A `.zarr` folder of maps may also hold the labels.
const OTHER_SUFFIXES: [(ArtifactKind, &str); 6] = [
    (ArtifactKind::Probability, "_raw.tif"),
    (ArtifactKind::Labels, WIDE_LABELS_SUFFIX),
    (ArtifactKind::Table, PARQUET_TABLE_SUFFIX),
    (ArtifactKind::Probability, "_probability.zarr"),
    (ArtifactKind::Prediction, "_prediction.zarr"),
    (ArtifactKind::Labels, "_labels.zarr"),
];

impl ArtifactKind {
    /// All kinds of artifacts.
    pub const ALL: [Self; 7] = [
        Self::Probability,
        Self::Prediction,
        Self::Labels,
        Self::Table,
        Self::Preview,
        Self::Provenance,
        Self::Preprocessed,
    ];

    /// Returns the kind of a task's maps.
    pub fn for_maps(task: ModelTask) -> Self {
        match task {
            ModelTask::Segmentation => Self::Probability,
            ModelTask::LabelFree => Self::Prediction,
        }
    }

    /// Returns the kind of a file name and the stem before its suffix; `None` if no job gives files such a name.
    pub fn from_name(name: &str) -> Option<(Self, &str)> {
        Self::suffixes().find_map(|(kind, suffix)| Some((kind, name.strip_suffix(suffix)?)))
    }

    /// Returns whether the file holds maps.
    pub fn is_maps(self) -> bool {
        matches!(self, Self::Probability | Self::Prediction)
    }

    /// Returns the usual file name for a stem.
    pub fn file_name(self, stem: &str) -> String {
        format!("{stem}{}", self.suffix())
    }

    /// Returns the name of an OME-Zarr folder for a stem; only maps and labels are written as such.
    pub(crate) fn zarr_name(self, stem: &str) -> String {
        let zarr = |(kind, suffix): &(Self, &str)| *kind == self && suffix.ends_with(".zarr");
        let suffix = Self::suffixes().find(zarr).map_or(".zarr", |(_, suffix)| suffix);
        format!("{stem}{suffix}")
    }

    fn suffix(self) -> &'static str {
        match self {
            Self::Probability => "_probability.tif",
            Self::Prediction => "_prediction.tif",
            Self::Labels => "_labels.tif",
            Self::Table => "_objects.csv",
            Self::Preview => "_preview.png",
            Self::Provenance => "_provenance.json",
            Self::Preprocessed => "_preprocessed.ome.tif",
        }
    }

    /// All kinds with their name suffixes, usual suffixes first.
    fn suffixes() -> impl Iterator<Item = (Self, &'static str)> {
        Self::ALL.into_iter().map(|kind| (kind, kind.suffix())).chain(OTHER_SUFFIXES)
    }
}

/// Returns the file name of label images with more objects than 16 bits can number.
pub(crate) fn wide_labels_name(stem: &str) -> String {
    format!("{stem}{WIDE_LABELS_SUFFIX}")
}

/// Returns the file name of the table of a stack in a form.
pub(crate) fn table_name(stem: &str, format: TableFormat) -> String {
    match format {
        TableFormat::Csv | TableFormat::AnnData => ArtifactKind::Table.file_name(stem),
        TableFormat::Parquet => format!("{stem}{PARQUET_TABLE_SUFFIX}"),
    }
}

/// A file that a job wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// Content of the file.
    pub kind: ArtifactKind,
    /// Path of the written file or folder.
    pub path: PathBuf,
}

impl Artifact {
    /// Describes the file at `path`, whose kind is known.
    pub fn new(kind: ArtifactKind, path: impl Into<PathBuf>) -> Self {
        Self { kind, path: path.into() }
    }

    /// Returns a file on disk with the kind that its name states; `None` if no job gives files such a name.
    pub fn from_file(path: PathBuf) -> Option<Self> {
        let (kind, _) = ArtifactKind::from_name(path.file_name()?.to_str()?)?;
        Some(Self { kind, path })
    }

    /// Returns the files and OME-Zarr folders that have the names of results of the stack with this stem. Those with usual
    /// names come before those with other names of the same kind.
    pub fn existing(folder: &Path, stem: &str) -> Vec<Self> {
        let found = |(kind, suffix): (ArtifactKind, &str)| {
            let path = folder.join(format!("{stem}{suffix}"));
            if path.is_file() {
                return vec![Self { kind, path }];
            }
            if !zarr::is_result(&path) {
                return Vec::new();
            }
            let has_labels = zarr::labels_path(&path) != path;
            zarr::artifacts(&path, kind.is_maps().then_some(kind), has_labels)
        };
        ArtifactKind::suffixes().flat_map(found).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_formats::{ZarrImageSpec, ZarrWriter};
    use cytoscope_volume::{DType, Samples};

    #[test]
    fn kinds_have_snake_case_names_in_json() {
        let names = ["probability", "prediction", "labels", "table", "preview", "provenance", "preprocessed"];
        for (kind, name) in ArtifactKind::ALL.into_iter().zip(names) {
            let artifact = Artifact::new(kind, "/o/x");
            let json = serde_json::to_value(&artifact).unwrap();
            assert_eq!(json, serde_json::json!({"kind": name, "path": "/o/x"}));
            assert_eq!(serde_json::from_value::<Artifact>(json).unwrap(), artifact);
        }
        assert!(serde_json::from_str::<Artifact>(r#"{"kind": "song", "path": "x"}"#).is_err());
    }

    #[test]
    fn names_state_kind_and_stem() {
        for kind in ArtifactKind::ALL {
            assert_eq!(ArtifactKind::from_name(&kind.file_name("a_b")), Some((kind, "a_b")));
        }
        assert_eq!(ArtifactKind::from_name("x_raw.tif"), Some((ArtifactKind::Probability, "x")));
        assert_eq!(ArtifactKind::from_name(&wide_labels_name("x")), Some((ArtifactKind::Labels, "x")));
        for format in [TableFormat::Csv, TableFormat::Parquet, TableFormat::AnnData] {
            assert_eq!(ArtifactKind::from_name(&table_name("x", format)), Some((ArtifactKind::Table, "x")));
        }
        for kind in [ArtifactKind::Probability, ArtifactKind::Prediction, ArtifactKind::Labels] {
            assert_eq!(ArtifactKind::from_name(&kind.zarr_name("x")), Some((kind, "x")));
        }
        assert_eq!(ArtifactKind::from_name("x_corrected_labels.tif"), Some((ArtifactKind::Labels, "x_corrected")));
        for other in ["x.tif", "labels.tif", "x_labels.png", ""] {
            assert_eq!(ArtifactKind::from_name(other), None, "{other}");
        }
        assert!(ArtifactKind::for_maps(ModelTask::LabelFree).is_maps() && !ArtifactKind::Labels.is_maps());
    }

    #[test]
    fn existing_results_are_listed_with_usual_names_first() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["x_raw.tif", "x_prediction.tif", "x_labels.ome.tif", "y_labels.tif", "x.tif"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let kinds: Vec<ArtifactKind> = Artifact::existing(folder.path(), "x").iter().map(|a| a.kind).collect();
        assert_eq!(kinds, [ArtifactKind::Prediction, ArtifactKind::Probability, ArtifactKind::Labels]);
    }

    #[test]
    fn existing_results_in_ome_zarr_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["x_probability.zarr", "x_labels.zarr"] {
            let spec = ZarrImageSpec::new("x", [1; 5], DType::U16);
            let mut writer = ZarrWriter::create_listed(&folder.path().join(name), spec).unwrap();
            writer.write(0, [0; 3], &Samples::U16(vec![1])).unwrap();
            let _ = writer.finish().unwrap().finish(zarr::FOLDER_KIND).unwrap().publish().unwrap();
        }
        // Not a result of ours.
        std::fs::create_dir(folder.path().join("x_prediction.zarr")).unwrap();
        let kinds: Vec<ArtifactKind> = Artifact::existing(folder.path(), "x").iter().map(|a| a.kind).collect();
        assert_eq!(kinds, [ArtifactKind::Probability, ArtifactKind::Labels]);
    }
}
