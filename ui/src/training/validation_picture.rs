//! Pictures of the output on validation images, with ground truth and prediction.

use eframe::egui::{ColorImage, Context, TextureHandle, TextureOptions};
use image::{ImageReader, Limits};
use std::io::{Cursor, Read};
use std::path::Path;
use std::sync::OnceLock;

/// Maximum size of a picture file in bytes.
const MAX_BYTES: u64 = 16 << 20;
/// Maximum width and height in pixels.
const MAX_EDGE: u32 = 4096;

/// A picture with its caption.
pub struct ValidationPicture {
    /// Training step of the picture; `None` if unknown.
    pub step: Option<u64>,
    /// Which image and slice are shown.
    pub caption: String,
    image: ColorImage,
    texture: OnceLock<TextureHandle>,
}

impl std::fmt::Debug for ValidationPicture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ValidationPicture")
            .field("step", &self.step)
            .field("caption", &self.caption)
            .finish_non_exhaustive()
    }
}

impl ValidationPicture {
    /// Reads a picture file; `None` if it is missing or not an image.
    pub fn read(path: &Path, step: Option<u64>, caption: String) -> Option<Self> {
        let mut bytes = Vec::new();
        std::fs::File::open(path).ok()?.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
        let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().ok()?;
        let mut limits = Limits::default();
        (limits.max_image_width, limits.max_image_height) = (Some(MAX_EDGE), Some(MAX_EDGE));
        reader.limits(limits);
        let picture = reader.decode().ok()?.to_rgb8();
        let size = [picture.width() as usize, picture.height() as usize];
        Some(Self { step, caption, image: ColorImage::from_rgb(size, picture.as_raw()), texture: OnceLock::new() })
    }

    /// Width and height in pixels.
    pub fn size(&self) -> [usize; 2] {
        self.image.size
    }

    /// The texture of the picture, uploaded on first use.
    pub fn texture(&self, ctx: &Context) -> TextureHandle {
        let load = || ctx.load_texture("validation", self.image.clone(), TextureOptions::LINEAR);
        self.texture.get_or_init(load).clone()
    }
}

/// Maximum number of example pictures in a package.
const MAX_EXAMPLES: usize = 3;

/// Reads the pictures of the best, median and worst validation image from a package folder.
pub fn examples(package: &Path) -> Vec<ValidationPicture> {
    let paths: Vec<_> =
        (0..MAX_EXAMPLES).map(|i| package.join(format!("example_{i}.png"))).take_while(|path| path.is_file()).collect();
    let names: &[&str] = match paths.len() {
        0 | 1 => &[""],
        2 => &["Better", "Worse"],
        _ => &["Best", "Median", "Worst"],
    };
    paths.iter().zip(names).filter_map(|(path, name)| ValidationPicture::read(path, None, (*name).to_owned())).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

    use super::*;

    #[test]
    fn files_that_are_not_images_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shown.png");
        let read = || ValidationPicture::read(&path, Some(3), "a".to_owned());
        assert!(read().is_none(), "it is not there");
        std::fs::write(&path, "no picture").unwrap();
        assert!(read().is_none());
        let mut picture = ColorImage::filled([7, 5], eframe::egui::Color32::RED);
        picture.pixels[0] = eframe::egui::Color32::BLUE;
        std::fs::write(&path, crate::picture::encode(&picture).unwrap()).unwrap();
        let shown = read().unwrap();
        assert_eq!((shown.size(), shown.step, shown.image.pixels), ([7, 5], Some(3), picture.pixels));
    }

    #[test]
    fn pictures_of_a_package_are_read_in_order() {
        let folder = tempfile::tempdir().unwrap();
        assert!(examples(folder.path()).is_empty());
        for i in 0..3 {
            let picture = ColorImage::filled([3 + i, 5], eframe::egui::Color32::RED);
            let bytes = crate::picture::encode(&picture).unwrap();
            std::fs::write(folder.path().join(format!("example_{i}.png")), bytes).unwrap();
        }
        let all: Vec<_> = examples(folder.path()).iter().map(|s| (s.caption.clone(), s.size()[0])).collect();
        assert_eq!(all, [("Best".to_owned(), 3), ("Median".to_owned(), 4), ("Worst".to_owned(), 5)]);
    }
}
