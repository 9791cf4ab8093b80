//! Whether the same work becomes slower during a run.

use crate::{SpanRecord, Stage};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Minimum number of spans of the same work from which early and late ones are compared.
const MIN_SPANS: usize = 16;
/// Minimum time of all these spans together in seconds: shorter ones vary by chance.
const MIN_TOTAL_SECS: f64 = 5.0;
/// Number of equal parts of the spans, of which the second and the last are compared.
const COMPARED_PART: usize = 4;

/// Times of the same work early and late in a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Slowdown {
    /// Name of the work, such as `tile`.
    pub work: String,
    /// Number of its spans.
    pub count: u64,
    /// Median duration in seconds of the second quarter of the spans.
    pub early_secs: f64,
    /// Median duration in seconds of the last quarter of the spans.
    pub late_secs: f64,
}

/// Stage, name and number of voxels of spans of the same work.
type Work<'a> = (Stage, &'a str, u64);

impl Slowdown {
    /// Compares the spans of the work that took the longest in all: tiles and slabs of the same number of voxels, or the
    /// backward passes of training steps. Returns `None` if no work was done often enough.
    pub fn of(spans: &[SpanRecord]) -> Option<Self> {
        let mut by_work: BTreeMap<Work<'_>, Vec<(f64, f64)>> = BTreeMap::new();
        for span in spans.iter().filter(|span| matches!(span.stage, Stage::Compute | Stage::Backward)) {
            let work = by_work.entry((span.stage, span.name.as_ref(), span.voxels)).or_default();
            work.push((span.start_us, span.duration_us / 1e6));
        }
        let total = |times: &[(f64, f64)]| times.iter().map(|(_, secs)| secs).sum::<f64>();
        let is_enough = |times: &[(f64, f64)]| times.len() >= MIN_SPANS && total(times) >= MIN_TOTAL_SECS;
        let often = by_work.into_iter().filter(|(_, times)| is_enough(times));
        let ((_, name, _), mut times) = often.max_by(|(_, a), (_, b)| total(a).total_cmp(&total(b)))?;
        times.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let part = times.len() / COMPARED_PART;
        // Not the first quarter: a pass over a stack fills its buffers in its first slabs, which is less work.
        let early_secs = median(times.get(part..2 * part)?)?;
        let late_secs = median(times.get(times.len() - part..)?)?;
        Some(Self { work: name.to_owned(), count: times.len() as u64, early_secs, late_secs })
    }
}

/// Returns the median duration of spans with their starts.
fn median(times: &[(f64, f64)]) -> Option<f64> {
    let mut secs: Vec<f64> = times.iter().map(|(_, secs)| *secs).collect();
    secs.sort_by(f64::total_cmp);
    secs.get(secs.len() / 2).copied()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn early_and_late_spans_of_the_same_work_are_compared() {
        let tile = |i: u32, duration_us: f64| SpanRecord {
            voxels: 1000,
            ..SpanRecord::new(Stage::Compute, "tile", f64::from(i) * 1e6, duration_us)
        };
        let mut spans: Vec<SpanRecord> = (0..40).map(|i| tile(i, if i < 20 { 2e5 } else { 3e5 })).collect();
        // One slow tile, and tiles of another size at the border, change nothing.
        spans.push(tile(1, 9e6));
        spans.extend((0..8).map(|i| SpanRecord { voxels: 10, ..tile(i, 1e3) }));
        let found = Slowdown::of(&spans).unwrap();
        assert_eq!((found.work.as_str(), found.count, found.early_secs, found.late_secs), ("tile", 41, 0.2, 0.3));
        assert_eq!(Slowdown::of(&spans[..15]), None, "too few to tell");
        let short: Vec<SpanRecord> = (0..40).map(|i| tile(i, if i < 20 { 2e3 } else { 3e3 })).collect();
        assert_eq!(Slowdown::of(&short), None, "too short to tell");
    }
}
