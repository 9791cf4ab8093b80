//! Texts that lose their middle where they would not fit.

use eframe::egui::{self, Ui};

/// Longest text of an item in a menu or list, in characters of Latin script: the longest item is as wide as the list.
const LONGEST_ITEM: f32 = 64.0;

/// Returns the text of an item in a menu or list, without its middle if it is long: names of files often differ at their
/// ends.
pub(crate) fn item_text(text: &str) -> String {
    // Characters of East Asian scripts are twice as wide.
    without_middle(text, LONGEST_ITEM + 1.0, |c| if c < '\u{1100}' || c == '…' { 1.0 } else { 2.0 })
}

/// Returns the text of a button that is as wide as its panel: the icon `sign`, and `text`, without its middle if it does not fit.
pub(crate) fn row_text(ui: &Ui, sign: &str, text: &str) -> String {
    let font = egui::TextStyle::Button.resolve(ui.style());
    let start = format!("{sign}  ");
    let used: f32 = ui.ctx().fonts_mut(|fonts| start.chars().map(|c| fonts.glyph_width(&font, c)).sum());
    let text = button_text(ui, text, &font, used);
    start + &text
}

/// Returns the text of a button that fills the available width, without its middle if it does not fit beside `used` points.
pub(crate) fn button_text(ui: &Ui, text: &str, font: &egui::FontId, used: f32) -> String {
    let width = ui.available_width() - 2.0 * ui.spacing().button_padding.x - used - 1.0;
    ui.ctx().fonts_mut(|fonts| {
        let mut estimate = width;
        loop {
            let drawn_width = |fonts: &mut egui::epaint::text::FontsView<'_>, text: String| {
                fonts.layout_no_wrap(text, font.clone(), egui::Color32::PLACEHOLDER).size().x
            };
            // Characters that no font has are drawn as boxes, whose width is not stated.
            let shown = without_middle(text, estimate, |c| match fonts.glyph_width(font, c) {
                width if width > 0.0 => width,
                _ => drawn_width(fonts, c.to_string()),
            });
            // A text may be wider than its characters.
            let drawn = drawn_width(fonts, shown.clone());
            if drawn <= width || estimate <= 0.0 {
                return shown;
            }
            estimate -= (drawn - width).max(1.0);
        }
    })
}

/// Returns the text without its middle if it is wider than `width`; `width_of` returns the width of a character.
fn without_middle(text: &str, width: f32, mut width_of: impl FnMut(char) -> f32) -> String {
    let widths: Vec<f32> = text.chars().map(&mut width_of).collect();
    if widths.iter().sum::<f32>() <= width {
        return text.to_owned();
    }
    let half = (width - width_of('…')) / 2.0;
    let fitting = |widths: &mut dyn Iterator<Item = f32>| {
        let mut used = 0.0;
        let fits = |width: &f32| {
            used += *width;
            used <= half
        };
        widths.take_while(fits).count()
    };
    let (start, end) = (fitting(&mut widths.iter().copied()), fitting(&mut widths.iter().rev().copied()));
    text.chars().take(start).chain(['…']).chain(text.chars().skip(widths.len() - end)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theme;

    #[test]
    fn long_items_keep_their_start_and_their_end() {
        let long = format!("{}_7.tif", "Zähler_".repeat(20));
        let shown = item_text(&long);
        assert!(shown.starts_with("Zähler_Zähler_") && shown.ends_with("_7.tif"), "{shown}");
        assert_eq!((shown.chars().count(), shown.matches('…').count()), (65, 1));
        let wide = item_text(&"细胞核".repeat(40));
        assert_eq!(wide.chars().count(), 33, "{wide}");
        assert_eq!(item_text("nuclei_raw.tif"), "nuclei_raw.tif");
    }

    #[test]
    fn long_names_of_rows_keep_the_start_and_the_end_that_fit() {
        let shown = [12.0, 11.0, 6.0, 0.0].map(|width| without_middle("stack_12.tif", width, |_| 1.0));
        assert_eq!(shown, ["stack_12.tif", "stack…2.tif", "st…if", "…"]);
        let ctx = egui::Context::default();
        theme::install(&ctx);
        let mut shown = Vec::new();
        let _ = ctx.run_ui(egui::RawInput::default(), |ui| {
            ui.set_max_width(200.0);
            shown = [1, 2].map(|n| row_text(ui, "+", &format!("{}_pos{n}.tif", "embryo_".repeat(20)))).to_vec();
            shown.push(row_text(ui, "+", "a.tif"));
            // No font of the test has these characters, which are drawn as boxes.
            let (boxes, font) = (row_text(ui, "+", &"細胞核".repeat(20)), egui::TextStyle::Button.resolve(ui.style()));
            let drawn = ui.ctx().fonts_mut(|f| f.layout_no_wrap(boxes, font, egui::Color32::WHITE).size().x);
            assert!(drawn > 80.0 && drawn <= 200.0 - 2.0 * ui.spacing().button_padding.x, "{drawn}");
        });
        assert!(
            matches!(&shown[..], [one, two, short] if one.ends_with("_pos1.tif") && two.ends_with("_pos2.tif")
            && one.starts_with("+  embryo_") && one.chars().count() < 40 && short == "+  a.tif"),
            "{shown:?}"
        );
    }
}
