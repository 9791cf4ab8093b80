//! Opening: dropped, by command line, wrong ones, wrong axes, huge ones.

use crate::desk::{Desk, sees, window};
use cytoscope_formats::{Container, WriteSpec, write_array};
use cytoscope_volume::Array;
use egui_kittest::kittest::Queryable;
use std::path::{Path, PathBuf};

fn stack(path: &Path, axes: &str, shape: &[usize]) -> PathBuf {
    let n: usize = shape.iter().product();
    let values: Vec<u16> = (0..n).map(|i| (i % 251) as u16).collect();
    let array = Array::new(axes.parse().unwrap(), shape.to_vec(), values).unwrap();
    write_array(path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
    path.to_owned()
}

#[test]
fn an_empty_window_invites_and_the_sample_is_a_click_away() {
    let mut desk = Desk::new();
    desk.window.run_steps(3);
    assert!(desk.sees("Drop a stack here"), "{}", desk.on_screen());
    desk.click("Open the sample");
    desk.settle();
    assert_eq!(desk.window.state().document().unwrap().extents.zyx, [32, 160, 160]);
    assert_eq!(desk.window.state().title(), "nuclei_raw.tif – Cytoscope");
    assert!(desk.sees("XY view, slice 17 of 32"), "{}", desk.on_screen());
}

#[test]
fn dropped_files_are_opened_and_a_bad_one_says_why() {
    let mut desk = Desk::new();
    let good = stack(&desk.path("gut ä ö.tif"), "ZYX", &[4, 20, 30]);
    let bad = desk.path("notes.tif");
    std::fs::write(&bad, "only words in here\n".repeat(20)).unwrap();
    for path in [&good, &bad] {
        let file = eframe::egui::DroppedFile { path: Some(path.clone()), ..Default::default() };
        desk.window.input_mut().dropped_files.push(file);
    }
    desk.settle();
    assert_eq!(desk.window.state().document().unwrap().path, good);
    desk.until("a notice", |w| sees(w, "Opening notes.tif failed"));
    assert!(desk.sees("is no TIFF"), "{}", desk.on_screen());
    desk.click("Close notice");
    assert!(!desk.sees("Opening notes.tif failed"));
    // A folder opens its stacks; the one that is open already is not opened twice.
    std::fs::remove_file(&bad).unwrap();
    stack(&desk.path("second.tif"), "YX", &[20, 30]);
    let folder = desk.folder.path().to_owned();
    let dropped = eframe::egui::DroppedFile { path: Some(folder), ..Default::default() };
    desk.window.input_mut().dropped_files.push(dropped);
    desk.until("the second", |w| sees(w, "second.tif"));
    desk.settle();
    assert_eq!(desk.window.query_all_by_label("gut ä ö.tif").count(), 1, "{}", desk.on_screen());
}

#[test]
fn wrong_axes_are_corrected_and_remembered_for_the_folder() {
    let mut desk = Desk::with(|f| vec![stack(&f.join("time.tif"), "TYX", &[6, 16, 24])]);
    desk.settle();
    let extents = |desk: &Desk| {
        let e = desk.window.state().document().unwrap().extents;
        (e.times, e.zyx[0])
    };
    assert_eq!(extents(&desk), (6, 1));
    desk.click("Axes…");
    desk.click("ZYX");
    desk.click("Apply");
    desk.until("slices", |w| w.state().document().is_some_and(|d| d.extents.zyx[0] == 6));
    assert_eq!(extents(&desk), (1, 6));
    // Another file of the folder, in a window opened later.
    let other = stack(&desk.path("more.tif"), "TYX", &[5, 16, 24]);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    desk.window.run_steps(3);
    let home = desk.folder.path().to_owned();
    desk.window = window(&home, vec![other]);
    desk.settle();
    assert_eq!(extents(&desk), (1, 5));
}

#[test]
fn names_in_any_script_are_readable_where_the_system_has_a_font() {
    let mut desk = Desk::with(|folder| vec![stack(&folder.join("細胞 клетка.tif"), "ZYX", &[4, 20, 30])]);
    let fonts = ["/usr/share/fonts/truetype/droid/DroidSansFallbackFull.ttf", "/usr/share/fonts/opentype/noto"];
    if !fonts.iter().any(|f| Path::new(f).exists()) {
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "SKIPPED: no font with Chinese letters is installed here");
        return;
    }
    desk.settle();
    desk.until("letters", |w| cytoscope_ui::letters::known(&w.ctx, "細胞 клетка.tif"));
}
