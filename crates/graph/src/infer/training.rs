//! Shape inference of training operators.

use super::{FLOATS, Info, OpInputs, node_infos, shape_text};
use crate::error::{GraphError, Result};
use crate::graph::Dim;
use crate::loss::Loss;
use crate::loss_scale::{LossScale, ScaleState, StepNumbers};
use crate::ops::Op;
use crate::optimizer::Optimizer;

pub(super) fn infer(op: &Op, args: &OpInputs<'_>) -> Result<Option<Vec<Info>>> {
    Ok(Some(match op {
        Op::Vjp(of) => vjp(of, args)?,
        Op::BatchNormalizationTraining { .. } => batch_norm(args)?,
        Op::FakeQuantize { scales, axis, .. } => {
            args.types(0, &FLOATS)?;
            let x = args.need(0)?;
            if let Some(shape) = x.fixed_shape().filter(|_| scales.len() != 1) {
                let Some(length) = shape.get(*axis) else {
                    let expected = format!("one below {}", shape.len());
                    return Err(GraphError::misused("axis of the scales", axis.to_string(), expected));
                };
                if *length != scales.len() {
                    let expected = format!("1 or {length}");
                    return Err(GraphError::misused("number of scales", scales.len().to_string(), expected));
                }
            }
            vec![Info::new(x.dtype, x.shape.clone())]
        }
        Op::Loss(of) => vec![loss(of, args)?],
        Op::GlobalNorm => {
            args.types(0, &FLOATS)?;
            vec![Info::new(args.same_type(0..args.inputs.len())?, Some(Vec::new()))]
        }
        Op::LossScale(_) => loss_scale(args)?,
        Op::Update(optimizer) => update(*optimizer, args)?,
        _ => return Ok(None),
    }))
}

/// Each gradient has the type and shape of its input.
fn vjp(op: &Op, args: &OpInputs<'_>) -> Result<Vec<Info>> {
    let Some((dy, arguments)) = args.inputs.split_last() else {
        return Err(GraphError::misused("inputs", "none", "the operator's inputs and a gradient"));
    };
    let made = node_infos(op, arguments, 1, args.limits)?;
    let (dy, y) = (dy.and_then(Info::fixed_shape), made.first().and_then(Info::fixed_shape));
    if let (Some(dy), Some(y)) = (dy, y)
        && dy != y
    {
        return Err(GraphError::misused("shape of the gradient", format!("{dy:?}"), format!("{y:?}")));
    }
    let like = |i: &Option<&Info>| i.map(|i| Info::new(i.dtype, i.shape.clone())).unwrap_or_default();
    Ok(arguments.iter().map(like).collect())
}

fn batch_norm(args: &OpInputs<'_>) -> Result<Vec<Info>> {
    args.types(0, &FLOATS)?;
    let x = args.need(0)?;
    let channels = x.shape.as_ref().and_then(|s| s.get(1)).cloned();
    for index in [1, 2] {
        let parameter = args.need(index)?;
        let fits = match (parameter.shape.as_deref(), &channels) {
            (Some([one]), Some(c)) => one.fixed().is_none() || c.fixed().is_none() || one == c,
            (Some([_]), None) => x.shape.is_none(),
            (Some(_), _) => false,
            (None, _) => true,
        };
        if !fits {
            let got = parameter.shape.as_deref().map_or_else(|| "an unknown shape".to_owned(), shape_text);
            let want = channels.map_or_else(|| "one axis, the channels".to_owned(), |c| format!("[{c}]"));
            return Err(GraphError::misused("shape of the scale or bias", got, want));
        }
    }
    let by_channel = Info::new(x.dtype, channels.map(|c| vec![c]));
    Ok(vec![Info::new(x.dtype, x.shape.clone()), by_channel.clone(), by_channel])
}

fn loss(loss: &Loss, args: &OpInputs<'_>) -> Result<Info> {
    args.types(0, &FLOATS)?;
    let dtype = args.same_type([0, 1, 2])?;
    let (x, t) = (args.need(0)?.fixed_shape(), args.need(1)?.fixed_shape());
    if let (Some(x), Some(t)) = (&x, &t)
        && x != t
    {
        return Err(GraphError::misused("shape of the target", format!("{t:?}"), format!("{x:?}")));
    }
    if let Some(x) = &x {
        loss.check(x.get(1).copied().unwrap_or(0))?;
        if let Some(w) = args.get(2).and_then(Info::fixed_shape) {
            let mut want = x.clone();
            if let Some(c) = want.get_mut(1) {
                *c = 1;
            }
            if w != want {
                return Err(GraphError::misused("shape of the weight", format!("{w:?}"), format!("{want:?}")));
            }
        }
    }
    Ok(Info::new(dtype, Some(Vec::new())))
}

fn loss_scale(args: &OpInputs<'_>) -> Result<Vec<Info>> {
    args.types(0, &FLOATS)?;
    let dtype = args.same_type(0..4)?;
    let expected = [Vec::new(), Vec::new(), vec![ScaleState::LENGTH], vec![StepNumbers::LENGTH]];
    for (index, expected) in expected.iter().enumerate() {
        if let Some(shape) = args.need(index)?.fixed_shape().filter(|shape| shape != expected) {
            let what = format!("shape of input {index} of the loss scale");
            return Err(GraphError::misused(what, format!("{shape:?}"), format!("{expected:?}")));
        }
    }
    let vector = |length: usize| Info::new(dtype, Some(vec![Dim::Fixed(length)]));
    let scalar = Info::new(dtype, Some(Vec::new()));
    Ok(vec![vector(LossScale::HYPER_LENGTH), vector(ScaleState::LENGTH), scalar.clone(), scalar])
}

fn update(optimizer: Optimizer, args: &OpInputs<'_>) -> Result<Vec<Info>> {
    let count = if optimizer.has_second_moment() { 6 } else { 5 };
    if let Some(shape) = args.need(0)?.fixed_shape().filter(|shape| *shape != [4]) {
        return Err(GraphError::misused("shape of the hyper-parameters", format!("{shape:?}"), "[4]"));
    }
    let p = args.need(2)?;
    for index in 3..count {
        if let (Some(a), Some(b)) = (args.need(index)?.fixed_shape(), p.fixed_shape())
            && a != b
        {
            return Err(GraphError::misused("shape of an optimizer's input", format!("{a:?}"), format!("{b:?}")));
        }
    }
    Ok(vec![Info::new(p.dtype, p.shape.clone()); count - 3])
}
