//! Neural network models: a graph of typed operators with weights, and everything computed from it before an engine
//! runs it.
//!
//! The crate owns the in-memory [`Graph`] and its operators ([`Op`], in one form for all opsets), reading and writing
//! ONNX files ([`Graph::load`], [`Graph::save`]), shape inference ([`infer_shapes`]), rewrites ([`passes`]), analysis
//! ([`analysis`]), networks built from a description ([`builders`]), and the naive executor that every engine is tested
//! against ([`mod@reference`]). It knows neither devices nor image files.
//!
//! Errors are [`GraphError`]s, whose [`GraphError::kind`] is malformed, unsupported (with operator, node and opset),
//! over a limit ([`GraphLimits`], checked before memory is allocated), misused, I/O, or interrupted. No file content
//! makes it panic.
//! ```
//! use cytoscope_graph::builders::{UNet3d, Weights, unet3d};
//! use cytoscope_graph::{Graph, GraphLimits, Tensor, analysis, passes, reference};
//!
//! let net = unet3d(&UNet3d { filters: vec![4, 8], strides: vec![[1, 2, 2]], ..UNet3d::default() }, &Weights::Random { seed: 1 })?;
//! let mut again = Graph::from_bytes(&net.to_bytes()?, None, &GraphLimits::default())?;
//! passes::optimize(&mut again)?;
//! let stack = Tensor::new([1, 1, 4, 8, 8], vec![0.5f32; 256])?;
//! let prediction = reference::run(&again, &[("x".into(), stack)])?;
//! assert_eq!(prediction[0].shape(), [1, 1, 4, 8, 8]);
//! assert!(!analysis::depends_on_tile_statistics(&again));
//! # Ok::<(), cytoscope_graph::GraphError>(())
//! ```
#![forbid(unsafe_code)]

pub mod analysis;
mod budget;
pub mod builders;
mod error;
mod export;
mod geometry;
mod graph;
mod import;
mod infer;
mod limits;
pub mod npy;
mod op;
mod opname;
pub mod package;
pub mod passes;
mod proto;
pub mod reference;
mod table;
mod tensor;
pub mod training;

pub use budget::{Budget, Interrupt};
pub use error::{GraphError, GraphErrorKind, Result};
pub use geometry::{ConvAttrs, ConvTransposeAttrs, Padding, PoolAttrs, TransposedGeometry};
pub use graph::{Dim, Graph, Node, Value, ValueId};
pub use import::NEWEST_OPSET;
pub use infer::{InputKey, infer_shapes, infer_shapes_within};
pub use limits::GraphLimits;
pub use op::{
    Activation, AspectPolicy, BinaryOp, CoordinateMode, DepthOrder, NearestMode, Op, PadMode, ReduceOp, ResizeAttrs,
    ResizeMode, UnaryOp,
};
pub use opname::{activation_name, op_name};
pub use proto::parse_tensor;
pub use table::{SUPPORTED, SupportedOperator, operators_markdown};
pub use tensor::{ElementType, Scalar, Tensor, TensorData};

/// Default-domain opset of exported files.
pub const EXPORT_OPSET: i64 = 21;
