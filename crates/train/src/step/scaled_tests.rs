//! The decisions about the loss scale, on every engine.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use crate::step_graphs::add_loss_scale;
use cytoscope_autodiff::{Parameter, UpdateGraph, update_graph};
use cytoscope_engine::{CompileOptions, DeviceId, Engine};
use cytoscope_engine_burn::{BurnEngine, probe};
use cytoscope_graph::{Graph, LossScale, Optimizer, ScaleState, StepNumbers, Tensor};
use cytoscope_pipeline::devices::Devices;

/// Runs a graph on its inputs.
type Run = Box<dyn FnMut(&[Tensor]) -> Vec<Tensor>>;

/// The rules, as the host would apply them.
struct Host {
    scale: f32,
    steady_steps: u32,
    steps: u32,
    skipped_steps: u32,
}

impl Host {
    fn step(&mut self, overflows: bool) {
        if overflows {
            assert!(self.scale > 1.0, "the test needs a scale that can be halved");
            self.scale /= 2.0;
            self.steady_steps = 0;
            self.skipped_steps += 1;
            return;
        }
        self.steps += 1;
        self.steady_steps += 1;
        if self.steady_steps >= 200 {
            self.scale = (self.scale * 2.0).min(16_777_216.0);
            self.steady_steps = 0;
        }
    }
}

/// Returns the update of two parameters, whose lengths are 5 and 3, with the decision about the loss scale.
fn scaled_update(optimizer: Optimizer) -> UpdateGraph {
    let parameter = |name: &str, length: usize| Parameter { name: name.to_owned(), shape: vec![length], decays: true };
    let mut update = update_graph(&[parameter("a", 5), parameter("b", 3)], optimizer);
    add_loss_scale(&mut update.graph, LossScale::default());
    update
}

fn shapes(graph: &Graph) -> Vec<Vec<usize>> {
    graph.inputs.iter().map(|id| graph.value(*id).fixed_shape().unwrap()).collect()
}

/// Computes on the reference executor.
fn reference(graph: &Graph) -> Run {
    let graph = graph.clone();
    Box::new(move |inputs: &[Tensor]| {
        let names = graph.inputs.iter().map(|id| graph.value(*id).name.clone());
        let named: Vec<(String, Tensor)> = names.zip(inputs.iter().cloned()).collect();
        cytoscope_reference::run(&graph, &named).unwrap()
    })
}

/// Computes on an engine.
fn on_engine(engine: &dyn Engine, graph: &Graph) -> Run {
    let mut session = engine.compile(graph, &shapes(graph), &CompileOptions::default()).unwrap();
    Box::new(move |inputs: &[Tensor]| session.run(inputs).unwrap())
}

fn on_cpu(graph: &Graph) -> Run {
    on_engine(Devices::cpu_only().engine(DeviceId::Cpu).unwrap().as_ref(), graph)
}

/// Returns a GPU; `None`, with a report of the skip, without one.
fn gpu() -> Option<BurnEngine> {
    let devices = probe::run_with_software(probe::Kind::Wgpu, true);
    let Some(device) = devices.iter().find(|device| device.usable) else {
        cytoscope_testkit::skip("no Vulkan or Metal device");
        return None;
    };
    Some(BurnEngine::open(device).unwrap())
}

fn bits(of: &Tensor) -> Vec<u32> {
    of.as_f32().unwrap().iter().map(|v| v.to_bits()).collect()
}

/// The numbers of each step; no gradient is clipped.
fn given() -> StepNumbers {
    StepNumbers { rate: 1e-2, share: 0.5, limit: 100.0, decay: 0.9 }
}

/// Makes steps, some of which overflow: after 0, 1, 199, 200 and 201 steps since the last one, and several in a row.
fn check_decisions(optimizer: Optimizer, make: &dyn Fn(&Graph) -> Run) {
    let update = scaled_update(optimizer);
    let mut run = make(&update.graph);
    let kinds = if update.has_second_moment { 3 } else { 2 };
    let filled = |value: f32| [5, 3].map(|length| Tensor::vector(vec![value; length]));
    // Values, first moments and second moments.
    let mut kept: Vec<Tensor> = [0.5, 0.25, 0.125].into_iter().take(kinds).flat_map(filled).collect();
    let mut host = Host { scale: 32_768.0, steady_steps: 0, steps: 0, skipped_steps: 0 };
    let mut state = Tensor::vector(ScaleState::new(host.scale, 0, 0).to_vec());
    let overflows = [0, 1, 199, 200, 201, 0, 0, 0].map(|good| [vec![false; good], vec![true]].concat()).concat();
    for (number, overflows) in overflows.into_iter().enumerate() {
        let size = host.scale * (1.0 + (number % 7) as f32);
        let mut sums = filled(size);
        if overflows {
            let value = if number % 2 == 0 { f32::INFINITY } else { f32::NAN };
            sums[1] = Tensor::vector(vec![size, value, -size]);
        }
        let (values, moments) = kept.split_at(2);
        let mut inputs = vec![Tensor::vector(given().to_vec())];
        inputs.extend(values.iter().chain(&sums).chain(moments).cloned());
        inputs.extend([Tensor::scalar(0.5f32), state.clone()]);
        let made = run(&inputs);
        let (scale_before, what) = (host.scale, format!("{optimizer:?}, step {number}"));
        host.step(overflows);
        let after = &made[1..=kept.len()];
        for (index, (before, after)) in kept.iter().zip(after).enumerate() {
            if overflows || index < values.len() {
                assert_eq!(bits(before) == bits(after), overflows, "{what}: {index}");
            }
            assert!(after.as_f32().unwrap().iter().all(|v| v.is_finite()), "{what}: {index}");
        }
        let [hyper, next, scale, loss] = &made[1 + kept.len()..] else { panic!("{} outputs", made.len()) };
        let found = ScaleState::from_slice(&next.to_f64_vec()).unwrap();
        let expected = ScaleState {
            scale: host.scale,
            steady_steps: host.steady_steps,
            steps: host.steps,
            skipped_steps: host.skipped_steps,
            loss: 0.5 * host.steps as f32,
            failed_steps: 0,
        };
        assert_eq!(found, expected, "{what}");
        assert_eq!((scale.to_f64_vec(), loss.to_f64_vec()), (vec![f64::from(host.scale)], vec![0.0]), "{what}");
        let steps = host.steps as f32;
        let (factor, keep) =
            if overflows { (0.0, 1.0) } else { (0.5 / scale_before, ((1.0 + steps) / (10.0 + steps)).min(0.9)) };
        let expected = [1e-2, steps, factor, 100.0, keep, 1.0 - keep];
        for (got, want) in hyper.as_f32().unwrap().iter().zip(expected) {
            assert!((got - want).abs() <= 4e-6 * want.abs(), "{what}: {hyper:?}");
        }
        kept = after.to_vec();
        state = next.clone();
    }
    assert_eq!((host.steps, host.skipped_steps), (601, 8));
}

/// Makes single steps from states in which the scale is at a bound, or the loss is not finite.
fn check_bounds(make: &dyn Fn(&Graph) -> Run) {
    let update = scaled_update(Optimizer::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.0 });
    let mut run = make(&update.graph);
    let mut decide = |loss: f32, gradient: f32, state: ScaleState| {
        let filled = |value: f32| [5, 3].map(|length| Tensor::vector(vec![value; length]));
        let mut inputs = vec![Tensor::vector(given().to_vec())];
        inputs.extend([0.5, gradient, 0.25].into_iter().flat_map(filled));
        inputs.extend([Tensor::scalar(loss), Tensor::vector(state.to_vec())]);
        let made = run(&inputs);
        let is_skipped = made[1..5].iter().zip(filled(0.5).iter().chain(&filled(0.25))).all(|(a, b)| a == b);
        (ScaleState::from_slice(&made[6].to_f64_vec()).unwrap(), is_skipped)
    };
    let largest = LossScale::default().max;
    let state = |scale: f32| ScaleState::new(scale, 199, 300);
    let (after, is_skipped) = decide(2.0, 1.0, state(largest));
    assert_eq!((after, is_skipped), (ScaleState { loss: 2.0, ..ScaleState::new(largest, 0, 301) }, false));
    let (after, is_skipped) = decide(2.0, f32::INFINITY, state(1.5));
    assert_eq!((after, is_skipped), (ScaleState { skipped_steps: 1, ..ScaleState::new(1.0, 0, 300) }, true));
    for (loss, gradient, scale) in [(2.0, f32::INFINITY, 1.0), (f32::NAN, 1.0, 64.0), (f32::INFINITY, f32::NAN, 64.0)] {
        let (after, is_skipped) = decide(loss, gradient, state(scale));
        let expected = ScaleState { failed_steps: 1, ..state(scale) };
        assert_eq!((after, is_skipped), (expected, true), "a loss of {loss}, a gradient of {gradient}");
    }
}

#[test]
fn the_reference_executor_decides_about_steps_as_the_host_would() {
    check_decisions(Optimizer::default(), &reference);
    check_decisions(Optimizer::Sgd { momentum: 0.9, nesterov: true, weight_decay: 1e-3 }, &reference);
    check_bounds(&reference);
}

#[test]
fn the_cpu_decides_about_steps_as_the_host_would() {
    check_decisions(Optimizer::default(), &on_cpu);
    check_decisions(Optimizer::Sgd { momentum: 0.9, nesterov: true, weight_decay: 1e-3 }, &on_cpu);
    check_bounds(&on_cpu);
}

#[test]
fn a_gpu_decides_about_steps_as_the_host_would() {
    let Some(gpu) = gpu() else { return };
    let on_gpu = |graph: &Graph| on_engine(&gpu, graph);
    check_decisions(Optimizer::default(), &on_gpu);
    check_bounds(&on_gpu);
}
