//! Conversion of all series of a file, each to its own file.

use crate::job_record::{AnyRecord, absolute, read_any, record_path, recorded};
use crate::results::check_file;
use crate::{Context, ConvertJob, Event, InputFailure, JobError, JobErrorKind};
use cytoscope_formats::{OpenOptions, SeriesChoice, check_output_name, is_zarr_name, series_suffix, stack_stem};
use cytoscope_storage::partial_folder::check_new_folder;
use cytoscope_storage::setting::{LABELS, SERIES};
use cytoscope_storage::{Overwrite, StorageError, message};
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

/// What the conversion of the chosen series has written, and the series that failed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConvertOutcome {
    /// The files or folders that were written, in the order of the series.
    pub written: Vec<PathBuf>,
    /// The series that could not be converted.
    pub failed: Vec<InputFailure>,
}

impl ConvertJob {
    /// Converts each of the chosen series to its own file, with a provenance record each. The name of the first series
    /// is that of the output; those of the others end in their number, such as `NAME_s1.ome.tif`. A series that cannot be
    /// converted does not stop the others.
    ///
    /// # Errors
    /// [`JobError`] if the name of the output is only an extension, if the series cannot be listed, if labels are given for
    /// several series, or if the file of a series may not be written: it exists, or a series other than the first would replace
    /// what was made from another file; [`JobError::Canceled`].
    pub fn run_each_series(&self, context: &Context) -> Result<Vec<ConvertedSeries>, JobError> {
        check_output_name(&self.output)?;
        let options = OpenOptions { axes: self.axes.clone(), ..OpenOptions::default() };
        let chosen = self.series.indices_in(&self.input, &options)?;
        if self.labels.is_some() && chosen.len() > 1 {
            return Err(JobError::wrong_use_with(
                message!("{LABELS} is the label image of one series"),
                message!("convert one after the other, each with {SERIES} N"),
            ));
        }
        let outputs: Vec<PathBuf> =
            chosen.iter().map(|series| series_output(&self.output, *series)).collect::<Result<_, JobError>>()?;
        for output in outputs.iter().filter(|output| **output != self.output) {
            self.refuse_result_of_another(output)?;
        }
        for output in &outputs {
            self.check_series_output(output)?;
        }
        let mut all = Vec::with_capacity(chosen.len());
        for (index, (series, output)) in chosen.iter().copied().zip(outputs).enumerate() {
            context.check()?;
            context.emit(&Event::Started { input: self.input.clone(), index, count: chosen.len() });
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

    /// Converts the chosen series, or each of all series to its own file. Series that fail do not stop the others.
    ///
    /// # Errors
    /// Same as [`ConvertJob::run`] and [`ConvertJob::run_each_series`]. If no series could be converted, the failure of the
    /// first one; the others are noted.
    pub fn run_chosen(&self, context: &Context) -> Result<ConvertOutcome, JobError> {
        if self.series != SeriesChoice::All {
            self.run(context)?;
            return Ok(ConvertOutcome { written: vec![self.output.clone()], failed: Vec::new() });
        }
        let (mut written, mut errors) = (Vec::new(), Vec::new());
        for ConvertedSeries { series, output, result } in self.run_each_series(context)? {
            match result {
                Ok(()) => written.push(output),
                Err(error) => errors.push((series, error)),
            }
        }
        if !written.is_empty() {
            let failed = errors.iter().map(|(series, error)| self.failure_of(*series, error)).collect();
            return Ok(ConvertOutcome { written, failed });
        }
        let mut errors = errors.into_iter();
        let Some((_, first)) = errors.next() else { return Ok(ConvertOutcome::default()) };
        for (series, error) in errors {
            context.note(message!("series {series} could not be converted: {}", error.message()));
        }
        Err(first)
    }

    /// Refuses to replace a file that was made from another input. The name of a series is derived from that of the first one,
    /// so permission to replace existing files does not mean such a file.
    fn refuse_result_of_another(&self, output: &Path) -> Result<(), JobError> {
        if self.overwrite == Overwrite::Refuse || std::fs::symlink_metadata(output).is_err() {
            return Ok(());
        }
        let Ok(AnyRecord::Job(record)) = read_any(&record_path(output)) else { return Ok(()) };
        // Folders may have been moved, so only names are compared.
        let this = absolute(&self.input);
        let is_this = record.inputs.iter().any(|input| input.path.file_name() == this.file_name());
        let Some(other) = record.inputs.first().filter(|_| !is_this) else { return Ok(()) };
        let problem = format!("was made from {}, not from a series of {}", other.path.display(), self.input.display());
        Err(StorageError::NotReplaceable { path: output.to_owned(), problem, can_force: false }.into())
    }

    /// Checks that the file or folder of a series may be written.
    ///
    /// # Errors
    /// [`StorageError`] if it exists without permission to replace it, or cannot be written.
    fn check_series_output(&self, output: &Path) -> Result<(), JobError> {
        let inputs = [self.input.as_path()];
        if is_zarr_name(output) {
            return Ok(check_new_folder(output, &inputs, self.overwrite)?);
        }
        Ok(check_file(output, &inputs, self.overwrite)?)
    }

    /// Returns the report of a series that could not be converted.
    fn failure_of(&self, series: usize, error: &JobError) -> InputFailure {
        let message = message!("series {series} of {}", error.message_about(&self.input));
        InputFailure {
            input: self.input.clone(),
            series,
            kind: error.kind(),
            settings: message.named_settings(),
            message: message.into(),
            next_step: error.next_step().map(String::from),
            existing: error.existing_output(),
        }
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
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
    use super::*;
    use cytoscope_formats::{Container, WriteSpec, write_array};
    use cytoscope_volume::Array;
    use serde_json::json;

    fn conversion(input: &Path, output: &Path, series: SeriesChoice) -> ConvertJob {
        let job: ConvertJob = serde_json::from_value(json!({"input": input, "output": output})).unwrap();
        ConvertJob { series, ..job }
    }

    /// Writes the stack `one.tif`, and a well with two images.
    fn write_well(folder: &Path) -> PathBuf {
        let (stack, well) = (folder.join("one.tif"), folder.join("well.zarr"));
        let array = Array::new("ZYX".parse().unwrap(), vec![2, 3, 4], vec![1u16; 24]).unwrap();
        write_array(&stack, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        std::fs::create_dir(&well).unwrap();
        let images = json!([{"path": "0.zarr"}, {"path": "1.zarr"}]);
        let attributes = json!({"ome": {"well": {"images": images}}});
        let group = json!({"zarr_format": 3, "node_type": "group", "attributes": attributes});
        std::fs::write(well.join("zarr.json"), group.to_string()).unwrap();
        for name in ["0.zarr", "1.zarr"] {
            conversion(&stack, &well.join(name), SeriesChoice::default()).run(&Context::default()).unwrap();
        }
        well
    }

    #[test]
    fn series_that_were_written_and_series_that_failed_are_reported_together() {
        let folder = tempfile::tempdir().unwrap();
        let well = write_well(folder.path());
        let at = |name: &str| folder.path().join(name);
        let damage = |name: &str| std::fs::write(well.join(name).join("0").join("zarr.json"), "{").unwrap();
        damage("1.zarr");
        let run = |out: &str| conversion(&well, &at(out), SeriesChoice::All).run_chosen(&Context::default());
        let ConvertOutcome { written, failed } = run("a.npy").unwrap();
        assert_eq!(written, [at("a.npy")]);
        let [failure] = failed.as_slice() else { panic!("{failed:?}") };
        assert_eq!((failure.series, failure.kind), (1, JobErrorKind::BadInput));
        assert!(failure.message.starts_with("series 1 of ") && failure.existing.is_none(), "{}", failure.message);
        // If nothing can be written, the job fails.
        damage("0.zarr");
        assert_eq!(run("b.npy").unwrap_err().kind(), JobErrorKind::BadInput);
    }

    #[test]
    fn no_series_is_written_if_the_file_of_one_exists() {
        let folder = tempfile::tempdir().unwrap();
        let well = write_well(folder.path());
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("a_s1.npy"), "mine").unwrap();
        std::fs::create_dir(at("b_s1.zarr")).unwrap();
        std::fs::write(at("b_s1.zarr").join("mine.txt"), "mine").unwrap();
        for (out, existing) in [("a.npy", "a_s1.npy"), ("b.zarr", "b_s1.zarr")] {
            let job = conversion(&well, &at(out), SeriesChoice::All);
            let error = job.run_chosen(&Context::default()).unwrap_err();
            assert_eq!(error.kind(), JobErrorKind::WouldOverwrite, "{error}");
            assert_eq!(error.existing_output().map(|output| output.path), Some(at(existing)), "{error}");
            assert!(!at(out).exists(), "{out}");
        }
        assert_eq!(std::fs::read(at("a_s1.npy")).unwrap(), b"mine");
    }

    #[test]
    fn a_series_does_not_replace_the_converted_file_of_another_input() {
        let folder = tempfile::tempdir().unwrap();
        let well = write_well(folder.path());
        let at = |name: &str| folder.path().join(name);
        conversion(&at("one.tif"), &at("a_s1.npy"), SeriesChoice::default()).run(&Context::default()).unwrap();
        let before = std::fs::read(at("a_s1.npy")).unwrap();
        let replacing = |out: &str| {
            let job = conversion(&well, &at(out), SeriesChoice::All);
            ConvertJob { overwrite: Overwrite::Replace, ..job }.run_chosen(&Context::default())
        };
        let refused = replacing("a.npy").unwrap_err().to_string();
        assert!(refused.contains("a_s1.npy was made from ") && refused.contains("one.tif"), "{refused}");
        assert!(!at("a.npy").exists(), "nothing is written");
        assert_eq!(std::fs::read(at("a_s1.npy")).unwrap(), before);
        // Its own results are replaced.
        for _ in 0..2 {
            assert_eq!(replacing("b.npy").unwrap().written, [at("b.npy"), at("b_s1.npy")]);
        }
    }

    #[test]
    fn the_number_of_a_series_is_a_part_of_the_name_before_its_extension() {
        let of = |output: &str, series| series_output(Path::new(output), series).unwrap();
        assert_eq!(of("o/a.b.ome.tif", 0), Path::new("o/a.b.ome.tif"));
        assert_eq!(of("o/a.b.ome.tif", 3), Path::new("o/a.b_s3.ome.tif"));
        assert_eq!(of("o/a.ome.btf", 3), Path::new("o/a_s3.ome.btf"));
        assert_eq!(of("a.zarr", 12), Path::new("a_s12.zarr"));
        assert_eq!(of("a_seg.npy", 1), Path::new("a_s1_seg.npy"));
        assert_eq!(of("A.OME.TIF", 1), Path::new("A_s1.OME.TIF"));
    }
}
