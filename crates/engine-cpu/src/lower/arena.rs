//! Plans one allocation for all activations: buffers whose lifetimes do not overlap share memory.

use std::collections::{BTreeMap, BTreeSet};

/// A buffer to be placed in the arena.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    /// Length in 32-bit words.
    pub len: usize,
    /// Index of the first step that reads or writes it.
    pub first: usize,
    /// Index of the last step that reads or writes it.
    pub last: usize,
}

/// Words of one cache line; every buffer starts on a cache line.
const ALIGNMENT: usize = 16;

/// Up to this many buffers, each is compared with all others: a tighter packing in quadratic time.
const MAX_PAIRWISE: usize = 4096;

/// Returns the start of each buffer and the length of the arena, in words.
pub(crate) fn place(requests: &[Request]) -> (Vec<usize>, usize) {
    if requests.len() <= MAX_PAIRWISE { place_largest_first(requests) } else { place_in_order(requests) }
}

/// Places buffers in the order of their first use, each in the smallest gap that fits; adjacent gaps are merged.
fn place_in_order(requests: &[Request]) -> (Vec<usize>, usize) {
    let length = |i: usize| requests[i].len.max(1).next_multiple_of(ALIGNMENT);
    let mut by_first_use: Vec<usize> = (0..requests.len()).collect();
    by_first_use.sort_by_key(|i| requests[*i].first);
    let mut by_last_use: Vec<usize> = by_first_use.clone();
    by_last_use.sort_by_key(|i| requests[*i].last);
    let mut starts = vec![0; requests.len()];
    // The gaps by start (start -> length), and by length (length, start).
    let mut gaps: BTreeMap<usize, usize> = BTreeMap::new();
    let mut by_length: BTreeSet<(usize, usize)> = BTreeSet::new();
    let (mut total, mut released_count) = (0usize, 0);
    for i in by_first_use {
        while let Some(released) =
            by_last_use.get(released_count).copied().filter(|d| requests[*d].last < requests[i].first)
        {
            released_count += 1;
            let (mut start, mut len) = (starts[released], length(released));
            if let Some(after) = gaps.remove(&(start + len)) {
                by_length.remove(&(after, start + len));
                len += after;
            }
            if let Some((before, own)) =
                gaps.range(..start).next_back().map(|(s, l)| (*s, *l)).filter(|(s, l)| s + l == start)
            {
                gaps.remove(&before);
                by_length.remove(&(own, before));
                (start, len) = (before, own + len);
            }
            gaps.insert(start, len);
            by_length.insert((len, start));
        }
        let needed = length(i);
        let Some((len, start)) = by_length.range((needed, 0)..).next().copied() else {
            starts[i] = total;
            total = total.saturating_add(needed);
            continue;
        };
        by_length.remove(&(len, start));
        gaps.remove(&start);
        starts[i] = start;
        if len > needed {
            gaps.insert(start + needed, len - needed);
            by_length.insert((len - needed, start + needed));
        }
    }
    (starts, total)
}

/// Places the largest buffers first, each at the lowest address that is free during its lifetime.
fn place_largest_first(requests: &[Request]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|i| std::cmp::Reverse(requests[*i].len));
    let mut starts = vec![0; requests.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut total = 0;
    for i in order {
        let request = &requests[i];
        let mut busy: Vec<(usize, usize)> = placed
            .iter()
            .filter(|j| requests[**j].first <= request.last && request.first <= requests[**j].last)
            .map(|j| (starts[*j], starts[*j] + requests[*j].len))
            .collect();
        busy.sort_unstable();
        let mut at = 0;
        for (start, end) in busy {
            if at + request.len <= start {
                break;
            }
            at = at.max(end.next_multiple_of(ALIGNMENT));
        }
        starts[i] = at;
        total = total.max(at + request.len);
        placed.push(i);
    }
    (starts, total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn buffers_alive_together_never_overlap(raw in prop::collection::vec((1usize..500, 0usize..20, 0usize..8), 1..40)) {
            let requests: Vec<Request> = raw.iter().map(|(len, first, life)| Request { len: *len, first: *first, last: first + life }).collect();
            for (starts, total) in [place_largest_first(&requests), place_in_order(&requests)] {
            for (i, a) in requests.iter().enumerate() {
                prop_assert!(starts[i] + a.len <= total);
                for (j, b) in requests.iter().enumerate().skip(i + 1) {
                    let together = a.first <= b.last && b.first <= a.last;
                    let overlap = starts[i] < starts[j] + b.len && starts[j] < starts[i] + a.len;
                    prop_assert!(!(together && overlap));
                }
            }
            }
        }
    }
}
