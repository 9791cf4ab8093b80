//! Journals of label corrections: whatever the header and the records contain, the journal is refused or replayed, and
//! undoing and redoing all steps gives the same labels again. No panic, bounded memory.
//!
//! The input is the JSON text of the header up to a zero byte (none: the header of a new journal), then records, each
//! as its length (16 bits) and its body. Lengths and checksums of the file are computed here.
#![no_main]
use cytoscope_corrections::{LabelVolume, Limits, Session, SessionOptions};
use cytoscope_volume::VoxelSize;
use libfuzzer_sys::fuzz_target;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const SHAPE_ZYX: [usize; 3] = [4, 8, 8];
/// Length of magic, version, header length and header checksum in bytes.
const FIXED_BYTES: usize = 20;

fn base() -> LabelVolume {
    let labels: Vec<u32> = (0..4 * 8 * 8).map(|i| u32::from(i % 8 < 3)).collect();
    LabelVolume::from_dense(SHAPE_ZYX, VoxelSize::new_um(2.0, 0.5, 0.5), &labels).expect("a volume")
}

fn options() -> SessionOptions {
    let limits = Limits { max_voxels: 1 << 20, max_stored_bytes: 64 << 20, max_label_pieces: 1 << 16 };
    SessionOptions { limits, ..SessionOptions::default() }
}

/// Returns the path of the journal and the header text of a new one.
fn new_journal() -> &'static (PathBuf, Vec<u8>) {
    static NEW: OnceLock<(PathBuf, Vec<u8>)> = OnceLock::new();
    NEW.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("cytoscope-fuzz-journal-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("labels.journal");
        drop(Session::open(base(), None, &path, options()).expect("a new journal"));
        let header = std::fs::read(&path).expect("the new journal").split_off(FIXED_BYTES);
        (path, header)
    })
}

/// Returns the bytes of a journal with this header text and these records.
fn journal(header: &[u8], mut records: &[u8]) -> Vec<u8> {
    let mut bytes = b"CYTOJRNL".to_vec();
    bytes.extend(1u32.to_le_bytes());
    bytes.extend((header.len() as u32).to_le_bytes());
    bytes.extend(crc32fast::hash(header).to_le_bytes());
    bytes.extend(header);
    let mut position = 0u64;
    while let Some((length, rest)) = records.split_first_chunk::<2>() {
        let (body, rest) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
        let mut sum = crc32fast::Hasher::new();
        sum.update(&position.to_le_bytes());
        sum.update(body);
        bytes.extend((body.len() as u32).to_le_bytes());
        bytes.extend(sum.finalize().to_le_bytes());
        bytes.extend(body);
        position += 1;
        records = rest;
    }
    bytes
}

fn replay(path: &Path) {
    let Ok((mut session, report)) = Session::open(base(), None, path, options()) else { return };
    // A damaged end is copied to a new file each time.
    if let Some(copy) = report.dropped.and_then(|dropped| dropped.kept_at) {
        std::fs::remove_file(copy).expect("removing the copy");
    }
    let state = session.volume().fingerprint();
    let mut steps = 0;
    // A step before the state of the labels is not checked when the journal is opened, and need not fit them.
    while session.undo().is_ok_and(|change| change.is_some()) {
        steps += 1;
    }
    for _ in 0..steps {
        assert!(session.redo().expect("redoing").is_some());
    }
    assert!(session.volume().fingerprint() == state, "undo and redo changed the labels");
}

fuzz_target!(|data: &[u8]| {
    let (path, header) = new_journal();
    let end = data.iter().position(|b| *b == 0).unwrap_or(data.len());
    let (given, rest) = data.split_at(end);
    let header = if given.is_empty() { header.as_slice() } else { given };
    std::fs::write(path, journal(header, rest.get(1..).unwrap_or_default())).expect("writing");
    replay(path);
});
