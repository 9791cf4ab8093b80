//! The metadata of OME-Zarr: which arrays are the levels of an image, their axes, units and scale, and the channels.

use super::folder::{Folder, Group, LABELS, is_label_path, join};
use super::plain;
use super::wells::images_of_wells;
use crate::{
    channels::generic_name,
    error::{Fault, Remedy},
    meta::{Channel, ignore_entry, micrometers_per, positive, seconds_per, visible_color, without_unit_note},
};
use cytoscope_volume::{Axes, Axis, VoxelSize};
use serde_json::Value;

/// Largest number of images of one folder: multiscales, label images and the images of a series. A plate of 1536 wells with 25
/// fields each has 38 400.
const MAX_IMAGES: usize = 1 << 16;
/// Longest path of an image inside the folder in bytes. A small zip could otherwise state many images in a group with a long path.
const MAX_PATH_BYTES: usize = 1024;
/// Largest number of levels of an image.
const MAX_LEVELS: usize = 64;
/// Largest number of channels whose names are read.
const MAX_CHANNELS: usize = 4096;

/// An image of the folder: its group, and the index in the group's list of multiscales.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageRef {
    /// Path of the group inside the folder; empty for the folder's own group.
    pub group: String,
    /// Index in the list `multiscales` of the group; `None` for an array without metadata of OME-Zarr.
    pub multiscale: Option<usize>,
    /// Path of the group, or for images of the folder's own group the name of the multiscale.
    pub name: String,
}

/// The description of an image.
#[derive(Debug)]
pub(crate) struct Multiscale {
    /// Axes of the arrays, outermost first.
    pub axes: Vec<Axis>,
    /// Paths of the arrays inside the folder, full resolution first.
    pub levels: Vec<String>,
    /// Distance between voxel centers of the full resolution along Z, Y, X in µm.
    pub voxel_size_um: VoxelSize,
    /// Position of the center of the first voxel of the full resolution along Z, Y, X in µm.
    pub origin_um: [f64; 3],
    /// Time between time points in seconds.
    pub time_interval_secs: Option<f64>,
    /// Whether it is a label image.
    pub is_labels: bool,
    /// Names and colors in the order of the C axis.
    pub channels: Vec<Channel>,
    /// Values shown as black and white, for an image of one channel.
    pub display_range: Option<(f64, f64)>,
    /// Transformations that are not applied, as sentences.
    pub not_applied: Vec<String>,
}

/// The entries of a list; none if there is no list.
fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn check_count(what: &str, count: usize, limit_name: &str, limit: usize, remedy: Remedy) -> Result<(), Fault> {
    if count > limit {
        return Err(Fault::over(what, count as u64, limit_name, limit as u64, remedy));
    }
    Ok(())
}

/// Refuses a folder with too many images.
pub(super) fn check_image_count(count: usize) -> Result<(), Fault> {
    check_count("the number of images", count, "MAX_IMAGES", MAX_IMAGES, Remedy::OpenPart)
}

/// Lists the images of a folder: its own multiscales first, then those of wells or series, then its label images, and those of
/// series.
pub(crate) fn images(folder: &Folder, root: &Group) -> Result<Vec<ImageRef>, Fault> {
    let mut images = Vec::new();
    let multiscales = list(root.ome("multiscales"));
    check_image_count(multiscales.len())?;
    let name_of = |node: &Value| node.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let named = multiscales.iter().map(name_of).enumerate();
    images.extend(named.map(|(multiscale, name)| ImageRef {
        group: String::new(),
        multiscale: Some(multiscale),
        name,
    }));
    let (mut groups, mut labels_of_series) = (well_images(root, "")?, Vec::new());
    if let Some(plate) = root.ome("plate") {
        // With a layout of bioformats2raw, its list of series has the same images.
        groups.extend(plate_images(folder, plate)?);
    } else if root.ome("bioformats2raw.layout").is_some() {
        let listed = folder.group("OME")?.unwrap_or_default();
        let names = list(listed.ome("series"));
        groups.extend(paths("its series", names.iter().map(Value::as_str))?.into_iter().map(str::to_owned));
        while names.is_empty() && groups.len() <= MAX_IMAGES && folder.group(&groups.len().to_string())?.is_some() {
            groups.push(groups.len().to_string());
        }
        check_image_count(groups.len())?;
        labels_of_series = label_images_of(folder, &groups)?;
    }
    if images.is_empty() {
        // The folder `labels` of an image.
        groups.extend(label_images(root, "")?);
    }
    if let Some(labels) = folder.group(LABELS)? {
        groups.extend(label_images(&labels, LABELS)?);
    }
    groups.extend(labels_of_series);
    check_image_count(groups.len())?;
    images.extend(groups.into_iter().map(|group| ImageRef { name: group.clone(), group, multiscale: Some(0) }));
    if images.is_empty() && plain::is_plain(folder)? {
        images.push(ImageRef { group: String::new(), multiscale: None, name: String::new() });
    }
    if images.is_empty() {
        return Err(Fault::unsupported(
            "this Zarr folder is not an OME-Zarr image: it has no multiscales",
            "choose the folder of an image, whose zarr.json or .zattrs has the key multiscales",
        ));
    }
    Ok(images)
}

/// The paths of the images of these names in a group.
fn images_in(path: &str, names: &[&str]) -> Result<Vec<String>, Fault> {
    check_image_count(names.len())?;
    let longest = names.iter().map(|name| path.len().saturating_add(name.len())).max().unwrap_or(0);
    let what = "the length of the path of an image in bytes";
    check_count(what, longest, "MAX_PATH_BYTES", MAX_PATH_BYTES, Remedy::OpenPart)?;
    Ok(names.iter().map(|name| join(path, name)).collect())
}

/// The paths of the label images that a group lists; `path` is that of the group.
fn label_images(labels: &Group, path: &str) -> Result<Vec<String>, Fault> {
    let entries = list(labels.ome("labels")).iter();
    let names: Vec<&str> = entries
        .filter_map(|name| {
            name.as_str().or_else(|| ignore_entry("labels", &name.to_string(), "the name of a label image"))
        })
        .collect();
    images_in(path, &names)
}

/// The paths of the label images of these images.
fn label_images_of(folder: &Folder, images: &[String]) -> Result<Vec<String>, Fault> {
    let mut found = Vec::new();
    for image in images {
        let path = join(image, LABELS);
        if let Some(labels) = folder.group(&path)? {
            found.extend(label_images(&labels, &path)?);
            check_image_count(found.len())?;
        }
    }
    Ok(found)
}

/// The paths that the entries of a list state. Each entry must state one, because images are chosen by their number.
fn paths<'v>(what: &str, entries: impl Iterator<Item = Option<&'v str>>) -> Result<Vec<&'v str>, Fault> {
    let stated: Option<Vec<&str>> = entries.collect();
    stated.ok_or_else(|| Fault::malformed(format!("an entry of {what} states no path")))
}

/// The paths of a well's images.
pub(super) fn well_images(well: &Group, path: &str) -> Result<Vec<String>, Fault> {
    let images = list(well.ome("well").and_then(|well| well.get("images")));
    images_in(path, &paths("the images of its wells", images.iter().map(entry_path))?)
}

/// The path that an entry of a list states.
fn entry_path(entry: &Value) -> Option<&str> {
    entry.get("path")?.as_str()
}

/// The paths of the images of all wells of a plate, well by well. Wells that are not stored are left out.
fn plate_images(folder: &Folder, plate: &Value) -> Result<Vec<String>, Fault> {
    let wells = list(plate.get("wells"));
    check_count("the number of wells", wells.len(), "MAX_IMAGES", MAX_IMAGES, Remedy::OpenPart)?;
    let groups = images_of_wells(folder, &paths("its wells", wells.iter().map(entry_path))?)?;
    if groups.is_empty() {
        return Err(Fault::malformed("this OME-Zarr folder is a plate, but none of its wells has an image"));
    }
    Ok(groups)
}

/// Reads the description of an image of the folder; `axes` replace its own.
pub(crate) fn read(folder: &Folder, image: &ImageRef, axes: Option<&Axes>) -> Result<Multiscale, Fault> {
    let Some(multiscale) = image.multiscale else { return plain::read(folder, axes) };
    let Some(group) = folder.group(&image.group)? else {
        return Err(Fault::malformed(format!("its image {:?} is missing", image.group)));
    };
    let Some(node) = list(group.ome("multiscales")).get(multiscale) else {
        return Err(Fault::malformed(format!("{:?} has no multiscales", image.group)));
    };
    let (own, units): (Vec<Axis>, Vec<Option<String>>) = match (node.get("axes"), axes) {
        (None, Some(axes)) => (axes.iter().collect(), vec![None; axes.len()]),
        (stated, _) => {
            let version = node.get("version").or_else(|| group.ome("version")).and_then(Value::as_str);
            parse_axes(stated, version)?
        }
    };
    let axes: Vec<Axis> = match axes {
        None => own,
        Some(axes) if axes.len() == own.len() => axes.iter().collect(),
        Some(axes) => {
            return Err(Fault::Misused(
                format!("there are {} axes in {axes}, but the arrays have {}", axes.len(), own.len()).into(),
                "give one letter of T, Z, C, Y, X for each axis".into(),
            ));
        }
    };
    if !axes.contains(&Axis::Y) || !axes.contains(&Axis::X) || axes.contains(&Axis::S) {
        let text: String = axes.iter().map(|a| a.letter()).collect();
        let next = "the axes Y and X are needed, with any of T, C, Z";
        return Err(Fault::unsupported(format!("its axes are {text}"), next));
    }
    let datasets = list(node.get("datasets"));
    check_count("the number of levels", datasets.len(), "MAX_LEVELS", MAX_LEVELS, Remedy::CopyAgain)?;
    let path = |dataset: &Value| Some(join(&image.group, entry_path(dataset)?));
    let levels: Option<Vec<String>> = datasets.iter().map(path).collect();
    let Some(levels) = levels.filter(|levels| !levels.is_empty()) else {
        return Err(Fault::malformed("its multiscales have no datasets with a path"));
    };
    let transformations = list(datasets.first().and_then(|d| d.get("coordinateTransformations")));
    let common = list(node.get("coordinateTransformations"));
    let Grid { scale, translation, mut not_applied } =
        compose_transformations(transformations.iter().chain(common), &axes)?;
    let along = |axis: Axis| {
        let i = axes.iter().position(|a| *a == axis)?;
        Some((scale.as_ref()?.get(i).copied()?, units.get(i)?.as_deref()?))
    };
    let position_um = |axis: Axis| {
        let i = axes.iter().position(|a| *a == axis)?;
        let position = translation.get(i)? * um_per(units.get(i)?.as_deref()?)?;
        position.is_finite().then_some(position)
    };
    let um = |axis| along(axis).and_then(|(size, unit)| positive(size * um_per(unit)?));
    let (channels, display_range) = parse_omero(group.ome("omero"));
    let is_labels = group.ome("image-label").is_some() || is_label_path(&image.group);
    // Label images are used together with a stack, which has the note.
    not_applied.extend(scale.as_deref().filter(|_| !is_labels).and_then(|scale| unit_note(scale, &axes, &units)));
    Ok(Multiscale {
        voxel_size_um: VoxelSize { z: um(Axis::Z), y: um(Axis::Y), x: um(Axis::X) },
        origin_um: [Axis::Z, Axis::Y, Axis::X].map(|axis| position_um(axis).unwrap_or(0.0)),
        time_interval_secs: along(Axis::T).and_then(|(size, unit)| positive(size * seconds_per(unit)?)),
        is_labels,
        axes,
        levels,
        channels,
        display_range,
        not_applied,
    })
}

/// Axes with their units; without a list, the five axes of the first versions, 0.1 and 0.2.
fn parse_axes(value: Option<&Value>, version: Option<&str>) -> Result<(Vec<Axis>, Vec<Option<String>>), Fault> {
    let Some(value) = value else {
        return match version {
            None | Some("0.1" | "0.2") => Ok((vec![Axis::T, Axis::C, Axis::Z, Axis::Y, Axis::X], vec![None; 5])),
            Some(version) => {
                let version: String = version.chars().take(20).collect();
                Err(Fault::unsupported(
                    format!("its multiscales, of version {version:?}, have no list of axes"),
                    "open it with the axes of its arrays, such as ZYX, or write it again as OME-Zarr 0.4 or 0.5",
                ))
            }
        };
    };
    let (mut axes, mut units) = (Vec::new(), Vec::new());
    for entry in list(Some(value)) {
        let name = entry.as_str().or_else(|| entry.get("name").and_then(Value::as_str)).unwrap_or_default();
        let mut letters = name.chars();
        let axis = letters.next().and_then(Axis::from_letter).filter(|_| letters.next().is_none());
        match axis {
            Some(axis) if !axes.contains(&axis) => axes.push(axis),
            _ => {
                let next = "the axes t, c, z, y, x are supported, each once";
                return Err(Fault::unsupported(format!("one of its axes is {name:?}"), next));
            }
        }
        units.push(entry.get("unit").and_then(Value::as_str).map(str::to_owned));
    }
    Ok((axes, units))
}

/// Where the samples of an array lie, in the units of its axes.
struct Grid {
    /// The product of all scales, NaN along axes where one of them is not positive; `None` if there is none.
    scale: Option<Vec<f64>>,
    /// Position of the first sample, NaN along axes where a scale is not positive.
    translation: Vec<f64>,
    /// Transformations that are not applied, as sentences.
    not_applied: Vec<String>,
}

/// Largest number of transformations that are named because they are not applied.
const MAX_NAMED: usize = 4;

impl Grid {
    /// States that a transformation of a type is not applied.
    fn leave_out(&mut self, kind: &str, entry: &Value) {
        const SHOWN_CHARS: usize = 40;
        let kind: String = kind.chars().take(SHOWN_CHARS).collect();
        let why = if entry.get("path").is_some() { ", because its numbers are in an array" } else { "" };
        if self.not_applied.len() < MAX_NAMED {
            self.not_applied.push(format!("the transformation {kind:?} is not applied{why}"));
        }
    }

    /// Applies a scale to what the transformations before it have made. Along an axis where it is not positive, voxel size and
    /// position become unknown: two negative factors must not become a positive one, and the voxels of a mirrored axis lie
    /// before the first one.
    fn scale_by(&mut self, factors: &[f64], axes: &[Axis]) {
        for (axis, factor) in axes.iter().zip(factors) {
            if positive(*factor).is_none() && *axis != Axis::C && self.not_applied.len() < MAX_NAMED {
                let letter = axis.letter();
                let note = format!("the scale {factor} along {letter} is not applied, because it is not positive");
                self.not_applied.push(note);
            }
        }
        let factors: Vec<f64> = factors.iter().map(|factor| positive(*factor).unwrap_or(f64::NAN)).collect();
        self.translation.iter_mut().zip(&factors).for_each(|(position, factor)| *position *= factor);
        self.scale = Some(match &self.scale {
            None => factors,
            Some(before) => before.iter().zip(&factors).map(|(a, b)| a * b).collect(),
        });
    }
}

/// Applies transformations, scales and translations, one after the other.
fn compose_transformations<'a>(transformations: impl Iterator<Item = &'a Value>, axes: &[Axis]) -> Result<Grid, Fault> {
    let rank = axes.len();
    let mut grid = Grid { scale: None, translation: vec![0.0; rank], not_applied: Vec::new() };
    for entry in transformations {
        let numbers = |key: &str| -> Option<Vec<f64>> {
            entry
                .get(key)?
                .as_array()?
                .iter()
                .map(Value::as_f64)
                .collect::<Option<Vec<f64>>>()
                .filter(|n| n.len() == rank)
        };
        match entry.get("type").and_then(Value::as_str) {
            Some("scale") if entry.get("scale").is_some() => {
                let Some(factors) = numbers("scale") else {
                    return Err(Fault::malformed(format!("a scale is not a list of {rank} numbers")));
                };
                grid.scale_by(&factors, axes);
            }
            Some("translation") => match (numbers("translation"), entry.get("translation")) {
                (Some(shift), _) => {
                    grid.translation.iter_mut().zip(shift).for_each(|(position, shift)| *position += shift);
                }
                (None, Some(other)) => {
                    ignore_entry::<()>("translation", &other.to_string(), "one number for each axis");
                }
                (None, None) => grid.leave_out("translation", entry),
            },
            None | Some("identity") => {}
            Some(other) => grid.leave_out(other, entry),
        }
    }
    Ok(grid)
}

/// Returns the sentence that scales along Z, Y, X are not used, because their axes have no unit, or one that is no length; `None` if
/// there are none but 1, which programs write if they do not know the voxel size.
fn unit_note(scale: &[f64], axes: &[Axis], units: &[Option<String>]) -> Option<String> {
    let without_unit = |axis: Axis| {
        let i = axes.iter().position(|a| *a == axis)?;
        let factor = scale.get(i).copied().and_then(positive)?;
        let is_length = units.get(i)?.as_deref().and_then(um_per).is_some();
        (!is_length).then_some((axis, factor))
    };
    let found: Vec<(Axis, f64)> = [Axis::Z, Axis::Y, Axis::X].into_iter().filter_map(without_unit).collect();
    without_unit_note("scale", &found)
}

/// Micrometers per unit of length of OME-Zarr (names of UDUNITS-2).
fn um_per(unit: &str) -> Option<f64> {
    match unit {
        "picometer" => Some(1e-6),
        "decimeter" => Some(1e5),
        "kilometer" => Some(1e9),
        "foot" => Some(304_800.0),
        "yard" => Some(914_400.0),
        other => micrometers_per(other),
    }
}

/// Names and colors of the channels, and the display range of an image of one channel. A label that only
/// numbers its channel, as in files that we write, does not count as a name.
fn parse_omero(value: Option<&Value>) -> (Vec<Channel>, Option<(f64, f64)>) {
    let entries = list(value.and_then(|omero| omero.get("channels")));
    let channel = |(index, entry): (usize, &Value)| Channel {
        name: label(entry).filter(|name| *name != generic_name(index)).unwrap_or_default().to_owned(),
        color_rgb: entry.get("color").and_then(Value::as_str).and_then(parse_hex_color),
    };
    let window = |entry: &Value| {
        let number = |key: &str| entry.get("window")?.get(key)?.as_f64().filter(|v: &f64| v.is_finite());
        Some((number("start")?, number("end")?)).filter(|(low, high)| high > low)
    };
    let range = match entries {
        [only] => window(only),
        _ => None,
    };
    (entries.iter().take(MAX_CHANNELS).enumerate().map(channel).collect(), range)
}

/// The name of a channel as viewers show it.
fn label(channel: &Value) -> Option<&str> {
    channel.get("label").and_then(Value::as_str)
}

/// A color of six hexadecimal digits, except black.
fn parse_hex_color(text: &str) -> Option<[u8; 3]> {
    let digits = text.trim_start_matches('#');
    let value = u32::from_str_radix(digits.get(..6)?, 16).ok()?;
    let [_, red, green, blue] = value.to_be_bytes();
    visible_color([red, green, blue])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use serde_json::json;

    /// The images of a well, of which there are as many as `count`.
    fn images_of_well(count: usize, path: &str) -> Result<Vec<String>, Fault> {
        let images = vec![json!({"path": "0"}); count];
        let attributes = json!({"well": {"images": images}}).as_object().unwrap().clone();
        well_images(&Group { attributes }, path)
    }

    #[test]
    fn the_number_and_the_length_of_the_paths_of_images_are_limited() {
        assert_eq!(images_of_well(2, "A/1").unwrap(), ["A/1/0", "A/1/0"]);
        let long = "a".repeat(MAX_PATH_BYTES);
        for (count, path, limit) in [(1, long.as_str(), "MAX_PATH_BYTES"), (MAX_IMAGES + 1, "A/1", "MAX_IMAGES")] {
            let found = images_of_well(count, path);
            assert!(matches!(found, Err(Fault::OverLimit(problem, _)) if problem.contains(limit)), "{limit}");
        }
    }
}
