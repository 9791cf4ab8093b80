//! Converting files in the window, and preprocessed copies of stacks.

use crate::accessibility;
use crate::files::write_plate;
use crate::fixture::{Fixture, bundled_sample, sees};
use crate::gestures::{drop_file, enter_path, save_as_suggested};
use crate::queue::open_copies;
use cytoscope_formats::{Container, OpenOptions, WriteSpec, write_array};
use cytoscope_ui::command::Command;
use cytoscope_ui::document::Role;
use cytoscope_volume::{Array, Samples};
use eframe::egui::Key;
use eframe::egui::accesskit::Toggled;
use egui_kittest::kittest::{NodeT, Queryable};
use std::ffi::OsStr;
use std::process::Stdio;

/// Converts files on the command line.
fn convert_on_command_line(arguments: &[&OsStr]) {
    let ran = std::process::Command::new(env!("CARGO_BIN_EXE_cytoscope"))
        .arg("convert")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

/// Shows the page for converting files, and adds a file or folder to it.
fn convert_page_with(fixture: &mut Fixture, path: &std::path::Path) {
    fixture.window.run_steps(3);
    fixture.window.state_mut().send(Command::Convert);
    fixture.until("the page", |w| sees(w, "Convert and evaluate"));
    drop_file(fixture, path.to_owned());
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    fixture.until("the file", |w| sees(w, &format!("Remove {name} from the list")));
}

#[test]
fn open_stacks_are_converted_beside_their_files() {
    let mut fixture = Fixture::new();
    fixture.window.run_steps(3);
    fixture.click("Open the sample");
    fixture.settle();
    fixture.window.state_mut().send(Command::Convert);
    fixture.until("the page", |w| sees(w, "Convert and evaluate"));
    accessibility::check(&fixture, "converting");
    fixture.click("NumPy");
    fixture.click_enabled("Convert");
    fixture.until("the file", |w| sees(w, "1 file converted"));
    let written = cytoscope_formats::open(&fixture.path("sample/nuclei_raw.npy"), &Default::default()).unwrap();
    assert_eq!(written.meta().shape, [32, 160, 160]);
    // A dropped file is added to those to convert; an opened stack is shown.
    let dropped = fixture.path("dropped.npy");
    std::fs::copy(fixture.path("sample/nuclei_raw.npy"), &dropped).unwrap();
    drop_file(&mut fixture, dropped);
    fixture.until("the dropped file", |w| w.query_by_label("Remove dropped.npy from the list").is_some());
    fixture.click("Remove dropped.npy from the list");
    fixture.window.state_mut().send(Command::OpenSample);
    fixture.until("the stack", |w| !sees(w, "Convert and evaluate"));
    fixture.window.state_mut().send(Command::Convert);
    fixture.until("the page", |w| sees(w, "Convert and evaluate"));
    // An existing file is kept.
    fixture.click_enabled("Convert");
    fixture.until("the refusal", |w| sees(w, "Converting nuclei_raw.tif failed"));
    // It is outdated once the same file was converted.
    fixture.click("Replace existing files");
    fixture.click_enabled("Convert");
    fixture.until("the success", |w| sees(w, "1 file converted") && !sees(w, "Converting nuclei_raw.tif failed"));
}

#[test]
fn a_file_that_would_be_converted_to_itself_is_marked() {
    let mut fixture = Fixture::with(|folder| {
        let file = folder.join("a.ome.tif");
        std::fs::copy(bundled_sample(), &file).unwrap();
        vec![file]
    });
    fixture.settle();
    let mark = "Already has the name that the converted file would get";
    fixture.window.state_mut().send(Command::Convert);
    fixture.until("the mark", |w| sees(w, mark));
    fixture.click("NumPy");
    fixture.until("the name of the new file", |w| sees(w, "a.npy") && !sees(w, mark));
}

#[test]
fn one_channel_and_the_shown_labels_of_an_open_stack_are_converted() {
    let labels: Vec<u16> = (0..3 * 8 * 9).map(|i| i / 50).collect();
    let channels: Vec<u16> = (0..2 * 3 * 8 * 9).collect();
    let mut fixture = Fixture::with(|folder| {
        let write = |name: &str, axes: &str, shape: &[usize], values: &[u16]| {
            let array = Array::new(axes.parse().unwrap(), shape.to_vec(), values.to_vec()).unwrap();
            write_array(&folder.join(name), &array, &WriteSpec::of(&array, Container::OmeTiff)).unwrap();
            folder.join(name)
        };
        write("drawn.ome.tif", "ZYX", &[3, 8, 9], &labels);
        vec![write("two.ome.tif", "CZYX", &[2, 3, 8, 9], &channels)]
    });
    fixture.settle();
    fixture.window.state_mut().use_own_file_dialog();
    fixture.window.state_mut().send(Command::OpenLabels);
    let drawn = fixture.path("drawn.ome.tif");
    enter_path(&mut fixture, &drawn);
    fixture.until("the labels", |w| w.state().document().is_some_and(|d| d.overlay_with_role(Role::Labels).is_some()));
    fixture.window.state_mut().send(Command::Convert);
    fixture.until("the page", |w| sees(w, "Convert and evaluate"));
    fixture.click("OME-Zarr");
    fixture.click("With labels of open stacks");
    fixture.click("One channel");
    fixture.type_into("One channel number", "1");
    fixture.window.key_press(Key::Enter);
    fixture.window.run_steps(3);
    accessibility::check(&fixture, "parts to convert");
    fixture.click_enabled("Convert");
    fixture.until("the file", |w| sees(w, "1 file converted"));
    let read = |series| {
        let options = OpenOptions { series, ..OpenOptions::default() };
        let image = cytoscope_formats::open(&fixture.path("two_c1.zarr"), &options).unwrap();
        image.read_all().unwrap().into_samples()
    };
    assert_eq!(read(0), Samples::U16(channels[3 * 8 * 9..].to_vec()));
    assert_eq!(read(1), Samples::U16(labels));
}

#[test]
fn all_series_of_a_file_are_converted_as_on_the_command_line() {
    let mut fixture = Fixture::new();
    let plate = write_plate(&fixture.path("plate.zarr"), [4, 6], [16, 24], |z, at| (z * 1000 + at) as u16);
    convert_page_with(&mut fixture, &plate);
    fixture.click("NumPy");
    fixture.click("All series");
    fixture.click_enabled("Convert");
    fixture.until("the files", |w| sees(w, "2 files converted"));
    let expected = fixture.path("expected");
    std::fs::create_dir(&expected).unwrap();
    let out = expected.join("plate.npy");
    convert_on_command_line(&[plate.as_os_str(), out.as_os_str(), "--series".as_ref(), "all".as_ref()]);
    for name in ["plate.npy", "plate_s1.npy"] {
        let bytes = |path: std::path::PathBuf| std::fs::read(path).unwrap();
        assert!(bytes(fixture.path(name)) == bytes(expected.join(name)), "{name} differs");
    }
    // If the file of one series exists, none is converted.
    std::fs::remove_file(fixture.path("plate.npy")).unwrap();
    fixture.click_enabled("Convert");
    fixture.until("the existing file", |w| sees(w, "plate_s1.npy already exists"));
    assert!(!fixture.path("plate.npy").exists());
    // Of a series that fails, the window says why; the others are listed.
    for name in ["plate.npy_provenance.json", "plate_s1.npy", "plate_s1.npy_provenance.json"] {
        let _ = std::fs::remove_file(fixture.path(name));
    }
    std::fs::write(plate.join("A/1/1.zarr/0/zarr.json"), "{").unwrap();
    fixture.click_enabled("Convert");
    fixture.until("the written file", |w| sees(w, "1 file converted"));
    assert!(fixture.sees("Converting plate.zarr failed for 1 series"), "{}", fixture.on_screen());
    assert!(fixture.path("plate.npy").is_file() && !fixture.path("plate_s1.npy").exists());
    // Labels belong to one series.
    fixture.click("OME-Zarr");
    fixture.window.run_steps(3);
    assert!(fixture.window.get_by_label("With labels of open stacks").accesskit_node().is_disabled());
}

#[test]
fn labels_of_a_roi_set_get_the_shape_of_the_chosen_stack() {
    let mut fixture = Fixture::new();
    fixture.window.state_mut().use_own_file_dialog();
    let [labels, stack, rois] = ["labels.tif", "stack.tif", "rois.zip"].map(|name| fixture.path(name));
    let shape = [3, 24, 30];
    let is_inside = |i: usize| (5..10).contains(&(i / 30 % 24)) && (6..12).contains(&(i % 30));
    let drawn: Vec<u16> = (0..3 * 24 * 30).map(|i| u16::from(is_inside(i))).collect();
    for (path, values) in [(&labels, drawn.clone()), (&stack, vec![9; drawn.len()])] {
        let array = Array::new("ZYX".parse().unwrap(), shape.to_vec(), values).unwrap();
        write_array(path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
    }
    convert_on_command_line(&[labels.as_os_str(), rois.as_os_str()]);
    convert_page_with(&mut fixture, &rois);
    fixture.click("Stack of the regions…");
    enter_path(&mut fixture, &stack);
    fixture.until("the stack", |w| sees(w, "stack.tif"));
    accessibility::check(&fixture, "regions");
    fixture.click_enabled("Convert");
    fixture.until("the file", |w| sees(w, "1 file converted"));
    let read = |name: &str| cytoscope_formats::open(&fixture.path(name), &OpenOptions::default()).unwrap();
    let written = read("rois.ome.tif").read_all().unwrap();
    let expected: Vec<f32> = drawn.iter().map(|label| f32::from(*label)).collect();
    assert_eq!((read("rois.ome.tif").meta().shape.clone(), written.samples().to_f32()), (shape.to_vec(), expected));
    // Without the stack, the labels are only as large as the regions.
    fixture.click("No stack");
    fixture.click("Replace existing files");
    fixture.click_enabled("Convert");
    fixture.until("the smaller file", |_| {
        let file = cytoscope_formats::open(&rois.with_extension("ome.tif"), &OpenOptions::default());
        file.is_ok_and(|image| image.meta().shape.last().is_some_and(|width| *width < 30))
    });
}

#[test]
#[cfg_attr(not(unix), ignore = "only Unix can stop a process")]
fn conversions_are_canceled_together() {
    let mut fixture = Fixture::new();
    let stacks = open_copies(&mut fixture, 2);
    // The conversions wait for the predictions, which do not end before the conversions are canceled.
    fixture.until_enabled("Predict all 2 stacks");
    fixture.stop_engine();
    fixture.click("Predict all 2 stacks");
    fixture.until("the predictions", |w| w.state().waiting_predictions() == 2);
    fixture.window.state_mut().send(Command::Convert);
    fixture.until("the page", |w| sees(w, "Convert and evaluate"));
    fixture.click("NumPy");
    fixture.click_enabled("Convert");
    fixture.until("the start", |w| sees(w, "2 left to convert"));
    fixture.click("Cancel conversions");
    fixture.resume_engine();
    fixture.until("the end", |w| !sees(w, "to convert"));
    fixture.until("the predictions", |w| w.state().active_jobs() == 0);
    assert!(stacks.iter().all(|stack| !stack.with_extension("npy").exists()));
}

#[test]
fn a_cropped_copy_is_written_opened_and_predicted_with_new_measurements() {
    let mut fixture = Fixture::new();
    fixture.window.run_steps(3);
    fixture.click("Open the sample");
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    fixture.window.state_mut().use_own_file_dialog();
    fixture.click("Preprocessed copy");
    fixture.click("First steps of the copy");
    fixture.window.get_by_label("First steps of the copy").type_text("crop:z=0-16");
    fixture.window.run_steps(3);
    fixture.click("Open preprocessed copy…");
    save_as_suggested(&mut fixture);
    let title = "nuclei_raw_preprocessed.ome.tif – Cytoscope";
    fixture.until("the copy", |w| w.state().title() == title);
    fixture.settle();
    assert_eq!(fixture.window.state().document().unwrap().extents.zyx, [16, 160, 160]);
    assert!(fixture.path("sample/nuclei_raw_preprocessed.ome.tif").is_file());
    let again = |fixture: &Fixture| fixture.window.get_by_label("Measure again").accesskit_node().toggled();
    fixture.click_enabled("Measure again");
    assert_eq!(again(&fixture), Some(Toggled::True));
    fixture.click_enabled("Predict this stack");
    fixture.until("objects", |w| sees(w, " objects in "));
    assert_eq!(again(&fixture), Some(Toggled::False), "only one prediction measures");
}
