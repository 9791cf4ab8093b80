//! `cytoscope mesh`: writes the surfaces of objects.

use super::failure::Outcome;
use super::measured::Measurement;
use super::options::{ReportOptions, StageTraceOption};
use super::{note_line, print, progress};
use clap::Args;
use cytoscope_formats::SeriesChoice;
use cytoscope_pipeline::MeshJob;
use cytoscope_pipeline::provenance::assumed_voxel;
use cytoscope_storage::{Overwrite, counted};
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct MeshCommand {
    /// Label image.
    labels: PathBuf,
    /// Mesh to write, in µm: .stl (all objects in one solid) or .glb (one node for each object, with its color).
    #[arg(long)]
    out: PathBuf,
    /// Labels of the objects, such as 1,5; by default all.
    #[arg(long, value_delimiter = ',', value_name = "LABEL", value_parser = parse_label)]
    objects: Vec<u32>,
    /// Series (position, scene, well) to read from a multi-series label image, by number from 0 or by name. By default and
    /// with 0, the label image of an OME-Zarr that has one beside its image.
    #[arg(long, default_value = "0", value_name = "N|NAME")]
    series: SeriesChoice,
    /// Time point of the label image, counted from 0.
    #[arg(long, default_value_t = 0)]
    time: usize,
    /// Voxel size Z,Y,X in µm, to use instead of the label image's own. If that is unknown, the slice spacing that the
    /// prediction of the labels assumed is used, if the record beside them states it.
    #[arg(long, value_name = "Z,Y,X", value_parser = super::parse_um)]
    voxel_size: Option<[f64; 3]>,
    /// Leave the surfaces unsmoothed: they follow the faces of the voxels.
    #[arg(long)]
    unsmoothed: bool,
    /// Maximum memory, such as 2G or 512M, into which the bounding box of each object must fit; by default three quarters
    /// of the free memory.
    #[arg(long, value_name = "SIZE", value_parser = super::parse_bytes)]
    memory_budget: Option<u64>,
    /// Overwrite an existing file; an input is never overwritten.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    tracing: StageTraceOption,
    #[command(flatten)]
    report: ReportOptions,
}

/// Parses the label of an object.
fn parse_label(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("invalid label \"{text}\": expected numbers separated by commas, such as 1,5"))
}

impl MeshCommand {
    pub(crate) fn run(self) -> Outcome {
        // Reading large labels takes long.
        let assumed_voxel_um = if self.voxel_size.is_none() { assumed_voxel(&self.labels) } else { None };
        let job = MeshJob {
            labels: self.labels,
            out: self.out,
            objects: self.objects,
            series: self.series,
            time: self.time,
            voxel_um: self.voxel_size,
            assumed_voxel_um,
            unsmoothed: self.unsmoothed,
            memory_budget_bytes: self.memory_budget,
            overwrite: Overwrite::from_force(self.force),
        };
        let measurement = Measurement::for_job(self.tracing.trace.as_deref(), &job, None)?;
        let context = progress::context(self.report.json_progress, self.report.json, measurement.recorder());
        let (context, shown) = progress::with_notes(context);
        let (report, run) = measurement.finish(job.run(&context), 0)?;
        if self.report.json {
            return run.print_json(&report);
        }
        let triangles: usize = report.objects.iter().map(|o| o.triangles).sum();
        let objects = counted(report.objects.len(), "object");
        print(&format!("{objects}, {triangles} triangles in {}", report.out.display()));
        let shown = progress::taken(&shown);
        let others = report.notes.iter().filter(|note| !shown.contains(&note.to_string()));
        others.for_each(|note| print(&format!("  {}", note_line(note))));
        run.print_records();
        Ok(())
    }
}
