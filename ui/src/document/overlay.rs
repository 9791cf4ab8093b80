//! Images shown over a stack: labels, ground truth and maps.

use super::{Document, file_name, fresh_id, zyx_text};
use crate::data::composite::{Blending, ColorMap, Intensity, LabelDisplay};
use crate::data::histogram::Histogram;
use crate::data::loader::SourceId;
use crate::data::plane::{Orientation, PlaneAt};
use crate::data::source::{Cancel, FileSource, PlaneSource};
use cytoscope_formats::{FormatError, OpenOptions};
use cytoscope_pipeline::job_record::has_record;
use cytoscope_pipeline::predict::containing_maps;
use cytoscope_pipeline::{ArtifactKind, Extents};
use cytoscope_volume::Axes;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Pixels along a side of a slice that are enough to find its contrast.
const CONTRAST_PIXELS: usize = 1024;

/// Role of an overlay: which kind of image it shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Predicted or corrected labels.
    Labels,
    /// Ground truth labels.
    Truth,
    /// Output map of the network.
    Map,
    /// Partial output map of a running prediction.
    Live,
}

/// An image shown over the stack, on the same grid.
pub struct Overlay {
    /// Kind of image that the overlay shows.
    pub role: Role,
    /// File name for display.
    pub name: String,
    /// Path of the image file.
    pub path: PathBuf,
    /// Whether a provenance record lay beside the file when it was opened.
    pub has_record: bool,
    /// Whether it is a segmentation preview, whose file the next preview replaces.
    pub is_preview: bool,
    /// Whether views draw the overlay.
    pub visible: bool,
    /// Source that its planes are read from.
    pub source: Arc<dyn PlaneSource>,
    /// Id of `source` in the caches of planes and volumes.
    pub source_id: SourceId,
    /// How the labels are drawn.
    pub labels: LabelDisplay,
    /// How the intensities are shown.
    pub display: Intensity,
    /// Histogram of a displayed plane of a map; `None` before one was displayed, and for other overlays.
    pub histogram: Option<Histogram>,
    /// Number of channels.
    pub channels: usize,
    /// Number of time points.
    pub times: usize,
    /// The only time point of the stack that the overlay belongs to; `None` if it is shown at every one.
    pub only_time: Option<usize>,
}

impl Overlay {
    /// A visible overlay with a single channel and a single time point, whose planes do not come from an image file.
    pub(crate) fn from_source(role: Role, name: String, path: PathBuf, source: Arc<dyn PlaneSource>) -> Self {
        Self {
            role,
            name,
            path,
            has_record: false,
            is_preview: false,
            visible: true,
            source,
            source_id: fresh_id(),
            labels: LabelDisplay::default(),
            display: Self::map_display(),
            histogram: None,
            channels: 1,
            times: 1,
            only_time: None,
        }
    }

    /// Whether the overlay belongs to a time point of the stack. One with a single time point belongs to all, unless its only one
    /// is known; one with several may have fewer than the stack.
    pub fn is_at(&self, time: usize) -> bool {
        match self.only_time {
            Some(only) => only == time,
            None => self.times <= 1 || time < self.times,
        }
    }

    /// Whether it is a label image.
    pub fn is_labels(&self) -> bool {
        matches!(self.role, Role::Labels | Role::Truth)
    }

    /// Name of the layer. A map is named after what its network predicts, which the name of its file states.
    pub fn title(&self) -> &'static str {
        match self.role {
            Role::Labels => "Labels",
            Role::Truth => "Ground truth",
            Role::Live => "In progress",
            Role::Map => match ArtifactKind::from_name(&file_name(&self.path)) {
                Some((ArtifactKind::Probability, _)) => "Probability",
                Some((ArtifactKind::Prediction, _)) => "Predicted stain",
                _ => "Map",
            },
        }
    }

    /// Whether it is a predicted stain.
    pub fn is_stain(&self) -> bool {
        self.role == Role::Map && is_stain(&self.path)
    }

    /// Default display settings of maps.
    pub fn map_display() -> Intensity {
        Intensity { map: ColorMap::Magma, low: 0.0, high: 1.0, gamma: 1.0, opacity: 0.6, blending: Blending::Additive }
    }
}

/// Whether a file of maps holds a predicted stain, as its name states.
fn is_stain(path: &Path) -> bool {
    matches!(ArtifactKind::from_name(&file_name(path)), Some((ArtifactKind::Prediction, _)))
}

/// How a stain of Z, Y, X voxels is shown: with the contrast of its middle slice, because the range of its values is
/// unknown, and covering the stack instead of added to it, because stacks without the stain are often bright.
fn stain_display(source: &FileSource, zyx: [usize; 3]) -> Intensity {
    let [depth, height, width] = zyx;
    let display = Intensity { blending: Blending::Opaque, ..Overlay::map_display() };
    let step = (height.max(width) / CONTRAST_PIXELS).max(1).next_power_of_two();
    let at = PlaneAt { steps: [1, step, step], ..PlaneAt::whole(Orientation::Xy, depth / 2, zyx) };
    // A slice that cannot be read is reported when it is shown.
    let plane = source.plane(&at, &Cancel::default()).ok();
    match plane.and_then(|plane| Histogram::of(&plane)).map(|histogram| histogram.limits()) {
        Some((low, high)) => Intensity { low, high, ..display },
        None => display,
    }
}

/// Why an overlay could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file cannot be read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The file's grid differs from the stack's.
    #[error("{name} has {got} voxels (Z × Y × X), but the stack has {expected}: open it as a separate stack")]
    Grid {
        /// Name of the file, without its folder.
        name: String,
        /// Number of voxels of the file, such as `32 × 256 × 256`.
        got: String,
        /// Number of voxels of the stack.
        expected: String,
    },
}

impl Document {
    /// Opens a file as an overlay of a stack of `zyx` voxels and a number of time points.
    ///
    /// # Errors
    /// [`OpenError`] if the file cannot be opened or its grid differs.
    pub fn overlay(
        path: &Path,
        role: Role,
        (zyx, times): ([usize; 3], usize),
        axes: Option<Axes>,
    ) -> Result<Overlay, OpenError> {
        let (shape_zyx, times) = (Some(zyx), Some(times));
        let open =
            |axes| cytoscope_formats::open(path, &OpenOptions { axes, shape_zyx, times, ..OpenOptions::default() });
        let mut image = open(None)?;
        // The file may declare the same wrong axes as its stack. If it cannot be read with the corrected ones, either, the
        // error below names the shape that it declares.
        if Extents::of(image.meta()).zyx != zyx
            && let Some(again) = axes.and_then(|a| open(Some(a)).ok())
        {
            image = again;
        }
        let extents = Extents::of(image.meta());
        if extents.zyx != zyx {
            return Err(OpenError::Grid { name: file_name(path), got: zyx_text(extents.zyx), expected: zyx_text(zyx) });
        }
        let source = FileSource::new(image, matches!(role, Role::Labels | Role::Truth));
        let is_stain = role == Role::Map && is_stain(path);
        let display = if is_stain { stain_display(&source, zyx) } else { Overlay::map_display() };
        Ok(Overlay {
            role,
            name: file_name(containing_maps(path)),
            path: path.to_owned(),
            has_record: has_record(containing_maps(path)),
            is_preview: false,
            // A stain is the result itself, a probability only leads to the labels.
            visible: role != Role::Map || is_stain,
            source: Arc::new(source),
            source_id: fresh_id(),
            labels: LabelDisplay::default(),
            display,
            histogram: None,
            channels: extents.channels,
            times: extents.times,
            only_time: None,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use cytoscope_formats::{Container, WriteSpec, write_array};
    use cytoscope_volume::Array;

    #[test]
    fn maps_are_named_after_what_their_network_predicts() {
        let folder = tempfile::tempdir().unwrap();
        let array = Array::new("ZYX".parse().unwrap(), vec![2, 3, 4], vec![1u16; 24]).unwrap();
        for (name, title) in
            [("a_probability.tif", "Probability"), ("a_prediction.tif", "Predicted stain"), ("a.tif", "Map")]
        {
            let path = folder.path().join(name);
            write_array(&path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
            let map = Document::overlay(&path, Role::Map, ([2, 3, 4], 1), None).unwrap();
            assert_eq!(map.title(), title, "{name}");
        }
    }

    #[test]
    fn a_stain_is_shown_with_the_contrast_of_its_middle_slice_and_a_probability_only_on_request() {
        let folder = tempfile::tempdir().unwrap();
        let array = Array::new("ZYX".parse().unwrap(), vec![2, 3, 4], (0..24).collect::<Vec<u16>>()).unwrap();
        let open = |name: &str| {
            let path = folder.path().join(name);
            write_array(&path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
            Document::overlay(&path, Role::Map, ([2, 3, 4], 1), None).unwrap()
        };
        let stain = open("a_prediction.tif");
        assert!(stain.visible && stain.is_stain() && stain.display.blending == Blending::Opaque);
        let Intensity { low, high, .. } = stain.display;
        assert!((low - 12.0).abs() < 0.1 && (high - 23.0).abs() < 0.1, "{low} to {high}");
        let probability = open("a_probability.tif");
        assert!(!probability.visible && !probability.is_stain());
        assert_eq!(probability.display, Overlay::map_display());
    }

    #[test]
    fn regions_on_the_planes_of_a_time_series_are_at_its_time_points() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rois.zip");
        // ImageJ numbers the planes of a time series like slices.
        let labels = Array::new("ZYX".parse().unwrap(), vec![3, 2, 2], (1..=12).collect::<Vec<u16>>()).unwrap();
        write_array(&path, &labels, &WriteSpec::of(&labels, Container::RoiSet)).unwrap();
        assert_eq!(Document::overlay(&path, Role::Labels, ([1, 2, 2], 3), None).unwrap().times, 3);
        assert!(Document::overlay(&path, Role::Labels, ([1, 9, 9], 1), None).is_ok_and(|overlay| overlay.times == 1));
    }
}
