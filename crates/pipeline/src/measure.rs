//! Measurements of labels that are already there, such as labels corrected by hand.

use crate::predict::files::table_text;
use crate::predict::one::{channel_name, plausible};
use crate::results::{FileRecord, Publication};
use crate::stack::{Extents, Stack};
use crate::{Context, JobError, provenance, results};
use cytoscope_formats::OpenOptions;
use cytoscope_objects::measure::Measurer;
use cytoscope_profile::Stage;
use cytoscope_storage::Overwrite;
use cytoscope_storage::write::write_unpublished;
use cytoscope_volume::{Axes, DType, Samples, VoxelSize};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

/// The table of measurements of a label image, as a prediction writes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasureJob {
    /// The label image.
    pub labels: PathBuf,
    /// The stack that was labelled: its channels are measured.
    pub intensities: PathBuf,
    /// Where the measurements go (CSV).
    pub table: PathBuf,
    /// Axes of the stack where its own are wrong.
    #[serde(default)]
    pub axes: Option<Axes>,
    /// Time point of the stack, from 0; that of the label image, too, where it has several.
    #[serde(default)]
    pub time: usize,
    /// Voxel size Z, Y, X in µm, where the stack's own is wrong; where it is missing, that of the label image is taken.
    #[serde(default)]
    pub voxel_um: Option<[f64; 3]>,
    /// What happens to a file at the table's path that is not as a prediction or an earlier measurement wrote it.
    #[serde(default)]
    pub overwrite: Overwrite,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasureReport {
    /// Objects measured.
    pub objects: u64,
    /// The label image.
    pub labels: PathBuf,
    /// The table.
    pub table: PathBuf,
    /// The table's length and hash, so that a later measurement knows it as its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<FileRecord>,
    /// Voxel size Z, Y, X in µm it was made with; 1 where it is not known.
    pub voxel_um: [f64; 3],
    /// Wall seconds.
    pub seconds: f64,
}

impl MeasureJob {
    /// Runs the job. Memory stays at about a slab, however large the image.
    ///
    /// # Errors
    /// [`JobError`] if a file cannot be read, the shapes differ, the labels are none or were replaced meanwhile, the table cannot be
    /// written, or on cancelling.
    pub fn run(&self, context: &Context) -> Result<MeasureReport, JobError> {
        let start = Instant::now();
        results::check(&self.table, &[&self.labels, &self.intensities], self.overwrite)?;
        let version = version(&self.labels);
        let of_stack = OpenOptions { axes: self.axes.clone(), ..OpenOptions::default() };
        let image = cytoscope_formats::open(&self.intensities, &of_stack)?;
        let mut labels = cytoscope_formats::open(&self.labels, &OpenOptions::default())?;
        let extents = Extents::of(image.meta());
        // A label image with the same wrong axes as its stack.
        if Extents::of(labels.meta()).zyx != extents.zyx
            && let Ok(again) = cytoscope_formats::open(&self.labels, &of_stack)
        {
            labels = again;
        }
        let of_labels = Extents::of(labels.meta());
        let mismatch = |problem: String, next_step: &str| {
            Err(JobError::Mismatch { path: self.labels.clone(), problem, next_step: next_step.to_owned() })
        };
        if of_labels.zyx != extents.zyx {
            let problem = format!("its shape is {:?}, the stack's {:?}", of_labels.zyx, extents.zyx);
            return mismatch(problem, "give the stack that these labels were drawn on");
        }
        if !matches!(labels.meta().dtype, DType::U8 | DType::U16 | DType::U32) || of_labels.channels > 1 {
            let problem = format!("its {} channel(s) of {} are no labels", of_labels.channels, labels.meta().dtype);
            return mismatch(problem, "give one channel of whole numbers of 8, 16 or 32 bits without a sign");
        }
        let time = if of_labels.times > 1 { self.time } else { 0 };
        if self.time >= extents.times || time >= of_labels.times {
            let have = if time > 0 { extents.times.min(of_labels.times) } else { extents.times };
            let problem = format!("time point {} was asked for, there are {have}", self.time);
            return mismatch(problem, "give another time point");
        }
        let (own, of_labels) = (image.meta().voxel_size_um, labels.meta().voxel_size_um);
        let said = VoxelSize { z: own.z.or(of_labels.z), y: own.y.or(of_labels.y), x: own.x.or(of_labels.x) };
        let size = self.voxel_um.map_or(said, |[z, y, x]| VoxelSize::new_um(z, y, x));
        plausible(&self.intensities, size)?;
        let voxel_um = size.zyx_or_unit();
        let names: Vec<String> = (0..extents.channels).map(|c| channel_name(image.meta(), c)).collect();
        let (light, labels) = (Stack::new(&image, self.time), Stack::new(&labels, time));
        let [depth, ny, nx] = extents.zyx;
        let plane = (ny * nx).max(1);
        let mut measurer = Measurer::new(voxel_um, [ny, nx], names.clone());
        let mut meter = context.meter("measure", depth as u64, "slices");
        let step = light.slab_slices();
        for z in (0..depth).step_by(step) {
            let slab = z..(z + step).min(depth);
            let numbers = numbers(labels.read(context, 0, slab.clone())?);
            let channels = (0..extents.channels)
                .map(|c| Ok(light.read(context, c, slab.clone())?.to_f32()))
                .collect::<Result<Vec<_>, JobError>>()?;
            for (n, slice) in numbers.chunks(plane).enumerate() {
                let _span = context.recorder.span(Stage::Objects, "measure").voxels(slice.len());
                let at = n * plane..(n + 1) * plane;
                let planes: Vec<&[f32]> = channels.iter().map(|c| c.get(at.clone()).unwrap_or_default()).collect();
                measurer.add_slice(slice, &planes);
                meter.add(1)?;
            }
        }
        let rows = measurer.finish();
        if version != self::version(&self.labels) {
            return mismatch("it was replaced while it was measured".to_owned(), "measure it again");
        }
        let objects = rows.len() as u64;
        let text = table_text(&[(self.time, rows)], &names, extents.times > 1);
        let mut publication = Publication::default();
        publication.add(write_unpublished(&self.table, text.as_bytes())?);
        let records = publication.records()?;
        provenance::update(&records)?;
        publication.publish(self.overwrite)?;
        Ok(MeasureReport {
            objects,
            labels: self.labels.clone(),
            table: self.table.clone(),
            record: records.into_iter().next(),
            voxel_um,
            seconds: start.elapsed().as_secs_f64(),
        })
    }
}

/// What tells one content of a file from the next, where the system does.
fn version(path: &Path) -> Option<(u64, SystemTime)> {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.len(), meta.modified().ok()?))
}

fn numbers(samples: Samples) -> Vec<u32> {
    match samples {
        Samples::U32(v) => v,
        Samples::U16(v) => v.into_iter().map(u32::from).collect(),
        Samples::U8(v) => v.into_iter().map(u32::from).collect(),
        // Other types were refused.
        _ => Vec::new(),
    }
}
