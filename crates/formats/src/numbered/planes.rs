//! Images whose planes are files with the numbers of their axes in their names.

use super::{can_join, check_count, fits_by_sample, listing::Listings, name, names::PlaneName};
use crate::error::{Fault, FormatError};
use cytoscope_volume::Axis;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// The files whose names differ only in the numbers of the axes T, Z, C: each is a plane of one image.
#[derive(Debug)]
pub(crate) struct PlaneFiles {
    /// The file that was opened.
    opened: PathBuf,
    name: PlaneName,
    /// Number of digits of each number of the name, if some files have leading zeros.
    padding: Vec<Option<usize>>,
    /// Files by their numbers along T, Z, C.
    by_position: BTreeMap<[u64; 3], PathBuf>,
}

/// Advice if a file does not belong to the image that its name suggests.
const OPEN_ALONE: &str = "complete the series, or open a single file of it with the axes YX";

impl PlaneFiles {
    /// Returns the files of the image that a file belongs to by its name; `None` if it has no such name, or there is no other
    /// file of the image.
    pub fn beside(path: &Path, max_files: u64, listings: &Listings) -> Result<Option<Self>, Fault> {
        let Some(own) = PlaneName::of(path) else { return Ok(None) };
        let Some(listing) = listings.beside(path)? else { return Ok(None) };
        let mut by_position = BTreeMap::from([(own.position(), path.to_owned())]);
        let mut padding = own.padding();
        for (plane, other) in listing.planes(&own).iter().filter(|(plane, _)| own.same_image(plane)) {
            for (digits, padded) in padding.iter_mut().zip(plane.padding()) {
                *digits = digits.or(padded);
            }
            by_position.entry(plane.position()).or_insert_with(|| other.clone());
            check_count(by_position.len(), max_files)?;
        }
        let found = Self { opened: path.to_owned(), name: own, padding, by_position };
        Ok(Some(found).filter(|found| found.by_position.len() > 1))
    }

    /// Returns the files in the order T, Z, C.
    pub fn files(&self) -> Vec<PathBuf> {
        self.by_position.values().cloned().collect()
    }

    /// Returns the number of planes along T, Z, C.
    ///
    /// # Errors
    /// An error that names the first file that is missing.
    pub fn dims(&self) -> Result<[(Axis, usize); 3], Fault> {
        let range = |axis: usize| {
            let numbers = || self.by_position.keys().filter_map(move |position| position.get(axis).copied());
            (numbers().min().unwrap_or(0), numbers().max().unwrap_or(0))
        };
        let [t, z, c] = [range(0), range(1), range(2)];
        // The first gap ends the loops, so they visit at most one position more than there are files.
        for time in t.0..=t.1 {
            for slice in z.0..=z.1 {
                for channel in c.0..=c.1 {
                    if !self.by_position.contains_key(&[time, slice, channel]) {
                        return Err(self.missing([time, slice, channel]));
                    }
                }
            }
        }
        let count = |(first, last): (u64, u64)| usize::try_from(last - first).unwrap_or(usize::MAX).saturating_add(1);
        Ok([(Axis::T, count(t)), (Axis::Z, count(z)), (Axis::C, count(c))])
    }

    fn missing(&self, position: [u64; 3]) -> Fault {
        let extension = self.opened.extension().map(|e| e.to_string_lossy().into_owned()).unwrap_or_default();
        let problem = format!(
            "by its name, it is a plane of a series of {} files, but {} is missing",
            self.by_position.len(),
            self.name.at(position, &self.padding, &extension)
        );
        Fault::Misused(problem.into(), OPEN_ALONE.into())
    }

    /// Refuses an image with a file that does not fit: its size, sample type or number of pages differs from the others'. The
    /// error names the first one. Of many files, only some are checked if these fit.
    pub fn check(&self, fits: impl Fn(&Path) -> Result<bool, Fault>) -> Result<(), FormatError> {
        let files: Vec<&PathBuf> = self.by_position.values().collect();
        let at_opened = |fault: Fault| fault.at(&self.opened);
        if fits_by_sample(&files, &self.opened, &fits).map_err(at_opened)? {
            return Ok(());
        }
        for file in files.into_iter().filter(|file| **file != self.opened) {
            if !can_join(file, &fits).map_err(at_opened)? {
                let problem = format!(
                    "by its name, it is a plane of a series of {} files, but {} is not a single page of the same size and \
                    sample type",
                    self.by_position.len(),
                    name(file)
                );
                return Err(FormatError::misused(&self.opened, problem, OPEN_ALONE));
            }
        }
        Ok(())
    }
}
