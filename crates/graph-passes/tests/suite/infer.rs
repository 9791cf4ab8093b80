//! Shape inference of single operators, also from inputs whose shapes are unknown.

use cytoscope_graph::infer::{Info, fixed, node_infos};
use cytoscope_graph::{Dim, ElementType, GraphErrorKind, GraphLimits, Loss, LossKind, Op, Result};

/// Applies the rule of an operator to 32-bit floats of these shapes; `None` is an unknown shape.
fn infer(op: &Op, shapes: &[Option<Vec<Dim>>], outputs: usize) -> Result<Vec<Info>> {
    let infos: Vec<Info> = shapes.iter().map(|shape| Info::new(Some(ElementType::F32), shape.clone())).collect();
    let inputs: Vec<Option<&Info>> = infos.iter().map(Some).collect();
    node_infos(op, &inputs, outputs, &GraphLimits::default())
}

fn known(lengths: &[usize]) -> Option<Vec<Dim>> {
    Some(fixed(lengths))
}

#[test]
fn batch_normalization_accepts_unknown_shapes() {
    let training = Op::BatchNormalizationTraining { epsilon: 1e-3 };
    for parameter in [known(&[4]), None] {
        let outputs = infer(&training, &[None, parameter.clone(), parameter], 3).unwrap();
        assert!(outputs.iter().all(|o| o.shape.is_none() && o.dtype == Some(ElementType::F32)), "{outputs:?}");
    }
    // Mean and variance have the channels of the input.
    let free = Dim::Free("c".to_owned());
    for parameter in [None, Some(vec![free.clone()])] {
        let outputs = infer(&training, &[known(&[2, 4, 5, 6, 7]), parameter.clone(), parameter], 3).unwrap();
        let shapes: Vec<_> = outputs.iter().map(Info::fixed_shape).collect();
        assert_eq!(shapes, [Some(vec![2, 4, 5, 6, 7]), Some(vec![4]), Some(vec![4])]);
    }
    let input = Some(vec![Dim::Fixed(2), free.clone(), Dim::Fixed(5)]);
    let outputs = infer(&training, &[input, known(&[4]), known(&[4])], 3).unwrap();
    assert_eq!(outputs[1].shape, Some(vec![free]));
    let inference = Op::BatchNormalization { epsilon: 1e-3 };
    let outputs = infer(&inference, &[None, known(&[4]), None, known(&[4]), None], 1).unwrap();
    assert!(outputs[0].shape.is_none(), "{outputs:?}");
}

#[test]
fn batch_normalization_refuses_parameters_that_cannot_fit() {
    let training = Op::BatchNormalizationTraining { epsilon: 1e-3 };
    for (input, parameter, expected) in [
        (None, known(&[4, 1]), "one axis, the channels"),
        (known(&[3]), known(&[4]), "one axis, the channels"),
        (known(&[2, 4, 5]), known(&[3]), "expected [4]"),
        (known(&[2, 4, 5]), known(&[4, 1]), "expected [4]"),
    ] {
        let error = infer(&training, &[input, parameter.clone(), parameter], 3).unwrap_err();
        assert_eq!(error.kind(), GraphErrorKind::Misused);
        let text = error.to_string();
        assert!(text.contains("scale or bias") && text.contains(expected), "{text}");
    }
}

#[test]
fn a_loss_without_terms_is_refused() {
    let image = known(&[1, 2, 4, 4, 4]);
    let empty = Op::Loss(Loss { terms: Vec::new() });
    let error = infer(&empty, &[image.clone(), image.clone()], 1).unwrap_err();
    assert_eq!(error.to_string(), "terms of a loss: got none, expected at least one");
    let one = Op::Loss(Loss::single(LossKind::MeanSquared, 2));
    let outputs = infer(&one, &[image.clone(), image], 1).unwrap();
    assert_eq!(outputs[0].fixed_shape(), Some(Vec::new()));
}
