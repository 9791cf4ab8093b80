//! Classic TIFF files, made tag by tag with values of any type, as the dialects of microscopes need them.

/// A classic little-endian TIFF.
pub struct Tiff {
    /// The file so far.
    pub bytes: Vec<u8>,
    /// Position of the offset of the next page.
    link: usize,
}

impl Tiff {
    /// A file without pages.
    pub fn new() -> Self {
        Self { bytes: b"II*\0\0\0\0\0".to_vec(), link: 4 }
    }

    /// Appends data and returns its offset.
    pub fn data(&mut self, data: &[u8]) -> u32 {
        self.bytes.resize(self.bytes.len().next_multiple_of(2), 0);
        let at = self.bytes.len() as u32;
        self.bytes.extend(data);
        at
    }

    /// Appends a page, to which the last one refers.
    pub fn page(&mut self, tags: &[Tag]) {
        let mut body = (tags.len() as u16).to_le_bytes().to_vec();
        for (tag, kind, count, raw) in tags {
            let field = match raw.len() {
                0..=4 => [raw.clone(), vec![0; 4 - raw.len()]].concat(),
                _ => self.data(raw).to_le_bytes().to_vec(),
            };
            body.extend([tag.to_le_bytes(), kind.to_le_bytes()].concat());
            body.extend(count.to_le_bytes());
            body.extend(field);
        }
        body.extend([0; 4]);
        let at = self.data(&body);
        self.bytes[self.link..self.link + 4].copy_from_slice(&at.to_le_bytes());
        self.link = at as usize + body.len() - 4;
    }
}

/// One tag: its number, type, count and bytes.
pub type Tag = (u16, u16, u32, Vec<u8>);

/// A tag of 16-bit numbers.
pub fn short(tag: u16, values: &[u16]) -> Tag {
    (tag, 3, values.len() as u32, values.iter().flat_map(|v| v.to_le_bytes()).collect())
}

/// A tag of 32-bit numbers.
pub fn long(tag: u16, values: &[u32]) -> Tag {
    (tag, 4, values.len() as u32, values.iter().flat_map(|v| v.to_le_bytes()).collect())
}

/// A tag with a text, which ends with a zero byte.
pub fn text(tag: u16, value: &str) -> Tag {
    let bytes = [value.as_bytes(), &[0]].concat();
    (tag, 2, bytes.len() as u32, bytes)
}

/// Pages of 2 × 3 pixels of 8 bits that count up; the first one has more tags, the later ones only the last of these.
pub fn pages(count: u8, first: &[Tag], each: &[Tag]) -> Vec<u8> {
    let mut tiff = Tiff::new();
    for page in 0..count {
        let at = tiff.data(&(0..6).map(|i| page * 6 + i).collect::<Vec<u8>>());
        let mut tags = vec![
            long(256, &[3]),
            long(257, &[2]),
            short(258, &[8]),
            short(259, &[1]),
            short(262, &[1]),
            long(273, &[at]),
            short(277, &[1]),
            long(278, &[2]),
            long(279, &[6]),
        ];
        tags.extend(if page == 0 { first.to_vec() } else { Vec::new() });
        tags.extend_from_slice(each);
        tags.sort_by_key(|tag| tag.0);
        tiff.page(&tags);
    }
    tiff.bytes
}
