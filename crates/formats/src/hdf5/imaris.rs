//! Imaris: a stack for each resolution level, time point and channel, which may be padded to whole chunks.

use super::{
    EXPORT, check_series,
    file::File,
    pixels::{Image, ImageParts, Places, Stored, stack},
};
use crate::{
    error::{Fault, Remedy},
    file_format::FileFormat,
    meta::{Channel, micrometers_per, positive, visible_color},
    opening::OpenOptions,
    reader::{Opened, check_shape},
};
use cytoscope_volume::VoxelSize;
use hdf5_reader::group::Group;
use std::{collections::HashMap, path::Path};

/// Group with the pixels, and the one that describes them.
const DATA_SET: &str = "DataSet";
const INFO: &str = "DataSetInfo";
/// Largest number of levels: the extents are halved from each to the next.
const MAX_LEVELS: usize = 64;
/// The axes X, Y, Z in names of attributes, and in this order their indices in T, Z, C, Y, X, S.
const AXES: [(&str, usize); 3] = [("X", 4), ("Y", 3), ("Z", 1)];
/// Names of attributes: the extents of a channel along these axes, the description of the image, and that of a channel.
const SIZES: [&str; 3] = ["ImageSizeX", "ImageSizeY", "ImageSizeZ"];
const IMAGE: [&str; 10] = ["X", "Y", "Z", "Unit", "ExtMin0", "ExtMax0", "ExtMin1", "ExtMax1", "ExtMin2", "ExtMax2"];
const CHANNEL: [&str; 3] = ["Name", "Color", "ColorMode"];

/// Whether a file has the groups of Imaris.
pub(super) fn is_imaris(file: &File, root: &Group) -> Result<bool, Fault> {
    match file.group(root, DATA_SET)? {
        Some(set) => Ok(file.group(&set, &level_name(0))?.is_some()),
        None => Ok(false),
    }
}

fn level_name(level: usize) -> String {
    format!("ResolutionLevel {level}")
}

/// A group that every Imaris file has.
fn needed(file: &File, parent: &Group, name: &str) -> Result<Group, Fault> {
    file.group(parent, name)?.ok_or_else(|| Fault::malformed(format!("the Imaris file has no group {name:?}")))
}

/// Opens the image of an Imaris file.
pub(super) fn open(file: File, path: &Path, options: &OpenOptions) -> Result<Opened, Fault> {
    check_series(options, 1, "image")?;
    let limits = &options.limits;
    let root = file.root()?;
    let set = needed(&file, &root, DATA_SET)?;
    let info = file.group(&root, INFO)?;
    let described = |name: &str, keys: &[&str]| -> Result<HashMap<String, String>, Fault> {
        let Some(info) = &info else { return Ok(HashMap::new()) };
        match file.group(info, name)? {
            Some(group) => texts(&file, &group, keys),
            None => Ok(HashMap::new()),
        }
    };
    let image = described("Image", &IMAGE)?;
    let first = needed(&file, &set, &level_name(0))?;
    let times = count(&file, &first, "TimePoint")?;
    let channels = count(&file, &needed(&file, &first, "TimePoint 0")?, "Channel")?;
    let planes = (times as u64).saturating_mul(channels as u64);
    if planes > limits.max_pages {
        return Err(Fault::over("the number of stacks", planes, "max_pages", limits.max_pages, Remedy::Split));
    }
    let mut levels: Vec<[usize; 6]> = Vec::new();
    let mut first_dataset = None;
    for level in 0..MAX_LEVELS {
        let Some(group) = file.group(&set, &level_name(level))? else { break };
        let channel = needed(&file, &needed(&file, &group, "TimePoint 0")?, "Channel 0")?;
        let Some(dataset) = file.dataset(&stack(level, 0, 0))? else {
            return Err(Fault::malformed(format!("level {level} of the Imaris file has no data")));
        };
        let stored = Stored::new(&file, dataset, limits)?;
        let mut stated = texts(&file, &channel, &SIZES)?;
        if level == 0 {
            // Older files state the extents of the image only.
            for (letter, size) in AXES.iter().map(|(letter, _)| letter).zip(SIZES) {
                if let Some(extent) = image.get(*letter) {
                    stated.entry(size.to_owned()).or_insert_with(|| extent.clone());
                }
            }
        }
        levels.push(level_extents(&stated, &stored.shape, [times, channels])?);
        first_dataset = first_dataset.or(Some(stored));
    }
    let (Some(shape_full), Some(stored)) = (levels.first().copied(), first_dataset) else {
        return Err(Fault::malformed("the Imaris file has no image"));
    };
    check_shape(&shape_full, stored.dtype, limits)?;
    let voxel_size_um = voxel_size(&image, &shape_full);
    let (first_time, last_time) = ("TimePoint1", format!("TimePoint{times}"));
    let time = if times > 1 { described("TimeInfo", &[first_time, last_time.as_str()])? } else { HashMap::new() };
    let interval = interval(time.get(first_time), time.get(&last_time), times);
    let named = |c: usize| -> Result<Channel, Fault> { Ok(channel(&described(&format!("Channel {c}"), &CHANNEL)?)) };
    let channels: Vec<Channel> = (0..channels).map(named).collect::<Result<_, Fault>>()?;
    let lower_levels = levels.iter().skip(1).copied().collect();
    let parts = ImageParts {
        file,
        places: Places::Imaris,
        levels,
        canonical: vec![1, 3, 4],
        dtype: stored.dtype,
        paths: vec![path.to_owned()],
    };
    let image = Image::new(parts, &stored, limits);
    let mut opened = Opened::new(FileFormat::Imaris, shape_full, stored.dtype, Box::new(image));
    opened.lower_levels = lower_levels;
    opened.voxel_size_um = voxel_size_um;
    opened.time_interval_secs = interval;
    opened.channels = channels;
    opened.compression = stored.compression;
    opened.byte_order = stored.order;
    opened.with_options(options)
}

/// The number of groups in a group whose names are a word and a number, counted from 0.
fn count(file: &File, group: &Group, word: &str) -> Result<usize, Fault> {
    count_numbered(&file.names(group)?, word)
}

/// The number of names that are a word and a number, counted from 0. A missing number is an error: what follows it would be left
/// out without a word.
fn count_numbered(names: &[String], word: &str) -> Result<usize, Fault> {
    let number = |name: &String| name.strip_prefix(word)?.strip_prefix(' ')?.parse::<usize>().ok();
    let mut numbers: Vec<usize> = names.iter().filter_map(number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let missing = format!("the Imaris file has no group \"{word} ");
    match numbers.iter().enumerate().find(|(i, number)| i != *number) {
        Some((i, after)) => Err(Fault::malformed(format!("{missing}{i}\", but \"{word} {after}\""))),
        None if numbers.is_empty() => Err(Fault::malformed(format!("{missing}0\""))),
        None => Ok(numbers.len()),
    }
}

/// The texts of attributes of a group. Imaris writes all of them as characters, other programs also write numbers.
fn texts(file: &File, group: &Group, keys: &[&str]) -> Result<HashMap<String, String>, Fault> {
    let attributes = file.group_attributes(group)?;
    let value = |key: &str| attributes.text(key).or_else(|| number_text(&attributes.numbers(key)?));
    Ok(keys.iter().filter_map(|key| Some(((*key).to_owned(), value(key)?))).collect())
}

/// Numbers as the text that Imaris would write; `None` without a number.
fn number_text(numbers: &[f64]) -> Option<String> {
    let texts: Vec<String> = numbers.iter().map(f64::to_string).collect();
    (!texts.is_empty()).then(|| texts.join(" "))
}

/// The error for an extent that is stated as another text than a number.
fn not_a_count(letter: &str, text: &str) -> Fault {
    let shown: String = text.chars().take(20).collect();
    Fault::malformed(format!("the Imaris file states {shown:?} samples along {letter}; a whole number was expected"))
}

/// The extents of a level: those that are stated, or else those of the dataset.
fn level_extents(
    stated: &HashMap<String, String>,
    stored_shape: &[usize],
    [times, channels]: [usize; 2],
) -> Result<[usize; 6], Fault> {
    let mut extents = [times, 1, channels, 1, 1, 1];
    let [z, y, x] = stored_shape else {
        return Err(Fault::unsupported(format!("its datasets have {} axes", stored_shape.len()), EXPORT));
    };
    for (((letter, axis), size), padded) in AXES.into_iter().zip(SIZES).zip([*x, *y, *z]) {
        let extent = match stated.get(size) {
            None => padded,
            // The padding must not become a part of the image.
            Some(text) => text.trim().parse::<usize>().map_err(|_| not_a_count(letter, text))?,
        };
        if extent == 0 || extent > padded {
            let problem =
                format!("the Imaris file states {extent} samples along {letter}, but its dataset has {padded}");
            return Err(Fault::malformed(problem));
        }
        extents[axis] = extent;
    }
    Ok(extents)
}

/// The voxel size: the distance between the ends of the image, divided by its extents. Only the first level is described.
fn voxel_size(image: &HashMap<String, String>, shape_full: &[usize; 6]) -> VoxelSize {
    // The unit of older files is always the micrometer, and not stated.
    let unit = image.get("Unit").map_or(Some(1.0), |unit| micrometers_per(unit));
    let number = |name: String| image.get(&name)?.parse::<f64>().ok();
    let um = |i: usize| {
        let (_, axis) = AXES.get(i)?;
        let length = number(format!("ExtMax{i}"))? - number(format!("ExtMin{i}"))?;
        positive(length.abs() / shape_full[*axis] as f64 * unit?)
    };
    VoxelSize { z: um(2), y: um(1), x: um(0) }
}

/// The name and color of a channel.
fn channel(described: &HashMap<String, String>) -> Channel {
    let name = described.get("Name").cloned().unwrap_or_default();
    let is_single = described.get("ColorMode").is_none_or(|mode| mode == "BaseColor");
    let part = |text: &str| text.parse::<f64>().ok().map(|part| (part.clamp(0.0, 1.0) * 255.0).round() as u8);
    let parts: Option<Vec<u8>> = described.get("Color").and_then(|text| text.split_whitespace().map(part).collect());
    let color_rgb =
        parts.and_then(|parts| <[u8; 3]>::try_from(parts).ok()).filter(|_| is_single).and_then(visible_color);
    Channel { name, color_rgb }
}

/// The mean time between the first and the last of `times` time points, in seconds.
fn interval(first: Option<&String>, last: Option<&String>, times: usize) -> Option<f64> {
    let between = times.checked_sub(1).filter(|between| *between > 0)?;
    positive((seconds(last?)? - seconds(first?)?) / between as f64)
}

/// The seconds of a date and time, such as `2024-02-29 12:30:00.250`, since the beginning of an era.
fn seconds(text: &str) -> Option<f64> {
    let (date, time) = text.trim().split_once([' ', 'T'])?;
    let mut date = date.split('-').map(|part| part.parse::<i64>().ok().filter(|part| (0..10_000).contains(part)));
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.split(':').map(|part| part.parse::<f64>().ok());
    let (hours, minutes, secs) = (time.next()??, time.next()??, time.next()??);
    // Years begin in March, so that the leap day is the last one.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days =
        365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + (153 * month + 2) / 5 + day;
    Some(days as f64 * 86_400.0 + hours * 3600.0 + minutes * 60.0 + secs)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    /// The problem of a damaged file.
    fn text_of(fault: &Fault) -> String {
        match fault {
            Fault::Malformed(problem, _) => problem.to_string(),
            other => format!("another error: {other:?}"),
        }
    }

    #[test]
    fn times_are_counted_across_months_and_leap_days() {
        let between = |a: &str, b: &str| seconds(b).zip(seconds(a)).map(|(b, a)| b - a);
        assert_eq!(between("2024-02-28 23:59:59.500", "2024-03-01 00:00:00.000"), Some(86_400.5));
        assert_eq!(between("2023-02-28 23:59:59", "2023-03-01T00:00:01"), Some(2.0));
        assert_eq!(between("2023-12-31 23:00:00", "2024-01-01 01:00:00"), Some(7200.0));
        for wrong in ["", "2024-02-28", "2024-02 10:00:00", "2024-02-28 10:00", "a-b-c d:e:f", "99999-1-1 1:1:1"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_extent_that_is_no_number_is_refused_and_a_missing_one_is_that_of_the_dataset() {
        let extents = |stated: &[(&str, &str)]| {
            let stated: HashMap<String, String> =
                stated.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            level_extents(&stated, &[4, 8, 16], [2, 3]).map_err(|fault| text_of(&fault))
        };
        assert_eq!(extents(&[("ImageSizeX", "15 "), ("ImageSizeZ", "3")]), Ok([2, 3, 3, 8, 15, 1]));
        for wrong in ["", "15.0", "-3", "fifteen"] {
            let error = extents(&[("ImageSizeX", wrong)]).unwrap_err();
            let expected = format!("{wrong:?} samples along X; a whole number was expected");
            assert!(error.contains(&expected), "{error}");
        }
        assert!(extents(&[("ImageSizeX", "17")]).is_err(), "more than the dataset has");
    }

    #[test]
    fn a_missing_time_point_is_refused() {
        let count = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            count_numbered(&names, "TimePoint").map_err(|fault| text_of(&fault))
        };
        assert_eq!(count(&["TimePoint 1", "TimePoint 0", "Other 2", "TimePoint 10x"]), Ok(2));
        let error = count(&["TimePoint 0", "TimePoint 2"]).unwrap_err();
        assert!(error.contains("no group \"TimePoint 1\", but \"TimePoint 2\""), "{error}");
        let error = count(&["Channel 0"]).unwrap_err();
        assert!(error.contains("no group \"TimePoint 0\""), "{error}");
    }

    #[test]
    fn colors_of_tables_are_not_those_of_channels() {
        let described = |mode: &str| {
            let all = [("Name", "DAPI"), ("Color", "0.000 0.500 1.000"), ("ColorMode", mode)];
            channel(&all.map(|(key, value)| (key.to_owned(), value.to_owned())).into())
        };
        assert_eq!(described("BaseColor"), Channel { name: "DAPI".into(), color_rgb: Some([0, 128, 255]) });
        assert_eq!(described("TableColor").color_rgb, None);
    }
}
