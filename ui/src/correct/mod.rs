//! Correction of labels: one `annotate` session per document, run on its own thread and shown as the document's labels.
//!
//! Edits are written immediately to a journal beside the results ([`places`]). Saving writes a separate label image and
//! never overwrites a prediction. Closing a document or killing the window loses nothing: the journal is replayed when
//! the corrections are opened again. A failed edit shows a notification and leaves the labels unchanged.

mod actions;
pub mod places;
mod pointer;
pub mod session;
pub mod source;
pub mod tools;

use crate::app::Workbench;
use crate::data::composite::LabelDisplay;
use crate::document::{Document, Overlay, Role, file_name, fresh_id};
use cytoscope_annotate::{Change, Replay};
use cytoscope_volume::VoxelSize;
use places::CorrectionFiles;
use session::{Base, CorrectionState, Corrector, Event, Request, Start};
use source::SnapshotSource;
use std::collections::HashMap;
use std::sync::Arc;
use tools::Tools;

/// State of the corrections of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// The labels are being loaded and the journal replayed.
    Opening,
    /// The labels can be edited.
    Open,
    /// The journal belongs to other labels; the reason.
    OtherLabels(String),
}

/// The corrections of one document.
pub struct Correction {
    corrector: Corrector,
    /// State of the corrections.
    pub phase: Phase,
    /// Labels and undo steps as last reported by the session.
    pub state: Option<CorrectionState>,
    /// Whether the latest state is not displayed yet.
    fresh: bool,
    /// The current label; 0 if there is none yet.
    pub label: u32,
    /// Files of the corrections.
    pub places: CorrectionFiles,
    /// The time point being corrected.
    pub time: usize,
    /// Whether the labels are being saved.
    pub saving: bool,
    /// Whether a training pair is being exported.
    pub exporting: bool,
}

impl Correction {
    /// Sends a request to the session.
    pub(crate) fn ask(&self, request: Request) {
        self.corrector.ask(request);
    }

    /// Whether there are unsaved edits.
    pub fn is_modified(&self) -> bool {
        self.state.as_ref().is_some_and(|s| s.modified)
    }
}

/// Corrections of all open documents, and the tool settings.
#[derive(Default)]
pub struct Corrections {
    of: HashMap<u64, Correction>,
    /// Tool settings, shared by all documents.
    pub tools: Tools,
    /// Whether to export a pair once the user has chosen a dataset folder.
    pub(crate) export_when_chosen: bool,
}

impl Corrections {
    /// The corrections of a document.
    pub fn of(&self, document: u64) -> Option<&Correction> {
        self.of.get(&document)
    }

    /// The corrections of a document.
    pub fn of_mut(&mut self, document: u64) -> Option<&mut Correction> {
        self.of.get_mut(&document)
    }

    /// The corrections of all documents.
    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Correction> {
        self.of.values_mut()
    }

    /// Whether any request is unfinished.
    pub(crate) fn is_busy(&self) -> bool {
        self.of.values().any(|c| c.corrector.is_busy())
    }

    /// Whether all requests are done and displayed.
    pub fn is_settled(&self) -> bool {
        self.of.values().all(|c| !c.corrector.is_busy() && !c.fresh && c.phase != Phase::Opening)
    }
}

impl Workbench {
    /// The corrections of the active document, if they can be edited.
    pub(crate) fn correction(&self) -> Option<&Correction> {
        self.corrections.of(self.active?).filter(|c| c.phase == Phase::Open)
    }

    /// The correction files of a document.
    fn places(&self, document: &Document) -> CorrectionFiles {
        let stem = document.path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        let time = (document.extents.times > 1).then_some(document.time);
        CorrectionFiles::of(&self.results_folder(document), &stem, time)
    }

    /// Opens the corrections of a document, starting from `bases` or from the labels it shows.
    pub(crate) fn start_correcting(&mut self, id: u64, bases: Option<Vec<Base>>) {
        let Some(document) = self.documents.iter().find(|d| d.id == id) else { return };
        let places = self.places(document);
        if let Some(folder) = places.journal.parent()
            && let Err(error) = std::fs::create_dir_all(folder)
        {
            let why = format!("{}: {error}. Choose another results folder in Predict.", folder.display());
            self.notifications.error("Corrections cannot be saved", why);
            return;
        }
        let shown = document.of_role(Role::Labels).map_or(Base::Empty, |o| Base::File(o.path.clone()));
        let [z, y, x] = document.voxel_um;
        let start = Start {
            bases: bases.unwrap_or_else(|| vec![shown]),
            shape_zyx: document.extents.zyx,
            voxel_um: VoxelSize::new_um(z, y, x),
            time: document.of_role(Role::Labels).is_some_and(|o| o.times > 1).then_some(document.time),
            places: places.clone(),
        };
        let time = document.time;
        self.corrections.tools.fit(document.voxel_um, document.extents.zyx);
        // The previous session must release the journal first.
        self.corrections.of.remove(&id);
        match Corrector::open(start, Arc::clone(&self.wake)) {
            Ok(corrector) => {
                let correction = Correction {
                    corrector,
                    phase: Phase::Opening,
                    state: None,
                    fresh: false,
                    label: 0,
                    places,
                    time,
                    saving: false,
                    exporting: false,
                };
                self.corrections.of.insert(id, correction);
            }
            Err(error) => {
                self.notifications
                    .error("Corrections cannot be opened", format!("{error}. Close other programs and try again."));
            }
        }
    }

    /// Continues earlier corrections, whichever labels are shown.
    pub(crate) fn continue_earlier(&mut self, id: u64) {
        let Some(places) = self.corrections.of.get(&id).map(|c| c.places.clone()) else { return };
        let files = [places.labels, places.base].into_iter().filter(|p| p.is_file()).map(Base::File);
        self.start_correcting(id, Some(files.chain([Base::Empty]).collect()));
    }

    /// Sets earlier corrections aside and starts over with the labels shown.
    pub(crate) fn start_over(&mut self, id: u64) {
        let Some(gone) = self.corrections.of.remove(&id) else { return };
        let places = gone.places.clone();
        drop(gone);
        match places.set_aside() {
            Ok(journal) => {
                self.notifications.info("Earlier corrections were set aside", journal.display().to_string());
                self.start_correcting(id, None);
            }
            Err(error) => self.notifications.error(
                "Earlier corrections cannot be set aside",
                format!("{}: {error}. Rename it by hand and try again.", places.journal.display()),
            ),
        }
    }

    /// Closes the corrections of a document; the journal keeps them. If there are unsaved edits, a notification titled
    /// `why` says so.
    pub(crate) fn close_corrections(&mut self, id: u64, why: &str) {
        let Some(gone) = self.corrections.of.remove(&id) else { return };
        if let Some(document) = self.find(id) {
            document.marks = Default::default();
        }
        if gone.is_modified() {
            let journal = file_name(&gone.places.journal);
            self.notifications.info(why, format!("Corrections are kept in {journal} and are restored in Correct."));
        }
    }

    /// Handles the events of all sessions.
    pub(crate) fn poll_corrections(&mut self) {
        let mut events: Vec<(u64, Event)> = Vec::new();
        for (id, correction) in &self.corrections.of {
            events.extend(correction.corrector.poll().into_iter().map(|e| (*id, e)));
        }
        for (id, event) in events {
            self.handle_event(id, event);
        }
    }

    fn handle_event(&mut self, id: u64, event: Event) {
        let Some(correction) = self.corrections.of.get_mut(&id) else { return };
        match event {
            Event::Opened(replay) => {
                correction.phase = Phase::Open;
                self.notify_replay(&replay);
            }
            Event::OtherLabels(why) => correction.phase = Phase::OtherLabels(why),
            Event::OpenFailed(why) => {
                self.corrections.of.remove(&id);
                self.notifications.error("Corrections cannot be opened", why);
            }
            Event::State(state) => {
                if correction.label == 0 {
                    correction.label = state.free;
                }
                correction.state = Some(*state);
                correction.fresh = true;
            }
            Event::Edited(change) => self.notify_change(&change),
            Event::Failed(what, why) => {
                correction.saving &= what != "Saving";
                correction.exporting &= what != "Adding the pair";
                self.notifications.error(format!("{what} failed"), why);
            }
            Event::MovedAside(path) => {
                let details = format!("It held other labels and was renamed to {}.", path.display());
                self.notifications.success("A file was moved aside", details);
            }
            Event::Saved(path) => {
                correction.saving = false;
                self.notifications.success(format!("Saved {}", file_name(&path)), path.display().to_string());
                self.labels_saved(id, path);
            }
            Event::Exported(pair) => {
                correction.exporting = false;
                let folder = pair.table.parent().map(|p| p.display().to_string()).unwrap_or_default();
                self.notifications.success(format!("Training pair {} added", pair.name), folder);
            }
        }
    }

    fn notify_replay(&mut self, replay: &Replay) {
        match replay.entries {
            0 => {}
            1 => self.notifications.success("1 earlier correction restored", ""),
            n => self.notifications.success(format!("{n} earlier corrections restored"), ""),
        }
        if let Some(dropped) = &replay.dropped {
            let kept =
                dropped.kept_at.as_ref().map(|p| format!(" They were saved to {}.", p.display())).unwrap_or_default();
            self.notifications.info(
                "The end of the journal was damaged",
                format!(
                    "{} bytes could not be read ({}).{kept} Everything before them was restored.",
                    dropped.bytes, dropped.why
                ),
            );
        }
    }

    fn notify_change(&mut self, change: &Change) {
        if !change.undoable {
            self.notifications.info(format!("{} cannot be undone", change.name), "It exceeds the undo memory limit.");
        }
        match change.new_labels.as_slice() {
            [] => {}
            [one] => self.notifications.success(change.name.clone(), format!("The other part is label {one}.")),
            more => self.notifications.success(change.name.clone(), format!("The other parts are labels {more:?}.")),
        }
    }

    /// Displays the newest labels, once the previous ones are on screen.
    pub(crate) fn show_corrections(&mut self) {
        for (id, correction) in &mut self.corrections.of {
            let (true, Some(state)) = (correction.fresh, &correction.state) else { continue };
            let on_screen = self.active == Some(*id);
            if on_screen && self.loader.is_busy() {
                continue;
            }
            let Some(document) = self.documents.iter_mut().find(|d| d.id == *id) else { continue };
            let source = Arc::new(SnapshotSource::new(state.labels.clone(), correction.time));
            match document.of_role_mut(Role::Labels) {
                Some(overlay) => {
                    self.loader.forget(overlay.source_id);
                    overlay.source_id = fresh_id();
                    overlay.source = source;
                    overlay.channels = 1;
                }
                None => {
                    let times = document.extents.times;
                    document.put(Overlay {
                        role: Role::Labels,
                        name: file_name(&correction.places.labels),
                        path: correction.places.labels.clone(),
                        visible: true,
                        source,
                        source_id: fresh_id(),
                        labels: LabelDisplay::default(),
                        display: Overlay::map_display(),
                        channels: 1,
                        times,
                    });
                    document.select(Some(correction.label));
                }
            }
            correction.fresh = false;
            if on_screen {
                (self.wake)();
            }
        }
    }

    /// Corrections of all open documents.
    pub fn corrections(&self) -> &Corrections {
        &self.corrections
    }
}
