//! Runs exported graphs with ONNX Runtime, if there is a Python that has it.
#![allow(dead_code, reason = "every test file uses its own part")]

use std::path::{Path, PathBuf};
use std::process::Command;

use cytoscope_graph::{Graph, Tensor};

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

/// Returns a Python with onnxruntime; reports a skip and returns `None` if there is none.
pub fn python() -> Option<PathBuf> {
    cytoscope_testkit::python_with("numpy, onnx, onnxruntime")
}

/// Returns onnxruntime's output for the exported graph, with the shape of `like`.
pub fn onnxruntime(python: &Path, graph: &Graph, x: &Tensor, like: &Tensor) -> Tensor {
    let folder = tempfile::tempdir().unwrap();
    cytoscope_onnx::save(graph, &folder.path().join("m.onnx")).unwrap();
    let bytes: Vec<u8> = x.as_f32().unwrap().iter().flat_map(|v| v.to_le_bytes()).collect();
    std::fs::write(folder.path().join("x.bin"), bytes).unwrap();
    let shape: Vec<String> = x.shape().iter().map(usize::to_string).collect();
    let out = Command::new(python).args(["-c", SCRIPT]).arg(folder.path()).arg(shape.join(",")).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let theirs = std::fs::read(folder.path().join("y.bin")).unwrap();
    let theirs: Vec<f32> = theirs.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    Tensor::new(like.shape(), theirs).unwrap()
}
