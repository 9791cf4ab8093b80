//! A TIFF file with its pages, and the files of a set.

use super::{
    ifd::{Container, Ifd, tag},
    page::{Layout, Page},
    pyramid, slices,
};
use crate::{
    error::{Fault, FormatError, Remedy},
    limits::Limits,
    olympus::Stream,
    source::{Counters, Source},
};
use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

/// A file whose directories have been read.
#[derive(Debug)]
pub(crate) struct TiffFile {
    /// Path for messages, and for finding other files of the set.
    pub path: PathBuf,
    /// The open file, its byte order and its limits.
    pub container: Container,
    /// The first directory, with the metadata of the whole file.
    pub first: Ifd,
    /// The pages of the main chain, then full-size pages found in SubIFDs; `None` for a page that is not supported.
    pub pages: Vec<Option<Page>>,
    /// Number of pages in the main chain.
    pub chain_len: usize,
    /// All pages in reading order.
    pub reading_order: Vec<u32>,
    /// Where strips begin, in ascending order, if the file states their decoded sizes as stored ones; otherwise empty.
    pub strip_starts: Vec<u64>,
}

impl TiffFile {
    /// Opens a file and reads its directories.
    pub fn open(path: &Path, limits: &Limits, counters: &Arc<Counters>) -> Result<Self, FormatError> {
        Source::open(path, Arc::clone(counters))
            .and_then(|source| Self::walk(path, source, limits))
            .map_err(|f| f.at(path))
    }

    /// Reads the directories of an open source.
    pub fn walk(path: &Path, source: Source, limits: &Limits) -> Result<Self, Fault> {
        let container = Container::open(source, limits.clone())?;
        pyramid::check_ndpi_size(path, &container, None)?;
        let mut seen = HashSet::new();
        let mut first: Option<Ifd> = None;
        let mut pages: Vec<Option<Page>> = Vec::new();
        let mut refused: Option<Fault> = None;
        let mut like: Option<Arc<Layout>> = None;
        let mut offset = container.first_ifd;
        while offset != 0 {
            if !seen.insert(offset) {
                // The chain leads back to an earlier page: all pages have been read.
                break;
            }
            check_page_count(seen.len(), limits)?;
            let ifd = container.read_ifd(offset)?;
            if first.is_none() {
                pyramid::check_ndpi_size(path, &container, Some(&ifd))?;
            }
            let page = supported_or_none(Page::parse(&container, &ifd, like.as_ref()), &mut refused)?;
            check_metadata_reads(&container)?;
            like = page.as_ref().map(|p| Arc::clone(&p.layout)).or(like);
            if let (None, true, Some(fault)) = (&page, pages.is_empty(), refused.take()) {
                return Err(fault);
            }
            pages.push(page);
            offset = ifd.next;
            first.get_or_insert(ifd);
        }
        let Some(first) = first else { return Err(Fault::malformed("the file has no pages")) };
        let chain_len = pages.len();
        let mut reading_order = Vec::with_capacity(chain_len);
        let mut pyramid = false;
        let mut declared = seen.len();
        for index in 0..chain_len {
            reading_order.push(index as u32);
            let Some(Some(page)) = pages.get(index) else { continue };
            // If the SubIFDs of one page are lower resolutions of it, so are those of the other pages.
            let (Some(subs), false) = (page.sub_ifds, pyramid) else { continue };
            let layout = Arc::clone(&page.layout);
            declared = declared.saturating_add(subs.count.min(u64::from(u32::MAX)) as usize);
            check_page_count(declared, limits)?;
            check_metadata_reads(&container)?;
            for offset in container.integers(&subs, 0, subs.count)? {
                if offset == 0 || !seen.insert(offset) {
                    continue;
                }
                let ifd = container.read_ifd(offset)?;
                check_metadata_reads(&container)?;
                let Some(sub) = supported_or_none(Page::parse(&container, &ifd, Some(&layout)), &mut refused)? else {
                    continue;
                };
                if is_level_of(&sub.layout, &layout) {
                    pyramid = true;
                    break;
                }
                reading_order.push(pages.len() as u32);
                pages.push(Some(sub));
            }
        }
        super::shared_strips::check(&container, pages.iter().flatten())?;
        let strip_starts = super::lsm::strip_starts(&container, &first, &pages)?;
        Ok(Self { path: path.to_owned(), container, first, pages, chain_len, reading_order, strip_starts })
    }

    /// The ImageDescription of the first page, if there is one.
    pub fn description(&self) -> Result<Option<String>, Fault> {
        self.first.get(tag::DESCRIPTION).map(|e| self.container.text(e)).transpose()
    }

    /// The stored sizes of strips, from their offsets and stated sizes. If the stated sizes are decoded sizes, a strip
    /// ends where the next one begins.
    pub fn stored_counts(&self, offsets: &[u64], stated: Vec<u64>) -> Vec<u64> {
        if self.strip_starts.is_empty() {
            return stated;
        }
        let length = self.container.source.len();
        let stored = |(offset, stated): (&u64, u64)| {
            let next = self.strip_starts.partition_point(|start| start <= offset);
            let end = self.strip_starts.get(next).map_or(length, |start| (*start).min(length));
            // LZW adds at most half to the decoded size, and the codes that clear and end. Other data may follow the strip.
            let longest = stated.saturating_mul(2).saturating_add(MAX_LZW_CODES_BYTES);
            match end.checked_sub(*offset) {
                Some(gap) if gap > 0 && stated > 0 => gap.min(longest),
                _ => stated,
            }
        };
        offsets.iter().zip(stated).map(stored).collect()
    }

    /// The lower resolution levels of a page.
    pub fn sub_levels(&self, page: &Page) -> Result<Vec<Page>, Fault> {
        let Some(subs) = page.sub_ifds else { return Ok(Vec::new()) };
        let mut levels = Vec::new();
        for offset in self.container.integers(&subs, 0, subs.count.min(64))? {
            let level = Page::parse(&self.container, &self.container.read_ifd(offset)?, None)?;
            if is_level_of(&level.layout, &page.layout) {
                levels.push(level);
            }
        }
        Ok(levels)
    }
}

/// Bytes that are added to the limit of an LZW strip for its codes without data (clear and end).
const MAX_LZW_CODES_BYTES: u64 = 16;

fn is_level_of(sub: &Layout, full: &Layout) -> bool {
    (sub.width, sub.height) != (full.width, full.height)
        && sub.width <= full.width
        && sub.height <= full.height
        && (sub.dtype, sub.samples) == (full.dtype, full.samples)
}

/// Replaces an unsupported page by `None`, so that the other pages can be read; the first such error is kept in
/// `refused`.
fn supported_or_none(page: Result<Page, Fault>, refused: &mut Option<Fault>) -> Result<Option<Page>, Fault> {
    match page {
        Ok(page) => Ok(Some(page)),
        Err(fault @ Fault::Unsupported(..)) => {
            refused.get_or_insert(fault);
            Ok(None)
        }
        Err(fault) => Err(fault),
    }
}

fn check_page_count(pages: usize, limits: &Limits) -> Result<(), Fault> {
    if pages as u64 > limits.max_pages {
        return Err(Fault::over("the number of pages", pages as u64, "max_pages", limits.max_pages, Remedy::Split));
    }
    Ok(())
}

/// Limit of the bytes read for directories: a multiple of the file's length, plus a constant for small files. The
/// directories of a valid file are read once, and their small values twice.
const METADATA_READS: (u64, u64) = (4, 16 << 20);

/// Refuses files whose directories or tag values overlap, because a small file could then take very long to read.
pub(super) fn check_metadata_reads(container: &Container) -> Result<(), Fault> {
    let max_bytes = container.source.len().saturating_mul(METADATA_READS.0).saturating_add(METADATA_READS.1);
    if container.source.bytes_read() > max_bytes {
        return Err(Fault::malformed("its page directories overlap"));
    }
    Ok(())
}

/// Largest number of files of a set that are kept open.
const MAX_OPEN_FILES: usize = 128;

/// A file of a set.
#[derive(Debug)]
struct Member {
    /// Path for messages and, unless it is a stream, for opening the file.
    path: PathBuf,
    /// The stream of a compound file that holds the file.
    stream: Option<Stream>,
    opened: OnceLock<Arc<TiffFile>>,
}

impl Member {
    fn open(&self, limits: &Limits, counters: &Arc<Counters>) -> Result<TiffFile, FormatError> {
        match &self.stream {
            Some(stream) => TiffFile::walk(&self.path, stream.source(), limits).map_err(|f| f.at(&self.path)),
            None => TiffFile::open(&self.path, limits, counters),
        }
    }
}

/// The files of an image, opened on first use.
#[derive(Debug)]
pub(crate) struct FileSet {
    files: Vec<Member>,
    /// A file that describes the image, or contains its files as streams.
    described_by: Option<PathBuf>,
    /// Layout of the pages if each file is a slice of a numbered series.
    slice: Option<Arc<Layout>>,
    limits: Limits,
    counters: Arc<Counters>,
}

impl FileSet {
    /// An empty set; `limits` apply to each file, and reads are added to `counters`.
    pub fn new(limits: Limits, counters: Arc<Counters>) -> Self {
        Self { files: Vec::new(), described_by: None, slice: None, limits, counters }
    }

    /// Limits of each file.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Counters of the reads of all files.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// States that each file is a slice with a page of this layout. Files that are opened later are checked.
    pub fn are_slices_with(&mut self, layout: Arc<Layout>) {
        self.slice = Some(layout);
    }

    /// States that the image is described by a file that is not one of the set, or that contains all files as streams.
    pub fn are_described_by(&mut self, path: PathBuf) {
        self.described_by = Some(path);
    }

    /// Adds an open file and returns its index.
    pub fn add_open(&mut self, file: TiffFile) -> u32 {
        let path = file.path.clone();
        let opened = OnceLock::new();
        // The slot is new, so it cannot be occupied.
        let _ = opened.set(Arc::new(file));
        self.push(Member { path, stream: None, opened })
    }

    /// Adds a file by its path and returns its index.
    pub fn add(&mut self, path: PathBuf) -> u32 {
        self.push(Member { path, stream: None, opened: OnceLock::new() })
    }

    /// Adds a file that is a stream of a compound file, and returns its index; the path is for messages.
    pub fn add_stream(&mut self, path: PathBuf, stream: Stream) -> u32 {
        self.push(Member { path, stream: Some(stream), opened: OnceLock::new() })
    }

    fn push(&mut self, member: Member) -> u32 {
        self.files.push(member);
        (self.files.len() - 1) as u32
    }

    /// The paths of all files of the image, whether open or not.
    pub fn paths(&self) -> Vec<PathBuf> {
        let members = self.files.iter().filter(|member| member.stream.is_none()).map(|member| member.path.clone());
        self.described_by.iter().cloned().chain(members).collect()
    }

    /// Returns the file with an index, and opens it if necessary.
    pub fn get(&self, index: u32) -> Result<Arc<TiffFile>, FormatError> {
        let Some(member) = self.files.get(index as usize) else {
            return Err(Fault::malformed("a plane refers to a file that is not part of the set").at(Path::new("")));
        };
        if let Some(file) = member.opened.get() {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(member.open(&self.limits, &self.counters)?);
        if let Some(layout) = &self.slice {
            slices::check_slice(&file, layout).map_err(|f| f.at(&member.path))?;
        }
        if self.files.len() <= MAX_OPEN_FILES {
            return Ok(Arc::clone(member.opened.get_or_init(|| file)));
        }
        Ok(file)
    }
}
