//! One TIFF file with its pages, and the files of a set.

use super::{
    ifd::{Container, Ifd, tag},
    page::{Layout, Page},
};
use crate::{
    error::{Fault, FormatError},
    limits::Limits,
    source::{Counters, Source},
};
use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

/// A file whose directories have been walked.
#[derive(Debug)]
pub(crate) struct TiffFile {
    pub path: PathBuf,
    pub container: Container,
    /// The first directory, with the metadata of the whole file.
    pub first: Ifd,
    /// The main chain, then full-size pages found in SubIFDs; `None` where a page is of a kind not read.
    pub pages: Vec<Option<Page>>,
    /// Number of pages in the main chain.
    pub chain_len: usize,
    /// All pages in reading order.
    pub reading_order: Vec<u32>,
}

impl TiffFile {
    /// Opens a file and walks its directories.
    pub fn open(path: &Path, limits: &Limits, counters: &Arc<Counters>) -> Result<Self, FormatError> {
        Source::open(path, Arc::clone(counters))
            .and_then(|source| Self::walk(path, source, limits))
            .map_err(|f| f.at(path))
    }

    /// Walks the directories of an opened source.
    pub fn walk(path: &Path, source: Source, limits: &Limits) -> Result<Self, Fault> {
        let container = Container::open(source, limits.clone())?;
        let mut seen = HashSet::new();
        let mut first: Option<Ifd> = None;
        let mut pages: Vec<Option<Page>> = Vec::new();
        let mut refused: Option<Fault> = None;
        let mut like: Option<Arc<Layout>> = None;
        let mut offset = container.first_ifd;
        while offset != 0 {
            if !seen.insert(offset) {
                // A chain that comes back to a page has shown them all.
                break;
            }
            too_many(seen.len(), limits)?;
            let ifd = container.read_ifd(offset)?;
            let page = keep(Page::parse(&container, &ifd, like.as_ref()), &mut refused)?;
            read_over_and_over(&container)?;
            like = page.as_ref().map(|p| Arc::clone(&p.layout)).or(like);
            if let (None, true, Some(fault)) = (&page, pages.is_empty(), refused.take()) {
                return Err(fault);
            }
            pages.push(page);
            offset = ifd.next;
            first.get_or_insert(ifd);
        }
        let Some(first) = first else { return Err(Fault::malformed("the file has no page")) };
        let chain_len = pages.len();
        let mut reading_order = Vec::with_capacity(chain_len);
        let mut pyramid = false;
        let mut announced = seen.len();
        for index in 0..chain_len {
            reading_order.push(index as u32);
            let Some(Some(page)) = pages.get(index) else { continue };
            // If the SubIFDs of one page are smaller versions of it, those of the others are too.
            let (Some(subs), false) = (page.sub_ifds, pyramid) else { continue };
            let layout = Arc::clone(&page.layout);
            announced = announced.saturating_add(subs.count.min(u64::from(u32::MAX)) as usize);
            too_many(announced, limits)?;
            read_over_and_over(&container)?;
            for offset in container.integers(&subs, 0, subs.count)? {
                if offset == 0 || !seen.insert(offset) {
                    continue;
                }
                let ifd = container.read_ifd(offset)?;
                let Some(sub) = keep(Page::parse(&container, &ifd, Some(&layout)), &mut refused)? else { continue };
                if is_level_of(&sub.layout, &layout) {
                    pyramid = true;
                    break;
                }
                reading_order.push(pages.len() as u32);
                pages.push(Some(sub));
            }
        }
        super::shared::check(&container, pages.iter().flatten())?;
        Ok(Self { path: path.to_owned(), container, first, pages, chain_len, reading_order })
    }

    /// The file's ImageDescription, if it has one.
    pub fn description(&self) -> Result<Option<String>, Fault> {
        self.first.get(tag::DESCRIPTION).map(|e| self.container.text(e)).transpose()
    }

    /// The levels of a page below the full one.
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

fn is_level_of(sub: &Layout, full: &Layout) -> bool {
    (sub.width, sub.height) != (full.width, full.height)
        && sub.width <= full.width
        && sub.height <= full.height
        && (sub.dtype, sub.samples) == (full.dtype, full.samples)
}

/// Keeps a page; one of a kind that is not read becomes `None`, so that the others can be (but for the first one).
fn keep(page: Result<Page, Fault>, refused: &mut Option<Fault>) -> Result<Option<Page>, Fault> {
    match page {
        Ok(page) => Ok(Some(page)),
        Err(fault @ Fault::Unsupported(..)) => {
            refused.get_or_insert(fault);
            Ok(None)
        }
        Err(fault) => Err(fault),
    }
}

fn too_many(pages: usize, limits: &Limits) -> Result<(), Fault> {
    if pages as u64 > limits.max_pages {
        return Err(Fault::over("the number of pages", pages as u64, "max_pages", limits.max_pages));
    }
    Ok(())
}

/// Times its own length that the directories of a file may make the reader take, and bytes for small files besides.
/// Directories of a sound file are read once, and small values of them once more.
const METADATA_READS: (u64, u64) = (4, 16 << 20);

/// Refuses files whose directories or tag values lie over each other, so that a small file takes long to walk.
fn read_over_and_over(container: &Container) -> Result<(), Fault> {
    let most = container.source.len().saturating_mul(METADATA_READS.0).saturating_add(METADATA_READS.1);
    if container.source.taken() > most {
        return Err(Fault::malformed("its page directories lie over each other"));
    }
    Ok(())
}

/// The most files of a set kept open.
const KEPT_OPEN: usize = 128;

/// The files of an image, opened when first needed.
#[derive(Debug)]
pub(crate) struct FileSet {
    files: Vec<(PathBuf, OnceLock<Arc<TiffFile>>)>,
    limits: Limits,
    counters: Arc<Counters>,
}

impl FileSet {
    pub fn new(limits: Limits, counters: Arc<Counters>) -> Self {
        Self { files: Vec::new(), limits, counters }
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Adds a file already opened, and gives its number.
    pub fn add_open(&mut self, file: TiffFile) -> u32 {
        let path = file.path.clone();
        let slot = OnceLock::new();
        let _ = slot.set(Arc::new(file));
        self.files.push((path, slot));
        (self.files.len() - 1) as u32
    }

    /// Adds a file by name, and gives its number.
    pub fn add(&mut self, path: PathBuf) -> u32 {
        self.files.push((path, OnceLock::new()));
        (self.files.len() - 1) as u32
    }

    /// The paths of all files, opened or not.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|(path, _)| path.as_path())
    }

    /// The file of a number.
    pub fn get(&self, index: u32) -> Result<Arc<TiffFile>, FormatError> {
        let Some((path, slot)) = self.files.get(index as usize) else {
            return Err(Fault::malformed("a plane names a file that is not of the set").at(Path::new("")));
        };
        if let Some(file) = slot.get() {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(TiffFile::open(path, &self.limits, &self.counters)?);
        if self.files.len() <= KEPT_OPEN {
            return Ok(Arc::clone(slot.get_or_init(|| file)));
        }
        Ok(file)
    }
}
