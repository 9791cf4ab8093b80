//! `cytoscope evaluate`.

use super::failure::Outcome;
use super::{print, print_json, progress};
use clap::Args;
use cytoscope_pipeline::EvaluateJob;
use cytoscope_profile::Recorder;
use std::path::PathBuf;

/// Options of `evaluate`.
#[derive(Args)]
pub(crate) struct Evaluate {
    /// Predictions: a file, or a folder.
    #[arg(long)]
    pred: PathBuf,
    /// Truth: a file, or a folder of files of matching names.
    #[arg(long)]
    truth: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl Evaluate {
    pub(crate) fn run(self) -> Outcome {
        let context = progress::context(false, self.json, Recorder::totals_only());
        let report = EvaluateJob { prediction: self.pred, truth: self.truth }.run(&context)?;
        if self.json {
            return print_json(&report);
        }
        print(&format!("{} pairs", report.pairs.len()));
        for m in &report.instances {
            print(&format!(
                "  IoU ≥ {:.2}: F1 {:.4}  precision {:.4}  recall {:.4}  AP {:.4}  PQ {:.4}  mean matched IoU {:.4}  ({} of {} objects)",
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
            print(&format!("  without a partner: {}", name.display()));
        }
        Ok(())
    }
}
