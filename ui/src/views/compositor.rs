//! Composites the picture of a view; large ones on a worker thread, where the newest request replaces waiting ones.

use crate::data::composite::{DisplayedPlane, composite};
use eframe::egui::ColorImage;
use std::sync::{Arc, Mutex, PoisonError};

/// Pictures up to this size are composited immediately, which takes a few ms.
const MAX_IMMEDIATE_PIXELS: usize = 600_000;

/// Number of a request and its picture, if there was something to show.
type FinishedPicture = Arc<Mutex<Option<(u64, Option<ColorImage>)>>>;

/// Composites the pictures of one view.
#[derive(Default)]
pub struct Compositor {
    requested: u64,
    in_progress: Option<u64>,
    finished: FinishedPicture,
    waiting: Option<(u64, Vec<DisplayedPlane>)>,
}

impl Compositor {
    /// Requests a picture and returns it if it is small. A waiting earlier request is dropped.
    pub fn request(&mut self, shown: Vec<DisplayedPlane>, wake: impl Fn() + Send + 'static) -> Option<ColorImage> {
        self.requested += 1;
        let pixels: usize = shown.first().map_or(0, |s| s.plane().values.len());
        if pixels <= MAX_IMMEDIATE_PIXELS && self.in_progress.is_none() {
            return composite(&shown);
        }
        self.waiting = Some((self.requested, shown));
        self.begin(wake);
        None
    }

    fn begin(&mut self, wake: impl Fn() + Send + 'static) {
        if self.in_progress.is_some() {
            return;
        }
        let Some((number, shown)) = self.waiting.take() else { return };
        self.in_progress = Some(number);
        let finished = Arc::clone(&self.finished);
        rayon::spawn(move || {
            let image = composite(&shown);
            *finished.lock().unwrap_or_else(PoisonError::into_inner) = Some((number, image));
            wake();
        });
    }

    /// Returns a finished picture, if any, and starts the waiting request.
    pub fn take(&mut self, wake: impl Fn() + Send + 'static) -> Option<ColorImage> {
        let (number, image) = self.finished.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        if self.in_progress == Some(number) {
            self.in_progress = None;
        }
        self.begin(wake);
        image
    }

    /// Whether a picture is requested or in progress.
    pub fn is_busy(&self) -> bool {
        self.in_progress.is_some() || self.waiting.is_some()
    }
}
