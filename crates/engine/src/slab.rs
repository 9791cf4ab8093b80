//! Slabs of a volume in device memory, from which sessions cut their inputs.

use crate::EngineError;
use cytoscope_graph::Tensor;
use std::ops::Range;

/// Bytes that loading and keeping a slab takes in device memory, as a multiple of its size.
pub const SLAB_COPIES: u64 = 3;
/// Maximum size in bytes of a slab on a device whose free memory is not known.
pub const UNKNOWN_DEVICE_SLAB_BYTES: u64 = 64 << 20;

/// A session of a graph with one image input that cuts the tiles of a batch out of a slab in device memory. So voxels
/// that several tiles read are copied to the device once.
pub trait SlabSession {
    /// Returns the maximum size of a slab in bytes, 4 for each voxel.
    fn slab_limit_bytes(&self) -> u64;

    /// Makes a slab: the last `kept_planes` planes of the slab before, followed by `planes`, 32-bit floats of shape C, Z,
    /// Y, X with at least one plane.
    ///
    /// # Errors
    /// [`EngineError::Input`] if the shape does not fit the graph or the planes that are kept; [`EngineError::Device`] or
    /// [`EngineError::OutOfMemory`] if the device fails.
    fn load(&mut self, kept_planes: usize, planes: Tensor) -> Result<(), EngineError>;

    /// Runs the graph once, on tiles of the slab that start at these positions Z, Y, X, one for each sample of the
    /// compiled input. Outputs are in graph order.
    ///
    /// # Errors
    /// [`EngineError::Input`] if there is no slab, there are fewer or more positions than samples, or a tile exceeds the
    /// slab; otherwise as [`crate::Session::run`].
    fn run_tiles(&mut self, starts: &[[usize; 3]]) -> Result<Vec<Tensor>, EngineError>;

    /// Like [`SlabSession::run_tiles`], but of output `output`, the voxels in the ranges `kept` along Z, Y, X of each
    /// tile stay in device memory, until [`SlabSession::take_kept`]. Tiles at the end that have no ranges only fill up the
    /// batch. A failure of the device may be reported later, by [`SlabSession::take_kept`] at the latest.
    ///
    /// # Errors
    /// [`EngineError::Input`] if there are more ranges than tiles, they exceed a tile, or the output does not have the
    /// input's size along Z, Y, X; otherwise as [`SlabSession::run_tiles`].
    fn run_kept(&mut self, starts: &[[usize; 3]], output: usize, kept: &[[Range<usize>; 3]])
    -> Result<(), EngineError>;

    /// Returns what was kept since the last call as one tensor of shape C, Z, Y, X: in the order in which it was computed,
    /// the results of `columns` tiles side by side along X, and these rows along Y. This takes up to three times its size
    /// in device memory.
    ///
    /// # Errors
    /// [`EngineError::Input`] if the number of kept tiles is not a multiple of `columns`; [`EngineError::Device`] or
    /// [`EngineError::OutOfMemory`] if the device fails, or if results side by side differ in size.
    fn take_kept(&mut self, columns: usize) -> Result<Tensor, EngineError>;

    /// Starts weighted sums of tiles in device memory, of this shape C, Z, Y, X, with 0. `weights` has the size Z, Y, X of a
    /// tile, and the sums have as many planes. Earlier sums are dropped.
    ///
    /// # Errors
    /// [`EngineError::Input`] if the shapes do not fit the graph, or the sums exceed the limit of slabs;
    /// [`EngineError::Device`] or [`EngineError::OutOfMemory`] if the device fails.
    fn begin_sums(&mut self, weights: Tensor, shape: [usize; 4]) -> Result<(), EngineError>;

    /// Like [`SlabSession::run_tiles`], but adds output `output` of the first `used` tiles, times the weights, to the sums at
    /// the rows and columns at which the tiles start; voxels beyond the sums are left out. A failure of the device may be
    /// reported later, by [`SlabSession::take_sums`] at the latest.
    ///
    /// # Errors
    /// [`EngineError::Input`] if there are no sums, or the output does not have the input's size along Z, Y, X or not the
    /// channels of the sums; otherwise as [`SlabSession::run_tiles`].
    fn run_summed(&mut self, starts: &[[usize; 3]], output: usize, used: usize) -> Result<(), EngineError>;

    /// Returns the first `planes` planes of the sums, of shape C, Z, Y, X. The others become the first ones, and new ones
    /// start with 0. This takes up to three times the size of the sums in device memory.
    ///
    /// # Errors
    /// [`EngineError::Input`] if the sums do not have as many planes; [`EngineError::Device`] or
    /// [`EngineError::OutOfMemory`] if the device fails.
    fn take_sums(&mut self, planes: usize) -> Result<Tensor, EngineError>;
}
