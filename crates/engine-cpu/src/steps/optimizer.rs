//! Optimizer updates and the global gradient norm, on dense parameters.

use crate::context::{StepError, StepResult};
use cytoscope_graph::{Hyper, Op, Optimizer, Tensor};
use cytoscope_kernels::Isa;
use cytoscope_kernels::train::optimizer::{self, Adam, Sgd};

/// Runs an optimizer operator and returns its outputs, or `None` for other operators.
pub(super) fn run(isa: Isa, op: &Op, inputs: &[Option<&Tensor>]) -> Option<StepResult<Vec<Tensor>>> {
    match op {
        Op::GlobalNorm => {
            let all: Option<Vec<&[f32]>> = inputs.iter().flatten().map(|t| t.as_f32()).collect();
            let squares: f64 = all?.iter().map(|v| optimizer::sum_of_squares(isa, v)).sum();
            Some(Tensor::new(Vec::new(), vec![squares.sqrt() as f32]).map(|t| vec![t]).map_err(StepError::from))
        }
        Op::Update(rule) => {
            let floats = |i: usize| inputs.get(i).copied().flatten().and_then(|t| t.as_f32());
            let hyper: Vec<f64> = floats(0)?.iter().map(|v| f64::from(*v)).collect();
            let (hyper, norm) = (Hyper::from_slice(&hyper)?, *floats(1)?.first()?);
            let shape = inputs.get(2).copied().flatten()?.shape().to_vec();
            if hyper.scale == 0.0 {
                // The update is skipped.
                let kept = inputs.iter().skip(2).take(if rule.has_second_moment() { 4 } else { 3 }).enumerate();
                return Some(Ok(kept.filter(|(at, _)| *at != 1).filter_map(|(_, t)| t.cloned()).collect()));
            }
            let (mut values, gradient, mut first) = (floats(2)?.to_vec(), floats(3)?, floats(4)?.to_vec());
            let mut second = if rule.has_second_moment() { Some(floats(5)?.to_vec()) } else { None };
            let done = step(isa, *rule, hyper, norm, gradient, &mut values, &mut first, second.as_deref_mut());
            Some(done.and_then(|()| {
                let all = [Some(values), Some(first), second].into_iter().flatten();
                all.map(|v| Tensor::new(shape.clone(), v).map_err(StepError::from)).collect()
            }))
        }
        _ => None,
    }
}

#[allow(clippy::too_many_arguments)]
fn step(
    isa: Isa,
    rule: Optimizer,
    hyper: Hyper,
    norm: f32,
    gradient: &[f32],
    values: &mut [f32],
    first: &mut [f32],
    second: Option<&mut [f32]>,
) -> StepResult<()> {
    let (rate, scale) = (hyper.rate, hyper.factor(norm));
    let done = match (rule, second) {
        (Optimizer::AdamW { beta1, beta2, epsilon, weight_decay }, Some(second))
        | (Optimizer::Adam { beta1, beta2, epsilon, weight_decay }, Some(second)) => {
            let decoupled = matches!(rule, Optimizer::AdamW { .. });
            let adam = Adam { rate, beta1, beta2, epsilon, weight_decay, decoupled };
            optimizer::adam(isa, &adam, hyper.step.into(), scale, gradient, values, first, second)
        }
        (Optimizer::Sgd { momentum, nesterov, weight_decay }, _) => {
            let sgd = Sgd { rate, momentum, nesterov, weight_decay };
            optimizer::sgd(isa, &sgd, scale, gradient, values, first)
        }
        _ => return Err(StepError::MissingState),
    };
    done.map_err(StepError::from)
}
