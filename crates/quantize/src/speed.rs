//! Run time per tile of the float and the int8 network.

use cpu_time::ProcessTime;
use cytoscope_engine::{CompileOptions, Engine, Precision};
use cytoscope_graph::Tensor;
use cytoscope_pipeline::{Context, JobError, Model, ProgressStage, ProgressUnit};
use cytoscope_profile::Recorder;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Number of timed runs of each network; the median is reported.
const RUNS: usize = 5;

/// Run time of one tile with a number of threads: medians of interleaved runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TileTime {
    /// Number of threads that both networks ran with.
    pub threads: usize,
    /// CPU time in milliseconds (sum over threads), float network.
    pub f32_cpu_ms: f64,
    /// CPU time in milliseconds (sum over threads), int8 network.
    pub int8_cpu_ms: f64,
    /// Wall time in milliseconds, float network.
    pub f32_wall_ms: f64,
    /// Wall time in milliseconds, int8 network.
    pub int8_wall_ms: f64,
}

/// Times the tile with one thread and with all threads.
pub(super) fn time(
    context: &Context,
    float: &Model,
    int8: &Model,
    engine: &dyn Engine,
    tile: &Tensor,
) -> Result<Vec<TileTime>, JobError> {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let counts = if all > 1 { vec![1, all] } else { vec![1] };
    let runs = counts.len() * (RUNS + 1);
    let mut meter = context.meter(ProgressStage::Time, runs as u64, ProgressUnit::Runs);
    let mut times = Vec::new();
    for threads in counts {
        let options = |precision| CompileOptions {
            recorder: Recorder::totals_only(),
            ..context.compile_options(precision, threads)
        };
        let mut sessions = [
            float.compile(engine, tile.shape(), &options(Precision::F32))?,
            int8.compile(engine, tile.shape(), &options(Precision::Int8))?,
        ];
        let mut times_ms: [(Vec<f64>, Vec<f64>); 2] = Default::default();
        for run in 0..=RUNS {
            for (session, (cpu, wall)) in sessions.iter_mut().zip(&mut times_ms) {
                let (wall_start, cpu_start) = (Instant::now(), ProcessTime::now());
                session.run(std::slice::from_ref(tile))?;
                // The first run warms up.
                if run > 0 {
                    cpu.push(cpu_start.elapsed().as_secs_f64() * 1e3);
                    wall.push(wall_start.elapsed().as_secs_f64() * 1e3);
                }
            }
            meter.add(1)?;
        }
        let [(f32_cpu, f32_wall), (int8_cpu, int8_wall)] = times_ms;
        times.push(TileTime {
            threads,
            f32_cpu_ms: median(f32_cpu),
            int8_cpu_ms: median(int8_cpu),
            f32_wall_ms: median(f32_wall),
            int8_wall_ms: median(int8_wall),
        });
    }
    Ok(times)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
