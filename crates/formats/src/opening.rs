//! Opening image files: recognizing their format, and reading their metadata.

use crate::{
    cellpose, czi,
    error::{Fault, FormatError},
    file_format::{FileFormat, StoredCompression},
    hdf5,
    image::{Data, Image, squeezed},
    lif,
    limits::Limits,
    meta::{ByteOrder, Channel, ImageMeta, Level},
    metaimage, mrc, nd2, nifti,
    npy::{self, Npy},
    nrrd, numbered, olympus, ome_zarr, raster,
    reader::{Opened, check_shape},
    refused, roi,
    source::{Counters, Source},
    tiff::{
        file::{FileSet, TiffFile},
        ifd::looks_like_tiff,
        ome, orientation,
        page::{Layout, Page},
        read::Stack,
        sample_axis::SamplesAlong,
        series::{self, OpenedSeries, Series},
    },
};
use cytoscope_volume::{Array, Axes, Axis, VolumeError, VoxelSize};
use std::{path::Path, sync::Arc};

/// Options for opening a file.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Index of the image to open, if the file holds several. In an OME-TIFF set, 0 is the image that the opened file belongs
    /// to, followed by the others in their order.
    pub series: usize,
    /// Axes that replace the axes stated in the file: one of T, Z, C for all planes (such as `TYX`), or one letter for
    /// each leading axis of the series in file order. For `.npy` and datasets of HDF5, one letter for each axis of the array.
    pub axes: Option<Axes>,
    /// Whether to open a TIFF, PNG or JPEG file alone, even if it is a slice of a numbered series. It is also opened alone if
    /// `axes` has none of T, Z, C. A folder still stands for the whole series in it.
    pub single_file: bool,
    /// Extents along Z, Y, X of the stack that regions of interest were drawn on; without it, the labels are as large as
    /// the regions need.
    pub shape_zyx: Option<[usize; 3]>,
    /// Number of time points of that stack; without it or if the regions state more, as many as these state.
    pub times: Option<usize>,
    /// Limits on what the file may contain.
    pub limits: Limits,
}

impl OpenOptions {
    /// Whether a file is opened alone, even if it is a slice of a numbered series.
    pub(crate) fn opens_alone(&self) -> bool {
        let is_of_plane = |axis| matches!(axis, Axis::Y | Axis::X | Axis::S);
        self.single_file || self.axes.as_ref().is_some_and(|axes| axes.iter().all(is_of_plane))
    }
}

/// Opens an image. The format is recognized from the content, not from the extension.
///
/// Only headers are read. A multi-file OME-TIFF set can be opened from any of its files or from its companion file.
/// OME-Zarr is opened by the path of its folder, of its metadata (`zarr.json`, `.zattrs`), or of one zip file
/// (`.zarr.zip`, `.ozx`). A numbered series of PNG, JPEG or TIFF files of one page each is opened from any of its
/// files, or from its folder if that contains no other series.
///
/// # Errors
/// [`FormatError`] if the file cannot be read, has an unsupported format, violates its format, exceeds a limit, or does
/// not have the requested series or axes.
pub fn open(path: &Path, options: &OpenOptions) -> Result<Image, FormatError> {
    let counters = Arc::<Counters>::default();
    if let Some(root) = ome_zarr::containing_zarr_folder(path) {
        let (meta, data) = ome_zarr::open(&root, options, Arc::clone(&counters))?;
        let (data, limits) = (Data::OmeZarr(Box::new(data)), options.limits.clone());
        return Ok(Image::new(meta, data, limits, counters));
    }
    if path.is_dir()
        && let Some(first) = numbered::only_series_in_folder(path)?
    {
        return open(&first, &OpenOptions { single_file: false, ..options.clone() });
    }
    if let Some(error) = refused::folder(path) {
        return Err(error);
    }
    let source = Source::open(path, Arc::clone(&counters)).map_err(|f| f.at(path))?;
    let mut head = [0u8; 512];
    let have = source.len().min(512) as usize;
    let head = head.get_mut(..have).unwrap_or_default();
    source.read_at(0, head).map_err(|f| f.at(path))?;
    open_source(path, source, head, options, counters)
}

/// Opens an image from memory, as [`open`] opens a file. Sets of several files cannot be opened from memory.
///
/// # Errors
/// Same as [`open`].
pub fn open_bytes(bytes: Vec<u8>, options: &OpenOptions) -> Result<Image, FormatError> {
    let head: Vec<u8> = bytes.iter().take(512).copied().collect();
    open_source(Path::new("<memory>"), Source::memory(bytes), &head, options, Arc::default())
}

/// Returns an image of samples in memory, with any of the axes T, Z, C, Y, X, S; `name` stands for its path in messages.
/// It belongs to no file.
///
/// # Errors
/// [`FormatError`] if the array has other axes.
pub fn image_in_memory(name: &Path, array: Array, voxel_size_um: VoxelSize) -> Result<Image, FormatError> {
    let bad = |e: VolumeError| FormatError::misused(name, e.to_string(), "give axes from T, Z, C, Y, X, S");
    let own = array.axes();
    let order = Axes::new(Axes::canonical().iter().filter(|a| own.contains(*a)).collect()).map_err(bad)?;
    let ordered = if order == *own { array } else { array.transpose(&order).map_err(bad)? };
    let size = |axis| order.position(axis).and_then(|i| ordered.shape().get(i)).copied().unwrap_or(1);
    let shape_full: Vec<usize> = Axes::canonical().iter().map(size).collect();
    let channels = vec![Channel::default(); size(Axis::C)];
    let data = Array::new(Axes::canonical(), shape_full.clone(), ordered.into_samples()).map_err(bad)?;
    let (axes, shape) = squeezed(&shape_full);
    let dtype = data.dtype();
    let meta = ImageMeta {
        path: name.to_owned(),
        format: FileFormat::Memory,
        axes,
        shape,
        axes_full: Axes::canonical(),
        levels: vec![Level { name: "0".into(), shape_full: shape_full.clone() }],
        channels,
        shape_full,
        dtype,
        voxel_size_um,
        origin_um: [0.0; 3],
        time_interval_secs: None,
        compression: StoredCompression::None,
        byte_order: ByteOrder::NATIVE,
        series: 0,
        series_count: 1,
        series_names: Vec::new(),
        bits_per_sample: dtype.size_bytes() as u32 * 8,
        display_range: None,
        missing_planes: 0,
        unread_pages: 0,
        read_as_slices: None,
        not_applied: Vec::new(),
        regions_outside: Vec::new(),
    };
    let (data, limits) = (Data::Memory(data), Limits::default());
    Ok(Image::new(meta, data, limits, Arc::default()))
}

fn open_source(
    path: &Path,
    source: Source,
    head: &[u8],
    options: &OpenOptions,
    counters: Arc<Counters>,
) -> Result<Image, FormatError> {
    let files = FileSet::new(options.limits.clone(), Arc::clone(&counters));
    if head.is_empty() {
        return Err(Fault::malformed("the file is empty").at(path));
    }
    if head.starts_with(npy::MAGIC) && !cytoscope_storage::npy::holds_objects(head) {
        return open_npy(path, source, options, counters);
    }
    if looks_like_tiff(head) {
        let file = TiffFile::walk(path, source, &options.limits).map_err(|f| f.at(path))?;
        return from_tiff(path, series::open(path, file, files, options)?, options, counters);
    }
    if crate::tiff::ome_xml::is_ome(&String::from_utf8_lossy(head)) {
        return from_tiff(path, ome::open_companion(path, files, options)?, options, counters);
    }
    if olympus::looks_like_olympus(head, path) {
        return from_tiff(path, olympus::open(path, source, head, files, options)?, options, counters);
    }
    if metaimage::looks_like_metaimage(head) {
        let opened = metaimage::open(path, source, options, &counters).map_err(|f| f.at(path))?;
        return Ok(from_opened(path, opened, options, counters));
    }
    if hdf5::looks_like_hdf5(head) {
        let opened = hdf5::open(path, source, head, options, &counters).map_err(|f| f.at(path))?;
        return Ok(from_opened(path, opened, options, counters));
    }
    if raster::looks_like_raster(head) {
        let opened = raster::open(path, source, options, &counters)?;
        return Ok(from_opened(path, opened, options, counters));
    }
    if head.starts_with(roi::ZIP)
        && let Some((meta, data)) = ome_zarr::open_zip(path, &source, options)?
    {
        let (data, limits) = (Data::OmeZarr(Box::new(data)), options.limits.clone());
        return Ok(Image::new(meta, data, limits, counters));
    }
    match open_other(source, head, options).map_err(|f| f.at(path))? {
        Some(opened) => Ok(from_opened(path, opened, options, counters)),
        None => Err(refused::unknown(path)),
    }
}

/// Opens a file of a format other than TIFF and NPY; `None` if its first bytes are those of no known format.
fn open_other(source: Source, head: &[u8], options: &OpenOptions) -> Result<Option<Opened>, Fault> {
    if head.starts_with(npy::MAGIC) {
        return cellpose::open(source, head, options).map(Some);
    }
    if nifti::looks_like_nifti(head) || head.starts_with(nifti::GZIP) {
        return nifti::open(source, head, options).map(Some);
    }
    if nrrd::looks_like_nrrd(head) {
        return nrrd::open(source, options).map(Some);
    }
    if mrc::looks_like_mrc(head) {
        return mrc::open(source, options).map(Some);
    }
    if head.starts_with(czi::MAGIC) {
        return czi::open(source, options).map(Some);
    }
    if head.starts_with(nd2::MAGIC) {
        return nd2::open(source, options).map(Some);
    }
    if lif::looks_like_lif(head) {
        return lif::open(source, options).map(Some);
    }
    if head.starts_with(nd2::JPEG_2000) {
        return Err(Fault::unsupported("JPEG 2000 files, such as old Nikon ND2 files, are not supported", nd2::EXPORT));
    }
    if let Some(fault) = refused::by_content(head) {
        return Err(fault);
    }
    if head.starts_with(roi::MAGIC) || roi::is_set(head) {
        return roi::open(source, head, options).map(Some);
    }
    Ok(None)
}

fn from_opened(path: &Path, opened: Opened, options: &OpenOptions, counters: Arc<Counters>) -> Image {
    let shape_full = opened.shape_full.to_vec();
    let (axes, shape) = squeezed(&shape_full);
    let mut channels = opened.channels;
    channels.resize(opened.shape_full[2], Channel::default());
    let shapes = std::iter::once(opened.shape_full).chain(opened.lower_levels);
    let level = |(i, shape): (usize, [usize; 6])| Level { name: i.to_string(), shape_full: shape.to_vec() };
    let levels = shapes.enumerate().map(level).collect();
    let meta = ImageMeta {
        path: path.to_owned(),
        format: opened.format,
        axes,
        shape,
        axes_full: Axes::canonical(),
        levels,
        channels,
        shape_full,
        dtype: opened.dtype,
        voxel_size_um: opened.voxel_size_um,
        origin_um: [0.0; 3],
        time_interval_secs: opened.time_interval_secs,
        compression: opened.compression,
        byte_order: opened.byte_order,
        series: options.series,
        series_count: opened.series_count,
        series_names: opened.series_names,
        bits_per_sample: opened.bits_per_sample,
        display_range: None,
        missing_planes: opened.missing_planes,
        unread_pages: opened.unread_pages,
        read_as_slices: None,
        not_applied: opened.not_applied,
        regions_outside: opened.regions_outside,
    };
    let (data, limits) = (Data::Other(opened.pixels), options.limits.clone());
    Image::new(meta, data, limits, counters)
}

fn open_npy(path: &Path, source: Source, options: &OpenOptions, counters: Arc<Counters>) -> Result<Image, FormatError> {
    let npy = Npy::open(source, &options.limits, options.axes.as_ref()).map_err(|f| f.at(path))?;
    if options.series != 0 {
        return Err(FormatError::misused(
            path,
            format!("there is no series {}", options.series),
            "an .npy file has only series 0",
        ));
    }
    let shape_full = npy.layout.shape_full.to_vec();
    let (axes, shape) = squeezed(&shape_full);
    let guess = || {
        let shape_full = &npy.layout.shape_full;
        npy::color_axis_note(shape_full).or_else(|| npy::guessed_axes_note(npy.rank, shape_full))
    };
    let read_as_slices = if options.axes.is_none() { guess() } else { None };
    let meta = ImageMeta {
        path: path.to_owned(),
        format: FileFormat::Npy,
        axes,
        shape,
        axes_full: Axes::canonical(),
        levels: vec![Level { name: "0".into(), shape_full: shape_full.clone() }],
        channels: vec![Channel::default(); npy.layout.shape_full[2]],
        shape_full,
        dtype: npy.layout.dtype,
        voxel_size_um: VoxelSize::default(),
        origin_um: [0.0; 3],
        time_interval_secs: None,
        compression: StoredCompression::None,
        byte_order: npy.layout.order,
        series: 0,
        series_count: 1,
        series_names: Vec::new(),
        bits_per_sample: npy.layout.dtype.size_bytes() as u32 * 8,
        display_range: None,
        missing_planes: 0,
        unread_pages: 0,
        read_as_slices,
        not_applied: Vec::new(),
        regions_outside: Vec::new(),
    };
    Ok(Image::new(meta, Data::Npy(npy), options.limits.clone(), counters))
}

fn from_tiff(
    path: &Path,
    opened: OpenedSeries,
    options: &OpenOptions,
    counters: Arc<Counters>,
) -> Result<Image, FormatError> {
    let OpenedSeries { series, files, count, names } = opened;
    let Some(first) = series.planes.iter().flatten().next() else {
        return Err(Fault::malformed("the image has no planes").at(path));
    };
    let file = files.get(first.file)?;
    let Some(Some(page)) = file.pages.get(first.page as usize) else {
        return Err(Fault::malformed("the first plane of the image is not in the file").at(&file.path));
    };
    let layouts = level_layouts(&series, &file, page)?;
    let tzc = series.tzc();
    let stored_shape = [tzc[0], tzc[1], tzc[2], page.layout.height, page.layout.width, page.layout.samples];
    check_shape(&stored_shape, page.layout.dtype, &options.limits).map_err(|f| f.at(&file.path))?;
    let samples_axis = series.samples_axis.filter(|_| page.layout.samples > 1);
    let samples_axis = samples_axis.and_then(|axis| Axis::CANONICAL.iter().position(|known| *known == axis));
    let full = |l: &Layout| {
        let mut shape = vec![tzc[0], tzc[1], tzc[2], l.height, l.width, l.samples];
        if let Some(axis) = samples_axis {
            shape.swap(axis, 5);
        }
        shape
    };
    let levels: Vec<Level> =
        layouts.iter().enumerate().map(|(i, l)| Level { name: i.to_string(), shape_full: full(l) }).collect();
    let layout = &page.layout;
    let shape_full = full(layout);
    let (axes, shape) = squeezed(&shape_full);
    let mut channels = series.channels.clone();
    channels.resize(shape_full.get(2).copied().unwrap_or(1), Channel::default());
    let planes = series.planes_tzc();
    // A single plane, perhaps taken from a stack together with its description, is a slice in any case.
    let read_as_slices = series.read_as_slices.clone().filter(|_| planes.len() > 1);
    let mut not_applied = series.not_applied.clone();
    not_applied.extend(series.read_as_color.clone());
    not_applied.extend(orientation::note(&file));
    let meta = ImageMeta {
        path: path.to_owned(),
        format: series.format,
        axes,
        shape,
        axes_full: Axes::canonical(),
        shape_full,
        dtype: layout.dtype,
        voxel_size_um: series.voxel_size_um,
        origin_um: series.origin_um,
        time_interval_secs: series.time_interval_secs,
        channels,
        compression: layout.codec.compression(),
        byte_order: file.container.order,
        levels,
        series: options.series,
        series_count: count,
        series_names: names,
        bits_per_sample: series.valid_bits.map_or(layout.bits, |bits| bits.min(layout.bits)),
        display_range: series.display_range,
        missing_planes: planes.iter().filter(|p| p.is_none()).count(),
        unread_pages: file.pages.iter().filter(|p| p.is_none()).count() + series.unread_pages,
        read_as_slices,
        not_applied,
        regions_outside: Vec::new(),
    };
    if let Some(why) = &meta.read_as_slices {
        tracing::warn!("{}: {why}", path.display());
    }
    let stack = Stack { files, planes, levels: layouts, level_pages: series.level_pages.clone(), tzc };
    let data = match samples_axis {
        Some(axis) => Data::Other(Box::new(SamplesAlong { stack, axis })),
        None => Data::Tiff(stack),
    };
    Ok(Image::new(meta, data, options.limits.clone(), counters))
}

/// The layouts of the levels of an image, whose first page in `file` is `page`.
fn level_layouts(series: &Series, file: &TiffFile, page: &Page) -> Result<Vec<Arc<Layout>>, FormatError> {
    let mut layouts = vec![Arc::clone(&page.layout)];
    if series.level_pages.is_empty() {
        layouts.extend(file.sub_levels(page).map_err(|f| f.at(&file.path))?.into_iter().map(|p| p.layout));
    } else {
        let pages = series.level_pages.iter().filter_map(|index| file.pages.get(*index as usize)?.as_ref());
        layouts.extend(pages.map(|page| Arc::clone(&page.layout)));
    }
    Ok(layouts)
}
