//! A 3-D U-Net with static normalization, so that cropped tiles equal the untiled result.

use super::weights::{NetworkBuilder, Weights};
use cytoscope_graph::{Activation, ConvAttrs, Graph, GraphError, Op, ResizeAttrs, Result, Tensor, ValueId};

/// How the decoder enlarges the maps of one level to the next finer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upsampling {
    /// Transposed convolution with stride = kernel.
    Transposed,
    /// A 1×1×1 convolution, then nearest-neighbor resizing.
    Nearest,
}

/// Description of a 3-D U-Net with batch normalization.
#[derive(Debug, Clone, PartialEq)]
pub struct UNet3d {
    /// Number of channels of the input image.
    pub in_channels: usize,
    /// Number of output maps, such as probabilities.
    pub out_channels: usize,
    /// Number of channels at each level of the encoder, finest level first.
    pub filters: Vec<usize>,
    /// Stride into each level after the first, in z, y, x: one entry fewer than `filters`.
    pub strides: Vec<[usize; 3]>,
    /// Odd kernel lengths in z, y, x.
    pub kernel: [usize; 3],
    /// Convolutions in each block, at least 1.
    pub convs_per_block: usize,
    /// How the decoder enlarges the maps of one level to the next finer one.
    pub upsampling: Upsampling,
    /// Negative slope of LeakyReLU.
    pub slope: f32,
    /// ε that the batch norms add to the variance.
    pub epsilon: f32,
    /// Activation after the last convolution; `None` if the network outputs logits.
    pub head: Option<Activation>,
    /// Number of auxiliary outputs for deep supervision, at levels 1, 2, …; there are at most `filters.len() − 2`.
    pub deep_heads: usize,
}

impl Default for UNet3d {
    fn default() -> Self {
        Self {
            in_channels: 1,
            out_channels: 1,
            filters: vec![16, 32, 64],
            strides: vec![[2; 3]; 2],
            kernel: [3; 3],
            convs_per_block: 2,
            upsampling: Upsampling::Transposed,
            slope: 0.01,
            epsilon: 1e-5,
            head: None,
            deep_heads: 0,
        }
    }
}

impl UNet3d {
    /// Checks that the description can be built.
    fn check(&self) -> Result<()> {
        let positive = self.strides.iter().flatten().chain(&self.filters).all(|&n| n > 0);
        let odd = self.kernel.iter().all(|k| k % 2 == 1);
        if self.filters.len() != self.strides.len() + 1 || !positive || !odd || self.convs_per_block == 0 {
            let got = format!(
                "filters {:?}, strides {:?}, a kernel of {:?} and {} convolutions in each block",
                self.filters, self.strides, self.kernel, self.convs_per_block
            );
            let expected = "one stride fewer than filters, all above 0, odd kernel lengths, at least one convolution";
            return Err(GraphError::misused("U-Net", got, expected));
        }
        let max_deep_heads = self.filters.len().saturating_sub(2);
        if self.deep_heads > max_deep_heads {
            let expected = format!("at most {max_deep_heads}");
            return Err(GraphError::misused("deep heads", self.deep_heads.to_string(), expected));
        }
        Ok(())
    }
}

/// Builds a [`UNet3d`]: input `x` `[n, in, d, h, w]`, output `y` of the same lengths.
///
/// Blocks are `encoder.L` and `decoder.L` (L the level, 0 the finest). Parameters: `block.convI.weight`, and
/// `block.normI.weight`, `.bias`, `.running_mean`, `.running_var`; `decoder.L.up.weight`; `head.weight`, `head.bias`,
/// and with deep heads `head.L.weight`, `head.L.bias`: the additional outputs are those of levels 1, 2, …, with the
/// lengths of their level.
///
/// # Errors
/// If the description is inconsistent, or a named weight is missing or has a different shape.
pub fn unet3d(config: &UNet3d, weights: &Weights<'_>) -> Result<Graph> {
    config.check()?;
    let (mut builder, x) = NetworkBuilder::new("unet3d", weights, config.in_channels, 3, config.slope);
    let mut now = (x, config.in_channels);
    let mut levels: Vec<(ValueId, usize)> = Vec::new();
    for (level, &filters) in config.filters.iter().enumerate() {
        let stride = level.checked_sub(1).and_then(|l| config.strides.get(l)).copied().unwrap_or([1; 3]);
        let y = block(&mut builder, config, &format!("encoder.{level}"), now, filters, stride)?;
        now = (y, filters);
        levels.push(now);
    }
    levels.pop();
    let mut deep = Vec::new();
    for (level, (skip, filters)) in levels.into_iter().enumerate().rev() {
        let stride = config.strides.get(level).copied().unwrap_or([1; 3]);
        let name = format!("decoder.{level}");
        let up = match config.upsampling {
            Upsampling::Transposed => builder.upsample(&format!("{name}.up"), now.0, (now.1, filters), &stride)?,
            Upsampling::Nearest => {
                let thin = ConvAttrs::same(&[1, 1, 1]);
                let y = builder.conv(&format!("{name}.up"), now.0, (now.1, filters), thin, false)?;
                let scales: Vec<f32> = [1, 1].into_iter().chain(stride).map(|s| s as f32).collect();
                let scales = builder.graph.add_initializer(format!("{name}.scales"), Tensor::vector(scales));
                let op = Op::resize(ResizeAttrs::nearest());
                builder.graph.push(format!("{name}.resized"), op, &[Some(y), None, Some(scales)])
            }
        };
        let both = builder.graph.push(format!("{name}.concat"), Op::concat(1), &[Some(up), Some(skip)]);
        now = (block(&mut builder, config, &name, (both, 2 * filters), filters, [1; 3])?, filters);
        if (1..=config.deep_heads).contains(&level) {
            deep.push(head(&mut builder, config, &format!("head.{level}"), now)?);
        }
    }
    let y = head(&mut builder, config, "head", now)?;
    let mut graph = builder.finish(y)?;
    graph.outputs.extend(deep.into_iter().rev());
    Ok(graph)
}

fn head(
    builder: &mut NetworkBuilder<'_>,
    config: &UNet3d,
    name: &str,
    (x, channels): (ValueId, usize),
) -> Result<ValueId> {
    let y = builder.conv(name, x, (channels, config.out_channels), ConvAttrs::same(&[1, 1, 1]), true)?;
    Ok(match config.head {
        Some(activation) => builder.graph.push(format!("{name}.activation"), Op::Activation(activation), &[Some(y)]),
        None => y,
    })
}

fn block(
    builder: &mut NetworkBuilder<'_>,
    config: &UNet3d,
    name: &str,
    (mut x, mut channels): (ValueId, usize),
    filters: usize,
    stride: [usize; 3],
) -> Result<ValueId> {
    for index in 1..=config.convs_per_block {
        let stride = if index == 1 { stride } else { [1; 3] };
        let attrs = ConvAttrs::same(&config.kernel).with_strides(&stride);
        let y = builder.conv(&format!("{name}.conv{index}"), x, (channels, filters), attrs, false)?;
        let mut inputs = vec![Some(y)];
        for (part, start) in [("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)] {
            inputs.push(Some(builder.constant(&format!("{name}.norm{index}.{part}"), &[filters], start)?));
        }
        let op = Op::BatchNormalization { epsilon: config.epsilon };
        let y = builder.graph.push(format!("{name}.norm{index}.out"), op, &inputs);
        x = builder.leaky(&format!("{name}.act{index}"), y);
        channels = filters;
    }
    Ok(x)
}
