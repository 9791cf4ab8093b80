//! `cytoscope quantize`.

use super::failure::{Failure, Outcome};
use super::{print, print_json, progress};
use clap::{Args, ValueEnum};
use cytoscope_pipeline::quantize::{ACCURACY_BUDGET, Candidate, QuantizeJob, QuantizeMode, QuantizeReport};
use cytoscope_profile::{Recorder, bytes_text};
use cytoscope_storage::Overwrite;
use cytoscope_storage::target::check_parent;
use cytoscope_train::QuantizedTeacher;
use std::path::PathBuf;

/// Options of `quantize`.
#[derive(Args)]
pub(crate) struct Quantize {
    /// A package (folder, zip, .onnx) or the name of an installed model.
    package: String,
    /// When the ranges of activations are found: once from calibration data, or each time the model runs.
    #[arg(long, value_enum)]
    mode: Mode,
    /// Stacks like those the model will see, or folders of them; by default the package's test tensor.
    #[arg(long, num_args = 1.., value_name = "DIR|FILE")]
    calibrate: Vec<PathBuf>,
    /// The package to write: a folder, or a .zip.
    #[arg(long)]
    out: PathBuf,
    /// Greatest relative L2 error of an output; layers stay in floats until it is met.
    #[arg(long, default_value_t = ACCURACY_BUDGET)]
    accuracy_budget: f64,
    /// Most minutes of teaching (--mode qat).
    #[arg(long)]
    minutes: Option<f64>,
    /// Most steps of teaching, a tile each (--mode qat).
    #[arg(long)]
    steps: Option<u64>,
    /// Layers to keep in floats, by name.
    #[arg(long, value_delimiter = ',', value_name = "LAYER")]
    keep_float: Vec<String>,
    /// Leave the float network out of the package: smaller, but graphics cards have nothing to run.
    #[arg(long)]
    without_float: bool,
    /// Replace what exists already: a file is replaced, a folder moved aside; an input is never replaced.
    #[arg(long)]
    force: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Tell progress as JSON lines on stderr.
    #[arg(long)]
    json_progress: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Ranges are found while the model runs.
    Dynamic,
    /// Ranges are found from calibration data.
    Static,
    /// As static; where that costs more than the accuracy budget, the weights are taught with the rounding in the network.
    Qat,
}

impl Quantize {
    pub(crate) fn run(self) -> Outcome {
        let mode = match self.mode {
            Mode::Dynamic => QuantizeMode::Dynamic,
            Mode::Static => QuantizeMode::Static,
            Mode::Qat => QuantizeMode::Qat,
        };
        if self.minutes.is_some_and(|m| !m.is_finite() || m <= 0.0) {
            return Err(Failure::wrong_use("--minutes must be a number above 0"));
        }
        if (self.minutes.is_some() || self.steps.is_some()) && mode != QuantizeMode::Qat {
            return Err(Failure::wrong_use("--minutes and --steps are for --mode qat: the other modes teach nothing"));
        }
        let mut teacher = QuantizedTeacher { minutes: self.minutes, ..QuantizedTeacher::default() };
        teacher.steps = self.steps.unwrap_or(teacher.steps).max(1);
        check_parent(&self.out)?;
        let context = progress::context(self.json_progress, false, Recorder::totals_only());
        let job = QuantizeJob {
            model: self.package,
            out: self.out,
            mode,
            calibrate: self.calibrate,
            accuracy_budget: self.accuracy_budget,
            keep_float: self.keep_float.into_iter().collect(),
            without_float: self.without_float,
            overwrite: Overwrite::from_force(self.force),
        };
        let report = job.run_with(&context, Some(&teacher))?;
        if self.json {
            return print_json(&report);
        }
        tell(&report);
        Ok(())
    }
}

fn tell(report: &QuantizeReport) {
    print(&format!("wrote {}: {}", report.out.display(), report.name));
    let share = 100.0 * report.int8_bytes as f64 / report.float_bytes.max(1) as f64;
    let (before, after) = (bytes_text(report.float_bytes), bytes_text(report.int8_bytes));
    print(&format!("  network: {before} in floats, {after} in int8 ({share:.0} %)"));
    for t in &report.tile_times {
        let threads = if t.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", t.threads) };
        print(&format!(
            "  a tile of {:?}, {threads}: {:.1} ms of processor time in floats, {:.1} ms in int8 ({:.1} and {:.1} ms on the clock)",
            report.tile_shape, t.f32_cpu_ms, t.int8_cpu_ms, t.f32_wall_ms, t.int8_wall_ms
        ));
    }
    let metric = if report.agreement_metric == "dice" { "Dice" } else { "Pearson" };
    for o in &report.outputs {
        print(&format!(
            "  {}: relative L2 error {:.5}, largest error {:.4}, {metric} 1 before, {:.5} after ({} held-out tiles)",
            o.name, o.error.relative_l2, o.error.max_abs, o.error.agreement, report.held_out_tiles
        ));
    }
    let chosen = Candidate { method: report.method, equalized: report.equalized, relative_l2: 0.0 };
    for c in &report.candidates {
        let mark = if (c.method, c.equalized) == (chosen.method, chosen.equalized) { " <- taken" } else { "" };
        let method = c.method.map_or_else(|| "while running".to_owned(), |m| m.to_string());
        let alike = c.equalized.map_or_else(|| "channels as they are".to_owned(), |s| format!("channels alike, {s}"));
        print(&format!("    {method:18} {alike:22} {:.5}{mark}", c.relative_l2));
    }
    if let Some(t) = &report.taught {
        let kept = if t.kept { "" } else { "; layers stayed in floats instead" };
        print(&format!(
            "  taught with the rounding in it, {} steps in {:.0} s: relative L2 error {:.5} before, {:.5} after{kept}",
            t.steps, t.seconds, t.before, t.after
        ));
    }
    if !report.bias_corrected.is_empty() {
        print(&format!("  bias corrected: {}", report.bias_corrected.join(", ")));
    }
    let all = report.quantized_layers;
    print(&format!("  {all} layers in int8, {:.1} % of the work in floats", 100.0 * report.float_share_of_work));
    for l in &report.left_float {
        print(&format!("    {} in floats: {}", l.name, l.why));
    }
    let met = if report.budget_met { "met" } else { "NOT met" };
    print(&format!("  accuracy budget {}: {met}", report.accuracy_budget));
    report.notes.iter().for_each(|note| print(&format!("  note: {note}")));
}
