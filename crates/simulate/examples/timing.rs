//! Measures the time of each kind: `cargo run --release -p cytoscope-simulate --example timing [threads]`.

use cytoscope_simulate::{Kind, Settings, SimulateError, simulate};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let threads = std::env::args().nth(1).map(|t| t.parse()).transpose()?.unwrap_or(1);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    for (kind, shape) in
        [(Kind::Nuclei, [64, 512, 512]), (Kind::Cells, [64, 512, 512]), (Kind::LabelFree, [64, 256, 256])]
    {
        let begin = Instant::now();
        let stack =
            pool.install(|| -> Result<_, SimulateError> { simulate(&Settings::new(kind, shape, 1), |_| true) })?;
        let seconds = begin.elapsed().as_secs_f64();
        let voxels = shape.iter().product::<usize>() as f64;
        println!(
            "{kind} {shape:?}: {} objects, {seconds:.2} s, {:.1} Mvoxel/s on {threads} thread(s)",
            stack.object_count,
            voxels / seconds / 1e6
        );
    }
    Ok(())
}
