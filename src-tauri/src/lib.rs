//! The installed entry point's supervisor: it starts the window, hands it the files people open, and starts it again after a crash.
//!
//! This room owns the line to the window (docs/shell-protocol.md) and the rule for restarts. It knows nothing of Tauri, which is
//! in `main.rs` alone. It fails by ending: with the window's own exit code, or with a sentence on standard error where there is no window.
#![forbid(unsafe_code)]

mod line;
mod restart;
mod supervisor;

pub use line::Opening;
pub use restart::{Crashes, Ended, Next};
pub use supervisor::{Supervisor, Window};
