//! Packages under `bioimageio test` of bioimageio.core.

use crate::common::{Fixture, npy_f32, python, shared_data, uniform};
use crate::train;
use cytoscope_builders::{UNet3d, Weights, unet3d};
use serde_json::Value;
use std::path::{Path, PathBuf};

const MODULES: &str = "bioimageio.core, onnxruntime";

/// Prints, for each package, `true` or the errors that its test found.
const TEST: &str = r#"
import json, sys, warnings
warnings.filterwarnings("ignore")
from loguru import logger
logger.remove()
from bioimageio.core import test_description
found = {}
for path in sys.argv[1:]:
    summary = test_description(path)
    errors = [f"{d.name}: {e.loc} {e.msg}" for d in summary.details for e in d.errors]
    found[path] = True if summary.status == "passed" else (errors or [summary.status])
print(json.dumps(found))
"#;

/// Asserts that packages pass `bioimageio test`; reports a skip and returns `false` if bioimageio.core is missing.
fn assert_pass(packages: &[PathBuf]) -> bool {
    let paths: Vec<&Path> = packages.iter().map(PathBuf::as_path).collect();
    let Some(printed) = python(MODULES, TEST, &paths) else { return false };
    let found: Value = serde_json::from_str(&printed).unwrap_or_else(|e| panic!("{e}: {printed}"));
    assert_eq!(found.as_object().map(serde_json::Map::len), Some(packages.len()), "{printed}");
    for (path, result) in found.as_object().unwrap() {
        assert_eq!(result, &Value::Bool(true), "{path}");
    }
    true
}

/// Replaces the test outputs of packages by the predictions of bioimageio.core for their test inputs.
const COMPLETE: &str = r#"
import sys, warnings
warnings.filterwarnings("ignore")
from loguru import logger
logger.remove()
import numpy
from pathlib import Path
from bioimageio.spec import load_model_description
from bioimageio.core import create_prediction_pipeline
from bioimageio.core.digest_spec import get_test_input_sample
for path in map(Path, sys.argv[1:]):
    model = load_model_description(path)
    sample = get_test_input_sample(model)
    with create_prediction_pipeline(model, weight_format="onnx") as pipeline:
        made = pipeline.predict_sample_without_blocking(sample, skip_input_padding=True, skip_output_cropping=True)
    (output,) = made.members.values()
    numpy.save(path / "out.npy", output.data.to_numpy().astype("float32"))
"#;

/// Writes a network with two input and output channels as `name/net.onnx`, a card, and a test input whose channels have
/// different means.
fn foreign_package(fixture: &Fixture, name: &str) -> PathBuf {
    let folder = fixture.path(name);
    std::fs::create_dir(&folder).unwrap();
    let config = UNet3d {
        in_channels: 2,
        out_channels: 2,
        filters: vec![4, 8],
        strides: vec![[1, 2, 2]],
        convs_per_block: 1,
        ..UNet3d::default()
    };
    cytoscope_onnx::save(&unet3d(&config, &Weights::Random { seed: 7 }).unwrap(), &folder.join("net.onnx")).unwrap();
    std::fs::write(folder.join("card.md"), "# A foreign package\n\n## Validation\n\nNone.\n").unwrap();
    std::fs::write(folder.join("notes.txt"), "an attached file").unwrap();
    let voxels = 4 * 8 * 12;
    let values: Vec<f32> = uniform(3, 2 * voxels)
        .into_iter()
        .enumerate()
        .map(|(i, v)| if i < voxels { v * 40.0 + 100.0 } else { v * 900.0 - 20.0 })
        .collect();
    std::fs::write(folder.join("in.npy"), npy_f32(&[1, 2, 4, 8, 12], &values)).unwrap();
    // Placeholder values until the true ones are computed.
    std::fs::write(folder.join("out.npy"), npy_f32(&[1, 2, 4, 8, 12], &values)).unwrap();
    folder
}

/// Authors, license and identifiers of a description. bioimageio.spec looks up GitHub names online unless it knows
/// them; it knows this one.
const METADATA: &str = "authors: [{name: Ada Author, affiliation: An Institute, orcid: 0000-0001-2345-6789}]\n\
    maintainers: [{github_user: constantinpape, name: A Maintainer}]\n\
    cite: [{text: A work, doi: 10.1007/978-3-319-24574-4_28}]\nlicense: BSD-3-Clause\ntags: [nuclei, 3d]\n\
    id: able-animal\nversion: 0.2.7\ntimestamp: '2024-02-03T04:05:06'\n";

/// A description of format 0.5 with pre- and postprocessing steps. The last axis has no id, so it is X.
fn rdf_05(pre: &str, post: &str) -> String {
    let axes = |size: &dyn Fn(&str) -> String, names: &str, halo: &str| {
        format!(
            "  - {{type: batch}}\n  - {{type: channel, channel_names: [{names}]}}\n\
             \x20 - {{type: space, id: z, size: {}}}\n  - {{type: space, id: y, size: {}{halo}}}\n\
             \x20 - {{type: space, size: {}}}\n",
            size("z"),
            size("y"),
            size("x")
        )
    };
    let input_size = |axis: &str| if axis == "z" { "4".to_owned() } else { "{min: 8, step: 4}".to_owned() };
    let output_size = |axis: &str| format!("{{tensor_id: raw, axis_id: {axis}}}");
    format!(
        "format_version: 0.5.4\ntype: model\nname: a foreign model\ndescription: made by a test\n{METADATA}\
         documentation: card.md\nattachments: [{{source: notes.txt}}]\n\
         config: {{bioimageio: {{modality: fluorescence}}, other_program: {{setting: 3}}}}\n\
         inputs:\n- id: raw\n  axes:\n{}  preprocessing: [{pre}]\n  test_tensor: {{source: in.npy}}\n\
         outputs:\n- id: maps\n  axes:\n{}  postprocessing: [{post}]\n  test_tensor: {{source: out.npy}}\n\
         weights: {{onnx: {{source: net.onnx, opset_version: 17}}}}\n",
        axes(&input_size, "a, b", ""),
        axes(&output_size, "c, d", ", halo: 2"),
    )
}

/// A description of format 0.4.
fn rdf_04(pre: &str, post: &str) -> String {
    format!(
        "format_version: 0.4.10\ntype: model\nname: an older model\ndescription: made by a test\n{METADATA}\
         documentation: card.md\nattachments: {{files: [notes.txt]}}\ntest_inputs: [in.npy]\ntest_outputs: [out.npy]\n\
         config: {{other_program: {{setting: 3}}}}\n\
         inputs:\n- name: raw\n  axes: bczyx\n  data_type: float32\n  \
         shape: {{min: [1, 2, 4, 8, 8], step: [0, 0, 0, 4, 4]}}\n  preprocessing: [{pre}]\n\
         outputs:\n- name: maps\n  axes: bczyx\n  data_type: float32\n  halo: [0, 0, 0, 2, 2]\n  shape: {{reference_tensor: raw, \
         scale: [1.0, 1.0, 1.0, 1.0, 1.0], offset: [0.0, 0.0, 0.0, 0.0, 0.0]}}\n  postprocessing: [{post}]\n\
         weights: {{onnx: {{source: net.onnx, opset_version: 17}}}}\n"
    )
}

/// Pre- and postprocessing steps of foreign packages of format 0.5.
const STEPS: [(&str, &str); 8] = [
    ("{id: zero_mean_unit_variance, kwargs: {axes: [channel, z, y, x]}}", "{id: sigmoid}"),
    (
        "{id: scale_range, kwargs: {axes: [z, y, x], min_percentile: 5.0, max_percentile: 95.0}}, \
         {id: clip, kwargs: {min: 0.0, max: 1.0}}, {id: ensure_dtype, kwargs: {dtype: float32}}",
        "{id: softmax}",
    ),
    (
        "{id: fixed_zero_mean_unit_variance, kwargs: {axis: channel, mean: [120.0, 430.0], std: [12.0, 250.0]}}",
        "{id: scale_linear, kwargs: {axis: channel, gain: [2.0, -3.0], offset: [10.0, 1.0]}}",
    ),
    (
        "{id: scale_linear, kwargs: {gain: 0.5, offset: 3.0}}, {id: zero_mean_unit_variance}",
        "{id: sigmoid}, {id: scale_range, kwargs: {axes: [channel, z, y, x], reference_tensor: raw}}",
    ),
    (
        "{id: clip, kwargs: {min_percentile: 10.0, max_percentile: 90.0, axes: [z, y, x]}}, \
         {id: zero_mean_unit_variance, kwargs: {axes: [z, y, x]}}",
        "{id: binarize, kwargs: {threshold: 0.0}}",
    ),
    ("{id: zero_mean_unit_variance, kwargs: {axes: [batch, z, y, x]}}", ""),
    // bioimageio.core computes statistics of inputs only.
    ("{id: zero_mean_unit_variance, kwargs: {axes: [channel, y, x]}}", ""),
    ("{id: scale_range, kwargs: {axes: [y, x], min_percentile: 5.0, max_percentile: 95.0}}", ""),
];

#[test]
fn bundled_packages_and_their_exports_pass() {
    let fixture = Fixture::new();
    let mut packages = Vec::new();
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("models")).unwrap() {
        let path = entry.unwrap().path();
        if !path.join("rdf.yaml").is_file() {
            continue;
        }
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let zip = format!("{name}.zip");
        fixture.run(&["export", &name, "--format", "bioimageio", "--out", &zip]).ok();
        packages.extend([path, fixture.path(&zip)]);
    }
    assert!(packages.len() >= 6, "{packages:?}");
    assert_pass(&packages);
}

#[test]
fn trained_and_quantized_packages_pass() {
    let fixture = Fixture::new();
    train::simulate_pairs(&fixture, 3);
    train::write_settings(&fixture, "");
    fixture.run(&[&train::SMALL[..], &["--steps", "6", "--without-int8", "--out", "floats"]].concat()).ok();
    let quantize = |mode: &str, out: &str, more: &[&str]| {
        let arguments = ["quantize", "floats", "--mode", mode, "--accuracy-budget", "1", "--out", out];
        fixture.run(&[&arguments[..], more].concat()).ok();
    };
    quantize("static", "static", &["--calibrate", "sim/nuclei_1_raw.tif"]);
    quantize("dynamic", "dynamic", &[]);
    quantize("static", "integers", &["--calibrate", "sim/nuclei_1_raw.tif", "--without-float"]);
    // Stain prediction scales outputs back to intensities in postprocessing.
    std::fs::create_dir(fixture.path("stain")).unwrap();
    for seed in 1..=2 {
        for (from, to) in [("raw", "raw"), ("labels", "target")] {
            std::fs::copy(
                fixture.path(&format!("sim/nuclei_{seed}_{from}.tif")),
                fixture.path(&format!("stain/{seed}_{to}.tif")),
            )
            .unwrap();
        }
    }
    let arguments = ["train", "--task", "labelfree", "--data", "stain", "--config", "t.toml", "--from", "scratch"];
    fixture.run(&[&arguments[..], &["--steps", "4", "--without-int8", "--out", "labelfree"]].concat()).ok();
    let all = ["floats", "static", "dynamic", "integers", "labelfree"];
    assert_pass(&all.map(|name| fixture.path(name)));
    for name in all {
        let report = fixture.run(&["import", name, "--out", &format!("{name}-again"), "--json"]).json();
        assert_eq!(report["test"], "the test outputs are reproduced", "{name}");
    }
}

#[test]
fn foreign_packages_pass_after_import_and_export() {
    let fixture = Fixture::new();
    let mut folders = Vec::new();
    for (i, (pre, post)) in STEPS.into_iter().enumerate() {
        let folder = foreign_package(&fixture, &format!("new{i}"));
        std::fs::write(folder.join("rdf.yaml"), rdf_05(pre, post)).unwrap();
        folders.push(folder);
    }
    for (i, (pre, post)) in [
        ("{name: zero_mean_unit_variance, kwargs: {mode: per_sample, axes: zyx}}", "{name: sigmoid}"),
        (
            "{name: scale_range, kwargs: {mode: per_sample, axes: czyx, min_percentile: 1.0, max_percentile: 99.0}}",
            "{name: binarize, kwargs: {threshold: 0.1}}",
        ),
        ("{name: zero_mean_unit_variance, kwargs: {mode: fixed, axes: czyx, mean: 250.0, std: 80.0}}", ""),
    ]
    .into_iter()
    .enumerate()
    {
        let folder = foreign_package(&fixture, &format!("old{i}"));
        std::fs::write(folder.join("rdf.yaml"), rdf_04(pre, post)).unwrap();
        folders.push(folder);
    }
    let paths: Vec<&Path> = folders.iter().map(PathBuf::as_path).collect();
    let are_complete = python(MODULES, COMPLETE, &paths).is_some();
    let mut written = folders.clone();
    for folder in &folders {
        let name = folder.file_name().unwrap().to_str().unwrap();
        let (taken, given) = (format!("{name}-in"), format!("{name}-out.zip"));
        let report = fixture.run(&["import", name, "--out", &taken, "--json"]).json();
        if are_complete {
            assert_eq!(report["test"], "the test outputs are reproduced", "{name}");
        } else {
            assert!(report["test"].as_str().unwrap().contains("NOT reproduced"), "{report}");
        }
        assert!(report.get("left_out").is_none(), "{report}");
        fixture.run(&["export", &taken, "--format", "bioimageio", "--out", &given]).ok();
        written.extend([fixture.path(&taken), fixture.path(&given)]);
        // Metadata about authors and other files are preserved.
        let rdf = String::from_utf8(fixture.bytes(&format!("{taken}/rdf.yaml"))).unwrap();
        for part in [
            "An Institute",
            "0000-0001-2345-6789",
            "github_user: constantinpape",
            "BSD-3-Clause",
            "able-animal",
            "0.2.7",
            "other_program",
        ] {
            assert!(rdf.contains(part), "{name}: no {part} in {rdf}");
        }
        assert_eq!(fixture.bytes(&format!("{taken}/notes.txt")), b"an attached file");
        assert!(rdf.contains("notes.txt"), "{rdf}");
    }
    if are_complete {
        assert_pass(&written);
    }
}

#[test]
fn a_bare_network_becomes_a_package_that_passes() {
    let fixture = Fixture::new();
    let config = UNet3d { filters: vec![4, 8], strides: vec![[2; 3]], convs_per_block: 1, ..UNet3d::default() };
    cytoscope_onnx::save(&unet3d(&config, &Weights::Random { seed: 5 }).unwrap(), &fixture.path("net.onnx")).unwrap();
    fixture.run(&["import", "net.onnx", "--out", "made"]).ok();
    assert_pass(&[fixture.path("made")]);
}

#[test]
fn real_network_passes_in_a_package_of_format_0_4() {
    let Some(data) = shared_data() else { return };
    let fixture = Fixture::new();
    let real = data.join("packages/tiktorch_unet2d");
    std::fs::create_dir(fixture.path("real")).unwrap();
    for (from, to) in [("unet2d_onnx/weights.onnx", "net.onnx"), ("unet2d/test_input.npy", "in.npy")] {
        std::fs::copy(real.join(from), fixture.path("real").join(to)).unwrap();
    }
    std::fs::copy(real.join("unet2d/test_output.npy"), fixture.path("real/out.npy")).unwrap();
    std::fs::write(fixture.path("real/card.md"), "# A real network\n\n## Validation\n").unwrap();
    std::fs::write(fixture.path("real/notes.txt"), "an attached file").unwrap();
    let rdf = format!(
        "format_version: 0.4.10\ntype: model\nname: a real network\ndescription: made by a test\n{METADATA}documentation: card.md\n\
         attachments: {{files: [notes.txt]}}\ntest_inputs: [in.npy]\ntest_outputs: [out.npy]\n\
         inputs:\n- {{name: raw, axes: bcyx, data_type: uint16, shape: [1, 1, 512, 512], preprocessing: [\
         {{name: zero_mean_unit_variance, kwargs: {{mode: per_sample, axes: cyx}}}}]}}\n\
         outputs:\n- {{name: probability, axes: bcyx, data_type: float32, shape: [1, 1, 512, 512], halo: [0, 0, 32, 32]}}\n\
         weights: {{onnx: {{source: net.onnx, opset_version: 9}}}}\n"
    );
    std::fs::write(fixture.path("real/rdf.yaml"), rdf).unwrap();
    let is_there = python(MODULES, COMPLETE, &[&fixture.path("real")]).is_some();
    let report = fixture.run(&["import", "real", "--out", "in", "--json"]).json();
    if !is_there {
        // The stored output has no pre- and postprocessing.
        assert!(report["test"].as_str().unwrap().contains("NOT reproduced"), "{report}");
        return;
    }
    assert_eq!(report["test"], "the test outputs are reproduced");
    fixture.run(&["export", "in", "--format", "bioimageio", "--out", "out.zip"]).ok();
    assert_pass(&["real", "in", "out.zip"].map(|name| fixture.path(name)));
}
