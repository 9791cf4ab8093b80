//! The planes of a slice that a view shows: those of the visible channels and overlays, with their display settings.

use super::live_limits::LiveLimits;
use crate::data::composite::{DisplayedPlane, Intensity};
use crate::data::histogram::Histogram;
use crate::data::loader::{LoadState, PlaneLoader, Slot, SlotLayer, SourceId};
use crate::data::plane::{Orientation, Plane, PlaneAt};
use crate::document::{ChannelView, Document, DocumentChange, Overlay, Role};
use eframe::egui;
use std::sync::Arc;

/// Whether two lists are the same planes with the same display settings.
pub(super) fn same_planes(a: &[DisplayedPlane], b: &[DisplayedPlane]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| match (a, b) {
            (DisplayedPlane::Intensity(p, l), DisplayedPlane::Intensity(q, m)) => Arc::ptr_eq(p, q) && l == m,
            (DisplayedPlane::Labels(p, l), DisplayedPlane::Labels(q, m)) => Arc::ptr_eq(p, q) && l == m,
            _ => false,
        })
}

/// Content of a slice view.
pub(super) struct Planes {
    /// All planes, from the lowest to the highest.
    pub(super) all: Vec<DisplayedPlane>,
    /// The planes of the stack.
    pub(super) base: Vec<DisplayedPlane>,
    /// The roles of the planes; `None` for planes of the stack.
    pub(super) roles: Vec<Option<Role>>,
    /// Number of planes of visible channels, which come first.
    pub(super) channels: usize,
    /// Whether no plane is still being loaded.
    pub(super) complete: bool,
    /// Why a plane cannot be read.
    pub(super) failed: Option<String>,
}

/// The loaded planes of the visible channels and overlays at a slice; `live` finds the contrast limits of a growing
/// prediction, and `changes` gets new contrast limits.
pub(super) fn displayed_planes(
    ctx: &egui::Context,
    document: &Document,
    loader: &PlaneLoader,
    at: &PlaneAt,
    live: &mut LiveLimits,
    changes: &mut Vec<DocumentChange>,
) -> Planes {
    let orientation = at.orientation;
    let document_id = document.id;
    let slot = |layer| Slot { document: document_id, orientation, layer };
    let (source, source_id) = document.shown_source();
    let mut all: Vec<DisplayedPlane> = Vec::new();
    let (mut complete, mut failed) = (true, None);
    for (c, channel) in document.channels.iter().enumerate().filter(|(_, c)| c.visible) {
        let at = PlaneAt { channel: c, ..at.clone() };
        match loader.get(slot(SlotLayer::Channel(c)), source_id, source, &at) {
            LoadState::Ready(plane) => {
                let (display, change) = contrast(channel, source_id, c, &plane);
                changes.extend(change);
                all.push(DisplayedPlane::Intensity(plane, display));
            }
            LoadState::Waiting => complete = false,
            LoadState::Failed(why) => failed = failed.or(Some(why)),
        }
    }
    let channels = all.len();
    if all.is_empty() && complete && failed.is_none() {
        // No channel is visible: a black base image for the overlays.
        let at = PlaneAt { channel: 0, ..at.clone() };
        match loader.get(slot(SlotLayer::Base), source_id, source, &at) {
            LoadState::Ready(plane) => {
                let black = Intensity { opacity: 0.0, ..Overlay::map_display() };
                all.push(DisplayedPlane::Intensity(plane, black));
            }
            LoadState::Waiting => complete = false,
            LoadState::Failed(why) => failed = Some(why),
        }
    }
    let base = all.clone();
    let mut roles = vec![None; all.len()];
    let is_shown = |overlay: &Overlay| overlay.visible && overlay.is_at(document.time);
    for (i, overlay) in document.overlays.iter().enumerate().filter(|(_, o)| is_shown(o)) {
        let time = if overlay.times > 1 { document.time } else { 0 };
        let at = PlaneAt { channel: 0, time: time.min(overlay.times.saturating_sub(1)), ..at.clone() };
        match loader.get(slot(SlotLayer::Overlay(i)), overlay.source_id, &overlay.source, &at) {
            LoadState::Ready(plane) => {
                changes.extend(map_histogram(overlay, &plane));
                let mut display = overlay.display.clone();
                if let Some((low, high)) = live.widened(ctx, overlay, &plane) {
                    (display.low, display.high) = (low, high);
                    changes.push(DocumentChange::LiveContrast { source: overlay.source_id, low, high });
                }
                roles.push(Some(overlay.role));
                all.push(match overlay.is_labels() {
                    true => DisplayedPlane::Labels(plane, overlay.labels.clone()),
                    false => DisplayedPlane::Intensity(plane, display),
                });
            }
            LoadState::Waiting => complete = false,
            LoadState::Failed(why) => failed = failed.or(Some(why)),
        }
    }
    Planes { all, base, roles, channels, complete, failed }
}

/// The display settings of a channel for a loaded plane. The histogram is that of the XY slice on screen, and the contrast
/// limits are taken from it if they are still to be set; the change of the document is returned as well.
fn contrast(
    channel: &ChannelView,
    source: SourceId,
    index: usize,
    plane: &Plane,
) -> (Intensity, Option<DocumentChange>) {
    let mut display = channel.display.clone();
    let is_known = channel.histogram.as_ref().is_some_and(|histogram| histogram.belongs_to(plane));
    if plane.at.orientation != Orientation::Xy || (!channel.wants_limits && is_known) {
        return (display, None);
    }
    let Some(histogram) = Histogram::of(plane) else { return (display, None) };
    let limits = channel.wants_limits.then(|| histogram.limits());
    if let Some((low, high)) = limits {
        (display.low, display.high) = (low, high);
    }
    (display, Some(DocumentChange::Contrast { source, index, histogram, limits }))
}

/// The change that sets the histogram of a map to that of the XY slice on screen.
fn map_histogram(overlay: &Overlay, plane: &Plane) -> Option<DocumentChange> {
    let is_known = overlay.histogram.as_ref().is_some_and(|histogram| histogram.belongs_to(plane));
    if overlay.role != Role::Map || is_known || plane.at.orientation != Orientation::Xy {
        return None;
    }
    let histogram = Histogram::of(plane)?;
    Some(DocumentChange::MapHistogram { source: overlay.source_id, histogram })
}
