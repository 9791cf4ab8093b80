//! Events that the window has not read yet, merged so that they do not accumulate.

use super::{JobId, Reply, WorkerEvent};
use cytoscope_pipeline::{Event, StageProgress};
use std::collections::BTreeMap;

/// Maximum number of unread spans; older ones are dropped and counted.
const MAX_WAITING_SPANS: usize = 50_000;
/// Maximum number of unread regions in one event; further ones start another event.
const MAX_WAITING_REGIONS: usize = 16_384;

/// Unread events, in order.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    events: Vec<WorkerEvent>,
    /// Spans of each running job that were dropped here, in addition to those that the worker left out.
    dropped: BTreeMap<JobId, u64>,
}

impl Inbox {
    /// Adds an event. Newer progress, stages, memory and usage replace older ones; regions and spans are appended to
    /// older ones.
    pub(super) fn push(&mut self, event: WorkerEvent) {
        let WorkerEvent::Reply(mut new) = event else { return self.events.push(event) };
        if let Reply::Spans { id, dropped, .. } = &mut new {
            *dropped += self.dropped.get(id).copied().unwrap_or(0);
        }
        if let Some(id) = new.ends() {
            self.dropped.remove(&id);
        }
        let older = self.events.iter_mut().rev();
        let mut waiting = older.filter_map(|e| if let WorkerEvent::Reply(r) = e { Some(r) } else { None });
        match waiting.find_map(|old| merge(old, &new)) {
            Some(Merge::Merged) => {}
            Some(Merge::MergedDropping(id, count)) => *self.dropped.entry(id).or_default() += count,
            Some(Merge::Barrier) | None => self.events.push(WorkerEvent::Reply(new)),
        }
    }

    /// Removes and returns all events.
    pub(super) fn take(&mut self) -> Vec<WorkerEvent> {
        std::mem::take(&mut self.events)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.events.len()
    }
}

/// Result of merging a newer reply into an older one.
enum Merge {
    /// The replies were merged.
    Merged,
    /// The replies were merged, and this many spans of a job were dropped.
    MergedDropping(JobId, u64),
    /// The reply must not be merged into this or any older one.
    Barrier,
}

/// Merges a newer reply into an older one; `None` if they are of different kinds.
fn merge(old: &mut Reply, new: &Reply) -> Option<Merge> {
    match (&mut *old, new) {
        (Reply::Stages { id, .. }, Reply::Stages { id: of, .. }) if id == of => *old = new.clone(),
        (Reply::Memory { .. }, Reply::Memory { .. }) => *old = new.clone(),
        (Reply::Usage { id, .. }, Reply::Usage { id: of, .. }) if id == of => *old = new.clone(),
        (
            Reply::Progress { id, event: Event::Progress(StageProgress { stage, .. }) },
            Reply::Progress { id: of, event: Event::Progress(StageProgress { stage: new_stage, .. }) },
        ) if id == of => {
            if stage != new_stage {
                return Some(Merge::Barrier);
            }
            *old = new.clone();
        }
        // Other events between two progress events keep their place.
        (Reply::Progress { id, .. } | Reply::Training { id, .. }, Reply::Progress { id: of, .. }) if id == of => {
            return Some(Merge::Barrier);
        }
        (Reply::Live { id, path, regions, .. }, Reply::Live { id: of, path: new_path, regions: more, .. })
            if id == of && path == new_path =>
        {
            if regions.len() + more.len() > MAX_WAITING_REGIONS {
                return Some(Merge::Barrier);
            }
            regions.extend(more.iter().filter(|r| !regions.contains(r)).copied().collect::<Vec<_>>());
        }
        (
            Reply::Spans { id, spans, marks, samples, dropped },
            Reply::Spans { id: of, spans: more, marks: more_marks, samples: more_samples, dropped: total_dropped },
        ) if id == of => {
            spans.extend_from_slice(more);
            marks.extend_from_slice(more_marks);
            samples.extend_from_slice(more_samples);
            samples.drain(..samples.len().saturating_sub(MAX_WAITING_SPANS));
            let over = spans.len().saturating_sub(MAX_WAITING_SPANS);
            spans.drain(..over);
            *dropped = total_dropped + over as u64;
            if over > 0 {
                return Some(Merge::MergedDropping(*id, over as u64));
            }
        }
        _ => return None,
    }
    Some(Merge::Merged)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]
mod tests {
    use super::*;
    use crate::{JobId, LiveRegion};
    use cytoscope_pipeline::{ProgressStage, ProgressUnit};
    use cytoscope_profile::{SpanRecord, Stage};
    use cytoscope_train::TrainEvent;

    fn progress(stage: ProgressStage, done: u64) -> Reply {
        let event = Event::Progress(StageProgress {
            stage,
            done,
            total: 1 << 40,
            unit: ProgressUnit::Voxels,
            rate: 1.0,
            eta_secs: 1.0,
        });
        Reply::Progress { id: JobId(1), event }
    }

    fn live(z: usize) -> Reply {
        Reply::Live {
            id: JobId(1),
            input: "a.tif".into(),
            time: 0,
            path: "live".into(),
            channels: 1,
            shape_zyx: [9; 3],
            regions: vec![LiveRegion { start_zyx: [z, 0, 0], size_zyx: [1, 9, 9] }],
        }
    }

    fn spans(count: usize) -> Reply {
        let span = SpanRecord::new(Stage::Op, "conv", 0.0, 1.0);
        Reply::Spans { id: JobId(1), spans: vec![span; count], marks: Vec::new(), samples: Vec::new(), dropped: 0 }
    }

    fn usage(id: u64, secs: u64) -> Reply {
        let wall_secs = secs as f64;
        Reply::Usage { id: JobId(id), wall_secs, cpu_secs: Some(2.0 * wall_secs), threads: 2 }
    }

    #[test]
    fn unread_events_do_not_accumulate() {
        let mut inbox = Inbox::default();
        inbox.push(WorkerEvent::Reply(Reply::Started { id: JobId(1) }));
        for i in 0..20_000 {
            inbox.push(WorkerEvent::Reply(progress(ProgressStage::Predict, i)));
            inbox.push(WorkerEvent::Reply(live(i as usize % 9)));
            inbox.push(WorkerEvent::Reply(Reply::Memory { resident_bytes: i, peak_resident_bytes: i, device: None }));
            inbox.push(WorkerEvent::Reply(spans(4)));
            inbox.push(WorkerEvent::Reply(usage(1, i)));
        }
        inbox.push(WorkerEvent::Reply(usage(2, 5)));
        inbox.push(WorkerEvent::Reply(Reply::Canceled { id: JobId(1) }));
        assert_eq!(inbox.len(), 8);
        let events = inbox.take();
        assert_eq!(events[0], WorkerEvent::Reply(Reply::Started { id: JobId(1) }));
        assert_eq!(events[1], WorkerEvent::Reply(progress(ProgressStage::Predict, 19_999)), "the newest one");
        let WorkerEvent::Reply(Reply::Live { regions, .. }) = &events[2] else { panic!("{:?}", events[2]) };
        assert_eq!(regions.len(), 9);
        let WorkerEvent::Reply(Reply::Spans { spans, dropped, .. }) = &events[4] else { panic!("{:?}", events[4]) };
        assert_eq!((spans.len(), *dropped), (MAX_WAITING_SPANS, 80_000 - MAX_WAITING_SPANS as u64));
        let usages = [usage(1, 19_999), usage(2, 5)].map(WorkerEvent::Reply);
        assert_eq!(events[5..7], usages, "the newest one of each job");
        assert_eq!(inbox.len(), 0);
    }

    #[test]
    fn notes_and_stages_keep_their_order() {
        let mut inbox = Inbox::default();
        let note = Reply::Progress { id: JobId(1), event: Event::Note("so".into()) };
        let event = TrainEvent::ValidationPreview { step: 1, path: "shown.png".into(), caption: String::new() };
        let training = Reply::Training { id: JobId(1), event };
        let all = [
            progress(ProgressStage::Read, 1),
            progress(ProgressStage::Predict, 1),
            note.clone(),
            progress(ProgressStage::Predict, 2),
            training,
            progress(ProgressStage::Predict, 3),
            note,
        ];
        all.iter().for_each(|r| inbox.push(WorkerEvent::Reply(r.clone())));
        assert_eq!(inbox.take(), all.map(WorkerEvent::Reply));
    }
}
