//! Profiles a network on the CPU, layer by layer, and compares it with the measured peak of the cores:
//! `cargo run --release -p cytoscope-engine-cpu --example layers -- MODEL.onnx 1,1,64,64,64 int8 [THREADS] [RUNS]`.

use cytoscope_engine::{CompileOptions, Engine, Precision};
use cytoscope_engine_cpu::CpuEngine;
use cytoscope_graph::{GraphLimits, Tensor};
use cytoscope_kernels::{Isa, peak};
use cytoscope_profile::Recorder;
use std::collections::BTreeMap;
use std::time::Instant;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let get = |i: usize, default: &str| arguments.get(i).cloned().unwrap_or_else(|| default.to_owned());
    let graph = cytoscope_onnx::load(get(0, "model.onnx").as_ref(), &GraphLimits::default())?;
    let shape: Vec<usize> = get(1, "1,1,64,64,64").split(',').map(str::parse).collect::<Result<_, _>>()?;
    let precision: Precision = get(2, "f32").parse()?;
    let (threads, runs): (usize, usize) = (get(3, "1").parse()?, get(4, "9").parse()?);
    // Noise, roughly normal.
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 24) as f32 - 0.5
    };
    let x: Vec<f32> = (0..shape.iter().product()).map(|_| 2.0 * (next() + next() + next())).collect();
    let input = [Tensor::new(shape.clone(), x)?];
    let recorder = Recorder::new();
    let options = CompileOptions { precision, threads, recorder: recorder.clone(), ..CompileOptions::default() };
    let start = Instant::now();
    let mut session = CpuEngine::new().compile(&graph, &[shape], &options)?;
    let compile_ms = start.elapsed().as_secs_f64() * 1e3;
    let mut totals_ms = Vec::new();
    for _ in 0..runs {
        let start = Instant::now();
        session.run(&input)?;
        totals_ms.push(start.elapsed().as_secs_f64() * 1e3);
    }
    totals_ms.sort_by(f64::total_cmp);
    let isa = Isa::detect();
    let peak_rate = peak::measure(isa);
    let peak_rate =
        if precision == Precision::Int8 { peak_rate.bytes } else { peak_rate.float } * threads.max(1) as f64;
    let trace = recorder.chrome_trace();
    let events = trace["traceEvents"].as_array().cloned().unwrap_or_default();
    let mut order = Vec::new();
    let mut layers: BTreeMap<String, (Vec<f64>, f64)> = BTreeMap::new();
    for event in events.iter().filter(|e| e["ph"] == "X") {
        let name = event["name"].as_str().unwrap_or_default().to_owned();
        if !layers.contains_key(&name) {
            order.push(name.clone());
        }
        let layer = layers.entry(name).or_default();
        layer.0.push(event["dur"].as_f64().unwrap_or(0.0) / 1e3);
        // The work of a node is that of its first step.
        layer.1 += event["args"]["macs"].as_f64().unwrap_or(0.0);
    }
    println!("{isa}, {threads} threads, {precision}: peak {:.0} G/s, compiled in {compile_ms:.0} ms", peak_rate / 1e9);
    for name in order {
        let Some((times, macs)) = layers.get_mut(&name) else { continue };
        let count = (times.len() / runs).max(1);
        times.sort_by(f64::total_cmp);
        let ms = times[times.len() / 2] * count as f64;
        let rate = 2.0 * *macs / runs as f64 / ms / 1e6;
        let share =
            if *macs > 0.0 { format!("{rate:7.0} G/s {:4.0} %", rate * 1e11 / peak_rate) } else { String::new() };
        println!("{ms:8.3} ms {share:>19}  {count} × {}", name.chars().take(110).collect::<String>());
    }
    let macs = session.report().macs as f64;
    println!(
        "{:8.3} ms in total (median of {runs}, minimum {:.3}), {:.0} G/s",
        totals_ms[runs / 2],
        totals_ms[0],
        2.0 * macs / totals_ms[runs / 2] / 1e6
    );
    Ok(())
}
