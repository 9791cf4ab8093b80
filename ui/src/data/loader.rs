//! Planes read off the window's thread: the newest request of each place on screen wins, neighbours are fetched ahead, and
//! what was read is kept within a budget.

use super::kept::Kept;
use super::plane::{Plane, PlaneAt};
use super::source::{Cancel, PlaneSource, SourceError};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Identifies what planes are read from; another content has another id.
pub type SourceId = u64;

/// A place on screen that shows one plane at a time.
pub type Slot = u64;

/// Bytes of planes kept.
pub const CACHE_BYTES: usize = 384 << 20;

/// Readers side by side.
const THREADS: usize = 2;

/// Most planes waiting to be fetched ahead.
const MAX_AHEAD: usize = 16;

type Key = (SourceId, PlaneAt);

struct Task {
    source: Arc<dyn PlaneSource>,
    key: Key,
    cancel: Arc<Cancel>,
}

#[derive(Default)]
struct State {
    /// One request a slot, in the order of slots.
    wanted: BTreeMap<Slot, Task>,
    ahead: VecDeque<Task>,
    /// Being read: who asked (none for fetching ahead), what, and how to stop it.
    running: Vec<(Option<Slot>, Key, Arc<Cancel>)>,
    kept: Kept<Key, Plane>,
    failed: HashMap<Key, String>,
    stop: bool,
}

impl State {
    fn is_running(&self, key: &Key) -> bool {
        self.running.iter().any(|(_, k, _)| k == key)
    }
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    budget: usize,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a plane asked for came to, so far.
#[derive(Debug, Clone)]
pub enum Answer {
    /// It is there.
    Ready(Arc<Plane>),
    /// It is being read.
    Waiting,
    /// It cannot be read.
    Failed(String),
}

/// Reads planes.
pub struct Loader {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Loader {
    /// A loader that calls `wake` whenever a plane has come.
    pub fn new(budget_bytes: usize, wake: impl Fn() + Send + Sync + 'static) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            budget: budget_bytes,
            wake: Box::new(wake),
        });
        let threads = (0..THREADS)
            .filter_map(|i| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new().name(format!("plane reader {i}")).spawn(move || read(&shared)).ok()
            })
            .collect();
        Self { shared, threads }
    }

    /// The plane, or a request for it that takes the place of the slot's last one.
    pub fn get(&self, slot: Slot, id: SourceId, source: &Arc<dyn PlaneSource>, at: &PlaneAt) -> Answer {
        let key = (id, at.clone());
        let mut state = self.shared.state();
        if let Some(plane) = state.kept.get(&key) {
            state.wanted.remove(&slot);
            return Answer::Ready(plane);
        }
        if let Some(why) = state.failed.get(&key) {
            return Answer::Failed(why.clone());
        }
        for (who, k, cancel) in &state.running {
            if *who == Some(slot) && *k != key {
                cancel.cancel();
            }
        }
        if !state.is_running(&key) && state.wanted.get(&slot).is_none_or(|t| t.key != key) {
            let task = Task { source: Arc::clone(source), key, cancel: Arc::default() };
            state.wanted.insert(slot, task);
            self.shared.work.notify_one();
        }
        Answer::Waiting
    }

    /// Fetches planes that may be wanted next; earlier ones not begun are forgotten.
    pub fn fetch_ahead(&self, id: SourceId, source: &Arc<dyn PlaneSource>, planes: impl IntoIterator<Item = PlaneAt>) {
        let mut state = self.shared.state();
        for at in planes {
            let key = (id, at);
            if state.kept.has(&key) || state.failed.contains_key(&key) || state.is_running(&key) {
                continue;
            }
            state.ahead.retain(|t| t.key != key);
            state.ahead.push_back(Task { source: Arc::clone(source), key, cancel: Arc::default() });
            while state.ahead.len() > MAX_AHEAD {
                state.ahead.pop_front();
            }
            self.shared.work.notify_one();
        }
    }

    /// Forgets everything of a source, which has changed or gone.
    pub fn forget(&self, id: SourceId) {
        let mut state = self.shared.state();
        state.wanted.retain(|_, t| t.key.0 != id);
        state.ahead.retain(|t| t.key.0 != id);
        state.failed.retain(|k, _| k.0 != id);
        state.kept.forget(|k| k.0 == id);
        state.running.iter().filter(|(_, k, _)| k.0 == id).for_each(|(_, _, c)| c.cancel());
    }

    /// Bytes of planes held now.
    pub fn kept_bytes(&self) -> usize {
        self.shared.state().kept.bytes()
    }

    /// Whether something on screen is still being read.
    pub fn is_busy(&self) -> bool {
        let state = self.shared.state();
        !state.wanted.is_empty() || state.running.iter().any(|(who, _, _)| who.is_some())
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state();
            state.stop = true;
            state.running.iter().for_each(|(_, _, c)| c.cancel());
        }
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn read(shared: &Shared) {
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
                // One reader stays free for what is on screen.
                let ahead_running = state.running.iter().any(|(who, _, _)| who.is_none());
                if !ahead_running && let Some(task) = state.ahead.pop_back() {
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
                state.kept.put(task.key, plane, bytes, shared.budget, |_| false);
            }
            Err(SourceError::Cancelled) => {}
            Err(error) => {
                state.failed.insert(task.key, error.to_string());
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
    use crate::data::plane::{Orientation, Values};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    /// Planes whose every value is their index; reading one takes until `gate` opens.
    #[derive(Default)]
    struct Numbered {
        reads: AtomicUsize,
        cancelled: AtomicUsize,
        open: std::sync::atomic::AtomicBool,
    }

    impl PlaneSource for Numbered {
        fn plane(&self, at: &PlaneAt, cancel: &Cancel) -> Result<Plane, SourceError> {
            self.reads.fetch_add(1, Ordering::SeqCst);
            while !self.open.load(Ordering::SeqCst) {
                if let Err(e) = cancel.check() {
                    self.cancelled.fetch_add(1, Ordering::SeqCst);
                    return Err(e);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            let size = at.size();
            Ok(Plane { at: at.clone(), size, values: Values::F32(vec![at.index as f32; size[0] * size[1]]) })
        }
    }

    fn at(index: usize) -> PlaneAt {
        let rows = 0..100;
        PlaneAt { orientation: Orientation::Xy, index, channel: 0, time: 0, columns: rows.clone(), rows, step: 1 }
    }

    fn until(what: &str, mut is: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !is() {
            assert!(Instant::now() < end, "{what} did not come");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn the_newest_request_of_a_slot_takes_the_place_of_older_ones() {
        let numbered = Arc::new(Numbered::default());
        let source: Arc<dyn PlaneSource> = numbered.clone();
        let loader = Loader::new(1 << 20, || {});
        assert!(matches!(loader.get(1, 7, &source, &at(0)), Answer::Waiting));
        until("the first read", || numbered.reads.load(Ordering::SeqCst) == 1);
        for i in 1..50 {
            assert!(matches!(loader.get(1, 7, &source, &at(i)), Answer::Waiting));
        }
        until("the old one's end", || numbered.cancelled.load(Ordering::SeqCst) >= 1);
        numbered.open.store(true, Ordering::SeqCst);
        until("the last plane", || matches!(loader.get(1, 7, &source, &at(49)), Answer::Ready(_)));
        assert!(numbered.reads.load(Ordering::SeqCst) < 20, "planes nobody waits for are not read");
    }

    #[test]
    fn planes_are_kept_within_the_budget_the_latest_longest() {
        let numbered = Arc::new(Numbered::default());
        numbered.open.store(true, Ordering::SeqCst);
        let source: Arc<dyn PlaneSource> = numbered.clone();
        let plane_bytes = 100 * 100 * 4;
        let loader = Loader::new(3 * plane_bytes, || {});
        for i in 0..10 {
            until("a plane", || matches!(loader.get(1, 7, &source, &at(i)), Answer::Ready(_)));
            assert!(loader.kept_bytes() <= 3 * plane_bytes);
        }
        let reads = numbered.reads.load(Ordering::SeqCst);
        assert!(matches!(loader.get(1, 7, &source, &at(8)), Answer::Ready(_)), "a late one is still there");
        assert_eq!(numbered.reads.load(Ordering::SeqCst), reads);
        assert!(matches!(loader.get(1, 7, &source, &at(0)), Answer::Waiting), "the first is not");
        loader.forget(7);
        until("an end", || !loader.is_busy());
    }
}
