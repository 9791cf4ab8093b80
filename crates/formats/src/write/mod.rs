//! Writing of stacks plane by plane, as ImageJ TIFF, OME-TIFF or NPY.

mod ifd;
mod imagej;
mod ome;
mod output;
mod range;
mod spec;
mod stack;

pub use spec::{Compression, Container, WriteSpec, container_for_path};
pub use stack::{StackWriter, write_array};
