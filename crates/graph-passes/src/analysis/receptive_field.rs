//! Receptive field analysis: a forward walk over the graph with one interval per axis.
//!
//! For each value and each spatial axis of the first input, the walk tracks which axis of the value follows it, and
//! that position `o` on that axis reads input positions `scale·o + lo ..= scale·o + hi`. Each operator transforms these
//! numbers; an operator that mixes all positions makes the axis unbounded. The bounds are conservative: never too
//! small, at most a few voxels too large.

use std::collections::BTreeMap;

use super::{Analysis, probe};
use crate::all_infos;
use cytoscope_graph::infer::rules::{pad_plan, permutation, reduced_axes, slice_plan};
use cytoscope_graph::infer::{Info, resolve_axis};
use cytoscope_graph::{
    AxisEffect, AxisLengths, Budget, ConvAttrs, ConvTransposeAttrs, Graph, GraphError, GraphLimits, Interrupt, Node,
    Op, PadMode, Padding, PoolAttrs, Result, ValueId, gcd,
};

/// Receptive field of an output voxel along one axis, in input voxels. It includes what a tile must contain so that every tensor
/// between input and output has the positions that are read: one that is cropped begins after the tile, or ends before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AxisReach {
    /// Input voxels before the output voxel's own position; `None`: all.
    pub before: Option<usize>,
    /// Input voxels after the output voxel's own position; `None`: all.
    pub after: Option<usize>,
    /// Tile lengths and tile origins should be multiples of this (the product of the strides).
    pub multiple_of: usize,
}

/// Receptive field of an output voxel along all axes (z, y, x as the input has them).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceptiveField {
    /// One entry per spatial axis of the first input.
    pub axes: Vec<AxisReach>,
}

impl ReceptiveField {
    /// Whether every axis is bounded, so that cropped tiles equal the untiled result.
    pub fn is_bounded(&self) -> bool {
        self.axes.iter().all(|a| a.before.is_some() && a.after.is_some())
    }

    /// Returns the voxels to add on both sides of a tile on each axis so that its interior is exact: the larger reach,
    /// rounded up to a multiple of the strides. `None` if an axis is unbounded.
    pub fn halo(&self) -> Option<Vec<usize>> {
        self.axes.iter().map(|a| Some(a.before?.max(a.after?).next_multiple_of(a.multiple_of.max(1)))).collect()
    }
}

/// Geometry of one output relative to the first input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputGeometry {
    /// Name of the graph output.
    pub name: String,
    /// Length of its channel axis, if that is fixed.
    pub channels: Option<usize>,
    /// Output length divided by input length of each spatial axis, as a reduced fraction; `None` if the output has no
    /// such axis.
    pub scale: Vec<Option<(usize, usize)>>,
}

/// How a value depends on one input axis.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Dependence {
    /// No position of the value depends on the axis.
    Nothing,
    /// Each position along one axis of the value depends on a range of positions.
    Along(Track),
    /// Every position of the value may depend on all positions of the axis.
    Everything,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Track {
    axis: usize,
    /// Input voxels per step, as a reduced fraction.
    scale: (usize, usize),
    lo: f64,
    hi: f64,
}

impl Track {
    fn step(&self) -> f64 {
        self.scale.0 as f64 / self.scale.1 as f64
    }

    fn unbounded(self) -> Self {
        Self { lo: f64::NEG_INFINITY, hi: f64::INFINITY, ..self }
    }

    /// The same positions along another axis.
    fn moved_to(self, axis: usize) -> Dependence {
        Dependence::Along(Self { axis, ..self })
    }

    /// Composes with an operator: position `o` now reads what positions `o·num/den + lo ..= o·num/den + hi` read.
    fn through(mut self, (num, den): (usize, usize), lo: f64, hi: f64) -> Self {
        let step = self.step();
        self.lo += step * lo;
        self.hi += step * hi;
        let (n, d) = (self.scale.0.saturating_mul(num), self.scale.1.saturating_mul(den));
        let g = gcd(n, d).max(1);
        self.scale = (n / g, d / g);
        self
    }
}

/// Analyzes the receptive field of a graph; see the module documentation.
///
/// Free axes are tried with a length divisible by all common strides; fixed ones keep theirs.
///
/// # Errors
/// If there is no input, or the shapes are invalid for the trial lengths.
pub fn analyze(graph: &Graph) -> Result<Analysis> {
    const LENGTH: usize = 960;
    let limits = GraphLimits { tensor_elements: usize::MAX, ..GraphLimits::default() };
    let first = *graph.inputs.first().ok_or_else(|| GraphError::misused("graph", "no inputs", "at least one"))?;
    let mut shaped = graph.clone();
    for value in &mut shaped.values {
        let is_input = graph.inputs.iter().any(|&id| graph.value(id).name == value.name);
        value.shape = value.shape.as_ref().filter(|_| is_input).map(|s| probe(s, LENGTH));
    }
    let infos = all_infos(&shaped, &limits, &Budget::new(&shaped, Interrupt::default()))?;
    let rank = infos.get(&first).and_then(Info::rank).unwrap_or(0);
    let axes = rank.saturating_sub(2);
    let lengths = infos.get(&first).and_then(Info::fixed_shape).unwrap_or_default();
    let lengths = lengths.into_iter().skip(2).collect();
    let multiples = vec![1; axes];
    let mut walk = Walk { infos: &infos, axes, lengths, seen: BTreeMap::new(), multiples, normalizes: false };
    for &id in &graph.inputs {
        let has_same_rank = infos.get(&id).and_then(Info::rank) == Some(rank);
        let track = |a: usize| Dependence::Along(Track { axis: a + 2, scale: (1, 1), lo: 0.0, hi: 0.0 });
        let state = (0..axes).map(|a| if has_same_rank { track(a) } else { Dependence::Everything }).collect();
        walk.seen.insert(id, state);
    }
    for node in &graph.nodes {
        walk.node(node)?;
    }
    let mut field = ReceptiveField { axes: Vec::new() };
    for axis in 0..axes {
        let (mut before, mut after) = (Some(0usize), Some(0usize));
        for &id in &graph.outputs {
            match walk.state(id, axis) {
                Dependence::Nothing => {}
                Dependence::Everything => (before, after) = (None, None),
                Dependence::Along(t) => {
                    // A small tolerance for fractions such as thirds; integers are unaffected.
                    let up = |v: f64| v.is_finite().then(|| (v - 1e-6).ceil().max(0.0) as usize);
                    before = before.zip(up(-t.lo)).map(|(b, v)| b.max(v));
                    after = after.zip(up(t.hi)).map(|(a, v)| a.max(v));
                }
            }
        }
        let multiple_of = walk.multiples.get(axis).copied().unwrap_or(1);
        field.axes.push(AxisReach { before, after, multiple_of });
    }
    let outputs = graph
        .outputs
        .iter()
        .map(|&id| OutputGeometry {
            name: graph.value(id).name.clone(),
            channels: infos.get(&id).and_then(|i| i.shape.as_ref()?.get(1)?.fixed()),
            scale: (0..axes)
                .map(|a| if let Dependence::Along(t) = walk.state(id, a) { Some((t.scale.1, t.scale.0)) } else { None })
                .collect(),
        })
        .collect();
    let normalizes = walk.normalizes;
    Ok(Analysis { field, normalizes, outputs })
}

struct Walk<'g> {
    infos: &'g BTreeMap<ValueId, Info>,
    axes: usize,
    /// Lengths of the spatial axes of the first input.
    lengths: Vec<usize>,
    seen: BTreeMap<ValueId, Vec<Dependence>>,
    multiples: Vec<usize>,
    normalizes: bool,
}

/// Returns the window geometry along one axis: step, first and last position read.
fn window(axis: usize, input: &[usize], a: &ConvAttrs) -> Option<(usize, f64, f64)> {
    let s = axis.checked_sub(2)?;
    let (before, _) = a.padding.resolve(input.get(2..)?, &a.kernel, &a.strides, &a.dilations);
    let before = *before.get(s)? as f64;
    let reach = (a.kernel.get(s)?.saturating_sub(1) * a.dilations.get(s)?) as f64;
    Some((*a.strides.get(s)?, -before, reach - before))
}

fn pool_as_conv(a: &PoolAttrs) -> ConvAttrs {
    ConvAttrs {
        kernel: a.kernel.clone(),
        strides: a.strides.clone(),
        dilations: a.dilations.clone(),
        padding: a.padding.clone(),
        group: 1,
    }
}

impl Walk<'_> {
    fn state(&self, id: ValueId, axis: usize) -> Dependence {
        self.seen.get(&id).and_then(|s| s.get(axis)).copied().unwrap_or(Dependence::Nothing)
    }

    fn shape(&self, id: Option<ValueId>) -> Vec<usize> {
        id.and_then(|id| self.infos.get(&id)).and_then(Info::fixed_shape).unwrap_or_default()
    }

    fn ints(&self, id: Option<ValueId>) -> Option<Vec<i64>> {
        self.infos.get(&id?)?.ints()
    }

    fn node(&mut self, node: &Node) -> Result<()> {
        for axis in 0..self.axes {
            let result = match self.node_dependence(node, axis)? {
                Dependence::Along(t) => Dependence::Along(self.within_tile(node, axis, t)),
                other => other,
            };
            if let (Dependence::Along(t), Some(m)) = (result, self.multiples.get_mut(axis)) {
                *m = *m / gcd(*m, t.scale.0).max(1) * t.scale.0;
            }
            for id in node.outputs.iter().flatten() {
                self.seen.entry(*id).or_insert_with(|| vec![Dependence::Nothing; self.axes]);
                if let Some(slot) = self.seen.get_mut(id).and_then(|s| s.get_mut(axis)) {
                    *slot = result;
                }
            }
        }
        Ok(())
    }

    /// Returns a track that includes the first position of the tile and the last one that the output of a node has. What reads
    /// the output beyond its ends reads padding, or nothing, which is right at the ends of the whole image only.
    fn within_tile(&self, node: &Node, axis: usize, t: Track) -> Track {
        let output = self.shape(node.output(0)).get(t.axis).copied();
        let missing = self.lengths.get(axis).zip(output).map_or(0.0, |(input, n)| *input as f64 - n as f64 * t.step());
        Track { lo: t.lo.min(0.0), hi: t.hi.max(missing), ..t }
    }

    /// Merges all inputs, aligned at their last axes as in broadcasting.
    fn merged(&self, node: &Node, axis: usize, inputs: impl IntoIterator<Item = usize>) -> Dependence {
        let rank = self.shape(node.output(0)).len();
        let mut total = Dependence::Nothing;
        for index in inputs {
            let Some(id) = node.input(index) else { continue };
            let mut seen = self.state(id, axis);
            if let Dependence::Along(t) = &mut seen {
                t.axis += rank.saturating_sub(self.shape(Some(id)).len());
            }
            total = union(total, seen);
        }
        total
    }

    fn node_dependence(&mut self, node: &Node, axis: usize) -> Result<Dependence> {
        let x = node.input(0).map_or(Dependence::Nothing, |id| self.state(id, axis));
        let any = self.merged(node, axis, 0..node.inputs.len());
        let shape = self.shape(node.input(0));
        let Dependence::Along(t) = x else {
            return Ok(self.dependence_on_other_inputs(node, axis, x, any));
        };
        let everything = Dependence::Everything;
        let along = |t: Track| Dependence::Along(t);
        Ok(match &node.op {
            Op::Conv(a) | Op::ConvInteger(a) | Op::QLinearConv(a) => self.windowed(t, a, &shape),
            Op::FusedConv { conv, .. } => union(self.windowed(t, conv, &shape), self.merged(node, axis, [3])),
            Op::MaxPool(a) | Op::AveragePool(a) => self.windowed(t, &pool_as_conv(a), &shape),
            Op::ConvTranspose(a) => transposed(t, a, &shape)?,
            Op::GlobalAveragePool | Op::GlobalMaxPool => self.statistic(),
            Op::InstanceNormalization { .. } if t.axis < 2 => x,
            Op::InstanceNormalization { .. } => self.normalized(t),
            Op::GroupNormalization { .. } if t.axis == 0 => x,
            Op::GroupNormalization { .. } => self.normalized(t),
            Op::LayerNormalization { axis: from, .. } if t.axis < resolve_axis(*from, shape.len())? => x,
            Op::LayerNormalization { .. } => self.normalized(t),
            Op::Softmax { axis: a } | Op::LogSoftmax { axis: a } | Op::LpNormalization { axis: a, .. }
                if t.axis != resolve_axis(*a, shape.len())? =>
            {
                x
            }
            Op::Softmax { .. } | Op::LogSoftmax { .. } | Op::LpNormalization { .. } => self.normalized(t),
            Op::DynamicQuantizeLinear => self.normalized(t),
            Op::Reduce { keep_dims, noop_with_empty_axes, .. } => {
                self.reduced(node, t, shape.len(), *keep_dims, *noop_with_empty_axes)?
            }
            Op::ArgReduce { axis: a, keep_dims, .. } => {
                let removed = resolve_axis(*a, shape.len())?;
                if removed == t.axis {
                    self.statistic()
                } else {
                    t.moved_to(t.axis - usize::from(!*keep_dims && removed < t.axis))
                }
            }
            Op::BatchNormalization { .. }
            | Op::Activation(_)
            | Op::Unary(_)
            | Op::Clip
            | Op::Cast { .. }
            | Op::Identity
            | Op::QuantizeLinear { .. }
            | Op::DequantizeLinear { .. } => any,
            Op::Binary(_) | Op::Where | Op::PRelu => any,
            Op::Expand => self.merged(node, axis, [0]),
            Op::Shape { .. } | Op::Size => Dependence::Nothing,
            Op::Split { axis: a } => {
                if resolve_axis(*a, shape.len())? == t.axis {
                    everything
                } else {
                    x
                }
            }
            Op::Transpose { perm } => {
                let perm = permutation(perm, shape.len())?;
                perm.iter().position(|&p| p == t.axis).map_or(everything, |a| t.moved_to(a))
            }
            Op::Reshape { .. } | Op::Flatten { .. } | Op::Squeeze | Op::Unsqueeze => self.reshaped(node, t, &shape),
            Op::Slice => self.slice(node, t, &shape)?,
            Op::Pad { mode } => self.padded(node, *mode, t, shape.len())?,
            Op::Tile => {
                let is_unchanged = self.shape(node.output(0)).get(t.axis) == shape.get(t.axis);
                if is_unchanged { x } else { everything }
            }
            Op::Gather { axis: a } => self.gathered(node, resolve_axis(*a, shape.len())?, t),
            Op::DepthToSpace { block, .. } if t.axis >= 2 => {
                along(t.through((1, *block), -((*block - 1) as f64) / *block as f64, 0.0))
            }
            Op::SpaceToDepth { block } if t.axis >= 2 => along(t.through((*block, 1), 0.0, (*block - 1) as f64)),
            Op::MatMul | Op::MatMulInteger | Op::QLinearMatMul => self.matmul(node, axis, t, shape.len()),
            _ => self.dependence_by_effect(node, t, any, &shape)?,
        })
    }

    /// Returns the dependence if the first input does not depend on the axis at all, or depends on all of it.
    fn dependence_on_other_inputs(&self, node: &Node, axis: usize, x: Dependence, any: Dependence) -> Dependence {
        match &node.op {
            Op::Shape { .. } | Op::Size | Op::ConstantOfShape { .. } => Dependence::Nothing,
            // The first input does not have the axis; another input may, if the operator aligns them.
            Op::Binary(_) | Op::Where | Op::PRelu | Op::FusedConv { .. } => any,
            op if op.joined_axis().is_some() => any,
            Op::MatMul | Op::MatMulInteger | Op::QLinearMatMul if x == Dependence::Nothing => {
                self.matmul_right(node, axis)
            }
            _ if any == Dependence::Nothing => Dependence::Nothing,
            _ => Dependence::Everything,
        }
    }

    /// Returns the dependence of an operator that states its effect along an axis; [`Dependence::Everything`] for others.
    fn dependence_by_effect(&self, node: &Node, t: Track, any: Dependence, shape: &[usize]) -> Result<Dependence> {
        let (input, output) = (shape.get(t.axis).copied(), self.shape(node.output(0)).get(t.axis).copied());
        let constant = |index: usize| self.infos.get(&node.input(index)?)?.value.as_deref();
        let factor = node.op.factor_along(t.axis, shape, constant);
        let lengths = AxisLengths { axis: t.axis, rank: shape.len(), input, output, factor };
        Ok(match node.op.axis_effect(&lengths)? {
            Some(AxisEffect::Same) => Dependence::Along(t),
            Some(AxisEffect::SameOfAll) => any,
            Some(AxisEffect::Window { step, first, last }) => Dependence::Along(t.through(step, first, last)),
            Some(AxisEffect::All) | None => Dependence::Everything,
        })
    }

    fn reduced(&mut self, node: &Node, t: Track, rank: usize, keep: bool, noop: bool) -> Result<Dependence> {
        let axes = self.ints(node.input(1));
        if node.input(1).is_some() && axes.is_none() {
            return Ok(self.statistic());
        }
        let removed = reduced_axes(rank, axes.as_deref(), noop)?;
        Ok(if removed.contains(&t.axis) {
            self.statistic()
        } else if keep {
            Dependence::Along(t)
        } else {
            t.moved_to(t.axis - removed.iter().filter(|g| **g < t.axis).count())
        })
    }

    /// An axis survives a reshape if its length and the number of elements before it do not change.
    fn reshaped(&self, node: &Node, t: Track, shape: &[usize]) -> Dependence {
        let target = self.shape(node.output(0));
        let before: usize = shape.iter().take(t.axis).product();
        let length = shape.get(t.axis).copied();
        let same = |a: &usize| target.get(*a).copied() == length && target.iter().take(*a).product::<usize>() == before;
        (0..target.len()).find(same).map_or(Dependence::Everything, |a| t.moved_to(a))
    }

    fn padded(&self, node: &Node, mode: PadMode, t: Track, rank: usize) -> Result<Dependence> {
        let Some(pads) = self.ints(node.input(1)) else { return Ok(Dependence::Everything) };
        let plan = pad_plan(rank, &pads, self.ints(node.input(3)).as_deref())?;
        let (before, after) = plan.get(t.axis).copied().unwrap_or((0, 0));
        Ok(match mode {
            PadMode::Wrap if before != 0 || after != 0 => Dependence::Everything,
            _ => Dependence::Along(t.through((1, 1), -(before as f64), -(before as f64))),
        })
    }

    /// The indexed axis is replaced by the axes of the indices.
    fn gathered(&self, node: &Node, indexed: usize, t: Track) -> Dependence {
        let depth = self.shape(node.input(1)).len();
        match t.axis {
            at if at == indexed => Dependence::Everything,
            at if at > indexed => t.moved_to(at + depth - 1),
            _ => Dependence::Along(t),
        }
    }

    fn matmul(&self, node: &Node, axis: usize, t: Track, rank: usize) -> Dependence {
        if t.axis + 1 >= rank {
            return Dependence::Everything;
        }
        let left = t.moved_to(t.axis + self.shape(node.output(0)).len().saturating_sub(rank));
        union(left, self.matmul_right(node, axis))
    }

    fn statistic(&mut self) -> Dependence {
        self.normalizes = true;
        Dependence::Everything
    }

    /// The axis stays, but every position depends on all of it.
    fn normalized(&mut self, t: Track) -> Dependence {
        self.normalizes = true;
        Dependence::Along(t.unbounded())
    }

    fn windowed(&self, t: Track, a: &ConvAttrs, shape: &[usize]) -> Dependence {
        match window(t.axis, shape, a) {
            Some((stride, lo, hi)) => Dependence::Along(t.through((stride, 1), lo, hi)),
            None if t.axis == 0 => Dependence::Along(t),
            None => Dependence::Everything,
        }
    }

    /// The second operand of a matrix product: its inner axis is summed, its last axis stays last.
    fn matmul_right(&self, node: &Node, axis: usize) -> Dependence {
        let index = if node.op == Op::QLinearMatMul { 3 } else { 1 };
        let Some(id) = node.input(index) else { return Dependence::Nothing };
        let rank = self.shape(node.output(0)).len();
        let operand_rank = self.shape(Some(id)).len();
        match self.state(id, axis) {
            Dependence::Along(t) if t.axis + 2 == operand_rank || operand_rank < 2 => Dependence::Everything,
            Dependence::Along(t) => Dependence::Along(Track { axis: t.axis + rank.saturating_sub(operand_rank), ..t }),
            other => other,
        }
    }

    fn slice(&self, node: &Node, t: Track, shape: &[usize]) -> Result<Dependence> {
        let (Some(starts), Some(ends)) = (self.ints(node.input(1)), self.ints(node.input(2))) else {
            return Ok(Dependence::Everything);
        };
        let (axes, steps) = (self.ints(node.input(3)), self.ints(node.input(4)));
        let plan = slice_plan(shape.len(), &starts, &ends, axes.as_deref(), steps.as_deref())?;
        Ok(match plan.get(t.axis).copied().flatten() {
            None => Dependence::Along(t),
            // A start counted from the end depends on the tile's length.
            Some((start, _, step)) if start >= 0 && step > 0 => {
                Dependence::Along(t.through((step as usize, 1), start as f64, start as f64))
            }
            Some(_) => Dependence::Everything,
        })
    }
}

fn transposed(t: Track, a: &ConvTransposeAttrs, shape: &[usize]) -> Result<Dependence> {
    let Some(s) = t.axis.checked_sub(2) else {
        return Ok(if t.axis == 0 { Dependence::Along(t) } else { Dependence::Everything });
    };
    let geometry = a.geometry(shape.get(2..).unwrap_or_default())?;
    let get = |v: &[usize]| v.get(s).copied().unwrap_or(1).max(1);
    let stride = get(&a.strides);
    let before = geometry.before.get(s).copied().unwrap_or(0) as f64;
    let reach = ((get(&a.kernel) - 1) * get(&a.dilations)) as f64;
    if a.output_shape.is_some() && !matches!(a.padding, Padding::Explicit { .. }) && get(&a.kernel) != stride {
        return Ok(Dependence::Everything);
    }
    Ok(Dependence::Along(t.through((1, stride), (before - reach) / stride as f64, before / stride as f64)))
}

fn union(a: Dependence, b: Dependence) -> Dependence {
    match (a, b) {
        (Dependence::Nothing, other) | (other, Dependence::Nothing) => other,
        (Dependence::Along(x), Dependence::Along(y)) if x.axis == y.axis && x.scale == y.scale => {
            Dependence::Along(Track { lo: x.lo.min(y.lo), hi: x.hi.max(y.hi), ..x })
        }
        (Dependence::Along(t), Dependence::Everything) | (Dependence::Everything, Dependence::Along(t)) => {
            Dependence::Along(t.unbounded())
        }
        _ => Dependence::Everything,
    }
}
