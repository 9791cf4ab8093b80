//! MONAI's `DynUNet`, which is also the backbone of CytoDL's models.

use super::{Kwargs, LEAKY};
use crate::error::ImportError;
use crate::layers::{Features, Layers};
use crate::tensors::StoredTensor;
use cytoscope_graph::{Activation, ConvTransposeAttrs, Graph};
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// Tensors that are stored twice, and heads that only training uses.
const LEFT_OUT: [&str; 3] = ["skip_layers.", "deep_supervision_heads.", "heads."];

pub(super) fn build(
    tensors: &BTreeMap<String, &StoredTensor>,
    kwargs: &Kwargs<'_>,
) -> Result<(Graph, Vec<String>), ImportError> {
    kwargs.accept("norm_name", &["instance", "batch"])?;
    let stated = kwargs.leaky_relu("act_name")?;
    let (mut l, mut x) = Layers::start(tensors, "dynunet", "input_block.conv1.conv.weight")?;
    l.epsilon = kwargs.setting("norm_name", "eps")?.unwrap_or(l.epsilon);
    match kwargs.get("strides").and_then(|strides| strides.get(0)) {
        Some(first) if !is_one(first) => {
            return Err(ImportError::UnsupportedArgument {
                argument: "strides[0]".to_owned(),
                value: first.to_string(),
                supported: "1".to_owned(),
            });
        }
        Some(_) => {}
        None => l.assume("the first block has stride 1"),
    }
    if stated.is_none() {
        l.assume("the activation is LeakyReLU with slope 0.01, MONAI's default");
    }
    if kwargs.get("norm_name").is_none() {
        l.assume_instance_norms();
    }
    let activation = stated.unwrap_or(LEAKY);
    let downs = l.count(|i| format!("downsamples.{i}."));
    let is_residual = l.has("input_block.conv3.conv.weight");
    let names = std::iter::once("input_block".to_owned())
        .chain((0..downs).map(|i| format!("downsamples.{i}")))
        .chain(["bottleneck".to_owned()]);
    let mut skips = Vec::new();
    for (level, name) in names.enumerate() {
        // The transposed convolution that leads back to a level has the level's stride as its kernel size.
        let strides = match level {
            0 => vec![1; l.axes],
            _ => l.kernel(&format!("upsamples.{}.transp_conv.conv", downs + 1 - level))?.to_vec(),
        };
        x = block(&mut l, &name, x, &strides, (is_residual, activation))?;
        skips.push(x);
    }
    skips.pop();
    let unit = vec![1; l.axes];
    for (index, skip) in skips.into_iter().rev().enumerate() {
        let name = format!("upsamples.{index}");
        x = l.transposed(&format!("{name}.transp_conv.conv"), x, ConvTransposeAttrs::upsample)?;
        let both = l.concat(&name, x, skip);
        x = block(&mut l, &format!("{name}.conv_block"), both, &unit, (false, activation))?;
    }
    let y = l.conv("output_block.conv.conv", x, &unit)?;
    l.finish(y, |name| LEFT_OUT.iter().any(|prefix| name.starts_with(prefix)))
}

/// Whether a stride is 1 along all axes.
fn is_one(stride: &Json) -> bool {
    match stride.as_array() {
        Some(lengths) => lengths.iter().all(|n| n.as_u64() == Some(1)),
        None => stride.as_u64() == Some(1),
    }
}

fn block(
    l: &mut Layers<'_>,
    name: &str,
    x: Features,
    strides: &[usize],
    (is_residual, activation): (bool, Activation),
) -> Result<Features, ImportError> {
    let mut y = l.conv_padded_by_stride(&format!("{name}.conv1.conv"), x, strides)?;
    y = l.norm(&format!("{name}.norm1"), y)?;
    y = l.activation(&format!("{name}.conv1"), y, activation);
    y = l.conv(&format!("{name}.conv2.conv"), y, &vec![1; l.axes])?;
    y = l.norm(&format!("{name}.norm2"), y)?;
    if is_residual {
        let mut residual = x;
        if l.has_any(&format!("{name}.conv3.")) {
            residual = l.conv_padded_by_stride(&format!("{name}.conv3.conv"), x, strides)?;
            residual = l.norm(&format!("{name}.norm3"), residual)?;
        }
        y = l.add(&format!("{name}.conv2.conv.weight"), y, residual)?;
    }
    Ok(l.activation(name, y, activation))
}
