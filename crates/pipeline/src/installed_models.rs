//! The folders of installed models, and models that are given by path or name.

use crate::JobError;
use crate::job_record::absolute;
use crate::packages::is_model;
use crate::program::program_folders;
use cytoscope_storage::read::open_regular;
use directories::BaseDirs;
use std::io::Read;
use std::path::{Component, Path, PathBuf, is_separator};

/// Returns the folders in which models are looked up by name: the one that `CYTOSCOPE_MODELS` names, `models/` beside
/// the program (or above it, in a source tree), then the user's folder.
pub fn model_folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    if let Some(folder) = std::env::var_os("CYTOSCOPE_MODELS") {
        folders.push(PathBuf::from(folder));
    }
    let around = program_folders().into_iter();
    folders
        .extend(around.flat_map(|a| [a.join("models"), a.join("share/cytoscope/models"), a.join("Resources/models")]));
    folders.extend(user_folder().map(|f| f.join("models")));
    folders.retain(|f| f.is_dir());
    folders.dedup();
    folders
}

/// Returns the user's folder for models, settings and logs: `cytoscope` in `$XDG_DATA_HOME` or `~/.local/share` on
/// Linux, `Cytoscope` in `~/Library/Application Support` on macOS and in the roaming application data on Windows.
/// `None` if the user has no home folder.
pub fn user_folder() -> Option<PathBuf> {
    let name = if cfg!(any(windows, target_os = "macos")) { "Cytoscope" } else { "cytoscope" };
    Some(BaseDirs::new()?.data_dir().join(name))
}

/// Returns the folder of the log files, one for each of the last seven days: `logs` in the user's folder.
pub fn log_folder() -> Option<PathBuf> {
    user_folder().map(|folder| folder.join("logs"))
}

/// Maximum size in bytes of a file `NAME.alias` or `NAME.trainable`, which contains the name of a model.
const MAX_ALIAS_BYTES: u64 = 4096;

/// Reads a file `NAME.alias` or `NAME.trainable` of a model folder.
pub(crate) fn read_alias(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    open_regular(path)?.take(MAX_ALIAS_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// Returns what `NAME.alias` in a model folder contains; `None` if there is no such file.
fn alias_in_folder(folder: &Path, name: &str) -> Result<Option<String>, JobError> {
    let path = folder.join(format!("{name}.alias"));
    if !path.is_file() {
        return Ok(None);
    }
    read_alias(&path).map(Some).map_err(|error| JobError::Io { path, error })
}

/// Returns the paths in a model folder. What cannot be listed is logged and left out.
pub(crate) fn entries(folder: &Path) -> Vec<PathBuf> {
    let log = |error: &std::io::Error| tracing::warn!("models in {} cannot be listed: {error}", folder.display());
    let mut paths = Vec::new();
    match std::fs::read_dir(folder) {
        Err(error) => log(&error),
        Ok(entries) => {
            for entry in entries {
                match entry {
                    Ok(entry) => paths.push(entry.path()),
                    Err(error) => log(&error),
                }
            }
        }
    }
    paths
}

/// Whether a text is a name without folders, which may be that of an installed model.
fn is_plain_name(text: &str) -> bool {
    let mut parts = Path::new(text).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) && !text.ends_with(is_separator)
}

/// Returns the path of a package that is given by path or by name. A file `NAME.alias` beside the packages contains the
/// name of the model that NAME stands for. A folder or file in the current folder that is called like an installed model,
/// but is not a model, such as a folder of images called `nuclei`, does not hide it.
///
/// # Errors
/// [`JobError::WrongUse`] if there is no such model; it lists the known names. [`JobError::Io`] if the alias file cannot
/// be read.
pub fn find_model(text: &str) -> Result<PathBuf, JobError> {
    find_model_in(text, model_folders)
}

/// Returns the text that a record states for the model that [`find_model`] finds for `text`: the absolute path of a model
/// that is given by path, and otherwise the name as it is given.
pub(crate) fn recorded_model(text: &str) -> String {
    recorded_model_in(text, model_folders)
}

/// Like [`recorded_model`], with these folders of installed models.
fn recorded_model_in(text: &str, folders: impl FnOnce() -> Vec<PathBuf>) -> String {
    match find_model_in(text, folders) {
        Ok(found) if found == Path::new(text) => absolute(&found).to_string_lossy().into_owned(),
        // The job reports why a model is not found.
        Ok(_) | Err(_) => text.to_owned(),
    }
}

/// Like [`find_model`], with these folders of installed models.
fn find_model_in(text: &str, folders: impl FnOnce() -> Vec<PathBuf>) -> Result<PathBuf, JobError> {
    let path = Path::new(text);
    // If a replacement was interrupted, the package may still have a hidden name.
    cytoscope_storage::folder::recover(path);
    let exists = path.exists();
    if exists && (is_model(path) || !is_plain_name(text)) {
        return Ok(path.to_owned());
    }
    let mut known = Vec::new();
    for folder in folders() {
        let alias = alias_in_folder(&folder, text)?;
        let name = alias.as_deref().map_or(text, str::trim);
        if Path::new(name).components().count() == 1 {
            cytoscope_storage::folder::recover(&folder.join(name));
        }
        for candidate in [folder.join(name), folder.join(format!("{name}.zip")), folder.join(format!("{name}.onnx"))] {
            if candidate.exists() && Path::new(name).components().count() == 1 {
                return Ok(candidate);
            }
        }
        for path in entries(&folder) {
            let is_model = path.join("rdf.yaml").exists()
                || path.extension().is_some_and(|e| e == "alias" || e == "zip" || e == "onnx");
            if is_model {
                known.extend(path.file_stem().map(|s| s.to_string_lossy().into_owned()));
            }
        }
    }
    if exists {
        // Opening it says what a model needs.
        return Ok(path.to_owned());
    }
    known.sort();
    known.dedup();
    let known =
        if known.is_empty() { "none is installed".to_owned() } else { format!("known are {}", known.join(", ")) };
    Err(JobError::wrong_use_with(
        format!("no model \"{text}\" was found"),
        format!("give the path of a package or the name of an installed model ({known})"),
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn paths_are_told_apart_from_names() {
        assert!(is_plain_name("nuclei") && is_plain_name("nuclei-dog.zip"));
        for path in ["", ".", "..", "./nuclei", "nuclei/", "a/nuclei", "/nuclei"] {
            assert!(!is_plain_name(path), "{path}");
        }
    }

    #[test]
    fn a_folder_called_like_an_installed_model_is_not_recorded_in_its_place() {
        let folder = tempfile::tempdir().unwrap();
        // Tests run in the folder of this crate, which has a folder `src` that is not a model.
        assert!(Path::new("src").is_dir());
        let installed_in = || vec![folder.path().to_owned()];
        let found = || find_model_in("src", installed_in).unwrap();
        let recorded = || recorded_model_in("src", installed_in);
        assert_eq!(PathBuf::from(recorded()), std::path::absolute("src").unwrap(), "no such model is installed");
        let installed = folder.path().join("src.onnx");
        std::fs::write(&installed, "a network").unwrap();
        assert_eq!((found(), recorded().as_str()), (installed.clone(), "src"));
        // A path states the model itself, wherever the job is run again.
        let given = installed.to_string_lossy();
        assert_eq!(recorded_model_in(&given, Vec::new), given);
        assert_eq!(recorded_model_in("no-such-model", Vec::new), "no-such-model");
    }

    #[test]
    fn an_alias_that_is_not_text_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("good.alias"), "nuclei\n").unwrap();
        std::fs::write(folder.path().join("bad.alias"), [0xff, 0xfe]).unwrap();
        assert_eq!(alias_in_folder(folder.path(), "good").unwrap().as_deref(), Some("nuclei\n"));
        assert!(alias_in_folder(folder.path(), "none").unwrap().is_none());
        let refused = alias_in_folder(folder.path(), "bad").unwrap_err().to_string();
        assert!(refused.contains("bad.alias"), "{refused}");
    }
}
