//! Plans element-wise functions and reductions.

use super::values::MAX_INTEGER;
use super::{Kind, PlanResult, Planner, Source, TrainKind, unsupported};
use crate::form::{Form, broadcast_form, count, place};
use cytoscope_graph::{Activation, BinaryOp, ElementType, Node, Op, ReduceOp, Tensor, UnaryOp, ValueId};

/// The least of the largest exponents of lines, whose differences to it are computed.
const LOWEST_EXPONENT: f32 = -1e30;
/// The least norm that a line is divided by.
const MIN_NORM: f32 = 1e-30;

impl Planner<'_> {
    pub(super) fn unary(&mut self, node: &Node, op: UnaryOp) -> PlanResult {
        use UnaryOp::{Abs, Ceil, Cos, Erf, Exp, Floor, Log, Neg, Reciprocal, Round, Sign, Sin, Sqrt};
        match op {
            Abs | Neg | Reciprocal | Sqrt | Exp | Log | Erf | Floor | Ceil | Round | Sign | Sin | Cos => {
                self.simple(node, Kind::Unary(op))
            }
            // Bools are stored as 0 and 1.
            UnaryOp::Not => self.simple(node, Kind::Scalar { op: BinaryOp::Sub, value: 1.0, reversed: true }),
            _ => Err(super::Unsupported::Operator),
        }
    }

    pub(super) fn binary(&mut self, node: &Node, op: BinaryOp) -> PlanResult {
        use BinaryOp::{
            Add, And, Div, Equal, Greater, GreaterOrEqual, Less, LessOrEqual, Max, Min, Mul, Or, Pow, Sub, Xor,
        };
        // Bools are stored as 0 and 1.
        let (is_xor, op) = (
            op == Xor,
            match op {
                And => Mul,
                Or => Max,
                Xor => Sub,
                other => other,
            },
        );
        let compares = matches!(op, Equal | Greater | GreaterOrEqual | Less | LessOrEqual);
        if !compares && !matches!(op, Add | Sub | Mul | Div | Pow | Min | Max) {
            return Err(super::Unsupported::Operator);
        }
        let (a, b, output) = (self.input(node, 0)?, self.input(node, 1)?, self.output(node)?);
        let rank = self.shape(output)?.len();
        let number = |value| self.graph.constant(value).filter(|t| t.len() == 1).and_then(|t| single(t));
        let scalar = match (number(a), number(b)) {
            (None, Some(value)) => Some((a, value, false)),
            (Some(value), None) => Some((b, value, true)),
            _ => None,
        };
        let scalar = scalar.filter(|_| !compares);
        if let Some((x, value, reversed)) = scalar.filter(|(x, _, _)| self.shape(*x).is_ok_and(|s| s.len() == rank)) {
            let x = self.source(x)?;
            return self.binary_step(Kind::Scalar { op, value, reversed }, vec![x], output, is_xor);
        }
        let mut forms = [[1; 5]; 2];
        for (form, value) in forms.iter_mut().zip([a, b]) {
            let shape = self.shape(value)?;
            *form = broadcast_form(&shape, rank)
                .map_or_else(|| unsupported(format!("on a tensor of shape {shape:?}")), Ok)?;
        }
        let inputs = vec![self.source(a)?, self.source(b)?];
        self.binary_step(Kind::Binary { op, forms }, inputs, output, is_xor)
    }

    /// Adds the step of a binary operator, and one for the absolute value of its result if `is_absolute`.
    fn binary_step(&mut self, kind: Kind, inputs: Vec<Source>, output: ValueId, is_absolute: bool) -> PlanResult {
        if !is_absolute {
            return self.push(kind, inputs, output);
        }
        let form = self.form(output)?;
        let result = self.between(kind, inputs, form);
        self.push(Kind::Unary(UnaryOp::Abs), vec![result], output)
    }

    pub(super) fn choose(&mut self, node: &Node) -> PlanResult {
        let output = self.output(node)?;
        let rank = self.shape(output)?.len();
        let (mut forms, mut inputs) = ([[1; 5]; 3], Vec::with_capacity(3));
        for (index, form) in forms.iter_mut().enumerate() {
            let value = self.input(node, index)?;
            let shape = self.shape(value)?;
            *form = broadcast_form(&shape, rank)
                .map_or_else(|| unsupported(format!("on a tensor of shape {shape:?}")), Ok)?;
            inputs.push(self.source(value)?);
        }
        self.push(Kind::Choose(forms), inputs, output)
    }

    pub(super) fn prelu(&mut self, node: &Node) -> PlanResult {
        let (x, slope, output) = (self.input(node, 0)?, self.input(node, 1)?, self.output(node)?);
        let (rank, shape) = (self.shape(x)?.len(), self.shape(slope)?);
        let form =
            broadcast_form(&shape, rank).map_or_else(|| unsupported(format!("with slopes of shape {shape:?}")), Ok)?;
        let inputs = vec![self.source(x)?, self.source(slope)?];
        self.push(Kind::PRelu { slope: form }, inputs, output)
    }

    pub(super) fn softmax(&mut self, node: &Node, axis: i64, log: bool) -> PlanResult {
        let rank = self.shape(self.input(node, 0)?)?.len();
        let (_, axis) = self.axis(axis, rank)?;
        self.simple(node, Kind::Softmax { axis, log })
    }

    pub(super) fn global(&mut self, node: &Node, kind: ReduceOp) -> PlanResult {
        let [n, c, d, h, w] = self.form(self.input(node, 0)?)?;
        self.simple(node, Kind::Reduce { kind, runs: vec![[n * c, d * h * w, 1]] })
    }

    pub(super) fn reduce(&mut self, node: &Node, kind: ReduceOp, keep_without_axes: bool) -> PlanResult {
        use ReduceOp::{L1, L2, LogSum, LogSumExp, Max, Mean, Min, Sum, SumSquare};
        if !matches!(kind, Sum | Mean | Max | Min | L1 | L2 | SumSquare | LogSum | LogSumExp) {
            return Err(super::Unsupported::Operator);
        }
        let x = self.input(node, 0)?;
        let (rank, mut form) = (self.shape(x)?.len(), self.form(x)?);
        let axes = match self.integers(node, 1, "axes")? {
            Some(axes) => axes,
            None if keep_without_axes => return self.simple(node, Kind::Reshape),
            None => (0..rank as i64).collect(),
        };
        let mut reduced = [false; 5];
        for axis in axes {
            reduced[self.axis(axis, rank)?.1] = true;
        }
        // Sums over all axes but the channels, as gradients of biases are.
        if kind == Sum && rank > 2 && (0..rank).all(|own| reduced[place(rank, own)] != (own == 1)) {
            let (from, output) = (self.source(x)?, self.output(node)?);
            let sums = self.between(Kind::Train(TrainKind::ChannelSums), vec![from], [form[1], 1, 1, 1, 1]);
            return self.push(Kind::Reshape, vec![sums], output);
        }
        // Axes that the tensor does not have can be treated as reduced, which makes runs longer.
        for (axis, gone) in reduced.iter_mut().enumerate() {
            *gone |= form[axis] == 1 && !(0..rank).any(|own| place(rank, own) == axis);
        }
        let whole = form;
        let runs = runs(&mut form, reduced);
        match kind {
            LogSum | LogSumExp => {
                let (from, output) = (self.source(x)?, self.output(node)?);
                let log = self.log_of_sum(from, [whole, form], &runs, kind == LogSumExp);
                self.push(Kind::Reshape, vec![log], output)
            }
            _ => self.simple(node, Kind::Reduce { kind, runs }),
        }
    }

    /// Adds the steps that compute the logarithm of sums, of the elements or of their exponentials. `whole` and `kept` are the
    /// forms before and after the sums.
    fn log_of_sum(&mut self, x: Source, [whole, kept]: [Form; 2], runs: &[[usize; 3]], is_exp: bool) -> Source {
        let reduce = |kind: ReduceOp| Kind::Reduce { kind, runs: runs.to_vec() };
        if !is_exp {
            let sum = self.between(reduce(ReduceOp::Sum), vec![x], kept);
            return self.between(Kind::Unary(UnaryOp::Log), vec![sum], kept);
        }
        // The largest exponential is 1, and of a line of negative infinities, all are 0.
        let largest = self.between(reduce(ReduceOp::Max), vec![x], kept);
        let finite = Kind::Scalar { op: BinaryOp::Max, value: LOWEST_EXPONENT, reversed: false };
        let largest = self.between(finite, vec![largest], kept);
        let above = Kind::Binary { op: BinaryOp::Sub, forms: [whole, kept] };
        let above = self.between(above, vec![x, largest], whole);
        let powers = self.between(Kind::Unary(UnaryOp::Exp), vec![above], whole);
        let sum = self.between(reduce(ReduceOp::Sum), vec![powers], kept);
        let log = self.between(Kind::Unary(UnaryOp::Log), vec![sum], kept);
        self.between(Kind::Binary { op: BinaryOp::Add, forms: [kept; 2] }, vec![log, largest], kept)
    }

    /// Plans bounds that are computed; known ones are an activation.
    pub(super) fn clip(&mut self, node: &Node) -> PlanResult {
        let (x, output) = (self.input(node, 0)?, self.output(node)?);
        let form = self.form(x)?;
        let mut y = self.source(x)?;
        for (index, op) in [(1, BinaryOp::Max), (2, BinaryOp::Min)] {
            let Some(bound) = node.input(index) else { continue };
            if count(&self.form(bound)?) != 1 {
                return unsupported("with several bounds");
            }
            let bound = self.source(bound)?;
            y = self.between(Kind::Binary { op, forms: [form, [1; 5]] }, vec![y, bound], form);
        }
        self.push(Kind::Reshape, vec![y], output)
    }

    pub(super) fn arg_reduce(&mut self, node: &Node, max: bool, axis: i64, last: bool) -> PlanResult {
        let (x, output) = (self.input(node, 0)?, self.output(node)?);
        let (rank, form) = (self.shape(x)?.len(), self.form(x)?);
        let (_, axis) = self.axis(axis, rank)?;
        let length = form[axis];
        if length > MAX_INTEGER {
            return unsupported(format!("over an axis of length {length}"));
        }
        let (mut along, mut kept) = ([1; 5], form);
        (along[axis], kept[axis]) = (length, 1);
        let positions = Source::Constant(self.constant(along, (0..length).map(|position| position as f32).collect()));
        let inputs = vec![self.source(x)?, positions];
        let found = self.scratch();
        // The bounded input, and the positions of the elements that are chosen.
        self.push_many(Kind::ArgReduce { max, last, axis }, inputs, vec![(found, kept)], 2 * count(&form));
        self.push(Kind::Reshape, vec![Source::Value(found)], output)
    }

    /// Plans a conversion between types. Integers are stored as floats.
    pub(super) fn cast(&mut self, node: &Node, to: ElementType) -> PlanResult {
        let (x, output) = (self.input(node, 0)?, self.output(node)?);
        let (form, from) = (self.form(x)?, self.graph.value(x).dtype.unwrap_or(ElementType::F32));
        match to {
            ElementType::F32 if !from.is_half() => self.simple(node, Kind::Reshape),
            _ if to.is_float() => self.simple(node, Kind::Cast(to)),
            ElementType::Bool => {
                let x = self.source(x)?;
                let zero = Source::Constant(self.constant([1; 5], vec![0.0]));
                let equals = Kind::Binary { op: BinaryOp::Equal, forms: [form, [1; 5]] };
                let x = if from.is_half() { self.between(Kind::Cast(ElementType::F32), vec![x], form) } else { x };
                let is_zero = self.between(equals, vec![x, zero], form);
                self.push(Kind::Scalar { op: BinaryOp::Sub, value: 1.0, reversed: true }, vec![is_zero], output)
            }
            _ if from.is_float() => {
                let x = self.source(x)?;
                let x = if from.is_half() { self.between(Kind::Cast(ElementType::F32), vec![x], form) } else { x };
                self.truncate(x, form, to, output)
            }
            _ => {
                let ((low, high), (min, max)) = (self.integer_range(x, from), range(to));
                if low < min || high > max {
                    return unsupported(format!("from {from} to {to}"));
                }
                self.simple(node, Kind::Reshape)
            }
        }
    }

    /// Plans the steps that round floats toward zero, to integers of a type. What floats beyond its range become is not
    /// defined by ONNX; here, they are limited to it.
    fn truncate(&mut self, x: Source, form: Form, to: ElementType, output: ValueId) -> PlanResult {
        let (min, max) = range(to);
        let x = self.between(Kind::Activation(Activation::Clip { min, max }), vec![x], form);
        let with_zero = |op| Kind::Scalar { op, value: 0.0, reversed: false };
        let above = self.between(with_zero(BinaryOp::Max), vec![x], form);
        let above = self.between(Kind::Unary(UnaryOp::Floor), vec![above], form);
        let below = self.between(with_zero(BinaryOp::Min), vec![x], form);
        let below = self.between(Kind::Unary(UnaryOp::Ceil), vec![below], form);
        self.push(Kind::Binary { op: BinaryOp::Add, forms: [form; 2] }, vec![above, below], output)
    }

    /// Returns the smallest and the largest integer that a value of this type can be.
    fn integer_range(&self, value: ValueId, dtype: ElementType) -> (f32, f32) {
        let producer = self.graph.nodes.iter().find(|node| node.outputs.contains(&Some(value)));
        let searched = producer.and_then(|node| match node.op {
            Op::ArgReduce { axis, .. } => {
                let shape = self.shape(node.input(0)?).ok()?;
                let (axis, _) = self.axis(axis, shape.len()).ok()?;
                shape.get(axis).map(|length| (0.0, *length as f32 - 1.0))
            }
            _ => None,
        });
        searched.unwrap_or_else(|| range(dtype))
    }

    /// Plans the division by the L1 or L2 norm along an axis; lines of zeros stay zeros.
    pub(super) fn lp_norm(&mut self, node: &Node, axis: i64, p: i64) -> PlanResult {
        let (x, output) = (self.input(node, 0)?, self.output(node)?);
        let (rank, form) = (self.shape(x)?.len(), self.form(x)?);
        let (_, at) = self.axis(axis, rank)?;
        let kind = match p {
            1 => ReduceOp::L1,
            2 => ReduceOp::L2,
            _ => return unsupported(format!("with p = {p}")),
        };
        let (mut along, mut kept) = ([false; 5], form);
        along[at] = true;
        let runs = runs(&mut kept, along);
        let from = self.source(x)?;
        let norm = self.between(Kind::Reduce { kind, runs }, vec![from], kept);
        let least = Kind::Scalar { op: BinaryOp::Max, value: MIN_NORM, reversed: false };
        let norm = self.between(least, vec![norm], kept);
        self.push(Kind::Binary { op: BinaryOp::Div, forms: [form, kept] }, vec![from, norm], output)
    }

    pub(super) fn expand(&mut self, node: &Node) -> PlanResult {
        let (x, output) = (self.input(node, 0)?, self.output(node)?);
        let (shape, rank) = (self.shape(x)?, self.shape(output)?.len());
        let from =
            broadcast_form(&shape, rank).map_or_else(|| unsupported(format!("of a tensor of shape {shape:?}")), Ok)?;
        let x: Source = self.source(x)?;
        self.push(Kind::Expand { from }, vec![x], output)
    }
}

/// Returns the smallest and the largest number of a type of integers or bools, rounded to floats.
fn range(element_type: ElementType) -> (f32, f32) {
    match element_type {
        ElementType::Bool => (0.0, 1.0),
        ElementType::I8 => (f32::from(i8::MIN), f32::from(i8::MAX)),
        ElementType::U8 => (0.0, f32::from(u8::MAX)),
        ElementType::I16 => (f32::from(i16::MIN), f32::from(i16::MAX)),
        ElementType::U16 => (0.0, f32::from(u16::MAX)),
        ElementType::I32 => (i32::MIN as f32, i32::MAX as f32),
        ElementType::U32 => (0.0, u32::MAX as f32),
        ElementType::U64 => (0.0, u64::MAX as f32),
        _ => (i64::MIN as f32, i64::MAX as f32),
    }
}

/// Returns the first number of a constant; `None` for types that are not stored as floats.
fn single(tensor: &Tensor) -> Option<f32> {
    let number = tensor.as_f32().and_then(|v| v.first().copied());
    number.or_else(|| tensor.to_i64_vec()?.first().map(|v| *v as f32))
}

/// Returns the runs of neighboring reduced axes as (outer, length, inner), and sets `form` to the form after
/// reduction.
pub(super) fn runs(form: &mut Form, reduced: [bool; 5]) -> Vec<[usize; 3]> {
    let mut runs = Vec::new();
    let mut axis = 0;
    while axis < 5 {
        let start = axis;
        while axis < 5 && reduced[axis] {
            axis += 1;
        }
        let length: usize = form[start..axis].iter().product();
        if length > 1 {
            runs.push([form[..start].iter().product(), length, form[axis..].iter().product()]);
            form[start..axis].fill(1);
        }
        axis += 1;
    }
    runs
}
