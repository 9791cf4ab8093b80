//! Zips that are valid whatever their files hold.

/// The fields that an entry's local header and its entry of the directory share.
fn common_fields(name: &str, content: &[u8]) -> Vec<u8> {
    let mut fields = Vec::new();
    // Version 2.0, no flags, not compressed, 1980-01-01 00:00.
    for field in [20u16, 0, 0, 0, 0x21] {
        fields.extend(field.to_le_bytes());
    }
    fields.extend(crc32fast::hash(content).to_le_bytes());
    for size in [content.len(); 2] {
        fields.extend((size as u32).to_le_bytes());
    }
    fields.extend((name.len() as u16).to_le_bytes());
    fields.extend(0u16.to_le_bytes());
    fields
}

/// Returns a zip of uncompressed files.
pub fn zip(files: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::<u8>::new(), Vec::<u8>::new());
    for (name, content) in files {
        let at = bytes.len() as u32;
        let fields = common_fields(name, content);
        bytes.extend(b"PK\x03\x04");
        bytes.extend(&fields);
        bytes.extend(name.as_bytes());
        bytes.extend(*content);
        directory.extend(b"PK\x01\x02\x14\x00");
        directory.extend(&fields);
        // No comment, first disk, no attributes.
        directory.extend([0; 10]);
        directory.extend(at.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let at = bytes.len() as u32;
    bytes.extend(&directory);
    bytes.extend(b"PK\x05\x06\0\0\0\0");
    for _ in 0..2 {
        bytes.extend((files.len() as u16).to_le_bytes());
    }
    bytes.extend((directory.len() as u32).to_le_bytes());
    bytes.extend(at.to_le_bytes());
    bytes.extend([0; 2]);
    bytes
}
