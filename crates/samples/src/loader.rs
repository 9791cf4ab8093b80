//! Patches made ahead by threads, given out in order.

use crate::error::SamplesError;
use crate::limits::{MAX_PREFETCH, MAX_WORKERS};
use crate::sampler::{Origin, Patch, Sampler};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// How patches are made ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoaderOptions {
    /// Threads; each makes whole patches on one core.
    pub workers: usize,
    /// Patches kept ready at most.
    pub prefetch: usize,
    /// Number of the first patch; where a training is resumed.
    pub start: u64,
}

impl Default for LoaderOptions {
    fn default() -> Self {
        Self { workers: 1, prefetch: 8, start: 0 }
    }
}

/// Patches stacked along a first axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Number of the first patch; the others follow.
    pub first: u64,
    /// Patches.
    pub count: usize,
    /// Extents Z, Y, X.
    pub shape_zyx: [usize; 3],
    /// Channels of the target.
    pub channels: usize,
    /// `[n][1][Z][Y][X]`.
    pub image: Vec<f32>,
    /// `[n][channel][Z][Y][X]`.
    pub target: Vec<f32>,
    /// `[n][1][Z][Y][X]`.
    pub weight: Vec<f32>,
    /// Where each is from.
    pub from: Vec<Origin>,
}

#[derive(Debug, Default)]
struct State {
    /// The next patch to be made, and to be given out.
    next: u64,
    taken: u64,
    ready: BTreeMap<u64, Result<Patch, SamplesError>>,
    stop: bool,
    stalled_secs: f64,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// A patch is ready; room has been made.
    made: Condvar,
    room: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Threads that make patches; they stop when this is dropped.
#[derive(Debug)]
pub struct Loader {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Loader {
    /// Starts making the sampler's patches.
    ///
    /// # Errors
    /// [`SamplesError::Parameter`] for no or too many threads or patches; [`SamplesError::Io`] if a thread cannot be started.
    pub fn new(sampler: Arc<Sampler>, options: LoaderOptions) -> Result<Self, SamplesError> {
        Self::with(move |index| sampler.sample(index), options)
    }

    /// Starts making patches by any function of their number.
    ///
    /// # Errors
    /// As [`Loader::new`].
    pub fn with(
        make: impl Fn(u64) -> Result<Patch, SamplesError> + Send + Sync + 'static,
        options: LoaderOptions,
    ) -> Result<Self, SamplesError> {
        let limits = [
            ("the number of workers", options.workers, MAX_WORKERS, "1 to MAX_WORKERS"),
            ("the number of patches made ahead", options.prefetch, MAX_PREFETCH, "1 to MAX_PREFETCH"),
        ];
        for (what, got, limit, expected) in limits {
            if got == 0 || got > limit {
                return Err(SamplesError::Parameter { what, got: got.to_string(), expected });
            }
        }
        let shared = Arc::<Shared>::default();
        {
            let mut state = shared.lock();
            (state.next, state.taken) = (options.start, options.start);
        }
        let make = Arc::new(make);
        let mut loader = Self { shared, threads: Vec::with_capacity(options.workers) };
        for i in 0..options.workers {
            let (shared, make) = (Arc::clone(&loader.shared), Arc::clone(&make));
            let failed = |source| SamplesError::Io {
                file: std::env::current_exe().unwrap_or_default(),
                doing: "starting a thread for patches",
                source,
            };
            // A pool of one thread: what reads and filters in parallel elsewhere stays on this worker's core.
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

    /// The next patches, in order; waits until they are made.
    ///
    /// # Errors
    /// The first patch's failure, a panic in its thread included ([`SamplesError::Worker`]); the patches of this call are given up, and
    /// the next call goes on after them.
    pub fn next_batch(&mut self, count: usize) -> Result<Batch, SamplesError> {
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

    /// The next patch, in order; waits until it is made.
    ///
    /// # Errors
    /// The patch's failure, a panic in its thread included.
    pub fn next_patch(&mut self) -> Result<Patch, SamplesError> {
        let mut state = self.shared.lock();
        let index = state.taken;
        if !state.ready.contains_key(&index) {
            let began = Instant::now();
            while !state.ready.contains_key(&index) {
                state = self.shared.made.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.stalled_secs += began.elapsed().as_secs_f64();
        }
        let patch = state.ready.remove(&index);
        state.taken += 1;
        drop(state);
        self.shared.room.notify_all();
        patch.unwrap_or_else(|| Err(SamplesError::Worker { index, met: "the patch was lost".to_owned() }))
    }

    /// Number of the next patch to be given out: what a resumed training starts with.
    pub fn position(&self) -> u64 {
        self.shared.lock().taken
    }

    /// Seconds that the consumer has waited for patches so far.
    pub fn stalled_secs(&self) -> f64 {
        self.shared.lock().stalled_secs
    }

    /// Patches that are ready now.
    pub fn ready(&self) -> usize {
        self.shared.lock().ready.len()
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.room.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared, make: &(impl Fn(u64) -> Result<Patch, SamplesError> + ?Sized), prefetch: u64) {
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
                state = shared.room.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let index = state.next;
            state.next += 1;
            index
        };
        let patch = catch_unwind(AssertUnwindSafe(|| make(index))).unwrap_or_else(|thrown| {
            let met = thrown
                .downcast_ref::<&str>()
                .map(|s| (*s).to_owned())
                .or_else(|| thrown.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "a panic without words".to_owned());
            Err(SamplesError::Worker { index, met })
        });
        shared.lock().ready.insert(index, patch);
        shared.made.notify_all();
    }
}

/// Stacks patches of one shape.
fn stack(patches: Vec<Patch>) -> Result<Batch, SamplesError> {
    let mut patches = patches.into_iter();
    let Some(first) = patches.next() else {
        return Err(SamplesError::Parameter {
            what: "the number of patches in a batch",
            got: "0".to_owned(),
            expected: "at least one",
        });
    };
    let mut batch = Batch {
        first: first.index,
        count: 1,
        shape_zyx: first.shape_zyx,
        channels: first.channels,
        image: first.image,
        target: first.target,
        weight: first.weight,
        from: vec![first.from],
    };
    for patch in patches {
        if (patch.shape_zyx, patch.channels) != (batch.shape_zyx, batch.channels) {
            return Err(SamplesError::Parameter {
                what: "the shape of a patch in a batch",
                got: format!("{:?} with {} channels", patch.shape_zyx, patch.channels),
                expected: "that of the first",
            });
        }
        batch.image.extend(patch.image);
        batch.target.extend(patch.target);
        batch.weight.extend(patch.weight);
        batch.from.push(patch.from);
        batch.count += 1;
    }
    Ok(batch)
}
