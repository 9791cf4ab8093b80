//! Results of the jobs of the Models page, and of removing a model.

use super::{ModelJob, Models};
use crate::document::file_name;
use crate::effect::Effects;
use crate::jobs::JobsAction;
use cytoscope_pipeline::LeftOut;
use cytoscope_worker::{JobId, JobResult};
use std::path::{Path, PathBuf};

/// Returns the details of a notification about a package that was written.
fn written_text(path: &Path, left_out: &[LeftOut]) -> String {
    match left_out.len() {
        0 => path.display().to_string(),
        1 => format!("{}\n1 part is missing: see the Models page", path.display()),
        count => format!("{}\n{count} parts are missing: see the Models page", path.display()),
    }
}

impl Models {
    /// Keeps the result of a job of the page, and reports the files that it has written.
    pub(super) fn finished(&mut self, id: JobId, result: JobResult, effects: &mut Effects) {
        let Some(ModelJob { model, out, calibrated_with, has_stated_um }) = self.jobs.remove(&id) else { return };
        let findings = self.findings.entry(model.clone()).or_default();
        match result {
            JobResult::ModelTest(report) => {
                if !has_stated_um {
                    findings.file_um = report.card.voxel_um;
                }
                findings.test = Some(report);
                // The user may have stated other ones while the test was running.
                self.show_sizes(&model);
            }
            JobResult::ModelSpeed(report) => findings.speed = Some(report),
            JobResult::Quantize(report) => {
                effects.success(
                    format!("{} was added to your models", file_name(&report.out)),
                    format!("Quantized with {calibrated_with}: {}", report.out.display()),
                );
                let left_out = (file_name(&report.out), report.left_out.clone());
                findings.quantized = Some(report);
                findings.left_out = Some(left_out);
                effects.act(JobsAction::RequestLists);
            }
            JobResult::Import(report) => {
                if let Some(out) = out {
                    let added = format!("{} was added to your models", file_name(&out));
                    effects.success(added, written_text(&out, &report.left_out));
                    self.files.retain(|f| *f != model);
                    // The test result of the imported file applies to the package, too.
                    let test = findings.test.take();
                    let package_findings = self.findings.entry(out.clone()).or_default();
                    package_findings.test = test;
                    package_findings.left_out = Some((file_name(&out), report.left_out));
                    if self.shown.as_ref() == Some(&model) {
                        self.select(out);
                    }
                }
                effects.act(JobsAction::RequestLists);
            }
            JobResult::Export(report) => {
                let name = file_name(&report.output);
                effects.success(format!("Saved {name}"), written_text(&report.output, &report.left_out));
                findings.left_out = Some((name, report.left_out));
            }
            _ => {}
        }
    }

    /// Handles the removal of a model: `aside` is where a file was moved to.
    pub(crate) fn removed(&mut self, path: &Path, result: Result<Option<PathBuf>, String>) -> Effects {
        let mut effects = Effects::default();
        let name = file_name(path);
        match result {
            Ok(aside) => {
                let details = match aside {
                    Some(aside) => format!("The file was renamed to {}.", aside.display()),
                    None => path.display().to_string(),
                };
                effects.success(format!("{name} was removed"), details);
                self.findings.remove(path);
                self.shown.take_if(|shown| shown.as_path() == path);
                effects.act(JobsAction::RequestLists);
            }
            Err(reason) => effects.error(format!("{name} was not removed"), reason),
        }
        effects
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::Action;
    use crate::effect::Effect;
    use cytoscope_pipeline::cards::{ModelCard, card};
    use cytoscope_pipeline::{ImportSettings, ModelTestReport};

    #[test]
    fn a_voxel_size_that_is_stated_during_a_test_is_shown_and_is_not_taken_for_that_of_the_file() {
        let mut models = Models::new(None);
        let model = PathBuf::from("/m/net.onnx");
        let (in_file, stated) = (Some([3.0, 1.0, 1.0]), Some([2.0, 0.5, 0.5]));
        let shown = |models: &Models| models.findings.get(&model)?.test.as_ref()?.card.voxel_um;
        let end_test = |models: &mut Models, number: u64, has_stated_um: bool, stated_um: Option<[f64; 3]>| {
            let found_um = if has_stated_um { stated } else { in_file };
            let report = ModelTestReport {
                card: ModelCard { voxel_um: found_um, ..card("net", &model) },
                test: String::new(),
                reproduced: None,
                engines: Vec::new(),
                nodes: 1,
                weight_bytes: 1,
                architecture: None,
                assumptions: Vec::new(),
                upload: Vec::new(),
            };
            let id = JobId(number);
            models.jobs.insert(id, ModelJob { model: model.clone(), out: None, calibrated_with: "", has_stated_um });
            models.settings.insert(model.clone(), ImportSettings { voxel_um: stated_um, ..ImportSettings::default() });
            models.finished(id, JobResult::ModelTest(Box::new(report)), &mut Effects::default());
        };
        end_test(&mut models, 1, false, stated);
        assert_eq!(shown(&models), stated);
        end_test(&mut models, 2, true, None);
        assert_eq!(shown(&models), in_file);
    }

    #[test]
    fn the_object_diameter_that_is_stated_for_a_file_without_a_description_is_shown() {
        let mut models = Models::new(None);
        let shown = |file: &str, voxel_um: Option<[f64; 3]>, stated: Option<f64>, models: &mut Models| {
            let model = PathBuf::from(file);
            let test = ModelTestReport {
                card: ModelCard { voxel_um, object_diameter_um: Some(7.0), ..card("net", &model) },
                test: String::new(),
                reproduced: None,
                engines: Vec::new(),
                nodes: 1,
                weight_bytes: 1,
                architecture: None,
                assumptions: Vec::new(),
                upload: Vec::new(),
            };
            let settings = ImportSettings { object_diameter_um: stated, ..ImportSettings::default() };
            models.settings.insert(model.clone(), settings);
            let job = ModelJob { model: model.clone(), out: None, calibrated_with: "", has_stated_um: false };
            models.jobs.insert(JobId(1), job);
            models.finished(JobId(1), JobResult::ModelTest(Box::new(test)), &mut Effects::default());
            models.findings.get(&model)?.test.as_ref()?.card.object_diameter_um
        };
        let voxel_um = Some([1.0, 0.5, 0.5]);
        assert_eq!(shown("/m/net.onnx", voxel_um, Some(12.0), &mut models), Some(12.0));
        assert_eq!(shown("/m/net.onnx", voxel_um, None, &mut models), None, "it is no longer stated");
        assert_eq!(shown("/m/net.onnx", None, Some(12.0), &mut models), None, "it needs a voxel size");
        assert_eq!(shown("/m/package", voxel_um, None, &mut models), Some(7.0), "that of the package");
    }

    #[test]
    fn the_lists_are_requested_again_once_a_model_was_removed() {
        let path = Path::new("/m/net");
        let requests = |result: Result<Option<PathBuf>, String>| {
            let effects = Models::new(None).removed(path, result);
            effects.into_iter().filter(|e| matches!(e, Effect::Act(Action::Jobs(JobsAction::RequestLists)))).count()
        };
        assert_eq!([requests(Ok(None)), requests(Err("it was changed".to_owned()))], [1, 0]);
    }
}
