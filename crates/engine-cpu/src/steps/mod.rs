//! The kinds of steps, each with its parameters and how it runs. Inference and training share them; the gradients are
//! steps like any other.

mod bytes;
mod conv;
mod dense;
mod gradient;
mod join;
mod norm_gradient;
mod optimizer;
mod pass;
mod tensors;
mod voxels;

pub(crate) use bytes::{ByteScale, DynamicQuantize, QuantizePlanes, Translate, dequantize};
pub(crate) use conv::{Conv, ConvInt8, ConvTranspose, ConvTransposeInt8, DynamicScale, Epilogue};
pub(crate) use dense::{ClearBorder, Pack, Reference, Unpack};
pub(crate) use gradient::{
    ChannelSums, InputGradientStep, PoolGradient, ResizeGradient, UnaryGradient, WeightGradient,
};
pub(crate) use join::{Join, copy_part};
pub(crate) use norm_gradient::{MergeMoments, NormGradient};
pub(crate) use pass::{Affine, AffinePass, Apply, Head, MomentsOf, Norm, PlanarNorm, Term};
pub(crate) use tensors::{ConvOfTensors, TransposedOfTensors};
pub(crate) use voxels::{BinaryStep, Copy, PadStep, PoolStep, ResizeStep, UnaryStep};
