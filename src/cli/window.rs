//! `cytoscope [FILES…]`: the workbench.

use super::failure::{Failure, Outcome};
use cytoscope_pipeline::user_folder;
use cytoscope_ui::WorkbenchOptions;
use std::path::PathBuf;

/// The stack a first look is offered.
const SAMPLE: &str = "nuclei_raw.tif";

/// Opens the window with these files.
pub(crate) fn open(files: Vec<PathBuf>) -> Outcome {
    if let Some(missing) = files.iter().find(|f| !f.exists()) {
        return Err(Failure::wrong_use(format!(
            "{}: there is no such file, and no such command (cytoscope --help lists them)",
            missing.display()
        )));
    }
    let options = WorkbenchOptions {
        files,
        program: std::env::current_exe().ok(),
        settings_path: user_folder().map(|f| f.join("settings.json")),
        sample: sample(),
    };
    cytoscope_ui::run(options).map_err(|e| {
        Failure::other(format!("the window cannot be opened ({e}); every job runs without one, see cytoscope --help"))
    })
}

/// The bundled sample: named by the environment, beside the program, or above it in a source tree.
fn sample() -> Option<PathBuf> {
    let named = std::env::var_os("CYTOSCOPE_SAMPLES").map(PathBuf::from);
    let program = std::env::current_exe().and_then(|p| p.canonicalize()).ok();
    let around = program
        .iter()
        .flat_map(|p| p.ancestors().skip(1).take(5))
        .flat_map(|a| [a.join("sample_data"), a.join("share/cytoscope/sample_data")]);
    named.into_iter().chain(around).map(|f| f.join(SAMPLE)).find(|p| p.is_file())
}
