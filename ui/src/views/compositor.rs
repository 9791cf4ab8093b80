//! Composites the picture of a view; large ones on a worker thread, where the newest request replaces waiting ones.

use crate::data::composite::{DisplayedPlane, composite};
use eframe::egui::{ColorImage, Rect};
use std::sync::{Arc, Mutex, PoisonError};

/// Pictures up to this size are composited immediately, which takes a few ms.
const MAX_IMMEDIATE_PIXELS: usize = 600_000;

/// A composited picture.
pub struct Picture {
    /// Its pixels.
    pub image: ColorImage,
    /// Region of the slice that it covers: columns along x, rows along y.
    pub covers: Rect,
}

impl Picture {
    /// Composites planes that cover a region; `None` if there is nothing to show.
    fn of(shown: &[DisplayedPlane], covers: Rect) -> Option<Self> {
        composite(shown).map(|image| Self { image, covers })
    }
}

/// Number of a request and its picture, if there was something to show.
type FinishedPicture = Arc<Mutex<Option<(u64, Option<Picture>)>>>;

/// Composites the pictures of one view.
#[derive(Default)]
pub struct Compositor {
    requested: u64,
    in_progress: Option<u64>,
    finished: FinishedPicture,
    /// Number, planes and region of the request that waits.
    waiting: Option<(u64, Vec<DisplayedPlane>, Rect)>,
}

impl Compositor {
    /// Requests the picture of planes that cover a region, and returns it if it is small. A waiting earlier request is dropped.
    pub fn request(
        &mut self,
        shown: Vec<DisplayedPlane>,
        covers: Rect,
        wake: impl Fn() + Send + 'static,
    ) -> Option<Picture> {
        self.requested += 1;
        let pixels: usize = shown.first().map_or(0, |s| s.plane().values.len());
        if pixels <= MAX_IMMEDIATE_PIXELS && self.in_progress.is_none() {
            return Picture::of(&shown, covers);
        }
        self.waiting = Some((self.requested, shown, covers));
        self.begin(wake);
        None
    }

    fn begin(&mut self, wake: impl Fn() + Send + 'static) {
        if self.in_progress.is_some() {
            return;
        }
        let Some((number, shown, covers)) = self.waiting.take() else { return };
        self.in_progress = Some(number);
        let finished = Arc::clone(&self.finished);
        rayon::spawn(move || {
            let picture = Picture::of(&shown, covers);
            *finished.lock().unwrap_or_else(PoisonError::into_inner) = Some((number, picture));
            wake();
        });
    }

    /// Returns a finished picture, if any, and starts the waiting request. A newer picture may have been requested since.
    pub fn take(&mut self, wake: impl Fn() + Send + 'static) -> Option<Picture> {
        let (number, picture) = self.finished.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        if self.in_progress == Some(number) {
            self.in_progress = None;
        }
        self.begin(wake);
        picture
    }

    /// Whether a picture is requested or in progress.
    pub fn is_busy(&self) -> bool {
        self.in_progress.is_some() || self.waiting.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::plane::{Orientation, Plane, PlaneAt, Values};
    use crate::data::test_planes::wait_until;
    use crate::document::Overlay;
    use eframe::egui::{pos2, vec2};

    #[test]
    fn a_picture_covers_the_region_of_its_own_request() {
        let size = [700, 1000];
        let at = PlaneAt::whole(Orientation::Xy, 0, [1, size[0], size[1]]);
        let plane = Arc::new(Plane { at, size, values: Values::U8(vec![1; size[0] * size[1]]) });
        let shown = || vec![DisplayedPlane::Intensity(Arc::clone(&plane), Overlay::map_display())];
        let region = |first_column: f32| Rect::from_min_size(pos2(first_column, 0.0), vec2(1000.0, 700.0));
        let mut compositor = Compositor::default();
        // The view is moved while the first picture is composited.
        for first_column in [0.0, 50.0] {
            assert!(compositor.request(shown(), region(first_column), || {}).is_none());
        }
        let mut regions = Vec::new();
        wait_until("both pictures", || {
            regions.extend(compositor.take(|| {}).map(|picture| picture.covers));
            regions.len() == 2
        });
        assert_eq!(regions, [region(0.0), region(50.0)]);
        assert!(!compositor.is_busy());
    }
}
