//! Decides which values share a buffer, at which offset, with which element type and how wide a border.

use crate::step::Elem;
use crate::window::spatial;
use cytoscope_graph::{ElementType, Graph, ValueId};
use cytoscope_kernels::{Blocked, CHANNEL_BLOCK};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// Values of at most this many channels are stored in narrow blocks: one channel per block for floats, this many for
/// bytes.
const FEW_CHANNELS: usize = 4;

/// Placement of a value in the buffer of another value.
#[derive(Debug, Clone, Copy)]
struct Alias {
    /// The value that owns the buffer.
    into: ValueId,
    /// First channel block of the value in that buffer.
    block: usize,
    /// Whether an in-place step overwrites the value after it has been read.
    overwritten: bool,
}

/// Buffers and layouts of blocked values.
pub(crate) struct Placement<'a> {
    graph: &'a Graph,
    /// Values that share another value's buffer. Lookups compress the paths, as in a union-find structure.
    alias: RefCell<BTreeMap<ValueId, Alias>>,
    border: BTreeMap<ValueId, [usize; 3]>,
    /// Values stored as 16-bit floats.
    halves: BTreeSet<ValueId>,
    /// Zero points of values stored as bytes.
    zero_points: BTreeMap<ValueId, u8>,
}

impl<'a> Placement<'a> {
    pub(crate) fn new(graph: &'a Graph) -> Self {
        Self {
            graph,
            alias: RefCell::default(),
            border: BTreeMap::new(),
            halves: BTreeSet::new(),
            zero_points: BTreeMap::new(),
        }
    }

    /// Returns a value's layout without border and its batch size, or `None` if kernels cannot store it.
    pub(crate) fn plain_layout(graph: &Graph, value: ValueId) -> Option<(Blocked, usize)> {
        let v = graph.value(value);
        let narrow = match v.dtype {
            Some(ElementType::F32) => 1,
            Some(ElementType::U8 | ElementType::I8) => FEW_CHANNELS,
            _ => return None,
        };
        let shape = v.fixed_shape()?;
        let dims = spatial(&shape)?;
        if shape.contains(&0) {
            return None;
        }
        let block = if shape[1] <= FEW_CHANNELS { narrow } else { CHANNEL_BLOCK };
        Some((Blocked::new(shape[1], dims, [0; 3], block), shape[0]))
    }

    /// Stores `value` as 16-bit floats.
    pub(crate) fn store_as_f16(&mut self, value: ValueId) {
        self.halves.insert(value);
    }

    /// Stores `value` as bytes with the given zero point.
    pub(crate) fn store_as_bytes(&mut self, value: ValueId, zero_point: u8) {
        self.zero_points.insert(value, zero_point);
    }

    /// Returns the element type of a value.
    pub(crate) fn elem(&self, value: ValueId) -> Elem {
        match self.graph.value(value).dtype {
            Some(ElementType::U8 | ElementType::I8) => {
                Elem::U8 { zero_point: self.zero_points.get(&value).copied().unwrap_or(0) }
            }
            _ if self.halves.contains(&value) => Elem::F16,
            _ => Elem::F32,
        }
    }

    /// Returns the bytes of a value as it is stored, without its border; 0 if its shape is unknown.
    pub(crate) fn value_bytes(&self, value: ValueId) -> u64 {
        let shape = self.graph.value(value).fixed_shape();
        let elements = shape.map_or(0, |s| s.iter().fold(1u64, |n, len| n.saturating_mul(*len as u64)));
        elements.saturating_mul(self.elem(value).size_bytes() as u64)
    }

    /// Requires a border of at least this width (Z, Y, X) around a value.
    pub(crate) fn require_border(&mut self, value: ValueId, width: [usize; 3]) {
        let border = self.border.entry(value).or_default();
        *border = std::array::from_fn(|a| border[a].max(width[a]));
    }

    /// Places `value` in the buffer of `into`, starting at channel block `block`. Returns false if that is not possible.
    pub(crate) fn alias_into(&mut self, value: ValueId, into: ValueId, block: usize) -> bool {
        self.put(value, Alias { into, block, overwritten: false })
    }

    /// Lets the step that computes `result` overwrite `value` in place. Returns false if that is not possible.
    pub(crate) fn alias_in_place(&mut self, value: ValueId, result: ValueId) -> bool {
        self.put(value, Alias { into: result, block: 0, overwritten: true })
    }

    fn put(&mut self, value: ValueId, alias: Alias) -> bool {
        let taken = self.alias.get_mut().contains_key(&value);
        if value == alias.into || taken || self.root(alias.into).0 == value || self.elem(value) != self.elem(alias.into)
        {
            return false;
        }
        self.alias.get_mut().insert(value, alias);
        true
    }

    /// Returns whether an in-place step overwrites the buffer of `value` after `value` was computed.
    pub(crate) fn is_overwritten(&self, value: ValueId) -> bool {
        self.find(value).overwritten
    }

    /// Returns the value that owns the buffer of `value`, and the first channel block of `value` in it.
    pub(crate) fn root(&self, value: ValueId) -> (ValueId, usize) {
        let Alias { into, block, .. } = self.find(value);
        (into, block)
    }

    /// Follows aliases to the owner of the buffer and shortens the path (path compression).
    fn find(&self, value: ValueId) -> Alias {
        let mut alias = self.alias.borrow_mut();
        let mut path = Vec::new();
        let mut owner = value;
        while let Some(next) = alias.get(&owner) {
            path.push(owner);
            owner = next.into;
        }
        let mut found = Alias { into: owner, block: 0, overwritten: false };
        for id in path.into_iter().rev() {
            let Some(step) = alias.get_mut(&id) else { continue };
            found = Alias {
                into: owner,
                block: found.block + step.block,
                overwritten: found.overwritten || step.overwritten,
            };
            *step = found;
        }
        found
    }

    /// Widens the border of every buffer to the widest border of any value in it.
    pub(crate) fn propagate_borders(&mut self) {
        let wanted: Vec<_> = self.border.iter().map(|(v, w)| (*v, *w)).collect();
        for (value, width) in wanted {
            let root = self.root(value).0;
            self.require_border(root, width);
        }
    }

    /// Returns a value's layout in its buffer, with border, and its batch size.
    pub(crate) fn layout(&self, value: ValueId) -> Option<(Blocked, usize)> {
        let (mut layout, images) = Self::plain_layout(self.graph, value)?;
        layout.halo = self.border.get(&self.root(value).0).copied().unwrap_or_default();
        Some((layout, images))
    }
}
