//! OME-XML and ImageJ descriptions in a TIFF with four pages of 4×4 voxels. No panic, bounded memory.
#![no_main]
use cytoscope_formats::{Limits, OpenOptions, open_bytes};
use cytoscope_volume::Region;
use libfuzzer_sys::fuzz_target;

const PAGES: u32 = 4;

/// Returns a little-endian TIFF whose first page has the description.
fn tiff(description: &[u8]) -> Vec<u8> {
    let mut bytes = b"II*\0\0\0\0\0".to_vec();
    bytes.extend(description);
    bytes.push(0);
    let pixels = bytes.len() as u32;
    bytes.extend(0..16 * PAGES as u8);
    bytes.resize(bytes.len().next_multiple_of(2), 0);
    let mut link = 4;
    for page in 0..PAGES {
        let at = bytes.len() as u32;
        bytes[link..link + 4].copy_from_slice(&at.to_le_bytes());
        let mut entries =
            vec![(256u16, 4u16, 1u32, 4u32), (257, 4, 1, 4), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)];
        // Values of up to four bytes are stored in the entry itself.
        if page == 0 && description.len() >= 4 {
            entries.push((270, 2, description.len() as u32 + 1, 8));
        }
        entries.extend([(273, 4, 1, pixels + 16 * page), (277, 3, 1, 1), (278, 4, 1, 4), (279, 4, 1, 16)]);
        bytes.extend((entries.len() as u16).to_le_bytes());
        for (tag, kind, count, value) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(kind.to_le_bytes());
            bytes.extend(count.to_le_bytes());
            bytes.extend(value.to_le_bytes());
        }
        link = bytes.len();
        bytes.extend([0; 4]);
    }
    bytes
}

fuzz_target!(|data: &[u8]| {
    let limits = Limits { max_pages: 1 << 12, max_read_bytes: 1 << 20, ..Limits::default() };
    let options = OpenOptions { limits, ..OpenOptions::default() };
    let Ok(image) = open_bytes(tiff(data), &options) else { return };
    let meta = image.meta();
    let size = meta.voxel_size_um;
    for um in [size.z, size.y, size.x, meta.time_interval_secs].into_iter().flatten() {
        assert!(um.is_finite() && um > 0.0, "{um}");
    }
    let _ = size.check().map_err(|e| e.to_string());
    assert!(meta.display_range.is_none_or(|(low, high)| low.is_finite() && high.is_finite() && low < high));
    let _ = image.read(0, &Region::whole(&meta.shape_full));
});
