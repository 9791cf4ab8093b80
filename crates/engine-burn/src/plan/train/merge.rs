//! Merges activations into the norms before them, and their gradients into the gradients of these norms.

use super::super::{Kind, Source, Step};
use super::{NormScope, TrainKind};
use crate::kernels::Curve;
use cytoscope_graph::ValueId;
use std::collections::BTreeMap;

/// Merges pairs of consecutive steps where a kernel computes both. `outputs` are those of the graph.
pub(crate) fn merge_activations(steps: Vec<Step>, outputs: &[ValueId]) -> Vec<Step> {
    let mut readers: BTreeMap<ValueId, usize> = outputs.iter().map(|value| (*value, 1)).collect();
    for source in steps.iter().flat_map(|step| &step.inputs) {
        if let Source::Value(value) = source {
            *readers.entry(*value).or_default() += 1;
        }
    }
    let mut merged: Vec<Step> = Vec::with_capacity(steps.len());
    for step in steps {
        let both = merged.last().and_then(|before| merge(before, &step, &readers));
        if both.is_some() {
            merged.pop();
        }
        merged.push(both.unwrap_or(step));
    }
    merged
}

/// Returns the step that computes two consecutive ones; `None` if they stay apart.
fn merge(before: &Step, step: &Step, readers: &BTreeMap<ValueId, usize>) -> Option<Step> {
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
        _ => return None,
    };
    Some(Step {
        kind: Kind::Train(kind),
        inputs,
        outputs,
        name: format!("{} + {}", before.name, step.name),
        macs: before.macs + step.macs,
        scratch_elements: before.scratch_elements + step.scratch_elements,
        last_used: Vec::new(),
    })
}
