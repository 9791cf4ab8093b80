//! The part of ONNX's protobuf schema that this crate reads and writes, decoded by hand.
//!
//! Decoding borrows from the file's bytes, so that nothing is allocated that the file does not contain, and its depth
//! is bounded by construction: model, graph, node, attribute, tensor. Subgraphs are kept as undecoded bytes, because no
//! operator with a subgraph is supported. Field numbers are those of `onnx.proto`.

mod decode;
mod tensor;
mod wire;

pub(crate) use decode::{Attribute, AttributeValue, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfo};
pub use tensor::parse_tensor;
pub(crate) use tensor::{ExternalData, tensor_from_proto, write_tensor};
pub(crate) use wire::Writer;
