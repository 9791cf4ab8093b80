//! Reads volumes on a worker thread: the newest requests take precedence, obsolete ones are canceled, and volumes are
//! cached within a byte budget.

use super::content::{Builder, Volume};
use super::grid::TexelGrid;
use crate::data::cache::Cache;
use crate::data::loader::{NO_THREAD, SourceId};
use crate::data::source::{Cancel, PlaneSource, SourceError};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Size of the volume cache in bytes, including volumes on screen.
pub const VOLUME_CACHE_BYTES: usize = 512 << 20;

/// Percentage of slices after which the window is woken to update progress.
const PROGRESS_PERCENT: usize = 4;

/// Cache key of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VolumeKey {
    /// Source whose planes the volume consists of.
    pub source: SourceId,
    /// Channel, from 0.
    pub channel: usize,
    /// Time point, from 0.
    pub time: usize,
    /// Grid on which the volume is sampled.
    pub grid: TexelGrid,
}

/// Request to read the planes of a volume into memory.
#[derive(Clone)]
pub struct VolumeRequest {
    /// Key of the volume.
    pub key: VolumeKey,
    /// Source that the planes of the volume are read from.
    pub source: Arc<dyn PlaneSource>,
}

/// State of a requested volume.
#[derive(Debug, Clone)]
pub enum VolumeLoadState {
    /// The volume is loaded and cached.
    Ready(Arc<Volume>),
    /// The volume is queued or being read.
    Waiting,
    /// The volume cannot be read; the reason.
    Failed(String),
}

struct Running {
    key: VolumeKey,
    cancel: Arc<Cancel>,
    slices_done: Arc<AtomicUsize>,
}

#[derive(Default)]
struct VolumeReaderState {
    wanted: Vec<VolumeKey>,
    waiting: VecDeque<VolumeRequest>,
    running: Option<Running>,
    cache: Cache<VolumeKey, Volume>,
    failed: HashMap<VolumeKey, String>,
    stop: bool,
}

struct VolumeReaderShared {
    state: Mutex<VolumeReaderState>,
    work: Condvar,
    budget: usize,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl VolumeReaderShared {
    fn state(&self) -> MutexGuard<'_, VolumeReaderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads volumes on a separate thread and caches them within a byte budget.
pub struct VolumeReader {
    shared: Arc<VolumeReaderShared>,
    thread: Option<JoinHandle<()>>,
}

impl VolumeReader {
    /// A reader that calls `wake` on progress and when a volume is loaded.
    pub fn new(budget_bytes: usize, wake: impl Fn() + Send + Sync + 'static) -> Self {
        let shared = Arc::new(VolumeReaderShared {
            state: Mutex::default(),
            work: Condvar::new(),
            budget: budget_bytes,
            wake: Box::new(wake),
        });
        let for_thread = Arc::clone(&shared);
        let spawned = std::thread::Builder::new().name("volume reader".to_owned()).spawn(move || run(&for_thread));
        let spawned = spawned.inspect_err(|error| tracing::error!("a reader of volumes cannot be started: {error}"));
        Self { shared, thread: spawned.ok() }
    }

    /// Sets the requested volumes, most important first. Reading of others is canceled.
    pub fn request(&self, requests: &[VolumeRequest]) {
        let mut state = self.shared.state();
        if state.wanted.iter().eq(requests.iter().map(|r| &r.key)) {
            return;
        }
        state.wanted = requests.iter().map(|r| r.key).collect();
        if let Some(running) = &state.running
            && !state.wanted.contains(&running.key)
        {
            running.cancel.cancel();
        }
        let missing = requests.iter().filter(|r| {
            !state.cache.contains(&r.key)
                && !state.failed.contains_key(&r.key)
                && state.running.as_ref().is_none_or(|running| running.key != r.key)
        });
        state.waiting = missing.cloned().collect();
        self.shared.work.notify_one();
    }

    /// Returns the volume if it is loaded, otherwise how far it is.
    pub fn get(&self, key: &VolumeKey) -> VolumeLoadState {
        if self.thread.is_none() {
            return VolumeLoadState::Failed(NO_THREAD.to_owned());
        }
        let mut state = self.shared.state();
        if let Some(volume) = state.cache.get(key) {
            return VolumeLoadState::Ready(volume);
        }
        state.failed.get(key).map_or(VolumeLoadState::Waiting, |why| VolumeLoadState::Failed(why.clone()))
    }

    /// Progress of reading from 0 to 1; `None` if everything is loaded.
    pub fn progress(&self) -> Option<f32> {
        let state = self.shared.state();
        let remaining = state.waiting.len() + usize::from(state.running.is_some());
        if remaining == 0 {
            return None;
        }
        let running_share = state
            .running
            .as_ref()
            .map_or(0.0, |r| r.slices_done.load(Ordering::Relaxed) as f32 / r.key.grid.size_zyx[0].max(1) as f32);
        let all = state.wanted.len().max(remaining) as f32;
        Some(((all - remaining as f32 + running_share) / all).clamp(0.0, 1.0))
    }

    /// Drops all volumes and requests of a source that has changed or was closed.
    pub fn forget(&self, source: SourceId) {
        let mut state = self.shared.state();
        state.wanted.retain(|k| k.source != source);
        state.waiting.retain(|r| r.key.source != source);
        state.failed.retain(|k, _| k.source != source);
        state.cache.forget(|k| k.source == source);
        if let Some(running) = state.running.as_ref().filter(|r| r.key.source == source) {
            running.cancel.cancel();
        }
    }

    /// Size of the cached volumes in bytes.
    pub fn cached_bytes(&self) -> usize {
        self.shared.state().cache.bytes()
    }
}

impl Drop for VolumeReader {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state();
            state.stop = true;
            if let Some(running) = &state.running {
                running.cancel.cancel();
            }
        }
        self.shared.work.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

fn run(shared: &VolumeReaderShared) {
    loop {
        let (request, cancel, slices_done) = {
            let mut state = shared.state();
            loop {
                if state.stop {
                    return;
                }
                if let Some(request) = state.waiting.pop_front() {
                    let (cancel, slices_done) = (Arc::<Cancel>::default(), Arc::<AtomicUsize>::default());
                    let running = Running {
                        key: request.key,
                        cancel: Arc::clone(&cancel),
                        slices_done: Arc::clone(&slices_done),
                    };
                    state.running = Some(running);
                    break (request, cancel, slices_done);
                }
                state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        };
        let result = read(&request, &cancel, &slices_done, &*shared.wake);
        let mut state = shared.state();
        state.running = None;
        // The request may have been canceled after the last slice.
        match cancel.check().and(result) {
            Ok(volume) => {
                let (bytes, VolumeReaderState { cache, wanted, .. }) = (volume.bytes(), &mut *state);
                cache.put(request.key, volume, bytes, shared.budget, |k| wanted.contains(k));
            }
            Err(SourceError::Canceled) => {
                // It was requested again after it was canceled.
                if state.wanted.contains(&request.key) {
                    state.waiting.push_back(request);
                }
            }
            Err(error) => {
                state.failed.insert(request.key, error.to_string());
            }
        }
        drop(state);
        (shared.wake)();
    }
}

fn read(request: &VolumeRequest, cancel: &Cancel, done: &AtomicUsize, wake: &dyn Fn()) -> Result<Volume, SourceError> {
    let VolumeKey { channel, time, grid, .. } = request.key;
    let slices = grid.size_zyx[0];
    let mut builder = Builder::new(grid);
    let mut reported = 0;
    for z in 0..slices {
        cancel.check()?;
        builder.push(request.source.plane(&grid.plane(z, channel, time), cancel)?);
        done.store(z + 1, Ordering::Relaxed);
        let percent = (z + 1) * 100 / slices;
        if percent >= reported + PROGRESS_PERCENT {
            reported = percent;
            wake();
        }
    }
    Ok(builder.finish())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
mod tests {
    use super::*;
    use crate::data::test_planes::{NumberedPlanes, wait_until};

    fn key(channel: usize) -> VolumeKey {
        VolumeKey { source: 5, channel, time: 0, grid: TexelGrid::of([20, 10, 10], &[]) }
    }

    #[test]
    fn obsolete_requests_are_canceled_and_the_rest_is_read() {
        let numbered = Arc::new(NumberedPlanes::default());
        let source: Arc<dyn PlaneSource> = numbered.clone();
        let request = |c| VolumeRequest { key: key(c), source: Arc::clone(&source) };
        let reader = VolumeReader::new(1 << 20, || {});
        reader.request(&(0..50).map(request).collect::<Vec<_>>());
        wait_until("the first read", || numbered.reads.load(Ordering::SeqCst) == 1);
        assert!(reader.progress().is_some_and(|p| p < 0.1));
        reader.request(&[request(77)]);
        numbered.open.store(true, Ordering::SeqCst);
        wait_until("the volume", || matches!(reader.get(&key(77)), VolumeLoadState::Ready(_)));
        wait_until("rest", || reader.progress().is_none());
        assert_eq!(numbered.reads.load(Ordering::SeqCst), 1 + 20, "nothing else was read");
        let VolumeLoadState::Ready(volume) = reader.get(&key(77)) else { panic!("the volume was evicted") };
        let Volume::Intensities(v) = &*volume else { panic!("no intensities") };
        assert_eq!((v.texels.get(0), v.texels.get(1999)), (Some(0.0), Some(19.0 / 255.0)), "slices are in order");
        reader.forget(5);
        assert_eq!(reader.cached_bytes(), 0);
        assert!(matches!(reader.get(&key(77)), VolumeLoadState::Waiting));
    }

    #[test]
    fn volumes_are_cached_within_the_budget_and_visible_ones_are_pinned() {
        let numbered = Arc::new(NumberedPlanes { open: true.into(), ..NumberedPlanes::default() });
        let source: Arc<dyn PlaneSource> = numbered.clone();
        let request = |c| VolumeRequest { key: key(c), source: Arc::clone(&source) };
        let reader = VolumeReader::new(5000, || {});
        for c in 0..6 {
            reader.request(&[request(c), request(c + 1)]);
            for k in [c, c + 1] {
                wait_until("a volume", || matches!(reader.get(&key(k)), VolumeLoadState::Ready(_)));
            }
            assert!(reader.cached_bytes() <= 5000, "{}", reader.cached_bytes());
        }
        let reads = numbered.reads.load(Ordering::SeqCst);
        assert_eq!(reads, 7 * 20, "cached volumes are not read again");
        let tight = VolumeReader::new(1, || {});
        tight.request(&[request(0), request(1)]);
        for k in [0, 1] {
            wait_until("a volume", || matches!(tight.get(&key(k)), VolumeLoadState::Ready(_)));
        }
        assert!([0, 1].iter().all(|k| matches!(tight.get(&key(*k)), VolumeLoadState::Ready(_))));
    }

    #[test]
    fn a_failed_source_reports_why_and_is_not_read_again() {
        let numbered = Arc::new(NumberedPlanes { open: true.into(), fails: true, ..NumberedPlanes::default() });
        let source: Arc<dyn PlaneSource> = numbered.clone();
        let reader = VolumeReader::new(1 << 20, || {});
        for _ in 0..3 {
            reader.request(&[VolumeRequest { key: key(0), source: Arc::clone(&source) }]);
            wait_until("an answer", || matches!(reader.get(&key(0)), VolumeLoadState::Failed(_)));
            reader.request(&[]);
        }
        let VolumeLoadState::Failed(why) = reader.get(&key(0)) else { panic!("no failure") };
        assert!(why.contains("the disk is gone"));
        assert_eq!(numbered.reads.load(Ordering::SeqCst), 1);
    }
}
