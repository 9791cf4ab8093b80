//! Classic TIFF files, made tag by tag.

/// A classic little-endian TIFF; pixels are at the offsets in the tags.
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

    /// Appends a directory and returns its offset.
    pub fn directory<T: ToTag>(&mut self, tags: &[T]) -> u32 {
        let mut body = (tags.len() as u16).to_le_bytes().to_vec();
        for (tag, kind, count, raw) in tags.iter().map(ToTag::to_tag) {
            let field = match raw.len() {
                0..=4 => [raw.clone(), vec![0; 4 - raw.len()]].concat(),
                _ => self.data(&raw).to_le_bytes().to_vec(),
            };
            body.extend([tag.to_le_bytes(), kind.to_le_bytes()].concat());
            body.extend(count.to_le_bytes());
            body.extend(field);
        }
        body.extend([0; 4]);
        self.data(&body)
    }

    /// Appends a page, to which the last one refers.
    pub fn page<T: ToTag>(&mut self, tags: &[T]) {
        let at = self.directory(tags);
        self.bytes[self.link..self.link + 4].copy_from_slice(&at.to_le_bytes());
        self.link = self.bytes.len() - 4;
    }
}

/// One tag: its number, type, count and bytes.
pub type Tag = (u16, u16, u32, Vec<u8>);

/// Tags as numbers: number of the tag, type and values.
pub type Tags = Vec<(u16, u16, Vec<u32>)>;

/// What is a tag of a directory.
pub trait ToTag {
    fn to_tag(&self) -> Tag;
}

impl ToTag for Tag {
    fn to_tag(&self) -> Tag {
        self.clone()
    }
}

impl ToTag for (u16, u16, Vec<u32>) {
    fn to_tag(&self) -> Tag {
        let (tag, kind, values) = self;
        let raw = match kind {
            1 | 2 => values.iter().map(|v| *v as u8).collect(),
            3 => values.iter().flat_map(|v| (*v as u16).to_le_bytes()).collect(),
            _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        };
        // A fraction is two numbers.
        let count = if *kind == 5 { values.len() / 2 } else { values.len() };
        (*tag, *kind, count as u32, raw)
    }
}

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

/// Pages of 2 × 3 pixels of 8 bits that count up; the first one has more tags, the later ones only the last of these.
pub fn pages(count: u8, first: &[Tag], each: &[Tag]) -> Vec<u8> {
    let mut tiff = Tiff::new();
    for page in 0..count {
        let at = tiff.data(&(0..6).map(|i| page * 6 + i).collect::<Vec<u8>>());
        let mut tags: Vec<Tag> = gray(3, 2, at, 6).iter().map(ToTag::to_tag).collect();
        tags.extend(if page == 0 { first.to_vec() } else { Vec::new() });
        tags.extend_from_slice(each);
        tags.sort_by_key(|tag| tag.0);
        tiff.page(&tags);
    }
    tiff.bytes
}
