//! An editing session on a label volume: edits, undo, redo, the journal, saving.

use crate::chunks::LabelSnapshot;
use crate::diff::{EditDiff, Runs};
use crate::edit::{self, Brush, Change, Edit, brush};
use crate::files::{LoadOptions, Progress};
use crate::history::{History, UndoStep};
use crate::journal::{Header, JournalFile, Record, put_edit, snapshot_parts};
use crate::limits::{self, Limits, MAX_RECORD_BYTES};
use crate::replay::{self, Replay};
use crate::volume::{Direction, LabelWriter};
use crate::{CorrectionError, Fingerprint, LabelVolume};
use cytoscope_storage::folder::{move_aside, move_back};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Memory budgets and limits of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionOptions {
    /// Memory for undo and redo steps in bytes; the oldest steps are dropped first.
    pub undo_budget_bytes: u64,
    /// Minimum time between syncs of the journal to disk (each edit is passed to the operating system immediately).
    pub sync_every: Duration,
    /// A journal longer than this is compacted when it is opened and after a save, if this makes it much shorter.
    pub compact_above_bytes: u64,
    /// Limits on the size of labels in a journal.
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

/// Advice for an edit with which the labels would exceed the limits.
const CORRECT_A_CROP: &str = "correct a smaller crop of the stack";
/// Why edits are not found again that were written to a journal which is no longer at its path.
const DETACHED: &str = "it was removed, renamed or replaced";

/// A stroke in progress.
#[derive(Debug)]
struct Stroke {
    brush: Brush,
    last: [f64; 3],
    runs: Runs,
}

/// Labels being corrected, with the undo history and the journal.
///
/// A failed call changes nothing, neither in memory nor in the journal. Calls other than those for strokes and
/// [`Session::mark_saved`] first finish a stroke in progress.
#[derive(Debug)]
pub struct Session {
    volume: LabelVolume,
    history: History,
    journal: Option<Arc<Mutex<JournalFile>>>,
    base_path: Option<PathBuf>,
    stroke: Option<Stroke>,
    /// Number of the state that was loaded or last saved, and its fingerprint if known.
    saved: Option<(u64, Option<Fingerprint>)>,
    options: SessionOptions,
}

impl Session {
    /// Creates a session without a journal: unsaved changes are lost when the process ends.
    pub fn in_memory(volume: LabelVolume, options: SessionOptions) -> Self {
        let history = History::new(options.undo_budget_bytes, 0, 1);
        Self { volume, history, journal: None, base_path: None, stroke: None, saved: Some((0, None)), options }
    }

    /// Opens the journal of labels and replays it on them, or creates a new journal. `base` is the loaded label image
    /// (or an empty volume); `base_path` is its path, for messages about a journal that belongs to other labels. Takes
    /// time proportional to the volume: call it from a background thread.
    ///
    /// # Errors
    /// [`CorrectionError::OtherBase`] or [`CorrectionError::BadJournal`] for a journal that cannot be replayed on these
    /// labels, [`CorrectionError::InUse`] for one that is open elsewhere; the journal is not changed.
    /// [`CorrectionError::Io`] or [`CorrectionError::Storage`] if it cannot be read or written. An incomplete or
    /// damaged end is not an error: see [`Replay::dropped`].
    pub fn open(
        base: LabelVolume,
        base_path: Option<&Path>,
        journal: &Path,
        options: SessionOptions,
    ) -> Result<(Self, Replay), CorrectionError> {
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
        if session.needs_compaction() {
            // A journal that cannot be compacted, for example because the disk is full, stays long.
            let _ = session.compact();
        }
        Ok((session, opened.report))
    }

    /// Returns the labels with all edits so far.
    pub fn volume(&self) -> &LabelVolume {
        &self.volume
    }

    /// Returns an unused label for a new object.
    ///
    /// # Errors
    /// [`CorrectionError::NoFreeLabel`] if all labels are in use.
    pub fn new_label(&self) -> Result<u32, CorrectionError> {
        self.volume.next_free_label()
    }

    /// Applies an edit as one step.
    ///
    /// # Errors
    /// The reason why the edit is not possible, [`CorrectionError::TooLarge`] if the labels would exceed
    /// [`SessionOptions::limits`], or [`CorrectionError::Io`] if the journal cannot be written.
    pub fn apply(&mut self, edit: &Edit) -> Result<Change, CorrectionError> {
        self.end_stroke()?;
        let mut runs = Runs::default();
        let outcome = edit::run(&mut LabelWriter::new(&mut self.volume, &mut runs), edit);
        match outcome {
            Ok(new_labels) => self.commit(edit.name(), runs, new_labels),
            Err(e) => {
                if let Some(diff) = runs.pack(&self.volume.labels().grid) {
                    self.revert(&diff);
                }
                Err(e)
            }
        }
    }

    /// Begins a stroke by painting the brush once at a point (voxel coordinates Z, Y, X). [`Session::end_stroke`] makes
    /// it a step.
    ///
    /// # Errors
    /// [`CorrectionError::BadParameter`] for an invalid brush or point.
    pub fn begin_stroke(&mut self, brush: Brush, at: [f64; 3]) -> Result<Change, CorrectionError> {
        self.end_stroke()?;
        let mut runs = Runs::default();
        brush::segment(&mut LabelWriter::new(&mut self.volume, &mut runs), &brush, at, at)?;
        let last = brush::flatten(&brush, at, at);
        let change = segment_change(&brush, &mut runs);
        self.stroke = Some(Stroke { brush, last, runs });
        Ok(change)
    }

    /// Extends the stroke to a point and returns the change made by this part of it. Does nothing if there is no
    /// stroke.
    ///
    /// # Errors
    /// [`CorrectionError::BadParameter`] for an invalid point.
    pub fn extend_stroke(&mut self, to: [f64; 3]) -> Result<Option<Change>, CorrectionError> {
        let Some(stroke) = &mut self.stroke else { return Ok(None) };
        brush::segment(&mut LabelWriter::new(&mut self.volume, &mut stroke.runs), &stroke.brush, stroke.last, to)?;
        stroke.last = brush::flatten(&stroke.brush, stroke.last, to);
        Ok(Some(segment_change(&stroke.brush, &mut stroke.runs)))
    }

    /// Ends the stroke: it becomes a step and is written to the journal. `None` if there is no stroke.
    ///
    /// # Errors
    /// [`CorrectionError::TooLarge`] if the labels would exceed [`SessionOptions::limits`], and [`CorrectionError::Io`] if
    /// the journal cannot be written; the stroke is then reverted.
    pub fn end_stroke(&mut self) -> Result<Option<Change>, CorrectionError> {
        let Some(stroke) = self.stroke.take() else { return Ok(None) };
        self.commit(stroke.brush.name(), stroke.runs, Vec::new()).map(Some)
    }

    /// Reverts the stroke in progress and returns the resulting change.
    pub fn cancel_stroke(&mut self) -> Option<Change> {
        let stroke = self.stroke.take()?;
        let diff = stroke.runs.pack(&self.volume.labels().grid)?;
        self.revert(&diff);
        Some(describe_diff(&stroke.brush.name(), &diff))
    }

    /// Undoes the newest step; `None` if there is none.
    ///
    /// # Errors
    /// [`CorrectionError::Io`] if the journal cannot be written, [`CorrectionError::TooLarge`] if the labels would exceed
    /// [`SessionOptions::limits`], and [`CorrectionError::BadJournal`] if the step is one from before the labels were last
    /// saved, and does not fit them.
    pub fn undo(&mut self) -> Result<Option<Change>, CorrectionError> {
        self.end_stroke()?;
        let Some(step) = self.history.to_undo() else { return Ok(None) };
        self.check_growth(&step.diff, Direction::Backward)?;
        let change = describe_diff(&step.name, &step.diff);
        self.volume
            .apply_diff(&step.diff, Direction::Backward)
            .map_err(|why| bad_step(&self.journal, "undone", why))?;
        if let Err(e) = write(&self.journal, |j| j.append(&Record::Undo)) {
            let fits = self.volume.apply_diff(&step.diff, Direction::Forward);
            debug_assert_eq!(fits, Ok(()), "the differences match the labels they were applied to");
            return Err(e);
        }
        self.history.undo();
        Ok(Some(change))
    }

    /// Redoes the last undone step; `None` if there is none.
    ///
    /// # Errors
    /// Same as [`Session::undo`].
    pub fn redo(&mut self) -> Result<Option<Change>, CorrectionError> {
        self.end_stroke()?;
        let Some(step) = self.history.to_redo() else { return Ok(None) };
        self.check_growth(&step.diff, Direction::Forward)?;
        let change = describe_diff(&step.name, &step.diff);
        self.volume.apply_diff(&step.diff, Direction::Forward).map_err(|why| bad_step(&self.journal, "redone", why))?;
        if let Err(e) = write(&self.journal, |j| j.append(&Record::Redo)) {
            let fits = self.volume.apply_diff(&step.diff, Direction::Backward);
            debug_assert_eq!(fits, Ok(()), "the differences match the labels they were applied to");
            return Err(e);
        }
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

    /// Memory of the undo and redo steps in bytes.
    pub fn undo_bytes(&self) -> u64 {
        self.history.bytes()
    }

    /// Whether the labels differ from those loaded or last saved. Also true if this is unknown, which can happen with a
    /// compacted journal.
    pub fn is_modified(&self) -> bool {
        self.stroke.is_some() || self.saved.is_none_or(|(state, _)| state != self.history.state())
    }

    /// Length of the journal in bytes; 0 without one.
    pub fn journal_bytes(&self) -> u64 {
        self.journal.as_ref().map_or(0, |j| lock(j).len())
    }

    /// Why unsaved edits may be lost although they were written to the journal, until it is compacted: the error of the last
    /// background sync that failed, after which they survive a crash of the program but possibly not of the machine; or that
    /// the journal is no longer at its path.
    pub fn sync_failure(&self) -> Option<String> {
        let journal = lock(self.journal.as_ref()?);
        let is_lost = || self.is_modified() && journal.is_detached();
        journal.sync_failure().or_else(|| is_lost().then(|| DETACHED.to_owned()))
    }

    /// Returns the current labels for saving on another thread with [`SaveTicket::save`] while editing continues.
    ///
    /// # Errors
    /// Same as [`Session::end_stroke`], for a stroke in progress.
    pub fn begin_save(&mut self) -> Result<SaveTicket, CorrectionError> {
        self.end_stroke()?;
        let (labels, state) = (self.volume.snapshot(), self.history.state());
        Ok(SaveTicket { labels, state, journal: self.journal.clone() })
    }

    /// Records that a state was saved, and compacts the journal if it is long
    /// ([`SessionOptions::compact_above_bytes`]) and no stroke is in progress. A stroke in progress goes on.
    ///
    /// # Errors
    /// [`CorrectionError::Io`] or [`CorrectionError::Storage`] if the journal cannot be written; the labels are saved
    /// anyway.
    pub fn mark_saved(&mut self, saved: Saved) -> Result<(), CorrectionError> {
        self.saved = Some((saved.state, saved.fingerprint));
        write(&self.journal, |j| j.append(&Record::Saved { state: saved.state, path: saved.path }))?;
        if self.has_open_stroke() || !self.needs_compaction() {
            return Ok(());
        }
        match self.compact() {
            // A journal whose snapshot could not be read again stays long.
            Err(CorrectionError::TooLarge { .. }) => Ok(()),
            compacted => compacted,
        }
    }

    /// Whether a stroke is in progress.
    pub fn has_open_stroke(&self) -> bool {
        self.stroke.is_some()
    }

    /// Whether the journal is longer than [`SessionOptions::compact_above_bytes`] and compacting would make it much
    /// shorter, or must be written again because of [`Session::sync_failure`].
    pub fn needs_compaction(&self) -> bool {
        let is_long = |j: &Arc<Mutex<JournalFile>>| {
            let journal = lock(j);
            journal.len() > self.options.compact_above_bytes && journal.len() > 2 * journal.compact_len()
        };
        self.journal.as_ref().is_some_and(is_long) || self.sync_failure().is_some()
    }

    /// Rewrites the journal as a snapshot of the labels before the oldest step that can be undone, followed by the
    /// steps. Takes time proportional to the volume.
    ///
    /// # Errors
    /// [`CorrectionError::Io`] or [`CorrectionError::Storage`] if it cannot be written, and [`CorrectionError::TooLarge`] if
    /// the snapshot would exceed [`SessionOptions::limits`]; the journal is then unchanged.
    pub fn compact(&mut self) -> Result<(), CorrectionError> {
        self.end_stroke()?;
        let Some(journal) = &self.journal else { return Ok(()) };
        let mut journal = lock(journal);
        // Its chunks are stored as those of the snapshot will be when it is read, so that the limits are checked alike.
        let mut first = self.volume.clone();
        for step in self.history.done().iter().rev() {
            first.apply_diff(&step.diff, Direction::Backward).map_err(|why| CorrectionError::BadJournal {
                journal: journal.path().to_owned(),
                problem: format!("a step cannot be undone: {why}"),
            })?;
        }
        let labels = first.labels();
        limits::check_stored_bytes(labels.stored_bytes(), &self.options.limits, CORRECT_A_CROP)?;
        limits::check_label_pieces(first.label_pieces(), &self.options.limits, CORRECT_A_CROP)?;
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
            out.write_raw(&header.bytes()?)?;
            snapshot_parts(labels, |part| out.write_record(&part.body()))?;
            for step in steps() {
                let mut body = Vec::new();
                put_edit(&mut body, step.id, &step.name, &step.diff);
                out.write_record(&body)?;
            }
            self.history.undone().iter().try_for_each(|_| out.write_record(&Record::Undo.body()))?;
            saved.iter().try_for_each(|s| out.write_record(&s.body()))
        })
    }

    /// Finishes a stroke in progress and syncs the journal to disk.
    ///
    /// # Errors
    /// [`CorrectionError::Io`] if the journal cannot be written.
    pub fn close(mut self) -> Result<(), CorrectionError> {
        self.end_stroke()?;
        self.journal.as_ref().map_or(Ok(()), |j| sync(j))
    }

    /// Makes the changes a step: first in the journal, then in the history.
    fn commit(&mut self, name: String, runs: Runs, new_labels: Vec<u32>) -> Result<Change, CorrectionError> {
        let Some(diff) = runs.pack(&self.volume.labels().grid) else {
            return Ok(Change { name, bounds: None, voxels: 0, new_labels, dropped_steps: 0, undoable: true });
        };
        self.check_applied(&diff)?;
        let id = self.history.next_id();
        let mut body = Vec::new();
        put_edit(&mut body, id, &name, &diff);
        let kept = limits::check(
            "the size of the edit's differences in bytes",
            body.len() as u64,
            "MAX_RECORD_BYTES",
            MAX_RECORD_BYTES,
            "edit a smaller part at a time",
        )
        .and_then(|()| write(&self.journal, |j| j.append_body(&body)));
        if let Err(e) = kept {
            self.revert(&diff);
            return Err(e);
        }
        let mut change = describe_diff(&name, &diff);
        change.new_labels = new_labels;
        change.dropped_steps = self.history.push(UndoStep { id, name, diff });
        change.undoable = self.history.to_undo().is_some();
        Ok(change)
    }

    /// Refuses differences that are to be applied if the labels would exceed the limits.
    fn check_growth(&self, diff: &EditDiff, direction: Direction) -> Result<(), CorrectionError> {
        let stored_bytes = self.volume.labels().stored_bytes();
        self.volume.check_growth(diff, direction, stored_bytes, &self.options.limits, CORRECT_A_CROP)
    }

    /// Like [`Session::check_growth`], for differences that have been applied: they are reverted if they are refused.
    fn check_applied(&mut self, diff: &EditDiff) -> Result<(), CorrectionError> {
        // Before the edit, its chunks needed at most what they can need at all, and so they do while it is applied. Only
        // close to a limit are the labels before the edit needed.
        let most = self.volume.labels().stored_bytes().saturating_add(self.volume.widest_bytes(diff));
        let limits = &self.options.limits;
        if most <= limits.max_stored_bytes && self.volume.label_pieces() <= limits.max_label_pieces {
            return Ok(());
        }
        self.revert(diff);
        self.check_growth(diff, Direction::Forward)?;
        let fits = self.volume.apply_diff(diff, Direction::Forward);
        debug_assert_eq!(fits, Ok(()), "the differences match the labels they were made from");
        Ok(())
    }

    fn revert(&mut self, diff: &EditDiff) {
        let fits = self.volume.apply_diff(diff, Direction::Backward);
        debug_assert_eq!(fits, Ok(()), "the differences match the labels they were made from");
    }
}

impl Drop for Session {
    /// Finishes a stroke in progress, so that no edits are lost. The journal is synced when it is dropped.
    fn drop(&mut self) {
        // Nobody can receive an error here; edits up to the stroke are in the journal.
        let _ = self.end_stroke();
    }
}

fn lock(journal: &Mutex<JournalFile>) -> MutexGuard<'_, JournalFile> {
    journal.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes to the journal, if there is one.
fn write(
    journal: &Option<Arc<Mutex<JournalFile>>>,
    f: impl FnOnce(&mut JournalFile) -> Result<(), CorrectionError>,
) -> Result<(), CorrectionError> {
    journal.as_ref().map_or(Ok(()), |j| f(&mut lock(j)))
}

/// The error for a step of the journal that does not fit the labels: it cannot be `undone` or `redone`.
fn bad_step(journal: &Option<Arc<Mutex<JournalFile>>>, done: &str, why: &str) -> CorrectionError {
    let journal = journal.as_ref().map(|j| lock(j).path().to_owned()).unwrap_or_default();
    CorrectionError::BadJournal { journal, problem: format!("a step cannot be {done}: {why}") }
}

/// Syncs the journal without holding its lock.
fn sync(journal: &Mutex<JournalFile>) -> Result<(), CorrectionError> {
    let sync_file = lock(journal).sync_task()?;
    sync_file()
}

fn describe_diff(name: &str, diff: &EditDiff) -> Change {
    Change {
        name: name.to_owned(),
        bounds: Some(diff.bounds),
        voxels: diff.voxels,
        new_labels: Vec::new(),
        dropped_steps: 0,
        undoable: true,
    }
}

/// The changes of a stroke since the last report.
fn segment_change(brush: &Brush, runs: &mut Runs) -> Change {
    let bounds = runs.unreported_bounds.take();
    let voxels = std::mem::take(&mut runs.unreported_voxels);
    Change { name: brush.name(), bounds, voxels, new_labels: Vec::new(), dropped_steps: 0, undoable: true }
}

/// A state of the labels to be saved.
#[derive(Debug)]
pub struct SaveTicket {
    labels: LabelSnapshot,
    state: u64,
    journal: Option<Arc<Mutex<JournalFile>>>,
}

/// A saved state, for [`Session::mark_saved`].
#[derive(Debug)]
pub struct Saved {
    state: u64,
    fingerprint: Option<Fingerprint>,
    path: PathBuf,
    kept_aside: Option<PathBuf>,
}

impl Saved {
    /// New path of an existing file that was moved aside because it held labels that were not written by this session.
    pub fn kept_aside(&self) -> Option<&Path> {
        self.kept_aside.as_deref()
    }
}

impl SaveTicket {
    /// Returns the labels as they were when the save began.
    pub fn labels(&self) -> &LabelSnapshot {
        &self.labels
    }

    /// Writes the labels ([`LabelSnapshot::save_with`]). The journal records the save before the file is renamed, so
    /// that it matches both the old and the new file if the program ends in between.
    ///
    /// # Errors
    /// Same as [`LabelSnapshot::save_with`]; [`CorrectionError::Storage`] if a foreign file at `path` cannot be moved
    /// aside, and [`CorrectionError::Io`] if the journal cannot be written; in both cases nothing is saved, and a
    /// foreign file keeps its name.
    pub fn save(self, path: &Path, progress: Progress) -> Result<Saved, CorrectionError> {
        let fingerprint = self.journal.is_some().then(|| self.labels.fingerprint());
        let writer = self.labels.write_slices(path, progress)?;
        let kept_aside = if self.is_foreign(path) { Some(move_aside(path)?) } else { None };
        let saved = self.record_saving(fingerprint).and_then(|()| Ok(writer.finish()?));
        if let (Err(_), Some(aside)) = (&saved, &kept_aside) {
            move_back(aside, path);
        }
        saved?;
        Ok(Saved { state: self.state, fingerprint, path: path.to_owned(), kept_aside })
    }

    /// Records in the journal, if there is one, that the labels with this fingerprint are about to get their name.
    fn record_saving(&self, fingerprint: Option<Fingerprint>) -> Result<(), CorrectionError> {
        let (Some(journal), Some(fingerprint)) = (&self.journal, fingerprint) else { return Ok(()) };
        let mut open = lock(journal);
        open.append(&Record::Saving { state: self.state, fingerprint })?;
        open.add_base(fingerprint);
        drop(open);
        sync(journal)
    }

    /// Whether a file exists at the path that was not written with this journal: by another program, or changed since.
    fn is_foreign(&self, path: &Path) -> bool {
        let Some(journal) = self.journal.as_ref().filter(|_| path.is_file()) else {
            return false;
        };
        let existing = LabelVolume::load(path, &LoadOptions::default()).map(|labels| labels.fingerprint());
        !existing.is_ok_and(|fingerprint| lock(journal).bases.contains(&fingerprint))
    }
}

#[cfg(test)]
mod tests;
