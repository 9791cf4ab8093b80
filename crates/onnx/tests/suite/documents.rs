//! The table of operators in the documentation.

use crate::common;

#[test]
fn the_operator_table_in_the_documentation_is_up_to_date() {
    let path = common::root().join("docs/operators.md");
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let expected = cytoscope_onnx::operators_markdown();
    assert!(
        text == expected,
        "docs/operators.md is out of date: cargo run -p cytoscope-onnx --example operators_table > docs/operators.md"
    );
}
