//! What is wrong with training data, told in few lines, with all of it in a file.

use cytoscope_pipeline::{Context, user_folder};
use cytoscope_samples::{Problem, summary};
use cytoscope_storage::StorageError;
use std::path::{Path, PathBuf};

/// Most lines in which problems are told; more problems than that are told by kind.
pub(crate) const LINES: usize = 8;
/// Folder of the lists in the user's folder.
const FOLDER: &str = "data-checks";

/// Tells what is wrong with the data in `root`. Where that is too much to be told one by one, all of it is listed in a file: the one
/// given, or one of these data in the user's folder. Gives the file; without a place for it the rest is told all the same.
pub(crate) fn tell(context: &Context, root: &Path, problems: &[Problem], file: Option<&Path>) -> Option<PathBuf> {
    for line in summary::summary(problems, LINES) {
        context.note(line);
    }
    let listed = list(root, problems, file)?;
    match listed {
        Ok(path) => {
            context.note(format!("All {} problems of the data are listed in {}.", problems.len(), path.display()));
            Some(path)
        }
        Err(error) => {
            context.note(format!("The list of all {} problems could not be written: {error}", problems.len()));
            None
        }
    }
}

/// Writes the list where there are more problems than are told one by one; `None` where there are not, or no place is known.
pub(crate) fn list(root: &Path, problems: &[Problem], file: Option<&Path>) -> Option<Result<PathBuf, StorageError>> {
    if problems.len() <= LINES {
        return None;
    }
    let path = file.map(Path::to_owned).or_else(|| usual_place(root))?;
    let lines: Vec<String> = problems.iter().map(summary::line).collect();
    let text = format!("{} problems of the training data in {}\n\n{}\n", lines.len(), root.display(), lines.join("\n"));
    if let Some(folder) = path.parent() {
        // A failure shows when the file is written.
        let _ = std::fs::create_dir_all(folder);
    }
    Some(cytoscope_storage::write::atomic_write(&path, text.as_bytes()).map(|()| path))
}

/// The file for the data in `root`: named like them, and by a fingerprint of where they lie.
fn usual_place(root: &Path) -> Option<PathBuf> {
    let whole = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
    let mark: String =
        cytoscope_engine::select::fingerprint(whole.as_os_str().as_encoded_bytes()).chars().take(8).collect();
    let name = whole.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    Some(user_folder()?.join(FOLDER).join(format!("{name}-{mark}.txt")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use cytoscope_samples::Severity;

    #[test]
    fn many_problems_are_listed_in_a_file_and_few_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("deep/list.txt");
        let problem = |i: usize| Problem {
            file: PathBuf::from(format!("/data/odd{i}.czi")),
            pair: None,
            severity: Severity::Warning,
            sentence: "this kind of image is not read".to_owned(),
            next_step: "save it as TIFF".to_owned(),
        };
        let problems: Vec<Problem> = (0..300).map(problem).collect();
        let context = Context::default();
        assert_eq!(tell(&context, Path::new("/data"), &problems[..LINES], Some(&file)), None);
        assert!(!file.exists());
        assert_eq!(tell(&context, Path::new("/data"), &problems, Some(&file)).as_ref(), Some(&file));
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("300 problems of the training data in /data\n"), "{text}");
        assert!((0..300).all(|i| text.contains(&format!("/data/odd{i}.czi: this kind of image is not read; save"))));
        // Another look replaces it.
        tell(&context, Path::new("/data"), &problems[..20], Some(&file)).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 22);
        // Without a place for it nothing fails.
        assert_eq!(tell(&context, Path::new("/data"), &problems, Some(&file.join("below/a/file"))), None);
        let [one, other] = ["/data/a", "/data/b"].map(|root| usual_place(Path::new(root)));
        assert!(one != other || one.is_none());
    }
}
