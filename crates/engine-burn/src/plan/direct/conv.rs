//! Convolutions: the kernel that computes each of them, and its weights in the order in which it reads them.

use super::{Lowering, Term};
use crate::form::Form;
use crate::kernels::{Convolution, Curve, Direct};
use crate::plan::{Constant, ConvGeometry, GpuStep, Source};
use cytoscope_graph::{Activation, ValueId};

impl Lowering<'_> {
    pub(super) fn conv(
        &mut self,
        step: &GpuStep,
        (output, form): (ValueId, Form),
        window: &ConvGeometry,
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
        let outputs = weights.form[0];
        if window.groups != 1 || weights.form[1] != inputs {
            return None;
        }
        let bias_values = if bias { Some(self.known(step, 2, outputs)?) } else { None };
        let (to, own_curve) = if residual { (self.scratch(), Curve::IDENTITY) } else { (output, curve) };
        let x = self.input(step, 0)?;
        self.own_conv(step, x, window, weights, bias_values, (to, form), own_curve)?;
        if !residual {
            return Some(());
        }
        let convolved = Term { x: Source::Value(to), coefficients: self.identity(outputs) };
        let terms = vec![convolved, self.term(step, 2 + usize::from(bias), outputs)?];
        self.scale(terms, curve, (output, form), &step.name);
        Some(())
    }

    /// Emits a convolution by the kernel of this crate.
    #[allow(clippy::too_many_arguments, reason = "all of them are of the convolution")]
    fn own_conv(
        &mut self,
        step: &GpuStep,
        x: Source,
        window: &ConvGeometry,
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
            padding: window.padding.map(|zeros| zeros as isize),
            dilation: window.dilation,
            groups: 1,
            outputs,
            upscale: [1; 3],
            lengths: [output.1[2], output.1[3], output.1[4]],
            curve,
            factor_type: self.kernels.factor_type,
        });
        let sources = vec![x, self.constant(order), self.constant(bias.unwrap_or_else(|| vec![0.0; outputs]))];
        self.push(step, direct, sources, output);
        Some(())
    }

    pub(super) fn upsample(
        &mut self,
        step: &GpuStep,
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
            groups: 1,
            outputs: channels * taps,
            upscale: factors,
            lengths: [depth, height, width],
            curve: Curve::IDENTITY,
            factor_type: self.kernels.factor_type,
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
