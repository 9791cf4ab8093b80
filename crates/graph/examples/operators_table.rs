//! Prints `docs/operators.md`.

fn main() {
    print!("{}", cytoscope_graph::operators_markdown());
}
