//! Which values share a buffer, what its elements are, how wide its border is, and where each lies in it.

use crate::step::Elem;
use crate::window::spatial;
use cytoscope_graph::{ElementType, Graph, ValueId};
use cytoscope_kernels::{Blocked, CHANNEL_BLOCK};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// Up to this many channels a value of floats is kept as single planes, one of bytes in blocks of so many.
const FEW_CHANNELS: usize = 4;

/// A value in the buffer of another.
#[derive(Debug, Clone, Copy)]
struct Alias {
    /// The other.
    into: ValueId,
    /// The first channel block there.
    block: usize,
    /// Whether a step that works in place writes there once the value was read.
    overwritten: bool,
}

/// Places of blocked values.
pub(crate) struct Places<'a> {
    graph: &'a Graph,
    /// Where values lie that have no buffer of their own. Looking one up shortens its way.
    alias: RefCell<BTreeMap<ValueId, Alias>>,
    border: BTreeMap<ValueId, [usize; 3]>,
    /// Values kept as 16-bit floats.
    halves: BTreeSet<ValueId>,
    /// The byte of 0 of values kept as bytes.
    zero_points: BTreeMap<ValueId, u8>,
}

impl<'a> Places<'a> {
    pub(crate) fn new(graph: &'a Graph) -> Self {
        Self {
            graph,
            alias: RefCell::default(),
            border: BTreeMap::new(),
            halves: BTreeSet::new(),
            zero_points: BTreeMap::new(),
        }
    }

    /// The layout (without border) and batch of a value the kernels can hold.
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

    /// Keeps `value` as 16-bit floats.
    pub(crate) fn keep_half(&mut self, value: ValueId) {
        self.halves.insert(value);
    }

    /// Keeps `value` as bytes with this one for 0.
    pub(crate) fn keep_bytes(&mut self, value: ValueId, zero_point: u8) {
        self.zero_points.insert(value, zero_point);
    }

    /// What the elements of a value are.
    pub(crate) fn elem(&self, value: ValueId) -> Elem {
        match self.graph.value(value).dtype {
            Some(ElementType::U8 | ElementType::I8) => {
                Elem::U8 { zero_point: self.zero_points.get(&value).copied().unwrap_or(0) }
            }
            _ if self.halves.contains(&value) => Elem::F16,
            _ => Elem::F32,
        }
    }

    /// Asks for a border of at least this width around a value.
    pub(crate) fn need_border(&mut self, value: ValueId, width: [usize; 3]) {
        let border = self.border.entry(value).or_default();
        *border = std::array::from_fn(|a| border[a].max(width[a]));
    }

    /// Puts `value` into the buffer of `into`, from channel block `block` on. False if it already lies elsewhere.
    pub(crate) fn put_into(&mut self, value: ValueId, into: ValueId, block: usize) -> bool {
        self.put(value, Alias { into, block, overwritten: false })
    }

    /// Lets the step that makes `result` work in place of `value`. False if that is not possible.
    pub(crate) fn overwrite(&mut self, value: ValueId, result: ValueId) -> bool {
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

    /// Whether a step that works in place overwrites the buffer `value` lies in, after `value` was made.
    pub(crate) fn is_overwritten(&self, value: ValueId) -> bool {
        self.find(value).overwritten
    }

    /// The value whose buffer `value` lies in, and the first block there.
    pub(crate) fn root(&self, value: ValueId) -> (ValueId, usize) {
        let Alias { into, block, .. } = self.find(value);
        (into, block)
    }

    /// Where a value lies in the end. Every value on the way is pointed there, so that chains cost no more than their length.
    fn find(&self, value: ValueId) -> Alias {
        let mut alias = self.alias.borrow_mut();
        let mut way = Vec::new();
        let mut at = value;
        while let Some(next) = alias.get(&at) {
            way.push(at);
            at = next.into;
        }
        let mut found = Alias { into: at, block: 0, overwritten: false };
        for id in way.into_iter().rev() {
            let Some(step) = alias.get_mut(&id) else { continue };
            found =
                Alias { into: at, block: found.block + step.block, overwritten: found.overwritten || step.overwritten };
            *step = found;
        }
        found
    }

    /// Gives every buffer the widest border any value in it needs.
    pub(crate) fn settle_borders(&mut self) {
        let wanted: Vec<_> = self.border.iter().map(|(v, w)| (*v, *w)).collect();
        for (value, width) in wanted {
            let root = self.root(value).0;
            self.need_border(root, width);
        }
    }

    /// The layout of a value in its buffer, border included.
    pub(crate) fn layout(&self, value: ValueId) -> Option<(Blocked, usize)> {
        let (mut layout, images) = Self::plain_layout(self.graph, value)?;
        layout.halo = self.border.get(&self.root(value).0).copied().unwrap_or_default();
        Some((layout, images))
    }
}
