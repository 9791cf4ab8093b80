//! Networks in 16-bit floats as networks in 32-bit floats.

use cytoscope_graph::{ElementType, Graph, Op};
use std::sync::Arc;

/// Makes all 16-bit floats of a network 32-bit floats: its inputs, outputs, constants and every value between them. Returns
/// whether there are any.
pub fn to_single_precision(graph: &mut Graph) -> bool {
    let mut found = false;
    let mut widen = |dtype: &mut ElementType| {
        if dtype.is_half() {
            *dtype = ElementType::F32;
            found = true;
        }
    };
    graph.values.iter_mut().filter_map(|value| value.dtype.as_mut()).for_each(&mut widen);
    for node in &mut graph.nodes {
        match &mut node.op {
            Op::Cast { to } => widen(to),
            Op::ConstantOfShape { value } if value.dtype().is_half() => *value = value.cast(ElementType::F32),
            _ => {}
        }
    }
    for tensor in graph.initializers.values_mut().filter(|tensor| tensor.dtype().is_half()) {
        *tensor = Arc::new(tensor.cast(ElementType::F32));
        found = true;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_graph::{BinaryOp, Dim, Tensor};

    #[test]
    fn a_network_of_16_bit_floats_computes_in_32_bits() {
        let mut graph = Graph::new("half");
        let x = graph.add_input("x", ElementType::F16, vec![Dim::Fixed(3)]);
        let factor = graph.add_initializer("factor", Tensor::vector(vec![1.5f32; 3]).cast(ElementType::F16));
        let y = graph.push("y", Op::Binary(BinaryOp::Mul), &[Some(x), Some(factor)]);
        let wide = graph.push("wide", Op::Cast { to: ElementType::F32 }, &[Some(y)]);
        let narrow = graph.push("narrow", Op::Cast { to: ElementType::F16 }, &[Some(wide)]);
        graph.outputs.push(narrow);
        crate::infer_shapes::<cytoscope_graph::ValueId>(&mut graph, &[]).unwrap();
        assert!(to_single_precision(&mut graph));
        crate::infer_shapes::<cytoscope_graph::ValueId>(&mut graph, &[]).unwrap();
        // 1 + 2⁻¹² has no 16-bit form.
        let input = [("x".to_owned(), Tensor::vector(vec![1.0f32 + 1.0 / 4096.0; 3]))];
        let got = cytoscope_reference::run(&graph, &input).unwrap();
        assert_eq!(got[0].as_f32().unwrap(), [1.5f32 + 1.5 / 4096.0; 3]);
        assert!(!to_single_precision(&mut graph));
    }
}
