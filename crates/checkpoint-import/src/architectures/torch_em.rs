//! `UNet2d` and `UNet3d` of torch-em: pre-activation norms, max pools, linear interpolation in the decoder.

use super::Kwargs;
use crate::error::ImportError;
use crate::layers::{Features, Layers};
use crate::tensors::StoredTensor;
use cytoscope_graph::{Activation, Graph};
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// Maximum number of groups of a group norm in torch-em.
const MAX_GROUPS: usize = 32;

pub(super) fn build(
    tensors: &BTreeMap<String, &StoredTensor>,
    kwargs: &Kwargs<'_>,
) -> Result<(Graph, Vec<String>), ImportError> {
    for key in ["postprocessing", "return_side_outputs", "anisotropic_kernel"] {
        if let Some(given) = kwargs.get(key).filter(|given| **given != Json::Bool(false)) {
            return Err(ImportError::UnsupportedArgument {
                argument: key.to_owned(),
                value: given.to_string(),
                supported: "None or False".to_owned(),
            });
        }
    }
    let factors = kwargs.get("scale_factors");
    if let Some(given) = factors.filter(|given| !is_two(given)) {
        return Err(ImportError::UnsupportedArgument {
            argument: "scale_factors".to_owned(),
            value: given.to_string(),
            supported: "2 along all axes".to_owned(),
        });
    }
    let has_norms = tensors.contains_key("encoder.blocks.0.block.4.weight");
    let first = if has_norms { "encoder.blocks.0.block.1.weight" } else { "encoder.blocks.0.block.0.weight" };
    let (mut layers, mut x) = Layers::start(tensors, "torch-em-unet", first)?;
    if factors.is_none() {
        layers.assume("every level halves all axes");
    }
    if has_norms && !layers.has("encoder.blocks.0.block.3.weight") {
        layers.assume("the norms without parameters are instance norms");
    }
    let window = vec![2; layers.axes];
    let mut skips = Vec::new();
    for level in 0..layers.count(|i| format!("encoder.blocks.{i}.")) {
        let name = format!("encoder.blocks.{level}");
        let skip = block(&mut layers, &format!("{name}.block"), x, has_norms)?;
        skips.push(skip);
        x = layers.pool(&name, skip, &window, true);
    }
    x = block(&mut layers, "base.block", x, has_norms)?;
    for (index, skip) in skips.into_iter().rev().enumerate() {
        let sampler = format!("decoder.samplers.{index}");
        x = layers.upsample_twofold(&sampler, x, false);
        x = layers.conv(&format!("{sampler}.conv"), x, &vec![1; layers.axes])?;
        let name = format!("decoder.blocks.{index}.block");
        let joined = layers.concat(&name, x, skip);
        x = block(&mut layers, &name, joined, has_norms)?;
    }
    if layers.has_any("out_conv.") {
        x = layers.conv("out_conv", x, &vec![1; layers.axes])?;
    }
    match kwargs.final_activation()? {
        Some(activation) => x = layers.activation("final", x, activation),
        None if kwargs.0.is_null() => layers.assume("there is no activation after the last layer"),
        None => {}
    }
    layers.finish(x, |_| false)
}

/// Whether the factors of all levels and axes are 2.
fn is_two(factors: &Json) -> bool {
    match factors.as_array() {
        Some(list) => list.iter().all(is_two),
        None => factors.as_u64() == Some(2),
    }
}

fn block(layers: &mut Layers<'_>, name: &str, mut x: Features, has_norms: bool) -> Result<Features, ImportError> {
    let convolutions = if has_norms { [1, 4] } else { [0, 2] };
    for index in convolutions {
        if has_norms {
            let norm = format!("{name}.{}", index - 1);
            let is_grouped = layers.has(&format!("{norm}.weight")) && !layers.has(&format!("{norm}.running_mean"));
            x = if is_grouped {
                layers.group_norm(&norm, x, x.channels.min(MAX_GROUPS))?
            } else {
                layers.norm(&norm, x)?
            };
        }
        let conv = format!("{name}.{index}");
        x = layers.conv(&conv, x, &vec![1; layers.axes])?;
        x = layers.activation(&conv, x, Activation::Relu);
    }
    Ok(x)
}
