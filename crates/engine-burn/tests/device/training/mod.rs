//! Training steps, compared with the reference executor and the CPU engine.

mod networks;
mod operators;

use cytoscope_graph::{Graph, Tensor};

/// Returns the outputs of the reference executor.
fn expected(graph: &Graph, inputs: &[Tensor]) -> Vec<Tensor> {
    let names = graph.inputs.iter().map(|i| graph.value(*i).name.clone());
    cytoscope_reference::run(graph, &names.zip(inputs.iter().cloned()).collect::<Vec<_>>()).unwrap()
}

/// Returns the L2 norms of the difference and of the expected tensor.
fn lengths(got: &Tensor, want: &Tensor) -> (f64, f64) {
    assert_eq!(got.shape(), want.shape());
    let (got, want) = (got.to_f64_vec(), want.to_f64_vec());
    let norm = want.iter().map(|v| v * v).sum::<f64>().sqrt();
    (got.iter().zip(&want).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt(), norm)
}
