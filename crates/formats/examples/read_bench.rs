//! Reads a whole image, or one slice of its first channel, and prints the time in seconds as one line of JSON:
//! `read_bench FILE [REPEATS] [slice Z]`.
//!
//! CPU time is that of the whole process; run it with `RAYON_NUM_THREADS=1` to compare single cores.

use cytoscope_formats::{OpenOptions, open};
use cytoscope_volume::Region;
use std::{path::Path, time::Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: read_bench FILE [REPEATS] [slice Z]")?;
    let repeats: usize = args.next().map_or(Ok(1), |n| n.parse())?;
    let slice: Option<usize> = match args.next().as_deref() {
        Some("slice") => Some(args.next().ok_or("the number of the slice is missing")?.parse()?),
        _ => None,
    };
    for _ in 0..repeats {
        let (wall, cpu) = (Instant::now(), cpu_secs());
        let image = open(Path::new(&path), &OpenOptions::default())?;
        let array = match slice {
            None => image.read_all()?,
            // Axes T, Z, C, Y, X, S.
            Some(z) => {
                let whole = Region::whole(&image.meta().shape_full);
                image.read(0, &whole.with_range(0, 0, 1).with_range(1, z, 1).with_range(2, 0, 1))?
            }
        };
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
