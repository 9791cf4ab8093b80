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
    limits::Limits,
    numbered::{PlaneFiles, series_of},
    source::Source,
};
use cytoscope_volume::Axis;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Format of numbered TIFF files.
pub(crate) const TIFF_SERIES: &str = "tiff series";

/// The files of an image, one for each plane.
pub(super) struct Members {
    /// Number of planes along each axis, slowest first.
    dims: Vec<(Axis, usize)>,
    files: Vec<PathBuf>,
}

impl Members {
    /// The files of the image that a file belongs to: those with the letters T, Z, C and numbers in their names, or else
    /// those with consecutive numbers, along Z. `None` if the file is no slice, or the only one.
    ///
    /// # Errors
    /// An error that names the first file that is missing, or that does not fit, if the names state the axes.
    pub fn of(path: &Path, file: &TiffFile, all: &[Series], limits: &Limits) -> Result<Option<Self>, FormatError> {
        let Some(layout) = slice_layout(file, all) else { return Ok(None) };
        let fits = |other: &Path| -> Result<bool, Fault> {
            Ok(slice_of(other, limits)?.is_some_and(|other| other.stacks_with(layout)))
        };
        if let Some(planes) = PlaneFiles::beside(path, limits.max_set_files).map_err(|f| f.at(path))? {
            let dims = planes.dims().map_err(|f| f.at(path))?.to_vec();
            planes.check(fits)?;
            return Ok(Some(Self { dims, files: planes.files() }));
        }
        let files = series_of(path, limits.max_set_files, fits).map_err(|f| f.at(path))?;
        Ok((files.len() > 1).then(|| Self { dims: vec![(Axis::Z, files.len())], files }))
    }

    /// Replaces the only plane of a series by those of all files.
    pub fn extend(&self, series: &mut Series) {
        series.format = TIFF_SERIES;
        series.dims = self.dims.clone();
        let plane = |file| Some(PlaneRef { file, page: 0, slice: 0 });
        series.planes = (0..u32::try_from(self.files.len()).unwrap_or(u32::MAX)).map(plane).collect();
        // Those of one plane are not those of the image.
        series.display_range = None;
        if self.dims.iter().any(|(axis, count)| *axis == Axis::C && *count > 1) {
            series.channels.clear();
        }
    }

    /// Adds the files to a set in their order, with the one that is open already.
    pub fn add_to(self, files: &mut FileSet, path: &Path, opened: TiffFile) {
        let mut opened = Some(opened);
        for member in self.files {
            match opened.take_if(|_| member.as_path() == path) {
                Some(file) => files.add_open(file),
                None => files.add(member),
            };
        }
    }
}

/// The layout of the page of a file that can be a slice: the only page of an image without levels, in TIFF or ImageJ TIFF.
fn slice_layout<'a>(file: &'a TiffFile, all: &[Series]) -> Option<&'a Arc<Layout>> {
    let ([Some(page)], [only]) = (file.pages.as_slice(), all) else { return None };
    let is_slice =
        only.planes.len() == 1 && page.sub_ifds.is_none() && ["tiff", "bigtiff", "imagej"].contains(&only.format);
    is_slice.then_some(&page.layout)
}

/// The layout of the page of a file that can be a slice, as [`slice_layout`]; `None` for other files.
fn slice_of(path: &Path, limits: &Limits) -> Result<Option<Arc<Layout>>, Fault> {
    let container = Container::open(Source::open(path, Arc::default())?, limits.clone())?;
    // The pages of a stack are not counted.
    if container.read_ifd(container.first_ifd)?.next != 0 {
        return Ok(None);
    }
    let file = TiffFile::walk(path, container.source, limits)?;
    let description = file.description()?.unwrap_or_default();
    if ome_xml::is_ome(&description) {
        return Ok(None);
    }
    Ok(slice_layout(&file, &series::images_of(&file, &description)?).cloned())
}

/// Whether a file can be a slice of a numbered series.
pub(crate) fn is_slice(path: &Path, limits: &Limits) -> bool {
    slice_of(path, limits).is_ok_and(|layout| layout.is_some())
}

/// The files that are opened if a file is opened, or that the error names if they are no image; none for a file that is no
/// slice or cannot be read.
pub(crate) fn opened_with(path: &Path, limits: &Limits) -> Vec<PathBuf> {
    let Ok(Some(layout)) = slice_of(path, limits) else { return Vec::new() };
    if let Ok(Some(planes)) = PlaneFiles::beside(path, limits.max_set_files) {
        return planes.files();
    }
    let fits = |other: &Path| -> Result<bool, Fault> {
        Ok(slice_of(other, limits)?.is_some_and(|other| other.stacks_with(&layout)))
    };
    series_of(path, limits.max_set_files, fits).unwrap_or_default()
}
