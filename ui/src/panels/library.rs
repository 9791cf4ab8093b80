//! The left panel: open stacks, and display settings of the active document.

use super::bars::with_reason;
use super::compare::comparison;
use super::contrast::contrast;
use super::sliders::named_slider;
use super::{
    capitalized, heading, icon_button, icon_row, item_text, row_text, scrolled, scrolled_frame, scrolled_in, weak,
    whole_link,
};
use crate::action::Actions;
use crate::command::Command;
use crate::data::composite::{Blending, ColorMap, Intensity, LabelStyle};
use crate::display::DisplayAction;
use crate::document::{ChannelView, Document, DocumentChange, Overlay, Role, file_name};
use crate::documents::{DocumentsAction, JobOutput};
use crate::provenance::record_link;
use crate::state::State;
use crate::theme;
use cytoscope_pipeline::predict::containing_maps;
use eframe::egui::{self, Color32, RichText, Sense, Ui, pos2, vec2};
use egui_phosphor::regular as icon;

/// Number of stacks above which their list has its own scroll bar, so that the channels below it stay within reach.
const LONG_LIST: usize = 12;

/// Least maximum height of a long list of stacks in points; in a high window, it may take half of the panel.
const LONG_LIST_HEIGHT: f32 = 400.0;

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
}
