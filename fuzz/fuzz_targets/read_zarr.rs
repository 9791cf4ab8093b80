//! OME-Zarr folders: arbitrary metadata of the group and of the array, and an arbitrary chunk or shard. No panic, bounded
//! memory and time.
#![no_main]
use cytoscope_formats::{Limits, OpenOptions, open};
use cytoscope_volume::Region;
use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Limits of a fuzzing run, so that memory stays small.
const MAX_BYTES: u64 = 1 << 24;
/// Metadata of a group whose image is the array `0`.
const GROUP: &[u8] =
    br#"{"zarr_format": 3, "node_type": "group", "attributes": {"ome": {"version": "0.5", "multiscales": [
    {"axes": [{"name": "z"}, {"name": "y"}, {"name": "x"}], "datasets": [{"path": "0"}]}]}}}"#;

/// Returns a folder for this process.
fn folder() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("cytoscope-fuzz-zarr-{}.zarr", std::process::id()));
        std::fs::create_dir_all(folder.join("0/c/0/0")).expect("a folder for the chunks");
        folder
    })
}

fuzz_target!(|data: &[u8]| {
    // Parts are separated by a zero byte: metadata of the array, a chunk, and optionally metadata of the group.
    let mut parts = data.splitn(3, |byte| *byte == 0);
    let array = parts.next().unwrap_or_default();
    let (group, chunk) = match (parts.next(), parts.next()) {
        (Some(group), Some(chunk)) if !group.is_empty() => (group, chunk),
        (Some(_), Some(chunk)) => (GROUP, chunk),
        (only, _) => (GROUP, only.unwrap_or_default()),
    };
    for (name, bytes) in [("zarr.json", group), ("0/zarr.json", array), ("0/c/0/0/0", chunk)] {
        std::fs::write(folder().join(name), bytes).expect("writing the folder");
    }
    let limits = Limits { max_chunk_bytes: MAX_BYTES, max_unstored_bytes: MAX_BYTES, ..Limits::default() };
    let image = match open(folder(), &OpenOptions { limits, ..OpenOptions::default() }) {
        Ok(image) => image,
        Err(error) => {
            assert!(!error.to_string().chars().any(char::is_control));
            return;
        }
    };
    let size: Vec<usize> = image.meta().shape_full.iter().map(|n| (*n).min(8)).collect();
    let corner = Region { start: vec![0; size.len()], size };
    if let Err(error) = image.read(0, &corner) {
        assert!(!error.to_string().chars().any(char::is_control));
    }
});
