//! Limits of training data; all of them are checked before memory is allocated.

/// Files and folders that are searched in one dataset.
pub const MAX_FILES: u64 = 200_000;
/// Levels of subfolders that are searched.
pub const MAX_DEPTH: usize = 4;
/// Bytes of a table (`.csv`) or JSON file.
pub const MAX_TABLE_BYTES: u64 = 64 << 20;
/// Maximum number of pairs of one dataset.
pub const MAX_PAIRS: u64 = 100_000;
/// Objects of one label image.
pub const MAX_OBJECTS: u64 = 1 << 20;
/// Voxels of a patch, including its margin.
pub const MAX_PATCH_VOXELS: u64 = 1 << 27;
/// Voxels that are read from a file for one patch.
pub const MAX_BOX_VOXELS: u64 = 1 << 28;
/// Bytes of a slab, when a whole file is streamed.
pub const SLAB_BYTES: u64 = 16 << 20;
/// Files that are open at the same time.
pub const MAX_OPEN_FILES: usize = 96;
/// Worker threads of one loader.
pub const MAX_WORKERS: usize = 256;
/// Patches prefetched by one loader.
pub const MAX_PREFETCH: usize = 4096;
