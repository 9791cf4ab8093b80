#![allow(clippy::unwrap_used, reason = "a test")]
use super::*;

const KIND: &str = "package";

fn files(text: &str) -> Vec<(String, Vec<u8>)> {
    vec![("a.txt".to_owned(), text.as_bytes().to_vec()), ("b.txt".to_owned(), b"b".to_vec())]
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn refused<T: std::fmt::Debug>(result: Result<T, StorageError>) -> String {
    match result {
        Err(StorageError::NotOurs { problem, .. }) => problem,
        other => unreachable!("{other:?}"),
    }
}

#[test]
fn a_folder_of_ours_is_replaced_and_a_foreign_one_never_removed() {
    let desk = tempfile::tempdir().unwrap();
    let path = desk.path().join("pkg");
    assert_eq!(write_finished(&path, KIND, &files("1"), Overwrite::Refuse).unwrap(), Replaced::Nothing);
    assert_eq!(write_finished(&path, KIND, &files("2"), Overwrite::Refuse).unwrap(), Replaced::Ours);
    assert_eq!(std::fs::read(path.join("a.txt")).unwrap(), b"2");
    assert_eq!(names(&path), [MARKER, "a.txt", "b.txt"]);
    assert_eq!(names(desk.path()), ["pkg"]);

    let foreign = desk.path().join("data");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("thesis.tif"), "years of work").unwrap();
    assert!(refused(write_finished(&foreign, KIND, &files("1"), Overwrite::Refuse)).contains("thesis.tif"));
    refused(remove_finished(&foreign, KIND));
    refused(remove_working(&foreign, "training"));
    refused(create_working(&foreign, "training"));
    assert_eq!(names(&foreign), ["thesis.tif"]);
    // Asked to, it is moved aside, not removed.
    let moved = write_finished(&foreign, KIND, &files("1"), Overwrite::Replace).unwrap();
    let aside = desk.path().join("data.before-1");
    assert_eq!(moved, Replaced::MovedTo(aside.clone()));
    assert_eq!(std::fs::read(aside.join("thesis.tif")).unwrap(), b"years of work");
    assert_eq!(names(desk.path()), ["data", "data.before-1", "pkg"]);
}

#[test]
fn what_was_added_to_or_changed_in_a_folder_of_ours_is_not_lost() {
    let desk = tempfile::tempdir().unwrap();
    let path = desk.path().join("pkg");
    write_finished(&path, KIND, &files("1"), Overwrite::Refuse).unwrap();
    std::fs::write(path.join("notes.md"), "mine").unwrap();
    assert!(refused(write_finished(&path, KIND, &files("2"), Overwrite::Refuse)).contains("notes.md"));
    assert!(refused(remove_finished(&path, KIND)).contains("notes.md"));
    std::fs::remove_file(path.join("notes.md")).unwrap();
    std::fs::write(path.join("a.txt"), "edited").unwrap();
    assert!(refused(write_finished(&path, KIND, &files("2"), Overwrite::Refuse)).contains("a.txt"));
    assert_eq!(std::fs::read(path.join("a.txt")).unwrap(), b"edited");
    // A package is not a training, whatever its marker.
    refused(remove_working(&path, "training"));
    std::fs::write(path.join("a.txt"), "1").unwrap();
    remove_finished(&path, KIND).unwrap();
    assert!(names(desk.path()).is_empty());
}

#[test]
fn a_marker_cannot_name_files_elsewhere() {
    let desk = tempfile::tempdir().unwrap();
    let path = desk.path().join("pkg");
    std::fs::create_dir(&path).unwrap();
    std::fs::write(desk.path().join("victim"), "v").unwrap();
    let listed = [("../victim".to_owned(), b"v".to_vec())];
    std::fs::write(path.join(MARKER), Manifest::finished(KIND, &listed).to_bytes()).unwrap();
    let _ = remove_finished(&path, KIND);
    assert_eq!(std::fs::read(desk.path().join("victim")).unwrap(), b"v");
}

#[test]
fn a_working_folder_is_removed_whole_and_a_link_to_one_is_not() {
    let desk = tempfile::tempdir().unwrap();
    let path = desk.path().join("m.training");
    create_working(&path, "training").unwrap();
    create_working(&path, "training").unwrap();
    std::fs::create_dir(path.join("sub")).unwrap();
    std::fs::write(path.join("sub/x"), "x").unwrap();
    refused(create_working(&path, "scratch"));
    refused(remove_working(&path, "scratch"));
    #[cfg(unix)]
    {
        let link = desk.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        refused(remove_working(&link, "training"));
        std::fs::remove_file(link).unwrap();
    }
    assert!(path.join("sub/x").exists());
    remove_working(&path, "training").unwrap();
    remove_working(&path, "training").unwrap();
    assert!(names(desk.path()).is_empty());
}

#[test]
fn a_replacement_killed_between_two_renames_is_recovered() {
    let desk = tempfile::tempdir().unwrap();
    let path = desk.path().join("pkg");
    write_finished(&path, KIND, &files("1"), Overwrite::Refuse).unwrap();
    // As after a kill: the old one has a hidden name, the new one still its own.
    let hidden = desk.path().join(format!(".pkg.abcdefabcdef{}{OLD}", partial_suffix()));
    std::fs::rename(&path, &hidden).unwrap();
    recover(&path);
    assert_eq!(std::fs::read(path.join("a.txt")).unwrap(), b"1");
    // Another folder's old one is not taken.
    std::fs::rename(&path, &hidden).unwrap();
    recover(&desk.path().join("other"));
    assert!(hidden.exists());
}

#[test]
fn what_killed_processes_left_is_swept() {
    let desk = tempfile::tempdir().unwrap();
    let left = desk.path().join(format!(".pkg.abcdefabcdef{}", partial_suffix()));
    let marker = {
        std::fs::create_dir(&left).unwrap();
        fill(&left, KIND, &files("half")).unwrap()
    };
    crate::write::sweep(desk.path());
    assert!(left.exists(), "its process lives");
    drop(marker);
    // One that only looks like it has no marker.
    let foreign = desk.path().join(format!(".mine.abcdefabcdef{}", partial_suffix()));
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("x"), "x").unwrap();
    crate::write::sweep(desk.path());
    assert!(!left.exists() && foreign.join("x").exists());
}
