//! No lower room knows a higher one: every crate's own dependencies against the house's plan.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Each room and the rooms it may stand on.
const ROOMS: [(&str, &[&str]); 18] = [
    // The installed shell knows the window only as a program.
    ("src-tauri", &[]),
    ("storage", &[]),
    ("volume", &[]),
    ("profile", &[]),
    ("kernels", &[]),
    ("formats", &["storage", "volume"]),
    ("objects", &["volume"]),
    ("simulate", &["volume"]),
    ("annotate", &["formats", "objects", "storage", "volume"]),
    ("samples", &["formats", "objects", "storage", "volume"]),
    ("graph", &["storage", "volume"]),
    ("engine", &["graph", "profile", "storage"]),
    ("engine-cpu", &["engine", "graph", "kernels", "profile"]),
    ("engine-burn", &["engine", "graph", "profile"]),
    (
        "pipeline",
        &["engine", "engine-cpu", "engine-burn", "formats", "graph", "objects", "profile", "storage", "volume"],
    ),
    ("train", &["engine", "formats", "graph", "objects", "pipeline", "profile", "samples", "storage", "volume"]),
    (
        "ui",
        &[
            "annotate", "engine", "formats", "graph", "objects", "pipeline", "profile", "samples", "storage", "train",
            "volume",
        ],
    ),
    (
        "",
        &[
            "storage",
            "volume",
            "profile",
            "kernels",
            "formats",
            "objects",
            "simulate",
            "graph",
            "engine",
            "engine-cpu",
            "engine-burn",
            "pipeline",
            "samples",
            "train",
            "ui",
        ],
    ),
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The folders of all rooms; the application itself is the empty name.
fn rooms() -> BTreeMap<String, PathBuf> {
    let mut rooms = BTreeMap::from([(String::new(), root())]);
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let path = entry.unwrap().path();
        if path.join("Cargo.toml").is_file() {
            rooms.insert(path.file_name().unwrap().to_string_lossy().into_owned(), path);
        }
    }
    for room in ["ui", "src-tauri"] {
        rooms.insert(room.to_owned(), root().join(room));
    }
    rooms
}

/// Our own crates among the dependencies a manifest builds with (tests may use what they like).
fn own_dependencies(manifest: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut counts = false;
    for line in manifest.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            let last = header.rsplit('.').next().unwrap_or(header);
            let builds = |name: &str| name == "dependencies" || name == "build-dependencies";
            counts = builds(last) && !header.starts_with("workspace");
            // [dependencies.cytoscope-graph]
            let table = header.rsplit_once('.').filter(|(front, _)| builds(front.rsplit('.').next().unwrap_or(front)));
            if let Some(name) = table.and_then(|(_, name)| name.strip_prefix("cytoscope-")) {
                found.insert(name.to_owned());
            }
        } else if counts && let Some(rest) = line.strip_prefix("cytoscope-") {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(rest.len());
            found.insert(rest[..end].to_owned());
        }
    }
    found
}

#[test]
fn rooms_stand_on_lower_rooms_only() {
    let plan: BTreeMap<&str, &[&str]> = ROOMS.into_iter().collect();
    let mut faults = Vec::new();
    for (room, path) in rooms() {
        let shown = if room.is_empty() { "the application" } else { room.as_str() };
        let Some(allowed) = plan.get(room.as_str()) else {
            faults.push(format!("{shown} is a new room: say in ROOMS what it may stand on"));
            continue;
        };
        let manifest = std::fs::read_to_string(path.join("Cargo.toml")).unwrap();
        for dependency in own_dependencies(&manifest) {
            if !allowed.contains(&dependency.as_str()) {
                faults.push(format!("{shown} stands on {dependency}; it may stand on {allowed:?}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_plan_has_no_circle() {
    let mut placed: BTreeSet<&str> = BTreeSet::new();
    for (room, below) in ROOMS {
        assert!(below.iter().all(|b| placed.contains(b)), "{room} stands on a room listed after it");
        placed.insert(room);
    }
}

#[test]
fn manifests_are_read_right() {
    let text = "[package]\nname = \"cytoscope-x\"\n[dependencies]\ncytoscope-graph.workspace = true\nserde = \"1\"\n\
                [target.'cfg(unix)'.dependencies]\ncytoscope-volume = { path = \"..\" }\n[dev-dependencies]\n\
                cytoscope-pipeline.workspace = true\n[dependencies.cytoscope-engine]\nworkspace = true\n";
    let expected = ["engine", "graph", "volume"].map(str::to_owned);
    assert_eq!(own_dependencies(text), BTreeSet::from(expected));
}

/// The first source file of a room.
fn front(path: &Path) -> PathBuf {
    let lib = path.join("src/lib.rs");
    if lib.is_file() { lib } else { path.join("src/main.rs") }
}

#[test]
fn every_room_says_what_it_is_and_forbids_unsafe() {
    for (room, path) in rooms() {
        let text = std::fs::read_to_string(front(&path)).unwrap();
        assert!(text.starts_with("//! "), "{room}: its first file does not begin with what it is for");
        let manifest = std::fs::read_to_string(path.join("Cargo.toml")).unwrap();
        let allows = manifest.contains("unsafe_code = \"allow\"");
        assert_eq!(allows, room == "kernels", "{room}: unsafe code belongs into kernels alone");
        match room.as_str() {
            "kernels" => {}
            "formats" => {
                assert!(text.contains("#![deny(unsafe_code)]"), "formats denies unsafe code but for one place")
            }
            _ => {
                let inherits = manifest.contains("[lints]\nworkspace = true");
                assert!(inherits, "{room} does not take the workspace's lints");
                assert!(text.contains("#![forbid(unsafe_code)]"), "{room} does not forbid unsafe code");
            }
        }
    }
}

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

#[test]
fn formats_has_one_unsafe_place_and_it_says_why() {
    let mut files = Vec::new();
    sources(&root().join("crates/formats/src"), &mut files);
    let with: Vec<PathBuf> =
        files.into_iter().filter(|f| std::fs::read_to_string(f).unwrap().contains("unsafe {")).collect();
    let names: Vec<_> = with.iter().map(|f| f.file_name().unwrap().to_string_lossy().into_owned()).collect();
    assert_eq!(names, ["huge.rs"]);
    assert!(std::fs::read_to_string(&with[0]).unwrap().contains("SAFETY:"), "the exception is not explained");
}

/// Calls that can destroy a file or folder, outside of `storage`: the file, the call, how often, and why each is safe.
const DESTRUCTIVE: [(&str, &str, usize, &str); 10] = [
    (
        "crates/annotate/src/export.rs",
        "remove_file",
        3,
        "files that it has created new itself, when a pair is not finished",
    ),
    ("crates/engine-burn/src/tuning.rs", "remove_file", 1, "an empty file that it has created new itself"),
    (
        "crates/pipeline/src/segment.rs",
        "remove_file",
        2,
        "a file in the worker's private folder, created new by itself",
    ),
    (
        "crates/pipeline/src/worker/folder.rs",
        "remove_dir_all",
        2,
        "private folders: its own, and dead workers' by marker and lock",
    ),
    (
        "crates/pipeline/src/worker/live.rs",
        "remove_file",
        1,
        "a file in the worker's private folder, created new by itself",
    ),
    ("crates/pipeline/src/worker/serve.rs", "remove_file", 1, "a file in the worker's private folder"),
    (
        "crates/train/src/checkpoint.rs",
        "remove_file",
        1,
        "the tensors that a newer checkpoint replaced, in a marked folder",
    ),
    ("ui/src/correct/places.rs", "hard_link", 1, "fails where something lies"),
    ("ui/src/correct/places.rs", "fs::rename", 1, "corrections set aside under a name that is free"),
    ("ui/src/queue.rs", "remove_file", 2, "queue files of this and of ended windows, locked by it"),
];

/// The part of a source file before its tests.
fn without_tests(text: &str) -> &str {
    let tests = text.find("#[cfg(test)]\nmod tests").or_else(|| text.find("#[cfg(test)]\n#[allow"));
    tests.map_or(text, |at| &text[..at])
}

#[test]
fn files_and_folders_are_replaced_and_removed_in_one_crate() {
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
    let mut faults = Vec::new();
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
                faults.push(format!("{name} calls {call} {found} times, {allowed} are known: use cytoscope-storage"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_tests_that_the_robustness_page_names_exist() {
    let page = std::fs::read_to_string(root().join("docs/robustness.md")).unwrap();
    let mut files = Vec::new();
    for folder in ["tests", "crates", "ui/src", "src"] {
        sources(&root().join(folder), &mut files);
    }
    let code: String = files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    // In rows of tables, what stands between backticks and ends in a name of several words is a test.
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let quoted = rows.flat_map(|line| line.split('`').skip(1).step_by(2));
    let names = quoted.filter_map(|text| text.rsplit([':', ' ']).next()).filter(|name| name.matches('_').count() >= 3);
    let names: BTreeSet<&str> = names.collect();
    assert!(names.len() > 25, "{names:?}");
    let missing: Vec<&&str> = names.iter().filter(|name| !code.contains(&format!("fn {name}("))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
