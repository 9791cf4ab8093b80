//! OME-TIFF: single files, sets of files, and companion files.

use super::{
    file::{FileSet, TiffFile},
    ome_xml::{self, Document, OmeImage},
    series::{self, OpenedSeries, PlaneRef, Series},
};
use crate::{
    error::{DAMAGED, Fault, FormatError, OPENING, Remedy, choose_index},
    file_format::FileFormat,
    limits::Limits,
    names::{FolderNames, composed},
    opening::OpenOptions,
    source::{Counters, open_fault},
};
use cytoscope_storage::read::open_regular;
use cytoscope_storage::{by_count, counted};
use cytoscope_volume::{Axis, VoxelSize};
use std::{
    collections::{BTreeSet, HashMap},
    path::{Component, Path, PathBuf},
    sync::Arc,
};

/// Opens a set from one of its TIFF files and the OME-XML document in it. Series 0 is the image that the file belongs to.
pub(crate) fn open(
    path: &Path,
    file: TiffFile,
    document: Document,
    files: FileSet,
    options: &OpenOptions,
) -> Result<OpenedSeries, FormatError> {
    let Some(name) = document.metadata_file.clone() else {
        let own = first_image_in(&document, path, path, true);
        return build(path, Some(file), document, own, files, options);
    };
    // This file contains only pixels: the metadata are in another file.
    let holder = sibling(path, &name, &mut FolderNames::default())?;
    let (master, document) = read_holder(&holder, files.limits())?;
    let own = first_image_in(&document, &holder, path, false);
    build(&holder, master, document, own, files, options)
}

/// Reads the metadata of a set from the file that holds them: a TIFF file, which is returned, or a text.
fn read_holder(holder: &Path, limits: &Limits) -> Result<(Option<TiffFile>, Document), FormatError> {
    if is_text(holder)? {
        return Ok((None, read_companion(holder, limits)?));
    }
    let master = TiffFile::open(holder, limits, &Arc::<Counters>::default())?;
    let description = master.description().map_err(|f| f.at(holder))?.unwrap_or_default();
    let document = ome_xml::parse(&description).map_err(|f| f.at(holder))?;
    if document.metadata_file.is_some() || document.images.is_empty() {
        return Err(
            Fault::malformed("another file refers to it for the metadata of the set, but it has none").at(holder)
        );
    }
    Ok((Some(master), document))
}

/// Returns the files of all images of an OME-TIFF set, of which one file is given; only the one that holds the metadata is
/// opened. Files that the metadata name but that are missing are left out.
///
/// # Errors
/// [`FormatError`] if the metadata cannot be read.
pub fn ome_tiff_files(path: &Path, limits: &Limits) -> Result<BTreeSet<PathBuf>, FormatError> {
    let (mut holder, mut names) = (path.to_owned(), FolderNames::default());
    let (mut file, mut document) = if is_text(path)? {
        (None, read_companion(path, limits)?)
    } else {
        let file = TiffFile::open(path, limits, &Arc::<Counters>::default())?;
        let description = file.description().map_err(|f| f.at(path))?.unwrap_or_default();
        (Some(file), ome_xml::parse(&description).map_err(|f| f.at(path))?)
    };
    if let Some(name) = &document.metadata_file {
        holder = sibling(path, name, &mut names)?;
        (file, document) = read_holder(&holder, limits)?;
    }
    let is_in_holder = |data: &ome_xml::TiffData| file.is_some() && data.uuid.is_some() && data.uuid == document.uuid;
    let planes = document.images.iter().flat_map(|image| &image.tiff_data).filter(|data| !is_in_holder(data));
    let named: BTreeSet<&str> = planes.filter_map(|data| data.file_name.as_deref()).collect();
    let mut found: BTreeSet<PathBuf> =
        named.into_iter().filter_map(|name| sibling(&holder, name, &mut names).ok()).collect();
    found.extend([path.to_owned(), holder]);
    Ok(found)
}

/// Returns the first image with planes in the file that was opened: its metadata are in the file `holder`, which is the file
/// itself if `is_holder`. The first image of all if there is none.
fn first_image_in(document: &Document, holder: &Path, opened: &Path, is_holder: bool) -> usize {
    let folder = holder.parent().unwrap_or(Path::new(""));
    // The disk may have the name in another Unicode form than the document.
    let text = |path: &Path| composed(&path.to_string_lossy());
    let opened_text = text(opened);
    let is_opened = |name: &str| {
        let path = folder.join(name);
        path == opened || (!name.is_ascii() && text(&path) == opened_text)
    };
    let is_in = |data: &ome_xml::TiffData| match &data.file_name {
        _ if is_holder && data.uuid.is_some() && data.uuid == document.uuid => true,
        Some(name) => is_opened(name),
        None => is_holder && data.uuid.is_none(),
    };
    let has_planes = |image: &OmeImage| (is_holder && image.tiff_data.is_empty()) || image.tiff_data.iter().any(is_in);
    document.images.iter().position(has_planes).unwrap_or(0)
}

/// Returns the image of a series: that of the opened file comes first, then the others in their order.
fn series_image(series: usize, own: usize) -> usize {
    match series {
        0 => own,
        n if n <= own => n - 1,
        n => n,
    }
}

/// Opens a set from its companion file.
pub(crate) fn open_companion(path: &Path, files: FileSet, options: &OpenOptions) -> Result<OpenedSeries, FormatError> {
    let document = read_companion(path, files.limits())?;
    build(path, None, document, 0, files, options)
}

fn read_companion(path: &Path, limits: &Limits) -> Result<Document, FormatError> {
    ome_xml::parse(&read_text(path, limits)?).map_err(|f| f.at(path))
}

fn read_text(path: &Path, limits: &Limits) -> Result<String, FormatError> {
    use std::io::Read;
    let file = open_regular(path).map_err(|e| open_fault(e).at(path))?;
    let len = file.metadata().map_err(|e| FormatError::io(path, OPENING, e))?.len();
    if len > limits.max_metadata_bytes {
        return Err(Fault::over(
            "the size of the OME-XML",
            len,
            "max_metadata_bytes",
            limits.max_metadata_bytes,
            Remedy::Split,
        )
        .at(path));
    }
    let mut bytes = Vec::new();
    // The file may grow while it is read.
    file.take(len).read_to_end(&mut bytes).map_err(|e| FormatError::io(path, "reading", e))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn is_text(path: &Path) -> Result<bool, FormatError> {
    use std::io::Read;
    let mut head = [0u8; 4];
    let mut file = open_regular(path).map_err(|e| open_fault(e).at(path))?;
    let n = file.read(&mut head).map_err(|e| FormatError::io(path, "reading", e))?;
    Ok(!super::ifd::looks_like_tiff(head.get(..n).unwrap_or_default()))
}

/// The path of a file that the metadata refer to: in the same folder or below it, never elsewhere. The disk may have its name in
/// another Unicode form. It may be a link to a file elsewhere, as the stack that the user opens may: programs that manage data
/// keep the files of a set in a store and link to them, each under its own name.
fn sibling(path: &Path, name: &str, names: &mut FolderNames) -> Result<PathBuf, FormatError> {
    let relative = Path::new(name);
    let inside =
        !name.is_empty() && relative.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
    if !inside {
        return Err(FormatError::Malformed {
            file: path.to_owned(),
            problem: format!("its OME-XML refers to the file '{name}', which is not in the same folder"),
            next_step: "put the files of the set into one folder and export the metadata again".into(),
        });
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    let full = folder.join(names.find(folder, relative).as_deref().unwrap_or(relative));
    if !full.is_file() {
        return Err(FormatError::Malformed {
            file: path.to_owned(),
            problem: format!("its OME-XML refers to the file '{name}', which is missing"),
            next_step: "put all files of the set into one folder, with their original names".into(),
        });
    }
    Ok(full)
}

/// Opens an image of a set. `own` is the index of the image that the opened file belongs to: its series is 0.
fn build(
    path: &Path,
    file: Option<TiffFile>,
    document: Document,
    own: usize,
    mut files: FileSet,
    options: &OpenOptions,
) -> Result<OpenedSeries, FormatError> {
    let count = document.images.len();
    let name_of = |series| document.images.get(series_image(series, own)).map(|image| image.name.clone());
    let names: Vec<String> = (0..count).filter_map(name_of).collect();
    let index = series_image(options.series, own);
    let Some(image) = document.images.get(index) else {
        if count == 0 {
            return Err(Fault::malformed("its OME-XML has no images").at(path));
        }
        return Err(FormatError::misused(
            path,
            format!("there is no series {}: the file has {count}", options.series),
            choose_index(count),
        ));
    };
    let own = file.map(|f| files.add_open(f));
    let mut set = SetFiles::new(path, own, &document);
    // SizeC counts the samples of a pixel as channels; the first file determines how many samples a page has.
    let first_file = match image.tiff_data.first() {
        Some(data) => set.resolve(&mut files, data)?,
        None => own.ok_or_else(|| Fault::malformed("its planes refer to no file").at(path))?,
    };
    let first = files.get(first_file)?;
    let first_ifd = if document.images.iter().all(|image| image.tiff_data.is_empty()) {
        page_after(document.images.get(..index).unwrap_or_default(), &first)?
    } else {
        image.tiff_data.first().and_then(|d| d.ifd).unwrap_or(0)
    };
    let page = page_at(&first, first_ifd)?;
    let samples = page.layout.samples;
    if (page.layout.width, page.layout.height) != (image.size_x, image.size_y) || image.size_c % samples != 0 {
        return Err(FormatError::Malformed {
            file: path.to_owned(),
            problem: format!(
                "its OME-XML declares planes of {}x{} with {} channels, but its pages are {}x{} with {samples} samples",
                image.size_x, image.size_y, image.size_c, page.layout.width, page.layout.height
            ),
            next_step: DAMAGED.into(),
        });
    }
    let sizes = Sizes::new(image, samples, files.limits()).map_err(|f| f.at(path))?;
    let planes = assign_planes(image, &sizes, samples, &mut set, &mut files, (first_file, first_ifd))?;
    check_sharing(&planes).map_err(|f| f.at(path))?;
    let undescribed = match own {
        Some(own) => undescribed_pages(&document, &set, own, files.get(own)?.as_ref(), files.limits()),
        None => 0,
    };
    let mut channels: Vec<_> = image.channels.clone();
    channels.truncate(sizes.c);
    let mut series = Series {
        format: FileFormat::OmeTiff,
        dims: sizes.dims.to_vec(),
        planes,
        voxel_size_um: voxel_size(image, &first, first_ifd),
        origin_um: image.origin_um,
        time_interval_secs: image.time_interval_secs(),
        channels,
        valid_bits: image.significant_bits,
        display_range: series::stored_range(&first),
        unread_pages: undescribed,
        not_applied: undescribed_note(undescribed).into_iter().collect(),
        ..Series::default()
    };
    if let Some(axes) = &options.axes {
        series::apply_axes(path, &mut series, axes, &first)?;
        // Slices may not be the planes that the document states.
        series.origin_um[0] = 0.0;
    }
    Ok(OpenedSeries { series, files, count, names })
}

/// Returns the voxel size of an image whose first plane is a page of a file. If its XML states no pixel size, the tags of the
/// first page do, which are those of its image.
fn voxel_size(image: &OmeImage, file: &TiffFile, page: usize) -> VoxelSize {
    let stated = image.voxel_size_um;
    if (stated.y, stated.x, page) != (None, None, 0) {
        return stated;
    }
    VoxelSize { z: stated.z, ..series::plain_resolution(file) }
}

/// The files that the planes of a set are in, by path and by the names that the document uses for them, so that each
/// name is looked up on disk once.
struct SetFiles<'a> {
    path: &'a Path,
    /// The file that was opened, if it is one of the set.
    own: Option<u32>,
    uuid: Option<&'a str>,
    /// Whether all planes of all images are in files of one name.
    one_name: bool,
    paths: HashMap<PathBuf, u32>,
    names: HashMap<String, u32>,
    /// Names in the folders of the set.
    on_disk: FolderNames,
}

impl<'a> SetFiles<'a> {
    fn new(path: &'a Path, own: Option<u32>, document: &'a Document) -> Self {
        let planes = document.images.iter().flat_map(|image| &image.tiff_data);
        let mut file_names = planes.map(|data| data.file_name.as_ref());
        let first_name = file_names.next().flatten();
        Self {
            path,
            own,
            uuid: document.uuid.as_deref(),
            one_name: file_names.all(|name| name == first_name),
            paths: own.map(|own| (path.to_owned(), own)).into_iter().collect(),
            names: HashMap::new(),
            on_disk: FolderNames::default(),
        }
    }

    /// Whether some planes are in the opened file, whose index is `own`, judging by the names that were looked up.
    fn is_in_opened(&self, data: &ome_xml::TiffData, own: u32) -> bool {
        match &data.file_name {
            None => true,
            Some(_) if data.uuid.is_some() && data.uuid.as_deref() == self.uuid => true,
            Some(name) => {
                let looked_up = self.names.get(name.as_str());
                looked_up == Some(&own) || self.path.file_name().is_some_and(|own_name| own_name == name.as_str())
            }
        }
    }

    /// Returns the index of the file that some planes are in.
    fn resolve(&mut self, files: &mut FileSet, data: &ome_xml::TiffData) -> Result<u32, FormatError> {
        let by_uuid = data.uuid.is_some() && data.uuid.as_deref() == self.uuid;
        let (name, own) = match (&data.file_name, self.own) {
            (None, Some(own)) => return Ok(own),
            (Some(_), Some(own)) if by_uuid => return Ok(own),
            (Some(name), own) => (name, own),
            (None, None) => return Err(Fault::malformed("its planes refer to no file").at(self.path)),
        };
        if let Some(index) = self.names.get(name.as_str()) {
            return Ok(*index);
        }
        let full = match (sibling(self.path, name, &mut self.on_disk), own) {
            // A set of a single file that was renamed: only this file can be meant.
            (Err(_), Some(own)) if self.one_name => {
                self.names.insert(name.clone(), own);
                return Ok(own);
            }
            (full, _) => full?,
        };
        let index = match self.paths.get(&full) {
            Some(index) => *index,
            None if self.paths.len() as u64 >= files.limits().max_set_files => {
                let (count, limit) = (self.paths.len() as u64 + 1, files.limits().max_set_files);
                return Err(Fault::over(
                    "the number of files of the set",
                    count,
                    "max_set_files",
                    limit,
                    Remedy::Split,
                )
                .at(self.path));
            }
            None => files.add(full.clone()),
        };
        self.paths.insert(full, index);
        self.names.insert(name.clone(), index);
        Ok(index)
    }
}

/// Returns the page after those of these images, which follow each other from the first page on: their document does not state
/// where their planes are.
fn page_after(images: &[OmeImage], file: &TiffFile) -> Result<usize, FormatError> {
    let mut page = 0usize;
    for image in images {
        let samples = page_at(file, page)?.layout.samples.max(1);
        let channels = (image.size_c / samples).max(1);
        page = page.saturating_add(image.size_z.saturating_mul(image.size_t).saturating_mul(channels));
    }
    Ok(page)
}

/// Returns the page of each plane, as the `TiffData` elements assign them; without any, in the order of the pages from `first`
/// on, a file and a page of it.
fn assign_planes(
    image: &OmeImage,
    sizes: &Sizes,
    samples: usize,
    set: &mut SetFiles<'_>,
    files: &mut FileSet,
    (first_file, first_ifd): (u32, usize),
) -> Result<Vec<Option<PlaneRef>>, FormatError> {
    let path = set.path;
    let mut planes = vec![None; sizes.total];
    if image.tiff_data.is_empty() {
        let pages = files.get(first_file)?.chain_len.saturating_sub(first_ifd);
        fill(&mut planes, sizes, 0, first_file, first_ifd, pages);
    }
    let mut lengths: HashMap<u32, usize> = HashMap::new();
    let mut assigned = 0usize;
    for data in &image.tiff_data {
        let index = set.resolve(files, data)?;
        let start = sizes
            .index(data.first_t, data.first_z, data.first_c / samples)
            .ok_or_else(|| Fault::malformed("its OME-XML has a plane outside the image").at(path))?;
        let how_many = match (data.plane_count, data.ifd) {
            (Some(n), _) => n,
            (None, Some(_)) => 1,
            (None, None) => match lengths.get(&index) {
                Some(length) => *length,
                None => *lengths.entry(index).or_insert(files.get(index)?.chain_len),
            },
        };
        assigned = assigned.saturating_add(how_many.clamp(1, sizes.total.saturating_sub(start).max(1)));
        if assigned > sizes.total.saturating_mul(MAX_ASSIGNMENTS) {
            let problem = format!(
                "its TiffData elements assign pages to planes {assigned} times, but the image has only {}",
                counted(sizes.total, "plane")
            );
            return Err(Fault::malformed(problem).at(path));
        }
        fill(&mut planes, sizes, start, index, data.ifd.unwrap_or(0), how_many);
    }
    Ok(planes)
}

/// Returns the number of pages of the opened file that can be planes, but that no image of its document contains.
fn undescribed_pages(document: &Document, set: &SetFiles<'_>, own: u32, file: &TiffFile, limits: &Limits) -> usize {
    let Some(Some(first)) = file.pages.first() else { return 0 };
    // By how much the number of elements that describe a page differs from that of the page before: a document may have many
    // elements, and each may describe all pages.
    let mut changes = vec![0i64; file.chain_len.saturating_add(1)];
    let mut describe = |from: usize, count: usize| {
        let end = from.saturating_add(count).min(file.chain_len);
        if let Some(change) = changes.get_mut(from.min(end)) {
            *change += 1;
        }
        if let Some(change) = changes.get_mut(end) {
            *change -= 1;
        }
    };
    let without_data = document.images.iter().filter(|image| image.tiff_data.is_empty()).count();
    // A file that only holds the metadata of a set may have a page that is not a plane.
    let mut has_planes = without_data == document.images.len();
    if has_planes {
        // If pages cannot be counted, opening their image says why.
        describe(0, page_after(&document.images, file).unwrap_or(usize::MAX));
    } else if without_data > 0 {
        return 0;
    }
    for (image, data) in document.images.iter().flat_map(|image| image.tiff_data.iter().map(move |data| (image, data)))
    {
        if !set.is_in_opened(data, own) {
            continue;
        }
        has_planes = true;
        let start = data.ifd.unwrap_or(0);
        let samples = page_at(file, start).map_or(1, |page| page.layout.samples);
        let planes = Sizes::new(image, samples, limits).map_or(usize::MAX, |sizes| sizes.total);
        let stated = data.plane_count.unwrap_or(if data.ifd.is_some() { 1 } else { file.chain_len });
        describe(start, stated.min(planes));
    }
    if !has_planes {
        return 0;
    }
    let is_plane = |page: &super::page::Page| page.layout.stacks_with(&first.layout);
    let described = changes.iter().take(file.chain_len).scan(0i64, |elements, change| {
        *elements += change;
        Some(*elements > 0)
    });
    let pages = file.pages.iter().zip(described);
    pages.filter(|(page, described)| matches!(page, Some(page) if is_plane(page)) && !*described).count()
}

/// Returns the sentence that pages are left out, because the document does not describe them.
fn undescribed_note(pages: usize) -> Option<String> {
    let are = by_count(
        pages,
        "is left out: the OME-XML does not describe it",
        "are left out: the OME-XML does not describe them",
    );
    (pages > 0).then(|| format!("{} of the file {are}", counted(pages, "page")))
}

fn page_at(file: &TiffFile, ifd: usize) -> Result<&super::page::Page, FormatError> {
    match file.pages.get(..file.chain_len).and_then(|p| p.get(ifd)) {
        Some(Some(page)) => Ok(page),
        Some(None) => {
            Err(Fault::unsupported("a plane has a format that is not supported", crate::error::RESAVE).at(&file.path))
        }
        None => {
            let pages = counted(file.chain_len, "page");
            let problem = format!("its OME-XML refers to page {ifd}, but the file has {pages}");
            Err(Fault::malformed(problem).at(&file.path))
        }
    }
}

/// How often the `TiffData` elements may assign a page to each plane on average; in a valid file once.
const MAX_ASSIGNMENTS: usize = 4;
/// Number of planes that one page may be used for. Normally one; a blank page may replace some lost planes.
const MAX_PLANES_OF_PAGE: usize = 64;

/// Refuses images that use one page for many planes, because a small file could then declare an image of any size.
fn check_sharing(planes: &[Option<PlaneRef>]) -> Result<(), Fault> {
    let mut used: Vec<(u32, u32)> = planes.iter().flatten().map(|p| (p.file, p.page)).collect();
    used.sort_unstable();
    let max_planes = used.chunk_by(|a, b| a == b).map(<[_]>::len).max().unwrap_or(0);
    if max_planes > MAX_PLANES_OF_PAGE {
        let what = "the number of planes that its OME-XML assigns to one page";
        return Err(Fault::over(
            what,
            max_planes as u64,
            "MAX_PLANES_OF_PAGE",
            MAX_PLANES_OF_PAGE as u64,
            Remedy::CopyAgain,
        ));
    }
    Ok(())
}

fn fill(planes: &mut [Option<PlaneRef>], sizes: &Sizes, start: usize, file: u32, ifd: usize, how_many: usize) {
    let remaining = sizes.total.saturating_sub(start);
    for k in 0..how_many.min(remaining) {
        let (Ok(page), Some(slot)) = (u32::try_from(ifd.saturating_add(k)), planes.get_mut(start + k)) else { return };
        *slot = Some(PlaneRef { file, page, slice: 0 });
    }
}

/// Extents of the leading axes (T, Z, C) in the order of the planes.
struct Sizes {
    dims: [(Axis, usize); 3],
    c: usize,
    total: usize,
}

impl Sizes {
    fn new(image: &OmeImage, samples: usize, limits: &Limits) -> Result<Self, Fault> {
        let c = (image.size_c / samples).max(1);
        let size = |axis: Axis| match axis {
            Axis::T => image.size_t,
            Axis::Z => image.size_z,
            _ => c,
        };
        let mut dims = [(Axis::T, 1), (Axis::C, 1), (Axis::Z, 1)];
        for (dim, axis) in dims.iter_mut().zip(&image.order) {
            *dim = (*axis, size(*axis));
        }
        let total = dims.iter().try_fold(1usize, |n, d| n.checked_mul(d.1)).unwrap_or(usize::MAX);
        if total as u64 > limits.max_pages {
            return Err(Fault::over(
                "the number of planes",
                total as u64,
                "max_pages",
                limits.max_pages,
                Remedy::Split,
            ));
        }
        Ok(Self { dims, c, total })
    }

    fn index(&self, t: usize, z: usize, c: usize) -> Option<usize> {
        self.dims.iter().try_fold(0usize, |at, (axis, n)| {
            let k = match axis {
                Axis::T => t,
                Axis::Z => z,
                _ => c,
            };
            (k < *n).then(|| at * n + k)
        })
    }
}
