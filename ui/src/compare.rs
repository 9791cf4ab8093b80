//! Compares labels with ground truth: which objects are matched, missed or false.

use crate::data::plane::{Orientation, PlaneAt, Values};
use crate::data::source::{Cancel, PlaneSource};
use crate::document::{Document, Role};
use crate::theme;
use cytoscope_objects::matching::{Matching, Overlaps};
use cytoscope_objects::rims::{Annotation, Rims};
use cytoscope_objects::segmentation_errors::{ErrorSummary, Errors, FOUND_IOU, Grid};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Size limit of the color table; labels above it are gray.
const MAX_LABELS: usize = 1 << 22;

/// Number of cached comparisons. Each correction adds another.
const MAX_KEPT: usize = 8;

/// Key of a comparison: its images and options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Subject {
    /// Source ids of labels and ground truth, and the time point.
    images: [u64; 3],
    /// True objects of fewer voxels are ignored.
    ignore_below_voxels: u64,
    /// Label of voxels of the ground truth that are not annotated.
    ignore_label: Option<u32>,
}

/// What labels and ground truth have in common.
#[derive(Debug, Default)]
struct Compared {
    /// Overlaps of the objects that count.
    overlaps: Overlaps,
    /// Predicted objects that do not count: those outside of the annotated voxels, and those of which only the rim is annotated
    /// ([`Rims`]).
    left_out: Vec<u32>,
    /// The ignore label, if no voxel of the ground truth has it.
    absent_label: Option<u32>,
}

/// Scores of labels against ground truth.
#[derive(Debug, Clone, PartialEq)]
pub struct Agreement {
    /// Scores at an IoU of [`FOUND_IOU`].
    pub matching: Matching,
    /// Merges, splits, misses and false objects, by object size.
    pub errors: ErrorSummary,
    /// True objects ignored for their size.
    pub ignored_true: usize,
    /// Predicted objects ignored because they mostly overlap ignored true objects.
    pub ignored_predictions: usize,
    /// The ignore label, if no voxel of the ground truth has it.
    pub absent_label: Option<u32>,
}

/// Scores and matches of predicted labels against the ground truth.
#[derive(Debug, Clone)]
pub struct Comparison {
    of: Subject,
    /// The scores, or why there are none.
    pub result: Result<Agreement, String>,
    /// Kept for recomputing with another size limit. Only the latest comparison has them.
    compared: Option<Arc<Compared>>,
    labels: Arc<Vec<[u8; 3]>>,
    truth: Arc<Vec<[u8; 3]>>,
}

/// Runs comparisons on worker threads and caches the results.
pub struct LabelComparisons {
    sender: Sender<Comparison>,
    receiver: Receiver<Comparison>,
    /// Cached comparisons, oldest first.
    done: VecDeque<Comparison>,
    in_progress: Option<(Subject, Arc<Cancel>)>,
    /// Whether labels are colored as matched, unmatched or ignored.
    pub colored: bool,
    /// True objects with fewer voxels are ignored, and predicted objects that mostly overlap them.
    pub ignore_below_voxels: u64,
    /// Label of voxels of the ground truth that are not annotated, and do not count.
    pub ignore_label: Option<u32>,
    wake: Arc<Mutex<Box<dyn Fn() + Send>>>,
}

impl LabelComparisons {
    /// `wake` is called whenever a comparison is done.
    pub fn new(wake: impl Fn() + Send + 'static) -> Self {
        let (sender, receiver) = channel();
        let wake: Box<dyn Fn() + Send> = Box::new(wake);
        Self {
            sender,
            receiver,
            done: VecDeque::new(),
            in_progress: None,
            colored: true,
            ignore_below_voxels: 0,
            ignore_label: None,
            wake: Arc::new(Mutex::new(wake)),
        }
    }

    fn keep(&mut self, comparison: Comparison) {
        self.done.retain(|c| c.of != comparison.of);
        self.done.iter_mut().for_each(|c| c.compared = None);
        self.done.push_back(comparison);
        while self.done.len() > MAX_KEPT {
            self.done.pop_front();
        }
    }

    /// The comparison of a document, once it is done.
    pub fn of(&self, document: &Document) -> Option<&Comparison> {
        let of = self.subject(document)?;
        self.done.iter().find(|c| c.of == of)
    }

    fn subject(&self, document: &Document) -> Option<Subject> {
        let shown = |role| document.overlay_with_role(role).filter(|o| o.is_at(document.time));
        let (labels, truth) = (shown(Role::Labels)?, shown(Role::Truth)?);
        let images = [labels.source_id, truth.source_id, document.time as u64];
        Some(Subject { images, ignore_below_voxels: self.ignore_below_voxels, ignore_label: self.ignore_label })
    }

    /// Updates the label colors of a document and starts a comparison if its labels or ground truth are new.
    pub fn update(&mut self, document: &mut Document) {
        let finished: Vec<Comparison> = self.receiver.try_iter().collect();
        for comparison in finished {
            self.in_progress.take_if(|(of, _)| *of == comparison.of);
            self.keep(comparison);
        }
        let (Some(of), Some(labels), Some(truth)) =
            (self.subject(document), document.overlay_with_role(Role::Labels), document.overlay_with_role(Role::Truth))
        else {
            document.overlays.iter_mut().for_each(|o| o.labels.colors = None);
            return;
        };
        if self.of(document).is_none() && self.in_progress.as_ref().is_none_or(|(u, _)| *u != of) {
            if let Some((_, cancel)) = self.in_progress.take() {
                cancel.cancel();
            }
            let sources = [Arc::clone(&labels.source), Arc::clone(&truth.source)];
            let times = [labels.times, truth.times].map(|n| document.time.min(n.saturating_sub(1)));
            let zyx = document.extents.zyx;
            let grid = Grid { voxel_um: document.voxel_known.then_some(document.voxel_um), flat: zyx[0] == 1 };
            self.begin(of, sources, times, zyx, grid);
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

    fn begin(
        &mut self,
        of: Subject,
        sources: [Arc<dyn PlaneSource>; 2],
        times: [usize; 2],
        zyx: [usize; 3],
        grid: Grid,
    ) {
        let has_same_overlaps = |known: &Subject| (known.images, known.ignore_label) == (of.images, of.ignore_label);
        let known = self.done.iter().filter(|c| has_same_overlaps(&c.of)).find_map(|c| c.compared.clone());
        let cancel = Arc::new(Cancel::default());
        self.in_progress = Some((of, Arc::clone(&cancel)));
        let (sender, wake) = (self.sender.clone(), Arc::clone(&self.wake));
        rayon::spawn(move || {
            let compared = match known {
                Some(compared) => Ok(compared),
                None => compare(&sources, times, zyx, of.ignore_label, &cancel).map(Arc::new),
            };
            let comparison = match compared {
                Ok(compared) => agreement(of, compared, grid),
                // It begins again if it is requested again.
                Err(_) if cancel.check().is_err() => return,
                Err(error) => {
                    Comparison { of, result: Err(error), compared: None, labels: Arc::default(), truth: Arc::default() }
                }
            };
            // Sending fails only if the window is closed.
            let _ = sender.send(comparison);
            wake.lock().unwrap_or_else(PoisonError::into_inner)();
        });
    }
}

fn compare(
    sources: &[Arc<dyn PlaneSource>; 2],
    times: [usize; 2],
    zyx: [usize; 3],
    ignore_label: Option<u32>,
    cancel: &Cancel,
) -> Result<Compared, String> {
    let mut counted = Counted::new(ignore_label);
    for z in 0..zyx[0] {
        let plane = |i: usize| {
            let at = PlaneAt { time: times[i], ..PlaneAt::whole(Orientation::Xy, z, zyx) };
            match sources[i].plane(&at, cancel).map_err(|e| e.to_string())?.values {
                Values::Labels(labels) => Ok(labels),
                _ => Err("not a label image".to_owned()),
            }
        };
        counted.add_slice(plane(1)?, plane(0)?)?;
    }
    Ok(counted.finish())
}

/// Counts the overlaps of the annotated voxels, slice by slice.
struct Counted {
    ignore_label: Option<u32>,
    /// Whether a voxel of the ground truth has this label.
    has_ignore_label: bool,
    overlaps: Overlaps,
    rims: Rims,
    /// Predicted objects with voxels that are not annotated.
    partly_unknown: BTreeSet<u32>,
}

impl Counted {
    fn new(ignore_label: Option<u32>) -> Self {
        let (overlaps, rims) = (Overlaps::new(), Rims::default());
        Self { ignore_label, has_ignore_label: false, overlaps, rims, partly_unknown: BTreeSet::new() }
    }

    /// Adds a slice of the ground truth and of the predicted labels.
    fn add_slice(&mut self, mut truth: Vec<u32>, mut predicted: Vec<u32>) -> Result<(), String> {
        if let Some(unknown) = self.ignore_label {
            let annotation = |object: u32| Annotation::of(object == unknown, object > 0);
            self.rims.add_slice(predicted.iter().zip(&truth).map(|(label, object)| (*label, annotation(*object))));
            let mut last = 0;
            for (label, object) in predicted.iter_mut().zip(&mut truth).filter(|(_, object)| **object == unknown) {
                if *label > 0 && *label != last {
                    self.partly_unknown.insert(*label);
                    last = *label;
                }
                (*label, *object) = (0, 0);
                self.has_ignore_label = true;
            }
        }
        self.overlaps.add(&truth, &predicted).map_err(|e| e.to_string())
    }

    fn finish(self) -> Compared {
        let Self { ignore_label, has_ignore_label, mut overlaps, rims, mut partly_unknown } = self;
        let rims = rims.labels();
        overlaps.remove_predictions(&rims);
        partly_unknown.extend(rims);
        let left_out = partly_unknown.into_iter().filter(|label| !overlaps.prediction().contains_key(label)).collect();
        Compared { overlaps, left_out, absent_label: ignore_label.filter(|_| !has_ignore_label) }
    }
}

fn agreement(of: Subject, compared: Arc<Compared>, grid: Grid) -> Comparison {
    let Compared { overlaps, left_out, absent_label } = &*compared;
    let counted = overlaps.ignoring_below(of.ignore_below_voxels);
    // Pairs of true and predicted label, in the order of the overlaps.
    let pairs = counted.matched(FOUND_IOU);
    let table = |matched: Vec<u32>,
                 default_color: [u8; 3],
                 all: &BTreeMap<u32, u64>,
                 kept: &BTreeMap<u32, u64>,
                 left_out: &[u32]| {
        let max_label = all.keys().next_back().into_iter().chain(left_out).max().copied().unwrap_or(0) as usize;
        let mut colors = vec![default_color; max_label.saturating_add(1).clamp(1 << 16, MAX_LABELS)];
        let small = all.keys().filter(|label| !kept.contains_key(label));
        let ignored = small.chain(left_out).copied();
        let special = matched.into_iter().map(|l| (l, theme::MATCHED)).chain(ignored.map(|l| (l, theme::IGNORED)));
        for (label, color) in special {
            if let Some(place) = colors.get_mut(label as usize) {
                *place = color;
            }
        }
        Arc::new(colors)
    };
    let matching = counted.matching(&[FOUND_IOU]).into_iter().next();
    let result = matching.ok_or_else(|| "nothing to compare".to_owned()).map(|matching| Agreement {
        matching,
        errors: Errors::of(&counted).summary(grid),
        ignored_true: overlaps.truth().len() - counted.truth().len(),
        ignored_predictions: overlaps.prediction().len() - counted.prediction().len(),
        absent_label: *absent_label,
    });
    let found = pairs.iter().map(|p| p.1).collect();
    let labels = table(found, theme::FALSE_OBJECT, overlaps.prediction(), counted.prediction(), left_out);
    let unknown: Vec<u32> = of.ignore_label.into_iter().collect();
    let found = pairs.iter().map(|p| p.0).collect();
    let truth = table(found, theme::MISSED, overlaps.truth(), counted.truth(), &unknown);
    Comparison { of, result, compared: Some(compared), labels, truth }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::data::test_planes::{NumberedPlanes, wait_until};
    use cytoscope_objects::segmentation_errors::SizeUnit;

    const GRID: Grid = Grid { voxel_um: Some([2.0, 0.5, 0.5]), flat: false };

    fn subject(labels: u64, ignore_below_voxels: u64) -> Subject {
        Subject { images: [labels, 0, 0], ignore_below_voxels, ignore_label: None }
    }

    /// What slices of the ground truth and of predicted labels have in common.
    fn compared(slices: &[[&[u32]; 2]], ignore_label: Option<u32>) -> Arc<Compared> {
        let mut counted = Counted::new(ignore_label);
        for [truth, predicted] in slices {
            counted.add_slice(truth.to_vec(), predicted.to_vec()).unwrap();
        }
        Arc::new(counted.finish())
    }

    #[test]
    fn only_the_latest_comparisons_are_cached() {
        let mut compare = LabelComparisons::new(|| {});
        let one = |n: u64| Comparison {
            of: subject(n, 0),
            result: Err("none".to_owned()),
            compared: Some(Arc::default()),
            labels: Arc::default(),
            truth: Arc::default(),
        };
        (0..100).for_each(|n| compare.keep(one(n)));
        // Repeating one comparison evicts no other.
        (0..100).for_each(|_| compare.keep(one(99)));
        let kept: Vec<u64> = compare.done.iter().map(|c| c.of.images[0]).collect();
        assert_eq!(kept, (100 - MAX_KEPT as u64..100).collect::<Vec<_>>());
        assert_eq!(compare.done.iter().filter(|c| c.compared.is_some()).count(), 1, "overlaps may be large");
    }

    #[test]
    fn a_canceled_comparison_is_no_result() {
        let mut compare = LabelComparisons::new(|| {});
        let planes = Arc::new(NumberedPlanes::default());
        let sources = [0, 1].map(|_| Arc::clone(&planes) as Arc<dyn PlaneSource>);
        compare.begin(subject(0, 0), sources, [0; 2], [1; 3], GRID);
        let (_, cancel) = compare.in_progress.take().unwrap();
        cancel.cancel();
        wait_until("the end of the comparison", || Arc::strong_count(&planes) == 1);
        assert!(compare.receiver.try_recv().is_err());
    }

    #[test]
    fn objects_are_matched_missed_or_false() {
        // True object 1 is found as 7, 2 is missed, 9 is a false object.
        let slice: [&[u32]; 2] = [&[1, 1, 1, 0, 2, 2, 0, 0], &[7, 7, 0, 0, 0, 0, 9, 9]];
        let comparison = agreement(subject(0, 0), compared(&[slice], None), GRID);
        assert_eq!((comparison.labels[7], comparison.labels[9]), (theme::MATCHED, theme::FALSE_OBJECT));
        assert_eq!((comparison.truth[1], comparison.truth[2]), (theme::MATCHED, theme::MISSED));
        let Agreement { matching, errors, .. } = comparison.result.unwrap();
        assert_eq!((matching.tp, matching.fp, matching.n_true), (1, 1, 2));
        assert_eq!((errors.misses, errors.false_objects, errors.size_unit), (1, 1, SizeUnit::Um));
    }

    #[test]
    fn small_true_objects_and_predictions_on_them_are_ignored() {
        // True object 1 has 4 voxels and is found as 7; 2 has 2 voxels, and prediction 9 has 2 of its 3 voxels on it.
        let slice: [&[u32]; 2] = [&[1, 1, 1, 1, 0, 2, 2, 0], &[7, 7, 7, 0, 0, 9, 9, 9]];
        let overlaps = compared(&[slice], None);
        let all = agreement(subject(0, 2), Arc::clone(&overlaps), GRID).result.unwrap();
        assert_eq!((all.matching.n_true, all.matching.n_pred, all.ignored_true), (2, 2, 0));
        let comparison = agreement(subject(0, 3), overlaps, GRID);
        assert_eq!((comparison.truth[2], comparison.labels[9]), (theme::IGNORED, theme::IGNORED));
        assert_eq!((comparison.truth[1], comparison.labels[7]), (theme::MATCHED, theme::MATCHED));
        let large = comparison.result.unwrap();
        assert_eq!((large.matching.n_true, large.matching.n_pred, large.matching.f1), (1, 1, 1.0));
        assert_eq!((large.ignored_true, large.ignored_predictions), (1, 1));
    }

    #[test]
    fn voxels_that_are_not_annotated_and_the_objects_in_them_do_not_count() {
        // 255 is not annotated. True object 1 is found as 7; 8 is outside of the annotated voxels, and of 9 only the rim is
        // annotated.
        let slice: [&[u32]; 2] = [&[1, 1, 0, 255, 255, 255, 255, 255, 0], &[7, 7, 0, 8, 8, 9, 9, 9, 9]];
        let all = agreement(subject(0, 0), compared(&[slice], None), GRID).result.unwrap();
        assert_eq!((all.matching.n_true, all.matching.n_pred), (2, 3));
        let of = Subject { ignore_label: Some(255), ..subject(0, 0) };
        let comparison = agreement(of, compared(&[slice], Some(255)), GRID);
        assert_eq!((comparison.truth[1], comparison.truth[255]), (theme::MATCHED, theme::IGNORED));
        let colors = [7, 8, 9, 10].map(|label| comparison.labels[label]);
        assert_eq!(colors, [theme::MATCHED, theme::IGNORED, theme::IGNORED, theme::FALSE_OBJECT]);
        let annotated = comparison.result.unwrap();
        assert_eq!((annotated.matching.n_true, annotated.matching.n_pred, annotated.matching.f1), (1, 1, 1.0));
        assert_eq!((annotated.errors.misses, annotated.errors.false_objects), (0, 0));
        assert_eq!((annotated.ignored_true, annotated.ignored_predictions), (0, 0), "they are not too small");
        assert_eq!(annotated.absent_label, None);
        let other = agreement(of, compared(&[slice], Some(254)), GRID).result.unwrap();
        assert_eq!((other.absent_label, other.matching), (Some(254), all.matching));
    }
}
