//! Histograms of planes, and contrast limits derived from them.

use super::plane::{Plane, Values};

/// Maximum number of bins of a histogram.
pub const BINS: usize = 256;

/// Fraction of pixels below the automatic limits, and of those above.
const CLIPPED_SHARE: f64 = 0.001;

/// Histogram over the range from the smallest to the largest value.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    /// Smallest value that was counted.
    pub low: f32,
    /// Largest value that was counted.
    pub high: f32,
    /// Number of values in each of up to [`BINS`] equal bins.
    pub counts: Vec<u32>,
    /// Index of the slice that was counted.
    pub slice: usize,
    /// Time point that was counted, from 0.
    pub time: usize,
}

impl Histogram {
    /// The histogram of a plane; `None` if it has no finite values.
    pub fn of(plane: &Plane) -> Option<Self> {
        let n = plane.values.len();
        // Large planes are subsampled: a quarter of a million values are enough for contrast limits.
        let step = (n >> 18).max(1);
        let values = || {
            (0..n).step_by(step).filter_map(|i| match &plane.values {
                Values::U8(v) => v.get(i).map(|v| f32::from(*v)),
                Values::U16(v) => v.get(i).map(|v| f32::from(*v)),
                Values::F32(v) => v.get(i).copied().filter(|v| v.is_finite()),
                Values::Labels(v) => v.get(i).map(|v| *v as f32),
            })
        };
        let (mut low, mut high) = (f32::INFINITY, f32::NEG_INFINITY);
        values().for_each(|v| (low, high) = (low.min(v), high.max(v)));
        if low > high {
            return None;
        }
        // Integers in a narrow range have one bin each: of more bins, some would be empty whatever the values are.
        let bins = match &plane.values {
            Values::F32(_) => BINS,
            Values::U8(_) | Values::U16(_) | Values::Labels(_) => ((high - low) as usize + 1).min(BINS),
        };
        let mut counts = vec![0; bins];
        let scale = if high > low { bins as f32 / (high - low) } else { 0.0 };
        for v in values() {
            let bin = (((v - low) * scale) as usize).min(bins - 1);
            if let Some(count) = counts.get_mut(bin) {
                *count += 1;
            }
        }
        Some(Self { low, high, counts, slice: plane.at.index, time: plane.at.time })
    }

    /// Whether it is that of a plane's slice and time point, of the same source and orientation.
    pub fn belongs_to(&self, plane: &Plane) -> bool {
        (self.slice, self.time) == (plane.at.index, plane.at.time)
    }

    /// Contrast limits that show the darkest thousandth of the pixels in black and the brightest thousandth in white. A
    /// constant plane gives its value and the value plus one.
    pub fn limits(&self) -> (f32, f32) {
        if self.high <= self.low {
            return (self.low, self.low + 1.0);
        }
        let total: f64 = self.counts.iter().map(|c| f64::from(*c)).sum();
        let width = (self.high - self.low) / self.counts.len() as f32;
        // The first bin, from one end, that is not clipped.
        let edge = |from_top: bool| {
            let mut seen = 0.0;
            let mut bins: Vec<usize> = (0..self.counts.len()).collect();
            if from_top {
                bins.reverse();
            }
            for bin in bins {
                seen += f64::from(self.counts.get(bin).copied().unwrap_or(0));
                if seen > CLIPPED_SHARE * total {
                    return bin;
                }
            }
            0
        };
        let low = self.low + edge(false) as f32 * width;
        let high = self.low + (edge(true) + 1) as f32 * width;
        if high > low { (low, high) } else { (self.low, self.high) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::data::plane::{Orientation, PlaneAt};

    /// A plane of 100 × 100 pixels.
    fn plane(values: Values) -> Plane {
        let at = PlaneAt::whole(Orientation::Xy, 0, [1, 100, 100]);
        Plane { at, size: [100, 100], values }
    }

    #[test]
    fn integers_in_a_narrow_range_have_one_bin_each() {
        for range in [1, 2, 10, 100, 250] {
            let values: Vec<u16> = (0..10_000).map(|i| 700 + (i % range) as u16).collect();
            let histogram = Histogram::of(&plane(Values::U16(values))).unwrap();
            assert_eq!(histogram.counts.len(), range);
            let mean = 10_000 / range as u32;
            assert!(histogram.counts.iter().all(|count| count.abs_diff(mean) <= 1), "{:?}", histogram.counts);
            let (low, high) = histogram.limits();
            assert!(low <= 700.0 && high > (699 + range) as f32 - 0.01, "{range}: {low} {high}");
        }
    }

    #[test]
    fn limits_ignore_hot_pixels() {
        let mut values: Vec<u16> = (0..10_000).map(|i| 100 + (i % 200) as u16).collect();
        values[17] = 60_000;
        let histogram = Histogram::of(&plane(Values::U16(values))).unwrap();
        assert_eq!((histogram.low, histogram.high), (100.0, 60_000.0));
        assert_eq!(histogram.counts.iter().sum::<u32>(), 10_000);
        let (low, high) = histogram.limits();
        assert!(low <= 100.0 && (299.0..1000.0).contains(&high), "{low} {high}");
    }
}
