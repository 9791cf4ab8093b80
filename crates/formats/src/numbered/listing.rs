//! The numbered files of folders. A folder is listed once for all its files.

use super::{
    names::{Numbered, PlaneName},
    names_beside,
};
use crate::error::Fault;
use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    rc::Rc,
};

/// A file of a series of names that differ only in their number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SeriesFile {
    /// The number in its name.
    pub number: u64,
    /// The number minus the place of the file in the series: equal for files with consecutive numbers.
    run: u64,
    /// Path of the file.
    pub path: PathBuf,
}

/// Returns the files with these numbers in ascending order.
fn series_of(by_number: BTreeMap<u64, PathBuf>) -> Vec<SeriesFile> {
    let file = |(place, (number, path)): (usize, (u64, PathBuf))| {
        // The numbers differ, so that none is smaller than its place.
        SeriesFile { number, run: number.saturating_sub(place as u64), path }
    };
    by_number.into_iter().enumerate().map(file).collect()
}

/// Returns the files with consecutive numbers up to the first gap below and above `number`; empty without a file of this number.
pub(super) fn run_around(series: &[SeriesFile], number: u64) -> &[SeriesFile] {
    let Some(own) = find(series, number) else { return &[] };
    let start = series.partition_point(|file| file.run < own.run);
    let end = series.partition_point(|file| file.run <= own.run);
    series.get(start..end).unwrap_or_default()
}

fn find(series: &[SeriesFile], number: u64) -> Option<&SeriesFile> {
    let place = series.binary_search_by_key(&number, |file| file.number).ok()?;
    series.get(place)
}

/// What the names of files have in common: the text before the number (or around the numbers), and the extension.
type NameKey = (String, String);
/// The same, and the number of digits and whether there are leading zeros.
type SeriesKey = (NameKey, usize, bool);

/// The numbered files of a folder.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Files whose names end in a number.
    numbered: HashMap<NameKey, Vec<(Numbered, PathBuf)>>,
    /// Files whose names end in the numbers of axes.
    planes: HashMap<NameKey, Vec<(PlaneName, PathBuf)>>,
    /// The series that were asked for.
    series: RefCell<HashMap<SeriesKey, Rc<Vec<SeriesFile>>>>,
}

impl Listing {
    /// Lists the folder of a file; `None` if it cannot be listed.
    fn beside(path: &Path) -> Result<Option<Self>, Fault> {
        let Some(names) = names_beside(path)? else { return Ok(None) };
        let mut listing = Self::default();
        for name in names {
            let file = path.with_file_name(name);
            if let Some(plane) = PlaneName::of(&file) {
                listing.planes.entry(plane.key()).or_default().push((plane, file.clone()));
            }
            if let Some(numbered) = Numbered::of(&file) {
                listing.numbered.entry(numbered.key()).or_default().push((numbered, file));
            }
        }
        Ok(Some(listing))
    }

    /// Returns the files whose names differ from that of the file at `path` only in their number, and this file, in the order of
    /// their numbers.
    pub fn series(&self, path: &Path, own: &Numbered) -> Rc<Vec<SeriesFile>> {
        let key = (own.key(), own.number.digits, own.number.padded);
        let known = self.series.borrow().get(&key).cloned();
        let series = known.unwrap_or_else(|| {
            let files = self.numbered.get(&key.0).into_iter().flatten();
            let same = files.filter(|(other, _)| own.same_series(other));
            let series = Rc::new(series_of(same.map(|(other, file)| (other.number.value, file.clone())).collect()));
            self.series.borrow_mut().insert(key, Rc::clone(&series));
            series
        });
        if find(&series, own.number.value).is_some() {
            return series;
        }
        // The file is not in the listing, for example because it was created after the folder was listed.
        let mut by_number: BTreeMap<u64, PathBuf> =
            series.iter().map(|file| (file.number, file.path.clone())).collect();
        by_number.insert(own.number.value, path.to_owned());
        Rc::new(series_of(by_number))
    }

    /// Returns the files whose names may differ from `own` only in their numbers.
    pub fn planes(&self, own: &PlaneName) -> &[(PlaneName, PathBuf)] {
        self.planes.get(&own.key()).map(Vec::as_slice).unwrap_or_default()
    }
}

/// The folders that were listed.
#[derive(Debug, Default)]
pub(crate) struct Listings(RefCell<HashMap<PathBuf, Option<Rc<Listing>>>>);

impl Listings {
    /// Returns the files in the folder of a file; `None` if the folder cannot be listed.
    ///
    /// # Errors
    /// [`Fault::Io`] if the list ends early.
    pub(super) fn beside(&self, path: &Path) -> Result<Option<Rc<Listing>>, Fault> {
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        let known = self.0.borrow().get(&folder).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let listing = Listing::beside(path)?.map(Rc::new);
        self.0.borrow_mut().insert(folder, listing.clone());
        Ok(listing)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn a_folder_is_listed_once_for_all_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["a1.png", "a2.png", "a4.png", "a04.png", "b_Z1.tif", "b_Z2.tif", "notes.txt"] {
            std::fs::write(at(name), b"").unwrap();
        }
        let listings = Listings::default();
        let listing = listings.beside(&at("a1.png")).unwrap().unwrap();
        std::fs::write(at("a3.png"), b"").unwrap();
        assert!(Rc::ptr_eq(&listing, &listings.beside(&at("b_Z1.tif")).unwrap().unwrap()));
        let series = |name: &str| listing.series(&at(name), &Numbered::of(&at(name)).unwrap());
        assert!(Rc::ptr_eq(&series("a1.png"), &series("a4.png")));
        let numbers = |files: &[SeriesFile]| files.iter().map(|file| file.number).collect::<Vec<_>>();
        assert_eq!(numbers(&series("a1.png")), [1, 2, 4]);
        assert_eq!(numbers(&series("a04.png")), [4], "written with leading zeros");
        assert_eq!(numbers(run_around(&series("a2.png"), 2)), [1, 2]);
        assert_eq!(numbers(run_around(&series("a2.png"), 4)), [4]);
        assert!(run_around(&series("a2.png"), 7).is_empty());
        // A file that was created after the folder was listed.
        assert_eq!(numbers(run_around(&series("a3.png"), 3)), [1, 2, 3, 4]);
        assert_eq!(listing.planes(&PlaneName::of(&at("b_Z2.tif")).unwrap()).len(), 2);
    }
}
