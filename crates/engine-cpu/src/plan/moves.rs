//! Plans operators that move or interpolate voxels: concatenations, slices, padding and resizing.

use super::gradient_kind::GradientKind;
use super::inference::byte_table;
use super::{Fused, KernelPlan, PlanKind, Planner};
use crate::window::{MAX_TABLE, pad_table};
use cytoscope_graph::infer::rules::pad_plan;
use cytoscope_graph::{Node, Op, PadMode, ResizeAttrs, ResizeMode, Tensor, ValueId};
use cytoscope_graph_passes::channel_parts;
use cytoscope_kernels::conv::Quantizer;
use cytoscope_kernels::resize::Tap;
use cytoscope_kernels::{Blocked, CHANNEL_BLOCK};

/// The kind of a plan and the values that it reads.
type Planned = (PlanKind, Vec<ValueId>);

impl Planner<'_> {
    /// Plans a node that moves or interpolates floats; `None` for other operators and where the kernels do not support it.
    pub(super) fn float_move(&self, node: &Node, input: ValueId, output: ValueId) -> Option<Planned> {
        let kind = match &node.op {
            Op::Concat { .. } => return self.concat(node),
            Op::Pad { mode } => self.pad(node, *mode, input)?,
            Op::Resize(attrs) => PlanKind::Resample(self.resize_tables(attrs, &node.inputs, input, output)?),
            _ => return None,
        };
        Some((kind, vec![input]))
    }

    /// Plans a node that moves bytes with the same quantization parameters as its output; `None` for other operators and where
    /// the kernels do not support it.
    pub(super) fn byte_move(&self, node: &Node, input: ValueId, output: ValueId) -> Option<PlanKind> {
        match &node.op {
            // Bytes are padded with their zero point.
            Op::Pad { mode } => {
                self.pad(node, *mode, input).filter(|k| !matches!(k, PlanKind::Pad { value, .. } if *value != 0.0))
            }
            Op::Resize(attrs) => {
                let tables = self.resize_tables(attrs, &node.inputs, input, output)?;
                is_nearest(&tables).then_some(PlanKind::Resample(tables))
            }
            _ => None,
        }
    }

    /// Plans a node of a training step that moves or interpolates voxels; `None` for other operators and where the kernels do
    /// not support it.
    pub(super) fn training_move(&self, node: &Node, x: ValueId, output: ValueId) -> Option<Planned> {
        let is_blocked = self.blocked.contains(&x);
        let kind = match &node.op {
            Op::Concat { .. } => return self.joined_parts(node, output),
            Op::Slice if is_blocked => self.slice(node, x, output)?,
            Op::Resize(attrs) if is_blocked => {
                PlanKind::Resample(self.resize_tables(attrs, &node.inputs, x, output)?)
            }
            _ => return None,
        };
        Some((kind, vec![x]))
    }

    /// Plans the gradient of an operator that interpolates voxels, given that of its output; `None` for other operators and
    /// where the kernels do not support it.
    pub(super) fn move_gradient(
        &self,
        node: &Node,
        of: &Op,
        x: ValueId,
        dy: ValueId,
    ) -> Option<(GradientKind, Vec<ValueId>)> {
        match of {
            Op::Resize(attrs) => {
                self.layout(x)?;
                // The last input of a gradient node is the output's gradient, not an argument of the resize.
                let (_, arguments) = node.inputs.split_last()?;
                Some((GradientKind::Resample(self.resize_tables(attrs, arguments, x, dy)?), vec![dy]))
            }
            _ => None,
        }
    }

    /// Plans a concatenation along channels if at least one part is blocked.
    fn concat(&self, node: &Node) -> Option<Planned> {
        let (whole, images) = self.layout(node.output(0)?)?;
        let inputs = channel_parts(self.graph, node)?;
        if !inputs.iter().any(|v| self.is_cheap_in_blocks(*v))
            || inputs.iter().any(|v| self.graph.constant(*v).is_some())
        {
            return None;
        }
        let parts = inputs.iter().map(|value| self.layout(*value)).collect::<Option<Vec<_>>>()?;
        let tables = inputs.iter().map(|_| None).collect();
        Some((joined((whole, images), &parts, tables)?, inputs))
    }

    /// Plans a concatenation along channels of values in blocks of full width.
    fn joined_parts(&self, node: &Node, output: ValueId) -> Option<Planned> {
        let whole = self.full_block_layout(output)?;
        let inputs = channel_parts(self.graph, node)?;
        if !inputs.iter().any(|i| self.blocked.contains(i)) {
            return None;
        }
        let blocks = first_blocks(whole, inputs.iter().map(|i| self.full_block_layout(*i)))?;
        let tables = inputs.iter().map(|_| None).collect();
        Some((PlanKind::Joined { blocks, tables }, inputs))
    }

    /// Plans a concatenation of bytes along channels: parts with the output's quantization parameters are written in
    /// place, others are converted by a table. `None` for other operators.
    pub(super) fn joined_bytes(&mut self, node: &Node) -> Option<Fused> {
        let parts = channel_parts(self.graph, node)?;
        let (next, quantizer, result) = self.next_quantize(node.output(0)?)?;
        let whole = self.layout(result)?;
        let parts = parts.iter().map(|value| self.dequantized.get(value).copied()).collect::<Option<Vec<_>>>()?;
        let layouts = parts.iter().map(|from| self.layout(from.bytes)).collect::<Option<Vec<_>>>()?;
        let mut tables = Vec::with_capacity(parts.len());
        for from in &parts {
            let same = Quantizer::new(from.scale, from.zero_point) == quantizer;
            tables.push(if same { None } else { Some(byte_table(*from, quantizer, |t| Some(t.clone()))?) });
        }
        let inputs = parts.iter().map(|from| from.bytes).collect();
        let kind = joined(whole, &layouts, tables)?;
        self.zero_points.insert(result, quantizer.zero_point);
        Some((KernelPlan::new(node, kind, inputs, Some(result)), vec![next]))
    }

    /// Plans a slice of whole channel blocks: the gradient of a concatenation.
    fn slice(&self, node: &Node, x: ValueId, output: ValueId) -> Option<PlanKind> {
        let one = |i: usize| self.constant(node, i).and_then(Tensor::to_i64_vec);
        let (start, axis) = (one(1)?, one(3)?);
        let ([start], [1]) = (&start[..], &axis[..]) else { return None };
        let ((whole, _), (part, _)) = (self.full_block_layout(x)?, self.full_block_layout(output)?);
        let start = usize::try_from(*start).ok()?;
        let ends_on_block = start + part.channels == whole.channels || part.channels.is_multiple_of(CHANNEL_BLOCK);
        let fits =
            node.input(4).is_none() && start.is_multiple_of(CHANNEL_BLOCK) && ends_on_block && part.dims == whole.dims;
        fits.then_some(PlanKind::Slice { block: start / CHANNEL_BLOCK })
    }

    /// Plans padding and cropping along the spatial axes by constant amounts.
    fn pad(&self, node: &Node, mode: PadMode, input: ValueId) -> Option<PlanKind> {
        let shape = self.graph.value(input).fixed_shape()?;
        let rank = shape.len();
        let axes = match node.input(3) {
            Some(_) => Some(self.constant(node, 3)?.as_i64()?),
            None => None,
        };
        let amounts = pad_plan(rank, self.constant(node, 1)?.as_i64()?, axes).ok()?;
        let (outer, spatial) = amounts.split_at_checked(2)?;
        if !(1..=3).contains(&spatial.len()) || outer.iter().any(|amounts| *amounts != (0, 0)) || shape.contains(&0) {
            return None;
        }
        let mut tables: [Vec<Tap>; 3] = std::array::from_fn(|_| vec![Tap { low: 0, high: 0, weight: 0.0 }]);
        let mut from_input = true;
        for (axis, (before, after)) in (2..rank).zip(spatial) {
            match pad_table(mode, shape[axis], *before, *after) {
                Some(table) => tables[3 + axis - rank] = table,
                None => from_input = false,
            }
        }
        if from_input {
            return Some(PlanKind::Resample(Box::new(tables)));
        }
        if mode != PadMode::Constant {
            return None;
        }
        let value = match node.input(2) {
            Some(_) => self.floats(node, 2)?.first().copied().unwrap_or_default(),
            None => 0.0,
        };
        let mut all = [0isize; 3];
        for (to, (before, _)) in all.iter_mut().rev().zip(spatial.iter().rev()) {
            *to = isize::try_from(*before).ok()?;
        }
        Some(PlanKind::Pad { before: all, value })
    }

    /// Returns the interpolation tables (Z, Y, X) of a resize with these inputs that changes the shape of `from` to that of `to`.
    /// `None` if its scales are computed at run time, or if the kernel does not support it.
    fn resize_tables(
        &self,
        attrs: &ResizeAttrs,
        inputs: &[Option<ValueId>],
        from: ValueId,
        to: ValueId,
    ) -> Option<Box<[Vec<Tap>; 3]>> {
        let (from, to) = (self.graph.value(from).fixed_shape()?, self.graph.value(to).fixed_shape()?);
        let input = |i: usize| inputs.get(i).copied().flatten();
        let constant = |i: usize| input(i).and_then(|id| self.graph.constant(id)).map(|t| t.as_ref());
        // The reference executor handles scales that are computed at run time.
        let known = |i: usize| input(i).is_none() || constant(i).is_some();
        if !known(2) || !known(3) {
            return None;
        }
        tables_between(attrs, &from, &to, constant(2), constant(3))
    }
}

/// Returns how the parts of a concatenation along the channels are joined, each converted by its table, if any: side by
/// side in one buffer if every part starts at a block boundary of `whole`, else by copying their channels. `None` if the
/// parts do not fit.
fn joined(
    whole: (Blocked, usize),
    parts: &[(Blocked, usize)],
    tables: Vec<Option<Box<[u8; 256]>>>,
) -> Option<PlanKind> {
    if let Some(blocks) = first_blocks(whole, parts.iter().copied().map(Some)) {
        return Some(PlanKind::Joined { blocks, tables });
    }
    let (layout, images) = whole;
    let fits = parts.iter().all(|(part, n)| part.dims == layout.dims && *n == images);
    let channels = parts.iter().map(|(part, _)| part.channels).sum::<usize>();
    (fits && channels == layout.channels).then_some(PlanKind::Join { tables })
}

/// Returns the first channel block of each part in a buffer of layout `whole` for `images` images. `None` if a part has
/// no layout, does not fit, or does not start at a block boundary.
fn first_blocks(
    (whole, images): (Blocked, usize),
    parts: impl Iterator<Item = Option<(Blocked, usize)>>,
) -> Option<Vec<usize>> {
    let (mut channels, mut blocks) = (0usize, Vec::new());
    for part in parts {
        let (part, n) = part?;
        let fits = channels.is_multiple_of(whole.block) && part.block == whole.block && part.dims == whole.dims;
        if !fits || n != images {
            return None;
        }
        blocks.push(channels / whole.block);
        channels += part.channels;
    }
    Some(blocks)
}

/// Returns whether a resize only selects voxels, without interpolation.
fn is_nearest(tables: &[Vec<Tap>; 3]) -> bool {
    tables.iter().flatten().all(|t| t.weight == 0.0)
}

/// Returns the interpolation tables (Z, Y, X) of a resize from shape `from` to shape `to` (N, C, space), or `None` if
/// the kernel does not support it. Positions are those of the reference executor, because other arithmetic could round a
/// position half-way between two voxels to the other side.
fn tables_between(
    attrs: &ResizeAttrs,
    from: &[usize],
    to: &[usize],
    scales: Option<&Tensor>,
    sizes: Option<&Tensor>,
) -> Option<Box<[Vec<Tap>; 3]>> {
    if from.len() != to.len() || from.get(..2) != to.get(..2) || attrs.axes.is_some() {
        return None;
    }
    let factors = attrs.factors(from, scales, sizes).ok()?;
    if factors.iter().take(2).any(|f| *f != 1.0) {
        return None;
    }
    let mut tables: [Vec<Tap>; 3] = std::array::from_fn(|_| vec![Tap { low: 0, high: 0, weight: 0.0 }]);
    for axis in 2..from.len() {
        tables[3 + axis - from.len()] = axis_table(attrs, from[axis], to[axis], *factors.get(axis)?)?;
    }
    Some(Box::new(tables))
}

/// Returns the interpolation table of one axis, from `input` to `output` voxels; `None` if the kernel does not support it, and for
/// axes that are longer than [`MAX_TABLE`].
fn axis_table(attrs: &ResizeAttrs, input: usize, output: usize, factor: f64) -> Option<Vec<Tap>> {
    if input == 0
        || output > MAX_TABLE
        || attrs.antialias
        || attrs.mode == ResizeMode::Cubic
        || (attrs.mode == ResizeMode::Linear && attrs.exclude_outside)
    {
        return None;
    }
    if input == output && factor == 1.0 {
        return Some((0..output).map(|i| Tap { low: i, high: i, weight: 0.0 }).collect());
    }
    let last = (input - 1) as f64;
    (0..output)
        .map(|o| {
            let at = attrs.coordinate(o, input, output, factor)?;
            Some(match attrs.mode {
                ResizeMode::Nearest => {
                    let i = attrs.nearest_source(o, input, output, factor)?;
                    Tap { low: i, high: i, weight: 0.0 }
                }
                _ => {
                    let at = at.clamp(0.0, last);
                    let low = at.floor();
                    let high = (low + 1.0).min(last);
                    Tap { low: low as usize, high: high as usize, weight: (at - low) as f32 }
                }
            })
        })
        .collect()
}
