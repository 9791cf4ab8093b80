//! The kernels that training steps use.

use super::conv_training::{self, Filter};
use super::curve::Curve;
use super::elementwise;
use super::loss::{self, Compared};
use super::loss_scale;
use super::memory::{self, ALIGNMENT, Dense, Layout, Reach, axes, dense};
use super::optimizer::{self, Update};
use super::parts::{self, LongPart};
use super::tile::FactorType;
use super::{
    array, channels_kept, channels_last, channels_second, float_type, moves, norm_training, packed, primitive,
};
use super::{sums, weights};
use crate::exec::Image;
use crate::form::{Form, count};
use crate::plan::{ConvGeometry, NormScope, Taps};
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime};
use burn_tensor::{DType, Tensor};
use cytoscope_graph::{ElementType, Loss, LossScale, Optimizer, ScaleState, StepNumbers};

/// Computation of a kernel for training steps. Each variant lists its inputs and outputs.
#[derive(Debug, Clone)]
pub(crate) enum Training {
    /// `[x, w, bias?]` -> y, a convolution with an activation, of this form, in the type of its inputs. Factors of 16 bits
    /// are multiplied on matrix units, those of 32 bits only if they may be rounded to the type `wide_factor_type`.
    Convolve { window: ConvGeometry, form: Form, curve: Curve, wide_factor_type: Option<FactorType> },
    /// `[x, dy]` -> dw, the gradient of the weights of a convolution, of this form: for each output channel, input channel
    /// and tap, the products of the voxels of `x` that the tap reads with those of `dy`, summed over samples and space.
    /// Factors are multiplied as by [`Training::Convolve`].
    WeightGradient { taps: Taps, form: Form, wide_factor_type: Option<FactorType> },
    /// `[dy, w, bias?]` -> dx, the input gradient of a convolution, of this form, in the type of its inputs; with a bias of
    /// its channels, a transposed convolution. Factors are multiplied as by [`Training::Convolve`].
    InputGradient { taps: Taps, form: Form, wide_factor_type: Option<FactorType> },
    /// `[y, dy, more?]` -> dx, the gradient of an activation that is linear on both sides of 0, with slope 1 above and this
    /// slope below, at its result (or input) `y`. `more` is added to `dy` before.
    ActivationGradient { slope: f32 },
    /// `[a, b]` -> their sum after an activation.
    Add(Curve),
    /// `[a, s, b, t]` -> a·s + b·t, with single numbers s and t.
    Blend,
    /// `[x]` -> the activation of x times this factor.
    Activate { factor: f32, curve: Curve },
    /// `[x]` -> x with elements of this type.
    Convert(ElementType),
    /// `[x]` -> the sum of each channel over samples and space.
    ChannelSums,
    /// `[a, b]` -> their channels, those of `a` first.
    Concat,
    /// `[x]` -> the elements of x from `start` on, as a tensor of this form.
    Cut { start: Form, form: Form },
    /// `[x, scale, bias]` -> `[y, mean?, variance?, activated y?]`, a norm; only those of channels over the batch have
    /// statistics.
    Norm { over: NormScope, epsilon: f32, statistics: [bool; 2], curve: Option<Curve> },
    /// `[x, scale, dy, y?]` -> `[dx?, gradient of scale?, gradient of bias?]` of a norm. With a slope, its result `y`
    /// passes an activation with slope 1 above 0 and this slope below, whose gradient is `dy`.
    NormGradient { over: NormScope, epsilon: f32, wanted: [bool; 3], slope: Option<f32> },
    /// `[part…]` -> a long tensor of `elements` elements, which has the parts at `starts` and is 0 elsewhere. The first part
    /// starts at 0.
    Join { starts: Vec<usize>, elements: usize },
    /// `[x]` -> this many elements of a long tensor from `start`, a multiple of [`ALIGNMENT`], on, in the same memory.
    Part { start: usize, elements: usize },
    /// `[prediction, target, weight?]` -> the loss.
    Loss(Loss),
    /// `[prediction, target, gradient of the loss, weight?]` -> the gradient of the prediction.
    LossGradient(Loss),
    /// `[g…]` -> the L2 norm of all their elements.
    GlobalNorm,
    /// `[loss, norm, state, given]` -> `[hyper, state, scale, loss]`, the decision about a step with a loss scale.
    LossScale(LossScale),
    /// `[hyper, norm, p, g, first, second?]` -> `[p, first, second?]`, an update by the optimizer.
    Update(Optimizer),
}

impl Training {
    /// Returns the forms of the outputs for inputs of these forms and types; `None` if there is no kernel.
    pub(super) fn outputs(&self, forms: &[Form], types: &[DType]) -> Option<Vec<Form>> {
        let is_f32 = types.iter().all(|dtype| *dtype == DType::F32);
        let first = *forms.first()?;
        match *self {
            Training::Convolve { window, form, .. } => {
                let w = forms.get(1)?;
                let fits = first[1] == w[1] * window.groups && w[0] == form[1] && first[0] == form[0];
                (fits && are_floats(types)).then(|| vec![form])
            }
            Training::InputGradient { taps, form, .. } => {
                let w = forms.get(1)?;
                let is_alike = first[1] == w[0] && w[1] * taps.groups == form[1] && first[0] == form[0];
                (is_alike && w[2..] == taps.kernel && are_floats(types)).then(|| vec![form])
            }
            Training::WeightGradient { form, .. } => Some(vec![form]),
            Training::ActivationGradient { .. } => {
                (are_floats(types) && forms.iter().all(|form| *form == first)).then(|| vec![first])
            }
            Training::Add(_) => (are_floats(types) && forms.get(1) == Some(&first)).then(|| vec![first]),
            Training::Blend => {
                let [a, a_share, b, b_share] = *forms else { return None };
                let fits = a == b && count(&a_share) == 1 && count(&b_share) == 1;
                (is_f32 && fits).then(|| vec![first])
            }
            Training::Convert(_) | Training::Activate { .. } => are_floats(types).then(|| vec![first]),
            Training::ChannelSums => {
                (are_floats(types) && first[1] <= sums::MAX_CHANNELS).then(|| vec![[first[1], 1, 1, 1, 1]])
            }
            Training::Cut { start, form } => {
                let fits = (0..5).all(|a| form[a] > 0 && start[a] + form[a] <= first[a]);
                (fits && are_floats(types)).then(|| vec![form])
            }
            Training::Concat => {
                let b = forms.get(1)?;
                let joined = [first[0], first[1] + b[1], first[2], first[3], first[4]];
                let fits = are_floats(types) && forms.len() == 2 && first[0] == b[0] && first[2..] == b[2..];
                fits.then(|| vec![joined])
            }
            Training::Join { ref starts, elements } => {
                (is_f32 && starts.len() == forms.len()).then(|| vec![[elements, 1, 1, 1, 1]])
            }
            Training::Part { start, elements } => {
                let fits = is_f32 && start.is_multiple_of(ALIGNMENT) && start + elements <= count(&first);
                fits.then(|| vec![[elements, 1, 1, 1, 1]])
            }
            Training::Norm { .. } | Training::NormGradient { .. } => {
                if is_f32 {
                    self.norm_outputs(first, *forms.get(1)?)
                } else {
                    None
                }
            }
            Training::Loss(ref loss) => (is_f32 && fits_loss(loss, forms, 2)).then(|| vec![[1; 5]]),
            Training::LossGradient(ref loss) => (is_f32 && fits_loss(loss, forms, 3)).then(|| vec![first]),
            Training::GlobalNorm => is_f32.then(|| vec![[1; 5]]),
            Training::LossScale(_) => {
                let lengths: Vec<usize> = forms.iter().map(count).collect();
                let fits = is_f32 && lengths == [1, 1, ScaleState::LENGTH, StepNumbers::LENGTH];
                fits.then(|| loss_scale::FORMS.to_vec())
            }
            Training::Update(optimizer) => {
                let states = if optimizer.has_second_moment() { 3 } else { 2 };
                let p = *forms.get(2)?;
                let fits = forms.len() == states + 3 && forms.iter().skip(2).all(|form| *form == p);
                (is_f32 && fits && count(&first) == 4 && forms.get(1) == Some(&[1; 5])).then(|| vec![p; states])
            }
        }
    }

    /// Returns the forms of the outputs of a norm or its gradient, for `x` and scales of these forms.
    fn norm_outputs(&self, x: Form, scale: Form) -> Option<Vec<Form>> {
        let (over, first, wanted, last) = match *self {
            Training::Norm { over, statistics, curve, .. } => (over, true, statistics, curve.is_some()),
            Training::NormGradient { over, wanted: [to_x, scale, bias], .. } => (over, to_x, [scale, bias], false),
            _ => return None,
        };
        let mut outputs: Vec<Form> = first.then_some(x).into_iter().collect();
        outputs.extend(wanted.iter().filter(|wanted| **wanted).map(|_| [x[1], 1, 1, 1, 1]));
        outputs.extend(last.then_some(x));
        (count(&scale) == x[1] && norm_training::suits(over, x[0], x[1])).then_some(outputs)
    }

    /// Returns the type of the outputs for a first input of this type.
    pub(super) fn output_type(&self, first: DType) -> DType {
        match self {
            Training::Convert(to) => float_type(*to).unwrap_or(first),
            _ => first,
        }
    }

    /// Returns the name of the operation in Burn's queue.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Training::Convolve { .. } => "convolve",
            Training::WeightGradient { .. } => "weight_gradient",
            Training::InputGradient { .. } => "input_gradient",
            Training::ActivationGradient { .. } => "activation_gradient",
            Training::Add(_) => "add",
            Training::Blend => "blend",
            Training::Activate { .. } => "activate",
            Training::Convert(_) => "convert",
            Training::ChannelSums => "channel_sums",
            Training::Concat => "concat",
            Training::Cut { .. } => "cut",
            Training::Norm { .. } => "norm",
            Training::NormGradient { .. } => "norm_gradient",
            Training::Join { .. } => "join",
            Training::Part { .. } => "part",
            Training::Loss(_) => "loss",
            Training::LossGradient(_) => "loss_gradient",
            Training::GlobalNorm => "global_norm",
            Training::LossScale(_) => "loss_scale",
            Training::Update(_) => "update",
        }
    }
}

/// An image of the backend that runs the kernels.
type Own<R, BT> = Image<CubeBackend<R, f32, i32, BT>>;

/// Returns whether all types are the same type of floats.
fn are_floats(types: &[DType]) -> bool {
    let first = types.first();
    matches!(first, Some(DType::F32 | DType::F16 | DType::BF16)) && types.iter().all(|other| Some(other) == first)
}

/// Returns whether a loss fits to prediction and target, and to the weights, which are input `weight_at` if there are some.
fn fits_loss(loss: &Loss, forms: &[Form], weight_at: usize) -> bool {
    let [x, target, ..] = *forms else { return false };
    let channels = x[1].min(target[1]);
    let has_place = |form: &Form| form[0] == x[0] && form[2..] == x[2..];
    let weight = forms.get(weight_at);
    loss.check(channels).is_ok() && has_place(&target) && weight.is_none_or(|w| w[1] == 1 && has_place(w))
}

/// Runs a kernel. Returns `None` if it does not suit the inputs.
pub(super) fn run<R: CubeRuntime, BT: BoolElement>(
    kernel: &Training,
    inputs: Vec<Own<R, BT>>,
) -> Option<Vec<Own<R, BT>>> {
    let forms: Vec<Form> = inputs.iter().map(Tensor::dims).collect();
    let types: Vec<DType> = inputs.iter().map(Tensor::dtype).collect();
    kernel.outputs(&forms, &types)?;
    let mut inputs = inputs.into_iter();
    match *kernel {
        Training::Convolve { .. } | Training::InputGradient { .. } | Training::WeightGradient { .. } => {
            run_convolution(kernel, inputs)
        }
        Training::Norm { .. } | Training::NormGradient { .. } => run_norm(kernel, inputs),
        Training::Concat | Training::Cut { .. } | Training::Join { .. } | Training::Part { .. } => {
            run_move(kernel, inputs, &forms)
        }
        Training::ActivationGradient { slope } => {
            let (y, dy) = (last(inputs.next()?)?, last(inputs.next()?)?);
            let more = match inputs.next() {
                Some(more) => Some(last(more)?),
                None => None,
            };
            Some(vec![channels_second(elementwise::activation_gradient(y, dy, more, slope))])
        }
        Training::Add(by) => {
            let (a, b) = (last(inputs.next()?)?, last(inputs.next()?)?);
            Some(vec![channels_second(elementwise::sum(a, b, by))])
        }
        Training::Blend => {
            let mut next = || inputs.next().map(packed);
            let all = [next()?, next()?, next()?, next()?];
            Some(vec![channels_kept(elementwise::blend(all, *forms.first()?))])
        }
        Training::Convert(to) => {
            let (x, form, to) = (inputs.next()?, *forms.first()?, float_type(to)?);
            let y = match memory::in_order(&primitive(x.clone())) {
                Some(x) => channels_kept(memory::reshaped(elementwise::converted(x, to), form)),
                None => channels_second(elementwise::converted(last(x)?, to)),
            };
            Some(vec![y])
        }
        Training::Activate { factor, curve } => {
            Some(vec![channels_second(elementwise::activate(last(inputs.next()?)?, factor, curve))])
        }
        Training::ChannelSums => Some(vec![channels_kept(sums::channel_sums(last(inputs.next()?)?))]),
        Training::Loss(ref loss) => {
            let (x, target) = (primitive(inputs.next()?), primitive(inputs.next()?));
            let compared = Compared { x, target, weight: inputs.next().map(primitive) };
            Some(vec![channels_kept(loss::loss_value(loss, compared)?)])
        }
        Training::LossGradient(ref loss) => {
            let (x, target, dy) = (primitive(inputs.next()?), primitive(inputs.next()?), array(inputs.next()?));
            let compared = Compared { x, target, weight: inputs.next().map(primitive) };
            Some(vec![channels_second(loss::gradient(loss, compared, &dy)?)])
        }
        Training::GlobalNorm => Some(vec![channels_kept(sums::global_norm(inputs.map(packed).collect())?)]),
        Training::LossScale(rule) => {
            let mut next = || inputs.next().map(packed);
            let made = loss_scale::decide([next()?, next()?, next()?, next()?], rule)?;
            Some(made.into_iter().map(channels_kept).collect())
        }
        Training::Update(optimizer) => {
            let mut next = || inputs.next().map(packed);
            let (hyper, norm, parameters) = (next()?, next()?, next()?);
            let update = Update { hyper, norm, parameters, gradients: next()?, first: next()?, second: next() };
            let made = optimizer::update(update, optimizer, *forms.get(2)?)?;
            Some(made.into_iter().map(channels_kept).collect())
        }
    }
}

/// Runs a convolution or one of its gradients.
fn run_convolution<R: CubeRuntime, BT: BoolElement>(
    kernel: &Training,
    mut inputs: impl Iterator<Item = Own<R, BT>>,
) -> Option<Vec<Own<R, BT>>> {
    let first = last(inputs.next()?)?;
    match *kernel {
        Training::Convolve { window, form, curve, wide_factor_type } => {
            let filter =
                Filter { weights: primitive(inputs.next()?), bias: inputs.next().map(packed), wide_factor_type };
            Some(vec![channels_second(conv_training::forward(first, filter, &window, form, curve)?)])
        }
        Training::InputGradient { ref taps, form, wide_factor_type } => {
            let filter = Filter { weights: packed(inputs.next()?), bias: inputs.next().map(packed), wide_factor_type };
            Some(vec![channels_second(conv_training::input_gradient(first, filter, taps, form))])
        }
        Training::WeightGradient { taps, wide_factor_type, .. } => {
            let Taps { kernel, stride, dilation, groups, before } = taps;
            let factor_type = conv_training::factor_type(first.tensor.dtype, wide_factor_type);
            let reach = Reach { kernel, stride, padding: before, dilation };
            Some(vec![channels_kept(weights::gradient(first, last(inputs.next()?)?, reach, groups, factor_type))])
        }
        _ => None,
    }
}

/// Runs a kernel that moves elements of inputs of these forms.
fn run_move<R: CubeRuntime, BT: BoolElement>(
    kernel: &Training,
    mut inputs: impl Iterator<Item = Own<R, BT>>,
    forms: &[Form],
) -> Option<Vec<Own<R, BT>>> {
    match *kernel {
        Training::Concat => {
            let (a, b) = (last(inputs.next()?)?, last(inputs.next()?)?);
            let dtype = a.tensor.dtype;
            Some(vec![channels_second(moves::concatenate(a, b, dtype))])
        }
        Training::Cut { start, form } => {
            let tensor = channels_last(inputs.next()?);
            let (_, strides) = axes(&tensor)?;
            let (start, form) = (renamed(start), renamed(form));
            let first = start.iter().zip(strides).map(|(at, stride)| at * stride).sum();
            let y = memory::empty(&tensor, form, tensor.dtype);
            memory::copy(tensor, Layout { start: first, strides }, form, &y, Layout::of(form));
            Some(vec![channels_second(y)])
        }
        Training::Join { ref starts, elements } => {
            let part = |((values, form), start): ((_, &Form), &usize)| LongPart {
                values: packed(values),
                length: count(form),
                start: *start,
            };
            let parts: Vec<LongPart<R>> = inputs.zip(forms).zip(starts).map(part).collect();
            Some(vec![channels_kept(parts::join(&parts, elements)?)])
        }
        Training::Part { start, elements } => {
            let own = memory::part(&packed(inputs.next()?), start, [elements, 1, 1, 1, 1])?;
            Some(vec![channels_kept(own)])
        }
        _ => None,
    }
}

/// Runs a norm or its gradient.
fn run_norm<R: CubeRuntime, BT: BoolElement>(
    kernel: &Training,
    mut inputs: impl Iterator<Item = Own<R, BT>>,
) -> Option<Vec<Own<R, BT>>> {
    let x = last(inputs.next()?)?;
    match *kernel {
        Training::Norm { over, epsilon, statistics, curve } => {
            let (scale, bias) = (packed(inputs.next()?), packed(inputs.next()?));
            let made = norm_training::normalize(x, scale, bias, (over, epsilon), curve)?;
            let found = made.statistics.into_iter().flatten().zip(statistics);
            let wanted = found.filter(|(_, wanted)| *wanted).map(|(of, _)| channels_kept(of));
            let activated = made.activated.map(channels_second);
            Some(std::iter::once(channels_second(made.y)).chain(wanted).chain(activated).collect())
        }
        Training::NormGradient { over, epsilon, wanted: [to_x, to_scale, to_bias], slope } => {
            let (scale, dy) = (packed(inputs.next()?), last(inputs.next()?)?);
            let activation = match slope {
                Some(slope) => Some((last(inputs.next()?)?, slope)),
                None => None,
            };
            let found = norm_training::gradients(x, scale, (dy, activation), (over, epsilon), to_x)?;
            let by_channel = [(found.scale, to_scale), (found.bias, to_bias)].into_iter();
            let wanted = by_channel.filter(|(_, wanted)| *wanted).map(|(of, _)| channels_kept(of));
            Some(found.x.map(channels_second).into_iter().chain(wanted).collect())
        }
        _ => None,
    }
}

/// Returns an image as a dense tensor, whose channels are last in memory.
fn last<R: CubeRuntime, BT: BoolElement>(x: Own<R, BT>) -> Option<Dense<R>> {
    dense(channels_last(x))
}

/// Returns numbers of the axes N, C, Z, Y, X in the order N, Z, Y, X, C.
fn renamed([sample, channel, z, y, x]: Form) -> [usize; 5] {
    [sample, z, y, x, channel]
}
