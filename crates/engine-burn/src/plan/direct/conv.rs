//! Convolutions for kernels: which kernel, and its weights in the order that it wants.

use super::{Lowering, Term};
use crate::form::Form;
use crate::kernels::{Convolution, Curve, Direct};
use crate::plan::{Constant, Source, Step, Window};
use cytoscope_graph::{Activation, ValueId};

/// Fewest input and output channels for which tensor cores are worth their setup.
const MIN_TUNED_CHANNELS: usize = 8;

impl Lowering<'_> {
    pub(super) fn conv(
        &mut self,
        step: &Step,
        (output, form): (ValueId, Form),
        window: &Window,
        bias: bool,
        residual: bool,
        activation: Option<Activation>,
    ) -> Option<()> {
        let curve = activation.map_or(Some(Curve::IDENTITY), Curve::of)?;
        let extra = if residual { step.inputs.get(2 + usize::from(bias)) } else { None };
        if let Some(Source::Value(extra)) = extra
            && self.forms.get(extra) != Some(&form)
        {
            return None;
        }
        let Some(Source::Value(x)) = step.inputs.first() else { return None };
        let inputs = self.forms.get(x)?[1];
        let Some(Source::Constant(weights)) = step.inputs.get(1) else { return None };
        let weights = self.old.get(*weights).filter(|c| c.half.is_none())?;
        let (outputs, taps) = (weights.form[0], weights.form[2..].iter().product::<usize>());
        if window.groups != 1 || weights.form[1] != inputs {
            return None;
        }
        let numbers = if bias { Some(self.known(step, 2, outputs)?) } else { None };
        let is_tuned = self.kernels.tensor_cores
            && taps > 1
            && inputs.is_multiple_of(MIN_TUNED_CHANNELS)
            && outputs.is_multiple_of(MIN_TUNED_CHANNELS);
        let own_curve = if residual || is_tuned { Curve::IDENTITY } else { curve };
        // Burn's kernels read and write elements of one type; outputs of the graph are f32.
        let is_stored = !is_tuned || self.kernels.half.is_none() || !self.outputs.contains(&output);
        let is_last = !residual && own_curve == curve && is_stored;
        let to = if is_last { output } else { self.scratch() };
        let x = self.input(step, 0)?;
        if is_tuned {
            self.tuned_conv(step, x, window, weights, numbers, (to, form))?;
        } else {
            self.own_conv(step, x, window, weights, numbers, (to, form), own_curve)?;
        }
        if is_last {
            return Some(());
        }
        let mut terms = vec![Term { x: Source::Value(to), coefficients: self.identity(outputs) }];
        if residual {
            terms.push(self.term(step, 2 + usize::from(bias), outputs)?);
        }
        self.scale(terms, curve, (output, form), &step.name);
        Some(())
    }

    /// Emits a convolution by the kernel of this crate.
    #[allow(clippy::too_many_arguments, reason = "all of them are of the convolution")]
    fn own_conv(
        &mut self,
        step: &Step,
        x: Source,
        window: &Window,
        weights: &Constant,
        bias: Option<Vec<f32>>,
        output: (ValueId, Form),
        curve: Curve,
    ) -> Option<()> {
        let [outputs, inputs, kz, ky, kx] = weights.form;
        let order = by_tap(&weights.values, [outputs, inputs, kz * ky * kx])?;
        let direct = Direct::Conv(Convolution {
            kernel: [kz, ky, kx],
            stride: window.stride,
            padding: window.padding,
            dilation: window.dilation,
            outputs,
            factors: [1; 3],
            lengths: [output.1[2], output.1[3], output.1[4]],
            curve,
        });
        let sources = vec![x, self.constant(order), self.constant(bias.unwrap_or_else(|| vec![0.0; outputs]))];
        self.push(step, direct, sources, output);
        Some(())
    }

    /// Emits a convolution by one of Burn's kernels, which want all elements in the type that values are stored in.
    fn tuned_conv(
        &mut self,
        step: &Step,
        mut x: Source,
        window: &Window,
        weights: &Constant,
        bias: Option<Vec<f32>>,
        output: (ValueId, Form),
    ) -> Option<()> {
        let [outputs, inputs, kz, ky, kx] = weights.form;
        let half = self.kernels.half;
        if let (Some(_), Source::Value(value)) = (half, x)
            && !self.halves.contains(&value)
        {
            let (copy, form) = (self.scratch(), *self.forms.get(&value)?);
            let terms = vec![Term { x, coefficients: self.identity(inputs) }];
            self.scale(terms, Curve::IDENTITY, (copy, form), &step.name);
            x = Source::Value(copy);
        }
        let direct = Direct::TunedConv {
            stride: window.stride,
            padding: window.padding,
            dilation: window.dilation,
            bias: bias.is_some(),
        };
        let values = by_output(&weights.values, [outputs, inputs, kz * ky * kx])?;
        let mut sources = vec![x, self.typed(Constant { form: [outputs, kz, ky, kx, inputs], values, half })];
        if let Some(values) = bias {
            sources.push(self.typed(Constant { form: [outputs, 1, 1, 1, 1], values, half }));
        }
        self.push(step, direct, sources, output);
        Some(())
    }

    pub(super) fn upsample(
        &mut self,
        step: &Step,
        output: (ValueId, Form),
        factors: [usize; 3],
        channels: usize,
        bias: bool,
    ) -> Option<()> {
        let Some(Source::Value(x)) = step.inputs.first() else { return None };
        let [_, inputs, depth, height, width] = *self.forms.get(x)?;
        let taps: usize = factors.iter().product();
        // The planner's order is output channel, tap, input channel.
        let weights = self.known(step, 1, channels * taps * inputs)?;
        let numbers = if bias { self.known(step, 2, channels * taps)? } else { vec![0.0; channels * taps] };
        let at = |channel: usize, tap: usize, input: usize| (channel * taps + tap) * inputs + input;
        let mut order = Vec::with_capacity(weights.len());
        for input in 0..inputs {
            for tap in 0..taps {
                order.extend((0..channels).map(|c| weights.get(at(c, tap, input)).copied().unwrap_or(0.0)));
            }
        }
        let by_tap = |tap: usize| (0..channels).map(move |c| c * taps + tap);
        let numbers: Vec<f32> = (0..taps).flat_map(by_tap).filter_map(|at| numbers.get(at).copied()).collect();
        let x = self.input(step, 0)?;
        let direct = Direct::Conv(Convolution {
            kernel: [1; 3],
            stride: [1; 3],
            padding: [0; 3],
            dilation: [1; 3],
            outputs: channels * taps,
            factors,
            lengths: [depth, height, width],
            curve: Curve::IDENTITY,
        });
        let sources = vec![x, self.constant(order), self.constant(numbers)];
        self.push(step, direct, sources, output);
        Some(())
    }
}

/// Rearranges weights from output, input, tap to tap, input, output.
fn by_tap(values: &[f32], [outputs, inputs, taps]: [usize; 3]) -> Option<Vec<f32>> {
    rearranged(values, [taps, inputs, outputs], |[tap, input, output]| (output * inputs + input) * taps + tap)
}

/// Rearranges weights from output, input, tap to output, tap, input.
fn by_output(values: &[f32], [outputs, inputs, taps]: [usize; 3]) -> Option<Vec<f32>> {
    rearranged(values, [outputs, taps, inputs], |[output, tap, input]| (output * inputs + input) * taps + tap)
}

fn rearranged(values: &[f32], lengths: [usize; 3], from: impl Fn([usize; 3]) -> usize) -> Option<Vec<f32>> {
    if values.len() != lengths.iter().product::<usize>() {
        return None;
    }
    let mut order = Vec::with_capacity(values.len());
    for a in 0..lengths[0] {
        for b in 0..lengths[1] {
            for c in 0..lengths[2] {
                order.push(*values.get(from([a, b, c]))?);
            }
        }
    }
    Some(order)
}
