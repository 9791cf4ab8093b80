//! The interface that every engine implements, for any device.
//!
//! The crate owns the [`Engine`] and [`Session`] traits, [`Buffers`] that stay in the engine between runs,
//! [`RollingPlan`] and [`RollingSession`] for passing a stack through a network once, and [`SlabSession`] for tiles
//! that are cut from a slab in device memory. It also owns [`Device`], [`Precision`], and [`select`], which chooses a
//! device by timing the real model and caches the times per model, device and driver. It contains no kernels.
//!
//! Failures are reported as [`EngineError`]. An unsupported operator is named together with its node, so that the
//! caller can fall back to another engine; running out of memory is distinguished from a device failure.
//!
//! ```
//! use cytoscope_engine::{DeviceId, Precision};
//! let device: DeviceId = "wgpu:1".parse()?;
//! assert_eq!((device, device.to_string().as_str()), (DeviceId::Wgpu(1), "wgpu:1"));
//! assert!("int8".parse::<Precision>().is_ok());
//! # Ok::<(), cytoscope_engine::EngineError>(())
//! ```
#![forbid(unsafe_code)]

mod buffers;
mod device;
mod error;
mod rolling;
pub mod select;
mod session;
mod slab;

pub use buffers::{BoundSession, Buffers, Content, DeviceTensor, ResidentSession};
pub use device::{Device, DeviceId, DeviceRequest, Precision, Shortcoming};
pub use error::EngineError;
pub use rolling::{Band, NotRolling, OutputPlanes, RollingPlan, RollingSession};
pub use session::{
    CompileOptions, CompileReport, Engine, OpFallback, Preparation, Session, TuningListener, shapes_by_input,
};
pub use slab::{SLAB_COPIES, SlabSession, UNKNOWN_DEVICE_SLAB_BYTES};
