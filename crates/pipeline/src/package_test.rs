//! A package's self-test, as bioimage.io defines it: the test inputs, run through preprocessing, network and
//! postprocessing, must give the test outputs.

use crate::tensors::{postprocess, preprocess, run_reference};
use crate::{JobError, verify};
use cytoscope_graph::{Dim, Graph, GraphError, Interrupt, Tensor, ValueId};
use cytoscope_model_package::{AxisKind, AxisSize, Package, TensorSpec, compare};
use std::fmt;

/// Maximum number of values of a synthetic test input (256 MiB).
const MAX_TEST_VALUES: usize = 1 << 26;
/// Voxels along a free axis of synthetic test inputs.
const TEST_EDGE: usize = 16;

/// Result of a package's self-test.
#[derive(Debug, Clone, PartialEq)]
pub enum TestResult {
    /// The test outputs are reproduced within the package's tolerance.
    Reproduced,
    /// The test outputs are reproduced only without pre- and postprocessing.
    NetworkAlone,
    /// The test outputs are not reproduced; the text describes the difference.
    Differs(String),
    /// The package has no test tensors.
    None,
}

impl fmt::Display for TestResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reproduced => f.write_str("the test outputs are reproduced"),
            Self::NetworkAlone => f.write_str(
                "the test outputs are NOT reproduced with pre- and postprocessing, only by the network alone; the new package \
                 contains test outputs computed with them",
            ),
            Self::Differs(how) => write!(f, "the test outputs are NOT reproduced: {how}"),
            Self::None => {
                f.write_str("the package has no test tensors; the network runs, and its outputs are stored as test outputs")
            }
        }
    }
}

/// A package's self-test, run on the reference executor.
pub(crate) struct TestRun {
    /// Whether the stored test outputs are reproduced.
    pub result: TestResult,
    /// Test inputs: the package's, or synthetic ones.
    pub inputs: Vec<Tensor>,
    /// Preprocessed inputs of the network.
    pub network_inputs: Vec<Tensor>,
    /// Outputs of the declared network before postprocessing.
    pub network_outputs: Vec<Tensor>,
    /// Test outputs to store: the package's, or those computed here if it has none or they do not match.
    pub outputs: Vec<Tensor>,
}

/// Runs a package's self-test on the reference executor.
///
/// # Errors
/// [`JobError::Model`] if a test tensor is malformed, a step is not supported, or the network does not run.
pub fn test(package: &Package) -> Result<TestResult, JobError> {
    let stored = package.test_tensors().map_err(|e| model_error(package, e))?;
    if stored.is_none() { Ok(TestResult::None) } else { run(package, &Interrupt::default()).map(|run| run.result) }
}

/// Returns the inputs and outputs of the declared network in a package's self-test, computed by the reference executor.
///
/// # Errors
/// Same as [`test`].
pub fn network_test(package: &Package) -> Result<(Vec<Tensor>, Vec<Tensor>), JobError> {
    run(package, &Interrupt::default()).map(|run| (run.network_inputs, run.network_outputs))
}

/// Returns the inputs of a package's declared network for the package's test inputs: preprocessed and cast to the types
/// that the network takes.
///
/// # Errors
/// [`JobError::Model`] if a tensor does not have the declared axes, or a step is not supported.
pub fn network_inputs(package: &Package, test_inputs: &[Tensor]) -> Result<Vec<Tensor>, JobError> {
    preprocess(&package.path.display().to_string(), &package.inputs, package.declared_graph(), test_inputs)
}

/// Computes the test outputs of a package that is about to be written: test inputs through preprocessing, network and
/// postprocessing.
///
/// # Errors
/// Same as [`test`]; `name` names the package.
pub fn test_outputs(
    name: &str,
    inputs: &[TensorSpec],
    outputs: &[TensorSpec],
    graph: &Graph,
    test_inputs: &[Tensor],
) -> Result<Vec<Tensor>, JobError> {
    outputs_unless(&Interrupt::default(), name, inputs, outputs, graph, test_inputs)
}

/// Like [`test_outputs`]. `interrupt` is asked before each node of the network.
fn outputs_unless(
    interrupt: &Interrupt,
    name: &str,
    inputs: &[TensorSpec],
    outputs: &[TensorSpec],
    graph: &Graph,
    test_inputs: &[Tensor],
) -> Result<Vec<Tensor>, JobError> {
    let given = preprocess(name, inputs, graph, test_inputs)?;
    let computed = run_reference(interrupt, graph, given).map_err(|e| run_error(name, e))?;
    postprocess(name, outputs, computed, inputs, test_inputs)
}

/// Returns the error of a network that did not run, or whose run was canceled.
fn run_error(name: &str, error: GraphError) -> JobError {
    match error {
        GraphError::Interrupted => JobError::Canceled,
        other => JobError::model(name, other),
    }
}

fn model_error(package: &Package, error: impl std::error::Error + Send + Sync + 'static) -> JobError {
    JobError::model(package.path.display().to_string(), error)
}

/// Like [`test`], with the tensors of all stages; a package without test tensors is run on synthetic inputs. `interrupt` is
/// asked before each node of the network.
///
/// # Errors
/// Same as [`test`], and [`JobError::Canceled`].
pub(crate) fn run(package: &Package, interrupt: &Interrupt) -> Result<TestRun, JobError> {
    let name = package.path.display().to_string();
    let stored = package.test_tensors().map_err(|e| model_error(package, e))?;
    let declared = package.declared_graph();
    let (inputs, expected) = match stored {
        Some((inputs, expected)) => (inputs, Some(expected)),
        None => (synthetic_inputs(package)?, None),
    };
    let network_inputs = preprocess(&name, &package.inputs, declared, &inputs)?;
    let network_outputs =
        run_reference(interrupt, declared, network_inputs.clone()).map_err(|e| run_error(&name, e))?;
    let computed = postprocess(&name, &package.outputs, network_outputs.clone(), &package.inputs, &inputs)?;
    let result = match &expected {
        None => TestResult::None,
        Some(expected) => match differs(package, expected, &computed) {
            None => TestResult::Reproduced,
            Some(_) if is_for_network_alone(package, &inputs, expected, interrupt)? => TestResult::NetworkAlone,
            Some(how) => TestResult::Differs(how),
        },
    };
    let outputs = match (expected, &result, &package.float_graph) {
        (Some(expected), TestResult::Differs(_), _) => expected,
        // The float network becomes the declared one.
        (_, _, Some(float)) if package.declares_quantized() => {
            outputs_unless(interrupt, &name, &package.inputs, &package.outputs, float, &inputs)?
        }
        (Some(expected), TestResult::Reproduced, _) => expected,
        _ => computed,
    };
    Ok(TestRun { result, inputs, network_inputs, network_outputs, outputs })
}

/// Returns how outputs differ from a package's test outputs; `None` if they are within its tolerance.
fn differs(package: &Package, expected: &[Tensor], got: &[Tensor]) -> Option<String> {
    let pairs = package.outputs.iter().zip(expected).zip(got);
    pairs.into_iter().find_map(|((spec, e), g)| compare(&spec.id, e, g, package.output_tolerance(&spec.id)).err())
}

/// Returns whether a package has pre- or postprocessing, but its test tensors were made without them.
fn is_for_network_alone(
    package: &Package,
    inputs: &[Tensor],
    expected: &[Tensor],
    interrupt: &Interrupt,
) -> Result<bool, JobError> {
    let processes = package.inputs.iter().chain(&package.outputs).any(|spec| !spec.processing.is_empty());
    if !processes {
        return Ok(false);
    }
    match run_reference(interrupt, package.declared_graph(), inputs.to_vec()) {
        Ok(computed) => Ok(differs(package, expected, &computed).is_none()),
        Err(GraphError::Interrupted) => Err(JobError::Canceled),
        Err(_) => Ok(false),
    }
}

/// Returns a package's test inputs, or synthetic ones if it has none.
///
/// # Errors
/// [`JobError::Model`] if a test tensor is malformed or the network's inputs would be too large.
pub fn test_inputs(package: &Package) -> Result<Vec<Tensor>, JobError> {
    match package.test_tensors().map_err(|e| model_error(package, e))? {
        Some((inputs, _)) => Ok(inputs),
        None => synthetic_inputs(package),
    }
}

fn synthetic_inputs(package: &Package) -> Result<Vec<Tensor>, JobError> {
    let graph = package.declared_graph();
    let one = |(spec, id): (&TensorSpec, &ValueId)| synthetic_input(spec, graph, *id);
    let computed: Result<Vec<_>, _> = package.inputs.iter().zip(&graph.inputs).map(one).collect();
    computed.map_err(|e| model_error(package, e))
}

/// Returns a reproducible test input, with the data type that the tensor declares.
fn synthetic_input(spec: &TensorSpec, graph: &Graph, id: ValueId) -> Result<Tensor, GraphError> {
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
    let count = count.ok_or_else(|| GraphError::Unsupported {
        what: format!("a test input of {shape:?} would have more than {MAX_TEST_VALUES} values"),
    })?;
    let values = verify::synthetic_values(count);
    let described = spec.dtype.element_type();
    if described.is_float() {
        return Tensor::new(shape, values);
    }
    // Values from 20 to about 110 are in the range of every integer type.
    Ok(Tensor::new(shape, values.iter().map(|v| v * 30.0 + 65.0).collect::<Vec<f32>>())?.cast(described))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A stop is noticed before the next node, wherever the reference executor is.
    #[test]
    fn a_self_test_can_be_canceled() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nuclei-dog");
        let package = Package::open(std::path::Path::new(folder)).unwrap();
        for nodes in [0, 2] {
            let asked = AtomicUsize::new(0);
            let stop = Interrupt::new(move || asked.fetch_add(1, Ordering::Relaxed) == nodes);
            let stopped = run(&package, &stop).map(|run| run.result);
            assert!(matches!(stopped, Err(JobError::Canceled)), "after {nodes} nodes: {stopped:?}");
        }
    }
}
