//! One person's work on one label volume: edits, undo, redo, the journal, saving.

use crate::chunks::LabelSnapshot;
use crate::edit::{self, Brush, Change, Edit, brush};
use crate::files::{LoadOptions, Progress};
use crate::history::{History, Step};
use crate::journal::{Header, JournalFile, Record, put_edit, snapshot_parts};
use crate::limits::{self, Limits, MAX_RECORD_BYTES};
use crate::patch::{Patch, Runs};
use crate::replay::{self, Replay};
use crate::volume::{Direction, Pen, patch_snapshot};
use crate::{AnnotateError, Fingerprint, LabelVolume};
use cytoscope_storage::folder::move_aside;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Budgets of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionOptions {
    /// Memory for steps to undo and redo, in bytes; the oldest are dropped first.
    pub undo_budget_bytes: u64,
    /// The journal is synced to the disk at most once in this time (the operating system has each edit at once).
    pub sync_every: Duration,
    /// A journal longer than this is compacted when it is opened and after a save, if that is worth it.
    pub compact_above_bytes: u64,
    /// What labels in a journal may ask for.
    pub limits: Limits,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            undo_budget_bytes: 256 << 20,
            sync_every: Duration::from_millis(500),
            compact_above_bytes: 64 << 20,
            limits: Limits::default(),
        }
    }
}

/// A stroke whose end is not yet there.
#[derive(Debug)]
struct Stroke {
    brush: Brush,
    last: [f64; 3],
    runs: Runs,
}

/// Labels being corrected, with all that can be undone, and the journal that keeps it.
///
/// A call that returns an error has changed nothing, in memory and in the journal. Calls that find a stroke open finish it first.
#[derive(Debug)]
pub struct Session {
    volume: LabelVolume,
    history: History,
    journal: Option<Arc<Mutex<JournalFile>>>,
    base_path: Option<PathBuf>,
    stroke: Option<Stroke>,
    /// Number of the state that was loaded or last saved, and its fingerprint where it is known.
    saved: Option<(u64, Option<Fingerprint>)>,
    options: SessionOptions,
}

impl Session {
    /// A session without a journal: what is not saved is lost with the process.
    pub fn in_memory(volume: LabelVolume, options: SessionOptions) -> Self {
        let history = History::new(options.undo_budget_bytes, 0, 1);
        Self { volume, history, journal: None, base_path: None, stroke: None, saved: Some((0, None)), options }
    }

    /// Opens the journal of some labels and replays it on them, or begins a new journal where there is none. `base` is the label
    /// image as loaded (or an empty volume), `base_path` where it came from, for the message when a journal does not belong to
    /// it. Takes time proportional to the volume: for a background thread.
    ///
    /// # Errors
    /// [`AnnotateError::OtherBase`] or [`AnnotateError::BadJournal`] for a journal that cannot be replayed on these labels,
    /// [`AnnotateError::InUse`] for one that is open elsewhere; it is left as it is. [`AnnotateError::Io`] if it cannot be read
    /// or written. A torn or damaged end is no error: see [`Replay::dropped`].
    pub fn open(
        base: LabelVolume,
        base_path: Option<&Path>,
        journal: &Path,
        options: SessionOptions,
    ) -> Result<(Self, Replay), AnnotateError> {
        let opened = replay::open(base, base_path, journal, &options)?;
        let mut session = Self {
            volume: opened.volume,
            history: opened.history,
            journal: Some(Arc::new(Mutex::new(opened.journal))),
            base_path: base_path.map(Path::to_owned),
            stroke: None,
            saved: opened.base_state.map(|s| (s, Some(opened.fingerprint))),
            options,
        };
        if session.wants_compaction() {
            session.compact()?;
        }
        Ok((session, opened.report))
    }

    /// The labels as they are.
    pub fn volume(&self) -> &LabelVolume {
        &self.volume
    }

    /// A label that is not in use, to paint a new object with.
    ///
    /// # Errors
    /// [`AnnotateError::NoFreeLabel`] if all are in use.
    pub fn new_label(&self) -> Result<u32, AnnotateError> {
        self.volume.next_free_label()
    }

    /// Makes an edit as one step.
    ///
    /// # Errors
    /// Why the edit cannot be made, or [`AnnotateError::Io`] if the journal cannot be written.
    pub fn apply(&mut self, edit: &Edit) -> Result<Change, AnnotateError> {
        self.end_stroke()?;
        let mut runs = Runs::default();
        let outcome = edit::run(&mut Pen::new(&mut self.volume, &mut runs), edit);
        match outcome {
            Ok(new_labels) => self.commit(edit.name(), runs, new_labels),
            Err(e) => {
                if let Some(patch) = runs.pack(&self.volume.labels().grid) {
                    self.take_back(&patch);
                }
                Err(e)
            }
        }
    }

    /// Begins a stroke with a dab at a point (voxel coordinates Z, Y, X). It becomes one step with [`Session::end_stroke`].
    ///
    /// # Errors
    /// [`AnnotateError::BadParameter`] for a brush or point that is none.
    pub fn begin_stroke(&mut self, brush: Brush, at: [f64; 3]) -> Result<Change, AnnotateError> {
        self.end_stroke()?;
        let mut runs = Runs::default();
        brush::segment(&mut Pen::new(&mut self.volume, &mut runs), &brush, at, at)?;
        let last = brush::flatten(&brush, at, at);
        let change = segment_change(&brush, &mut runs);
        self.stroke = Some(Stroke { brush, last, runs });
        Ok(change)
    }

    /// Draws on to a point; gives what this part of the stroke changed. Does nothing where no stroke is open.
    ///
    /// # Errors
    /// [`AnnotateError::BadParameter`] for a point that is none.
    pub fn extend_stroke(&mut self, to: [f64; 3]) -> Result<Option<Change>, AnnotateError> {
        let Some(stroke) = &mut self.stroke else { return Ok(None) };
        brush::segment(&mut Pen::new(&mut self.volume, &mut stroke.runs), &stroke.brush, stroke.last, to)?;
        stroke.last = brush::flatten(&stroke.brush, stroke.last, to);
        Ok(Some(segment_change(&stroke.brush, &mut stroke.runs)))
    }

    /// Ends the stroke: it becomes a step and goes to the journal. `None` where no stroke is open.
    ///
    /// # Errors
    /// [`AnnotateError::Io`] if the journal cannot be written; the stroke is taken back then.
    pub fn end_stroke(&mut self) -> Result<Option<Change>, AnnotateError> {
        let Some(stroke) = self.stroke.take() else { return Ok(None) };
        self.commit(stroke.brush.name(), stroke.runs, Vec::new()).map(Some)
    }

    /// Takes the open stroke back; gives what changed by that.
    pub fn cancel_stroke(&mut self) -> Option<Change> {
        let stroke = self.stroke.take()?;
        let patch = stroke.runs.pack(&self.volume.labels().grid)?;
        self.take_back(&patch);
        Some(of_patch(&stroke.brush.name(), &patch))
    }

    /// Takes back the newest step; `None` where there is none.
    ///
    /// # Errors
    /// [`AnnotateError::Io`] if the journal cannot be written.
    pub fn undo(&mut self) -> Result<Option<Change>, AnnotateError> {
        self.end_stroke()?;
        let Some(step) = self.history.to_undo() else { return Ok(None) };
        let change = of_patch(&step.name, &step.patch);
        write(&self.journal, |j| j.append(&Record::Undo))?;
        let fits = self.volume.patch(&step.patch, Direction::Backward);
        debug_assert_eq!(fits, Ok(()), "the history fits the labels");
        self.history.undo();
        Ok(Some(change))
    }

    /// Makes the newest undone step again; `None` where there is none.
    ///
    /// # Errors
    /// [`AnnotateError::Io`] if the journal cannot be written.
    pub fn redo(&mut self) -> Result<Option<Change>, AnnotateError> {
        self.end_stroke()?;
        let Some(step) = self.history.to_redo() else { return Ok(None) };
        let change = of_patch(&step.name, &step.patch);
        write(&self.journal, |j| j.append(&Record::Redo))?;
        let fits = self.volume.patch(&step.patch, Direction::Forward);
        debug_assert_eq!(fits, Ok(()), "the history fits the labels");
        self.history.redo();
        Ok(Some(change))
    }

    /// Names of the steps that can be undone, the next one first.
    pub fn undo_names(&self) -> impl Iterator<Item = &str> {
        self.history.done().iter().rev().map(|s| s.name.as_str())
    }

    /// Names of the steps that can be redone, the next one first.
    pub fn redo_names(&self) -> impl Iterator<Item = &str> {
        self.history.undone().iter().rev().map(|s| s.name.as_str())
    }

    /// Memory that the steps take.
    pub fn undo_bytes(&self) -> u64 {
        self.history.bytes()
    }

    /// Whether the labels differ from those loaded or last saved (or may differ: a compacted journal does not always know).
    pub fn is_modified(&self) -> bool {
        self.stroke.is_some() || self.saved.is_none_or(|(state, _)| state != self.history.state())
    }

    /// Bytes of the journal; 0 without one.
    pub fn journal_bytes(&self) -> u64 {
        self.journal.as_ref().map_or(0, |j| lock(j).len())
    }

    /// Why the journal could not be synced to the disk in the background, if it could not. What was drawn is with the operating
    /// system then, and survives the program but perhaps not the machine.
    pub fn sync_failure(&self) -> Option<String> {
        self.journal.as_ref().and_then(|j| lock(j).sync_failure())
    }

    /// The labels as they are now, to be saved on another thread with [`SaveTicket::save`] while editing goes on.
    ///
    /// # Errors
    /// [`AnnotateError::Io`] if an open stroke cannot be finished.
    pub fn begin_save(&mut self) -> Result<SaveTicket, AnnotateError> {
        self.end_stroke()?;
        let (labels, state) = (self.volume.snapshot(), self.history.state());
        Ok(SaveTicket { labels, state, journal: self.journal.clone() })
    }

    /// Notes that a state was saved, and compacts the journal if it is long ([`SessionOptions::compact_above_bytes`]).
    ///
    /// # Errors
    /// [`AnnotateError::Io`] or [`AnnotateError::Format`] if the journal cannot be written; the labels are saved all the same.
    pub fn mark_saved(&mut self, saved: Saved) -> Result<(), AnnotateError> {
        self.end_stroke()?;
        self.saved = Some((saved.state, saved.fingerprint));
        write(&self.journal, |j| j.append(&Record::Saved { state: saved.state, path: saved.path }))?;
        if self.wants_compaction() { self.compact() } else { Ok(()) }
    }

    /// Whether a stroke is begun and not ended.
    pub fn is_stroking(&self) -> bool {
        self.stroke.is_some()
    }

    /// Whether the journal is longer than [`SessionOptions::compact_above_bytes`] and compacting would make it much shorter.
    pub fn wants_compaction(&self) -> bool {
        let long = |j: &Arc<Mutex<JournalFile>>| {
            let journal = lock(j);
            journal.len() > self.options.compact_above_bytes && journal.len() > 2 * journal.compact_len()
        };
        self.journal.as_ref().is_some_and(long)
    }

    /// Rewrites the journal as the labels before the oldest step that can be undone, and the steps since. Takes time proportional
    /// to the volume.
    ///
    /// # Errors
    /// [`AnnotateError::Io`] or [`AnnotateError::Format`] if it cannot be written; the journal is as it was then.
    pub fn compact(&mut self) -> Result<(), AnnotateError> {
        self.end_stroke()?;
        let Some(journal) = &self.journal else { return Ok(()) };
        let mut journal = lock(journal);
        let mut labels = self.volume.snapshot();
        for step in self.history.done().iter().rev() {
            patch_snapshot(&mut labels, &step.patch, Direction::Backward, |_, _| {}).map_err(|why| {
                AnnotateError::BadJournal {
                    journal: journal.path().to_owned(),
                    met: format!("a step cannot be undone: {why}"),
                }
            })?;
        }
        let header = Header {
            shape_zyx: self.volume.shape_zyx(),
            voxel_size_um: self.volume.voxel_size_um(),
            base_path: self.base_path.as_ref().map(|p| PathBuf::from(p.to_string_lossy().into_owned())),
            bases: journal.bases.clone(),
            snapshot: true,
            floor: self.history.floor(),
            next_id: self.history.next_id(),
        };
        let steps = || self.history.done().iter().chain(self.history.undone().iter().rev());
        let saved = match self.saved {
            Some((state, Some(fingerprint))) if state == header.floor || steps().any(|s| s.id == state) => {
                Some(Record::Saving { state, fingerprint })
            }
            _ => None,
        };
        journal.replace(|out| {
            out.raw(&header.bytes()?)?;
            snapshot_parts(&labels, |part| out.record(&part.body()))?;
            for step in steps() {
                let mut body = Vec::new();
                put_edit(&mut body, step.id, &step.name, &step.patch);
                out.record(&body)?;
            }
            self.history.undone().iter().try_for_each(|_| out.record(&Record::Undo.body()))?;
            saved.iter().try_for_each(|s| out.record(&s.body()))
        })
    }

    /// Finishes an open stroke and syncs the journal to the disk.
    ///
    /// # Errors
    /// [`AnnotateError::Io`] if the journal cannot be written.
    pub fn close(mut self) -> Result<(), AnnotateError> {
        self.end_stroke()?;
        self.journal.as_ref().map_or(Ok(()), |j| sync(j))
    }

    /// Makes a step of what was drawn: first in the journal, then in the history.
    fn commit(&mut self, name: String, runs: Runs, new_labels: Vec<u32>) -> Result<Change, AnnotateError> {
        let Some(patch) = runs.pack(&self.volume.labels().grid) else {
            return Ok(Change { name, bounds: None, voxels: 0, new_labels, dropped_steps: 0, undoable: true });
        };
        let id = self.history.next_id();
        let mut body = Vec::new();
        put_edit(&mut body, id, &name, &patch);
        let kept = limits::check(
            "the differences that the edit makes, in bytes,",
            body.len() as u64,
            "MAX_RECORD_BYTES",
            MAX_RECORD_BYTES,
            "do it in parts",
        )
        .and_then(|()| write(&self.journal, |j| j.append_body(&body)));
        if let Err(e) = kept {
            self.take_back(&patch);
            return Err(e);
        }
        let mut change = of_patch(&name, &patch);
        change.new_labels = new_labels;
        change.dropped_steps = self.history.push(Step { id, name, patch });
        change.undoable = self.history.to_undo().is_some();
        Ok(change)
    }

    fn take_back(&mut self, patch: &Patch) {
        let fits = self.volume.patch(patch, Direction::Backward);
        debug_assert_eq!(fits, Ok(()), "what was just written is there");
    }
}

impl Drop for Session {
    /// A stroke that is still open is finished: nothing drawn is lost. The journal is synced as it is dropped.
    fn drop(&mut self) {
        let _ = self.end_stroke();
    }
}

fn lock(journal: &Mutex<JournalFile>) -> MutexGuard<'_, JournalFile> {
    journal.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes to the journal, if there is one.
fn write(
    journal: &Option<Arc<Mutex<JournalFile>>>,
    f: impl FnOnce(&mut JournalFile) -> Result<(), AnnotateError>,
) -> Result<(), AnnotateError> {
    journal.as_ref().map_or(Ok(()), |j| f(&mut lock(j)))
}

/// Syncs the journal, without keeping others from it meanwhile.
fn sync(journal: &Mutex<JournalFile>) -> Result<(), AnnotateError> {
    let to_sync = lock(journal).to_sync()?;
    to_sync()
}

fn of_patch(name: &str, patch: &Patch) -> Change {
    Change {
        name: name.to_owned(),
        bounds: Some(patch.bounds),
        voxels: patch.voxels,
        new_labels: Vec::new(),
        dropped_steps: 0,
        undoable: true,
    }
}

/// What a stroke changed since it was last asked.
fn segment_change(brush: &Brush, runs: &mut Runs) -> Change {
    let bounds = runs.fresh.take();
    let voxels = std::mem::take(&mut runs.fresh_voxels);
    Change { name: brush.name(), bounds, voxels, new_labels: Vec::new(), dropped_steps: 0, undoable: true }
}

/// Labels to be saved.
#[derive(Debug)]
pub struct SaveTicket {
    labels: LabelSnapshot,
    state: u64,
    journal: Option<Arc<Mutex<JournalFile>>>,
}

/// Labels that were saved; for [`Session::mark_saved`].
#[derive(Debug)]
pub struct Saved {
    state: u64,
    fingerprint: Option<Fingerprint>,
    path: PathBuf,
    kept_aside: Option<PathBuf>,
}

impl Saved {
    /// Where a file was moved to that lay at the path and held other labels than this journal has written.
    pub fn kept_aside(&self) -> Option<&Path> {
        self.kept_aside.as_deref()
    }
}

impl SaveTicket {
    /// The labels.
    pub fn labels(&self) -> &LabelSnapshot {
        &self.labels
    }

    /// Writes the labels ([`LabelSnapshot::save_with`]). The journal is told before the file takes its name, so that it fits the
    /// new file as well as the old one, whenever the program ends.
    ///
    /// # Errors
    /// As [`LabelSnapshot::save_with`]; [`AnnotateError::Io`] if the journal cannot be written (nothing is saved then).
    pub fn save(self, path: &Path, progress: Progress) -> Result<Saved, AnnotateError> {
        let fingerprint = self.journal.is_some().then(|| self.labels.fingerprint());
        let writer = self.labels.written(path, progress)?;
        let kept_aside = if self.is_foreign(path) { Some(move_aside(path)?) } else { None };
        if let (Some(journal), Some(fingerprint)) = (&self.journal, fingerprint) {
            let mut open = lock(journal);
            open.append(&Record::Saving { state: self.state, fingerprint })?;
            open.add_base(fingerprint);
            drop(open);
            sync(journal)?;
        }
        writer.finish()?;
        Ok(Saved { state: self.state, fingerprint, path: path.to_owned(), kept_aside })
    }

    /// Whether something lies at a path that this journal has not written: labels of another program, or edited since.
    fn is_foreign(&self, path: &Path) -> bool {
        let Some(journal) = self.journal.as_ref().filter(|_| path.is_file()) else {
            return false;
        };
        let there = LabelVolume::load(path, &LoadOptions::default()).map(|labels| labels.fingerprint());
        !there.is_ok_and(|fingerprint| lock(journal).bases.contains(&fingerprint))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

    use super::*;
    use crate::{BrushShape, Over};
    use cytoscope_volume::VoxelSize;

    fn dab(value: u32, x: f64) -> Edit {
        let brush = Brush { shape: BrushShape::Ball, radius_um: 2.0, value, over: Over::Any };
        Edit::Paint { brush, points: vec![[4.0, 4.0, x]] }
    }

    #[test]
    fn what_the_journal_cannot_take_is_not_done() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.journal");
        let base = LabelVolume::new([9, 9, 90], VoxelSize::default()).unwrap();
        let (mut session, _) = Session::open(base.clone(), None, &path, SessionOptions::default()).unwrap();
        session.apply(&dab(1, 10.0)).unwrap();
        session.apply(&dab(2, 11.0)).unwrap();
        session.undo().unwrap();
        lock(session.journal.as_ref().unwrap()).forbid_writing();
        let state = session.volume().labels().to_dense();
        let unchanged = |s: &Session| {
            assert!(s.volume().labels().to_dense() == state && s.volume().voxels_of(3) == 0);
            assert_eq!(s.undo_names().chain(s.redo_names()).collect::<Vec<_>>(), ["Paint 1", "Paint 2"]);
        };
        assert!(matches!(session.apply(&dab(3, 12.0)), Err(AnnotateError::Io { .. })));
        unchanged(&session);
        assert!(session.undo().is_err() && session.redo().is_err());
        unchanged(&session);
        let Edit::Paint { brush, points } = dab(3, 12.0) else { panic!("a dab is paint") };
        session.begin_stroke(brush, points[0]).unwrap();
        assert!(session.end_stroke().is_err());
        unchanged(&session);
        session.begin_stroke(brush, points[0]).unwrap();
        assert!(session.cancel_stroke().is_some_and(|c| c.voxels > 0));
        unchanged(&session);
        drop(session);
        // A stroke that is open when the session goes is a step all the same.
        let (mut session, replay) = Session::open(base.clone(), None, &path, SessionOptions::default()).unwrap();
        assert_eq!((replay.entries, replay.dropped), (3, None));
        unchanged(&session);
        session.begin_stroke(brush, points[0]).unwrap();
        drop(session);
        let (session, _) = Session::open(base, None, &path, SessionOptions::default()).unwrap();
        assert_eq!(session.undo_names().next(), Some("Paint 3"));
        session.close().unwrap();
    }

    #[test]
    fn a_step_larger_than_the_memory_for_steps_says_so() {
        let volume = LabelVolume::new([9, 9, 90], VoxelSize::default()).unwrap();
        let mut session = Session::in_memory(volume.clone(), SessionOptions::default());
        session.apply(&dab(1, 10.0)).unwrap();
        // Enough for a small dab, and not for a large one.
        let undo_budget_bytes = session.undo_bytes() + 9;
        let options = SessionOptions { undo_budget_bytes, ..SessionOptions::default() };
        let mut session = Session::in_memory(volume, options);
        let change = session.apply(&dab(1, 10.0)).unwrap();
        assert!(change.undoable && change.dropped_steps == 0, "{change:?}");
        let brush = Brush { shape: BrushShape::Ball, radius_um: 4.0, value: 2, over: Over::Any };
        let change = session.apply(&Edit::Paint { brush, points: vec![[4.0, 4.0, 50.0]] }).unwrap();
        assert!(!change.undoable && change.dropped_steps == 2, "{change:?}");
        assert_eq!(session.undo().unwrap(), None);
        assert!(session.is_modified() && session.volume().voxels_of(2) > 0);
    }
}
