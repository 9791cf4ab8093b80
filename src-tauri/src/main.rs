//! The installed entry point: Tauri integrates with the desktop, the supervisor runs the window.
#![forbid(unsafe_code)]
#![cfg_attr(windows, windows_subsystem = "windows")]

use cytoscope_shell::{OpenRequest, Supervisor, WindowCommand};
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use tauri::{AppHandle, RunEvent};

/// Executable of the window, in the same folder as this one.
const WINDOW: &str = if cfg!(windows) { "cytoscope.exe" } else { "cytoscope" };

fn main() -> ExitCode {
    let print_error = |text: &str| {
        // Standard error may be closed.
        let _ = writeln!(std::io::stderr(), "cytoscope-desktop: {text}");
    };
    let set = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty());
    // Without a display GTK aborts the process.
    if cfg!(target_os = "linux") && !["DISPLAY", "WAYLAND_DISPLAY"].into_iter().any(set) {
        print_error(
            "there is no display (neither DISPLAY nor WAYLAND_DISPLAY is set); every job runs without one, see \
             cytoscope --help",
        );
        return ExitCode::FAILURE;
    }
    let Some(program) = std::env::current_exe().ok().and_then(|p| p.parent().map(|f| f.join(WINDOW))) else {
        print_error("cannot determine the path of this program; install Cytoscope again");
        return ExitCode::FAILURE;
    };
    let folder = std::env::current_dir().unwrap_or_default();
    let first = OpenRequest::from_arguments(std::env::args_os().skip(1), &folder);
    let supervisor = Supervisor::default();
    let for_launches = supervisor.clone();
    #[cfg(target_os = "macos")]
    let for_events = supervisor.clone();
    let forwarded = move |_: &AppHandle, arguments: Vec<String>, folder: String| {
        let arguments = arguments.into_iter().skip(1).map(OsString::from);
        for_launches.open(&OpenRequest::from_arguments(arguments, Path::new(&folder)));
    };
    let built = tauri::Builder::default()
        .plugin(tauri_plugin_single_instance::init(forwarded))
        .setup(move |app| {
            #[cfg(target_os = "macos")]
            app.set_activation_policy(tauri::ActivationPolicy::Accessory);
            let window = WindowCommand { program, arguments: vec!["--shell".into()], environment: Vec::new() };
            let handle = app.handle().clone();
            supervisor.start(window, first, move |code| handle.exit(code))?;
            Ok(())
        })
        .build(tauri::generate_context!());
    let app = match built {
        Ok(app) => app,
        Err(error) => {
            print_error(&format!("cannot connect to the desktop: {error}"));
            return ExitCode::FAILURE;
        }
    };
    app.run(move |_, event| match event {
        // This process never opens a window itself; only the supervisor ends it.
        RunEvent::ExitRequested { code: None, api, .. } => api.prevent_exit(),
        #[cfg(target_os = "macos")]
        RunEvent::Opened { urls } => {
            // The application is registered for files only, so that no other addresses are sent to it.
            for_events.open(&OpenRequest::from_paths(urls.iter().filter_map(|u| u.to_file_path().ok())));
        }
        #[cfg(target_os = "macos")]
        RunEvent::Reopen { .. } => for_events.open(&OpenRequest::default()),
        _ => {}
    });
    ExitCode::SUCCESS
}
