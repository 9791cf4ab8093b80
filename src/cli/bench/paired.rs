//! Ratios of paired measurements: two ways of doing the same thing, measured right after each other in random order.
//!
//! A shared machine is slower in one minute than in the next, which changes both times of a pair alike. The median of
//! the ratios is not changed by single disturbed pairs. Its interval comes from the bootstrap: the median is computed
//! for many samples that are drawn from the pairs with replacement (Efron and Tibshirani, An Introduction to the
//! Bootstrap, 1993, percentile interval).

use super::metrics::Spread;

/// Number of samples that are drawn from the pairs.
const RESAMPLES: usize = 2000;
/// Probability that the interval covers the median.
pub(super) const COVERAGE: f64 = 0.95;

/// Random numbers that repeat (SplitMix64): the order of measurements should not be guessable from the machine's rhythm,
/// but results should be reproducible.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number below `count`; 0 if `count` is 0.
    pub(super) fn below(&mut self, count: usize) -> usize {
        (self.number() % (count as u64).max(1)) as usize
    }

    /// Puts values into random order (Fisher and Yates).
    pub(super) fn shuffle<T>(&mut self, values: &mut [T]) {
        for last in (1..values.len()).rev() {
            values.swap(last, self.below(last + 1));
        }
    }
}

/// Returns the median of the values, and the interval that covers it with a probability of [`COVERAGE`] as minimum and
/// maximum; `None` without values.
pub(super) fn median_interval(values: &[f64]) -> Option<Spread> {
    let median = median(&mut values.to_vec())?;
    let mut random = Random::new(values.len() as u64);
    let mut medians: Vec<f64> = Vec::with_capacity(RESAMPLES);
    let mut drawn = Vec::with_capacity(values.len());
    for _ in 0..RESAMPLES {
        drawn.clear();
        drawn.extend((0..values.len()).filter_map(|_| values.get(random.below(values.len()))).copied());
        medians.extend(self::median(&mut drawn));
    }
    medians.sort_by(f64::total_cmp);
    let at = |share: f64| medians.get((share * medians.len() as f64) as usize).copied();
    let outside = (1.0 - COVERAGE) / 2.0;
    Some(Spread { min: at(outside)?, median, max: at(1.0 - outside)? })
}

/// Returns the median of values, whose order changes.
fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    cytoscope_profile::median(values)
}

/// Returns what an interval says about a limit.
pub(super) fn verdict(interval: &Spread, limit: f64) -> String {
    let percent = 100.0 * (limit - 1.0);
    if interval.max <= limit {
        format!("costs less than {percent:.0} %")
    } else if interval.min > limit {
        format!("costs more than {percent:.0} %")
    } else {
        format!("undecided whether it costs less than {percent:.0} %: measure more pairs")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_covers_the_median_and_narrows_with_more_pairs() {
        // Ratios of 1.02 with noise of 5 %, and every tenth pair disturbed.
        let ratios = |count: usize| -> Vec<f64> {
            let mut random = Random::new(7);
            let noise = |random: &mut Random| random.below(1001) as f64 / 1000.0 - 0.5;
            let ratio = |i: usize, random: &mut Random| match i % 10 {
                0 => 3.0,
                _ => 1.02 + 0.1 * noise(random),
            };
            (0..count).map(|i| ratio(i, &mut random)).collect()
        };
        let (few, many) = (median_interval(&ratios(20)).unwrap(), median_interval(&ratios(1000)).unwrap());
        for interval in [few, many] {
            assert!(interval.min <= interval.median && interval.median <= interval.max, "{interval:?}");
        }
        // A tenth of disturbed pairs moves the median of the others to their 0.56 quantile.
        assert!((many.median - 1.0256).abs() < 0.008 && many.max - many.min < 0.02, "{many:?}");
        assert!(many.max - many.min < few.max - few.min, "{few:?} {many:?}");
        assert_eq!(median_interval(&[1.5]), Some(Spread { min: 1.5, median: 1.5, max: 1.5 }));
        assert_eq!(median_interval(&[]), None);
    }

    #[test]
    fn a_limit_is_decided_by_the_whole_interval() {
        let interval = |min, max| Spread { min, median: (min + max) / 2.0, max };
        assert_eq!(verdict(&interval(0.99, 1.005), 1.01), "costs less than 1 %");
        assert_eq!(verdict(&interval(1.04, 1.05), 1.03), "costs more than 3 %");
        assert!(verdict(&interval(0.99, 1.02), 1.01).starts_with("undecided"));
    }

    #[test]
    fn an_order_is_shuffled_without_loss() {
        let mut random = Random::new(1);
        let mut orders = std::collections::BTreeSet::new();
        for _ in 0..50 {
            let mut order = [0, 1, 2];
            random.shuffle(&mut order);
            orders.insert(order);
            order.sort_unstable();
            assert_eq!(order, [0, 1, 2]);
        }
        assert_eq!(orders.len(), 6, "every order occurs");
    }
}
