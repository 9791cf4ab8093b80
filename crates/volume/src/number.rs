//! Numbers of any size in messages.

/// From this magnitude on, numbers have an exponent.
const LARGE: f64 = 1e9;
/// Below this magnitude, numbers have an exponent.
const SMALL: f64 = 1e-9;

/// Formats a number that may have any size: very large and very small ones have an exponent, so that the text is short.
pub fn number_text(number: f64) -> String {
    let magnitude = number.abs();
    let is_common = number == 0.0 || !number.is_finite() || (SMALL..LARGE).contains(&magnitude);
    if is_common { number.to_string() } else { format!("{number:e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_all_numbers_are_short_and_mean_the_same_number() {
        for (number, text) in [
            (0.0, "0"),
            (-2.5, "-2.5"),
            (6.5e-7, "0.00000065"),
            (999_999_999.0, "999999999"),
            (1e9, "1e9"),
            (-1.5e99, "-1.5e99"),
            (2e-300, "2e-300"),
            (f64::INFINITY, "inf"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(number_text(number), text);
        }
        for number in [f64::MAX, f64::MIN_POSITIVE, -1.0 / 3.0 * 1e-8, 1.0 / 3.0 * 1e9, 5e-324] {
            let text = number_text(number);
            assert!(text.len() <= 30 && text.parse::<f64>() == Ok(number), "{text}");
        }
    }
}
