//! Width and height of an image from its header.

/// Returns the width and height in pixels of a PNG, GIF or JPEG file; `None` for other and damaged files.
pub(super) fn image_size(bytes: &[u8]) -> Option<[u32; 2]> {
    if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        let number = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        return Some([number(16)?, number(20)?]);
    }
    if bytes.starts_with(b"GIF8") {
        let number = |at: usize| Some(u32::from(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?)));
        return Some([number(6)?, number(8)?]);
    }
    if bytes.starts_with(&[0xFF, 0xD8]) { jpeg_size(bytes) } else { None }
}

/// Returns the size in the frame header, which is the first segment that begins with one of the markers SOF0 to SOF15
/// (ITU-T T.81, B.2.2).
fn jpeg_size(bytes: &[u8]) -> Option<[u32; 2]> {
    let number = |at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let mut at = 2;
    loop {
        let &[0xFF, marker] = bytes.get(at..at + 2)? else { return None };
        match marker {
            // Fill bytes, and markers without a segment.
            0xFF => at += 1,
            0x01 | 0xD0..=0xD8 => at += 2,
            0xC4 | 0xC8 | 0xCC => at += 2 + usize::from(number(at + 2)?),
            0xC0..=0xCF => return Some([u32::from(number(at + 7)?), u32::from(number(at + 5)?)]),
            // The image's end, or its data.
            0xD9 | 0xDA => return None,
            _ => at += 2 + usize::from(number(at + 2)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_pictures_are_read() {
        let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        png.extend([0, 0, 2, 0, 0, 0, 1, 0]);
        assert_eq!(image_size(&png), Some([512, 256]));
        assert_eq!(image_size(b"GIF89a\x40\x00\x20\x00"), Some([64, 32]));
        let jpeg = [0xFF, 0xD8, 0xFF, 0xE0, 0, 4, 1, 2, 0xFF, 0xC0, 0, 11, 8, 0, 100, 0, 200];
        assert_eq!(image_size(&jpeg), Some([200, 100]));
        for damaged in [&png[..20], &jpeg[..12], b"<svg/>", b"GIF89a", &[0xFF, 0xD8, 0xFF, 0xD9], &[0xFF, 0xD8, 3, 4]] {
            assert_eq!(image_size(damaged), None);
        }
    }
}
