//! MONAI's `SegResNet`: residual blocks with norms before the convolutions, skips that are added.

use super::Kwargs;
use crate::error::ImportError;
use crate::layers::{Features, Layers};
use crate::tensors::StoredTensor;
use cytoscope_graph::{Activation, ConvTransposeAttrs, Graph};
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// MONAI's default of the number of groups of a group norm.
const GROUPS: usize = 8;

struct SegResNet<'a> {
    layers: Layers<'a>,
    groups: usize,
    /// Whether norms with parameters and without running statistics are instance norms, not group norms.
    is_instance: bool,
}

pub(super) fn build(
    tensors: &BTreeMap<String, &StoredTensor>,
    kwargs: &Kwargs<'_>,
) -> Result<(Graph, Vec<String>), ImportError> {
    kwargs.accept("act", &["relu"])?;
    kwargs.accept("norm", &["group", "batch", "instance"])?;
    kwargs.accept("upsample_mode", &["nontrainable", "deconv"])?;
    let (layers, x) = Layers::start(tensors, "segresnet", "convInit.conv.weight")?;
    let given = kwargs.get("norm").and_then(|norm| norm.pointer("/1/num_groups")).or_else(|| kwargs.get("num_groups"));
    let groups = match given {
        None | Some(Json::Null) => None,
        Some(value) => {
            Some(value.as_u64().and_then(|n| usize::try_from(n).ok()).ok_or_else(|| ImportError::InvalidArgument {
                argument: "num_groups".to_owned(),
                value: value.to_string(),
                expected: "a number of groups of the norms",
            })?)
        }
    };
    let stated_norm = kwargs.stated_name("norm").unwrap_or_default();
    let expected_norm = match (stated_norm.as_str(), layers.has("conv_final.0.running_mean")) {
        ("batch", false) => Some("group or instance, because the file contains no running statistics of batch norms"),
        ("group", true) => Some("batch, because the file contains running statistics of batch norms"),
        _ => None,
    };
    if let Some(expected) = expected_norm {
        return Err(ImportError::InvalidArgument { argument: "norm".to_owned(), value: stated_norm, expected });
    }
    let is_instance = stated_norm == "instance";
    let mut net = SegResNet { layers, groups: groups.unwrap_or(GROUPS), is_instance };
    net.layers.epsilon = kwargs.setting("norm", "eps")?.unwrap_or(net.layers.epsilon);
    net.layers.assume("strides are 2, and the activation is ReLU, MONAI's default");
    if groups.is_none() && !is_instance && !net.layers.has("conv_final.0.running_mean") {
        net.layers.assume("the norms have 8 groups, MONAI's default");
    }
    let ones = vec![1; net.layers.axes];
    let mut x = net.layers.conv("convInit.conv", x, &ones)?;
    let mut skips = Vec::new();
    for level in 0..net.layers.count(|i| format!("down_layers.{i}.")) {
        let name = format!("down_layers.{level}");
        if level > 0 {
            x = net.layers.conv(&format!("{name}.0.conv"), x, &vec![2; net.layers.axes])?;
        }
        // The first entry of the layer is the strided convolution, or nothing.
        for index in 0..net.layers.count(|i| format!("{name}.{}.", i + 1)) {
            x = net.block(&format!("{name}.{}", index + 1), x)?;
        }
        skips.push(x);
    }
    skips.pop();
    for (index, skip) in skips.into_iter().rev().enumerate() {
        let name = format!("up_samples.{index}");
        x = net.layers.conv(&format!("{name}.0.conv"), x, &ones)?;
        x = match net.layers.has_any(&format!("{name}.1.")) {
            true => net.layers.transposed(&format!("{name}.1.deconv"), x, ConvTransposeAttrs::upsample)?,
            false => net.layers.upsample_twofold(&name, x, false),
        };
        x = net.layers.add(&format!("{name}.0.conv.weight"), x, skip)?;
        for block in 0..net.layers.count(|i| format!("up_layers.{index}.{i}.")) {
            x = net.block(&format!("up_layers.{index}.{block}"), x)?;
        }
    }
    x = net.norm_and_activation("conv_final.0", x)?;
    let y = net.layers.conv("conv_final.2.conv", x, &ones)?;
    net.layers.finish(y, |_| false)
}

impl SegResNet<'_> {
    fn norm_and_activation(&mut self, name: &str, x: Features) -> Result<Features, ImportError> {
        let is_grouped = !self.is_instance
            && self.layers.has(&format!("{name}.weight"))
            && !self.layers.has(&format!("{name}.running_mean"));
        let y = if is_grouped { self.layers.group_norm(name, x, self.groups)? } else { self.layers.norm(name, x)? };
        Ok(self.layers.activation(name, y, Activation::Relu))
    }

    fn block(&mut self, name: &str, x: Features) -> Result<Features, ImportError> {
        let mut y = x;
        for index in 1..=2 {
            y = self.norm_and_activation(&format!("{name}.norm{index}"), y)?;
            y = self.layers.conv(&format!("{name}.conv{index}.conv"), y, &vec![1; self.layers.axes])?;
        }
        self.layers.add(&format!("{name}.conv2.conv.weight"), y, x)
    }
}
