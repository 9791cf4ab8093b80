//! When each value is last read, and how much device memory the values take at most.

use super::{GpuStep, Input, Kind, Source};
use crate::form::{Form, count};
use cytoscope_graph::{ElementType, Graph, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// Records in each step which values it reads last. Returns the peak number of live elements (of 32 bits), plus one
/// copy of the largest output, which many steps need temporarily.
pub(super) fn assign_last_uses(graph: &Graph, inputs: &[Input], steps: &mut [GpuStep]) -> usize {
    let mut last: BTreeMap<ValueId, usize> = BTreeMap::new();
    let mut size: BTreeMap<ValueId, usize> = inputs.iter().map(|i| (i.value, count(&i.form))).collect();
    // Temporary values between the steps of one node are not in the graph and are assumed to have 32 bits.
    let stores_half = |step: &&GpuStep| matches!(step.kind, Kind::Direct(_, to) if to.is_half());
    let halves: BTreeSet<ValueId> =
        steps.iter().filter(stores_half).flat_map(|s| s.outputs.iter().map(|(value, _)| *value)).collect();
    let is_half = |value: &ValueId| {
        halves.contains(value)
            || graph.values.get(value.index()).and_then(|v| v.dtype).is_some_and(ElementType::is_half)
    };
    let elements = |value: &ValueId, form: &Form| if is_half(value) { count(form).div_ceil(2) } else { count(form) };
    for (index, step) in steps.iter().enumerate() {
        for (output, form) in &step.outputs {
            last.insert(*output, index);
            size.insert(*output, elements(output, form));
        }
        for source in &step.inputs {
            if let Source::Value(value) = source {
                last.insert(*value, index);
            }
        }
    }
    for (value, index) in last {
        if !graph.outputs.contains(&value)
            && let Some(step) = steps.get_mut(index)
        {
            step.last_used.push(value);
        }
    }
    let mut alive: usize = inputs.iter().map(|i| count(&i.form)).sum();
    let (mut peak, mut largest) = (alive, 0);
    for step in steps {
        for (output, form) in &step.outputs {
            alive += elements(output, form);
            largest = largest.max(count(form));
        }
        peak = peak.max(alive + step.scratch_elements);
        alive -= step.last_used.iter().filter_map(|v| size.get(v)).sum::<usize>();
    }
    peak + largest
}
