//! A line across a slice: its length and the values along it; and pictures of the slices.

use crate::desk::{Desk, sees};
use crate::hand::draw;
use cytoscope_formats::{Container, WriteSpec, write_array};
use cytoscope_ui::data::plane::Orientation;
use cytoscope_ui::shots::PictureOf;
use cytoscope_volume::{Array, VoxelSize};
use eframe::egui::Key;
use egui_kittest::kittest::Queryable;
use std::path::{Path, PathBuf};

/// Extents Z, Y, X; voxels of 2 × 0.5 × 0.25 µm.
const SHAPE: [usize; 3] = [6, 60, 80];

/// A stack whose values are 1000 z + 10 y + x.
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
fn a_line_is_as_long_as_it_is_and_tells_what_lies_along_it() {
    let mut desk = Desk::with(|folder| vec![ramp(&folder.join("ramp.tif"))]);
    desk.settle();
    desk.window.key_press(Key::R);
    desk.until("the panel", |w| sees(w, "Drag a line across a slice."));
    draw(&mut desk, Orientation::Xy, [0.0, 10.0, 20.0], [0.0, 40.0, 60.0]);
    desk.settle();
    // 30 rows of 0.5 µm and 40 columns of 0.25 µm.
    let (length, from, to) = (18.03, 3000.0 + 120.0, 3000.0 + 460.0);
    desk.until("the length", |w| sees(w, " µm"));
    let found = rows(&desk.window.state().line_profile_csv().unwrap());
    let (first, last) = (found[0], found[found.len() - 1]);
    // The pointer is where it is to half a point, which is less than half a voxel here.
    assert!((last[0] - length).abs() < 0.3 && first[0] == 0.0, "{last:?}");
    assert!((first[1] - from).abs() < 8.0 && (last[1] - to).abs() < 8.0, "{first:?} {last:?}");
    for [at, value] in &found {
        let expected = first[1] + (last[1] - first[1]) * at / last[0];
        assert!((value - expected).abs() < 1e-3 * value, "{at} {value} {expected}");
    }
    // On another slice the same line has other values.
    desk.window.key_press(Key::PageUp);
    desk.window.step();
    desk.settle();
    let above = rows(&desk.window.state().line_profile_csv().unwrap());
    assert!((above[0][1] - first[1] - 1000.0).abs() < 1.0, "{:?}", above[0]);
    desk.click("Close line profile");
    assert!(!desk.sees("Line profile") || desk.window.state().line_profile_csv().is_none());
}

#[test]
fn a_picture_has_every_pixel_and_a_scale_bar_if_wanted() {
    let mut desk = Desk::with(|folder| vec![ramp(&folder.join("ramp.tif"))]);
    desk.settle();
    let save = |desk: &mut Desk, of, name: &str| {
        let path = desk.path(name);
        desk.window.state_mut().take_picture(of, path.clone());
        desk.until("the picture", |_| path.is_file());
        image::open(&path).unwrap().to_rgb8()
    };
    let xy = save(&mut desk, PictureOf::Cut(Orientation::Xy), "xy.png");
    assert_eq!(xy.dimensions(), (80, 60));
    assert_eq!(save(&mut desk, PictureOf::Cut(Orientation::Zy), "yz.png").dimensions(), (6, 60));
    desk.window.state_mut().send(cytoscope_ui::command::Command::Screenshot);
    desk.until("the sheet", |w| sees(w, "XZ slice, every pixel"));
    desk.click("With scale bar");
    desk.click("Cancel");
    let bare = save(&mut desk, PictureOf::Cut(Orientation::Xy), "bare.png");
    let differing: Vec<(u32, u32)> =
        xy.enumerate_pixels().filter(|(x, y, p)| bare.get_pixel(*x, *y) != *p).map(|(x, y, _)| (x, y)).collect();
    // 80 pixels are 20 µm: the bar is of 5 µm, 20 pixels, with an edge.
    assert!(!differing.is_empty() && differing.iter().all(|(x, y)| *x < 30 && *y > 45), "{differing:?}");
    let white = xy.enumerate_pixels().filter(|(_, y, p)| *y > 45 && p.0 == [255; 3] && p.0 != bare.get_pixel(0, 0).0);
    let across: std::collections::BTreeSet<u32> = white.map(|(x, ..)| x).filter(|x| *x < 30).collect();
    assert_eq!(across.len(), 20, "{across:?}");
    // A ramp is a ramp in the picture.
    let gray: Vec<u8> = (40..80).map(|x| bare.get_pixel(x, 20).0[0]).collect();
    assert!(gray.is_sorted() && gray[0] < gray[39], "{gray:?}");
    assert!(desk.window.query_by_label("XZ slice, every pixel").is_none());
}

#[test]
fn a_slice_that_is_thinned_on_screen_is_whole_in_its_picture() {
    let mut desk = Desk::with(|folder| {
        // Larger than what is shown at full size.
        let (ny, nx) = (2200, 2300);
        let values: Vec<u8> = (0..ny * nx).map(|i| if i % nx == 1111 { 255 } else { 0 }).collect();
        let array = Array::new("YX".parse().unwrap(), vec![ny, nx], values).unwrap();
        let path = folder.join("wide.tif");
        write_array(&path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        vec![path]
    });
    desk.settle();
    let path = desk.path("wide.png");
    desk.window.state_mut().take_picture(PictureOf::Cut(Orientation::Xy), path.clone());
    desk.until("the picture", |_| path.is_file());
    let picture = image::open(&path).unwrap().to_rgb8();
    assert_eq!(picture.dimensions(), (2300, 2200));
    let bright: Vec<u32> = (0..2300).filter(|x| picture.get_pixel(*x, 700).0[0] > 200).collect();
    assert_eq!(bright, [1111], "the line is one pixel wide");
}
