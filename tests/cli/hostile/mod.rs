//! Hostile inputs: whatever a command is given, it must not destroy files, be silently wrong, hang or abort.
//! `docs/robustness.md` lists these tests by attack.

mod encodings;
mod input;
mod killed;
mod numbers;
mod outputs;
mod wrong;
