//! Actions: what a panel, a thread or another state asks a state to do.
//!
//! Panels change nothing themselves. They send actions, which the window applies at the end of the frame, in the order
//! in which they were sent; commands come last.

use crate::batch::BatchAction;
use crate::command::Command;
use crate::correct::CorrectionsAction;
use crate::display::DisplayAction;
use crate::documents::{DocumentsAction, ViewAction};
use crate::jobs::JobsAction;
use crate::models::ModelsAction;
use crate::opener::FileRequest;
use crate::training::TrainingAction;
use std::path::PathBuf;

/// An action on one of the states.
pub(crate) enum Action {
    /// An action on the open stacks.
    Documents(DocumentsAction),
    /// An action on the jobs of the engine.
    Jobs(JobsAction),
    /// An action on the training wizard.
    Training(TrainingAction),
    /// An action on the corrections of labels.
    Corrections(CorrectionsAction),
    /// An action on what the window shows.
    Display(DisplayAction),
    /// An action on the Models page.
    Models(ModelsAction),
    /// An action on the page for converting and scoring files.
    Batch(BatchAction),
    /// Files were chosen in a dialog, for the state that asked.
    Chosen(FileRequest, Vec<PathBuf>),
}

impl From<DocumentsAction> for Action {
    fn from(action: DocumentsAction) -> Self {
        Self::Documents(action)
    }
}

impl From<ViewAction> for Action {
    fn from(action: ViewAction) -> Self {
        Self::Documents(DocumentsAction::View(action))
    }
}

impl From<JobsAction> for Action {
    fn from(action: JobsAction) -> Self {
        Self::Jobs(action)
    }
}

impl From<TrainingAction> for Action {
    fn from(action: TrainingAction) -> Self {
        Self::Training(action)
    }
}

impl From<CorrectionsAction> for Action {
    fn from(action: CorrectionsAction) -> Self {
        Self::Corrections(action)
    }
}

impl From<DisplayAction> for Action {
    fn from(action: DisplayAction) -> Self {
        Self::Display(action)
    }
}

impl From<ModelsAction> for Action {
    fn from(action: ModelsAction) -> Self {
        Self::Models(action)
    }
}

impl From<BatchAction> for Action {
    fn from(action: BatchAction) -> Self {
        Self::Batch(action)
    }
}

/// Actions and commands of one frame.
#[derive(Default)]
pub(crate) struct Actions {
    changes: Vec<Action>,
    commands: Vec<Command>,
}

impl Actions {
    /// Adds an action.
    pub(crate) fn send(&mut self, action: impl Into<Action>) {
        self.changes.push(action.into());
    }

    /// Adds a command, as a menu item or a shortcut does.
    pub(crate) fn command(&mut self, command: Command) {
        self.commands.push(command);
    }

    /// Removes and returns everything that was added.
    pub(crate) fn take(&mut self) -> (Vec<Action>, Vec<Command>) {
        (std::mem::take(&mut self.changes), std::mem::take(&mut self.commands))
    }
}
