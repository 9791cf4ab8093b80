//! Targets that are results of a prediction: a network that is trained on them repeats its errors, and scores on them say how
//! well two predictions agree.

use cytoscope_pipeline::provenance::is_computed_result;
use cytoscope_pipeline::{Context, JobError, Note, ProgressStage};
use cytoscope_training_data::{Problem, Report, Severity, TrainingTask};
use std::collections::BTreeSet;
use std::path::Path;

/// Returns those of the files that are unchanged results of predictions.
///
/// # Errors
/// [`JobError::Canceled`].
fn predicted<'a>(context: &Context, files: impl Iterator<Item = &'a Path>) -> Result<BTreeSet<&'a Path>, JobError> {
    let files: BTreeSet<&Path> = files.collect();
    // A file is read only if there is a record beside it.
    context.report_alive(ProgressStage::Check, || {
        let mut found = BTreeSet::new();
        for file in files {
            context.check()?;
            if file.is_file() && is_computed_result(file) {
                found.insert(file);
            }
        }
        Ok(found)
    })
}

/// Adds a warning to a report for each usable pair whose target is an unchanged prediction.
///
/// # Errors
/// [`JobError::Canceled`].
pub(crate) fn warn(context: &Context, report: &mut Report) -> Result<(), JobError> {
    let usable = || report.pairs.iter().filter(|pair| pair.usable);
    let found = predicted(context, usable().map(|pair| pair.target.as_path()))?;
    let next_step = match report.task {
        TrainingTask::Segmentation => {
            "correct its objects first, or keep predictions in a folder without training data"
        }
        TrainingTask::LabelFree => "give the measured stain, or keep predictions in a folder without training data",
    };
    let problem = |file: &Path, pair: &str| Problem {
        file: file.to_owned(),
        pair: Some(pair.to_owned()),
        severity: Severity::Warning,
        message: "it is an unchanged prediction, and a network that is trained on it repeats its errors".into(),
        next_step: next_step.into(),
    };
    let problems: Vec<Problem> = usable()
        .filter(|pair| found.contains(pair.target.as_path()))
        .map(|pair| problem(&pair.target, &pair.name))
        .collect();
    report.problems.extend(problems);
    report.problems.sort_by(|a, b| (b.severity, &a.pair, &a.file).cmp(&(a.severity, &b.pair, &b.file)));
    Ok(())
}

/// Returns the note of an evaluation whose ground truth has unchanged predictions; `None` if it has none.
///
/// # Errors
/// [`JobError::Canceled`].
pub(crate) fn truth_note<'a>(
    context: &Context,
    truths: impl Iterator<Item = &'a Path>,
) -> Result<Option<Note>, JobError> {
    let found = predicted(context, truths)?;
    let Some(first) = found.first() else { return Ok(None) };
    let (path, count) = (first.display(), found.len());
    let which = match count {
        1 => format!("the ground truth {path} is an unchanged prediction"),
        _ => format!("{count} files of the ground truth, such as {path}, are unchanged predictions"),
    };
    Ok(Some(Note::warning(format!(
        "{which}, so the scores say how well predictions agree: give labels that were corrected or drawn, or measured stains"
    ))))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use crate::check::CheckJob;
    use crate::config::TrainConfig;
    use cytoscope_formats::{Container, WriteSpec, write_array};
    use cytoscope_storage::sha256_of_file;
    use cytoscope_volume::{Array, Axes};
    use serde_json::json;
    use std::path::PathBuf;

    fn write(path: &Path, values: Vec<u16>) {
        let array = Array::new(Axes::zyx(), vec![4, 8, 10], values).unwrap();
        write_array(path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
    }

    #[test]
    fn labels_that_are_unchanged_results_are_reported_until_they_are_edited() {
        let folder = tempfile::tempdir().unwrap();
        let labels = |number: u16| folder.path().join(format!("s{number}_labels.tif"));
        let values = |first: u16| (0..320u16).map(|i| if i % 10 > 4 { first + i / 80 } else { 0 }).collect::<Vec<_>>();
        for number in 0..3 {
            write(&labels(number), values(1));
            let image = (0..320u16).map(|i| 100 + (i * 31 + number * 7) % 97).collect();
            write(&folder.path().join(format!("s{number}_raw.tif")), image);
        }
        // The second one was segmented from a map; the record of the third one is that of its conversion.
        for (number, kind) in [(1, "segment"), (2, "convert")] {
            let path = labels(number);
            let bytes = std::fs::metadata(&path).unwrap().len();
            let outputs = [json!({"path": path, "bytes": bytes, "sha256": sha256_of_file(&path).unwrap()})];
            let record = json!({
                "program": "cytoscope", "kind": kind, "job": {}, "inputs": [], "outputs": outputs, "finished_unix_secs": 1,
            });
            std::fs::write(folder.path().join(format!("s{number}_labels.tif_provenance.json")), record.to_string())
                .unwrap();
        }
        let context = Context::default();
        let check = || {
            let (task, data, config) = (TrainingTask::Segmentation, folder.path().to_owned(), TrainConfig::default());
            let job = CheckJob { task, data, config, seed: 1, from: None, details: None };
            let problems = job.run(&context).unwrap().report.problems;
            let is_prediction = |problem: &Problem| problem.message.to_string().contains("unchanged prediction");
            problems.into_iter().filter(is_prediction).map(|problem| problem.file).collect::<Vec<_>>()
        };
        assert_eq!(check(), [labels(1)]);
        let truths: Vec<_> = (0..3).map(labels).collect();
        let note = || truth_note(&context, truths.iter().map(PathBuf::as_path)).unwrap();
        assert!(note().unwrap().message.to_string().contains("s1_labels.tif is an unchanged prediction"));
        write(&labels(1), values(2));
        assert_eq!(check(), Vec::<PathBuf>::new());
        assert!(note().is_none());
    }
}
