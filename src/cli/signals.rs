//! Termination signals: Ctrl-C, and on Unix SIGTERM (from a scheduler or a shutdown), SIGXCPU (the limit of CPU time) and
//! SIGHUP (a closed terminal).

use std::io;
#[cfg(unix)]
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a request to terminate has arrived.
static REQUESTED: AtomicBool = AtomicBool::new(false);
/// Whether a [`TerminationRequest::Terminate`] has arrived.
static BY_SYSTEM: AtomicBool = AtomicBool::new(false);

/// Returns whether a request to terminate has arrived since [`handle`] was called.
pub(crate) fn is_requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// Returns whether a request to terminate came from the system or another program, not from the user at the terminal.
pub(crate) fn is_requested_by_system() -> bool {
    BY_SYSTEM.load(Ordering::Relaxed)
}

/// Source of a request to terminate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TerminationRequest {
    /// The user at the terminal (Ctrl-C).
    Interrupt,
    /// The system (SIGTERM, SIGXCPU, SIGHUP).
    #[cfg_attr(not(unix), allow(dead_code, reason = "only Unix distinguishes it"))]
    Terminate,
}

/// Runs `action` on its own thread for every request to terminate. A signal that the program was started to ignore
/// (`nohup`) stays ignored.
///
/// # Errors
/// The system's error if a handler cannot be installed.
#[cfg(unix)]
pub(crate) fn handle(action: impl Fn(TerminationRequest) + Send + 'static) -> io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXCPU};
    let ignored = ignored();
    // Only Linux reports whether SIGHUP is ignored; elsewhere its default action stays in place.
    let hang_up = cfg!(target_os = "linux").then_some(SIGHUP);
    let wanted = [SIGINT, SIGTERM, SIGXCPU].into_iter().chain(hang_up).filter(|s| ignored & (1 << (s - 1)) == 0);
    let mut signals = signal_hook::iterator::Signals::new(wanted)?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            REQUESTED.store(true, Ordering::Relaxed);
            if signal != SIGINT {
                BY_SYSTEM.store(true, Ordering::Relaxed);
            }
            action(if signal == SIGINT { TerminationRequest::Interrupt } else { TerminationRequest::Terminate });
        }
    })?;
    Ok(())
}

/// Makes a file that exceeds the size limit of the process (`ulimit -f`) an error, as on a full disk. Without it, the system ends
/// the program without a message.
#[cfg(unix)]
pub(crate) fn report_file_size_limit() {
    // If there is no such handler, the default action stays in place.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::new(AtomicBool::new(false)));
}

/// Returns the mask of ignored signals, bit `n - 1` for signal `n`; 0 where the system does not report it.
#[cfg(unix)]
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Runs `action` on its own thread for every Ctrl-C and Ctrl-Break.
///
/// # Errors
/// The system's error if the handler cannot be installed.
#[cfg(not(unix))]
pub(crate) fn handle(action: impl Fn(TerminationRequest) + Send + 'static) -> io::Result<()> {
    let on_request = move || {
        REQUESTED.store(true, Ordering::Relaxed);
        action(TerminationRequest::Interrupt);
    };
    ctrlc::set_handler(on_request).map_err(io::Error::other)
}
