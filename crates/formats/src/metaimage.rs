//! MetaImage of ITK (`.mha`, `.mhd`): a header in text, followed by the samples, or with the names of the files that hold them.
//!
//! Format: <https://itk.org/Wiki/ITK/MetaIO/Documentation>. The orientation (`TransformMatrix`) is not applied.

use crate::{
    dense::Dense,
    error::{Fault, FormatError, Remedy},
    file_format::{FileFormat, StoredCompression},
    huge_pages,
    limits::Limits,
    meta::{ByteOrder, DIRECTION_TOLERANCE, directions_note, micrometers_per, positive},
    names::FolderNames,
    opening::OpenOptions,
    packed::{Data, MAX_GZIP_RATIO, Packed},
    reader::{Opened, Pixels, check_shape},
    source::{Counters, Source},
};
use cytoscope_storage::write::parent_folder;
use cytoscope_volume::{DType, Region, Samples, VoxelSize};
use std::{
    collections::{HashMap, HashSet},
    path::{Component, Path, PathBuf},
    sync::Arc,
};

/// Largest header in bytes, without and with the names of all files. The names that a pattern stands for are not longer, either.
const MAX_HEADER_BYTES: u64 = 1 << 16;
const MAX_LIST_BYTES: u64 = 16 << 20;
/// Largest number of axes.
const MAX_AXES: usize = 4;
/// Advice for files that are not supported.
const RESAVE: &str = "save it as one .mha file, for example with SimpleITK: \
                      sitk.WriteImage(sitk.ReadImage(\"NAME\"), \"NAME.mha\")";
/// Keys that a header can begin with.
const FIRST_KEYS: [&str; 5] = ["ObjectType", "ObjectSubType", "Comment", "Name", "NDims"];
/// The key of the files with the samples, which ends the header.
const DATA_KEY: &str = "ElementDataFile";
/// Axes X, Y, Z and time as indices in T, Z, C, Y, X, S, in the order of the file; and channels, which are the fastest axis.
const AXES: [usize; MAX_AXES] = [4, 3, 1, 0];
const C: usize = 2;

/// Whether the first bytes of a file are those of a MetaImage header.
pub(crate) fn looks_like_metaimage(head: &[u8]) -> bool {
    let text = String::from_utf8_lossy(head);
    let first = text.split_once('=').map(|(key, _)| key.trim());
    let is_known = |line: &str| line.trim_start().starts_with("NDims") || line.trim_start().starts_with("ObjectType");
    first.is_some_and(|key| FIRST_KEYS.contains(&key)) && text.lines().any(is_known)
}

/// Opens a MetaImage. Only the header is read.
pub(crate) fn open(
    path: &Path,
    source: Source,
    options: &OpenOptions,
    counters: &Arc<Counters>,
) -> Result<Opened, Fault> {
    let header = Header::read(&source, &options.limits)?;
    let dtype = header.dtype()?;
    let order = header.byte_order();
    let layout = header.layout(dtype, order)?;
    check_shape(&layout.shape_full, dtype, &options.limits)?;
    let needed = layout.data_bytes().ok_or_else(|| Fault::malformed("the MetaImage is too large"))?;
    let is_compressed = header.is_true("CompressedData");
    let places = header.places(&layout, &options.limits)?;
    if places != Places::Local && !path.is_file() {
        return Err(Fault::unsupported("its samples are in other files, but it was opened from memory", RESAVE));
    }
    let folder = parent_folder(path).to_owned();
    let mut on_disk = FolderNames::default();
    let mut stored_name = |name: String| {
        let found = on_disk.find(&folder, Path::new(&name)).and_then(|found| found.into_os_string().into_string().ok());
        found.unwrap_or(name)
    };
    let pixels: Box<dyn Pixels> = match places {
        Places::Local => {
            let stored = header.part(&source, header.end, needed, is_compressed)?;
            Box::new(MetaImage {
                data: data(stored, needed, is_compressed, options)?,
                layout: layout.clone(),
                beside: None,
            })
        }
        Places::File(name) => {
            let name = stored_name(name);
            let file = opened(&folder, &name, counters)?;
            let stored = header.part(&file, 0, needed, is_compressed)?;
            let beside = Some([path.to_owned(), folder.join(name)]);
            Box::new(MetaImage { data: data(stored, needed, is_compressed, options)?, layout: layout.clone(), beside })
        }
        Places::Slices(_) if is_compressed => {
            return Err(Fault::unsupported("its samples are compressed and in several files", RESAVE));
        }
        Places::Slices(names) => {
            let skipped = header.skipped()?;
            let names = names.into_iter().map(stored_name).collect();
            let slices = Slices {
                path: path.to_owned(),
                folder: folder.clone(),
                names,
                layout: layout.clone(),
                skipped,
                counters: Arc::clone(counters),
            };
            // The other files are checked when they are read.
            slices.slice(0)?;
            Box::new(slices)
        }
    };
    let mut opened = Opened::new(FileFormat::MetaImage, layout.shape_full, dtype, pixels);
    opened.byte_order = order;
    opened.voxel_size_um = header.voxel_size_um();
    opened.not_applied.extend(header.direction_note());
    opened.compression = if is_compressed { StoredCompression::Zlib } else { StoredCompression::None };
    opened.with_options(options)
}

/// The bytes of the samples; `stored` holds nothing else.
fn data(stored: Source, needed: u64, is_compressed: bool, options: &OpenOptions) -> Result<Data, Fault> {
    if !is_compressed {
        return Ok(Data::Plain(stored));
    }
    if needed > stored.len().saturating_mul(MAX_GZIP_RATIO) {
        let problem = format!("its header declares {needed} bytes, but {} compressed ones follow it", stored.len());
        return Err(Fault::malformed(problem));
    }
    Ok(Data::Packed(Packed::zlib(stored, needed, options.limits.clone())))
}

/// Opens a file with samples, which must be in the folder of the header or below.
fn opened(folder: &Path, name: &str, counters: &Arc<Counters>) -> Result<Source, Fault> {
    Source::inside(folder, Path::new(name), Arc::clone(counters))?.ok_or_else(|| {
        let problem = format!("its samples are in the file {name:?}, which does not exist");
        Fault::Malformed(problem.into(), "copy that file beside the header, and do not rename it".into())
    })
}

/// Where the samples are.
#[derive(Debug, PartialEq, Eq)]
enum Places {
    /// After the header.
    Local,
    /// In the file of this name.
    File(String),
    /// In files of these names, one for each slice.
    Slices(Vec<String>),
}

/// The values of a header by their keys.
#[derive(Debug)]
struct Header {
    fields: HashMap<String, String>,
    /// Position of the byte after the header.
    end: u64,
    /// Names of the files that follow the header, if it ends with `LIST`.
    listed: Vec<String>,
}

impl Header {
    /// Reads the header, which ends with the line of its data file, or with the names of several.
    fn read(source: &Source, limits: &Limits) -> Result<Self, Fault> {
        let head = source.read_vec(0, source.len().min(MAX_HEADER_BYTES) as usize)?;
        let (mut fields, mut at) = (HashMap::new(), 0);
        loop {
            let rest = head.get(at..).unwrap_or_default();
            let length = rest.iter().position(|byte| *byte == b'\n');
            let line = String::from_utf8_lossy(rest.get(..length.unwrap_or(rest.len())).unwrap_or_default());
            let field = line.split_once('=').map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()));
            at += length.map_or(rest.len(), |length| length + 1);
            let is_last = field.as_ref().is_some_and(|(key, _)| key == DATA_KEY);
            fields.extend(field);
            if is_last {
                break;
            }
            if length.is_none() {
                return Err(Fault::malformed(format!("the MetaImage header does not end with {DATA_KEY}")));
            }
        }
        let end = at as u64;
        let is_list = fields.get(DATA_KEY).is_some_and(|value: &String| value.starts_with("LIST"));
        let listed = if is_list { listed(source, end, limits)? } else { Vec::new() };
        Ok(Self { fields, end, listed })
    }

    fn field(&self, key: &str) -> Option<&str> {
        self.fields.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    fn is_true(&self, key: &str) -> bool {
        self.field(key).is_some_and(|value| value.starts_with(['T', 't', '1']))
    }

    /// A whole number; `None` if the key is absent.
    fn number(&self, key: &str) -> Result<Option<i64>, Fault> {
        let Some(text) = self.field(key) else { return Ok(None) };
        let number =
            text.parse().map_err(|_| Fault::malformed(format!("its {key} is {text:?}, not a whole number")))?;
        Ok(Some(number))
    }

    fn dtype(&self) -> Result<DType, Fault> {
        if self.field("BinaryData").is_some() && !self.is_true("BinaryData") {
            return Err(Fault::unsupported("its samples are written as text", RESAVE));
        }
        let name = self.field("ElementType").unwrap_or_default();
        Ok(match name.strip_suffix("_ARRAY").unwrap_or(name) {
            "MET_CHAR" | "MET_ASCII_CHAR" => DType::I8,
            "MET_UCHAR" => DType::U8,
            "MET_SHORT" => DType::I16,
            "MET_USHORT" => DType::U16,
            // MetaIO stores 4 bytes, on all systems.
            "MET_INT" | "MET_LONG" => DType::I32,
            "MET_UINT" | "MET_ULONG" => DType::U32,
            "MET_LONG_LONG" => DType::I64,
            "MET_ULONG_LONG" => DType::U64,
            "MET_FLOAT" => DType::F32,
            "MET_DOUBLE" => DType::F64,
            other => {
                let other: String = other.chars().take(40).collect();
                return Err(Fault::unsupported(format!("its samples have the type {other:?}"), RESAVE));
            }
        })
    }

    fn byte_order(&self) -> ByteOrder {
        let keys = ["BinaryDataByteOrderMSB", "ElementByteOrderMSB"];
        if keys.iter().any(|key| self.is_true(key)) { ByteOrder::Big } else { ByteOrder::Little }
    }

    /// The positions of the samples, as if they were in one file without a header.
    fn layout(&self, dtype: DType, order: ByteOrder) -> Result<Dense, Fault> {
        let sizes: Option<Vec<usize>> = self
            .field("DimSize")
            .unwrap_or_default()
            .split_whitespace()
            .map(|size| size.parse::<usize>().ok().filter(|n| *n > 0))
            .collect();
        let sizes = sizes.ok_or_else(|| Fault::malformed("DimSize has values that are not whole numbers above 0"))?;
        if self.number("NDims")? != i64::try_from(sizes.len()).ok() {
            return Err(Fault::malformed(
                "the MetaImage header does not state as many sizes (DimSize) as axes (NDims)",
            ));
        }
        if !(2..=MAX_AXES).contains(&sizes.len()) {
            let problem = format!("the MetaImage has {} axes", sizes.len());
            return Err(Fault::unsupported(problem, "save it with 2 to 4 axes: x, y, z and time"));
        }
        let channels = self.number("ElementNumberOfChannels")?.unwrap_or(1);
        let channels = usize::try_from(channels).ok().filter(|n| *n > 0);
        let channels = channels.ok_or_else(|| Fault::malformed("the MetaImage has no channels"))?;
        let (mut shape_full, mut strides) = ([1usize; 6], [0usize; 6]);
        (shape_full[C], strides[C]) = (channels, 1);
        let mut step = channels;
        for (axis, length) in AXES.into_iter().zip(sizes) {
            (shape_full[axis], strides[axis]) = (length, step);
            step = step.checked_mul(length).ok_or_else(|| Fault::malformed("the MetaImage is too large"))?;
        }
        Ok(Dense { order, dtype, data_at: 0, shape_full, strides })
    }

    /// Where the samples are.
    fn places(&self, layout: &Dense, limits: &Limits) -> Result<Places, Fault> {
        let value = self.field(DATA_KEY).unwrap_or_default();
        if ["LOCAL", "Local", "local"].contains(&value) {
            return Ok(Places::Local);
        }
        let names = if value.starts_with("LIST") {
            self.listed.clone()
        } else if let Some((pattern, numbers)) = value.split_once(' ').filter(|(pattern, _)| pattern.contains('%')) {
            numbered(pattern, numbers, limits)?
        } else if value.is_empty() {
            return Err(Fault::malformed(format!("the MetaImage header names no {DATA_KEY}")));
        } else {
            return Ok(Places::File(value.to_owned()));
        };
        let [nt, nz, ..] = layout.shape_full;
        let slices = nt.saturating_mul(nz);
        if names.len() != slices {
            let problem = format!("its header names {} files for {slices} slices", names.len());
            return Err(Fault::unsupported(problem, RESAVE));
        }
        // A small file could otherwise declare an image of any size.
        if !are_different(&names) {
            return Err(Fault::malformed("its header names a file twice"));
        }
        Ok(Places::Slices(names))
    }

    /// Bytes before the samples of a file beside the header; `None` if the samples are at its end.
    fn skipped(&self) -> Result<Option<u64>, Fault> {
        let size = self.number("HeaderSize")?.unwrap_or(0);
        if size < -1 {
            return Err(Fault::malformed(format!("its HeaderSize is {size}")));
        }
        Ok(u64::try_from(size).ok())
    }

    /// Returns the part of a file that holds the samples; `start` is where they begin if the header states no other place.
    fn part(&self, file: &Source, start: u64, needed: u64, is_compressed: bool) -> Result<Source, Fault> {
        let start = match self.skipped()? {
            Some(0) => start,
            Some(skipped) => skipped,
            None if is_compressed => {
                return Err(Fault::unsupported("its compressed samples have no stated place", RESAVE));
            }
            None => file.len().saturating_sub(needed),
        };
        let available = file.len().saturating_sub(start);
        if !is_compressed && needed > available {
            let problem = format!("its header declares {needed} bytes of samples, but the file has {available}");
            return Err(Fault::malformed(problem));
        }
        file.part(start.min(file.len()), if is_compressed { available } else { needed })
    }

    /// A note on axes that do not point along those of the space.
    fn direction_note(&self) -> Option<String> {
        let (key, matrix) = ["TransformMatrix", "Rotation", "Orientation"]
            .into_iter()
            .find_map(|key| self.field(key).map(|matrix| (key, matrix)))?;
        let rank = usize::try_from(self.number("NDims").ok()??).ok()?;
        let is_identity = matrix.split_whitespace().enumerate().all(|(i, number)| {
            let expected = if i % (rank + 1) == 0 { 1.0 } else { 0.0 };
            number.parse::<f64>().is_ok_and(|number| (number - expected).abs() < DIRECTION_TOLERANCE)
        });
        (!is_identity).then(|| directions_note(key))
    }

    /// Voxel size in µm. The unit of ITK is mm, unless the header states another one. A spacing of 1 along all axes is what ITK
    /// writes for images without a spacing.
    fn voxel_size_um(&self) -> VoxelSize {
        let stated = ["ElementSpacing", "ElementSize"].iter().find_map(|key| self.field(key)).unwrap_or_default();
        let spacings: Vec<Option<f64>> =
            stated.split_whitespace().map(|text| text.parse().ok().and_then(positive)).collect();
        if spacings.iter().all(|spacing| *spacing == Some(1.0)) && self.field("DistanceUnits").is_none() {
            return VoxelSize::default();
        }
        let unit = self.field("DistanceUnits").filter(|unit| *unit != "?").unwrap_or("mm");
        let size = |axis: usize| positive(spacings.get(axis).copied().flatten()? * micrometers_per(unit)?);
        VoxelSize { z: size(2), y: size(1), x: size(0) }
    }
}

/// Refuses too many files before their names are stored.
fn check_count(count: usize, limits: &Limits) -> Result<(), Fault> {
    let (count, limit) = (count as u64, limits.max_set_files);
    if count <= limit {
        return Ok(());
    }
    Err(Fault::over("the number of files of the set", count, "max_set_files", limit, Remedy::Split))
}

/// Returns the names of the files that follow a header which ends before the byte `end`.
fn listed(source: &Source, end: u64, limits: &Limits) -> Result<Vec<String>, Fault> {
    if source.len() > MAX_LIST_BYTES {
        let (what, limit) = ("the size of the header in bytes", MAX_LIST_BYTES);
        return Err(Fault::over(what, source.len(), "MAX_LIST_BYTES", limit, Remedy::CopyAgain));
    }
    let bytes = source.read_vec(end, source.len().saturating_sub(end) as usize)?;
    let text = String::from_utf8_lossy(&bytes);
    let names = || text.lines().map(str::trim).filter(|line| !line.is_empty());
    check_count(names().count(), limits)?;
    Ok(names().map(str::to_owned).collect())
}

/// Whether the names, apart from parts without a meaning (`./`), are those of different files.
fn are_different(names: &[String]) -> bool {
    let plain = |name: &String| -> PathBuf {
        Path::new(name).components().filter(|part| !matches!(part, Component::CurDir)).collect()
    };
    names.iter().map(plain).collect::<HashSet<PathBuf>>().len() == names.len()
}

/// Returns the names that a pattern such as `slice%03d.raw` stands for, with its first and last number and the step between
/// them.
fn numbered(pattern: &str, numbers: &str, limits: &Limits) -> Result<Vec<String>, Fault> {
    let bad = || Fault::unsupported(format!("the names of its files are {pattern:?} with {numbers:?}"), RESAVE);
    let (before, rest) = pattern.split_once('%').ok_or_else(bad)?;
    let (format, after) = rest.split_once('d').ok_or_else(bad)?;
    let digits: usize = if format.is_empty() { 0 } else { format.parse().map_err(|_| bad())? };
    let is_padded = format.starts_with('0');
    let values: Option<Vec<usize>> = numbers.split_whitespace().map(|number| number.parse().ok()).collect();
    let values = values.ok_or_else(bad)?;
    let (first, last, step) = match values.as_slice() {
        [first, last] => (*first, *last, 1),
        [first, last, step] if *step > 0 => (*first, *last, *step),
        _ => return Err(bad()),
    };
    // Digits without a zero before them are filled up with spaces.
    if after.contains('%') || digits > 20 || (digits > 1 && !is_padded) {
        return Err(bad());
    }
    let count = (last.saturating_sub(first) / step).saturating_add(1);
    check_count(count, limits)?;
    let bytes = (pattern.len() as u64).saturating_mul(count as u64);
    if bytes > MAX_LIST_BYTES {
        let (what, limit) = ("the size of the names of its files in bytes", MAX_LIST_BYTES);
        return Err(Fault::over(what, bytes, "MAX_LIST_BYTES", limit, Remedy::CopyAgain));
    }
    Ok((0..count).map(|i| format!("{before}{:0digits$}{after}", first + i * step)).collect())
}

/// An image whose samples are in one file.
#[derive(Debug)]
struct MetaImage {
    data: Data,
    layout: Dense,
    /// The header and the file with the samples, if these are two.
    beside: Option<[PathBuf; 2]>,
}

impl Pixels for MetaImage {
    fn read(&self, path: &Path, region: &Region) -> Result<Samples, FormatError> {
        self.data.source().and_then(|source| self.layout.read(source, region)).map_err(|fault| fault.at(path))
    }

    fn files(&self) -> Option<Vec<PathBuf>> {
        self.beside.as_ref().map(|files| files.to_vec())
    }
}

/// An image with a file for each slice.
#[derive(Debug)]
struct Slices {
    path: PathBuf,
    folder: PathBuf,
    /// Names of the files in the order T, Z.
    names: Vec<String>,
    /// Layout of all slices.
    layout: Dense,
    /// Bytes before the samples of each file; `None` if these are at its end.
    skipped: Option<u64>,
    counters: Arc<Counters>,
}

impl Slices {
    /// Layout of one slice.
    fn slice_layout(&self) -> Dense {
        let mut layout = self.layout.clone();
        (layout.shape_full[0], layout.shape_full[1]) = (1, 1);
        layout
    }

    /// Opens the file of a slice.
    fn slice(&self, index: usize) -> Result<Source, Fault> {
        let name = self.names.get(index).ok_or_else(|| Fault::malformed("a slice has no file"))?;
        let file = opened(&self.folder, name, &self.counters)?;
        let needed = self.slice_layout().data_bytes().unwrap_or(u64::MAX);
        let start = self.skipped.unwrap_or_else(|| file.len().saturating_sub(needed));
        if !file.holds(start, needed) {
            let problem = format!("the file {name:?} has {} bytes; {needed} were expected", file.len());
            return Err(Fault::malformed(problem));
        }
        file.part(start, needed)
    }

    fn read_slices(&self, region: &Region) -> Result<Samples, Fault> {
        let (Some([t0, z0, ..]), Some([nt, nz, ..])) =
            (region.start.first_chunk::<6>(), region.size.first_chunk::<6>())
        else {
            return Err(Fault::malformed("a region without the axes of the image"));
        };
        let len = region.len().map_err(|error| Fault::malformed(error.to_string()))?;
        let mut samples = huge_pages::zeros(self.layout.dtype, len);
        let slice_bytes = samples.as_bytes().len() / (nt * nz).max(1);
        let layout = self.slice_layout();
        let places = (0..*nt).flat_map(|t| (0..*nz).map(move |z| (t0 + t, z0 + z)));
        for ((t, z), out) in places.zip(samples.as_bytes_mut().chunks_exact_mut(slice_bytes.max(1))) {
            let file = self.slice(t * self.layout.shape_full[1] + z)?;
            let part = region.clone().with_range(0, 0, 1).with_range(1, 0, 1);
            out.copy_from_slice(layout.read(&file, &part)?.as_bytes());
        }
        Ok(samples)
    }
}

impl Pixels for Slices {
    fn read(&self, path: &Path, region: &Region) -> Result<Samples, FormatError> {
        self.read_slices(region).map_err(|fault| fault.at(path))
    }

    fn files(&self) -> Option<Vec<PathBuf>> {
        let slices = self.names.iter().map(|name| self.folder.join(name));
        Some(std::iter::once(self.path.clone()).chain(slices).collect())
    }
}
