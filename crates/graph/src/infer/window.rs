//! Shape inference of convolutions, pools and normalizations.

use super::{FLOATS, Info, OpInputs, map_dim, resolve_axis};
use crate::error::{GraphError, Result};
use crate::geometry::{ConvAttrs, ConvTransposeAttrs, Padding, PoolAttrs};
use crate::graph::Dim;
use crate::ops::Op;
use crate::tensor::ElementType;

const BYTES: [ElementType; 2] = [ElementType::I8, ElementType::U8];

pub(super) fn infer(op: &Op, args: &OpInputs<'_>) -> Result<Option<Vec<Info>>> {
    Ok(Some(match op {
        Op::Conv(a) => vec![conv(a, args, 0, 1, 2)?],
        Op::FusedConv { conv: a, residual, .. } => {
            let info = conv(a, args, 0, 1, 2)?;
            if *residual {
                let extra = args.need(3)?;
                if let (Some(got), Some(expected)) = (extra.fixed_shape(), info.fixed_shape())
                    && got != expected
                {
                    return Err(GraphError::misused(
                        "shape of the residual",
                        format!("{got:?}"),
                        format!("{expected:?}"),
                    ));
                }
            }
            vec![info]
        }
        Op::ConvTranspose(a) => vec![conv_transpose(a, args)?],
        Op::ConvInteger(a) => {
            args.types(0, &BYTES)?;
            args.types(1, &BYTES)?;
            vec![Info { dtype: Some(ElementType::I32), ..conv_shape(a, args, 0, 1, None)? }]
        }
        Op::QLinearConv(a) => {
            args.types(0, &BYTES)?;
            args.types(3, &BYTES)?;
            for index in [1, 2, 4, 5, 6, 7] {
                args.need(index)?;
            }
            vec![Info { dtype: args.need(7)?.dtype, ..conv_shape(a, args, 0, 3, Some(8))? }]
        }
        Op::MaxPool(a) => {
            let info = pool(a, args)?;
            vec![info.clone(), Info::new(Some(ElementType::I64), info.shape)]
        }
        Op::AveragePool(a) => {
            args.types(0, &FLOATS)?;
            vec![pool(a, args)?]
        }
        Op::GlobalAveragePool | Op::GlobalMaxPool => {
            args.types(0, &FLOATS)?;
            let x = args.need(0)?;
            let shape = x
                .shape
                .as_ref()
                .map(|s| s.iter().enumerate().map(|(i, d)| if i < 2 { d.clone() } else { Dim::Fixed(1) }).collect());
            vec![Info::new(x.dtype, shape)]
        }
        Op::BatchNormalization { .. } => vec![per_channel(args, 4)?],
        Op::InstanceNormalization { .. } => vec![per_channel(args, 2)?],
        Op::GroupNormalization { groups, .. } => {
            if let Some(Some(c)) = args.need(0)?.shape.as_ref().map(|s| s.get(1).and_then(Dim::fixed))
                && (*groups == 0 || c % groups != 0)
            {
                return Err(GraphError::misused("groups", groups.to_string(), format!("a divisor of {c} channels")));
            }
            vec![per_channel(args, 2)?]
        }
        Op::LayerNormalization { axis, .. } => layer_norm(*axis, args)?,
        _ => return Ok(None),
    }))
}

fn spatial(info: &Info, what: &str) -> Result<Option<usize>> {
    match info.rank() {
        None => Ok(None),
        Some(rank @ 3..=5) => Ok(Some(rank - 2)),
        Some(rank) => Err(GraphError::misused(format!("axes of {what}"), rank.to_string(), "3 to 5")),
    }
}

fn expect(what: &str, got: Option<usize>, expected: Option<usize>) -> Result<()> {
    match (got, expected) {
        (Some(g), Some(e)) if g != e => Err(GraphError::misused(what, g.to_string(), e.to_string())),
        _ => Ok(()),
    }
}

fn dim(info: &Info, axis: usize) -> Option<usize> {
    info.shape.as_ref()?.get(axis)?.fixed()
}

fn attrs_fit(a: &ConvAttrs, axes: usize) -> Result<()> {
    let padding = match &a.padding {
        Padding::Explicit { before, after } => before.len() == axes && after.len() == axes,
        _ => true,
    };
    let lengths = a.kernel.len() == axes && a.strides.len() == axes && a.dilations.len() == axes;
    let positive = a.kernel.iter().chain(&a.strides).chain(&a.dilations).all(|&n| n > 0) && a.group > 0;
    if padding && lengths && positive {
        Ok(())
    } else {
        let padding = match &a.padding {
            Padding::Explicit { before, after } => format!("padding {before:?} and {after:?}"),
            Padding::SameUpper | Padding::SameLower => "automatic padding".to_owned(),
        };
        let got = format!(
            "kernel {:?}, strides {:?}, dilations {:?}, {padding}, {} groups",
            a.kernel, a.strides, a.dilations, a.group
        );
        let expected = format!("{axes} values each, one per spatial axis, and no zeros except in the padding");
        Err(GraphError::misused("attributes of a convolution", got, expected))
    }
}

fn conv(a: &ConvAttrs, args: &OpInputs<'_>, x: usize, w: usize, b: usize) -> Result<Info> {
    args.types(x, &FLOATS)?;
    let dtype = args.same_type([x, w, b])?;
    Ok(Info { dtype, ..conv_shape(a, args, x, w, Some(b))? })
}

fn conv_shape(a: &ConvAttrs, args: &OpInputs<'_>, x: usize, w: usize, b: Option<usize>) -> Result<Info> {
    let (x, w) = (args.need(x)?, args.need(w)?);
    let Some(axes) = spatial(x, "the convolution's input")? else { return Ok(Info::new(None, None)) };
    attrs_fit(a, axes)?;
    expect("axes of the weight", w.rank(), Some(axes + 2))?;
    let out = dim(w, 0);
    let per_group = dim(w, 1);
    expect("input channels", dim(x, 1), per_group.and_then(|n| n.checked_mul(a.group)))?;
    if let Some(out) = out
        && out % a.group != 0
    {
        return Err(GraphError::misused(
            "output channels",
            out.to_string(),
            format!("a multiple of {} groups", a.group),
        ));
    }
    for (axis, &k) in a.kernel.iter().enumerate() {
        expect("kernel", dim(w, axis + 2), Some(k))?;
    }
    if let Some(bias) = b.and_then(|b| args.get(b)) {
        expect("axes of the bias", bias.rank(), Some(1))?;
        expect("bias", dim(bias, 0), out)?;
    }
    let Some(x_shape) = &x.shape else { return Ok(Info::new(None, None)) };
    let channel = out.map_or_else(|| Dim::Free("channels".into()), Dim::Fixed);
    let mut shape = vec![x_shape.first().cloned().unwrap_or(Dim::Fixed(1)), channel];
    for (axis, d) in x_shape.iter().skip(2).enumerate() {
        let one = one_axis(a, axis);
        shape.push(map_dim(d, |n| Ok(one.output_lengths(&[n])?.first().copied().unwrap_or(0)))?);
    }
    Ok(Info::new(None, Some(shape)))
}

/// Returns the geometry of one spatial axis.
fn one_axis(a: &ConvAttrs, axis: usize) -> ConvAttrs {
    let at = |v: &[usize]| vec![v.get(axis).copied().unwrap_or(1)];
    ConvAttrs {
        kernel: at(&a.kernel),
        strides: at(&a.strides),
        dilations: at(&a.dilations),
        padding: match &a.padding {
            Padding::Explicit { before, after } => Padding::Explicit { before: at(before), after: at(after) },
            same => same.clone(),
        },
        group: a.group,
    }
}

fn conv_transpose(a: &ConvTransposeAttrs, args: &OpInputs<'_>) -> Result<Info> {
    args.types(0, &FLOATS)?;
    let dtype = args.same_type([0, 1, 2])?;
    let (x, w) = (args.need(0)?, args.need(1)?);
    let Some(axes) = spatial(x, "the transposed convolution's input")? else { return Ok(Info::new(dtype, None)) };
    let as_conv = ConvAttrs {
        kernel: a.kernel.clone(),
        strides: a.strides.clone(),
        dilations: a.dilations.clone(),
        padding: a.padding.clone(),
        group: a.group,
    };
    attrs_fit(&as_conv, axes)?;
    expect("output_padding", Some(a.output_padding.len()), Some(axes))?;
    expect("output_shape", a.output_shape.as_ref().map(Vec::len), Some(axes))?;
    expect("axes of the weight", w.rank(), Some(axes + 2))?;
    expect("input channels", dim(x, 1), dim(w, 0))?;
    if let Some(c) = dim(w, 0)
        && c % a.group != 0
    {
        return Err(GraphError::misused("input channels", c.to_string(), format!("a multiple of {} groups", a.group)));
    }
    for (axis, &k) in a.kernel.iter().enumerate() {
        expect("kernel", dim(w, axis + 2), Some(k))?;
    }
    let out = dim(w, 1).and_then(|n| n.checked_mul(a.group));
    if let Some(bias) = args.get(2) {
        expect("axes of the bias", bias.rank(), Some(1))?;
        expect("bias", dim(bias, 0), out)?;
    }
    let Some(x_shape) = &x.shape else { return Ok(Info::new(dtype, None)) };
    let channel = out.map_or_else(|| Dim::Free("channels".into()), Dim::Fixed);
    let mut shape = vec![x_shape.first().cloned().unwrap_or(Dim::Fixed(1)), channel];
    for (axis, d) in x_shape.iter().skip(2).enumerate() {
        let c = one_axis(&as_conv, axis);
        let one = ConvTransposeAttrs {
            kernel: c.kernel,
            strides: c.strides,
            dilations: c.dilations,
            padding: c.padding,
            output_padding: vec![a.output_padding.get(axis).copied().unwrap_or(0)],
            output_shape: a.output_shape.as_ref().map(|s| vec![s.get(axis).copied().unwrap_or(1)]),
            group: a.group,
        };
        shape.push(map_dim(d, |n| Ok(one.geometry(&[n])?.output.first().copied().unwrap_or(0)))?);
    }
    Ok(Info::new(dtype, Some(shape)))
}

fn pool(a: &PoolAttrs, args: &OpInputs<'_>) -> Result<Info> {
    let x = args.need(0)?;
    let Some(axes) = spatial(x, "the pool's input")? else { return Ok(Info::new(x.dtype, None)) };
    let as_conv = ConvAttrs {
        kernel: a.kernel.clone(),
        strides: a.strides.clone(),
        dilations: a.dilations.clone(),
        padding: a.padding.clone(),
        group: 1,
    };
    attrs_fit(&as_conv, axes)?;
    crate::limits::checked_elements(&a.kernel, "folded_elements", "a pooling window", args.limits.folded_elements)?;
    let mut shape = Vec::new();
    for (index, d) in x.shape.iter().flatten().enumerate() {
        if index < 2 {
            shape.push(d.clone());
            continue;
        }
        let c = one_axis(&as_conv, index - 2);
        let one = PoolAttrs {
            kernel: c.kernel,
            strides: c.strides,
            dilations: c.dilations,
            padding: c.padding,
            ceil_mode: a.ceil_mode,
            count_include_pad: a.count_include_pad,
            column_major_indices: a.column_major_indices,
        };
        shape.push(map_dim(d, |n| Ok(one.output_lengths(&[n])?.first().copied().unwrap_or(0)))?);
    }
    Ok(Info::new(x.dtype, Some(shape)))
}

/// Keeps the input's shape; inputs 1..=`last` must be vectors with one entry per channel.
fn per_channel(args: &OpInputs<'_>, last: usize) -> Result<Info> {
    args.types(0, &FLOATS)?;
    let x = args.need(0)?;
    if let Some(rank) = x.rank().filter(|rank| *rank < 2) {
        return Err(GraphError::misused("axes of the input", rank.to_string(), "at least 2"));
    }
    for index in 1..=last {
        args.types(index, &FLOATS)?;
        let p = args.need(index)?;
        expect("axes of a parameter", p.rank(), Some(1))?;
        expect("parameter", dim(p, 0), dim(x, 1))?;
    }
    Ok(Info::new(x.dtype, x.shape.clone()))
}

fn layer_norm(axis: i64, args: &OpInputs<'_>) -> Result<Vec<Info>> {
    args.types(0, &FLOATS)?;
    let x = args.need(0)?;
    args.need(1)?;
    let Some(shape) = &x.shape else { return Ok(vec![Info::new(x.dtype, None), Info::default(), Info::default()]) };
    let first = resolve_axis(axis, shape.len())?;
    for index in [1, 2] {
        if let Some(p) = args.get(index).and_then(Info::fixed_shape) {
            super::elementwise::broadcast_onto(&p, &shape.iter().map(Dim::fixed).collect::<Vec<_>>())?;
        }
    }
    let reduced: Vec<Dim> =
        shape.iter().enumerate().map(|(i, d)| if i < first { d.clone() } else { Dim::Fixed(1) }).collect();
    let statistics = match x.dtype {
        Some(ElementType::F64) => ElementType::F64,
        _ => ElementType::F32,
    };
    let extra = Info::new(Some(statistics), Some(reduced));
    Ok(vec![Info::new(x.dtype, Some(shape.clone())), extra.clone(), extra])
}
