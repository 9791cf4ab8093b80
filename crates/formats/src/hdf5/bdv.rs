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
use cytoscope_volume::DType;
use hdf5_reader::group::Group;
use std::{
    collections::HashSet,
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

impl Series {
    /// Whether a setup is another channel of the same image.
    fn takes(&self, setup: &Setup) -> bool {
        let channel = |setup: &Setup| setup.of.get(CHANNEL).copied();
        let is_like = |other: &Setup| {
            channel(other).is_some()
                && other.size == setup.size
                && other.voxel_size_um == setup.voxel_size_um
                && KINDS.iter().all(|kind| other.of.get(*kind) == setup.of.get(*kind))
        };
        channel(setup).is_some()
            && self.setups.first().is_some_and(is_like)
            && self.setups.iter().all(|other| channel(other) != channel(setup))
    }
}

/// The images of a file. Without a description, each view setup is one.
fn series(views: &Views, description: Option<&Description>) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    let stored: HashSet<u32> = views.setups.iter().copied().collect();
    for setup in description.into_iter().flat_map(|description| &description.setups) {
        if !stored.contains(&setup.id) {
            continue;
        }
        match all.iter_mut().find(|series| series.takes(setup)) {
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
