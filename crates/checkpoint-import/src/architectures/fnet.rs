//! The network of pytorch_fnet for label-free prediction.

use crate::error::ImportError;
use crate::layers::{Features, Layers};
use crate::tensors::StoredTensor;
use cytoscope_graph::{Activation, ConvTransposeAttrs, Graph};
use std::collections::BTreeMap;

/// Maximum number of levels.
const MAX_LEVELS: usize = 16;

pub(super) fn build(tensors: &BTreeMap<String, &StoredTensor>) -> Result<(Graph, Vec<String>), ImportError> {
    let (mut l, x) = Layers::start(tensors, "fnet", "net_recurse.sub_2conv_more.conv1.weight")?;
    let y = level(&mut l, "net_recurse", x, 0)?;
    let y = l.conv("conv_out", y, &vec![1; l.axes])?;
    l.finish(y, |_| false)
}

/// Builds a level and those below it.
fn level(l: &mut Layers<'_>, name: &str, x: Features, depth: usize) -> Result<Features, ImportError> {
    let more = two_convolutions(l, &format!("{name}.sub_2conv_more"), x)?;
    let inner = format!("{name}.sub_u");
    if !l.has_any(&format!("{inner}.")) {
        return Ok(more);
    }
    if depth >= MAX_LEVELS {
        return Err(l.bad(&inner, format!("is too deep: expected at most {MAX_LEVELS} levels")));
    }
    let down = l.strided(&format!("{name}.conv_down"), more)?;
    let down = normalized(l, &format!("{name}.bn0"), down)?;
    let below = level(l, &inner, down, depth + 1)?;
    let up = l.transposed(&format!("{name}.convt"), below, ConvTransposeAttrs::upsample)?;
    let up = normalized(l, &format!("{name}.bn1"), up)?;
    let both = l.concat(name, more, up);
    two_convolutions(l, &format!("{name}.sub_2conv_less"), both)
}

fn two_convolutions(l: &mut Layers<'_>, name: &str, mut x: Features) -> Result<Features, ImportError> {
    for index in 1..=2 {
        x = l.conv(&format!("{name}.conv{index}"), x, &vec![1; l.axes])?;
        x = normalized(l, &format!("{name}.bn{index}"), x)?;
    }
    Ok(x)
}

fn normalized(l: &mut Layers<'_>, name: &str, x: Features) -> Result<Features, ImportError> {
    let x = l.norm(name, x)?;
    Ok(l.activation(name, x, Activation::Relu))
}
