//! `cytoscope simulate`: writes simulated stacks with ground truth.

use super::failure::{Failure, Outcome};
use super::measured::Measurement;
use super::options::{ReportOptions, StageTraceOption, one_of};
use super::trace_path::check_trace;
use super::{check_folder, counted, parse_zyx, print, progress, read_file};
use clap::Args;
use cytoscope_formats::{Channel, Container, WriteSpec, write_array};
use cytoscope_pipeline::{Context, JobError, ProgressStage, ProgressUnit};
use cytoscope_profile::Stage;
use cytoscope_simulate::{Kind, Settings, Simulation, simulate};
use cytoscope_storage::Overwrite;
use cytoscope_storage::target::check_file;
use cytoscope_volume::{Array, DType};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

#[derive(Args)]
pub(crate) struct Simulate {
    /// Kind of stack: nuclei, cells (with membranes) or labelfree (bright-field with its fluorescence).
    #[arg(long, value_parser = one_of::<Kind>(&["nuclei", "cells", "labelfree"]), hide_possible_values = true)]
    kind: Kind,
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

/// Simulates one stack and reports progress in voxels.
fn simulate_stack(settings: &Settings, context: &Context) -> Result<Simulation, Failure> {
    let voxels = settings.shape_zyx.iter().map(|n| *n as u64).fold(1, u64::saturating_mul);
    let meter = Mutex::new((context.meter(ProgressStage::Simulate, voxels, ProgressUnit::Voxels), 0));
    let span = context.recorder.span(Stage::Simulate, "stack");
    let simulation = simulate(settings, |fraction| {
        let mut guard = meter.lock().unwrap_or_else(PoisonError::into_inner);
        let now = (fraction * voxels as f64) as u64;
        let more = now.saturating_sub(guard.1);
        guard.1 += more;
        guard.0.add(more).is_ok()
    })?;
    span.voxels(simulation.raw.samples().len()).finish();
    Ok(simulation)
}

impl Simulate {
    /// Returns the settings of every requested stack.
    fn settings(&self) -> Result<Vec<Settings>, Failure> {
        if let Some(path) = &self.settings {
            let read = serde_json::from_slice(&read_file(path)?);
            return Ok(vec![read.map_err(|e| Failure::bad_input(format!("{}: {e}", path.display())))?]);
        }
        let make = if self.varied { Settings::varied } else { Settings::new };
        Ok((0..self.count).map(|n| make(self.kind, self.shape, self.seed.wrapping_add(n))).collect())
    }

    /// Returns the file of the settings of a stack.
    fn settings_path(&self, settings: &Settings) -> PathBuf {
        self.out.join(format!("{}_{}.json", settings.kind, settings.seed))
    }

    /// Checks that the trace, if one is requested, may be written.
    fn check_trace(&self, stacks: &[Settings]) -> Outcome {
        let Some(trace) = &self.tracing.trace else { return Ok(()) };
        let inputs: Vec<&Path> = self.settings.iter().map(PathBuf::as_path).collect();
        // The other files have names that end in .tif, which a trace may not have.
        let written: Vec<PathBuf> = stacks.iter().map(|settings| self.settings_path(settings)).collect();
        let outputs: Vec<&Path> = written.iter().map(PathBuf::as_path).collect();
        check_trace(trace, &inputs, &outputs, Overwrite::from_force(self.force))
    }

    /// Checks that the files of a stack may be written.
    fn check_outputs(&self, settings: &Settings) -> Outcome {
        let inputs: Vec<&Path> = self.settings.iter().map(PathBuf::as_path).collect();
        for name in [".json", "_raw.tif", "_labels.tif", "_labels.ome.tif", "_target.tif"] {
            let path = self.out.join(format!("{}_{}{name}", settings.kind, settings.seed));
            check_file(&path, &inputs, Overwrite::from_force(self.force))?;
        }
        Ok(())
    }

    /// Simulates one stack and writes its images and its settings (`.json`). Returns the number of objects.
    fn write(&self, settings: &Settings, context: &Context, written: &mut Vec<PathBuf>) -> Result<usize, Failure> {
        let settings_path = self.settings_path(settings);
        let simulation = simulate_stack(settings, context)?;
        // Other programs may have written files meanwhile.
        self.check_outputs(settings)?;
        let stem = format!("{}_{}", settings.kind, settings.seed);
        let parts: [(&str, Option<&Array>); 3] = [
            ("raw", Some(&simulation.raw)),
            ("labels", simulation.labels.as_ref()),
            ("target", simulation.target.as_ref()),
        ];
        for (part, array) in parts {
            let Some(array) = array else { continue };
            context.check()?;
            let wide = array.dtype() == DType::U32;
            let container = if wide { Container::OmeTiff } else { Container::ImageJ };
            let path = self.out.join(format!("{stem}_{part}.{}", if wide { "ome.tif" } else { "tif" }));
            let mut spec = WriteSpec::of(array, container);
            spec.voxel_size_um = simulation.voxel_size_um;
            spec.channels = vec![Channel { name: part.to_owned(), color_rgb: None }];
            let writing = context.recorder.span(Stage::Write, part).bytes(array.samples().as_bytes().len());
            write_array(&path, array, &spec)?;
            writing.finish();
            written.push(path);
        }
        let text = serde_json::to_string_pretty(&simulation.settings).map_err(|e| Failure::other(e.to_string()))?;
        cytoscope_storage::write::atomic_write(&settings_path, text.as_bytes())?;
        written.push(settings_path);
        Ok(simulation.object_count)
    }

    pub(crate) fn run(self) -> Outcome {
        check_folder(&self.out)?;
        let stacks = self.settings()?;
        std::fs::create_dir_all(&self.out).map_err(|error| JobError::Io { path: self.out.clone(), error })?;
        self.check_trace(&stacks)?;
        let measurement = Measurement::start("simulate", self.tracing.trace.as_deref(), false);
        let context = progress::context(self.report.json_progress, false, measurement.recorder());
        stacks.iter().try_for_each(|settings| self.check_outputs(settings))?;
        let mut written = Vec::new();
        let objects: Result<usize, Failure> =
            stacks.iter().map(|settings| self.write(settings, &context, &mut written)).sum();
        let (objects, run) = measurement.finish(objects, 0)?;
        if self.report.json {
            return run.print_json(&SimulateReport { objects, outputs: written });
        }
        print(&counted(objects, "object"));
        written.iter().for_each(|p| print(&format!("  wrote {}", p.display())));
        Ok(())
    }
}
