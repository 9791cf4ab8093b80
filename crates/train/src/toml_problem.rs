//! What is wrong with settings in TOML, in the words of settings files instead of those of the parser.

/// Maximum number of characters of a line that are shown.
const SHOWN: usize = 60;

/// Words for the types that the parser expects.
const TYPES: [(&str, &str); 12] = [
    ("f64", "a number"),
    ("f32", "a number"),
    ("usize", "a whole number"),
    ("u64", "a whole number"),
    ("u32", "a whole number"),
    ("u8", "a whole number"),
    ("i64", "a whole number"),
    ("a string", "a text"),
    ("a sequence", "a list"),
    ("a map", "a section"),
    ("a boolean", "true or false"),
    ("variant identifier", "a name"),
];

/// Words for the kinds of values that the parser found.
const KINDS: [(&str, &str); 5] = [
    ("string ", "the text "),
    ("integer ", "the number "),
    ("floating point ", "the number "),
    ("boolean ", ""),
    ("sequence", "a list"),
];

/// Returns what is wrong with settings in TOML, and where, in one line; `text` is what was parsed.
pub(crate) fn toml_problem(text: &str, error: &toml::de::Error) -> String {
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else {
        return setting_problem(&one_line(&error.to_string()), &Place::default());
    };
    let index = before.matches('\n').count();
    let lines: Vec<&str> = text.split('\n').take(index + 1).map(str::trim).collect();
    let line = lines.last().copied().unwrap_or_default();
    let section = lines.iter().rev().find_map(|line| section_name(line)).unwrap_or_default();
    let problem = setting_problem(&one_line(error.message()), &Place { section, line });
    let shown: String = line.chars().take(SHOWN).collect();
    format!("line {} (\"{shown}\"): {problem}", index + 1)
}

/// The name of the section that begins in a line.
fn section_name(line: &str) -> Option<&str> {
    let (name, rest) = line.strip_prefix('[')?.split_once(']')?;
    let (name, rest) = (name.trim(), rest.trim_start());
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    // Lists have lines that begin with a bracket, too.
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(is_part);
    (is_name && (rest.is_empty() || rest.starts_with('#'))).then_some(name)
}

/// Where in a file an error is.
#[derive(Default)]
pub(crate) struct Place<'a> {
    /// Name of the section; empty at the beginning of the file.
    section: &'a str,
    /// The line, without spaces around it.
    line: &'a str,
}

impl Place<'_> {
    /// The name of a setting with its section, if the line shows that the setting is directly in it.
    fn whole_name(&self, name: &str) -> String {
        let is_own = section_name(self.line).is_some() || self.line.starts_with(name);
        if self.section.is_empty() || !is_own { name.to_owned() } else { format!("{}.{name}", self.section) }
    }
}

/// Returns the message of an error in settings in the words of settings files.
pub(crate) fn setting_problem(message: &str, place: &Place<'_>) -> String {
    if let Some((name, rest)) = name_after(message, "unknown field ") {
        return format!("unknown setting {}{}", place.whole_name(name), expected(&names_in(rest)));
    }
    if let Some((name, rest)) = name_after(message, "unknown variant ") {
        return format!("unknown value \"{name}\"{}", expected(&names_in(rest)));
    }
    if let Some((name, _)) = name_after(message, "missing field ") {
        return format!("the setting {} is missing", place.whole_name(name));
    }
    if let Some((name, known)) =
        message.strip_prefix("unexpected keys in table: ").and_then(|rest| rest.split_once(", available keys: "))
    {
        return format!("unknown setting {name}{}", expected(&known.split(", ").collect::<Vec<_>>()));
    }
    if let Some((count, whole)) =
        message.strip_prefix("invalid length ").and_then(|rest| rest.split_once(", expected an array of length "))
    {
        return format!("found a list of {count}, expected a list of {whole}");
    }
    let mismatch = ["invalid type: ", "invalid value: "].iter().find_map(|start| message.strip_prefix(*start));
    match mismatch.and_then(|rest| rest.rsplit_once(", expected ")) {
        Some((found, expected)) => format!("found {}, expected {}", found_words(found), type_words(expected)),
        None => message.to_owned(),
    }
}

/// The name in backticks behind these words, and what follows it.
fn name_after<'a>(message: &'a str, words: &str) -> Option<(&'a str, &'a str)> {
    message.strip_prefix(words)?.strip_prefix('`')?.split_once('`')
}

/// The names in backticks, without those that are accepted from files of earlier versions.
fn names_in(text: &str) -> Vec<&str> {
    let is_present = |name: &&str| *name != "normalise" && !name.starts_with(|c: char| c.is_ascii_uppercase());
    text.split('`').skip(1).step_by(2).filter(is_present).collect()
}

/// The names of which one is expected.
fn expected(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [only] => format!(": expected {only}"),
        all => format!(": expected one of {}", all.join(", ")),
    }
}

/// A value that was found in words: the parser names its kind and puts numbers into backticks.
fn found_words(found: &str) -> String {
    let words = KINDS.iter().find_map(|(kind, words)| Some(format!("{words}{}", found.strip_prefix(*kind)?)));
    let words = words.unwrap_or_else(|| if found == "map" { "a section".to_owned() } else { found.to_owned() });
    words.replace('`', "")
}

/// A type that was expected in words.
fn type_words(expected: &str) -> &str {
    if ["struct ", "enum ", "internally tagged enum "].iter().any(|start| expected.starts_with(*start)) {
        return "a section";
    }
    TYPES.iter().find(|(name, _)| *name == expected).map_or(expected, |(_, words)| *words)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use crate::config::TrainConfig;
    use std::path::Path;

    fn refusal(text: &str) -> String {
        TrainConfig::parse(Path::new("t.toml"), text).unwrap_err().to_string()
    }

    #[test]
    fn unknown_settings_are_named_with_the_file_the_line_and_those_that_are_expected() {
        let budget = "t.toml: line 2 (\"minutess = 4\"): unknown setting budget.minutess: expected one of epochs, minutes, \
                      steps, patience; correct the settings";
        assert_eq!(refusal("[budget]\nminutess = 4\n"), budget);
        for (text, problem) in [
            ("colour = 1", "line 1 (\"colour = 1\"): unknown setting colour: expected one of data, target, "),
            ("[loss] # focal\nkind = \"focal\"\ngama = 2.0", "unknown setting loss.gama: expected gamma; "),
            ("[loss]\nkind = \"focl\"", "unknown value \"focl\": expected one of bce, dice, "),
            ("[target]\nknd = \"semantic\"", "the setting target.kind is missing; "),
            (
                "[segment]\nheight = { distance_plus_seeds = { weight_um = 1.0, weight = 2.0 } }",
                "unknown setting weight: expected weight_um; ",
            ),
            ("[segment]\nconnectivity = \"x\"", "unknown value \"x\": expected one of faces, corners; "),
        ] {
            let refused = refusal(text);
            assert!(refused.starts_with("t.toml: line ") && refused.contains(problem), "{refused}");
            assert!(!refused.contains('`') && !refused.contains("normalise"), "{refused}");
        }
    }

    #[test]
    fn values_of_another_type_are_described_in_words() {
        for (text, problem) in [
            ("ema = \"x\"", "found the text \"x\", expected a number; "),
            ("budget = 4", "found the number 4, expected a section; "),
            ("loss = \"bce\"", "found the text \"bce\", expected a section; "),
            ("[data]\nsame_file = 3", "found the number 3, expected true or false; "),
            ("[data]\ntime = -1", "found the number -1, expected a whole number; "),
            ("only = \"a\"", "found the text \"a\", expected a list; "),
            ("patch_zyx = [8, 8]", "found a list of 2, expected a list of 3; "),
            ("ema = true", "found true, expected a number; "),
            ("object_bias = { a = 1 }", "found a section, expected a number; "),
        ] {
            let refused = refusal(text);
            assert!(refused.contains(problem) && !refused.contains('`'), "{text}: {refused}");
        }
    }
}
