//! The stack whose intensities a segmentation measures: the map, or a part of another image that fits the map.

use super::{SegmentJob, check_index};
use crate::predict::file_notes::{FilePart, OtherSeries, first_series_note};
use crate::predict::resolve::channel_name;
use crate::stack::{Extents, Stack};
use crate::{Context, JobError, provenance};
use cytoscope_formats::{ImageMeta, OpenOptions};
use cytoscope_storage::message;
use cytoscope_storage::setting::TIME;
use std::path::Path;

impl SegmentJob {
    /// Returns the time point of an image of several that the map, which has one, was predicted from; the first one, with a
    /// note, if no record says so or the image lacks it.
    fn time_of_map(&self, context: &Context, image: &Path, times: usize) -> usize {
        provenance::map_time(&self.map).filter(|time| *time < times).unwrap_or_else(|| {
            context.note(message!(
                "{}: the map has one time point, but this image has {times}: only {} is measured; to measure another one, \
                 give an image of it alone",
                image.display(),
                FilePart::TimePoint.named(self.time)
            ));
            self.time
        })
    }

    /// Returns the stack to measure, its channels and their names. A file is read with the series and axes of the map's
    /// prediction, if its record states them.
    pub(super) fn measured(
        &self,
        context: &Context,
        map: &Stack,
        meta: &ImageMeta,
    ) -> Result<(Stack, Vec<usize>, Vec<String>), JobError> {
        let Some(path) = &self.intensities else {
            return Ok((map.clone(), vec![self.channel], vec![channel_name(meta, self.channel)]));
        };
        provenance::refuse_moved(&self.map, path)?;
        let chosen = self.series.clone();
        let (recorded_series, axes) = provenance::map_input(&self.map, path).unwrap_or_default();
        let known = chosen.or(recorded_series);
        let series = known.clone().unwrap_or_default();
        let mut options = OpenOptions { axes, ..OpenOptions::default() };
        let mut image = match series.open_or_only(path, &options) {
            // The recorded axes do not fit: another file has the name of the one that was predicted.
            Err(_) if options.axes.is_some() => {
                options.axes = None;
                series.open_or_only(path, &options)?
            }
            opened => opened?,
        };
        if image.meta().is_numbered_series() && map.extents.zyx[0] == 1 {
            // The map was predicted from one of the files.
            image = series.open_or_only(path, &OpenOptions { single_file: true, ..options })?;
        }
        let note = first_series_note(&series, image.meta(), "is measured", OtherSeries::One);
        if let Some(note) = note.filter(|_| known.is_none()) {
            context.note(message!("{}: {note}", path.display()));
        }
        let extents = Extents::of(image.meta());
        if extents.zyx != map.extents.zyx {
            return Err(JobError::Mismatch {
                path: path.clone(),
                problem: format!("its shape is {:?}, but the map's is {:?}", extents.zyx, map.extents.zyx).into(),
                next_step: "give the stack that the map was predicted from".into(),
            });
        }
        let time = match self.intensities_time {
            Some(time) => time,
            None if map.extents.times == 1 && extents.times > 1 => self.time_of_map(context, path, extents.times),
            None => self.time,
        };
        check_index(path, &FilePart::TimePoint.named(time), TIME, time, extents.times)?;
        let names = (0..extents.channels).map(|c| channel_name(image.meta(), c)).collect();
        Ok((Stack::new(&image, time), (0..extents.channels).collect(), names))
    }
}
