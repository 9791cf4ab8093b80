//! Limits of training data; all of them are checked before memory is allocated.

/// Maximum number of files and folders that are searched in one dataset.
pub const MAX_FILES: u64 = 200_000;
/// Maximum number of levels of subfolders that are searched.
pub const MAX_DEPTH: usize = 4;
/// Maximum size of a table (`.csv`) or JSON file in bytes.
pub const MAX_TABLE_BYTES: u64 = 64 << 20;
/// Maximum number of pairs of one dataset.
pub const MAX_PAIRS: u64 = 100_000;
/// Maximum number of objects of one label image.
pub const MAX_OBJECTS: u64 = 1 << 20;
/// Maximum number of voxels of a patch, including its margin.
pub const MAX_PATCH_VOXELS: u64 = 1 << 27;
/// Maximum number of voxels that are read from a file for one patch.
pub const MAX_BOX_VOXELS: u64 = 1 << 28;
/// Size of the slabs in bytes in which a whole file is read.
pub const SLAB_BYTES: u64 = 16 << 20;
/// Maximum number of files that are open at the same time.
pub const MAX_OPEN_FILES: usize = 96;
/// Maximum number of worker threads of one loader.
pub const MAX_WORKERS: usize = 256;
/// Maximum number of patches that one loader prefetches.
pub const MAX_PREFETCH: usize = 4096;
