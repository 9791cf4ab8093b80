//! CPU time of a frame while scrolling through a stack: `cargo run --release --example frame_cost`.
//!
//! Frames are laid out and planes composed as in the window; drawing on the GPU is left out.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement")]

use cpu_time::ThreadTime;
use cytoscope_ui::{Workbench, WorkbenchOptions};
use eframe::egui::Key;
use egui_kittest::Harness;
use null_renderer::NullRenderer;
use std::time::Duration;

#[path = "../tests/window/null_renderer.rs"]
mod null_renderer;

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cube.npy");
    let n = 512usize;
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend(format!("{{'descr': '<u2', 'fortran_order': False, 'shape': ({n}, {n}, {n}), }}").bytes());
    bytes.resize(127, b' ');
    bytes.push(b'\n');
    bytes.extend((0..n * n * n).flat_map(|i| ((i * 2_654_435_761) as u16).to_le_bytes()));
    std::fs::write(&path, bytes).unwrap();
    let options = WorkbenchOptions { files: vec![path], ..WorkbenchOptions::default() };
    let mut window: Harness<'_, Workbench> = Harness::builder()
        .with_size([1360.0, 860.0])
        .renderer(NullRenderer)
        .build_eframe(move |cc| Workbench::new(&cc.egui_ctx, options));
    while window.state().document().is_none() || !window.state().is_settled() {
        window.step();
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut costs = Vec::new();
    for i in 0..400 {
        window.key_press(if i % 2 == 0 { Key::PageUp } else { Key::F13 });
        let (wall, cpu) = (std::time::Instant::now(), ThreadTime::now());
        window.step();
        costs.push((wall.elapsed().as_secs_f64() * 1e3, cpu.elapsed().as_secs_f64() * 1e3));
        std::thread::sleep(Duration::from_millis(8));
    }
    let mut cpu: Vec<f64> = costs.iter().map(|c| c.1).collect();
    let mut wall: Vec<f64> = costs.iter().map(|c| c.0).collect();
    cpu.sort_by(f64::total_cmp);
    wall.sort_by(f64::total_cmp);
    for (name, values) in [("CPU time of the window's thread", &cpu), ("wall time", &wall)] {
        let at = |share: f64| values[((values.len() - 1) as f64 * share) as usize];
        println!("{name}: median {:.2} ms, 95 % {:.2} ms, maximum {:.2} ms per frame", at(0.5), at(0.95), at(1.0));
    }
}
