//! Search of a folder: detection of its layout, and search of its subfolders.

use super::names::{converter, file_name, is_image, stem};
use super::{FindOptions, Listing, SearchResults, labels, nnunet, suffixes, table};
use crate::dataset::{Convention, Part, Problem, TrainingTask};
use crate::error::TrainingDataError;
use crate::limits::MAX_DEPTH;
use cytoscope_storage::read::open_regular;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Names of folders with images and with targets, for segmentation.
const SEGMENTATION: [(&str, &str); 14] = [
    ("images", "masks"),
    ("images", "labels"),
    ("raw", "gt"),
    ("raw", "labels"),
    ("raw", "masks"),
    ("raw", "seg"),
    ("input", "target"),
    ("inputs", "targets"),
    ("image", "mask"),
    ("image", "label"),
    ("img", "mask"),
    ("imgs", "masks"),
    ("images", "gt"),
    ("images", "annotations"),
];
/// Like [`SEGMENTATION`], for label-free prediction.
const LABEL_FREE: [(&str, &str); 9] = [
    ("brightfield", "signal"),
    ("bf", "fluo"),
    ("bf", "fluorescence"),
    ("brightfield", "fluorescence"),
    ("phase", "fluor"),
    ("phase", "fluorescence"),
    ("input", "target"),
    ("inputs", "targets"),
    ("raw", "gt"),
];

/// Searches a folder, or its subfolders if it contains no data itself.
pub(crate) fn search(
    folder: &Path,
    task: TrainingTask,
    options: &FindOptions,
    found: &mut SearchResults,
) -> Result<(), TrainingDataError> {
    search_below(folder, task, options, None, 0, found)
}

fn search_below(
    folder: &Path,
    task: TrainingTask,
    options: &FindOptions,
    part: Option<Part>,
    depth: usize,
    found: &mut SearchResults,
) -> Result<(), TrainingDataError> {
    let listing = Listing::of(folder, found)?;
    if options.same_file {
        let before = found.pairs.len();
        listing.files.iter().filter(|f| is_image(f)).for_each(|f| found.add_channels(f, part));
        if found.pairs.len() > before {
            return Ok(());
        }
    } else {
        if listing.folder("imagesTr").is_some() {
            return nnunet::read(folder, task, options, found);
        }
        if table::search(&listing, task, options, found)? {
            return Ok(());
        }
        let mut any = two_folders(&listing, task, options, part, found)?;
        let problems = found.problems.len();
        if suffixes::search(&listing, task, options, part, found) > 0 {
            any = true;
        } else if any {
            // Other files beside the two folders are not training data.
            found.problems.truncate(problems);
        }
        for file in &listing.files {
            if let Some(program) = converter(file) {
                let problem = "this image format is not supported";
                found.problems.push(Problem::warning(file, problem, format!("convert it to TIFF with {program}")));
            }
        }
        if any {
            return Ok(());
        }
    }
    if depth >= MAX_DEPTH {
        return Ok(());
    }
    for sub in listing.folders.iter().filter(|sub| !is_model_folder(sub)) {
        let name = file_name(sub);
        search_below(sub, task, options, Part::from_word(&name).or(part), depth + 1, found)?;
    }
    Ok(())
}

/// Whether a folder is a model package, or the state of an unfinished training run: the test tensors and pictures in it are
/// not training data.
fn is_model_folder(folder: &Path) -> bool {
    let is_model = |name: &str| is_of_no_data_set(&folder.join(name));
    let is_run = || file_name(folder).ends_with(".training") && folder.join("lock").is_file();
    is_model("rdf.yaml") || is_model("bioimageio.yaml") || is_run()
}

/// Bytes of a description of bioimage.io in which its type is searched for.
const MAX_DESCRIPTION_BYTES: u64 = 4 << 20;

/// Whether a file is a description of bioimage.io of anything but a data set. Data sets are described by a file of the same name
/// as models, with another type.
fn is_of_no_data_set(description: &Path) -> bool {
    if !description.is_file() {
        return false;
    }
    let Ok(file) = open_regular(description) else { return true };
    // A line that is not text ends the description: the type comes before it, or is unknown.
    let mut lines = BufReader::new(file.take(MAX_DESCRIPTION_BYTES)).lines().map_while(Result::ok);
    !lines.any(|line| {
        let value = line.strip_prefix("type:").and_then(|value| value.split('#').next());
        value.is_some_and(|value| value.trim().trim_matches(['"', '\'']) == "dataset")
    })
}

/// Adds the pairs of a folder of images and a folder of targets. Returns whether there are such folders.
fn two_folders(
    listing: &Listing,
    task: TrainingTask,
    options: &FindOptions,
    part: Option<Part>,
    found: &mut SearchResults,
) -> Result<bool, TrainingDataError> {
    let chosen = labels::chosen_name(task, options);
    if let Some(name) = chosen
        && let Some((images, targets)) = find_labels_folder(listing, name)?
    {
        let before = found.pairs.len();
        let files = (Listing::of(&images, found)?, Listing::of(&targets, found)?);
        pair_folders((&images, &files.0), (&targets, &files.1), task, part, found)?;
        let files: Vec<PathBuf> = found.pairs.iter().skip(before).map(|pair| pair.target.path.clone()).collect();
        found.named_labels.extend(files);
        return Ok(true);
    }
    let names: &[(&str, &str)] = match task {
        TrainingTask::Segmentation => &SEGMENTATION,
        TrainingTask::LabelFree => &LABEL_FREE,
    };
    let both = names.iter().find_map(|(a, b)| Some((listing.folder(a)?, listing.folder(b)?)));
    let Some((images, targets)) = both else { return Ok(false) };
    let of_images = names.iter().filter(|(a, _)| listing.folder(a) == Some(images));
    if let Some(other) = of_images.filter_map(|(_, b)| listing.folder(b)).find(|folder| *folder != targets) {
        let (images, targets) = (file_name(images), file_name(targets));
        let problem = format!("this folder is not used: the targets of the folder {images} are those in {targets}");
        let next_step = format!("to use this one, move {targets} to another place");
        found.problems.push(Problem::warning(other, problem, next_step));
    }
    let (image_files, target_files) = (Listing::of(images, found)?, Listing::of(targets, found)?);
    let inner = folders_without_images(&image_files, &target_files);
    if task == TrainingTask::Segmentation && !inner.is_empty() {
        labels::report_choice(targets, &inner, chosen, found);
        return Ok(true);
    }
    pair_folders((images, &image_files), (targets, &target_files), task, part, found)?;
    Ok(true)
}

/// Returns the folder of images, and the folder of the label images called `name`: `masks/nuclei`, `nuclei_masks`,
/// `masks_nuclei` or `nuclei`.
fn find_labels_folder(listing: &Listing, name: &str) -> Result<Option<(PathBuf, PathBuf)>, TrainingDataError> {
    for (images, targets) in SEGMENTATION {
        let Some(images) = listing.folder(images) else { continue };
        if let Some(folder) = listing.folder(targets) {
            // The problems of this folder are reported when its pairs are searched.
            let inside = Listing::of(folder, &mut SearchResults::default())?;
            if let Some(inner) = inside.folder(name) {
                return Ok(Some((images.clone(), inner.clone())));
            }
        }
        let beside = [format!("{name}_{targets}"), format!("{targets}_{name}"), name.to_owned()];
        let folder = beside.iter().find_map(|name| listing.folder(name)).filter(|folder| *folder != images);
        if let Some(folder) = folder {
            return Ok(Some((images.clone(), folder.clone())));
        }
    }
    Ok(None)
}

/// Returns the names of the folders in a folder of targets that contains no image itself, unless the folder of images
/// has folders of the same names.
fn folders_without_images(image_files: &Listing, target_files: &Listing) -> Vec<String> {
    let names: Vec<String> = target_files.folders.iter().map(|folder| file_name(folder)).collect();
    let is_choice = !target_files.files.iter().any(|file| is_image(file))
        && image_files.files.iter().any(|file| is_image(file))
        && names.iter().all(|name| image_files.folder(name).is_none());
    if is_choice { names } else { Vec::new() }
}

/// Adds the pairs of a folder of images and a folder of targets, each with its listing, and of folders of the same name
/// in them.
fn pair_folders(
    (images, image_files): (&Path, &Listing),
    (targets, target_files): (&Path, &Listing),
    task: TrainingTask,
    part: Option<Part>,
    found: &mut SearchResults,
) -> Result<(), TrainingDataError> {
    found.add_convention(Convention::TwoFolders);
    pair_lists(&image_files.files, &target_files.files, (images, targets), task, part, found);
    // images/train and masks/train
    for folder in &image_files.folders {
        let name = file_name(folder);
        if let Some(other) = target_files.folder(&name) {
            let (a, b) = (Listing::of(folder, found)?, Listing::of(other, found)?);
            pair_lists(&a.files, &b.files, (folder, other), task, Part::from_word(&name).or(part), found);
        }
    }
    Ok(())
}

/// Inserts a target under a key; a target that is replaced becomes a problem.
pub(super) fn insert_target(
    targets: &mut BTreeMap<String, PathBuf>,
    key: String,
    file: PathBuf,
    found: &mut SearchResults,
) {
    if let Some(other) = targets.insert(key, file) {
        report_same_name(&other, "target", found);
    }
}

/// Adds the problem that another file of this kind has the same name.
pub(super) fn report_same_name(unused: &Path, kind: &str, found: &mut SearchResults) {
    let problem = format!("{} has the same name as another {kind} and is not used", file_name(unused));
    found.problems.push(Problem::warning(unused, problem, "keep one of them"));
}

/// Pairs files with the same name, in the same case if there is such a target, then those whose names differ only by the
/// suffixes of images and targets.
fn pair_lists(
    images: &[PathBuf],
    targets: &[PathBuf],
    (image_folder, target_folder): (&Path, &Path),
    task: TrainingTask,
    part: Option<Part>,
    found: &mut SearchResults,
) {
    let mut in_same_case: BTreeMap<String, PathBuf> = BTreeMap::new();
    for file in targets {
        if is_image(file) {
            insert_target(&mut in_same_case, stem(file), file.clone(), found);
        } else {
            report_unsupported(file, found);
        }
    }
    let mut remaining_images = Vec::new();
    for file in images {
        if !is_image(file) {
            report_unsupported(file, found);
        } else if let Some(target) = in_same_case.remove(&stem(file)) {
            found.add(&stem(file), file, &target, part, 1.0);
        } else {
            remaining_images.push(file.clone());
        }
    }
    let mut by_stem: BTreeMap<String, PathBuf> = BTreeMap::new();
    for (name, file) in in_same_case {
        insert_target(&mut by_stem, name.to_lowercase(), file, found);
    }
    let mut unpaired_images = Vec::new();
    for file in remaining_images {
        match by_stem.remove(&stem(&file).to_lowercase()) {
            Some(target) => found.add(&stem(&file), &file, &target, part, 1.0),
            None => unpaired_images.push(file),
        }
    }
    let mut by_common: BTreeMap<String, PathBuf> = BTreeMap::new();
    for (key, file) in std::mem::take(&mut by_stem) {
        let common = suffixes::common_stem(&key, task).to_owned();
        match by_common.entry(common) {
            Entry::Vacant(place) => {
                place.insert(file);
            }
            Entry::Occupied(_) => {
                by_stem.insert(key, file);
            }
        }
    }
    for file in unpaired_images {
        let stem = stem(&file);
        match by_common.remove(suffixes::common_stem(&stem, task).to_lowercase().as_str()) {
            Some(target) => found.add(suffixes::common_stem(&stem, task), &file, &target, part, 1.0),
            None => {
                let next_step = format!("put a file of the same name into {}", target_folder.display());
                found.problems.push(Problem::warning(&file, "this image has no target", next_step));
            }
        }
    }
    for file in by_stem.into_values().chain(by_common.into_values()) {
        let next_step = format!("put a file of the same name into {}", image_folder.display());
        found.problems.push(Problem::warning(&file, "this target has no image", next_step));
    }
}

/// Adds a problem if the file is an image of an unsupported format.
fn report_unsupported(file: &Path, found: &mut SearchResults) {
    if let Some(program) = converter(file) {
        let next_step = format!("convert it to TIFF with {program}");
        found.problems.push(Problem::warning(file, "this image format is not supported", next_step));
    }
}
