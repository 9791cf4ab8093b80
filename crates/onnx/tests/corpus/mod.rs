//! The ONNX models with stored inputs and outputs, and the tolerance with which their outputs are compared.

use cytoscope_graph::{ElementType, GraphLimits, Tensor};
use cytoscope_onnx::parse_tensor;
use std::path::{Path, PathBuf};

/// Stored inputs of a model, and the outputs for them.
pub struct DataSet {
    pub inputs: Vec<Tensor>,
    pub outputs: Vec<Tensor>,
}

/// Returns the folders of all models in the folder of shared data, sorted.
pub fn models(shared_data: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for group in ["onnx_node", "onnx_pytorch_converted", "onnx_pytorch_operator"] {
        for entry in std::fs::read_dir(shared_data.join("onnx").join(group)).into_iter().flatten() {
            found.push(entry.unwrap().path());
        }
    }
    found.retain(|folder| folder.join("model.onnx").is_file());
    found.sort();
    assert!(found.len() >= 290, "only {} models found", found.len());
    found
}

/// Reads the data sets of a model in its folder.
pub fn data_sets(folder: &Path) -> Vec<DataSet> {
    let mut sets: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()).collect();
    sets.sort();
    sets.iter().map(|set| DataSet { inputs: tensors(set, "input"), outputs: tensors(set, "output") }).collect()
}

/// Reads the tensors `prefix_0.pb`, `prefix_1.pb`, … of a data set.
fn tensors(folder: &Path, prefix: &str) -> Vec<Tensor> {
    let mut found = Vec::new();
    while let Ok(bytes) = std::fs::read(folder.join(format!("{prefix}_{}.pb", found.len()))) {
        found.push(parse_tensor(&bytes, &GraphLimits::default()).unwrap().1);
    }
    found
}

/// Compares tensors with the tolerances of ONNX's own tests: some expected values are rounded to four digits.
pub fn agrees(got: &Tensor, expected: &Tensor) -> Result<(), String> {
    if got.shape() != expected.shape() || got.dtype() != expected.dtype() {
        return Err(format!("{:?} {} for {:?} {}", got.shape(), got.dtype(), expected.shape(), expected.dtype()));
    }
    let (rtol, atol) = match expected.dtype() {
        t if !t.is_float() => (0.0, 0.0),
        ElementType::F16 | ElementType::BF16 => (1e-2, 1e-3),
        _ => (1e-3, 1e-6),
    };
    for (index, (g, e)) in got.to_f64_vec().into_iter().zip(expected.to_f64_vec()).enumerate() {
        let is_close = e.is_finite() && (g - e).abs() <= atol + rtol * e.abs();
        if !(g == e || (g.is_nan() && e.is_nan()) || is_close) {
            return Err(format!("element {index} is {g}, not {e}"));
        }
    }
    Ok(())
}
