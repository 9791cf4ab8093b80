//! Pairs in tables: `raw,seg` or `brightfield,signal`, one row a pair, paths relative to the table.

use super::names::{extension, file_name, read_text, stem};
use super::{FindOptions, Found, Listing};
use crate::dataset::{Convention, Part, Problem, Task};
use crate::error::SamplesError;
use crate::find::endings::common_stem;
use crate::limits::MAX_PAIRS;
use std::path::{Path, PathBuf};

/// Columns of images and of targets, best first.
fn columns(task: Task) -> (&'static [&'static str], &'static [&'static str]) {
    match task {
        Task::Segmentation => (&["raw", "image", "img"], &["seg", "label", "labels", "mask", "masks", "gt", "seg1"]),
        Task::LabelFree => (&["brightfield", "bf", "input", "phase"], &["signal", "fluo", "fluorescence", "target"]),
    }
}

/// Columns that name the part a row is for.
const PARTS: [&str; 4] = ["split", "subset", "set", "part"];

/// Weights that a row may have.
const WEIGHTS: std::ops::RangeInclusive<f64> = 0.0..=1000.0;

/// Tables of a folder, each for one part.
const PART_TABLES: [(&str, Part); 6] = [
    ("train.csv", Part::Train),
    ("valid.csv", Part::Validation),
    ("val.csv", Part::Validation),
    ("validation.csv", Part::Validation),
    ("test.csv", Part::Test),
    ("training.csv", Part::Train),
];

/// A table's header, and where its columns stand.
struct Header {
    image: usize,
    target: usize,
    part: Option<usize>,
    /// How often a row is sampled, relative to the others.
    weight: Option<usize>,
    /// The label of voxels that are not known.
    ignore: Option<usize>,
    /// The target column is only the first of a plug-in's.
    first_of_several: bool,
}

fn header(record: &csv::StringRecord, task: Task, options: &FindOptions) -> Option<Header> {
    let place =
        |names: &[&str]| names.iter().find_map(|n| record.iter().position(|c| c.trim().eq_ignore_ascii_case(n)));
    let (images, targets) = columns(task);
    let (image, target) = (place(images)?, place(targets)?);
    let part = match &options.split_column {
        Some(name) => record.iter().position(|c| c.trim() == name),
        None => place(&PARTS),
    };
    let first_of_several = record.get(target).is_some_and(|c| c.trim().eq_ignore_ascii_case("seg1"));
    let (weight, ignore) = (place(&["weight"]), place(&["ignore"]));
    Some(Header { image, target, part, weight, ignore, first_of_several })
}

/// Reads the tables of a folder, if it has any with the right columns; then files that no table names do not count.
pub(crate) fn search(
    listing: &Listing,
    task: Task,
    options: &FindOptions,
    found: &mut Found,
) -> Result<bool, SamplesError> {
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
        // Other tables (of measurements, say) lie beside images as well.
        let fits = reader.headers().is_ok_and(|h| header(h, task, options).is_some());
        if fits || (named && task == Task::Segmentation) {
            read(path, task, options, None, found)?;
            any = true;
        }
    }
    Ok(any)
}

/// Reads a table's pairs. Rows whose files are not there become problems.
pub(crate) fn read(
    path: &Path,
    task: Task,
    options: &FindOptions,
    part: Option<Part>,
    found: &mut Found,
) -> Result<(), SamplesError> {
    let text = read_text(path)?;
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(text.as_slice());
    let first = match reader.headers() {
        Ok(first) => first.clone(),
        Err(e) => {
            let met = format!("its first line cannot be read: {e}");
            return Err(SamplesError::data(path, met, "make it a table of commas in UTF-8"));
        }
    };
    let Some(at) = header(&first, task, options) else {
        let shown: Vec<&str> = first.iter().take(12).collect();
        let next = match task {
            Task::Segmentation => "name two columns raw and seg, the image and its labels",
            Task::LabelFree => "name two columns brightfield and signal, the image and its stain",
        };
        return Err(SamplesError::data(path, format!("its columns are {shown:?}"), next));
    };
    if let (Some(name), None) = (&options.split_column, at.part) {
        let met = format!("it has no column {name}, which was to say what is for training");
        let next = "give one of its columns as data.split_column in the settings, or leave that out";
        return Err(SamplesError::data(path, met, next));
    }
    if at.first_of_several {
        let met = "it has several segmentations a row; seg1 is taken, merge and exclude masks are not";
        found.problems.push(Problem::warning(path, met, "merge them first, and name the result in a column seg"));
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    found.convention(Convention::Table);
    let mut rows: u64 = 0;
    for (row, record) in reader.records().enumerate() {
        let line = row + 2;
        let record = match record {
            Ok(record) => record,
            Err(e) => {
                let next = "make it a table of commas in UTF-8";
                found.problems.push(Problem::warning(path, format!("line {line} cannot be read: {e}"), next));
                continue;
            }
        };
        rows += 1;
        let next = "name a part of the data";
        crate::error::check_limit(path, "the number of its rows", rows, ("MAX_PAIRS", MAX_PAIRS), next)?;
        let cell = |i: usize| record.get(i).map(str::trim).unwrap_or_default();
        let (image, target) = (cell(at.image), cell(at.target));
        if image.is_empty() && target.is_empty() {
            continue;
        }
        if image.is_empty() || target.is_empty() {
            let met = format!("line {line} names no {}", if image.is_empty() { "image" } else { "target" });
            found.problems.push(Problem::warning(path, met, "fill in the file, or remove the line"));
            continue;
        }
        let (image, target) = (folder.join(image), folder.join(target));
        let missing = [&image, &target].into_iter().find(|f| !f.is_file());
        if let Some(file) = missing {
            let met = format!("line {line} of {} names this file, which is not there", file_name(path));
            let next = format!("correct the path (it is taken from {}), or put the file there", folder.display());
            found.problems.push(Problem::warning(file, met, next));
            continue;
        }
        let of_row = match at.part.map(cell) {
            Some(word) if !word.is_empty() => {
                let of_row = Part::from_word(word);
                if of_row.is_none() {
                    let met = format!("line {line} is for \"{word}\", which is no part of a training set");
                    found.problems.push(Problem::warning(path, met, "write train, valid or test"));
                }
                of_row
            }
            _ => None,
        };
        let weight = match at.weight.map(cell) {
            None | Some("") => 1.0,
            Some(word) => match word.parse::<f64>().ok().filter(|w| WEIGHTS.contains(w)) {
                Some(weight) => weight,
                None => {
                    let met = format!("line {line} has the weight \"{word}\"");
                    let next = "write a number from 0 (never sampled) to 1000; 1 is taken";
                    found.problems.push(Problem::warning(path, met, next));
                    1.0
                }
            },
        };
        if let Some(word) = at.ignore.map(cell).filter(|word| !word.is_empty()) {
            ignore(path, line, word, found)?;
        }
        let stem = stem(&image);
        found.add(common_stem(&stem, task), &image, &target, of_row.or(part), weight);
    }
    Ok(())
}

/// Notes the label of voxels that are not known, which all rows must have in common.
fn ignore(path: &Path, line: usize, word: &str, found: &mut Found) -> Result<(), SamplesError> {
    let next = "write one whole number for all rows, the label of voxels that are not known, or leave the cell empty";
    match (word.parse::<i64>(), found.ignore_label) {
        (Ok(label), None) => found.ignore_label = Some(label),
        (Ok(label), Some(before)) if label == before => {}
        (Ok(label), Some(before)) => {
            let met = format!("line {line} ignores label {label}, a line before it {before}");
            return Err(SamplesError::data(path, met, next));
        }
        (Err(_), _) => return Err(SamplesError::data(path, format!("line {line} ignores \"{word}\""), next)),
    }
    Ok(())
}
