//! Checks that the window's thread does not wait for a disk: the files of `ui` that access one are listed, with the thread on
//! which they do.

use super::{root, sources, without_tests};
use std::collections::BTreeSet;

/// Thread of `DiskEffect`s, whose results come back as `DiskEvent`s.
const DISK: &str = "the thread of disk effects";
/// A thread of `opener`.
const OPENER: &str = "a thread of the opener";
/// A thread that the file itself, or its module, starts.
const OWN: &str = "a thread of its own";
/// The window's thread, which may read small files before its first frame.
const START: &str = "the window's thread at the start";

/// Files below `ui/src` that access a disk, and the threads on which they do.
const ACCESS: [(&str, &[&str]); 29] = [
    ("channels.rs", &[DISK]),
    ("correct/files.rs", &[DISK, OWN]),
    ("correct/session.rs", &[OWN]),
    ("disk.rs", &[DISK]),
    ("disk/found.rs", &[DISK]),
    ("disk/owner.rs", &[DISK]),
    ("disk/place.rs", &[DISK]),
    ("document.rs", &[OPENER]),
    ("document/overlay.rs", &[OPENER]),
    ("file_browser.rs", &[DISK]),
    ("file_dialog.rs", &[OPENER]),
    ("font_fallback.rs", &[OWN]),
    ("jobs/tuning.rs", &[DISK]),
    ("measure.rs", &[OPENER]),
    ("opener.rs", &[OPENER]),
    ("queue.rs", &[START, OWN]),
    ("rerun.rs", &[OWN]),
    ("results.rs", &[OPENER]),
    ("runs.rs", &[DISK]),
    ("settings.rs", &[START, DISK]),
    ("stored.rs", &[START]),
    ("training/full_precision.rs", &[OWN]),
    ("training/mod.rs", &[START]),
    ("training/models.rs", &[OWN]),
    ("training/plan.rs", &[START, OWN]),
    ("training/search.rs", &[DISK]),
    ("training/thumbs.rs", &[OWN]),
    ("training/validation_picture.rs", &[OWN]),
    // The content of a table, which `opener` asks for when it saves it.
    ("update.rs", &[OPENER]),
];

/// Words in calls that access a disk.
const CALLS: [&str; 18] = [
    "fs::",
    "File::open",
    "OpenOptions",
    ".exists()",
    ".is_file()",
    ".is_dir()",
    ".metadata()",
    ".symlink_metadata()",
    ".canonicalize()",
    ".read_dir()",
    "Path::exists",
    "Path::is_file",
    "Path::is_dir",
    "atomic_write",
    "read_json",
    "open_regular",
    "cytoscope_formats::open(",
    "Package::open",
];

/// Returns whether code outside of tests and comments accesses a disk.
fn accesses_disk(text: &str) -> bool {
    let mut code = without_tests(text).lines().filter(|line| !line.trim_start().starts_with("//"));
    code.any(|line| CALLS.iter().any(|call| line.contains(call)))
}

#[test]
fn the_window_accesses_disks_in_listed_files_only() {
    assert!(accesses_disk("fn a(p: &Path) -> bool { p.exists() }"));
    assert!(!accesses_disk("// p.exists()\nfn a() {}\n#[cfg(test)]\nmod tests { fs::read(\"a\") }"));
    let folder = root().join("ui/src");
    let mut files = Vec::new();
    sources(&folder, &mut files);
    let mut found = BTreeSet::new();
    for file in files {
        let name = file.strip_prefix(&folder).unwrap().to_string_lossy().replace('\\', "/");
        if !name.contains("tests") && accesses_disk(&std::fs::read_to_string(&file).unwrap()) {
            found.insert(name);
        }
    }
    let listed: BTreeSet<String> = ACCESS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let unlisted: Vec<&String> = found.difference(&listed).collect();
    let outdated: Vec<&String> = listed.difference(&found).collect();
    assert!(unlisted.is_empty(), "access disks off the window's thread (`DiskEffect`), and list it here: {unlisted:?}");
    assert!(outdated.is_empty(), "these files no longer access a disk: {outdated:?}");
    // What is drawn reads nothing: panels and views get the states only.
    let is_drawn = |name: &&String| name.starts_with("panels/") || name.starts_with("views/");
    assert_eq!(found.iter().find(is_drawn), None);
}
