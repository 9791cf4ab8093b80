//! Development tasks. `cargo xtask demo` predicts a bundled sample; `cargo xtask test` runs all tests. On Debian and
//! Ubuntu, both install the system packages they need; elsewhere, they print what to install.
#![forbid(unsafe_code)]

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
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let program = target.join("release").join(if cfg!(windows) { "cytoscope.exe" } else { "cytoscope" });
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

/// Runs everything that continuous integration checks, ending with the test runner's summary.
fn test() -> Outcome {
    lint()?;
    // Without a GPU, its engine is tested with a software driver.
    let arguments = ["test", "--release", "--workspace", "--no-fail-fast"];
    let mut tests = cargo_command(&arguments);
    tests.env("CYTOSCOPE_SOFTWARE_GPU", "1");
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // Vulkan drivers print a warning on every start without it.
        tests.env("XDG_RUNTIME_DIR", std::env::temp_dir());
    }
    run(&mut tests)
}

/// Rebuilds the bundled model nuclei-dog from its recipe.
fn models() -> Outcome {
    cargo(&["run", "--release", "-p", "cytoscope-pipeline", "--example", "nuclei_dog", "models/nuclei-dog"])
}
