//! Numbered files: `name_0001.png`, `name_0002.png` and so on are the slices of a stack.

mod listing;
mod names;
mod planes;

pub(crate) use listing::Listings;
pub(crate) use planes::PlaneFiles;

use crate::{
    error::{Fault, FormatError, Remedy},
    limits::Limits,
    parts::without_parts,
    raster,
    source::Source,
    tiff::{ifd::looks_like_tiff, slices},
};
use cytoscope_storage::{io_problem, write::parent_folder};
use listing::{SeriesFile, run_around};
use names::{Numbered, PlaneName};
use std::{
    collections::HashSet,
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Names of the files in the folder of a file; `None` if the folder cannot be listed; the file itself may still be readable.
fn names_beside(path: &Path) -> Result<Option<Vec<OsString>>, Fault> {
    let Ok(entries) = std::fs::read_dir(parent_folder(path)) else { return Ok(None) };
    let names = entries.map(|entry| entry.map(|e| e.file_name())).collect::<Result<Vec<_>, _>>();
    names.map(Some).map_err(|e| Fault::Io("listing the folder", e))
}

/// Refuses a series with more files than the limit.
fn check_count(files: usize, max_files: u64) -> Result<(), Fault> {
    if files as u64 > max_files {
        return Err(Fault::over(
            "the number of files of the series",
            max_files + 1,
            "max_set_files",
            max_files,
            Remedy::MoveFiles,
        ));
    }
    Ok(())
}

/// Names the file in an error of the operating system; other errors are kept.
fn named(fault: Fault, file: &Path) -> Fault {
    match fault {
        Fault::Io(_, error) => {
            let error = std::io::Error::new(error.kind(), format!("{}: {}", name(file), io_problem(&error)));
            Fault::Io("reading a file of the numbered series", error)
        }
        other => other,
    }
}

/// Number of files of a series that are checked when it is opened. On a network drive, reading the headers of thousands of
/// files takes minutes. The others are checked when they are read.
const MAX_CHECKED: usize = 16;

/// The error for a file that cannot be a plane of the series that its name suggests.
pub(crate) fn not_in_series() -> Fault {
    Fault::Malformed(
        "it differs from the other files of its series in size, sample type or number of images".into(),
        "move it to another folder, or open a single file of the series with the axes YX".into(),
    )
}

/// Returns what `fits` returns for a file; `false` if it cannot be read as an image. A disk that fails is an error: it must
/// not shorten the stack.
fn can_join(file: &Path, fits: &impl Fn(&Path) -> Result<bool, Fault>) -> Result<bool, Fault> {
    match fits(file) {
        Ok(fits) => Ok(fits),
        Err(fault @ Fault::Io(..)) => Err(named(fault, file)),
        Err(_) => Ok(false),
    }
}

/// Whether the first, the last and evenly spaced files of a long series fit, so that all files are assumed to be planes.
/// `false` for a short series, in which every file is checked. The opened file is known to fit.
fn fits_by_sample(
    files: &[&PathBuf],
    opened: &Path,
    fits: &impl Fn(&Path) -> Result<bool, Fault>,
) -> Result<bool, Fault> {
    let Some(last) = files.len().checked_sub(1).filter(|last| *last >= MAX_CHECKED) else { return Ok(false) };
    for i in 0..MAX_CHECKED {
        let Some(file) = files.get(i * last / (MAX_CHECKED - 1)) else { continue };
        if file.as_path() != opened && !can_join(file, fits)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the files of the series that a file belongs to, in the order of their numbers. The numbers are consecutive, and
/// `fits` returns for another file whether it has the same size and sample type. The series ends before a file that does
/// not fit. If the checked files of a long series fit, its other files are not checked. A file without others is returned
/// alone.
pub(crate) fn series_files(
    path: &Path,
    max_files: u64,
    listings: &Listings,
    fits: impl Fn(&Path) -> Result<bool, Fault>,
) -> Result<Vec<PathBuf>, Fault> {
    let alone = || Ok(vec![path.to_owned()]);
    let Some(own) = Numbered::of(path) else { return alone() };
    let Some(listing) = listings.beside(path)? else { return alone() };
    let series = listing.series(path, &own);
    check_count(series.len(), max_files)?;
    let can_be_last = |file: &PathBuf| Numbered::of(file).is_some_and(|numbered| numbered.can_be_last());
    let run = run_around(&series, own.number.value);
    // If the last file cannot be the last slice, neither can one before it.
    if run.last().is_none_or(|file| !can_be_last(&file.path)) {
        return alone();
    }
    if fits_by_sample(&run.iter().map(|file| &file.path).collect::<Vec<_>>(), path, &fits)? {
        return Ok(run.iter().map(|file| file.path.clone()).collect());
    }
    let joins = |file: &SeriesFile| can_join(&file.path, &fits).map(|fits| fits.then(|| file.path.clone())).transpose();
    let (before, after) = run.split_at(run.partition_point(|file| file.number < own.number.value));
    let mut files: Vec<PathBuf> = before.iter().rev().map_while(joins).collect::<Result<_, Fault>>()?;
    files.reverse();
    files.push(path.to_owned());
    let after: Vec<PathBuf> = after.iter().skip(1).map_while(joins).collect::<Result<_, Fault>>()?;
    files.extend(after);
    if files.last().is_some_and(can_be_last) { Ok(files) } else { alone() }
}

/// Returns the first file of the only numbered series in a folder; `None` if there is none. If the folder contains numbered
/// TIFF files of one page, PNG and JPEG files do not count.
///
/// # Errors
/// [`FormatError`] if the folder cannot be listed or contains several series.
pub(crate) fn only_series_in_folder(folder: &Path) -> Result<Option<PathBuf>, FormatError> {
    let entries = std::fs::read_dir(folder).map_err(|e| FormatError::io(folder, "listing the folder", e))?;
    let (mut slices, mut rasters) = (Vec::new(), Vec::new());
    for entry in entries {
        let path = entry.map_err(|e| FormatError::io(folder, "listing the folder", e))?.path();
        if !is_numbered(&path) {
            continue;
        }
        if names::is_tiff(&path) {
            slices.push(path);
        } else {
            rasters.push(path);
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
/// are alone. Files with several pages, with OME-XML or with levels do not count. Empty if there is at most one file.
fn series_in(mut files: Vec<PathBuf>) -> Vec<PathBuf> {
    files.sort();
    let could_be_slice = |file: &Path| {
        PlaneName::of(file).is_some() || Numbered::of(file).is_some_and(|numbered| numbered.can_be_last())
    };
    let mut found = each_with_series(&files);
    found.retain(|(file, series)| match series {
        Some(series) => series.len() > 1 || could_be_slice(file),
        // A damaged PNG or JPEG file may have been a slice.
        None => !names::is_tiff(file) && could_be_slice(file),
    });
    let count = |series: &Option<Vec<PathBuf>>| series.as_ref().map_or(1, |series| series.len().max(1));
    if found.iter().map(|(_, series)| count(series)).sum::<usize>() < 2 {
        return Vec::new();
    }
    found.into_iter().map(|(file, series)| series.unwrap_or_default().into_iter().next().unwrap_or(file)).collect()
}

/// Whether the name of a file has a number by which it can belong to a series.
fn is_numbered(path: &Path) -> bool {
    Numbered::of(path).is_some() || PlaneName::of(path).is_some()
}

fn name(path: &Path) -> String {
    path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Returns the first file of each numbered series and of each image of an OME-TIFF set, because opening it opens the whole series
/// or set, and all other files, in the same order. Parts of split exports of BigDataViewer are left out if their main file is in
/// the list.
pub fn first_file_per_series(files: &[PathBuf]) -> Vec<PathBuf> {
    without_parts(each_with_series(files).into_iter().map(|(file, _)| file).collect())
}

/// Returns the number of files that are named like those of a numbered series but do not belong to it, because a number between
/// them is missing, or they differ from it; 0 if the folder cannot be listed.
pub fn count_files_outside_series(files: &[PathBuf]) -> usize {
    let Some((first, own)) = files.first().and_then(|first| Some((first, Numbered::of(first)?))) else { return 0 };
    let Ok(Some(names)) = names_beside(first) else { return 0 };
    let members: HashSet<String> = files.iter().map(|file| name(file)).collect();
    let is_left_out = |file: &PathBuf| {
        Numbered::of(file).is_some_and(|other| own.same_series(&other)) && !members.contains(&name(file))
    };
    names.into_iter().map(|other| first.with_file_name(other)).filter(is_left_out).count()
}

/// Like [`first_file_per_series`], each with what [`opened_with`] returns.
fn each_with_series(files: &[PathBuf]) -> Vec<(PathBuf, Option<Vec<PathBuf>>)> {
    let mut covered: HashSet<PathBuf> = HashSet::new();
    let mut kept = Vec::new();
    let listings = Listings::default();
    for file in files {
        if covered.contains(file) {
            continue;
        }
        let series = opened_with(file, &listings);
        covered.extend(series.iter().flatten().cloned());
        kept.push((file.clone(), series));
    }
    kept
}

/// Returns the files that opening a file opens; empty if its series cannot be read: opening it then reports why. `None` if
/// the file cannot be a slice.
fn opened_with(file: &Path, listings: &Listings) -> Option<Vec<PathBuf>> {
    if !is_numbered(file) {
        return None;
    }
    let source = Source::open(file, Arc::default()).ok()?;
    let head = source.read_vec(0, source.len().min(8) as usize).ok()?;
    if looks_like_tiff(&head) {
        let limits = Limits { max_set_files: u64::MAX, ..Limits::default() };
        return slices::opened_with(file, &limits, listings);
    }
    raster::opened_with(file, &source, listings)
}
