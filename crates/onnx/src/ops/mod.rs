//! Operators with a file of their own: import, export, and their rows of the table.

mod concat;
mod resize;

use crate::export::Settings;
use crate::import::{Importer, Pending};
use cytoscope_graph::{Op, Result};

pub(crate) use concat::ROW as CONCAT;
pub(crate) use resize::ROWS as RESIZE;

/// Returns the operator of `node`, or `None` if it has no file of its own.
pub(crate) fn convert(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<Option<Op>> {
    match concat::convert(node)? {
        Some(op) => Ok(Some(op)),
        None => resize::convert(im, node),
    }
}

/// Returns the attributes that an operator has in an opset, or `None` if it has no file of its own.
pub(crate) fn settings(op: &Op, opset: i64) -> Option<Settings> {
    concat::settings(op).or_else(|| resize::settings(op, opset))
}
