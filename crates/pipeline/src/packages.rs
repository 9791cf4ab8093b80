//! Taking in foreign models and writing packages.

use crate::JobError;
use cytoscope_graph::package::{
    AxisKind, AxisSize, Package, PackageBuilder, PackageError, TensorSpec, Tolerance, compare,
};
use cytoscope_graph::{Dim, Graph, Tensor, ValueId, reference};
use serde::Serialize;
use serde_json::Value;
use std::path::Path;

/// What an import came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ImportReport {
    /// The package's name.
    pub name: String,
    /// How its own test went.
    pub test: String,
    /// Operators of its network.
    pub nodes: usize,
    /// Bytes of its weights.
    pub weight_bytes: usize,
}

/// Reads a package or an ONNX file, checks that its network runs, and writes it as a package.
///
/// # Errors
/// [`JobError::Model`] if it is at fault, has no ONNX weights, or does not run.
pub fn import(from: &Path, to: &Path) -> Result<ImportReport, JobError> {
    let shown = from.display().to_string();
    let package = Package::open(from).map_err(|e| JobError::model(&*shown, e))?;
    let test = match test(&package)? {
        TestResult::Reproduced => "its test outputs are reproduced".to_owned(),
        TestResult::Differs(how) => format!("its test outputs are NOT reproduced: {how}"),
        TestResult::None => {
            "it has no test tensors; the network runs, and its results here are kept as the test".to_owned()
        }
    };
    let report = ImportReport {
        name: package.name.clone(),
        test,
        nodes: package.graph.nodes.len(),
        weight_bytes: package.graph.initializer_bytes(),
    };
    save(&package, to)?;
    Ok(report)
}

/// How a package's own test went.
#[derive(Debug, Clone, PartialEq)]
pub enum TestResult {
    /// Outputs within bioimage.io's tolerance.
    Reproduced,
    /// Not so.
    Differs(String),
    /// It has none.
    None,
}

/// Runs a package's own test on the reference executor.
///
/// # Errors
/// [`JobError::Model`] if a test tensor is at fault or the network does not run.
pub fn test(package: &Package) -> Result<TestResult, JobError> {
    let bad = |e: &dyn std::fmt::Display| JobError::model(package.path.display().to_string(), e.to_string());
    let Some((inputs, expected)) = package.test_tensors().map_err(|e| bad(&e))? else { return Ok(TestResult::None) };
    let got = run_reference(&package.graph, inputs).map_err(|e| bad(&e))?;
    for ((spec, e), g) in package.outputs.iter().zip(&expected).zip(&got) {
        if let Err(how) = compare(&spec.id, e, g, package.tolerance()) {
            return Ok(TestResult::Differs(how));
        }
    }
    Ok(TestResult::Reproduced)
}

pub(crate) fn run_reference(graph: &Graph, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, cytoscope_graph::GraphError> {
    let named: Vec<(String, Tensor)> =
        graph.inputs.iter().zip(inputs).map(|(id, t)| (graph.value(*id).name.clone(), t)).collect();
    reference::run(graph, &named)
}

/// Most pictures of a package that are kept when it is written anew.
const MAX_COVERS: usize = 16;
/// Most bytes of one of them.
const MAX_COVER_BYTES: usize = 16 << 20;
/// How names of pictures end.
const COVER_ENDINGS: [&str; 8] = ["png", "jpg", "jpeg", "gif", "svg", "webp", "tif", "tiff"];

/// Voxels along a free axis of made-up test inputs.
const TEST_EDGE: usize = 16;

/// What a quantized form of a package has of its own.
pub(crate) struct Quantized {
    pub graph: Graph,
    pub float_graph: Option<Graph>,
    pub tolerance: Tolerance,
    /// Outputs for the package's test inputs.
    pub test_outputs: Vec<Tensor>,
    /// `config.cytoscope.quantization`.
    pub record: Value,
}

/// Writes a package as bioimage.io 0.5: a folder, or a zip. One without test tensors gets some from the reference executor.
///
/// # Errors
/// [`JobError::Model`] if the network does not run or the files cannot be written.
pub fn save(package: &Package, to: &Path) -> Result<(), JobError> {
    let (test_inputs, test_outputs) = test_or_made_up(package)?;
    write(builder(package, test_inputs, test_outputs), to)
}

/// Writes the quantized form of a package.
///
/// # Errors
/// As [`save`].
pub(crate) fn save_quantized(
    package: &Package,
    test_inputs: Vec<Tensor>,
    quantized: Quantized,
    to: &Path,
) -> Result<(), JobError> {
    let mut made = builder(package, test_inputs, quantized.test_outputs);
    made.graph = quantized.graph;
    made.float_graph = quantized.float_graph;
    made.tolerance = Some(quantized.tolerance);
    match made.config.as_object_mut() {
        Some(section) => {
            section.insert("quantization".to_owned(), quantized.record);
        }
        None => made.config = serde_json::json!({"quantization": quantized.record}),
    }
    write(made, to)
}

/// A package's test tensors, inputs and outputs; where it has none, made-up inputs and what the reference executor makes of them.
///
/// # Errors
/// [`JobError::Model`] if a test tensor is at fault or the network does not run.
pub(crate) fn test_or_made_up(package: &Package) -> Result<(Vec<Tensor>, Vec<Tensor>), JobError> {
    let bad = |e: &dyn std::fmt::Display| JobError::model(package.path.display().to_string(), e.to_string());
    if let Some(tensors) = package.test_tensors().map_err(|e| bad(&e))? {
        return Ok(tensors);
    }
    let inputs: Vec<Tensor> = package
        .inputs
        .iter()
        .zip(&package.graph.inputs)
        .map(|(spec, id)| made_up(spec, &package.graph, *id))
        .collect::<Result<_, _>>()
        .map_err(|e| bad(&e))?;
    let outputs = run_reference(&package.graph, inputs.clone()).map_err(|e| bad(&e))?;
    Ok((inputs, outputs))
}

fn builder(package: &Package, test_inputs: Vec<Tensor>, test_outputs: Vec<Tensor>) -> PackageBuilder {
    let text = |key: &str| package.rdf.get(key).and_then(Value::as_str);
    let list = |key: &str| package.rdf.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let documentation = text("documentation")
        .and_then(|file| package.files().read(file).ok())
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .unwrap_or_else(|| format!("# {}\n\n{}\n", package.name, package.description));
    let authors =
        list("authors").iter().filter_map(|a| a.get("name").and_then(Value::as_str)).map(str::to_owned).collect();
    let cite = list("cite")
        .iter()
        .filter_map(|c| {
            Some((c.get("text")?.as_str()?.to_owned(), c.get("doi").and_then(Value::as_str).map(str::to_owned)))
        })
        .collect();
    let tags = list("tags").iter().filter_map(Value::as_str).map(str::to_owned).collect();
    let mut name: String = package
        .name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "_+- ()".contains(c) { c } else { '_' })
        .take(128)
        .collect();
    while name.chars().count() < 5 {
        name.push('_');
    }
    let covers = covers(package, &list("covers"));
    let declared = package.tolerance();
    PackageBuilder {
        name,
        description: package.description.clone(),
        documentation,
        authors,
        cite,
        license: text("license").unwrap_or("LicenseRef-unknown").to_owned(),
        tags,
        inputs: package.inputs.clone(),
        outputs: package.outputs.clone(),
        graph: package.graph.clone(),
        test_inputs,
        test_outputs,
        config: package.config().clone(),
        covers,
        float_graph: package.float_graph.clone(),
        tolerance: (declared != Tolerance::default()).then_some(declared),
    }
}

/// The pictures of a package, with plain names; what is missing, is no picture or has a name that another one has is left out.
fn covers(package: &Package, listed: &[Value]) -> Vec<(String, Vec<u8>)> {
    let mut covers: Vec<(String, Vec<u8>)> = Vec::new();
    for file in listed.iter().filter_map(Value::as_str) {
        let name = file.rsplit(['/', '\\']).next().unwrap_or(file);
        let ending = name.rsplit('.').next().map(str::to_ascii_lowercase).unwrap_or_default();
        if covers.len() >= MAX_COVERS
            || !COVER_ENDINGS.contains(&ending.as_str())
            || covers.iter().any(|(taken, _)| taken == name)
        {
            continue;
        }
        if let Ok(bytes) = package.files().read(file)
            && bytes.len() <= MAX_COVER_BYTES
        {
            covers.push((name.to_owned(), bytes));
        }
    }
    covers
}

fn write(builder: PackageBuilder, to: &Path) -> Result<(), JobError> {
    builder.save(to).map_err(|e| match e {
        PackageError::Io { path, error } => JobError::Io { path, error },
        other => JobError::model(to.display().to_string(), other),
    })
}

/// A reproducible test input: a ramp with ripples.
fn made_up(spec: &TensorSpec, graph: &Graph, id: ValueId) -> Result<Tensor, cytoscope_graph::GraphError> {
    let dims = graph.value(id).shape.clone().unwrap_or_default();
    let shape: Vec<usize> = spec
        .axes
        .iter()
        .enumerate()
        .map(|(i, axis)| match (dims.get(i).and_then(Dim::fixed), &axis.size, axis.kind) {
            (Some(n), ..) => n,
            (None, AxisSize::Fixed(n), _) => *n,
            (_, _, AxisKind::Batch | AxisKind::Channel) => 1,
            (_, AxisSize::Step { min, step }, _) => {
                let step = (*step).max(1);
                min + TEST_EDGE.saturating_sub(*min).div_ceil(step) * step
            }
            _ => TEST_EDGE,
        })
        .collect();
    let len = shape.iter().product();
    let values: Vec<f32> = (0..len).map(|i: usize| ((i as f32) * 0.37).sin() + (i % 11) as f32 * 0.1 - 0.5).collect();
    Tensor::new(shape, values)
}
