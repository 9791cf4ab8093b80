//! The loss scale of mixed precision, and whether an optimizer step is made.

use super::memory::{self, ALIGNMENT, empty, length, per_element};
use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use burn_tensor::DType;
use cubecl::prelude::*;
use cytoscope_graph::{LossScale, ScaleState};

/// Forms of the outputs: hyper-parameters, state, loss scale, and the loss of the next step.
pub(super) const FORMS: [[usize; 5]; 4] =
    [[LossScale::HYPER_LENGTH, 1, 1, 1, 1], [ScaleState::LENGTH, 1, 1, 1, 1], [1; 5], [1; 5]];

/// Decides about a step, with one unit, as [`LossScale::decide`] does. `y` gets the outputs, each `distance` elements after the
/// one before. `largest` is the largest number: shader compilers may leave out comparisons with infinity.
#[cube(launch)]
fn decide_step(
    loss: &Array<f32>,
    norm: &Array<f32>,
    state: &Array<f32>,
    given: &Array<f32>,
    y: &mut Array<f32>,
    distance: u32,
    growth_steps: f32,
    max_scale: f32,
    largest: f32,
) {
    let unit = ABSOLUTE_POS as u32;
    if unit >= 1u32 {
        terminate!();
    }
    let before = state[0];
    let mut scale = state[0];
    let mut steady_steps = state[1];
    let mut steps = state[2];
    let mut skipped_steps = state[3];
    let mut total = state[4];
    let mut failed_steps = state[5];
    let mut factor = 0.0f32;
    let mut keep = 1.0f32;
    let lowest = 0.0f32 - largest;
    let is_loss_finite = loss[0] <= largest && loss[0] >= lowest;
    let is_norm_finite = norm[0] <= largest && norm[0] >= lowest;
    if is_loss_finite && is_norm_finite {
        steps += 1.0f32;
        steady_steps += 1.0f32;
        total += loss[0];
        factor = given[1] / before;
        keep = min(given[3], (1.0f32 + steps) / (10.0f32 + steps));
        if steady_steps >= growth_steps {
            scale = min(before * 2.0f32, max_scale);
            steady_steps = 0.0f32;
        }
    } else if is_loss_finite && before > 1.0f32 {
        scale = max(before * 0.5f32, 1.0f32);
        steady_steps = 0.0f32;
        skipped_steps += 1.0f32;
    } else {
        failed_steps += 1.0f32;
    }
    y[0] = given[0];
    y[1] = steps;
    y[2] = factor;
    y[3] = given[2];
    y[4] = keep;
    y[5] = 1.0f32 - keep;
    y[distance as usize] = scale;
    y[(distance + 1) as usize] = steady_steps;
    y[(distance + 2) as usize] = steps;
    y[(distance + 3) as usize] = skipped_steps;
    y[(distance + 4) as usize] = total;
    y[(distance + 5) as usize] = failed_steps;
    y[(distance * 2) as usize] = scale;
    y[(distance * 3) as usize] = 0.0f32;
}

/// Decides about a step, with one launch. The inputs are loss, norm, state and given numbers, arrays of f32; the outputs, of
/// the [`FORMS`], share memory.
pub(super) fn decide<R: CubeRuntime>(
    [loss, norm, state, given]: [CubeTensor<R>; 4],
    rule: LossScale,
) -> Option<Vec<CubeTensor<R>>> {
    let y = empty(&state, [FORMS.len() * ALIGNMENT, 1, 1, 1, 1], DType::F32);
    let (client, cubes, dim) = per_element(&state, 1);
    decide_step::launch::<R>(
        &client,
        cubes,
        dim,
        loss.into_array_arg(),
        norm.into_array_arg(),
        state.into_array_arg(),
        given.into_array_arg(),
        y.clone().into_array_arg(),
        length(ALIGNMENT),
        rule.growth_steps as f32,
        rule.max,
        f32::MAX,
    );
    FORMS.iter().enumerate().map(|(index, form)| memory::part(&y, index * ALIGNMENT, *form)).collect()
}
