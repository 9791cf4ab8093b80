//! The bundled models pass their self-tests, on the reference executor and on the CPU engine, and OpenVINO agrees with them.

use crate::common::{python_with, relative_distance};
use cytoscope_engine::{CompileOptions, Engine};
use cytoscope_engine_cpu::CpuEngine;
use cytoscope_graph::Graph;
use cytoscope_graph_passes::quantize::is_quantized;
use cytoscope_model_package::{Package, Tolerance, compare};
use cytoscope_pipeline::packages::{TestResult, network_test, test};
use cytoscope_testkit::run_python;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Its arguments are the files of the network, its input and its output, and the shape of the input.
const OPENVINO: &str = "
import sys, numpy as np, openvino
network, x, y, shape = sys.argv[1:]
# By default, OpenVINO computes in bf16 on CPUs that support it.
model = openvino.compile_model(openvino.Core().read_model(network), 'CPU', {'INFERENCE_PRECISION_HINT': 'f32'})
x = np.fromfile(x, np.float32).reshape([int(n) for n in shape.split(',')])
model([x])[0].astype(np.float32).tofile(y)
";

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

/// Returns the folders of all bundled packages.
fn packages() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(models()).unwrap().map(|entry| entry.unwrap().path());
    let packages: Vec<PathBuf> = entries.filter(|path| path.join("rdf.yaml").is_file()).collect();
    assert!(!packages.is_empty(), "no packages in {}", models().display());
    packages
}

#[test]
fn every_bundled_package_passes_its_self_test() {
    for path in packages() {
        let package = Package::open(&path).unwrap();
        assert_eq!(test(&package).unwrap(), TestResult::Reproduced, "{}", path.display());
        // The declared weights are floats, so that other programs reproduce the outputs within bioimage.io's default
        // tolerance.
        assert!(!is_quantized(package.declared_graph()), "{}", path.display());
        assert_eq!(package.output_tolerance("maps"), Tolerance::default(), "{}", path.display());
        let (inputs, expected) = network_test(&package).unwrap();
        let shapes: Vec<Vec<usize>> = inputs.iter().map(|t| t.shape().to_vec()).collect();
        let run = |graph: &Graph| {
            let mut session = CpuEngine::new().compile(graph, &shapes, &CompileOptions::default()).unwrap();
            let slow = session.report().fallbacks.iter().filter(|f| !f.is_cheap);
            assert_eq!(slow.count(), 0, "{:?}", session.report().fallbacks);
            session.run(&inputs).unwrap()
        };
        let outputs = run(package.declared_graph());
        assert_eq!(outputs.len(), expected.len(), "{}", path.display());
        for (want, got) in expected.iter().zip(outputs) {
            compare("output", want, &got, Tolerance::default()).unwrap();
        }
        if package.is_int8() {
            let outputs = run(&package.graph);
            assert_eq!(outputs.len(), expected.len(), "{}", path.display());
            for (want, got) in expected.iter().zip(outputs) {
                assert_eq!(got.shape(), want.shape(), "{}", path.display());
                let off = want.as_f32().unwrap().iter().zip(got.as_f32().unwrap()).map(|(w, g)| (w - g).powi(2));
                let size = want.as_f32().unwrap().iter().map(|w| w.powi(2));
                let error = (off.sum::<f32>() / size.sum::<f32>()).sqrt();
                // The limit is high because the test input is small. Other tests check the accuracy of objects in whole stacks.
                assert!(error < 0.15, "{}: the quantized network is off by {error}", path.display());
            }
        }
    }
}

#[test]
fn openvino_agrees_with_the_exported_float_networks() {
    let Some(python) = python_with("numpy, openvino") else { return };
    for path in packages() {
        let package = Package::open(&path).unwrap();
        let graph = package.declared_graph();
        let (inputs, _) = network_test(&package).unwrap();
        let [x] = inputs.as_slice() else { panic!("{}: {} inputs", path.display(), inputs.len()) };
        let mut session = CpuEngine::new().compile(graph, &[x.shape().to_vec()], &CompileOptions::default()).unwrap();
        let ours = session.run(&inputs).unwrap().remove(0);
        let folder = tempfile::tempdir().unwrap();
        let [network, input, output] = ["m.onnx", "x.bin", "y.bin"].map(|name| folder.path().join(name));
        cytoscope_onnx::save(graph, &network).unwrap();
        let bytes: Vec<u8> = x.as_f32().unwrap().iter().flat_map(|v| v.to_le_bytes()).collect();
        std::fs::write(&input, bytes).unwrap();
        let shape = x.shape().iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let files = [&network, &input, &output].map(|file| file.as_os_str());
        run_python(&python, OPENVINO, &[files.as_slice(), &[OsStr::new(&shape)]].concat());
        let theirs = std::fs::read(output).unwrap();
        let theirs: Vec<f32> = theirs.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        let distance = relative_distance(ours.as_f32().unwrap(), &theirs);
        assert!(distance < 1e-4, "{}: OpenVINO differs by {distance:.1e} of the range", path.display());
    }
}

#[test]
fn every_alias_names_an_existing_package() {
    let mut found = 0;
    for entry in std::fs::read_dir(models()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "alias" || e == "trainable") {
            let name = std::fs::read_to_string(&path).unwrap();
            assert!(models().join(name.trim()).join("rdf.yaml").is_file(), "{}", path.display());
            found += 1;
        }
    }
    assert!(found > 0, "no aliases in {}", models().display());
}

#[test]
fn cards_say_which_models_have_an_int8_network() {
    let has_int8 = |name: &str| cytoscope_pipeline::cards::card(name, &models().join(name)).has_int8;
    assert!(has_int8("nuclei") && !has_int8("nuclei-dog"));
}

#[test]
fn a_package_with_a_modified_network_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(models().join("nuclei-dog")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let model = folder.path().join("model.onnx");
    let mut bytes = std::fs::read(&model).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&model, bytes).unwrap();
    let error = Package::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("checksum") && error.contains("model.onnx"), "{error}");
}
