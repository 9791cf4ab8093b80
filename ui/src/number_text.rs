//! Numbers as short text.

use cytoscope_profile::{count_text, time_text};

/// Number of digits from the first one that is not 0.
const DIGITS: f64 = 4.0;

/// Maximum number of decimals, so that a rounding error in place of 0 is shown as 0.
const MAX_DECIMALS: f64 = 9.0;

/// Share of the median size below which a value of a column may be shown as 0.
const FAR_SMALLER: f64 = 1e-4;

/// Formats a number with four significant digits and all digits before the decimal point, without trailing zeros.
pub(crate) fn short_number(value: f64) -> String {
    let power = value.abs().log10().floor();
    let decimals = if power.is_finite() { (DIGITS - 1.0 - power).clamp(0.0, MAX_DECIMALS) as usize } else { 0 };
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Number of decimals with which all measurements of a column are shown: none of whole numbers, otherwise those that a value of
/// median size needs, and more if a smaller one would be shown as 0, unless it is far smaller.
pub(crate) fn column_decimals(values: impl Iterator<Item = f64>) -> usize {
    let mut sizes: Vec<f64> = values.filter(|v| v.is_finite() && *v != 0.0).map(f64::abs).collect();
    if sizes.iter().all(|size| size.fract() == 0.0) {
        return 0;
    }
    let middle = sizes.len() / 2;
    let median = *sizes.select_nth_unstable_by(middle, f64::total_cmp).1;
    let smallest = sizes.iter().copied().filter(|size| *size >= median * FAR_SMALLER).fold(median, f64::min);
    // The decimal that is the first digit which is not 0.
    let first_digit = |size: f64| -size.log10().floor();
    let needed = match median {
        size if size >= 100.0 => 1.0,
        size if size >= 0.01 => 3.0,
        // Such as volumes of organelles in µm³.
        size => first_digit(size) + DIGITS - 1.0,
    };
    needed.max(first_digit(smallest)).clamp(0.0, MAX_DECIMALS) as usize
}

/// Number of decimals with which all of these round numbers are shown: the most that one of them has.
pub(crate) fn round_decimals(values: impl Iterator<Item = f64>) -> usize {
    let decimals = |value: f64| short_number(value).split_once('.').map_or(0, |(_, decimals)| decimals.len());
    values.map(decimals).max().unwrap_or(0)
}

/// A measurement with this number of decimals, and with commas between the thousands; a dash if it is missing.
pub(crate) fn measurement(value: f64, decimals: usize) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let text = format!("{:.decimals$}", value.abs());
    let is_zero = text.bytes().all(|digit| matches!(digit, b'0' | b'.'));
    with_commas(&text, value < 0.0 && !is_zero)
}

/// A number with commas between the thousands. `text` is its absolute value.
pub(crate) fn with_commas(text: &str, is_negative: bool) -> String {
    let (integer, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    // Numbers beyond 64 bits stay without commas.
    let integer = integer.parse::<u64>().map_or_else(|_| integer.to_owned(), count_text);
    format!("{}{integer}{fraction}", if is_negative { "-" } else { "" })
}

/// The unit in which the times of a column are shown. Times that are too short for it are shown in µs, as on the command line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TimeUnit {
    /// Symbol of the unit.
    pub(crate) symbol: &'static str,
    /// Number of units in a second.
    per_second: f64,
    decimals: usize,
    /// Seconds below which a time other than 0 is too short for the unit.
    least_secs: f64,
}

impl TimeUnit {
    /// The unit for a column whose longest time is this long: seconds for minutes and hours, otherwise milliseconds.
    pub(crate) fn for_longest(secs: f64) -> Self {
        match secs >= 100.0 {
            true => Self { symbol: "s", per_second: 1.0, decimals: 3, least_secs: 1e-3 },
            false => Self { symbol: "ms", per_second: 1e3, decimals: 2, least_secs: 1e-4 },
        }
    }

    /// A time in this unit, without its symbol, or else in µs, with theirs.
    pub(crate) fn number(self, secs: f64) -> String {
        match self.is_too_short(secs) {
            true => time_text(secs),
            false => measurement(secs * self.per_second, self.decimals),
        }
    }

    /// A time in this unit, or else in µs.
    pub(crate) fn text(self, secs: f64) -> String {
        match self.is_too_short(secs) {
            true => time_text(secs),
            false => format!("{} {}", self.number(secs), self.symbol),
        }
    }

    /// Whether a time other than 0 has too few digits in this unit.
    fn is_too_short(self, secs: f64) -> bool {
        secs > 0.0 && secs < self.least_secs
    }
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
    fn the_measurements_of_a_column_have_the_same_number_of_decimals() {
        let shown = |values: &[f64]| {
            let decimals = column_decimals(values.iter().copied());
            values.iter().map(|v| measurement(*v, decimals)).collect::<Vec<_>>()
        };
        assert_eq!(shown(&[12_345.67, 250.0, 0.0, f64::NAN]), ["12,345.7", "250.0", "0.0", "–"]);
        assert_eq!(shown(&[0.5, 1.0, -120.25]), ["0.500", "1.000", "-120.250"]);
        assert_eq!(shown(&[3.0, 1200.0, f64::NAN]), ["3", "1,200", "–"]);
        assert_eq!(shown(&[0.000_123_46, 0.002, 0.003]), ["0.000123", "0.002000", "0.003000"]);
        // A volume that is smaller than most, and a rounding error.
        assert_eq!(shown(&[500.25, 700.5, 0.07]), ["500.25", "700.50", "0.07"]);
        assert_eq!(shown(&[500.5, 700.5, -1e-9]), ["500.5", "700.5", "0.0"]);
        assert_eq!((column_decimals(std::iter::empty()), shown(&[f64::INFINITY])), (0, vec!["–".to_owned()]));
    }

    #[test]
    fn the_times_of_a_column_have_the_same_unit_and_number_of_decimals_unless_they_are_too_short_for_it() {
        let shown = |times: [f64; 3]| {
            let unit = TimeUnit::for_longest(times.into_iter().fold(0.0, f64::max));
            times.map(|secs| unit.text(secs))
        };
        assert_eq!(shown([2.5, 0.012_36, 0.0]), ["2,500.00 ms", "12.36 ms", "0.00 ms"]);
        assert_eq!(shown([0.000_12, 0.000_099, 0.000_004]), ["0.12 ms", "99.00 µs", "4.00 µs"]);
        assert_eq!(shown([1200.0, 0.25, 0.000_4]), ["1,200.000 s", "0.250 s", "400.00 µs"]);
        let unit = TimeUnit::for_longest(1.0);
        assert_eq!([1.5, 0.000_004].map(|secs| unit.number(secs)), ["1,500.00", "4.00 µs"]);
    }

    #[test]
    fn round_numbers_have_the_decimals_of_the_one_with_the_most() {
        assert_eq!(round_decimals([1.25, 1.6, 2.0].into_iter()), 2);
        assert_eq!(round_decimals([4.0, 5.0].into_iter()), 0);
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
