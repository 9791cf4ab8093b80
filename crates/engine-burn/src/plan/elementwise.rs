//! Plans element-wise functions and reductions.

use super::{Kind, PlanResult, Planner, Source, TrainKind, unsupported};
use crate::form::{Form, broadcast_form, place};
use cytoscope_graph::{BinaryOp, Node, ReduceOp, UnaryOp};

impl Planner<'_> {
    pub(super) fn unary(&mut self, node: &Node, op: UnaryOp) -> PlanResult {
        use UnaryOp::{Abs, Ceil, Cos, Erf, Exp, Floor, Log, Neg, Reciprocal, Round, Sign, Sin, Sqrt};
        match op {
            Abs | Neg | Reciprocal | Sqrt | Exp | Log | Erf | Floor | Ceil | Round | Sign | Sin | Cos => {
                self.simple(node, Kind::Unary(op))
            }
            _ => Err(super::Unsupported::Operator),
        }
    }

    pub(super) fn binary(&mut self, node: &Node, op: BinaryOp) -> PlanResult {
        use BinaryOp::{Add, Div, Equal, Greater, GreaterOrEqual, Less, LessOrEqual, Max, Min, Mul, Pow, Sub};
        let compares = matches!(op, Equal | Greater | GreaterOrEqual | Less | LessOrEqual);
        if !compares && !matches!(op, Add | Sub | Mul | Div | Pow | Min | Max) {
            return Err(super::Unsupported::Operator);
        }
        let (a, b, output) = (self.input(node, 0)?, self.input(node, 1)?, self.output(node)?);
        let rank = self.shape(output)?.len();
        let number = |value| self.graph.constant(value).and_then(|t| t.as_f32()).filter(|v| v.len() == 1);
        let number = |value| number(value).and_then(|v| v.first().copied());
        let scalar = match (number(a), number(b)) {
            (None, Some(value)) => Some((a, value, false)),
            (Some(value), None) => Some((b, value, true)),
            _ => None,
        };
        let scalar = scalar.filter(|_| !compares);
        if let Some((x, value, reversed)) = scalar.filter(|(x, _, _)| self.shape(*x).is_ok_and(|s| s.len() == rank)) {
            let x = self.source(x)?;
            return self.push(Kind::Scalar { op, value, reversed }, vec![x], output);
        }
        let mut forms = [[1; 5]; 2];
        for (form, value) in forms.iter_mut().zip([a, b]) {
            let shape = self.shape(value)?;
            *form = broadcast_form(&shape, rank)
                .map_or_else(|| unsupported(format!("on a tensor of shape {shape:?}")), Ok)?;
        }
        let inputs = vec![self.source(a)?, self.source(b)?];
        self.push(Kind::Binary { op, forms }, inputs, output)
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
        use ReduceOp::{L1, L2, Max, Mean, Min, Sum, SumSquare};
        if !matches!(kind, Sum | Mean | Max | Min | L1 | L2 | SumSquare) {
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
        let runs = runs(&mut form, reduced);
        self.simple(node, Kind::Reduce { kind, runs })
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
