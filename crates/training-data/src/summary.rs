//! Summary of many problems in a few lines.

use crate::dataset::{Problem, Severity};
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_volume::printable;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

/// Problems that differ only in files, names and numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProblemKind {
    /// Severity of these problems.
    pub severity: Severity,
    /// Indices into the list of problems, ascending; never empty.
    pub members: Vec<usize>,
    /// Number of different files with the problem.
    pub files: usize,
    /// The first problem of this kind, as an example.
    pub example: Problem,
}

/// A line of a summary. Displayed, it begins with the severity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SummaryLine {
    /// Severity of the problems; `None` for the line that counts problems of several kinds.
    pub severity: Option<Severity>,
    /// The files, the problem and the next step, or how many problems there are.
    pub text: Message,
}

impl SummaryLine {
    fn of(problem: &Problem) -> Self {
        let file = printable(&problem.file.display().to_string()).into_owned();
        Self::about(&file, problem)
    }

    /// Returns the line for the files that `files` names, which have this problem.
    fn about(files: &str, Problem { message, next_step, severity, .. }: &Problem) -> Self {
        // The next step is not always known.
        let separator = if next_step.is_empty() { "" } else { "; " };
        Self { severity: Some(*severity), text: message!("{files}: {message}{separator}{next_step}") }
    }
}

impl fmt::Display for SummaryLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.severity {
            Some(severity) => write!(f, "{}: {}", severity_word(severity), self.text),
            None => fmt::Display::fmt(&self.text, f),
        }
    }
}

/// Placeholder for names and numbers.
const PLACEHOLDER: &str = "…";

/// Replaces what differs from file to file by a placeholder: quoted words, and words with a digit, a slash or an
/// extension.
fn template(message: &str) -> String {
    let mut words: Vec<&str> = Vec::new();
    let mut quoted = false;
    for word in message.split_whitespace() {
        let quotes = word.matches('"').count();
        let ending = word.trim_end_matches([',', ';', ':', '.', ')']).rsplit_once('.');
        let file = ending.is_some_and(|(stem, end)| !stem.is_empty() && end.chars().all(char::is_alphanumeric));
        let special = word.contains(|c: char| c.is_numeric() || c == '/' || c == '\\');
        if quoted || quotes > 0 || file || special {
            if words.last() != Some(&PLACEHOLDER) {
                words.push(PLACEHOLDER);
            }
        } else {
            words.push(word);
        }
        quoted ^= quotes % 2 == 1;
    }
    words.join(" ")
}

/// Groups problems by kind; errors first, then by decreasing frequency.
pub fn kinds(problems: &[Problem]) -> Vec<ProblemKind> {
    let mut groups: BTreeMap<(Severity, String), Vec<usize>> = BTreeMap::new();
    for (i, problem) in problems.iter().enumerate() {
        groups.entry((problem.severity, template(&problem.message))).or_default().push(i);
    }
    let kind = |((severity, _), members): ((Severity, String), Vec<usize>)| {
        let files: BTreeSet<&Path> = members.iter().filter_map(|i| Some(problems.get(*i)?.file.as_path())).collect();
        let example = problems.get(*members.first()?)?.clone();
        Some(ProblemKind { severity, files: files.len(), members, example })
    };
    let mut kinds: Vec<ProblemKind> = groups.into_iter().filter_map(kind).collect();
    kinds.sort_by(|a, b| (b.severity, b.members.len(), &a.members).cmp(&(a.severity, a.members.len(), &b.members)));
    kinds
}

/// Formats a problem as one line: severity, file, problem and next step.
pub fn line(problem: &Problem) -> String {
    SummaryLine::of(problem).to_string()
}

fn severity_word(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "left out",
        Severity::Warning => "warning",
    }
}

impl ProblemKind {
    /// Returns the number of files or of occurrences, as text.
    pub fn count(&self) -> String {
        match (self.members.len(), self.files) {
            (1, _) => "1 file".to_owned(),
            (n, files) if n == files => format!("{n} files"),
            (n, _) => format!("{n} times"),
        }
    }
}

/// Summarizes problems in at most `max_lines` lines (at least 2): one line per problem, or, if there are more, per
/// kind. If there are more kinds, the last line counts the rest.
pub fn summary(problems: &[Problem], max_lines: usize) -> Vec<SummaryLine> {
    if problems.len() <= max_lines {
        return problems.iter().map(SummaryLine::of).collect();
    }
    let kinds = kinds(problems);
    let shown = if kinds.len() <= max_lines { kinds.len() } else { max_lines.saturating_sub(1) };
    let mut lines: Vec<SummaryLine> = kinds
        .iter()
        .take(shown)
        .map(|kind| match kind.members.len() {
            1 => SummaryLine::of(&kind.example),
            _ => {
                let file = kind.example.file.display().to_string();
                SummaryLine::about(&format!("{}, such as {}", kind.count(), printable(&file)), &kind.example)
            }
        })
        .collect();
    let others = kinds.get(shown..).unwrap_or_default();
    if !others.is_empty() {
        let count: usize = others.iter().map(|kind| kind.members.len()).sum();
        lines.push(SummaryLine { severity: None, text: message!("and {count} more of {} other kinds", others.len()) });
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_do_not_depend_on_names_and_numbers() {
        for (a, b) in [
            ("it holds one label, 1", "it holds one label, 255"),
            ("its shape is 4×8×8, and that of a_raw.tif 4×8×9", "its shape is 16×64×64, and that of b_raw.tif 4×8×9"),
            ("it holds the same voxels as /data/a.tif (a1)", "it holds the same voxels as /data/c.tif (c1)"),
            ("the column \"raw image\" is missing", "the column \"seg\" is missing"),
        ] {
            assert_eq!(template(a), template(b));
        }
        assert_ne!(template("this image has no target"), template("this target has no image"));
        assert_eq!(template("it is a single plane."), "it is a single plane.");
    }

    #[test]
    fn many_problems_are_summarized_in_few_lines() {
        let at = |i: usize| Path::new("/data").join(format!("{i:03}.tif"));
        let mut problems: Vec<Problem> =
            (0..300).map(|i| Problem::warning(&at(i), "this image has no target", "add one")).collect();
        problems.extend((0..2).map(|i| Problem::error(&at(i), format!("it has {} voxels", i + 3), "look at it")));
        problems.push(Problem::warning(&at(7), "it is flat", "do not mind"));
        let texts = |lines: &[SummaryLine]| lines.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            texts(&summary(&problems, 9)),
            [
                "left out: 2 files, such as /data/000.tif: it has 3 voxels; look at it",
                "warning: 300 files, such as /data/000.tif: this image has no target; add one",
                "warning: /data/007.tif: it is flat; do not mind",
            ]
        );
        let severities: Vec<Option<Severity>> = summary(&problems, 2).iter().map(|line| line.severity).collect();
        assert_eq!(severities, [Some(Severity::Error), None]);
        assert_eq!(texts(&summary(&problems, 2)).last().map(String::as_str), Some("and 301 more of 2 other kinds"));
        assert_eq!(summary(&problems[..3], 3).len(), 3, "few are listed one by one");
        assert_eq!(kinds(&problems).iter().map(|k| k.members.len()).sum::<usize>(), 303);
        assert_eq!(line(&Problem::error(&at(1), "it failed", "")), "left out: /data/001.tif: it failed");
        // Several problems of one file are counted as occurrences.
        let lines: Vec<Problem> =
            (0..20).map(|i| Problem::warning(&at(0), format!("line {i} is empty"), "remove it")).collect();
        assert!(texts(&summary(&lines, 9))[0].starts_with("warning: 20 times, such as /data/000.tif: line 0"));
        // The number of lines is limited for any number of kinds.
        let word = |i: usize| -> String {
            [i / 26 / 26, i / 26 % 26, i % 26].map(|k| (b'a' + k as u8) as char).iter().collect()
        };
        let all: Vec<Problem> =
            (0..500).map(|i| Problem::warning(&at(i), format!("it is {}", word(i)), "wait")).collect();
        assert_eq!(summary(&all, 9).len(), 9);
        assert!(summary(&all, 9)[8].text.contains("492 more of 492 other kinds"));
    }
}
