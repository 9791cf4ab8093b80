//! The part of a stack that a label image was predicted from, by the record beside it.

use crate::predict::containing_maps;
use crate::provenance;
use cytoscope_formats::{OpenOptions, SeriesChoice};
use std::path::Path;

/// The series and the time point of a stack that labels were predicted from.
pub(crate) struct PredictedPart {
    /// Series of the file.
    pub(crate) series: Option<SeriesChoice>,
    /// Time point, if the prediction was of a single one.
    pub(crate) time: Option<usize>,
}

impl PredictedPart {
    /// Returns the part of the file `stack` that `labels` were predicted from. `None` if no record beside the labels lists them
    /// unchanged, or if it names another file.
    pub(crate) fn of(labels: &Path, stack: &Path) -> Option<Self> {
        let (series, time) = provenance::part_of_file(containing_maps(labels), stack)?;
        Some(Self { series, time })
    }

    /// Returns whether a given series of `stack` is another one. If the file cannot be opened, it is not.
    pub(crate) fn is_other_series(&self, stack: &Path, given: &SeriesChoice, options: &OpenOptions) -> bool {
        let number = |choice: &SeriesChoice| choice.index_or_only(stack, options).ok();
        let own = self.series.as_ref().and_then(number);
        own.zip(number(given)).is_some_and(|(own, given)| own != given)
    }
}
