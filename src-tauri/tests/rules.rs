//! What people open, and when a window that ended is started again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use cytoscope_shell::{Crashes, Ended, Next, Opening};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

#[test]
fn arguments_become_absolute_paths_and_options_do_not() {
    let arguments = ["my cells/α.tif", "--hidden", "/abs/ö.tif"].map(OsString::from);
    let opening = Opening::of_arguments(arguments, Path::new("/home/ada"));
    assert_eq!(opening.open, [Path::new("/home/ada/my cells/α.tif"), Path::new("/abs/ö.tif")]);
    assert_eq!(serde_json::to_string(&opening).unwrap(), r#"{"open":["/home/ada/my cells/α.tif","/abs/ö.tif"]}"#);
}

#[cfg(unix)]
#[test]
fn names_that_are_no_text_are_told_apart() {
    use std::os::unix::ffi::OsStringExt;
    let latin = OsString::from_vec(b"/data/caf\xe9.tif".to_vec());
    let opening = Opening::of_paths([PathBuf::from("/a.tif"), PathBuf::from(latin)]);
    assert_eq!((opening.open, opening.not_text), (vec!["/a.tif".into()], vec!["/data/caf\u{fffd}.tif".to_owned()]));
}

#[test]
fn three_restarts_in_a_row_and_no_more() {
    let crash = Ended::Crashed("signal 9".to_owned());
    let mut crashes = Crashes::default();
    let short = Duration::from_secs(2);
    let all: Vec<Next> = (0..4).map(|_| crashes.next(&crash, short)).collect();
    let without = Next::Restart { with_files: false };
    assert_eq!(all, [Next::Restart { with_files: true }, without.clone(), without, Next::GiveUp]);
}

#[test]
fn a_window_that_lived_begins_a_new_row() {
    let crash = Ended::Crashed("signal 11".to_owned());
    let mut crashes = Crashes::default();
    for _ in 0..20 {
        assert_eq!(crashes.next(&crash, Duration::from_secs(61)), Next::Restart { with_files: true });
    }
    assert_eq!(crashes.next(&Ended::Closed(0), Duration::from_secs(1)), Next::End(0));
}

#[cfg(unix)]
#[test]
fn signals_and_codes_are_told_apart() {
    use std::os::unix::process::ExitStatusExt;
    let of = |raw: i32| Ended::from(ExitStatus::from_raw(raw));
    assert_eq!(of(9), Ended::Crashed("signal 9".to_owned()));
    assert_eq!(of(15), Ended::Closed(143));
    assert_eq!((of(0), of(1 << 8)), (Ended::Closed(0), Ended::Closed(1)));
    assert_eq!(of(101 << 8), Ended::Crashed("exit code 101".to_owned()));
}
