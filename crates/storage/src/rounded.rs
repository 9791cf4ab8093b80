//! Numbers with as many digits as a reader or a record needs.

/// Returns a number rounded to six significant digits.
///
/// ```
/// use cytoscope_storage::rounded;
///
/// assert_eq!([-1_234.567_8, 2.0 / 3.0 * 1e-6].map(rounded), [-1_234.57, 6.666_67e-7]);
/// ```
pub fn rounded(number: f64) -> f64 {
    format!("{number:.5e}").parse().unwrap_or(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_size_keep_six_digits() {
        for (number, expected) in [
            (0.0, 0.0),
            (0.4, 0.4),
            (1.0 / 3.0, 0.333_333),
            (999_999.7, 1e6),
            (2.0 / 3.0 * 1e-12, 6.666_67e-13),
            (f64::INFINITY, f64::INFINITY),
        ] {
            assert_eq!(rounded(number), expected);
        }
        assert!(rounded(f64::NAN).is_nan());
    }
}
