//! A hand that corrects labels: where voxels are on screen, what the pointer draws, which labels there are then.

use crate::desk::{Desk, sees};
use cytoscope_ui::correct::Phase;
use cytoscope_ui::data::plane::Orientation;
use eframe::egui::{Key, Modifiers, Pos2, vec2};
use egui_kittest::kittest::Queryable;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// Extents Z, Y, X of the sample.
pub const SHAPE: [usize; 3] = [32, 160, 160];

/// Points that a view leaves free around a fitted picture, both sides together.
const MARGIN: f64 = 12.0;

/// Where the sample's corrected labels are saved.
pub fn corrected(desk: &Desk) -> PathBuf {
    desk.path("sample/cytoscope/nuclei_raw_corrected_labels.tif")
}

/// The sample with corrections begun from nothing.
pub fn begun() -> Desk {
    let mut desk = Desk::new();
    desk.click("Open the sample");
    desk.settle();
    begin(&mut desk);
    desk
}

/// Corrections of the stack on screen, begun from nothing or gone on with.
pub fn begin(desk: &mut Desk) {
    desk.click("Correct");
    desk.click("Start from nothing on this stack");
    tools(desk);
}

/// Waits for the tools.
pub fn tools(desk: &mut Desk) {
    desk.until("the tools", |w| {
        let state = w.state();
        state.document().and_then(|d| state.corrections().of(d.id)).is_some_and(|c| c.phase == Phase::Open)
    });
    desk.settle();
}

/// The slice on screen.
pub fn slice(desk: &Desk) -> usize {
    desk.window.state().document().unwrap().cursor[0]
}

/// Goes to a slice with the keys for it.
pub fn go_to(desk: &mut Desk, z: usize) {
    while slice(desk) != z {
        desk.window.key_press(if slice(desk) < z { Key::PageUp } else { Key::PageDown });
        desk.window.step();
    }
    desk.settle();
}

/// Where voxel coordinates are on screen in a view that is fitted.
pub fn place(desk: &Desk, view: Orientation, zyx: [f64; 3]) -> Pos2 {
    let rect = desk.window.get_by_label_contains(&format!("{} view", view.name())).rect();
    let document = desk.window.state().document().unwrap();
    let [_, rows, columns] = view.axes();
    let um = |a: usize| document.extents.zyx[a] as f64 * document.voxel_um[a];
    let scale = ((f64::from(rect.height()) - MARGIN) / um(rows)).min((f64::from(rect.width()) - MARGIN) / um(columns));
    let off = |a: usize| (((zyx[a] + 0.5) * document.voxel_um[a] - um(a) / 2.0) * scale) as f32;
    rect.center() + vec2(off(columns), off(rows))
}

/// Draws from one place to another in a view.
pub fn draw(desk: &mut Desk, view: Orientation, from: [f64; 3], to: [f64; 3]) {
    let (from, to) = (place(desk, view, from), place(desk, view, to));
    desk.window.hover_at(from);
    desk.window.step();
    desk.window.drag_at(from);
    desk.window.step();
    desk.window.hover_at(to);
    desk.window.step();
    desk.window.drop_at(to);
    desk.window.step();
    desk.settle();
}

/// Draws from (row, column) to (row, column) in the XY view.
pub fn stroke(desk: &mut Desk, from: (f64, f64), to: (f64, f64)) {
    draw(desk, Orientation::Xy, [0.0, from.0, from.1], [0.0, to.0, to.1]);
}

/// Clicks at (row, column) of the XY view.
pub fn touch(desk: &mut Desk, row: f64, column: f64) {
    stroke(desk, (row, column), (row, column));
}

/// Presses a key and waits for what it does.
pub fn press(desk: &mut Desk, key: Key) {
    desk.window.key_press(key);
    desk.window.step();
    desk.settle();
}

/// Presses a key with Ctrl (or ⌘) and waits for what it does.
pub fn command(desk: &mut Desk, key: Key) {
    desk.window.key_press_modifiers(Modifiers::COMMAND, key);
    desk.window.step();
    desk.settle();
}

/// Values of a label image.
pub fn read(path: &Path) -> Vec<u32> {
    let image = cytoscope_formats::open(path, &cytoscope_formats::OpenOptions::default()).unwrap();
    image.read_all().unwrap().samples().to_f32().into_iter().map(|v| v as u32).collect()
}

/// The label of a voxel.
pub fn at(labels: &[u32], [z, y, x]: [usize; 3]) -> u32 {
    labels[(z * SHAPE[1] + y) * SHAPE[2] + x]
}

/// Every voxel of the sample, in the order of its labels.
pub fn places() -> impl Iterator<Item = [usize; 3]> {
    let [nz, ny, nx] = SHAPE;
    (0..nz).flat_map(move |z| (0..ny).flat_map(move |y| (0..nx).map(move |x| [z, y, x])))
}

/// Voxels of a label.
pub fn voxels(labels: &[u32], label: u32) -> Vec<[usize; 3]> {
    places().zip(labels).filter(|(_, l)| **l == label).map(|(at, _)| at).collect()
}

/// Saves with the keys for it; what is in the file then.
pub fn save(desk: &mut Desk) -> Vec<u32> {
    desk.window.key_press_modifiers(Modifiers::COMMAND, Key::S);
    desk.window.step();
    desk.until("the file", |w| sees(w, "All saved"));
    desk.settle();
    read(&corrected(desk))
}

/// Labels of the session as they are now, saved or not.
pub fn held(desk: &Desk) -> Vec<u32> {
    let state = desk.window.state();
    let correction = state.document().and_then(|d| state.corrections().of(d.id)).unwrap();
    correction.state.as_ref().unwrap().labels.to_dense()
}

/// A number that labels of other values hardly share; the same in every process.
pub fn digest(labels: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    labels.hash(&mut hasher);
    hasher.finish()
}

/// The label that is drawn with.
pub fn current(desk: &Desk) -> u32 {
    let state = desk.window.state();
    state.document().and_then(|d| state.corrections().of(d.id)).unwrap().label
}

/// Size of a voxel Z, Y, X in µm.
pub fn voxel_um(desk: &Desk) -> [f64; 3] {
    desk.window.state().document().unwrap().voxel_um
}

/// Distance in µm of two places.
pub fn apart_um(voxel_um: [f64; 3], a: [f64; 3], b: [f64; 3]) -> f64 {
    (0..3).map(|i| ((a[i] - b[i]) * voxel_um[i]).powi(2)).sum::<f64>().sqrt()
}
