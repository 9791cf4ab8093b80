//! Reads a whole image and prints the time in seconds as one line of JSON: `read_bench FILE [REPEATS]`.
//!
//! CPU time is that of the whole process; run it with `RAYON_NUM_THREADS=1` to compare single cores.

use cytoscope_formats::{OpenOptions, open};
use std::{path::Path, time::Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: read_bench FILE [REPEATS]")?;
    let repeats: usize = args.next().map_or(Ok(1), |n| n.parse())?;
    for _ in 0..repeats {
        let (wall, cpu) = (Instant::now(), cpu_secs());
        let array = open(Path::new(&path), &OpenOptions::default())?.read_all()?;
        let bytes = array.samples().as_bytes().len();
        let (wall, cpu) = (wall.elapsed().as_secs_f64(), cpu_secs() - cpu);
        println!("{{\"bytes\": {bytes}, \"wall_s\": {wall:.5}, \"cpu_s\": {cpu:.5}}}");
    }
    Ok(())
}

/// CPU time of this process so far (all threads) in seconds; 0 if the system does not report it.
fn cpu_secs() -> f64 {
    // The kernel counts CPU time in nanoseconds per thread.
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0.0 };
    let nanos = tasks.flatten().filter_map(|t| {
        let text = std::fs::read_to_string(t.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    });
    nanos.sum::<f64>() / 1e9
}
