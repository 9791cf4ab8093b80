//! Text from files, made safe to print.

use std::borrow::Cow;

/// The text with every character that steers a terminal, or changes the order in which text is shown, as `\u{..}`.
///
/// These are the control characters C0 (line feed and tab included), DEL and C1, the line and paragraph separators, and
/// Unicode's marks, embeddings, overrides and isolates of writing direction. To be used where a message or listing
/// quotes names and descriptions that come from a file.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_steering) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_steering(c) { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

fn is_steering(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_is_kept() {
        for text in ["", "DAPI", "µm — 日本語 עברית", "a b"] {
            assert!(matches!(printable(text), Cow::Borrowed(t) if t == text), "{text}");
        }
    }

    #[test]
    fn controls_are_escaped() {
        assert_eq!(printable("\u{1b}[2Jred\u{7}"), "\\u{1b}[2Jred\\u{7}");
        assert_eq!(printable("a\nb\tc\u{7f}\u{9b}31m"), "a\\u{a}b\\u{9}c\\u{7f}\\u{9b}31m");
        assert_eq!(printable("x\u{202e}fdp.exe"), "x\\u{202e}fdp.exe");
        assert_eq!(printable("\u{2066}a\u{2069}\u{200f}\u{2028}"), "\\u{2066}a\\u{2069}\\u{200f}\\u{2028}");
    }
}
