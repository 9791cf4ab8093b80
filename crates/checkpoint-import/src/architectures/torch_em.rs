//! `UNet2d` and `UNet3d` of torch-em: pre-activation norms, max pools, linear interpolation in the decoder.

use super::Kwargs;
use crate::error::ImportError;
use crate::layers::{Features, Layers};
use crate::tensors::StoredTensor;
use cytoscope_graph::{Activation, Graph};
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// Largest number of groups of its group norms.
const MAX_GROUPS: usize = 32;

pub(super) fn build(
    tensors: &BTreeMap<String, &StoredTensor>,
    kwargs: &Kwargs<'_>,
) -> Result<(Graph, Vec<String>), ImportError> {
    for key in ["postprocessing", "return_side_outputs", "anisotropic_kernel"] {
        if kwargs.get(key).is_some_and(|value| *value != Json::Bool(false)) {
            return Err(ImportError::Setting(format!(
                "the network is made with {key}, which is not supported; export the model with torch.onnx.export"
            )));
        }
    }
    let has_norms = tensors.contains_key("encoder.blocks.0.block.4.weight");
    let first = if has_norms { "encoder.blocks.0.block.1.weight" } else { "encoder.blocks.0.block.0.weight" };
    let (mut l, mut x) = Layers::start(tensors, "torch-em-unet", first)?;
    l.assume("every level halves all axes");
    if has_norms && !l.has("encoder.blocks.0.block.3.weight") {
        l.assume("the norms without parameters are instance norms");
    }
    let window = vec![2; l.axes];
    let mut skips = Vec::new();
    for level in 0..l.count(|i| format!("encoder.blocks.{i}.")) {
        let name = format!("encoder.blocks.{level}");
        let skip = block(&mut l, &format!("{name}.block"), x, has_norms)?;
        skips.push(skip);
        x = l.pool(&name, skip, &window, true);
    }
    x = block(&mut l, "base.block", x, has_norms)?;
    for (index, skip) in skips.into_iter().rev().enumerate() {
        let sampler = format!("decoder.samplers.{index}");
        x = l.double(&sampler, x, false);
        x = l.conv(&format!("{sampler}.conv"), x, &vec![1; l.axes])?;
        let name = format!("decoder.blocks.{index}.block");
        let both = l.concat(&name, x, skip);
        x = block(&mut l, &name, both, has_norms)?;
    }
    if l.has_any("out_conv.") {
        x = l.conv("out_conv", x, &vec![1; l.axes])?;
    }
    match kwargs.final_activation()? {
        Some(activation) => x = l.activation("final", x, activation),
        None if kwargs.0.is_null() => l.assume("there is no activation after the last layer"),
        None => {}
    }
    l.finish(x, |_| false)
}

fn block(l: &mut Layers<'_>, name: &str, mut x: Features, has_norms: bool) -> Result<Features, ImportError> {
    let convolutions = if has_norms { [1, 4] } else { [0, 2] };
    for index in convolutions {
        if has_norms {
            let norm = format!("{name}.{}", index - 1);
            let is_grouped = l.has(&format!("{norm}.weight")) && !l.has(&format!("{norm}.running_mean"));
            x = if is_grouped { l.group_norm(&norm, x, x.channels.min(MAX_GROUPS))? } else { l.norm(&norm, x)? };
        }
        let conv = format!("{name}.{index}");
        x = l.conv(&conv, x, &vec![1; l.axes])?;
        x = l.activation(&conv, x, Activation::Relu);
    }
    Ok(x)
}
