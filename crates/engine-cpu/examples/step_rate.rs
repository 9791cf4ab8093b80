//! Measures time and memory of a training step:
//!
//! `cargo run --release -p cytoscope-engine-cpu --example step_rate -- [BATCH Z Y X] [ROUNDS]`.
//!
//! The default network is the one of CytoDL's workflows (DynUNet 16, 32, 64; instance norm; 342 k parameters); `unet`
//! selects Cytoscope's U-Net with batch norm. `mib=N` recomputes activations until the stored ones fit into N MiB. `layers`
//! records and prints each operator; `off` records nothing, not even the totals by stage (`bench/training_spans.py`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "an example")]

use cytoscope_autodiff::{StepOptions, gradient_graph, prepare, update_graph};
use cytoscope_builders::{DynUNet, UNet3d, Weights, dynunet, unet3d};
use cytoscope_engine::{CompileOptions, Engine, Session};
use cytoscope_engine_cpu::CpuEngine;
use cytoscope_graph::{Hyper, Loss, LossKind, Optimizer, Tensor};
use cytoscope_profile::Recorder;
use std::collections::BTreeMap;
use std::time::Instant;

fn cpu_ms() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<f64> =
        stat.rsplit(')').next().unwrap_or("").split_whitespace().filter_map(|f| f.parse().ok()).collect();
    // The command name was cut off and the state letter does not parse, so utime and stime (fields 14 and 15 of the
    // line) have the indices 10 and 11 here, in hundredths of a second.
    fields.get(10).copied().unwrap_or(0.0) * 10.0 + fields.get(11).copied().unwrap_or(0.0) * 10.0
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<usize> = arguments.iter().filter_map(|a| a.parse().ok()).collect();
    let at = |i: usize, or: usize| numbers.get(i).copied().unwrap_or(or);
    let shape = vec![at(0, 2), 1, at(1, 64), at(2, 64), at(3, 64)];
    let rounds = at(4, 5);
    let random = Weights::Random { seed: 1 };
    let has = |word: &str| arguments.iter().any(|a| a == word);
    let net = if has("unet") { unet3d(&UNet3d::default(), &random) } else { dynunet(&DynUNet::default(), &random) };
    let net = prepare(&net.unwrap()).unwrap();
    let mib = arguments.iter().find_map(|a| a.strip_prefix("mib=")?.parse::<u64>().ok());
    let mut options = StepOptions::new(Loss::single(LossKind::DiceCrossEntropy { smooth: 1e-5 }, 1));
    options.memory_budget_bytes = mib.map(|m| m << 20);
    let step = gradient_graph(&net, std::slice::from_ref(&shape), &options).unwrap();
    if let Some(recomputed) = &step.recomputed {
        println!("{recomputed:?}");
    }
    let n: usize = shape.iter().product();
    let wave = |k: usize| {
        Tensor::new(shape.clone(), (0..n).map(|i| ((i * k % 1013) as f32 / 506.0) - 1.0).collect::<Vec<f32>>()).unwrap()
    };
    let target =
        Tensor::new(shape.clone(), (0..n).map(|i| f32::from(u8::from(i / 9 % 3 == 0))).collect::<Vec<f32>>()).unwrap();
    let weight = Tensor::new(shape.clone(), vec![1.0f32; n]).unwrap();
    let mut values = step.values(&net).unwrap();
    let zeros = || values.iter().map(|v| Tensor::new(v.shape(), vec![0.0f32; v.len()]).unwrap()).collect::<Vec<_>>();
    let (mut first, mut second) = (zeros(), zeros());
    let update = update_graph(&step.parameters, Optimizer::default());
    let totals = if has("off") { Recorder::off() } else { Recorder::totals_only() };
    let recorder = if has("layers") { Recorder::new() } else { totals.clone() };
    let shapes = |t: &[Tensor]| t.iter().map(|t| t.shape().to_vec()).collect::<Vec<_>>();
    let compile = |graph, inputs: &[Tensor], recorder: Recorder| {
        let options = CompileOptions { recorder, ..CompileOptions::default() };
        CpuEngine::new().compile(graph, &shapes(inputs), &options).unwrap()
    };
    let mut inputs = vec![wave(37), target, weight];
    inputs.extend(values.iter().cloned());
    let mut gradients = compile(&step.graph, &inputs, recorder.clone());
    let hyper = Hyper { rate: 1e-3, step: 1, scale: 1.0, limit: 1.0 };
    let state = |values: &[Tensor], grads: &[Tensor], first: &[Tensor], second: &[Tensor]| {
        let mut all = vec![Tensor::vector(hyper.to_vec())];
        [values, grads, first, second].into_iter().for_each(|part| all.extend(part.iter().cloned()));
        all
    };
    let mut updates: Box<dyn Session> = compile(&update.graph, &state(&values, &values, &first, &second), totals);
    println!(
        "{} parameters, {:.0} MiB arena, {:?}",
        values.iter().map(Tensor::len).sum::<usize>(),
        gradients.report().arena_bytes as f64 / 1048576.0,
        gradients.report().fallbacks
    );
    let mut best = (f64::INFINITY, f64::INFINITY);
    for round in 0..rounds {
        let (wall, cpu) = (Instant::now(), cpu_ms());
        inputs.truncate(3);
        inputs.extend(values.iter().cloned());
        let out = gradients.run(&inputs).unwrap();
        let updated = updates.run(&state(&values, &out[1..=values.len()], &first, &second)).unwrap();
        let k = values.len();
        let mut parts = updated.into_iter().skip(1);
        values = parts.by_ref().take(k).collect();
        first = parts.by_ref().take(k).collect();
        second = parts.collect();
        let (wall, cpu) = (wall.elapsed().as_secs_f64() * 1e3, cpu_ms() - cpu);
        best = (best.0.min(wall), best.1.min(cpu));
        println!("step {round}: loss {:.5}, {wall:.2} ms, {cpu:.0} ms CPU time", out[0].to_f64_vec()[0]);
    }
    println!("best: {:.0} ms wall time, {:.0} ms CPU time", best.0, best.1);
    print_operators(&recorder, rounds);
}

/// Prints the mean time and number of runs of each operator in a step, longest first.
fn print_operators(recorder: &Recorder, rounds: usize) {
    let mut by_operator: BTreeMap<String, (f64, usize)> = BTreeMap::new();
    for span in recorder.spans() {
        let entry = by_operator.entry(span.name.split(' ').next().unwrap_or("").to_owned()).or_default();
        entry.0 += span.duration_us / 1e3 / rounds as f64;
        entry.1 += 1;
    }
    let mut by_operator: Vec<_> = by_operator.into_iter().collect();
    by_operator.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
    by_operator.iter().for_each(|(name, (ms, n))| println!("{ms:8.1} ms  {name} ({})", n / rounds));
}
