//! Checks docs/ARCHITECTURE.md, whose table and diagram show the crates and their dependencies, against the manifests.

use super::{crates, own_dependencies, root};
use std::collections::{BTreeMap, BTreeSet};

/// The crates that each crate depends on; the application is the empty name.
type Dependencies = BTreeMap<String, BTreeSet<String>>;

/// Crates that the diagram leaves out: only tests use the first one, and the second one links no other crate.
const NOT_IN_THE_DIAGRAM: [&str; 2] = ["testkit", "src-tauri"];

fn page() -> String {
    std::fs::read_to_string(root().join("docs/ARCHITECTURE.md")).unwrap()
}

/// The dependencies in the manifests.
fn dependencies() -> Dependencies {
    let mut found = Dependencies::new();
    for (name, path) in crates() {
        let manifest = std::fs::read_to_string(path.join("Cargo.toml")).unwrap();
        found.insert(name, own_dependencies(&manifest));
    }
    found
}

/// The name of a crate in [`crates`], from its name in the page.
fn crate_name(shown: &str) -> String {
    let name = shown.strip_prefix("crates/").unwrap_or(shown);
    if name == "src" { String::new() } else { name.to_owned() }
}

/// All crates that a crate depends on, directly or through others.
fn reachable(from: &str, edges: &Dependencies) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![from.to_owned()];
    while let Some(name) = open.pop() {
        for next in edges.get(&name).into_iter().flatten() {
            if found.insert(next.clone()) {
                open.push(next.clone());
            }
        }
    }
    found
}

/// The rows of the table of crates: name, and the column with the dependencies.
fn rows(page: &str) -> Vec<(String, String)> {
    let table = page.lines().skip_while(|line| !line.starts_with("| crate |")).skip(2);
    let mut rows = Vec::new();
    for line in table.take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 5, "{line}");
        rows.push((crate_name(cells[1].trim_matches('`')), cells[3].to_owned()));
    }
    rows
}

/// How a row differs from the dependencies of its crate. A row that ends in "and their dependencies" may leave out what the
/// crates that it names depend on.
fn difference(name: &str, column: &str, real: &Dependencies) -> Option<String> {
    let own = real.get(name)?;
    if column == "all" {
        return None;
    }
    let parts: Vec<&str> = column.split(", ").filter(|part| !part.is_empty()).collect();
    let is_abridged = parts.iter().any(|part| part.starts_with("and "));
    let stated: BTreeSet<String> =
        parts.iter().filter(|part| !part.starts_with("and ")).map(|part| (*part).to_owned()).collect();
    let mut implied = stated.clone();
    if is_abridged {
        implied.extend(stated.iter().flat_map(|part| reachable(part, real)));
    }
    let wrong: Vec<&String> = stated.difference(own).collect();
    let missing: Vec<&String> = own.difference(&implied).collect();
    let differs = !wrong.is_empty() || !missing.is_empty();
    differs.then(|| format!("{name}: does not depend on {wrong:?}, but on {missing:?}"))
}

#[test]
fn the_table_of_crates_states_their_dependencies() {
    let (rows, real) = (rows(&page()), dependencies());
    let listed: BTreeSet<&str> = rows.iter().map(|(name, _)| name.as_str()).collect();
    let unlisted: Vec<&String> = real.keys().filter(|name| !listed.contains(name.as_str())).collect();
    assert!(unlisted.is_empty() && listed.contains("xtask"), "{unlisted:?} of {listed:?}");
    let wrong: Vec<String> = rows.iter().filter_map(|(name, column)| difference(name, column, &real)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn rows_with_other_dependencies_are_found() {
    let set = |names: &[&str]| -> BTreeSet<String> { names.iter().map(|name| (*name).to_owned()).collect() };
    let edges = [("a", set(&[])), ("b", set(&["a"])), ("c", set(&["a", "b"]))];
    let edges: Dependencies = edges.into_iter().map(|(name, own)| (name.to_owned(), own)).collect();
    for (column, is_right) in
        [("a, b", true), ("b, and its dependencies", true), ("b", false), ("a", false), ("a, b, d", false), ("", false)]
    {
        assert_eq!(difference("c", column, &edges).is_none(), is_right, "{column}");
    }
}

/// The arrows of the diagram of the page.
fn arrows(page: &str) -> BTreeSet<(String, String)> {
    let diagram: Vec<&str> =
        page.lines().skip_while(|line| *line != "```mermaid").take_while(|l| *l != "```").collect();
    let mut names = BTreeMap::new();
    for line in &diagram {
        // graphIr["graph"], app["src: the program"]
        if let Some((id, label)) = line.trim().strip_suffix("\"]").and_then(|line| line.split_once("[\"")) {
            let label = label.split(':').next().unwrap_or(label);
            names.insert(id, crate_name(label));
        }
    }
    let mut arrows = BTreeSet::new();
    for line in &diagram {
        if let Some((from, to)) = line.trim().split_once(" --> ") {
            let name = |id: &str| names.get(id).cloned().unwrap_or_else(|| panic!("{id} has no label"));
            arrows.insert((name(from), name(to)));
        }
    }
    arrows
}

#[test]
fn the_diagram_of_crates_shows_their_dependencies() {
    let (arrows, real) = (arrows(&page()), dependencies());
    let without = |left_out: Option<&(String, String)>| {
        let mut edges = Dependencies::new();
        for (from, to) in arrows.iter().filter(|arrow| Some(*arrow) != left_out) {
            edges.entry(from.clone()).or_default().insert(to.clone());
        }
        edges
    };
    let shown = without(None);
    for name in real.keys().filter(|name| !NOT_IN_THE_DIAGRAM.contains(&name.as_str())) {
        assert_eq!(reachable(name, &shown), reachable(name, &real), "the arrows of \"{name}\"");
    }
    for arrow in &arrows {
        let is_implied = reachable(&arrow.0, &without(Some(arrow))).contains(&arrow.1);
        assert!(!is_implied, "the arrow from {} to {} follows from others", arrow.0, arrow.1);
    }
}
