//! Corner cases of operators. The expected values are those that ONNX Runtime 1.32 computes, or its refusals.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use cytoscope_graph::{
    Activation, AspectPolicy, CoordinateMode, NearestMode, Op, PadMode, Padding, PoolAttrs, ReduceOp, ResizeAttrs,
    ResizeMode, Scalar, Tensor,
};
use cytoscope_reference::eval;

/// Returns the outputs of an operator.
fn outputs(op: &Op, inputs: &[&Tensor], count: usize) -> Vec<Tensor> {
    let inputs: Vec<Option<&Tensor>> = inputs.iter().map(|x| Some(*x)).collect();
    eval(op, &inputs, count).unwrap()
}

/// Returns the elements of the only output of an operator.
fn values<T: Scalar>(op: &Op, inputs: &[&Tensor]) -> Vec<T> {
    outputs(op, inputs, 1)[0].as_slice().unwrap().to_vec()
}

fn reduce(kind: ReduceOp) -> Op {
    Op::Reduce { kind, keep_dims: true, noop_with_empty_axes: false }
}

/// A number that f64 cannot hold.
const LARGE: i64 = (1 << 62) + 1;

#[test]
fn searches_and_sums_of_large_integers_are_exact() {
    let axis = Tensor::scalar(0i64);
    let x = Tensor::vector(vec![LARGE - 1, LARGE, LARGE - 1]);
    let largest = Op::ArgReduce { max: true, axis: 0, keep_dims: true, last: false };
    assert_eq!(values::<i64>(&largest, &[&x]), [1]);
    let best = outputs(&Op::TopK { axis: 0, largest: true }, &[&x, &Tensor::vector(vec![2i64])], 2);
    assert_eq!(best, [Tensor::vector(vec![LARGE, LARGE - 1]), Tensor::vector(vec![1i64, 0])]);
    let sums = Op::CumSum { exclusive: false, reverse: false };
    let x = Tensor::vector(vec![LARGE, 1, 5]);
    assert_eq!(values::<i64>(&sums, &[&x, &axis]), [LARGE, LARGE + 1, LARGE + 6]);
    // Integers wrap.
    let x = Tensor::vector(vec![i64::MAX, 1, 2]);
    assert_eq!(values::<i64>(&sums, &[&x, &axis]), [i64::MAX, i64::MIN, i64::MIN + 2]);
    let reverse = Op::CumSum { exclusive: true, reverse: true };
    assert_eq!(values::<u8>(&reverse, &[&Tensor::vector(vec![7u8, 200, 100]), &axis]), [44, 100, 0]);
}

#[test]
fn products_of_large_integers_are_exact() {
    let (a, one) = (Tensor::new([1, 1], vec![LARGE]).unwrap(), Tensor::new([1, 1], vec![1i64]).unwrap());
    assert_eq!(values::<i64>(&Op::MatMul, &[&a, &one]), [LARGE]);
    assert_eq!(values::<i64>(&Op::Einsum { equation: "ij,jk->ik".to_owned() }, &[&a, &one]), [LARGE]);
    let most = Tensor::new([1, 1], vec![u64::MAX]).unwrap();
    assert_eq!(values::<u64>(&Op::MatMul, &[&most, &Tensor::new([1, 1], vec![1u64]).unwrap()]), [u64::MAX]);
    // Fractional factors of integer products.
    let gemm = Op::Gemm { alpha: 1.5, beta: 1.0, trans_a: false, trans_b: false };
    let (a, b) = (Tensor::new([1, 2], vec![2i32, 3]).unwrap(), Tensor::new([2, 1], vec![4i32, 4]).unwrap());
    assert_eq!(values::<i32>(&gemm, &[&a, &b]), [30]);
}

#[test]
fn reductions_of_unsigned_integers_of_64_bits_use_all_bits() {
    let x = Tensor::vector(vec![u64::MAX, u64::MAX - 4]);
    assert_eq!(values::<u64>(&reduce(ReduceOp::Mean), &[&x]), [u64::MAX - 2]);
    let x = Tensor::vector(vec![u64::MAX - 1, 1]);
    assert_eq!(values::<u64>(&reduce(ReduceOp::L1), &[&x]), [u64::MAX]);
    // The exponential of 1000 exceeds f64.
    let x = Tensor::vector(vec![1000i64, 3]);
    assert_eq!(values::<i64>(&reduce(ReduceOp::LogSumExp), &[&x]), [1000]);
}

#[test]
fn the_extremes_of_no_elements_are_the_ends_of_the_type() {
    fn ends<T: Scalar>() -> [T; 2] {
        let none = Tensor::new([1, 0], Vec::<T>::new()).unwrap();
        let axes = Tensor::vector(vec![1i64]);
        [ReduceOp::Max, ReduceOp::Min].map(|kind| values::<T>(&reduce(kind), &[&none, &axes])[0])
    }
    assert_eq!(ends::<f32>(), [f32::NEG_INFINITY, f32::INFINITY]);
    assert_eq!(ends::<i8>(), [i8::MIN, i8::MAX]);
    assert_eq!(ends::<u8>(), [u8::MIN, u8::MAX]);
    assert_eq!(ends::<i32>(), [i32::MIN, i32::MAX]);
    assert_eq!(ends::<i64>(), [i64::MIN, i64::MAX]);
    assert_eq!(ends::<u64>(), [u64::MIN, u64::MAX]);
    assert_eq!(ends::<bool>(), [false, true]);
}

#[test]
fn a_pooling_window_outside_the_input_has_the_smallest_value_of_the_type() {
    let pool = Op::MaxPool(PoolAttrs {
        kernel: vec![2],
        strides: vec![1],
        dilations: vec![3],
        padding: Padding::symmetric(vec![1]),
        ceil_mode: false,
        count_include_pad: false,
        column_major_indices: false,
    });
    // The window reads the padding on either side.
    let x = Tensor::new([1, 1, 2], vec![5i8, 6]).unwrap();
    assert_eq!(values::<i8>(&pool, &[&x]), [i8::MIN]);
    let x = Tensor::new([1, 1, 2], vec![5.0f32, 6.0]).unwrap();
    assert_eq!(values::<f32>(&pool, &[&x]), [f32::NEG_INFINITY]);
}

#[test]
fn equal_numbers_keep_their_order_and_nan_of_either_sign_is_the_largest() {
    let ordered = |largest: bool, x: &[f32]| {
        let count = Tensor::vector(vec![x.len() as i64]);
        let found = outputs(&Op::TopK { axis: 0, largest }, &[&Tensor::vector(x.to_vec()), &count], 2);
        found[1].as_i64().unwrap().to_vec()
    };
    for largest in [true, false] {
        assert_eq!(ordered(largest, &[0.0, -0.0, 0.0, -0.0]), [0, 1, 2, 3]);
    }
    for nan in [f32::NAN, -f32::NAN] {
        assert_eq!(ordered(true, &[1.0, nan, f32::INFINITY]), [1, 2, 0]);
        assert_eq!(ordered(false, &[1.0, nan, f32::INFINITY]), [0, 2, 1]);
    }
}

#[test]
fn a_backward_slice_from_before_the_first_element_begins_at_the_first() {
    let x = Tensor::vector((0..10).map(|v| v as f32).collect());
    let slice = |start: i64, end: i64, step: i64| {
        let [start, end, step] = [start, end, step].map(|v| Tensor::vector(vec![v]));
        values::<f32>(&Op::Slice, &[&x, &start, &end, &Tensor::vector(vec![0i64]), &step])
    };
    assert_eq!(slice(i64::MIN, i64::MIN, -1), [0.0]);
    assert_eq!(slice(-11, -100, -3), [0.0]);
    assert_eq!(slice(i64::MAX, i64::MIN, -4), [9.0, 5.0, 1.0]);
    assert_eq!(slice(2, 5, -1), [0.0; 0]);
    let none = Tensor::vector(Vec::<f32>::new());
    let [start, end, step] = [-1, i64::MIN, -1].map(|v| Tensor::vector(vec![v]));
    let axes = Tensor::vector(vec![0i64]);
    assert_eq!(values::<f32>(&Op::Slice, &[&none, &start, &end, &axes, &step]), [0.0; 0]);
}

#[test]
fn padding_with_elements_that_do_not_exist_is_refused() {
    let pad = |mode: PadMode, length: usize, amounts: [i64; 2]| {
        let x = Tensor::vector((0..length).map(|v| v as f32).collect());
        let made = eval(&Op::Pad { mode }, &[Some(&x), Some(&Tensor::vector(amounts.to_vec()))], 1);
        made.map(|y| y[0].as_f32().unwrap().to_vec())
    };
    for mode in [PadMode::Edge, PadMode::Reflect, PadMode::Wrap] {
        assert!(pad(mode, 0, [0, 2]).is_err(), "{mode:?} of no elements");
        assert!(pad(mode, 1, [-1, 2]).is_err(), "{mode:?} of a cropped element");
        assert!(pad(mode, 10, [12, -11]).is_err(), "{mode:?} of cropped elements");
        assert_eq!(pad(mode, 10, [0, -10]).unwrap(), [0.0; 0], "{mode:?}");
    }
    assert_eq!(pad(PadMode::Constant, 0, [0, 2]).unwrap(), [0.0; 2]);
    // Cropped elements are not reflected.
    assert_eq!(pad(PadMode::Reflect, 10, [4, -5]).unwrap(), [4.0, 3.0, 2.0, 1.0, 0.0, 1.0, 2.0, 3.0, 4.0]);
    let error = pad(PadMode::Reflect, 10, [5, -5]).unwrap_err().to_string();
    assert_eq!(
        error,
        "pads: got 5 before and -5 after an axis of length 10, expected less than the 5 elements that remain"
    );
}

#[test]
fn resizing_integers_stays_within_the_type() {
    let cubic = Op::resize(ResizeAttrs {
        mode: ResizeMode::Cubic,
        coordinates: CoordinateMode::HalfPixel,
        ..ResizeAttrs::nearest()
    });
    let x = Tensor::vector(vec![0u8, 255, 0, 255]);
    let y = eval(&cubic, &[Some(&x), None, Some(&Tensor::vector(vec![3.0f32]))], 1).unwrap();
    // ONNX's reference evaluator.
    assert_eq!(y[0].as_u8().unwrap(), [0, 0, 94, 203, 255, 189, 66, 0, 52, 161, 255, 255]);
}

#[test]
fn scales_of_a_cropping_resize_apply_to_the_whole_axis() {
    let crop = Op::resize(ResizeAttrs {
        mode: ResizeMode::Nearest,
        coordinates: CoordinateMode::TfCropAndResize,
        nearest: NearestMode::RoundPreferFloor,
        policy: AspectPolicy::Stretch,
        extrapolation_value: -1.0,
        ..ResizeAttrs::nearest()
    });
    let x = Tensor::vector((0..5).map(|v| v as f32).collect());
    let resized = |scale: f32, region: [f32; 2]| {
        let (region, scale) = (Tensor::vector(region.to_vec()), Tensor::vector(vec![scale]));
        eval(&crop, &[Some(&x), Some(&region), Some(&scale)], 1).unwrap()[0].as_f32().unwrap().to_vec()
    };
    assert_eq!(resized(1.4, [0.25, 0.75]), [1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0]);
    assert_eq!(resized(0.6, [0.5, 1.5]), [2.0, 4.0, -1.0]);
    assert_eq!(resized(0.2, [0.0, 1.0]), [2.0]);
}

#[test]
fn a_factor_of_zero_removes_the_addend_of_a_matrix_product() {
    let gemm = Op::Gemm { alpha: 1.0, beta: 0.0, trans_a: false, trans_b: false };
    let (a, b) = (Tensor::new([1, 2], vec![2.0f32, 3.0]).unwrap(), Tensor::new([2, 1], vec![4.0f32, 5.0]).unwrap());
    assert_eq!(values::<f32>(&gemm, &[&a, &b, &Tensor::vector(vec![f32::NAN])]), [23.0]);
}

/// As in PyTorch.
#[test]
fn an_infinite_gradient_ends_where_relu_is_constant() {
    let gradient = Op::Vjp(Box::new(Op::Activation(Activation::Relu)));
    let (x, dy) = (Tensor::vector(vec![-1.0f32, 2.0]), Tensor::vector(vec![f32::INFINITY; 2]));
    assert_eq!(values::<f32>(&gradient, &[&x, &dy]), [0.0, f32::INFINITY]);
}
