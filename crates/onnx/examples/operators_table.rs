//! Prints `docs/operators.md`.

fn main() {
    print!("{}", cytoscope_onnx::operators_markdown());
}
