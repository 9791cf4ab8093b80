//! The part of a stack that a label image was predicted from, by the record beside it.

use crate::predict::containing_maps;
use crate::{Context, provenance};
use cytoscope_formats::{OpenOptions, SeriesChoice};
use cytoscope_volume::Axes;
use std::path::Path;

/// The series and the time point of a stack that labels were predicted from, and how the stack was read.
pub(crate) struct PredictedPart {
    /// Series of the file.
    pub(crate) series: Option<SeriesChoice>,
    /// Time point, if the prediction was of a single one.
    pub(crate) time: Option<usize>,
    /// Axis order that replaced that of the file, if any.
    pub(crate) axes: Option<Axes>,
}

impl PredictedPart {
    /// Returns the part of the file `stack` that `labels` were predicted from. `None` if no record beside the labels lists them
    /// unchanged, if it names another file, or if that part, read with the file's own axes, and the `given` series are the first
    /// series with all time points.
    pub(crate) fn of(context: &Context, labels: &Path, stack: &Path, given: Option<&SeriesChoice>) -> Option<Self> {
        let result = containing_maps(labels);
        let part = provenance::part_of_file(result, stack)?;
        let is_first = |choice: Option<&SeriesChoice>| choice.is_none_or(SeriesChoice::is_first);
        if part.time.is_none() && part.axes.is_none() && is_first(part.series.as_ref()) && is_first(given) {
            return None;
        }
        // A large result takes long to read.
        let is_listed = provenance::lists_while(result, &mut || context.check().is_ok());
        is_listed.then_some(part)
    }

    /// Returns whether a given series of `stack` is another one. If the file cannot be opened, it is not.
    pub(crate) fn is_other_series(&self, stack: &Path, given: &SeriesChoice, options: &OpenOptions) -> bool {
        let number = |choice: &SeriesChoice| choice.index_or_only(stack, options).ok();
        let own = self.series.as_ref().and_then(number);
        own.zip(number(given)).is_some_and(|(own, given)| own != given)
    }
}
