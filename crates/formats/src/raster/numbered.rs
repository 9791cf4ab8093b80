//! Numbered series of files: `name_0001.png`, `name_0002.png` and so on are the slices of a stack.

use super::decode::{Codec, Header};
use crate::{
    error::{Fault, FormatError},
    source::Source,
};
use std::{
    collections::{BTreeMap, HashSet},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Extensions of files that can be slices.
const EXTENSIONS: [&str; 3] = ["png", "jpg", "jpeg"];
/// Largest number of digits of a slice number.
const MAX_DIGITS: usize = 18;

/// A file name that ends in a number.
#[derive(Debug, PartialEq, Eq)]
struct Numbered {
    prefix: String,
    extension: String,
    digits: usize,
    /// Whether the number is written with leading zeros.
    padded: bool,
    number: u64,
}

impl Numbered {
    fn of(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?.to_lowercase();
        if !EXTENSIONS.contains(&extension.as_str()) {
            return None;
        }
        let stem = path.file_stem()?.to_str()?;
        let prefix = stem.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = stem.get(prefix.len()..)?;
        if digits.len() > MAX_DIGITS || stem.starts_with('.') {
            return None;
        }
        Some(Self {
            prefix: prefix.to_owned(),
            extension,
            digits: digits.len(),
            padded: digits.len() > 1 && digits.starts_with('0'),
            number: digits.parse().ok()?,
        })
    }

    /// Whether both names differ only in their number, written in the same way.
    fn same_series(&self, other: &Self) -> bool {
        (&self.prefix, &self.extension) == (&other.prefix, &other.extension)
            && (self.digits == other.digits || (!self.padded && !other.padded))
    }
}

/// The files of the series that a file belongs to, in the order of their numbers: those with consecutive numbers and the
/// same size and sample type. Just the file if there are no others.
pub(super) fn series_of(path: &Path, header: &Header, max_files: u64) -> Result<Vec<PathBuf>, Fault> {
    let alone = || Ok(vec![path.to_owned()]);
    let Some(own) = Numbered::of(path) else { return alone() };
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // The file itself can be read even from a folder that cannot be listed.
    let Ok(entries) = std::fs::read_dir(folder) else { return alone() };
    let mut by_number = BTreeMap::new();
    for entry in entries {
        let other = entry.map_err(|e| Fault::Io("listing the folder", e))?.path();
        let Some(numbered) = Numbered::of(&other).filter(|n| own.same_series(n)) else { continue };
        by_number.insert(numbered.number, other);
        if by_number.len() as u64 > max_files {
            return Err(Fault::over("the number of files of the series", max_files + 1, "max_set_files", max_files));
        }
    }
    let fits = |number: u64| {
        let Some(file) = by_number.get(&number) else { return Ok(None) };
        match Source::open(file, Arc::default()).and_then(|source| Header::read(&source)) {
            Ok(found) => Ok((found == *header).then(|| file.clone())),
            // The stack must not end here because of a disk that fails.
            Err(Fault::Io(_, error)) => {
                let error = std::io::Error::new(error.kind(), format!("{}: {error}", name(file)));
                Err(Fault::Io("reading a file of the numbered series", error))
            }
            // A file of another kind under such a name is not a slice.
            Err(_) => Ok(None),
        }
    };
    let next = |number: u64| fits(number).transpose();
    let mut files: Vec<PathBuf> = (0..own.number).rev().map_while(next).collect::<Result<_, Fault>>()?;
    files.reverse();
    files.push(path.to_owned());
    let after: Vec<PathBuf> = (own.number.saturating_add(1)..).map_while(next).collect::<Result<_, Fault>>()?;
    files.extend(after);
    Ok(files)
}

/// The first file of the numbered series in a folder, if all PNG and JPEG files of the folder belong to one series.
pub(crate) fn only_series_of_folder(folder: &Path) -> Result<Option<PathBuf>, FormatError> {
    let entries = std::fs::read_dir(folder).map_err(|e| FormatError::io(folder, "listing the folder", e))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| FormatError::io(folder, "listing the folder", e))?.path();
        if Numbered::of(&path).is_some() {
            files.push(path);
        }
    }
    if files.len() < 2 {
        return Ok(None);
    }
    files.sort();
    let firsts = one_of_each_series(&files);
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

fn name(path: &Path) -> String {
    path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Keeps one file of each numbered series of PNG or JPEG slices, because opening it opens the whole series; other files
/// are kept. The order stays.
pub fn one_of_each_series(files: &[PathBuf]) -> Vec<PathBuf> {
    let mut covered: HashSet<PathBuf> = HashSet::new();
    let mut kept = Vec::new();
    for file in files {
        if covered.contains(file) {
            continue;
        }
        kept.push(file.clone());
        // A file that cannot be read is kept, so that opening it reports why.
        let header = Numbered::of(file).and_then(|_| Source::open(file, Arc::default()).ok()).and_then(|source| {
            let head = source.read_vec(0, source.len().min(8) as usize).ok()?;
            Codec::of(&head).and_then(|_| Header::read(&source).ok())
        });
        if let Some(header) = header
            && let Ok(series) = series_of(file, &header, u64::MAX)
        {
            covered.extend(series);
        }
    }
    kept
}
