//! How much memory a job may use.

use super::BASE_BYTES;
use crate::predict::label;
use crate::stack::limit_readers;
use cytoscope_formats::Image;

/// Memory budget of a job.
#[derive(Debug, Clone, Copy)]
pub(in crate::predict) struct Budget {
    /// Maximum number of bytes.
    pub(super) bytes: u64,
    /// Whether the user gave the budget; then all of it may be used.
    pub(super) is_given: bool,
}

impl Budget {
    /// Returns the given budget, or three quarters of the free memory; 4 GiB if the system does not report it.
    pub(in crate::predict) fn new(given_bytes: Option<u64>) -> Self {
        let bytes = given_bytes.unwrap_or_else(cytoscope_profile::default_budget_bytes);
        Self { bytes, is_given: given_bytes.is_some() }
    }

    /// Limits what the reader of an image keeps between reads to a part of the budget; returns the bytes that it then holds at
    /// most.
    pub(in crate::predict) fn limit_reader(&self, image: &Image) -> u64 {
        limit_readers(&[image], Some(self.bytes));
        image.cache_bytes()
    }

    /// Returns the memory in bytes that segmenting a stack slice by slice may use.
    pub(in crate::predict) fn for_labels_bytes(&self) -> u64 {
        label::streamed_bytes(self.bytes)
    }

    /// Returns the memory that a network may use beside the program itself, in bytes.
    pub(in crate::predict) fn for_session_bytes(&self) -> u64 {
        self.bytes.saturating_sub(BASE_BYTES)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use crate::stack::READER_PARTS;
    use cytoscope_formats::{OpenOptions, ZarrImageSpec, ZarrWriter, open};
    use cytoscope_storage::Overwrite;
    use cytoscope_volume::{DType, Samples};

    #[test]
    fn a_reader_keeps_at_most_a_part_of_the_budget() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stack.zarr");
        let (depth, plane) = (128, 64 * 64);
        let spec = ZarrImageSpec::new("stack", [1, 1, depth, 64, 64], DType::U8);
        let mut writer = ZarrWriter::create(&path, spec).unwrap();
        let slab = writer.slab_depth(0);
        for z in (0..depth).step_by(slab) {
            writer.write(0, [0, 0, z], &Samples::U8(vec![7; slab.min(depth - z) * plane])).unwrap();
        }
        let _ = writer.finish().unwrap().publish(Overwrite::Refuse).unwrap();
        let image = open(&path, &OpenOptions::default()).unwrap();
        // It fits as a whole.
        let whole_bytes = (depth * plane) as u64;
        let with_much = Budget::new(Some(1 << 30)).limit_reader(&image);
        assert!((whole_bytes..=2 * whole_bytes).contains(&with_much), "{with_much}");
        // What is decoded at once is limited, too.
        let part_bytes = 100_000;
        let with_little = Budget::new(Some(READER_PARTS * part_bytes)).limit_reader(&image);
        assert!((part_bytes..=2 * part_bytes).contains(&with_little), "{with_little}");
    }
}
