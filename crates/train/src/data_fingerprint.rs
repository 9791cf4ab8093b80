//! A fingerprint of the content of training data, by which a search for settings recognizes the data of an earlier one.

use crate::config::TrainConfig;
use crate::data::find;
use crate::error::io_error;
use crate::setup::pair_files;
use cytoscope_pipeline::{JobError, input_record};
use cytoscope_training_data::TrainingTask;
use std::path::Path;

/// Returns a hash of the pairs that a training run with these settings finds in `data`: their names, and the sizes and samples
/// of the content of their files and of the table that lists them, if `data` is one. Of OME-Zarr folders, the times of
/// modification count instead of the content. Data without pairs have a hash, too: a training run reports why there are none.
///
/// # Errors
/// [`JobError`] if the data settings are invalid, or a file of a pair cannot be read.
pub fn data_fingerprint(data: &Path, task: TrainingTask, config: &TrainConfig) -> Result<String, JobError> {
    let pairs = find(data, task, config)?.map_or_else(|_| Vec::new(), |dataset| dataset.pairs);
    // A table states more than files, such as channels and the split.
    let mut text = if data.is_file() { content(data)? } else { String::new() };
    for pair in &pairs {
        text.push_str(&pair.name);
        for file in pair_files(pair) {
            text.push_str(&content(file)?);
        }
        text.push(';');
    }
    Ok(cytoscope_engine::select::fingerprint(text.as_bytes()))
}

/// Returns the size of a file or folder with a hash of samples of its content, or its time of modification.
fn content(file: &Path) -> Result<String, JobError> {
    let record = input_record(file, &[]).map_err(io_error(file))?;
    let modified = format!("{}.{:09}", record.modified_unix_secs, record.modified_nanos);
    let content = match record.sampled_sha256 {
        Some(listing) if file.is_dir() => format!("{modified} {listing}"),
        Some(sha256) => sha256,
        None => modified,
    };
    Ok(format!(" {} {content}", record.bytes))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use cytoscope_formats::{Container, WriteSpec, write_array};
    use cytoscope_volume::{Array, Axes};

    #[test]
    fn the_content_of_a_table_counts_but_not_when_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let values: Vec<u16> = (0..128).map(|i| i % 7).collect();
            let array = Array::new(Axes::zyx(), vec![2, 8, 8], values).unwrap();
            write_array(&folder.path().join(name), &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        };
        for name in ["a_raw.tif", "a_labels.tif"] {
            write(name);
        }
        let table = folder.path().join("pairs.csv");
        let fingerprint = |text: &str| {
            std::fs::write(&table, text).unwrap();
            data_fingerprint(&table, TrainingTask::Segmentation, &TrainConfig::default()).unwrap()
        };
        let first = fingerprint("image,labels\na_raw.tif,a_labels.tif\n");
        assert_ne!(fingerprint("image,labels,split\na_raw.tif,a_labels.tif,train\n"), first);
        assert_eq!(fingerprint("image,labels\na_raw.tif,a_labels.tif\n"), first);
    }
}
