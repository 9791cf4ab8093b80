//! Encodes views as PNG files.

use crate::data::composite::{DisplayedPlane, composite};
use crate::views::scale_bar;
use eframe::egui::ColorImage;

/// Maximum length of the scale bar as a fraction of the image width.
const BAR_SHARE: f64 = 0.25;

/// Composites planes into a PNG with one pixel per plane pixel, and a scale bar if the pixel width in µm is given.
///
/// # Errors
/// A message if there is nothing to show or encoding fails.
pub fn png(shown: &[DisplayedPlane], pixel_um: Option<f64>) -> Result<Vec<u8>, String> {
    let mut picture = composite(shown).ok_or("there is no picture on screen")?;
    if let Some(um) = pixel_um {
        let columns = shown.first().map_or(1, |s| s.plane().at.pixel_size()[1]);
        draw_bar(&mut picture, um * columns as f64);
    }
    encode(&picture)
}

/// Encodes an image as PNG.
///
/// # Errors
/// A message if the image is too large.
pub fn encode(picture: &ColorImage) -> Result<Vec<u8>, String> {
    let rgb: Vec<u8> = picture.pixels.iter().flat_map(|p| [p.r(), p.g(), p.b()]).collect();
    let [width, height] = picture.size;
    let size = |n: usize| u32::try_from(n).map_err(|_| "the picture is too large for PNG".to_owned());
    let mut png = Vec::new();
    image::ImageEncoder::write_image(
        image::codecs::png::PngEncoder::new(&mut png),
        &rgb,
        size(width)?,
        size(height)?,
        image::ExtendedColorType::Rgb8,
    )
    .map_err(|e| e.to_string())?;
    Ok(png)
}

/// Draws a white scale bar with a black border in the lower left corner.
fn draw_bar(image: &mut ColorImage, pixel_um: f64) {
    let [width, height] = image.size;
    let Some(um) = scale_bar::length_um(1.0 / pixel_um, width as f64 * BAR_SHARE) else { return };
    let length = (um / pixel_um).round() as usize;
    let thick = (height / 100).max(2);
    let (left, top) = (width / 30 + 1, height.saturating_sub(height / 30 + thick + 1));
    let mut fill = |x0: usize, x1: usize, y0: usize, y1: usize, color| {
        for y in y0..y1.min(height) {
            for x in x0..x1.min(width) {
                if let Some(pixel) = image.pixels.get_mut(y * width + x) {
                    *pixel = color;
                }
            }
        }
    };
    use eframe::egui::Color32;
    fill(left.saturating_sub(1), left + length + 1, top.saturating_sub(1), top + thick + 1, Color32::BLACK);
    fill(left, left + length, top, top + thick, Color32::WHITE);
}
