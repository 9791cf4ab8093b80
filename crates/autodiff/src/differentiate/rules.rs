//! One rule per operator, which expresses the gradients of its inputs in terms of the gradient of its output.

use super::Backward;
use cytoscope_graph::infer::resolve_axis;
use cytoscope_graph::{
    Activation, BinaryOp, ConvAttrs, ConvTransposeAttrs, Dim, ElementType, GraphError, Node, Op, PadMode, Padding,
    ReduceOp, Result, Tensor, UnaryOp, ValueId, op_name,
};

/// The gradient of each input of a node, if it has one.
pub(super) type Gradients = Vec<Option<ValueId>>;

impl Backward<'_> {
    /// Returns the gradients of the inputs of `node`, at least of those marked in `wanted`.
    pub(super) fn rule(&mut self, node: &Node, dy: &[Option<ValueId>], wanted: &[bool]) -> Result<Gradients> {
        let name = node.output(0).map(|id| self.graph.value(id).name.clone()).unwrap_or_default();
        if let Op::Split { axis } = node.op {
            return self.split(node, axis, dy, &name);
        }
        if dy.iter().skip(1).any(Option::is_some) {
            return Err(GraphError::unsupported(format!("the derivative by a second output of {}", op_name(&node.op))));
        }
        let Some(g) = dy.first().copied().flatten() else { return Ok(vec![None; node.inputs.len()]) };
        let x = need(node, 0)?;
        if let Some(axis) = node.op.joined_axis() {
            return self.concat(node, axis, g, wanted, &name);
        }
        Ok(match &node.op {
            Op::ConvTranspose(a) => self.conv_transpose_rule(node, a, g, wanted, &name)?,
            Op::Activation(a @ (Activation::Relu | Activation::LeakyRelu { .. })) => {
                // y has the same sign as x unless the slope is negative, and y is kept in memory anyway.
                let falls = matches!(a, Activation::LeakyRelu { alpha } if *alpha < 0.0);
                let seen = node.output(0).filter(|_| !falls).unwrap_or(x);
                self.vjp(&name, node.op.clone(), &[Some(seen)], g, wanted)
            }
            Op::PRelu => self.prelu_rule(x, need(node, 1)?, g, wanted, &name)?,
            Op::Activation(Activation::Sigmoid) => {
                let y = node.output(0).unwrap_or(x);
                let one = self.scalar(1.0, y)?;
                let rest = self.binary(&name, BinaryOp::Sub, one, y);
                let slope = self.binary(&name, BinaryOp::Mul, y, rest);
                vec![Some(self.binary(&name, BinaryOp::Mul, g, slope))]
            }
            op if op.has_vjp() => self.vjp(&name, node.op.clone(), &node.inputs, g, wanted),
            Op::BatchNormalization { epsilon } => self.frozen_batch_norm(node, *epsilon, g, wanted, &name)?,
            Op::GlobalAveragePool => self.global_average_rule(x, g, &name)?,
            Op::GlobalMaxPool => {
                let axes: Vec<i64> = (2..self.shape(x)?.len() as i64).collect();
                vec![Some(self.extreme_rule(x, node.output(0).unwrap_or(x), g, &axes, &name)?)]
            }
            Op::Einsum { equation } => self.einsum_rule(equation, node, g, wanted, &name)?,
            Op::Softmax { axis } => self.softmax_rule(node.output(0).unwrap_or(x), *axis, g, &name)?,
            Op::LogSoftmax { axis } => self.log_softmax_rule(node.output(0).unwrap_or(x), *axis, g, &name)?,
            Op::Identity => vec![Some(g)],
            Op::Cast { to } => {
                let from = self.graph.value(x).dtype;
                match from {
                    Some(from) if from.is_float() && to.is_float() => {
                        vec![Some(self.graph.push(grad(&name), Op::Cast { to: from }, &[Some(g)]))]
                    }
                    _ => vec![None],
                }
            }
            Op::Reshape { .. } | Op::Squeeze | Op::Unsqueeze | Op::Flatten { .. } => {
                let shape = self.shape(x)?;
                vec![Some(self.reshape(&name, g, &shape)?)]
            }
            Op::Transpose { perm } => self.transpose_rule(perm, x, g, &name)?,
            Op::Expand => {
                let shape = self.shape(x)?;
                vec![Some(self.sum_to(&name, g, &shape)?)]
            }
            Op::Pad { mode: PadMode::Constant } | Op::Slice | Op::Pad { .. } | Op::Tile | Op::Gather { .. } => {
                self.vjp(&name, node.op.clone(), &node.inputs, g, wanted)
            }
            Op::Unary(kind) => vec![self.unary_rule(*kind, x, node.output(0), g, &name)?],
            Op::Binary(kind) => self.binary_rule(*kind, x, need(node, 1)?, node.output(0), g, wanted, &name)?,
            Op::Where => self.where_rule(node, g, wanted, &name)?,
            Op::Reduce { kind, noop_with_empty_axes, .. } => {
                vec![self.reduce_rule(node, (*kind, *noop_with_empty_axes), g, &name)?]
            }
            Op::MatMul => self.mat_mul(x, need(node, 1)?, g, &name)?,
            Op::Gemm { .. } => self.gemm_rule(node, g, wanted, &name)?,
            Op::DepthToSpace { .. } | Op::SpaceToDepth { .. } => {
                self.vjp(&name, node.op.clone(), &node.inputs, g, wanted)
            }
            Op::Shape { .. } | Op::Size | Op::ArgReduce { .. } => vec![None; node.inputs.len()],
            other if other.moves_only() => self.vjp(&name, node.op.clone(), &node.inputs, g, wanted),
            other => {
                return Err(GraphError::unsupported(format!("the derivative of {}", op_name(other))));
            }
        })
    }

    /// The adjoint of a transposed convolution is the corresponding convolution.
    fn conv_transpose_rule(
        &mut self,
        node: &Node,
        a: &ConvTransposeAttrs,
        g: ValueId,
        wanted: &[bool],
        name: &str,
    ) -> Result<Gradients> {
        let x = need(node, 0)?;
        let lengths = self.shape(x)?;
        let geometry = a.geometry(lengths.get(2..).unwrap_or_default())?;
        let before: Vec<usize> = geometry
            .before
            .iter()
            .map(|b| usize::try_from(*b))
            .collect::<std::result::Result<_, _>>()
            .map_err(|_| GraphError::unsupported("the derivative of ConvTranspose with zeros inserted in front"))?;
        let after = conv_after(a, lengths.get(2..).unwrap_or_default(), &geometry.output, &before)?;
        let conv = ConvAttrs {
            kernel: a.kernel.clone(),
            strides: a.strides.clone(),
            dilations: a.dilations.clone(),
            padding: Padding::Explicit { before, after },
            group: a.group,
        };
        let w = need(node, 1)?;
        let dx = self.push_if_wanted(wanted, 0, name, Op::Conv(conv.clone()), &[Some(g), Some(w)]);
        let dw = if wanted.get(1) == Some(&true) {
            let found = self.vjp(name, Op::Conv(conv), &[Some(g), Some(w)], x, &[false, true]);
            found.get(1).copied().flatten()
        } else {
            None
        };
        let db = self.channel_sums(wanted, 2, name, g)?;
        Ok(vec![dx, dw, db])
    }

    fn global_average_rule(&mut self, x: ValueId, g: ValueId, name: &str) -> Result<Gradients> {
        let shape = self.shape(x)?;
        let count: usize = shape.iter().skip(2).product();
        let scale = self.scalar(1.0 / count.max(1) as f64, g)?;
        let part = self.binary(name, BinaryOp::Mul, g, scale);
        Ok(vec![Some(self.expand(name, part, &shape)?)])
    }

    /// Softmax with the result `y`.
    fn softmax_rule(&mut self, y: ValueId, axis: i64, g: ValueId, name: &str) -> Result<Gradients> {
        let product = self.binary(name, BinaryOp::Mul, g, y);
        let sum = self.sum_over(name, product, &[axis])?;
        let rest = self.binary(name, BinaryOp::Sub, g, sum);
        Ok(vec![Some(self.binary(name, BinaryOp::Mul, y, rest))])
    }

    /// Log-softmax with the result `y`.
    fn log_softmax_rule(&mut self, y: ValueId, axis: i64, g: ValueId, name: &str) -> Result<Gradients> {
        let p = self.unary(name, UnaryOp::Exp, y);
        let sum = self.sum_over(name, g, &[axis])?;
        let part = self.binary(name, BinaryOp::Mul, p, sum);
        Ok(vec![Some(self.binary(name, BinaryOp::Sub, g, part))])
    }

    fn transpose_rule(&mut self, perm: &[usize], x: ValueId, g: ValueId, name: &str) -> Result<Gradients> {
        let rank = self.shape(x)?.len();
        let perm = if perm.is_empty() { (0..rank).rev().collect() } else { perm.to_vec() };
        let mut inverse = vec![0; rank];
        for (to, from) in perm.iter().enumerate() {
            if let Some(slot) = inverse.get_mut(*from) {
                *slot = to;
            }
        }
        Ok(vec![Some(self.graph.push(grad(name), Op::Transpose { perm: inverse }, &[Some(g)]))])
    }

    fn where_rule(&mut self, node: &Node, g: ValueId, wanted: &[bool], name: &str) -> Result<Gradients> {
        let (x, a, b) = (need(node, 0)?, need(node, 1)?, need(node, 2)?);
        let zero = self.scalar(0.0, g)?;
        let part = |me: &mut Self, i: usize, at: ValueId, inputs: [Option<ValueId>; 3]| -> Result<_> {
            if wanted.get(i) != Some(&true) {
                return Ok(None);
            }
            let chosen = me.graph.push(grad(name), Op::Where, &inputs);
            let shape = me.shape(at)?;
            let full = me.shape(g)?;
            me.set_shape(chosen, &full, g);
            Ok(Some(me.sum_to(name, chosen, &shape)?))
        };
        let da = part(self, 1, a, [Some(x), Some(g), Some(zero)])?;
        let db = part(self, 2, b, [Some(x), Some(zero), Some(g)])?;
        Ok(vec![None, da, db])
    }

    fn gemm_rule(&mut self, node: &Node, g: ValueId, wanted: &[bool], name: &str) -> Result<Gradients> {
        let Op::Gemm { alpha, beta, trans_a, trans_b } = node.op else { return Ok(vec![None; node.inputs.len()]) };
        let (a, b) = (need(node, 0)?, need(node, 1)?);
        let gemm = |alpha: f32, trans_a: bool, trans_b: bool| Op::Gemm { alpha, beta: 0.0, trans_a, trans_b };
        // y = αA′B′: dA′ = α·g·B′ᵀ, transposed if A is passed transposed.
        let da = if trans_a {
            self.graph.push(grad(name), gemm(alpha, trans_b, true), &[Some(b), Some(g)])
        } else {
            self.graph.push(grad(name), gemm(alpha, false, !trans_b), &[Some(g), Some(b)])
        };
        let db = if trans_b {
            self.graph.push(grad(name), gemm(alpha, true, trans_a), &[Some(g), Some(a)])
        } else {
            self.graph.push(grad(name), gemm(alpha, !trans_a, false), &[Some(a), Some(g)])
        };
        let dc = match node.input(2) {
            Some(c) if wanted.get(2) == Some(&true) => {
                let shape = self.shape(c)?;
                let sum = self.sum_to(name, g, &shape)?;
                let beta = self.scalar(f64::from(beta), g)?;
                Some(self.binary(name, BinaryOp::Mul, sum, beta))
            }
            _ => None,
        };
        Ok(vec![Some(da), Some(db), dc])
    }

    /// The gradient of each factor of a product is the product of the gradient with the other factor.
    fn einsum_rule(
        &mut self,
        equation: &str,
        node: &Node,
        g: ValueId,
        wanted: &[bool],
        name: &str,
    ) -> Result<Gradients> {
        let unsupported = || GraphError::unsupported(format!("the derivative of the Einsum {equation}"));
        let (left, right) = equation.split_once("->").ok_or_else(unsupported)?;
        let factors = left.split_once(',').filter(|(_, second)| !second.contains(','));
        let (first, second) = factors.ok_or_else(unsupported)?;
        let (a, b) = (need(node, 0)?, need(node, 1)?);
        // The gradient of an axis of length 1 that is repeated would be a sum over it.
        let (lengths_of_a, lengths_of_b) = (self.shape(a)?, self.shape(b)?);
        let differs = |(c, n): (char, &usize)| second.chars().zip(&lengths_of_b).any(|(d, m)| c == d && n != m);
        if first.chars().zip(&lengths_of_a).any(differs) {
            return Err(unsupported());
        }
        let mut found = Vec::with_capacity(2);
        for (i, (own, other, factor)) in [(first, second, b), (second, first, a)].into_iter().enumerate() {
            if wanted.get(i) != Some(&true) {
                found.push(None);
                continue;
            }
            // A letter that occurs nowhere else is summed over alone, and one that occurs twice takes a diagonal.
            let is_known = |c: char| right.contains(c) || other.contains(c);
            if !own.chars().all(|c| is_known(c) && own.matches(c).count() == 1) {
                return Err(unsupported());
            }
            let op = Op::Einsum { equation: format!("{right},{other}->{own}") };
            found.push(Some(self.graph.push(grad(name), op, &[Some(g), Some(factor)])));
        }
        Ok(found)
    }

    /// Adds a node for the vector-Jacobian product of `op`, with outputs only where they are wanted.
    pub(super) fn vjp(
        &mut self,
        name: &str,
        op: Op,
        inputs: &[Option<ValueId>],
        gradient: ValueId,
        wanted: &[bool],
    ) -> Gradients {
        let mut outputs = Vec::with_capacity(inputs.len());
        for (input, wanted) in inputs.iter().zip(wanted) {
            outputs.push(input.filter(|_| *wanted).map(|id| {
                let value = self.graph.value(id).clone();
                self.graph.add_value(format!("{}.gradient", value.name), value.dtype, value.shape)
            }));
        }
        while outputs.last().is_some_and(Option::is_none) {
            outputs.pop();
        }
        let mut inputs = inputs.to_vec();
        inputs.push(Some(gradient));
        let found = outputs.clone();
        self.graph.nodes.push(Node { name: grad(name), op: Op::Vjp(Box::new(op)), inputs, outputs });
        found
    }

    /// Adds an operator that computes the gradient of input `i`, if that is wanted.
    fn push_if_wanted(
        &mut self,
        wanted: &[bool],
        i: usize,
        name: &str,
        op: Op,
        inputs: &[Option<ValueId>],
    ) -> Option<ValueId> {
        (wanted.get(i) == Some(&true)).then(|| self.graph.push(grad(name), op, inputs))
    }

    pub(super) fn set_shape(&mut self, id: ValueId, shape: &[usize], like: ValueId) {
        let dtype = self.graph.value(like).dtype;
        if let Some(value) = self.graph.values.get_mut(id.index()) {
            value.shape = Some(shape.iter().map(|n| Dim::Fixed(*n)).collect());
            value.dtype = dtype;
        }
    }

    /// Adds a scalar constant with the type of `like`.
    pub(super) fn scalar(&mut self, value: f64, like: ValueId) -> Result<ValueId> {
        let dtype = self.graph.value(like).dtype.unwrap_or(ElementType::F32);
        let tensor = Tensor::new(Vec::new(), vec![value])?.cast(dtype);
        Ok(self.graph.add_initializer("gradient.constant", tensor))
    }

    fn ints(&mut self, values: Vec<i64>) -> ValueId {
        self.graph.add_initializer("gradient.axes", Tensor::vector(values))
    }

    /// Adds a binary operator whose result has the broadcast shape.
    pub(super) fn binary(&mut self, name: &str, op: BinaryOp, a: ValueId, b: ValueId) -> ValueId {
        let shapes = (self.graph.value(a).fixed_shape(), self.graph.value(b).fixed_shape());
        let result = self.graph.push(grad(name), Op::Binary(op), &[Some(a), Some(b)]);
        if let (Some(s), Some(t)) = shapes
            && let Ok(shape) = cytoscope_graph::infer::rules::broadcast(&s, &t)
        {
            self.set_shape(result, &shape, a);
        }
        result
    }

    pub(super) fn unary(&mut self, name: &str, op: UnaryOp, x: ValueId) -> ValueId {
        let shape = self.graph.value(x).fixed_shape();
        let result = self.graph.push(grad(name), Op::Unary(op), &[Some(x)]);
        if let Some(shape) = shape {
            self.set_shape(result, &shape, x);
        }
        result
    }

    pub(super) fn reshape(&mut self, name: &str, x: ValueId, shape: &[usize]) -> Result<ValueId> {
        let target = self.ints(shape.iter().map(|n| *n as i64).collect());
        let result = self.graph.push(grad(name), Op::Reshape { allow_zero: true }, &[Some(x), Some(target)]);
        self.set_shape(result, shape, x);
        Ok(result)
    }

    pub(super) fn expand(&mut self, name: &str, x: ValueId, shape: &[usize]) -> Result<ValueId> {
        let target = self.ints(shape.iter().map(|n| *n as i64).collect());
        let result = self.graph.push(grad(name), Op::Expand, &[Some(x), Some(target)]);
        self.set_shape(result, shape, x);
        Ok(result)
    }

    /// Adds a sum over `axes` that keeps them with length 1; without axes, returns `x`, because a node without axes would sum
    /// over all of them.
    pub(super) fn sum_over(&mut self, name: &str, x: ValueId, axes: &[i64]) -> Result<ValueId> {
        if axes.is_empty() {
            return Ok(x);
        }
        let mut shape = self.shape(x)?;
        for axis in axes {
            let axis = resolve_axis(*axis, shape.len())?;
            if let Some(n) = shape.get_mut(axis) {
                *n = 1;
            }
        }
        let list = self.ints(axes.to_vec());
        let op = Op::Reduce { kind: ReduceOp::Sum, keep_dims: true, noop_with_empty_axes: false };
        let result = self.graph.push(grad(name), op, &[Some(x), Some(list)]);
        self.set_shape(result, &shape, x);
        Ok(result)
    }

    /// Sums a gradient over broadcast axes, so that it has the shape of the value it belongs to.
    pub(super) fn sum_to(&mut self, name: &str, g: ValueId, shape: &[usize]) -> Result<ValueId> {
        let full = self.shape(g)?;
        if full == shape {
            return Ok(g);
        }
        let front = full.len().saturating_sub(shape.len());
        let axes: Vec<i64> = (0..full.len())
            .filter(|&a| a < front || (shape.get(a - front) == Some(&1) && full.get(a) != Some(&1)))
            .map(|a| a as i64)
            .collect();
        let sum = self.sum_over(name, g, &axes)?;
        if front == 0 { Ok(sum) } else { self.reshape(name, sum, shape) }
    }

    /// Sums per channel, if the gradient of input `i` is wanted.
    pub(super) fn channel_sums(
        &mut self,
        wanted: &[bool],
        i: usize,
        name: &str,
        g: ValueId,
    ) -> Result<Option<ValueId>> {
        if wanted.get(i) != Some(&true) {
            return Ok(None);
        }
        let shape = self.shape(g)?;
        let axes: Vec<i64> = (0..shape.len() as i64).filter(|a| *a != 1).collect();
        let sum = self.sum_over(name, g, &axes)?;
        let channels = shape.get(1).copied().unwrap_or(1);
        Ok(Some(self.reshape(name, sum, &[channels])?))
    }

    fn split(&mut self, node: &Node, axis: i64, dy: &[Option<ValueId>], name: &str) -> Result<Gradients> {
        let mut parts = Vec::with_capacity(dy.len());
        for (output, g) in node.outputs.iter().zip(dy) {
            parts.push(Some(match (g, output) {
                (Some(g), _) => *g,
                (None, Some(output)) => {
                    let zero = self.scalar(0.0, *output)?;
                    let shape = self.shape(*output)?;
                    self.expand(name, zero, &shape)?
                }
                (None, None) => return Err(GraphError::unsupported("the derivative of a Split with unused outputs")),
            }));
        }
        let whole = self.graph.push(grad(name), Op::concat(axis), &parts);
        if let Some(x) = node.input(0) {
            let shape = self.shape(x)?;
            self.set_shape(whole, &shape, x);
        }
        Ok(vec![Some(whole), None])
    }

    fn concat(&mut self, node: &Node, axis: i64, g: ValueId, wanted: &[bool], name: &str) -> Result<Gradients> {
        let mut found = Vec::with_capacity(node.inputs.len());
        let mut start = 0usize;
        for (input, wanted) in node.inputs.iter().zip(wanted) {
            let Some(input) = input else {
                found.push(None);
                continue;
            };
            let shape = self.shape(*input)?;
            let at = resolve_axis(axis, shape.len())?;
            let end = start + shape.get(at).copied().unwrap_or(0);
            found.push(if *wanted {
                let list = |me: &mut Self, v: usize| Some(me.ints(vec![v as i64]));
                let inputs = [Some(g), list(self, start), list(self, end), list(self, at)];
                let part = self.graph.push(grad(name), Op::Slice, &inputs);
                self.set_shape(part, &shape, *input);
                Some(part)
            } else {
                None
            });
            start = end;
        }
        Ok(found)
    }

    /// Batch norm with fixed statistics: an affine map per channel.
    fn frozen_batch_norm(
        &mut self,
        node: &Node,
        epsilon: f32,
        g: ValueId,
        wanted: &[bool],
        name: &str,
    ) -> Result<Gradients> {
        let ids: Option<Vec<ValueId>> = (0..5).map(|i| node.input(i)).collect();
        let [x, scale, _, mean, variance] = ids.unwrap_or_default()[..] else {
            return Err(GraphError::misused("inputs of a batch norm", "fewer than 5", "5"));
        };
        let shape = self.shape(x)?;
        let mut by_channel = vec![1; shape.len()];
        if let (Some(slot), Some(c)) = (by_channel.get_mut(1), shape.get(1)) {
            *slot = *c;
        }
        let epsilon = self.scalar(f64::from(epsilon), variance)?;
        let sum = self.binary(name, BinaryOp::Add, variance, epsilon);
        let root = self.unary(name, UnaryOp::Sqrt, sum);
        let dx = if wanted.first() == Some(&true) {
            let factor = self.binary(name, BinaryOp::Div, scale, root);
            let factor = self.reshape(name, factor, &by_channel)?;
            Some(self.binary(name, BinaryOp::Mul, g, factor))
        } else {
            None
        };
        let d_scale = if wanted.get(1) == Some(&true) {
            let (mean, root) = (self.reshape(name, mean, &by_channel)?, self.reshape(name, root, &by_channel)?);
            let away = self.binary(name, BinaryOp::Sub, x, mean);
            let normal = self.binary(name, BinaryOp::Div, away, root);
            let product = self.binary(name, BinaryOp::Mul, g, normal);
            self.channel_sums(wanted, 1, name, product)?
        } else {
            None
        };
        let d_bias = self.channel_sums(wanted, 2, name, g)?;
        Ok(vec![dx, d_scale, d_bias, None, None])
    }
}

/// Returns input `index` of a node, which must be present.
fn need(node: &Node, index: usize) -> Result<ValueId> {
    node.input(index).ok_or_else(|| GraphError::misused("inputs", format!("no input {index}"), "a tensor"))
}

/// Returns the name of a gradient node.
pub(super) fn grad(name: &str) -> String {
    format!("{name}.gradient")
}

/// Returns the trailing zero padding of the convolution that is the adjoint of a transposed convolution, so that its
/// output has `lengths`.
fn conv_after(a: &ConvTransposeAttrs, lengths: &[usize], output: &[usize], before: &[usize]) -> Result<Vec<usize>> {
    let mut after = Vec::with_capacity(lengths.len());
    for axis in 0..lengths.len() {
        let at = |v: &[usize], none: usize| v.get(axis).copied().unwrap_or(none);
        let reach = (at(&a.kernel, 1) - 1) * at(&a.dilations, 1) + 1;
        let need = (at(lengths, 1).max(1) - 1) * at(&a.strides, 1) + reach;
        after.push(need.saturating_sub(at(output, 0) + at(before, 0)));
    }
    Ok(after)
}
