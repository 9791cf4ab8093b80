//! What every engine promises, whatever it computes on.
//!
//! This room owns the [`Engine`] and [`Session`] traits, [`Device`] and [`Precision`], and [`select`]: the choice of a device by a
//! short measured run of the real model, remembered per model, device and driver. It computes nothing itself.
//!
//! It fails with [`EngineError`]: an operator an engine lacks is named with its node, so that the caller can take another
//! engine; memory a device lacks is told apart from a device that failed.
//!
//! ```
//! use cytoscope_engine::{DeviceId, Precision};
//! let device: DeviceId = "wgpu:1".parse()?;
//! assert_eq!((device, device.to_string().as_str()), (DeviceId::Wgpu(1), "wgpu:1"));
//! assert!("int8".parse::<Precision>().is_ok());
//! # Ok::<(), cytoscope_engine::EngineError>(())
//! ```
#![forbid(unsafe_code)]

mod device;
mod error;
pub mod select;
mod session;

pub use device::{Device, DeviceId, DeviceRequest, Precision};
pub use error::EngineError;
pub use session::{CompileOptions, CompileReport, Engine, OpFallback, Session, shapes_by_input};
