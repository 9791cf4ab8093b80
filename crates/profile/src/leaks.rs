//! Measures whether memory grows when a job is repeated, and in which part of the program.

use crate::bytes_text;
use serde::{Deserialize, Serialize};

/// Minimum number of repetitions with which growth can be distinguished from noise.
pub const MIN_REPETITIONS: usize = 4;
/// Maximum number of times that a job is repeated.
pub const MAX_REPETITIONS: usize = 10_000;
/// Share of the repetitions that count as warm-up: they fill caches and pools.
const WARM_UP_SHARE: f64 = 0.25;
/// Ratio of late to early growth below which memory that is not counted exactly is still settling: allocators take
/// memory from the system over several repetitions, in smaller and smaller amounts.
const SETTLING_RATIO: f64 = 0.5;

/// A part of the program whose memory is measured, such as a cache.
#[derive(Clone, Copy)]
pub struct MemoryOwner {
    /// Name, such as `process`.
    pub name: &'static str,
    /// Bytes for each repetition up to which the memory counts as constant: the memory of a process varies, because the
    /// allocator keeps freed memory.
    pub tolerance_bytes: u64,
    /// Returns the bytes that it holds now; `None` if they are unknown.
    pub bytes: fn() -> Option<u64>,
}

/// Memory of an owner over the repetitions of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OwnerGrowth {
    /// Name of the owner.
    pub owner: String,
    /// Bytes held after each repetition.
    pub bytes: Vec<u64>,
    /// Median growth of one repetition in bytes, after the warm-up.
    pub growth_bytes: f64,
    /// Whether the memory grows with the number of repetitions.
    pub grows: bool,
}

/// Memory over the repetitions of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LeakReport {
    /// Number of times that the job was run.
    pub repetitions: usize,
    /// Number of warm-up repetitions at the start, which do not count.
    pub warm_up: usize,
    /// The owners whose memory is known.
    pub owners: Vec<OwnerGrowth>,
}

impl LeakReport {
    /// Returns whether the memory of any owner grows.
    pub fn grows(&self) -> bool {
        self.owners.iter().any(|owner| owner.grows)
    }

    /// Returns the verdict on each owner as text for the user.
    pub fn messages(&self) -> Vec<String> {
        let text = |owner: &OwnerGrowth| {
            let (first, last) = (owner.bytes.get(self.warm_up), owner.bytes.last());
            let size = |bytes: Option<&u64>| bytes.map_or_else(|| "unknown".to_owned(), |b| bytes_text(*b));
            let verdict = if owner.grows { "GROWS" } else { "does not keep growing" };
            let sign = if owner.growth_bytes < 0.0 { "-" } else { "" };
            format!(
                "{}: {verdict}, {sign}{} for each repetition ({} after the warm-up, {} at the end)",
                owner.owner,
                bytes_text(owner.growth_bytes.abs() as u64),
                size(first),
                size(last)
            )
        };
        self.owners.iter().map(text).collect()
    }
}

/// Runs a job `repetitions` times, measures the memory that each owner holds after each run, and decides whether it grows.
///
/// # Errors
/// The first error of the job.
pub fn repeat<E>(
    repetitions: usize,
    owners: &[MemoryOwner],
    mut job: impl FnMut(usize) -> Result<(), E>,
) -> Result<LeakReport, E> {
    let mut held: Vec<Vec<Option<u64>>> = owners.iter().map(|_| Vec::with_capacity(repetitions)).collect();
    for number in 0..repetitions {
        job(number)?;
        for (owner, bytes) in owners.iter().zip(&mut held) {
            bytes.push((owner.bytes)());
        }
    }
    let warm_up = (WARM_UP_SHARE * repetitions as f64).ceil() as usize;
    let judged = owners.iter().zip(held).filter_map(|(owner, bytes)| {
        let bytes: Vec<u64> = bytes.into_iter().collect::<Option<_>>()?;
        let later = bytes.get(warm_up..).unwrap_or_default();
        let (growth_bytes, tolerance_bytes) = (median_slope(later), owner.tolerance_bytes as f64);
        let grows = growth_bytes > tolerance_bytes && keeps_growing(later, tolerance_bytes);
        Some(OwnerGrowth { owner: owner.name.to_owned(), bytes, growth_bytes, grows })
    });
    Ok(LeakReport { repetitions, warm_up, owners: judged.collect() })
}

/// Returns the median of the slopes between all pairs of values (Theil–Sen), which single outliers do not change; 0 for
/// fewer than two values.
fn median_slope(values: &[u64]) -> f64 {
    let mut slopes: Vec<f64> = Vec::new();
    for (i, earlier) in values.iter().enumerate() {
        for (j, later) in values.iter().enumerate().skip(i + 1) {
            slopes.push((*later as f64 - *earlier as f64) / (j - i) as f64);
        }
    }
    slopes.sort_by(f64::total_cmp);
    slopes.get(slopes.len() / 2).copied().unwrap_or(0.0)
}

/// Splits the values into three parts, and returns whether the medians grow from the first part to the middle one, and
/// from there to the last one, by more than `tolerance_bytes` for each value: memory that grew once is not a leak, and
/// a leak need not grow in every repetition. With a tolerance, growth that slows down is not a leak either. False for
/// fewer than three values.
fn keeps_growing(values: &[u64], tolerance_bytes: f64) -> bool {
    let third = values.len() / 3;
    let last = values.len() - third;
    let middle = last / 2;
    let median_from = |start: usize| {
        let mut part = values.get(start..start + third)?.to_vec();
        part.sort_unstable();
        part.get(third / 2).map(|bytes| *bytes as f64)
    };
    let growth = |from: usize, to: usize| {
        let (earlier, later) = median_from(from).zip(median_from(to))?;
        Some((later - earlier) / (to - from) as f64)
    };
    let Some((early, late)) = growth(0, middle).zip(growth(middle, last)) else { return false };
    let is_settling = tolerance_bytes > 0.0 && late < SETTLING_RATIO * early;
    early > tolerance_bytes && late > tolerance_bytes && !is_settling
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// The verdict on an owner that holds these bytes after the repetitions.
    fn verdict(values: &[u64], tolerance_bytes: u64) -> bool {
        static HELD: AtomicU64 = AtomicU64::new(0);
        let owners = [MemoryOwner { name: "it", tolerance_bytes, bytes: || Some(HELD.load(Ordering::Relaxed)) }];
        let job = |number: usize| {
            HELD.store(values[number], Ordering::Relaxed);
            Ok::<(), ()>(())
        };
        repeat(values.len(), &owners, job).unwrap().grows()
    }

    #[test]
    fn only_memory_that_keeps_growing_is_a_leak() {
        assert!(verdict(&[100, 200, 300, 400, 500, 600, 700, 800], 50));
        assert!(verdict(&[100, 90, 300, 280, 500, 600, 700, 800], 50), "with noise");
        assert!(!verdict(&[100, 200, 300, 400, 500, 600, 700, 800], 100), "within the tolerance");
        assert!(!verdict(&[0, 900, 900, 900, 900, 900, 900, 900], 0), "caches are filled once");
        assert!(
            verdict(&[0, 0, 400, 400, 800, 800, 1200, 1200, 1600, 1600, 2000, 2000], 50),
            "in every second repetition"
        );
        assert!(!verdict(&[900, 900, 900, 900, 1900, 1900, 1900, 1900], 0), "grown once");
        let grown_once = [900, 900, 900, 900, 900, 900, 900, 9000, 9000, 9000, 9000, 9001, 9002, 9003, 9004, 9005];
        assert!(!verdict(&grown_once, 50), "grown once, with noise after it");
        assert!(verdict(&[100, 200, 300, 400], 50), "the least number of repetitions");
        assert!(!verdict(&[100, 100, 100, 400], 50), "grown in the last of them only");
        // MiB of a process that repeats a short training run.
        let settling = [84, 96, 105, 116, 120, 125, 126, 126];
        assert!(!verdict(&settling, 1), "the allocator takes ever less memory from the system");
        assert!(verdict(&settling, 0), "memory that is counted exactly does not settle");
        assert!(!verdict(&[900, 800, 910, 790, 900, 810, 905, 800], 0), "up and down");
        assert!(!verdict(&[800, 700, 600, 500, 400, 300, 200, 100], 0), "it shrinks");
    }

    #[test]
    fn owners_of_unknown_memory_are_left_out_and_errors_end_the_repetition() {
        let owners = [MemoryOwner { name: "unknown", tolerance_bytes: 0, bytes: || None }];
        let report = repeat(4, &owners, |_| Ok::<(), ()>(())).unwrap();
        assert!(report.owners.is_empty() && !report.grows());
        assert_eq!(repeat(9, &owners, |number| if number < 2 { Ok(()) } else { Err(number) }), Err(2));
    }
}
