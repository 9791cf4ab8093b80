//! NIfTI-1 and NIfTI-2 in one file (`.nii`, `.nii.gz`).
//!
//! Formats: <https://nifti.nimh.nih.gov/pub/dist/src/niftilib/nifti1.h> and `nifti2.h`. Axes are those of the file (x, y,
//! z, t, then channels): the orientation in the scanner (qform, sform) is not applied.

mod directions;

pub use directions::nifti_directions;

use crate::{
    dense::Dense,
    error::{Fault, FormatError},
    fields::Fields,
    file_format::{FileFormat, StoredCompression},
    meta::{ByteOrder, Channel, positive, without_unit_note},
    opening::OpenOptions,
    packed::{Data, MAX_GZIP_RATIO, Packed, gzip_fault},
    reader::{Opened, Pixels, check_shape},
    source::Source,
};
use cytoscope_volume::{Axis, DType, Region, Samples, VoxelSize, with_samples};
use flate2::read::MultiGzDecoder;
use std::{io::Read, path::Path};

/// Length of the NIfTI-1 header in bytes.
const HEADER_1: usize = 348;
/// Length of the NIfTI-2 header in bytes.
const HEADER_2: usize = 540;
/// Advice for an image in two files, a header and its samples.
pub(crate) const SINGLE_FILE: &str = "save it as a single .nii file, for example with Python's nibabel: \
                                      nibabel.save(nibabel.load(\"NAME.hdr\"), \"NAME.nii\")";
/// First bytes of a gzip file.
pub(crate) const GZIP: &[u8] = &[0x1F, 0x8B];

/// Whether the first bytes of a file are a NIfTI header.
pub(crate) fn looks_like_nifti(head: &[u8]) -> bool {
    version(head).is_some()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    /// Length of the header in bytes.
    fn header_len(self) -> usize {
        match self {
            Self::One => HEADER_1,
            Self::Two => HEADER_2,
        }
    }
}

/// Version and byte order, from the stated length of the header and the signature.
fn version(head: &[u8]) -> Option<(Version, ByteOrder)> {
    let length = head.first_chunk::<4>()?;
    for order in [ByteOrder::Little, ByteOrder::Big] {
        match order.u32(*length) {
            348 if matches!(head.get(344..348), Some(b"n+1\0" | b"ni1\0")) => return Some((Version::One, order)),
            540 if matches!(head.get(4..8), Some(b"n+2\0" | b"ni2\0")) => return Some((Version::Two, order)),
            _ => {}
        }
    }
    None
}

/// The values of either header that are used.
#[derive(Debug)]
struct Header {
    version: Version,
    order: ByteOrder,
    single_file: bool,
    datatype: i16,
    /// Number of axes, then extents along x, y, z, t, and 5 to 7.
    dim: [i64; 8],
    /// Sizes of a step along the axes 1 to 7; element 0 is the orientation.
    pixdim: [f64; 8],
    data_at: f64,
    slope: f64,
    intercept: f64,
    units: u32,
}

impl Header {
    fn parse(head: &[u8]) -> Result<Self, Fault> {
        let (version, order) = version(head).ok_or_else(|| Fault::malformed("the NIfTI header is incomplete"))?;
        let f = Fields { bytes: head, order };
        let (mut dim, mut pixdim) = ([0; 8], [0.0; 8]);
        for i in 0..8 {
            (dim[i], pixdim[i]) = match version {
                Version::One => (i64::from(f.i16(40 + 2 * i)?), decimal(f.f32(76 + 4 * i)?)),
                Version::Two => (f.i64(16 + 8 * i)?, f.f64(104 + 8 * i)?),
            };
        }
        Ok(match version {
            Version::One => Self {
                version,
                order,
                single_file: f.u8(345)? == b'+',
                datatype: f.i16(70)?,
                dim,
                pixdim,
                data_at: f64::from(f.f32(108)?),
                slope: f64::from(f.f32(112)?),
                intercept: f64::from(f.f32(116)?),
                units: u32::from(f.u8(123)?),
            },
            Version::Two => Self {
                version,
                order,
                single_file: f.u8(5)? == b'+',
                datatype: f.i16(12)?,
                dim,
                pixdim,
                data_at: f.i64(168)? as f64,
                slope: f.f64(176)?,
                intercept: f.f64(184)?,
                units: f.u32(500)?,
            },
        })
    }

    /// Type and positions of the samples.
    fn layout(&self) -> Result<Dense, Fault> {
        if !self.single_file {
            return Err(Fault::unsupported(
                "this file is only a header; the voxel values are in a separate .img file",
                SINGLE_FILE,
            ));
        }
        let (dtype, samples) = sample_type(self.datatype)?;
        let axes = usize::try_from(self.dim[0]).ok().filter(|n| (1..=7).contains(n)).ok_or_else(|| {
            Fault::malformed(format!("the NIfTI header declares {} axes; 1 to 7 were expected", self.dim[0]))
        })?;
        let mut extents = [1usize; 7];
        for (extent, stated) in extents.iter_mut().zip(self.dim.iter().skip(1)).take(axes) {
            *extent = usize::try_from(*stated)
                .ok()
                .filter(|n| *n > 0)
                .ok_or_else(|| Fault::malformed(format!("an axis of the NIfTI image has length {stated}")))?;
        }
        let [x, y, z, t, c, six, seven] = extents;
        if (six, seven) != (1, 1) {
            let used = if seven == 1 { 6 } else { 7 };
            let next_step = "save it with at most 5: x, y, z, time and channels";
            return Err(Fault::unsupported(format!("the NIfTI image has {used} axes"), next_step));
        }
        let overflow = || Fault::malformed(format!("a NIfTI image of shape {extents:?} is too large"));
        let mut strides = [0; 6];
        let mut step = 1usize;
        // In the file, the samples of a pixel vary fastest and channels slowest.
        for (axis, n) in [(5, samples), (4, x), (3, y), (1, z), (0, t), (2, c)] {
            strides[axis] = step;
            step = step.checked_mul(n).ok_or_else(overflow)?;
        }
        let header_end = self.version.header_len() as f64;
        let data_at = if self.data_at == 0.0 { header_end } else { self.data_at };
        if !(data_at.fract() == 0.0 && (header_end..9e15).contains(&data_at)) {
            return Err(Fault::malformed(format!("the samples begin at byte {}", self.data_at)));
        }
        Ok(Dense { order: self.order, dtype, data_at: data_at as u64, shape_full: [t, z, c, y, x, samples], strides })
    }

    /// Voxel size in µm, unknown if the header states no unit.
    fn voxel_size_um(&self) -> VoxelSize {
        let Some(um) = self.unit_um() else { return VoxelSize::default() };
        let size = |axis: usize| positive(self.step(axis)? * um);
        VoxelSize { z: size(3), y: size(2), x: size(1) }
    }

    /// Micrometers per unit of length; `None` if the header states no unit.
    fn unit_um(&self) -> Option<f64> {
        match self.units & 7 {
            1 => Some(1e6),
            2 => Some(1e3),
            3 => Some(1.0),
            _ => None,
        }
    }

    /// Size of a step along an axis from 1 (x) to 3 (z), in the unit of the header.
    fn step(&self, axis: usize) -> Option<f64> {
        let there = self.dim[0] >= axis as i64;
        positive(self.pixdim.get(axis)?.abs()).filter(|_| there)
    }

    /// A note on a voxel size without a unit.
    fn unit_note(&self) -> Option<String> {
        if self.unit_um().is_some() {
            return None;
        }
        let steps = [(Axis::Z, 3), (Axis::Y, 2), (Axis::X, 1)].into_iter();
        let steps: Vec<(Axis, f64)> = steps.filter_map(|(axis, i)| Some((axis, self.step(i)?))).collect();
        without_unit_note("spacing", &steps)
    }

    fn time_interval_secs(&self) -> Option<f64> {
        let secs = match self.units & 0x38 {
            8 => 1.0,
            16 => 1e-3,
            24 => 1e-6,
            _ => return None,
        };
        positive(self.pixdim[4] * secs).filter(|_| self.dim[0] >= 4 && self.dim[4] > 1)
    }

    /// Slope and intercept, if they change the values. A slope of 0 means that there is none, and so does one that is not a
    /// finite number, as in nibabel.
    fn scaling(&self) -> Result<Option<(f64, f64)>, Fault> {
        let (slope, intercept) = (self.slope, self.intercept);
        if !slope.is_finite() || slope == 0.0 {
            return Ok(None);
        }
        if !intercept.is_finite() {
            let problem =
                format!("the NIfTI header scales the samples by {slope} and adds {intercept}, which is not finite");
            return Err(Fault::malformed(problem));
        }
        Ok(((slope, intercept) != (1.0, 0.0)).then_some((slope, intercept)))
    }
}

/// The shortest decimal number that a 32-bit float stands for: 0.01, which has no exact binary form, would otherwise appear as
/// 0.009999999776.
fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

/// Sample type and number of samples of a pixel, for a `datatype` code.
fn sample_type(code: i16) -> Result<(DType, usize), Fault> {
    Ok(match code {
        2 => (DType::U8, 1),
        4 => (DType::I16, 1),
        8 => (DType::I32, 1),
        16 => (DType::F32, 1),
        64 => (DType::F64, 1),
        128 => (DType::U8, 3),
        256 => (DType::I8, 1),
        512 => (DType::U16, 1),
        768 => (DType::U32, 1),
        1024 => (DType::I64, 1),
        1280 => (DType::U64, 1),
        2304 => (DType::U8, 4),
        other => {
            let name = match other {
                1 => "single bits",
                32 | 1792 | 2048 => "complex numbers",
                1536 => "128-bit floats",
                _ => "an unknown type",
            };
            return Err(Fault::unsupported(
                format!("its samples are {name} (NIfTI data type {other})"),
                "save it as integers of 8 to 64 bits or floats of 32 or 64 bits",
            ));
        }
    })
}

/// Opens a `.nii` or `.nii.gz` file. Only the header of a compressed file is expanded here.
pub(crate) fn open(source: Source, head: &[u8], options: &OpenOptions) -> Result<Opened, Fault> {
    let compressed = head.starts_with(GZIP);
    let header = if compressed { expanded_header(&source)? } else { stored_header(&source)? };
    let header = Header::parse(&header)?;
    let layout = header.layout()?;
    check_shape(&layout.shape_full, layout.dtype, &options.limits)?;
    let bytes = layout.data_bytes().and_then(|n| n.checked_add(layout.data_at));
    let needed = bytes.ok_or_else(|| Fault::malformed("the NIfTI image is too large"))?;
    let available = if compressed { source.len().saturating_mul(MAX_GZIP_RATIO) } else { source.len() };
    if needed > available {
        return Err(Fault::malformed(format!(
            "its header declares {needed} bytes, but the file has {}{}",
            source.len(),
            if compressed { " compressed ones" } else { "" }
        )));
    }
    let (stored, scaling) = (layout.dtype, header.scaling()?.filter(|_| layout.shape_full[5] == 1));
    let dtype = match (scaling, stored) {
        (None, _) => stored,
        (Some(_), DType::F64 | DType::I32 | DType::U32 | DType::I64 | DType::U64) => DType::F64,
        (Some(_), _) => DType::F32,
    };
    let shape_full = layout.shape_full;
    let data = if compressed {
        Data::Packed(Packed::new(source, needed, options.limits.clone()))
    } else {
        Data::Plain(source)
    };
    let nifti = Nifti { data, layout, scaling, dtype };
    let mut opened = Opened::new(FileFormat::Nifti, shape_full, dtype, Box::new(nifti));
    opened.bits_per_sample = stored.size_bytes() as u32 * 8;
    opened.byte_order = header.order;
    opened.voxel_size_um = header.voxel_size_um();
    opened.time_interval_secs = header.time_interval_secs();
    opened.not_applied.extend(header.unit_note());
    opened.channels = vec![Channel::default(); shape_full[2]];
    opened.compression = if compressed { StoredCompression::Gzip } else { StoredCompression::None };
    opened.with_options(options)
}

fn stored_header(source: &Source) -> Result<Vec<u8>, Fault> {
    source.read_vec(0, source.len().min(HEADER_2 as u64) as usize)
}

fn expanded_header(source: &Source) -> Result<Vec<u8>, Fault> {
    let mut header = Vec::new();
    let stream = MultiGzDecoder::new(source.reader());
    stream.take(HEADER_2 as u64).read_to_end(&mut header).map_err(gzip_fault)?;
    if !looks_like_nifti(&header) {
        return Err(Fault::unsupported(
            "the compressed file is not a NIfTI image",
            "decompress it and open its content",
        ));
    }
    Ok(header)
}

/// An open NIfTI image.
#[derive(Debug)]
struct Nifti {
    data: Data,
    layout: Dense,
    /// Slope and intercept, if values are scaled.
    scaling: Option<(f64, f64)>,
    /// Sample type after scaling.
    dtype: DType,
}

impl Nifti {
    fn read_region(&self, region: &Region) -> Result<Samples, Fault> {
        let stored = self.layout.read(self.data.source()?, region)?;
        let Some((slope, intercept)) = self.scaling else { return Ok(stored) };
        let scaled = with_samples!(&stored, v => scale(v, slope, intercept));
        Ok(match self.dtype {
            DType::F64 => Samples::F64(scaled),
            _ => Samples::F32(scaled.into_iter().map(|v| v as f32).collect()),
        })
    }
}

fn scale<E: cytoscope_volume::Element>(values: &[E], slope: f64, intercept: f64) -> Vec<f64> {
    values.iter().map(|v| v.to_f64() * slope + intercept).collect()
}

impl Pixels for Nifti {
    fn read(&self, path: &Path, region: &Region) -> Result<Samples, FormatError> {
        self.read_region(region).map_err(|f| f.at(path))
    }
}
