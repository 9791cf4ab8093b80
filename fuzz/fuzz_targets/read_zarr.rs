//! OME-Zarr: arbitrary metadata of the group and of the array, and an arbitrary chunk or shard, in a folder and, for all
//! versions and numbers of axes, in a zip. No panic, bounded memory and time.
#![no_main]
#[path = "shared/zip.rs"]
mod zip;

use cytoscope_formats::{FormatError, Image, Limits, OpenOptions, open, open_bytes};
use cytoscope_volume::Region;
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::OnceLock;
use zip::zip;

/// Limits of a fuzzing run, so that memory stays small.
const MAX_BYTES: u64 = 1 << 24;
/// Names of the axes, slowest first. An array of fewer axes has the last ones.
const AXES: [&str; 5] = ["t", "c", "z", "y", "x"];

/// Returns a folder for this process.
fn folder() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("cytoscope-fuzz-zarr-{}.zarr", std::process::id()));
        std::fs::create_dir_all(folder.join("0/c/0/0")).expect("a folder for the chunks");
        folder
    })
}

/// Returns the metadata of a group whose image is the array `0` of these metadata: a `zarr.json`, or a `.zattrs`.
fn group(array: &[u8], is_version_2: bool) -> Vec<u8> {
    let array: Option<Value> = serde_json::from_slice(array).ok();
    let rank = array.and_then(|array| Some(array.get("shape")?.as_array()?.len())).unwrap_or(3).min(AXES.len());
    let axes: Vec<Value> = AXES[AXES.len() - rank..].iter().map(|name| json!({"name": name})).collect();
    let datasets = json!([{"path": "0"}]);
    let metadata = if is_version_2 {
        json!({"multiscales": [{"version": "0.4", "axes": axes, "datasets": datasets}]})
    } else {
        json!({"zarr_format": 3, "node_type": "group", "attributes": {"ome": {"version": "0.5",
            "multiscales": [{"axes": axes, "datasets": datasets}]}}})
    };
    metadata.to_string().into_bytes()
}

/// Returns a zip in which the chunk is the first one of an array of any number of axes.
fn zipped(array: &[u8], group: &[u8], chunk: &[u8], is_version_2: bool) -> Vec<u8> {
    let [group_name, array_name] = if is_version_2 { [".zattrs", "0/.zarray"] } else { ["zarr.json", "0/zarr.json"] };
    let keys: Vec<String> = (1..=AXES.len())
        .flat_map(|rank| {
            let zeros = vec!["0"; rank];
            ["/", "."].map(|separator| match is_version_2 {
                true => format!("0/{}", zeros.join(separator)),
                false => format!("0/c{separator}{}", zeros.join(separator)),
            })
        })
        .collect();
    let chunks = keys.iter().map(|key| (key.as_str(), chunk));
    zip(&[(group_name, group), (array_name, array)].into_iter().chain(chunks).collect::<Vec<_>>())
}

/// Reads the corner of the first level.
fn read_corner(image: Result<Image, FormatError>) {
    let read = image.and_then(|image| {
        let size: Vec<usize> = image.meta().shape_full.iter().map(|n| (*n).min(8)).collect();
        image.read(0, &Region { start: vec![0; size.len()], size })
    });
    if let Err(error) = read {
        assert!(!error.to_string().chars().any(char::is_control));
    }
}

fuzz_target!(|data: &[u8]| {
    // Parts are separated by a zero byte: metadata of the array, optionally metadata of the group, and a chunk.
    let mut parts = data.splitn(3, |byte| *byte == 0);
    let array = parts.next().unwrap_or_default();
    let is_version_2 = array.windows(8).any(|text| text == b"\"chunks\"");
    let usual = || group(array, is_version_2);
    let (group, chunk) = match (parts.next(), parts.next()) {
        (Some(group), Some(chunk)) if !group.is_empty() => (group.to_vec(), chunk),
        (Some(_), Some(chunk)) => (usual(), chunk),
        (only, _) => (usual(), only.unwrap_or_default()),
    };
    let limits = Limits { max_chunk_bytes: MAX_BYTES, max_unstored_bytes: MAX_BYTES, ..Limits::default() };
    let options = OpenOptions { limits, ..OpenOptions::default() };
    read_corner(open_bytes(zipped(array, &group, chunk, is_version_2), &options));
    if is_version_2 {
        return;
    }
    for (name, bytes) in [("zarr.json", &group[..]), ("0/zarr.json", array), ("0/c/0/0/0", chunk)] {
        std::fs::write(folder().join(name), bytes).expect("writing the folder");
    }
    read_corner(open(folder(), &options));
});
