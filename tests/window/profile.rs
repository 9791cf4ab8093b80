//! Line profiles across a slice, and saved pictures of slices.

use crate::fixture::{Fixture, sees};
use crate::gestures::{draw, save_as_suggested};
use cytoscope_formats::{Container, WriteSpec, write_array};
use cytoscope_ui::data::plane::Orientation;
use cytoscope_ui::screenshots::ScreenshotSubject;
use cytoscope_volume::{Array, VoxelSize};
use eframe::egui::Key;
use egui_kittest::kittest::Queryable;
use std::path::{Path, PathBuf};

/// Shape Z, Y, X; the voxel size is 2 × 0.5 × 0.25 µm.
const SHAPE: [usize; 3] = [6, 60, 80];

/// Writes a stack with the values 1000 z + 10 y + x.
fn ramp(path: &Path) -> PathBuf {
    let [nz, ny, nx] = SHAPE;
    let values: Vec<u16> =
        (0..nz * ny * nx).map(|i| (1000 * (i / (ny * nx)) + 10 * (i / nx % ny) + i % nx) as u16).collect();
    let array = Array::new("ZYX".parse().unwrap(), SHAPE.to_vec(), values).unwrap();
    let mut spec = WriteSpec::of(&array, Container::ImageJ);
    spec.voxel_size_um = VoxelSize::new_um(2.0, 0.5, 0.25);
    write_array(path, &array, &spec).unwrap();
    path.to_owned()
}

fn rows(csv: &str) -> Vec<[f64; 2]> {
    let row = |line: &str| {
        let mut numbers = line.split(',').map(|n| n.parse().unwrap());
        [numbers.next().unwrap(), numbers.next().unwrap()]
    };
    csv.lines().skip(1).map(row).collect()
}

#[test]
fn a_line_outside_the_stack_has_no_plot() {
    let mut fixture = Fixture::with(|folder| vec![ramp(&folder.join("ramp.tif"))]);
    fixture.settle();
    fixture.window.key_press(Key::R);
    fixture.until("the panel", |w| sees(w, "Drag a line across a slice."));
    // Left of the stack, in the margin of the view.
    draw(&mut fixture, Orientation::Xy, [0.0, 10.0, -18.0], [0.0, 40.0, -6.0]);
    fixture.until("the reason", |w| sees(w, "The line is outside the visible part of the stack."));
    draw(&mut fixture, Orientation::Xy, [0.0, 10.0, 20.0], [0.0, 40.0, 60.0]);
    fixture.until("the plot", |w| !sees(w, "The line is outside the visible part of the stack."));
}

#[test]
fn line_profile_has_the_true_length_and_values() {
    let mut fixture = Fixture::with(|folder| vec![ramp(&folder.join("ramp.tif"))]);
    fixture.settle();
    fixture.window.key_press(Key::R);
    fixture.until("the panel", |w| sees(w, "Drag a line across a slice."));
    draw(&mut fixture, Orientation::Xy, [0.0, 10.0, 20.0], [0.0, 40.0, 60.0]);
    fixture.settle();
    // 30 rows of 0.5 µm and 40 columns of 0.25 µm.
    let (length, from, to) = (18.03, 3000.0 + 120.0, 3000.0 + 460.0);
    fixture.until("the length", |w| sees(w, " µm"));
    let found = rows(&fixture.window.state().line_profile_csv().unwrap());
    let (first, last) = (found[0], found[found.len() - 1]);
    // The pointer position is exact to half a point, which is less than half a voxel here.
    assert!((last[0] - length).abs() < 0.3 && first[0] == 0.0, "{last:?}");
    assert!((first[1] - from).abs() < 8.0 && (last[1] - to).abs() < 8.0, "{first:?} {last:?}");
    for [at, value] in &found {
        let expected = first[1] + (last[1] - first[1]) * at / last[0];
        assert!((value - expected).abs() < 1e-3 * value, "{at} {value} {expected}");
    }
    // On another slice, the same line has other values.
    fixture.window.key_press(Key::PageUp);
    fixture.window.step();
    fixture.settle();
    let above = rows(&fixture.window.state().line_profile_csv().unwrap());
    assert!((above[0][1] - first[1] - 1000.0).abs() < 1.0, "{:?}", above[0]);
    fixture.click("Close line profile");
    assert!(!fixture.sees("Line profile") || fixture.window.state().line_profile_csv().is_none());
}

#[test]
fn saved_picture_has_every_pixel_and_an_optional_scale_bar() {
    let mut fixture = Fixture::with(|folder| vec![ramp(&folder.join("ramp.tif"))]);
    fixture.settle();
    let save = |fixture: &mut Fixture, of, name: &str| {
        let path = fixture.path(name);
        fixture.window.state_mut().take_screenshot(of, path.clone());
        fixture.until("the picture", |_| path.is_file());
        image::open(&path).unwrap().to_rgb8()
    };
    let xy = save(&mut fixture, ScreenshotSubject::Slice(Orientation::Xy), "xy.png");
    assert_eq!(xy.dimensions(), (80, 60));
    assert_eq!(save(&mut fixture, ScreenshotSubject::Slice(Orientation::Zy), "yz.png").dimensions(), (6, 60));
    fixture.window.state_mut().send(cytoscope_ui::command::Command::Screenshot);
    fixture.until("the dialog", |w| sees(w, "XZ slice, full resolution"));
    fixture.click("With scale bar");
    fixture.click("Cancel");
    let bare = save(&mut fixture, ScreenshotSubject::Slice(Orientation::Xy), "bare.png");
    let differing: Vec<(u32, u32)> =
        xy.enumerate_pixels().filter(|(x, y, p)| bare.get_pixel(*x, *y) != *p).map(|(x, y, _)| (x, y)).collect();
    // 80 pixels are 20 µm, so the bar is 5 µm or 20 pixels long, plus an outline.
    assert!(!differing.is_empty() && differing.iter().all(|(x, y)| *x < 30 && *y > 45), "{differing:?}");
    let white = xy.enumerate_pixels().filter(|(_, y, p)| *y > 45 && p.0 == [255; 3] && p.0 != bare.get_pixel(0, 0).0);
    let across: std::collections::BTreeSet<u32> = white.map(|(x, ..)| x).filter(|x| *x < 30).collect();
    assert_eq!(across.len(), 20, "{across:?}");
    // The ramp is visible in the picture.
    let gray: Vec<u8> = (40..80).map(|x| bare.get_pixel(x, 20).0[0]).collect();
    assert!(gray.is_sorted() && gray[0] < gray[39], "{gray:?}");
    assert!(fixture.window.query_by_label("XZ slice, full resolution").is_none());
}

#[test]
fn slice_subsampled_on_screen_is_saved_in_full() {
    let mut fixture = Fixture::with(|folder| {
        // Larger than the largest slice that is shown at full resolution.
        let (ny, nx) = (2200, 2300);
        let values: Vec<u8> = (0..ny * nx).map(|i| if i % nx == 1111 { 255 } else { 0 }).collect();
        let array = Array::new("YX".parse().unwrap(), vec![ny, nx], values).unwrap();
        let path = folder.join("wide.tif");
        write_array(&path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        vec![path]
    });
    fixture.settle();
    let path = fixture.path("wide.png");
    fixture.window.state_mut().take_screenshot(ScreenshotSubject::Slice(Orientation::Xy), path.clone());
    fixture.until("the picture", |_| path.is_file());
    let picture = image::open(&path).unwrap().to_rgb8();
    assert_eq!(picture.dimensions(), (2300, 2200));
    let bright: Vec<u32> = (0..2300).filter(|x| picture.get_pixel(*x, 700).0[0] > 200).collect();
    assert_eq!(bright, [1111], "the line is one pixel wide");
}

#[test]
fn enter_presses_the_focused_button_of_the_picture_dialog() {
    let mut fixture = Fixture::with(|folder| vec![ramp(&folder.join("ramp.tif"))]);
    fixture.settle();
    fixture.window.state_mut().use_own_file_dialog();
    let press_enter_on = |fixture: &mut Fixture, button: &str| {
        fixture.window.state_mut().send(cytoscope_ui::command::Command::Screenshot);
        fixture.until("the choice", |w| sees(w, "XZ slice, full resolution"));
        fixture.window.get_by_label(button).focus();
        fixture.window.run_steps(3);
        fixture.window.key_press(Key::Enter);
        fixture.until("the end of the choice", |w| !sees(w, "XZ slice, full resolution"));
        fixture.window.run_steps(6);
    };
    press_enter_on(&mut fixture, "Cancel");
    assert!(!fixture.sees("Save the picture"), "{}", fixture.on_screen());
    press_enter_on(&mut fixture, "Save…");
    fixture.until("the file dialog", |w| sees(w, "Save the picture"));
}

#[test]
fn a_picture_is_of_the_stack_that_was_shown_when_it_was_asked_for() {
    let mut fixture = Fixture::with(|folder| vec![ramp(&folder.join("ramp.tif"))]);
    fixture.settle();
    let array = Array::new("YX".parse().unwrap(), vec![20, 30], vec![7u16; 600]).unwrap();
    let other = fixture.path("other.tif");
    write_array(&other, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
    fixture.window.state_mut().use_own_file_dialog();
    fixture.window.state_mut().send(cytoscope_ui::command::Command::Screenshot);
    fixture.until("the choice", |w| sees(w, "XZ slice, full resolution"));
    fixture.click("Save…");
    fixture.until("the file dialog", |w| sees(w, "Save the picture"));
    // Another stack is shown before the file is chosen.
    fixture.window.state_mut().open_paths(&[other]);
    fixture.until("the other stack", |w| w.state().document().is_some_and(|d| d.name == "other.tif"));
    save_as_suggested(&mut fixture);
    let saved = fixture.path("ramp.png");
    fixture.until("the picture", |_| saved.is_file());
    assert_eq!(image::open(&saved).unwrap().to_rgb8().dimensions(), (80, 60));
}
