//! Contrast limits of a growing prediction, which widen with its values.

use crate::data::histogram::Histogram;
use crate::data::plane::{Orientation, Plane};
use crate::document::{Overlay, Role};
use eframe::egui;
use std::sync::{Arc, Weak};

/// Minimum time between two histograms of a growing prediction, in seconds.
const INTERVAL_SECS: f64 = 0.25;

/// Which plane of a growing prediction was counted last.
#[derive(Default)]
pub(super) struct LiveLimits {
    plane: Weak<Plane>,
    /// Time of the count in seconds, as egui counts it.
    counted_secs: Option<f64>,
}

impl LiveLimits {
    /// The contrast limits of a growing prediction, widened to the values of the XY slice on screen; `None` if they stay,
    /// or if the slice has not changed. A stain has values of any range, of which only those that were predicted so far
    /// are known; probabilities are within 0 to 1.
    pub(super) fn widened(&mut self, ctx: &egui::Context, overlay: &Overlay, plane: &Arc<Plane>) -> Option<(f32, f32)> {
        if overlay.role != Role::Live || plane.at.orientation != Orientation::Xy || !self.is_due(ctx, plane) {
            return None;
        }
        let histogram = Histogram::of(plane).filter(|histogram| histogram.low < 0.0 || histogram.high > 1.0)?;
        let (shown, found) = ((overlay.display.low, overlay.display.high), histogram.limits());
        let wider = (shown.0.min(found.0), shown.1.max(found.1));
        (wider != shown).then_some(wider)
    }

    /// Whether a plane is to be counted now: each once, and not too often. Requests another frame for one that comes too
    /// early.
    fn is_due(&mut self, ctx: &egui::Context, plane: &Arc<Plane>) -> bool {
        let counted = Arc::downgrade(plane);
        if self.plane.ptr_eq(&counted) {
            return false;
        }
        let now_secs = ctx.input(|i| i.time);
        let wait_secs = self.counted_secs.map_or(0.0, |before| before + INTERVAL_SECS - now_secs);
        if wait_secs > 0.0 {
            ctx.request_repaint_after_secs(wait_secs as f32);
            return false;
        }
        (self.plane, self.counted_secs) = (counted, Some(now_secs));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::plane::{PlaneAt, Values};

    #[test]
    fn a_plane_is_counted_once_and_a_newer_one_after_the_interval() {
        let at = |index| PlaneAt::whole(Orientation::Xy, index, [2, 1, 1]);
        let plane = |index| Arc::new(Plane { at: at(index), size: [1, 1], values: Values::F32(vec![2.0]) });
        let ctx = egui::Context::default();
        let (first, second) = (plane(0), plane(1));
        let mut limits = LiveLimits::default();
        let mut counted = Vec::new();
        for (time, plane) in
            [(0.0, &first), (1.0, &first), (1.1, &second), (1.2, &first), (2.0, &second), (2.2, &first)]
        {
            let input = egui::RawInput { time: Some(time), ..Default::default() };
            let _ = ctx.run_ui(input, |ui| {
                if limits.is_due(ui.ctx(), plane) {
                    counted.push(time);
                }
            });
        }
        assert_eq!(counted, [0.0, 1.1, 2.2]);
    }
}
