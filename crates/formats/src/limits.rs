//! What a file may ask for before it is refused.

/// Bounds on what a file can make the reader do; every one is checked before memory is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Pages (IFDs, SubIFDs and planes of a stack) in one file or set.
    pub max_pages: u64,
    /// Entries of one IFD.
    pub max_ifd_entries: u64,
    /// Bytes of one tag's value, of OME-XML, or of an NPY header.
    pub max_metadata_bytes: u64,
    /// Bytes of one decoded strip or tile (raw strips are read in parts and not counted).
    pub max_chunk_bytes: u64,
    /// Bytes of strips and tiles that a file declares but does not store (they read as zeros), in one read.
    pub max_unstored_bytes: u64,
    /// Bytes of the array one read returns.
    pub max_read_bytes: u64,
    /// Files of one OME-TIFF set.
    pub max_set_files: u64,
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
        }
    }
}
