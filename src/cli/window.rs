//! `cytoscope [FILES…]`: opens the window.

use super::failure::{Failure, Outcome};
use super::worker::own_stdout;
use cytoscope_pipeline::{log_folder, program_folders, user_folder};
use cytoscope_ui::{ShellPipes, WorkbenchOptions};
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::Duration;

/// File name of the sample stack that the start screen offers.
const SAMPLE: &str = "nuclei_raw.tif";

/// Time that the window has to close after its supervisor has ended.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);

/// Opens the window with these files. If `shell` is set, the supervisor (`src-tauri`) started it, and they communicate
/// as docs/shell-protocol.md describes.
pub(crate) fn open(files: Vec<PathBuf>, shell: bool) -> Outcome {
    if let Some(missing) = files.iter().find(|f| !f.exists()) {
        return Err(Failure::wrong_use(format!("{}: there is no such file or command", missing.display()))
            .and_next("run cytoscope --help for the commands"));
    }
    let options = WorkbenchOptions {
        files,
        program: std::env::current_exe().ok(),
        settings_path: user_folder().map(|f| f.join("settings.json")),
        sample: sample(),
        log_folder: log_folder(),
        ..WorkbenchOptions::default()
    };
    let pipes = if shell { Some(pipes()?) } else { None };
    cytoscope_ui::run(options, pipes).map_err(|e| {
        Failure::other(format!(
            "the window cannot be opened ({e}); every job also runs from the command line, see cytoscope --help"
        ))
    })
}

/// Returns standard input and output, reserved for the supervisor.
fn pipes() -> Result<ShellPipes, Failure> {
    let output =
        own_stdout().map_err(|e| Failure::other(format!("standard output cannot be reserved for the shell: {e}")))?;
    Ok((Box::new(ShellInput(io::stdin())), Box::new(output)))
}

/// Standard input from the supervisor. If the window is still open [`SHUTDOWN_GRACE`] after EOF (a graphics driver may
/// hang), the process exits.
struct ShellInput(io::Stdin);

impl Read for ShellInput {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(bytes);
        if matches!(read, Ok(0)) {
            std::thread::spawn(|| {
                std::thread::sleep(SHUTDOWN_GRACE);
                std::process::exit(1);
            });
        }
        read
    }
}

/// Finds the bundled sample: in the folder that `CYTOSCOPE_SAMPLES` names, beside the program, or above it in a source
/// tree.
fn sample() -> Option<PathBuf> {
    let named = std::env::var_os("CYTOSCOPE_SAMPLES").map(PathBuf::from);
    let around = program_folders()
        .into_iter()
        .flat_map(|a| [a.join("sample_data"), a.join("share/cytoscope/sample_data"), a.join("Resources/sample_data")]);
    named.into_iter().chain(around).map(|f| f.join(SAMPLE)).find(|p| p.is_file())
}
