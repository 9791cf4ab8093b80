//! Optimizer updates of all available instruction sets, compared with their formulas in double precision.

mod common;

use common::{close, isas, noise};
use cytoscope_kernels::train::optimizer::{self, Adam, Sgd};

const LEN: usize = 40_007;

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

fn narrow(values: &[f64]) -> Vec<f32> {
    values.iter().map(|v| *v as f32).collect()
}

#[test]
fn adam_matches_its_formula() {
    for decoupled in [true, false] {
        let adam = Adam { rate: 0.01, beta1: 0.8, beta2: 0.95, epsilon: 1e-3, weight_decay: 0.1, decoupled };
        for isa in isas() {
            let (mut w, mut m, mut v) = (noise(LEN, 1), vec![0.0; LEN], vec![0.0; LEN]);
            let (mut ww, mut wm, mut wv) = (wide(&w), wide(&m), wide(&v));
            for step in 1..=5u64 {
                let gradient = noise(LEN, 10 + step);
                optimizer::adam(isa, &adam, step, 0.5, &gradient, &mut w, &mut m, &mut v).unwrap();
                for i in 0..LEN {
                    let mut g = 0.5 * f64::from(gradient[i]);
                    if decoupled {
                        ww[i] *= 1.0 - 0.01 * 0.1;
                    } else {
                        g += 0.1 * ww[i];
                    }
                    wm[i] = 0.8 * wm[i] + 0.2 * g;
                    wv[i] = 0.95 * wv[i] + 0.05 * g * g;
                    let (hm, hv) =
                        (wm[i] / (1.0 - 0.8f64.powi(step as i32)), wv[i] / (1.0 - 0.95f64.powi(step as i32)));
                    ww[i] -= 0.01 * hm / (hv.sqrt() + 1e-3);
                }
            }
            close(&w, &narrow(&ww), 2e-6);
            close(&m, &narrow(&wm), 2e-6);
            close(&v, &narrow(&wv), 2e-6);
        }
    }
}

#[test]
fn gradient_descent_matches_its_formula() {
    for (momentum, nesterov) in [(0.0, false), (0.9, false), (0.9, true)] {
        let sgd = Sgd { rate: 0.1, momentum, nesterov, weight_decay: 0.01 };
        for isa in isas() {
            let mut w = noise(LEN, 1);
            let mut velocity = if momentum == 0.0 { Vec::new() } else { vec![0.0; LEN] };
            let (mut want, mut held) = (wide(&w), vec![0.0f64; LEN]);
            for step in 0..4u64 {
                let gradient = noise(LEN, 10 + step);
                optimizer::sgd(isa, &sgd, 2.0, &gradient, &mut w, &mut velocity).unwrap();
                for i in 0..LEN {
                    let g = 2.0 * f64::from(gradient[i]) + 0.01 * want[i];
                    held[i] = f64::from(momentum) * held[i] + g;
                    want[i] -= 0.1 * if nesterov { g + f64::from(momentum) * held[i] } else { held[i] };
                }
            }
            close(&w, &narrow(&want), 2e-6);
        }
    }
}

#[test]
fn sums_of_squares_are_accurate_and_propagate_non_finite_values() {
    let values = noise(LEN, 3);
    let want: f64 = values.iter().map(|v| f64::from(*v).powi(2)).sum();
    for isa in isas() {
        assert!((optimizer::sum_of_squares(isa, &values) - want).abs() < 1e-9 * want);
        for (at, bad) in [(0, f32::NAN), (LEN - 1, f32::NEG_INFINITY), (20_000, f32::INFINITY)] {
            let mut values = values.clone();
            values[at] = bad;
            assert!(!optimizer::sum_of_squares(isa, &values).is_finite());
        }
        assert!(optimizer::sum_of_squares(isa, &[f32::MAX; 40]).is_finite());
    }
}
