//! Progress and cancelling: told on the calling thread, between batches of slices that run in parallel.

use crate::SimulateError;
use rayon::prelude::*;

/// The part of the whole progress (`from..from + span`) that a stage may report on.
#[derive(Clone, Copy)]
pub(crate) struct Watch<'a> {
    tell: &'a dyn Fn(f64) -> bool,
    from: f64,
    span: f64,
}

impl<'a> Watch<'a> {
    /// The whole of the progress.
    pub(crate) fn new(tell: &'a dyn Fn(f64) -> bool) -> Self {
        Self { tell, from: 0.0, span: 1.0 }
    }

    /// The part of this progress between two fractions of it.
    pub(crate) fn part(&self, from: f64, to: f64) -> Self {
        Self { tell: self.tell, from: self.from + from * self.span, span: (to - from) * self.span }
    }

    /// Tells the fraction of this part that is done.
    pub(crate) fn at(&self, fraction: f64) -> Result<(), SimulateError> {
        if (self.tell)(self.from + self.span * fraction) { Ok(()) } else { Err(SimulateError::Cancelled) }
    }
}

/// Slabs that run between two looks at the caller: enough to keep every thread busy, few enough to stop soon.
fn batch() -> usize {
    (2 * rayon::current_num_threads()).clamp(4, 64)
}

/// Runs `work(i, slab)` on every run of `slab_len` values, in parallel, reporting in between.
pub(crate) fn each_slab<T: Send>(
    values: &mut [T],
    slab_len: usize,
    watch: &Watch<'_>,
    work: impl Fn(usize, &mut [T]) + Sync,
) -> Result<(), SimulateError> {
    let (batch, total) = (batch(), values.len().div_ceil(slab_len.max(1)).max(1));
    for (b, group) in values.chunks_mut(slab_len.max(1) * batch).enumerate() {
        watch.at((b * batch) as f64 / total as f64)?;
        group.par_chunks_mut(slab_len.max(1)).enumerate().for_each(|(i, slab)| work(b * batch + i, slab));
    }
    Ok(())
}

/// Runs `work(i, a_slab, b_slab)` on every run of `slab_len` values of two arrays, in parallel, reporting in between.
pub(crate) fn each_slab_of_two<A: Send, B: Send>(
    (a, b): (&mut [A], &mut [B]),
    slab_len: usize,
    watch: &Watch<'_>,
    work: impl Fn(usize, &mut [A], &mut [B]) + Sync,
) -> Result<(), SimulateError> {
    let (batch, total) = (batch(), a.len().div_ceil(slab_len.max(1)).max(1));
    let step = slab_len.max(1) * batch;
    for (n, (group_a, group_b)) in a.chunks_mut(step).zip(b.chunks_mut(step)).enumerate() {
        watch.at((n * batch) as f64 / total as f64)?;
        group_a
            .par_chunks_mut(slab_len.max(1))
            .zip(group_b.par_chunks_mut(slab_len.max(1)))
            .enumerate()
            .for_each(|(i, (slab_a, slab_b))| work(n * batch + i, slab_a, slab_b));
    }
    Ok(())
}
