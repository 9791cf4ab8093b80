//! Taking in foreign models and writing packages.

use crate::devices::Devices;
use crate::verify::{self, Verdict};
use crate::{Context, JobError};
use cytoscope_engine::{DeviceId, EngineError, Precision};
use cytoscope_graph::package::{
    AxisKind, AxisSize, Package, PackageBuilder, PackageError, TensorSpec, Tolerance, check_destination, compare,
};
use cytoscope_graph::{Dim, Graph, Tensor, ValueId, reference};
use cytoscope_storage::Overwrite;
use cytoscope_storage::folder::Replaced;
use serde::Serialize;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What an import came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ImportReport {
    /// The package's name.
    pub name: String,
    /// How its own test went.
    pub test: String,
    /// How the engines of this machine compute it.
    pub engines: Vec<EngineCheck>,
    /// Operators of its network.
    pub nodes: usize,
    /// Bytes of its weights.
    pub weight_bytes: usize,
    /// Where a folder that was there, and is not ours, was moved to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moved_to: Option<PathBuf>,
}

/// How an engine computes an imported network.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EngineCheck {
    /// The device.
    pub device: DeviceId,
    /// The precision it computed in.
    pub precision: String,
    /// Whether its outputs are those of the reference executor.
    pub agrees: bool,
    /// How they differ, or why it cannot run the network; empty where it agrees.
    pub detail: String,
}

/// Reads a package or an ONNX file, checks that its network runs and that the engines of this machine compute it correctly, and
/// writes it as a package.
///
/// # Errors
/// [`JobError::Model`] if it is at fault, has no ONNX weights, does not run, or no engine computes it correctly;
/// [`JobError::Storage`] if `to` may not be written to.
pub fn import(
    context: &Context,
    devices: &Devices,
    from: &Path,
    to: &Path,
    overwrite: Overwrite,
) -> Result<ImportReport, JobError> {
    check_destination(to, &[from], overwrite)?;
    let shown = from.display().to_string();
    let bad = |e: &dyn std::fmt::Display| JobError::model(&*shown, e.to_string());
    let package = Package::open(from).map_err(|e| JobError::model(&*shown, e))?;
    let of_package = package.test_tensors().map_err(|e| bad(&e))?;
    let has_test = of_package.is_some();
    let (inputs, outputs) = match of_package {
        Some(tensors) => tensors,
        None => test_or_made_up(&package)?,
    };
    context.check()?;
    let reference = run_reference(&package.graph, inputs.clone()).map_err(|e| bad(&e))?;
    let test = match differs(&package, &outputs, &reference) {
        _ if !has_test => {
            "it has no test tensors; the network runs, and its results here are kept as the test".to_owned()
        }
        None => "its test outputs are reproduced".to_owned(),
        Some(how) => format!("its test outputs are NOT reproduced: {how}"),
    };
    let engines = check_engines(context, devices, &package, &inputs, &reference)?;
    if let Some(first) = engines.first().filter(|_| engines.iter().all(|e| !e.agrees)) {
        return Err(bad(&format!(
            "no engine of this machine computes its network as the reference executor does ({}: {}), so its results would be \
             wrong; please report the model",
            first.device, first.detail
        )));
    }
    let replaced = write(builder(&package, inputs, outputs), to, overwrite)?;
    Ok(ImportReport {
        name: package.name.clone(),
        test,
        engines,
        nodes: package.graph.nodes.len(),
        weight_bytes: package.graph.initializer_bytes(),
        moved_to: match replaced {
            Replaced::MovedTo(path) => Some(path),
            _ => None,
        },
    })
}

/// Runs a network on every engine that a prediction may choose by itself.
fn check_engines(
    context: &Context,
    devices: &Devices,
    package: &Package,
    inputs: &[Tensor],
    reference: &[Tensor],
) -> Result<Vec<EngineCheck>, JobError> {
    let mut checks = Vec::new();
    for device in devices.list().iter().filter(|d| d.usable) {
        context.check()?;
        let precision = if package.is_int8() && device.id == DeviceId::Cpu { Precision::Int8 } else { Precision::F32 };
        let engine = devices.engine(device.id)?;
        let float = package.float_graph.as_ref().filter(|_| precision == Precision::F32);
        let verdict = match float {
            // The float network has results of its own.
            Some(float) => run_reference(float, inputs.to_vec()).map_err(EngineError::from).and_then(|expected| {
                verify::against(float, inputs, &expected, engine.as_ref(), precision, 0, context.interrupt())
            }),
            None => {
                verify::against(&package.graph, inputs, reference, engine.as_ref(), precision, 0, context.interrupt())
            }
        };
        let (agrees, detail) = match verdict {
            Ok(Verdict::Agrees) => (true, String::new()),
            Ok(Verdict::Differs { how }) => (false, how),
            Err(error) => (false, error.to_string()),
        };
        checks.push(EngineCheck { device: device.id, precision: precision.to_string(), agrees, detail });
    }
    Ok(checks)
}

/// How outputs differ from a package's test outputs; `None` within its tolerance.
fn differs(package: &Package, expected: &[Tensor], got: &[Tensor]) -> Option<String> {
    let pairs = package.outputs.iter().zip(expected).zip(got);
    pairs.into_iter().find_map(|((spec, e), g)| compare(&spec.id, e, g, package.tolerance()).err())
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
    Ok(differs(package, &expected, &got).map_or(TestResult::Reproduced, TestResult::Differs))
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

/// Most values of a made-up test input: 256 MiB.
const MAX_TEST_VALUES: usize = 1 << 26;
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
pub fn save(package: &Package, to: &Path, overwrite: Overwrite) -> Result<Replaced, JobError> {
    check_destination(to, &[], overwrite)?;
    let (test_inputs, test_outputs) = test_or_made_up(package)?;
    write(builder(package, test_inputs, test_outputs), to, overwrite)
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
    overwrite: Overwrite,
) -> Result<Replaced, JobError> {
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
    write(made, to, overwrite)
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

/// Writes a package.
///
/// # Errors
/// [`JobError::Storage`] if the path holds something else than a package of ours or cannot be written; [`JobError::Model`] if the
/// network has no ONNX form.
pub fn write(builder: PackageBuilder, to: &Path, overwrite: Overwrite) -> Result<Replaced, JobError> {
    builder.save(to, overwrite).map_err(|e| match e {
        PackageError::Io { path, error } => JobError::Io { path, error },
        PackageError::Storage(error) => JobError::Storage(error),
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
                min.saturating_add(TEST_EDGE.saturating_sub(*min).div_ceil(step).saturating_mul(step))
            }
            _ => TEST_EDGE,
        })
        .collect();
    let count = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).filter(|n| *n <= MAX_TEST_VALUES);
    let count = count.ok_or_else(|| {
        let problem = format!("a test input of {shape:?} would have more than {MAX_TEST_VALUES} values");
        cytoscope_graph::GraphError::Unsupported { what: problem }
    })?;
    Tensor::new(shape, verify::made_up_values(count))
}
