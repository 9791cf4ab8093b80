//! Checks that the code uses what the manifests name.

use super::{crates, root, sources, without_tests};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Dependencies of tests that only files of another crate's tests use, which the tests of this crate include: crate and
/// dependency.
const USED_BY_INCLUDED_FILES: [(&str, &str); 3] =
    [("autodiff", "cytoscope-testkit"), ("builders", "cytoscope-testkit"), ("graph-passes", "tempfile")];

/// The dependencies in a manifest: those of the program or library, and those of tests and build scripts.
#[derive(Debug, Default, PartialEq)]
struct Named {
    normal: BTreeSet<String>,
    others: BTreeSet<String>,
}

impl Named {
    fn of(manifest: &str) -> Self {
        let mut found = Self::default();
        let mut section = String::new();
        for line in manifest.lines().map(str::trim) {
            if let Some(header) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                section = header.to_owned();
                // [dependencies.serde]
                if let Some((front, name)) = header.rsplit_once('.') {
                    found.add(front, name);
                }
            } else if let Some(end) = line.find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_') {
                found.add(&section, &line[..end]);
            }
        }
        found
    }

    /// Adds a name, if the section of the manifest is one of dependencies.
    fn add(&mut self, section: &str, name: &str) {
        let is_of_workspace = section.starts_with("workspace");
        match section.rsplit('.').next() {
            _ if name.is_empty() || is_of_workspace => {}
            Some("dependencies") => _ = self.normal.insert(name.to_owned()),
            Some("dev-dependencies" | "build-dependencies") => _ = self.others.insert(name.to_owned()),
            _ => {}
        }
    }
}

#[test]
fn dependencies_are_read_from_all_sections() {
    let text = "[package]\nname = \"x\"\n[dependencies]\n# a comment\nserde.workspace = true\nhalf = \"2\"\n\
                [target.'cfg(unix)'.dependencies]\nlibc = { version = \"1\" }\n[dev-dependencies]\ntempfile = \"3\"\n\
                [build-dependencies]\ncc = \"1\"\n[dependencies.my-own]\nworkspace = true\n[workspace.dependencies]\n\
                no = \"1\"\n";
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let expected = Named { normal: set(&["serde", "half", "libc", "my-own"]), others: set(&["tempfile", "cc"]) };
    assert_eq!(Named::of(text), expected);
}

/// Returns whether code names a crate, outside of comments that are no documentation.
fn uses(text: &str, dependency: &str) -> bool {
    let name = dependency.replace('-', "_");
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let code = text.lines().filter(|line| !line.trim_start().starts_with("// "));
    code.flat_map(|line| line.split(|c: char| !is_part(c))).any(|word| word == name)
}

/// The Rust files of a crate: those of its program or library without tests, and all.
fn files(name: &str, path: &Path) -> (Vec<String>, Vec<String>) {
    let mut all = Vec::new();
    // The folder of the application contains the other crates.
    let folders = ["src", "tests", "benches", "examples", "fuzz_targets"].map(|folder| path.join(folder));
    folders.iter().filter(|folder| folder.is_dir()).for_each(|folder| sources(folder, &mut all));
    all.extend(Some(path.join("build.rs")).filter(|file| file.is_file()));
    assert!(!all.is_empty(), "{name}");
    let read = |file: &PathBuf| std::fs::read_to_string(file).unwrap();
    let is_source = |file: &&PathBuf| {
        let below = file.strip_prefix(path).unwrap().to_string_lossy().replace('\\', "/");
        let is_test = ["/tests/", "/tests.rs", "_tests.rs"].iter().any(|part| below.contains(part));
        (below.starts_with("src/") || below.starts_with("fuzz_targets/")) && !is_test
    };
    let own = all.iter().filter(is_source).map(|file| without_tests(&read(file)).to_owned()).collect();
    (own, all.iter().map(read).collect())
}

#[test]
fn every_dependency_is_used() {
    let mut folders = crates();
    for name in ["fuzz", "xtask"] {
        folders.insert(name.to_owned(), root().join(name));
    }
    let mut unused = Vec::new();
    for (name, path) in folders {
        let Named { normal, others } = Named::of(&std::fs::read_to_string(path.join("Cargo.toml")).unwrap());
        let (own, all) = files(&name, &path);
        for dependency in normal.iter().filter(|dependency| !own.iter().any(|text| uses(text, dependency))) {
            unused.push(format!("{name}: {dependency} is a dependency, but is not used outside of tests"));
        }
        for dependency in others.iter().filter(|dependency| !all.iter().any(|text| uses(text, dependency))) {
            if !USED_BY_INCLUDED_FILES.contains(&(name.as_str(), dependency.as_str())) {
                unused.push(format!("{name}: {dependency} is a dependency of tests or the build, but is not used"));
            }
        }
    }
    assert!(unused.is_empty(), "{}", unused.join("\n"));
}
