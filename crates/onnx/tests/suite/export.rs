//! Exported networks: read back by this crate, and run by ONNX Runtime.

use cytoscope_builders::{
    DifferenceOfGaussians, DynUNet, UNet3d, Upsampling, Weights, difference_of_gaussians, dynunet, unet3d,
};
use cytoscope_graph::{Graph, GraphLimits};

use crate::common;
use crate::onnxruntime::{onnxruntime, python};

fn nets() -> Vec<(&'static str, Graph)> {
    let random = Weights::Random { seed: 5 };
    let net = |upsampling| {
        let config = UNet3d { filters: vec![4, 8], strides: vec![[1, 2, 2]], upsampling, ..UNet3d::default() };
        unet3d(&config, &random).unwrap()
    };
    let mut fused = net(Upsampling::Nearest);
    cytoscope_graph_passes::optimize(&mut fused).unwrap();
    let mut all = vec![
        ("transposed", net(Upsampling::Transposed)),
        ("nearest", net(Upsampling::Nearest)),
        ("fused", fused),
        (
            "dynunet",
            dynunet(&DynUNet { filters: vec![4, 8], strides: vec![1, 2], ..DynUNet::default() }, &random).unwrap(),
        ),
        ("gaussians", difference_of_gaussians(&DifferenceOfGaussians::default()).unwrap()),
    ];
    if let Some(models) = common::bench_models() {
        for name in ["M1t.onnx", "M1t_qdq.onnx"] {
            all.push((name, cytoscope_onnx::load(&models.join(name), &GraphLimits::default()).unwrap()));
        }
    }
    all
}

#[test]
fn exported_graphs_are_read_back_unchanged() {
    for (name, graph) in nets() {
        let bytes = cytoscope_onnx::to_bytes(&graph).unwrap();
        let again = cytoscope_onnx::from_bytes(&bytes, None, &GraphLimits::default()).unwrap();
        let x = common::noise_tensor(1, &[1, 1, 8, 8, 8]);
        let run = |g: &Graph| cytoscope_reference::run(g, &[("x".into(), x.clone())]).unwrap().remove(0);
        assert_eq!(common::distance(&run(&graph), &run(&again)), 0.0, "{name}");
        assert_eq!(
            cytoscope_onnx::to_bytes(&again).unwrap(),
            cytoscope_onnx::to_bytes(&again).unwrap(),
            "{name}: the same bytes every time"
        );
    }
}

#[test]
fn onnx_runtime_agrees_with_exported_files() {
    let Some(python) = python() else { return };
    for (name, graph) in nets() {
        let x = common::noise_tensor(6, &[1, 1, 8, 16, 24]);
        let ours = cytoscope_reference::run(&graph, &[("x".into(), x.clone())]).unwrap().remove(0);
        let theirs = onnxruntime(&python, &graph, &x, &ours);
        let range = ours.to_f64_vec().into_iter().fold(0.0, |m: f64, v| m.max(v.abs()));
        let distance = common::distance(&ours, &theirs) / range;
        let square = |v: &[f64]| v.iter().map(|v| v * v).sum::<f64>().sqrt();
        let (a, b) = (ours.to_f64_vec(), theirs.to_f64_vec());
        let errors: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a - b).collect();
        let relative = square(&errors) / square(&b);
        eprintln!("{name}: largest difference {distance:.1e} of the range, relative L2 {relative:.1e}");
        assert!(relative < 0.02, "{name}: relative L2 {relative}");
        // Integers that round differently by one level differ by one quantization step.
        let allowed = if name.contains("qdq") { 0.1 } else { 1e-4 };
        assert!(distance < allowed, "{name}: {distance}");
    }
}
