//! Objects from a map that is already there.

use crate::predict::files::{label_writer, table_text};
use crate::predict::label::{self, MapSource};
use crate::predict::one::channel_name;
use crate::stack::Stack;
use crate::{Context, JobError};
use cytoscope_formats::OpenOptions;
use cytoscope_objects::SegmentOptions;
use cytoscope_volume::{Array, DType, Samples};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::PathBuf;

/// Labels and measurements from a probability map.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SegmentJob {
    /// The map.
    pub map: PathBuf,
    /// Where the labels go.
    pub labels: PathBuf,
    /// Where the measurements go.
    pub table: Option<PathBuf>,
    /// Channel of the map.
    pub channel: usize,
    /// How objects are made.
    pub options: SegmentOptions,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SegmentReport {
    /// Objects found.
    pub objects: u32,
    /// The label image.
    pub labels: PathBuf,
    /// The table.
    pub table: Option<PathBuf>,
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

impl SegmentJob {
    /// Runs the job on the first time point.
    ///
    /// # Errors
    /// [`JobError`] if the map cannot be read, the results not written, or on cancelling.
    pub fn run(&self, context: &Context) -> Result<SegmentReport, JobError> {
        let image = cytoscope_formats::open(&self.map, &OpenOptions::default())?;
        let meta = image.meta().clone();
        let stack = Stack::new(&image, 0);
        if self.channel >= stack.extents.channels {
            return Err(JobError::Mismatch {
                path: self.map.clone(),
                problem: format!("channel {} was asked for, the file has {}", self.channel, stack.extents.channels),
                next_step: format!("give --channel 0 to {}", stack.extents.channels.saturating_sub(1)),
            });
        }
        let folder = match self.labels.parent() {
            Some(p) if !p.as_os_str().is_empty() => p.to_owned(),
            _ => PathBuf::from("."),
        };
        let voxel_um = meta.voxel_size_um.zyx_or_unit();
        let zyx = stack.extents.zyx;
        let mut labels =
            label::label(context, &mut FileMap(stack.clone()), [self.channel; 2], voxel_um, &self.options, &folder)?;
        let min_voxels = (self.options.min_volume_um3 / voxel_um.iter().product::<f64>()).ceil().max(0.0) as u64;
        labels.settle(context, min_voxels, self.options.drop_border)?;
        let objects = labels.count;
        let dtype = if objects > u32::from(u16::MAX) { DType::U32 } else { DType::U16 };
        let mut writer = label_writer(&self.labels, &meta, &zyx, 1, dtype, objects)?;
        let names = vec![channel_name(&meta, self.channel)];
        let rows = labels.finish(
            context,
            &stack,
            &[self.channel],
            names.clone(),
            voxel_um,
            self.table.is_some(),
            |slice| {
                let samples = match dtype {
                    DType::U16 => Samples::U16(slice.iter().map(|v| *v as u16).collect()),
                    _ => Samples::U32(slice.to_vec()),
                };
                Ok(writer.write(&Array::new("ZYX".parse()?, vec![1, zyx[1], zyx[2]], samples)?)?)
            },
        )?;
        writer.finish()?;
        if let Some(path) = &self.table {
            cytoscope_formats::atomic_write(path, table_text(&[(0, rows)], &names, false).as_bytes())?;
        }
        Ok(SegmentReport { objects, labels: self.labels.clone(), table: self.table.clone() })
    }
}
