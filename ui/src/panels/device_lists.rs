//! The lists of devices and precisions, for predictions and for training.

use super::SettingRow;
use crate::engine_notes::message_in_window;
use cytoscope_engine::{Device, DeviceRequest, Precision};
use eframe::egui::{self, Ui};

/// Draws the list of devices. Returns the device, if another one was chosen.
pub(super) fn device_list(
    ui: &mut Ui,
    row: SettingRow,
    id: &str,
    devices: &[Device],
    before: DeviceRequest,
) -> Option<DeviceRequest> {
    let mut device = before;
    let fastest = "Auto (fastest)";
    let shown = match device {
        DeviceRequest::Auto => fastest.to_owned(),
        DeviceRequest::Device(id) => id.to_string(),
    };
    row.choice(ui, id, "Device", &shown, |ui| {
        ui.selectable_value(&mut device, DeviceRequest::Auto, fastest);
        for d in devices {
            let choice = DeviceRequest::Device(d.id);
            let button = egui::Button::selectable(device == choice, format!("{}  {}", d.id, d.name));
            let response = ui.add_enabled(d.usable, button);
            let reason = message_in_window(&d.reason_message());
            if response.on_hover_text(&reason).on_disabled_hover_text(&reason).clicked() {
                device = choice;
            }
        }
    });
    (device != before).then_some(device)
}

/// Returns the precisions in which the requested device predicts with a model, or those of all usable ones: int8 only if the
/// model has an int8 network.
pub(super) fn offered_precisions(devices: &[Device], request: DeviceRequest, has_int8: bool) -> Vec<Precision> {
    let mut all = offered(devices, request, |device| device.precisions.clone());
    all.retain(|precision| has_int8 || *precision != Precision::Int8);
    all
}

/// Returns the precisions in which the requested device trains, or those of all usable ones.
pub(super) fn offered_training_precisions(devices: &[Device], request: DeviceRequest) -> Vec<Precision> {
    offered(devices, request, Device::training_precisions)
}

/// Returns the precisions that `of` states for the requested device, or for all usable ones, each once.
fn offered(devices: &[Device], request: DeviceRequest, of: impl Fn(&Device) -> Vec<Precision>) -> Vec<Precision> {
    let may = |d: &&Device| d.usable && (request == DeviceRequest::Auto || request == DeviceRequest::Device(d.id));
    let mut all: Vec<Precision> = Vec::new();
    for precision in devices.iter().filter(may).flat_map(of) {
        if !all.contains(&precision) {
            all.push(precision);
        }
    }
    all
}

/// Draws the list of the precisions `all`; `automatic` names the automatic choice, `None`. Returns the choice, if it differs
/// from `before`. A precision that is not offered becomes automatic, once any is offered.
pub(super) fn precision_list(
    ui: &mut Ui,
    row: SettingRow,
    id: &str,
    all: &[Precision],
    automatic: &str,
    before: Option<Precision>,
) -> Option<Option<Precision>> {
    let mut precision = before.filter(|chosen| all.is_empty() || all.contains(chosen));
    let shown = precision.map_or(automatic, |one| one.name());
    row.choice(ui, id, "Precision", shown, |ui| {
        ui.selectable_value(&mut precision, None, automatic);
        for one in all {
            ui.selectable_value(&mut precision, Some(*one), one.name());
        }
    });
    (precision != before).then_some(precision)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theme;
    use cytoscope_engine::DeviceId;
    use egui_kittest::Harness;
    use egui_kittest::kittest::Queryable;

    #[test]
    fn the_label_of_a_list_is_on_one_line_with_it() {
        let mut window = Harness::builder().with_size([400.0, 300.0]).build_ui(|ui| {
            theme::install(ui.ctx());
            _ = device_list(ui, SettingRow::Line, "device", &[], DeviceRequest::Auto);
            egui::Grid::new("settings").num_columns(2).show(ui, |ui| {
                _ = precision_list(ui, SettingRow::Grid, "precision", &[], "Auto", None);
            });
        });
        window.run_steps(4);
        for name in ["Device", "Precision"] {
            let centers: Vec<f32> = window.query_all_by_label(name).map(|node| node.rect().center().y).collect();
            assert!(matches!(centers[..], [label, list] if (label - list).abs() <= 1.0), "{name}: {centers:?}");
        }
    }

    #[test]
    fn only_precisions_of_the_requested_device_or_of_usable_ones_are_offered() {
        use Precision::{Bf16, F16, F32, Int8, Tf32};
        let device = |id, usable, precisions: &[Precision]| Device { usable, ..Device::named(id, "", precisions) };
        let devices = [
            device(DeviceId::Cuda(0), true, &[F32, Tf32, F16]),
            device(DeviceId::Cuda(1), false, &[F32, Bf16]),
            device(DeviceId::Cpu, true, &[F32, Bf16, Int8]),
        ];
        let cpu = DeviceRequest::Device(DeviceId::Cpu);
        assert_eq!(offered_precisions(&devices, DeviceRequest::Auto, true), [F32, Tf32, F16, Bf16, Int8]);
        assert_eq!(offered_precisions(&devices, cpu, true), [F32, Bf16, Int8]);
        assert_eq!(offered_precisions(&devices, cpu, false), [F32, Bf16], "the model has no int8 network");
        // CPUs train in f32 only.
        assert_eq!(offered_training_precisions(&devices, DeviceRequest::Auto), [F32, Tf32, F16]);
        assert_eq!(offered_training_precisions(&devices, cpu), [F32]);
        assert!(offered_precisions(&devices, DeviceRequest::Device(DeviceId::Wgpu(0)), true).is_empty());
    }
}
