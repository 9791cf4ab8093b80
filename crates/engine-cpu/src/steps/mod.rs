//! The kinds of steps, each with its parameters and how it runs. Inference and training share them; the gradients are
//! steps like any other.

mod affine;
mod bytes;
mod conv;
mod conv_of_tensors;
mod dense;
mod gradient;
mod join;
mod norm_gradient;
mod optimizer;
mod voxels;

pub(crate) use affine::{Affine, AffinePass, Apply, Head, MomentsOf, Norm, PlanarNorm, Term};
pub(crate) use bytes::{ByteScale, Dequantize, DynamicQuantize, QuantizePlanes, Translate};
pub(crate) use conv::{Conv, ConvInt8, ConvTranspose, ConvTransposeInt8, DynamicScale, Epilogue, FloatWeights};
pub(crate) use conv_of_tensors::{ConvOfTensors, TransposedOfTensors};
pub(crate) use dense::{ClearBorder, Pack, Reference, Unpack};
pub(crate) use gradient::{
    ChannelSums, InputGradientStep, PoolGradient, ResizeGradient, UnaryGradient, WeightGradient,
};
pub(crate) use join::{Join, copy_part};
pub(crate) use norm_gradient::{MergeMoments, NormGradient};
pub(crate) use voxels::{BinaryStep, Copy, PadStep, PoolStep, ResizeStep, UnaryStep};
