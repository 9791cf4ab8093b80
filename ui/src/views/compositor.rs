//! Pictures made off the window's thread where they are large; the newest of a view wins.

use crate::data::composite::{Shown, composite};
use eframe::egui::ColorImage;
use std::sync::{Arc, Mutex, PoisonError};

/// Pictures up to so many pixels are made at once: they take a few ms.
const AT_ONCE_PIXELS: usize = 600_000;

/// The number of a picture, and the picture where there was something to show.
type Made = Arc<Mutex<Option<(u64, Option<ColorImage>)>>>;

/// Makes the pictures of one view.
#[derive(Default)]
pub struct Compositor {
    asked: u64,
    under_way: Option<u64>,
    made: Made,
    waiting: Option<(u64, Vec<Shown>)>,
}

impl Compositor {
    /// Asks for a picture; what was asked for before and not begun is dropped.
    pub fn ask(&mut self, shown: Vec<Shown>, wake: impl Fn() + Send + 'static) -> Option<ColorImage> {
        self.asked += 1;
        let pixels: usize = shown.first().map_or(0, |s| s.plane().values.len());
        if pixels <= AT_ONCE_PIXELS && self.under_way.is_none() {
            return composite(&shown);
        }
        self.waiting = Some((self.asked, shown));
        self.begin(wake);
        None
    }

    fn begin(&mut self, wake: impl Fn() + Send + 'static) {
        if self.under_way.is_some() {
            return;
        }
        let Some((number, shown)) = self.waiting.take() else { return };
        self.under_way = Some(number);
        let made = Arc::clone(&self.made);
        rayon::spawn(move || {
            let image = composite(&shown);
            *made.lock().unwrap_or_else(PoisonError::into_inner) = Some((number, image));
            wake();
        });
    }

    /// The picture that has come, if one has, and begins the one that waits.
    pub fn take(&mut self, wake: impl Fn() + Send + 'static) -> Option<ColorImage> {
        let (number, image) = self.made.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        if self.under_way == Some(number) {
            self.under_way = None;
        }
        self.begin(wake);
        image
    }

    /// Whether a picture is being made.
    pub fn is_busy(&self) -> bool {
        self.under_way.is_some() || self.waiting.is_some()
    }
}
