//! The window under the installed shell.

use crate::fixture::Fixture;
use cytoscope_ui::Workbench;
use egui_kittest::Harness;
use std::io::{BufRead, BufReader, PipeWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// The shell's ends of the connection.
struct Shell {
    input: PipeWriter,
    lines: Receiver<String>,
}

fn connect(fixture: &mut Fixture) -> Shell {
    let (from_shell, input) = std::io::pipe().unwrap();
    let (output, to_shell) = std::io::pipe().unwrap();
    fixture.window.state_mut().connect_shell(Box::new(from_shell), Box::new(to_shell)).unwrap();
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line)).ok()
    });
    Shell { input, lines }
}

impl Shell {
    fn send(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    fn receive(&self) -> String {
        self.lines.recv_timeout(Duration::from_secs(60)).unwrap()
    }
}

fn quoted(path: &Path) -> String {
    serde_json::to_string(path).unwrap()
}

/// A fixture with a stack whose name has spaces and non-Latin letters.
fn fixture() -> (Fixture, std::path::PathBuf) {
    let fixture = Fixture::new();
    let path = fixture.path("Zellkörper für Übung 細胞.tif");
    std::fs::copy(fixture.path("sample/nuclei_raw.tif"), &path).unwrap();
    (fixture, path)
}

#[test]
fn files_from_the_shell_open_and_are_reported_back() {
    let (mut fixture, path) = fixture();
    let mut shell = connect(&mut fixture);
    assert_eq!(shell.receive(), r#"{"ready":1}"#);
    fixture.window.run_steps(2);
    assert_eq!(shell.receive(), r#"{"files":[]}"#);
    shell.send(&format!(r#"{{"open":[{}]}}"#, quoted(&path)));
    fixture.settle();
    assert_eq!(fixture.window.state().document().map(|d| d.path.clone()), Some(path.clone()));
    fixture.window.run_steps(2);
    assert_eq!(shell.receive(), format!(r#"{{"files":[{}]}}"#, quoted(&path)));
    // A file that is already open is not opened twice.
    shell.send(&format!(r#"{{"open":[{}]}}"#, quoted(&path)));
    shell.send(r#"{"open":[],"not_text":["caf\ufffd.tif"]}"#);
    fixture.until("the notification about the name", |w| crate::fixture::sees(w, "A file could not be opened"));
    assert!(shell.lines.try_recv().is_err(), "nothing has changed");
}

#[test]
fn a_restarted_window_reports_the_recovery() {
    let (mut fixture, path) = fixture();
    let mut shell = connect(&mut fixture);
    shell.send(&format!(r#"{{"open":[{}],"recovered":"signal 9","left_closed":[]}}"#, quoted(&path)));
    // Before the stack is loaded: the notification disappears after some seconds.
    fixture.until("the notification", |w| crate::fixture::sees(w, "Cytoscope has recovered"));
    fixture.settle();
    shell.send(&format!(r#"{{"open":[],"recovered":"signal 9","left_closed":[{}]}}"#, quoted(&path)));
    fixture.until("the notification", |w| crate::fixture::sees(w, "Files were not reopened"));
    shell.send("no JSON");
    fixture.until("the notification", |w| crate::fixture::sees(w, "Files from the desktop could not be opened"));
}

#[test]
fn a_window_without_its_shell_closes_without_a_prompt() {
    let mut fixture = crate::gestures::correcting_sample();
    crate::gestures::stroke(&mut fixture, (40.0, 40.0), (40.0, 90.0));
    let shell = connect(&mut fixture);
    fixture.window.run_steps(3);
    let closes = |w: &Harness<'static, Workbench>| {
        let root = w.output().viewport_output.get(&eframe::egui::ViewportId::ROOT);
        root.is_some_and(|v| v.commands.contains(&eframe::egui::ViewportCommand::Close))
    };
    assert!(!closes(&fixture.window));
    drop(shell);
    fixture.until("the end of the window", closes);
}
