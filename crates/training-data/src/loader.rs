//! Prefetching of patches by worker threads, delivered in order.

use crate::error::TrainingDataError;
use crate::limits::{MAX_PREFETCH, MAX_WORKERS};
use crate::sampler::{Origin, Patch, Sampler};
use cytoscope_storage::panic_text;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// How a [`Loader`] prefetches patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoaderOptions {
    /// Number of worker threads; each prepares whole patches on one core.
    pub workers: usize,
    /// Maximum number of prefetched patches.
    pub prefetch: usize,
    /// Index of the first patch; not 0 when training is resumed.
    pub start: u64,
}

impl Default for LoaderOptions {
    fn default() -> Self {
        Self { workers: 1, prefetch: 8, start: 0 }
    }
}

/// Patches stacked along the batch axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Index of the first patch; the others are consecutive.
    pub first: u64,
    /// Number of patches in the batch.
    pub count: usize,
    /// Shape of a patch along Z, Y, X.
    pub shape_zyx: [usize; 3],
    /// Number of channels of the image.
    pub image_channels: usize,
    /// Number of channels of the target.
    pub channels: usize,
    /// Images, `[n][channel][Z][Y][X]`.
    pub image: Vec<f32>,
    /// Targets, `[n][channel][Z][Y][X]`.
    pub target: Vec<f32>,
    /// Weights, `[n][1][Z][Y][X]`.
    pub weight: Vec<f32>,
    /// Weights of the channels after the first, `[n][1][Z][Y][X]`; empty if all channels have the weights of the first.
    pub further_weight: Vec<f32>,
    /// Where each patch was sampled, in the order of the batch.
    pub from: Vec<Origin>,
}

#[derive(Debug, Default)]
struct LoaderState {
    /// Index of the next patch to prepare.
    next: u64,
    /// Index of the next patch to deliver.
    taken: u64,
    ready: BTreeMap<u64, Result<Patch, TrainingDataError>>,
    stop: bool,
    stalled_secs: f64,
}

#[derive(Debug, Default)]
struct LoaderShared {
    state: Mutex<LoaderState>,
    /// Signals that a patch is ready.
    made: Condvar,
    /// Signals that a patch was taken.
    taken: Condvar,
}

impl LoaderShared {
    fn lock(&self) -> MutexGuard<'_, LoaderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Worker threads that prefetch patches; they stop when the loader is dropped.
#[derive(Debug)]
pub struct Loader {
    shared: Arc<LoaderShared>,
    threads: Vec<JoinHandle<()>>,
}

impl Loader {
    /// Starts to prefetch the patches of a sampler.
    ///
    /// # Errors
    /// [`TrainingDataError::Parameter`] if the number of threads or patches is 0 or too large;
    /// [`TrainingDataError::Thread`] if a thread cannot be started.
    pub fn new(sampler: Arc<Sampler>, options: LoaderOptions) -> Result<Self, TrainingDataError> {
        Self::with(move |index| sampler.sample(index), options)
    }

    /// Starts to prefetch patches from any function of their index.
    ///
    /// # Errors
    /// Same as [`Loader::new`].
    pub fn with(
        make: impl Fn(u64) -> Result<Patch, TrainingDataError> + Send + Sync + 'static,
        options: LoaderOptions,
    ) -> Result<Self, TrainingDataError> {
        let limits = [
            ("the number of workers", options.workers, MAX_WORKERS, "1 to MAX_WORKERS"),
            ("the number of prefetched patches", options.prefetch, MAX_PREFETCH, "1 to MAX_PREFETCH"),
        ];
        for (what, got, limit, expected) in limits {
            if got == 0 || got > limit {
                return Err(TrainingDataError::Parameter { what, got: got.to_string(), expected });
            }
        }
        let shared = Arc::<LoaderShared>::default();
        {
            let mut state = shared.lock();
            (state.next, state.taken) = (options.start, options.start);
        }
        let make = Arc::new(make);
        let mut loader = Self { shared, threads: Vec::with_capacity(options.workers) };
        for i in 0..options.workers {
            let (shared, make) = (Arc::clone(&loader.shared), Arc::clone(&make));
            let failed = |source| TrainingDataError::Thread { source };
            // In a pool of one thread, parallel reading and filtering runs on this worker's core only.
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(1)
                .thread_name(move |_| format!("patches-{i}"))
                .build()
                .map_err(|e| failed(std::io::Error::other(e.to_string())))?;
            let thread = std::thread::Builder::new()
                .name(format!("patches-{i}-feed"))
                .spawn(move || pool.install(|| work(&shared, make.as_ref(), options.prefetch as u64)))
                .map_err(failed)?;
            loader.threads.push(thread);
        }
        Ok(loader)
    }

    /// Returns the next patches in order; waits until they are ready.
    ///
    /// # Errors
    /// The first error of a patch, or [`TrainingDataError::Worker`] for a panic in its thread. All patches of this call
    /// are dropped, and the next call continues after them.
    pub fn next_batch(&mut self, count: usize) -> Result<Batch, TrainingDataError> {
        let mut patches = Vec::with_capacity(count.min(MAX_PREFETCH));
        let mut failure = None;
        for _ in 0..count {
            match self.next_patch() {
                Ok(patch) => patches.push(patch),
                Err(e) => {
                    failure.get_or_insert(e);
                }
            }
        }
        match failure {
            Some(e) => Err(e),
            None => stack(patches),
        }
    }

    /// Returns the next patch in order; waits until it is ready.
    ///
    /// # Errors
    /// The error of the patch, or [`TrainingDataError::Worker`] for a panic in its thread.
    pub fn next_patch(&mut self) -> Result<Patch, TrainingDataError> {
        let mut state = self.shared.lock();
        let index = state.taken;
        if !state.ready.contains_key(&index) {
            let started = Instant::now();
            while !state.ready.contains_key(&index) {
                state = self.shared.made.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.stalled_secs += started.elapsed().as_secs_f64();
        }
        let patch = state.ready.remove(&index);
        state.taken += 1;
        drop(state);
        self.shared.taken.notify_all();
        patch.unwrap_or_else(|| Err(TrainingDataError::Worker { index, problem: "the patch was lost".to_owned() }))
    }

    /// Returns the index of the next patch to deliver, from which training can be resumed.
    pub fn position(&self) -> u64 {
        self.shared.lock().taken
    }

    /// Returns the total time in seconds that the consumer has waited for patches.
    pub fn stalled_secs(&self) -> f64 {
        self.shared.lock().stalled_secs
    }

    /// Returns the number of patches that are ready.
    pub fn ready(&self) -> usize {
        self.shared.lock().ready.len()
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.taken.notify_all();
        for thread in self.threads.drain(..) {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

fn work(shared: &LoaderShared, make: &(impl Fn(u64) -> Result<Patch, TrainingDataError> + ?Sized), prefetch: u64) {
    loop {
        let index = {
            let mut state = shared.lock();
            loop {
                if state.stop {
                    return;
                }
                if state.next < state.taken.saturating_add(prefetch) {
                    break;
                }
                state = shared.taken.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let index = state.next;
            state.next += 1;
            index
        };
        let patch = catch_unwind(AssertUnwindSafe(|| make(index)))
            .unwrap_or_else(|thrown| Err(TrainingDataError::Worker { index, problem: panic_text(&*thrown) }));
        shared.lock().ready.insert(index, patch);
        shared.made.notify_all();
    }
}

/// Stacks patches of the same shape.
fn stack(patches: Vec<Patch>) -> Result<Batch, TrainingDataError> {
    let mut patches = patches.into_iter();
    let Some(first) = patches.next() else {
        return Err(TrainingDataError::Parameter {
            what: "the number of patches in a batch",
            got: "0".to_owned(),
            expected: "at least one",
        });
    };
    let mut batch = Batch {
        first: first.index,
        count: 1,
        shape_zyx: first.shape_zyx,
        image_channels: first.image_channels,
        channels: first.channels,
        image: first.image,
        target: first.target,
        weight: first.weight,
        further_weight: first.further_weight,
        from: vec![first.from],
    };
    for patch in patches {
        let shape = (patch.shape_zyx, patch.image_channels, patch.channels);
        if shape != (batch.shape_zyx, batch.image_channels, batch.channels) {
            return Err(TrainingDataError::Parameter {
                what: "the shape of a patch in a batch",
                got: format!("{:?} with {} and {} channels", shape.0, shape.1, shape.2),
                expected: "that of the first patch",
            });
        }
        batch.image.extend(patch.image);
        batch.target.extend(patch.target);
        batch.weight.extend(patch.weight);
        batch.further_weight.extend(patch.further_weight);
        batch.from.push(patch.from);
        batch.count += 1;
    }
    Ok(batch)
}
