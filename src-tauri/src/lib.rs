//! Supervisor of the installed application: it starts the window, passes on the files that users open, and restarts the
//! window after a crash.
//!
//! The crate owns the connection to the window (docs/shell-protocol.md) and the restart policy. It is independent of
//! Tauri, which only `main.rs` uses. If the window cannot be kept running, the process exits with the window's exit
//! code or prints a message on stderr.
#![forbid(unsafe_code)]

mod line;
mod restart;
mod supervisor;

pub use line::OpenRequest;
pub use restart::{CrashCounter, RestartDecision, WindowExit};
pub use supervisor::{Supervisor, WindowCommand};
