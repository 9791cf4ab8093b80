//! Which jobs do the same thing, so that the start of one settles the failure of an earlier one.

use super::Purpose;
use cytoscope_worker::Job;
use std::path::PathBuf;

/// Subject of a job, without its settings.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSubject {
    /// Title of the job.
    pub(super) title: String,
    /// Purpose of the job for the window.
    pub(super) purpose: Purpose,
    /// Files that distinguish it from others with the same title.
    pub(super) files: Vec<PathBuf>,
}

impl JobSubject {
    /// Whether both jobs do the same thing. The title of a document's job names the model, which may be another one when the
    /// job is repeated.
    pub(crate) fn is_same_work(&self, other: &Self) -> bool {
        let is_same_title = self.title == other.title || self.purpose.document().is_some();
        is_same_title && (&self.purpose, &self.files) == (&other.purpose, &other.files)
    }
}

/// Returns the files that distinguish a job from others with the same title: what it reads, and what it writes where
/// several results of one file differ only in this.
pub(super) fn job_files(job: &Job) -> Vec<PathBuf> {
    match job {
        Job::Predict { prediction, .. } => prediction.inputs.clone(),
        Job::Segment { segmentation, .. } => segmentation.labels.iter().cloned().collect(),
        Job::Measure(job) => vec![job.labels.clone(), job.table.clone()],
        Job::Convert(job) => vec![job.input.clone(), job.output.clone()],
        Job::Evaluate(job) => vec![job.prediction.clone(), job.truth.clone()],
        Job::EvaluateModel(job) => vec![PathBuf::from(&job.model), job.data.clone()],
        Job::Mesh(job) => vec![job.labels.clone(), job.out.clone()],
        Job::Export(job) => vec![PathBuf::from(&job.model), job.out.clone()],
        Job::Quantize { quantization, .. } => vec![PathBuf::from(&quantization.model)],
        Job::Import(job) => vec![job.file.clone()],
        Job::ModelTest(job) => vec![job.file.clone()],
        Job::ModelSpeed(job) => vec![PathBuf::from(&job.model)],
        // The document, or the name of the model, is enough.
        Job::ObjectDiameter(_) | Job::Train(_) | Job::TrainCheck(_) | Job::TrainEstimate(_) => Vec::new(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
mod tests {
    use crate::notifications::{Level, Notifications};
    use crate::work::{JobView, ModelWork, PredictionMode, Purpose, Work};
    use cytoscope_pipeline::PredictJob;
    use cytoscope_worker::Job;
    use std::sync::Arc;

    #[test]
    fn a_prediction_with_another_model_removes_the_failure_of_its_document() {
        let mut work = Work::new(None, None, Arc::new(|| {}));
        for (document, model) in [(1, "nuclei"), (2, "nuclei"), (1, "cells")] {
            let job = PredictJob { inputs: vec!["/data/stack.tif".into()], ..PredictJob::default() };
            let how = PredictionMode { remeasure: false, live: true };
            work.predict(document, format!("stack.tif · {model}"), job, how);
        }
        let subjects: Vec<_> = work.jobs.iter().map(JobView::subject).collect();
        let [failed, other, again] = &subjects[..] else { panic!("{subjects:?}") };
        let mut notifications = Notifications::default();
        notifications.push(Level::Error, "Prediction failed".to_owned(), String::new(), Some(failed.clone()));
        notifications.remove_failures_of(other);
        assert_eq!(notifications.shown().len(), 1);
        notifications.remove_failures_of(again);
        assert!(notifications.shown().is_empty());
    }

    #[test]
    fn only_the_same_job_removes_its_failure() {
        let mut work = Work::new(None, None, Arc::new(|| {}));
        // Two models have the same name.
        for folder in ["a", "b", "a"] {
            let job = serde_json::json!({"model": format!("/{folder}/cells")});
            let job = Job::ModelSpeed(serde_json::from_value(job).unwrap());
            work.run("cells · measure".to_owned(), Purpose::Model(ModelWork::Measure), job);
        }
        let subjects: Vec<_> = work.jobs.iter().map(JobView::subject).collect();
        let [first, other, again] = &subjects[..] else { panic!("{subjects:?}") };
        let mut notifications = Notifications::default();
        for about in [Some(first.clone()), None] {
            notifications.push(Level::Error, "cells · measure failed".to_owned(), String::new(), about);
        }
        notifications.remove_failures_of(other);
        assert_eq!(notifications.shown().len(), 2);
        notifications.remove_failures_of(again);
        assert_eq!(notifications.shown().len(), 1, "an error that is not about a job stays");
    }
}
