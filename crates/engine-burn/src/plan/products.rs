//! Plans matrix products, as convolutions of single voxels: rows are voxels, and the numbers of a row are channels.

use super::{ConvGeometry, Kind, PlanResult, Planner, Source, unsupported};
use crate::form::{broadcast_form, form};
use cytoscope_graph::infer::rules::broadcast;
use cytoscope_graph::{BinaryOp, Node, Op};
use std::collections::{BTreeMap, BTreeSet};

/// The largest number of products that are summed: Mesa's software Vulkan silently ends longer loops.
const MAX_SUMMED: usize = 65_535;

/// Lengths of a product of matrices.
#[derive(Clone, Copy)]
struct Lengths {
    /// Pairs of matrices that are multiplied.
    pairs: usize,
    /// Rows of the first matrix.
    rows: usize,
    /// Products that are summed: columns of the first matrix, and rows of the second one.
    summed: usize,
    /// Columns of the second matrix.
    columns: usize,
}

impl Planner<'_> {
    /// Plans a matrix product; `None` for other operators.
    pub(super) fn product(&mut self, node: &Node) -> Option<PlanResult> {
        Some(match &node.op {
            Op::MatMul => self.mat_mul(node),
            Op::Gemm { alpha, beta, trans_a, trans_b } => self.gemm(node, [*alpha, *beta], [*trans_a, *trans_b]),
            Op::Einsum { equation } => self.einsum(node, equation),
            _ => return None,
        })
    }

    fn mat_mul(&mut self, node: &Node) -> PlanResult {
        let (a, b, output) = (self.input(node, 0)?, self.input(node, 1)?, self.output(node)?);
        let (mut a_shape, mut b_shape) = (self.shape(a)?, self.shape(b)?);
        // Vectors are matrices with a single row or column.
        if a_shape.len() == 1 {
            a_shape.insert(0, 1);
        }
        if b_shape.len() == 1 {
            b_shape.push(1);
        }
        let ([a_lead @ .., rows, summed], [b_lead @ .., _, columns]) = (a_shape.as_slice(), b_shape.as_slice()) else {
            return unsupported("of a single number");
        };
        let (rows, summed, columns) = (*rows, *summed, *columns);
        check_summed(summed)?;
        let (from, by) = (self.source(a)?, self.source(b)?);
        let product = if b_lead.iter().all(|length| *length == 1) {
            let rows = a_lead.iter().product::<usize>() * rows;
            let by = self.between(Kind::Reshape, vec![by], [summed, columns, 1, 1, 1]);
            let by = self.between(Kind::Permute([1, 0, 2, 3, 4]), vec![by], [columns, summed, 1, 1, 1]);
            self.times(from, by, None, Lengths { pairs: 1, rows, summed, columns })
        } else {
            let lead = broadcast(a_lead, b_lead)?;
            let from = self.over_pairs(from, &a_shape, &lead)?;
            let by = self.over_pairs(by, &b_shape, &lead)?;
            self.pairwise(from, by, Lengths { pairs: lead.iter().product(), rows, summed, columns })
        };
        self.push(Kind::Reshape, vec![product], output)
    }

    /// Returns matrices of this shape, repeated for all pairs, whose axes are `lead`.
    fn over_pairs(&mut self, from: Source, shape: &[usize], lead: &[usize]) -> PlanResult<Source> {
        let (own, matrix) = shape.split_at(shape.len().saturating_sub(2));
        if own == lead {
            return Ok(from);
        }
        let whole = [lead, matrix].concat();
        let (Some(own), Some(all)) = (broadcast_form(shape, whole.len()), form(&whole)) else {
            return unsupported(format!("on a tensor of shape {whole:?}"));
        };
        Ok(self.between(Kind::Expand { from: own }, vec![from], all))
    }

    /// Multiplies each row with weights, whose axes are column and summed number, and adds `bias` to it, one number for each
    /// column. With several pairs, a row has the rows of all pairs side by side, which are multiplied with the weights of
    /// their pair. Returns the rows one after the other.
    fn times(&mut self, from: Source, weights: Source, bias: Option<Source>, lengths: Lengths) -> Source {
        let (inputs, outputs) = (lengths.pairs * lengths.summed, lengths.pairs * lengths.columns);
        let [z, y, x] = boxed(lengths.rows);
        let lines = self.between(Kind::Reshape, vec![from], [1, z, y, x, inputs]);
        let voxels = self.between(Kind::Permute([0, 4, 1, 2, 3]), vec![lines], [1, inputs, z, y, x]);
        let window = ConvGeometry { stride: [1; 3], padding: [0; 3], dilation: [1; 3], groups: lengths.pairs };
        let kind = Kind::Conv { window, bias: bias.is_some(), residual: false, activation: None };
        let sources = [Some(voxels), Some(weights), bias].into_iter().flatten().collect();
        let product = self.scratch();
        // The kernel reads the weights in another order.
        self.push_many(kind, sources, vec![(product, [1, outputs, z, y, x])], outputs * lengths.summed);
        self.between(Kind::Permute([0, 2, 3, 4, 1]), vec![Source::Value(product)], [1, z, y, x, outputs])
    }

    /// Multiplies pairs of matrices: each pair is a group of channels.
    fn pairwise(&mut self, a: Source, b: Source, lengths: Lengths) -> Source {
        let Lengths { pairs, rows, summed, columns } = lengths;
        let a = self.between(Kind::Reshape, vec![a], [pairs, rows, summed, 1, 1]);
        let a = self.between(Kind::Permute([1, 0, 2, 3, 4]), vec![a], [rows, pairs, summed, 1, 1]);
        let b = self.between(Kind::Reshape, vec![b], [pairs, summed, columns, 1, 1]);
        let b = self.between(Kind::Permute([0, 2, 1, 3, 4]), vec![b], [pairs, columns, summed, 1, 1]);
        let weights = self.between(Kind::Reshape, vec![b], [pairs * columns, summed, 1, 1, 1]);
        let product = self.times(a, weights, None, lengths);
        let product = self.between(Kind::Reshape, vec![product], [rows, pairs, columns, 1, 1]);
        self.between(Kind::Permute([1, 0, 2, 3, 4]), vec![product], [pairs, rows, columns, 1, 1])
    }

    fn gemm(&mut self, node: &Node, [alpha, beta]: [f32; 2], [trans_a, trans_b]: [bool; 2]) -> PlanResult {
        let (a, b, output) = (self.input(node, 0)?, self.input(node, 1)?, self.output(node)?);
        let (a_shape, b_shape) = (self.shape(a)?, self.shape(b)?);
        let (&[a0, a1], &[b0, b1]) = (a_shape.as_slice(), b_shape.as_slice()) else {
            return unsupported("of tensors that are not matrices");
        };
        let [rows, summed] = if trans_a { [a1, a0] } else { [a0, a1] };
        let columns = if trans_b { b0 } else { b1 };
        check_summed(summed)?;
        let turned = || Kind::Permute([1, 0, 2, 3, 4]);
        let (mut from, mut weights) = (self.source(a)?, self.source(b)?);
        if trans_a {
            from = self.between(turned(), vec![from], [rows, summed, 1, 1, 1]);
        }
        if !trans_b {
            weights = self.between(turned(), vec![weights], [columns, summed, 1, 1, 1]);
        }
        // As in BLAS, a factor of 0 means that the addend is not read: NaN in it has no effect.
        let addend = node.input(2).filter(|_| beta != 0.0);
        let mut bias = None;
        if let Some(c) = addend.filter(|_| alpha == 1.0 && beta == 1.0) {
            let shape = self.shape(c)?;
            if shape == [columns] || shape == [1, columns] {
                bias = Some(self.source(c)?);
            }
        }
        let form = [rows, columns, 1, 1, 1];
        let product = self.times(from, weights, bias, Lengths { pairs: 1, rows, summed, columns });
        let mut y = self.between(Kind::Reshape, vec![product], form);
        let times = |value| Kind::Scalar { op: BinaryOp::Mul, value, reversed: false };
        if alpha != 1.0 {
            y = self.between(times(alpha), vec![y], form);
        }
        if let Some(c) = addend.filter(|_| bias.is_none()) {
            let (shape, own) = (self.shape(c)?, self.form(c)?);
            let broadcast = broadcast_form(&shape, 2)
                .map_or_else(|| unsupported(format!("plus a tensor of shape {shape:?}")), Ok)?;
            let mut c = self.source(c)?;
            if beta != 1.0 {
                c = self.between(times(beta), vec![c], own);
            }
            y = self.between(Kind::Binary { op: BinaryOp::Add, forms: [form, broadcast] }, vec![y, c], form);
        }
        self.push(Kind::Reshape, vec![y], output)
    }

    /// Plans an Einstein sum of two tensors that is a product of matrices.
    fn einsum(&mut self, node: &Node, equation: &str) -> PlanResult {
        let refused = || unsupported(format!("with the equation {equation}"));
        let Some((left, kept)) = equation.split_once("->") else { return refused() };
        let Some((first, second)) = left.split_once(',') else { return refused() };
        let [first, second, kept] = [first, second, kept].map(|letters| letters.chars().collect::<Vec<char>>());
        let repeats = |letters: &Vec<char>| letters.iter().collect::<BTreeSet<_>>().len() < letters.len();
        if [&first, &second, &kept].into_iter().any(repeats) {
            return refused();
        }
        let pairs = chosen(&kept, |c| first.contains(c) && second.contains(c));
        let rows = chosen(&kept, |c| first.contains(c) && !second.contains(c));
        let columns = chosen(&kept, |c| second.contains(c) && !first.contains(c));
        let summed = chosen(&first, |c| !kept.contains(c));
        let is_summed = |c: &char| kept.contains(c) || summed.contains(c);
        if summed.iter().any(|c| !second.contains(c)) || !second.iter().all(is_summed) {
            return refused();
        }
        let (a, b, output) = (self.input(node, 0)?, self.input(node, 1)?, self.output(node)?);
        let (a_shape, b_shape) = (self.shape(a)?, self.shape(b)?);
        if a_shape.len() != first.len() || b_shape.len() != second.len() {
            return refused();
        }
        let letters = || first.iter().zip(&a_shape).chain(second.iter().zip(&b_shape));
        let lengths: BTreeMap<char, usize> = letters().map(|(c, length)| (*c, *length)).collect();
        // An axis of length 1 would have to be repeated.
        if letters().any(|(c, length)| lengths.get(c) != Some(length)) {
            return refused();
        }
        let of = |letters: &[char]| letters.iter().filter_map(|c| lengths.get(c)).product::<usize>();
        let all = Lengths { pairs: of(&pairs), rows: of(&rows), summed: of(&summed), columns: of(&columns) };
        check_summed(all.summed)?;
        let order = |from: &[char], to: &[char]| -> Vec<usize> {
            to.iter().filter_map(|c| from.iter().position(|own| own == c)).collect()
        };
        let (from, by) = (self.source(a)?, self.source(b)?);
        let from = self.permuted(from, &a_shape, &order(&first, &[&pairs[..], &rows, &summed].concat()));
        let by = self.permuted(by, &b_shape, &order(&second, &[&pairs[..], &summed, &columns].concat()));
        let product = self.pairwise(from, by, all);
        let made = [&pairs[..], &rows, &columns].concat();
        let shape: Vec<usize> = made.iter().filter_map(|c| lengths.get(c)).copied().collect();
        let product = self.permuted(product, &shape, &order(&made, &kept));
        self.push(Kind::Reshape, vec![product], output)
    }
}

/// Returns the lengths along Z, Y, X of a box with as many voxels as there are rows. The kernel for matrix units computes
/// up to four rows of 16 voxels along Z and along Y together.
fn boxed(rows: usize) -> [usize; 3] {
    let shapes = [[4, 4], [2, 4], [1, 4], [2, 2], [1, 2]];
    let fits = |[z, y]: &[usize; 2]| rows.is_multiple_of(z * y) && rows / (z * y) >= 16;
    let [z, y] = shapes.into_iter().find(fits).unwrap_or([1, 1]);
    [z, y, rows / (z * y)]
}

/// Returns the letters that are wanted.
fn chosen(from: &[char], wanted: impl Fn(&char) -> bool) -> Vec<char> {
    from.iter().copied().filter(wanted).collect()
}

/// Refuses sums of too many products.
fn check_summed(summed: usize) -> PlanResult {
    if summed > MAX_SUMMED {
        return unsupported(format!("with sums of {summed} products (limit: {MAX_SUMMED})"));
    }
    Ok(())
}
