//! An open stack with its channels, cursor and cameras.

mod change;
mod channel_title;
mod overlay;

pub use change::DocumentChange;
pub(crate) use channel_title::channel_title;
pub use overlay::{OpenError, Overlay, Role};

use crate::data::composite::{Blending, ColorMap, Intensity};
use crate::data::histogram::Histogram;
use crate::data::loader::SourceId;
use crate::data::plane::Orientation;
use crate::data::source::{FileSource, PlaneSource};
use crate::diameter::ObjectSize;
use crate::documents::Predicted;
use crate::number_text::short_number;
use crate::preprocess::{PreprocessPreview, Preprocessing};
use crate::results::Results;
use crate::voxel_size;
use channel_title::{file_channel, is_color_picture, is_rgb};
use cytoscope_formats::{FormatError, Image, ImageMeta, OpenOptions, series_suffix, stack_stem};
use cytoscope_objects::SegmentOptions;
use cytoscope_pipeline::job_record::has_record;
use cytoscope_pipeline::{DiameterUnit, Extents, ObjectDiameter};
use cytoscope_preprocess::PreprocessStep;
use cytoscope_volume::{Axes, VoxelSize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns an id that this process has not used before.
pub fn fresh_id() -> SourceId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Default colors of the channels of multi-channel stacks.
const CHANNEL_MAPS: [ColorMap; 6] = [
    ColorMap::Tint([60, 220, 90]),
    ColorMap::Tint([235, 70, 220]),
    ColorMap::Tint([60, 210, 235]),
    ColorMap::Tint([240, 220, 70]),
    ColorMap::Tint([240, 70, 60]),
    ColorMap::Tint([90, 130, 255]),
];

/// Number of channels that are visible initially.
const SHOWN_CHANNELS: usize = 3;

/// A channel with its display settings.
#[derive(Debug, Clone)]
pub struct ChannelView {
    /// Name from the file, or "Channel" and its index.
    pub name: String,
    /// Whether views draw the channel.
    pub visible: bool,
    /// Color map and contrast limits.
    pub display: Intensity,
    /// Whether contrast limits are still to be set from the first loaded plane.
    pub wants_limits: bool,
    /// Histogram of the displayed plane.
    pub histogram: Option<Histogram>,
}

/// Position and zoom of a slice view.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SliceCamera {
    /// Slice position (down, right) at the center of the view, in µm.
    pub center_um: [f64; 2],
    /// Magnification in screen points per µm.
    pub points_per_um: f64,
}

/// Metadata of a stack that the user has set, which replace those of its file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GivenMetadata {
    /// The axes; `None` if the axes of the file are used.
    pub axes: Option<Axes>,
    /// The voxel size in µm; along axes where it is unknown, the voxel size of the file is used.
    pub voxel_size_um: VoxelSize,
}

/// An open stack with its overlays, views and results.
pub struct Document {
    /// Id of the document and of its plane source.
    pub id: SourceId,
    /// Path of the image file.
    pub path: PathBuf,
    /// Whether a provenance record lay beside the file when it was opened.
    pub has_record: bool,
    /// File name for display, with the name of the series if it is not the first one.
    pub name: String,
    /// Number of the series of the file, from 0.
    pub series: usize,
    /// The opened image; pixels are read as they are needed.
    pub image: Image,
    /// Number of voxels along Z, Y, X, of channels, time points and samples per pixel.
    pub extents: Extents,
    /// Voxel size Z, Y, X in µm that the user has set, or else that the file states; 1 where it is unknown.
    pub voxel_um: [f64; 3],
    /// Whether the voxel size is completely known.
    pub voxel_known: bool,
    /// Voxel size in µm that the user has set; unknown along axes where the voxel size of the file is used.
    pub given_voxel_size_um: VoxelSize,
    /// Voxel size in µm that the file states.
    pub file_voxel_size_um: VoxelSize,
    /// Segmentation options of the latest prediction, with lengths in µm of this stack, if known.
    pub segment: Option<SegmentOptions>,
    /// Channels of the map in which the latest prediction found objects and their seeds, if known.
    pub(crate) segment_channels: Option<[usize; 2]>,
    /// Object diameter that the latest prediction used, if known.
    pub predicted_diameter: Option<ObjectDiameter>,
    /// Object diameter that predictions of this stack use.
    pub object_size: ObjectSize,
    /// Preprocessing settings.
    pub preprocessing: Preprocessing,
    /// First steps of a preprocessed copy, which may move voxels; those of `preprocessing` follow.
    pub copy_steps: Vec<PreprocessStep>,
    /// The preprocessed stack that views show instead of the stack.
    pub preview: Option<PreprocessPreview>,
    /// Why the preprocessed stack cannot be shown.
    pub preview_error: Option<String>,
    /// Contrast limits of the channels to restore after a preview, and whether they were still to be set.
    limits_before: Option<Vec<(f32, f32, bool)>>,
    /// Source of the intensity planes.
    pub source: Arc<dyn PlaneSource>,
    /// The channels in the order of the file, with their display settings.
    pub channels: Vec<ChannelView>,
    /// Overlays: maps, ground truth and labels, lowest first.
    pub overlays: Vec<Overlay>,
    /// Crosshair position (voxel Z, Y, X), shared by all views.
    pub cursor: [usize; 3],
    /// Time point that the views show, counted from 0.
    pub time: usize,
    /// Cameras of [`Orientation::ALL`]; `None` fits the slice into the view.
    pub cameras: [Option<SliceCamera>; 3],
    /// The label selected in image or table.
    pub selected: Option<u32>,
    /// Table of the measured objects; `None` if there is none.
    pub results: Option<Results>,
    /// File of the labels whose objects the table lists; `None` if only its name says so.
    pub table_labels: Option<PathBuf>,
    /// File that the shown labels were saved to, if it differs from the one they were loaded from.
    pub saved_labels: Option<PathBuf>,
    /// Whether the labels were saved after the table was measured.
    pub table_old: bool,
    /// Axes set by the user.
    pub axes: Option<Axes>,
}

/// Numbers of voxels along Z, Y, X for display.
pub(crate) fn zyx_text([z, y, x]: [usize; 3]) -> String {
    format!("{z} × {y} × {x}")
}

impl Document {
    /// Opens a series of a stack and reads its headers. Call it from a worker thread.
    ///
    /// # Errors
    /// [`FormatError`] if the file cannot be opened.
    pub fn open(path: &Path, axes: Option<Axes>, series: usize) -> Result<Self, FormatError> {
        let options = OpenOptions { series, axes: axes.clone(), ..OpenOptions::default() };
        let image = cytoscope_formats::open(path, &options)?;
        let meta = image.meta();
        let extents = Extents::of(meta);
        let file_voxel_size_um = meta.voxel_size_um;
        let (voxel_um, voxel_known) = voxel_size::resolved(file_voxel_size_um, extents.zyx);
        let channels = channel_views(meta, extents);
        Ok(Self {
            id: fresh_id(),
            name: match series {
                0 => file_name(path),
                _ => format!("{} · {}", file_name(path), meta.series_name(series)),
            },
            series,
            path: std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
            has_record: has_record(path),
            voxel_um,
            voxel_known,
            given_voxel_size_um: VoxelSize::default(),
            file_voxel_size_um,
            segment: None,
            segment_channels: None,
            predicted_diameter: None,
            object_size: Default::default(),
            preprocessing: Default::default(),
            copy_steps: Vec::new(),
            preview: None,
            preview_error: None,
            limits_before: None,
            source: Arc::new(FileSource::new(image.clone(), false)),
            channels,
            overlays: Vec::new(),
            cursor: extents.zyx.map(|n| n / 2),
            time: 0,
            cameras: [None; 3],
            selected: None,
            results: None,
            table_labels: None,
            saved_labels: None,
            table_old: false,
            axes,
            image,
            extents,
        })
    }

    /// Adds an overlay, which replaces one with the same role.
    pub fn put(&mut self, overlay: Overlay) {
        if overlay.role == Role::Labels {
            self.saved_labels = None;
        }
        self.overlays.retain(|o| o.role != overlay.role);
        self.overlays.push(overlay);
        self.overlays.sort_by_key(|o| match o.role {
            Role::Map | Role::Live => 0,
            Role::Truth => 1,
            Role::Labels => 2,
        });
    }

    /// Stem of the names of the results: the file name without its extension, with the number of a series other than the
    /// first.
    pub fn stem(&self) -> String {
        format!("{}{}", stack_stem(&self.path), series_suffix(self.series))
    }

    /// File of the shown labels.
    pub fn labels_path(&self) -> Option<&Path> {
        let overlay = self.overlay_with_role(Role::Labels)?;
        Some(self.saved_labels.as_ref().unwrap_or(&overlay.path))
    }

    /// The overlay with this role; `None` if the document has none.
    pub fn overlay_with_role(&self, role: Role) -> Option<&Overlay> {
        self.overlays.iter().find(|o| o.role == role)
    }

    /// The overlay with this role; `None` if the document has none.
    pub fn overlay_with_role_mut(&mut self, role: Role) -> Option<&mut Overlay> {
        self.overlays.iter_mut().find(|o| o.role == role)
    }

    /// Whether the labels are those of a segmentation preview.
    pub(crate) fn has_label_preview(&self) -> bool {
        self.overlay_with_role(Role::Labels).is_some_and(|labels| labels.is_preview)
    }

    /// Whether the stack has more than one slice.
    pub fn is_3d(&self) -> bool {
        self.extents.zyx[0] > 1
    }

    /// Moves the crosshair along an axis (0 = Z, 1 = Y, 2 = X), clamped to the stack.
    pub fn step(&mut self, axis: usize, by: i64) {
        self.cursor[axis] = self.stepped(self.cursor[axis], axis, by);
    }

    /// A position on an axis (0 = Z, 1 = Y, 2 = X), moved and clamped to the stack.
    pub fn stepped(&self, at: usize, axis: usize, by: i64) -> usize {
        let n = self.extents.zyx[axis] as i64;
        (at as i64 + by).clamp(0, (n - 1).max(0)) as usize
    }

    /// Moves to another time point, clamped to the series.
    pub fn step_time(&mut self, by: i64) {
        let n = self.extents.times as i64;
        self.time = (self.time as i64 + by).clamp(0, (n - 1).max(0)) as usize;
    }

    /// Height and width of a slice in µm.
    pub fn slice_size_um(&self, orientation: Orientation) -> [f64; 2] {
        let [_, rows, columns] = orientation.axes();
        [rows, columns].map(|a| self.extents.zyx[a] as f64 * self.voxel_um[a])
    }

    /// Selects a label in image and table; 0 and `None` clear the selection.
    pub fn select(&mut self, label: Option<u32>) {
        self.selected = label.filter(|l| *l > 0);
        for overlay in self.overlays.iter_mut().filter(|o| o.role == Role::Labels) {
            overlay.labels.selected = self.selected;
        }
    }

    /// The source of the shown intensity planes, the preprocessed ones during a preview, and its id in the caches.
    pub fn shown_source(&self) -> (&Arc<dyn PlaneSource>, SourceId) {
        self.preview.as_ref().map_or((&self.source, self.id), |preview| (&preview.source, preview.source_id))
    }

    /// Takes over what an earlier prediction found objects with, unless one of this window has reported it, or the stack
    /// has another voxel size now.
    pub(crate) fn take_over(&mut self, predicted: Predicted) {
        // A single slice has no distance between slices.
        let first = usize::from(self.extents.zyx[0] == 1);
        let is_close =
            |axis: usize, found: &ObjectDiameter| (found.voxel[axis] / self.voxel_um[axis] - 1.0).abs() < 1e-6;
        let is_same = |found: &ObjectDiameter| match found.unit {
            DiameterUnit::Um => self.voxel_known && (first..3).all(|axis| is_close(axis, found)),
            DiameterUnit::Voxels => !self.voxel_known,
        };
        if self.segment.is_none() && predicted.diameter.as_ref().is_none_or(is_same) {
            self.object_size.found = self.object_size.found.or(predicted.diameter);
            self.set_predicted(predicted);
        }
    }

    /// Sets what the latest prediction found objects with.
    pub(crate) fn set_predicted(&mut self, predicted: Predicted) {
        let Predicted { diameter, segment, channels } = predicted;
        (self.predicted_diameter, self.segment, self.segment_channels) = (diameter, segment, channels);
    }

    /// Unit of lengths in the slices: voxels if neither the file nor the user states a voxel size.
    pub(crate) fn length_unit(&self) -> DiameterUnit {
        let file_um = self.file_voxel_size_um;
        match self.voxel_known || (file_um.y.is_some() && file_um.x.is_some()) {
            true => DiameterUnit::Um,
            false => DiameterUnit::Voxels,
        }
    }

    /// Number of voxels, sample type and voxel size in one line.
    pub fn summary(&self) -> String {
        let [z, y, x] = self.voxel_um.map(short_number);
        let set = if self.given_voxel_um().is_some() { " (set here)" } else { "" };
        let voxel = match self.voxel_known {
            true => format!("{z} × {y} × {x} µm{set}"),
            false => "voxel size unknown".to_owned(),
        };
        let times =
            if self.extents.times > 1 { format!("{} time points, ", self.extents.times) } else { String::new() };
        format!("{}{}, {}, {voxel}", times, zyx_text(self.extents.zyx), self.image.meta().dtype.name())
    }
}

/// The file name of a path for display.
pub fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned())
}

fn channel_views(meta: &ImageMeta, extents: Extents) -> Vec<ChannelView> {
    let is_rgb = is_rgb(meta, extents);
    (0..extents.channels)
        .map(|c| {
            let name = channel_title(meta, extents, c);
            let file_channel = file_channel(meta, extents, c);
            let map = match file_channel.and_then(|f| f.color_rgb) {
                _ if is_rgb => {
                    let mut rgb = [0; 3];
                    if let Some(v) = rgb.get_mut(c % extents.samples) {
                        *v = 255;
                    }
                    ColorMap::Tint(rgb)
                }
                Some(rgb) if extents.channels > 1 && rgb != [255; 3] => ColorMap::Tint(rgb),
                _ if extents.channels == 1 => ColorMap::Gray,
                _ => CHANNEL_MAPS[c % CHANNEL_MAPS.len()],
            };
            let range = meta.display_range.filter(|_| extents.channels == 1);
            let (low, high) = range.map_or((0.0, 1.0), |(l, h)| (l as f32, h as f32));
            let byte_rgb = (is_rgb || is_color_picture(meta, extents)) && meta.dtype == cytoscope_volume::DType::U8;
            ChannelView {
                name,
                visible: if is_rgb { c % extents.samples < 3 } else { c < SHOWN_CHANNELS },
                display: Intensity {
                    map,
                    low: if byte_rgb { 0.0 } else { low },
                    high: if byte_rgb { 255.0 } else { high },
                    gamma: 1.0,
                    opacity: 1.0,
                    blending: Blending::Additive,
                },
                wants_limits: !byte_rgb,
                histogram: None,
            }
        })
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_the_colors_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.png");
        image::RgbImage::from_pixel(4, 4, image::Rgb([10, 20, 30])).save(&path).unwrap();
        let document = Document::open(&path, None, 0).unwrap();
        let tints = [[255, 0, 0], [0, 255, 0], [0, 0, 255]].map(ColorMap::Tint);
        let names: Vec<&str> = document.channels.iter().map(|channel| channel.name.as_str()).collect();
        assert_eq!(names, ["Red", "Green", "Blue"], "as those of TIFF");
        for (channel, tint) in document.channels.iter().zip(tints) {
            // All channels have the same limits: otherwise, gray would be shown in color.
            let display = &channel.display;
            assert_eq!((display.low, display.high, channel.wants_limits), (0.0, 255.0, false));
            assert!(display.map == tint && channel.visible);
        }
    }
}
