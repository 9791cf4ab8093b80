//! Development tasks. `cargo xtask demo` predicts a bundled sample; `cargo xtask test` runs all tests. On Debian and
//! Ubuntu, both install the system packages they need (`cargo xtask setup`); elsewhere, they print what to install.
//! `cargo xtask lint` checks formatting and lints only, and `cargo xtask models` writes the package `nuclei-dog` again.
#![forbid(unsafe_code)]

mod in_memory;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// System packages that a build needs.
const BUILD_PACKAGES: [&str; 1] = ["build-essential"];
/// System packages that GPU engines (and their tests with a software Vulkan driver) need at run time.
const VULKAN_PACKAGES: [&str; 2] = ["libvulkan1", "mesa-vulkan-drivers"];

/// System packages that the window needs at run time.
const WINDOW_PACKAGES: [&str; 4] = ["libxkbcommon-x11-0", "libxcursor1", "libxi6", "libxrandr2"];

type Outcome = Result<(), String>;

fn main() -> ExitCode {
    let task = std::env::args().nth(1).unwrap_or_default();
    let outcome = match task.as_str() {
        "setup" => setup(),
        "demo" => setup().and_then(|()| demo()),
        "test" => setup().and_then(|()| test()),
        "lint" => lint(),
        "models" => models(),
        _ => {
            eprintln!("usage: cargo xtask demo | test | lint | models | setup");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("xtask {task}: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or_else(|| here.to_owned(), Path::to_owned)
}

/// Cargo's target folder; a relative one is below the root, where Cargo runs.
fn target_folder() -> PathBuf {
    root().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

fn run(command: &mut Command) -> Outcome {
    let command_text = format!("{command:?}");
    let status = command.status().map_err(|e| format!("{command_text}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command_text} ended with {status}")) }
}

fn cargo(arguments: &[&str]) -> Outcome {
    run(&mut cargo_command(arguments))
}

fn cargo_command(arguments: &[&str]) -> Command {
    eprintln!("> cargo {}", arguments.join(" "));
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    command
}

/// Installs missing packages on Debian and Ubuntu; prints what to install elsewhere.
fn setup() -> Outcome {
    let wanted: Vec<&str> = BUILD_PACKAGES.into_iter().chain(VULKAN_PACKAGES).chain(WINDOW_PACKAGES).collect();
    if !cfg!(target_os = "linux") {
        eprintln!(
            "setup: on macOS, install the command-line tools (xcode-select --install); on Windows, the C++ build tools of Visual \
             Studio. Metal and DX12 come with the GPU drivers."
        );
        return Ok(());
    }
    if !Path::new("/usr/bin/dpkg-query").exists() {
        eprintln!(
            "setup: install a C compiler and, for GPUs, a Vulkan driver with your package manager (Fedora: dnf install gcc \
             vulkan-loader mesa-vulkan-drivers; Arch: pacman -S base-devel vulkan-icd-loader vulkan-swrast)"
        );
        return Ok(());
    }
    let missing: Vec<&str> = wanted.into_iter().filter(|p| !installed(p)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    eprintln!("setup: installing {}", missing.join(", "));
    let root_user = Command::new("id").arg("-u").output().is_ok_and(|o| o.stdout.trim_ascii() == b"0");
    let apt = |arguments: &[&str]| -> Outcome {
        let mut command = if root_user { Command::new("apt-get") } else { Command::new("sudo") };
        if !root_user {
            command.arg("apt-get");
        }
        run(command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive"))
    };
    let mut install = vec!["install", "-y", "-qq", "--no-install-recommends"];
    install.extend(&missing);
    apt(&["update", "-qq"]).and_then(|()| apt(&install)).map_err(|e| {
        format!("{e}; install the packages manually and try again: sudo apt-get install {}", missing.join(" "))
    })
}

fn installed(package: &str) -> bool {
    let query = Command::new("dpkg-query").args(["-W", "-f", "${Status}", package]).output();
    query.is_ok_and(|o| o.stdout.starts_with(b"install ok installed"))
}

/// Predicts the bundled sample, scores the result, and opens the window if there is a display.
fn demo() -> Outcome {
    cargo(&["build", "--release"])?;
    let program = target_folder().join("release").join(if cfg!(windows) { "cytoscope.exe" } else { "cytoscope" });
    let sample = root().join("sample_data");
    let out = root().join("target").join("demo");
    run(Command::new(&program).arg("info").arg(sample.join("nuclei_raw.tif")))?;
    run(Command::new(&program)
        .args(["predict", "--model", "nuclei", "--force", "--out"])
        .arg(&out)
        .arg(sample.join("nuclei_raw.tif"))
        .env("CYTOSCOPE_MODELS", root().join("models")))?;
    run(Command::new(&program)
        .arg("evaluate")
        .arg("--pred")
        .arg(out.join("nuclei_raw_labels.tif"))
        .arg("--truth")
        .arg(sample.join("nuclei_labels.tif")))?;
    eprintln!("The labels, the probability map and the table of measured nuclei are in {}.", out.display());
    let has_display = !cfg!(target_os = "linux")
        || ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|v| std::env::var_os(v).is_some_and(|v| !v.is_empty()));
    if !has_display {
        eprintln!("No display was found, so the window is not opened.");
        return Ok(());
    }
    eprintln!("Opening the window with the sample.");
    run(Command::new(&program).arg(sample.join("nuclei_raw.tif")).env("CYTOSCOPE_MODELS", root().join("models")))
}

/// Checks formatting and lints.
fn lint() -> Outcome {
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"])
}

/// Crates that process few voxels themselves. For the tests they are compiled without optimization, which makes the build
/// several minutes shorter and the tests no slower; released programs are optimized (profile `release`).
const UNOPTIMIZED_FOR_TESTS: [&str; 4] = ["cytoscope", "cytoscope-worker", "cytoscope-train", "cytoscope-engine-burn"];

/// Crates that leave loops over voxels to other crates. For the tests, they are optimized little (level 1). Compiling
/// them with their tests takes more than a third of the time for all crates of the workspace, but they take less than
/// one hundredth of the time of a prediction by a network.
const LITTLE_OPTIMIZED_FOR_TESTS: [&str; 12] = [
    "cytoscope-ui",
    "cytoscope-pipeline",
    "cytoscope-formats",
    "cytoscope-training-data",
    "cytoscope-corrections",
    "cytoscope-model-package",
    "cytoscope-onnx",
    "cytoscope-graph-passes",
    "cytoscope-checkpoint-import",
    "cytoscope-quantize",
    "cytoscope-profile",
    "cytoscope-storage",
];

/// Returns a cargo command in which Clippy compiles the crates of the workspace, and fails on warnings. Unlike `cargo
/// clippy`, which generates no code, it also builds the programs that the tests run.
fn linted(arguments: &[&str]) -> Result<Command, String> {
    let cargo = std::env::var_os("CARGO").ok_or("run this program as `cargo xtask`")?;
    let driver = Path::new(&cargo).with_file_name("clippy-driver").with_extension(std::env::consts::EXE_EXTENSION);
    if !driver.is_file() {
        return Err(format!("Clippy is not installed ({}): run rustup component add clippy", driver.display()));
    }
    let mut command = cargo_command(arguments);
    let unoptimized = UNOPTIMIZED_FOR_TESTS.into_iter().map(|package| (package, 0));
    for (package, level) in unoptimized.chain(LITTLE_OPTIMIZED_FOR_TESTS.into_iter().map(|package| (package, 1))) {
        // The dependencies are the same as those of a release build, and shared with it.
        command.args(["--config", &format!("profile.release.package.{package}.opt-level={level}")]);
    }
    command.env("RUSTC_WORKSPACE_WRAPPER", driver);
    // The way in which `cargo clippy` passes `-D warnings` to its driver.
    command.env("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__");
    Ok(command)
}

/// Runs everything that continuous integration checks, and lists the skipped tests before the test runner's last
/// summary.
fn test() -> Outcome {
    cargo(&["fmt", "--all", "--check"])?;
    run(&mut linted(&["test", "--release", "--workspace", "--all-targets", "--no-run"])?)?;
    // Tests append to it what they skip (crates/testkit).
    let list = target_folder().join("skipped-tests.txt");
    let empty = std::fs::create_dir_all(target_folder()).and_then(|()| std::fs::write(&list, ""));
    empty.map_err(|e| format!("{}: {e}", list.display()))?;
    let temporary = in_memory::Folder::new();
    if let Some(folder) = &temporary {
        eprintln!("the temporary files of the tests are in {} (TMPDIR names another place)", folder.path().display());
    }
    let tests = |what: &str| {
        let mut command = linted(&["test", "--release", "--workspace", "--no-fail-fast", what])?;
        if let Some(folder) = &temporary {
            command.env("TMPDIR", folder.path());
        }
        // Without a GPU, its engine is tested with a software driver.
        command.env("CYTOSCOPE_SOFTWARE_GPU", "1").env("CYTOSCOPE_SKIPPED", &list);
        if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
            // Vulkan drivers print a warning on every start without it.
            command.env("XDG_RUNTIME_DIR", std::env::temp_dir());
        }
        run(&mut command)
    };
    let programs = tests("--tests");
    let skipped = std::fs::read_to_string(&list).map_err(|e| format!("{}: {e}", list.display()));
    // Doc tests skip nothing; they run last, so that the output ends with the test runner's summary.
    if let Ok(skipped) = &skipped {
        println!("{}", skipped_summary(skipped));
    }
    let examples = tests("--doc");
    programs.and(examples).and(skipped.map(|_| ()))
}

/// Returns the skipped tests by reason, from lines `program::test: reason`.
fn skipped_summary(lines: &str) -> String {
    let reports: BTreeSet<(&str, &str)> = lines.lines().filter_map(|line| line.split_once(": ")).collect();
    let tests: BTreeSet<&str> = reports.iter().map(|(test, _)| *test).collect();
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (test, reason) in reports {
        by_reason.entry(reason).or_default().push(test);
    }
    let mut text = format!("\nskipped, entirely or in part: {} tests\n", tests.len());
    for (reason, tests) in by_reason {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {reason}");
        for test in tests {
            let _ = writeln!(text, "    {test}");
        }
    }
    text
}

/// Rebuilds the bundled model nuclei-dog from its recipe.
fn models() -> Outcome {
    cargo(&["run", "--release", "-p", "cytoscope-pipeline", "--example", "nuclei_dog", "models/nuclei-dog"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_tests_are_counted_once_and_listed_by_reason() {
        let lines = "cli::a: no GPU\ncli::a: no python\nui::b: no GPU\ncli::a: no GPU\n";
        let expected =
            "\nskipped, entirely or in part: 2 tests\n  no GPU\n    cli::a\n    ui::b\n  no python\n    cli::a\n";
        assert_eq!(skipped_summary(lines), expected);
    }
}
