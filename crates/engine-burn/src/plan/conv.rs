//! Plans convolutions and normalizations.

use super::{ConvGeometry, Cut, Kind, PlanResult, Planner, Source, Taps, TrainKind, unsupported};
use crate::form::{Form, broadcast_form, count};
use cytoscope_graph::{Activation, BinaryOp, ConvAttrs, ConvTransposeAttrs, Node, Tensor, ValueId, to_3d};

/// Returns numbers of the three spatial axes as numbers of the five axes of a form; 0 for sample and channel.
pub(super) fn spatial(zyx: [usize; 3]) -> [usize; 5] {
    [0, 0, zyx[0], zyx[1], zyx[2]]
}

/// Checks that weights with these axes (output channel, input channel of a group, Z, Y, X) fit to groups and to the number of
/// input channels.
pub(super) fn check_groups(weights: Form, groups: usize, inputs: usize) -> PlanResult {
    if groups == 0 || !weights[0].is_multiple_of(groups) || weights[1] * groups != inputs {
        return unsupported(format!("with {groups} groups of {} channels for {inputs} channels", weights[0]));
    }
    Ok(())
}

impl Planner<'_> {
    pub(super) fn conv(
        &mut self,
        node: &Node,
        attrs: &ConvAttrs,
        activation: Option<Activation>,
        residual: bool,
    ) -> PlanResult {
        let (x, w, output) = (self.input(node, 0)?, self.input(node, 1)?, self.output(node)?);
        let lengths = self.shape(x)?.get(2..).map(<[usize]>::to_vec).unwrap_or_default();
        if lengths.len() != attrs.kernel.len() || lengths.is_empty() || lengths.len() > 3 {
            return unsupported(format!("with {} spatial axes", attrs.kernel.len()));
        }
        let (before, after) = attrs.padding.resolve(&lengths, &attrs.kernel, &attrs.strides, &attrs.dilations);
        let (mut before, after) = (to_3d(&before, 0), to_3d(&after, 0));
        let (kernel, input, out) = (to_3d(&attrs.kernel, 1), self.form(x)?, self.form(output)?);
        check_groups(self.form(w)?, attrs.group, input[1])?;
        let window = ConvGeometry {
            stride: to_3d(&attrs.strides, 1),
            padding: before,
            dilation: to_3d(&attrs.dilations, 1),
            groups: attrs.group,
        };
        // Burn pads both sides alike: is the output length right if both have the padding before?
        let same_length = (0..3).all(|a| {
            let reach = window.dilation[a] * (kernel[a] - 1) + 1;
            let padded = input[a + 2] + 2 * before[a];
            padded >= reach && (padded - reach) / window.stride[a].max(1) + 1 == out[a + 2]
        });
        let mut from = self.source(x)?;
        let mut window = window;
        if before != after && !same_length {
            let padded = self.padded(from, x, spatial(before), spatial(after), 0.0)?;
            from = padded;
            before = [0; 3];
        }
        window.padding = before;
        let mut inputs = vec![from, self.source(w)?];
        let bias = node.input(2);
        if let Some(bias) = bias {
            inputs.push(self.source(bias)?);
        }
        if residual {
            let extra = self.input(node, 3)?;
            inputs.push(self.source(extra)?);
        }
        // The kernel reads the weights in another order.
        let scratch_elements = count(&self.form(w)?);
        let kind = Kind::Conv { window, bias: bias.is_some(), residual, activation };
        self.push_many(kind, inputs, vec![(output, out)], scratch_elements);
        Ok(())
    }

    /// Emits a step that pads `x`. Its output is temporary, because the graph has no value for it.
    pub(super) fn padded(
        &mut self,
        from: Source,
        x: ValueId,
        before: [usize; 5],
        after: [usize; 5],
        value: f32,
    ) -> PlanResult<Source> {
        let input = self.form(x)?;
        let cut = input.map(|len| Cut { start: 0, len, step: 1 });
        let form = std::array::from_fn(|a| input[a] + before[a] + after[a]);
        Ok(self.between(Kind::Pad { cut, before, after, value }, vec![from], form))
    }

    pub(super) fn conv_transpose(&mut self, node: &Node, attrs: &ConvTransposeAttrs) -> PlanResult {
        let (x, w, output) = (self.input(node, 0)?, self.input(node, 1)?, self.output(node)?);
        let lengths = self.shape(x)?.get(2..).map(<[usize]>::to_vec).unwrap_or_default();
        let axes = attrs.kernel.len();
        if lengths.len() != axes || axes == 0 || axes > 3 {
            return unsupported(format!("with {axes} spatial axes"));
        }
        let geometry = attrs.geometry(&lengths)?;
        let (kernel, stride, dilation) =
            (to_3d(&attrs.kernel, 1), to_3d(&attrs.strides, 1), to_3d(&attrs.dilations, 1));
        let (input, out) = (self.form(x)?, self.form(output)?);
        let whole = geometry.before.iter().all(|b| *b == 0);
        let exact = attrs.group == 1
            && kernel == stride
            && whole
            && (0..3).all(|a| out[a + 2] == input[a + 2] * stride[a] && (kernel[a] == 1 || dilation[a] == 1));
        if exact {
            let weights = self.graph.constant(w).and_then(|t| t.as_f32().map(|v| (t.shape().to_vec(), v.to_vec())));
            let bias_known = node.input(2).is_none_or(|b| self.graph.constant(b).is_some());
            if let Some((shape, values)) = weights.filter(|_| bias_known) {
                return self.upsample(node, x, output, (&shape, &values), kernel);
            }
        }
        let before: Vec<isize> = (0..3 - axes).map(|_| 0).chain(geometry.before.iter().copied()).collect();
        let [z, y, x_before] = before[..] else { return unsupported(format!("with {axes} spatial axes")) };
        let taps = Taps { kernel, stride, dilation, groups: attrs.group, before: [z, y, x_before] };
        let weights = self.form(w)?;
        check_groups(weights, attrs.group, out[1])?;
        let mut inputs = vec![self.source(x)?, self.source(w)?];
        let bias = node.input(2);
        if let Some(bias) = bias {
            inputs.push(self.source(bias)?);
        }
        let scratch_elements = taps.adjoint_scratch(out, weights);
        self.push_many(
            Kind::ConvTranspose { taps, bias: bias.is_some() },
            inputs,
            vec![(output, out)],
            scratch_elements,
        );
        Ok(())
    }

    /// Plans a transposed convolution whose kernel equals its stride: a 1×1×1 convolution computes the voxels of each
    /// block as channels, which are then rearranged.
    fn upsample(
        &mut self,
        node: &Node,
        x: ValueId,
        output: ValueId,
        (shape, values): (&[usize], &[f32]),
        factors: [usize; 3],
    ) -> PlanResult {
        let (Some(&inputs), Some(&outputs)) = (shape.first(), shape.get(1)) else {
            return unsupported("without weights");
        };
        let taps: usize = factors.iter().product();
        if values.len() != inputs * outputs * taps {
            return unsupported("with weights of another shape");
        }
        // [in][out][tap] -> [out, tap][in]
        let turned = (0..outputs * taps).flat_map(|ot| (0..inputs).map(move |i| i * outputs * taps + ot));
        let turned = turned.map(|at| values.get(at).copied().unwrap_or(0.0)).collect();
        let weights = self.constant([outputs * taps, inputs, 1, 1, 1], turned);
        let (form, reordered) = (self.form(output)?, outputs * taps * inputs);
        let mut sources = vec![self.source(x)?, Source::Constant(weights)];
        let bias = self.known(node, 2, "bias")?.and_then(Tensor::as_f32).map(<[f32]>::to_vec);
        let has_bias = bias.is_some();
        if let Some(bias) = bias {
            let spread: Vec<f32> = bias.iter().flat_map(|b| std::iter::repeat_n(*b, taps)).collect();
            let constant = self.constant([spread.len(), 1, 1, 1, 1], spread);
            sources.push(Source::Constant(constant));
        }
        let kind = Kind::Upsample { factors, channels: outputs, bias: has_bias };
        self.push_many(kind, sources, vec![(output, form)], reordered);
        Ok(())
    }

    pub(super) fn normalize(&mut self, node: &Node, groups: Option<usize>, epsilon: f32) -> PlanResult {
        let (x, output) = (self.input(node, 0)?, self.output(node)?);
        let (scale, bias) = (self.input(node, 1)?, self.input(node, 2)?);
        let channels = self.form(x)?[1];
        let groups = groups.unwrap_or(channels);
        if groups == 0 || !channels.is_multiple_of(groups) {
            return unsupported(format!("with {groups} groups of {channels} channels"));
        }
        let inputs = vec![self.source(x)?, self.source(scale)?, self.source(bias)?];
        self.push(Kind::Normalize { groups, epsilon }, inputs, output)
    }

    /// Plans a norm over the last axes, from `axis` on: an instance norm of a sample for each row, and the parameters after it.
    pub(super) fn layer_norm(&mut self, node: &Node, axis: i64, epsilon: f32) -> PlanResult {
        let (x, output) = (self.input(node, 0)?, self.output(node)?);
        let (shape, form) = (self.shape(x)?, self.form(x)?);
        let (axis, _) = self.axis(axis, shape.len())?;
        let rows: usize = shape.iter().take(axis).product();
        let by_row = [rows, 1, 1, 1, count(&form) / rows.max(1)];
        let one = Source::Constant(self.constant([1; 5], vec![1.0]));
        let zero = Source::Constant(self.constant([1; 5], vec![0.0]));
        let from = self.source(x)?;
        let from = self.between(Kind::Reshape, vec![from], by_row);
        let normal = self.between(Kind::Normalize { groups: 1, epsilon }, vec![from, one, zero], by_row);
        let mut y = self.between(Kind::Reshape, vec![normal], form);
        for (index, op) in [(1, BinaryOp::Mul), (2, BinaryOp::Add)] {
            let Some(parameter) = node.input(index) else { continue };
            let own = self.shape(parameter)?;
            let own = broadcast_form(&own, shape.len())
                .map_or_else(|| unsupported(format!("with parameters of shape {own:?}")), Ok)?;
            let parameter = self.source(parameter)?;
            y = self.between(Kind::Binary { op, forms: [form, own] }, vec![y, parameter], form);
        }
        self.push(Kind::Reshape, vec![y], output)
    }

    pub(super) fn batch_norm(&mut self, node: &Node, epsilon: f32) -> PlanResult {
        let (x, output) = (self.input(node, 0)?, self.output(node)?);
        let channels = self.form(x)?[1];
        if (1..5).any(|i| node.input(i).is_some_and(|id| self.graph.constant(id).is_none())) {
            let mut inputs = vec![self.source(x)?];
            for index in 1..5 {
                let part = self.input(node, index)?;
                if count(&self.form(part)?) != channels {
                    return unsupported("without statistics for each channel");
                }
                inputs.push(self.source(part)?);
            }
            return self.push(Kind::Train(TrainKind::FrozenBatchNorm { epsilon }), inputs, output);
        }
        let mut parts: Vec<Vec<f32>> = Vec::with_capacity(4);
        for index in 1..5 {
            let part = self.known(node, index, "statistics")?.and_then(Tensor::as_f32);
            match part.filter(|p| p.len() == channels) {
                Some(part) => parts.push(part.to_vec()),
                None => return unsupported("without statistics for each channel"),
            }
        }
        let at = |part: usize, channel: usize| {
            f64::from(parts.get(part).and_then(|p| p.get(channel)).copied().unwrap_or(0.0))
        };
        let gain = |c: usize| at(0, c) / (at(3, c) + f64::from(epsilon)).sqrt();
        let scale = (0..channels).map(|c| gain(c) as f32).collect();
        let shift = (0..channels).map(|c| (at(1, c) - at(2, c) * gain(c)) as f32).collect();
        let form = [1, channels, 1, 1, 1];
        let (scale, shift) = (self.constant(form, scale), self.constant(form, shift));
        let x = self.source(x)?;
        self.push(Kind::Affine, vec![x, Source::Constant(scale), Source::Constant(shift)], output)
    }
}
