//! OME-TIFF: single files, sets of files, and companion files.

use super::{
    file::{FileSet, TiffFile},
    ome_xml::{self, Document, OmeImage},
    series::{self, Opened, PlaneRef, Series},
};
use crate::{
    error::{DAMAGED, Fault, FormatError},
    image::OpenOptions,
    limits::Limits,
    source::{Counters, not_opened},
};
use cytoscope_storage::read::open_regular;
use cytoscope_volume::Axis;
use std::{
    collections::HashMap,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

/// Opens a set from one of its TIFF files and the document in it.
pub(crate) fn open(
    path: &Path,
    file: TiffFile,
    document: Document,
    files: FileSet,
    options: &OpenOptions,
) -> Result<Opened, FormatError> {
    let Some(name) = document.metadata_file.clone() else {
        return build(path, Some(file), document, files, options);
    };
    // This file only has pixels: the metadata are in another one.
    let holder = sibling(path, &name)?;
    if is_text(&holder)? {
        return open_companion(&holder, files, options);
    }
    let counters = Arc::<Counters>::default();
    let master = TiffFile::open(&holder, files.limits(), &counters)?;
    let description = master.description().map_err(|f| f.at(&holder))?.unwrap_or_default();
    let document = ome_xml::parse(&description).map_err(|f| f.at(&holder))?;
    if document.metadata_file.is_some() || document.images.is_empty() {
        return Err(Fault::malformed("it is named as the metadata file of a set and has no metadata").at(&holder));
    }
    build(&holder, Some(master), document, files, options)
}

/// Opens a set from its companion file.
pub(crate) fn open_companion(path: &Path, files: FileSet, options: &OpenOptions) -> Result<Opened, FormatError> {
    let xml = read_text(path, files.limits())?;
    let document = ome_xml::parse(&xml).map_err(|f| f.at(path))?;
    build(path, None, document, files, options)
}

fn read_text(path: &Path, limits: &Limits) -> Result<String, FormatError> {
    use std::io::Read;
    let file = open_regular(path).map_err(|e| not_opened(e).at(path))?;
    let len = file.metadata().map_err(|e| FormatError::io(path, "opening", e))?.len();
    if len > limits.max_metadata_bytes {
        return Err(
            Fault::over("the size of the OME-XML", len, "max_metadata_bytes", limits.max_metadata_bytes).at(path)
        );
    }
    let mut bytes = Vec::new();
    // The file may grow while it is read.
    file.take(len).read_to_end(&mut bytes).map_err(|e| FormatError::io(path, "reading", e))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn is_text(path: &Path) -> Result<bool, FormatError> {
    use std::io::Read;
    let mut head = [0u8; 4];
    let mut file = open_regular(path).map_err(|e| not_opened(e).at(path))?;
    let n = file.read(&mut head).map_err(|e| FormatError::io(path, "reading", e))?;
    Ok(!super::ifd::looks_like_tiff(head.get(..n).unwrap_or_default()))
}

/// A file named by the metadata: beside this one or below, never elsewhere.
fn sibling(path: &Path, name: &str) -> Result<PathBuf, FormatError> {
    let relative = Path::new(name);
    let inside =
        !name.is_empty() && relative.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
    if !inside {
        return Err(FormatError::Malformed {
            file: path.to_owned(),
            met: format!("its OME-XML names the file '{name}', which is not beside it"),
            next: "put the files of the set into one folder and export the metadata again".into(),
        });
    }
    let full = path.parent().unwrap_or(Path::new("")).join(relative);
    if !full.is_file() {
        return Err(FormatError::Malformed {
            file: path.to_owned(),
            met: format!("its OME-XML names the file '{name}', which is missing"),
            next: "put all the files of the set into one folder, under their own names".into(),
        });
    }
    Ok(full)
}

fn build(
    path: &Path,
    file: Option<TiffFile>,
    document: Document,
    mut files: FileSet,
    options: &OpenOptions,
) -> Result<Opened, FormatError> {
    let count = document.images.len();
    let Some(image) = document.images.get(options.series) else {
        if count == 0 {
            return Err(Fault::malformed("its OME-XML has no image").at(path));
        }
        return Err(FormatError::misused(
            path,
            format!("there is no series {} among its {count}", options.series),
            format!("choose one of 0 to {}", count - 1),
        ));
    };
    let own = file.map(|f| files.add_open(f));
    // Paths of the set, and the names the document uses for them: a name is looked up on disk once.
    let mut paths: HashMap<PathBuf, u32> = own.map(|own| (path.to_owned(), own)).into_iter().collect();
    let mut names: HashMap<String, u32> = HashMap::new();
    let first_name = image.tiff_data.first().and_then(|d| d.file_name.as_ref());
    let one_name = image.tiff_data.iter().all(|d| d.file_name.as_ref() == first_name);
    let mut resolve = |files: &mut FileSet, data: &ome_xml::TiffData| -> Result<u32, FormatError> {
        let by_uuid = data.uuid.is_some() && data.uuid == document.uuid;
        let (name, own) = match (&data.file_name, own) {
            (None, Some(own)) => return Ok(own),
            (Some(_), Some(own)) if by_uuid => return Ok(own),
            (Some(name), own) => (name, own),
            (None, None) => return Err(Fault::malformed("its planes name no file").at(path)),
        };
        if let Some(index) = names.get(name.as_str()) {
            return Ok(*index);
        }
        let full = match (sibling(path, name), own) {
            // A set of one file that was renamed: there is nothing else it could mean.
            (Err(_), Some(own)) if one_name => {
                names.insert(name.clone(), own);
                return Ok(own);
            }
            (full, _) => full?,
        };
        let index = match paths.get(&full) {
            Some(index) => *index,
            None if paths.len() as u64 >= files.limits().max_set_files => {
                let (count, limit) = (paths.len() as u64 + 1, files.limits().max_set_files);
                return Err(Fault::over("the number of files of the set", count, "max_set_files", limit).at(path));
            }
            None => files.add(full.clone()),
        };
        paths.insert(full, index);
        names.insert(name.clone(), index);
        Ok(index)
    };
    // Samples of a pixel count as channels in SizeC; the first file says how many a page holds.
    let first_file = match image.tiff_data.first() {
        Some(data) => resolve(&mut files, data)?,
        None => own.ok_or_else(|| Fault::malformed("its planes name no file").at(path))?,
    };
    let first = files.get(first_file)?;
    let first_ifd = image.tiff_data.first().and_then(|d| d.ifd).unwrap_or(0);
    let page = page_of(&first, first_ifd)?;
    let samples = page.layout.samples;
    if (page.layout.width, page.layout.height) != (image.size_x, image.size_y) || image.size_c % samples != 0 {
        return Err(FormatError::Malformed {
            file: path.to_owned(),
            met: format!(
                "its OME-XML announces planes of {}x{} with {} channels and its pages are {}x{} with {samples} samples",
                image.size_x, image.size_y, image.size_c, page.layout.width, page.layout.height
            ),
            next: DAMAGED.into(),
        });
    }
    let sizes = Sizes::new(image, samples, files.limits()).map_err(|f| f.at(path))?;
    let mut planes = vec![None; sizes.total];
    if image.tiff_data.is_empty() {
        fill(&mut planes, &sizes, 0, first_file, 0, first.chain_len);
    }
    let mut lengths: HashMap<u32, usize> = HashMap::new();
    let mut placed = 0usize;
    for data in &image.tiff_data {
        let index = resolve(&mut files, data)?;
        let start = sizes
            .index(data.first_t, data.first_z, data.first_c / samples)
            .ok_or_else(|| Fault::malformed("its OME-XML places a plane outside the image").at(path))?;
        let how_many = match (data.plane_count, data.ifd) {
            (Some(n), _) => n,
            (None, Some(_)) => 1,
            (None, None) => match lengths.get(&index) {
                Some(length) => *length,
                None => *lengths.entry(index).or_insert(files.get(index)?.chain_len),
            },
        };
        placed = placed.saturating_add(how_many.clamp(1, sizes.total.saturating_sub(start).max(1)));
        if placed > sizes.total.saturating_mul(MAX_PLACED) {
            let met = format!("its TiffData place planes {placed} times in an image of {} planes", sizes.total);
            return Err(Fault::malformed(met).at(path));
        }
        fill(&mut planes, &sizes, start, index, data.ifd.unwrap_or(0), how_many);
    }
    check_sharing(&planes).map_err(|f| f.at(path))?;
    let mut channels: Vec<_> = image.channels.clone();
    channels.truncate(sizes.c);
    let mut series = Series {
        format: "ome-tiff",
        dims: sizes.dims.to_vec(),
        planes,
        voxel_size_um: image.voxel_size_um,
        time_interval_secs: image.time_interval_secs,
        channels,
        display_range: series::stored_range(&first),
    };
    if let Some(axes) = &options.axes {
        series::apply_axes(path, &mut series, axes, &first)?;
    }
    Ok(Opened { series, files, count })
}

fn page_of(file: &TiffFile, ifd: usize) -> Result<&super::page::Page, FormatError> {
    match file.pages.get(..file.chain_len).and_then(|p| p.get(ifd)) {
        Some(Some(page)) => Ok(page),
        Some(None) => {
            Err(Fault::unsupported("a plane is of a kind that is not read", crate::error::RESAVE).at(&file.path))
        }
        None => {
            let met = format!("its OME-XML names page {ifd} and it has {}", file.chain_len);
            Err(Fault::malformed(met).at(&file.path))
        }
    }
}

/// Times an image's planes may be placed by its `TiffData`; sound ones place each once.
const MAX_PLACED: usize = 4;
/// Planes that one page may stand for: a page is a plane, and a blank one may be used for a few that were lost.
const MAX_PLANES_OF_PAGE: usize = 64;

/// Refuses images most of whose planes are the same page: a small file could claim any size so.
fn check_sharing(planes: &[Option<PlaneRef>]) -> Result<(), Fault> {
    let mut used: Vec<(u32, u32)> = planes.iter().flatten().map(|p| (p.file, p.page)).collect();
    used.sort_unstable();
    let most = used.chunk_by(|a, b| a == b).map(<[_]>::len).max().unwrap_or(0);
    if most > MAX_PLANES_OF_PAGE {
        let what = "the number of planes that its OME-XML places on one page";
        return Err(Fault::over(what, most as u64, "MAX_PLANES_OF_PAGE", MAX_PLANES_OF_PAGE as u64));
    }
    Ok(())
}

fn fill(planes: &mut [Option<PlaneRef>], sizes: &Sizes, start: usize, file: u32, ifd: usize, how_many: usize) {
    let room = sizes.total.saturating_sub(start);
    for k in 0..how_many.min(room) {
        let (Ok(page), Some(slot)) = (u32::try_from(ifd.saturating_add(k)), planes.get_mut(start + k)) else { return };
        *slot = Some(PlaneRef { file, page, slice: 0 });
    }
}

/// Extents of the leading axes in the order in which planes follow each other.
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
            return Err(Fault::over("the number of planes", total as u64, "max_pages", limits.max_pages));
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
