//! `cytoscope simulate`: writes simulated stacks with ground truth.

mod job;

use super::failure::{Failure, Outcome};
use super::measured::Measurement;
use super::options::{ReportOptions, StageTraceOption, one_of};
use super::trace_path::check_trace;
use super::{check_folder, parse_zyx, print, progress, read_file};
use clap::Args;
use cytoscope_pipeline::JobError;
use cytoscope_simulate::{Kind, Settings};
use cytoscope_storage::{Overwrite, ResultsFolder, counted};
use job::Simulated;
use serde::Serialize;
use std::path::{Path, PathBuf};

pub(crate) use job::SimulateJob;

#[derive(Args)]
pub(crate) struct Simulate {
    /// Kind of stack: nuclei, cells (with membranes) or labelfree (bright-field with its fluorescence); required without
    /// --settings.
    #[arg(
        long,
        value_parser = one_of::<Kind>(Kind::ALL.map(Kind::name)),
        hide_possible_values = true,
        required_unless_present = "settings"
    )]
    kind: Option<Kind>,
    /// Size of the stack Z,Y,X in voxels.
    #[arg(long, value_name = "Z,Y,X", value_parser = parse_zyx, default_value = "32,256,256")]
    shape: [usize; 3],
    /// Random seed; the same seed gives the same stack.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Number of stacks; their seeds are consecutive, starting at --seed.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000), conflicts_with = "settings")]
    count: u64,
    /// Randomize voxel size, objects, optics and camera of each stack over wide ranges, for training networks.
    #[arg(long, conflicts_with = "settings")]
    varied: bool,
    /// Folder for the stacks; created if it does not exist.
    #[arg(long)]
    out: PathBuf,
    /// JSON file with settings, such as that of an earlier simulation; overrides --kind, --shape and --seed.
    #[arg(long, value_name = "FILE.json")]
    settings: Option<PathBuf>,
    /// Overwrite existing files; an input is never overwritten.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    tracing: StageTraceOption,
    #[command(flatten)]
    report: ReportOptions,
}

/// Report of `simulate --json` besides the measurements.
#[derive(Serialize)]
struct SimulateReport {
    objects: usize,
    outputs: Vec<PathBuf>,
}

impl Simulate {
    /// Returns the settings of every requested stack.
    fn settings(&self) -> Result<Vec<Settings>, Failure> {
        if let Some(path) = &self.settings {
            let read = serde_json::from_slice(&read_file(path)?);
            let next_step = "give settings like those in the .json file beside a simulated stack";
            let invalid = |e: serde_json::Error| Failure::bad_input(format!("{}: {e}; {next_step}", path.display()));
            return Ok(vec![read.map_err(invalid)?]);
        }
        let Some(kind) = self.kind else {
            return Err(Failure::wrong_use("there is neither --kind nor --settings").and_next("give one of them"));
        };
        let Some(last) = self.seed.checked_add(self.count.saturating_sub(1)) else {
            let problem =
                format!("--seed is {}: the seeds of the {} stacks from it on are too large", self.seed, self.count);
            return Err(Failure::wrong_use(problem).and_next("give a smaller seed"));
        };
        let make = if self.varied { Settings::varied } else { Settings::new };
        Ok((self.seed..=last).map(|seed| make(kind, self.shape, seed)).collect())
    }

    /// Returns the jobs of all requested stacks.
    fn jobs(&self) -> Result<Vec<SimulateJob>, Failure> {
        let overwrite = Overwrite::from_force(self.force);
        let settings = self.settings()?;
        Ok(settings.into_iter().map(|settings| SimulateJob::new(settings, self.out.clone(), overwrite)).collect())
    }

    /// Checks that the trace, if one is requested, may be written.
    fn check_trace(&self, jobs: &[SimulateJob], inputs: &[&Path]) -> Outcome {
        let Some(trace) = &self.tracing.trace else { return Ok(()) };
        // The other files have names that end in .tif, which a trace may not have.
        let written: Vec<PathBuf> = jobs.iter().map(SimulateJob::settings_path).collect();
        let outputs: Vec<&Path> = written.iter().map(PathBuf::as_path).collect();
        check_trace(trace, inputs, &outputs, Overwrite::from_force(self.force))
    }

    pub(crate) fn run(self) -> Outcome {
        check_folder(&self.out)?;
        let jobs = self.jobs()?;
        let inputs: Vec<&Path> = self.settings.iter().map(PathBuf::as_path).collect();
        // No stack is written if one of them may not be.
        let _folders: Vec<ResultsFolder> =
            jobs.iter().map(|job| job.prepare(&inputs)).collect::<Result<_, JobError>>()?;
        self.check_trace(&jobs, &inputs)?;
        let overwrite = Overwrite::from_force(self.force);
        let measurement = Measurement::start("simulate", self.tracing.trace.as_deref(), overwrite, false);
        let context = progress::context(self.report.json_progress, false, measurement.recorder());
        let simulated: Result<Vec<Simulated>, JobError> = jobs.iter().map(|job| job.run(&context, &inputs)).collect();
        let (simulated, run) = measurement.finish(simulated, 0)?;
        let images: Vec<PathBuf> = jobs.iter().map(SimulateJob::image_path).collect();
        let run = run.with_results(images.iter().map(PathBuf::as_path));
        let objects: usize = simulated.iter().map(|stack| stack.objects).sum();
        let written: Vec<PathBuf> = simulated.into_iter().flat_map(|stack| stack.files).collect();
        if self.report.json {
            return run.print_json(&SimulateReport { objects, outputs: written });
        }
        print(&counted(objects, "object"));
        written.iter().for_each(|p| print(&format!("  wrote {}", p.display())));
        run.print_records();
        Ok(())
    }
}
