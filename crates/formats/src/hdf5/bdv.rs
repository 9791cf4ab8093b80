//! BigDataViewer: a stack for each time point and view setup. Setups that differ only in their channel are one image, and each
//! image is a series.

use super::{
    EXPORT,
    bdv_xml::{CHANNEL, Description, KINDS, Setup},
    check_names, check_series,
    file::File,
    pixels::{Image, ImageParts, Places, Stored, cells},
};
use crate::{
    error::{Fault, Remedy},
    file_format::FileFormat,
    meta::Channel,
    opening::OpenOptions,
    reader::{Opened, check_shape},
};
use cytoscope_volume::{DType, VoxelSize};
use hdf5_reader::group::Group;
use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
};

/// Largest number of levels.
const MAX_LEVELS: usize = 64;

/// The numbers of the time points and view setups of a file.
pub(super) struct Views {
    times: Vec<u32>,
    setups: Vec<u32>,
}

/// Returns the time points and view setups of a file; `None` if it has none.
pub(super) fn stored_views(file: &File, root: &Group) -> Result<Option<Views>, Fault> {
    let names = file.names(root)?;
    let numbers = |letter: char, digits: usize| {
        let number = |name: &String| {
            let digits_of = name.strip_prefix(letter).filter(|rest| rest.len() >= digits)?;
            digits_of.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits_of.parse::<u32>().ok())?
        };
        let mut numbers: Vec<u32> = names.iter().filter_map(number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    };
    let (times, setups) = (numbers('t', 5), numbers('s', 2));
    let Some(setup) = setups.first() else { return Ok(None) };
    let is_described = file.dataset(&format!("/s{setup:02}/resolutions"))?.is_some();
    Ok((is_described && !times.is_empty()).then_some(Views { times, setups }))
}

/// The setups that are the channels of one image, in the order of their channels.
#[derive(Debug, Default)]
struct Series {
    setups: Vec<Setup>,
}

/// What setups that are the channels of one image have in common: extents, voxel size, and what they show apart from the channel.
type Common<'a> = (&'a str, [Option<u64>; 3], [Option<u32>; 3]);

fn common(setup: &Setup) -> Common<'_> {
    let VoxelSize { z, y, x } = setup.voxel_size_um;
    let kinds = KINDS.map(|kind| setup.of.get(kind).copied());
    (setup.size.as_str(), [z, y, x].map(|um| um.map(f64::to_bits)), kinds)
}

/// The images of a file. Without a description, each view setup is one.
fn series(views: &Views, description: Option<&Description>) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    let stored: HashSet<u32> = views.setups.iter().copied().collect();
    let mut images: HashMap<Common<'_>, Vec<usize>> = HashMap::new();
    let mut earlier: HashMap<(Common<'_>, u32), usize> = HashMap::new();
    for setup in description.into_iter().flat_map(|description| &description.setups) {
        if !stored.contains(&setup.id) {
            continue;
        }
        let mut place = all.len();
        // A setup without a channel is an image of its own.
        if let Some(channel) = setup.of.get(CHANNEL) {
            let alike = images.entry(common(setup)).or_default();
            // An image has a channel once: earlier setups of the channel are in the first images, one in each.
            let count = earlier.entry((common(setup), *channel)).or_default();
            match alike.get(*count) {
                Some(known) => place = *known,
                None => alike.push(place),
            }
            *count += 1;
        }
        match all.get_mut(place) {
            Some(series) => series.setups.push(setup.clone()),
            None => all.push(Series { setups: vec![setup.clone()] }),
        }
    }
    if all.is_empty() {
        let named = |id: u32| Setup { id, name: format!("setup {id}"), ..Setup::default() };
        return views.setups.iter().map(|id| Series { setups: vec![named(*id)] }).collect();
    }
    for series in &mut all {
        series.setups.sort_by_key(|setup| setup.of.get(CHANNEL).copied());
    }
    all
}

/// The names of all images: of their tiles, angles and illuminations, as far as there are several, or else of their setups.
fn names(all: &[Series], description: Option<&Description>) -> Vec<String> {
    let ids = |kind: &str| -> HashSet<Option<u32>> {
        all.iter().flat_map(|series| &series.setups).map(|setup| setup.of.get(kind).copied()).collect()
    };
    let varied: Vec<&str> = KINDS.into_iter().filter(|kind| ids(kind).len() > 1).collect();
    let name = |series: &Series| {
        let Some(first) = series.setups.first() else { return String::new() };
        let part = |kind: &&str| {
            let id = first.of.get(*kind)?;
            let named = description.and_then(|description| description.names.get(&((*kind).to_owned(), *id)));
            let number = id.to_string();
            let name = named.filter(|name| !name.is_empty()).unwrap_or(&number);
            let begins = name.to_lowercase().starts_with(kind);
            Some(if begins { name.clone() } else { format!("{kind} {name}") })
        };
        let parts: Vec<String> = varied.iter().filter_map(part).collect();
        if parts.is_empty() { first.name.clone() } else { parts.join(", ") }
    };
    all.iter().map(name).collect()
}

/// Opens one image of a file at a path, with the description of its views and the path of that.
pub(super) fn open(
    file: File,
    path: &Path,
    views: Views,
    described: Option<(PathBuf, Description)>,
    options: &OpenOptions,
) -> Result<Opened, Fault> {
    let limits = &options.limits;
    let (xml, description) = described.unzip();
    let all = series(&views, description.as_ref());
    check_series(options, all.len(), "image")?;
    let series_names = names(&all, description.as_ref());
    check_names(&series_names, limits)?;
    let Some(chosen) = all.get(options.series) else { return Err(Fault::malformed("the file has no views")) };
    let ids: Vec<u32> = chosen.setups.iter().map(|setup| setup.id).collect();
    let planes = (views.times.len() as u64).saturating_mul(ids.len() as u64);
    if planes > limits.max_pages {
        return Err(Fault::over("the number of stacks", planes, "max_pages", limits.max_pages, Remedy::Split));
    }
    let found = find_stacks(&file, &views.times, &ids)?;
    let Some((time, setup)) = found.first else {
        return Err(Fault::malformed("the file has no stacks of this image"));
    };
    let (levels, stored) = levels(&file, [time, setup], &ids, views.times.len(), options)?;
    let Some(shape_full) = levels.first().copied() else { return Err(Fault::malformed("the file has no levels")) };
    // BigDataViewer stores whole numbers without a sign as those with one.
    let dtype = match stored.dtype {
        DType::I16 => DType::U16,
        DType::I8 => DType::U8,
        other => other,
    };
    check_shape(&shape_full, dtype, limits)?;
    let mut paths = vec![path.to_owned()];
    paths.extend(xml);
    let lower_levels = levels.iter().skip(1).copied().collect();
    let (places, canonical) = (Places::Views { times: views.times, setups: ids }, vec![1, 3, 4]);
    let image = Image::new(ImageParts { file, places, levels, canonical, dtype, paths }, &stored, limits);
    let mut opened = Opened::new(FileFormat::BigDataViewer, shape_full, dtype, Box::new(image));
    opened.lower_levels = lower_levels;
    opened.voxel_size_um = chosen.setups.first().map(|setup| setup.voxel_size_um).unwrap_or_default();
    opened.channels = chosen.setups.iter().map(|setup| channel(setup, description.as_ref())).collect();
    opened.compression = stored.compression;
    opened.byte_order = stored.order;
    opened.series_count = all.len();
    opened.series_names = series_names;
    opened.missing_planes = found.missing.saturating_mul(shape_full[1]);
    opened.with_options(options)
}

/// The name of the channel of a setup, unless that is only its number.
fn channel(setup: &Setup, description: Option<&Description>) -> Channel {
    let id = setup.of.get(CHANNEL);
    let name =
        id.and_then(|id| description?.names.get(&(CHANNEL.to_owned(), *id)).filter(|name| **name != id.to_string()));
    Channel { name: name.cloned().unwrap_or_default(), color_rgb: None }
}

/// Which stacks of an image a file has.
struct Stacks {
    /// Time point and setup of the first one.
    first: Option<(u32, u32)>,
    /// Number of those that are missing.
    missing: usize,
}

/// Looks for the stacks of an image.
fn find_stacks(file: &File, times: &[u32], setups: &[u32]) -> Result<Stacks, Fault> {
    let mut found = Stacks { first: None, missing: 0 };
    for time in times {
        for setup in setups {
            match file.dataset(&cells(*time, *setup, 0))? {
                Some(_) => found.first = found.first.or(Some((*time, *setup))),
                None => found.missing += 1,
            }
        }
    }
    Ok(found)
}

/// Whether all setups that have a stack at a time point have a level of these extents.
fn is_shared(file: &File, time: u32, setups: &[u32], level: usize, shape: &[u64]) -> Result<bool, Fault> {
    for setup in setups {
        let is_like = || -> Result<bool, Fault> {
            let found = file.dataset(&cells(time, *setup, level))?;
            Ok(found.is_some_and(|found| found.dataset.shape() == shape))
        };
        if file.dataset(&cells(time, *setup, 0))?.is_some() && !is_like()? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The extents of the levels that all setups have, full resolution first, for a number of time points, and the first dataset of the
/// stack at a time point and setup.
fn levels(
    file: &File,
    [time, setup]: [u32; 2],
    setups: &[u32],
    times: usize,
    options: &OpenOptions,
) -> Result<(Vec<[usize; 6]>, Stored), Fault> {
    let (mut levels, mut first): (Vec<[usize; 6]>, Option<Stored>) = (Vec::new(), None);
    for level in 0..MAX_LEVELS {
        let Some(dataset) = file.dataset(&cells(time, setup, level))? else { break };
        if level > 0 && !is_shared(file, time, setups, level, dataset.dataset.shape())? {
            break;
        }
        let stored = Stored::new(file, dataset, &options.limits)?;
        let [z, y, x] = stored.shape.as_slice() else {
            return Err(Fault::unsupported(format!("its datasets have {} axes", stored.shape.len()), EXPORT));
        };
        if stored.shape.contains(&0) {
            return Err(Fault::malformed(format!("level {level} has no samples")));
        }
        levels.push([times, *z, setups.len(), *y, *x, 1]);
        first = first.or(Some(stored));
    }
    match first {
        Some(first) => Ok((levels, first)),
        None => Err(Fault::malformed("the file has no levels")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(id: u32, tile: u32, channel: Option<u32>) -> Setup {
        let mut of = HashMap::from([("tile".to_owned(), tile)]);
        of.extend(channel.map(|channel| (CHANNEL.to_owned(), channel)));
        Setup { id, of, ..Setup::default() }
    }

    /// The numbers of the setups of each image, if the file has stacks of the first `stored` setups.
    fn images(setups: Vec<Setup>, stored: u32) -> Vec<Vec<u32>> {
        let views = Views { times: vec![0], setups: (0..stored).collect() };
        let description = Description { setups, ..Description::default() };
        let ids = |image: Series| -> Vec<u32> { image.setups.iter().map(|setup| setup.id).collect() };
        series(&views, Some(&description)).into_iter().map(ids).collect()
    }

    #[test]
    fn setups_that_differ_in_their_channel_only_are_one_image() {
        let setups = vec![
            setup(0, 0, Some(1)),
            setup(1, 0, Some(0)),
            setup(2, 1, Some(0)),
            setup(3, 0, Some(1)),
            setup(4, 0, None),
            setup(5, 0, Some(2)),
            setup(6, 0, Some(3)),
        ];
        assert_eq!(images(setups, 6), [vec![1, 0, 5], vec![2], vec![3], vec![4]]);
    }

    /// The number is such that work growing with its square would take minutes.
    #[test]
    fn many_setups_are_sorted_into_images_in_linear_time() {
        const SETUPS: u32 = 1 << 16;
        let channels = images((0..SETUPS).map(|id| setup(id, 0, Some(id))).collect(), SETUPS);
        assert_eq!(channels, [(0..SETUPS).collect::<Vec<u32>>()]);
        let tiles = images((0..SETUPS).map(|id| setup(id, id, Some(0))).collect(), SETUPS);
        assert_eq!(tiles.len(), SETUPS as usize);
        let repeated = images((0..SETUPS).map(|id| setup(id, 0, Some(0))).collect(), SETUPS);
        assert_eq!(repeated.len(), SETUPS as usize);
    }
}
