//! Jobs of the engine: predictions, segmentations and measurements, their queue, their settings and their results; and
//! the runs from files that they are compared with.

mod actions;
mod inputs;
mod namesakes;
mod object_options;
mod outcomes;
mod repeat;
mod requests;
mod rerun;
mod runs;
mod stack_notes;
mod tuning;
mod unsaved;

use crate::correct::tools::EditAction;
use crate::correct::{Corrections, CorrectionsAction};
use crate::disk::{DocumentEffect, FoundResults, ResultsPlace};
use crate::document::{Document, Role};
use crate::documents::{Documents, DocumentsAction, JobOutput};
use crate::effect::{Effects, Wake};
use crate::engine_notes::message_in_window;
use crate::overwrite::OverwriteQuestion;
use crate::queue::Queue;
use crate::rerun::Reruns;
use crate::runs::FileRun;
use crate::settings::Settings;
use crate::work::{JobState, JobView, Purpose, Work};
use cytoscope_engine::Device;
use cytoscope_pipeline::cards::ModelCard;
use cytoscope_pipeline::predict::Blend;
use cytoscope_pipeline::results::FileRecord;
use cytoscope_pipeline::{DiameterRequest, MachineProfile, MachineProfiles, machine_key};
use cytoscope_preprocess::PreprocessStep;
use cytoscope_profile::MachinePeak;
use cytoscope_storage::message::Message;
use cytoscope_worker::{Job, JobId, WorkerState};
use object_options::ObjectOptions;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuning::Tuning;

pub(crate) use actions::JobsAction;
pub(crate) use inputs::{InputFile, InputOfDocument};
pub(crate) use object_options::SavedOptions;
pub(crate) use tuning::{TunedTraining, path_option};

/// Why a job ended without a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum JobFailure {
    /// It failed for this reason.
    Failed(String),
    /// It was canceled.
    Canceled,
}

/// The jobs of the engine.
pub(crate) struct Jobs {
    work: Work,
    queue: Queue,
    /// Object tables written by jobs of this window, with the record of each file.
    tables: BTreeMap<PathBuf, FileRecord>,
    /// Jobs that wait for the user's decision about overwriting files.
    overwrite: VecDeque<OverwriteQuestion>,
    /// Number of questions about overwriting so far.
    questions_asked: u64,
    /// Summary lines of the finished predictions of a running batch.
    batch_done: Vec<String>,
    /// Documents whose results folder is being checked for a prediction.
    preparing: BTreeSet<u64>,
    /// The documents among them for which all series of their file will be predicted.
    all_series: BTreeSet<u64>,
    /// Documents of which only the shown time point is predicted.
    one_time: BTreeSet<u64>,
    /// Files that input tensors are read from instead of the stack.
    input_files: BTreeMap<InputOfDocument, InputFile>,
    /// The input tensor whose file was asked for.
    asked_input: Option<InputOfDocument>,
    /// Tile size Z, Y, X of predictions; `None` chooses it by work and memory.
    tile: Option<[usize; 3]>,
    /// How predictions join tiles; `None` leaves it to the program.
    blend: Option<Blend>,
    /// Overlap of tiles with Gaussian blending in percent; `None` is the default.
    overlap_percent: Option<u64>,
    /// Whether the next prediction measures the devices again for its model.
    remeasure: bool,
    /// Document and steps of the preprocessed copy whose file was requested.
    copy_steps: Option<(u64, Vec<PreprocessStep>)>,
    /// Jobs that write preprocessed copies, which are opened, with the file and series of their stack.
    copies: BTreeMap<JobId, (PathBuf, usize)>,
    /// Results folder chosen by the user in this window.
    chosen_folder: Option<PathBuf>,
    /// Results folder chosen in an earlier window, which is used while it exists.
    earlier_folder: Option<PathBuf>,
    /// Results folders of the documents, unless the user has chosen one in this window.
    folders: BTreeMap<u64, PathBuf>,
    /// Folders with results of stacks that this window has written or found, oldest first, by file and series. They are found
    /// there again, whichever folder is chosen later.
    known_folders: BTreeMap<(PathBuf, usize), Vec<PathBuf>>,
    /// What notifications have said about the results of the documents that were found.
    noted: BTreeMap<u64, BTreeSet<PathBuf>>,
    /// Stacks for which a notification has said that files of their chunks are absent, by file and series.
    absent_chunks_noted: BTreeSet<(PathBuf, usize)>,
    /// Time points of the documents that had a journal of corrections when their results were looked for.
    corrected_times: BTreeMap<u64, BTreeSet<usize>>,
    /// Segmentation options of the documents.
    objects: ObjectOptions,
    /// Requested object diameter of each document when its latest estimate was started.
    estimated_from: BTreeMap<u64, DiameterRequest>,
    /// Recorded jobs that are run again.
    reruns: Reruns,
    /// Runs from files, oldest first.
    file_runs: Vec<FileRun>,
    /// Number of runs that were read from files so far.
    runs_read: u64,
    /// Peak rates of this machine, once the user has asked for them.
    machine_peak: Option<MachinePeak>,
    /// Whether they are being measured.
    measuring_peak: bool,
    /// The stored machine profiles.
    machine_profiles: MachineProfiles,
    /// Key of this machine in the profiles.
    machine: OnceCell<String>,
    tuning: Tuning,
}

impl Jobs {
    /// Starts the engine, if there is a program. It also looks for models in the folder `models`. The queue is
    /// stored beside the settings file.
    pub(crate) fn new(
        program: Option<&Path>,
        models: Option<PathBuf>,
        settings_path: Option<&Path>,
        wake: &Wake,
    ) -> Self {
        Self {
            work: Work::new(program, models, Arc::clone(wake)),
            queue: Queue::new(settings_path),
            tables: BTreeMap::new(),
            overwrite: VecDeque::new(),
            questions_asked: 0,
            batch_done: Vec::new(),
            preparing: BTreeSet::new(),
            all_series: BTreeSet::new(),
            one_time: BTreeSet::new(),
            input_files: BTreeMap::new(),
            asked_input: None,
            tile: None,
            blend: None,
            overlap_percent: None,
            remeasure: false,
            copy_steps: None,
            copies: BTreeMap::new(),
            chosen_folder: None,
            earlier_folder: None,
            folders: BTreeMap::new(),
            known_folders: BTreeMap::new(),
            noted: BTreeMap::new(),
            absent_chunks_noted: BTreeSet::new(),
            corrected_times: BTreeMap::new(),
            objects: ObjectOptions::default(),
            estimated_from: BTreeMap::new(),
            reruns: Reruns::new(wake),
            file_runs: Vec::new(),
            runs_read: 0,
            machine_peak: None,
            measuring_peak: false,
            machine_profiles: MachineProfiles::default(),
            machine: OnceCell::new(),
            tuning: Tuning::new(program, settings_path, wake),
        }
    }

    /// Jobs, oldest first.
    pub(crate) fn all(&self) -> &[JobView] {
        &self.work.jobs
    }

    /// The job with this id; `None` if the list no longer contains it.
    pub(crate) fn get(&self, id: JobId) -> Option<&JobView> {
        self.work.jobs.iter().find(|j| j.id == id)
    }

    /// The job that runs now; `None` if the engine is idle.
    pub(crate) fn running(&self) -> Option<&JobView> {
        self.work.running()
    }

    /// Number of running and queued jobs.
    pub(crate) fn active(&self) -> usize {
        self.work.active()
    }

    /// The newest active prediction of a document.
    pub(crate) fn prediction(&self, document: u64) -> Option<&JobView> {
        self.work.newest_for_document(document)
    }

    /// The job that measures a document's labels.
    pub(crate) fn measuring(&self, document: u64) -> Option<&JobView> {
        self.work.measuring(document)
    }

    /// The job that estimates the diameter of a document's objects.
    pub(crate) fn estimating(&self, document: u64) -> Option<&JobView> {
        self.work.jobs.iter().find(|j| j.purpose == Purpose::Diameter { document } && !j.state.is_over())
    }

    /// Whether a time point of a document had a journal of corrections when the results of the document were looked for.
    pub(crate) fn was_corrected(&self, document: u64, time: usize) -> bool {
        self.corrected_times.get(&document).is_some_and(|times| times.contains(&time))
    }

    /// Number of queued and running predictions.
    pub(crate) fn waiting_predictions(&self) -> usize {
        self.open_predictions().count()
    }

    /// Queued and running predictions.
    fn open_predictions(&self) -> impl Iterator<Item = &JobView> {
        let is_open = |j: &&JobView| !j.state.is_over() && matches!(j.purpose, Purpose::Predict { .. });
        self.work.jobs.iter().filter(is_open)
    }

    /// Whether predictions are queued, running or about to be queued.
    fn awaits_predictions(&self) -> bool {
        self.waiting_predictions() > 0 || !self.preparing.is_empty()
    }

    /// Whether there are predictions that [`Self::cancel_predictions`] ends.
    pub(crate) fn can_cancel_predictions(&self) -> bool {
        self.awaits_predictions() || self.overwrite.iter().any(OverwriteQuestion::is_prediction)
    }

    /// Ends all predictions: those that are queued or running, those that are about to be queued, and those for which the user
    /// was asked whether they may overwrite files.
    fn cancel_predictions(&mut self) {
        self.open_predictions().for_each(|prediction| self.work.cancel(prediction.id));
        self.preparing.clear();
        self.all_series.clear();
        self.overwrite.retain(|question| !question.is_prediction());
    }

    /// State of the engine; `None` without a program.
    pub(crate) fn engine(&self) -> Option<WorkerState> {
        self.work.state()
    }

    /// Whether there is a program that can run jobs.
    pub(crate) fn has_engine(&self) -> bool {
        self.work.state().is_some()
    }

    /// Whether the engine has stopped and does not start again unless the user restarts it.
    pub(crate) fn has_stopped_engine(&self) -> bool {
        self.work.state() == Some(WorkerState::Dead)
    }

    /// Resident memory of the engine in bytes, current and peak.
    pub(crate) fn memory(&self) -> Option<(u64, u64)> {
        self.work.memory
    }

    /// Devices of this machine.
    pub(crate) fn devices(&self) -> &[Device] {
        &self.work.devices
    }

    /// Whether the devices of this machine are being looked for again.
    pub(crate) fn is_looking_for_devices(&self) -> bool {
        self.work.is_looking_for_devices()
    }

    /// Installed models.
    pub(crate) fn models(&self) -> &[ModelCard] {
        &self.work.models
    }

    /// The selected model, or the first usable one.
    pub(crate) fn model(&self, settings: &Settings) -> Option<&ModelCard> {
        let name = &settings.model;
        let usable = || self.work.models.iter().filter(|m| m.problem.is_none());
        usable().find(|m| m.name == *name || m.aliases.contains(name)).or_else(|| usable().next())
    }

    /// The selected model if it cannot be used, so that [`Self::model`] is another one: its name, and what is wrong with it
    /// if it is installed.
    pub(crate) fn unusable_choice<'a>(&'a self, settings: &'a Settings) -> Option<(&'a str, Option<&'a str>)> {
        let name = &settings.model;
        let mut chosen = self.work.models.iter().filter(|m| m.name == *name || m.aliases.contains(name)).peekable();
        if chosen.peek().is_none() {
            return Some((name, None));
        }
        let problems = chosen.map(|m| m.problem.as_deref()).collect::<Option<Vec<&str>>>()?;
        Some((name, problems.first().copied()))
    }

    /// Stacks whose prediction an earlier window did not finish.
    pub(crate) fn abandoned(&self) -> impl Iterator<Item = &Path> {
        self.queue.abandoned()
    }

    /// The oldest question about overwriting files.
    pub(crate) fn overwrite_question(&self) -> Option<&OverwriteQuestion> {
        self.overwrite.front()
    }

    /// Number of further questions about series of the same prediction as the oldest question.
    pub(crate) fn similar_questions(&self) -> usize {
        let part_of = self.overwrite_question().and_then(|question| question.refused.part_of);
        let is_similar = |question: &&OverwriteQuestion| part_of.is_some() && question.refused.part_of == part_of;
        self.overwrite.iter().skip(1).filter(is_similar).count()
    }

    /// Whether only the shown time point of a document is predicted.
    pub(crate) fn predicts_one_time(&self, document: u64) -> bool {
        self.one_time.contains(&document)
    }

    /// Tile size Z, Y, X of predictions; `None` chooses it by work and memory.
    pub(crate) fn tile(&self) -> Option<[usize; 3]> {
        self.tile
    }

    /// How predictions join tiles; `None` leaves it to the program.
    pub(crate) fn blend(&self) -> Option<Blend> {
        self.blend
    }

    /// Overlap of tiles with Gaussian blending in percent; `None` is the default.
    pub(crate) fn overlap_percent(&self) -> Option<u64> {
        self.overlap_percent
    }

    /// Whether the next prediction measures the devices again for its model.
    pub(crate) fn remeasure(&self) -> bool {
        self.remeasure
    }

    /// Uses a results folder that was chosen in an earlier window, while it exists.
    pub(crate) fn use_earlier_folder(&mut self, folder: Option<PathBuf>) {
        self.earlier_folder = folder;
    }

    /// Stores the results folder of a document.
    pub(crate) fn folder_found(&mut self, document: u64, folder: PathBuf) {
        self.folders.insert(document, folder);
    }

    /// The results folder of a document, once it is known.
    pub(crate) fn folder(&self, document: u64) -> Option<&Path> {
        self.chosen_folder.as_ref().or_else(|| self.folders.get(&document)).map(PathBuf::as_path)
    }

    /// Remembers that results of a series of a file are in a folder.
    pub(crate) fn remember_folder(&mut self, stack: (PathBuf, usize), folder: &Path) {
        let known = self.known_folders.entry(stack).or_default();
        known.retain(|other| other != folder);
        known.push(folder.to_owned());
    }

    /// Returns what determines the results folder of a document: its stack, and the folder chosen by the user.
    pub(crate) fn place(&self, document: &Document) -> ResultsPlace {
        let stack = (document.path.clone(), document.series);
        ResultsPlace {
            stack: document.path.clone(),
            stem: document.stem(),
            times: document.extents.times,
            chosen: self.chosen_folder.clone(),
            earlier: self.earlier_folder.clone(),
            known: self.known_folders.get(&stack).cloned().unwrap_or_default(),
        }
    }

    /// Asks for a job that is not a prediction, segmentation or measurement. Returns its id; the job is queued when the
    /// effects are carried out.
    pub(crate) fn request(&self, title: String, purpose: Purpose, job: Job, effects: &mut Effects) -> JobId {
        let new = self.work.reserve(title, purpose, job);
        let id = new.id;
        effects.act(JobsAction::Run(Box::new(new)));
        id
    }

    /// Whether a job was requested and is not queued yet.
    pub(crate) fn is_requested(&self, id: JobId) -> bool {
        self.work.is_reserved(id)
    }

    /// Whether a job was requested and has not ended.
    pub(crate) fn is_active(&self, id: JobId) -> bool {
        self.is_requested(id) || self.get(id).is_some_and(|job| !job.state.is_over())
    }

    /// Why a requested job ended without a result; `None` if it is active or done.
    pub(crate) fn failure(&self, id: JobId) -> Option<JobFailure> {
        match self.get(id).map(|job| &job.state) {
            Some(JobState::Failed(reason)) => Some(JobFailure::Failed(reason.clone())),
            Some(JobState::Canceled) => Some(JobFailure::Canceled),
            Some(JobState::Queued | JobState::Running | JobState::Done) => None,
            None if self.is_requested(id) => None,
            None => Some(JobFailure::Failed("the engine is not running".to_owned())),
        }
    }

    /// Discards the segmentation options that the user has changed in any document. Saved results are shown again in place of
    /// previews, which could no longer be saved.
    fn forget_refined(&mut self, documents: &Documents, effects: &mut Effects) {
        for id in self.objects.unsaved_documents() {
            self.discard_unsaved(id, "the model or its output was changed", effects);
            if let Some(document) = documents.get(id).filter(|document| document.has_label_preview()) {
                effects.disk_for(id, DocumentEffect::FindResults(self.place(document)));
            }
        }
    }

    /// Forgets a document that was opened again. `to` is the one that took its place, if that has the same voxels: it keeps the
    /// time points and input files that the user has chosen for predictions.
    fn replace_document(&mut self, from: u64, to: Option<u64>, effects: &mut Effects) {
        if let Some(to) = to {
            if self.one_time.contains(&from) {
                self.one_time.insert(to);
            }
            self.copy_input_files(from, to);
        }
        self.forget_choices(from);
        self.forget_objects(from, "its stack was opened again", effects);
    }

    /// Forgets what was found for a document and what the user has chosen for it, except for its objects.
    fn forget_choices(&mut self, id: u64) {
        self.folders.remove(&id);
        self.noted.remove(&id);
        self.one_time.remove(&id);
        self.forget_input_files(id);
        self.corrected_times.remove(&id);
        self.estimated_from.remove(&id);
    }

    /// Forgets a document that was closed, and cancels its jobs. A notification reports that a prediction was canceled.
    fn forget_document(&mut self, id: u64, effects: &mut Effects) {
        self.forget_choices(id);
        self.forget_objects(id, "its stack was closed", effects);
        // Saved objects and measurements are finished, because their files stay.
        let is_of = |j: &&JobView| {
            matches!(j.purpose, Purpose::Predict { document } | Purpose::Preview { document }
                | Purpose::Diameter { document } if document == id)
        };
        for job in self.work.jobs.iter().filter(|j| !j.state.is_over()).filter(is_of) {
            if matches!(job.purpose, Purpose::Predict { .. }) {
                effects.info("Prediction canceled", format!("{}: its stack was closed.", job.title));
            }
            self.work.cancel(job.id);
        }
    }

    /// Stores the results folder of a document, and shows the results of earlier jobs.
    pub(crate) fn results_found(&mut self, id: u64, found: FoundResults, documents: &Documents) -> Effects {
        let mut effects = Effects::default();
        let Some(document) = documents.get(id) else { return effects };
        let stack = (document.path.clone(), document.series);
        for folder in &found.known {
            // Those that this window has written to are known, with their order.
            if !self.known_folders.get(&stack).is_some_and(|known| known.contains(folder)) {
                self.remember_folder(stack.clone(), folder);
            }
        }
        self.note_other_results(id, &found, &mut effects);
        self.folders.insert(id, found.folder);
        self.corrected_times.insert(id, found.corrected_times);
        self.objects.set_saved(id, found.saved_options);
        let output = JobOutput::Found {
            outputs: found.outputs,
            by_time: found.by_time,
            only_time: found.only_time,
            predicted: found.predicted,
        };
        effects.act(DocumentsAction::SetLabelChoices { document: id, choices: found.choices });
        effects.act(DocumentsAction::Show { document: id, output: Box::new(output) });
        effects
    }

    /// Says, once for each document, which results are not where new ones go, and which corrections are not shown.
    fn note_other_results(&mut self, id: u64, found: &FoundResults, effects: &mut Effects) {
        let noted = self.noted.entry(id).or_default();
        for folder in &found.elsewhere {
            if noted.insert(folder.clone()) {
                let (shown, new) = (folder.display(), found.folder.display());
                let details = format!("The newest ones are in {shown}. New results are written to {new}.");
                effects.info("Results of another folder are shown", details);
            }
        }
        let older: Vec<&PathBuf> = found.older_corrections.iter().filter(|labels| !noted.contains(*labels)).collect();
        if let Some(first) = older.first() {
            let details = match older.len() {
                1 => format!("{} is older. It can be shown under Layers.", first.display()),
                n => format!("{n} files of corrected labels are older. They can be shown under Layers."),
            };
            effects.info("Objects that are newer than corrections are shown", details);
        }
        noted.extend(found.older_corrections.iter().cloned());
    }

    /// Stores the machine profiles; a file that cannot be used is reported.
    pub(crate) fn machine_profiles_read(&mut self, profiles: Result<MachineProfiles, Message>) -> Effects {
        let mut effects = Effects::default();
        match profiles {
            Ok(profiles) => self.machine_profiles = profiles,
            Err(reason) => effects.error("The machine profiles are not used", message_in_window(&reason)),
        }
        effects
    }

    /// Returns the settings that were tuned on this machine for a model of this name.
    pub(crate) fn machine_profile(&self, model: &str) -> Option<&MachineProfile> {
        self.machine_profiles.find_by_name(model, self.machine.get_or_init(machine_key))
    }

    fn request_measurement(
        &mut self,
        id: u64,
        documents: &Documents,
        corrections: &Corrections,
        effects: &mut Effects,
    ) {
        if corrections.open(id).is_some_and(|c| c.is_modified()) {
            effects.act(CorrectionsAction::Edit(EditAction::Save));
            return;
        }
        let Some(document) = documents.get(id) else { return };
        let time = labels_time_point(document);
        match document.labels_path() {
            Some(labels) => self.prepare_measurement(id, labels.to_owned(), time, true, documents, effects),
            // Corrections started from empty labels have no file yet.
            None => effects.act(CorrectionsAction::Edit(EditAction::Save)),
        }
    }

    fn prepare_measurement(
        &mut self,
        id: u64,
        labels: PathBuf,
        time: Option<usize>,
        may_be_missing: bool,
        documents: &Documents,
        effects: &mut Effects,
    ) {
        let Some(document) = documents.get(id) else { return };
        let (place, tables) = (self.place(document), self.tables.clone());
        effects.disk_for(id, DocumentEffect::PrepareMeasurement { place, labels, time, tables, may_be_missing });
    }
}

/// The time point whose labels a document shows; `None` if their file has those of all time points. Corrected labels are
/// saved as one time point.
fn labels_time_point(document: &Document) -> Option<usize> {
    let labels = document.overlay_with_role(Role::Labels);
    let has_all_times =
        labels.is_some_and(|labels| labels.only_time.is_none() && labels.times == document.extents.times);
    if document.extents.times > 1 && has_all_times && document.saved_labels.is_none() {
        return None;
    }
    Some(labels.and_then(|labels| labels.only_time).unwrap_or(document.time))
}
