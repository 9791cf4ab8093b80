//! The Settings page: start model, time budget and model name.

use super::{cards, icon_text_button, page_header, title};
use crate::app::Workbench;
use crate::opener::FileRequest;
use crate::panels::weak;
use crate::theme;
use crate::training::plan::{MINUTES, SCRATCH};
use crate::training::start::incompatibility;
use cytoscope_pipeline::cards::ModelCard;
use eframe::egui::{self, Ui};
use egui_phosphor::regular as icon;

impl Workbench {
    /// Title of the start model.
    pub(super) fn start_name(&self) -> String {
        let from = &self.wizard.plan.from;
        let of = |m: &&ModelCard| m.path.display().to_string() == *from;
        let own = self.wizard.start_file.as_deref();
        let card = self.work.models.iter().find(of).or_else(|| own.filter(|m| of(m)));
        card.map_or_else(|| crate::document::file_name(std::path::Path::new(from)), |m| m.title.clone())
    }

    pub(super) fn start_page(&mut self, ui: &mut Ui) {
        page_header(ui, "Choose a start model", "");
        let task = self.wizard.plan.task;
        let fits = |m: &&ModelCard| incompatibility(m, task).is_none();
        let mut chosen = None;
        let scratch = self.wizard.plan.from == SCRATCH;
        let sentence = "A small untrained 3-D U-Net. Best with twenty pairs or more.";
        if cards::row(ui, scratch, "New network", "from scratch", sentence).clicked() {
            chosen = Some(SCRATCH.to_owned());
        }
        let own_folder = self.wizard.models_folder();
        let own = self.wizard.start_file.as_deref().filter(|m| fits(m));
        for model in self.work.models.iter().filter(fits).chain(own) {
            let path = model.path.display().to_string();
            let mark = match own.is_some_and(|o| o.path == model.path) {
                true => "file",
                false if model.path.starts_with(&own_folder) => "your model",
                false => "included",
            };
            let selected = self.wizard.plan.from == path;
            if cards::row(ui, selected, &model.title, mark, &model.description).clicked() {
                chosen = Some(path);
            }
        }
        if icon_text_button(ui, true, icon::FOLDER_OPEN, "Choose model file…")
            .on_hover_text("A bioimage.io package (.zip) or an ONNX file")
            .clicked()
        {
            self.ask_training(FileRequest::StartModel, String::new());
        }
        let own = self.wizard.start_file.as_deref();
        if let Some((own, why)) = own.and_then(|m| Some((m, incompatibility(m, task)?))) {
            weak(ui, format!("{} cannot be the start model. {why}", own.name));
        }
        if let Some(from) = chosen {
            self.wizard.plan.from = from;
        }
        self.how_long(ui);
        title(ui, "Model name");
        let edit =
            egui::TextEdit::singleline(&mut self.wizard.plan.name).desired_width(300.0).margin(egui::vec2(8.0, 5.0));
        let edit = ui.add(edit);
        edit.widget_info(|| {
            let mut info = egui::WidgetInfo::labeled(egui::WidgetType::TextEdit, true, "Name of the model");
            info.current_text_value = Some(self.wizard.plan.name.clone());
            info
        });
    }

    fn how_long(&mut self, ui: &mut Ui) {
        ui.add_space(theme::GAP);
        title(ui, "Time budget");
        let width = ((ui.available_width() - 24.0) / 3.0).clamp(110.0, 190.0);
        ui.horizontal_wrapped(|ui| {
            for (name, minutes) in MINUTES {
                let selected = (self.wizard.plan.minutes - minutes).abs() < 1e-9;
                if cards::time(ui, width, selected, name, minutes).clicked() {
                    self.wizard.plan.minutes = minutes;
                }
            }
        });
        ui.horizontal(|ui| {
            let value = egui::DragValue::new(&mut self.wizard.plan.minutes)
                .range(0.5..=2880.0)
                .speed(0.5)
                .max_decimals(1)
                .suffix(" minutes");
            let number = ui.add(value);
            number.widget_info(|| egui::WidgetInfo {
                value: Some(self.wizard.plan.minutes),
                ..egui::WidgetInfo::labeled(egui::WidgetType::DragValue, true, "Minutes")
            });
            ui.label("in total");
        });
        weak(ui, self.wizard.cost_sentence());
    }
}
