//! Object diameter of a document: estimated or set by the user, and drawn as a ring on the image.

use crate::app::Workbench;
use crate::panels::{PanelTask, heading, weak};
use crate::work::{JobView, Purpose};
use cytoscope_pipeline::cards::ModelCard;
use cytoscope_pipeline::{DiameterJob, DiameterRequest, DiameterUnit, ObjectDiameter};
use cytoscope_worker::Job;
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
}

impl Workbench {
    /// Draws the object diameter control, for models that rescale objects to a nominal diameter.
    pub(crate) fn diameter_control(&mut self, ui: &mut Ui, id: u64, card: &ModelCard) {
        let Some(nominal_um) = card.object_diameter_um else { return };
        heading(ui, "Object diameter");
        let Some(document) = self.document() else { return };
        let unit = if document.voxel_known { DiameterUnit::Um } else { DiameterUnit::Voxels }.symbol();
        let mut size = document.object_size;
        let is_estimating = self.estimating(id).is_some();
        ui.horizontal_wrapped(|ui| {
            let is_auto = size.request == DiameterRequest::Auto;
            if ui
                .selectable_label(is_auto, "Automatic")
                .on_hover_text("Estimated when the stack is predicted")
                .clicked()
            {
                size.request = DiameterRequest::Auto;
            }
            if ui.selectable_label(!is_auto, "Manual").clicked() && is_auto {
                size.request = DiameterRequest::Given(size.found.map_or(nominal_um, |found| found.diameter));
            }
            if let DiameterRequest::Given(diameter) = &mut size.request {
                let drag = egui::DragValue::new(diameter)
                    .range(0.1..=10_000.0)
                    .speed(0.1)
                    .max_decimals(1)
                    .suffix(format!(" {unit}"));
                let response = ui.add(drag);
                response
                    .widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::DragValue, true, "Object diameter"));
            }
        });
        let text = format!("{}  Estimate", icon::RULER);
        let button = ui.add_enabled(!is_estimating, egui::Button::new(text));
        button.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, !is_estimating, "Estimate"));
        let estimate = button.on_hover_text("Measure the objects of this stack now").clicked();
        let found = match size.found {
            _ if is_estimating => "Estimating…".to_owned(),
            Some(ObjectDiameter { diameter, estimate: Some(e), .. }) => {
                format!("Estimated {diameter:.1} {unit} from {} objects ({})", e.objects, e.certainty.words())
            }
            _ if size.request == DiameterRequest::Auto => "Estimated when the stack is predicted".to_owned(),
            _ => "The ring on the image has this diameter".to_owned(),
        };
        weak(ui, found);
        if let Some(document) = self.document_mut() {
            document.object_size = size;
        }
        if estimate {
            self.start_diameter_estimate(id);
        }
    }

    /// The diameter of the ring on the image, in units of the document's voxel size, while the Predict panel is open.
    pub(crate) fn ring(&self) -> Option<f64> {
        let is_set_up = self.panels.task == PanelTask::Predict && self.settings.show_tasks;
        let has_nominal = self.model().is_some_and(|card| card.object_diameter_um.is_some());
        self.document().filter(|_| is_set_up && has_nominal)?.object_size.shown()
    }

    fn estimating(&self, id: u64) -> Option<&JobView> {
        let is_of = |j: &&JobView| j.purpose == Purpose::Diameter { document: id } && !j.state.is_over();
        self.work.jobs.iter().find(is_of)
    }

    fn start_diameter_estimate(&mut self, id: u64) {
        let Some(mut prediction) = self.prediction_job(id) else { return };
        prediction.diameter = DiameterRequest::Auto;
        let name = self.document().map(|d| d.name.clone()).unwrap_or_default();
        let title = format!("{name} · object diameter");
        let job = Job::ObjectDiameter(DiameterJob { prediction });
        self.work.run(title, Purpose::Diameter { document: id }, job);
    }

    /// Stores the estimated diameter of a document's objects.
    pub(crate) fn handle_diameter(&mut self, document: u64, found: ObjectDiameter) {
        if let Some(document) = self.documents.iter_mut().find(|d| d.id == document) {
            document.object_size.found = Some(found);
            if let DiameterRequest::Given(_) = document.object_size.request {
                document.object_size.request = DiameterRequest::Given(found.diameter);
            }
        }
    }
}
