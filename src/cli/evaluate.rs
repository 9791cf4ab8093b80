//! `cytoscope evaluate`: scores predictions against ground truth.

use super::failure::Outcome;
use super::{parse_um, print, print_json, progress};
use clap::Args;
use cytoscope_formats::SeriesChoice;
use cytoscope_objects::segmentation_errors::{ErrorSummary, Outcome as Kind, SizeUnit};
use cytoscope_pipeline::EvaluateJob;
use cytoscope_profile::Recorder;
use cytoscope_storage::Overwrite;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct Evaluate {
    /// Predictions: a file or a folder.
    #[arg(long)]
    pred: PathBuf,
    /// Ground truth: a file, or a folder of files with matching names.
    #[arg(long)]
    truth: PathBuf,
    /// Ignore true objects with fewer voxels than this, and predicted objects that mostly overlap them: they count
    /// neither as hits nor as errors.
    #[arg(long, value_name = "VOXELS", default_value_t = 0)]
    ignore_below: u64,
    /// Series of predictions and ground truth, by number from 0 or by name; files of a single series are read as they are.
    #[arg(long, default_value = "0", value_name = "N|NAME")]
    series: SeriesChoice,
    /// Voxel size Z,Y,X in µm, to use instead of the files' own for the diameters of objects.
    #[arg(long, value_name = "Z,Y,X", value_parser = parse_um)]
    voxel_size: Option<[f64; 3]>,
    /// Also write the scores to a file (.json), with a provenance record beside it.
    #[arg(long, value_name = "FILE.json")]
    out: Option<PathBuf>,
    /// Overwrite an existing file; an input is never overwritten.
    #[arg(long, requires = "out")]
    force: bool,
    /// Print the scores as one JSON object.
    #[arg(long)]
    json: bool,
}

impl Evaluate {
    pub(crate) fn run(self) -> Outcome {
        let context = progress::context(false, self.json, Recorder::totals_only());
        let job = EvaluateJob {
            prediction: self.pred,
            truth: self.truth,
            ignore_below_voxels: self.ignore_below,
            series: self.series,
            voxel_um: self.voxel_size,
            out: self.out,
            overwrite: Overwrite::from_force(self.force),
        };
        let report = job.run(&context)?;
        if self.json {
            return print_json(&report);
        }
        print(&format!("{} pairs", report.pairs.len()));
        for m in &report.instances {
            print(&format!(
                "  IoU ≥ {:.2}: F1 {:.4}  precision {:.4}  recall {:.4}  AP {:.4}  PQ {:.4}  mean matched IoU {:.4}  \
                 ({} of {} objects)",
                m.threshold,
                m.f1,
                m.precision,
                m.recall,
                m.accuracy,
                m.panoptic_quality,
                m.mean_matched_score,
                m.tp,
                m.n_true
            ));
        }
        if let Some(ignored) = report.ignored.filter(|i| i.below_voxels > 0) {
            print(&format!(
                "    ignored: {} true objects below {} voxels, {} predicted objects that overlap them",
                ignored.true_objects, ignored.below_voxels, ignored.predictions
            ));
        }
        if let Some(errors) = &report.errors {
            error_lines(errors).iter().for_each(|line| print(line));
        }
        if let Some(r) = &report.regression {
            let show = |v: Option<f64>| v.map_or_else(|| "undefined".to_owned(), |v| format!("{v:.4}"));
            print(&format!(
                "  Pearson {}  PSNR {} dB  SSIM {}  MSE {:.4e}",
                show(r.pearson),
                show(r.psnr_db),
                show(r.ssim),
                r.mse
            ));
        }
        for name in &report.unpaired {
            print(&format!("    no matching file: {}", name.display()));
        }
        Ok(())
    }
}

/// Returns the lines that report the error counts, and a table of them by object size.
fn error_lines(errors: &ErrorSummary) -> Vec<String> {
    let mut lines = vec![format!(
        "  {} merges, {} splits, {} misses, {} inexact outlines, {} false objects",
        errors.merges, errors.splits, errors.misses, errors.inexact, errors.false_objects
    )];
    if errors.sizes.is_empty() {
        return lines;
    }
    let unit = match errors.size_unit {
        SizeUnit::Um => "µm",
        SizeUnit::Voxel => "voxels",
    };
    let columns = [
        ("found", Kind::Found),
        ("merged", Kind::Merged),
        ("split", Kind::Split),
        ("inexact", Kind::Inexact),
        ("missed", Kind::Missed),
        ("false", Kind::False),
    ];
    let names: String = columns.iter().map(|(name, _)| format!("{name:>9}")).collect();
    lines.push(format!("  {:>19}{names}", format!("diameter in {unit}")));
    for bin in &errors.sizes {
        let counts: String = columns.iter().map(|(_, kind)| format!("{:>9}", bin.count(*kind))).collect();
        lines.push(format!("  {:>19}{counts}", format!("{} to {}", bin.from, bin.to)));
    }
    lines
}
