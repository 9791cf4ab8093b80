//! The series of the files of training pairs.

use crate::dataset::{ImageRef, Pair};
use crate::error::TrainingDataError;
use crate::setting::{IN_SETTINGS, SERIES};
use cytoscope_formats::{FormatError, OpenOptions, SeriesChoice, series_suffix};
use cytoscope_storage::message;
use std::collections::BTreeMap;
use std::path::Path;

/// Returns a pair with the chosen series of its images and targets. With [`SeriesChoice::All`], it returns one pair for each
/// series. Files of a single series are used as they are, except for pairs of all series, whose image and target must have
/// the same number of them. A file in which a label image was found counts as one of a single series, but the name of another
/// label image chooses that.
///
/// # Errors
/// [`TrainingDataError`] if a file cannot be opened, or does not have the series.
pub(super) fn expand_pair(pair: Pair, choice: &SeriesChoice) -> Result<Vec<Pair>, TrainingDataError> {
    match choice {
        SeriesChoice::All => all_series(&pair),
        _ => Ok(vec![with_series(pair, |image| chosen_in(image, choice))?]),
    }
}

fn options(image: &ImageRef) -> OpenOptions {
    OpenOptions { axes: image.axes.clone(), single_file: true, ..OpenOptions::default() }
}

/// Returns the number of the chosen series of a file.
///
/// # Errors
/// Same as [`SeriesChoice::open`], if no label image was found in the file before.
fn chosen_in(image: &ImageRef, choice: &SeriesChoice) -> Result<usize, FormatError> {
    let options = options(image);
    if image.series == 0 {
        return choice.index_or_only(&image.path, &options);
    }
    choice.label_image_or(image.series, &image.path, &options)
}

/// Returns the pair with the series that `series_of` returns for each of its files.
fn with_series(
    mut pair: Pair,
    series_of: impl Fn(&ImageRef) -> Result<usize, FormatError>,
) -> Result<Pair, TrainingDataError> {
    let further = pair.more_images.iter_mut().chain(&mut pair.more_targets);
    for image in [&mut pair.image, &mut pair.target].into_iter().chain(further) {
        image.series = series_of(image)?;
    }
    Ok(pair)
}

/// Returns a pair for each series of the image. Those after the first are named after their number.
fn all_series(pair: &Pair) -> Result<Vec<Pair>, TrainingDataError> {
    let others = || [&pair.target].into_iter().chain(&pair.more_images).chain(&pair.more_targets);
    let mut series_of = BTreeMap::<&Path, Vec<usize>>::new();
    for image in others().chain([&pair.image]) {
        if !series_of.contains_key(image.path.as_path()) {
            series_of.insert(&image.path, SeriesChoice::All.indices_in(&image.path, &options(image))?);
        }
    }
    let of = |image: &ImageRef| series_of.get(image.path.as_path()).map_or(&[][..], Vec::as_slice);
    let wanted = of(&pair.image);
    for other in others() {
        let found = of(other).len();
        if found != wanted.len() {
            return Err(TrainingDataError::Data {
                file: other.path.clone(),
                problem: format!("it has {found} series, but {} has {}", pair.image.path.display(), wanted.len())
                    .into(),
                next_step: message!(
                    "give files with the same number of series, or set {SERIES} {IN_SETTINGS} to one of them"
                ),
            });
        }
    }
    let pair_of_series = |(position, series): (usize, &usize)| {
        let name = format!("{}{}", pair.name, series_suffix(*series));
        with_series(Pair { name, ..pair.clone() }, |image| match image.series {
            0 => Ok(of(image).get(position).copied().unwrap_or(*series)),
            labels => Ok(labels),
        })
    };
    wanted.iter().enumerate().map(pair_of_series).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_formats::{ZarrImageSpec, ZarrWriter};
    use cytoscope_storage::Overwrite;
    use cytoscope_volume::{DType, Samples};
    use serde_json::{Value, json};
    use std::path::PathBuf;

    /// Writes a plate of one well with images of one slice.
    fn plate(path: PathBuf, images: usize) -> PathBuf {
        let names: Vec<String> = (0..images).map(|i| format!("{i}.zarr")).collect();
        let well = path.join("A/1");
        std::fs::create_dir_all(&well).unwrap();
        for name in &names {
            let spec = ZarrImageSpec::new("field", [1, 1, 1, 4, 5], DType::U8);
            let mut writer = ZarrWriter::create(&well.join(name), spec).unwrap();
            writer.write(0, [0, 0, 0], &Samples::U8(vec![1; 20])).unwrap();
            writer.finish().unwrap().publish(Overwrite::Refuse).unwrap();
        }
        let group = |folder: &Path, ome: Value| {
            let json = json!({"zarr_format": 3, "node_type": "group", "attributes": {"ome": ome}});
            std::fs::write(folder.join("zarr.json"), json.to_string()).unwrap();
        };
        group(&path, json!({"plate": {"wells": [{"path": "A/1"}]}}));
        let images: Vec<Value> = names.iter().map(|name| json!({"path": name})).collect();
        group(&well, json!({"well": {"images": images}}));
        path
    }

    #[test]
    fn each_series_of_a_pair_becomes_a_pair_and_files_of_one_series_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let [image, target] = ["image.zarr", "labels.zarr"].map(|name| plate(folder.path().join(name), 2));
        let single = plate(folder.path().join("single.zarr"), 1);
        let all = all_series(&Pair::new("a", &image, &target)).unwrap();
        let found: Vec<_> = all.iter().map(|p| (p.name.as_str(), p.image.series, p.target.series)).collect();
        assert_eq!(found, [("a", 0, 0), ("a_s1", 1, 1)]);
        let refused = all_series(&Pair::new("a", &image, &single)).unwrap_err().to_string();
        assert!(refused.contains("it has 1 series") && refused.contains("data.series"), "{refused}");
        let choice: SeriesChoice = "A/1/1.zarr".parse().unwrap();
        let one = |image: &ImageRef| choice.index_or_only(&image.path, &options(image));
        let pair = with_series(Pair::new("a", &image, &single), one).unwrap();
        assert_eq!((pair.image.series, pair.target.series), (1, 0));
    }

    #[test]
    fn labels_that_were_found_in_a_target_are_kept_unless_others_are_chosen_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target.zarr");
        let spec = |name: &str| ZarrImageSpec::new(name, [1, 1, 1, 4, 5], DType::U8);
        let mut writer = ZarrWriter::create(&target, spec("maps")).unwrap();
        let labels = ["cells", "objects"].map(|name| writer.add_labels(spec(name)).unwrap());
        for image in [0].into_iter().chain(labels) {
            writer.write(image, [0; 3], &Samples::U8(vec![1; 20])).unwrap();
        }
        writer.finish().unwrap().publish(Overwrite::Refuse).unwrap();
        let pair = |image: &Path| {
            let mut pair = Pair::new("a", image, &target);
            pair.target.series = 2;
            pair
        };
        let [single, several] = [1, 2].map(|images| plate(folder.path().join(format!("{images}.zarr")), images));
        let series = |image: &Path, choice: &str| -> Vec<(usize, usize)> {
            let pairs = expand_pair(pair(image), &choice.parse().unwrap()).unwrap();
            pairs.iter().map(|pair| (pair.image.series, pair.target.series)).collect()
        };
        for choice in ["all", "1", "maps"] {
            assert_eq!(series(&single, choice), [(0, 2)], "{choice}");
        }
        for choice in ["1", "A/1/1.zarr"] {
            assert_eq!(series(&several, choice), [(1, 2)], "{choice}");
        }
        assert_eq!(series(&single, "labels/cells"), [(0, 1)]);
        let refused = expand_pair(pair(&several), &SeriesChoice::All).unwrap_err().to_string();
        assert!(refused.contains("it has 1 series"), "{refused}");
    }
}
