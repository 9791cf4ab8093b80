//! When a window that ended is started again.

use std::process::ExitStatus;
use std::time::Duration;

/// A window that lived this long begins a new row of crashes.
const STEADY: Duration = Duration::from_secs(60);

/// Most restarts in a row.
const MAX_RESTARTS: u32 = 3;

/// How a window ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// By itself, or because it was asked to: with this code.
    Closed(i32),
    /// It crashed or was killed: in words.
    Crashed(String),
}

/// Exit codes from this one on are crashes: a panic's, and those of signals.
const FIRST_CRASH_CODE: i32 = 101;

impl From<ExitStatus> for Ended {
    fn from(status: ExitStatus) -> Self {
        #[cfg(unix)]
        {
            use std::os::unix::process::ExitStatusExt;
            match status.signal() {
                // Hung up, interrupted, asked to end: the desktop closes, or a person does.
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

/// What to do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// End with this code.
    End(i32),
    /// Start the window again.
    Restart {
        /// Whether to open the files that were open.
        with_files: bool,
    },
    /// It crashes again and again.
    GiveUp,
}

/// The crashes in a row.
#[derive(Debug, Default)]
pub struct Crashes {
    in_row: u32,
}

impl Crashes {
    /// What follows when a window has ended after some time.
    pub fn next(&mut self, ended: &Ended, lived: Duration) -> Next {
        if let Ended::Closed(code) = ended {
            return Next::End(*code);
        }
        if lived >= STEADY {
            self.in_row = 0;
        }
        self.in_row += 1;
        match self.in_row {
            // It may be a file that brings it down: the second time these stay closed.
            1..=MAX_RESTARTS => Next::Restart { with_files: self.in_row == 1 },
            _ => Next::GiveUp,
        }
    }
}
