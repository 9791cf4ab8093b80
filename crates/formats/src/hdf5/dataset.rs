//! Datasets with numbers along two or more axes, as ilastik, Fiji and h5py write them: each is a series.

use super::{
    check_names, check_series,
    file::{Attributes, File, MAX_TEXT_CHARS, Member},
    pixels::{Image, ImageParts, Places, Stored, extents},
    samples::type_of,
};
use crate::{
    error::{Fault, Remedy},
    file_format::FileFormat,
    limits::Limits,
    meta::positive,
    npy,
    opening::OpenOptions,
    reader::{Opened, check_shape},
};
use cytoscope_volume::{Axis, VoxelSize};
use hdf5_reader::{Dataset, group::Group};
use serde_json::Value;
use std::{collections::HashSet, path::Path};

/// Deepest nesting of groups.
const MAX_DEPTH: usize = 32;
/// Largest number of groups and datasets that are left out because they cannot be read.
const MAX_UNREAD: usize = 1024;
/// Attributes that name the axes: those of ilastik (JSON), and of HDF5's dimension scales.
const AXIS_TAGS: &str = "axistags";
const LABELS: &str = "DIMENSION_LABELS";
/// Attribute with the voxel size along Z, Y, X in µm, of Fiji's HDF5 plugin and ilastik.
const ELEMENT_SIZE: &str = "element_size_um";

/// Opens one dataset of a file.
pub(super) fn open(file: File, path: &Path, options: &OpenOptions) -> Result<Opened, Fault> {
    let limits = &options.limits;
    let listing = find(&file, limits)?;
    let note = listing.note();
    let found = listing.found;
    if found.is_empty() {
        if let Some((_, fault)) = listing.unread.into_iter().next() {
            return Err(fault);
        }
        let next_step = "save it as a dataset of integers or floats with the axes Z, Y, X, or as OME-TIFF";
        return Err(Fault::unsupported("the HDF5 file has no dataset with numbers along two axes or more", next_step));
    }
    check_series(options, found.len(), "dataset")?;
    let names: Vec<String> = found.iter().map(|found| found.path.trim_start_matches('/').to_owned()).collect();
    check_names(&names, limits)?;
    let Some(chosen) = found.get(options.series) else { return Err(Fault::malformed("the file has no dataset")) };
    let Some(chosen_dataset) = file.dataset(&chosen.path)? else {
        return Err(Fault::malformed(format!("the file has no dataset {:?}", chosen.path)));
    };
    let attributes = file.dataset_attributes(&chosen_dataset.dataset)?;
    let rank = chosen_dataset.dataset.shape().len();
    let (named, voxel_size_um) = (named_axes(&attributes, rank), voxel_size(&attributes));
    drop(attributes);
    let stored = Stored::new(&file, chosen_dataset, limits)?;
    let axes = match (&named, &options.axes) {
        (NamedAxes::Image(named), None) => named.clone(),
        (_, axes) => npy::array_axes(&stored.shape, axes.as_ref())?,
    };
    let letters: String = axes.iter().map(|axis| axis.letter()).collect();
    if !(axes.contains(&Axis::Y) && axes.contains(&Axis::X)) {
        let next_step = "the axes Y and X are needed, with any of T, C, Z, S";
        return Err(Fault::unsupported(format!("its axes are {letters}"), next_step));
    }
    let canonical: Vec<usize> =
        axes.iter().filter_map(|axis| Axis::CANONICAL.iter().position(|known| known == axis)).collect();
    let mut shape_full = [1; 6];
    for (axis, extent) in canonical.iter().zip(&stored.shape) {
        if let Some(place) = shape_full.get_mut(*axis) {
            *place = *extent;
        }
    }
    check_shape(&shape_full, stored.dtype, limits)?;
    let (places, dtype) = (Places::One(chosen.path.clone()), stored.dtype);
    let parts = ImageParts { file, places, levels: vec![shape_full], canonical, dtype, paths: vec![path.to_owned()] };
    let image = Image::new(parts, &stored, limits);
    let mut opened = Opened::new(FileFormat::Hdf5, shape_full, dtype, Box::new(image));
    opened.voxel_size_um = voxel_size_um;
    opened.compression = stored.compression;
    opened.byte_order = stored.order;
    opened.series_count = names.len();
    opened.series_names = names;
    opened.not_applied.extend(note);
    if options.axes.is_none() {
        opened.not_applied.extend(named.note(&letters, &shape_full));
    }
    // The given axes are those of the dataset.
    opened.with_options(&OpenOptions { axes: None, ..options.clone() })
}

/// A dataset that may be an image.
struct Found {
    path: String,
    /// Number of axes longer than 1.
    axes: usize,
}

/// What the groups of a file contain.
#[derive(Default)]
struct Listing {
    /// The datasets with numbers along two or more axes: first those along three or more, each in the order of their paths.
    found: Vec<Found>,
    /// Paths of what cannot be read, and why.
    unread: Vec<(String, Fault)>,
}

impl Listing {
    /// Returns what was read. Something that is damaged or not supported is left out of the list.
    fn read<T>(&mut self, path: &str, result: Result<T, Fault>) -> Result<Option<T>, Fault> {
        match result {
            Ok(found) => Ok(Some(found)),
            Err(fault @ (Fault::Malformed(..) | Fault::Unsupported(..))) if self.unread.len() < MAX_UNREAD => {
                self.unread.push((path.to_owned(), fault));
                Ok(None)
            }
            Err(fault) => Err(fault),
        }
    }

    /// A note on what cannot be read.
    fn note(&self) -> Option<String> {
        let (path, Fault::Malformed(problem, _) | Fault::Unsupported(problem, _)) = self.unread.first()? else {
            return None;
        };
        let path: String = path.trim_start_matches('/').chars().take(MAX_TEXT_CHARS).collect();
        let others = match self.unread.len() - 1 {
            0 => String::new(),
            count => format!(" (and {count} more)"),
        };
        Some(format!("{path:?}{others} cannot be read, and is not in the list of series: {problem}"))
    }
}

/// Looks for the datasets in all groups of a file.
fn find(file: &File, limits: &Limits) -> Result<Listing, Fault> {
    let (mut all, mut path_bytes) = (Listing::default(), 0u64);
    let root = file.root()?;
    // Addresses are those in a linked file, or else in the file itself.
    let mut seen: HashSet<(Option<String>, u64)> = HashSet::from([(None, root.address())]);
    let mut next: Vec<(Group, Option<String>, String, usize)> = vec![(root, None, String::new(), 0)];
    while let Some((group, inside, path, depth)) = next.pop() {
        for name in all.read(&path, file.names(&group))?.unwrap_or_default() {
            let path = format!("{path}/{name}");
            path_bytes = path_bytes.saturating_add(path.len() as u64);
            if path_bytes > limits.max_metadata_bytes {
                let (what, limit) = ("the size of the names of its images", limits.max_metadata_bytes);
                return Err(Fault::over(what, path_bytes, "max_metadata_bytes", limit, Remedy::Split));
            }
            let Some((member, linked)) = all.read(&path, file.member(&group, &name))?.flatten() else { continue };
            let inside = linked.or_else(|| inside.clone());
            match member {
                Member::Group(inner) => {
                    if depth < MAX_DEPTH && seen.insert((inside.clone(), inner.address())) {
                        next.push((inner, inside, path, depth + 1));
                    }
                }
                Member::Dataset(dataset) => {
                    let axes = axes_of_image(&dataset);
                    if axes >= 2 && seen.insert((inside, dataset.address())) {
                        all.found.push(Found { path, axes });
                    }
                }
            }
            let (count, limit) = ((seen.len() + all.unread.len()) as u64, limits.max_pages);
            if count > limit {
                return Err(Fault::over("the number of groups and datasets", count, "max_pages", limit, Remedy::Split));
            }
        }
    }
    all.found.sort_by(|a, b| (a.axes < 3).cmp(&(b.axes < 3)).then_with(|| a.path.cmp(&b.path)));
    Ok(all)
}

/// The number of axes longer than 1 of a dataset of numbers; 0 if it has no samples, or others.
fn axes_of_image(dataset: &Dataset) -> usize {
    let is_filled = !dataset.shape().contains(&0) && extents(dataset.shape()).is_ok();
    if is_filled && type_of(dataset.dtype()).is_some() { dataset.shape().iter().filter(|n| **n > 1).count() } else { 0 }
}

/// The axes that the attributes of a dataset name.
#[derive(Debug, PartialEq)]
enum NamedAxes {
    /// Those of an image, each once.
    Image(Vec<Axis>),
    /// Others, which are not used: the attribute, and the names as text.
    Unfit(&'static str, String),
    /// No names.
    Absent,
}

impl NamedAxes {
    /// Returns the note that the axes were chosen by their number, as `letters`; `None` if they are the named ones.
    fn note(&self, letters: &str, shape_full: &[usize; 6]) -> Option<String> {
        match self {
            Self::Image(_) => None,
            Self::Unfit(attribute, names) => Some(format!(
                "the axes that the dataset names ({attribute}: {names:?}) are not those of an image of its shape: they are \
                 read as {letters}"
            )),
            Self::Absent => {
                let guess = || format!("the dataset does not name its axes: they are read as {letters}");
                Some(npy::color_axis_note(shape_full).unwrap_or_else(guess))
            }
        }
    }
}

/// The axes that the attributes of a dataset with `rank` axes name.
fn named_axes(attributes: &Attributes<'_>, rank: usize) -> NamedAxes {
    let tags = attributes.long_text(AXIS_TAGS).map(|text| tagged(&text).unwrap_or_else(|| vec![text]));
    axes_of_names(tags, attributes.list(LABELS), rank)
}

/// The axes of an image with `rank` axes that the tags of ilastik name, or else the labels of HDF5's dimension scales.
fn axes_of_names(tags: Option<Vec<String>>, labels: Option<Vec<String>>, rank: usize) -> NamedAxes {
    // A library that labels one axis leaves the labels of the others empty.
    let labels = labels.filter(|labels| labels.iter().any(|label| !label.is_empty()));
    let mut unfit = NamedAxes::Absent;
    for (attribute, names) in [(AXIS_TAGS, tags), (LABELS, labels)] {
        let Some(names) = names else { continue };
        match image_axes(&names, rank) {
            Some(axes) => return NamedAxes::Image(axes),
            None if unfit == NamedAxes::Absent => {
                unfit = NamedAxes::Unfit(attribute, names.join(" ").chars().take(MAX_TEXT_CHARS).collect());
            }
            None => {}
        }
    }
    unfit
}

/// The axes of these names; `None` if they are not those of an image with `rank` axes, each once.
fn image_axes(names: &[String], rank: usize) -> Option<Vec<Axis>> {
    let axes: Vec<Axis> = names.iter().map(|name| axis(name)).collect::<Option<_>>()?;
    let is_unique = axes.iter().enumerate().all(|(i, axis)| !axes.iter().skip(i + 1).any(|other| other == axis));
    let is_image = axes.contains(&Axis::Y) && axes.contains(&Axis::X);
    Some(axes).filter(|axes| axes.len() == rank && is_unique && is_image)
}

/// The keys of the axes of ilastik, in the order of the dataset.
fn tagged(text: &str) -> Option<Vec<String>> {
    let tags: Value = serde_json::from_str(text).ok()?;
    let key = |axis: &Value| Some(axis.get("key")?.as_str()?.to_owned());
    tags.get("axes")?.as_array()?.iter().map(key).collect()
}

/// The axis of a name: a letter or a word.
fn axis(name: &str) -> Option<Axis> {
    let name = name.trim();
    let mut letters = name.chars();
    match (letters.next(), letters.next()) {
        (Some(letter), None) => Axis::from_letter(letter),
        _ if name.eq_ignore_ascii_case("time") => Some(Axis::T),
        _ if name.eq_ignore_ascii_case("channel") => Some(Axis::C),
        _ => None,
    }
}

/// The voxel size that a dataset states along Z, Y, X, or along Y, X.
fn voxel_size(attributes: &Attributes<'_>) -> VoxelSize {
    match attributes.numbers(ELEMENT_SIZE).as_deref() {
        Some(&[z, y, x]) => VoxelSize { z: positive(z), y: positive(y), x: positive(x) },
        Some(&[y, x]) => VoxelSize { z: None, y: positive(y), x: positive(x) },
        _ => VoxelSize::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_says_whether_a_dataset_names_no_axes_or_others_than_those_of_its_image() {
        let names = |letters: &str| Some(letters.chars().map(String::from).collect::<Vec<String>>());
        let zyx = || NamedAxes::Image(vec![Axis::Z, Axis::Y, Axis::X]);
        let shape = [1, 4, 1, 5, 6, 1];
        assert_eq!(axes_of_names(names("zyx"), None, 3), zyx());
        assert_eq!(zyx().note("ZYX", &shape), None);
        // Tags of another number of axes do not hide labels that fit.
        assert_eq!(axes_of_names(names("zyxc"), names("zyx"), 3), zyx());
        for (tags, labels, shown) in [
            (names("zyxc"), None, "axistags: \"z y x c\""),
            (names("yx?"), names("zyy"), "axistags: \"y x ?\""),
            (Some(vec!["{}".to_owned()]), None, "axistags: \"{}\""),
            (None, names("zzx"), "DIMENSION_LABELS: \"z z x\""),
        ] {
            let note = axes_of_names(tags, labels, 3).note("ZYX", &shape).unwrap_or_default();
            assert!(note.contains(shown) && note.ends_with("read as ZYX"), "{note}");
        }
        for labels in [None, Some(vec![String::new(); 3])] {
            let note = axes_of_names(None, labels, 3).note("ZYX", &shape).unwrap_or_default();
            assert_eq!(note, "the dataset does not name its axes: they are read as ZYX");
        }
    }
}
