//! The supervisor with a real child process: what it hands over, what it starts again, and what it leaves behind.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use cytoscope_shell::{Opening, Supervisor, Window};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// A window that is a shell script: it writes its number into `pids` and what it is told into `told`.
struct Desk {
    folder: tempfile::TempDir,
    supervisor: Supervisor,
    ended: Receiver<i32>,
}

impl Desk {
    /// `then` is what the script does when it was started; each line it is told is in `$line`.
    fn new(first: &[&str], then: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let script = format!(
            "cd '{}'; echo $$ >> pids; {then}; while IFS= read -r line; do printf '%s\\n' \"$line\" >> told; done; echo closed >> told",
            folder.path().display()
        );
        let window =
            Window { program: "/bin/sh".into(), arguments: vec!["-c".into(), script.into()], environment: vec![] };
        let (sender, ended) = channel();
        let supervisor = Supervisor::default();
        let opening = Opening::of_paths(first.iter().map(PathBuf::from));
        supervisor.start(window, opening, move |code| sender.send(code).unwrap()).unwrap();
        Self { folder, supervisor, ended }
    }

    fn lines(&self, name: &str) -> Vec<String> {
        lines(&self.folder.path().join(name))
    }

    fn until(&self, what: &str, name: &str, count: usize) -> Vec<String> {
        let end = Instant::now() + PATIENCE;
        loop {
            let lines = self.lines(name);
            if lines.len() >= count {
                return lines;
            }
            assert!(Instant::now() < end, "{what} did not come; there is {lines:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn kill(&self, nth: usize, signal: &str) {
        let pid = self.until("the window", "pids", nth)[nth - 1].clone();
        let killed = std::process::Command::new("kill").args([&format!("-{signal}"), &pid]).status().unwrap();
        assert!(killed.success());
    }
}

fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn files_are_handed_over_and_later_ones_reach_the_same_window() {
    let desk = Desk::new(&["/my cells/α.tif"], ":");
    desk.until("the first file", "told", 1);
    desk.supervisor.open(&Opening::of_paths(["/b.tif".into()]));
    desk.supervisor.open(&Opening::default());
    let told = desk.until("the second file", "told", 3);
    assert_eq!(told, [r#"{"open":["/my cells/α.tif"]}"#, r#"{"open":["/b.tif"]}"#, r#"{"open":[]}"#]);
    assert_eq!(desk.lines("pids").len(), 1);
}

#[test]
fn a_killed_window_comes_back_with_its_files() {
    // The window tells that it opened another file since, and prints something that is no line of the protocol.
    let desk = Desk::new(&["/a.tif"], r#"echo '{"ready":1}'; echo noise; echo '{"files":["/a.tif","/c d.tif"]}'"#);
    desk.until("the first file", "told", 1);
    // The line about the files is read before the window ends: it is in the pipe.
    desk.kill(1, "KILL");
    let told = desk.until("the files again", "told", 2);
    assert_eq!(told[1], r#"{"open":["/a.tif","/c d.tif"],"recovered":"signal 9","left_closed":[]}"#);
    desk.kill(2, "KILL");
    let told = desk.until("a start without them", "told", 3);
    assert_eq!(told[2], r#"{"open":[],"recovered":"signal 9","left_closed":["/a.tif","/c d.tif"]}"#);
}

#[test]
fn a_file_handed_over_just_before_a_crash_is_handed_over_again() {
    let desk = Desk::new(&[], "echo '{\"files\":[]}'");
    desk.until("the first line", "told", 1);
    desk.supervisor.open(&Opening::of_paths(["/late.tif".into()]));
    desk.until("the file", "told", 2);
    desk.kill(1, "SEGV");
    let told = desk.until("the file again", "told", 3);
    assert_eq!(told[2], r#"{"open":["/late.tif"],"recovered":"signal 11","left_closed":[]}"#);
}

#[test]
fn a_window_that_crashes_at_once_is_given_up_after_three_restarts() {
    let desk = Desk::new(&["/a.tif"], "exit 101");
    assert_eq!(desk.ended.recv_timeout(PATIENCE), Ok(1));
    assert_eq!(desk.lines("pids").len(), 4);
}

#[test]
fn a_window_that_is_closed_ends_the_shell_with_its_code() {
    for (then, code) in [("exit 0", 0), ("exit 1", 1), ("kill -TERM $$", 143)] {
        let desk = Desk::new(&[], then);
        assert_eq!(desk.ended.recv_timeout(PATIENCE), Ok(code), "{then}");
        assert_eq!(desk.lines("pids").len(), 1, "{then}");
    }
    let nothing = Window { program: "/no/such/window".into(), arguments: vec![], environment: vec![] };
    let (sender, ended) = channel();
    Supervisor::default().start(nothing, Opening::default(), move |code| sender.send(code).unwrap()).unwrap();
    assert_eq!(ended.recv_timeout(PATIENCE), Ok(1));
}

#[test]
fn a_window_that_no_longer_reads_is_no_panic() {
    let desk = Desk::new(&[], "exec 0<&-; sleep 1; exit 7");
    desk.until("the window", "pids", 1);
    for _ in 0..100 {
        desk.supervisor.open(&Opening::of_paths([PathBuf::from("/x".repeat(3000))]));
    }
    assert_eq!(desk.ended.recv_timeout(PATIENCE), Ok(7));
}
