//! Correction of labels: one `corrections` session per document, run on its own thread and shown as the document's labels.
//!
//! Edits are written immediately to a journal beside the results ([`files`]). Saving writes a separate label image and
//! never overwrites a prediction. Closing a document or killing the window loses nothing: the journal is replayed when
//! the corrections are opened again. A failed edit shows a notification and leaves the labels unchanged.

mod actions;
mod events;
mod failure;
pub mod files;
pub(crate) mod pointer;
pub mod session;
pub mod source;
pub mod tools;

pub(crate) use actions::{CorrectionsAction, reason_against};

use crate::disk::{CorrectionsPlace, DocumentEffect};
use crate::document::{Document, file_name};
use crate::documents::Documents;
use crate::effect::{Effects, Wake};
use crate::jobs::Jobs;
use crate::views::pen::Marks;
use actions::notify_other_time;
use cytoscope_corrections::Edit;
use files::{CorrectionFiles, SetAside};
use session::{Base, CorrectionState, Corrector, SessionEnd, SessionRequest, SessionStart};
use std::collections::{BTreeMap, HashMap};
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
    /// Id of the document.
    document: u64,
    /// Whether the session is being opened, is open, or has failed.
    pub phase: Phase,
    /// Labels and undo steps as last reported by the session.
    pub state: Option<CorrectionState>,
    /// Whether the latest state is not displayed yet.
    fresh: bool,
    /// The current label; 0 if there is none yet.
    pub label: u32,
    /// Labels, journal and starting labels on disk.
    pub files: CorrectionFiles,
    /// The time point being corrected.
    pub time: usize,
    /// Whether the labels are being saved.
    pub saving: bool,
    /// Whether they are saved again after that, with the edits since.
    save_again: bool,
    /// Whether a training pair is being exported.
    pub exporting: bool,
}

impl Correction {
    /// Corrections of a time point of a document whose session is being opened.
    fn new(corrector: Corrector, document: u64, time: usize, files: CorrectionFiles) -> Self {
        Self {
            corrector,
            document,
            phase: Phase::Opening,
            state: None,
            fresh: false,
            label: 0,
            files,
            time,
            saving: false,
            save_again: false,
            exporting: false,
        }
    }

    /// Sends a request to the session.
    fn send(&self, request: SessionRequest) {
        self.corrector.send(request);
    }

    fn edit(&self, edit: Edit) {
        self.send(SessionRequest::Apply(edit));
    }

    fn save(&mut self) {
        if self.saving {
            // Files that are written at the same time would replace each other in any order.
            self.save_again = true;
            return;
        }
        self.saving = true;
        self.send(SessionRequest::Save(self.files.labels.clone()));
    }

    /// Whether there are unsaved edits.
    pub fn is_modified(&self) -> bool {
        self.state.as_ref().is_some_and(|s| s.modified)
    }
}

/// Corrections that were closed with unsaved edits, which their journal keeps.
struct ClosedUnsaved {
    files: CorrectionFiles,
    /// Why the journal could not be written to the disk, if so.
    sync_failure: Option<String>,
}

/// Corrections of all open documents, and the tool settings.
pub struct Corrections {
    by_document: HashMap<u64, Correction>,
    /// Corrections that were closed and finish their requests, oldest first.
    closing: Vec<Correction>,
    /// Closed corrections with unsaved edits, by document and time point. Those of documents that were closed since, and of time
    /// points that are being corrected again, do not count.
    closed_unsaved: BTreeMap<(u64, usize), ClosedUnsaved>,
    /// Selected points and the line being drawn, by document.
    marks: HashMap<u64, Marks>,
    /// Id of the document in which a stroke is in progress.
    stroke_in: Option<u64>,
    tools: Tools,
    wake: Wake,
}

impl Corrections {
    /// No corrections; sessions call `wake` whenever there is an event.
    pub(crate) fn new(wake: &Wake) -> Self {
        Self {
            by_document: HashMap::new(),
            closing: Vec::new(),
            closed_unsaved: BTreeMap::new(),
            marks: HashMap::new(),
            stroke_in: None,
            tools: Tools::default(),
            wake: Arc::clone(wake),
        }
    }

    /// The corrections of a document; `None` if it is not being corrected.
    pub fn of(&self, document: u64) -> Option<&Correction> {
        self.by_document.get(&document)
    }

    /// The corrections of a document, if they can be edited.
    pub(crate) fn open(&self, document: u64) -> Option<&Correction> {
        self.of(document).filter(|c| c.phase == Phase::Open)
    }

    /// Tool settings, shared by all documents.
    pub fn tools(&self) -> &Tools {
        &self.tools
    }

    /// Selected points and the line being drawn in a document.
    pub(crate) fn marks(&self, document: u64) -> Marks {
        self.marks.get(&document).cloned().unwrap_or_default()
    }

    /// Number of selected points in a document.
    pub(crate) fn selected_points(&self, document: u64) -> usize {
        self.marks.get(&document).map_or(0, |marks| marks.points.len())
    }

    /// Whether points are selected, or a line is being drawn, in a document.
    pub(crate) fn has_selection(&self, document: u64) -> bool {
        self.marks.get(&document).is_some_and(|marks| !(marks.points.is_empty() && marks.line.is_empty()))
    }

    /// Whether a document has unsaved edits, or labels that are being saved.
    pub(crate) fn is_unsaved(&self, document: u64) -> bool {
        self.of(document).is_some_and(|c| c.is_modified() || c.saving)
    }

    /// Time points of a document whose corrections were closed with unsaved edits, in order.
    pub(crate) fn closed_unsaved_times(&self, document: u64) -> impl Iterator<Item = usize> {
        let is_continued = |c: &&Correction| !matches!(c.phase, Phase::OtherLabels(_));
        let open = self.of(document).filter(is_continued).map(|c| c.time);
        let closed = self.closed_unsaved.range((document, 0)..=(document, usize::MAX)).map(|((_, time), _)| *time);
        closed.filter(move |time| Some(*time) != open)
    }

    /// Why the journal of unsaved corrections of a document could not be written to the disk, if so.
    pub(crate) fn journal_failure(&self, document: u64) -> Option<&str> {
        let open = self.of(document).filter(|c| c.is_modified()).and_then(|c| c.state.as_ref());
        let closed = self.closed_unsaved_times(document).filter_map(|time| self.closed_unsaved.get(&(document, time)));
        let mut failures = closed.filter_map(|closed| closed.sync_failure.as_deref());
        open.and_then(|state| state.sync_failure.as_deref()).or_else(|| failures.next())
    }

    /// Whether any request is unfinished, also of corrections that were closed.
    pub(crate) fn is_busy(&self) -> bool {
        self.by_document.values().any(|c| c.corrector.is_busy())
            || self.closing.iter().any(|c| !c.corrector.has_ended())
    }

    /// Whether all requests are done and displayed.
    pub fn is_settled(&self) -> bool {
        let is_settled = |c: &Correction| !c.corrector.is_busy() && !c.fresh && c.phase != Phase::Opening;
        self.closing.is_empty() && self.by_document.values().all(is_settled)
    }

    /// Ends a stroke in progress if its labels are no longer on screen, so that the journal has it: the view that it was drawn in
    /// may not see the release of the button. `shown` is the document that can be drawn in.
    pub(crate) fn end_hidden_stroke(&mut self, shown: Option<&Document>) {
        let Some(id) = self.stroke_in else { return };
        let correction = self.open(id);
        if correction.is_some_and(|c| shown.is_some_and(|d| d.id == id && d.time == c.time)) {
            return;
        }
        if let Some(correction) = correction {
            correction.send(SessionRequest::EndStroke);
        }
        self.stroke_in = None;
    }

    /// Asks for the folder of the corrections of a document. They start from [`Documents::labels_to_correct`], or from
    /// the labels of `earlier` corrections.
    fn request_start(
        &self,
        id: u64,
        earlier: Option<CorrectionFiles>,
        documents: &Documents,
        jobs: &Jobs,
        effects: &mut Effects,
    ) {
        let Some(document) = documents.get(id) else { return };
        let (place, earlier, time) = (jobs.place(document), earlier.map(Box::new), document.time);
        effects.disk_for(id, DocumentEffect::PrepareCorrections { place, earlier, time });
    }

    /// Opens the corrections of a document once their folder exists, unless another time point is shown by now: the labels on
    /// screen, which they would start from, are not those of the requested one.
    pub(crate) fn ready(&mut self, id: u64, place: Result<CorrectionsPlace, String>, documents: &Documents) -> Effects {
        let mut effects = Effects::default();
        let Some(document) = documents.get(id) else { return effects };
        let place = match place {
            Ok(place) => place,
            Err(reason) => {
                let details = format!("{reason}. Choose another results folder in Predict.");
                effects.error("Corrections cannot be saved", details);
                return effects;
            }
        };
        if place.time != document.time {
            notify_other_time(place.time, &mut effects);
            return effects;
        }
        if place.is_elsewhere {
            let details =
                format!("They are in {}, which was the results folder when they were begun.", place.folder.display());
            effects.info("Corrections in another folder are continued", details);
        }
        let time = (document.extents.times > 1).then_some(document.time);
        let files = place.files.unwrap_or_else(|| CorrectionFiles::of(&place.folder, &place.stem, time));
        let labels = documents.labels_to_correct(id);
        let base = labels.map_or(Base::Empty, |path| Base::File(path.to_owned()));
        let start = SessionStart {
            bases: place.bases.unwrap_or_else(|| vec![base]),
            shape_zyx: document.extents.zyx,
            // Unknown sizes stay unknown in the saved labels and in training pairs.
            voxel_um: document.image.meta().voxel_size_um,
            time,
            files: files.clone(),
        };
        self.tools.fit(document.voxel_um, document.extents.zyx);
        // The previous session must release the journal first.
        self.end(id);
        let after = self.end_of_session(&files);
        match Corrector::open(start, after, Arc::clone(&self.wake)) {
            Ok(corrector) => {
                self.by_document.insert(id, Correction::new(corrector, id, document.time, files));
            }
            Err(error) => {
                let details = format!("{error}. Close other programs and try again.");
                effects.error("Corrections cannot be opened", details);
            }
        }
        effects
    }

    /// Continues earlier corrections, whichever labels are shown.
    fn continue_earlier(&self, id: u64, documents: &Documents, jobs: &Jobs, effects: &mut Effects) {
        if let Some(files) = self.of(id).map(|c| c.files.clone()) {
            self.request_start(id, Some(files), documents, jobs, effects);
        }
    }

    /// Sets earlier corrections aside, to start over with the labels shown.
    fn start_over(&mut self, id: u64, effects: &mut Effects) {
        // The session must release the journal first.
        let Some(files) = self.by_document.remove(&id).map(|gone| gone.files.clone()) else { return };
        effects.disk_for(id, DocumentEffect::SetAside(Box::new(files)));
    }

    /// Starts over once earlier corrections were set aside.
    pub(crate) fn set_aside(
        &mut self,
        id: u64,
        moved: Result<SetAside, String>,
        documents: &Documents,
        jobs: &Jobs,
    ) -> Effects {
        let mut effects = Effects::default();
        match moved {
            Ok(SetAside { journal, .. }) => {
                effects.info("Earlier corrections were set aside", journal.display().to_string());
                self.request_start(id, None, documents, jobs, &mut effects);
            }
            Err(reason) => {
                let details =
                    format!("{reason}. Close other windows that use it, or rename it by hand, and try again.");
                effects.error("Earlier corrections cannot be set aside", details);
            }
        }
        effects
    }

    /// Ends the session of a document, which finishes its requests without stopping the window. Returns its corrections.
    fn end(&mut self, id: u64) -> Option<&Correction> {
        let gone = self.by_document.remove(&id)?;
        gone.corrector.close();
        self.closing.push(gone);
        self.closing.last()
    }

    /// The end of the last session with these files, if it may not have ended yet.
    fn end_of_session(&mut self, files: &CorrectionFiles) -> Option<SessionEnd> {
        self.closing.iter_mut().rfind(|c| c.files.journal == files.journal)?.corrector.take_end()
    }

    /// Saves the corrections that were closed with unsaved edits: sessions replay their journals, save the labels, and end.
    fn save_closed(&mut self, documents: &Documents, effects: &mut Effects) {
        let of = |document: &Document| {
            let id = document.id;
            self.closed_unsaved_times(id).map(move |time| (id, time)).collect::<Vec<_>>()
        };
        let closed: Vec<(u64, usize)> = documents.all().iter().flat_map(of).collect();
        let mut is_first = true;
        for (id, time) in closed {
            let Some(files) = self.closed_unsaved.get(&(id, time)).map(|closed| closed.files.clone()) else { continue };
            let Some(document) = documents.get(id) else { continue };
            if self.closing.iter().any(|c| c.saving && c.files == files) {
                continue;
            }
            let kept = [&files.labels, &files.base].map(|path| Base::File(path.clone()));
            let start = SessionStart {
                bases: kept.into_iter().chain([Base::Empty]).collect(),
                shape_zyx: document.extents.zyx,
                voxel_um: document.image.meta().voxel_size_um,
                time: (document.extents.times > 1).then_some(time),
                files: files.clone(),
            };
            // One after the other, because each has all labels of a time point in memory.
            let after = self.end_of_session(&files);
            let before = || self.closing.last_mut().filter(|_| !is_first).and_then(|c| c.corrector.take_end());
            let after = after.or_else(before);
            match Corrector::open(start, after, Arc::clone(&self.wake)) {
                Ok(corrector) => {
                    let mut correction = Correction::new(corrector, id, time, files);
                    correction.save();
                    correction.corrector.close();
                    self.closing.push(correction);
                    is_first = false;
                }
                Err(error) => {
                    let details = format!("{error}. Close other programs and try again.");
                    effects.error("Saving failed", details);
                }
            }
        }
    }

    /// Closes the corrections of a document; the journal keeps them. If there are unsaved edits, a notification titled
    /// `title` says so.
    fn close(&mut self, id: u64, title: &str, effects: &mut Effects) {
        self.marks.remove(&id);
        if self.end(id).is_none() {
            return;
        }
        let Some((gone, state)) = self.closing.last().and_then(|gone| Some((gone, gone.state.as_ref()?))) else {
            return;
        };
        note_unsaved(&mut self.closed_unsaved, gone, state);
        if !state.modified {
            return;
        }
        let journal = file_name(&gone.files.journal);
        match &state.sync_failure {
            None => effects.info(title, format!("Corrections are kept in {journal} and are restored in Correct.")),
            Some(why) => {
                let details = format!(
                    "{journal} could not be written to the disk: {why}. Check the disk, then open the stack again and \
                     save its corrections."
                );
                effects.error("Corrections may be lost", details);
            }
        }
    }

    /// Assigns the closed corrections of a document to the one that took its place, which lists those that are unsaved.
    fn carry_over(&mut self, from: u64, to: u64) {
        let unsaved = self.closed_unsaved.range((from, 0)..=(from, usize::MAX));
        let times: Vec<usize> = unsaved.map(|((_, time), _)| *time).collect();
        for time in times {
            if let Some(closed) = self.closed_unsaved.remove(&(from, time)) {
                self.closed_unsaved.insert((to, time), closed);
            }
        }
        // Sessions that finish their requests may still report unsaved edits and saved labels.
        self.closing.iter_mut().filter(|c| c.document == from).for_each(|c| c.document = to);
    }
}

/// Notes whether corrections that were closed have unsaved edits in a state of their session.
fn note_unsaved(closed: &mut BTreeMap<(u64, usize), ClosedUnsaved>, correction: &Correction, state: &CorrectionState) {
    let of = (correction.document, correction.time);
    if state.modified {
        let (files, sync_failure) = (correction.files.clone(), state.sync_failure.clone());
        closed.insert(of, ClosedUnsaved { files, sync_failure });
    } else {
        closed.remove(&of);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::documents::{DocumentsAction, ViewAction};
    use crate::effect::Effect;
    use crate::opener::Expanded;
    use crate::settings::Settings;
    use cytoscope_formats::{Container, WriteSpec, write_array};
    use cytoscope_volume::Array;
    use std::time::{Duration, Instant};

    #[test]
    fn corrections_that_were_requested_for_one_time_point_are_not_opened_for_another_one() {
        let folder = tempfile::tempdir().unwrap();
        let stack = folder.path().join("stack.tif");
        let array = Array::new("TZYX".parse().unwrap(), vec![3, 2, 3, 4], vec![1u16; 72]).unwrap();
        write_array(&stack, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        let wake: Wake = Arc::new(|| {});
        let mut documents = Documents::new(&wake, None);
        let files = Expanded { files: vec![stack], ..Expanded::default() };
        let _ = documents.listed(files, &Settings::default());
        let end = Instant::now() + Duration::from_secs(60);
        while documents.all().is_empty() {
            assert!(Instant::now() < end, "the stack was not opened in time");
            let _ = documents.poll();
            std::thread::sleep(Duration::from_millis(1));
        }
        let id = documents.active_id().unwrap();
        let place = |time: usize| {
            let folder = folder.path().to_owned();
            Ok(CorrectionsPlace {
                folder,
                is_elsewhere: false,
                stem: "stack".to_owned(),
                files: None,
                bases: None,
                time,
            })
        };
        let mut corrections = Corrections::new(&wake);
        // The user moves on while the folder is prepared.
        let _ = documents.apply(DocumentsAction::View(ViewAction::StepTime(1)));
        let notified = corrections.ready(id, place(0), &documents).into_iter();
        assert_eq!(notified.filter(|effect| matches!(effect, Effect::Notify { .. })).count(), 1);
        assert!(corrections.of(id).is_none());
        let _ = corrections.ready(id, place(1), &documents);
        assert_eq!(corrections.of(id).map(|correction| correction.time), Some(1));
    }
}
