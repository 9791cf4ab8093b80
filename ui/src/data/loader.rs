//! Reads planes on worker threads: each slot on screen has at most one request, the newest; neighboring planes are
//! prefetched; planes are cached within a byte budget.

use super::cache::Cache;
use super::plane::{Orientation, Plane, PlaneAt};
use super::source::{Cancel, PlaneSource, SourceError};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Identifies the content of a plane source; changed content has a new id.
pub type SourceId = u64;

/// A position on screen that shows one plane at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot {
    /// ID of the document.
    pub document: u64,
    /// The slice view.
    pub orientation: Orientation,
    /// The layer in the view.
    pub layer: SlotLayer,
}

/// A layer of a slice view, from the bottom up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SlotLayer {
    /// The empty image below the overlays if no channel is visible.
    Base,
    /// A channel of the stack.
    Channel(usize),
    /// An overlay of the document.
    Overlay(usize),
}

/// Size of the plane cache in bytes.
pub const CACHE_BYTES: usize = 384 << 20;

/// Number of reader threads.
const THREADS: usize = 2;

/// Why nothing is read if the system starts no threads.
pub const NO_THREAD: &str = "it cannot be read, because no thread could be started: close other programs and try again";

/// Maximum number of queued prefetch requests.
const MAX_PREFETCH: usize = 16;

type Key = (SourceId, PlaneAt);

struct PlaneTask {
    source: Arc<dyn PlaneSource>,
    key: Key,
    cancel: Arc<Cancel>,
}

#[derive(Default)]
struct PlaneLoaderState {
    /// At most one request per slot, ordered by slot.
    wanted: BTreeMap<Slot, PlaneTask>,
    prefetch: VecDeque<PlaneTask>,
    /// Planes being read: the requesting slot (`None` for prefetching), the key and the cancel flag.
    running: Vec<(Option<Slot>, Key, Arc<Cancel>)>,
    cache: Cache<Key, Plane>,
    /// Planes that could not be read: the requesting slot (`None` for prefetching) and the reason.
    failed: HashMap<Key, (Option<Slot>, String)>,
    stop: bool,
}

impl PlaneLoaderState {
    fn is_running(&self, key: &Key) -> bool {
        self.running.iter().any(|(_, k, _)| k == key)
    }
}

struct PlaneLoaderShared {
    state: Mutex<PlaneLoaderState>,
    work: Condvar,
    budget: usize,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl PlaneLoaderShared {
    fn state(&self) -> MutexGuard<'_, PlaneLoaderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State of a requested plane.
#[derive(Debug, Clone)]
pub enum LoadState {
    /// The plane is loaded and cached.
    Ready(Arc<Plane>),
    /// The plane is queued or being read.
    Waiting,
    /// The plane cannot be read; the reason.
    Failed(String),
}

/// Reads planes on separate threads and caches them within a byte budget.
pub struct PlaneLoader {
    shared: Arc<PlaneLoaderShared>,
    threads: Vec<JoinHandle<()>>,
}

impl PlaneLoader {
    /// A loader that calls `wake` whenever a plane is loaded.
    pub fn new(budget_bytes: usize, wake: impl Fn() + Send + Sync + 'static) -> Self {
        let shared = Arc::new(PlaneLoaderShared {
            state: Mutex::default(),
            work: Condvar::new(),
            budget: budget_bytes,
            wake: Box::new(wake),
        });
        let threads = (0..THREADS)
            .filter_map(|i| {
                let shared = Arc::clone(&shared);
                let spawned =
                    std::thread::Builder::new().name(format!("plane reader {i}")).spawn(move || read(&shared));
                spawned.inspect_err(|error| tracing::error!("a reader of planes cannot be started: {error}")).ok()
            })
            .collect();
        Self { shared, threads }
    }

    /// Returns the plane, or requests it, which replaces the slot's previous request. A plane that could not be read is
    /// read again once the slot has requested another one in between.
    pub fn get(&self, slot: Slot, id: SourceId, source: &Arc<dyn PlaneSource>, at: &PlaneAt) -> LoadState {
        if self.threads.is_empty() {
            return LoadState::Failed(NO_THREAD.to_owned());
        }
        let key = (id, at.clone());
        let mut state = self.shared.state();
        if let Some(plane) = state.cache.get(&key) {
            state.wanted.remove(&slot);
            return LoadState::Ready(plane);
        }
        // Failures of prefetching and of earlier requests of the slot are forgotten.
        state.failed.retain(|k, (who, _)| if *k == key { who.is_some() } else { *who != Some(slot) });
        if let Some((_, why)) = state.failed.get(&key) {
            return LoadState::Failed(why.clone());
        }
        for (who, k, cancel) in &state.running {
            if *who == Some(slot) && *k != key {
                cancel.cancel();
            }
        }
        if !state.is_running(&key) && state.wanted.get(&slot).is_none_or(|t| t.key != key) {
            let task = PlaneTask { source: Arc::clone(source), key, cancel: Arc::default() };
            state.wanted.insert(slot, task);
            self.shared.work.notify_one();
        }
        LoadState::Waiting
    }

    /// Prefetches planes that may be needed next. The oldest queued prefetches are dropped.
    pub fn prefetch(&self, id: SourceId, source: &Arc<dyn PlaneSource>, planes: impl IntoIterator<Item = PlaneAt>) {
        let mut state = self.shared.state();
        for at in planes {
            let key = (id, at);
            if state.cache.contains(&key) || state.failed.contains_key(&key) || state.is_running(&key) {
                continue;
            }
            state.prefetch.retain(|t| t.key != key);
            state.prefetch.push_back(PlaneTask { source: Arc::clone(source), key, cancel: Arc::default() });
            while state.prefetch.len() > MAX_PREFETCH {
                state.prefetch.pop_front();
            }
            self.shared.work.notify_one();
        }
    }

    /// Drops all planes and requests of a source that has changed or was closed.
    pub fn forget(&self, id: SourceId) {
        let mut state = self.shared.state();
        state.wanted.retain(|_, t| t.key.0 != id);
        state.prefetch.retain(|t| t.key.0 != id);
        state.failed.retain(|k, _| k.0 != id);
        state.cache.forget(|k| k.0 == id);
        state.running.iter().filter(|(_, k, _)| k.0 == id).for_each(|(_, _, c)| c.cancel());
    }

    /// Size of the cached planes in bytes.
    pub fn cached_bytes(&self) -> usize {
        self.shared.state().cache.bytes()
    }

    /// Whether a plane for the screen is still being read.
    pub fn is_busy(&self) -> bool {
        let state = self.shared.state();
        !state.wanted.is_empty() || state.running.iter().any(|(who, _, _)| who.is_some())
    }
}

impl Drop for PlaneLoader {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state();
            state.stop = true;
            state.running.iter().for_each(|(_, _, c)| c.cancel());
        }
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

fn read(shared: &PlaneLoaderShared) {
    loop {
        let (slot, task) = {
            let mut state = shared.state();
            loop {
                if state.stop {
                    return;
                }
                if let Some((slot, task)) = state.wanted.pop_first() {
                    state.running.push((Some(slot), task.key.clone(), Arc::clone(&task.cancel)));
                    break (Some(slot), task);
                }
                // One reader stays free for planes on screen.
                let ahead_running = state.running.iter().any(|(who, _, _)| who.is_none());
                if !ahead_running && let Some(task) = state.prefetch.pop_back() {
                    state.running.push((None, task.key.clone(), Arc::clone(&task.cancel)));
                    break (None, task);
                }
                state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        };
        let result = task.source.plane(&task.key.1, &task.cancel);
        let mut state = shared.state();
        state.running.retain(|(who, key, _)| !(*who == slot && *key == task.key));
        match result {
            Ok(plane) => {
                let bytes = plane.bytes();
                state.cache.put(task.key, plane, bytes, shared.budget, |_| false);
            }
            Err(SourceError::Canceled) => {}
            Err(error) => {
                state.failed.insert(task.key, (slot, error.to_string()));
            }
        }
        drop(state);
        (shared.wake)();
        shared.work.notify_one();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
mod tests {
    use super::*;
    use crate::data::plane::Values;
    use crate::data::test_planes::{NumberedPlanes, wait_until};
    use std::sync::atomic::{AtomicBool, Ordering};

    fn at(index: usize) -> PlaneAt {
        PlaneAt::whole(Orientation::Xy, index, [50, 100, 100])
    }

    fn slot(channel: usize) -> Slot {
        Slot { document: 1, orientation: Orientation::Xy, layer: SlotLayer::Channel(channel) }
    }

    #[test]
    fn the_newest_request_of_a_slot_replaces_older_ones() {
        let numbered = Arc::new(NumberedPlanes::default());
        let source: Arc<dyn PlaneSource> = numbered.clone();
        let loader = PlaneLoader::new(1 << 20, || {});
        assert!(matches!(loader.get(slot(0), 7, &source, &at(0)), LoadState::Waiting));
        wait_until("the first read", || numbered.reads.load(Ordering::SeqCst) == 1);
        for i in 1..50 {
            assert!(matches!(loader.get(slot(0), 7, &source, &at(i)), LoadState::Waiting));
        }
        wait_until("the old one's end", || numbered.canceled.load(Ordering::SeqCst) >= 1);
        numbered.open.store(true, Ordering::SeqCst);
        wait_until("the last plane", || matches!(loader.get(slot(0), 7, &source, &at(49)), LoadState::Ready(_)));
        assert!(numbered.reads.load(Ordering::SeqCst) < 20, "planes nobody waits for are not read");
    }

    #[test]
    fn channels_and_overlays_never_cancel_each_other() {
        let numbered = Arc::new(NumberedPlanes::default());
        let source: Arc<dyn PlaneSource> = numbered.clone();
        let loader = PlaneLoader::new(16 << 20, || {});
        // More channels and overlays than fit in four bits of a number.
        let overlay = |i| Slot { layer: SlotLayer::Overlay(i), ..slot(0) };
        let slots: Vec<Slot> = (0..20).map(slot).chain((0..20).map(overlay)).collect();
        for (i, slot) in slots.iter().enumerate() {
            assert!(matches!(loader.get(*slot, 7, &source, &at(i)), LoadState::Waiting));
        }
        wait_until("the first read", || numbered.reads.load(Ordering::SeqCst) >= 1);
        numbered.open.store(true, Ordering::SeqCst);
        // Every plane is read without being requested again.
        wait_until("all planes", || !loader.is_busy());
        assert_eq!(numbered.reads.load(Ordering::SeqCst), slots.len());
        assert_eq!(numbered.canceled.load(Ordering::SeqCst), 0);
    }

    /// Planes that cannot be read until `works` is set.
    #[derive(Default)]
    struct Flaky {
        works: AtomicBool,
    }

    impl PlaneSource for Flaky {
        fn plane(&self, at: &PlaneAt, _cancel: &Cancel) -> Result<Plane, SourceError> {
            if !self.works.load(Ordering::SeqCst) {
                return Err(SourceError::Io(std::io::Error::other("the disk is gone")));
            }
            let size = at.size();
            Ok(Plane { at: at.clone(), size, values: Values::U8(vec![0; size[0] * size[1]]) })
        }
    }

    #[test]
    fn a_plane_that_could_not_be_read_is_read_again_after_another_one() {
        let flaky = Arc::new(Flaky::default());
        let source: Arc<dyn PlaneSource> = flaky.clone();
        let loader = PlaneLoader::new(1 << 20, || {});
        let failed = |loader: &PlaneLoader, i| matches!(loader.get(slot(0), 7, &source, &at(i)), LoadState::Failed(_));
        wait_until("the failure", || failed(&loader, 3));
        flaky.works.store(true, Ordering::SeqCst);
        assert!(failed(&loader, 3), "a broken file is not read in every frame");
        wait_until("another plane", || matches!(loader.get(slot(0), 7, &source, &at(4)), LoadState::Ready(_)));
        wait_until("the plane", || matches!(loader.get(slot(0), 7, &source, &at(3)), LoadState::Ready(_)));
    }

    #[test]
    fn planes_are_cached_within_the_budget() {
        let numbered = Arc::new(NumberedPlanes::default());
        numbered.open.store(true, Ordering::SeqCst);
        let source: Arc<dyn PlaneSource> = numbered.clone();
        let plane_bytes = 100 * 100;
        let loader = PlaneLoader::new(3 * plane_bytes, || {});
        for i in 0..10 {
            wait_until("a plane", || matches!(loader.get(slot(0), 7, &source, &at(i)), LoadState::Ready(_)));
            assert!(loader.cached_bytes() <= 3 * plane_bytes);
        }
        let reads = numbered.reads.load(Ordering::SeqCst);
        assert!(matches!(loader.get(slot(0), 7, &source, &at(8)), LoadState::Ready(_)), "a late one is still there");
        assert_eq!(numbered.reads.load(Ordering::SeqCst), reads);
        assert!(matches!(loader.get(slot(0), 7, &source, &at(0)), LoadState::Waiting), "the first is not");
        loader.forget(7);
        wait_until("an end", || !loader.is_busy());
    }
}
