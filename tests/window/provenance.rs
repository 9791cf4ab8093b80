//! Provenance records: opened from a result or as files, and shown in the words of `cytoscope provenance`.

use crate::accessibility;
use crate::fixture::{Fixture, read_json, sees};
use crate::gestures::{choose_folder, drop_file, enter_path, small_sample_predicted};
use cytoscope_formats::{Container, WriteSpec, write_array};
use cytoscope_ui::command::Command;
use cytoscope_volume::Array;
use egui_kittest::kittest::Queryable;
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Runs the program on the command line, and returns what it prints.
fn run_command(arguments: &[&OsStr]) -> String {
    let ran = std::process::Command::new(env!("CARGO_BIN_EXE_cytoscope"))
        .args(arguments)
        .env_remove("CYTOSCOPE_SOFTWARE_GPU")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

/// The lines that `cytoscope provenance` prints about a result or record.
fn printed(result: &Path) -> Vec<String> {
    let text = run_command(&["provenance".as_ref(), result.as_os_str()]);
    text.lines().map(|line| line.trim().to_owned()).collect()
}

/// Drops the record of a conversion on the window, and waits until it is shown.
fn open_conversion(fixture: &mut Fixture, record: &Path) {
    drop_file(fixture, record.to_owned());
    fixture.until("the record", |w| sees(w, "convert, cytoscope "));
}

#[test]
fn the_record_of_a_prediction_is_shown_in_the_words_of_the_command() {
    let mut fixture = small_sample_predicted();
    let lines = printed(&fixture.path("sample/cytoscope/nuclei_raw_labels.tif"));
    for part in ["predict, cytoscope ", "threads: ", "read ", "model ", "device: ", "tile: ", "object diameter: "] {
        assert!(lines.iter().any(|line| line.starts_with(part)), "no {part:?} in {lines:?}");
    }
    assert!(lines.iter().any(|line| line.starts_with("tile: ") && line.ends_with(" voxels")), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains(['{', '"'])), "{lines:?}");
    fixture.click("How was this made? Labels");
    fixture.until("the record", |w| sees(w, "predict, cytoscope "));
    accessibility::check(&fixture, "record");
    // The last line names an option of the command.
    let (last, others) = lines.split_last().unwrap();
    assert!(last.starts_with("program, inputs and model are those of the record"), "{last}");
    assert!(fixture.sees("Program, inputs and model are those of the record."), "{}", fixture.on_screen());
    for line in others {
        assert!(fixture.sees(line), "no {line:?}: {}", fixture.on_screen());
    }
    fixture.click("Close");
    assert!(!fixture.sees("predict, cytoscope "), "{}", fixture.on_screen());
    // The stack itself has no record.
    assert!(fixture.window.query_by_label("How was this made? nuclei_raw.tif").is_none(), "{}", fixture.on_screen());
    // A changed input is noticed when the record is opened again, here as a file.
    let stack = fixture.path("sample/nuclei_raw.tif");
    std::fs::File::options().append(true).open(&stack).unwrap().write_all(b"more").unwrap();
    let record = fixture.path("sample/cytoscope/nuclei_raw_provenance.json");
    let changed = printed(&record);
    assert!(changed.iter().any(|line| line.ends_with(", changed or missing")), "{changed:?}");
    drop_file(&mut fixture, record);
    fixture.until("the change", |w| sees(w, "bytes when it was recorded and has"));
    for line in changed.iter().filter(|line| line.starts_with("read ")) {
        assert!(fixture.sees(line), "no {line:?}: {}", fixture.on_screen());
    }
}

#[test]
fn the_link_to_the_record_of_a_stack_does_not_widen_the_panel() {
    let mut fixture = Fixture::with_small_sample();
    fixture.click("Open the sample");
    fixture.settle();
    let left = |fixture: &Fixture| fixture.window.get_by_label_contains("XY view").rect().left();
    let before = left(&fixture);
    let converted = fixture.path("converted.npy");
    run_command(&["convert".as_ref(), fixture.path("sample/nuclei_raw.tif").as_os_str(), converted.as_os_str()]);
    drop_file(&mut fixture, converted);
    fixture.until("the link", |w| w.query_by_label("How was this made? converted.npy").is_some());
    fixture.settle();
    fixture.window.run_steps(20);
    assert!((left(&fixture) - before).abs() < 1.0, "{before} {}", left(&fixture));
}

#[test]
fn records_are_opened_in_the_dialog_and_dropped_on_any_page_and_bad_ones_say_why() {
    let mut fixture = Fixture::new();
    fixture.window.run_steps(3);
    fixture.window.state_mut().use_own_file_dialog();
    let converted = fixture.path("converted.npy");
    run_command(&["convert".as_ref(), fixture.path("sample/nuclei_raw.tif").as_os_str(), converted.as_os_str()]);
    let record = fixture.path("converted.npy_provenance.json");
    fixture.window.state_mut().send(Command::Open);
    enter_path(&mut fixture, &record);
    fixture.until("the record", |w| sees(w, "convert, cytoscope "));
    assert!(fixture.sees(&format!("wrote {}", converted.display())), "{}", fixture.on_screen());
    fixture.click("Close");
    // On the page for files to convert, a record is not one of them.
    fixture.window.state_mut().send(Command::Convert);
    fixture.until("the page", |w| sees(w, "Convert and evaluate"));
    let bad = fixture.path("bad_provenance.json");
    std::fs::write(&bad, "{\"made by\": \"another program\"}").unwrap();
    drop_file(&mut fixture, record);
    drop_file(&mut fixture, bad);
    fixture.until("the record", |w| sees(w, "convert, cytoscope "));
    fixture.until("the reason", |w| sees(w, "The provenance record cannot be opened"));
    assert!(fixture.sees("it lists no outputs"), "{}", fixture.on_screen());
    assert!(!fixture.sees("Remove converted.npy_provenance.json from the list"), "{}", fixture.on_screen());
    fixture.click("Close");
    // The record of an opened result is found beside it.
    drop_file(&mut fixture, converted.clone());
    fixture.until("the file", |w| sees(w, "Remove converted.npy from the list"));
    fixture.window.state_mut().open_paths(&[converted]);
    fixture.settle();
    fixture.click("How was this made? converted.npy");
    fixture.until("the record", |w| sees(w, "convert, cytoscope "));
}

#[test]
fn a_prediction_is_run_again_from_its_record_with_the_files_of_the_command_line() {
    let mut fixture = small_sample_predicted();
    fixture.click("How was this made? Labels");
    fixture.until("the record", |w| sees(w, "predict, cytoscope "));
    fixture.click_enabled("Run again");
    fixture.until("the comparison", |w| sees(w, "was made again: identical"));
    assert!(!fixture.sees("predict, cytoscope "), "the record is closed: {}", fixture.on_screen());
    let folder = fixture.path("sample/cytoscope");
    let record = folder.join("nuclei_raw_provenance.json");
    let by_command = fixture.path("by_command");
    run_command(&[
        "provenance".as_ref(),
        record.as_os_str(),
        "--rerun".as_ref(),
        "--out".as_ref(),
        by_command.as_os_str(),
    ]);
    let outputs = read_json(&record)["outputs"].as_array().unwrap().clone();
    assert!(outputs.len() >= 2, "{outputs:?}");
    for output in &outputs {
        let name = Path::new(output["path"].as_str().unwrap()).file_name().unwrap().to_owned();
        let bytes = |folder: &Path| std::fs::read(folder.join(&name)).unwrap();
        assert!(bytes(&folder.join("rerun")) == bytes(&by_command), "{name:?} differs from that of the command");
        assert!(bytes(&folder.join("rerun")) == bytes(&folder), "{name:?} differs from the recorded one");
    }
}

#[test]
fn a_recorded_job_is_run_again_in_a_chosen_folder_and_what_differs_is_said() {
    let mut fixture = Fixture::new();
    fixture.window.run_steps(3);
    fixture.window.state_mut().use_own_file_dialog();
    let [stack, converted, chosen] = ["stack.tif", "converted.npy", "chosen"].map(|name| fixture.path(name));
    let write = |gray: u16| {
        let array = Array::new("ZYX".parse().unwrap(), vec![2, 8, 8], vec![gray; 128]).unwrap();
        write_array(&stack, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
    };
    write(7);
    run_command(&["convert".as_ref(), stack.as_os_str(), converted.as_os_str()]);
    let record = fixture.path("converted.npy_provenance.json");
    std::fs::create_dir(&chosen).unwrap();
    open_conversion(&mut fixture, &record);
    choose_folder(&mut fixture, "Other folder…", &chosen);
    let writes_to = |folder: &Path| format!("\"Run again\" writes to {}", folder.display());
    assert!(fixture.sees(&writes_to(&chosen)), "{}", fixture.on_screen());
    fixture.click_enabled("Run again");
    fixture.until("the comparison", |w| sees(w, "converted.npy was made again: identical"));
    let bytes = |path: PathBuf| std::fs::read(path).unwrap();
    assert!(bytes(chosen.join("converted.npy")) == bytes(converted.clone()));
    // The stack has changed, and the default folder is a new one beside the record.
    std::fs::remove_file(&stack).unwrap();
    write(8);
    open_conversion(&mut fixture, &record);
    assert!(fixture.sees(&writes_to(&fixture.path("rerun"))), "{}", fixture.on_screen());
    fixture.click_enabled("Run again");
    fixture.until("the comparison", |w| sees(w, "converted.npy was made again: different"));
    assert!(fixture.sees("Differences from the recorded run"), "{}", fixture.on_screen());
    let expected = fixture.path("expected.npy");
    run_command(&["convert".as_ref(), stack.as_os_str(), expected.as_os_str()]);
    assert!(bytes(fixture.path("rerun/converted.npy")) == bytes(expected));
    // Without the stack, nothing is written.
    std::fs::remove_file(&stack).unwrap();
    open_conversion(&mut fixture, &record);
    assert!(fixture.sees(&writes_to(&fixture.path("rerun_2"))), "{}", fixture.on_screen());
    fixture.click_enabled("Run again");
    fixture.until("the failure", |w| sees(w, "Making converted.npy again failed"));
    assert!(!fixture.path("rerun_2").exists());
    // Results are never replaced.
    write(7);
    open_conversion(&mut fixture, &record);
    choose_folder(&mut fixture, "Other folder…", &chosen);
    fixture.click_enabled("Run again");
    fixture.until("the refusal", |w| sees(w, "already exists"));
    assert!(fixture.sees("Choose another name or folder."), "{}", fixture.on_screen());
}

#[test]
fn a_simulated_stack_is_not_run_again_in_the_window() {
    let mut fixture = Fixture::new();
    fixture.window.run_steps(3);
    let folder = fixture.path("simulated");
    let options = ["simulate", "--kind", "cells", "--shape", "8,40,40", "--seed", "7", "--out"].map(OsStr::new);
    run_command(&[options.as_slice(), &[folder.as_os_str()]].concat());
    drop_file(&mut fixture, folder.join("cells_7_raw.tif_provenance.json"));
    fixture.until("the record", |w| sees(w, "simulate, cytoscope "));
    assert!(fixture.sees("On the command line, cytoscope provenance --rerun"), "{}", fixture.on_screen());
    assert!(fixture.window.query_by_label("Run again").is_none(), "{}", fixture.on_screen());
}
