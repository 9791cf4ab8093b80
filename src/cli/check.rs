//! `cytoscope check`: checks the metadata of a package before it is uploaded.

use super::failure::{Failure, Outcome};
use super::measured::Measurement;
use super::options::StageTraceOption;
use super::trace_path::check_trace;
use super::{print, print_json};
use clap::Args;
use cytoscope_model_package::UploadSeverity;
use cytoscope_pipeline::{check_upload, find_model};
use cytoscope_profile::Stage;
use cytoscope_storage::Overwrite;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub(crate) struct Check {
    /// Model package to check (folder or .zip) or name of an installed model.
    package: String,
    #[command(flatten)]
    tracing: StageTraceOption,
    /// Overwrite an existing trace; an input is never overwritten.
    #[arg(long, requires = "trace")]
    force: bool,
    /// Print the findings as one JSON object.
    #[arg(long)]
    json: bool,
}

impl Check {
    pub(crate) fn run(self) -> Outcome {
        let overwrite = Overwrite::from_force(self.force);
        if let Some(trace) = &self.tracing.trace {
            // A package that does not exist is reported when it is opened.
            let package = find_model(&self.package).ok();
            let inputs: Vec<&Path> = package.iter().map(PathBuf::as_path).collect();
            check_trace(trace, &inputs, &[], overwrite)?;
        }
        let measurement = Measurement::start("check", self.tracing.trace.as_deref(), overwrite, false);
        let recorder = measurement.recorder();
        let span = recorder.span(Stage::Load, "check metadata");
        let checked = check_upload(&self.package);
        span.finish();
        let (report, _) = measurement.finish(checked, 1)?;
        if self.json {
            print_json(&report)?;
        } else {
            let with_severity =
                |severity: UploadSeverity| report.findings.iter().filter(move |finding| finding.severity == severity);
            for finding in with_severity(UploadSeverity::Refused) {
                print(&format!("refused: {} {}", finding.part, finding.message));
            }
            for finding in with_severity(UploadSeverity::Warning) {
                print(&format!("to complete: {} {}", finding.part, finding.message));
            }
            if report.accepted {
                print(&format!("bioimage.io would accept the metadata of {}", report.name));
            }
        }
        if report.accepted {
            return Ok(());
        }
        let refused = report.findings.iter().filter(|finding| finding.severity == UploadSeverity::Refused);
        Err(Failure::bad_input(format!(
            "{}: bioimage.io would refuse {} of its metadata",
            self.package,
            match refused.count() {
                1 => "one part".to_owned(),
                n => format!("{n} parts"),
            }
        ))
        .and_next("correct rdf.yaml and check again"))
    }
}
