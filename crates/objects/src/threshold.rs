//! Otsu's threshold from a histogram.

/// Number of histogram bins for Otsu's threshold (scikit-image's default).
pub const OTSU_BINS: usize = 256;

/// A histogram over a fixed range, filled incrementally.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    min: f64,
    max: f64,
    counts: Vec<u64>,
}

impl Histogram {
    /// Creates an empty histogram over `min..=max`.
    pub fn new(min: f64, max: f64) -> Self {
        Self { min, max, counts: vec![0; OTSU_BINS] }
    }

    /// Adds finite values; values outside the range count in the first or last bin.
    pub fn add(&mut self, values: &[f32]) {
        let width = (self.max - self.min) / OTSU_BINS as f64;
        for v in values.iter().filter(|v| v.is_finite()) {
            let bin = ((f64::from(*v) - self.min) / width) as usize;
            self.counts[bin.min(OTSU_BINS - 1)] += 1;
        }
    }

    /// Returns Otsu's threshold: the bin center that maximizes the variance between the classes at or below and above
    /// it.
    /// N. Otsu, IEEE Trans. Sys. Man. Cyber. 9(1), 1979.
    pub fn otsu(&self) -> f64 {
        let width = (self.max - self.min) / OTSU_BINS as f64;
        let center = |i: usize| self.min + (i as f64 + 0.5) * width;
        let total: f64 = self.counts.iter().map(|c| *c as f64).sum();
        let sum: f64 = self.counts.iter().enumerate().map(|(i, c)| *c as f64 * center(i)).sum();
        let (mut below, mut below_sum) = (0.0, 0.0);
        let (mut best, mut at) = (-1.0, self.min);
        for (i, c) in self.counts.iter().enumerate().take(OTSU_BINS - 1) {
            below += *c as f64;
            below_sum += *c as f64 * center(i);
            let above = total - below;
            if below == 0.0 || above == 0.0 {
                continue;
            }
            let difference = below_sum / below - (sum - below_sum) / above;
            let between = below * above * difference * difference;
            if between > best {
                (best, at) = (between, center(i));
            }
        }
        at
    }
}

/// Returns Otsu's threshold of the finite values; for a constant image, the constant.
pub fn otsu(values: &[f32]) -> f64 {
    let finite = || values.iter().copied().filter(|v| v.is_finite()).map(f64::from);
    let (min, max) = finite().fold((f64::INFINITY, f64::NEG_INFINITY), |(lo, hi), v| (lo.min(v), hi.max(v)));
    if min >= max {
        return if min.is_finite() { min } else { 0.0 };
    }
    let mut histogram = Histogram::new(min, max);
    histogram.add(values);
    histogram.otsu()
}
