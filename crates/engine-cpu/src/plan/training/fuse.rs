//! Fuses gradients that were planned separately.

use crate::plan::gradient_kind::GradientKind;
use crate::plan::{KernelPlan, Plan, PlanKind, reads};
use cytoscope_graph::{Graph, ValueId};
use cytoscope_kernels::conv::Activation;
use cytoscope_kernels::pointwise::Binary;
use cytoscope_kernels::train::Derivative;
use std::collections::BTreeMap;

/// Fuses gradients of (leaky) ReLUs into those of norms, and sums of gradients into those of convolutions.
pub(in crate::plan) fn fuse_gradients(graph: &Graph, plans: &mut [Plan]) {
    fuse_relu_gradients_into_norms(graph, plans);
    fuse_gradient_sums(graph, plans);
}

fn kernel(plan: &Plan) -> Option<&KernelPlan> {
    if let Plan::Kernel(planned) = plan { Some(planned.as_ref()) } else { None }
}

/// Returns the index of the plan that computes each blocked value.
fn producing_plans(plans: &[Plan]) -> BTreeMap<ValueId, usize> {
    plans.iter().enumerate().filter_map(|(i, plan)| Some((kernel(plan)?.output?, i))).collect()
}

/// Fuses the gradient of a (leaky) ReLU into that of the norm before it: the sign of the ReLU's input follows from the
/// norm's input.
fn fuse_relu_gradients_into_norms(graph: &Graph, plans: &mut [Plan]) {
    let (reads, producing_plans) = (reads(graph, plans, |_| None), producing_plans(plans));
    for index in 0..plans.len() {
        let Some((dy, x)) = kernel(&plans[index]).and_then(plain_norm_gradient) else { continue };
        let Some(producer) = producing_plans.get(&dy).copied().filter(|_| reads.get(&dy) == Some(&1)) else { continue };
        let Some((before, y, slope)) = kernel(&plans[producer]).and_then(relu_gradient) else { continue };
        let norm_of_y = producing_plans.get(&y).and_then(|producer| kernel(&plans[*producer]));
        let is_norm_of_x = norm_of_y.is_some_and(|planned| is_single_term_of(planned, x));
        if is_norm_of_x && let Plan::Kernel(planned) = &mut plans[index] {
            if let PlanKind::Gradient(GradientKind::Norm { activation, .. }) = &mut planned.kind {
                *activation = Activation::Leaky { slope };
            }
            planned.inputs = vec![before, x];
            plans[producer] = Plan::Absorbed;
        }
    }
}

/// Returns dy and x of the gradient of a norm without an activation.
fn plain_norm_gradient(planned: &KernelPlan) -> Option<(ValueId, ValueId)> {
    match (&planned.kind, &planned.inputs[..]) {
        (PlanKind::Gradient(GradientKind::Norm { activation: Activation::None, .. }), [dy, x]) => Some((*dy, *x)),
        _ => None,
    }
}

/// Returns dy, the value that determines the derivative, and the slope of the gradient of a (leaky) ReLU.
fn relu_gradient(planned: &KernelPlan) -> Option<(ValueId, ValueId, f32)> {
    match (&planned.kind, &planned.inputs[..]) {
        (PlanKind::Gradient(GradientKind::Unary(Derivative::Leaky { slope })), [dy, y]) => Some((*dy, *y, *slope)),
        _ => None,
    }
}

/// Returns whether a plan is a chain whose only term is `x`.
fn is_single_term_of(planned: &KernelPlan, x: ValueId) -> bool {
    matches!(planned.kind, PlanKind::Chain { .. }) && planned.inputs == [x]
}

/// Fuses the sum of two gradients into the convolution gradient that computes the later one.
fn fuse_gradient_sums(graph: &Graph, plans: &mut [Plan]) {
    let (reads, mut producing_plans) = (reads(graph, plans, |_| None), producing_plans(plans));
    for index in 0..plans.len() {
        let Some((a, b, sum)) = kernel(&plans[index]).and_then(sum_of_two) else { continue };
        for (late, early) in [(a, b), (b, a)] {
            let (Some(at), Some(before)) = (producing_plans.get(&late).copied(), producing_plans.get(&early).copied())
            else {
                continue;
            };
            let Plan::Kernel(planned) = &mut plans[at] else { continue };
            let KernelPlan { kind, inputs, output, .. } = planned.as_mut();
            let is_fusible = reads.get(&late) == Some(&1) && before < at;
            if is_fusible
                && let PlanKind::Gradient(GradientKind::Conv { accumulates, .. }) = kind
                && !*accumulates
            {
                *accumulates = true;
                inputs.insert(0, early);
                *output = Some(sum);
                producing_plans.insert(sum, at);
                plans[index] = Plan::Absorbed;
                break;
            }
        }
    }
}

/// Returns the operands and the result of a sum.
fn sum_of_two(planned: &KernelPlan) -> Option<(ValueId, ValueId, ValueId)> {
    match (&planned.kind, &planned.inputs[..]) {
        (PlanKind::Binary(Binary::Add), [a, b]) => Some((*a, *b, planned.output?)),
        _ => None,
    }
}
