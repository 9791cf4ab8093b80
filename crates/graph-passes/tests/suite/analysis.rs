//! Receptive fields compared with perturbed inputs, cropped tiles with the whole, and batches with their samples.

use cytoscope_builders::{
    DifferenceOfGaussians, DynUNet, UNet3d, Upsampling, Weights, difference_of_gaussians, dynunet, unet3d,
};
use cytoscope_graph::{
    BinaryOp, ConvAttrs, CoordinateMode, Dim, ElementType, Graph, GraphLimits, Op, PadMode, ReduceOp, ResizeAttrs,
    Tensor, ValueId,
};
use cytoscope_graph_passes::analysis::{self, ReceptiveField};

use crate::common;

fn run(graph: &Graph, x: &Tensor) -> Vec<f64> {
    cytoscope_reference::run(graph, &[("x".into(), x.clone())]).unwrap().remove(0).to_f64_vec()
}

/// Changes single voxels along one axis and checks that the outputs that change are those the analysis predicts.
fn perturb(graph: &Graph, field: &ReceptiveField, length: usize) {
    for axis in 0..3 {
        let mut shape = vec![1, 1, 8, 8, 8];
        shape[axis + 2] = length;
        let values = common::noise(axis as u64, shape.iter().product());
        let base = run(graph, &Tensor::new(shape.clone(), values.clone()).unwrap());
        let reach = &field.axes[axis];
        let (before, after) = (reach.before.unwrap(), reach.after.unwrap());
        let stride: usize = shape[axis + 3..].iter().product();
        let (mut furthest_before, mut furthest_after) = (0usize, 0usize);
        for at in (0..length).filter(|a| a % 5 == 0 || a + 9 > length / 2 && *a < length / 2 + 9) {
            let mut changed = values.clone();
            for (index, v) in changed.iter_mut().enumerate() {
                if index / stride % length == at {
                    *v += 3.0;
                }
            }
            let now = run(graph, &Tensor::new(shape.clone(), changed).unwrap());
            for (index, (a, b)) in base.iter().zip(&now).enumerate() {
                if a == b {
                    continue;
                }
                let o = index / stride % length;
                furthest_before = furthest_before.max(o.saturating_sub(at));
                furthest_after = furthest_after.max(at.saturating_sub(o));
                assert!(
                    o.saturating_sub(at) <= before && at.saturating_sub(o) <= after,
                    "axis {axis}: {at} changed {o}"
                );
            }
        }
        // The bound is safe but not wasteful: the measured field comes close to it.
        let slack = 2 * reach.multiple_of;
        assert!(furthest_before + slack >= before, "axis {axis}: {furthest_before} measured, {before} claimed");
        assert!(furthest_after + slack >= after, "axis {axis}: {furthest_after} measured, {after} claimed");
    }
}

fn small_net(upsampling: Upsampling) -> Graph {
    let config = UNet3d {
        filters: vec![2, 3, 4],
        strides: vec![[1, 2, 2], [2, 2, 2]],
        kernel: [3, 3, 3],
        upsampling,
        ..UNet3d::default()
    };
    unet3d(&config, &Weights::Random { seed: 11 }).unwrap()
}

#[test]
fn receptive_field_equals_the_one_measured_by_perturbation() {
    for upsampling in [Upsampling::Transposed, Upsampling::Nearest] {
        let graph = small_net(upsampling);
        let field = analysis::receptive_field(&graph).unwrap();
        assert_eq!(field.axes.iter().map(|a| a.multiple_of).collect::<Vec<_>>(), [2, 4, 4]);
        perturb(&graph, &field, 64);
    }
    let config = DifferenceOfGaussians {
        sigma_small: [0.6, 1.0, 1.0],
        sigma_large: [1.0, 2.0, 3.0],
        gain: 30.0,
        ..DifferenceOfGaussians::default()
    };
    let graph = difference_of_gaussians(&config).unwrap();
    let field = analysis::receptive_field(&graph).unwrap();
    assert_eq!(field.halo(), Some(vec![3, 6, 9]));
    perturb(&graph, &field, 40);
}

/// The middle of a padded tile equals the untiled result, at the border as well as inside.
#[test]
fn cropped_tiles_equal_the_whole() {
    let dog = difference_of_gaussians(&DifferenceOfGaussians {
        sigma_large: [1.0, 2.0, 2.0],
        ..DifferenceOfGaussians::default()
    })
    .unwrap();
    for graph in [dog, small_net(Upsampling::Transposed)] {
        check_tiles(&graph);
    }
}

/// Returns a network that crops along X, convolves, and pads to the original length again.
fn cropped_and_padded(before: i64, after: i64) -> Graph {
    let mut graph = Graph::new("cropped");
    let free = ["z", "y", "x"].map(|axis| Dim::Free(axis.to_owned()));
    let x = graph.add_input("x", ElementType::F32, [1, 1].map(Dim::Fixed).into_iter().chain(free).collect());
    let pad = |graph: &mut Graph, x: ValueId, sign: i64| {
        let amounts = vec![0, 0, 0, 0, sign * before, 0, 0, 0, 0, sign * after];
        let amounts = graph.add_initializer("amounts", Tensor::vector(amounts));
        graph.push("pad", Op::Pad { mode: PadMode::Constant }, &[Some(x), Some(amounts)])
    };
    let cropped = pad(&mut graph, x, -1);
    let weights = graph.add_initializer("weights", Tensor::new([1, 1, 1, 1, 3], vec![0.5f32, 1.0, 0.25]).unwrap());
    let y = graph.push("conv", Op::Conv(ConvAttrs::same(&[1, 1, 3])), &[Some(cropped), Some(weights)]);
    let y = pad(&mut graph, y, 1);
    graph.outputs.push(y);
    graph
}

#[test]
fn tiles_contain_what_is_read_next_to_a_crop() {
    for (before, after, expected) in [(2, 0, [3, 1]), (0, 2, [1, 3]), (2, 2, [3, 3]), (-2, 0, [1, 1]), (0, -2, [1, 1])]
    {
        let graph = cropped_and_padded(before, after);
        let reach = &analysis::receptive_field(&graph).unwrap().axes[2];
        assert_eq!([reach.before, reach.after], expected.map(Some), "{before} before, {after} after");
        check_tiles(&graph);
    }
}

/// Checks that the middle of tiles along X with the halo that the analysis states equals the untiled result.
fn check_tiles(graph: &Graph) {
    let field = analysis::receptive_field(graph).unwrap();
    let halo = field.halo().unwrap()[2];
    let (step, length) = (16, 160);
    let shape = [1, 1, 4, 4, length];
    let whole = common::noise_tensor(2, &shape);
    let expected = run(graph, &whole);
    let values = whole.as_f32().unwrap();
    for start in (0..length).step_by(step) {
        let (from, to) = (start.saturating_sub(halo), (start + step + halo).min(length));
        let rows: Vec<f32> = values.chunks(length).flat_map(|row| row[from..to].to_vec()).collect();
        let tile = run(graph, &Tensor::new([1, 1, 4, 4, to - from], rows).unwrap());
        for row in 0..16 {
            for x in start..start + step {
                let (a, b) = (tile[row * (to - from) + x - from], expected[row * length + x]);
                assert_eq!(a, b, "row {row}, x {x}");
            }
        }
    }
}

#[test]
fn instance_norm_has_an_unbounded_receptive_field() {
    let graph = dynunet(&DynUNet::default(), &Weights::Random { seed: 0 }).unwrap();
    let found = analysis::analyze(&graph).unwrap();
    assert!(found.normalizes && !found.field.is_bounded() && found.field.halo().is_none());
    assert!(found.field.axes.iter().all(|a| a.multiple_of == 4));
    assert_eq!(found.outputs[0].scale, [Some((1, 1)); 3]);
    let fixed = small_net(Upsampling::Transposed);
    let found = analysis::analyze(&fixed).unwrap();
    assert!(!found.normalizes && found.field.is_bounded());
    assert_eq!(found.outputs[0].channels, Some(1));
    assert_eq!(found.outputs[0].scale, [Some((1, 1)); 3]);
    if let Some(models) = common::bench_models() {
        let graph = cytoscope_onnx::load(&models.join("M1t_qdq.onnx"), &GraphLimits::default()).unwrap();
        assert!(analysis::depends_on_tile_statistics(&graph));
    }
}

#[test]
fn a_batch_gives_the_results_of_its_samples_where_the_analysis_says_so() {
    let shape = [2, 1, 4, 8, 8];
    let x = common::noise_tensor(5, &shape);
    let values = x.as_f32().unwrap();
    let norms = dynunet(&DynUNet { filters: vec![2, 3, 4], ..DynUNet::default() }, &Weights::Random { seed: 1 });
    for graph in [small_net(Upsampling::Transposed), small_net(Upsampling::Nearest), norms.unwrap()] {
        assert!(analysis::samples_are_independent(&graph, &shape), "{}", graph.name);
        let both = run(&graph, &x);
        for (sample, together) in values.chunks(values.len() / 2).zip(both.chunks(both.len() / 2)) {
            let alone = run(&graph, &Tensor::new([1, 1, 4, 8, 8], sample.to_vec()).unwrap());
            let worst = cytoscope_testkit::largest_difference(&alone, together);
            assert!(worst < 1e-6, "{}: {worst}", graph.name);
        }
    }
}

#[test]
fn operators_that_mix_samples_and_fixed_batches_are_found() {
    let minus_mean = |first: Dim, axis: i64| {
        let mut graph = Graph::new("minus mean");
        let axes = ["z", "y", "x"].map(|name| Dim::Free(name.to_owned()));
        let shape = [first, Dim::Fixed(1)].into_iter().chain(axes).collect();
        let x = graph.add_input("x", ElementType::F32, shape);
        let over = graph.add_initializer("axes", Tensor::vector(vec![axis]));
        let mean = Op::Reduce { kind: ReduceOp::Mean, keep_dims: true, noop_with_empty_axes: false };
        let mean = graph.push("mean", mean, &[Some(x), Some(over)]);
        let y = graph.push("minus", Op::Binary(BinaryOp::Sub), &[Some(x), Some(mean)]);
        graph.outputs.push(y);
        graph
    };
    let free = || Dim::Free("n".to_owned());
    let shape = [2, 1, 4, 4, 4];
    assert!(analysis::samples_are_independent(&minus_mean(free(), 2), &shape));
    assert!(!analysis::samples_are_independent(&minus_mean(free(), 0), &shape));
    assert!(!analysis::samples_are_independent(&minus_mean(free(), -5), &shape));
    assert!(!analysis::samples_are_independent(&minus_mean(Dim::Fixed(2), 2), &shape));
    assert!(!analysis::samples_are_independent(&minus_mean(free(), 2), &[1, 1, 4, 4, 4]), "one sample shows nothing");
}

#[test]
fn a_resize_that_crops_the_batch_mixes_samples() {
    let resized = |coordinates: CoordinateMode, factor: f32| {
        let mut graph = Graph::new("resize");
        let free = |name: &str| Dim::Free(name.to_owned());
        let shape = vec![free("n"), Dim::Fixed(1), free("z"), free("y"), free("x")];
        let x = graph.add_input("x", ElementType::F32, shape);
        let region = vec![0.5f32, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0];
        let region = graph.add_initializer("region", Tensor::vector(region));
        let scales = graph.add_initializer("scales", Tensor::vector(vec![factor, 1.0, 1.0, 2.0, 2.0]));
        let op = Op::resize(ResizeAttrs { coordinates, ..ResizeAttrs::nearest() });
        let y = graph.push("resize", op, &[Some(x), Some(region), Some(scales)]);
        graph.outputs.push(y);
        graph
    };
    let shape = [2, 1, 4, 4, 4];
    assert!(analysis::samples_are_independent(&resized(CoordinateMode::HalfPixel, 1.0), &shape));
    // Half of the samples, twice: as many as before.
    assert!(!analysis::samples_are_independent(&resized(CoordinateMode::TfCropAndResize, 2.0), &shape));
    // Two samples times 1.4 are two samples, but the second one is taken from position 1 / 1.4, which is rounded down to 0.
    assert!(!analysis::samples_are_independent(&resized(CoordinateMode::Asymmetric, 1.4), &shape));
}

#[test]
fn a_resize_that_moves_voxels_but_keeps_the_length_has_an_unbounded_receptive_field() {
    let resized = |factor: f32| {
        let mut graph = Graph::new("resize");
        let shape = [1, 1, 8, 8, 8].map(Dim::Fixed).to_vec();
        let x = graph.add_input("x", ElementType::F32, shape);
        let scales = graph.add_initializer("scales", Tensor::vector(vec![1.0, 1.0, 1.0, 1.0, factor]));
        let y = graph.push("resize", Op::resize(ResizeAttrs::nearest()), &[Some(x), None, Some(scales)]);
        graph.outputs.push(y);
        graph
    };
    let x = common::noise_tensor(3, &[1, 1, 8, 8, 8]);
    let (copy, moving) = (resized(1.0), resized(1.12));
    assert_eq!(run(&copy, &x), x.to_f64_vec());
    assert_eq!(analysis::receptive_field(&copy).unwrap().halo(), Some(vec![0, 0, 0]));
    let moved = run(&moving, &x);
    assert!(moved.len() == x.len() && moved != x.to_f64_vec());
    let axes = analysis::receptive_field(&moving).unwrap().axes;
    assert_eq!(axes.iter().map(|axis| axis.before).collect::<Vec<_>>(), [Some(0), Some(0), None]);
}
