//! Runs one step on a device through Burn, generic over the backend.

mod elementwise;
mod layers;
mod moves;
mod train;

pub(crate) use moves::{add_weighted, copy_part, covered, gather_tiles, join_parts};

use crate::kernels::{Curve, DeviceBackend, FactorType, Training};
use crate::plan::{GpuStep, Kind};
use burn_tensor::{DType, FloatDType, Int, Tensor, backend::Backend};
use cytoscope_graph::ElementType;

/// A tensor on a device, with axes N, C, Z, Y, X.
pub(crate) type Image<B> = Tensor<B, 5>;

/// Constants on the device, and how to compute with them.
pub(crate) struct Uploaded<B: Backend> {
    /// The type to which convolutions of 32-bit tensors round their factors for matrix units, if any.
    pub wide_factor_type: Option<FactorType>,
    /// Constants of the program on the device, by their index in it.
    pub constants: Vec<Image<B>>,
    /// The program's tables of input positions.
    pub tables: Vec<Tensor<B, 1, Int>>,
}

/// The inputs of a step, consumed in order.
struct Inputs<B: Backend>(std::vec::IntoIter<Image<B>>);

impl<B: Backend> Inputs<B> {
    /// Returns the next input; `None` means that the plan is wrong.
    fn next(&mut self) -> Option<Image<B>> {
        self.0.next()
    }

    /// Returns the next input if `wanted`.
    fn next_if(&mut self, wanted: bool) -> Option<Option<Image<B>>> {
        if wanted { self.next().map(Some) } else { Some(None) }
    }
}

/// Runs a step. Returns `None` if the inputs do not match the plan. Panics if Burn panics.
pub(crate) fn run<B: DeviceBackend>(
    step: &GpuStep,
    inputs: Vec<Image<B>>,
    uploaded: &Uploaded<B>,
) -> Option<Vec<Image<B>>> {
    match &step.kind {
        Kind::Direct(kind, to) => {
            let &(_, form) = step.outputs.first()?;
            B::direct(kind, *to, form, inputs).map(|output| vec![output])
        }
        Kind::Train(kind) => train::run(kind, &step.outputs, inputs, uploaded),
        _ => one(step, inputs, uploaded).map(|output| vec![output]),
    }
}

/// Converts the elements to another float type.
pub(crate) fn cast<B: DeviceBackend>(x: Image<B>, to: ElementType) -> Image<B> {
    if let Some(y) = B::train(&Training::Convert(to), vec![x.clone()]).and_then(|mut made| made.pop()) {
        return y;
    }
    x.cast(match to {
        ElementType::F16 => FloatDType::F16,
        ElementType::BF16 => FloatDType::BF16,
        _ => FloatDType::F32,
    })
}

/// Returns whether the elements are 16-bit floats.
fn is_half<B: Backend, const D: usize>(x: &Tensor<B, D>) -> bool {
    matches!(x.dtype(), DType::F16 | DType::BF16)
}

/// Runs a step with one output.
fn one<B: DeviceBackend>(step: &GpuStep, inputs: Vec<Image<B>>, uploaded: &Uploaded<B>) -> Option<Image<B>> {
    let (_, form) = *step.outputs.first()?;
    if let Kind::Concat { axis } = step.kind {
        return moves::concatenate(inputs, axis);
    }
    let mut inputs = Inputs(inputs.into_iter());
    let x = inputs.next()?;
    Some(match &step.kind {
        Kind::Conv { window, bias, residual, activation } => {
            let (w, b, r) = (inputs.next()?, inputs.next_if(*bias)?, inputs.next_if(*residual)?);
            let own = activation.and_then(Curve::of);
            let curve = own.unwrap_or(Curve::IDENTITY);
            let y = match r {
                Some(r) => {
                    let y = layers::conv(x, [Some(w), b], window, form, Curve::IDENTITY, uploaded)?;
                    elementwise::sum(y, r, curve)?
                }
                None => layers::conv(x, [Some(w), b], window, form, curve, uploaded)?,
            };
            match activation {
                Some(activation) if own.is_none() => elementwise::activate(y, *activation),
                _ => y,
            }
        }
        Kind::Upsample { factors, channels, bias } => {
            let (w, b) = (inputs.next()?, inputs.next_if(*bias)?);
            layers::upsample(x, w, b, *factors, *channels, uploaded)?
        }
        Kind::ConvTranspose { taps, bias } => {
            let (w, b) = (inputs.next()?, inputs.next_if(*bias)?);
            layers::conv_transpose(x, [Some(w), b], taps, form, uploaded)?
        }
        Kind::Normalize { groups, epsilon } => {
            let (scale, bias) = (inputs.next()?, inputs.next()?);
            layers::normalize(x, scale, bias, *groups, *epsilon)
        }
        Kind::Affine => {
            let (scale, shift) = (inputs.next()?, inputs.next()?);
            x * scale + shift
        }
        Kind::Activation(activation) => elementwise::activate(x, *activation),
        Kind::PRelu { slope } => {
            let slope = moves::reshape(inputs.next()?, *slope);
            x.clone().clamp_min(0.0) + x.clamp_max(0.0) * slope
        }
        Kind::Softmax { axis, log: false } => burn_tensor::activation::softmax(x, *axis),
        Kind::Softmax { axis, log: true } => burn_tensor::activation::log_softmax(x, *axis),
        Kind::Pool { max, before, after, axes } => layers::pool(x, *max, (before, after), axes, &uploaded.constants)?,
        Kind::Resample(axes) => moves::resample(x, axes, uploaded)?,
        Kind::Pad { cut, before, after, value } => moves::fill(moves::slice(x, cut), before, after, *value),
        Kind::Slice(cuts) => moves::cut(x, cuts),
        Kind::Unary(op) => elementwise::unary(x, *op)?,
        Kind::Binary { op, forms } => {
            let b = inputs.next()?;
            elementwise::binary(moves::reshape(x, forms[0]), moves::reshape(b, forms[1]), *op)?
        }
        Kind::Scalar { op, value, reversed } => elementwise::scalar(x, *op, *value, *reversed)?,
        Kind::Reduce { kind, runs } => moves::reshape(elementwise::reduce(x, *kind, runs)?, form),
        Kind::ArgReduce { max, last, axis } => elementwise::arg_reduce(x, inputs.next()?, *axis, [*max, *last])?,
        Kind::Permute(order) => x.permute(order.map(|a| a as isize)),
        Kind::Reshape => moves::reshape(x, form),
        Kind::Cast(to) => cast(x, *to),
        Kind::Shuffle { six, order } => x.reshape(*six).permute(order.map(|a| a as isize)).reshape(form),
        Kind::Expand { from } => moves::reshape(x, *from).expand(form),
        Kind::Choose(forms) => {
            let (a, b) = (inputs.next()?, inputs.next()?);
            let [condition, a, b] = [(x, forms[0]), (a, forms[1]), (b, forms[2])]
                .map(|(value, own)| moves::reshape(value, own).expand(form));
            b.mask_where(condition.greater_elem(0.5), a)
        }
        Kind::Concat { .. } | Kind::Train(_) | Kind::Direct(..) => return None,
    })
}
