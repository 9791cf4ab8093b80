//! Names of converted files, and files of the list that would be converted to the same one.

use super::Batch;
use crate::document::file_name;
use cytoscope_formats::{series_suffix, stack_stem};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Two files of the list whose converted files have the same name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Clash<'a> {
    /// The files.
    pub(super) inputs: [&'a Path; 2],
    /// The converted file.
    output: PathBuf,
    /// What else the user can do than remove one of them from the list, as the end of a sentence.
    instead: &'static str,
    /// Whether it depends on the number of series, which is not known before the files are opened.
    of_series: bool,
}

impl Clash<'_> {
    /// Says what would happen, and what to do.
    pub(super) fn details(&self) -> String {
        let Self { inputs: [first, second], output, instead, of_series } = self;
        let would = if *of_series { "with several series would" } else { "would" };
        let (first, second, name) = (first.display(), second.display(), file_name(output));
        format!("{first} and {second} {would} both be converted to {name}. Remove one from the list{instead}.")
    }
}

impl Batch {
    /// The converted file of an input; of all series, that of the first one.
    pub(crate) fn converted_path(&self, input: &Path) -> PathBuf {
        let folder = self.folder.clone().or_else(|| input.parent().map(Path::to_owned)).unwrap_or_default();
        // Of all series, the number of each is added later.
        let series = if self.all_series { String::new() } else { series_suffix(self.series_for(input)) };
        let channel = self.channel.map_or_else(String::new, |channel| format!("_c{channel}"));
        let time = self.time.map_or_else(String::new, |time| format!("_t{time}"));
        folder.join(format!("{}{series}{channel}{time}{}", stack_stem(input), self.format.suffix()))
    }

    /// Two of the files that would be converted to the same file, or could be if all series are.
    pub(super) fn clash(&self) -> Option<Clash<'_>> {
        let instead = if self.folder.is_some() { ", or write beside each file" } else { "" };
        let mut files: BTreeMap<PathBuf, &Path> = BTreeMap::new();
        for file in self.files.iter().map(PathBuf::as_path) {
            let output = self.converted_path(file);
            if let Some(other) = files.insert(comparable(&output), file) {
                return Some(Clash { inputs: [other, file], output, instead, of_series: false });
            }
        }
        let instead = ", or convert it without \"All series\"";
        for file in self.files.iter().filter(|_| self.all_series).map(PathBuf::as_path) {
            let output = self.converted_path(file);
            let first = first_series_output(&output).map(|first| comparable(&first));
            if let Some(other) = first.and_then(|first| files.get(&first).copied()) {
                return Some(Clash { inputs: [other, file], output, instead, of_series: true });
            }
        }
        None
    }
}

/// Returns a path that is equal for all names of a file, which do not depend on case on some systems.
fn comparable(path: &Path) -> PathBuf {
    if cfg!(any(windows, target_os = "macos")) {
        PathBuf::from(path.to_string_lossy().to_lowercase())
    } else {
        path.to_owned()
    }
}

/// Returns the output of the first series of a file, if `output` has the name of that of a later one.
fn first_series_output(output: &Path) -> Option<PathBuf> {
    let stem = stack_stem(output);
    let ending = file_name(output).strip_prefix(&stem)?.to_owned();
    let (first, number) = stem.rsplit_once("_s")?;
    // Numbers are written without zeros in front, and the first series has none.
    let suffix = series_suffix(number.parse().ok()?);
    (suffix.strip_prefix("_s") == Some(number)).then(|| output.with_file_name(format!("{first}{ending}")))
}

/// Whether a file has the name that a series after the first one gets if all series are converted to `output`.
pub(super) fn is_series_of(file: &Path, output: &Path) -> bool {
    first_series_output(file).is_some_and(|first| first == output)
}
