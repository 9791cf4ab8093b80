//! Forms of versions and times in a description.

use serde_json::Value;

/// Separators before and after the word of a suffix of a version.
const SEPARATORS: [char; 3] = ['-', '_', '.'];
/// Words of pre-releases, longer ones before those that they begin with.
const PRE_RELEASES: [&str; 8] = ["alpha", "a", "beta", "b", "preview", "pre", "rc", "c"];
/// Words of post-releases, as [`PRE_RELEASES`].
const POST_RELEASES: [&str; 3] = ["post", "rev", "r"];

/// Whether a value is a version as Python's `packaging` reads it (PEP 440), such as 0.1.0, 2 or 1.0-beta2.
pub(super) fn is_version(value: &Value) -> bool {
    let Some(text) = value.as_str() else { return value.is_number() };
    let lower = text.trim().to_ascii_lowercase();
    let rest = lower.strip_prefix('v').unwrap_or(&lower);
    let (public, local) = rest.split_once('+').map_or((rest, None), |(public, local)| (public, Some(local)));
    let is_word = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric());
    is_public_version(public) && local.is_none_or(|local| local.split(SEPARATORS).all(is_word))
}

/// Whether a text is a version without a local part: `[N!]N(.N)*`, then a pre-release, a post-release and a development
/// release, each of which may be missing.
fn is_public_version(text: &str) -> bool {
    let Some(first) = without_number(text) else { return false };
    let release = first.strip_prefix('!').map_or(Some(first), without_number);
    let Some(mut rest) = release else { return false };
    while let Some(after) = rest.strip_prefix('.').and_then(without_number) {
        rest = after;
    }
    rest = without_suffix(rest, &PRE_RELEASES);
    rest = match rest.strip_prefix('-').and_then(without_number) {
        Some(after) => after,
        None => without_suffix(rest, &POST_RELEASES),
    };
    without_suffix(rest, &["dev"]).is_empty()
}

/// Returns what follows the digits that a text begins with; `None` if there are none.
fn without_number(text: &str) -> Option<&str> {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    (rest.len() < text.len()).then_some(rest)
}

/// Returns what follows one of the words with its number, if the text begins with one; otherwise the text.
fn without_suffix<'a>(text: &'a str, words: &[&str]) -> &'a str {
    let start = text.strip_prefix(SEPARATORS).unwrap_or(text);
    let Some(after) = words.iter().find_map(|word| start.strip_prefix(*word)) else { return text };
    let after = after.strip_prefix(SEPARATORS).unwrap_or(after);
    without_number(after).unwrap_or(after)
}

/// Whether a text is a date, `YYYY-MM-DD`, with or without a time.
pub(super) fn is_timestamp(text: &str) -> bool {
    let (Some(date), Some(time)) = (text.get(..10), text.get(10..)) else { return false };
    is_date(date) && (time.is_empty() || time.strip_prefix(['T', ' ']).is_some_and(is_time))
}

fn is_date(text: &str) -> bool {
    let numbers: Vec<Option<u32>> = text.split('-').map(|part| part.parse().ok()).collect();
    let [Some(year), Some(month), Some(day)] = numbers.as_slice() else { return false };
    let is_leap_year = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = match *month {
        2 if is_leap_year => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return false,
    };
    text.find('-') == Some(4) && (1..=days).contains(day)
}

/// Whether a text is a time of day, with or without an offset: `HH:MM:SS+HH:MM`.
fn is_time(text: &str) -> bool {
    let clock = text.split(['+', '-', 'Z']).next().unwrap_or_default();
    let is_in_range = |(part, last): (&str, u32)| {
        let whole = part.split('.').next().and_then(|number| number.parse::<u32>().ok());
        whole.is_some_and(|number| number <= last)
    };
    let is_valid = !clock.contains(':') || clock.split(':').zip([23, 59, 59]).all(is_in_range);
    is_valid
        && text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_digit() || ":.+-Z".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn versions_are_those_of_pep_440() {
        for valid in ["0.1.0", "1", "v1.2", "1!2.0", "1.0-beta", "1.0rc1", "1.0.post2", "1.0-1", "1.0a1.dev3", "1+ab.1"]
        {
            assert!(is_version(&json!(valid)), "{valid}");
        }
        for wrong in ["newest", "", "1.2.a.b", "1..0", "1.0-gamma", "1.0+", "1.0+a..b", "v", "1.0.", "1 2"] {
            assert!(!is_version(&json!(wrong)), "{wrong}");
        }
        assert!(is_version(&json!(2)) && is_version(&json!(0.3)) && !is_version(&json!([1])));
    }

    #[test]
    fn times_exist_in_the_calendar() {
        for valid in ["2024-02-29", "2024-02-03T04:05:06+00:00", "2024-02-03 04:05", "2024-02-03T04:05:06.789Z"] {
            assert!(is_timestamp(valid), "{valid}");
        }
        for wrong in [
            "yesterday",
            "2023-02-29",
            "2024-04-31",
            "2024-13-01",
            "2024-00-01",
            "2024-02-03T24:05:06",
            "2024-02-03T04:60",
            "2024-02-03Tnoon",
            "03-02-2024",
        ] {
            assert!(!is_timestamp(wrong), "{wrong}");
        }
    }
}
