//! The end of a process that does not wait for its jobs, while files grow. It removes all unfinished files of the process, so this
//! is a separate program.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test")]

use cytoscope_storage::growing::GrowingFile;
use cytoscope_storage::write::remove_unfinished;
use std::io::Write;

#[test]
fn growing_files_are_removed_unless_a_record_says_what_is_valid() {
    let folder = tempfile::tempdir().unwrap();
    let (mut kept, mut writer) = GrowingFile::open(folder.path(), "kept", "a job").unwrap();
    writer.write_all(b"0123").unwrap();
    kept.keep(4, "four").unwrap();
    let (_new, mut writer) = GrowingFile::open(folder.path(), "new", "a job").unwrap();
    writer.write_all(b"0123").unwrap();
    remove_unfinished();
    let entries = std::fs::read_dir(folder.path()).unwrap();
    let mut left: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    assert_eq!(left, [".kept.cytoscope-growing", ".kept.cytoscope-growing.json"]);
}
