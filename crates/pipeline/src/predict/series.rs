//! The series of the inputs that a job predicts: one of each file, or all.

use super::{PredictJob, stems};
use crate::JobError;
use cytoscope_formats::{FormatError, Image, OpenOptions, SeriesChoice, any_series, is_zarr_name};
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
    pub(super) fn open_options(&self) -> OpenOptions {
        OpenOptions { axes: self.axes.clone(), ..OpenOptions::default() }
    }

    /// Returns this job for one series of its inputs.
    pub(super) fn of_series(&self, series: usize) -> PredictJob {
        PredictJob { series: SeriesChoice::Index(series), ..self.clone() }
    }

    /// Returns the numbers of the chosen series of each input. If all series are chosen, an input is `None` if it belongs to
    /// a multi-file image whose series another input opens already. Each file is opened at most once.
    fn chosen_series(&self, files: &[PathBuf]) -> Vec<Option<Result<Vec<usize>, JobError>>> {
        let mut members: BTreeSet<&Path> = BTreeSet::new();
        let mut all = Vec::with_capacity(files.len());
        for input in files {
            if members.contains(input.as_path()) {
                all.push(None);
                continue;
            }
            if let SeriesChoice::Index(index) = self.series {
                all.push(Some(Ok(vec![index])));
                continue;
            }
            let image = any_series(input, &self.open_options());
            if let Ok(image) = &image
                && self.series == SeriesChoice::All
                && files.len() > 1
                && image.meta().series_count > 1
            {
                let set = image.files();
                members.extend(files.iter().filter(|file| *file != input && set.contains(file)).map(PathBuf::as_path));
            }
            let chosen = image.and_then(|image| self.series.indices_of(image.meta()));
            all.push(Some(chosen.map_err(JobError::from)));
        }
        // An input before the one that opens its set is left out, too.
        let kept = |(input, chosen): (&PathBuf, Option<_>)| chosen.filter(|_| !members.contains(input.as_path()));
        files.iter().zip(all).map(kept).collect()
    }

    /// Returns the chosen series of all inputs. The stems of a series other than the first end in its number, so that the
    /// positions of a file do not replace each other's results.
    pub(super) fn series_inputs(&self, files: &[PathBuf]) -> Vec<SeriesInput> {
        let named =
            is_zarr_name(&self.out).then(|| stems(std::slice::from_ref(&self.out))).and_then(|mut stems| stems.pop());
        let mut seen: BTreeSet<String> = BTreeSet::new();
        let mut inputs = Vec::new();
        for ((input, stem), chosen) in files.iter().zip(stems(files)).zip(self.chosen_series(files)) {
            let chosen: Vec<Result<usize, JobError>> = match chosen {
                None => continue,
                Some(Ok(found)) => found.into_iter().map(Ok).collect(),
                Some(Err(error)) => vec![Err(error)],
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
