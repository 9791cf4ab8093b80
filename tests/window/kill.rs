//! A window that is killed in the middle of painting: every stroke that was finished comes back.

use crate::desk::{Desk, window};
use crate::hand::{SHAPE, begin, command, digest, held, place, press, stroke};
use cytoscope_ui::data::plane::Orientation;
use eframe::egui::Key;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// Names the folder of the window that is to be killed.
const HOME: &str = "CYTOSCOPE_TEST_KILLED_WINDOW";

/// What each tool makes of the same gestures: paint, erase, another cut, a ball.
fn act(desk: &mut Desk, n: usize) {
    if n.is_multiple_of(4) {
        press(desk, Key::N);
    }
    match n % 8 {
        3 => press(desk, Key::E),
        4 => press(desk, Key::D),
        5 | 7 => press(desk, Key::Num3),
        _ => {}
    }
    let [z, y, _] = desk.window.state().document().unwrap().cursor.map(|v| v as f64);
    let (row, column) = ((n * 37 % 140 + 10) as f64, (n * 53 % 100 + 10) as f64);
    let (view, from, to) = match n % 8 {
        2 => (Orientation::Xz, [z, y, column], [z - 3.0, y, column + 30.0]),
        _ => (Orientation::Xy, [z, row, column], [z, row, column + 30.0]),
    };
    let (from, to) = (place(desk, view, from), place(desk, view, to));
    desk.window.hover_at(from);
    desk.window.step();
    desk.window.drag_at(from);
    // As a hand moves, in many steps.
    for i in 1..=12 {
        desk.window.step();
        desk.window.hover_at(from + (to - from) * (i as f32 / 12.0));
    }
    desk.window.step();
    desk.window.drop_at(to);
    desk.window.step();
    desk.settle();
    if n % 6 == 5 {
        command(desk, Key::Z);
    }
}

#[test]
#[ignore = "the process that `strokes_outlive_a_window_that_is_killed` starts and kills"]
fn paint_until_killed() {
    let home = std::env::var_os(HOME).expect("the folder is named");
    let home = Path::new(&home);
    let folder = tempfile::tempdir().unwrap();
    let mut desk = Desk { window: window(home, vec![home.join("sample/nuclei_raw.tif")]), folder };
    desk.settle();
    begin(&mut desk);
    let mut out = std::io::stdout();
    for n in 0.. {
        act(&mut desk, n);
        writeln!(out, "finished {n} {}", digest(&held(&desk))).unwrap();
        out.flush().unwrap();
    }
}

#[test]
fn strokes_outlive_a_window_that_is_killed() {
    let nothing = digest(&vec![0; SHAPE.iter().product()]);
    for wait_for in [0, 4, 17] {
        let desk = Desk::new();
        let home = desk.folder.path().to_owned();
        let Desk { folder, window: other } = desk;
        drop(other);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "kill::paint_until_killed", "--nocapture", "--test-threads=1"])
            .env(HOME, &home)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut finished = None;
        let mut killed = false;
        // What it told before it was killed is read to the end.
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let Ok(line) = line else { break };
            let Some((_, told)) = line.split_once("finished ") else { continue };
            let (n, labels) = told.trim().split_once(' ').unwrap();
            let n: usize = n.parse().unwrap();
            finished = Some((n, labels.parse::<u64>().unwrap()));
            if n >= wait_for && !killed {
                // SIGKILL: nothing can be put in order first.
                child.kill().unwrap();
                killed = true;
            }
        }
        let status = child.wait().unwrap();
        assert!(killed && !status.success(), "it was killed in the middle: {status}");
        let (n, told) = finished.unwrap();
        assert_ne!(told, nothing);
        let mut desk = Desk { window: window(&home, vec![home.join("sample/nuclei_raw.tif")]), folder };
        desk.settle();
        begin(&mut desk);
        assert!(desk.sees("earlier correction"), "{}", desk.on_screen());
        // The one that it was drawing may be there as well, whole.
        let found = held(&desk);
        if digest(&found) != told {
            command(&mut desk, Key::Z);
            assert_eq!(digest(&held(&desk)), told, "killed after stroke {n}; on screen: {}", desk.on_screen());
        }
        // It goes on from there.
        let found = held(&desk);
        stroke(&mut desk, (5.0, 5.0), (5.0, 150.0));
        assert!(held(&desk) != found);
    }
}
