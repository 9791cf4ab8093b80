//! What the window has not looked at yet, merged so that it does not grow while nobody looks.

use super::{JobId, Reply, WorkerEvent};
use crate::Event;
use std::collections::BTreeMap;

/// Most spans that wait to be looked at; older ones are dropped and counted.
const MAX_WAITING_SPANS: usize = 50_000;
/// Most regions that wait to be looked at in one line; further ones begin another.
const MAX_WAITING_REGIONS: usize = 16_384;

/// Events in order.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    events: Vec<WorkerEvent>,
    /// Spans of each running job that were dropped here, beside those that the worker left out.
    dropped: BTreeMap<JobId, u64>,
}

impl Inbox {
    /// Adds an event; newer progress, stages and memory take the place of older ones, regions and spans join them.
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
        match waiting.find_map(|old| join(old, &new)) {
            Some(Joined::Yes) => {}
            Some(Joined::Dropping(id, count)) => *self.dropped.entry(id).or_default() += count,
            Some(Joined::No) | None => self.events.push(WorkerEvent::Reply(new)),
        }
    }

    /// All events.
    pub(super) fn take(&mut self) -> Vec<WorkerEvent> {
        std::mem::take(&mut self.events)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.events.len()
    }
}

/// Whether an older line took in a newer one.
enum Joined {
    Yes,
    /// It did, and dropped so many spans of a job.
    Dropping(JobId, u64),
    /// Nothing older may either.
    No,
}

/// Lets an older line take in a newer one; `None` if it is of another kind.
fn join(old: &mut Reply, new: &Reply) -> Option<Joined> {
    match (&mut *old, new) {
        (Reply::Stages { id, .. }, Reply::Stages { id: of, .. }) if id == of => *old = new.clone(),
        (Reply::Memory { .. }, Reply::Memory { .. }) => *old = new.clone(),
        (
            Reply::Progress { id, event: Event::Progress { stage, .. } },
            Reply::Progress { id: of, event: Event::Progress { stage: new_stage, .. } },
        ) if id == of => {
            if stage != new_stage {
                return Some(Joined::No);
            }
            *old = new.clone();
        }
        // What is told between two lines of progress is not moved past them.
        (Reply::Progress { id, .. }, Reply::Progress { id: of, .. }) if id == of => return Some(Joined::No),
        (Reply::Live { id, path, regions, .. }, Reply::Live { id: of, path: new_path, regions: more, .. })
            if id == of && path == new_path =>
        {
            if regions.len() + more.len() > MAX_WAITING_REGIONS {
                return Some(Joined::No);
            }
            regions.extend(more.iter().filter(|r| !regions.contains(r)).copied().collect::<Vec<_>>());
        }
        (
            Reply::Spans { id, spans, marks, dropped },
            Reply::Spans { id: of, spans: more, marks: more_marks, dropped: in_all },
        ) if id == of => {
            spans.extend_from_slice(more);
            marks.extend_from_slice(more_marks);
            let over = spans.len().saturating_sub(MAX_WAITING_SPANS);
            spans.drain(..over);
            *dropped = in_all + over as u64;
            if over > 0 {
                return Some(Joined::Dropping(*id, over as u64));
            }
        }
        _ => return None,
    }
    Some(Joined::Yes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]
mod tests {
    use super::*;
    use crate::worker::{JobId, LiveRegion};
    use cytoscope_profile::{SpanRecord, Stage};

    fn progress(stage: &'static str, done: u64) -> Reply {
        let event = Event::Progress {
            stage: stage.into(),
            done,
            total: 1 << 40,
            unit: "voxels".into(),
            rate: 1.0,
            eta_secs: 1.0,
        };
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
        let span = SpanRecord {
            stage: Stage::Op,
            name: "conv".into(),
            start_us: 0.0,
            duration_us: 1.0,
            thread: 0,
            bytes: 0,
            voxels: 0,
            macs: 0,
        };
        Reply::Spans { id: JobId(1), spans: vec![span; count], marks: Vec::new(), dropped: 0 }
    }

    #[test]
    fn an_hour_that_nobody_looked_takes_no_more_than_a_minute() {
        let mut inbox = Inbox::default();
        inbox.push(WorkerEvent::Reply(Reply::Started { id: JobId(1) }));
        for i in 0..20_000 {
            inbox.push(WorkerEvent::Reply(progress("predict", i)));
            inbox.push(WorkerEvent::Reply(live(i as usize % 9)));
            inbox.push(WorkerEvent::Reply(Reply::Memory { resident_bytes: i, peak_resident_bytes: i, device: None }));
            inbox.push(WorkerEvent::Reply(spans(4)));
        }
        inbox.push(WorkerEvent::Reply(Reply::Cancelled { id: JobId(1) }));
        assert_eq!(inbox.len(), 6);
        let events = inbox.take();
        assert_eq!(events[0], WorkerEvent::Reply(Reply::Started { id: JobId(1) }));
        assert_eq!(events[1], WorkerEvent::Reply(progress("predict", 19_999)), "the newest");
        let WorkerEvent::Reply(Reply::Live { regions, .. }) = &events[2] else { panic!("{:?}", events[2]) };
        assert_eq!(regions.len(), 9);
        let WorkerEvent::Reply(Reply::Spans { spans, dropped, .. }) = &events[4] else { panic!("{:?}", events[4]) };
        assert_eq!((spans.len(), *dropped), (MAX_WAITING_SPANS, 80_000 - MAX_WAITING_SPANS as u64));
        assert_eq!(inbox.len(), 0);
    }

    #[test]
    fn what_must_be_seen_in_order_is_kept_in_order() {
        let mut inbox = Inbox::default();
        let note = Reply::Progress { id: JobId(1), event: Event::Note { message: "so".into() } };
        let all = [progress("read", 1), progress("predict", 1), note.clone(), progress("predict", 2), note];
        all.iter().for_each(|r| inbox.push(WorkerEvent::Reply(r.clone())));
        assert_eq!(inbox.take(), all.map(WorkerEvent::Reply));
    }
}
