//! The journal restores all edits: after closing, truncation, damage, compaction and saving.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod common;

use common::{SHAPE, base, edit, names, open, try_edit};
use cytoscope_corrections::{
    Brush, BrushShape, CorrectionError, DrawOver, Edit, Fingerprint, LabelVolume, Limits, LoadOptions, Scope, Session,
    SessionOptions, SliceAxis,
};
use cytoscope_volume::VoxelSize;
use proptest::prelude::*;
use std::ops::ControlFlow;
use std::path::Path;

fn reopen(base: LabelVolume, journal: &Path, options: &SessionOptions) -> Session {
    let (session, replay) = Session::open(base, None, journal, options.clone()).unwrap();
    assert_eq!(replay.dropped, None);
    session
}

fn fingerprint(session: &Session) -> Fingerprint {
    session.volume().fingerprint()
}

/// Undoes and redoes all steps and returns the fingerprint after each.
fn walk(session: &mut Session) -> Vec<Fingerprint> {
    let mut states = vec![fingerprint(session)];
    let redo = session.redo_names().count();
    let mut undone = 0;
    while session.undo().unwrap().is_some() {
        undone += 1;
        states.push(fingerprint(session));
    }
    for _ in 0..undone {
        session.redo().unwrap().unwrap();
    }
    assert_eq!(session.redo_names().count(), redo);
    states
}

#[test]
fn edits_of_impossible_extents_are_refused_before_they_are_drawn() {
    // Uniform chunks need no memory.
    let empty = LabelVolume::new([3, 1 << 14, 1 << 14], VoxelSize::new_um(1.0, 1.0, 1.0)).unwrap();
    let mut session = Session::in_memory(empty, SessionOptions::default());
    let brush = |radius_um| Brush { shape: BrushShape::Ball, radius_um, value: 1, over: DrawOver::Any };
    let dot = |z: f64, y: f64| Edit::Paint { brush: brush(0.0), points: vec![[z, y, y]] };
    for edit in [dot(0.0, 1.0), dot(0.0, 16_000.0), dot(2.0, 1.0), dot(2.0, 16_000.0)] {
        session.apply(&edit).unwrap();
    }
    let before = fingerprint(&session);
    let mut refused = |edit: Edit, limit: &str| {
        let error = session.apply(&edit).unwrap_err();
        assert!(matches!(error, CorrectionError::TooLarge { .. }) && error.to_string().contains(limit), "{error}");
        assert_eq!(fingerprint(&session), before);
    };
    refused(Edit::Interpolate { label: 1, axis: SliceAxis::Z, at: None, over: DrawOver::Any }, "MAX_BOX_VOXELS");
    let deep = LabelVolume::new([1 << 12, 1 << 12, 1 << 12], VoxelSize::new_um(1.0, 1.0, 1.0)).unwrap();
    let mut session = Session::in_memory(deep, SessionOptions::default());
    for radius_um in [1e5, 1e300] {
        let edit = Edit::Paint { brush: brush(radius_um), points: vec![[9.0, 9.0, 9.0]] };
        let error = session.apply(&edit).unwrap_err();
        assert!(error.to_string().contains("MAX_STROKE_PIECES"), "{error}");
    }
    assert_eq!(session.volume().label_count(), 0);
}

#[derive(Debug, Clone)]
enum Action {
    Edit(u64),
    Stroke(u64),
    Undo(usize),
    Redo(usize),
    Reopen,
    Compact,
    Save,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let act = prop_oneof![
        8 => any::<u64>().prop_map(Action::Edit),
        2 => any::<u64>().prop_map(Action::Stroke),
        3 => (1usize..4).prop_map(Action::Undo),
        2 => (1usize..4).prop_map(Action::Redo),
        1 => Just(Action::Reopen),
        1 => Just(Action::Compact),
        1 => Just(Action::Save),
    ];
    prop::collection::vec(act, 1..25)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn reopening_a_journal_restores_the_session(actions in actions(), small in any::<bool>()) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cells.journal");
        let mut options = SessionOptions::default();
        if small { options.undo_budget_bytes = 6000; }
        let mut bases = vec![base()];
        let mut session = reopen(base(), &path, &options);
        // The same session without a journal.
        let mut plain = Session::in_memory(base(), options.clone());
        for (n, act) in actions.iter().enumerate() {
            match act {
                Action::Edit(n) => {
                    let (a, b) = (try_edit(&mut session, *n), try_edit(&mut plain, *n));
                    prop_assert_eq!(a.map(|c| (c.bounds, c.voxels, c.new_labels)), b.map(|c| (c.bounds, c.voxels, c.new_labels)));
                }
                Action::Stroke(n) => {
                    if let Edit::Paint { brush, points } = edit(*n) {
                        session.begin_stroke(brush, points[0]).unwrap();
                        session.extend_stroke(points[1]).unwrap();
                        // Every action other than extending a stroke finishes it first.
                        session.end_stroke().unwrap();
                        plain.apply(&Edit::Paint { brush, points }).unwrap();
                    }
                }
                // Once reopened, the session may know steps that the other one has dropped: see below.
                Action::Undo(n) => for _ in 0..*n {
                    if plain.undo_names().next().is_some() {
                        let (a, b) = (session.undo().unwrap(), plain.undo().unwrap());
                        prop_assert_eq!(a.map(|c| (c.name, c.bounds, c.voxels)), b.map(|c| (c.name, c.bounds, c.voxels)));
                    }
                },
                Action::Redo(n) => for _ in 0..*n { prop_assert_eq!(session.redo().unwrap(), plain.redo().unwrap()); },
                Action::Reopen => {
                    drop(session);
                    let base = bases[n % bases.len()].clone();
                    session = reopen(base, &path, &options);
                }
                Action::Compact => session.compact().unwrap(),
                Action::Save => {
                    let saved = folder.path().join(format!("saved-{n}.tif"));
                    let ticket = session.begin_save().unwrap();
                    let done = ticket.save(&saved, &mut |_, _| ControlFlow::Continue(())).unwrap();
                    if n % 2 == 0 {
                        session.mark_saved(done).unwrap();
                        prop_assert!(!session.is_modified());
                    }
                    bases.push(LabelVolume::load(&saved, &LoadOptions::default()).unwrap());
                }
            }
            prop_assert!(fingerprint(&session) == fingerprint(&plain), "after {:?}", act);
        }
        // A reopened journal may have more steps than the session that wrote it, but never fewer: the session drops old
        // steps to make room for a new one. If that one was then undone and replaced, the old steps fit the memory again.
        drop(session);
        let mut session = reopen(base(), &path, &options);
        let (mut undo, redo) = names(&session);
        let known = names(&plain);
        prop_assert_eq!(&redo, &known.1);
        undo.truncate(known.0.len());
        prop_assert_eq!(undo, known.0);
        let (state, step_names) = (walk(&mut session), names(&session));
        drop(session);
        for base in bases {
            let mut again = reopen(base.clone(), &path, &options);
            prop_assert_eq!(names(&again), step_names.clone());
            prop_assert!(walk(&mut again) == state);
            // A session that does not know whether its labels differ from the loaded ones says that they are modified.
            let same = fingerprint(&again) == base.fingerprint();
            prop_assert!(same || again.is_modified());
        }
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300), magic in any::<bool>(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), cut in any::<prop::sample::Index>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.journal");
        let mut written = if magic { b"CYTOJRNL\x01\0\0\0".to_vec() } else { Vec::new() };
        written.extend(&bytes);
        std::fs::write(&path, &written).unwrap();
        let small = || LabelVolume::new([3, 9, 9], VoxelSize::default()).unwrap();
        if Session::open(small(), None, &path, SessionOptions::default()).is_err() {
            prop_assert!(std::fs::read(&path).unwrap() == written, "a refused journal is not changed");
        }
        // A valid journal with some bytes changed and its end cut off.
        let path = folder.path().join("b.journal");
        let (mut session, _) = Session::open(small(), None, &path, SessionOptions::default()).unwrap();
        for n in 0..6 { try_edit(&mut session, n); }
        session.undo().unwrap();
        if magic { session.compact().unwrap(); }
        drop(session);
        let mut bytes = std::fs::read(&path).unwrap();
        for (at, to) in flips { let i = at.index(bytes.len()); bytes[i] ^= to; }
        bytes.truncate(cut.index(2 * bytes.len()));
        std::fs::write(&path, &bytes).unwrap();
        match Session::open(small(), None, &path, SessionOptions::default()) {
            Err(_) => prop_assert!(std::fs::read(&path).unwrap() == bytes, "a refused journal is not changed"),
            Ok((mut session, _)) => { while session.undo().unwrap().is_some() {} }
        }
    }
}

#[test]
fn truncated_journals_keep_all_complete_records() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cells.journal");
    let (mut session, _) = open(&path);
    let mut states = vec![(session.journal_bytes(), fingerprint(&session), names(&session))];
    let mut note = |s: &Session| states.push((s.journal_bytes(), fingerprint(s), names(s)));
    for n in 0..9 {
        if try_edit(&mut session, n).is_some() {
            note(&session);
        }
        if n % 4 == 3 {
            session.undo().unwrap();
            note(&session);
            session.redo().unwrap();
            note(&session);
        }
    }
    drop(session);
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.len() as u64, states.last().unwrap().0);
    assert!(states.len() > 8, "most edits change something");
    let first = states[states.len() - 6].0 as usize;
    let copy = folder.path().join("copy.journal");
    for len in first..=bytes.len() {
        std::fs::write(&copy, &bytes[..len]).unwrap();
        let (session, replay) = open(&copy);
        let (end, state, names) = states.iter().rev().find(|s| s.0 <= len as u64).unwrap();
        assert!((fingerprint(&session), &common::names(&session)) == (*state, names), "cut at {len}");
        let torn = len as u64 - end;
        assert_eq!(replay.dropped.as_ref().map_or(0, |d| d.bytes), torn);
        assert!(replay.dropped.is_none_or(|d| d.kept_at.is_none()), "an incomplete write does not count as damage");
        drop(session);
        assert_eq!(std::fs::metadata(&copy).unwrap().len(), *end, "the incomplete end is removed");
    }
    // Zeros at the end, as some file systems leave them after a power failure.
    let mut zeros = bytes.clone();
    zeros.extend([0; 5000]);
    std::fs::write(&copy, &zeros).unwrap();
    let (session, replay) = open(&copy);
    assert!(fingerprint(&session) == states.last().unwrap().1);
    assert_eq!(replay.dropped.map(|d| (d.bytes, d.kept_at)), Some((5000, None)));
}

#[test]
fn the_damaged_end_of_a_journal_is_copied_to_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cells.journal");
    let (mut session, _) = open(&path);
    let mut ends = vec![session.journal_bytes()];
    let mut states = vec![fingerprint(&session)];
    for n in 0..6 {
        try_edit(&mut session, n);
        ends.push(session.journal_bytes());
        states.push(fingerprint(&session));
    }
    drop(session);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = ends.len() - 3;
    bytes[ends[at] as usize + 12] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let (session, replay) = open(&path);
    assert!(fingerprint(&session) == states[at]);
    let dropped = replay.dropped.unwrap();
    let kept = dropped.kept_at.unwrap();
    assert_eq!(kept.file_name().unwrap(), "cells.journal.damaged-1");
    assert!(std::fs::read(kept).unwrap() == bytes[ends[at] as usize..]);
    drop(session);
    // The dropped end is not reported again.
    assert_eq!(open(&path).1.dropped, None);
}

#[test]
fn records_after_an_impossible_length_are_copied_to_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cells.journal");
    let (mut session, _) = open(&path);
    let first = session.journal_bytes() as usize;
    session.apply(&Edit::Delete { label: 1, scope: Scope::Volume }).unwrap();
    session.apply(&Edit::Delete { label: 2, scope: Scope::Volume }).unwrap();
    drop(session);
    let whole = std::fs::read(&path).unwrap();
    // The highest bytes of the length of the first record: a length that no record has, and one that exceeds the file.
    for (byte, bit) in [(3, 0x80), (2, 0x40)] {
        let mut bytes = whole.clone();
        bytes[first + byte] ^= bit;
        std::fs::write(&path, &bytes).unwrap();
        let (session, replay) = open(&path);
        assert!(fingerprint(&session) == base().fingerprint());
        let kept = replay.dropped.and_then(|dropped| dropped.kept_at).unwrap();
        assert!(std::fs::read(kept).unwrap() == bytes[first..], "byte {byte}");
        drop(session);
    }
}

#[test]
fn journals_of_other_labels_and_other_files_are_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cells.journal");
    let (mut session, _) = open(&path);
    session.apply(&Edit::Delete { label: 1, scope: Scope::Volume }).unwrap();
    drop(session);
    let bytes = std::fs::read(&path).unwrap();
    let refused = |base: LabelVolume| Session::open(base, None, &path, SessionOptions::default()).unwrap_err();
    let smaller = LabelVolume::new([SHAPE[0], SHAPE[1], 65], VoxelSize::default()).unwrap();
    let error = refused(smaller).to_string();
    assert!(
        error.contains("[34, 70, 66]") && error.contains("[34, 70, 65]") && error.contains("was not changed"),
        "{error}"
    );
    let emptied = LabelVolume::new(SHAPE, VoxelSize::default()).unwrap();
    let error = refused(emptied);
    assert!(matches!(error, CorrectionError::OtherBase { .. }) && error.to_string().contains("cells.tif"), "{error}");
    assert!(std::fs::read(&path).unwrap() == bytes);
    let text = b"z,y,x\n1,2,3\nnot a journal at all, but a table of points\n".repeat(9);
    std::fs::write(&path, &text).unwrap();
    let error = refused(base());
    assert!(matches!(error, CorrectionError::BadJournal { .. }), "{error}");
    assert!(std::fs::read(&path).unwrap() == text);
    let mut later = bytes.clone();
    later[8] = 2;
    std::fs::write(&path, &later).unwrap();
    let error = refused(base()).to_string();
    assert!(error.contains("a later version of Cytoscope") && error.contains("was not changed"), "{error}");
    assert!(std::fs::read(&path).unwrap() == later);
    // A journal whose creation was interrupted contains nothing: it is created again.
    for len in [0, 7, 19, 60] {
        std::fs::write(&path, &bytes[..len]).unwrap();
        assert_eq!(open(&path).1.entries, 0);
    }
}

#[test]
fn a_journal_can_be_open_only_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cells.journal");
    let (mut session, _) = open(&path);
    let second = || Session::open(base(), None, &path, SessionOptions::default());
    assert!(matches!(second(), Err(CorrectionError::InUse { .. })));
    session.compact().unwrap();
    assert!(matches!(second(), Err(CorrectionError::InUse { .. })), "also after the file was replaced");
    drop(session);
    assert!(second().is_ok());
}

#[test]
fn saved_labels_and_the_journal_match_at_any_time() {
    let folder = tempfile::tempdir().unwrap();
    let (path, labels) = (folder.path().join("cells.journal"), folder.path().join("cells.tif"));
    base().labels().save(&labels).unwrap();
    let load = || LabelVolume::load(&labels, &LoadOptions::default()).unwrap();
    let original = load();
    let (mut session, _) = Session::open(load(), Some(&labels), &path, SessionOptions::default()).unwrap();
    assert!(!session.is_modified());
    (0..5).for_each(|n| drop(try_edit(&mut session, n)));
    assert!(session.is_modified());
    let ticket = session.begin_save().unwrap();
    // Editing continues while another thread saves to the file that was opened.
    (5..9).for_each(|n| drop(try_edit(&mut session, n)));
    let to = labels.clone();
    let saved = std::thread::spawn(move || ticket.save(&to, &mut |_, _| ControlFlow::Continue(()))).join().unwrap();
    let (state, step_names) = (fingerprint(&session), names(&session));
    // The program ends before the journal records that the labels were saved.
    drop(session);
    for base in [load(), original.clone()] {
        let session = reopen(base, &path, &SessionOptions::default());
        assert!(fingerprint(&session) == state && names(&session) == step_names && session.is_modified());
    }
    // The next session records the save. After undoing to the saved state, there is nothing to save.
    let mut session = reopen(load(), &path, &SessionOptions::default());
    session.mark_saved(saved.unwrap()).unwrap();
    let file = load().fingerprint();
    assert!(session.is_modified());
    while session.is_modified() {
        assert!(session.undo().unwrap().is_some());
    }
    assert!(fingerprint(&session) == file);
    session.undo().unwrap();
    session.compact().unwrap();
    let (state, step_names) = (fingerprint(&session), names(&session));
    drop(session);
    for base in [load(), original] {
        let session = reopen(base, &path, &SessionOptions::default());
        assert!(fingerprint(&session) == state && names(&session) == step_names && session.is_modified());
    }
}

#[test]
fn a_long_journal_is_compacted_and_keeps_labels_and_steps() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cells.journal");
    let options =
        SessionOptions { compact_above_bytes: 200_000, undo_budget_bytes: 10_000, ..SessionOptions::default() };
    let (mut session, _) = Session::open(base(), None, &path, options.clone()).unwrap();
    let mut n = 0;
    while !session.needs_compaction() {
        try_edit(&mut session, n);
        n += 1;
        assert!(n < 20_000);
    }
    let (state, step_names, long) = (fingerprint(&session), names(&session), session.journal_bytes());
    let ticket = session.begin_save().unwrap();
    let saved = ticket.save(&folder.path().join("saved.tif"), &mut |_, _| ControlFlow::Continue(())).unwrap();
    session.mark_saved(saved).unwrap();
    assert!(session.journal_bytes() < long / 2, "{} of {long}", session.journal_bytes());
    assert!(!session.needs_compaction() && !session.is_modified());
    assert!(fingerprint(&session) == state && names(&session) == step_names);
    drop(session);
    let session = reopen(base(), &path, &options);
    assert!(fingerprint(&session) == state && names(&session) == step_names);
    drop(session);
    let saved = LabelVolume::load(&folder.path().join("saved.tif"), &LoadOptions::default()).unwrap();
    let mut session = reopen(saved, &path, &options);
    assert!(fingerprint(&session) == state && !session.is_modified());
    walk(&mut session);
    // If the undo memory is too small for all steps of the journal, the oldest are dropped and reported.
    drop(session);
    let less = SessionOptions { undo_budget_bytes: 2_000, ..options };
    let (session, replay) = Session::open(base(), None, &path, less).unwrap();
    assert!(fingerprint(&session) == state && replay.dropped_steps > 0);
    assert!(session.undo_bytes() <= 2_000);
    let kept = names(&session).0;
    assert!(!kept.is_empty() && step_names.0.starts_with(&kept));
}

#[test]
fn every_edit_that_was_accepted_is_restored_close_to_the_limit_of_labels_in_chunks() {
    // The labels at the start need three pairs of label and chunk.
    for (max_label_pieces, undo_budget_bytes) in [(3, 0), (4, 6000), (6, 0)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cells.journal");
        let limits = Limits { max_label_pieces, ..Limits::default() };
        let options = SessionOptions { limits, undo_budget_bytes, ..SessionOptions::default() };
        let mut session = reopen(base(), &path, &options);
        let mut refused = 0;
        for n in 0..80 {
            if matches!(session.apply(&edit(n)), Err(CorrectionError::TooLarge { .. })) {
                refused += 1;
            }
            if n % 7 == 0 {
                session.undo().unwrap();
            }
            if n % 20 == 19 {
                let state = fingerprint(&session);
                drop(session);
                session = reopen(base(), &path, &options);
                assert!(fingerprint(&session) == state);
                session.compact().unwrap();
                drop(session);
                session = reopen(base(), &path, &options);
                assert!(fingerprint(&session) == state);
            }
        }
        assert!(refused > 0, "at most {max_label_pieces} pairs of label and chunk");
    }
}

#[test]
fn hundreds_of_steps_are_undone_exactly() {
    let mut session = Session::in_memory(base(), SessionOptions::default());
    let mut states = vec![session.volume().labels().to_dense()];
    let mut n = 0;
    while states.len() <= 250 {
        if let Some(change) = try_edit(&mut session, n) {
            assert!(change.undoable && change.dropped_steps == 0);
            states.push(session.volume().labels().to_dense());
        }
        n += 1;
    }
    assert_eq!(session.undo_names().count(), 250);
    for state in states.iter().rev().skip(1) {
        session.undo().unwrap().unwrap();
        assert!(session.volume().labels().to_dense() == *state);
    }
    assert_eq!(session.undo().unwrap(), None);
    for state in &states[1..] {
        session.redo().unwrap().unwrap();
        assert!(session.volume().labels().to_dense() == *state);
    }
    assert_eq!(session.redo().unwrap(), None);
}

#[test]
fn sessions_and_tickets_can_be_sent_between_threads() {
    fn send<T: Send>() {}
    send::<Session>();
    send::<cytoscope_corrections::SaveTicket>();
    send::<cytoscope_corrections::Saved>();
    fn shared<T: Send + Sync + Clone>() {}
    shared::<cytoscope_corrections::LabelSnapshot>();
}

#[test]
fn labels_of_another_program_are_moved_aside_and_own_ones_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("corrected.tif");
    let (mut session, _) =
        Session::open(base(), None, &folder.path().join("cells.journal"), SessionOptions::default()).unwrap();
    let save = |session: &mut Session| {
        let ticket = session.begin_save().unwrap();
        let saved = ticket.save(&to, &mut |_, _| ControlFlow::Continue(())).unwrap();
        let aside = saved.kept_aside().map(Path::to_owned);
        session.mark_saved(saved).unwrap();
        aside
    };
    assert_eq!(save(&mut session), None);
    (0..5).for_each(|n| drop(try_edit(&mut session, n)));
    assert_eq!(save(&mut session), None, "labels written by this session");
    std::fs::write(&to, "drawn in another program").unwrap();
    let aside = save(&mut session).expect("a file of another program is moved aside");
    assert_eq!(std::fs::read(aside).unwrap(), b"drawn in another program");
    assert_eq!(LabelVolume::load(&to, &LoadOptions::default()).unwrap().fingerprint(), session.volume().fingerprint());
}

#[cfg(target_os = "linux")]
#[test]
fn a_long_journal_that_cannot_be_compacted_is_opened() {
    use std::os::fd::AsRawFd as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cells.journal");
    let options =
        SessionOptions { compact_above_bytes: 30_000, undo_budget_bytes: 10_000, ..SessionOptions::default() };
    let (mut session, _) = Session::open(base(), None, &path, options.clone()).unwrap();
    let mut n = 0;
    while !session.needs_compaction() {
        try_edit(&mut session, n);
        n += 1;
        assert!(n < 20_000);
    }
    let (state, step_names, long) = (fingerprint(&session), names(&session), session.journal_bytes());
    drop(session);
    // An open file of a removed folder can be read and written, but not replaced, as on a full disk.
    let file = std::fs::File::open(&path).unwrap();
    drop(folder);
    let path = std::path::PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let mut session = reopen(base(), &path, &options);
    assert!(session.needs_compaction() && session.compact().is_err());
    assert!(fingerprint(&session) == state && names(&session) == step_names);
    assert_eq!(session.journal_bytes(), long);
    // Further edits are recorded.
    assert!((n..n + 1000).any(|n| try_edit(&mut session, n).is_some()));
    let state = fingerprint(&session);
    drop(session);
    assert!(fingerprint(&reopen(base(), &path, &options)) == state);
}
