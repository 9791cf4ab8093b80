//! Differentiation rules of unary and binary functions, reductions and matrix products.

use super::Backward;
use super::rules::{Gradients, grad};
use cytoscope_graph::infer::rules::reduced_axes;
use cytoscope_graph::{Activation, BinaryOp, GraphError, Node, Op, ReduceOp, Result, UnaryOp, ValueId, op_name};

impl Backward<'_> {
    pub(super) fn unary_rule(
        &mut self,
        kind: UnaryOp,
        x: ValueId,
        y: Option<ValueId>,
        g: ValueId,
        name: &str,
    ) -> Result<Option<ValueId>> {
        let y = y.unwrap_or(x);
        let slope = match kind {
            UnaryOp::Neg => return Ok(Some(self.unary(name, UnaryOp::Neg, g))),
            UnaryOp::Abs => self.unary(name, UnaryOp::Sign, x),
            UnaryOp::Exp => y,
            UnaryOp::Log => return Ok(Some(self.binary(name, BinaryOp::Div, g, x))),
            UnaryOp::Sqrt => {
                let half = self.scalar(0.5, x)?;
                self.binary(name, BinaryOp::Div, half, y)
            }
            UnaryOp::Reciprocal => {
                let square = self.binary(name, BinaryOp::Mul, y, y);
                self.unary(name, UnaryOp::Neg, square)
            }
            UnaryOp::Sin => self.unary(name, UnaryOp::Cos, x),
            UnaryOp::Cos => {
                let sine = self.unary(name, UnaryOp::Sin, x);
                self.unary(name, UnaryOp::Neg, sine)
            }
            UnaryOp::Erf => {
                let square = self.binary(name, BinaryOp::Mul, x, x);
                let falling = self.unary(name, UnaryOp::Neg, square);
                let bell = self.unary(name, UnaryOp::Exp, falling);
                let factor = self.scalar(std::f64::consts::FRAC_2_SQRT_PI, x)?;
                self.binary(name, BinaryOp::Mul, bell, factor)
            }
            UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Sign | UnaryOp::IsNaN | UnaryOp::Not => {
                return Ok(None);
            }
            other => {
                return Err(GraphError::unsupported(format!("the derivative of {}", op_name(&Op::Unary(other)))));
            }
        };
        Ok(Some(self.binary(name, BinaryOp::Mul, g, slope)))
    }

    /// With n the gradient where x ≤ 0 and p the remaining gradient: dx = p + slope · n, and the slope's gradient is
    /// the sum of x · n.
    pub(super) fn prelu_rule(
        &mut self,
        x: ValueId,
        slope: ValueId,
        g: ValueId,
        wanted: &[bool],
        name: &str,
    ) -> Result<Gradients> {
        let relu = Op::Activation(Activation::Relu);
        let Some(above) = self.vjp(name, relu, &[Some(x)], g, &[true]).first().copied().flatten() else {
            return Ok(vec![None, None]);
        };
        let below = self.binary(name, BinaryOp::Sub, g, above);
        let mut found = vec![None, None];
        if let (Some(true), Some(slot)) = (wanted.first(), found.first_mut()) {
            let part = self.binary(name, BinaryOp::Mul, below, slope);
            *slot = Some(self.binary(name, BinaryOp::Add, above, part));
        }
        if let (Some(true), Some(slot)) = (wanted.get(1), found.get_mut(1)) {
            let product = self.binary(name, BinaryOp::Mul, below, x);
            *slot = Some(self.slope_sums(wanted, name, product, slope)?);
        }
        Ok(found)
    }

    /// Sums to the shape of a slope. For one value or one value per channel, this goes through the channel sums, for
    /// which engines have kernels.
    fn slope_sums(&mut self, wanted: &[bool], name: &str, product: ValueId, slope: ValueId) -> Result<ValueId> {
        let (full, shape) = (self.shape(product)?, self.shape(slope)?);
        let (count, channels) = (shape.iter().product::<usize>(), full.get(1).copied().unwrap_or(0));
        // The slope's axis that is aligned with the channels.
        let at = (shape.len() + 1).checked_sub(full.len());
        let by_channel = count == channels && at.and_then(|at| shape.get(at)) == Some(&channels);
        let sums = if full.len() > 1 && (count == 1 || by_channel) {
            self.channel_sums(wanted, 1, name, product)?
        } else {
            None
        };
        let Some(sums) = sums else { return self.sum_to(name, product, &shape) };
        let sums = if by_channel { sums } else { self.sum_over(name, sums, &[0])? };
        self.reshape(name, sums, &shape)
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn binary_rule(
        &mut self,
        kind: BinaryOp,
        a: ValueId,
        b: ValueId,
        y: Option<ValueId>,
        g: ValueId,
        wanted: &[bool],
        name: &str,
    ) -> Result<Gradients> {
        if kind.returns_bool() {
            return Ok(vec![None, None]);
        }
        let mut found = vec![None, None];
        for (i, slot) in found.iter_mut().enumerate() {
            if wanted.get(i) != Some(&true) {
                continue;
            }
            let (me, other) = if i == 0 { (a, b) } else { (b, a) };
            let full = match kind {
                BinaryOp::Add => g,
                BinaryOp::Sub if i == 0 => g,
                BinaryOp::Sub => self.unary(name, UnaryOp::Neg, g),
                BinaryOp::Mul => self.binary(name, BinaryOp::Mul, g, other),
                BinaryOp::Div if i == 0 => self.binary(name, BinaryOp::Div, g, b),
                BinaryOp::Div => {
                    let ratio = self.binary(name, BinaryOp::Div, y.unwrap_or(a), b);
                    let product = self.binary(name, BinaryOp::Mul, g, ratio);
                    self.unary(name, UnaryOp::Neg, product)
                }
                BinaryOp::Pow if i == 0 => self.base_rule(a, b, g, name)?,
                BinaryOp::Pow => self.exponent_rule(a, b, y, g, name)?,
                BinaryOp::Min | BinaryOp::Max => {
                    let wins = match (kind, i) {
                        (BinaryOp::Max, 0) => BinaryOp::GreaterOrEqual,
                        (BinaryOp::Max, _) => BinaryOp::Greater,
                        (_, 0) => BinaryOp::LessOrEqual,
                        _ => BinaryOp::Less,
                    };
                    let chosen = self.graph.push(grad(name), Op::Binary(wins), &[Some(me), Some(other)]);
                    let zero = self.scalar(0.0, g)?;
                    let part = self.graph.push(grad(name), Op::Where, &[Some(chosen), Some(g), Some(zero)]);
                    let shape = self.shape(g)?;
                    self.set_shape(part, &shape, g);
                    part
                }
                other => {
                    let what = op_name(&Op::Binary(other));
                    return Err(GraphError::unsupported(format!("the derivative of {what}")));
                }
            };
            let shape = self.shape(me)?;
            *slot = Some(self.sum_to(name, full, &shape)?);
        }
        Ok(found)
    }

    /// The gradient `g` of the power `a^b` with respect to its base: `g·b·a^(b - 1)`, and 0 where the exponent is 0, also if the
    /// base is 0.
    fn base_rule(&mut self, a: ValueId, b: ValueId, g: ValueId, name: &str) -> Result<ValueId> {
        // Exponents may be integers although the base is not.
        let exponent = self.cast_like(name, b, a);
        let one = self.scalar(1.0, a)?;
        let lowered = self.binary(name, BinaryOp::Sub, exponent, one);
        let power = self.binary(name, BinaryOp::Pow, a, lowered);
        let slope = self.binary(name, BinaryOp::Mul, exponent, power);
        let full = self.binary(name, BinaryOp::Mul, g, slope);
        if self.graph.constant(b).is_some_and(|exponents| !exponents.to_f64_vec().contains(&0.0)) {
            return Ok(full);
        }
        let zero = self.scalar(0.0, a)?;
        let is_zero = self.graph.push(grad(name), Op::Binary(BinaryOp::Equal), &[Some(exponent), Some(zero)]);
        let chosen = self.graph.push(grad(name), Op::Where, &[Some(is_zero), Some(zero), Some(full)]);
        let shape = self.shape(g)?;
        self.set_shape(chosen, &shape, g);
        Ok(chosen)
    }

    /// The gradient `g` of the power `y = a^b` with respect to its exponent: `g·y·ln a`, and 0 where the base is 0: there
    /// the logarithm is infinite, and powers with positive exponents stay 0.
    fn exponent_rule(&mut self, a: ValueId, b: ValueId, y: Option<ValueId>, g: ValueId, name: &str) -> Result<ValueId> {
        let (zero, one) = (self.scalar(0.0, a)?, self.scalar(1.0, a)?);
        let is_zero = self.graph.push(grad(name), Op::Binary(BinaryOp::Equal), &[Some(a), Some(zero)]);
        let base = self.graph.push(grad(name), Op::Where, &[Some(is_zero), Some(one), Some(a)]);
        let shape = self.shape(a)?;
        self.set_shape(base, &shape, a);
        let log = self.unary(name, UnaryOp::Log, base);
        let slope = self.binary(name, BinaryOp::Mul, y.unwrap_or(a), log);
        let full = self.binary(name, BinaryOp::Mul, g, slope);
        Ok(self.cast_like(name, full, b))
    }

    /// Returns the value with the element type of `like`, if both types are known.
    fn cast_like(&mut self, name: &str, value: ValueId, like: ValueId) -> ValueId {
        let (from, to) = (self.graph.value(value).dtype, self.graph.value(like).dtype);
        let (Some(_), Some(to)) = (from, to.filter(|_| from != to)) else { return value };
        let shape = self.graph.value(value).fixed_shape();
        let result = self.graph.push(grad(name), Op::Cast { to }, &[Some(value)]);
        if let Some(shape) = shape {
            self.set_shape(result, &shape, like);
        }
        result
    }

    /// Returns the shape of the input of a reduction, `shape`, with the length 1 for the axes that are reduced. `noop` states
    /// that none are if the node lists none.
    fn kept_shape(&self, node: &Node, noop: bool, shape: &[usize]) -> Result<Vec<usize>> {
        let axes = match node.input(1) {
            None => None,
            Some(id) => {
                let list = self.graph.constant(id).and_then(|t| t.to_i64_vec());
                Some(list.ok_or_else(|| {
                    GraphError::unsupported("the derivative of a reduction over axes computed at run time")
                })?)
            }
        };
        let mut kept = shape.to_vec();
        for axis in reduced_axes(shape.len(), axes.as_deref(), noop)? {
            if let Some(n) = kept.get_mut(axis) {
                *n = 1;
            }
        }
        Ok(kept)
    }

    pub(super) fn reduce_rule(
        &mut self,
        node: &Node,
        (kind, noop): (ReduceOp, bool),
        g: ValueId,
        name: &str,
    ) -> Result<Option<ValueId>> {
        let Some(x) = node.input(0) else { return Ok(None) };
        let (shape, reduced) = (self.shape(x)?, self.shape(g)?);
        let kept = self.kept_shape(node, noop, &shape)?;
        let g = if reduced == kept { g } else { self.reshape(name, g, &kept)? };
        // The result with the reduced axes; only some rules read it.
        let result = |me: &mut Self| match node.output(0) {
            Some(y) if reduced != kept => me.reshape(name, y, &kept),
            y => Ok(y.unwrap_or(x)),
        };
        let count = shape.iter().product::<usize>() as f64 / kept.iter().product::<usize>().max(1) as f64;
        let full = match kind {
            ReduceOp::Sum => g,
            ReduceOp::Mean => {
                let share = self.scalar(1.0 / count, g)?;
                self.binary(name, BinaryOp::Mul, g, share)
            }
            ReduceOp::SumSquare => {
                let two = self.scalar(2.0, g)?;
                let twice = self.binary(name, BinaryOp::Mul, x, two);
                return Ok(Some(self.binary(name, BinaryOp::Mul, twice, g)));
            }
            ReduceOp::L1 => {
                let sign = self.unary(name, UnaryOp::Sign, x);
                return Ok(Some(self.binary(name, BinaryOp::Mul, sign, g)));
            }
            ReduceOp::L2 => {
                let norm = result(self)?;
                // A vector of zeros has no direction, and gets no gradient.
                let least = self.scalar(f64::from(f32::MIN_POSITIVE), x)?;
                let norm = self.binary(name, BinaryOp::Max, norm, least);
                let direction = self.binary(name, BinaryOp::Div, x, norm);
                return Ok(Some(self.binary(name, BinaryOp::Mul, direction, g)));
            }
            ReduceOp::LogSum | ReduceOp::LogSumExp => {
                let log = result(self)?;
                let from = if kind == ReduceOp::LogSum { self.scalar(0.0, x)? } else { x };
                let difference = self.binary(name, BinaryOp::Sub, from, log);
                let share = self.unary(name, UnaryOp::Exp, difference);
                self.binary(name, BinaryOp::Mul, share, g)
            }
            ReduceOp::Max | ReduceOp::Min => {
                let y = result(self)?;
                let is_reduced = |a: &usize| kept.get(*a) == Some(&1);
                let axes: Vec<i64> = (0..shape.len()).filter(is_reduced).map(|a| a as i64).collect();
                return Ok(Some(self.extreme_rule(x, y, g, &axes, name)?));
            }
            other @ ReduceOp::Prod => {
                let op = Op::Reduce { kind: other, keep_dims: true, noop_with_empty_axes: false };
                return Err(GraphError::unsupported(format!("the derivative of {}", op_name(&op))));
            }
        };
        Ok(Some(self.expand(name, full, &shape)?))
    }

    /// Maxima or minima `y` of `x` over `axes`, which have length 1 in `y` and its gradient: all elements that are equal to
    /// it share the gradient.
    pub(super) fn extreme_rule(
        &mut self,
        x: ValueId,
        y: ValueId,
        g: ValueId,
        axes: &[i64],
        name: &str,
    ) -> Result<ValueId> {
        let shape = self.shape(x)?;
        let is_extreme = self.graph.push(grad(name), Op::Binary(BinaryOp::Equal), &[Some(x), Some(y)]);
        let (one, zero) = (self.scalar(1.0, x)?, self.scalar(0.0, x)?);
        let chosen = self.graph.push(grad(name), Op::Where, &[Some(is_extreme), Some(one), Some(zero)]);
        self.set_shape(chosen, &shape, x);
        let count = self.sum_over(name, chosen, axes)?;
        let share = self.binary(name, BinaryOp::Div, g, count);
        Ok(self.binary(name, BinaryOp::Mul, chosen, share))
    }

    pub(super) fn mat_mul(&mut self, a: ValueId, b: ValueId, g: ValueId, name: &str) -> Result<Gradients> {
        let (sa, sb) = (self.shape(a)?, self.shape(b)?);
        if sa.len() < 2 || sb.len() < 2 {
            return Err(GraphError::unsupported("the derivative of MatMul of a vector"));
        }
        let transposed = |me: &mut Self, id: ValueId, shape: &[usize]| {
            let rank = shape.len();
            let mut perm: Vec<usize> = (0..rank).collect();
            perm.swap(rank - 1, rank - 2);
            let mut shape = shape.to_vec();
            shape.swap(rank - 1, rank - 2);
            let result = me.graph.push(grad(name), Op::Transpose { perm }, &[Some(id)]);
            me.set_shape(result, &shape, id);
            result
        };
        let sg = self.shape(g)?;
        let (at, bt) = (transposed(self, a, &sa), transposed(self, b, &sb));
        let product = |me: &mut Self, p: ValueId, q: ValueId, shape: &[usize]| -> Result<ValueId> {
            let result = me.graph.push(grad(name), Op::MatMul, &[Some(p), Some(q)]);
            let mut full = sg.clone();
            let rank = full.len();
            full[rank - 2..].copy_from_slice(&shape[shape.len() - 2..]);
            me.set_shape(result, &full, p);
            me.sum_to(name, result, shape)
        };
        let da = product(self, g, bt, &sa)?;
        let db = product(self, at, g, &sb)?;
        Ok(vec![Some(da), Some(db)])
    }
}
