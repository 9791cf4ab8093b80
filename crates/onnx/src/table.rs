//! The table of supported operators, as shown in the documentation.

use crate::opset::{NEWEST_WRITTEN_OPSET, OLDEST_OPSET};

/// An ONNX operator that the importer accepts, with its restrictions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SupportedOperator {
    /// ONNX operator type, default domain.
    pub name: &'static str,
    /// Heading under which the table lists the operator.
    pub group: &'static str,
    /// Restrictions and how it is imported; empty if there are none.
    pub note: &'static str,
}

pub(crate) const CONV: &str = "Convolution and pooling";
const NORM: &str = "Normalization";
const ACT: &str = "Activation";
const MATH: &str = "Arithmetic";
const LOGIC: &str = "Comparison and logic";
const PRODUCT: &str = "Products";
const REDUCE: &str = "Reduction and search";
pub(crate) const SHAPE: &str = "Shape and movement";
const QUANT: &str = "Quantization";

/// The groups in the order of the table.
const GROUPS: [&str; 9] = [CONV, NORM, ACT, MATH, LOGIC, PRODUCT, REDUCE, SHAPE, QUANT];

/// The operators without a file in [`crate::ops`].
const OTHERS: &[SupportedOperator] = &{
    const fn op(group: &'static str, name: &'static str, note: &'static str) -> SupportedOperator {
        SupportedOperator { name, group, note }
    }
    const SPATIAL: &str = "1 to 3 spatial axes";
    [
        op(CONV, "Conv", SPATIAL),
        op(CONV, "ConvTranspose", SPATIAL),
        op(CONV, "MaxPool", "1 to 3 spatial axes; indices output supported"),
        op(CONV, "AveragePool", SPATIAL),
        op(CONV, "GlobalAveragePool", ""),
        op(CONV, "GlobalMaxPool", ""),
        op(CONV, "GlobalLpPool", "p of 1 or 2"),
        op(NORM, "BatchNormalization", "inference only; folded into the convolution before it"),
        op(NORM, "InstanceNormalization", ""),
        op(NORM, "GroupNormalization", "before opset 21, scale and bias of a group become those of its channels"),
        op(NORM, "LayerNormalization", "mean and inverse standard deviation outputs supported"),
        op(NORM, "LpNormalization", ""),
        op(NORM, "RMSNormalization", ""),
        op(NORM, "MeanVarianceNormalization", ""),
        op(NORM, "LRN", "number of channels must be fixed"),
        op(NORM, "Softmax", "before opset 13 over flattened axes"),
        op(NORM, "LogSoftmax", "before opset 13 over flattened axes"),
        op(NORM, "Hardmax", "length of the axis must be fixed"),
        op(ACT, "Relu", "fused into convolutions, as all activations"),
        op(ACT, "LeakyRelu", ""),
        op(ACT, "PRelu", "one constant slope becomes LeakyRelu"),
        op(ACT, "Elu", ""),
        op(ACT, "Celu", ""),
        op(ACT, "Selu", ""),
        op(ACT, "Gelu", "exact and tanh"),
        op(ACT, "Swish", "alpha 1; Sigmoid followed by Mul is recognized as Swish"),
        op(ACT, "Sigmoid", ""),
        op(ACT, "HardSigmoid", ""),
        op(ACT, "HardSwish", ""),
        op(ACT, "Mish", ""),
        op(ACT, "Tanh", ""),
        op(ACT, "Softplus", ""),
        op(ACT, "Softsign", ""),
        op(ACT, "ThresholdedRelu", ""),
        op(ACT, "Shrink", ""),
        op(ACT, "Clip", ""),
        op(MATH, "Add", ""),
        op(MATH, "Sub", ""),
        op(MATH, "Mul", ""),
        op(MATH, "Div", ""),
        op(MATH, "Pow", ""),
        op(MATH, "Mod", ""),
        op(MATH, "Min", "any number of inputs"),
        op(MATH, "Max", "any number of inputs"),
        op(MATH, "Sum", "any number of inputs"),
        op(MATH, "Mean", "any number of inputs"),
        op(MATH, "Abs", ""),
        op(MATH, "Neg", ""),
        op(MATH, "Reciprocal", ""),
        op(MATH, "Sqrt", ""),
        op(MATH, "Exp", ""),
        op(MATH, "Log", ""),
        op(MATH, "Erf", ""),
        op(MATH, "Floor", ""),
        op(MATH, "Ceil", ""),
        op(MATH, "Round", ""),
        op(MATH, "Sign", ""),
        op(MATH, "Sin", ""),
        op(MATH, "Cos", ""),
        op(MATH, "Tan", ""),
        op(MATH, "Asin", ""),
        op(MATH, "Acos", ""),
        op(MATH, "Atan", ""),
        op(MATH, "Sinh", ""),
        op(MATH, "Cosh", ""),
        op(MATH, "Asinh", ""),
        op(MATH, "Acosh", ""),
        op(MATH, "Atanh", ""),
        op(LOGIC, "Equal", ""),
        op(LOGIC, "Greater", ""),
        op(LOGIC, "GreaterOrEqual", ""),
        op(LOGIC, "Less", ""),
        op(LOGIC, "LessOrEqual", ""),
        op(LOGIC, "And", ""),
        op(LOGIC, "Or", ""),
        op(LOGIC, "Xor", ""),
        op(LOGIC, "Not", ""),
        op(LOGIC, "IsNaN", ""),
        op(LOGIC, "IsInf", ""),
        op(LOGIC, "Where", ""),
        op(LOGIC, "If", "condition known from constants and fixed axis lengths; becomes the nodes of its branch"),
        op(PRODUCT, "MatMul", ""),
        op(PRODUCT, "Gemm", ""),
        op(PRODUCT, "Einsum", "an ellipsis needs a known number of axes"),
        op(REDUCE, "ReduceSum", ""),
        op(REDUCE, "ReduceMean", ""),
        op(REDUCE, "ReduceMax", ""),
        op(REDUCE, "ReduceMin", ""),
        op(REDUCE, "ReduceProd", ""),
        op(REDUCE, "ReduceL1", ""),
        op(REDUCE, "ReduceL2", ""),
        op(REDUCE, "ReduceLogSum", ""),
        op(REDUCE, "ReduceLogSumExp", ""),
        op(REDUCE, "ReduceSumSquare", ""),
        op(REDUCE, "ArgMax", ""),
        op(REDUCE, "ArgMin", ""),
        op(REDUCE, "TopK", "always sorted"),
        op(REDUCE, "CumSum", ""),
        op(REDUCE, "OneHot", "depth must be constant"),
        op(SHAPE, "Split", ""),
        op(SHAPE, "Slice", ""),
        op(SHAPE, "Pad", "constant, edge, reflect, wrap"),
        op(SHAPE, "Reshape", ""),
        op(SHAPE, "Transpose", ""),
        op(SHAPE, "Squeeze", ""),
        op(SHAPE, "Unsqueeze", ""),
        op(SHAPE, "Flatten", ""),
        op(SHAPE, "Expand", ""),
        op(SHAPE, "Tile", ""),
        op(SHAPE, "Gather", ""),
        op(SHAPE, "GatherElements", ""),
        op(SHAPE, "GatherND", ""),
        op(SHAPE, "ScatterND", "without reduction"),
        op(SHAPE, "Shape", "folded where the shape is known"),
        op(SHAPE, "Size", "folded where the shape is known"),
        op(SHAPE, "CastLike", "becomes Cast"),
        op(SHAPE, "Cast", "not to strings, 4-bit integers or 8-bit floats"),
        op(SHAPE, "Constant", "becomes an initializer"),
        op(SHAPE, "ConstantOfShape", ""),
        op(SHAPE, "Range", ""),
        op(SHAPE, "Identity", ""),
        op(SHAPE, "Dropout", "becomes Identity; no mask output"),
        op(SHAPE, "DepthToSpace", "two spatial axes"),
        op(SHAPE, "SpaceToDepth", "two spatial axes"),
        op(SHAPE, "Trilu", ""),
        op(QUANT, "QuantizeLinear", "per tensor, per channel, blocked; 8 and 16 bit"),
        op(QUANT, "DequantizeLinear", "per tensor, per channel, blocked"),
        op(QUANT, "DynamicQuantizeLinear", ""),
        op(QUANT, "QLinearConv", SPATIAL),
        op(QUANT, "QLinearMatMul", ""),
        op(QUANT, "ConvInteger", SPATIAL),
        op(QUANT, "MatMulInteger", ""),
    ]
};

/// Operators of the table that GPUs run, which `cytoscope-engine-burn` decides.
const ON_GPUS: &str = "
The CPU runs all of them. GPUs run all but Acos, Acosh, Asin, Asinh, Atan, Atanh, Cosh, CumSum, GatherElements, GatherND,
GridSample, IsNaN, Mod, ReduceProd, ScatterND, Sinh, Tan, TopK, Trilu and those under Quantization, within these limits:

- The shapes of all tensors, and indices, repeats, starts and ends, follow from the shape of the input.
- Inputs and outputs of the network are 32-bit floats. Integers can only be moved, compared and converted, and not to
  types that lack some of them.
- Tensors with more than five axes can only be reshaped, transposed, multiplied as matrices, and passed through functions of
  one element.
- `Einsum` multiplies two tensors as matrices. `LayerNormalization` and `MaxPool` have one output. `Resize` computes an element
  from at most 16 along an axis, and has no `tf_crop_and_resize`.

A network that a GPU does not run is run by the CPU.
";

/// Returns every operator that the importer accepts, group by group.
pub fn supported_operators() -> impl Iterator<Item = SupportedOperator> {
    GROUPS
        .into_iter()
        .flat_map(|group| OTHERS.iter().copied().chain(crate::ops::rows()).filter(move |row| row.group == group))
}

/// Returns the table as Markdown: the content of `docs/operators.md`.
pub fn operators_markdown() -> String {
    let mut text = format!(
        "# Supported operators\n\n\
         Written by `cargo run -p cytoscope-onnx --example operators_table`; a test checks that it is up to date.\n\n\
         {} operators of ONNX's default domain, opsets 1 to {}. Files are written in opset {OLDEST_OPSET}, or in the \
         oldest newer one,\n\
         up to {NEWEST_WRITTEN_OPSET}, that has all operators of the network. Differences between opsets are removed when a \
         file is read. Any\n\
         other operator is refused with its name, node and opset; so are `Loop`, `Scan`, and sparse or string tensors. If no\n\
         output of the network depends on an unsupported node, it is left out instead, unless it calls a model-local function\n\
         or a node of the same graph, such as `If`, has a subgraph. The nodes of model-local functions are\n\
         inserted where the functions are called. Of ONNX Runtime's own operators, those\n\
         that its quantization writes beside `QLinearConv` are read (`QLinearAdd`, `QLinearMul`, `QLinearConcat`,\n\
         `QLinearLeakyRelu`, `QLinearSigmoid`, `QLinearSoftmax`, `QLinearWhere`, `QLinearAveragePool`,\n\
         `QLinearGlobalAveragePool`, `QGemm`, `QuantizeLinear`, `DequantizeLinear`), and these fused ones of its extended\n\
         optimizations: `FusedConv`, `FusedGemm`, `FusedMatMul`, `Gelu` and `BiasGelu`.\n",
        supported_operators().count(),
        crate::NEWEST_OPSET
    );
    text.push_str(ON_GPUS);
    let mut group = "";
    for row in supported_operators() {
        if row.group != group {
            group = row.group;
            text.push_str(&format!("\n## {group}\n\n| operator | notes |\n|---|---|\n"));
        }
        text.push_str(&format!("| {} | {} |\n", row.name, row.note));
    }
    text
}
