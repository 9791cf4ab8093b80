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

/// Formats a time of about two digits, for times that differ from run to run, such as `33 s`, `2.5 s` or `120 ms`.
pub fn rough_time_text(secs: f64) -> String {
    match secs.abs() {
        size if size >= EXPONENT_SECS => time_text(secs),
        size if size >= 9.95 || size == 0.0 => format!("{secs:.0} s"),
        size if size >= 0.9995 => format!("{secs:.1} s"),
        size if size >= 9.95e-3 => format!("{:.0} ms", 1e3 * secs),
        size if size >= 0.995e-3 => format!("{:.1} ms", 1e3 * secs),
        _ => format!("{:.1} µs", 1e6 * secs),
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

    #[test]
    fn rough_times_have_about_two_digits() {
        let times = [0.0, 7.36e-6, 0.001_96, 0.0099, 0.25, 0.9996, 1.234, 9.96, 32.809, 3725.4, 1e300];
        let expected =
            ["0 s", "7.4 µs", "2.0 ms", "9.9 ms", "250 ms", "1.0 s", "1.2 s", "10 s", "33 s", "3725 s", "1.000e300 s"];
        assert_eq!(times.map(rough_time_text), expected);
    }
}
