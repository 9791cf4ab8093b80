//! The series of the inputs that a job predicts: one of each file, or all.

use super::{PredictJob, stems};
use crate::JobError;
use cytoscope_formats::{FormatError, Image, OpenOptions, SeriesChoice, is_zarr_name};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A series of an input, to be predicted.
pub(super) struct SeriesInput {
    /// Path of the input.
    pub input: PathBuf,
    /// Number of the series, from 0, or why it cannot be chosen.
    pub series: Result<usize, JobError>,
    /// Stem of the names of its results.
    pub stem: String,
}

impl PredictJob {
    /// Opens the chosen series of an input.
    ///
    /// # Errors
    /// As [`SeriesChoice::open`].
    pub(crate) fn open(&self, input: &Path) -> Result<Image, FormatError> {
        self.series.open(input, &self.open_options())
    }

    /// Returns the options to open the inputs with, except the series.
    fn open_options(&self) -> OpenOptions {
        OpenOptions { axes: self.axes.clone(), ..OpenOptions::default() }
    }

    /// Returns this job for one series of its inputs.
    pub(super) fn of_series(&self, series: usize) -> PredictJob {
        PredictJob { series: SeriesChoice::Index(series), ..self.clone() }
    }

    /// Returns the inputs that belong to a multi-file image with several series of which an earlier input opens all, if all
    /// series are chosen. Inputs that cannot be opened are not among them.
    fn members_of_earlier_sets<'a>(&self, files: &'a [PathBuf]) -> BTreeSet<&'a Path> {
        let mut members = BTreeSet::new();
        if self.series != SeriesChoice::All || files.len() < 2 {
            return members;
        }
        for input in files {
            if members.contains(input.as_path()) {
                continue;
            }
            let Ok(image) = cytoscope_formats::open(input, &self.open_options()) else { continue };
            if image.meta().series_count > 1 {
                let set = image.files();
                members.extend(files.iter().filter(|file| *file != input && set.contains(file)).map(PathBuf::as_path));
            }
        }
        members
    }

    /// Returns the chosen series of all inputs. The stems of a series other than the first end in its number, so that the
    /// positions of a file do not replace each other's results.
    pub(super) fn series_inputs(&self, files: &[PathBuf]) -> Vec<SeriesInput> {
        let named =
            is_zarr_name(&self.out).then(|| stems(std::slice::from_ref(&self.out))).and_then(|mut stems| stems.pop());
        let mut seen: BTreeSet<String> = BTreeSet::new();
        let mut inputs = Vec::new();
        let members = self.members_of_earlier_sets(files);
        for (input, stem) in files.iter().zip(stems(files)).filter(|(input, _)| !members.contains(input.as_path())) {
            let chosen: Vec<Result<usize, JobError>> = match self.series.indices_in(input, &self.open_options()) {
                Ok(found) => found.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(JobError::from(error))],
            };
            for series in chosen {
                let stem = match (&named, &series) {
                    (Some(named), _) => named.clone(),
                    (None, Ok(n)) if *n > 0 => format!("{stem}_s{n}"),
                    (None, _) => stem.clone(),
                };
                let mut unique = stem.clone();
                let mut n = 2;
                // Another file may have the name of a series. Some file systems are case-insensitive.
                while !seen.insert(unique.to_lowercase()) {
                    unique = format!("{stem}_{n}");
                    n += 1;
                }
                inputs.push(SeriesInput { input: input.clone(), series, stem: unique });
            }
        }
        inputs
    }
}
