//! Atomic writes, leftovers of killed processes, and files that appear meanwhile.
#![allow(clippy::unwrap_used, reason = "a test")]
use super::*;
use cytoscope_testkit::file_names;

#[test]
fn files_appear_atomically() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.bin");
    let mut file = PartialFile::create(&path).unwrap();
    file.out().unwrap().write_all(b"0123").unwrap();
    file.patch(1, b"x").unwrap();
    file.out().unwrap().write_all(b"4").unwrap();
    assert!(!path.exists());
    file.commit().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"0x234");
    let mut dropped = PartialFile::create(&path).unwrap();
    dropped.out().unwrap().write_all(b"other").unwrap();
    drop(dropped);
    drop(PartialFile::create(&path).unwrap().finish().unwrap());
    assert_eq!(std::fs::read(&path).unwrap(), b"0x234");
    assert_eq!(file_names(folder.path()), ["a.bin"]);
}

#[test]
fn leftovers_are_swept_and_files_being_written_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let leftover = folder.path().join(format!(".a.tif.0123456789ab{}", partial_suffix()));
    std::fs::write(&leftover, "half").unwrap();
    let other_machine = folder.path().join(format!(".a.tif.0123456789ab.another1{PARTIAL}"));
    std::fs::write(&other_machine, "half").unwrap();
    let foreign = folder.path().join(".a.tif.partial-17-0");
    std::fs::write(&foreign, "named so by someone").unwrap();
    let writing = PartialFile::create(&folder.path().join("b.tif")).unwrap();
    assert!(!leftover.exists(), "the first file written to the folder sweeps it");
    sweep(folder.path());
    assert_eq!(file_names(folder.path()).len(), 3, "{:?}", file_names(folder.path()));
    writing.commit().unwrap();
    assert!(foreign.exists() && other_machine.exists() && folder.path().join("b.tif").exists());
}

#[test]
fn a_file_that_could_not_be_flushed_is_never_published() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.bin");
    atomic_write(&path, b"old").unwrap();
    let mut finished = write_unpublished(&path, b"new").unwrap();
    finished.sync().unwrap();
    finished.syncing = Some(std::thread::spawn(|| Err(io::ErrorKind::StorageFull.into())));
    assert_eq!(finished.sync().unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert!(finished.publish_checked(Overwrite::Replace).is_err(), "the error is not forgotten");
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    assert_eq!(file_names(folder.path()), ["a.bin"]);
}

#[test]
fn only_large_files_are_flushed_in_a_thread() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.bin");
    let large = vec![7; usize::try_from(BACKGROUND_BYTES).unwrap()];
    let small = write_unpublished(&path, &large[1..]).unwrap();
    assert!(small.syncing.is_none(), "it is on disk already");
    small.publish().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), large[1..]);
    let finished = write_unpublished(&path, &large).unwrap();
    assert!(finished.syncing.is_some());
    finished.publish().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), large);
}

#[cfg(unix)]
#[test]
fn planted_links_are_not_written_through() {
    let folder = tempfile::tempdir().unwrap();
    let victim = folder.path().join("victim");
    std::fs::write(&victim, "mine").unwrap();
    // Links under the target's name or under names used by earlier versions are not followed.
    for n in 0..4 {
        let planted = folder.path().join(format!(".a.partial-{}-{n}", std::process::id()));
        std::os::unix::fs::symlink(&victim, planted).unwrap();
    }
    std::os::unix::fs::symlink(&victim, folder.path().join("a")).unwrap();
    atomic_write(&folder.path().join("a"), b"new").unwrap();
    assert_eq!(std::fs::read(&victim).unwrap(), b"mine");
    assert!(folder.path().join("a").symlink_metadata().unwrap().is_file(), "the link is replaced");
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(folder.path().join("a")).unwrap().permissions());
    std::fs::write(folder.path().join("plain"), "").unwrap();
    let plain = std::fs::metadata(folder.path().join("plain")).unwrap().permissions();
    assert_eq!(mode, std::os::unix::fs::PermissionsExt::mode(&plain), "the permissions of any new file");
}

#[test]
fn a_failed_write_leaves_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.json");
    atomic_write(&path, b"one").unwrap();
    let failed = atomic_write_with(&path, |out| {
        out.write_all(b"half")?;
        Err(io::ErrorKind::StorageFull.into())
    });
    assert!(matches!(failed, Err(StorageError::Io { source, .. }) if crate::is_exhausted(&source)));
    assert_eq!(std::fs::read(&path).unwrap(), b"one");
    assert_eq!(file_names(folder.path()), ["a.json"]);
}

#[test]
fn a_file_that_appears_while_another_is_written_is_moved_aside() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.stl");
    assert_eq!(write_checked(&path, b"new", Overwrite::Refuse).unwrap(), None);
    let written = write_unpublished(&path, b"newer").unwrap();
    std::fs::write(&path, "drawn meanwhile").unwrap();
    let aside = written.publish_checked(Overwrite::Refuse).unwrap().unwrap();
    assert_eq!(std::fs::read(&aside).unwrap(), b"drawn meanwhile");
    assert_eq!(std::fs::read(&path).unwrap(), b"newer");
    assert_eq!(write_checked(&path, b"newest", Overwrite::Replace).unwrap(), None);
    assert_eq!(std::fs::read(&path).unwrap(), b"newest");
    let aside = write_checked_with(&path, Overwrite::Refuse, |out| {
        std::fs::write(&path, "drawn again")?;
        out.write_all(b"last")
    });
    assert_eq!(std::fs::read(aside.unwrap().unwrap()).unwrap(), b"drawn again");
    assert_eq!(std::fs::read(&path).unwrap(), b"last");
    assert_eq!(file_names(folder.path()), ["a.stl", "a.stl.before-1", "a.stl.before-2"]);
}

#[test]
fn a_rename_to_a_new_name_never_replaces_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
    std::fs::write(&from, "one").unwrap();
    std::fs::write(&to, "two").unwrap();
    assert_eq!(rename_new(&from, &to).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read(&to).unwrap(), b"two");
    std::fs::remove_file(&to).unwrap();
    rename_new(&from, &to).unwrap();
    assert_eq!(file_names(folder.path()), ["to"]);
}

#[test]
fn errors_do_not_name_the_hidden_file() {
    let folder = tempfile::tempdir().unwrap();
    let error = atomic_write(&folder.path().join("nowhere/a.json"), b"x").unwrap_err().to_string();
    assert!(error.contains("a.json: creating the file failed") && !error.contains("partial"), "{error}");
}

#[test]
fn long_names_fit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ä".repeat(120));
    atomic_write(&path, b"x").unwrap();
    assert_eq!(std::fs::read(path).unwrap(), b"x");
}
