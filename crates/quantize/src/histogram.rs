//! Histogram of a tensor's values, and the 8-bit range that represents them best.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Method of calibration: how a tensor's range is computed from its values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// From the minimum to the maximum.
    MinMax,
    /// Percentile in percent: this share of the values is below the upper end, and the same share above the lower end.
    Percentile(f64),
    /// The range with the smallest Kullback-Leibler divergence between the quantized and the original distribution.
    Entropy,
    /// The range with the smallest squared error of rounding and clipping.
    Mse,
}

impl Method {
    /// All methods that are tried.
    pub const ALL: [Self; 6] = [
        Self::MinMax,
        Self::Percentile(99.9),
        Self::Percentile(99.99),
        Self::Percentile(99.999),
        Self::Entropy,
        Self::Mse,
    ];
}

impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::MinMax => f.write_str("min-max"),
            Self::Percentile(p) => write!(f, "percentile {p}"),
            Self::Entropy => f.write_str("entropy"),
            Self::Mse => f.write_str("mse"),
        }
    }
}

/// Maximum number of bins; when exceeded, pairs of bins are merged.
const BINS: i64 = 16384;
/// Number of bins that the first values are distributed over.
const FIRST_BINS: f64 = 8192.0;
/// Maximum number of values counted per call: longer tensors are subsampled evenly (minimum and maximum are always
/// exact).
const MAX_COUNTED: usize = 1 << 19;

/// Counts of values in bins of equal width. The width is a power of two and bin edges are its multiples, so histograms
/// of any tensors can be merged and 0 is always an edge.
#[derive(Debug, Clone, Default)]
pub struct Histogram {
    /// The bin width is 2^exponent.
    exponent: i32,
    /// Counts by bin number: bin i covers i·width to (i + 1)·width.
    bins: BTreeMap<i64, u64>,
    /// Minimum and maximum value.
    ends: Option<(f32, f32)>,
}

impl Histogram {
    /// Counts values. Returns `false` if one is not finite; then nothing is counted.
    pub fn add(&mut self, values: &[f32]) -> bool {
        let (mut low, mut high) = (f32::INFINITY, f32::NEG_INFINITY);
        let mut sum = 0.0f32;
        for v in values {
            low = low.min(*v);
            high = high.max(*v);
            // Minimum and maximum ignore NaN; a product with 0 does not.
            sum += v * 0.0;
        }
        if values.is_empty() {
            return true;
        }
        if !(low.is_finite() && high.is_finite() && sum == 0.0) {
            return false;
        }
        let before = self.ends;
        let (low, high) = before.map_or((low, high), |(a, b)| (a.min(low), b.max(high)));
        self.ends = Some((low, high));
        if before.is_none() {
            // In 64 bits, because the difference of two floats may exceed the largest float.
            let (low, high) = (f64::from(low), f64::from(high));
            let width = (high - low).max(high.abs().max(low.abs()) * 1e-6) / FIRST_BINS;
            self.exponent = width.max(f64::MIN_POSITIVE).log2().ceil().max(-120.0) as i32;
        }
        while self.number(high).saturating_sub(self.number(low)) >= BINS {
            self.coarsen();
        }
        let step = values.len().div_ceil(MAX_COUNTED).max(1);
        let first = self.number(low);
        let mut counts = vec![0u64; (self.number(high) - first + 1).clamp(1, BINS) as usize];
        let per_width = self.width().recip() as f32;
        for (number, part) in values.chunks(step).enumerate() {
            let Some(v) = part.get(counted_place(number, part.len())) else { continue };
            let at = (v * per_width).floor() as i64 - first;
            if let Some(count) = usize::try_from(at).ok().and_then(|i| counts.get_mut(i)) {
                *count += part.len() as u64;
            }
        }
        for (number, count) in (first..).zip(counts).filter(|(_, c)| *c > 0) {
            *self.bins.entry(number).or_default() += count;
        }
        true
    }

    fn width(&self) -> f64 {
        f64::from(self.exponent).exp2()
    }

    fn number(&self, v: f32) -> i64 {
        (f64::from(v) / self.width()).floor() as i64
    }

    fn coarsen(&mut self) {
        self.exponent += 1;
        for (number, count) in std::mem::take(&mut self.bins) {
            *self.bins.entry(number.div_euclid(2)).or_default() += count;
        }
    }

    /// Adds the counts of another histogram.
    pub fn join(&mut self, other: &Self) {
        let Some((low, high)) = other.ends else { return };
        if self.ends.is_none() {
            *self = other.clone();
            return;
        }
        let mut other = other.clone();
        while other.exponent < self.exponent {
            other.coarsen();
        }
        while self.exponent < other.exponent {
            self.coarsen();
        }
        for (number, count) in other.bins {
            *self.bins.entry(number).or_default() += count;
        }
        self.ends = self.ends.map(|(a, b)| (a.min(low), b.max(high)));
        while self.bins.len() as i64 > BINS {
            self.coarsen();
        }
    }

    /// Returns the range by a method, which always includes 0; `(0, 0)` if no value was counted.
    pub fn range(&self, method: Method) -> (f32, f32) {
        let Some((low, high)) = self.ends else { return (0.0, 0.0) };
        let full_range = (f64::from(low.min(0.0)), f64::from(high.max(0.0)));
        let (low, high) = match method {
            Method::MinMax => full_range,
            Method::Percentile(p) => self.percentile(p, full_range),
            Method::Mse => self.best(full_range, |range| self.squared_error(range)),
            Method::Entropy => self.best(full_range, |range| self.divergence(range)),
        };
        (low as f32, high as f32)
    }

    fn middles(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        let width = self.width();
        self.bins.iter().map(move |(number, count)| ((*number as f64 + 0.5) * width, *count as f64))
    }

    fn percentile(&self, percent: f64, full_range: (f64, f64)) -> (f64, f64) {
        let total: u64 = self.bins.values().sum();
        let outside = (total as f64 * (1.0 - percent / 100.0).clamp(0.0, 0.5)) as u64;
        let width = self.width();
        let edge = |mut bins: &mut dyn Iterator<Item = (&i64, &u64)>| {
            let mut seen = 0;
            (&mut bins)
                .find(|(_, count)| {
                    seen += **count;
                    seen > outside
                })
                .map(|(number, _)| *number as f64)
        };
        let low = edge(&mut self.bins.iter()).map_or(full_range.0, |n| n * width);
        let high = edge(&mut self.bins.iter().rev()).map_or(full_range.1, |n| (n + 1.0) * width);
        (low.min(0.0).max(full_range.0), high.max(0.0).min(full_range.1))
    }

    /// Returns the range inside `full_range` with the lowest cost: the ends are moved in small steps in turn until the cost
    /// no longer decreases.
    fn best(&self, full_range: (f64, f64), cost: impl Fn((f64, f64)) -> f64) -> (f64, f64) {
        const STEPS: i32 = 90;
        const FACTOR: f64 = 0.95;
        let mut best = (full_range, cost(full_range));
        for _ in 0..3 {
            let before = best.1;
            for end in 0..2 {
                for step in 0..STEPS {
                    let share = FACTOR.powi(step);
                    let range =
                        if end == 0 { (best.0.0, full_range.1 * share) } else { (full_range.0 * share, best.0.1) };
                    let new_cost = cost(range);
                    if new_cost < best.1 {
                        best = (range, new_cost);
                    }
                }
            }
            if best.1 >= before {
                break;
            }
        }
        best.0
    }

    /// Returns Σ (x − x̂)² over all values: step²/12 inside the range, the squared distance to the nearest end outside.
    fn squared_error(&self, (low, high): (f64, f64)) -> f64 {
        let step = (high - low) / 255.0;
        let rounding = step * step / 12.0;
        self.middles()
            .map(|(v, count)| {
                let over = (low - v).max(v - high).max(0.0);
                count * if over > 0.0 { over * over } else { rounding }
            })
            .sum()
    }

    /// Returns the Kullback-Leibler divergence between the distribution before and after quantization, over the bins.
    fn divergence(&self, (low, high): (f64, f64)) -> f64 {
        let step = ((high - low) / 255.0).max(f64::MIN_POSITIVE);
        let level = |v: f64| ((v.clamp(low, high) - low) / step).round() as usize;
        // The mass of each level is distributed evenly over the bins inside the range that map to it.
        let mut mass = vec![0.0f64; 257];
        let mut bins = vec![0.0f64; 257];
        let mut total = 0.0;
        for (v, count) in self.middles() {
            let at = level(v).min(256);
            if let Some(m) = mass.get_mut(at) {
                *m += count;
            }
            if let Some(b) = bins.get_mut(at).filter(|_| v >= low && v <= high) {
                *b += 1.0;
            }
            total += count;
        }
        self.middles()
            .map(|(v, count)| {
                let at = level(v).min(256);
                let share = mass.get(at).copied().unwrap_or(0.0) / bins.get(at).copied().unwrap_or(0.0).max(1.0);
                let spread = if v >= low && v <= high { share } else { total * 1e-9 };
                count / total * (count / spread.max(total * 1e-12)).ln()
            })
            .sum()
    }
}

/// Returns the place of the value that is counted in a part of `len` consecutive values of a tensor; parts are numbered. Places
/// are spread evenly (Fibonacci hashing): values at equal distances could be those of a few columns, such as the first one, in
/// which padding counts.
fn counted_place(part: usize, len: usize) -> usize {
    let hash = (part as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    // The share of the hash in its 31 bits; a remainder would take a division for each value.
    ((hash * len as u64) >> 31) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_all_columns_of_a_long_tensor_are_counted() {
        // So many rows of a few values that not all values are counted.
        for columns in [2, 3, 4, 6, 7, 9] {
            let values: Vec<f32> = (0..columns * MAX_COUNTED).map(|i| (i % columns) as f32).collect();
            let mut histogram = Histogram::default();
            assert!(histogram.add(&values));
            assert_eq!(histogram.bins.len(), columns);
            let counts: Vec<u64> = histogram.bins.values().copied().collect();
            assert_eq!(counts.iter().sum::<u64>(), values.len() as u64);
            let is_even = |count: &u64| count.abs_diff(MAX_COUNTED as u64) < MAX_COUNTED as u64 / 50;
            assert!(counts.iter().all(is_even), "{columns} columns: {counts:?}");
            let (_, high) = histogram.range(Method::Percentile(99.0));
            assert!(high >= (columns - 1) as f32, "{columns} columns: {high}");
        }
    }

    fn ramp(from: f32, to: f32, n: usize) -> Vec<f32> {
        (0..n).map(|i| from + (to - from) * i as f32 / (n - 1) as f32).collect()
    }

    #[test]
    fn the_range_grows_and_keeps_its_ends() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.range(Method::Mse), (0.0, 0.0));
        assert!(histogram.add(&ramp(0.0, 0.01, 100)));
        assert!(histogram.add(&ramp(-3.0, 500.0, 1000)));
        assert_eq!(histogram.ends, Some((-3.0, 500.0)));
        assert_eq!(histogram.bins.values().sum::<u64>(), 1100);
        assert!(histogram.bins.len() <= BINS as usize);
        assert_eq!(histogram.range(Method::MinMax), (-3.0, 500.0));
    }

    #[test]
    fn values_of_any_magnitude_are_counted() {
        let mut parts = [[0.0f32, 0.0], [-1e-30, 1e-38], [-3e38, 1e30], [5.0, 3e38], [-3e38, 3e38]];
        // The first values determine the first width.
        for _ in 0..parts.len() {
            parts.rotate_left(1);
            let mut histogram = Histogram::default();
            for values in parts {
                assert!(histogram.add(&values));
                assert!(histogram.bins.len() <= BINS as usize);
            }
            assert_eq!(histogram.range(Method::MinMax), (-3e38, 3e38));
            assert_eq!(histogram.bins.values().sum::<u64>(), 10);
            for method in Method::ALL {
                let (low, high) = histogram.range(method);
                assert!(low <= 0.0 && high >= 0.0 && low.is_finite() && high.is_finite(), "{method}: {low} to {high}");
            }
        }
    }

    #[test]
    fn a_histogram_of_the_largest_floats_can_be_joined() {
        let (mut small, mut large) = (Histogram::default(), Histogram::default());
        assert!(small.add(&[-1.0, 1.0]) && large.add(&[-3e38, 3e38]));
        small.join(&large);
        assert_eq!(small.range(Method::MinMax), (-3e38, 3e38));
        assert_eq!(small.bins.values().sum::<u64>(), 4);
    }

    #[test]
    fn values_that_are_not_numbers_are_refused() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut histogram = Histogram::default();
            assert!(!histogram.add(&[0.0, bad, 1.0]));
            assert_eq!(histogram.ends, None);
        }
    }

    #[test]
    fn joined_histograms_are_those_of_all_values() {
        let (a, b) = (ramp(-1.0, 1.0, 5000), ramp(0.0, 40.0, 700));
        let mut both = Histogram::default();
        both.add(&a);
        both.add(&b);
        let (mut x, mut y) = (Histogram::default(), Histogram::default());
        x.add(&a);
        y.add(&b);
        x.join(&y);
        assert_eq!(x.ends, both.ends);
        assert_eq!(x.bins.values().sum::<u64>(), both.bins.values().sum::<u64>());
        for method in Method::ALL {
            let (p, q) = (x.range(method), both.range(method));
            assert!((p.1 - q.1).abs() < 1.0 && (p.0 - q.0).abs() < 1.0, "{method}: {p:?} {q:?}");
        }
    }

    #[test]
    fn percentile_and_entropy_clip_a_single_outlier() {
        // A bell around 1 and one voxel at 1000: 255 steps up to 1000 would leave the bell four of them.
        let mut values: Vec<f32> = (0..200_000).map(|i| 1.0 + ((i as f32 * 0.618).fract() - 0.5) * 8.0).collect();
        values.push(1000.0);
        let mut histogram = Histogram::default();
        histogram.add(&values);
        assert_eq!(histogram.range(Method::MinMax).1, 1000.0);
        for method in [Method::Percentile(99.9), Method::Percentile(99.99), Method::Entropy] {
            let (low, high) = histogram.range(method);
            assert!((-4.0..=0.0).contains(&low) && (4.0..100.0).contains(&high), "{method}: {low} to {high}");
        }
        // Squared error weighs the outlier more: (1000 - h)^2 against 200 000 roundings.
        let (_, high) = histogram.range(Method::Mse);
        let cost = |h: f64| 200_000.0 * ((h + 3.0) / 255.0).powi(2) / 12.0 + (1000.0 - h).powi(2);
        assert!(cost(f64::from(high)) <= cost(1000.0) && cost(f64::from(high)) <= cost(500.0) * 1.05, "{high}");
    }
}
