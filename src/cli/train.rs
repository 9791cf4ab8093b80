//! `cytoscope train`.

use super::failure::{Failure, Outcome};
use super::{devices, parse_threads, parse_zyx, print, print_json, progress};
use clap::{Args, ValueEnum};
use cytoscope_pipeline::DiameterRequest;
use cytoscope_profile::{Recorder, bytes_text};
use cytoscope_samples::Task;
use cytoscope_storage::Overwrite;
use cytoscope_train::{TrainConfig, TrainJob, TrainReport, Verdict};
use std::path::PathBuf;

/// Options of `train`.
#[derive(Args)]
#[command(
    after_help = "Ctrl-C keeps what was learnt for --resume. An empty file named \"finish\" in the folder OUT.training ends the \
                        training early, with the best network so far."
)]
pub(crate) struct Train {
    /// What is to be learnt.
    #[arg(long, value_enum)]
    task: TaskName,
    /// A folder of images and labels (or stains), or a table of them.
    #[arg(long, value_name = "DIR|CSV")]
    data: PathBuf,
    /// What to start from: a package, the name of an installed model, an ONNX file, or scratch.
    #[arg(long, default_value = "scratch", value_name = "PKG|NAME|scratch")]
    from: String,
    /// The package to write: a folder, or a .zip.
    #[arg(long)]
    out: PathBuf,
    /// Settings: a TOML file; the options here go before it.
    #[arg(long, value_name = "TOML")]
    config: Option<PathBuf>,
    /// Times that the data are gone through.
    #[arg(long)]
    epochs: Option<usize>,
    /// Minutes on the clock, everything included.
    #[arg(long)]
    minutes: Option<f64>,
    /// Steps.
    #[arg(long)]
    steps: Option<usize>,
    /// Voxels of a patch, Z,Y,X.
    #[arg(long, value_parser = parse_zyx)]
    patch: Option<[usize; 3]>,
    /// Median diameter of the objects in µm (in voxels where files state no voxel size), or auto to measure it on the labels of
    /// each pair: objects are brought to the model's nominal diameter.
    #[arg(long, value_name = "UM|auto")]
    diameter: Option<DiameterRequest>,
    /// Patches in a step.
    #[arg(long)]
    batch: Option<usize>,
    /// Where steps are computed: auto (the processor), cpu, cuda[:i] or wgpu[:i].
    #[arg(long, default_value = "auto")]
    device: String,
    /// auto or f32.
    #[arg(long, default_value = "auto")]
    precision: String,
    /// Go on with what an earlier run of the same training left.
    #[arg(long)]
    resume: bool,
    /// Throw away what an earlier run of a training with the same --out left, and begin anew.
    #[arg(long, conflicts_with = "resume")]
    anew: bool,
    /// Seed of all that is drawn.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Threads; 0 takes all cores.
    #[arg(long, default_value_t = 0, value_parser = parse_threads)]
    threads: usize,
    /// Leave the quantized network out of the package.
    #[arg(long)]
    without_int8: bool,
    /// Replace what exists already: a file is replaced, a folder moved aside; an input is never replaced.
    #[arg(long)]
    force: bool,
    /// Print one JSON object with the report.
    #[arg(long)]
    json: bool,
    /// Tell progress as JSON lines on stderr.
    #[arg(long)]
    json_progress: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TaskName {
    /// Objects from an image.
    Segmentation,
    /// A stain from an image without it.
    Labelfree,
}

impl Train {
    pub(crate) fn run(self) -> Outcome {
        if !matches!(self.precision.as_str(), "auto" | "f32") {
            return Err(Failure::wrong_use(format!(
                "training in \"{}\" is not available: give --precision f32, or leave it out",
                self.precision
            )));
        }
        let mut config = match &self.config {
            Some(path) => TrainConfig::read(path)?,
            None => TrainConfig::default(),
        };
        config.patch_zyx = self.patch.or(config.patch_zyx);
        config.batch = self.batch.or(config.batch);
        config.diameter = self.diameter.unwrap_or(config.diameter);
        if self.epochs.is_some() || self.minutes.is_some() || self.steps.is_some() {
            config.budget.epochs = self.epochs;
            config.budget.minutes = self.minutes;
            config.budget.steps = self.steps;
        }
        if config.budget.minutes.is_some_and(|m| !m.is_finite() || m <= 0.0) {
            return Err(Failure::wrong_use("--minutes must be a number above 0"));
        }
        let context = progress::context(self.json_progress, false, Recorder::totals_only());
        let job = TrainJob {
            task: match self.task {
                TaskName::Segmentation => Task::Segmentation,
                TaskName::Labelfree => Task::LabelFree,
            },
            data: self.data,
            from: self.from,
            out: self.out,
            config,
            resume: self.resume,
            anew: self.anew,
            seed: self.seed,
            threads: self.threads,
            without_int8: self.without_int8,
            device: self.device,
            overwrite: Overwrite::from_force(self.force),
        };
        let report = job.run(&context, &devices::for_training(&job.device))?;
        if self.json {
            return print_json(&report);
        }
        tell(&report);
        Ok(())
    }
}

fn tell(report: &TrainReport) {
    print(&format!("wrote {}", report.out.display()));
    if report.verdict == Verdict::Start {
        print("  nothing that was learnt scored better than what training started from: that is kept");
        if report.only_objects_are_better() {
            print("  how objects are made of what it gives suits the data better now");
        }
    }
    print(&format!(
        "  {} values taught in {} steps of {} patches ({:?} voxels), {:.0} s in all, {:.2} s a step ({:.2} s of it waiting for data)",
        report.parameters,
        report.steps,
        report.batch,
        report.patch_zyx,
        report.seconds,
        report.step_secs,
        report.stalled_secs
    ));
    print(&format!("  on {}", report.device));
    if let Some(bytes) = report.peak_rss_bytes {
        print(&format!("  peak memory {}", bytes_text(bytes)));
    }
    for (name, after) in &report.after {
        let before = report.before.get(name).map_or_else(String::new, |b| format!("{b:.4} before, "));
        let int8 = report.after_int8.get(name).map_or_else(String::new, |v| format!(", {v:.4} in int8"));
        print(&format!("  {name}: {before}{after:.4} after{int8}"));
    }
    if let Some(q) = &report.quantized {
        let (floats, int8) = (bytes_text(q.float_bytes), bytes_text(q.int8_bytes));
        print(&format!("  network: {floats} in floats, {int8} in int8"));
        for t in &q.tile_times {
            let threads = if t.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", t.threads) };
            print(&format!(
                "  a tile of {:?}, {threads}: {:.1} ms in floats, {:.1} ms in int8",
                q.tile_shape, t.f32_wall_ms, t.int8_wall_ms
            ));
        }
    }
    for pair in &report.pairs_after {
        let before = report.pairs_before.iter().find(|p| p.name == pair.name);
        let before = before.map_or_else(String::new, |b| format!("{:.4} -> ", b.score));
        print(&format!("    {}: {before}{:.4}", pair.name, pair.score));
    }
    report.history.notes.iter().for_each(|note| print(&format!("  note: {note}")));
}
