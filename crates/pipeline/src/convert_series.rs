//! Conversion of all series of a file, each to a file of its own.

use crate::job_record::recorded;
use crate::{Context, ConvertJob, Event, JobError, JobErrorKind, stack_stem};
use cytoscope_formats::{OpenOptions, SeriesChoice, series_suffix};
use cytoscope_storage::message;
use cytoscope_storage::setting::{LABELS, SERIES};
use std::path::{Path, PathBuf};

/// The conversion of one series.
#[derive(Debug)]
pub struct ConvertedSeries {
    /// Number of the series, from 0.
    pub series: usize,
    /// File or folder of the series.
    pub output: PathBuf,
    /// Why it was not written, if it was not.
    pub result: Result<(), JobError>,
}

impl ConvertJob {
    /// Converts each of the chosen series to a file of its own, with a provenance record each. The name of the first series
    /// is that of the output; those of the others end in their number, such as `NAME_s1.ome.tif`. A series that cannot be
    /// converted does not stop the others.
    ///
    /// # Errors
    /// [`JobError`] if the series cannot be listed, or if labels are given for several series; [`JobError::Canceled`].
    pub fn run_each_series(&self, context: &Context) -> Result<Vec<ConvertedSeries>, JobError> {
        let options = OpenOptions { axes: self.axes.clone(), ..OpenOptions::default() };
        let chosen = self.series.indices_in(&self.input, &options)?;
        if self.labels.is_some() && chosen.len() > 1 {
            return Err(JobError::wrong_use_with(
                message!("{LABELS} is the label image of one series"),
                message!("convert one after the other, each with {SERIES} N"),
            ));
        }
        let mut all = Vec::with_capacity(chosen.len());
        for (index, series) in chosen.iter().copied().enumerate() {
            context.check()?;
            context.emit(&Event::Started { input: self.input.clone(), index, count: chosen.len() });
            let output = series_output(&self.output, series)?;
            let job = Self { series: SeriesChoice::Index(series), output: output.clone(), ..self.clone() };
            let result = recorded(&job, context, |record| job.convert(context, record, true));
            if let Err(error) = &result
                && error.kind() == JobErrorKind::Canceled
            {
                return Err(JobError::Canceled);
            }
            all.push(ConvertedSeries { series, output, result });
        }
        Ok(all)
    }

    /// Converts the chosen series, or each of all series to a file of its own, and returns the files.
    ///
    /// # Errors
    /// Same as [`ConvertJob::run`] and [`ConvertJob::run_each_series`]; the first failure of several series, each of
    /// which is noted.
    pub fn run_chosen(&self, context: &Context) -> Result<Vec<PathBuf>, JobError> {
        if self.series != SeriesChoice::All {
            self.run(context)?;
            return Ok(vec![self.output.clone()]);
        }
        let (mut written, mut failure) = (Vec::new(), None);
        for ConvertedSeries { series, output, result } in self.run_each_series(context)? {
            match result {
                Ok(()) => written.push(output),
                Err(error) => {
                    context.note(message!("series {series} could not be converted: {}", error.message()));
                    failure = failure.or(Some(error));
                }
            }
        }
        failure.map_or(Ok(written), Err)
    }
}

/// Returns the output of a series, whose number follows the stem of the name.
fn series_output(output: &Path, series: usize) -> Result<PathBuf, JobError> {
    if series == 0 {
        return Ok(output.to_owned());
    }
    let stem = stack_stem(output);
    let name = output.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(&stem));
    let Some(extension) = name else {
        let path = output.display();
        return Err(JobError::wrong_use_with(
            format!("{path}: the name of the output is not valid Unicode"),
            "give another one",
        ));
    };
    Ok(output.with_file_name(format!("{stem}{}{extension}", series_suffix(series))))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn the_number_of_a_series_is_a_part_of_the_name_before_its_extension() {
        let of = |output: &str, series| series_output(Path::new(output), series).unwrap();
        assert_eq!(of("o/a.b.ome.tif", 0), Path::new("o/a.b.ome.tif"));
        assert_eq!(of("o/a.b.ome.tif", 3), Path::new("o/a.b_s3.ome.tif"));
        assert_eq!(of("a.zarr", 12), Path::new("a_s12.zarr"));
        assert_eq!(of("a_seg.npy", 1), Path::new("a_s1_seg.npy"));
        assert_eq!(of("A.OME.TIF", 1), Path::new("A_s1.OME.TIF"));
    }
}
