//! Snapshots of the window, rendered by a software graphics driver. `UPDATE_SNAPSHOTS=1` updates them.

use crate::fixture::sees;
use cytoscope_ui::command::Command;
use cytoscope_ui::data::plane::Orientation;
use cytoscope_ui::{Workbench, WorkbenchOptions};
use egui_kittest::{Harness, SnapshotOptions};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Drivers round differently, which may shift a row of pixels; a button that moves changes thousands of pixels.
const MAX_DIFFERING_PIXELS: usize = 1000;

fn rendered_window(files: Vec<PathBuf>) -> Harness<'static, Workbench> {
    let sample = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("sample_data/nuclei_raw.tif");
    // Without an engine, whose status would appear at unpredictable times.
    let options = WorkbenchOptions { files, sample: Some(sample), ..WorkbenchOptions::default() };
    Harness::builder()
        .with_size([820.0, 540.0])
        .with_step_dt(1.0 / 60.0)
        .wgpu()
        .build_eframe(move |cc| Workbench::new(&cc.egui_ctx, options))
}

fn compare(window: &mut Harness<'static, Workbench>, name: &str) {
    let options = SnapshotOptions::new()
        .threshold(3.0)
        .failed_pixel_count_threshold(MAX_DIFFERING_PIXELS)
        .output_path(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/window/snapshots"));
    window.snapshot_options(name, &options);
}

#[test]
fn empty_window_in_dark_and_light() {
    let mut window = rendered_window(Vec::new());
    window.state_mut().send(Command::NextTheme);
    window.run_steps(4);
    assert!(sees(&window, "Drop a stack here"));
    compare(&mut window, "empty_light");
    window.state_mut().send(Command::NextTheme);
    window.run_steps(4);
    compare(&mut window, "empty_dark");
}

#[test]
fn sample_in_three_slice_views() {
    let sample = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("sample_data/nuclei_raw.tif");
    let mut window = rendered_window(vec![sample]);
    window.state_mut().send(Command::NextTheme);
    window.state_mut().send(Command::NextTheme);
    for command in [Command::Toggle3d, Command::ToggleTasks] {
        window.state_mut().send(command);
    }
    let end = Instant::now() + Duration::from_secs(120);
    let whole = |w: &Workbench| w.is_settled() && Orientation::ALL.iter().all(|o| w.shows(*o));
    while window.state().document().is_none() || !whole(window.state()) {
        assert!(Instant::now() < end, "the sample did not load");
        window.step();
        std::thread::sleep(Duration::from_millis(4));
    }
    window.run_steps(4);
    compare(&mut window, "sample_in_three_views");
}
