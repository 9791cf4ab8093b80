use std::process::Command;

use cytoscope_graph::builders::{
    DifferenceOfGaussians, DynUNet, UNet3d, Upsampling, Weights, difference_of_gaussians, dynunet, unet3d,
};
use cytoscope_graph::{Graph, GraphLimits, Tensor, passes, reference};

use crate::common;

const SCRIPT: &str = r#"
import sys
import numpy as np
import onnx, onnxruntime
folder = sys.argv[1]
onnx.checker.check_model(folder + "/m.onnx")
o = onnxruntime.SessionOptions()
# As written, node by node: what is compared is the file's meaning.
o.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
s = onnxruntime.InferenceSession(folder + "/m.onnx", o, providers=["CPUExecutionProvider"])
i = s.get_inputs()[0]
shape = [int(v) for v in sys.argv[2].split(",")]
x = np.fromfile(folder + "/x.bin", np.float32).reshape(shape)
s.run(None, {i.name: x})[0].tofile(folder + "/y.bin")
"#;

/// Returns a Python with onnxruntime; prints a message and returns `None` if there is none.
pub fn python() -> Option<String> {
    let python = std::env::var("CYTOSCOPE_PYTHON").unwrap_or_else(|_| "python3".into());
    let probe = Command::new(&python).args(["-c", "import onnx, onnxruntime, numpy"]).output();
    if probe.is_ok_and(|o| o.status.success()) {
        return Some(python);
    }
    {
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "SKIPPED: {python} has no onnxruntime (set CYTOSCOPE_PYTHON)");
    }
    None
}

/// Returns onnxruntime's output for the exported graph, with the shape of `like`.
pub fn onnxruntime(python: &str, graph: &Graph, x: &Tensor, like: &Tensor) -> Tensor {
    let folder = tempfile::tempdir().unwrap();
    graph.save(&folder.path().join("m.onnx")).unwrap();
    let bytes: Vec<u8> = x.as_f32().unwrap().iter().flat_map(|v| v.to_le_bytes()).collect();
    std::fs::write(folder.path().join("x.bin"), bytes).unwrap();
    let shape: Vec<String> = x.shape().iter().map(usize::to_string).collect();
    let out = Command::new(python).args(["-c", SCRIPT]).arg(folder.path()).arg(shape.join(",")).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let theirs = std::fs::read(folder.path().join("y.bin")).unwrap();
    let theirs: Vec<f32> = theirs.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    Tensor::new(like.shape(), theirs).unwrap()
}

fn nets() -> Vec<(&'static str, Graph)> {
    let random = Weights::Random { seed: 5 };
    let net = |upsampling| {
        let config = UNet3d { filters: vec![4, 8], strides: vec![[1, 2, 2]], upsampling, ..UNet3d::default() };
        unet3d(&config, &random).unwrap()
    };
    let mut fused = net(Upsampling::Nearest);
    passes::optimize(&mut fused).unwrap();
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
            all.push((name, Graph::load(&models.join(name), &GraphLimits::default()).unwrap()));
        }
    }
    all
}

#[test]
fn exported_graphs_are_read_back_unchanged() {
    for (name, graph) in nets() {
        let bytes = graph.to_bytes().unwrap();
        let again = Graph::from_bytes(&bytes, None, &GraphLimits::default()).unwrap();
        let x = common::noise_tensor(1, &[1, 1, 8, 8, 8]);
        let run = |g: &Graph| reference::run(g, &[("x".into(), x.clone())]).unwrap().remove(0);
        assert_eq!(common::distance(&run(&graph), &run(&again)), 0.0, "{name}");
        assert_eq!(again.to_bytes().unwrap(), again.to_bytes().unwrap(), "{name}: the same bytes every time");
    }
}

#[test]
fn onnx_runtime_agrees_with_exported_files() {
    let Some(python) = python() else { return };
    for (name, graph) in nets() {
        let x = common::noise_tensor(6, &[1, 1, 8, 16, 24]);
        let ours = reference::run(&graph, &[("x".into(), x.clone())]).unwrap().remove(0);
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
