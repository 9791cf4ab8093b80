//! `cytoscope segment`.

use super::failure::{Failure, Outcome};
use super::{print, print_json, progress};
use clap::{Args, ValueEnum};
use cytoscope_objects::{Height, SegmentOptions, Threshold};
use cytoscope_pipeline::SegmentJob;
use cytoscope_profile::Recorder;
use cytoscope_storage::Overwrite;
use std::path::PathBuf;

/// Options of `segment`.
#[derive(Args)]
pub(crate) struct Segment {
    /// A stack of probabilities (or any map that is high inside objects).
    map: PathBuf,
    /// Where the labels go (.tif).
    #[arg(long)]
    out: PathBuf,
    /// Where the measurements go (.csv).
    #[arg(long)]
    table: Option<PathBuf>,
    /// watershed splits touching objects; components keeps connected ones whole.
    #[arg(long, value_enum, default_value = "watershed")]
    method: Method,
    /// What watershed floods: the distance to the background, the map, or their product.
    #[arg(long, value_enum, default_value = "distance")]
    height: HeightName,
    /// Foreground is above this value, or above Otsu's threshold.
    #[arg(long, default_value = "otsu")]
    threshold: String,
    /// Gaussian smoothing of the map, sigma in µm.
    #[arg(long, default_value_t = 0.0)]
    smooth_um: f64,
    /// A seed rises at least so far above its surroundings (µm for distances).
    #[arg(long)]
    seed_height: Option<f64>,
    /// Smaller objects are dropped.
    #[arg(long)]
    min_volume_um3: Option<f64>,
    /// Drop objects that touch the border.
    #[arg(long)]
    drop_border: bool,
    /// Channel of the map, from 0.
    #[arg(long, default_value_t = 0)]
    channel: usize,
    /// Time point of the map, from 0.
    #[arg(long, default_value_t = 0)]
    time: usize,
    /// Voxel size in µm, Z,Y,X, where the map's own is wrong or missing.
    #[arg(long, value_name = "Z,Y,X", value_parser = super::parse_um)]
    voxel_size: Option<[f64; 3]>,
    /// The stack whose channels are measured for the table; by default the map itself.
    #[arg(long, value_name = "FILE")]
    intensities: Option<PathBuf>,
    /// Replace files that exist already; an input is never replaced.
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
        let name = self.out.to_string_lossy().to_lowercase();
        if ![".tif", ".tiff"].iter().any(|ending| name.ends_with(ending)) {
            return Err(Failure::wrong_use(format!(
                "--out {}: labels are written as TIFF; end the name in .tif",
                self.out.display()
            )));
        }
        let threshold = match self.threshold.as_str() {
            "otsu" => Threshold::Otsu,
            text => Threshold::Fixed(
                text.parse()
                    .map_err(|_| Failure::wrong_use(format!("--threshold {text}: expected otsu or a number")))?,
            ),
        };
        let height = match self.height {
            HeightName::Distance => Height::Distance,
            HeightName::Map => Height::Map,
            HeightName::Product => Height::DistanceTimesMap,
        };
        let usual = SegmentOptions::default();
        let job = SegmentJob {
            map: self.map,
            labels: Some(self.out.clone()),
            table: self.table,
            channel: self.channel,
            seed_channel: None,
            time: self.time,
            voxel_um: self.voxel_size,
            intensities: self.intensities,
            options: SegmentOptions {
                smooth_um: self.smooth_um,
                threshold,
                height: (self.method == Method::Watershed).then_some(height),
                seed_height: self.seed_height.unwrap_or(usual.seed_height),
                min_volume_um3: self.min_volume_um3.unwrap_or(usual.min_volume_um3),
                min_peak: usual.min_peak,
                drop_border: self.drop_border,
                ..usual
            },
            overwrite: Overwrite::from_force(self.force),
        };
        let context = progress::context(self.json_progress, false, Recorder::totals_only());
        let report = job.run(&context)?;
        if self.json {
            return print_json(&report);
        }
        print(&format!("{} objects in {}", report.objects, report.labels.display()));
        Ok(())
    }
}
