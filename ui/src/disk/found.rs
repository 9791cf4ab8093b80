//! Results of earlier jobs on a stack, found when it is opened.

use super::owner::CorrectionStem;
use super::place::{ResultsPlace, modified};
use crate::correct::files::CorrectionFiles;
use crate::documents::Predicted;
use crate::jobs::SavedOptions;
use crate::measure::table_name;
use cytoscope_pipeline::cards::card;
use cytoscope_pipeline::job_record::{AnyRecord, JobKind, JobRecord, Overwrite, read_any, record_path};
use cytoscope_pipeline::predict::containing_maps;
use cytoscope_pipeline::provenance::{self, Provenance};
use cytoscope_pipeline::{Artifact, ArtifactKind, JobError, OutputTensor, PARQUET_EXTENSION, SegmentJob};
use cytoscope_preprocess::PreprocessStep;
use cytoscope_storage::target::extension;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Suffix of the stem of corrected labels.
const CORRECTED: &str = "_corrected";

/// Labels with their table, if they were measured.
pub(crate) type LabelSet = Vec<Artifact>;

/// Results of earlier jobs on a stack.
pub(crate) struct FoundResults {
    /// The folder of new results of the stack.
    pub(crate) folder: PathBuf,
    /// Folders that have results of the stack.
    pub(crate) known: Vec<PathBuf>,
    /// Folders other than that of new results, if some of the results to show are in them.
    pub(crate) elsewhere: Vec<PathBuf>,
    /// The results to show.
    pub(crate) outputs: Vec<Artifact>,
    /// Labels that were saved for a single time point, with their table if they were measured, by time point.
    pub(crate) by_time: BTreeMap<usize, LabelSet>,
    /// All labels of the time points that have others than those to show; 0 in a stack with a single time point.
    pub(crate) choices: BTreeMap<usize, Vec<LabelSet>>,
    /// Corrected labels that are not shown because newer labels are.
    pub(crate) older_corrections: Vec<PathBuf>,
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
    /// Finds the results of an earlier prediction of a stack, its corrected labels, and those saved for single time points. If
    /// several folders have results, the newest are shown.
    pub(super) fn of(place: &ResultsPlace) -> Self {
        let (folder, others, is_series) = (place.folder(), place.other_folders(), place.times > 1);
        let mut found = FolderResults::of(place, &folder);
        let mut corrected_times = journal_times(place, &folder);
        let mut known: Vec<PathBuf> = found.has_any().then(|| folder.clone()).into_iter().collect();
        for other in &others {
            corrected_times.extend(journal_times(place, other));
            let mut older = FolderResults::of(place, other);
            known.extend(older.has_any().then(|| other.clone()));
            if older.written() > found.written() {
                std::mem::swap(&mut found, &mut older);
            }
            found.take_over(older, is_series);
        }
        let older_corrections = found.complete_choices(is_series);
        let FolderResults { outputs, by_time, choices, only_time, predicted, saved_options } = found;
        let shown: Vec<&Artifact> = outputs.iter().chain(by_time.values().flatten()).collect();
        let is_elsewhere =
            |other: &PathBuf| shown.iter().any(|a| a.path.starts_with(other) && !a.path.starts_with(&folder));
        let elsewhere = others.into_iter().filter(is_elsewhere).collect();
        Self {
            elsewhere,
            folder,
            known,
            outputs,
            by_time,
            choices,
            older_corrections,
            only_time,
            predicted,
            saved_options,
            corrected_times,
        }
    }
}

/// Results of earlier jobs on a stack in one folder, and then labels of further folders.
struct FolderResults {
    outputs: Vec<Artifact>,
    by_time: BTreeMap<usize, LabelSet>,
    /// Labels other than those to show.
    choices: BTreeMap<usize, Vec<LabelSet>>,
    only_time: Option<usize>,
    predicted: Predicted,
    saved_options: BTreeMap<usize, SavedOptions>,
}

impl FolderResults {
    fn of(place: &ResultsPlace, folder: &Path) -> Self {
        let record = folder.join(ArtifactKind::Provenance.file_name(&place.stem));
        let read = |record: PathBuf| {
            let unread = |error: &JobError| tracing::warn!("the results of a prediction are not shown: {error}");
            provenance::read(&record).inspect_err(unread).ok()
        };
        let record = Some(record).filter(|record| record.is_file()).and_then(read);
        // Results do not lie on a stack whose voxels its preprocessing has moved.
        let is_moved = |record: &Provenance| record.job.preprocess.iter().any(PreprocessStep::moves_voxels);
        let prediction = record.filter(|record| place.is_input_of(record) && !is_moved(record));
        let predicted = prediction.as_ref().map(predicted).unwrap_or_default();
        let corrections = place.correction_stem(folder);
        let search = Search { place, prediction, is_own: place.is_own(folder), corrections };
        let (mut outputs, other) = search.outputs(folder);
        let (mut by_time, mut choices) = search.by_time(folder);
        if place.times < 2 {
            choices.extend(other.map(|other| (0, vec![other])));
        }
        let saved_options = search.saved_options(folder, by_time.keys().copied());
        let only_time = search.only_time();
        if let Some(time) = only_time {
            let is_of_objects = |a: &Artifact| matches!(a.kind, ArtifactKind::Labels | ArtifactKind::Table);
            let (objects, others): (Vec<_>, Vec<_>) = outputs.into_iter().partition(is_of_objects);
            outputs = others;
            match by_time.entry(time) {
                Entry::Occupied(_) => choices.entry(time).or_default().extend(label_set(&objects)),
                Entry::Vacant(unset) if !objects.is_empty() => _ = unset.insert(objects),
                Entry::Vacant(_) => {}
            }
        }
        Self { outputs, by_time, choices, only_time, predicted, saved_options }
    }

    fn has_any(&self) -> bool {
        !self.outputs.is_empty() || !self.by_time.is_empty()
    }

    /// When the newest result of the whole stack was written, or of the time point to which its prediction was limited.
    fn written(&self) -> Option<SystemTime> {
        let limited = self.only_time.and_then(|time| self.by_time.get(&time));
        self.outputs.iter().chain(limited.into_iter().flatten()).filter_map(|a| modified(&a.path)).max()
    }

    /// Adds the labels of another folder. Those of a single time point are shown if they are newer.
    fn take_over(&mut self, other: Self, is_series: bool) {
        for (time, sets) in other.choices {
            self.choices.entry(time).or_default().extend(sets);
        }
        if !is_series {
            self.choices.entry(0).or_default().extend(label_set(&other.outputs));
            return;
        }
        for (time, set) in other.by_time {
            let shown = self.by_time.get(&time).unwrap_or(&self.outputs);
            let other = match labels_written(&set) > labels_written(shown) {
                true => self.by_time.insert(time, set),
                false => Some(set),
            };
            self.choices.entry(time).or_default().extend(other);
        }
    }

    /// Adds the labels to show to the others of the same time point. Returns the corrected labels for which newer ones are shown.
    fn complete_choices(&mut self, is_series: bool) -> Vec<PathBuf> {
        self.choices.retain(|_, sets| !sets.is_empty());
        let corrected = |set: &LabelSet| labels_of(set).filter(|path| is_corrected(path)).map(Path::to_owned);
        let mut older = Vec::new();
        for (time, sets) in &mut self.choices {
            let shown = if is_series { self.by_time.get(time).cloned() } else { label_set(&self.outputs) };
            if shown.as_ref().is_none_or(|shown| corrected(shown).is_none()) {
                older.extend(sets.iter().filter_map(corrected));
            }
            sets.extend(shown);
        }
        older
    }
}

/// The labels among results, with their table; `None` without labels.
fn label_set(results: &[Artifact]) -> Option<LabelSet> {
    labels_of(results)?;
    let is_of_objects = |a: &&Artifact| matches!(a.kind, ArtifactKind::Labels | ArtifactKind::Table);
    Some(results.iter().filter(is_of_objects).cloned().collect())
}

/// The file of the labels among results.
fn labels_of(results: &[Artifact]) -> Option<&Path> {
    results.iter().find(|a| a.kind == ArtifactKind::Labels).map(|a| a.path.as_path())
}

/// When the labels among results were written.
fn labels_written(results: &[Artifact]) -> Option<SystemTime> {
    labels_of(results).and_then(modified)
}

/// Whether a file is named as corrected labels.
fn is_corrected(labels: &Path) -> bool {
    let name = labels.file_name().and_then(|name| name.to_str()).and_then(ArtifactKind::from_name);
    name.is_some_and(|(_, stem)| stem.ends_with(CORRECTED))
}

/// The time points of a stack that have a journal of corrections in a folder.
fn journal_times(place: &ResultsPlace, folder: &Path) -> BTreeSet<usize> {
    let stem = place.correction_stem(folder).text;
    if place.times < 2 {
        let journal = place.correction_files_named(folder, &stem, 0).journal;
        return journal.exists().then_some(0).into_iter().collect();
    }
    let journal_time = |name: &str| {
        let time: usize = name.strip_suffix(".corrections")?.rsplit_once("_t")?.1.parse().ok()?;
        let journal = place.correction_files_named(folder, &stem, time).journal;
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
    /// Whether files in the folder with the stem of the stack are known to be its own.
    is_own: bool,
    /// Stem of its correction files.
    corrections: CorrectionStem,
}

impl Search<'_> {
    /// Whether the results of a prediction of the stack are in the folder.
    fn has_results(&self) -> bool {
        self.prediction.is_some()
    }

    /// Whether correction files in the folder are those of the stack.
    fn has_own_corrections(&self) -> bool {
        self.corrections.is_claimed || self.has_results() || self.is_own
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

    /// Whether labels are those of the latest prediction of the stack, objects of the stack that were saved, or labels that were
    /// written after the prediction. Others may be those of another stack of the same name, whose prediction had the same folder.
    fn are_labels_of_latest(&self, labels: &Path) -> bool {
        let Some(prediction) = &self.prediction else { return false };
        if self.is_from_latest(containing_maps(labels)) {
            return true;
        }
        let finished = prediction.finished_unix_secs;
        if let Ok(AnyRecord::Job(record)) = read_any(&record_path(labels)) {
            let is_later = finished <= record.finished_unix_secs;
            let reads_maps = || record.inputs.iter().any(|input| self.is_from_latest(&input.path));
            return self.has_read_stack(&record) || (is_later && reads_maps());
        }
        let since_1970 = modified(labels).and_then(|written| written.duration_since(SystemTime::UNIX_EPOCH).ok());
        since_1970.is_some_and(|since| finished <= since.as_secs())
    }

    /// The results that belong to all time points, and labels other than those to show.
    fn outputs(&self, folder: &Path) -> (Vec<Artifact>, Option<LabelSet>) {
        let stem = self.place.stem.as_str();
        let mut existing = Artifact::existing(folder, stem);
        // Labels are not shown with the map of an earlier prediction, from which other objects would be saved over them.
        existing.retain(|a| match a.kind {
            ArtifactKind::Labels => self.are_labels_of_latest(&a.path),
            kind => !kind.is_maps() || self.is_from_latest(&a.path),
        });
        // Tables are shown from CSV, and belong to the labels beside them.
        let has_labels = existing.iter().any(|a| a.kind == ArtifactKind::Labels);
        existing.retain(|a| {
            let is_csv = extension(&a.path).as_deref() != Some(PARQUET_EXTENSION);
            a.kind != ArtifactKind::Table || (is_csv && (has_labels || self.is_from_latest(&a.path)))
        });
        // If there are several, in other formats or of other versions, the newest are used.
        let newest = |is: &dyn Fn(ArtifactKind) -> bool| {
            existing.iter().filter(|a| is(a.kind)).max_by_key(|a| modified(&a.path))
        };
        let files = [
            newest(&|kind| kind.is_maps()),
            newest(&|kind| kind == ArtifactKind::Labels),
            newest(&|kind| kind == ArtifactKind::Table),
        ];
        let files: Vec<Artifact> = files.into_iter().flatten().filter(|_| self.has_results()).cloned().collect();
        let corrected = CorrectionFiles::existing(folder, &self.corrections.text).labels;
        if !corrected.is_file() || !self.has_own_corrections() {
            return (files, None);
        }
        let (predicted, is_newer) = (label_set(&files), self.are_objects_newer(folder, stem, &corrected));
        let corrected = measured(corrected);
        if predicted.is_some() && is_newer {
            return (files, Some(corrected));
        }
        // The table of corrected labels takes precedence over the table of the prediction.
        let is_replaced = |kind: ArtifactKind| corrected.iter().any(|a| a.kind == kind);
        let mut all: Vec<Artifact> = files.into_iter().filter(|a| !is_replaced(a.kind)).collect();
        all.extend(corrected);
        (all, predicted)
    }

    /// The labels that were saved for single time points, with their tables, and labels other than those to show.
    fn by_time(&self, folder: &Path) -> (BTreeMap<usize, LabelSet>, BTreeMap<usize, Vec<LabelSet>>) {
        let (mut shown, mut others) = (BTreeMap::new(), BTreeMap::new());
        if self.place.times < 2 {
            return (shown, others);
        }
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let stems = [&self.place.stem, &self.corrections.text];
        let times = names.filter_map(|name| stems.iter().find_map(|stem| parse_time_point(&name, stem)));
        let times: BTreeSet<usize> = times.collect();
        for time in times.into_iter().filter(|time| *time < self.place.times) {
            let Some((labels, other)) = self.time_point_labels(folder, time) else { continue };
            shown.insert(time, measured(labels));
            others.extend(other.map(|other| (time, vec![measured(other)])));
        }
        (shown, others)
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
        let (path, record) = self.objects_record(folder, stem)?;
        let job: SegmentJob = record.job_again(&path, None, Overwrite::default()).ok()?;
        job.options.validate().ok()?;
        Some(SavedOptions { options: job.options, voxel_um: job.voxel_um })
    }

    /// The record of the objects that were saved under a stem after the latest prediction of the stack, and its path.
    fn objects_record(&self, folder: &Path, stem: &str) -> Option<(PathBuf, Box<JobRecord>)> {
        let path = record_path(&folder.join(ArtifactKind::Labels.file_name(stem)));
        let Ok(AnyRecord::Job(record)) = read_any(&path) else { return None };
        let is_current = self.prediction.as_ref()?.finished_unix_secs <= record.finished_unix_secs;
        (record.kind == JobKind::Segment && is_current && self.has_read_stack(&record)).then_some((path, record))
    }

    /// Whether objects were saved under a stem after labels were corrected. A prediction, which may run unattended, does not
    /// take the place of corrections; objects are saved by hand. Their record states when, also after the files were copied.
    /// Corrections have no such record.
    fn are_objects_newer(&self, folder: &Path, stem: &str, corrected: &Path) -> bool {
        let Some((_, record)) = self.objects_record(folder, stem) else { return false };
        let written = modified(corrected);
        let since_1970 = written.and_then(|written| written.duration_since(SystemTime::UNIX_EPOCH).ok());
        let objects_written = modified(&folder.join(ArtifactKind::Labels.file_name(stem)));
        (Some(record.finished_unix_secs), objects_written) > (since_1970.map(|since| since.as_secs()), written)
    }

    /// Whether a job has read the stack.
    fn has_read_stack(&self, record: &JobRecord) -> bool {
        record.inputs.iter().any(|input| input.path == self.place.stack)
    }

    /// The labels that were saved for a time point: the newer of objects and corrected labels, and the others.
    fn time_point_labels(&self, folder: &Path, time: usize) -> Option<(PathBuf, Option<PathBuf>)> {
        let stem = format!("{}_t{time}", self.place.stem);
        if folder.join(ArtifactKind::Provenance.file_name(&stem)).is_file() {
            // These labels belong to another stack, whose name ends in the time point.
            return None;
        }
        let corrected = self.place.correction_files_named(folder, &self.corrections.text, time).labels;
        let corrected = Some(corrected).filter(|labels| labels.is_file() && self.has_own_corrections());
        match (corrected, self.time_point_objects(folder, &stem)) {
            (Some(corrected), Some(objects)) => match self.are_objects_newer(folder, &stem, &corrected) {
                true => Some((objects, Some(corrected))),
                false => Some((corrected, Some(objects))),
            },
            (corrected, objects) => corrected.or(objects).map(|labels| (labels, None)),
        }
    }

    /// The objects that were saved for a time point under a stem.
    fn time_point_objects(&self, folder: &Path, stem: &str) -> Option<PathBuf> {
        let labels = Artifact::existing(folder, stem).into_iter().find(|a| a.kind == ArtifactKind::Labels)?.path;
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
fn measured(labels: PathBuf) -> LabelSet {
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
mod tests;
