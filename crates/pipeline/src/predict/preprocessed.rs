//! Writes the preprocessed stack as one of the results of a prediction (`--outputs preprocessed`).

use super::files::map_axes;
use super::resolve::{Resolved, channel_name};
use crate::stack::Stack;
use crate::{Context, JobError, ProgressStage, ProgressUnit};
use cytoscope_formats::{Channel, Container, StackWriter, WriteSpec};
use cytoscope_profile::Stage;
use cytoscope_storage::write::FinishedFile;
use cytoscope_volume::Array;
use std::path::Path;

/// Writes all channels of the predicted time points, slice by slice, under a hidden name.
///
/// # Errors
/// [`JobError`] if the stack cannot be read, the file cannot be written, or the job is canceled.
pub(super) fn write(context: &Context, resolved: &Resolved<'_>, path: &Path) -> Result<FinishedFile, JobError> {
    let Resolved { image, meta, extents, times, .. } = resolved;
    let [depth, ny, nx] = extents.zyx;
    let is_timed = times.len() > 1;
    let shape_of = |times: usize, slices: usize, channels: usize| {
        let zcyx = [slices, channels, ny, nx];
        if is_timed { [&[times][..], &zcyx[..]].concat() } else { zcyx.to_vec() }
    };
    let axes = map_axes(times.len());
    let shape = shape_of(times.len(), depth, extents.channels);
    let mut spec = WriteSpec::new(Container::OmeTiff, axes.clone(), shape, meta.dtype);
    spec.voxel_size_um = meta.voxel_size_um;
    spec.origin_um = meta.origin_um;
    spec.time_interval_secs = meta.time_interval_secs;
    spec.channels = (0..extents.channels).map(|c| Channel { name: channel_name(meta, c), color_rgb: None }).collect();
    let mut writer = StackWriter::create(path, &spec)?;
    let mut meter = context.meter(ProgressStage::Write, (times.len() * depth) as u64, ProgressUnit::Slices);
    for time in times {
        let stack = Stack::new(image, *time);
        for z in 0..depth {
            for channel in 0..extents.channels {
                let samples = stack.read(context, channel, z..z + 1)?;
                let _span = context.recorder.span(Stage::Write, "preprocessed").bytes(samples.as_bytes().len());
                writer.write(&Array::new(axes.clone(), shape_of(1, 1, 1), samples)?)?;
            }
            meter.add(1)?;
        }
    }
    Ok(writer.finish_unpublished()?)
}
