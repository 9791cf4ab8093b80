//! NRRD with header and samples in one file (`.nrrd`), uncompressed or compressed with gzip.
//!
//! Format: <https://teem.sourceforge.net/nrrd/format.html>. The orientation (`space directions`) only gives the voxel size.

use crate::{
    dense::Dense,
    error::{Fault, FormatError},
    file_format::{FileFormat, StoredCompression},
    meta::{
        ByteOrder, DIRECTION_TOLERANCE, directions_note, micrometers_per, positive, seconds_per, without_unit_note,
    },
    opening::OpenOptions,
    packed::{Data, MAX_GZIP_RATIO, Packed},
    reader::{Opened, Pixels, check_shape},
    source::Source,
};
use cytoscope_volume::{Axis, DType, Region, Samples, VoxelSize};
use std::{collections::HashMap, path::Path};

/// First bytes of a file; the version, 1 to 5, follows.
const MAGIC: &[u8] = b"NRRD000";
/// Largest header in bytes.
const MAX_HEADER_BYTES: u64 = 1 << 20;
/// Largest number of axes.
const MAX_AXES: usize = 5;
/// Advice for files that are not supported.
const RESAVE: &str = "save it as one .nrrd file with the encoding raw or gzip, for example with Fiji or 3D Slicer";

/// Whether the first bytes of a file are those of a NRRD file.
pub(crate) fn looks_like_nrrd(head: &[u8]) -> bool {
    head.starts_with(MAGIC)
}

/// Opens a NRRD file. Only the header is read.
pub(crate) fn open(source: Source, options: &OpenOptions) -> Result<Opened, Fault> {
    let (header, data_at) = Header::read(&source)?;
    // Files as text or in another file need no byte order, whose absence would be reported otherwise.
    let is_compressed = header.is_compressed()?;
    let axes = header.axes()?;
    let dtype = header.dtype()?;
    let order = header.byte_order(dtype)?;
    let mut layout = layout(&axes, dtype, order)?;
    check_shape(&layout.shape_full, dtype, &options.limits)?;
    let needed = layout.data_bytes().ok_or_else(|| Fault::malformed("the NRRD image is too large"))?;
    let stored = source.len().saturating_sub(data_at);
    let available = if is_compressed { stored.saturating_mul(MAX_GZIP_RATIO) } else { stored };
    if needed > available {
        return Err(Fault::malformed(format!("its header declares {needed} bytes, but {stored} follow it")));
    }
    let data = if is_compressed {
        Data::Packed(Packed::new(source.part(data_at, stored)?, needed, options.limits.clone()))
    } else {
        layout.data_at = data_at;
        Data::Plain(source)
    };
    let shape_full = layout.shape_full;
    let mut opened = Opened::new(FileFormat::Nrrd, shape_full, dtype, Box::new(Nrrd { data, layout }));
    opened.byte_order = order;
    opened.voxel_size_um = header.voxel_size_um(&axes);
    opened.time_interval_secs = header.time_interval_secs(&axes).filter(|_| shape_full[0] > 1);
    opened.not_applied.extend(header.unit_note(&axes));
    opened.not_applied.extend(header.direction_note());
    opened.compression = if is_compressed { StoredCompression::Gzip } else { StoredCompression::None };
    opened.with_options(options)
}

/// The fields of a header by their names in lower case, without spaces.
struct Header(HashMap<String, String>);

/// An axis of the file: its index in T, Z, C, Y, X, S, and its length.
#[derive(Debug, Clone, Copy)]
struct FileAxis {
    place: usize,
    length: usize,
}

/// Indices in T, Z, C, Y, X, S.
const T: usize = 0;
const C: usize = 2;
const SPACE: [usize; 3] = [4, 3, 1];

impl Header {
    /// Reads the header, which ends with an empty line; returns the position of the byte after it, too.
    fn read(source: &Source) -> Result<(Self, u64), Fault> {
        let head = source.read_vec(0, source.len().min(MAX_HEADER_BYTES) as usize)?;
        let mut fields = HashMap::new();
        let mut at = 0;
        loop {
            let rest = head.get(at..).unwrap_or_default();
            let Some(length) = rest.iter().position(|byte| *byte == b'\n') else {
                return Err(Fault::malformed("the NRRD header does not end with an empty line"));
            };
            let line = String::from_utf8_lossy(rest.get(..length).unwrap_or_default());
            let line = line.trim_end_matches('\r');
            at += length + 1;
            if line.is_empty() {
                return Ok((Self(fields), at as u64));
            }
            // Comments, and pairs of keys and values (:=), are not needed.
            if line.starts_with('#') || line.contains(":=") {
                continue;
            }
            if let Some((name, value)) = line.split_once(':') {
                let name: String = name.to_lowercase().split_whitespace().collect();
                fields.insert(name, value.trim().to_owned());
            }
        }
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The words of a field; none if it is absent.
    fn words(&self, name: &str) -> Vec<&str> {
        self.field(name).map(|value| value.split_whitespace().collect()).unwrap_or_default()
    }

    /// The quoted texts of a field.
    fn quoted(&self, name: &str) -> Vec<&str> {
        self.field(name).map(|value| value.split('"').skip(1).step_by(2).collect()).unwrap_or_default()
    }

    /// The axes in the order of the file, the fastest first. Axes without a kind are X, Y, Z, time and channels.
    fn axes(&self) -> Result<Vec<FileAxis>, Fault> {
        let sizes: Option<Vec<usize>> =
            self.words("sizes").into_iter().map(|size| size.parse::<usize>().ok().filter(|n| *n > 0)).collect();
        let sizes =
            sizes.ok_or_else(|| Fault::malformed("the sizes of the NRRD image are not whole numbers above 0"))?;
        if self.field("dimension").and_then(|n| n.parse::<usize>().ok()) != Some(sizes.len()) {
            return Err(Fault::malformed("the NRRD header does not state as many sizes as axes"));
        }
        if !(2..=MAX_AXES).contains(&sizes.len()) {
            let problem = format!("the NRRD image has {} axes", sizes.len());
            return Err(Fault::unsupported(problem, "save it with at most 5: x, y, z, time and channels"));
        }
        let kinds = self.words("kinds");
        let directions = self.directions();
        let (mut axes, mut spatial) = (Vec::new(), SPACE.into_iter());
        for (i, length) in sizes.into_iter().enumerate() {
            let has_direction = directions.get(i).copied().flatten().is_some();
            let place = match kinds.get(i).copied().unwrap_or("???") {
                "domain" | "space" => spatial.next(),
                "time" => Some(T),
                "???" | "none" if has_direction || directions.is_empty() => spatial.next().or(Some(T)),
                _ => Some(C),
            };
            let other = || axes.iter().any(|axis: &FileAxis| Some(axis.place) == place);
            let place = match place {
                Some(T) if other() => Some(C),
                place => place,
            };
            match place.filter(|place| !axes.iter().any(|axis: &FileAxis| axis.place == *place)) {
                Some(place) => axes.push(FileAxis { place, length }),
                None => {
                    let problem = format!("the kinds of its axes are {}", kinds.join(" "));
                    return Err(Fault::unsupported(problem, "save it with the axes x, y, z, time and channels"));
                }
            }
        }
        if SPACE.iter().take(2).any(|place| !axes.iter().any(|axis| axis.place == *place)) {
            return Err(Fault::unsupported("it has fewer than two axes in space", RESAVE));
        }
        Ok(axes)
    }

    fn dtype(&self) -> Result<DType, Fault> {
        let name = self.field("type").unwrap_or_default();
        Ok(match name {
            "signed char" | "int8" | "int8_t" => DType::I8,
            "uchar" | "unsigned char" | "uint8" | "uint8_t" => DType::U8,
            "short" | "short int" | "signed short" | "signed short int" | "int16" | "int16_t" => DType::I16,
            "ushort" | "unsigned short" | "unsigned short int" | "uint16" | "uint16_t" => DType::U16,
            "int" | "signed int" | "int32" | "int32_t" => DType::I32,
            "uint" | "unsigned int" | "uint32" | "uint32_t" => DType::U32,
            "longlong"
            | "long long"
            | "long long int"
            | "signed long long"
            | "signed long long int"
            | "int64"
            | "int64_t" => DType::I64,
            "ulonglong" | "unsigned long long" | "unsigned long long int" | "uint64" | "uint64_t" => DType::U64,
            "float" => DType::F32,
            "double" => DType::F64,
            other => {
                let other: String = other.chars().take(40).collect();
                return Err(Fault::unsupported(format!("its samples have the type {other:?}"), RESAVE));
            }
        })
    }

    fn byte_order(&self, dtype: DType) -> Result<ByteOrder, Fault> {
        match self.field("endian") {
            Some("big") => Ok(ByteOrder::Big),
            Some("little") => Ok(ByteOrder::Little),
            None if dtype.size_bytes() == 1 => Ok(ByteOrder::Little),
            _ => Err(Fault::malformed("the NRRD header does not state the byte order (endian)")),
        }
    }

    /// Whether the samples are compressed with gzip. Refuses what cannot be read.
    fn is_compressed(&self) -> Result<bool, Fault> {
        if self.field("datafile").is_some() {
            return Err(Fault::unsupported("its samples are in another file", RESAVE));
        }
        for skipped in ["lineskip", "byteskip"] {
            if self.field(skipped).is_some_and(|count| count != "0") {
                return Err(Fault::unsupported("its samples do not follow the header at once", RESAVE));
            }
        }
        match self.field("encoding").map(str::to_lowercase).as_deref() {
            Some("raw") => Ok(false),
            Some("gzip" | "gz") => Ok(true),
            other => {
                let other: String = other.unwrap_or("unknown").chars().take(40).collect();
                Err(Fault::unsupported(format!("its samples have the encoding {other:?}"), RESAVE))
            }
        }
    }

    /// The distance between samples along each axis of the file, in the unit of the space; `None` for axes that are not in space,
    /// and 0 or NaN for an axis whose direction has no length. Empty if the header states no directions.
    fn directions(&self) -> Vec<Option<f64>> {
        let Some(text) = self.field("spacedirections") else { return Vec::new() };
        // Vectors may contain spaces: "(1, 0, 0) none".
        let mut rest = text;
        let mut found: Vec<Option<f64>> = Vec::new();
        let mut dimensions = 0usize;
        while found.len() < MAX_AXES {
            rest = rest.trim_start();
            if let Some(vector) = rest.strip_prefix('(') {
                let (numbers, after) = vector.split_once(')').unwrap_or((vector, ""));
                let numbers: Vec<f64> =
                    numbers.split(',').map(|n| n.trim().parse::<f64>().unwrap_or(f64::NAN)).collect();
                dimensions = dimensions.max(numbers.len());
                // As in Teem, "(nan,nan,nan)" means "none".
                let is_none = numbers.iter().all(|n| n.is_nan());
                found.push((!is_none).then(|| numbers.iter().map(|n| n * n).sum::<f64>().sqrt()));
                rest = after;
            } else if rest.is_empty() {
                break;
            } else {
                let (_, after) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
                found.push(None);
                rest = after;
            }
        }
        // An axis with a direction of unknown length is one of the space, too, unless others are all of its axes.
        let known = found.iter().flatten().filter(|length| positive(**length).is_some()).count();
        if known >= dimensions {
            found.iter_mut().for_each(|length| *length = length.and_then(positive));
        }
        found
    }

    /// The size of a step along an axis of the file, and the name of its unit.
    fn step(&self, axis: usize, in_space: usize) -> Option<(f64, &str)> {
        if let Some(distance) = self.directions().get(axis).copied().flatten() {
            return Some((distance, self.quoted("spaceunits").get(in_space).copied()?));
        }
        let spacing = self.spacing(axis)?;
        let unit = self.quoted("units").get(axis).copied().filter(|unit| !unit.is_empty());
        Some((spacing, unit.or_else(|| self.quoted("spaceunits").get(in_space).copied())?))
    }

    /// The distance between samples along an axis of the file, for headers without directions.
    fn spacing(&self, axis: usize) -> Option<f64> {
        self.words("spacings").get(axis).and_then(|n| n.parse::<f64>().ok()).and_then(positive)
    }

    /// A note on distances between samples without a unit of length.
    fn unit_note(&self, axes: &[FileAxis]) -> Option<String> {
        let size = self.voxel_size_um(axes);
        let distance = |in_space: usize| {
            let place = SPACE.get(in_space)?;
            let axis = axes.iter().position(|axis| axis.place == *place)?;
            let direction = self.directions().get(axis).copied().flatten();
            direction.or_else(|| self.spacing(axis)).and_then(positive)
        };
        let places = [(Axis::Z, 2, size.z), (Axis::Y, 1, size.y), (Axis::X, 0, size.x)];
        let unknown = places.into_iter().filter(|(_, _, size)| size.is_none());
        let found: Vec<(Axis, f64)> =
            unknown.filter_map(|(axis, in_space, _)| Some((axis, distance(in_space)?))).collect();
        without_unit_note("spacing", &found)
    }

    /// A note on axes that do not point along those of the space.
    fn direction_note(&self) -> Option<String> {
        let text = self.field("spacedirections")?;
        let numbers = |vector: &str| -> Vec<f64> {
            vector.split(',').map(|number| number.trim().parse().unwrap_or(f64::NAN)).collect()
        };
        let vectors = text.split('(').skip(1).map(|rest| numbers(rest.split(')').next().unwrap_or_default()));
        // A vector of NaN is that of channels.
        let of_space = vectors.filter(|vector| !vector.iter().all(|number| number.is_nan()));
        let is_along = |(axis, vector): (usize, Vec<f64>)| {
            let length = vector.get(axis).copied().unwrap_or(0.0);
            let aside = |(i, number): (usize, &f64)| i != axis && number.abs() > length * DIRECTION_TOLERANCE;
            length > 0.0 && !vector.iter().enumerate().any(aside)
        };
        (!of_space.enumerate().all(is_along)).then(|| directions_note("space directions"))
    }

    /// Voxel size in µm; unknown along axes without a unit.
    fn voxel_size_um(&self, axes: &[FileAxis]) -> VoxelSize {
        let size = |in_space: usize| {
            let place = SPACE.get(in_space)?;
            let axis = axes.iter().position(|axis| axis.place == *place)?;
            let (step, unit) = self.step(axis, in_space)?;
            positive(step * micrometers_per(unit)?)
        };
        VoxelSize { z: size(2), y: size(1), x: size(0) }
    }

    fn time_interval_secs(&self, axes: &[FileAxis]) -> Option<f64> {
        let axis = axes.iter().position(|axis| axis.place == T)?;
        let (step, unit) = self.step(axis, SPACE.len())?;
        positive(step * seconds_per(unit)?)
    }
}

/// The positions of the samples after the header.
fn layout(axes: &[FileAxis], dtype: DType, order: ByteOrder) -> Result<Dense, Fault> {
    let (mut shape_full, mut strides) = ([1usize; 6], [0usize; 6]);
    let mut step = 1usize;
    for axis in axes {
        shape_full[axis.place] = axis.length;
        strides[axis.place] = step;
        step = step.checked_mul(axis.length).ok_or_else(|| Fault::malformed("the NRRD image is too large"))?;
    }
    Ok(Dense { order, dtype, data_at: 0, shape_full, strides })
}

/// An open image.
#[derive(Debug)]
struct Nrrd {
    data: Data,
    layout: Dense,
}

impl Nrrd {
    fn read_region(&self, region: &Region) -> Result<Samples, Fault> {
        self.layout.read(self.data.source()?, region)
    }
}

impl Pixels for Nrrd {
    fn read(&self, path: &Path, region: &Region) -> Result<Samples, FormatError> {
        self.read_region(region).map_err(|fault| fault.at(path))
    }
}
