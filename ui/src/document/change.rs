//! Changes of how a document is shown, which views and panels request.

use super::{Document, Role, SliceCamera};
use crate::data::composite::{Intensity, LabelStyle};
use crate::data::histogram::Histogram;
use crate::data::loader::SourceId;
use crate::diameter::ObjectSize;
use crate::preprocess::{PreprocessPreview, Preprocessing};
use cytoscope_preprocess::PreprocessStep;

/// A change of how a document is shown.
#[derive(Debug, Clone, PartialEq)]
pub enum DocumentChange {
    /// Moves the crosshair to a voxel Z, Y, X.
    Cursor([usize; 3]),
    /// Shows another time point.
    Time(usize),
    /// Moves a slice view, given by its index in [`Orientation::ALL`](crate::data::plane::Orientation::ALL); `None` fits the
    /// slice into the view.
    Camera(usize, Option<SliceCamera>),
    /// Sets whether a channel is visible, and its display settings.
    Channel {
        /// Index of the channel.
        index: usize,
        /// Whether views draw the channel.
        visible: bool,
        /// Display settings.
        display: Intensity,
    },
    /// Sets the histogram of the displayed plane of a channel.
    Contrast {
        /// Id of the source that the plane was read from; one that is no longer shown changes nothing.
        source: SourceId,
        /// Index of the channel.
        index: usize,
        /// Counts of the displayed plane's intensities.
        histogram: Histogram,
        /// The contrast limits, if they are still to be set.
        limits: Option<(f32, f32)>,
    },
    /// Sets the histogram of a displayed plane of the map.
    MapHistogram {
        /// Id of the source that the plane was read from; one that is no longer shown changes nothing.
        source: SourceId,
        /// Counts of the displayed plane's intensities.
        histogram: Histogram,
    },
    /// Sets the contrast limits of a growing prediction.
    LiveContrast {
        /// Id of the source that the values were read from; one that is no longer shown changes nothing.
        source: SourceId,
        /// Value that is shown in black.
        low: f32,
        /// Value that is shown in white.
        high: f32,
    },
    /// Sets whether the overlay of a role is visible, and its display settings.
    Overlay {
        /// Kind of the overlay.
        role: Role,
        /// Whether views draw the overlay.
        visible: bool,
        /// How labels are drawn.
        style: LabelStyle,
        /// Opacity of filled labels from 0 to 1.
        label_opacity: f32,
        /// Display settings of intensities.
        display: Intensity,
    },
    /// Selects a label in image and table.
    Select(Option<u32>),
    /// Sets the object diameter.
    Diameter(ObjectSize),
    /// Sets the preprocessing steps, and whether they are previewed.
    Preprocessing(Preprocessing),
    /// Sets the first steps of a preprocessed copy.
    CopySteps(Vec<PreprocessStep>),
    /// Sorts the object table by a column.
    SortTable(usize),
}

impl Document {
    /// Changes how the document is shown. Changes of channels and overlays that no longer exist are ignored.
    pub fn apply(&mut self, change: DocumentChange) {
        match change {
            DocumentChange::Cursor(cursor) => self.cursor = cursor,
            DocumentChange::Time(time) => self.time = time,
            DocumentChange::Camera(view, camera) => {
                if let Some(place) = self.cameras.get_mut(view) {
                    *place = camera;
                }
            }
            DocumentChange::Channel { index, visible, display } => {
                if let Some(channel) = self.channels.get_mut(index) {
                    channel.visible = visible;
                    channel.display = display;
                }
            }
            DocumentChange::Contrast { source, index, histogram, limits } => {
                let is_shown = self.shown_source().1 == source;
                if let Some(channel) = self.channels.get_mut(index).filter(|_| is_shown) {
                    channel.histogram = Some(histogram);
                    if let Some((low, high)) = limits {
                        (channel.display.low, channel.display.high) = (low, high);
                        channel.wants_limits = false;
                    }
                }
            }
            DocumentChange::MapHistogram { source, histogram } => {
                if let Some(map) = self.overlay_with_role_mut(Role::Map).filter(|map| map.source_id == source) {
                    map.histogram = Some(histogram);
                }
            }
            DocumentChange::LiveContrast { source, low, high } => {
                if let Some(live) = self.overlay_with_role_mut(Role::Live).filter(|live| live.source_id == source) {
                    (live.display.low, live.display.high) = (low, high);
                }
            }
            DocumentChange::Overlay { role, visible, style, label_opacity, display } => {
                if let Some(overlay) = self.overlay_with_role_mut(role) {
                    overlay.visible = visible;
                    overlay.labels.style = style;
                    overlay.labels.opacity = label_opacity;
                    overlay.display = display;
                }
            }
            DocumentChange::Select(label) => self.select(label),
            DocumentChange::Diameter(size) => self.object_size = size,
            DocumentChange::Preprocessing(settings) => self.set_preprocessing(settings),
            DocumentChange::CopySteps(steps) => self.copy_steps = steps,
            DocumentChange::SortTable(column) => {
                if let Some(results) = &mut self.results {
                    results.sort_by(column);
                }
            }
        }
    }

    /// Sets the preprocessing, and shows the preprocessed stack or the stack itself. The contrast limits of a preview
    /// are set from its first plane; the contrast limits of the stack are restored after it.
    fn set_preprocessing(&mut self, settings: Preprocessing) {
        let steps = &settings.steps;
        let wanted = (settings.preview && !steps.is_empty()).then(|| PreprocessPreview::new(&self.image, steps));
        (self.preview, self.preview_error) = match wanted {
            None => (None, None),
            Some(Ok(preview)) => (Some(preview), None),
            Some(Err(reason)) => (None, Some(reason)),
        };
        self.preprocessing = settings;
        if self.preview.is_some() {
            let limits = self.channels.iter().map(|c| (c.display.low, c.display.high, c.wants_limits)).collect();
            self.limits_before.get_or_insert(limits);
            self.channels.iter_mut().for_each(|c| (c.wants_limits, c.histogram) = (true, None));
        } else if let Some(limits) = self.limits_before.take() {
            for (channel, (low, high, wants_limits)) in self.channels.iter_mut().zip(limits) {
                (channel.display.low, channel.display.high) = (low, high);
                (channel.wants_limits, channel.histogram) = (wants_limits, None);
            }
        }
    }
}
