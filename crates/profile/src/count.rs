//! Counts as text.

/// Formats a count for display, with commas between groups of three digits, such as `336,850`.
pub fn count_text(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        let shown = [0, 7, 999, 1000, 12_345, 336_850, 1_000_000, u64::MAX].map(count_text);
        let expected = ["0", "7", "999", "1,000", "12,345", "336,850", "1,000,000", "18,446,744,073,709,551,615"];
        assert_eq!(shown, expected);
    }
}
