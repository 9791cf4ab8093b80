//! Losses and their gradients with respect to the prediction, in f32.
//!
//! Each term of a loss is computed from five sums for each of its channels: one launch adds up parts of the voxels, and
//! another one adds up the parts, adds the term to the loss, and computes the coefficients of the term's gradient.

use super::memory::{axes, empty, flat_view, length, per_element};
use super::norm::{FOLD_UNITS, add_rows};
use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use burn_tensor::DType;
use cubecl::prelude::*;
use cytoscope_graph::{Loss, LossKind, LossTerm};

/// Lower bound of probabilities; keeps logarithms and quotients finite.
const MIN_PROBABILITY: f32 = 1e-12;
/// The logarithm of [`MIN_PROBABILITY`].
const MIN_LOG: f32 = -27.631_021;
/// Lower bound of the sum of weights; makes means over no voxels 0.
const MIN_WEIGHT_SUM: f32 = 1e-30;
/// Sums for each channel: of the weights w, of the values of the pointwise loss, of w·p·t, of w·p and of w·t.
const SUMS: u32 = 5;
/// Coefficients for each channel of the derivative: of the derivative of the pointwise loss, and of t and 1 in that of the
/// Tversky index.
const COEFFICIENTS: u32 = 3;
/// Number of voxels that a unit adds up if there are enough of them.
const VOXELS_PER_UNIT: usize = 64;
/// Largest number of partial sums of a channel.
const MAX_PARTS: usize = 4096;

/// A loss that is a weighted mean over voxels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Pointwise {
    /// There is none.
    None,
    CrossEntropy,
    Focal,
    Squared,
    Absolute,
    Huber,
}

/// The properties of a term that are fixed when its kernels are compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    pointwise: Pointwise,
    /// Whether there is a Tversky index (or Dice, which is one).
    overlap: bool,
    sigmoid: bool,
    /// Number of channels of the term.
    channels: u32,
    /// Number of the term's first channel.
    first: u32,
    /// Channel of the target that is above ½ where voxels count.
    within: Option<u32>,
    /// Whether voxels have weights.
    is_weighted: bool,
    /// Whether no other term was computed before.
    is_first: bool,
}

/// Distances in memory between neighboring samples, voxels and channels of the tensors.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Strides {
    x_sample: u32,
    x_voxel: u32,
    x_channel: u32,
    target_sample: u32,
    target_voxel: u32,
    target_channel: u32,
    weight_sample: u32,
    weight_voxel: u32,
}

/// A voxel of a channel: prediction, probability (the prediction itself without sigmoid), target and weight.
#[derive(CubeType, Clone, Copy)]
struct Voxel {
    x: f32,
    p: f32,
    t: f32,
    w: f32,
}

/// 1/(1 + e⁻ˣ). The bound keeps e⁻ˣ finite.
#[cube]
fn sigmoid(x: f32) -> f32 {
    1.0f32 / (1.0f32 + (0.0f32 - max(x, -85.0f32)).exp())
}

/// ln(1 + eˣ) without overflow.
#[cube]
fn softplus(x: f32) -> f32 {
    max(x, 0.0f32) + (0.0f32 - x.abs()).exp().log1p()
}

#[cube]
fn read(
    x: &Array<f32>,
    target: &Array<f32>,
    weight: &Array<f32>,
    strides: &Strides,
    sample: u32,
    voxel: u32,
    channel: u32,
    #[comptime] shape: Shape,
) -> Voxel {
    let value = x[(sample * strides.x_sample + voxel * strides.x_voxel + channel * strides.x_channel) as usize];
    let from = sample * strides.target_sample + voxel * strides.target_voxel;
    let mut w = 1.0f32;
    if comptime!(shape.is_weighted) {
        w = weight[(sample * strides.weight_sample + voxel * strides.weight_voxel) as usize];
    }
    if comptime!(shape.within.is_some()) {
        let inside = target[(from + comptime!(shape.within.unwrap_or(0)) * strides.target_channel) as usize];
        if inside <= 0.5f32 {
            w = 0.0f32;
        }
    }
    let mut p = value;
    if comptime!(shape.sigmoid) {
        p = sigmoid(value);
    }
    Voxel { x: value, p, t: target[(from + channel * strides.target_channel) as usize], w }
}

/// Returns the pointwise loss of a voxel. `parameter` is γ of the focal loss or δ of the Huber loss.
#[cube]
fn value(voxel: &Voxel, parameter: f32, #[comptime] shape: Shape) -> f32 {
    let mut found = 0.0f32;
    if comptime!(matches!(shape.pointwise, Pointwise::CrossEntropy)) {
        if comptime!(shape.sigmoid) {
            found = softplus(voxel.x) - voxel.x * voxel.t;
        } else {
            let yes = max(voxel.x, MIN_PROBABILITY).ln();
            let no = max(1.0f32 - voxel.x, MIN_PROBABILITY).ln();
            found = 0.0f32 - (voxel.t * yes + (1.0f32 - voxel.t) * no);
        }
    }
    if comptime!(matches!(shape.pointwise, Pointwise::Focal)) {
        let class = true_class(voxel, shape);
        found = 0.0f32 - class.missing.powf(parameter) * class.log;
    }
    let distance = voxel.p - voxel.t;
    if comptime!(matches!(shape.pointwise, Pointwise::Squared)) {
        found = distance * distance;
    }
    if comptime!(matches!(shape.pointwise, Pointwise::Absolute)) {
        found = distance.abs();
    }
    if comptime!(matches!(shape.pointwise, Pointwise::Huber)) {
        let near = min(distance.abs(), parameter);
        found = near * (distance.abs() - near * 0.5f32);
    }
    found
}

/// The probability of the true class, its complement to 1, and its logarithm.
#[derive(CubeType, Clone, Copy)]
struct TrueClass {
    q: f32,
    missing: f32,
    log: f32,
}

#[cube]
fn true_class(voxel: &Voxel, #[comptime] shape: Shape) -> TrueClass {
    let is_true = voxel.t > 0.5f32;
    let mut q = max(select(is_true, voxel.x, 1.0f32 - voxel.x), MIN_PROBABILITY);
    let mut missing = max(select(is_true, 1.0f32 - voxel.x, voxel.x), MIN_PROBABILITY);
    let mut log = q.ln();
    if comptime!(shape.sigmoid) {
        let logit = select(is_true, voxel.x, 0.0f32 - voxel.x);
        q = max(sigmoid(logit), MIN_PROBABILITY);
        missing = max(sigmoid(0.0f32 - logit), MIN_PROBABILITY);
        log = max(0.0f32 - softplus(0.0f32 - logit), MIN_LOG);
    }
    TrueClass { q, missing, log }
}

/// Returns the derivative of [`value`] with respect to the prediction.
#[cube]
fn derivative(voxel: &Voxel, parameter: f32, #[comptime] shape: Shape) -> f32 {
    let mut found = 0.0f32;
    if comptime!(matches!(shape.pointwise, Pointwise::CrossEntropy)) {
        if comptime!(shape.sigmoid) {
            found = voxel.p - voxel.t;
        } else {
            found =
                (1.0f32 - voxel.t) / max(1.0f32 - voxel.x, MIN_PROBABILITY) - voxel.t / max(voxel.x, MIN_PROBABILITY);
        }
    }
    if comptime!(matches!(shape.pointwise, Pointwise::Focal)) {
        let class = true_class(voxel, shape);
        let powered = class.missing.powf(parameter);
        let mut by_q = class.missing.powf(parameter - 1.0f32) * parameter * class.log - powered / class.q;
        if comptime!(shape.sigmoid) {
            // The factor q(1 − q) of the sigmoid cancels the divisions.
            by_q = powered * class.q * class.log * parameter - powered * class.missing;
        }
        found = select(voxel.t > 0.5f32, by_q, 0.0f32 - by_q);
    }
    let distance = voxel.p - voxel.t;
    let mut by_p = 0.0f32;
    if comptime!(matches!(shape.pointwise, Pointwise::Squared)) {
        by_p = distance * 2.0f32;
    }
    if comptime!(matches!(shape.pointwise, Pointwise::Absolute)) {
        by_p = select(distance > 0.0f32, 1.0f32, select(distance < 0.0f32, -1.0f32, 0.0f32));
    }
    if comptime!(matches!(shape.pointwise, Pointwise::Huber)) {
        by_p = min(max(distance, 0.0f32 - parameter), parameter);
    }
    found + by_p * sigmoid_slope(voxel, shape)
}

/// Returns the derivative of the probability with respect to the prediction.
#[cube]
fn sigmoid_slope(voxel: &Voxel, #[comptime] shape: Shape) -> f32 {
    let mut slope = 1.0f32;
    if comptime!(shape.sigmoid) {
        slope = voxel.p * (1.0f32 - voxel.p);
    }
    slope
}

/// Adds up parts of the voxels of all samples: every unit adds up every `parts`-th voxel of a channel. The axes of `sums` are
/// part, sum, channel.
#[cube(launch)]
fn add_up(
    x: &Array<f32>,
    target: &Array<f32>,
    weight: &Array<f32>,
    sums: &mut Array<f32>,
    strides: Strides,
    samples: u32,
    voxels: u32,
    parts: u32,
    parameter: f32,
    #[comptime] shape: Shape,
) {
    let channels = comptime!(shape.channels);
    let unit = ABSOLUTE_POS as u32;
    let channel = unit % channels;
    let part = unit / channels;
    if part >= parts {
        terminate!();
    }
    let mut weights = 0.0f32;
    let mut values = 0.0f32;
    let mut both = 0.0f32;
    let mut predicted = 0.0f32;
    let mut labeled = 0.0f32;
    let mut at = part;
    while at < samples * voxels {
        let own = comptime!(shape.first) + channel;
        let voxel = read(x, target, weight, &strides, at / voxels, at % voxels, own, shape);
        weights += voxel.w;
        values += voxel.w * value(&voxel, parameter, shape);
        both += voxel.w * (voxel.p * voxel.t);
        predicted += voxel.w * voxel.p;
        labeled += voxel.w * voxel.t;
        at += parts;
    }
    let to = part * comptime!(SUMS * channels) + channel;
    sums[to as usize] = weights;
    sums[(to + channels) as usize] = values;
    sums[(to + 2 * channels) as usize] = both;
    sums[(to + 3 * channels) as usize] = predicted;
    sums[(to + 4 * channels) as usize] = labeled;
}

/// Adds up the parts, adds the term to the loss (which starts with the first term), and computes the coefficients of the
/// gradient for each channel. `alpha`, `beta` and `smooth` are those of the Tversky index. There is one cube.
#[cube(launch)]
fn fold(
    sums: &Array<f32>,
    loss: &mut Array<f32>,
    coefficients: &mut Array<f32>,
    parts: u32,
    factor: f32,
    alpha: f32,
    beta: f32,
    smooth: f32,
    #[comptime] units: u32,
    #[comptime] shape: Shape,
) {
    let channels = comptime!(shape.channels);
    let share = factor / f32::cast_from(channels);
    let mut unit_sums = SharedMemory::<f32>::new(comptime!((SUMS * units) as usize));
    let mut row_sums = SharedMemory::<f32>::new(comptime!(SUMS as usize));
    let mut weights = 0.0f32;
    let mut values = 0.0f32;
    let mut overlaps = 0.0f32;
    for channel in 0..channels {
        add_rows(sums, &mut unit_sums, &mut row_sums, channel, parts, SUMS, channels, units);
        if UNIT_POS == 0 {
            weights += row_sums[0];
            values += row_sums[1];
            if comptime!(shape.overlap) {
                let both = row_sums[2];
                let above = both + smooth;
                let wrong = (row_sums[3] - both) * alpha + (row_sums[4] - both) * beta;
                let below = max(above + wrong, MIN_PROBABILITY);
                let index = above / below;
                overlaps += 1.0f32 - index;
                // Derivative by p: −(wt·below − above·(wt + α(w − wt) − βwt))/below², in the form w·(t·truth + all).
                let to = channel * COEFFICIENTS;
                coefficients[(to + 1) as usize] = share * ((index * (1.0f32 - alpha - beta) - 1.0f32) / below);
                coefficients[(to + 2) as usize] = share * (index * alpha / below);
            }
        }
        sync_cube();
    }
    if UNIT_POS == 0 {
        let mean = factor / max(weights, MIN_WEIGHT_SUM);
        for channel in 0..channels {
            coefficients[(channel * COEFFICIENTS) as usize] = mean;
        }
        let mut total = values * mean + overlaps * share;
        if comptime!(!shape.is_first) {
            total += loss[0];
        }
        loss[0] = total;
    }
}

/// Adds the gradient of a term with respect to the prediction, times `dy`. `y` is dense and its axes are voxel and channel.
#[cube(launch)]
fn add_gradient(
    x: &Array<f32>,
    target: &Array<f32>,
    weight: &Array<f32>,
    coefficients: &Array<f32>,
    dy: &Array<f32>,
    y: &mut Array<f32>,
    strides: Strides,
    count: u32,
    voxels: u32,
    all_channels: u32,
    parameter: f32,
    #[comptime] shape: Shape,
) {
    let unit = ABSOLUTE_POS as u32;
    if unit >= count {
        terminate!();
    }
    let first = comptime!(shape.first);
    let channel = unit % all_channels;
    let at = unit / all_channels;
    let mut gradient = 0.0f32;
    if comptime!(!shape.is_first) {
        gradient = y[unit as usize];
    }
    if channel >= first && channel < first + comptime!(shape.channels) {
        let voxel = read(x, target, weight, &strides, at / voxels, at % voxels, channel, shape);
        let from = (channel - first) * COEFFICIENTS;
        let mut own = derivative(&voxel, parameter, shape) * coefficients[from as usize];
        if comptime!(shape.overlap) {
            let by_p = voxel.t * coefficients[(from + 1) as usize] + coefficients[(from + 2) as usize];
            own += by_p * sigmoid_slope(&voxel, shape);
        }
        gradient += voxel.w * own * dy[0];
    }
    y[unit as usize] = gradient;
}

/// A term: its properties, γ or δ, and α, β and the smoothing of its Tversky index.
struct Term {
    shape: Shape,
    factor: f32,
    parameter: f32,
    tversky: [f32; 3],
}

impl Term {
    fn of(term: &LossTerm, is_weighted: bool, is_first: bool) -> Self {
        // Dice is Tversky with α = β = ½.
        let (pointwise, parameter, tversky) = match term.kind {
            LossKind::BinaryCrossEntropy => (Pointwise::CrossEntropy, 0.0, None),
            LossKind::Dice { smooth } => (Pointwise::None, 0.0, Some([0.5, 0.5, smooth / 2.0])),
            LossKind::DiceCrossEntropy { smooth } => (Pointwise::CrossEntropy, 0.0, Some([0.5, 0.5, smooth / 2.0])),
            LossKind::Tversky { alpha, beta, smooth } => (Pointwise::None, 0.0, Some([alpha, beta, smooth])),
            LossKind::Focal { gamma } => (Pointwise::Focal, gamma, None),
            LossKind::MeanSquared => (Pointwise::Squared, 0.0, None),
            LossKind::MeanAbsolute => (Pointwise::Absolute, 0.0, None),
            LossKind::Huber { delta } => (Pointwise::Huber, delta, None),
        };
        let shape = Shape {
            pointwise,
            overlap: tversky.is_some(),
            sigmoid: term.sigmoid,
            channels: length(term.channels.len()),
            first: length(term.channels.start),
            within: term.within.map(length),
            is_weighted,
            is_first,
        };
        Self { shape, factor: term.factor, parameter, tversky: tversky.unwrap_or_default() }
    }
}

/// Prediction and target of a loss (axes N, C, Z, Y, X), and the weights of voxels (one channel).
pub(super) struct Compared<R: CubeRuntime> {
    /// Prediction: logits for terms that apply a sigmoid, otherwise values that are compared as they are.
    pub x: CubeTensor<R>,
    /// Target, in the same voxels as the prediction.
    pub target: CubeTensor<R>,
    /// Weight of each voxel; `None` weights all voxels with 1.
    pub weight: Option<CubeTensor<R>>,
}

/// Returns the tensor, or a copy of it if its voxels are not at equal distances in memory, and the distances of samples, voxels
/// and channels in elements.
fn spread<R: CubeRuntime>(tensor: CubeTensor<R>) -> Option<(CubeTensor<R>, [u32; 3])> {
    let (lengths, strides) = axes(&tensor)?;
    let mut voxel = None;
    let mut expected = 0;
    for axis in (2..5).rev().filter(|axis| lengths[*axis] > 1) {
        if voxel.is_some() && strides[axis] != expected {
            return spread(burn_cubecl::kernel::into_contiguous(tensor));
        }
        voxel = voxel.or(Some(strides[axis]));
        expected = strides[axis] * lengths[axis];
    }
    let distances = [strides[0], voxel.unwrap_or(1), strides[1]].map(length);
    Some((flat_view(tensor), distances))
}

/// The inputs of a loss in memory.
struct Memory<R: CubeRuntime> {
    x: CubeTensor<R>,
    target: CubeTensor<R>,
    weight: CubeTensor<R>,
    distances: [[u32; 3]; 3],
    samples: usize,
    voxels: usize,
}

impl<R: CubeRuntime> Memory<R> {
    fn of(compared: Compared<R>) -> Option<Self> {
        let ([samples, _, depth, height, width], _) = axes(&compared.x)?;
        let (x, x_distances) = spread(compared.x)?;
        let (target, target_distances) = spread(compared.target)?;
        let (weight, weight_distances) = match compared.weight {
            Some(weight) => spread(weight)?,
            // Not read.
            None => (x.clone(), [0; 3]),
        };
        let distances = [x_distances, target_distances, weight_distances];
        Some(Self { x, target, weight, distances, samples, voxels: depth * height * width })
    }

    fn strides(&self) -> StridesLaunch<R> {
        let [x, target, weight] = self.distances;
        StridesLaunch::new(x[0], x[1], x[2], target[0], target[1], target[2], weight[0], weight[1])
    }

    /// Adds a term to the loss, with two launches. Returns the coefficients of its gradient.
    fn add_term(&self, term: &Term, loss: &CubeTensor<R>) -> CubeTensor<R> {
        let channels = term.shape.channels as usize;
        let parts = (self.samples * self.voxels).div_ceil(VOXELS_PER_UNIT).clamp(1, MAX_PARTS);
        let sums = empty(&self.x, [parts, SUMS as usize, channels, 1, 1], DType::F32);
        let (client, cubes, dim) = per_element(&self.x, parts * channels);
        add_up::launch::<R>(
            &client,
            cubes,
            dim,
            self.x.clone().into_array_arg(),
            self.target.clone().into_array_arg(),
            self.weight.clone().into_array_arg(),
            sums.clone().into_array_arg(),
            self.strides(),
            length(self.samples),
            length(self.voxels),
            length(parts),
            term.parameter,
            term.shape,
        );
        let coefficients = empty(&self.x, [channels, COEFFICIENTS as usize, 1, 1, 1], DType::F32);
        let [alpha, beta, smooth] = term.tversky;
        fold::launch::<R>(
            &client,
            CubeCount::Static(1, 1, 1),
            CubeDim::new_1d(FOLD_UNITS),
            sums.into_array_arg(),
            loss.clone().into_array_arg(),
            coefficients.clone().into_array_arg(),
            length(parts),
            term.factor,
            alpha,
            beta,
            smooth,
            FOLD_UNITS,
            term.shape,
        );
        coefficients
    }
}

/// The terms of a loss.
fn terms(loss: &Loss, is_weighted: bool) -> impl Iterator<Item = Term> {
    loss.terms.iter().enumerate().map(move |(index, term)| Term::of(term, is_weighted, index == 0))
}

/// Returns the loss (axes 1, 1, 1, 1, 1), with two launches for each term. Returns `None` if there are no terms.
pub(super) fn loss_value<R: CubeRuntime>(loss: &Loss, compared: Compared<R>) -> Option<CubeTensor<R>> {
    let is_weighted = compared.weight.is_some();
    let memory = Memory::of(compared)?;
    let total = empty(&memory.x, [1; 5], DType::F32);
    for term in terms(loss, is_weighted) {
        memory.add_term(&term, &total);
    }
    (!loss.terms.is_empty()).then_some(total)
}

/// Returns the gradient of the loss with respect to the prediction (axes N, Z, Y, X, C), times the number in `dy`, with three
/// launches for each term. Returns `None` if there are no terms.
pub(super) fn gradient<R: CubeRuntime>(
    loss: &Loss,
    compared: Compared<R>,
    dy: &CubeTensor<R>,
) -> Option<CubeTensor<R>> {
    let is_weighted = compared.weight.is_some();
    let ([samples, channels, depth, height, width], _) = axes(&compared.x)?;
    let memory = Memory::of(compared)?;
    let total = empty(&memory.x, [1; 5], DType::F32);
    let y = empty(&memory.x, [samples, depth, height, width, channels], DType::F32);
    let count = samples * memory.voxels * channels;
    for term in terms(loss, is_weighted) {
        let coefficients = memory.add_term(&term, &total);
        let (client, cubes, dim) = per_element(&memory.x, count);
        add_gradient::launch::<R>(
            &client,
            cubes,
            dim,
            memory.x.clone().into_array_arg(),
            memory.target.clone().into_array_arg(),
            memory.weight.clone().into_array_arg(),
            coefficients.into_array_arg(),
            dy.clone().into_array_arg(),
            y.clone().into_array_arg(),
            memory.strides(),
            length(count),
            length(memory.voxels),
            length(channels),
            term.parameter,
            term.shape,
        );
    }
    (!loss.terms.is_empty()).then_some(y)
}
