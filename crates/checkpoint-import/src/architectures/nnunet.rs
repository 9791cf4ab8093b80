//! nnU-Net (version 2): plain and residual encoders, and what its plans say about images.

use super::LEAKY;
use crate::error::ImportError;
use crate::layers::{Features, Layers};
use crate::tensors::StoredTensor;
use cytoscope_graph::{ConvTransposeAttrs, Graph};
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// First weight of the plain encoder.
pub(super) const PLAIN: &str = "encoder.stages.0.0.convs.0.conv.weight";
/// First weight of the residual encoder.
pub(super) const RESIDUAL: &str = "encoder.stem.convs.0.conv.weight";

pub(super) fn build(tensors: &BTreeMap<String, &StoredTensor>) -> Result<(Graph, Vec<String>), ImportError> {
    let is_residual = tensors.contains_key(RESIDUAL);
    let (mut l, mut x) = Layers::start(tensors, "nnunet", if is_residual { RESIDUAL } else { PLAIN })?;
    l.assume("the activation is LeakyReLU with slope 0.01, and all norms are instance norms or batch norms");
    let stages = l.count(|i| format!("encoder.stages.{i}."));
    let unit = vec![1; l.axes];
    if is_residual {
        x = stack(&mut l, "encoder.stem", x, &unit)?;
    }
    let mut skips = Vec::new();
    for stage in 0..stages {
        // The transposed convolution that comes back to a stage has the stage's stride as kernel.
        let strides = match stage {
            0 => vec![1; l.axes],
            _ => l.kernel(&format!("decoder.transpconvs.{}", stages - 1 - stage))?.to_vec(),
        };
        let name = format!("encoder.stages.{stage}");
        x = match is_residual {
            true => residual_stage(&mut l, &name, x, &strides)?,
            false => stack(&mut l, &format!("{name}.0"), x, &strides)?,
        };
        skips.push(x);
    }
    skips.pop();
    for (index, skip) in skips.into_iter().rev().enumerate() {
        x = l.transposed(&format!("decoder.transpconvs.{index}"), x, ConvTransposeAttrs::upsample)?;
        let name = format!("decoder.stages.{index}");
        let both = l.concat(&name, x, skip);
        x = stack(&mut l, &name, both, &unit)?;
    }
    // The heads of coarser stages are for training only.
    let head = format!("decoder.seg_layers.{}", stages.saturating_sub(2));
    let y = l.conv(&head, x, &vec![1; l.axes])?;
    l.finish(y, |name| {
        name.contains(".all_modules.")
            || name.starts_with("decoder.encoder.")
            || name.starts_with("decoder.seg_layers.")
    })
}

/// Convolutions, each with a norm and an activation; the first one has the strides.
fn stack(l: &mut Layers<'_>, name: &str, mut x: Features, strides: &[usize]) -> Result<Features, ImportError> {
    let count = l.count(|i| format!("{name}.convs.{i}."));
    if count == 0 {
        return Err(l.bad(&format!("{name}.convs.0.conv.weight"), "is missing"));
    }
    for index in 0..count {
        let name = format!("{name}.convs.{index}");
        let ones = vec![1; l.axes];
        x = convolution(l, &name, x, if index == 0 { strides } else { &ones })?;
        x = l.activation(&name, x, LEAKY);
    }
    Ok(x)
}

fn convolution(l: &mut Layers<'_>, name: &str, x: Features, strides: &[usize]) -> Result<Features, ImportError> {
    let x = l.conv(&format!("{name}.conv"), x, strides)?;
    l.norm(&format!("{name}.norm"), x)
}

/// Residual blocks; the first one has the strides, with average pooling in its skip connection.
fn residual_stage(l: &mut Layers<'_>, name: &str, mut x: Features, strides: &[usize]) -> Result<Features, ImportError> {
    for block in 0..l.count(|i| format!("{name}.blocks.{i}.")) {
        let name = format!("{name}.blocks.{block}");
        let ones = vec![1; l.axes];
        let strides = if block == 0 { strides } else { ones.as_slice() };
        let mut y = convolution(l, &format!("{name}.conv1"), x, strides)?;
        y = l.activation(&format!("{name}.conv1"), y, LEAKY);
        y = convolution(l, &format!("{name}.conv2"), y, &ones)?;
        let has_stride = strides.iter().any(|n| *n > 1);
        let mut skip = if has_stride { l.pool(&name, x, strides, false) } else { x };
        let projection = format!("{name}.skip.{}", usize::from(has_stride));
        if l.has_any(&format!("{projection}.")) {
            skip = convolution(l, &projection, skip, &ones)?;
        }
        y = l.add(&format!("{name}.conv2.conv.weight"), y, skip)?;
        x = l.activation(&name, y, LEAKY);
    }
    Ok(x)
}

/// How nnU-Net normalizes an input channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Normalization {
    /// To mean 0 and standard deviation 1, over the image.
    ZScore,
    /// To the range 0 to 1, over the image.
    ZeroToOne,
    /// Not at all.
    None,
}

/// Settings about images in the plans of nnU-Net.
#[derive(Debug, Clone, PartialEq)]
pub struct Plans {
    /// Normalization of all input channels.
    pub normalization: Normalization,
    /// Distance between voxels along (Z,) Y and X, in the unit of the training data.
    pub spacing: Vec<f64>,
}

impl Plans {
    /// Reads the plans of a configuration, such as `3d_fullres`.
    ///
    /// # Errors
    /// [`ImportError::Plans`] if the configuration is not in the plans, or its images are prepared in a way that is
    /// not supported.
    pub fn read(plans: &Json, configuration: &str) -> Result<Self, ImportError> {
        let refused = |problem: String| ImportError::Plans { problem };
        let all = plans.get("configurations").and_then(Json::as_object);
        let all = all.ok_or_else(|| {
            refused("there are no configurations; give the plans.json of nnU-Net version 2".to_owned())
        })?;
        let mut chosen = all.get(configuration).ok_or_else(|| {
            let known: Vec<&str> = all.keys().map(String::as_str).collect();
            refused(format!("there is no configuration \"{configuration}\"; there are {}", known.join(", ")))
        })?;
        // A configuration may inherit from another one.
        let mut sources = vec![chosen];
        while let Some(name) = chosen.get("inherits_from").filter(|name| !name.is_null()) {
            let parent = name.as_str().and_then(|name| all.get(name));
            let parent = parent.ok_or_else(|| {
                refused(format!("a configuration inherits from {name}, which is not in the plans: give all of them"))
            })?;
            if sources.len() > all.len() {
                return Err(refused(format!("the configuration \"{configuration}\" inherits from itself")));
            }
            sources.push(parent);
            chosen = parent;
        }
        let get = |key: &str| sources.iter().find_map(|source| source.get(key));
        if let Some(order) = plans.get("transpose_forward").and_then(Json::as_array)
            && order.iter().enumerate().any(|(i, axis)| axis.as_u64() != Some(i as u64))
        {
            return Err(refused(format!("axes are reordered ({order:?}), which is not supported")));
        }
        let schemes = get("normalization_schemes").and_then(Json::as_array).cloned().unwrap_or_default();
        let mut normalizations = Vec::new();
        for scheme in &schemes {
            normalizations.push(match scheme.as_str().unwrap_or_default() {
                "ZScoreNormalization" => Normalization::ZScore,
                "RescaleTo01Normalization" => Normalization::ZeroToOne,
                "NoNormalization" => Normalization::None,
                "" => return Err(refused(format!("the normalization {scheme} is not a name"))),
                other => return Err(refused(format!("the normalization {other} is not supported"))),
            });
        }
        let first = normalizations.first().copied();
        let normalization = first.filter(|first| normalizations.iter().all(|n| n == first)).ok_or_else(|| {
            refused(format!("the channels are normalized as {schemes:?}: expected one way for all channels"))
        })?;
        let is_true = |stated: &Json| stated.as_bool() == Some(true);
        let is_masked = |stated: &Json| is_true(stated) || stated.as_array().is_some_and(|all| all.iter().any(is_true));
        if normalization == Normalization::ZScore && get("use_mask_for_norm").is_some_and(is_masked) {
            return Err(refused(
                "mean and standard deviation are those of the voxels other than 0 (use_mask_for_norm), which is not supported"
                    .to_owned(),
            ));
        }
        let spacing = match get("spacing").filter(|stated| !stated.is_null()) {
            None => Vec::new(),
            Some(stated) => {
                let numbers: Option<Vec<f64>> =
                    stated.as_array().and_then(|list| list.iter().map(Json::as_f64).collect());
                numbers
                    .ok_or_else(|| refused(format!("the spacing is {stated}: expected numbers along (Z,) Y and X")))?
            }
        };
        Ok(Self { normalization, spacing })
    }
}
