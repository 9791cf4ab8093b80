//! `cytoscope check`: checks the metadata of a package before it is uploaded.

use super::failure::{Failure, Outcome};
use super::{print, print_json};
use clap::Args;
use cytoscope_model_package::UploadSeverity;
use cytoscope_pipeline::check_upload;

#[derive(Args)]
pub(crate) struct Check {
    /// Model package to check (folder or .zip) or name of an installed model.
    package: String,
    /// Print the findings as one JSON object.
    #[arg(long)]
    json: bool,
}

impl Check {
    pub(crate) fn run(self) -> Outcome {
        let report = check_upload(&self.package)?;
        if self.json {
            print_json(&report)?;
        } else {
            let of =
                |severity: UploadSeverity| report.findings.iter().filter(move |finding| finding.severity == severity);
            for finding in of(UploadSeverity::Refused) {
                print(&format!("refused: {} {}", finding.part, finding.message));
            }
            for finding in of(UploadSeverity::Warning) {
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
            "{}: bioimage.io would refuse {} of its metadata; correct rdf.yaml and check again",
            self.package,
            match refused.count() {
                1 => "one part".to_owned(),
                n => format!("{n} parts"),
            }
        )))
    }
}
