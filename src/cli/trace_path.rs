//! Where the trace of a command may be written: a trace is a by-product and never replaces anything but an earlier one.

use super::failure::{Failure, Outcome};
use cytoscope_formats::is_zarr_folder;
use cytoscope_model_package::is_package;
use cytoscope_pipeline::ArtifactKind;
use cytoscope_storage::message;
use cytoscope_storage::setting::TRACE;
use cytoscope_storage::target::{check_extension, check_file, resolved};
use cytoscope_storage::{Manifest, Overwrite};
use std::path::{Path, PathBuf};

/// Checks, before the run, that its trace may be written: its name ends in `.json`, and its path is neither an input,
/// nor an output, nor a file of an input folder, nor inside a package or an OME-Zarr folder.
///
/// `outputs` are the files and folders that the command writes besides the trace.
///
/// # Errors
/// Invalid usage if the path may not be written to.
pub(crate) fn check_trace(trace: &Path, inputs: &[&Path], outputs: &[&Path], overwrite: Overwrite) -> Outcome {
    check_file(trace, inputs, overwrite)?;
    check_extension(trace, &["json"])?;
    let refused = |what: &str| {
        let problem = message!("{TRACE} {}: the path {what}", trace.display());
        Err(Failure::wrong_use(problem).and_next("write the trace to another path"))
    };
    let path = resolved(trace);
    let is_inside = |folder: &Path| path.starts_with(resolved(folder));
    if let Some(output) = outputs.iter().find(|output| is_inside(output)) {
        return refused(&format!("is that of an output, or inside one ({})", output.display()));
    }
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if matches!(ArtifactKind::from_name(&name), Some((ArtifactKind::Provenance, _))) {
        return refused("has the name of a provenance record");
    }
    if let Some(folder) = whole_around(&path) {
        return refused(&format!("is inside {}, which the trace would change", folder.display()));
    }
    let is_of_input = |input: &&&Path| input.is_dir() && is_inside(input);
    match inputs.iter().find(is_of_input).filter(|_| path.exists()) {
        Some(folder) => refused(&format!("is that of a file in the input folder {}", folder.display())),
        None => Ok(()),
    }
}

/// Returns the folder around a path that is a whole, such as a package or an OME-Zarr folder; a file that is written into
/// it would change it.
pub(crate) fn whole_around(path: &Path) -> Option<PathBuf> {
    // A working folder, such as that of a bench, may hold traces.
    let is_finished = |folder: &Path| Manifest::from_folder(folder).is_some_and(|manifest| manifest.files.is_some());
    let is_whole = |folder: &&Path| is_finished(folder) || is_package(folder) || is_zarr_folder(folder);
    let path = resolved(path);
    path.ancestors().skip(1).find(is_whole).map(Path::to_owned)
}
