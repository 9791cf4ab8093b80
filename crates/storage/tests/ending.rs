//! The end of a process that does not wait for its jobs. Afterwards, nothing is written any more, so this is a separate program.
#![allow(clippy::unwrap_used, reason = "a test")]

use cytoscope_storage::Overwrite;
use cytoscope_storage::partial_folder::{PartialFolder, remove_unfinished_folders};
use std::path::Path;
use std::sync::mpsc;

#[test]
fn unfinished_folders_are_removed_although_a_thread_writes_to_one() {
    let parent = tempfile::tempdir().unwrap();
    let published = PartialFolder::create(&parent.path().join("done.zarr")).unwrap();
    published.write(Path::new("0/c/0"), b"x").unwrap();
    assert_eq!(published.publish(Overwrite::Refuse).unwrap(), None);
    let unfinished = PartialFolder::create(&parent.path().join("a.zarr")).unwrap();
    let (sender, written) = mpsc::channel();
    std::thread::spawn(move || {
        for n in 0_u64.. {
            unfinished.write(Path::new(&format!("0/c/{n}")), b"x").unwrap();
            sender.send(n).unwrap();
        }
    });
    assert_eq!(written.iter().take(3).count(), 3, "it writes");
    remove_unfinished_folders();
    let left: Vec<_> = std::fs::read_dir(parent.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["done.zarr"]);
    assert!(parent.path().join("done.zarr/0/c/0").is_file());
}
