//! Updates of parameters by an optimizer.

use super::memory::{self, ALIGNMENT, empty, length, per_element};
use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use burn_tensor::DType;
use cubecl::prelude::*;
use cytoscope_graph::Optimizer;

/// The rule of an optimizer, without its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Rule {
    AdamW,
    Adam,
    Sgd { nesterov: bool },
}

/// Returns Adam's bias correction 1 − βˢ after s steps, without cancellation where βˢ is near 1. `log_beta` is ln β.
#[cube]
fn bias_correction(steps: f32, log_beta: f32) -> f32 {
    let y = steps * log_beta;
    let mut correction = 1.0f32 - y.exp();
    if y > -0.05f32 {
        // 1 − eʸ ≈ −(y + y²/2 + y³/6)
        correction = 0.0f32 - y * ((y * (1.0f32 / 6.0f32) + 0.5f32) * y + 1.0f32);
    }
    correction
}

/// Returns the factor of the gradients: their scale, and clipping to the limit of their norm if it is above 0.
#[cube]
fn gradient_factor(scale: f32, limit: f32, norm: f32) -> f32 {
    let mut factor = scale;
    if limit > 0.0f32 {
        factor = scale * min(limit / max(norm * scale, 1e-30f32), 1.0f32);
    }
    factor
}

/// How a moment is updated.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Moment {
    /// Share of the old moment in the new one, β.
    kept: f32,
    /// Share of the gradient, or of its square, in the new moment.
    added: f32,
    /// ln β.
    log: f32,
}

/// Updates parameters. `y` gets the new parameters, the new first moments from `first_at` on, and the new second moments from
/// `second_at` on. `hyper` has learning rate, number of steps, scale and limit ([`cytoscope_graph::Hyper`]). A scale of 0 skips
/// the update: everything is copied.
#[cube(launch)]
fn step(
    hyper: &Array<f32>,
    norm: &Array<f32>,
    p: &Array<f32>,
    g: &Array<f32>,
    first: &Array<f32>,
    second: &Array<f32>,
    y: &mut Array<f32>,
    count: u32,
    first_at: u32,
    second_at: u32,
    first_moment: Moment,
    second_moment: Moment,
    epsilon: f32,
    decay: f32,
    #[comptime] rule: Rule,
) {
    let unit = ABSOLUTE_POS as u32;
    if unit >= count {
        terminate!();
    }
    let at = unit as usize;
    if hyper[2] == 0.0f32 {
        y[at] = p[at];
        y[(first_at + unit) as usize] = first[at];
        if comptime!(!matches!(rule, Rule::Sgd { .. })) {
            y[(second_at + unit) as usize] = second[at];
        }
        terminate!();
    }
    let rate = hyper[0];
    let mut value = p[at];
    let mut gradient = g[at] * gradient_factor(hyper[2], hyper[3], norm[0]);
    if comptime!(matches!(rule, Rule::AdamW)) {
        value -= value * decay * rate;
    } else {
        gradient += value * decay;
    }
    let mean = first[at] * first_moment.kept + gradient * first_moment.added;
    y[(first_at + unit) as usize] = mean;
    if comptime!(matches!(rule, Rule::Sgd { .. })) {
        let mut direction = mean;
        if comptime!(matches!(rule, Rule::Sgd { nesterov: true })) {
            direction = gradient + mean * first_moment.kept;
        }
        y[at] = value - direction * rate;
    } else {
        let square = second[at] * second_moment.kept + gradient * gradient * second_moment.added;
        y[(second_at + unit) as usize] = square;
        let spread = (square / bias_correction(hyper[1], second_moment.log)).sqrt() + epsilon;
        y[at] = value - mean / bias_correction(hyper[1], first_moment.log) / spread * rate;
    }
}

/// The inputs of an update, arrays of f32.
pub(super) struct Update<R: CubeRuntime> {
    /// Learning rate, number of steps, scale and limit.
    pub hyper: CubeTensor<R>,
    /// The norm of all gradients.
    pub norm: CubeTensor<R>,
    /// Values before the update.
    pub parameters: CubeTensor<R>,
    /// Gradient of each parameter, before it is scaled and clipped.
    pub gradients: CubeTensor<R>,
    /// First moment of each parameter; for SGD, its momentum.
    pub first: CubeTensor<R>,
    /// The second moments; `None` for optimizers without them.
    pub second: Option<CubeTensor<R>>,
}

/// Returns how a moment with this β is updated. ln 0 is replaced by a large negative number, because shader languages have no
/// infinite literals.
fn moment<R: CubeRuntime>(beta: f32) -> MomentLaunch<R> {
    let log = f64::from(beta.max(0.0)).ln().max(-1e30) as f32;
    MomentLaunch::new(beta, (1.0 - f64::from(beta)) as f32, log)
}

/// Updates parameters, with one launch. Returns the new parameters, first moments and, if the optimizer has them, second
/// moments, all of this form, which share memory.
pub(super) fn update<R: CubeRuntime>(
    inputs: Update<R>,
    optimizer: Optimizer,
    form: [usize; 5],
) -> Option<Vec<CubeTensor<R>>> {
    let (rule, first, second, epsilon, decay) = match optimizer {
        Optimizer::AdamW { beta1, beta2, epsilon, weight_decay } => {
            (Rule::AdamW, moment::<R>(beta1), moment::<R>(beta2), epsilon, weight_decay)
        }
        Optimizer::Adam { beta1, beta2, epsilon, weight_decay } => {
            (Rule::Adam, moment::<R>(beta1), moment::<R>(beta2), epsilon, weight_decay)
        }
        Optimizer::Sgd { momentum, nesterov, weight_decay } => {
            let first = MomentLaunch::<R>::new(momentum, 1.0, 0.0);
            // The kernel does not read the second moment.
            let second = MomentLaunch::<R>::new(0.0, 0.0, 0.0);
            (Rule::Sgd { nesterov }, first, second, 0.0, weight_decay)
        }
    };
    let count: usize = form.iter().product();
    let distance = count.next_multiple_of(ALIGNMENT);
    let outputs = if optimizer.has_second_moment() { 3 } else { 2 };
    let starts: Vec<usize> = (0..outputs).map(|i| i * distance).collect();
    let y = empty(&inputs.parameters, [starts.last()? + count, 1, 1, 1, 1], DType::F32);
    let (client, cubes, dim) = per_element(&inputs.parameters, count);
    step::launch::<R>(
        &client,
        cubes,
        dim,
        inputs.hyper.into_array_arg(),
        inputs.norm.into_array_arg(),
        inputs.parameters.into_array_arg(),
        inputs.gradients.into_array_arg(),
        inputs.first.clone().into_array_arg(),
        inputs.second.unwrap_or(inputs.first).into_array_arg(),
        y.clone().into_array_arg(),
        length(count),
        length(distance),
        length(2 * distance),
        first,
        second,
        epsilon,
        decay,
        rule,
    );
    starts.into_iter().map(|start| memory::part(&y, start, form)).collect()
}
