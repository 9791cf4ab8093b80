//! Neural network models: a graph of typed operators with weights.
//!
//! The crate owns the in-memory [`Graph`], its operators ([`Op`], in one form for all opsets, training operators with
//! their [`Loss`] and [`Optimizer`] included) and [`Tensor`]s; the rule of each operator that determines type and shape
//! of its outputs ([`infer`]); the cost of running it ([`operator_cost`]) and the [`Budget`] for doing so while a graph
//! is prepared; and tensors as NPY files ([`npy`]). It computes nothing and knows no file format of networks.
//!
//! Errors are [`GraphError`]s, which the crates that read, run and rewrite graphs share. Their [`GraphError::kind`] is
//! malformed, unsupported (with operator, node and opset), over a limit ([`GraphLimits`], checked before memory is
//! allocated), misused, I/O, or interrupted.
#![forbid(unsafe_code)]

mod budget;
pub mod einsum;
mod error;
mod functions;
mod geometry;
mod graph;
pub mod infer;
mod limits;
mod loss;
mod loss_scale;
pub mod npy;
mod opname;
mod ops;
mod optimizer;
mod properties;
mod tensor;

pub use budget::{Budget, Interrupt, operator_cost};
pub use error::{GraphError, GraphErrorKind, Result};
pub use functions::{Activation, BinaryOp, DepthOrder, PadMode, ReduceOp, UnaryOp};
pub use geometry::{ConvAttrs, ConvTransposeAttrs, Padding, PoolAttrs, TransposedGeometry, gcd, lcm, to_3d};
pub use graph::{Dim, Graph, Node, Value, ValueId, ValueNames};
pub use limits::{GraphLimits, check_limit, checked_elements};
pub use loss::{Loss, LossKind, LossTerm};
pub use loss_scale::{LossScale, ScaleState, StepNumbers};
pub use opname::activation_name;
pub use ops::*;
pub use optimizer::{Hyper, Optimizer};
pub use tensor::{ElementType, Scalar, Tensor, TensorData};

/// Default-domain opset whose forms the operators of a graph have: that of new graphs, and the newest one of exported
/// files.
pub const GRAPH_OPSET: i64 = 21;
