//! How labels and truth agree, in a line and in colours.

use super::{heading, weak};
use crate::app::Workbench;
use crate::document::Role;
use crate::theme;
use eframe::egui::{Color32, RichText, Ui};
use egui_phosphor::regular as icon;

impl Workbench {
    pub(crate) fn comparison(&mut self, ui: &mut Ui) {
        let Some(at) = self.documents.iter().position(|d| Some(d.id) == self.active) else { return };
        let document = &self.documents[at];
        let both = [Role::Labels, Role::Truth].iter().all(|r| document.of_role(*r).is_some());
        let compared = self.compare.of(document).map(|c| c.result.clone());
        if !both {
            return;
        }
        heading(ui, "Against truth");
        match compared {
            None => _ = weak(ui, "Comparing…"),
            Some(Err(why)) => _ = weak(ui, why),
            Some(Ok(m)) => {
                ui.label(format!("F1 {:.3} at IoU {}", m.f1, m.threshold));
                ui.horizontal_wrapped(|ui| {
                    for (count, name, [r, g, b]) in [
                        (m.tp, "matched", theme::MATCHED),
                        (m.r#fn, "missed", theme::MISSED),
                        (m.fp, "false", theme::FALSE_ONE),
                    ] {
                        ui.label(RichText::new(icon::SQUARE).color(Color32::from_rgb(r, g, b)));
                        ui.label(format!("{count} {name}"));
                    }
                });
            }
        }
        ui.checkbox(&mut self.compare.colored, "Colour by match");
    }
}
