//! Importing models and writing packages.

use crate::checkpoints::{self, Opened};
use crate::devices::Devices;
use crate::inherited::{Inherited, covers, file_name, inherit, not_lists};
use crate::job_record::{PendingRecord, recorded, recorded_training};
use crate::model::check_weights;
use crate::model_inputs::check_batch;
use crate::package_test::{self, TestRun};
use crate::tensors::run_reference;
use crate::verify::{self, Verification};
use crate::{Context, ImportSettings, JobError, ProgressStage};
use cytoscope_engine::{DeviceId, EngineError, Precision};
use cytoscope_graph::{ElementType, Graph, Interrupt, Tensor};
use cytoscope_graph_passes::to_single_precision;
use cytoscope_model_package::config_key::{QUANTIZATION, TRAINING};
use cytoscope_model_package::{
    InheritedContent, Package, PackageBuilder, PackageError, Processing, Tolerance, check_destination,
};
use cytoscope_profile::Stage;
use cytoscope_storage::Overwrite;
use cytoscope_storage::folder::{Replaced, move_aside, move_back};
use cytoscope_storage::target::{check_parent, extension};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};

pub use crate::inherited::LeftOut;
pub use crate::package_test::{TestResult, network_inputs, network_test, test, test_inputs, test_outputs};
pub use cytoscope_checkpoint_import::Architecture;

/// Whether a path is a file of PyTorch weights, which does not contain the network.
pub fn is_checkpoint(path: &Path) -> bool {
    extension(path).is_some_and(|e| cytoscope_checkpoint_import::EXTENSIONS.contains(&e.as_str()))
}

/// Whether a path is a file of a network or its weights without a description, which only the user can complete.
pub fn is_undescribed(path: &Path) -> bool {
    extension(path).is_some_and(|e| e == "onnx") || is_checkpoint(path)
}

/// The assumption that is made about a network without a description.
pub(crate) const ASSUMED_NORMALIZATION: &str = "images are normalized to mean 0 and variance 1";

/// Whether a step is the one of [`ASSUMED_NORMALIZATION`].
pub(crate) fn is_assumed_normalization(step: &Processing) -> bool {
    matches!(step, Processing::ZeroMeanUnitVariance { .. })
}

/// Whether a path is a model that [`ImportJob`] may import: an ONNX file, PyTorch weights, or a bioimage.io folder or
/// zip. Only names, and the list of files in a zip, are read.
pub fn is_model(path: &Path) -> bool {
    if is_undescribed(path) { path.is_file() } else { cytoscope_model_package::is_package(path) }
}

/// Imports a model: writes it as a package of this program, after testing it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImportJob {
    /// Model to import: a bioimage.io folder or zip, an ONNX file, or PyTorch weights (`.pt`, `.pth`, `.ckpt`,
    /// `.p`, `.safetensors`).
    pub file: PathBuf,
    /// Package to write: a folder or a zip.
    pub out: PathBuf,
    /// Whether to replace something other than a package of this program at the output path.
    #[serde(default)]
    pub overwrite: Overwrite,
    /// Why only the CPU is checked: a GPU has ended an earlier run of the same job. Only the CPU is then among its devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_because: Option<String>,
    /// Settings that the user gives for the model.
    #[serde(flatten)]
    pub settings: ImportSettings,
}

/// Imported package and the comparison on every device, the result of an [`ImportJob`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImportReport {
    /// Name of the package.
    pub name: String,
    /// Result of the package's self-test, as text.
    pub test: String,
    /// Checks of the engines of this machine.
    pub engines: Vec<EngineCheck>,
    /// Number of nodes of the network.
    pub nodes: usize,
    /// Size of the weights in bytes.
    pub weight_bytes: usize,
    /// Architecture that was recognized, for PyTorch weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<Architecture>,
    /// Assumptions about the network where PyTorch weights do not determine it, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assumptions: Vec<String>,
    /// Files and sections of the package that were not taken over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
    /// Where an existing folder was moved to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_to: Option<PathBuf>,
}

/// Check of an engine with an imported network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EngineCheck {
    /// Device that the engine ran on.
    pub device: DeviceId,
    /// Precision in which the network was compared.
    pub precision: Precision,
    /// Whether the outputs agree with the reference executor.
    pub agrees: bool,
    /// How the outputs differ, or why the engine cannot run the network; empty if they agree.
    pub detail: String,
}

impl ImportJob {
    /// Reads a package or an ONNX file, runs its self-test, checks that the engines of this machine compute its network
    /// correctly, and writes it as a package, with its provenance record beside it.
    ///
    /// # Errors
    /// [`JobError::WrongUse`] for settings that do not apply to the model; [`JobError::Model`] if the model is malformed,
    /// has no weights that can be run or converted, does not run, or no engine computes it correctly, or if PyTorch
    /// weights do not reproduce the package's test outputs; [`JobError::Storage`] if `out` may not be written to;
    /// [`JobError::Canceled`]. No partly written files are left.
    pub fn run(&self, context: &Context, devices: &Devices) -> Result<ImportReport, JobError> {
        recorded(self, context, |record| {
            // A rerun checks the GPUs again.
            record.job_mut().cpu_because = None;
            self.import(context, devices, record)
        })
    }

    fn import(
        &self,
        context: &Context,
        devices: &Devices,
        record: &mut PendingRecord<Self>,
    ) -> Result<ImportReport, JobError> {
        let Self { file, out, overwrite, settings, .. } = self;
        std::fs::metadata(file).map_err(|error| JobError::unreadable(file, error))?;
        check_parent(out)?;
        check_destination(out, &[file], *overwrite)?;
        let file_text = file.display().to_string();
        let loading = context.recorder.span(Stage::Load, "package");
        let open = || checkpoints::open(file, settings);
        let Opened { package, architecture, assumptions } = context.report_alive(ProgressStage::Check, open)?;
        // Those of a folder are recorded with it.
        if file.is_file() {
            record.add_inputs(package.external_files.iter().map(PathBuf::as_path));
        }
        let refused = |problem: String| JobError::model(&*file_text, problem);
        check_batch(&package).map_err(refused)?;
        for graph in std::iter::once(&package.graph).chain(package.float_graph.as_ref()) {
            check_weights(graph).map_err(refused)?;
        }
        loading.finish();
        context.check()?;
        let testing = context.recorder.span(Stage::Verify, "self-test");
        let run = context.report_alive(ProgressStage::Check, || package_test::run(&package, &context.interrupt()))?;
        testing.finish();
        if let (true, TestResult::Differs(how)) = (package.is_rebuilt(), &run.result) {
            let problem = format!(
                "the network built from its weights does not reproduce its test outputs ({how}), so it is not the network \
                 that was trained; export the model with torch.onnx.export"
            );
            return Err(JobError::model(&*file_text, problem));
        }
        let checking = context.recorder.span(Stage::Verify, "engines");
        let engines = check_engines(context, devices, &package, &run)?;
        checking.finish();
        if let Some(first) = engines.first().filter(|_| engines.iter().all(|e| !e.agrees)) {
            let problem = format!(
                "no engine of this machine computes its network like the reference executor ({}: {}), so its results \
                 would be wrong; please report the model",
                first.device, first.detail
            );
            return Err(JobError::model(&*file_text, problem));
        }
        context.check()?;
        let Inherited { content, mut left_out } = inherit(&package);
        let builder = builder(&package, run.inputs, run.outputs, &mut left_out);
        let writing = context.recorder.span(Stage::Write, "package");
        let replaced = write_with(&builder, &content, out, *overwrite)?;
        writing.finish();
        Ok(ImportReport {
            name: package.name.clone(),
            test: run.result.to_string(),
            engines,
            nodes: package.graph.nodes.len(),
            weight_bytes: package.graph.initializer_bytes(),
            architecture,
            assumptions,
            left_out,
            moved_to: match replaced {
                Replaced::MovedTo(path) => Some(path),
                _ => None,
            },
        })
    }
}

/// Runs a network on every engine that `--device auto` may choose. One that fails is among the checks with its error.
pub(crate) fn check_engines(
    context: &Context,
    devices: &Devices,
    package: &Package,
    run: &TestRun,
) -> Result<Vec<EngineCheck>, JobError> {
    let mut checks = Vec::new();
    for device in devices.list().iter().filter(|d| d.usable) {
        context.check()?;
        let quantized = package.is_int8() && device.id == DeviceId::Cpu;
        let precision = if quantized { Precision::Int8 } else { device.fast_precision() };
        let float = package.float_graph.as_ref().filter(|_| precision != Precision::Int8);
        let chosen = float.unwrap_or(&package.graph);
        // Predictions run the network in this form.
        let mut graph = chosen.clone();
        let bad = |e| JobError::model(package.path.display().to_string(), e);
        let is_other = to_single_precision(&mut graph).map_err(bad)?;
        let inputs: Vec<Tensor> = run.network_inputs.iter().map(|input| input.cast(ElementType::F32)).collect();
        // The self-test has already computed the outputs of the declared network.
        let expected = if !is_other && std::ptr::eq(chosen, package.declared_graph()) {
            Ok(run.network_outputs.clone())
        } else {
            context
                .report_alive(ProgressStage::Check, || run_reference(&context.interrupt(), &graph, inputs.clone()))
                .map_err(EngineError::from)
        };
        context.report_tried_device(device.id);
        let compare = || {
            devices.engine(device.id).and_then(|engine| {
                verify::compare_with_reference(context, &graph, &inputs, &expected?, engine.as_ref(), precision, 0)
            })
        };
        // Only a GPU may hang.
        let verdict = match device.id {
            DeviceId::Cpu => context.report_alive(ProgressStage::Check, compare),
            DeviceId::Cuda(_) | DeviceId::Wgpu(_) => compare(),
        };
        if let Err(error) = &verdict {
            // A comparison that was canceled says nothing about the engine.
            context.check()?;
            context.report_lost_device(error);
        }
        let (agrees, detail) = match verdict {
            Ok(Verification::Agrees) => (true, String::new()),
            Ok(Verification::Differs { how }) => (false, how),
            Err(error) => (false, error.to_string()),
        };
        checks.push(EngineCheck { device: device.id, precision, agrees, detail });
    }
    Ok(checks)
}

/// Parts of a package that quantization changes; everything else is kept.
#[derive(Debug, Clone)]
pub struct Quantized {
    /// The quantized network, which is attached to the package.
    pub graph: Graph,
    /// The float network; `None` leaves it out of the package, and the int8 network is the declared one.
    pub float_graph: Option<Graph>,
    /// Tolerances for the test outputs in other programs, one for each output in order; `None` for the default.
    pub tolerance: Option<Vec<Tolerance>>,
    /// Outputs for the package's test inputs.
    pub test_outputs: Vec<Tensor>,
    /// `config.cytoscope.quantization`.
    pub record: Value,
}

/// A package that was written from another one.
#[derive(Debug)]
#[must_use = "tell the user where their folder was moved to, and what is missing"]
pub struct Saved {
    /// What existed at its path.
    pub replaced: Replaced,
    /// Files and sections of the other package that were not taken over.
    pub left_out: Vec<LeftOut>,
}

/// Writes a package in bioimage.io format 0.5, as a folder or a zip. The reference executor computes test tensors that
/// are missing, or that fail bioimage.io's test because they leave out pre- and postprocessing.
///
/// # Errors
/// [`JobError::Model`] if the network does not run or the files cannot be written.
pub fn save(package: &Package, to: &Path, overwrite: Overwrite) -> Result<Saved, JobError> {
    check_destination(to, &[], overwrite)?;
    let bad = |e: PackageError| JobError::model(package.path.display().to_string(), e);
    let known = if package.has_processed_tests() { package.test_tensors().map_err(bad)? } else { None };
    let (inputs, outputs) = match known {
        Some(tensors) => tensors,
        None => {
            let run = package_test::run(package, &Interrupt::default())?;
            (run.inputs, run.outputs)
        }
    };
    let Inherited { content, mut left_out } = inherit(package);
    let new_builder = builder(package, inputs, outputs, &mut left_out);
    Ok(Saved { replaced: write_with(&new_builder, &content, to, overwrite)?, left_out })
}

/// Writes the quantized form of a package, as a folder or a zip; `test_inputs` are the package's test inputs
/// ([`test_inputs`]).
///
/// # Errors
/// Same as [`write()`].
pub fn save_quantized(
    package: &Package,
    test_inputs: Vec<Tensor>,
    quantized: Quantized,
    to: &Path,
    overwrite: Overwrite,
) -> Result<Saved, JobError> {
    let Inherited { content, mut left_out } = inherit(package);
    let mut new_builder = builder(package, test_inputs, quantized.test_outputs, &mut left_out);
    new_builder.graph = quantized.graph;
    new_builder.float_graph = quantized.float_graph;
    new_builder.tolerance = quantized.tolerance;
    match new_builder.config.as_object_mut() {
        Some(section) => {
            section.insert(QUANTIZATION.to_owned(), quantized.record);
        }
        None => new_builder.config = serde_json::json!({QUANTIZATION: quantized.record}),
    }
    Ok(Saved { replaced: write_with(&new_builder, &content, to, overwrite)?, left_out })
}

/// Returns the documentation of a package, or a page with its name and description if it has none. A file that cannot
/// be used is added to `left_out` with the reason.
fn documentation(package: &Package, left_out: &mut Vec<LeftOut>) -> String {
    let mut text = format!("# {}\n\n{}\n", package.name, package.description);
    if let Some(file) = file_name(package.rdf.get("documentation")) {
        let bytes = package.files().read(file).map_err(|e| e.to_string());
        match bytes.and_then(|bytes| String::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".to_owned())) {
            Ok(page) => text = page,
            Err(reason) => left_out.push(LeftOut::new(file, reason)),
        }
    }
    text
}

/// Returns a name that a package may have, made from a text: other characters become `_`, and a name that is too short gets
/// the word "model".
pub fn valid_name(text: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "_+- ()".contains(c) { c } else { '_' };
    let mut name: String = text.chars().map(allowed).take(128).collect();
    if name.len() < 5 {
        name.push_str(" model");
    }
    name
}

fn builder(
    package: &Package,
    test_inputs: Vec<Tensor>,
    test_outputs: Vec<Tensor>,
    left_out: &mut Vec<LeftOut>,
) -> PackageBuilder {
    let list = |key: &str| package.rdf.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let documentation = documentation(package, left_out);
    left_out.extend(not_lists(&package.rdf, &["tags", "covers"]));
    let listed = list("tags");
    let others = listed.iter().enumerate().filter(|(_, tag)| !tag.is_string());
    left_out.extend(others.map(|(index, _)| LeftOut::new(format!("tags[{index}]"), "it is not text")));
    let tags = listed.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    let config = match package.config() {
        config @ (Value::Null | Value::Object(_)) => config.clone(),
        _ => {
            left_out.push(LeftOut::new("config.cytoscope", "it is not a map"));
            Value::Null
        }
    };
    PackageBuilder {
        name: valid_name(&package.name),
        description: package.description.clone(),
        documentation,
        // These are taken over unchanged by `inherit`.
        authors: Vec::new(),
        cite: Vec::new(),
        license: None,
        tags,
        inputs: package.inputs.clone(),
        outputs: package.outputs.clone(),
        graph: package.graph.clone(),
        test_inputs,
        test_outputs,
        config,
        covers: covers(package, &list("covers"), left_out),
        float_graph: package.float_graph.clone(),
        tolerance: None,
    }
}

/// Writes a package.
///
/// # Errors
/// [`JobError::Storage`] if something other than a package of this program exists at the path, or it cannot be written;
/// [`JobError::Model`] if the network cannot be expressed in ONNX.
pub fn write(builder: PackageBuilder, to: &Path, overwrite: Overwrite) -> Result<Replaced, JobError> {
    write_with(&builder, &InheritedContent::default(), to, overwrite)
}

/// Returns whether something exists at a path that a training run wrote: according to the record beside it or, for a folder
/// that has none, such as one that was renamed, according to the package in it. A file is only replaced if the user allows
/// it.
fn is_trained(path: &Path) -> bool {
    let Ok(meta) = std::fs::symlink_metadata(path) else { return false };
    let states_training = || {
        // What cannot be opened as a package is not replaced.
        let package = if meta.is_dir() { Package::open(path).ok() } else { None };
        let training = package.as_ref().and_then(|package| package.config().get(TRAINING)?.as_object());
        training.is_some_and(|training| !training.is_empty())
    };
    recorded_training(path).unwrap_or_else(states_training)
}

/// Returns whether a path is a package whose model does not have this name: a folder, or a zip that the user has not allowed
/// to be replaced.
fn is_another_model(path: &Path, name: &str, overwrite: Overwrite) -> bool {
    let is_folder = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir());
    // What cannot be opened as a package is not replaced.
    (is_folder || overwrite == Overwrite::Refuse) && Package::open(path).is_ok_and(|package| package.name != name)
}

fn write_with(
    builder: &PackageBuilder,
    content: &InheritedContent,
    to: &Path,
    overwrite: Overwrite,
) -> Result<Replaced, JobError> {
    check_destination(to, &[], overwrite)?;
    // Training a network again would take long, and the file that another model was imported from may be gone, so these
    // packages are not deleted.
    let is_kept = is_trained(to) || is_another_model(to, &builder.name, overwrite);
    let aside = if is_kept { Some(move_aside(to)?) } else { None };
    let saved = builder.save_with(content, to, overwrite).map_err(|e| match e {
        PackageError::Io { path, error } => JobError::Io { path, error },
        PackageError::Storage(error) => JobError::Storage(error),
        other => JobError::model(to.display().to_string(), other),
    });
    let Some(aside) = aside else { return saved };
    match saved {
        Ok(_) => Ok(Replaced::MovedTo(aside)),
        Err(error) => {
            move_back(&aside, to);
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use crate::job::lost_devices;
    use crate::job_record::record_path;
    use crate::predict::test_common;
    use cytoscope_builders::{DifferenceOfGaussians, difference_of_gaussians};
    use cytoscope_engine::{Device, Engine};
    use serde_json::json;

    #[test]
    fn short_names_and_letters_that_bioimage_io_refuses_are_replaced() {
        let names = ["bb", "zellkerne", "kerne/grün"].map(valid_name);
        assert_eq!(names, ["bb model", "zellkerne", "kerne_gr_n"]);
        assert_eq!(valid_name(&"n".repeat(200)), "n".repeat(128));
    }

    #[test]
    fn a_gpu_that_fails_in_the_check_of_an_import_does_not_end_it() {
        fn open(device: &Device) -> Result<Box<dyn Engine>, EngineError> {
            match device.id {
                DeviceId::Cpu => Devices::cpu_only().engine(DeviceId::Cpu),
                gpu => Err(EngineError::Device { device: gpu, reason: "it has no power".into() }),
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let (file, out) = (folder.path().join("net"), folder.path().join("imported"));
        let builder = test_common::package(&difference_of_gaussians(&DifferenceOfGaussians::default()).unwrap());
        assert_eq!(builder.save(&file, Overwrite::Refuse).unwrap(), Replaced::Nothing);
        let cpu = Devices::cpu_only().list()[0].clone();
        let devices = Devices::with_engines(vec![Device { id: DeviceId::Cuda(0), ..cpu.clone() }, cpu], open);
        let (context, events) = Context::recording_events();
        let (overwrite, settings) = (Overwrite::Refuse, ImportSettings::default());
        let cpu_because = Some("another GPU was in use when it ended".to_owned());
        let job = ImportJob { file, out: out.clone(), overwrite, cpu_because, settings };
        let report = job.run(&context, &devices).unwrap();
        let checks: Vec<(DeviceId, bool)> = report.engines.iter().map(|check| (check.device, check.agrees)).collect();
        assert_eq!(checks, [(DeviceId::Cuda(0), false), (DeviceId::Cpu, true)]);
        assert!(report.engines[0].detail.contains("it has no power"), "{}", report.engines[0].detail);
        assert_eq!(lost_devices(&events), [DeviceId::Cuda(0)]);
        let record = std::fs::read_to_string(record_path(&out)).unwrap();
        assert!(record.contains("imported") && !record.contains("cpu_because"), "a rerun checks the GPUs: {record}");
    }

    #[test]
    fn a_trained_package_keeps_its_name_if_no_other_can_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m");
        let builder = test_common::package(&difference_of_gaussians(&DifferenceOfGaussians::default()).unwrap());
        assert_eq!(builder.save(&path, Overwrite::Refuse).unwrap(), Replaced::Nothing);
        let record = json!({
            "program": "cytoscope 0", "kind": "train", "job": {}, "inputs": [], "finished_unix_secs": 0,
            "outputs": [{"path": path, "bytes": 0, "sha256": ""}],
        });
        std::fs::write(record_path(&path), record.to_string()).unwrap();
        assert!(is_trained(&path));
        std::fs::write(path.join("notes.txt"), "of this package").unwrap();
        let aside = folder.path().join("m.before-1");
        let invalid = PackageBuilder { name: "?".to_owned(), ..builder };
        assert!(write(invalid.clone(), &path, Overwrite::Replace).is_err());
        assert!(path.join("notes.txt").is_file() && !aside.exists());
        let valid = PackageBuilder { name: "another".to_owned(), ..invalid };
        assert_eq!(write(valid, &path, Overwrite::Replace).unwrap(), Replaced::MovedTo(aside.clone()));
        assert!(aside.join("notes.txt").is_file() && !path.join("notes.txt").exists());
    }

    #[test]
    fn a_trained_package_without_its_record_is_moved_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("renamed");
        let builder = test_common::package(&difference_of_gaussians(&DifferenceOfGaussians::default()).unwrap());
        let trained = PackageBuilder { config: json!({"training": {"steps": 3}}), ..builder.clone() };
        assert_eq!(write(trained, &path, Overwrite::Refuse).unwrap(), Replaced::Nothing);
        // A record left from an earlier package does not count.
        let record = json!({
            "program": "cytoscope 0", "kind": "import", "job": {}, "inputs": [], "finished_unix_secs": 0,
            "outputs": [{"path": path, "bytes": 0, "sha256": ""}],
        });
        std::fs::write(record_path(&path), record.to_string()).unwrap();
        let aside = folder.path().join("renamed.before-1");
        assert_eq!(write(builder.clone(), &path, Overwrite::Refuse).unwrap(), Replaced::MovedTo(aside));
        assert_eq!(write(builder, &path, Overwrite::Refuse).unwrap(), Replaced::Ours, "it was not trained");
    }

    #[test]
    fn the_package_of_another_model_or_of_quantization_aware_training_is_moved_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m");
        let builder = test_common::package(&difference_of_gaussians(&DifferenceOfGaussians::default()).unwrap());
        let named = |name: &str| PackageBuilder { name: name.to_owned(), ..builder.clone() };
        assert_eq!(write(named("first model"), &path, Overwrite::Refuse).unwrap(), Replaced::Nothing);
        assert_eq!(write(named("first model"), &path, Overwrite::Refuse).unwrap(), Replaced::Ours);
        let aside = |n: usize| folder.path().join(format!("m.before-{n}"));
        let replaced = write(named("second model"), &path, Overwrite::Refuse).unwrap();
        assert_eq!(replaced, Replaced::MovedTo(aside(1)));
        assert_eq!(Package::open(&aside(1)).unwrap().name, "first model");
        let record = |mode: &str| {
            let record = json!({
                "program": "cytoscope 0", "kind": "quantize", "job": {"quantization": {"mode": mode}}, "inputs": [],
                "finished_unix_secs": 0, "outputs": [{"path": path, "bytes": 0, "sha256": ""}],
            });
            std::fs::write(record_path(&path), record.to_string()).unwrap();
        };
        record("dynamic");
        assert_eq!(write(named("second model"), &path, Overwrite::Refuse).unwrap(), Replaced::Ours);
        record("qat");
        let replaced = write(named("second model"), &path, Overwrite::Refuse).unwrap();
        assert_eq!(replaced, Replaced::MovedTo(aside(2)));
        // A zip is replaced on request, as any file.
        let zip = folder.path().join("m.zip");
        assert_eq!(write(named("first model"), &zip, Overwrite::Refuse).unwrap(), Replaced::Nothing);
        let replaced = write(named("second model"), &zip, Overwrite::Refuse).unwrap();
        assert_eq!(replaced, Replaced::MovedTo(folder.path().join("m.zip.before-1")));
        assert_eq!(write(named("third model"), &zip, Overwrite::Replace).unwrap(), Replaced::Ours);
    }
}
