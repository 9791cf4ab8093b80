//! Crops, deskewing and warps of preprocessed copies: their fields, their text, and the files that they give.

use crate::accessibility;
use crate::fixture::{Fixture, sees};
use crate::gestures::save_as_suggested;
use cytoscope_formats::OpenOptions;
use cytoscope_preprocess::PreprocessStep;
use eframe::egui::{Event, Key};
use egui_kittest::kittest::{NodeT, Queryable};
use std::process::{Command, Stdio};

/// The first steps of the copy of the shown stack, as the command line takes them.
fn copy_steps(fixture: &Fixture) -> String {
    let steps = &fixture.window.state().document().unwrap().copy_steps;
    steps.iter().map(PreprocessStep::to_string).collect::<Vec<_>>().join(",")
}

/// Opens the sample and the controls of its preprocessed copy.
fn with_copy_controls() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.window.run_steps(3);
    fixture.click("Open the sample");
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    fixture.click("Preprocessed copy");
    fixture
}

#[test]
fn a_crop_that_is_entered_in_fields_gives_the_file_of_the_command_line() {
    let mut fixture = with_copy_controls();
    fixture.window.state_mut().use_own_file_dialog();
    fixture.click("Add copy step");
    fixture.click("Crop");
    assert_eq!(copy_steps(&fixture), "crop:z=0-32", "at first, all is kept");
    accessibility::check(&fixture, "a crop");
    for (field, number) in [("Crop Z first", "5"), ("Crop Z last", "16"), ("Crop X first", "41")] {
        fixture.type_into(field, number);
    }
    // Numbers of the window count from 1; those of the command line from 0, without the last one.
    let crop = "crop:z=4-16:x=40-160";
    assert_eq!(copy_steps(&fixture), crop);
    assert!(fixture.sees("The copy has 12 × 160 × 120 voxels"), "{}", fixture.on_screen());
    fixture.click("Open preprocessed copy…");
    save_as_suggested(&mut fixture);
    fixture.until("the copy", |w| w.state().title() == "nuclei_raw_preprocessed.ome.tif – Cytoscope");
    let from_line = fixture.path("line.ome.tif");
    let ran = Command::new(env!("CARGO_BIN_EXE_cytoscope"))
        .arg("convert")
        .args([&fixture.path("sample/nuclei_raw.tif"), &from_line])
        .args(["--preprocess", crop])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let [window, line] = [fixture.path("sample/nuclei_raw_preprocessed.ome.tif"), from_line].map(|path| {
        let image = cytoscope_formats::open(&path, &OpenOptions::default()).unwrap();
        let (shape, size_um) = (image.meta().shape.clone(), image.meta().voxel_size_um);
        (shape, size_um, image.read_all().unwrap().samples().to_f32())
    });
    assert_eq!((&window.0, window.1), (&line.0, line.1));
    assert!(window.2 == line.2, "the voxels differ");
}

#[test]
fn a_crop_from_the_view_keeps_what_the_xy_view_shows() {
    let mut fixture = with_copy_controls();
    fixture.click("Add copy step");
    fixture.click("Crop");
    fixture.type_into("Crop Z last", "8");
    fixture.click("From view");
    assert_eq!(copy_steps(&fixture), "crop:z=0-8", "the view shows whole slices");
    fixture.window.query_all_by_label_contains("XY view, slice").next().unwrap().focus();
    fixture.window.run_steps(2);
    for _ in 0..8 {
        fixture.window.key_press(Key::Plus);
        fixture.window.run_steps(2);
    }
    fixture.click("From view");
    let steps = fixture.window.state().document().unwrap().copy_steps.clone();
    let [PreprocessStep::Crop { z, y: Some([top, bottom]), x: Some([left, right]) }] = steps.as_slice() else {
        panic!("{steps:?}")
    };
    assert_eq!(*z, Some([0, 8]));
    // The middle of the slices of 160 × 160 voxels is enlarged.
    assert_eq!((top + bottom, left + right), (160, 160));
    assert!(bottom - top < 80 && right - left < 120, "{steps:?}");
    fixture.click("Whole stack");
    assert_eq!(copy_steps(&fixture), "crop:z=0-32");
}

#[test]
fn fields_and_text_of_the_steps_of_a_copy_follow_each_other() {
    let mut fixture = with_copy_controls();
    let is_disabled =
        |fixture: &Fixture| fixture.window.get_by_label("Open preprocessed copy…").accesskit_node().is_disabled();
    fixture.click("Add copy step");
    fixture.click("Deskew");
    assert!(!is_disabled(&fixture), "{}", fixture.on_screen());
    fixture.type_into("Deskew angle", "0");
    assert!(fixture.sees("the angle is 0°") && is_disabled(&fixture), "{}", fixture.on_screen());
    fixture.type_into("Deskew angle", "-45");
    fixture.click("Add copy step");
    fixture.click("Affine warp");
    fixture.type_into("Affine X offset", "2.5");
    accessibility::check(&fixture, "a warp");
    assert_eq!(copy_steps(&fixture), "deskew:angle=-45,affine:matrix=1/0/0/0/0/1/0/0/0/0/1/2.5");
    assert!(!is_disabled(&fixture), "{}", fixture.on_screen());
    // A letter at a time: the fields that appear leave the text its focus.
    fixture.type_into("First steps of the copy", "");
    assert_eq!(copy_steps(&fixture), "");
    for letter in "crop:y=1-25".chars() {
        fixture.window.input_mut().events.push(Event::Text(letter.to_string()));
        fixture.window.run_steps(2);
    }
    assert_eq!(copy_steps(&fixture), "crop:y=1-25");
    let shown = ["Crop Y first", "Crop Y last"]
        .map(|field| fixture.window.get_by_label(field).accesskit_node().numeric_value());
    assert_eq!(shown, [Some(2.0), Some(25.0)]);
    fixture.type_into("First steps of the copy", "crop:y=10-999");
    assert!(fixture.sees("give a range inside 0-160") && is_disabled(&fixture), "{}", fixture.on_screen());
}
