//! Wrong results are never written, and changes since a record are reported.

use crate::common::{Fixture, floats, npy_f32, parse_npy, python, uniform};
use cytoscope_graph::{Dim, ElementType, Graph, Op};

/// Writes a network that copies one channel to three, as exported for networks that expect RGB.
fn gray_to_rgb(fixture: &Fixture) {
    let mut graph = Graph::new("gray to rgb");
    let free = |name: &str| Dim::Free(name.to_owned());
    let shape = vec![Dim::Fixed(1), Dim::Fixed(1), free("z"), free("y"), free("x")];
    let input = graph.add_input("x", ElementType::F32, shape);
    let all = graph.push("y", Op::Concat { axis: 1 }, &[Some(input); 3]);
    graph.outputs.push(all);
    cytoscope_onnx::save(&graph, &fixture.path("rgb.onnx")).unwrap();
}

#[test]
fn concatenation_of_a_value_with_itself_is_correct() {
    let fixture = Fixture::new();
    gray_to_rgb(&fixture);
    let shape = [1, 1, 3, 5, 7];
    let x = uniform(3, 105);
    std::fs::write(fixture.path("x.npy"), npy_f32(&shape, &x)).unwrap();
    let expected: Vec<f32> = x.iter().chain(&x).chain(&x).copied().collect();
    for engine in ["reference", "cpu"] {
        let output = format!("{engine}.npy");
        fixture.run(&["run", "rgb.onnx", "--engine", engine, "--input", "x.npy", "--output", &output]).ok();
        let (_, shape, bytes) = parse_npy(&fixture.bytes(&output));
        assert_eq!((shape, floats(&bytes)), (vec![1, 3, 3, 5, 7], expected.clone()), "{engine}");
    }
    // Importing compares the engines with the reference executor.
    let report = fixture.run(&["import", "rgb.onnx", "--out", "rgb", "--json"]).json();
    let cpu = report["engines"].as_array().unwrap().iter().find(|e| e["device"] == "cpu").expect("the CPU is listed");
    assert_eq!(cpu["agrees"], true, "{report:#}");
    let script = "import sys, numpy, onnxruntime\n\
                  s = onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])\n\
                  y = s.run(None, {'x': numpy.load(sys.argv[2])})[0]\n\
                  print(numpy.array_equal(y, numpy.load(sys.argv[3])))";
    let paths = ["rgb.onnx", "x.npy", "cpu.npy"].map(|n| fixture.path(n));
    let paths: Vec<&std::path::Path> = paths.iter().map(|p| p.as_path()).collect();
    if let Some(printed) = python("numpy, onnxruntime", script, &paths) {
        assert_eq!(printed.trim(), "True");
    }
}

#[test]
fn rerun_reports_what_has_changed() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    fixture.run(&["export", "nuclei-dog", "--format", "onnx", "--out", "m.onnx"]).ok();
    fixture.run(&["import", "m.onnx", "--out", "pkg"]).ok();
    fixture.run(&["predict", &raw, "--model", "pkg", "--out", "o"]).ok();
    let rerun = ["predict", "--rerun", "o/nuclei_1_raw_provenance.json", "--out", "again", "--json"];
    let notes = |ran: crate::common::CommandResult| ran.json()["inputs"][0]["notes"].to_string();
    let same = notes(fixture.run(&rerun));
    assert!(!same.contains("recorded") && !same.contains("is not the one"), "{same}");
    // Also from another folder: the paths in a record are absolute.
    std::fs::create_dir(fixture.path("elsewhere")).unwrap();
    let record = fixture.path("o/nuclei_1_raw_provenance.json");
    let arguments = ["predict", "--rerun", record.to_str().unwrap(), "--out", "again", "--json"];
    let out = fixture.command(&arguments).current_dir(fixture.path("elsewhere")).output().unwrap();
    let printed = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success() && !printed.contains("it has"), "{printed} {}", String::from_utf8_lossy(&out.stderr));
    // Another stack with the same name.
    fixture.run(&["simulate", "--kind", "nuclei", "--shape", "8,50,48", "--seed", "1", "--out", "sim", "--force"]).ok();
    let printed = notes(fixture.run(&rerun));
    assert!(printed.contains("nuclei_1_raw.tif") && printed.contains("bytes"), "{printed}");
    // A changed model description with the same network.
    let text = String::from_utf8(fixture.bytes("pkg/rdf.yaml")).unwrap();
    std::fs::write(fixture.path("pkg/rdf.yaml"), text.replace("version: 0.1.0", "version: 0.2.0")).unwrap();
    let printed = notes(fixture.run(&rerun));
    assert!(printed.contains("model") && printed.contains("is not the one that made the recorded result"), "{printed}");
}

/// A field of protobuf with these bytes, at most 16,383.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    if bytes.len() >= 0x80 {
        out.push(bytes.len() as u8 | 0x80);
    }
    out.push(if bytes.len() >= 0x80 { (bytes.len() >> 7) as u8 } else { bytes.len() as u8 });
    out.extend(bytes);
    out
}

/// A field of protobuf with a number below 128.
fn number(field: u8, value: u8) -> Vec<u8> {
    vec![field << 3, value]
}

/// An ONNX file of a network that multiplies each voxel by the number in the file `w.bin`.
fn onnx_with_external_data() -> Vec<u8> {
    let axis = |length: Option<u8>| match length {
        Some(length) => field(1, &number(1, length)),
        None => field(1, &field(2, b"n")),
    };
    let shape = [Some(1), Some(1), None, None, None].map(axis).concat();
    let kind = field(2, &field(1, &[number(1, 1), field(2, &shape)].concat()));
    let value = |name: &[u8]| [field(1, name), kind.clone()].concat();
    let location = field(13, &[field(1, b"location"), field(2, b"w.bin")].concat());
    let weights = [number(1, 1), number(2, 1), field(8, b"w"), location, number(14, 1)].concat();
    let node = [field(1, b"x"), field(1, b"w"), field(2, b"y"), field(4, b"Mul")].concat();
    let graph = [field(1, &node), field(5, &weights), field(11, &value(b"x")), field(12, &value(b"y"))].concat();
    [number(1, 8), field(7, &graph), field(8, &number(2, 17))].concat()
}

#[test]
fn other_weights_in_the_external_data_of_an_onnx_file_are_another_model() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("4,32,32", 1);
    let weights = |factor: f32| std::fs::write(fixture.path("w.bin"), factor.to_le_bytes()).unwrap();
    std::fs::write(fixture.path("net.onnx"), onnx_with_external_data()).unwrap();
    let predict = ["predict", &raw, "--model", "net.onnx", "--device", "cpu", "--outputs", "maps", "--out", "o"];
    let is_resumed = || {
        let report = fixture.run(&[&predict[..], &["--resume", "--json"]].concat()).json();
        report["inputs"][0]["resumed"].as_bool().unwrap()
    };
    weights(2.0);
    assert!(!is_resumed() && is_resumed());
    let before = fixture.image("o/nuclei_1_raw_probability.tif");
    fixture.run(&["import", "net.onnx", "--out", "pkg"]).ok();
    weights(3.0);
    let imported = fixture.run(&["provenance", "pkg"]).ok().stdout;
    assert!(imported.contains("w.bin was modified since it was recorded"), "{imported}");
    let record = "o/nuclei_1_raw_provenance.json";
    let shown = fixture.run(&["provenance", record]).ok();
    assert!(shown.stdout.contains("is not the one that made the recorded result"), "{}", shown.stdout);
    assert!(!is_resumed(), "the network computes something else");
    assert_ne!(fixture.image("o/nuclei_1_raw_probability.tif"), before);
}

#[cfg(unix)]
#[test]
fn stack_that_changes_during_prediction_gives_no_result() {
    let fixture = Fixture::new();
    let (mut child, mut lines) = crate::failures::start_prediction(&fixture);
    // Change a byte of the last slice while the stack is read.
    use std::io::{Seek, Write};
    let mut file = std::fs::OpenOptions::new().write(true).open(fixture.path("large.tif")).unwrap();
    file.seek(std::io::SeekFrom::End(-1000)).unwrap();
    file.write_all(&[1]).unwrap();
    file.sync_all().unwrap();
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut lines, &mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3), "{rest}");
    assert!(rest.contains("changed while it was read"), "{rest}");
    assert!(fixture.names("o").is_empty(), "{:?}", fixture.names("o"));
}

#[cfg(unix)]
#[test]
fn a_stack_that_is_truncated_during_prediction_is_bad_input() {
    let fixture = Fixture::new();
    let (mut child, mut lines) = crate::failures::start_prediction(&fixture);
    let file = std::fs::OpenOptions::new().write(true).open(fixture.path("large.tif")).unwrap();
    file.set_len(1000).unwrap();
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut lines, &mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3), "{rest}");
    assert!(rest.contains(r#""event":"error""#) && rest.contains("large.tif"), "{rest}");
    assert!(fixture.names("o").is_empty(), "{:?}", fixture.names("o"));
}
