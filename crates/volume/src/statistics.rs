//! Exact statistics of a stream of samples: moments in one pass, percentiles in two; and the highest values of cameras.

use crate::{Element, Samples, with_samples};

/// Lowest of the highest values of cameras: that of 8 bits.
const MIN_CAMERA_MAX: u64 = 255;

/// Returns whether a value is the highest one of a camera of at least 8 bits: 255, 1023, 4095, 65535 and others, or one of
/// them times a power of two, such as 65520, because files may store the values of a camera in the upper ones of 16 bits.
pub fn is_camera_max(value: f64) -> bool {
    let whole = value as u64;
    // Zero has no bits that are set.
    let significant = whole.checked_shr(whole.trailing_zeros()).unwrap_or(0);
    significant >= MIN_CAMERA_MAX && significant.checked_add(1).is_some_and(u64::is_power_of_two)
}

/// Count, mean, variance and range of the finite samples of a stream, merged pairwise (Chan et al. 1979). All are 0 for a
/// stream without finite samples.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Moments {
    /// Number of finite samples.
    pub count: u64,
    /// Mean of the finite samples.
    pub mean: f64,
    /// Sum of squared deviations from the mean.
    pub m2: f64,
    /// Smallest finite sample.
    pub min: f64,
    /// Largest finite sample.
    pub max: f64,
}

impl Moments {
    /// Adds samples; non-finite ones are ignored.
    pub fn add(&mut self, samples: &Samples) {
        fn compute_moments<E: Element>(values: &[E]) -> Moments {
            let mut all = Moments::default();
            for chunk in values.chunks(4096) {
                let finite = || chunk.iter().map(|v| v.to_f64()).filter(|v| v.is_finite());
                let count = finite().count() as u64;
                if count == 0 {
                    continue;
                }
                let mean = finite().sum::<f64>() / count as f64;
                let m2 = finite().map(|v| (v - mean) * (v - mean)).sum();
                let (min, max) =
                    finite().fold((f64::INFINITY, f64::NEG_INFINITY), |(lo, hi), v| (lo.min(v), hi.max(v)));
                all.merge(Moments { count, mean, m2, min, max });
            }
            all
        }
        self.merge(with_samples!(samples, v => compute_moments(v)));
    }

    /// Adds the moments of another stream.
    pub fn merge(&mut self, other: Moments) {
        if other.count == 0 {
            return;
        }
        if self.count == 0 {
            *self = other;
            return;
        }
        let (n, m) = (self.count as f64, other.count as f64);
        let delta = other.mean - self.mean;
        self.mean += delta * m / (n + m);
        self.m2 += other.m2 + delta * delta * n * m / (n + m);
        self.count += other.count;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Population variance; 0 for an empty stream.
    pub fn variance(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.m2 / self.count as f64 }
    }
}

/// Histogram bins of one pass: one for each half of a 32-bit key.
const BINS: usize = 1 << 16;

/// Exact percentiles of a stream in two passes over 32-bit keys: a histogram of the upper half of the keys finds the
/// bin of each requested rank, then a histogram of the lower half inside those bins finds the value.
///
/// Samples are ranked after rounding to `f32`.
#[derive(Debug, Clone)]
pub struct Quantiles {
    /// Histogram of the upper halves of all keys.
    coarse: Vec<u64>,
    /// Upper half of a key, and the histogram of the lower halves of all keys that begin with it.
    fine: Vec<(u32, Vec<u64>)>,
    /// Number of finite samples of the first pass.
    count: u64,
    /// Whether the second pass has begun.
    refining: bool,
}

impl Default for Quantiles {
    fn default() -> Self {
        Self::new()
    }
}

/// Maps a float to an integer so that integers are ordered as [`f32::total_cmp`] orders floats.
pub fn order_key(value: f32) -> u32 {
    let bits = value.to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

/// Inverse of [`order_key`].
fn key_to_value(key: u32) -> f32 {
    f32::from_bits(if key >> 31 == 1 { key & !(1 << 31) } else { !key })
}

impl Quantiles {
    /// Creates an empty stream, ready for the first (coarse) pass.
    pub fn new() -> Self {
        Self { coarse: vec![0; BINS], fine: Vec::new(), count: 0, refining: false }
    }

    /// Adds samples to the current pass; non-finite ones are ignored.
    pub fn add(&mut self, samples: &Samples) {
        fn for_each_finite<E: Element>(values: &[E], f: &mut dyn FnMut(f32)) {
            values.iter().map(|v| v.to_f32()).filter(|v| v.is_finite()).for_each(f);
        }
        if self.refining {
            let fine = &mut self.fine;
            let mut slot_of = vec![u16::MAX; BINS];
            for (i, (upper, _)) in fine.iter().enumerate() {
                slot_of[*upper as usize] = i as u16;
            }
            let mut add = |v: f32| {
                let k = order_key(v);
                let slot = slot_of[(k >> 16) as usize];
                if slot != u16::MAX {
                    fine[slot as usize].1[(k & 0xFFFF) as usize] += 1;
                }
            };
            with_samples!(samples, v => for_each_finite(v, &mut add));
        } else {
            let (coarse, count) = (&mut self.coarse, &mut self.count);
            let mut add = |v: f32| {
                coarse[(order_key(v) >> 16) as usize] += 1;
                *count += 1;
            };
            with_samples!(samples, v => for_each_finite(v, &mut add));
        }
    }

    /// Ends the coarse pass and prepares the second for these percentiles (0 to 100). The same samples must be added
    /// again.
    pub fn refine(&mut self, percentiles: &[f64]) {
        self.refining = true;
        let mut uppers: Vec<u32> = percentiles
            .iter()
            .flat_map(|p| {
                let (low, high, _) = self.ranks(*p);
                [low, high]
            })
            .filter_map(|rank| self.coarse_bin(rank).map(|(bin, _)| bin))
            .collect();
        uppers.sort_unstable();
        uppers.dedup();
        self.fine = uppers.into_iter().map(|u| (u, vec![0; BINS])).collect();
    }

    /// The two ranks next to a percentile and the weight of the upper one (NumPy's `linear` method).
    fn ranks(&self, percentile: f64) -> (u64, u64, f64) {
        let last = self.count.saturating_sub(1);
        let at = (percentile.clamp(0.0, 100.0) / 100.0) * last as f64;
        (at.floor() as u64, (at.ceil() as u64).min(last), at - at.floor())
    }

    /// Returns the bin of the first pass that holds the sample of a rank, and the rank inside the bin; `None` past the last
    /// sample.
    fn coarse_bin(&self, rank: u64) -> Option<(u32, u64)> {
        let mut seen = 0;
        for (bin, n) in self.coarse.iter().enumerate() {
            if rank < seen + n {
                return Some((bin as u32, rank - seen));
            }
            seen += n;
        }
        None
    }

    /// Returns the sample of a rank, counted from 0; `None` if its bin was not refined.
    fn at_rank(&self, rank: u64) -> Option<f32> {
        let (upper, within) = self.coarse_bin(rank)?;
        let (_, histogram) = self.fine.iter().find(|(u, _)| *u == upper)?;
        let mut seen = 0;
        for (lower, n) in histogram.iter().enumerate() {
            if within < seen + n {
                return Some(key_to_value(upper << 16 | lower as u32));
            }
            seen += n;
        }
        None
    }

    /// A percentile that was passed to [`Quantiles::refine`], after the second pass; `None` for a stream without finite
    /// samples.
    pub fn percentile(&self, percentile: f64) -> Option<f64> {
        let (low, high, share) = self.ranks(percentile);
        let (low, high) = (f64::from(self.at_rank(low)?), f64::from(self.at_rank(high)?));
        Some(low + (high - low) * share)
    }

    /// Like [`Quantiles::percentile`], without interpolation: the smallest sample such that at least this percentage of
    /// all samples is less than or equal to it (NumPy's `inverted_cdf` method).
    pub fn percentile_sample(&self, percentile: f64) -> Option<f64> {
        let (low, high, _) = self.ranks(percentile);
        let wanted = (percentile.clamp(0.0, 100.0) / 100.0 * self.count as f64).ceil() as u64;
        Some(f64::from(self.at_rank(wanted.saturating_sub(1).clamp(low, high))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn percentiles_match_the_sorted_samples(values in prop::collection::vec(-1e6f32..1e6, 1..300), p in 0.0f64..100.0) {
            let mut q = Quantiles::new();
            let halves = values.split_at(values.len() / 2);
            let parts = [Samples::F32(halves.0.to_vec()), Samples::F32(halves.1.to_vec())];
            parts.iter().for_each(|s| q.add(s));
            q.refine(&[p]);
            parts.iter().for_each(|s| q.add(s));
            let mut sorted = values.clone();
            sorted.sort_by(f32::total_cmp);
            let at = p / 100.0 * (sorted.len() - 1) as f64;
            let (low, high) = (f64::from(sorted[at.floor() as usize]), f64::from(sorted[at.ceil() as usize]));
            prop_assert_eq!(q.percentile(p), Some(low + (high - low) * (at - at.floor())));
        }

        #[test]
        fn moments_do_not_depend_on_how_the_stream_is_split(values in prop::collection::vec(0u16..5000, 2..200), cut in 0usize..200) {
            let (a, b) = values.split_at(cut.min(values.len()));
            let mut m = Moments::default();
            m.add(&Samples::U16(a.to_vec()));
            m.add(&Samples::U16(b.to_vec()));
            let n = values.len() as f64;
            let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
            let variance = values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n;
            prop_assert!((m.mean - mean).abs() < 1e-9 * (1.0 + mean) && (m.variance() - variance).abs() < 1e-6 * (1.0 + variance));
        }
    }

    #[test]
    fn percentiles_without_interpolation_are_samples() {
        let values: Vec<u16> = vec![15, 20, 35, 40, 50, 7, 9];
        // numpy.percentile([15, 20, 35, 40, 50, 7, 9], p, method="inverted_cdf") of NumPy 2.4.
        for (p, expected) in
            [(0.0, 7.0), (10.0, 7.0), (28.0, 9.0), (30.0, 15.0), (50.0, 20.0), (90.0, 50.0), (100.0, 50.0)]
        {
            let mut q = Quantiles::new();
            q.add(&Samples::U16(values.clone()));
            q.refine(&[p]);
            q.add(&Samples::U16(values.clone()));
            assert_eq!(q.percentile_sample(p), Some(expected), "{p}");
        }
    }

    #[test]
    fn the_highest_values_of_cameras_may_be_in_the_upper_bits() {
        for highest in [255.0, 1023.0, 4095.0, 16_383.0, 65_535.0, 65_520.0, 65_472.0, 65_532.0, 65_280.0] {
            assert!(is_camera_max(highest), "{highest}");
        }
        for other in [0.0, 1.0, 63.0, 127.0, 254.0, 256.0, 4000.0, 5000.0, 65_530.0, -255.0, f64::NAN, f64::INFINITY] {
            assert!(!is_camera_max(other), "{other}");
        }
    }

    #[test]
    fn non_finite_samples_are_ignored() {
        let mut m = Moments::default();
        m.add(&Samples::F32(vec![1.0, f32::NAN, 3.0, f32::INFINITY]));
        assert_eq!((m.count, m.mean, m.max), (2, 2.0, 3.0));
    }
}
