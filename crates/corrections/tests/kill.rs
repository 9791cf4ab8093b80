//! A process is killed while it corrects labels: all finished strokes are restored afterwards.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod common;

use common::{base, edit, names, open};
use cytoscope_corrections::{Edit, Session, SessionOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

const JOURNAL: &str = "CYTOSCOPE_TEST_KILLED_JOURNAL";

/// The `n`-th stroke; every third one is undone immediately, and half of those are redone.
fn apply_stroke(session: &mut Session, n: u64) {
    let (brush, points) = (0u64..)
        .find_map(|k| match edit(n * 1000 + k) {
            Edit::Paint { brush, points } => Some((brush, points)),
            _ => None,
        })
        .unwrap();
    session.begin_stroke(brush, points[0]).unwrap();
    session.extend_stroke(points[1]).unwrap();
    session.end_stroke().unwrap();
    if n.is_multiple_of(3) {
        session.undo().unwrap();
    }
    if n.is_multiple_of(6) {
        session.redo().unwrap();
    }
}

#[test]
#[ignore = "the process that `finished_strokes_outlive_a_kill` starts and kills"]
fn correct_until_killed() {
    let journal = std::env::var_os(JOURNAL).expect("the journal is given in the environment");
    let (mut session, _) = open(Path::new(&journal));
    let mut out = std::io::stdout();
    for n in 0.. {
        apply_stroke(&mut session, n);
        writeln!(out, "finished {n}").unwrap();
        out.flush().unwrap();
    }
}

#[test]
fn finished_strokes_survive_a_kill() {
    for wait_for in [0u64, 7, 40, 41, 150] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cells.journal");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "correct_until_killed", "--nocapture", "--test-threads=1"])
            .env(JOURNAL, &path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut finished = None;
        let mut killed = false;
        // Its output before the kill is read to the end.
        for line in lines {
            let Ok(line) = line else { break };
            let Some((_, n)) = line.split_once("finished ") else { continue };
            let n: u64 = n.trim().parse().unwrap();
            finished = Some(n);
            if n >= wait_for && !killed {
                child.kill().unwrap();
                killed = true;
            }
        }
        let status = child.wait().unwrap();
        assert!(killed && !status.success(), "it was killed in the middle: {status}");
        let finished = finished.unwrap();
        let (session, replay) = open(&path);
        // The same session without the kill. A later stroke, which was not reported, may be present in part or whole.
        let mut plain = Session::in_memory(base(), SessionOptions::default());
        (0..=finished).for_each(|n| apply_stroke(&mut plain, n));
        let mut fits = same(&session, &plain);
        let next = finished + 1;
        let mut with_next = Session::in_memory(base(), SessionOptions::default());
        (0..=finished).for_each(|n| apply_stroke(&mut with_next, n));
        apply_stroke(&mut with_next, next);
        fits |= same(&session, &with_next);
        // The process may have been killed between a stroke and its undo or redo.
        if next.is_multiple_of(3) {
            if next.is_multiple_of(6) {
                with_next.undo().unwrap();
                fits |= same(&session, &with_next);
            }
            with_next.redo().unwrap();
            fits |= same(&session, &with_next);
        }
        assert!(fits, "killed after {finished}: {} entries", replay.entries);
    }
}

fn same(a: &Session, b: &Session) -> bool {
    a.volume().fingerprint() == b.volume().fingerprint() && names(a) == names(b)
}
