//! Durations as text, and their median.

/// Seconds from which a time is printed with an exponent: more than a million years, as only damaged records state.
const EXPONENT_SECS: f64 = 1e14;

/// Formats a time with at least three digits, such as `2.500 s`, `19.90 ms` or `7.36 µs`.
pub fn time_text(secs: f64) -> String {
    match secs.abs() {
        size if size >= EXPONENT_SECS => format!("{secs:.3e} s"),
        size if size >= 1.0 || size == 0.0 => format!("{secs:.3} s"),
        size if size >= 1e-3 => format!("{:.2} ms", 1e3 * secs),
        _ => format!("{:.2} µs", 1e6 * secs),
    }
}

/// Returns the median of values in ascending order: the middle one, or the mean of both middle ones; `None` without any.
pub fn median(sorted: &[f64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = *sorted.get((sorted.len() - 1) / 2)?;
    Some(f64::midpoint(lower, upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_or_the_mean_of_both_middle_values() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[1.0, 2.0]), Some(1.5));
        assert_eq!(median(&[1.0, 2.0, 9.0]), Some(2.0));
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), Some(3.0));
    }

    #[test]
    fn times_keep_their_digits_and_do_not_fill_the_line() {
        let times = [0.0, 7.36e-6, 0.0199, 0.25, 1.0, 86_400.0, -2.5, 1e300];
        let expected =
            ["0.000 s", "7.36 µs", "19.90 ms", "250.00 ms", "1.000 s", "86400.000 s", "-2.500 s", "1.000e300 s"];
        assert_eq!(times.map(time_text), expected);
    }
}
