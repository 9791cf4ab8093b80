//! Thumbnails of training pairs: the middle slices of image and target, read on a worker thread.

use cytoscope_formats::{OpenOptions, label_color, open};
use cytoscope_training_data::{ImageRef, TrainingTask};
use cytoscope_volume::{Axis, Region};
use eframe::egui::{ColorImage, Context, TextureHandle, TextureOptions};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Length of the longer side in pixels.
pub const EDGE: usize = 112;
/// Maximum number of pixels that are read along Y and X; larger slices are cropped to the center.
const MAX_READ: usize = 2048;
/// Maximum number of cached thumbnails.
const MAX_KEPT: usize = 2000;
/// Fraction of voxels that are saturated at either end of the contrast range.
const BRIGHT_SHARE: f64 = 0.003;

/// How a thumbnail is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ThumbStyle {
    /// Intensities.
    Gray,
    /// Labels in their colors.
    Labels,
    /// Intensities of a stain.
    Stain,
}

impl ThumbStyle {
    /// The style for the target of a task.
    pub fn for_target(task: TrainingTask) -> Self {
        match task {
            TrainingTask::Segmentation => ThumbStyle::Labels,
            TrainingTask::LabelFree => ThumbStyle::Stain,
        }
    }
}

/// The thumbnail of a training image, which may still be loading.
#[derive(Clone)]
pub enum Thumb {
    /// The image is queued or being read.
    Waiting,
    /// The thumbnail is loaded as a texture.
    Ready(TextureHandle),
    /// The image cannot be read.
    None,
}

type Key = (ImageRef, ThumbStyle);

/// Reads thumbnails of training images on a thread and caches them.
pub struct Thumbs {
    all: HashMap<Key, Thumb>,
    ask: Option<Sender<Key>>,
    results: Receiver<(Key, Option<ColorImage>)>,
}

impl Thumbs {
    /// Starts the reader thread; `wake` is called when a thumbnail is ready.
    pub fn new(wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        let (ask, requested) = channel::<Key>();
        let (sender, results) = channel();
        let spawned = std::thread::Builder::new().name("thumbnails".to_owned()).spawn(move || {
            for key in requested {
                // A file on which the reader panics has no thumbnail.
                let image = catch_unwind(AssertUnwindSafe(|| picture(&key.0, key.1))).ok().flatten();
                if sender.send((key, image)).is_err() {
                    return;
                }
                wake();
            }
        });
        Self { all: HashMap::new(), ask: spawned.is_ok().then_some(ask), results }
    }

    /// The thumbnail of an image, requested on first use.
    pub fn get(&mut self, image: &ImageRef, style: ThumbStyle) -> Thumb {
        let key = (image.clone(), style);
        if let Some(thumb) = self.all.get(&key) {
            return thumb.clone();
        }
        if self.all.len() >= MAX_KEPT {
            self.all.clear();
        }
        let sent = self.ask.as_ref().is_some_and(|a| a.send(key.clone()).is_ok());
        let thumb = if sent { Thumb::Waiting } else { Thumb::None };
        self.all.insert(key, thumb.clone());
        thumb
    }

    /// Turns the thumbnails that were read since the last call into textures.
    pub fn poll(&mut self, ctx: &Context) {
        for (key, image) in self.results.try_iter() {
            let thumb = image.map_or(Thumb::None, |image| {
                Thumb::Ready(ctx.load_texture("thumbnail", image, TextureOptions::LINEAR))
            });
            self.all.insert(key, thumb);
        }
    }

    /// Removes all thumbnails, for other data.
    pub fn clear(&mut self) {
        self.all.clear();
    }
}

/// The middle slice as a thumbnail. A file that cannot be read has none: the check of the data says why.
fn picture(image: &ImageRef, style: ThumbStyle) -> Option<ColorImage> {
    let options =
        OpenOptions { series: image.series, axes: image.axes.clone(), single_file: true, ..OpenOptions::default() };
    let file = open(&image.path, &options).ok()?;
    let meta = file.meta();
    let shape = &meta.shape_full;
    let position = |axis: Axis| meta.axes_full.position(axis);
    let extent = |axis: Axis| position(axis).and_then(|i| shape.get(i)).copied().unwrap_or(1);
    let mut region = Region::whole(shape);
    let samples = extent(Axis::S).max(1);
    let channel = image.channel.unwrap_or(0);
    let of = |axis: Axis, at: usize| (axis, at.min(extent(axis).saturating_sub(1)), 1);
    let middle = |axis: Axis| {
        let size = extent(axis).min(MAX_READ);
        (axis, (extent(axis) - size) / 2, size)
    };
    let parts = [
        of(Axis::T, image.time.unwrap_or(0)),
        of(Axis::C, channel / samples),
        of(Axis::S, channel % samples),
        of(Axis::Z, extent(Axis::Z) / 2),
        middle(Axis::Y),
        middle(Axis::X),
    ];
    for (axis, start, size) in parts {
        if let Some(i) = position(axis) {
            region = region.with_range(i, start, size);
        }
    }
    let (height, width) = (extent(Axis::Y).min(MAX_READ), extent(Axis::X).min(MAX_READ));
    let values = file.read(0, &region).ok()?.into_samples().to_f32();
    draw(&values, height, width, style)
}

/// Draws a slice with at most [`EDGE`] pixels along its longer side.
fn draw(values: &[f32], height: usize, width: usize, style: ThumbStyle) -> Option<ColorImage> {
    if height == 0 || width == 0 || values.len() != height * width {
        return None;
    }
    let step = (height.max(width) as f64 / EDGE as f64).max(1.0);
    let size = [width, height].map(|n| ((n as f64 / step) as usize).max(1));
    let at = |i: usize, n: usize| ((i as f64 * step) as usize).min(n - 1);
    let pixels: Vec<f32> = (0..size[1])
        .flat_map(|y| (0..size[0]).map(move |x| (y, x)))
        .filter_map(|(y, x)| values.get(at(y, height) * width + at(x, width)).copied())
        .collect();
    let mut sorted: Vec<f32> = pixels.iter().copied().filter(|v| v.is_finite()).collect();
    sorted.sort_by(f32::total_cmp);
    let rank = |share: f64| sorted.get(((sorted.len().saturating_sub(1)) as f64 * share) as usize).copied();
    let (low, high) = (rank(BRIGHT_SHARE).unwrap_or(0.0), rank(1.0 - BRIGHT_SHARE).unwrap_or(1.0));
    let share = |v: f32| ((v - low) / (high - low).max(f32::MIN_POSITIVE)).clamp(0.0, 1.0);
    let rgb: Vec<u8> = pixels
        .iter()
        .flat_map(|v| match style {
            ThumbStyle::Labels if *v >= 1.0 => label_color(*v as u64),
            ThumbStyle::Labels => [0; 3],
            ThumbStyle::Gray => [(share(*v) * 255.0) as u8; 3],
            ThumbStyle::Stain => [60.0, 220.0, 130.0].map(|c| (c * share(*v)) as u8),
        })
        .collect();
    (rgb.len() == size[0] * size[1] * 3).then(|| ColorImage::from_rgb(size, &rgb))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

    use super::*;

    #[test]
    fn pictures_are_small_and_keep_their_shape() {
        let values: Vec<f32> = (0..300 * 150).map(|i| (i % 150) as f32).collect();
        let image = draw(&values, 300, 150, ThumbStyle::Gray).unwrap();
        assert_eq!(image.size, [56, 112]);
        let image = draw(&values, 300, 150, ThumbStyle::Labels).unwrap();
        assert_eq!(image.pixels[0], eframe::egui::Color32::BLACK, "background");
        assert!(draw(&[f32::NAN; 4], 2, 2, ThumbStyle::Stain).is_some());
        assert!(draw(&[], 0, 5, ThumbStyle::Gray).is_none());
        assert!(picture(&ImageRef::of("/nothere.tif"), ThumbStyle::Gray).is_none());
    }
}
