//! Tables of pairs: `raw,seg` or `brightfield,signal`, one pair per row, with paths relative to the table.

use super::names::{extension, file_name, read_text, stem};
use super::{FindOptions, Listing, SearchResults, labels};
use crate::dataset::{Convention, Part, Problem, TrainingTask};
use crate::error::TrainingDataError;
use crate::find::suffixes::common_stem;
use crate::limits::MAX_PAIRS;
use crate::setting::{IN_SETTINGS, LABELS_CHANNEL, SPLIT_COLUMN};
use cytoscope_formats::{
    FolderNames, FormatError, OpenOptions, is_zarr_folder, label_series, open, prediction_labels_path,
};
use cytoscope_storage::message::Message;
use cytoscope_storage::{io_problem, message};
use std::path::{Path, PathBuf};

/// Returns the names of image and target columns, in order of preference.
fn columns(task: TrainingTask) -> (&'static [&'static str], &'static [&'static str]) {
    match task {
        TrainingTask::Segmentation => {
            (&["raw", "image", "img"], &["seg", "label", "labels", "mask", "masks", "gt", "seg1"])
        }
        TrainingTask::LabelFree => {
            (&["brightfield", "bf", "input", "phase"], &["signal", "fluo", "fluorescence", "target"])
        }
    }
}

/// Names of columns with the part of the data.
const PART_COLUMNS: [&str; 4] = ["split", "subset", "set", "part"];

/// Valid weights of a row.
const WEIGHTS: std::ops::RangeInclusive<f64> = 0.0..=1000.0;

/// Names of tables for one part of the data.
const PART_TABLES: [(&str, Part); 6] = [
    ("train.csv", Part::Train),
    ("valid.csv", Part::Validation),
    ("val.csv", Part::Validation),
    ("validation.csv", Part::Validation),
    ("test.csv", Part::Test),
    ("training.csv", Part::Train),
];

/// Column indices of a table.
struct Header {
    image: usize,
    target: usize,
    part: Option<usize>,
    /// Column of the relative sampling frequency.
    weight: Option<usize>,
    /// Column of the ignore label.
    ignore: Option<usize>,
    /// Whether the target column is the first of several segmentations (`seg1`).
    first_of_several: bool,
    /// Whether the target column was chosen by its name, as one of several label images of a row.
    is_chosen: bool,
}

/// Finds the columns in the header; `None` if image or target column are missing.
fn header(record: &csv::StringRecord, task: TrainingTask, options: &FindOptions) -> Option<Header> {
    let place =
        |names: &[&str]| names.iter().find_map(|n| record.iter().position(|c| c.trim().eq_ignore_ascii_case(n)));
    let (images, targets) = columns(task);
    let image = place(images)?;
    let chosen = labels::chosen_name(task, options).and_then(|name| place(&[name])).filter(|column| *column != image);
    let target = chosen.or_else(|| place(targets))?;
    let part = match &options.split_column {
        Some(name) => record.iter().position(|c| c.trim() == name),
        None => place(&PART_COLUMNS),
    };
    let is_chosen = chosen.is_some();
    let first_of_several = !is_chosen && record.get(target).is_some_and(|c| c.trim().eq_ignore_ascii_case("seg1"));
    let (weight, ignore) = (place(&["weight"]), place(&["ignore"]));
    Some(Header { image, target, part, weight, ignore, first_of_several, is_chosen })
}

/// Reads the tables of a folder that have the right columns. Returns whether there are any; other files are then
/// ignored.
pub(crate) fn search(
    listing: &Listing,
    task: TrainingTask,
    options: &FindOptions,
    found: &mut SearchResults,
) -> Result<bool, TrainingDataError> {
    let mut any = false;
    for (name, part) in PART_TABLES {
        if let Some(path) = listing.file(name) {
            read(path, task, options, Some(part), found)?;
            any = true;
        }
    }
    if any {
        return Ok(true);
    }
    let tables: Vec<&PathBuf> = listing.files.iter().filter(|f| extension(f) == "csv").collect();
    for path in tables {
        let named = file_name(path).eq_ignore_ascii_case("dataset.csv");
        let text = read_text(path)?;
        let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(text.as_slice());
        // There may be other tables beside the images, such as measurements.
        let fits = reader.headers().is_ok_and(|h| header(h, task, options).is_some());
        if fits || (named && task == TrainingTask::Segmentation) {
            read(path, task, options, None, found)?;
            any = true;
        }
    }
    Ok(any)
}

/// Reads the pairs of a table. Rows with missing files become problems.
pub(crate) fn read(
    path: &Path,
    task: TrainingTask,
    options: &FindOptions,
    part: Option<Part>,
    found: &mut SearchResults,
) -> Result<(), TrainingDataError> {
    let text = read_text(path)?;
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(text.as_slice());
    let at = find_columns(path, &mut reader, task, options)?;
    if at.first_of_several {
        let problem = "it has several segmentations per row; only seg1 is used, without merge and exclude masks";
        found.problems.push(Problem::warning(path, problem, "merge them first, and list the results in a column seg"));
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    found.add_convention(Convention::Table);
    let mut rows = 0u64;
    let mut names = FolderNames::default();
    let mut lines = LineCounter { text: &text, at: 0, line_ends: 0 };
    for record in reader.records() {
        let line = lines.line(match &record {
            Ok(record) => record.position(),
            Err(error) => error.position(),
        });
        // A row that cannot be read counts, too: each becomes a problem.
        rows += 1;
        let next_step = "use a part of the data";
        crate::error::check_limit(path, "the number of its rows", rows, ("MAX_PAIRS", MAX_PAIRS), next_step)?;
        let record = match record {
            Ok(record) => record,
            Err(e) => {
                let next_step = "save it as comma-separated text in UTF-8";
                found.problems.push(Problem::warning(path, format!("line {line} cannot be read: {e}"), next_step));
                continue;
            }
        };
        let row = Row { path, line, at: &at, record: &record };
        row.add((folder, &mut names), task, part, found)?;
    }
    if rows == 0 {
        let next_step = "add a line with the paths of an image and its target";
        found.problems.push(Problem::warning(path, "it has no rows below its first line", next_step));
    }
    Ok(())
}

/// Counts the lines of a table up to its records.
struct LineCounter<'a> {
    text: &'a [u8],
    /// Number of bytes whose line ends were counted.
    at: usize,
    line_ends: usize,
}

impl LineCounter<'_> {
    /// Returns the number of the line, counted from 1, on which a record begins; records must be in order. The reader skips empty
    /// lines, but `position` is before them, and a quoted cell may have several lines.
    fn line(&mut self, position: Option<&csv::Position>) -> usize {
        let start = position.map_or(self.at, |position| usize::try_from(position.byte()).unwrap_or(usize::MAX));
        while let Some(byte) = self.text.get(self.at).filter(|byte| self.at < start || matches!(byte, b'\r' | b'\n')) {
            self.at += 1;
            // Both together are one line end.
            let is_end = *byte == b'\n' || (*byte == b'\r' && self.text.get(self.at) != Some(&b'\n'));
            self.line_ends += usize::from(is_end);
        }
        self.line_ends + 1
    }
}

/// Finds the columns of a table.
fn find_columns(
    path: &Path,
    reader: &mut csv::Reader<&[u8]>,
    task: TrainingTask,
    options: &FindOptions,
) -> Result<Header, TrainingDataError> {
    let first = match reader.headers() {
        Ok(first) => first.clone(),
        Err(e) => {
            let problem = format!("its first line cannot be read: {e}");
            return Err(TrainingDataError::data(path, problem, "save it as comma-separated text in UTF-8"));
        }
    };
    let Some(at) = header(&first, task, options) else {
        let shown: Vec<&str> = first.iter().take(12).collect();
        // German spreadsheets save tables with semicolons.
        let is_separated_otherwise = shown.len() == 1 && shown.iter().any(|name| name.contains([';', '\t']));
        let next_step: Message = match task {
            _ if is_separated_otherwise => "separate the columns with commas, as in raw,seg".into(),
            TrainingTask::Segmentation => message!(
                "name two columns raw and seg, with the image and its labels, or set {LABELS_CHANNEL} {IN_SETTINGS} to the \
                 column with the labels"
            ),
            TrainingTask::LabelFree => "name two columns brightfield and signal, with the image and its stain".into(),
        };
        let problem = match shown.iter().all(|name| name.is_empty()) {
            true => "its first line names no columns".to_owned(),
            false => format!("its columns are {shown:?}"),
        };
        return Err(TrainingDataError::data(path, problem, next_step));
    };
    if let (Some(name), None) = (&options.split_column, at.part) {
        let problem = format!("it has no column {name}, which assigns rows to training, validation and test");
        let next_step = message!("set {SPLIT_COLUMN} {IN_SETTINGS} to one of its columns, or remove the setting");
        return Err(TrainingDataError::data(path, problem, next_step));
    }
    Ok(at)
}

/// A row of a table.
struct Row<'a> {
    path: &'a Path,
    /// Number of its line in the file.
    line: usize,
    at: &'a Header,
    record: &'a csv::StringRecord,
}

impl Row<'_> {
    fn cell(&self, column: usize) -> &str {
        self.record.get(column).map(str::trim).unwrap_or_default()
    }

    /// Adds the pair of the row, whose paths are relative to a folder; a row without one, or with missing files, becomes a problem.
    fn add(
        &self,
        (folder, names): (&Path, &mut FolderNames),
        task: TrainingTask,
        part: Option<Part>,
        found: &mut SearchResults,
    ) -> Result<(), TrainingDataError> {
        let (path, line) = (self.path, self.line);
        let (image, target) = (self.cell(self.at.image), self.cell(self.at.target));
        if image.is_empty() && target.is_empty() {
            return Ok(());
        }
        if image.is_empty() || target.is_empty() {
            let problem = format!("line {line} has no {}", if image.is_empty() { "image" } else { "target" });
            found.problems.push(Problem::warning(path, problem, "fill in the file name, or remove the line"));
            return Ok(());
        }
        // The disk may have a name in another Unicode form than the table.
        let [image, target] = [image, target].map(Path::new).map(|written| match names.find(folder, written) {
            Some(stored) => folder.join(stored),
            None => folder.join(written),
        });
        for file in [&image, &target] {
            if let Some((problem, next_step)) = self.no_image(file) {
                found.problems.push(Problem::warning(file, problem, next_step));
                return Ok(());
            }
        }
        // The image of a prediction is its maps.
        let target = if task == TrainingTask::Segmentation { prediction_labels_path(&target) } else { target };
        let row_part = self.part(found);
        let weight = self.weight(found);
        if let Some(word) = self.at.ignore.map(|i| self.cell(i)).filter(|word| !word.is_empty()) {
            set_ignore_label(path, line, word, found)?;
        }
        let stem = stem(&image);
        found.add(common_stem(&stem, task), &image, &target, row_part.or(part), weight);
        if task == TrainingTask::Segmentation
            && let (Some(series), Some(pair)) = (label_series(&target), found.pairs.last_mut())
        {
            pair.target.series = series;
        }
        if self.at.is_chosen {
            found.named_labels.insert(target);
        }
        Ok(())
    }

    /// Returns why a path in the row is not an image, and what to do: it is neither a file nor a folder with one stack, in
    /// OME-Zarr or in numbered slices.
    fn no_image(&self, file: &Path) -> Option<(String, String)> {
        if file.is_file() || is_zarr_folder(file) {
            return None;
        }
        let (line, table) = (self.line, file_name(self.path));
        if !file.is_dir() {
            let problem = format!("line {line} of {table} names this file, which does not exist");
            let next_step = format!("correct the path, which is relative to the folder of {table}, or add the file");
            return Some((problem, next_step));
        }
        let why = match open(file, &OpenOptions::default()) {
            Ok(_) => return None,
            Err(error) => why_no_stack(error, file),
        };
        let problem = format!("line {line} of {table} names this folder, which is not an OME-Zarr image, and {why}");
        let next_step = "write the name of a file, of an OME-Zarr folder, or of a folder with the slices of one stack";
        Some((problem, next_step.to_owned()))
    }

    /// Returns the part of the data that the row belongs to, if it names one.
    fn part(&self, found: &mut SearchResults) -> Option<Part> {
        let word = self.at.part.map(|i| self.cell(i)).filter(|word| !word.is_empty())?;
        let part = Part::from_word(word);
        if part.is_none() {
            let problem =
                format!("line {} has the unknown part \"{word}\", so its pair may be used for training", self.line);
            found.problems.push(Problem::warning(self.path, problem, "write train, valid or test"));
        }
        part
    }

    /// Returns the relative sampling frequency of the pair, by default 1.
    fn weight(&self, found: &mut SearchResults) -> f64 {
        let Some(word) = self.at.weight.map(|i| self.cell(i)).filter(|word| !word.is_empty()) else { return 1.0 };
        if let Some(weight) = word.parse::<f64>().ok().filter(|w| WEIGHTS.contains(w)) {
            return weight;
        }
        let problem = format!("line {} has the invalid weight \"{word}\"", self.line);
        let next_step = "write a number from 0 (never sampled) to 1000; until then, 1 is used";
        found.problems.push(Problem::warning(self.path, problem, next_step));
        1.0
    }
}

/// Sets the ignore label of the dataset, which must be the same in all rows.
fn set_ignore_label(path: &Path, line: usize, word: &str, found: &mut SearchResults) -> Result<(), TrainingDataError> {
    let next_step = "write the ignore label, the same integer in all rows, or leave the cell empty";
    match (word.parse::<i64>(), found.ignore_label) {
        (Ok(label), None) => found.ignore_label = Some(label),
        (Ok(label), Some(before)) if label == before => {}
        (Ok(label), Some(before)) => {
            let problem = format!("line {line} has the ignore label {label}, but an earlier line {before}");
            return Err(TrainingDataError::data(path, problem, next_step));
        }
        (Err(_), _) => {
            return Err(TrainingDataError::data(
                path,
                format!("line {line} has the ignore label \"{word}\""),
                next_step,
            ));
        }
    }
    Ok(())
}

/// Returns why a folder cannot be opened as a stack, as a clause.
fn why_no_stack(error: FormatError, folder: &Path) -> String {
    match error {
        // Several series are in the folder.
        FormatError::Misused { problem, .. } => problem,
        // A folder that may not be listed, or a disk that fails, says nothing about what the folder contains.
        FormatError::Io { file, source, .. } => {
            format!("{} cannot be read ({})", file_name(&file), io_problem(&source))
        }
        FormatError::Malformed { file, problem, .. }
        | FormatError::Unsupported { file, problem, .. }
        | FormatError::OverLimit { file, problem, .. }
            if file != folder =>
        {
            format!("{} in it cannot be used: {problem}", file_name(&file))
        }
        _ => "it contains no numbered slices that can be read as a stack".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    #[test]
    fn the_reason_against_a_folder_is_that_of_reading_it() {
        let folder = Path::new("data/stack");
        let unsupported = |file: &Path, problem: &str| FormatError::Unsupported {
            file: file.to_owned(),
            problem: problem.to_owned(),
            next_step: "choose an image file inside it".into(),
        };
        let empty = why_no_stack(unsupported(folder, "this is a folder"), folder);
        assert!(empty.contains("no numbered slices"), "{empty}");
        let slice = why_no_stack(unsupported(&folder.join("s1.tif"), "its samples are complex"), folder);
        assert_eq!(slice, "s1.tif in it cannot be used: its samples are complex");
        let denied = FormatError::Io {
            file: folder.to_owned(),
            doing: "listing the folder",
            source: ErrorKind::PermissionDenied.into(),
        };
        let denied = why_no_stack(denied, folder);
        assert!(denied.starts_with("stack cannot be read (") && !denied.contains("slices"), "{denied}");
    }
}
