//! Failures of a session's thread, and where a session starts.
#![allow(clippy::unwrap_used, reason = "a test")]

use super::*;
use cytoscope_corrections::{BrushShape, DrawOver, Limits, Scope};

/// A thread's state without the thread, the requests that its writers send, and its events.
fn thread() -> (SessionThread, Receiver<SessionRequest>, Receiver<SessionEvent>) {
    let (requests_in, requests) = channel();
    let (events_out, events) = channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let thread = SessionThread { requests_in, events_out, wake: Arc::new(|| {}), waiting, writing: Vec::new() };
    (thread, requests, events)
}

#[test]
fn a_stroke_that_is_refused_when_labels_are_saved_or_closed_is_reported_and_the_others_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let labels = folder.path().join("labels.tif");
    // There is one chunk.
    let limits = Limits { max_label_pieces: 1, ..Limits::default() };
    let options = SessionOptions { limits, ..SessionOptions::default() };
    let volume = LabelVolume::new([2, 9, 9], VoxelSize::default()).unwrap();
    let mut session = Session::in_memory(volume, options);
    let brush = |value| Brush { shape: BrushShape::Ball, radius_um: 1.0, value, over: DrawOver::Any };
    session.apply(&Edit::Paint { brush: brush(1), points: vec![[0.0, 6.0, 6.0]] }).unwrap();
    let (mut thread, requests, events) = thread();
    for request in [SessionRequest::Save(labels.clone()), SessionRequest::Close] {
        session.begin_stroke(brush(2), [0.0, 1.0, 1.0]).unwrap();
        assert!(state(&session).modified, "a stroke in progress is unsaved");
        thread.handle(&mut session, request).unwrap();
        assert!(!session.has_open_stroke());
        let events: Vec<SessionEvent> = events.try_iter().collect();
        assert!(matches!(events.as_slice(), [SessionEvent::Failed(SessionTask::Stroke, _)]), "{events:?}");
    }
    let SessionRequest::Written(path, saved) = requests.recv().unwrap() else { unreachable!("the labels are written") };
    assert!(path == labels && saved.is_ok());
    let saved = LabelVolume::load(&labels, &LoadOptions::default()).unwrap();
    assert_eq!((saved.voxel_count(1), saved.voxel_count(2)), (session.volume().voxel_count(1), 0));
    // An edit is not applied after a stroke that was refused, because it may be meant for what the stroke has drawn.
    session.begin_stroke(brush(2), [0.0, 1.0, 1.0]).unwrap();
    assert!(matches!(thread.handle(&mut session, SessionRequest::Undo), Err((SessionTask::Stroke, _))));
    assert_eq!(session.undo_names().count(), 1);
}

#[cfg(unix)]
#[test]
fn labels_are_reported_as_saved_even_if_the_journal_cannot_record_it() {
    let folder = tempfile::tempdir().unwrap();
    let journal_folder = tempfile::tempdir().unwrap();
    let journal = journal_folder.path().join("cells.corrections");
    let options = SessionOptions { compact_above_bytes: 0, undo_budget_bytes: 0, ..SessionOptions::default() };
    let volume = LabelVolume::new([2, 9, 9], VoxelSize::default()).unwrap();
    let (mut session, _) = Session::open(volume, None, &journal, options).unwrap();
    let mut value = 1;
    while !session.needs_compaction() {
        let brush = Brush { shape: BrushShape::Ball, radius_um: 2.0, value, over: DrawOver::Any };
        session.apply(&Edit::Paint { brush, points: vec![[0.0, 4.0, 4.0]] }).unwrap();
        value += 1;
        assert!(value < 10_000);
    }
    // The open journal can be written, but it cannot be compacted.
    drop(journal_folder);
    let (mut thread, _requests, events) = thread();
    let labels = folder.path().join("labels.tif");
    let saved = session.begin_save().unwrap().save(&labels, &mut |_, _| ControlFlow::Continue(()));
    let (what, _) = thread.handle(&mut session, SessionRequest::Written(labels.clone(), saved)).unwrap_err();
    assert_eq!(what, SessionTask::RecordSave);
    let events: Vec<SessionEvent> = events.try_iter().collect();
    assert!(matches!(events.as_slice(), [SessionEvent::Saved(path)] if *path == labels), "{events:?}");
    assert!(!session.is_modified());
}

// Elsewhere, a file that is open cannot be removed.
#[cfg(unix)]
#[test]
fn edits_whose_journal_was_removed_are_kept_when_corrections_are_closed() {
    let folder = tempfile::tempdir().unwrap();
    let files = CorrectionFiles::of(folder.path(), "cells", None);
    let (shape_zyx, voxel_um) = ([2, 9, 9], VoxelSize::default());
    let start = SessionStart { bases: vec![Base::Empty], shape_zyx, voxel_um, time: None, files: files.clone() };
    let corrector = Corrector::open(start.clone(), None, Arc::new(|| {})).unwrap();
    let brush = Brush { shape: BrushShape::Ball, radius_um: 2.0, value: 1, over: DrawOver::Any };
    corrector.send(SessionRequest::Apply(Edit::Paint { brush, points: vec![[0.0, 4.0, 4.0]] }));
    while corrector.is_busy() {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::fs::remove_file(&files.journal).unwrap();
    drop(corrector);
    let (session, replay) = open(&start).unwrap();
    assert_eq!(replay.entries, 1);
    assert!(session.volume().voxel_count(1) > 0);
}

#[test]
fn corrections_continue_from_the_copy_of_their_labels_if_the_saved_ones_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let files = CorrectionFiles::of(folder.path(), "cells", None);
    let labels = folder.path().join("cells_labels.tif");
    let (shape_zyx, voxel_um) = ([1, 2, 3], VoxelSize::new_um(1.0, 1.0, 1.0));
    LabelVolume::from_dense(shape_zyx, voxel_um, &[0, 1, 1, 0, 2, 2]).unwrap().labels().save(&labels).unwrap();
    let bases = vec![Base::File(labels)];
    let start = SessionStart { bases, shape_zyx, voxel_um, time: None, files: files.clone() };
    let (mut session, _) = open(&start).unwrap();
    session.apply(&Edit::Delete { label: 1, scope: Scope::Volume }).unwrap();
    session.close().unwrap();
    std::fs::write(&files.labels, "another program was interrupted").unwrap();
    let only_saved = vec![Base::File(files.labels.clone())];
    assert!(open(&SessionStart { bases: only_saved.clone(), ..start.clone() }).is_err());
    let bases = only_saved.into_iter().chain([Base::File(files.base.clone()), Base::Empty]).collect();
    let (session, replay) = open(&SessionStart { bases, ..start }).unwrap();
    assert_eq!((replay.entries, session.volume().voxel_count(1), session.volume().voxel_count(2)), (1, 0, 2));
}
