//! Graphs made from a description: the networks the application trains and ships.

mod classical;
mod dynunet;
mod unet;
mod weights;

pub use classical::{DifferenceOfGaussians, difference_of_gaussians};
pub use dynunet::{DynUNet, dynunet};
pub use unet::{UNet3d, Upsampling, unet3d};
pub use weights::Weights;
