//! The supervisor with a real child process: what it sends, when it restarts the window and what it leaves behind.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use cytoscope_shell::{OpenRequest, Supervisor, WindowCommand};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(60);

/// A shell script in place of the window: it appends its process id to `pids` and every received line to `received`.
struct Fixture {
    folder: tempfile::TempDir,
    supervisor: Supervisor,
    ended: Receiver<i32>,
}

impl Fixture {
    /// `then` is the shell command that the script runs at start.
    fn new(first: &[&str], then: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let script = format!(
            "cd '{}'; echo $$ >> pids; {then}; while IFS= read -r line; do printf '%s\\n' \"$line\" >> received; done; \
             echo closed >> received",
            folder.path().display()
        );
        let window = WindowCommand {
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into()],
            environment: vec![],
        };
        let (sender, ended) = channel();
        let supervisor = Supervisor::default();
        let opening = OpenRequest::from_paths(first.iter().map(PathBuf::from));
        supervisor.start(window, opening, move |code| sender.send(code).unwrap()).unwrap();
        Self { folder, supervisor, ended }
    }

    fn lines(&self, name: &str) -> Vec<String> {
        lines(&self.folder.path().join(name))
    }

    fn wait_for_lines(&self, what: &str, name: &str, count: usize) -> Vec<String> {
        let end = Instant::now() + TIMEOUT;
        loop {
            let lines = self.lines(name);
            if lines.len() >= count {
                return lines;
            }
            assert!(Instant::now() < end, "timed out waiting for {what}; lines so far: {lines:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn kill(&self, nth: usize, signal: &str) {
        let pid = self.wait_for_lines("the window", "pids", nth)[nth - 1].clone();
        let killed = std::process::Command::new("kill").args([&format!("-{signal}"), &pid]).status().unwrap();
        assert!(killed.success());
    }
}

fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn files_are_sent_and_later_ones_reach_the_same_window() {
    let fixture = Fixture::new(&["/my cells/α.tif"], ":");
    fixture.wait_for_lines("the first file", "received", 1);
    fixture.supervisor.open(&OpenRequest::from_paths(["/b.tif".into()]));
    fixture.supervisor.open(&OpenRequest::default());
    let received = fixture.wait_for_lines("the second file", "received", 3);
    assert_eq!(received, [r#"{"open":["/my cells/α.tif"]}"#, r#"{"open":["/b.tif"]}"#, r#"{"open":[]}"#]);
    assert_eq!(fixture.lines("pids").len(), 1);
}

#[test]
fn a_killed_window_is_restarted_with_its_files() {
    // The window reports another open file and prints a line that is not part of the protocol.
    let fixture =
        Fixture::new(&["/a.tif"], r#"echo '{"ready":1}'; echo noise; echo '{"files":["/a.tif","/c d.tif"]}'"#);
    fixture.wait_for_lines("the first file", "received", 1);
    // The report is already in the pipe, so it is read before the window ends.
    fixture.kill(1, "KILL");
    let received = fixture.wait_for_lines("the files again", "received", 2);
    assert_eq!(received[1], r#"{"open":["/a.tif","/c d.tif"],"recovered":"signal 9","left_closed":[]}"#);
    fixture.kill(2, "KILL");
    let received = fixture.wait_for_lines("a start without them", "received", 3);
    assert_eq!(received[2], r#"{"open":[],"recovered":"signal 9","left_closed":["/a.tif","/c d.tif"]}"#);
}

#[test]
fn a_file_sent_just_before_a_crash_is_sent_again() {
    let fixture = Fixture::new(&[], "echo '{\"files\":[]}'");
    fixture.wait_for_lines("the first line", "received", 1);
    fixture.supervisor.open(&OpenRequest::from_paths(["/late.tif".into()]));
    fixture.wait_for_lines("the file", "received", 2);
    fixture.kill(1, "SEGV");
    let received = fixture.wait_for_lines("the file again", "received", 3);
    assert_eq!(received[2], r#"{"open":["/late.tif"],"recovered":"signal 11","left_closed":[]}"#);
}

#[test]
fn an_immediately_crashing_window_is_restarted_three_times() {
    let fixture = Fixture::new(&["/a.tif"], "exit 101");
    assert_eq!(fixture.ended.recv_timeout(TIMEOUT), Ok(1));
    assert_eq!(fixture.lines("pids").len(), 4);
}

#[test]
fn closing_the_window_exits_with_its_code() {
    for (then, code) in [("exit 0", 0), ("exit 1", 1), ("kill -TERM $$", 143)] {
        let fixture = Fixture::new(&[], then);
        assert_eq!(fixture.ended.recv_timeout(TIMEOUT), Ok(code), "{then}");
        assert_eq!(fixture.lines("pids").len(), 1, "{then}");
    }
    let nothing = WindowCommand { program: "/no/such/window".into(), arguments: vec![], environment: vec![] };
    let (sender, ended) = channel();
    Supervisor::default().start(nothing, OpenRequest::default(), move |code| sender.send(code).unwrap()).unwrap();
    assert_eq!(ended.recv_timeout(TIMEOUT), Ok(1));
}

#[test]
fn a_window_that_stops_reading_causes_no_panic() {
    let fixture = Fixture::new(&[], "exec 0<&-; sleep 1; exit 7");
    fixture.wait_for_lines("the window", "pids", 1);
    for _ in 0..100 {
        fixture.supervisor.open(&OpenRequest::from_paths([PathBuf::from("/x".repeat(3000))]));
    }
    assert_eq!(fixture.ended.recv_timeout(TIMEOUT), Ok(7));
}
