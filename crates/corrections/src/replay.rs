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
        };
        let limits = &self.options.limits;
        let empty = || LabelSnapshot::empty(reader.grid, state.volume.voxel_size_um());
        let mut parts = header.snapshot.then(|| PartialSnapshot::new(empty()));
        let mut snapshot_end = reader.at;
        let (mut entries, mut bases) = (0u64, header.bases);
        let tail = loop {
            if let Some(snapshot) = parts.take_if(|p| p.is_complete()) {
                state.stored_bytes = snapshot.stored_bytes;
                state.volume = LabelVolume::from_snapshot(snapshot.labels, limits)?;
                snapshot_end = reader.at;
            }
            let (at, position) = (reader.at, reader.position);
            let record = match reader.next().map_err(self.io("reading the journal"))? {
                Ok(record) => record,
                Err(tail) => break tail,
            };
            let outcome = match (record, &mut parts) {
                (Record::Snapshot(part), Some(snapshot)) => snapshot.add(&part, limits)?,
                (Record::Snapshot(_), None) => Err("it is a snapshot between edits"),
                (_, Some(_)) => Err("the snapshot is not complete"),
                (Record::Saving { fingerprint, .. }, None) => {
                    bases.push(fingerprint);
                    Ok(())
                }
                (Record::Saved { .. }, None) => Ok(()),
                (record, None) => {
                    state.check_memory(&record, limits)?;
                    state.step(record).map(|()| entries += 1)
                }
            };
            if let Err(why) = outcome {
                (reader.at, reader.position) = (at, position);
                break Tail::Damaged(why);
            }
        };
        if parts.is_some() {
            return Err(self.bad("the snapshot of the labels at its beginning is damaged"));
        }
        if !state.applying {
            return Err(self.bad("it does not contain the state of these labels"));
        }
        let (len, position) = (reader.at, reader.position);
        drop(reader);
        let dropped = self.keep_tail(len, tail)?;
        let mut history = state.history;
        let dropped_steps = history.trim(self.options.undo_budget_bytes);
        let resume = ResumeState {
            len,
            position,
            compact_len: snapshot_end + history.bytes(),
            bases: without_repeated_bases(bases),
            sync_interval: self.options.sync_every,
        };
        let journal = JournalFile::resume(self.path, self.file, resume)?;
        let report = Replay { entries, dropped, dropped_steps };
        let fingerprint = self.fingerprint;
        Ok(ReplayedJournal { volume: state.volume, history, journal, base_state, fingerprint, report })
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
}

impl ReplayState {
    /// Refuses a record whose changes need too much memory, before they are applied: a few bytes may divide many chunks
    /// that were stored as one value.
    fn check_memory(&self, record: &Record, limits: &Limits) -> Result<(), CorrectionError> {
        let (diff, direction) = match record {
            Record::Edit { diff, .. } => (Some(diff), Direction::Forward),
            Record::Undo => (self.history.to_undo().map(|step| &step.diff), Direction::Backward),
            Record::Redo => (self.history.to_redo().map(|step| &step.diff), Direction::Forward),
            Record::Snapshot(_) | Record::Saving { .. } | Record::Saved { .. } => return Ok(()),
        };
        match diff.filter(|_| self.applying) {
            Some(diff) => self.volume.check_growth(diff, direction, self.stored_bytes, limits, RENAME_JOURNAL),
            None => Ok(()),
        }
    }

    fn step(&mut self, record: Record) -> Result<(), &'static str> {
        match record {
            Record::Edit { id, name, diff } => {
                if id <= self.last_id {
                    return Err("its steps are not in order");
                }
                if self.applying {
                    apply_counted(&mut self.volume, &mut self.stored_bytes, &diff, Direction::Forward)?;
                }
                self.last_id = id;
                self.history.push(UndoStep { id, name, diff });
            }
            Record::Undo => {
                let step = self.history.to_undo().ok_or("there is nothing to undo")?;
                if self.applying {
                    apply_counted(&mut self.volume, &mut self.stored_bytes, &step.diff, Direction::Backward)?;
                }
                self.history.undo();
            }
            Record::Redo => {
                let step = self.history.to_redo().ok_or("there is nothing to redo")?;
                if self.applying {
                    apply_counted(&mut self.volume, &mut self.stored_bytes, &step.diff, Direction::Forward)?;
                }
                self.history.redo();
            }
            Record::Snapshot(_) | Record::Saving { .. } | Record::Saved { .. } => {}
        }
        self.applying |= self.base_state == Some(self.history.state());
        Ok(())
    }
}

/// Applies differences and updates the memory of the labels.
fn apply_counted(
    volume: &mut LabelVolume,
    stored_bytes: &mut u64,
    diff: &EditDiff,
    direction: Direction,
) -> Result<(), &'static str> {
    let before = volume.touched_bytes(diff);
    volume.apply_diff(diff, direction)?;
    *stored_bytes = stored_bytes.saturating_sub(before).saturating_add(volume.touched_bytes(diff));
    Ok(())
}

#[cfg(test)]
mod tests {
    //! Journals with valid checksums and arbitrary content.
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

    use super::*;
    use crate::Session;
    use crate::journal::encode_record;
    use cytoscope_volume::VoxelSize;
    use proptest::prelude::*;

    fn base() -> LabelVolume {
        LabelVolume::new([3, 9, 9], VoxelSize::default()).unwrap()
    }

    fn write(path: &Path, header: &Header, bodies: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = header.bytes().unwrap();
        for (position, body) in bodies.iter().enumerate() {
            bytes.extend(encode_record(position as u64, body));
        }
        std::fs::write(path, &bytes).unwrap();
        bytes
    }

    fn header(snapshot: bool) -> Header {
        Header {
            shape_zyx: [3, 9, 9],
            voxel_size_um: VoxelSize::default(),
            base_path: None,
            bases: vec![base().fingerprint()],
            snapshot,
            floor: 0,
            next_id: 1,
        }
    }

    /// An edit of one run of the only chunk, valid or not.
    fn edit() -> impl Strategy<Value = Vec<u8>> {
        let run = (0u8..20, 0u8..40, 0u8..3, 0u8..3);
        (1u8..12, run).prop_map(|(id, (start, len, old, new))| vec![1, id, 1, b'x', 0, 1, old, new, 1, start, len])
    }

    fn body() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            4 => edit(),
            2 => Just(vec![2u8]),
            2 => Just(vec![3u8]),
            1 => prop::collection::vec(0u8..7, 0..20),
            1 => prop::collection::vec(any::<u8>(), 0..20),
            1 => prop::collection::vec(any::<u8>(), 0..20).prop_map(|mut v| { v.insert(0, 4); v }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn records_are_replayed_up_to_the_first_invalid_one(
            bodies in prop::collection::vec(body(), 0..12), snapshot in any::<bool>(), whole in any::<bool>(),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("a.journal");
            let mut bodies = bodies;
            if snapshot && whole {
                // One chunk of 243 voxels, all of label 1.
                bodies.insert(0, vec![4, 0, 243, 1, 1]);
            }
            let bytes = write(&path, &header(snapshot), &bodies);
            match Session::open(base(), None, &path, SessionOptions::default()) {
                Err(_) => prop_assert!(std::fs::read(&path).unwrap() == bytes),
                Ok((mut session, replay)) => {
                    let kept = std::fs::read(&path).unwrap();
                    prop_assert!(bytes.starts_with(&kept));
                    let lost = (bytes.len() - kept.len()) as u64;
                    prop_assert_eq!(replay.dropped.as_ref().map_or(0, |d| d.bytes), lost);
                    if let Some(at) = replay.dropped.and_then(|d| d.kept_at) {
                        prop_assert!(bytes.ends_with(&std::fs::read(at).unwrap()));
                    }
                    // All accepted steps can be undone, back to the initial state.
                    while session.undo().unwrap().is_some() {}
                    prop_assert_eq!(session.volume().voxel_count(1), if snapshot { 243 } else { 0 });
                }
            }
        }
    }

    #[test]
    fn declared_sizes_allocate_no_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.journal");
        let error_for = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let error = Session::open(base(), None, &path, SessionOptions::default()).unwrap_err();
            assert!(std::fs::read(&path).unwrap() == bytes);
            error.to_string()
        };
        // A header of 4 GB; a volume of 2^60 voxels; a snapshot chunk with too many runs.
        let mut bytes = header(false).bytes().unwrap();
        bytes[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(error_for(&bytes).contains("length"));
        let huge = Header { shape_zyx: [1 << 20; 3], ..header(false) };
        assert!(error_for(&huge.bytes().unwrap()).contains("MAX_CHUNKS"));
        let mut endless = vec![4, 0];
        (0..400).for_each(|_| endless.extend([1, 7]));
        let bytes = write(&path, &header(true), &[endless]);
        assert!(error_for(&bytes).contains("snapshot"));
        // A record of 4 GB, and one with more pairs and runs than bytes, are dropped.
        for tail in [
            vec![0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0],
            encode_record(0, &[1, 1, 1, b'x', 0, 0xff, 0xff, 0xff, 0x7f, 1, 2]),
        ] {
            let mut bytes = header(false).bytes().unwrap();
            bytes.extend(&tail);
            std::fs::write(&path, &bytes).unwrap();
            let (_, replay) = Session::open(base(), None, &path, SessionOptions::default()).unwrap();
            assert_eq!(replay.dropped.map(|d| d.bytes), Some(tail.len() as u64));
        }
    }

    #[test]
    fn a_step_before_the_saved_state_that_does_not_fit_the_labels_is_not_undone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.journal");
        // The step labels four voxels, but the labels after it are said to be those without any.
        let saving = Record::Saving { state: 1, fingerprint: base().fingerprint() };
        write(&path, &header(false), &[vec![1, 1, 1, b'x', 0, 1, 0, 1, 1, 0, 4], saving.body()]);
        let (mut session, replay) = Session::open(base(), None, &path, SessionOptions::default()).unwrap();
        assert_eq!((replay.entries, replay.dropped), (1, None));
        let error = session.undo().unwrap_err();
        assert!(matches!(error, CorrectionError::BadJournal { .. }), "{error}");
        assert_eq!((session.undo_names().count(), session.redo_names().count()), (1, 0));
        assert!(session.volume().fingerprint() == base().fingerprint());
    }

    /// The error of opening a journal with these records for an empty volume of 64 chunks.
    fn too_large(snapshot: bool, bodies: &[Vec<u8>], max_stored_bytes: u64) -> Option<String> {
        let shape_zyx = [128, 256, 256];
        let base = LabelVolume::new(shape_zyx, VoxelSize::default()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.journal");
        let header = Header { shape_zyx, bases: vec![base.fingerprint()], ..header(snapshot) };
        write(&path, &header, bodies);
        let limits = Limits { max_stored_bytes, ..Limits::default() };
        match Session::open(base, None, &path, SessionOptions { limits, ..SessionOptions::default() }) {
            Err(e @ CorrectionError::TooLarge { .. }) => Some(e.to_string()),
            Err(e) => panic!("{e}"),
            Ok((_, replay)) => {
                assert_eq!(replay.dropped, None);
                None
            }
        }
    }

    #[test]
    fn an_edit_that_divides_many_uniform_chunks_is_refused_before_they_are_stored() {
        // One voxel of each chunk, which then needs 256 KiB.
        let mut edit = vec![1, 1, 1, b'x'];
        for chunk in 0..64 {
            edit.extend([u8::from(chunk > 0), 1, 0, 1, 1, 0, 1]);
        }
        let all = 64 * (256 << 10);
        assert_eq!(too_large(false, std::slice::from_ref(&edit), all + (1 << 20)), None);
        let error = too_large(false, std::slice::from_ref(&edit), all / 2).unwrap();
        assert!(error.contains("max_stored_bytes") && error.ends_with(RENAME_JOURNAL), "{error}");
        // Memory that an undo frees is available again.
        let (undo, again) = (vec![2], [&[1, 2][..], &edit[2..]].concat());
        assert_eq!(too_large(false, &[edit, undo, again], all + (1 << 20)), None);
    }

    #[test]
    fn a_snapshot_is_refused_as_soon_as_it_is_too_large() {
        // Each chunk has two labels, in one part.
        let mut part = vec![4, 0];
        for _ in 0..64 {
            // 131 071 voxels of background and one of label 1.
            part.extend([0xff, 0xff, 0x07, 0, 1, 1]);
        }
        let all = 64 * (256 << 10);
        assert_eq!(too_large(true, std::slice::from_ref(&part), all + (1 << 20)), None);
        let error = too_large(true, &[part], all / 2).unwrap();
        assert!(error.contains("max_stored_bytes") && error.ends_with(RENAME_JOURNAL), "{error}");
    }
}
