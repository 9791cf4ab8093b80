//! Which values share a buffer, what its elements are, how wide its border is, and where each lies in it.

use crate::step::Elem;
use crate::window::spatial;
use cytoscope_graph::{ElementType, Graph, ValueId};
use cytoscope_kernels::{Blocked, CHANNEL_BLOCK};
use std::collections::{BTreeMap, BTreeSet};

/// Up to this many channels a value of floats is kept as single planes, one of bytes in blocks of so many.
const FEW_CHANNELS: usize = 4;

/// Places of blocked values.
pub(crate) struct Places<'a> {
    graph: &'a Graph,
    /// Value -> the value whose buffer it lies in, and its first channel block there.
    alias: BTreeMap<ValueId, (ValueId, usize)>,
    border: BTreeMap<ValueId, [usize; 3]>,
    /// Values whose buffer a step that works in place writes its result to.
    overwritten: BTreeSet<ValueId>,
    /// Values kept as 16-bit floats.
    halves: BTreeSet<ValueId>,
    /// The byte of 0 of values kept as bytes.
    zero_points: BTreeMap<ValueId, u8>,
}

impl<'a> Places<'a> {
    pub(crate) fn new(graph: &'a Graph) -> Self {
        Self {
            graph,
            alias: BTreeMap::new(),
            border: BTreeMap::new(),
            overwritten: BTreeSet::new(),
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
        if value == into || self.alias.contains_key(&value) || self.root(into).0 == value {
            return false;
        }
        if self.elem(value) != self.elem(into) {
            return false;
        }
        self.alias.insert(value, (into, block));
        true
    }

    /// Lets the step that makes `result` work in place of `value`. False if that is not possible.
    pub(crate) fn overwrite(&mut self, value: ValueId, result: ValueId) -> bool {
        let done = self.put_into(value, result, 0);
        if done {
            self.overwritten.insert(value);
        }
        done
    }

    /// Whether a step that works in place overwrites the buffer `value` lies in, after `value` was made.
    pub(crate) fn is_overwritten(&self, value: ValueId) -> bool {
        let mut at = value;
        loop {
            if self.overwritten.contains(&at) {
                return true;
            }
            match self.alias.get(&at) {
                Some((next, _)) => at = *next,
                None => return false,
            }
        }
    }

    /// The value whose buffer `value` lies in, and the first block there.
    pub(crate) fn root(&self, value: ValueId) -> (ValueId, usize) {
        let (mut at, mut block) = (value, 0);
        while let Some((next, offset)) = self.alias.get(&at) {
            block += offset;
            at = *next;
        }
        (at, block)
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
