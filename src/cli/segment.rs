//! `cytoscope segment`: turns a probability map into labels.

use super::failure::{Failure, Outcome};
use super::measured::Measurement;
use super::options::{ReportOptions, StageTraceOption, one_of, table_format};
use super::{note_line, print, progress};
use clap::{Args, ValueEnum};
use cytoscope_formats::{OpenOptions, SeriesChoice};
use cytoscope_objects::{Height, SegmentOptions, Threshold};
use cytoscope_pipeline::predict::completed_voxel_um;
use cytoscope_pipeline::provenance::{map_diameter, other_map_model};
use cytoscope_pipeline::{DiameterRequest, DiameterUnit, Extents, JobError, Model, ModelTask, SegmentJob, TableFormat};
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::DIAMETER;
use cytoscope_storage::{Overwrite, counted};
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct Segment {
    /// Probability map, or any stack with high values inside objects.
    map: PathBuf,
    /// Label image to write; its extension selects the format: .tif (ImageJ), .ome.tif (OME-TIFF), .zarr (an OME-Zarr
    /// folder), .ozx or .zarr.zip (the same in one zip file), .npy, _seg.npy (Cellpose), .zip (ImageJ ROI set) or .roi (one
    /// ImageJ ROI).
    #[arg(long)]
    out: PathBuf,
    /// Table of measurements to write: .csv or .parquet.
    #[arg(long)]
    table: Option<PathBuf>,
    /// Format of the table: csv, parquet, or anndata, which is CSV for anndata.io.read_csv (rows named object_7 and so
    /// on, other columns numeric); by default csv, or parquet if its name ends in .parquet.
    #[arg(long, value_name = "FORMAT", requires = "table",
          value_parser = one_of::<TableFormat>(TableFormat::ALL.map(TableFormat::name)), hide_possible_values = true)]
    table_format: Option<TableFormat>,
    /// Model that predicted the map (package or name of an installed model): its segmentation settings and channels are used
    /// unless others are given.
    #[arg(long)]
    model: Option<String>,
    /// Object diameter of the prediction in µm (in voxels if the voxel size is unknown), to which the settings of --model are
    /// scaled; by default the one in the provenance record beside the map, or else the model's own.
    #[arg(long, value_name = "UM", requires = "model", value_parser = parse_diameter)]
    diameter: Option<f64>,
    /// How objects are found: watershed separates touching objects (the default); components labels each connected region as
    /// one object.
    #[arg(long, value_enum)]
    method: Option<Method>,
    /// Height that the watershed floods: the distance to the background (the default), the map, or their product.
    #[arg(long, value_enum)]
    height: Option<HeightName>,
    /// Foreground threshold: a number, or otsu (the default).
    #[arg(long, value_parser = parse_threshold)]
    threshold: Option<Threshold>,
    /// Sigma in µm of the Gaussian that smooths the map; by default 0.
    #[arg(long)]
    smooth_um: Option<f64>,
    /// Minimum height of a seed above its surroundings, in µm if --height is distance; by default 0.5. A higher value
    /// splits touching objects less often.
    #[arg(long)]
    seed_height: Option<f64>,
    /// Drop objects smaller than this volume in µm³; by default 20.
    #[arg(long)]
    min_volume_um3: Option<f64>,
    /// Drop objects that touch the border of the stack.
    #[arg(long)]
    drop_border: bool,
    /// Series of the map and of --intensities, by number from 0 or by name; ignored for files with a single series. By default
    /// the first one, and of --intensities the one that the map was predicted from, if the record beside the map states it.
    #[arg(long, value_name = "N|NAME")]
    series: Option<SeriesChoice>,
    /// Channel of the map, counted from 0; by default the first one, or those that --model uses.
    #[arg(long)]
    channel: Option<usize>,
    /// Time point of the map, counted from 0.
    #[arg(long, default_value_t = 0)]
    time: usize,
    /// Voxel size Z,Y,X in µm, to use instead of the map's own. If that is unknown, --model uses the one that the prediction
    /// assumed, if the record beside the map states it, or else the model's, if it has no object diameter.
    #[arg(long, value_name = "Z,Y,X", value_parser = super::parse_um)]
    voxel_size: Option<[f64; 3]>,
    /// Stack whose intensities are measured for the table; by default the map itself. Of several series or time points, the one
    /// that the map was predicted from is measured, if the record beside the map states it; the axes of the prediction are used,
    /// too.
    #[arg(long, value_name = "FILE", requires = "table")]
    intensities: Option<PathBuf>,
    /// Overwrite existing files; an input is never overwritten.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    tracing: StageTraceOption,
    #[command(flatten)]
    report: ReportOptions,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Method {
    Watershed,
    Components,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum HeightName {
    Distance,
    Map,
    Product,
}

impl Segment {
    pub(crate) fn run(self) -> Outcome {
        if self.method == Some(Method::Components) && (self.height.is_some() || self.seed_height.is_some()) {
            return Err(Failure::wrong_use(
                "--height and --seed-height apply to --method watershed: components has no seeds",
            )
            .and_next("leave them out"));
        }
        let Basis { channel, seed_channel, options, assumed_voxel_um, notes } = self.basis()?;
        let options = self.with_given(options);
        let chosen_format = self.table.as_deref().map(|table| table_format(self.table_format, table)).transpose()?;
        let job = SegmentJob {
            map: self.map,
            labels: Some(self.out.clone()),
            replace_labels_of_map: false,
            table: self.table,
            table_format: chosen_format.unwrap_or_default(),
            series: self.series,
            channel,
            seed_channel,
            time: self.time,
            voxel_um: self.voxel_size,
            assumed_voxel_um,
            intensities: self.intensities,
            intensities_time: None,
            options,
            overwrite: Overwrite::from_force(self.force),
        };
        let measurement = Measurement::for_job(self.tracing.trace.as_deref(), &job, None)?;
        let context = progress::context(self.report.json_progress, false, measurement.recorder());
        notes.into_iter().for_each(|note| context.note(note));
        let (report, run) = measurement.finish(job.run(&context).map_err(failure), 0)?;
        if self.report.json {
            return run.print_json(&report);
        }
        print(&format!("{} in {}", counted(report.objects, "object"), report.labels.display()));
        report.notes.iter().for_each(|note| print(&format!("  {}", note_line(note))));
        if let Some(table) = &report.table {
            print(&format!("  wrote {}", table.display()));
        }
        run.print_records();
        Ok(())
    }
}

/// The channels and settings that are used unless others are given.
struct Basis {
    channel: usize,
    /// Channel that separates touching objects; `None` for the same.
    seed_channel: Option<usize>,
    options: SegmentOptions,
    /// Voxel size Z, Y, X that the prediction of the map assumed, because its stack states none.
    assumed_voxel_um: Option<[f64; 3]>,
    /// States that another model predicted the map, and that its object diameter is unknown.
    notes: Vec<Message>,
}

impl Segment {
    /// Returns the settings of the model, scaled to the diameter, its channels unless one is given, and the voxel size that the
    /// prediction assumed; without a model, the defaults.
    fn basis(&self) -> Result<Basis, Failure> {
        let Some(name) = &self.model else {
            let channel = self.channel.unwrap_or(0);
            let options = SegmentOptions::default();
            return Ok(Basis { channel, seed_channel: None, options, assumed_voxel_um: None, notes: Vec::new() });
        };
        let model = Model::load(name)?;
        if model.task != ModelTask::Segmentation {
            return Err(Failure::wrong_use(format!(
                "--model {name} predicts a stain and has no segmentation settings"
            ))
            .and_next("leave it out, or give a model that predicts objects"));
        }
        let recorded = map_diameter(&self.map, &model);
        let scale = match (self.diameter, model.object_diameter_um) {
            (None, _) => recorded.as_ref().map_or(1.0, |diameter| diameter.scale()),
            (Some(diameter), Some(nominal_um)) => diameter / nominal_um,
            (Some(_), None) => {
                return Err(Failure::wrong_use(message!(
                    "{DIAMETER} has no effect: --model {name} states no object diameter to scale its settings from"
                ))
                .and_next("leave it out"));
            }
        };
        // A diameter is recorded for maps of the same model only.
        let other_model = if recorded.is_none() { other_map_model(&self.map, &model) } else { None };
        let other_note = other_model.map(|other| {
            message!(
                "the map was predicted with another model, {other}: the settings of --model {name} may not suit it"
            )
        });
        let is_unscaled = recorded.is_none() && self.diameter.is_none();
        let unscaled_note = model.object_diameter_um.filter(|_| is_unscaled).map(|nominal_um| {
            message!(
                "no record beside the map states the object diameter of a prediction with --model {name}: its settings are those \
                 for objects of {nominal_um} µm (set the diameter with {DIAMETER})"
            )
        });
        let (channel, seed_channel) = match self.channel {
            Some(channel) => (channel, None),
            None => (model.segment_channel, Some(model.seed_channel)),
        };
        // The settings are scaled to voxels of this size.
        let in_voxels = recorded.filter(|diameter| diameter.unit == DiameterUnit::Voxels);
        let assumed_voxel_um = in_voxels.map(|diameter| diameter.voxel).or_else(|| self.voxel_um_with(&model));
        let notes = [other_note, unscaled_note].into_iter().flatten().collect();
        Ok(Basis { channel, seed_channel, options: model.segment.scaled(scale), assumed_voxel_um, notes })
    }

    /// Returns the voxel size Z, Y, X that a prediction with the model assumes if that of the map is incomplete; `None` for a
    /// model that rescales objects, whose predictions record it.
    fn voxel_um_with(&self, model: &Model) -> Option<[f64; 3]> {
        let model_um = model.voxel_um.filter(|_| model.object_diameter_um.is_none());
        model_um.and_then(|model_um| {
            // The job states why a map cannot be opened.
            let map =
                self.series.clone().unwrap_or_default().open_stack_maps(&self.map, &OpenOptions::default()).ok()?;
            let (stated, slices) = (map.meta().voxel_size_um, Extents::of(map.meta()).zyx[0]);
            let is_incomplete = stated.in_slices(slices).zyx_um().is_none();
            is_incomplete.then(|| completed_voxel_um(stated, slices, Some(model_um)))
        })
    }

    /// Returns settings in which those given as options replace others.
    fn with_given(&self, settings: SegmentOptions) -> SegmentOptions {
        let given = self.height.map(|height| match height {
            HeightName::Distance => Height::Distance,
            HeightName::Map => Height::Map,
            HeightName::Product => Height::DistanceTimesMap,
        });
        let height = match self.method {
            Some(Method::Components) => None,
            Some(Method::Watershed) => given.or(settings.height).or(Some(Height::Distance)),
            None => given.or(settings.height),
        };
        SegmentOptions {
            smooth_um: self.smooth_um.unwrap_or(settings.smooth_um),
            threshold: self.threshold.unwrap_or(settings.threshold),
            height,
            seed_height: self.seed_height.unwrap_or(settings.seed_height),
            min_volume_um3: self.min_volume_um3.unwrap_or(settings.min_volume_um3),
            drop_border: self.drop_border || settings.drop_border,
            ..settings
        }
    }
}

/// Parses a diameter.
fn parse_diameter(text: &str) -> Result<f64, String> {
    match text.parse::<DiameterRequest>()? {
        DiameterRequest::Given(diameter) => Ok(diameter),
        DiameterRequest::Auto => Err("expected the diameter that the prediction used, such as 12.5".to_owned()),
    }
}

/// Converts the error of the job: a setting that is out of range is named as its option.
fn failure(error: JobError) -> Failure {
    let message = match &error {
        JobError::Objects(error) => error.message_with_option(|name| format!("--{}", name.replace('_', "-"))),
        _ => None,
    };
    match message {
        Some(message) => Failure::wrong_use(message),
        None => error.into(),
    }
}

/// Parses `otsu` or a number.
fn parse_threshold(text: &str) -> Result<Threshold, String> {
    if text == "otsu" {
        return Ok(Threshold::Otsu);
    }
    let number = text.parse::<f64>().map_err(|_| format!("invalid threshold \"{text}\": expected otsu or a number"))?;
    Ok(Threshold::Fixed(number))
}
