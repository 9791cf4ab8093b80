//! Taking in foreign models and writing packages.

use crate::carried::{carried, covers, file_name};
use crate::devices::Devices;
use crate::package_test::{self, TestRun};
use crate::tensors::run_reference;
use crate::verify::{self, Verdict};
use crate::{Context, JobError};
use cytoscope_engine::{DeviceId, EngineError, Precision};
use cytoscope_graph::package::{Carried, Package, PackageBuilder, PackageError, Tolerance, check_destination};
use cytoscope_graph::{Graph, Tensor};
use cytoscope_storage::Overwrite;
use cytoscope_storage::folder::Replaced;
use serde::Serialize;
use serde_json::Value;
use std::path::{Path, PathBuf};

pub use crate::package_test::{TestResult, network_test, test, test_outputs};

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
    /// Files of the package that were not taken over, with why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
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

/// Reads a package or an ONNX file, runs its own test, checks that the engines of this machine compute its network correctly, and
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
    let package = Package::open(from).map_err(|e| JobError::model(&*shown, e))?;
    context.check()?;
    let run = package_test::run(&package)?;
    let engines = check_engines(context, devices, &package, &run)?;
    if let Some(first) = engines.first().filter(|_| engines.iter().all(|e| !e.agrees)) {
        let problem = format!(
            "no engine of this machine computes its network as the reference executor does ({}: {}), so its results would be \
             wrong; please report the model",
            first.device, first.detail
        );
        return Err(JobError::model(&*shown, problem));
    }
    let kept = carried(&package);
    let replaced = write_with(&builder(&package, run.inputs, run.outputs), &kept.carried, to, overwrite)?;
    Ok(ImportReport {
        name: package.name.clone(),
        test: run.result.to_string(),
        engines,
        nodes: package.graph.nodes.len(),
        weight_bytes: package.graph.initializer_bytes(),
        left_out: kept.left_out,
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
    run: &TestRun,
) -> Result<Vec<EngineCheck>, JobError> {
    let mut checks = Vec::new();
    for device in devices.list().iter().filter(|d| d.usable) {
        context.check()?;
        let precision = if package.is_int8() && device.id == DeviceId::Cpu { Precision::Int8 } else { Precision::F32 };
        let engine = devices.engine(device.id)?;
        let float = package.float_graph.as_ref().filter(|_| precision == Precision::F32);
        let graph = float.unwrap_or(&package.graph);
        let inputs = &run.network_inputs;
        // Of one of two networks the outputs are known from the test.
        let expected = if std::ptr::eq(graph, package.declared_graph()) {
            Ok(run.network_outputs.clone())
        } else {
            run_reference(graph, inputs.clone()).map_err(EngineError::from)
        };
        let verdict = expected.and_then(|expected| {
            verify::against(graph, inputs, &expected, engine.as_ref(), precision, 0, context.interrupt())
        });
        let (agrees, detail) = match verdict {
            Ok(Verdict::Agrees) => (true, String::new()),
            Ok(Verdict::Differs { how }) => (false, how),
            Err(error) => (false, error.to_string()),
        };
        checks.push(EngineCheck { device: device.id, precision: precision.to_string(), agrees, detail });
    }
    Ok(checks)
}

/// What a quantized form of a package has of its own.
pub(crate) struct Quantized {
    pub graph: Graph,
    pub float_graph: Option<Graph>,
    pub tolerance: Option<Tolerance>,
    /// Outputs for the package's test inputs.
    pub test_outputs: Vec<Tensor>,
    /// `config.cytoscope.quantization`.
    pub record: Value,
}

/// Writes a package as bioimage.io 0.5: a folder, or a zip. Test tensors that it lacks, or that do not pass bioimage.io's test
/// because pre- and postprocessing were left out of them, are made by the reference executor.
///
/// # Errors
/// [`JobError::Model`] if the network does not run or the files cannot be written.
pub fn save(package: &Package, to: &Path, overwrite: Overwrite) -> Result<Replaced, JobError> {
    check_destination(to, &[], overwrite)?;
    let bad = |e: PackageError| JobError::model(package.path.display().to_string(), e);
    let known = if package.has_processed_tests() { package.test_tensors().map_err(bad)? } else { None };
    let (inputs, outputs) = match known {
        Some(tensors) => tensors,
        None => {
            let run = package_test::run(package)?;
            (run.inputs, run.outputs)
        }
    };
    write_with(&builder(package, inputs, outputs), &carried(package).carried, to, overwrite)
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
    made.tolerance = quantized.tolerance;
    match made.config.as_object_mut() {
        Some(section) => {
            section.insert("quantization".to_owned(), quantized.record);
        }
        None => made.config = serde_json::json!({"quantization": quantized.record}),
    }
    write_with(&made, &carried(package).carried, to, overwrite)
}

fn builder(package: &Package, test_inputs: Vec<Tensor>, test_outputs: Vec<Tensor>) -> PackageBuilder {
    let list = |key: &str| package.rdf.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let documentation = file_name(package.rdf.get("documentation"))
        .and_then(|file| package.files().read(file).ok())
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .unwrap_or_else(|| format!("# {}\n\n{}\n", package.name, package.description));
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
    PackageBuilder {
        name,
        description: package.description.clone(),
        documentation,
        // These are carried over with all they say.
        authors: Vec::new(),
        cite: Vec::new(),
        license: String::new(),
        tags,
        inputs: package.inputs.clone(),
        outputs: package.outputs.clone(),
        graph: package.graph.clone(),
        test_inputs,
        test_outputs,
        config: package.config().clone(),
        covers: covers(package, &list("covers")),
        float_graph: package.float_graph.clone(),
        tolerance: None,
    }
}

/// Writes a package.
///
/// # Errors
/// [`JobError::Storage`] if the path holds something else than a package of ours or cannot be written; [`JobError::Model`] if the
/// network has no ONNX form.
pub fn write(builder: PackageBuilder, to: &Path, overwrite: Overwrite) -> Result<Replaced, JobError> {
    write_with(&builder, &Carried::default(), to, overwrite)
}

fn write_with(
    builder: &PackageBuilder,
    carried: &Carried,
    to: &Path,
    overwrite: Overwrite,
) -> Result<Replaced, JobError> {
    builder.save_with(carried, to, overwrite).map_err(|e| match e {
        PackageError::Io { path, error } => JobError::Io { path, error },
        PackageError::Storage(error) => JobError::Storage(error),
        other => JobError::model(to.display().to_string(), other),
    })
}
