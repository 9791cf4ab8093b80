//! Report of problems of the training data: a short summary as notes, and the whole list in a file.

use crate::error::data_error;
use cytoscope_pipeline::{Context, JobError, Note, user_folder};
use cytoscope_storage::StorageError;
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_training_data::{Problem, Severity, TrainingDataError, summary};
use std::path::{Path, PathBuf};

/// Maximum number of lines of the summary; more problems than that are grouped by kind.
pub const LINES: usize = 8;
/// Folder of the lists of problems of training data, below the user's data folder.
const FOLDER: &str = "data-checks";
/// Folder of the lists of inputs that failed, below the user's data folder.
const INPUTS_FOLDER: &str = "failed-inputs";

/// Reports the problems of the data in `root` as notes. If there are more than [`LINES`], all of them are also listed
/// in `file`, by default in the user's data folder. Returns the path of the list, or `None` if none was written.
pub(crate) fn report(context: &Context, root: &Path, problems: &[Problem], file: Option<&Path>) -> Option<PathBuf> {
    for line in summary::summary(problems, LINES) {
        context.note(match line.severity {
            Some(Severity::Warning) => Note::warning(line.text),
            Some(Severity::Error) | None => Note::info(Message::of(&line)),
        });
    }
    let listed = list(root, problems, file)?;
    match listed {
        Ok(path) => {
            context.note(format!("all {} problems of the data are listed in {}", problems.len(), path.display()));
            Some(path)
        }
        Err(error) => {
            context.note(message!("the list of all {} problems could not be written: {error}", problems.len()));
            None
        }
    }
}

/// Returns the error of a search for pairs in `root`. If it found none, but several problems, these are reported first,
/// because the error states a single one.
pub(crate) fn search_failed(context: &Context, root: &Path, error: TrainingDataError) -> JobError {
    if let TrainingDataError::NoPairs { dataset, .. } = &error
        && dataset.problems.len() > 1
    {
        report(context, root, &dataset.problems, None);
    }
    data_error(error)
}

/// Writes the list if there are more than [`LINES`] problems. Returns `None` if there are fewer, or no folder for the
/// list is known.
pub(crate) fn list(root: &Path, problems: &[Problem], file: Option<&Path>) -> Option<Result<PathBuf, StorageError>> {
    if problems.len() <= LINES {
        return None;
    }
    let path = file.map(Path::to_owned).or_else(|| default_path(FOLDER, root))?;
    let title = format!("{} problems of the training data in {}", problems.len(), root.display());
    Some(write_list(&title, problems, path))
}

/// Lists all inputs of a job that failed, in the user's data folder. `root` is the first input of the job, a file or a folder.
/// Returns the path of the list, the error of writing it, or `None` if no folder for it is known.
pub fn list_failed_inputs(root: &Path, problems: &[Problem]) -> Option<Result<PathBuf, StorageError>> {
    let path = default_path(INPUTS_FOLDER, root)?;
    let title = format!("{} inputs that failed, of {}", problems.len(), root.display());
    Some(write_list(&title, problems, path))
}

/// Writes a title and one line for each problem.
fn write_list(title: &str, problems: &[Problem], path: PathBuf) -> Result<PathBuf, StorageError> {
    let lines: Vec<String> = problems.iter().map(summary::line).collect();
    if let Some(folder) = path.parent() {
        // An error appears when the file is written.
        let _ = std::fs::create_dir_all(folder);
    }
    let text = format!("{title}\n\n{}\n", lines.join("\n"));
    cytoscope_storage::write::atomic_write(&path, text.as_bytes()).map(|()| path)
}

/// Returns the default path of the list for the data in `root`, in a folder below the user's: its name and a hash of its
/// absolute path.
fn default_path(folder: &str, root: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
    let hash: String =
        cytoscope_engine::select::fingerprint(absolute.as_os_str().as_encoded_bytes()).chars().take(8).collect();
    let name = absolute.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    Some(user_folder()?.join(folder).join(format!("{name}-{hash}.txt")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use cytoscope_pipeline::Event;
    use std::sync::{Arc, Mutex};

    fn problem(i: usize) -> Problem {
        Problem {
            file: PathBuf::from(format!("/data/odd{i}.czi")),
            pair: None,
            severity: Severity::Warning,
            message: "this kind of image is not read".into(),
            next_step: "save it as TIFF".into(),
        }
    }

    #[test]
    fn problems_of_pairs_that_are_used_are_warnings() {
        let notes = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&notes);
        let sink = move |event: &Event| {
            if let Event::Note(note) = event {
                kept.lock().unwrap().push(note.clone());
            }
        };
        let context = Context { sink: Arc::new(sink), ..Context::default() };
        let problems = [problem(0), Problem { severity: Severity::Error, ..problem(1) }];
        report(&context, Path::new("/data"), &problems, None);
        let expected = [
            Note::warning("/data/odd0.czi: this kind of image is not read; save it as TIFF"),
            Note::info("left out: /data/odd1.czi: this kind of image is not read; save it as TIFF"),
        ];
        assert_eq!(*notes.lock().unwrap(), expected);
    }

    #[test]
    fn many_problems_are_listed_in_a_file_and_few_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("deep/list.txt");
        let problems: Vec<Problem> = (0..300).map(problem).collect();
        let context = Context::default();
        assert_eq!(report(&context, Path::new("/data"), &problems[..LINES], Some(&file)), None);
        assert!(!file.exists());
        assert_eq!(report(&context, Path::new("/data"), &problems, Some(&file)).as_ref(), Some(&file));
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("300 problems of the training data in /data\n"), "{text}");
        assert!((0..300).all(|i| text.contains(&format!("/data/odd{i}.czi: this kind of image is not read; save"))));
        // A second report replaces the list.
        report(&context, Path::new("/data"), &problems[..20], Some(&file)).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 22);
        // A list that cannot be written is not an error.
        assert_eq!(report(&context, Path::new("/data"), &problems, Some(&file.join("below/a/file"))), None);
        let [one, other] = ["/data/a", "/data/b"].map(|root| default_path(FOLDER, Path::new(root)));
        assert!(one != other || one.is_none());
    }
}
