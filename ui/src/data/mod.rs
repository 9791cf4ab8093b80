//! What is shown: stacks read plane by plane, off the window's thread.

pub mod composite;
pub mod grown;
pub mod histogram;
pub mod kept;
pub mod loader;
pub mod plane;
pub mod source;
