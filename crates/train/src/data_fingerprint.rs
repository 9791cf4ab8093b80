//! A fingerprint of the content of training data, by which a search for settings recognizes the data of an earlier one.

use crate::config::TrainConfig;
use crate::data::find;
use crate::error::io_error;
use crate::setup::image_files;
use cytoscope_pipeline::{JobError, input_record};
use cytoscope_training_data::TrainingTask;
use std::path::Path;

/// Returns a hash of the pairs that a training run with these settings finds in `data`: their names, and the sizes and
/// samples of the content of all files of their images and of the table that lists them, if `data` is one. Of OME-Zarr
/// folders, the times of modification count instead of the content. Data without pairs have a hash, too: a training run
/// reports why there are none.
///
/// # Errors
/// [`JobError`] if the data settings are invalid, or a file of a pair cannot be read.
pub fn data_fingerprint(data: &Path, task: TrainingTask, config: &TrainConfig) -> Result<String, JobError> {
    let pairs = find(data, task, config)?.map_or_else(|_| Vec::new(), |dataset| dataset.pairs);
    // A table states more than files, such as channels and the split.
    let mut text = if data.is_file() { content(data)? } else { String::new() };
    for pair in &pairs {
        text.push_str(&pair.name);
        for file in image_files(pair) {
            text.push_str(&content(&file)?);
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

    /// A little-endian TIFF of 8 × 8 pixels of 8 bits with a description.
    fn tiff(description: &str, value: u8) -> Vec<u8> {
        const TAGS: usize = 10;
        let at = 8 + 2 + 12 * TAGS + 4;
        let pixels = at + description.len() + 1;
        // Tag, type (2 is text, 3 are 16 bits, 4 are 32 bits), number of values, value or offset.
        let tags: [(u16, u16, usize, usize); TAGS] = [
            (256, 4, 1, 8),
            (257, 4, 1, 8),
            (258, 3, 1, 8),
            (259, 3, 1, 1),
            (262, 3, 1, 1),
            (270, 2, description.len() + 1, at),
            (273, 4, 1, pixels),
            (277, 3, 1, 1),
            (278, 4, 1, 8),
            (279, 4, 1, 64),
        ];
        let mut file = b"II*\0\x08\0\0\0".to_vec();
        file.extend((TAGS as u16).to_le_bytes());
        for (tag, kind, count, stored) in tags {
            file.extend([tag, kind].map(u16::to_le_bytes).concat());
            file.extend([count, stored].map(|number| (number as u32).to_le_bytes()).concat());
        }
        file.extend([0; 4]);
        file.extend(description.as_bytes());
        file.push(0);
        file.extend([value; 64]);
        file
    }

    #[test]
    fn all_files_of_an_image_count() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let member = |z: usize, name: &str| {
            format!(
                "<TiffData FirstZ=\"{z}\" IFD=\"0\" PlaneCount=\"1\"><UUID FileName=\"{name}.ome.tif\">\
                 urn:uuid:{name}</UUID></TiffData>"
            )
        };
        let write = |name: &str, value: u8| {
            let description = format!(
                "<?xml version=\"1.0\"?><OME xmlns=\"http://www.openmicroscopy.org/Schemas/OME/2016-06\" \
                 UUID=\"urn:uuid:{name}\"><Image ID=\"Image:0\"><Pixels ID=\"Pixels:0\" DimensionOrder=\"XYZCT\" \
                 Type=\"uint8\" SizeX=\"8\" SizeY=\"8\" SizeZ=\"2\" SizeC=\"1\" SizeT=\"1\">{}{}</Pixels></Image></OME>",
                member(0, "a"),
                member(1, "b")
            );
            std::fs::write(at(&format!("{name}.ome.tif")), tiff(&description, value)).unwrap();
        };
        write("a", 1);
        write("b", 2);
        let opened = cytoscope_formats::open(&at("a.ome.tif"), &cytoscope_formats::OpenOptions::default()).unwrap();
        assert_eq!((opened.meta().shape_full[1], opened.files().len()), (2, 2), "a set of two files");
        let labels = Array::new(Axes::zyx(), vec![2, 8, 8], vec![1u16; 128]).unwrap();
        write_array(&at("labels.tif"), &labels, &WriteSpec::of(&labels, Container::ImageJ)).unwrap();
        let table = at("pairs.csv");
        std::fs::write(&table, "image,labels\na.ome.tif,labels.tif\n").unwrap();
        let fingerprint = || data_fingerprint(&table, TrainingTask::Segmentation, &TrainConfig::default()).unwrap();
        let first = fingerprint();
        write("b", 3);
        assert_ne!(fingerprint(), first, "only the other file has changed");
        write("b", 2);
        assert_eq!(fingerprint(), first);
    }
}
