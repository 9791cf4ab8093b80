//! `cytoscope predict`.

use super::failure::{Failure, Outcome};
use super::{devices, parse_bytes, parse_threads, parse_zyx, print, print_json, progress, say};
use clap::Args;
use cytoscope_engine::Precision;
use cytoscope_pipeline::predict::{Blend, TileRequest, expand_inputs};
use cytoscope_pipeline::{
    Context, DiameterRequest, InputReport, JobErrorKind, Output, PredictJob, PredictOutcome, find_model, provenance,
};
use cytoscope_profile::{Recorder, bytes_text};
use cytoscope_storage::Overwrite;
use cytoscope_storage::target::check_file;
use cytoscope_volume::Axes;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Options of `predict`.
#[derive(Args)]
pub(crate) struct Predict {
    /// Stacks, or folders of them.
    #[arg(required_unless_present = "rerun")]
    inputs: Vec<PathBuf>,
    /// A package (folder, zip, .onnx) or the name of an installed model.
    #[arg(long, default_value = "nuclei")]
    model: String,
    /// Folder of the results; made if it is not there.
    #[arg(long, required_unless_present = "rerun")]
    out: Option<PathBuf>,
    /// auto (the fastest, measured), cpu, cuda[:i] or wgpu[:i].
    #[arg(long, default_value = "auto")]
    device: String,
    /// auto, f32, tf32, f16, bf16 or int8.
    #[arg(long, default_value = "auto")]
    precision: String,
    /// Tile in voxels, Z,Y,X; by default what wastes least inside the budget.
    #[arg(long, value_parser = parse_zyx)]
    tile: Option<[usize; 3]>,
    /// Share of a tile that overlaps the next, for Gaussian blending.
    #[arg(long)]
    overlap: Option<f64>,
    /// crop (exactly the untiled result; static networks) or gaussian.
    #[arg(long)]
    blend: Option<Blend>,
    /// What to write: maps, labels, table, preview (a PNG of the middle slice); by default the first three, or those of them
    /// that the model has.
    #[arg(long, value_delimiter = ',')]
    outputs: Vec<Output>,
    /// Channel the model sees, from 0.
    #[arg(long)]
    channel: Option<usize>,
    /// One time point only, from 0.
    #[arg(long)]
    time: Option<usize>,
    /// Series of files with several, from 0.
    #[arg(long, default_value_t = 0)]
    series: usize,
    /// Axes of the files where their own are wrong, such as ZYX or TCYX.
    #[arg(long)]
    axes: Option<Axes>,
    /// Voxel size in µm, Z,Y,X, where the files' own is wrong or missing.
    #[arg(long, value_name = "Z,Y,X", value_parser = super::parse_um)]
    voxel_size: Option<[f64; 3]>,
    /// Median diameter of the objects in µm (in voxels where the voxel size is unknown), or auto to estimate it from each
    /// stack: objects are brought to the size that the model was trained on.
    #[arg(long, value_name = "UM|auto", default_value = "auto")]
    diameter: DiameterRequest,
    /// Most memory to use, such as 2G; by default three quarters of what is free.
    #[arg(long, value_parser = parse_bytes)]
    memory_budget: Option<u64>,
    /// Threads; 0 takes all cores.
    #[arg(long, default_value_t = 0, value_parser = parse_threads)]
    threads: usize,
    /// Keep results that the same job made before.
    #[arg(long)]
    resume: bool,
    /// Run the job of a _provenance.json again (other options but --out are ignored).
    #[arg(long, value_name = "FILE.json")]
    rerun: Option<PathBuf>,
    /// Write every span as a Chrome trace, which ui.perfetto.dev opens.
    #[arg(long, value_name = "FILE.json")]
    trace: Option<PathBuf>,
    /// Replace files that exist already; an input is never replaced.
    #[arg(long)]
    force: bool,
    /// Print one JSON object with the report of every input.
    #[arg(long)]
    json: bool,
    /// Tell progress as JSON lines on stderr.
    #[arg(long)]
    json_progress: bool,
}

impl Predict {
    pub(crate) fn run(self) -> Outcome {
        let (job, differences) = self.job()?;
        let recorder = if self.trace.is_some() { Recorder::new() } else { Recorder::totals_only() };
        let context = progress::context(self.json_progress, false, recorder);
        if let Some(path) = &self.trace {
            let files = expand_inputs(&job.inputs)?;
            let model = find_model(&job.model)?;
            let inputs: Vec<&Path> = files.iter().chain([&model]).map(PathBuf::as_path).collect();
            check_file(path, &inputs, Overwrite::from_force(self.force))?;
        }
        let result = job.run(&context, &devices::for_request(&job.device));
        if let Some(path) = &self.trace {
            write_trace(&context, path)?;
        }
        let mut outcome = result?;
        outcome.done.iter_mut().for_each(|report| report.notes.splice(..0, differences.iter().cloned()).for_each(drop));
        if self.json {
            print_json(&report(&outcome))?;
        } else {
            outcome.done.iter().for_each(tell);
        }
        finish(&outcome)
    }

    /// The job, and for one that was run before what is not as it was then.
    fn job(&self) -> Result<(PredictJob, Vec<String>), Failure> {
        if let Some(path) = &self.rerun {
            let record = provenance::read(path)?;
            let differences = record.differences()?;
            let mut job = record.job;
            if let Some(out) = &self.out {
                job.out.clone_from(out);
            }
            job.overwrite = Overwrite::from_force(self.force);
            return Ok((job, differences));
        }
        let precision = match self.precision.as_str() {
            "auto" => None,
            text => Some(text.parse::<Precision>()?),
        };
        let job = PredictJob {
            inputs: self.inputs.clone(),
            model: self.model.clone(),
            out: self.out.clone().unwrap_or_default(),
            device: self.device.clone(),
            precision,
            tiles: TileRequest { tile: self.tile, overlap: self.overlap, blend: self.blend },
            outputs: self.outputs.iter().copied().collect(),
            channel: self.channel,
            time: self.time,
            series: self.series,
            axes: self.axes.clone(),
            voxel_um: self.voxel_size,
            diameter: self.diameter,
            memory_budget_bytes: self.memory_budget,
            resume: self.resume,
            threads: self.threads,
            overwrite: Overwrite::from_force(self.force),
        };
        Ok((job, Vec::new()))
    }
}

fn write_trace(context: &Context, path: &Path) -> Outcome {
    let text = serde_json::to_vec(&context.recorder.chrome_trace()).map_err(|e| Failure::other(e.to_string()))?;
    Ok(cytoscope_storage::write::atomic_write(path, &text)?)
}

fn report(outcome: &PredictOutcome) -> serde_json::Value {
    let failed: Vec<_> = outcome
        .failed
        .iter()
        .map(|f| json!({"input": f.input, "error": f.sentence, "exit_code": f.kind.exit_code()}))
        .collect();
    json!({"inputs": outcome.done, "failed": failed})
}

fn tell(report: &InputReport) {
    if report.resumed {
        return;
    }
    let [z, y, x] = report.shape_zyx;
    let objects = match report.objects.as_slice() {
        [] => String::new(),
        [n] => format!(", {n} objects"),
        many => format!(", {} objects at {} time points", many.iter().sum::<u32>(), many.len()),
    };
    print(&format!("{}: {z}×{y}×{x} voxels{objects}, {:.1} s", report.input.display(), report.seconds));
    print(&format!("  on {} ({}): {}", report.device.id, report.device.name, report.device.why));
    let peak = report.actual_peak_bytes.map_or_else(String::new, |b| format!(", used {}", bytes_text(b)));
    print(&format!("  memory: planned {}{peak}", bytes_text(report.plan.stated_peak_bytes)));
    report.notes.iter().for_each(|note| print(&format!("  note: {note}")));
    report.outputs.iter().for_each(|o| print(&format!("  wrote {}", o.display())));
}

/// Failed inputs make the whole command fail, with the first one's code; the rest was done all the same.
fn finish(outcome: &PredictOutcome) -> Outcome {
    let Some(first) = outcome.failed.first() else { return Ok(()) };
    if outcome.failed.len() + outcome.done.len() == 1 {
        return Err(Failure::new(first.kind, first.sentence.clone()));
    }
    for failure in &outcome.failed {
        say(&format!("failed: {}", failure.sentence));
    }
    let kind = if outcome.failed.iter().any(|f| f.kind == JobErrorKind::OutOfResources) {
        JobErrorKind::OutOfResources
    } else {
        first.kind
    };
    Err(Failure::new(
        kind,
        format!("{} of {} inputs failed", outcome.failed.len(), outcome.failed.len() + outcome.done.len()),
    ))
}
