//! `GridSample`: its row of the table, import and export.

use crate::export::{Setting, Settings, flag};
use crate::import::Pending;
use crate::table::{CONV, SupportedOperator};
use cytoscope_graph::{GridMode, GridPadding, GridSampleAttrs, Op, Result};

pub(super) const ROWS: [SupportedOperator; 1] =
    [SupportedOperator { name: "GridSample", group: CONV, note: "nearest and linear" }];

pub(super) fn convert(node: &Pending<'_>) -> Result<Option<Op>> {
    if node.op_type != "GridSample" {
        return Ok(None);
    }
    let mode = match node.attributes.text("mode", "linear")?.as_str() {
        "nearest" => GridMode::Nearest,
        "linear" | "bilinear" => GridMode::Linear,
        other => return Err(node.unsupported(format!("mode \"{other}\""))),
    };
    let padding = match node.attributes.text("padding_mode", "zeros")?.as_str() {
        "zeros" => GridPadding::Zeros,
        "border" => GridPadding::Border,
        "reflection" => GridPadding::Reflection,
        other => return Err(node.unsupported(format!("padding \"{other}\""))),
    };
    let align_corners = node.attributes.flag("align_corners", false)?;
    Ok(Some(Op::GridSample(GridSampleAttrs { mode, padding, align_corners })))
}

pub(super) fn settings(op: &Op) -> Option<Settings> {
    let Op::GridSample(attrs) = op else { return None };
    let mode = match attrs.mode {
        GridMode::Nearest => "nearest",
        GridMode::Linear => "linear",
    };
    let padding = match attrs.padding {
        GridPadding::Zeros => "zeros",
        GridPadding::Border => "border",
        GridPadding::Reflection => "reflection",
    };
    Some(vec![
        ("mode", Setting::Text(mode.to_owned())),
        ("padding_mode", Setting::Text(padding.to_owned())),
        ("align_corners", flag(attrs.align_corners)),
    ])
}

/// Three spatial axes, and the name "linear", were introduced in opset 20.
pub(super) fn oldest_opset(op: &Op) -> Option<i64> {
    matches!(op, Op::GridSample(_)).then_some(20)
}
