//! Replays a journal on the labels it belongs to, which restores the state of the last session.

use crate::chunks::LabelSnapshot;
use crate::diff::EditDiff;
use crate::history::{History, UndoStep};
use crate::journal::{
    Header, HeaderError, JournalFile, JournalReader, Record, ResumeState, SnapshotPart, Tail, without_repeated_bases,
};
use crate::limits::{self, Limits};
use crate::session::SessionOptions;
use crate::volume::Direction;
use crate::{CorrectionError, Fingerprint, LabelVolume};
use cytoscope_storage::lock::LockedFile;
use cytoscope_storage::write::sync_folder;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Report of opening a journal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Replay {
    /// Number of edits, undos and redos in the journal; 0 for a new one.
    pub entries: u64,
    /// The end of the journal that was dropped; `None` if all of it was valid.
    pub dropped: Option<DroppedTail>,
    /// Number of oldest steps that can no longer be undone because they do not fit into the undo memory.
    pub dropped_steps: usize,
}

/// The invalid end of a journal, which was cut off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DroppedTail {
    /// Length of the invalid end of the journal in bytes.
    pub bytes: u64,
    /// Why the first invalid record is refused.
    pub why: &'static str,
    /// Path of a copy; `None` if nothing was kept, because only the last write was incomplete.
    pub kept_at: Option<PathBuf>,
}

/// The labels and the history after the edits of a journal, and the journal, opened for further edits.
pub(crate) struct ReplayedJournal {
    /// Labels after the last valid record.
    pub volume: LabelVolume,
    /// Steps of the journal that can be undone or redone, trimmed to the undo budget.
    pub history: History,
    /// The journal, locked and without its invalid end.
    pub journal: JournalFile,
    /// Number of the state of the given labels, if known.
    pub base_state: Option<u64>,
    /// Fingerprint of the given labels.
    pub fingerprint: Fingerprint,
    /// Result of replaying the journal.
    pub report: Replay,
}

/// Opens the journal of labels and replays it on them, or creates a new journal.
pub(crate) fn open(
    base: LabelVolume,
    base_path: Option<&Path>,
    path: &Path,
    options: &SessionOptions,
) -> Result<ReplayedJournal, CorrectionError> {
    let fingerprint = base.fingerprint();
    let header = Header {
        shape_zyx: base.shape_zyx(),
        voxel_size_um: base.voxel_size_um(),
        // JSON requires Unicode; the path is used in messages only.
        base_path: base_path.map(|p| PathBuf::from(p.to_string_lossy().into_owned())),
        bases: vec![fingerprint],
        snapshot: false,
        floor: 0,
        next_id: 1,
    };
    let io = |doing| CorrectionError::io(path, doing);
    let mut file = JournalFile::lock(path)?;
    let bytes = header.bytes().map_err(|e| io("writing the journal")(e.into()))?;
    let len = file.metadata().map_err(io("reading the journal"))?.len();
    // The file is empty, or writing its header was interrupted.
    let is_new = len < bytes.len() as u64 && {
        let mut start = Vec::new();
        let reader: &File = &file;
        reader.take(len).read_to_end(&mut start).map_err(io("reading the journal"))?;
        bytes.starts_with(&start)
    };
    if is_new {
        let write = |file: &mut LockedFile| {
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&bytes)?;
            file.sync_all()
        };
        write(&mut file).map_err(io("writing the journal"))?;
        sync_folder(path);
        let history = History::new(options.undo_budget_bytes, 0, 1);
        let resume = ResumeState {
            len: bytes.len() as u64,
            position: 0,
            compact_len: bytes.len() as u64,
            bases: header.bases,
            sync_interval: options.sync_every,
        };
        let journal = JournalFile::resume(path, file, resume)?;
        let report = Replay::default();
        return Ok(ReplayedJournal { volume: base, history, journal, base_state: Some(0), fingerprint, report });
    }
    Replayer { path, file, len, fingerprint, options }.replay(base)
}

/// A place between two records of a journal.
#[derive(Debug, Clone, Copy)]
struct End {
    /// Position in bytes.
    at: u64,
    /// Number of records before it.
    position: u64,
    /// Number of edits, undos and redos before it.
    entries: u64,
    /// Number of fingerprints of saved labels before it.
    bases: usize,
}

/// Why a record is refused, and where the valid part of the journal ends.
struct Refused {
    why: &'static str,
    end: End,
}

/// How far a journal was read.
struct RecordsRead {
    /// End of the last valid record.
    end: End,
    /// Why no further record was read.
    tail: Tail,
    /// End of the snapshot at the beginning, in bytes.
    snapshot_end: u64,
}

struct Replayer<'a> {
    path: &'a Path,
    file: LockedFile,
    len: u64,
    fingerprint: Fingerprint,
    options: &'a SessionOptions,
}

impl Replayer<'_> {
    fn io(&self, doing: &'static str) -> impl FnOnce(io::Error) -> CorrectionError + use<> {
        let path = self.path;
        CorrectionError::io(path, doing)
    }

    fn bad(&self, problem: impl Into<String>) -> CorrectionError {
        CorrectionError::BadJournal { journal: self.path.to_owned(), problem: problem.into() }
    }

    fn reader(&self) -> Result<JournalReader<BufReader<&File>>, CorrectionError> {
        let mut file: &File = &self.file;
        file.seek(SeekFrom::Start(0)).map_err(self.io("reading the journal"))?;
        JournalReader::begin(BufReader::with_capacity(1 << 16, file), self.len).map_err(|e| match e {
            HeaderError::Io(e) => self.io("reading the journal")(e),
            HeaderError::NotAJournal(problem) => self.bad(problem),
        })
    }

    /// Checks that the labels belong to the journal and returns the number of their state, if known.
    fn find_base(&self, base: &LabelVolume) -> Result<Option<u64>, CorrectionError> {
        let mut reader = self.reader()?;
        let header = reader.header.clone();
        let other = |problem| CorrectionError::OtherBase { journal: self.path.to_owned(), problem };
        if header.shape_zyx != base.shape_zyx() {
            return Err(other(format!(
                "it belongs to labels with Z, Y, X = {:?}, but these labels have {:?}",
                header.shape_zyx,
                base.shape_zyx()
            )));
        }
        let mut known = header.bases.contains(&self.fingerprint);
        let mut state = (known && !header.snapshot).then_some(header.floor);
        while let Ok(record) = reader.next().map_err(self.io("reading the journal"))? {
            if let Record::Saving { state: saved, fingerprint } = record
                && fingerprint == self.fingerprint
            {
                known = true;
                state = Some(saved);
            }
        }
        if known {
            return Ok(state);
        }
        let of =
            header.base_path.map_or_else(|| "labels that were empty at first".to_owned(), |p| p.display().to_string());
        Err(other(format!("it belongs to other labels ({of}), or another program has changed these labels")))
    }

    fn replay(self, base: LabelVolume) -> Result<ReplayedJournal, CorrectionError> {
        let base_state = self.find_base(&base)?;
        let mut reader = self.reader()?;
        let header = reader.header.clone();
        let mut state = ReplayState {
            // The history is trimmed to the budget at the end, because the journal may have been written with a larger
            // one.
            history: History::new(u64::MAX, header.floor, header.next_id),
            applying: header.snapshot || base_state == Some(header.floor),
            base_state,
            last_id: header.floor,
            stored_bytes: base.labels().stored_bytes(),
            volume: base,
            applied: 0,
            pending: None,
            bases: Vec::new(),
        };
        let RecordsRead { end, tail, snapshot_end } = self.read_records(&mut reader, &mut state, &header)?;
        if !state.applying {
            return Err(self.bad("it does not contain the state of these labels"));
        }
        drop(reader);
        let dropped = self.keep_tail(end.at, tail)?;
        let mut history = state.history;
        let dropped_steps = history.trim(self.options.undo_budget_bytes);
        let resume = ResumeState {
            len: end.at,
            position: end.position,
            compact_len: snapshot_end + history.bytes(),
            bases: without_repeated_bases([header.bases, state.bases].concat()),
            sync_interval: self.options.sync_every,
        };
        let journal = JournalFile::resume(self.path, self.file, resume)?;
        let report = Replay { entries: end.entries, dropped, dropped_steps };
        let fingerprint = self.fingerprint;
        Ok(ReplayedJournal { volume: state.volume, history, journal, base_state, fingerprint, report })
    }

    /// Reads the records up to the first invalid one and replays them.
    fn read_records(
        &self,
        reader: &mut JournalReader<BufReader<&File>>,
        state: &mut ReplayState,
        header: &Header,
    ) -> Result<RecordsRead, CorrectionError> {
        let limits = &self.options.limits;
        let empty = LabelSnapshot::empty(reader.grid, state.volume.voxel_size_um());
        let mut parts = header.snapshot.then(|| PartialSnapshot::new(empty));
        let mut snapshot_end = reader.at;
        let mut entries = 0u64;
        let (end, tail) = loop {
            if let Some(snapshot) = parts.take_if(|p| p.is_complete()) {
                state.stored_bytes = snapshot.stored_bytes;
                state.volume = LabelVolume::from_snapshot(snapshot.labels, limits)?;
                snapshot_end = reader.at;
            }
            let here = End { at: reader.at, position: reader.position, entries, bases: state.bases.len() };
            let record = match reader.next().map_err(self.io("reading the journal"))? {
                Ok(record) => record,
                Err(tail) => break (here, tail),
            };
            let refused_here = |why| Refused { why, end: here };
            let is_step = matches!(record, Record::Edit { .. } | Record::Undo | Record::Redo);
            let outcome = match (record, &mut parts) {
                (Record::Snapshot(part), Some(snapshot)) => snapshot.add(&part, limits)?.map_err(refused_here),
                (Record::Snapshot(_), None) => Err(refused_here("it is a snapshot between edits")),
                (_, Some(_)) => Err(refused_here("the snapshot is not complete")),
                (record, None) => state.add(record, here, limits)?,
            };
            match outcome {
                Ok(()) => entries += u64::from(is_step),
                Err(Refused { why, end }) => break (end, Tail::Damaged(why)),
            }
        };
        if parts.is_some() {
            return Err(self.bad("the snapshot of the labels at its beginning is damaged"));
        }
        let (end, tail) = match state.apply_pending(end, limits)? {
            Ok(()) => (end, tail),
            Err(Refused { why, end }) => (end, Tail::Damaged(why)),
        };
        state.bases.truncate(end.bases);
        Ok(RecordsRead { end, tail, snapshot_end })
    }

    /// Copies the end of a journal that could not be read to a new file, unless it is only an incomplete write.
    fn keep_tail(&self, from: u64, tail: Tail) -> Result<Option<DroppedTail>, CorrectionError> {
        let bytes = self.len - from;
        let why = match tail {
            Tail::Clean => return Ok(None),
            Tail::Torn => {
                return Ok(Some(DroppedTail { bytes, why: "the last write was interrupted", kept_at: None }));
            }
            Tail::Damaged(why) => why,
        };
        let mut number = 1;
        let (mut copy, kept_at) = loop {
            let mut name = self.path.file_name().unwrap_or_default().to_owned();
            name.push(format!(".damaged-{number}"));
            let beside = self.path.with_file_name(name);
            match OpenOptions::new().write(true).create_new(true).open(&beside) {
                Ok(copy) => break (copy, beside),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && number < 10_000 => number += 1,
                Err(e) => return Err(CorrectionError::io(&beside, "saving the damaged end of the journal")(e)),
            }
        };
        let mut file: &File = &self.file;
        let kept = file
            .seek(SeekFrom::Start(from))
            .and_then(|_| io::copy(&mut file.take(bytes), &mut copy))
            .and_then(|_| copy.sync_all());
        kept.map_err(CorrectionError::io(&kept_at, "saving the damaged end of the journal"))?;
        sync_folder(&kept_at);
        Ok(Some(DroppedTail { bytes, why, kept_at: Some(kept_at) }))
    }
}

/// Advice for a journal whose labels need too much memory. Edits that would lead to such a journal are refused, so it is
/// damaged, or another program has written it.
const RENAME_JOURNAL: &str = "rename the journal, whose name ends in .corrections, to begin with the saved labels";

/// The snapshot at the beginning of a journal while it is read.
struct PartialSnapshot {
    labels: LabelSnapshot,
    /// Number of chunks read so far.
    next: usize,
    /// Memory of the labels in bytes.
    stored_bytes: u64,
}

impl PartialSnapshot {
    fn new(labels: LabelSnapshot) -> Self {
        Self { next: 0, stored_bytes: labels.stored_bytes(), labels }
    }

    fn is_complete(&self) -> bool {
        self.next == self.labels.chunks.len()
    }

    /// Reads a part; the inner error says why it is invalid.
    fn add(&mut self, part: &SnapshotPart, limits: &Limits) -> Result<Result<(), &'static str>, CorrectionError> {
        let (labels, bytes) = (&mut self.labels, &mut self.stored_bytes);
        match part.restore(labels, self.next, bytes, limits.max_stored_bytes) {
            Ok(end) => self.next = end,
            Err(why) => return Ok(Err(why)),
        }
        limits::check_stored_bytes(self.stored_bytes, limits, RENAME_JOURNAL).map(Ok)
    }
}

/// Labels and undo history while records are replayed.
struct ReplayState {
    volume: LabelVolume,
    /// Memory of the labels in bytes.
    stored_bytes: u64,
    history: History,
    /// Number of the state of the given labels.
    base_state: Option<u64>,
    /// Number of the newest step.
    last_id: u64,
    /// Whether `base_state` was reached. Before that, steps are added to the history but not applied.
    applying: bool,
    /// Number of steps of the history that the labels contain, once `applying`. Undos and redos only change the history at
    /// first, because those that cancel out would each take as long as the edit that they repeat.
    applied: usize,
    /// The place before the first undo or redo that the labels do not contain yet.
    pending: Option<End>,
    /// Fingerprints of the labels that were saved.
    bases: Vec<Fingerprint>,
}

impl ReplayState {
    /// Adds the record that begins `here`; the inner error says why it, or an undo or redo before it, is refused.
    ///
    /// # Errors
    /// [`CorrectionError::TooLarge`] if its changes need too much memory.
    fn add(&mut self, record: Record, here: End, limits: &Limits) -> Result<Result<(), Refused>, CorrectionError> {
        let refused = |why| Ok(Err(Refused { why, end: here }));
        match record {
            Record::Edit { id, name, diff } => {
                if let Err(refused) = self.apply_pending(here, limits)? {
                    return Ok(Err(refused));
                }
                if id <= self.last_id {
                    return refused("its steps are not in order");
                }
                if self.applying {
                    let (volume, stored_bytes) = (&mut self.volume, &mut self.stored_bytes);
                    if let Err(why) = apply_counted(volume, stored_bytes, &diff, Direction::Forward, limits)? {
                        return refused(why);
                    }
                    self.applied += 1;
                }
                self.last_id = id;
                self.history.push(UndoStep { id, name, diff });
            }
            Record::Undo if self.history.to_undo().is_none() => return refused("there is nothing to undo"),
            Record::Redo if self.history.to_redo().is_none() => return refused("there is nothing to redo"),
            Record::Undo => {
                self.pending = self.pending.or(Some(here));
                self.history.undo();
            }
            Record::Redo => {
                self.pending = self.pending.or(Some(here));
                self.history.redo();
            }
            Record::Saving { fingerprint, .. } => self.bases.push(fingerprint),
            Record::Snapshot(_) | Record::Saved { .. } => {}
        }
        if !self.applying && self.base_state == Some(self.history.state()) {
            self.applying = true;
            self.applied = self.history.done().len();
            self.pending = None;
        }
        Ok(Ok(()))
    }

    /// Applies the undos and redos that the labels do not contain yet; the inner error says why one is refused. The history is
    /// then that before the first of them.
    ///
    /// # Errors
    /// [`CorrectionError::TooLarge`] if the labels need too much memory.
    fn apply_pending(&mut self, here: End, limits: &Limits) -> Result<Result<(), Refused>, CorrectionError> {
        let end = self.pending.take().unwrap_or(here);
        if !self.applying {
            return Ok(Ok(()));
        }
        let before = self.applied;
        while self.applied != self.history.done().len() {
            let is_undo = self.applied > self.history.done().len();
            if let Err(why) = self.apply_one(is_undo, limits)? {
                // What was applied before fits the labels in the other direction, too.
                while self.applied != before && self.apply_one(!is_undo, limits)?.is_ok() {}
                while self.history.done().len() < before && self.history.to_redo().is_some() {
                    self.history.redo();
                }
                while self.history.done().len() > before {
                    self.history.undo();
                }
                return Ok(Err(Refused { why, end }));
            }
        }
        Ok(Ok(()))
    }

    /// Removes the last applied step from the labels, or adds the next one.
    fn apply_one(&mut self, is_undo: bool, limits: &Limits) -> Result<Result<(), &'static str>, CorrectionError> {
        let (index, direction) = match is_undo {
            true => (self.applied.saturating_sub(1), Direction::Backward),
            false => (self.applied, Direction::Forward),
        };
        let Some(step) = self.history.step(index) else { return Ok(Err("there is no such step")) };
        let outcome = apply_counted(&mut self.volume, &mut self.stored_bytes, &step.diff, direction, limits)?;
        if outcome.is_ok() {
            self.applied = if is_undo { index } else { index + 1 };
        }
        Ok(outcome)
    }
}

/// Applies differences and updates the memory of the labels. Differences that need too much memory are refused before: a few
/// bytes may divide many chunks that were stored as one value.
fn apply_counted(
    volume: &mut LabelVolume,
    stored_bytes: &mut u64,
    diff: &EditDiff,
    direction: Direction,
    limits: &Limits,
) -> Result<Result<(), &'static str>, CorrectionError> {
    volume.check_growth(diff, direction, *stored_bytes, limits, RENAME_JOURNAL)?;
    let before = volume.touched_bytes(diff);
    let outcome = volume.apply_diff(diff, direction);
    *stored_bytes = stored_bytes.saturating_sub(before).saturating_add(volume.touched_bytes(diff));
    Ok(outcome)
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
