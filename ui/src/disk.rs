//! Work that touches a disk: reading folders and records, and creating folders and files.
//!
//! A disk may be slow, full or disconnected, so states only describe what they need as a [`DiskEffect`]; its result
//! comes back as a [`DiskEvent`].

mod found;
mod owner;
mod place;

pub(crate) use found::FoundResults;
pub(crate) use place::ResultsPlace;

use crate::channels::PairChannels;
use crate::correct::files::{CorrectionFiles, SetAside};
use crate::correct::session::Base;
use crate::document::file_name;
use crate::documents::LiveOutput;
use crate::engine_notes::message_in_window;
use crate::file_browser::{Visited, visit, visit_new};
use crate::jobs::TunedTraining;
use crate::measure::table_name;
use crate::opener::{Expanded, expand, expand_for_list};
use crate::provenance::split_records;
use crate::runs::read_run;
use crate::settings::{Settings, SettingsFile};
use crate::training::search::{SearchJob, SearchSetup};
use crate::work::ModelWork;
use cytoscope_formats::SeriesChoice;
use cytoscope_model_package::{PACKAGE_KIND, package_folder};
use cytoscope_pipeline::job_record::{record_lists_result, remove_record};
use cytoscope_pipeline::packages::is_model;
use cytoscope_pipeline::predict::containing_maps;
use cytoscope_pipeline::results::FileRecord;
use cytoscope_pipeline::{MachineProfiles, PairRole, SearchTrial, SegmentReport, channels_to_score, machine_peak};
use cytoscope_profile::{MachinePeak, StoredRun};
use cytoscope_storage::folder::{move_aside, remove_finished};
use cytoscope_storage::message::Message;
use cytoscope_storage::{ResultsFolder, io_message};
use cytoscope_train::TrainJob;
use cytoscope_worker::{LabelArray, LiveArray};
use place::RESULTS_FOLDER;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum number of paths that are tried for a new training run.
const RESERVATIONS: usize = 100;

/// Work that touches a disk.
pub(crate) enum DiskEffect {
    /// Replaces folders by the stacks in them.
    List {
        /// Files and folders.
        paths: Vec<PathBuf>,
    },
    /// Replaces folders by the stacks in them, for the list of files to convert.
    ListForBatch {
        /// Files and folders.
        paths: Vec<PathBuf>,
    },
    /// Reads the names of the channels that can be scored.
    ReadChannels {
        /// File, or folder of files.
        path: PathBuf,
        /// Whether they are predictions or the ground truth.
        role: PairRole,
        /// The predictions, if they are chosen.
        predictions: Option<PathBuf>,
        /// The series that is scored.
        series: SeriesChoice,
    },
    /// Reads the channels of the images of pairs, which a model's inputs are chosen from.
    ReadPairChannels {
        /// Folder or table of the pairs.
        data: PathBuf,
    },
    /// Work for a document.
    Document {
        /// Id of the document.
        document: u64,
        /// The file operation to carry out.
        effect: DocumentEffect,
    },
    /// Creates the folder of a training run.
    PrepareTraining {
        /// The run to be started or continued.
        job: Box<TrainJob>,
        /// For a new run, the wanted name of its package; a free one becomes its path.
        name: Option<String>,
    },
    /// Asks a training run to end with its best network, through its folder.
    RequestFinish {
        /// The run to be ended.
        job: Box<TrainJob>,
        /// Whether the run is paused and must be continued for that.
        paused: bool,
    },
    /// Removes the folder of a training run.
    DiscardTraining {
        /// The run whose folder is removed.
        job: Box<TrainJob>,
    },
    /// Reads a stored run for the profiler.
    ReadRun {
        /// Trace or report.
        path: PathBuf,
    },
    /// Looks at a path for the window's own file dialog.
    Visit {
        /// File or folder.
        path: PathBuf,
    },
    /// Creates a folder for the window's own file dialog.
    CreateFolder {
        /// The folder, in one that exists.
        path: PathBuf,
    },
    /// Finds a free path for a package in the user's models.
    PrepareModel(ModelPlace),
    /// Removes a model: a package folder that was not changed is deleted, a file is renamed.
    RemoveModel {
        /// Folder or file of the model.
        path: PathBuf,
    },
    /// Writes the settings of a training run that is tuned.
    PrepareTuning(Box<TunedTraining>),
    /// Writes the files of a search for training settings.
    PrepareSearch(Box<SearchSetup>),
    /// Reads the trials of a search from its table.
    ReadTrials(Box<SearchJob>),
    /// Removes the files of a search.
    RemoveSearch(Box<SearchJob>),
    /// Reads the machine profiles.
    ReadMachineProfiles {
        /// JSON file; if it is missing, there are no profiles.
        path: PathBuf,
    },
    /// Reads the peak rates of this machine, or measures them the first time.
    MeasurePeak,
    /// Writes what has changed in the settings to their file.
    SaveSettings {
        /// All settings of the window.
        settings: Box<Settings>,
        /// JSON file to update.
        file: Arc<SettingsFile>,
    },
}

/// A package that is to be written to the user's models.
#[derive(Debug, Clone)]
pub(crate) struct ModelPlace {
    /// The model that the package is made from.
    pub(crate) model: PathBuf,
    /// The job that makes it.
    pub(crate) work: ModelWork,
    /// Folder of the user's models.
    pub(crate) folder: PathBuf,
    /// Wanted name of the package.
    pub(crate) name: String,
}

/// Work for a document that touches a disk.
pub(crate) enum DocumentEffect {
    /// Finds the results of earlier jobs.
    FindResults(ResultsPlace),
    /// Finds the folder of new results.
    FindFolder(ResultsPlace),
    /// Checks that the results folder of a prediction exists or can be created.
    PreparePrediction(ResultsPlace),
    /// Checks that the folder for the table of a label image exists or can be created.
    PrepareMeasurement {
        /// Where its results go.
        place: ResultsPlace,
        /// Label image whose objects are measured.
        labels: PathBuf,
        /// Time point that is measured; `None` for all.
        time: Option<usize>,
        /// Tables written by jobs of this window, with the record of each file.
        tables: BTreeMap<PathBuf, FileRecord>,
        /// Whether the labels may not have been written yet.
        may_be_missing: bool,
    },
    /// Creates the folder for the journal of corrections.
    PrepareCorrections {
        /// Where its results go.
        place: ResultsPlace,
        /// Files of earlier corrections to continue, whichever labels are shown.
        earlier: Option<Box<CorrectionFiles>>,
        /// Time point that is corrected.
        time: usize,
    },
    /// Renames the files of earlier corrections.
    SetAside(Box<CorrectionFiles>),
    /// Opens the growing output of a prediction.
    OpenLive(LiveOutput),
    /// Opens the labels of a segmentation preview.
    OpenPreview(Box<SegmentReport>),
}

/// The table that a measurement writes.
pub(crate) struct TableTarget {
    /// CSV file to write.
    pub(crate) table: PathBuf,
    /// Whether a job wrote it for the same objects and it is unchanged since.
    pub(crate) is_own: bool,
}

/// Paths and options that a session of corrections is opened with.
pub(crate) struct CorrectionsPlace {
    /// The folder of the corrections.
    pub(crate) folder: PathBuf,
    /// Whether they are continued in another folder than the one of new results.
    pub(crate) is_elsewhere: bool,
    /// Stem of the names of their files.
    pub(crate) stem: String,
    /// Files of the corrections of a stack with a single time point; `None` for a time series.
    pub(crate) files: Option<CorrectionFiles>,
    /// Labels to start from instead of those shown: the first that match the journal.
    pub(crate) bases: Option<Vec<Base>>,
    /// The time point that they were requested for.
    pub(crate) time: usize,
}

/// Result of a [`DiskEffect`]; an error is a message that names the file.
pub(crate) enum DiskEvent {
    /// The stacks and models among files and folders.
    Listed {
        /// Stacks, or files that may be ones.
        stacks: Expanded,
        /// Packages, zips and networks that may be imported as models.
        models: Vec<PathBuf>,
        /// Provenance records.
        records: Vec<PathBuf>,
    },
    /// The files to convert among files and folders.
    ListedForBatch(Expanded),
    /// The names of the channels that can be scored; none if they cannot be read.
    ChannelsRead {
        /// File, or folder of files.
        path: PathBuf,
        /// Whether they are predictions or the ground truth.
        role: PairRole,
        /// Names of the channels, in order.
        names: Vec<String>,
    },
    /// The channels of the images of pairs; none if they cannot be read, or if the data state them.
    PairChannelsRead {
        /// Folder or table of the pairs.
        data: PathBuf,
        /// The channels of the first image, for each task.
        channels: PairChannels,
    },
    /// Result of work for a document.
    Document {
        /// Id of the document.
        document: u64,
        /// The result of the file operation.
        event: DocumentEvent,
    },
    /// The folder of a training run exists.
    TrainingReady(Result<Box<TrainJob>, String>),
    /// A training run was asked to end.
    FinishRequested {
        /// Whether the run is paused and must be continued for that.
        paused: bool,
        /// Whether the request was written.
        requested: Result<(), String>,
    },
    /// The folder of a training run was removed.
    TrainingDiscarded(Result<(), String>),
    /// A stored run was read.
    RunRead {
        /// Trace or report.
        path: PathBuf,
        /// The run, or why it cannot be read.
        run: Result<Box<StoredRun>, String>,
    },
    /// Result of visiting a path: folder, file, nothing or an error.
    Visited(Visited),
    /// The path of a package in the user's models.
    ModelReady {
        /// The reason for which the path was requested.
        place: ModelPlace,
        /// A path at which nothing exists, or why there is none.
        out: Result<PathBuf, String>,
    },
    /// A model was removed or renamed.
    ModelRemoved {
        /// Folder or file of the model.
        path: PathBuf,
        /// The new path of a renamed file, or why the model was not removed.
        result: Result<Option<PathBuf>, String>,
    },
    /// The settings of a training run that is tuned were written.
    TuningReady(Result<Box<TunedTraining>, String>),
    /// The files of a search for training settings were written.
    SearchReady(Result<Box<SearchJob>, String>),
    /// The trials of a search were read from its table.
    TrialsRead {
        /// The search.
        job: Box<SearchJob>,
        /// Its trials that have ended.
        trials: Result<Vec<SearchTrial>, String>,
    },
    /// The files of a search were removed.
    SearchRemoved {
        /// The search.
        job: Box<SearchJob>,
        /// Why they were not removed.
        result: Result<(), String>,
    },
    /// The machine profiles were read.
    MachineProfilesRead(Result<MachineProfiles, Message>),
    /// The peak rates of this machine were read or measured.
    PeakMeasured(Box<MachinePeak>),
    /// The settings were saved, or why not.
    SettingsSaved(Result<(), String>),
}

/// Result of a [`DocumentEffect`]; an error is a message that names the file.
pub(crate) enum DocumentEvent {
    /// Results of earlier jobs.
    ResultsFound(Box<FoundResults>),
    /// The folder of new results.
    FolderFound(PathBuf),
    /// The results folder of a prediction, which exists or can be created.
    PredictionReady(Result<PathBuf, String>),
    /// The folder for a table, which exists or can be created.
    MeasurementReady {
        /// Label image whose objects are measured.
        labels: PathBuf,
        /// Time point that is measured; `None` for all.
        time: Option<usize>,
        /// The table; `None` if there is no label image.
        target: Result<Option<TableTarget>, String>,
    },
    /// The folder for the journal of corrections exists.
    CorrectionsReady(Result<CorrectionsPlace, String>),
    /// Earlier corrections were renamed.
    SetAside(Result<SetAside, String>),
    /// The growing output of a prediction was opened.
    LiveOpened {
        /// Where it grows.
        output: LiveOutput,
        /// Values of each channel, axes C, Z, Y, X.
        array: Result<LiveArray, String>,
    },
    /// The labels of a segmentation preview were opened.
    PreviewOpened {
        /// Report of the segmentation.
        report: Box<SegmentReport>,
        /// Labels, axes Z, Y, X.
        array: Result<LabelArray, String>,
    },
}

impl DiskEffect {
    /// Does the work; blocks until the disk has responded.
    pub(crate) fn run(&self) -> DiskEvent {
        match self {
            Self::List { paths } => {
                let (records, others) = split_records(paths);
                // Dialogs for files do not choose folders, but the description of a package in its folder.
                let others = others.iter().map(|path| package_folder(path).to_owned());
                let (models, others): (Vec<PathBuf>, Vec<PathBuf>) = others.partition(|p| is_model(p));
                DiskEvent::Listed { stacks: expand(&others), models, records }
            }
            Self::ListForBatch { paths } => DiskEvent::ListedForBatch(expand_for_list(paths)),
            Self::ReadChannels { path, role, predictions, series } => {
                let names = channels_to_score(path, *role, predictions.as_deref(), series);
                DiskEvent::ChannelsRead { path: path.clone(), role: *role, names }
            }
            Self::ReadPairChannels { data } => {
                DiskEvent::PairChannelsRead { data: data.clone(), channels: PairChannels::read(data) }
            }
            Self::Document { document, effect } => DiskEvent::Document { document: *document, event: effect.run() },
            Self::PrepareTraining { job, name } => DiskEvent::TrainingReady(prepare_training(job, name.as_deref())),
            Self::RequestFinish { job, paused } => {
                DiskEvent::FinishRequested { paused: *paused, requested: request_finish(job, *paused) }
            }
            Self::DiscardTraining { job } => {
                DiskEvent::TrainingDiscarded(job.discard().map_err(|e| message_in_window(&e.message())))
            }
            Self::ReadRun { path } => DiskEvent::RunRead { path: path.clone(), run: read_run(path).map(Box::new) },
            Self::PrepareTuning(training) => {
                DiskEvent::TuningReady(training.write_settings().map(|()| training.clone()))
            }
            Self::PrepareSearch(setup) => DiskEvent::SearchReady(prepare_search(setup)),
            Self::ReadTrials(job) => DiskEvent::TrialsRead { job: job.clone(), trials: job.stored_trials() },
            Self::RemoveSearch(job) => DiskEvent::SearchRemoved { job: job.clone(), result: job.remove() },
            Self::ReadMachineProfiles { path } => {
                DiskEvent::MachineProfilesRead(MachineProfiles::read(path).map_err(|error| error.message()))
            }
            Self::MeasurePeak => DiskEvent::PeakMeasured(Box::new(machine_peak(0))),
            Self::Visit { path } => DiskEvent::Visited(visit(path)),
            Self::CreateFolder { path } => DiskEvent::Visited(visit_new(path)),
            Self::PrepareModel(place) => {
                let out = create_folder(&place.folder).map(|()| free_path(&place.folder, &place.name));
                DiskEvent::ModelReady { place: place.clone(), out }
            }
            Self::RemoveModel { path } => DiskEvent::ModelRemoved { path: path.clone(), result: remove_model(path) },
            Self::SaveSettings { settings, file } => {
                DiskEvent::SettingsSaved(file.save(settings).map_err(|e| e.to_string()))
            }
        }
    }
}

impl DocumentEffect {
    fn run(&self) -> DocumentEvent {
        match self {
            Self::FindResults(place) => DocumentEvent::ResultsFound(Box::new(FoundResults::of(place))),
            Self::FindFolder(place) => DocumentEvent::FolderFound(place.folder()),
            Self::PreparePrediction(place) => {
                let folder = place.folder();
                DocumentEvent::PredictionReady(check_folder(&folder).map(|()| folder))
            }
            Self::PrepareMeasurement { place, labels, time, tables, may_be_missing } => {
                let target = match *may_be_missing && !labels.exists() {
                    true => Ok(None),
                    false => prepare_table(place, labels, tables).map(Some),
                };
                DocumentEvent::MeasurementReady { labels: labels.clone(), time: *time, target }
            }
            Self::PrepareCorrections { place, earlier, time } => {
                DocumentEvent::CorrectionsReady(prepare_corrections(place, earlier.as_deref(), *time))
            }
            Self::SetAside(files) => {
                let moved = files.set_aside().map_err(|error| io_message(&files.journal, &error));
                DocumentEvent::SetAside(moved)
            }
            Self::OpenLive(output) => {
                let LiveOutput { path, channels, shape_zyx, .. } = output;
                let array = LiveArray::open(path, *channels, *shape_zyx).map_err(|e| e.to_string());
                DocumentEvent::LiveOpened { output: output.clone(), array }
            }
            Self::OpenPreview(report) => {
                let array = LabelArray::open(&report.labels, report.shape_zyx).map_err(|e| e.to_string());
                DocumentEvent::PreviewOpened { report: report.clone(), array }
            }
        }
    }
}

fn prepare_table(
    place: &ResultsPlace,
    labels: &Path,
    tables: &BTreeMap<PathBuf, FileRecord>,
) -> Result<TableTarget, String> {
    // The table goes beside labels in a results folder, or beside the OME-Zarr folder with them; nothing is written beside
    // labels from elsewhere.
    let own = place.folder();
    let is_results = |folder: &&Path| folder.ends_with(RESULTS_FOLDER) || own == **folder || place.is_own(folder);
    let beside = containing_maps(labels).parent().filter(is_results);
    let folder = beside.map_or_else(|| own.clone(), Path::to_owned);
    let table = folder.join(table_name(labels));
    // A table that a job of this window wrote, or an earlier one for the same labels, is replaced without asking while it is
    // unchanged.
    let is_own = tables.get(&table).is_some_and(|record| record.matches(&table))
        || record_lists_result(&table, &table, labels)
        || record_lists_result(labels, &table, &place.stack);
    check_folder(&folder)?;
    Ok(TableTarget { table, is_own })
}

fn prepare_corrections(
    place: &ResultsPlace,
    earlier: Option<&CorrectionFiles>,
    time: usize,
) -> Result<CorrectionsPlace, String> {
    // Those that were begun before another folder was chosen are continued where they are.
    let begun = earlier.and_then(|files| files.journal.parent().map(Path::to_owned));
    let begun = begun.or_else(|| place.folder_of_corrections(time));
    let own = place.folder();
    let folder = begun.unwrap_or_else(|| own.clone());
    create_folder(&folder)?;
    place.claim_corrections(&folder)?;
    let bases = earlier.map(|files| {
        let kept = [&files.labels, &files.base].into_iter().filter(|path| path.is_file());
        kept.map(|path| Base::File(path.clone())).chain([Base::Empty]).collect()
    });
    let stem = place.correction_stem(&folder).text;
    let files = (place.times < 2).then(|| place.correction_files_named(&folder, &stem, time));
    Ok(CorrectionsPlace { is_elsewhere: folder != own, folder, stem, files, bases, time })
}

fn prepare_training(job: &TrainJob, name: Option<&str>) -> Result<Box<TrainJob>, String> {
    let folder = job.out.parent().map(Path::to_owned).unwrap_or_default();
    create_folder(&folder)?;
    let mut job = Box::new(job.clone());
    let Some(name) = name else { return Ok(job) };
    for _ in 0..RESERVATIONS {
        job.out = free_path(&folder, name);
        // Another window may have taken the path meanwhile.
        if job.reserve_folder().map_err(|error| message_in_window(&error.message()))? {
            return Ok(job);
        }
    }
    Err(format!("{}: no name is free for {name}", folder.display()))
}

/// Writes the files of a search at a free path.
fn prepare_search(setup: &SearchSetup) -> Result<Box<SearchJob>, String> {
    let folder = setup.job.out.parent().map(Path::to_owned).unwrap_or_default();
    create_folder(&folder)?;
    setup.write(free_path(&folder, &file_name(&setup.job.out)))
}

/// Removes a package folder whose files are unchanged and complete, with its provenance record; renames a single file and
/// returns its new path.
fn remove_model(path: &Path) -> Result<Option<PathBuf>, String> {
    if path.is_dir() {
        remove_finished(path, PACKAGE_KIND).map_err(|e| e.to_string())?;
        if let Err(error) = remove_record(path) {
            tracing::warn!("the record of a removed model was not removed: {error}");
        }
        return Ok(None);
    }
    move_aside(path).map(Some).map_err(|e| e.to_string())
}

/// A free path for a package of this name.
fn free_path(folder: &Path, name: &str) -> PathBuf {
    let place = |n: usize| folder.join(if n == 1 { name.to_owned() } else { format!("{name} {n}") });
    let beside = |p: &Path, extension: &str| p.with_file_name(format!("{}{extension}", file_name(p))).exists();
    let extensions = [".training", ".zip", ".onnx", ".alias", ".space.toml"];
    let free = |p: &PathBuf| !p.exists() && !extensions.iter().any(|extension| beside(p, extension));
    (1..1000).map(place).find(free).unwrap_or_else(|| place(1000))
}

fn request_finish(job: &TrainJob, paused: bool) -> Result<(), String> {
    if paused {
        return job.finish_early().map_err(|e| message_in_window(&e.message()));
    }
    // A resumed run that is still queued gets no messages; it checks its folder when it starts.
    if job.checkpoint_summary().is_some()
        && let Err(error) = job.finish_early()
    {
        // A run that is in progress has got the message already.
        tracing::warn!("the request to finish a queued training run early was not written: {error}");
    }
    Ok(())
}

/// Checks that a folder exists or can be created. A job that writes to it creates it.
fn check_folder(folder: &Path) -> Result<(), String> {
    ResultsFolder::create(folder).map(drop).map_err(|error| io_message(folder, &error))
}

fn create_folder(folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|error| io_message(folder, &error))
}

/// Whether a folder exists and is writable, or can be created.
pub(crate) fn may_write(folder: &Path) -> bool {
    let is_writable = |p: &Path| {
        std::fs::metadata(p).is_ok_and(|m| m.is_dir())
            && tempfile::Builder::new().prefix(".cytoscope-").tempfile_in(p).is_ok()
    };
    if folder.exists() { is_writable(folder) } else { folder.parent().is_some_and(is_writable) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
    use super::*;

    #[test]
    fn the_description_of_a_package_opens_the_package() {
        let folder = tempfile::tempdir().unwrap();
        let package = folder.path().join("mine");
        std::fs::create_dir(&package).unwrap();
        let description = package.join("rdf.yaml");
        std::fs::write(&description, "type: model\n").unwrap();
        let listed = DiskEffect::List { paths: vec![description] }.run();
        let DiskEvent::Listed { stacks, models, .. } = listed else { panic!("another event") };
        assert_eq!(models, [package]);
        assert!(stacks.files.is_empty());
    }
}
