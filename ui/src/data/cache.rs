//! A cache with a byte budget that evicts the least recently used values.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

struct Item<V> {
    value: Arc<V>,
    bytes: usize,
    used: u64,
}

/// A least-recently-used cache.
pub struct Cache<K, V> {
    items: HashMap<K, Item<V>>,
    bytes: usize,
    clock: u64,
}

impl<K, V> Default for Cache<K, V> {
    fn default() -> Self {
        Self { items: HashMap::new(), bytes: 0, clock: 0 }
    }
}

impl<K: Eq + Hash + Clone, V> Cache<K, V> {
    /// Returns a value and marks it as used.
    pub fn get(&mut self, key: &K) -> Option<Arc<V>> {
        self.clock += 1;
        let item = self.items.get_mut(key)?;
        item.used = self.clock;
        Some(Arc::clone(&item.value))
    }

    /// Whether the key is cached.
    pub fn contains(&self, key: &K) -> bool {
        self.items.contains_key(key)
    }

    /// Inserts a value and evicts the least recently used ones until the cache fits into the budget. The new value and
    /// keys for which `is_pinned` returns true are never evicted.
    pub fn put(&mut self, key: K, value: V, bytes: usize, budget_bytes: usize, is_pinned: impl Fn(&K) -> bool) {
        self.clock += 1;
        self.bytes += bytes;
        let item = Item { value: Arc::new(value), bytes, used: self.clock };
        if let Some(old) = self.items.insert(key.clone(), item) {
            self.bytes -= old.bytes;
        }
        while self.bytes > budget_bytes {
            let evictable = self.items.iter().filter(|(k, _)| **k != key && !is_pinned(k));
            let Some(oldest) = evictable.min_by_key(|(_, item)| item.used).map(|(k, _)| k.clone()) else { break };
            if let Some(item) = self.items.remove(&oldest) {
                self.bytes -= item.bytes;
            }
        }
    }

    /// Removes all keys for which `is_gone` returns true.
    pub fn forget(&mut self, is_gone: impl Fn(&K) -> bool) {
        self.items.retain(|k, _| !is_gone(k));
        self.bytes = self.items.values().map(|item| item.bytes).sum();
    }

    /// Total size of the cached values in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_recently_used_is_evicted_first_and_pinned_never() {
        let mut cache = Cache::default();
        for key in 0..3 {
            cache.put(key, (), 10, 30, |_| false);
        }
        assert!(cache.get(&0).is_some());
        cache.put(3, (), 10, 30, |_| false);
        assert_eq!([0, 1, 2, 3].map(|k| cache.contains(&k)), [true, false, true, true]);
        cache.put(4, (), 10, 30, |k| *k == 2);
        assert_eq!([0, 2, 3, 4].map(|k| cache.contains(&k)), [false, true, true, true]);
        // Inserting a key again counts its bytes once. A value larger than the budget evicts all others.
        cache.put(4, (), 12, 32, |_| false);
        assert_eq!(cache.bytes(), 32);
        cache.put(5, (), 100, 32, |_| false);
        assert_eq!((cache.bytes(), cache.contains(&5)), (100, true));
        cache.forget(|k| *k == 5);
        assert_eq!((cache.bytes(), cache.contains(&5)), (0, false));
    }
}
