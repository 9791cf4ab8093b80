//! `Concat`: its row of the table, import and export.

use crate::export::{Setting, Settings};
use crate::import::Pending;
use crate::table::{SHAPE, SupportedOperator};
use cytoscope_graph::{Op, Result};

pub(super) const ROWS: [SupportedOperator; 1] = [SupportedOperator { name: "Concat", group: SHAPE, note: "" }];

pub(super) fn convert(node: &Pending<'_>) -> Result<Option<Op>> {
    if node.op_type != "Concat" {
        return Ok(None);
    }
    if node.opset >= 4 {
        node.require("axis")?;
    }
    Ok(Some(Op::Concat { axis: node.attributes.int("axis", 1)? }))
}

pub(super) fn settings(op: &Op) -> Option<Settings> {
    if let Op::Concat { axis } = op { Some(vec![("axis", Setting::Int(*axis))]) } else { None }
}
