//! Correcting labels: a session of `annotate` for each stack, held by a thread of its own, shown as the stack's labels.
//!
//! What is drawn goes to a journal beside the results at once ([`places`]); saving writes a label image of its own and never
//! over a prediction. A stack that is closed, or a window that is killed, loses nothing: the journal is replayed when the
//! corrections are opened again. What fails becomes a notice, and the labels are as they were before.

mod deeds;
pub mod places;
pub mod session;
pub mod source;
pub mod tools;
mod touch;

use crate::app::Workbench;
use crate::data::composite::LabelLook;
use crate::document::{Document, Overlay, Role, file_name, fresh_id};
use cytoscope_annotate::{Change, Replay};
use cytoscope_volume::VoxelSize;
use places::Places;
use session::{Base, Corrector, Event, Request, Start, State};
use source::SnapshotSource;
use std::collections::HashMap;
use std::sync::Arc;
use tools::Tools;

/// How far the corrections of a stack are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Labels are loaded and the journal is replayed.
    Opening,
    /// They can be corrected.
    Open,
    /// The journal belongs to other labels; why.
    OtherLabels(String),
}

/// The corrections of one stack.
pub struct Correction {
    corrector: Corrector,
    /// How far they are.
    pub phase: Phase,
    /// Labels and steps as last told.
    pub state: Option<State>,
    /// The state is not on screen yet.
    fresh: bool,
    /// The current label; 0 before there is one.
    pub label: u32,
    /// Where they are kept.
    pub places: Places,
    /// The time point they are of.
    pub time: usize,
    /// Labels are being written.
    pub saving: bool,
    /// A pair is being added to a dataset.
    pub exporting: bool,
}

impl Correction {
    /// Asks the session for something.
    pub(crate) fn ask(&self, request: Request) {
        self.corrector.ask(request);
    }

    /// Whether something is not saved.
    pub fn is_modified(&self) -> bool {
        self.state.as_ref().is_some_and(|s| s.modified)
    }
}

/// Corrections of all open stacks, and the tools.
#[derive(Default)]
pub struct Corrections {
    of: HashMap<u64, Correction>,
    /// Tools.
    pub tools: Tools,
    /// A pair is to be added to the dataset folder that is being asked for.
    pub(crate) export_when_chosen: bool,
}

impl Corrections {
    /// Those of a stack.
    pub fn of(&self, document: u64) -> Option<&Correction> {
        self.of.get(&document)
    }

    /// Those of a stack.
    pub fn of_mut(&mut self, document: u64) -> Option<&mut Correction> {
        self.of.get_mut(&document)
    }

    /// Those of all stacks.
    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Correction> {
        self.of.values_mut()
    }

    /// Whether something that was asked for is not done.
    pub(crate) fn is_busy(&self) -> bool {
        self.of.values().any(|c| c.corrector.is_busy())
    }

    /// Whether all that was asked for is done and on screen.
    pub fn is_settled(&self) -> bool {
        self.of.values().all(|c| !c.corrector.is_busy() && !c.fresh && c.phase != Phase::Opening)
    }
}

impl Workbench {
    /// Corrections of the stack on screen that can be drawn on.
    pub(crate) fn correction(&self) -> Option<&Correction> {
        self.corrections.of(self.active?).filter(|c| c.phase == Phase::Open)
    }

    /// Where the corrections of a stack are kept.
    fn places(&self, document: &Document) -> Places {
        let stem = document.path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        let time = (document.extents.times > 1).then_some(document.time);
        Places::of(&self.results_folder(document), &stem, time)
    }

    /// Opens the corrections of a stack on the labels it shows, or on `bases`.
    pub(crate) fn start_correcting(&mut self, id: u64, bases: Option<Vec<Base>>) {
        let Some(document) = self.documents.iter().find(|d| d.id == id) else { return };
        let places = self.places(document);
        if let Some(folder) = places.journal.parent()
            && let Err(error) = std::fs::create_dir_all(folder)
        {
            let why = format!("{}: {error}. Choose another folder of results in Predict.", folder.display());
            self.notices.error("Corrections cannot be kept", why);
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
        // An earlier one lets go of the journal first.
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
                self.notices
                    .error("Corrections cannot be opened", format!("{error}. Close other programs and try again."));
            }
        }
    }

    /// Goes on with earlier corrections, whatever labels are shown.
    pub(crate) fn continue_earlier(&mut self, id: u64) {
        let Some(places) = self.corrections.of.get(&id).map(|c| c.places.clone()) else { return };
        let files = [places.labels, places.base].into_iter().filter(|p| p.is_file()).map(Base::File);
        self.start_correcting(id, Some(files.chain([Base::Empty]).collect()));
    }

    /// Puts earlier corrections aside and begins anew with the labels shown.
    pub(crate) fn begin_anew(&mut self, id: u64) {
        let Some(gone) = self.corrections.of.remove(&id) else { return };
        let places = gone.places.clone();
        drop(gone);
        match places.set_aside() {
            Ok(journal) => {
                self.notices.info("Earlier corrections were set aside", journal.display().to_string());
                self.start_correcting(id, None);
            }
            Err(error) => self.notices.error(
                "Earlier corrections cannot be set aside",
                format!("{}: {error}. Rename it by hand and try again.", places.journal.display()),
            ),
        }
    }

    /// Lets go of the corrections of a stack; the journal keeps them. `why` is told if something is not saved.
    pub(crate) fn leave_corrections(&mut self, id: u64, why: &str) {
        let Some(gone) = self.corrections.of.remove(&id) else { return };
        if let Some(document) = self.find(id) {
            document.marks = Default::default();
        }
        if gone.is_modified() {
            let journal = file_name(&gone.places.journal);
            self.notices
                .info(why, format!("Corrections not saved as labels are in {journal}: they come back in Correct."));
        }
    }

    /// Takes what sessions tell.
    pub(crate) fn poll_corrections(&mut self) {
        let mut told: Vec<(u64, Event)> = Vec::new();
        for (id, correction) in &self.corrections.of {
            told.extend(correction.corrector.poll().into_iter().map(|e| (*id, e)));
        }
        for (id, event) in told {
            self.take_event(id, event);
        }
    }

    fn take_event(&mut self, id: u64, event: Event) {
        let Some(correction) = self.corrections.of.get_mut(&id) else { return };
        match event {
            Event::Opened(replay) => {
                correction.phase = Phase::Open;
                self.tell_replay(&replay);
            }
            Event::OtherLabels(why) => correction.phase = Phase::OtherLabels(why),
            Event::NotOpened(why) => {
                self.corrections.of.remove(&id);
                self.notices.error("Corrections cannot be opened", why);
            }
            Event::State(state) => {
                if correction.label == 0 {
                    correction.label = state.free;
                }
                correction.state = Some(*state);
                correction.fresh = true;
            }
            Event::Edited(change) => self.tell_change(&change),
            Event::Failed(what, why) => {
                correction.saving &= what != "Saving";
                correction.exporting &= what != "Adding the pair";
                self.notices.error(format!("{what} failed"), why);
            }
            Event::KeptAside(path) => {
                let details =
                    format!("It held other labels than these corrections, and is kept as {}.", path.display());
                self.notices.good("A file was moved aside", details);
            }
            Event::Saved(path) => {
                correction.saving = false;
                self.notices.good(format!("Saved {}", file_name(&path)), path.display().to_string());
                self.labels_saved(id, path);
            }
            Event::Exported(pair) => {
                correction.exporting = false;
                let folder = pair.table.parent().map(|p| p.display().to_string()).unwrap_or_default();
                self.notices.good(format!("Training pair {} added", pair.name), folder);
            }
        }
    }

    fn tell_replay(&mut self, replay: &Replay) {
        match replay.entries {
            0 => {}
            1 => self.notices.good("1 earlier correction is back", ""),
            n => self.notices.good(format!("{n} earlier corrections are back"), ""),
        }
        if let Some(dropped) = &replay.dropped {
            let kept = dropped.kept_at.as_ref().map(|p| format!(" It was put at {}.", p.display())).unwrap_or_default();
            self.notices.info(
                "The journal's end was damaged",
                format!("{} bytes could not be read ({}).{kept} All before is back.", dropped.bytes, dropped.why),
            );
        }
    }

    fn tell_change(&mut self, change: &Change) {
        if !change.undoable {
            self.notices.info(format!("{} cannot be undone", change.name), "It is larger than the memory for undoing.");
        }
        match change.new_labels.as_slice() {
            [] => {}
            [one] => self.notices.good(change.name.clone(), format!("The other part is label {one}.")),
            more => self.notices.good(change.name.clone(), format!("The other parts are labels {more:?}.")),
        }
    }

    /// Puts the newest labels on screen, once those before them are.
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
                        labels: LabelLook::default(),
                        look: Overlay::map_look(),
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

    /// Corrections of all open stacks.
    pub fn corrections(&self) -> &Corrections {
        &self.corrections
    }
}
