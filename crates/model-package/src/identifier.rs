//! Identifiers in the sense of Python, which the specification requires for the ids of tensors and the names of channels.

/// Python's keywords, which are not identifiers.
const KEYWORDS: [&str; 35] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del",
    "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "nonlocal",
    "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
];

/// Whether a text is a keyword of Python.
pub(super) fn is_keyword(text: &str) -> bool {
    KEYWORDS.contains(&text)
}

/// Whether an identifier may begin with a character.
fn begins(c: char) -> bool {
    c == '_' || c.is_alphabetic()
}

/// Whether an identifier may contain a character.
fn is_allowed(c: char) -> bool {
    begins(c) || c.is_ascii_digit()
}

/// Whether a text is an identifier (`Identifier` of bioimageio.spec).
pub(super) fn is_identifier(text: &str) -> bool {
    text.starts_with(begins) && text.chars().all(is_allowed) && !is_keyword(text)
}

/// Returns the names of channels as identifiers; those that are identifiers stay.
pub(super) fn identifiers(names: &[String]) -> Vec<String> {
    let identifier = |(number, name): (usize, &String)| {
        let plain: String = name.trim().chars().map(|c| if is_allowed(c) { c } else { '_' }).collect();
        match plain.chars().next() {
            None => format!("channel{number}"),
            Some(first) if !begins(first) => format!("channel_{plain}"),
            Some(_) if is_keyword(&plain) => plain + "_",
            Some(_) => plain,
        }
    };
    names.iter().enumerate().map(identifier).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_channels_become_identifiers() {
        let cases = [
            ("nuclei", "nuclei"),
            ("_Zellkern_2", "_Zellkern_2"),
            ("grün", "grün"),
            ("Membrane protein", "Membrane_protein"),
            ("alpha-tubulin (red)", "alpha_tubulin__red_"),
            ("488", "channel_488"),
            ("class", "class_"),
            ("None", "None_"),
            (" ", "channel8"),
        ];
        let names = cases.map(|(name, _)| name.to_owned());
        let found = identifiers(&names);
        for ((name, expected), found) in cases.into_iter().zip(&found) {
            assert_eq!((found.as_str(), is_identifier(found)), (expected, true), "{name}");
            assert_eq!(is_identifier(name), name == expected, "{name}");
        }
        assert_eq!(identifiers(&found), found, "identifiers stay");
    }
}
