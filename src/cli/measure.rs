//! `cytoscope measure`: measures the objects of a label image.

use super::failure::Outcome;
use super::measured::Measurement;
use super::options::{ReportOptions, StageTraceOption, one_of, table_format};
use super::{note_line, print, progress};
use clap::Args;
use cytoscope_formats::SeriesChoice;
use cytoscope_pipeline::{MeasureJob, PARQUET_EXTENSION, TableFormat};
use cytoscope_storage::target::check_extension;
use cytoscope_storage::{Overwrite, counted};
use cytoscope_volume::Axes;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct Measure {
    /// Label image.
    labels: PathBuf,
    /// Stack that the labels belong to, whose channels are measured; without it, only shapes and positions are measured.
    #[arg(long, value_name = "FILE")]
    intensities: Option<PathBuf>,
    /// Table to write: .csv or .parquet.
    #[arg(long)]
    out: PathBuf,
    /// Format of the table: csv, parquet, or anndata, which is CSV for anndata.io.read_csv (rows named object_7 and so
    /// on, other columns numeric); by default csv, or parquet if its name ends in .parquet.
    #[arg(long, value_name = "FORMAT",
          value_parser = one_of::<TableFormat>(TableFormat::ALL.map(TableFormat::name)), hide_possible_values = true)]
    table_format: Option<TableFormat>,
    /// Series of the stack, by number from 0 or by name; also of the label image if it has several, or if no stack is given.
    /// By default and with 0, the labels are the label image of an OME-Zarr that has one beside its image. By default, the
    /// stack's series is the one that the labels were predicted from, if the record beside them states it, else the first one.
    #[arg(long, value_name = "N|NAME")]
    series: Option<SeriesChoice>,
    /// Time point of the stack, counted from 0; also of the label image if it has several. By default, all are measured if
    /// the label image has as many as the stack; else the one that the labels were predicted from, if the record beside them
    /// states it, or the first one.
    #[arg(long)]
    time: Option<usize>,
    /// Axis order of the stack, such as ZYX or TCYX, to use instead of its own; by default the one that the labels were
    /// predicted with, if the record beside them states one.
    #[arg(long)]
    axes: Option<Axes>,
    /// Voxel size Z,Y,X in µm, to use instead of the stack's own. If that is unknown, the slice spacing that the prediction of
    /// the labels assumed is used, if the record beside them states it.
    #[arg(long, value_name = "Z,Y,X", value_parser = super::parse_um)]
    voxel_size: Option<[f64; 3]>,
    /// Overwrite an existing file; an input is never overwritten.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    tracing: StageTraceOption,
    #[command(flatten)]
    report: ReportOptions,
}

impl Measure {
    pub(crate) fn run(self) -> Outcome {
        check_extension(&self.out, &["csv", PARQUET_EXTENSION])?;
        let table_format = table_format(self.table_format, &self.out)?;
        let job = MeasureJob {
            labels: self.labels,
            intensities: self.intensities,
            table: self.out,
            table_format,
            series: self.series,
            axes: self.axes,
            time: self.time.unwrap_or(0),
            all_times: self.time.is_none(),
            voxel_um: self.voxel_size,
            overwrite: Overwrite::from_force(self.force),
        };
        let measurement = Measurement::for_job(self.tracing.trace.as_deref(), &job, None)?;
        let context = progress::context(self.report.json_progress, self.report.json, measurement.recorder());
        let (report, run) = measurement.finish(job.run(&context), 0)?;
        if self.report.json {
            return run.print_json(&report);
        }
        print(&format!("{} in {}", counted(report.objects, "object"), report.table.display()));
        report.notes.iter().for_each(|note| print(&format!("  {}", note_line(note))));
        run.print_records();
        Ok(())
    }
}
