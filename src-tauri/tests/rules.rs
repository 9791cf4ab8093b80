//! Parsing of the files to open, and the restart policy.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use cytoscope_shell::{CrashCounter, OpenRequest, RestartDecision, WindowExit};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

#[test]
fn arguments_become_absolute_paths_and_options_do_not() {
    let arguments = ["my cells/α.tif", "--hidden", "/abs/ö.tif"].map(OsString::from);
    let opening = OpenRequest::from_arguments(arguments, Path::new("/home/ada"));
    assert_eq!(opening.open, [Path::new("/home/ada/my cells/α.tif"), Path::new("/abs/ö.tif")]);
    assert_eq!(serde_json::to_string(&opening).unwrap(), r#"{"open":["/home/ada/my cells/α.tif","/abs/ö.tif"]}"#);
}

#[cfg(unix)]
#[test]
fn names_that_are_not_utf8_are_listed_separately() {
    use std::os::unix::ffi::OsStringExt;
    let latin = OsString::from_vec(b"/data/caf\xe9.tif".to_vec());
    let opening = OpenRequest::from_paths([PathBuf::from("/a.tif"), PathBuf::from(latin)]);
    assert_eq!((opening.open, opening.not_text), (vec!["/a.tif".into()], vec!["/data/caf\u{fffd}.tif".to_owned()]));
}

#[test]
fn at_most_three_consecutive_restarts() {
    let crash = WindowExit::Crashed("signal 9".to_owned());
    let mut crashes = CrashCounter::default();
    let short = Duration::from_secs(2);
    let all: Vec<RestartDecision> = (0..4).map(|_| crashes.decide(&crash, short)).collect();
    let without = RestartDecision::Restart { with_files: false };
    assert_eq!(all, [RestartDecision::Restart { with_files: true }, without.clone(), without, RestartDecision::GiveUp]);
}

#[test]
fn a_stable_window_resets_the_crash_count() {
    let crash = WindowExit::Crashed("signal 11".to_owned());
    let mut crashes = CrashCounter::default();
    for _ in 0..20 {
        assert_eq!(crashes.decide(&crash, Duration::from_secs(61)), RestartDecision::Restart { with_files: true });
    }
    assert_eq!(crashes.decide(&WindowExit::Closed(0), Duration::from_secs(1)), RestartDecision::End(0));
}

#[cfg(unix)]
#[test]
fn signals_and_exit_codes_are_distinguished() {
    use std::os::unix::process::ExitStatusExt;
    let of = |raw: i32| WindowExit::from(ExitStatus::from_raw(raw));
    assert_eq!(of(9), WindowExit::Crashed("signal 9".to_owned()));
    assert_eq!(of(15), WindowExit::Closed(143));
    assert_eq!((of(0), of(1 << 8)), (WindowExit::Closed(0), WindowExit::Closed(1)));
    assert_eq!(of(101 << 8), WindowExit::Crashed("exit code 101".to_owned()));
}
