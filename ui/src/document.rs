//! An open stack: its channels, what lies over it, and where one looks.

use crate::data::composite::{Blending, ColorMap, Intensity, LabelLook};
use crate::data::histogram::Histogram;
use crate::data::loader::SourceId;
use crate::data::plane::Orientation;
use crate::data::source::{FileSource, PlaneSource};
use crate::results::Results;
use cytoscope_formats::{FormatError, Image, ImageMeta, OpenOptions};
use cytoscope_objects::SegmentOptions;
use cytoscope_pipeline::Extents;
use cytoscope_volume::{Axes, Axis};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An id nothing else has.
pub fn fresh_id() -> SourceId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Colours of channels where the file names none, by how many there are.
const CHANNEL_MAPS: [ColorMap; 6] = [
    ColorMap::Tint([60, 220, 90]),
    ColorMap::Tint([235, 70, 220]),
    ColorMap::Tint([60, 210, 235]),
    ColorMap::Tint([240, 220, 70]),
    ColorMap::Tint([240, 70, 60]),
    ColorMap::Tint([90, 130, 255]),
];

/// Channels shown at first.
const SHOWN_CHANNELS: usize = 3;

/// A channel and how it is shown.
#[derive(Debug, Clone)]
pub struct ChannelView {
    /// Its name in the file, or its number.
    pub name: String,
    /// Whether it is shown.
    pub visible: bool,
    /// How.
    pub look: Intensity,
    /// Limits are still to be taken from the first plane that comes.
    pub wants_limits: bool,
    /// Of the plane on screen.
    pub histogram: Option<Histogram>,
}

/// What an overlay is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Objects found.
    Labels,
    /// Objects as they are known to be.
    Truth,
    /// The network's output.
    Map,
    /// The network's output, still growing.
    Live,
}

/// Something shown over the stack, on the same grid.
pub struct Overlay {
    /// What it is.
    pub role: Role,
    /// Its file's name.
    pub name: String,
    /// Where it is kept.
    pub path: PathBuf,
    /// Whether it is shown.
    pub visible: bool,
    /// Planes.
    pub source: Arc<dyn PlaneSource>,
    /// Identifies them.
    pub source_id: SourceId,
    /// How labels are drawn.
    pub labels: LabelLook,
    /// How intensities are shown.
    pub look: Intensity,
    /// Channels.
    pub channels: usize,
    /// Time points.
    pub times: usize,
}

impl Overlay {
    /// Whether it holds labels.
    pub fn is_labels(&self) -> bool {
        matches!(self.role, Role::Labels | Role::Truth)
    }

    /// How a probability map is shown over a stack.
    pub fn map_look() -> Intensity {
        Intensity { map: ColorMap::Magma, low: 0.0, high: 1.0, gamma: 1.0, opacity: 0.6, blending: Blending::Additive }
    }
}

/// Where a view looks, in µm of the cut.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Camera {
    /// Down and across, of the middle of the view.
    pub center_um: [f64; 2],
    /// Points on screen a µm.
    pub points_per_um: f64,
}

/// Why a file could not be opened beside or over another.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file itself.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Another grid than the stack's.
    #[error("{name} has {got} voxels (Z × Y × X), the stack has {expected}: open it as a stack of its own")]
    Grid {
        /// The file.
        name: String,
        /// Its extents.
        got: String,
        /// The stack's.
        expected: String,
    },
}

/// An open stack.
pub struct Document {
    /// Its id.
    pub id: SourceId,
    /// Its file.
    pub path: PathBuf,
    /// Its file's name.
    pub name: String,
    /// The opened file.
    pub image: Image,
    /// Extents.
    pub extents: Extents,
    /// Voxel size Z, Y, X in µm; 1 where the file does not say.
    pub voxel_um: [f64; 3],
    /// Whether the file says all of it.
    pub voxel_known: bool,
    /// How the objects on screen were made, in µm of this stack, where a prediction of this window said it.
    pub segment: Option<SegmentOptions>,
    /// Diameter of its objects.
    pub object_size: crate::diameter::ObjectSize,
    /// Planes of intensities.
    pub source: Arc<dyn PlaneSource>,
    /// Channels.
    pub channels: Vec<ChannelView>,
    /// Labels, maps, truth.
    pub overlays: Vec<Overlay>,
    /// Voxel Z, Y, X that all views share.
    pub cursor: [usize; 3],
    /// Time point.
    pub time: usize,
    /// Where each of [`Orientation::ALL`] looks; `None` fits it.
    pub cameras: [Option<Camera>; 3],
    /// The label chosen in image or table.
    pub selected: Option<u32>,
    /// Measured objects.
    pub results: Option<Results>,
    /// The file that the labels on screen were saved to, where it is not the one they came from.
    pub saved_labels: Option<PathBuf>,
    /// The labels were saved after these were measured.
    pub table_old: bool,
    /// Axes given by hand.
    pub axes: Option<Axes>,
    /// What a task marks in the views.
    pub marks: crate::views::pen::Marks,
}

fn zyx_text([z, y, x]: [usize; 3]) -> String {
    format!("{z} × {y} × {x}")
}

impl Document {
    /// Opens a stack: headers only. Meant for another thread than the window's.
    ///
    /// # Errors
    /// [`FormatError`] if the file cannot be opened.
    pub fn open(path: &Path, axes: Option<Axes>) -> Result<Self, FormatError> {
        let image = cytoscope_formats::open(path, &OpenOptions { axes: axes.clone(), ..OpenOptions::default() })?;
        let meta = image.meta();
        let extents = Extents::of(meta);
        let sound = |v: Option<f64>| v.filter(|v| v.is_finite() && *v > 0.0);
        let size = [meta.voxel_size_um.z, meta.voxel_size_um.y, meta.voxel_size_um.x].map(sound);
        let voxel_known = size[1].is_some() && size[2].is_some() && (size[0].is_some() || extents.zyx[0] == 1);
        let channels = channel_views(meta, extents);
        Ok(Self {
            id: fresh_id(),
            name: file_name(path),
            path: std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
            voxel_um: size.map(|v| v.unwrap_or(1.0)),
            voxel_known,
            segment: None,
            object_size: Default::default(),
            source: Arc::new(FileSource::new(image.clone(), false)),
            channels,
            overlays: Vec::new(),
            cursor: extents.zyx.map(|n| n / 2),
            time: 0,
            cameras: [None; 3],
            selected: None,
            results: None,
            saved_labels: None,
            table_old: false,
            axes,
            marks: Default::default(),
            image,
            extents,
        })
    }

    /// Opens a file to be shown over this stack.
    ///
    /// # Errors
    /// [`OpenError`] if it cannot be opened, or has another grid.
    pub fn overlay(path: &Path, role: Role, zyx: [usize; 3], axes: Option<Axes>) -> Result<Overlay, OpenError> {
        let open = |axes| cytoscope_formats::open(path, &OpenOptions { axes, ..OpenOptions::default() });
        let mut image = open(None)?;
        // A file with the same wrong axes as its stack.
        if Extents::of(image.meta()).zyx != zyx
            && let Some(again) = axes.and_then(|a| open(Some(a)).ok())
        {
            image = again;
        }
        let extents = Extents::of(image.meta());
        if extents.zyx != zyx {
            return Err(OpenError::Grid { name: file_name(path), got: zyx_text(extents.zyx), expected: zyx_text(zyx) });
        }
        Ok(Overlay {
            role,
            name: file_name(path),
            path: path.to_owned(),
            visible: role != Role::Map,
            source: Arc::new(FileSource::new(image, matches!(role, Role::Labels | Role::Truth))),
            source_id: fresh_id(),
            labels: LabelLook::default(),
            look: Overlay::map_look(),
            channels: extents.channels,
            times: extents.times,
        })
    }

    /// Puts an overlay on top; one of the same role makes way.
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

    /// The file of the labels on screen.
    pub fn labels_path(&self) -> Option<&Path> {
        let overlay = self.of_role(Role::Labels)?;
        Some(self.saved_labels.as_ref().unwrap_or(&overlay.path))
    }

    /// The overlay of a role.
    pub fn of_role(&self, role: Role) -> Option<&Overlay> {
        self.overlays.iter().find(|o| o.role == role)
    }

    /// The overlay of a role.
    pub fn of_role_mut(&mut self, role: Role) -> Option<&mut Overlay> {
        self.overlays.iter_mut().find(|o| o.role == role)
    }

    /// Whether it has more than one slice.
    pub fn is_3d(&self) -> bool {
        self.extents.zyx[0] > 1
    }

    /// Moves along an axis (0 = Z, 1 = Y, 2 = X), staying inside.
    pub fn step(&mut self, axis: usize, by: i64) {
        let n = self.extents.zyx[axis] as i64;
        self.cursor[axis] = (self.cursor[axis] as i64 + by).clamp(0, (n - 1).max(0)) as usize;
    }

    /// Moves through time, staying inside.
    pub fn step_time(&mut self, by: i64) {
        let n = self.extents.times as i64;
        self.time = (self.time as i64 + by).clamp(0, (n - 1).max(0)) as usize;
    }

    /// Height and width in µm of a cut.
    pub fn cut_um(&self, orientation: Orientation) -> [f64; 2] {
        let [_, rows, columns] = orientation.axes();
        [rows, columns].map(|a| self.extents.zyx[a] as f64 * self.voxel_um[a])
    }

    /// Chooses a label, in image and table.
    pub fn select(&mut self, label: Option<u32>) {
        self.selected = label.filter(|l| *l > 0);
        for overlay in self.overlays.iter_mut().filter(|o| o.role == Role::Labels) {
            overlay.labels.selected = self.selected;
        }
    }

    /// Extents, type and voxel size in a line.
    pub fn summary(&self) -> String {
        let [z, y, x] = self.voxel_um;
        let voxel =
            if self.voxel_known { format!("{z:.3} × {y:.3} × {x:.3} µm") } else { "voxel size unknown".to_owned() };
        let times =
            if self.extents.times > 1 { format!("{} time points, ", self.extents.times) } else { String::new() };
        format!("{}{}, {}, {voxel}", times, zyx_text(self.extents.zyx), self.image.meta().dtype.name())
    }
}

/// A file's name for people.
pub fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned())
}

fn channel_views(meta: &ImageMeta, extents: Extents) -> Vec<ChannelView> {
    let is_rgb = extents.samples >= 3 && meta.axes_full.contains(Axis::S);
    (0..extents.channels)
        .map(|c| {
            let of_file = meta.channels.get(c / extents.samples.max(1));
            let name = match of_file.map(|f| f.name.trim()) {
                _ if is_rgb => ["Red", "Green", "Blue", "Alpha"]
                    .get(c % extents.samples)
                    .map_or_else(|| format!("Sample {c}"), |n| (*n).to_owned()),
                Some(n) if !n.is_empty() => n.to_owned(),
                _ => format!("Channel {c}"),
            };
            let map = match of_file.and_then(|f| f.color_rgb) {
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
            let byte_rgb = is_rgb && meta.dtype == cytoscope_volume::DType::U8;
            ChannelView {
                name,
                visible: if is_rgb { c % extents.samples < 3 } else { c < SHOWN_CHANNELS },
                look: Intensity {
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
