//! nnU-Net's layout: `imagesTr/CASE_0000.tif`, `labelsTr/CASE.tif`, `dataset.json`, and `CASE.json` with the spacing.

use super::names::{file_name, is_image, read_text, stem};
use super::{FindOptions, Found, Listing, SpacingOrder};
use crate::dataset::{Convention, Pair, Part, Problem, Task};
use crate::error::SamplesError;
use cytoscope_volume::VoxelSize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A case's name and the number of its channel.
fn case_and_channel(stem: &str) -> Option<(&str, usize)> {
    let (case, number) = stem.rsplit_once('_')?;
    let digits = number.len() == 4 && number.bytes().all(|b| b.is_ascii_digit());
    Some((case, number.parse().ok().filter(|_| digits)?))
}

fn json(path: &Path) -> Result<Value, SamplesError> {
    serde_json::from_slice(&read_text(path)?)
        .map_err(|e| SamplesError::data(path, format!("it is no JSON: {e}"), "correct or remove it"))
}

/// Reads a dataset folder; the test part only where it has labels.
pub(crate) fn read(folder: &Path, task: Task, options: &FindOptions, found: &mut Found) -> Result<(), SamplesError> {
    let listing = Listing::of(folder, found)?;
    let mut ending = None;
    match listing.file("dataset.json") {
        Some(path) => {
            let about = json(path)?;
            ending = about.get("file_ending").and_then(Value::as_str).map(str::to_owned);
            let labels = about.get("labels").and_then(Value::as_object);
            found.ignore_label = labels.and_then(|l| l.get("ignore")).and_then(Value::as_i64);
            found.labels_are_classes = labels.is_some();
        }
        None => {
            let met = "there is no dataset.json, which says what the labels mean";
            found.problems.push(Problem::warning(folder, met, "add it, where a label means \"ignore\""));
        }
    }
    found.convention(Convention::NnUnet);
    let mut spacing_seen = false;
    for (images, labels, part) in [("imagesTr", "labelsTr", None), ("imagesTs", "labelsTs", Some(Part::Test))] {
        let Some(image_folder) = listing.folder(images) else { continue };
        let Some(label_folder) = listing.folder(labels) else {
            if part.is_none() {
                let next = "put the labels there, named like the images without _0000";
                return Err(SamplesError::data(folder, "there is imagesTr and no labelsTr", next));
            }
            continue;
        };
        let image_files = Listing::of(image_folder, found)?;
        let label_files = Listing::of(label_folder, found)?;
        if let Some(ending) = ending.as_deref().filter(|e| !is_image(Path::new(&format!("x{e}")))) {
            let next = "convert images and labels to .tif, and say so in dataset.json as file_ending";
            let met = format!("its files end in {ending}, which is not read");
            return Err(SamplesError::data(folder, met, next));
        }
        let mut targets: BTreeMap<String, PathBuf> =
            label_files.files.iter().filter(|f| is_image(f)).map(|f| (stem(f), f.clone())).collect();
        let mut cases: BTreeMap<String, BTreeMap<usize, PathBuf>> = BTreeMap::new();
        for file in image_files.files.iter().filter(|f| is_image(f)) {
            let stem = stem(file);
            let (case, channel) = case_and_channel(&stem).unwrap_or((&stem, 0));
            cases.entry(case.to_owned()).or_default().insert(channel, file.clone());
        }
        for (case, channels) in cases {
            let wanted = options.image_channel.unwrap_or(0);
            let Some(image) = channels.get(&wanted) else {
                let file = channels.values().next().cloned().unwrap_or_else(|| image_folder.join(&case));
                let met = format!("case {case} has no channel {wanted} (no file {case}_{wanted:04})");
                let next = "give one that every case has as data.image_channel in the settings";
                found.problems.push(Problem::warning(&file, met, next));
                continue;
            };
            let Some(target) = targets.remove(&case) else {
                let next = format!("put {case} into {}", label_folder.display());
                found.problems.push(Problem::warning(image, "this image has no labels", next));
                continue;
            };
            if channels.len() > 1 && options.image_channel.is_none() {
                let met = format!("case {case} has {} channels, and the first is taken", channels.len());
                let next = "give data.image_channel in the settings, the one to learn from";
                found.problems.push(Problem::warning(image, met, next));
            }
            let mut pair = Pair { part, ..Pair::new(case.clone(), image, target) };
            // The number of the file is the channel; inside the file there is one.
            pair.image.channel = options.image_channel.map(|_| 0);
            let beside = [format!("{case}.json"), file_name(image).replace(&extension_of(image), ".json")];
            if let Some(path) = beside.iter().find_map(|n| image_files.file(n)) {
                pair.voxel_um = spacing(path, options, found);
                spacing_seen |= pair.voxel_um.is_some();
            }
            found.pairs.push(pair);
        }
        for file in targets.into_values() {
            let next = format!("put its image into {} with _0000 after its name", image_folder.display());
            found.problems.push(Problem::warning(&file, "these labels have no image", next));
        }
    }
    if spacing_seen && options.spacing_order.is_none() {
        let met = "the spacing beside the images is taken as Z, Y, X; some writers put X first";
        let next = "check the voxel sizes, and give data.spacing_order in the settings: \"zyx\", or \"xyz\" if they are \
                    turned";
        found.problems.push(Problem::warning(folder, met, next));
    }
    if task == Task::LabelFree {
        let met = "nnU-Net's layout holds label images; they are taken as intensities here";
        found.problems.push(Problem::warning(folder, met, "choose segmentation, or another folder"));
    }
    Ok(())
}

fn extension_of(path: &Path) -> String {
    let name = file_name(path);
    name.get(stem(path).len()..).unwrap_or_default().to_owned()
}

/// The voxel size Z, Y, X in µm that a file beside an image says.
fn spacing(path: &Path, options: &FindOptions, found: &mut Found) -> Option<[f64; 3]> {
    let numbers = json(path).ok().and_then(|v| {
        let list = v.get("spacing")?.as_array()?.iter().map(Value::as_f64).collect::<Option<Vec<_>>>()?;
        <[f64; 3]>::try_from(list).ok()
    });
    let Some(mut numbers) = numbers else {
        let met = "it does not hold \"spacing\": three positive numbers";
        found.problems.push(Problem::warning(path, met, "write the distances of voxels along Z, Y, X"));
        return None;
    };
    if options.spacing_order == Some(SpacingOrder::Xyz) {
        numbers.reverse();
    }
    let [z, y, x] = numbers;
    if let Err(implausible) = VoxelSize::new_um(z, y, x).check() {
        let next = "write the distances of voxels along Z, Y, X in µm";
        found.problems.push(Problem::warning(path, implausible.to_string(), next));
        return None;
    }
    Some(numbers)
}
