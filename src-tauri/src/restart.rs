//! Restart policy for a window that has ended.

use std::process::ExitStatus;
use std::time::Duration;

/// A window that ran at least this long resets the count of consecutive crashes.
const STABLE_AFTER: Duration = Duration::from_secs(60);

/// Maximum number of consecutive restarts.
const MAX_RESTARTS: u32 = 3;

/// How the window process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WindowExit {
    /// It exited normally or was asked to exit, with this exit code.
    Closed(i32),
    /// It crashed or was killed; a description for the user.
    Crashed(String),
}

/// Exit codes from this one on count as crashes: 101 is a panic, 128 and above are signals.
const FIRST_CRASH_CODE: i32 = 101;

impl From<ExitStatus> for WindowExit {
    fn from(status: ExitStatus) -> Self {
        #[cfg(unix)]
        {
            use std::os::unix::process::ExitStatusExt;
            match status.signal() {
                // SIGHUP, SIGINT, SIGTERM: the desktop or the user closes the window.
                Some(signal @ (1 | 2 | 15)) => return Self::Closed(128 + signal),
                Some(signal) => return Self::Crashed(format!("signal {signal}")),
                None => {}
            }
        }
        match status.code() {
            Some(code @ 0..FIRST_CRASH_CODE) => Self::Closed(code),
            Some(code) => Self::Crashed(format!("exit code {code}")),
            None => Self::Crashed("no exit code".to_owned()),
        }
    }
}

/// Action of the supervisor after the window has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestartDecision {
    /// Exit with this code.
    End(i32),
    /// Start the window again.
    Restart {
        /// Whether to reopen the files that were open.
        with_files: bool,
    },
    /// Stop restarting: the limit of consecutive crashes is reached.
    GiveUp,
}

/// Counter of consecutive crashes.
#[derive(Debug, Default)]
pub struct CrashCounter {
    consecutive: u32,
}

impl CrashCounter {
    /// Decides what happens after a window that ran for `uptime` has ended.
    pub fn decide(&mut self, exit: &WindowExit, uptime: Duration) -> RestartDecision {
        if let WindowExit::Closed(code) = exit {
            return RestartDecision::End(*code);
        }
        if uptime >= STABLE_AFTER {
            self.consecutive = 0;
        }
        self.consecutive += 1;
        match self.consecutive {
            // One of the files may cause the crash, so the second restart opens none.
            1..=MAX_RESTARTS => RestartDecision::Restart { with_files: self.consecutive == 1 },
            _ => RestartDecision::GiveUp,
        }
    }
}
