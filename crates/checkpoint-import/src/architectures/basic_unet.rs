//! MONAI's `BasicUNet`: five levels with max pools.

use super::Kwargs;
use crate::error::ImportError;
use crate::layers::{Features, Layers};
use crate::tensors::StoredTensor;
use cytoscope_graph::{Activation, ConvTransposeAttrs, Graph};
use std::collections::BTreeMap;

/// Number of levels below the finest.
const DEPTH: usize = 4;
/// MONAI's default of the activation.
const ACTIVATION: Activation = Activation::LeakyRelu { alpha: 0.1 };

pub(super) fn build(
    tensors: &BTreeMap<String, &StoredTensor>,
    kwargs: &Kwargs<'_>,
) -> Result<(Graph, Vec<String>), ImportError> {
    let stated = kwargs.leaky_relu("act")?;
    kwargs.accept("norm", &["instance", "batch"])?;
    let (mut l, x) = Layers::start(tensors, "basic-unet", "conv_0.conv_0.conv.weight")?;
    l.epsilon = kwargs.setting("norm", "eps")?.unwrap_or(l.epsilon);
    if stated.is_none() {
        l.assume("the activation is LeakyReLU with slope 0.1, MONAI's default");
    }
    if kwargs.get("norm").is_none() {
        l.assume_instance_norms();
    }
    let activation = stated.unwrap_or(ACTIVATION);
    let window = vec![2; l.axes];
    let mut x = two_convolutions(&mut l, "conv_0", x, activation)?;
    let mut skips = Vec::new();
    for level in 1..=DEPTH {
        skips.push(x);
        let name = format!("down_{level}");
        x = l.pool(&name, x, &window, true);
        x = two_convolutions(&mut l, &format!("{name}.convs"), x, activation)?;
    }
    for (level, skip) in skips.into_iter().enumerate().rev() {
        let name = format!("upcat_{}", level + 1);
        let up = format!("{name}.upsample");
        if l.has_any(&format!("{up}.deconv.")) {
            x = l.transposed(&format!("{up}.deconv"), x, ConvTransposeAttrs::upsample)?;
        } else {
            let pre = format!("{up}.preconv");
            x = if l.has_any(&format!("{pre}.")) { l.conv(&pre, x, &vec![1; l.axes])? } else { x };
            x = l.upsample_twofold(&up, x, true);
        }
        let both = l.concat(&name, skip, x);
        x = two_convolutions(&mut l, &format!("{name}.convs"), both, activation)?;
    }
    let y = l.conv("final_conv", x, &vec![1; l.axes])?;
    l.finish(y, |_| false)
}

fn two_convolutions(
    l: &mut Layers<'_>,
    name: &str,
    mut x: Features,
    activation: Activation,
) -> Result<Features, ImportError> {
    for index in 0..2 {
        let name = format!("{name}.conv_{index}");
        x = l.conv(&format!("{name}.conv"), x, &vec![1; l.axes])?;
        x = l.norm(&format!("{name}.adn.N"), x)?;
        x = l.activation(&name, x, activation);
    }
    Ok(x)
}
