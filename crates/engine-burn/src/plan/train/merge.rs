//! Merges activations into the norms before them, their gradients into the gradients of these norms, sums of gradients into
//! the gradients of activations after them, and products with single numbers into sums and activations.

use super::super::{GpuStep, Kind, Source};
use super::{NormScope, TrainKind};
use crate::kernels::Curve;
use cytoscope_graph::{BinaryOp, ValueId};
use std::collections::BTreeMap;

/// Merges consecutive steps where one kernel computes all of them. `outputs` are the outputs of the graph.
pub(crate) fn merge(steps: Vec<GpuStep>, outputs: &[ValueId]) -> Vec<GpuStep> {
    let mut readers: BTreeMap<ValueId, usize> = outputs.iter().map(|value| (*value, 1)).collect();
    for source in steps.iter().flat_map(|step| &step.inputs) {
        if let Source::Value(value) = source {
            *readers.entry(*value).or_default() += 1;
        }
    }
    let mut merged: Vec<GpuStep> = Vec::with_capacity(steps.len());
    for step in steps {
        let pair = merged.last().and_then(|before| merge_pair(before, &step, &readers));
        let (count, merged_step) = match pair {
            Some(pair) => (1, Some(pair)),
            None => (2, merge_shares(&merged, &step, &readers)),
        };
        if merged_step.is_some() {
            merged.truncate(merged.len() - count);
        }
        merged.push(merged_step.unwrap_or(step));
    }
    merged
}

/// Returns one step that computes two consecutive ones; `None` if they cannot be merged.
fn merge_pair(before: &GpuStep, step: &GpuStep, readers: &BTreeMap<ValueId, usize>) -> Option<GpuStep> {
    let &(value, _) = before.outputs.first()?;
    let reader_count = readers.get(&value).copied().unwrap_or(0);
    let mut outputs = step.outputs.clone();
    let (kind, inputs) = match (&before.kind, &step.kind) {
        // Without another reader, the normalized tensor need not be stored.
        (norm, Kind::Activation(activation)) if reader_count > 1 && step.inputs == [Source::Value(value)] => {
            let (over, epsilon, statistics) = match norm {
                Kind::Normalize { groups, epsilon } => (NormScope::Groups(*groups), *epsilon, [false; 2]),
                Kind::Train(TrainKind::BatchNorm { epsilon, statistics }) => (NormScope::Batch, *epsilon, *statistics),
                _ => return None,
            };
            Curve::of(*activation)?;
            outputs = before.outputs.iter().chain(&step.outputs).copied().collect();
            (TrainKind::NormActivation { over, epsilon, statistics, activation: *activation }, before.inputs.clone())
        }
        (
            Kind::Train(TrainKind::ActivationGradient(activation)),
            Kind::Train(TrainKind::NormGradient { over, epsilon, wanted }),
        ) if reader_count == 1 => {
            let (&[y, dy], &[x, scale, g]) = (before.inputs.as_slice(), step.inputs.as_slice()) else { return None };
            let slope = Curve::of(*activation).and_then(Curve::slope).filter(|_| g == Source::Value(value))?;
            let kind = TrainKind::NormActivationGradient { over: *over, epsilon: *epsilon, wanted: *wanted, slope };
            (kind, vec![x, scale, dy, y])
        }
        (Kind::Scalar { op: BinaryOp::Mul, value: factor, .. }, Kind::Activation(activation)) if reader_count == 1 => {
            let curve = Curve::of(*activation).filter(|_| step.inputs == [Source::Value(value)])?;
            (TrainKind::ScaledActivation { factor: *factor, curve }, before.inputs.clone())
        }
        (
            Kind::Binary { op: BinaryOp::Add, forms: [form, other] },
            Kind::Train(TrainKind::ActivationGradient(activation)),
        ) if reader_count == 1 && form == other => {
            let (&[a, b], &[y, dy]) = (before.inputs.as_slice(), step.inputs.as_slice()) else { return None };
            let fits = dy == Source::Value(value) && step.outputs.iter().all(|(_, output_form)| output_form == form);
            let slope = Curve::of(*activation).and_then(Curve::slope).filter(|_| fits)?;
            (TrainKind::SumActivationGradient { slope }, vec![y, a, b])
        }
        _ => return None,
    };
    Some(GpuStep {
        kind: Kind::Train(kind),
        inputs,
        outputs,
        name: format!("{} + {}", before.name, step.name),
        macs: before.macs + step.macs,
        scratch_elements: before.scratch_elements + step.scratch_elements,
        last_used: Vec::new(),
    })
}

/// Returns the step that computes the sum of the last two steps of `before`, which multiply tensors of the same form by
/// single numbers; `None` if the steps are of another kind.
fn merge_shares(before: &[GpuStep], step: &GpuStep, readers: &BTreeMap<ValueId, usize>) -> Option<GpuStep> {
    let [.., first, second] = before else { return None };
    let &[(output, form)] = step.outputs.as_slice() else { return None };
    let Kind::Binary { op: BinaryOp::Add, forms } = &step.kind else { return None };
    let mut inputs = Vec::with_capacity(4);
    let mut read = Vec::with_capacity(2);
    for product in [first, second] {
        let &[(value, product_form)] = product.outputs.as_slice() else { return None };
        let Kind::Binary { op: BinaryOp::Mul, forms: [tensor_form, factor_form] } = &product.kind else { return None };
        if *tensor_form != form || product_form != form || *factor_form != [1; 5] || readers.get(&value) != Some(&1) {
            return None;
        }
        inputs.extend_from_slice(&product.inputs);
        read.push(Source::Value(value));
    }
    (*forms == [form; 2] && step.inputs == read).then(|| GpuStep {
        kind: Kind::Train(TrainKind::Blend),
        inputs,
        outputs: vec![(output, form)],
        name: step.name.clone(),
        macs: first.macs + second.macs + step.macs,
        scratch_elements: 0,
        last_used: Vec::new(),
    })
}
