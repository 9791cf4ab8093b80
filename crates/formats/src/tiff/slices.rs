//! TIFF files of one page each as the planes of one image, recognized by the numbers in their names.

use super::{
    file::{FileSet, TiffFile},
    ifd::Container,
    ome_xml,
    page::Layout,
    series::{self, PlaneRef, Series},
};
use crate::{
    error::{Fault, FormatError},
    file_format::FileFormat,
    limits::Limits,
    numbered::{Listings, PlaneFiles, not_in_series, series_files},
    source::Source,
};
use cytoscope_volume::Axis;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// The files of an image, one for each plane.
pub(super) struct Members {
    /// Number of planes along each axis, slowest first.
    dims: Vec<(Axis, usize)>,
    files: Vec<PathBuf>,
    /// Layout of the only page of each file.
    layout: Arc<Layout>,
}

impl Members {
    /// Returns the files of the image that a file belongs to. If the names have the letters T, Z, C with numbers, these are
    /// positions along the axes; otherwise, files with consecutive numbers are the slices. `None` if the file is not a slice,
    /// or is the only one.
    ///
    /// # Errors
    /// If the names state the axes: an error that names the first file that is missing or does not fit.
    pub fn of(path: &Path, file: &TiffFile, all: &[Series], limits: &Limits) -> Result<Option<Self>, FormatError> {
        let Some(layout) = slice_layout(file, all) else { return Ok(None) };
        let fits = |other: &Path| stacks_with(other, layout, limits);
        let listings = Listings::default();
        if let Some(planes) = PlaneFiles::beside(path, limits.max_set_files, &listings).map_err(|f| f.at(path))? {
            let dims = planes.dims().map_err(|f| f.at(path))?.to_vec();
            planes.check(fits)?;
            return Ok(Some(Self { dims, files: planes.files(), layout: Arc::clone(layout) }));
        }
        let files = series_files(path, limits.max_set_files, &listings, fits).map_err(|f| f.at(path))?;
        let dims = vec![(Axis::Z, files.len())];
        Ok((files.len() > 1).then(|| Self { dims, files, layout: Arc::clone(layout) }))
    }

    /// Replaces the only plane of a series by those of all files.
    pub fn set_planes(&self, series: &mut Series) {
        series.format = FileFormat::TiffSeries;
        series.dims = self.dims.clone();
        let plane = |file| Some(PlaneRef { file, page: 0, slice: 0 });
        series.planes = (0..u32::try_from(self.files.len()).unwrap_or(u32::MAX)).map(plane).collect();
        // Display range and channel name of one plane are not those of the image.
        series.display_range = None;
        series.read_as_slices = None;
        if self.dims.iter().any(|(axis, count)| *axis == Axis::C && *count > 1) {
            series.channels.clear();
        }
    }

    /// Adds the files to a set in their order; the one at `path` is open already.
    pub fn add_to(self, files: &mut FileSet, path: &Path, opened: TiffFile) {
        files.are_slices_with(self.layout);
        let mut opened = Some(opened);
        for member in self.files {
            match opened.take_if(|_| member.as_path() == path) {
                Some(file) => files.add_open(file),
                None => files.add(member),
            };
        }
    }
}

/// Returns the layout of the page of a file that can be a slice: of TIFF or ImageJ TIFF, with one page and without levels.
/// `None` for other files.
fn slice_layout<'a>(file: &'a TiffFile, all: &[Series]) -> Option<&'a Arc<Layout>> {
    let ([Some(page)], [only]) = (file.pages.as_slice(), all) else { return None };
    let is_plane = only.planes.len() == 1 && only.samples_axis.is_none();
    let is_plain = matches!(only.format, FileFormat::Tiff | FileFormat::BigTiff | FileFormat::ImageJ);
    let is_slice = is_plane && page.sub_ifds.is_none() && is_plain;
    is_slice.then_some(&page.layout)
}

/// Opens a file and returns what [`slice_layout`] returns for it.
fn open_slice(path: &Path, limits: &Limits) -> Result<Option<Arc<Layout>>, Fault> {
    let container = Container::open(Source::open(path, Arc::default())?, limits.clone())?;
    // Finding all pages of a long stack takes time; that there is a second one suffices.
    if container.read_ifd(container.first_ifd)?.next != 0 {
        return Ok(None);
    }
    slice_page_layout(&TiffFile::walk(path, container.source, limits)?)
}

/// Returns the layout of the page of a file that can be a slice; `None` for other files.
fn slice_page_layout(file: &TiffFile) -> Result<Option<Arc<Layout>>, Fault> {
    let description = file.description()?.unwrap_or_default();
    if ome_xml::is_ome(&description) {
        return Ok(None);
    }
    Ok(slice_layout(file, &series::images_without_ome(file, &description)?).cloned())
}

/// Refuses a file that cannot be a slice in a stack with pages of this layout.
pub(super) fn check_slice(file: &TiffFile, layout: &Layout) -> Result<(), Fault> {
    if slice_page_layout(file)?.is_some_and(|own| own.is_slice_with(layout)) { Ok(()) } else { Err(not_in_series()) }
}

/// Returns whether a file can be a slice in a stack with pages of this layout.
fn stacks_with(path: &Path, layout: &Layout, limits: &Limits) -> Result<bool, Fault> {
    Ok(open_slice(path, limits)?.is_some_and(|own| own.is_slice_with(layout)))
}

/// Returns the files that opening a file opens; if its series is incomplete, the ones that exist, and if the series cannot be
/// read, none. `None` if the file is not a slice or cannot be read.
pub(crate) fn opened_with(path: &Path, limits: &Limits, listings: &Listings) -> Option<Vec<PathBuf>> {
    let layout = open_slice(path, limits).ok()??;
    if let Ok(Some(planes)) = PlaneFiles::beside(path, limits.max_set_files, listings) {
        return Some(planes.files());
    }
    let files = series_files(path, limits.max_set_files, listings, |other| stacks_with(other, &layout, limits));
    Some(files.unwrap_or_default())
}
