//! A fingerprint of the content of training data, by which a search for settings recognizes the data of an earlier one.

use crate::config::TrainConfig;
use crate::data::find;
use crate::error::io_error;
use crate::setup::pair_files;
use cytoscope_pipeline::{JobError, input_record};
use cytoscope_training_data::TrainingTask;
use std::path::Path;

/// Returns a hash of the pairs that a training run with these settings finds in `data`: their names, and the sizes and samples
/// of the content of their files. Of OME-Zarr folders, the time of the last modification counts instead of the content. The
/// hash of data without pairs is that of an empty list: a training run reports why there are none.
///
/// # Errors
/// [`JobError`] if the data settings are invalid, or a file of a pair cannot be read.
pub fn data_fingerprint(data: &Path, task: TrainingTask, config: &TrainConfig) -> Result<String, JobError> {
    let pairs = find(data, task, config)?.map_or_else(|_| Vec::new(), |dataset| dataset.pairs);
    let mut text = String::new();
    for pair in &pairs {
        text.push_str(&pair.name);
        for file in pair_files(pair) {
            let record = input_record(file, &[]).map_err(io_error(file))?;
            let modified = format!("{}.{:09}", record.modified_unix_secs, record.modified_nanos);
            let content = record.sampled_sha256.unwrap_or(modified);
            text.push_str(&format!(" {} {content}", record.bytes));
        }
        text.push(';');
    }
    Ok(cytoscope_engine::select::fingerprint(text.as_bytes()))
}
