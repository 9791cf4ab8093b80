//! Volumes read on a thread of their own: what is wanted newest wins, what is no longer wanted is broken off, what was read is
//! kept within a budget.

use super::content::{Builder, Volume};
use super::grid::Grid;
use crate::data::kept::Kept;
use crate::data::loader::SourceId;
use crate::data::source::{Cancel, PlaneSource, SourceError};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Bytes of volumes kept, those on screen among them.
pub const KEPT_BYTES: usize = 512 << 20;

/// The window is woken each time so many slices out of a hundred were read.
const TOLD_PERCENT: usize = 4;

/// What a volume is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// The source.
    pub source: SourceId,
    /// Channel.
    pub channel: usize,
    /// Time point.
    pub time: usize,
    /// Which voxels.
    pub grid: Grid,
}

/// A volume to be read.
#[derive(Clone)]
pub struct Request {
    /// What.
    pub key: Key,
    /// From where.
    pub source: Arc<dyn PlaneSource>,
}

/// What a volume asked for came to, so far.
#[derive(Debug, Clone)]
pub enum Answer {
    /// It is there.
    Ready(Arc<Volume>),
    /// It is being read, or waits.
    Waiting,
    /// It cannot be read.
    Failed(String),
}

struct Running {
    key: Key,
    cancel: Arc<Cancel>,
    slices_done: Arc<AtomicUsize>,
}

#[derive(Default)]
struct State {
    wanted: Vec<Key>,
    waiting: VecDeque<Request>,
    running: Option<Running>,
    kept: Kept<Key, Volume>,
    failed: HashMap<Key, String>,
    stop: bool,
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

/// Reads volumes.
pub struct Reader {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    /// A reader that calls `wake` whenever there is something new to show.
    pub fn new(budget_bytes: usize, wake: impl Fn() + Send + Sync + 'static) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            budget: budget_bytes,
            wake: Box::new(wake),
        });
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("volume reader".to_owned()).spawn(move || run(&for_thread)).ok();
        Self { shared, thread }
    }

    /// Says all that is wanted now, most wanted first; what is being read and not among it is broken off.
    pub fn want(&self, requests: &[Request]) {
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
            !state.kept.has(&r.key)
                && !state.failed.contains_key(&r.key)
                && state.running.as_ref().is_none_or(|running| running.key != r.key)
        });
        state.waiting = missing.cloned().collect();
        self.shared.work.notify_one();
    }

    /// A volume, if it is there.
    pub fn get(&self, key: &Key) -> Answer {
        let mut state = self.shared.state();
        if let Some(volume) = state.kept.get(key) {
            return Answer::Ready(volume);
        }
        state.failed.get(key).map_or(Answer::Waiting, |why| Answer::Failed(why.clone()))
    }

    /// How much of what is wanted was read, 0 to 1; `None` if all of it.
    pub fn progress(&self) -> Option<f32> {
        let state = self.shared.state();
        let left = state.waiting.len() + usize::from(state.running.is_some());
        if left == 0 {
            return None;
        }
        let of_running = state
            .running
            .as_ref()
            .map_or(0.0, |r| r.slices_done.load(Ordering::Relaxed) as f32 / r.key.grid.size_zyx[0].max(1) as f32);
        let all = state.wanted.len().max(left) as f32;
        Some(((all - left as f32 + of_running) / all).clamp(0.0, 1.0))
    }

    /// Forgets everything of a source, which has changed or gone.
    pub fn forget(&self, source: SourceId) {
        let mut state = self.shared.state();
        state.wanted.retain(|k| k.source != source);
        state.waiting.retain(|r| r.key.source != source);
        state.failed.retain(|k, _| k.source != source);
        state.kept.forget(|k| k.source == source);
        if let Some(running) = state.running.as_ref().filter(|r| r.key.source == source) {
            running.cancel.cancel();
        }
    }

    /// Bytes of volumes held now.
    pub fn kept_bytes(&self) -> usize {
        self.shared.state().kept.bytes()
    }
}

impl Drop for Reader {
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
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared) {
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
        // Broken off or forgotten at the last moment counts, too.
        match cancel.check().and(result) {
            Ok(volume) => {
                let (bytes, State { kept, wanted, .. }) = (volume.bytes(), &mut *state);
                kept.put(request.key, volume, bytes, shared.budget, |k| wanted.contains(k));
            }
            Err(SourceError::Cancelled) => {
                // Wanted again since it was broken off.
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

fn read(request: &Request, cancel: &Cancel, done: &AtomicUsize, wake: &dyn Fn()) -> Result<Volume, SourceError> {
    let Key { channel, time, grid, .. } = request.key;
    let slices = grid.size_zyx[0];
    let mut builder = Builder::new(grid);
    let mut told = 0;
    for z in 0..slices {
        cancel.check()?;
        builder.push(request.source.plane(&grid.plane(z, channel, time), cancel)?);
        done.store(z + 1, Ordering::Relaxed);
        let percent = (z + 1) * 100 / slices;
        if percent >= told + TOLD_PERCENT {
            told = percent;
            wake();
        }
    }
    Ok(builder.finish())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
mod tests {
    use super::*;
    use crate::data::plane::{Plane, PlaneAt, Values};
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    /// Planes whose every value is their index; reading one takes until `open`.
    #[derive(Default)]
    struct Numbered {
        reads: AtomicUsize,
        open: AtomicBool,
        fails: bool,
    }

    impl PlaneSource for Numbered {
        fn plane(&self, at: &PlaneAt, cancel: &Cancel) -> Result<Plane, SourceError> {
            self.reads.fetch_add(1, Ordering::SeqCst);
            while !self.open.load(Ordering::SeqCst) {
                cancel.check()?;
                std::thread::sleep(Duration::from_millis(1));
            }
            if self.fails {
                return Err(SourceError::Io(std::io::Error::other("the disk is gone")));
            }
            let size = at.size();
            Ok(Plane { at: at.clone(), size, values: Values::U8(vec![at.index as u8; size[0] * size[1]]) })
        }
    }

    fn key(channel: usize) -> Key {
        Key { source: 5, channel, time: 0, grid: Grid::of([20, 10, 10], false) }
    }

    fn until(what: &str, mut is: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !is() {
            assert!(Instant::now() < end, "{what} did not come");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_is_no_longer_wanted_is_broken_off_and_the_rest_comes() {
        let numbered = Arc::new(Numbered::default());
        let source: Arc<dyn PlaneSource> = numbered.clone();
        let request = |c| Request { key: key(c), source: Arc::clone(&source) };
        let reader = Reader::new(1 << 20, || {});
        reader.want(&(0..50).map(request).collect::<Vec<_>>());
        until("the first read", || numbered.reads.load(Ordering::SeqCst) == 1);
        assert!(reader.progress().is_some_and(|p| p < 0.1));
        reader.want(&[request(77)]);
        numbered.open.store(true, Ordering::SeqCst);
        until("the volume", || matches!(reader.get(&key(77)), Answer::Ready(_)));
        until("rest", || reader.progress().is_none());
        assert_eq!(numbered.reads.load(Ordering::SeqCst), 1 + 20, "nothing else was read");
        let Answer::Ready(volume) = reader.get(&key(77)) else { panic!("gone") };
        let Volume::Intensities(v) = &*volume else { panic!("no intensities") };
        assert_eq!((v.texels.get(0), v.texels.get(1999)), (Some(0.0), Some(19.0 / 255.0)), "slices are in order");
        reader.forget(5);
        assert_eq!(reader.kept_bytes(), 0);
        assert!(matches!(reader.get(&key(77)), Answer::Waiting));
    }

    #[test]
    fn volumes_are_kept_within_the_budget_but_those_on_screen_always() {
        let numbered = Arc::new(Numbered { open: true.into(), ..Numbered::default() });
        let source: Arc<dyn PlaneSource> = numbered.clone();
        let request = |c| Request { key: key(c), source: Arc::clone(&source) };
        let reader = Reader::new(5000, || {});
        for c in 0..6 {
            reader.want(&[request(c), request(c + 1)]);
            for k in [c, c + 1] {
                until("a volume", || matches!(reader.get(&key(k)), Answer::Ready(_)));
            }
            assert!(reader.kept_bytes() <= 5000, "{}", reader.kept_bytes());
        }
        let reads = numbered.reads.load(Ordering::SeqCst);
        assert_eq!(reads, 7 * 20, "what is kept is not read again");
        let tight = Reader::new(1, || {});
        tight.want(&[request(0), request(1)]);
        for k in [0, 1] {
            until("a volume", || matches!(tight.get(&key(k)), Answer::Ready(_)));
        }
        assert!([0, 1].iter().all(|k| matches!(tight.get(&key(*k)), Answer::Ready(_))));
    }

    #[test]
    fn a_source_that_fails_says_why_and_is_not_asked_again() {
        let numbered = Arc::new(Numbered { open: true.into(), fails: true, ..Numbered::default() });
        let source: Arc<dyn PlaneSource> = numbered.clone();
        let reader = Reader::new(1 << 20, || {});
        for _ in 0..3 {
            reader.want(&[Request { key: key(0), source: Arc::clone(&source) }]);
            until("an answer", || matches!(reader.get(&key(0)), Answer::Failed(_)));
            reader.want(&[]);
        }
        let Answer::Failed(why) = reader.get(&key(0)) else { panic!("no failure") };
        assert!(why.contains("the disk is gone"));
        assert_eq!(numbered.reads.load(Ordering::SeqCst), 1);
    }
}
