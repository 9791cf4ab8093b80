//! Labels against truth: which objects were matched, missed, or found where there are none.

use crate::data::plane::{Orientation, PlaneAt, Values};
use crate::data::source::{Cancel, PlaneSource};
use crate::document::{Document, Role};
use crate::theme;
use cytoscope_objects::matching::{Matching, Overlaps};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Overlap from which two objects are the same.
pub const IOU: f64 = 0.5;

/// Labels of an image told apart by colour; larger ones are grey.
const MAX_LABELS: usize = 1 << 22;

/// Comparisons kept: of some stacks and time points that one goes back to. Each correction makes another.
const MAX_KEPT: usize = 8;

/// What a comparison came to.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// Which labels, which truth, which time point.
    of: [u64; 3],
    /// The scores, or why there are none.
    pub result: Result<Matching, String>,
    labels: Arc<Vec<[u8; 3]>>,
    truth: Arc<Vec<[u8; 3]>>,
}

/// Compares off the window's thread.
pub struct Compare {
    sender: Sender<Comparison>,
    receiver: Receiver<Comparison>,
    /// The latest ones, oldest first.
    done: VecDeque<Comparison>,
    under_way: Option<([u64; 3], Arc<Cancel>)>,
    /// Colours tell matched, missed and false objects.
    pub colored: bool,
    wake: Arc<Mutex<Box<dyn Fn() + Send>>>,
}

impl Compare {
    /// Calls `wake` whenever a comparison has come.
    pub fn new(wake: impl Fn() + Send + 'static) -> Self {
        let (sender, receiver) = channel();
        let wake: Box<dyn Fn() + Send> = Box::new(wake);
        Self {
            sender,
            receiver,
            done: VecDeque::new(),
            under_way: None,
            colored: true,
            wake: Arc::new(Mutex::new(wake)),
        }
    }

    fn keep(&mut self, comparison: Comparison) {
        self.done.retain(|c| c.of != comparison.of);
        self.done.push_back(comparison);
        while self.done.len() > MAX_KEPT {
            self.done.pop_front();
        }
    }

    /// A document's comparison, once it is there.
    pub fn of(&self, document: &Document) -> Option<&Comparison> {
        let of = key(document)?;
        self.done.iter().find(|c| c.of == of)
    }

    /// Brings a document's colours up to its labels and truth, and begins to compare them where they are new.
    pub fn update(&mut self, document: &mut Document) {
        let come: Vec<Comparison> = self.receiver.try_iter().collect();
        for comparison in come {
            self.under_way.take_if(|(of, _)| *of == comparison.of);
            self.keep(comparison);
        }
        let (Some(of), Some(labels), Some(truth)) =
            (key(document), document.of_role(Role::Labels), document.of_role(Role::Truth))
        else {
            document.overlays.iter_mut().for_each(|o| o.labels.colors = None);
            return;
        };
        if self.of(document).is_none() && self.under_way.as_ref().is_none_or(|(u, _)| *u != of) {
            if let Some((_, cancel)) = self.under_way.take() {
                cancel.cancel();
            }
            let sources = [Arc::clone(&labels.source), Arc::clone(&truth.source)];
            let times = [labels.times, truth.times].map(|n| document.time.min(n.saturating_sub(1)));
            self.begin(of, sources, times, document.extents.zyx);
        }
        let comparison = self.done.iter().find(|c| c.of == of);
        let colored = self.colored;
        for overlay in &mut document.overlays {
            overlay.labels.colors = match (overlay.role, comparison) {
                (Role::Labels, Some(c)) if colored => Some(Arc::clone(&c.labels)),
                (Role::Truth, Some(c)) if colored => Some(Arc::clone(&c.truth)),
                _ => None,
            };
        }
    }

    fn begin(&mut self, of: [u64; 3], sources: [Arc<dyn PlaneSource>; 2], times: [usize; 2], zyx: [usize; 3]) {
        let cancel = Arc::new(Cancel::default());
        self.under_way = Some((of, Arc::clone(&cancel)));
        let (sender, wake) = (self.sender.clone(), Arc::clone(&self.wake));
        rayon::spawn(move || {
            let comparison = match compare(&sources, times, zyx, &cancel) {
                Ok(overlaps) => colors(of, &overlaps),
                Err(error) => Comparison { of, result: Err(error), labels: Arc::default(), truth: Arc::default() },
            };
            // A receiver that is gone means that the window is gone.
            let _ = sender.send(comparison);
            wake.lock().unwrap_or_else(PoisonError::into_inner)();
        });
    }
}

/// Which labels, which truth, which time point.
fn key(document: &Document) -> Option<[u64; 3]> {
    let (labels, truth) = (document.of_role(Role::Labels)?, document.of_role(Role::Truth)?);
    Some([labels.source_id, truth.source_id, document.time as u64])
}

fn compare(
    sources: &[Arc<dyn PlaneSource>; 2],
    times: [usize; 2],
    [depth, ny, nx]: [usize; 3],
    cancel: &Cancel,
) -> Result<Overlaps, String> {
    let mut overlaps = Overlaps::new();
    for z in 0..depth {
        let plane = |i: usize| {
            let at = PlaneAt {
                orientation: Orientation::Xy,
                index: z,
                channel: 0,
                time: times[i],
                rows: 0..ny,
                columns: 0..nx,
                step: 1,
            };
            match sources[i].plane(&at, cancel).map_err(|e| e.to_string())?.values {
                Values::Labels(labels) => Ok(labels),
                _ => Err("this is no label image".to_owned()),
            }
        };
        overlaps.add(&plane(1)?, &plane(0)?).map_err(|e| e.to_string())?;
    }
    Ok(overlaps)
}

fn colors(of: [u64; 3], overlaps: &Overlaps) -> Comparison {
    // Truth first, as the overlaps have it.
    let pairs: Vec<(u32, u32)> =
        overlaps.ious().into_iter().filter(|(_, _, iou)| *iou >= IOU).map(|(t, p, _)| (t, p)).collect();
    let table = |matched: Vec<u32>, otherwise: [u8; 3]| {
        let most = matched.iter().copied().max().unwrap_or(0) as usize;
        let mut colors = vec![otherwise; (most + 1).clamp(1 << 16, MAX_LABELS)];
        for label in matched {
            if let Some(color) = colors.get_mut(label as usize) {
                *color = theme::MATCHED;
            }
        }
        Arc::new(colors)
    };
    Comparison {
        of,
        result: overlaps.matching(&[IOU]).into_iter().next().ok_or_else(|| "nothing to compare".to_owned()),
        labels: table(pairs.iter().map(|p| p.1).collect(), theme::FALSE_ONE),
        truth: table(pairs.iter().map(|p| p.0).collect(), theme::MISSED),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn the_latest_comparisons_are_kept_and_no_more() {
        let mut compare = Compare::new(|| {});
        let one = |n: u64| Comparison {
            of: [n, 0, 0],
            result: Err("none".to_owned()),
            labels: Arc::default(),
            truth: Arc::default(),
        };
        (0..100).for_each(|n| compare.keep(one(n)));
        // The same again takes no other's place.
        (0..100).for_each(|_| compare.keep(one(99)));
        let kept: Vec<u64> = compare.done.iter().map(|c| c.of[0]).collect();
        assert_eq!(kept, (100 - MAX_KEPT as u64..100).collect::<Vec<_>>());
    }

    #[test]
    fn objects_are_matched_missed_or_false() {
        let mut overlaps = Overlaps::new();
        // Truth 1 is found as 7, truth 2 is missed, 9 is found where there is none.
        overlaps.add(&[1, 1, 1, 0, 2, 2, 0, 0], &[7, 7, 0, 0, 0, 0, 9, 9]).unwrap();
        let comparison = colors([0; 3], &overlaps);
        assert_eq!((comparison.labels[7], comparison.labels[9]), (theme::MATCHED, theme::FALSE_ONE));
        assert_eq!((comparison.truth[1], comparison.truth[2]), (theme::MATCHED, theme::MISSED));
        let scores = comparison.result.unwrap();
        assert_eq!((scores.tp, scores.fp, scores.n_true), (1, 1, 2));
    }
}
