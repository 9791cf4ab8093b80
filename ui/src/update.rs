//! Changes of the window: the only place where actions, commands and effects reach the states.

use crate::action::Action;
use crate::app::Workbench;
use crate::batch::BatchAction;
use crate::command::Command;
use crate::correct::CorrectionsAction;
use crate::correct::files::SetAside;
use crate::disk::{DiskEvent, DocumentEvent};
use crate::display::{Dialog, DisplayAction, PanelTask, Part};
use crate::document::Role;
use crate::documents::{DocumentsAction, ViewAction};
use crate::effect::{Effect, Effects, ViewsEffect};
use crate::jobs::JobsAction;
use crate::line_profile::line_profile_csv;
use crate::models::ModelsAction;
use crate::opener::{Content, FileRequest, ProfileFormat, ProfileTable};
use crate::overwrite::OverwriteAnswer;
use crate::results::{ANNDATA_START, Results};
use crate::runs::RunId;
use crate::screenshots::take_screenshot;
use crate::training::further::FurtherAction;
use crate::training::search::SearchAction;
use crate::training::{Training, TrainingAction};
use crate::views::layout::Layout;
use cytoscope_model_package::package_folder;
use cytoscope_pipeline::{PARQUET_EXTENSION, PairRole, parquet_table};
use cytoscope_profile::ComparedRun;
use cytoscope_storage::io_message;
use cytoscope_storage::target::extension;
use eframe::egui;
use std::path::{Path, PathBuf};

impl Workbench {
    /// Applies an action and carries out its effects.
    pub(crate) fn apply(&mut self, action: impl Into<Action>) {
        let effects = match action.into() {
            Action::Documents(action) => self.documents.apply(action),
            Action::Jobs(action) => self.jobs.apply(action, &self.documents, &self.corrections, &self.display),
            Action::Training(action) => self.training.apply(action, &self.jobs, &self.display),
            Action::Corrections(action) => self.corrections.apply(action, &self.documents, &self.jobs, &self.display),
            Action::Models(action) => self.models.apply(action, &self.jobs),
            Action::Batch(action) => self.batch.apply(action, &self.jobs, &self.documents),
            Action::Display(action) => self.display.apply(action),
            Action::Chosen(request, files) => self.chosen(request, files),
        };
        self.carry_out(effects);
    }

    /// Carries out effects, each with all that follows from it, in order.
    pub(crate) fn carry_out(&mut self, effects: Effects) {
        for effect in effects {
            match effect {
                Effect::Act(action) => self.apply(action),
                Effect::Notify { level, title, details, about } => self.display.notify(level, title, details, about),
                Effect::RunsAgain(job) => self.display.remove_failures_of(&job),
                Effect::Views(ViewsEffect::Forget(sources)) => self.panels.views.forget(sources),
                Effect::Views(ViewsEffect::ResetVolume) => self.panels.views.reset_volume(),
                Effect::Views(ViewsEffect::ResetLayout) => self.panels.views = Layout::default(),
                Effect::Disk(effect) => self.disk.queue(effect),
            }
        }
    }

    /// Passes the result of work on a disk to the state that asked for it.
    pub(crate) fn handle_disk(&mut self, event: DiskEvent) {
        let effects = match event {
            DiskEvent::Listed { stacks, models, records } => {
                let mut effects = self.documents.listed(stacks, self.display.settings());
                records.into_iter().for_each(|record| effects.act(DisplayAction::OpenRecord(record)));
                if !models.is_empty() {
                    effects.act(ModelsAction::Open(models));
                }
                effects
            }
            DiskEvent::ListedForBatch(files) => self.batch.listed(files),
            DiskEvent::ChannelsRead { path, role, names } => {
                self.batch.channels_read(&path, role, names);
                Effects::default()
            }
            DiskEvent::PairChannelsRead { data, channels } => {
                self.batch.pair_channels_read(&data, channels);
                Effects::default()
            }
            DiskEvent::Visited(visited) => self.display.visited(visited),
            DiskEvent::ModelReady { place, out } => {
                self.models.ready(place, out, &self.jobs, &self.documents, self.display.settings())
            }
            DiskEvent::ModelRemoved { path, result } => self.models.removed(&path, result),
            DiskEvent::Document { document, event } => self.handle_document_event(document, event),
            DiskEvent::TrainingReady(job) => self.training.ready(job, &self.jobs),
            DiskEvent::FinishRequested { paused, requested } => {
                self.training.finish_requested(paused, requested, &self.jobs)
            }
            DiskEvent::TrainingDiscarded(result) => Training::discarded(result),
            DiskEvent::RunRead { path, run } => self.jobs.run_read(path, run),
            DiskEvent::TuningReady(training) => self.jobs.tuning_ready(training),
            DiskEvent::SearchReady(job) => self.training.search_ready(job, &self.jobs),
            DiskEvent::SearchRemoved { job, result } => self.training.search_removed(*job, result),
            DiskEvent::TrialsRead { job, trials } => self.training.continue_search(*job, trials, &self.jobs),
            DiskEvent::MachineProfilesRead(profiles) => self.jobs.machine_profiles_read(profiles),
            DiskEvent::PeakMeasured(peak) => self.jobs.peak_measured(*peak),
            DiskEvent::SettingsSaved(result) => self.display.settings_saved(result),
        };
        self.carry_out(effects);
    }

    /// Passes the result of work for a document to the state that asked for it.
    fn handle_document_event(&mut self, document: u64, event: DocumentEvent) -> Effects {
        match event {
            DocumentEvent::ResultsFound(found) => self.jobs.results_found(document, *found, &self.documents),
            DocumentEvent::FolderFound(folder) => {
                self.jobs.folder_found(document, folder);
                Effects::default()
            }
            DocumentEvent::PredictionReady(folder) => {
                self.jobs.prediction_ready(document, folder, &self.documents, &self.display)
            }
            DocumentEvent::MeasurementReady { labels, time, target } => {
                self.jobs.measurement_ready(document, labels, time, target, &self.documents, &self.display)
            }
            DocumentEvent::CorrectionsReady(place) => {
                if let (Ok(place), Some(shown)) = (&place, self.documents.get(document)) {
                    self.jobs.remember_folder((shown.path.clone(), shown.series), &place.folder);
                }
                self.corrections.ready(document, place, &self.documents)
            }
            DocumentEvent::SetAside(moved) => {
                if let Ok(SetAside { labels: Some((from, to)), .. }) = &moved {
                    self.documents.labels_moved(document, from, to);
                }
                self.corrections.set_aside(document, moved, &self.documents, &self.jobs)
            }
            DocumentEvent::LiveOpened { output, array } => {
                self.documents.live_opened(document, output, array);
                Effects::default()
            }
            DocumentEvent::PreviewOpened { report, array } => {
                self.documents.preview_opened(document, &report, array);
                Effects::default()
            }
        }
    }

    /// Passes files chosen in a dialog to the state that asked for them.
    fn chosen(&mut self, request: FileRequest, files: Vec<PathBuf>) -> Effects {
        let mut effects = Effects::default();
        let Some(first) = files.first().cloned() else { return effects };
        match request {
            FileRequest::Stacks => effects.act(DocumentsAction::Open(files)),
            FileRequest::Labels(document) => {
                effects.act(DocumentsAction::OpenOverlay { document, role: Role::Labels, path: first });
            }
            FileRequest::Truth(document) => {
                effects.act(DocumentsAction::OpenOverlay { document, role: Role::Truth, path: first });
            }
            FileRequest::InputFile(document) => {
                effects.act(JobsAction::InputFileChosen { document, path: first });
            }
            FileRequest::DatasetFolder(document) => {
                effects.act(DisplayAction::DatasetFolder(first.clone()));
                if let Some(document) = document {
                    effects.act(CorrectionsAction::ExportTo { document, folder: first });
                }
            }
            FileRequest::TrainingFolder | FileRequest::TrainingTable => effects.act(TrainingAction::TrainOn(first)),
            FileRequest::StartModel => effects.act(TrainingAction::StartFromFile(first)),
            FileRequest::SearchRanges => effects.act(TrainingAction::Search(SearchAction::Ranges(Some(first)))),
            FileRequest::TrainingSettings => effects.act(TrainingAction::Further(FurtherAction::Load(first))),
            FileRequest::SavedTrainingSettings => effects.act(TrainingAction::Further(FurtherAction::Save(first))),
            FileRequest::Model(format) => effects.act(TrainingAction::Export(format, first)),
            FileRequest::ResultsFolder => effects.act(JobsAction::ResultsFolder(Some(first))),
            FileRequest::RefusedPrediction { question, for_rest } => {
                let answer = OverwriteAnswer::Folder(first);
                effects.act(JobsAction::AnswerOverwrite { question, answer, for_rest });
            }
            FileRequest::RerunFolder => effects.act(DisplayAction::RerunFolder(first)),
            FileRequest::Screenshot(of, document) => return take_screenshot(of, document, first, self.state()),
            FileRequest::LineProfile(document) => {
                let is_shown = self.documents.active_id() == Some(document);
                match line_profile_csv(self.state(), &self.panels.views).filter(|_| is_shown) {
                    Some(text) => effects.act(save(first, move || Ok(text.into_bytes()))),
                    None => effects.error(
                        "The line profile was not saved",
                        "Its line is no longer on screen: show its stack, then save again.",
                    ),
                }
            }
            FileRequest::Table(document) => match self.results_for(document).cloned() {
                Some(table) => effects.act(save(first.clone(), move || table_content(&table, &first))),
                None => not_saved(&mut effects),
            },
            FileRequest::AnnData(document) => match self.results_for(document).cloned() {
                Some(table) => effects.act(save(first, move || Ok(table.table().anndata_csv().into_bytes()))),
                None => not_saved(&mut effects),
            },
            FileRequest::Mesh(document) => effects.act(JobsAction::SaveMesh { document, out: first }),
            FileRequest::PreprocessedCopy(document) => effects.act(JobsAction::SaveCopy { document, out: first }),
            FileRequest::ModelExport(format, request) => {
                effects.act(ModelsAction::Export { format, request, out: first });
            }
            FileRequest::ModelFile => {
                let models = files.iter().map(|file| package_folder(file).to_owned()).collect();
                effects.act(ModelsAction::Open(models));
            }
            FileRequest::ConvertFiles => effects.act(BatchAction::Add(files)),
            FileRequest::ConvertFolder => effects.act(BatchAction::Folder(Some(first))),
            FileRequest::RegionsStack => effects.act(BatchAction::Like(Some(first))),
            FileRequest::Predictions | FileRequest::PredictionFile => {
                effects.act(BatchAction::Compare(PairRole::Prediction, first));
            }
            FileRequest::Truths | FileRequest::TruthFile => effects.act(BatchAction::Compare(PairRole::Truth, first)),
            FileRequest::PairsFolder | FileRequest::PairsTable => effects.act(BatchAction::Pairs(first)),
            FileRequest::Scores => effects.act(BatchAction::Save(first)),
            FileRequest::Run => effects.act(JobsAction::OpenRun(first)),
            FileRequest::Profile(format, id) => match self.profile_content(format, id) {
                Some(content) => effects.act(DocumentsAction::Save { path: first, content }),
                None => effects.error(
                    "The profile was not saved",
                    "Its run is no longer in the profiler: open the run again, then save again.",
                ),
            },
        }
        effects
    }

    /// The object table of a document, which may no longer be the active one.
    fn results_for(&self, document: u64) -> Option<&Results> {
        self.documents.get(document)?.results.as_ref()
    }

    /// Returns the bytes to write for the profile of a run, if the run still exists.
    fn profile_content(&self, format: ProfileFormat, id: RunId) -> Option<Content> {
        let run = self.jobs.stored(id)?;
        match format {
            ProfileFormat::Trace => Some(Box::new(move || {
                let mut text = Vec::new();
                run.write_trace(&mut text).map_err(|e| e.to_string())?;
                Ok(text)
            })),
            ProfileFormat::Csv(table) => {
                let other = match table {
                    ProfileTable::Comparison(other) => {
                        let title = |id: RunId| Some(self.jobs.shown_run(id)?.title().to_owned());
                        Some((self.jobs.stored(other)?, [title(id)?, title(other)?]))
                    }
                    _ => None,
                };
                Some(Box::new(move || {
                    let compared = other
                        .as_ref()
                        .map(|(other, [first, second])| ComparedRun { run: other, titles: [first, second] });
                    Ok(table.into_run_table().csv(&run, compared).into_bytes())
                }))
            }
        }
    }

    /// Executes a command.
    pub(crate) fn execute(&mut self, ctx: &egui::Context, command: Command) {
        match command {
            Command::Open => self.ask(FileRequest::Stacks, String::new()),
            Command::OpenSample => {
                let sample = self.documents.sample().map(Path::to_owned);
                self.apply(DocumentsAction::Open(sample.into_iter().collect()));
            }
            Command::OpenLabels => self.ask_for_active(FileRequest::Labels),
            Command::OpenTruth => self.ask_for_active(FileRequest::Truth),
            // A page hides the stacks.
            Command::Close if self.display.task().is_page() => self.apply(DisplayAction::Task(PanelTask::Predict)),
            Command::Close if self.state().predicted_document().is_some() => {
                self.apply(DisplayAction::Open(Dialog::CloseStack));
            }
            Command::Close => self.apply(DocumentsAction::Close),
            Command::Predict => self.apply_to_active(JobsAction::Predict),
            Command::PredictAll => self.apply(JobsAction::PredictAll),
            Command::Train => self.apply(DisplayAction::ShowTraining),
            Command::Models => self.show_models(),
            Command::Convert => self.apply(BatchAction::AddOpen),
            Command::Evaluate => self.apply(BatchAction::ShowEvaluation),
            Command::Cancel => self.apply(JobsAction::CancelNext),
            Command::CancelPredictions => self.apply(JobsAction::CancelPredictions),
            Command::NextSlice => self.apply(ViewAction::StepSlice(1)),
            Command::PreviousSlice => self.apply(ViewAction::StepSlice(-1)),
            Command::NextTime => self.apply(ViewAction::StepTime(1)),
            Command::PreviousTime => self.apply(ViewAction::StepTime(-1)),
            Command::Play => self.apply(ViewAction::Play),
            Command::Fit => self.apply(ViewAction::Fit),
            Command::AutoContrast => self.apply(ViewAction::AutoContrast),
            Command::ToggleLabels => self.apply(ViewAction::ToggleLabels),
            Command::NextLabelStyle => self.apply(ViewAction::NextLabelStyle),
            Command::ToggleMap => self.apply(ViewAction::ToggleMap),
            Command::ToggleCrosshair => self.apply(DisplayAction::Toggle(Part::Crosshair)),
            Command::ToggleScaleBar => self.apply(DisplayAction::Toggle(Part::ScaleBar)),
            Command::ToggleSwipe => self.apply(DisplayAction::ToggleSwipe),
            Command::ToggleLineProfile => self.apply(DisplayAction::ToggleLineProfile),
            Command::Screenshot => self.apply(DisplayAction::OpenScreenshotDialog),
            Command::SaveTable => self.ask_to_save(FileRequest::Table, "_objects.csv"),
            Command::SaveAnnData => self.ask_to_save(FileRequest::AnnData, "_anndata.csv"),
            Command::SaveMesh => self.ask_to_save(FileRequest::Mesh, "_objects.stl"),
            Command::Measure => self.apply_to_active(JobsAction::Measure),
            Command::ToggleLibrary => self.apply(DisplayAction::Toggle(Part::Library)),
            Command::ToggleTasks => self.apply(DisplayAction::Toggle(Part::Tasks)),
            Command::ToggleProfiler => self.apply(DisplayAction::Toggle(Part::Profiler)),
            Command::OpenRun => {
                if !self.settings().show_profiler {
                    self.apply(DisplayAction::Toggle(Part::Profiler));
                }
                self.ask(FileRequest::Run, String::new());
            }
            Command::Toggle3d => self.apply(DisplayAction::Toggle(Part::Volume)),
            Command::ResetLayout => self.apply(DisplayAction::Open(Dialog::Reset)),
            Command::NextTheme => self.apply(DisplayAction::NextTheme),
            Command::Palette => self.apply(DisplayAction::Open(Dialog::Palette)),
            Command::Shortcuts => self.apply(DisplayAction::Open(Dialog::Shortcuts)),
            Command::ShowLogFolder => {
                if let Some(folder) = self.display.log_folder().map(Path::to_owned) {
                    self.apply(DocumentsAction::ShowFolder(folder));
                }
            }
            Command::About => self.apply(DisplayAction::Open(Dialog::About)),
            Command::Tool(tool) => {
                // The line profile takes the pointer as well.
                if self.display.shows_line_profile() {
                    self.apply(DisplayAction::ToggleLineProfile);
                }
                self.apply(CorrectionsAction::Tool(tool));
            }
            Command::Correct(action) => self.apply(CorrectionsAction::Edit(action)),
            Command::Quit => ctx.send_viewport_cmd(egui::ViewportCommand::Close),
        }
    }

    /// Applies an action on the active document, if there is one.
    fn apply_to_active(&mut self, action: impl FnOnce(u64) -> JobsAction) {
        if let Some(id) = self.documents.active_id() {
            self.apply(action(id));
        }
    }

    /// Shows the Models page, at first with the model that predictions use.
    fn show_models(&mut self) {
        let used = self.jobs.model(self.settings()).map(|card| card.path.clone());
        if self.models.shown().is_none()
            && let Some(used) = used
        {
            self.apply(ModelsAction::Select(used));
        }
        self.apply(DisplayAction::Task(PanelTask::Models));
    }

    /// Shows a file dialog for the active document, if there is one.
    fn ask_for_active(&mut self, request: impl FnOnce(u64) -> FileRequest) {
        if let Some(id) = self.documents.active_id() {
            self.ask(request(id), String::new());
        }
    }

    /// Asks for a file to save a result of the active document to; its suggested name ends in `suffix`.
    fn ask_to_save(&mut self, request: impl FnOnce(u64) -> FileRequest, suffix: &str) {
        let Some((id, stem)) = self.document().map(|d| (d.id, d.stem())) else { return };
        self.ask(request(id), format!("{stem}{suffix}"));
    }

    /// Shows a file dialog in the folder of the active document, or else of the most recent one.
    fn ask(&mut self, request: FileRequest, name: String) {
        let folder_of = |path: &Path| path.parent().map(Path::to_owned);
        let folder = self.document().and_then(|d| folder_of(&d.path));
        let folder = folder.or_else(|| self.settings().recent.first().and_then(|p| folder_of(p)));
        self.apply(DocumentsAction::Ask { request, folder, name });
    }
}

/// The bytes of an object table in the format of the extension of `path`: Parquet, or else CSV as it was measured. A table that
/// was measured in the form of AnnData, which another command saves, becomes a plain one.
fn table_content(table: &Results, path: &Path) -> Result<Vec<u8>, String> {
    if extension(path).as_deref() == Some(PARQUET_EXTENSION) {
        return parquet_table(&table.table());
    }
    let bytes = std::fs::read(&table.path).map_err(|error| io_message(&table.path, &error))?;
    Ok(if bytes.starts_with(ANNDATA_START.as_bytes()) { table.table().csv().into_bytes() } else { bytes })
}

/// Reports that the table of a document was not saved because the document was closed.
fn not_saved(effects: &mut Effects) {
    effects.error("The table was not saved", "Its stack was closed: open it again, then save again.");
}

/// The action that saves a file with the bytes of `content`.
fn save(path: PathBuf, content: impl FnOnce() -> Result<Vec<u8>, String> + Send + 'static) -> DocumentsAction {
    let content: Content = Box::new(content);
    DocumentsAction::Save { path, content }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_was_measured_for_anndata_is_saved_as_a_plain_one() {
        let folder = tempfile::tempdir().unwrap();
        let [measured, saved] = ["a_objects.csv", "b.csv"].map(|name| folder.path().join(name));
        let plain = "label,voxels,mean_a\n7,10,2.5\n12,3,0.25\n";
        for measured_as in ["object,voxels,mean_a\nobject_7,10,2.5\nobject_12,3,0.25\n", plain] {
            std::fs::write(&measured, measured_as).unwrap();
            let table = Results::read(&measured).unwrap();
            assert_eq!(table_content(&table, &saved).unwrap(), plain.as_bytes());
        }
    }
}
