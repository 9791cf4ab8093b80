//! Builders of networks: from a description, such as the channels of each level, to a graph with initialized weights.
//!
//! The crate owns the architectures ([`unet3d`], [`dynunet`], [`difference_of_gaussians`]), the initialization of their
//! parameters ([`Weights`]), and random networks for tests ([`random_network`]). A builder fails with a
//! [`cytoscope_graph::GraphError`] if its description contradicts itself or given weights do not fit.
#![forbid(unsafe_code)]

mod classical;
mod dynunet;
mod random;
mod unet;
mod weights;

pub use classical::{DifferenceOfGaussians, difference_of_gaussians};
pub use dynunet::{DynUNet, dynunet};
pub use random::{RandomNetwork, describe, quantized, random_bytes, random_network};
pub use unet::{UNet3d, Upsampling, unet3d};
pub use weights::Weights;
