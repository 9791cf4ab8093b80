//! Fallback fonts: names of files and channels may be in any script, so system fonts are added when the built-in fonts lack a
//! glyph.

use eframe::egui::epaint::text::{FontInsert, FontPriority, InsertFontFamily};
use eframe::egui::{self, FontData, FontFamily, FontId};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};

/// Maximum size of a font file in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// Paths of system fonts with many glyphs. The first existing file of each row is used.
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

/// Name of a font and the bytes of its file.
type FontFile = (String, Vec<u8>);

/// Reads the available fallback fonts.
fn find() -> Vec<FontFile> {
    let small = |path: &&str| std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() <= MAX_BYTES);
    let read = |path: &str| {
        let name = Path::new(path).file_stem()?.to_string_lossy().into_owned();
        let bytes = std::fs::read(path).ok()?;
        has_complete_tables(&bytes).then_some((name, bytes))
    };
    FONTS.iter().filter_map(|row| row.iter().copied().filter(small).find_map(read)).collect()
}

/// Whether a font file (of a collection, its first font) contains all tables that it lists. Truncated and damaged files must
/// not reach the text renderer.
fn has_complete_tables(bytes: &[u8]) -> bool {
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

/// Whether the loaded fonts have glyphs for all characters of a text.
pub fn has_glyphs(ctx: &egui::Context, text: &str) -> bool {
    text.is_ascii() || ctx.fonts_mut(|fonts| fonts.has_glyphs(&FontId::new(13.5, FontFamily::Proportional), text))
}

/// Adds system fonts once a name needs them.
#[derive(Debug, Default)]
pub struct FontFallback {
    requested: bool,
    pending: Option<Receiver<Vec<FontFile>>>,
    checked: Vec<String>,
}

impl FontFallback {
    /// Checks the names on screen if they have changed.
    pub fn watch<'a>(&mut self, ctx: &egui::Context, names: impl Iterator<Item = &'a str> + Clone) {
        if let Some(pending) = &self.pending
            && let Ok(found) = pending.try_recv()
        {
            self.pending = None;
            for (name, bytes) in found {
                let family = |family| InsertFontFamily { family, priority: FontPriority::Lowest };
                let families = vec![family(FontFamily::Proportional), family(FontFamily::Monospace)];
                ctx.add_font(FontInsert { name, data: FontData::from_owned(bytes), families });
            }
        }
        if self.requested || names.clone().eq(self.checked.iter().map(String::as_str)) {
            return;
        }
        self.checked = names.map(str::to_owned).collect();
        if self.checked.iter().all(|name| has_glyphs(ctx, name)) {
            return;
        }
        self.requested = true;
        let (sender, receiver) = channel();
        let wake = ctx.clone();
        let spawned = std::thread::Builder::new().name("font fallback".to_owned()).spawn(move || {
            // Sending fails only if the window is closed.
            let _ = sender.send(find());
            wake.request_repaint();
        });
        self.pending = spawned.is_ok().then_some(receiver);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_fonts_are_detected() {
        let fonts = egui::FontDefinitions::default();
        for data in fonts.font_data.values() {
            let bytes = data.font.as_ref();
            assert!(has_complete_tables(bytes));
            assert!(!has_complete_tables(&bytes[..bytes.len() / 2]) && !has_complete_tables(&bytes[..3]));
        }
        assert!(!has_complete_tables(b"") && !has_complete_tables(b"ttcf") && !has_complete_tables(&[0xff; 400]));
    }
}
