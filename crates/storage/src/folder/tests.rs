//! Writing, replacing and removing folders with a marker.
#![allow(clippy::unwrap_used, reason = "a test")]
use super::*;
use crate::manifest::ManifestFile;
use cytoscope_testkit::file_names;

const KIND: &str = "package";

fn files(text: &str) -> Vec<(String, Vec<u8>)> {
    vec![("a.txt".to_owned(), text.as_bytes().to_vec()), ("b.txt".to_owned(), b"b".to_vec())]
}

fn expect_refusal<T: std::fmt::Debug>(result: Result<T, StorageError>) -> String {
    match result {
        Err(StorageError::NotReplaceable { problem, .. }) => problem,
        other => unreachable!("{other:?}"),
    }
}

#[test]
fn own_folders_are_replaced_and_foreign_ones_never_removed() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("pkg");
    assert_eq!(write_finished(&path, KIND, &files("1"), Overwrite::Refuse).unwrap(), Replaced::Nothing);
    assert_eq!(write_finished(&path, KIND, &files("2"), Overwrite::Refuse).unwrap(), Replaced::Ours);
    assert_eq!(std::fs::read(path.join("a.txt")).unwrap(), b"2");
    assert_eq!(file_names(&path), [MARKER, "a.txt", "b.txt"]);
    assert_eq!(file_names(temp.path()), ["pkg"]);

    let foreign = temp.path().join("data");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("thesis.tif"), "years of work").unwrap();
    assert!(expect_refusal(write_finished(&foreign, KIND, &files("1"), Overwrite::Refuse)).contains("thesis.tif"));
    expect_refusal(remove_finished(&foreign, KIND));
    expect_refusal(remove_working(&foreign, "training"));
    expect_refusal(create_working(&foreign, "training"));
    assert_eq!(file_names(&foreign), ["thesis.tif"]);
    // With `Replace` it is moved aside, not removed.
    let moved = write_finished(&foreign, KIND, &files("1"), Overwrite::Replace).unwrap();
    let aside = temp.path().join("data.before-1");
    assert_eq!(moved, Replaced::MovedTo(aside.clone()));
    assert_eq!(std::fs::read(aside.join("thesis.tif")).unwrap(), b"years of work");
    assert_eq!(file_names(temp.path()), ["data", "data.before-1", "pkg"]);
}

#[test]
fn own_folders_with_added_or_changed_files_are_not_removed() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("pkg");
    assert_eq!(write_finished(&path, KIND, &files("1"), Overwrite::Refuse).unwrap(), Replaced::Nothing);
    std::fs::write(path.join("notes.md"), "mine").unwrap();
    assert!(expect_refusal(write_finished(&path, KIND, &files("2"), Overwrite::Refuse)).contains("notes.md"));
    assert!(expect_refusal(remove_finished(&path, KIND)).contains("notes.md"));
    std::fs::remove_file(path.join("notes.md")).unwrap();
    std::fs::write(path.join("a.txt"), "edited").unwrap();
    assert!(expect_refusal(write_finished(&path, KIND, &files("2"), Overwrite::Refuse)).contains("a.txt"));
    assert_eq!(std::fs::read(path.join("a.txt")).unwrap(), b"edited");
    // A package is not a training folder, although it has a marker.
    expect_refusal(remove_working(&path, "training"));
    std::fs::write(path.join("a.txt"), "1").unwrap();
    remove_finished(&path, KIND).unwrap();
    assert!(file_names(temp.path()).is_empty());
}

#[test]
fn markers_cannot_name_files_outside_the_folder() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("pkg");
    std::fs::create_dir(&path).unwrap();
    std::fs::write(temp.path().join("victim"), "v").unwrap();
    let listed = [("../victim".to_owned(), b"v".to_vec())];
    std::fs::write(path.join(MARKER), Manifest::finished(KIND, &listed).to_bytes()).unwrap();
    let _ = remove_finished(&path, KIND);
    assert_eq!(std::fs::read(temp.path().join("victim")).unwrap(), b"v");
}

#[test]
fn working_folders_are_removed_and_links_to_them_are_not() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("m.training");
    create_working(&path, "training").unwrap();
    create_working(&path, "training").unwrap();
    std::fs::create_dir(path.join("sub")).unwrap();
    std::fs::write(path.join("sub/x"), "x").unwrap();
    expect_refusal(create_working(&path, "scratch"));
    expect_refusal(remove_working(&path, "scratch"));
    #[cfg(unix)]
    {
        let link = temp.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        expect_refusal(remove_working(&link, "training"));
        std::fs::remove_file(link).unwrap();
    }
    assert!(path.join("sub/x").exists());
    remove_working(&path, "training").unwrap();
    remove_working(&path, "training").unwrap();
    assert!(file_names(temp.path()).is_empty());
}

#[cfg(unix)]
#[test]
fn a_link_at_the_path_of_a_folder_is_moved_aside_and_its_target_stays() {
    let temp = tempfile::tempdir().unwrap();
    for (name, content) in [("empty", None), ("full", Some("thesis.tif"))] {
        let (target, link) = (temp.path().join(name), temp.path().join("link"));
        std::fs::create_dir(&target).unwrap();
        content.iter().for_each(|file| std::fs::write(target.join(file), "years of work").unwrap());
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(expect_refusal(write_finished(&link, KIND, &files("1"), Overwrite::Refuse)).contains("is a link"));
        let moved = write_finished(&link, KIND, &files("1"), Overwrite::Replace).unwrap();
        let aside = temp.path().join("link.before-1");
        assert_eq!(moved, Replaced::MovedTo(aside.clone()), "{name}");
        assert_eq!(std::fs::read_link(&aside).unwrap(), target);
        assert_eq!(file_names(&target), content.map(str::to_owned).into_iter().collect::<Vec<_>>());
        std::fs::remove_file(&aside).unwrap();
        remove_finished(&link, KIND).unwrap();
    }
}

#[test]
fn foreign_files_in_a_working_folder_stay_with_it() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("m.training");
    let is_own = |name: &str| name == "state.json" || name == "best";
    assert!(remove_own(&path, "training", &is_own).unwrap().is_empty(), "there is no folder");
    create_working(&path, "training").unwrap();
    let fill = || {
        std::fs::create_dir(path.join("best")).unwrap();
        std::fs::write(path.join("best/x"), "x").unwrap();
        std::fs::write(path.join("state.json"), "{}").unwrap();
        std::fs::write(path.join(format!(".state.json.0123456789ab{}", partial_suffix())), "half").unwrap();
    };
    fill();
    std::fs::create_dir(path.join("mine")).unwrap();
    std::fs::write(path.join("mine/notes.md"), "my own words").unwrap();
    clear_own(&path, "training", "state.json", &is_own).unwrap();
    assert_eq!(file_names(&path), [MARKER, "mine"]);
    fill();
    assert_eq!(remove_own(&path, "training", &is_own).unwrap(), ["mine"]);
    assert_eq!(std::fs::read(path.join("mine/notes.md")).unwrap(), b"my own words");
    expect_refusal(remove_own(&path, "scratch", &is_own));
    expect_refusal(clear_own(&path, "scratch", "state.json", &is_own));
    // The next run uses the folder, which is removed when nothing else is in it.
    create_working(&path, "training").unwrap();
    std::fs::remove_dir_all(path.join("mine")).unwrap();
    assert!(remove_own(&path, "training", &is_own).unwrap().is_empty());
    assert!(file_names(temp.path()).is_empty());
}

#[test]
fn an_interrupted_replacement_is_recovered() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("pkg");
    assert_eq!(write_finished(&path, KIND, &files("1"), Overwrite::Refuse).unwrap(), Replaced::Nothing);
    // State after a kill between the two renames: the old folder has a hidden name and `path` does not exist.
    let hidden = temp.path().join(format!(".pkg.abcdefabcdef{}{OLD_SUFFIX}", partial_suffix()));
    std::fs::rename(&path, &hidden).unwrap();
    recover(&path);
    assert_eq!(std::fs::read(path.join("a.txt")).unwrap(), b"1");
    // The old version of another folder is not restored.
    std::fs::rename(&path, &hidden).unwrap();
    recover(&temp.path().join("other"));
    assert!(hidden.exists());
}

#[test]
fn leftovers_of_killed_processes_are_swept() {
    let temp = tempfile::tempdir().unwrap();
    let left = temp.path().join(format!(".pkg.abcdefabcdef{}", partial_suffix()));
    let marker = {
        std::fs::create_dir(&left).unwrap();
        write_files(&left, KIND, &files("half")).unwrap()
    };
    crate::write::sweep(temp.path());
    assert!(left.exists(), "its process is still running");
    drop(marker);
    // This folder only has a similar name: it has no marker.
    let foreign = temp.path().join(format!(".mine.abcdefabcdef{}", partial_suffix()));
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("x"), "x").unwrap();
    crate::write::sweep(temp.path());
    assert!(!left.exists() && foreign.join("x").exists());
}

#[test]
fn a_path_that_does_not_end_in_a_name_is_refused_before_anything_is_written() {
    for path in [".", "..", "x/.."] {
        let refused = check_finished(Path::new(path), "kind", &[], Overwrite::Replace);
        assert!(matches!(refused, Err(StorageError::NotReplaceable { can_force: false, .. })), "{path}: {refused:?}");
    }
}

/// A name of a million folders would otherwise be a million names of half its length on average.
#[test]
fn markers_of_impossibly_deep_files_are_not_those_of_this_program() {
    let marker = |depth: usize| {
        let name = format!("{}a.txt", "a/".repeat(depth));
        let file = ManifestFile { name, bytes: 1, sha256: String::new() };
        Manifest::listing(KIND, vec![file]).to_bytes()
    };
    assert!(Manifest::from_bytes(&marker(10)).is_some());
    assert!(Manifest::from_bytes(&marker(1_000_000)).is_none());
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("pkg");
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join(MARKER), marker(1_000_000)).unwrap();
    assert!(expect_refusal(write_finished(&path, KIND, &files("1"), Overwrite::Refuse)).contains("did not make"));
}
