//! Actions on the jobs of the engine.

use super::{InputFile, InputOfDocument, Jobs, SavedOptions, TunedTraining};
use crate::correct::Corrections;
use crate::disk::{DiskEffect, DocumentEffect};
use crate::display::{Display, DisplayAction};
use crate::documents::Documents;
use crate::effect::Effects;
use crate::overwrite::OverwriteAnswer;
use crate::training::search::{SearchJob, SearchSetup};
use crate::work::NewJob;
use cytoscope_objects::SegmentOptions;
use cytoscope_pipeline::predict::Blend;
use cytoscope_preprocess::PreprocessStep;
use cytoscope_worker::JobId;
use std::path::PathBuf;

/// An action on the jobs of the engine.
pub(crate) enum JobsAction {
    /// Queues a job that was requested with [`Jobs::request`].
    Run(Box<NewJob>),
    /// Predicts a document.
    Predict(u64),
    /// Predicts all series of a document's file.
    PredictAllSeries(u64),
    /// Predicts all documents.
    PredictAll,
    /// Cancels a waiting or running job.
    Cancel(JobId),
    /// Asks a running job to end now with the best result so far.
    Finish(JobId),
    /// Cancels the running job, or else the next one.
    CancelNext,
    /// Cancels all queued and running predictions.
    CancelPredictions,
    /// Restarts the engine after automatic restarts were given up.
    RestartEngine,
    /// Looks for the devices of this machine again.
    LookForDevices,
    /// Requests the lists of devices and models, after the models on disk have changed.
    RequestLists,
    /// Sets whether only the shown time point of a document is predicted.
    OneTime {
        /// Id of the document.
        document: u64,
        /// Whether the other time points are left out.
        only: bool,
    },
    /// Asks for the file that an input tensor of a model is read from, in a dialog that starts in the folder.
    AskInputFile(InputOfDocument, Option<PathBuf>),
    /// Reads the input tensor that was asked about from a file.
    InputFileChosen {
        /// Id of the document.
        document: u64,
        /// The file.
        path: PathBuf,
    },
    /// Sets the file that an input tensor of a model is read from; `None` reads it from the stack.
    SetInputFile(InputOfDocument, Option<InputFile>),
    /// Sets the tile size Z, Y, X of further predictions; `None` chooses it by work and memory.
    Tile(Option<[usize; 3]>),
    /// Sets how further predictions join tiles; `None` leaves it to the program, which uses no tiles if it can.
    Blend(Option<Blend>),
    /// Sets the overlap of tiles with Gaussian blending in percent; `None` is the default.
    Overlap(Option<u64>),
    /// Sets whether the next prediction measures the devices again for its model.
    MeasureAgain(bool),
    /// Sets the results folder of all documents; `None` writes the results of each stack beside it.
    ResultsFolder(Option<PathBuf>),
    /// Segments the shown map again as a preview.
    Refine {
        /// Id of the document.
        document: u64,
        /// Threshold, seeds and filters to segment with.
        options: SegmentOptions,
    },
    /// Segments the shown map again and saves the result.
    KeepObjects {
        /// Id of the document.
        document: u64,
        /// Threshold, seeds and filters to segment with.
        options: SegmentOptions,
    },
    /// Discards the segmentation options that the user has changed, and their previews.
    ForgetRefined,
    /// Shows the preview of the segmentation options that the user has changed at the shown time point of a document, if there
    /// are any: other labels were shown meanwhile.
    ShowUnsaved(u64),
    /// A document was opened again with another id, for example with another voxel size: the changed segmentation options of
    /// the old one are discarded.
    Replaced {
        /// Id of the document that was replaced.
        from: u64,
        /// Id of the document that took its place, if that has the same voxels: what was chosen for predictions of the old one
        /// applies to it.
        to: Option<u64>,
    },
    /// Estimates the diameter of a document's objects.
    EstimateDiameter(u64),
    /// Measures the shown labels of a document. Unsaved corrections are saved instead, which also measures them.
    Measure(u64),
    /// Measures corrected labels after they were saved.
    MeasureSaved {
        /// Id of the document.
        document: u64,
        /// File of the labels.
        labels: PathBuf,
        /// Time point that the labels belong to.
        time: usize,
    },
    /// Writes the surface of the selected object of a document, or of all its objects.
    SaveMesh {
        /// Id of the document.
        document: u64,
        /// File to write; the file dialog has already asked about replacing it.
        out: PathBuf,
    },
    /// Asks for the file of a preprocessed copy of a document.
    AskCopy {
        /// Id of the document.
        document: u64,
        /// Steps of the copy, in order; they may change the grid.
        steps: Vec<PreprocessStep>,
    },
    /// Writes the preprocessed copy of a document, and opens it.
    SaveCopy {
        /// Id of the document.
        document: u64,
        /// File to write; the file dialog has already asked about replacing it.
        out: PathBuf,
    },
    /// A document was opened.
    Opened {
        /// Id of the document.
        document: u64,
        /// Path of its file.
        path: PathBuf,
        /// Number of the series, from 0.
        series: usize,
    },
    /// A document was closed.
    Closed(u64),
    /// Continues the predictions of earlier windows.
    ContinueQueue,
    /// Discards the predictions of earlier windows.
    DiscardQueue,
    /// Answers a question about overwriting files.
    AnswerOverwrite {
        /// Number of the question; one that was answered before changes nothing.
        question: u64,
        /// The user's answer about the refused job.
        answer: OverwriteAnswer,
        /// Whether this answers the questions about other series of the same prediction, too.
        for_rest: bool,
    },
    /// Runs a recorded job again.
    RunAgain {
        /// Path of its record.
        record: PathBuf,
        /// Folder for the new results.
        folder: PathBuf,
    },
    /// Reads a run from a trace or a report.
    OpenRun(PathBuf),
    /// Closes the run from a file with this number.
    CloseRun(u64),
    /// Reads the peak rates of this machine, or measures them.
    MeasurePeak,
    /// Tunes the settings of the selected model with a document's stack, in a separate process.
    Tune(u64),
    /// Tunes the settings of a training run in a separate process, once they are written to their file.
    TuneTraining(Box<TunedTraining>),
    /// Writes the files of a search for training settings.
    PrepareSearch(Box<SearchSetup>),
    /// The files of a search could not be written, for this reason; `None` if they were, but the search was canceled.
    SearchNotPrepared(Option<String>),
    /// Starts a search for training settings in a separate process, or continues one.
    StartSearch {
        /// The search.
        job: Box<SearchJob>,
        /// Whether it continues.
        resume: bool,
    },
    /// Cancels tuning.
    CancelTuning,
}

impl Jobs {
    /// Applies an action. Returns what other states and the disk have to do for it.
    pub(crate) fn apply(
        &mut self,
        action: JobsAction,
        documents: &Documents,
        corrections: &Corrections,
        display: &Display,
    ) -> Effects {
        let mut effects = Effects::default();
        self.work.performance = display.settings().performance;
        match action {
            JobsAction::Run(new) => self.work.queue(*new),
            JobsAction::Predict(id) => self.request_prediction(id, false, documents, display, &mut effects),
            JobsAction::PredictAllSeries(id) => self.request_prediction(id, true, documents, display, &mut effects),
            JobsAction::PredictAll => {
                for document in documents.all() {
                    self.request_prediction(document.id, false, documents, display, &mut effects);
                }
            }
            JobsAction::Cancel(id) => self.work.cancel(id),
            JobsAction::Finish(id) => self.work.finish(id),
            JobsAction::CancelNext => self.cancel_next(),
            JobsAction::CancelPredictions => self.cancel_predictions(),
            JobsAction::RestartEngine => self.work.restart(),
            JobsAction::LookForDevices => self.work.look_for_devices(),
            JobsAction::RequestLists => self.work.request_lists(),
            JobsAction::OneTime { document, only: true } => _ = self.one_time.insert(document),
            JobsAction::OneTime { document, only: false } => _ = self.one_time.remove(&document),
            JobsAction::AskInputFile(input, folder) => self.ask_input_file(input, folder, &mut effects),
            JobsAction::InputFileChosen { document, path } => self.input_file_chosen(document, path),
            JobsAction::SetInputFile(input, file) => self.set_input_file(input, file),
            JobsAction::Tile(tile) => self.tile = tile,
            JobsAction::Blend(blend) => self.blend = blend,
            JobsAction::Overlap(percent) => self.overlap_percent = percent,
            JobsAction::MeasureAgain(again) => self.remeasure = again,
            JobsAction::ResultsFolder(folder) => self.choose_folder(folder, documents, &mut effects),
            JobsAction::Refine { document, options } => self.refine(document, options, documents, display),
            JobsAction::KeepObjects { document, options } => self.keep_objects(document, options, documents, display),
            JobsAction::ForgetRefined => self.forget_refined(documents, &mut effects),
            JobsAction::ShowUnsaved(id) => self.show_unsaved(id, documents, corrections, display),
            JobsAction::Replaced { from, to } => self.replace_document(from, to, &mut effects),
            JobsAction::EstimateDiameter(id) => self.estimate_diameter(id, documents, display),
            JobsAction::Measure(id) => self.request_measurement(id, documents, corrections, &mut effects),
            JobsAction::MeasureSaved { document, labels, time } => {
                // The engine process ends with the window.
                if self.has_engine() && !display.is_quitting() {
                    self.prepare_measurement(document, labels, Some(time), false, documents, &mut effects);
                }
            }
            JobsAction::SaveMesh { document, out } => self.save_mesh(document, out, documents, display, &mut effects),
            JobsAction::AskCopy { document, steps } => self.ask_copy(document, steps, documents, &mut effects),
            JobsAction::SaveCopy { document, out } => self.save_copy(document, out, documents, &mut effects),
            JobsAction::Opened { document: id, path, series } => {
                if let Some(document) = documents.get(id) {
                    effects.disk_for(id, DocumentEffect::FindResults(self.place(document)));
                }
                self.continue_predictions(id, &path, series);
            }
            JobsAction::Closed(id) => self.forget_document(id, &mut effects),
            JobsAction::ContinueQueue => self.continue_queue(documents, &mut effects),
            JobsAction::DiscardQueue => self.queue.discard_abandoned(),
            JobsAction::AnswerOverwrite { question, answer, for_rest } => {
                self.answer_overwrite(question, &answer, for_rest, documents);
            }
            JobsAction::RunAgain { record, folder } => self.run_again(record, folder, &mut effects),
            JobsAction::OpenRun(path) => effects.disk(DiskEffect::ReadRun { path }),
            JobsAction::MeasurePeak => {
                self.measuring_peak = true;
                effects.disk(DiskEffect::MeasurePeak);
            }
            JobsAction::Tune(id) => self.tune(id, documents, display, &mut effects),
            JobsAction::TuneTraining(training) => self.tune_training(training, &mut effects),
            JobsAction::PrepareSearch(setup) => self.prepare_search(setup, &mut effects),
            JobsAction::SearchNotPrepared(reason) => self.search_not_prepared(reason, &mut effects),
            JobsAction::StartSearch { job, resume } => self.start_search(&job, resume, &mut effects),
            JobsAction::CancelTuning => self.cancel_tuning(&mut effects),
            JobsAction::CloseRun(number) => self.file_runs.retain(|f| f.number != number),
        }
        effects
    }

    /// Segments the shown map of a document again as a preview.
    fn refine(&mut self, id: u64, options: SegmentOptions, documents: &Documents, display: &Display) {
        let Some(document) = documents.get(id) else { return };
        self.objects.change(id, document.time, options.clone());
        self.segment(id, options, false, documents, display);
    }

    /// Segments the shown map of a document again as a preview of the options that the user has changed at this time point, if
    /// there are any. Corrections that are open stay on screen.
    fn show_unsaved(&mut self, id: u64, documents: &Documents, corrections: &Corrections, display: &Display) {
        let unsaved = documents.get(id).and_then(|document| self.objects.unsaved(id, document.time)).cloned();
        if let Some(options) = unsaved.filter(|_| corrections.of(id).is_none()) {
            self.refine(id, options, documents, display);
        }
    }

    /// Segments the shown map of a document again to save the result. The options are kept until they are saved, so that a
    /// failed job can be repeated.
    fn keep_objects(&mut self, id: u64, options: SegmentOptions, documents: &Documents, display: &Display) {
        let Some(document) = documents.get(id) else { return };
        let saved = SavedOptions { options: options.clone(), voxel_um: document.given_voxel_um() };
        self.objects.save(id, document.time, saved);
        self.segment(id, options, true, documents, display);
    }

    /// Sets and remembers the results folder of all documents. Without one, that of each document is looked for.
    fn choose_folder(&mut self, folder: Option<PathBuf>, documents: &Documents, effects: &mut Effects) {
        effects.act(DisplayAction::ResultsFolder(folder.clone()));
        self.earlier_folder = None;
        self.chosen_folder = folder;
        if self.chosen_folder.is_none() {
            for document in documents.all() {
                effects.disk_for(document.id, DocumentEffect::FindFolder(self.place(document)));
            }
        }
    }

    /// Cancels the running job, or else the next one.
    fn cancel_next(&mut self) {
        let running = self.work.running().or_else(|| self.work.jobs.iter().find(|j| !j.state.is_over()));
        if let Some(id) = running.map(|j| j.id) {
            self.work.cancel(id);
        }
    }
}
