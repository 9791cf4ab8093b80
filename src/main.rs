//! Cytoscope: segments cells and predicts stains in 3-D microscopy stacks.
#![forbid(unsafe_code)]

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
