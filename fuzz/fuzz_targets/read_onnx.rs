//! ONNX files, and single tensors as ONNX's test data store them. No panic, bounded memory, and a network that is read
//! and written can be read again. (`onnx_run` also runs the networks.)
#![no_main]
use cytoscope_graph::GraphLimits;
use libfuzzer_sys::fuzz_target;

/// Maximum number of elements of a tensor.
const ELEMENTS: usize = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let limits =
        GraphLimits { tensor_elements: ELEMENTS, folded_elements: 1 << 16, nodes: 400, ..GraphLimits::default() };
    match cytoscope_onnx::parse_tensor(data, &limits) {
        Ok((_, tensor)) => assert!(tensor.len() <= ELEMENTS),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let graph = match cytoscope_onnx::from_bytes(data, None, &limits) {
        Ok(graph) => graph,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    graph.validate().expect("a network that was read is valid");
    let Ok(written) = cytoscope_onnx::to_bytes(&graph) else { return };
    let again = cytoscope_onnx::from_bytes(&written, None, &GraphLimits::default()).expect("a written network");
    assert_eq!((again.inputs.len(), again.outputs.len()), (graph.inputs.len(), graph.outputs.len()));
});
