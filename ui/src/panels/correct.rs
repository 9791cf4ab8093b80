//! The Correct panel: tools, current label, history, and saving.

use super::sliders::named_slider;
use super::{heading, icon_button, labeled_choice, main_button, weak};
use crate::action::Actions;
use crate::command::{Command, keys_text};
use crate::correct::tools::{EditAction, StrokeMask, Tool, Tools};
use crate::correct::{Correction, CorrectionsAction, Phase};
use crate::document::{Document, DocumentChange, Role, file_name};
use crate::documents::DocumentsAction;
use crate::measure::table_hint;
use crate::number_text::counted;
use crate::opener::FileRequest;
use crate::state::State;
use crate::theme;
use cytoscope_corrections::KnownVoxels;
use cytoscope_formats::label_color;
use cytoscope_pipeline::DiameterUnit;
use cytoscope_pipeline::predict::containing_maps;
use eframe::egui::{self, Color32, RichText, Sense, Ui, vec2};
use egui_phosphor::regular as icon;

/// Number of undo steps listed in a tooltip.
const MAX_LISTED_STEPS: usize = 6;

/// Draws the panel.
pub(super) fn correct_panel(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let Some(id) = state.documents.active_id() else { return };
    let correction = state.corrections.of(id);
    match correction.map(|c| (c, &c.phase)) {
        None => start_panel(ui, state, id, actions),
        Some((_, Phase::Opening)) => {
            ui.horizontal(|ui| {
                ui.spinner();
                ui.label("Opening…");
            });
            ui.ctx().request_repaint_after(std::time::Duration::from_millis(100));
        }
        Some((_, Phase::OtherLabels(why))) => other_labels_panel(ui, id, why, actions),
        Some((correction, Phase::Open)) => correction_tools(ui, state, id, correction, actions),
    }
}

fn start_panel(ui: &mut Ui, state: State<'_>, id: u64, actions: &mut Actions) {
    let shown = state.document().and_then(|d| d.overlay_with_role(Role::Labels).filter(|o| o.is_at(d.time)));
    let is_preview = shown.is_some_and(|o| o.is_preview);
    let text = "Paint, merge and split objects by hand. Every stroke is kept, even if the window closes. \"Save labels\" \
                writes a label image.";
    ui.add(egui::Label::new(text).wrap());
    ui.add_space(theme::GROUP_GAP);
    match state.documents.labels_to_correct(id).map(|labels| file_name(containing_maps(labels))) {
        _ if is_preview => {
            main_button(ui, false, icon::PENCIL_SIMPLE, "Correct");
            weak(ui, "These objects are a preview: save them in Predict first.");
        }
        Some(name) => {
            if main_button(ui, true, icon::PENCIL_SIMPLE, "Correct").clicked() {
                actions.send(CorrectionsAction::Start(id));
            }
            weak(ui, name);
        }
        None => {
            if main_button(ui, true, icon::PENCIL_SIMPLE, "Label").clicked() {
                actions.send(CorrectionsAction::Start(id));
            }
            weak(ui, "Starts with empty labels. Alternatively, predict first, or add labels with File > Add labels.");
        }
    }
    if state.document().is_some_and(|d| state.jobs.was_corrected(id, d.time)) {
        weak(ui, "Earlier corrections of this stack are kept, and restored when you continue.");
    }
}

fn other_labels_panel(ui: &mut Ui, id: u64, why: &str, actions: &mut Actions) {
    ui.label(RichText::new(format!("{}  Earlier corrections exist", icon::WARNING)).strong());
    ui.add(egui::Label::new("They belong to labels other than those shown.").wrap());
    egui::CollapsingHeader::new("Details").show(ui, |ui| weak(ui, why));
    ui.add_space(theme::GAP);
    if ui.button("Continue earlier corrections").clicked() {
        actions.send(CorrectionsAction::ContinueEarlier(id));
    }
    if ui.button("Start over").on_hover_text("The earlier files are renamed, not deleted").clicked() {
        actions.send(CorrectionsAction::StartOver(id));
    }
}

fn correction_tools(ui: &mut Ui, state: State<'_>, id: u64, correction: &Correction, actions: &mut Actions) {
    let tools = state.corrections.tools();
    other_time(ui, state, id, correction.time, actions);
    tool_buttons(ui, tools.tool, state.display.shows_line_profile(), actions);
    current_label(ui, state, id, correction, actions);
    let unit = state.document().map_or(DiameterUnit::Um, Document::length_unit).symbol();
    brush_controls(ui, tools, unit, actions);
    selection(ui, state, id, actions);
    label_actions(ui, state, tools, unit, actions);
    history(ui, state, correction, actions);
    saving_controls(ui, state, correction, actions);
}

/// If another time point is shown than the one that is corrected, offers to go back to it, or to correct the shown one.
fn other_time(ui: &mut Ui, state: State<'_>, id: u64, time: usize, actions: &mut Actions) {
    if state.document().is_none_or(|d| d.time == time) {
        return;
    }
    let number = time + 1;
    ui.label(RichText::new(format!("{}  Time point {number} is being corrected", icon::WARNING)).strong());
    if ui.button(format!("Go to time point {number}")).clicked() {
        actions.send(DocumentsAction::Change { document: id, change: DocumentChange::Time(time) });
    }
    let other = ui.button("Correct this time point");
    if other.on_hover_text("The corrections of the other time point are kept").clicked() {
        actions.send(CorrectionsAction::Close { document: id, notification_title: "Corrections are kept" });
        actions.send(CorrectionsAction::Start(id));
    }
    ui.add_space(theme::GAP);
}

/// A text button for an edit action.
fn action_button(ui: &mut Ui, state: State<'_>, action: EditAction, text: &str, actions: &mut Actions) {
    let command = Command::Correct(action);
    let reason = state.reason_against_editing(action);
    let enabled = reason.is_none();
    let title = state.current_title(command);
    let response = ui.add_enabled(enabled, egui::Button::new(format!("{}  {text}", action.icon())));
    response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, enabled, &title));
    let keys = command.shortcut().map(|s| format!(" ({})", keys_text(ui.ctx(), &s))).unwrap_or_default();
    let response = response.on_hover_text(format!("{title}{keys}"));
    if response.on_disabled_hover_text(reason.unwrap_or_default()).clicked() {
        actions.command(command);
    }
}

/// Draws the tools and what the selected one does. None is in use while the line profile takes the pointer.
fn tool_buttons(ui: &mut Ui, tool: Tool, has_line_profile: bool, actions: &mut Actions) {
    ui.horizontal_wrapped(|ui| {
        ui.spacing_mut().item_spacing.x = 4.0;
        for t in Tool::ALL {
            let keys = keys_text(ui.ctx(), &egui::KeyboardShortcut::new(egui::Modifiers::NONE, t.key()));
            let response = icon_button(ui, t.icon(), t.title(), true, tool == t && !has_line_profile);
            if response.on_hover_text(format!("{}  ({keys})", t.hint())).clicked() {
                actions.command(Command::Tool(t));
            }
        }
    });
    weak(ui, if has_line_profile { "Choose a tool to close the line profile." } else { tool.hint() });
}

fn current_label(ui: &mut Ui, state: State<'_>, id: u64, correction: &Correction, actions: &mut Actions) {
    heading(ui, "Label");
    let label = correction.label;
    let mut typed = label;
    ui.horizontal(|ui| {
        let [r, g, b] = label_color(u64::from(label));
        let (rect, _) = ui.allocate_exact_size(vec2(22.0, 22.0), Sense::hover());
        ui.painter().rect_filled(rect, 5.0, Color32::from_rgb(r, g, b));
        // Labels of other time points are numbered independently.
        let is_shown = state.document().is_some_and(|d| d.time == correction.time);
        let response = ui.add_enabled(is_shown, label_field(&mut typed));
        response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::DragValue, is_shown, "Current label"));
        response.on_disabled_hover_text("Go back to the time point that is being corrected first.");
        action_button(ui, state, EditAction::NewLabel, "New", actions);
        action_button(ui, state, EditAction::Delete, "Delete", actions);
    });
    let count = correction.state.as_ref().map_or(0, |s| s.label_count);
    weak(ui, format!("{} in total", counted(count as u64, "label")));
    if typed != label {
        actions.send(CorrectionsAction::Label(typed));
        actions.send(DocumentsAction::Change { document: id, change: DocumentChange::Select(Some(typed)) });
    }
}

/// A field for a label. 0, which stands for a label that is not known yet, stays until a label is set.
fn label_field(label: &mut u32) -> egui::DragValue<'_> {
    egui::DragValue::new(label).range(1..=u32::MAX).clamp_existing_to_range(false).speed(0.1)
}

fn brush_controls(ui: &mut Ui, tools: &Tools, unit: &str, actions: &mut Actions) {
    if !tools.tool.has_brush() && tools.tool != Tool::Fill {
        return;
    }
    heading(ui, if tools.tool.has_brush() { "Brush" } else { "Region" });
    if tools.tool.has_brush() {
        let mut radius = tools.radius_um as f32;
        let [min, max] = tools.radii_um.map(|v| v as f32);
        if named_slider(ui, &mut radius, min..=max, &format!("Radius ({unit})"), true) {
            actions.send(CorrectionsAction::Radius(f64::from(radius)));
        }
    }
    ui.horizontal(|ui| {
        for (ball, name, hint) in [
            (false, "This slice", "Change the slice that is drawn on"),
            (true, "3-D", "Change the neighboring slices, too"),
        ] {
            if ui.selectable_label(tools.ball == ball, name).on_hover_text(hint).clicked() {
                actions.send(CorrectionsAction::Brush3d(ball));
            }
        }
    });
    if tools.tool.has_brush() {
        let erasing = tools.tool == Tool::Erase;
        weak(ui, if erasing { "Erase" } else { "Paint over" });
        for (mask, name) in StrokeMask::NAMED.into_iter().filter(|(c, _)| !erasing || *c != StrokeMask::Background) {
            let chosen =
                tools.mask == mask || (erasing && mask == StrokeMask::All && tools.mask == StrokeMask::Background);
            if theme::outlined(ui, |ui| ui.radio(chosen, name)).clicked() {
                actions.send(CorrectionsAction::Mask(mask));
            }
        }
    }
}

fn selection(ui: &mut Ui, state: State<'_>, id: u64, actions: &mut Actions) {
    let tool = state.corrections.tools().tool;
    if !matches!(tool, Tool::Merge | Tool::Split) {
        return;
    }
    heading(ui, if tool == Tool::Merge { "Labels to merge" } else { "Seeds" });
    ui.label(format!("{} selected", state.corrections.selected_points(id)));
    ui.horizontal(|ui| {
        let name = if tool == Tool::Merge { "Merge" } else { "Split" };
        action_button(ui, state, EditAction::Apply, name, actions);
        action_button(ui, state, EditAction::ClearSelection, "Clear", actions);
    });
}

fn label_actions(ui: &mut Ui, state: State<'_>, tools: &Tools, unit: &str, actions: &mut Actions) {
    heading(ui, "Label shape");
    let mut margin = tools.margin_um as f32;
    let max = ((tools.radii_um[1] / 2.0) as f32).max(margin);
    if named_slider(ui, &mut margin, 0.01_f32.min(max)..=max, &format!("Distance ({unit})"), true) {
        actions.send(CorrectionsAction::Margin(f64::from(margin)));
    }
    ui.horizontal(|ui| {
        action_button(ui, state, EditAction::Grow, "Grow", actions);
        action_button(ui, state, EditAction::Shrink, "Shrink", actions);
    });
    ui.horizontal(|ui| {
        action_button(ui, state, EditAction::FillHoles, "Fill holes", actions);
        action_button(ui, state, EditAction::Interpolate, "Interpolate", actions);
    });
}

fn history(ui: &mut Ui, state: State<'_>, correction: &Correction, actions: &mut Actions) {
    heading(ui, "History");
    ui.horizontal(|ui| {
        action_button(ui, state, EditAction::Undo, "Undo", actions);
        action_button(ui, state, EditAction::Redo, "Redo", actions);
    });
    let (names, count) = correction.state.as_ref().map(|s| (s.undo.as_slice(), s.undo_count)).unwrap_or_default();
    // Always one line: the buttons below it stay where they are while strokes are drawn.
    let label = ui.add(egui::Label::new(RichText::new(undo_text(names, count)).weak().size(12.0)).truncate());
    if count > 1 {
        let listed: Vec<&str> = names.iter().take(MAX_LISTED_STEPS).map(String::as_str).collect();
        label.on_hover_text(listed.join("\n"));
    }
}

/// What Undo reverts next, and how many steps precede it; `names` are those of the `count` steps, next first.
fn undo_text(names: &[String], count: usize) -> String {
    match (names.first(), count) {
        (None, _) => "Nothing to undo".to_owned(),
        (Some(name), 0 | 1) => name.clone(),
        (Some(name), _) => format!("{name}, and {} before it", counted(count as u64 - 1, "step")),
    }
}

/// Choice of the labels that an exported training pair contains.
fn known_voxels_choice(ui: &mut Ui, chosen: KnownVoxels, actions: &mut Actions) {
    let name = |which| match which {
        KnownVoxels::All => "All labels",
        KnownVoxels::CorrectedSlices => "Corrected slices",
        KnownVoxels::CorrectedObjects => "Corrected objects",
    };
    let mut which = chosen;
    let response = labeled_choice(ui, "known voxels", "Training labels", name(which), |ui| {
        for each in [KnownVoxels::All, KnownVoxels::CorrectedSlices, KnownVoxels::CorrectedObjects] {
            ui.selectable_value(&mut which, each, name(each));
        }
    });
    response.on_hover_text(
        "All labels, or only the corrected ones: then the other voxels get the ignore label and do not count in training.",
    );
    if which != chosen {
        actions.send(CorrectionsAction::KnownVoxels(which));
    }
}

fn saving_controls(ui: &mut Ui, state: State<'_>, correction: &Correction, actions: &mut Actions) {
    heading(ui, "Save");
    let text = match (correction.saving, correction.is_modified()) {
        (true, _) => format!("{}  Saving…", icon::FLOPPY_DISK),
        (false, true) => format!("{}  Modified", icon::CIRCLE),
        (false, false) => format!("{}  All saved", icon::CHECK),
    };
    ui.label(text);
    match correction.state.as_ref().and_then(|s| s.sync_failure.as_ref()) {
        None => _ = weak(ui, "Every stroke is written to a journal: nothing is lost if the window closes."),
        Some(failure) => {
            let text = format!("The journal could not be written to the disk: {failure}. Check the disk.");
            ui.add(egui::Label::new(RichText::new(text).color(theme::bad(ui.visuals()))).wrap());
        }
    }
    action_button(ui, state, EditAction::Save, "Save labels", actions);
    let labels = &correction.files.labels;
    weak(ui, file_name(labels)).on_hover_text(labels.display().to_string());
    known_voxels_choice(ui, state.corrections.tools().known_voxels, actions);
    let export = if correction.exporting { "Adding…" } else { "Use as training data" };
    action_button(ui, state, EditAction::Export, export, actions);
    ui.horizontal(|ui| {
        let folder = &state.settings().dataset_folder;
        let button = ui.button(icon::FOLDER);
        button.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, true, "Dataset folder"));
        if button.on_hover_text("Choose the dataset folder").clicked() {
            let request = FileRequest::DatasetFolder(None);
            actions.send(DocumentsAction::Ask { request, folder: folder.clone(), name: String::new() });
        }
        let text = folder.as_ref().map_or_else(|| "No dataset folder".to_owned(), |f| f.display().to_string());
        // If it is cut off, its tooltip is the whole text.
        ui.add(egui::Label::new(RichText::new(text).weak().size(12.0)).truncate());
    });
    // Last, because it comes and goes after each saving: the buttons stay where they are.
    table_hint(ui, state, actions);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_that_is_not_known_yet_is_not_set_by_its_field() {
        let ctx = egui::Context::default();
        let mut labels = [0, 7];
        let _ = ctx.run_ui(egui::RawInput::default(), |ui| {
            labels.iter_mut().for_each(|label| _ = ui.add(label_field(label)));
        });
        assert_eq!(labels, [0, 7]);
    }

    #[test]
    fn the_history_is_one_line() {
        let names = ["Paint 16".to_owned(), "Erase".to_owned(), "Fill 2".to_owned()];
        let shown = [undo_text(&[], 0), undo_text(&names[..1], 1), undo_text(&names[..2], 2), undo_text(&names, 300)];
        let expected =
            ["Nothing to undo", "Paint 16", "Paint 16, and 1 step before it", "Paint 16, and 299 steps before it"];
        assert_eq!(shown, expected);
    }
}
