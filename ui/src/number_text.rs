//! Numbers as short text.

use cytoscope_profile::count_text;

/// Number of digits from the first one that is not 0.
const DIGITS: f64 = 4.0;

/// Maximum number of decimals, so that a rounding error in place of 0 is shown as 0.
const MAX_DECIMALS: f64 = 9.0;

/// Formats a number with four significant digits and all digits before the decimal point, without trailing zeros.
pub(crate) fn short_number(value: f64) -> String {
    let power = value.abs().log10().floor();
    let decimals = if power.is_finite() { (DIGITS - 1.0 - power).clamp(0.0, MAX_DECIMALS) as usize } else { 0 };
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Returns a count with its noun, such as `1 object` or `1,234 objects`; `one` is the noun in the singular.
pub(crate) fn counted(count: u64, one: &str) -> String {
    cytoscope_storage::counted(count_text(count), one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_things_are_singular_or_plural() {
        let shown = [0, 1, 2, 1234].map(|count| counted(count, "object"));
        assert_eq!(shown, ["0 objects", "1 object", "2 objects", "1,234 objects"]);
    }

    #[test]
    fn numbers_have_four_digits_and_no_trailing_zeros() {
        let shown = [
            (0.0, "0"),
            (2.0, "2"),
            (0.65, "0.65"),
            (0.000_3, "0.0003"),
            (0.108_333, "0.1083"),
            (12.345, "12.35"),
            (9.999_96, "10"),
            (1500.0, "1500"),
            (123_456.7, "123457"),
            (-0.25, "-0.25"),
            (0.1 + 0.2, "0.3"),
            (5.5e-17, "0"),
            (f64::INFINITY, "inf"),
        ];
        for (value, text) in shown {
            assert_eq!(short_number(value), text);
        }
    }
}
