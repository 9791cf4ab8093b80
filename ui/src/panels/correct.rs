//! The Correct panel: tools, current label, history, and saving.

use super::library::named_slider;
use super::{heading, icon_button, main_button, weak};
use crate::app::Workbench;
use crate::command::Command;
use crate::correct::Phase;
use crate::correct::tools::{EditAction, StrokeMask, Tool};
use crate::document::{Role, file_name};
use crate::opener::FileRequest;
use crate::theme;
use cytoscope_annotate::Extent;
use cytoscope_formats::label_color;
use eframe::egui::{self, Color32, RichText, Sense, Ui, vec2};
use egui_phosphor::regular as icon;

/// Number of undo steps listed.
const MAX_LISTED_STEPS: usize = 6;

impl Workbench {
    pub(crate) fn correct_panel(&mut self, ui: &mut Ui) {
        let Some(id) = self.active else { return };
        match self.corrections.of(id).map(|c| c.phase.clone()) {
            None => self.start_panel(ui, id),
            Some(Phase::Opening) => {
                ui.horizontal(|ui| {
                    ui.spinner();
                    ui.label("Opening…");
                });
                ui.ctx().request_repaint_after(std::time::Duration::from_millis(100));
            }
            Some(Phase::OtherLabels(why)) => self.other_labels_panel(ui, id, &why),
            Some(Phase::Open) => self.correction_tools(ui, id),
        }
    }

    fn start_panel(&mut self, ui: &mut Ui, id: u64) {
        let labels = self.document().and_then(|d| d.of_role(Role::Labels));
        let preview = labels.is_some_and(|o| o.name == crate::flow::PREVIEW_NAME);
        let name = labels.map(|o| o.name.clone());
        ui.add(egui::Label::new("Paint, merge and split objects by hand. Every stroke is saved immediately.").wrap());
        ui.add_space(theme::GROUP_GAP);
        match name {
            Some(_) if preview => {
                main_button(ui, false, icon::PENCIL_SIMPLE, "Correct");
                weak(ui, "These objects are a preview: save them in Predict first.");
            }
            Some(name) => {
                if main_button(ui, true, icon::PENCIL_SIMPLE, "Correct").clicked() {
                    self.start_correcting(id, None);
                }
                weak(ui, name);
            }
            None => {
                if main_button(ui, true, icon::PENCIL_SIMPLE, "Label").clicked() {
                    self.start_correcting(id, None);
                }
                weak(ui, "Starts with empty labels. Or predict first, or add labels with File > Add labels.");
            }
        }
    }

    fn other_labels_panel(&mut self, ui: &mut Ui, id: u64, why: &str) {
        ui.label(RichText::new(format!("{}  Earlier corrections exist", icon::WARNING)).strong());
        ui.add(egui::Label::new("They were made on other labels than the ones shown.").wrap());
        egui::CollapsingHeader::new("Details").show(ui, |ui| weak(ui, why));
        ui.add_space(theme::GAP);
        if ui.button("Continue earlier corrections").clicked() {
            self.continue_earlier(id);
        }
        if ui.button("Start over").on_hover_text("The earlier files are renamed, not deleted").clicked() {
            self.start_over(id);
        }
    }

    fn correction_tools(&mut self, ui: &mut Ui, id: u64) {
        self.tool_buttons(ui);
        self.current_label(ui, id);
        self.brush_controls(ui);
        self.selection(ui);
        self.label_actions(ui);
        self.history(ui, id);
        self.saving_controls(ui, id);
    }

    /// A text button for an edit action.
    fn action_button(&mut self, ui: &mut Ui, action: EditAction, text: &str) {
        let command = Command::Correct(action);
        let enabled = self.is_enabled(command);
        let title = self.current_title(command);
        let response = ui.add_enabled(enabled, egui::Button::new(format!("{}  {text}", action.icon())));
        response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, enabled, &title));
        let keys = command.shortcut().map(|s| format!(" ({})", ui.ctx().format_shortcut(&s))).unwrap_or_default();
        if response.on_hover_text(format!("{title}{keys}")).clicked() {
            self.commands.push(command);
        }
    }

    fn tool_buttons(&mut self, ui: &mut Ui) {
        let tool = self.corrections.tools.tool;
        ui.horizontal_wrapped(|ui| {
            ui.spacing_mut().item_spacing.x = 4.0;
            for t in Tool::ALL {
                let keys = ui.ctx().format_shortcut(&egui::KeyboardShortcut::new(egui::Modifiers::NONE, t.key()));
                let response = icon_button(ui, t.icon(), t.title(), true, tool == t);
                if response.on_hover_text(format!("{}  ({keys})", t.hint())).clicked() {
                    self.commands.push(Command::Tool(t));
                }
            }
        });
        weak(ui, tool.hint());
    }

    fn current_label(&mut self, ui: &mut Ui, id: u64) {
        heading(ui, "Label");
        let Some(label) = self.corrections.of(id).map(|c| c.label) else { return };
        let mut typed = label;
        ui.horizontal(|ui| {
            let [r, g, b] = label_color(u64::from(label));
            let (rect, _) = ui.allocate_exact_size(vec2(22.0, 22.0), Sense::hover());
            ui.painter().rect_filled(rect, 5.0, Color32::from_rgb(r, g, b));
            let response = ui.add(egui::DragValue::new(&mut typed).range(1..=u32::MAX).speed(0.1));
            response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::DragValue, true, "Current label"));
            self.action_button(ui, EditAction::NewLabel, "New");
            self.action_button(ui, EditAction::Delete, "Delete");
        });
        let voxels = self.corrections.of(id).and_then(|c| c.state.as_ref()).map_or(0, |s| s.label_count);
        weak(ui, format!("{voxels} labels in total"));
        if typed != label {
            if let Some(correction) = self.corrections.of_mut(id) {
                correction.label = typed;
            }
            if let Some(document) = self.document_mut() {
                document.select(Some(typed));
            }
        }
    }

    fn brush_controls(&mut self, ui: &mut Ui) {
        let tools = &mut self.corrections.tools;
        if !tools.tool.has_brush() && tools.tool != Tool::Fill {
            return;
        }
        heading(ui, if tools.tool.has_brush() { "Brush" } else { "Region" });
        if tools.tool.has_brush() {
            let mut radius = tools.radius_um as f32;
            let [min, max] = tools.radii_um.map(|v| v as f32);
            if named_slider(ui, &mut radius, min..=max, "Radius (µm)", true) {
                tools.radius_um = f64::from(radius);
            }
        }
        ui.horizontal(|ui| {
            for (ball, name) in [(false, "This slice"), (true, "3-D")] {
                if ui.selectable_label(tools.ball == ball, name).clicked() {
                    tools.ball = ball;
                }
            }
        });
        if tools.tool.has_brush() {
            let erasing = tools.tool == Tool::Erase;
            weak(ui, "Paint over");
            for (mask, name) in StrokeMask::NAMED.into_iter().filter(|(c, _)| !erasing || *c != StrokeMask::Background)
            {
                let chosen =
                    tools.mask == mask || (erasing && mask == StrokeMask::All && tools.mask == StrokeMask::Background);
                if ui.radio(chosen, name).clicked() {
                    tools.mask = mask;
                }
            }
        }
    }

    fn selection(&mut self, ui: &mut Ui) {
        let tool = self.corrections.tools.tool;
        if !matches!(tool, Tool::Merge | Tool::Split) {
            return;
        }
        let n = self.document().map_or(0, |d| d.marks.points.len());
        heading(ui, if tool == Tool::Merge { "Labels to merge" } else { "Seeds" });
        ui.label(format!("{n} selected"));
        ui.horizontal(|ui| {
            self.action_button(ui, EditAction::Apply, if tool == Tool::Merge { "Merge" } else { "Split" });
            self.action_button(ui, EditAction::ClearSelection, "Clear");
        });
    }

    fn label_actions(&mut self, ui: &mut Ui) {
        heading(ui, "Label shape");
        let tools = &mut self.corrections.tools;
        let mut margin = tools.margin_um as f32;
        let max = ((tools.radii_um[1] / 2.0) as f32).max(margin);
        if named_slider(ui, &mut margin, 0.01_f32.min(max)..=max, "Distance (µm)", true) {
            tools.margin_um = f64::from(margin);
        }
        ui.horizontal(|ui| {
            self.action_button(ui, EditAction::Grow, "Grow");
            self.action_button(ui, EditAction::Shrink, "Shrink");
        });
        ui.horizontal(|ui| {
            self.action_button(ui, EditAction::FillHoles, "Fill holes");
            self.action_button(ui, EditAction::Interpolate, "Interpolate");
        });
    }

    fn history(&mut self, ui: &mut Ui, id: u64) {
        heading(ui, "History");
        ui.horizontal(|ui| {
            self.action_button(ui, EditAction::Undo, "Undo");
            self.action_button(ui, EditAction::Redo, "Redo");
        });
        let Some(state) = self.corrections.of(id).and_then(|c| c.state.as_ref()) else { return };
        for name in state.undo.iter().take(MAX_LISTED_STEPS) {
            weak(ui, name);
        }
        if state.undo_count > MAX_LISTED_STEPS {
            weak(ui, format!("and {} more", state.undo_count - MAX_LISTED_STEPS));
        }
    }

    /// Choice of the labels that an exported training pair contains.
    fn extent_choice(&mut self, ui: &mut Ui) {
        let name = |extent| match extent {
            Extent::Everything => "All labels",
            Extent::CorrectedSlices => "Corrected slices",
            Extent::CorrectedObjects => "Corrected objects",
        };
        let extent = &mut self.corrections.tools.extent;
        let choice = egui::ComboBox::from_id_salt("extent").selected_text(name(*extent)).show_ui(ui, |ui| {
            for each in [Extent::Everything, Extent::CorrectedSlices, Extent::CorrectedObjects] {
                ui.selectable_value(extent, each, name(each));
            }
        });
        let response = choice.response.on_hover_text(
            "Labels used for training: all of them, or only the corrected ones. The other voxels then get the ignore \
             label and do not count.",
        );
        response
            .widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::ComboBox, true, "Labels used for training"));
    }

    fn saving_controls(&mut self, ui: &mut Ui, id: u64) {
        heading(ui, "Save");
        let Some(correction) = self.corrections.of(id) else { return };
        let (modified, saving, exporting) = (correction.is_modified(), correction.saving, correction.exporting);
        let labels = correction.places.labels.clone();
        let failure = correction.state.as_ref().and_then(|s| s.sync_failure.clone());
        let text = match (saving, modified) {
            (true, _) => format!("{}  Saving…", icon::FLOPPY_DISK),
            (false, true) => format!("{}  Modified", icon::CIRCLE),
            (false, false) => format!("{}  All saved", icon::CHECK),
        };
        ui.label(text);
        weak(ui, "Every stroke is written to a journal: nothing is lost if the window closes.");
        if let Some(failure) = failure {
            let text = format!("The journal could not be written to the disk: {failure}. Check the disk.");
            ui.add(egui::Label::new(RichText::new(text).color(theme::bad(ui.visuals()))).wrap());
        }
        self.action_button(ui, EditAction::Save, "Save labels");
        weak(ui, file_name(&labels)).on_hover_text(labels.display().to_string());
        self.table_hint(ui);
        self.extent_choice(ui);
        self.action_button(ui, EditAction::Export, if exporting { "Adding…" } else { "Use as training data" });
        ui.horizontal(|ui| {
            let folder = self.settings.dataset_folder.clone();
            let button = ui.small_button(icon::FOLDER);
            button.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, true, "Dataset folder"));
            if button.on_hover_text("Choose the dataset folder").clicked() {
                self.opener.ask(FileRequest::DatasetFolder, folder.clone(), String::new());
            }
            let text = folder.map_or_else(|| "no dataset folder".to_owned(), |f| f.display().to_string());
            ui.add(egui::Label::new(RichText::new(&text).weak().size(12.0)).truncate()).on_hover_text(text);
        });
    }
}
