//! Object diameter of a document: estimated or set by the user, and drawn as a ring on the image.

use crate::action::Actions;
use crate::document::DocumentChange;
use crate::documents::DocumentsAction;
use crate::jobs::JobsAction;
use crate::number_text::counted;
use crate::panels::{heading, weak};
use crate::state::State;
use cytoscope_pipeline::cards::ModelCard;
use cytoscope_pipeline::{Certainty, DiameterRequest, DiameterUnit, ObjectDiameter};
use eframe::egui::{self, Ui};
use egui_phosphor::regular as icon;

/// Object diameter settings of a document.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ObjectSize {
    /// Diameter requested for predictions.
    pub request: DiameterRequest,
    /// Result of the last estimate or prediction.
    pub found: Option<ObjectDiameter>,
}

impl ObjectSize {
    /// The diameter to draw: the requested one, or else the last estimate.
    pub fn shown(&self) -> Option<f64> {
        match self.request {
            DiameterRequest::Given(diameter) => Some(diameter),
            DiameterRequest::Auto => self.found.map(|found| found.diameter),
        }
    }

    /// The request for a job with this model. A diameter that was set while another model was selected is refused for a model that
    /// does not rescale objects, and the control of the diameter is not shown for it.
    pub(crate) fn request_for(self, model: &ModelCard) -> DiameterRequest {
        if model.object_diameter_um.is_some() { self.request } else { DiameterRequest::Auto }
    }
}

/// Draws the choice between an estimated diameter and one that the user sets, which is `first` at first; `hint` explains the
/// latter.
pub(crate) fn diameter_choice(ui: &mut Ui, request: &mut DiameterRequest, first: f64, unit: &str, hint: &str) {
    ui.horizontal_wrapped(|ui| {
        let is_auto = *request == DiameterRequest::Auto;
        if ui.selectable_label(is_auto, "Automatic").on_hover_text("Estimated when the stack is predicted").clicked() {
            *request = DiameterRequest::Auto;
        }
        let manual = ui.selectable_label(!is_auto, "Manual").on_hover_text(hint);
        if manual.clicked() && is_auto {
            *request = DiameterRequest::Given(first);
        }
        if let DiameterRequest::Given(diameter) = request {
            let drag = egui::DragValue::new(diameter)
                .range(0.1..=10_000.0)
                .speed(0.1)
                .max_decimals(1)
                .suffix(format!(" {unit}"));
            let response = ui.add(drag);
            // The heading has the name "Object diameter".
            let name = "Object diameter number";
            response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::DragValue, true, name));
        }
    });
}

/// Draws the object diameter control, for models that rescale objects to a nominal diameter.
pub(crate) fn diameter_control(ui: &mut Ui, state: State<'_>, card: &ModelCard, actions: &mut Actions) {
    let Some(nominal_um) = card.object_diameter_um else { return };
    heading(ui, "Object diameter");
    let Some(document) = state.document() else { return };
    let id = document.id;
    let unit = if document.voxel_known { DiameterUnit::Um } else { DiameterUnit::Voxels }.symbol();
    let mut size = document.object_size;
    let is_estimating = state.jobs.estimating(id).is_some();
    let first = size.found.map_or(nominal_um, |found| found.diameter);
    diameter_choice(ui, &mut size.request, first, unit, "Set the diameter yourself; a ring on the image shows it");
    let text = format!("{}  Estimate", icon::RULER);
    let reason = match is_estimating {
        true => Some("The diameter is being estimated."),
        false => state.reason_against_jobs(),
    };
    let button = ui.add_enabled(reason.is_none(), egui::Button::new(text));
    button.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, reason.is_none(), "Estimate"));
    let button = button.on_hover_text("Measure the objects of this stack now");
    let estimate = button.on_disabled_hover_text(reason.unwrap_or_default()).clicked();
    let found = match size.found {
        _ if is_estimating => "Estimating…".to_owned(),
        Some(ObjectDiameter { diameter, estimate: Some(e), .. }) if e.certainty == Certainty::None => {
            format!("No objects found: assuming {diameter:.1} {unit}")
        }
        Some(ObjectDiameter { diameter, estimate: Some(e), .. }) => {
            let objects = counted(e.objects as u64, "object");
            format!("Estimated {diameter:.1} {unit} from {objects} ({})", e.certainty.words())
        }
        Some(ObjectDiameter { diameter, .. }) if size.request == DiameterRequest::Auto => {
            format!("Estimated when the stack is predicted; {diameter:.1} {unit} last time")
        }
        _ if size.request == DiameterRequest::Auto => "Estimated when the stack is predicted".to_owned(),
        _ => "The ring on the image has this diameter".to_owned(),
    };
    weak(ui, found);
    if size != document.object_size {
        actions.send(DocumentsAction::Change { document: id, change: DocumentChange::Diameter(size) });
    }
    if estimate {
        actions.send(JobsAction::EstimateDiameter(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_pipeline::cards::card;
    use std::path::Path;

    #[test]
    fn a_diameter_is_requested_only_from_models_that_rescale_objects() {
        let size = ObjectSize { request: DiameterRequest::Given(9.0), found: None };
        let stain = card("stain", Path::new("/m/stain"));
        let nuclei = ModelCard { object_diameter_um: Some(12.0), ..stain.clone() };
        assert_eq!(size.request_for(&nuclei), DiameterRequest::Given(9.0));
        assert_eq!(size.request_for(&stain), DiameterRequest::Auto);
    }
}
