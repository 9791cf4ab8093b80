//! The schedule of a pass over a stack: which planes of each value are computed in each slab, and which are kept.
//!
//! The schedule depends on extents along Z only, not on what is computed.

use super::plane_storage::{Need, PlaneStorage};
use super::reads::Reads;
use std::ops::Range;

/// A value whose planes flow through the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FlowValue {
    /// Number of planes of the value along Z.
    pub extent: usize,
    /// Index of the buffer that holds it.
    pub buffer: usize,
    /// Planes of zeros that are read after the last plane.
    pub zeros_after: usize,
}

/// An operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FlowNode {
    /// Indices of the values that are read, and which planes of them.
    pub inputs: Vec<(usize, Reads)>,
    /// Index of the value that is computed.
    pub output: usize,
    /// Output planes are computed in multiples of this.
    pub step: usize,
}

/// Values and operators in execution order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Flow {
    /// All values; nodes name a value by its index.
    pub values: Vec<FlowValue>,
    /// Operators in execution order.
    pub nodes: Vec<FlowNode>,
    /// Index of the value that is the input of the network.
    pub input: usize,
    /// Indices of the values that are outputs of the network.
    pub outputs: Vec<usize>,
    /// Number of buffers that hold the values; values may share one.
    pub buffers: usize,
}

impl Flow {
    /// Adds a value of `extent` planes in `buffer` and returns its index.
    pub(crate) fn value(&mut self, extent: usize, buffer: usize) -> usize {
        self.buffers = self.buffers.max(buffer + 1);
        self.values.push(FlowValue { extent, buffer, zeros_after: 0 });
        self.values.len() - 1
    }

    /// Adds an operator and returns its index.
    pub(crate) fn node(&mut self, inputs: Vec<(usize, Reads)>, output: usize) -> usize {
        for (value, reads) in &inputs {
            if let Some(value) = self.values.get_mut(*value) {
                value.zeros_after = value.zeros_after.max(reads.padding().1);
            }
        }
        let step = inputs.iter().map(|(_, reads)| reads.step()).max().unwrap_or(1);
        self.nodes.push(FlowNode { inputs, output, step });
        self.nodes.len() - 1
    }

    /// Returns the number of planes of the network's input.
    pub(crate) fn depth(&self) -> usize {
        self.values.get(self.input).map_or(0, |v| v.extent)
    }

    /// Returns the first plane that must be kept of each buffer, given how many planes of each value exist.
    fn kept(&self, known: &[usize]) -> Vec<isize> {
        let mut kept = vec![isize::MAX; self.buffers];
        let mut keep = |buffer: usize, plane: isize| {
            if let Some(kept) = kept.get_mut(buffer) {
                *kept = plane.min(*kept);
            }
        };
        for (value, known) in self.values.iter().zip(known) {
            keep(value.buffer, *known as isize);
        }
        for node in &self.nodes {
            let computed = known.get(node.output).copied().unwrap_or(0);
            for (input, reads) in &node.inputs {
                if let Some(value) = self.values.get(*input) {
                    keep(value.buffer, reads.first_kept(computed));
                }
            }
        }
        kept
    }

    /// Returns the end of the planes that each buffer holds, given how many planes and zeros of each value there are.
    fn ends(&self, known: &[usize], zeros: &[usize]) -> Vec<isize> {
        let mut ends = vec![0; self.buffers];
        for (value, (known, zeros)) in self.values.iter().zip(known.iter().zip(zeros)) {
            if let Some(end) = ends.get_mut(value.buffer) {
                *end = (*end).max((*known + zeros) as isize);
            }
        }
        ends
    }
}

/// Planes that move, and planes that are computed, in one slab.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Slab {
    /// Planes kept in each buffer when the slab starts: they move to the buffer's start if `base` changes.
    pub kept: Vec<Range<isize>>,
    /// Plane at the start of each buffer.
    pub base: Vec<isize>,
    /// New planes of each value.
    pub new: Vec<Range<usize>>,
    /// Planes of zeros that are written after each value.
    pub zeros: Vec<Range<usize>>,
    /// Number of planes that each buffer must hold.
    pub held: Vec<usize>,
}

impl Slab {
    /// Returns the planes that are written of value number `value`: new ones, and zeros after the last one.
    pub(crate) fn written(&self, flow_value: &FlowValue, value: usize) -> [Range<isize>; 2] {
        let range = |planes: Option<&Range<usize>>, after: usize| {
            planes.map_or(0..0, |p| (after + p.start) as isize..(after + p.end) as isize)
        };
        [range(self.new.get(value), 0), range(self.zeros.get(value), flow_value.extent)]
    }
}

/// Progress of a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Number of known planes of each value.
    known: Vec<usize>,
    /// Number of planes of zeros after each value.
    zeros: Vec<usize>,
    /// Plane at the start of each buffer.
    base: Vec<isize>,
    /// Maximum number of new planes of each value in one slab.
    quota: Vec<usize>,
    /// Whether the zeros after a value are added only in the slab after its last planes.
    late_zeros: bool,
}

impl Progress {
    /// Starts a pass whose slabs have `slab` input planes.
    pub(crate) fn new(flow: &Flow, slab: usize) -> Self {
        let known = vec![0; flow.values.len()];
        let base = flow.kept(&known);
        // Planes that remain after the last input plane are computed at the pace of a full pass, so that they need no
        // additional memory.
        let depth = flow.depth().max(1);
        let quota = flow.values.iter().map(|v| (slab * v.extent).div_ceil(depth).max(1)).collect();
        Self { zeros: known.clone(), known, base, quota, late_zeros: slab < depth }
    }

    /// Returns the plane at the start of each buffer.
    pub(crate) fn base(&self) -> &[isize] {
        &self.base
    }

    /// Returns whether all values are complete.
    pub(crate) fn is_done(&self, flow: &Flow) -> bool {
        flow.values.iter().zip(&self.known).all(|(v, known)| *known == v.extent)
    }

    /// Returns the number of known planes of a value.
    pub(crate) fn known(&self, value: usize) -> usize {
        self.known.get(value).copied().unwrap_or(0)
    }

    /// Adds `planes` input planes and returns what is computed. Without `storages`, buffers move their planes in every slab.
    pub(crate) fn advance(&mut self, flow: &Flow, planes: usize, storages: Option<&[PlaneStorage]>) -> Slab {
        let (kept, ends) = (flow.kept(&self.known), flow.ends(&self.known, &self.zeros));
        let (before, zeros_before) = (self.known.clone(), self.zeros.clone());
        if let (Some(known), Some(input)) = (self.known.get_mut(flow.input), flow.values.get(flow.input)) {
            *known = (*known + planes).min(input.extent);
        }
        self.end(flow, flow.input, &before);
        for node in &flow.nodes {
            let ready = |input: usize| self.known(input) + self.zeros.get(input).copied().unwrap_or(0);
            let computable =
                node.inputs.iter().map(|(input, reads)| reads.computable(ready(*input))).min().unwrap_or(0);
            let quota = self.quota.get(node.output).copied().unwrap_or(1).max(node.step);
            if let Some(known) = self.known.get_mut(node.output) {
                let most = (*known + quota) / node.step * node.step;
                *known = computable.min(most).max(*known);
            }
            self.end(flow, node.output, &before);
        }
        let new_ends = flow.ends(&self.known, &self.zeros);
        let mut held = Vec::with_capacity(flow.buffers);
        for (buffer, base) in self.base.iter_mut().enumerate() {
            let (keep, end) = (kept[buffer], new_ends[buffer]);
            let stays = storages
                .and_then(|storages| storages.get(buffer))
                .is_some_and(|storage| storage.has_room_to(end, *base));
            if !stays {
                *base = keep;
            }
            held.push(usize::try_from(end - keep).unwrap_or(0));
        }
        let ranges = |from: Vec<usize>, to: &[usize]| from.into_iter().zip(to).map(|(from, to)| from..*to).collect();
        Slab {
            kept: kept.into_iter().zip(ends).map(|(keep, end)| keep..end.max(keep)).collect(),
            base: self.base.clone(),
            new: ranges(before, &self.known),
            zeros: ranges(zeros_before, &self.zeros),
            held,
        }
    }

    /// Adds the zeros after a value that is complete.
    fn end(&mut self, flow: &Flow, value: usize, before: &[usize]) {
        let Some(of) = flow.values.get(value) else { return };
        let since = if self.late_zeros { before.get(value).copied().unwrap_or(0) } else { self.known(value) };
        if let Some(zeros) = self.zeros.get_mut(value).filter(|_| since == of.extent) {
            *zeros = of.zeros_after;
        }
    }
}

/// Runs the schedule of a pass in slabs of `slab` planes and shows each slab to `visit`.
fn walk(flow: &Flow, slab: usize, mut visit: impl FnMut(Slab)) {
    let mut progress = Progress::new(flow, slab);
    while !progress.is_done(flow) {
        let before = progress.known.clone();
        let zeros = progress.zeros.clone();
        let left = flow.depth() - progress.known(flow.input);
        visit(progress.advance(flow, slab.min(left), None));
        if progress.known == before && progress.zeros == zeros {
            break;
        }
    }
}

/// Requirements of a pass in slabs of some length.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PassNeeds {
    /// Requirements of each buffer.
    pub needs: Vec<Need>,
    /// How many planes of each value are read, counted for each reader and slab.
    pub planes_read: Vec<usize>,
}

/// Returns what a pass in slabs of `slab` planes needs.
pub(crate) fn pass_needs(flow: &Flow, slab: usize) -> PassNeeds {
    let mut needs = vec![Need::default(); flow.buffers];
    let mut planes_read = vec![0usize; flow.values.len()];
    walk(flow, slab, |s| {
        for ((need, held), kept) in needs.iter_mut().zip(&s.held).zip(&s.kept) {
            need.held = need.held.max(*held);
            need.is_kept |= !kept.is_empty();
        }
        let mut together = |value: usize, count: usize| {
            let Some(of) = flow.values.get(value) else { return };
            if let Some(need) = needs.get_mut(of.buffer) {
                need.together = need.together.max(count);
            }
        };
        for (value, (new, zeros)) in s.new.iter().zip(&s.zeros).enumerate() {
            together(value, new.len().max(zeros.len()));
        }
        for node in &flow.nodes {
            let Some(new) = s.new.get(node.output).filter(|new| !new.is_empty()) else { continue };
            for (input, reads) in &node.inputs {
                let count = reads.of(new).len();
                together(*input, count);
                if let Some(read) = planes_read.get_mut(*input) {
                    *read += count;
                }
            }
        }
    });
    PassNeeds { needs, planes_read }
}

/// Returns the planes that are moved or repeated within each buffer during a pass, for several choices of storages. The
/// schedule is the same for all of them, so it is run once.
pub(crate) fn moved(flow: &Flow, slab: usize, choices: &[Vec<PlaneStorage>]) -> Vec<Vec<usize>> {
    let start = Progress::new(flow, slab).base;
    let mut bases = vec![start; choices.len()];
    let mut moved = vec![vec![0usize; flow.buffers]; choices.len()];
    walk(flow, slab, |s| {
        for ((storages, base), moved) in choices.iter().zip(&mut bases).zip(&mut moved) {
            for (buffer, base) in base.iter_mut().enumerate() {
                let kept = &s.kept[buffer];
                let end = kept.start + s.held[buffer] as isize;
                if !storages[buffer].has_room_to(end, *base) && *base != kept.start {
                    *base = kept.start;
                    moved[buffer] += kept.len();
                }
            }
            for (value, of) in flow.values.iter().enumerate() {
                for written in s.written(of, value) {
                    moved[of.buffer] += storages[of.buffer].repeated(&written);
                }
            }
        }
    });
    moved
}

/// Returns for each buffer the first and last node that uses it. The input is passed before the first node, and the
/// outputs are read after the last one; positions of nodes are counted from 1.
pub(crate) fn lifetimes(flow: &Flow) -> Vec<(usize, usize)> {
    let mut lifetimes = vec![(usize::MAX, 0); flow.buffers];
    let mut uses = |value: usize, at: usize| {
        let Some(of) = flow.values.get(value) else { return };
        if let Some((first, last)) = lifetimes.get_mut(of.buffer) {
            (*first, *last) = ((*first).min(at), (*last).max(at));
        }
    };
    uses(flow.input, 0);
    for (index, node) in flow.nodes.iter().enumerate() {
        node.inputs.iter().map(|(input, _)| *input).chain([node.output]).for_each(|value| uses(value, index + 1));
    }
    flow.outputs.iter().for_each(|value| uses(*value, flow.nodes.len() + 1));
    lifetimes
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_kernels::conv::ConvShape;
    use proptest::prelude::*;

    /// An operator of a random network: which planes the output plane `z` reads of an input, from its definition.
    #[derive(Debug, Clone, Copy)]
    enum Kind {
        /// Kernel, stride, dilation, padding before and after; whether planes outside are read as zeros.
        Window([usize; 5], bool),
        /// Kernel, stride, padding before and after of a transposed convolution.
        Transposed([usize; 4]),
        Same,
    }

    impl Kind {
        fn outputs(self, extent: usize) -> Option<usize> {
            match self {
                Self::Window([kernel, stride, dilation, before, after], _) => {
                    Some((extent + before + after).checked_sub((kernel - 1) * dilation + 1)? / stride + 1)
                }
                Self::Transposed([kernel, stride, before, after]) => {
                    ((extent - 1) * stride + kernel).checked_sub(before + after).filter(|n| *n > 0)
                }
                Self::Same => Some(extent),
            }
        }

        fn read(self, z: usize, extent: usize) -> Vec<isize> {
            match self {
                Self::Window([kernel, stride, dilation, before, _], padded) => (0..kernel)
                    .map(|k| (z * stride + k * dilation) as isize - before as isize)
                    .filter(|z| padded || (0..extent as isize).contains(z))
                    .collect(),
                Self::Transposed([kernel, stride, before, after]) => {
                    // All planes that reach the output planes that are computed together with this one.
                    let outputs = (extent - 1) * stride + kernel - before - after;
                    let group = z / stride * stride..((z / stride + 1) * stride).min(outputs);
                    let reaches = |i: isize| {
                        let start = i * stride as isize - before as isize;
                        start < group.end as isize && start + kernel as isize > group.start as isize
                    };
                    (-(kernel as isize)..(extent + kernel) as isize).filter(|i| reaches(*i)).collect()
                }
                Self::Same => vec![z as isize],
            }
        }

        fn reads(self, extent: usize, outputs: usize) -> Reads {
            match self {
                Self::Window([kernel, stride, dilation, before, _], padded) => {
                    let three = |n| [n, 1, 1];
                    let shape = ConvShape {
                        kernel: three(kernel),
                        stride: three(stride),
                        dilation: three(dilation),
                        pad_before: three(before),
                    };
                    Reads::window(&shape, extent, outputs, padded)
                }
                Self::Transposed([kernel, stride, before, _]) => {
                    Reads::transposed(extent, outputs, kernel, stride, before)
                }
                Self::Same => Reads::same(extent),
            }
        }
    }

    /// A random network: for each node its kind, inputs and output.
    struct Network {
        flow: Flow,
        nodes: Vec<(Kind, Vec<usize>, usize)>,
    }

    fn network(depth: usize, choices: &[[usize; 8]]) -> Network {
        let mut flow = Flow::default();
        let mut nodes: Vec<(Kind, Vec<usize>, usize)> = Vec::new();
        flow.input = flow.value(depth, 0);
        for [what, from, kernel, stride, dilation, before, after, other] in choices.iter().copied() {
            // Rarely, an older value is read; mostly the last one.
            let last = flow.values.len() - 1;
            let from = if from % 3 == 0 { other % flow.values.len() } else { last };
            let extent = flow.values[from].extent;
            let (kernel, dilation) = (1 + kernel % 5, 1 + dilation % 2);
            let reach = (kernel - 1) * dilation;
            let padding = [before % (reach + 1), after % (reach + 1)];
            let kind = match what % 6 {
                0..3 => Kind::Window([kernel, 1 + stride % 3, dilation, padding[0], padding[1]], true),
                3 => Kind::Window([kernel, 1 + stride % 3, 1, padding[0].min(kernel / 2), 0], false),
                4 => {
                    let (stride, before, after) = (1 + stride % 3, before % kernel, after % kernel);
                    // Half of them without overlaps and cropping.
                    let exact = other % 2 == 0;
                    let more =
                        if exact { [stride, stride, 0, 0] } else { [stride + kernel - 1, stride, before, after] };
                    Kind::Transposed(more)
                }
                _ => Kind::Same,
            };
            let Some(outputs) = kind.outputs(extent).filter(|n| (1..=60).contains(n)) else { continue };
            let mut inputs = vec![from];
            if matches!(kind, Kind::Same) {
                // A sum or concatenation with any value of the same length.
                inputs.extend(
                    (0..flow.values.len()).filter(|v| *v != from && flow.values[*v].extent == extent).nth(other % 3),
                );
            }
            // A value that is read once may be overwritten in place.
            let unread = |v: usize| v != flow.input && !nodes.iter().any(|(_, inputs, _)| inputs.contains(&v));
            let in_place = matches!(kind, Kind::Same) && from == last && stride % 2 == 0 && unread(from);
            let buffer = if in_place { flow.values[from].buffer } else { flow.buffers };
            let output = flow.value(outputs, buffer);
            flow.node(inputs.iter().map(|v| (*v, kind.reads(flow.values[*v].extent, outputs))).collect(), output);
            nodes.push((kind, inputs, output));
        }
        Network { flow, nodes }
    }

    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Cell {
        Zero,
        Plane(usize, usize),
    }

    /// Returns the position of one of several planes that are read or written together: they lie side by side, except in a ring
    /// that repeats none.
    fn position(storage: &PlaneStorage, planes: &Range<isize>, base: isize, offset: usize) -> usize {
        let in_ring = storage.ring_position(planes.start + offset as isize);
        in_ring.unwrap_or_else(|| storage.position(planes, base).unwrap() + offset)
    }

    /// Runs a schedule on cells that hold the name of a plane, and checks every read. At most `most` planes are written
    /// together. Returns how many planes of each value were computed, and how many were moved or repeated within each buffer.
    fn run(
        network: &Network,
        slab: usize,
        storages: &[PlaneStorage],
        most: usize,
    ) -> Result<(Vec<usize>, Vec<usize>), TestCaseError> {
        let flow = &network.flow;
        let mut progress = Progress::new(flow, slab);
        let mut base = progress.base().to_vec();
        let mut cells: Vec<Vec<Cell>> = storages.iter().map(|storage| vec![Cell::Zero; storage.capacity]).collect();
        let mut moved = vec![0; storages.len()];
        let at = |plane: isize, base: isize| usize::try_from(plane - base).unwrap();
        while !progress.is_done(flow) {
            let left = flow.depth() - progress.known(flow.input);
            let before: Vec<usize> = (0..flow.values.len()).map(|v| progress.known(v)).collect();
            let now = progress.advance(flow, slab.min(left), Some(storages));
            for (buffer, cells) in cells.iter_mut().enumerate() {
                let kept = &now.kept[buffer];
                if now.base[buffer] != base[buffer] && !kept.is_empty() {
                    let (from, to) = (at(kept.start, base[buffer]), at(kept.start, now.base[buffer]));
                    cells.copy_within(from..from + kept.len(), to);
                    moved[buffer] += kept.len();
                }
            }
            base.clone_from(&now.base);
            let mut write = |value: usize, cells: &mut Vec<Vec<Cell>>| {
                let of = &flow.values[value];
                let (storage, cells) = (&storages[of.buffer], &mut cells[of.buffer]);
                let all = now.written(of, value).into_iter();
                let parts = all.flat_map(|planes| {
                    let end = planes.end;
                    planes.step_by(most).map(move |first| first..(first + most as isize).min(end))
                });
                for planes in parts {
                    for (place, plane) in planes.clone().enumerate() {
                        let inside = plane < of.extent as isize;
                        let at = position(storage, &planes, base[of.buffer], place);
                        cells[at] = if inside { Cell::Plane(value, plane as usize) } else { Cell::Zero };
                    }
                    for (from, to) in storage.repeats(&planes) {
                        cells.copy_within(from, to);
                    }
                    moved[of.buffer] += storage.repeated(&planes);
                }
            };
            write(flow.input, &mut cells);
            for (kind, inputs, output) in &network.nodes {
                let new = &now.new[*output];
                for z in new.clone() {
                    for (place, input) in inputs.iter().enumerate() {
                        let of = &flow.values[*input];
                        let reads = &flow.nodes.iter().find(|n| n.output == *output).unwrap().inputs[place].1;
                        let planes = reads.of(new);
                        for plane in kind.read(z, of.extent) {
                            let inside = (0..of.extent as isize).contains(&plane);
                            let expected = if inside { Cell::Plane(*input, plane as usize) } else { Cell::Zero };
                            let offset = at(plane, planes.start);
                            let place = position(&storages[of.buffer], &planes, base[of.buffer], offset);
                            let found = cells[of.buffer].get(place).copied();
                            prop_assert_eq!(found, Some(expected), "plane {} of value {}", plane, input);
                        }
                    }
                }
                write(*output, &mut cells);
                // What can be computed is computed, unless it would exceed the pace.
                let computable = (0..flow.values[*output].extent).take_while(|z| {
                    inputs.iter().all(|input| {
                        let known = (now.new[*input].end + now.zeros[*input].end) as isize;
                        kind.read(*z, flow.values[*input].extent).iter().all(|plane| *plane < known)
                    })
                });
                let step = if let Kind::Transposed([_, stride, ..]) = kind { *stride } else { 1 };
                let quota = (slab * flow.values[*output].extent).div_ceil(flow.depth()).max(step);
                prop_assert_eq!(new.end, computable.count().min((before[*output] + quota) / step * step));
                prop_assert!(new.is_empty() || new.start.is_multiple_of(step));
            }
        }
        Ok(((0..flow.values.len()).map(|v| progress.known(v)).collect(), moved))
    }

    /// Whether every value that is read in place has no other reader.
    fn is_valid(network: &Network) -> bool {
        let flow = &network.flow;
        network.nodes.iter().all(|(_, inputs, output)| {
            inputs.iter().all(|input| {
                let shared = flow.values[*input].buffer == flow.values[*output].buffer;
                let readers = network.nodes.iter().filter(|(_, inputs, _)| inputs.contains(input)).count();
                !shared || readers == 1
            })
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn every_plane_that_is_read_is_in_its_buffer(
            depth in 1usize..24,
            slab in 1usize..9,
            choices in prop::collection::vec(prop::array::uniform8(0usize..60), 1..14),
            slack in 0usize..5,
            most in 1usize..9,
        ) {
            let network = network(depth, &choices);
            prop_assume!(is_valid(&network));
            let needs = pass_needs(&network.flow, slab).needs;
            let moving = |slack: usize| -> Vec<PlaneStorage> { needs.iter().map(|n| PlaneStorage::moving(n.held + slack)).collect() };
            let rings: Vec<PlaneStorage> = needs.iter().map(PlaneStorage::ring).collect();
            let plain = needs.iter().map(|need| PlaneStorage::plain_ring(need, 1 + slack % 3)).collect();
            for storages in [moving(0), moving(slack), rings, plain] {
                let (known, moved_planes) = run(&network, slab, &storages, most)?;
                let extents: Vec<usize> = network.flow.values.iter().map(|v| v.extent).collect();
                prop_assert_eq!(known, extents);
                prop_assert_eq!(moved(&network.flow, slab, &[storages]), [moved_planes]);
            }
        }
    }

    #[test]
    fn a_chain_of_windows_keeps_the_overlap_of_its_kernels() {
        let mut flow = Flow::default();
        let shape = ConvShape { kernel: [3; 3], stride: [1; 3], dilation: [1; 3], pad_before: [1; 3] };
        let mut last = flow.value(64, 0);
        flow.input = last;
        for buffer in 1..6 {
            let next = flow.value(64, buffer);
            flow.node(vec![(last, Reads::window(&shape, 64, 64, true))], next);
            last = next;
        }
        // Four new planes and two that the next window also reads; nothing reads the last value.
        let needs = pass_needs(&flow, 4).needs;
        assert_eq!(needs.iter().map(|need| need.held).collect::<Vec<_>>(), [6, 6, 6, 6, 6, 4]);
        assert_eq!(needs.iter().map(|need| need.is_kept).collect::<Vec<_>>(), [true, true, true, true, true, false]);
    }
}
