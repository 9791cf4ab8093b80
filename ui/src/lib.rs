//! The workbench.
#![forbid(unsafe_code)]
#![allow(missing_docs)]

pub mod command;
pub mod data;
pub mod document;
pub mod results;
pub mod settings;
pub mod theme;
pub mod views;
