//! Checks the layering: the dependencies between our crates, unsafe code, and calls that replace or remove files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "layering/architecture.rs"]
mod architecture;
#[path = "layering/dependencies.rs"]
mod dependencies;
#[path = "layering/window.rs"]
mod window;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Each crate and the crates that it may depend on, lower crates first; the application is the empty name.
const CRATES: [(&str, &[&str]); 30] = [
    // The installed shell uses the window only as a program.
    ("src-tauri", &[]),
    // Only a dev-dependency.
    ("testkit", &[]),
    ("pickle", &[]),
    ("storage", &[]),
    ("volume", &[]),
    ("preprocess", &["volume"]),
    ("profile", &["storage"]),
    ("kernels", &[]),
    ("formats", &["kernels", "pickle", "storage", "volume"]),
    ("objects", &["volume"]),
    ("simulate", &["volume"]),
    ("corrections", &["formats", "objects", "storage", "volume"]),
    ("training-data", &["formats", "objects", "storage", "volume"]),
    ("graph", &["storage"]),
    ("reference", &["graph"]),
    ("graph-passes", &["graph", "reference"]),
    ("builders", &["graph", "graph-passes", "reference"]),
    ("checkpoint-import", &["graph", "graph-passes", "pickle", "storage"]),
    ("onnx", &["graph", "graph-passes", "storage"]),
    ("autodiff", &["graph", "graph-passes"]),
    ("model-package", &["graph", "onnx", "graph-passes", "storage", "volume"]),
    ("engine", &["graph", "profile", "storage"]),
    ("engine-cpu", &["engine", "graph", "kernels", "graph-passes", "profile", "reference"]),
    ("engine-burn", &["engine", "graph", "graph-passes", "profile", "storage"]),
    (
        "pipeline",
        &[
            "checkpoint-import",
            "engine",
            "engine-cpu",
            "engine-burn",
            "formats",
            "graph",
            "model-package",
            "objects",
            "onnx",
            "graph-passes",
            "preprocess",
            "profile",
            "reference",
            "storage",
            "volume",
        ],
    ),
    (
        "quantize",
        &[
            "engine",
            "engine-cpu",
            "graph",
            "model-package",
            "objects",
            "onnx",
            "graph-passes",
            "pipeline",
            "profile",
            "storage",
        ],
    ),
    (
        "train",
        &[
            "autodiff",
            "builders",
            "engine",
            "formats",
            "graph",
            "model-package",
            "objects",
            "graph-passes",
            "pipeline",
            "profile",
            "quantize",
            "training-data",
            "storage",
            "volume",
        ],
    ),
    ("worker", &["engine", "pipeline", "profile", "quantize", "storage", "train", "volume"]),
    (
        "ui",
        &[
            "corrections",
            "engine",
            "formats",
            "model-package",
            "objects",
            "onnx",
            "pipeline",
            "preprocess",
            "profile",
            "quantize",
            "training-data",
            "storage",
            "train",
            "volume",
            "worker",
        ],
    ),
    (
        "",
        &[
            "storage",
            "volume",
            "preprocess",
            "profile",
            "kernels",
            "formats",
            "objects",
            "simulate",
            "graph",
            "onnx",
            "model-package",
            "engine",
            "engine-cpu",
            "engine-burn",
            "pipeline",
            "quantize",
            "training-data",
            "train",
            "worker",
            "ui",
        ],
    ),
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The folders of all crates by name; the application is the empty name.
fn crates() -> BTreeMap<String, PathBuf> {
    let mut crates = BTreeMap::from([(String::new(), root())]);
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let path = entry.unwrap().path();
        if path.join("Cargo.toml").is_file() {
            crates.insert(path.file_name().unwrap().to_string_lossy().into_owned(), path);
        }
    }
    for name in ["ui", "src-tauri"] {
        crates.insert(name.to_owned(), root().join(name));
    }
    crates
}

/// Our own crates among the build and normal dependencies of a manifest; dev-dependencies are not restricted.
fn own_dependencies(manifest: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut in_dependencies = false;
    for line in manifest.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            let last = header.rsplit('.').next().unwrap_or(header);
            let builds = |name: &str| name == "dependencies" || name == "build-dependencies";
            in_dependencies = builds(last) && !header.starts_with("workspace");
            // [dependencies.cytoscope-graph]
            let table = header.rsplit_once('.').filter(|(front, _)| builds(front.rsplit('.').next().unwrap_or(front)));
            if let Some(name) = table.and_then(|(_, name)| name.strip_prefix("cytoscope-")) {
                found.insert(name.to_owned());
            }
        } else if in_dependencies && let Some(rest) = line.strip_prefix("cytoscope-") {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(rest.len());
            found.insert(rest[..end].to_owned());
        }
    }
    found
}

#[test]
fn crates_depend_on_lower_crates_only() {
    let plan: BTreeMap<&str, &[&str]> = CRATES.into_iter().collect();
    let mut violations = Vec::new();
    for (name, path) in crates() {
        let shown = if name.is_empty() { "the application" } else { name.as_str() };
        let Some(allowed) = plan.get(name.as_str()) else {
            violations.push(format!("{shown} is a new crate: add its allowed dependencies to CRATES"));
            continue;
        };
        let manifest = std::fs::read_to_string(path.join("Cargo.toml")).unwrap();
        for dependency in own_dependencies(&manifest) {
            if !allowed.contains(&dependency.as_str()) {
                violations.push(format!("{shown} depends on {dependency}; allowed are {allowed:?}"));
            }
        }
    }
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

#[test]
fn allowed_dependencies_are_acyclic() {
    let mut placed: BTreeSet<&str> = BTreeSet::new();
    for (name, allowed) in CRATES {
        assert!(allowed.iter().all(|b| placed.contains(b)), "{name} depends on a crate listed after it");
        placed.insert(name);
    }
}

#[test]
fn manifests_are_parsed_correctly() {
    let text = "[package]\nname = \"cytoscope-x\"\n[dependencies]\ncytoscope-graph.workspace = true\nserde = \"1\"\n\
                [target.'cfg(unix)'.dependencies]\ncytoscope-volume = { path = \"..\" }\n[dev-dependencies]\n\
                cytoscope-pipeline.workspace = true\n[dependencies.cytoscope-engine]\nworkspace = true\n";
    let expected = ["engine", "graph", "volume"].map(str::to_owned);
    assert_eq!(own_dependencies(text), BTreeSet::from(expected));
}

/// The root source file of a crate.
fn root_source(path: &Path) -> PathBuf {
    let lib = path.join("src/lib.rs");
    if lib.is_file() { lib } else { path.join("src/main.rs") }
}

#[test]
fn every_crate_is_documented_and_forbids_unsafe() {
    for (name, path) in crates() {
        let text = std::fs::read_to_string(root_source(&path)).unwrap();
        assert!(text.starts_with("//! "), "{name}: its root file has no documentation");
        let manifest = std::fs::read_to_string(path.join("Cargo.toml")).unwrap();
        let allows = manifest.contains("unsafe_code = \"allow\"");
        assert_eq!(allows, name == "kernels", "{name}: unsafe code is allowed in kernels only");
        if name != "kernels" {
            let inherits = manifest.contains("[lints]\nworkspace = true");
            assert!(inherits, "{name} does not inherit the workspace's lints");
            assert!(text.contains("#![forbid(unsafe_code)]"), "{name} does not forbid unsafe code");
        }
    }
}

/// Collects the Rust files below a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// Calls outside `storage` that can destroy a file or folder: source file, call, number of calls, and why they are
/// safe.
const DESTRUCTIVE: [(&str, &str, usize, &str); 16] = [
    (
        "crates/corrections/src/export.rs",
        "remove_file",
        3,
        "files that it has newly created itself, if a pair is not finished",
    ),
    ("crates/engine-burn/src/probe/hung.rs", "remove_file", 1, "its own file in the cache folder, by its name"),
    ("crates/engine-burn/src/tuning.rs", "remove_file", 1, "an empty file that it has newly created itself"),
    (
        "crates/pipeline/src/job_record/removal.rs",
        "remove_file",
        1,
        "the record of a result that no longer exists, recognized by its content",
    ),
    (
        "crates/pipeline/src/segment.rs",
        "remove_file",
        2,
        "a file in the worker's private folder, newly created by itself",
    ),
    (
        "crates/worker/src/folder.rs",
        "remove_dir_all",
        2,
        "private folders: its own, and those of dead workers, recognized by marker and lock",
    ),
    ("crates/worker/src/live.rs", "remove_file", 1, "a file in the worker's private folder, newly created by itself"),
    ("crates/worker/src/serve.rs", "remove_file", 1, "a file in the worker's private folder"),
    (
        "crates/train/src/checkpoint.rs",
        "remove_file",
        1,
        "the tensors that a newer checkpoint replaced, in a marked folder",
    ),
    ("ui/src/correct/files.rs", "fs::rename", 2, "corrections moved aside to an unused name"),
    ("ui/src/queue.rs", "remove_file", 2, "queue files of this window and of ended ones, which it has locked"),
    (
        "ui/src/training/search.rs",
        "remove_file",
        1,
        "the files of a search that the user removes, by their names, while no process uses them",
    ),
    (
        "src/cli/train/search.rs",
        "remove_file",
        1,
        "the plots of a search that is replaced, beside its table or at the user's request, while no process uses them",
    ),
    (
        "crates/profile/src/memory.rs",
        "fs::write(",
        1,
        "/proc/self/clear_refs, which is not a file: the peak memory starts over",
    ),
    ("xtask/src/main.rs", "fs::write(", 1, "the list of skipped tests, in the target folder"),
    (
        "xtask/src/in_memory.rs",
        "remove_dir_all",
        2,
        "folders for the temporary files of tests: its own, and those of processes that have ended",
    ),
];

/// The part of a source file before its unit tests.
fn without_tests(text: &str) -> &str {
    let tests = text.find("#[cfg(test)]\nmod tests").or_else(|| text.find("#[cfg(test)]\n#[allow"));
    tests.map_or(text, |at| &text[..at])
}

#[test]
fn only_storage_replaces_and_removes_files() {
    let calls = [
        "remove_dir_all",
        "remove_file",
        "remove_dir(",
        "fs::rename",
        "fs::File::create(",
        " File::create(",
        "fs::write(",
        "fs::copy",
        "hard_link",
        ".persist(",
        ".truncate(true)",
    ];
    let mut files = Vec::new();
    for folder in ["src", "ui/src", "src-tauri/src", "xtask/src", "crates"] {
        sources(&root().join(folder), &mut files);
    }
    let mut violations = Vec::new();
    for file in files {
        let name = file.strip_prefix(root()).unwrap().to_string_lossy().replace('\\', "/");
        let is_source =
            !["/tests/", "/tests.rs", "_tests.rs", "/examples/", "/benches/"].iter().any(|part| name.contains(part));
        if !is_source || name.starts_with("crates/storage/") {
            continue;
        }
        let text = std::fs::read_to_string(&file).unwrap();
        for call in calls {
            let found = without_tests(&text).matches(call).count();
            let known = DESTRUCTIVE.iter().find(|(path, of, ..)| *path == name && *of == call);
            let allowed = known.map_or(0, |(_, _, count, _)| *count);
            if found != allowed {
                violations
                    .push(format!("{name} calls {call} {found} times, {allowed} are allowed: use cytoscope-storage"));
            }
        }
    }
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

#[test]
fn kinds_of_folders_are_listed_in_storage() {
    let mut files = Vec::new();
    for folder in ["src", "ui/src", "crates"] {
        sources(&root().join(folder), &mut files);
    }
    let mut violations = Vec::new();
    for file in files {
        let name = file.strip_prefix(root()).unwrap().to_string_lossy().replace('\\', "/");
        let is_test = ["/tests/", "/tests.rs", "_tests.rs"].iter().any(|part| name.contains(part));
        let text = std::fs::read_to_string(&file).unwrap();
        if !is_test && without_tests(&text).contains("KIND: &str = \"") {
            violations.push(name);
        }
    }
    assert!(violations.is_empty(), "use a constant of cytoscope_storage::folder_kind: {violations:?}");
}

#[test]
fn tests_named_in_robustness_md_exist() {
    let page = std::fs::read_to_string(root().join("docs/robustness.md")).unwrap();
    let mut files = Vec::new();
    for folder in ["tests", "crates", "ui/src", "src"] {
        sources(&root().join(folder), &mut files);
    }
    let code: String = files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    // In table rows, quoted text that ends in a name with at least three underscores is a test.
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let quoted = rows.flat_map(|line| line.split('`').skip(1).step_by(2));
    let names = quoted.filter_map(|text| text.rsplit([':', ' ']).next()).filter(|name| name.matches('_').count() >= 3);
    let names: BTreeSet<&str> = names.collect();
    assert!(names.len() > 25, "{names:?}");
    let missing: Vec<&&str> = names.iter().filter(|name| !code.contains(&format!("fn {name}("))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Crates whose notes, errors and advice the window shows in its own words: they name options by constants of
/// `cytoscope_storage::setting`.
const WITH_SETTINGS: [&str; 11] = [
    "checkpoint-import",
    "formats",
    "model-package",
    "objects",
    "pipeline",
    "profile",
    "quantize",
    "storage",
    "train",
    "training-data",
    "worker",
];

/// Options of other programs that these crates name: source file and option.
const OPTIONS_OF_OTHER_PROGRAMS: [(&str, &str); 4] = [
    ("crates/formats/src/cellpose/numpy.rs", "--save_tif"),
    ("crates/training-data/src/find/suffixes.rs", "--save_tif"),
    ("crates/model-package/src/parse.rs", "--saved-model"),
    ("crates/model-package/src/parse.rs", "--output"),
];

/// The options that the code of a source file spells out.
fn spelled_options(text: &str) -> BTreeSet<String> {
    let code = without_tests(text).lines().map(str::trim_start).filter(|line| !line.starts_with("//"));
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let words = code.flat_map(|line| line.split(move |c: char| !is_part(c)));
    let is_option =
        |word: &&str| word.strip_prefix("--").is_some_and(|name| name.starts_with(|c: char| c.is_ascii_lowercase()));
    words.filter(is_option).map(str::to_owned).collect()
}

#[test]
fn messages_name_options_by_the_list_that_the_window_translates() {
    let text =
        "//! --axes\nlet a = \"use --tile 1, --set b=c or --save_tif\"; // a--b\n#[cfg(test)]\nmod tests { \"--x\" }";
    assert_eq!(spelled_options(text), BTreeSet::from(["--save_tif", "--set", "--tile"].map(str::to_owned)));
    let mut violations = Vec::new();
    for name in WITH_SETTINGS {
        let mut files = Vec::new();
        sources(&root().join("crates").join(name).join("src"), &mut files);
        assert!(!files.is_empty(), "{name}");
        for file in files {
            let path = file.strip_prefix(root()).unwrap().to_string_lossy().replace('\\', "/");
            let is_list = path == "crates/storage/src/setting.rs";
            if is_list || ["/tests/", "/tests.rs", "_tests.rs"].iter().any(|part| path.contains(part)) {
                continue;
            }
            for option in spelled_options(&std::fs::read_to_string(&file).unwrap()) {
                if !OPTIONS_OF_OTHER_PROGRAMS.contains(&(path.as_str(), option.as_str())) {
                    violations
                        .push(format!("{path} spells out {option}: use a constant of cytoscope_storage::setting"));
                }
            }
        }
    }
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

/// Crates whose messages keep the settings that they name, so that the window shows its controls: `message!` formats them.
/// `format!` would leave only a text.
const KEEPING_SETTINGS: [&str; 9] = [
    "checkpoint-import",
    "engine-burn",
    "formats",
    "pipeline",
    "quantize",
    "storage",
    "train",
    "training-data",
    "worker",
];

/// Settings in texts of advice that only the command line shows, by source file and constant.
const IN_TEXTS: [(&str, &str); 2] = [("crates/train/src/monitor.rs", "BATCH"), ("crates/train/src/monitor.rs", "SET")];

/// The arguments of a call, from behind its opening parenthesis on.
fn arguments(rest: &str) -> &str {
    let mut depth = 1;
    let end = rest.find(|c: char| {
        depth += match c {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        depth == 0
    });
    &rest[..end.unwrap_or(rest.len())]
}

/// The constants of settings that the code of a source file writes into texts.
fn settings_in_texts(text: &str) -> BTreeSet<String> {
    let lines = without_tests(text).lines().filter(|line| !line.trim_start().starts_with("//"));
    let code = lines.collect::<Vec<_>>().join("\n");
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_constant = |word: &&str| word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    let constants = |text: &str| -> BTreeSet<String> {
        text.split(|c: char| !is_part(c)).filter(is_constant).map(str::to_owned).collect()
    };
    let imports = code.split("setting::").skip(1).filter_map(|rest| rest.split(';').next());
    let imported: BTreeSet<String> = imports.flat_map(constants).collect();
    let written: BTreeSet<String> =
        code.split("format!(").skip(1).flat_map(|rest| constants(arguments(rest))).collect();
    written.intersection(&imported).cloned().collect()
}

#[test]
fn messages_keep_the_settings_that_they_name() {
    let text = "use cytoscope_storage::setting::{TILE, TIME};\nlet a = format!(\"use {TILE} (or b) {}\", c);\n\
                // format!(TIME)\nlet d = message!(\"{TIME}\");\n#[cfg(test)]\nmod tests { format!(\"{TIME}\") }";
    assert_eq!(settings_in_texts(text), BTreeSet::from(["TILE".to_owned()]));
    let mut violations = Vec::new();
    for name in KEEPING_SETTINGS {
        let mut files = Vec::new();
        sources(&root().join("crates").join(name).join("src"), &mut files);
        for file in files {
            let path = file.strip_prefix(root()).unwrap().to_string_lossy().replace('\\', "/");
            if ["/tests/", "/tests.rs", "_tests.rs"].iter().any(|part| path.contains(part)) {
                continue;
            }
            for setting in settings_in_texts(&std::fs::read_to_string(&file).unwrap()) {
                if !IN_TEXTS.contains(&(path.as_str(), setting.as_str())) {
                    violations.push(format!("{path} writes {setting} with format!: use cytoscope_storage::message!"));
                }
            }
        }
    }
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

#[test]
fn advice_about_drivers_names_options_that_the_window_translates() {
    let path = root().join("crates/engine-burn/src/explain.rs");
    let text = std::fs::read_to_string(path).unwrap();
    // An option of NVIDIA's compiler.
    assert_eq!(spelled_options(&text), BTreeSet::from(["--gpu-architecture".to_owned()]));
}
