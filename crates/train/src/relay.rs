//! The progress of a part of a training run that is a separate job.

use cytoscope_pipeline::{CancelToken, Context, Event, ProgressUnit, StageProgress};
use std::sync::{Arc, Mutex, PoisonError};

/// Returns a context that passes the progress of a job on to that of the training run, but no other events. Once the job has
/// counted anything, its latest count is repeated in place of seconds, which then only show that the job goes on.
pub(crate) fn progress_only(context: &Context, cancel: CancelToken) -> Context {
    let (sink, last) = (Arc::clone(&context.sink), Mutex::new(None::<StageProgress>));
    let relay = move |event: &Event| {
        let Event::Progress(progress) = event else { return };
        let shown = {
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            if progress.unit != ProgressUnit::Seconds {
                *last = Some(*progress);
            }
            last.unwrap_or(*progress)
        };
        sink(&Event::Progress(shown));
    };
    Context { cancel, sink: Arc::new(relay), recorder: context.recorder.clone() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_pipeline::ProgressStage;

    #[test]
    fn counts_are_shown_instead_of_seconds_as_soon_as_there_are_any() {
        let shown = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&shown);
        let sink = move |event: &Event| kept.lock().unwrap().push(event.clone());
        let context = Context { sink: Arc::new(sink), ..Context::default() };
        let relayed = progress_only(&context, CancelToken::default());
        let progress = |done, total, unit| {
            let stage = ProgressStage::Calibrate;
            Event::Progress(StageProgress { stage, done, total, unit, rate: 1.0, eta_secs: 8.0 })
        };
        let [early, runs, late] = [
            progress(5, 0, ProgressUnit::Seconds),
            progress(3, 9, ProgressUnit::Runs),
            progress(10, 0, ProgressUnit::Seconds),
        ];
        [&early, &runs, &late].into_iter().for_each(|event| relayed.emit(event));
        relayed.note("a note of the job");
        assert_eq!(*shown.lock().unwrap(), [early, runs.clone(), runs]);
    }
}
