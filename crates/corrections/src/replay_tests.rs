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
    for tail in
        [vec![0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0], encode_record(0, &[1, 1, 1, b'x', 0, 0xff, 0xff, 0xff, 0x7f, 1, 2])]
    {
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

#[test]
fn undos_and_redos_that_do_not_fit_the_labels_are_dropped_unless_they_cancel_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.journal");
    let edit = |id: u8, start: u8| vec![1, id, 1, b'x', 0, 1, 0, 1, 1, start, 4];
    // The labels after the first step are said to be those without any, so that it cannot be undone.
    let saving = Record::Saving { state: 1, fingerprint: base().fingerprint() }.body();
    let (undo, redo) = (vec![2], vec![3]);
    // Records after the saved labels, and how many of them are valid.
    for (records, valid) in [
        (vec![undo.clone(), redo.clone()], 2),
        (vec![undo.clone()], 0),
        (vec![edit(2, 40), undo.clone(), redo.clone(), undo.clone()], 4),
        (vec![edit(2, 40), undo.clone(), undo.clone(), edit(3, 80)], 1),
        (vec![undo.clone(), redo.clone(), redo.clone()], 2),
    ] {
        let bodies = [&[edit(1, 0), saving.clone()][..], &records[..]].concat();
        let bytes = write(&path, &header(false), &bodies);
        let (mut session, replay) = Session::open(base(), None, &path, SessionOptions::default()).unwrap();
        let kept = write(&folder.path().join("kept.journal"), &header(false), &bodies[..2 + valid]);
        assert_eq!(replay.entries, 1 + valid as u64, "{records:?}");
        assert_eq!(replay.dropped.map_or(0, |d| d.bytes), (bytes.len() - kept.len()) as u64, "{records:?}");
        // What remains is consistent with the labels.
        let second = records.starts_with(&[edit(2, 40)]);
        let has_second = second && session.undo_names().count() == 2;
        assert_eq!(session.volume().voxel_count(1), if has_second { 4 } else { 0 }, "{records:?}");
        if second && !has_second {
            assert!(session.redo().unwrap().is_some() && session.volume().voxel_count(1) == 4, "{records:?}");
        }
    }
}

#[test]
fn many_undos_and_redos_of_a_large_edit_take_no_longer_than_reading_them() {
    let shape_zyx = [128, 256, 256];
    let base = LabelVolume::new(shape_zyx, VoxelSize::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.journal");
    // Every other voxel of four chunks.
    let mut edit = vec![1, 1, 1, b'x'];
    for chunk in 0..4 {
        edit.extend([u8::from(chunk > 0), 1, 0, 1]);
        crate::diff::put(&mut edit, 65_536);
        (0..65_536).for_each(|_| edit.extend([1, 1]));
    }
    // Applying the edit as often would take minutes.
    let mut bodies = vec![edit];
    (0..150_000).for_each(|_| bodies.extend([vec![2], vec![3]]));
    bodies.push(vec![2]);
    write(&path, &Header { shape_zyx, bases: vec![base.fingerprint()], ..header(false) }, &bodies);
    let (mut session, replay) = Session::open(base, None, &path, SessionOptions::default()).unwrap();
    assert_eq!((replay.entries, replay.dropped), (300_002, None));
    assert_eq!(session.volume().voxel_count(1), 0);
    assert!(session.redo().unwrap().is_some());
    assert_eq!(session.volume().voxel_count(1), 4 * 65_536);
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
