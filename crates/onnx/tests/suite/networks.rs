//! Random networks, exported and run by ONNX Runtime.

use std::process::Command;

use cytoscope_builders::{describe, quantized, random_bytes, random_network};
use cytoscope_graph::{Graph, Tensor};

use crate::onnxruntime;

/// Number of networks that ONNX Runtime must also run.
const NETWORKS: u64 = 300;

/// Runs every `N.onnx` of a folder on `N.bin` and writes its outputs one after the other to `N.out`, or the error to
/// `N.err`.
const SCRIPT: &str = r#"
import sys, os
import numpy as np
import onnx, onnxruntime
folder = sys.argv[1]
o = onnxruntime.SessionOptions()
o.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
o.intra_op_num_threads = 1
o.log_severity_level = 4
for name in sorted(n[:-5] for n in os.listdir(folder) if n.endswith(".onnx")):
    path = os.path.join(folder, name)
    try:
        onnx.checker.check_model(path + ".onnx")
        s = onnxruntime.InferenceSession(path + ".onnx", o, providers=["CPUExecutionProvider"])
        i = s.get_inputs()[0]
        x = np.fromfile(path + ".bin", np.float32).reshape(i.shape)
        with open(path + ".out", "wb") as f:
            for y in s.run(None, {i.name: x}):
                f.write(np.ascontiguousarray(y, np.float32).tobytes())
    except Exception as e:
        with open(path + ".err", "w") as f:
            f.write(str(e))
"#;

/// Whether ONNX Runtime has no kernel for the network.
fn has_no_kernel(why: &str) -> bool {
    let refusals = [
        "NOT_IMPLEMENTED",
        "Could not find an implementation",
        "'Cubic' mode only supports",
        // "Same" padding of a window that is shorter than its stride.
        "padding values must be non-negative",
    ];
    refusals.iter().any(|refusal| why.contains(refusal))
}

/// Returns the largest difference of the outputs relative to their largest value.
fn far(ours: &[Tensor], theirs: &[f32], nearby: &[Tensor]) -> Result<f64, String> {
    let count: usize = ours.iter().map(Tensor::len).sum();
    if count != theirs.len() {
        return Err(format!("{} values for {count}", theirs.len()));
    }
    let (mut worst, mut at) = (0.0f64, 0);
    for (ours, nearby) in ours.iter().zip(nearby) {
        let (a, n) = (ours.to_f64_vec(), nearby.to_f64_vec());
        let range = a.iter().filter(|v| v.is_finite()).fold(1e-6f64, |m, v| m.max(v.abs()));
        let moved = a.iter().zip(&n).map(|(a, b)| (a - b).abs()).filter(|d| d.is_finite()).fold(0.0, f64::max);
        for (a, b) in a.iter().zip(&theirs[at..]) {
            let b = f64::from(*b);
            let same = *a == b || (a.is_nan() && b.is_nan());
            let difference = if same { 0.0 } else { (a - b).abs() };
            // Differences explained by rounding of the input are not counted.
            let off = if difference.is_nan() { f64::INFINITY } else { (difference - 20.0 * moved).max(0.0) / range };
            worst = worst.max(off);
        }
        at += a.len();
    }
    Ok(worst)
}

#[test]
fn onnx_runtime_agrees_on_random_networks() {
    let Some(python) = onnxruntime::python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut graphs: Vec<(String, Graph, Tensor, f64)> = Vec::new();
    for seed in 0..NETWORKS {
        let network = random_network(&random_bytes(seed, 512)).unwrap();
        let integers = quantized(&network, seed % 2 == 0).unwrap();
        graphs.push((format!("{seed:04}-float"), network.graph, network.input.clone(), 1e-4));
        if let Some(graph) = integers {
            // Rounding to the neighboring one of 255 levels propagates through the following layers.
            graphs.push((format!("{seed:04}-bytes"), graph, network.input, 3e-2));
        }
    }
    for (name, graph, input, _) in &graphs {
        cytoscope_onnx::save(graph, &folder.path().join(format!("{name}.onnx"))).unwrap();
        let bytes: Vec<u8> = input.as_f32().unwrap().iter().flat_map(|v| v.to_le_bytes()).collect();
        std::fs::write(folder.path().join(format!("{name}.bin")), bytes).unwrap();
    }
    let out = Command::new(python).args(["-c", SCRIPT]).arg(folder.path()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let (mut faults, mut without) = (Vec::new(), Vec::new());
    for (name, graph, input, most) in &graphs {
        if let Ok(why) = std::fs::read_to_string(folder.path().join(format!("{name}.err"))) {
            let list = if has_no_kernel(&why) { &mut without } else { &mut faults };
            list.push(format!("{name}: {why}\n{}", describe(graph)));
            continue;
        }
        let theirs = std::fs::read(folder.path().join(format!("{name}.out"))).unwrap();
        let theirs: Vec<f32> = theirs.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        let run = |factor: f32| {
            let values: Vec<f32> = input.as_f32().unwrap().iter().map(|v| v * factor).collect();
            cytoscope_reference::run(graph, &[("x".to_owned(), Tensor::new(input.shape(), values).unwrap())]).unwrap()
        };
        match far(&run(1.0), &theirs, &run(1.000_001)) {
            Ok(far) if far <= *most => {}
            Ok(far) => faults.push(format!("{name} is off by {far:.1e} of its range\n{}", describe(graph))),
            Err(how) => faults.push(format!("{name}: {how}\n{}", describe(graph))),
        }
    }
    let shown: Vec<&str> = faults.iter().take(8).map(String::as_str).collect();
    assert!(faults.is_empty(), "{} of {} differ:\n{}", faults.len(), graphs.len(), shown.join("\n"));
    assert!(without.len() * 20 < graphs.len(), "{} without a kernel:\n{}", without.len(), without.join("\n"));
}
