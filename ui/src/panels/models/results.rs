//! The results of a model's test, of measuring its speed and of its quantization.

use crate::engine_notes::note_in_window;
use crate::models::ModelFindings;
use crate::number_text::{TimeUnit, counted};
use crate::panels::{capitalized, heading, weak};
use crate::theme;
use crate::work::{JobState, JobView, ModelWork, Purpose};
use cytoscope_model_package::{UploadFinding, UploadSeverity};
use cytoscope_pipeline::{ModelSpeedReport, ModelTestReport};
use cytoscope_profile::bytes_text;
use cytoscope_quantize::QuantizeReport;
use cytoscope_worker::JobId;
use eframe::egui::text::{LayoutJob, TextFormat};
use eframe::egui::{self, Color32, FontId, RichText, Ui};
use egui_phosphor::regular as icon;

/// Draws the results; those of a measurement or a quantization that has just ended are scrolled to, because they may lie
/// below the visible part of the page. `job` is the latest job on the model.
pub(super) fn results(ui: &mut Ui, findings: &ModelFindings, job: Option<&JobView>) {
    let ended = job_that_ended(ui, job);
    let of_job = |ui: &mut Ui, work: ModelWork, draw: &dyn Fn(&mut Ui)| {
        let place = ui.scope(draw).response.rect;
        if ended == Some(Purpose::Model(work)) {
            ui.scroll_to_rect(place, None);
        }
    };
    if let Some(test) = &findings.test {
        test_result(ui, test);
    }
    if let Some(speed) = &findings.speed {
        of_job(ui, ModelWork::Measure, &|ui| speed_table(ui, speed));
    }
    if let Some(report) = &findings.quantized {
        of_job(ui, ModelWork::Quantize, &|ui| quantize_table(ui, report));
    }
}

/// Returns the purpose of the job if it was drawn as unfinished before and has succeeded since.
fn job_that_ended(ui: &Ui, job: Option<&JobView>) -> Option<Purpose> {
    let id = egui::Id::new("unfinished job of the model");
    let unfinished = job.filter(|job| !job.state.is_over()).map(|job| job.id);
    let before = ui.data(|data| data.get_temp::<Option<JobId>>(id)).flatten();
    ui.data_mut(|data| data.insert_temp(id, unfinished));
    job.filter(|job| job.state == JobState::Done && before == Some(job.id)).map(|job| job.purpose.clone())
}

fn test_result(ui: &mut Ui, test: &ModelTestReport) {
    heading(ui, "Test");
    let (sign, color) = match test.reproduced {
        Some(true) => (icon::CHECK_CIRCLE, theme::good(ui.visuals())),
        Some(false) => (icon::X_CIRCLE, theme::bad(ui.visuals())),
        None => (icon::WARNING, theme::warn(ui.visuals())),
    };
    ui.horizontal_wrapped(|ui| {
        ui.label(RichText::new(sign).size(17.0).color(color));
        ui.add(egui::Label::new(capitalized(&test.test)).wrap());
    });
    for engine in &test.engines {
        let how = if engine.agrees { "matches the reference" } else { engine.detail.as_str() };
        weak(ui, format!("{} ({}): {how}", engine.device, engine.precision));
    }
    let mut about =
        vec![counted(test.nodes as u64, "node"), format!("{} of weights", bytes_text(test.weight_bytes as u64))];
    about.extend(test.architecture.map(|architecture| architecture.name().to_owned()));
    weak(ui, about.join(" · "));
    for assumption in &test.assumptions {
        weak(ui, format!("Assumed: {assumption}"));
    }
    upload_findings(ui, &test.upload);
}

/// Lists what bioimage.io would refuse in the metadata of a model, and what it would ask to complete.
fn upload_findings(ui: &mut Ui, findings: &[UploadFinding]) {
    heading(ui, "Upload to bioimage.io");
    let is_refused = |finding: &&UploadFinding| finding.severity == UploadSeverity::Refused;
    if !findings.iter().any(|finding| is_refused(&finding)) {
        weak(ui, "The metadata would be accepted.");
    }
    for finding in findings.iter().filter(is_refused) {
        let size = egui::TextStyle::Body.resolve(ui.style()).size;
        let text = finding_text(icon::X_CIRCLE, finding, theme::bad(ui.visuals()), size);
        ui.add(egui::Label::new(text).wrap().selectable(true));
    }
    let warnings: Vec<&UploadFinding> =
        findings.iter().filter(|finding| finding.severity == UploadSeverity::Warning).collect();
    if !warnings.is_empty() {
        weak(ui, "Recommended, but not required:");
    }
    for finding in warnings {
        let text = finding_text(icon::WARNING, finding, ui.visuals().weak_text_color(), 12.0);
        ui.add(egui::Label::new(text).wrap());
    }
}

/// A finding after a sign. Its field is in the font of code: it is written as in the file, also at the start of a sentence.
fn finding_text(sign: &str, finding: &UploadFinding, color: Color32, size: f32) -> LayoutJob {
    let [text, code] =
        [FontId::proportional(size), FontId::monospace(size)].map(|font| TextFormat::simple(font, color));
    let mut job = LayoutJob::default();
    job.append(&format!("{sign}  "), 0.0, text.clone());
    job.append(&finding.part, 0.0, code);
    job.append(&format!(" {}", finding.message), 0.0, text);
    job
}

fn speed_table(ui: &mut Ui, speed: &ModelSpeedReport) {
    heading(ui, "Speed on this machine");
    let shape = |shape: &[usize]| shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" × ");
    let shapes: Vec<String> = speed.input_shapes.iter().map(|s| shape(s)).collect();
    weak(ui, format!("Inputs of {}; median of {}", shapes.join(" and "), counted(speed.runs as u64, "run")));
    let times_ms = speed.rows.iter().filter_map(|row| row.run_ms);
    let unit = TimeUnit::for_longest(times_ms.fold(0.0, f64::max) / 1e3);
    egui::Grid::new("model speed").num_columns(4).spacing([28.0, 6.0]).striped(true).show(ui, |ui| {
        for name in ["Device", "Precision", "Time", "Voxels/s"] {
            ui.label(RichText::new(name).weak());
        }
        ui.end_row();
        for row in &speed.rows {
            ui.label(row.device.to_string()).on_hover_text(&row.name);
            ui.label(row.precision.name());
            match (row.run_ms, row.voxels_per_sec) {
                (Some(run_ms), Some(rate)) => {
                    ui.label(unit.text(run_ms / 1e3));
                    ui.label(format!("{:.2} million", rate / 1e6));
                }
                _ => {
                    ui.label("–").on_hover_text(&row.problem);
                    ui.add(egui::Label::new(RichText::new(&row.problem).weak()).truncate());
                }
            }
            ui.end_row();
        }
    });
}

fn quantize_table(ui: &mut Ui, report: &QuantizeReport) {
    heading(ui, "Quantized");
    let verdict = if report.budget_met { "met" } else { "not met" };
    weak(ui, format!("{} · accuracy budget {}: {verdict}", report.out.display(), report.accuracy_budget));
    let mut rows = vec![("Size".to_owned(), bytes_text(report.float_bytes), bytes_text(report.int8_bytes))];
    for time in &report.tile_times {
        let threads = if time.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", time.threads) };
        let secs = [time.f32_wall_ms, time.int8_wall_ms].map(|ms| ms / 1e3);
        let unit = TimeUnit::for_longest(secs.into_iter().fold(0.0, f64::max));
        let [float, int8] = secs.map(|secs| unit.text(secs));
        rows.push((format!("Tile, {threads}"), float, int8));
    }
    let layers = report.quantized_layers + report.left_float.len();
    rows.push(("Layers".to_owned(), layers.to_string(), format!("{} in int8", report.quantized_layers)));
    for output in &report.outputs {
        rows.push((
            format!("Relative error of {}", output.name),
            String::new(),
            format!("{:.5}", output.error.relative_l2),
        ));
        let metric = format!("Agreement of {} ({})", output.name, report.agreement_metric.name());
        rows.push((metric, String::new(), format!("{:.4}", output.error.agreement)));
    }
    if let Some(qat) = &report.qat {
        rows.push((
            "Error before / after training".to_owned(),
            format!("{:.5}", qat.before),
            format!("{:.5}", qat.after),
        ));
    }
    egui::Grid::new("quantization").num_columns(3).spacing([28.0, 6.0]).striped(true).show(ui, |ui| {
        for name in ["", "Float", "int8"] {
            ui.label(RichText::new(name).weak());
        }
        ui.end_row();
        for (what, float, int8) in rows {
            ui.label(what);
            ui.label(float);
            ui.label(RichText::new(int8).strong());
            ui.end_row();
        }
    });
    report.left_float.iter().for_each(|l| _ = weak(ui, format!("{} in float: {}", l.name, l.why)));
    report.notes.iter().for_each(|note| _ = weak(ui, capitalized(&note_in_window(note).to_string())));
}

#[cfg(test)]
mod tests {
    use super::*;
    use eframe::egui::FontFamily::{Monospace, Proportional};

    #[test]
    fn the_field_of_a_finding_is_in_the_font_of_code() {
        let severity = UploadSeverity::Refused;
        let finding = UploadFinding { part: "name".to_owned(), message: "is missing".to_owned(), severity };
        let job = finding_text("!", &finding, Color32::RED, 12.0);
        assert_eq!(job.text, "!  name is missing");
        let families: Vec<_> = job.sections.iter().map(|section| section.format.font_id.family.clone()).collect();
        assert_eq!(families, [Proportional, Monospace, Proportional]);
    }
}
