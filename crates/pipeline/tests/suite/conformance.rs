//! One test suite for all engines: stored ONNX results, comparison with the reference executor, and the errors that an
//! engine must return.

use crate::common::{self, noise_tensor, relative_distance};
use crate::corpus::{self, DataSet, agrees};
use cytoscope_builders::{
    DifferenceOfGaussians, DynUNet, UNet3d, Upsampling, Weights, difference_of_gaussians, dynunet, unet3d,
};
use cytoscope_engine::{CompileOptions, DeviceId, Engine, EngineError, Precision};
use cytoscope_engine_cpu::CpuEngine;
use cytoscope_graph::{Activation, ElementType, Graph, GraphLimits};
use cytoscope_kernels::{Isa, IsaName};
use cytoscope_pipeline::devices::Devices;
use cytoscope_testkit::skip;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the path of the program that probes for GPUs; it may not be built.
fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let beside =
        test.parent().and_then(Path::parent).unwrap().join(format!("cytoscope{}", std::env::consts::EXE_SUFFIX));
    if !beside.is_file() {
        skip(format!("{} is not built, so GPUs are not probed", beside.display()));
    }
    beside
}

/// Returns every engine of this machine by name, and reports those that are skipped with the reason.
fn engines() -> Vec<(String, Box<dyn Engine>)> {
    let mut engines: Vec<(String, Box<dyn Engine>)> = Vec::new();
    for name in IsaName::ALL {
        match Isa::available(name) {
            Some(isa) => engines.push((format!("cpu/{isa}"), Box::new(CpuEngine::with_isa(isa)))),
            None => skip(format!("engine cpu/{}: not supported by this CPU", name.as_str())),
        }
    }
    let devices = Devices::discover(&program());
    for device in devices.list().iter().filter(|d| d.id != DeviceId::Cpu) {
        if !device.usable {
            skip(format!("engine {}: {}", device.id, device.reason));
            continue;
        }
        engines.push((device.id.to_string(), devices.engine(device.id).unwrap()));
    }
    if devices.list().iter().all(|d| d.id == DeviceId::Cpu) {
        skip("engines cuda and wgpu: no such device was found");
    }
    engines
}

fn is_cpu(name: &str) -> bool {
    name.starts_with("cpu")
}

enum Outcome {
    Right,
    Unsupported,
    Wrong(String),
}

fn run_model(engine: &dyn Engine, folder: &Path) -> Outcome {
    let result = || -> Result<Option<String>, EngineError> {
        let graph = cytoscope_onnx::load(&folder.join("model.onnx"), &GraphLimits::default())?;
        let sets = corpus::data_sets(folder);
        assert!(!sets.is_empty(), "{} has no data", folder.display());
        for DataSet { inputs, outputs: expected } in sets {
            let shapes: Vec<Vec<usize>> = inputs.iter().map(|t| t.shape().to_vec()).collect();
            let options = CompileOptions { threads: 2, ..CompileOptions::default() };
            let got = engine.compile(&graph, &shapes, &options)?.run(&inputs)?;
            if got.len() < expected.len() {
                return Ok(Some(format!("{} outputs for {}", got.len(), expected.len())));
            }
            if let Some(why) = got.iter().zip(&expected).find_map(|(g, e)| agrees(g, e).err()) {
                return Ok(Some(why));
            }
        }
        Ok(None)
    };
    match result() {
        Ok(None) => Outcome::Right,
        Ok(Some(why)) => Outcome::Wrong(why),
        Err(EngineError::UnsupportedOp { .. }) => Outcome::Unsupported,
        Err(error) => Outcome::Wrong(error.to_string()),
    }
}

#[test]
fn a_unet_of_a_foreign_package_runs_on_kernels_only() {
    let Some(data) = common::shared_data() else { return };
    let file = data.join("packages/tiktorch_unet2d/unet2d_onnx/weights.onnx");
    let graph = cytoscope_onnx::load(&file, &GraphLimits::default()).unwrap();
    let session = CpuEngine::new().compile(&graph, &[vec![1, 1, 512, 512]], &CompileOptions::default()).unwrap();
    assert!(session.report().fallbacks.is_empty(), "{:?}", session.report().fallbacks);
}

#[test]
fn stored_results_of_onnx_models_are_reproduced() {
    let Some(data) = common::shared_data() else { return };
    let models = corpus::models(&data);
    for (name, engine) in engines() {
        let (mut right, mut unsupported, mut wrong) = (0, 0, Vec::new());
        for model in &models {
            match run_model(engine.as_ref(), model) {
                Outcome::Right => right += 1,
                Outcome::Unsupported => unsupported += 1,
                Outcome::Wrong(why) => {
                    wrong.push(format!("{}: {why}", model.file_name().unwrap().to_string_lossy()));
                }
            }
        }
        let n = models.len();
        eprintln!("{name}: {right} of {n} right, {unsupported} not supported, {} wrong", wrong.len());
        wrong.iter().for_each(|w| eprintln!("  WRONG on {name}: {w}"));
        if is_cpu(&name) {
            assert!(right * 100 >= n * 98, "{name}: {right} of {n} right; at least 98 % must be");
        } else {
            assert!(wrong.is_empty(), "{name} must refuse what it cannot run, never answer wrongly");
            assert!(right > 0, "{name} runs nothing");
        }
    }
}

struct Case {
    name: String,
    graph: Graph,
    shape: Vec<usize>,
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: &str, graph: &Graph, shapes: &[&[usize]]| {
        for shape in shapes {
            cases.push(Case { name: format!("{name} {shape:?}"), graph: graph.clone(), shape: shape.to_vec() });
        }
    };
    for upsampling in [Upsampling::Transposed, Upsampling::Nearest] {
        let config = UNet3d {
            filters: vec![5, 9, 17],
            strides: vec![[1, 2, 2], [2, 2, 2]],
            upsampling,
            head: Some(Activation::Sigmoid),
            ..UNet3d::default()
        };
        let plain = unet3d(&config, &Weights::Random { seed: 3 }).unwrap();
        let mut fused = plain.clone();
        cytoscope_graph_passes::optimize(&mut fused).unwrap();
        let shapes: &[&[usize]] = &[&[1, 1, 2, 4, 4], &[1, 1, 6, 20, 12], &[2, 1, 4, 8, 28]];
        add(&format!("unet3d {upsampling:?}"), &plain, shapes);
        add(&format!("unet3d {upsampling:?} optimized"), &fused, &[&[1, 1, 6, 20, 12]]);
    }
    let two_in =
        UNet3d { in_channels: 2, out_channels: 3, filters: vec![4, 8], strides: vec![[2; 3]], ..UNet3d::default() };
    add(
        "unet3d 2 to 3",
        &unet3d(&two_in, &Weights::Random { seed: 4 }).unwrap(),
        &[&[1, 2, 6, 10, 14], &[3, 2, 2, 4, 6]],
    );
    let anisotropic =
        UNet3d { filters: vec![16, 32], strides: vec![[1, 2, 2]], kernel: [1, 3, 5], ..UNet3d::default() };
    add(
        "unet3d 1x3x5",
        &unet3d(&anisotropic, &Weights::Random { seed: 5 }).unwrap(),
        &[&[1, 1, 3, 14, 22], &[1, 1, 1, 8, 8]],
    );
    for residual in [true, false] {
        let config = DynUNet { filters: vec![4, 16, 20], residual, ..DynUNet::default() };
        let graph = dynunet(&config, &Weights::Random { seed: 6 }).unwrap();
        add(&format!("dynunet residual={residual}"), &graph, &[&[1, 1, 8, 12, 20], &[2, 1, 4, 8, 8]]);
    }
    let flat = DynUNet { spatial_axes: 2, filters: vec![6, 16], strides: vec![1, 2], ..DynUNet::default() };
    let flat = dynunet(&flat, &Weights::Random { seed: 7 }).unwrap();
    add("dynunet 2-D", &flat, &[&[1, 1, 18, 34], &[2, 1, 64, 10]]);
    let dog = DifferenceOfGaussians {
        sigma_small: [0.5, 1.0, 1.2],
        sigma_large: [1.0, 2.0, 3.0],
        brightness: Some(([0.0, 1.0, 1.0], 0.3)),
        ..DifferenceOfGaussians::default()
    };
    let odd: &[&[usize]] = &[&[1, 1, 7, 13, 29], &[1, 1, 1, 1, 1], &[2, 1, 3, 5, 7], &[1, 1, 1, 33, 17]];
    add("difference of Gaussians", &difference_of_gaussians(&dog).unwrap(), odd);
    let free = UNet3d { filters: vec![7], strides: vec![], ..UNet3d::default() };
    if let Ok(graph) = unet3d(&free, &Weights::Random { seed: 8 }) {
        add("one level", &graph, &[&[1, 1, 5, 11, 23], &[1, 1, 3, 1, 7]]);
    }
    cases
}

#[test]
fn networks_agree_with_the_reference_executor() {
    let cases = cases();
    let engines = engines();
    for (i, case) in cases.iter().enumerate() {
        let x = noise_tensor(i as u64 + 1, &case.shape);
        let expected = cytoscope_reference::run(&case.graph, &[("x".into(), x.clone())]).unwrap();
        let second = noise_tensor(i as u64 + 100, &case.shape);
        let expected_second = cytoscope_reference::run(&case.graph, &[("x".into(), second.clone())]).unwrap();
        for (name, engine) in &engines {
            let options = CompileOptions { threads: 2, ..CompileOptions::default() };
            let mut session = match engine.compile(&case.graph, std::slice::from_ref(&case.shape), &options) {
                Err(EngineError::UnsupportedOp { op, .. }) if !is_cpu(name) => {
                    eprintln!("{name} does not run {}: {op}", case.name);
                    continue;
                }
                other => other.unwrap(),
            };
            // Run with two inputs, then with the first again: no state of a run may affect the next one.
            for (input, wanted) in [(&x, &expected), (&second, &expected_second), (&x, &expected)] {
                let got = session.run(std::slice::from_ref(input)).unwrap();
                assert_eq!(got.len(), wanted.len());
                for (g, w) in got.iter().zip(wanted) {
                    assert_eq!(g.shape(), w.shape(), "{name}: {}", case.name);
                    let d = relative_distance(g.as_f32().unwrap(), w.as_f32().unwrap());
                    assert!(d < 1e-4, "{name}: {} differs by {d:.2e} of its range", case.name);
                }
            }
        }
    }
    eprintln!("{} networks on {} engines", cases.len(), engines.len());
}

#[test]
fn threads_do_not_change_the_result() {
    let graph = unet3d(
        &UNet3d { filters: vec![8, 16], strides: vec![[2; 3]], ..UNet3d::default() },
        &Weights::Random { seed: 9 },
    )
    .unwrap();
    let x = noise_tensor(5, &[1, 1, 10, 22, 18]);
    for (name, engine) in engines().into_iter().filter(|(n, _)| is_cpu(n)) {
        let run = |threads| {
            let options = CompileOptions { threads, ..CompileOptions::default() };
            let mut session = engine.compile(&graph, &[x.shape().to_vec()], &options).unwrap();
            session.run(std::slice::from_ref(&x)).unwrap()
        };
        assert_eq!(run(1), run(3), "{name}");
    }
}

fn small() -> Graph {
    let config = UNet3d { filters: vec![4, 8], strides: vec![[2; 3]], ..UNet3d::default() };
    unet3d(&config, &Weights::Random { seed: 1 }).unwrap()
}

#[test]
fn wrong_inputs_are_refused_by_name() {
    let graph = small();
    let shape = vec![1, 1, 4, 8, 8];
    for (name, engine) in engines() {
        let options = CompileOptions::default();
        for shapes in [vec![], vec![shape.clone(), shape.clone()]] {
            let refused = engine.compile(&graph, &shapes, &options).err();
            assert!(matches!(refused, Some(EngineError::Input { .. })), "{name}: {shapes:?}: {refused:?}");
        }
        let refused = engine.compile(&graph, &[vec![1, 2, 4, 8, 8]], &options).err();
        assert!(refused.is_some(), "{name} compiled two channels for a network of one");
        let refused = engine.compile(&graph, &[vec![8, 8]], &options).err();
        assert!(refused.is_some(), "{name} compiled a 2-D image for a network of stacks");
        let mut session = engine.compile(&graph, std::slice::from_ref(&shape), &options).unwrap();
        let right = noise_tensor(1, &shape);
        let wrong = [
            vec![],
            vec![right.clone(), right.clone()],
            vec![noise_tensor(1, &[1, 1, 4, 8, 16])],
            vec![noise_tensor(1, &[1, 1, 8, 4, 8])],
            vec![right.cast(ElementType::F64)],
            vec![right.cast(ElementType::U8)],
        ];
        for inputs in wrong {
            let shown: Vec<_> = inputs.iter().map(|t| (t.shape().to_vec(), t.dtype())).collect();
            let refused = session.run(&inputs).err();
            assert!(matches!(refused, Some(EngineError::Input { .. })), "{name}: {shown:?}: {refused:?}");
        }
        let message = session.run(&[noise_tensor(1, &[1, 1, 4, 8, 16])]).unwrap_err().to_string();
        assert!(message.contains("\"x\"") && message.contains("[1, 1, 4, 8, 8]"), "{name}: {message}");
        assert!(session.run(&[right]).is_ok(), "{name}: a refusal must not spoil the session");
    }
}

#[test]
fn an_unsupported_precision_is_refused() {
    let graph = small();
    for (name, engine) in engines() {
        assert!(engine.device().precisions.contains(&Precision::F32), "{name}");
        for precision in [Precision::F32, Precision::Tf32, Precision::F16, Precision::Bf16, Precision::Int8] {
            let options = CompileOptions { precision, ..CompileOptions::default() };
            let result = engine.compile(&graph, &[vec![1, 1, 4, 8, 8]], &options);
            if precision == Precision::Int8 && engine.device().precisions.contains(&precision) {
                // A float model cannot run in int8.
                let refused = result.err();
                assert!(matches!(refused, Some(EngineError::NotQuantized { .. })), "{name}: {refused:?}");
            } else if engine.device().precisions.contains(&precision) {
                assert!(result.is_ok(), "{name} says it has {precision}: {:?}", result.err());
            } else {
                let refused = result.err();
                let fits = matches!(refused, Some(EngineError::UnsupportedPrecision { .. }));
                assert!(fits, "{name}, {precision}: {refused:?}");
            }
        }
    }
}

#[test]
fn a_memory_budget_that_is_too_small_is_refused_when_compiling() {
    let graph = small();
    let shape = vec![1, 1, 32, 32, 32];
    for (name, engine) in engines() {
        let compile = |budget| {
            let options = CompileOptions { memory_budget_bytes: Some(budget), ..CompileOptions::default() };
            engine.compile(&graph, std::slice::from_ref(&shape), &options)
        };
        match compile(1000).err() {
            Some(EngineError::OutOfMemory { needed_bytes, available_bytes, .. }) => {
                assert!(needed_bytes > available_bytes && available_bytes <= 1000, "{name}: {needed_bytes}");
            }
            other => panic!("{name}: {other:?}"),
        }
        let report = compile(1 << 40).unwrap().report().clone();
        let held = report.arena_bytes + report.weight_bytes;
        assert!(held >= 4 * 32 * 32 * 32, "{name} says it holds {held} bytes: less than its input");
        if is_cpu(&name) {
            assert!(compile(held).is_ok(), "{name}: what it holds must be enough");
            assert!(matches!(compile(held - 1).err(), Some(EngineError::OutOfMemory { .. })), "{name}");
        }
    }
}

const SCRIPT: &str = "
import sys, numpy as np, onnxruntime
s = onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])
i = s.get_inputs()[0]
x = np.fromfile(sys.argv[2], np.float32).reshape(1, 1, 32, 32, 32)
s.run(None, {i.name: x})[0].astype(np.float32).tofile(sys.argv[3])
";

#[test]
fn m1_agrees_with_onnx_runtime() {
    let Some(models) = common::bench_models() else { return };
    let Some(python) = common::python_with("numpy, onnxruntime") else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = models.join("M1.onnx");
    let x = noise_tensor(11, &[1, 1, 32, 32, 32]);
    let (from, to) = (folder.path().join("x.bin"), folder.path().join("y.bin"));
    let bytes: Vec<u8> = x.as_f32().unwrap().iter().flat_map(|v| v.to_le_bytes()).collect();
    std::fs::write(&from, bytes).unwrap();
    let out = Command::new(python).args(["-c", SCRIPT]).args([&model, &from, &to]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let theirs = std::fs::read(to).unwrap();
    let theirs: Vec<f32> = theirs.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let graph = cytoscope_onnx::load(&model, &GraphLimits::default()).unwrap();
    for (name, engine) in engines() {
        let mut session = engine.compile(&graph, &[x.shape().to_vec()], &CompileOptions::default()).unwrap();
        let ours = session.run(std::slice::from_ref(&x)).unwrap().remove(0);
        let d = relative_distance(ours.as_f32().unwrap(), &theirs);
        eprintln!("{name}: M1 at 32³ differs from ONNX Runtime by {d:.1e} of its range");
        assert!(d < 1e-4, "{name}: {d}");
    }
}
