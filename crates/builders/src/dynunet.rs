//! The dynamic U-Net with instance normalization that CytoDL's segmentation and label-free defaults use.

use super::weights::{NetworkBuilder, Weights};
use cytoscope_graph::{BinaryOp, ConvAttrs, Graph, GraphError, Op, Padding, Result, ValueId};

/// Description of a dynamic U-Net. The default is CytoDL's: 1 input and 1 output channel, filters 16-32-64, strides
/// 1-2-2, kernels 3, residual encoder, plain decoder, instance norm, LeakyReLU 0.01; tile lengths must be multiples of
/// 4.
#[derive(Debug, Clone, PartialEq)]
pub struct DynUNet {
    /// Number of channels of the input image.
    pub in_channels: usize,
    /// Number of output maps, such as probabilities.
    pub out_channels: usize,
    /// Number of spatial axes, 2 or 3.
    pub spatial_axes: usize,
    /// Number of channels at each level of the encoder, finest level first.
    pub filters: Vec<usize>,
    /// Stride into each level, the same along all axes; the first one is 1.
    pub strides: Vec<usize>,
    /// Odd kernel length, on all axes.
    pub kernel: usize,
    /// Whether the encoder uses residual blocks.
    pub residual: bool,
    /// Factor of negative values in the LeakyReLU activations, such as 0.01.
    pub slope: f32,
    /// ε that the instance norms add to the variance.
    pub epsilon: f32,
}

impl Default for DynUNet {
    fn default() -> Self {
        Self {
            in_channels: 1,
            out_channels: 1,
            spatial_axes: 3,
            filters: vec![16, 32, 64],
            strides: vec![1, 2, 2],
            kernel: 3,
            residual: true,
            slope: 0.01,
            epsilon: 1e-5,
        }
    }
}

/// Builds a [`DynUNet`]: input `x` `[n, in, d, h, w]`, output `y` of the same lengths, without a final activation.
///
/// Parameter names follow the PyTorch module: `input_block`, `downsamples.I`, `bottleneck`, `upsamples.I`,
/// `output_block`; within a block `conv1.conv.weight`, `norm1.weight`, `norm1.bias`, … (`conv3`, `norm3` on the
/// residual path if channels or stride change), within an upsampling block `transp_conv.conv.weight` and
/// `conv_block.…`.
///
/// # Errors
/// If the description is inconsistent, or a named weight is missing or has a different shape.
pub fn dynunet(config: &DynUNet, weights: &Weights<'_>) -> Result<Graph> {
    let levels = config.filters.len();
    let is_valid = levels >= 2
        && config.strides.len() == levels
        && config.kernel % 2 == 1
        && config.strides.iter().chain(&config.filters).all(|&n| n > 0)
        && matches!(config.spatial_axes, 2 | 3);
    if !is_valid {
        let got = format!(
            "filters {:?}, strides {:?}, a kernel of {} and {} spatial axes",
            config.filters, config.strides, config.kernel, config.spatial_axes
        );
        let expected =
            "at least two levels, a number of filters and a stride above 0 for each, an odd kernel, 2 or 3 axes";
        return Err(GraphError::misused("U-Net", got, expected));
    }
    let (builder, x) = NetworkBuilder::new("dynunet", weights, config.in_channels, config.spatial_axes, config.slope);
    let mut net = Net { builder, config };
    let mut skips: Vec<(ValueId, usize)> = Vec::new();
    let mut features = (x, config.in_channels);
    for (level, (&filters, &stride)) in config.filters.iter().zip(&config.strides).enumerate() {
        let name = match level {
            0 => "input_block".to_owned(),
            l if l + 1 == levels => "bottleneck".to_owned(),
            l => format!("downsamples.{}", l - 1),
        };
        let y = net.block(&name, features.0, (features.1, filters), stride, config.residual)?;
        features = (y, filters);
        skips.push(features);
    }
    skips.pop();
    for (index, (skip, filters)) in skips.into_iter().rev().enumerate() {
        let stride = config.strides.iter().rev().nth(index).copied().unwrap_or(1);
        let name = format!("upsamples.{index}");
        let factors = vec![stride; config.spatial_axes];
        let up =
            net.builder.upsample(&format!("{name}.transp_conv.conv"), features.0, (features.1, filters), &factors)?;
        let both = net.builder.graph.push(format!("{name}.concat"), Op::concat(1), &[Some(up), Some(skip)]);
        let y = net.block(&format!("{name}.conv_block"), both, (2 * filters, filters), 1, false)?;
        features = (y, filters);
    }
    let head = ConvAttrs::same(&vec![1; config.spatial_axes]);
    let y = net.builder.conv("output_block.conv.conv", features.0, (features.1, config.out_channels), head, true)?;
    net.builder.finish(y)
}

struct Net<'a> {
    builder: NetworkBuilder<'a>,
    config: &'a DynUNet,
}

impl Net<'_> {
    fn conv(
        &mut self,
        name: &str,
        x: ValueId,
        channels: (usize, usize),
        kernel: usize,
        stride: usize,
    ) -> Result<ValueId> {
        let axes = self.config.spatial_axes;
        let attrs = ConvAttrs::same(&vec![kernel; axes])
            .with_strides(&vec![stride; axes])
            .with_padding(Padding::symmetric(vec![kernel / 2; axes]));
        self.builder.conv(&format!("{name}.conv"), x, channels, attrs, false)
    }

    fn norm(&mut self, name: &str, x: ValueId, channels: usize) -> Result<ValueId> {
        let scale = self.builder.constant(&format!("{name}.weight"), &[channels], 1.0)?;
        let bias = self.builder.constant(&format!("{name}.bias"), &[channels], 0.0)?;
        let op = Op::InstanceNormalization { epsilon: self.config.epsilon };
        Ok(self.builder.graph.push(format!("{name}.out"), op, &[Some(x), Some(scale), Some(bias)]))
    }

    fn block(
        &mut self,
        name: &str,
        x: ValueId,
        (inputs, outputs): (usize, usize),
        stride: usize,
        residual: bool,
    ) -> Result<ValueId> {
        let kernel = self.config.kernel;
        let a = self.conv(&format!("{name}.conv1"), x, (inputs, outputs), kernel, stride)?;
        let a = self.norm(&format!("{name}.norm1"), a, outputs)?;
        let a = self.builder.leaky(&format!("{name}.lrelu1"), a);
        let b = self.conv(&format!("{name}.conv2"), a, (outputs, outputs), kernel, 1)?;
        let mut b = self.norm(&format!("{name}.norm2"), b, outputs)?;
        if residual {
            let mut shortcut = x;
            if inputs != outputs || stride != 1 {
                shortcut = self.conv(&format!("{name}.conv3"), x, (inputs, outputs), 1, stride)?;
                shortcut = self.norm(&format!("{name}.norm3"), shortcut, outputs)?;
            }
            b = self.builder.graph.push(format!("{name}.add"), Op::Binary(BinaryOp::Add), &[Some(b), Some(shortcut)]);
        }
        Ok(self.builder.leaky(&format!("{name}.lrelu2"), b))
    }
}
