//! Operators that exist only during training.

use super::{Call, loss, optimizer, wrong_type};
use cytoscope_graph::{GraphError, Hyper, LossScale, Op, Result, ScaleState, StepNumbers, Tensor, op_name};

pub(super) fn eval(op: &Op, call: &Call<'_>) -> Result<Vec<Tensor>> {
    match op {
        Op::BatchNormalizationTraining { epsilon } => batch_norm(*epsilon, call),
        Op::FakeQuantize { scales, axis, low, high } => {
            let x = call.need(0)?;
            let (low, high) = (f64::from(*low), f64::from(*high));
            let steps = Steps::new(x.shape(), scales, *axis);
            let values: Vec<f64> = x.to_f64_vec();
            let quantized = values.iter().enumerate().map(|(at, v)| {
                let scale = steps.scale(at);
                (v / scale).round_ties_even().clamp(low, high) * scale
            });
            Ok(vec![Tensor::new(x.shape(), quantized.collect::<Vec<f64>>())?.cast(x.dtype())])
        }
        Op::Loss(loss) => {
            let inputs = LossInputs::new(call)?;
            let value = loss::evaluate(loss, &inputs.loss_data());
            Ok(vec![Tensor::new(Vec::new(), vec![value])?.cast(call.need(0)?.dtype())])
        }
        Op::GlobalNorm => {
            let squares = |t: &Tensor| t.to_f64_vec().iter().map(|v| v * v).sum::<f64>();
            let sum: f64 = call.inputs.iter().flatten().map(|t| squares(t)).sum();
            Ok(vec![Tensor::new(Vec::new(), vec![sum.sqrt()])?.cast(call.need(0)?.dtype())])
        }
        Op::LossScale(rule) => loss_scale(*rule, call),
        Op::Update(optimizer) => {
            let numbers = call.need(0)?.to_f64_vec();
            let hyper = Hyper::from_slice(&numbers).ok_or_else(|| wrong_count("hyper-parameters", numbers.len(), 4))?;
            let norm = call.need(1)?.to_f64_vec().first().copied().unwrap_or(0.0) as f32;
            let (p, dtype) = (call.need(2)?, call.need(2)?.dtype());
            let mut values = p.to_f64_vec();
            let gradient = call.need(3)?.to_f64_vec();
            let mut first = call.need(4)?.to_f64_vec();
            let mut second = call.get(5).map(Tensor::to_f64_vec);
            if hyper.scale == 0.0 {
                // The update is skipped.
                return Ok([Some(p), call.get(4), call.get(5)].into_iter().flatten().cloned().collect());
            }
            optimizer::update(*optimizer, hyper, norm, &mut values, &gradient, &mut first, second.as_deref_mut());
            [Some(values), Some(first), second]
                .into_iter()
                .flatten()
                .map(|v| Ok(Tensor::new(p.shape(), v)?.cast(dtype)))
                .collect()
        }
        other => Err(GraphError::unsupported(op_name(other))),
    }
}

/// The error for a list of numbers that has a wrong length.
fn wrong_count(what: &str, got: usize, expected: usize) -> GraphError {
    GraphError::misused(what, format!("{got} numbers"), format!("{expected} numbers"))
}

fn loss_scale(rule: LossScale, call: &Call<'_>) -> Result<Vec<Tensor>> {
    let values = |index: usize| -> Result<Vec<f64>> { Ok(call.need(index)?.to_f64_vec()) };
    let number = |index: usize| -> Result<f32> { Ok(values(index)?.first().copied().unwrap_or(f64::NAN) as f32) };
    let (state, given) = (values(2)?, values(3)?);
    let state = ScaleState::from_slice(&state)
        .ok_or_else(|| wrong_count("loss scale state", state.len(), ScaleState::LENGTH))?;
    let given =
        StepNumbers::from_slice(&given).ok_or_else(|| wrong_count("step inputs", given.len(), StepNumbers::LENGTH))?;
    let (hyper, after) = rule.decide(number(0)?, number(1)?, state, given);
    let outputs = [Tensor::vector(hyper.to_vec()), Tensor::vector(after.to_vec()), Tensor::scalar(after.scale)];
    let dtype = call.need(0)?.dtype();
    Ok(outputs.into_iter().chain([Tensor::scalar(0.0f32)]).map(|t| t.cast(dtype)).collect())
}

/// The scale of each element of a quantized tensor.
pub(super) struct Steps<'a> {
    scales: &'a [f32],
    inner: usize,
}

impl<'a> Steps<'a> {
    pub(super) fn new(shape: &[usize], scales: &'a [f32], axis: usize) -> Self {
        Self { scales, inner: shape.iter().skip(axis + 1).product::<usize>().max(1) }
    }

    pub(super) fn scale(&self, at: usize) -> f64 {
        let channel = at / self.inner % self.scales.len().max(1);
        f64::from(self.scales.get(channel).copied().unwrap_or(1.0))
    }
}

/// Inputs of a loss in f64.
pub(super) struct LossInputs {
    prediction: Vec<f64>,
    target: Vec<f64>,
    weight: Option<Vec<f64>>,
    shape: Vec<usize>,
}

impl LossInputs {
    pub(super) fn new(call: &Call<'_>) -> Result<Self> {
        Self::of(call.need(0)?, call.need(1)?, call.get(2))
    }

    pub(super) fn of(prediction: &Tensor, target: &Tensor, weight: Option<&Tensor>) -> Result<Self> {
        if !prediction.dtype().is_float() {
            return Err(wrong_type(prediction.dtype()));
        }
        Ok(Self {
            prediction: prediction.to_f64_vec(),
            target: target.to_f64_vec(),
            weight: weight.map(Tensor::to_f64_vec),
            shape: prediction.shape().to_vec(),
        })
    }

    pub(super) fn loss_data(&self) -> loss::LossData<'_> {
        loss::LossData {
            prediction: &self.prediction,
            target: &self.target,
            weight: self.weight.as_deref(),
            batch: self.shape.first().copied().unwrap_or(1),
            channels: self.shape.get(1).copied().unwrap_or(1),
            voxels: self.shape.iter().skip(2).product(),
        }
    }
}

fn batch_norm(epsilon: f32, call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.need(0)?;
    let values = x.to_f64_vec();
    let (scale, bias) = (call.need(1)?.to_f64_vec(), call.need(2)?.to_f64_vec());
    let layout = super::vjp::Channels::of(x.shape());
    let (mean, variance) = layout.statistics(&values);
    let mut y = values;
    for (at, v) in y.iter_mut().enumerate() {
        let c = layout.channel(at);
        *v = (*v - mean[c]) / (variance[c] + f64::from(epsilon)).sqrt() * scale[c] + bias[c];
    }
    let channels = [layout.channels];
    [Tensor::new(x.shape(), y)?, Tensor::new(channels, mean)?, Tensor::new(channels, variance)?]
        .into_iter()
        .map(|t| Ok(t.cast(x.dtype())))
        .collect()
}
