//! Operators that have their own files: import, export, oldest opset, and their rows of the table.

mod concat;
mod grid_sample;
mod resize;

use crate::export::Settings;
use crate::import::{Importer, Pending};
use crate::table::SupportedOperator;
use cytoscope_graph::{Op, Result};

/// Returns the rows of the table.
pub(crate) fn rows() -> impl Iterator<Item = SupportedOperator> {
    concat::ROWS.into_iter().chain(resize::ROWS).chain(grid_sample::ROWS)
}

/// Returns the operator of `node`, or `None` if it has no file here.
pub(crate) fn convert(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<Option<Op>> {
    if let Some(op) = concat::convert(node)? {
        return Ok(Some(op));
    }
    if let Some(op) = grid_sample::convert(node)? {
        return Ok(Some(op));
    }
    resize::convert(im, node)
}

/// Returns the attributes that an operator has in an opset, or `None` if it has no file here.
pub(crate) fn settings(op: &Op, opset: i64) -> Option<Settings> {
    concat::settings(op).or_else(|| grid_sample::settings(op)).or_else(|| resize::settings(op, opset))
}

/// Returns the first opset in which an operator has the form that is exported; `None` if it has this form in all opsets that
/// files are written in.
pub(crate) fn oldest_opset(op: &Op) -> Option<i64> {
    resize::oldest_opset(op).or_else(|| grid_sample::oldest_opset(op))
}
