//! What training data may ask for before it is refused; every bound is checked before memory is taken.

/// Files and folders looked at under one folder.
pub const MAX_FILES: u64 = 200_000;
/// Folders below the one named that are searched.
pub const MAX_DEPTH: usize = 4;
/// Bytes of a table (`.csv`) or of a `.json` beside images.
pub const MAX_TABLE_BYTES: u64 = 64 << 20;
/// Pairs of one dataset.
pub const MAX_PAIRS: u64 = 100_000;
/// Objects of one label image.
pub const MAX_OBJECTS: u64 = 1 << 20;
/// Voxels of a patch, its margin included.
pub const MAX_PATCH_VOXELS: u64 = 1 << 27;
/// Voxels of a file read for one patch.
pub const MAX_BOX_VOXELS: u64 = 1 << 28;
/// Bytes of a file read at a time while it is looked through.
pub const SLAB_BYTES: u64 = 16 << 20;
/// Files kept open at the same time.
pub const MAX_OPEN_FILES: usize = 96;
/// Threads of one loader.
pub const MAX_WORKERS: usize = 256;
/// Patches prefetched by one loader.
pub const MAX_PREFETCH: usize = 4096;
