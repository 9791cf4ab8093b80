//! Matrix products and the blocks of transformers, compared with the reference executor.

use crate::{engine, one, refusal, same, same_on, tensor};
use cytoscope_engine::{CompileOptions, Engine};
use cytoscope_graph::{Activation, BinaryOp, ConvAttrs, Dim, ElementType, Graph, Op, Padding, Tensor, ValueId};

fn ints(values: &[i64]) -> Option<Tensor> {
    Some(Tensor::vector(values.to_vec()))
}

/// Checks an operator of two tensors that are computed at run time.
fn check_binary(what: &str, op: Op, a: &[usize], b: &[usize]) {
    let mut graph = Graph::new("two");
    let dims = |shape: &[usize]| shape.iter().map(|n| Dim::Fixed(*n)).collect::<Vec<_>>();
    let first = graph.add_input("a", ElementType::F32, dims(a));
    let second = graph.add_input("b", ElementType::F32, dims(b));
    let y = graph.push("node", op, &[Some(first), Some(second)]);
    graph.outputs.push(y);
    same_on(&format!("{what} of {a:?} and {b:?}"), &graph, &[tensor(a, 1), tensor(b, 2)]);
}

#[test]
fn matrix_products_match_the_reference() {
    for (a, b) in [
        (&[5, 8][..], &[8, 12][..]),
        (&[2, 3, 5, 7], &[7, 6]),
        (&[7], &[7, 6]),
        (&[2, 5, 7], &[7]),
        (&[3, 5], &[1, 1, 5, 4]),
    ] {
        same(&format!("MatMul of {a:?} and {b:?}"), &one(Op::MatMul, a, vec![Some(tensor(b, 3))]));
    }
    for (a, b) in [
        (&[2, 3, 5, 8][..], &[2, 3, 8, 4][..]),
        (&[2, 1, 5, 7], &[3, 7, 6]),
        (&[5, 7], &[3, 7, 6]),
        (&[7], &[2, 7, 3]),
        (&[1, 2, 2, 2, 4, 3], &[1, 2, 2, 2, 3, 5]),
    ] {
        check_binary("MatMul", Op::MatMul, a, b);
    }
}

#[test]
fn gemm_matches_the_reference() {
    for (trans_a, trans_b, alpha, beta, c) in [
        (false, true, 1.0, 1.0, Some(vec![6])),
        (true, false, 0.5, 2.0, Some(vec![5, 1])),
        (false, false, 1.0, 1.0, Some(vec![1, 6])),
        (true, true, 2.0, 1.0, None),
    ] {
        let a = if trans_a { [7, 5] } else { [5, 7] };
        let b = if trans_b { [6, 7] } else { [7, 6] };
        let addend = c.as_ref().map(|shape| tensor(shape, 4));
        let graph = one(Op::Gemm { alpha, beta, trans_a, trans_b }, &a, vec![Some(tensor(&b, 3)), addend]);
        same(&format!("Gemm {trans_a} {trans_b} {c:?}"), &graph);
    }
}

#[test]
fn einstein_sums_that_are_matrix_products_match_the_reference() {
    for (equation, a, b) in [
        ("blxd,blyd->blxy", &[2, 3, 5, 4][..], &[2, 3, 6, 4][..]),
        ("bxyl,blyd->blxd", &[2, 5, 6, 3], &[2, 3, 6, 4]),
        ("ij,kj->ki", &[4, 5], &[3, 5]),
    ] {
        check_binary(equation, Op::Einsum { equation: equation.to_owned() }, a, b);
    }
    let diagonal = one(Op::Einsum { equation: "ii->i".to_owned() }, &[4, 4], vec![]);
    let Some(why) = refusal(&diagonal) else { return };
    assert!(why.contains("Einsum with the equation ii->i"), "{why}");
    let equation = "bij,bjk->bik";
    let repeated = one(Op::Einsum { equation: equation.to_owned() }, &[1, 2, 3], vec![Some(tensor(&[5, 3, 4], 3))]);
    let Some(why) = refusal(&repeated) else { return };
    assert!(why.contains(equation), "{why}");
}

#[test]
fn norms_over_the_last_axes_match_the_reference() {
    for (axis, shape, own) in [(-1, &[2, 5, 12][..], &[12][..]), (1, &[3, 4, 5], &[4, 5]), (2, &[1, 2, 3, 2, 4], &[4])]
    {
        let op = Op::LayerNormalization { axis, epsilon: 1e-5 };
        same(&format!("over {shape:?}"), &one(op.clone(), shape, vec![Some(tensor(own, 1)), Some(tensor(own, 2))]));
        same(&format!("over {shape:?}, no bias"), &one(op, shape, vec![Some(tensor(own, 1))]));
    }
    for p in [1, 2] {
        let op = Op::LpNormalization { axis: 1, p };
        let mut x = tensor(&[2, 3, 4], 5).into_f32().unwrap();
        (0..3).for_each(|channel| x[channel * 4] = 0.0);
        same_on(&format!("L{p} norm"), &one(op, &[2, 3, 4], vec![]), &[Tensor::new([2, 3, 4], x).unwrap()]);
    }
}

/// Adds the nodes of a network that cuts an image into windows, as Swin transformers do, with attention in each window.
struct Windows {
    graph: Graph,
    constants: usize,
}

impl Windows {
    fn push(&mut self, op: Op, inputs: &[Option<ValueId>]) -> ValueId {
        let name = format!("node {}", self.graph.nodes.len());
        self.graph.push(&name, op, inputs)
    }

    fn constant(&mut self, of: Tensor) -> Option<ValueId> {
        self.constants += 1;
        Some(self.graph.add_initializer(format!("c{}", self.constants), of))
    }

    fn numbers(&mut self, shape: &[usize]) -> Option<ValueId> {
        let seed = self.constants as u64;
        self.constant(tensor(shape, seed))
    }

    fn reshape(&mut self, x: ValueId, shape: &[i64]) -> ValueId {
        let shape = self.constant(Tensor::vector(shape.to_vec()));
        self.push(Op::Reshape { allow_zero: false }, &[Some(x), shape])
    }

    fn transpose(&mut self, x: ValueId, perm: &[usize]) -> ValueId {
        self.push(Op::Transpose { perm: perm.to_vec() }, &[Some(x)])
    }

    /// Attention with two heads of four channels among the eight voxels of each of eight windows.
    fn attention(&mut self, x: ValueId) -> ValueId {
        let weights = self.numbers(&[8, 24]);
        let all = self.push(Op::MatMul, &[Some(x), weights]);
        let all = self.reshape(all, &[8, 8, 3, 2, 4]);
        let all = self.transpose(all, &[2, 0, 3, 1, 4]);
        let [q, k, v] = [0i64, 1, 2].map(|part| {
            let index = self.constant(Tensor::scalar(part));
            self.push(Op::Gather { axis: 0 }, &[Some(all), index])
        });
        let k = self.transpose(k, &[0, 1, 3, 2]);
        let scores = self.push(Op::MatMul, &[Some(q), Some(k)]);
        let scores = self.push(Op::Softmax { axis: -1 }, &[Some(scores)]);
        let mixed = self.push(Op::MatMul, &[Some(scores), Some(v)]);
        let mixed = self.transpose(mixed, &[0, 2, 1, 3]);
        let mixed = self.reshape(mixed, &[8, 8, 8]);
        let weights = self.numbers(&[8, 8]);
        self.push(Op::MatMul, &[Some(mixed), weights])
    }
}

#[test]
fn a_network_with_attention_in_windows_matches_the_reference() {
    let mut network = Windows { graph: Graph::new("windows"), constants: 0 };
    let x = network.graph.add_input("x", ElementType::F32, [1, 1, 8, 8, 8].map(Dim::Fixed).to_vec());
    let weights = network.numbers(&[8, 1, 2, 2, 2]);
    let patches = ConvAttrs::same(&[2; 3]).with_strides(&[2; 3]).with_padding(Padding::none(3));
    let embedded = network.push(Op::Conv(patches), &[Some(x), weights]);
    let last = network.transpose(embedded, &[0, 2, 3, 4, 1]);
    let (scale, bias) = (network.numbers(&[8]), network.numbers(&[8]));
    let normed = network.push(Op::LayerNormalization { axis: -1, epsilon: 1e-5 }, &[Some(last), scale, bias]);
    let cut = network.reshape(normed, &[1, 2, 2, 2, 2, 2, 2, 8]);
    let cut = network.transpose(cut, &[0, 1, 3, 5, 2, 4, 6, 7]);
    let windows = network.reshape(cut, &[8, 8, 8]);
    let mixed = network.attention(windows);
    let apart = network.reshape(mixed, &[1, 2, 2, 2, 2, 2, 2, 8]);
    let apart = network.transpose(apart, &[0, 1, 4, 2, 5, 3, 6, 7]);
    let joined = network.reshape(apart, &[1, 4, 4, 4, 8]);
    let sum = network.push(Op::Binary(BinaryOp::Add), &[Some(joined), Some(last)]);
    let active = network.push(Op::Activation(Activation::Gelu { tanh: false }), &[Some(sum)]);
    let first = network.transpose(active, &[0, 4, 1, 2, 3]);
    network.graph.outputs.push(first);
    same("attention in windows", &network.graph);
    let Some(engine) = engine() else { return };
    let session = engine.compile(&network.graph, &[vec![1, 1, 8, 8, 8]], &CompileOptions::default()).unwrap();
    // 64 voxels with 8 channels: the projections, and the products of attention.
    let products = 64 * (8 * 24 + 8 * 8 + 2 * 8 * 8);
    assert!(session.report().macs >= products, "{}", session.report().macs);
}

#[test]
fn transposes_of_many_axes_match_the_reference() {
    for (shape, perm) in [
        (&[2, 3, 2, 2, 3, 2][..], &[5, 4, 3, 2, 1, 0][..]),
        (&[1, 2, 3, 1, 2, 2, 3], &[4, 0, 6, 2, 1, 5, 3]),
        (&[2, 2, 2, 2, 2, 2, 2, 2], &[0, 2, 4, 6, 1, 3, 5, 7]),
    ] {
        same(&format!("{shape:?} to {perm:?}"), &one(Op::Transpose { perm: perm.to_vec() }, shape, vec![]));
    }
    let slice = one(Op::Slice, &[2, 2, 2, 2, 2, 2], vec![ints(&[0]), ints(&[1]), ints(&[1])]);
    let Some(why) = refusal(&slice) else { return };
    assert!(why.contains("Slice on a tensor with 6 axes"), "{why}");
}
