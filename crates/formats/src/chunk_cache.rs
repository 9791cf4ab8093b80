//! Decoded chunks of an open image, the most recently used ones: neighboring slices lie in the same chunks.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

/// Largest number of bytes of decoded chunks that are held before they are copied; at least one chunk is.
pub(crate) const BATCH_BYTES: usize = 256 << 20;
/// Largest level whose chunks stay in the cache after all of it was read at once. Larger ones would be in memory twice.
pub(crate) const KEPT_WHOLE_BYTES: usize = 16 << 20;
/// Smallest and largest limit of the cache of an image in bytes.
pub(crate) const CACHE_BYTES: [usize; 2] = [128 << 20, 512 << 20];

/// Bytes of the caches of all open images of this process.
static LIVE_BYTES: AtomicU64 = AtomicU64::new(0);

/// Returns the bytes of decoded chunks that the caches of all open images in this process hold.
pub fn chunk_cache_bytes() -> u64 {
    LIVE_BYTES.load(Ordering::Relaxed)
}

/// Key of an entry: a decoded chunk or the index of a shard, by its level (of images whose levels are in several arrays, the number
/// of the array) and its position in the grid of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Chunk { level: usize, at: usize },
    ShardIndex { level: usize, at: usize },
}

/// A cache with a limit in bytes.
#[derive(Debug)]
pub(crate) struct Cache {
    entries: Mutex<Entries>,
    max_bytes: AtomicUsize,
}

#[derive(Debug, Default)]
struct Entries {
    by_key: HashMap<Key, (Arc<Vec<u8>>, u64)>,
    /// Keys by the time of their last use.
    by_use: BTreeMap<u64, Key>,
    bytes: usize,
    now: u64,
}

impl Cache {
    /// A cache that can hold `wanted_bytes`, within limits.
    pub fn new(wanted_bytes: usize) -> Self {
        let [low, high] = CACHE_BYTES;
        Self { entries: Mutex::default(), max_bytes: wanted_bytes.clamp(low, high).into() }
    }

    /// Returns the limit in bytes.
    pub fn max_bytes(&self) -> usize {
        self.max_bytes.load(Ordering::Relaxed)
    }

    /// Lowers the limit, and evicts the entries that exceed it.
    pub fn limit(&self, bytes: usize) {
        self.max_bytes.fetch_min(bytes, Ordering::Relaxed);
        let mut guard = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        guard.evict(self.max_bytes());
    }

    /// Returns an entry and marks it as used.
    pub fn get(&self, key: Key) -> Option<Arc<Vec<u8>>> {
        let mut guard = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = &mut *guard;
        let (bytes, used) = entries.by_key.get_mut(&key)?;
        let last_use = *used;
        entries.now += 1;
        entries.by_use.remove(&last_use);
        entries.by_use.insert(entries.now, key);
        *used = entries.now;
        Some(Arc::clone(bytes))
    }

    /// Adds an entry and evicts the least recently used ones. An entry larger than half of the cache is not stored.
    pub fn insert(&self, key: Key, bytes: Arc<Vec<u8>>) {
        let max_bytes = self.max_bytes();
        if bytes.len() > max_bytes / 2 {
            return;
        }
        let mut guard = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = &mut *guard;
        entries.now += 1;
        entries.add(bytes.len());
        entries.by_use.insert(entries.now, key);
        if let Some((old, used)) = entries.by_key.insert(key, (bytes, entries.now)) {
            entries.remove(old.len());
            entries.by_use.remove(&used);
        }
        entries.evict(max_bytes);
    }
}

impl Entries {
    fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        LIVE_BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn remove(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        LIVE_BYTES.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    /// Removes the least recently used entries until at most `max_bytes` are held.
    fn evict(&mut self, max_bytes: usize) {
        while self.bytes > max_bytes {
            let Some((_, oldest)) = self.by_use.pop_first() else { break };
            if let Some((old, _)) = self.by_key.remove(&oldest) {
                self.remove(old.len());
            }
        }
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        self.remove(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn the_least_recently_used_entries_are_evicted() {
        let cache = Cache::new(0);
        let max_bytes = CACHE_BYTES[0];
        let key = |at| Key::Chunk { level: 0, at };
        let quarter = || Arc::new(vec![0u8; max_bytes / 4]);
        (0..4).for_each(|at| cache.insert(key(at), quarter()));
        assert!(cache.get(key(0)).is_some());
        cache.insert(key(4), quarter());
        let kept: Vec<bool> = (0..5).map(|at| cache.get(key(at)).is_some()).collect();
        assert_eq!(kept, [true, false, true, true, true]);
        // An entry that is replaced counts once.
        (0..9).for_each(|_| cache.insert(key(4), quarter()));
        assert!(cache.get(key(0)).is_some());
        assert!(cache.entries.lock().unwrap().bytes <= max_bytes);
        // A lower limit holds at once, and cannot be raised.
        cache.limit(max_bytes / 2);
        cache.limit(max_bytes);
        assert_eq!((cache.entries.lock().unwrap().bytes, cache.max_bytes()), (max_bytes / 2, max_bytes / 2));
        assert!(cache.get(key(4)).is_some() && cache.get(key(2)).is_none());
    }
}
