//! Results of earlier jobs on a stack, found when it is opened.

use super::ResultsPlace;
use crate::correct::files::CorrectionFiles;
use crate::documents::Predicted;
use crate::jobs::SavedOptions;
use crate::measure::table_name;
use cytoscope_pipeline::cards::card;
use cytoscope_pipeline::job_record::{AnyRecord, JobKind, JobRecord, Overwrite, read_any, record_path};
use cytoscope_pipeline::provenance::{self, Provenance};
use cytoscope_pipeline::{Artifact, ArtifactKind, JobError, OutputTensor, PARQUET_EXTENSION, SegmentJob};
use cytoscope_storage::target::extension;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Suffix of the stem of corrected labels.
const CORRECTED: &str = "_corrected";

/// Results of earlier jobs on a stack.
pub(crate) struct FoundResults {
    /// The results folder of the stack.
    pub(crate) folder: PathBuf,
    /// The results to show.
    pub(crate) outputs: Vec<Artifact>,
    /// Labels that were saved for a single time point, with their table if they were measured, by time point.
    pub(crate) by_time: BTreeMap<usize, Vec<Artifact>>,
    /// The time point to which the latest prediction of a time series was limited; `None` if it has all.
    pub(crate) only_time: Option<usize>,
    /// Settings with which the latest prediction found objects.
    pub(crate) predicted: Predicted,
    /// Settings of objects that were found again and saved since, by time point.
    pub(crate) saved_options: BTreeMap<usize, SavedOptions>,
    /// Time points that have a journal of corrections.
    pub(crate) corrected_times: BTreeSet<usize>,
}

impl FoundResults {
    /// Finds the results of an earlier prediction of a stack, its corrected labels, and those saved for single time points.
    pub(super) fn of(place: &ResultsPlace) -> Self {
        let folder = place.folder();
        let record = folder.join(ArtifactKind::Provenance.file_name(&place.stem));
        let read = |record: PathBuf| {
            let unread = |error: &JobError| tracing::warn!("the results of a prediction are not shown: {error}");
            provenance::read(&record).inspect_err(unread).ok()
        };
        let record = Some(record).filter(|record| record.is_file()).and_then(read);
        // The input's own path may be relative, as it was given on the command line; that of the job is absolute.
        let is_of = |r: &Provenance| r.job.inputs.iter().chain([&r.input.path]).any(|path| *path == place.stack);
        let prediction = record.filter(is_of);
        let predicted = prediction.as_ref().map(predicted).unwrap_or_default();
        let is_beside = place.beside().as_deref() == Some(folder.as_path());
        let search = Search { place, prediction, is_beside };
        let (mut outputs, mut by_time) = (search.outputs(&folder), search.by_time(&folder));
        let saved_options = search.saved_options(&folder, by_time.keys().copied());
        let only_time = search.only_time();
        if let Some(time) = only_time {
            let is_of_objects = |a: &Artifact| matches!(a.kind, ArtifactKind::Labels | ArtifactKind::Table);
            let (objects, others): (Vec<_>, Vec<_>) = outputs.into_iter().partition(is_of_objects);
            outputs = others;
            if !objects.is_empty() {
                by_time.entry(time).or_insert(objects);
            }
        }
        let corrected_times = corrected_times(place, &folder);
        Self { folder, outputs, by_time, only_time, predicted, saved_options, corrected_times }
    }
}

/// The time points of a stack that have a journal of corrections.
fn corrected_times(place: &ResultsPlace, folder: &Path) -> BTreeSet<usize> {
    if place.times < 2 {
        let journal = CorrectionFiles::existing(folder, &place.stem).journal;
        return journal.exists().then_some(0).into_iter().collect();
    }
    let journal_time = |name: &str| {
        let time: usize = name.strip_suffix(".corrections")?.rsplit_once("_t")?.1.parse().ok()?;
        let journal = CorrectionFiles::of(folder, &place.stem, Some(time)).journal;
        let is_journal = journal.file_name().is_some_and(|expected| expected == name);
        (time < place.times && is_journal).then_some(time)
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| journal_time(&entry.file_name().into_string().ok()?)).collect()
}

/// Returns the settings with which a prediction found objects: those of its model, scaled to its object diameter.
fn predicted(record: &Provenance) -> Predicted {
    let card = card(record.model.name.as_str(), &record.model.path);
    let scale = record.diameter.map_or(1.0, |diameter| diameter.scale());
    let segment = card.segment.map(|settings| settings.scaled(scale)).filter(|settings| settings.validate().is_ok());
    let first = card.outputs.first().map(|output| output.id.as_str());
    let channels = match &record.job.output_tensor {
        Some(OutputTensor::Id(id)) if Some(id.as_str()) != first => [0, 0],
        _ => [card.segment_channel, card.seed_channel],
    };
    Predicted { diameter: record.diameter, channels: segment.is_some().then_some(channels), segment }
}

/// Properties of a stack that decide which files of a folder are its results.
struct Search<'a> {
    place: &'a ResultsPlace,
    /// The record of the latest prediction of the stack into the folder; `None` if there is none.
    prediction: Option<Provenance>,
    /// Whether the folder is the one beside the stack.
    is_beside: bool,
}

impl Search<'_> {
    /// Whether the results of a prediction of the stack are in the folder.
    fn has_results(&self) -> bool {
        self.prediction.is_some()
    }

    /// The time point to which the latest prediction of a time series was limited; `None` if it has all.
    fn only_time(&self) -> Option<usize> {
        self.prediction.as_ref()?.job.time.filter(|time| self.place.times > 1 && *time < self.place.times)
    }

    /// Whether the latest prediction of the stack has written a file or folder, rather than an earlier one.
    fn is_from_latest(&self, path: &Path) -> bool {
        let outputs = self.prediction.iter().flat_map(|record| &record.outputs);
        outputs.map(|output| output.path.file_name()).any(|name| name == path.file_name())
    }

    /// The results that belong to all time points.
    fn outputs(&self, folder: &Path) -> Vec<Artifact> {
        let stem = self.place.stem.as_str();
        let mut existing = Artifact::existing(folder, stem);
        // Tables are shown from CSV. Labels are not shown with the map of an earlier prediction, from which other objects
        // would be saved over them.
        existing.retain(|a| match a.kind {
            ArtifactKind::Table => extension(&a.path).as_deref() != Some(PARQUET_EXTENSION),
            kind => !kind.is_maps() || self.is_from_latest(&a.path),
        });
        // If there are several, in other formats or of other versions, the newest are used.
        let written = |a: &&Artifact| std::fs::metadata(&a.path).and_then(|meta| meta.modified()).ok();
        let newest = |is: &dyn Fn(ArtifactKind) -> bool| existing.iter().filter(|a| is(a.kind)).max_by_key(written);
        let files = [
            newest(&|kind| kind.is_maps()),
            newest(&|kind| kind == ArtifactKind::Labels),
            newest(&|kind| kind == ArtifactKind::Table),
        ];
        let files: Vec<Artifact> = files.into_iter().flatten().cloned().collect();
        // Corrected labels take precedence over predicted ones.
        let corrected = CorrectionFiles::existing(folder, stem).labels;
        if !corrected.is_file() || !(self.has_results() || self.is_beside) {
            return if self.has_results() { files } else { Vec::new() };
        }
        let corrected = measured(corrected);
        // The table of corrected labels takes precedence over the table of the prediction.
        let is_replaced = |kind: ArtifactKind| corrected.iter().any(|a| a.kind == kind);
        let mut all: Vec<Artifact> = files.into_iter().filter(|a| self.has_results() && !is_replaced(a.kind)).collect();
        all.extend(corrected);
        all
    }

    /// The labels that were saved for single time points, with their tables.
    fn by_time(&self, folder: &Path) -> BTreeMap<usize, Vec<Artifact>> {
        if self.place.times < 2 {
            return BTreeMap::new();
        }
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let times: BTreeSet<usize> = names.filter_map(|name| parse_time_point(&name, &self.place.stem)).collect();
        let times = times.into_iter().filter(|time| *time < self.place.times);
        times.filter_map(|time| Some((time, measured(self.time_point_labels(folder, time)?)))).collect()
    }

    /// Settings of objects that were found again in the maps of the prediction and saved: those of the stack, or of some of
    /// its time points if it has several.
    fn saved_options(&self, folder: &Path, times: impl Iterator<Item = usize>) -> BTreeMap<usize, SavedOptions> {
        let stem = &self.place.stem;
        if self.place.times < 2 {
            return self.options_of(folder, stem).into_iter().map(|options| (0, options)).collect();
        }
        times.filter_map(|time| Some((time, self.options_of(folder, &format!("{stem}_t{time}"))?))).collect()
    }

    /// Settings of the objects that were saved under a stem after the latest prediction of the stack; `None` if there are none.
    fn options_of(&self, folder: &Path, stem: &str) -> Option<SavedOptions> {
        let path = record_path(&folder.join(ArtifactKind::Labels.file_name(stem)));
        let Ok(AnyRecord::Job(record)) = read_any(&path) else { return None };
        let is_current = self.prediction.as_ref()?.finished_unix_secs <= record.finished_unix_secs;
        if record.kind != JobKind::Segment || !is_current || !self.has_read_stack(&record) {
            return None;
        }
        let job: SegmentJob = record.job_again(&path, None, Overwrite::default()).ok()?;
        job.options.validate().ok()?;
        Some(SavedOptions { options: job.options, voxel_um: job.voxel_um })
    }

    /// Whether a job has read the stack.
    fn has_read_stack(&self, record: &JobRecord) -> bool {
        record.inputs.iter().any(|input| input.path == self.place.stack)
    }

    /// The labels that were saved for a time point.
    fn time_point_labels(&self, folder: &Path, time: usize) -> Option<PathBuf> {
        let stem = format!("{}_t{time}", self.place.stem);
        if folder.join(ArtifactKind::Provenance.file_name(&stem)).is_file() {
            // These labels belong to another stack, whose name ends in the time point.
            return None;
        }
        let corrected = CorrectionFiles::of(folder, &self.place.stem, Some(time)).labels;
        if corrected.is_file() && (self.has_results() || self.is_beside) {
            return Some(corrected);
        }
        let labels = Artifact::existing(folder, &stem).into_iter().find(|a| a.kind == ArtifactKind::Labels)?.path;
        let is_current = match read_any(&record_path(&labels)) {
            Ok(AnyRecord::Job(record)) => {
                // A later prediction takes precedence over objects that were saved before.
                let is_before = |prediction: &Provenance| record.finished_unix_secs < prediction.finished_unix_secs;
                let is_older = self.prediction.as_ref().is_some_and(is_before);
                !is_older && self.has_read_stack(&record)
            }
            Ok(AnyRecord::Prediction(_)) | Err(_) => self.has_results(),
        };
        is_current.then_some(labels)
    }
}

/// Labels with their table, if they were measured.
fn measured(labels: PathBuf) -> Vec<Artifact> {
    let table = labels.with_file_name(table_name(&labels));
    let table = table.is_file().then(|| Artifact::new(ArtifactKind::Table, table));
    table.into_iter().chain([Artifact::new(ArtifactKind::Labels, labels)]).collect()
}

/// The time point in the name of labels that were saved for a single one of a stack with this stem.
fn parse_time_point(name: &str, stem: &str) -> Option<usize> {
    let (kind, labels_stem) = ArtifactKind::from_name(name)?;
    let time_stem = labels_stem.strip_suffix(CORRECTED).unwrap_or(labels_stem);
    let digits = time_stem.strip_prefix(stem)?.strip_prefix("_t")?;
    let time: usize = digits.parse().ok()?;
    (kind == ArtifactKind::Labels && digits == time.to_string()).then_some(time)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Names of the results that are found for single time points.
    fn time_point_names(place: &ResultsPlace) -> BTreeMap<usize, Vec<String>> {
        let name = |a: Artifact| a.path.file_name().unwrap().to_string_lossy().into_owned();
        let found = FoundResults::of(place).by_time.into_iter();
        found.map(|(time, all)| (time, all.into_iter().map(name).collect())).collect()
    }

    #[test]
    fn maps_are_found_only_if_the_latest_prediction_has_written_them() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("cytoscope");
        std::fs::create_dir(&folder).unwrap();
        let stack = home.path().join("cells.tif");
        for name in ["cells_probability.tif", "cells_labels.tif"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        let place = ResultsPlace { stack: stack.clone(), stem: "cells".to_owned(), times: 1, chosen: None };
        let kinds_after = |written: &[&str]| {
            let record = serde_json::json!({
                "program": "p", "fingerprint": "f", "job": {"inputs": [&stack], "model": "m", "out": &folder},
                "model": {"name": "m", "path": "m", "fingerprint": "f"},
                "input": {"path": &stack, "bytes": 1, "modified_unix_secs": 1}, "outputs": written,
                "device": {}, "plan": {}, "objects": [], "finished_unix_secs": 5
            });
            std::fs::write(folder.join("cells_provenance.json"), record.to_string()).unwrap();
            FoundResults::of(&place).outputs.into_iter().map(|a| a.kind).collect::<Vec<_>>()
        };
        let both = [ArtifactKind::Probability, ArtifactKind::Labels];
        assert_eq!(kinds_after(&["/moved/cells_probability.tif", "/moved/cells_labels.tif"]), both);
        assert_eq!(kinds_after(&["/moved/cells_labels.tif"]), [ArtifactKind::Labels]);
    }

    #[test]
    fn journals_of_corrections_are_found_by_time_point() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("cytoscope");
        std::fs::create_dir(&folder).unwrap();
        for name in ["cells.corrections", "cells_t2.corrections", "cells_t9.corrections", "other_t1.corrections"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        let found = |times: usize| {
            let stack = home.path().join("cells.tif");
            let place = ResultsPlace { stack, stem: "cells".to_owned(), times, chosen: None };
            FoundResults::of(&place).corrected_times
        };
        assert_eq!((found(1), found(4)), (BTreeSet::from([0]), BTreeSet::from([2])));
    }

    #[test]
    fn labels_of_a_prediction_of_one_time_point_belong_to_it() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("cytoscope");
        std::fs::create_dir(&folder).unwrap();
        let stack = home.path().join("cells.tif");
        for name in ["cells_labels.tif", "cells_objects.csv"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        let found_after = |time: Option<usize>, times: usize| {
            let record = serde_json::json!({
                "program": "p", "fingerprint": "f",
                "job": {"inputs": [&stack], "model": "m", "out": &folder, "time": time},
                "model": {"name": "m", "path": "m", "fingerprint": "f"},
                "input": {"path": &stack, "bytes": 1, "modified_unix_secs": 1}, "outputs": [],
                "device": {}, "plan": {}, "objects": [], "finished_unix_secs": 5
            });
            std::fs::write(folder.join("cells_provenance.json"), record.to_string()).unwrap();
            let place = ResultsPlace { stack: stack.clone(), stem: "cells".to_owned(), times, chosen: None };
            let found = FoundResults::of(&place);
            (found.outputs.len(), found.by_time.get(&2).map_or(0, Vec::len))
        };
        assert_eq!(found_after(Some(2), 6), (0, 2));
        assert_eq!(found_after(None, 6), (2, 0));
        assert_eq!(found_after(Some(0), 1), (2, 0));
    }

    #[test]
    fn settings_of_objects_that_were_saved_after_the_prediction_are_found() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("cytoscope");
        std::fs::create_dir(&folder).unwrap();
        let stack = home.path().join("cells.tif");
        let prediction = serde_json::json!({
            "program": "p", "fingerprint": "f", "job": {"inputs": [&stack], "model": "m", "out": &folder},
            "model": {"name": "m", "path": "m", "fingerprint": "f"},
            "input": {"path": &stack, "bytes": 1, "modified_unix_secs": 1}, "outputs": [],
            "device": {}, "plan": {}, "objects": [], "finished_unix_secs": 5
        });
        std::fs::write(folder.join("cells_provenance.json"), prediction.to_string()).unwrap();
        let found_after = |name: &str, options: serde_json::Value, finished: u64, times: usize| {
            let labels = folder.join(name);
            let input = serde_json::json!({"path": &stack, "bytes": 1, "modified_unix_secs": 1});
            let job = serde_json::json!({"map": folder.join("cells_probability.tif"), "options": options});
            let record = serde_json::json!({
                "program": "p", "kind": "segment", "job": job, "inputs": [input], "outputs": [],
                "finished_unix_secs": finished
            });
            std::fs::write(&labels, "").unwrap();
            std::fs::write(record_path(&labels), record.to_string()).unwrap();
            let place = ResultsPlace { stack: stack.clone(), stem: "cells".to_owned(), times, chosen: None };
            let found = FoundResults::of(&place).saved_options;
            found.into_iter().map(|(time, saved)| (time, saved.options.drop_border)).collect::<Vec<_>>()
        };
        let excluded = serde_json::json!({"drop_border": true});
        assert_eq!(found_after("cells_labels.tif", excluded.clone(), 6, 1), [(0, true)]);
        // A later prediction has replaced the objects, and invalid settings are not used.
        assert!(found_after("cells_labels.tif", excluded.clone(), 4, 1).is_empty());
        assert!(found_after("cells_labels.tif", serde_json::json!({"smooth_um": -1.0}), 6, 1).is_empty());
        assert_eq!(found_after("cells_t2_labels.tif", excluded, 6, 3), [(2, true)]);
    }

    #[test]
    fn results_of_a_prediction_whose_input_was_given_as_a_relative_path_are_found() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("cytoscope");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("cells_labels.tif"), "").unwrap();
        let place =
            ResultsPlace { stack: home.path().join("cells.tif"), stem: "cells".to_owned(), times: 1, chosen: None };
        let found_after = |predicted: &Path| {
            let record = serde_json::json!({
                "program": "p", "fingerprint": "f", "job": {"inputs": [predicted], "model": "m", "out": &folder},
                "model": {"name": "m", "path": "m", "fingerprint": "f"},
                "input": {"path": "cells.tif", "bytes": 1, "modified_unix_secs": 1}, "outputs": [],
                "device": {}, "plan": {}, "objects": [], "finished_unix_secs": 5
            });
            std::fs::write(folder.join("cells_provenance.json"), record.to_string()).unwrap();
            FoundResults::of(&place).outputs.len()
        };
        assert_eq!(found_after(&place.stack), 1);
        assert_eq!(found_after(&home.path().join("other/cells.tif")), 0);
    }

    #[test]
    fn labels_of_single_time_points_are_found_unless_they_are_those_of_another_stack() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("cytoscope");
        std::fs::create_dir(&folder).unwrap();
        let place = |times| ResultsPlace {
            stack: home.path().join("cells.tif"),
            stem: "cells".to_owned(),
            times,
            chosen: None,
        };
        let record = |stack: &Path| {
            let input = serde_json::json!({"path": stack, "bytes": 1, "modified_unix_secs": 1});
            let record = serde_json::json!({
                "program": "p", "kind": "segment", "job": {}, "inputs": [input], "outputs": [], "finished_unix_secs": 5
            });
            record.to_string()
        };
        let (own, other) = (record(&place(1).stack), record(&home.path().join("other/cells.tif")));
        let files = [
            ("cells_t0_corrected_labels.tif", ""),
            ("cells_t1_labels.tif", ""),
            ("cells_t1_labels.tif_provenance.json", own.as_str()),
            ("cells_t1_objects.csv", ""),
            // Corrected labels take precedence.
            ("cells_t2_labels.tif", ""),
            ("cells_t2_labels.tif_provenance.json", own.as_str()),
            ("cells_t2_corrected_labels.tif", ""),
            ("cells_t2_corrected_objects.csv", ""),
            // The objects of another stack, and the prediction of one that is named after a time point.
            ("cells_t3_labels.tif", ""),
            ("cells_t3_labels.tif_provenance.json", other.as_str()),
            ("cells_t4_labels.tif", ""),
            ("cells_t4_provenance.json", "{}"),
            // Neither is a time point of the stack.
            ("cells_t05_labels.tif", ""),
            ("cells_t99_corrected_labels.tif", ""),
        ];
        files.iter().for_each(|(name, text)| std::fs::write(folder.join(name), text).unwrap());
        let expected = [
            (0, vec!["cells_t0_corrected_labels.tif"]),
            (1, vec!["cells_t1_objects.csv", "cells_t1_labels.tif"]),
            (2, vec!["cells_t2_corrected_objects.csv", "cells_t2_corrected_labels.tif"]),
        ];
        let expected = expected.map(|(time, names)| (time, names.into_iter().map(str::to_owned).collect::<Vec<_>>()));
        assert_eq!(time_point_names(&place(6)), BTreeMap::from(expected));
        assert!(time_point_names(&place(1)).is_empty());
    }
}
