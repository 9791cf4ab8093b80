//! A window killed while painting: every finished stroke is restored.

use crate::fixture::{Fixture, sees, window};
use crate::gestures::{
    SHAPE, command, digest, drag, press, release, screen_position, session_labels, start_correcting, stroke,
    wait_for_tools,
};
use cytoscope_ui::data::plane::Orientation;
use eframe::egui::Key;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// Environment variable with the home folder of the window that will be killed.
const HOME: &str = "CYTOSCOPE_TEST_KILLED_WINDOW";

/// Performs gesture number `n`: painting, erasing, another view, the ball brush.
fn perform_gesture(fixture: &mut Fixture, n: usize) {
    if n.is_multiple_of(4) {
        press(fixture, Key::N);
    }
    match n % 8 {
        3 => press(fixture, Key::E),
        4 => press(fixture, Key::D),
        5 | 7 => press(fixture, Key::Num3),
        _ => {}
    }
    let [z, y, _] = fixture.window.state().document().unwrap().cursor.map(|v| v as f64);
    let (row, column) = ((n * 37 % 140 + 10) as f64, (n * 53 % 100 + 10) as f64);
    let (view, from, to) = match n % 8 {
        2 => (Orientation::Xz, [z, y, column], [z - 3.0, y, column + 30.0]),
        _ => (Orientation::Xy, [z, row, column], [z, row, column + 30.0]),
    };
    let (from, to) = (screen_position(fixture, view, from), screen_position(fixture, view, to));
    // In many steps, as a hand moves.
    drag(fixture, from, to, 12);
    release(fixture, to);
    fixture.settle();
    if n % 6 == 5 {
        command(fixture, Key::Z);
    }
}

#[test]
#[ignore = "the process that `strokes_survive_a_killed_window` starts and kills"]
fn paint_until_killed() {
    let home = std::env::var_os(HOME).expect("the folder is named");
    let home = Path::new(&home);
    let folder = tempfile::tempdir().unwrap();
    let mut fixture = Fixture { window: window(home, vec![home.join("sample/nuclei_raw.tif")]), folder };
    fixture.settle();
    start_correcting(&mut fixture);
    let mut out = std::io::stdout();
    for n in 0.. {
        perform_gesture(&mut fixture, n);
        writeln!(out, "finished {n} {}", digest(&session_labels(&fixture))).unwrap();
        out.flush().unwrap();
    }
}

#[test]
fn strokes_survive_a_killed_window() {
    let nothing = digest(&vec![0; SHAPE.iter().product()]);
    for wait_for in [0, 4, 17] {
        let fixture = Fixture::new();
        let home = fixture.folder.path().to_owned();
        let Fixture { folder, window: other } = fixture;
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
        // Its output is read to the end, including lines written before the kill.
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let Ok(line) = line else { break };
            let Some((_, report)) = line.split_once("finished ") else { continue };
            let (n, labels) = report.trim().split_once(' ').unwrap();
            let n: usize = n.parse().unwrap();
            finished = Some((n, labels.parse::<u64>().unwrap()));
            if n >= wait_for && !killed {
                // SIGKILL: the process cannot clean up.
                child.kill().unwrap();
                killed = true;
            }
        }
        let status = child.wait().unwrap();
        assert!(killed && !status.success(), "the window was not killed while painting: {status}");
        let (n, expected) = finished.unwrap();
        assert_ne!(expected, nothing);
        let mut fixture = Fixture { window: window(&home, vec![home.join("sample/nuclei_raw.tif")]), folder };
        fixture.settle();
        fixture.click("Correct");
        fixture.click("Label this stack");
        fixture.until("the notification", |w| {
            sees(w, "1 earlier correction restored") || sees(w, "Earlier corrections restored")
        });
        wait_for_tools(&mut fixture);
        // The stroke in progress may be there as well, complete.
        let found = session_labels(&fixture);
        if digest(&found) != expected {
            command(&mut fixture, Key::Z);
            assert_eq!(
                digest(&session_labels(&fixture)),
                expected,
                "killed after stroke {n}; on screen: {}",
                fixture.on_screen()
            );
        }
        // Correcting continues from there.
        let found = session_labels(&fixture);
        stroke(&mut fixture, (5.0, 5.0), (5.0, 150.0));
        assert!(session_labels(&fixture) != found);
    }
}
