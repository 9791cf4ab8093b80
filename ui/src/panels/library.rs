//! The left panel: open stacks, and display settings of the active document.

use super::bars::with_reason;
use super::compare::comparison;
use super::{
    capitalized, heading, icon_button, icon_row, item_text, row_text, scrolled, scrolled_frame, scrolled_in, weak,
    whole_link,
};
use crate::action::Actions;
use crate::command::Command;
use crate::data::composite::{Blending, ColorMap, Intensity, LabelStyle};
use crate::data::histogram::Histogram;
use crate::display::DisplayAction;
use crate::document::{ChannelView, Document, DocumentChange, Overlay, Role, file_name};
use crate::documents::{DocumentsAction, JobOutput};
use crate::provenance::record_link;
use crate::state::State;
use crate::theme;
use cytoscope_pipeline::predict::containing_maps;
use eframe::egui::{self, Color32, Key, RichText, Sense, Stroke, StrokeKind, Ui, pos2, vec2};
use egui_phosphor::regular as icon;

/// Number of stacks above which their list has its own scroll bar, so that the channels below it stay within reach.
const LONG_LIST: usize = 12;

/// Least maximum height of a long list of stacks in points; in a high window, it may take half of the panel.
const LONG_LIST_HEIGHT: f32 = 400.0;

/// Width of the number beside a slider in points: up to five characters fit, so that the labels of sliders are below each other.
const SLIDER_NUMBER: f32 = 56.0;

/// Least width of a slider in points.
const MIN_SLIDER: f32 = 40.0;

/// Draws the panel.
pub(super) fn library_panel(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let frame = scrolled_frame(ui);
    egui::Panel::left("library").frame(frame).default_size(262.0).size_range(220.0..=460.0).show(ui, |ui| {
        scrolled(ui, "library", |ui| library(ui, state, actions));
    });
}

/// Draws the content of the panel.
pub(super) fn library(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    stacks(ui, state, actions);
    if let Some(document) = state.document() {
        layers(ui, state, document, actions);
    }
    comparison(ui, state, actions);
    ui.add_space(theme::GROUP_GAP);
    ui.horizontal_wrapped(|ui| {
        for command in [Command::OpenLabels, Command::OpenTruth] {
            let text = format!("{} {}", command.icon(), command.title());
            let response = ui.add_enabled(state.is_enabled(command), egui::Button::new(text));
            if with_reason(response, state, command).clicked() {
                actions.command(command);
            }
        }
    });
}

/// Draws the channels and overlays of a document.
fn layers(ui: &mut Ui, state: State<'_>, document: &Document, actions: &mut Actions) {
    let id = document.id;
    heading(ui, "Channels");
    for (index, channel) in document.channels.iter().enumerate() {
        let (mut visible, mut display) = (channel.visible, channel.display.clone());
        channel_controls(ui, index, channel, &mut visible, &mut display);
        if (visible, &display) != (channel.visible, &channel.display) {
            let change = DocumentChange::Channel { index, visible, display };
            actions.send(DocumentsAction::Change { document: id, change });
        }
    }
    if !document.overlays.is_empty() {
        heading(ui, "Layers");
    }
    for overlay in document.overlays.iter().rev() {
        let mut shown = OverlayControls::of(overlay);
        let gone = overlay_controls(ui, overlay, &mut shown);
        if shown != OverlayControls::of(overlay) {
            let OverlayControls { visible, style, label_opacity, display } = shown;
            let change = DocumentChange::Overlay { role: overlay.role, visible, style, label_opacity, display };
            actions.send(DocumentsAction::Change { document: id, change });
        }
        if let Some(result) = document.recorded_result(overlay).filter(|_| overlay.visible) {
            record_link(ui, state, overlay.title(), result, actions);
        }
        if overlay.role == Role::Labels {
            other_labels(ui, state, document, actions);
        }
        if gone {
            actions.send(DocumentsAction::RemoveOverlay { document: id, role: overlay.role });
        }
    }
}

/// Offers the labels of the shown time point of a document that are on the disk and not on screen.
fn other_labels(ui: &mut Ui, state: State<'_>, document: &Document, actions: &mut Actions) {
    for (path, results) in state.documents.other_labels(document.id) {
        let file = containing_maps(path);
        if ui.link(format!("Show {}", item_text(&file_name(file)))).on_hover_text(file.display().to_string()).clicked()
        {
            let output = Box::new(JobOutput::Kept(document.time, results.to_vec()));
            actions.send(DocumentsAction::Show { document: document.id, output });
        }
    }
}

fn stacks(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    icon_row(ui, |ui| {
        ui.label(RichText::new("Stacks").strong());
        ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
            for command in [Command::Close, Command::Open] {
                let sign = if command == Command::Open { icon::PLUS } else { command.icon() };
                if icon_button(ui, sign, command.title(), state.is_enabled(command), false).clicked() {
                    actions.command(command);
                }
            }
        });
    });
    if state.documents.all().len() <= LONG_LIST {
        return stack_list(ui, state, actions);
    }
    let area = egui::ScrollArea::vertical().id_salt("stacks").auto_shrink([false, true]);
    // The clip rectangle is the visible part of the panel.
    let height = LONG_LIST_HEIGHT.max(ui.clip_rect().height() / 2.0);
    scrolled_in(ui, area.max_height(height), |ui| stack_list(ui, state, actions));
}

/// Lists the open stacks, with what is known about the active one.
fn stack_list(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    for document in state.documents.all() {
        let active = state.documents.active_id() == Some(document.id);
        let busy = state.jobs.prediction(document.id).is_some();
        let has_stain = document.overlay_with_role(Role::Map).is_some_and(Overlay::is_stain);
        let done = document.overlay_with_role(Role::Labels).is_some() || has_stain;
        let sign = if busy {
            icon::HOURGLASS_MEDIUM
        } else if done {
            icon::CHECK
        } else {
            icon::STACK
        };
        let title = state.documents.title(document);
        let text = row_text(ui, sign, &title);
        let button = egui::Button::selectable(active, text)
            .truncate()
            .min_size(vec2(ui.available_width(), theme::BUTTON_HEIGHT));
        let response = ui.add(button);
        response.widget_info(|| egui::WidgetInfo::selected(egui::WidgetType::SelectableLabel, true, active, &title));
        if response.clicked() {
            actions.send(DocumentsAction::Activate(document.id));
        }
        response.on_hover_text(format!("{}\n{}", document.path.display(), document.summary()));
        if active {
            ui.scope(|ui| links(ui, state, document, &title, actions));
            for sentence in &document.image.meta().not_applied {
                weak(ui, format!("{}  {}", icon::WARNING, capitalized(sentence)));
            }
            series_choice(ui, document, actions);
        }
    }
}

/// Returns a text whose sizes, such as `1.5 × 0.5 µm`, stay on one line.
pub(super) fn with_whole_sizes(text: &str) -> String {
    text.replace(" × ", "\u{a0}×\u{a0}").replace(" µm", "\u{a0}µm")
}

/// Draws what is known about a stack, and links to correct it.
fn links(ui: &mut Ui, state: State<'_>, document: &Document, title: &str, actions: &mut Actions) {
    // The links are text, not as high as buttons.
    ui.spacing_mut().interact_size.y = ui.text_style_height(&egui::TextStyle::Body);
    ui.horizontal_wrapped(|ui| {
        weak(ui, with_whole_sizes(&document.summary()));
        let hint = "Correct the axes if the file states wrong ones";
        if whole_link(ui, "Axes…").on_hover_text(hint).clicked() {
            let text = state.settings().axes_for(&document.path).unwrap_or_default().to_owned();
            let (file, series) = (document.path.clone(), document.series);
            actions.send(DisplayAction::AskAxes { file, series, text });
        }
        let hint = "Set the voxel size if the file states none or a wrong one";
        if whole_link(ui, "Voxel size…").on_hover_text(hint).clicked() {
            actions.send(document.ask_voxel_size());
        }
        if document.has_record {
            record_link(ui, state, title, &document.path, actions);
        }
    });
}

/// Draws the choice of the series of a file that has several, such as positions, scenes or wells.
fn series_choice(ui: &mut Ui, document: &Document, actions: &mut Actions) {
    let meta = document.image.meta();
    if meta.series_count < 2 {
        return;
    }
    let mut series = document.series;
    let response = egui::ComboBox::from_id_salt(("series", document.id))
        .selected_text(meta.series_name(series))
        .width(ui.available_width())
        .truncate()
        .show_ui(ui, |ui| {
            // A plate has thousands of images: only the visible rows are drawn.
            let spacing = ui.spacing();
            let (least, padding, height) = (spacing.interact_size.y, spacing.button_padding.y, spacing.combo_height);
            let row_height = least.max(ui.text_style_height(&egui::TextStyle::Button) + 2.0 * padding);
            let rows = egui::ScrollArea::vertical().id_salt("series").max_height(height);
            rows.show_rows(ui, row_height, meta.series_count, |ui, rows| {
                for number in rows {
                    ui.selectable_value(&mut series, number, item_text(&meta.series_name(number)));
                }
            });
        })
        .response;
    response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::ComboBox, true, "Series"));
    response.on_hover_text("Position, scene or well of the file; each has its own results");
    if series != document.series {
        let (path, given) = (document.path.clone(), document.given());
        actions.send(DocumentsAction::Reopen { path, given, series, replaces: Some(document.id) });
    }
}

fn visibility_toggle(ui: &mut Ui, visible: &mut bool, name: &str) {
    let sign = if *visible { icon::EYE } else { icon::EYE_SLASH };
    let response = ui.add(egui::Button::new(RichText::new(sign).size(15.0)).frame(false));
    let shown = *visible;
    response
        .widget_info(|| egui::WidgetInfo::selected(egui::WidgetType::Checkbox, true, shown, format!("Show {name}")));
    if response.on_hover_text(format!("Show or hide {name}")).clicked() {
        *visible = !*visible;
    }
}

fn channel_controls(ui: &mut Ui, i: usize, channel: &ChannelView, visible: &mut bool, display: &mut Intensity) {
    ui.push_id(("channel", i), |ui| {
        ui.horizontal(|ui| {
            visibility_toggle(ui, visible, &channel.name);
            color_menu(ui, display, &channel.name);
            ui.add(egui::Label::new(&channel.name).truncate());
        });
        if !*visible {
            return;
        }
        if let Some(histogram) = &channel.histogram {
            contrast(ui, histogram, display, &channel.name);
        }
        egui::CollapsingHeader::new(RichText::new("More").size(12.0)).id_salt("more").show(ui, |ui| {
            named_slider(ui, &mut display.gamma, 0.2..=5.0, "Gamma", true);
            named_slider(ui, &mut display.opacity, 0.0..=1.0, "Opacity", false);
            let mut opaque = display.blending == Blending::Opaque;
            let hint = "Cover the layers below instead of adding to them";
            if theme::checkbox(ui, &mut opaque, "Opaque").on_hover_text(hint).changed() {
                display.blending = if opaque { Blending::Opaque } else { Blending::Additive };
            }
        });
    });
}

/// Width of a slider in points that leaves space for its number and its label: a row that is wider than its panel would widen
/// the panel.
fn slider_width(ui: &Ui, name: &str) -> f32 {
    let text = egui::WidgetText::from(name).into_galley(
        ui,
        Some(egui::TextWrapMode::Extend),
        f32::INFINITY,
        egui::TextStyle::Body,
    );
    let (usual, gaps) = (ui.spacing().slider_width, 2.0 * ui.spacing().item_spacing.x);
    let available = ui.available_width() - text.size().x - SLIDER_NUMBER - gaps;
    available.min(usual).max(MIN_SLIDER)
}

/// Draws sliders of these names, and other widgets, with `add`. The sliders are equally wide, so that their numbers are below
/// each other.
pub(crate) fn with_aligned_sliders<R>(ui: &mut Ui, names: &[&str], add: impl FnOnce(&mut Ui) -> R) -> R {
    let usual = ui.spacing().slider_width;
    ui.spacing_mut().slider_width = names.iter().map(|name| slider_width(ui, name)).fold(usual, f32::min);
    let added = add(ui);
    ui.spacing_mut().slider_width = usual;
    added
}

/// A slider with a label; returns whether the value changed.
pub(crate) fn named_slider(
    ui: &mut Ui,
    value: &mut f32,
    range: std::ops::RangeInclusive<f32>,
    name: &str,
    logarithmic: bool,
) -> bool {
    labeled_slider(ui, value, range, name, logarithmic).changed()
}

/// A slider with a label; returns its response, for a tooltip.
pub(crate) fn labeled_slider(
    ui: &mut Ui,
    value: &mut f32,
    range: std::ops::RangeInclusive<f32>,
    name: &str,
    logarithmic: bool,
) -> egui::Response {
    // `max_decimals` would round the value itself, and with it settings that a model has chosen.
    let shown = |value: f64, decimals: std::ops::RangeInclusive<usize>| {
        egui::emath::format_with_decimals_in_range(value, (*decimals.start()).min(2)..=(*decimals.end()).min(2))
    };
    let usual = (ui.spacing().slider_width, ui.spacing().interact_size.x);
    ui.spacing_mut().slider_width = slider_width(ui, name);
    ui.spacing_mut().interact_size.x = SLIDER_NUMBER;
    let slider = egui::Slider::new(value, range).logarithmic(logarithmic).custom_formatter(shown).text(name);
    // A value outside of the range, such as one that was set on the command line, is shown, and stays until the slider is moved.
    let response = ui.add(slider.clamping(egui::SliderClamping::Edits));
    (ui.spacing_mut().slider_width, ui.spacing_mut().interact_size.x) = usual;
    response
}

/// The choice of the colors of the channel or layer with this name.
fn color_menu(ui: &mut Ui, display: &mut Intensity, name: &str) {
    let title = format!("Colors of {name}");
    let [r, g, b] = display.map.color(0.8);
    let swatch = Color32::from_rgb(r as u8, g as u8, b as u8);
    let button = egui::Button::new("").fill(swatch).min_size(vec2(16.0, 16.0)).corner_radius(4);
    let (response, _) = egui::containers::menu::MenuButton::from_button(button).ui(ui, |ui| {
        for (colors, map) in ColorMap::NAMED {
            ui.horizontal(|ui| {
                let (rect, _) = ui.allocate_exact_size(vec2(48.0, 14.0), Sense::hover());
                for i in 0..12 {
                    let [r, g, b] = map.color((i as f32 + 0.5) / 12.0);
                    let x = rect.left() + rect.width() * i as f32 / 12.0;
                    let cell =
                        egui::Rect::from_min_size(pos2(x, rect.top()), vec2(rect.width() / 12.0 + 0.5, rect.height()));
                    ui.painter().rect_filled(cell, 0.0, Color32::from_rgb(r as u8, g as u8, b as u8));
                }
                if ui.selectable_label(display.map == map, colors).clicked() {
                    display.map = map;
                    ui.close();
                }
            });
        }
    });
    response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, true, &title));
    response.on_hover_text("Colors from low to high values");
}

/// The histogram with draggable contrast limits.
fn contrast(ui: &mut Ui, histogram: &Histogram, display: &mut Intensity, name: &str) {
    let width = ui.available_width();
    let (rect, response) = ui.allocate_exact_size(vec2(width, 54.0), Sense::click_and_drag());
    response.widget_info(|| {
        egui::WidgetInfo::labeled(
            egui::WidgetType::Slider,
            true,
            format!("Contrast of {name}, {} to {}", display.low, display.high),
        )
    });
    let painter = ui.painter_at(rect);
    painter.rect_filled(rect, 4.0, ui.visuals().extreme_bg_color);
    // The plot spans the limits with a margin, but not more than the data and the limits.
    let (auto_low, auto_high) = histogram.limits();
    let margin = (auto_high - auto_low).max(f32::MIN_POSITIVE) * 0.5;
    let from = display.low.min(auto_low - margin).max(histogram.low.min(display.low));
    let to = display.high.max(auto_high + margin).min(histogram.high.max(display.high));
    let span = (to - from).max(f32::MIN_POSITIVE);
    let x = |v: f32| rect.left() + rect.width() * ((v - from) / span);
    draw_bars(&painter, rect, histogram, x, ui.visuals().weak_text_color());
    for v in [display.low, display.high] {
        painter.line_segment([pos2(x(v), rect.top()), pos2(x(v), rect.bottom())], Stroke::new(2.0, theme::ACCENT));
    }
    if let (true, Some(at)) = (response.dragged() || response.clicked(), response.interact_pointer_pos()) {
        let value = from + ((at.x - rect.left()) / rect.width()).clamp(0.0, 1.0) * span;
        drag_limit(ui, &response, value, span * 1e-4, display);
    }
    if response.has_focus() {
        painter.rect_stroke(rect, 4.0, Stroke::new(1.5, theme::ACCENT), StrokeKind::Inside);
        contrast_keys(ui, response.id, span, display);
    }
    response.on_hover_text(
        "Drag the limits. The left and right arrow keys move the lower limit, down and up the upper one; with Shift in \
         larger steps",
    );
    limit_fields(ui, histogram, display, name, span);
}

/// Draws the bars of a histogram; `x` is the position of a value.
fn draw_bars(painter: &egui::Painter, rect: egui::Rect, histogram: &Histogram, x: impl Fn(f32) -> f32, color: Color32) {
    let max = histogram.counts.iter().copied().max().unwrap_or(1).max(1) as f32;
    let bin = (histogram.high - histogram.low) / histogram.counts.len().max(1) as f32;
    for (i, count) in histogram.counts.iter().enumerate().filter(|(_, c)| **c > 0) {
        let left = x(histogram.low + i as f32 * bin);
        let right = x(histogram.low + (i + 1) as f32 * bin).max(left + 1.0);
        let height = ((*count as f32).ln_1p() / max.ln_1p()) * (rect.height() - 6.0);
        let bar = egui::Rect::from_min_max(pos2(left, rect.bottom() - height), pos2(right, rect.bottom()));
        painter.rect_filled(bar, 0.0, color);
    }
}

/// Moves the limit that was nearer at the start of the drag to a value, at least `min_gap` from the other one.
fn drag_limit(ui: &Ui, response: &egui::Response, value: f32, min_gap: f32, display: &mut Intensity) {
    let id = response.id.with("which");
    if response.drag_started() || response.clicked() {
        // The arrow keys move the limits from now on.
        response.request_focus();
        let low = (value - display.low).abs() < (value - display.high).abs();
        ui.data_mut(|d| d.insert_temp(id, low));
    }
    if ui.data(|d| d.get_temp(id)).unwrap_or(true) {
        display.low = value.min(display.high - min_gap);
    } else {
        display.high = value.max(display.low + min_gap);
    }
}

/// Moves the other limit along if the lower or the upper one was set beyond it: the image would be black.
fn keep_apart(display: &mut Intensity, is_lower: bool, min_gap: f32) {
    // The gap may be less than what a float can add to a large number.
    let above = |value: f32| (value + min_gap).max(value.next_up());
    match is_lower {
        true => display.high = display.high.max(above(display.low)),
        false => display.low = display.low.min(-above(-display.high)),
    }
}

/// A field for a contrast limit. It changes the limit once the number is complete, whose first digits may be those of one beyond
/// the other limit.
fn limit_field(limit: &mut f32, speed: f64, digits: usize) -> egui::DragValue<'_> {
    egui::DragValue::new(limit).speed(speed).max_decimals(digits).update_while_editing(false)
}

/// Draws the numbers of both contrast limits, and the button that sets them from the slice; `span` is the range of the plot.
fn limit_fields(ui: &mut Ui, histogram: &Histogram, display: &mut Intensity, name: &str, span: f32) {
    ui.horizontal(|ui| {
        let speed = f64::from(span) / 400.0;
        let digits = match span {
            span if span > 20.0 => 0,
            span if span > 0.2 => 3,
            _ => 6,
        };
        let min_gap = span * 1e-4;
        let low = ui.add(limit_field(&mut display.low, speed, digits));
        if low.changed() {
            keep_apart(display, true, min_gap);
        }
        low.widget_info(|| {
            egui::WidgetInfo::labeled(egui::WidgetType::DragValue, true, format!("Lower limit of {name}"))
        });
        ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
            let high = ui.add(limit_field(&mut display.high, speed, digits));
            if high.changed() {
                keep_apart(display, false, min_gap);
            }
            high.widget_info(|| {
                egui::WidgetInfo::labeled(egui::WidgetType::DragValue, true, format!("Upper limit of {name}"))
            });
            if ui.small_button("Auto").on_hover_text("Set the limits from this slice").clicked() {
                (display.low, display.high) = histogram.limits();
            }
        });
    });
}

/// Moves the contrast limits with the arrow keys by a hundredth of `span`, the range of the focused histogram, or a tenth
/// with Shift.
fn contrast_keys(ui: &Ui, histogram: egui::Id, span: f32, display: &mut Intensity) {
    crate::views::keep_arrow_keys(ui, histogram);
    let step = if ui.input(|i| i.modifiers.shift) { span / 10.0 } else { span / 100.0 };
    let steps = |back: Key, forth: Key| ui.input(|i| i.num_presses(forth) as f32 - i.num_presses(back) as f32);
    let (low, high) = (steps(Key::ArrowLeft, Key::ArrowRight) * step, steps(Key::ArrowDown, Key::ArrowUp) * step);
    let min_gap = span * 1e-4;
    if low != 0.0 {
        display.low = (display.low + low).min(display.high - min_gap);
    }
    if high != 0.0 {
        display.high = (display.high + high).max(display.low + min_gap);
    }
}

/// Display settings of an overlay that can be changed here.
#[derive(Debug, Clone, PartialEq)]
struct OverlayControls {
    visible: bool,
    style: LabelStyle,
    label_opacity: f32,
    display: Intensity,
}

impl OverlayControls {
    fn of(overlay: &Overlay) -> Self {
        Self {
            visible: overlay.visible,
            style: overlay.labels.style,
            label_opacity: overlay.labels.opacity,
            display: overlay.display.clone(),
        }
    }
}

/// Controls of one layer; returns whether to remove it.
fn overlay_controls(ui: &mut Ui, overlay: &Overlay, shown: &mut OverlayControls) -> bool {
    let mut gone = false;
    let title = overlay.title();
    ui.push_id(("overlay", title), |ui| {
        ui.horizontal(|ui| {
            visibility_toggle(ui, &mut shown.visible, title);
            ui.label(title).on_hover_text(&overlay.name);
            ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
                if overlay.role != Role::Live {
                    let close = ui.add(egui::Button::new(icon::X).frame(false));
                    close.widget_info(|| {
                        egui::WidgetInfo::labeled(egui::WidgetType::Button, true, format!("Remove {title}"))
                    });
                    gone = close.on_hover_text("Remove the layer; the file is kept").clicked();
                }
            });
        });
        if !shown.visible {
            return;
        }
        if overlay.is_labels() {
            ui.horizontal(|ui| {
                let styles = [(LabelStyle::Outline, "Outline"), (LabelStyle::Fill, "Fill"), (LabelStyle::Both, "Both")];
                for (style, name) in styles {
                    if ui.selectable_label(shown.style == style, name).clicked() {
                        shown.style = style;
                    }
                }
            });
            if shown.style != LabelStyle::Outline {
                named_slider(ui, &mut shown.label_opacity, 0.05..=1.0, "Opacity", false);
            }
        } else {
            ui.horizontal(|ui| {
                color_menu(ui, &mut shown.display, title);
                named_slider(ui, &mut shown.display.opacity, 0.0..=1.0, "Opacity", false);
            });
            if let Some(histogram) = &overlay.histogram {
                contrast(ui, histogram, &mut shown.display, title);
            }
        }
    });
    gone
}

#[cfg(test)]
mod tests {
    use super::*;
    use egui_kittest::Harness;
    use egui_kittest::kittest::Queryable;

    #[test]
    fn sizes_stay_on_one_line() {
        let shown = with_whole_sizes("4 time points, 12 × 96 × 128, uint16, 1.5 × 0.5 × 0.5 µm");
        let parts: Vec<&str> = shown.split(' ').collect();
        let expected = ["4", "time", "points,", "12\u{a0}×\u{a0}96\u{a0}×\u{a0}128,", "uint16,"];
        assert_eq!(parts.split_last(), Some((&"1.5\u{a0}×\u{a0}0.5\u{a0}×\u{a0}0.5\u{a0}µm", expected.as_slice())));
    }

    #[test]
    fn links_beside_a_summary_stay_in_one_piece() {
        for width in (150..400).step_by(10) {
            let width = width as f32;
            let window = Harness::builder().with_size([500.0, 200.0]).build_ui(move |ui| {
                ui.set_max_width(width);
                ui.horizontal_wrapped(|ui| {
                    weak(ui, "30 × 256 × 256, uint16, 0.5 × 0.2 × 0.2 µm");
                    whole_link(ui, "Axes…");
                    whole_link(ui, "Voxel size…");
                });
            });
            let [axes, size] = ["Axes…", "Voxel size…"].map(|name| window.get_by_label(name).rect());
            // A link on two lines is higher than one that has no space to break at.
            assert!((size.height() - axes.height()).abs() < 1.0, "{width}: {axes} {size}");
            assert!(size.right() <= width + 20.0, "{width}: {size}");
        }
    }

    #[test]
    fn labels_of_sliders_are_below_each_other_whatever_their_numbers() {
        let mut window = Harness::builder().with_size([400.0, 200.0]).build_ui(|ui| {
            theme::install(ui.ctx());
            labeled_slider(ui, &mut 0.5, 0.0..=1.0, "Threshold", false);
            labeled_slider(ui, &mut 27.9, 0.0..=2000.0, "Min. volume", true);
        });
        window.run_steps(4);
        // The label follows the slider and its number.
        let left = |name: &str| {
            let lefts = window.query_all_by_label(name).map(|node| node.rect().left());
            lefts.fold(f32::NEG_INFINITY, f32::max)
        };
        let lefts = ["Threshold", "Min. volume"].map(left);
        assert!(lefts[0] > 100.0 && (lefts[0] - lefts[1]).abs() < 1.0, "{lefts:?}");
    }

    #[test]
    fn a_contrast_limit_that_passes_the_other_one_moves_it_along() {
        let mut display = Overlay::map_display();
        for (low, high) in [(0.0, 1.0), (5.0, 1.0), (60_000.0, 60_000.0)] {
            (display.low, display.high) = (low, high);
            keep_apart(&mut display, true, 1e-4);
            assert!(display.low.to_bits() == low.to_bits() && display.high > low, "{low} {high}");
            (display.low, display.high) = (low, high);
            keep_apart(&mut display, false, 1e-4);
            assert!(display.high.to_bits() == high.to_bits() && display.low < high, "{low} {high}");
        }
        assert!(display.low < 60_000.0);
    }
}
