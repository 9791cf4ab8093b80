//! The part of ONNX's protobuf schema that this crate reads and writes, decoded by hand.
//!
//! Decoding borrows from the file's bytes, so that nothing is allocated that the file does not contain, and its depth
//! is bounded by construction: model, function, graph, node, attribute, tensor. Subgraphs are kept as undecoded bytes, because
//! only the branch that an `If` takes is needed. Field numbers are those of `onnx.proto`.

mod decode;
mod tensor;
mod wire;

pub(crate) use decode::{
    Attribute, AttributeValue, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfo,
};
pub(crate) use tensor::{ExternalData, tensor_from_proto, write_tensor};
pub use tensor::{ReadExternal, parse_tensor};
pub(crate) use wire::Writer;
