//! Small ONNX models with stored inputs and outputs: the reference executor must reproduce at least 98 % of them.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../graph-passes/tests/suite/common.rs"]
mod common;

use std::path::{Path, PathBuf};

use cytoscope_graph::{GraphLimits, Tensor};
use cytoscope_onnx::parse_tensor;

/// Reads `prefix_0.pb`, `prefix_1.pb`, … of a data set.
fn tensors(folder: &Path, prefix: &str) -> Vec<Tensor> {
    let mut found = Vec::new();
    while let Ok(bytes) = std::fs::read(folder.join(format!("{prefix}_{}.pb", found.len()))) {
        found.push(parse_tensor(&bytes, &GraphLimits::default()).unwrap().1);
    }
    found
}

fn agrees(got: &Tensor, expected: &Tensor) -> Result<(), String> {
    if got.shape() != expected.shape() || got.dtype() != expected.dtype() {
        return Err(format!("{:?} {} for {:?} {}", got.shape(), got.dtype(), expected.shape(), expected.dtype()));
    }
    let (rtol, atol) = match expected.dtype() {
        t if !t.is_float() => (0.0, 0.0),
        cytoscope_graph::ElementType::F16 | cytoscope_graph::ElementType::BF16 => (1e-2, 1e-3),
        // ONNX's own tolerance: some expected values are rounded to four digits.
        _ => (1e-3, 1e-6),
    };
    for (index, (g, e)) in got.to_f64_vec().into_iter().zip(expected.to_f64_vec()).enumerate() {
        let same = g == e || (g.is_nan() && e.is_nan()) || (g - e).abs() <= atol + rtol * e.abs();
        if !same {
            return Err(format!("element {index} is {g}, not {e}"));
        }
    }
    Ok(())
}

fn reproduces(folder: &Path) -> Result<(), String> {
    let graph = cytoscope_onnx::load(&folder.join("model.onnx"), &GraphLimits::default()).map_err(|e| e.to_string())?;
    let exported = cytoscope_onnx::to_bytes(&graph).map_err(|e| format!("export: {e}"))?;
    let again =
        cytoscope_onnx::from_bytes(&exported, None, &GraphLimits::default()).map_err(|e| format!("re-import: {e}"))?;
    let mut sets: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()).collect();
    sets.sort();
    for set in sets {
        let inputs = tensors(&set, "input");
        let expected = tensors(&set, "output");
        let named: Vec<(String, Tensor)> =
            graph.inputs.iter().zip(inputs).map(|(&id, t)| (graph.value(id).name.clone(), t)).collect();
        for (what, graph) in [("", &graph), ("exported: ", &again)] {
            let got = cytoscope_reference::run(graph, &named).map_err(|e| format!("{what}{e}"))?;
            for (g, e) in got.iter().zip(&expected) {
                agrees(g, e).map_err(|e| format!("{what}{e}"))?;
            }
        }
        let mut shaped = graph.clone();
        let shapes: Vec<(&str, Vec<usize>)> = named.iter().map(|(n, t)| (n.as_str(), t.shape().to_vec())).collect();
        cytoscope_graph_passes::infer_shapes(&mut shaped, &shapes).map_err(|e| format!("shapes: {e}"))?;
        for (&id, e) in shaped.outputs.iter().zip(&expected) {
            // A shape may depend on data known only at run time; inferred lengths must be correct.
            if let Some(found) = shaped.value(id).fixed_shape()
                && found != e.shape()
            {
                return Err(format!("inferred {found:?}, not {:?}", e.shape()));
            }
        }
    }
    Ok(())
}

#[test]
fn corpus_is_reproduced() {
    let Some(data) = common::shared_data() else { return };
    let mut tests: Vec<PathBuf> = Vec::new();
    for group in ["onnx_node", "onnx_pytorch_converted", "onnx_pytorch_operator"] {
        for entry in std::fs::read_dir(data.join("onnx").join(group)).into_iter().flatten() {
            tests.push(entry.unwrap().path());
        }
    }
    tests.retain(|t| t.join("model.onnx").is_file());
    tests.sort();
    assert!(tests.len() >= 290, "only {} models found", tests.len());
    let failures: Vec<(PathBuf, String)> =
        tests.iter().filter_map(|t| reproduces(t).err().map(|e| (t.clone(), e))).collect();
    for (test, why) in &failures {
        eprintln!("FAILED {}: {why}", test.file_name().unwrap_or_default().to_string_lossy());
    }
    let passed = tests.len() - failures.len();
    eprintln!("{passed} of {} models reproduced", tests.len());
    assert!(passed * 100 >= tests.len() * 98, "{passed} of {} models reproduced; at least 98 % must be", tests.len());
}
