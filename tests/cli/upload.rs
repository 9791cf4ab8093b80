//! `check`: what bioimage.io would refuse in a package's metadata.

use crate::common::{Fixture, python};
use serde_json::Value;
use std::path::Path;

/// Fields of a complete description.
const COMPLETE: &str = "authors:
- name: Ada Author
  affiliation: An Institute
  orcid: 0000-0001-2345-6789
  email: ada@example.org
maintainers:
- name: A Maintainer
  github_user: constantinpape
covers: [cover.png]
attachments:
- source: notes.txt
timestamp: '2024-02-03T04:05:06+00:00'
parent: {id: affable-shark}
";

/// Changes of the complete description: text, its replacement, and the field that bioimage.io refuses then, if it does.
const CHANGES: [(&str, &str, Option<&str>); 75] = [
    ("name: nuclei-dog\n", "name: nuclei-dog\n", None),
    ("name: nuclei-dog\n", "name: nuc\n", Some("name")),
    ("name: nuclei-dog\n", "name: 'nuclei: dog'\n", Some("name")),
    ("name: nuclei-dog\n", "name: Nuclei (dog) 2+\n", None),
    ("name: Ada Author", "name: Ada / Author", Some("authors[0].name")),
    ("0000-0001-2345-6789", "0000-0001-2345-6788", Some("authors[0].orcid")),
    ("orcid: 0000-0001-2345-6789", "orcid: https://orcid.org/0000-0001-2345-6789", Some("authors[0].orcid")),
    ("  affiliation: An Institute\n  orcid: 0000-0001-2345-6789\n", "", None),
    ("ada@example.org", "ada", Some("authors[0].email")),
    ("  github_user: constantinpape\n", "", Some("maintainers[0].github_user")),
    ("license: MIT", "license: mit", Some("license")),
    ("license: MIT", "license: GPL-3.0", None),
    ("  doi: 10.1098/rspb.1980.0020\n", "", Some("cite[0]")),
    ("doi: 10.1098/rspb.1980.0020", "doi: doi.org/10.1098/rspb.1980.0020", Some("cite[0].doi")),
    ("documentation: README.md", "documentation: missing.md", Some("documentation")),
    ("documentation: README.md", "documentation: notes.txt", Some("documentation")),
    ("covers: [cover.png]", "covers: [missing.png]", Some("covers[0]")),
    ("covers: [cover.png]", "covers: [notes.txt]", Some("covers[0]")),
    ("source: notes.txt", "source: missing.txt", Some("attachments[0]")),
    ("2024-02-03T04:05:06+00:00", "yesterday", Some("timestamp")),
    ("parent: {id: affable-shark}", "parent: {id: Affable Shark}", Some("parent.id")),
    ("version: 0.1.0", "version: newest", Some("version")),
    ("license: MIT", "license: MIT\ngit_repo: on GitHub", Some("git_repo")),
    ("id: maps\n", "id: my maps\n", Some("outputs[0].id")),
    ("opset_version: 21", "comment: from PyTorch", Some("weights.onnx.opset_version")),
    ("opset_version: 21", "opset_version: 5", Some("weights.onnx.opset_version")),
    ("version: 0.1.0", "version: 1..0", Some("version")),
    ("2024-02-03T04:05:06+00:00", "2024-02-30T04:05:06+00:00", Some("timestamp")),
    ("- source: notes.txt", "- notes.txt", Some("attachments[0]")),
    ("license: MIT", "license: MIT\nlicence: MIT", Some("licence")),
    ("  email: ada@example.org", "  mail: ada@example.org", Some("authors[0].mail")),
    ("license: MIT", "license: MIT\nuploader: {email: ada}", Some("uploader.email")),
    ("license: MIT", "license: MIT\nversion_number: 3", None),
    ("license: MIT", "license: MIT\nicon: cover.png", None),
    ("license: MIT", "license: MIT\nicon: missing.png", Some("icon")),
    ("  - type: batch\n", "  - type: batch\n    concatenable: true\n", Some("inputs[0].axes[0].concatenable")),
    ("    channel_names:\n    - nuclei\n", "    channel_names: []\n", Some("inputs[0].axes[1].channel_names")),
    ("    - nuclei\n", "    - nuclei\n    size: 1\n", Some("inputs[0].axes[1].size")),
    ("    - nuclei\n", "    - all nuclei\n", None),
    ("    unit: micrometer\n", "    unit: um\n", Some("inputs[0].axes[2].unit")),
    ("    unit: micrometer\n", "", Some("outputs[0].axes[2].unit")),
    ("      step: 1\n", "", Some("inputs[0].axes[2].size.step")),
    ("      axis_id: z\n", "      axis_id: w\n", Some("outputs[0].axes[2].size")),
    ("      offset: 0\n", "      offset: 0.5\n", Some("outputs[0].axes[2].size.offset")),
    ("      offset: 0\n", "      offset: 0\n    halo: 4\n", Some("outputs[0].axes[2].halo")),
    (
        "      tensor_id: stack\n      axis_id: z\n      offset: 0\n",
        "      min: 1\n      step: 1\n",
        Some("outputs[0].axes[2].size"),
    ),
    ("    type: float32\n", "    type: float32\n    min: 0\n", Some("inputs[0].data.min")),
    ("      eps: 1e-6\n", "      eps: 0.5\n", Some("inputs[0].preprocessing[0].kwargs.eps")),
    ("      eps: 1e-6\n", "      mode: per_sample\n", Some("inputs[0].preprocessing[0].kwargs.mode")),
    ("  preprocessing:\n", "  preprocessing:\n  - id: clip\n", Some("inputs[0].preprocessing[0].kwargs")),
    (
        "  preprocessing:\n",
        "  preprocessing:\n  - {id: scale_linear, kwargs: {gain: 1.0}}\n",
        Some("inputs[0].preprocessing[0].kwargs"),
    ),
    (
        "  preprocessing:\n",
        "  preprocessing:\n  - {id: scale_linear, kwargs: {gain: [2.0]}}\n",
        Some("inputs[0].preprocessing[0].kwargs.axis"),
    ),
    ("  preprocessing:\n", "  preprocessing:\n  - {id: scale_linear, kwargs: {gain: [2.0], axis: channel}}\n", None),
    (
        "  preprocessing:\n",
        "  preprocessing:\n  - {id: clip, kwargs: {min: 0.0, axes: [x]}}\n",
        Some("inputs[0].preprocessing[0].kwargs.axes"),
    ),
    (
        "  preprocessing:\n",
        "  preprocessing:\n  - {id: clip, kwargs: {max_percentile: 0.5}}\n",
        Some("inputs[0].preprocessing[0].kwargs.max_percentile"),
    ),
    (
        "  preprocessing:\n",
        "  preprocessing:\n  - {id: fixed_zero_mean_unit_variance, kwargs: {mean: [0.0], std: 1.0, axis: channel}}\n",
        Some("inputs[0].preprocessing[0].kwargs"),
    ),
    (
        "  preprocessing:\n",
        "  preprocessing:\n  - {id: fixed_zero_mean_unit_variance, kwargs: {mean: [0.0], std: [0.0000001], axis: channel}}\n",
        Some("inputs[0].preprocessing[0].kwargs.std"),
    ),
    (
        "  preprocessing:\n",
        "  preprocessing:\n  - {id: sigmoid, kwargs: {}}\n",
        Some("inputs[0].preprocessing[0].kwargs"),
    ),
    ("- id: stack\n", "- id: stack\n  name: stack\n", Some("inputs[0].name")),
    (
        "    source: test_input_0.npy\n",
        "    source: test_input_0.npy\n    type: npy\n",
        Some("inputs[0].test_tensor.type"),
    ),
    ("opset_version: 21", "opset_version: 21\n    kwargs: {}", Some("weights.onnx.kwargs")),
    ("opset_version: 21", "opset_version: 21\n    parent: torchscript", Some("weights.onnx.parent")),
    (
        "opset_version: 21",
        "opset_version: 21\n  torchscript: {source: notes.txt, parent: onnx}",
        Some("weights.torchscript.pytorch_version"),
    ),
    ("opset_version: 21", "opset_version: 21\n  zarr: {source: notes.txt, parent: onnx}", Some("weights.zarr")),
    ("license: MIT", "license: MIT\nrun_mode: deepimagej", Some("run_mode")),
    ("license: MIT", "license: MIT\nid_emoji: nucleus", Some("id_emoji")),
    ("license: MIT", "license: MIT\nlinks:", Some("links")),
    ("license: MIT", "license: MIT\ntraining_data: {id: a-dataset, url: here}", Some("training_data.url")),
    ("license: MIT", "license: MIT\nuploader: {email: ada@example.org, orcid: none}", Some("uploader.orcid")),
    ("source: notes.txt", "source: notes.txt\n  name: notes", Some("attachments[0].name")),
    ("format_version: 0.5.3", "format_version: '0.5'", Some("format_version")),
    (
        "config:\n",
        "config:\n  bioimageio: {reproducibility_tolerance: [{relative_tolerance: 0.5}]}\n",
        Some("config.bioimageio.reproducibility_tolerance[0].relative_tolerance"),
    ),
    (
        "config:\n",
        "config:\n  bioimageio: {reproducibility_tolerance: [{mismatched_elements_per_million: 6000}]}\n",
        Some("config.bioimageio.reproducibility_tolerance[0].mismatched_elements_per_million"),
    ),
    (
        "opset_version: 21",
        "opset_version: 21\n  pytorch_state_dict: {source: notes.txt, parent: onnx, pytorch_version: '2', \
         architecture: 'a.py:Net'}",
        Some("weights.pytorch_state_dict.architecture"),
    ),
    (
        "opset_version: 21",
        "opset_version: 21\n  pytorch_state_dict: {source: notes.txt, parent: onnx, pytorch_version: '2', \
         architecture: {callable: Net, import_from: nets}}",
        None,
    ),
];

/// Prints, for each package, whether bioimageio.spec finds its description valid.
const VALIDATE: &str = r#"
import json, sys, warnings
warnings.filterwarnings("ignore")
from loguru import logger
logger.remove()
from bioimageio.spec import InvalidDescr, load_description
def is_valid(path):
    try:
        return not isinstance(load_description(path), InvalidDescr)
    except ValueError:
        # Raised for versions that have no number.
        return False
print(json.dumps([is_valid(path) for path in sys.argv[1:]]))
"#;

/// Writes the bundled model `nuclei-dog` with another description into a folder.
fn package(fixture: &Fixture, name: &str, description: &str) {
    let folder = fixture.path(name);
    std::fs::create_dir(&folder).unwrap();
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("models/nuclei-dog")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
    }
    std::fs::write(folder.join("notes.txt"), "an attached file").unwrap();
    std::fs::write(folder.join("README.md"), "# A model\n\n## Validation\n\nCount the nuclei.\n").unwrap();
    image::RgbImage::new(64, 32).save(folder.join("cover.png")).unwrap();
    std::fs::write(folder.join("rdf.yaml"), description).unwrap();
}

/// The description of the bundled model with all fields that bioimage.io asks for.
fn complete() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/nuclei-dog/rdf.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let authors = "authors:\n- name: The Cytoscope authors\n";
    assert!(text.contains(authors), "{text}");
    text.replace(authors, COMPLETE)
}

/// The fields with findings of this severity.
fn parts(report: &Value, severity: &str) -> Vec<String> {
    let findings = report["findings"].as_array().unwrap().iter();
    findings.filter(|f| f["severity"] == severity).map(|f| f["part"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn what_bioimageio_refuses_is_named() {
    let fixture = Fixture::new();
    let base = complete();
    let mut paths = Vec::new();
    for (i, (from, to, refused)) in CHANGES.into_iter().enumerate() {
        let (name, text) = (format!("p{i}"), base.replacen(from, to, 1));
        assert!(from == to || text != base, "{from:?} is not in the description");
        package(&fixture, &name, &text);
        let ran = fixture.run(&["check", &name, "--json"]);
        let report: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{to:?}: {e}: {}", ran.stderr));
        assert_eq!(parts(&report, "refused"), refused.map(str::to_owned).as_slice(), "{to:?}: {report:#}");
        assert_eq!(report["accepted"], refused.is_none(), "{to:?}");
        assert_eq!(ran.code, Some(if refused.is_none() { 0 } else { 3 }), "{to:?}: {}", ran.stderr);
        paths.push(fixture.path(&name));
    }
    let paths: Vec<&Path> = paths.iter().map(std::path::PathBuf::as_path).collect();
    let Some(printed) = python("bioimageio.spec, loguru", VALIDATE, &paths) else { return };
    let valid: Vec<bool> = serde_json::from_str(&printed).unwrap();
    for ((_, to, refused), valid) in CHANGES.into_iter().zip(valid) {
        assert_eq!(refused.is_none(), valid, "{to:?}: bioimageio.spec decides otherwise");
    }
}

#[test]
fn what_bioimageio_asks_for_is_named() {
    let fixture = Fixture::new();
    let base = complete();
    package(&fixture, "complete", &base);
    let report = fixture.run(&["check", "complete", "--json"]).json();
    assert_eq!(parts(&report, "warning"), ["git_repo"], "{report:#}");
    let text = base
        .replace("covers: [cover.png]\n", "")
        .replace("maintainers:\n- name: A Maintainer\n  github_user: constantinpape\n", "")
        .replace("license: MIT\n", "");
    package(&fixture, "poor", &text);
    std::fs::write(fixture.path("poor/README.md"), "# A model\n").unwrap();
    let report = fixture.run(&["check", "poor", "--json"]).json();
    let expected = ["maintainers", "license", "git_repo", "documentation", "covers"];
    assert_eq!(parts(&report, "warning"), expected, "{report:#}");
    // A cover of unusual proportions, and sentences instead of JSON.
    image::RgbImage::new(30, 32).save(fixture.path("complete/cover.png")).unwrap();
    let printed = fixture.run(&["check", "complete"]).ok().stdout;
    assert!(printed.contains("covers[0] has 30 × 32 pixels") && printed.contains("would accept"), "{printed}");
    // Later formats list files as entries only.
    let later = base.replace("format_version: 0.5.3", "format_version: 0.5.12");
    package(&fixture, "later", &later);
    let report = fixture.run(&["check", "later", "--json"]);
    let report: Value = serde_json::from_str(&report.stdout).unwrap();
    assert_eq!(parts(&report, "refused"), ["documentation", "covers[0]"], "{report:#}");
    // Weights that do not match their checksum are not opened.
    let start = base.find("weights:").unwrap();
    let damaged = format!("{}{}", &base[..start], base[start..].replacen("sha256: 7", "sha256: 8", 1));
    assert_ne!(damaged, base);
    package(&fixture, "damaged", &damaged);
    fixture.fails(3, &["check", "damaged"], &["model.onnx", "checksum"]);
    fixture.fails(2, &["check", "nosuch"], &["nosuch"]);
}

#[test]
fn a_package_is_opened_by_its_description_in_the_current_folder() {
    let fixture = Fixture::new();
    package(&fixture, "complete", &complete());
    for description in ["rdf.yaml", "./rdf.yaml"] {
        let checked = fixture.command(&["check", description]).current_dir(fixture.path("complete")).output().unwrap();
        assert!(checked.status.success(), "{description}: {}", String::from_utf8_lossy(&checked.stderr));
    }
}
