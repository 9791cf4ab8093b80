//! Counts in messages, with the noun and the verb that agree with them.

use std::fmt::Display;

/// Returns a number with the noun that it counts, such as `1 object` and `2 objects`.
///
/// ```
/// use cytoscope_storage::counted;
///
/// assert_eq!([0, 1, 2].map(|count| counted(count, "plane")), ["0 planes", "1 plane", "2 planes"]);
/// ```
pub fn counted(count: impl Display, noun: &str) -> String {
    let count = count.to_string();
    let plural = by_count(&count, "", "s");
    format!("{count} {noun}{plural}")
}

/// Returns `one` for the number 1, and `other` for all others: the word of a message that agrees with the number.
///
/// ```
/// use cytoscope_storage::by_count;
///
/// assert_eq!([0, 1, 2].map(|count| by_count(count, "is", "are")), ["are", "is", "are"]);
/// ```
pub fn by_count<'a>(count: impl Display, one: &'a str, other: &'a str) -> &'a str {
    if count.to_string() == "1" { one } else { other }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_ends_in_one_is_a_plural() {
        assert_eq!(counted(21, "plane"), "21 planes");
        assert_eq!(counted("1,001", "step"), "1,001 steps");
        assert_eq!(by_count(11, "is", "are"), "are");
    }
}
