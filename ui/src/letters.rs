//! Letters that the built-in fonts lack: names of files may be in any script, so a font of the system is added when one needs it.

use eframe::egui::epaint::text::{FontInsert, FontPriority, InsertFontFamily};
use eframe::egui::{self, FontData, FontFamily, FontId};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};

/// Largest font that is read.
const MAX_BYTES: u64 = 64 << 20;

/// Where systems keep fonts with many letters: of each row the first that is there is taken.
const FONTS: [&[&str]; 2] = [
    // Chinese, Japanese, Korean.
    &[
        "/usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc",
        "/usr/share/fonts/noto-cjk/NotoSansCJK-Regular.ttc",
        "/usr/share/fonts/google-noto-cjk/NotoSansCJK-Regular.ttc",
        "/usr/share/fonts/google-noto-sans-cjk-fonts/NotoSansCJK-Regular.ttc",
        "/usr/share/fonts/truetype/wqy/wqy-microhei.ttc",
        "/usr/share/fonts/truetype/droid/DroidSansFallbackFull.ttf",
        "/System/Library/Fonts/Hiragino Sans GB.ttc",
        "/System/Library/Fonts/STHeiti Light.ttc",
        "C:\\Windows\\Fonts\\msyh.ttc",
        "C:\\Windows\\Fonts\\YuGothM.ttc",
        "C:\\Windows\\Fonts\\malgun.ttf",
    ],
    // Most other scripts.
    &[
        "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf",
        "/usr/share/fonts/dejavu-sans-fonts/DejaVuSans.ttf",
        "/usr/share/fonts/TTF/DejaVuSans.ttf",
        "/System/Library/Fonts/Supplemental/Arial Unicode.ttf",
        "C:\\Windows\\Fonts\\segoeui.ttf",
    ],
];

/// A font: its name and its file.
type Found = (String, Vec<u8>);

/// Fonts that are there.
fn find() -> Vec<Found> {
    let small = |path: &&str| std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() <= MAX_BYTES);
    let read = |path: &str| {
        let name = Path::new(path).file_stem()?.to_string_lossy().into_owned();
        let bytes = std::fs::read(path).ok()?;
        is_sound(&bytes).then_some((name, bytes))
    };
    FONTS.iter().filter_map(|row| row.iter().copied().filter(small).find_map(read)).collect()
}

/// Whether the directory of a font (the first, of a collection) lies within it, and its tables do: what is damaged or cut short must
/// not reach those who draw with it.
fn is_sound(bytes: &[u8]) -> bool {
    let word = |at: usize| Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk::<4>()?) as usize);
    let first = match bytes.get(..4) {
        Some(b"ttcf") => word(12),
        _ => Some(0),
    };
    let tables = |at: usize| -> Option<bool> {
        let kind = bytes.get(at..)?.first_chunk::<4>()?;
        let known = matches!(kind, [0, 1, 0, 0] | b"OTTO" | b"true");
        let count = word(at.checked_add(4)?)? >> 16;
        let inside = |i: usize| {
            let entry = at.checked_add(12 + i * 16)?;
            Some(word(entry + 8)?.checked_add(word(entry + 12)?)? <= bytes.len())
        };
        Some(known && count > 0 && (0..count).all(|i| inside(i) == Some(true)))
    };
    first.and_then(tables) == Some(true)
}

/// Whether the fonts have every letter of a text.
pub fn known(ctx: &egui::Context, text: &str) -> bool {
    text.is_ascii() || ctx.fonts_mut(|fonts| fonts.has_glyphs(&FontId::new(13.5, FontFamily::Proportional), text))
}

/// Adds fonts of the system, once, when a name needs them.
#[derive(Debug, Default)]
pub struct Letters {
    asked: bool,
    coming: Option<Receiver<Vec<Found>>>,
    looked_at: Vec<PathBuf>,
}

impl Letters {
    /// Looks at the names on screen, if they are others than before.
    pub fn watch<'a>(&mut self, ctx: &egui::Context, paths: impl Iterator<Item = &'a Path> + Clone) {
        if let Some(coming) = &self.coming
            && let Ok(found) = coming.try_recv()
        {
            self.coming = None;
            for (name, bytes) in found {
                let family = |family| InsertFontFamily { family, priority: FontPriority::Lowest };
                let families = vec![family(FontFamily::Proportional), family(FontFamily::Monospace)];
                ctx.add_font(FontInsert { name, data: FontData::from_owned(bytes), families });
            }
        }
        if self.asked || paths.clone().eq(self.looked_at.iter().map(PathBuf::as_path)) {
            return;
        }
        self.looked_at = paths.clone().map(Path::to_owned).collect();
        if paths.into_iter().all(|p| known(ctx, &p.to_string_lossy())) {
            return;
        }
        self.asked = true;
        let (sender, receiver) = channel();
        let wake = ctx.clone();
        let spawned = std::thread::Builder::new().name("letters".to_owned()).spawn(move || {
            // A window that is gone needs no letters.
            let _ = sender.send(find());
            wake.request_repaint();
        });
        self.coming = spawned.is_ok().then_some(receiver);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_fonts_are_told_from_sound_ones() {
        let fonts = egui::FontDefinitions::default();
        for data in fonts.font_data.values() {
            let bytes = data.font.as_ref();
            assert!(is_sound(bytes));
            assert!(!is_sound(&bytes[..bytes.len() / 2]) && !is_sound(&bytes[..3]));
        }
        assert!(!is_sound(b"") && !is_sound(b"ttcf") && !is_sound(&[0xff; 400]));
    }
}
