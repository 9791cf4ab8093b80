//! Reading and writing ONNX files.
//!
//! The crate owns the file format: decoding of protobuf, the import of all supported opsets into the operators of
//! [`cytoscope_graph`] ([`load`], [`from_bytes`]), the export ([`save`], [`encode`]), and the table of supported
//! operators ([`supported_operators`]).
//!
//! Errors are [`cytoscope_graph::GraphError`]s: a file that is malformed, uses something unsupported (with operator,
//! node and opset) or exceeds a limit ([`cytoscope_graph::GraphLimits`], checked before memory is allocated) is refused.
//! No file content makes the crate panic.
//!
//! ```
//! use cytoscope_builders::{UNet3d, Weights, unet3d};
//! use cytoscope_graph::{GraphLimits, Tensor};
//! use cytoscope_graph_passes::analysis;
//!
//! let net = unet3d(&UNet3d { filters: vec![4, 8], strides: vec![[1, 2, 2]], ..UNet3d::default() }, &Weights::Random { seed: 1 })?;
//! let mut again = cytoscope_onnx::from_bytes(&cytoscope_onnx::to_bytes(&net)?, None, &GraphLimits::default())?;
//! cytoscope_graph_passes::optimize(&mut again)?;
//! let stack = Tensor::new([1, 1, 4, 8, 8], vec![0.5f32; 256])?;
//! let prediction = cytoscope_reference::run(&again, &[("x".into(), stack)])?;
//! assert_eq!(prediction[0].shape(), [1, 1, 4, 8, 8]);
//! assert!(!analysis::depends_on_tile_statistics(&again));
//! # Ok::<(), cytoscope_graph::GraphError>(())
//! ```
#![forbid(unsafe_code)]

mod export;
mod import;
mod ops;
mod opset;
mod proto;
mod table;

pub use export::{OnnxFile, encode, save, to_bytes};
pub use import::{NEWEST_OPSET, from_bytes, from_bytes_with_files, from_bytes_with_reader, load};
pub use proto::{ReadExternal, parse_tensor};
pub use table::{SupportedOperator, operators_markdown, supported_operators};
