//! The series of the inputs that a job predicts: one of each file, or all.

use super::zarr::is_ome_zarr_name;
use super::{PredictJob, stems};
use crate::JobError;
use cytoscope_formats::{
    FileFormat, FormatError, Image, OpenOptions, SeriesChoice, any_series, ome_tiff_files, series_suffix,
};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A series of an input, to be predicted.
pub(super) struct SeriesInput {
    /// Path of the input.
    pub input: PathBuf,
    /// Number of the series, from 0, or why it cannot be chosen.
    pub series: Result<usize, JobError>,
    /// Stem of the names of its results.
    pub stem: String,
}

impl PredictJob {
    /// Opens the chosen series of an input, with the voxel size that is given along single axes.
    ///
    /// # Errors
    /// Same as [`SeriesChoice::open`].
    pub(crate) fn open(&self, input: &Path) -> Result<Image, FormatError> {
        let image = self.series.open(input, &self.open_options())?;
        if self.voxel_axes_um.is_unknown() {
            return Ok(image);
        }
        Ok(image.with_voxel_size(self.voxel_axes_um.or(image.meta().voxel_size_um)))
    }

    /// Returns the options to open the inputs with, except the series.
    pub(super) fn open_options(&self) -> OpenOptions {
        OpenOptions { axes: self.axes.clone(), ..OpenOptions::default() }
    }

    /// Returns this job for one series of its inputs.
    pub(super) fn for_series(&self, series: usize) -> PredictJob {
        PredictJob { series: SeriesChoice::Index(series), ..self.clone() }
    }

    /// Returns the numbers of the chosen series of each input. If all series are chosen, an input is `None` if it belongs to
    /// a multi-file image whose series another input opens already.
    fn chosen_series(&self, files: &[PathBuf]) -> Vec<Option<Result<Vec<usize>, JobError>>> {
        let mut members: BTreeSet<&Path> = BTreeSet::new();
        let mut all = Vec::with_capacity(files.len());
        for input in files {
            if members.contains(input.as_path()) {
                all.push(None);
                continue;
            }
            if let SeriesChoice::Index(index) = self.series {
                all.push(Some(Ok(vec![index])));
                continue;
            }
            let image = any_series(input, &self.open_options());
            if let Ok(image) = &image
                && self.series == SeriesChoice::All
                && files.len() > 1
                && image.meta().series_count > 1
            {
                let set = self.set_files(input, image);
                members.extend(files.iter().filter(|file| *file != input && set.contains(*file)).map(PathBuf::as_path));
            }
            let chosen = image.and_then(|image| self.series.chosen_indices(image.meta()));
            all.push(Some(chosen.map_err(JobError::from)));
        }
        // An input before the one that opens its set is left out, too.
        let kept = |(input, chosen): (&PathBuf, Option<_>)| chosen.filter(|_| !members.contains(input.as_path()));
        files.iter().zip(all).map(kept).collect()
    }

    /// Returns the files of all images of an input, of which one is open. Each image of an OME-TIFF set may have its own files.
    fn set_files(&self, input: &Path, image: &Image) -> BTreeSet<PathBuf> {
        let mut files: BTreeSet<PathBuf> = image.files().into_iter().collect();
        if image.meta().format == FileFormat::OmeTiff {
            files.extend(ome_tiff_files(input, &self.open_options().limits).unwrap_or_default());
        }
        files
    }

    /// Returns the chosen series of all inputs. The stems of a series other than the first end in its number, so that the
    /// positions of a file do not replace each other's results.
    pub(super) fn series_inputs(&self, files: &[PathBuf]) -> Vec<SeriesInput> {
        let out = std::slice::from_ref(&self.out);
        let named = is_ome_zarr_name(&self.out).then(|| stems(out)).and_then(|mut stems| stems.pop());
        let mut seen: BTreeSet<String> = BTreeSet::new();
        let mut inputs = Vec::new();
        for ((input, stem), chosen) in files.iter().zip(stems(files)).zip(self.chosen_series(files)) {
            let chosen: Vec<Result<usize, JobError>> = match chosen {
                None => continue,
                Some(Ok(found)) => found.into_iter().map(Ok).collect(),
                Some(Err(error)) => vec![Err(error)],
            };
            for series in chosen {
                let stem = match (&named, &series) {
                    (Some(named), _) => named.clone(),
                    (None, Ok(number)) => format!("{stem}{}", series_suffix(*number)),
                    (None, Err(_)) => stem.clone(),
                };
                let mut unique = stem.clone();
                let mut n = 2;
                // Another file may have the name of a series. Some file systems are case-insensitive.
                while !seen.insert(unique.to_lowercase()) {
                    unique = format!("{stem}_{n}");
                    n += 1;
                }
                inputs.push(SeriesInput { input: input.clone(), series, stem: unique });
            }
        }
        inputs
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_formats::{Container, WriteSpec, write_array};
    use cytoscope_volume::{Array, VoxelSize};

    /// Writes a file with the metadata of an OME-TIFF set of two images, each of which is a slice of 8 × 8 voxels in the file of
    /// this name. `own` is the name that the metadata state of the file.
    fn write_image_of_set(path: &Path, own: &str, files: [&str; 2]) {
        let image = |file: &str| {
            format!(
                "<Image><Pixels DimensionOrder=\"XYZCT\" SizeX=\"8\" SizeY=\"8\" SizeZ=\"1\" SizeC=\"1\" SizeT=\"1\">\
                 <TiffData IFD=\"0\"><UUID FileName=\"{file}\">urn:uuid:{file}</UUID></TiffData></Pixels></Image>"
            )
        };
        let text = format!("<OME UUID=\"urn:uuid:{own}\">{}</OME>\0", files.map(image).concat());
        let (text_bytes, text_at) = (text.len() as u32, 8 + 2 + 10 * 12 + 4);
        let entries: [(u16, u16, u32, u32); 10] = [
            (256, 4, 1, 8),
            (257, 4, 1, 8),
            (258, 3, 1, 8),
            (259, 3, 1, 1),
            (262, 3, 1, 1),
            (270, 2, text_bytes, text_at),
            (273, 4, 1, text_at + text_bytes),
            (277, 3, 1, 1),
            (278, 4, 1, 8),
            (279, 4, 1, 64),
        ];
        let mut bytes = [&b"II*\0\x08\0\0\0"[..], &(entries.len() as u16).to_le_bytes()].concat();
        for (tag, kind, count, value) in entries {
            bytes.extend(tag.to_le_bytes().into_iter().chain(kind.to_le_bytes()));
            bytes.extend(count.to_le_bytes().into_iter().chain(value.to_le_bytes()));
        }
        bytes.extend([0; 4]);
        bytes.extend(text.into_bytes());
        bytes.extend([7; 64]);
        std::fs::write(path, bytes).unwrap();
    }

    #[test]
    fn all_series_of_a_set_are_those_of_one_of_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["a.ome.tif", "b.ome.tif"];
        names.into_iter().for_each(|name| write_image_of_set(&folder.path().join(name), name, names));
        let files = names.map(|name| folder.path().join(name));
        let chosen = |series: SeriesChoice| -> Vec<Option<Vec<usize>>> {
            let job = PredictJob { series, ..PredictJob::default() };
            job.chosen_series(&files).into_iter().map(|one| one.map(|found| found.unwrap())).collect()
        };
        assert_eq!(chosen(SeriesChoice::All), [Some(vec![0, 1]), None]);
        assert_eq!(chosen(SeriesChoice::Index(0)), [Some(vec![0]), Some(vec![0])]);
        // The files of the other images are not opened to find out that they belong to the set.
        std::fs::write(&files[1], "no TIFF").unwrap();
        assert_eq!(chosen(SeriesChoice::All), [Some(vec![0, 1]), None]);
    }

    #[test]
    fn a_copy_of_a_file_with_several_images_is_no_part_of_its_set() {
        let folder = tempfile::tempdir().unwrap();
        let files = ["a.ome.tif", "copy.ome.tif"].map(|name| folder.path().join(name));
        files.iter().for_each(|file| write_image_of_set(file, "a.ome.tif", ["a.ome.tif"; 2]));
        let job = PredictJob { series: SeriesChoice::All, ..PredictJob::default() };
        let chosen: Vec<Option<Vec<usize>>> =
            job.chosen_series(&files).into_iter().map(|one| one.map(|found| found.unwrap())).collect();
        assert_eq!(chosen, [Some(vec![0, 1]), Some(vec![0, 1])]);
    }

    #[test]
    fn a_voxel_size_along_single_axes_leaves_each_image_its_own_along_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let array = Array::new("ZYX".parse().unwrap(), vec![2, 3, 4], vec![1u16; 24]).unwrap();
        let voxel_axes_um = VoxelSize { z: Some(2.0), ..VoxelSize::default() };
        let job = PredictJob { voxel_axes_um, ..PredictJob::default() };
        for (name, y, x) in [("a.ome.tif", 0.5, 0.25), ("b.ome.tif", 0.75, 0.125)] {
            let path = folder.path().join(name);
            let voxel_size_um = VoxelSize::new_um(1.0, y, x);
            let spec = WriteSpec { voxel_size_um, ..WriteSpec::of(&array, Container::OmeTiff) };
            write_array(&path, &array, &spec).unwrap();
            assert_eq!(job.open(&path).unwrap().meta().voxel_size_um, VoxelSize::new_um(2.0, y, x));
            assert_eq!(PredictJob::default().open(&path).unwrap().meta().voxel_size_um, voxel_size_um);
        }
        // Records of predictions without it stay as they were.
        assert!(!serde_json::to_string(&PredictJob::default()).unwrap().contains("voxel_axes_um"));
        let stored: PredictJob = serde_json::from_str(&serde_json::to_string(&job).unwrap()).unwrap();
        assert_eq!(stored.voxel_axes_um, voxel_axes_um);
        let wrong = PredictJob { voxel_axes_um: VoxelSize { z: Some(-2.0), ..VoxelSize::default() }, ..job };
        assert!(wrong.check().unwrap_err().to_string().contains("along Z"));
    }
}
