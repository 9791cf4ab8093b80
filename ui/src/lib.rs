//! The window: viewing stacks, predicting, correcting labels and training.
//!
//! The crate owns only what is on screen: files are read by `formats`, jobs run in the engine process
//! behind the client of `worker`, and slow work runs on other threads whose results come back as values
//! ([`data::loader`], [`opener`], [`work`]).
//!
//! [`Workbench`] consists of seven states: open stacks, jobs, training, corrections, models, files to convert and to score,
//! and what the window shows. Each owns its fields and changes only by its actions; whatever else follows from an action is
//! returned as effects. Panels and views read the states and send actions and [`command::Command`]s, which are applied at
//! the end of the frame.
//!
//! Failures become notifications: a failed job or file shows an explanation and a next step, and the window keeps
//! running.
#![forbid(unsafe_code)]

mod action;
pub mod app;
mod batch;
mod channels;
pub mod command;
pub mod compare;
pub mod correct;
pub mod data;
pub mod diameter;
mod disk;
mod display;
pub mod document;
mod documents;
mod effect;
mod engine_notes;
mod executor;
mod file_browser;
pub mod file_dialog;
pub mod font_fallback;
mod jobs;
pub mod line_profile;
mod measure;
mod models;
pub mod notifications;
mod number_text;
pub mod opener;
mod overwrite;
pub mod panels;
mod picture;
pub mod preprocess;
mod provenance;
pub mod queue;
mod quit;
mod rerun;
pub mod results;
pub mod runs;
pub mod screenshots;
pub mod settings;
pub mod shell;
mod state;
mod stored;
pub mod theme;
pub mod training;
mod typed_ahead;
mod update;
pub mod views;
mod voxel_size;
pub mod work;

pub use app::{Workbench, WorkbenchOptions};

use eframe::egui;
use std::io::{Read, Write};

/// The window's icon.
const ICON: &[u8] = include_bytes!("../assets/icon.png");

/// Initial size of the window in points.
const WINDOW_SIZE: [f32; 2] = [1360.0, 860.0];

/// Minimum size of the window in points.
const MIN_WINDOW_SIZE: [f32; 2] = [640.0, 480.0];

/// Input and output connected to the shell process that started the window.
pub type ShellPipes = (Box<dyn Read + Send>, Box<dyn Write + Send>);

/// Opens the window and returns when it is closed.
///
/// # Errors
/// A message if there is no display or the graphics driver cannot draw on it.
pub fn run(options: WorkbenchOptions, shell: Option<ShellPipes>) -> Result<(), String> {
    let set = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty());
    if cfg!(target_os = "linux") && !["DISPLAY", "WAYLAND_DISPLAY", "WAYLAND_SOCKET"].into_iter().any(set) {
        return Err("there is no display: neither DISPLAY nor WAYLAND_DISPLAY is set".to_owned());
    }
    let native = eframe::NativeOptions {
        viewport: egui::ViewportBuilder::default()
            .with_title("Cytoscope")
            .with_app_id("cytoscope")
            .with_inner_size(WINDOW_SIZE)
            .with_min_inner_size(MIN_WINDOW_SIZE)
            .with_drag_and_drop(true)
            // The icon is a constant: decoding it does not fail.
            .with_icon(eframe::icon_data::from_png_bytes(ICON).unwrap_or_default()),
        #[cfg(target_os = "macos")]
        event_loop_builder: Some(Box::new(|builder| {
            use winit::platform::macos::{ActivationPolicy, EventLoopBuilderExtMacOS};
            // The launcher's bundle has no Dock icon, so the window needs its own.
            builder.with_activation_policy(ActivationPolicy::Regular);
        })),
        ..Default::default()
    };
    let start = move |cc: &eframe::CreationContext<'_>| {
        let mut workbench = Workbench::new(&cc.egui_ctx, options);
        if let Some((input, output)) = shell {
            workbench.connect_shell(input, output)?;
        }
        Ok(Box::new(workbench) as Box<dyn eframe::App>)
    };
    eframe::run_native("cytoscope", native, Box::new(start)).map_err(|e| e.to_string())
}
