//! Time until the first slice of a 10 GB stack is shown: `cargo run --release --example first_slice [FILE]`.
//!
//! Without FILE, a sparse file is created, which occupies no disk space but is read like any other; the second read comes
//! from the page cache.
//! Frames are laid out and planes composed as in the window; drawing on the GPU is left out.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement")]

use cytoscope_ui::data::plane::Orientation;
use cytoscope_ui::{Workbench, WorkbenchOptions};
use egui_kittest::Harness;
use null_renderer::NullRenderer;
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[path = "../tests/window/null_renderer.rs"]
mod null_renderer;

/// Slices, rows, columns of 16-bit voxels: 10.07 GB.
const SHAPE: [u64; 3] = [1200, 2048, 2048];

fn sparse(folder: &std::path::Path) -> PathBuf {
    let path = folder.join("ten_gigabytes.npy");
    let [z, y, x] = SHAPE;
    let mut header = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    header.extend(format!("{{'descr': '<u2', 'fortran_order': False, 'shape': ({z}, {y}, {x}), }}").bytes());
    header.resize(127, b' ');
    header.push(b'\n');
    std::fs::write(&path, &header).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(128 + z * y * x * 2).unwrap();
    path
}

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let path = std::env::args_os().nth(1).map_or_else(|| sparse(folder.path()), PathBuf::from);
    for _ in 0..5 {
        let mut window: Harness<'_, Workbench> = Harness::builder()
            .with_size([1360.0, 860.0])
            .renderer(NullRenderer)
            .build_eframe(|cc| Workbench::new(&cc.egui_ctx, WorkbenchOptions::default()));
        window.run_steps(3);
        let began = Instant::now();
        window.state_mut().open_paths(std::slice::from_ref(&path));
        let mut until = |what: &str, is: &dyn Fn(&Workbench) -> bool| {
            while !is(window.state()) {
                window.step();
                std::thread::sleep(Duration::from_millis(1));
            }
            print!("{what} after {:.0} ms   ", began.elapsed().as_secs_f64() * 1e3);
        };
        until("opened", &|w| w.document().is_some());
        until("XY slice", &|w| w.shows(Orientation::Xy));
        until("all three views", &|w| Orientation::ALL.iter().all(|o| w.shows(*o)));
        println!();
    }
}
