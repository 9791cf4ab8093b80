//! The choice among the presets of this machine's profile.

use super::{SettingRow, named_button, weak};
use crate::action::Actions;
use crate::jobs::JobsAction;
use crate::state::State;
use cytoscope_pipeline::{InferenceSettings, MachineProfile, PerformanceRequest, Preset, TrainingSettings};
use cytoscope_profile::{bytes_text, time_text};
use eframe::egui::{self, Ui};
use egui_phosphor::regular as icon;

/// Name of a request in the window.
fn name(request: PerformanceRequest, profile: &MachineProfile) -> String {
    match request {
        PerformanceRequest::Auto => format!("As tuned ({})", preset_name(profile.preset).to_lowercase()),
        PerformanceRequest::Off => "Not tuned".to_owned(),
        PerformanceRequest::Preset(preset) => preset_name(preset).to_owned(),
    }
}

fn preset_name(preset: Preset) -> &'static str {
    match preset {
        Preset::Fastest => "Fastest",
        Preset::LeastMemory => "Least memory",
        Preset::MostAccurate => "Most accurate",
    }
}

/// Draws the choice with the presets that were tuned; `describe` states the settings of a preset, if it exists. Returns
/// the new choice, once it has changed.
pub(super) fn performance_choice(
    ui: &mut Ui,
    row: SettingRow,
    chosen: PerformanceRequest,
    profile: &MachineProfile,
    describe: &dyn Fn(Preset) -> Option<String>,
) -> Option<PerformanceRequest> {
    let mut request = chosen;
    let response = row.choice(ui, "performance", "Performance", &name(chosen, profile), |ui| {
        for one in [PerformanceRequest::Auto, PerformanceRequest::Off] {
            ui.selectable_value(&mut request, one, name(one, profile));
        }
        for preset in Preset::ALL {
            if let Some(settings) = describe(preset) {
                let one = PerformanceRequest::Preset(preset);
                ui.selectable_value(&mut request, one, name(one, profile)).on_hover_text(settings);
            }
        }
    });
    response.on_hover_text("Measured on this machine by Tune settings; used for settings that are left on Auto");
    (request != chosen).then_some(request)
}

/// Draws the button that starts `cytoscope tune`, or says that it runs; `hint` says what is measured. Returns whether it was
/// clicked.
pub(super) fn tune_button(ui: &mut Ui, state: State<'_>, hint: &str, actions: &mut Actions) -> bool {
    if let Some(model) = state.jobs.tuning() {
        ui.horizontal(|ui| {
            ui.spinner();
            if state.jobs.is_canceling_tuning() {
                weak(ui, "Canceling…");
                return;
            }
            let what = if state.jobs.is_searching() { "Searching for settings of" } else { "Tuning" };
            weak(ui, format!("{what} {model}"));
        });
        // Not where the button that starts tuning was: a double click on that would cancel it.
        if !state.jobs.is_canceling_tuning() && named_button(ui, true, icon::STOP_CIRCLE, "Cancel").clicked() {
            actions.send(JobsAction::CancelTuning);
        }
        if let Some(progress) = state.jobs.tuning_progress() {
            weak(ui, progress);
        }
        return false;
    }
    let enabled = state.jobs.can_tune();
    let button = ui.add_enabled(enabled, egui::Button::new(format!("{}  Tune settings", icon::GAUGE)));
    button.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, enabled, "Tune settings"));
    let disabled_hint = "Wait until the running jobs have finished; they would distort the timing";
    button.on_hover_text(hint).on_disabled_hover_text(disabled_hint).clicked()
}

/// The settings of predictions in one line.
pub(super) fn inference_text(settings: &InferenceSettings) -> String {
    let tile = settings.tile_zyx.map_or_else(String::new, |[z, y, x]| format!(", tiles of {z} × {y} × {x}"));
    let memory = memory_text(settings.peak_bytes);
    format!("{}, {}{tile}: {}{memory} when tuned", settings.device, settings.precision, time_text(settings.secs))
}

/// The peak memory as text that follows a time; empty if it is unknown.
fn memory_text(peak_bytes: Option<u64>) -> String {
    peak_bytes.map_or_else(String::new, |bytes| format!(" and {}", bytes_text(bytes)))
}

/// The settings of training runs in one line.
pub(super) fn training_text(settings: &TrainingSettings) -> String {
    let part = |value: Option<usize>, what: &str| value.map(|n| format!(", {what} {n}")).unwrap_or_default();
    format!(
        "{}{}{}{}: {} per patch{} when tuned",
        settings.device,
        settings.precision.map_or_else(String::new, |precision| format!(", {precision}")),
        part(settings.batch, "batch"),
        part(settings.workers, "data workers"),
        time_text(settings.secs_per_patch),
        memory_text(settings.peak_bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_engine::{DeviceId, Precision};

    #[test]
    fn settings_are_described_in_one_line() {
        let settings = InferenceSettings {
            device: DeviceId::Cpu,
            device_name: None,
            precision: Precision::Int8,
            tile_zyx: Some([16, 64, 64]),
            threads: 0,
            secs: 1.5,
            peak_bytes: None,
            relative_l2: None,
        };
        assert_eq!(inference_text(&settings), "cpu, int8, tiles of 16 × 64 × 64: 1.500 s when tuned");
        let in_memory = InferenceSettings { peak_bytes: Some(300 << 20), tile_zyx: None, ..settings };
        assert_eq!(inference_text(&in_memory), "cpu, int8: 1.500 s and 300 MiB when tuned");
        let training = TrainingSettings {
            device: DeviceId::Cuda(0),
            device_name: None,
            precision: Some(Precision::F16),
            batch: Some(8),
            workers: Some(3),
            prefetch: None,
            threads: 0,
            secs_per_patch: 0.0123,
            peak_bytes: None,
        };
        let text = "cuda:0, f16, batch 8, data workers 3: 12.30 ms per patch when tuned";
        assert_eq!(training_text(&training), text);
    }
}
