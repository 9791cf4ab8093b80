//! Measures the time of each stage of a patch on one core:
//! `cargo run --release -p cytoscope-training-data --example samples_rate [FOLDER] [COUNT] [CACHE MIB]`.
//!
//! Without a folder, a synthetic stack of touching balls is used.
#![allow(clippy::print_stdout, reason = "a command line program")]

use cytoscope_formats::{Container, WriteSpec, write_array};
use cytoscope_training_data::{
    AugmentOptions, GapWeight, Loader, LoaderOptions, Sampler, SamplerOptions, SourceOptions, Sources, TargetKind,
    TrainingTask, find_pairs,
};
use cytoscope_volume::{Array, Samples, VoxelSize};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let made = tempfile::tempdir()?;
    let folder = match arguments.next() {
        Some(folder) => PathBuf::from(folder),
        None => {
            balls(made.path())?;
            made.path().to_owned()
        }
    };
    let count: u64 = arguments.next().map_or(Ok(100), |n| n.parse())?;
    let cache_bytes = arguments.next().map_or(Ok(2 << 10), |n| n.parse::<u64>())? << 20;
    let dataset = find_pairs(&folder, TrainingTask::Segmentation)?;
    let started = Instant::now();
    let sources = Arc::new(Sources::open(&dataset.pairs, &SourceOptions { cache_bytes })?);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    println!("{} pairs, opened in {:.2} s", sources.len(), started.elapsed().as_secs_f64());
    let kinds = [
        ("instances, no augmentation", TargetKind::Instances, AugmentOptions::none(), None),
        ("instances, default", TargetKind::Instances, AugmentOptions::default(), None),
        ("instances, all", TargetKind::Instances, AugmentOptions::always(), None),
        ("  with gap weights", TargetKind::Instances, AugmentOptions::always(), Some(GapWeight::default())),
        ("semantic, all", TargetKind::Semantic, AugmentOptions::always(), None),
        ("flow, all", TargetKind::Flow, AugmentOptions::always(), None),
        ("boundary, all", TargetKind::Boundary { width_um: 1.0 }, AugmentOptions::always(), None),
    ];
    println!("{:28} {:>8} {:>8} {:>8} {:>8} {:>8}  ms per patch", "", "read", "geometry", "light", "target", "all");
    for (name, target, augment, gap_weight) in kinds {
        let options = SamplerOptions { target, augment, gap_weight, ..SamplerOptions::default() };
        let started = Instant::now();
        let sampler = Arc::new(Sampler::new(Arc::clone(&sources), options)?);
        let indexing_secs = started.elapsed().as_secs_f64();
        let (mut sums, started) = ([0.0; 4], Instant::now());
        for index in 0..count {
            let (_, t) = pool.install(|| sampler.sample_timed(index))?;
            let parts = [t.read_secs, t.geometry_secs, t.intensity_secs, t.target_secs];
            sums.iter_mut().zip(parts).for_each(|(s, t)| *s += t);
        }
        let all = started.elapsed().as_secs_f64() / count as f64 * 1e3;
        let [read, geometry, light, target_ms] = sums.map(|s| s / count as f64 * 1e3);
        println!(
            "{name:28} {read:8.2} {geometry:8.2} {light:8.2} {target_ms:8.2} {all:8.2}  (indexed in {indexing_secs:.2} s, margin {:?})",
            sampler.margin_zyx(0).unwrap_or_default()
        );
        if name == "instances, all" {
            let started = Instant::now();
            let mut loader = Loader::new(sampler, LoaderOptions { workers: 2, ..LoaderOptions::default() })?;
            for _ in 0..count / 2 {
                loader.next_batch(2)?;
            }
            let rate = count as f64 / started.elapsed().as_secs_f64();
            println!("{:28} {rate:.1} patches/s with two workers, waited {:.2} s", "", loader.stalled_secs());
        }
    }
    let cache = sources.cache_use();
    println!("cache: {} MiB held, {} hits, {} misses", cache.held_bytes >> 20, cache.hits, cache.misses);
    Ok(())
}

/// Writes a stack of touching balls.
fn balls(folder: &Path) -> Result<(), Box<dyn Error>> {
    let [nz, ny, nx] = [64usize, 256, 256];
    let mut labels = vec![0u16; nz * ny * nx];
    let (step, radius) = (20.0f64, 10.5f64);
    for (i, label) in labels.iter_mut().enumerate() {
        let at = [(i / (ny * nx)) as f64 * 2.0, (i / nx % ny) as f64, (i % nx) as f64];
        let cell = at.map(|v| (v / step).floor());
        let away: f64 = (0..3).map(|a| (at[a] - (cell[a] + 0.5) * step).powi(2)).sum();
        if away < radius * radius && (cell[0] + cell[1] + cell[2]) % 3.0 != 0.0 {
            *label = (cell[0] * 400.0 + cell[1] * 20.0 + cell[2]) as u16 + 1;
        }
    }
    let image: Vec<u16> =
        labels.iter().enumerate().map(|(i, l)| 100 + 800 * u16::from(*l > 0) + (i * 7919 % 97) as u16).collect();
    for (name, samples) in [("balls_raw.tif", image), ("balls_labels.tif", labels)] {
        let stack = Array::new("ZYX".parse()?, vec![nz, ny, nx], Samples::U16(samples))?;
        let mut spec = WriteSpec::of(&stack, Container::ImageJ);
        spec.voxel_size_um = VoxelSize::new_um(1.0, 0.5, 0.5);
        write_array(&folder.join(name), &stack, &spec)?;
    }
    Ok(())
}
