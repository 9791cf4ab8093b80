//! What is wrong with the arguments of the command line, where clap alone does not say what to do instead.

use super::Arguments;
use clap::CommandFactory;
use clap::error::{ContextKind, ErrorKind as UsageErrorKind};
use cytoscope_storage::setting::OUT;
use std::error::Error;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};

/// Returns the error of clap, or one in its place that says what is expected, or where an argument belongs.
pub(super) fn explained(usage: clap::Error) -> clap::Error {
    with_place_of_output(with_place_of_option(with_expected_number(usage)))
}

/// Replaces the error for a value that is not a number by one that says what is expected.
fn with_expected_number(usage: clap::Error) -> clap::Error {
    let (argument, value) = (usage.get(ContextKind::InvalidArg), usage.get(ContextKind::InvalidValue));
    let (Some(argument), Some(value), Some(source)) = (argument, value, usage.source()) else { return usage };
    let Some(expected) = expected_number(source, &value.to_string()) else { return usage };
    let message =
        format!("invalid value '{value}' for '{argument}': {expected}\n\nFor more information, try '--help'.\n");
    clap::Error::raw(usage.kind(), message).with_cmd(&Arguments::command())
}

/// Replaces the error for an option before the name of its command by one that says where it belongs.
fn with_place_of_option(usage: clap::Error) -> clap::Error {
    let argument = match usage.get(ContextKind::InvalidArg) {
        Some(argument) if usage.kind() == UsageErrorKind::UnknownArgument => argument.to_string(),
        _ => return usage,
    };
    let Some(name) = argument.strip_prefix("--") else { return usage };
    let first = std::env::args_os().skip(1).find(|word| word != "--verbose");
    let is_first = first.is_some_and(|word| word.to_string_lossy().starts_with(argument.as_str()));
    // Others are likely misspelled.
    let has_option = |command: &clap::Command| command.get_arguments().any(|option| option.get_long() == Some(name));
    if !is_first || !Arguments::command().get_subcommands().any(has_option) {
        return usage;
    }
    let message = format!(
        "unexpected argument '{argument}': the options of a command follow its name\n\nFor more information, try \
         '--help'.\n"
    );
    clap::Error::raw(usage.kind(), message).with_cmd(&Arguments::command())
}

/// Replaces the error for `--out` of `convert`, whose output has no option, by one that says where the output belongs.
fn with_place_of_output(usage: clap::Error) -> clap::Error {
    let text = |kind: ContextKind| usage.get(kind).map(ToString::to_string).unwrap_or_default();
    let is_output = usage.kind() == UsageErrorKind::UnknownArgument && text(ContextKind::InvalidArg) == OUT.text();
    if !is_output || !text(ContextKind::Usage).contains(" convert ") {
        return usage;
    }
    let message = format!(
        "unexpected argument '{OUT}': the output of convert is its second path: cytoscope convert INPUT OUTPUT\n\nFor more \
         information, try '--help'.\n"
    );
    clap::Error::raw(usage.kind(), message).with_cmd(&Arguments::command())
}

/// Returns what is wrong with arguments in one line, without the usage.
pub(crate) fn usage_problem(usage: &clap::Error) -> String {
    let text = |kind: ContextKind| usage.get(kind).map(ToString::to_string);
    match (usage.kind(), text(ContextKind::InvalidArg), text(ContextKind::InvalidValue)) {
        (UsageErrorKind::ValueValidation, Some(argument), Some(value)) => {
            let why = usage.source().map_or_else(String::new, |source| match expected_number(source, &value) {
                Some(expected) => format!(": {expected}"),
                None => format!(": {source}"),
            });
            format!("invalid value '{value}' for '{argument}'{why}")
        }
        (UsageErrorKind::InvalidValue, Some(argument), Some(value)) => {
            let expected = text(ContextKind::ValidValue).filter(|values| !values.is_empty());
            let expected = expected.map_or_else(String::new, |values| format!(": expected one of {values}"));
            format!("invalid value '{value}' for '{argument}'{expected}")
        }
        (UsageErrorKind::MissingRequiredArgument, Some(arguments), _) => format!("{arguments} is required"),
        (UsageErrorKind::UnknownArgument, Some(argument), _) => format!("unexpected argument '{argument}'"),
        (kind, Some(argument), _) => format!("{kind}: {argument}"),
        (kind, None, _) => kind.to_string(),
    }
}

/// Returns what is expected in place of a value that is not a number, or why the number cannot be used; `None` if the error is
/// another one.
fn expected_number(error: &(dyn Error + 'static), value: &str) -> Option<&'static str> {
    if let Some(error) = error.downcast_ref::<ParseIntError>() {
        return Some(match error.kind() {
            IntErrorKind::PosOverflow => "the number is too large",
            IntErrorKind::NegOverflow => "the number is too small",
            _ if value.starts_with('-') => "expected a whole number of at least 0 without a unit",
            _ => "expected a whole number without a unit",
        });
    }
    error.is::<ParseFloatError>().then_some("expected a number without a unit")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn values_that_are_no_numbers_are_refused_with_what_is_expected() {
        let refusal = |arguments: &[&str]| {
            let error = Arguments::try_parse_from(["cytoscope"].iter().chain(arguments).copied()).err().unwrap();
            with_expected_number(error).to_string()
        };
        let predict = ["predict", "a.tif", "--out", "o"];
        for (option, value, expected) in [
            ("--time", "1st", "expected a whole number without a unit"),
            ("--time", "99999999999999999999999", "the number is too large"),
            ("--overlap", "half", "expected a number without a unit"),
        ] {
            let text = refusal(&[&predict[..], &[option, value]].concat());
            let start = format!("error: invalid value '{value}' for '{option} <");
            assert!(text.starts_with(&start), "{text}");
            assert!(text.ends_with(&format!(": {expected}\n\nFor more information, try '--help'.\n")), "{text}");
        }
        let problem = |arguments: &[&str]| {
            let words = ["cytoscope"].iter().chain(arguments).copied();
            usage_problem(&Arguments::try_parse_from(words).err().unwrap())
        };
        for (arguments, expected) in [
            (&["--time", "1st"][..], "invalid value '1st' for '--time <TIME>': expected a whole number without a unit"),
            (&["--color"][..], "unexpected argument '--color'"),
        ] {
            assert_eq!(problem(&[&predict[..], arguments].concat()), expected);
        }
        assert!(problem(&["predict", "a.tif"]).starts_with("--out <OUT>"));
        // Other refusals are those of clap.
        let text = refusal(&[&predict[..], &["--blend", "smear"]].concat());
        assert!(text.contains("smear") && text.contains("gaussian"), "{text}");
        assert!(refusal(&["predict"]).contains("required"));
    }

    #[test]
    fn an_output_that_has_no_option_is_located() {
        let refusal =
            |line: &str| with_place_of_output(Arguments::try_parse_from(line.split(' ')).err().unwrap()).to_string();
        for line in ["cytoscope convert a.tif --out b.npy", "cytoscope convert a.tif --out=b.npy"] {
            let text = refusal(line);
            assert!(text.contains("second path") && !text.contains("-- --out"), "{text}");
        }
        assert!(!refusal("cytoscope info a.tif --out b.npy").contains("second path"));
    }
}
