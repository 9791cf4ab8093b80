//! Objects from a map that is already there.

use crate::predict::files::{label_writer, table_text};
use crate::predict::label::{self, MapSource};
use crate::predict::one::{channel_name, plausible};
use crate::results::Publication;
use crate::stack::{Extents, Stack};
use crate::{Context, JobError, provenance, results};
use cytoscope_formats::{ImageMeta, OpenOptions, StackWriter};
use cytoscope_objects::SegmentOptions;
use cytoscope_storage::write::write_unpublished;
use cytoscope_storage::{Overwrite, target};
use cytoscope_volume::{Array, DType, Samples, VoxelSize};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Labels and measurements from a probability map.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SegmentJob {
    /// The map, of any number of channels: such as the `NAME_probability.tif` of a prediction.
    pub map: PathBuf,
    /// Where the labels go (TIFF); `None`: to the private folder of the worker, as plain numbers.
    #[serde(default)]
    pub labels: Option<PathBuf>,
    /// Where the measurements go (CSV).
    #[serde(default)]
    pub table: Option<PathBuf>,
    /// Channel of the map that objects are made of, from 0.
    #[serde(default)]
    pub channel: usize,
    /// Channel that tells touching objects apart ([`cytoscope_objects::Height::DistancePlusSeeds`]); by default the same.
    #[serde(default)]
    pub seed_channel: Option<usize>,
    /// Time point of the map, from 0.
    #[serde(default)]
    pub time: usize,
    /// Voxel size Z, Y, X in µm, where the map's own is wrong or missing.
    #[serde(default)]
    pub voxel_um: Option<[f64; 3]>,
    /// The image of the map's shape whose channels are measured for the table; by default the map's channel itself.
    #[serde(default)]
    pub intensities: Option<PathBuf>,
    /// How objects are made.
    #[serde(default)]
    pub options: SegmentOptions,
    /// What happens to files at the outputs' paths that are not as a prediction wrote them.
    #[serde(default)]
    pub overwrite: Overwrite,
}

/// How a label image is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LabelFormat {
    /// ImageJ TIFF of 16 bits, or OME-TIFF of 32 bits where there are more objects.
    Tiff,
    /// 32-bit numbers, little-endian, axes Z, Y, X, nothing else: [`crate::worker::LabelArray`] reads it.
    RawU32,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SegmentReport {
    /// Objects found.
    pub objects: u32,
    /// The label image.
    pub labels: PathBuf,
    /// How it is stored.
    pub format: LabelFormat,
    /// Its extents Z, Y, X.
    pub shape_zyx: [usize; 3],
    /// Voxel size Z, Y, X in µm it was made with; 1 where it is not known.
    pub voxel_um: [f64; 3],
    /// The table.
    pub table: Option<PathBuf>,
    /// Wall seconds.
    pub seconds: f64,
}

struct FileMap(Stack);

impl MapSource for FileMap {
    fn shape(&self) -> [usize; 3] {
        self.0.extents.zyx
    }

    fn read(&mut self, context: &Context, channel: usize, z: Range<usize>) -> Result<Vec<f32>, JobError> {
        Ok(self.0.read(context, channel, z)?.to_f32())
    }
}

/// Where the labels go.
enum Target {
    Tiff(Box<StackWriter>, DType),
    Raw(RawLabels),
}

/// Plain numbers in a private folder: a file of a process's own, neither synced nor renamed; removed when dropped unfinished.
struct RawLabels {
    path: PathBuf,
    out: Option<BufWriter<File>>,
}

impl RawLabels {
    fn create(path: PathBuf) -> Result<Self, JobError> {
        let file = File::create_new(&path).map_err(|error| JobError::Io { path: path.clone(), error })?;
        Ok(Self { path, out: Some(BufWriter::with_capacity(1 << 18, file)) })
    }

    fn write(&mut self, slice: &[u32]) -> Result<(), JobError> {
        let Some(out) = &mut self.out else { return Ok(()) };
        let written = if cfg!(target_endian = "little") {
            out.write_all(bytemuck::cast_slice(slice))
        } else {
            slice.iter().try_for_each(|v| out.write_all(&v.to_le_bytes()))
        };
        written.map_err(|error| JobError::Io { path: self.path.clone(), error })
    }

    fn finish(mut self) -> Result<(), JobError> {
        let Some(mut out) = self.out.take() else { return Ok(()) };
        out.flush().map_err(|error| {
            let _ = std::fs::remove_file(&self.path);
            JobError::Io { path: self.path.clone(), error }
        })
    }
}

impl Drop for RawLabels {
    fn drop(&mut self) {
        if self.out.take().is_some() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl SegmentJob {
    /// Runs the job.
    ///
    /// # Errors
    /// [`JobError`] if there is no path for the labels, the map cannot be read, the results not written, or on cancelling.
    pub fn run(&self, context: &Context) -> Result<SegmentReport, JobError> {
        let Some(labels) = &self.labels else {
            return Err(JobError::WrongUse("no path was given for the labels: name a .tif file".to_owned()));
        };
        if self.table.as_ref().is_some_and(|table| target::resolved(table) == target::resolved(labels)) {
            return Err(JobError::WrongUse(format!(
                "{}: labels and table cannot be one file; give --table another name",
                labels.display()
            )));
        }
        self.run_into(context, labels, LabelFormat::Tiff)
    }

    /// Runs the job with its labels as plain numbers in `file`, whatever path it has for them.
    ///
    /// # Errors
    /// As [`SegmentJob::run`].
    pub fn run_raw(&self, context: &Context, file: &Path) -> Result<SegmentReport, JobError> {
        self.run_into(context, file, LabelFormat::RawU32)
    }

    fn run_into(&self, context: &Context, path: &Path, format: LabelFormat) -> Result<SegmentReport, JobError> {
        let start = Instant::now();
        let image = cytoscope_formats::open(&self.map, &OpenOptions::default())?;
        if format == LabelFormat::Tiff {
            let files = image.files();
            let inputs = files.iter().chain([&self.map]).chain(&self.intensities);
            let inputs: Vec<&Path> = inputs.map(PathBuf::as_path).collect();
            for output in [path].into_iter().chain(self.table.as_deref()) {
                results::check_derived(output, &self.map, &inputs, self.overwrite)?;
            }
        }
        let mut meta = image.meta().clone();
        if let Some([z, y, x]) = self.voxel_um {
            meta.voxel_size_um = VoxelSize::new_um(z, y, x);
        }
        plausible(&self.map, meta.voxel_size_um)?;
        let extents = Extents::of(&meta);
        let seed_channel = self.seed_channel.unwrap_or(self.channel);
        self.check(&self.map, "channel", self.channel.max(seed_channel), extents.channels)?;
        self.check(&self.map, "time point", self.time, extents.times)?;
        let stack = Stack::new(&image, self.time);
        let (measured, channels, names) = self.measured(&stack, &meta)?;
        let folder = match path.parent() {
            Some(p) if !p.as_os_str().is_empty() => p.to_owned(),
            _ => PathBuf::from("."),
        };
        let voxel_um = meta.voxel_size_um.zyx_or_unit();
        let zyx = extents.zyx;
        let maps = [self.channel, seed_channel];
        let mut labels =
            label::label(context, &mut FileMap(stack), maps, voxel_um, &self.options, label::OVERLAP_UM, &folder)?;
        let min_voxels = (self.options.min_volume_um3 / voxel_um.iter().product::<f64>()).ceil().max(0.0) as u64;
        labels.settle(context, min_voxels, self.options.drop_border)?;
        let objects = labels.count;
        let mut target = match format {
            LabelFormat::RawU32 => Target::Raw(RawLabels::create(path.to_owned())?),
            LabelFormat::Tiff => {
                let dtype = if objects > u32::from(u16::MAX) { DType::U32 } else { DType::U16 };
                Target::Tiff(Box::new(label_writer(path, &meta, &zyx, 1, dtype, objects)?), dtype)
            }
        };
        let measure = self.table.is_some();
        let rows = labels.finish(context, &measured, &channels, names.clone(), voxel_um, measure, |slice| {
            let (writer, dtype) = match &mut target {
                Target::Raw(raw) => return raw.write(slice),
                Target::Tiff(writer, dtype) => (writer, dtype),
            };
            let samples = match dtype {
                DType::U16 => Samples::U16(slice.iter().map(|v| *v as u16).collect()),
                _ => Samples::U32(slice.to_vec()),
            };
            Ok(writer.write(&Array::new("ZYX".parse()?, vec![1, zyx[1], zyx[2]], samples)?)?)
        })?;
        let mut publication = Publication::default();
        match target {
            Target::Raw(raw) => raw.finish()?,
            Target::Tiff(writer, _) => publication.add(writer.finish_unpublished()?),
        }
        if let Some(path) = &self.table {
            publication.add(write_unpublished(path, table_text(&[(0, rows)], &names, false).as_bytes())?);
        }
        provenance::update(&publication.records()?)?;
        publication.publish(self.overwrite)?;
        Ok(SegmentReport {
            objects,
            labels: path.to_owned(),
            format,
            shape_zyx: zyx,
            voxel_um,
            table: self.table.clone(),
            seconds: start.elapsed().as_secs_f64(),
        })
    }

    /// The stack that is measured, its channels and their names.
    fn measured(&self, map: &Stack, meta: &ImageMeta) -> Result<(Stack, Vec<usize>, Vec<String>), JobError> {
        let Some(path) = &self.intensities else {
            return Ok((map.clone(), vec![self.channel], vec![channel_name(meta, self.channel)]));
        };
        let image = cytoscope_formats::open(path, &OpenOptions::default())?;
        let extents = Extents::of(image.meta());
        if extents.zyx != map.extents.zyx {
            return Err(JobError::Mismatch {
                path: path.clone(),
                problem: format!("its shape is {:?}, the map's {:?}", extents.zyx, map.extents.zyx),
                next_step: "give the stack that the map was made of".to_owned(),
            });
        }
        self.check(path, "time point", self.time, extents.times)?;
        let names = (0..extents.channels).map(|c| channel_name(image.meta(), c)).collect();
        Ok((Stack::new(&image, self.time), (0..extents.channels).collect(), names))
    }

    fn check(&self, path: &Path, what: &str, wanted: usize, have: usize) -> Result<(), JobError> {
        if wanted < have {
            return Ok(());
        }
        let option = if what == "channel" { "--channel" } else { "--time" };
        Err(JobError::Mismatch {
            path: path.to_owned(),
            problem: format!("{what} {wanted} was asked for, the file has {have}"),
            next_step: format!("give {option} 0 to {}", have.saturating_sub(1)),
        })
    }
}
