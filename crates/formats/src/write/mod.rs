//! Writing stacks: streamed plane by plane, into ImageJ TIFF, OME-TIFF or NPY.

pub(crate) mod atomic;
mod ifd;
mod imagej;
mod ome;
mod range;
mod spec;
mod stack;

pub use atomic::{atomic_write, atomic_write_with};
pub use spec::{Compression, Container, WriteSpec, container_for_path};
pub use stack::{StackWriter, write_array};
