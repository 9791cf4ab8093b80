//! Networks built from a description.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

#[path = "../../graph-passes/tests/suite/common.rs"]
mod common;

use cytoscope_builders::{
    DifferenceOfGaussians, DynUNet, UNet3d, Upsampling, Weights, difference_of_gaussians, dynunet, unet3d,
};
use cytoscope_graph::{Graph, GraphLimits, Tensor};
use cytoscope_graph_passes::analysis;

fn run(graph: &Graph, x: &Tensor) -> Tensor {
    cytoscope_reference::run(graph, &[("x".into(), x.clone())]).unwrap().remove(0)
}

#[test]
fn dynunet_reproduces_m1() {
    let Some(models) = common::bench_models() else { return };
    for name in ["M1.onnx", "M1t.onnx"] {
        let theirs = cytoscope_onnx::load(&models.join(name), &GraphLimits::default()).unwrap();
        let parameters = theirs.named_initializers();
        let ours = dynunet(&DynUNet::default(), &Weights::Named(&parameters)).unwrap();
        assert_eq!(ours.initializer_bytes(), theirs.initializer_bytes(), "every weight is used");
        let x = common::noise_tensor(7, &[1, 1, 16, 24, 32]);
        let (a, b) = (run(&theirs, &x), run(&ours, &x));
        assert!(common::distance(&a, &b) == 0.0, "{name}: {}", common::distance(&a, &b));
    }
}

#[test]
fn m1_multiply_accumulates_are_counted() {
    let Some(models) = common::bench_models() else { return };
    let graph = cytoscope_onnx::load(&models.join("M1.onnx"), &GraphLimits::default()).unwrap();
    let work = analysis::multiply_accumulates(&graph, &[("x", vec![1, 1, 64, 64, 64])]).unwrap();
    assert_eq!(work, 12_352_225_280);
}

#[test]
fn the_static_network_builds_with_both_upsamplings() {
    for upsampling in [Upsampling::Transposed, Upsampling::Nearest] {
        let config = UNet3d { upsampling, strides: vec![[1, 2, 2], [2; 3]], ..UNet3d::default() };
        let graph = unet3d(&config, &Weights::Random { seed: 1 }).unwrap();
        let y = run(&graph, &common::noise_tensor(5, &[1, 1, 8, 16, 16]));
        assert_eq!(y.shape(), [1, 1, 8, 16, 16]);
        assert!(!analysis::depends_on_tile_statistics(&graph));
        let again = unet3d(&config, &Weights::Random { seed: 1 }).unwrap();
        assert_eq!(graph, again, "one seed, one network");
    }
}

#[test]
fn weights_that_do_not_fit_are_named() {
    let graph = dynunet(&DynUNet::default(), &Weights::Random { seed: 0 }).unwrap();
    let mut parameters = graph.named_initializers();
    parameters.remove("bottleneck.norm1.bias");
    let error = dynunet(&DynUNet::default(), &Weights::Named(&parameters)).unwrap_err();
    assert!(error.to_string().contains("bottleneck.norm1.bias"), "{error}");
}

#[test]
fn difference_of_gaussians_finds_blobs_and_ignores_constants() {
    let config = DifferenceOfGaussians { gain: 20.0, offset: -1.0, ..DifferenceOfGaussians::default() };
    let graph = difference_of_gaussians(&config).unwrap();
    let flat = run(&graph, &Tensor::new([1, 1, 6, 7, 8], vec![3.0f32; 336]).unwrap());
    let expected = 1.0 / (1.0 + 1f64.exp());
    assert!(flat.to_f64_vec().into_iter().all(|v| (v - expected).abs() < 1e-5));
    let mut spot = vec![0.0f32; 16 * 16 * 16];
    for z in 6..10 {
        for y in 6..10 {
            for x in 6..10 {
                spot[(z * 16 + y) * 16 + x] = 1.0;
            }
        }
    }
    let y = run(&graph, &Tensor::new([1, 1, 16, 16, 16], spot).unwrap()).to_f64_vec();
    assert!(y[(8 * 16 + 8) * 16 + 8] > 0.9 && y[0] < 0.5);
    assert!(y.iter().all(|v| (0.0..=1.0).contains(v)));
}

#[test]
fn kernels_that_are_too_long_are_refused() {
    let wide = [400.0, 1.0, 1.0];
    let default = DifferenceOfGaussians::default;
    let refused = |config| difference_of_gaussians(&config).unwrap_err().to_string();
    for config in [
        DifferenceOfGaussians { sigma_small: wide, ..default() },
        DifferenceOfGaussians { sigma_large: wide, ..default() },
        DifferenceOfGaussians { brightness: Some((wide, 0.5)), ..default() },
    ] {
        assert!(refused(config).contains("2001 voxels"));
    }
}

#[test]
fn an_invalid_parameter_is_named_with_its_value() {
    let default = DifferenceOfGaussians::default;
    for (config, parameter, got) in [
        (DifferenceOfGaussians { truncate: -1.0, ..default() }, "truncate", "got -1"),
        (DifferenceOfGaussians { sigma_large: [1.0, -2.0, 3.0], ..default() }, "sigma_large", "got [1.0, -2.0, 3.0]"),
        (DifferenceOfGaussians { large_share: 0.0, ..default() }, "large_share", "got 0"),
        (DifferenceOfGaussians { brightness: Some(([1.0; 3], 0.0)), ..default() }, "half of the brightness", "got 0"),
        (DifferenceOfGaussians { gain: f32::NAN, ..default() }, "gain", "got NaN"),
        (DifferenceOfGaussians { offset: f32::INFINITY, ..default() }, "offset", "got inf"),
    ] {
        let text = difference_of_gaussians(&config).unwrap_err().to_string();
        assert!(text.starts_with(parameter) && text.contains(got), "{text}");
    }
}
