//! Shape inference of single operators, also from inputs whose shapes are unknown.

use cytoscope_graph::infer::{Info, fixed, node_infos};
use cytoscope_graph::{
    AspectPolicy, CoordinateMode, Dim, ElementType, GraphErrorKind, GraphLimits, Loss, LossKind, Op, PadMode,
    ResizeAttrs, Result, Tensor,
};
use std::sync::Arc;

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
fn an_axis_that_is_listed_twice_is_refused() {
    let list = |values: &[i64]| Info::of(&Arc::new(Tensor::vector(values.to_vec())));
    let x = Info::new(Some(ElementType::F32), known(&[2, 3]));
    let (zeros, ones, amounts) = (list(&[0, 0]), list(&[1, 1]), list(&[1, 1, 1, 1]));
    for (axes, is_refused) in [(list(&[0, 1]), false), (list(&[1, 1]), true)] {
        let cases: [(Op, Vec<Option<&Info>>); 3] = [
            (Op::Unsqueeze, vec![Some(&x), Some(&axes)]),
            (Op::Slice, vec![Some(&x), Some(&zeros), Some(&ones), Some(&axes)]),
            (Op::Pad { mode: PadMode::Constant }, vec![Some(&x), Some(&amounts), None, Some(&axes)]),
        ];
        for (op, inputs) in cases {
            let found = node_infos(&op, &inputs, 1, &GraphLimits::default());
            assert_eq!(found.is_err(), is_refused, "{op:?}");
            if let Err(error) = found {
                assert!(error.to_string().contains("each axis once"), "{op:?}: {error}");
            }
        }
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

#[test]
fn a_resize_that_adapts_its_lengths_to_the_input_has_free_lengths_if_the_input_has() {
    let shape = vec![Dim::Free("n".to_owned()), Dim::Fixed(2), Dim::Fixed(7), Dim::Fixed(18)];
    let input = Info::new(Some(ElementType::F32), Some(shape));
    let sizes = Info::of(&Arc::new(Tensor::vector(vec![5i64, 6])));
    let scales = Info::of(&Arc::new(Tensor::vector(vec![2.0f32, 3.0])));
    let lengths = |attrs: ResizeAttrs, inputs: [Option<&Info>; 4]| {
        let op = Op::resize(ResizeAttrs { axes: Some(vec![2, 3]), ..attrs });
        let outputs = node_infos(&op, &inputs, 1, &GraphLimits::default()).unwrap();
        outputs[0].shape.iter().flatten().skip(2).map(Dim::fixed).collect::<Vec<Option<usize>>>()
    };
    let by_sizes = |policy: AspectPolicy| {
        lengths(ResizeAttrs { policy, ..ResizeAttrs::nearest() }, [Some(&input), None, None, Some(&sizes)])
    };
    assert_eq!(by_sizes(AspectPolicy::Stretch), [Some(5), Some(6)]);
    assert_eq!(by_sizes(AspectPolicy::NotLarger), [None, None]);
    assert_eq!(by_sizes(AspectPolicy::NotSmaller), [None, None]);
    let by_scales = |coordinates: CoordinateMode| {
        lengths(ResizeAttrs { coordinates, ..ResizeAttrs::nearest() }, [Some(&input), None, Some(&scales), None])
    };
    assert_eq!(by_scales(CoordinateMode::Asymmetric), [Some(14), Some(54)]);
    assert_eq!(by_scales(CoordinateMode::TfCropAndResize), [Some(14), Some(54)]);
}

#[test]
fn a_length_after_a_resize_is_the_same_whether_another_one_is_free_or_not() {
    let scales = Info::of(&Arc::new(Tensor::vector(vec![1.0f32, 1.0, 0.7])));
    let length = |first: Dim| {
        let input = Info::new(Some(ElementType::F32), Some(vec![first, Dim::Fixed(2), Dim::Fixed(10)]));
        let (op, inputs) = (Op::resize(ResizeAttrs::nearest()), [Some(&input), None, Some(&scales), None]);
        let outputs = node_infos(&op, &inputs, 1, &GraphLimits::default()).unwrap();
        outputs[0].shape.iter().flatten().nth(2).and_then(Dim::fixed)
    };
    // In 32 bits, 0.7 is a little smaller, and the product is rounded to 7.
    assert_eq!([Dim::Fixed(1), Dim::Free("n".to_owned())].map(length), [Some(7); 2]);
}
