//! Colors, fonts and spacing of the window, for light and dark themes. No other file defines colors.

use cytoscope_profile::Stage;
use eframe::egui::{
    self, Color32, CornerRadius, FontDefinitions, FontFamily, FontId, Margin, Stroke, Style, TextStyle, Theme, Visuals,
};
use serde::{Deserialize, Serialize};

/// Which colors the window has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ThemeChoice {
    /// Light or dark, as the system is set.
    #[default]
    System,
    /// Dark text on a light background.
    Light,
    /// Light text on a dark background.
    Dark,
}

impl ThemeChoice {
    /// All choices, in the order of the menu.
    pub const ALL: [ThemeChoice; 3] = [ThemeChoice::System, ThemeChoice::Light, ThemeChoice::Dark];

    /// Returns the name that the window shows.
    pub fn name(self) -> &'static str {
        match self {
            ThemeChoice::System => "System",
            ThemeChoice::Light => "Light",
            ThemeChoice::Dark => "Dark",
        }
    }

    /// The corresponding setting of egui.
    pub fn preference(self) -> egui::ThemePreference {
        match self {
            ThemeChoice::System => egui::ThemePreference::System,
            ThemeChoice::Light => egui::ThemePreference::Light,
            ThemeChoice::Dark => egui::ThemePreference::Dark,
        }
    }
}

/// Space between related items, in points.
pub const GAP: f32 = 6.0;
/// Space between groups, in points.
pub const GROUP_GAP: f32 = 14.0;
/// Margin of a panel, in points.
pub const PANEL_MARGIN: i8 = 10;
/// Margin of a dialog, in points.
const DIALOG_MARGIN: i8 = 12;
/// Height of buttons, and of the rows that labels share with them, in points: that of their text and its padding.
pub const BUTTON_HEIGHT: f32 = 26.0;
/// Radius of the corners of buttons and fields, in points.
const CORNER_RADIUS: u8 = 6;
/// Margin of the text in a field.
const FIELD_MARGIN: Margin = Margin { left: 7, right: 7, top: 5, bottom: 5 };
/// Height of the main button of a panel, in points.
pub const MAIN_BUTTON_HEIGHT: f32 = 34.0;

/// Fill of main buttons.
pub const ACCENT: Color32 = Color32::from_rgb(38, 127, 160);
/// Color of text on [`ACCENT`].
pub const ON_ACCENT: Color32 = Color32::WHITE;
/// Background of images: nearly black in every theme.
pub const IMAGE_BACKGROUND: Color32 = Color32::from_rgb(8, 9, 11);
/// Color of text that is drawn on images.
pub const ON_IMAGE: Color32 = Color32::from_rgb(226, 230, 234);
/// Shade behind text on images.
pub const IMAGE_SHADE: Color32 = Color32::from_black_alpha(165);
/// Color of the crosshair.
pub const CROSSHAIR: Color32 = Color32::from_rgba_premultiplied(150, 135, 40, 170);
/// The box around a volume.
pub const BOX: Color32 = Color32::from_rgb(92, 98, 106);
/// The X, Y and Z edges of the box around a volume, and their letters.
pub const AXIS_COLORS: [Color32; 3] =
    [Color32::from_rgb(214, 104, 98), Color32::from_rgb(112, 186, 112), Color32::from_rgb(104, 150, 226)];
/// Outlines of the crosshair's slices in a volume.
pub const CURSOR_SLICE: Color32 = Color32::from_rgba_premultiplied(96, 86, 26, 110);
/// Color of an object that matches one of the ground truth.
pub const MATCHED: [u8; 3] = [70, 200, 120];
/// Color of a true object that was not found.
pub const MISSED: [u8; 3] = [255, 190, 60];
/// Color of a false object: a predicted object that matches none of the ground truth.
pub const FALSE_OBJECT: [u8; 3] = [235, 80, 90];
/// An object ignored in the comparison.
pub const IGNORED: [u8; 3] = [120, 124, 130];
/// Merged, split and inexact true objects in the histogram.
pub const MERGED: [u8; 3] = [150, 110, 220];
/// See [`MERGED`].
pub const SPLIT: [u8; 3] = [70, 160, 235];
/// See [`MERGED`].
pub const INEXACT: [u8; 3] = [190, 190, 150];

/// How much darker bars for objects are in the light theme than the objects on images, 0 to 1.
const DARKER_BARS: f32 = 0.28;

/// Returns the color of bars for objects that have a color on images. Such colors are too bright for the light theme.
pub(crate) fn bar_color([r, g, b]: [u8; 3], visuals: &Visuals) -> Color32 {
    let color = Color32::from_rgb(r, g, b);
    if visuals.dark_mode { color } else { color.lerp_to_gamma(Color32::BLACK, DARKER_BARS) }
}

/// Outlines of true objects in validation pictures.
pub const TRUE_OUTLINE: Color32 = Color32::from_rgb(255, 190, 60);
/// Outlines of predicted objects in validation pictures.
pub const FOUND_OUTLINE: Color32 = Color32::from_rgb(70, 200, 255);

/// Background, rims and edges of cells in the drawn bright-field image.
pub const BRIGHT_FIELD: Color32 = Color32::from_rgb(150, 152, 155);
/// See [`BRIGHT_FIELD`].
pub const BRIGHT_RIM: Color32 = Color32::from_rgb(206, 208, 210);
/// See [`BRIGHT_FIELD`].
pub const BRIGHT_EDGE: Color32 = Color32::from_rgb(96, 98, 102);
/// The drawn stain.
pub const STAIN: Color32 = Color32::from_rgb(60, 220, 130);
/// The best point of a curve, and the selected point of a plot.
pub const BEST: Color32 = Color32::from_rgb(178, 126, 0);

/// Color of the n-th curve of a plot, which has enough contrast in both themes.
pub fn series_color(n: usize) -> Color32 {
    const ALL: [Color32; 5] = [
        Color32::from_rgb(208, 94, 62),
        Color32::from_rgb(98, 140, 50),
        Color32::from_rgb(158, 116, 202),
        Color32::from_rgb(196, 100, 150),
        Color32::from_rgb(128, 128, 140),
    ];
    ALL[n % ALL.len()]
}

/// Returns the color of warnings, readable on the current background.
pub fn warn(visuals: &Visuals) -> Color32 {
    if visuals.dark_mode { Color32::from_rgb(236, 190, 90) } else { Color32::from_rgb(150, 95, 0) }
}

/// Returns the color of success, readable on the current background.
pub fn good(visuals: &Visuals) -> Color32 {
    if visuals.dark_mode { Color32::from_rgb(110, 205, 150) } else { Color32::from_rgb(20, 120, 70) }
}

/// Returns the color of errors, readable on the current background.
pub fn bad(visuals: &Visuals) -> Color32 {
    if visuals.dark_mode { Color32::from_rgb(245, 130, 130) } else { Color32::from_rgb(175, 35, 45) }
}

/// Color of a stage of a job, the same in every plot.
pub fn stage_color(stage: Stage) -> Color32 {
    let [red, green, blue] = match stage {
        Stage::Read => [86, 156, 214],
        Stage::Decode => [120, 190, 225],
        Stage::Check => [110, 170, 200],
        Stage::Load => [150, 170, 215],
        Stage::Normalize => [130, 180, 130],
        Stage::Resample => [150, 200, 110],
        Stage::Augment => [170, 210, 140],
        Stage::Compile => [170, 150, 210],
        Stage::Estimate => [185, 185, 75],
        Stage::DataWait => [215, 95, 95],
        Stage::Stall => [200, 75, 110],
        Stage::Upload => [205, 160, 220],
        Stage::Compute => [226, 136, 76],
        Stage::Forward => [235, 156, 90],
        Stage::Backward => [214, 116, 66],
        Stage::Optimizer => [190, 100, 80],
        Stage::Op => [240, 176, 110],
        Stage::Blend => [225, 200, 90],
        Stage::Download => [200, 130, 180],
        Stage::Release => [215, 120, 215],
        Stage::Objects => [90, 190, 180],
        Stage::Validate => [80, 165, 160],
        Stage::Quantize => [120, 140, 200],
        Stage::Verify => [140, 160, 190],
        Stage::Checkpoint => [180, 170, 150],
        Stage::Simulate => [150, 190, 160],
        Stage::Run => [200, 225, 90],
        Stage::Write => [160, 160, 170],
    };
    Color32::from_rgb(red, green, blue)
}

/// Installs fonts, colors and spacing in egui.
pub fn install(ctx: &egui::Context) {
    let mut fonts = FontDefinitions::default();
    egui_phosphor::add_to_fonts(&mut fonts, egui_phosphor::Variant::Regular);
    ctx.set_fonts(fonts);
    ctx.set_style_of(Theme::Dark, style(dark()));
    ctx.set_style_of(Theme::Light, style(light()));
}

/// Draws a frame around the field for text that has the focus. The frame of egui has the color of selected text, which is
/// white on white in the light theme.
pub(crate) fn frame_focused_field(ctx: &egui::Context) {
    let id = ctx.memory(|memory| memory.focused()).filter(|_| ctx.text_edit_focused());
    // The field of a dialog that was closed keeps the focus until the end of the frame.
    let id = id.filter(|id| ctx.viewport(|viewport| viewport.this_pass.widgets.contains(*id)));
    let Some(field) = id.and_then(|id| ctx.read_response(id)) else { return };
    // The part of the field that is in sight.
    let rect = field.interact_rect;
    let painter = ctx.layer_painter(field.layer_id).with_clip_rect(rect);
    painter.rect_stroke(rect, CORNER_RADIUS, Stroke::new(1.5, ACCENT), egui::StrokeKind::Inside);
}

/// Draws a frame around a widget that has none of its own while it has the focus, such as a title in the menu bar.
pub(crate) fn frame_focused(ui: &egui::Ui, response: &egui::Response) {
    if response.has_focus() {
        ui.painter().rect_stroke(response.rect, CORNER_RADIUS, Stroke::new(1.5, ACCENT), egui::StrokeKind::Inside);
    }
}

/// Gives checkboxes and radio buttons an outline and the background of fields, so that those that are not chosen do not look
/// disabled.
fn outline_boxes(visuals: &mut Visuals) {
    let fill = visuals.extreme_bg_color;
    let widgets = &mut visuals.widgets;
    for widget in [&mut widgets.inactive, &mut widgets.hovered, &mut widgets.active, &mut widgets.open] {
        widget.bg_stroke = Stroke::new(1.5, widget.bg_fill);
        widget.bg_fill = fill;
        widget.fg_stroke.width = 2.0;
    }
}

/// Draws checkboxes or radio buttons with outlines.
pub(crate) fn outlined<R>(ui: &mut egui::Ui, add: impl FnOnce(&mut egui::Ui) -> R) -> R {
    let before = ui.visuals().widgets.clone();
    outline_boxes(ui.visuals_mut());
    let added = add(ui);
    ui.visuals_mut().widgets = before;
    added
}

/// Draws a checkbox.
pub(crate) fn checkbox(ui: &mut egui::Ui, checked: &mut bool, name: impl Into<String>) -> egui::Response {
    let name = name.into();
    outlined(ui, |ui| ui.checkbox(checked, name))
}

/// Gives fields for text an outline: their background hardly differs from that of panels.
fn outline_fields(visuals: &mut Visuals) {
    let widgets = &mut visuals.widgets;
    for widget in [&mut widgets.inactive, &mut widgets.hovered, &mut widgets.active, &mut widgets.open] {
        widget.bg_stroke = Stroke::new(1.0, widget.bg_fill);
    }
}

/// Draws a field for text, which is as high as a button.
pub(crate) fn text_field(ui: &mut egui::Ui, enabled: bool, field: egui::TextEdit<'_>) -> egui::Response {
    let before = ui.visuals().widgets.clone();
    outline_fields(ui.visuals_mut());
    let response = ui.add_enabled(enabled, field.margin(FIELD_MARGIN));
    ui.visuals_mut().widgets = before;
    response
}

/// A dialog that the rest of the window waits for; by default, its margin would be that of menus.
pub(crate) fn dialog(ctx: &egui::Context, name: &str) -> egui::Modal {
    let style = ctx.global_style();
    let frame = egui::Frame::popup(&style).inner_margin(style.spacing.window_margin);
    egui::Modal::new(egui::Id::new(name)).frame(frame)
}

fn style(visuals: Visuals) -> Style {
    let mut style = Style { visuals, ..Style::default() };
    let font = |size| FontId::new(size, FontFamily::Proportional);
    style.text_styles = [
        (TextStyle::Small, font(11.0)),
        (TextStyle::Body, font(13.5)),
        (TextStyle::Button, font(13.5)),
        (TextStyle::Heading, font(17.0)),
        (TextStyle::Monospace, FontId::new(12.5, FontFamily::Monospace)),
    ]
    .into();
    style.spacing.item_spacing = egui::vec2(8.0, GAP);
    style.spacing.button_padding = egui::vec2(10.0, 5.0);
    // Labels are placed in the middle of a row of this height.
    style.spacing.interact_size.y = BUTTON_HEIGHT;
    // Scroll bars do not cover the content at the right edge of a panel.
    style.spacing.scroll.floating_allocated_width = 8.0;
    style.spacing.slider_width = 128.0;
    // Larger than the default, so that the round corners of a checkbox do not make it look like a radio button.
    style.spacing.icon_width = 18.0;
    style.spacing.window_margin = Margin::same(DIALOG_MARGIN);
    style.spacing.menu_margin = Margin::same(8);
    style.interaction.selectable_labels = false;
    style
}

fn rounded(mut visuals: Visuals) -> Visuals {
    let radius = CornerRadius::same(CORNER_RADIUS);
    for w in [
        &mut visuals.widgets.noninteractive,
        &mut visuals.widgets.inactive,
        &mut visuals.widgets.hovered,
        &mut visuals.widgets.active,
        &mut visuals.widgets.open,
    ] {
        w.corner_radius = radius;
        w.expansion = 0.0;
    }
    visuals.window_corner_radius = CornerRadius::same(10);
    visuals.menu_corner_radius = CornerRadius::same(8);
    visuals.selection.bg_fill = ACCENT;
    visuals.selection.stroke = Stroke::new(1.0, ON_ACCENT);
    visuals
}

fn dark() -> Visuals {
    let mut v = rounded(Visuals::dark());
    v.panel_fill = Color32::from_rgb(25, 28, 32);
    v.window_fill = Color32::from_rgb(31, 35, 40);
    v.extreme_bg_color = Color32::from_rgb(17, 19, 22);
    v.faint_bg_color = Color32::from_rgb(31, 35, 39);
    v.widgets.noninteractive.bg_stroke = Stroke::new(1.0, Color32::from_rgb(46, 51, 57));
    v.widgets.noninteractive.fg_stroke = Stroke::new(1.0, Color32::from_rgb(196, 203, 210));
    v.widgets.inactive.weak_bg_fill = Color32::from_rgb(43, 48, 54);
    v.widgets.inactive.bg_fill = Color32::from_rgb(104, 111, 119);
    v.widgets.inactive.fg_stroke = Stroke::new(1.0, Color32::from_rgb(218, 223, 228));
    v.widgets.hovered.weak_bg_fill = Color32::from_rgb(56, 63, 71);
    v.widgets.hovered.bg_fill = Color32::from_rgb(116, 124, 132);
    v.widgets.hovered.bg_stroke = Stroke::new(1.0, Color32::from_rgb(86, 96, 106));
    v.widgets.active.weak_bg_fill = Color32::from_rgb(66, 74, 83);
    v.widgets.active.bg_fill = v.widgets.hovered.bg_fill;
    v.weak_text_color = Some(Color32::from_rgb(148, 155, 162));
    v.hyperlink_color = Color32::from_rgb(110, 190, 220);
    v
}

fn light() -> Visuals {
    let mut v = rounded(Visuals::light());
    v.panel_fill = Color32::from_rgb(246, 247, 249);
    // White text fields stand out against it.
    v.window_fill = Color32::from_rgb(242, 244, 247);
    v.extreme_bg_color = Color32::from_rgb(255, 255, 255);
    v.faint_bg_color = Color32::from_rgb(238, 240, 243);
    v.widgets.noninteractive.bg_stroke = Stroke::new(1.0, Color32::from_rgb(216, 220, 225));
    v.widgets.noninteractive.fg_stroke = Stroke::new(1.0, Color32::from_rgb(52, 58, 64));
    v.widgets.inactive.weak_bg_fill = Color32::from_rgb(228, 231, 235);
    v.widgets.inactive.bg_fill = Color32::from_rgb(132, 138, 145);
    v.widgets.inactive.fg_stroke = Stroke::new(1.0, Color32::from_rgb(44, 50, 56));
    v.widgets.hovered.weak_bg_fill = Color32::from_rgb(216, 220, 226);
    v.widgets.hovered.bg_fill = Color32::from_rgb(118, 124, 131);
    v.widgets.hovered.bg_stroke = Stroke::new(1.0, Color32::from_rgb(160, 168, 176));
    v.widgets.active.weak_bg_fill = Color32::from_rgb(204, 209, 216);
    v.widgets.active.bg_fill = v.widgets.hovered.bg_fill;
    v.weak_text_color = Some(Color32::from_rgb(94, 101, 109));
    v.hyperlink_color = Color32::from_rgb(20, 100, 140);
    v
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lowest contrast of small text that WCAG 2.2 allows at level AA (success criterion 1.4.3).
    const SMALL_TEXT: f64 = 4.5;

    /// Lowest contrast of icons and curves at level AA (success criterion 1.4.11).
    const GRAPHICS: f64 = 3.0;

    /// Relative luminance as WCAG 2.2 defines it.
    fn luminance(color: Color32) -> f64 {
        let linear = |value: u8| {
            let share = f64::from(value) / 255.0;
            if share <= 0.04045 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * linear(color.r()) + 0.7152 * linear(color.g()) + 0.0722 * linear(color.b())
    }

    fn contrast(a: Color32, b: Color32) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[track_caller]
    fn assert_readable(text: Color32, ground: Color32, least: f64, what: &str) {
        let found = contrast(text, ground);
        assert!(found >= least, "{what}: {text:?} on {ground:?} has a contrast of {found:.2}, not {least}");
    }

    #[test]
    fn fields_for_text_are_seen_on_panels_and_dialogs() {
        for mut visuals in [dark(), light()] {
            outline_fields(&mut visuals);
            for widget in [&visuals.widgets.inactive, &visuals.widgets.hovered, &visuals.widgets.active] {
                for ground in [visuals.panel_fill, visuals.window_fill, visuals.faint_bg_color] {
                    assert!(contrast(visuals.extreme_bg_color, ground) > 1.05, "{ground:?}");
                    assert_readable(widget.bg_stroke.color, ground, GRAPHICS, "outline of a field");
                }
            }
        }
    }

    #[test]
    fn fields_for_text_are_as_high_as_buttons_and_leave_no_outline_on_them() {
        let ctx = egui::Context::default();
        install(&ctx);
        let mut heights = Vec::new();
        let _ = ctx.run_ui(egui::RawInput::default(), |ui| {
            let before = ui.visuals().widgets.clone();
            let mut text = "axes".to_owned();
            let field = text_field(ui, true, egui::TextEdit::singleline(&mut text));
            heights = vec![field.rect.height(), ui.button("Apply").rect.height()];
            assert_eq!(ui.visuals().widgets, before);
        });
        assert!(matches!(heights[..], [field, button] if (field - button).abs() <= 1.0), "{heights:?}");
    }

    #[test]
    fn a_focused_field_has_a_frame_until_its_dialog_is_closed() {
        let ctx = egui::Context::default();
        install(&ctx);
        let mut text = "name".to_owned();
        let mut is_framed = |is_open: bool| {
            let output = ctx.run_ui(egui::RawInput::default(), |ui| {
                if is_open {
                    text_field(ui, true, egui::TextEdit::singleline(&mut text)).request_focus();
                }
                frame_focused_field(ui.ctx());
            });
            let is_frame =
                |shape: &egui::Shape| matches!(shape, egui::Shape::Rect(rect) if rect.stroke.color == ACCENT);
            output.shapes.iter().any(|clipped| is_frame(&clipped.shape))
        };
        assert_eq!([true, true, false].map(&mut is_framed), [true, true, false]);
    }

    #[test]
    fn labels_are_in_the_middle_of_the_buttons_and_numbers_beside_them() {
        let ctx = egui::Context::default();
        install(&ctx);
        let (mut middles, mut height) = (Vec::new(), 0.0);
        let _ = ctx.run_ui(egui::RawInput::default(), |ui| {
            ui.horizontal(|ui| {
                let label = ui.label("Memory budget");
                let button = ui.button("Automatic");
                let number = ui.add(egui::DragValue::new(&mut 8192));
                height = button.rect.height();
                middles = [label, button, number].iter().map(|widget| widget.rect.center().y).collect();
            });
        });
        assert!((height - BUTTON_HEIGHT).abs() < 0.5, "{height}");
        let first = middles.first().copied().unwrap_or(f32::NAN);
        assert!(middles.len() == 3 && middles.iter().all(|middle| (middle - first).abs() < 0.6), "{middles:?}");
    }

    #[test]
    fn the_content_of_dialogs_keeps_a_distance_from_their_edges() {
        let ctx = egui::Context::default();
        install(&ctx);
        let mut margin = 0.0;
        // The first pass measures the dialog.
        for _ in 0..2 {
            let _ = ctx.run_ui(egui::RawInput::default(), |ui| {
                let shown = dialog(ui.ctx(), "question").show(ui.ctx(), |ui| ui.label("Close the stack?").rect.left());
                margin = shown.inner - shown.response.rect.left();
            });
        }
        // The frame has a line of one point.
        let expected = f32::from(DIALOG_MARGIN);
        assert!((expected..=expected + 1.5).contains(&margin), "{margin}");
    }

    #[test]
    fn a_title_in_the_menu_bar_has_a_frame_while_it_has_the_focus() {
        let ctx = egui::Context::default();
        install(&ctx);
        let is_framed = |has_focus: bool| {
            let output = ctx.run_ui(egui::RawInput::default(), |ui| {
                let title = ui.button("File");
                if has_focus {
                    title.request_focus();
                }
                frame_focused(ui, &title);
            });
            let is_frame =
                |shape: &egui::Shape| matches!(shape, egui::Shape::Rect(rect) if rect.stroke.color == ACCENT);
            output.shapes.iter().any(|clipped| is_frame(&clipped.shape))
        };
        assert!(!is_framed(false));
        assert!(is_framed(true));
    }

    #[test]
    fn black_on_white_has_the_highest_contrast() {
        assert!((contrast(Color32::WHITE, Color32::BLACK) - 21.0).abs() < 1e-9);
    }

    #[test]
    fn text_of_both_themes_has_the_contrast_of_wcag_aa() {
        for visuals in [dark(), light()] {
            let grounds = [visuals.panel_fill, visuals.window_fill, visuals.faint_bg_color, visuals.extreme_bg_color];
            let texts = [
                (visuals.text_color(), "text"),
                (visuals.weak_text_color(), "weak text"),
                (visuals.strong_text_color(), "strong text"),
                (visuals.hyperlink_color, "link"),
                (good(&visuals), "success"),
                (warn(&visuals), "warning"),
                (bad(&visuals), "error"),
            ];
            for ground in grounds {
                for (text, what) in texts {
                    assert_readable(text, ground, SMALL_TEXT, what);
                }
                assert_readable(ACCENT, ground, GRAPHICS, "accent");
            }
            for widget in [&visuals.widgets.inactive, &visuals.widgets.hovered, &visuals.widgets.active] {
                assert_readable(widget.text_color(), widget.weak_bg_fill, SMALL_TEXT, "button");
            }
            assert_readable(visuals.selection.stroke.color, visuals.selection.bg_fill, SMALL_TEXT, "selection");
        }
        assert_readable(ON_ACCENT, ACCENT, SMALL_TEXT, "main button");
    }

    #[test]
    fn curves_and_points_of_plots_have_the_contrast_of_wcag_aa_in_both_themes() {
        let colors: Vec<Color32> = (0..5).map(series_color).chain([BEST, ACCENT]).collect();
        for visuals in [dark(), light()] {
            // Plots have the background of fields; their legends are on panels and dialogs.
            for ground in [visuals.extreme_bg_color, visuals.panel_fill, visuals.window_fill] {
                for color in &colors {
                    assert_readable(*color, ground, GRAPHICS, "curve");
                }
            }
        }
    }

    #[test]
    fn bars_for_objects_have_the_contrast_of_wcag_aa_in_both_themes() {
        for visuals in [dark(), light()] {
            for color in [MATCHED, INEXACT, MERGED, SPLIT, MISSED, FALSE_OBJECT] {
                assert_readable(bar_color(color, &visuals), visuals.extreme_bg_color, GRAPHICS, "bar");
            }
        }
    }

    #[test]
    fn checkboxes_and_sliders_have_the_contrast_of_wcag_aa() {
        for visuals in [dark(), light()] {
            for widget in [&visuals.widgets.inactive, &visuals.widgets.hovered, &visuals.widgets.active] {
                for ground in [visuals.panel_fill, visuals.window_fill, visuals.faint_bg_color] {
                    assert_readable(widget.bg_fill, ground, GRAPHICS, "slider");
                }
            }
        }
        for mut visuals in [dark(), light()] {
            outline_boxes(&mut visuals);
            for widget in [&visuals.widgets.inactive, &visuals.widgets.hovered, &visuals.widgets.active] {
                for ground in [visuals.panel_fill, visuals.window_fill, visuals.faint_bg_color, widget.bg_fill] {
                    assert_readable(widget.bg_stroke.color, ground, GRAPHICS, "outline of a checkbox");
                }
                assert_readable(widget.fg_stroke.color, widget.bg_fill, GRAPHICS, "check mark");
            }
        }
    }

    #[test]
    fn text_on_images_and_stages_has_the_contrast_of_wcag_aa() {
        // The shade on the brightest image.
        let shaded = Color32::from_gray(255 - IMAGE_SHADE.a());
        assert_readable(ON_IMAGE, shaded, SMALL_TEXT, "caption");
        assert_readable(ON_IMAGE, IMAGE_BACKGROUND, SMALL_TEXT, "caption");
        for stage in Stage::ALL {
            assert_readable(Color32::BLACK, stage_color(stage), SMALL_TEXT, stage.name());
        }
    }

    #[test]
    fn no_two_stages_have_nearly_the_same_color() {
        let distance = |a: Color32, b: Color32| -> u32 {
            a.to_array().iter().zip(b.to_array()).map(|(a, b)| u32::from(a.abs_diff(b))).sum()
        };
        for (number, stage) in Stage::ALL.iter().enumerate() {
            for other in Stage::ALL.iter().take(number) {
                let found = distance(stage_color(*stage), stage_color(*other));
                assert!(found >= 40, "{} and {}: {found}", stage.name(), other.name());
            }
        }
    }
}
