//! Provenance records: opened from a result or as files, and shown in the words of `cytoscope provenance`.

use crate::accessibility;
use crate::fixture::{Fixture, sees};
use crate::gestures::{drop_file, enter_path, small_sample_predicted};
use cytoscope_ui::command::Command;
use egui_kittest::kittest::Queryable;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

/// The lines that `cytoscope provenance` prints about a result or record.
fn printed(result: &Path) -> Vec<String> {
    let ran = std::process::Command::new(env!("CARGO_BIN_EXE_cytoscope"))
        .arg("provenance")
        .arg(result)
        .env_remove("CYTOSCOPE_SOFTWARE_GPU")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap().lines().map(|line| line.trim().to_owned()).collect()
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
fn records_are_opened_in_the_dialog_and_dropped_on_any_page_and_bad_ones_say_why() {
    let mut fixture = Fixture::new();
    fixture.window.run_steps(3);
    fixture.window.state_mut().use_own_file_dialog();
    let converted = fixture.path("converted.npy");
    let ran = std::process::Command::new(env!("CARGO_BIN_EXE_cytoscope"))
        .arg("convert")
        .arg(fixture.path("sample/nuclei_raw.tif"))
        .arg(&converted)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
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
