//! The command line: options are parsed here, resolved once, and run by the rooms below. Results go to stdout, all else to stderr.

mod convert;
mod devices;
mod diameter;
mod evaluate;
mod failure;
mod info;
mod models;
mod predict;
mod progress;
mod quantize;
mod run;
mod segment;
mod signals;
mod simulate;
mod train;
mod window;
mod worker;

use clap::{Parser, Subcommand};
use cytoscope_pipeline::{JobErrorKind, MAX_THREADS};
use cytoscope_storage::{io_advice, is_exhausted};
use cytoscope_volume::printable;
use failure::{Failure, Outcome};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

/// Cells, and stains never applied, from 3-D microscopy stacks. Without a command the window opens.
///
/// Exit codes: 0 done; 2 wrong use; 3 bad input; 4 out of memory or disk; 5 cancelled; 1 anything else.
#[derive(Parser)]
#[command(name = "cytoscope", version, max_term_width = 100, args_conflicts_with_subcommands = true)]
struct Arguments {
    /// Stacks to open in the window.
    files: Vec<PathBuf>,
    /// The window belongs to the installed shell, which speaks on standard input.
    #[arg(long, hide = true)]
    shell: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Say what is in an image file: axes, voxel size, channels, compression
    Info(info::Info),
    /// Write an image in another format, pixels untouched
    Convert(convert::Convert),
    /// List what this machine can compute on, and why not where it cannot
    Devices(devices::DevicesCommand),
    /// Segment stacks or predict a stain: labels, maps and measurements
    Predict(Box<predict::Predict>),
    /// Estimate the median diameter of the objects in stacks
    Diameter(diameter::Diameter),
    /// Run an ONNX model on arrays and time it
    Run(run::Run),
    /// Make objects of a probability map
    Segment(segment::Segment),
    /// Score predictions against truth: F1, AP, PQ; Pearson, PSNR, SSIM
    Evaluate(evaluate::Evaluate),
    /// Make a model package of a bioimage.io folder or zip, or an ONNX file
    Import(models::Import),
    /// Write a package as ONNX, bioimage.io zip or safetensors
    Export(models::Export),
    /// Make a smaller, faster package of a model: 8-bit integers where that costs no accuracy
    Quantize(quantize::Quantize),
    /// Teach a network your samples: from images and labels to a model package
    Train(Box<train::Train>),
    /// Make stacks with truth, for trying things out
    Simulate(simulate::Simulate),
    /// The engine process behind the workbench: jobs in, events out, as JSON lines
    Worker(worker::Worker),
    /// Looks for GPUs; run in a process of its own, which a driver may crash
    #[command(hide = true)]
    ProbeDevice(devices::ProbeDevice),
}

/// Parses, runs, and turns failures into a sentence and an exit code.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let outcome = refuse_other_encodings().and_then(|()| match arguments.command {
        None => window::open(arguments.files, arguments.shell),
        Some(command) => command.run(),
    });
    match outcome.and_then(|()| check_stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say(&format!("error: {failure}"));
            ExitCode::from(failure.exit_code())
        }
    }
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
            Command::Evaluate(c) => c.run(),
            Command::Import(c) => c.run(),
            Command::Export(c) => c.run(),
            Command::Quantize(c) => c.run(),
            Command::Simulate(c) => c.run(),
            Command::Train(c) => c.run(),
            Command::Worker(c) => c.run(),
            Command::ProbeDevice(c) => c.run(),
        }
    }
}

/// A line on stderr; a closed one is no reason to stop. Control characters, which names in files may hold, are escaped.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", shown(line));
}

/// Text with its control characters escaped, but for the ends of lines.
fn shown(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// A line of JSON on stderr.
fn say_json(value: &impl serde::Serialize) {
    if let Ok(line) = serde_json::to_string(value) {
        let _ = writeln!(std::io::stderr(), "{}", ascii_controls(&line));
    }
}

/// What went wrong when writing to stdout, if anything did.
static STDOUT: Mutex<Option<std::io::Error>> = Mutex::new(None);

/// A line on stdout, with control characters escaped.
fn print(line: &str) {
    write_stdout(&shown(line));
}

/// One JSON value on stdout.
fn print_json(value: &impl serde::Serialize) -> Outcome {
    let text = serde_json::to_string_pretty(value).map_err(|e| Failure::other(e.to_string()))?;
    write_stdout(&ascii_controls(&text));
    Ok(())
}

fn write_stdout(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = writeln!(out, "{text}").and_then(|()| out.flush()) {
        STDOUT.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}

/// A failure if something printed did not reach stdout. A reader that has gone (`| head`) is none.
fn check_stdout() -> Outcome {
    match STDOUT.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => {
            let kind = if is_exhausted(&error) { JobErrorKind::OutOfResources } else { JobErrorKind::Other };
            Err(Failure::new(kind, format!("standard output: {error}; {}", io_advice(&error))))
        }
        _ => Ok(()),
    }
}

/// Control characters that JSON leaves as they are, as JSON escapes: terminals take some of them for commands.
fn ascii_controls(json: &str) -> String {
    let escaped = |c: char| c == '\u{7f}' || ('\u{80}'..='\u{9f}').contains(&c);
    if !json.contains(escaped) {
        return json.to_owned();
    }
    json.chars().map(|c| if escaped(c) { format!("\\u{:04x}", c as u32) } else { c.to_string() }).collect()
}

/// Refuses arguments that are not Unicode: reports and records could not name them, which would show only after the work.
fn refuse_other_encodings() -> Outcome {
    let folder = std::env::current_dir().map(std::path::PathBuf::into_os_string).ok();
    match std::env::args_os().chain(folder).find(|argument| argument.to_str().is_none()) {
        None => Ok(()),
        Some(argument) => Err(Failure::wrong_use(format!(
            "{}: the name is not valid Unicode (UTF-8), so reports could not name it; rename the file or folder",
            argument.display()
        ))),
    }
}

/// A size such as `2G`, `512MiB` or a number of bytes.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor: u64 = match unit.trim().to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "t" => 1 << 40,
        _ => return Err(format!("\"{text}\" is no size: expected such as 2G, 512M or a number of bytes")),
    };
    let value: f64 =
        number.parse().map_err(|_| format!("\"{text}\" is no size: expected such as 2G, 512M or a number of bytes"))?;
    Ok((value * factor as f64) as u64)
}

/// A number of threads; 0 stands for all cores.
fn parse_threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n <= MAX_THREADS => Ok(n),
        _ => Err(format!("\"{text}\" is no number of threads: expected 0 (all cores) to {MAX_THREADS}")),
    }
}

/// `Z,Y,X` as three lengths.
fn parse_zyx(text: &str) -> Result<[usize; 3], String> {
    let parts: Result<Vec<usize>, _> = text.split(',').map(|p| p.trim().parse()).collect();
    match parts.as_deref() {
        Ok([z, y, x]) if *z > 0 && *y > 0 && *x > 0 => Ok([*z, *y, *x]),
        _ => Err(format!("\"{text}\" is not Z,Y,X: expected three positive lengths such as 64,256,256")),
    }
}

/// `Z,Y,X` as three sizes in µm.
fn parse_um(text: &str) -> Result<[f64; 3], String> {
    let parts: Result<Vec<f64>, _> = text.split(',').map(|p| p.trim().parse()).collect();
    match parts.as_deref() {
        Ok([z, y, x]) if [z, y, x].iter().all(|v| v.is_finite() && **v > 0.0) => Ok([*z, *y, *x]),
        _ => Err(format!("\"{text}\" is not Z,Y,X in µm: expected three positive sizes such as 1.0,0.3,0.3")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(parse_bytes("2G"), Ok(2 << 30));
        assert_eq!(parse_bytes("1.5MiB"), Ok(3 << 19));
        assert_eq!(parse_bytes("123"), Ok(123));
        assert!(parse_bytes("2 apples").is_err());
        assert_eq!(parse_zyx("1, 2,3"), Ok([1, 2, 3]));
        assert!(parse_zyx("1,0,3").is_err());
    }

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }
}
