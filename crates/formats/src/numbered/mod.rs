//! Numbered files: `name_0001.png`, `name_0002.png` and so on are the slices of a stack.

mod names;
mod planes;

pub(crate) use planes::PlaneFiles;

use crate::{
    error::{Fault, FormatError},
    limits::Limits,
    raster,
    source::Source,
    tiff::{ifd::looks_like_tiff, slices},
};
use names::{Numbered, PlaneName};
use std::{
    collections::{BTreeMap, HashSet},
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Names of the files in the folder of a file; `None` if the folder cannot be listed; the file itself may still be readable.
fn names_beside(path: &Path) -> Result<Option<Vec<OsString>>, Fault> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(None) };
    let names = entries.map(|entry| entry.map(|e| e.file_name())).collect::<Result<Vec<_>, _>>();
    names.map(Some).map_err(|e| Fault::Io("listing the folder", e))
}

/// Refuses a series with more files than the limit.
fn check_count(files: usize, max_files: u64) -> Result<(), Fault> {
    if files as u64 > max_files {
        return Err(Fault::over("the number of files of the series", max_files + 1, "max_set_files", max_files));
    }
    Ok(())
}

/// Names the file in an error of the operating system; other errors are kept.
fn named(fault: Fault, file: &Path) -> Fault {
    match fault {
        Fault::Io(_, error) => {
            let error = std::io::Error::new(error.kind(), format!("{}: {error}", name(file)));
            Fault::Io("reading a file of the numbered series", error)
        }
        other => other,
    }
}

/// Returns the files of the series that a file belongs to, in the order of their numbers. The numbers are consecutive, and
/// `fits` tells for another file whether it has the same size and sample type. Only the file itself if there are no others.
pub(crate) fn series_of(
    path: &Path,
    max_files: u64,
    fits: impl Fn(&Path) -> Result<bool, Fault>,
) -> Result<Vec<PathBuf>, Fault> {
    let alone = || Ok(vec![path.to_owned()]);
    let Some(own) = Numbered::of(path) else { return alone() };
    let Some(names) = names_beside(path)? else { return alone() };
    let mut by_number = BTreeMap::new();
    for other in names {
        let other = path.with_file_name(other);
        let Some(numbered) = Numbered::of(&other).filter(|n| own.same_series(n)) else { continue };
        by_number.insert(numbered.number.value, other);
        check_count(by_number.len(), max_files)?;
    }
    let can_be_last = |file: &PathBuf| Numbered::of(file).is_some_and(|numbered| numbered.can_be_last());
    if by_number.values().next_back().is_none_or(|file| !can_be_last(file)) {
        return alone();
    }
    let fitting = |number: u64| {
        let Some(file) = by_number.get(&number) else { return Ok(None) };
        match fits(file) {
            Ok(fits) => Ok(fits.then(|| file.clone())),
            // A disk that fails must not shorten the stack.
            Err(fault @ Fault::Io(..)) => Err(named(fault, file)),
            // A file of another kind under such a name is not a slice.
            Err(_) => Ok(None),
        }
    };
    let next = |number: u64| fitting(number).transpose();
    let own = own.number.value;
    let mut files: Vec<PathBuf> = (0..own).rev().map_while(next).collect::<Result<_, Fault>>()?;
    files.reverse();
    files.push(path.to_owned());
    let after: Vec<PathBuf> = (own.saturating_add(1)..).map_while(next).collect::<Result<_, Fault>>()?;
    files.extend(after);
    if files.last().is_some_and(can_be_last) { Ok(files) } else { alone() }
}

/// Returns the first file of the only numbered series in a folder; `None` if there is none. If the folder contains numbered
/// TIFF files of one page, PNG and JPEG files do not count.
///
/// # Errors
/// [`FormatError`] if the folder cannot be listed or contains several series.
pub(crate) fn only_series_of_folder(folder: &Path) -> Result<Option<PathBuf>, FormatError> {
    let entries = std::fs::read_dir(folder).map_err(|e| FormatError::io(folder, "listing the folder", e))?;
    let (mut slices, mut rasters) = (Vec::new(), Vec::new());
    for entry in entries {
        let path = entry.map_err(|e| FormatError::io(folder, "listing the folder", e))?.path();
        if !is_numbered(&path) {
            continue;
        }
        if !names::is_tiff(&path) {
            rasters.push(path);
        } else if slices::is_slice(&path, &Limits::default()) {
            slices.push(path);
        }
    }
    let slices = series_in(slices);
    let firsts = if slices.is_empty() { series_in(rasters) } else { slices };
    match firsts.as_slice() {
        [] => Ok(None),
        [first] => Ok(Some(first.clone())),
        [first, second, ..] => Err(FormatError::misused(
            folder,
            format!("the folder contains {} series of images", firsts.len()),
            format!("open one of their files, such as {} or {}", name(first), name(second)),
        )),
    }
}

/// Returns the first file of each series among the numbered files of a folder, and files that could be slices of a series but
/// are alone. Empty if there is at most one file.
fn series_in(mut files: Vec<PathBuf>) -> Vec<PathBuf> {
    files.sort();
    let could_be_slice = |file: &Path| {
        PlaneName::of(file).is_some() || Numbered::of(file).is_some_and(|numbered| numbered.can_be_last())
    };
    let mut found = each_with_series(&files);
    found.retain(|(file, series)| series.len() > 1 || could_be_slice(file));
    if found.iter().map(|(_, series)| series.len().max(1)).sum::<usize>() < 2 {
        return Vec::new();
    }
    found.into_iter().map(|(file, series)| series.into_iter().next().unwrap_or(file)).collect()
}

/// Whether the name of a file has a number by which it can belong to a series.
fn is_numbered(path: &Path) -> bool {
    Numbered::of(path).is_some() || PlaneName::of(path).is_some()
}

fn name(path: &Path) -> String {
    path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Returns the first file of each numbered series, because opening it opens the whole series, and all other files, in the same
/// order.
pub fn one_of_each_series(files: &[PathBuf]) -> Vec<PathBuf> {
    each_with_series(files).into_iter().map(|(file, _)| file).collect()
}

/// As [`one_of_each_series`], each with the files that opening it opens.
fn each_with_series(files: &[PathBuf]) -> Vec<(PathBuf, Vec<PathBuf>)> {
    let mut covered: HashSet<PathBuf> = HashSet::new();
    let mut kept = Vec::new();
    for file in files {
        if covered.contains(file) {
            continue;
        }
        let series = opened_with(file);
        covered.extend(series.iter().cloned());
        kept.push((file.clone(), series));
    }
    kept
}

/// Returns the files that opening a file opens. Empty if it cannot be read: opening it then reports why.
fn opened_with(file: &Path) -> Vec<PathBuf> {
    if !is_numbered(file) {
        return Vec::new();
    }
    let Ok(source) = Source::open(file, Arc::default()) else { return Vec::new() };
    let Ok(head) = source.read_vec(0, source.len().min(8) as usize) else { return Vec::new() };
    if looks_like_tiff(&head) {
        return slices::opened_with(file, &Limits { max_set_files: u64::MAX, ..Limits::default() });
    }
    raster::opened_with(file, &source)
}
