//! `run`, `import`, `export` and `devices`.

#[path = "../../crates/checkpoint-import/tests/common/mod.rs"]
mod weights;

use crate::common::{Fixture, floats, missing, npy_f32, parse_npy, python, shared_data, uniform};
use cytoscope_builders::{DynUNet, Weights, dynunet};
use cytoscope_graph::{ConvAttrs, Dim, ElementType, Graph, Op, Tensor};
use cytoscope_testkit::largest_difference;
use serde_json::Value;
use std::collections::BTreeMap;

const SHAPE: [usize; 5] = [1, 1, 9, 21, 26];

/// Writes a bundled network with free spatial dimensions as `m.onnx` and an input as `x.npy`, and returns the input.
fn network(fixture: &Fixture) -> Vec<f32> {
    let exported = fixture.run(&["export", "nuclei-dog", "--out", "m.onnx"]).ok().stdout;
    assert!(exported.contains("wrote m.onnx") && exported.contains("only the network"), "{exported}");
    let x = uniform(7, SHAPE.iter().product());
    std::fs::write(fixture.path("x.npy"), npy_f32(&SHAPE, &x)).unwrap();
    x
}

#[test]
fn engines_of_run_agree_and_report_all_documented_fields() {
    let fixture = Fixture::new();
    network(&fixture);
    let mut results = Vec::new();
    for engine in ["reference", "cpu"] {
        let out = format!("{engine}.npy");
        let report = fixture
            .run(&[
                "run", "m.onnx", "--input", "x.npy", "--output", &out, "--engine", engine, "--repeat", "3", "--json",
            ])
            .json();
        let promised =
            ["engine", "precision", "threads", "outputs", "wall_ms", "cpu_ms", "first_run_ms", "peak_rss_bytes"];
        assert_eq!(missing(&report, &promised), Vec::<&str>::new());
        assert_eq!((report["engine"].as_str(), report["precision"].as_str()), (Some(engine), Some("f32")));
        for times in [&report["wall_ms"], &report["cpu_ms"]] {
            let [min, median, max] = ["min", "median", "max"].map(|k| times[k].as_f64().unwrap());
            assert!(0.0 <= min && min <= median && median <= max, "{times}");
        }
        assert!(report["peak_rss_bytes"].as_u64().unwrap() > 1 << 20);
        let output = &report["outputs"][0];
        assert_eq!(output["shape"], serde_json::json!([1, 2, 9, 21, 26]));
        assert_eq!(output["dtype"], "float32");
        let (dtype, shape, data) = parse_npy(&fixture.bytes(&out));
        assert_eq!((dtype.as_str(), shape.as_slice()), ("<f4", &[1, 2, 9, 21, 26][..]));
        results.push(floats(&data));
    }
    assert!(largest_difference(&results[0], &results[1]) < 1e-5, "{}", largest_difference(&results[0], &results[1]));
    assert!(results[0].iter().any(|v| (v - results[0][0]).abs() > 0.05), "a constant agrees with everything");
}

#[test]
fn run_takes_a_gpu_by_its_index() {
    let fixture = Fixture::new();
    network(&fixture);
    let arguments = |engine: &'static str| ["run", "m.onnx", "--input", "x.npy", "--engine", engine];
    for gpu in ["cuda:77", "wgpu:77"] {
        fixture.fails(2, &arguments(gpu), &[gpu, "there is no such device"]);
    }
    for wrong in ["cuda:x", "auto", "tpu"] {
        fixture.fails(2, &arguments(wrong), &[wrong, "expected reference, cpu, cuda[:i] or wgpu[:i]"]);
    }
}

#[test]
fn run_accepts_tensor_names_and_refuses_mismatches() {
    let fixture = Fixture::new();
    network(&fixture);
    let report = fixture.run(&["run", "m.onnx", "--input", "x.npy", "--json"]).json();
    assert_eq!(report["run"]["command"], "run", "{report}");
    let name = report["outputs"][0]["name"].as_str().unwrap().to_owned();
    fixture
        .run(&["run", "m.onnx", "--input", "x=x.npy", "--output", &format!("{name}=named.npy"), "--threads", "1"])
        .ok();
    fixture.run(&["run", "m.onnx", "--input", "x.npy", "--output", "plain.npy"]).ok();
    assert_eq!(fixture.bytes("named.npy"), fixture.bytes("plain.npy"));
    fixture.run(&["run", "m.onnx", "--input", "x.npy", "--trace", "t.json"]).ok();
    let trace: Value = serde_json::from_slice(&fixture.bytes("t.json")).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().iter().any(|e| e["cat"] == "op"));
    fixture.fails(2, &["run", "m.onnx", "--input", "nosuch=x.npy"], &["nosuch", "x"]);
    fixture.fails(2, &["run", "m.onnx", "--input", "x.npy", "--input", "x.npy"], &["too many"]);
    fixture.fails(2, &["run", "m.onnx", "--input", "x.npy", "--output", "a.npy", "--output", "b.npy"], &["too many"]);
    // No file is dropped in favor of a later one.
    fixture.fails(2, &["run", "m.onnx", "--input", "plain.npy", "--input", "x=x.npy"], &["plain.npy", "too many"]);
    fixture.fails(2, &["run", "m.onnx", "--input", "x=x.npy", "--input", "x=plain.npy"], &["x=plain.npy", "already"]);
    assert!(!fixture.path("a.npy").exists(), "a wrong call is refused before anything is written");
    fixture.fails(2, &["run", "m.onnx", "--input", "x.npy", "--repeat", "0"], &["--repeat"]);
    fixture.fails(2, &["run", "m.onnx", "--input", "x.npy", "--precision", "f8"], &["f8"]);
    fixture.fails(2, &["run", "m.onnx", "--input", "x.npy", "--precision", "f16"], &["f16", "f32"]);
    fixture.fails(3, &["run", "m.onnx", "--input", "nothere.npy"], &["nothere.npy"]);
    fixture.fails(3, &["run", "m.onnx", "--input", "m.onnx"], &["m.onnx"]);
    std::fs::write(fixture.path("flat.npy"), npy_f32(&[4, 4], &[0.0; 16])).unwrap();
    let unfit =
        ["flat.npy", "shape [4, 4]", "input \"x\" is float32 with shape [", "give an array of that type and shape"];
    fixture.fails(3, &["run", "m.onnx", "--input", "flat.npy"], &unfit);
    // The network joins levels whose lengths differ.
    std::fs::write(fixture.path("odd.npy"), npy_f32(&[1, 1, 7, 31, 33], &[0.0; 7 * 31 * 33])).unwrap();
    let unfit = ["Concat", "\"x\" [1, 1, 7, 31, 33]", "multiples of its stride"];
    fixture.fails(3, &["run", "nuclei", "--input", "odd.npy"], &unfit);
}

#[test]
fn exported_networks_run_in_onnx_runtime() {
    let fixture = Fixture::new();
    network(&fixture);
    fixture.run(&["run", "m.onnx", "--input", "x.npy", "--output", "y.npy"]).ok();
    let script = "
import sys, numpy as np, onnx, onnxruntime
onnx.checker.check_model(sys.argv[1])
s = onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])
y = s.run(None, {s.get_inputs()[0].name: np.load(sys.argv[2])})[0]
print(float(np.abs(y - np.load(sys.argv[3])).max()))
";
    let files = ["m.onnx", "x.npy", "y.npy"].map(|n| fixture.path(n));
    if let Some(printed) = python("numpy, onnx, onnxruntime", script, &[&files[0], &files[1], &files[2]]) {
        let distance: f64 = printed.trim().parse().unwrap();
        assert!(distance < 1e-5, "ONNX Runtime differs by {distance}");
    }
}

#[test]
fn a_package_survives_export_and_import() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    fixture.run(&["export", "nuclei", "--format", "bioimageio", "--out", "p.zip"]).ok();
    let report = fixture.run(&["import", "p.zip", "--out", "pkg", "--json"]).json();
    assert_eq!(missing(&report, &["name", "test"]), Vec::<&str>::new());
    assert_eq!(report["test"], "the test outputs are reproduced");
    fixture.run(&["import", "pkg", "--out", "again.zip"]).ok();
    let mut results = Vec::new();
    for model in ["nuclei", "p.zip", "pkg", "again.zip"] {
        let out = format!("o-{}", model.trim_end_matches(".zip"));
        fixture.run(&["predict", &raw, "--model", model, "--out", &out]).ok();
        results.push(
            ["probability.tif", "labels.tif", "objects.csv"].map(|p| fixture.bytes(&format!("{out}/nuclei_1_raw_{p}"))),
        );
    }
    assert!(results.iter().skip(1).all(|r| r[1..] == results[0][1..]), "a package changed on its way");
    let rdf = String::from_utf8(fixture.bytes("pkg/rdf.yaml")).unwrap();
    for word in ["format_version: 0.5", "type: model", "license: MIT", "cite:", "scale_range", "onnx:"] {
        assert!(rdf.contains(word), "no {word} in {rdf}");
    }
    // Documentation that the description names but the package lacks is reported.
    std::fs::rename(fixture.path("pkg/README.md"), fixture.path("README.md")).unwrap();
    let report = fixture.run(&["import", "pkg", "--out", "undocumented", "--json"]).json();
    let left_out = &report["left_out"][0];
    assert_eq!(left_out["part"], "README.md", "{report}");
    assert!(left_out["reason"].as_str().unwrap().contains("lacks the file"), "{report}");
    // An export reports the same.
    let report = fixture.run(&["export", "pkg", "--out", "undocumented.zip", "--json"]).json();
    assert_eq!(report["left_out"][0], *left_out, "{report}");
    let printed = fixture.run(&["export", "pkg", "--out", "undocumented.zip"]).ok();
    assert!(printed.stdout.contains("  left out: README.md: "), "{}", printed.stdout);
    std::fs::rename(fixture.path("README.md"), fixture.path("pkg/README.md")).unwrap();
    // So is a section that is not a map.
    std::fs::write(fixture.path("pkg/rdf.yaml"), rdf.replace("\nconfig:\n", "\nconfig: [1]\nunused:\n")).unwrap();
    let report = fixture.run(&["import", "pkg", "--out", "unconfigured", "--json"]).json();
    let left_out = |part: &str, reason: &str| serde_json::json!({"part": part, "reason": reason});
    assert_eq!(report["left_out"][0], left_out("config", "it is not a map"), "{report}");
    // And an entry of a list that says nothing.
    std::fs::write(fixture.path("pkg/rdf.yaml"), rdf.replace("\ntags:\n", "\ntags:\n- 3\n")).unwrap();
    let report = fixture.run(&["import", "pkg", "--out", "untagged", "--json"]).json();
    assert_eq!(report["left_out"][0], left_out("tags[0]", "it is not text"), "{report}");
    // And text where a list belongs.
    std::fs::write(fixture.path("pkg/rdf.yaml"), rdf.replace("\ntags:\n", "\ntags: nuclei\nunused:\n")).unwrap();
    let report = fixture.run(&["import", "pkg", "--out", "unlisted", "--json"]).json();
    assert_eq!(report["left_out"][0], left_out("tags", "it is not a list"), "{report}");
    // A task of another program is not taken for segmentation.
    let other = rdf.replace("task: segmentation", "task: tracking");
    std::fs::write(fixture.path("pkg/rdf.yaml"), &other).unwrap();
    fixture.fails(3, &["predict", &raw, "--model", "pkg", "--out", "x"], &["config.cytoscope.task", "\"tracking\""]);
    std::fs::write(fixture.path("pkg/rdf.yaml"), &rdf).unwrap();
    // A network that does not match its checksum is not run.
    let mut model = fixture.bytes("pkg/model.onnx");
    let at = model.len() / 2;
    model[at] ^= 1;
    std::fs::write(fixture.path("pkg/model.onnx"), model).unwrap();
    fixture.fails(3, &["predict", &raw, "--model", "pkg", "--out", "x"], &["pkg", "checksum"]);
    std::fs::remove_file(fixture.path("pkg/model.onnx")).unwrap();
    fixture.fails(3, &["import", "pkg", "--out", "q"], &["pkg", "model.onnx"]);
    assert!(!fixture.path("q").exists() && !fixture.path("x").exists());
}

#[test]
fn a_bare_network_becomes_a_package() {
    let fixture = Fixture::new();
    network(&fixture);
    // A folder without a description is not a package, and the error names the file to give.
    std::fs::create_dir(fixture.path("folder")).unwrap();
    std::fs::copy(fixture.path("m.onnx"), fixture.path("folder/weights.onnx")).unwrap();
    fixture.fails(3, &["import", "folder", "--out", "x"], &["folder is not a model package", "in it, weights.onnx"]);
    let raw = fixture.nuclei("8,48,48", 1);
    let report = fixture.run(&["import", "m.onnx", "--out", "mine", "--json"]).json();
    assert!(report["nodes"].as_u64().unwrap() > 5 && report["weight_bytes"].as_u64().unwrap() > 0);
    assert!(["rdf.yaml", "model.onnx", "README.md"].iter().all(|f| fixture.path("mine").join(f).is_file()));
    // Neither the file nor the user states the normalization.
    let assumed = "images are normalized to mean 0 and variance 1";
    assert!(report["assumptions"].to_string().contains(assumed), "{report:#}");
    let task = "the network is for segmentation";
    assert!(report["assumptions"].to_string().contains(task), "{report:#}");
    let stated = fixture.run(&["import", "m.onnx", "--out", "stain", "--task", "labelfree", "--json"]).json();
    assert!(!stated["assumptions"].to_string().contains(task), "{stated:#}");
    let is_noted = ["m.onnx", "mine"].map(|model| {
        let out = if model == "mine" { "b" } else { "a" };
        let report = fixture.run(&["predict", &raw, "--model", model, "--out", out, "--json"]).json();
        report["inputs"][0]["notes"].to_string().contains(assumed)
    });
    assert_eq!(is_noted, [true, false]);
    assert_eq!(
        fixture.image("a/nuclei_1_raw_probability.tif").samples(),
        fixture.image("b/nuclei_1_raw_probability.tif").samples()
    );
}

#[test]
fn run_accepts_the_tensor_ids_of_a_package() {
    let fixture = Fixture::new();
    network(&fixture);
    std::fs::create_dir(fixture.path("named")).unwrap();
    std::fs::copy(fixture.path("m.onnx"), fixture.path("named/weights.onnx")).unwrap();
    let rdf = "format_version: 0.4.9\ntype: model\nname: other names\ndescription: a test\n\
        authors: [{name: A Test}]\ncite: [{text: none, url: 'https://example.org'}]\nlicense: MIT\n\
        documentation: README.md\ntimestamp: '2023-01-01T00:00:00'\ntags: []\ncovers: []\n\
        test_inputs: [in.npy]\ntest_outputs: [out.npy]\n\
        inputs:\n- name: stack\n  axes: bczyx\n  data_type: float32\n  shape: {min: [1, 1, 4, 4, 4], step: [0, 0, 1, 1, 1]}\n\
        outputs:\n- name: maps\n  axes: bczyx\n  data_type: float32\n  \
        shape: {reference_tensor: stack, scale: [1.0, 2.0, 1.0, 1.0, 1.0], offset: [0.0, 0.0, 0.0, 0.0, 0.0]}\n\
        weights:\n  onnx: {source: weights.onnx, opset_version: 17}\n";
    std::fs::write(fixture.path("named/rdf.yaml"), rdf).unwrap();
    let run = |input: &str, output: &str| fixture.run(&["run", "named", "--input", input, "--output", output]).ok();
    run("stack=x.npy", "maps=by_id.npy");
    run("x=x.npy", "by_name.npy");
    assert_eq!(fixture.bytes("by_id.npy"), fixture.bytes("by_name.npy"));
    // A wrong name is answered with both names.
    fixture.fails(2, &["run", "named", "--input", "nosuch=x.npy"], &["nosuch", "its inputs are x (stack)"]);
    fixture.fails(
        2,
        &["run", "named", "--input", "x=x.npy", "--input", "stack=m.npy"],
        &["already has the file x.npy"],
    );
}

#[test]
fn packages_of_format_0_4_are_imported() {
    let fixture = Fixture::new();
    let x = network(&fixture);
    std::fs::create_dir(fixture.path("old")).unwrap();
    std::fs::copy(fixture.path("m.onnx"), fixture.path("old/weights.onnx")).unwrap();
    let rdf = "format_version: 0.4.9\ntype: model\nname: older form\ndescription: a test\n\
        authors: [{name: A Test}]\ncite: [{text: none, url: 'https://example.org'}]\nlicense: MIT\n\
        documentation: README.md\ntimestamp: '2023-01-01T00:00:00'\ntags: []\ncovers: []\n\
        test_inputs: [in.npy]\ntest_outputs: [out.npy]\n\
        inputs:\n- name: x\n  axes: bczyx\n  data_type: float32\n  shape: {min: [1, 1, 4, 4, 4], step: [0, 0, 1, 1, 1]}\n  \
        preprocessing:\n  - {name: zero_mean_unit_variance, kwargs: {mode: per_sample, axes: zyx, eps: 1.0e-6}}\n\
        outputs:\n- name: y\n  axes: bczyx\n  data_type: float32\n  \
        shape: {reference_tensor: x, scale: [1.0, 2.0, 1.0, 1.0, 1.0], offset: [0.0, 0.0, 0.0, 0.0, 0.0]}\n\
        weights:\n  onnx: {source: weights.onnx, opset_version: 17}\n";
    std::fs::write(fixture.path("old/rdf.yaml"), rdf).unwrap();
    std::fs::write(fixture.path("old/README.md"), "# Older\n").unwrap();
    // The package test includes preprocessing: its output is that of the network for the z-scored input.
    let values: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let deviation = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt();
    let scaled: Vec<f32> = values.iter().map(|v| ((v - mean) / (deviation + 1e-6)) as f32).collect();
    std::fs::write(fixture.path("z.npy"), npy_f32(&SHAPE, &scaled)).unwrap();
    fixture.run(&["run", "m.onnx", "--engine", "reference", "--input", "z.npy", "--output", "old/out.npy"]).ok();
    std::fs::copy(fixture.path("x.npy"), fixture.path("old/in.npy")).unwrap();
    let report = fixture.run(&["import", "old", "--out", "new", "--json"]).json();
    assert_eq!(report["test"], "the test outputs are reproduced");
    assert_eq!(fixture.bytes("new/test_output_0.npy"), fixture.bytes("old/out.npy"), "test tensors that pass are kept");
    let rdf = String::from_utf8(fixture.bytes("new/rdf.yaml")).unwrap();
    assert!(rdf.contains("format_version: 0.5") && rdf.contains("zero_mean_unit_variance"), "{rdf}");
    // Test tensors of the bare network fail the bioimage.io test and are replaced by new ones, which pass.
    let (_, shape, right) = parse_npy(&fixture.bytes("old/out.npy"));
    fixture
        .run(&["run", "m.onnx", "--engine", "reference", "--input", "x.npy", "--output", "old/out.npy", "--force"])
        .ok();
    let report = fixture.run(&["import", "old", "--out", "alone", "--json"]).json();
    let printed = report["test"].as_str().unwrap();
    assert!(printed.contains("NOT reproduced") && printed.contains("network alone"), "{printed}");
    let kept = floats(&parse_npy(&fixture.bytes("alone/test_output_0.npy")).2);
    assert!(largest_difference(&kept, &floats(&right)) < 1e-5);
    assert_eq!(
        fixture.run(&["import", "alone", "--out", "b", "--json"]).json()["test"],
        "the test outputs are reproduced"
    );
    // An output that is not reproduced is reported.
    let data = right;
    let moved: Vec<f32> = floats(&data).iter().map(|v| v + 0.1).collect();
    std::fs::write(fixture.path("old/out.npy"), npy_f32(&shape, &moved)).unwrap();
    let report = fixture.run(&["import", "old", "--out", "new2", "--json"]).json();
    assert!(report["test"].as_str().unwrap().contains("NOT reproduced"), "{}", report["test"]);
}

#[test]
fn packages_with_a_known_state_dict_are_imported() {
    let Some(data) = shared_data() else { return };
    let fixture = Fixture::new();
    let known = data.join("packages/unet2d_fixed_shape");
    let known = known.to_str().unwrap();
    let report = fixture.run(&["import", known, "--out", "p", "--json"]).json();
    // Within 1e-4, which the import demands of such a network.
    assert_eq!(report["test"], "the test outputs are reproduced");
    assert_eq!(report["architecture"], "torch-em-unet");
    let again = fixture.run(&["import", "p", "--out", "again", "--json"]).json();
    assert_eq!((again["test"].as_str(), again.get("architecture")), (report["test"].as_str(), None));
    fixture.fails(3, &["run", known, "--input", "x.npy"], &["pytorch_state_dict", "cytoscope import"]);
    // A network without weights is not known.
    let other = data.join("packages/upsample_test_model");
    let other = other.to_str().unwrap();
    fixture.fails(3, &["import", other, "--out", "q"], &["upsample_test_model", "state_dict", "ONNX", "export"]);
    assert!(!fixture.path("q").exists());
}

#[test]
fn other_weights_are_refused_with_the_way_to_export_them() {
    let fixture = Fixture::new();
    std::fs::create_dir(fixture.path("old")).unwrap();
    let tensor = "axes: bcyx, data_type: float32, shape: [1, 1, 8, 8]}]";
    for (weights, words) in [
        ("torchscript", "torch.onnx.export(torch.jit.load("),
        ("tensorflow_saved_model_bundle", "--saved-model"),
        ("tensorflow_js", "tf2onnx"),
        ("keras_hdf5", "tf2onnx.convert.from_keras("),
        ("tensorflow_js: {source: weights.zip}, torchscript", "torch.onnx.export(torch.jit.load("),
    ] {
        let rdf = format!(
            "format_version: 0.4.9\ntype: model\nname: a model\ninputs: [{{name: x, {tensor}\noutputs: [{{name: y, {tensor}\n\
             weights: {{{weights}: {{source: weights.zip}}}}\n"
        );
        std::fs::write(fixture.path("old/rdf.yaml"), rdf).unwrap();
        let named = weights.rsplit(' ').next().unwrap();
        fixture.fails(3, &["import", "old", "--out", "p"], &[named, words]);
    }
}

#[test]
fn networks_that_cannot_be_predicted_are_not_imported() {
    let fixture = Fixture::new();
    let save = |samples: usize, value: f32| {
        let mut graph = Graph::new("net");
        let free = |axis: &str| Dim::Free(axis.to_owned());
        let shape = vec![Dim::Fixed(samples), Dim::Fixed(1), free("height"), free("width")];
        let x = graph.add_input("x", ElementType::F32, shape);
        let weight = graph.add_initializer("conv.weight", Tensor::new([1, 1, 3, 3], vec![value; 9]).unwrap());
        let y = graph.push("y", Op::Conv(ConvAttrs::same(&[3, 3])), &[Some(x), Some(weight)]);
        graph.outputs.push(y);
        cytoscope_onnx::save(&graph, &fixture.path("m.onnx")).unwrap();
    };
    save(4, 0.1);
    fixture.fails(3, &["import", "m.onnx", "--out", "mine"], &["m.onnx: ", "a fixed batch of 4 samples", "batch of 1"]);
    save(1, f32::NAN);
    let words = ["m.onnx: ", "\"conv.weight\"", "(9 of 9)", "export the network again"];
    fixture.fails(3, &["import", "m.onnx", "--out", "mine"], &words);
    assert!(!fixture.path("mine").exists());
    save(1, 0.1);
    fixture.run(&["import", "m.onnx", "--out", "mine"]).ok();
}

/// The tensors of a small 3-D DynUNet, which is also written as `net.onnx`.
fn dynunet_weights(fixture: &Fixture) -> BTreeMap<String, weights::Values> {
    let config = DynUNet { filters: vec![4, 6], strides: vec![1, 2], ..DynUNet::default() };
    let graph = dynunet(&config, &Weights::Random { seed: 2 }).unwrap();
    cytoscope_onnx::save(&graph, &fixture.path("net.onnx")).unwrap();
    let all = graph.named_initializers();
    all.iter().map(|(name, t)| (name.clone(), (t.shape().to_vec(), t.as_f32().unwrap().to_vec()))).collect()
}

#[test]
fn checkpoints_become_packages_of_the_same_network() {
    let fixture = Fixture::new();
    let tensors = dynunet_weights(&fixture);
    // As in a checkpoint of Lightning.
    let wrapped = tensors.iter().map(|(name, values)| (format!("backbone.{name}"), values.clone())).collect();
    std::fs::write(fixture.path("net.ckpt"), weights::checkpoint(&wrapped, &["state_dict"])).unwrap();
    let report = fixture.run(&["import", "net.ckpt", "--out", "pkg", "--json"]).json();
    assert_eq!(report["architecture"], "dynunet");
    assert!(report["assumptions"].as_array().unwrap().iter().any(|a| a.as_str().unwrap().contains("LeakyReLU")));
    let shape = [1, 1, 8, 12, 16];
    std::fs::write(fixture.path("x.npy"), npy_f32(&shape, &uniform(5, shape.iter().product()))).unwrap();
    let outputs = ["pkg", "net.onnx"].map(|model| {
        fixture.run(&["run", model, "--input", "x.npy", "--output", "y.npy", "--force"]).ok();
        floats(&parse_npy(&fixture.bytes("y.npy")).2)
    });
    assert!(largest_difference(&outputs[0], &outputs[1]) < 1e-6);
    let rdf = String::from_utf8(fixture.bytes("pkg/rdf.yaml")).unwrap();
    assert!(rdf.contains("zero_mean_unit_variance") && rdf.contains("Assumed:"), "{rdf}");
    // What does not fit is named.
    let mut more = tensors.clone();
    more.insert("aux.weight".to_owned(), (vec![1], vec![1.0]));
    std::fs::write(fixture.path("more.pt"), weights::checkpoint(&more, &[])).unwrap();
    fixture.fails(3, &["import", "more.pt", "--out", "q"], &["more.pt", "aux.weight", "dynunet"]);
    let asked = ["import", "net.ckpt", "--out", "q", "--architecture"];
    fixture.fails(3, &[&asked[..], &["segresnet"]].concat(), &["convInit.conv.weight", "is missing"]);
    fixture.fails(2, &[&asked[..], &["resnet"]].concat(), &["resnet", "basic-unet, dynunet, segresnet"]);
    fixture.fails(2, &["import", "net.onnx", "--out", "q", "--architecture", "dynunet"], &["net.onnx", "ONNX weights"]);
    std::fs::write(fixture.path("no.pt"), b"no checkpoint").unwrap();
    fixture.fails(3, &["import", "no.pt", "--out", "q"], &["no.pt", "torch.save"]);
    fixture.fails(3, &["import", "nosuch.pt", "--out", "q"], &["nosuch.pt"]);
    // Whatever the extension of its name, a file of torch.save is read as one.
    let old = [0x80, 2, 0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, b'.'];
    std::fs::write(fixture.path("old.nn"), old).unwrap();
    fixture.fails(3, &["import", "old.nn", "--out", "q"], &["old.nn", "from before version 1.6", "torch.save"]);
    assert!(!fixture.path("q").exists());
}

#[test]
fn normalization_comes_from_the_plans_of_nnunet() {
    let fixture = Fixture::new();
    let folder = "nnUNetTrainer__nnUNetPlans__2d/fold_0";
    std::fs::create_dir_all(fixture.path(folder)).unwrap();
    let mut tensors: BTreeMap<String, weights::Values> = BTreeMap::new();
    let mut add = |name: String, shape: &[usize]| {
        let values = uniform(tensors.len() as u64 + 1, shape.iter().product());
        tensors.insert(name, (shape.to_vec(), values.into_iter().map(|v| v - 0.5).collect()));
    };
    for (name, inputs, outputs) in
        [("encoder.stages.0.0", 1, 4), ("encoder.stages.1.0", 4, 6), ("decoder.stages.0", 8, 4)]
    {
        add(format!("{name}.convs.0.conv.weight"), &[outputs, inputs, 3, 3]);
        for part in ["conv.bias", "norm.weight", "norm.bias"] {
            add(format!("{name}.convs.0.{part}"), &[outputs]);
        }
    }
    add("decoder.transpconvs.0.weight".to_owned(), &[6, 4, 2, 2]);
    add("decoder.seg_layers.0.weight".to_owned(), &[3, 4, 1, 1]);
    add("decoder.seg_layers.0.bias".to_owned(), &[3]);
    let file = format!("{folder}/checkpoint_final.pth");
    std::fs::write(fixture.path(&file), weights::checkpoint(&tensors, &["network_weights"])).unwrap();
    let report = fixture.run(&["import", &file, "--out", "a", "--json"]).json();
    assert_eq!(report["architecture"], "nnunet");
    assert!(report["assumptions"].to_string().contains("no plans.json"), "{report}");
    let plans = fixture.path("nnUNetTrainer__nnUNetPlans__2d/plans.json");
    let plans_with = |scheme: &str, spacing: &str| {
        format!(r#"{{"configurations":{{"2d":{{"spacing":{spacing},"normalization_schemes":["{scheme}"]}}}}}}"#)
    };
    std::fs::write(&plans, plans_with("ZScoreNormalization", "[0.5,0.5]")).unwrap();
    let report = fixture.run(&["import", &file, "--out", "b", "--json"]).json();
    let assumed = report["assumptions"].to_string();
    assert!(assumed.contains("[0.5, 0.5], is the voxel size") && !assumed.contains("no plans.json"), "{assumed}");
    let rdf = String::from_utf8(fixture.bytes("b/rdf.yaml")).unwrap();
    for words in ["zero_mean_unit_variance", "softmax", "segment_channel: 1", "scale: 0.5"] {
        assert!(rdf.contains(words), "no {words} in {rdf}");
    }
    // The network runs at the resolution of its training data, on the slices of the stack.
    let raw = fixture.nuclei("4,24,24", 1);
    let predict = ["predict", &raw, "--out", "o", "--voxel-size", "2,1,1", "--outputs", "maps", "--json", "--model"];
    let report = fixture.run(&[&predict[..], &["b"]].concat()).json();
    assert!(report["inputs"][0]["notes"].to_string().contains("from [4, 24, 24] to [4, 48, 48] voxels"), "{report}");
    // nnU-Net stores a spacing of 1 for images without one; a stated voxel size replaces that of the plans.
    std::fs::write(&plans, plans_with("ZScoreNormalization", "[1.0,1.0]")).unwrap();
    for (options, sizes) in [(&[][..], &[][..]), (&["--voxel-size", "9,0.25,0.25"][..], &["scale: 0.25"][..])] {
        fixture.run(&[&["import", &file, "--out", "d", "--force"][..], options].concat()).ok();
        let rdf = String::from_utf8(fixture.bytes("d/rdf.yaml")).unwrap();
        let found: Vec<&str> = rdf.lines().map(str::trim).filter(|line| line.starts_with("scale: ")).collect();
        assert!(found.iter().all(|line| sizes.contains(line)) && found.is_empty() == sizes.is_empty(), "{rdf}");
    }
    std::fs::write(&plans, plans_with("CTNormalization", "[0.5,0.5]")).unwrap();
    fixture.fails(3, &["import", &file, "--out", "c"], &["CTNormalization", "not supported"]);
}

#[test]
fn the_package_of_a_checkpoint_has_what_the_user_states() {
    let fixture = Fixture::new();
    let tensors = dynunet_weights(&fixture);
    std::fs::write(fixture.path("net.pt"), weights::checkpoint(&tensors, &[])).unwrap();
    let import = |out: &str, options: &[&str]| {
        let report = fixture.run(&[&["import", "net.pt", "--out", out, "--json"][..], options].concat()).json();
        report["assumptions"].to_string()
    };
    let raw = fixture.nuclei("8,24,24", 1);
    let predict = |model: &str, options: &[&str]| {
        let out = format!("o-{model}");
        let exact =
            ["predict", &raw, "--model", model, "--out", &out, "--device", "cpu", "--precision", "f32", "--json"];
        fixture.run(&[&exact[..], options].concat()).json()
    };
    let assumed = import("plain", &[]);
    assert!(assumed.contains("for segmentation") && assumed.contains("outputs are used as they are"), "{assumed}");
    let assumed = import("logits", &["--task", "segmentation", "--final", "sigmoid"]);
    assert!(!assumed.contains("segmentation") && !assumed.contains("outputs"), "{assumed}");
    let [maps, probabilities] = ["plain", "logits"].map(|model| {
        predict(model, &["--outputs", "maps"]);
        fixture.image(&format!("o-{model}/nuclei_1_raw_probability.tif")).samples().to_f32()
    });
    let expected: Vec<f32> = maps.iter().map(|v| 1.0 / (1.0 + (-v).exp())).collect();
    assert!(largest_difference(&probabilities, &expected) < 1e-4 && largest_difference(&maps, &expected) > 0.01);
    let options = ["--task", "labelfree", "--voxel-size", "1,0.5,0.5"];
    import("stain", &options);
    let report = predict("stain", &["--voxel-size", "1,1,1"]);
    assert!(report["inputs"][0]["notes"].to_string().contains("to [8, 48, 48] voxels"), "{report}");
    let names = fixture.names("o-stain");
    assert!(names.contains(&"nuclei_1_raw_prediction.tif".to_owned()), "{names:?}");
    assert!(names.iter().all(|name| !name.contains("labels") && !name.contains("probability")), "{names:?}");
    // A rerun states the same.
    fixture.run(&["provenance", "stain", "--rerun", "--out", "again"]).ok();
    assert_eq!(fixture.bytes("again/rdf.yaml"), fixture.bytes("stain/rdf.yaml"));
    // What contradicts the file is refused.
    let softmax = ["import", "net.pt", "--out", "q", "--final", "softmax"];
    fixture.fails(2, &softmax, &["net.pt", "one output channel", "choose sigmoid or none"]);
    let size = ["import", "net.pt", "--out", "q", "--voxel-size", "1,0.5,5000"];
    fixture.fails(2, &size, &["voxel size", "5000", "expected"]);
    for (options, words) in [
        (&["--task", "segmentation"], "states its task (\"labelfree\"); leave the task out"),
        (&["--final", "none"], "states the steps after its network; leave the final activation out"),
        (&["--voxel-size", "1,1,1"], "states its voxel size ([1.0, 0.5, 0.5] µm); leave the voxel size out"),
        (&["--diameter", "9"], "predicts a stain has no object diameter; leave the object diameter out"),
    ] {
        fixture.fails(2, &[&["import", "stain", "--out", "q"][..], options].concat(), &["stain", words]);
    }
    assert!(!fixture.path("q").exists());
}

#[test]
fn an_imported_model_rescales_objects_to_the_diameter_that_the_user_states() {
    let fixture = Fixture::new();
    std::fs::write(fixture.path("net.pt"), weights::checkpoint(&dynunet_weights(&fixture), &[])).unwrap();
    let diameter = ["--diameter", "8"];
    let alone = [&["import", "net.pt", "--out", "q"][..], &diameter].concat();
    fixture.fails(2, &alone, &["net.pt", "needs the voxel size of the training data", "state the voxel size, too"]);
    fixture.fails(2, &["import", "net.pt", "--out", "q", "--diameter", "auto"], &["--diameter", "training data in µm"]);
    let size = ["import", "net.pt", "--out", "m", "--final", "sigmoid", "--voxel-size", "1,1,1"];
    fixture.run(&[&size[..], &diameter].concat()).ok();
    let rdf = String::from_utf8(fixture.bytes("m/rdf.yaml")).unwrap();
    assert!(rdf.contains("object_diameter_um: 8"), "{rdf}");
    // Objects of 4 µm are enlarged twice.
    let raw = fixture.nuclei("8,24,24", 1);
    let stack = ["predict", &raw, "--model", "m", "--out", "o", "--voxel-size", "1,1,1", "--outputs", "maps", "--json"];
    let report = fixture.run(&[&stack[..], &["--diameter", "4"]].concat()).json();
    assert!(report["inputs"][0]["notes"].to_string().contains("to [16, 48, 48] voxels"), "{report}");
    // A package that states a diameter keeps it, also if it is imported again.
    fixture.fails(
        2,
        &[&["import", "m", "--out", "q"][..], &diameter].concat(),
        &["states its object diameter (8.0 µm); leave the object diameter out"],
    );
    fixture.run(&["import", "m", "--out", "again"]).ok();
    assert!(String::from_utf8(fixture.bytes("again/rdf.yaml")).unwrap().contains("object_diameter_um: 8"));
}

#[test]
fn a_folder_of_stacks_that_is_called_like_a_model_does_not_hide_the_model() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,32,32", 1);
    std::fs::create_dir(fixture.path("nuclei-dog")).unwrap();
    std::fs::copy(fixture.path(&raw), fixture.path("nuclei-dog/a.tif")).unwrap();
    fixture.run(&["predict", "nuclei-dog", "--model", "nuclei-dog", "--device", "cpu", "--out", "o"]).ok();
    assert!(fixture.path("o/a_labels.tif").is_file());
    // The record names the model that was loaded, not the folder of stacks.
    let record: Value = serde_json::from_slice(&fixture.bytes("o/a_provenance.json")).unwrap();
    assert_eq!(record["job"]["model"], "nuclei-dog");
    // A path with a folder is that of a package.
    let path = ["predict", &raw, "--model", "./nuclei-dog", "--device", "cpu", "--out", "p"];
    fixture.fails(3, &path, &["nuclei-dog is not a model package"]);
}

#[test]
fn safetensors_hold_every_weight() {
    let fixture = Fixture::new();
    network(&fixture);
    fixture.run(&["export", "nuclei-dog", "--out", "w.safetensors"]).ok();
    let bytes = fixture.bytes("w.safetensors");
    // Eight bytes with the header's length, a JSON header, then the values.
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    let mut end = 0;
    let mut kernels = 0;
    for (name, entry) in header.as_object().unwrap().iter().filter(|(n, _)| *n != "__metadata__") {
        assert_eq!(entry["dtype"], "F32", "{name}");
        let n: u64 = entry["shape"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap()).product();
        let [from, to] = [0, 1].map(|i| entry["data_offsets"][i].as_u64().unwrap());
        assert_eq!(to - from, 4 * n, "{name}");
        end = end.max(to);
        if name.ends_with(".kernel") {
            // The network's Gaussian kernels sum to one.
            let values = floats(&bytes[8 + len + from as usize..8 + len + to as usize]);
            assert!((values.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{name}");
            kernels += 1;
        }
    }
    assert_eq!(bytes.len() as u64, 8 + len as u64 + end);
    assert!(kernels >= 6, "{kernels} kernels");
}

#[test]
fn cpu_is_always_listed() {
    let fixture = Fixture::new();
    let devices = fixture.run(&["devices", "--json"]).json();
    let all = devices.as_array().unwrap();
    for device in all {
        let promised = ["id", "name", "memory_bytes", "usable", "reason", "precisions"];
        assert_eq!(missing(device, &promised), Vec::<&str>::new(), "{device}");
        assert!(!device["reason"].as_str().unwrap().is_empty(), "{device}");
    }
    let cpu = all.iter().find(|d| d["id"] == "cpu").unwrap();
    assert_eq!(cpu["usable"], true);
    assert!(cpu["precisions"].as_array().unwrap().contains(&"f32".into()));
    let text = fixture.run(&["devices"]).ok().stdout;
    assert!(text.contains("cpu") && text.contains("usable") && text.contains("f32"), "{text}");
}
