//! The log file and `--verbose`.

use crate::common::Fixture;

/// Text of all log files in the user's folder.
#[cfg(target_os = "linux")]
fn log_text(fixture: &Fixture) -> String {
    let files = std::fs::read_dir(fixture.user_folder().join("logs")).into_iter().flatten();
    files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap()).collect()
}

#[test]
#[cfg(target_os = "linux")]
fn commands_and_their_errors_are_logged_in_the_user_folder() {
    let fixture = Fixture::new();
    fixture.fails(3, &["info", "missing.tif"], &["missing.tif"]);
    let text = log_text(&fixture);
    assert!(text.contains("INFO") && text.contains("started") && text.contains("missing.tif"), "{text}");
    assert!(text.contains("ERROR"), "{text}");
}

#[test]
fn verbose_prints_the_log_on_stderr_before_and_after_the_command() {
    let fixture = Fixture::new();
    let stack = fixture.nuclei("8,32,32", 1);
    let quiet = fixture.run(&["info", &stack]).ok();
    assert!(!quiet.stderr.contains("INFO"), "{}", quiet.stderr);
    for arguments in [["--verbose", "info", &stack], ["info", "--verbose", &stack], ["info", &stack, "--verbose"]] {
        let verbose = fixture.run(&arguments).ok();
        assert!(verbose.stderr.contains("INFO"), "{arguments:?}: {}", verbose.stderr);
        assert_eq!(verbose.stdout, quiet.stdout, "{arguments:?}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_log_that_cannot_be_written_does_not_fail_a_command() {
    let fixture = Fixture::new();
    let stack = fixture.nuclei("8,32,32", 1);
    let logs = fixture.user_folder().join("logs");
    std::fs::remove_dir_all(&logs).unwrap();
    std::fs::write(&logs, "not a folder").unwrap();
    let ran = fixture.run(&["info", &stack]).ok();
    assert_eq!(ran.stderr, "");
    assert!(logs.is_file());
}

#[test]
#[cfg(target_os = "linux")]
fn only_the_newest_log_files_are_kept() {
    let fixture = Fixture::new();
    let stack = fixture.nuclei("8,32,32", 1);
    let logs = fixture.user_folder().join("logs");
    for day in 1..=9 {
        std::fs::write(logs.join(format!("cytoscope.2020-01-0{day}.log")), "").unwrap();
    }
    std::fs::write(logs.join("notes.txt"), "mine").unwrap();
    fixture.run(&["info", &stack]).ok();
    let count = std::fs::read_dir(&logs).unwrap().count();
    assert!(count <= 8, "seven log files and the user's own file are left, not {count}");
    assert!(logs.join("notes.txt").is_file());
}
