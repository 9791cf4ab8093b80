//! Display names that distinguish files of the same name.

use super::Documents;
use crate::document::Document;
use std::path::{Path, PathBuf};

impl Documents {
    /// Name of a stack for display; if another open one has the same name, with the end of its folder that differs.
    pub(crate) fn title(&self, document: &Document) -> String {
        let is_namesake = |other: &&Document| other.id != document.id && other.name == document.name;
        let namesakes: Vec<&Path> = self.all.iter().filter(is_namesake).map(|other| other.path.as_path()).collect();
        distinct_name(&document.name, &document.path, &namesakes)
    }
}

/// The name of the file `path` for display. If it has `namesakes` in other folders, the shortest end of its folder that is
/// not the end of theirs precedes the name.
pub(crate) fn distinct_name(name: &str, path: &Path, namesakes: &[&Path]) -> String {
    let others: Vec<&Path> =
        namesakes.iter().filter(|other| **other != path).filter_map(|other| other.parent()).collect();
    let Some(folder) = path.parent().filter(|_| !others.is_empty()) else { return name.to_owned() };
    let mut end = PathBuf::new();
    for component in folder.components().rev() {
        let start = Path::new(component.as_os_str());
        end = if end.as_os_str().is_empty() { start.to_owned() } else { start.join(&end) };
        if !others.iter().any(|other| other.ends_with(&end)) {
            break;
        }
    }
    end.join(name).display().to_string()
}

/// The files of a list that have the name of `path`.
pub(crate) fn namesakes<'a>(path: &Path, files: &'a [PathBuf]) -> Vec<&'a Path> {
    files.iter().filter(|other| other.file_name() == path.file_name()).map(PathBuf::as_path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::MAIN_SEPARATOR;

    #[test]
    fn files_of_the_same_name_are_shown_with_what_distinguishes_their_folders() {
        let shown = |path: &str, others: &[&str]| {
            let others: Vec<&Path> = others.iter().map(Path::new).collect();
            distinct_name("a.tif", Path::new(path), &others).replace(MAIN_SEPARATOR, "/")
        };
        assert_eq!(shown("/data/e1/a.tif", &[]), "a.tif");
        assert_eq!(shown("/data/e1/a.tif", &["/data/e1/a.tif"]), "a.tif");
        assert_eq!(shown("/data/e1/a.tif", &["/data/e2/a.tif"]), "e1/a.tif");
        assert_eq!(shown("/e1/raw/t/a.tif", &["/e2/raw/t/a.tif", "/e1/raw/u/a.tif"]), "e1/raw/t/a.tif");
        assert_eq!(shown("/data/e1/a.tif", &["/e1/a.tif"]), "data/e1/a.tif");
        assert_eq!(shown("/e1/a.tif", &["/data/e1/a.tif"]), "/e1/a.tif");
    }
}
