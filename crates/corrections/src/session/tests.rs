//! Edits that are refused, and what a session keeps of its labels then.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use super::*;
use crate::{BrushShape, DrawOver, Scope};
use cytoscope_volume::VoxelSize;

fn dab(value: u32, x: f64) -> Edit {
    let brush = Brush { shape: BrushShape::Ball, radius_um: 2.0, value, over: DrawOver::Any };
    Edit::Paint { brush, points: vec![[4.0, 4.0, x]] }
}

#[test]
fn edits_that_cannot_be_journaled_are_reverted() {
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
        assert!(s.volume().labels().to_dense() == state && s.volume().voxel_count(3) == 0);
        assert_eq!(s.undo_names().chain(s.redo_names()).collect::<Vec<_>>(), ["Paint 1", "Paint 2"]);
    };
    assert!(matches!(session.apply(&dab(3, 12.0)), Err(CorrectionError::Io { .. })));
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
    // A stroke in progress becomes a step when the session is dropped.
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
fn edits_that_a_replay_of_the_journal_would_refuse_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.journal");
    // Two chunks along X, of 5184 and 2106 voxels.
    let base = LabelVolume::new([9, 9, 90], VoxelSize::default()).unwrap();
    let [first, second] = [5184, 2106];
    // Both chunks fit with labels of 16 bits, and the second one with 32 bits while the first one is uniform.
    let max_stored_bytes = base.labels().stored_bytes() + 2 * (first + second);
    let limits = Limits { max_stored_bytes, ..Limits::default() };
    let options = SessionOptions { limits, ..SessionOptions::default() };
    let open = || Session::open(base.clone(), None, &path, options.clone()).unwrap().0;
    let mut session = open();
    session.apply(&dab(1, 10.0)).unwrap();
    session.apply(&dab(2, 80.0)).unwrap();
    let state = session.volume().labels().to_dense();
    let refused = |outcome: Result<Change, CorrectionError>| {
        let error = outcome.unwrap_err();
        assert!(matches!(error, CorrectionError::TooLarge { limit_name: "max_stored_bytes", .. }), "{error}");
        assert!(error.to_string().ends_with(CORRECT_A_CROP), "{error}");
    };
    refused(session.apply(&dab(70_000, 10.0)));
    let Edit::Paint { brush, points } = dab(70_000, 80.0) else { panic!("a dab is paint") };
    session.begin_stroke(brush, points[0]).unwrap();
    refused(session.end_stroke().map(Option::unwrap));
    assert!(session.volume().labels().to_dense() == state && session.volume().voxel_count(70_000) == 0);
    assert_eq!(session.undo_names().collect::<Vec<_>>(), ["Paint 2", "Paint 1"]);
    drop(session);
    let mut session = open();
    assert!(session.volume().labels().to_dense() == state);
    // The first chunk becomes uniform, which makes room. After an undo, the second one is stored with 16 bits again.
    session.apply(&Edit::Delete { label: 1, scope: Scope::Volume }).unwrap();
    session.apply(&dab(70_000, 80.0)).unwrap();
    refused(session.apply(&dab(1, 10.0)));
    session.undo().unwrap();
    session.undo().unwrap();
    assert!(session.volume().labels().to_dense() == state);
    drop(session);
    let mut session = open();
    assert_eq!(session.redo_names().collect::<Vec<_>>(), ["Delete 1", "Paint 70000"]);
    session.redo().unwrap();
    session.redo().unwrap();
    assert_eq!((session.volume().voxel_count(1), session.volume().voxel_count(70_000)), (0, 33));
}

#[test]
fn edits_that_put_labels_into_too_many_chunks_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.journal");
    // Two chunks along X.
    let base = LabelVolume::new([9, 9, 90], VoxelSize::default()).unwrap();
    let limits = Limits { max_label_pieces: 2, ..Limits::default() };
    // Without undo memory, a compacted journal begins with a snapshot of the newest labels.
    let options = SessionOptions { limits, undo_budget_bytes: 0, ..SessionOptions::default() };
    let open = || Session::open(base.clone(), None, &path, options.clone()).unwrap().0;
    let mut session = open();
    session.apply(&dab(1, 10.0)).unwrap();
    session.apply(&dab(2, 80.0)).unwrap();
    let state = session.volume().labels().to_dense();
    let refused = |outcome: Result<Change, CorrectionError>| {
        let error = outcome.unwrap_err();
        assert!(matches!(error, CorrectionError::TooLarge { limit_name: "max_label_pieces", .. }), "{error}");
        assert!(error.to_string().ends_with(CORRECT_A_CROP), "{error}");
    };
    refused(session.apply(&dab(3, 30.0)));
    let Edit::Paint { brush, points } = dab(3, 64.0) else { panic!("a dab is paint") };
    session.begin_stroke(brush, points[0]).unwrap();
    refused(session.end_stroke().map(Option::unwrap));
    assert!(session.volume().labels().to_dense() == state && session.volume().voxel_count(3) == 0);
    // A label that takes the place of another one is not refused, nor are voxels in a chunk that has the label.
    session.apply(&dab(3, 80.0)).unwrap();
    session.apply(&dab(1, 30.0)).unwrap();
    let state = session.volume().labels().to_dense();
    drop(session);
    let mut session = open();
    assert!(session.volume().labels().to_dense() == state);
    session.compact().unwrap();
    drop(session);
    assert!(open().volume().labels().to_dense() == state);
}

#[test]
fn a_journal_is_not_compacted_to_a_snapshot_that_a_replay_would_refuse() {
    let too_small =
        [Limits { max_stored_bytes: 1, ..Limits::default() }, Limits { max_label_pieces: 1, ..Limits::default() }];
    for limits in too_small {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.journal");
        let labels: Vec<u32> = (0..9 * 9 * 9).map(|i| i % 3).collect();
        let base = LabelVolume::from_dense([9; 3], VoxelSize::default(), &labels).unwrap();
        let options = SessionOptions { limits, ..SessionOptions::default() };
        let (mut session, _) = Session::open(base.clone(), None, &path, options.clone()).unwrap();
        // Within a chunk that is stored voxel by voxel and has the label, labels need no more memory.
        session.apply(&dab(1, 4.0)).unwrap();
        let error = session.compact().unwrap_err();
        assert!(matches!(error, CorrectionError::TooLarge { .. }), "{error}");
        let state = session.volume().labels().to_dense();
        drop(session);
        let (session, replay) = Session::open(base, None, &path, options).unwrap();
        assert_eq!((replay.entries, replay.dropped), (1, None));
        assert!(session.volume().labels().to_dense() == state);
    }
}

#[test]
fn a_journal_is_compacted_if_its_snapshot_fits_although_all_changed_chunks_together_would_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.journal");
    // Two chunks along X, of 5184 and 2106 voxels; only one of them fits with several labels.
    let base = LabelVolume::new([9, 9, 90], VoxelSize::default()).unwrap();
    let limits = Limits { max_stored_bytes: base.labels().stored_bytes() + 2 * 5184, ..Limits::default() };
    let options = SessionOptions { limits, ..SessionOptions::default() };
    let open = || Session::open(base.clone(), None, &path, options.clone()).unwrap().0;
    let mut session = open();
    session.apply(&dab(1, 10.0)).unwrap();
    session.apply(&Edit::Delete { label: 1, scope: Scope::Volume }).unwrap();
    session.apply(&dab(2, 80.0)).unwrap();
    let state = session.volume().labels().to_dense();
    session.compact().unwrap();
    drop(session);
    let mut session = open();
    assert!(session.volume().labels().to_dense() == state);
    assert_eq!(session.undo_names().collect::<Vec<_>>(), ["Paint 2", "Delete 1", "Paint 1"]);
    while session.undo().unwrap().is_some() {}
    assert!(session.volume().fingerprint() == base.fingerprint());
}

#[test]
fn a_journal_that_could_not_be_synced_is_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.journal");
    let base = LabelVolume::new([9, 9, 90], VoxelSize::default()).unwrap();
    let (mut session, _) = Session::open(base.clone(), None, &path, SessionOptions::default()).unwrap();
    session.apply(&dab(1, 10.0)).unwrap();
    assert!(!session.needs_compaction());
    lock(session.journal.as_ref().unwrap()).set_sync_failure();
    assert!(session.needs_compaction() && session.sync_failure().is_some());
    session.compact().unwrap();
    assert!(!session.needs_compaction() && session.sync_failure().is_none());
    let state = session.volume().labels().to_dense();
    drop(session);
    let (session, replay) = Session::open(base, None, &path, SessionOptions::default()).unwrap();
    assert_eq!(replay.dropped, None);
    assert!(session.volume().labels().to_dense() == state);
}

// Elsewhere, a file that is open cannot be removed.
#[cfg(unix)]
#[test]
fn a_journal_that_was_removed_is_reported_and_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.journal");
    let base = LabelVolume::new([9, 9, 90], VoxelSize::default()).unwrap();
    let (mut session, _) = Session::open(base.clone(), None, &path, SessionOptions::default()).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(session.sync_failure().is_none() && !session.needs_compaction(), "there are no edits to lose");
    session.apply(&dab(1, 10.0)).unwrap();
    assert!(session.sync_failure().is_some_and(|why| why.contains("removed")) && session.needs_compaction());
    session.compact().unwrap();
    assert!(session.sync_failure().is_none() && !session.needs_compaction());
    session.apply(&dab(2, 30.0)).unwrap();
    drop(session);
    let (session, replay) = Session::open(base, None, &path, SessionOptions::default()).unwrap();
    assert_eq!((replay.entries, replay.dropped), (2, None));
    assert_eq!(session.undo_names().collect::<Vec<_>>(), ["Paint 2", "Paint 1"]);
}

#[test]
fn a_stroke_goes_on_while_labels_are_reported_as_saved() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, labels) = (folder.path().join("a.journal"), folder.path().join("a.tif"));
    let base = LabelVolume::new([9, 9, 90], VoxelSize::default()).unwrap();
    let (mut session, _) = Session::open(base, None, &journal, SessionOptions::default()).unwrap();
    session.apply(&dab(1, 10.0)).unwrap();
    let ticket = session.begin_save().unwrap();
    let Edit::Paint { brush, points } = dab(2, 40.0) else { panic!("a dab is paint") };
    session.begin_stroke(brush, points[0]).unwrap();
    let saved = ticket.save(&labels, &mut |_, _| std::ops::ControlFlow::Continue(())).unwrap();
    session.mark_saved(saved).unwrap();
    assert!(session.has_open_stroke() && session.is_modified());
    session.extend_stroke([4.0, 4.0, 60.0]).unwrap().unwrap();
    session.end_stroke().unwrap().unwrap();
    assert_eq!((session.volume().get([4, 4, 40]), session.volume().get([4, 4, 60])), (Some(2), Some(2)));
    assert_eq!(session.undo_names().collect::<Vec<_>>(), ["Paint 2", "Paint 1"]);
    assert!(session.is_modified());
}

#[test]
fn labels_of_another_program_keep_their_name_if_saving_fails() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, labels) = (folder.path().join("a.journal"), folder.path().join("a.tif"));
    let base = LabelVolume::new([9, 9, 90], VoxelSize::default()).unwrap();
    let (mut session, _) = Session::open(base, None, &journal, SessionOptions::default()).unwrap();
    session.apply(&dab(1, 10.0)).unwrap();
    std::fs::write(&labels, "of another program").unwrap();
    lock(session.journal.as_ref().unwrap()).forbid_writing();
    let ticket = session.begin_save().unwrap();
    let saved = ticket.save(&labels, &mut |_, _| std::ops::ControlFlow::Continue(()));
    assert!(matches!(saved, Err(CorrectionError::Io { .. })), "{saved:?}");
    assert_eq!(std::fs::read_to_string(&labels).unwrap(), "of another program");
    let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn a_step_larger_than_the_undo_memory_is_reported() {
    let volume = LabelVolume::new([9, 9, 90], VoxelSize::default()).unwrap();
    let mut session = Session::in_memory(volume.clone(), SessionOptions::default());
    session.apply(&dab(1, 10.0)).unwrap();
    // Enough for a small brush stroke, but not for a large one.
    let undo_budget_bytes = session.undo_bytes() + 9;
    let options = SessionOptions { undo_budget_bytes, ..SessionOptions::default() };
    let mut session = Session::in_memory(volume, options);
    let change = session.apply(&dab(1, 10.0)).unwrap();
    assert!(change.undoable && change.dropped_steps == 0, "{change:?}");
    let brush = Brush { shape: BrushShape::Ball, radius_um: 4.0, value: 2, over: DrawOver::Any };
    let change = session.apply(&Edit::Paint { brush, points: vec![[4.0, 4.0, 50.0]] }).unwrap();
    assert!(!change.undoable && change.dropped_steps == 2, "{change:?}");
    assert_eq!(session.undo().unwrap(), None);
    assert!(session.is_modified() && session.volume().voxel_count(2) > 0);
}
