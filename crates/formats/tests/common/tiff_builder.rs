//! Classic TIFF files, made tag by tag.

/// Builds a classic little-endian TIFF from pages of (tag, type, values); pixels are at the offsets in the tags.
pub struct Tiff {
    /// The file so far.
    pub bytes: Vec<u8>,
    link: usize,
}

impl Tiff {
    pub fn new() -> Self {
        Tiff { bytes: b"II*\0\0\0\0\0".to_vec(), link: 4 }
    }

    /// Appends data and returns its offset.
    pub fn data(&mut self, data: &[u8]) -> u32 {
        self.bytes.resize(self.bytes.len().next_multiple_of(2), 0);
        let at = self.bytes.len() as u32;
        self.bytes.extend(data);
        at
    }

    /// Appends a directory and returns its offset.
    pub fn directory(&mut self, tags: &[(u16, u16, Vec<u32>)]) -> u32 {
        let mut entries = Vec::new();
        for (tag, kind, values) in tags {
            let raw: Vec<u8> = match kind {
                1 | 2 => values.iter().map(|v| *v as u8).collect(),
                3 => values.iter().flat_map(|v| (*v as u16).to_le_bytes()).collect(),
                _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            };
            let count = if *kind == 5 { values.len() / 2 } else { values.len() } as u32;
            let field = if raw.len() <= 4 {
                let mut field = raw;
                field.resize(4, 0);
                field
            } else {
                self.data(&raw).to_le_bytes().to_vec()
            };
            entries.extend(tag.to_le_bytes());
            entries.extend(kind.to_le_bytes());
            entries.extend(count.to_le_bytes());
            entries.extend(field);
        }
        let mut body = (tags.len() as u16).to_le_bytes().to_vec();
        body.extend(entries);
        body.extend([0; 4]);
        self.data(&body)
    }

    /// Appends a page, to which the last one refers.
    pub fn page(&mut self, tags: &[(u16, u16, Vec<u32>)]) {
        let at = self.directory(tags);
        self.bytes[self.link..self.link + 4].copy_from_slice(&at.to_le_bytes());
        self.link = self.bytes.len() - 4;
    }
}

/// Tags of a directory: number, type and values.
pub type Tags = Vec<(u16, u16, Vec<u32>)>;

/// Returns the tags of an uncompressed page of bytes, in one strip of `count` bytes at `offset`.
pub fn gray(width: u32, height: u32, offset: u32, count: u32) -> Tags {
    vec![
        (256, 4, vec![width]),
        (257, 4, vec![height]),
        (258, 3, vec![8]),
        (259, 3, vec![1]),
        (262, 3, vec![1]),
        (273, 4, vec![offset]),
        (277, 3, vec![1]),
        (278, 4, vec![height]),
        (279, 4, vec![count]),
    ]
}
