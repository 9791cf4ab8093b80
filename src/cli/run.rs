//! `cytoscope run`: runs the network of a model on arrays and measures its speed.

use super::failure::{Failure, Outcome};
use super::measured::{MeasuredRun, RunClock, memory_sampler, recorder};
use super::options::ThreadsOption;
use super::trace_path::check_trace;
use super::{devices, note_moved_aside, print, progress, read_file};
use clap::Args;
use cpu_time::ProcessTime;
use cytoscope_engine::{DeviceId, Engine, EngineError, Precision, Session};
use cytoscope_engine_cpu::{CpuEngine, ReferenceEngine};
use cytoscope_graph::infer::shape_text;
use cytoscope_graph::{Dim, ElementType, Graph, GraphError, GraphLimits, Tensor, Value, ValueId, npy};
use cytoscope_model_package::{Package, TensorSpec, refuse_inside_package};
use cytoscope_pipeline::{Context, JobError, find_model};
use cytoscope_profile::{RunFacts, Stage};
use cytoscope_storage::message;
use cytoscope_storage::setting::INPUT;
use cytoscope_storage::target::{check_extension, check_file, extension, resolved};
use cytoscope_storage::write::write_checked;
use cytoscope_storage::{Overwrite, counted};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Instant;

#[derive(Args)]
pub(crate) struct RunCommand {
    /// Network to run: an .onnx file, a package (folder or .zip) or the name of an installed model. Pre- and postprocessing
    /// of a package are not applied.
    model: PathBuf,
    /// Array for an input of the network, NAME=FILE.npy, or FILE.npy for inputs in the model's order; can be repeated. NAME is
    /// the input's name in the network, or its id in the description of a package.
    #[arg(long = "input", value_name = "[NAME=]FILE.npy", required = true)]
    inputs: Vec<String>,
    /// File for an output of the network, NAME=FILE.npy, or FILE.npy for outputs in the model's order; can be repeated. NAME is
    /// as for inputs. Other outputs are not written.
    #[arg(long = "output", value_name = "[NAME=]FILE.npy")]
    outputs: Vec<String>,
    /// Engine to run the network on: cpu, cuda[:i], wgpu[:i], or reference, the slow executor that the others are checked
    /// against.
    #[arg(long, default_value = "cpu")]
    engine: EngineName,
    /// Numeric precision of the network: f32, tf32, f16, bf16 or int8. cytoscope devices lists the precisions of each
    /// device.
    #[arg(long, default_value = "f32")]
    precision: Precision,
    /// Number of timed runs, after one warm-up run.
    #[arg(long, default_value_t = 1)]
    repeat: usize,
    #[command(flatten)]
    threading: ThreadsOption,
    /// Write a Chrome trace with the time of every operator, for cytoscope profile or ui.perfetto.dev.
    #[arg(long, value_name = "FILE.json")]
    trace: Option<PathBuf>,
    /// Overwrite existing files; an input is never overwritten.
    #[arg(long)]
    force: bool,
    /// Print the timings as one JSON object.
    #[arg(long)]
    json: bool,
}

/// The executor of a network.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EngineName {
    /// The slow executor that the others are checked against.
    Reference,
    /// The engine of a device.
    Of(DeviceId),
}

impl FromStr for EngineName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "reference" {
            return Ok(Self::Reference);
        }
        let unknown =
            |_: EngineError| format!("unknown engine \"{text}\": expected reference, cpu, cuda[:i] or wgpu[:i]");
        text.parse().map(Self::Of).map_err(unknown)
    }
}

/// Upper limit of `--repeat`.
const MAX_REPEAT: usize = 1_000_000;

impl RunCommand {
    pub(crate) fn run(self) -> Outcome {
        if self.repeat == 0 || self.repeat > MAX_REPEAT {
            return Err(Failure::wrong_use(format!("--repeat is {}: expected 1 to {MAX_REPEAT}", self.repeat)));
        }
        let network = self.load()?;
        let outputs_to = self.output_files(&network)?;
        let inputs = self.read_inputs(&network)?;
        let graph = network.graph;
        let shapes: Vec<Vec<usize>> = inputs.iter().map(|t| t.shape().to_vec()).collect();
        let engine: Box<dyn Engine> = match self.engine {
            EngineName::Reference => Box::new(ReferenceEngine::new()),
            EngineName::Of(DeviceId::Cpu) => Box::new(CpuEngine::new()),
            EngineName::Of(gpu) => devices::discover().engine(gpu)?,
        };
        let clock = RunClock::start();
        let recorder = recorder(self.trace.as_deref(), false);
        let _sampler = memory_sampler(&recorder, self.trace.as_deref());
        let context = progress::context(false, true, recorder.clone());
        let options = context.compile_options(self.precision, self.threading.threads);
        let compile_start = Instant::now();
        let compiling = context.recorder.span(Stage::Compile, "network");
        let unfit = |error: JobError| with_shapes(&graph, &inputs, error);
        let compiled = engine.compile(&graph, &shapes, &options);
        let mut session = compiled.map_err(|error| unfit(error.into()))?;
        compiling.finish();
        let compile_ms = compile_start.elapsed().as_secs_f64() * 1e3;
        let timed = self.time_runs(&context, session.as_mut(), &inputs, compile_ms);
        let (outputs, times) = timed.map_err(unfit)?;
        for (tensor, path) in outputs.iter().zip(&outputs_to) {
            context.check()?;
            if let Some(path) = path {
                let aside = write_checked(path, &npy::write(tensor), Overwrite::from_force(self.force))?;
                note_moved_aside(path, aside.as_deref());
            }
        }
        let facts = clock.facts(self.threading.threads);
        recorder.end_memory_timeline();
        let is_peak_shown = self.engine == EngineName::Of(DeviceId::Cpu) && self.trace.is_some();
        let machine_peak = is_peak_shown.then(|| cytoscope_pipeline::machine_peak(self.threading.threads));
        let run = MeasuredRun::new("run", &recorder, RunFacts { machine_peak, ..facts });
        run.write_trace(&recorder, self.trace.as_deref(), Overwrite::from_force(self.force), true);
        self.print_report(&graph, engine.as_ref(), session.as_ref(), &outputs, times, run)?;
        if !self.json {
            outputs_to.iter().flatten().for_each(|path| print(&format!("  wrote {}", path.display())));
        }
        Ok(())
    }

    /// Loads the network of the model.
    fn load(&self) -> Result<Network, Failure> {
        let name = self.model.to_str().filter(|_| extension(&self.model).is_none());
        if name.is_none() {
            std::fs::metadata(&self.model).map_err(|error| JobError::unreadable(&self.model, error))?;
        }
        let path = name.map_or_else(|| Ok(self.model.clone()), find_model)?;
        if !path.is_dir() && !extension(&path).is_some_and(|e| e == "zip" || e == "yaml" || e == "yml") {
            let graph = load_file(&path)?;
            let [inputs, outputs] = [&graph.inputs, &graph.outputs].map(|ids| tensor_names(&graph, ids, &[]));
            return Ok(Network { graph, model: path, inputs, outputs });
        }
        let package = Package::open(&path)?;
        let float = package.float_graph.filter(|_| self.precision != Precision::Int8);
        let graph = float.unwrap_or(package.graph);
        let inputs = tensor_names(&graph, &graph.inputs, &package.inputs);
        let outputs = tensor_names(&graph, &graph.outputs, &package.outputs);
        Ok(Network { graph, model: path, inputs, outputs })
    }

    /// Returns the file of each output, after checking that all files may be written.
    fn output_files(&self, network: &Network) -> Result<Vec<Option<PathBuf>>, Failure> {
        let outputs_to = assign(&network.outputs, &self.outputs, "output")?;
        let overwrite = Overwrite::from_force(self.force);
        let given = assign(&network.inputs, &self.inputs, "input")?;
        let model = network.model.as_path();
        let read: Vec<PathBuf> = given.into_iter().flatten().chain([model.to_owned()]).collect();
        let read: Vec<&Path> = read.iter().map(PathBuf::as_path).collect();
        let mut written = BTreeSet::new();
        for path in outputs_to.iter().flatten() {
            check_extension(path, &["npy"])?;
        }
        for path in outputs_to.iter().flatten() {
            refuse_inside_package(path, &[model])?;
            check_file(path, &read, overwrite)?;
            if !written.insert(resolved(path)) {
                return Err(Failure::wrong_use(format!("{}: two outputs have the same file", path.display()))
                    .and_next("give each its own"));
            }
        }
        if let Some(trace) = &self.trace {
            let outputs: Vec<&Path> = outputs_to.iter().flatten().map(PathBuf::as_path).collect();
            check_trace(trace, &read, &outputs, overwrite)?;
        }
        Ok(outputs_to)
    }

    /// Runs the session once to warm up, then as often as requested. Returns the last outputs.
    fn time_runs(
        &self,
        context: &Context,
        session: &mut dyn Session,
        inputs: &[Tensor],
        compile_ms: f64,
    ) -> Result<(Vec<Tensor>, Times), JobError> {
        let first = Instant::now();
        let span = context.recorder.span(Stage::Compute, "first run");
        let mut outputs = session.run(inputs)?;
        span.finish();
        let first_run_ms = first.elapsed().as_secs_f64() * 1e3;
        let (mut wall, mut cpu) = (Vec::with_capacity(self.repeat), Vec::with_capacity(self.repeat));
        for _ in 0..self.repeat {
            context.check()?;
            let _span = context.recorder.span(Stage::Compute, "run");
            let (start, cpu_start) = (Instant::now(), ProcessTime::now());
            outputs = session.run(inputs)?;
            wall.push(start.elapsed().as_secs_f64() * 1e3);
            cpu.push(cpu_start.elapsed().as_secs_f64() * 1e3);
        }
        Ok((outputs, Times { compile_ms, first_run_ms, wall: spread(wall), cpu: spread(cpu) }))
    }

    fn print_report(
        &self,
        graph: &Graph,
        engine: &dyn Engine,
        session: &dyn Session,
        outputs: &[Tensor],
        times: Times,
        run: MeasuredRun,
    ) -> Outcome {
        let report = session.report();
        let threads = match self.threading.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let described: Vec<_> = graph
            .outputs
            .iter()
            .zip(outputs)
            .map(|(id, t)| json!({"name": graph.value(*id).name, "shape": t.shape(), "dtype": t.dtype().name()}))
            .collect();
        let Times { compile_ms, first_run_ms, wall, cpu } = times;
        if self.json {
            return run.print_json(&json!({
                "engine": engine.name(),
                "device": engine.device().name,
                "backend": report.backend,
                "precision": self.precision.name(),
                "threads": threads,
                "outputs": described,
                "wall_ms": wall.json(),
                "cpu_ms": cpu.json(),
                "compile_ms": compile_ms,
                "first_run_ms": first_run_ms,
                "peak_rss_bytes": cytoscope_profile::peak_resident_bytes(),
                "arena_bytes": report.arena_bytes,
                "weight_bytes": report.weight_bytes,
                "macs": report.macs,
                "fallbacks": report.fallbacks,
                "traffic": session.traffic(),
            }));
        }
        let threads = counted(threads, "thread");
        print(&format!("{} on {} ({}), {threads}", engine.name(), engine.device().name, report.backend));
        print(&format!(
            "  {:.2} ms per run (median of {}; {:.2} to {:.2}), CPU time {:.2} ms",
            wall.median, self.repeat, wall.min, wall.max, cpu.median
        ));
        if report.macs > 0 {
            let unit = if self.precision == Precision::Int8 { "GOP/s" } else { "GFLOP/s" };
            print(&format!("  {:.1} {unit}", 2.0 * report.macs as f64 / wall.median / 1e6));
        }
        if let Some(traffic) = session.traffic() {
            print(&format!("  transfers: {}", traffic.text()));
        }
        for f in &report.fallbacks {
            print(&format!("  {} × {} run by the reference executor", f.count, f.op));
        }
        for (id, t) in graph.outputs.iter().zip(outputs) {
            print(&format!("  {} {:?} {}", graph.value(*id).name, t.shape(), t.dtype().name()));
        }
        Ok(())
    }

    /// Reads one tensor for each graph input.
    fn read_inputs(&self, network: &Network) -> Result<Vec<Tensor>, Failure> {
        let assigned = assign(&network.inputs, &self.inputs, "input")?;
        let graph = &network.graph;
        graph
            .inputs
            .iter()
            .zip(assigned)
            .map(|(id, path)| {
                let name = &graph.value(*id).name;
                let path = path.ok_or_else(|| {
                    Failure::wrong_use(message!("no {INPUT} was given for the model's input \"{name}\""))
                        .and_next(message!("add {INPUT} {name}=FILE.npy"))
                })?;
                let tensor = npy::read(&read_file(&path)?)
                    .map_err(|e| Failure::bad_input(format!("{}: {}", path.display(), array_problem(e))))?;
                check_array(graph.value(*id), &tensor, &path)?;
                Ok(tensor)
            })
            .collect()
    }
}

/// Returns why a file is not an array, and what to give instead.
fn array_problem(error: GraphError) -> String {
    let problem = match error {
        GraphError::Malformed { what } => what,
        other => other.to_string(),
    };
    format!("the array cannot be read ({problem}); give a NumPy file (.npy) of numbers")
}

/// Refuses an array that does not have the type and shape of an input of the network.
fn check_array(input: &Value, array: &Tensor, path: &Path) -> Outcome {
    let fits = |shape: &[Dim]| {
        let same = |(stated, length): (&Dim, &usize)| stated.fixed().is_none_or(|stated| stated == *length);
        shape.len() == array.shape().len() && shape.iter().zip(array.shape()).all(same)
    };
    if input.dtype.is_none_or(|dtype| dtype == array.dtype()) && input.shape.as_deref().is_none_or(fits) {
        return Ok(());
    }
    let dtype = input.dtype.map_or("of any type", ElementType::name);
    let shape =
        input.shape.as_deref().map_or_else(|| "any shape".to_owned(), |shape| format!("shape {}", shape_text(shape)));
    let has_names = input.shape.iter().flatten().any(|length| length.fixed().is_none());
    let any_length = if has_names { " (a name stands for any length)" } else { "" };
    Err(Failure::bad_input(format!(
        "{}: the array is {} with shape {:?}, but the model's input \"{}\" is {dtype} with {shape}",
        path.display(),
        array.dtype().name(),
        array.shape(),
        input.name
    ))
    .and_next(format!("give an array of that type and shape{any_length}")))
}

/// Returns the failure of compiling or running a network. If the network does not fit its inputs or the memory, the message
/// states their shapes and what to do.
fn with_shapes(graph: &Graph, inputs: &[Tensor], error: JobError) -> Failure {
    let full = match &error {
        JobError::Engine(cause @ EngineError::OutOfMemory { .. }) => Some(cause.finding()),
        _ => None,
    };
    let is_unfit = matches!(&error, JobError::Engine(EngineError::Graph(cause)) if is_misused(cause));
    let failure = Failure::from(error);
    if !is_unfit && full.is_none() {
        return failure;
    }
    let described = graph.inputs.iter().zip(inputs);
    let shapes: Vec<String> =
        described.map(|(id, array)| format!("\"{}\" {:?}", graph.value(*id).name, array.shape())).collect();
    if let Some(finding) = full {
        let shapes = shapes.join(", ");
        return Failure::new(failure.kind(), format!("{finding}; the inputs have the shapes {shapes}"))
            .and_next("give smaller arrays, or choose another --engine");
    }
    Failure::new(
        failure.kind(),
        message!(
            "{failure}; the inputs have the shapes {}: if the network cannot compute these lengths, give arrays with \
             others, such as multiples of its stride",
            shapes.join(", ")
        ),
    )
}

/// Whether an operator does not accept its inputs.
fn is_misused(error: &GraphError) -> bool {
    match error {
        GraphError::Misused { .. } => true,
        GraphError::Node { source, .. } => is_misused(source),
        _ => false,
    }
}

/// Loads an ONNX file. An invalid or missing file is bad input; other I/O errors are not.
fn load_file(path: &Path) -> Result<Graph, Failure> {
    cytoscope_onnx::load(path, &GraphLimits::default())
        .map_err(|error| JobError::model(path.display().to_string(), error).into())
}

/// The network of a model.
struct Network {
    graph: Graph,
    /// Path of the model.
    model: PathBuf,
    /// Names of the inputs, in the network's order.
    inputs: Vec<TensorNames>,
    /// Names of the outputs, in the network's order.
    outputs: Vec<TensorNames>,
}

/// The names by which a tensor is chosen.
struct TensorNames {
    /// Name in the network.
    name: String,
    /// Id in the description of a package, if it differs from the name in the network.
    id: Option<String>,
}

impl TensorNames {
    /// The names in a message.
    fn text(&self) -> String {
        self.id.as_ref().map_or_else(|| self.name.clone(), |id| format!("{} ({id})", self.name))
    }
}

/// Returns the names of the values `ids` of a network. `specs` describe them in the same order; empty without a description.
fn tensor_names(graph: &Graph, ids: &[ValueId], specs: &[TensorSpec]) -> Vec<TensorNames> {
    let names = ids.iter().enumerate().map(|(i, id)| {
        let name = graph.value(*id).name.clone();
        let id = specs.get(i).map(|spec| spec.id.clone()).filter(|id| *id != name);
        TensorNames { name, id }
    });
    names.collect()
}

/// Whether a text with "=" is the path of a file that exists, or of one in a folder that exists.
fn is_path(text: &str) -> bool {
    let path = Path::new(text);
    path.exists() || path.parent().is_some_and(|folder| !folder.as_os_str().is_empty() && folder.is_dir())
}

/// Returns the file for each tensor: named files by the tensor's name in the network, or else its id, the others in order for
/// the remaining tensors.
fn assign(tensors: &[TensorNames], given: &[String], what: &str) -> Result<Vec<Option<PathBuf>>, Failure> {
    let mut files: Vec<Option<PathBuf>> = vec![None; tensors.len()];
    let known = || tensors.iter().map(TensorNames::text).collect::<Vec<_>>().join(", ");
    let position = |name: &str| {
        let by_id = || tensors.iter().position(|tensor| tensor.id.as_deref() == Some(name));
        tensors.iter().position(|tensor| tensor.name == name).or_else(by_id)
    };
    let mut unnamed = Vec::new();
    for text in given {
        // Names and paths may contain "=", too.
        let named = text.match_indices('=').find_map(|(at, _)| {
            let (name, file) = (text.get(..at)?, text.get(at + 1..)?);
            Some((position(name)?, file))
        });
        match named {
            Some((at, file)) => {
                let earlier = files.get_mut(at).and_then(|slot| slot.replace(PathBuf::from(file)));
                if let Some(earlier) = earlier {
                    return Err(Failure::wrong_use(format!(
                        "--{what} {text}: this {what} already has the file {}",
                        earlier.display()
                    ))
                    .and_next("give it one file"));
                }
            }
            None if text.contains('=') && !is_path(text) => {
                return Err(Failure::wrong_use(format!(
                    "--{what} {text}: the model has no {what} of that name; its {what}s are {}",
                    known()
                ))
                .and_next("give one of these names, or a file name with \"=\" after its folder, such as ./a=1.npy"));
            }
            None => unnamed.push(text),
        }
    }
    for text in unnamed {
        let Some(slot) = files.iter_mut().find(|slot| slot.is_none()) else {
            return Err(Failure::wrong_use(format!(
                "--{what} {text}: too many {what}s were given; the model has {} ({})",
                tensors.len(),
                known()
            )));
        };
        *slot = Some(PathBuf::from(text));
    }
    Ok(files)
}

/// Measured times of compiling and running.
struct Times {
    compile_ms: f64,
    first_run_ms: f64,
    /// Wall time of a run in ms.
    wall: Spread,
    /// CPU time of a run in ms.
    cpu: Spread,
}

struct Spread {
    min: f64,
    median: f64,
    max: f64,
}

impl Spread {
    fn json(&self) -> serde_json::Value {
        json!({"min": self.min, "median": self.median, "max": self.max})
    }
}

fn spread(mut values: Vec<f64>) -> Spread {
    values.sort_by(f64::total_cmp);
    let at = |i: usize| values.get(i).copied().unwrap_or(f64::NAN);
    let n = values.len();
    let median = if n % 2 == 1 { at(n / 2) } else { (at((n / 2).wrapping_sub(1)) + at(n / 2)) / 2.0 };
    Spread { min: at(0), median, max: at(n.wrapping_sub(1)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tensors_and_paths_may_contain_an_equals_sign() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("dir=1");
        std::fs::create_dir(&inside).unwrap();
        let path = |name: &str| inside.join(name).to_str().unwrap().to_owned();
        let tensor = |name: &str| TensorNames { name: name.to_owned(), id: None };
        let tensors = [tensor("y"), tensor("a=b"), tensor("/conv/out")];
        let assigned =
            |given: &[String]| assign(&tensors, given, "output").map_err(|error| error.message().to_string());
        let files = |files: [&str; 3]| Ok(files.map(|file| Some(PathBuf::from(file))).to_vec());
        // The path of a file that does not exist yet, in a folder that does.
        let (first, second) = (path("1.npy"), path("k=2.npy"));
        let given = [first.clone(), format!("a=b={second}"), "/conv/out=z.npy".to_owned()];
        assert_eq!(assigned(&given), files([&first, &second, "z.npy"]));
        let given = [format!("y={first}"), "./k=2.npy".to_owned(), "z.npy".to_owned()];
        assert_eq!(assigned(&given), files([&first, "./k=2.npy", "z.npy"]));
        for wrong in ["x=1.npy", "x=missing/1.npy", "/conv/x=1.npy", "missing=1/out.npy"] {
            let error = assigned(&[wrong.to_owned()]).unwrap_err();
            assert!(error.contains(&format!("--output {wrong}: the model has no output of that name")), "{error}");
            assert!(error.contains("its outputs are y, a=b, /conv/out; give one of these"), "{error}");
        }
    }
}
