//! Graphs built from a description: the networks that the application trains and ships.

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
