//! The command line. Options are parsed here, resolved once into jobs, and run by the library crates. Results are
//! printed to stdout, everything else to stderr.

mod bench;
mod check;
mod child;
mod convert;
mod devices;
mod diameter;
mod evaluate;
mod failed_inputs;
mod failure;
mod info;
mod leaks;
mod log;
mod machine_profile;
mod maps;
mod measure;
mod measured;
mod mesh;
mod models;
mod options;
mod output;
mod predict;
mod profile;
mod progress;
mod provenance;
mod quantize;
mod reports;
mod run;
mod segment;
mod signals;
mod simulate;
mod trace_path;
mod train;
mod tune;
mod usage;
mod values;
mod window;
mod worker;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use cytoscope_pipeline::{JobError, JobErrorKind, Note, NoteLevel};
use cytoscope_storage::read::open_regular;
use cytoscope_storage::setting::OUT;
use cytoscope_storage::target::check_extension;
use failure::{Failure, Outcome};
use output::{check_stdout, eprint_json, eprint_line, keep_stdout_error, print, print_json};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use values::{PrecisionName, parse_bytes, parse_threads, parse_um, parse_zyx};

/// Segment cells and predict stains in 3-D microscopy stacks. Without a command, the window opens.
///
/// Exit codes: 0 success; 2 invalid usage; 3 invalid input; 4 out of memory or disk space; 5 canceled; 1 any other
/// error.
#[derive(Parser)]
#[command(name = "cytoscope", version, max_term_width = 100, args_conflicts_with_subcommands = true)]
struct Arguments {
    /// Stacks to open in the window.
    files: Vec<PathBuf>,
    /// The window was started by the supervisor (`src-tauri`), which talks to it over standard input and output.
    #[arg(long, hide = true)]
    shell: bool,
    /// Print the log in detail on standard error.
    #[arg(long, global = true, display_order = 990)]
    verbose: bool,
    /// Print the error as a JSON line, for a process of this program that started this one.
    #[arg(long, global = true, hide = true)]
    json_error: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Describe an image file: axes, voxel size, channels, compression
    Info(info::Info),
    /// Convert an image to another format; pixel values change only with --preprocess
    Convert(convert::Convert),
    /// List the compute devices of this machine, and why some are unusable
    Devices(devices::DevicesCommand),
    /// Segment stacks or predict a stain: labels, maps and measurements
    Predict(Box<predict::Predict>),
    /// Estimate the median diameter of the objects in stacks
    Diameter(diameter::Diameter),
    /// Run the network of a model on arrays and measure its speed
    Run(run::RunCommand),
    /// Turn a probability map into labels
    Segment(segment::Segment),
    /// Measure labeled objects: volume, position, shape and intensities, as a table
    Measure(measure::Measure),
    /// Write the surfaces of labeled objects as a mesh: binary STL or glTF
    Mesh(mesh::MeshCommand),
    /// Score predictions against ground truth: F1, AP, PQ; Pearson, PSNR, SSIM
    Evaluate(evaluate::Evaluate),
    /// Import a model as a package: from a bioimage.io folder or zip, an ONNX file, or a PyTorch checkpoint
    Import(models::Import),
    /// Export a package as ONNX, bioimage.io zip or safetensors
    Export(models::Export),
    /// Check the metadata of a package as bioimage.io does when a model is uploaded
    Check(check::Check),
    /// Quantize a model to 8-bit integers where accuracy allows: a smaller, faster package
    Quantize(quantize::Quantize),
    /// Train a network on your images and labels, and write a model package
    Train(Box<train::Train>),
    /// Show how a result was made, from its provenance record, and make it again
    Provenance(provenance::Provenance),
    /// Show where a stored run spent its time, and what would make it faster
    Profile(profile::Profile),
    /// Run a table of training runs and predictions, and compare their times and memory
    Bench(bench::Bench),
    /// Find the fastest settings for a model on this machine; --save makes them the defaults
    Tune(Box<tune::Tune>),
    /// Simulate stacks with ground truth
    Simulate(simulate::Simulate),
    /// Run the engine process behind the window, which reads jobs and writes events as JSON lines
    Worker(worker::Worker),
    /// Probe for a GPU; runs in its own process, because a faulty driver may crash it
    #[command(hide = true)]
    ProbeDevice(devices::ProbeDevice),
}

/// Parses the arguments, runs the command, and reports a failure as a message on stderr and an exit code.
pub fn main() -> ExitCode {
    #[cfg(unix)]
    signals::report_file_size_limit();
    let (words, leading_verbose) = take_leading_verbose(std::env::args_os().collect());
    let (arguments, json_progress) = match parse(words) {
        Ok(parsed) => parsed,
        Err(error) => return print_usage(error),
    };
    // Probe processes do not log: they are short-lived and may crash.
    let is_probe = matches!(arguments.command, Some(Command::ProbeDevice(_)));
    let _log = (!is_probe).then(|| log::start(arguments.verbose || leading_verbose)).flatten();
    let (version, given) = (env!("CARGO_PKG_VERSION"), std::env::args_os().skip(1).collect::<Vec<_>>());
    tracing::info!(version, pid = std::process::id(), ?given, "started");
    let json_error = arguments.json_error || json_progress;
    let checked = refuse_other_encodings().and_then(|()| refuse_standard_streams()).and_then(|()| refuse_home_sign());
    let outcome = checked.and_then(|()| match arguments.command {
        None => window::open(arguments.files, arguments.shell),
        Some(command) => command.run(),
    });
    let outcome = outcome.and_then(|()| measured::check_trace_written()).and_then(|()| check_stdout());
    exit_code(outcome, json_error)
}

/// Parses the words of the command line, and returns whether the command reports its progress as JSON lines.
fn parse(words: Vec<OsString>) -> Result<(Arguments, bool), clap::Error> {
    let mut matches = allow_negative_numbers(Arguments::command()).try_get_matches_from(words)?;
    let json_progress = has_json_progress(&matches);
    let arguments =
        Arguments::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut Arguments::command()))?;
    Ok((arguments, json_progress))
}

/// Returns whether `--json-progress` is given to a command or its subcommand.
fn has_json_progress(matches: &clap::ArgMatches) -> bool {
    // Commands without the option have no such argument.
    let is_given = matches.try_get_one::<bool>("json_progress").ok().flatten().copied().unwrap_or(false);
    is_given || matches.subcommand().is_some_and(|(_, matches)| has_json_progress(matches))
}

/// Reads `-1` after an option as its value, also in subcommands, so that the error says what the option expects. That is not
/// done for paths: `--out -1` would create a folder of this name.
fn allow_negative_numbers(command: clap::Command) -> clap::Command {
    let allow = |option: clap::Arg| {
        let is_path = option.get_value_hint() == clap::ValueHint::AnyPath;
        let has_value = option.get_long().is_some() && option.get_action().takes_values();
        // A list such as -1,2,3 is not a number.
        let names = option.get_value_names().unwrap_or_default();
        let is_list = names.iter().any(|name| name.as_str() == "Z,Y,X");
        option.allow_negative_numbers(has_value && !is_path).allow_hyphen_values(is_list)
    };
    command.mut_args(allow).mut_subcommands(allow_negative_numbers)
}

/// Reports a failure, as text or as a JSON line, and returns the exit code.
fn exit_code(outcome: Outcome, json_error: bool) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            tracing::error!("{failure}");
            if json_error {
                eprint_json(&failure.event());
            } else {
                eprint_line(&format!("error: {failure}"));
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Prints the help, the version, or what is wrong with the arguments, and returns the exit code.
fn print_usage(usage: clap::Error) -> ExitCode {
    let usage = usage::explained(usage);
    let printed = usage.print();
    if usage.use_stderr() {
        // Standard error may be closed; the exit code still reports the error.
        return ExitCode::from(2);
    }
    keep_stdout_error(printed.and_then(|()| std::io::stdout().flush()));
    exit_code(check_stdout(), false)
}

/// Removes every `--verbose` before the first other argument and returns whether there was one: otherwise clap parses a
/// subcommand after a leading option as a file argument.
fn take_leading_verbose(mut arguments: Vec<OsString>) -> (Vec<OsString>, bool) {
    let is_verbose = |argument: &&OsString| argument.as_os_str() == "--verbose";
    let leading = arguments.iter().skip(1).take_while(is_verbose).count();
    if leading > 0 {
        arguments.drain(1..=leading);
    }
    (arguments, leading > 0)
}

impl Command {
    fn run(self) -> Outcome {
        match self {
            Command::Info(c) => c.run(),
            Command::Convert(c) => c.run(),
            Command::Devices(c) => c.run(),
            Command::Predict(c) => c.run(),
            Command::Diameter(c) => c.run(),
            Command::Run(c) => c.run(),
            Command::Segment(c) => c.run(),
            Command::Measure(c) => c.run(),
            Command::Mesh(c) => c.run(),
            Command::Evaluate(c) => c.run(),
            Command::Import(c) => c.run(),
            Command::Export(c) => c.run(),
            Command::Check(c) => c.run(),
            Command::Quantize(c) => c.run(),
            Command::Provenance(c) => c.run(),
            Command::Profile(c) => c.run(),
            Command::Bench(c) => c.run(),
            Command::Tune(c) => c.run(),
            Command::Simulate(c) => c.run(),
            Command::Train(c) => c.run(),
            Command::Worker(c) => c.run(),
            Command::ProbeDevice(c) => c.run(),
        }
    }
}

/// Returns the line of a note, which begins with its level.
fn note_line(note: &Note) -> String {
    let level = match note.level {
        NoteLevel::Info => "note",
        NoteLevel::Warning => "warning",
    };
    format!("{level}: {}", note.message)
}

/// Prints a note about a file that was created at the path of an output during the run and was moved aside.
fn note_moved_aside(output: &Path, aside: Option<&Path>) {
    if let Some(aside) = aside {
        let (output, aside) = (output.display(), aside.display());
        eprint_line(&format!("note: a file was created at {output} during the run; it was moved to {aside}"));
    }
}

/// Refuses arguments that are not valid Unicode. Reports and provenance records are JSON and could not name them;
/// without this check, the error would appear only after the work was done.
fn refuse_other_encodings() -> Outcome {
    // A folder that was removed has no name to check; opening a file in it fails.
    let folder = std::env::current_dir().map(std::path::PathBuf::into_os_string).ok();
    match std::env::args_os().chain(folder).find(|argument| argument.to_str().is_none()) {
        None => Ok(()),
        Some(argument) => Err(Failure::wrong_use(format!(
            "{}: the name is not valid Unicode (UTF-8), so reports cannot name it",
            argument.display()
        ))
        .and_next("rename the file or folder")),
    }
}

/// Refuses `-`, which stands for standard input or output in other programs: a file or folder of this name would be created.
fn refuse_standard_streams() -> Outcome {
    let stands_alone =
        |word: &OsString| word == "-" || word.to_str().is_some_and(|w| w.starts_with("--") && w.ends_with("=-"));
    if std::env::args_os().skip(1).any(|word| stands_alone(&word)) {
        return Err(Failure::wrong_use("-: standard input and output cannot be used as files")
            .and_next("give a path, such as ./- for a file of this name"));
    }
    Ok(())
}

/// Refuses `~` as the first folder of a path: shells replace it by the home folder, but not in quotes or in `--out=~/results`,
/// for which a folder named `~` would be created.
fn refuse_home_sign() -> Outcome {
    let has_sign = |word: &OsString| {
        let text: &str = &word.to_string_lossy();
        let value = match text.strip_prefix("--") {
            Some(option) => option.split_once('=').map_or("", |(_, value)| value),
            None => text,
        };
        value == "~" || value.starts_with("~/")
    };
    match std::env::args_os().skip(1).find(has_sign) {
        None => Ok(()),
        Some(word) => {
            Err(Failure::wrong_use(format!("{}: the shell has not replaced ~ by your home folder", word.display()))
                .and_next(cytoscope_storage::message!(
                    "give the whole path, or give ~ without quotes at the start of a word, as in {OUT} ~/results"
                )))
        }
    }
}

/// Reads a regular file as a whole.
///
/// # Errors
/// Bad input; pipes and devices, which may never end, are refused.
fn read_file(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    match open_regular(path).and_then(|mut file| file.read_to_end(&mut bytes)) {
        Ok(_) => Ok(bytes),
        Err(error) => Err(unreadable(path, error)),
    }
}

/// Returns the failure of a file that cannot be read, which counts as a bad input whatever the reason.
fn unreadable(path: &Path, error: std::io::Error) -> Failure {
    let error = JobError::unreadable(path, error);
    let failure = Failure::new(JobErrorKind::BadInput, error.message());
    failure.with_next_step(error.next_step().map(String::from))
}

/// Refuses a folder for results whose name has the extension of a file, unless the folder exists.
fn check_folder(out: &Path) -> Outcome {
    if !out.is_dir() {
        check_extension(out, &[""])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_storage::setting::Setting;

    #[test]
    fn warnings_are_not_introduced_as_notes() {
        assert_eq!(note_line(&Note::warning("it is flat")), "warning: it is flat");
        assert_eq!(note_line(&Note::info("it is flat")), "note: it is flat");
    }

    /// The page that says where commands and their options are in the window.
    const COMMANDS_PAGE: &str = include_str!("../../docs/guide/commands.md");

    /// Returns the menu items that a text names as **Menu > Item** but the window does not have.
    fn unknown_items(text: &str) -> Vec<&str> {
        let is_known = |item: &&str| cytoscope_ui::command::Command::ALL.iter().any(|command| command.title() == *item);
        let bold = text.split("**").skip(1).step_by(2);
        bold.filter_map(|text| Some(text.split_once(" > ")?.1)).filter(|item| !is_known(item)).collect()
    }

    #[test]
    fn the_guide_locates_every_option_in_the_window_or_says_that_it_is_not_there() {
        use std::collections::BTreeSet;
        let commands = Arguments::command();
        for name in ["predict", "convert", "segment", "mesh", "evaluate", "quantize", "train"] {
            let options =
                commands.find_subcommand(name).unwrap().get_arguments().filter(|option| !option.is_hide_set());
            let known: BTreeSet<String> =
                options.filter_map(|option| Some(format!("--{}", option.get_long()?))).collect();
            let (_, section) = COMMANDS_PAGE.split_once(&format!("### `{name}`\n")).unwrap();
            let section = section.split("\n#").next().unwrap();
            let mut documented = BTreeSet::new();
            for row in section.lines().filter_map(|line| line.strip_prefix("| ")).filter(|row| row.starts_with("`--")) {
                let (options, place) = row.split_once(" | ").unwrap();
                for option in options.split(", ").map(|option| option.trim_matches('`')) {
                    assert!(documented.insert(option.to_owned()), "{name}: {option} has two rows");
                }
                let is_placed = place.contains("**") || place.to_lowercase().contains("command line only");
                assert!(is_placed, "{name}: the row of {options} names no control");
                assert!(unknown_items(place).is_empty(), "{name}: the window has no {:?}", unknown_items(place));
            }
            assert_eq!(documented, known, "{name}");
        }
    }

    #[test]
    fn the_guide_locates_every_command_in_the_window() {
        use std::collections::BTreeSet;
        let rows: Vec<(&str, &str)> = COMMANDS_PAGE
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
            .filter(|(name, _)| name.starts_with(char::is_lowercase))
            .collect();
        let documented: BTreeSet<&str> = rows.iter().map(|(name, _)| *name).collect();
        let commands = Arguments::command();
        let known: BTreeSet<&str> =
            commands.get_subcommands().filter(|c| !c.is_hide_set()).map(clap::Command::get_name).collect();
        assert_eq!(documented, known);
        assert_eq!(rows.len(), documented.len(), "a command has two rows");
        // Items of menus are commands of the window.
        for (name, place) in rows {
            assert!(unknown_items(place).is_empty(), "{name}: the window has no command {:?}", unknown_items(place));
        }
    }

    #[test]
    fn negative_numbers_are_values_of_options_but_no_paths() {
        let parsed = |words: &[&str]| {
            let words = ["cytoscope"].iter().chain(words).map(|word| OsString::from(*word)).collect();
            parse(words).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(parsed(&["segment", "a.tif", "--out", "l.tif", "--threshold", "-0.5"]), Ok(()));
        assert_eq!(parsed(&["predict", "a.tif", "--out=-1"]), Ok(()));
        for refused in [&["predict", "a.tif", "--out", "-1"][..], &["predict", "-1", "--out", "o"]] {
            let error = parsed(refused).unwrap_err();
            assert!(error.contains("unexpected argument '-1'"), "{refused:?}: {error}");
        }
    }

    #[test]
    fn options_that_messages_name_exist() {
        let commands = Arguments::command();
        let options = commands.get_subcommands().flat_map(|command| command.get_arguments());
        let known: std::collections::BTreeSet<&str> = options.filter_map(clap::Arg::get_long).collect();
        for setting in Setting::ALL {
            for name in setting.text().split_whitespace().filter_map(|word| word.strip_prefix("--")) {
                assert!(known.contains(name), "{setting}");
            }
        }
    }

    #[test]
    fn options_that_would_have_no_effect_are_refused() {
        let refused = |line: &str| {
            let words = ["cytoscope"].into_iter().chain(line.split(' ')).map(OsString::from).collect();
            parse(words).err().map(|error| error.to_string())
        };
        let bench = "bench --output r.json";
        let opts = format!("{bench} --compare-opts m --data s.tif");
        for (command, options) in [
            (
                format!("{bench} --config t.csv"),
                ["--accuracy-budget 0.1", "--qat-steps 3", "--qat-minutes 1", "--seconds 3"],
            ),
            (opts, ["--accuracy-budget 0.1", "--resume", "--batch-sizes 1,2", "--seconds 3"]),
        ] {
            assert_eq!(refused(&command), None);
            for option in options {
                let (name, _) = option.split_once(' ').unwrap_or((option, ""));
                let error = refused(&format!("{command} {option}")).unwrap_or_default();
                assert!(error.contains(name) && error.contains("cannot be used with"), "{command} {option}: {error}");
            }
        }
        for line in [
            "evaluate --pred a.tif --truth b.tif --data d",
            "evaluate --pred a.tif --truth b.tif --device cpu",
            "evaluate --pred a.tif --truth b.tif --precision f32",
            "evaluate --pred a.tif --truth b.tif --diameter 8",
            "profile run.json --json --table stages",
            "profile run.json --csv o.csv --top 3",
            "profile run.json --json --force",
            "profile job.json --leaks 20 --top 3",
            "tune --training d --only-training --data a.tif",
            "tune --training d --only-training --series 1",
            "train --task segmentation --data d --out m --epochs 3 --trials 4",
            "train --task segmentation --data d --out m --search s.toml --trials 4 --steps 8 --stages-only",
        ] {
            assert!(refused(line).unwrap_or_default().contains("cannot be used with"), "{line}: {:?}", refused(line));
        }
        // Intensities are measured for a table only.
        let segment = "segment a.tif --out l.tif --intensities b.tif";
        assert!(refused(segment).unwrap_or_default().contains("--table"), "{:?}", refused(segment));
        assert_eq!(refused(&format!("{segment} --table t.csv")), None);
    }

    #[test]
    fn the_command_line_is_well_formed() {
        allow_negative_numbers(Arguments::command()).debug_assert();
    }
}
