//! A network on slices that was made a network on stacks computes each slice separately.

use crate::common;
use cytoscope_builders::{describe, quantized, random_bytes, random_network};
use cytoscope_graph::{Dim, ElementType, Graph, Op, Tensor};
use cytoscope_graph_passes::over_slices;

fn run(graph: &Graph, x: &Tensor) -> Vec<Tensor> {
    cytoscope_reference::run(graph, &[("x".into(), x.clone())]).unwrap()
}

/// Compares the slices of a stack with the same slices alone; `false` if the network cannot be applied to stacks.
fn compare(graph: &Graph, x: &Tensor) -> bool {
    let [n, c, h, w]: [usize; 4] = x.shape().try_into().unwrap();
    let Some(lifted) = over_slices(graph) else { return false };
    lifted.validate().unwrap();
    let slices = [x.clone(), common::noise_tensor(3, x.shape())];
    let part = |slice: &Tensor, at: usize| slice.as_f32().unwrap()[at * h * w..(at + 1) * h * w].to_vec();
    let mut values: Vec<f32> = Vec::new();
    for at in 0..n * c {
        slices.iter().for_each(|slice| values.extend(part(slice, at)));
    }
    let stack = Tensor::new([n, c, 2, h, w], values).unwrap();
    let found = run(&lifted, &stack);
    for (z, slice) in slices.iter().enumerate() {
        let wanted = run(graph, slice);
        assert_eq!(found.len(), wanted.len(), "{}", describe(graph));
        for (found, wanted) in found.iter().zip(wanted) {
            let [n, c, h, w]: [usize; 4] = wanted.shape().try_into().unwrap();
            assert_eq!(found.shape(), [n, c, 2, h, w], "{}", describe(graph));
            let (found, wanted) = (found.to_f64_vec(), wanted.to_f64_vec());
            for (at, wanted) in wanted.chunks((h * w).max(1)).enumerate() {
                let found = &found[(at * 2 + z) * h * w..(at * 2 + z + 1) * h * w];
                let same = |(a, b): (&f64, &f64)| a == b || (a - b).abs() <= 1e-6 * b.abs().max(1.0) || b.is_nan();
                assert!(found.iter().zip(wanted).all(same), "slice {z}\n{}", describe(graph));
            }
        }
    }
    true
}

#[test]
fn a_network_over_slices_computes_each_slice_of_a_stack_by_itself() {
    let (mut floats, mut integers) = (0, 0);
    for seed in 0..500 {
        let network = random_network(&random_bytes(seed, 512)).unwrap();
        if network.input.shape().len() != 4 {
            continue;
        }
        floats += usize::from(compare(&network.graph, &network.input));
        let quantized = quantized(&network, false).unwrap();
        integers += usize::from(quantized.is_some_and(|graph| compare(&graph, &network.input)));
    }
    assert!(floats >= 5 && integers >= 2, "{floats} float and {integers} int8 networks");
}

#[test]
fn networks_with_constant_channels_are_not_applied_to_stacks() {
    let mut graph = Graph::new("coordinates");
    let x = graph.add_input("x", ElementType::F32, [1, 1, 5, 6].map(Dim::Fixed).to_vec());
    let rows = graph.add_initializer("rows", common::noise_tensor(2, &[1, 1, 5, 6]));
    let both = graph.push("both", Op::concat(1), &[Some(x), Some(rows)]);
    graph.outputs.push(both);
    assert!(over_slices(&graph).is_none());
    graph.nodes[0].inputs = vec![Some(x), Some(x)];
    assert!(over_slices(&graph).is_some());
}
