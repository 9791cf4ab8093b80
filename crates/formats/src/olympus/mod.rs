//! Olympus FluoView OIF and OIB: a settings file, and a folder with a TIFF file for each plane. In an OIF, these are files; in
//! an OIB, they are streams of a compound file.

mod compound;
mod settings;

pub(crate) use compound::Stream;

use crate::{
    error::{DAMAGED, Fault, FormatError, Remedy},
    file_format::FileFormat,
    limits::Limits,
    meta::{Channel, micrometers_per, positive, seconds_per},
    opening::OpenOptions,
    source::{Counters, Source},
    tiff::{
        file::FileSet,
        series::{self, OpenedSeries, PlaneRef, Series},
    },
};
use compound::Compound;
use cytoscope_storage::write::parent_folder;
use cytoscope_volume::{Axis, VoxelSize};
use settings::{Settings, looks_like_settings};
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Advice for files that are not supported.
const EXPORT: &str = "export it as OME-TIFF, for example with Fiji";
/// Largest number of axes that settings describe.
const MAX_AXES: usize = 16;
/// Largest number of channels that settings describe.
const MAX_CHANNELS: usize = 256;
/// Largest number of characters of the name of a channel; the rest is left out.
const MAX_NAME_CHARS: usize = 255;
/// Section of the size of a pixel.
const REFERENCE: &str = "Reference Image Parameter";
/// Name of the stream that names the other streams, its section, and the key of the stream with the settings.
const INFO: &str = "OibInfo.txt";
const INFO_SECTION: &str = "OibSaveInfo";
const MAIN_STREAM: &str = "MainFileName";
/// What the keys of streams begin with.
const STREAM: &str = "Stream";
/// What follows the name of the settings file in the name of the folder with the planes.
const FOLDER_SUFFIX: &str = ".files";

/// Whether the first bytes of a file are those of the settings of an OIF or of a compound file. Settings in UTF-8 are recognized
/// by their name, too.
pub(crate) fn looks_like_olympus(head: &[u8], path: &Path) -> bool {
    let is_named_oif = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("oif"));
    head.starts_with(compound::MAGIC) || looks_like_settings(head, is_named_oif)
}

/// Opens an OIF or OIB that begins with `head`. Of the planes, only the header of the first one is read.
pub(crate) fn open(
    path: &Path,
    source: Source,
    head: &[u8],
    mut files: FileSet,
    options: &OpenOptions,
) -> Result<OpenedSeries, FormatError> {
    let mut planes = Vec::new();
    let (format, header) = if head.starts_with(compound::MAGIC) {
        let (header, members) = read_oib(source, files.counters()).map_err(|fault| fault.at(path))?;
        for Member { name, position, stream } in members {
            planes.push((position, files.add_stream(path.join(name), stream)));
        }
        (FileFormat::Oib, header)
    } else {
        let header = Settings::read(&source).and_then(|settings| Header::of(&settings));
        let header = header.map_err(|fault| fault.at(path))?;
        let members = planes_beside(path, files.limits()).map_err(|fault| fault.at(path))?;
        for (position, plane) in members {
            planes.push((position, files.add(plane)));
        }
        (FileFormat::Oif, header)
    };
    files.are_described_by(path.to_owned());
    let (tzc, arranged) = arrange(&header, &planes, files.limits()).map_err(|fault| fault.at(path))?;
    let series = header.series(format, tzc, arranged);
    let mut series = series::pick(path, vec![series], options.series)?;
    if let (Some(axes), Some((_, first))) = (&options.axes, planes.first()) {
        series::apply_axes(path, &mut series, axes, files.get(*first)?.as_ref())?;
    }
    Ok(OpenedSeries { series, files, count: 1, names: Vec::new() })
}

/// A plane of an OIB.
struct Member {
    /// Name of its file.
    name: String,
    position: Position,
    stream: Stream,
}

/// Returns the header and the planes of an OIB in the order of their names.
fn read_oib(source: Source, counters: &Arc<Counters>) -> Result<(Header, Vec<Member>), Fault> {
    let compound = Arc::new(Compound::open(source, Arc::clone(counters))?);
    let Some(info) = compound.stream(INFO) else {
        return Err(Fault::unsupported("it is a compound file (OLE2), but not an OIB of Olympus FluoView", EXPORT));
    };
    let info = Settings::read(&info.source())?;
    let main = info.text(INFO_SECTION, MAIN_STREAM).and_then(|name| compound.stream(name));
    let main = main.ok_or_else(|| Fault::malformed(format!("{INFO} names no settings that the OIB contains")))?;
    let header = Header::of(&Settings::read(&main.source())?)?;
    let mut members = Vec::new();
    for (key, file) in info.values(INFO_SECTION).filter(|(key, _)| key.starts_with(STREAM)) {
        // The storage comes first.
        let name = file.rsplit(['/', '\\']).next().unwrap_or(file);
        let Some(position) = position_of(name) else { continue };
        let Some(stream) = compound.stream(key) else {
            return Err(Fault::malformed(format!("the OIB does not contain the stream {key} ({name})")));
        };
        members.push(Member { name: name.to_owned(), position, stream });
    }
    members.sort_by(|a, b| a.name.cmp(&b.name));
    Ok((header, members))
}

/// Returns the planes in the folder of an OIF in the order of their names.
fn planes_beside(path: &Path, limits: &Limits) -> Result<Vec<(Position, PathBuf)>, Fault> {
    let mut name = path.file_name().map(OsString::from).unwrap_or_default();
    name.push(FOLDER_SUFFIX);
    let folder = parent_folder(path).join(&name);
    if !folder.is_dir() {
        let problem = format!("its planes are in the folder {}, which does not exist", name.display());
        let next_step = "copy the folder beside the .oif file, and do not rename either of them";
        return Err(Fault::Malformed(problem.into(), next_step.into()));
    }
    let listing = |error| Fault::Io("listing the folder", error);
    let mut planes = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(listing)? {
        let file = entry.map_err(listing)?.file_name();
        if let Some(position) = file.to_str().and_then(position_of) {
            planes.push((position, folder.join(file)));
        }
    }
    if planes.len() as u64 > limits.max_set_files {
        let (count, limit) = (planes.len() as u64, limits.max_set_files);
        return Err(Fault::over("the number of files of the set", count, "max_set_files", limit, Remedy::Split));
    }
    planes.sort_by(|a, b| a.1.cmp(&b.1));
    Ok(planes)
}

/// Indices of a plane along T, Z, C, from 0; `None` along an axis that its name does not state.
type Position = [Option<usize>; 3];

/// The letters of T, Z, C in the names of planes.
const LETTERS: [char; 3] = ['T', 'Z', 'C'];

/// Returns the position of a plane by the name of its file, such as `s_C001Z002T003.tif`; `None` for other files, such as
/// reference images and thumbnails.
fn position_of(name: &str) -> Option<Position> {
    let (stem, extension) = name.rsplit_once('.')?;
    if !extension.eq_ignore_ascii_case("tif") {
        return None;
    }
    let (_, mut rest) = stem.rsplit_once('_')?;
    let mut position = [None; 3];
    while let Some(letter) = rest.chars().next() {
        let digits = rest.strip_prefix(letter)?;
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        let (number, after) = digits.split_at_checked(end)?;
        let axis = LETTERS.iter().position(|known| *known == letter)?;
        let place = position.get_mut(axis).filter(|place| place.is_none())?;
        *place = Some(number.parse::<usize>().ok()?.checked_sub(1)?);
        rest = after;
    }
    position.iter().any(Option::is_some).then_some(position)
}

/// An axis as the settings describe it.
#[derive(Debug, Default)]
struct AxisSettings {
    /// Number of samples.
    count: usize,
    /// Distance from the first to the last position in `unit`; 0 if it is not stated.
    length: f64,
    unit: Option<String>,
}

/// What the settings state about the image.
#[derive(Debug, Default)]
struct Header {
    /// Number of planes along T, Z, C.
    tzc: [usize; 3],
    voxel_size_um: VoxelSize,
    time_interval_secs: Option<f64>,
    channels: Vec<Channel>,
    /// Bits of a sample that are used.
    bits: Option<u32>,
}

impl Header {
    fn of(settings: &Settings) -> Result<Self, Fault> {
        let order = settings.text("Axis Parameter Common", "AxisOrder").unwrap_or("XY");
        if !order.starts_with("XY") {
            let order: String = order.chars().take(MAX_AXES).collect();
            let problem = format!("its planes have the axes {order}, as line scans and X-Z scans");
            return Err(Fault::unsupported(problem, EXPORT));
        }
        let mut axes: [Option<AxisSettings>; 5] = Default::default();
        for number in 0..MAX_AXES {
            let section = format!("Axis {number} Parameters Common");
            let Some(code) = settings.text(&section, "AxisCode") else { continue };
            let axis = AxisSettings::of(settings, &section);
            match ["T", "Z", "C", "Y", "X"].iter().position(|known| *known == code) {
                Some(place) => {
                    if let Some(free) = axes.get_mut(place).filter(|other| other.is_none()) {
                        *free = Some(axis);
                    }
                }
                None if axis.count > 1 => {
                    let code: String = code.chars().take(MAX_NAME_CHARS).collect();
                    let problem =
                        format!("it has an axis of an unknown kind ({code}), such as a wavelength or position");
                    return Err(Fault::unsupported(problem, EXPORT));
                }
                None => {}
            }
        }
        let [t, z, c, y, x] = axes;
        let (Some(y), Some(x)) = (y, x) else {
            let next_step = "open the .oif file, or export the image as OME-TIFF with Fiji";
            return Err(Fault::unsupported("the settings of Olympus FluoView describe no image", next_step));
        };
        let [t, z, c] = [t, z, c].map(Option::unwrap_or_default);
        let reference = |value: &str, unit: &str| {
            let um = micrometers_per(settings.text(REFERENCE, unit)?)?;
            positive(settings.number(REFERENCE, value)? * um)
        };
        // The length of X and Y is that of all pixels; Z and T begin at the first and end at the last plane.
        let pixel = |axis: &AxisSettings| {
            positive(axis.length / axis.count as f64 * micrometers_per(axis.unit.as_deref().unwrap_or("um"))?)
        };
        let voxel_size_um = VoxelSize {
            z: z.step(micrometers_per, "nm"),
            y: reference("HeightConvertValue", "HeightUnit").or_else(|| pixel(&y)),
            x: reference("WidthConvertValue", "WidthUnit").or_else(|| pixel(&x)),
        };
        Ok(Self {
            tzc: [&t, &z, &c].map(|axis| axis.count.max(1)),
            voxel_size_um,
            time_interval_secs: t.step(seconds_per, "ms"),
            channels: channels(settings, c.count.max(1)),
            bits: settings.number(REFERENCE, "ValidBitCounts").map(|bits| bits as u32).filter(|bits| *bits > 0),
        })
    }

    /// Returns the image with these planes.
    fn series(self, format: FileFormat, tzc: [usize; 3], planes: Vec<Option<PlaneRef>>) -> Series {
        let [nt, nz, nc] = tzc;
        let mut channels = self.channels;
        if channels.len() != nc {
            channels.clear();
        }
        Series {
            format,
            dims: vec![(Axis::T, nt), (Axis::Z, nz), (Axis::C, nc)],
            planes,
            voxel_size_um: self.voxel_size_um,
            time_interval_secs: self.time_interval_secs.filter(|_| nt > 1),
            channels,
            valid_bits: self.bits,
            ..Series::default()
        }
    }
}

impl AxisSettings {
    fn of(settings: &Settings, section: &str) -> Self {
        let position = |key: &str| settings.number(section, key).filter(|number| number.is_finite());
        let length = position("EndPosition").zip(position("StartPosition")).map(|(end, start)| (end - start).abs());
        let unit = ["UnitName", "PixUnit"].iter().find_map(|key| settings.text(section, key));
        Self {
            count: settings.text(section, "MaxSize").and_then(|text| text.parse().ok()).unwrap_or(0),
            length: length.unwrap_or(0.0),
            unit: unit.map(str::to_owned),
        }
    }

    /// Distance between neighbors; `unit` is that of FluoView, if the settings state none.
    fn step(&self, per_unit: fn(&str) -> Option<f64>, unit: &str) -> Option<f64> {
        let between = self.count.checked_sub(1).filter(|between| *between > 0)?;
        positive(self.length / between as f64 * per_unit(self.unit.as_deref().unwrap_or(unit))?)
    }
}

/// Returns the `count` channels that were acquired, with the names of their dyes, or else those of their detectors; none if the
/// settings list another number of channels, whose names could be those of others.
fn channels(settings: &Settings, count: usize) -> Vec<Channel> {
    let sections = |prefix: &str| -> Vec<String> {
        let sections = (1..=MAX_CHANNELS).map(|number| format!("{prefix}Channel {number} Parameters"));
        sections.take_while(|section| settings.has(section)).collect()
    };
    let mut listed = sections("GUI ");
    listed.retain(|section| settings.text(section, "CH Activate") != Some("0"));
    if listed.len() != count {
        listed = sections("");
    }
    if listed.len() != count {
        return Vec::new();
    }
    let name = |section: &String| {
        let dye = settings.text(section, "DyeName").filter(|dye| !dye.eq_ignore_ascii_case("none"));
        dye.or_else(|| settings.text(section, "CH Name")).unwrap_or_default().chars().take(MAX_NAME_CHARS).collect()
    };
    listed.iter().map(|section| Channel { name: name(section), color_rgb: None }).collect()
}

/// The number of planes along T, Z, C, and the planes in this order.
type Arranged = ([usize; 3], Vec<Option<PlaneRef>>);

/// Returns the planes, which are indices in the set of files, at their positions. An axis that no name states has one plane.
fn arrange(header: &Header, members: &[(Position, u32)], limits: &Limits) -> Result<Arranged, Fault> {
    let mut tzc = header.tzc;
    for (axis, extent) in tzc.iter_mut().enumerate() {
        if members.iter().all(|(position, _)| position.get(axis).copied().flatten().is_none()) {
            *extent = 1;
        }
    }
    let count = tzc.iter().try_fold(1usize, |count, extent| count.checked_mul(*extent)).unwrap_or(usize::MAX);
    if count as u64 > limits.max_pages {
        return Err(Fault::over("the number of planes", count as u64, "max_pages", limits.max_pages, Remedy::Split));
    }
    if members.is_empty() {
        let problem = "it contains no planes with names such as s_C001Z001T001.tif";
        return Err(Fault::Malformed(problem.into(), DAMAGED.into()));
    }
    let mut planes: Vec<Option<PlaneRef>> = vec![None; count];
    for (position, file) in members {
        let index = position.iter().zip(&tzc).try_fold(0usize, |index, (at, extent)| {
            let at = at.unwrap_or(0);
            (at < *extent).then_some(index * extent + at)
        });
        let Some(slot) = index.and_then(|index| planes.get_mut(index)) else {
            let name = |at: &Option<usize>| at.map_or_else(|| "-".to_owned(), |at| (at + 1).to_string());
            let [t, z, c] = position.each_ref().map(name);
            let [nt, nz, nc] = tzc;
            let problem = format!(
                "it has a plane at time {t}, slice {z}, channel {c}, but its settings state {nt} times, {nz} slices and {nc} \
                 channels"
            );
            return Err(Fault::malformed(problem));
        };
        *slot = Some(PlaneRef { file: *file, page: 0, slice: 0 });
    }
    Ok((tzc, planes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_read_from_names() {
        for (name, position) in [
            ("s_C001Z002T003.tif", Some([Some(2), Some(1), Some(0)])),
            ("s_Z1000.TIF", Some([None, Some(999), None])),
            ("Image_1_C002.tif", Some([None, None, Some(1)])),
            ("s_C001-R001.tif", None),
            ("s_C001L002.tif", None),
            ("s_C001C002.tif", None),
            ("s_C000.tif", None),
            ("s_C.tif", None),
            ("s_é1.tif", None),
            ("s_.tif", None),
            ("s_Thumb.bmp", None),
            ("C001.tif", None),
        ] {
            assert_eq!(position_of(name), position, "{name}");
        }
    }
}
