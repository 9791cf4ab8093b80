//! Text from files, made safe to print.

use std::borrow::Cow;

/// Returns the text with every character that controls a terminal, or changes the writing direction, escaped as
/// `\u{..}`.
///
/// These are the control characters C0 (including line feed and tab), DEL and C1, the line and paragraph separators,
/// and Unicode's bidirectional marks, embeddings, overrides and isolates. Use it wherever a message or listing quotes
/// names or descriptions from a file.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_control_or_bidi) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_control_or_bidi(c) { escaped.extend(c.escape_unicode()) } else { escaped.push(c) }
    }
    Cow::Owned(escaped)
}

fn is_control_or_bidi(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_is_unchanged() {
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
