//! Results that would be wrong are not made, or it is said what is not as it was.

use crate::common::{Desk, floats, npy_f32, parse_npy, python, uniform};
use cytoscope_graph::{Dim, ElementType, Graph, Op};

/// Grey to three equal channels, as networks for colour pictures are exported for grey ones.
fn grey_to_rgb(desk: &Desk) {
    let mut graph = Graph::new("grey to rgb");
    let free = |name: &str| Dim::Free(name.to_owned());
    let shape = vec![Dim::Fixed(1), Dim::Fixed(1), free("z"), free("y"), free("x")];
    let input = graph.add_input("x", ElementType::F32, shape);
    let all = graph.push("y", Op::Concat { axis: 1 }, &[Some(input); 3]);
    graph.outputs.push(all);
    graph.save(&desk.path("rgb.onnx")).unwrap();
}

#[test]
fn a_concatenation_of_one_value_with_itself_is_whole() {
    let desk = Desk::new();
    grey_to_rgb(&desk);
    let shape = [1, 1, 3, 5, 7];
    let x = uniform(3, 105);
    std::fs::write(desk.path("x.npy"), npy_f32(&shape, &x)).unwrap();
    let expected: Vec<f32> = x.iter().chain(&x).chain(&x).copied().collect();
    for engine in ["reference", "cpu"] {
        let output = format!("{engine}.npy");
        desk.run(&["run", "rgb.onnx", "--engine", engine, "--input", "x.npy", "--output", &output]).ok();
        let (_, shape, bytes) = parse_npy(&desk.bytes(&output));
        assert_eq!((shape, floats(&bytes)), (vec![1, 3, 3, 5, 7], expected.clone()), "{engine}");
    }
    // Importing it runs the engines, not the reference executor alone.
    let report = desk.run(&["import", "rgb.onnx", "--out", "rgb", "--json"]).json();
    let cpu =
        report["engines"].as_array().unwrap().iter().find(|e| e["device"] == "cpu").expect("the processor is there");
    assert_eq!(cpu["agrees"], true, "{report:#}");
    let script = "import sys, numpy, onnxruntime\n\
                  s = onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])\n\
                  y = s.run(None, {'x': numpy.load(sys.argv[2])})[0]\n\
                  print(numpy.array_equal(y, numpy.load(sys.argv[3])))";
    let paths = ["rgb.onnx", "x.npy", "cpu.npy"].map(|n| desk.path(n));
    let paths: Vec<&std::path::Path> = paths.iter().map(|p| p.as_path()).collect();
    if let Some(said) = python("numpy, onnxruntime", script, &paths) {
        assert_eq!(said.trim(), "True");
    }
}

#[test]
fn a_rerun_says_what_is_not_as_it_was() {
    let desk = Desk::new();
    let raw = desk.nuclei("8,48,48", 1);
    desk.run(&["export", "nuclei-dog", "--format", "onnx", "--out", "m.onnx"]).ok();
    desk.run(&["import", "m.onnx", "--out", "pkg"]).ok();
    desk.run(&["predict", &raw, "--model", "pkg", "--out", "o"]).ok();
    let rerun = ["predict", "--rerun", "o/nuclei_1_raw_provenance.json", "--out", "again", "--json"];
    let notes = |ran: crate::common::Ran| ran.json()["inputs"][0]["notes"].to_string();
    let same = notes(desk.run(&rerun));
    assert!(!same.contains("recorded") && !same.contains("is not the one"), "{same}");
    // From another folder, too: a record's paths are absolute.
    std::fs::create_dir(desk.path("elsewhere")).unwrap();
    let record = desk.path("o/nuclei_1_raw_provenance.json");
    let arguments = ["predict", "--rerun", record.to_str().unwrap(), "--out", "again", "--json"];
    let out = desk.command(&arguments).current_dir(desk.path("elsewhere")).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success() && !said.contains("it has"), "{said} {}", String::from_utf8_lossy(&out.stderr));
    // Another stack under the same name.
    desk.run(&["simulate", "--kind", "nuclei", "--shape", "8,50,48", "--seed", "1", "--out", "sim", "--force"]).ok();
    let said = notes(desk.run(&rerun));
    assert!(said.contains("nuclei_1_raw.tif") && said.contains("bytes"), "{said}");
    // Another description of the model: the network is the same, how objects are made of it is not.
    let text = String::from_utf8(desk.bytes("pkg/rdf.yaml")).unwrap();
    std::fs::write(desk.path("pkg/rdf.yaml"), text.replace("version: 0.1.0", "version: 0.2.0")).unwrap();
    let said = notes(desk.run(&rerun));
    assert!(said.contains("model") && said.contains("is not the one that made the recorded result"), "{said}");
}

#[cfg(unix)]
#[test]
fn a_stack_that_changes_while_it_is_predicted_gives_no_result() {
    let desk = Desk::new();
    let (mut child, mut lines) = crate::failures::predicting(&desk);
    // Written to while it is read: a byte of its last slice.
    use std::io::{Seek, Write};
    let mut file = std::fs::OpenOptions::new().write(true).open(desk.path("large.tif")).unwrap();
    file.seek(std::io::SeekFrom::End(-1000)).unwrap();
    file.write_all(&[1]).unwrap();
    file.sync_all().unwrap();
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut lines, &mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3), "{rest}");
    assert!(rest.contains("changed while it was read"), "{rest}");
    assert!(desk.names("o").is_empty(), "{:?}", desk.names("o"));
}
