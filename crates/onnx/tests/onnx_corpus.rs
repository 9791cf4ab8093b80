//! Small ONNX models with stored inputs and outputs: the reference executor must reproduce at least 98 % of them.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../graph-passes/tests/suite/common.rs"]
mod common;
mod corpus;

use corpus::{DataSet, agrees};
use cytoscope_graph::{GraphLimits, Tensor};
use std::path::{Path, PathBuf};

fn reproduces(folder: &Path) -> Result<(), String> {
    let graph = cytoscope_onnx::load(&folder.join("model.onnx"), &GraphLimits::default()).map_err(|e| e.to_string())?;
    let exported = cytoscope_onnx::to_bytes(&graph).map_err(|e| format!("export: {e}"))?;
    let again =
        cytoscope_onnx::from_bytes(&exported, None, &GraphLimits::default()).map_err(|e| format!("re-import: {e}"))?;
    for DataSet { inputs, outputs: expected } in corpus::data_sets(folder) {
        let named: Vec<(String, Tensor)> =
            graph.inputs.iter().zip(inputs).map(|(&id, t)| (graph.value(id).name.clone(), t)).collect();
        for (what, graph) in [("", &graph), ("exported: ", &again)] {
            let got = cytoscope_reference::run(graph, &named).map_err(|e| format!("{what}{e}"))?;
            if got.len() < expected.len() {
                return Err(format!("{what}{} outputs for {}", got.len(), expected.len()));
            }
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
    let tests = corpus::models(&data);
    let failures: Vec<(PathBuf, String)> =
        tests.iter().filter_map(|t| reproduces(t).err().map(|e| (t.clone(), e))).collect();
    for (test, why) in &failures {
        eprintln!("FAILED {}: {why}", test.file_name().unwrap_or_default().to_string_lossy());
    }
    let passed = tests.len() - failures.len();
    eprintln!("{passed} of {} models reproduced", tests.len());
    assert!(passed * 100 >= tests.len() * 98, "{passed} of {} models reproduced; at least 98 % must be", tests.len());
}
