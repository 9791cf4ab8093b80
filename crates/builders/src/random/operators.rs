//! Random attributes of each operator, and the small graphs that some of them are added in.

use super::{CHANNELS, Decisions, NetworkBuilder};
use cytoscope_graph::{
    Activation, BinaryOp, ConvAttrs, ConvTransposeAttrs, CoordinateMode, NearestMode, Op, PadMode, Padding, PoolAttrs,
    ReduceOp, ResizeAttrs, ResizeMode, Result, Tensor, UnaryOp, ValueId,
};

impl NetworkBuilder<'_> {
    /// Draws a length for each spatial axis.
    fn per_axis(&mut self, mut one: impl FnMut(&mut Decisions<'_>) -> usize) -> Vec<usize> {
        (0..self.axes).map(|_| one(&mut self.decisions)).collect()
    }

    /// Draws kernel, strides, dilations and padding of a window.
    fn window(&mut self) -> (Vec<usize>, Vec<usize>, Vec<usize>, Padding) {
        let kernel = if self.decisions.below(3) == 0 {
            self.per_axis(|d| d.pick(&[1, 2, 3, 4, 5]))
        } else {
            vec![self.decisions.pick(&[3, 1, 2]); self.axes]
        };
        let strides = if self.decisions.one_in(3) { self.per_axis(|d| 1 + d.below(3)) } else { vec![1; self.axes] };
        let dilations = if self.decisions.one_in(5) { self.per_axis(|d| 1 + d.below(2)) } else { vec![1; self.axes] };
        let padding = match self.decisions.below(8) {
            0..=2 => Padding::symmetric(kernel.iter().zip(&dilations).map(|(k, d)| (k - 1) * d / 2).collect()),
            3..=5 => {
                let decisions = &mut self.decisions;
                let mut side = || kernel.iter().map(|k| decisions.below(*k)).collect::<Vec<_>>();
                Padding::Explicit { before: side(), after: side() }
            }
            6 => Padding::none(self.axes),
            // With dilations, ONNX does not define "same" padding.
            _ if dilations.iter().any(|d| *d > 1) => Padding::none(self.axes),
            _ if self.decisions.one_in(2) => Padding::SameUpper,
            _ => Padding::SameLower,
        };
        (kernel, strides, dilations, padding)
    }

    pub(super) fn conv(&mut self, x: ValueId) -> Result<Option<ValueId>> {
        let channels = self.shape(x)[1];
        let (kernel, strides, dilations, padding) = self.window();
        let (group, outputs) = match self.decisions.below(6) {
            0 => (channels, channels * (1 + self.decisions.below(2))),
            1 if channels.is_multiple_of(2) => (2, 2 * self.decisions.pick(&[1, 2, 8, 16])),
            2 if channels.is_multiple_of(4) => (4, 4 * self.decisions.pick(&[1, 4])),
            _ => (1, self.decisions.pick(&CHANNELS)),
        };
        let shape = [&[outputs, channels / group][..], &kernel].concat();
        let inputs: usize = shape.iter().skip(1).product();
        let w = self.noise(&shape, 1.0 / (inputs as f32).sqrt())?;
        let b = if self.decisions.one_in(2) { self.channel_constant(outputs, 0.0, 0.3) } else { None };
        let attrs = ConvAttrs { kernel, strides, dilations, padding, group };
        Ok(self.try_add_one(Op::Conv(attrs), &[Some(x), w, b]))
    }

    pub(super) fn conv_transpose(&mut self, x: ValueId) -> Result<Option<ValueId>> {
        let channels = self.shape(x)[1];
        let outputs = self.decisions.pick(&CHANNELS);
        let attrs = if self.decisions.one_in(2) {
            ConvTransposeAttrs::upsample(&self.per_axis(|d| 1 + d.below(3)))
        } else {
            let kernel = self.per_axis(|d| 1 + d.below(4));
            let strides = self.per_axis(|d| 1 + d.below(3));
            let dilations =
                if self.decisions.one_in(4) { self.per_axis(|d| 1 + d.below(2)) } else { vec![1; self.axes] };
            let decisions = &mut self.decisions;
            let mut side = || kernel.iter().map(|k| decisions.below(*k)).collect::<Vec<_>>();
            let padding = Padding::Explicit { before: side(), after: side() };
            let output_padding = strides.iter().map(|s| self.decisions.below(*s)).collect();
            let group = if channels.is_multiple_of(2) && self.decisions.one_in(3) { 2 } else { 1 };
            ConvTransposeAttrs { kernel, strides, dilations, padding, output_padding, output_shape: None, group }
        };
        let per_group = outputs.div_ceil(attrs.group);
        let shape = [&[channels, per_group][..], &attrs.kernel].concat();
        let w = self.noise(&shape, 1.0 / (channels as f32).sqrt())?;
        let b = if self.decisions.one_in(2) { self.channel_constant(per_group * attrs.group, 0.0, 0.3) } else { None };
        Ok(self.try_add_one(Op::ConvTranspose(attrs), &[Some(x), w, b]))
    }

    pub(super) fn concat(&mut self, x: ValueId) {
        let shape = self.shape(x);
        let axis = if self.decisions.below(4) == 0 { self.decisions.below(shape.len()) } else { 1 };
        let fits = |other: &[usize]| other.iter().zip(&shape).enumerate().all(|(i, (a, b))| i == axis || a == b);
        let others: Vec<ValueId> = self.values.iter().copied().filter(|v| fits(&self.shape(*v))).collect();
        let mut parts = vec![Some(x)];
        for _ in 0..1 + self.decisions.below(3) {
            // Repeating one value is as likely as using different ones.
            let other = if self.decisions.one_in(2) { x } else { self.decisions.pick(&others) };
            parts.push(Some(other));
        }
        if self.decisions.one_in(2) {
            parts.reverse();
        }
        let axis = if self.decisions.one_in(2) { axis as i64 } else { axis as i64 - shape.len() as i64 };
        self.try_add_one(Op::concat(axis), &parts);
    }

    pub(super) fn resize(&mut self, x: ValueId) {
        let shape = self.shape(x);
        let mode =
            self.decisions.pick(&[ResizeMode::Nearest, ResizeMode::Nearest, ResizeMode::Linear, ResizeMode::Linear]);
        let mode = if self.decisions.below(12) == 5 { ResizeMode::Cubic } else { mode };
        let attrs = ResizeAttrs {
            mode,
            coordinates: self.decisions.pick(&[
                CoordinateMode::Asymmetric,
                CoordinateMode::HalfPixel,
                CoordinateMode::PytorchHalfPixel,
                CoordinateMode::AlignCorners,
                CoordinateMode::HalfPixelSymmetric,
            ]),
            nearest: self.decisions.pick(&[
                NearestMode::Floor,
                NearestMode::RoundPreferFloor,
                NearestMode::RoundPreferCeil,
                NearestMode::Ceil,
            ]),
            ..ResizeAttrs::nearest()
        };
        let by_length = self.decisions.one_in(3);
        let decisions = &mut self.decisions;
        let (scales, sizes) = if by_length {
            let sizes = shape.iter().enumerate().map(|(i, n)| if i < 2 { *n } else { 1 + decisions.below(9) } as i64);
            let sizes = sizes.collect();
            (None, self.ints(sizes))
        } else {
            // Multiples of one half, so scaled lengths are exact.
            let factors = [2.0f32, 1.0, 3.0, 0.5, 1.5, 2.5];
            let scales =
                shape.iter().enumerate().map(|(i, _)| if i < 2 { 1.0 } else { decisions.pick(&factors) }).collect();
            (self.constant(Tensor::vector::<f32>(scales)), None)
        };
        self.try_add_one(Op::resize(attrs), &[Some(x), None, scales, sizes]);
    }

    pub(super) fn pool(&mut self, x: ValueId) {
        let (kernel, strides, dilations, padding) = self.window();
        let attrs = PoolAttrs {
            kernel,
            strides,
            dilations,
            padding,
            ceil_mode: self.decisions.one_in(3),
            count_include_pad: self.decisions.one_in(3),
            column_major_indices: false,
        };
        if self.decisions.one_in(2) {
            self.try_add_one(Op::MaxPool(PoolAttrs { count_include_pad: false, ..attrs }), &[Some(x)]);
        } else {
            self.try_add_one(Op::AveragePool(attrs), &[Some(x)]);
        }
    }

    pub(super) fn split(&mut self, x: ValueId) {
        let shape = self.shape(x);
        let axis = if self.decisions.one_in(2) { 1 } else { self.decisions.below(shape.len()) };
        let length = shape[axis];
        let first = if length > 16 && self.decisions.one_in(2) { 16 } else { 1 + self.decisions.below(length) };
        let mut parts = vec![first as i64];
        if first < length {
            parts.push((length - first) as i64);
        }
        let count = parts.len();
        let lengths = self.ints(parts);
        self.try_add(Op::Split { axis: axis as i64 }, &[Some(x), lengths], count);
    }

    pub(super) fn slice(&mut self, x: ValueId) {
        let shape = self.shape(x);
        let (mut starts, mut ends, mut axes, mut steps) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for axis in 0..shape.len() {
            if self.decisions.below(2) == 0 {
                continue;
            }
            let n = shape[axis];
            let first = self.decisions.below(n) as i64;
            let last = first + 1 + self.decisions.below(n) as i64;
            let backwards = self.decisions.below(4) == 3;
            starts.push(if backwards { last.min(n as i64) - 1 } else { first });
            ends.push(if backwards { first - 1 - n as i64 } else { last });
            axes.push(axis as i64);
            steps.push((1 + self.decisions.below(2) as i64) * if backwards { -1 } else { 1 });
        }
        let inputs = [self.ints(starts), self.ints(ends), self.ints(axes), self.ints(steps)];
        self.try_add_one(Op::Slice, &[&[Some(x)][..], &inputs].concat());
    }

    pub(super) fn transpose(&mut self, x: ValueId) {
        let first = if self.decisions.one_in(3) { 0 } else { 2 };
        let mut perm: Vec<usize> = (0..self.axes + 2).collect();
        for i in (first + 1..perm.len()).rev() {
            let j = first + self.decisions.below(i + 1 - first);
            perm.swap(i, j);
        }
        self.try_add_one(Op::Transpose { perm }, &[Some(x)]);
    }

    pub(super) fn pad(&mut self, x: ValueId) {
        let shape = self.shape(x);
        let mode = self.decisions.pick(&[PadMode::Constant, PadMode::Reflect, PadMode::Edge, PadMode::Wrap]);
        let spatial_only = !self.decisions.one_in(4);
        let mut pads = Vec::new();
        for _ in 0..2 {
            for (axis, n) in shape.iter().enumerate() {
                let most = if mode == PadMode::Constant || mode == PadMode::Edge { 3 } else { 3.min(*n) };
                let width = if axis < 2 && spatial_only { 0 } else { self.decisions.below(most) as i64 };
                pads.push(if self.decisions.below(16) == 7 { -width } else { width });
            }
        }
        // Negative pads (cropping) are generated only in constant mode; other modes use the absolute widths.
        let crops_unsupported = pads.iter().any(|p| *p < 0) && mode != PadMode::Constant;
        let pads = if crops_unsupported { pads.iter().map(|p| p.abs()).collect() } else { pads };
        let pads = self.ints(pads);
        let value = if mode == PadMode::Constant && self.decisions.one_in(2) {
            self.constant(Tensor::scalar(0.25f32))
        } else {
            None
        };
        self.try_add_one(Op::Pad { mode }, &[Some(x), pads, value]);
    }

    pub(super) fn binary(&mut self, x: ValueId) {
        let shape = self.shape(x);
        let alike: Vec<ValueId> = self.values.iter().copied().filter(|v| self.shape(*v) == shape).collect();
        let other = self.decisions.pick(&alike);
        let ops =
            [BinaryOp::Add, BinaryOp::Add, BinaryOp::Add, BinaryOp::Mul, BinaryOp::Sub, BinaryOp::Max, BinaryOp::Min];
        let op = self.decisions.pick(&ops);
        let inputs = if self.decisions.one_in(2) { [Some(other), Some(x)] } else { [Some(x), Some(other)] };
        self.try_add_one(Op::Binary(op), &inputs);
    }

    /// Combines a value with a scalar, a number per channel, or a constant of the same shape.
    pub(super) fn with_constant(&mut self, x: ValueId) -> Result<()> {
        let shape = self.shape(x);
        let op = self.decisions.pick(&[BinaryOp::Add, BinaryOp::Mul, BinaryOp::Sub, BinaryOp::Max]);
        let other = match self.decisions.below(4) {
            0 => Vec::new(),
            1 => [&[shape[1]][..], &vec![1; self.axes]].concat(),
            2 => [&[1, shape[1]][..], &vec![1; self.axes]].concat(),
            _ => shape,
        };
        let other = self.noise(&other, 1.0)?;
        let inputs = if self.decisions.one_in(3) { [other, Some(x)] } else { [Some(x), other] };
        self.try_add_one(Op::Binary(op), &inputs);
        Ok(())
    }

    pub(super) fn activation(&mut self, x: ValueId) -> Option<ValueId> {
        let activation = self.decisions.pick(&[
            Activation::Relu,
            Activation::Relu,
            Activation::LeakyRelu { alpha: 0.1 },
            Activation::LeakyRelu { alpha: 0.01 },
            Activation::Sigmoid,
            Activation::Tanh,
            Activation::Elu { alpha: 1.0 },
            Activation::Gelu { tanh: false },
            Activation::HardSigmoid { alpha: 0.2, beta: 0.5 },
            Activation::HardSwish,
            Activation::Mish,
            Activation::Softplus,
            Activation::Softsign,
            Activation::Selu { alpha: 1.673_263_2, gamma: 1.050_701 },
        ]);
        self.try_add_one(Op::Activation(activation), &[Some(x)])
    }

    pub(super) fn norm(&mut self, x: ValueId) -> Option<ValueId> {
        let channels = self.shape(x)[1];
        let (scale, bias) = (self.channel_constant(channels, 1.0, 0.2), self.channel_constant(channels, 0.0, 0.3));
        match self.decisions.below(3) {
            0 => self.try_add_one(Op::InstanceNormalization { epsilon: 1e-3 }, &[Some(x), scale, bias]),
            1 => {
                let groups = [4, 3, 2, 1].into_iter().find(|g| channels.is_multiple_of(*g)).unwrap_or(1);
                self.try_add_one(Op::GroupNormalization { groups, epsilon: 1e-3 }, &[Some(x), scale, bias])
            }
            _ => {
                let (mean, variance) =
                    (self.channel_constant(channels, 0.0, 0.3), self.channel_constant(channels, 2.0, 0.3));
                self.try_add_one(Op::BatchNormalization { epsilon: 1e-3 }, &[Some(x), scale, bias, mean, variance])
            }
        }
    }

    pub(super) fn reduce(&mut self, x: ValueId) {
        match self.decisions.below(4) {
            0 => drop(self.try_add_one(Op::GlobalAveragePool, &[Some(x)])),
            1 => drop(self.try_add_one(Op::GlobalMaxPool, &[Some(x)])),
            2 => drop(self.try_add_one(Op::Softmax { axis: 1 }, &[Some(x)])),
            _ => {
                let axis = self.decisions.below(self.axes + 2) as i64;
                let axes = self.ints(vec![axis]);
                let kind = self.decisions.pick(&[ReduceOp::Mean, ReduceOp::Max, ReduceOp::Sum]);
                self.try_add_one(Op::Reduce { kind, keep_dims: true, noop_with_empty_axes: false }, &[Some(x), axes]);
            }
        }
    }

    /// Adds a convolution, and optionally the layers that usually follow it: a norm, a residual, an activation.
    pub(super) fn block(&mut self, x: ValueId) -> Result<()> {
        let Some(mut y) = self.conv(x)? else { return Ok(()) };
        if self.decisions.one_in(2) {
            y = self.norm(y).unwrap_or(y);
        }
        let shape = self.shape(y);
        let alike: Vec<ValueId> = self.values.iter().copied().filter(|v| self.shape(*v) == shape).collect();
        if self.decisions.one_in(2) {
            let other = self.decisions.pick(&alike);
            y = self.try_add_one(Op::Binary(BinaryOp::Add), &[Some(y), Some(other)]).unwrap_or(y);
        }
        if self.decisions.one_in(2) {
            self.activation(y);
        }
        Ok(())
    }

    /// Adds an identity, a unary operator, or a gate made of a sigmoid.
    pub(super) fn identity_or_unary(&mut self, x: ValueId) {
        match self.decisions.below(4) {
            0 => drop(self.try_add_one(Op::Identity, &[Some(x)])),
            1 => drop(self.try_add_one(Op::Unary(UnaryOp::Abs), &[Some(x)])),
            2 => drop(self.try_add_one(Op::Unary(UnaryOp::Neg), &[Some(x)])),
            _ => {
                let gate = self.try_add_one(Op::Activation(Activation::Sigmoid), &[Some(x)]);
                self.try_add_one(Op::Binary(BinaryOp::Mul), &[Some(x), gate]);
            }
        }
    }
}
