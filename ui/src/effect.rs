//! Effects: what follows from an action besides the change of its own state.

use crate::action::Action;
use crate::data::loader::SourceId;
use crate::disk::{DiskEffect, DocumentEffect};
use crate::notifications::Level;
use crate::work::JobSubject;
use std::sync::Arc;

/// Requests a repaint; callable from any thread.
pub(crate) type Wake = Arc<dyn Fn() + Send + Sync>;

/// A consequence of an action that the window carries out.
pub(crate) enum Effect {
    /// An action on another state.
    Act(Action),
    /// A notification.
    Notify {
        /// Severity.
        level: Level,
        /// Title of a few words.
        title: String,
        /// Explanation and next step; may be empty.
        details: String,
        /// The job that failed, if the notification is about a failed job.
        about: Option<JobSubject>,
    },
    /// A job is run again, so that notifications about its earlier failures are outdated.
    RunsAgain(JobSubject),
    /// A change of what the views keep between frames.
    Views(ViewsEffect),
    /// Work that touches a disk.
    Disk(DiskEffect),
}

/// A change of what the views keep between frames.
pub(crate) enum ViewsEffect {
    /// Drops sources that were closed.
    Forget(Vec<SourceId>),
    /// Resets the cameras of the 3-D view.
    ResetVolume,
    /// Restores the default layout.
    ResetLayout,
}

/// The effects of an action, in order.
#[derive(Default)]
#[must_use = "effects do nothing until the window carries them out"]
pub(crate) struct Effects(Vec<Effect>);

impl Effects {
    /// Asks for an action on another state.
    pub(crate) fn act(&mut self, action: impl Into<Action>) {
        self.0.push(Effect::Act(action.into()));
    }

    /// Asks for work that touches a disk.
    pub(crate) fn disk(&mut self, effect: DiskEffect) {
        self.0.push(Effect::Disk(effect));
    }

    /// Asks for work for a document that touches a disk.
    pub(crate) fn disk_for(&mut self, document: u64, effect: DocumentEffect) {
        self.disk(DiskEffect::Document { document, effect });
    }

    /// Asks for a change of the views.
    pub(crate) fn views(&mut self, effect: ViewsEffect) {
        self.0.push(Effect::Views(effect));
    }

    /// Asks for a notification about a success.
    pub(crate) fn success(&mut self, title: impl Into<String>, details: impl Into<String>) {
        self.notify(Level::Success, title.into(), details.into());
    }

    /// Asks for a notification that informs the user.
    pub(crate) fn info(&mut self, title: impl Into<String>, details: impl Into<String>) {
        self.notify(Level::Info, title.into(), details.into());
    }

    /// Asks for a notification about a command that is disabled for a reason.
    pub(crate) fn disabled(&mut self, title: impl Into<String>, reason: impl Into<String>) {
        self.notify(Level::Disabled, title.into(), reason.into());
    }

    /// Asks for a notification about an error.
    pub(crate) fn error(&mut self, title: impl Into<String>, details: impl Into<String>) {
        self.notify(Level::Error, title.into(), details.into());
    }

    /// Asks for a notification about a failed job; it is removed once the same job is run again.
    pub(crate) fn failure(&mut self, about: Option<JobSubject>, title: String, details: String) {
        self.0.push(Effect::Notify { level: Level::Error, title, details, about });
    }

    /// States that a job is run again.
    pub(crate) fn runs_again(&mut self, job: JobSubject) {
        self.0.push(Effect::RunsAgain(job));
    }

    fn notify(&mut self, level: Level, title: String, details: String) {
        self.0.push(Effect::Notify { level, title, details, about: None });
    }
}

impl IntoIterator for Effects {
    type Item = Effect;
    type IntoIter = std::vec::IntoIter<Effect>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
