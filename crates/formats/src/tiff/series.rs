//! Groups pages into images with axes: which page of which file is the plane at which T, Z, C.

use super::{
    file::{FileSet, TiffFile},
    fluoview,
    ifd::tag,
    imagej, lsm, ome, ome_xml,
    page::{Layout, Page, StackKey},
    pyramid, scanimage, shaped,
    slices::Members,
    stk,
};
use crate::{
    codec::Codec,
    error::{Fault, FormatError, RESAVE, Remedy, choose_index},
    file_format::FileFormat,
    meta::{Channel, INCH_UM, PRINTED_UM, positive},
    opening::OpenOptions,
};
use cytoscope_storage::counted;
use cytoscope_volume::{Axes, Axis, VoxelSize};
use std::{collections::HashMap, path::Path, sync::Arc};

/// Position of a plane: a page of a file and, for stacks with a single directory, the index of the plane within
/// the page's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlaneRef {
    /// Index in the [`FileSet`].
    pub file: u32,
    /// Index in [`TiffFile::pages`].
    pub page: u32,
    /// Index of the plane in the page's data; 0 if a page is one plane.
    pub slice: u32,
}

/// One image of a file or set.
#[derive(Debug, Default)]
pub(crate) struct Series {
    /// Format of the file.
    pub format: FileFormat,
    /// Leading axes (T, Z, C) and their extents in storage order, slowest first.
    pub dims: Vec<(Axis, usize)>,
    /// Planes in storage order; `None` for a plane that no file contains.
    pub planes: Vec<Option<PlaneRef>>,
    /// Distance between voxel centers along Z, Y, X in µm.
    pub voxel_size_um: VoxelSize,
    /// Position of the first voxel along Z, Y, X in µm.
    pub origin_um: [f64; 3],
    /// Time between time points in seconds.
    pub time_interval_secs: Option<f64>,
    /// Names and colors in the order of the C axis.
    pub channels: Vec<Channel>,
    /// Values shown as black and white.
    pub display_range: Option<(f64, f64)>,
    /// Bits of a sample that are used, if the file states fewer than are stored.
    pub valid_bits: Option<u32>,
    /// The axis T, Z or C that the samples of a pixel run along; `None` if they are the parts of a color. It is not one of
    /// `dims`.
    pub samples_axis: Option<Axis>,
    /// Number of pages that belong to no plane, such as flyback frames.
    pub unread_pages: usize,
    /// Why all pages are slices, as a sentence, if the file states axes that do not fit them.
    pub read_as_slices: Option<String>,
    /// Why the planes of a page are the parts of a color, as a sentence, if the file does not state it.
    pub read_as_color: Option<String>,
    /// What the file states that is not applied, as sentences.
    pub not_applied: Vec<String>,
    /// Lengths of the axes before Y and X in storage order, slowest first, if the file states several without their names.
    pub unnamed_lengths: Vec<usize>,
    /// Pages of the first file that are the lower levels of the only plane, largest first; empty if levels are SubIFDs.
    pub level_pages: Vec<u32>,
}

/// The opened image, its files, and the number of images in the file with their names, if it states any.
pub(crate) struct OpenedSeries {
    /// The opened image.
    pub series: Series,
    /// The files that its planes refer to.
    pub files: FileSet,
    /// Number of images in the file.
    pub count: usize,
    /// Name of each image; empty texts, or no list, where the file states none.
    pub names: Vec<String>,
}

/// Finds the images in a file and opens the requested one.
pub(crate) fn open(
    path: &Path,
    file: TiffFile,
    mut files: FileSet,
    options: &OpenOptions,
) -> Result<OpenedSeries, FormatError> {
    let description = file.description().map_err(|f| f.at(path))?.unwrap_or_default();
    if ome_xml::is_ome(&description) {
        match ome_xml::parse(&description) {
            Ok(document) => return ome::open(path, file, document, files, options),
            Err(fault) if options.axes.is_none() => return Err(fault.at(path)),
            // The given axes stand in for the damaged description.
            Err(_) => {}
        }
    }
    let all = images_without_ome(&file, &description).map_err(|f| f.at(path))?;
    let count = all.len();
    let alone = options.opens_alone() || !path.is_file();
    let members = if alone { None } else { Members::of(path, &file, &all, files.limits())? };
    let mut series = pick(path, all, options.series)?;
    if let Some(members) = &members {
        members.set_planes(&mut series);
    }
    if let Some(axes) = &options.axes {
        apply_axes(path, &mut series, axes, &file)?;
    }
    match members {
        Some(members) => members.add_to(&mut files, path, file),
        None => _ = files.add_open(file),
    }
    Ok(OpenedSeries { series, files, count, names: Vec::new() })
}

/// The images in a file that does not have OME-XML.
pub(super) fn images_without_ome(file: &TiffFile, description: &str) -> Result<Vec<Series>, Fault> {
    if lsm::is_lsm(file) {
        lsm_series(file)
    } else if stk::is_stk(file) {
        stk_series(file)
    } else if fluoview::is_fluoview(file) {
        fluoview_series(file)
    } else if let Some(settings) = scanimage::settings(file, description) {
        scanimage_series(file, &settings)
    } else if imagej::is_imagej(description) {
        imagej_series(file, description)
    } else {
        plain_series(file, description)
    }
}

/// Returns the series with an index.
pub(crate) fn pick(path: &Path, all: Vec<Series>, index: usize) -> Result<Series, FormatError> {
    let count = all.len();
    all.into_iter().nth(index).ok_or_else(|| {
        FormatError::misused(path, format!("there is no series {index}: the file has {count}"), choose_index(count))
    })
}

/// Largest number of different page shapes in one file.
const MAX_SHAPES: usize = 4096;

/// Pages of the same shape: the layout of the first one, and the indices of all.
pub(super) type Group = (Arc<Layout>, Vec<u32>);

/// Groups pages by shape, in the order in which the shapes first occur.
fn grouped(file: &TiffFile) -> Result<Vec<Group>, Fault> {
    let mut groups: Vec<Group> = Vec::new();
    let mut by_key: HashMap<StackKey, usize> = HashMap::new();
    for index in &file.reading_order {
        let Some(Some(page)) = file.pages.get(*index as usize) else { continue };
        let next = groups.len();
        let at = *by_key.entry(page.layout.stack_key()).or_insert(next);
        if let Some((_, pages)) = groups.get_mut(at) {
            pages.push(*index);
            continue;
        }
        if next >= MAX_SHAPES {
            let what = "the number of different page shapes";
            return Err(Fault::over(what, next as u64 + 1, "MAX_SHAPES", MAX_SHAPES as u64, Remedy::Split));
        }
        groups.push((Arc::clone(&page.layout), vec![*index]));
    }
    Ok(groups)
}

fn plain_series(file: &TiffFile, description: &str) -> Result<Vec<Series>, Fault> {
    let mut voxel_size_um = plain_resolution(file);
    let mut format = if file.container.big { FileFormat::BigTiff } else { FileFormat::Tiff };
    let is_slide = pyramid::is_aperio(description);
    if is_slide {
        format = FileFormat::Svs;
        let um = pyramid::aperio_pixel_um(description);
        voxel_size_um = VoxelSize { z: None, y: um, x: um };
    }
    let is_ndpi = pyramid::is_ndpi(file);
    if is_ndpi {
        format = FileFormat::Ndpi;
    }
    let groups = grouped(file)?;
    let layout = groups.first().map(|(layout, _)| Arc::clone(layout));
    let levels = if is_ndpi { pyramid::ndpi_levels(&groups) } else { pyramid::levels(&groups, is_slide) };
    let is_slide = is_slide || is_ndpi;
    let mut level_pages: Vec<u32> = levels.iter().filter_map(|i| groups.get(*i)?.1.first().copied()).collect();
    let mut all: Vec<Series> = groups
        .into_iter()
        .enumerate()
        .filter(|(i, _)| !levels.contains(i))
        .map(|(i, (_, pages))| Series {
            format,
            dims: vec![(Axis::Z, pages.len())],
            planes: pages.into_iter().map(|page| Some(PlaneRef { file: 0, page, slice: 0 })).collect(),
            // The pixel size of a slide is that of its full image, not of its label.
            voxel_size_um: if is_slide && i > 0 { VoxelSize::default() } else { voxel_size_um },
            display_range: stored_range(file),
            level_pages: if i == 0 { std::mem::take(&mut level_pages) } else { Vec::new() },
            ..Series::default()
        })
        .collect();
    if let (Some(layout), [only]) = (layout, all.as_mut_slice()) {
        if let (Some(count), [Some(first)]) = (shaped::truncated_planes(description, &layout), only.planes.as_slice())
            && ends_with_planes(file, &layout, count)
        {
            let (page, images) = (first.page, contiguous_images(file, &layout, count)?);
            only.planes = (0..images).map(|slice| Some(PlaneRef { file: 0, page, slice })).collect();
            only.dims = vec![(Axis::Z, only.planes.len())];
        }
        match shaped::stated(description) {
            Some(stated) => stated.apply_to(only, &layout, is_color(file)),
            None => shaped::describe_without_axes(only, &layout, description),
        }
        shaped::add_sizes(only, file, description);
        let pages = only.planes.len();
        if pages > 1 && is_ndtiff(file) {
            only.read_as_slices = Some(format!(
                "the file is an NDTiff of Micro-Manager, whose axes are stated in another way than in TIFF: its {pages} pages \
                 are read as slices"
            ));
        }
    }
    Ok(all)
}

/// Position of the number by which Micro-Manager marks its NDTiff files, and the number.
const NDTIFF_MARK: (u64, u32) = (8, 483_729);

fn is_ndtiff(file: &TiffFile) -> bool {
    let (at, mark) = NDTIFF_MARK;
    let bytes = file.container.source.read_vec(at, 4).unwrap_or_default();
    bytes.first_chunk::<4>().is_some_and(|bytes| file.container.order.u32(*bytes) == mark)
}

/// Whether the samples of a pixel are the parts of a color: RGB, CMYK, YCbCr or L*a*b*.
fn is_color(file: &TiffFile) -> bool {
    let photometric = file.container.integer_or(&file.first, tag::PHOTOMETRIC, 1);
    matches!(photometric, Ok(2 | 5 | 6 | 8))
}

/// The pixel size from the resolution tags. Inches are used only if they cannot be a print resolution.
pub(crate) fn plain_resolution(file: &TiffFile) -> VoxelSize {
    // A missing unit is the inch. One that cannot be read may be the centimeter, so that the size is unknown.
    let unit = file.container.integer_or(&file.first, tag::RESOLUTION_UNIT, 2).unwrap_or(0);
    let size = |tag: u16| {
        let per_unit = positive(file.container.number(&file.first, tag)?)?;
        match unit {
            3 if per_unit > 1.0 => positive(10_000.0 / per_unit),
            4 if per_unit > 1.0 => positive(1000.0 / per_unit),
            5 => positive(1.0 / per_unit),
            2 if per_unit > INCH_UM / PRINTED_UM => positive(INCH_UM / per_unit),
            _ => None,
        }
    };
    VoxelSize { z: None, y: size(tag::Y_RESOLUTION), x: size(tag::X_RESOLUTION) }
}

/// The display range from SMinSampleValue and SMaxSampleValue.
pub(crate) fn stored_range(file: &TiffFile) -> Option<(f64, f64)> {
    let low = file.container.number(&file.first, tag::S_MIN)?;
    let high = file.container.number(&file.first, tag::S_MAX)?;
    (low < high).then_some((low, high))
}

fn lsm_series(file: &TiffFile) -> Result<Vec<Series>, Fault> {
    let groups = grouped(file)?;
    // Thumbnails are separate pages, marked as reduced.
    let full = groups.iter().find(|(layout, _)| !layout.reduced);
    let (_, pages) = full.ok_or_else(|| Fault::malformed("the file has no pages of full size"))?;
    Ok(vec![lsm::series(file, pages)?])
}

fn stk_series(file: &TiffFile) -> Result<Vec<Series>, Fault> {
    let groups = grouped(file)?;
    let (layout, pages) = groups.first().ok_or_else(|| Fault::malformed("the file has no pages"))?;
    let page = pages.first().copied().unwrap_or(0);
    Ok(vec![stk::series(file, layout, page)?])
}

fn fluoview_series(file: &TiffFile) -> Result<Vec<Series>, Fault> {
    let groups = grouped(file)?;
    let (_, pages) = groups.first().ok_or_else(|| Fault::malformed("the file has no pages"))?;
    Ok(vec![fluoview::series(file, pages)?])
}

fn scanimage_series(file: &TiffFile, settings: &scanimage::Settings) -> Result<Vec<Series>, Fault> {
    let groups = grouped(file)?;
    let (layout, pages) = groups.first().ok_or_else(|| Fault::malformed("the file has no pages"))?;
    Ok(vec![scanimage::series(file, settings, pages, [layout.height, layout.width])])
}

fn imagej_series(file: &TiffFile, description: &str) -> Result<Vec<Series>, Fault> {
    let ij = imagej::parse(description, &file.container, &file.first);
    let mut groups = grouped(file)?;
    let is_taken_out = groups.first().is_some_and(|(layout, _)| is_taken_from_stack(file, layout, ij.images));
    let one_directory = file.chain_len == 1 && ij.images > 1 && file.pages.len() == 1 && !is_taken_out;
    let mut planes: Vec<Option<PlaneRef>> = Vec::new();
    match groups.first_mut() {
        Some((layout, pages)) if one_directory => {
            let images = contiguous_images(file, layout, ij.images)?;
            let page = pages.first().copied().unwrap_or(0);
            planes.extend((0..images).map(|slice| Some(PlaneRef { file: 0, page, slice })));
        }
        Some((_, pages)) => planes.extend(pages.iter().map(|page| Some(PlaneRef { file: 0, page: *page, slice: 0 }))),
        None => return Err(Fault::malformed("the file has no pages")),
    }
    let total = planes.len();
    let declared = ij.frames.checked_mul(ij.slices).and_then(|n| n.checked_mul(ij.channels));
    let (dims, read_as_slices) = if declared == Some(total) {
        (vec![(Axis::T, ij.frames), (Axis::Z, ij.slices), (Axis::C, ij.channels)], None)
    } else {
        let (frames, slices, channels) = (ij.frames, ij.slices, ij.channels);
        let why = (declared != Some(1)).then(|| {
            format!(
                "ImageJ's description declares {frames} frames, {slices} slices and {channels} channels, but the file \
                 has {total} pages: they are read as slices"
            )
        });
        (vec![(Axis::Z, total)], why)
    };
    let channel_count = dims.iter().find(|d| d.0 == Axis::C).map_or(1, |d| d.1);
    // As in ImageJ, the unit of the resolution tags is that of the pixel size if the description states none.
    let tag_unit = file.container.integer_or(&file.first, tag::RESOLUTION_UNIT, 2);
    let by_tags = match tag_unit {
        Ok(3..=5) if !ij.states_unit => plain_resolution(file),
        _ => ij.voxel_size_um,
    };
    let extras = imagej::extras(&file.container, &file.first);
    let names = imagej::channel_names(&extras.labels, channel_count);
    let channels = (0..channel_count)
        .map(|c| Channel {
            name: names.get(c).cloned().unwrap_or_default(),
            color_rgb: if extras.colors.len() == channel_count {
                extras.colors.get(c).copied().flatten()
            } else {
                None
            },
        })
        .collect();
    let mut all = vec![Series {
        format: FileFormat::ImageJ,
        dims,
        planes,
        voxel_size_um: VoxelSize { z: ij.voxel_size_um.z, ..by_tags },
        time_interval_secs: ij.time_interval_secs,
        channels,
        display_range: ij.display_range,
        read_as_slices,
        not_applied: ij.calibration.into_iter().chain(ij.unit_note).collect(),
        ..Series::default()
    }];
    all.extend(plain_series(file, "")?.into_iter().skip(1));
    Ok(all)
}

/// Whether the file's only plane was taken from a stack together with its description: it is compressed or in tiles, the
/// directory lies where the planes after it would be, or the file ends after it.
fn is_taken_from_stack(file: &TiffFile, layout: &Layout, images: usize) -> bool {
    if layout.codec != Codec::Raw || layout.tiled {
        return true;
    }
    let Some(Some(page)) = file.pages.first() else { return false };
    let plane = layout.plane_bytes().unwrap_or(usize::MAX) as u64;
    file.container.integer(&page.offsets).is_ok_and(|first| {
        let end = first.saturating_add(plane.saturating_mul(images as u64));
        let after_one = file.container.source.len().saturating_sub(first).checked_sub(plane);
        // A byte may fill up the file to an even length; the start of a second plane is that of a damaged stack.
        let ends_after_one = after_one.is_some_and(|bytes| bytes < 2);
        ends_after_one || (first.saturating_add(plane)..end).contains(&file.container.first_ifd)
    })
}

/// Most bytes after the last plane of a file that ends with its planes.
const MAX_PADDING: u64 = 16;

/// Whether a file ends with this number of uncompressed planes, of which the first is that of its first page.
fn ends_with_planes(file: &TiffFile, layout: &Layout, count: usize) -> bool {
    if layout.codec != Codec::Raw || layout.tiled || !layout.whole_bytes() {
        return false;
    }
    let Some(Some(page)) = file.pages.first() else { return false };
    let bytes = (layout.plane_bytes().unwrap_or(usize::MAX) as u64).saturating_mul(count as u64);
    let after = |first: u64| file.container.source.len().checked_sub(first.checked_add(bytes)?);
    file.container.integer(&page.offsets).is_ok_and(|first| after(first).is_some_and(|rest| rest <= MAX_PADDING))
}

/// Number of images of a stack with a single directory whose planes follow each other; an error if the file does not
/// contain them all, or if the strips of the first one do not follow each other.
pub(crate) fn contiguous_images(file: &TiffFile, layout: &Layout, images: usize) -> Result<u32, Fault> {
    let limits = &file.container.limits;
    if images as u64 > limits.max_pages {
        return Err(Fault::over("the number of images", images as u64, "max_pages", limits.max_pages, Remedy::Split));
    }
    if images > 1 && !layout.whole_bytes() {
        let problem = format!("its {images} planes of {}-bit samples are in one page", layout.bits);
        return Err(Fault::unsupported(problem, RESAVE));
    }
    if images > 1 && (layout.codec != Codec::Raw || layout.tiled) {
        let problem = format!("its {images} planes are in one page that is compressed or tiled");
        return Err(Fault::unsupported(problem, RESAVE));
    }
    let Some(Some(page)) = file.pages.first() else { return Err(Fault::malformed("the file has no pages")) };
    let first = file.container.integer(&page.offsets)?;
    let plane = layout.plane_bytes().unwrap_or(usize::MAX) as u64;
    let there = file.container.source.len().saturating_sub(first) / plane.max(1);
    if there < images as u64 {
        return Err(Fault::malformed(format!("it declares {images} images but contains the data of {there}")));
    }
    if images > 1 {
        check_contiguous(file, page, first)?;
    }
    Ok(images as u32)
}

/// Refuses an uncompressed page whose strips do not follow each other from the byte `first` on: the position of the planes
/// after it is then unknown.
fn check_contiguous(file: &TiffFile, page: &Page, first: u64) -> Result<(), Fault> {
    let layout = &page.layout;
    let (_, down, planes) = layout.grid();
    let strips = down.saturating_mul(planes) as u64;
    let offsets = file.container.integers(&page.offsets, 0, page.offsets.count.min(strips))?;
    let row_bytes = layout.packed_row_bytes().unwrap_or(usize::MAX);
    let mut end = first;
    for (strip, at) in offsets.iter().enumerate() {
        if *at != end {
            let problem =
                "the strips of its first plane have gaps, so that the position of the other planes is unknown";
            return Err(Fault::unsupported(problem, "save it as TIFF, for example with Fiji"));
        }
        end = end.saturating_add(row_bytes.saturating_mul(layout.rows_in(strip % down)) as u64);
    }
    Ok(())
}

/// Replaces the leading axes by those from `--axes`.
pub(crate) fn apply_axes(path: &Path, series: &mut Series, axes: &Axes, file: &TiffFile) -> Result<(), FormatError> {
    let layout = first_page(series, file).map(|page| &page.layout);
    let samples = layout.map_or(1, |layout| layout.samples);
    let leading: Vec<Axis> = axes.iter().filter(|a| !matches!(a, Axis::Y | Axis::X | Axis::S)).collect();
    let trailing: String = axes.iter().skip(leading.len()).map(|a| a.letter()).collect();
    let fits = match trailing.as_str() {
        "" | "YX" => true,
        "YXS" => samples > 1,
        _ => false,
    };
    let known: Vec<(Axis, usize)> = series.dims.iter().copied().filter(|d| d.1 > 1).collect();
    let total = series.planes.len();
    let samples_axis = series.samples_axis.filter(|_| samples > 1 && trailing != "YXS");
    // tifffile stores 3 or 4 planes as the separate samples of one page, as if they were a color.
    let has_planes = samples > 1 && trailing == "YX" && layout.is_some_and(|layout| layout.planar);
    let has_several = series.unnamed_lengths.len() > 1;
    let (outer, samples_axis) = match (samples_axis, leading.split_last()) {
        // The last letter is that of the samples.
        (Some(_), Some((last, outer))) if outer.len() == known.len() => (outer, Some(*last)),
        (None, Some((last, outer)))
            if has_planes
                && (outer.len() == known.len() || has_several && outer.len() == series.unnamed_lengths.len()) =>
        {
            (outer, Some(*last))
        }
        (axis, _) => (leading.as_slice(), axis),
    };
    let dims: Option<Vec<(Axis, usize)>> = match (fits, outer) {
        (false, _) => None,
        (true, []) => (total == 1).then(Vec::new),
        (true, [one]) => Some(vec![(*one, total)]),
        (true, many) if many.len() == known.len() => Some(many.iter().zip(&known).map(|(a, d)| (*a, d.1)).collect()),
        (true, many) if many.len() == series.unnamed_lengths.len() => {
            Some(many.iter().copied().zip(series.unnamed_lengths.iter().copied()).collect())
        }
        _ => None,
    };
    match dims.filter(|dims| dims.iter().all(|(axis, _)| Some(*axis) != samples_axis)) {
        Some(dims) => {
            let plane_channels = dims.iter().find(|d| d.0 == Axis::C).map_or(1, |d| d.1);
            let channels = if samples_axis == Some(Axis::C) { samples } else { plane_channels };
            if channels != series.channels.len() {
                series.channels.clear();
            }
            series.dims = dims;
            series.samples_axis = samples_axis;
            series.read_as_slices = None;
            series.read_as_color = None;
            Ok(())
        }
        None => {
            let sample_dim = series.samples_axis.map(|axis| (axis, samples)).filter(|d| d.1 > 1);
            let found: String = known.iter().chain(&sample_dim).map(|(a, n)| format!("{a:?}={n} ")).collect();
            Err(FormatError::misused(
                path,
                format!(
                    "the axes {axes} do not match its {} ({}YX{})",
                    counted(total, "plane"),
                    found,
                    if samples > 1 && sample_dim.is_none() { "S" } else { "" }
                ),
                "give one of T, Z, C for all planes (such as TYX), or one letter for each leading axis",
            ))
        }
    }
}

fn first_page<'a>(series: &Series, file: &'a TiffFile) -> Option<&'a Page> {
    let plane = series.planes.iter().flatten().next()?;
    file.pages.get(plane.page as usize)?.as_ref()
}

impl Series {
    /// Number of planes along T, Z, C.
    pub fn tzc(&self) -> [usize; 3] {
        [Axis::T, Axis::Z, Axis::C].map(|axis| self.dims.iter().find(|d| d.0 == axis).map_or(1, |d| d.1))
    }

    /// The planes in the order T, Z, C, regardless of their order in the file.
    pub fn planes_tzc(&self) -> Vec<Option<PlaneRef>> {
        let [nt, nz, nc] = self.tzc();
        let steps = [Axis::T, Axis::Z, Axis::C].map(|axis| {
            let at = self.dims.iter().position(|d| d.0 == axis);
            at.map_or(0, |i| self.dims.iter().skip(i + 1).map(|d| d.1).product::<usize>())
        });
        let mut planes = Vec::with_capacity(self.planes.len());
        for t in 0..nt {
            for z in 0..nz {
                for c in 0..nc {
                    planes.push(self.planes.get(t * steps[0] + z * steps[1] + c * steps[2]).copied().flatten());
                }
            }
        }
        planes
    }
}
