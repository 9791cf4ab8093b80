//! MONAI's `UNet`: strided convolutions or residual units down, transposed convolutions up.

use super::Kwargs;
use crate::error::ImportError;
use crate::layers::{Features, Layers};
use crate::tensors::StoredTensor;
use cytoscope_graph::{Activation, ConvTransposeAttrs, Graph, Padding};
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// Maximum number of levels.
const MAX_LEVELS: usize = 16;

struct UNet<'l, 'a> {
    layers: Layers<'a>,
    kwargs: &'l Kwargs<'l>,
    /// Whether the activations are PReLU.
    has_slopes: bool,
}

pub(super) fn build(
    tensors: &BTreeMap<String, &StoredTensor>,
    kwargs: &Kwargs<'_>,
) -> Result<(Graph, Vec<String>), ImportError> {
    kwargs.accept("act", &["prelu", "relu"])?;
    kwargs.accept("norm", &["instance", "batch"])?;
    kwargs.accept("adn_ordering", &["nda"])?;
    let residual = "model.0.conv.unit0.conv.weight";
    let first = if tensors.contains_key(residual) { residual } else { "model.0.conv.weight" };
    let (layers, x) = Layers::start(tensors, "monai-unet", first)?;
    let has_slopes = tensors.keys().any(|name| name.ends_with(".adn.A.weight"));
    if let Some(act) = kwargs.stated_name("act").filter(|act| (act == "prelu") != has_slopes) {
        let expected = if has_slopes {
            "prelu, because the file contains PReLU weights"
        } else {
            "relu, because the file contains no PReLU weights"
        };
        return Err(ImportError::InvalidArgument { argument: "act".to_owned(), value: act, expected });
    }
    let mut net = UNet { layers, kwargs, has_slopes };
    if !has_slopes && kwargs.get("act").is_none() {
        net.layers.assume("the activations without parameters are ReLU");
    }
    net.layers.epsilon = kwargs.setting("norm", "eps")?.unwrap_or(net.layers.epsilon);
    if kwargs.get("norm").is_none() {
        net.layers.assume_instance_norms();
    }
    let y = net.level("model", x, 0)?;
    net.layers.finish(y, |_| false)
}

impl UNet<'_, '_> {
    /// Builds a level and those below it.
    fn level(&mut self, name: &str, x: Features, level: usize) -> Result<Features, ImportError> {
        let inner = format!("{name}.1.submodule");
        if !self.layers.has_any(&format!("{inner}.")) {
            return self.down(name, x, &vec![1; self.layers.axes]);
        }
        if level >= MAX_LEVELS {
            return Err(self.layers.bad(&inner, format!("is too deep: expected at most {MAX_LEVELS} levels")));
        }
        let strides = self.strides(&format!("{name}.0"), level)?;
        let down = self.down(&format!("{name}.0"), x, &strides)?;
        let below = self.level(&inner, down, level + 1)?;
        let both = self.layers.concat(name, down, below);
        self.up(&format!("{name}.2"), both, &strides, level == 0)
    }

    /// Returns the strides of a level: those given, or else 1 for a residual unit without a strided convolution in its
    /// residual path, and 2 for others.
    fn strides(&mut self, name: &str, level: usize) -> Result<Vec<usize>, ImportError> {
        let axes = self.layers.axes;
        if let Some(given) = self.kwargs.get("strides") {
            let given_stride = given.get(level).unwrap_or(&Json::Null);
            let length = |value: &Json| value.as_u64().filter(|n| (1..=8).contains(n)).map(|n| n as usize);
            let lengths = match given_stride.as_array() {
                Some(list) => list.iter().map(length).collect::<Option<Vec<_>>>(),
                None => length(given_stride).map(|n| vec![n; axes]),
            };
            return lengths.filter(|lengths| lengths.len() == axes).ok_or_else(|| ImportError::InvalidArgument {
                argument: "strides".to_owned(),
                value: given.to_string(),
                expected: "a stride for each level",
            });
        }
        // A residual unit convolves its input to add it: with the kernel of the unit if it has a stride, with a kernel
        // of one voxel if only its channels change.
        let is_residual = self.layers.has(&format!("{name}.conv.unit0.conv.weight"));
        let has_stride = match self.layers.has(&format!("{name}.residual.weight")) {
            true => self.layers.kernel(&format!("{name}.residual"))?.iter().any(|n| *n > 1),
            false => !is_residual,
        };
        if has_stride {
            self.layers.assume("strides are 2");
        }
        Ok(vec![if has_stride { 2 } else { 1 }; axes])
    }

    fn down(&mut self, name: &str, x: Features, strides: &[usize]) -> Result<Features, ImportError> {
        if self.layers.has(&format!("{name}.conv.unit0.conv.weight")) {
            return self.residual_unit(name, x, strides, false);
        }
        let y = self.layers.conv(&format!("{name}.conv"), x, strides)?;
        self.norm_and_activation(name, y)
    }

    fn up(&mut self, name: &str, x: Features, strides: &[usize], is_top: bool) -> Result<Features, ImportError> {
        let with_unit = self.layers.has(&format!("{name}.0.conv.weight"));
        let conv = if with_unit { format!("{name}.0") } else { name.to_owned() };
        let y = self.layers.transposed(&format!("{conv}.conv"), x, |kernel| ConvTransposeAttrs {
            kernel: kernel.to_vec(),
            strides: strides.to_vec(),
            padding: Padding::symmetric(kernel.iter().map(|n| (n - 1) / 2).collect()),
            output_padding: strides.iter().map(|n| n - 1).collect(),
            ..ConvTransposeAttrs::upsample(kernel)
        })?;
        if is_top && !with_unit {
            return Ok(y);
        }
        let y = self.norm_and_activation(&conv, y)?;
        if with_unit { self.residual_unit(&format!("{name}.1"), y, &vec![1; self.layers.axes], is_top) } else { Ok(y) }
    }

    /// Builds a residual unit; with `ends_bare`, its last convolution has no norm and activation.
    fn residual_unit(
        &mut self,
        name: &str,
        x: Features,
        strides: &[usize],
        ends_bare: bool,
    ) -> Result<Features, ImportError> {
        let units = self.layers.count(|i| format!("{name}.conv.unit{i}."));
        let mut y = x;
        for unit in 0..units {
            let ones = vec![1; self.layers.axes];
            let unit_name = format!("{name}.conv.unit{unit}");
            y = self.layers.conv(&format!("{unit_name}.conv"), y, if unit == 0 { strides } else { &ones })?;
            if !(ends_bare && unit + 1 == units) {
                y = self.norm_and_activation(&unit_name, y)?;
            }
        }
        let residual = format!("{name}.residual");
        let x =
            if self.layers.has_any(&format!("{residual}.")) { self.layers.conv(&residual, x, strides)? } else { x };
        self.layers.add(&format!("{name}.conv.unit0.conv.weight"), y, x)
    }

    fn norm_and_activation(&mut self, name: &str, x: Features) -> Result<Features, ImportError> {
        let y = self.layers.norm(&format!("{name}.adn.N"), x)?;
        if self.has_slopes {
            return self.layers.prelu(&format!("{name}.adn.A"), y);
        }
        Ok(self.layers.activation(&format!("{name}.adn.A"), y, Activation::Relu))
    }
}
