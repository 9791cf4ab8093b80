//! Gestures: choosing and dropping files; for correcting labels, screen positions of voxels, strokes and clicks, and the
//! resulting labels.

use crate::fixture::{Fixture, sees};
use cytoscope_ui::Workbench;
use cytoscope_ui::correct::Phase;
use cytoscope_ui::data::plane::Orientation;
use cytoscope_ui::document::Role;
use eframe::egui::accesskit::Toggled;
use eframe::egui::{DroppedFile, Event, Key, Modifiers, Pos2, vec2};
use egui_kittest::Harness;
use egui_kittest::kittest::{NodeT, Queryable};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Shape Z, Y, X of the sample.
pub const SHAPE: [usize; 3] = [32, 160, 160];

/// Margin of a view around a fitted image: points, both sides together.
const MARGIN: f64 = 12.0;

/// The path that the sample's corrected labels are saved to.
pub fn corrected(fixture: &Fixture) -> PathBuf {
    fixture.path("sample/cytoscope/nuclei_raw_corrected_labels.tif")
}

/// Opens the sample and predicts its labels with the model that the window suggests.
pub fn sample_predicted() -> Fixture {
    predicted(Fixture::new())
}

/// Opens and predicts the middle of the sample.
pub fn small_sample_predicted() -> Fixture {
    predicted(Fixture::with_small_sample())
}

/// Opens and predicts the sample of a window.
fn predicted(mut fixture: Fixture) -> Fixture {
    fixture.click("Open the sample");
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    fixture.click_enabled("Predict this stack");
    fixture.until("labels", |w| {
        w.state().document().is_some_and(|d| d.overlay_with_role(Role::Labels).is_some() && d.results.is_some())
    });
    fixture.settle();
    fixture
}

/// Whether the checkbox with this name is checked; `None` if it is not on screen.
pub fn toggled(window: &Harness<'static, Workbench>, name: &str) -> Option<Toggled> {
    window.query_by_label(name)?.accesskit_node().toggled()
}

/// Accepts the name that the window's own file dialog suggests for a new file.
pub fn save_as_suggested(fixture: &mut Fixture) {
    fixture.until("the dialog", |w| sees(w, "Save file"));
    fixture.window.get_by_label("File name").click();
    fixture.window.run_steps(3);
    fixture.window.key_press(Key::Enter);
    fixture.window.run_steps(3);
}

/// Enters the path of a file in the window's own file dialog, and waits until that is closed.
pub fn enter_path(fixture: &mut Fixture, path: &Path) {
    let is_open = |w: &Harness<'static, Workbench>| w.query_by_label("File name").is_some();
    fixture.until("the dialog", is_open);
    fixture.type_into("File name", &path.display().to_string());
    fixture.window.key_press(Key::Enter);
    fixture.until("no dialog", |w| !is_open(w));
}

/// Pastes the path of a file or folder into the window's own file dialog and accepts it within one frame.
pub fn paste_path(fixture: &mut Fixture, path: &Path) {
    fixture.window.get_by_label("File name").click();
    fixture.window.run_steps(3);
    let (key, modifiers) = (Key::Enter, Modifiers::NONE);
    let enter = Event::Key { key, physical_key: None, pressed: true, repeat: false, modifiers };
    fixture.window.input_mut().events.extend([Event::Text(path.display().to_string()), enter]);
}

/// Chooses a folder in the window's own file dialog, which the button opens.
pub fn choose_folder(fixture: &mut Fixture, button: &str, folder: &Path) {
    // A click is lost if the button moves at that moment.
    for _ in 0..20 {
        fixture.click(button);
        let end = Instant::now() + Duration::from_secs(1);
        while !fixture.sees("Choose this folder") && Instant::now() < end {
            fixture.window.step();
        }
        if fixture.sees("Choose this folder") {
            break;
        }
    }
    fixture.until("the dialog", |w| sees(w, "Choose this folder"));
    paste_path(fixture, folder);
    let path = folder.display().to_string();
    fixture.until("the folder", |w| sees(w, &path));
    fixture.click("Choose this folder");
    fixture.until("no dialog", |w| !sees(w, "Choose this folder"));
}

/// Drops a file on the window.
pub fn drop_file(fixture: &mut Fixture, path: PathBuf) {
    let file = DroppedFile { path: Some(path), ..DroppedFile::default() };
    fixture.window.input_mut().dropped_files.push(file);
}

/// Opens the sample and starts correcting from empty labels.
pub fn correcting_sample() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.click("Open the sample");
    fixture.settle();
    start_correcting(&mut fixture);
    fixture
}

/// Starts correcting the stack on screen from empty labels, or continues its earlier corrections.
pub fn start_correcting(fixture: &mut Fixture) {
    fixture.click("Correct");
    fixture.click("Label this stack");
    wait_for_tools(fixture);
}

/// Waits until the correction session is open.
pub fn wait_for_tools(fixture: &mut Fixture) {
    fixture.until("the tools", |w| {
        let state = w.state();
        state.document().and_then(|d| state.corrections().of(d.id)).is_some_and(|c| c.phase == Phase::Open)
    });
    fixture.settle();
}

/// The Z slice at the crosshair.
pub fn current_slice(fixture: &Fixture) -> usize {
    fixture.window.state().document().unwrap().cursor[0]
}

/// Goes to a Z slice with the keys.
pub fn go_to_slice(fixture: &mut Fixture, z: usize) {
    while current_slice(fixture) != z {
        fixture.window.key_press(if current_slice(fixture) < z { Key::PageUp } else { Key::PageDown });
        fixture.window.step();
    }
    fixture.settle();
}

/// Screen position of voxel coordinates in a view that is fitted.
pub fn screen_position(fixture: &Fixture, view: Orientation, zyx: [f64; 3]) -> Pos2 {
    let rect = fixture.window.get_by_label_contains(&format!("{} view", view.name())).rect();
    let document = fixture.window.state().document().unwrap();
    let [_, rows, columns] = view.axes();
    let um = |a: usize| document.extents.zyx[a] as f64 * document.voxel_um[a];
    let scale = ((f64::from(rect.height()) - MARGIN) / um(rows)).min((f64::from(rect.width()) - MARGIN) / um(columns));
    let off = |a: usize| (((zyx[a] + 0.5) * document.voxel_um[a] - um(a) / 2.0) * scale) as f32;
    rect.center() + vec2(off(columns), off(rows))
}

/// Presses the button at a position on screen and moves to another one, in this number of frames. The button stays pressed.
pub fn drag(fixture: &mut Fixture, from: Pos2, to: Pos2, frames: usize) {
    fixture.window.hover_at(from);
    fixture.window.step();
    fixture.window.drag_at(from);
    for i in 1..=frames {
        fixture.window.step();
        fixture.window.hover_at(from + (to - from) * (i as f32 / frames as f32));
    }
    fixture.window.step();
}

/// Releases the button at a position on screen.
pub fn release(fixture: &mut Fixture, at: Pos2) {
    fixture.window.drop_at(at);
    fixture.window.step();
}

/// Begins a stroke from (row, column) to (row, column) in the XY view, and returns its end on screen. The button stays pressed.
pub fn begin_stroke(fixture: &mut Fixture, from: (f64, f64), to: (f64, f64)) -> Pos2 {
    let [from, to] = [from, to].map(|(row, column)| screen_position(fixture, Orientation::Xy, [0.0, row, column]));
    drag(fixture, from, to, 1);
    to
}

/// Drags the pointer from one voxel position to another in a view.
pub fn draw(fixture: &mut Fixture, view: Orientation, from: [f64; 3], to: [f64; 3]) {
    let (from, to) = (screen_position(fixture, view, from), screen_position(fixture, view, to));
    drag(fixture, from, to, 1);
    release(fixture, to);
    fixture.settle();
}

/// Drags the pointer from (row, column) to (row, column) in the XY view.
pub fn stroke(fixture: &mut Fixture, from: (f64, f64), to: (f64, f64)) {
    draw(fixture, Orientation::Xy, [0.0, from.0, from.1], [0.0, to.0, to.1]);
}

/// Clicks at (row, column) of the XY view.
pub fn click_at(fixture: &mut Fixture, row: f64, column: f64) {
    stroke(fixture, (row, column), (row, column));
}

/// Presses a key and waits until the window settles.
pub fn press(fixture: &mut Fixture, key: Key) {
    fixture.window.key_press(key);
    fixture.window.step();
    fixture.settle();
}

/// Presses a key with Ctrl (or ⌘) and waits until the window settles.
pub fn command(fixture: &mut Fixture, key: Key) {
    fixture.window.key_press_modifiers(Modifiers::COMMAND, key);
    fixture.window.step();
    fixture.settle();
}

/// Reads the values of a label image.
pub fn read_labels(path: &Path) -> Vec<u32> {
    let image = cytoscope_formats::open(path, &cytoscope_formats::OpenOptions::default()).unwrap();
    image.read_all().unwrap().samples().to_f32().into_iter().map(|v| v as u32).collect()
}

/// The label of a voxel.
pub fn label_at(labels: &[u32], [z, y, x]: [usize; 3]) -> u32 {
    labels[(z * SHAPE[1] + y) * SHAPE[2] + x]
}

/// All voxel positions of the sample, in memory order.
pub fn voxel_positions() -> impl Iterator<Item = [usize; 3]> {
    let [nz, ny, nx] = SHAPE;
    (0..nz).flat_map(move |z| (0..ny).flat_map(move |y| (0..nx).map(move |x| [z, y, x])))
}

/// Voxel positions of a label.
pub fn label_positions(labels: &[u32], label: u32) -> Vec<[usize; 3]> {
    voxel_positions().zip(labels).filter(|(_, l)| **l == label).map(|(at, _)| at).collect()
}

/// Saves with the keyboard shortcut and returns the labels in the file.
pub fn save(fixture: &mut Fixture) -> Vec<u32> {
    fixture.window.key_press_modifiers(Modifiers::COMMAND, Key::S);
    fixture.window.step();
    fixture.until("the file", |w| sees(w, "All saved"));
    fixture.settle();
    read_labels(&corrected(fixture))
}

/// Current labels of the correction session, saved or not.
pub fn session_labels(fixture: &Fixture) -> Vec<u32> {
    let state = fixture.window.state();
    let correction = state.document().and_then(|d| state.corrections().of(d.id)).unwrap();
    correction.state.as_ref().unwrap().labels.to_dense()
}

/// Hash of labels; the same in every process.
pub fn digest(labels: &[u32]) -> u64 {
    labels
        .iter()
        .fold(0u64, |hash, label| (hash.rotate_left(5) ^ u64::from(*label)).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// The label that the brush paints.
pub fn current_label(fixture: &Fixture) -> u32 {
    let state = fixture.window.state();
    state.document().and_then(|d| state.corrections().of(d.id)).unwrap().label
}

/// Voxel size Z, Y, X in µm.
pub fn voxel_um(fixture: &Fixture) -> [f64; 3] {
    fixture.window.state().document().unwrap().voxel_um
}

/// Distance in µm between two voxel positions.
pub fn distance_um(voxel_um: [f64; 3], a: [f64; 3], b: [f64; 3]) -> f64 {
    (0..3).map(|i| ((a[i] - b[i]) * voxel_um[i]).powi(2)).sum::<f64>().sqrt()
}
