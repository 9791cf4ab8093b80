//! Limits on what a file may contain.

/// Bytes that parts of a file may share beyond a multiple of its size, for small files.
pub(crate) const SHARED_SLACK_BYTES: u64 = 1 << 16;

/// Limits on the work and memory that a file can cause. Each is checked before memory is allocated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Number of pages (IFDs, SubIFDs and planes of a stack) in one file or set.
    pub max_pages: u64,
    /// Number of entries of one IFD.
    pub max_ifd_entries: u64,
    /// Size of a tag's value, of the OME-XML, or of an NPY header, in bytes.
    pub max_metadata_bytes: u64,
    /// Size of one decoded strip or tile in bytes. Uncompressed strips are read in parts and are not limited.
    pub max_chunk_bytes: u64,
    /// Size of all strips and tiles in one read that a file declares but does not store (they read as zeros), in bytes.
    pub max_unstored_bytes: u64,
    /// Size of the array that one read returns, in bytes.
    pub max_read_bytes: u64,
    /// Number of files of one OME-TIFF set, numbered series, OIF or MetaImage.
    pub max_set_files: u64,
    /// Expanded size of a file that cannot be read in parts and is held in memory (such as `.nii.gz`), in bytes.
    pub max_expanded_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_pages: 1 << 21,
            max_ifd_entries: 4096,
            max_metadata_bytes: 256 << 20,
            max_chunk_bytes: 512 << 20,
            max_unstored_bytes: 256 << 20,
            max_read_bytes: 1 << 40,
            max_set_files: 1 << 16,
            max_expanded_bytes: 32 << 30,
        }
    }
}
