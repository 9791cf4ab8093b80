//! Import of layers: convolutions, pools, normalizations, activations, quantization.

use super::operators::onnx_type;
use super::{Importer, Pending};
use cytoscope_graph::{
    Activation, ConvAttrs, ConvTransposeAttrs, Dim, ElementType, GraphError, Op, Padding, PoolAttrs, Result, Tensor,
    ValueId,
};

/// Returns the operator of `node`, or `None` if it is not handled here.
pub(super) fn convert(im: &mut Importer<'_>, node: &mut Pending<'_>, wanted: &[&str]) -> Result<Option<Op>> {
    let f = |name: &str, default: f32| node.attributes.float(name, default);
    Ok(Some(match node.op_type {
        "Conv" => Op::Conv(conv(im, node, 1)?),
        "ConvInteger" => Op::ConvInteger(conv(im, node, 1)?),
        "QLinearConv" => Op::QLinearConv(conv(im, node, 3)?),
        "ConvTranspose" => Op::ConvTranspose(conv_transpose(im, node)?),
        "MaxPool" => Op::MaxPool(pool(im, node)?),
        "AveragePool" => Op::AveragePool(pool(im, node)?),
        "GlobalAveragePool" => Op::GlobalAveragePool,
        "GlobalMaxPool" => Op::GlobalMaxPool,
        "BatchNormalization" => batch_norm(node, wanted)?,
        "InstanceNormalization" => Op::InstanceNormalization { epsilon: f("epsilon", 1e-5)? },
        "GroupNormalization" => group_norm(im, node)?,
        "LayerNormalization" => {
            Op::LayerNormalization { axis: node.attributes.int("axis", -1)?, epsilon: f("epsilon", 1e-5)? }
        }
        "LpNormalization" => {
            let p = node.attributes.int("p", 2)?;
            if !matches!(p, 1 | 2) {
                return Err(node.unsupported(format!("p = {p}")));
            }
            Op::LpNormalization { axis: node.attributes.int("axis", -1)?, p }
        }
        "PRelu" => {
            prelu_slope(im, node)?;
            Op::PRelu
        }
        "Clip" => clip(im, node)?,
        "Softmax" | "LogSoftmax" => softmax(im, node)?,
        "QuantizeLinear" => quantize(im, node)?,
        "DequantizeLinear" => dequantize(im, node)?,
        "DynamicQuantizeLinear" => Op::DynamicQuantizeLinear,
        _ => return activation(node),
    }))
}

/// Returns an activation function, or `None` for any other operator.
fn activation(node: &Pending<'_>) -> Result<Option<Op>> {
    let f = |name: &str, default: f32| node.attributes.float(name, default);
    Ok(Some(match node.op_type {
        "Relu" => Op::Activation(Activation::Relu),
        "LeakyRelu" => Op::Activation(Activation::LeakyRelu { alpha: f("alpha", 0.01)? }),
        "Elu" => Op::Activation(Activation::Elu { alpha: f("alpha", 1.0)? }),
        "Celu" => Op::Activation(Activation::Celu { alpha: f("alpha", 1.0)? }),
        "Selu" => {
            let (alpha, gamma) = if node.opset < 6 { (1.6732, 1.0507) } else { (1.673_263_2, 1.050_701) };
            Op::Activation(Activation::Selu { alpha: f("alpha", alpha)?, gamma: f("gamma", gamma)? })
        }
        "Gelu" => match node.attributes.text("approximate", "none")?.as_str() {
            "none" => Op::Activation(Activation::Gelu { tanh: false }),
            "tanh" => Op::Activation(Activation::Gelu { tanh: true }),
            other => return Err(node.unsupported(format!("approximation \"{other}\""))),
        },
        "Swish" => {
            if f("alpha", 1.0)? != 1.0 {
                return Err(node.unsupported("alpha other than 1"));
            }
            Op::Activation(Activation::Silu)
        }
        "Sigmoid" => Op::Activation(Activation::Sigmoid),
        "HardSigmoid" => Op::Activation(Activation::HardSigmoid { alpha: f("alpha", 0.2)?, beta: f("beta", 0.5)? }),
        "HardSwish" => Op::Activation(Activation::HardSwish),
        "Mish" => Op::Activation(Activation::Mish),
        "Tanh" => Op::Activation(Activation::Tanh),
        "Softplus" => Op::Activation(Activation::Softplus),
        "Softsign" => Op::Activation(Activation::Softsign),
        "ThresholdedRelu" => Op::Activation(Activation::ThresholdedRelu { alpha: f("alpha", 1.0)? }),
        _ => return Ok(None),
    }))
}

fn batch_norm(node: &Pending<'_>, wanted: &[&str]) -> Result<Op> {
    node.attributes.int("is_test", 1)?;
    let training = node.attributes.flag("training_mode", false)?;
    let extra = wanted.iter().skip(1).any(|o| !o.is_empty());
    if training || extra {
        return Err(
            node.unsupported("training mode; export the model in evaluation mode (in PyTorch, after model.eval())")
        );
    }
    if !node.attributes.flag("spatial", true)? {
        return Err(node.unsupported("statistics per element (spatial = 0)"));
    }
    Ok(Op::BatchNormalization { epsilon: node.attributes.float("epsilon", 1e-5)? })
}

/// Before opset 11, the bounds were attributes.
fn clip(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<Op> {
    if node.opset < 11 {
        let dtype = im.info(node.input(0)).and_then(|i| i.dtype).unwrap_or(ElementType::F32);
        for (index, name) in [(1, "min"), (2, "max")] {
            if node.attributes.has(name) {
                let bound = Tensor::scalar(node.attributes.float(name, 0.0)?).cast(dtype);
                let id = im.add_constant(&format!("{}_{name}", node.name), bound)?;
                node.set_input(index, Some(id));
            }
        }
    }
    Ok(Op::Clip)
}

pub(super) fn quantize(im: &Importer<'_>, node: &Pending<'_>) -> Result<Op> {
    let requested = node.attributes.int("output_dtype", 0)?;
    node.attributes.int("precision", 0)?;
    let zero = im.info(node.input(2)).and_then(|i| i.dtype);
    // ONNX's default is uint8.
    let to = zero.or(onnx_type(requested)).unwrap_or(ElementType::U8);
    if requested != 0 && onnx_type(requested).is_none() {
        return Err(node.unsupported(format!("output of ONNX type {requested}")));
    }
    Ok(Op::QuantizeLinear {
        axis: node.attributes.int("axis", 1)?,
        block_size: node.attributes.size("block_size", 0)?,
        to,
    })
}

pub(super) fn dequantize(im: &Importer<'_>, node: &Pending<'_>) -> Result<Op> {
    let requested = node.attributes.int("output_dtype", 0)?;
    let scale = im.info(node.input(1)).and_then(|i| i.dtype);
    if requested != 0 && onnx_type(requested) != scale {
        return Err(node.unsupported("an output type other than the scale's"));
    }
    Ok(Op::DequantizeLinear {
        axis: node.attributes.int("axis", 1)?,
        block_size: node.attributes.size("block_size", 0)?,
    })
}

/// Returns the number of spatial axes, from the first source that determines it.
fn spatial_axes(im: &Importer<'_>, node: &Pending<'_>, weight: Option<usize>) -> Result<usize> {
    let a = &node.attributes;
    let from_rank = |r: Option<usize>| r.and_then(|r| r.checked_sub(2));
    from_rank(im.rank(node.input(0)))
        .or(from_rank(weight.and_then(|w| im.rank(node.input(w)))))
        .or(a.sizes("kernel_shape")?.map(|k| k.len()))
        .or(a.sizes("strides")?.map(|k| k.len()))
        .ok_or_else(|| node.unsupported("an undetermined number of spatial axes"))
}

fn padding(node: &Pending<'_>, axes: usize) -> Result<Padding> {
    let pads = node.attributes.ints("pads")?;
    Ok(match node.attributes.text("auto_pad", "NOTSET")?.as_str() {
        "SAME_UPPER" => Padding::SameUpper,
        "SAME_LOWER" => Padding::SameLower,
        "VALID" => Padding::none(axes),
        "NOTSET" | "" => match pads {
            None => Padding::none(axes),
            Some(p) if p.iter().any(|&p| p < 0) => return Err(node.unsupported("negative padding")),
            Some(p) => {
                if p.len() != 2 * axes {
                    return Err(GraphError::malformed(format!(
                        "node \"{}\": {} pads for {axes} spatial axes",
                        node.name,
                        p.len()
                    )));
                }
                let (before, after) = p.split_at(axes);
                let sizes = |v: &[i64]| v.iter().map(|&p| p as usize).collect();
                Padding::Explicit { before: sizes(before), after: sizes(after) }
            }
        },
        other => return Err(node.unsupported(format!("auto_pad \"{other}\""))),
    })
}

pub(super) fn conv(im: &Importer<'_>, node: &Pending<'_>, weight: usize) -> Result<ConvAttrs> {
    let axes = spatial_axes(im, node, Some(weight))?;
    let weight_kernel: Option<Vec<usize>> =
        im.info(node.input(weight)).and_then(|i| i.shape.as_ref()?.iter().skip(2).map(|d| d.fixed()).collect());
    let declared = node.attributes.sizes("kernel_shape")?;
    if let (Some(stored), Some(declared)) = (&weight_kernel, &declared)
        && stored != declared
    {
        let problem = format!("kernel_shape is {declared:?}, but the kernel of the weight is {stored:?}");
        return Err(GraphError::malformed(format!("node \"{}\": {problem}", node.name)));
    }
    let kernel = weight_kernel.or(declared).ok_or_else(|| node.unsupported("an undetermined kernel size"))?;
    let ones = || vec![1; axes];
    Ok(ConvAttrs {
        kernel,
        strides: node.attributes.sizes("strides")?.unwrap_or_else(ones),
        dilations: node.attributes.sizes("dilations")?.unwrap_or_else(ones),
        padding: padding(node, axes)?,
        group: node.attributes.size("group", 1)?,
    })
}

fn conv_transpose(im: &Importer<'_>, node: &Pending<'_>) -> Result<ConvTransposeAttrs> {
    let c = conv(im, node, 1)?;
    let axes = c.kernel.len();
    // Some exporters include the batch and channel lengths.
    let output_shape = node
        .attributes
        .sizes("output_shape")?
        .map(|s| if s.len() == axes + 2 { s.get(2..).unwrap_or_default().to_vec() } else { s });
    Ok(ConvTransposeAttrs {
        output_padding: node.attributes.sizes("output_padding")?.unwrap_or_else(|| vec![0; axes]),
        output_shape,
        kernel: c.kernel,
        strides: c.strides,
        dilations: c.dilations,
        padding: c.padding,
        group: c.group,
    })
}

pub(super) fn pool(im: &Importer<'_>, node: &Pending<'_>) -> Result<PoolAttrs> {
    let axes = spatial_axes(im, node, None)?;
    let ones = || vec![1; axes];
    let kernel = node.attributes.sizes("kernel_shape")?;
    Ok(PoolAttrs {
        kernel: kernel.ok_or_else(|| GraphError::malformed(format!("node \"{}\" has no kernel_shape", node.name)))?,
        strides: node.attributes.sizes("strides")?.unwrap_or_else(ones),
        dilations: node.attributes.sizes("dilations")?.unwrap_or_else(ones),
        padding: padding(node, axes)?,
        ceil_mode: node.attributes.flag("ceil_mode", false)?,
        count_include_pad: node.attributes.flag("count_include_pad", false)?,
        column_major_indices: node.attributes.flag("storage_order", false)?,
    })
}

/// In opset 18, scale and bias are per group; from opset 21 on they are per channel.
fn group_norm(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<Op> {
    node.require("num_groups")?;
    let groups = node.attributes.size("num_groups", 1)?;
    let epsilon = node.attributes.float("epsilon", 1e-5)?;
    if node.opset < 21 {
        let shape = im.info(node.input(0)).and_then(|i| i.shape.clone());
        let channels = shape.and_then(|s| s.get(1).and_then(Dim::fixed));
        let channels = channels.ok_or_else(|| node.unsupported("a number of channels that is not fixed"))?;
        if groups == 0 || !channels.is_multiple_of(groups) {
            return Err(GraphError::malformed(format!(
                "node \"{}\": {groups} groups of {channels} channels",
                node.name
            )));
        }
        let each = (channels / groups) as i64;
        for index in [1, 2] {
            let column = im.add_ints(&format!("{}_column", node.name), &[-1, 1])?;
            let repeats = im.add_ints(&format!("{}_repeats", node.name), &[1, each])?;
            let flat = im.add_ints(&format!("{}_flat", node.name), &[-1])?;
            let reshape = || Op::Reshape { allow_zero: false };
            let a = im.emit(&format!("{}_a", node.name), reshape(), &[node.input(index), Some(column)])?;
            let b = im.emit(&format!("{}_b", node.name), Op::Tile, &[Some(a), Some(repeats)])?;
            let c = im.emit(&format!("{}_c", node.name), reshape(), &[Some(b), Some(flat)])?;
            node.set_input(index, Some(c));
        }
    }
    Ok(Op::GroupNormalization { groups, epsilon })
}

/// Before opset 7, a one-dimensional slope ran along the channels.
fn prelu_slope(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<()> {
    if node.opset >= 7 || im.rank(node.input(1)) != Some(1) {
        return Ok(());
    }
    if let Some(rank @ 3..) = im.rank(node.input(0)) {
        let axes: Vec<i64> = (1..rank as i64 - 1).collect();
        let axes = im.add_ints(&format!("{}_axes", node.name), &axes)?;
        let slope = im.emit(&format!("{}_slope", node.name), Op::Unsqueeze, &[node.input(1), Some(axes)])?;
        node.set_input(1, Some(slope));
    }
    Ok(())
}

fn softmax(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<Op> {
    let axis = node.attributes.int("axis", if node.opset < 13 { 1 } else { -1 })?;
    let make = |axis| if node.op_type == "LogSoftmax" { Op::LogSoftmax { axis } } else { Op::Softmax { axis } };
    let (op, inputs) = softmax_of(im, &node.name, node.input(0), make(axis), node.opset)?;
    node.inputs = inputs;
    Ok(op)
}

/// Returns the last operator, with its inputs, that a softmax of x (or its logarithm) with the axis of the file becomes.
/// Before opset 13, it ran jointly over all axes from that axis on.
pub(super) fn softmax_of(
    im: &mut Importer<'_>,
    name: &str,
    x: Option<ValueId>,
    stated: Op,
    opset: i64,
) -> Result<(Op, Vec<Option<ValueId>>)> {
    let (axis, last) = match stated {
        Op::Softmax { axis } => (axis, Op::Softmax { axis: -1 }),
        Op::LogSoftmax { axis } => (axis, Op::LogSoftmax { axis: -1 }),
        other => return Ok((other, vec![x])),
    };
    if opset >= 13 {
        return Ok((stated, vec![x]));
    }
    let rank = im.rank(x).map(|r| r as i64);
    if axis == -1 || rank.is_some_and(|r| axis == r - 1) {
        return Ok((last, vec![x]));
    }
    let shape = im.emit(&format!("{name}_shape"), Op::Shape { start: 0, end: None }, &[x])?;
    let flat = im.emit(&format!("{name}_flat"), Op::Flatten { axis }, &[x])?;
    let soft = im.emit(&format!("{name}_soft"), last, &[Some(flat)])?;
    Ok((Op::Reshape { allow_zero: false }, vec![Some(soft), Some(shape)]))
}
