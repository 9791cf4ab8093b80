//! What was read, kept within a budget: what was used last stays longest.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

struct Item<V> {
    value: Arc<V>,
    bytes: usize,
    used: u64,
}

/// Values by key.
pub struct Kept<K, V> {
    items: HashMap<K, Item<V>>,
    bytes: usize,
    clock: u64,
}

impl<K, V> Default for Kept<K, V> {
    fn default() -> Self {
        Self { items: HashMap::new(), bytes: 0, clock: 0 }
    }
}

impl<K: Eq + Hash + Clone, V> Kept<K, V> {
    /// A value, which counts as used now.
    pub fn get(&mut self, key: &K) -> Option<Arc<V>> {
        self.clock += 1;
        let item = self.items.get_mut(key)?;
        item.used = self.clock;
        Some(Arc::clone(&item.value))
    }

    /// Whether it is there.
    pub fn has(&self, key: &K) -> bool {
        self.items.contains_key(key)
    }

    /// Keeps a value and drops those used longest ago until all fit into the budget; this one stays, and so do those that
    /// `is_held`.
    pub fn put(&mut self, key: K, value: V, bytes: usize, budget_bytes: usize, is_held: impl Fn(&K) -> bool) {
        self.clock += 1;
        self.bytes += bytes;
        let item = Item { value: Arc::new(value), bytes, used: self.clock };
        if let Some(old) = self.items.insert(key.clone(), item) {
            self.bytes -= old.bytes;
        }
        while self.bytes > budget_bytes {
            let spare = self.items.iter().filter(|(k, _)| **k != key && !is_held(k));
            let Some(oldest) = spare.min_by_key(|(_, item)| item.used).map(|(k, _)| k.clone()) else { break };
            if let Some(item) = self.items.remove(&oldest) {
                self.bytes -= item.bytes;
            }
        }
    }

    /// Drops those that are gone.
    pub fn forget(&mut self, is_gone: impl Fn(&K) -> bool) {
        self.items.retain(|k, _| !is_gone(k));
        self.bytes = self.items.values().map(|item| item.bytes).sum();
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_unused_goes_first_and_what_is_held_never() {
        let mut kept = Kept::default();
        for key in 0..3 {
            kept.put(key, (), 10, 30, |_| false);
        }
        assert!(kept.get(&0).is_some());
        kept.put(3, (), 10, 30, |_| false);
        assert_eq!([0, 1, 2, 3].map(|k| kept.has(&k)), [true, false, true, true]);
        kept.put(4, (), 10, 30, |k| *k == 2);
        assert_eq!([0, 2, 3, 4].map(|k| kept.has(&k)), [false, true, true, true]);
        // The same again counts once; one larger than the budget is alone.
        kept.put(4, (), 12, 32, |_| false);
        assert_eq!(kept.bytes(), 32);
        kept.put(5, (), 100, 32, |_| false);
        assert_eq!((kept.bytes(), kept.has(&5)), (100, true));
        kept.forget(|k| *k == 5);
        assert_eq!((kept.bytes(), kept.has(&5)), (0, false));
    }
}
