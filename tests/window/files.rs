//! Opening files: dropped, from the command line, in the window's own dialog, broken ones, wrong axes, names in other
//! scripts.

use crate::accessibility;
use crate::fixture::{Fixture, sees, window};
use crate::gestures::{choose_folder, drop_file, paste_path};
use cytoscope_formats::{Channel, Container, WriteSpec, ZarrImageSpec, ZarrWriter, write_array};
use cytoscope_storage::Overwrite;
use cytoscope_testkit::skip;
use cytoscope_ui::Workbench;
use cytoscope_ui::command::Command;
use cytoscope_ui::settings::Settings;
use cytoscope_ui::theme;
use cytoscope_volume::{Array, DType, Samples};
use eframe::egui::{Event, Key, Modifiers, Shape};
use egui_kittest::Harness;
use egui_kittest::kittest::{NodeT, Queryable};
use std::path::{Path, PathBuf};

fn stack(path: &Path, axes: &str, shape: &[usize]) -> PathBuf {
    let n: usize = shape.iter().product();
    let values: Vec<u16> = (0..n).map(|i| (i % 251) as u16).collect();
    let array = Array::new(axes.parse().unwrap(), shape.to_vec(), values).unwrap();
    write_array(path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
    path.to_owned()
}

#[test]
fn empty_window_opens_the_sample_with_one_click() {
    let mut fixture = Fixture::new();
    fixture.window.run_steps(3);
    assert!(fixture.sees("Drop a stack here"), "{}", fixture.on_screen());
    fixture.click("Open the sample");
    fixture.settle();
    assert_eq!(fixture.window.state().document().unwrap().extents.zyx, [32, 160, 160]);
    assert_eq!(fixture.window.state().title(), "nuclei_raw.tif – Cytoscope");
    assert!(fixture.sees("XY view, slice 17 of 32"), "{}", fixture.on_screen());
}

#[test]
fn dropped_files_open_and_a_bad_file_reports_why() {
    let mut fixture = Fixture::new();
    let good = stack(&fixture.path("gut ä ö.tif"), "ZYX", &[4, 20, 30]);
    let bad = fixture.path("notes.tif");
    std::fs::write(&bad, "only words in here\n".repeat(20)).unwrap();
    for path in [&good, &bad] {
        let file = eframe::egui::DroppedFile { path: Some(path.clone()), ..Default::default() };
        fixture.window.input_mut().dropped_files.push(file);
    }
    fixture.settle();
    assert_eq!(fixture.window.state().document().unwrap().path, good);
    fixture.until("the notification", |w| sees(w, "Opening notes.tif failed"));
    assert!(fixture.sees("is not an image of a known format"), "{}", fixture.on_screen());
    fixture.click("Close notification");
    assert!(!fixture.sees("Opening notes.tif failed"));
    // A folder opens its stacks; one that is already open is not opened twice.
    std::fs::remove_file(&bad).unwrap();
    stack(&fixture.path("second.tif"), "YX", &[20, 30]);
    let folder = fixture.folder.path().to_owned();
    let dropped = eframe::egui::DroppedFile { path: Some(folder), ..Default::default() };
    fixture.window.input_mut().dropped_files.push(dropped);
    fixture.until("the second", |w| sees(w, "second.tif"));
    fixture.settle();
    assert_eq!(fixture.window.query_all_by_label("gut ä ö.tif").count(), 1, "{}", fixture.on_screen());
}

#[test]
fn stacks_of_the_same_name_are_told_apart() {
    let mut fixture = Fixture::with(|folder| {
        ["one", "two"]
            .map(|part| {
                std::fs::create_dir(folder.join(part)).unwrap();
                stack(&folder.join(part).join("stack.tif"), "ZYX", &[4, 20, 30])
            })
            .to_vec()
    });
    fixture.until("both", |w| w.state().documents().len() == 2);
    fixture.settle();
    let name = |part: &str| Path::new(part).join("stack.tif").display().to_string();
    fixture.click(&name("one"));
    assert_eq!(fixture.window.state().title(), format!("{} – Cytoscope", name("one")));
    fixture.click(&name("two"));
    fixture.window.state_mut().send(Command::Close);
    fixture.until("one", |w| w.state().documents().len() == 1);
    fixture.window.run_steps(3);
    assert_eq!(fixture.window.state().title(), "stack.tif – Cytoscope");
}

/// Waits until the settings are saved, and opens a file in the next window.
fn open_in_next_window(fixture: &mut Fixture, file: PathBuf) {
    std::thread::sleep(std::time::Duration::from_millis(1100));
    fixture.window.run_steps(3);
    fixture.until("the saved settings", |w| w.state().is_settled());
    let home = fixture.folder.path().to_owned();
    fixture.window = window(&home, vec![file]);
    fixture.settle();
}

#[test]
fn the_results_folder_is_remembered_while_it_exists() {
    let mut fixture = Fixture::with(|folder| vec![stack(&folder.join("one.tif"), "ZYX", &[4, 20, 30])]);
    let (file, chosen) = (fixture.path("one.tif"), fixture.path("chosen"));
    let [own, other] = [fixture.path("cytoscope"), chosen.clone()].map(|folder| folder.display().to_string());
    std::fs::create_dir(&chosen).unwrap();
    fixture.settle();
    fixture.until("the folder beside the stack", |w| sees(w, &own));
    fixture.window.state_mut().use_own_file_dialog();
    // The button moves while the panel is laid out.
    fixture.window.run_steps(30);
    choose_folder(&mut fixture, "Results folder", &chosen);
    open_in_next_window(&mut fixture, file.clone());
    fixture.until("the chosen folder", |w| sees(w, &other));
    fixture.click("Default results folder");
    fixture.until("the folder beside the stack", |w| sees(w, &own));
    assert!(!fixture.sees(&other), "{}", fixture.on_screen());
    fixture.window.state_mut().use_own_file_dialog();
    // The button moves while the panel is laid out.
    fixture.window.run_steps(30);
    choose_folder(&mut fixture, "Results folder", &chosen);
    std::fs::remove_dir(&chosen).unwrap();
    open_in_next_window(&mut fixture, file);
    fixture.until("the folder beside the stack", |w| sees(w, &own));
    assert!(!fixture.sees(&other), "{}", fixture.on_screen());
}

#[test]
fn two_windows_do_not_undo_each_others_settings() {
    let mut fixture = Fixture::with(|folder| vec![stack(&folder.join("one.tif"), "ZYX", &[4, 20, 30])]);
    let home = fixture.folder.path().to_owned();
    let other = window(&home, vec![stack(&home.join("two.tif"), "ZYX", &[4, 20, 30])]);
    fixture.settle();
    let mut first = std::mem::replace(&mut fixture.window, other);
    fixture.settle();
    first.state_mut().send(Command::ToggleCrosshair);
    fixture.window.state_mut().send(Command::ToggleScaleBar);
    for window in [&mut first, &mut fixture.window] {
        window.run_steps(3);
        // Settings are saved when a window closes.
        eframe::App::on_exit(window.state_mut());
    }
    let settings = Settings::load(&home.join("settings/settings.json"));
    assert!(!settings.show_scale_bar && !settings.show_crosshair, "{settings:?}");
    let mut names: Vec<_> = settings.recent.iter().filter_map(|path| path.file_name()).collect();
    names.sort();
    assert_eq!(names, ["one.tif", "two.tif"]);
}

#[test]
fn corrected_axes_are_remembered_for_the_folder() {
    let mut fixture = Fixture::with(|f| vec![stack(&f.join("time.tif"), "TYX", &[6, 16, 24])]);
    fixture.settle();
    let extents = |fixture: &Fixture| {
        let e = fixture.window.state().document().unwrap().extents;
        (e.times, e.zyx[0])
    };
    assert_eq!(extents(&fixture), (6, 1));
    fixture.click("Axes…");
    fixture.until("the extents", |w| sees(w, "Read as 6 time points, 1 slice, 1 channel"));
    fixture.click("ZYX");
    fixture.click("Apply");
    fixture.until("slices", |w| w.state().document().is_some_and(|d| d.extents.zyx[0] == 6));
    assert_eq!(extents(&fixture), (1, 6));
    // Another file of the folder, in the next window.
    let other = stack(&fixture.path("more.tif"), "TYX", &[5, 16, 24]);
    open_in_next_window(&mut fixture, other);
    assert_eq!(extents(&fixture), (1, 5));
}

#[test]
fn a_stack_says_that_imagej_shows_other_values() {
    let mut fixture = Fixture::with(|folder| {
        let path = stack(&folder.join("calibrated.tif"), "ZYX", &[4, 20, 30]);
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(10).position(|bytes| bytes == b"loop=false").unwrap();
        bytes[at..at + 10].copy_from_slice(b"cf=1\nc0=-9");
        std::fs::write(&path, bytes).unwrap();
        vec![path, stack(&folder.join("plain.tif"), "ZYX", &[4, 20, 30])]
    });
    fixture.until("both", |w| w.state().documents().len() == 2);
    fixture.settle();
    fixture.click("plain.tif");
    assert!(!fixture.sees("ImageJ shows"), "{}", fixture.on_screen());
    fixture.click("calibrated.tif");
    assert!(fixture.sees("ImageJ shows other values"), "{}", fixture.on_screen());
}

#[test]
fn dialogs_for_metadata_are_answered_with_the_keyboard() {
    let mut fixture = Fixture::with(|f| vec![stack(&f.join("time.tif"), "TYX", &[6, 16, 24])]);
    fixture.settle();
    let type_keys = |fixture: &mut Fixture, text: &str, then: Key| {
        fixture.window.input_mut().events.push(Event::Text(text.to_owned()));
        fixture.window.run_steps(3);
        fixture.window.key_press(then);
        fixture.window.run_steps(3);
    };
    // The first field has the focus.
    fixture.click("Axes…");
    type_keys(&mut fixture, "zyx", Key::Enter);
    fixture.until("slices", |w| w.state().document().is_some_and(|d| d.extents.zyx[0] == 6));
    fixture.settle();
    fixture.click("Voxel size…");
    for (text, then) in [("2", Key::Tab), ("0.5", Key::Tab), ("0.25", Key::Enter)] {
        type_keys(&mut fixture, text, then);
    }
    let given = |w: &Harness<'static, Workbench>| w.state().document().and_then(|d| d.given_voxel_um());
    fixture.until("the voxel size", |w| given(w) == Some([2.0, 0.5, 0.25]));
    assert!(!fixture.sees("Apply"), "{}", fixture.on_screen());
}

/// Whether a button has the color of the one that does what a dialog is for.
pub fn is_primary(fixture: &Fixture, name: &str) -> bool {
    let center = fixture.window.get_by_label(name).rect().center();
    let is_filled =
        |shape: &Shape| matches!(shape, Shape::Rect(rect) if rect.fill == theme::ACCENT && rect.rect.contains(center));
    fixture.window.output().shapes.iter().any(|clipped| is_filled(&clipped.shape))
}

#[test]
fn a_voxel_size_that_the_file_lacks_is_set_and_remembered_for_the_folder() {
    let mut fixture = Fixture::with(|f| vec![stack(&f.join("plain.tif"), "ZYX", &[6, 16, 24])]);
    fixture.settle();
    assert!(fixture.sees("voxel size unknown"), "{}", fixture.on_screen());
    fixture.click("Voxel size…");
    accessibility::check(&fixture, "voxel size");
    fixture.type_into("Voxel size Z", "2");
    assert!(fixture.sees("no voxel size along Y"), "{}", fixture.on_screen());
    fixture.type_into("Voxel size Y", "0.0000005");
    fixture.type_into("Voxel size X", "0.25");
    assert!(fixture.sees("voxel size along Y is 0.0000005 µm"), "{}", fixture.on_screen());
    assert!(fixture.window.get_by_label("Apply").accesskit_node().is_disabled());
    fixture.type_into("Voxel size Y", "0.5");
    assert!(is_primary(&fixture, "Apply") && !is_primary(&fixture, "Use the file's voxel size"));
    fixture.click("Apply");
    let given = |w: &Harness<'static, Workbench>| w.state().document().and_then(|d| d.given_voxel_um());
    fixture.until("the voxel size", |w| given(w) == Some([2.0, 0.5, 0.25]));
    fixture.settle();
    assert!(fixture.sees("2\u{a0}×\u{a0}0.5\u{a0}×\u{a0}0.25\u{a0}µm (set here)"), "{}", fixture.on_screen());
    // Another file of the folder, in the next window.
    let other = stack(&fixture.path("more.tif"), "ZYX", &[5, 16, 24]);
    open_in_next_window(&mut fixture, other);
    assert_eq!(given(&fixture.window), Some([2.0, 0.5, 0.25]));
    // Empty fields stand for the voxel size of the file.
    fixture.click("Voxel size…");
    for axis in ["Z", "Y", "X"] {
        fixture.type_into(&format!("Voxel size {axis}"), "");
    }
    fixture.click("Apply");
    fixture.until("the file's voxel size", |w| w.state().document().is_some() && given(w).is_none());
    assert!(fixture.sees("voxel size unknown"), "{}", fixture.on_screen());
}

#[test]
fn shortcuts_do_not_act_on_what_is_behind_a_dialog() {
    let mut fixture = Fixture::with(|f| vec![stack(&f.join("plain.tif"), "ZYX", &[6, 16, 24])]);
    fixture.settle();
    let close = |fixture: &mut Fixture| {
        fixture.window.key_press_modifiers(Modifiers::COMMAND, Key::W);
        fixture.window.run_steps(3);
        fixture.window.state().document().is_none()
    };
    fixture.click("Voxel size…");
    assert!(!close(&mut fixture) && fixture.sees("Apply"), "{}", fixture.on_screen());
    fixture.click("Cancel");
    assert!(close(&mut fixture), "{}", fixture.on_screen());
}

#[test]
fn a_page_is_closed_before_the_stack_that_it_hides() {
    let mut fixture = Fixture::with(|f| vec![stack(&f.join("plain.tif"), "ZYX", &[6, 16, 24])]);
    fixture.settle();
    for page in [Command::Models, Command::Evaluate, Command::Convert, Command::Train] {
        fixture.window.state_mut().send(page);
        fixture.until("the page", |w| !sees(w, "XY view"));
        fixture.window.key_press_modifiers(Modifiers::COMMAND, Key::W);
        fixture.until("the views", |w| sees(w, "XY view"));
        assert!(fixture.window.state().document().is_some(), "{page:?}");
    }
    fixture.window.key_press_modifiers(Modifiers::COMMAND, Key::W);
    fixture.until("the empty window", |w| w.state().document().is_none());
}

#[test]
fn names_in_any_script_are_readable_if_a_font_is_installed() {
    let by_file = Fixture::with(|folder| vec![stack(&folder.join("細胞 клетка.tif"), "ZYX", &[4, 20, 30])]);
    let by_channel = Fixture::with(|folder| {
        let path = folder.join("stack.ome.tif");
        let array = Array::new("ZYX".parse().unwrap(), vec![4, 20, 30], vec![1u16; 2400]).unwrap();
        let channels = vec![Channel { name: "細胞 клетка".to_owned(), ..Channel::default() }];
        write_array(&path, &array, &WriteSpec { channels, ..WriteSpec::of(&array, Container::OmeTiff) }).unwrap();
        vec![path]
    });
    let fonts = ["/usr/share/fonts/truetype/droid/DroidSansFallbackFull.ttf", "/usr/share/fonts/opentype/noto"];
    if !fonts.iter().any(|f| Path::new(f).exists()) {
        return skip("no font with Chinese letters is installed here");
    }
    for mut fixture in [by_file, by_channel] {
        fixture.settle();
        fixture.until("letters", |w| cytoscope_ui::font_fallback::has_glyphs(&w.ctx, "細胞 клетка.tif"));
    }
}

/// Writes a plate with one well, whose images have 4 and 6 slices.
pub fn plate(path: &Path) -> PathBuf {
    write_plate(path, [4, 6], [16, 24], |z, at| ((z * 16 * 24 + at) % 251) as u16)
}

/// Writes a plate with one well of two images with these numbers of slices, which have the shape `yx`; `voxel` returns the
/// value at a slice and an index in it.
pub fn write_plate(path: &Path, depths: [usize; 2], yx: [usize; 2], voxel: impl Fn(usize, usize) -> u16) -> PathBuf {
    let well = path.join("A/1");
    std::fs::create_dir_all(&well).unwrap();
    for (name, depth) in ["0.zarr", "1.zarr"].into_iter().zip(depths) {
        let spec = ZarrImageSpec::new("field", [1, 1, depth, yx[0], yx[1]], DType::U16);
        let mut writer = ZarrWriter::create(&well.join(name), spec).unwrap();
        let slab = writer.slab_depth(0);
        for z in (0..depth).step_by(slab) {
            let slices = z..(z + slab).min(depth);
            let values = slices.flat_map(|z| (0..yx[0] * yx[1]).map(move |at| (z, at)));
            let values = values.map(|(z, at)| voxel(z, at)).collect();
            writer.write(0, [0, 0, z], &Samples::U16(values)).unwrap();
        }
        let _ = writer.finish().unwrap().publish(Overwrite::Refuse).unwrap();
    }
    let group = |ome: serde_json::Value| {
        serde_json::json!({"zarr_format": 3, "node_type": "group", "attributes": {"ome": ome}}).to_string()
    };
    let wells = serde_json::json!({"plate": {"wells": [{"path": "A/1"}]}});
    std::fs::write(path.join("zarr.json"), group(wells)).unwrap();
    let images = serde_json::json!({"well": {"images": [{"path": "0.zarr"}, {"path": "1.zarr"}]}});
    std::fs::write(well.join("zarr.json"), group(images)).unwrap();
    path.to_owned()
}

#[test]
fn a_dropped_folder_without_stacks_is_reported() {
    let mut fixture = Fixture::new();
    let empty = fixture.path("empty");
    std::fs::create_dir(&empty).unwrap();
    drop_file(&mut fixture, empty);
    fixture.until("the notification", |w| sees(w, "No files were opened"));
}

#[test]
fn a_series_that_a_file_no_longer_has_is_reported() {
    let mut fixture = Fixture::with(|folder| {
        let plain = stack(&folder.join("plain.tif"), "ZYX", &[4, 20, 30]);
        std::fs::create_dir(folder.join("settings")).unwrap();
        let settings = serde_json::json!({ "series_of_file": { plain.to_str().unwrap(): 1 } });
        std::fs::write(folder.join("settings/settings.json"), settings.to_string()).unwrap();
        vec![plain]
    });
    fixture.until("the notification", |w| sees(w, "The first series is shown"));
    fixture.settle();
    assert_eq!(fixture.window.state().document().unwrap().series, 0);
}

#[test]
fn a_position_of_a_plate_is_chosen_and_remembered() {
    let mut fixture = Fixture::with(|f| vec![plate(&f.join("plate.zarr"))]);
    fixture.settle();
    let depth = |fixture: &Fixture| fixture.window.state().document().unwrap().extents.zyx[0];
    assert_eq!(depth(&fixture), 4);
    fixture.click("Series");
    fixture.click("A/1/1.zarr");
    fixture.until("the position", |w| w.state().document().is_some_and(|d| d.series == 1));
    fixture.settle();
    assert_eq!(depth(&fixture), 6);
    assert_eq!(fixture.window.state().document().unwrap().name, "plate.zarr · A/1/1.zarr");
    // The next window shows the same position.
    let plate = fixture.path("plate.zarr");
    open_in_next_window(&mut fixture, plate);
    assert_eq!(depth(&fixture), 6);
}

#[test]
fn a_folder_dropped_on_the_batch_page_adds_its_stacks() {
    let mut fixture = Fixture::with(|f| vec![stack(&f.join("open.tif"), "ZYX", &[4, 16, 24])]);
    fixture.settle();
    let folder = fixture.path("many");
    std::fs::create_dir_all(folder.join("deeper")).unwrap();
    for i in 0..120 {
        stack(&folder.join(format!("s{i:03}.tif")), "ZYX", &[2, 4, 5]);
    }
    stack(&folder.join("deeper/not.tif"), "YX", &[4, 5]);
    std::fs::write(folder.join("notes.txt"), "words").unwrap();
    fixture.window.state_mut().send(Command::Convert);
    fixture.window.run_steps(3);
    let dropped = eframe::egui::DroppedFile { path: Some(folder), ..Default::default() };
    fixture.window.input_mut().dropped_files.push(dropped);
    fixture.until("a summary", |w| sees(w, "120 files added"));
    fixture.window.run_steps(3);
    assert!(fixture.sees("121 files") && !fixture.sees("not.tif"), "{}", fixture.on_screen());
    assert_eq!(fixture.window.state().document().unwrap().name, "open.tif", "nothing was opened");
    let row = fixture.window.query_all_by_label_contains("open.ome.tif").next();
    let row = row.and_then(|n| n.accesskit_node().label().or_else(|| n.accesskit_node().value())).unwrap();
    let has_glyphs = cytoscope_ui::font_fallback::has_glyphs(&fixture.window.ctx, &row);
    assert!(row.starts_with("open.tif") && has_glyphs, "{row}");
    fixture.click("Clear list");
    fixture.until("an empty list", |w| sees(w, "No files yet"));
}

#[test]
fn without_a_dialog_of_the_desktop_files_are_chosen_in_the_window() {
    let mut fixture = Fixture::new();
    fixture.window.state_mut().use_own_file_dialog();
    fixture.window.run_steps(3);
    fixture.window.state_mut().send(Command::Open);
    fixture.until("the dialog", |w| sees(w, "Open stacks or models"));
    accessibility::check(&fixture, "the file dialog");
    fixture.window.key_press(Key::Escape);
    fixture.until("no dialog", |w| !sees(w, "Open stacks or models"));
    fixture.click("Drop a stack here");
    fixture.until("the dialog", |w| sees(w, "Open stacks or models"));
    let path = fixture.path("sample/nuclei_raw.tif");
    paste_path(&mut fixture, &path);
    fixture.settle();
    assert_eq!(fixture.window.state().title(), "nuclei_raw.tif – Cytoscope");
    assert!(!fixture.sees("Open stacks or models"), "{}", fixture.on_screen());
}
