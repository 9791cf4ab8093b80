//! The empty window: a drop area, the sample stack and recent files.

use crate::action::Actions;
use crate::command::Command;
use crate::display::PanelTask;
use crate::document::file_name;
use crate::documents::{DocumentsAction, distinct_name, namesakes};
use crate::panels::{filled_button, item_text};
use crate::state::State;
use crate::theme;
use eframe::egui::{self, Align2, Color32, FontId, RichText, Stroke, StrokeKind, Ui, vec2};
use egui_phosphor::regular as icon;

/// Number of recent files listed.
const RECENT: usize = 5;

/// Draws the empty window, with a scroll bar if it is low.
pub(super) fn empty(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let height = ui.available_height();
    let scroll = egui::ScrollArea::vertical().id_salt("empty window").auto_shrink([false; 2]);
    scroll.show(ui, |ui| choices(ui, state, height, actions));
}

/// Draws the ways to begin, in the middle of `height` points.
fn choices(ui: &mut Ui, state: State<'_>, height: f32, actions: &mut Actions) {
    ui.vertical_centered(|ui| {
        ui.add_space((height * 0.5 - 210.0).max(24.0));
        if drop_area(ui, state.documents.is_opening()).clicked() {
            actions.command(Command::Open);
        }
        ui.add_space(16.0);
        if state.documents.sample().is_some() {
            let text = RichText::new(format!("{}  Open the sample", icon::FLASK)).size(15.0);
            let response = ui.add(filled_button(text, true).min_size(vec2(180.0, 36.0)));
            response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, true, "Open the sample"));
            if response.clicked() {
                actions.command(Command::OpenSample);
            }
            ui.label(RichText::new("Simulated nuclei: open, then predict.").weak().size(12.0));
        }
        ui.add_space(theme::GAP);
        let train = ui.add(egui::Button::new(format!("{}  Train a model…", Command::Train.icon())).frame(false));
        train.widget_info(|| {
            egui::WidgetInfo::labeled(egui::WidgetType::Button, true, Command::Train.title().to_owned())
        });
        if train.on_hover_text("Needs pairs: images with label images or a stain").clicked() {
            actions.command(Command::Train);
        }
        let recent = &state.settings().recent;
        if !recent.is_empty() {
            ui.add_space(theme::GROUP_GAP);
            ui.label(RichText::new("Recent").weak());
            for path in recent.iter().take(RECENT) {
                let name = distinct_name(&file_name(path), path, &namesakes(path, recent));
                let link = ui.link(item_text(&name)).on_hover_text(path.display().to_string());
                if link.clicked() {
                    actions.send(DocumentsAction::Open(vec![path.clone()]));
                }
            }
        }
    });
}

/// Draws the area that files are dropped on.
fn drop_area(ui: &mut Ui, opening: bool) -> egui::Response {
    let size = vec2(ui.available_width().min(520.0), 210.0);
    let (rect, response) = ui.allocate_exact_size(size, egui::Sense::click());
    response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, true, "Drop a stack here"));
    let visuals = ui.visuals();
    let stroke = if response.hovered() || response.has_focus() {
        Stroke::new(2.0, theme::ACCENT)
    } else {
        Stroke::new(1.5, visuals.widgets.noninteractive.bg_stroke.color)
    };
    ui.painter().rect(rect, 14.0, visuals.faint_bg_color, stroke, StrokeKind::Inside);
    let text = visuals.strong_text_color();
    let center = rect.center();
    let put = |y: f32, words: &str, size: f32, color: Color32| {
        ui.painter().text(center + vec2(0.0, y), Align2::CENTER_CENTER, words, FontId::proportional(size), color);
    };
    put(-46.0, icon::STACK, 52.0, theme::ACCENT);
    put(16.0, if opening { "Opening…" } else { "Drop a stack here" }, 22.0, text);
    put(
        48.0,
        "TIFF, OME-Zarr, CZI, ND2, LIF, LSM, NIfTI, PNG, NPY and others; or click to choose",
        13.5,
        visuals.weak_text_color(),
    );
    response
}

/// Shows a hint while files are dragged over the window.
pub(crate) fn drop_hint(ctx: &egui::Context, task: PanelTask) {
    let n = ctx.input(|i| i.raw.hovered_files.len());
    if n == 0 {
        return;
    }
    let rect = ctx.content_rect();
    let painter = ctx.layer_painter(egui::LayerId::new(egui::Order::Foreground, egui::Id::new("drop hint")));
    painter.rect_filled(rect, 0.0, Color32::from_black_alpha(170));
    painter.rect_stroke(rect.shrink(14.0), 14.0, Stroke::new(3.0, theme::ACCENT), StrokeKind::Inside);
    let text = match (task, n) {
        (PanelTask::Train, 1) => "Drop to use as training data".to_owned(),
        (PanelTask::Batch, 1) => "Drop to convert".to_owned(),
        (PanelTask::Batch, n) => format!("Drop to convert {n} files"),
        (_, 1) => "Drop to open".to_owned(),
        (_, n) => format!("Drop to open {n} files"),
    };
    painter.text(rect.center(), Align2::CENTER_CENTER, text, FontId::proportional(28.0), theme::ON_IMAGE);
}
