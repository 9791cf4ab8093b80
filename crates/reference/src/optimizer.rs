//! Optimizer steps, in f64.

use cytoscope_graph::{Hyper, Optimizer};

/// Performs one step on one parameter, in f64.
pub(crate) fn update(
    optimizer: Optimizer,
    hyper: Hyper,
    norm: f32,
    values: &mut [f64],
    gradient: &[f64],
    first: &mut [f64],
    second: Option<&mut [f64]>,
) {
    let factor = f64::from(hyper.factor(norm));
    let rate = f64::from(hyper.rate);
    match (optimizer, second) {
        (Optimizer::Sgd { momentum, nesterov, weight_decay }, _) => {
            let (momentum, decay) = (f64::from(momentum), f64::from(weight_decay));
            for ((p, g), m) in values.iter_mut().zip(gradient).zip(first) {
                let g = g * factor + decay * *p;
                *m = momentum * *m + g;
                *p -= rate * if nesterov { g + momentum * *m } else { *m };
            }
        }
        (Optimizer::AdamW { beta1, beta2, epsilon, weight_decay }, Some(second))
        | (Optimizer::Adam { beta1, beta2, epsilon, weight_decay }, Some(second)) => {
            let decoupled = matches!(optimizer, Optimizer::AdamW { .. });
            let (b1, b2, decay) = (f64::from(beta1), f64::from(beta2), f64::from(weight_decay));
            let steps = f64::from(hyper.step);
            let (c1, c2) = (1.0 - b1.powf(steps), 1.0 - b2.powf(steps));
            for (((p, g), m), v) in values.iter_mut().zip(gradient).zip(first).zip(second) {
                let mut g = g * factor;
                if decoupled {
                    *p -= rate * decay * *p;
                } else {
                    g += decay * *p;
                }
                *m = b1 * *m + (1.0 - b1) * g;
                *v = b2 * *v + (1.0 - b2) * g * g;
                *p -= rate * (*m / c1) / ((*v / c2).sqrt() + f64::from(epsilon));
            }
        }
        (Optimizer::AdamW { .. } | Optimizer::Adam { .. }, None) => {}
    }
}
