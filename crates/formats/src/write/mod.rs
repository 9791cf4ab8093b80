//! Writing of stacks plane by plane as ImageJ TIFF, OME-TIFF, NPY, Cellpose's `_seg.npy` or ImageJ ROIs.

mod cellpose;
mod ifd;
mod imagej;
mod ome;
mod output;
mod range;
mod rois;
mod spec;
mod stack;

pub use spec::{Compression, Container, WriteSpec, check_output_name, container_for_path};
pub use stack::{StackWriter, write_array};
