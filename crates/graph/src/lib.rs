//! The model: a graph of typed operators with weights.
//!
//! This room owns the in-memory [`Graph`], its operators ([`Op`]), tensors, and what is computed from them.
//!
//! It fails with [`GraphError`], which is malformed, unsupported, over a limit, or misused ([`GraphError::kind`]).
//!
//! ```
//! use cytoscope_graph::{Activation, Dim, ElementType, Graph, Op};
//! let mut graph = Graph::new("rectify");
//! let x = graph.add_input("x", ElementType::F32, vec![Dim::Free("n".into())]);
//! let y = graph.push("y", Op::Activation(Activation::Relu), &[Some(x)]);
//! graph.outputs.push(y);
//! graph.validate()?;
//! # Ok::<(), cytoscope_graph::GraphError>(())
//! ```
#![forbid(unsafe_code)]

pub mod analysis;
pub mod builders;
mod error;
mod export;
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
mod tensor;

pub use error::{GraphError, GraphErrorKind, Result};
pub use graph::{Dim, Graph, Node, Value, ValueId};
pub use import::NEWEST_OPSET;
pub use infer::{InputKey, infer_shapes};
pub use limits::GraphLimits;
pub use op::{
    Activation, AspectPolicy, BinaryOp, ConvAttrs, ConvTransposeAttrs, CoordinateMode, DepthOrder, NearestMode, Op,
    PadMode, Padding, PoolAttrs, ReduceOp, ResizeAttrs, ResizeMode, TransposedGeometry, UnaryOp,
};
pub use opname::{activation_name, op_name};
pub use proto::parse_tensor;
pub use tensor::{ElementType, Scalar, Tensor, TensorData};

/// Opset of the default domain that exported files are written in.
pub const EXPORT_OPSET: i64 = 21;
