//! All states together, for what only reads them: panels, and questions that concern several states.

use crate::batch::Batch;
use crate::command::Command;
use crate::correct::tools::EditAction;
use crate::correct::{Correction, Corrections, reason_against};
use crate::display::{Display, PanelTask};
use crate::document::{Document, Role};
use crate::documents::Documents;
use crate::jobs::Jobs;
use crate::measure::{TableState, has_other_voxel_size, is_of_other_labels};
use crate::models::Models;
use crate::settings::Settings;
use crate::training::{Training, Wizard};
use crate::work::Purpose;
use cytoscope_pipeline::cards::ModelCard;
use std::collections::BTreeSet;

/// Why a command on labels is disabled: there are none.
const WITHOUT_LABELS: &str = "Predict the stack or add labels first.";

/// Why a command on saved labels is disabled: those that are shown are a preview.
const UNSAVED_PREVIEW: &str = "These objects are a preview: save them in Predict first.";

/// Why a command on saved labels is disabled: corrected ones are being saved.
const WHILE_SAVING: &str = "Wait until the corrected labels have been saved.";

/// Why a command on the views is disabled: a page is shown instead of them.
const BEHIND_PAGE: &str = "Close the page first: the views are behind it.";

/// Shared references to all states.
#[derive(Clone, Copy)]
pub(crate) struct State<'a> {
    /// The open stacks.
    pub(crate) documents: &'a Documents,
    /// The jobs of the engine.
    pub(crate) jobs: &'a Jobs,
    /// The training wizard.
    pub(crate) training: &'a Training,
    /// The corrections of labels.
    pub(crate) corrections: &'a Corrections,
    /// The Models page.
    pub(crate) models: &'a Models,
    /// The page for converting and scoring files.
    pub(crate) batch: &'a Batch,
    /// Settings, panels, dialogs and notifications of the window.
    pub(crate) display: &'a Display,
}

impl<'a> State<'a> {
    /// The active document.
    pub(crate) fn document(self) -> Option<&'a Document> {
        self.documents.active()
    }

    /// The active document, if its prediction is running or waits.
    pub(crate) fn predicted_document(self) -> Option<&'a Document> {
        self.document().filter(|document| self.jobs.prediction(document.id).is_some())
    }

    /// Current settings, including unsaved changes.
    pub(crate) fn settings(self) -> &'a Settings {
        self.display.settings()
    }

    /// The training wizard.
    pub(crate) fn wizard(self) -> &'a Wizard {
        self.training.wizard()
    }

    /// The selected model, or the first usable one.
    pub(crate) fn model(self) -> Option<&'a ModelCard> {
        self.jobs.model(self.settings())
    }

    /// The corrections of the active document, if they can be edited.
    pub(crate) fn correction(self) -> Option<&'a Correction> {
        self.corrections.open(self.documents.active_id()?)
    }

    /// Whether a command is enabled now.
    pub(crate) fn is_enabled(self, command: Command) -> bool {
        if command.changes_views() && self.display.task().is_page() {
            return false;
        }
        let document = self.document();
        let has = |role| document.is_some_and(|d| d.overlay_with_role(role).is_some());
        match command {
            Command::OpenSample => self.documents.sample().is_some(),
            Command::Models | Command::Convert | Command::Evaluate => self.jobs.has_engine(),
            Command::ShowLogFolder => self.display.log_folder().is_some(),
            Command::OpenLabels
            | Command::OpenTruth
            | Command::Fit
            | Command::AutoContrast
            | Command::ToggleCrosshair
            | Command::ToggleScaleBar
            | Command::ToggleLineProfile
            | Command::Screenshot => document.is_some(),
            Command::Close => document.is_some() || self.display.task().is_page(),
            Command::Predict => document.is_some_and(|d| self.jobs.prediction(d.id).is_none()) && self.can_predict(),
            Command::PredictAll => self.documents.all().len() > 1 && self.can_predict(),
            Command::Cancel => self.jobs.active() > 0,
            Command::CancelPredictions => self.jobs.can_cancel_predictions(),
            Command::NextSlice | Command::PreviousSlice | Command::Play => document.is_some_and(Document::is_3d),
            Command::NextTime | Command::PreviousTime => document.is_some_and(|d| d.extents.times > 1),
            Command::ToggleLabels | Command::NextLabelStyle => has(Role::Labels) || has(Role::Truth),
            Command::ToggleMap => has(Role::Map),
            Command::ToggleSwipe => document.is_some_and(|d| !d.overlays.is_empty()),
            Command::SaveTable | Command::SaveAnnData => document.is_some_and(|d| d.results.is_some()),
            Command::SaveMesh => self.reason_against_meshes().is_none(),
            Command::Measure => self.reason_against_measuring().is_none(),
            Command::Tool(_) => self.correction().is_some() && self.display.task() == PanelTask::Correct,
            Command::Correct(action) => self.reason_against_editing(action).is_none(),
            _ => true,
        }
    }

    fn can_predict(self) -> bool {
        let has_model = self.jobs.models().iter().any(|m| m.problem.is_none());
        self.reason_against_jobs().is_none() && has_model && self.jobs.tuning().is_none()
    }

    /// Why the engine can run no job now; `None` if it can.
    pub(crate) fn reason_against_jobs(self) -> Option<&'static str> {
        if !self.jobs.has_engine() {
            Some("The engine is missing: quit Cytoscope and start it again.")
        } else if self.jobs.has_stopped_engine() {
            Some("The engine has stopped: restart it in the status bar.")
        } else {
            None
        }
    }

    /// Why stacks cannot be predicted now; `None` if they can.
    pub(crate) fn reason_against_predicting(self) -> Option<&'static str> {
        let reason = self.reason_against_jobs();
        if reason.is_some() {
            reason
        } else if self.jobs.models().is_empty() {
            Some("Loading models…")
        } else if self.model().is_none() {
            Some("No usable model. Drop a model file, or open one under Predict > Models.")
        } else if self.jobs.is_searching() {
            Some("Wait until the search for training settings has finished, or cancel it.")
        } else if self.jobs.tuning().is_some() {
            Some("Wait until tuning has finished, or cancel it: predictions would distort the timing.")
        } else {
            None
        }
    }

    /// Why a command is disabled now; `None` if it is enabled.
    pub(crate) fn reason_against_command(self, command: Command) -> Option<&'static str> {
        if self.is_enabled(command) {
            return None;
        }
        let document = self.document();
        match command {
            _ if command.changes_views() && self.display.task().is_page() => Some(BEHIND_PAGE),
            Command::OpenSample => Some("The sample is not installed."),
            Command::Models | Command::Convert | Command::Evaluate => self.reason_against_jobs(),
            Command::ShowLogFolder => Some("No log is written."),
            Command::Close => Some("No stack is open."),
            Command::Cancel => Some("No job is running or waiting."),
            Command::CancelPredictions => Some("No prediction is running or waiting."),
            Command::Correct(action) => self.reason_against_editing(action),
            Command::Measure => self.reason_against_measuring(),
            Command::PredictAll if self.documents.all().len() < 2 => Some("Open two or more stacks first."),
            _ if document.is_none() => Some("Open a stack first."),
            Command::Predict if self.predicted_document().is_some() => {
                Some("The stack is being predicted, or waits for another job.")
            }
            Command::Predict | Command::PredictAll => self.reason_against_predicting(),
            Command::NextSlice | Command::PreviousSlice | Command::Play => Some("The image has only one slice."),
            Command::NextTime | Command::PreviousTime => Some("The image has only one time point."),
            Command::ToggleMap => Some("Predict the stack first."),
            Command::ToggleLabels | Command::NextLabelStyle | Command::ToggleSwipe => Some(WITHOUT_LABELS),
            Command::SaveTable | Command::SaveAnnData => Some("Predict the stack or measure its labels first."),
            Command::SaveMesh => self.reason_against_meshes(),
            Command::Tool(_) if self.correction().is_none() => Some("Start correcting labels first."),
            Command::Tool(_) => Some("Show the Correct panel first."),
            // The other commands are always enabled.
            _ => None,
        }
    }

    /// Why the shown labels cannot be measured now; `None` if they can.
    pub(crate) fn reason_against_measuring(self) -> Option<&'static str> {
        let Some(document) = self.document() else { return Some("Open a stack first.") };
        if !has_labels(document) {
            Some(WITHOUT_LABELS)
        } else if !has_saved_labels(document) {
            Some(UNSAVED_PREVIEW)
        } else if self.corrections.of(document.id).is_some_and(|c| c.saving) {
            Some(WHILE_SAVING)
        } else if self.jobs.measuring(document.id).is_some() {
            Some("The labels are being measured.")
        } else {
            self.reason_against_jobs()
        }
    }

    /// Why the surfaces of the shown objects cannot be saved now; `None` if they can. They are made from the labels on the disk,
    /// which lack unsaved corrections.
    fn reason_against_meshes(self) -> Option<&'static str> {
        let Some(document) = self.document() else { return Some("Open a stack first.") };
        let correction = self.corrections.of(document.id).filter(|c| c.time == document.time);
        if let Some(reason) = self.reason_against_jobs() {
            Some(reason)
        } else if !has_labels(document) {
            Some(WITHOUT_LABELS)
        } else if !has_saved_labels(document) {
            Some(UNSAVED_PREVIEW)
        } else if correction.is_some_and(|c| c.saving) {
            Some(WHILE_SAVING)
        } else {
            correction.filter(|c| c.is_modified()).map(|_| "Save the corrected labels first.")
        }
    }

    /// Why an edit action is disabled now; `None` if it is enabled.
    pub(crate) fn reason_against_editing(self, action: EditAction) -> Option<&'static str> {
        let selected = |id| (self.corrections.selected_points(id), self.corrections.has_selection(id));
        let selected = self.documents.active_id().map_or((0, false), selected);
        let is_shown = self.display.task() == PanelTask::Correct;
        reason_against(action, self.correction(), self.corrections.tools(), selected, is_shown)
    }

    /// Title of a command now; undo and redo name the step they affect, a map is named after what it
    /// shows, and a page is closed before a stack.
    pub(crate) fn current_title(self, command: Command) -> String {
        if command == Command::Close && self.display.task().is_page() {
            return "Close page".to_owned();
        }
        let trains = self.jobs.running().is_some_and(|job| job.purpose == Purpose::Training);
        if command == Command::Cancel && trains {
            // A training run is kept, and can be continued.
            return "Pause the training run".to_owned();
        }
        let map = self.document().and_then(|d| d.overlay_with_role(Role::Map));
        if let (Command::ToggleMap, Some(map)) = (command, map) {
            return format!("Show {}", map.title().to_lowercase());
        }
        let state = self.correction().and_then(|c| c.state.as_ref());
        let step = match command {
            Command::Correct(EditAction::Undo) => state.and_then(|s| s.undo.first()),
            Command::Correct(EditAction::Redo) => state.and_then(|s| s.redo.first()),
            _ => None,
        };
        step.map_or_else(|| command.title().to_owned(), |step| format!("{}: {step}", command.title()))
    }

    /// Whether what a command shows or hides is on; `None` for other commands.
    pub(crate) fn is_on(self, command: Command) -> Option<bool> {
        let (document, settings) = (self.document(), self.settings());
        match command {
            Command::ToggleLabels => {
                Some(document.is_some_and(|d| d.overlays.iter().any(|o| o.is_labels() && o.visible)))
            }
            Command::ToggleMap => {
                Some(document.and_then(|d| d.overlay_with_role(Role::Map)).is_some_and(|o| o.visible))
            }
            Command::ToggleSwipe => Some(self.display.swipe().is_some()),
            Command::ToggleLineProfile => Some(self.display.shows_line_profile()),
            Command::ToggleCrosshair => Some(settings.show_crosshair),
            Command::ToggleScaleBar => Some(settings.show_scale_bar),
            Command::ToggleLibrary => Some(settings.show_library),
            Command::ToggleTasks => Some(settings.show_tasks),
            Command::ToggleProfiler => Some(settings.show_profiler),
            Command::Toggle3d => Some(settings.show_3d),
            _ => None,
        }
    }

    /// State of the object table of a document.
    pub(crate) fn table_state(self, document: &Document) -> TableState {
        if self.jobs.measuring(document.id).is_some() {
            return TableState::Measuring;
        }
        match (document.labels_path(), &document.results) {
            (None, _) => TableState::Current,
            (Some(_), None) => TableState::Missing,
            (Some(labels), Some(results)) => {
                let modified = self.corrections.of(document.id).is_some_and(|c| c.is_modified());
                let is_other_table = is_of_other_labels(&results.path, document.table_labels.as_deref(), labels);
                match modified || is_other_table || document.table_old {
                    true => TableState::Old,
                    false if has_other_voxel_size(results, document) => TableState::OtherVoxelSize,
                    false => TableState::Current,
                }
            }
        }
    }

    /// Names of documents with unsaved corrections, with the time point if there are several.
    pub(crate) fn unsaved(self) -> Vec<String> {
        self.documents.all().iter().flat_map(|document| self.unsaved_of(document)).collect()
    }

    /// Names of the unsaved corrections of a document: those that are open, and those that were closed.
    fn unsaved_of(self, document: &Document) -> Vec<String> {
        let open = self.corrections.of(document.id).filter(|_| self.corrections.is_unsaved(document.id));
        let closed = self.corrections.closed_unsaved_times(document.id);
        let times: BTreeSet<usize> = open.map(|c| c.time).into_iter().chain(closed).collect();
        if times.is_empty() {
            // This is asked in every frame, and the title depends on all open stacks.
            return Vec::new();
        }
        let title = self.documents.title(document);
        let name = |time: usize| match document.extents.times {
            0 | 1 => title.clone(),
            _ => format!("{title} · time point {}", time + 1),
        };
        times.into_iter().map(name).collect()
    }

    /// Names of documents with objects that are a preview and not saved.
    pub(crate) fn unsaved_objects(self) -> Vec<String> {
        let documents = self.documents.all().iter();
        documents.filter(|d| self.jobs.has_unsaved_objects(d.id)).map(|d| self.documents.title(d)).collect()
    }

    /// Titles of the jobs whose results are lost if the window closes now.
    pub(crate) fn lost_with_window(self) -> Vec<String> {
        let title = |id: u64| self.documents.get(id).map(|document| self.documents.title(document));
        self.jobs.lost_with_window(title).into_iter().chain(self.training.prepared()).collect()
    }

    /// Why the journal of unsaved corrections could not be written to the disk, if so.
    pub(crate) fn journal_failure(self) -> Option<&'a str> {
        self.documents.all().iter().find_map(|document| self.corrections.journal_failure(document.id))
    }

    /// The diameter of the ring on the image, in units of the document's voxel size, while the Predict panel is open.
    pub(crate) fn ring(self) -> Option<f64> {
        let is_set_up = self.display.task() == PanelTask::Predict && self.settings().show_tasks;
        let has_nominal = self.model().is_some_and(|card| card.object_diameter_um.is_some());
        self.document().filter(|_| is_set_up && has_nominal)?.object_size.shown()
    }
}

/// Whether a document shows labels, which may be a preview.
fn has_labels(document: &Document) -> bool {
    document.overlay_with_role(Role::Labels).is_some()
}

/// Whether a document has labels that are more than a preview.
fn has_saved_labels(document: &Document) -> bool {
    document.overlay_with_role(Role::Labels).is_some_and(|labels| !labels.is_preview)
}
