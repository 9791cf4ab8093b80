//! The window in the hands of the installed shell.

use crate::desk::Desk;
use std::io::{BufRead, BufReader, PipeWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// The shell's ends of the line.
struct Shell {
    input: PipeWriter,
    told: Receiver<String>,
}

fn connect(desk: &mut Desk) -> Shell {
    let (from_shell, input) = std::io::pipe().unwrap();
    let (output, to_shell) = std::io::pipe().unwrap();
    desk.window.state_mut().connect_shell(Box::new(from_shell), Box::new(to_shell)).unwrap();
    let (sender, told) = channel();
    std::thread::spawn(move || {
        BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line)).ok()
    });
    Shell { input, told }
}

impl Shell {
    fn says(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    fn hears(&self) -> String {
        self.told.recv_timeout(Duration::from_secs(60)).unwrap()
    }
}

fn quoted(path: &Path) -> String {
    serde_json::to_string(path).unwrap()
}

/// A desk with a stack whose name has spaces and letters from elsewhere.
fn desk() -> (Desk, std::path::PathBuf) {
    let desk = Desk::new();
    let path = desk.path("Zellkörper für Übung 細胞.tif");
    std::fs::copy(desk.path("sample/nuclei_raw.tif"), &path).unwrap();
    (desk, path)
}

#[test]
fn files_that_are_handed_over_open_and_are_told_back() {
    let (mut desk, path) = desk();
    let mut shell = connect(&mut desk);
    assert_eq!(shell.hears(), r#"{"ready":1}"#);
    desk.window.run_steps(2);
    assert_eq!(shell.hears(), r#"{"files":[]}"#);
    shell.says(&format!(r#"{{"open":[{}]}}"#, quoted(&path)));
    desk.settle();
    assert_eq!(desk.window.state().document().map(|d| d.path.clone()), Some(path.clone()));
    desk.window.run_steps(2);
    assert_eq!(shell.hears(), format!(r#"{{"files":[{}]}}"#, quoted(&path)));
    // Handed over again, it is not opened twice.
    shell.says(&format!(r#"{{"open":[{}]}}"#, quoted(&path)));
    shell.says(r#"{"open":[],"not_text":["caf\ufffd.tif"]}"#);
    desk.until("word of the name", |w| crate::desk::sees(w, "could not be handed over"));
    assert!(shell.told.try_recv().is_err(), "nothing has changed");
}

#[test]
fn a_window_that_takes_anothers_place_says_so() {
    let (mut desk, path) = desk();
    let mut shell = connect(&mut desk);
    shell.says(&format!(r#"{{"open":[{}],"recovered":"signal 9","left_closed":[]}}"#, quoted(&path)));
    desk.settle();
    assert!(desk.sees("Cytoscope has recovered"));
    shell.says(&format!(r#"{{"open":[],"recovered":"signal 9","left_closed":[{}]}}"#, quoted(&path)));
    desk.until("word of it", |w| crate::desk::sees(w, "Files were left closed"));
    shell.says("no JSON");
    desk.until("word of it", |w| crate::desk::sees(w, "The desktop could not hand over files"));
}

#[test]
fn a_window_whose_shell_has_gone_closes_without_asking() {
    let mut desk = crate::hand::begun();
    crate::hand::stroke(&mut desk, (40.0, 40.0), (40.0, 90.0));
    let shell = connect(&mut desk);
    desk.window.run_steps(3);
    let closes = |desk: &Desk| {
        let root = desk.window.output().viewport_output.get(&eframe::egui::ViewportId::ROOT);
        root.is_some_and(|v| v.commands.contains(&eframe::egui::ViewportCommand::Close))
    };
    assert!(!closes(&desk));
    drop(shell);
    for _ in 0..4000 {
        desk.window.step();
        if closes(&desk) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("the window stays open");
}
