//! Requests of the system to end: Ctrl-C, and on Unix SIGTERM (a scheduler, a shutdown) and SIGHUP (a closed terminal).

use std::io;

/// Who asked the program to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// A person at the terminal.
    Interrupt,
    /// The system.
    #[cfg_attr(not(unix), allow(dead_code, reason = "only Unix distinguishes it"))]
    Terminate,
}

/// Runs `action` on a thread of its own for every request to end. A signal that the program was started to ignore (`nohup`) stays
/// ignored.
///
/// # Errors
/// What the system says when a handler cannot be installed.
#[cfg(unix)]
pub(crate) fn handle(action: impl Fn(Request) + Send + 'static) -> io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let ignored = ignored();
    // Elsewhere it cannot be seen whether SIGHUP is to be ignored, and then the system's own way stays.
    let hang_up = cfg!(target_os = "linux").then_some(SIGHUP);
    let wanted = [SIGINT, SIGTERM].into_iter().chain(hang_up).filter(|s| ignored & (1 << (s - 1)) == 0);
    let mut signals = signal_hook::iterator::Signals::new(wanted)?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            action(if signal == SIGINT { Request::Interrupt } else { Request::Terminate });
        }
    })?;
    Ok(())
}

/// The mask of ignored signals, bit `n - 1` for signal `n`, where the system tells it.
#[cfg(unix)]
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// As on Unix, for Ctrl-C and Ctrl-Break.
///
/// # Errors
/// As on Unix.
#[cfg(not(unix))]
pub(crate) fn handle(action: impl Fn(Request) + Send + 'static) -> io::Result<()> {
    ctrlc::set_handler(move || action(Request::Interrupt)).map_err(io::Error::other)
}
