//! Progress reports and cancellation, on the calling thread between batches of slices that are processed in parallel.

use crate::SimulateError;
use rayon::prelude::*;

/// The part of the overall progress (`from..from + span`) that a stage reports.
#[derive(Clone, Copy)]
pub(crate) struct ProgressRange<'a> {
    report: &'a dyn Fn(f64) -> bool,
    from: f64,
    span: f64,
}

impl<'a> ProgressRange<'a> {
    /// Creates a reporter for the overall progress.
    pub(crate) fn new(report: &'a dyn Fn(f64) -> bool) -> Self {
        Self { report, from: 0.0, span: 1.0 }
    }

    /// The part of this range between two fractions.
    pub(crate) fn part(&self, from: f64, to: f64) -> Self {
        Self { report: self.report, from: self.from + from * self.span, span: (to - from) * self.span }
    }

    /// Reports the completed fraction of this part; an error if the callback cancels.
    pub(crate) fn at(&self, fraction: f64) -> Result<(), SimulateError> {
        if (self.report)(self.from + self.span * fraction) { Ok(()) } else { Err(SimulateError::Canceled) }
    }
}

/// Number of slabs between two progress reports: enough to keep all threads busy, few enough to cancel quickly.
fn batch() -> usize {
    (2 * rayon::current_num_threads()).clamp(4, 64)
}

/// Calls `work(i, slab)` for every slab of `slab_len` values in parallel, with progress reports in between.
pub(crate) fn each_slab<T: Send>(
    values: &mut [T],
    slab_len: usize,
    progress: &ProgressRange<'_>,
    work: impl Fn(usize, &mut [T]) + Sync,
) -> Result<(), SimulateError> {
    let (batch, total) = (batch(), values.len().div_ceil(slab_len.max(1)).max(1));
    for (b, group) in values.chunks_mut(slab_len.max(1) * batch).enumerate() {
        progress.at((b * batch) as f64 / total as f64)?;
        group.par_chunks_mut(slab_len.max(1)).enumerate().for_each(|(i, slab)| work(b * batch + i, slab));
    }
    Ok(())
}

/// Calls `work(i, a_slab, b_slab)` for every slab of `slab_len` values of two arrays in parallel, with progress reports
/// in between.
pub(crate) fn for_each_slab_pair<A: Send, B: Send>(
    (a, b): (&mut [A], &mut [B]),
    slab_len: usize,
    progress: &ProgressRange<'_>,
    work: impl Fn(usize, &mut [A], &mut [B]) + Sync,
) -> Result<(), SimulateError> {
    let (batch, total) = (batch(), a.len().div_ceil(slab_len.max(1)).max(1));
    let step = slab_len.max(1) * batch;
    for (n, (group_a, group_b)) in a.chunks_mut(step).zip(b.chunks_mut(step)).enumerate() {
        progress.at((n * batch) as f64 / total as f64)?;
        group_a
            .par_chunks_mut(slab_len.max(1))
            .zip(group_b.par_chunks_mut(slab_len.max(1)))
            .enumerate()
            .for_each(|(i, (slab_a, slab_b))| work(n * batch + i, slab_a, slab_b));
    }
    Ok(())
}
