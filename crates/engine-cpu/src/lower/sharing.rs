//! Decides which values share buffers: in-place steps, parts of concatenations, and slices.

use crate::lower::placement::Placement;
use crate::plan::{KernelPlan, Plan, PlanKind, Plans, reads};
use cytoscope_graph::{Graph, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// Which values share buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Every value has its own buffer.
    None,
    /// Results of in-place steps, and the parts of concatenations that nothing else reads.
    WithoutSkips,
    /// Results of in-place steps, and all parts of concatenations, also those that other nodes read (skip connections).
    All,
    /// Like [`Sharing::All`], but concatenations come first, because their parts are read again by the backward pass; their
    /// gradients are slices of one buffer, sums of gradients are accumulated in place, and inputs of normalizations are kept.
    KeepForBackward,
}

/// Decides for each blocked value of a planned graph which buffer it is in, its element type, and the width of its border.
pub(crate) fn place<'a>(graph: &'a Graph, plans: &Plans, sharing: Sharing) -> Placement<'a> {
    let mut placement = Placement::new(graph);
    plans.zero_points.iter().for_each(|(value, zero)| placement.store_as_bytes(*value, *zero));
    plans.halves.iter().for_each(|value| placement.store_as_f16(*value));
    share_buffers(graph, plans, &mut placement, sharing);
    placement
}

/// Lets values share buffers, and sets the borders.
fn share_buffers(graph: &Graph, plans: &Plans, placement: &mut Placement<'_>, sharing: Sharing) {
    let kernels =
        plans.nodes.iter().filter_map(|plan| if let Plan::Kernel(k) = plan { Some(k.as_ref()) } else { None });
    let mut sharer = Sharer {
        graph,
        kernels: kernels.collect(),
        reads: reads(graph, &plans.nodes, |value| plans.byte_value(value)),
        graph_inputs: graph.inputs.iter().copied().collect(),
        viewed: BTreeSet::new(),
        placement,
        sharing,
    };
    for planned in &sharer.kernels {
        for (input, width) in &planned.borders {
            sharer.placement.require_border(*input, *width);
        }
    }
    match sharing {
        Sharing::None => {}
        Sharing::WithoutSkips | Sharing::All => {
            sharer.overwrite_inputs();
            sharer.place_parts();
        }
        Sharing::KeepForBackward => {
            sharer.place_parts();
            sharer.place_slices();
            sharer.overwrite_inputs();
        }
    }
    sharer.placement.propagate_borders();
}

struct Sharer<'s, 'g> {
    graph: &'s Graph,
    kernels: Vec<&'s KernelPlan>,
    /// How often each value is read.
    reads: BTreeMap<ValueId, usize>,
    graph_inputs: BTreeSet<ValueId>,
    /// Values whose buffers also hold other values.
    viewed: BTreeSet<ValueId>,
    placement: &'s mut Placement<'g>,
    sharing: Sharing,
}

impl Sharer<'_, '_> {
    fn is_read_once(&self, value: ValueId) -> bool {
        self.reads.get(&value) == Some(&1)
    }

    /// Returns whether a value is computed by the graph.
    fn is_intermediate(&self, value: ValueId) -> bool {
        self.graph.constant(value).is_none() && !self.graph_inputs.contains(&value)
    }

    /// Lets steps that work in place overwrite their first input, if nothing else reads it.
    fn overwrite_inputs(&mut self) {
        for planned in self.kernels.clone() {
            let (Some(first), Some(output)) = (planned.inputs.first().copied(), planned.output) else { continue };
            let layout = |value: ValueId| Placement::plain_layout(self.graph, value);
            let is_free = self.is_read_once(first) && self.is_intermediate(first) && !self.viewed.contains(&first);
            let in_place = planned.kind.works_in_place(self.sharing) && is_free && layout(first) == layout(output);
            // If the input lies in the buffer of another value already, the result is written there.
            if in_place && !self.placement.alias_in_place(first, output) {
                self.placement.alias_into(output, first, 0);
            }
        }
    }

    /// Places the parts of concatenations in the buffers of their outputs.
    fn place_parts(&mut self) {
        let is_joined = |planned: &&KernelPlan| matches!(planned.kind, PlanKind::Joined { .. });
        let mut concatenations: Vec<&KernelPlan> = self.kernels.iter().copied().filter(is_joined).collect();
        if self.sharing != Sharing::KeepForBackward {
            // In reverse order, so that it is already known whether a concatenation's buffer is overwritten later. A
            // training step keeps the order of the graph: nothing is overwritten yet, and a part that several
            // concatenations read belongs to the first of them.
            concatenations.reverse();
        }
        for planned in concatenations {
            let (PlanKind::Joined { blocks, tables }, Some(output)) = (&planned.kind, planned.output) else { continue };
            let with_skips = self.sharing != Sharing::WithoutSkips && !self.placement.is_overwritten(output);
            for ((input, block), table) in planned.inputs.iter().zip(blocks).zip(tables) {
                // A part that is read again, even as another operand of this node, must not be overwritten. If a value
                // occurs several times, its first position is written in place and the others are copied.
                let is_kept = with_skips || self.is_read_once(*input);
                if table.is_none() && self.is_intermediate(*input) && is_kept {
                    self.placement.alias_into(*input, output, *block);
                    self.viewed.insert(output);
                }
            }
        }
    }

    /// Lets the slices of a value that nothing else reads share its buffer.
    fn place_slices(&mut self) {
        // The slices of each sliced value: first channel block and output.
        let mut slices: BTreeMap<ValueId, Vec<(usize, ValueId)>> = BTreeMap::new();
        for planned in &self.kernels {
            if let (PlanKind::Slice { block }, [whole], Some(output)) =
                (&planned.kind, &planned.inputs[..], planned.output)
            {
                slices.entry(*whole).or_default().push((*block, output));
            }
        }
        for (whole, slices) in slices {
            let is_alone = self.reads.get(&whole) == Some(&slices.len()) && are_disjoint(self.graph, &slices);
            if !is_alone || !self.is_intermediate(whole) {
                continue;
            }
            for (block, output) in slices {
                if self.placement.alias_into(output, whole, block) {
                    self.viewed.insert(whole);
                }
            }
        }
    }
}

/// Returns whether the slices (first block, output) of one value have no channel block in common.
fn are_disjoint(graph: &Graph, slices: &[(usize, ValueId)]) -> bool {
    let blocks = |id: ValueId| Placement::plain_layout(graph, id).map_or(0, |(l, _)| l.channels.div_ceil(l.block));
    let mut ranges: Vec<(usize, usize)> = slices.iter().map(|(first, id)| (*first, first + blocks(*id))).collect();
    ranges.sort_unstable();
    ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0)
}
