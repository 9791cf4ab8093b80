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
use std::ops::RangeInclusive;

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

/// Diameters that can be set, in µm or voxels.
pub(crate) const DIAMETERS: RangeInclusive<f64> = 0.01..=10_000.0;

/// Diameter in µm when the user begins to set one and nothing is known about the objects.
pub(crate) const FIRST_DIAMETER_UM: f64 = 10.0;

/// The diameter that a request gives; `None` if it is estimated.
pub(crate) fn given_diameter(request: DiameterRequest) -> Option<f64> {
    match request {
        DiameterRequest::Given(diameter) => Some(diameter),
        DiameterRequest::Auto => None,
    }
}

/// The choice between an object diameter that is left to the program or to a file, and one that the user sets.
#[derive(Clone, Copy)]
pub(crate) struct DiameterChoice<'a> {
    /// Name and tooltip of the former.
    pub(crate) unset: [&'a str; 2],
    /// Tooltip of the latter.
    pub(crate) hint: &'a str,
    /// The diameter when the user begins to set it.
    pub(crate) first: f64,
    /// Unit of the diameter.
    pub(crate) unit: DiameterUnit,
    /// Why no diameter can be set now; `None` if one can.
    pub(crate) reason: Option<&'a str>,
}

impl DiameterChoice<'_> {
    /// Draws the choice, and the field of a diameter that is set.
    pub(crate) fn show(&self, ui: &mut Ui, diameter: &mut Option<f64>) {
        let is_set = diameter.is_some();
        let [unset, explanation] = self.unset;
        if ui.selectable_label(!is_set, unset).on_hover_text(explanation).clicked() {
            *diameter = None;
        }
        // A diameter that is set can be changed in any case.
        let may_set = is_set || self.reason.is_none();
        let manual = ui.add_enabled(may_set, egui::Button::selectable(is_set, "Manual"));
        let manual = manual.on_hover_text(self.hint);
        let manual = match self.reason {
            Some(reason) => manual.on_disabled_hover_text(reason),
            None => manual,
        };
        if manual.clicked() && !is_set {
            *diameter = Some(self.first);
        }
        let Some(diameter) = diameter else { return };
        let drag = egui::DragValue::new(diameter).range(DIAMETERS).speed(0.1).max_decimals(2);
        let response = ui.add(drag.suffix(format!(" {}", self.unit.symbol())));
        response.widget_info(|| egui::WidgetInfo {
            value: Some(*diameter),
            // The heading or label has the name "Object diameter".
            ..egui::WidgetInfo::labeled(egui::WidgetType::DragValue, true, "Object diameter number")
        });
    }
}

/// Draws the object diameter control, for models that rescale objects to a nominal diameter.
pub(crate) fn diameter_control(ui: &mut Ui, state: State<'_>, card: &ModelCard, actions: &mut Actions) {
    let Some(nominal_um) = card.object_diameter_um else { return };
    heading(ui, "Object diameter");
    let Some(document) = state.document() else { return };
    let id = document.id;
    let diameter_unit = if document.voxel_known { DiameterUnit::Um } else { DiameterUnit::Voxels };
    let unit = diameter_unit.symbol();
    let mut size = document.object_size;
    let is_estimating = state.jobs.estimating(id).is_some();
    let first = size.found.map_or(nominal_um, |found| found.diameter);
    let choice = DiameterChoice {
        unset: ["Automatic", "Estimated when the stack is predicted"],
        hint: "Set the diameter yourself; a ring on the image shows it",
        first,
        unit: diameter_unit,
        reason: None,
    };
    let mut given = given_diameter(size.request);
    ui.horizontal_wrapped(|ui| choice.show(ui, &mut given));
    size.request = given.map_or(DiameterRequest::Auto, DiameterRequest::Given);
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
            let certainty = e.certainty.words();
            // Another diameter may have been set since.
            let has_ring = size.shown().is_some_and(|shown| (shown - diameter).abs() < 0.005);
            let ring = if has_ring { "; the ring on the image shows it" } else { "" };
            format!("Estimated {diameter:.1} {unit} from {objects} ({certainty}){ring}")
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
    use egui_kittest::Harness;
    use egui_kittest::kittest::{NodeT, Queryable};
    use std::path::Path;

    #[test]
    fn a_diameter_is_set_and_taken_back_unless_a_reason_is_against_it() {
        let choice = DiameterChoice {
            unset: ["Automatic", ""],
            hint: "",
            first: 12.0,
            unit: DiameterUnit::Voxels,
            reason: Some("State the voxel size first."),
        };
        let mut window = Harness::builder().with_size([400.0, 100.0]).build_ui_state(
            move |ui, (is_possible, diameter): &mut (bool, Option<f64>)| {
                let reason = choice.reason.filter(|_| !*is_possible);
                ui.horizontal(|ui| DiameterChoice { reason, ..choice }.show(ui, diameter));
            },
            (false, None),
        );
        assert!(window.get_by_label("Manual").accesskit_node().is_disabled());
        window.state_mut().0 = true;
        for (name, expected) in [("Manual", Some(12.0)), ("Automatic", None), ("Manual", Some(12.0))] {
            window.run_steps(2);
            window.get_by_label(name).click();
            window.run_steps(3);
            assert_eq!(window.state().1, expected, "{name}");
            assert_eq!(window.query_by_label("Object diameter number").is_some(), expected.is_some());
        }
        // What was set is taken back although it could not be set any more.
        window.state_mut().0 = false;
        window.run_steps(2);
        window.get_by_label("Automatic").click();
        window.run_steps(3);
        assert_eq!(window.state().1, None);
    }

    #[test]
    fn a_diameter_is_requested_only_from_models_that_rescale_objects() {
        let size = ObjectSize { request: DiameterRequest::Given(9.0), found: None };
        let stain = card("stain", Path::new("/m/stain"));
        let nuclei = ModelCard { object_diameter_um: Some(12.0), ..stain.clone() };
        assert_eq!(size.request_for(&nuclei), DiameterRequest::Given(9.0));
        assert_eq!(size.request_for(&stain), DiameterRequest::Auto);
    }
}
