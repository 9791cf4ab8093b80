//! The B-tree of version 1 in which most HDF5 files list the chunks of a dataset. The library reads all of it for each region, and
//! a dataset of 100 GB has 100 000 chunks, so that the tree has several megabytes.

use crate::{error::Fault, fields::Fields, source::Source};

/// First bytes of a node.
const SIGNATURE: &[u8] = b"TREE";
/// Type of a node of chunks.
const CHUNKS: u8 = 1;
/// Bytes of a node before its keys: signature, type, level, number of children, and addresses of two neighbors.
const HEADER_BYTES: usize = 24;
/// Bytes of an address; other sizes are left to the library.
pub(super) const ADDRESS_BYTES: usize = 8;
/// Bytes of a key before the position of its chunk: stored bytes, and filters that were skipped.
const KEY_BYTES: usize = 8;
/// Largest level of a root, whose tree has more chunks than any file.
const MAX_LEVEL: u8 = 16;

/// The tree of a dataset.
#[derive(Debug)]
pub(super) struct ChunkTree {
    /// Position of the root in the file.
    pub root: u64,
    /// Number of axes.
    pub rank: usize,
}

/// Where a chunk is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub at: u64,
    pub bytes: u32,
    /// A bit for each filter that was not applied.
    pub skipped_filters: u32,
}

/// A node: `count` children, each between two keys.
struct Node {
    level: u8,
    count: usize,
    /// Keys and addresses by turns.
    bytes: Vec<u8>,
}

impl ChunkTree {
    /// Finds the chunk whose first sample has these indices; `None` if it is not stored.
    pub fn find(&self, source: &Source, first: &[usize]) -> Result<Option<Entry>, Fault> {
        let mut node = self.node(source, self.root)?;
        if node.level > MAX_LEVEL {
            return Err(Fault::malformed("the index of the chunks is too deep"));
        }
        loop {
            // The last child whose key is not after the chunk.
            let (mut low, mut high) = (0, node.count);
            while low < high {
                let middle = low.midpoint(high);
                if self.key(&node, middle)?.iter().le(first) {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            let Some(child) = low.checked_sub(1) else { return Ok(None) };
            let fields = Fields::little(&node.bytes);
            let key_at = child * self.step();
            let at = fields.u64(key_at + self.step() - ADDRESS_BYTES)?;
            if node.level == 0 {
                let (bytes, skipped_filters) = (fields.u32(key_at)?, fields.u32(key_at + 4)?);
                let is_stored = self.key(&node, child)? == first;
                return Ok(is_stored.then_some(Entry { at, bytes, skipped_filters }));
            }
            let below = self.node(source, at)?;
            if below.level + 1 != node.level {
                return Err(Fault::malformed("the index of the chunks is not a tree"));
            }
            node = below;
        }
    }

    /// Bytes of a key and an address. The position of a chunk has an index more, within a sample.
    fn step(&self) -> usize {
        KEY_BYTES + 8 * (self.rank + 1) + ADDRESS_BYTES
    }

    fn node(&self, source: &Source, at: u64) -> Result<Node, Fault> {
        let header = source.read_vec(at, HEADER_BYTES)?;
        let fields = Fields::little(&header);
        let (kind, level, count) = (fields.u8(4)?, fields.u8(5)?, usize::from(fields.u16(6)?));
        if !header.starts_with(SIGNATURE) || kind != CHUNKS || level == u8::MAX {
            return Err(Fault::malformed("the index of the chunks is damaged"));
        }
        let bytes = source.read_vec(at.saturating_add(HEADER_BYTES as u64), count * self.step())?;
        Ok(Node { level, count, bytes })
    }

    /// The indices of the first sample of the first chunk of a child.
    fn key(&self, node: &Node, child: usize) -> Result<Vec<usize>, Fault> {
        let fields = Fields::little(&node.bytes);
        let at = child * self.step() + KEY_BYTES;
        (0..self.rank).map(|axis| Ok(usize::try_from(fields.u64(at + 8 * axis)?).unwrap_or(usize::MAX))).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    const TREE: ChunkTree = ChunkTree { root: 0, rank: 1 };

    /// A node with children at the positions of chunks.
    fn node(level: u8, children: &[(u64, u64)]) -> Vec<u8> {
        let mut bytes = [SIGNATURE, &[CHUNKS, level, children.len() as u8, 0], &[0xFF; 16]].concat();
        for (first, at) in children {
            bytes.extend([7u32.to_le_bytes(), 2u32.to_le_bytes()].concat());
            [*first, 0, *at].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        }
        bytes
    }

    fn find(bytes: &[u8], first: usize) -> Result<Option<u64>, Fault> {
        let entry = TREE.find(&Source::memory(bytes.to_vec()), &[first])?;
        assert!(entry.is_none_or(|entry| (entry.bytes, entry.skipped_filters) == (7, 2)));
        Ok(entry.map(|entry| entry.at))
    }

    #[test]
    fn chunks_are_found_in_all_leaves() {
        let step = TREE.step() as u64;
        let leaf = |i: u64| 24 + 2 * step + i * (24 + 2 * step);
        let tree =
            [node(1, &[(10, leaf(0)), (30, leaf(1))]), node(0, &[(10, 1), (20, 2)]), node(0, &[(30, 3), (50, 4)])]
                .concat();
        for (first, at) in
            [(10, Some(1)), (20, Some(2)), (30, Some(3)), (50, Some(4)), (0, None), (25, None), (60, None)]
        {
            assert_eq!(find(&tree, first).unwrap(), at, "{first}");
        }
        for end in 0..tree.len() {
            assert!(find(&tree[..end], 50).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn damaged_trees_are_refused() {
        // A node that is its own child, another type, and a tree without end.
        assert!(find(&node(1, &[(0, 0)]), 0).is_err());
        let mut other = node(0, &[(0, 5)]);
        assert_eq!(find(&other, 0).unwrap(), Some(5));
        other[4] = 0;
        assert!(find(&other, 0).is_err());
        assert!(find(&node(MAX_LEVEL + 1, &[(0, 0)]), 0).is_err());
        assert_eq!(find(&node(0, &[]), 0).unwrap(), None);
    }
}
