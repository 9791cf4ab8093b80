//! One allocation for all activations: buffers whose lives do not overlap share memory.

/// A buffer to be placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    /// Values it holds.
    pub len: usize,
    /// First step that touches it.
    pub first: usize,
    /// Last step that touches it.
    pub last: usize,
}

/// Values of one cache line: every buffer starts on one.
const ALIGNMENT: usize = 16;

/// Where each buffer starts, and the length of the arena: largest first, each in the lowest gap that is free for its life.
pub(crate) fn place(requests: &[Request]) -> (Vec<usize>, usize) {
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
            let (starts, total) = place(&requests);
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
